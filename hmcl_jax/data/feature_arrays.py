"""Arrays of features of any other encoder: audio, thermal, or another modality.

A folder with ``<array>.npy`` files, or with one ``.safetensors`` file of these arrays:

- *classification*: ``train_features`` (n, d), ``train_labels`` (n,), the same for ``test``, class
  names in classes.txt or classnames.txt, and, if they are known, ``prototypes`` (C, d);
- *retrieval*: ``train_specific`` (n, d), ``train_general`` (m, d), ``train_pairs`` (p, 2), and the
  same for ``test``.

Its collection.toml, or an argument, states the `space` of the features, which the numbers do not
show:

- ``"points"``: space components of points on the hyperboloid of squared radius `K`;
- ``"tangent"``: tangent vectors at its origin; the exponential map is applied;
- ``"euclidean"``: directions only; scaled to the length `norm`, then as tangent vectors.
"""

import dataclasses
import os
from collections.abc import Mapping, Sequence
from typing import Any, TypedDict, Unpack

import numpy as np
from numpy.lib import format as npy

from hmcl_jax import lorentz
from hmcl_jax._extras import require
from hmcl_jax.data.collection_toml import (
    FOR_FEATURES,
    check_name,
    choose_prompts,
    positive,
    read_settings,
    stated_classes,
)
from hmcl_jax.data.errors import IngestError, StoreError
from hmcl_jax.data.folder import Folder, first_few
from hmcl_jax.data.image_datasets import distinct_names
from hmcl_jax.data.store import ARRAYS, Task
from hmcl_jax.data.store_checks import INDICES, as_stored, validate_task

SPACES = ("points", "tangent", "euclidean")
PROTOTYPES = "prototypes"
BLOCK = 65536
FARTHEST = np.arcsinh(1e4)  # in units of sqrt(K), as a store has it


@dataclasses.dataclass(frozen=True, eq=False)
class FeatureCollection:
    """Features of one task, as a store wants them.

    Attributes:
      name: of the task.
      kind: ``"classification"`` or ``"retrieval"``.
      general: modality of the prototypes or captions.
      specific: modality of the samples.
      K: squared radius of the hyperboloid.
      arrays: by name, without prototypes; see :mod:`hmcl_jax.data.store`.
      prototypes: (C, d); None if only the class names are known, or for retrieval.
      classes: class names in the order of the labels (empty for retrieval).
      prompts: templates for the class names (empty for retrieval).
      provenance: where the features are from.
    """

    name: str
    kind: str
    general: str
    specific: str
    K: float
    arrays: Mapping[str, np.ndarray]
    prototypes: np.ndarray | None
    classes: tuple[str, ...]
    prompts: tuple[str, ...]
    provenance: Mapping[str, str]

    def task(self, prototypes: np.ndarray | None = None) -> Task:
        """The task of a store.

        Args:
          prototypes: (C, d), if the collection has none.

        Returns:
          The task.
        """
        arrays = dict(self.arrays)
        if self.kind == "classification":
            known = self.prototypes if prototypes is None else prototypes
            if known is None:
                raise IngestError(
                    f"{self.name}: prototypes are not known; encode its classes as texts and give "
                    "them to task(prototypes)."
                )
            arrays[PROTOTYPES] = known
        return Task(
            name=self.name,
            kind=self.kind,
            general=self.general,
            specific=self.specific,
            arrays=arrays,
            classes=distinct_names(self.classes),
            provenance=self.provenance,
        )


class FeatureSettings(TypedDict, total=False):
    """The settings of features, see :func:`read_features`; also keys of collection.toml."""

    space: str | None
    K: float | None
    norm: float | None
    general: str | None
    specific: str | None


