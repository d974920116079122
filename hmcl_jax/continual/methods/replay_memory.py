"""A small memory of old pairs, and the loss on it; for the methods that replay.

The memory holds at most `slots` pairs, as many of every task: after t tasks the first
``slots // t`` of each, in the order in which they were drawn at its end. Each seed draws its own.
Pairs contrast only with pairs of their own task, as they did when they were learned.
"""

import dataclasses
import zlib
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from hmcl_jax import entailment, lorentz
from hmcl_jax.continual.config import ConfigError
from hmcl_jax.continual.method import Heads, Method, MethodState, TaskData, TaskSpec
from hmcl_jax.head import apply_head

SALT = 0x6D656D  # keeps these draws apart from the orders of the pairs


class Memory(NamedTuple):
    """Pairs of old tasks, ``slots`` of them; with a leading seed axis outside of the training."""

    general: jax.Array  # frozen features, (slots, d)
    specific: jax.Array
    general_head: jax.Array  # number of the modality, see head_number
    specific_head: jax.Array
    task: jax.Array  # index of the pair's task in the stream; -1 for an empty slot
    general_points: jax.Array  # points under the heads at the end of the pair's task, (slots, d)
    specific_points: jax.Array


@dataclasses.dataclass(frozen=True)
class Replay(Method):
    """A method that keeps a memory of pairs."""

    memory: int = 512  # pairs in all, as many of every task (paper: apdx:reproducibility_notes)

    def init(self, heads: Heads) -> MethodState:
        return MethodState((), {"memory": empty_memory(self.memory, heads)})

    def end_task(self, state: MethodState, heads: Heads, data: TaskData) -> MethodState:
        return state._replace(own={"memory": remember(state.own["memory"], data, heads)})


def empty_memory(slots: int, heads: Heads) -> Memory:
    """A memory without pairs, for heads with a seed axis."""
    W = next(iter(heads.values()))
    features = jnp.zeros((W.shape[0], slots, W.shape[1]), W.dtype)
    numbers = jnp.zeros((W.shape[0], slots), jnp.int32)
    return Memory(features, features, numbers, numbers, numbers - 1, features, features)


def remember(memory: Memory, data: TaskData, heads: Heads) -> Memory:
    """The memory after a task: older tasks give room for pairs of the new one."""
    slots = memory.task.shape[1]
    stored = {name: np.array(value) for name, value in memory._asdict().items()}
    tasks = int(stored["task"].max(initial=-1)) + 2
    if tasks > slots:
        raise ConfigError(f"memory must be at least the number of tasks, {tasks}, got {slots}.")
    quota = slots // tasks
    fresh = {name: np.zeros_like(value) for name, value in stored.items()}
    fresh["task"][:] = -1
    for row, seed in enumerate(data.seeds):
        at = 0
        for task in range(tasks - 1):
            kept = np.flatnonzero(stored["task"][row] == task)[:quota]
            for name, value in stored.items():
                fresh[name][row, at : at + len(kept)] = value[row, kept]
            at += len(kept)
        rng = np.random.default_rng([seed, data.task_index, SALT])
        pairs = data.pairs[rng.permutation(len(data.pairs))[:quota]]
        room = slice(at, at + len(pairs))
        sides = (("specific", 0, data.spec.specific), ("general", 1, data.spec.general))
        for side, column, modality in sides:
            features = getattr(data, side)[pairs[:, column]].astype(fresh[side].dtype)
            points = apply_head(heads[modality][row], features, data.spec.K)
            fresh[side][row, room] = features
            fresh[f"{side}_head"][row, room] = head_number(modality)
            fresh[f"{side}_points"][row, room] = points
        fresh["task"][row, room] = tasks - 1
    return Memory(**{name: jnp.asarray(value) for name, value in fresh.items()})


def head_number(modality: str) -> int:
    """A number for a modality that does not depend on the others."""
    return zlib.crc32(modality.encode()) & 0x7FFFFFFF


def memory_points(memory: Memory, heads: Heads, K: float) -> tuple[jax.Array, jax.Array]:
    """What the heads make of the stored pairs, general and specific, for one seed."""

    def points(features: jax.Array, head: jax.Array) -> jax.Array:
        # All features through all heads: which slot needs which head is not static.
        found = jnp.zeros_like(features)
        for modality, W in heads.items():
            here = apply_head(W, features, K)
            found = jnp.where((head == head_number(modality))[:, None], here, found)
        return found

    general = points(memory.general, memory.general_head)
    return general, points(memory.specific, memory.specific_head)


def memory_losses(
    general: jax.Array, specific: jax.Array, memory: Memory, spec: TaskSpec
) -> jax.Array:
    """Loss of every stored pair among those of its task, 0 for empty slots, for one seed.

    The mean over the pairs of one task is :func:`hmcl_jax.objective.pair_loss` of them.
    """
    valid = memory.task >= 0
    together = (memory.task[:, None] == memory.task[None, :]) & valid[:, None] & valid[None, :]
    # Empty slots are put apart, where everything has a finite gradient.
    general, specific = (jnp.where(valid[:, None], x, 0.1) for x in (general, specific))
    logits = -lorentz.pairwise_distance(general, specific, spec.K) / spec.tau
    masked = jnp.where(together, logits, jnp.finfo(logits.dtype).min / 4)
    towards = (jax.nn.logsumexp(masked, axis=1) + jax.nn.logsumexp(masked, axis=0)) / 2
    outside = entailment.entailment_loss(general, specific, spec.K, spec.train.kappa)
    rows = towards - jnp.diagonal(logits) + spec.train.entailment_weight * outside
    return jnp.where(valid, rows, 0)


def task_weights(memory: Memory) -> jax.Array:
    """One over the number of stored pairs of the pair's task, 0 for empty slots."""
    valid = memory.task >= 0
    together = (memory.task[:, None] == memory.task[None, :]) & valid[None, :]
    counts = jnp.maximum(together.sum(axis=1), 1).astype(memory.general.dtype)
    return jnp.where(valid, 1 / counts, 0)
