r"""Drift: how the geometry of old tasks differs between the end of each task and of the stream.

The four measures of the paper's section "Quantitative Representation Drift" (sec:exp_drift), on
matched anchors, samples :math:`s_i` and their texts :math:`g_i`, before (at the end of their task)
and after (at the end of the stream); :math:`\hat x = x / |x|`, :math:`\Delta` is after minus before
and the bar a mean over all anchors or pairs of anchors:

- radial: :math:`\tfrac12 (\overline{|\Delta s_{i,0}|} + \overline{|\Delta g_{i,0}|})`, of the time
  components (condition "P: hierarchical");
- angular: :math:`\tfrac12 (\overline{|\Delta\, \hat s_i \cdot \hat s_j|} +
  \overline{|\Delta\, \hat g_i \cdot \hat g_j|})`, within each modality ("P: intra");
- cross-modal: :math:`\overline{|\Delta\, \hat s_i \cdot \hat g_j|}`, over all i and j ("P: inter");
- paired distance: :math:`\overline{|\Delta\, d_{\mathcal L}(s_i, g_i)|}`. The paper says "mean
  change"; it is the absolute one here, as in the other three, so that changes in opposite
  directions do not cancel.

The Gram matrices are whole, diagonals included. The anchors of a class share their prototype, which
then occurs several times. One rotation of all modalities gives 0 for all four. A rotation of one
modality alone leaves radial and angular drift 0 and changes cross-modal drift and paired distance.
A radial scaling leaves angular and cross-modal drift 0.

Besides (ours), which samples enter and leave the cone of their text, and the norms of the anchors
as in the paper's appendix on modality-specific radial contraction (apdx:norm_contraction).
"""

import dataclasses
import functools
from collections.abc import Mapping, Sequence

import jax
import jax.numpy as jnp
import numpy as np
from jax.typing import ArrayLike

from hmcl_jax import _checks, entailment, lorentz
from hmcl_jax._checks import PRECISION
from hmcl_jax.data.store import Task
from hmcl_jax.evaluation.anchors import Anchors, fixed_anchors
from hmcl_jax.evaluation.statistics import Wilcoxon, seed_mean, wilcoxon
from hmcl_jax.head import apply_head
from hmcl_jax.lorentz import dot

Heads = Mapping[str, ArrayLike]

MEASURES = {
    "radial": "mean absolute change of the time component, mean of both modalities",
    "angular": "mean absolute change of the cosines within a modality, mean of both modalities",
    "cross_modal": "mean absolute change of the cosines between the two modalities",
    "paired_distance": "mean absolute change of the Lorentz distance of matched pairs",
}
CONES = {
    "outside_before": "share of the anchors outside the cone of their text at the end of the task",
    "outside_after": "the same at the end of the stream",
    "lost": "share of the anchors inside the cone of their text before and outside after",
    "gained": "share of the anchors outside the cone of their text before and inside after",
    "excess_before": "mean exterior angle minus half aperture (radians) at the end of the task",
    "excess_after": "the same at the end of the stream",
}


def _blocks(before: Anchors, after: Anchors) -> tuple[jax.Array, ...]:
    """Texts and samples before, texts and samples after."""
    named = {
        f"{when}.{side}": block
        for when, anchors in (("before", before), ("after", after))
        for side, block in zip(Anchors._fields, anchors, strict=True)
    }
    blocks = _checks.as_points(**named)
    if len({block.shape for block in blocks}) > 1 or blocks[0].ndim < 2 or not blocks[0].shape[-2]:
        shapes = ", ".join(f"{name} {x.shape}" for name, x in zip(named, blocks, strict=True))
        raise ValueError(
            "Matched anchors before and after must have one shape (..., n, d) with n >= 1, "
            f"got {shapes}."
        )
    return blocks


def _unit(x: jax.Array) -> jax.Array:
    r = lorentz.radius(x)[..., None]
    return jnp.where(r > 0, x / jnp.where(r > 0, r, 1), 0)


def _unmoved(x: jax.Array, later: jax.Array) -> jax.Array:
    """Which points are equal. A compiled difference of equal points may be off by a rounding."""
    return jnp.all(x == later, axis=-1)


def _time_change(x: jax.Array, later: jax.Array, K: ArrayLike) -> jax.Array:
    # The difference of the time components without cancellation.
    times = lorentz.time_coordinate(x, K) + lorentz.time_coordinate(later, K)
    return jnp.mean(jnp.abs(dot(later - x, later + x)) / times, axis=-1)


