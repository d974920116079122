r"""The hyperboloid :math:`\mathbb H^d_K`: inner products, distances, exp and log at the origin.

A point is stored by its space components, shape ``(..., d)``; its time component
:math:`x_0 = \sqrt{K + |x|^2}` follows. ``K > 0`` is the squared radius of the hyperboloid, so the
curvature is ``-1 / K`` (MERU's ``curv`` is ``1 / K``). Everything is computed in the dtype of the
points, but at least in float32, and has finite gradients at every point, coincident ones included.

There are two distances. :func:`distance` compares rows and keeps its relative accuracy however
close or far the points are; :func:`pairwise_distance` is one matrix product and meant for logits.
"""

import jax
import jax.numpy as jnp
from jax.typing import ArrayLike

from hmcl_jax import _checks
from hmcl_jax._checks import PRECISION


def dot(x: jax.Array, y: jax.Array) -> jax.Array:
    """Euclidean inner product of rows."""
    return jnp.sum(x * y, axis=-1)


def _time(x: jax.Array, K: jax.Array) -> jax.Array:
    return jnp.sqrt(K + dot(x, x))


def safe_sqrt(x: jax.Array) -> jax.Array:
    """Square root with value and gradient 0 where ``x <= 0``; NaN stays NaN."""
    zero = x <= 0
    # Both: an inner `where` alone would leave sqrt(1), an outer alone a gradient 0 * inf = NaN.
    return jnp.where(zero, 0, jnp.sqrt(jnp.where(zero, 1, x)))


def radius(x: ArrayLike) -> jax.Array:
    """Euclidean norm of the space components: how specific a concept is.

    Args:
      x: points, shape ``(..., d)``.

    Returns:
      Shape ``(...)``; the gradient at the origin is 0.

    Example:
      >>> from hmcl_jax import lorentz
      >>> print(lorentz.radius([[3.0, 4.0], [0.0, 0.0]]))
      [5. 0.]
    """
    (x,) = _checks.as_points(x=x)
    return safe_sqrt(dot(x, x))


def time_coordinate(x: ArrayLike, K: ArrayLike = 10.0) -> jax.Array:
    r"""Time component :math:`\sqrt{K + |x|^2}`.

    Args:
      x: points, shape ``(..., d)``.
      K: squared radius of the hyperboloid.

    Returns:
      Shape ``(...)``.

    Example:
      >>> from hmcl_jax import lorentz
      >>> print(lorentz.time_coordinate([3.0, 0.0], K=16.0))
      5.0
    """
    (x,) = _checks.as_points(x=x)
    return _time(x, _checks.positive("K", K, x.dtype))


def lift(x: ArrayLike, K: ArrayLike = 10.0) -> jax.Array:
    """All components of a point, time first.

    Args:
      x: points, shape ``(..., d)``.
      K: squared radius of the hyperboloid.

    Returns:
      Shape ``(..., d + 1)``.

    Example:
      >>> from hmcl_jax import lorentz
      >>> print(lorentz.lift([3.0, 0.0], K=16.0))
      [5. 3. 0.]
    """
    (x,) = _checks.as_points(x=x)
    return jnp.concatenate([time_coordinate(x, K)[..., None], x], axis=-1)


def where_shorter(a: jax.Array, b: jax.Array, if_a: jax.Array, if_b: jax.Array) -> jax.Array:
    """Row by row `if_a` where `a` is shorter than `b`, else `if_b`."""
    return jnp.where((dot(a, a) < dot(b, b))[..., None], if_a, if_b)


