r"""The admissible part of a step: minimal rotation, closest admissible step, finite rotation.

A displacement ``delta = [delta_0 | delta_s]`` of the heads is admissible if it leaves the column
of the time input alone and moves every protected point by one rotation that all modalities share,
:math:`\delta_s V = \Omega U` with skew :math:`\Omega` (paper: eq:prop_blockwise_admissible_spatial;
V and U as in :mod:`hmcl_jax.protection`).

- MR, :func:`minimal_rotation`: the closest displacement with Omega = 0.
- CA, :func:`closest_admissible`: the closest displacement of all, by a Lyapunov equation
  :math:`\Omega H + H \Omega = F - F^\top` with :math:`H = \sum_m U_m U_m^\top` and
  :math:`F = \sum_m \delta_s^m V_m U_m^\top` (paper: eq:supp_ca_lyapunov).

Let Q be an orthonormal basis of the span of the protected outputs, :math:`U_m = Q \Sigma Y_m^\top`,
:math:`N = \sum_m \delta_s^m V_m Y_m` and :math:`C = Q^\top N`. The option `span` says which Omega
are allowed (docs/method.md says what follows from it):

- ``"protected"``, the default, is the paper's rank-r realization, in :math:`O(r^3)`: Omega turns
  protected outputs within their own span, :math:`\Omega = Q A Q^\top`, and

  .. math::
    \Omega Q \Sigma = Q \Big[ \frac{C_{ij} \sigma_j^2 - C_{ji} \sigma_i \sigma_j}
      {\sigma_i^2 + \sigma_j^2} \Big].

- ``"ambient"`` is the problem as the paper states it, over all skew matrices. Omega may also turn
  protected outputs out of their span, :math:`\Omega = Q A Q^\top + G Q^\top - Q G^\top`, and the
  motion above gains :math:`(I - Q Q^\top) N`.

In both forms every coefficient is bounded by 1: a step costs products of width q, solves nothing
and is as well conditioned as MR, however small the smallest singular value. MR and CA hold to first
order in the step; :func:`rotate` applies the Cayley transform of Omega, an exact rotation.
"""

from collections.abc import Mapping
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jax.typing import ArrayLike

from hmcl_jax import _checks
from hmcl_jax.head import check_head
from hmcl_jax.lyapunov import matmul, numerical_svd, reciprocal
from hmcl_jax.moments import Matrices
from hmcl_jax.protection import Protection

SPANS = ("protected", "ambient")


class Rotation(NamedTuple):
    """A skew matrix ``Q A Q^T + G Q^T - Q G^T`` over the shared basis Q of a protection.

    Attributes:
      inside: A, skew, ``(q, q)``.
      outside: G, orthogonal to Q, ``(d, q)``; None if the rotation stays in the protected span.
    """

    inside: jax.Array
    outside: jax.Array | None


class Strain(NamedTuple):
    """How a displacement moves the protected points of one modality (paper: Lorentz strain).

    Attributes:
      symmetric: S, ``(d, d)``: stretches the points, changes radii and apertures.
      residual: E, ``(w, d)``: what no linear map of the outputs explains.
      generator: Omega, ``(d, d)``: rotates the points; admissible if shared by all modalities.
    """

    symmetric: jax.Array
    residual: jax.Array
    generator: jax.Array


def _candidates(delta: Mapping[str, ArrayLike], protection: Protection) -> Matrices:
    """Candidates of all protected modalities, 0 for absent ones, in the protection's dtype."""
    _checks.instance("protection", protection, Protection, "what protect gives")
    _checks.instance("delta", delta, Mapping, "a mapping {modality: array}")
    dim, dtype = protection.shared_basis.shape[0], protection.shared_basis.dtype
    for modality, W in delta.items():
        if modality not in protection.basis:
            raise ValueError(
                f"delta[{modality!r}] has no entry in protection, which holds "
                f"{sorted(protection.basis)}."
            )
        if check_head(f"delta[{modality!r}]", jnp.asarray(W)) != dim or jnp.ndim(W) != 2:
            raise ValueError(
                f"delta[{modality!r}] must have shape {(dim, dim + 1)}, got {jnp.shape(W)}."
            )
    absent = jnp.zeros((dim, dim + 1), dtype)
    return {m: jnp.asarray(delta.get(m, absent)).astype(dtype) for m in protection.basis}


