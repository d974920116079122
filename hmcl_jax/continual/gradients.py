"""The objective of a task for one seed: sums of minibatch gradients, and optimizer steps.

The general side of a classification task, its class prototypes, goes through its head once per
step: the heads are constant in between, and the gradient is pulled back once.

With a `data_axis`, the devices along that axis of a mesh share the minibatches: each sums its own,
and one all-reduce makes the sum whole.
"""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import optax
from jax.flatten_util import ravel_pytree

from hmcl_jax import objective
from hmcl_jax.continual.config import ConfigError
from hmcl_jax.continual.method import Batch, Heads, Method, MethodState, TaskInfo, Watch
from hmcl_jax.head import apply_head

# Number of a minibatch to its general rows, specific rows, general numbers, which are valid, and
# its place in the epoch.
Fetched = tuple[jax.Array, jax.Array, jax.Array, jax.Array, jax.Array]
Fetch = Callable[[jax.Array], Fetched]


def apply_gradient(
    tx: optax.GradientTransformation, watch: Watch, gradient: Heads, params: Heads, opt_state: Any
) -> tuple[Heads, Any, dict[str, jax.Array]]:
    """One optimizer step, and what the method measures of it."""
    updates, new_state = tx.update(gradient, opt_state, params)
    moved = optax.apply_updates(params, updates)
    return moved, new_state, watch(gradient, params, opt_state, moved)


def step_gradient(
    method: Method,
    info: TaskInfo,
    params: Heads,
    state: MethodState,
    general: jax.Array,
    fetch: Fetch,
    minibatches: jax.Array,
    data_axis: str | None = None,
) -> tuple[Heads, jax.Array]:
    """What the optimizer steps with: gradients of all stages, combined; and the sum of losses."""
    if not method.per_minibatch:
        return _combined(method, info, params, state, general, fetch, minibatches, data_axis)
    one = jnp.ones((), jnp.int32)
    zero = (jax.tree.map(jnp.zeros_like, params), jnp.zeros((), params[info.specific].dtype))

    def add(number: jax.Array, carry: Any) -> Any:
        found = _combined(method, info, params, state, general, lambda _: fetch(number), one)
        return jax.tree.map(jnp.add, carry, found)

    return _whole(_loop(minibatches, add, zero, data_axis), data_axis)


def _combined(
    method: Method,
    info: TaskInfo,
    params: Heads,
    state: MethodState,
    general: jax.Array,
    fetch: Fetch,
    minibatches: jax.Array,
    data_axis: str | None = None,
) -> tuple[Heads, jax.Array]:
    gradients: tuple[Heads, ...] = ()
    losses = []
    for _ in range(method.stages(info)):
        at = method.point(params, gradients, state)
        gradient, loss = sum_gradients(
            method, info, at, state, general, fetch, minibatches, data_axis
        )
        gradients = (*gradients, gradient)
        losses.append(loss)
    return combine(method, gradients, params, state, minibatches, info), losses[0]


def combine(
    method: Method,
    gradients: tuple[Heads, ...],
    params: Heads,
    state: MethodState,
    minibatches: jax.Array,
    info: TaskInfo,
) -> Heads:
    """The method's gradient, which must be like the heads: sums would broadcast another one."""
    found = method.combine(gradients, params, state, minibatches, info)
    wanted, given = (
        {jax.tree_util.keystr(path): jnp.shape(leaf) for path, leaf in leaves}
        for leaves, _ in map(jax.tree_util.tree_flatten_with_path, (params, found))
    )
    if wanted != given:
        raise ConfigError(
            f"combine of {method.name} must give a gradient of each head, {wanted}, got {given}."
        )
    return found


def sum_gradients(
    method: Method,
    info: TaskInfo,
    params: Heads,
    state: MethodState,
    general: jax.Array,
    fetch: Fetch,
    minibatches: jax.Array,
    data_axis: str | None = None,
) -> tuple[Heads, jax.Array]:
    """Sum over minibatches of the gradients and losses at `params`."""
    hoisted, pull_back = _hoist(info, params, general)
    zero = jax.tree.map(jnp.zeros_like, (params, hoisted))
    carry = (*zero, jnp.zeros((), params[info.specific].dtype))

    def add(number: jax.Array, carry: Any) -> Any:
        batch = fetch(number)
        loss, gradients = jax.value_and_grad(_loss, argnums=(0, 1))(
            params, hoisted, batch, general, method, info, state
        )
        return jax.tree.map(jnp.add, carry, (*gradients, loss))

    total, of_hoisted, loss = _loop(minibatches, add, carry, data_axis)
    return _whole((jax.tree.map(jnp.add, total, pull_back(of_hoisted)), loss), data_axis)


