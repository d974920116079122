"""Everything that can be said about finished runs, measured once: scores, drift, trees, walks.

:func:`analyse` reads run folders and gives an :class:`Analysis`, which tables, figures and the page
are made from. What a run lacks is left out and named in :attr:`Analysis.lacking`.
"""

import dataclasses
import os
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import jax.numpy as jnp
import numpy as np

from hmcl_jax import _checks
from hmcl_jax.continual import read_runs
from hmcl_jax.continual.errors import RunError
from hmcl_jax.continual.health import Stopped
from hmcl_jax.continual.run import StreamResult
from hmcl_jax.continual.run_directory import RUN
from hmcl_jax.continual.run_reader import SavedRun, run_names
from hmcl_jax.continual.scoring import Evaluator
from hmcl_jax.data.store import Store
from hmcl_jax.evaluation import Drift, Norms, Tree, TreePoints, measure_drift
from hmcl_jax.report.reading import SavedResults, read_results
from hmcl_jax.report.results import without_stopped
from hmcl_jax.report.trees import (
    Hierarchy,
    MeasuredTree,
    class_trees,
    going_seeds,
    measure_trees,
)
from hmcl_jax.report.walks import Walk, choose_walks, measure_walks

Listener = Callable[[str, int, int], None]


@dataclasses.dataclass(frozen=True, eq=False)
class Analysis:
    """What was measured in some runs on one stream.

    Attributes:
      store: the stream.
      folders: of the runs.
      methods: all, in the order in which they are shown.
      order: names of the tasks, in the order of the runs.
      kinds: of the tasks.
      seeds: of the runs.
      settings: of each method.
      config: shared settings of each method's run.
      results: by method, for those that are finished, over the seeds that were not stopped.
      about: by folder, what stands beside its results.
      drift: of the methods that have all checkpoints; None if there is none.
      hierarchy: of each classification task with a tree, for the methods of `geometry`.
      tree_points: where the names of one tree are, for a drawing.
      walks: from pictures to the root, of each method's first seed that was not stopped.
      geometry: the methods that `drift`, `hierarchy` and `walks` are of.
      lacking: sentences on what could not be measured and what to run again.
    """

    store: Store
    folders: tuple[Path, ...]
    methods: tuple[str, ...]
    order: tuple[str, ...]
    kinds: tuple[str, ...]
    seeds: tuple[int, ...]
    settings: Mapping[str, Mapping[str, Any]]
    config: Mapping[str, Mapping[str, Any]]
    results: Mapping[str, StreamResult]
    about: Mapping[str, SavedResults]
    drift: Drift | None
    hierarchy: tuple[Hierarchy, ...]
    tree_points: TreePoints | None
    walks: tuple[Walk, ...]
    geometry: tuple[str, ...]
    lacking: tuple[str, ...]


@dataclasses.dataclass(frozen=True)
class _Remembered(SavedRun):
    """A run whose heads are read once, however many analyses ask for them."""

    read: dict[int, dict[str, Any]] = dataclasses.field(default_factory=dict)

    def heads(self, finished: int | None = None) -> dict[str, Any]:
        number = len(self.order) if finished is None else finished
        if number not in self.read:
            found = super().heads(number)
            self.read[number] = {modality: jnp.asarray(W) for modality, W in found.items()}
        return self.read[number]


