"""Reads collections of pictures as they are published: one small reader for each layout.

A reader knows the names of its splits from listings alone, and reads a split to `Samples`: pictures
in the order of their keys, each with the label that is written for it, or with its captions.
:mod:`hmcl_jax.data.image_datasets` makes the rest. No picture is opened before it is used.

Image folders and tables are read here, not with the ``datasets`` library. It takes 600 times as
long for the listing of a folder, copies it to a cache in the home folder, follows links anywhere,
and changes texts in a CSV file: the label ``001`` becomes 1, and ``None`` becomes a missing value.
The library reads Parquet and Arrow files and the data sets of its hub.
"""

import abc
import csv
import dataclasses
import io
import os
import re
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np

from hmcl_jax.data.errors import IngestError
from hmcl_jax.data.folder import Folder, check_text, first_few, parse_json

LARGEST_PICTURE = 256 * 2**20


@dataclasses.dataclass(frozen=True)
class Picture:
    """One picture: a file, or a part of a tar file.

    Attributes:
      key: unique in its collection.
      file: of its bytes.
      start: of the picture in the file.
      size: in bytes; None for the whole file.
    """

    key: str
    file: str
    start: int = 0
    size: int | None = None

    def read(self) -> bytes:
        """The encoded picture.

        Raises:
          IngestError: if the file is gone, too short or larger than 256 MiB.
        """
        try:
            with open(self.file, "rb") as file:
                size = os.fstat(file.fileno()).st_size if self.size is None else self.size
                if size > LARGEST_PICTURE:
                    raise IngestError(
                        f"Picture {self.key} has {size} bytes, more than {LARGEST_PICTURE}."
                    )
                file.seek(self.start)
                data = file.read(size)
        except OSError as error:
            raise IngestError(
                f"Picture {self.key} cannot be read: {error.strerror}; has it been moved since the "
                "collection was opened?"
            ) from error
        if len(data) != size:
            raise IngestError(
                f"Picture {self.key} ends after {len(data)} of {size} bytes; is its file truncated?"
            )
        return data


class Pictures(Sequence[Any]):
    """The pictures of a split, each made when it is accessed: a million cost only their names.

    Attributes:
      root: the collection's folder.
      keys: paths below it; in a tar file its path and the member's name.
      ranges: start and size in the tar file, shape (n, 2); None for pictures that are files.
    """

    def __init__(self, root: str, keys: Sequence[str], ranges: np.ndarray | None = None) -> None:
        self.root, self.keys, self.ranges = root, keys, ranges

    def __len__(self) -> int:
        return len(self.keys)

    def __getitem__(self, row: Any) -> Any:
        key = self.keys[row]
        if self.ranges is None:
            return Picture(key, os.path.join(self.root, key))
        tar = "/".join(key.split("/")[:2])
        return Picture(key, os.path.join(self.root, tar), *map(int, self.ranges[row]))


class Samples(NamedTuple):
    """The content of a split.

    Attributes:
      pictures: in the order of their keys.
      labels: the label of each picture as it is written; None if there are captions.
      captions: the captions of each picture; None if there are labels.
    """

    pictures: Sequence[Any]
    labels: list[str] | None = None
    captions: list[list[str]] | None = None


class Reader(abc.ABC):
    """Reads one layout.

    Attributes:
      folder: of the collection.
      splits: names of the splits.
      ignored: numbers of files and of folders that do not belong to the layout, or None.
      class_order: the names of all classes in order, if the layout has such a list.
      in_order: whether ``train[:90%]`` is the first part of the split, not a random one.
    """

    splits: Sequence[str]
    ignored: list[int] | None = None
    class_order: tuple[str, ...] | None = None
    in_order: bool = False

    def __init__(self, folder: Folder) -> None:
        self.folder = folder

    @abc.abstractmethod
    def read(self, split: str) -> Samples:
        """Reads a split; the training split is read first."""

    def _captioned(self, where: str, captions: dict[str, list[str]]) -> Samples:
        """Samples from the captions of each path."""
        keys = sorted(captions, key=_folder_and_name)
        if not keys:
            raise IngestError(f"{where} names no picture.")
        bare = next((key for key in keys if not captions[key]), None)
        if bare is not None:
            raise IngestError(f"{where}: picture {bare} has no caption; add or drop it.")
        pictures = Pictures(self.folder.root, keys)
        return Samples(pictures, captions=[captions[key] for key in keys])


def _folder_and_name(key: str) -> tuple[str, str]:
    folder, _, name = key.rpartition("/")
    return folder, name


