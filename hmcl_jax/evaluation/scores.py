r"""Scores of one task: top-1 accuracy, and recall at k between two modalities.

Both ask which items of a gallery are nearest to a query in the Lorentz distance. For one query x
the distance to y grows with :math:`x_0 y_0 - x \cdot y`, and the order does not change when
:math:`x_0 \sqrt K` is subtracted. So items are ordered by

.. math::
  x \cdot y - x_0 (y_0 - \sqrt K), \qquad y_0 - \sqrt K = \frac{|y|^2}{y_0 + \sqrt K},

larger is nearer: one matrix product, no arcosh, and near the origin no cancellation against K. In
float32 two items stand in the right order if these numbers differ by more than about
:math:`10^{-6} |x||y|`.

The rank of a query is the number of items in front of its nearest partner. Items at the same
distance stand in the order of their index. A point with NaN or infinity stands behind every other
item, and is never a hit.

Queries are ranked in blocks, so the whole matrix of distances never exists. Everything works under
``jit``, and under ``vmap`` over a leading axis of seeds.
"""

from collections.abc import Callable, Sequence

import jax
import jax.numpy as jnp
import numpy as np
from jax.typing import ArrayLike

from hmcl_jax import _checks, lorentz
from hmcl_jax._checks import PRECISION

# Distances in a block, 8 MB in float32.
BLOCK_ENTRIES = 2**21
# Rank of a query that has no partner at a finite distance, beyond every k.
NEVER = np.iinfo(np.int32).max


def _mask(name: str, valid: ArrayLike | None, rows: int) -> jax.Array:
    if valid is None:
        return jnp.ones(rows, bool)
    valid = jnp.asarray(valid)
    if valid.shape != (rows,) or valid.dtype != jnp.bool_:
        raise ValueError(
            f"{name} must be booleans of shape ({rows},), got {valid.dtype} of shape {valid.shape}."
        )
    return valid


def _integers(name: str, values: ArrayLike, shape: tuple[int | str, ...]) -> jax.Array:
    """Indices as int32; only the number of axes and the length of the last one are checked."""
    values = jnp.asarray(values)
    fits = values.ndim == len(shape) and values.shape[-1] == shape[-1]
    if not fits or not jnp.issubdtype(values.dtype, jnp.integer):
        got = f"{values.dtype} of shape {values.shape}"
        raise ValueError(f"{name} must be integers of shape {shape}, got {got}.")
    return values.astype(jnp.int32)


def _check_range(name: str, values: ArrayLike, low: int, high: int) -> None:
    if _checks.is_concrete(values):
        array = np.asarray(values)
        bad = array[(array < low) | (array >= high)]
        if bad.size:
            raise ValueError(f"{name} must be in [{low}, {high}), got {bad[0]}.")


def _points(**named: ArrayLike) -> tuple[jax.Array, ...]:
    arrays = _checks.as_points(**named)
    _checks.matrices(**dict(zip(named, arrays, strict=True)))
    for name, array in zip(named, arrays, strict=True):
        if array.shape[0] == 0:
            raise ValueError(f"{name} must have at least one row, got shape {array.shape}.")
    return arrays


