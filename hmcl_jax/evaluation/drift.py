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

The Gram matrices are whole, diagonals included. The anchors of a class share their prototype.
A rotation of all modalities changes none of the four, a rotation of one modality only cross-modal
drift and paired distance, a radial scaling neither angular nor cross-modal drift.

Further, which samples enter and leave the cone of their text (ours), and the norms of the anchors
as in the paper's appendix on modality-specific radial contraction (apdx:norm_contraction).
"""

import dataclasses
import functools
from collections.abc import Mapping, Sequence
from typing import Any

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


def _sides(before: Anchors, after: Anchors) -> tuple[tuple[jax.Array, ...], ...]:
    """Texts and samples before, the same after, and which points of each are equal."""
    blocks = _checks.as_points(
        **{f"before.{side}": x for side, x in before._asdict().items()},
        **{f"after.{side}": x for side, x in after._asdict().items()},
    )
    if len({block.shape for block in blocks}) > 1 or blocks[0].ndim < 2 or not blocks[0].shape[-2]:
        raise ValueError(
            "before and after must have one shape (..., n, d) with n >= 1 for both modalities, got "
            f"{', '.join(str(block.shape) for block in blocks)}."
        )
    first, last = blocks[:2], blocks[2:]
    return first, last, tuple(jnp.all(x == y, axis=-1) for x, y in zip(first, last, strict=True))


def _cosines(x: jax.Array, y: jax.Array) -> jax.Array:
    def unit(x: jax.Array) -> jax.Array:
        r = lorentz.radius(x)[..., None]
        return jnp.where(r > 0, x / jnp.where(r > 0, r, 1), 0)

    return jnp.matmul(unit(x), jnp.swapaxes(unit(y), -1, -2), precision=PRECISION)


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
    first, last, equal = _sides(before, after)
    general, specific = 0, 1

    def time_change(side: int) -> jax.Array:
        x, y = first[side], last[side]
        # The difference of the time components without cancellation.
        times = lorentz.time_coordinate(x, K) + lorentz.time_coordinate(y, K)
        return jnp.mean(jnp.abs(dot(y - x, y + x)) / times, axis=-1)

    def cosine_change(side: int, other: int) -> jax.Array:
        change = _cosines(last[side], last[other]) - _cosines(first[side], first[other])
        # A compiled difference of equal numbers may be off by a rounding.
        unmoved = equal[side][..., :, None] & equal[other][..., None, :]
        return jnp.mean(jnp.where(unmoved, 0, jnp.abs(change)), axis=(-2, -1))

    then, now = (lorentz.distance(points[specific], points[general], K) for points in (first, last))
    unmoved = equal[general] & equal[specific]
    measures = [
        (time_change(general) + time_change(specific)) / 2,
        (cosine_change(general, general) + cosine_change(specific, specific)) / 2,
        cosine_change(specific, general),
        jnp.mean(jnp.where(unmoved, 0, jnp.abs(now - then)), axis=-1),
    ]
    return jnp.stack(measures, axis=-1)


def cone_changes(
    before: Anchors, after: Anchors, K: ArrayLike = 10.0, kappa: ArrayLike = 0.1
) -> jax.Array:
    """All of :data:`CONES`: which samples lie in the cone of their text, before and after.

    It takes the arguments of :func:`drift_measures`, and `kappa` of
    :func:`hmcl_jax.entailment.half_aperture`.

    Returns:
      Shape ``(..., 6)``.

    Example:
      >>> from hmcl_jax.evaluation import Anchors, cone_changes
      >>> text, inside, outside = [[2.0, 0.0]], [[3.0, 0.0]], [[-3.0, 0.0]]
      >>> print(cone_changes(Anchors(text, inside), Anchors(text, outside))[:4])
      [0. 1. 1. 0.]
    """
    first, last, equal = _sides(before, after)
    excess_before, excess_after = (
        entailment.exterior_angle(texts, samples, K) - entailment.half_aperture(texts, K, kappa)
        for texts, samples in (first, last)
    )
    excess_after = jnp.where(equal[0] & equal[1], excess_before, excess_after)
    was, is_ = excess_before <= 0, excess_after <= 0
    changes = [~was, ~is_, was & ~is_, ~was & is_, excess_before, excess_after]
    dtype = excess_after.dtype
    return jnp.stack([jnp.mean(x, axis=-1, dtype=dtype) for x in changes], axis=-1)


@dataclasses.dataclass(frozen=True)
class Norms:
    """Euclidean norms of the anchors of all old tasks in one modality."""

    tasks: np.ndarray  # index of the old task of each anchor, (n,)
    before: np.ndarray  # norms at the end of that task, (methods, seeds, n)
    after: np.ndarray  # norms at the end of the stream, (methods, seeds, n)

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
    """Drift of every old task between its end and the end of the stream; NaN for stopped seeds."""

    methods: tuple[str, ...]
    seeds: tuple[int, ...]
    tasks: tuple[str, ...]  # the old ones, all but the last of the stream
    kinds: tuple[str, ...]  # of the old tasks
    anchors: tuple[int, ...]  # how many each old task has
    values: np.ndarray  # of MEASURES, (methods, seeds, tasks, 4)
    cones: np.ndarray  # of CONES, (methods, seeds, tasks, 6)
    norms: Mapping[str, Norms]  # by modality

    def mean(self) -> np.ndarray:
        """Mean over the old tasks, ``(methods, seeds, 4)``."""
        return self.values.mean(axis=2)

    def reduction(self, against: str = "vanilla") -> np.ndarray:
        """Share of another method's mean drift that is avoided, ``(methods, seeds, 4)``.

        1 if nothing drifts, 0 if it drifts as much, below 0 if more; NaN if neither does.
        """
        mean = self.mean()
        with np.errstate(divide="ignore", invalid="ignore"):
            return 1 - mean / mean[self._row(against)]

    def compare(
        self, method: str, against: str = "vanilla", seed: int | None = None
    ) -> list[Wilcoxon]:
        """Exact Wilcoxon tests of whether a method's drift differs from another's.

        The pairs are the old tasks; a positive difference favours `method`. Seeds are no pairs,
        because those of one task are not independent. Without `seed`, means over all seeds that
        were not stopped are compared.

        Returns:
          One test for each of :data:`MEASURES`, not yet adjusted for their number.
        """
        if seed is not None and seed not in self.seeds:
            raise ValueError(f"seed must be one of {list(self.seeds)}, got seed = {seed!r}.")
        values = (
            seed_mean(self.values, 1) if seed is None else self.values[:, self.seeds.index(seed)]
        )
        differences = values[self._row(against)] - values[self._row(method)]
        return [wilcoxon(column) for column in differences.T]

    def _row(self, method: str) -> int:
        if method not in self.methods:
            raise ValueError(f"method must be one of {list(self.methods)}, got {method!r}.")
        return self.methods.index(method)


def join_drift(parts: Sequence[Drift]) -> Drift:
    """Joins drift that was measured method by method, on the same seeds, tasks and anchors."""
    first = parts[0]
    for part in parts:
        for name in ("seeds", "tasks", "anchors"):
            ours, theirs = getattr(first, name), getattr(part, name)
            if ours != theirs:
                raise ValueError(
                    f"parts must have one set of {name}, got {ours} for {first.methods} and "
                    f"{theirs} for {part.methods}; leave one of them out."
                )

    def join(items: Sequence[Any], name: str) -> np.ndarray:
        return np.concatenate([getattr(item, name) for item in items])

    norms = {}
    for modality, own in first.norms.items():
        every = [part.norms[modality] for part in parts]
        norms[modality] = Norms(own.tasks, join(every, "before"), join(every, "after"))
    return dataclasses.replace(
        first,
        methods=tuple(method for part in parts for method in part.methods),
        values=join(parts, "values"),
        cones=join(parts, "cones"),
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
    """Drift of every old task under the heads of one method; :func:`join_drift` joins several.

    Args:
      method: its name.
      heads: after each task, ``{modality: W}`` with W of shape ``(seeds, d, d + 1)``; NaN for a
        seed that was stopped.
      tasks: of the stream in their order, at least two.
      seeds: of the heads.
      K: squared radius of the hyperboloid.
      kappa: sets the minimum radius of the cones.
      counts: anchors of each task (:func:`fixed_anchors`) for drift and cones, and for norms.

    Example:
      >>> import hmcl_jax
      >>> from hmcl_jax.data.synthetic import synthetic_stream
      >>> from hmcl_jax.evaluation import measure_drift
      >>> tasks = synthetic_stream(tasks=3, dimension=8).tasks
      >>> start = {m: W[None] for m, W in hmcl_jax.identity_heads(["image", "text"], 8).items()}
      >>> drift = measure_drift("still", [start] * 3, tasks, [0])
      >>> print(drift.tasks, drift.values.shape, drift.norms["text"].contraction())
      ('task1', 'task2') (1, 1, 2, 4) [[1.]]
    """
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
        before, after = (
            Anchors(jnp.asarray(h[task.general]), jnp.asarray(h[task.specific]))
            for h in (own, heads[-1])
        )
        # Rows of 0 follow, so that one program serves all tasks.
        padding = ((0, rows - len(points.general)), (0, 0))
        padded = Anchors(*(np.pad(side, padding) for side in points))
        measured.append(_measure(before, after, padded, K, kappa, count))
    values, cones, norms = (
        np.stack([np.asarray(part, np.float64) for part in parts], axis=1)
        for parts in zip(*jax.device_get(measured), strict=True)
    )  # norms: (seeds, tasks, before and after, general and specific, anchors)
    stopped = np.isnan(norms).any(axis=(1, 2, 3, 4))
    for array in (values, cones, norms):  # with NaN in a head, cones may still be numbers
        array[stopped] = np.nan
    pooled: dict[str, list[tuple[np.ndarray, np.ndarray]]] = {}
    for index, task in enumerate(old):
        for side, modality in enumerate((task.general, task.specific)):
            own_norms = norms[:, index, :, side, : many[index]]
            pooled.setdefault(modality, []).append((np.full(many[index], index), own_norms))
    by_modality = {}
    for modality, parts in sorted(pooled.items()):
        owners, radii = (np.concatenate(arrays, axis=-1) for arrays in zip(*parts, strict=True))
        by_modality[modality] = Norms(owners, radii[None, :, 0], radii[None, :, 1])
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


@functools.partial(jax.jit, static_argnames=("count",))
def _measure(
    before: Anchors, after: Anchors, features: Anchors, K: float, kappa: float, count: int
) -> tuple[jax.Array, jax.Array, jax.Array]:
    """Measures, cones and norms; heads have a leading axis of seeds."""
    apply = jax.vmap(apply_head, (0, None, None))
    ends = [
        Anchors(*(apply(W, z.astype(W.dtype), K) for W, z in zip(heads, features, strict=True)))
        for heads in (before, after)
    ]
    first, last = (Anchors(x.general[:, :count], x.specific[:, :count]) for x in ends)
    norms = jnp.stack([jnp.stack([lorentz.radius(x) for x in pair], axis=1) for pair in ends], 1)
    return drift_measures(first, last, K), cone_changes(first, last, K, kappa), norms
