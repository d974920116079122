r"""How far off wrong predictions are: measures on a tree of classes.

With :math:`A_c` the set of nodes above class c (its ancestors, the root included, itself not) and
:math:`B_c = A_c \cup \{c\}`, for a prediction p and the truth t:

- tree-induced error :math:`|B_p| + |B_t| - 2 |B_p \cap B_t|`, edges on the path from p to t;
- LCA, edges from the prediction up to the lowest common ancestor. As published,
  :math:`|A_p| - |A_p \cap A_t| + 1`: no class is its own ancestor, so that a correct prediction has
  1, not 0. With ``correct_lca=0`` it is, :math:`|B_p| - |B_p \cap B_t|`. The two agree if neither
  class lies above the other;
- ancestor Jaccard :math:`|A_p \cap A_t| / |A_p \cup A_t|`, hierarchical precision
  :math:`|A_p \cap A_t| / |A_p|` and recall :math:`|A_p \cap A_t| / |A_t|`. A ratio of nothing to
  nothing (the root is a class) is 1. Classes with the same parent share all their ancestors.

All of them are look-ups in two matrices of counts, :math:`|A_p \cap A_t|` and
:math:`|B_p \cap B_t|`, which :func:`make_tree` forms once.
"""

import collections
import dataclasses
from collections.abc import Iterable, Sequence

import numpy as np
from numpy.typing import ArrayLike, NDArray

from hmcl_jax.evaluation.statistics import rank_correlation

Score = np.float64 | NDArray[np.float64]


@dataclasses.dataclass(frozen=True, eq=False)
class Tree:
    """A tree over classes and the categories above them, made by :func:`make_tree`."""

    names: tuple[str, ...]  # all N nodes, sorted
    parents: NDArray[np.int32]  # (N,), the node above each; -1 for the root
    depths: NDArray[np.int32]  # (N,), edges between each node and the root
    classes: NDArray[np.int32]  # (C,), the node of each class, in the order of the labels
    shared: NDArray[np.int32]  # (C, C), the number of common ancestors of two classes
    shared_or_self: NDArray[np.int32]  # likewise, with each class among its own ancestors

    @property
    def root(self) -> str:
        """The name of the node above all others."""
        return self.names[int(np.argmin(self.parents))]

    @property
    def rows(self) -> tuple[tuple[str, str], ...]:
        """The tree as (child, parent) rows, sorted."""
        pairs = zip(self.names, self.parents.tolist(), strict=True)
        return tuple((child, self.names[parent]) for child, parent in pairs if parent >= 0)


def make_tree(
    rows: Iterable[tuple[str, str]], classes: Sequence[str], *, root: str | None = None
) -> Tree:
    """Checks a tree and counts the ancestors that its classes share.

    Classes may be leaves or inner nodes. Of the several parents of a WordNet node,
    :func:`hmcl_jax.data.class_trees.synset_tree` chooses one.

    Args:
      rows: (child, parent) names, as in ``Task.tree``, with one parent for each child.
      classes: names in the order of the labels.
      root: a name for a node above everything that has none above it. By default the tree must
        have one root already and hold every class.

    Returns:
      The tree.

    Example:
      >>> from hmcl_jax.evaluation import make_tree
      >>> rows = [("cat", "animal"), ("dog", "animal"), ("car", "thing"), ("animal", "thing")]
      >>> tree = make_tree(rows, ["cat", "dog", "car"])
      >>> print(tree.root, dict(zip(tree.names, tree.depths.tolist())))
      thing {'animal': 1, 'car': 1, 'cat': 2, 'dog': 2, 'thing': 0}
    """
    if isinstance(classes, str) or not len(classes):
        raise TypeError(f"classes must be a list of at least one name, got {classes!r}.")
    name, times = collections.Counter(classes).most_common(1)[0]
    if times > 1:
        raise ValueError(f"classes must name each class once, got {name!r} {times} times.")
    above = _parents(rows)
    if root is not None:
        if root in above:
            raise ValueError(f"root = {root!r} has a node above it in rows: {above[root]!r}.")
        tops = {*above.values(), *classes} - {*above, root}
        above |= dict.fromkeys(tops, root)
    nodes = {*above, *above.values()}
    missing = [name for name in classes if name not in nodes]
    if missing:
        raise ValueError(
            f"rows must hold every class, got none with {missing[0]!r}; root='...' puts the "
            "missing ones below a new root."
        )
    tops = nodes - set(above)
    if len(tops) > 1:
        raise ValueError(
            f"rows must have one root, got {sorted(tops)[:3]}; root='...' puts all below a new one."
        )
    names = tuple(sorted(nodes))
    index = {name: i for i, name in enumerate(names)}
    parents = np.array([index[above[name]] if name in above else -1 for name in names], np.int32)
    at = np.array([index[name] for name in classes], np.int32)
    ancestors = _ancestors(names, parents)
    # float32 products run in BLAS, and counts below 2^24 are exact. Leaves are above nothing.
    proper = ancestors[at][:, ancestors.any(axis=0)].astype(np.float32)
    shared = (proper @ proper.T).astype(np.int32)
    below = ancestors[np.ix_(at, at)]
    shared_or_self = shared + below + below.T + np.eye(len(at), dtype=np.int32)
    return Tree(names, parents, ancestors.sum(axis=1, dtype=np.int32), at, shared, shared_or_self)