@jax.custom_jvp
def _half_chord(x: jax.Array, y: jax.Array, K: jax.Array) -> jax.Array:
    r"""sinh^2 of half the distance (in units of sqrt K), without cancellation.

    Split into the radial part, sinh^2 of half the difference of the two distances to the origin,
    and the angular part |x||y|(1 - cos) / 2K. Differences are formed from the shorter of y and
    y - x, so nothing is lost to rounding: neither close together nor far out.
    """
    r, s = safe_sqrt(dot(x, x)), safe_sqrt(dot(y, y))
    # sinh of the difference of the distances is (s x0 - r y0) / K, where both terms nearly cancel;
    # times and over s x0 + r y0 the numerator is s^2 - r^2 = (y - x) . (x + y).
    unit = x / jnp.where(r > 0, r, 1)[..., None]
    step = y - x
    denominator = r * _time(y, K) + s * _time(x, K)
    radial_sinh = dot(step, x + y) / jnp.where(denominator > 0, denominator, 1)
    radial = radial_sinh**2 / (2 * (1 + jnp.sqrt(1 + radial_sinh**2)))
    along = dot(unit, y)
    shorter = where_shorter(step, y, step, y)
    across = shorter - unit * dot(unit, shorter)[..., None]
    ahead = along > 0  # there s - along cancels
    gap = jnp.where(ahead, dot(across, across) / jnp.where(ahead, s + along, 1), s - along)
    return radial + r * gap / (2 * K)


@_half_chord.defjvp
def _half_chord_jvp(
    primals: tuple[jax.Array, jax.Array, jax.Array],
    tangents: tuple[jax.Array, jax.Array, jax.Array],
) -> tuple[jax.Array, jax.Array]:
    # By hand, as the square roots of the formula above have no derivative at the origin. But h is
    # a smooth function of the points, its gradient towards x is (x y0 / x0 - y) / 2K.
    x, y, K = primals
    dx, dy, dK = tangents
    h = _half_chord(x, y, K)
    x0, y0 = _time(x, K), _time(y, K)
    step = y - x
    time_step = dot(step, x + y) / (x0 + y0)  # y0 - x0 without cancellation
    from_x = where_shorter(
        step, y, x * (time_step / x0)[..., None] - step, x * (y0 / x0)[..., None] - y
    )
    from_y = where_shorter(
        step, x, step - y * (time_step / y0)[..., None], y * (x0 / y0)[..., None] - x
    )
    dh = dot(from_x, dx) + dot(from_y, dy) + (time_step**2 / (2 * x0 * y0) - 2 * h) * dK
    return h, dh / (2 * K)


def half_chord(x: ArrayLike, y: ArrayLike, K: ArrayLike = 10.0) -> tuple[jax.Array, jax.Array]:
    """Row-wise sinh^2(d / (2 sqrt K)) and K as an array of its dtype; smooth everywhere."""
    x, y = _checks.as_points(x=x, y=y)
    _checks.same_dimension(x=x, y=y)
    K = _checks.positive("K", K, x.dtype)
    x, y = jnp.broadcast_arrays(x, y)
    return _half_chord(x, y, K), K


def inner(x: ArrayLike, y: ArrayLike, K: ArrayLike = 10.0) -> jax.Array:
    r"""Lorentz inner product of rows, :math:`-x_0 y_0 + x \cdot y`.

    Args:
      x: points, shape ``(..., d)``.
      y: points, shape ``(..., d)``; leading axes broadcast against those of `x`.
      K: squared radius of the hyperboloid.

    Returns:
      Shape ``(...)``; at most ``-K``.

    Example:
      >>> from hmcl_jax import lorentz
      >>> print(lorentz.inner([3.0, 0.0], [0.0, 3.0], K=16.0))
      -25.0
    """
    h, K = half_chord(x, y, K)
    return -K * (1 + 2 * h)  # cosh d = 1 + 2 sinh^2(d / 2)


def distance(x: ArrayLike, y: ArrayLike, K: ArrayLike = 10.0) -> jax.Array:
    r"""Geodesic distance of rows, :math:`\sqrt K \operatorname{arcosh}(-\langle x, y\rangle / K)`.

    Computed as :math:`2 \sqrt K \operatorname{arsinh} \sqrt h` from a cancellation-free
    :math:`h = \sinh^2(d / 2\sqrt K)`, so that it is accurate to a few units in the last place for
    points 1e-7 apart as well as for points at radius 1e4. The gradient at ``x == y`` is 0.

    Args:
      x: points, shape ``(..., d)``.
      y: points, shape ``(..., d)``; leading axes broadcast against those of `x`.
      K: squared radius of the hyperboloid.

    Returns:
      Shape ``(...)``.

    Example:
      >>> from hmcl_jax import lorentz
      >>> print(lorentz.distance([1.0, 0.0], [1.0, 1e-6]))
      1e-06
    """
    h, K = half_chord(x, y, K)  # paper: equ:prelim_distance, with cosh d = 1 + 2 sinh^2(d / 2)
    return 2 * jnp.sqrt(K) * arsinh(safe_sqrt(h))


