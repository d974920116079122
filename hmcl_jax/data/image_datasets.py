"""Opens a collection of pictures with labels or captions, in any of the known layouts.

:func:`open_collection` recognises these layouts of a folder:

- *folders*: ``train/<class>/*.jpg`` and ``test/`` (or ``val/``) with the same classes;
- *table*: ``train.csv`` or ``train.jsonl`` with image and caption (or label), and ``test.*``;
- *coco*: ``annotations/captions_train2017.json`` with ``train2017/``, and the same for val;
- *karpathy*: ``dataset_<name>.json``, pictures in ``images/``, ``<name>_images/`` or beside it;
- *webdataset*: ``train/*.tar`` and ``test/*.tar``, as the public CLIP benchmark keeps them;
- *datasets*: Parquet or Arrow files, or a folder of ``DatasetDict.save_to_disk``;
- *tfds*: a folder that TensorFlow Datasets has prepared.

``"hf:NAME"`` or ``"hf:NAME:CONFIGURATION"`` instead of a folder is a data set of the ``datasets``
library, from its hub or its cache. A ``collection.toml`` (:mod:`hmcl_jax.data.collection_toml`) in
the folder may say more. Features of another encoder are for
:func:`hmcl_jax.data.feature_arrays.read_features`.
"""

import dataclasses
import os
import re
from collections.abc import Mapping, Sequence

import numpy as np

from hmcl_jax.data.collection_toml import (
    FOR_PICTURES,
    check_name,
    choose_fit,
    choose_prompts,
    read_settings,
    stated_classes,
)
from hmcl_jax.data.errors import IngestError
from hmcl_jax.data.folder import Folder, first_few
from hmcl_jax.data.hub import HUB, SAVED, HubName, HubReader, arrow_files
from hmcl_jax.data.readers import Coco, Folders, Karpathy, Reader, Samples, Table
from hmcl_jax.data.splits import SIDES, TESTS, Split, choose_parts, parse_parts
from hmcl_jax.data.store import ARRAYS
from hmcl_jax.data.tar_shards import TarShards, has_shards
from hmcl_jax.data.tfds_reader import TfdsReader, version_folder

LAYOUTS: Mapping[str, type[Reader]] = {
    "folders": Folders,
    "table": Table,
    "coco": Coco,
    "karpathy": Karpathy,
    "webdataset": TarShards,
    "datasets": HubReader,
    "tfds": TfdsReader,
}
NEEDS = """\
  folders     train/<class>/*.jpg and test/<class>/*.jpg (or val/), the same classes in both
  table       train.csv or train.jsonl with columns image and caption (or label), and test.*
  coco        annotations/captions_train2017.json, train2017/, and the same for val
  karpathy    dataset_<name>.json and pictures in images/, <name>_images/ or beside it
  webdataset  train/*.tar and test/*.tar
  datasets    train*.parquet or train*.arrow and test*, or dataset_dict.json
  tfds        <version>/features.json, prepared with file_format="array_record"
  features    train_features.npy, train_labels.npy, ... (for read_features)"""
