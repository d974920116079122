"""Reads collections of pictures as they are published: one function for each layout.

It returns a function for each split, which reads the split to `Samples`. Splits are known from
listings alone, and no picture is opened before it is used.

The ``datasets`` library reads Parquet and Arrow files and data sets of its hub. It keeps copies of
them in its own cache (``HF_DATASETS_CACHE``). Class folders and tables are read here: to open a
folder of 45,000 pictures the library took 64 s and this module 0.13 s, and in a CSV file it makes
the label ``007`` the number 7 and ``None`` a missing value.

Tar files are as the public CLIP benchmark keeps them (WebDataset): members belong together by their
name up to its first dot, a picture and its class (``.cls``, a number or a name) or its captions
(``.txt``, one on each line, or ``.json``). Nothing is unpacked: each tar file is walked through
once, and members are read where they lie.
"""

import csv
import functools
import io
import json
import os
import posixpath
import re
import tarfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from hmcl_jax._extras import require
from hmcl_jax.data.errors import IngestError
from hmcl_jax.data.folder import SUFFIXES, Folder, check_text, first_few, reading

TABLE = re.compile(r"(.+)\.(csv|jsonl)")
COCO = re.compile(r"captions_([a-z]+)([0-9]{4})\.json")
KARPATHY = re.compile(r"dataset_(?!dict\.)(.+)\.json")  # dataset_dict.json is a saved data set
ARROW = re.compile(r"(?:data/)?([a-z]+)\b[\w.-]*\.(?:parquet|arrow)")
SAVED = "dataset_dict.json"  # of DatasetDict.save_to_disk
TFDS_INFO = "features.json"  # in the folder of a version, such as cifar10/3.0.2
IMAGES = ("image", "img", "jpg", "png")
LABELS = ("label", "labels", "fine_label", "cls")
CAPTIONS = ("caption", "captions", "text", "txt")
MEMBERS = ("cls", "txt", "json")  # of tar files, beside pictures


class Picture(NamedTuple):
    """One picture."""

    key: str  # unique in its collection
    load: Callable[[], bytes]

    def read(self) -> bytes:
        """The bytes of its file; an IngestError if it is gone or too short."""
        with reading(f"Picture {self.key}"):
            return self.load()


class Pictures(Sequence[Any]):
    """The pictures of a split, each made when it is accessed: a million cost only their keys."""

    def __init__(self, keys: Sequence[str], load: Callable[[int], bytes]) -> None:
        self.keys, self.load = keys, load

    def __len__(self) -> int:
        return len(self.keys)

    def __getitem__(self, row: Any) -> Any:
        row = range(len(self.keys))[row]
        return Picture(self.keys[row], functools.partial(self.load, row))


class Samples(NamedTuple):
    """The content of a split."""

    pictures: Any  # Pictures, in the order of their keys
    texts: Sequence[str | list[str]]  # of each its label as it is written, or all its captions
    classes: tuple[str, ...] | None = None  # in order, if the layout has a list of them
    in_order: bool = False  # whether train[:90%] is the first part of the split, not a random one


Splits = Mapping[str, Callable[[], Samples]]


def _of_files(
    folder: Folder, texts: Mapping[str, str | list[str]], classes: tuple[str, ...] | None = None
) -> Samples:
    """Samples from the label or the captions of each path."""
    keys = sorted(texts, key=posixpath.split)
    for key in keys:
        if not texts[key]:
            raise IngestError(f"{folder.path}: picture {key} has no caption; add or drop it.")
    pictures = Pictures(keys, lambda row: Path(folder.root, keys[row]).read_bytes())
    return Samples(pictures, [texts[key] for key in keys], classes)


def _by_split(
    folder: Folder, inside: str, pattern: re.Pattern[str], read: Callable[..., Samples]
) -> Splits:
    """A reader for each file whose name matches; the first group of the pattern is the split."""
    splits: dict[str, Callable[[], Samples]] = {}
    for match in filter(None, map(pattern.fullmatch, folder.listing(inside).files)):
        if match[1] in splits:
            raise IngestError(
                f"{folder.path / inside} has {match[0]} and another file of {match[1]}; remove one."
            )
        splits[match[1]] = functools.partial(read, folder, match)
    return splits


def read_folders(folder: Folder) -> Splits:
    """``train/<class>/*.jpg`` and ``test/<class>/*.jpg`` (or ``val/``), the same classes in both"""
    splits = [name for name in folder.listing().folders if folder.listing(name).folders]
    return {split: functools.partial(_class_folders, folder, split) for split in splits}


