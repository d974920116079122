r"""Elastic weight consolidation: old parameters are held where the old loss was sensitive.

At the end of task s a memory :math:`M_s` of its pairs gives a diagonal Fisher :math:`F_s`; later
minibatches add :math:`\lambda \sum_s \sum_i F_{s,i} (\theta_i - \theta^*_{s,i})^2` to their loss.
Only :math:`\sum F_s` and :math:`\sum F_s (\theta^*_s - \theta^*)` are kept, whatever the number of
tasks, relative to the parameters :math:`\theta^*` at the end of the last one. So after one task the
penalty is exactly 0 where the next one starts; AdamW would turn its rounding into whole steps. The
penalty moves only the heads of the current task. A head that the task does not have stays where it
is, because no gradient of the loss would stand against the penalty's.

How strong the penalty is depends on the estimate of F far more than on :math:`\lambda`. On the
embedded stream with :math:`\lambda = 10^{-4}` the penalty's gradient at the end of a task, as a
share of the loss's (``experiments/configs/ewc_fishers.toml`` prints it), grows from the second task
to the last

- with sums over pairs from 5e-3 to 6e-2 (``"batch"``), 1e-4 to 3e-3 (``"minibatch"``), 2e-3 to 4e-2
  (``"sample"``);
- with means it stays below 5e-7, 1e-6 and 2e-4, and at most 2e-5 if divided by its largest entry:
  that is plain fine-tuning.

The paper's EWC is not plain fine-tuning, and its pair of coefficient and memory is that of the
square of one batch's gradient; so the default is ``"batch"`` with ``"sum"``.
"""

import dataclasses
import functools
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.typing import ArrayLike

from hmcl_jax import objective
from hmcl_jax.continual.config import at_least, fraction, not_negative, one_of
from hmcl_jax.continual.method import Heads, Method, MethodState, TaskEnd, TaskInfo, knob
from hmcl_jax.head import apply_head

FISHERS = ("batch", "minibatch", "sample")
SALT = 0x657763
MINIBATCH = 64


@dataclasses.dataclass(frozen=True)
class EwcSettings:
    """Settings of EWC.

    Attributes:
      coefficient: lambda of the penalty (paper: 1e-4).
      memory: pairs per task that the Fisher is estimated on (paper: 512).
      fisher: square of the memory's gradient as one ``"batch"``, mean of the squares over
        ``"minibatch"``es of 64, or over every ``"sample"`` among the negatives of the memory.
      reduction: of the loss whose gradient is squared, ``"mean"`` or ``"sum"`` over its pairs.
      normalize: ``"none"``, or ``"max"`` to divide each Fisher by its largest entry.
      mode: ``"separate"`` Fishers of all tasks, or ``"online"``, one that decays, anchored at the
        last task's parameters.
      decay: of the online Fisher.
    """

    coefficient: float = 1e-4
    memory: int = 512
    fisher: str = "batch"
    reduction: str = "sum"
    normalize: str = "none"
    mode: str = "separate"
    decay: float = 1.0

    def __post_init__(self) -> None:
        not_negative("coefficient", self.coefficient)
        at_least("memory", self.memory, 2)
        one_of("fisher", self.fisher, FISHERS)
        one_of("reduction", self.reduction, ("mean", "sum"))
        one_of("normalize", self.normalize, ("none", "max"))
        one_of("mode", self.mode, ("separate", "online"))
        fraction("decay", self.decay, zero=True, one=True)


def make(name: str, settings: EwcSettings) -> Method:
    """The record of EWC."""
    return Method(
        name,
        settings,
        init=_init,
        widen=_widen,
        combine=functools.partial(_combine, settings),
        end_task=functools.partial(_end_task, settings),
        log=lambda state, _: {"penalty / loss gradient": state.own["ratio"]},
    )


def _init(params: Heads) -> MethodState:
    seeds = next(iter(params.values())).shape[0]
    own = {
        "fisher": jax.tree.map(jnp.zeros_like, params),
        "pull": jax.tree.map(jnp.zeros_like, params),
        "anchor": jax.tree.map(jnp.copy, params),
        "ratio": jnp.zeros(seeds),
    }
    return MethodState((), own)


def _widen(state: MethodState, params: Heads) -> MethodState:
    fresh = _init(params).own
    own = {
        key: {**fresh[key], **value} if isinstance(value, dict) else value
        for key, value in state.own.items()
    }
    return state._replace(own=own)


def penalty_gradient(coefficient: ArrayLike, own: Any, params: Heads) -> Heads:
    """Gradient of the penalty of one minibatch."""
    return jax.tree.map(
        lambda F, pull, anchor, W: 2 * coefficient * (F * (W - anchor) - pull),
        *(own["fisher"], own["pull"], own["anchor"], params),
    )


def _combine(
    settings: EwcSettings,
    gradients: tuple[Heads, ...],
    params: Heads,
    state: MethodState,
    minibatches: jax.Array,
    info: TaskInfo,
) -> Heads:
    coefficient = knob(settings, state, "coefficient")
    penalty = penalty_gradient(coefficient, state.own, params)
    return {
        m: g + minibatches.astype(g.dtype) * penalty[m] if m in (info.general, info.specific) else g
        for m, g in gradients[0].items()
    }


