"""The dense Lyapunov solve against scipy."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import scipy.linalg
from jax.test_util import check_grads

import hmcl_jax

pytestmark = pytest.mark.usefixtures("strict_dtypes")


def equation(rng, dim, rank=None, dtype=np.float64):
    factor = rng.normal(size=(dim, rank or 2 * dim))
    rhs = rng.normal(size=(dim, dim))
    return (factor @ factor.T).astype(dtype), (rhs - rhs.T).astype(dtype)


@pytest.mark.parametrize("dim", [2, 20])
def test_agrees_with_scipy(dtype, rng, dim):
    H, rhs = equation(rng, dim, dtype=dtype)
    ours = np.asarray(hmcl_jax.solve_lyapunov(H, rhs))
    expected = scipy.linalg.solve_continuous_lyapunov(H.astype(float), rhs.astype(float))
    tolerance = 1e-4 if dtype == jnp.float32 else 1e-11
    np.testing.assert_allclose(ours, expected, atol=tolerance * np.abs(expected).max())
    np.testing.assert_allclose(ours, -ours.T, atol=tolerance)


def test_singular_H_gives_the_solution_of_least_norm(x64, rng):
    dim, rank = 7, 3
    H, rhs = equation(rng, dim, rank)
    Q = np.linalg.svd(H)[0][:, :rank]
    outside = np.eye(dim) - Q @ Q.T
    rhs = rhs - outside @ rhs @ outside  # solvable
    ours = np.asarray(hmcl_jax.solve_lyapunov(H, rhs))
    np.testing.assert_allclose(ours @ H + H @ ours, rhs, atol=1e-10)
    np.testing.assert_allclose(outside @ ours @ outside, 0, atol=1e-11)


def test_batches_jit_and_gradients(x64, rng):
    problems = [equation(rng, 4) for _ in range(3)]
    H, rhs = (jnp.array(np.stack(part)) for part in zip(*problems, strict=True))
    together = jax.jit(hmcl_jax.solve_lyapunov)(H, rhs)
    for k, one in enumerate(problems):
        np.testing.assert_allclose(together[k], hmcl_jax.solve_lyapunov(*one), atol=1e-13)
    weight = jnp.array(rng.normal(size=(4, 4)))

    def weighted(r):
        return jnp.sum(weight * hmcl_jax.solve_lyapunov(H[0], r - r.T))

    check_grads(weighted, (rhs[0],), order=1, modes=["rev"])


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda H, R: (H + np.triu(np.ones_like(H), 1), R), "H must be symmetric"),
        (lambda H, R: (H, R + np.eye(4)), "rhs must be skew"),
        (lambda H, R: (H - 100 * np.eye(4), R), "positive semidefinite.*-"),
        (lambda H, R: (H[:3], R), "square matrices"),
        (lambda H, R: (H * np.nan, R), "H must be finite"),
    ],
)
def test_refuses_what_it_cannot_solve(x64, rng, change, message):
    with pytest.raises(ValueError, match=message):
        hmcl_jax.solve_lyapunov(*change(*equation(rng, 4)))