def _class_folders(folder: Folder, split: str) -> Samples:
    top = folder.listing(split)
    folder.ignored += len(top.files) + top.hidden
    labels: dict[str, str | list[str]] = {}
    for name in top.folders:
        inside = folder.listing(f"{split}/{name}")
        own = [file for file in inside.files if file.rpartition(".")[2].lower() in SUFFIXES]
        labels |= {f"{split}/{name}/{file}": name for file in own}
        folder.ignored += len(inside.files) - len(own) + len(inside.folders) + inside.hidden
    return _of_files(folder, labels, tuple(top.folders))


def read_tables(folder: Folder) -> Splits:
    """``train.csv`` or ``train.jsonl`` with columns image and caption (or label), and ``test.*``"""
    return _by_split(folder, "", TABLE, _table)


def _table(folder: Folder, match: re.Match[str]) -> Samples:
    where = folder.path / match[0]
    labels: dict[str, str] = {}
    captions: dict[str, list[str]] = {}
    with reading(where):
        for line, row in _lines(match[2], folder.read_text(match[0])):
            at = f"{where} line {line}"
            if "image" not in row or ("label" in row) == ("caption" in row) or None in row:
                raise IngestError(
                    f"{at} must have the columns image and caption, or image and label, and commas "
                    f"of texts in quotes; got {first_few(row)}."
                )
            key = folder.locate(f"{at}: image", row["image"])
            if "caption" in row:
                captions.setdefault(key, []).extend(_texts(f"{at}: caption", row["caption"]))
                continue
            label = str(row["label"]) if isinstance(row["label"], int) else row["label"]
            label = check_text(f"{at}: label", label)
            if labels.setdefault(key, label) != label:
                raise IngestError(f"{at}: image {key} has another label already; drop one.")
    return _of_files(folder, {**labels, **captions})


def _texts(where: str, value: Any) -> list[str]:
    """A caption, or a list of captions, as a list."""
    texts = value if isinstance(value, list) and value else [value or ""]
    return [check_text(where, text) for text in texts]


def _lines(form: str, text: str) -> Iterator[tuple[int, dict[Any, Any]]]:
    """The number and the columns of each line of a table."""
    if form == "csv":
        rows = csv.DictReader(io.StringIO(text, newline=""), strict=True)
        rows.fieldnames = [name.strip() for name in rows.fieldnames or ()]
        yield from ((rows.line_num, row) for row in rows)
    else:
        for number, line in enumerate(text.split("\n"), 1):
            if line.strip():
                yield number, dict(json.loads(line))


def read_coco(folder: Folder) -> Splits:
    """``annotations/captions_train2017.json``, ``train2017/``, and the same for ``val``"""
    return _by_split(folder, "annotations", COCO, _coco)


def _coco(folder: Folder, match: re.Match[str]) -> Samples:
    where, pictures = folder.path / "annotations" / match[0], f"{match[1]}{match[2]}"
    with reading(where):
        data = json.loads(folder.read_text(f"annotations/{match[0]}"))
        keys = {
            entry["id"]: folder.locate(f"{where}: file_name", f"{pictures}/{entry['file_name']}")
            for entry in data["images"]
        }
        captions: dict[str, Any] = {key: [] for key in keys.values()}
        for entry in data["annotations"]:
            key = keys[entry["image_id"]]
            captions[key].append(check_text(f"{where}: caption of {key}", entry["caption"]))
    return _of_files(folder, captions)


def read_karpathy(folder: Folder) -> Splits:
    """``dataset_<name>.json``, and pictures in ``images/``, ``<name>_images/`` or beside it"""
    matches = [*filter(None, map(KARPATHY.fullmatch, folder.listing().files))]
    if len(matches) != 1:
        raise IngestError(f"{folder.path} must have one dataset_<name>.json, got {len(matches)}.")
    where = folder.path / matches[0][0]
    entries: dict[str, list[Any]] = {}
    with reading(where):
        for entry in json.loads(folder.read_text(where.name))["images"]:
            entries.setdefault(entry["split"], []).append(entry)
    read = functools.partial(_karpathy, folder, matches[0])
    return {split: functools.partial(read, own) for split, own in entries.items()}