def _over_time(V: jax.Array) -> jax.Array:
    """A basis with a row of zeros for the time input, so that whole heads are multiplied by it.

    Slices of the heads without their time columns would be copied at every step.
    """
    return jnp.concatenate([jnp.zeros_like(V[:1]), V])


def protected_motion(delta: Mapping[str, ArrayLike], protection: Protection) -> Matrices:
    """P, how candidates move the protected directions, ``delta_s V`` by modality."""
    candidates = _candidates(delta, protection)
    return {m: matmul(W, _over_time(protection.basis[m])) for m, W in candidates.items()}


def replace_motion(
    delta: Mapping[str, ArrayLike],
    change: Matrices,
    protection: Protection,
    hold_time: bool,
) -> Matrices:
    """Changes the protected motion of candidates: ``delta_s + change V^T`` by modality, in the
    dtypes of `delta`. A held time column becomes 0."""
    result = {}
    for m, W in _candidates(delta, protection).items():
        W = W + matmul(change[m], _over_time(protection.basis[m]).T)
        if hold_time:
            W = jnp.where(jnp.arange(W.shape[1]) == 0, 0, W)
        result[m] = W.astype(jnp.asarray(delta[m]).dtype if m in delta else W.dtype)
    return result


def minimal_rotation(
    delta: Mapping[str, ArrayLike], protection: Protection, *, hold_time: bool = True
) -> Matrices:
    r"""HMCL-MR: the closest displacement that leaves all protected points in place.

    :math:`\delta_s - (\delta_s V) V^\top` per modality (paper: eq:canonical_projection).

    Args:
      delta: candidate displacements ``{modality: (d, d + 1)}``; absent modalities count as 0.
      protection: the protected system.
      hold_time: whether the column of the time input is held fixed.

    Returns:
      Displacements of every modality in `protection`.

    Example:
      >>> import jax, hmcl_jax
      >>> params = hmcl_jax.identity_heads(["image"], dim=3)
      >>> x = jax.numpy.array([[1.0, 0.0, 0.0]])
      >>> moments = hmcl_jax.update_moments(hmcl_jax.init_moments(params), {"image": x})
      >>> delta = {"image": jax.numpy.ones((3, 4))}
      >>> step = hmcl_jax.minimal_rotation(delta, hmcl_jax.protect(moments, params))
      >>> print(step["image"] + 0)
      [[0. 0. 1. 1.]
       [0. 0. 1. 1.]
       [0. 0. 1. 1.]]
    """
    # From left to right: products of width w; the (d, d) projector V V^T is never formed.
    moved = protected_motion(delta, protection)
    return replace_motion(delta, jax.tree.map(jnp.negative, moved), protection, hold_time)


def closest_admissible(
    delta: Mapping[str, ArrayLike],
    protection: Protection,
    *,
    span: str = "protected",
    hold_time: bool = True,
) -> Matrices:
    r"""HMCL-CA: the closest displacement that moves all protected points by one shared rotation.

    :math:`\delta_s - (\delta_s V) V^\top + \Omega U V^\top` per modality, for any ranks; at full
    rank it is the paper's Algorithm for CA. See the module's head for the closed form of Omega.

    Args:
      delta: candidate displacements ``{modality: (d, d + 1)}``. Absent modalities count as 0 and
        still turn with the others.
      protection: the protected system.
      span: ``"protected"``: the closest with :math:`\Omega = Q A Q^\top`, which turns protected
        outputs within their span (the paper's rank-r realization); ``"ambient"``: the closest over
        all skew Omega (the exact solution of the stated problem). At full rank both are the same.
      hold_time: whether the column of the time input is held fixed.

    Returns:
      Displacements of every modality in `protection`.

    Example:
      >>> import jax, hmcl_jax
      >>> params = hmcl_jax.identity_heads(["image", "text"], dim=3)
      >>> x = jax.random.normal(jax.random.key(0), (10, 3))
      >>> moments = hmcl_jax.update_moments(
      ...     hmcl_jax.init_moments(params), {"image": x, "text": x})
      >>> protection = hmcl_jax.protect(moments, params, variance=1.0)
      >>> delta = {"image": jax.random.normal(jax.random.key(1), (3, 4))}
      >>> step = hmcl_jax.closest_admissible(delta, protection)
      >>> print(jax.numpy.allclose(step["image"], step["text"], atol=1e-6))   # one rotation
      True
    """
    _checks.choice("span", span, SPANS)
    moved = protected_motion(delta, protection)
    wanted = closest_motion(moved, protection, span)
    # Omega U V^T takes the place of delta V V^T (paper: eq:supp_ca_modal_update, at V V^T = 1).
    change = jax.tree.map(jnp.subtract, wanted, moved)
    return replace_motion(delta, change, protection, hold_time)


