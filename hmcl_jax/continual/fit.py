"""One task, all seeds: the whole training of a task is one compiled function.

Inside, a scan over epochs; in each epoch a loop over minibatches whose gradients are summed, then
one optimizer step (or one step per minibatch). Arrays are padded to few sizes and the number of
minibatches is an argument, so that tasks of different sizes share a program, and padding costs
memory but no time.

The order of the pairs is drawn on the host from (seed, place of the task, epoch), so that a seed's
result depends neither on the seeds beside it nor on padding, chunks or an interruption. Tasks that
exceed the device budget stay on the host; minibatches are then gathered there and fed in chunks,
through the same functions.
"""

import dataclasses
import functools
from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from hmcl_jax.continual.config import TrainConfig, mesh_shape
from hmcl_jax.continual.gradients import (
    Fetch,
    Fetched,
    apply_gradient,
    combine,
    step_each,
    step_gradient,
    sum_gradients,
)
from hmcl_jax.continual.guard import GuardState, begin, guarded, plain
from hmcl_jax.continual.mesh import Layout
from hmcl_jax.continual.method import Heads, Method, MethodState, TaskInfo
from hmcl_jax.continual.pairs import (
    Pairs,
    draw_orders,
    gather,
    minibatch_rows,
    pad_classes,
    pad_pairs,
    training_pairs,
)
from hmcl_jax.data.store import Task

# Floating-point operations of a program beyond which it is split between epochs, to show progress.
LONG = 1e13


class Fitted(NamedTuple):
    """A learned task.

    Attributes:
      params: heads, with a seed axis.
      opt_state: likewise.
      losses: mean loss of a minibatch, ``(seeds, epochs)``.
      figures: what the method measures of the last step of every epoch, likewise.
      seen: of bad numbers, with a seed axis; its `inner` is empty.
    """

    params: Heads
    opt_state: Any
    losses: jax.Array
    figures: dict[str, jax.Array]
    seen: GuardState | None = None


