r"""The training loss: symmetric contrast of Lorentz distances plus entailment.

Logits are :math:`S_{ij} = -d_{\mathcal L}(g_i, s_j) / \tau` between a general modality (text, the
apex of the cones) and a specific one (image); any two modalities may take these roles. For pairs,

.. math::
  \mathcal L = \tfrac12 (\mathrm{CE}(S) + \mathrm{CE}(S^\top))
    + w \,\mathrm{mean}_i \max(0, \operatorname{ext}(g_i, s_i) - \operatorname{aper}(g_i)).

In classification every sample is paired with the prototype of its class, so the general side of a
minibatch repeats. :func:`prototype_loss` is exactly the pair loss of those pairs, from the B x C
logits alone: a class that occurs :math:`n_c` times weighs :math:`n_c` in the sum over candidates.

The functions take points, that is outputs of heads. Padding (of a last, partial minibatch) has no
effect: rows of pairs that are not `valid`, and samples with the label -1.

The two losses have a gradient written by hand (:mod:`hmcl_jax.fused_loss`), for reverse mode and
where `tau`, `K`, `kappa` and `entailment_weight` are plain numbers; towards traced ones, such as a
learned temperature, they are differentiated by JAX. For forward mode use :func:`pair_terms`, which
never uses the gradient by hand.
"""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.typing import ArrayLike

from hmcl_jax import _checks, entailment, lorentz
from hmcl_jax.fused_loss import Settings, fused_loss


def _valid_rows(valid: ArrayLike | None, rows: int) -> jax.Array:
    if valid is None:
        return jnp.ones(rows, bool)
    valid = jnp.asarray(valid)
    if valid.shape != (rows,) or valid.dtype != jnp.bool_:
        raise ValueError(
            f"valid must be booleans of shape ({rows},), got {valid.dtype} of shape {valid.shape}."
        )
    return valid


def _logits(general: jax.Array, specific: jax.Array, tau: ArrayLike, K: ArrayLike) -> jax.Array:
    distances = lorentz.pairwise_distance(general, specific, K)
    return -distances / _checks.positive("tau", tau, general.dtype)  # paper: equ:sim, over tau


def _log_sum_exp(logits: jax.Array, weights: jax.Array, axis: int) -> jax.Array:
    """log sum w exp(S) along an axis; entries of weight 0 are left out, gradients included."""
    counted = jnp.broadcast_to(jnp.expand_dims(weights, 1 - axis), logits.shape)
    present = counted > 0
    top = jax.lax.stop_gradient(jnp.max(logits, axis=axis, where=present, initial=-jnp.inf))
    top = jnp.maximum(top, jnp.finfo(logits.dtype).min)  # not -inf where nothing is present
    shifted = jnp.where(present, logits - jnp.expand_dims(top, axis), 0)
    total = jnp.sum(counted * jnp.exp(shifted), axis=axis)
    return top + jnp.log(jnp.where(total <= 0, 1, total))


def _mean(values: jax.Array, valid: jax.Array) -> jax.Array:
    count = jnp.maximum(jnp.sum(valid.astype(values.dtype)), 1)
    # Not a product with `valid`: 0 * NaN of a padded row would be NaN.
    return jnp.sum(jnp.where(valid, values, 0)) / count


def _weight(entailment_weight: ArrayLike, dtype: Any) -> jax.Array:
    return _checks.positive("entailment_weight", entailment_weight, dtype, or_zero=True)


def _settings(**numbers: ArrayLike) -> Settings | None:
    """The numbers of the objective, checked; None if one of them is traced."""
    known = {name: _checks.number(name, value) for name, value in numbers.items()}
    values = {name: value for name, value in known.items() if value is not None}
    if len(values) < len(numbers):
        return None  # the plain form checks the others
    for name in ("tau", "K", "kappa"):
        _checks.positive(name, numbers[name], jnp.float32)
    _weight(numbers["entailment_weight"], jnp.float32)
    return Settings(**values)