def read_features(
    path: str | os.PathLike[str],
    name: str | None = None,
    *,
    prompts: Sequence[str] | None = None,
    usual_K: float = 10.0,
    **given: Unpack[FeatureSettings],
) -> FeatureCollection:
    """Reads features of another encoder.

    Arguments take precedence over collection.toml. ``.npy`` files are mapped, not loaded, unless
    their numbers have to change.

    Args:
      path: of the folder, see the module's head.
      name: of the task; the folder's by default.
      prompts: templates with ``{}`` for the class name.
      usual_K: the K of tangent and Euclidean features without one; points without one have K = 10.
      **given: ``space`` is ``"points"``, ``"tangent"`` or ``"euclidean"``; ``K`` the squared radius
        of the hyperboloid; ``norm`` the length of the tangent vectors that Euclidean features
        become; ``general`` the modality of prototypes or captions, ``"text"`` by default, and
        ``specific`` that of the samples, ``"image"`` by default.

    Returns:
      The features as points on the hyperboloid.

    Raises:
      IngestError: naming the array and the row that is wrong.

    Example:
      >>> from hmcl_jax.data.feature_arrays import read_features
      >>> sounds = read_features("data/sounds", space="tangent", specific="audio")  # doctest: +SKIP
    """
    folder = Folder(path)
    stated: dict[str, Any] = {key: value for key, value in given.items() if value is not None}
    settings = dataclasses.replace(read_settings(folder, FOR_FEATURES), **stated)
    where, space = str(folder.path), settings.space
    if space not in SPACES:
        raise IngestError(
            f"{where}: space must be one of {', '.join(SPACES)}, got {space!r}; state the space of "
            "the features with space=... or in collection.toml."
        )
    usual_K = 10.0 if space == "points" else usual_K
    K = positive(f"{where}: K", usual_K if settings.K is None else settings.K)
    norm = settings.norm if settings.norm is None else positive(f"{where}: norm", settings.norm)
    if (space == "euclidean") != (norm is not None):
        raise IngestError(
            f"{where}: norm is needed for Euclidean features, and only for them, got space = "
            f"{space!r} and norm = {norm}."
        )
    raw = _read_arrays(folder)
    kind = "retrieval" if any(name in raw for name in ARRAYS["retrieval"]) else "classification"
    missing = [name for name in ARRAYS[kind] if name not in raw and name != PROTOTYPES]
    unknown = [name for name in raw if name not in ARRAYS[kind]]
    if missing or unknown:
        raise IngestError(
            f"{where}: {kind} needs the arrays {', '.join(ARRAYS[kind])}; missing: "
            f"{first_few(missing)}; not known: {first_few(unknown)}."
        )
    classes = stated_classes(folder, settings) if kind == "classification" else ()
    if classes is None:
        raise IngestError(
            f"{where}: classification needs class names, one per line of classes.txt."
        )
    arrays = {}
    for array, values in raw.items():
        try:
            with np.errstate(over="ignore"):  # infinite values are refused below
                arrays[array] = as_stored(f"{where}: {array}", array, values)
        except StoreError as error:
            raise IngestError(str(error)) from None
        if array not in INDICES:
            arrays[array] = to_points(f"{where}: {array}", arrays[array], space, K, norm)
    collection = FeatureCollection(
        name=check_name(folder, name, settings),
        kind=kind,
        general=settings.general or "text",
        specific=settings.specific or "image",
        K=K,
        arrays={array: values for array, values in arrays.items() if array != PROTOTYPES},
        prototypes=arrays.get(PROTOTYPES),
        classes=classes,
        prompts=choose_prompts(folder, settings, prompts) if classes else (),
        provenance={
            "layout": "features",
            "space": space if norm is None else f"{space}, norm {norm:g}",
            **({} if settings.fit is None else {"fit": settings.fit}),
            **settings.origin(),
        },
    )
    _validate(where, collection)
    return collection