def analyse(
    folders: Sequence[str | os.PathLike[str]],
    store: Store,
    *,
    methods: Sequence[str] | None = None,
    anchors: int = 50,
    norm_anchors: int = 500,
    pictures: int = 8,
    listener: Listener | None = None,
) -> Analysis:
    """Measures everything in one or several folders of runs over the same stream.

    Args:
      folders: each one that :func:`hmcl_jax.continual.run_stream` has written to. A method that is
        in several is called ``"folder/method"``.
      store: the stream that the runs are of.
      methods: names, as they are shown or as they are in the folders. Default: all.
      anchors: of each task, for drift.
      norm_anchors: of each task, for norms.
      pictures: that walks start from, at most.
      listener: called with a method and how many of how many are done.

    Returns:
      An :class:`Analysis`.

    Raises:
      RunError: if there is nothing to analyse, or if runs are not alike.

    Example:
      >>> import tempfile
      >>> from hmcl_jax.continual import TrainConfig, run_stream
      >>> from hmcl_jax.data.synthetic import synthetic_stream
      >>> from hmcl_jax.report import write_results
      >>> from hmcl_jax.report.analysis import analyse
      >>> store, out = synthetic_stream(tasks=2, dimension=8), tempfile.TemporaryDirectory()
      >>> found = run_stream(store, ["vanilla"], [0], TrainConfig(batch=64), out=out.name)
      >>> _ = write_results(out.name, found, {})
      >>> analysis = analyse([out.name], store)
      >>> print(analysis.methods, analysis.drift.values.shape, analysis.lacking)
      ('vanilla',) (1, 1, 1, 4) ()
      >>> out.cleanup()
    """
    _checks.instance("store", store, Store, "a Store")
    if isinstance(folders, str | os.PathLike) or not folders:
        raise TypeError(f"folders must be a list of at least one folder, got {folders!r}.")
    for name, value in (("anchors", anchors), ("norm_anchors", norm_anchors)):
        _checks.integer(name, value, 1)
    _checks.integer("pictures", pictures, 0)
    lacking: list[str] = []
    runs, results, about = _read(tuple(map(Path, folders)), store, methods, lacking)
    first = next(iter(runs.values()))
    tasks = [store[name] for name in first.order]
    trees = class_trees(tasks, lacking)
    walks = choose_walks(store, tasks, pictures)
    if not trees and "classification" in (task.kind for task in tasks):
        lacking.append("No classification task has a class tree, so no hierarchy is measured.")
    if pictures and not walks.walks:
        lacking.append("The store holds no names to walk to, so there are no traversals.")
    evaluator = Evaluator(store.K)
    kept: dict[str, tuple] = {}
    for number, (label, run) in enumerate(runs.items()):
        if listener is not None:
            listener(label, number, len(runs))
        seen = _Remembered(**{f.name: getattr(run, f.name) for f in dataclasses.fields(run)})
        kappa = float(run.config.get("kappa", 0.1))
        try:
            if label not in results:
                lacking += _stopped(label, seen.stopped(), len(run.seeds))
            going = going_seeds(seen)
            drift = None
            if len(tasks) > 1:
                amounts = {"anchors": anchors, "norm_anchors": norm_anchors}
                drift = measure_drift({label: seen}, store, **amounts)
                _check_finite(drift, going)
            kept[label] = (
                drift,
                measure_trees(seen, tasks, trees, evaluator),
                measure_walks(seen, walks, store.K, kappa),
            )
        except (RunError, ValueError, FloatingPointError) as error:
            what = f"Drift, hierarchy and traversals of {label} are not shown"
            if isinstance(error, RunError):
                lacking.append(f"{what}. {error}")
            else:
                burst = isinstance(error, FloatingPointError)
                remedy = "run it again with a lower learning rate, or " if burst else ""
                lacking.append(
                    f"{what}: {str(error).rstrip('.')} ({run.path}); {remedy}leave it out with "
                    "--methods."
                )
    if len(tasks) < 2:
        lacking.append("Drift is of tasks that others follow; this stream has one task only.")
    if not kept and not results:
        raise RunError(" ".join(lacking))
    measured = [found[1] for found in kept.values()]
    hierarchy, points = _joined_trees(trees, measured, tuple(kept), first.seeds, store.K)
    return Analysis(
        store=store,
        folders=tuple(Path(folder) for folder in folders),
        methods=tuple(runs),
        order=first.order,
        kinds=tuple(task.kind for task in tasks),
        seeds=first.seeds,
        settings={label: run.settings for label, run in runs.items()},
        config={label: run.config for label, run in runs.items()},
        results=results,
        about=about,
        drift=_joined_drift([measured[0] for measured in kept.values()]),
        hierarchy=hierarchy,
        tree_points=points,
        walks=tuple(
            dataclasses.replace(walk, paths={label: kept[label][2][i] for label in kept})
            for i, walk in enumerate(walks.walks)
        )
        if kept
        else (),
        geometry=tuple(kept),
        lacking=tuple(lacking),
    )


