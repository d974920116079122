r"""The loss of a minibatch with its gradient written by hand; :mod:`hmcl_jax.objective` calls it.

The loss depends on the points only through the squared radii of both sides and the products
:math:`p = G X^\top`. So with :math:`M = \partial \mathcal L / \partial p`, which includes the
entailment of matched pairs,

.. math::
  \nabla_G = M X + \operatorname{diag}(\alpha) G, \qquad
  \nabla_X = M^\top G + \operatorname{diag}(\beta) X ,

and value and gradient take three products of matrices and two matrices of the size of p. Both are
computed in the forward pass, the gradient only if it is needed. For very many classes p is formed
in blocks of rows, twice, and never as a whole.

Numbers in comments are those of the equations in docs/method.md, "The loss and its gradient".
"""

import functools
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from hmcl_jax import lorentz
from hmcl_jax._checks import PRECISION
from hmcl_jax.entailment import angle_parts
from hmcl_jax.lorentz import dot

BLOCK = 8192  # rows of the general side beyond which products are formed in blocks
FAR_DOWN = -1e30  # the logit of what does not count; -inf would give NaN in differences


class Settings(NamedTuple):
    """The numbers of the objective, known when it is compiled."""

    tau: float
    K: float
    kappa: float
    entailment_weight: float


class _Sides(NamedTuple):
    """Both sides, and how often each row counts."""

    general: jax.Array
    specific: jax.Array
    labels: jax.Array  # rows of `general` that the rows of `specific` belong to
    counts: jax.Array  # of the general side
    weights: jax.Array  # of the specific side, 1 or 0
    general_time: jax.Array
    specific_time: jax.Array


@functools.partial(jax.custom_vjp, nondiff_argnums=(0,))
def fused_loss(
    settings: Settings,
    general: jax.Array,
    specific: jax.Array,
    labels: jax.Array,
    counts: jax.Array,
    weights: jax.Array,
) -> jax.Array:
    """Contrastive and entailment loss, the mean over the specific side; for reverse mode only.

    Row i of `specific`, ``(B, d)``, belongs to row ``labels[i]`` of `general`, ``(C, d)``. A row of
    `general` counts ``counts[c]`` times, a row of `specific` once or not at all: `weights` 1 or 0.
    All points must be finite, also of rows that do not count.
    """
    return _value_and_gradient(settings, False, general, specific, labels, counts, weights)[0]


def _forward(settings: Settings, *arrays: jax.Array) -> tuple[jax.Array, Any]:
    return _value_and_gradient(settings, True, *arrays)


def _backward(settings: Settings, gradients: Any, ct: jax.Array) -> tuple[Any, ...]:
    del settings
    of_general, of_specific = gradients
    return ct * of_general, ct * of_specific, None, None, None


fused_loss.defvjp(_forward, _backward)


def _value_and_gradient(
    settings: Settings, gradient: bool, *arrays: jax.Array
) -> tuple[jax.Array, Any]:
    general, specific, _, _, weights = arrays
    K = jnp.asarray(settings.K, general.dtype)
    sides = _Sides(*arrays, *(jnp.sqrt(K + dot(x, x)) for x in (general, specific)))
    total = jnp.maximum(jnp.sum(weights), 1)
    outside, entail = _entailment(settings, sides)
    scale = settings.entailment_weight * weights / total
    value = jnp.sum(scale * outside)
    # Without the barrier XLA would compute them again for every entry of M.
    entail = jax.lax.optimization_barrier(_Entail(*(scale * x for x in entail)))
    contrast = _in_blocks if general.shape[0] > BLOCK else _at_once
    contrastive, gradients = contrast(settings, sides, entail, total, gradient)
    return value + contrastive, gradients


class _Entail(NamedTuple):
    """Derivatives of the entailment: f_g g + f_p s towards g, and f_p g + f_s s towards s."""

    f_p: jax.Array  # towards g . s
    f_g: jax.Array  # towards |g|^2 / 2
    f_s: jax.Array  # towards |s|^2 / 2