def _joint_motion(moved: Matrices, protection: Protection) -> tuple[jax.Array, jax.Array]:
    """N, the motion of all protected directions in the coordinates of the basis, and C."""
    Y = jnp.concatenate(list(protection.coordinates.values()))
    N = matmul(side_by_side(moved), Y)
    return N, matmul(protection.shared_basis.T, N)


def side_by_side(blocks: Matrices) -> jax.Array:
    """Matrices of all modalities as one, in their order."""
    return jnp.concatenate(list(blocks.values()), axis=1)


def closest_motion(moved: Matrices, protection: Protection, span: str) -> Matrices:
    """``Omega U`` by modality, with the shared Omega for which it is closest to `moved`."""
    Q, s = protection.shared_basis, protection.shared_scales
    N, C = _joint_motion(moved, protection)
    turned = _closest_skew(C, s) * s[None, :]
    # Out of the span nothing binds Omega: the ambient rotation takes that part of N as it is.
    shared = matmul(Q, turned) if span == "protected" else N + matmul(Q, turned - C)
    return {m: matmul(shared, Y.T) for m, Y in protection.coordinates.items()}


def _closest_skew(C: jax.Array, s: jax.Array) -> jax.Array:
    """The skew matrix A for which A diag(s) is closest to C (paper: eq:supp_ca_lyapunov).

    In the basis Q the matrix H of the Lyapunov equation is diag(s^2), so each entry stands alone.
    """
    weight = reciprocal(s[:, None] ** 2 + s[None, :] ** 2)
    return (C * s[None, :] - C.T * s[:, None]) * weight


def shared_rotation(
    delta: Mapping[str, ArrayLike], protection: Protection, *, span: str = "protected"
) -> Rotation:
    r"""The rotation that :func:`closest_admissible` applies, the solution of its Lyapunov equation.

    ``"ambient"`` solves :math:`\Omega H + H \Omega = F - F^\top`, ``"protected"`` the part of it
    inside the span, :math:`Q^\top (\Omega H + H \Omega) Q = Q^\top (F - F^\top) Q`.

    Args:
      delta: candidate displacements ``{modality: (d, d + 1)}``; absent modalities count as 0.
      protection: the protected system.
      span: ``"protected"`` or ``"ambient"``, as in :func:`closest_admissible`.

    Returns:
      The rotation; it is linear in `delta`.

    Example:
      >>> import jax, hmcl_jax
      >>> params = hmcl_jax.identity_heads(["image"], dim=3)
      >>> x = jax.random.normal(jax.random.key(0), (10, 3))
      >>> moments = hmcl_jax.update_moments(hmcl_jax.init_moments(params), {"image": x})
      >>> protection = hmcl_jax.protect(moments, params, variance=1.0)
      >>> turn = jax.numpy.array([[0.0, 0.0, -1.0, 0.0], [0.0, 1.0, 0.0, 0.0], [0.0] * 4])
      >>> rotation = hmcl_jax.shared_rotation({"image": turn}, protection)
      >>> print(hmcl_jax.generator(rotation, protection).round(3) + 0)
      [[ 0. -1.  0.]
       [ 1.  0.  0.]
       [ 0.  0.  0.]]
    """
    _checks.choice("span", span, SPANS)
    return rotation_of_motion(protected_motion(delta, protection), protection, span)