def _cosine_change(x: jax.Array, y: jax.Array, later_x: jax.Array, later_y: jax.Array) -> jax.Array:
    def cosines(a: jax.Array, b: jax.Array) -> jax.Array:
        return jnp.matmul(_unit(a), jnp.swapaxes(_unit(b), -1, -2), precision=PRECISION)

    unmoved = _unmoved(x, later_x)[..., :, None] & _unmoved(y, later_y)[..., None, :]
    change = jnp.abs(cosines(later_x, later_y) - cosines(x, y))
    return jnp.mean(jnp.where(unmoved, 0, change), axis=(-2, -1))


def drift_measures(before: Anchors, after: Anchors, K: ArrayLike = 10.0) -> jax.Array:
    """All of :data:`MEASURES`.

    Args:
      before: points, each modality of shape ``(..., n, d)``, matched row by row. A point at the
        origin has cosine 0 with all others.
      after: the same anchors later.
      K: squared radius of the hyperboloid.

    Returns:
      Shape ``(..., 4)``.

    Example:
      >>> import jax.numpy as jnp
      >>> from hmcl_jax.evaluation import Anchors, drift_measures
      >>> right, up = jnp.array([[3.0, 0.0]]), jnp.array([[0.0, 3.0]])
      >>> print(drift_measures(Anchors(right, up), Anchors(up, -right), K=16.0))  # all turned
      [0. 0. 0. 0.]
      >>> print(drift_measures(Anchors(right, right), Anchors(right, up))[:3])  # one side turned
      [0. 0. 1.]
    """
    texts, samples, later_texts, later_samples = _blocks(before, after)
    radial = (_time_change(texts, later_texts, K) + _time_change(samples, later_samples, K)) / 2
    angular = (
        _cosine_change(texts, texts, later_texts, later_texts)
        + _cosine_change(samples, samples, later_samples, later_samples)
    ) / 2
    cross_modal = _cosine_change(samples, texts, later_samples, later_texts)
    change = lorentz.distance(later_samples, later_texts, K) - lorentz.distance(samples, texts, K)
    unmoved = _unmoved(texts, later_texts) & _unmoved(samples, later_samples)
    paired_distance = jnp.mean(jnp.where(unmoved, 0, jnp.abs(change)), axis=-1)
    return jnp.stack([radial, angular, cross_modal, paired_distance], axis=-1)


def cone_changes(
    before: Anchors, after: Anchors, K: ArrayLike = 10.0, kappa: ArrayLike = 0.1
) -> jax.Array:
    """All of :data:`CONES`: which samples lie in the cone of their text, before and after.

    Args:
      before: points, each modality of shape ``(..., n, d)``, matched row by row.
      after: the same anchors later.
      K: squared radius of the hyperboloid.
      kappa: sets the minimum radius, see :func:`entailment.half_aperture`.

    Returns:
      Shape ``(..., 6)``.

    Example:
      >>> import jax.numpy as jnp
      >>> from hmcl_jax.evaluation import Anchors, cone_changes
      >>> texts, samples = jnp.array([[2.0, 0.0], [2.0, 0.0]]), jnp.array([[3.0, 0.0], [4.0, 0.0]])
      >>> turned = jnp.array([[-3.0, 0.0], [4.0, 0.0]])
      >>> print(cone_changes(Anchors(texts, samples), Anchors(texts, turned))[:4])
      [0. 0.5 0.5 0. ]
    """
    texts, samples, later_texts, later_samples = _blocks(before, after)

    def excess(general: jax.Array, specific: jax.Array) -> jax.Array:
        aperture = entailment.half_aperture(general, K, kappa)
        return entailment.exterior_angle(general, specific, K) - aperture

    first, last = excess(texts, samples), excess(later_texts, later_samples)
    unmoved = _unmoved(texts, later_texts) & _unmoved(samples, later_samples)
    last = jnp.where(unmoved, first, last)
    was, is_ = first <= 0, last <= 0
    shares = [jnp.mean(x, axis=-1, dtype=first.dtype) for x in (~was, ~is_, was & ~is_, ~was & is_)]
    return jnp.stack([*shares, first.mean(axis=-1), last.mean(axis=-1)], axis=-1)


