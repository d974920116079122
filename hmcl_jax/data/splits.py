"""Splits of a collection, and parts of them such as ``train[:90%]+restval``."""

import dataclasses
import hashlib
import re
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from hmcl_jax.data.errors import IngestError
from hmcl_jax.data.folder import first_few
from hmcl_jax.data.readers import Pictures

TESTS = ("test", "val", "validation", "valid")  # the first that exists is the test split
SIDES = ("train", "test")
PART = re.compile(r"([\w.-]+)(?:\[([0-9]+%?)?:([0-9]+%?)?\])?")


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


class Part(NamedTuple):
    """A part of a split, such as ``train[:90%]``."""

    split: str
    start: str | None
    end: str | None


class Chosen(Sequence[Any]):
    """Some of the pictures of a sequence."""

    def __init__(self, pictures: Sequence[Any], rows: np.ndarray) -> None:
        self.pictures, self.rows = pictures, rows

    def __len__(self) -> int:
        return len(self.rows)

    def __getitem__(self, row: Any) -> Any:
        return self.pictures[int(self.rows[row])]


def parse_parts(where: str, side: str, text: str, splits: Sequence[str]) -> list[Part]:
    """The parts of ``"train[:90%]+restval"``, with the collection's own names of the splits."""
    parts = []
    for piece in str(text).split("+"):
        match = PART.fullmatch(piece.strip())
        if match is None:
            raise IngestError(
                f"{where}: splits[{side!r}] must be like 'train', 'train[:90%]' or "
                f"'train+restval', got {str(text)[:80]!r}."
            )
        name, start, end = match.groups()
        others = TESTS if name == "test" else TESTS[1:] if name in TESTS else ()
        split = next((other for other in (name, *others) if other in splits), None)
        if split is None:
            raise IngestError(
                f"{where}: there is no {name} split (for {side}); there are {first_few(splits)}. "
                "Name another with splits=... or in collection.toml."
            )
        parts.append(Part(split, start, end))
    return parts


def choose_parts(
    where: str, parts: Mapping[str, Sequence[Part]], whole: Mapping[str, Split], in_order: bool
) -> dict[str, Split]:
    """The joined parts of each side; refuses empty parts and pictures in both sides.

    Args:
      where: the collection, for messages.
      parts: of both sides.
      whole: the collection's splits, by name.
      in_order: whether parts are taken in order instead of randomly.
    """
    taken: dict[str, list[tuple[str, np.ndarray]]] = {}
    chosen = {}
    for side, own in parts.items():
        pieces = []
        for part in own:
            split = whole[part.split]
            rows = _rows(where, split, part, in_order)
            for other, before in taken.setdefault(part.split, []):
                if np.intersect1d(rows, before, assume_unique=True).size:
                    raise IngestError(
                        f"{where}: {side} and {other} share pictures of {part.split}; take "
                        "different parts of it."
                    )
            taken[part.split].append((side, rows))
            pieces.append(split if len(rows) == len(split.pictures) else take_split(split, rows))
        chosen[side] = join_splits(pieces)
    return chosen


def _rows(where: str, split: Split, part: Part, in_order: bool) -> np.ndarray:
    """The rows of a part, ascending."""
    count = len(split.pictures)
    if part.start is None and part.end is None:
        return np.arange(count)

    def bound(text: str | None, default: int) -> int:
        if text is None:
            return default
        number = int(text.rstrip("%")) if len(text) < 12 else count + 1
        if not text.endswith("%"):
            return number
        return (2 * number * count + 100) // 200 if number <= 100 else count + 1

    first, last = bound(part.start, 0), bound(part.end, count)
    if not 0 <= first < last <= count:
        raise IngestError(
            f"{where}: {part.split}[{part.start or ''}:{part.end or ''}] is rows {first} to "
            f"{last}, but {part.split} has {count} pictures."
        )
    if in_order:
        return np.arange(first, last)
    pictures = split.pictures
    keys = pictures.keys if isinstance(pictures, Pictures) else [p.key for p in pictures]
    drawn = sorted((hashlib.sha256(key.encode()).digest(), row) for row, key in enumerate(keys))
    return np.array(sorted(row for _, row in drawn[first:last]))


def take_split(split: Split, rows: np.ndarray) -> Split:
    """Some of the pictures of a split, given by ascending rows, with their labels or captions."""
    pictures = Chosen(split.pictures, rows)
    if split.pairs is None:
        return Split(pictures, None if split.labels is None else split.labels[rows])
    new_row = np.full(len(split.pictures), -1, np.int32)
    new_row[rows] = np.arange(len(rows), dtype=np.int32)
    pairs = split.pairs[new_row[split.pairs[:, 0]] >= 0]
    used, caption = np.unique(pairs[:, 1], return_inverse=True)
    pairs = np.stack([new_row[pairs[:, 0]], caption.reshape(-1)], axis=1).astype(np.int32)
    return Split(pictures, None, tuple(split.captions[i] for i in used), pairs)


def join_splits(splits: Sequence[Split]) -> Split:
    """Several splits of one kind one after the other."""
    if len(splits) == 1:
        return splits[0]
    pictures = [picture for split in splits for picture in split.pictures]
    labels = [split.labels for split in splits if split.labels is not None]
    if labels:
        return Split(pictures, np.concatenate(labels))
    pairs, first = [], np.zeros(2, np.int32)
    for split in splits:
        assert split.pairs is not None
        pairs.append(split.pairs + first)
        first = first + np.array([len(split.pictures), len(split.captions)], np.int32)
    captions = tuple(text for split in splits for text in split.captions)
    return Split(pictures, None, captions, np.concatenate(pairs))