def pairwise_inner(x: ArrayLike, y: ArrayLike, K: ArrayLike = 10.0) -> jax.Array:
    """Lorentz inner products of all pairs of rows, as one matrix product.

    Args:
      x: points, shape ``(n, d)``.
      y: points, shape ``(m, d)``.
      K: squared radius of the hyperboloid.

    Returns:
      Shape ``(n, m)``.

    Example:
      >>> from hmcl_jax import lorentz
      >>> print(lorentz.pairwise_inner([[3.0, 0.0]], [[0.0, 3.0], [3.0, 0.0]], K=16.0))
      [[-25. -16.]]
    """
    x, y = _checks.as_points(x=x, y=y)
    _checks.matrices(x=x, y=y)
    K = _checks.positive("K", K, x.dtype)
    products = jnp.matmul(x, y.T, precision=PRECISION)
    return products - _time(x, K)[:, None] * _time(y, K)[None, :]


def pairwise_distance(x: ArrayLike, y: ArrayLike, K: ArrayLike = 10.0) -> jax.Array:
    """Geodesic distances of all pairs of rows, as one matrix product, for logits.

    Distances below about ``sqrt(eps)`` times the radius are lost to rounding; use :func:`distance`
    for them. Where the rounded distance is 0, so is its gradient.

    Args:
      x: points, shape ``(n, d)``.
      y: points, shape ``(m, d)``.
      K: squared radius of the hyperboloid.

    Returns:
      Shape ``(n, m)``.

    Example:
      >>> from hmcl_jax import lorentz
      >>> print(lorentz.pairwise_distance([[3.0, 0.0]], [[0.0, 3.0], [3.0, 0.0]], K=16.0).round(4))
      [[4.0654 0. ]]
    """
    x, y = _checks.as_points(x=x, y=y)
    _checks.matrices(x=x, y=y)
    K = _checks.positive("K", K, x.dtype)
    r2, s2 = dot(x, x)[:, None], dot(y, y)[None, :]
    times = jnp.sqrt(K + r2) * jnp.sqrt(K + s2)
    # x0 y0 - K without cancellation, so that points near the origin are told apart.
    above = (K * (r2 + s2) + r2 * s2) / (times + K)
    excess = (above - jnp.matmul(x, y.T, precision=PRECISION)) / K
    return jnp.sqrt(K) * jnp.log1p(excess_root(excess))


def excess_root(excess: jax.Array) -> jax.Array:
    """e + sqrt(e (e + 2)), with arcosh(1 + e) = log1p of it; 0 with gradient 0 where e <= 0."""
    zero = excess <= 0  # rounding may make it negative
    e = jnp.where(zero, 1, excess)
    return jnp.where(zero, 0, e + jnp.sqrt(e * (e + 2)))


def arsinh(x: jax.Array) -> jax.Array:
    """Inverse hyperbolic sine of non-negative numbers, also accurate where it is small."""
    # log(x + sqrt(1 + x^2)) in the form log1p, without the rounding of a sum 1 + x.
    return jnp.log1p(x + x * x / (1 + jnp.sqrt(1 + x * x)))


