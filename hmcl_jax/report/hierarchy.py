"""Class trees of a stream: how far off wrong predictions are, and where the names in a tree lie."""

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from hmcl_jax import lorentz
from hmcl_jax.data.class_trees import OFFSET, SENSE, WordNetError, read_wordnet, synset_tree
from hmcl_jax.data.store import Task
from hmcl_jax.evaluation import (
    RadiusByDepth,
    Tree,
    hierarchy_scores,
    make_tree,
    predict,
    radius_by_depth,
)
from hmcl_jax.head import apply_head
from hmcl_jax.report.results import with_stopped

WHEN = ("task end", "final")
ROOT = "(all)"  # above trees that have no root of their own


@dataclasses.dataclass(frozen=True, eq=False)
class Hierarchy:
    """The class tree of a task, with measurements; those of seeds that were stopped are NaN.

    Leading axes are ``(methods, seeds, 2)``, the last one for :data:`WHEN`.
    """

    task: Task
    tree: Tree
    scores: Mapping[str, Any]  # by measure of `hierarchy_scores`
    radius: RadiusByDepth | None  # None if the store has no points for the names
    points: np.ndarray | None  # (..., names, d), only for the old task with the deepest tree


def class_trees(tasks: Sequence[Task]) -> tuple[dict[str, Tree], list[str]]:
    """Trees of the classification tasks by name, and sentences on those that cannot be read.

    Classes that are synsets of WordNet, such as ImageNet's ``n02084071``, have WordNet's tree if
    the store gives none.
    """
    trees, warnings = {}, []
    for task in tasks:
        if task.kind != "classification":
            continue
        rows = task.tree
        if not rows and all(OFFSET.fullmatch(c) or SENSE.fullmatch(c) for c in task.classes):
            try:
                wordnet = read_wordnet()
                synsets = dict(zip(map(wordnet.synset, task.classes), task.classes, strict=True))
                named = synset_tree(wordnet, task.classes)
                rows = tuple((synsets.get(c, c), synsets.get(p, p)) for c, p in named)
            except WordNetError as error:
                warnings.append(f"The hierarchy of {task.name} is not shown. {error}")
        if rows:
            trees[task.name] = _tree(rows, task.classes)
    return trees, warnings


def _tree(rows: Sequence[tuple[str, str]], classes: Sequence[str]) -> Tree:
    """With a new root if the rows have none, or several."""
    children = {child for child, _ in rows}
    nodes = children | {parent for _, parent in rows}
    has_root = len(nodes - children) == 1 and nodes.issuperset(classes)
    return make_tree(rows, classes, root=None if has_root else ROOT)


def measure_hierarchy(
    heads: Sequence[Mapping[str, Any]],
    tasks: Sequence[Task],
    trees: Mapping[str, Tree],
    finished: np.ndarray,
    K: float,
) -> tuple[Hierarchy, ...]:
    """Hierarchies under one method's heads after each task, without the axis of methods."""
    known = [t.name for t in tasks[:-1] if t.name in trees and "tree_features" in t.arrays]
    drawn = max(known, key=lambda name: int(trees[name].depths.max()), default=None)
    measured = []
    for own, task in zip(heads, tasks, strict=True):
        if task.name not in trees:
            continue
        tree = trees[task.name]
        ends = [{m: jnp.asarray(W[finished]) for m, W in h.items()} for h in (own, heads[-1])]
        predicted = np.stack([_predictions(head, task, K) for head in ends], axis=1)
        if (predicted < 0).any():
            raise ValueError(f"samples of {task.name} are near to no class: a head has overflowed")
        labels = np.asarray(task.arrays["test_labels"], np.int64)
        scores = hierarchy_scores(tree, predicted, labels)
        radius, points = None, None
        if "tree_features" in task.arrays:
            features = task.arrays["tree_features"]
            points = np.stack([_moved(h[task.general], features, K) for h in ends], axis=1)
            radii = lorentz.distance_to_origin(points, K)
            radius = radius_by_depth(tree, radii, task.tree_names)
        if task.name != drawn:
            points = None
        own_numbers = Hierarchy(task, tree, scores, radius, points)
        measured.append(_map_numbers(lambda x: with_stopped(x, finished), own_numbers))
    return tuple(measured)


def join_hierarchies(parts: Sequence[tuple[Hierarchy, ...]]) -> tuple[Hierarchy, ...]:
    """Hierarchies that were measured method by method, with an axis of methods in front."""
    groups = zip(*parts, strict=True)
    return tuple(_map_numbers(lambda *values: np.stack(values), *group) for group in groups)


def _map_numbers(f: Callable[..., np.ndarray], *group: Hierarchy) -> Hierarchy:
    """Applies a function to the numbers of hierarchies of one task."""
    scores = {name: f(*(h.scores[name] for h in group)) for name in group[0].scores}
    radius, radii = None, [h.radius for h in group if h.radius is not None]
    if radii:
        means, correlation = f(*(r.means for r in radii)), f(*(r.correlation for r in radii))
        radius = dataclasses.replace(radii[0], means=means, correlation=correlation)
    points = None if group[0].points is None else f(*(h.points for h in group))
    return dataclasses.replace(group[0], scores=scores, radius=radius, points=points)


def _padded(features: Any) -> np.ndarray:
    """With rows of 0 up to a power of two, so that few programs serve all tasks."""
    features = np.asarray(features)
    rows = max(64, 1 << (len(features) - 1).bit_length())
    return np.pad(features, ((0, rows - len(features)), (0, 0)))


@jax.jit
def _apply(W: jax.Array, features: jax.Array, K: float) -> jax.Array:
    return jax.vmap(apply_head, (0, None, None))(W, features.astype(W.dtype), K)


def _moved(W: jax.Array, features: Any, K: float) -> np.ndarray:
    return np.asarray(_apply(W, _padded(features), K))[:, : len(features)]


@jax.jit
def _nearest(x: jax.Array, y: jax.Array, C: int, K: float) -> jax.Array:
    """The nearest of the first C prototypes `x` to every sample `y`."""
    valid = jnp.arange(x.shape[1]) < C
    # Seeds one after another: all distances at once would need much memory.
    return jax.lax.map(lambda xy: predict(*xy, K=K, valid_prototypes=valid), (x, y))


def _predictions(heads: Mapping[str, jax.Array], task: Task, K: float) -> np.ndarray:
    """The predicted class of every test sample, ``(seeds, n)``."""
    prototypes, samples = task.arrays["prototypes"], task.arrays["test_features"]
    x = _apply(heads[task.general], _padded(prototypes), K)
    y = _apply(heads[task.specific], _padded(samples), K)
    return np.asarray(_nearest(x, y, len(prototypes), K))[:, : len(samples)]