def _karpathy(folder: Folder, match: re.Match[str], entries: Sequence[Any]) -> Samples:
    where = folder.path / match[0]
    captions: dict[str, Any] = {}
    with reading(where):
        for entry in entries:
            name, inside = entry["filename"], entry.get("filepath", "")
            # The folders in which people keep the pictures.
            places = (inside, f"images/{inside}", "images", f"{match[1]}_images", "")
            paths = [posixpath.join(place, name) for place in places]
            path = next(filter(folder.holds, paths), paths[-1])
            key = folder.locate(f"{where}: filename (looked for in {', '.join(places)})", path)
            texts = [check_text(f"{where}: raw of {key}", s["raw"]) for s in entry["sentences"]]
            captions.setdefault(key, []).extend(texts)
    return _of_files(folder, captions)


def arrow_files(folder: Folder) -> dict[str, list[str]]:
    """The Parquet and Arrow files of a folder and its folder ``data``, by split."""
    names = [*folder.listing().files, *(f"data/{name}" for name in folder.listing("data").files)]
    files: dict[str, list[str]] = {}
    for match in filter(None, map(ARROW.fullmatch, names)):
        files.setdefault(match[1], []).append(os.path.join(folder.root, match[0]))
    return files


def read_datasets(folder: Folder) -> Splits:
    """Parquet or Arrow files of ``train`` and ``test``, a saved ``DatasetDict``, or ``hf:NAME``"""
    library, files = require("datasets", "data"), arrow_files(folder)
    with reading(f"{folder.path} (with the datasets library)"):
        if folder.on_hub:
            data = library.load_dataset(folder.root, folder.configuration or None)
        elif folder.holds(SAVED):
            data = library.load_from_disk(folder.root)
        else:
            arrow = all(name.endswith(".arrow") for names in files.values() for name in names)
            data = library.load_dataset("arrow" if arrow else "parquet", data_files=files)
    return {split: functools.partial(_dataset, folder, split, data[split]) for split in data}


def _dataset(folder: Folder, split: str, data: Any) -> Samples:
    library, where = require("datasets", "data"), f"{folder.path}: {split}"
    image, label, caption = (
        next((name for name in names if name in data.column_names), None)
        for names in (IMAGES, LABELS, CAPTIONS)
    )
    column = label or caption
    if image is None or column is None:
        raise IngestError(
            f"{where} must have a column of pictures ({', '.join(IMAGES)}) and one of labels or "
            f"captions ({', '.join(LABELS + CAPTIONS)}), got {first_few(data.column_names, 20)}."
        )
    encoded = data.select_columns([image])
    if isinstance(data.features[image], library.Image):
        encoded = encoded.cast_column(image, library.Image(decode=False))

    def load(row: int) -> bytes:
        value = encoded[row][image]
        value = value if isinstance(value, dict) else {"bytes": value, "path": None}
        if value["bytes"] is None and value["path"] and folder.on_hub:
            return Path(value["path"]).read_bytes()  # in the library's cache
        if not isinstance(value["bytes"], bytes):
            raise IngestError(f"{where}: picture {row} is not in the data set.")
        return value["bytes"]

    pictures = Pictures([f"{split}/{row:09d}" for row in range(len(data))], load)
    values, names = list(data[column]), getattr(data.features[column], "names", None)
    if label is None:
        return Samples(pictures, [_texts(f"{where}: {column}", value) for value in values])
    if names is None:
        return Samples(pictures, list(map(str, values)))
    if min(values, default=0) < 0:
        raise IngestError(f"{where} has pictures without a label; take another split.")
    return Samples(pictures, [names[value] for value in values], tuple(names))


def tfds_version(folder: Folder) -> str | None:
    """The folder of the newest version of a data set of TensorFlow Datasets, if there is one."""
    versions = ["", *folder.listing().folders]
    prepared = [name for name in versions if TFDS_INFO in folder.listing(name).files]
    return prepared[-1] if prepared else None


def read_tfds(folder: Folder) -> Splits:
    """A data set prepared by TensorFlow Datasets with file_format='array_record'"""
    # The paper's splits, such as tfds cifar10: train[:90%], are parts in the order of the prepared
    # data. It is kept, so the pictures of a part are the library's. TensorFlow is not needed.
    library = require("tensorflow_datasets", "tfds")
    path = os.path.join(folder.root, tfds_version(folder) or "")
    with reading(path):
        builder = library.builder_from_directory(path)
        names = tuple(builder.info.features["label"].names)

    def read(split: str) -> Samples:
        with reading(f"{path} (to be prepared with file_format='array_record')"):
            decoders = {"image": library.decode.SkipDecoding()}
            source = builder.as_data_source(split, decoders=decoders)
            labels = [names[source[row]["label"]] for row in range(len(source))]
        keys = [f"{split}/{row:09d}" for row in range(len(source))]
        pictures = Pictures(keys, lambda row: source[row]["image"])
        return Samples(pictures, labels, names, in_order=True)

    return {split: functools.partial(read, split) for split in builder.info.splits}


