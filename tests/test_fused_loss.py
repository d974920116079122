"""The gradient by hand against JAX's own of the plain form."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from hmcl_jax import fused_loss, objective

pytestmark = pytest.mark.usefixtures("strict_dtypes")
OPTIONS = {"tau": 0.2, "K": 4.0, "kappa": 0.15, "entailment_weight": 0.7}


def plain(general, specific, valid):
    """The pair loss as the mean of its terms, which JAX differentiates."""
    terms = objective.pair_terms(general, specific, valid=valid, **OPTIONS)
    return jnp.sum(terms) / max(int(valid.sum()), 1)


def compare(ours, expected, tolerance):
    (value, gradients), (plain_value, plain_gradients) = ours, expected
    np.testing.assert_allclose(value, plain_value, rtol=tolerance, atol=tolerance)
    for g, e in zip(gradients, plain_gradients, strict=True):
        assert np.isfinite(g).all()
        np.testing.assert_allclose(g, e, atol=tolerance * float(jnp.abs(e).max()))


def both(loss, *arguments):
    return jax.jit(jax.value_and_grad(loss, (0, 1)))(*arguments)


def points(rng, rows, dtype, dim=12):
    return jnp.asarray(rng.normal(size=(rows, dim)), dtype)


def test_pairs(dtype, rng):
    general, specific = points(rng, 24, dtype), points(rng, 24, dtype)
    valid = np.arange(24) < 17
    ours = both(lambda g, s: objective.pair_loss(g, s, valid=valid, **OPTIONS), general, specific)
    expected = both(lambda g, s: plain(g, s, valid), general, specific)
    compare(ours, expected, 3e-5 if dtype == jnp.float32 else 1e-12)


@pytest.mark.parametrize(("K", "radius"), [(0.1, 1.0), (10.0, 1e-2), (10.0, 1e-6)])
def test_entailment_near_the_origin(dtype, radius, K):
    """What is straight is a matter of the angle, whatever the radius beside sqrt(K)."""
    angles = np.linspace(1.7, 3.13, 24)  # outside the cone, whose half aperture is at most pi / 2
    along = np.stack([np.cos(angles), np.sin(angles), 0 * angles], axis=1)
    general = jnp.asarray(np.tile([radius, 0.0, 0.0], (24, 1)), dtype)
    specific = jnp.asarray(1.3 * radius * along, dtype)
    valid = np.ones(24, bool)
    options = {"tau": 1e3, "K": K, "kappa": 0.1, "entailment_weight": 1.0, "valid": valid}
    ours = both(lambda g, s: objective.pair_loss(g, s, **options), general, specific)
    terms = both(lambda g, s: jnp.mean(objective.pair_terms(g, s, **options)), general, specific)
    assert min(float(jnp.linalg.norm(g, axis=1).min()) for g in terms[1]) > 1e-3 / radius
    compare(ours, terms, 1e-4 if dtype == jnp.float32 else 1e-8)


@pytest.mark.parametrize("block", [8192, 5], ids=["at once", "blocks"])
def test_prototypes(dtype, rng, block, monkeypatch):
    monkeypatch.setattr(fused_loss, "BLOCK", block)
    prototypes, specific = points(rng, 13, dtype), points(rng, 40, dtype)
    labels = jnp.asarray(rng.integers(0, 11, 40), jnp.int32)  # two classes are absent
    valid = np.arange(40) < 33

    def loss(p, s):
        return objective.prototype_loss(p, s, jnp.where(valid, labels, -1), **OPTIONS)

    ours = both(loss, prototypes, specific)
    expected = both(lambda p, s: plain(p[labels], s, valid), prototypes, specific)
    compare(ours, expected, 3e-5 if dtype == jnp.float32 else 1e-12)
    value = jax.jit(loss)(prototypes, specific)  # without a gradient
    np.testing.assert_allclose(value, ours[0], rtol=1e-5)


def test_special_positions(x64, rng):
    """Coincident, opposite and collinear points, the origin, and radii from 1e-3 to 1e3."""
    general = rng.normal(size=(12, 5))
    specific = rng.normal(size=(12, 5))
    specific[0] = general[0]
    specific[1] = -general[1]
    specific[2], specific[3] = 0.4 * general[2], 2.5 * general[3]
    general[4] = 0
    specific[5] = 0
    general[6] *= 1e-3
    general[7] *= 1e3
    specific[8] *= 1e3
    specific[9] = general[9] + 1e-6
    valid = np.ones(12, bool)
    arguments = jnp.asarray(general), jnp.asarray(specific)
    ours = both(lambda g, s: objective.pair_loss(g, s, valid=valid, **OPTIONS), *arguments)
    expected = both(lambda g, s: plain(g, s, valid), *arguments)
    # On one line with the origin the direction of the gradient is rounding.
    straight = np.array([1, 2])
    for gradients in (ours[1], expected[1]):
        assert all(np.isfinite(g).all() for g in gradients)
    bent = [(value, [np.delete(g, straight, 0) for g in gs]) for value, gs in (ours, expected)]
    compare(*bent, 1e-8)
    single = [x.astype(jnp.float32) for x in arguments]
    _, gradients = both(lambda g, s: objective.pair_loss(g, s, **OPTIONS), *single)
    assert all(np.isfinite(g).all() for g in gradients)


def test_learned_numbers_are_differentiated_too(x64, rng):
    general, specific = points(rng, 9, float), points(rng, 9, float)

    def loss(tau, K, kappa, weight):
        return objective.pair_loss(
            general, specific, tau=tau, K=K, kappa=kappa, entailment_weight=weight
        )

    loss = jax.jit(loss)
    at = tuple(map(jnp.asarray, OPTIONS.values()))
    found = jax.jit(jax.grad(loss, (0, 1, 2, 3)))(*at)
    for place, slope in enumerate(found):
        step = 1e-6 * float(at[place])
        up, down = (
            float(loss(*(x + sign * step * (i == place) for i, x in enumerate(at))))
            for sign in (1, -1)
        )
        np.testing.assert_allclose(slope, (up - down) / (2 * step), rtol=1e-6)


@pytest.mark.slow
def test_gradients_of_gradients(x64, rng):
    general, specific = points(rng, 7, float), points(rng, 7, float)

    def along(loss):
        def slope(x):
            return jnp.sum(jax.grad(loss)(x) ** 2)

        return jax.jit(jax.grad(slope))(general)

    ours = along(lambda g: objective.pair_loss(g, specific, **OPTIONS))
    expected = along(lambda g: jnp.mean(objective.pair_terms(g, specific, **OPTIONS)))
    np.testing.assert_allclose(ours, expected, rtol=1e-8, atol=1e-10)


def test_two_matrices_of_the_size_of_the_logits_are_enough():
    rows, dim = 512, 16
    loss = jax.jit(jax.grad(lambda g, s: objective.pair_loss(g, s, **OPTIONS), (0, 1)))
    shape = jax.ShapeDtypeStruct((rows, dim), jnp.float32)
    used = loss.lower(shape, shape).compile().memory_analysis().temp_size_in_bytes
    assert used < 2.5 * 4 * rows**2