def _parents(rows: Iterable[tuple[str, str]]) -> dict[str, str]:
    above: dict[str, str] = {}
    for child, parent in rows:
        if above.setdefault(child, parent) != parent:
            raise ValueError(
                f"rows must give each name one parent, got {above[child]!r} and {parent!r} "
                f"for {child!r}; keep one of them."
            )
    return above


def _ancestors(names: tuple[str, ...], parents: NDArray[np.int32]) -> NDArray[np.bool_]:
    """Which nodes (columns) lie above each node (row), all rows one step up at a time."""
    ancestors = np.zeros((len(names), len(names)), bool)
    up = parents.copy()
    for _ in names:
        rows = np.flatnonzero(up >= 0)
        if not rows.size:
            return ancestors
        ancestors[rows, up[rows]] = True
        up[rows] = parents[up[rows]]
    # A node that still has one above it after N steps is in a cycle or below one.
    raise ValueError(f"rows must have no cycle, got one through {names[up.max()]!r}.")


def _labels(name: str, values: ArrayLike, classes: int) -> NDArray[np.intp]:
    labels = np.asarray(values)
    if labels.dtype.kind not in "iu":
        raise TypeError(f"{name} must hold whole numbers, got dtype {labels.dtype}.")
    wrong = labels[(labels < 0) | (labels >= classes)]
    if wrong.size:
        raise ValueError(f"{name} must be in [0, {classes}), got {wrong[0]}.")
    return labels.astype(np.intp)


def hierarchy_scores(
    tree: Tree, predicted: ArrayLike, actual: ArrayLike, correct_lca: int = 1
) -> dict[str, Score]:
    """Top-1 accuracy and the five measures of the module's head, means over the samples.

    Args:
      tree: of :func:`make_tree`.
      predicted: class indices of :func:`hmcl_jax.evaluation.predict`, shape ``(..., n)``.
      actual: class indices, shape ``(n,)``, or of the shape of `predicted`.
      correct_lca: LCA of a correct prediction, 1 as in the published table, or 0.

    Returns:
      ``top1``, ``tie``, ``lca``, ``jaccard``, ``precision`` and ``recall``, each of shape
      ``(...)``. Lower TIE and LCA are better.

    Example:
      >>> from hmcl_jax.evaluation import hierarchy_scores, make_tree
      >>> tree = make_tree([("cat", "animal"), ("dog", "animal")], ["cat", "dog"])
      >>> scores = hierarchy_scores(tree, predicted=[0, 1, 0, 0], actual=[0, 0, 0, 0])
      >>> print(scores["top1"], scores["tie"], scores["lca"])
      0.75 0.5 1.0
    """
    if isinstance(correct_lca, bool) or correct_lca not in (0, 1):
        raise ValueError(f"correct_lca must be 1 or 0, got correct_lca = {correct_lca!r}.")
    p = _labels("predicted", predicted, len(tree.classes))
    t = _labels("actual", actual, len(tree.classes))
    if p.ndim == 0 or p.shape[-1] == 0 or t.shape not in (p.shape, p.shape[-1:]):
        raise ValueError(
            "predicted and actual must have shapes (..., n) and (n,) with n >= 1, "
            f"got {p.shape} and {t.shape}."
        )
    t = np.broadcast_to(t, p.shape)

    def ratio(part: NDArray[np.int32], whole: NDArray[np.int32]) -> NDArray[np.float64]:
        return np.where(whole > 0, part / np.maximum(whole, 1), 1.0)

    own, own_or_self = np.diagonal(tree.shared), np.diagonal(tree.shared_or_self)
    common, common_or_self = tree.shared[p, t], tree.shared_or_self[p, t]
    of_p, of_t = own[p], own[t]
    samples = {
        "top1": p == t,
        "tie": own_or_self[p] + own_or_self[t] - 2 * common_or_self,
        "lca": of_p - common + 1 if correct_lca else own_or_self[p] - common_or_self,
        "jaccard": ratio(common, of_p + of_t - common),
        "precision": ratio(common, of_p),
        "recall": ratio(common, of_t),
    }
    return {name: values.mean(axis=-1, dtype=np.float64) for name, values in samples.items()}


