r"""What happened to the geometry of old tasks: drift between two checkpoints on fixed anchors.

The four measures of the paper's section "Quantitative Representation Drift" (sec:exp_drift), on
matched anchors, samples :math:`s_i` and their texts :math:`g_i`, before (at the end of their task)
and after (at the end of the stream); :math:`\hat x = x / |x|`, :math:`\Delta` is after minus before
and the bar a mean over all anchors or pairs of anchors:

- radial: :math:`\tfrac12 (\overline{|\Delta s_{i,0}|} + \overline{|\Delta g_{i,0}|})`, of the time
  components (condition "P: hierarchical");
- angular: :math:`\tfrac12 (\overline{|\Delta\, \hat s_i \cdot \hat s_j|} +
  \overline{|\Delta\, \hat g_i \cdot \hat g_j|})`, within each modality ("P: intra");
- cross-modal: :math:`\overline{|\Delta\, \hat s_i \cdot \hat g_j|}`, over all i and j ("P: inter");
- paired distance: :math:`\overline{|\Delta\, d_{\mathcal L}(s_i, g_i)|}`. The paper says "mean
  change"; it is the absolute one here, as in the other three, so that changes in opposite
  directions do not cancel.

The Gram matrices are whole, diagonals included. The anchors of a class share their prototype, which
then occurs several times. One rotation of all modalities gives 0 for all four. A rotation of one
modality alone leaves radial and angular drift 0 and shows in its relations to the other one,
cross-modal and paired distance. A radial scaling leaves angular and cross-modal drift 0.

Besides (ours), what became of the cones.
"""

import jax
import jax.numpy as jnp
from jax.typing import ArrayLike

from hmcl_jax import _checks, entailment, lorentz
from hmcl_jax._checks import PRECISION
from hmcl_jax.evaluation.anchors import Anchors
from hmcl_jax.lorentz import dot

MEASURES = {
    "radial": "mean absolute change of the time component, mean of both modalities",
    "angular": "mean absolute change of the cosines within a modality, mean of both modalities",
    "cross_modal": "mean absolute change of the cosines between the two modalities",
    "paired_distance": "mean absolute change of the Lorentz distance of matched pairs",
}
CONES = {
    "outside_before": "share of the anchors outside the cone of their text at the end of the task",
    "outside_after": "the same at the end of the stream",
    "lost": "share of the anchors inside the cone of their text before and outside after",
    "gained": "share of the anchors outside the cone of their text before and inside after",
    "excess_before": "mean exterior angle minus half aperture (radians) at the end of the task",
    "excess_after": "the same at the end of the stream",
}


def _blocks(before: Anchors, after: Anchors) -> tuple[jax.Array, ...]:
    """Texts and samples before, texts and samples after."""
    named = {
        f"{when}.{side}": block
        for when, anchors in (("before", before), ("after", after))
        for side, block in zip(Anchors._fields, anchors, strict=True)
    }
    blocks = _checks.as_points(**named)
    if len({block.shape for block in blocks}) > 1 or blocks[0].ndim < 2 or not blocks[0].shape[-2]:
        shapes = ", ".join(f"{name} {x.shape}" for name, x in zip(named, blocks, strict=True))
        raise ValueError(
            "Matched anchors before and after must have one shape (..., n, d) with n >= 1, "
            f"got {shapes}."
        )
    return blocks


def _unit(x: jax.Array) -> jax.Array:
    r = lorentz.radius(x)[..., None]
    return jnp.where(r > 0, x / jnp.where(r > 0, r, 1), 0)


def _still(x: jax.Array, later: jax.Array) -> jax.Array:
    """Which points have not moved. Compiled, equal numbers may be rounded in two ways."""
    return jnp.all(x == later, axis=-1)


def _cosine_change(x: jax.Array, y: jax.Array, later_x: jax.Array, later_y: jax.Array) -> jax.Array:
    def cosines(a: jax.Array, b: jax.Array) -> jax.Array:
        return jnp.matmul(_unit(a), jnp.swapaxes(_unit(b), -1, -2), precision=PRECISION)

    still = _still(x, later_x)[..., :, None] & _still(y, later_y)[..., None, :]
    change = jnp.abs(cosines(later_x, later_y) - cosines(x, y))
    return jnp.mean(jnp.where(still, 0, change), axis=(-2, -1))


def radial_drift(before: Anchors, after: Anchors, K: ArrayLike = 10.0) -> jax.Array:
    """Mean absolute change of the time component, mean of both modalities.

    Args:
      before: points, each modality of shape ``(..., n, d)``.
      after: the same anchors later.
      K: squared radius of the hyperboloid.

    Returns:
      Shape ``(...)``.

    Example:
      >>> import jax.numpy as jnp
      >>> from hmcl_jax.evaluation import Anchors, radial_drift
      >>> before = Anchors(jnp.array([[0.0, 0.0]]), jnp.array([[3.0, 0.0]]))
      >>> after = Anchors(jnp.array([[3.0, 0.0]]), jnp.array([[0.0, 3.0]]))
      >>> print(radial_drift(before, after, K=16.0))        # (|5 - 4| + |5 - 5|) / 2
      0.5
    """
    texts, samples, later_texts, later_samples = _blocks(before, after)

    def change(x: jax.Array, y: jax.Array) -> jax.Array:
        # y0 - x0 without cancellation.
        times = lorentz.time_coordinate(x, K) + lorentz.time_coordinate(y, K)
        return jnp.mean(jnp.abs(dot(y - x, y + x)) / times, axis=-1)

    return (change(texts, later_texts) + change(samples, later_samples)) / 2


