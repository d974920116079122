"""Measures everything about finished runs once: scores, drift, class trees, traversals.

:func:`analyse` reads run folders and gives an :class:`Analysis`, which tables, figures and the page
are made from. Missing parts of a run are left out and named in :attr:`Analysis.warnings`.
"""

import collections
import dataclasses
import os
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np

from hmcl_jax import _checks
from hmcl_jax.continual import RunError, SavedRun, Stopped, StreamResult, read_runs
from hmcl_jax.continual.run_reader import run_names
from hmcl_jax.data.store import Store
from hmcl_jax.evaluation import Drift, join_drift, measure_drift
from hmcl_jax.report.hierarchy import Hierarchy, class_trees, join_hierarchies, measure_hierarchy
from hmcl_jax.report.results import SavedResults, read_results, without_stopped
from hmcl_jax.report.traversals import Paths, Start, choose_starts, measure_traversals

Listener = Callable[[str, int, int], None]
Measured = tuple[Drift | None, tuple[Hierarchy, ...], list[Paths]]  # of one run
NORM_ANCHORS = 500  # test samples per task, for norms


@dataclasses.dataclass(frozen=True, eq=False)
class Analysis:
    """Measurements of some runs on one stream."""

    store: Store
    runs: Mapping[str, SavedRun]  # by the name that a method is shown with
    order: tuple[str, ...]  # of the tasks
    kinds: tuple[str, ...]
    seeds: tuple[int, ...]
    results: Mapping[str, StreamResult]  # of finished methods, over the seeds that did not stop
    saved: Mapping[str, SavedResults]  # by folder
    drift: Drift | None  # of the methods that have all checkpoints
    hierarchies: tuple[Hierarchy, ...]
    starts: tuple[Start, ...]  # with paths of each method's first seed that did not stop
    geometry: tuple[str, ...]  # the methods of `drift`, `hierarchies` and `starts`
    against: str  # the method that others are compared with; `methods` may lack it
    warnings: tuple[str, ...]  # what could not be measured, and what to run again

    @property
    def methods(self) -> tuple[str, ...]:
        return tuple(self.runs)


def analyse(
    folders: Sequence[str | os.PathLike[str]],
    store: Store,
    *,
    methods: Sequence[str] | None = None,
    against: str = "vanilla",
    anchors: int = 50,
    pictures: int = 8,
    listener: Listener | None = None,
) -> Analysis:
    """Measures everything in one or several folders of runs over the same stream.

    A method that is in several folders is called ``"folder/method"``; `methods` and `against` may
    have either form. `listener` is called with a method and how many of how many are done.
    """
    if isinstance(folders, str | os.PathLike) or not folders:
        raise TypeError(f"folders must be a list of at least one folder, got {folders!r}.")
    _checks.integer("anchors", anchors, 1)
    _checks.integer("pictures", pictures, 0)
    paths = tuple(map(Path, folders))
    runs, warnings = _read_runs(paths, store, methods)
    results, saved = _read_scores(paths, runs, store, warnings)
    first = next(iter(runs.values()))
    tasks = [store[name] for name in first.order]
    trees, unread = class_trees(tasks)
    warnings += unread
    starts = choose_starts(store, tasks, pictures)
    if not trees and "classification" in (task.kind for task in tasks):
        warnings.append("No classification task has a class tree, so no hierarchy is measured.")
    if pictures and not starts:
        warnings.append("The store holds no names to look for, so there are no traversals.")

    def measure(label: str, run: SavedRun) -> Measured:
        steps = (run.heads(number) for number in range(1, len(tasks) + 1))
        heads = [{modality: jnp.asarray(W) for modality, W in step.items()} for step in steps]
        # Heads of seeds that were stopped are NaN.
        finished = np.all([np.isfinite(W).all(axis=(1, 2)) for W in heads[-1].values()], axis=0)
        if not finished.any():
            raise ValueError("all its seeds were stopped")
        K, kappa = float(store.K), float(run.config.get("kappa", 0.1))
        drift = None
        if len(tasks) > 1:
            counts = (anchors, NORM_ANCHORS)
            drift = measure_drift(label, heads, tasks, run.seeds, K=K, kappa=kappa, counts=counts)
            numbers = np.concatenate([drift.values, drift.cones], axis=-1)[0, finished]
            if (wrong := ~np.isfinite(numbers).all(axis=(0, 2))).any():
                task = drift.tasks[int(wrong.argmax())]
                raise ValueError(f"its drift on {task} is not finite: a head has overflowed")
        hierarchies = measure_hierarchy(heads, tasks, trees, finished, K)
        of_seed = jax.tree.map(lambda W: W[int(finished.argmax())], heads)
        return drift, hierarchies, measure_traversals(of_seed, tasks, starts, store, kappa)

    # One run at a time: the heads of all methods together may not fit into memory.
    measured = {}
    for number, (label, run) in enumerate(runs.items()):
        if listener is not None:
            listener(label, number, len(runs))
        not_shown = f"Drift, hierarchy and traversals of {label} are not shown"
        try:
            if label not in results:
                said = _stopped(label, run.stopped(), len(run.seeds))
                warnings += [sentence for sentence in said if sentence not in warnings]
            measured[label] = measure(label, run)
        except RunError as error:
            warnings.append(f"{not_shown}. {error}")
        except ValueError as error:
            reason = str(error).rstrip(".")
            warnings.append(f"{not_shown}: {reason} ({run.path}); leave it out with --methods.")
    if len(tasks) < 2:
        warnings.append("This stream has one task only; drift is measured on tasks before others.")
    if not measured and not results:
        raise RunError(" ".join(warnings))
    against, note = _compared_with(tuple(runs), against)
    drifts = [drift for drift, _, _ in measured.values() if drift is not None]
    return Analysis(
        store=store,
        runs=runs,
        order=first.order,
        kinds=tuple(task.kind for task in tasks),
        seeds=first.seeds,
        results=results,
        saved=saved,
        drift=join_drift(drifts) if drifts else None,
        hierarchies=join_hierarchies([trees for _, trees, _ in measured.values()]),
        starts=tuple(
            dataclasses.replace(start, paths={m: paths[i] for m, (_, _, paths) in measured.items()})
            for i, start in enumerate(starts if measured else ())
        ),
        geometry=tuple(measured),
        against=against,
        warnings=(*warnings, *note),
    )