class Folders(Reader):
    """``train/<class>/*.jpg``, and the same classes in ``test/``."""

    def __init__(self, folder: Folder) -> None:
        super().__init__(folder)
        self.splits, self.ignored = list(folder.listing().folders), [0, 0]

    def read(self, split: str) -> Samples:
        where, listing = self.folder.path / split, self.folder.listing(split)
        self.folder.refuse_links(split)
        names = tuple(listing.folders)
        if self.class_order is None:
            self.class_order = names
        if names != self.class_order or not names:
            missing, extra = set(self.class_order) - set(names), set(names) - set(self.class_order)
            raise IngestError(
                f"{where} must hold a folder of pictures for each class, the same in all splits; "
                f"missing: {first_few(sorted(missing))}; not known: {first_few(sorted(extra))}; "
                f"its files: {first_few(listing.files)}."
            )
        self._ignore(listing.hidden + len(listing.files), 0)
        keys: list[str] = []
        labels: list[str] = []
        for name in names:
            inside = f"{split}/{name}"
            own, within = self.folder.pictures(inside), self.folder.listing(inside)
            self._ignore(within.hidden + len(within.files) - len(own), len(within.folders))
            keys += [f"{inside}/{file}" for file in own]
            labels += [name] * len(own)
        if not keys:
            raise IngestError(
                f"{where} has no picture in its class folders; the first holds the files "
                f"{first_few(self.folder.listing(f'{split}/{names[0]}').files)}."
            )
        return Samples(Pictures(self.folder.root, keys), labels)

    def _ignore(self, files: int, folders: int) -> None:
        assert self.ignored is not None
        self.ignored = [self.ignored[0] + files, self.ignored[1] + folders]


class Table(Reader):
    """``train.csv`` or ``train.jsonl`` with columns image and caption, or image and label."""

    def __init__(self, folder: Folder) -> None:
        super().__init__(folder)
        self.files: dict[str, str] = {}
        for name in folder.listing().files:
            stem, _, suffix = name.rpartition(".")
            if suffix in ("csv", "jsonl") and stem:
                other = self.files.setdefault(stem, name)
                if other != name:
                    raise IngestError(f"{folder.path} has both {other} and {name}; remove one.")
        self.splits = list(self.files)

    def read(self, split: str) -> Samples:
        file = self.files[split]
        where = f"{self.folder.path / file}"
        entries = (_csv if file.endswith(".csv") else _jsonl)(where, self.folder.read_text(file))
        column = ""
        values: dict[str, list[str]] = {}
        for line, entry in entries:
            at = f"{where} line {line}"
            columns = [name for name in ("caption", "label") if name in entry]
            column = column or "".join(columns)
            if "image" not in entry or columns != [column]:
                raise IngestError(
                    f"{at} must have the columns image and caption, or image and label, the same "
                    f"in all lines; got {first_few(entry)}."
                )
            picture, value = self.folder.locate(f"{at}: image", entry["image"]), entry[column]
            own = values.setdefault(picture, [])
            if column == "label":
                if own:
                    raise IngestError(f"{at}: image {picture} has a label already; drop one.")
                number = isinstance(value, int) and not isinstance(value, bool)
                own.append(str(value) if number and abs(value) < 10**9 else value)
                check_text(f"{at}: label", own[0])
            else:
                texts = value if isinstance(value, list) else [value]
                own += [check_text(f"{at}: caption", text) for text in texts]
        if not values:
            raise IngestError(f"{where} has no rows.")
        if column == "caption":
            return self._captioned(where, values)
        keys = sorted(values, key=_folder_and_name)
        return Samples(Pictures(self.folder.root, keys), [values[key][0].strip() for key in keys])


def _csv(where: str, text: str) -> Iterator[tuple[int, dict[str, Any]]]:
    reader = csv.reader(io.StringIO(text, newline=""), strict=True)
    header: list[str] = []
    try:
        for fields in filter(None, reader):
            if not header:
                header = [name.strip() for name in fields]
                if len(set(header)) < len(header):
                    raise IngestError(f"{where} names a column twice: {first_few(header)}.")
            elif len(fields) != len(header):
                raise IngestError(
                    f"{where} line {reader.line_num} has {len(fields)} fields instead of "
                    f"{len(header)}; put a text with commas in quotes."
                )
            else:
                yield reader.line_num, dict(zip(header, fields, strict=True))
    except csv.Error as error:
        raise IngestError(f"{where} line {reader.line_num} is not CSV: {error}.") from None


def _jsonl(where: str, text: str) -> Iterator[tuple[int, dict[str, Any]]]:
    for number, line in enumerate(text.split("\n"), 1):
        if line.strip():
            entry = parse_json(f"{where} line {number}", line)
            if not isinstance(entry, dict):
                raise IngestError(f"{where} line {number} must be an object, got {line[:40]!r}.")
            yield number, entry