def _read(
    folders: tuple[Path, ...], store: Store, methods: Sequence[str] | None, lacking: list[str]
) -> tuple[dict[str, SavedRun], dict[str, StreamResult], dict[str, SavedResults]]:
    """Runs and results of all folders, by the names they are shown with, in the order asked for."""
    for folder in folders:
        if not folder.is_dir():
            raise RunError(f"there is no folder {folder}; give one of experiments/run_stream.py.")
    found = [run_names(folder) for folder in folders]
    places = _short_names(folders)
    names = [method for of_folder in found for method in of_folder]
    known = {
        m if names.count(m) == 1 else f"{place}/{m}": (folder, m)
        for folder, place, of_folder in zip(folders, places, found, strict=True)
        for m in of_folder
    }
    runs: dict[str, SavedRun] = {}
    results: dict[str, StreamResult] = {}
    about: dict[str, SavedResults] = {}
    for label in known if methods is None else _chosen(known, methods):
        folder, method = known[label]
        try:
            runs[label] = read_runs(folder, store, [method])[method]
        except RunError as error:
            lacking.append(f"{label} is left out. {error}")
    if not runs:
        raise RunError(" ".join(lacking))
    for folder, place in zip(folders, places, strict=True):
        labels = {known[label][1]: label for label in runs if known[label][0] == folder}
        if not labels:
            continue
        of_folder = {method: runs[label] for method, label in labels.items()}
        try:
            saved = read_results(folder)
        except RunError as error:
            lacking.append(f"Scores of {', '.join(labels.values())} are not shown. {error}")
            continue
        about[str(place)] = saved
        for method, label in labels.items():
            if method in saved.results:
                _same_stream(saved, of_folder[method], store)
                results[label] = saved.results[method]
            elif method in saved.wrong:
                lacking.append(f"Scores of {label} are not shown. {saved.wrong[method]}")
            else:
                lacking.append(
                    f"Scores of {label} are not shown: {saved.path} does not hold them; name it in "
                    "--methods too and run again with --resume."
                )
    _alike(runs, results)
    going = {}
    for label in (label for label in runs if label in results):
        result = results[label]
        lacking += _stopped(label, result.stopped, len(result.seeds))
        if len(result.stopped) < len(result.seeds):
            going[label] = without_stopped(result)
        else:
            lacking.append(f"Scores of {label} are not shown: all its seeds were stopped.")
    return runs, going, about


def _same_stream(saved: SavedResults, run: SavedRun, store: Store) -> None:
    """Refuses results that are of other tasks, seeds or kinds than the run beside them."""
    result = saved.results[run.method]
    kinds = tuple(store[name].kind for name in run.order)
    for what, here, there in (
        ("tasks", result.tasks, run.order),
        ("seeds", result.seeds, run.seeds),
        ("kinds", result.kinds, kinds),
    ):
        if here != there:
            beside = f"the store {store.name}" if what == "kinds" else run.path / RUN
            raise RunError(
                f"{saved.path} and {beside} disagree in {what}: {list(here)} and {list(there)}; "
                "run again with --resume."
            )


def _stopped(label: str, stopped: Sequence[Stopped], seeds: int) -> list[str]:
    """A sentence on the seeds of a method that are left out, if there are any."""
    if not stopped:
        return []
    left = seeds - len(stopped)
    rest = f"all numbers of {label} are over the other {left}" if left else "no other is left"
    return [f"{label}: {'; '.join(map(str, stopped))}. It is left out, and {rest}."]


def _check_finite(drift: Drift, going: np.ndarray) -> None:
    """Refuses drift that is not finite although the heads are."""
    for what, values in (("drift", drift.values), ("cones", drift.cones)):
        wrong = ~np.isfinite(values[0, going]).all(axis=(0, 2))
        if wrong.any():
            task = drift.tasks[int(wrong.argmax())]
            raise FloatingPointError(f"its {what} on {task} is not finite: a head has burst")


