r"""The protected system: which directions of the old features a step must not distort.

The protected basis `V` of a modality holds the leading eigenvectors of the spatial block S of its
second moment (:mod:`hmcl_jax.moments`), uncentred. Its image under the current head is

.. math:: U = W_s V + w_0 a^\top, \qquad a = (V^\top S V)^{-1} V^\top s_0,

where `a` fits the time component of the features by their protected coordinates (it vanishes with
w_0). U is the least-squares fit of the outputs on the protected features.

The heads of all modalities are tied by one rotation, so the images are factored together once per
task, :math:`[U_1 \dots U_M] = Q \operatorname{diag}(\sigma) [Y_1^\top \dots Y_M^\top]`; every
correction of a step is a product with these factors (see :mod:`hmcl_jax.projection`).
"""

import functools
from collections.abc import Collection
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax.typing import ArrayLike

from hmcl_jax import _checks
from hmcl_jax.head import select_heads
from hmcl_jax.lyapunov import matmul, numerical_svd
from hmcl_jax.moments import FeatureMoments, Matrices, mean

SMALLEST_WIDTH = 16
# Eigenvalues of a second moment below this power of eps, relative to the largest, are rounding:
# 1e-6 in float32, 5e-14 in float64. A sum of n products is off by some sqrt(n) units.
NOISE_POWER = 0.85


class Protection(NamedTuple):
    """The protected system of all modalities, fixed during a task.

    Arrays are padded with zeros to a common width w (and q), which changes nothing but the shapes.

    Attributes:
      basis: protected feature directions V by modality, ``(d, w)``.
      coordinates: Y by modality, ``(w, q)``: the images are ``U = Q diag(sigma) Y^T``.
      energy: square roots of the protected second moments ``V^T S V`` by modality, ``(w, w)``.
      time: fits `a` of the features' time by their protected coordinates, ``(w,)``.
      rank: number of protected directions by modality.
      shared_basis: Q, an orthonormal basis of all images, ``(d, q)``.
      shared_scales: sigma, ``(q,)``.
    """

    basis: Matrices
    coordinates: Matrices
    energy: Matrices
    time: Matrices
    rank: Matrices
    shared_basis: jax.Array
    shared_scales: jax.Array


def empty_protection(heads: Matrices) -> Protection:
    """The protection of nothing, for heads ``{modality: (d, d + 1)}``."""
    for modality, W in heads.items():
        if jnp.ndim(W) != 2:
            raise ValueError(
                f"Head {modality!r} must have shape (d, d + 1), got {tuple(W.shape)}; "
                "use jax.vmap for a seed axis."
            )
    dim = next(iter(heads.values())).shape[0]
    dtype = _checks.working_dtype(*heads.values())

    width = bucket(0, dim)
    shared = min(dim, width * len(heads))

    def zeros(*shape: int) -> Matrices:
        return {modality: jnp.zeros(shape, dtype) for modality in heads}

    return Protection(
        basis=zeros(dim, width),
        coordinates=zeros(width, shared),
        energy=zeros(width, width),
        time=zeros(width),
        rank={modality: jnp.zeros((), jnp.int32) for modality in heads},
        shared_basis=jnp.zeros((dim, shared), dtype),
        shared_scales=jnp.zeros(shared, dtype),
    )


def restrict(protection: Protection, modalities: Collection[str]) -> Protection:
    """The protection of some modalities, seen apart from the others.

    If one of the others is protected, the rest cannot turn without it: their shared rotation is
    taken away and only minimal rotation remains.
    """
    others = [n for m, n in protection.rank.items() if m not in modalities]
    if not others:
        return protection
    # A factor, not a branch: the ranks may be traced, and differ from seed to seed.
    alone = jnp.all(jnp.stack(others) == 0, axis=0).astype(protection.shared_basis.dtype)

    def kept(by_modality: Matrices) -> Matrices:
        return {m: x for m, x in by_modality.items() if m in modalities}

    coordinates = kept(protection.coordinates)
    return Protection(
        basis=kept(protection.basis),
        coordinates={m: Y * alone[..., None, None] for m, Y in coordinates.items()},
        energy=kept(protection.energy),
        time=kept(protection.time),
        rank=kept(protection.rank),
        shared_basis=protection.shared_basis * alone[..., None, None],
        shared_scales=protection.shared_scales * alone[..., None],
    )


def bucket(rank: int, dim: int) -> int:
    """Width that a basis of this rank is padded to: 16, 32, 64, ..., at most `dim`.

    Never 0: arrays of no size cannot be checkpointed, and the first task would have a shape of its
    own.
    """
    width = SMALLEST_WIDTH
    while width < rank:
        width *= 2
    return min(width, dim)