def _read_runs(
    folders: tuple[Path, ...], store: Store, methods: Sequence[str] | None
) -> tuple[dict[str, SavedRun], list[str]]:
    """Runs by the names they are shown with, and sentences on those that cannot be read."""
    listed = [
        (folder, prefix, method)
        for folder, prefix in zip(folders, _short_names(folders), strict=True)
        for method in run_names(folder)
    ]
    count = collections.Counter(method for *_, method in listed)
    known = {
        method if count[method] == 1 else f"{prefix}/{method}": (folder, method)
        for folder, prefix, method in listed
    }
    runs: dict[str, SavedRun] = {}
    warnings: list[str] = []
    for label in known if methods is None else _chosen(known, methods):
        folder, method = known[label]
        try:
            runs[label] = read_runs(folder, store, [method])[method]
        except RunError as error:
            warnings.append(f"{label} is left out. {error}")
    if not runs:
        raise RunError(" ".join(warnings))
    name, first = next(iter(runs.items()))
    for label, run in runs.items():
        for what in ("order", "seeds"):
            ours, theirs = getattr(run, what), getattr(first, what)
            if ours != theirs:
                raise RunError(
                    f"{label} and {name} differ in {what}, {list(ours)} and {list(theirs)}, and "
                    "cannot stand in one table; analyse them apart, each with its own --out."
                )
    return runs, warnings


def _read_scores(
    folders: tuple[Path, ...], runs: Mapping[str, SavedRun], store: Store, warnings: list[str]
) -> tuple[dict[str, StreamResult], dict[str, SavedResults]]:
    """Results by method and files by folder; appends a sentence to `warnings` for each gap."""
    every: dict[str, StreamResult] = {}
    files: dict[str, SavedResults] = {}
    for folder, prefix in zip(folders, _short_names(folders), strict=True):
        labels = [label for label, run in runs.items() if run.path.parent == folder.absolute()]
        if not labels:
            continue
        try:
            saved = files[prefix] = read_results(folder)
        except RunError as error:
            warnings.append(f"Scores of {', '.join(labels)} are not shown. {error}")
            continue
        for label in labels:
            method = runs[label].method
            if method in saved.results:
                _same_stream(saved, runs[label], store)
                every[label] = saved.results[method]
            else:
                remedy = "name it in --methods too and run again with --resume"
                missing = f"{saved.path} does not hold them; {remedy}."
                reason = saved.wrong.get(method, missing)
                warnings.append(f"Scores of {label} are not shown. {reason}")
    results = {}
    for label, result in ((label, every[label]) for label in runs if label in every):
        warnings += _stopped(label, result.stopped, len(result.seeds))
        if len(result.stopped) < len(result.seeds):
            results[label] = without_stopped(result)
        else:
            warnings.append(f"Scores of {label} are not shown: all its seeds were stopped.")
    return results, files


def _same_stream(saved: SavedResults, run: SavedRun, store: Store) -> None:
    """Refuses results that are of other tasks, seeds or kinds than the run beside them."""
    kinds = tuple(store[name].kind for name in run.order)
    for what, there in (("tasks", run.order), ("seeds", run.seeds), ("kinds", kinds)):
        here = getattr(saved.results[run.method], what)
        if here != there:
            beside = f"the store {store.name}" if what == "kinds" else run.path / "run.json"
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


def _short_names(folders: tuple[Path, ...]) -> list[str]:
    """The last parts of the folders' paths that tell them apart."""
    parts = [folder.resolve().parts for folder in folders]
    for count in range(1, max(map(len, parts)) + 1):
        short = ["/".join(p[-count:]) for p in parts]
        if len(set(short)) == len(short):
            return short
    raise RunError(f"{folders[0]} is given twice; name each folder once.")


def _chosen(known: Mapping[str, tuple[Path, str]], methods: Sequence[str]) -> list[str]:
    chosen: list[str] = []
    for name in methods:
        fitting = [label for label, (_, method) in known.items() if name in (label, method)]
        if not fitting:
            raise RunError(f"There is no run of {name!r}, only of {', '.join(known)}.")
        chosen += [label for label in fitting if label not in chosen]
    return chosen


def _compared_with(methods: tuple[str, ...], against: str) -> tuple[str, list[str]]:
    """The method as it is called among several folders, and a sentence if that is not clear."""
    fitting = [method for method in methods if method.endswith(f"/{against}")]
    if against in methods:
        fitting = [against]
    if len(fitting) == 1:
        return fitting[0], []
    note = f"There is no {against} to compare with, only {', '.join(methods)}"
    if fitting:
        note = f"Of {', '.join(fitting)}, methods are compared with {fitting[0]}, the first"
    return (fitting or [against])[0], [f"{note}; --against names another."]
