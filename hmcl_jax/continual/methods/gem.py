r"""Gradient episodic memory (Lopez-Paz and Ranzato 2017, GEM).

No step may raise the loss on the memory of an old task, to first order.
With the gradient :math:`g` of an epoch and the memory gradients :math:`M`, one row per old task, if
any :math:`\langle g, M_s \rangle < 0` the gradient becomes :math:`g + M^\top v` with

.. math::
  v = \operatorname{argmin}_{v \ge \gamma} \tfrac12 v^\top (M M^\top + \epsilon I) v + (M g)^\top v.

Memory gradients are summed like the epoch's: as often as there are minibatches. M is never built:
a pair's share of it is one outer product, so M M^T, M g and M^T v follow from the pairs' features
and from the gradients at their points.

A-GEM (Chaudhry et al. 2019) keeps to the mean over all old tasks instead: if
:math:`\langle g, m \rangle < 0`, the part of g along m is taken away.
"""

import dataclasses
import functools
from typing import Any

import jax
import jax.numpy as jnp
from jax.typing import ArrayLike

from hmcl_jax import lorentz
from hmcl_jax._checks import PRECISION
from hmcl_jax.continual.config import at_least, not_negative, positive
from hmcl_jax.continual.method import Heads, MethodState, TaskSpec
from hmcl_jax.continual.methods.replay_memory import (
    Memory,
    Replay,
    head_number,
    memory_losses,
    memory_points,
    task_weights,
)

SIZES = (64, 256)  # numbers of old tasks with a program of their own


@dataclasses.dataclass(frozen=True)
class Gem(Replay):
    """GEM; the paper gives margin and memory, eps is the original's."""

    margin: float = 0.5  # gamma: least weight of every old task's gradient, once one is violated
    eps: float = 1e-3  # ridge of the dual problem

    sweepable = ("margin", "eps")

    def check(self) -> None:
        not_negative("margin", self.margin)
        positive("eps", self.eps)
        at_least("memory", self.memory, 1)

    def combine(
        self,
        gradients: tuple[Heads, ...],
        heads: Heads,
        state: MethodState,
        num_minibatches: jax.Array,
        spec: TaskSpec,
    ) -> Heads:
        g, memory = gradients[0], state.own["memory"]
        at_points, lifted, of_head, task = _pair_gradients(memory, heads, spec)
        at_points = at_points * num_minibatches.astype(at_points.dtype)
        # In float64, whatever the dtype of the heads: rows may be nearly dependent, have norms
        # beside which the ridge is below float32's rounding, or cancel in M^T v.
        with jax.enable_x64(True):
            at_points, lifted = _wide(at_points), _wide(lifted)
            gram, along = _products(at_points, lifted, of_head, {m: _wide(G) for m, G in g.items()})

            def solve(rows: int) -> jax.Array:
                of_task = task[None, :] == jnp.arange(rows, dtype=jnp.int32)[:, None]
                return _weights_of_pairs(gram, along, of_task, self.margin, self.eps)

            # The number of tasks should not be a shape, and a solve among all slots costs too much
            # for few tasks: there is one program for few, one for many, one for as many as slots.
            slots = memory.task.shape[0]
            sizes = [*(size for size in SIZES if size < slots), slots]
            tasks = jnp.max(memory.task) + 1
            enough = sum((tasks > size).astype(jnp.int32) for size in sizes[:-1])
            branches = [functools.partial(solve, rows) for rows in sizes]
            weights = jax.lax.switch(jnp.asarray(enough, jnp.int32), branches)
            added = _weighted(weights, at_points, lifted, of_head, g)
            return {
                name: jax.lax.convert_element_type(_wide(G) + added[name], G.dtype)
                for name, G in g.items()
            }


