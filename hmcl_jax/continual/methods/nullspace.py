r"""Null-space projection behind the optimizer: the Euclidean twin of minimal rotation.

Adam-NSCL's idea: the step that AdamW takes, :math:`\Delta`, becomes :math:`\Delta (I - P)` with P
the projector on the leading directions of the lifted features of old tasks, time included, so that
old outputs stay where they are. Minimal rotation holds the time column instead.
"""

import dataclasses
import functools
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import optax

from hmcl_jax.continual.config import TrainConfig, at_least, fraction
from hmcl_jax.continual.method import Heads, Method, MethodState, TaskInfo, adamw, knob
from hmcl_jax.continual.methods import hmcl


@dataclasses.dataclass(frozen=True)
class NullspaceSettings:
    """Settings of the null-space projection.

    Attributes:
      variance: share of the lifted features' energy whose directions are protected.
      min_rank: least number of protected directions.
    """

    variance: float = 0.99
    min_rank: int = 8

    def __post_init__(self) -> None:
        fraction("variance", self.variance, zero=False, one=True)
        at_least("min_rank", self.min_rank, 0)


class NullspaceState(NamedTuple):
    """State of the projection.

    Attributes:
      projector: P by modality.
    """

    projector: Any


def make(name: str, settings: NullspaceSettings) -> Method:
    """The record of the null-space projection."""
    return Method(
        name,
        settings,
        init=hmcl.init_state,
        widen=hmcl.widen_state,
        transform=_transform,
        begin_task=functools.partial(_begin_task, settings),
        end_task=hmcl.add_moments,
    )


def nullspace_project() -> optax.GradientTransformation:
    """Takes the protected directions out of an update; :func:`_begin_task` sets them."""

    def init_fn(params: Heads) -> NullspaceState:
        return NullspaceState(
            {m: jnp.zeros((W.shape[1], W.shape[1]), W.dtype) for m, W in params.items()}
        )

    def update_fn(
        updates: Heads, state: NullspaceState, params: Any = None
    ) -> tuple[Heads, NullspaceState]:
        del params
        product = functools.partial(jnp.matmul, precision=jax.lax.Precision.HIGHEST)
        return {m: u - product(u, state.projector[m]) for m, u in updates.items()}, state

    return optax.GradientTransformation(init_fn, update_fn)


def _transform(config: TrainConfig, info: TaskInfo) -> optax.GradientTransformation:
    return optax.chain(adamw(config, info), nullspace_project())


def _begin_task(
    settings: NullspaceSettings, opt_state: Any, state: MethodState, params: Heads, info: TaskInfo
) -> Any:
    if info.first:
        return opt_state
    seeds = next(iter(params.values())).shape[0]
    variance = jnp.broadcast_to(knob(settings, state, "variance"), seeds)
    projector = _projectors(state.shared.total, variance, settings.min_rank)
    return (*opt_state[:-1], NullspaceState(projector))


@functools.partial(jax.jit, static_argnames="min_rank")
def _projectors(total: Heads, variance: jax.Array, min_rank: int) -> Heads:
    """Projectors for every share in `variance`."""

    def of_moment(moment: jax.Array) -> jax.Array:
        values, vectors = jnp.linalg.eigh((moment + moment.T) / 2)
        values, vectors = jnp.maximum(values[::-1], 0), vectors[:, ::-1]

        def projector(share: jax.Array) -> jax.Array:
            below = jnp.cumsum(values) < share * jnp.sum(values)
            rank = jnp.maximum(1 + jnp.sum(below), min_rank)
            used = (jnp.arange(len(values)) < rank) & (values > 0)
            kept = vectors * used[None, :].astype(vectors.dtype)
            return jnp.matmul(kept, kept.T, precision=jax.lax.Precision.HIGHEST)

        return jax.lax.map(projector, variance.astype(values.dtype))

    return {modality: of_moment(moment) for modality, moment in total.items()}