@dataclasses.dataclass(frozen=True)
class Norms:
    """Euclidean norms of the anchors of all old tasks in one modality.

    Attributes:
      tasks: index of the old task of each anchor, shape ``(n,)``.
      before: norms at the end of that task, ``(methods, seeds, n)``.
      after: norms at the end of the stream, ``(methods, seeds, n)``.
    """

    tasks: np.ndarray
    before: np.ndarray
    after: np.ndarray

    @property
    def ratios(self) -> np.ndarray:
        """Norm after over norm before of every anchor, ``(methods, seeds, n)``."""
        with np.errstate(divide="ignore", invalid="ignore"):
            return self.after / self.before

    def contraction(self) -> np.ndarray:
        """Median of the ratios of all anchors, ``(methods, seeds)``; the paper's number."""
        return np.median(self.ratios, axis=-1)

    def task_contraction(self, task: int) -> np.ndarray:
        """Median of the ratios of one old task, ``(methods, seeds)``; NaN without the modality."""
        chosen = self.ratios[..., self.tasks == task]
        return np.median(chosen, axis=-1) if chosen.size else np.full(chosen.shape[:-1], np.nan)


@dataclasses.dataclass(frozen=True)
class Drift:
    """Drift of every old task between its end and the end of the stream.

    All numbers of a seed that was stopped are NaN.

    Attributes:
      methods: names.
      seeds: of the heads.
      tasks: names of the old tasks, all but the last of the stream.
      kinds: of the old tasks.
      anchors: how many each old task has.
      values: of :data:`MEASURES`, ``(methods, seeds, tasks, 4)``.
      cones: of :data:`CONES`, ``(methods, seeds, tasks, 6)``.
      norms: by modality.
    """

    methods: tuple[str, ...]
    seeds: tuple[int, ...]
    tasks: tuple[str, ...]
    kinds: tuple[str, ...]
    anchors: tuple[int, ...]
    values: np.ndarray
    cones: np.ndarray
    norms: Mapping[str, Norms]

    def mean(self) -> np.ndarray:
        """Mean over the old tasks, ``(methods, seeds, 4)``."""
        return self.values.mean(axis=2)

    def reduction(self, against: str = "vanilla") -> np.ndarray:
        """Share of another method's mean drift that is avoided, ``(methods, seeds, 4)``.

        1 if nothing drifts, 0 if it drifts as much, below 0 if more; NaN if neither does.

        Args:
          against: the other method.
        """
        mean = self.mean()
        with np.errstate(divide="ignore", invalid="ignore"):
            return 1 - mean / mean[_index("method", self.methods, against)]

    def compare(
        self, method: str, against: str = "vanilla", seed: int | None = None
    ) -> list[Wilcoxon]:
        """Exact Wilcoxon tests of whether a method's drift differs from another's.

        The pairs are the old tasks; a positive difference favours `method`. Seeds are no pairs of
        their own, because those of one task are not independent.

        Args:
          method: its name.
          against: the other's.
          seed: whose drift is compared. Default: means over all seeds that were not stopped.

        Returns:
          One for each of :data:`MEASURES`; for all of them to hold at once, see
          :func:`hmcl_jax.evaluation.bonferroni`.
        """
        values = (
            seed_mean(self.values, 1)
            if seed is None
            else self.values[:, _index("seed", self.seeds, seed)]
        )
        ours, theirs = (values[_index("method", self.methods, m)] for m in (method, against))
        return [wilcoxon(column) for column in (theirs - ours).T]


def _index(name: str, known: tuple, value: object) -> int:
    if value not in known:
        raise ValueError(f"{name} must be one of {list(known)}, got {name} = {value!r}.")
    return known.index(value)


def join_drift(parts: Sequence[Drift]) -> Drift:
    """Drift that was measured method by method, in one.

    Args:
      parts: of the same seeds, tasks and anchors, at least one.

    Returns:
      The drift of all methods.
    """
    first = parts[0]
    for part in parts:
        for what in ("seeds", "tasks", "anchors"):
            ours, theirs = getattr(first, what), getattr(part, what)
            if ours != theirs:
                raise ValueError(
                    f"Drift must have one set of {what} to be compared, got {list(ours)} for "
                    f"{', '.join(first.methods)} and {list(theirs)} for {', '.join(part.methods)}; "
                    "leave one of them out."
                )
    norms = {}
    for modality, one in first.norms.items():
        before, after = (
            np.concatenate([getattr(part.norms[modality], when) for part in parts])
            for when in ("before", "after")
        )
        norms[modality] = Norms(one.tasks, before, after)
    return dataclasses.replace(
        first,
        methods=tuple(method for part in parts for method in part.methods),
        values=np.concatenate([part.values for part in parts]),
        cones=np.concatenate([part.cones for part in parts]),
        norms=norms,
    )


