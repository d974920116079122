"""Pairs of points on which geometry goes wrong: close, far, opposite, at the origin."""

import jax
import jax.numpy as jnp
import numpy as np

RADII = [1e-12, 1e-6, 0.3, 0.632, 1.0, 30.0, 1e3, 1e4]
CURVATURES = [10.0, 1.0, 0.25]


def pairs(rng, dim=5):
    """Points at all radii with partners close by, straight behind, opposite and anywhere."""
    for r in RADII:
        x = rng.normal(size=dim)
        x *= r / np.linalg.norm(x)
        side = rng.normal(size=dim)
        yield x, x + 1e-7 * side
        yield x, x + 1e-7 * r * side
        yield x, x * (1 + 1e-7)
        yield x, 3 * x + r * side
        yield x, -x
        yield x, -1.001 * x
        yield x, side
        yield side, x


one = np.array([1.0, -2.0, 2.0])
zero = np.zeros(3)
BAD_POINTS = {
    "both at the origin": (zero, zero),
    "x at the origin": (zero, one),
    "y at the origin": (one, zero),
    "coincident": (one, one),
    "opposite": (one, -one),
    "opposite far out": (1e4 * one / 3, -1e4 * one / 3),
    "inside the minimum radius": (0.1 * one / 3, 0.2 * one / 3),
    "radius 1e4": (1e4 * one / 3, 1e4 * one[::-1] / 3),
    "radius 1e4, coincident": (1e4 * one / 3, 1e4 * one / 3),
    "at the minimum radius": (0.2 * np.sqrt(10) * one / 3, one),
    "straight behind": (one, 2 * one),
    "straight before": (2 * one, one),
    "tiny": (1e-15 * one, 1e-15 * one[::-1]),
    "tiny and coincident": (1e-15 * one, 1e-15 * one),
    "underflowing": (1e-25 * one, 1e-30 * one),
    "almost coincident": (one, np.nextafter(np.float32(one), np.float32(9))),
}


def assert_finite_with_gradients(function):
    """At all bad points, in float32."""
    both = jax.jit(jax.value_and_grad(lambda *p: jnp.sum(function(*p)), (0, 1)))
    for name, points in BAD_POINTS.items():
        found = both(*(jnp.asarray(x, jnp.float32) for x in points))
        assert all(jnp.isfinite(x).all() for x in jax.tree.leaves(found)), (name, found)
