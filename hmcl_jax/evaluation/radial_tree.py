r"""The class tree of a task in the plane, at the end of the task and at the end of the stream.

As in the paper's figure of radial geometry (fig:imagenet_wordnet_radial_geometry), the final points
are first aligned with those of the task's end by a proper rotation, so that the drawing shows no
change of the common orientation. Two numbers go with it, of the points in full dimension:

- radial change :math:`\overline{|\Delta r_i|} / \overline{r_i}`, with :math:`r_i` the distance
  from the origin;
- pair change :math:`\overline{|\Delta d_{\mathcal L}(y_i, y_j)|} / \overline{d_{\mathcal L}
  (y_i, y_j)}` over all pairs :math:`i < j`.
"""

import dataclasses

import numpy as np
from numpy.typing import ArrayLike, NDArray

from hmcl_jax import lorentz
from hmcl_jax.evaluation.hierarchy import Tree


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
    left, _, right = np.linalg.svd(b.T @ a)
    signs = np.ones(a.shape[1])
    signs[-1] = np.sign(np.linalg.det(left) * np.linalg.det(right))
    return (left * signs) @ right


@dataclasses.dataclass(frozen=True, eq=False)
class TreePoints:
    """The names in the class tree of a task, as points at its end and at the end of the stream."""

    task: str
    tree: Tree
    names: tuple[str, ...]  # of the n points, nodes of the tree
    methods: tuple[str, ...]
    seeds: tuple[int, ...]
    K: float
    before: NDArray[np.float32]  # at the end of the task, (methods, seeds, n, d)
    after: NDArray[np.float32]  # at the end of the stream


@dataclasses.dataclass(frozen=True, eq=False)
class RadialTree:
    """A class tree in the plane, at the end of its task and at the end of the stream."""

    methods: tuple[str, ...]
    names: tuple[str, ...]  # of the n points
    parents: NDArray[np.int64]  # (n,), the point above each; -1 for those without
    depths: NDArray[np.int64]  # (n,), edges below the root
    before: NDArray[np.float64]  # angle and radius at the end of the task, (methods, n, 2)
    after: NDArray[np.float64]  # the same at the end of the stream
    radial_change: NDArray[np.float64]  # (methods,), see the module's head
    pair_change: NDArray[np.float64]  # (methods,), likewise; NaN for a single point


def radial_tree(points: TreePoints, seed: int | None = None) -> RadialTree:
    """Lays a class tree out in the plane for every method.

    The points at the end of the task are aligned with those of the first method, and the final
    points with those of the same method at the task's end. Radii are distances from the origin in
    full dimension. Angles start as those in the plane of the two largest principal components of
    the first method's points, seen from their mean. They change by the angle in full dimension by
    which a point moves, to the side to which it moves in that plane.

    Args:
      points: of the names.
      seed: whose points are drawn. Default: the first.
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

    drawn = []
    for start, end in zip(first, last, strict=True):
        onto = proper_rotation(start, reference)
        there, angles, ends = reference, seen(reference), []
        for p, Q in ((start, onto), (end, onto @ proper_rotation(end, start))):
            here = p @ Q.T
            turned = np.sin(seen(here) - seen(there))
            angles = angles + np.where(turned < 0, -1, 1) * _angles(there, here)
            radii = lorentz.distance_to_origin(np.float32(p), points.K)
            ends.append(np.stack([angles, np.asarray(radii, np.float64)], axis=1))
            there = here
        drawn.append(ends)
    before, after = np.moveaxis(np.array(drawn), 1, 0)
    index = {name: i for i, name in enumerate(points.names)}
    nodes = [points.tree.names.index(name) for name in points.names]
    above = dict(points.tree.rows)
    return RadialTree(
        methods=points.methods,
        names=points.names,
        parents=np.array([index.get(above.get(name, ""), -1) for name in points.names]),
        depths=points.tree.depths[nodes].astype(np.int64),
        before=before,
        after=after,
        radial_change=np.abs(after[..., 1] - before[..., 1]).mean(1) / before[..., 1].mean(1),
        pair_change=_pair_changes(first, last, points.K),
    )


def _angles(x: np.ndarray, y: np.ndarray) -> NDArray[np.float64]:
    """The angle between each pair of points, seen from the origin; 0 at the origin itself."""
    a, b = (np.linalg.norm(p, axis=1, keepdims=True) for p in (x, y))
    difference, total = (np.linalg.norm(x * b + sign * y * a, axis=1) for sign in (-1, 1))
    return 2 * np.arctan2(difference, total)  # exact for small angles, unlike arccos


def _pair_changes(first: np.ndarray, last: np.ndarray, K: float) -> NDArray[np.float64]:
    upper = np.triu_indices(first.shape[1], k=1)
    changes = []
    for ends in zip(first, last, strict=True):
        start, end = (
            np.asarray(lorentz.pairwise_distance(np.float32(p), np.float32(p), K))[upper]
            for p in ends
        )
        mean = start.mean() if start.size else 0.0
        changes.append(float(np.abs(end - start).mean() / mean) if mean > 0 else np.nan)
    return np.array(changes)
