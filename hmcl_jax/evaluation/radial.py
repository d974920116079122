r"""The class tree of a task in the plane: radius as it is, movements as they are.

As in the paper's figure of radial geometry (fig:imagenet_wordnet_radial_geometry), the final points
are turned onto those of the task's end by a proper rotation before anything is drawn, so that what
is seen is a change of radii and relations, not of the orientation that all points share. The
two figures beside the drawing are of the points in full dimension, where no rotation matters:

- radial change :math:`\overline{|\Delta r_i|} / \overline{r_i}`, with :math:`r_i` the distance
  from the origin;
- pair change :math:`\overline{|\Delta d_{\mathcal L}(y_i, y_j)|} / \overline{d_{\mathcal L}
  (y_i, y_j)}` over all pairs :math:`i < j`.
"""

import dataclasses
from collections.abc import Mapping
from typing import TYPE_CHECKING

import jax
import numpy as np
from numpy.typing import ArrayLike, NDArray

from hmcl_jax import lorentz
from hmcl_jax.data.store import Store
from hmcl_jax.evaluation.hierarchy import RadiusByDepth, Tree, make_tree, radius_by_depth
from hmcl_jax.head import apply_head

if TYPE_CHECKING:  # runs are made with the help of scores, which are here
    from hmcl_jax.continual.run_reader import SavedRun

TOP = "(all)"


def proper_rotation(x: ArrayLike, y: ArrayLike) -> NDArray[np.float64]:
    r"""The rotation about the origin that brings points closest to others.

    Minimises :math:`\sum_i |Q x_i - y_i|^2` over orthogonal Q of determinant +1, by the singular
    value decomposition of :math:`Y^\top X`; where a reflection would come closer, the weakest
    direction is turned back (Kabsch).

    Args:
      x: points, shape ``(n, d)``.
      y: where they should come, ``(n, d)``.

    Returns:
      Q, ``(d, d)``; the turned points are ``x @ Q.T``.

    Example:
      >>> import numpy as np
      >>> from hmcl_jax.evaluation import proper_rotation
      >>> print(proper_rotation([[1, 0], [0, 2]], [[0, 1], [-2, 0]]).round(6) + 0.0)
      [[ 0. -1.]
       [ 1.  0.]]
    """
    a, b = (np.asarray(points, np.float64) for points in (x, y))
    if a.shape != b.shape or a.ndim != 2 or 0 in a.shape:
        raise ValueError(f"x and y must have one shape (n, d), got {a.shape} and {b.shape}.")
    for name, points in (("x", a), ("y", b)):
        if not np.isfinite(points).all():
            raise ValueError(f"{name} must be finite; leave out the rows with NaN or infinity.")
    left, _, right = np.linalg.svd(b.T @ a)
    signs = np.ones(a.shape[1])
    signs[-1] = np.sign(np.linalg.det(left) * np.linalg.det(right))
    return (left * signs) @ right


@dataclasses.dataclass(frozen=True, eq=False)
class TreePoints:
    """The names in the class tree of a task, as points at its end and at the end of the stream.

    Attributes:
      task: its name.
      tree: its class tree, below ``"(all)"`` if there are several on top.
      names: of the n points, nodes of the tree.
      methods: names.
      seeds: of the runs.
      K: squared radius of the hyperboloid.
      before: at the end of the task, ``(methods, seeds, n, d)``.
      after: at the end of the stream, likewise.
    """

    task: str
    tree: Tree
    names: tuple[str, ...]
    methods: tuple[str, ...]
    seeds: tuple[int, ...]
    K: float
    before: NDArray[np.float32]
    after: NDArray[np.float32]

    def by_depth(self) -> tuple[RadiusByDepth, RadiusByDepth]:
        """Mean radius at each depth, of shape ``(methods, seeds, D)``: before and after."""
        radii = (_radii(points, self.K) for points in (self.before, self.after))
        first, last = (radius_by_depth(self.tree, r, self.names) for r in radii)
        return first, last


def measure_trees(runs: "Mapping[str, SavedRun]", store: Store) -> list[TreePoints]:
    """The class trees of all tasks that have one with points, under the heads of some runs.

    Args:
      runs: by method, of the same seeds and tasks; see :func:`hmcl_jax.continual.read_runs`.
      store: the stream that they are of.

    Returns:
      One :class:`TreePoints` per such task, in the order of the stream; the last task, which no
      other follows, is left out.

    Raises:
      RunError: if a run is not finished; it says what to run again.
    """
    if not runs:
        raise ValueError("runs must hold at least one run, got none.")
    first = next(iter(runs.values()))
    for name, run in runs.items():
        if (run.seeds, run.order) != (first.seeds, first.order):
            raise ValueError(
                f"Runs must have one order and seeds to be compared, got others for {name}; "
                "leave it out."
            )
    final = [run.heads() for run in runs.values()]
    found = []
    for index, name in enumerate(first.order[:-1]):
        task = store[name]
        features = task.arrays.get("tree_features")
        if features is None or not task.tree:
            continue
        z = np.asarray(features, np.float32)
        own = [run.heads(index + 1) for run in runs.values()]
        before, after = (
            np.stack([_applied(heads[task.general], z, store.K) for heads in every])
            for every in (own, final)
        )
        children = {child for child, _ in task.tree}
        tops = set(task.tree_names) - children
        tree = make_tree(
            task.tree,
            task.classes if task.classes else task.tree_names,
            root=TOP if len(tops) > 1 or set(task.classes) - set(task.tree_names) else None,
        )
        found.append(
            TreePoints(
                *(name, tree, task.tree_names, tuple(runs), first.seeds, float(store.K)),
                *(before, after),
            )
        )
    return found


