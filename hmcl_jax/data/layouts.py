"""Layouts of collections whose pictures are files: folders, tables, COCO, Karpathy."""

import abc
import csv
import io
import re
from collections import Counter
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

from hmcl_jax.data.collection import (
    IngestError,
    Pictures,
    Split,
    captioned,
    check_text,
    shown,
)
from hmcl_jax.data.folder import Folder, parse_json

WHOLE = re.compile(r"0|[1-9][0-9]{0,8}")


class Layout(abc.ABC):
    """A way in which a collection lies on disk.

    Attributes:
      folder: of the collection.
      stated: class names that the collection states, or None.
      splits: names of what may be read; known from listings alone.
      kind: ``"classification"`` or ``"retrieval"``, known after `prepare`.
      classes: known after `prepare`.
      ignored: numbers of files and folders that are no part of the collection; None if unknown.
    """

    folder: Folder
    stated: tuple[str, ...] | None
    splits: tuple[str, ...]
    kind: str = "retrieval"
    classes: tuple[str, ...] = ()
    ignored: list[int] | None = None

    def __init__(self, folder: Folder, stated: tuple[str, ...] | None) -> None:
        self.folder, self.stated = folder, stated
        self.splits = self.find_splits()

    @abc.abstractmethod
    def find_splits(self) -> tuple[str, ...]:
        """Names of the splits, from listings alone."""

    @abc.abstractmethod
    def prepare(self, training: str) -> None:
        """Finds out the kind and the classes from the split that is trained on."""

    @abc.abstractmethod
    def read(self, split: str) -> Split:
        """The pictures of a split with their labels or captions."""

    def pictures(self, found: Sequence[tuple[str, str]]) -> Pictures:
        """The sequence of the pictures `found`, as (folder, name)."""
        places = sorted({place for place, _ in found})
        rows = {place: row for row, place in enumerate(places)}
        place = np.fromiter((rows[place] for place, _ in found), np.int32, len(found))
        return Pictures(self.folder.root, places, place, [name for _, name in found])

    def captioned(self, where: str, captions: dict[tuple[str, str], list[str]]) -> Split:
        """A split from the captions of each picture; refuses pictures without any."""
        found = sorted(captions)
        for place, name in found:
            if not captions[place, name]:
                raise IngestError(
                    f"{where}: picture {place}/{name} has no caption; add or drop it."
                )
        if not found:
            raise IngestError(f"{where} names no picture.")
        return captioned(self.pictures(found), [captions[key] for key in found])


class Folders(Layout):
    """``train/<class>/*.jpg``, and the same classes in ``test/``."""

    kind = "classification"

    def find_splits(self) -> tuple[str, ...]:
        self.ignored = [0, 0]
        return self.folder.listing().folders

    def prepare(self, training: str) -> None:
        listing = self.folder.listing(training)
        self.folder.refuse_links(training, listing.bad)
        self.names = listing.folders
        if not self.names:
            raise IngestError(
                f"{self.folder.path / training} must hold a folder of pictures for each class, "
                f"{self.folder.no_pictures(training)}."
            )
        derived = tuple(
            check_text(f"{self.folder.path / training}: class folder", name.replace("_", " "))
            for name in self.names
        )
        if self.stated is None and len(set(derived)) < len(derived):
            twice = next(name for name in derived if derived.count(name) > 1)
            raise IngestError(
                f"{self.folder.path / training}: two class folders are named {twice!r}; rename one "
                "or state the names in classnames.txt."
            )
        if self.stated is not None and len(self.stated) != len(derived):
            raise IngestError(
                f"{self.folder.path}: {len(self.stated)} class names are stated, but {training} "
                f"has {len(derived)} class folders; there must be one name for each, in the order "
                "of the sorted folders."
            )
        self.classes = self.stated or derived

    def read(self, split: str) -> Split:
        listing = self.folder.listing(split)
        self.folder.refuse_links(split, self.names)
        if listing.folders != self.names:
            missing = sorted(set(self.names) - set(listing.folders))
            more = sorted(set(listing.folders) - set(self.names))
            raise IngestError(
                f"{self.folder.path / split} must have the same {len(self.names)} class folders as "
                f"the training split, got {len(listing.folders)}; missing: "
                f"{shown(missing) or 'none'}; not known: {shown(more) or 'none'}."
            )
        self._ignore(listing.hidden + len(listing.files))
        names: list[str] = []
        counts = []
        for name in self.names:
            inside = f"{split}/{name}"
            own = self.folder.pictures(inside)
            within = self.folder.listing(inside)
            self._ignore(within.hidden + len(within.files) - len(own), len(within.folders))
            names.extend(own)
            counts.append(len(own))
        if not names:
            raise IngestError(
                f"{self.folder.path / split} has no picture in its class folders; in the first, "
                f"{self.folder.no_pictures(f'{split}/{self.names[0]}')}."
            )
        labels = np.repeat(np.arange(len(counts), dtype=np.int32), counts)
        places = [f"{split}/{name}" for name in self.names]
        return Split(Pictures(self.folder.root, places, labels, names), labels)

    def _ignore(self, files: int, folders: int = 0) -> None:
        if self.ignored is not None:
            self.ignored[0] += files
            self.ignored[1] += folders


