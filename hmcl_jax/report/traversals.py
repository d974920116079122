"""Traversals from pictures to the root, at the end of their task and at the end of the stream."""

import dataclasses
import functools
import itertools
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from hmcl_jax.data.store import Store, Task
from hmcl_jax.evaluation import compare_heads, store_pool
from hmcl_jax.report.hierarchy import WHEN

TASKS = 4  # that pictures are taken from

# By whether only texts that entail the point count: paths at the task's end and at the stream's.
Paths = Mapping[bool, tuple[tuple[str, ...], ...]]


@dataclasses.dataclass(frozen=True, eq=False)
class Start:
    """A picture from which traversals start."""

    task: Task
    row: int  # in the test part
    title: str
    thumbnail: bytes | None  # a JPEG file
    paths: Mapping[str, Paths] = dataclasses.field(default_factory=dict)  # by method


def choose_starts(store: Store, tasks: Sequence[Task], pictures: int) -> tuple[Start, ...]:
    """Pictures of some old tasks, spread over the stream; those with thumbnails first.

    None if the store has no names to look for.
    """
    try:
        pool = store_pool(store)
    except ValueError:  # no names at all
        return ()
    old = [task for task in tasks[:-1] or tasks if task.general == pool.modality]
    usable = [task for task in old if len(task.arrays.get("thumbnail_rows", ()))] or old
    chosen = _spread(usable, min(TASKS, pictures))
    starts = [
        Start(task, int(row), _title(task, row), task.thumbnail(row))
        for task in chosen
        for row in _spread(_rows(task), pictures // len(chosen))
    ]
    return tuple(starts)


def _spread(values: Any, count: int) -> list[Any]:
    """At most `count` of some values, far apart."""
    count = min(count, len(values))
    return [values[i] for i in np.linspace(0, len(values) - 1, count).round().astype(int)]


def _samples(task: Task) -> np.ndarray:
    kind = "features" if task.kind == "classification" else "specific"
    return task.arrays[f"test_{kind}"]


def _rows(task: Task) -> np.ndarray:
    """The samples of the test part that have pictures; all if none has."""
    known = np.sort(task.arrays.get("thumbnail_rows", []))
    return known if len(known) else np.arange(len(_samples(task)))


def _title(task: Task, row: int) -> str:
    if task.kind == "classification":
        return task.classes[int(task.arrays["test_labels"][row])]
    pairs = task.arrays["test_pairs"]
    captions = pairs[pairs[:, 0] == row, 1]
    if len(captions) and "tree_features" in task.arrays:
        caption = np.asarray(task.arrays["test_general"][captions[0]])
        same = (np.asarray(task.arrays["tree_features"]) == caption).all(axis=1)
        if same.any():
            return task.tree_names[int(same.argmax())]
    return f"picture {row} of {task.name}"


def measure_traversals(
    heads: Sequence[Mapping[str, Any]],
    tasks: Sequence[Task],
    starts: Sequence[Start],
    store: Store,
    kappa: float,
) -> list[Paths]:
    """The paths from some pictures under the heads of one seed after each task."""
    if not starts:
        return []
    pool, K = store_pool(store), float(store.K)
    order = [task.name for task in tasks]
    measured: list[Paths] = []
    for name, group in itertools.groupby(starts, key=lambda start: start.task.name):
        number, rows = order.index(name), [start.row for start in group]
        task, ends = tasks[number], dict(zip(WHEN, (heads[number], heads[-1]), strict=True))
        features = np.asarray(_samples(task)[rows])
        compare = functools.partial(
            compare_heads, ends, features, pool, modality=task.specific, K=K, kappa=kappa
        )
        walks = {entailing: compare(entailing=entailing) for entailing in (False, True)}
        measured += [
            {key: tuple(found[when].path(i) for when in WHEN) for key, found in walks.items()}
            for i in range(len(rows))
        ]
    return measured
