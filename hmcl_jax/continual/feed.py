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
    """A task's training pairs."""

    general: Any  # frozen features of the class prototypes or captions
    specific: Any  # frozen features of the samples
    pairs: Any  # rows (specific, general) that belong together, (p, 2)


class Feed(NamedTuple):
    """Some minibatches of an epoch."""

    # With a seed axis: the order of the pairs if features are resident, else the gathered rows
    # (general, specific, numbers of the general ones).
    per_seed: Any
    shared: Any  # Pairs if features are resident, else ()
    prototypes: Any  # features of the classes; ignored for retrieval
    first: Any  # number of the first minibatch in its epoch
    count: Any  # minibatches of this feed
    num_pairs: Any  # of the task; rows beyond are padding


class Rows(NamedTuple):
    """The rows of one minibatch of one seed; `classes` are the numbers of the general rows."""

    general: jax.Array
    specific: jax.Array
    classes: jax.Array
    valid: jax.Array
    number: jax.Array


@dataclasses.dataclass(frozen=True)
class TaskFeed:
    """A task that a step goes over."""

    spec: TaskSpec
    num_minibatches: int  # of an epoch
    feeds: Callable[[int], Iterator[Feed]]  # from the number of an epoch; feeds are on the device


def training_pairs(task: Task) -> Pairs:
    """The training pairs of a task, on the host."""
    arrays = task.arrays
    if task.kind == "retrieval":
        return Pairs(arrays["train_general"], arrays["train_specific"], arrays["train_pairs"])
    labels = np.asarray(arrays["train_labels"])
    pairs = np.stack([np.arange(len(labels), dtype=np.int32), labels.astype(np.int32)], axis=1)
    return Pairs(arrays["prototypes"], arrays["train_features"], pairs)


def row_capacity(rows: int, least: int = 4096) -> int:
    """Rows that an array is padded to."""
    # A quarter of the largest power of two below: at most a quarter of the rows is padding.
    step = max(least, 1 << max(rows.bit_length() - 3, 0))
    return -(-rows // step) * step


def class_capacity(classes: int) -> int:
    """Classes that prototypes are padded to: 16, 128, 1024, then multiples of 1024."""
    return next((size for size in (16, 128) if classes <= size), -(-classes // 1024) * 1024)


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
    """The feeds of the task at an index of the stream; `resident` keeps features on the device."""
    num_minibatches = -(-len(data.pairs) // spec.batch_rows)
    make = _resident if resident else _streamed
    return TaskFeed(spec, num_minibatches, make(data, spec, index, seeds, mesh))


def _resident(
    data: Pairs, spec: TaskSpec, index: int, seeds: Sequence[int], mesh: DeviceMesh
) -> Callable[[int], Iterator[Feed]]:
    count = len(data.pairs)
    capacity = class_capacity if spec.kind == "classification" else row_capacity
    # Rows of zeros, so that few shapes, and so few programs, occur.
    padded = mesh.replicate(
        Pairs(
            _pad(data.general, capacity(len(data.general))),
            _pad(data.specific, row_capacity(len(data.specific))),
            _pad(data.pairs, row_capacity(count)),
        )
    )
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
    # Few lengths of feeds, for few programs: 4, 16, 64, ... minibatches.
    most = 4
    while most < num_minibatches:
        most *= 4
    most = min(-(-most // mesh.shape[1]), limit) * mesh.shape[1]
    classification = spec.kind == "classification"
    capacity = class_capacity(len(data.general))
    prototypes = _pad(data.general, capacity) if classification else np.zeros((), np.float32)
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


def rows_of(feed: Feed, spec: TaskSpec, number: jax.Array, data_axis: str | None) -> Rows:
    """The rows of a minibatch of a feed, for one seed, in a compiled program."""
    rows, index = spec.batch_rows, feed.first + number
    positions = index * rows + jnp.arange(rows, dtype=jnp.int32)
    valid = positions < feed.num_pairs
    if feed.shared == ():
        dealt, gathered = 1, feed.per_seed
        if data_axis is not None:  # each device along it has every dealt-th minibatch of the feed
            dealt = jax.lax.axis_size(data_axis)
            gathered = tuple(x.reshape(-1, *x.shape[3:]) if x.ndim else x for x in gathered)
        start = number // dealt * rows
        general, specific, classes = (
            jax.lax.dynamic_slice_in_dim(x, start, rows) if x.ndim else x for x in gathered
        )
        return Rows(general, specific, classes, valid, index)
    general, specific, pairs = feed.shared
    order = feed.per_seed
    chosen = pairs[order[jnp.minimum(positions, order.shape[0] - 1)]]
    classes = chosen[:, 1]
    retrieval = spec.kind == "retrieval"
    general = general[classes] if retrieval else jnp.zeros((), general.dtype)
    return Rows(general, specific[chosen[:, 0]], classes, valid, index)


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