def _checked_pairs(
    general: ArrayLike, specific: ArrayLike, valid: ArrayLike | None
) -> tuple[jax.Array, jax.Array, jax.Array]:
    """Both sides with rows that are not valid set to 0, and which rows are."""
    general, specific = _checks.as_points(general=general, specific=specific)
    _checks.matrices(general=general, specific=specific)
    if general.shape != specific.shape:
        raise ValueError(
            "general and specific must be paired row by row, "
            f"got shapes {general.shape} and {specific.shape}."
        )
    rows = _valid_rows(valid, general.shape[0])
    if valid is not None:
        # Padding may hold anything; as 0 it has finite derivatives, which its weight 0 removes.
        general, specific = (jnp.where(rows[:, None], x, 0) for x in (general, specific))
    return general, specific, rows


def pair_terms(
    general: ArrayLike,
    specific: ArrayLike,
    *,
    tau: ArrayLike,
    K: ArrayLike = 10.0,
    kappa: ArrayLike = 0.1,
    entailment_weight: ArrayLike = 0.2,
    valid: ArrayLike | None = None,
) -> jax.Array:
    """What each pair adds to :func:`pair_loss`, which is the mean of these over the valid rows.

    Args:
      general: points of the general modality (text), shape ``(B, d)``.
      specific: points of the specific modality (image), shape ``(B, d)``; row i belongs to row i.
      tau: temperature of the logits.
      K: squared radius of the hyperboloid.
      kappa: sets the minimum radius of the cones.
      entailment_weight: weight of the entailment term.
      valid: booleans ``(B,)``; rows that are False have no effect. Default: all True.

    Returns:
      Shape ``(B,)``, 0 for rows that are not valid.

    Example:
      >>> import jax, jax.numpy as jnp
      >>> from hmcl_jax import objective
      >>> text, image = jax.random.normal(jax.random.key(0), (2, 8, 4))
      >>> terms = objective.pair_terms(text, image, tau=0.1)
      >>> print(jnp.allclose(terms.mean(), objective.pair_loss(text, image, tau=0.1)))
      True
    """
    general, specific, valid = _checked_pairs(general, specific, valid)
    logits = _logits(general, specific, tau, K)
    weights = valid.astype(logits.dtype)
    towards_specific = _log_sum_exp(logits, weights, axis=1)
    towards_general = _log_sum_exp(logits, weights, axis=0)
    contrast = (towards_specific + towards_general) / 2 - jnp.diagonal(logits)
    outside = entailment.entailment_loss(general, specific, K, kappa)
    return jnp.where(valid, contrast + _weight(entailment_weight, logits.dtype) * outside, 0)


def pair_loss(
    general: ArrayLike,
    specific: ArrayLike,
    *,
    tau: ArrayLike,
    K: ArrayLike = 10.0,
    kappa: ArrayLike = 0.1,
    entailment_weight: ArrayLike = 0.2,
    valid: ArrayLike | None = None,
) -> jax.Array:
    """Contrastive and entailment loss of a minibatch of pairs.

    Args:
      general: points of the general modality (text), shape ``(B, d)``.
      specific: points of the specific modality (image), shape ``(B, d)``; row i belongs to row i.
      tau: temperature of the logits.
      K: squared radius of the hyperboloid.
      kappa: sets the minimum radius of the cones.
      entailment_weight: weight of the entailment term.
      valid: booleans ``(B,)``; rows that are False have no effect. Default: all True.

    Returns:
      A scalar, the mean over the valid rows.

    Example:
      >>> import jax
      >>> from hmcl_jax import objective
      >>> text, image = jax.random.normal(jax.random.key(0), (2, 8, 4))
      >>> loss = objective.pair_loss(text, image, tau=0.1)
      >>> print(loss > objective.pair_loss(text, text, tau=0.1))
      True
    """
    numbers = {"tau": tau, "K": K, "kappa": kappa, "entailment_weight": entailment_weight}
    settings = _settings(**numbers)
    if settings is None:
        terms = pair_terms(general, specific, valid=valid, **numbers)
        return _mean(terms, _valid_rows(valid, terms.shape[0]))
    general, specific, valid = _checked_pairs(general, specific, valid)
    weights = valid.astype(general.dtype)
    rows = jnp.arange(general.shape[0], dtype=jnp.int32)
    return fused_loss(settings, general, specific, rows, weights, weights)


