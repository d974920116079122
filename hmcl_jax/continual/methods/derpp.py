r"""Dark experience replay (Buzzega et al. 2020, DER++): old pairs are replayed and held.

Every minibatch's loss gains
:math:`\alpha\, \mathrm{mean} (y - y^*)^2 + \beta\, \mathrm{mean}\, \ell` over the memory, with
:math:`y^*` the points when the pair was stored and :math:`\ell` the pair's loss among those of its
task. As in the original, the first mean is over pairs and components; a pair has 2 d of them, those
of both its points.

It differs from the original in four ways. The outputs that are held are points, not logits: pairs
have no fixed classes. Both terms are over the whole memory, not over random minibatches of it, so
they are the same for every minibatch of a step and are computed once. Points are stored at the end
of a task, not while it is learned. The memory holds as many pairs of every task, as the other
methods' memories do, instead of a reservoir sample.
"""

import dataclasses

import jax
import jax.numpy as jnp

from hmcl_jax.continual.config import at_least, not_negative
from hmcl_jax.continual.method import Heads, MethodState, TaskSpec
from hmcl_jax.continual.methods.replay_memory import Replay, memory_losses, memory_points


@dataclasses.dataclass(frozen=True)
class Derpp(Replay):
    """DER++."""

    alpha: float = 0.5  # weight of staying, on the original's scale: of a mean over components too
    beta: float = 0.5  # weight of the replayed loss

    sweepable = ("alpha", "beta")

    def check(self) -> None:
        not_negative("alpha", self.alpha)
        not_negative("beta", self.beta)
        at_least("memory", self.memory, 1)

    def combine(
        self,
        gradients: tuple[Heads, ...],
        heads: Heads,
        state: MethodState,
        num_minibatches: jax.Array,
        spec: TaskSpec,
    ) -> Heads:
        memory = state.own["memory"]

        def replayed(heads: Heads) -> jax.Array:
            general, specific = memory_points(memory, heads, spec.K)
            held = (memory.task >= 0).astype(general.dtype)
            count = jnp.maximum(jnp.sum(held), 1)
            moved = (general - memory.general_points) ** 2
            moved += (specific - memory.specific_points) ** 2
            stay = jnp.sum(held * jnp.mean(moved, axis=1)) / (2 * count)
            again = jnp.sum(memory_losses(general, specific, memory, spec)) / count
            return self.alpha * stay + self.beta * again

        added = jax.grad(replayed)(heads)
        return jax.tree.map(
            lambda g, r: g + num_minibatches.astype(g.dtype) * r, gradients[0], added
        )