def _short_names(folders: tuple[Path, ...]) -> list[str]:
    """The last parts of the folders' paths that tell them apart."""
    parts = [folder.resolve().parts for folder in folders]
    for count in range(1, max(map(len, parts)) + 1):
        short = ["/".join(p[-count:]) for p in parts]
        if len(set(short)) == len(short):
            return short
    raise RunError(f"{folders[0]} is given twice; name each folder once.")


def _alike(runs: Mapping[str, SavedRun], results: Mapping[str, StreamResult]) -> None:
    name, first = next(iter(runs.items()))
    known = [(label, run.order, run.seeds) for label, run in runs.items()]
    known += [(label, result.tasks, result.seeds) for label, result in results.items()]
    for label, order, seeds in known:
        for what, here, there in (("order", order, first.order), ("seeds", seeds, first.seeds)):
            if tuple(here) != tuple(there):
                raise RunError(
                    f"{label} and {name} differ in {what}, {list(here)} and {list(there)}, and "
                    "cannot stand in one table; analyse them apart, each with its own --out."
                )


def _chosen(known: Mapping[str, tuple[Path, str]], methods: Sequence[str]) -> list[str]:
    if isinstance(methods, str):
        raise TypeError(f"methods must be a list of names, got the string {methods!r}.")
    chosen: list[str] = []
    for name in methods:
        fitting = [label for label, (_, method) in known.items() if name in (label, method)]
        if not fitting:
            raise RunError(f"There is no run of {name!r}, only of {', '.join(known)}.")
        chosen += [label for label in fitting if label not in chosen]
    return chosen


def compared_with(methods: Sequence[str], against: str) -> tuple[str, str]:
    """The method that others are compared with, as it is called among several folders.

    Args:
      methods: as they are shown.
      against: one of them, or a name that one or several of them have in their folders.

    Returns:
      The method, and a sentence if it had to be chosen; `against` itself if there is none.

    Example:
      >>> from hmcl_jax.report.analysis import compared_with
      >>> print(compared_with(["a/vanilla", "ewc"], "vanilla"))
      ('a/vanilla', '')
    """
    fitting = [method for method in methods if method.endswith(f"/{against}")]
    if against in methods or not fitting:
        return against, ""
    if len(fitting) == 1:
        return fitting[0], ""
    return fitting[0], (
        f"Of {', '.join(fitting)}, methods are compared with {fitting[0]}, the first; --against "
        "names another."
    )


def _joined_drift(parts: Sequence[Drift | None]) -> Drift | None:
    """Drift measured method by method, side by side."""
    known = [part for part in parts if part is not None]
    if not known:
        return None
    norms = {}
    for modality, one in known[0].norms.items():
        before, after = (
            np.concatenate([getattr(part.norms[modality], when) for part in known])
            for when in ("before", "after")
        )
        norms[modality] = Norms(one.tasks, before, after)
    return dataclasses.replace(
        known[0],
        methods=tuple(method for part in known for method in part.methods),
        values=np.concatenate([part.values for part in known]),
        cones=np.concatenate([part.cones for part in known]),
        norms=norms,
    )


def _joined_trees(
    trees: Mapping[str, Tree],
    measured: Sequence[Mapping[str, MeasuredTree]],
    methods: tuple[str, ...],
    seeds: tuple[int, ...],
    K: float,
) -> tuple[tuple[Hierarchy, ...], TreePoints | None]:
    """Trees measured method by method, side by side."""
    if not measured:
        return (), None
    joined = []
    points = None
    for task, tree in trees.items():
        parts = [of_method[task] for of_method in measured]
        numbers = {name: np.stack([p.numbers[name] for p in parts]) for name in parts[0].numbers}
        joined.append(Hierarchy.of(task, tree, numbers))
        known = [part.points for part in parts if part.points is not None]
        if known:
            before, after = (np.stack([p[:, when] for p in known]) for when in (0, 1))
            points = TreePoints(task, tree, parts[0].names, methods, seeds, K, before, after)
    return tuple(joined), points