def protect(
    moments: FeatureMoments,
    params: Any,
    variance: ArrayLike = 0.75,
    min_rank: int = 1,
    max_rank: int | None = None,
    basis: str = "per_modality",
    weighting: str = "samples",
) -> Protection:
    r"""The protected system for the next task.

    The rank of a modality is the smallest that holds the share `variance` of the energy of its
    features (the trace of their uncentred second moment), at least `min_rank`, at most `max_rank`
    and at most the number of directions in which there is any energy: eigenvalues below 1e-6 of the
    largest (in float32; 5e-14 in float64) are taken for rounding. Without samples it is 0.

    Args:
      moments: of all features learned so far.
      params: current heads ``{modality: W}``; if they sit in a larger tree, what
        :func:`hmcl_jax.select_heads` gives for it. Heads with a leading seed axis,
        ``(seeds, d, d + 1)``, give a protection with that axis.
      variance: share of energy to protect, the paper's rho, in (0, 1]; or one share per seed,
        ``(seeds,)``.
      min_rank: the paper's k_min.
      max_rank: upper limit of the rank, by default d. Bases are padded to the smallest width of
        32, 64, 128, ... that fits the ranks; inside jit, where these are unknown, it fits this.
      basis: ``"per_modality"``: each modality has its own basis; ``"joint"``: one basis, of the
        summed moments, for all modalities that have samples.
      weighting: ``"samples"``: every sample weighs the same; ``"tasks"``: every task does (see
        :func:`end_task`).

    Returns:
      The protection, for :func:`hmcl_jax.begin_task`.

    Example:
      >>> import jax, hmcl_jax
      >>> params = hmcl_jax.identity_heads(["image", "text"], dim=4)
      >>> image = jax.random.normal(jax.random.key(0), (50, 2)) @ jax.numpy.eye(2, 4)
      >>> moments = hmcl_jax.update_moments(hmcl_jax.init_moments(params), {"image": image})
      >>> protection = hmcl_jax.protect(moments, params, variance=1.0)
      >>> print({modality: int(rank) for modality, rank in protection.rank.items()})
      {'image': 2, 'text': 0}
    """
    _checks.instance("moments", moments, FeatureMoments, "what init_moments gives")
    heads = select_heads(params)
    for share in variance if jnp.ndim(variance) == 1 else (variance,):  # type: ignore[union-attr]
        _checks.fraction("variance", share, low_open=True, high_open=False)
    _checks.choice("basis", basis, ("per_modality", "joint"))
    _checks.choice("weighting", weighting, ("samples", "tasks"))
    _checks.integer("min_rank", min_rank, 0)
    if max_rank is not None:
        _checks.integer("max_rank", max_rank, 1)
        if max_rank < min_rank:
            raise ValueError(
                f"max_rank must be at least min_rank = {min_rank}, got max_rank = {max_rank}."
            )
    if heads.keys() != moments.total.keys():
        raise ValueError(
            f"moments must hold the modalities of the heads, {sorted(heads)}, got "
            f"{sorted(moments.total)}; for a new head merge init_moments of it in first."
        )
    for modality, W in heads.items():
        if moments.total[modality].shape[-1] != W.shape[-1]:
            raise ValueError(
                f"Head {modality!r} of shape {tuple(W.shape)} does not fit its moments of shape "
                f"{moments.total[modality].shape}."
            )
    first = next(iter(heads.values()))
    if jnp.ndim(variance) and jnp.shape(variance) != first.shape[:-2]:
        raise ValueError(
            "variance must be one number, or one per seed of heads with a seed axis, "
            f"{first.shape[:-2]}, got shape {jnp.shape(variance)}."
        )
    _checks.finite("params", heads)
    _checks.finite("moments", moments)

    dim, joint = first.shape[-2], basis == "joint"
    limit = dim if max_rank is None else min(dim, max_rank)
    second, vectors, rank = _spectra(
        moments, variance, min_rank, limit, joint, weighting == "tasks"
    )
    known = all(_checks.is_concrete(r) for r in rank.values())
    largest = max(int(jnp.max(r)) for r in rank.values()) if known else limit
    return _build(second, vectors, rank, heads, bucket(largest, dim), joint)


