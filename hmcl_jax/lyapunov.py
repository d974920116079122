"""The Lyapunov equation of the closest shared rotation, solved densely."""

import jax
import jax.numpy as jnp
import numpy as np
from jax.typing import ArrayLike

from hmcl_jax import _checks
from hmcl_jax._checks import PRECISION


def matmul(*factors: jax.Array) -> jax.Array:
    """Product of matrices at full precision, from left to right."""
    product = factors[0]
    for factor in factors[1:]:
        product = jnp.matmul(product, factor, precision=PRECISION)
    return product


def reciprocal(x: jax.Array) -> jax.Array:
    """1 / x, and 0 for the zeros of the padding."""
    return jnp.where(x > 0, 1 / jnp.where(x > 0, x, 1), 0)


def numerical_svd(matrix: jax.Array) -> tuple[jax.Array, jax.Array, jax.Array]:
    """SVD ``(d, q), (q,), (q, n)``; singular values that are rounding, and their vectors, are 0."""
    left, values, right = jnp.linalg.svd(matrix, full_matrices=False)
    # The tolerance of numpy.linalg.matrix_rank.
    noise = max(matrix.shape) * jnp.finfo(matrix.dtype).eps * jnp.max(values, initial=0)
    kept = (values > noise).astype(matrix.dtype)
    return left * kept[None, :], values * kept, right * kept[:, None]


def solve_lyapunov(H: ArrayLike, rhs: ArrayLike) -> jax.Array:
    r"""Solves :math:`\Omega H + H \Omega = R` for symmetric H >= 0 and skew R.

    A dense solve by the eigenvectors of H, O(d^3), for checks and analyses (paper:
    eq:supp_ca_lyapunov); the corrections use low-rank factors instead. Where H is singular on both
    sides of an entry, the entry is 0 (the solution of least norm).

    Args:
      H: symmetric positive (semi)definite, shape ``(..., d, d)``.
      rhs: skew-symmetric, same shape.

    Returns:
      The skew-symmetric solution, same shape.

    Example:
      >>> import jax.numpy as jnp, hmcl_jax
      >>> print(hmcl_jax.solve_lyapunov(jnp.diag(jnp.array([1.0, 3.0])),
      ...                               jnp.array([[0.0, 8.0], [-8.0, 0.0]])))
      [[ 0.  2.]
       [-2.  0.]]
    """
    H, rhs = _checks.as_points(H=H, rhs=rhs)
    if H.ndim < 2 or H.shape[-1] != H.shape[-2] or H.shape != rhs.shape:
        raise ValueError(
            f"H and rhs must be square matrices of one shape, got {H.shape} and {rhs.shape}."
        )
    _checks.finite("H", H)
    _checks.finite("rhs", rhs)
    _refuse_unless("symmetric", "H", H, 1)
    _refuse_unless("skew-symmetric", "rhs", rhs, -1)
    values, axes = jnp.linalg.eigh((H + H.mT) / 2)
    largest = jnp.max(jnp.abs(values), axis=-1, keepdims=True)
    # Eigenvalues are off by about this much, so smaller ones may be 0, or negative by rounding.
    noise = H.shape[-1] * jnp.finfo(H.dtype).eps * largest
    if _checks.is_concrete(values) and bool(np.any(np.asarray(values) < -np.asarray(noise))):
        raise ValueError(
            "H must be positive semidefinite, got an eigenvalue of "
            f"{float(np.asarray(values).min()):.6g}."
        )
    values = jnp.where(values > noise, values, 0)
    # In the eigenvectors' basis the equation is (h_i + h_j) Omega_ij = R_ij.
    weight = reciprocal(values[..., :, None] + values[..., None, :])
    turned = matmul(axes.mT, rhs, axes) * weight
    return matmul(axes, turned, axes.mT)


def _refuse_unless(quality: str, name: str, matrix: jax.Array, sign: int) -> None:
    if not _checks.is_concrete(matrix):
        return
    values = np.asarray(matrix)
    off = np.abs(values - sign * np.swapaxes(values, -1, -2)).max(initial=0)
    if off > np.sqrt(np.finfo(values.dtype).eps) * np.abs(values).max(initial=0):
        raise ValueError(f"{name} must be {quality}, but is off by {off:.6g}.")
