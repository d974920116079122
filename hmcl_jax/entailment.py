r"""Entailment cones: which general concept contains which specific one.

Every point `x` spans a cone that opens away from the origin, with half aperture
:math:`\operatorname{aper}(x) = \arcsin(2 \kappa \sqrt K / |x|)`. A point `y` lies in it if the
exterior angle at `x`, between the outward ray and the geodesic to `y`, is no larger. Points with
:math:`|x| \le 2 \kappa \sqrt K` are general without limit: their half aperture is :math:`\pi / 2`.

The angles are computed from sine and cosine together (``arctan2``), never from an arc cosine near
1, and have finite gradients everywhere.
"""

from typing import NamedTuple

import jax
import jax.numpy as jnp
from jax.typing import ArrayLike

from hmcl_jax import _checks, lorentz
from hmcl_jax._checks import PRECISION
from hmcl_jax.lorentz import dot, safe_sqrt


def half_aperture(x: ArrayLike, K: ArrayLike = 10.0, kappa: ArrayLike = 0.1) -> jax.Array:
    r"""Half aperture of the cone at `x`, :math:`\arcsin(2 \kappa \sqrt K / |x|)`.

    Args:
      x: points, shape ``(..., d)``.
      K: squared radius of the hyperboloid.
      kappa: sets the minimum radius :math:`2 \kappa \sqrt K`, inside of which the half aperture is
        :math:`\pi / 2` with gradient 0.

    Returns:
      Angles in :math:`(0, \pi / 2]`, shape ``(...)``.

    Example:
      >>> from hmcl_jax import entailment
      >>> print(entailment.half_aperture([[4.0, 0.0], [0.1, 0.0]], K=4.0, kappa=0.5).round(4))
      [0.5236 1.5708]
    """
    (x,) = _checks.as_points(x=x)
    K = _checks.positive("K", K, x.dtype)
    kappa = _checks.positive("kappa", kappa, x.dtype)
    r = lorentz.radius(x)
    least = 2 * kappa * jnp.sqrt(K)
    inside = r <= least
    # arcsin(least / r) by both legs: near r = least an arc sine loses half of the digits.
    adjacent = jnp.sqrt(jnp.where(inside, 1, (r - least) * (r + least)))
    return jnp.where(inside, jnp.pi / 2, jnp.arctan2(least, adjacent))


def _direction(x: jax.Array) -> tuple[jax.Array, jax.Array, jax.Array]:
    """Unit vectors along `x`, radii, and which points have a direction; the others' vector is 0."""
    r = lorentz.radius(x)
    # Closer to the origin the square of the direction's gradient, 1 / r, could overflow.
    directed = r > jnp.finfo(x.dtype).tiny ** 0.25
    unit = x / jnp.where(directed, r, 1)[..., None]
    return jnp.where(directed[..., None], unit, 0), r, directed


def _angle(opposite: jax.Array, adjacent: jax.Array) -> jax.Array:
    """arctan2 with value and gradient 0 where both are 0."""
    undefined = jnp.maximum(opposite, jnp.abs(adjacent)) <= 0
    angle = jnp.arctan2(jnp.where(undefined, 0, opposite), jnp.where(undefined, 1, adjacent))
    return jnp.where(undefined, 0, angle)


def _outward(along: jax.Array, r: jax.Array, x0: jax.Array, y0: jax.Array) -> jax.Array:
    """sqrt(K) times the radial part of the tangent at x towards y; `along` is y's part along x."""
    return x0 * along - r * y0


def exterior_angle(x: ArrayLike, y: ArrayLike, K: ArrayLike = 10.0) -> jax.Array:
    r"""Exterior angle at `x` in the triangle of the origin, `x` and `y`, row by row.

    It is 0 if `y` lies straight behind `x` as seen from the origin and :math:`\pi` if it lies
    between the two. At coincident points it is 0 (a concept lies in its own cone); at ``x == 0``,
    where no direction is outward, :math:`\pi / 2`.

    Args:
      x: apexes (the general side), shape ``(..., d)``.
      y: points (the specific side), shape ``(..., d)``; leading axes broadcast.
      K: squared radius of the hyperboloid.

    Returns:
      Angles in :math:`[0, \pi]`, shape ``(...)``.

    Example:
      >>> from hmcl_jax import entailment
      >>> y = [[2.0, 0.0], [0.5, 0.0], [1.0, 0.0]]
      >>> print(entailment.exterior_angle([1.0, 0.0], y).round(4))
      [0. 3.1416 0. ]
    """
    x, y = _checks.as_points(x=x, y=y)
    _checks.same_dimension(x=x, y=y)
    K = _checks.positive("K", K, x.dtype)
    x, y = jnp.broadcast_arrays(x, y)
    return angle_parts(x, y, K).angle


