"""What a collection of pictures is: pictures that are read when asked for, labels or captions.

A collection has a training and a test split. A split's pictures are a sequence that keeps names,
not contents, so that a million of them cost no more than a listing of their folders. Rows are in
the order of the pictures' keys: the path below the collection's folder, for a picture in a tar file
the path of that file and the name in it.
"""

import dataclasses
import os
from collections.abc import Iterator, Mapping, Sequence
from typing import overload

import numpy as np

LARGEST_PICTURE = 256 * 2**20


class IngestError(ValueError):
    """A collection that cannot be read; the message names the file, what is wrong, what to do."""


def check_text(where: str, text: object) -> str:
    """The text without white space at its ends; refuses what is blank or cannot be encoded."""
    if not isinstance(text, str):
        raise IngestError(f"{where} must be a text, got {str(text)[:40]!r}.")
    text = text.strip()
    try:
        text.encode()
    except UnicodeEncodeError:
        raise IngestError(f"{where} is not valid Unicode: {text[:40]!a}.") from None
    if not text or "\x00" in text:
        raise IngestError(f"{where} must not be blank or hold a null, got {text[:40]!r}.")
    return text


def shown(names: Sequence[object], most: int = 5) -> str:
    """The first few names, and how many more there are."""
    listed = ", ".join(str(name)[:60] for name in names[:most])
    return listed + (f" and {len(names) - most} more" if len(names) > most else "")


