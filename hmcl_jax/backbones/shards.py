"""Rows of features in shards: each is on disk, with its checksum, before the next one is made.

A shard is ``NNNNN.npy``, rows of features, and ``NNNNN.json``, which is written last: the rows of
the source that it holds, the errors of the others, and the SHA-256 of the features. A shard without
a valid pair of files is made again, so a crash costs at most one shard.
"""

import hashlib
import io
import json
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np

from hmcl_jax._files import file_sha256, write_whole


class Shard(NamedTuple):
    """A piece of a split."""

    features: np.ndarray  # (k, d)
    rows: np.ndarray  # of the source, (k,); without the bad ones
    bad: tuple[tuple[int, str, str], ...] = ()  # row, key and reason of those not read


class Shards:
    """The shards of one array of features, of `size` rows of the source each."""

    def __init__(self, folder: Path, rows: int, size: int) -> None:
        self.folder, self.rows, self.size = folder, rows, size
        folder.mkdir(parents=True, exist_ok=True)

    def __len__(self) -> int:
        return -(-self.rows // self.size)

    def span(self, number: int) -> range:
        """The rows of the source in a shard."""
        return range(number * self.size, min(self.rows, (number + 1) * self.size))

    def _files(self, number: int) -> tuple[Path, Path]:
        return self.folder / f"{number:05d}.npy", self.folder / f"{number:05d}.json"

    def read(self, number: int) -> Shard | None:
        """A finished shard; None if it is missing or damaged."""
        array, note = self._files(number)
        try:
            saved = json.loads(note.read_bytes())
            if file_sha256(array) != saved["sha256"]:
                return None
            features = np.load(array, mmap_mode="r", allow_pickle=False)
            rows = np.asarray(saved["rows"], np.int64)
            bad = tuple((int(row), str(key), str(reason)) for row, key, reason in saved["bad"])
        except (OSError, ValueError, KeyError, TypeError):
            return None
        span = self.span(number)
        known = sorted([*rows.tolist(), *(row for row, *_ in bad)])
        if len(features) != len(rows) or known != [*span]:
            return None
        return Shard(features, rows, bad)

    def write(self, number: int, shard: Shard) -> None:
        """Writes a shard: its features first, so that the other file vouches for them."""
        array, note = self._files(number)
        note.unlink(missing_ok=True)
        data = io.BytesIO()  # np.save to a file does not notice a full disk
        np.save(data, shard.features, allow_pickle=False)
        write_whole(array, data.getvalue())
        saved = {
            "rows": shard.rows.tolist(),
            "bad": [list(entry) for entry in shard.bad],
            "sha256": hashlib.sha256(data.getvalue()).hexdigest(),
        }
        write_whole(note, json.dumps(saved))


def join_shards(shards: Sequence[Shard]) -> Shard:
    """All rows of some shards, in one."""
    return Shard(
        np.concatenate([shard.features for shard in shards]),
        np.concatenate([shard.rows for shard in shards]),
        tuple(entry for shard in shards for entry in shard.bad),
    )
