"""Walks from pictures of a run's tasks to the root, at the end of their task and of the stream."""

import dataclasses
from collections.abc import Mapping, Sequence

import numpy as np

from hmcl_jax.continual.run_reader import SavedRun
from hmcl_jax.data.store import Store, Task
from hmcl_jax.evaluation import Pool, compare_heads, store_pool
from hmcl_jax.report.trees import WHEN, going_seeds

TASKS = 4  # that pictures are taken from
FILTERS = (False, True)

# By filter, paths at the task's end and at the stream's.
Paths = Mapping[bool, tuple[tuple[str, ...], ...]]


@dataclasses.dataclass(frozen=True, eq=False)
class Walk:
    """Walks from one picture.

    Attributes:
      task: its name.
      row: of the picture in the test part.
      title: its class or caption, if the store knows it.
      thumbnail: the picture, a JPEG file, if the store has it.
      paths: by method, and by whether only texts count that entail the point.
    """

    task: str
    row: int
    title: str
    thumbnail: bytes | None
    paths: Mapping[str, Paths] = dataclasses.field(default_factory=dict)


@dataclasses.dataclass(frozen=True, eq=False)
class Plan:
    """Walks to be made.

    Attributes:
      walks: without paths, those of one task together.
      tasks: number (from 1) of the task of each in the run, and the task.
      pool: texts to look for; None if there are none.
    """

    walks: tuple[Walk, ...]
    tasks: tuple[tuple[int, Task], ...]
    pool: Pool | None


def choose_walks(store: Store, tasks: Sequence[Task], pictures: int) -> Plan:
    """Pictures to start from: of some old tasks, spread over the stream, thumbnails first.

    Args:
      store: the stream.
      tasks: in the order of the run.
      pictures: how many, at most.

    Returns:
      The plan.

    Example:
      >>> import hmcl_jax
      >>> from hmcl_jax.report.walks import choose_walks
      >>> store = hmcl_jax.load_pocket()
      >>> plan = choose_walks(store, store.tasks, 4)
      >>> print([(walk.task, walk.title, walk.thumbnail is not None) for walk in plan.walks][:1])
      [('tux-photos', 'An Adelaide Rosella', True)]
    """
    try:
        pool = store_pool(store)
    except ValueError:  # no names at all
        return Plan((), (), None)
    old = [
        (number, task)
        for number, task in enumerate(tasks[:-1] or tasks, 1)
        if task.general == pool.modality
    ]
    shown = [entry for entry in old if len(entry[1].arrays.get("thumbnail_rows", ()))]
    usable = shown or old
    count = min(TASKS, len(usable), pictures)
    if count == 0:
        return Plan((), (), pool)
    places = np.unique(np.linspace(0, len(usable) - 1, count).round().astype(int))
    walks: list[Walk] = []
    owners: list[tuple[int, Task]] = []
    each = pictures // len(places)
    for place in places:
        number, task = usable[place]
        for row in _rows(task, each):
            walks.append(Walk(task.name, row, _title(task, row), task.thumbnail(row)))
            owners.append((number, task))
    return Plan(tuple(walks), tuple(owners), pool)


def _samples(task: Task) -> np.ndarray:
    kind = "features" if task.kind == "classification" else "specific"
    return task.arrays[f"test_{kind}"]


def _rows(task: Task, count: int) -> list[int]:
    """Some samples, far apart in the test part, that have pictures if any have."""
    known = np.sort(np.asarray(task.arrays.get("thumbnail_rows", np.zeros(0, int))))
    rows = known if len(known) else np.arange(len(_samples(task)))
    places = np.linspace(0, len(rows) - 1, min(count, len(rows))).round().astype(int)
    return [int(rows[place]) for place in places]


def _title(task: Task, row: int) -> str:
    if task.kind == "classification":
        return task.classes[int(task.arrays["test_labels"][row])]
    pairs = task.arrays["test_pairs"]
    captions = pairs[pairs[:, 0] == row, 1]
    tree = task.arrays.get("tree_features")
    if len(captions) and tree is not None:
        caption = task.arrays["test_general"][int(captions[0])]
        found = np.flatnonzero((np.asarray(tree) == np.asarray(caption)).all(axis=1))
        if found.size:
            return task.tree_names[int(found[0])]
    return f"picture {row} of {task.name}"


def measure_walks(run: SavedRun, plan: Plan, K: float, kappa: float) -> list[Paths]:
    """The walks of one run, of its first seed that was not stopped.

    Args:
      run: of one method.
      plan: of :func:`choose_walks`.
      K: squared radius of the hyperboloid.
      kappa: sets the minimum radius of the cones.

    Returns:
      Paths of each walk of the plan.
    """
    found: list[Paths] = []
    if plan.pool is None:
        return found
    start, seed = 0, int(going_seeds(run).argmax())
    while start < len(plan.walks):
        number, task = plan.tasks[start]
        count = sum(walk.task == task.name for walk in plan.walks)
        rows = [walk.row for walk in plan.walks[start : start + count]]
        features = np.asarray(_samples(task)[rows])
        heads = {
            when: {m: run.heads(n)[m][seed] for m in (task.specific, plan.pool.modality)}
            for when, n in zip(WHEN, (number, None), strict=True)
        }
        by_filter = {}
        for entailing in FILTERS:
            by_filter[entailing] = compare_heads(
                *(heads, features, plan.pool),
                modality=task.specific,
                K=K,
                kappa=kappa,
                entailing=entailing,
            )
        for place in range(count):
            found.append(
                {f: tuple(made[when].path(place) for when in WHEN) for f, made in by_filter.items()}
            )
        start += count
    return found