def _objects(where: str, data: Any, key: str) -> list[tuple[str, dict[str, Any]]]:
    """A list of objects in a JSON object, each with its place for messages."""
    entries = data.get(key) if isinstance(data, dict) else None
    if not isinstance(entries, list) or not all(isinstance(entry, dict) for entry in entries):
        raise IngestError(f"{where} must have a list {key!r} of objects.")
    return [(f"{where}: {key}[{number}]", entry) for number, entry in enumerate(entries)]


class Coco(Reader):
    """``annotations/captions_train2017.json`` with ``train2017/``, and the same for ``val``."""

    FILE = re.compile(r"captions_([a-z]+)([0-9]{4})\.json")

    def __init__(self, folder: Folder) -> None:
        super().__init__(folder)
        self.years: dict[str, str] = {}
        for match in filter(None, map(self.FILE.fullmatch, folder.listing("annotations").files)):
            split, year = match.groups()
            other = self.years.setdefault(split, year)
            if other != year:
                raise IngestError(
                    f"{folder.path / 'annotations'} has captions of {split} of {other} and {year}; "
                    "keep one."
                )
        self.splits = list(self.years)

    def read(self, split: str) -> Samples:
        year = self.years[split]
        inside = f"annotations/captions_{split}{year}.json"
        where = f"{self.folder.path / inside}"
        data = parse_json(where, self.folder.read_text(inside))
        keys: dict[Any, str] = {}
        for at, entry in _objects(where, data, "images"):
            number, name = entry.get("id"), entry.get("file_name")
            if not isinstance(number, int | str) or number in keys:
                raise IngestError(f"{at} must have an id of its own, got {str(number)[:40]!r}.")
            path = f"{split}{year}/{name}" if isinstance(name, str) else None
            keys[number] = self.folder.locate(f"{at} file_name", path)
        captions: dict[str, list[str]] = {key: [] for key in keys.values()}
        if len(captions) < len(keys):
            raise IngestError(f"{where} names a picture twice in images.")
        for at, entry in _objects(where, data, "annotations"):
            number = entry.get("image_id")
            if not isinstance(number, int | str) or number not in keys:
                raise IngestError(f"{at} has the unknown image_id {str(number)[:40]!r}.")
            captions[keys[number]].append(check_text(f"{at} caption", entry.get("caption")))
        return self._captioned(where, captions)


class Karpathy(Reader):
    """``dataset_<name>.json`` with all splits, and pictures in ``images/`` or beside it."""

    FILE = re.compile(r"dataset_(?!dict\.)(.+)\.json")  # dataset_dict.json is a saved data set

    def __init__(self, folder: Folder) -> None:
        super().__init__(folder)
        matches = [*filter(None, map(self.FILE.fullmatch, folder.listing().files))]
        if len(matches) != 1:
            raise IngestError(
                f"{folder.path} must have one dataset_<name>.json, got {len(matches)}: "
                f"{first_few([match[0] for match in matches])}."
            )
        file, self.name = matches[0][0], matches[0][1]
        self.where = f"{folder.path / file}"
        self.entries: dict[str, list[tuple[str, dict[str, Any]]]] = {}
        data = parse_json(self.where, folder.read_text(file))
        for at, entry in _objects(self.where, data, "images"):
            split = check_text(f"{at}.split", entry.get("split"))
            self.entries.setdefault(split, []).append((at, entry))
        self.splits = sorted(self.entries)

    def read(self, split: str) -> Samples:
        captions: dict[str, list[str]] = {}
        for at, entry in self.entries[split]:
            key = self._locate(at, entry.get("filename"), entry.get("filepath", ""))
            if key in captions:
                raise IngestError(f"{at} names {key}, which an earlier one names too.")
            captions[key] = [
                check_text(f"{place}.raw", sentence.get("raw"))
                for place, sentence in _objects(at, entry, "sentences")
            ]
        return self._captioned(self.where, captions)

    def _locate(self, at: str, name: Any, path: Any) -> str:
        """The first folder that holds the picture, of those in which people keep them."""
        if not isinstance(name, str) or not isinstance(path, str):
            raise IngestError(f"{at} must have a filename, got {str(name)[:40]!r}.")
        places = [f"{path}/", f"images/{path}/"] if path else []
        places += ["images/", f"{self.name}_images/", ""]
        for place in places:
            if self.folder.holds(f"{place}{name}"):
                return self.folder.locate(at, f"{place}{name}")
        tried = ", ".join(place or "the collection's folder" for place in places)[:200]
        return self.folder.locate(f"{at}: filename (looked for in {tried})", name)
