"""Measures of the frozen features of a store: radii, entailment cones and the order of trees.

They describe the space that a stream starts from. Cones near the origin are half-spaces, so the
share of texts that entail their picture stands beside the share for pairs that do not match. A rank
correlation of radius and depth cannot reach 1 where nodes share a depth, so it stands beside its
cap.
"""

import dataclasses
from collections.abc import Iterable, Sequence
from typing import NamedTuple

import jax
import numpy as np
from numpy.typing import ArrayLike

from hmcl_jax import entailment
from hmcl_jax.data.store import Store, Task
from hmcl_jax.evaluation.hierarchy import make_tree, radius_by_depth
from hmcl_jax.evaluation.statistics import rank_correlation, seed_mean

_angles = jax.jit(entailment.pairwise_exterior_angle, static_argnames="K")

COLUMNS = (
    *("", "text radius (CV)", "picture radius (CV)", "entails %", "shuffled %", "further out %"),
    *("Spearman (cap)", "parents entail %", "zero-shot %", "single task %"),
)
SCORES = ("zero_shot", "single_task")


@dataclasses.dataclass(frozen=True)
class PairMeasures:
    """Measures of general points (texts), specific points (pictures) and their pairs."""

    general_radius: float  # mean
    general_variation: float  # standard deviation of the radii, divided by the mean
    specific_radius: float
    specific_variation: float
    entailed: float  # share of pairs whose general point has the specific one in its cone
    entailed_others: float  # the same for shuffled pairs, without those that match
    further: float  # share of pairs whose specific point is further from the origin


class TaskMeasures(NamedTuple):
    """Measures of the test part of a task; NaN without a tree."""

    pairs: PairMeasures  # of its texts (class prototypes or captions) and pictures
    correlation: float = np.nan  # Spearman's, of radius and depth in the task's tree
    cap: float = np.nan  # the largest correlation that ties of depth allow
    nested: float = np.nan  # share of the tree's parents whose cone holds the child


def measure_pairs(
    general: ArrayLike, specific: ArrayLike, pairs: ArrayLike, K: float
) -> PairMeasures:
    """Radii and entailment of pairs.

    Args:
      general: points, shape ``(n, d)``.
      specific: points, shape ``(m, d)``.
      pairs: rows (index of a specific point, index of a general one), as in a store.
      K: squared radius of the hyperboloid.

    Returns:
      The measures. The share for shuffled pairs is exact, of all combinations that do not match.

    Example:
      >>> from hmcl_jax.evaluation import measure_pairs
      >>> pairs = measure_pairs([[1.0, 0.0], [0.0, 1.0]], [[2.0, 0.0]], [[0, 0]], K=10.0)
      >>> print(pairs.entailed, pairs.further, pairs.specific_radius)
      1.0 1.0 2.0
    """
    general, specific = (np.asarray(x, np.float32) for x in (general, specific))
    pairs = np.asarray(pairs)
    angles = np.asarray(_angles(general, specific, K=float(K)))
    inside = angles <= np.asarray(entailment.half_aperture(general, K))[:, None]
    together = np.zeros(inside.shape, bool)
    together[pairs[:, 1], pairs[:, 0]] = True
    # A shuffled pair joins the general point of one pair with the specific point of another.
    texts = np.bincount(pairs[:, 1], minlength=len(general))
    pictures = np.bincount(pairs[:, 0], minlength=len(specific))
    weights = np.outer(texts, pictures) * ~together
    radii = [np.linalg.norm(x.astype(np.float64), axis=1) for x in (general, specific)]
    numbers = (
        *(value for r in radii for value in (r.mean(), r.std() / r.mean())),
        inside[pairs[:, 1], pairs[:, 0]].mean(),
        (weights * inside).sum() / weights.sum() if weights.any() else np.nan,
        (radii[0][pairs[:, 1]] < radii[1][pairs[:, 0]]).mean(),
    )
    return PairMeasures(*map(float, numbers))


def measure_task(task: Task, K: float) -> TaskMeasures:
    """Measures the frozen features of a task's test part."""
    pairs = measure_pairs(*task.pairs("test"), K)
    if not task.tree:
        return TaskMeasures(pairs)
    index = {name: i for i, name in enumerate(task.tree_names)}
    points = np.asarray(task.arrays["tree_features"], np.float32)
    child, parent = (points[[index[row[k]] for row in task.tree]] for k in (0, 1))
    nested = float(np.asarray(entailment.entails(parent, child, K)).mean())
    return TaskMeasures(pairs, *tree_correlation(task), nested)


def tree_correlation(task: Task) -> tuple[float, float]:
    """Spearman's correlation of radius and depth over a task's tree, and the cap that ties set."""
    nodes = {name for row in task.tree for name in row}
    tops = nodes - {child for child, _ in task.tree}
    root = "" if len(tops) > 1 else None
    tree = make_tree(task.tree, list(task.tree_names), root=root)
    radii = np.linalg.norm(np.asarray(task.arrays["tree_features"], np.float64), axis=1)
    depths = np.sort(tree.depths[tree.classes])
    cap = rank_correlation(depths, np.arange(len(depths)))
    return float(radius_by_depth(tree, radii, task.tree_names).correlation), float(cap)


def class_tree_correlation(tasks: Iterable[Task]) -> tuple[float, float]:
    """Means of :func:`tree_correlation` over the classification tasks that have a tree."""
    rows = [tree_correlation(task) for task in tasks if task.tree and task.classes]
    correlation, cap = np.mean(rows, axis=0)
    return float(correlation), float(cap)


def measure_table(store: Store) -> str:
    """The measures of all tasks of a store and their means, as a Markdown table.

    Means over trees are over those of classification tasks.
    """
    lines = [COLUMNS, ("---",) + ("---:",) * (len(COLUMNS) - 1)]
    measured = []
    for task in store:
        measures, *trees = measure_task(task, store.K)
        pairs = dataclasses.astuple(measures)
        scores = [task.scores.get(name, np.nan) for name in SCORES]
        lines.append((task.name, *_cells([*pairs, *trees, *scores])))
        measured.append([*pairs, *(trees if task.classes else [np.nan] * 3), *scores])
    lines.append(("mean", *_cells(seed_mean(measured, axis=0))))
    return "\n".join("| " + " | ".join(line) + " |" for line in lines)


def _cells(numbers: Sequence[float]) -> tuple[str, ...]:
    correlation, cap, *shares = numbers[7:]
    spearman = "" if np.isnan(correlation) else f"{correlation:.2f} ({cap:.2f})"
    return (*pair_cells(PairMeasures(*numbers[:7])), spearman, *map(_percent, shares))


def pair_cells(pairs: PairMeasures) -> tuple[str, ...]:
    """Cells of a table: radii with their variation, and shares in percent."""
    return (
        f"{pairs.general_radius:.3f} ({pairs.general_variation:.1%})",
        f"{pairs.specific_radius:.3f} ({pairs.specific_variation:.1%})",
        *map(_percent, (pairs.entailed, pairs.entailed_others, pairs.further)),
    )


def _percent(value: float) -> str:
    return "" if np.isnan(value) else f"{100 * value:.1f}"