def prototype_loss(
    prototypes: ArrayLike,
    specific: ArrayLike,
    labels: ArrayLike,
    *,
    tau: ArrayLike,
    K: ArrayLike = 10.0,
    kappa: ArrayLike = 0.1,
    entailment_weight: ArrayLike = 0.2,
) -> jax.Array:
    r"""The loss of :func:`pair_loss` on the pairs ``(prototypes[labels], specific)``.

    From the B x C logits, with :math:`n_c` samples of class c in the minibatch: a sample's
    candidates sum to :math:`\log \sum_c n_c \exp S_{ci}`, a class's candidates to
    :math:`\log \sum_i \exp S_{ci}`, once per class. Absent classes have no effect.

    Args:
      prototypes: one point per class of the general modality (text), shape ``(C, d)``.
      specific: points of the specific modality (image), shape ``(B, d)``.
      labels: integers ``(B,)`` in ``[0, C)``, or -1 for padding, which has no effect.
      tau: temperature of the logits.
      K: squared radius of the hyperboloid.
      kappa: sets the minimum radius of the cones.
      entailment_weight: weight of the entailment term.

    Returns:
      A scalar, the mean over the samples that are not padding.

    Example:
      >>> import jax, jax.numpy as jnp
      >>> from hmcl_jax import objective
      >>> text, image = jax.random.normal(jax.random.key(0), (2, 3, 4))
      >>> labels = jnp.array([0, 2, 2])
      >>> by_class = objective.prototype_loss(text, image, labels, tau=0.1)
      >>> by_pair = objective.pair_loss(text[labels], image, tau=0.1)
      >>> print(jnp.allclose(by_class, by_pair))
      True
    """
    prototypes, specific = _checks.as_points(prototypes=prototypes, specific=specific)
    _checks.matrices(prototypes=prototypes, specific=specific)
    labels = jnp.asarray(labels)
    classes, rows = prototypes.shape[0], specific.shape[0]
    if labels.shape != (rows,) or not jnp.issubdtype(labels.dtype, jnp.integer):
        raise ValueError(
            f"labels must be integers of shape ({rows},), "
            f"got {labels.dtype} of shape {labels.shape}."
        )
    if _checks.is_concrete(labels):
        known = np.asarray(labels)
        bad = known[(known < -1) | (known >= classes)]
        if bad.size:
            raise ValueError(f"labels must be in [0, {classes}), or -1 for padding, got {bad[0]}.")
    valid = labels >= 0
    specific = jnp.where(valid[:, None], specific, 0)
    labels = jnp.where(valid, labels, 0)
    weights = valid.astype(specific.dtype)
    counts = jnp.zeros(classes, weights.dtype).at[labels].add(weights)
    settings = _settings(tau=tau, K=K, kappa=kappa, entailment_weight=entailment_weight)
    if settings is not None:
        return fused_loss(settings, prototypes, specific, labels, counts, weights)
    logits = _logits(prototypes, specific, tau, K)
    towards_specific = _log_sum_exp(logits, weights, axis=1)[labels]
    towards_general = _log_sum_exp(logits, counts, axis=0)
    matched = jnp.take_along_axis(logits, labels[None, :], axis=0)[0]
    contrast = (towards_specific + towards_general) / 2 - matched
    outside = entailment.entailment_loss(prototypes[labels], specific, K, kappa)
    return _mean(contrast, valid) + _weight(entailment_weight, logits.dtype) * _mean(outside, valid)