def read_shards(folder: Folder) -> Splits:
    """``train/*.tar`` and ``test/*.tar``"""
    splits: dict[str, Callable[[], Samples]] = {}
    for split in folder.listing().folders:
        # Compressed tar files, too: they are refused when they are opened.
        shards = [name for name in folder.listing(split).files if ".tar" in name]
        if shards:
            splits[split] = functools.partial(_shards, folder, split, shards)
    return splits


def _shards(folder: Folder, split: str, shards: Sequence[str]) -> Samples:
    if folder.holds(f"{split}/nshards.txt"):
        stated = folder.read_text(f"{split}/nshards.txt").strip()
        if stated != str(len(shards)):
            where = folder.path / split / "nshards.txt"
            raise IngestError(
                f"{where} says {stated[:20]!r}, but there are {len(shards)} tar files."
            )
    keys: list[str] = []
    places: list[tuple[int, int, int]] = []
    texts: list[str | list[str]] = []
    paths = [os.path.join(folder.root, split, shard) for shard in shards]
    for number, shard in enumerate(shards):
        what = f"{folder.path / split / shard} (to be a tar file without compression)"
        with reading(what), tarfile.open(paths[number], "r:") as archive:
            for picture, text in _members(folder, archive):
                keys.append(f"{split}/{shard}/{picture.name}")
                places.append((number, picture.offset_data, picture.size))
                texts.append(text)
    table = np.array(places, np.int64)  # of a million pictures it is small

    def load(row: int) -> bytes:
        number, start, size = map(int, table[row])
        with open(paths[number], "rb") as file:
            file.seek(start)
            data = file.read(size)
        if len(data) != size:
            raise IngestError(f"{keys[row]} ends after {len(data)} of {size} bytes; truncated?")
        return data

    return Samples(Pictures(keys, load), texts)


def _members(
    folder: Folder, archive: tarfile.TarFile
) -> Iterator[tuple[tarfile.TarInfo, str | list[str]]]:
    """The pictures of an archive, sorted by name, each with its class or captions."""
    groups: dict[str, dict[str, tarfile.TarInfo]] = {}
    for member in _plain_files(archive):
        inside, name = posixpath.split(member.name)
        stem, _, suffix = name.partition(".")
        kind = "picture" if suffix.lower() in SUFFIXES else suffix.lower()
        if not stem or kind not in ("picture", *MEMBERS):
            folder.ignored += 1
        elif groups.setdefault(f"{inside}/{stem}", {}).setdefault(kind, member) is not member:
            raise IngestError(f"{archive.name!r}: {member.name} has the key of another member.")
    for key, group in sorted(groups.items()):
        kind = next((kind for kind in MEMBERS if kind in group), "")
        if not kind or "picture" not in group:
            has = f"{archive.name!r}: {key.lstrip('/')} has {first_few(sorted(group))}"
            raise IngestError(f"{has}, but needs a picture and .cls, .txt or .json.")
        at = f"{archive.name!r}: member {group[kind].name}"
        with reading(at):
            text = archive.extractfile(group[kind]).read().decode("utf-8-sig")  # type: ignore[union-attr]
            if kind == "cls":
                yield group["picture"], check_text(at, text)
                continue
            value = (
                json.loads(text) if kind == "json" else list(filter(str.strip, text.split("\n")))
            )
            if isinstance(value, dict):
                value = value.get("captions", value.get("caption"))
            yield group["picture"], _texts(at, value)


def _plain_files(archive: tarfile.TarFile) -> Iterator[tarfile.TarInfo]:
    """The files of an archive; refuses links, devices, and an archive that ends too early."""
    end = -1
    for member in archive:
        # A negative size would lead back forever.
        if not (member.isreg() or member.isdir()) or member.issparse() or archive.offset <= end:
            at = f"{archive.name!r}: member {member.name[:80]!a}"
            raise IngestError(f"{at} is a link or a special file, or leads backwards; remove it.")
        end = archive.offset
        if member.isreg():
            yield member
    # tarfile takes a damaged header for the end, where at least a block of zeros belongs.
    assert archive.fileobj is not None
    archive.fileobj.seek(archive.offset)
    rest = archive.fileobj.read(2**20)
    if len(rest) < 512 or rest.strip(b"\x00"):
        raise IngestError(
            f"{archive.name!r} is truncated, damaged, or several tar files, at {archive.offset}."
        )
