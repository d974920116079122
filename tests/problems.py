"""Random protected systems and a brute-force solution of the closest-admissible problem."""

from typing import NamedTuple

import jax.numpy as jnp
import numpy as np
import scipy.linalg

import hmcl_jax


class Problem(NamedTuple):
    """Heads, lifted features and candidates of several modalities, as numpy arrays."""

    heads: dict
    lifted: dict
    delta: dict


def lift(x, K=10.0):
    return np.concatenate([np.sqrt(K + (x**2).sum(-1, keepdims=True)), x], axis=-1)


def random_problem(rng, dim, ranks, *, time_column=True, samples=40, dtype=np.float64):
    """One modality per entry of `ranks`, with features that span exactly that many directions."""
    heads, lifted, delta = {}, {}, {}
    for index, rank in enumerate(ranks):
        name = f"m{index}"
        span = np.linalg.qr(rng.normal(size=(dim, dim)))[0][:, :rank]
        x = rng.normal(size=(samples, rank)) * np.exp(rng.uniform(-1, 1, size=rank)) @ span.T
        W = np.concatenate([np.zeros((dim, 1)), np.eye(dim)], axis=1)
        W = W + 0.3 * rng.normal(size=W.shape) / np.sqrt(dim)
        if not time_column:
            W[:, 0] = 0
        heads[name] = W.astype(dtype)
        lifted[name] = lift(x).astype(dtype) if rank else np.zeros((0, dim + 1), dtype)
        delta[name] = rng.normal(size=W.shape).astype(dtype)
    return Problem(heads, lifted, delta)


def heads_of(problem):
    return {m: jnp.array(W) for m, W in problem.heads.items()}


def moments_of(problem):
    return hmcl_jax.update_moments(hmcl_jax.init_moments(problem.heads), problem.lifted)


def protected(problem, **options):
    """The protection of a problem, through the public functions."""
    moments = moments_of(problem)
    options = {"variance": 1.0, "min_rank": 0, **options}
    return hmcl_jax.protect(moments, problem.heads, **options)


def fitted_outputs(problem, name):
    """Features X and the least-squares fit of the outputs Y on them."""
    z = problem.lifted[name].astype(np.float64)
    x, y = z[:, 1:], z @ problem.heads[name].astype(np.float64).T
    return x, x @ np.linalg.pinv(x, rcond=1e-5) @ y if len(x) else y  # x may be rounded


def skew_basis(dim):
    basis = np.zeros((dim * (dim - 1) // 2, dim, dim))
    for k, (i, j) in enumerate(zip(*np.triu_indices(dim, 1), strict=True)):
        basis[k, i, j], basis[k, j, i] = 1, -1
    return basis


def protected_span(problem):
    """An orthonormal basis of the span of the protected outputs of all modalities, (d, q)."""
    outputs = np.concatenate([fitted_outputs(problem, name)[1] for name in problem.heads])
    return scipy.linalg.orth(outputs.T, rcond=1e-9)


def generators(problem, span):
    """A basis of the skew matrices among which the shared rotation is sought."""
    dim = next(iter(problem.heads.values())).shape[0]
    if span is None:
        return np.zeros((0, dim, dim))
    if span == "ambient":
        return skew_basis(dim)
    Q = protected_span(problem)
    return np.einsum("ia,kab,jb->kij", Q, skew_basis(Q.shape[1]), Q)


def brute_force(problem, span="protected"):
    """Solves the paper's constrained problem with all displacements and skew entries unknown.

    With Omega in a span, or (None) Omega = 0.
    """
    names, dim = list(problem.heads), next(iter(problem.heads.values())).shape[0]
    basis = generators(problem, span)
    unknowns = len(names) * dim * dim + len(basis)
    rows = []
    for index, name in enumerate(names):
        x, y = fitted_outputs(problem, name)
        block = np.zeros((len(x), dim, unknowns))  # entry (n, i) of X D^T - Y Omega^T
        for i in range(dim):
            start = index * dim * dim + i * dim
            block[:, i, start : start + dim] = x
        for k, omega in enumerate(basis):
            block[:, :, len(names) * dim * dim + k] = -y @ omega.T
        rows.append(block.reshape(-1, unknowns))
    constraints = np.concatenate(rows)
    if len(constraints):
        feasible = scipy.linalg.null_space(constraints, rcond=1e-10)
    else:
        feasible = np.eye(unknowns)
    displacements = feasible[: len(names) * dim * dim]
    wanted = np.concatenate([problem.delta[name][:, 1:].ravel() for name in names])
    best = displacements @ np.linalg.lstsq(displacements, wanted, rcond=1e-12)[0]
    return dict(zip(names, best.reshape(len(names), dim, dim), strict=True))


def best_rotation_residuals(problem, *displacements):
    """How far each is from admissible: the residual, relative to the motion it makes.

    Dense least squares over skew matrices in float64; for large d by their Lyapunov equation.
    """
    fitted = {name: fitted_outputs(problem, name) for name in problem.heads}
    H = sum(y.T @ y for _, y in fitted.values())
    values, axes = np.linalg.eigh(H)
    sums = values[:, None] + values
    kept = sums > 1e-10 * values.max()
    for displacement in displacements:
        motions = {m: x @ np.float64(displacement[m])[:, 1:].T for m, (x, _) in fitted.items()}
        F = sum(motions[m].T @ y for m, (_, y) in fitted.items())
        turned = axes.T @ (F - F.T) @ axes
        omega = axes @ np.where(kept, turned / np.where(kept, sums, 1), 0) @ axes.T
        residual = sum(((motions[m] - y @ omega.T) ** 2).sum() for m, (_, y) in fitted.items())
        yield np.sqrt(residual / sum((motion**2).sum() for motion in motions.values()))
