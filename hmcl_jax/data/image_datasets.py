"""Opens a collection of pictures with labels or captions, in any of the layouts of `NEEDS`.

``"hf:NAME"`` or ``"hf:NAME:CONFIGURATION"`` instead of a folder is a data set of the ``datasets``
library, from its hub or its cache. A ``collection.toml`` (:mod:`hmcl_jax.data.collection_toml`) in
the folder may say more. Features of another encoder are for
:func:`hmcl_jax.data.feature_arrays.read_features`.
"""

import dataclasses
import os
import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from hmcl_jax.data import readers
from hmcl_jax.data.collection_toml import FOR_PICTURES, read_settings
from hmcl_jax.data.errors import IngestError
from hmcl_jax.data.folder import Folder, check_text, first_few
from hmcl_jax.data.readers import Samples
from hmcl_jax.data.splits import TESTS, read_sides
from hmcl_jax.data.store import ARRAYS
from hmcl_jax.data.tar_shards import read_shards

LAYOUTS: Mapping[str, Callable[[Folder], readers.Splits]] = {
    "folders": readers.read_folders,
    "table": readers.read_tables,
    "coco": readers.read_coco,
    "karpathy": readers.read_karpathy,
    "webdataset": read_shards,
    "datasets": readers.read_datasets,
    "tfds": readers.read_tfds,
}
NEEDS = "".join(
    f"  {layout:10}  {read.__doc__}\n".replace("``", "") for layout, read in LAYOUTS.items()
)
NEEDS += "  features    train_features.npy, train_labels.npy, ... (for read_features)"
NUMBER = re.compile(r"0|[1-9][0-9]{0,8}")


@dataclasses.dataclass(frozen=True, eq=False)
class Split:
    """The training or the test part of a collection.

    Attributes:
      pictures: each with a `key` and ``read()``.
      labels: class of each picture, int32 (n,); None for retrieval.
      captions: all of them; empty for classification.
      pairs: rows (picture, caption) that belong together, int32 (p, 2); None for classification.
    """

    pictures: Sequence[Any]
    labels: np.ndarray | None = None
    captions: tuple[str, ...] = ()
    pairs: np.ndarray | None = None


@dataclasses.dataclass(frozen=True, eq=False)
class Collection:
    """Pictures with labels or captions, in a training and a test split.

    Attributes:
      name: of the task that the collection becomes.
      kind: ``"classification"`` or ``"retrieval"``.
      classes: class names in the order of the labels (empty for retrieval); a name may occur twice.
      prompts: templates in which ``{}`` stands for the class name (empty for retrieval).
      train: the pictures that are learned.
      test: the pictures that are scored.
      fit: how pictures become square: ``"crop"`` or ``"squash"``.
      provenance: layout, splits, number of ignored files, and what collection.toml states.
    """

    name: str
    kind: str
    classes: tuple[str, ...]
    prompts: tuple[str, ...]
    train: Split
    test: Split
    fit: str
    provenance: Mapping[str, str]


def recognise(path: str | os.PathLike[str] | Folder) -> str:
    """Finds out the layout of a collection by its collection.toml, or by the names in its folder.

    Args:
      path: of the folder.

    Returns:
      A key of `LAYOUTS`, or ``"features"``.

    Raises:
      IngestError: if no layout fits, or several.
    """
    folder = path if isinstance(path, Folder) else Folder(path, links=True)
    stated = read_settings(folder).get("layout")
    if stated is not None:
        return str(stated)
    files = folder.listing().files
    arrays = {f"{array}.npy" for arrays in ARRAYS.values() for array in arrays}
    fits = {
        layout: any(split in LAYOUTS[layout](folder) for split in ("train", *TESTS))
        for layout in ("webdataset", "coco", "table", "folders")
    }
    fits["karpathy"] = any(map(readers.KARPATHY.fullmatch, files))
    on_disk = bool(readers.arrow_files(folder)) or folder.holds(readers.SAVED)
    fits["datasets"] = on_disk or folder.on_hub
    fits["tfds"] = readers.tfds_version(folder) is not None
    fits["features"] = any(name in arrays or name.endswith(".safetensors") for name in files)
    layouts = [layout for layout, fitting in fits.items() if fitting]
    if len(layouts) != 1:
        raise IngestError(
            f"{folder.path} may be {' or '.join(layouts) or 'none of the known layouts'}; say "
            "which with layout=... or in collection.toml. It holds the folders "
            f"{first_few(folder.listing().folders)} and the files {first_few(files)}.\n{NEEDS}"
        )
    return layouts[0]


