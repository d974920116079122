"""Arrays of features of any other encoder: audio, thermal, or another modality.

A folder with ``<array>.npy`` files, or with one ``.safetensors`` file of these arrays:

- *classification*: ``train_features`` (n, d), ``train_labels`` (n,), the same for ``test``, class
  names in classes.txt or classnames.txt, and, if they are known, ``prototypes`` (C, d);
- *retrieval*: ``train_specific`` (n, d), ``train_general`` (m, d), ``train_pairs`` (p, 2), and the
  same for ``test``.

Its collection.toml, or an argument, states the `space` of the features:

- ``"points"``: space components of points on the hyperboloid of squared radius `K`;
- ``"tangent"``: tangent vectors at its origin; the exponential map is applied;
- ``"euclidean"``: directions only; scaled to the length `norm`, then as tangent vectors.
"""

import dataclasses
import os
from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.lib import format as npy

from hmcl_jax import lorentz
from hmcl_jax._extras import require
from hmcl_jax.data.errors import IngestError, StoreError
from hmcl_jax.data.folder import FOR_FEATURES, Folder, read_settings, reading
from hmcl_jax.data.image_datasets import distinct_names
from hmcl_jax.data.store import ARRAYS, Task
from hmcl_jax.data.store_checks import INTEGERS, as_stored, check_form, validate_task

SPACES = ("points", "tangent", "euclidean")
PROTOTYPES = "prototypes"
BLOCK = 65536
FARTHEST = np.arcsinh(1e4)  # in units of sqrt(K), as a store has it


@dataclasses.dataclass(frozen=True, eq=False)
class FeatureCollection(Task):
    """A task of features from another encoder; its prototypes may be unknown."""

    K: float = 10.0
    prompts: tuple[str, ...] = ()  # templates for the class names (empty for retrieval)

    @property
    def prototypes(self) -> np.ndarray | None:
        """Points of the classes, (C, d); None if only their names are known, or for retrieval."""
        return self.arrays.get(PROTOTYPES)

    def task(self, prototypes: np.ndarray | None = None) -> Task:
        """The task of a store, with prototypes (C, d) if the collection has none."""
        arrays = dict(self.arrays)
        if prototypes is not None:
            arrays[PROTOTYPES] = prototypes
        if self.kind == "classification" and PROTOTYPES not in arrays:
            raise IngestError(f"{self.name}: prototypes are not known; give task(prototypes=...).")
        sides, classes = (self.general, self.specific), distinct_names(self.classes)
        return Task(self.name, self.kind, *sides, arrays, classes, provenance=self.provenance)


def read_features(
    path: str | os.PathLike[str],
    name: str | None = None,
    *,
    prompts: Sequence[str] | None = None,
    usual_K: float = 10.0,
    **given: Any,
) -> FeatureCollection:
    """Reads the folder `path` of features of another encoder, as points on the hyperboloid.

    Args:
      path: of the folder, see above.
      name: of the task; the folder's by default. Arguments take precedence over collection.toml.
      prompts: templates with ``{}`` for the class name.
      usual_K: the K of tangent and Euclidean features without one; points without one have K = 10.
      **given: ``space``, ``K`` and ``norm``, see above; ``general``, the modality of prototypes or
        captions (``"text"``), and ``specific``, that of the samples (``"image"``).
    """
    folder = Folder(path)
    where = str(folder.path)
    settings = read_settings(folder, FOR_FEATURES, name=name, prompts=prompts, **given)
    space, norm = settings.get("space"), settings.get("norm")
    if space not in SPACES or (space == "euclidean") != (norm is not None):
        raise IngestError(
            f"{where}: space must be one of {', '.join(SPACES)}, and norm is needed for Euclidean "
            f"features only, got space = {space!r} and norm = {norm}; state them as arguments or "
            "in collection.toml."
        )
    K = settings.get("K", 10.0 if space == "points" else usual_K)
    raw = _read_arrays(folder)
    kind = "retrieval" if raw.keys() & set(ARRAYS["retrieval"]) else "classification"
    classes = settings.get("classes", ()) if kind == "classification" else ()
    if kind == "classification" and not classes:
        raise IngestError(f"{where}: it needs class names, one on each line of classes.txt.")
    notes = {"layout": "features", "space": space if norm is None else f"{space}, norm {norm:g}"}
    notes |= {"fit": settings["fit"]} if "fit" in settings else {}
    try:
        check_form(settings["name"], kind, {*raw, *({PROTOTYPES} & set(ARRAYS[kind]))})
        arrays = {name: as_stored(f"{where}: {name}", name, x) for name, x in raw.items()}
        points = arrays.keys() - INTEGERS.keys()
        for name in points:
            arrays[name] = to_points(f"{where}: {name}", arrays[name], space, K, norm)
        collection = FeatureCollection(
            settings["name"],
            kind,
            settings.get("general", "text"),
            settings.get("specific", "image"),
            arrays,
            classes,
            provenance={**notes, **settings["provenance"]},
            K=K,
            prompts=settings["prompts"] if classes else (),
        )
        dimension = arrays[min(points)].shape[1]
        # Prototypes that are not known yet are checked as points at the origin.
        origin = np.broadcast_to(np.float32(0), (len(classes), dimension))
        known = kind == "retrieval" or PROTOTYPES in arrays
        validate_task(collection.task(None if known else origin), dimension, K)
    except StoreError as error:
        raise IngestError(f"{where}: {error}") from None
    return collection


def _read_arrays(folder: Folder) -> dict[str, np.ndarray]:
    files = folder.listing().files
    packed = [name for name in files if name.endswith(".safetensors")]
    plain = [name for name in files if name.endswith(".npy")]
    if len(packed) + bool(plain) != 1:
        raise IngestError(f"{folder.path} must hold .npy files, or one .safetensors file.")
    arrays: dict[str, np.ndarray] = {}
    for name in packed or plain:
        with reading(folder.path / name):
            file = os.path.join(folder.root, name)
            if packed:
                return dict(require("safetensors.numpy", "backbones").load_file(file))
            arrays[name.removesuffix(".npy")] = npy.open_memmap(file, mode="r")  # never unpickles
    return arrays


def to_points(
    where: str, features: np.ndarray, space: str, K: float, norm: float | None = None
) -> np.ndarray:
    """Space components of points, in float32 unless the features are points already."""
    if features.ndim != 2 or 0 in features.shape:
        raise IngestError(f"{where} must have shape (n, d), got {features.shape}.")
    if space == "points":
        return features
    points = np.empty(features.shape, np.float32)
    limit = FARTHEST * np.sqrt(K)
    for start in range(0, len(features), BLOCK):
        block = np.array(features[start : start + BLOCK], np.float32)
        with np.errstate(divide="ignore", invalid="ignore"):  # such rows are refused below
            if norm is not None:
                # Squares of entries up to 1 do not overflow, and the largest does not underflow.
                block /= np.abs(block).max(axis=1, keepdims=True)
                block *= norm / np.linalg.norm(block, axis=1, keepdims=True)
            reach = np.linalg.norm(block.astype(np.float64), axis=1)
        bad = ~(reach <= limit)
        if bad.any():
            row = int(bad.argmax())
            raise IngestError(
                f"{where} row {start + row} has length {reach[row]:.3g} in the tangent space; it "
                f"must be at most {limit:.3g}, and Euclidean features must not be zero."
            )
        points[start : start + BLOCK] = lorentz.exp_map0(block, K=K)
    return points