class Table(Layout):
    """``train.csv`` or ``train.jsonl`` with columns image and caption, or image and label."""

    def find_splits(self) -> tuple[str, ...]:
        self.files: dict[str, str] = {}
        for name in self.folder.listing().files:
            stem, _, suffix = name.rpartition(".")
            if suffix in ("csv", "jsonl") and stem:
                if stem in self.files:
                    raise IngestError(
                        f"{self.folder.path} has both {self.files[stem]} and {name}; remove one."
                    )
                self.files[stem] = name
        self._tables: dict[str, tuple[str, list[tuple[int, str, Any]]]] = {}
        return tuple(self.files)

    def prepare(self, training: str) -> None:
        column, rows = self._table(training)
        if column == "caption":
            return
        self.kind = "classification"
        labels = [self._label(training, line, value) for line, _, value in rows]
        found = set(labels)
        numbers = all(WHOLE.fullmatch(label) for label in found)
        self.classes = self.stated or tuple(sorted(found, key=int if numbers else None))
        # A label is a class name. Only if not all are, and all are numbers, is it a row of them.
        self.by_row = not found <= set(self.classes) and numbers
        twice = {name for name, times in Counter(self.classes).items() if times > 1}
        self.rows = {name: i for i, name in enumerate(self.classes) if name not in twice}

    def read(self, split: str) -> Split:
        column, rows = self._table(split)
        where = f"{self.folder.path / self.files[split]}"
        if (column == "label") != (self.kind == "classification"):
            raise IngestError(f"{where} has the column {column}, but the training table has not.")
        captions: dict[tuple[str, str], list[str]] = {}
        labels: dict[tuple[str, str], tuple[int, int]] = {}
        for line, image, value in rows:
            found = self.folder.locate(f"{where} line {line}: image", image)
            if column == "label":
                if found in labels:
                    raise IngestError(
                        f"{where} line {line}: image {image!r} has a label in line "
                        f"{labels[found][1]} already; drop one."
                    )
                labels[found] = self._class(split, line, value), line
            else:
                own = value if isinstance(value, list) else [value]
                texts = [check_text(f"{where} line {line}: caption", text) for text in own]
                captions.setdefault(found, []).extend(texts)
        if column == "caption":
            return self.captioned(where, captions)
        order = sorted(labels)
        return Split(self.pictures(order), np.array([labels[key][0] for key in order], np.int32))

    def _label(self, split: str, line: int, value: Any) -> str:
        if isinstance(value, int) and not isinstance(value, bool):
            value = str(value) if abs(value) < 10**9 else "beyond all classes"
        return check_text(f"{self.folder.path / self.files[split]} line {line}: label", value)

    def _class(self, split: str, line: int, value: Any) -> int:
        label = self._label(split, line, value)
        where = f"{self.folder.path / self.files[split]} line {line}: label {label[:60]!r}"
        if self.by_row:
            if not WHOLE.fullmatch(label) or int(label) >= len(self.classes):
                raise IngestError(f"{where} must be a row of the {len(self.classes)} classes.")
            return int(label)
        if label not in self.rows:
            times = self.classes.count(label)
            raise IngestError(
                f"{where} must be the name of one class, but {times} of the {len(self.classes)} "
                f"classes ({shown(self.classes)}) have it."
            )
        return self.rows[label]

    def _table(self, split: str) -> tuple[str, list[tuple[int, str, Any]]]:
        """Name of the second column, and (line, image, value) of each row."""
        if split not in self._tables:
            file = self.files[split]
            where = f"{self.folder.path / file}"
            text = self.folder.read_text(file)
            entries = (_csv if file.endswith(".csv") else _jsonl)(where, text)
            column, rows = "", []
            for line, entry in entries:
                columns = [name for name in ("caption", "label") if name in entry]
                if (
                    "image" not in entry
                    or len(columns) != 1
                    or columns[0] != (column or columns[0])
                ):
                    raise IngestError(
                        f"{where} line {line} must have the columns image and caption, or image "
                        f"and label, the same in all lines; got {shown([*entry]) or 'none'}."
                    )
                column = columns[0]
                rows.append((line, entry["image"], entry[column]))
            if not rows:
                raise IngestError(f"{where} has no rows.")
            self._tables[split] = column, rows
        return self._tables[split]


def _csv(where: str, text: str) -> Iterator[tuple[int, dict[str, Any]]]:
    reader = csv.reader(io.StringIO(text, newline=""), strict=True)
    header: list[str] | None = None
    try:
        for fields in reader:
            if not fields:
                continue
            if header is None:
                header = [name.strip() for name in fields]
                if len(set(header)) < len(header):
                    raise IngestError(f"{where} names a column twice: {shown(header)}.")
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


