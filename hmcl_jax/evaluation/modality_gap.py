"""Where the modalities of a store lie: radii of both sides of each task, and the gap between them.

Frozen backbones put all texts into one cone and all images into another. The modality gap is the
distance between the two centroids.
"""

from typing import NamedTuple

import numpy as np

from hmcl_jax import lorentz
from hmcl_jax.data.store import Store

SAMPLE = 2000  # rows of a side that are measured, evenly spread


class Side(NamedTuple):
    """One side of a task."""

    task: str
    modality: str
    rows: int  # in the test part (of prototypes: all)
    radii: np.ndarray  # distances from the origin of the sampled rows
    # Two tangent coordinates of each at the origin: along the line between the centroids of both
    # sides, and along the direction of largest variance across it.
    plane: np.ndarray


class Gap(NamedTuple):
    """How far apart the sides of a task are, in distance on the hyperboloid."""

    task: str
    centroids: float  # between the centroids of both sides
    pairs: float  # mean over matched pairs
    random: float  # mean over random pairs


def centroid(points: np.ndarray, K: float) -> np.ndarray:
    """The point of the hyperboloid that is nearest to all points in squared Lorentz distance."""
    points = np.asarray(points, np.float64)
    time = np.sqrt(K + (points**2).sum(axis=-1)).mean()
    space = points.mean(axis=0)
    return space * np.sqrt(K / (time**2 - space @ space))


def measure_gaps(store: Store) -> tuple[list[Side], list[Gap]]:
    """Two sides and one gap for the test part of every task of a store."""
    sides, gaps = [], []
    for task in store:
        general, specific, pairs = task.pairs("test")
        points = [np.asarray(x[_evenly(len(x))], np.float32) for x in (general, specific)]
        tangents = [np.asarray(lorentz.log_map0(x, store.K)) for x in points]
        axes = _axes(*tangents)
        named = ((task.general, len(general)), (task.specific, len(specific)))
        for (modality, rows), x, v in zip(named, points, tangents, strict=True):
            radii = np.asarray(lorentz.distance_to_origin(x, store.K))
            sides.append(Side(task.name, modality, rows, radii, v @ axes))
        x, y = (centroid(p, store.K).astype(np.float32) for p in points)
        apart = float(lorentz.distance(x, y, store.K))
        gaps.append(Gap(task.name, apart, *_pair_distances(general, specific, pairs, store.K)))
    return sides, gaps


def _evenly(rows: int) -> np.ndarray:
    return np.unique(np.linspace(0, rows - 1, min(rows, SAMPLE)).round().astype(np.int64))


def _axes(general: np.ndarray, specific: np.ndarray) -> np.ndarray:
    """Two orthonormal directions, (d, 2)."""
    along = specific.mean(axis=0) - general.mean(axis=0)
    along /= max(float(np.linalg.norm(along)), np.finfo(np.float32).tiny)
    centred = np.concatenate([x - x.mean(axis=0) for x in (general, specific)])
    centred = centred - np.outer(centred @ along, along)
    across = np.linalg.svd(centred, full_matrices=False)[2][0]
    # The sign of a singular vector is arbitrary; its largest component is made positive.
    across = across * np.sign(across[np.abs(across).argmax()])
    return np.stack([along, across], axis=1)


def _pair_distances(
    general: np.ndarray, specific: np.ndarray, pairs: np.ndarray, K: float
) -> tuple[float, float]:
    """Mean distance of matched pairs, and of the same specific points with random partners."""
    rows, partners = pairs[_evenly(len(pairs))].T
    random = np.random.default_rng(0).integers(0, len(general), len(rows))
    x = np.asarray(specific[rows], np.float32)

    def mean_distance(texts: np.ndarray) -> float:
        return float(np.mean(lorentz.distance(x, np.asarray(general[texts], np.float32), K)))

    return mean_distance(partners), mean_distance(random)