def rotation_of_motion(moved: Matrices, protection: Protection, span: str) -> Rotation:
    """The closest shared rotation of a motion of the protected directions."""
    Q, s = protection.shared_basis, protection.shared_scales
    N, C = _joint_motion(moved, protection)
    outside = None if span == "protected" else (N - matmul(Q, C)) * reciprocal(s)[None, :]
    return Rotation(_closest_skew(C, s), outside)


def rotation_angle(rotation: Rotation) -> jax.Array:
    """Size of a rotation in radians: root of the sum of its squared angles."""
    squared = jnp.sum(rotation.inside**2) / 2
    if rotation.outside is not None:
        squared += jnp.sum(rotation.outside**2)
    return jnp.sqrt(squared)


def generator(rotation: Rotation, protection: Protection) -> jax.Array:
    """The skew matrix Omega of a rotation, for inspection; no correction needs it.

    Args:
      rotation: in low-rank form.
      protection: whose shared basis it refers to.

    Returns:
      Shape ``(d, d)``.

    Example:
      See :func:`shared_rotation`.
    """
    Q = protection.shared_basis
    inside = matmul(Q, rotation.inside, Q.T)
    if rotation.outside is None:
        return inside
    out = matmul(rotation.outside, Q.T)
    return inside + out - out.T


def rotate(rotation: Rotation, protection: Protection) -> Matrices:
    r"""Displacements that turn all protected points by the Cayley transform of a rotation.

    :math:`(R - I) U V^\top` with :math:`R = (I - \Omega / 2)^{-1} (I + \Omega / 2)`, a rotation for
    every skew Omega, from one solve of size q (2q if it leaves the protected span). Radii, Lorentz
    products and cones of protected points are kept exactly, not to first order (of their
    least-squares fit if w_0 is not 0).

    Args:
      rotation: the generator.
      protection: the protected system.

    Returns:
      Displacements of the spatial blocks, ``{modality: (d, d)}``.

    Example:
      >>> import jax, hmcl_jax
      >>> params = hmcl_jax.identity_heads(["image"], dim=3)
      >>> x = jax.random.normal(jax.random.key(0), (10, 3))
      >>> moments = hmcl_jax.update_moments(hmcl_jax.init_moments(params), {"image": x})
      >>> protection = hmcl_jax.protect(moments, params, variance=1.0)
      >>> delta = {"image": 9 * jax.random.normal(jax.random.key(1), (3, 4))}
      >>> rotation = hmcl_jax.shared_rotation(delta, protection)
      >>> R = jax.numpy.eye(3) + hmcl_jax.rotate(rotation, protection)["image"]
      >>> print(jax.numpy.allclose(R.T @ R, jax.numpy.eye(3), atol=1e-5))
      True
    """
    motion = finite_motion(rotation, protection)
    return {m: matmul(motion[m], V.T) for m, V in protection.basis.items()}


def finite_motion(rotation: Rotation, protection: Protection) -> Matrices:
    """``(R - I) U`` by modality, how the Cayley transform moves the protected directions."""
    motion = _cayley_motion(rotation, protection)
    return {m: matmul(motion, Y.T) for m, Y in protection.coordinates.items()}


def _cayley_motion(rotation: Rotation, protection: Protection) -> jax.Array:
    """(R - I) Q diag(sigma), with R - I = (I - Omega / 2)^-1 Omega."""
    A, G = rotation
    Q, s = protection.shared_basis, protection.shared_scales
    q = s.shape[0]
    one = jnp.eye(q, dtype=s.dtype)
    # I - Omega / 2 is never singular: the eigenvalues of a skew matrix are imaginary.
    if G is None:
        return matmul(Q, jnp.linalg.solve(one - A / 2, A * s[None, :]))
    none = jnp.zeros((q, q), s.dtype)
    # Woodbury's identity: a system of size 2q in place of one of size d.
    gram = jnp.block([[one, none], [none, matmul(G.T, G)]])
    kernel = jnp.block([[A, -one], [one, none]])  # Omega = [Q G] kernel [Q G]^T
    system = jnp.eye(2 * q, dtype=s.dtype) - matmul(kernel, gram) / 2
    solved = jnp.linalg.solve(system, kernel[:, :q] * s[None, :])
    return matmul(Q, solved[:q]) + matmul(G, solved[q:])


