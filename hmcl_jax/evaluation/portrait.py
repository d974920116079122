"""What the frozen features of a store look like: radii of every side, and the modality gap.

The modalities of such backbones lie apart: all texts in one cone, all images in another. The gap is
the distance between the centroids of both sides, beside the mean distance of pairs that belong
together and of pairs drawn at random.
"""

import dataclasses

import numpy as np

from hmcl_jax import lorentz
from hmcl_jax.data.store import Store, Task

SAMPLE = 2000  # rows of a side that are looked at, evenly spread


@dataclasses.dataclass(frozen=True)
class Portrait:
    """One side of a task.

    Attributes:
      task: its name.
      modality: of the side.
      rows: how many there are in the test part (of prototypes: all).
      radii: distances from the origin of the sampled rows.
      plane: two coordinates of them in the tangent space at the origin: along the line that joins
        the centroids of both sides, and along what varies most across it.
    """

    task: str
    modality: str
    rows: int
    radii: np.ndarray
    plane: np.ndarray


@dataclasses.dataclass(frozen=True)
class Gap:
    """How far the sides of a task lie apart, in distance on the hyperboloid.

    Attributes:
      task: its name.
      centroids: between the centroids of both sides.
      pairs: mean over pairs that belong together.
      random: mean over pairs drawn at random.
    """

    task: str
    centroids: float
    pairs: float
    random: float


def _sides(task: Task) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Both sides of the test part, and the rows (specific, general) that belong together."""
    arrays = task.arrays
    if task.kind == "retrieval":
        return arrays["test_general"], arrays["test_specific"], arrays["test_pairs"]
    labels = arrays["test_labels"]
    pairs = np.stack([np.arange(len(labels)), labels], axis=1)
    return arrays["prototypes"], arrays["test_features"], pairs


def _spread(rows: int) -> np.ndarray:
    return np.unique(np.linspace(0, rows - 1, min(rows, SAMPLE)).round().astype(np.int64))


def centroid(points: np.ndarray, K: float) -> np.ndarray:
    """The point of the hyperboloid that is nearest to all of `points` in squared Lorentz distance.

    Args:
      points: space components, ``(n, d)``.
      K: squared radius of the hyperboloid.

    Returns:
      Its space components, ``(d,)``.
    """
    points = np.asarray(points, np.float64)
    time = np.sqrt(K + (points**2).sum(axis=-1)).mean()
    space = points.mean(axis=0)
    return space * np.sqrt(K / (time**2 - space @ space))


def portray(store: Store) -> tuple[list[Portrait], list[Gap]]:
    """Portraits of all sides of a store and the gaps of its tasks.

    Args:
      store: whose test parts are looked at.

    Returns:
      Two portraits and one gap per task.
    """
    portraits, gaps = [], []
    for task in store:
        general, specific, pairs = _sides(task)
        sides = {"general": general[_spread(len(general))], "specific": specific}
        sides["specific"] = specific[_spread(len(specific))]
        points = {side: np.asarray(x, np.float32) for side, x in sides.items()}
        tangent = {side: np.asarray(lorentz.log_map0(x, store.K)) for side, x in points.items()}
        axes = _axes(tangent["general"], tangent["specific"])
        for side, all_rows in (("general", general), ("specific", specific)):
            radii = np.asarray(lorentz.distance_to_origin(points[side], store.K))
            plane = tangent[side] @ axes
            modality = getattr(task, side)
            portraits.append(Portrait(task.name, modality, len(all_rows), radii, plane))
        gaps.append(_gap(task.name, general, specific, pairs, points, store.K))
    return portraits, gaps


def _axes(general: np.ndarray, specific: np.ndarray) -> np.ndarray:
    """Two orthonormal directions, (d, 2)."""
    along = specific.mean(axis=0) - general.mean(axis=0)
    along /= max(float(np.linalg.norm(along)), np.finfo(np.float32).tiny)
    centred = np.concatenate([x - x.mean(axis=0) for x in (general, specific)])
    centred = centred - np.outer(centred @ along, along)
    across = np.linalg.svd(centred, full_matrices=False)[2][0]
    across = across * np.sign(across[np.abs(across).argmax()])
    return np.stack([along, across], axis=1)


def _gap(
    name: str,
    general: np.ndarray,
    specific: np.ndarray,
    pairs: np.ndarray,
    points: dict[str, np.ndarray],
    K: float,
) -> Gap:
    def mean_distance(specific_rows: np.ndarray, general_rows: np.ndarray) -> float:
        x, y = (
            np.asarray(side[rows], np.float32)
            for side, rows in ((specific, specific_rows), (general, general_rows))
        )
        return float(np.mean(np.asarray(lorentz.distance(x, y, K))))

    chosen = pairs[_spread(len(pairs))]
    drawn = np.random.default_rng(0).integers(0, len(general), len(chosen))
    x, y = (centroid(points[side], K).astype(np.float32) for side in ("general", "specific"))
    return Gap(
        name,
        float(lorentz.distance(x, y, K)),
        mean_distance(chosen[:, 0], chosen[:, 1]),
        mean_distance(chosen[:, 0], drawn),
    )
