r"""C-FLAT around AdamW, with Co2L's distillation.

From the second task on a step takes four gradients of the objective, at :math:`\theta`, at
:math:`\theta + e_0`, :math:`\theta + e_1` and :math:`\theta + e_1 + e_2` with

.. math::
  e_0 = \rho \frac{g_0}{\|g_0\|}, \quad e_1 = \rho \frac{g_1 - g_0}{\|g_1 - g_0\|}, \quad
  e_2 = \rho \frac{g_2}{\|g_2\|}, \qquad g = g_1 + \lambda (g_3 - g_2),

and AdamW steps with g. The objective has the distillation term of Co2L: among the points of a
minibatch and of some pairs of the memory (others for the next minibatch, in turns, as if the memory
had been shuffled into the task), general and specific ones as two views, cosine similarities should
stay as they were at the end of the task before, :math:`-\sum_{j \ne i} p^*_{ij} \log p_{ij}` with
temperatures kappa (now) and kappa* (then).

Co2L also contrasts with the memory: samples of the task are its anchors, stored ones further
negatives. Here stored pairs take part in the distillation alone. All methods of this package train
the same objective, the paper's, in which a pair contrasts with pairs of its own task; with other
negatives the losses, and so the methods, could no longer be compared. The paper's C-FLAT, too, is
"Co2L contrastive distillation" under "the same hyperbolic objective".
"""

import dataclasses
import functools

import jax
import jax.numpy as jnp
from jax.typing import ArrayLike

from hmcl_jax.continual.config import at_least, not_negative, one_of, positive
from hmcl_jax.continual.method import Batch, Heads, Method, MethodState, TaskEnd, TaskInfo, knob
from hmcl_jax.continual.methods.memory import empty_memory, memory_points, remember
from hmcl_jax.head import apply_head


@dataclasses.dataclass(frozen=True)
class CflatSettings:
    """Settings of C-FLAT.

    Attributes:
      rho: length of the perturbations (paper: 0.2).
      coefficient: lambda, weight of the flatness of the gradient (paper: 0.2).
      power: weight of the distillation (paper: 1.0).
      temperature: kappa, of the similarities now.
      past_temperature: kappa*, of those at the end of the task before.
      memory: pairs kept in all, which take part in the distillation (paper: 512); with 0 it is over
        the minibatch alone.
      beside: pairs of the memory that stand beside each minibatch.
      perturb: one perturbation per optimizer ``"step"``, or one per ``"minibatch"``.
    """

    rho: float = 0.2
    coefficient: float = 0.2
    power: float = 1.0
    temperature: float = 0.2
    past_temperature: float = 0.01
    memory: int = 512
    beside: int = 64
    perturb: str = "step"

    def __post_init__(self) -> None:
        positive("rho", self.rho)
        not_negative("coefficient", self.coefficient)
        not_negative("power", self.power)
        positive("temperature", self.temperature)
        positive("past_temperature", self.past_temperature)
        at_least("memory", self.memory, 0)
        at_least("beside", self.beside, 1)
        one_of("perturb", self.perturb, ("step", "minibatch"))


def make(name: str, settings: CflatSettings) -> Method:
    """The record of C-FLAT."""
    return Method(
        name,
        settings,
        init=functools.partial(_init, settings),
        widen=_widen,
        term=functools.partial(_distillation, settings),
        stages=lambda info: 1 if info.first else 4,
        point=functools.partial(_point, settings),
        combine=functools.partial(_combine, settings),
        per_minibatch=settings.perturb == "minibatch",
        end_task=_end_task,
    )


def _init(settings: CflatSettings, params: Heads) -> MethodState:
    own = {"teacher": jax.tree.map(jnp.copy, params)}
    if settings.memory:
        own["memory"] = empty_memory(settings.memory, params)
    return MethodState((), own)


def _widen(state: MethodState, params: Heads) -> MethodState:
    new = {m: jnp.copy(W) for m, W in params.items()}
    return state._replace(own={**state.own, "teacher": {**new, **state.own["teacher"]}})


