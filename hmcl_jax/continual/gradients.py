"""The objective of a task for one seed: sums of minibatch gradients, and optimizer steps.

The functions here are pure; :mod:`hmcl_jax.continual.programs` compiles them for all seeds. The
general side of a classification task, its class prototypes, goes through its head once per feed:
the heads are constant in between, and the gradient is pulled back once. With a `data_axis`, the
devices along that axis of a mesh share the minibatches: each sums its own, and one all-reduce makes
the sum whole.
"""

import dataclasses
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import optax
from jax.flatten_util import ravel_pytree

from hmcl_jax import objective
from hmcl_jax.continual.config import ConfigError
from hmcl_jax.continual.feed import Feed, Rows, rows_of
from hmcl_jax.continual.guard import halt_on_nonfinite
from hmcl_jax.continual.method import Heads, Method, MethodState, Minibatch, TaskSpec, TrainState
from hmcl_jax.head import apply_head


class Total(NamedTuple):
    """Sums over minibatches."""

    gradient: Heads
    loss: jax.Array  # at the first probe


@dataclasses.dataclass(frozen=True)
class Objective:
    """The loss of the minibatches of a feed, within a compiled program."""

    method: Method | None  # None if it adds nothing to the loss
    spec: TaskSpec
    state: MethodState
    feed: Feed  # without the seed axis
    data_axis: str | None  # of the mesh, along which minibatches are dealt

    def sum(self, heads: Heads, first: Any, count: Any, axis: str | None = None) -> Total:
        """Sum of the gradients and losses at `heads` over minibatches ``first, first + 1, ...``."""
        points, pull_back = self._prototype_points(heads)
        zero = jax.tree.map(jnp.zeros_like, (heads, points))
        value_and_grad = jax.value_and_grad(self._loss, argnums=(0, 1))

        def add(number: jax.Array, sums: Any) -> Any:
            rows = rows_of(self.feed, self.spec, first + number, self.data_axis)
            loss, gradients = value_and_grad(heads, points, rows)
            return jax.tree.map(jnp.add, sums, (gradients, loss))

        no_loss = jnp.zeros((), heads[self.spec.specific].dtype)
        (gradient, of_points), loss = sum_minibatches(count, add, (zero, no_loss), axis)
        return all_reduce(Total(jax.tree.map(jnp.add, gradient, pull_back(of_points)), loss), axis)

    def combined(self, method: Method, heads: Heads, number: jax.Array) -> Total:
        """What `method` makes of the gradients of all its probes on one minibatch."""
        gradients: tuple[Heads, ...] = ()
        losses = []
        one = jnp.ones((), jnp.int32)
        for probe in method.probes(self.spec):
            total = self.sum(probe(heads, gradients, self.state), number, one)
            gradients = (*gradients, total.gradient)
            losses.append(total.loss)
        gradient = method.combine(gradients, heads, self.state, one, self.spec)
        check_combined(method, gradient, heads)
        return Total(gradient, losses[0])

    def _prototype_points(self, heads: Heads) -> tuple[jax.Array, Callable[[jax.Array], Heads]]:
        """Points of the class prototypes and the way back; nothing for retrieval."""
        spec, nothing = self.spec, jax.tree.map(jnp.zeros_like, heads)
        W = heads[spec.general]
        if spec.kind == "retrieval":
            return jnp.zeros((), W.dtype), lambda _: nothing
        features = self.feed.prototypes.astype(W.dtype)
        points, back = jax.vjp(lambda W: apply_head(W, features, spec.K), W)
        return points, lambda gradient: {**nothing, spec.general: back(gradient)[0]}

    def _loss(self, heads: Heads, prototype_points: jax.Array, rows: Rows) -> jax.Array:
        # Contrast of similarities equ:sim within the minibatch, and entailment cones. Pairs of one
        # class share its prototype's point.
        spec, W = self.spec, heads[self.spec.specific]
        specific, general = rows.specific.astype(W.dtype), rows.general
        points = apply_head(W, specific, spec.K)
        settings: dict[str, Any] = {
            "tau": spec.tau,
            "K": spec.K,
            "kappa": spec.train.kappa,
            "entailment_weight": spec.train.entailment_weight,
        }
        classification = spec.kind == "classification"
        if classification:
            labels = jnp.where(rows.valid, rows.classes, -1)
            loss = objective.prototype_loss(prototype_points, points, labels, **settings)
        else:
            general = general.astype(W.dtype)
            general_points = apply_head(heads[spec.general], general, spec.K)
            loss = objective.pair_loss(general_points, points, valid=rows.valid, **settings)
        if self.method is None or self.method.extra_loss is None:
            return loss
        if classification:
            general = self.feed.prototypes[rows.classes].astype(W.dtype)
            general_points = prototype_points[rows.classes]
        seen = Minibatch(general, specific, general_points, points, rows.valid, heads, rows.number)
        return loss + self.method.extra_loss(self.state, seen, spec)


