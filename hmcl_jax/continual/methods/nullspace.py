r"""Null-space projection behind the optimizer: the Euclidean twin of minimal rotation.

Adam-NSCL's idea (Wang et al. 2021): the step that AdamW takes, :math:`\Delta`, becomes
:math:`\Delta (I - P)` with P the projector on the leading directions of the lifted features of old
tasks, time included, so that old outputs stay where they are. Minimal rotation holds the time
column instead.
"""

import dataclasses
import functools
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import optax

from hmcl_jax._checks import PRECISION
from hmcl_jax.continual.config import at_least, fraction
from hmcl_jax.continual.method import Heads, Method, MethodState, TaskData, TaskSpec, adamw
from hmcl_jax.continual.methods.hmcl import add_moments, empty_moments


class NullspaceState(NamedTuple):
    """State of :func:`nullspace_project`."""

    projector: Heads  # P by modality


@dataclasses.dataclass(frozen=True)
class Nullspace(Method):
    """The null-space projection."""

    variance: float = 0.99  # share of the lifted features' energy whose directions are protected
    min_rank: int = 8  # least number of protected directions

    sweepable = ("variance",)

    def check(self) -> None:
        fraction("variance", self.variance, zero=False, one=True)
        at_least("min_rank", self.min_rank, 0)

    def init(self, heads: Heads) -> MethodState:
        return empty_moments(heads)

    def optimizer(self, spec: TaskSpec) -> optax.GradientTransformation:
        return optax.chain(adamw(spec), nullspace_project())

    def begin_task(self, opt_state: Any, state: MethodState, heads: Heads, spec: TaskSpec) -> Any:
        if spec.is_first:
            return opt_state
        seeds = len(next(iter(heads.values())))
        variance = jnp.broadcast_to(self.variance, seeds)
        projector = _projectors(state.shared.total, variance, self.min_rank)
        return (*opt_state[:-1], NullspaceState(projector))

    def end_task(self, state: MethodState, heads: Heads, data: TaskData) -> MethodState:
        return add_moments(state, data)


def nullspace_project() -> optax.GradientTransformation:
    """Takes the protected directions out of an update; :meth:`Nullspace.begin_task` sets them."""

    def init_fn(heads: Heads) -> NullspaceState:
        return NullspaceState(
            {m: jnp.zeros((W.shape[1], W.shape[1]), W.dtype) for m, W in heads.items()}
        )

    def update_fn(
        updates: Heads, state: NullspaceState, heads: Any = None
    ) -> tuple[Heads, NullspaceState]:
        product = functools.partial(jnp.matmul, precision=PRECISION)
        return {m: u - product(u, state.projector[m]) for m, u in updates.items()}, state

    return optax.GradientTransformation(init_fn, update_fn)


@functools.partial(jax.jit, static_argnames="min_rank")
def _projectors(total: Heads, variance: jax.Array, min_rank: int) -> Heads:
    """Projectors of every seed; the moments are shared, the shares `variance` may differ."""

    def of_moment(moment: jax.Array) -> jax.Array:
        values, vectors = jnp.linalg.eigh((moment + moment.T) / 2)
        values, vectors = jnp.maximum(values[::-1], 0), vectors[:, ::-1]

        def projector(share: jax.Array) -> jax.Array:
            below = jnp.cumsum(values) < share * jnp.sum(values)
            # The least rank that holds the share; directions without energy are no directions.
            rank = jnp.maximum(1 + jnp.sum(below), min_rank)
            used = (jnp.arange(len(values)) < rank) & (values > 0)
            kept = vectors * used[None, :].astype(vectors.dtype)
            return jnp.matmul(kept, kept.T, precision=PRECISION)

        return jax.lax.map(projector, variance.astype(values.dtype))

    return {modality: of_moment(moment) for modality, moment in total.items()}