def _entries(where: str, data: Any, key: str) -> list[dict[str, Any]]:
    """A list of objects in a JSON object."""
    found = data.get(key) if isinstance(data, dict) else None
    if not isinstance(found, list) or not all(isinstance(entry, dict) for entry in found):
        raise IngestError(f"{where} must have a list {key!r} of objects.")
    return found


class Coco(Layout):
    """``annotations/captions_train2017.json`` with ``train2017/``, and the same for ``val``."""

    FILE = re.compile(r"captions_([a-z]+)([0-9]{4})\.json")

    def find_splits(self) -> tuple[str, ...]:
        self.years: dict[str, str] = {}
        for name in self.folder.listing("annotations").files:
            if match := self.FILE.fullmatch(name):
                split, year = match.groups()
                if split in self.years:
                    raise IngestError(
                        f"{self.folder.path / 'annotations'} has captions of {split} of "
                        f"{self.years[split]} and {year}; keep one."
                    )
                self.years[split] = year
        return tuple(self.years)

    def prepare(self, training: str) -> None:
        pass

    def read(self, split: str) -> Split:
        inside = f"annotations/captions_{split}{self.years[split]}.json"
        where = f"{self.folder.path / inside}"
        data = self.folder.read_json(inside)
        found: dict[Any, tuple[str, str]] = {}
        for number, entry in enumerate(_entries(where, data, "images")):
            own, name = entry.get("id"), entry.get("file_name")
            at = f"{where}: images[{number}]"
            if not isinstance(own, int | str) or own in found:
                raise IngestError(f"{at} must have an id of its own, got {str(own)[:40]!r}.")
            path = f"{split}{self.years[split]}/{name}" if isinstance(name, str) else None
            found[own] = self.folder.locate(f"{at} file_name", path)
        captions: dict[tuple[str, str], list[str]] = {key: [] for key in found.values()}
        if len(captions) < len(found):
            raise IngestError(f"{where} names a picture twice in images.")
        for number, entry in enumerate(_entries(where, data, "annotations")):
            own, at = entry.get("image_id"), f"{where}: annotations[{number}]"
            if not isinstance(own, int | str) or own not in found:
                raise IngestError(f"{at} has the unknown image_id {str(own)[:40]!r}.")
            captions[found[own]].append(check_text(f"{at} caption", entry.get("caption")))
        return self.captioned(where, captions)


class Karpathy(Layout):
    """``dataset_<name>.json`` with all splits, and pictures in ``images/`` or beside it."""

    FILE = re.compile(r"dataset_(.+)\.json")

    def find_splits(self) -> tuple[str, ...]:
        files = [name for name in self.folder.listing().files if self.FILE.fullmatch(name)]
        if len(files) != 1:
            raise IngestError(
                f"{self.folder.path} must have one dataset_<name>.json, got {len(files)}: "
                f"{shown(files) or 'none'}."
            )
        self.where = f"{self.folder.path / files[0]}"
        match = self.FILE.fullmatch(files[0])
        self.name = match.group(1) if match else ""
        self.entries: dict[str, list[tuple[int, dict[str, Any]]]] = {}
        data = self.folder.read_json(files[0])
        for number, entry in enumerate(_entries(self.where, data, "images")):
            split = check_text(f"{self.where}: images[{number}].split", entry.get("split"))
            self.entries.setdefault(split, []).append((number, entry))
        return tuple(sorted(self.entries))

    def prepare(self, training: str) -> None:
        pass

    def read(self, split: str) -> Split:
        captions: dict[tuple[str, str], list[str]] = {}
        for number, entry in self.entries[split]:
            at = f"{self.where}: images[{number}]"
            found = self._locate(at, entry.get("filename"), entry.get("filepath", ""))
            if found in captions:
                raise IngestError(f"{at} names {'/'.join(found)}, which an earlier one names too.")
            captions[found] = [
                check_text(f"{at}.sentences[{i}].raw", sentence.get("raw"))
                for i, sentence in enumerate(_entries(at, entry, "sentences"))
            ]
        return self.captioned(self.where, captions)

    def _locate(self, at: str, name: Any, path: Any) -> tuple[str, str]:
        """The first folder that holds the picture, of those that people keep them in."""
        if not isinstance(name, str) or not isinstance(path, str):
            raise IngestError(f"{at} must have a filename, got {str(name)[:40]!r}.")
        places = [path, f"images/{path}"] if path else []
        places += ["images", f"{self.name}_images", ""]
        for place in places:
            inside, _, last = f"{place}/{name}".strip("/").rpartition("/")
            if self.folder.holds(inside, last):
                return self.folder.locate(at, f"{place}/{name}" if place else name)
        tried = ", ".join(f"{place}/" if place else "the collection's folder" for place in places)
        return self.folder.locate(f"{at}: filename (looked for in {tried[:200]})", name)
