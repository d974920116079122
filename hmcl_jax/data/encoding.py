"""Features as int8: half the size of float16.

A row is ``offset + scales[row] * codes[row]``, with codes from -127 to 127. The offset is the mean
row of all arrays of one side of a task: points of one modality often share a large component, which
would decide the scales if it were not taken out; and rows that are equal there stay equal, which is
how captions find their names in the class tree.

An entry is off by at most half the scale, 1 / 254 of the largest entry of its row beside the
offset. In distances this averages out: 512 entries of norm 0.5 give distances off by about 2e-4.
"""

import collections
from collections.abc import Mapping
from typing import Any, NamedTuple

import numpy as np

GENERAL = ("prototypes", "tree_features", "train_general", "test_general")
LARGEST = 127
ROWS = 8192  # at a time


class Encoded(NamedTuple):
    """An array of shape ``(n, d)`` as int8."""

    codes: np.ndarray  # int8, (n, d)
    scales: np.ndarray  # float32, (n,)
    offset: np.ndarray  # float32, (d,)


def encode(values: np.ndarray, offset: np.ndarray) -> Encoded:
    """The int8 form of finite floats, of which the offset is subtracted from every row."""
    codes = np.empty(values.shape, np.int8)
    scales = np.empty(len(values), np.float32)
    for start in range(0, len(values), ROWS):
        part = slice(start, start + ROWS)
        rest = values[part].astype(np.float64) - offset
        scales[part] = np.abs(rest).max(axis=1) / LARGEST
        steps = rest / np.where(scales[part] > 0, scales[part], 1)[:, None]
        codes[part] = np.clip(np.rint(steps), -LARGEST, LARGEST)
    return Encoded(codes, scales, offset)


def encode_features(arrays: Mapping[str, np.ndarray]) -> dict[str, tuple[Encoded, np.dtype]]:
    """The features among a task's arrays as int8, and the dtype of each.

    Non-finite or misshapen features stay plain, so that ``Store.validate`` can name their rows.
    """
    sides: dict[tuple[bool, int], list[str]] = {}
    for name, x in arrays.items():
        if x.dtype.kind == "f" and x.ndim == 2 and x.size and np.isfinite(x).all():
            sides.setdefault((name in GENERAL, x.shape[1]), []).append(name)
    encoded: dict[str, tuple[Encoded, np.dtype]] = {}
    for names in sides.values():
        total = np.sum([arrays[name].sum(axis=0, dtype=np.float64) for name in names], axis=0)
        offset = (total / sum(len(arrays[name]) for name in names)).astype(np.float32)
        encoded |= {name: (encode(arrays[name], offset), arrays[name].dtype) for name in names}
    return encoded


def decode(encoded: Encoded, dtype: np.dtype | type) -> np.ndarray:
    """The inverse of :func:`encode`, up to rounding; read-only."""
    codes, scales, offset = encoded
    values = np.empty(codes.shape, dtype)
    with np.errstate(over="ignore", invalid="ignore"):  # validate() names such rows
        for start in range(0, len(codes), ROWS):
            part = slice(start, start + ROWS)
            values[part] = offset + scales[part, None] * codes[part]
    values.flags.writeable = False
    return values


class Arrays(collections.UserDict[str, Any]):
    """Arrays by name; an encoded one is decoded at its first access, and kept."""

    def __getitem__(self, name: str) -> np.ndarray:
        if isinstance(self.data[name], tuple):
            self.data[name] = decode(*self.data[name])
        return self.data[name]