def open_collection(
    path: str | os.PathLike[str],
    name: str | None = None,
    *,
    layout: str | None = None,
    prompts: Sequence[str] | None = None,
    fit: str | None = None,
    splits: Mapping[str, str] | None = None,
    links: bool = False,
) -> Collection:
    """Opens a collection of pictures with labels or captions.

    Arguments take precedence over the collection's own files.

    A split is named as its folder or file is. It may be a part of one, ``"train[:90%]"`` or
    ``"train[5000:10000]"``, and several may be joined, ``"train+restval"``. Parts are of a fixed
    random order (that of the keys' SHA-256), because pictures lie sorted by class; so
    ``"train[:90%]"`` and ``"train[90%:]"`` are disjoint, but not the very pictures that another
    library takes. Only parts of prepared TensorFlow Datasets are in that library's order.
    ``"test"`` also finds ``val``, ``validation`` or ``valid``.

    Args:
      path: of the collection's folder, or ``"hf:NAME"``.
      name: of the task; the folder's by default.
      layout: if several are possible.
      prompts: templates with ``{}`` for the class name.
      fit: ``"crop"`` or ``"squash"``; by default the first for classification, the second for
        retrieval.
      splits: the splits for ``"train"`` and ``"test"``.
      links: whether symbolic links that leave the folder are followed; only if you made them.

    Returns:
      The collection.

    Raises:
      IngestError: naming the file, the problem and the remedy.

    Example:
      >>> from hmcl_jax.data.image_datasets import open_collection
      >>> birds = open_collection("data/birds")  # doctest: +SKIP
      >>> birds.classes, len(birds.train.pictures)  # doctest: +SKIP
      (('barn owl', 'wren'), 1200)
    """
    folder = Folder(path, links)
    where, layout = str(folder.path), layout or recognise(folder)
    if layout not in LAYOUTS:
        raise IngestError(
            f"{where}: layout must be one of {', '.join(LAYOUTS)}, got {layout!r}; features are "
            f"for read_features.\n{NEEDS}"
        )
    settings = read_settings(folder, FOR_PICTURES, name=name, prompts=prompts, fit=fit)
    wanted = {"train": "train", "test": "test", **settings.get("splits", {}), **(splits or {})}
    if len(wanted) > 2:
        raise IngestError(f"{where}: splits must be of 'train' and 'test', got {list(wanted)}.")
    sides = read_sides(where, LAYOUTS[layout](folder), wanted)
    train, test = sides["train"], sides["test"]
    if len(set(map(type, (*train.texts, *test.texts)))) > 1:
        raise IngestError(f"{where}: all pictures must have a label, or all must have captions.")
    notes = {"layout": layout, "splits": f"train: {wanted['train']}, test: {wanted['test']}"}
    if layout in ("folders", "webdataset"):
        notes["ignored"] = f"{folder.ignored} file{'s' * (folder.ignored != 1)}"
    notes |= settings["provenance"]
    if isinstance(train.texts[0], list):
        kind, usual = "retrieval", "squash"
        classes: tuple[str, ...] = ()
        learned, scored = _paired(train), _paired(test)
    else:
        kind, usual = "classification", "crop"
        classes, rows = _classes(folder, train, test, settings.get("classes"))
        learned, scored = (_labelled(where, samples, rows) for samples in (train, test))
    templates = settings["prompts"] if classes else ()
    fit = settings.get("fit", usual)
    return Collection(settings["name"], kind, classes, templates, learned, scored, fit, notes)


def _classes(
    folder: Folder, train: Samples, test: Samples, stated: tuple[str, ...] | None
) -> tuple[tuple[str, ...], dict[str, int]]:
    """The class names, and the class of each label.

    A layout with a list of classes (class folders) gives their order; stated names rename them. A
    label in a table or a tar file is the name of a class, or its number.
    """
    where, order, labels = str(folder.path), train.classes, set(map(str, train.texts))
    first, second = set(train.classes or ()), set(test.classes or ())
    if first != second:
        raise IngestError(
            f"{where}: classes must be the same in all splits; missing: "
            f"{first_few(sorted(first - second))}; not known: {first_few(sorted(second - first))}."
        )
    numbers = all(map(NUMBER.fullmatch, labels))
    if order is not None:
        names = stated or tuple(check_text(where, name.replace("_", " ")) for name in order)
        rows = {label: row for row, label in enumerate(order)}
        if len(names) != len(order) or (stated is None and len(set(names)) < len(names)):
            raise IngestError(
                f"{where}: its {len(order)} classes need as many names, got {first_few(names)}; "
                "state one for each in classnames.txt, in the order of the sorted folders."
            )
    else:
        names = stated or tuple(sorted(labels, key=int if numbers else None))
        rows = {name: row for row, name in enumerate(names) if names.count(name) == 1}
        # Labels are class names. Only if they are not, and all are numbers, they are rows of them.
        if numbers and not labels <= set(names):
            rows = {str(row): row for row in range(len(names))}
    empty = [names[row] for label, row in rows.items() if label not in labels]
    if empty:
        raise IngestError(
            f"{where}: {len(empty)} of {len(names)} classes have no training picture: "
            f"{first_few(empty)}; add some, or drop the classes."
        )
    return names, rows


def _labelled(where: str, samples: Samples, rows: Mapping[str, int]) -> Split:
    for row, label in enumerate(samples.texts):
        if label not in rows:
            raise IngestError(
                f"{where}: picture {samples.pictures[row].key} has the label {label[:60]!r}, which "
                "must be the name of one class or its number, from 0; the classes are "
                f"{first_few(rows)}."
            )
    return Split(samples.pictures, np.array([rows[str(x)] for x in samples.texts], np.int32))


def _paired(samples: Samples) -> Split:
    pairs = [(row, text) for row, own in enumerate(samples.texts) for text in own]
    captions = tuple(text for _, text in pairs)
    rows = np.stack([[row for row, _ in pairs], np.arange(len(pairs))], axis=1).astype(np.int32)
    return Split(samples.pictures, None, captions, rows)


def distinct_names(names: Sequence[str]) -> tuple[str, ...]:
    """Class names made distinct, as a store wants them; ImageNet has two kinds of missile.

    Args:
      names: of classes; some may be equal.

    Returns:
      The same names, the second, third, ... of equal ones numbered.

    Example:
      >>> from hmcl_jax.data.image_datasets import distinct_names
      >>> distinct_names(("missile", "cat", "missile"))
      ('missile', 'cat', 'missile (2)')
    """
    distinct: list[str] = []
    for name in names:
        number, new = names[: len(distinct) + 1].count(name), name
        while number > 1 and (new in names or new in distinct):
            new, number = f"{name} ({number})", number + 1
        distinct.append(new)
    return tuple(distinct)
