"""One method on one task, between two ends: what a run repeats for every task of a stream."""

import dataclasses
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from hmcl_jax.continual.config import TrainConfig, from_mapping
from hmcl_jax.continual.distributed import from_first
from hmcl_jax.continual.feed import TaskFeed, minibatch_rows, task_feed, training_pairs
from hmcl_jax.continual.fit import fit_task
from hmcl_jax.continual.guard import wrap
from hmcl_jax.continual.health import Stopped, check_finite, clean_state, find_stopped
from hmcl_jax.continual.method import Heads, Method, MethodState, TaskData, TaskSpec, TrainState
from hmcl_jax.continual.programs import Programs, apply_sweep
from hmcl_jax.data.store import Task
from hmcl_jax.head import identity_head


@dataclasses.dataclass(frozen=True)
class Setting:
    """The settings that all tasks of a stream share."""

    K: float  # squared radius of the hyperboloid
    tau: float  # temperature of the logits
    seeds: tuple[int, ...]  # trained side by side
    train: TrainConfig = TrainConfig()  # noqa: RUF009
    # Settings of the method that differ along the seed axis.
    sweep: Mapping[str, jax.Array] = dataclasses.field(default_factory=dict)

    def spec(self, task: Task, index: int) -> TaskSpec:
        """The static part of a task at an index of the stream."""
        rows = minibatch_rows(len(training_pairs(task).pairs), self.train.batch)
        about = (task.kind, task.general, task.specific, index == 0)
        return TaskSpec(*about, self.K, self.tau, rows, self.train)


class Carried(NamedTuple):
    """All that one task hands to the next, with a leading seed axis."""

    heads: Heads = {}  # noqa: RUF012
    opt_state: Any = None  # at the end of the last task
    state: MethodState | None = None  # None before the first task
    stopped: tuple[Stopped, ...] = ()  # seeds that were stopped

    def is_stopped(self, seeds: int) -> np.ndarray:
        """Which seeds are stopped."""
        return np.isin(np.arange(seeds), [one.seed_index for one in self.stopped])

    def stop(self, found: list[Stopped]) -> "Carried":
        """Stops further seeds; the first reason for each counts."""
        known = {one.seed_index for one in self.stopped}
        new = [one for one in found if one.seed_index not in known]
        return self._replace(stopped=(*self.stopped, *new))


class Learned(NamedTuple):
    """The course of a task."""

    losses: np.ndarray  # mean loss of a minibatch, (seeds, epochs)
    metrics: dict[str, np.ndarray]  # of the method, (seeds,) or (seeds, epochs)
    skipped: np.ndarray  # skipped optimizer steps, per seed


TaskAt = tuple[Task, int]


def learn_task(
    method: Method,
    carried: Carried,
    tasks: list[TaskAt],
    setting: Setting,
    programs: Programs | None = None,
    on_epoch: Callable[[int, int], None] = lambda done, epochs: None,
) -> tuple[Carried, Learned]:
    """Trains all seeds on a task, as a run does between two evaluations.

    Args:
      method: as :func:`hmcl_jax.continual.make_method` gives it.
      carried: from the task before; ``Carried()`` before the first.
      tasks: the task and its index in the stream, then further ones that each step goes over.
      setting: of the stream.
      programs: compiled ones, to be used again.
      on_epoch: called with the number of epochs done and all epochs.

    Returns:
      The start of the next task, and the course of this one.

    Example:
      >>> from hmcl_jax.continual import Carried, Setting, learn_task, make_method
      >>> from hmcl_jax.data.synthetic import synthetic_stream
      >>> store = synthetic_stream(tasks=2, dimension=8)
      >>> method, carried = make_method("hmcl_ca"), Carried()
      >>> setting = Setting(store.K, store.tau, seeds=(0, 1))
      >>> for index, task in enumerate(store):
      ...     carried, learned = learn_task(method, carried, [(task, index)], setting)
      >>> print(carried.heads["text"].shape, learned.losses.shape)
      (2, 8, 9) (2, 10)
    """
    programs = Programs(setting.train) if programs is None else programs
    task, index = tasks[0]
    carried = add_missing_heads(method, carried, [task for task, _ in tasks], setting)
    spec, swept = setting.spec(task, index), apply_sweep(method, setting.sweep)
    heads, opt_state, state = carried[:3]
    assert state is not None
    opt_state = initial_opt_state(method, carried, spec, programs)
    opt_state = swept.begin_task(opt_state, state, heads, spec)
    # Hosts may round differently, but devices must start from the same numbers.
    heads, state, opt_state = from_first((heads, state, opt_state))

    mesh, seeds = programs.mesh, setting.seeds
    guarded = wrap(opt_state, heads, (len(seeds),))
    start = TrainState(heads, guarded, state.own, dict(setting.sweep))
    end, losses, steps = fit_task(
        programs,
        method,
        make_feeds(tasks, setting, programs),
        mesh.shard_seeds(start),
        mesh.replicate(state.shared),
        setting.train.schedule(task.kind).epochs,
        on_epoch,
    )
    new_heads, guarded = mesh.whole((end.heads, end.opt_state))

    modalities = tuple(dict.fromkeys((task.general, task.specific)))
    losses = np.asarray(losses, float)  # a spike's threshold may overflow float32
    about = (seeds, task.name, modalities, setting.train)
    carried = carried.stop(find_stopped(guarded, losses, new_heads, *about))
    # Moments that overflow make steps of 0, which are finite, so the heads do not show them.
    opt_state, carried = _clean(guarded.inner, carried, task, seeds)
    bad = carried.is_stopped(len(seeds))[:, None, None]
    if bad.any():
        new_heads = {m: jnp.where(bad, heads[m], W) for m, W in new_heads.items()}
    state = swept.end_task(state, new_heads, task_data(task, spec, seeds, index))
    own, carried = _clean(state.own, carried, task, seeds)
    state = state._replace(own=own)
    check_finite(method.name, task.name, (new_heads, state))
    jax.block_until_ready((new_heads, state))
    metrics = {**steps, **method.task_metrics(state, opt_state, steps)}
    metrics = {name: np.asarray(x, float) for name, x in metrics.items()}
    carried = Carried(new_heads, opt_state, state, carried.stopped)
    return carried, Learned(losses, metrics, np.asarray(guarded.skipped))