def _end_task(
    settings: EwcSettings, state: MethodState, params: Heads, end: TaskEnd
) -> MethodState:
    size = settings.memory
    count = min(size, len(end.pairs))
    chosen = np.zeros((len(end.seeds), size), np.int64)
    for row, seed in enumerate(end.seeds):
        rng = np.random.default_rng([seed, end.place, SALT])
        chosen[row, :count] = rng.permutation(len(end.pairs))[:count]
    pairs = end.pairs[chosen]
    dtype = next(iter(params.values())).dtype
    memory = (
        end.general[pairs[..., 1]].astype(dtype),
        end.specific[pairs[..., 0]].astype(dtype),
    )
    coefficient = jnp.broadcast_to(knob(settings, state, "coefficient"), len(end.seeds))
    own = _consolidate(state.own, params, memory, coefficient, np.int32(count), settings, end.info)
    return state._replace(own=own)


@functools.partial(jax.jit, static_argnames=("settings", "info"))
def _consolidate(
    own: Any,
    params: Heads,
    memory: Any,
    coefficient: jax.Array,
    count: jax.Array,
    settings: EwcSettings,
    info: TaskInfo,
) -> Any:
    def one(parts: Any) -> Any:
        own, params, (general, specific), coefficient = parts
        fisher, gradient = _fisher(params, general, specific, count, settings, info)
        moved = jax.tree.map(jnp.subtract, params, own["anchor"])
        if settings.mode == "online":
            total = jax.tree.map(lambda F, new: settings.decay * F + new, own["fisher"], fisher)
            pull = jax.tree.map(jnp.zeros_like, params)
        else:
            total = jax.tree.map(jnp.add, own["fisher"], fisher)
            pull = jax.tree.map(
                lambda old, F, way: old - F * way, own["pull"], own["fisher"], moved
            )
        size = _norm(penalty_gradient(coefficient, own, params))
        ratio = size / jnp.maximum(_norm(gradient), jnp.finfo(size.dtype).tiny)
        return {"fisher": total, "pull": pull, "anchor": params, "ratio": ratio}

    return jax.lax.map(one, (own, params, memory, coefficient))


def _norm(tree: Any) -> jax.Array:
    return jnp.sqrt(sum(jnp.sum(x**2) for x in jax.tree.leaves(tree)))


def _fisher(
    params: Heads,
    general: jax.Array,
    specific: jax.Array,
    count: jax.Array,
    settings: EwcSettings,
    info: TaskInfo,
) -> tuple[Heads, Heads]:
    """The diagonal Fisher of one seed, and the gradient of the memory's mean loss."""
    size = general.shape[0]
    valid = jnp.arange(size, dtype=jnp.int32) < count

    def terms(params: Heads, general: jax.Array, specific: jax.Array, valid: jax.Array) -> Any:
        return objective.pair_terms(
            apply_head(params[info.general], general, info.K),
            apply_head(params[info.specific], specific, info.K),
            tau=info.tau,
            K=info.K,
            kappa=info.config.kappa,
            entailment_weight=info.config.entailment_weight,
            valid=valid,
        )

    def total(params: Heads, *batch: jax.Array) -> jax.Array:
        return jnp.sum(terms(params, *batch))

    summed = jax.grad(total)(params, general, specific, valid)
    mean = jax.tree.map(lambda g: g / count.astype(g.dtype), summed)
    sums = settings.reduction == "sum"
    if settings.fisher == "batch":
        fisher = jax.tree.map(jnp.square, summed if sums else mean)
    elif settings.fisher == "minibatch":
        parts = -(-size // MINIBATCH)
        padded = parts * MINIBATCH - size

        def split(x: jax.Array) -> jax.Array:
            x = jnp.pad(x, ((0, padded), *((0, 0) for _ in x.shape[1:])))
            return x.reshape(parts, MINIBATCH, *x.shape[1:])

        def add(carry: Any, batch: Any) -> Any:
            found = jnp.maximum(jnp.sum(batch[2]), 1).astype(general.dtype)
            gradient = jax.grad(total)(params, *batch)
            scale = 1.0 if sums else 1 / found
            return jax.tree.map(lambda c, g: c + jnp.square(g * scale), carry, gradient), None

        zero = jax.tree.map(jnp.zeros_like, params)
        batches = (split(general), split(specific), split(valid))
        fisher, _ = jax.lax.scan(add, zero, batches)
        used = -(-count // MINIBATCH)
        fisher = jax.tree.map(lambda F: F / used.astype(F.dtype), fisher)
    else:
        _, pull_back = jax.vjp(lambda W: terms(W, general, specific, valid), params)

        def add_sample(carry: Any, row: jax.Array) -> Any:
            weight = jnp.zeros(size, general.dtype).at[row].set(valid[row].astype(general.dtype))
            (gradient,) = pull_back(weight)
            return jax.tree.map(lambda c, g: c + g**2, carry, gradient), None

        zero = jax.tree.map(jnp.zeros_like, params)
        fisher, _ = jax.lax.scan(add_sample, zero, jnp.arange(size, dtype=jnp.int32))
        if not sums:
            fisher = jax.tree.map(lambda F: F / count.astype(F.dtype), fisher)
    if settings.normalize == "max":
        top = functools.reduce(jnp.maximum, (jnp.max(F) for F in jax.tree.leaves(fisher)))
        fisher = jax.tree.map(lambda F: F / jnp.where(top > 0, top, 1), fisher)
    return fisher, mean