@dataclasses.dataclass(frozen=True)
class Agem(Replay):
    """A-GEM."""

    def check(self) -> None:
        at_least("memory", self.memory, 1)

    def combine(
        self,
        gradients: tuple[Heads, ...],
        heads: Heads,
        state: MethodState,
        num_minibatches: jax.Array,
        spec: TaskSpec,
    ) -> Heads:
        g = gradients[0]
        at_points, lifted, of_head, task = _pair_gradients(state.own["memory"], heads, spec)
        ones = jnp.ones(task.shape, lifted.dtype)
        m = _weighted(ones, at_points, lifted, of_head, heads)
        along = sum(jnp.sum(g[name] * m[name]) for name in heads)
        square = sum(jnp.sum(m[name] ** 2) for name in heads)
        share = jnp.where(along < 0, along / jnp.where(square > 0, square, 1), 0)
        return jax.tree.map(lambda g, m: g - share * m, g, m)


def _pair_gradients(
    memory: Memory, heads: Heads, spec: TaskSpec
) -> tuple[jax.Array, jax.Array, jax.Array, jax.Array]:
    """Of all general, then all specific sides: gradients at the points of each task's mean loss,
    lifted features, number of the head, and the task."""

    def total(points: tuple[jax.Array, jax.Array]) -> jax.Array:
        losses = memory_losses(*points, memory, spec)
        return jnp.sum(losses * task_weights(memory))

    at_points = jax.grad(total)(memory_points(memory, heads, spec.K))
    lifted = [lorentz.lift(x, spec.K) for x in (memory.general, memory.specific)]
    of_head = [memory.general_head, memory.specific_head]
    task = jnp.tile(memory.task, 2)
    return jnp.concatenate(at_points), jnp.concatenate(lifted), jnp.concatenate(of_head), task


def _weighted(
    weights: jax.Array, at_points: jax.Array, lifted: jax.Array, of_head: jax.Array, heads: Heads
) -> Heads:
    """Sum of the pairs' gradients of the heads, with weights."""
    return {
        name: jnp.matmul(
            (at_points * (weights * (of_head == head_number(name)))[:, None]).T,
            lifted,
            precision=PRECISION,
        )
        for name in heads
    }


def _wide(x: ArrayLike) -> jax.Array:
    return jax.lax.convert_element_type(x, jnp.float64)


def _products(
    at_points: jax.Array, lifted: jax.Array, of_head: jax.Array, g: Heads
) -> tuple[jax.Array, jax.Array]:
    """Products of the pairs' gradients of the heads with each other, and with g."""
    product = functools.partial(jnp.matmul, precision=PRECISION)
    same_head = (of_head[:, None] == of_head[None, :]).astype(lifted.dtype)
    gram = product(at_points, at_points.T) * product(lifted, lifted.T) * same_head
    along = jnp.zeros_like(lifted[:, 0])
    for name, G in g.items():
        here = jnp.sum(product(lifted, G.T) * at_points, axis=1)
        along = jnp.where(of_head == head_number(name), here, along)
    return gram, along


def _weights_of_pairs(
    gram: jax.Array, along: jax.Array, of_task: jax.Array, margin: ArrayLike, eps: ArrayLike
) -> jax.Array:
    """Weight of each pair's gradient in the step, ``v`` of its task; 0 if no task is violated."""
    product = functools.partial(jnp.matmul, precision=PRECISION)
    rows = _wide(of_task)
    products = product(rows, along[:, None])[:, 0]
    present = jnp.any(of_task, axis=1)
    v = solve_dual(product(product(rows, gram), rows.T), products, margin, eps, present)
    v = jnp.where(jnp.any(present & (products < 0)), v, 0)
    return product(v[None, :], rows)[0]


def solve_dual(
    gram: jax.Array,
    products: jax.Array,
    margin: ArrayLike,
    eps: ArrayLike,
    present: jax.Array | None = None,
) -> jax.Array:
    r"""The v >= margin that minimises :math:`\tfrac12 v^\top (G + \epsilon I) v + q^\top v`.

    Block principal pivoting (Judice and Pires 1994) on rows scaled to norm 1, in float64: a guess
    of which v are above the margin is solved for and corrected until all signs are right; if
    correcting all wrong ones at once does not lower their number, only the last one is (Murty's
    rule, which always ends).

    `gram` is G, ``(k, k)``, and `products` are q, ``(k,)``; rows that are not `present` get 0. In
    float32 rounding may leave G + eps I indefinite; the ridge is then raised to that rounding.
    """
    gram, products = jnp.asarray(gram), jnp.asarray(products)
    present = jnp.ones(gram.shape[0], bool) if present is None else jnp.asarray(present)
    with jax.enable_x64(True):
        wide = functools.partial(jax.lax.convert_element_type, new_dtype=jnp.float64)
        rounding = float(jnp.finfo(gram.dtype).eps)
        v = _solve_dual(wide(gram), wide(products), wide(margin), wide(eps), present, rounding)
        return jax.lax.convert_element_type(v, gram.dtype)