NUMBER = re.compile(r"0|[1-9][0-9]{0,8}")


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
    if not isinstance(path, Folder) and str(path).startswith(HUB):
        return "datasets"
    folder = path if isinstance(path, Folder) else Folder(path)
    stated = read_settings(folder).layout
    if stated is not None:
        return stated
    top = folder.listing()
    folder.refuse_links("")
    splits = [split for split in ("train", *TESTS) if split in top.folders]
    tables = {f"{split}.{suffix}" for split in ("train", *TESTS) for suffix in ("csv", "jsonl")}
    arrays = {f"{array}.npy" for names in ARRAYS.values() for array in names}
    fits = {
        "webdataset": any(has_shards(folder, split) for split in splits),
        "coco": "annotations" in top.folders
        and any(map(Coco.FILE.fullmatch, folder.listing("annotations").files)),
        "karpathy": any(map(Karpathy.FILE.fullmatch, top.files)),
        "table": bool(tables & top.files.keys()),
        "datasets": SAVED in top.files or bool(arrow_files(folder)),
        "tfds": version_folder(folder) is not None,
        "folders": "train" in splits and bool(folder.listing("train").folders),
        "features": bool(arrays & top.files.keys())
        or any(name.endswith(".safetensors") for name in top.files),
    }
    layouts = [layout for layout, fitting in fits.items() if fitting]
    if len(layouts) > 1:
        raise IngestError(
            f"{folder.path} may be {' or '.join(layouts)}; say which with layout=... or in "
            f"collection.toml:\n{NEEDS}"
        )
    if not layouts:
        raise IngestError(
            f"{folder.path} has none of the known layouts; it holds the folders "
            f"{first_few(top.folders)} and the files {first_few(top.files)}.\n{NEEDS}"
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
    hub = str(path).startswith(HUB)
    folder = HubName(str(path)) if hub else Folder(path, links)
    folder.refuse_links("")
    layout = layout or recognise(str(path) if hub else folder)
    if layout == "features":
        raise IngestError(f"{folder.path} holds features, not pictures; use read_features.")
    if layout not in LAYOUTS:
        raise IngestError(
            f"{folder.path}: layout must be one of {', '.join(LAYOUTS)}, got {layout!r}.\n{NEEDS}"
        )
    settings = read_settings(folder, FOR_PICTURES)
    task = check_name(folder, name, settings)
    reader = LAYOUTS[layout](folder)
    wanted = {"train": "train", "test": "test", **(settings.splits or {}), **(splits or {})}
    if set(wanted) != set(SIDES):
        raise IngestError(
            f"{folder.path}: splits must be of 'train' and 'test', got {first_few(sorted(wanted))}."
        )
    where = str(folder.path)
    parts = {side: parse_parts(where, side, wanted[side], reader.splits) for side in SIDES}
    samples = {part.split: reader.read(part.split) for side in SIDES for part in parts[side]}
    training = list(dict.fromkeys(part.split for part in parts["train"]))
    classes, rows = _classes(
        where, reader, [samples[split] for split in training], stated_classes(folder, settings)
    )
    whole = {
        split: _numbered(f"{where}: {split}", content, classes, rows)
        for split, content in samples.items()
    }
    if classes:
        _refuse_empty_classes(where, classes, [whole[split] for split in training])
    chosen = choose_parts(where, parts, whole, reader.in_order)
    notes = {"layout": layout, "splits": ", ".join(f"{side}: {wanted[side]}" for side in SIDES)}
    if reader.ignored is not None:
        counts = zip(reader.ignored, ("file", "folder"), strict=True)
        texts = [f"{count} {what}{'s' * (count != 1)}" for count, what in counts]
        notes["ignored"] = ", ".join(texts[: 2 if reader.ignored[1] else 1])
    kind = "classification" if classes else "retrieval"
    return Collection(
        name=task,
        kind=kind,
        classes=classes,
        prompts=choose_prompts(folder, settings, prompts) if classes else (),
        train=chosen["train"],
        test=chosen["test"],
        fit=choose_fit(folder, settings, fit, kind),
        provenance={**notes, **settings.origin()},
    )


def _classes(
    where: str, reader: Reader, training: Sequence[Samples], stated: tuple[str, ...] | None
) -> tuple[tuple[str, ...], dict[str, int]]:
    """The class names, and the class of each label; empty if the training pictures have captions.

    A layout with a list of classes (class folders) gives their order; stated names rename them. A
    label in a table or a tar file is the name of a class, or its number.
    """
    labels = {label for content in training for label in content.labels or ()}
    if not labels:
        return (), {}
    if reader.class_order is not None:
        order = reader.class_order
        names = stated or tuple(name.replace("_", " ") for name in order)
        if len(names) != len(order):
            raise IngestError(
                f"{where}: {len(names)} class names are stated, but there are {len(order)} "
                "class folders; state one name for each, in the order of the sorted folders."
            )
        twice = next((name for name in names if names.count(name) > 1), None)
        if twice is not None and stated is None:
            raise IngestError(
                f"{where}: two class folders are named {twice!r}; rename one, or state the "
                "names in classnames.txt."
            )
        return names, {label: row for row, label in enumerate(order)}
    numbers = all(map(NUMBER.fullmatch, labels))
    names = stated or tuple(sorted(labels, key=int if numbers else None))
    # Labels are class names. Only if they are not, and all are numbers, they are rows of the names.
    if numbers and not labels <= set(names):
        return names, {str(row): row for row in range(len(names))}
    return names, {name: row for row, name in enumerate(names) if names.count(name) == 1}


def _numbered(
    where: str, content: Samples, classes: tuple[str, ...], rows: Mapping[str, int]
) -> Split:
    """A split with classes for labels."""
    if content.labels is None and content.captions is not None and not classes:
        captions = tuple(text for own in content.captions for text in own)
        pictures = np.repeat(np.arange(len(content.captions)), list(map(len, content.captions)))
        pairs = np.stack([pictures, np.arange(len(captions))], axis=1).astype(np.int32)
        return Split(content.pictures, None, captions, pairs)
    if content.labels is None or not classes:
        here, training = ("captions", "labels") if classes else ("labels", "captions")
        raise IngestError(f"{where} has {here}, but the training pictures have {training}.")
    unknown = next((row for row, x in enumerate(content.labels) if x not in rows), None)
    if unknown is not None:
        label, key = content.labels[unknown], content.pictures[unknown].key
        raise IngestError(
            f"{where}: picture {key} has the label {label[:60]!r}, which must be the name of one "
            f"class or its number, from 0; the {len(classes)} classes are {first_few(classes)}."
        )
    return Split(content.pictures, np.array([rows[x] for x in content.labels], np.int32))


def _refuse_empty_classes(where: str, classes: tuple[str, ...], training: list[Split]) -> None:
    seen = np.zeros(len(classes), np.int64)
    for split in training:
        seen += np.bincount(np.asarray(split.labels), minlength=len(classes))
    empty = np.flatnonzero(seen == 0)
    if empty.size:
        raise IngestError(
            f"{where}: {empty.size} of {len(classes)} classes have no training picture: "
            f"{first_few([classes[row] for row in empty])}; add some, or drop the classes."
        )


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
    taken, seen, distinct = set(names), dict.fromkeys(names, 0), []
    for name in names:
        seen[name] += 1
        number, new = seen[name], name
        while number > 1 and new in taken:
            new, number = f"{name} ({number})", number + 1
        taken.add(new)
        distinct.append(new)
    return tuple(distinct)
