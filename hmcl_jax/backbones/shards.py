"""Rows of features made in shards: each is on disk, whole and checked, before the next begins.

A shard is ``NNNNN.npy``, plain rows of features, and ``NNNNN.json``, which is written last: the
rows of the source that it holds, what was wrong with the others, and the SHA-256 of the features. A
shard without a valid pair of files counts as not made, so whatever a crash leaves is made anew.
"""

import dataclasses
import hashlib
import io
import json
from pathlib import Path
from typing import Any

import numpy as np

from hmcl_jax._files import file_sha256, write_whole


@dataclasses.dataclass(frozen=True)
class Shard:
    """A piece of a split.

    Attributes:
      features: ``(k, d)``.
      rows: of the source, ``(k,)``; fewer than were asked for if some were bad.
      bad: rows that could not be read, each with its key and the reason.
    """

    features: np.ndarray
    rows: np.ndarray
    bad: tuple[tuple[int, str, str], ...] = ()


class Shards:
    """The shards of one array of features.

    Args:
      folder: where they lie; made if it is not there.
      rows: of the source.
      size: rows of the source per shard.
    """

    def __init__(self, folder: Path, rows: int, size: int) -> None:
        self.folder, self.rows, self.size = folder, rows, size
        folder.mkdir(parents=True, exist_ok=True)

    def __len__(self) -> int:
        return -(-self.rows // self.size)

    def span(self, number: int) -> range:
        """Rows of the source that a shard is made of."""
        return range(number * self.size, min(self.rows, (number + 1) * self.size))

    def _files(self, number: int) -> tuple[Path, Path]:
        return tuple(self.folder / f"{number:05d}{end}" for end in (".npy", ".json"))  # type: ignore[return-value]

    def read(self, number: int) -> Shard | None:
        """A finished shard; None if it is to be made."""
        array, about = self._files(number)
        try:
            told: Any = json.loads(about.read_bytes())
            if file_sha256(array) != told["sha256"]:
                return None
            features = np.load(array, mmap_mode="r", allow_pickle=False)
            rows = np.asarray(told["rows"], np.int64)
            bad = tuple((int(row), str(key), str(reason)) for row, key, reason in told["bad"])
        except (OSError, ValueError, KeyError, TypeError):
            return None
        span = self.span(number)
        known = np.concatenate([rows, np.asarray([row for row, *_ in bad], np.int64)])
        if len(features) != len(rows) or not np.array_equal(np.sort(known), np.asarray(span)):
            return None
        return Shard(features, rows, bad)

    def write(self, number: int, shard: Shard) -> None:
        """Puts a shard on disk."""
        array, about = self._files(number)
        about.unlink(missing_ok=True)
        data = io.BytesIO()  # np.save to a file does not notice a full disk
        np.save(data, shard.features, allow_pickle=False)
        write_whole(array, data.getvalue())
        told = {
            "rows": shard.rows.tolist(),
            "bad": [list(entry) for entry in shard.bad],
            "sha256": hashlib.sha256(data.getvalue()).hexdigest(),
        }
        write_whole(about, json.dumps(told).encode())

    def whole(self) -> Shard:
        """All shards as one; every one must be finished."""
        shards = [self.read(number) for number in range(len(self))]
        missing = [number for number, shard in enumerate(shards) if shard is None]
        if missing:
            raise OSError(f"{self.folder}: shard {missing[0]} is not finished or damaged.")
        found = [shard for shard in shards if shard is not None]
        return Shard(
            np.concatenate([shard.features for shard in found]),
            np.concatenate([shard.rows for shard in found]),
            tuple(entry for shard in found for entry in shard.bad),
        )
