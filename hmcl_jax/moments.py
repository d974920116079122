"""Second moments of the lifted frozen features of all tasks; no example is stored.

One more sample adds nothing to a float32 sum over 10^8 of them. So the rounding error of the total
is stored beside it and added as soon as it is large enough (Neumaier's compensated summation).
"""

from collections.abc import Mapping
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.typing import ArrayLike

from hmcl_jax import _checks
from hmcl_jax.head import as_lifted, select_heads
from hmcl_jax.lyapunov import matmul

Matrices = dict[str, jax.Array]  # by modality


class FeatureMoments(NamedTuple):
    """Second moments of lifted frozen features, by modality.

    Attributes:
      total: sum of ``z z^T`` over all samples, shape ``(d + 1, d + 1)``.
      samples: their number.
      open_total: the part of `total` since the last :func:`end_task`.
      open_samples: the part of `samples` since then.
      task_means: sum over the ended tasks of their mean ``z z^T``.
      rounded: the rounding error of `total`, less than half a unit in its last place.
    """

    total: Matrices
    samples: Matrices
    open_total: Matrices
    open_samples: Matrices
    task_means: Matrices
    rounded: Matrices


def init_moments(params: Any, heads: Mapping[str, str] | None = None) -> FeatureMoments:
    """Empty moments for every head.

    Args:
      params: heads ``{modality: W}``, or a larger tree with `heads`.
      heads: ``{modality: path}`` of the heads in a larger tree.

    Returns:
      Moments of no samples.

    Example:
      >>> import hmcl_jax
      >>> moments = hmcl_jax.init_moments(hmcl_jax.identity_heads(["image", "text"], dim=3))
      >>> print(moments.total["text"].shape, moments.samples["text"])
      (4, 4) 0
    """
    found = select_heads(params, heads)
    if not found:
        raise ValueError(f"params must hold at least one head, got {params!r}.")

    dtype = _checks.working_dtype(*found.values())

    # Functions, as a donated buffer must not be in the moments twice.
    def zeros() -> Matrices:
        return {m: jnp.zeros((W.shape[-1], W.shape[-1]), dtype) for m, W in found.items()}

    def none() -> Matrices:
        return {m: jnp.zeros((), jnp.int32) for m in found}

    return FeatureMoments(zeros(), none(), zeros(), none(), zeros(), zeros())


@jax.jit
def _second_moment(lifted: jax.Array, counts: jax.Array | None) -> tuple[jax.Array, jax.Array]:
    if counts is None:
        return matmul(lifted.T, lifted), jnp.asarray(lifted.shape[0], jnp.int32)
    # Padding has count 0 and may hold anything, NaN included: not a product alone.
    weighted = jnp.where(counts[:, None] > 0, lifted, 0) * counts.astype(lifted.dtype)[:, None]
    return matmul(weighted.T, lifted), jnp.sum(counts, dtype=jnp.int32)


@jax.jit
def _add(total: jax.Array, rounded: jax.Array, new: jax.Array) -> tuple[jax.Array, jax.Array]:
    """The sum of all three, and its rounding error."""
    whole, lost = _two_sum(total, new)
    return _two_sum(whole, rounded + lost)


def _two_sum(a: jax.Array, b: jax.Array) -> tuple[jax.Array, jax.Array]:
    """The rounded sum and its exact error (Knuth's TwoSum, for summands of any size)."""
    whole = a + b
    of_b = whole - a
    return whole, (a - (whole - of_b)) + (b - of_b)


def update_moments(
    moments: FeatureMoments,
    features: Mapping[str, ArrayLike],
    K: ArrayLike = 10.0,
    counts: Mapping[str, ArrayLike] | None = None,
) -> FeatureMoments:
    """Adds a batch of frozen features; batches of any size, in any order, give the same moments.

    Args:
      moments: so far.
      features: by modality, shape ``(n, d)``, or lifted, ``(n, d + 1)``. Modalities may be absent
        and may differ in n.
      K: squared radius of the hyperboloid.
      counts: by modality, integers ``(n,)``: how often each row occurs, such as how many samples
        each class prototype belongs to; 0 for padding. By default every row once.

    Returns:
      New moments.

    Example:
      >>> import jax, hmcl_jax
      >>> moments = hmcl_jax.init_moments(hmcl_jax.identity_heads(["image", "text"], dim=3))
      >>> image = jax.random.normal(jax.random.key(0), (10, 3))
      >>> moments = hmcl_jax.update_moments(moments, {"image": image})
      >>> print(moments.samples["image"], moments.samples["text"])
      10 0
    """
    _checks.instance("moments", moments, FeatureMoments, "what init_moments gives")
    _checks.instance("features", features, Mapping, "a mapping {modality: array}")
    counts = {} if counts is None else counts
    added, sizes = {}, {}
    for modality, z in features.items():
        if modality not in moments.total:
            raise ValueError(
                f"features[{modality!r}] has no entry in moments, which holds "
                f"{sorted(moments.total)}; for a new head merge init_moments of it in first."
            )
        name = f"features[{modality!r}]"
        accumulator = moments.total[modality]
        dim = accumulator.shape[-1] - 1
        if jnp.ndim(z) != 2:
            raise ValueError(f"{name} must have shape (n, {dim}), got shape {jnp.shape(z)}.")
        lifted = as_lifted(name, z, dim, K).astype(accumulator.dtype)
        _checks.finite(name, lifted)
        if jnp.shape(z)[-1] == dim + 1:
            _check_on_hyperboloid(name, lifted, K, jnp.asarray(z).dtype)
        times = counts.get(modality)
        if times is not None:
            times = jnp.asarray(times)
            if times.shape != lifted.shape[:1] or not jnp.issubdtype(times.dtype, jnp.integer):
                raise ValueError(
                    f"counts[{modality!r}] must be integers of shape ({lifted.shape[0]},), "
                    f"got {times.dtype} of shape {times.shape}."
                )
        added[modality], sizes[modality] = _second_moment(lifted, times)

    def plus(old: Matrices, new: Matrices) -> Matrices:
        return {m: x + new[m] if m in new else x for m, x in old.items()}

    total, rounded = dict(moments.total), dict(moments.rounded)
    for modality, new in added.items():
        total[modality], rounded[modality] = _add(total[modality], rounded[modality], new)
    return moments._replace(
        total=total,
        rounded=rounded,
        samples=plus(moments.samples, sizes),
        open_total=plus(moments.open_total, added),
        open_samples=plus(moments.open_samples, sizes),
    )