class Fitter:
    """Learns tasks with one method; holds the compiled programs of a stream.

    Args:
      method: the record.
      config: shared settings.
      tell: is told of a long task how many of its epochs are done.
    """

    def __init__(
        self,
        method: Method,
        config: TrainConfig,
        tell: Callable[[int, int], None] = lambda done, epochs: None,
    ) -> None:
        self.method, self.config, self.tell = method, config, tell
        self.seed_axis = config.seed_axis
        if self.seed_axis == "auto":
            self.seed_axis = "map" if jax.default_backend() == "cpu" else "vmap"
        self.layout = Layout(mesh_shape(config.mesh))
        self._programs: dict[Any, Any] = {}

    def compilations(self) -> int:
        """Programs compiled so far for learning tasks."""
        return sum(program._cache_size() for program in self._programs.values())

    def __call__(
        self,
        params: Heads,
        opt_state: Any,
        state: MethodState,
        task: Task,
        info: TaskInfo,
        seeds: Sequence[int],
        index: int,
        beside: Sequence[tuple[Task, TaskInfo, int]] = (),
    ) -> Fitted:
        """Learns a task.

        Args:
          params: heads, with a seed axis.
          opt_state: at the task's start.
          state: of the method.
          task: whose training part is learned.
          info: of the task.
          seeds: as many as the seed axis is long.
          index: place of the task in the stream.
          beside: further tasks, whose gradients are added in every step.

        Returns:
          What was learned, as ordinary arrays.
        """
        opt_state = begin(opt_state, params, self.config)
        fitted = self._fit(params, opt_state, state, task, info, seeds, index, beside)
        seen: GuardState = fitted.opt_state
        return fitted._replace(opt_state=plain(seen), seen=seen._replace(inner=()))

    def _fit(
        self,
        params: Heads,
        opt_state: GuardState,
        state: MethodState,
        task: Task,
        info: TaskInfo,
        seeds: Sequence[int],
        index: int,
        beside: Sequence[tuple[Task, TaskInfo, int]],
    ) -> Fitted:
        layout = self.layout
        params, opt_state, own = layout.spread((params, opt_state, state._replace(shared=())))
        state = own._replace(shared=layout.copy(state.shared))
        info = dataclasses.replace(info, config=self.config)
        data = training_pairs(task)
        size = data.specific.nbytes + data.general.nbytes
        if beside or size > self.config.device_memory * 2**20:
            parts = [
                _part(task, dataclasses.replace(info, config=self.config), place, seeds, layout)
                for task, info, place in ((task, info, index), *beside)
            ]
            first_epoch = 1000 * index if beside else 0  # other orders than in other stages
            fitted = _fit_in_chunks(self, params, opt_state, state, parts, info, seeds, first_epoch)
            return layout.whole(fitted)
        count = len(data.pairs)
        epochs = self.config.schedule(info.kind).epochs
        padded = layout.copy(pad_pairs(data, info.kind))
        rows = minibatch_rows(count, self.config.batch)
        work = len(seeds) * count * data.specific.shape[1] ** 2 * 6.0
        most = epochs if work * epochs < LONG else max(1, int(epochs * LONG / (work * epochs)))
        measured = []
        for first in range(0, epochs, most):
            chosen = range(first, min(first + most, epochs))
            orders = layout.spread(draw_orders(seeds, index, chosen, count, len(padded.pairs)))
            arguments = (params, opt_state, own, orders)
            rest = (state.shared, padded, layout.copy(np.int32(count)))
            params, opt_state, *found, _ = self._run(info, rows, arguments, rest)
            measured.append(found)
            if most < epochs:
                jax.block_until_ready(found)
                self.tell(chosen[-1] + 1, epochs)
        joined = jax.tree.map(lambda *parts: jnp.concatenate(parts, axis=1), *measured)
        return layout.whole(Fitted(params, opt_state, *joined))

    def _run(self, info: TaskInfo, rows: int, arguments: Any, rest: Any) -> Fitted:
        program = self.program("task", info, rows)
        if self.seed_axis != "loop":
            return program(*arguments, *rest)
        fitted = []
        for seed in range(len(arguments[-1])):
            one = jax.tree.map(lambda x, seed=seed: x[seed : seed + 1], arguments)
            fitted.append(program(*one, *rest))
        return jax.tree.map(lambda *parts: jnp.concatenate(parts), *fitted)

    def program(self, name: str, info: TaskInfo, rows: int) -> Any:
        """The compiled function of one kind of task: "task", "gradient", "step" or "steps"."""
        later = dataclasses.replace(info, first=False)
        if self.method.stages(info) == self.method.stages(later):
            info = later
        key = (name, info, rows)
        if key not in self._programs:
            method, axis = guarded(self.method), self.layout.data_axis
            one = functools.partial(_PROGRAMS[name], method, info, rows, axis)
            run = self.layout.over_seeds(_over_seeds(one, self.seed_axis), dealt=name == "gradient")
            self._programs[key] = jax.jit(run)
        return self._programs[key]


def _over_seeds(one: Callable[..., Any], seed_axis: str) -> Callable[..., Any]:
    """A function of (params, opt_state, own, own data; shared, data, count) over seeds."""

    def run(params: Any, opt_state: Any, own: Any, fed: Any, *rest: Any) -> Any:
        if seed_axis == "vmap":
            axes = (0, 0, 0, 0, *(None for _ in rest))
            return jax.vmap(one, in_axes=axes)(params, opt_state, own, fed, *rest)
        return jax.lax.map(lambda own_parts: one(*own_parts, *rest), (params, opt_state, own, fed))

    return run


