"""A task's training pairs: padding to few sizes, orders drawn on the host, rows gathered there."""

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

from hmcl_jax.data.store import Task


class Pairs(NamedTuple):
    """A task's training pairs.

    Attributes:
      general: frozen features of the general modality; class prototypes or captions.
      specific: frozen features of the specific modality.
      pairs: rows (specific, general) that belong together, ``(p, 2)``.
    """

    general: Any
    specific: Any
    pairs: Any


def training_pairs(task: Task) -> Pairs:
    """The training pairs of a task, on the host."""
    arrays = task.arrays
    if task.kind == "retrieval":
        return Pairs(arrays["train_general"], arrays["train_specific"], arrays["train_pairs"])
    labels = np.asarray(arrays["train_labels"])
    pairs = np.stack([np.arange(len(labels), dtype=np.int32), labels.astype(np.int32)], axis=1)
    return Pairs(arrays["prototypes"], arrays["train_features"], pairs)


def capacity(rows: int, least: int = 4096) -> int:
    """Rows that an array is padded to: multiples of `least` or of a quarter of the largest power
    of two below, whichever is more."""
    step = max(least, 1 << max(rows.bit_length() - 3, 0))
    return -(-rows // step) * step


def class_capacity(classes: int) -> int:
    """Classes that prototypes are padded to: 16, 128, 1024, then multiples of 1024."""
    for size in (16, 128):
        if classes <= size:
            return size
    return -(-classes // 1024) * 1024


def minibatch_rows(pairs: int, batch: int) -> int:
    """Rows of a minibatch: `batch`, or a fourth, a sixteenth, ... if the task is that small."""
    rows = batch
    while rows >= 64 and pairs <= rows // 4:
        rows //= 4
    return rows


def draw_orders(
    seeds: Sequence[int], index: int, epochs: Sequence[int], count: int, padded: int
) -> np.ndarray:
    """Orders of a task's pairs, ``(seeds, epochs, padded)``; padding is 0."""
    orders = np.zeros((len(seeds), len(epochs), padded), np.int32)
    for row, seed in enumerate(seeds):
        for column, epoch in enumerate(epochs):
            rng = np.random.default_rng([seed, index, epoch])
            orders[row, column, :count] = rng.permutation(count)
    return orders


def pad_pairs(data: Pairs, kind: str) -> Pairs:
    """A task's arrays with rows of zeros, so that few shapes occur."""
    general = pad_classes(data.general) if kind == "classification" else _pad(data.general)
    return Pairs(general, _pad(data.specific), _pad(data.pairs))


def pad_classes(prototypes: np.ndarray) -> np.ndarray:
    """Class prototypes with rows of zeros."""
    return _pad(prototypes, class_capacity(len(prototypes)))


def _pad(array: np.ndarray, size: int | None = None) -> np.ndarray:
    size = capacity(len(array)) if size is None else size
    return np.pad(np.asarray(array), ((0, size - len(array)), (0, 0)))


def gather(data: Pairs, kind: str, order: np.ndarray, padded: int) -> Any:
    """Rows of the pairs in order, ``(seeds, padded, d)``, from arrays on the host."""
    order = np.pad(order, ((0, 0), (0, padded - order.shape[1])))
    chosen = np.asarray(data.pairs)[order]
    general = np.zeros(len(order), data.general.dtype)
    if kind == "retrieval":
        general = _take(data.general, chosen[..., 1])
    return general, _take(data.specific, chosen[..., 0]), chosen[..., 1].astype(np.int32)


def _take(array: np.ndarray, rows: np.ndarray) -> np.ndarray:
    """Rows of a mapped array, read in the order of the file."""
    flat = rows.reshape(-1)
    by_place = np.argsort(flat, kind="stable")
    found = np.empty((flat.size, array.shape[1]), array.dtype)
    found[by_place] = array[flat[by_place]]
    return found.reshape(*rows.shape, array.shape[1])
