"""Arrays of features that any other encoder has made: audio, thermal, whatever a user has.

A folder with ``<array>.npy`` files, or with one ``.safetensors`` file of these arrays:

- *classification*: ``train_features`` (n, d), ``train_labels`` (n,), the same for ``test``, class
  names in classes.txt or classnames.txt, and, if they are known, ``prototypes`` (C, d);
- *retrieval*: ``train_specific`` (n, d), ``train_general`` (m, d), ``train_pairs`` (p, 2), and the
  same for ``test``.

In its collection.toml, or told, is the `space` that the features live in, because no one can see it
from the numbers:

- ``"points"``: space components of points on the hyperboloid of squared radius `K`;
- ``"tangent"``: tangent vectors at its origin; the exponential map is applied;
- ``"euclidean"``: directions only; scaled to the length `norm`, then as tangent vectors.
"""

import dataclasses
import os
from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np
from numpy.lib import format as npy

from hmcl_jax import lorentz
from hmcl_jax.data.collection import IngestError, distinct_names, shown
from hmcl_jax.data.folder import Folder
from hmcl_jax.data.settings import (
    FOR_FEATURES,
    check_name,
    choose_prompts,
    positive,
    read_settings,
    stated_classes,
)
from hmcl_jax.data.store import ARRAYS, Task
from hmcl_jax.data.validation import INDICES, StoreError, as_stored, validate_task

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


def looks_like_features(folder: Folder) -> bool:
    """True if a folder holds arrays, by the names in it."""
    files = folder.listing().files
    stems = {name.removesuffix(".npy") for name in files if name.endswith(".npy")}
    known = {name for names in ARRAYS.values() for name in names}
    return bool(stems & known) or any(name.endswith(".safetensors") for name in files)


def read_features(
    path: str | os.PathLike[str],
    name: str | None = None,
    *,
    space: str | None = None,
    K: float | None = None,
    norm: float | None = None,
    general: str | None = None,
    specific: str | None = None,
    prompts: Sequence[str] | None = None,
    usual_K: float = 10.0,
) -> FeatureCollection:
    """Reads features that another encoder has made.

    What is told here goes before what collection.toml states. ``.npy`` files are mapped, not
    loaded, unless their numbers have to change.

    Args:
      path: of the folder, see the module's head.
      name: of the task; the folder's by default.
      space: ``"points"``, ``"tangent"`` or ``"euclidean"``.
      K: squared radius of the hyperboloid.
      norm: of the tangent vectors that Euclidean features become.
      general: modality of prototypes or captions, ``"text"`` by default.
      specific: modality of the samples, ``"image"`` by default.
      prompts: templates with ``{}`` for the class name.
      usual_K: K if it is neither told nor stated; for points it is 10 then.

    Returns:
      The features as points on the hyperboloid.

    Raises:
      IngestError: naming the array and the row that is wrong.

    Example:
      >>> from hmcl_jax.data.features import read_features
      >>> sounds = read_features("data/sounds", space="tangent", specific="audio")  # doctest: +SKIP
    """
    folder = Folder(path)
    settings = read_settings(folder)
    settings.refuse_others(folder, FOR_FEATURES)
    where = str(folder.path)
    space = space or settings.space
    if space not in SPACES:
        raise IngestError(
            f"{where}: space must be one of {', '.join(SPACES)}, got {space!r}; say what the "
            "features are with space=... or in collection.toml."
        )
    K = K if K is not None else settings.K
    if K is None:
        K = 10.0 if space == "points" else usual_K
    K = positive(f"{where}: K", K)
    norm = norm if norm is not None else settings.norm
    if norm is not None:
        norm = positive(f"{where}: norm", norm)
    if (space == "euclidean") != (norm is not None):
        raise IngestError(
            f"{where}: norm is needed for Euclidean features, and only for them, got space = "
            f"{space!r} and norm = {norm}."
        )
    raw = _read_arrays(folder)
    retrieval = any(name in raw for name in ARRAYS["retrieval"])
    kind = "retrieval" if retrieval else "classification"
    missing = [name for name in ARRAYS[kind] if name not in raw and name != PROTOTYPES]
    unknown = [name for name in raw if name not in ARRAYS[kind]]
    if missing or unknown:
        raise IngestError(
            f"{where}: {kind} needs the arrays {', '.join(ARRAYS[kind])}; missing: "
            f"{shown(missing) or 'none'}; not known: {shown(unknown) or 'none'}."
        )
    classes = stated_classes(folder, settings) if kind == "classification" else ()
    if classes is None:
        raise IngestError(
            f"{where}: classification needs class names, one per line of classes.txt."
        )
    arrays = {}
    for array, values in raw.items():
        try:
            with np.errstate(over="ignore"):  # what becomes infinite is refused below
                arrays[array] = as_stored(f"{where}: {array}", array, values)
        except StoreError as error:
            raise IngestError(str(error)) from None
        if array not in INDICES:
            arrays[array] = to_points(f"{where}: {array}", arrays[array], space, K, norm)
    found = FeatureCollection(
        name=check_name(folder, name, settings),
        kind=kind,
        general=general or settings.general or "text",
        specific=specific or settings.specific or "image",
        K=K,
        arrays={array: values for array, values in arrays.items() if array != PROTOTYPES},
        prototypes=arrays.get(PROTOTYPES),
        classes=classes,
        prompts=choose_prompts(folder, settings, prompts) if classes else (),
        provenance={
            "layout": "features",
            "space": space if norm is None else f"{space}, norm {norm:g}",
            **({} if settings.fit is None else {"fit": settings.fit}),
            **settings.about(),
        },
    )
    _validate(where, found)
    return found


