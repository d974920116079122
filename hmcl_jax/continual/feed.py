"""How the training pairs of a task reach the device: padded, in an order drawn on the host.

The order is drawn from (seed, index of the task, epoch), so a seed's result depends neither on the
seeds beside it nor on padding, feeds or an interruption. A task whose features fit into the device
budget is put there once, and an epoch is one feed of row numbers. The rows of a larger task are
gathered on the host, and an epoch is many feeds.
"""

import dataclasses
from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from hmcl_jax.continual.mesh import DeviceMesh
from hmcl_jax.continual.method import TaskSpec
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


class Feed(NamedTuple):
    """Some minibatches of an epoch.

    Attributes:
      per_seed: with a seed axis: the order of the pairs if features are resident, else the gathered
        rows (general, specific, numbers of the general ones).
      shared: :class:`Pairs` if features are resident, else ``()``.
      prototypes: features of the classes; of no meaning for retrieval.
      first: number of the first minibatch in its epoch.
      count: minibatches of this feed.
      num_pairs: of the task; rows beyond are padding.
    """

    per_seed: Any
    shared: Any
    prototypes: Any
    first: Any
    count: Any
    num_pairs: Any


class Rows(NamedTuple):
    """The rows of one minibatch of one seed; `classes` are the numbers of the general rows."""

    general: jax.Array
    specific: jax.Array
    classes: jax.Array
    valid: jax.Array
    number: jax.Array


@dataclasses.dataclass(frozen=True)
class TaskFeed:
    """A task that a step goes over.

    Attributes:
      spec: of the task.
      num_minibatches: of an epoch.
      feeds: from the number of an epoch to its feeds, which are on the device.
    """

    spec: TaskSpec
    num_minibatches: int
    feeds: Callable[[int], Iterator[Feed]]


def training_pairs(task: Task) -> Pairs:
    """The training pairs of a task, on the host."""
    arrays = task.arrays
    if task.kind == "retrieval":
        return Pairs(arrays["train_general"], arrays["train_specific"], arrays["train_pairs"])
    labels = np.asarray(arrays["train_labels"])
    pairs = np.stack([np.arange(len(labels), dtype=np.int32), labels.astype(np.int32)], axis=1)
    return Pairs(arrays["prototypes"], arrays["train_features"], pairs)


def row_capacity(rows: int, least: int = 4096) -> int:
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


def draw_orders(seeds: Sequence[int], index: int, epoch: int, count: int, padded: int) -> Any:
    """An order of a task's pairs per seed, ``(seeds, padded)``; padding is 0."""
    orders = np.zeros((len(seeds), padded), np.int32)
    for row, seed in enumerate(seeds):
        orders[row, :count] = np.random.default_rng([seed, index, epoch]).permutation(count)
    return orders


