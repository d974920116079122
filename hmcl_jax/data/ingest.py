"""Opening a collection of pictures as it lies on disk, and arrays of features from elsewhere.

:func:`open_collection` knows these layouts and finds out which one a folder has:

- *folders*: ``train/<class>/*.jpg`` and ``test/`` (or ``val/``) with the same classes;
- *table*: ``train.csv`` or ``train.jsonl`` with image and caption (or label), and ``test.*``;
- *coco*: ``annotations/captions_train2017.json`` with ``train2017/``, and the same for val;
- *karpathy*: ``dataset_<name>.json``, pictures in ``images/``, ``<name>_images/`` or beside it;
- *webdataset*: ``train/*.tar`` and ``test/*.tar``, as the public CLIP benchmark keeps them.

A ``collection.toml`` (:mod:`hmcl_jax.data.settings`) may say more. No picture is opened before it
is read. Features that another encoder has made are for :func:`read_features`.
"""

import hashlib
import os
import re
from collections.abc import Mapping, Sequence

import numpy as np

from hmcl_jax.data.collection import (
    Collection,
    IngestError,
    Picture,
    Pictures,
    Split,
    distinct_names,
    join_splits,
    shown,
    take_split,
)
from hmcl_jax.data.features import FeatureCollection, looks_like_features, read_features
from hmcl_jax.data.folder import Folder
from hmcl_jax.data.layouts import Coco, Folders, Karpathy, Layout, Table
from hmcl_jax.data.settings import (
    FOR_PICTURES,
    check_name,
    choose_fit,
    choose_prompts,
    read_settings,
    stated_classes,
)
from hmcl_jax.data.webdataset import WebDataset

__all__ = [
    "Collection",
    "FeatureCollection",
    "IngestError",
    "Picture",
    "Pictures",
    "Split",
    "distinct_names",
    "open_collection",
    "read_features",
    "recognise",
]

LAYOUTS: Mapping[str, type[Layout]] = {
    "folders": Folders,
    "table": Table,
    "coco": Coco,
    "karpathy": Karpathy,
    "webdataset": WebDataset,
}
NEEDS = """\
  folders     train/<class>/*.jpg and test/<class>/*.jpg (or val/), the same classes in both
  table       train.csv or train.jsonl with columns image and caption (or label), and test.*
  coco        annotations/captions_train2017.json, train2017/, and the same for val
  karpathy    dataset_<name>.json and pictures in images/, <name>_images/ or beside it
  webdataset  train/*.tar and test/*.tar
  features    train_features.npy, train_labels.npy, ... (for read_features)"""
TESTS = ("test", "val", "validation", "valid")  # the first that is there is the test split
SIDES = ("train", "test")
PART = re.compile(r"([\w.-]+)(?:\[([0-9]+%?)?:([0-9]+%?)?\])?")