def _solve_dual(
    gram: jax.Array,
    products: jax.Array,
    margin: jax.Array,
    eps: jax.Array,
    present: jax.Array,
    rounding: float,
) -> jax.Array:
    k = gram.shape[0]
    both = present[:, None] & present[None, :]
    eye = jnp.eye(k, dtype=gram.dtype)
    diagonal = jnp.diagonal(gram)
    scale = jnp.where(
        present & (diagonal > 0), jax.lax.rsqrt(jnp.where(diagonal > 0, diagonal, 1)), 1
    )
    # In units of scaled rows: R u + c >= 0, u >= 0, one of both 0, with v = margin + scale * u.
    ridge = jnp.where(present, eps * scale**2, 1)
    R = jnp.where(both, gram * scale[:, None] * scale[None, :], 0) + eye * ridge[:, None]
    # Rounding of entries of size 1 moves eigenvalues by up to about sqrt(k) times as much.
    lowest = jnp.linalg.eigvalsh((R + R.T) / 2)[0]
    R = R + eye * jnp.maximum(2 * k**0.5 * rounding - lowest, 0)
    start = jnp.where(present, margin / scale, 0)
    c = jnp.where(present, products * scale, 1) + jnp.where(
        present, jnp.sum(R * start[None, :], axis=1), 0
    )
    size = jnp.abs(c) + jnp.sum(jnp.abs(R * start[None, :]), axis=1)
    tolerance = 4 * k * jnp.finfo(gram.dtype).eps

    def solve(free: jax.Array) -> tuple[jax.Array, jax.Array]:
        A = jnp.where(free[:, None] & free[None, :], R, 0) + eye * (~free)[:, None].astype(R.dtype)
        # Rows that are equal up to rounding must not make the factor singular; the residuals that
        # correct its solution are those of A itself.
        safe = A + 4 * k * jnp.finfo(A.dtype).eps * eye
        factors = jax.scipy.linalg.cho_factor(safe, lower=True)
        target = jnp.where(free, -c, 0)
        u = jnp.zeros_like(c)
        for _ in range(4):
            u = u + jax.scipy.linalg.cho_solve(factors, target - jnp.sum(A * u[None, :], axis=1))
        u = jnp.where(jnp.isfinite(u), u, 0)
        return u, jnp.sum(R * u[None, :], axis=1) + c

    def wrong(free: jax.Array, u: jax.Array, y: jax.Array) -> jax.Array:
        allowed = tolerance * (size + jnp.max(jnp.abs(u)))
        return jnp.where(free, u < -tolerance * jnp.max(jnp.abs(u)), y < -allowed)

    def step(carry: Any) -> Any:
        free, u, bad, fewest, tries, count = carry
        number = jnp.sum(bad, dtype=jnp.int32)
        better = number < fewest
        tries = jnp.where(better, 3, tries - 1)
        places = jnp.arange(k, dtype=jnp.int32)
        last = places == jnp.max(jnp.where(bad, places, -1))
        free = free ^ jnp.where(tries >= 0, bad, last)
        u, y = solve(free)
        fewest = jnp.minimum(fewest, number)
        return free, u, wrong(free, u, y), fewest, tries, count + 1

    free = jnp.zeros(k, bool)
    u = jnp.zeros_like(c)
    carry = (free, u, wrong(free, u, c), jnp.int32(k + 1), jnp.int32(3), jnp.int32(0))
    free, u, *_ = jax.lax.while_loop(
        lambda carry: jnp.any(carry[2]) & (carry[5] < 20 * k + 20), step, carry
    )
    return jnp.where(present, margin + scale * jnp.maximum(u, 0), 0)
