"""Cones against 60-digit arithmetic, bad points, and what must hold of any cone."""

import jax
import jax.numpy as jnp
import numpy as np
import oracles
import pytest
from points import BAD_POINTS, CURVATURES, assert_finite_with_gradient, pairs

from hmcl_jax import entailment

pytestmark = pytest.mark.usefixtures("strict_dtypes")


@pytest.mark.parametrize("K", CURVATURES)
def test_angles_in_float64_equal_60_digits(x64, rng, K):
    for x, y in pairs(rng):
        np.testing.assert_allclose(
            float(entailment.half_aperture(x, K)),
            float(oracles.half_aperture(x, K, 0.1)),
            rtol=1e-13,
        )
        truth = float(oracles.exterior_angle(x, y, K))
        np.testing.assert_allclose(float(entailment.exterior_angle(x, y, K)), truth, atol=1e-11)
        aperture = float(oracles.half_aperture(x, K, 0.1))
        np.testing.assert_allclose(
            float(entailment.entailment_loss(x, y, K)), max(0, truth - aperture), atol=1e-11
        )
        assert bool(entailment.entails(x, y, K)) == (truth <= aperture)


def test_gradient_of_the_loss_equals_60_digits(x64, rng):
    checked = 0
    for x, y in pairs(rng):
        near = np.linalg.norm(x - y) < 0.1 * np.linalg.norm(x)
        straight = abs(x @ y) > (1 - 1e-9) * np.linalg.norm(x) * np.linalg.norm(y)
        if near or straight or not 1e-2 < np.linalg.norm(x) < 100:
            continue

        def loss(u, y=y):
            angle = oracles.exterior_angle(u, y, 10.0) - oracles.half_aperture(u, 10.0, 0.1)
            return max(angle, 0)

        ours = jax.grad(entailment.entailment_loss)(jnp.array(x), jnp.array(y))
        np.testing.assert_allclose(ours, oracles.gradient(loss, x), rtol=1e-8, atol=1e-10)
        checked += 1
    assert checked >= 8


FUNCTIONS = {
    "half_aperture": lambda x, y: entailment.half_aperture(x),
    "exterior_angle": entailment.exterior_angle,
    "pairwise_exterior_angle": lambda x, y: entailment.pairwise_exterior_angle(x[None], y[None]),
    "entailment_loss": entailment.entailment_loss,
}


@pytest.mark.parametrize("name", FUNCTIONS)
@pytest.mark.parametrize(("x", "y"), BAD_POINTS)
def test_finite_value_and_gradient_at_bad_points(name, x, y):
    assert_finite_with_gradient(FUNCTIONS[name], x, y)


def test_pairwise_angles_agree_with_the_rowwise_ones(dtype, rng):
    x = rng.normal(size=(7, 16)).astype(dtype)
    y = rng.normal(size=(5, 16)).astype(dtype)
    np.testing.assert_allclose(
        entailment.pairwise_exterior_angle(x, y),
        entailment.exterior_angle(x[:, None, :], y[None, :, :]),
        atol=1e-5 if dtype == jnp.float32 else 1e-13,
    )


def test_the_cone_is_half_a_sphere_inside_the_minimum_radius(dtype):
    least = 2 * 0.1 * np.sqrt(10)
    x = np.array([[0.0, 0.0], [0.5 * least, 0], [0.999 * least, 0]], dtype)
    np.testing.assert_allclose(entailment.half_aperture(x), np.pi / 2, rtol=1e-6)
    gradient = jax.grad(lambda x: jnp.sum(entailment.half_aperture(x)))(jnp.array(x))
    np.testing.assert_array_equal(gradient, 0)


def test_a_concept_entails_itself_and_the_origin_entails_all(dtype, rng):
    x = (rng.normal(size=(50, 8)) * np.exp(rng.uniform(-9, 4, size=(50, 1)))).astype(dtype)
    assert entailment.entails(x, x).all()
    assert entailment.entails(np.zeros_like(x), x).all()
    assert entailment.entails(x, 2 * x).all()
    outside = np.linalg.norm(x, axis=1) > 1
    assert not entailment.entails(x, -x)[outside].any()


@pytest.mark.parametrize("name", FUNCTIONS)
def test_nan_is_not_hidden(name):
    x = jnp.array([np.nan, 0.0, 1.0], jnp.float32)
    assert jnp.isnan(FUNCTIONS[name](x, jnp.ones(3))).any()
    assert not entailment.entails(x, jnp.ones(3))


def test_a_wider_kappa_opens_the_cone(rng):
    x, y = np.float32(rng.normal(size=(2, 200, 3)) * 2)
    narrow, wide = entailment.entails(x, y, kappa=0.05), entailment.entails(x, y, kappa=0.3)
    assert (wide | ~narrow).all()
    assert wide.sum() > narrow.sum()
