"""Opens a collection of pictures with labels or captions, in any of the layouts of `NEEDS`.

``"hf:NAME"`` or ``"hf:NAME:CONFIGURATION"`` instead of a folder is a data set of the ``datasets``
library, from its hub or its cache. A ``collection.toml`` (:mod:`hmcl_jax.data.folder`) in
the folder may say more. Features of another encoder are for
:func:`hmcl_jax.data.feature_arrays.read_features`.
"""

import dataclasses
import hashlib
import os
import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from hmcl_jax.data import readers
from hmcl_jax.data.errors import IngestError
from hmcl_jax.data.folder import FOR_PICTURES, Folder, check_text, first_few, read_settings
from hmcl_jax.data.readers import Samples, Splits
from hmcl_jax.data.store import ARRAYS

LAYOUTS: Mapping[str, Callable[[Folder], Splits]] = {
    "folders": readers.read_folders,
    "table": readers.read_tables,
    "coco": readers.read_coco,
    "karpathy": readers.read_karpathy,
    "webdataset": readers.read_shards,
    "datasets": readers.read_datasets,
    "tfds": readers.read_tfds,
}
NEEDS = "".join(
    f"  {layout:10}  {read.__doc__}\n".replace("``", "") for layout, read in LAYOUTS.items()
)
NEEDS += "  features    train_features.npy, train_labels.npy, ... (for read_features)"
NUMBER = re.compile(r"0|[1-9][0-9]{0,8}")
TESTS = ("test", "val", "validation", "valid")  # the first that exists is the test split
PART = re.compile(r"([\w.-]+)(?:\[([0-9]{1,10}%?)?:([0-9]{1,10}%?)?\])?")


@dataclasses.dataclass(frozen=True, eq=False)
class Split:
    """The training or the test part of a collection."""

    pictures: Sequence[Any]  # each with a `key` and ``read()``
    labels: np.ndarray | None = None  # class of each picture, int32 (n,); None for retrieval
    captions: tuple[str, ...] = ()  # empty for classification
    pairs: np.ndarray | None = None  # rows (picture, caption) that belong together, int32 (p, 2)


@dataclasses.dataclass(frozen=True, eq=False)
class Collection:
    """Pictures with labels or captions, in a training and a test split."""

    name: str  # of the task that the collection becomes
    kind: str  # "classification" or "retrieval"
    classes: tuple[str, ...]  # in the order of the labels; a name may occur twice
    prompts: tuple[str, ...]  # templates in which {} stands for the class name
    train: Split
    test: Split
    fit: str  # how pictures become square: "crop" or "squash"
    provenance: Mapping[str, str]  # layout, splits, ignored files, and what collection.toml states