def angular_drift(before: Anchors, after: Anchors) -> jax.Array:
    """Mean absolute change of all cosines within a modality, mean of both modalities.

    Args:
      before: points, each modality of shape ``(..., n, d)``. A point at the origin has cosine 0
        with all.
      after: the same anchors later.

    Returns:
      Shape ``(...)``.

    Example:
      >>> import jax.numpy as jnp
      >>> from hmcl_jax.evaluation import Anchors, angular_drift
      >>> right, both = jnp.array([[1.0, 0.0], [2.0, 0.0]]), jnp.array([[1.0, 0.0], [0.0, 1.0]])
      >>> print(angular_drift(Anchors(right, right), Anchors(right, both)))  # two of four, one side
      0.25
    """
    texts, samples, later_texts, later_samples = _blocks(before, after)
    general = _cosine_change(texts, texts, later_texts, later_texts)
    specific = _cosine_change(samples, samples, later_samples, later_samples)
    return (general + specific) / 2


def cross_modal_drift(before: Anchors, after: Anchors) -> jax.Array:
    """Mean absolute change of the cosines between all samples and all texts.

    Args:
      before: points, each modality of shape ``(..., n, d)``.
      after: the same anchors later.

    Returns:
      Shape ``(...)``.

    Example:
      >>> import jax.numpy as jnp
      >>> from hmcl_jax.evaluation import Anchors, cross_modal_drift
      >>> right, up = jnp.array([[1.0, 0.0]]), jnp.array([[0.0, 3.0]])
      >>> print(cross_modal_drift(Anchors(right, right), Anchors(right, up)))
      1.0
    """
    texts, samples, later_texts, later_samples = _blocks(before, after)
    return _cosine_change(samples, texts, later_samples, later_texts)


def paired_distance_drift(before: Anchors, after: Anchors, K: ArrayLike = 10.0) -> jax.Array:
    """Mean absolute change of the Lorentz distance between each sample and its text.

    Args:
      before: points, each modality of shape ``(..., n, d)``, matched row by row.
      after: the same anchors later.
      K: squared radius of the hyperboloid.

    Returns:
      Shape ``(...)``.

    Example:
      >>> import jax.numpy as jnp
      >>> from hmcl_jax import lorentz
      >>> from hmcl_jax.evaluation import Anchors, paired_distance_drift
      >>> origin, points = jnp.zeros((2, 2)), lorentz.exp_map0([[3.0, 0.0], [0.0, 2.0]])
      >>> before, after = Anchors(origin, points), Anchors(origin, points[::-1])
      >>> print(paired_distance_drift(before, after).round(4))
      1.0
    """
    texts, samples, later_texts, later_samples = _blocks(before, after)
    change = lorentz.distance(later_samples, later_texts, K) - lorentz.distance(samples, texts, K)
    still = _still(texts, later_texts) & _still(samples, later_samples)
    return jnp.mean(jnp.where(still, 0, jnp.abs(change)), axis=-1)


def drift_measures(before: Anchors, after: Anchors, K: ArrayLike = 10.0) -> jax.Array:
    """All of :data:`MEASURES`.

    Args:
      before: points, each modality of shape ``(..., n, d)``, matched row by row.
      after: the same anchors later.
      K: squared radius of the hyperboloid.

    Returns:
      Shape ``(..., 4)``.

    Example:
      >>> import jax.numpy as jnp
      >>> from hmcl_jax.evaluation import Anchors, drift_measures
      >>> right, up = jnp.array([[3.0, 0.0]]), jnp.array([[0.0, 3.0]])
      >>> print(drift_measures(Anchors(right, up), Anchors(up, -right), K=16.0))  # all turned
      [0. 0. 0. 0.]
    """
    found = (
        radial_drift(before, after, K),
        angular_drift(before, after),
        cross_modal_drift(before, after),
        paired_distance_drift(before, after, K),
    )
    return jnp.stack(found, axis=-1)


def cone_changes(
    before: Anchors, after: Anchors, K: ArrayLike = 10.0, kappa: ArrayLike = 0.1
) -> jax.Array:
    """All of :data:`CONES`: which samples lie in the cone of their text, before and after.

    Args:
      before: points, each modality of shape ``(..., n, d)``, matched row by row.
      after: the same anchors later.
      K: squared radius of the hyperboloid.
      kappa: sets the minimum radius, see :func:`entailment.half_aperture`.

    Returns:
      Shape ``(..., 6)``.

    Example:
      >>> import jax.numpy as jnp
      >>> from hmcl_jax.evaluation import Anchors, cone_changes
      >>> texts, samples = jnp.array([[2.0, 0.0], [2.0, 0.0]]), jnp.array([[3.0, 0.0], [4.0, 0.0]])
      >>> turned = jnp.array([[-3.0, 0.0], [4.0, 0.0]])
      >>> print(cone_changes(Anchors(texts, samples), Anchors(texts, turned))[:4])
      [0. 0.5 0.5 0. ]
    """
    texts, samples, later_texts, later_samples = _blocks(before, after)

    def excess(general: jax.Array, specific: jax.Array) -> jax.Array:
        aperture = entailment.half_aperture(general, K, kappa)
        return entailment.exterior_angle(general, specific, K) - aperture

    first, last = excess(texts, samples), excess(later_texts, later_samples)
    still = _still(texts, later_texts) & _still(samples, later_samples)
    angles = first, jnp.where(still, first, last)
    inside = [angle <= 0 for angle in angles]
    shares = (~inside[0], ~inside[1], inside[0] & ~inside[1], ~inside[0] & inside[1])
    found = [jnp.mean(share, axis=-1, dtype=angles[0].dtype) for share in shares]
    return jnp.stack([*found, *(jnp.mean(angle, axis=-1) for angle in angles)], axis=-1)