def _loop(
    minibatches: jax.Array, add: Callable[[jax.Array, Any], Any], zero: Any, data_axis: str | None
) -> Any:
    """Sum over all minibatches, or over this device's: k, k + D, k + 2 D, ... on device k of D."""
    if data_axis is None:
        return jax.lax.fori_loop(0, minibatches, add, zero)
    first, apart = jax.lax.axis_index(data_axis), jax.lax.axis_size(data_axis)
    own = (minibatches - first + apart - 1) // apart
    return jax.lax.fori_loop(0, own, lambda i, carry: add(first + i * apart, carry), zero)


def _whole(sums: Any, data_axis: str | None) -> Any:
    """The sums of all devices, as one vector, because every array is an all-reduce of its own."""
    if data_axis is None:
        return sums
    flat, unravel = ravel_pytree(sums)
    return unravel(jax.lax.psum(flat, data_axis))


def _hoist(
    info: TaskInfo, params: Heads, general: jax.Array
) -> tuple[jax.Array, Callable[[jax.Array], Heads]]:
    """Points of the class prototypes and the way back; nothing for retrieval."""
    if info.kind == "retrieval":
        nothing = jax.tree.map(jnp.zeros_like, params)
        return jnp.zeros((), params[info.general].dtype), lambda _: nothing
    W = params[info.general]
    points, back = jax.vjp(lambda W: apply_head(W, general.astype(W.dtype), info.K), W)

    def pull_back(gradient: jax.Array) -> Heads:
        found = dict(jax.tree.map(jnp.zeros_like, params))
        found[info.general] = back(gradient)[0]
        return found

    return points, pull_back


def _loss(
    params: Heads,
    hoisted: jax.Array,
    batch: Fetched,
    prototypes: jax.Array,
    method: Method,
    info: TaskInfo,
    state: MethodState,
) -> jax.Array:
    """Loss of one minibatch."""
    general, specific, numbers, valid, place = batch
    W = params[info.specific]
    specific = specific.astype(W.dtype)
    points = apply_head(W, specific, info.K)
    settings: dict[str, Any] = {
        "tau": info.tau,
        "K": info.K,
        "kappa": info.config.kappa,
        "entailment_weight": info.config.entailment_weight,
        "valid": valid,
    }
    if info.kind == "classification":
        loss = objective.prototype_loss(hoisted, points, numbers, **settings)
    else:
        general = general.astype(W.dtype)
        hoisted = apply_head(params[info.general], general, info.K)
        loss = objective.pair_loss(hoisted, points, **settings)
    if method.term is None:
        return loss
    if info.kind == "classification":
        hoisted, general = hoisted[numbers], prototypes[numbers].astype(W.dtype)
    seen = Batch(general, specific, hoisted, points, valid, params, place)
    return loss + method.term(state, seen, info)


def step_each(
    method: Method,
    tx: optax.GradientTransformation,
    watch: Watch,
    info: TaskInfo,
    params: Heads,
    opt_state: Any,
    state: MethodState,
    general: jax.Array,
    fetch: Fetch,
    minibatches: jax.Array,
) -> Any:
    """One optimizer step per minibatch; figures are those of the last one."""
    one = jnp.ones((), jnp.int32)

    def step(number: jax.Array, carry: Any) -> Any:
        params, opt_state, total, _ = carry
        gradient, loss = _combined(
            method, info, params, state, general, lambda _: fetch(number), one
        )
        params, opt_state, figures = apply_gradient(tx, watch, gradient, params, opt_state)
        return params, opt_state, total + loss, figures

    figures = jax.eval_shape(watch, params, params, opt_state, params)
    figures = jax.tree.map(lambda x: jnp.zeros(x.shape, x.dtype), figures)
    carry = (params, opt_state, jnp.zeros((), params[info.specific].dtype), figures)
    params, opt_state, total, figures = jax.lax.fori_loop(0, minibatches, step, carry)
    return (params, opt_state), (total / minibatches, figures)