def _read_arrays(folder: Folder) -> dict[str, np.ndarray]:
    """All arrays of a folder, by name."""
    files = folder.listing().files
    folder.refuse_links("")
    packed = [name for name in files if name.endswith(".safetensors")]
    plain = [name for name in files if name.endswith(".npy")]
    if len(packed) + bool(plain) != 1:
        raise IngestError(
            f"{folder.path} must hold either .npy files or one .safetensors file, got "
            f"{len(plain)} and {len(packed)}."
        )
    numpy = require("safetensors.numpy", "backbones") if packed else None
    arrays: dict[str, np.ndarray] = {}
    for name in packed or plain:
        file = os.path.join(folder.root, name)
        try:
            if numpy is not None:
                arrays = numpy.load_file(file)
            else:  # open_memmap never unpickles
                arrays[name.removesuffix(".npy")] = npy.open_memmap(file, mode="r")
        except Exception as error:  # damaged files cause many kinds of errors
            reason = f"{type(error).__name__}: {str(error)[:200]}"
            kind = name.rpartition(".")[2]
            raise IngestError(
                f"{folder.path / name} is not a readable {kind} file: {reason}"
            ) from error
    return arrays


def to_points(
    where: str, features: np.ndarray, space: str, K: float, norm: float | None = None
) -> np.ndarray:
    """Features as space components of points on the hyperboloid.

    Args:
      where: name of the array, for messages.
      features: (n, d).
      space: ``"points"``, ``"tangent"`` or ``"euclidean"``.
      K: squared radius of the hyperboloid.
      norm: of the tangent vectors that Euclidean features become.

    Returns:
      (n, d), in float32 unless they are points already.

    Example:
      >>> import numpy as np
      >>> from hmcl_jax.data.feature_arrays import to_points
      >>> print(to_points("x", np.array([[0.0, 5.0]], np.float32), "euclidean", K=1.0, norm=1.0))
      [[0. 1.1752012]]
    """
    if features.ndim != 2 or 0 in features.shape:
        raise IngestError(f"{where} must have shape (n, d), got {features.shape}.")
    if space == "points":
        return features
    points = np.empty(features.shape, np.float32)
    for start in range(0, len(features), BLOCK):
        block = np.array(features[start : start + BLOCK], np.float32)
        bad = ~np.isfinite(block).all(axis=1)
        if bad.any():
            raise IngestError(f"{where} row {start + int(bad.argmax())} is not finite.")
        if norm is not None:
            block /= np.abs(block).max(axis=1, keepdims=True, initial=np.finfo(np.float32).tiny)
            length = np.linalg.norm(block, axis=1, keepdims=True)
            if not length.all():
                row = start + int((length == 0).argmax())
                raise IngestError(f"{where} row {row} is zero and has no direction.")
            block *= norm / length
        reach = np.linalg.norm(block.astype(np.float64), axis=1)
        if (reach > FARTHEST * np.sqrt(K)).any():
            row = int((reach > FARTHEST * np.sqrt(K)).argmax())
            raise IngestError(
                f"{where} row {start + row} has length {reach[row]:.3g} in the tangent space, but "
                f"float32 resolves points up to {FARTHEST * np.sqrt(K):.3g}; scale them down."
            )
        points[start : start + BLOCK] = lorentz.exp_map0(block, K=K)
    return points


def _validate(where: str, collection: FeatureCollection) -> None:
    """Checks the task that a store would hold; unknown prototypes are put at the origin."""
    points = {
        name: array.shape[1] for name, array in collection.arrays.items() if name not in INDICES
    }
    if collection.prototypes is not None:
        points[PROTOTYPES] = collection.prototypes.shape[1]
    dimension = next(iter(points.values()))
    if set(points.values()) != {dimension}:
        listed = ", ".join(f"{name} {d}" for name, d in points.items())
        raise IngestError(f"{where}: all features must have one dimension, got {listed}.")
    origin = np.broadcast_to(np.float32(0), (max(1, len(collection.classes)), dimension))
    task = collection.task(origin if collection.prototypes is None else collection.prototypes)
    try:
        with np.errstate(over="ignore"):  # an infinite radius is refused
            validate_task(task, dimension, collection.K)
    except StoreError as error:
        raise IngestError(f"{where}: {error}") from None