def _check_on_hyperboloid(name: str, lifted: jax.Array, K: ArrayLike, dtype: np.dtype) -> None:
    if not (_checks.is_concrete(lifted) and _checks.is_concrete(K)):
        return
    squares = np.asarray(lifted) ** 2
    product = squares[:, 0] - squares[:, 1:].sum(axis=-1)  # -<z, z>, which must be K
    # Relative to z0^2, as far out K is a small difference of large squares; 4 units of the dtype
    # the features came in, as bfloat16 rounds them by more than 1e-3.
    rounding = max(1e-3, 4 * float(jnp.finfo(dtype).eps))
    wrong = np.abs(product - np.asarray(K, product.dtype)) > rounding * squares[:, 0]
    if wrong.any():
        row = int(wrong.argmax())
        raise ValueError(
            f"{name} must lie on the hyperboloid with K = {K}, but row {row} has "
            f"-<z, z> = {float(product[row]):.6g}; the time must come first, check also K."
        )


def end_task(moments: FeatureMoments) -> FeatureMoments:
    """Marks the end of a task; only ``protect(..., weighting="tasks")`` depends on it.

    Args:
      moments: with the samples of the task added.

    Returns:
      Moments in which the open task counts as ended.

    Example:
      >>> import jax, hmcl_jax
      >>> moments = hmcl_jax.init_moments(hmcl_jax.identity_heads(["image"], dim=3))
      >>> image = jax.random.normal(jax.random.key(0), (10, 3))
      >>> moments = hmcl_jax.end_task(hmcl_jax.update_moments(moments, {"image": image}))
      >>> print(moments.samples["image"], moments.open_samples["image"])
      10 0
    """
    open_means = jax.tree.map(mean, moments.open_total, moments.open_samples)
    return moments._replace(
        open_total=jax.tree.map(jnp.zeros_like, moments.open_total),
        open_samples=jax.tree.map(jnp.zeros_like, moments.open_samples),
        task_means=jax.tree.map(jnp.add, moments.task_means, open_means),
    )


def mean(total: jax.Array, count: jax.Array) -> jax.Array:
    """Total divided by count, 0 if there is nothing."""
    return total / jnp.maximum(count, 1).astype(total.dtype)[..., None, None]


def merge_moments(a: FeatureMoments, b: FeatureMoments) -> FeatureMoments:
    """Adds two moments: of two shards of a task, two tasks, or old and new modalities.

    Args:
      a: moments.
      b: moments; modalities need not be those of `a`.

    Returns:
      Moments of all samples. What is open in both is one open task.

    Example:
      >>> import hmcl_jax
      >>> old = hmcl_jax.init_moments(hmcl_jax.identity_heads(["image", "text"], dim=3))
      >>> new = hmcl_jax.init_moments(hmcl_jax.identity_heads(["audio"], dim=3))
      >>> sorted(hmcl_jax.merge_moments(old, new).total)
      ['audio', 'image', 'text']
    """
    for name, moments in (("a", a), ("b", b)):
        _checks.instance(name, moments, FeatureMoments, "what init_moments gives")
    shapes = [(m, x.shape) for moments in (a, b) for m, x in moments.total.items()]
    if len({shape for _, shape in shapes}) > 1:
        raise ValueError(f"Moments must all have one shape, got {shapes}.")

    def plus(x: Matrices, y: Matrices) -> Matrices:
        both = {modality: x[modality] + y[modality] for modality in x if modality in y}
        return dict(sorted({**x, **y, **both}.items()))

    merged = FeatureMoments(*(plus(x, y) for x, y in zip(a, b, strict=True)))
    for modality in a.total.keys() & b.total.keys():
        # Again, now with the rounding error of the sum of the two totals.
        exact = _add(a.total[modality], merged.rounded[modality], b.total[modality])
        merged.total[modality], merged.rounded[modality] = exact
    return merged
