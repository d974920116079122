"""Cones against 60-digit arithmetic, bad points, and what must hold of any cone."""

import jax
import jax.numpy as jnp
import numpy as np
import oracles
import pytest
from points import assert_finite_with_gradients, pairs

from hmcl_jax import entailment

pytestmark = pytest.mark.usefixtures("strict_dtypes")

# Compiled, because operation by operation most tests would wait for the compiler for seconds.
half_aperture, entails = jax.jit(entailment.half_aperture), jax.jit(entailment.entails)
exterior_angle, loss = jax.jit(entailment.exterior_angle), jax.jit(entailment.entailment_loss)


@pytest.mark.parametrize(("K", "kappa"), [(10.0, 0.1), (1.0, 0.05), (0.25, 0.3)])
def test_angles_in_float64_equal_60_digits(x64, rng, K, kappa):
    for x, y in pairs(rng):
        aperture = float(oracles.half_aperture(x, K, kappa))
        truth = float(oracles.exterior_angle(x, y, K))
        np.testing.assert_allclose(half_aperture(x, K, kappa), aperture, rtol=1e-13)
        np.testing.assert_allclose(exterior_angle(x, y, K), truth, atol=1e-11)
        np.testing.assert_allclose(loss(x, y, K, kappa), max(0, truth - aperture), atol=1e-11)
        assert bool(entails(x, y, K, kappa)) == (truth <= aperture)


def test_gradient_of_the_loss_equals_60_digits(x64, rng):
    gradient = jax.jit(jax.grad(entailment.entailment_loss))
    checked = 0
    for x, y in pairs(rng):
        near = np.linalg.norm(x - y) < 0.1 * np.linalg.norm(x)
        straight = abs(x @ y) > (1 - 1e-9) * np.linalg.norm(x) * np.linalg.norm(y)
        if near or straight or not 1e-2 < np.linalg.norm(x) < 100:
            continue

        def truth(u, y=y):
            angle = oracles.exterior_angle(u, y, 10.0) - oracles.half_aperture(u, 10.0, 0.1)
            return max(angle, 0)

        np.testing.assert_allclose(
            gradient(x, y), oracles.gradient(truth, x), rtol=1e-8, atol=1e-10
        )
        checked += 1
    assert checked >= 8


FUNCTIONS = {
    "half_aperture": lambda x, y: entailment.half_aperture(x),
    "exterior_angle": entailment.exterior_angle,
    "pairwise_exterior_angle": lambda x, y: entailment.pairwise_exterior_angle(x[None], y[None]),
    "entailment_loss": entailment.entailment_loss,
}


@pytest.mark.parametrize("name", FUNCTIONS)
def test_finite_value_and_gradient_at_bad_points(name):
    assert_finite_with_gradients(FUNCTIONS[name])


def test_pairwise_angles_agree_with_the_rowwise_ones(dtype, rng):
    x = rng.normal(size=(7, 16)).astype(dtype)
    y = rng.normal(size=(5, 16)).astype(dtype)
    pairwise = jax.jit(entailment.pairwise_exterior_angle)(x, y)
    tolerance = 1e-5 if dtype == jnp.float32 else 1e-13
    np.testing.assert_allclose(pairwise, exterior_angle(x[:, None], y[None]), atol=tolerance)


def test_the_cone_is_half_a_sphere_inside_the_minimum_radius(dtype):
    least = 2 * 0.1 * np.sqrt(10)
    x = np.array([[0.0, 0.0], [0.5 * least, 0], [0.999 * least, 0]], dtype)
    np.testing.assert_allclose(half_aperture(x), np.pi / 2, rtol=1e-6)
    gradient = jax.jit(jax.grad(lambda x: jnp.sum(half_aperture(x))))(jnp.array(x))
    np.testing.assert_array_equal(gradient, 0)


def test_a_concept_entails_itself_and_the_origin_entails_all(dtype, rng):
    x = (rng.normal(size=(50, 8)) * np.exp(rng.uniform(-9, 4, size=(50, 1)))).astype(dtype)
    assert entails(x, x).all()
    assert entails(np.zeros_like(x), x).all()
    assert entails(x, 2 * x).all()
    outside = np.linalg.norm(x, axis=1) > 1
    assert not entails(x, -x)[outside].any()


@pytest.mark.parametrize("name", FUNCTIONS)
def test_nan_is_not_hidden(name):
    x = jnp.array([np.nan, 0.0, 1.0], jnp.float32)
    assert jnp.isnan(jax.jit(FUNCTIONS[name])(x, jnp.ones(3))).any()
    assert not entails(x, jnp.ones(3))
