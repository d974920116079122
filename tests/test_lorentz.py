"""Values against 60-digit arithmetic, gradients at bad points, properties of the manifold."""

import jax
import jax.numpy as jnp
import numpy as np
import oracles
import pytest
from points import CURVATURES, assert_finite_with_gradients, pairs

from hmcl_jax import lorentz

pytestmark = pytest.mark.usefixtures("strict_dtypes")

# Compiled, because operation by operation most tests would wait for the compiler for seconds.
distance, inner = jax.jit(lorentz.distance), jax.jit(lorentz.inner)
pairwise_distance = jax.jit(lorentz.pairwise_distance)
pairwise_inner = jax.jit(lorentz.pairwise_inner)
distance_to_origin = jax.jit(lorentz.distance_to_origin)
exp_map0, log_map0 = jax.jit(lorentz.exp_map0), jax.jit(lorentz.log_map0)


@pytest.mark.parametrize("K", CURVATURES)
def test_values_in_float64_equal_60_digits(x64, rng, K):
    for x, y in pairs(rng):
        v = x * min(1, 20 / float(oracles.radius(x)))
        lifted = np.array([float(oracles.time(x, K)), *x])
        checks = {
            "distance": (distance(x, y, K), oracles.distance(x, y, K), 1e-13),
            "inner": (inner(x, y, K), oracles.inner(x, y, K), 1e-13),
            "time": (lorentz.time_coordinate(x, K), lifted[0], 1e-13),
            "lift": (lorentz.lift(x, K), lifted, 1e-15),
            "radius": (lorentz.radius(x), oracles.radius(x), 1e-13),
            "origin": (distance_to_origin(x, K), oracles.distance(x, 0 * x, K), 1e-13),
            "log": (log_map0(x, K), oracles.log_map0(x, K), 1e-13),
            "exp": (exp_map0(v, K), oracles.exp_map0(v, K), 1e-12),
        }
        for name, (ours, truth, rtol) in checks.items():
            truth = np.array(truth, float)
            np.testing.assert_allclose(ours, truth, rtol=rtol, err_msg=name)
        assert distance(x, x, K) == 0


def test_distance_in_float32_keeps_seven_digits(rng):
    for x, y in pairs(rng):
        x, y = np.float32(x), np.float32(y)
        if np.linalg.norm(x - y) < 1e-18:  # the square underflows in float32
            continue
        ours = distance(x, y)
        assert ours.dtype == jnp.float32
        np.testing.assert_allclose(float(ours), float(oracles.distance(x, y, 10.0)), rtol=2e-6)


def test_gradient_of_the_distance_equals_60_digits(x64, rng):
    gradient = jax.jit(jax.grad(lorentz.distance, (0, 2)))
    for x, y in pairs(rng):
        if np.linalg.norm(x) > 1e3 or np.linalg.norm(x) < 1e-6:
            continue
        ours, by_K = gradient(x, y, 10.0)
        truth = np.array(oracles.gradient(lambda u, y=y: oracles.distance(u, y, 10.0), x))
        # Straight behind at radius r, rounding of the direction is amplified by r^2 / K.
        np.testing.assert_allclose(ours, truth, rtol=0, atol=1e-15 * (10 + 10 * (x @ x)))
        # The derivative towards K, as a learned curvature needs it.
        numeric = oracles.gradient(lambda k, x=x, y=y: oracles.distance(x, y, k[0]), [10.0])[0]
        np.testing.assert_allclose(float(by_K), numeric, rtol=1e-9, atol=1e-14)
    y = jnp.array([3.0, 4.0])
    np.testing.assert_allclose(gradient(jnp.zeros(2), y, 10.0)[0], -y / 5, rtol=1e-14)


def test_second_derivatives_of_the_inner_product(x64, rng):
    x, y = jnp.array(rng.normal(size=(2, 4)))

    def plain(x):
        return x @ y - jnp.sqrt(10 + x @ x) * jnp.sqrt(10 + y @ y)

    ours = jax.jit(jax.hessian(lambda x: lorentz.inner(x, y)))(x)
    np.testing.assert_allclose(ours, jax.jit(jax.hessian(plain))(x), atol=1e-13)


def one_argument(function):
    return lambda x, y: function(x)


FUNCTIONS = {
    "distance": lorentz.distance,
    "inner": lorentz.inner,
    "pairwise_distance": lambda x, y: lorentz.pairwise_distance(x[None], y[None]),
    "pairwise_inner": lambda x, y: lorentz.pairwise_inner(x[None], y[None]),
    "exp_map0": one_argument(lorentz.exp_map0),
    "log_map0": one_argument(lorentz.log_map0),
    "lift": one_argument(lorentz.lift),
    "radius": one_argument(lorentz.radius),
    "time_coordinate": one_argument(lorentz.time_coordinate),
    "distance_to_origin": one_argument(lorentz.distance_to_origin),
    "geodesic": one_argument(
        lambda x: lorentz.geodesic_to_origin(x, np.linspace(0, 1, 5, dtype=np.float32))
    ),
}


@pytest.mark.parametrize("name", FUNCTIONS)
def test_finite_value_and_gradient_at_bad_points(name):
    assert_finite_with_gradients(FUNCTIONS[name])


def test_pairwise_forms_agree_with_the_rowwise_ones(dtype, rng):
    x = rng.normal(size=(7, 16)).astype(dtype)
    y = rng.normal(size=(5, 16)).astype(dtype)
    tolerance = 2e-5 if dtype == jnp.float32 else 1e-12
    for K in CURVATURES:
        for pairwise, by_row in ((pairwise_distance, distance), (pairwise_inner, inner)):
            expected = by_row(x[:, None], y[None], K)
            np.testing.assert_allclose(pairwise(x, y, K), expected, rtol=tolerance)
    # Also near the origin, in float32.
    x, y = np.float32([[1e-3, 0]]), np.float32([[1e-3, 3.3e-4], [-1e-3, 0]])
    np.testing.assert_allclose(pairwise_distance(x, y), distance(x[:, None], y[None]), rtol=1e-4)


def test_the_geodesic_to_the_origin_has_constant_speed(x64, rng):
    x = rng.normal(size=(4, 6)) * 5
    path = jax.jit(lorentz.geodesic_to_origin)(x, np.linspace(0, 1, 11))
    assert path.shape == (4, 11, 6)
    np.testing.assert_allclose(path[:, 0], x, rtol=1e-12)
    np.testing.assert_allclose(path[:, -1], 0, atol=1e-14)
    steps = distance(path[:, 1:], path[:, :-1])
    whole = np.broadcast_to(distance_to_origin(x)[:, None] / 10, steps.shape)
    np.testing.assert_allclose(steps, whole, rtol=1e-10)


def test_exp_map0_shortens_what_would_overflow():
    point = exp_map0(np.array([1e6, 0.0], np.float32))
    assert jnp.isfinite(point).all()
    assert jnp.isfinite(distance(point, -point))
    assert jnp.isfinite(pairwise_distance(point[None], -point[None])).all()


@pytest.mark.parametrize("name", FUNCTIONS)
def test_nan_is_not_hidden(name):
    x = jnp.array([np.nan, 0.0, 1.0], jnp.float32)
    assert jnp.isnan(jax.jit(FUNCTIONS[name])(x, jnp.ones(3))).any()


def test_half_precision_is_computed_in_float32():
    x = jnp.ones((2, 4), jnp.bfloat16)
    assert jax.eval_shape(lorentz.distance, x, x).dtype == jnp.float32