# Two programs, because the width of the arrays of the second depends on the ranks of the first.
@functools.partial(jax.jit, static_argnames=("joint", "by_task"))
def _spectra(
    moments: FeatureMoments,
    variance: ArrayLike,
    min_rank: ArrayLike,
    limit: ArrayLike,
    joint: bool,
    by_task: bool,
) -> tuple[Matrices, Matrices, Matrices]:
    """Weighted second moments, their spatial eigenvectors (leading first) and ranks."""
    if _has_seeds(moments.total):
        one = functools.partial(_spectra, joint=joint, by_task=by_task)
        own = (True, bool(jnp.ndim(variance)), False, False)
        return _seed_by_seed(one, own, moments, variance, min_rank, limit)
    second = moments.total
    if by_task:
        open_means = jax.tree.map(mean, moments.open_total, moments.open_samples)
        second = jax.tree.map(jnp.add, moments.task_means, open_means)
    if joint:
        summed = functools.reduce(jnp.add, second.values())
        spectra = dict.fromkeys(second, _spectrum(summed, variance, min_rank, limit))
    else:
        spectra = {m: _spectrum(x, variance, min_rank, limit) for m, x in second.items()}
    vectors = {m: columns for m, (columns, _) in spectra.items()}
    rank = {m: jnp.where(moments.samples[m] > 0, r, 0) for m, (_, r) in spectra.items()}
    return second, vectors, rank


def _has_seeds(matrices: Matrices) -> bool:
    return next(iter(matrices.values())).ndim == 3


def _seed_by_seed(function: Any, own: tuple[bool, ...], *arguments: Any) -> Any:
    """A function over the seed axis of those arguments that are a seed's own.

    One after the other: decompositions of a batch share XLA's pool of threads on a CPU with
    whatever waits for them, which can come to a halt (seen with jaxlib 0.10).
    """

    def one(parts: tuple[Any, ...]) -> Any:
        left = iter(parts)
        return function(
            *(next(left) if is_own else x for is_own, x in zip(own, arguments, strict=True))
        )

    return jax.lax.map(one, tuple(x for is_own, x in zip(own, arguments, strict=True) if is_own))


def _spectrum(
    second: jax.Array, variance: ArrayLike, min_rank: ArrayLike, limit: ArrayLike
) -> tuple[jax.Array, jax.Array]:
    values, columns = jnp.linalg.eigh(second[1:, 1:])  # of its symmetric part, in ascending order
    values = jnp.maximum(values[::-1], 0)
    # A share that is reached up to rounding of the sum is reached.
    share = jnp.asarray(variance, values.dtype) - 16 * jnp.finfo(values.dtype).eps
    energy = jnp.broadcast_to(jnp.cumsum(values), (*share.shape, len(values)))
    below = energy < share[..., None] * jnp.sum(values)
    rank = jnp.minimum(jnp.maximum(1 + jnp.sum(below, axis=-1), min_rank), limit)
    return columns[:, ::-1], jnp.minimum(rank, jnp.sum(_above_noise(values))).astype(jnp.int32)


def _above_noise(values: jax.Array) -> jax.Array:
    """Which eigenvalues of a second moment are energy, and which are rounding."""
    noise = jnp.finfo(values.dtype).eps ** NOISE_POWER
    return values > noise * jnp.max(values, initial=0)


@functools.partial(jax.jit, static_argnames=("width", "joint"))
def _build(
    second: Matrices,
    vectors: Matrices,
    rank: Matrices,
    heads: Matrices,
    width: int,
    joint: bool,
) -> Protection:
    if _has_seeds(second) or _has_seeds(heads):
        one = functools.partial(_build, width=width, joint=joint)
        ranks = any(r.ndim for r in rank.values())  # shares of variance have seeds of their own
        own = (_has_seeds(second), _has_seeds(vectors), ranks, _has_seeds(heads))
        return _seed_by_seed(one, own, second, vectors, rank, heads)
    basis, energy, time, image = {}, {}, {}, {}
    for modality, W in heads.items():
        W = W.astype(second[modality].dtype)
        used = jnp.arange(width, dtype=jnp.int32) < rank[modality]
        V = vectors[modality][:, :width] * used.astype(W.dtype)[None, :]
        s0, S = second[modality][0, 1:], second[modality][1:, 1:]
        if joint:  # V are eigenvectors of the sum, so V^T S V is not diagonal
            values, axes = jnp.linalg.eigh(matmul(V.T, matmul(S, V)))
        else:
            values, axes = jnp.sum(V * matmul(S, V), axis=0), jnp.eye(width, dtype=W.dtype)
        kept = _above_noise(values)
        values = jnp.where(kept, values, 1)
        basis[modality] = V
        energy[modality] = axes * jnp.where(kept, jnp.sqrt(values), 0)[None, :]
        fit = jnp.where(kept, matmul(axes.T, matmul(V.T, s0)) / values, 0)
        time[modality] = matmul(axes, fit)
        # W_s V + w_0 a^T as one product: a copy of W_s would take longer.
        image[modality] = matmul(W, jnp.concatenate([time[modality][None, :], V]))
    # One decomposition of all images side by side: the modalities share its left vectors.
    Q, scales, rows = numerical_svd(jnp.concatenate(list(image.values()), axis=1))
    coordinates = dict(zip(image, jnp.split(rows.T, len(image)), strict=True))
    return Protection(basis, coordinates, energy, time, rank, Q, scales)