def _entailment(settings: Settings, sides: _Sides) -> tuple[jax.Array, _Entail]:
    """How far each specific point lies outside the cone of its general point; derivatives."""
    g, s = sides.general[sides.labels], sides.specific
    x0, y0 = sides.general_time[sides.labels], sides.specific_time
    K = jnp.asarray(settings.K, g.dtype)
    parts = angle_parts(g, s, K)
    A, O, r, along = parts.across, parts.outward, parts.radius, parts.along
    root = jnp.sqrt(K)
    least = 2 * settings.kappa * root
    wide = r <= least  # the half aperture is pi / 2, and constant
    adjacent = jnp.sqrt(jnp.where(wide, 1, (r - least) * (r + least)))
    excess = parts.angle - jnp.where(wide, jnp.pi / 2, jnp.arctan2(least, adjacent))  # (7)
    outside = ~(excess <= 0)  # NaN stays
    # Points on one line with the origin have no direction across it, but rounding has one: up to
    # a few units in the last place of the longer vector.
    longer = jnp.maximum(lorentz.radius(s), r)
    straight = 8 * jnp.finfo(A.dtype).eps * longer >= A
    defined = outside & ~straight & parts.directed
    of_aperture = least / (jnp.where(wide, 1, r) ** 2 * adjacent)  # (9)
    A, r = jnp.where(defined, A, 1), jnp.where(defined, r, 1)
    over = jnp.where(defined, root / jnp.where(defined, K * A**2 + O**2, 1), 0)
    cos = along / r
    f_p = -over * (O / A * cos + A * x0 / r)  # (8)
    f_g = over * (O / A * cos**2 + A * (x0 * cos + y0) / r - A * along / x0)  # (8)
    f_g = f_g + jnp.where(outside & ~wide, of_aperture, 0)
    f_s = over * (O / A + A * r / y0)  # (8)
    return jnp.where(outside, excess, 0), _Entail(f_p, f_g, f_s)


def _products(sides: _Sides) -> jax.Array:
    return jnp.matmul(sides.general, sides.specific.T, precision=PRECISION)


def _excess(settings: Settings, sides: _Sides, products: jax.Array) -> jax.Array:
    """cosh of the distances, minus 1: the e of (1)."""
    root = jnp.sqrt(jnp.asarray(settings.K, products.dtype))

    def above(time: jax.Array, x: jax.Array) -> jax.Array:
        return dot(x, x) / (time + root)  # time - sqrt(K) without cancellation

    a = above(sides.general_time, sides.general)[:, None]
    b = above(sides.specific_time, sides.specific)[None, :]
    return (root * (a + b) + a * b - products) / root**2


def _logits(settings: Settings, sides: _Sides, products: jax.Array) -> jax.Array:
    """Logits (1); far down where a row of either side does not count."""
    excess = _excess(settings, sides, products)
    # Not lorentz.excess_root: with the scale inside, XLA keeps two matrices of this size, not 3.
    zero = excess <= 0
    e = jnp.where(zero, 1, excess)
    scale = jnp.asarray(settings.K**0.5 / settings.tau, e.dtype)
    S = jnp.where(zero, 0, -scale * jnp.log1p(e + jnp.sqrt(e * (e + 2))))
    counted = (sides.counts > 0)[:, None] & (sides.weights > 0)[None, :]
    return jnp.where(counted, S, FAR_DOWN)


def _slopes(settings: Settings, sides: _Sides, products: jax.Array) -> jax.Array:
    """Derivatives of the logits towards the products (4)."""
    # Behind the barrier, so that XLA computes the excess again: a third matrix costs more.
    excess = _excess(settings, sides, jax.lax.optimization_barrier(products))
    zero = excess <= 0
    e = jnp.where(zero, 1, excess)
    scale = jnp.asarray(settings.K**-0.5 / settings.tau, e.dtype)
    return jnp.where(zero, 0, scale * jax.lax.rsqrt(e * (e + 2)))


def _log_sum_exp(S: jax.Array, weights: jax.Array | None, axis: int) -> jax.Array:
    top = jnp.max(S, axis=axis)  # so that no exponential overflows
    terms = jnp.exp(S - jnp.expand_dims(top, axis))
    if weights is not None:
        terms = terms * jnp.expand_dims(weights, 1 - axis)
    total = jnp.sum(terms, axis=axis)
    return top + jnp.log(jnp.where(total <= 0, 1, total))


def _weights_of_products(
    S: jax.Array,
    slope: jax.Array,
    sides: _Sides,
    entail: _Entail,
    total: jax.Array,
    by_general: jax.Array,
    by_specific: jax.Array,
) -> jax.Array:
    """M, the derivative of the loss towards the products (5)."""
    classes = S.shape[0]
    matched = sides.labels[None, :] == jnp.arange(classes, dtype=sides.labels.dtype)[:, None]
    both = jnp.exp(S - by_general[:, None]) + jnp.exp(S - by_specific[None, :])
    of_logits = both * (sides.counts / 2)[:, None] - jnp.where(matched, 1, 0).astype(S.dtype)
    M = of_logits * (sides.weights / total)[None, :] * slope  # (3) times (4)
    return M + jnp.where(matched, entail.f_p[None, :], 0)


def _gradients(M: jax.Array, sides: _Sides, entail: _Entail) -> tuple[jax.Array, jax.Array]:
    """Gradients (6) of both sides, the specific one without its diagonal term, see `_own`."""
    general, specific, labels = sides.general, sides.specific, sides.labels
    x0, y0 = sides.general_time, sides.specific_time
    product = functools.partial(jnp.matmul, precision=PRECISION)

    def per_class(values: jax.Array) -> jax.Array:
        return jnp.zeros(general.shape[0], values.dtype).at[labels].add(values)

    # The entailment's derivatives towards g include its time: only the logits' part of M counts.
    time = product(M, y0) - per_class(entail.f_p * y0)
    own = per_class(entail.f_g) - time / x0
    return product(M, specific) + own[:, None] * general, product(M.T, general)