def recognise(path: str | os.PathLike[str] | Folder) -> str:
    """A key of `LAYOUTS`, or ``"features"``: by collection.toml, or by the names in the folder."""
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

    A split is named as its folder or file is. It may be a part of one, ``"train[:90%]"`` or
    ``"train[5000:10000]"``, and several may be joined, ``"train+restval"``. Parts are of a fixed
    random order (that of the keys' SHA-256), because pictures lie sorted by class; so
    ``"train[:90%]"`` and ``"train[90%:]"`` are disjoint, but not the very pictures that another
    library takes. Only parts of prepared TensorFlow Datasets are in that library's order.
    ``"test"`` also finds ``val``, ``validation`` or ``valid``.

    Args:
      path: of the collection's folder, or ``"hf:NAME"``.
      name: of the task; the folder's by default. Arguments take precedence over collection.toml.
      layout: if several are possible.
      prompts: templates with ``{}`` for the class name.
      fit: ``"crop"`` or ``"squash"``; by default the first for classification, the second for
        retrieval.
      splits: the splits for ``"train"`` and ``"test"``.
      links: whether symbolic links that leave the folder are followed; only if you made them.
    """
    folder = Folder(path, links)
    where, layout = str(folder.path), layout or recognise(folder)
    if layout not in LAYOUTS:
        raise IngestError(f"{where}: layout must be one of these, got {layout!r}:\n{NEEDS}")
    settings = read_settings(folder, FOR_PICTURES, name=name, prompts=prompts, fit=fit)
    wanted = {"train": "train", "test": "test", **settings.get("splits", {}), **(splits or {})}
    if len(wanted) > 2:
        raise IngestError(f"{where}: splits must be of 'train' and 'test', got {list(wanted)}.")
    train, test = _read_sides(where, LAYOUTS[layout](folder), wanted)
    if len(set(map(type, (*train.texts, *test.texts)))) > 1:
        raise IngestError(f"{where}: all pictures must have a label, or all must have captions.")
    notes = {"layout": layout, "splits": f"train: {wanted['train']}, test: {wanted['test']}"}
    if layout in ("folders", "webdataset"):
        notes["ignored"] = f"{folder.ignored} file{'s' * (folder.ignored != 1)}"
    classes: tuple[str, ...] = ()
    if isinstance(train.texts[0], list):
        kind, usual = "retrieval", "squash"
        learned, scored = _paired(train), _paired(test)
    else:
        kind, usual = "classification", "crop"
        classes, rows = _classes(where, train, test, settings.get("classes"))
        learned, scored = (_labelled(where, samples, rows) for samples in (train, test))
    return Collection(
        settings["name"],
        kind,
        classes,
        settings["prompts"] if classes else (),
        learned,
        scored,
        settings.get("fit", usual),
        {**notes, **settings["provenance"]},
    )


def _read_sides(where: str, splits: Splits, wanted: Mapping[str, str]) -> list[Samples]:
    """Reads both sides; refuses empty parts, and pictures that are in both."""
    whole: dict[str, Samples] = {}
    taken: dict[str, np.ndarray] = {}
    sides = []
    for side, text in wanted.items():
        parts = []
        for piece in text.split("+"):
            match = PART.fullmatch(piece.strip())
            if match is None:
                raise IngestError(f"{where}: {side} must be like 'train[:90%]+dev', got {text!r}.")
            split = _find(where, match[1], splits)
            if split not in whole:
                whole[split] = splits[split]()
                taken[split] = np.zeros(len(whole[split].texts), bool)
            rows = _rows(f"{where}: {piece}", whole[split], match[2], match[3])
            if taken[split][rows].any():
                raise IngestError(f"{where}: splits share pictures of {split}, got {wanted}.")
            taken[split][rows] = True
            parts.append((whole[split], rows))
        sides.append(_join(parts))
    return sides


def _find(where: str, name: str, splits: Splits) -> str:
    """The collection's own name of a split."""
    others = TESTS if name == "test" else TESTS[1:] if name in TESTS else ()
    for other in (name, *others):
        if other in splits:
            return other
    raise IngestError(
        f"{where}: there is no {name} split, but {first_few(splits)}; give splits=..."
    )


def _rows(where: str, samples: Samples, start: str | None, end: str | None) -> np.ndarray:
    """The rows of a part, ascending."""
    count = len(samples.texts)

    def bound(text: str) -> int:
        share = int(text.rstrip("%"))
        # Percents are rounded half up, in whole numbers.
        return (2 * share * count + 100) // 200 if text.endswith("%") else share

    first, last = bound(start or "0"), bound(end or "100%")
    if not first < last <= count:
        raise IngestError(f"{where} is rows {first} to {last}, but there are {count} pictures.")
    if samples.in_order or last - first == count:
        return np.arange(first, last)
    digests = [hashlib.sha256(os.fsencode(key)).digest() for key in samples.pictures.keys]
    return np.sort(sorted(range(count), key=digests.__getitem__)[first:last])


def _join(parts: Sequence[tuple[Samples, np.ndarray]]) -> Samples:
    first, rows = parts[0]
    if len(parts) == 1 and len(rows) == len(first.texts):
        return first  # a million pictures of a whole split cost only their keys
    pictures = [samples.pictures[row] for samples, rows in parts for row in rows]
    texts = [samples.texts[row] for samples, rows in parts for row in rows]
    return first._replace(pictures=pictures, texts=texts)


def _classes(
    where: str, train: Samples, test: Samples, stated: tuple[str, ...] | None
) -> tuple[tuple[str, ...], dict[str, int]]:
    """The class names, and the class of each label, which is the name of a class or its number.

    A layout with a list of classes (class folders) gives their order; stated names rename them.
    """
    order, labels = train.classes, set(map(str, train.texts))
    if different := set(train.classes or ()) ^ set(test.classes or ()):
        raise IngestError(f"{where}: only one split has classes {first_few(sorted(different))}.")
    if order is not None:
        names = stated or tuple(check_text(where, name.replace("_", " ")) for name in order)
        rows = {label: row for row, label in enumerate(order)}
        if len(names) != len(order) or (stated is None and len(set(names)) < len(names)):
            raise IngestError(
                f"{where}: {len(order)} sorted class folders need as many different names in "
                f"classnames.txt, got {first_few(names)}."
            )
    else:
        numbers = all(map(NUMBER.fullmatch, labels))
        names = stated or tuple(sorted(labels, key=int if numbers else None))
        rows = {name: row for row, name in enumerate(names) if names.count(name) == 1}
        # Labels are class names. Only if they are not, and all are numbers, they are rows of them.
        if numbers and not labels <= set(names):
            rows = {str(row): row for row in range(len(names))}
    empty = [names[row] for label, row in rows.items() if label not in labels]
    if empty:
        raise IngestError(f"{where}: classes without a training picture: {first_few(empty)}.")
    return names, rows


def _labelled(where: str, samples: Samples, rows: Mapping[str, int]) -> Split:
    for picture, label in zip(samples.pictures, samples.texts, strict=True):
        if label not in rows:
            raise IngestError(
                f"{where}: picture {picture.key} has the label {label[:60]!r}, but the classes are "
                f"{first_few(rows)}."
            )
    return Split(samples.pictures, np.array([rows[str(x)] for x in samples.texts], np.int32))


def _paired(samples: Samples) -> Split:
    pairs = [(row, text) for row, own in enumerate(samples.texts) for text in own]
    captions = tuple(text for _, text in pairs)
    rows = np.stack([[row for row, _ in pairs], np.arange(len(pairs))], axis=1).astype(np.int32)
    return Split(samples.pictures, None, captions, rows)


def distinct_names(names: Sequence[str]) -> tuple[str, ...]:
    """Class names made distinct, as a store wants them; ImageNet has two kinds of missile."""
    distinct: list[str] = []
    for name in names:
        number, new = names[: len(distinct) + 1].count(name), name
        while number > 1 and (new in names or new in distinct):
            new, number = f"{name} ({number})", number + 1
        distinct.append(new)
    return tuple(distinct)
