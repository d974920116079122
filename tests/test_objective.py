"""The loss against plain numpy, padding, traced numbers and bad points."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import scipy.special

from hmcl_jax import objective

pytestmark = pytest.mark.usefixtures("strict_dtypes")


def plain_loss(general, specific, tau, K=10.0, kappa=0.1, weight=0.2):
    """The paper's equations, one by one."""
    g0, s0 = (np.sqrt(K + (x**2).sum(1)) for x in (general, specific))
    products = general @ specific.T - np.outer(g0, s0)
    logits = -np.sqrt(K) * np.arccosh(-products / K) / tau
    forward = -np.mean(np.diag(scipy.special.log_softmax(logits, axis=1)))
    backward = -np.mean(np.diag(scipy.special.log_softmax(logits, axis=0)))
    gamma = np.diag(products) / K
    r = np.linalg.norm(general, axis=1)
    angle = np.arccos((s0 + g0 * gamma) / (r * np.sqrt(gamma**2 - 1)))
    aperture = np.arcsin(np.minimum(1, 2 * kappa * np.sqrt(K) / r))
    return (forward + backward) / 2 + weight * np.maximum(0, angle - aperture).mean()


def pair_loss(text, image, **options):
    """Compiled as one; operation by operation takes seconds."""
    return jax.jit(functools.partial(objective.pair_loss, **options))(text, image)


def prototype_loss(prototypes, image, labels, **options):
    return jax.jit(functools.partial(objective.prototype_loss, **options))(
        prototypes, image, labels
    )


def test_the_loss_and_its_defaults_are_the_papers(x64, rng):
    text, image = rng.normal(size=(2, 6, 4))
    for options in (
        {"tau": 0.07},
        {"tau": 0.5, "K": 3.0, "kappa": 0.3, "entailment_weight": 1.0},
    ):
        terms = jax.jit(functools.partial(objective.pair_terms, **options))(text, image)
        for ours in (
            pair_loss(text, image, **options),
            prototype_loss(text, image, np.arange(6), **options),
            jnp.mean(terms),
        ):
            expected = plain_loss(text, image, *options.values())
            np.testing.assert_allclose(ours, expected, rtol=1e-11)


def batch(rng, classes, rows, dtype, dim=16):
    prototypes = rng.normal(size=(classes, dim)).astype(dtype)
    labels = rng.integers(0, classes, size=rows)
    image = (prototypes[labels] + rng.normal(size=(rows, dim))).astype(dtype)
    return prototypes, image, labels.astype(np.int32)


def test_padding_may_hold_anything(rng):
    prototypes, image, labels = batch(rng, 4, 8, np.float32)
    valid = np.arange(8) < 6
    expected = prototype_loss(prototypes, image[:6], labels[:6], tau=0.1)
    image[6:], labels[6:] = np.nan, -1
    losses = (
        lambda x: prototype_loss(prototypes, x, labels, tau=0.1),
        lambda x: pair_loss(prototypes[labels], x, tau=0.1, valid=valid),
    )
    for loss in losses:
        value, gradient = jax.jit(jax.value_and_grad(loss))(jnp.array(image))
        np.testing.assert_allclose(value, expected, rtol=1e-5)
        assert jnp.isfinite(gradient).all()


def test_traced_numbers_give_the_same_loss(x64, rng):
    prototypes, image, labels = batch(rng, 6, 12, np.float64, dim=4)
    labels = np.minimum(labels, 4)  # class 5 is absent, and by far the nearest to one sample
    image[0] = prototypes[5] + 1e-3

    def by_class(p, x, valid, tau):
        return objective.prototype_loss(p, x, jnp.where(valid, labels, -1), tau=tau)

    def by_pair(p, x, valid, tau):
        return objective.pair_loss(p[labels], x, tau=tau, valid=valid)

    for loss in (by_class, by_pair):
        traced = jax.jit(jax.value_and_grad(loss, (0, 1)))
        known = jax.jit(jax.value_and_grad(functools.partial(loss, tau=1e-3), (0, 1)))
        for rows in (12, 7, 1, 0):
            valid = np.arange(12) < rows
            expected, slopes = known(prototypes, image, valid)
            value, gradients = traced(prototypes, image, valid, 1e-3)
            np.testing.assert_allclose(value, expected, rtol=1e-10, atol=1e-12)
            for g, e in zip(gradients, slopes, strict=True):
                assert np.isfinite(g).all()
                np.testing.assert_allclose(g, e, atol=1e-10 * (1 + float(jnp.abs(e).max())))


def test_roles_are_not_symmetric_only_by_entailment(x64, rng):
    a, b = rng.normal(size=(2, 9, 4))
    forward = pair_loss(a, b, tau=0.1, entailment_weight=0.0)
    backward = pair_loss(b, a, tau=0.1, entailment_weight=0.0)
    np.testing.assert_allclose(forward, backward, rtol=1e-13)
    assert pair_loss(a, b, tau=0.1) != pair_loss(b, a, tau=0.1)


def test_no_valid_row_gives_zero_and_extreme_logits_stay_finite(rng):
    text, image = np.float32(rng.normal(size=(2, 8, 4)))
    nothing = pair_loss(text, image, tau=0.1, valid=np.zeros(8, bool))
    assert float(nothing) == 0
    far = jax.jit(jax.value_and_grad(lambda x: pair_loss(text, x, tau=1e-4)))
    value, gradient = far(jnp.array(image * 1e3))
    assert jnp.isfinite(value)
    assert jnp.isfinite(gradient).all()


def test_nan_is_not_hidden(rng):
    text, image = np.float32(rng.normal(size=(2, 4, 3)))
    text[1, 1] = np.nan
    assert jnp.isnan(pair_loss(text, image, tau=0.1))
    assert jnp.isnan(prototype_loss(text, image, np.arange(4), tau=0.1))
