r"""Elastic weight consolidation (Kirkpatrick et al. 2017): a penalty where the loss was sensitive.

At the end of task s a memory :math:`M_s` of its pairs gives a diagonal Fisher :math:`F_s`; later
minibatches add :math:`\lambda \sum_s \sum_i F_{s,i} (\theta_i - \theta^*_{s,i})^2` to their loss.
Only :math:`\sum F_s` and :math:`\sum F_s (\theta^*_s - \theta^*)` are kept, whatever the number of
tasks, relative to the parameters :math:`\theta^*` at the end of the last one. So after one task the
penalty is exactly 0 where the next one starts; AdamW would turn its rounding into whole steps. The
penalty moves only the heads of the current task. A head that the task does not have stays where it
is, because no gradient of the loss would stand against the penalty's.

How strong the penalty is depends on the estimate of F far more than on :math:`\lambda`. On the
embedded stream with :math:`\lambda = 10^{-4}` the penalty's gradient at the end of a task, as a
share of the loss's (``experiments/configs/ewc_fishers.toml`` prints it), reaches 6e-2
(``"batch"``), 3e-3 (``"minibatch"``) and 4e-2 (``"sample"``) with sums over pairs; with means, also
if divided by their largest entry, at most 2e-4, which is plain fine-tuning. The paper's EWC is not
plain fine-tuning, and its pair of coefficient and memory is that of the square of one batch's
gradient; so the default is ``"batch"`` with ``"sum"``.
"""

import dataclasses
import functools
from collections.abc import Mapping
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
from jax.typing import ArrayLike

from hmcl_jax import objective
from hmcl_jax.continual.config import at_least, fraction, not_negative, one_of
from hmcl_jax.continual.method import Heads, Method, MethodState, TaskData, TaskSpec
from hmcl_jax.head import apply_head

FISHERS = ("batch", "minibatch", "sample")
SALT = 0x657763
MINIBATCH = 64


@dataclasses.dataclass(frozen=True)
class Ewc(Method):
    """EWC; the paper gives coefficient and memory (apdx:reproducibility_notes)."""

    coefficient: float = 1e-4  # lambda of the penalty
    memory: int = 512  # pairs per task that the Fisher is estimated on
    # Square of the memory's gradient as one "batch", mean of the squares over "minibatch"es of 64,
    # or over every "sample" among the negatives of the memory.
    fisher: str = "batch"
    reduction: str = "sum"  # of the loss whose gradient is squared, or "mean", over its pairs
    normalize: str = "none"  # or "max" to divide each Fisher by its largest entry
    # "separate" Fishers of all tasks, or "online": one that decays, anchored at the last task's
    # parameters.
    mode: str = "separate"
    decay: float = 1.0  # of the online Fisher

    sweepable = ("coefficient",)

    def check(self) -> None:
        not_negative("coefficient", self.coefficient)
        at_least("memory", self.memory, 2)
        one_of("fisher", self.fisher, FISHERS)
        one_of("reduction", self.reduction, ("mean", "sum"))
        one_of("normalize", self.normalize, ("none", "max"))
        one_of("mode", self.mode, ("separate", "online"))
        fraction("decay", self.decay, zero=True, one=True)

    def init(self, heads: Heads) -> MethodState:
        own = {
            "fisher": jax.tree.map(jnp.zeros_like, heads),
            "pull": jax.tree.map(jnp.zeros_like, heads),
            "anchor": jax.tree.map(jnp.copy, heads),
            "ratio": jnp.zeros(len(next(iter(heads.values())))),
        }
        return MethodState((), own)

    def combine(
        self,
        gradients: tuple[Heads, ...],
        heads: Heads,
        state: MethodState,
        num_minibatches: jax.Array,
        spec: TaskSpec,
    ) -> Heads:
        penalty = penalty_gradient(self.coefficient, state.own, heads)
        return {
            m: g + num_minibatches.astype(g.dtype) * penalty[m]
            if m in (spec.general, spec.specific)
            else g
            for m, g in gradients[0].items()
        }

    def end_task(self, state: MethodState, heads: Heads, data: TaskData) -> MethodState:
        count = min(self.memory, len(data.pairs))
        chosen = np.zeros((len(data.seeds), self.memory), np.int64)
        for row, seed in enumerate(data.seeds):
            rng = np.random.default_rng([seed, data.task_index, SALT])
            chosen[row, :count] = rng.permutation(len(data.pairs))[:count]
        pairs = data.pairs[chosen]
        dtype = next(iter(heads.values())).dtype
        memory = (
            data.general[pairs[..., 1]].astype(dtype),
            data.specific[pairs[..., 0]].astype(dtype),
        )
        coefficient = jnp.broadcast_to(self.coefficient, len(data.seeds))
        # A coefficient per seed cannot be a part of what is compiled.
        method = dataclasses.replace(self, coefficient=0.0)
        arrays = (state.own, heads, memory, coefficient, np.int32(count))
        return state._replace(own=_consolidate(*arrays, method, data.spec))

    def task_metrics(
        self, state: MethodState, opt_state: Any, steps: Mapping[str, np.ndarray]
    ) -> dict[str, Any]:
        return {"penalty / loss gradient": state.own["ratio"]}