def sum_minibatches(
    count: jax.Array, add: Callable[[jax.Array, Any], Any], zero: Any, axis: str | None
) -> Any:
    """Sum over all minibatches, or over this device's: k, k + D, k + 2 D, ... on device k of D."""
    if axis is None:
        return jax.lax.fori_loop(0, count, add, zero)
    first, apart = jax.lax.axis_index(axis), jax.lax.axis_size(axis)
    own = (count - first + apart - 1) // apart
    return jax.lax.fori_loop(0, own, lambda i, carry: add(first + i * apart, carry), zero)


def all_reduce(sums: Any, axis: str | None) -> Any:
    """The sums of all devices."""
    if axis is None:
        return sums
    # As one vector: XLA makes an all-reduce of every array, and each waits for all devices.
    flat, unravel = ravel_pytree(sums)
    return unravel(jax.lax.psum(flat, axis))


def accumulate(objective: Objective, point: Heads, total: Total, count: Any, axis: Any) -> Total:
    """`total` with the gradients of a feed at `point`."""
    method = objective.method
    if method is None or not method.per_minibatch:
        return jax.tree.map(jnp.add, total, objective.sum(point, 0, count, axis))
    zero = Total(jax.tree.map(jnp.zeros_like, point), jnp.zeros_like(total.loss))

    def add(number: jax.Array, sums: Any) -> Any:
        return jax.tree.map(jnp.add, sums, objective.combined(method, point, number))

    found = all_reduce(sum_minibatches(count, add, zero, axis), axis)
    return jax.tree.map(jnp.add, total, found)


def check_combined(method: Method, gradient: Heads, heads: Heads) -> None:
    """Refuses a gradient unlike the heads, which sums over minibatches would broadcast."""
    wanted, given = (
        {jax.tree_util.keystr(path): jnp.shape(x) for path, x in jax.tree.leaves_with_path(tree)}
        for tree in (heads, gradient)
    )
    if wanted != given:
        raise ConfigError(
            f"combine of {method.name} must give a gradient of each head, {wanted}, got {given}."
        )


def step(
    method: Method, spec: TaskSpec, state: TrainState, gradient: Heads
) -> tuple[TrainState, dict[str, jax.Array]]:
    """One optimizer step, and what the method measures of it."""
    tx = halt_on_nonfinite(method.optimizer(spec), spec.train.on_bad)
    updates, opt_state = tx.update(gradient, state.opt_state, state.heads)
    heads = optax.apply_updates(state.heads, updates)
    after = state._replace(heads=heads, opt_state=opt_state)
    before, now = (s._replace(opt_state=s.opt_state.inner) for s in (state, after))
    metrics = method.step_metrics(gradient, before, now, spec)
    return after, metrics


def step_each(
    objective: Objective, state: TrainState, loss: jax.Array, count: jax.Array
) -> tuple[TrainState, jax.Array, dict[str, jax.Array]]:
    """One optimizer step per minibatch; the metrics are those of the last one."""
    method, spec = objective.method, objective.spec
    assert method is not None

    def one(number: jax.Array, carry: Any) -> Any:
        state, loss, _ = carry
        total = objective.combined(method, state.heads, number)
        state, metrics = step(method, spec, state, total.gradient)
        return state, loss + total.loss, metrics

    # The carry of a loop needs its shapes before the first step.
    metrics = jax.eval_shape(lambda s: step(method, spec, s, s.heads)[1], state)
    blank = jax.tree.map(lambda x: jnp.zeros(x.shape, x.dtype), metrics)
    return jax.lax.fori_loop(0, count, one, (state, loss, blank))