def exp_map0(v: ArrayLike, K: ArrayLike = 10.0) -> jax.Array:
    r"""Exponential map at the origin, :math:`\sqrt K \sinh(|v| / \sqrt K)\, v / |v|`.

    Vectors so long that distances of the results would overflow are shortened (in float32 at radius
    ``5e7 * sqrt(K)``).

    Args:
      v: tangent vectors at the origin, shape ``(..., d)``.
      K: squared radius of the hyperboloid.

    Returns:
      Points, shape ``(..., d)``.

    Example:
      >>> from hmcl_jax import lorentz
      >>> print(lorentz.exp_map0([[1.0, 0.0], [0.0, 0.0]], K=1.0).round(4))
      [[1.1752 0. ]
       [0. 0. ]]
    """
    (v,) = _checks.as_points(v=v)
    K = _checks.positive("K", K, v.dtype)
    length = safe_sqrt(dot(v, v)) / jnp.sqrt(K)
    # The distance of two such points takes the fourth power of their radius: max^(4/5) is finite.
    longest = jnp.arcsinh(jnp.asarray(jnp.finfo(v.dtype).max ** 0.2, v.dtype))
    still = length <= 0
    safe = jnp.where(still, 1, length)
    stretch = jnp.sinh(jnp.where(safe > longest, longest, safe)) / safe
    return v * jnp.where(still, 1, stretch)[..., None]


def log_map0(x: ArrayLike, K: ArrayLike = 10.0) -> jax.Array:
    r"""Logarithm map at the origin, the inverse of :func:`exp_map0`.

    Args:
      x: points, shape ``(..., d)``.
      K: squared radius of the hyperboloid.

    Returns:
      Tangent vectors at the origin, shape ``(..., d)``.

    Example:
      >>> from hmcl_jax import lorentz
      >>> print(lorentz.log_map0(lorentz.exp_map0([1.5, -2.0])).round(5))
      [ 1.5 -2. ]
    """
    (x,) = _checks.as_points(x=x)
    K = _checks.positive("K", K, x.dtype)
    length = safe_sqrt(dot(x, x)) / jnp.sqrt(K)
    still = length <= 0
    safe = jnp.where(still, 1, length)
    return x * jnp.where(still, 1, arsinh(safe) / safe)[..., None]


def distance_to_origin(x: ArrayLike, K: ArrayLike = 10.0) -> jax.Array:
    r"""Geodesic distance to the origin, :math:`\sqrt K \operatorname{arsinh}(|x| / \sqrt K)`.

    Args:
      x: points, shape ``(..., d)``.
      K: squared radius of the hyperboloid.

    Returns:
      Shape ``(...)``; the gradient at the origin is 0.

    Example:
      >>> from hmcl_jax import lorentz
      >>> print(lorentz.distance_to_origin(lorentz.exp_map0([3.0, 4.0])).round(5))
      5.0
    """
    (x,) = _checks.as_points(x=x)
    K = _checks.positive("K", K, x.dtype)
    return jnp.sqrt(K) * arsinh(safe_sqrt(dot(x, x)) / jnp.sqrt(K))


def geodesic_to_origin(x: ArrayLike, fractions: ArrayLike, K: ArrayLike = 10.0) -> jax.Array:
    """Points on the geodesic from each `x` to the origin.

    Args:
      x: points, shape ``(..., d)``.
      fractions: shape ``(s,)``, the shares of the way that have been walked: 0 gives `x`, 1 the
        origin.
      K: squared radius of the hyperboloid.

    Returns:
      Points, shape ``(..., s, d)``.

    Example:
      >>> from hmcl_jax import lorentz
      >>> path = lorentz.geodesic_to_origin(lorentz.exp_map0([2.0, 0.0]), [0.0, 0.5, 1.0])
      >>> print(lorentz.distance_to_origin(path).round(5))
      [2. 1. 0.]
    """
    (x,) = _checks.as_points(x=x)
    (fractions,) = _checks.as_points(fractions=fractions)
    if fractions.ndim != 1:
        raise ValueError(f"fractions must have shape (s,), got shape {fractions.shape}.")
    left = (1 - fractions).astype(x.dtype)
    tangent = log_map0(x, K)
    leading = (1,) * (x.ndim - 1)
    return exp_map0(tangent[..., None, :] * left.reshape(*leading, -1, 1), K)