class AngleParts(NamedTuple):
    """Parts of an exterior angle, row by row."""

    angle: jax.Array
    across: jax.Array  # length of the part of y across x
    outward: jax.Array  # sqrt(K) times the radial part of the tangent at x towards y
    along: jax.Array  # the part of y along x
    radius: jax.Array  # of x
    directed: jax.Array  # whether x is far enough from the origin to have a direction


def angle_parts(x: jax.Array, y: jax.Array, K: jax.Array) -> AngleParts:
    """The exterior angle at `x` towards `y` and its parts, without cancellation."""
    unit, r, directed = _direction(x)
    step = y - x
    # y and y - x have the same part across x; from the shorter, less is lost to rounding.
    shorter = lorentz.where_shorter(step, y, step, y)
    across = shorter - unit * dot(unit, shorter)[..., None]
    across_squared = dot(across, across)
    x0, y0 = lorentz.time_coordinate(x, K), lorentz.time_coordinate(y, K)
    along = dot(unit, y)
    ahead = along > 0  # there the two terms of _outward cancel: times and over their sum
    cancelled = K * dot(unit, step) * (along + r) - r**2 * across_squared
    outward = jnp.where(
        ahead, cancelled / jnp.where(ahead, x0 * along + r * y0, 1), _outward(along, r, x0, y0)
    )
    length = safe_sqrt(across_squared)
    return AngleParts(_angle(jnp.sqrt(K) * length, outward), length, outward, along, r, directed)


def pairwise_exterior_angle(x: ArrayLike, y: ArrayLike, K: ArrayLike = 10.0) -> jax.Array:
    """Exterior angles of all pairs of rows, as one matrix product.

    Less accurate than :func:`exterior_angle` for pairs much closer than their radius.

    Args:
      x: apexes (the general side), shape ``(n, d)``.
      y: points (the specific side), shape ``(m, d)``.
      K: squared radius of the hyperboloid.

    Returns:
      Shape ``(n, m)``.

    Example:
      >>> import jax.numpy as jnp
      >>> from hmcl_jax import entailment
      >>> y = [[2.0, 0.0], [0.5, 0.0], [0.0, 1.0]]
      >>> print(jnp.rad2deg(entailment.pairwise_exterior_angle([[1.0, 0.0]], y)).round())
      [[ 0. 180. 136.]]
    """
    x, y = _checks.as_points(x=x, y=y)
    _checks.matrices(x=x, y=y)
    K = _checks.positive("K", K, x.dtype)
    unit, r, _ = _direction(x)
    along = jnp.matmul(unit, y.T, precision=PRECISION)
    s = lorentz.radius(y)[None, :]
    x0, y0 = lorentz.time_coordinate(x, K)[:, None], lorentz.time_coordinate(y, K)[None, :]
    across = safe_sqrt((s - along) * (s + along))
    return _angle(jnp.sqrt(K) * across, _outward(along, r[:, None], x0, y0))


def entailment_loss(
    general: ArrayLike, specific: ArrayLike, K: ArrayLike = 10.0, kappa: ArrayLike = 0.1
) -> jax.Array:
    r"""How far `specific` lies outside the cone of `general`, row by row.

    :math:`\max(0, \operatorname{ext}(g, s) - \operatorname{aper}(g))`; take the mean for a loss.

    Args:
      general: apexes of the cones (text, in MERU's order), shape ``(..., d)``.
      specific: points that should lie inside (images), shape ``(..., d)``; leading axes broadcast.
      K: squared radius of the hyperboloid.
      kappa: sets the minimum radius, see :func:`half_aperture`.

    Returns:
      Shape ``(...)``.

    Example:
      >>> from hmcl_jax import entailment
      >>> print(entailment.entailment_loss([2.0, 0.0], [[3.0, 0.0], [-3.0, 0.0]]).round(4))
      [0. 2.8198]
    """
    excess = exterior_angle(general, specific, K) - half_aperture(general, K, kappa)
    return jnp.where(excess <= 0, 0, excess)  # a maximum would have gradient 1/2 at 0


def entails(
    general: ArrayLike, specific: ArrayLike, K: ArrayLike = 10.0, kappa: ArrayLike = 0.1
) -> jax.Array:
    """Whether `specific` lies in the cone of `general`, row by row.

    Args:
      general: apexes of the cones, shape ``(..., d)``.
      specific: points, shape ``(..., d)``; leading axes broadcast.
      K: squared radius of the hyperboloid.
      kappa: sets the minimum radius, see :func:`half_aperture`.

    Returns:
      Booleans, shape ``(...)``. Every point entails itself and the origin entails every point.

    Example:
      >>> from hmcl_jax import entailment
      >>> print(entailment.entails([2.0, 0.0], [[3.0, 0.0], [-3.0, 0.0], [2.0, 0.0]]))
      [ True False  True]
    """
    return exterior_angle(general, specific, K) <= half_aperture(general, K, kappa)