@dataclasses.dataclass(frozen=True)
class Picture:
    """One picture: a file, or a part of a tar file.

    Attributes:
      key: unique in its collection.
      file: where its bytes lie.
      start: of the picture in the file.
      size: in bytes; None for the whole file.
    """

    key: str
    file: str
    start: int = 0
    size: int | None = None

    def read(self) -> bytes:
        """The encoded picture.

        Returns:
          Its bytes.

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


class Pictures(Sequence[Picture]):
    """The pictures of a split; each is made when it is asked for.

    Attributes:
      root: the collection's folder.
      places: folders or tar files below it.
      place: row of `places` of each picture, shape (n,).
      names: of the pictures in their places.
      ranges: start and size in the tar file, shape (n, 2); None for pictures that are files.
    """

    def __init__(
        self,
        root: str,
        places: Sequence[str],
        place: np.ndarray,
        names: Sequence[str],
        ranges: np.ndarray | None = None,
    ) -> None:
        self.root, self.places, self.names = root, tuple(places), names
        self.place, self.ranges = np.asarray(place, np.int32), ranges

    def __len__(self) -> int:
        return len(self.names)

    @overload
    def __getitem__(self, row: int) -> Picture: ...

    @overload
    def __getitem__(self, row: slice) -> "Pictures": ...

    def __getitem__(self, row: "int | slice") -> "Picture | Pictures":
        if isinstance(row, slice):
            return self.take(np.arange(len(self))[row])
        name = self.names[row]
        key = self.key(row)
        if self.ranges is None:
            return Picture(key, os.path.join(self.root, key))
        start, size = (int(number) for number in self.ranges[row])
        return Picture(key, os.path.join(self.root, key[: -len(name) - 1]), start, size)

    def key(self, row: int) -> str:
        """The key of a picture, without making it."""
        place = self.places[self.place[row]]
        return f"{place}/{self.names[row]}" if place else self.names[row]

    def keys(self) -> Iterator[str]:
        """The keys of all pictures."""
        return (self.key(row) for row in range(len(self)))

    def take(self, rows: np.ndarray) -> "Pictures":
        """Some of the pictures.

        Args:
          rows: of the pictures, in the order wanted.

        Returns:
          Their sequence.
        """
        names = [self.names[row] for row in rows]
        ranges = None if self.ranges is None else self.ranges[rows]
        return Pictures(self.root, self.places, self.place[rows], names, ranges)


@dataclasses.dataclass(frozen=True, eq=False)
class Split:
    """The training or the test part of a collection.

    Attributes:
      pictures: in the order of their keys.
      labels: class of each picture, int32 (n,); None for retrieval.
      captions: all of them; empty for classification.
      pairs: rows (picture, caption) that belong together, int32 (p, 2); None for classification.
    """

    pictures: Sequence[Picture]
    labels: np.ndarray | None = None
    captions: tuple[str, ...] = ()
    pairs: np.ndarray | None = None


def captioned(pictures: Pictures, captions: Sequence[Sequence[str]]) -> Split:
    """A split for retrieval.

    Args:
      pictures: of the split.
      captions: of each picture, at least one.

    Returns:
      The split.
    """
    counts = [len(own) for own in captions]
    rows = np.repeat(np.arange(len(captions), dtype=np.int32), counts)
    pairs = np.stack([rows, np.arange(len(rows), dtype=np.int32)], axis=1)
    return Split(pictures, None, tuple(text for own in captions for text in own), pairs)


def take_split(split: Split, rows: np.ndarray | None) -> Split:
    """Some of the pictures of a split, with their labels or captions.

    Args:
      split: to take from.
      rows: of the pictures, ascending; None for all.

    Returns:
      A split with these pictures.
    """
    if rows is None:
        return split
    pictures = split.pictures
    chosen = pictures.take(rows) if isinstance(pictures, Pictures) else [pictures[i] for i in rows]
    if split.pairs is None:
        return Split(chosen, None if split.labels is None else split.labels[rows])
    new_row = np.full(len(pictures), -1, np.int32)
    new_row[rows] = np.arange(len(rows), dtype=np.int32)
    kept = split.pairs[new_row[split.pairs[:, 0]] >= 0]
    used, caption = np.unique(kept[:, 1], return_inverse=True)
    pairs = np.stack([new_row[kept[:, 0]], caption.reshape(-1)], axis=1).astype(np.int32)
    return Split(chosen, None, tuple(split.captions[i] for i in used), pairs)


def join_splits(splits: Sequence[Split]) -> Split:
    """Several splits of one collection one after the other.

    Args:
      splits: at least one, all of one kind.

    Returns:
      One split.
    """
    if len(splits) == 1:
        return splits[0]
    pictures = [picture for split in splits for picture in split.pictures]
    if splits[0].pairs is None:
        labels = [split.labels for split in splits if split.labels is not None]
        return Split(pictures, np.concatenate(labels))
    pairs, first = [], np.zeros(2, np.int32)
    for split in splits:
        if split.pairs is not None:
            pairs.append(split.pairs + first)
            first = first + np.array([len(split.pictures), len(split.captions)], np.int32)
    captions = tuple(text for split in splits for text in split.captions)
    return Split(pictures, None, captions, np.concatenate(pairs))


@dataclasses.dataclass(frozen=True, eq=False)
class Collection:
    """Pictures with labels or captions, in a training and a test split.

    Attributes:
      name: of the task that the collection becomes.
      kind: ``"classification"`` or ``"retrieval"``.
      classes: class names in the order of the labels (empty for retrieval); a name may occur twice.
      prompts: templates in which ``{}`` stands for the class name (empty for retrieval).
      train: what is learned from.
      test: what is scored.
      fit: how pictures become square: ``"crop"`` or ``"squash"``.
      provenance: layout, splits, what was ignored, and what the collection says of itself.
    """

    name: str
    kind: str
    classes: tuple[str, ...]
    prompts: tuple[str, ...]
    train: Split
    test: Split
    fit: str
    provenance: Mapping[str, str]


def distinct_names(names: Sequence[str]) -> tuple[str, ...]:
    """Class names made distinct, as a store wants them; ImageNet has two kinds of missile.

    Args:
      names: of classes; some may be equal.

    Returns:
      The same names, the second, third, ... of equal ones numbered.

    Example:
      >>> from hmcl_jax.data.collection import distinct_names
      >>> distinct_names(("missile", "cat", "missile"))
      ('missile', 'cat', 'missile (2)')
    """
    taken, seen, found = set(names), dict.fromkeys(names, 0), []
    for name in names:
        seen[name] += 1
        number, new = seen[name], name
        while number > 1 and new in taken:
            new, number = f"{name} ({number})", number + 1
        taken.add(new)
        found.append(new)
    return tuple(found)
