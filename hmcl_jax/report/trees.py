"""Class trees of a run's tasks: how far wrong its predictions are, and where its names lie."""

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from hmcl_jax import lorentz
from hmcl_jax.continual.run_reader import SavedRun
from hmcl_jax.continual.scoring import Evaluator
from hmcl_jax.data.class_trees import OFFSET, SENSE, WordNetError, read_wordnet, synset_tree
from hmcl_jax.data.store import Task
from hmcl_jax.evaluation import (
    RadiusByDepth,
    Tree,
    chance_scores,
    hierarchy_scores,
    make_tree,
    radius_by_depth,
)
from hmcl_jax.evaluation.radial import TOP
from hmcl_jax.head import apply_head

WHEN = ("task end", "final")
MEASURES = {
    "top1": "share of correct predictions; higher is better",
    "tie": "edges between prediction and truth (tree-induced error); lower is better",
    "lca": "edges from the prediction up to the lowest common ancestor, 1 for a correct "
    "prediction; lower is better",
    "jaccard": "shared ancestors over all ancestors; higher is better",
    "precision": "shared ancestors over those of the prediction; higher is better",
    "recall": "shared ancestors over those of the truth; higher is better",
}


@dataclasses.dataclass(frozen=True, eq=False)
class Hierarchy:
    """What methods make of the class tree of a task, at its end and at the end of the stream.

    Attributes:
      task: its name.
      tree: of its classes.
      scores: by measure of :data:`MEASURES`, ``(methods, seeds, 2)``: task end and final.
      chance: by measure, what uniform guesses give.
      radius: by depth, leading axes as in `scores`; None if the store has no points for the names.
    """

    task: str
    tree: Tree
    scores: Mapping[str, np.ndarray]
    chance: Mapping[str, float]
    radius: RadiusByDepth | None

    @classmethod
    def of(cls, task: str, tree: Tree, numbers: Mapping[str, Any]) -> "Hierarchy":
        """From the numbers of all methods, of :func:`measure_trees`."""
        radius = None
        if "means" in numbers:
            radius = RadiusByDepth(
                *(numbers[name][0] for name in ("depths", "counts")),
                *(numbers[name] for name in ("means", "correlation")),
            )
        chance = {name: float(value) for name, value in chance_scores(tree).items()}
        return cls(task, tree, {name: numbers[name] for name in MEASURES}, chance, radius)


@dataclasses.dataclass(frozen=True, eq=False)
class MeasuredTree:
    """One method and one task: numbers with axes (seeds, 2).

    Of the task that is drawn also the points of the names, ``(seeds, 2, n, d)``. Seeds that were
    stopped are NaN.
    """

    numbers: dict[str, np.ndarray]
    names: tuple[str, ...]
    points: np.ndarray | None


def class_trees(tasks: Sequence[Task], lacking: list[str]) -> dict[str, Tree]:
    """The trees of the classification tasks that have one.

    Classes that are synsets of WordNet, such as ImageNet's ``n02084071``, have WordNet's tree if
    the store gives none.

    Args:
      tasks: of a store.
      lacking: is told what cannot be had.

    Returns:
      By task.

    Example:
      >>> import hmcl_jax
      >>> from hmcl_jax.report.trees import class_trees
      >>> store = hmcl_jax.load_pocket()
      >>> print({t: len(tree.names) for t, tree in class_trees(store.tasks[:4], []).items()})
      {'cifar10': 13, 'qd-animals': 74, 'fashion': 13}
    """
    found = {}
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
                lacking.append(f"The hierarchy of {task.name} is not shown. {error}")
                continue
        if rows:
            found[task.name] = _tree(rows, task.classes)
    return found


def _tree(rows: Sequence[tuple[str, str]], classes: Sequence[str]) -> Tree:
    """With a root of its own if the rows have none, or several."""
    children = {child for child, _ in rows}
    nodes = children | {parent for _, parent in rows}
    if len(nodes - children) == 1 and nodes.issuperset(classes):
        return make_tree(rows, classes)
    root = TOP
    while root in nodes:
        root = f"({root})"
    return make_tree(rows, classes, root=root)


def drawn_tree(tasks: Sequence[Task], trees: Mapping[str, Tree]) -> str | None:
    """The task whose tree is worth a drawing: of the old ones with points, the deepest, first."""
    known = [t for t in tasks[:-1] if t.name in trees and "tree_features" in t.arrays]
    if not known:
        return None
    return max(known, key=lambda task: int(trees[task.name].depths.max())).name


def measure_trees(
    run: SavedRun, tasks: Sequence[Task], trees: Mapping[str, Tree], evaluator: Evaluator
) -> dict[str, MeasuredTree]:
    """Hierarchy scores and radii of one run.

    Args:
      run: of one method.
      tasks: in the order of the run.
      trees: by task, of :func:`class_trees`.
      evaluator: keeps the test parts of the tasks.

    Returns:
      By task.

    Raises:
      ValueError: if heads have burst.
    """
    drawn = drawn_tree(tasks, trees)
    going = going_seeds(run)
    found = {}
    for number, task in enumerate(tasks, 1):
        if task.name not in trees:
            continue
        tree = trees[task.name]
        heads = [{m: W[going] for m, W in run.heads(n).items()} for n in (number, None)]
        predicted = np.stack([evaluator.predictions(h, task) for h in heads], axis=1)
        if (predicted < 0).any():
            raise ValueError(f"samples of {task.name} are near to no class: a head has burst")
        labels = np.asarray(task.arrays["test_labels"], np.int64)
        scores = hierarchy_scores(tree, predicted, labels)
        numbers = {name: _with_stopped(np.asarray(v), going) for name, v in scores.items()}
        names, kept = task.tree_names, None
        if "tree_features" in task.arrays:
            features = np.asarray(task.arrays["tree_features"])
            points = np.stack(
                [_points(h[task.general], features, evaluator.K) for h in heads], axis=1
            )
            radii = np.asarray(lorentz.distance_to_origin(points, evaluator.K))
            by_depth = radius_by_depth(tree, radii, names)
            numbers |= {"depths": by_depth.depths, "counts": by_depth.counts}
            for name in ("means", "correlation"):
                numbers[name] = _with_stopped(np.asarray(getattr(by_depth, name)), going)
            kept = _with_stopped(points, going) if task.name == drawn else None
        found[task.name] = MeasuredTree(numbers, names, kept)
    return found


def going_seeds(run: SavedRun) -> np.ndarray:
    """Which seeds of a run came to the end.

    Raises:
      ValueError: if none did.
    """
    finite = [np.isfinite(np.asarray(W)).all(axis=(1, 2)) for W in run.heads().values()]
    going = np.all(finite, axis=0)
    if not going.any():
        raise ValueError("all its seeds were stopped")
    return going


def _with_stopped(values: np.ndarray, going: np.ndarray) -> np.ndarray:
    """Numbers of the seeds that came to the end, with NaN in the places of the others."""
    whole = np.full((len(going), *values.shape[1:]), np.nan, np.result_type(values, np.float32))
    whole[going] = values
    return whole


@jax.jit
def _moved(W: jax.Array, features: jax.Array, K: float) -> jax.Array:
    return jax.vmap(apply_head, (0, None, None))(W, features.astype(W.dtype), K)


def _points(W: Any, features: np.ndarray, K: float) -> np.ndarray:
    """Moved by the heads of all seeds; padded, so that few programs serve all tasks."""
    rows = 64
    while rows < len(features):
        rows *= 2
    padded = np.pad(features, ((0, rows - len(features)), (0, 0)))
    return np.asarray(_moved(jnp.asarray(W), padded, K))[:, : len(features)]