def basis_image(protection: Protection) -> Matrices:
    """Where the heads take the protected directions, ``U = Q diag(sigma) Y^T`` by modality.

    Args:
      protection: the protected system.

    Returns:
      ``{modality: (d, w)}``.

    Example:
      >>> import jax, hmcl_jax
      >>> params = {"image": 2 * hmcl_jax.identity_head(3)}
      >>> x = jax.random.normal(jax.random.key(0), (10, 3))
      >>> moments = hmcl_jax.update_moments(hmcl_jax.init_moments(params), {"image": x})
      >>> protection = hmcl_jax.protect(moments, params, variance=1.0)
      >>> U = hmcl_jax.basis_image(protection)["image"]
      >>> print(jax.numpy.allclose(U, 2 * protection.basis["image"], atol=1e-5))
      True
    """
    scaled = protection.shared_basis * protection.shared_scales[None, :]
    return {m: matmul(scaled, Y.T) for m, Y in protection.coordinates.items()}


class DefectSystem(NamedTuple):
    r"""What :func:`lorentz_defect` takes from a protection, the same for all steps of a task.

    With the weighed images :math:`[U_1 E_1 \dots U_M E_M] = Z \operatorname{diag}(\sigma) R`,
    where E are the roots of the energy, so that each direction counts by its energy:

    Attributes:
      basis: Z, orthonormal, ``(d, q)``.
      scales: sigma, ``(q,)``.
      joint: ``diag(E) R^T``, ``(M w, q)``.
      rest: ``diag(E) (I - R^T R)``, ``(M w, M w)``.
    """

    basis: jax.Array
    scales: jax.Array
    joint: jax.Array
    rest: jax.Array


def defect_system(protection: Protection) -> DefectSystem:
    """The decomposition that :func:`lorentz_defect` needs; once per task, if there are many steps.

    Args:
      protection: the protected system.

    Returns:
      A :class:`DefectSystem`.
    """
    E = jax.scipy.linalg.block_diag(*protection.energy.values())
    images = side_by_side({m: Y.T for m, Y in protection.coordinates.items()})
    # In coordinates of the shared basis, (q, M w): a tenth of the size of the images.
    images = protection.shared_scales[:, None] * images
    Z, scales, R = numerical_svd(matmul(images, E))
    joint = matmul(E, R.T)
    return DefectSystem(matmul(protection.shared_basis, Z), scales, joint, E - matmul(joint, R))


def lorentz_defect(
    delta: Mapping[str, ArrayLike], protection: Protection, system: DefectSystem | None = None
) -> jax.Array:
    r"""The paper's Lorentz defect of a displacement; 0 exactly if it is admissible.

    .. math::
      \min_\Omega \sum_m |X_m \delta_s^{m\top} - Y_m \Omega^\top|_F^2 + \sum_m |\delta_0^m|^2,

    with the protected part of the features X and the outputs Y; their second moments suffice. It
    is minimised over Omega with the energies of the features as weights, so Omega is not that of
    :func:`closest_admissible` unless the defect is 0.

    Args:
      delta: displacements ``{modality: (d, d + 1)}``; absent modalities count as 0.
      protection: the protected system.
      system: what :func:`defect_system` gave for it. Default: it is computed.

    Returns:
      A scalar.

    Example:
      >>> import jax, hmcl_jax
      >>> params = hmcl_jax.identity_heads(["image", "text"], dim=3)
      >>> x = jax.random.normal(jax.random.key(0), (10, 3))
      >>> moments = hmcl_jax.update_moments(
      ...     hmcl_jax.init_moments(params), {"image": x, "text": x})
      >>> protection = hmcl_jax.protect(moments, params, variance=1.0)
      >>> delta = {"image": jax.random.normal(jax.random.key(1), (3, 4))}
      >>> print(hmcl_jax.lorentz_defect(delta, protection) > 1.0)
      True
      >>> step = hmcl_jax.closest_admissible(delta, protection)
      >>> print(hmcl_jax.lorentz_defect(step, protection) < 1e-8)
      True
    """
    time = sum(
        (jnp.sum(W[:, 0] ** 2) for W in _candidates(delta, protection).values()),
        jnp.zeros((), protection.shared_basis.dtype),
    )
    system = defect_system(protection) if system is None else system
    return time + motion_defect(side_by_side(protected_motion(delta, protection)), system)