def task_feed(
    data: Pairs, spec: TaskSpec, index: int, seeds: Sequence[int], mesh: DeviceMesh, resident: bool
) -> TaskFeed:
    """The feeds of a task.

    Args:
      data: its pairs.
      spec: of the task.
      index: of the task in the stream.
      seeds: of the run.
      mesh: where arrays are put.
      resident: whether its features are kept on the device.
    """
    num_minibatches = -(-len(data.pairs) // spec.batch_rows)
    make = _resident if resident else _streamed
    return TaskFeed(spec, num_minibatches, make(data, spec, index, seeds, mesh))


def _resident(
    data: Pairs, spec: TaskSpec, index: int, seeds: Sequence[int], mesh: DeviceMesh
) -> Callable[[int], Iterator[Feed]]:
    count = len(data.pairs)
    padded = mesh.replicate(pad_pairs(data, spec.kind))
    numbers = mesh.replicate(tuple(map(np.int32, (0, -(-count // spec.batch_rows), count))))

    def feeds(epoch: int) -> Iterator[Feed]:
        order = draw_orders(seeds, index, epoch, count, len(padded.pairs))
        yield Feed(mesh.shard_seeds(order), padded, padded.general, *numbers)

    return feeds


def _streamed(
    data: Pairs, spec: TaskSpec, index: int, seeds: Sequence[int], mesh: DeviceMesh
) -> Callable[[int], Iterator[Feed]]:
    count, rows = len(data.pairs), spec.batch_rows
    num_minibatches = -(-count // rows)
    sides = (data.general, data.specific) if spec.kind == "retrieval" else (data.specific,)
    seeds_here = len(seeds) // mesh.shape[0]
    minibatch_bytes = seeds_here * rows * sum(side[:1].nbytes for side in sides)
    # Two feeds are on the device at a time: one is worked on, the next is on its way.
    limit = max(1, int(spec.train.device_memory * 2**20 / 2 / minibatch_bytes))
    most = 4
    while most < num_minibatches:
        most *= 4
    most = min(-(-most // mesh.shape[1]), limit) * mesh.shape[1]
    prototypes = np.zeros((), np.float32)
    if spec.kind == "classification":
        prototypes = _pad(data.general, class_capacity(len(data.general)))
    prototypes = mesh.replicate(prototypes)

    def feeds(epoch: int) -> Iterator[Feed]:
        order = draw_orders(seeds, index, epoch, count, num_minibatches * rows)
        for first in range(0, num_minibatches, most):
            in_feed = min(most, num_minibatches - first)
            chosen = order[:, first * rows : (first + in_feed) * rows]
            gathered = mesh.deal(gather(data, spec.kind, chosen, most * rows), rows)
            numbers = mesh.replicate(tuple(map(np.int32, (first, in_feed, count))))
            yield Feed(gathered, (), prototypes, *numbers)

    return feeds


def rows_of(feed: Feed, spec: TaskSpec, data_axis: str | None) -> Callable[[jax.Array], Rows]:
    """From the number of a minibatch in a feed of one seed to its rows, in a compiled program.

    Args:
      feed: without the seed axis.
      spec: of the task.
      data_axis: of the mesh, if the minibatches of the feed are dealt to the devices along it.
    """
    rows = spec.batch_rows
    if feed.shared != ():
        return lambda number: _resident_rows(feed, spec, number)
    dealt, gathered = 1, feed.per_seed
    if data_axis is not None:
        dealt = jax.lax.axis_size(data_axis)
        gathered = tuple(x.reshape(-1, *x.shape[3:]) if x.ndim else x for x in gathered)

    def streamed_rows(number: jax.Array) -> Rows:
        start = number // dealt * rows
        general, specific, classes = (
            jax.lax.dynamic_slice_in_dim(x, start, rows) if x.ndim else x for x in gathered
        )
        index = feed.first + number
        return Rows(general, specific, classes, _positions(index, rows) < feed.num_pairs, index)

    return streamed_rows


def _resident_rows(feed: Feed, spec: TaskSpec, number: jax.Array) -> Rows:
    general, specific, pairs = feed.shared
    order, index = feed.per_seed, feed.first + number
    at = _positions(index, spec.batch_rows)
    chosen = pairs[order[jnp.minimum(at, order.shape[0] - 1)]]
    classes = chosen[:, 1]
    retrieval = spec.kind == "retrieval"
    general = general[classes] if retrieval else jnp.zeros((), general.dtype)
    return Rows(general, specific[chosen[:, 0]], classes, at < feed.num_pairs, index)


def _positions(index: jax.Array, rows: int) -> jax.Array:
    return index * rows + jnp.arange(rows, dtype=jnp.int32)


def pad_pairs(data: Pairs, kind: str) -> Pairs:
    """A task's arrays with rows of zeros, so that few shapes occur."""
    rows = len(data.general)
    capacity = class_capacity(rows) if kind == "classification" else row_capacity(rows)
    general = _pad(data.general, capacity)
    specific = _pad(data.specific, row_capacity(len(data.specific)))
    return Pairs(general, specific, _pad(data.pairs, row_capacity(len(data.pairs))))


def _pad(array: np.ndarray, size: int) -> np.ndarray:
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
    by_position = np.argsort(flat, kind="stable")
    found = np.empty((flat.size, array.shape[1]), array.dtype)
    found[by_position] = array[flat[by_position]]
    return found.reshape(*rows.shape, array.shape[1])