def _end_task(state: MethodState, params: Heads, end: TaskEnd) -> MethodState:
    own = {"teacher": jax.tree.map(jnp.copy, params)}
    if "memory" in state.own:
        own["memory"] = remember(state.own["memory"], end, params)
    return state._replace(own=own)


def _scaled(tree: Heads, length: ArrayLike) -> Heads:
    """A tree of global norm `length`, like the original in adding 1e-12."""
    norm = jnp.sqrt(sum(jnp.sum(x**2) for x in jax.tree.leaves(tree)))
    return jax.tree.map(lambda x: length * x / (norm + 1e-12), tree)


def _point(
    settings: CflatSettings, params: Heads, gradients: tuple[Heads, ...], state: MethodState
) -> Heads:
    rho = knob(settings, state, "rho")
    if not gradients:
        return params
    if len(gradients) == 1:
        return jax.tree.map(jnp.add, params, _scaled(gradients[0], rho))
    e1 = _scaled(jax.tree.map(jnp.subtract, gradients[1], gradients[0]), rho)
    at = jax.tree.map(jnp.add, params, e1)
    if len(gradients) == 2:
        return at
    return jax.tree.map(jnp.add, at, _scaled(gradients[2], rho))


def _combine(
    settings: CflatSettings,
    gradients: tuple[Heads, ...],
    params: Heads,
    state: MethodState,
    minibatches: jax.Array,
    info: TaskInfo,
) -> Heads:
    del params, minibatches, info
    if len(gradients) == 1:
        return gradients[0]
    coefficient = knob(settings, state, "coefficient")
    _, g1, g2, g3 = gradients
    return jax.tree.map(lambda a, b, c: a + coefficient * (c - b), g1, g2, g3)


def _distillation(
    settings: CflatSettings, state: MethodState, batch: Batch, info: TaskInfo
) -> jax.Array:
    if info.first:
        return jnp.zeros((), batch.general_points.dtype)
    teacher, slots = state.own["teacher"], settings.memory
    now = [batch.general_points, batch.specific_points]
    past = [
        apply_head(teacher[info.general], batch.general, info.K),
        apply_head(teacher[info.specific], batch.specific, info.K),
    ]
    rows = [batch.valid, batch.valid]
    if slots:
        beside = jnp.arange(min(settings.beside, slots), dtype=jnp.int32)
        turn = batch.place * settings.beside + beside
        memory = jax.tree.map(lambda x: x[turn % slots], state.own["memory"])
        now += memory_points(memory, batch.heads, info.K)
        past += memory_points(memory, teacher, info.K)
        rows += [memory.task >= 0] * 2
    valid = jnp.concatenate(rows)
    wanted = _log_similarities(jnp.concatenate(past), valid, settings.past_temperature)
    found = _log_similarities(jnp.concatenate(now), valid, settings.temperature)
    seen = valid[:, None] & valid[None, :] & ~jnp.eye(valid.shape[0], dtype=bool)
    target = jax.lax.stop_gradient(jnp.where(seen, jnp.exp(wanted), 0))
    losses = -jnp.sum(target * jnp.where(seen, found, 0), axis=1)
    count = jnp.maximum(jnp.sum(valid), 1).astype(losses.dtype)
    return knob(settings, state, "power") * jnp.sum(jnp.where(valid, losses, 0)) / count


def _log_similarities(points: jax.Array, valid: jax.Array, temperature: float) -> jax.Array:
    """Log softmax of cosines over the other valid rows."""
    square = jnp.sum(points**2, axis=1, keepdims=True)
    tiny = jnp.finfo(points.dtype).tiny ** 0.5
    safe = jnp.where(square > tiny, square, 1)
    unit = jnp.where(square > tiny, points * jax.lax.rsqrt(safe), 0)
    cosines = jnp.matmul(unit, unit.T, precision=jax.lax.Precision.HIGHEST) / temperature
    seen = valid[None, :] & ~jnp.eye(valid.shape[0], dtype=bool)
    masked = jnp.where(seen, cosines, jnp.finfo(points.dtype).min / 4)
    return jax.nn.log_softmax(masked, axis=1)