def motion_defect(P: jax.Array, system: DefectSystem) -> jax.Array:
    """The part of the Lorentz defect that comes from the motion P of the protected directions,
    those of all modalities side by side.

    The closest rotation of the weighed points has the closed form of CA again, over all skew Omega.
    The defect is the rest of the motion: the part outside the rows R, and the part within Z that
    no skew matrix gives.
    """
    C = matmul(system.basis.T, matmul(P, system.joint))
    turned = _closest_skew(C, system.scales) * system.scales[None, :]
    return jnp.sum(matmul(P, system.rest) ** 2) + jnp.sum((C - turned) ** 2)


def strain(delta: Mapping[str, ArrayLike], protection: Protection) -> dict[str, Strain]:
    r"""Splits the motion of each modality's protected points into stretch, residual and rotation.

    With outputs Y and their first-order motion dY, the paper fits dY = Y B^T + E and splits
    B = S + Omega (eq:lorentz_generator_fit). If the protected points span less than the whole
    space, B is only known on their span; of all fits this takes the one with the least S, whose
    Omega is 0 between directions orthogonal to the span.

    Args:
      delta: displacements ``{modality: (d, d + 1)}``; absent modalities count as 0.
      protection: the protected system.

    Returns:
      ``{modality: Strain}``. The displacement is admissible exactly if all S and E are 0 and the
      generators agree on the protected points, that is
      :math:`U_{m'}^\top (\Omega^m - \Omega^{m'}) U_m = 0`.

    Example:
      >>> import jax, hmcl_jax
      >>> params = hmcl_jax.identity_heads(["image"], dim=3)
      >>> x = jax.random.normal(jax.random.key(0), (10, 3))
      >>> moments = hmcl_jax.update_moments(hmcl_jax.init_moments(params), {"image": x})
      >>> protection = hmcl_jax.protect(moments, params, variance=1.0)
      >>> decay = {"image": -0.1 * params["image"]}       # weight decay shrinks, it does not turn
      >>> parts = hmcl_jax.strain(decay, protection)["image"]
      >>> print(parts.symmetric.round(3) + 0)
      [[-0.1  0.   0. ]
       [ 0.  -0.1  0. ]
       [ 0.   0.  -0.1]]
      >>> print(bool(abs(parts.generator).max() < 1e-6))
      True
    """
    image = basis_image(protection)
    return {
        m: _strain(
            matmul(
                matmul(W[:, 1:], protection.basis[m]) + W[:, :1] * protection.time[m][None, :],
                protection.energy[m],
            ),
            matmul(image[m], protection.energy[m]),
        )
        for m, W in _candidates(delta, protection).items()
    }


def _strain(motion: jax.Array, points: jax.Array) -> Strain:
    """Strain of a motion of points, both ``(d, w)`` with points as columns."""
    # The least squares of paper: eq:lorentz_generator_fit by the pseudoinverse of the points.
    axes, scales, rows = numerical_svd(points)
    fit = matmul(motion, rows.T) * reciprocal(scales)[None, :]  # B on the span of the points
    inside = matmul(axes.T, fit)
    out = matmul(fit - matmul(axes, inside), axes.T)
    return Strain(
        symmetric=matmul(axes, (inside + inside.T) / 2, axes.T),
        residual=(motion - matmul(fit * scales[None, :], rows)).T,
        generator=matmul(axes, (inside - inside.T) / 2, axes.T) + out - out.T,
    )
