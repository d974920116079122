"""The training and the test side of a collection, from parts such as ``train[:90%]+restval``."""

import hashlib
import os
import re
from collections.abc import Mapping, Sequence

import numpy as np

from hmcl_jax.data.errors import IngestError
from hmcl_jax.data.folder import first_few
from hmcl_jax.data.readers import Samples, Splits

TESTS = ("test", "val", "validation", "valid")  # the first that exists is the test split
PART = re.compile(r"([\w.-]+)(?:\[([0-9]{1,10}%?)?:([0-9]{1,10}%?)?\])?")


def read_sides(where: str, splits: Splits, wanted: Mapping[str, str]) -> dict[str, Samples]:
    """Reads the parts of both sides; refuses empty parts and pictures in both sides.

    Args:
      where: the collection, for messages.
      splits: of one of the readers.
      wanted: by side, such as ``{"train": "train[:90%]+restval", "test": "test"}``.
    """
    samples: dict[str, Samples] = {}
    taken: dict[str, np.ndarray] = {}
    sides = {}
    for side, text in wanted.items():
        pieces = []
        for piece in text.split("+"):
            match = PART.fullmatch(piece.strip())
            if match is None:
                raise IngestError(
                    f"{where}: splits[{side!r}] must be like 'train', 'train[:90%]' or "
                    f"'train+restval', got {text[:80]!r}."
                )
            split = _find(where, match[1], splits)
            if split not in samples:
                samples[split] = splits[split]()
                taken[split] = np.zeros(len(samples[split].texts), bool)
            rows = _rows(f"{where}: {piece}", samples[split], match[2], match[3])
            if taken[split][rows].any():
                raise IngestError(
                    f"{where}: splits share pictures of {split}, got {wanted}; take different "
                    "parts of it."
                )
            taken[split][rows] = True
            pieces.append(_take(samples[split], rows))
        sides[side] = _join(where, pieces)
    return sides


def _find(where: str, name: str, splits: Splits) -> str:
    """The collection's own name of a split."""
    others = TESTS if name == "test" else TESTS[1:] if name in TESTS else ()
    for other in (name, *others):
        if other in splits:
            return other
    raise IngestError(
        f"{where}: there is no {name} split; there are {first_few(splits)}. Name another with "
        "splits=... or in collection.toml."
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
    keys = (os.fsencode(key) for key in samples.pictures.keys)  # type: ignore[attr-defined]
    drawn = sorted((hashlib.sha256(key).digest(), row) for row, key in enumerate(keys))
    return np.array(sorted(row for _, row in drawn[first:last]))


def _take(samples: Samples, rows: np.ndarray) -> Samples:
    if len(rows) == len(samples.texts):
        return samples
    pictures = samples.pictures.take(rows)  # type: ignore[attr-defined]
    return samples._replace(pictures=pictures, texts=[samples.texts[row] for row in rows])


def _join(where: str, parts: Sequence[Samples]) -> Samples:
    if len(parts) == 1:
        return parts[0]
    if len({part.classes for part in parts}) > 1:
        raise IngestError(f"{where}: splits that are joined must have the same classes.")
    pictures = [picture for part in parts for picture in part.pictures]
    return parts[0]._replace(pictures=pictures, texts=[t for part in parts for t in part.texts])