@jax.jit
def _jitted(W: jax.Array, z: jax.Array, K: jax.Array) -> jax.Array:
    return jax.vmap(apply_head, (0, None, None))(W, z, K)


def _applied(W: np.ndarray, z: np.ndarray, K: float) -> NDArray[np.float32]:
    return np.asarray(_jitted(np.asarray(W, np.float32), z, K), np.float32)


def _radii(points: ArrayLike, K: float) -> NDArray[np.float64]:
    return np.asarray(lorentz.distance_to_origin(np.asarray(points, np.float32), K), np.float64)


@dataclasses.dataclass(frozen=True, eq=False)
class RadialTree:
    """A class tree in the plane, at the end of its task and at the end of the stream.

    Attributes:
      methods: names.
      names: of the n points.
      parents: (n,), the point above each; -1 for those without.
      depths: (n,), edges below the root.
      before: angle and radius of every point at the end of the task, ``(methods, n, 2)``.
      after: the same at the end of the stream.
      radial_change: (methods,), see the module's head.
      pair_change: (methods,), likewise; NaN for a single point.
    """

    methods: tuple[str, ...]
    names: tuple[str, ...]
    parents: NDArray[np.int64]
    depths: NDArray[np.int64]
    before: NDArray[np.float64]
    after: NDArray[np.float64]
    radial_change: NDArray[np.float64]
    pair_change: NDArray[np.float64]


def radial_tree(points: TreePoints, seed: int | None = None) -> RadialTree:
    """Lays a class tree out in the plane for every method.

    The points at the end of the task are turned onto those of the first method, and the final ones
    onto their own task's end. Radius is the distance from the origin in full dimension. The angle
    of a point is that in the plane of the first method's two largest principal components, seen
    from its mean, at the first method's task end; from there it is turned by the angle, in full
    dimension, by which the point has moved, to the side to which the plane shows it. So no movement
    is drawn larger or smaller than it is, wherever the plane is seen from.

    Args:
      points: of :func:`measure_trees`.
      seed: of the run that is drawn. Default: the first.

    Returns:
      A :class:`RadialTree`.
    """
    seed = points.seeds[0] if seed is None else seed
    if seed not in points.seeds:
        raise ValueError(f"seed must be one of {list(points.seeds)}, got seed = {seed!r}.")
    at = points.seeds.index(seed)
    first, last = (p[:, at].astype(np.float64) for p in (points.before, points.after))
    reference = first[0]
    middle = reference.mean(axis=0)
    axes = np.linalg.svd(reference - middle, full_matrices=False)[2][:2]
    axes = np.pad(axes, ((0, 2 - len(axes)), (0, 0)))

    def seen(p: np.ndarray) -> np.ndarray:
        x, y = ((p - middle) @ axes.T).T
        return np.arctan2(y, x)

    drawn: tuple[list[np.ndarray], list[np.ndarray]] = ([], [])
    for start, end in zip(first, last, strict=True):
        onto = proper_rotation(start, reference)
        there, angles = reference, seen(reference)
        for side, p, Q in zip(
            drawn, (start, end), (onto, onto @ proper_rotation(end, start)), strict=True
        ):
            here = p @ Q.T
            shown = np.sin(seen(here) - seen(there))
            angles = angles + np.where(shown < 0, -1, 1) * _angles(there, here)
            side.append(np.stack([angles, _radii(p, points.K)], axis=1))
            there = here
    place = {name: i for i, name in enumerate(points.names)}
    node = {name: i for i, name in enumerate(points.tree.names)}
    above = [int(points.tree.parents[node[name]]) for name in points.names]
    parents = [place.get(points.tree.names[up], -1) if up >= 0 else -1 for up in above]
    before, after = (np.stack(side) for side in drawn)
    return RadialTree(
        methods=points.methods,
        names=points.names,
        parents=np.array(parents),
        depths=np.array([int(points.tree.depths[node[name]]) for name in points.names]),
        before=before,
        after=after,
        radial_change=np.abs(after[..., 1] - before[..., 1]).mean(1) / before[..., 1].mean(1),
        pair_change=_pair_changes(first, last, points.K),
    )


def _angles(x: np.ndarray, y: np.ndarray) -> NDArray[np.float64]:
    """The angle between each point and another, seen from the origin; 0 at the origin itself."""
    a, b = (np.linalg.norm(p, axis=1, keepdims=True) for p in (x, y))
    difference, total = (np.linalg.norm(x * b + sign * y * a, axis=1) for sign in (-1, 1))
    return 2 * np.arctan2(difference, total)


def _pair_changes(first: np.ndarray, last: np.ndarray, K: float) -> NDArray[np.float64]:
    upper = np.triu_indices(first.shape[1], k=1)
    changes = []
    for start, end in zip(first, last, strict=True):
        pairs = [
            np.asarray(lorentz.pairwise_distance(np.float32(p), np.float32(p), K))[upper]
            for p in (start, end)
        ]
        mean = pairs[0].mean() if pairs[0].size else 0.0
        changes.append(float(np.abs(pairs[1] - pairs[0]).mean() / mean) if mean > 0 else np.nan)
    return np.array(changes)