def chance_scores(tree: Tree, correct_lca: int = 1) -> dict[str, Score]:
    """Expected :func:`hierarchy_scores` of uniform guesses when all classes are equally common.

    Example:
      >>> from hmcl_jax.evaluation import chance_scores, make_tree
      >>> tree = make_tree([("cat", "animal"), ("dog", "animal")], ["cat", "dog"])
      >>> print(chance_scores(tree)["tie"])
      1.0
    """
    p, t = np.indices(tree.shared.shape)
    return hierarchy_scores(tree, p.reshape(-1), t.reshape(-1), correct_lca)


@dataclasses.dataclass(frozen=True, eq=False)
class RadiusByDepth:
    """Mean radius of the nodes of a tree at each depth."""

    depths: NDArray[np.int32]  # (D,), those that occur, ascending
    counts: NDArray[np.int64]  # (D,), nodes at each
    means: NDArray[np.float64]  # (..., D), their mean radius
    correlation: Score  # (...), Spearman's, of radius and depth; NaN if either is constant


def radius_by_depth(
    tree: Tree, radii: ArrayLike, names: Sequence[str] | None = None
) -> RadiusByDepth:
    """Whether deeper nodes lie further out: mean radius per depth, and the rank correlation.

    Args:
      tree: of :func:`make_tree`.
      radii: of nodes, shape ``(..., m)``; of :func:`hmcl_jax.lorentz.radius`.
      names: the m nodes that they belong to, such as ``Task.tree_names``; None for all.

    Example:
      >>> from hmcl_jax.evaluation import make_tree, radius_by_depth
      >>> tree = make_tree([("cat", "animal"), ("dog", "animal"), ("puppy", "dog")], ["puppy"])
      >>> radius = radius_by_depth(tree, [0.5, 1.0, 1.5, 2.0])  # animal, cat, dog, puppy
      >>> print(radius.depths, radius.counts, radius.means, radius.correlation.round(4))
      [0 1 2] [1 2 1] [0.5 1.25 2. ] 0.9487
    """
    names = tree.names if names is None else tuple(names)
    depth_of = dict(zip(tree.names, tree.depths, strict=True))
    unknown = [name for name in names if name not in depth_of]
    if unknown:
        raise ValueError(f"names must be nodes of the tree, got {unknown[0]!r}.")
    radii = np.asarray(radii, np.float64)
    if radii.ndim == 0 or not radii.shape[-1] == len(names) > 0:
        raise ValueError(
            f"radii must have shape (..., {len(names)}), one number per name, got {radii.shape}."
        )
    node_depths = np.array([depth_of[name] for name in names])
    depths, level, counts = np.unique(node_depths, return_inverse=True, return_counts=True)
    means = radii @ np.eye(len(depths))[level] / counts
    return RadiusByDepth(depths, counts, means, rank_correlation(radii, node_depths))