def _fit_one(
    method: Method,
    info: TaskInfo,
    rows: int,
    data_axis: str | None,
    params: Heads,
    opt_state: Any,
    own: MethodState,
    orders: jax.Array,
    shared: Any,
    data: Pairs,
    count: jax.Array,
) -> Fitted:
    """The training of one seed on one task."""
    state = own._replace(shared=shared)
    tx, watch = method.transform(info.config, info), method.watch(opt_state, info)
    minibatches = -(-count // rows)

    def epoch(carry: Any, order: jax.Array) -> Any:
        def fetch(number: jax.Array) -> Fetched:
            at = number * rows + jnp.arange(rows, dtype=jnp.int32)
            chosen = data.pairs[order[jnp.minimum(at, order.shape[0] - 1)]]
            general = chosen[:, 1]
            if info.kind == "retrieval":
                general_rows = data.general[general]
            else:
                general_rows = jnp.zeros((), data.general.dtype)
            return general_rows, data.specific[chosen[:, 0]], general, at < count, number

        params, opt_state = carry
        if info.config.step == "minibatch":
            return step_each(
                *(method, tx, watch, info, params, opt_state, state),
                *(data.general, fetch, minibatches),
            )
        gradient, loss = step_gradient(
            method, info, params, state, data.general, fetch, minibatches, data_axis
        )
        *carry, figures = apply_gradient(tx, watch, gradient, params, opt_state)
        return tuple(carry), (loss / minibatches, figures)

    (params, opt_state), measured = jax.lax.scan(epoch, (params, opt_state), orders)
    return Fitted(params, opt_state, *measured)


def _chunk_fetch(
    rows: int, fed: Any, offset: jax.Array, count: jax.Array, data_axis: str | None = None
) -> Fetch:
    """Minibatches of a chunk that the host has gathered in order, or of this device's share."""
    apart = 1
    if data_axis is not None:
        apart = jax.lax.axis_size(data_axis)
        fed = tuple(x.reshape(-1, *x.shape[3:]) if x.ndim else x for x in fed)

    def fetch(number: jax.Array) -> Fetched:
        place = number // apart * rows
        general, specific, numbers = (
            jax.lax.dynamic_slice_in_dim(x, place, rows) if x.ndim else x for x in fed
        )
        at = offset + number * rows + jnp.arange(rows, dtype=jnp.int32)
        return general, specific, numbers, at < count, offset // rows + number

    return fetch


def _gradient_of_chunk(
    method: Method,
    info: TaskInfo,
    rows: int,
    data_axis: str | None,
    params: Heads,
    sums: Any,
    own: MethodState,
    fed: Any,
    shared: Any,
    general: jax.Array,
    offset: jax.Array,
    minibatches: jax.Array,
    count: jax.Array,
) -> Any:
    fetch = _chunk_fetch(rows, fed, offset, count, data_axis)
    state = own._replace(shared=shared)
    one_stage = step_gradient if method.per_minibatch else sum_gradients
    found = one_stage(method, info, params, state, general, fetch, minibatches, data_axis)
    return jax.tree.map(jnp.add, sums, found)


def _steps_of_chunk(
    method: Method,
    info: TaskInfo,
    rows: int,
    data_axis: str | None,
    params: Heads,
    opt_state: Any,
    own: MethodState,
    fed: Any,
    shared: Any,
    general: jax.Array,
    offset: jax.Array,
    minibatches: jax.Array,
    count: jax.Array,
) -> Any:
    del data_axis
    fetch = _chunk_fetch(rows, fed, offset, count)
    state, tx = own._replace(shared=shared), method.transform(info.config, info)
    watch = method.watch(opt_state, info)
    carry, (mean, figures) = step_each(
        method, tx, watch, info, params, opt_state, state, general, fetch, minibatches
    )
    return carry, (mean * minibatches, figures)


def _step_of_epoch(
    method: Method,
    info: TaskInfo,
    rows: int,
    data_axis: str | None,
    params: Heads,
    opt_state: Any,
    own: MethodState,
    gradients: tuple[Heads, ...],
    shared: Any,
    minibatches: jax.Array,
) -> tuple[Heads, Any, dict[str, jax.Array]]:
    del rows, data_axis
    tx, state = method.transform(info.config, info), own._replace(shared=shared)
    gradient = gradients[0]
    if not method.per_minibatch:
        gradient = combine(method, gradients, params, state, minibatches, info)
    return apply_gradient(tx, method.watch(opt_state, info), gradient, params, opt_state)


def _point_of_stage(
    method: Method,
    info: TaskInfo,
    rows: int,
    data_axis: str | None,
    params: Heads,
    opt_state: Any,
    own: MethodState,
    gradients: tuple[Heads, ...],
    shared: Any,
) -> Heads:
    del info, rows, data_axis, opt_state
    return method.point(params, gradients, own._replace(shared=shared))


_PROGRAMS: dict[str, Callable[..., Any]] = {
    "task": _fit_one,
    "gradient": _gradient_of_chunk,
    "steps": _steps_of_chunk,
    "step": _step_of_epoch,
    "point": _point_of_stage,
}


class _Part(NamedTuple):
    """A task whose gradient takes part in a step, and how its minibatches are fed."""

    data: Pairs
    info: TaskInfo
    place: int
    rows: int
    minibatches: int
    most: int  # minibatches of a chunk
    prototypes: np.ndarray


def _part(task: Task, info: TaskInfo, place: int, seeds: Sequence[int], layout: Layout) -> _Part:
    data, config = training_pairs(task), info.config
    count = len(data.pairs)
    rows = minibatch_rows(count, config.batch)
    minibatches = -(-count // rows)
    sides = (data.general, data.specific) if info.kind == "retrieval" else (data.specific,)
    local = len(seeds) // layout.shape[0]
    of_minibatch = local * rows * sum(side[:1].nbytes for side in sides)
    # Two chunks are on the device at a time: one is worked on, the next is on its way.
    limit = max(1, int(config.device_memory * 2**20 / 2 / of_minibatch))
    devices = layout.shape[1]
    most = 4
    while most < minibatches:
        most *= 4
    most = min(-(-most // devices), limit) * devices
    prototypes = np.zeros((), np.float32)
    if info.kind == "classification":
        prototypes = pad_classes(data.general)
    return _Part(data, info, place, rows, minibatches, most, prototypes)


def _chunks(part: _Part, seeds: Sequence[int], epoch: int) -> Iterator[tuple[Any, ...]]:
    """What the programs of a chunk are fed with, chunk after chunk."""
    count, rows = len(part.data.pairs), part.rows
    padded = part.minibatches * rows
    order = draw_orders(seeds, part.place, [epoch], count, padded)[:, 0]
    for first in range(0, part.minibatches, part.most):
        numbers = min(part.most, part.minibatches - first)
        chosen = order[:, first * rows : (first + numbers) * rows]
        fed = gather(part.data, part.info.kind, chosen, part.most * rows)
        yield fed, (part.prototypes, *map(np.int32, (first * rows, numbers, count)))


def _fit_in_chunks(
    fitter: Fitter,
    params: Heads,
    opt_state: Any,
    state: MethodState,
    parts: Sequence[_Part],
    info: TaskInfo,
    seeds: Sequence[int],
    first_epoch: int,
) -> Fitted:
    """As :func:`_fit_one`, for features that stay on the host, of one task or several at once.

    On a mesh there is one all-reduce per gradient and chunk, and every device is sent only the
    minibatches that it takes.
    """
    config, method, layout = fitter.config, fitter.method, fitter.layout
    own = state._replace(shared=())
    minibatches = sum(part.minibatches for part in parts)
    stages = 1 if method.per_minibatch else method.stages(info)
    stages = stages if config.step == "epoch" else 0
    rows = parts[0].rows
    zero = {modality: jnp.zeros(W.shape, W.dtype) for modality, W in params.items()}
    nothing = jnp.zeros(len(seeds), next(iter(params.values())).dtype)
    zero, nothing = layout.spread((zero, nothing))
    count = layout.copy(np.int32(minibatches))
    measured = []
    for epoch in range(config.schedule(info.kind).epochs):

        def fed_by(name: str, epoch: int = first_epoch + epoch) -> Iterator[tuple[Any, ...]]:
            for part in parts:
                program = fitter.program(name, part.info, part.rows)
                for fed, rest in _chunks(part, seeds, epoch):
                    yield program, layout.deal(fed, part.rows), layout.copy(rest)

        total, figures = nothing, {}
        if config.step == "minibatch":
            for program, fed, rest in fed_by("steps"):
                (params, opt_state), (loss, figures) = program(
                    params, opt_state, own, fed, state.shared, *rest
                )
                total = total + loss
        gradients: tuple[Heads, ...] = ()
        for _ in range(stages):
            point = fitter.program("point", info, rows)
            at = point(params, opt_state, own, gradients, state.shared)
            sums = (zero, nothing)
            for program, fed, rest in fed_by("gradient"):
                sums = program(at, sums, own, fed, state.shared, *rest)
            total = total if gradients else sums[1]
            gradients = (*gradients, sums[0])
        if gradients:
            step = fitter.program("step", info, rows)
            params, opt_state, figures = step(
                params, opt_state, own, gradients, state.shared, count
            )
        measured.append((total / minibatches, figures))
        jax.block_until_ready(measured[-1])
        fitter.tell(epoch + 1, config.schedule(info.kind).epochs)
    joined = jax.tree.map(lambda *parts: jnp.stack(parts, axis=1), *measured)
    return Fitted(params, opt_state, *joined)