def _read_arrays(folder: Folder) -> dict[str, np.ndarray]:
    """All arrays of a folder, by name."""
    files = folder.listing().files
    folder.refuse_links("", folder.listing().bad)
    packed = [name for name in files if name.endswith(".safetensors")]
    plain = [name for name in files if name.endswith(".npy")]
    if len(packed) + bool(plain) != 1:
        raise IngestError(
            f"{folder.path} must hold either .npy files or one .safetensors file, got "
            f"{len(plain)} and {len(packed)}."
        )
    if packed:
        return _read_safetensors(str(folder.path / packed[0]), Path(folder.root, packed[0]))
    return {
        name.removesuffix(".npy"): _read_npy(str(folder.path / name), Path(folder.root, name))
        for name in plain
    }


def _read_npy(where: str, file: Path) -> np.ndarray:
    try:
        return npy.open_memmap(file, mode="r")  # knows no pickles
    except Exception as error:  # whatever a damaged file provokes in numpy
        reason = f"{type(error).__name__}: {str(error)[:200]}"
        raise IngestError(f"{where} is not a readable .npy file: {reason}") from error


def _read_safetensors(where: str, file: Path) -> dict[str, np.ndarray]:
    try:
        from safetensors import safe_open
    except ImportError as error:
        raise IngestError(
            f"{where} needs safetensors: pip install 'hmcl_jax[backbones]'"
        ) from error
    try:
        with safe_open(file, framework="np") as tensors:
            return {name: tensors.get_tensor(name) for name in tensors.keys()}  # noqa: SIM118
    except Exception as error:  # whatever a damaged file provokes in safetensors
        reason = f"{type(error).__name__}: {str(error)[:200]}"
        raise IngestError(f"{where} is not a readable safetensors file: {reason}") from error


def to_points(
    where: str, features: np.ndarray, space: str, K: float, norm: float | None = None
) -> np.ndarray:
    """Features as space components of points on the hyperboloid.

    Args:
      where: name of the array, for messages.
      features: (n, d).
      space: what they are, ``"points"``, ``"tangent"`` or ``"euclidean"``.
      K: squared radius of the hyperboloid.
      norm: of the tangent vectors that Euclidean features become.

    Returns:
      (n, d), in float32 unless they are points already.

    Example:
      >>> import numpy as np
      >>> from hmcl_jax.data.features import to_points
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


def _validate(where: str, found: FeatureCollection) -> None:
    """What must hold of the task in a store; unknown prototypes are put at the origin."""
    dimensions = {
        name: array.shape[1] for name, array in found.arrays.items() if name not in INDICES
    }
    if found.prototypes is not None:
        dimensions[PROTOTYPES] = found.prototypes.shape[1]
    if len(set(dimensions.values())) > 1:
        listed = ", ".join(f"{name} {d}" for name, d in dimensions.items())
        raise IngestError(f"{where}: all features must have one dimension, got {listed}.")
    dimension = next(iter(dimensions.values()))
    origin = np.broadcast_to(np.float32(0), (max(1, len(found.classes)), dimension))
    task = found.task(origin if found.prototypes is None else found.prototypes)
    try:
        with np.errstate(over="ignore"):  # an infinite radius is refused
            validate_task(task, dimension, found.K)
    except StoreError as error:
        raise IngestError(f"{where}: {error}") from None
