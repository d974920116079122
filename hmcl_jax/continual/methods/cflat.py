r"""C-FLAT (Bian et al. 2024) around AdamW, with the distillation of Co2L (Cha et al. 2021).

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

Co2L also contrasts with the memory. Here stored pairs take part in the distillation alone: all
methods of this package train the paper's objective, in which a pair contrasts with pairs of its own
task; with other negatives their losses could not be compared. The paper's C-FLAT, too, is "Co2L
contrastive distillation" under "the same hyperbolic objective".
"""

import dataclasses

import jax
import jax.numpy as jnp
from jax.typing import ArrayLike

from hmcl_jax._checks import PRECISION
from hmcl_jax.continual.config import at_least, not_negative, one_of, positive
from hmcl_jax.continual.method import (
    Heads,
    Method,
    MethodState,
    Minibatch,
    Probe,
    TaskData,
    TaskSpec,
    at_current_heads,
)
from hmcl_jax.continual.methods.replay_memory import empty_memory, memory_points, remember
from hmcl_jax.head import apply_head


@dataclasses.dataclass(frozen=True)
class Cflat(Method):
    """C-FLAT; the paper gives rho, lambda, power and memory (apdx:reproducibility_notes)."""

    rho: float = 0.2  # length of the perturbations
    coefficient: float = 0.2  # lambda, weight of the flatness of the gradient
    power: float = 1.0  # weight of the distillation
    temperature: float = 0.2  # kappa, of the similarities now; Co2L's default
    past_temperature: float = 0.01  # kappa*, of those at the end of the task before
    memory: int = 512  # pairs in all, which take part in the distillation; 0 for none
    beside: int = 64  # pairs of the memory that join each minibatch
    perturb: str = "step"  # one perturbation per optimizer step, or one per "minibatch"

    sweepable = ("power", "rho", "coefficient")

    def check(self) -> None:
        positive("rho", self.rho)
        not_negative("coefficient", self.coefficient)
        not_negative("power", self.power)
        positive("temperature", self.temperature)
        positive("past_temperature", self.past_temperature)
        at_least("memory", self.memory, 0)
        at_least("beside", self.beside, 1)
        one_of("perturb", self.perturb, ("step", "minibatch"))

    @property
    def per_minibatch(self) -> bool:  # type: ignore[override]
        return self.perturb == "minibatch"

    def init(self, heads: Heads) -> MethodState:
        own = {"teacher": jax.tree.map(jnp.copy, heads)}
        if self.memory:
            own["memory"] = empty_memory(self.memory, heads)
        return MethodState((), own)

    def extra_loss(self, state: MethodState, minibatch: Minibatch, spec: TaskSpec) -> jax.Array:
        if spec.is_first:
            return jnp.zeros((), minibatch.general_points.dtype)
        teacher, slots = state.own["teacher"], self.memory
        now = [minibatch.general_points, minibatch.specific_points]
        past = [
            apply_head(teacher[spec.general], minibatch.general, spec.K),
            apply_head(teacher[spec.specific], minibatch.specific, spec.K),
        ]
        rows = [minibatch.valid, minibatch.valid]
        if slots:
            beside = jnp.arange(min(self.beside, slots), dtype=jnp.int32)
            turn = minibatch.number * self.beside + beside
            memory = jax.tree.map(lambda x: x[turn % slots], state.own["memory"])
            now += memory_points(memory, minibatch.heads, spec.K)
            past += memory_points(memory, teacher, spec.K)
            rows += [memory.task >= 0] * 2
        valid = jnp.concatenate(rows)
        wanted = _log_similarities(jnp.concatenate(past), valid, self.past_temperature)
        found = _log_similarities(jnp.concatenate(now), valid, self.temperature)
        seen = valid[:, None] & valid[None, :] & ~jnp.eye(valid.shape[0], dtype=bool)
        # log_softmax, because the logarithm of a softmax at temperature 0.01 underflows.
        target = jax.lax.stop_gradient(jnp.where(seen, jnp.exp(wanted), 0))
        losses = -jnp.sum(target * jnp.where(seen, found, 0), axis=1)
        count = jnp.maximum(jnp.sum(valid), 1).astype(losses.dtype)
        return self.power * jnp.sum(jnp.where(valid, losses, 0)) / count

    def probes(self, spec: TaskSpec) -> tuple[Probe, ...]:
        if spec.is_first:
            return (at_current_heads,)
        return (at_current_heads, *[self._perturbed] * 3)

    def _perturbed(self, heads: Heads, gradients: tuple[Heads, ...], state: MethodState) -> Heads:
        """The heads plus e_0, then plus e_1, then plus e_1 + e_2."""
        if len(gradients) == 1:
            return jax.tree.map(jnp.add, heads, _scaled(gradients[0], self.rho))
        e1 = _scaled(jax.tree.map(jnp.subtract, gradients[1], gradients[0]), self.rho)
        at = jax.tree.map(jnp.add, heads, e1)
        if len(gradients) == 2:
            return at
        return jax.tree.map(jnp.add, at, _scaled(gradients[2], self.rho))

    def combine(
        self,
        gradients: tuple[Heads, ...],
        heads: Heads,
        state: MethodState,
        num_minibatches: jax.Array,
        spec: TaskSpec,
    ) -> Heads:
        if len(gradients) == 1:  # plain AdamW on the first task, as in the original
            return gradients[0]
        # From g1, not g0: the gradient at the perturbed point is that of the flat objective.
        _, g1, g2, g3 = gradients
        return jax.tree.map(lambda a, b, c: a + self.coefficient * (c - b), g1, g2, g3)

    def end_task(self, state: MethodState, heads: Heads, data: TaskData) -> MethodState:
        own = {"teacher": jax.tree.map(jnp.copy, heads)}
        if "memory" in state.own:
            own["memory"] = remember(state.own["memory"], data, heads)
        return state._replace(own=own)


def _scaled(tree: Heads, length: ArrayLike) -> Heads:
    """A tree of global norm `length`, like the original in adding 1e-12."""
    norm = jnp.sqrt(sum(jnp.sum(x**2) for x in jax.tree.leaves(tree)))
    return jax.tree.map(lambda x: length * x / (norm + 1e-12), tree)


def _log_similarities(points: jax.Array, valid: jax.Array, temperature: float) -> jax.Array:
    """Log softmax of cosines over the other valid rows."""
    square = jnp.sum(points**2, axis=1, keepdims=True)
    tiny = jnp.finfo(points.dtype).tiny ** 0.5
    safe = jnp.where(square > tiny, square, 1)
    unit = jnp.where(square > tiny, points * jax.lax.rsqrt(safe), 0)
    cosines = jnp.matmul(unit, unit.T, precision=PRECISION) / temperature
    seen = valid[None, :] & ~jnp.eye(valid.shape[0], dtype=bool)
    masked = jnp.where(seen, cosines, jnp.finfo(points.dtype).min / 4)
    return jax.nn.log_softmax(masked, axis=1)