def _at_once(
    settings: Settings, sides: _Sides, entail: _Entail, total: jax.Array, gradient: bool
) -> tuple[jax.Array, Any]:
    products = _products(sides)
    S = _logits(settings, sides, products)
    by_general = _log_sum_exp(S, None, axis=1)
    by_specific = _log_sum_exp(S, sides.counts, axis=0)
    matched = jnp.take_along_axis(S, sides.labels[None, :], axis=0)[0]
    value = _value(sides, total, by_general, by_specific, matched)
    if not gradient:
        return value, None
    slope = _slopes(settings, sides, products)
    M = _weights_of_products(S, slope, sides, entail, total, by_general, by_specific)
    of_general, of_specific = _gradients(M, sides, entail)
    time = jnp.matmul(sides.general_time, M, precision=PRECISION)
    return value, (of_general, of_specific + _own(sides, entail, time))


def _value(
    sides: _Sides,
    total: jax.Array,
    by_general: jax.Array,
    by_specific: jax.Array,
    matched: jax.Array,
) -> jax.Array:
    """The contrastive loss (2) from its log sums and the logits of matched pairs."""
    of_general = jnp.sum(sides.counts * by_general) / 2
    return (of_general + jnp.sum(sides.weights * (by_specific / 2 - matched))) / total


def _own(sides: _Sides, entail: _Entail, time: jax.Array) -> jax.Array:
    """The diagonal term of the specific side in (6); `time` is M^T times the general times."""
    time = time - entail.f_p * sides.general_time[sides.labels]
    return (entail.f_s - time / sides.specific_time)[:, None] * sides.specific


def _in_blocks(
    settings: Settings, sides: _Sides, entail: _Entail, total: jax.Array, gradient: bool
) -> tuple[jax.Array, Any]:
    """As :func:`_at_once`, block after block of the general side: first the sums, then M.

    M needs the log sums over all classes, so every block is formed twice.
    """
    classes, size = sides.general.shape[0], BLOCK
    blocks = -(-classes // size)

    def split(x: jax.Array, fill: float) -> jax.Array:
        missing = ((0, blocks * size - classes), *((0, 0) for _ in x.shape[1:]))
        padded = jnp.pad(x, missing, constant_values=fill)
        return padded.reshape(blocks, size, *x.shape[1:])

    # Padding has count 0, so it has no effect; its time is 1 because gradients divide by it.
    starts = jnp.arange(blocks, dtype=sides.labels.dtype) * size
    cut = (split(sides.general, 0), split(sides.counts, 0), split(sides.general_time, 1), starts)

    def block(general: Any, counts: Any, time: Any, start: Any) -> _Sides:
        here = sides.labels - start
        here = jnp.where((here >= 0) & (here < size), here, size)  # other blocks: dropped by add
        return sides._replace(general=general, counts=counts, general_time=time, labels=here)

    def is_matched(part: _Sides) -> jax.Array:
        return part.labels[None, :] == jnp.arange(size, dtype=part.labels.dtype)[:, None]

    def add_sums(carry: Any, parts: Any) -> Any:
        top, summed, matched = carry  # sums so far, relative to exp(top)
        part = block(*parts)
        S = _logits(settings, part, _products(part))
        highest = jnp.maximum(top, jnp.max(S, axis=0))
        terms = part.counts[:, None] * jnp.exp(S - highest[None, :])
        summed = summed * jnp.exp(top - highest) + jnp.sum(terms, axis=0)
        matched = matched + jnp.sum(jnp.where(is_matched(part), S, 0), axis=0)
        return (highest, summed, matched), _log_sum_exp(S, None, axis=1)

    nothing = jnp.zeros_like(sides.weights)
    carry, by_general = jax.lax.scan(add_sums, (nothing + FAR_DOWN, nothing, nothing), cut)
    top, summed, matched = carry
    by_specific = top + jnp.log(jnp.where(summed <= 0, 1, summed))
    value = _value(sides, total, by_general.reshape(-1)[:classes], by_specific, matched)
    if not gradient:
        return value, None

    def add_gradients(carry: Any, parts: Any) -> Any:
        *cuts, lse = parts
        part = block(*cuts)
        products = _products(part)
        S, slope = (f(settings, part, products) for f in (_logits, _slopes))
        M = _weights_of_products(S, slope, part, entail, total, lse, by_specific)
        of_general, of_specific = _gradients(M, part, entail)
        time = jnp.matmul(part.general_time, M, precision=PRECISION)
        return jax.tree.map(jnp.add, carry, (of_specific, time)), of_general

    zero = (jnp.zeros_like(sides.specific), nothing)
    (of_specific, time), of_general = jax.lax.scan(add_gradients, zero, (*cut, by_general))
    of_general = of_general.reshape(-1, sides.general.shape[1])[:classes]
    return value, (of_general, of_specific + _own(sides, entail, time))