def recognise(path: str | os.PathLike[str] | Folder) -> str:
    """Finds out the layout of a collection by what it states, or by what lies in its folder.

    Args:
      path: of the folder.

    Returns:
      One of ``"folders"``, ``"table"``, ``"coco"``, ``"karpathy"``, ``"webdataset"`` and
      ``"features"``.

    Raises:
      IngestError: if it is none of them, or several.
    """
    folder = path if isinstance(path, Folder) else Folder(path)
    stated = read_settings(folder).layout
    if stated is not None:
        return stated
    top = folder.listing()
    folder.refuse_links("", top.bad)
    train = folder.listing("train") if "train" in top.folders else None
    tables = {f"{split}.{suffix}" for split in ("train", *TESTS) for suffix in ("csv", "jsonl")}
    found = {
        "webdataset": any(
            name.endswith(".tar")
            for split in ("train", *TESTS)
            if split in top.folders
            for name in folder.listing(split).files
        ),
        "coco": "annotations" in top.folders
        and any(map(Coco.FILE.fullmatch, folder.listing("annotations").files)),
        "karpathy": any(map(Karpathy.FILE.fullmatch, top.files)),
        "table": not tables.isdisjoint(top.files),
        "folders": train is not None and bool(train.folders),
        "features": looks_like_features(folder),
    }
    layouts = [layout for layout, there in found.items() if there]
    if len(layouts) > 1:
        raise IngestError(
            f"{folder.path} may be {' or '.join(layouts)}; say which with layout=... or in "
            f"collection.toml:\n{NEEDS}"
        )
    if not layouts:
        raise IngestError(
            f"{folder.path} has none of the layouts that are known; it holds the folders "
            f"{shown(top.folders) or 'none'} and the files {shown(top.files) or 'none'}.\n{NEEDS}"
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

    What is told here goes before what the collection's own files state.

    A split is named as its folder or file is. It may be a part of one, ``"train[:90%]"`` or
    ``"train[5000:10000]"``, and several may be joined, ``"train+restval"``. Parts are of a fixed
    random order (that of the keys' SHA-256), because pictures lie sorted by class; so
    ``"train[:90%]"`` and ``"train[90%:]"`` are disjoint, but not the very pictures that another
    library takes. ``"test"`` also finds ``val``, ``validation`` or ``valid``.

    Args:
      path: of the collection's folder.
      name: of the task it becomes; the folder's by default.
      layout: instead of finding it out.
      prompts: templates with ``{}`` for the class name.
      fit: ``"crop"`` or ``"squash"``; by default the first for classification, the second for
        retrieval.
      splits: what to take for ``"train"`` and ``"test"``.
      links: whether symbolic links that leave the folder are followed; only if you made them.

    Returns:
      The collection.

    Raises:
      IngestError: naming the file, what was expected, what was found and the remedy.

    Example:
      >>> from hmcl_jax.data.ingest import open_collection
      >>> birds = open_collection("data/birds")  # doctest: +SKIP
      >>> birds.classes, len(birds.train.pictures)  # doctest: +SKIP
      (('barn owl', 'wren'), 1200)
    """
    folder = Folder(path, links)
    folder.refuse_links("", folder.listing().bad)
    settings = read_settings(folder)
    layout = layout or recognise(folder)
    if layout == "features":
        raise IngestError(f"{folder.path} holds features, not pictures; use read_features.")
    if layout not in LAYOUTS:
        raise IngestError(
            f"{folder.path}: layout must be one of {', '.join(LAYOUTS)}, got {layout!r}.\n{NEEDS}"
        )
    settings.refuse_others(folder, FOR_PICTURES)
    task = check_name(folder, name, settings)
    source = LAYOUTS[layout](folder, stated_classes(folder, settings))
    wanted = {"train": "train", "test": "test", **(settings.splits or {}), **(splits or {})}
    if set(wanted) != set(SIDES):
        raise IngestError(
            f"{folder.path}: splits must be of 'train' and 'test', got {shown(sorted(wanted))}."
        )
    parts = {side: _parse(folder, source, side, wanted[side]) for side in SIDES}
    source.prepare(parts["train"][0][0])
    whole = {part[0]: source.read(part[0]) for side in SIDES for part in parts[side]}
    if source.kind == "classification":
        _check_classes(folder, source, [whole[part[0]] for part in parts["train"]])
    rows = {side: [_rows(folder, whole[part[0]], part) for part in parts[side]] for side in SIDES}
    _check_overlap(folder, parts, rows)

    def taken(side: str) -> Split:
        pieces = zip(parts[side], rows[side], strict=True)
        return join_splits([take_split(whole[part[0]], chosen) for part, chosen in pieces])

    said = {"layout": layout, "splits": ", ".join(f"{side}: {wanted[side]}" for side in SIDES)}
    if source.ignored is not None:
        files, folders = source.ignored
        said["ignored"] = f"{files} file{'s' * (files != 1)}"
        if folders:
            said["ignored"] += f", {folders} folder{'s' * (folders != 1)}"
    classified = source.kind == "classification"
    return Collection(
        name=task,
        kind=source.kind,
        classes=source.classes,
        prompts=choose_prompts(folder, settings, prompts) if classified else (),
        train=taken("train"),
        test=taken("test"),
        fit=choose_fit(folder, settings, fit, source.kind),
        provenance={**said, **settings.about()},
    )


Part = tuple[str, str | None, str | None]  # split, from, to


def _parse(folder: Folder, source: Layout, side: str, text: str) -> list[Part]:
    """The parts of ``"train[:90%]+restval"``, with the names that the collection has for them."""
    parts: list[Part] = []
    for piece in str(text).split("+"):
        match = PART.fullmatch(piece.strip())
        if match is None:
            raise IngestError(
                f"{folder.path}: splits[{side!r}] must be like 'train', 'train[:90%]' or "
                f"'train+restval', got {str(text)[:80]!r}."
            )
        name, start, end = match.groups()
        others = TESTS if name == "test" else TESTS[1:] if name in TESTS else ()
        found = next((other for other in (name, *others) if other in source.splits), None)
        if found is None:
            raise IngestError(
                f"{folder.path}: there is no {name} split (for {side}); there are "
                f"{shown(source.splits) or 'none'}. Say what to take with splits=... or in "
                f"collection.toml.\n{NEEDS}"
            )
        parts.append((found, start, end))
    return parts


def _rows(folder: Folder, split: Split, part: Part) -> np.ndarray | None:
    """Rows of a part, ascending; None for all."""
    name, start, end = part
    if start is None and end is None:
        return None
    count = len(split.pictures)

    def bound(text: str | None, default: int) -> int:
        if text is None:
            return default
        number = int(text.rstrip("%")) if len(text) < 12 else count + 1
        if not text.endswith("%"):
            return number
        return (2 * number * count + 100) // 200 if number <= 100 else count + 1

    first, last = bound(start, 0), bound(end, count)
    if not 0 <= first < last <= count:
        raise IngestError(
            f"{folder.path}: {name}[{start or ''}:{end or ''}] is rows {first} to {last}, but "
            f"{name} has {count} pictures."
        )
    pictures = split.pictures
    keys = pictures.keys() if isinstance(pictures, Pictures) else (p.key for p in pictures)
    drawn = sorted((hashlib.sha256(key.encode()).digest(), row) for row, key in enumerate(keys))
    return np.array(sorted(row for _, row in drawn[first:last]))


def _check_classes(folder: Folder, source: Layout, splits: Sequence[Split]) -> None:
    count = len(source.classes)
    seen = np.zeros(count, np.int64)
    for split in splits:
        seen += np.bincount(np.asarray(split.labels), minlength=count)
    empty = np.flatnonzero(seen == 0)
    if empty.size:
        raise IngestError(
            f"{folder.path}: {empty.size} of {count} classes have no training picture: "
            f"{shown([source.classes[row] for row in empty])}; add some, or drop the classes."
        )


def _check_overlap(
    folder: Folder, parts: Mapping[str, list[Part]], rows: Mapping[str, list[np.ndarray | None]]
) -> None:
    """Refuses to test on what was trained on, as far as splits are parts of one."""
    taken: dict[str, list[tuple[str, np.ndarray | None]]] = {}
    for side in SIDES:
        for (name, *_), chosen in zip(parts[side], rows[side], strict=True):
            for other, before in taken.setdefault(name, []):
                both = chosen is None or before is None or np.intersect1d(chosen, before).size
                if both:
                    raise IngestError(
                        f"{folder.path}: {side} and {other} share pictures of {name}; take "
                        "different parts of it."
                    )
            taken[name].append((side, chosen))
