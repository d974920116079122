r"""The protected system: which directions of the old features a step must not distort.

From the spatial block S of a modality's second moment (:mod:`hmcl_jax.moments`), uncentred, comes
the protected basis `V`: the leading eigenvectors that hold a share of the energy. Its image under
the current head is

.. math:: U = W_s V + w_0 a^\top, \qquad a = (V^\top S V)^{-1} V^\top s_0,

where `a` fits the time component of the features by their protected coordinates (it vanishes with
w_0). U is the least-squares fit of the outputs on the protected features.

The heads of all modalities are tied by one rotation, so the images are factored together once per
task, :math:`[U_1 \dots U_M] = Q \operatorname{diag}(\sigma) [Y_1^\top \dots Y_M^\top]`; every
correction of a step is a product with these factors (see :mod:`hmcl_jax.projection`).
"""

import functools
from collections.abc import Collection, Mapping
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax.typing import ArrayLike

from hmcl_jax import _checks
from hmcl_jax.head import select_heads
from hmcl_jax.lyapunov import matmul, numerical_svd
from hmcl_jax.moments import FeatureMoments, Matrices, mean

SMALLEST_WIDTH = 16


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
    dtype = protection.shared_basis.dtype
    alone = jnp.all(jnp.stack(others) == 0, axis=0).astype(dtype)

    def kept(by_modality: Matrices) -> Matrices:
        return {m: x for m, x in by_modality.items() if m in modalities}

    return Protection(
        basis=kept(protection.basis),
        coordinates={
            m: Y * alone[..., None, None] for m, Y in kept(protection.coordinates).items()
        },
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
    width: int | None = None,
    heads: Mapping[str, str] | None = None,
) -> Protection:
    r"""The protected system for the next task.

    The rank of a modality is the smallest that holds the share `variance` of the energy of its
    features (the trace of their uncentred second moment), at least `min_rank`, at most `max_rank`
    and at most the number of directions in which there is any energy: eigenvalues below 1e-6 of the
    largest (in float32; 5e-14 in float64) are taken for rounding. Without samples it is 0.

    Args:
      moments: of all features learned so far.
      params: current heads ``{modality: W}``, or a larger tree with `heads`. Heads with a leading
        seed axis, ``(seeds, d, d + 1)``, give a protection with that axis.
      variance: share of energy to protect, the paper's rho, in (0, 1]; or one share per seed,
        ``(seeds,)``.
      min_rank: the paper's k_min.
      max_rank: optional upper limit of the rank.
      basis: ``"per_modality"``: each modality has its own basis; ``"joint"``: one basis, of the
        summed moments, for all modalities that have samples.
      weighting: ``"samples"``: every sample weighs the same; ``"tasks"``: every task does (see
        :func:`end_task`).
      width: width to pad to, also an upper limit of the rank. By default the smallest of 16, 32,
        64, ... that fits (inside jit, where the rank is not known, what fits `max_rank` or d).
      heads: ``{modality: path}`` of the heads in a larger tree.

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
    found = select_heads(params, heads)
    _check_options(variance, min_rank, max_rank, basis, weighting, width)
    for modality, W in found.items():
        if modality not in moments.total:
            raise ValueError(
                f"Head {modality!r} has no entry in moments, which holds {sorted(moments.total)}; "
                "for a new head merge init_moments of it in first."
            )
        if moments.total[modality].shape[-1] != W.shape[-1]:
            raise ValueError(
                f"Head {modality!r} of shape {tuple(W.shape)} does not fit its moments of shape "
                f"{moments.total[modality].shape}."
            )
    seeds = next(iter(found.values())).shape[:-2]
    if jnp.ndim(variance) and jnp.shape(variance) != seeds:
        raise ValueError(
            f"variance must be one number, or one per seed of heads with a seed axis, {seeds}, "
            f"got shape {jnp.shape(variance)}."
        )
    for modality in moments.total:
        if modality not in found:
            raise ValueError(
                f"moments hold {modality!r}, but params has no such head: it has {sorted(found)}."
            )
    _checks.finite("params", found)
    _checks.finite("moments", moments)
    return _protect(moments, found, variance, min_rank, max_rank, basis, weighting, width)


def _check_options(
    variance: ArrayLike,
    min_rank: int,
    max_rank: int | None,
    basis: str,
    weighting: str,
    width: int | None,
) -> None:
    shares: Any = variance if jnp.ndim(variance) == 1 else (variance,)
    for share in shares:
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
    if width is not None:
        _checks.integer("width", width, 1)


def _protect(
    moments: FeatureMoments,
    heads: Matrices,
    variance: ArrayLike,
    min_rank: int,
    max_rank: int | None,
    basis: str,
    weighting: str,
    width: int | None,
) -> Protection:
    W = next(iter(heads.values()))
    dim, seeds = W.shape[-2], W.ndim == 3
    limit = min([dim, *(most for most in (max_rank, width) if most is not None)])
    moments_seeds = next(iter(moments.total.values())).ndim == 3
    second, vectors, rank = _spectra(
        moments, variance, min_rank, limit, basis == "joint", weighting == "tasks", moments_seeds
    )
    if width is None:
        known = all(_checks.is_concrete(r) for r in rank.values())
        width = bucket(max(int(jnp.max(r)) for r in rank.values()) if known else limit, dim)
    joint = basis == "joint"
    return _build(second, vectors, rank, heads, min(width, dim), joint, moments_seeds, seeds)


@functools.partial(jax.jit, static_argnames=("joint", "by_task", "seeds"))
def _spectra(
    moments: FeatureMoments,
    variance: ArrayLike,
    min_rank: ArrayLike,
    limit: ArrayLike,
    joint: bool,
    by_task: bool,
    seeds: bool,
) -> tuple[Matrices, Matrices, Matrices]:
    """Weighted second moments, their spatial eigenvectors (leading first) and ranks."""
    if seeds:
        one = functools.partial(_spectra, joint=joint, by_task=by_task, seeds=False)
        own = (True, bool(jnp.ndim(variance)), False, False)
        return _seed_by_seed(one, own, moments, variance, min_rank, limit)
    second = moments.total
    if by_task:
        open_means = jax.tree.map(mean, moments.open_total, moments.open_samples)
        second = jax.tree.map(jnp.add, moments.task_means, open_means)
    if joint:
        one_spectrum = _spectrum(
            functools.reduce(jnp.add, second.values()), variance, min_rank, limit
        )
        spectra = dict.fromkeys(second, one_spectrum)
    else:
        spectra = {m: _spectrum(x, variance, min_rank, limit) for m, x in second.items()}
    vectors = {m: columns for m, (columns, _) in spectra.items()}
    rank = {m: jnp.where(moments.samples[m] > 0, r, 0) for m, (_, r) in spectra.items()}
    return second, vectors, rank


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
    values, columns = jnp.linalg.eigh(second[1:, 1:])  # of its symmetric part
    values = jnp.maximum(values[::-1], 0)
    # A share that is reached up to rounding is reached.
    share = jnp.asarray(variance, values.dtype) - 16 * jnp.finfo(values.dtype).eps
    energy = jnp.broadcast_to(jnp.cumsum(values), (*share.shape, len(values)))
    below = energy < share[..., None] * jnp.sum(values)
    rank = jnp.minimum(jnp.maximum(1 + jnp.sum(below, axis=-1), min_rank), limit)
    return columns[:, ::-1], jnp.minimum(rank, jnp.sum(_above_noise(values))).astype(jnp.int32)


def _above_noise(values: jax.Array) -> jax.Array:
    """Which eigenvalues of a second moment are energy, and which are rounding."""
    return values > jnp.finfo(values.dtype).eps ** 0.85 * jnp.max(values, initial=0)


@functools.partial(jax.jit, static_argnames=("width", "joint", "moments_seeds", "seeds"))
def _build(
    second: Matrices,
    vectors: Matrices,
    rank: Matrices,
    heads: Matrices,
    width: int,
    joint: bool,
    moments_seeds: bool,
    seeds: bool,
) -> Protection:
    if seeds or moments_seeds:
        one = functools.partial(_build, width=width, joint=joint, moments_seeds=False, seeds=False)
        ranks = any(r.ndim for r in rank.values())
        own = (moments_seeds, moments_seeds, ranks, seeds)
        return _seed_by_seed(one, own, second, vectors, rank, heads)
    basis, energy, time, image = {}, {}, {}, {}
    for modality, W in heads.items():
        W = W.astype(second[modality].dtype)
        used = jnp.arange(width, dtype=jnp.int32) < rank[modality]
        V = vectors[modality][:, :width] * used.astype(W.dtype)[None, :]
        s0, S = second[modality][0, 1:], second[modality][1:, 1:]
        if joint:
            values, axes = jnp.linalg.eigh(matmul(V.T, matmul(S, V)))
        else:  # V are eigenvectors of S
            values, axes = jnp.sum(V * matmul(S, V), axis=0), jnp.eye(width, dtype=W.dtype)
        kept = _above_noise(values)
        values = jnp.where(kept, values, 1)
        basis[modality] = V
        energy[modality] = axes * jnp.where(kept, jnp.sqrt(values), 0)[None, :]
        fit = jnp.where(kept, matmul(axes.T, matmul(V.T, s0)) / values, 0)
        time[modality] = matmul(axes, fit)
        image[modality] = matmul(W[:, 1:], V) + W[:, :1] * time[modality][None, :]
    Q, scales, coordinates = _factor(image)
    return Protection(basis, coordinates, energy, time, rank, Q, scales)


def _factor(image: Matrices) -> tuple[jax.Array, jax.Array, Matrices]:
    """Singular value decomposition of all images side by side."""
    Q, scales, rows = numerical_svd(jnp.concatenate(list(image.values()), axis=1))
    return Q, scales, dict(zip(image, jnp.split(rows.T, len(image)), strict=True))