def penalty_gradient(coefficient: ArrayLike, own: Any, heads: Heads) -> Heads:
    """Gradient of the penalty of one minibatch."""
    return jax.tree.map(
        lambda F, pull, anchor, W: 2 * coefficient * (F * (W - anchor) - pull),
        *(own["fisher"], own["pull"], own["anchor"], heads),
    )


@functools.partial(jax.jit, static_argnames=("method", "spec"))
def _consolidate(
    own: Any,
    heads: Heads,
    memory: Any,
    coefficient: jax.Array,
    count: jax.Array,
    method: Ewc,
    spec: TaskSpec,
) -> Any:
    """The state of all seeds after a task; `count` pairs of the memory are not padding."""

    def one(parts: Any) -> Any:
        own, heads, (general, specific), coefficient = parts
        fisher, gradient = _fisher(heads, general, specific, count, method, spec)
        moved = jax.tree.map(jnp.subtract, heads, own["anchor"])
        if method.mode == "online":
            total = jax.tree.map(lambda F, new: method.decay * F + new, own["fisher"], fisher)
            pull = jax.tree.map(jnp.zeros_like, heads)
        else:
            # pull = sum F_s (theta*_s - theta*), for the new theta*; see the top of the file.
            total = jax.tree.map(jnp.add, own["fisher"], fisher)
            pull = jax.tree.map(
                lambda old, F, way: old - F * way, own["pull"], own["fisher"], moved
            )
        size = optax.tree.norm(penalty_gradient(coefficient, own, heads))
        ratio = size / jnp.maximum(optax.tree.norm(gradient), jnp.finfo(size.dtype).tiny)
        return {"fisher": total, "pull": pull, "anchor": heads, "ratio": ratio}

    return jax.lax.map(one, (own, heads, memory, coefficient))


def _fisher(
    heads: Heads,
    general: jax.Array,
    specific: jax.Array,
    count: jax.Array,
    method: Ewc,
    spec: TaskSpec,
) -> tuple[Heads, Heads]:
    """The diagonal Fisher of one seed, and the gradient of the memory's mean loss."""
    size = general.shape[0]
    valid = jnp.arange(size, dtype=jnp.int32) < count

    def terms(heads: Heads, general: jax.Array, specific: jax.Array, valid: jax.Array) -> Any:
        return objective.pair_terms(
            apply_head(heads[spec.general], general, spec.K),
            apply_head(heads[spec.specific], specific, spec.K),
            tau=spec.tau,
            K=spec.K,
            kappa=spec.train.kappa,
            entailment_weight=spec.train.entailment_weight,
            valid=valid,
        )

    def total(heads: Heads, *batch: jax.Array) -> jax.Array:
        return jnp.sum(terms(heads, *batch))

    # (mean grad)^2, not mean(grad^2): the estimates differ by far more than a factor, and the
    # literature mixes them up.
    summed = jax.grad(total)(heads, general, specific, valid)
    mean = jax.tree.map(lambda g: g / count.astype(g.dtype), summed)
    sums = method.reduction == "sum"
    zero = jax.tree.map(jnp.zeros_like, heads)
    if method.fisher == "batch":
        fisher = jax.tree.map(jnp.square, summed if sums else mean)
    elif method.fisher == "minibatch":
        parts = -(-size // MINIBATCH)

        def split(x: jax.Array) -> jax.Array:
            x = jnp.pad(x, ((0, parts * MINIBATCH - size), *((0, 0) for _ in x.shape[1:])))
            return x.reshape(parts, MINIBATCH, *x.shape[1:])

        def add(carry: Any, batch: Any) -> Any:
            found = jnp.maximum(jnp.sum(batch[2]), 1).astype(general.dtype)
            gradient = jax.grad(total)(heads, *batch)
            scale = 1.0 if sums else 1 / found
            return jax.tree.map(lambda c, g: c + jnp.square(g * scale), carry, gradient), None

        fisher, _ = jax.lax.scan(add, zero, (split(general), split(specific), split(valid)))
        used = -(-count // MINIBATCH)
        fisher = jax.tree.map(lambda F: F / used.astype(F.dtype), fisher)
    else:
        _, pull_back = jax.vjp(lambda W: terms(W, general, specific, valid), heads)

        def add_sample(carry: Any, row: jax.Array) -> Any:
            weight = jnp.zeros(size, general.dtype).at[row].set(valid[row].astype(general.dtype))
            (gradient,) = pull_back(weight)
            return jax.tree.map(lambda c, g: c + g**2, carry, gradient), None

        fisher, _ = jax.lax.scan(add_sample, zero, jnp.arange(size, dtype=jnp.int32))
        if not sums:
            fisher = jax.tree.map(lambda F: F / count.astype(F.dtype), fisher)
    if method.normalize == "max":
        top = functools.reduce(jnp.maximum, (jnp.max(F) for F in jax.tree.leaves(fisher)))
        fisher = jax.tree.map(lambda F: F / jnp.where(top > 0, top, 1), fisher)
    return fisher, mean