def measure_drift(
    method: str,
    heads: Sequence[Heads],
    tasks: Sequence[Task],
    seeds: Sequence[int],
    *,
    K: float = 10.0,
    kappa: float = 0.1,
    counts: tuple[int, int] = (50, 500),
) -> Drift:
    """Drift of every old task under the heads of one method.

    Args:
      method: its name.
      heads: after each task, ``{modality: W}`` with W of shape ``(seeds, d, d + 1)``; NaN for a
        seed that was stopped.
      tasks: of the stream in their order, at least two.
      seeds: of the heads.
      K: squared radius of the hyperboloid.
      kappa: sets the minimum radius of the cones.
      counts: anchors of each task (:func:`fixed_anchors`) for drift and cones, and for norms.

    Returns:
      A :class:`Drift` of one method; :func:`join_drift` joins several.

    Example:
      >>> import hmcl_jax
      >>> from hmcl_jax.data.synthetic import synthetic_stream
      >>> from hmcl_jax.evaluation import measure_drift
      >>> tasks = synthetic_stream(tasks=3, dimension=8).tasks
      >>> start = {m: W[None] for m, W in hmcl_jax.identity_heads(["image", "text"], 8).items()}
      >>> later = {m: 2 * W for m, W in start.items()}
      >>> drift = measure_drift("scaled", [start, start, later], tasks, [0])
      >>> print(drift.tasks, drift.values.shape, drift.norms["text"].contraction())
      ('task1', 'task2') (1, 1, 2, 4) [[2.]]
    """
    for name, count in zip(("counts[0]", "counts[1]"), counts, strict=True):
        _checks.integer(name, count, 1)
    if len(tasks) < 2 or len(heads) != len(tasks):
        raise ValueError(
            "Drift needs at least two tasks and the heads after each of them, got "
            f"{len(tasks)} tasks and {len(heads)} heads."
        )
    old = tasks[:-1]
    anchors = [fixed_anchors(task, max(counts)) for task in old]
    few, many = ([min(count, len(a.general)) for a in anchors] for count in counts)
    rows = max(len(a.general) for a in anchors)
    measured = []
    for task, own, points, count in zip(old, heads[:-1], anchors, few, strict=True):
        sides = (task.general, task.specific)
        before, after = (Anchors(*(jnp.asarray(h[m]) for m in sides)) for h in (own, heads[-1]))
        padded = Anchors(*(_padded(side, rows) for side in points))
        measured.append(_measure(before, after, padded, K, kappa, count))
    values, cones, norms = (
        np.stack([np.asarray(part, np.float64) for part in parts], axis=1)
        for parts in zip(*jax.device_get(measured), strict=True)
    )  # norms: (seeds, tasks, before and after, sides, anchors)
    stopped = np.isnan(norms).any(axis=(1, 2, 3, 4))
    for array in (values, cones, norms):  # of NaN heads angles and cones may be numbers
        array[stopped] = np.nan
    pooled: dict[str, list[tuple[int, np.ndarray]]] = {}
    for index, task in enumerate(old):
        for side, modality in enumerate((task.general, task.specific)):
            own_norms = norms[:, index, :, side, : many[index]]
            pooled.setdefault(modality, []).append((index, own_norms))
    by_modality = {}
    for modality, parts in sorted(pooled.items()):
        owners = np.concatenate([np.full(part.shape[-1], index) for index, part in parts])
        joined = np.concatenate([part for _, part in parts], axis=-1)[None]
        by_modality[modality] = Norms(owners, joined[:, :, 0], joined[:, :, 1])
    return Drift(
        methods=(method,),
        seeds=tuple(seeds),
        tasks=tuple(task.name for task in old),
        kinds=tuple(task.kind for task in old),
        anchors=tuple(few),
        values=values[None],
        cones=cones[None],
        norms=by_modality,
    )


def _padded(features: ArrayLike, rows: int) -> np.ndarray:
    """With rows of 0, so that one program serves all tasks."""
    features = np.asarray(features)
    return np.pad(features, ((0, rows - len(features)), (0, 0)))


@functools.partial(jax.jit, static_argnames=("count",))
def _measure(
    before: Anchors, after: Anchors, features: Anchors, K: float, kappa: float, count: int
) -> tuple[jax.Array, jax.Array, jax.Array]:
    """Measures, cones and norms; heads have a leading axis of seeds."""

    def points(heads: Anchors) -> Anchors:
        apply = jax.vmap(apply_head, (0, None, None))
        return Anchors(
            *(apply(W, z.astype(W.dtype), K) for W, z in zip(heads, features, strict=True))
        )

    every = points(before), points(after)
    first, last = (Anchors(x.general[:, :count], x.specific[:, :count]) for x in every)
    norms = jnp.stack([jnp.stack([lorentz.radius(x) for x in pair], axis=1) for pair in every], 1)
    return drift_measures(first, last, K), cone_changes(first, last, K, kappa), norms