def _clean(tree: Any, carried: Carried, task: Task, seeds: tuple[int, ...]) -> tuple[Any, Carried]:
    """A state without non-finite numbers; stops the seeds that had some."""
    tree, bad = clean_state(tree, carried.is_stopped(len(seeds)))
    return tree, carried.stop(
        [Stopped(int(i), seeds[i], task.name, 0, "state", ()) for i in bad.nonzero()[0]]
    )


def add_missing_heads(
    method: Method, carried: Carried, tasks: list[Task], setting: Setting
) -> Carried:
    """Heads for modalities that no task before had."""
    seen = [m for task in tasks for m in (task.general, task.specific)]
    new = [m for m in dict.fromkeys(seen) if m not in carried.heads]
    if not new:
        return carried
    dimension = training_pairs(tasks[0]).specific.shape[1]
    head = np.asarray(identity_head(dimension, jnp.result_type(float)))
    fresh = {m: jnp.asarray(np.repeat(head[None], len(setting.seeds), axis=0)) for m in new}
    heads = dict(sorted({**carried.heads, **fresh}.items()))
    state = method.add_modalities(carried.state, heads) if carried.state else method.init(heads)
    return carried._replace(heads=heads, state=state)


def initial_opt_state(method: Method, carried: Carried, spec: TaskSpec, programs: Programs) -> Any:
    """A fresh optimizer state, or one with all leaves of the old one that still fit."""
    fresh = programs.init_optimizer(method, spec)(carried.heads)
    if spec.train.reset_optimizer or carried.opt_state is None:
        return fresh
    known = dict(jax.tree_util.tree_leaves_with_path(carried.opt_state))

    def kept(path: Any, leaf: jax.Array) -> jax.Array:
        # A modality that is new has no old leaf; ranks and spans may change the shape of others.
        old = known.get(path, leaf)
        return old if (old.shape, old.dtype) == (leaf.shape, leaf.dtype) else leaf

    return jax.tree_util.tree_map_with_path(kept, fresh)


def make_feeds(tasks: list[TaskAt], setting: Setting, programs: Programs) -> list[TaskFeed]:
    """The feeds of tasks that are trained together; those that fit into the device budget stay."""
    room = setting.train.device_memory * 2**20
    # Joint training goes over a task again in every stage, each time in other orders.
    first_epoch = 1000 * tasks[0][1] if len(tasks) > 1 else 0
    feeds = []
    for task, index in tasks:
        data, spec = training_pairs(task), setting.spec(task, index)
        size = data.specific.nbytes + data.general.nbytes
        resident = size <= room
        room -= size if resident else 0
        feed = task_feed(data, spec, index, setting.seeds, programs.mesh, resident)
        if first_epoch:
            feed = dataclasses.replace(feed, feeds=_from_epoch(first_epoch, feed.feeds))
        feeds.append(feed)
    return feeds


def _from_epoch(first: int, feeds: Callable[[int], Any]) -> Callable[[int], Any]:
    return lambda epoch: feeds(first + epoch)


def task_data(task: Task, spec: TaskSpec, seeds: tuple[int, ...], index: int) -> TaskData:
    """A learned task for :meth:`Method.end_task`."""
    data = training_pairs(task)
    pairs = np.asarray(data.pairs)
    features: dict[str, np.ndarray] = {}
    counts: dict[str, np.ndarray] = {}
    sides = ((spec.general, data.general, 1), (spec.specific, data.specific, 0))
    for modality, rows, column in sides:
        times = np.bincount(pairs[:, column], minlength=len(rows))
        if modality in features:
            rows = np.concatenate([features[modality], rows])
            times = np.concatenate([counts[modality], times])
        features[modality], counts[modality] = rows, times
    return TaskData(spec, features, counts, pairs, data.general, data.specific, seeds, index)


def own_config(config: TrainConfig, method: Method) -> TrainConfig:
    """The shared settings, with those that are others for a method."""
    return from_mapping(config, method.train, f"methods.{method.name}.train")
