"""Drift of all old tasks of some runs: from the end of each task to the end of the stream.

For every run the heads after each task are read back and applied to the fixed anchors of that task,
and so are the last ones. For the measures see :mod:`hmcl_jax.evaluation.drift`; besides, the norms
of the anchors, as in the paper's appendix on modality-specific radial contraction
(apdx:norm_contraction).
"""

import dataclasses
import functools
from collections.abc import Mapping
from typing import TYPE_CHECKING

import jax
import jax.numpy as jnp
import numpy as np

from hmcl_jax import _checks, lorentz
from hmcl_jax.data.store import Store
from hmcl_jax.evaluation.anchors import Anchors, fixed_anchors
from hmcl_jax.evaluation.drift import cone_changes, drift_measures
from hmcl_jax.evaluation.seeds import seed_mean
from hmcl_jax.evaluation.signed_rank import Wilcoxon, wilcoxon
from hmcl_jax.head import apply_head

if TYPE_CHECKING:  # runs are made with the help of scores, which are here
    from hmcl_jax.continual.run_reader import SavedRun


@dataclasses.dataclass(frozen=True)
class Norms:
    """Euclidean norms of the anchors of all old tasks in one modality.

    Attributes:
      tasks: index of the old task that each anchor is of, shape ``(n,)``.
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
        """Median of the ratios of all anchors, ``(methods, seeds)``; the figure of the paper."""
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
      seeds: of the runs.
      tasks: names of the old tasks, all but the last of the stream.
      kinds: of the old tasks.
      anchors: how many each old task has.
      values: of :data:`hmcl_jax.evaluation.drift.MEASURES`, ``(methods, seeds, tasks, 4)``.
      cones: of :data:`hmcl_jax.evaluation.drift.CONES`, ``(methods, seeds, tasks, 6)``.
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
            return 1 - mean / mean[self._index(against)]

    def compare(
        self, method: str, against: str = "vanilla", seed: int | None = None
    ) -> list[Wilcoxon]:
        """Exact Wilcoxon tests of whether a method's drift differs from another's.

        The pairs are the old tasks; a positive difference favours `method`. Seeds are no pairs of
        their own, because those of one task are not independent.

        Args:
          method: its name.
          against: the other's.
          seed: of the runs compared. Default: means over all seeds that were not stopped.

        Returns:
          One for each of :data:`hmcl_jax.evaluation.drift.MEASURES`; for all of them to hold at
          once, see :func:`bonferroni`.
        """
        values = seed_mean(self.values, 1) if seed is None else self.values[:, self._seed(seed)]
        differences = values[self._index(against)] - values[self._index(method)]
        return [wilcoxon(column) for column in differences.T]

    def _index(self, method: str) -> int:
        if method not in self.methods:
            raise ValueError(f"method must be one of {', '.join(self.methods)}, got {method!r}.")
        return self.methods.index(method)

    def _seed(self, seed: int) -> int:
        if seed not in self.seeds:
            raise ValueError(f"seed must be one of {list(self.seeds)}, got seed = {seed!r}.")
        return self.seeds.index(seed)


def measure_drift(
    runs: "Mapping[str, SavedRun]", store: Store, *, anchors: int = 50, norm_anchors: int = 500
) -> Drift:
    """Drift of every old task of some runs.

    Args:
      runs: by method, of the same seeds and tasks; see :func:`hmcl_jax.continual.read_runs`.
      store: the stream that they are of.
      anchors: of each task, for drift and cones; see :func:`fixed_anchors`.
      norm_anchors: of each task, for the norms.

    Returns:
      A :class:`Drift`.

    Raises:
      RunError: if a run is not finished; it says what to run again.
      ValueError: if runs are not alike.

    Example:
      >>> import tempfile
      >>> from hmcl_jax.continual import TrainConfig, read_runs, run_stream
      >>> from hmcl_jax.data.synthetic import synthetic_stream
      >>> from hmcl_jax.evaluation import measure_drift
      >>> store, out = synthetic_stream(tasks=3, dimension=8), tempfile.TemporaryDirectory()
      >>> results = run_stream(store, ["vanilla"], [0, 1], TrainConfig(batch=64), out=out.name)
      >>> found = measure_drift(read_runs(out.name, store), store)
      >>> print(found.tasks, found.values.shape)
      ('task1', 'task2') (1, 2, 2, 4)
      >>> out.cleanup()
    """
    _checks.integer("anchors", anchors, 1)
    _checks.integer("norm_anchors", norm_anchors, 1)
    first = _alike(runs)
    tasks = [store[name] for name in first.order[:-1]]
    known = [fixed_anchors(task, max(anchors, norm_anchors)) for task in tasks]
    most = max(len(features.general) for features in known)
    counts = [min(anchors, len(features.general)) for features in known]
    padded = [Anchors(*(_padded(side, most) for side in features)) for features in known]
    measured = []
    for run in runs.values():
        final = run.heads()
        rows = []
        for index, task in enumerate(tasks):
            own = run.heads(index + 1)
            sides = (task.general, task.specific)
            before = Anchors(*(jnp.asarray(own[m]) for m in sides))
            after = Anchors(*(jnp.asarray(final[m]) for m in sides))
            kappa = float(run.config.get("kappa", 0.1))
            rows.append(_measure(before, after, padded[index], store.K, kappa, counts[index]))
        measured.append(jax.device_get(rows))

    def stacked(part: int) -> np.ndarray:
        found = [[np.asarray(row[part], np.float64) for row in rows] for rows in measured]
        return np.moveaxis(np.array(found), 1, 2)  # methods, seeds, tasks, ...

    owners: dict[str, list[tuple[int, str]]] = {}
    for index, task in enumerate(tasks):
        for side in Anchors._fields:
            owners.setdefault(getattr(task, side), []).append((index, side))
    values, cones = stacked(0), stacked(1)
    norms = stacked(2)  # (methods, seeds, tasks, before and after, sides, anchors)
    stopped = np.isnan(norms).any(axis=(2, 3, 4, 5))
    for found in (values, cones, norms):  # angles and cones of NaN may be numbers
        found[stopped] = np.nan
    sizes = [min(norm_anchors, len(features.general)) for features in known]

    def pooled(places: list[tuple[int, str]]) -> Norms:
        def of(when: int) -> np.ndarray:
            parts = [
                norms[:, :, index, when, Anchors._fields.index(side), : sizes[index]]
                for index, side in places
            ]
            return np.concatenate(parts, axis=-1)

        owner = np.concatenate([np.full(sizes[index], index) for index, _ in places])
        return Norms(owner, of(0), of(1))

    return Drift(
        methods=tuple(runs),
        seeds=first.seeds,
        tasks=tuple(task.name for task in tasks),
        kinds=tuple(task.kind for task in tasks),
        anchors=tuple(counts),
        values=values,
        cones=cones,
        norms={modality: pooled(places) for modality, places in sorted(owners.items())},
    )


def _alike(runs: "Mapping[str, SavedRun]") -> "SavedRun":
    """The first of some runs that can be compared, on a stream that has old tasks."""
    if not runs:
        raise ValueError("runs must hold at least one run, got none.")
    name, first = next(iter(runs.items()))
    for other, run in runs.items():
        for what in ("seeds", "order"):
            here, there = getattr(run, what), getattr(first, what)
            if here != there:
                raise ValueError(
                    f"Runs must have one {what} to be compared, got {list(here)} for {other} and "
                    f"{list(there)} for {name}; leave one of them out."
                )
    if len(first.order) < 2:
        raise ValueError(
            f"Drift is of tasks that others follow, got the stream {list(first.order)}; "
            "run at least two tasks."
        )
    return first


def _padded(features: jax.Array | np.ndarray, rows: int) -> np.ndarray:
    """With rows of 0, so that one program serves all tasks."""
    return np.pad(np.asarray(features), ((0, rows - len(features)), (0, 0)))


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