def _by_nearness(
    queries: jax.Array,
    gallery: jax.Array,
    listed: jax.Array,
    K: jax.Array,
    of_block: Callable[[jax.Array, jax.Array], jax.Array],
) -> jax.Array:
    """Maps nearness (b, m) and the rows (b,) of a block of queries to one integer per query.

    `listed` says which items belong to the gallery; the nearness of others is NaN.
    """
    n, m = queries.shape[0], gallery.shape[0]
    block = min(n, max(1, BLOCK_ENTRIES // m))
    squares = lorentz.dot(gallery, gallery)
    above = squares / (jnp.sqrt(K + squares) + jnp.sqrt(K))
    above = jnp.where(listed, above, jnp.nan)  # no comparison with NaN is true
    # The time component is last: summed first, it would cost the small products their digits.
    items = jnp.concatenate([gallery, above[:, None]], axis=1)

    def at(start: jax.Array) -> jax.Array:
        x = jax.lax.dynamic_slice_in_dim(queries, start, block)
        x = jnp.concatenate([x, -lorentz.time_coordinate(x, K)[:, None]], axis=1)
        nearness = jnp.matmul(x, items.T, precision=PRECISION)
        return of_block(nearness, start + jnp.arange(block, dtype=jnp.int32))

    blocks = -(-n // block)
    # The last block starts early enough to be full; its first rows are then known already.
    starts = np.minimum(np.arange(blocks) * block, n - block).astype(np.int32)
    blocked = jax.lax.map(at, jnp.asarray(starts))
    last = n - (blocks - 1) * block
    return jnp.concatenate([blocked[:-1].reshape(-1), blocked[-1, block - last :]])


def predict(
    prototypes: ArrayLike,
    specific: ArrayLike,
    *,
    K: ArrayLike = 10.0,
    valid_prototypes: ArrayLike | None = None,
) -> jax.Array:
    r"""The class of each sample's nearest prototype, :math:`\operatorname{argmin}_c d(p_c, s_i)`.

    Args:
      prototypes: one point per class of the general modality (text), shape ``(C, d)``.
      specific: points of the specific modality (image), shape ``(n, d)``.
      K: squared radius of the hyperboloid.
      valid_prototypes: booleans ``(C,)``; False for padding, which is nearest to nothing.

    Returns:
      int32 ``(n,)``; -1 for a sample that is near to nothing because it is not finite.

    Example:
      >>> from hmcl_jax.evaluation import predict
      >>> print(predict([[1.0, 0.0], [0.0, 1.0]], [[2.0, 0.1], [0.3, 0.5]]))
      [0 1]
    """
    prototypes, specific = _points(prototypes=prototypes, specific=specific)
    listed = _mask("valid_prototypes", valid_prototypes, prototypes.shape[0])

    def nearest(nearness: jax.Array, rows: jax.Array) -> jax.Array:
        known = jnp.where(nearness > -jnp.inf, nearness, -jnp.inf)  # argmax takes NaN for a maximum
        best = jnp.argmax(known, axis=1).astype(jnp.int32)
        return jnp.where(jnp.max(known, axis=1) > -jnp.inf, best, -1)

    K = _checks.positive("K", K, specific.dtype)
    return _by_nearness(specific, prototypes, listed, K, nearest)


def top1(
    prototypes: ArrayLike,
    specific: ArrayLike,
    labels: ArrayLike,
    *,
    K: ArrayLike = 10.0,
    average: str = "micro",
    valid: ArrayLike | None = None,
    valid_prototypes: ArrayLike | None = None,
) -> jax.Array:
    r"""Share of the samples whose nearest prototype is that of their class.

    .. math::
      \frac1n \sum_i [\operatorname{argmin}_c d_{\mathcal L}(p_c, s_i) = l_i]

    Of prototypes at the same distance, the first is the nearest.

    Args:
      prototypes: one point per class of the general modality, shape ``(C, d)``.
      specific: points of the specific modality, shape ``(n, d)``.
      labels: integers ``(n,)`` in ``[0, C)``.
      K: squared radius of the hyperboloid.
      average: ``"micro"``, this share, or ``"macro"``, the mean of its values for single classes.
      valid: booleans ``(n,)``; False for padding, which does not count.
      valid_prototypes: booleans ``(C,)``; False for padding, which is nearest to nothing.

    Returns:
      A scalar in [0, 1]; NaN if no sample counts.

    Example:
      >>> from hmcl_jax.evaluation import top1
      >>> prototypes, samples = [[1.0, 0.0], [0.0, 1.0]], [[2.0, 0.1]] * 4
      >>> print(top1(prototypes, samples, [0, 0, 0, 1]))
      0.75
      >>> print(top1(prototypes, samples, [0, 0, 0, 1], average="macro"))
      0.5
    """
    _checks.choice("average", average, ("micro", "macro"))
    prototypes, specific = _points(prototypes=prototypes, specific=specific)
    classes, n, dtype = prototypes.shape[0], specific.shape[0], specific.dtype
    wanted, valid = _integers("labels", labels, (n,)), _mask("valid", valid, n)
    nearest = predict(prototypes, specific, K=K, valid_prototypes=valid_prototypes)
    if _checks.is_concrete(wanted) and _checks.is_concrete(valid):
        _check_range("labels", np.asarray(wanted)[np.asarray(valid)], 0, classes)
    hits = valid & (nearest == wanted)
    if average == "micro":
        return jnp.sum(hits, dtype=dtype) / jnp.sum(valid, dtype=dtype)
    of_class = jnp.zeros(classes, dtype).at[jnp.where(valid, wanted, 0)]
    samples, right = of_class.add(valid.astype(dtype)), of_class.add(hits.astype(dtype))
    shares = right / jnp.maximum(samples, 1)
    return jnp.sum(shares) / jnp.sum(samples > 0, dtype=dtype)


def recall(
    general: ArrayLike,
    specific: ArrayLike,
    pairs: ArrayLike,
    *,
    ks: Sequence[int] = (1, 5, 10),
    K: ArrayLike = 10.0,
    valid_general: ArrayLike | None = None,
    valid_specific: ArrayLike | None = None,
) -> dict[str, dict[int, jax.Array]]:
    r"""Recall at k in both directions, with any number of partners per item.

    A query is a hit at k if any of its partners is among the k nearest items of the gallery,

    .. math::
      \mathrm{R@}k = \frac1{|Q|} \sum_{q \in Q} [\operatorname{rank}(q) < k],

    with Q the queries that have a partner and rank as in the module's head.

    Args:
      general: points of the general modality (captions), shape ``(m, d)``.
      specific: points of the specific modality (pictures), shape ``(n, d)``.
      pairs: integers ``(p, 2)``, the rows (specific, general) that belong together, as in a store.
        Rows with -1 and rows that name an item that is not valid are no pairs.
      ks: lengths of the list of nearest items that is looked at.
      K: squared radius of the hyperboloid.
      valid_general: booleans ``(m,)``; False for padding, which is no query and near to nothing.
      valid_specific: booleans ``(n,)``, likewise.

    Returns:
      By direction, ``"general_to_specific"`` and ``"specific_to_general"``, and then by k, a scalar
      in [0, 1]; NaN if no query counts.

    Example:
      >>> from hmcl_jax.evaluation import recall
      >>> captions = [[1.0, 0.0], [0.6, 0.8], [0.0, 1.0]]
      >>> pictures = [[2.0, 0.0], [0.0, 2.0]]
      >>> shares = recall(captions, pictures, [[0, 0], [0, 1], [1, 2]], ks=(1, 2))
      >>> print({k: round(float(share), 3) for k, share in shares["general_to_specific"].items()})
      {1: 0.667, 2: 1.0}
    """
    for k in ks:
        _checks.integer("ks", k, 1)
    general, specific = _points(general=general, specific=specific)
    pairs = _integers("pairs", pairs, ("p", 2))
    listed = {
        "specific": _mask("valid_specific", valid_specific, specific.shape[0]),
        "general": _mask("valid_general", valid_general, general.shape[0]),
    }
    ends = {"specific": pairs[:, 0], "general": pairs[:, 1]}
    real = jnp.ones(pairs.shape[0], bool)
    for side, end in ends.items():
        rows = listed[side].shape[0]
        _check_range(f"pairs of {side} rows", end, -1, rows)
        there = (end >= 0) & (end < rows)
        real = real & there & listed[side][jnp.where(there, end, 0)]
    K = _checks.positive("K", K, general.dtype)

    def direction(source: str, queries: jax.Array, target: str, gallery: jax.Array) -> jax.Array:
        n, m = queries.shape[0], gallery.shape[0]
        # Index n is out of bounds, so that pairs which are none are dropped.
        row, column = jnp.where(real, ends[source], n), ends[target]

        def rank(nearness: jax.Array, rows: jax.Array) -> jax.Array:
            b = rows.shape[0]
            inside = (row >= rows[0]) & (row <= rows[-1])
            local = jnp.where(inside, row - rows[0], b)
            paired = jnp.zeros((b, m), bool).at[local, column].set(True, mode="drop")
            # Partners and others are compared by the same entries of one product, so rounding
            # cannot put a partner behind itself.
            items = jnp.broadcast_to(jnp.arange(m, dtype=jnp.int32)[None, :], (b, m))
            known = paired & (nearness > -jnp.inf)
            best = jnp.max(nearness, axis=1, where=known, initial=-jnp.inf)
            level = nearness == best[:, None]
            first = jnp.min(items, axis=1, where=paired & level, initial=m)
            before = (nearness > best[:, None]) | (level & (items < first[:, None]))
            return jnp.where(best > -jnp.inf, jnp.sum(before, axis=1, dtype=jnp.int32), NEVER)

        ranks = _by_nearness(queries, gallery, listed[target], K, rank)
        counted = jnp.zeros(n, bool).at[row].set(True, mode="drop")
        hits = ranks[None, :] < jnp.array(ks, jnp.int32)[:, None]
        return jnp.sum(hits, axis=1, dtype=general.dtype) / jnp.sum(counted, dtype=general.dtype)

    to_specific = direction("general", general, "specific", specific)
    to_general = direction("specific", specific, "general", general)
    return {
        "general_to_specific": dict(zip(ks, list(to_specific), strict=True)),
        "specific_to_general": dict(zip(ks, list(to_general), strict=True)),
    }


def symmetric_recall(
    general: ArrayLike,
    specific: ArrayLike,
    pairs: ArrayLike,
    *,
    k: int = 5,
    K: ArrayLike = 10.0,
    valid_general: ArrayLike | None = None,
    valid_specific: ArrayLike | None = None,
) -> jax.Array:
    r"""Mean of the :func:`recall` at k of both directions, the score of a retrieval task.

    .. math::
      \tfrac12 (\mathrm{R@}k_{g \to s} + \mathrm{R@}k_{s \to g})

    It takes the arguments of :func:`recall`, with one `k`.

    Returns:
      A scalar in [0, 1]; NaN if no query counts.

    Example:
      >>> from hmcl_jax.evaluation import symmetric_recall
      >>> captions, pictures = [[1.0, 0.0], [0.6, 0.8], [0.0, 1.0]], [[2.0, 0.0], [0.0, 2.0]]
      >>> share = symmetric_recall(captions, pictures, [[0, 0], [0, 1], [1, 2]], k=1)
      >>> print(round(float(share), 3))
      0.833
    """
    valid = {"valid_general": valid_general, "valid_specific": valid_specific}
    one, other = recall(general, specific, pairs, ks=(k,), K=K, **valid).values()
    return (one[k] + other[k]) / 2
