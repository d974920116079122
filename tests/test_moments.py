"""Moments: exact sums, whatever the batches, their order and the task boundaries."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from problems import lift

import hmcl_jax

pytestmark = pytest.mark.usefixtures("strict_dtypes")


def empty(dim=5, modalities=("image", "text"), dtype=jnp.float32):
    return hmcl_jax.init_moments(hmcl_jax.identity_heads(modalities, dim, dtype))


def assert_equal(a, b, tolerance):
    a, b = a._replace(rounded={}), b._replace(rounded={})  # that differs with the order
    jax.tree.map(lambda x, y: np.testing.assert_allclose(x, y, rtol=tolerance, atol=1e-30), a, b)


def test_moments_are_the_sums_of_lifted_outer_products(dtype, rng):
    x = rng.normal(size=(30, 5)).astype(dtype)
    z = lift(x, K=4.0)
    moments = hmcl_jax.update_moments(empty(dtype=dtype), {"image": x}, K=4.0)
    tolerance = 1e-5 if dtype == jnp.float32 else 1e-13
    np.testing.assert_allclose(moments.total["image"], z.T @ z, rtol=tolerance, atol=tolerance * 30)
    assert moments.total["image"].dtype == dtype
    assert int(moments.samples["image"]) == 30
    np.testing.assert_array_equal(moments.total["text"], 0)
    lifted = hmcl_jax.update_moments(empty(dtype=dtype), {"image": z.astype(dtype)}, K=4.0)
    assert_equal(lifted, moments, tolerance * 10)


def test_counts_repeat_rows_and_skip_padding(dtype, rng):
    x = rng.normal(size=(6, 5)).astype(dtype)
    counts = np.array([2, 0, 1, 3, 0, 1], np.int32)
    repeated = hmcl_jax.update_moments(empty(dtype=dtype), {"image": np.repeat(x, counts, axis=0)})
    counted = hmcl_jax.update_moments(empty(dtype=dtype), {"image": x}, counts={"image": counts})
    assert_equal(counted, repeated, 1e-5 if dtype == jnp.float32 else 1e-13)
    for wrong in (counts[:5], x[:, 0]):
        with pytest.raises(ValueError, match=r"counts\['image'\] must be integers of shape \(6,\)"):
            hmcl_jax.update_moments(empty(dtype=dtype), {"image": x}, counts={"image": wrong})


def test_batches_order_and_merging_do_not_matter(x64, rng):
    x = rng.normal(size=(40, 5))
    whole = hmcl_jax.update_moments(empty(dtype=jnp.float64), {"image": x, "text": x[:7]})
    pieces = empty(dtype=jnp.float64)
    for part in np.split(rng.permutation(x), [3, 3, 25]):
        pieces = hmcl_jax.update_moments(pieces, {"image": part})
    pieces = hmcl_jax.update_moments(pieces, {"text": x[:7]})
    assert_equal(pieces, whole, 1e-12)
    left = hmcl_jax.update_moments(empty(dtype=jnp.float64), {"image": x[:10]})
    right = hmcl_jax.update_moments(empty(dtype=jnp.float64), {"image": x[10:], "text": x[:7]})
    assert_equal(hmcl_jax.merge_moments(left, right), whole, 1e-12)
    assert_equal(hmcl_jax.merge_moments(right, left), whole, 1e-12)
    ended = hmcl_jax.merge_moments(hmcl_jax.end_task(left), hmcl_jax.end_task(right))
    both = left.total["image"] / 10 + right.total["image"] / 30
    np.testing.assert_allclose(ended.task_means["image"], both, rtol=1e-12)


def test_merging_brings_in_new_modalities():
    merged = hmcl_jax.merge_moments(empty(), empty(modalities=("audio",)))
    assert {m: int(n) for m, n in merged.samples.items()} == {"audio": 0, "image": 0, "text": 0}


def test_ended_tasks_are_averaged(x64, rng):
    tasks = [rng.normal(size=(n, 5)) for n in (100, 3, 20)]
    moments = empty(dtype=jnp.float64)
    for x in tasks:
        half = len(x) // 2
        moments = hmcl_jax.update_moments(moments, {"image": x[:half]})
        moments = hmcl_jax.update_moments(moments, {"image": x[half:]})
        moments = hmcl_jax.end_task(moments)
    means = sum(lift(x).T @ lift(x) / len(x) for x in tasks)
    np.testing.assert_allclose(moments.task_means["image"], means, rtol=1e-12)
    np.testing.assert_array_equal(moments.task_means["text"], 0)
    assert int(moments.open_samples["image"]) == 0
    totals = sum(lift(x).T @ lift(x) for x in tasks)
    np.testing.assert_allclose(moments.total["image"], totals, rtol=1e-12)


def test_moments_keep_their_dtype_but_sum_in_float32_at_least(x64, rng):
    x = rng.normal(size=(8, 5))
    # Lifted features in bfloat16 are on the hyperboloid up to their rounding.
    for dtype, features in (
        (jnp.float32, x),
        (jnp.bfloat16, jnp.array(x, jnp.bfloat16)),
        (jnp.float32, jnp.array(lift(x), jnp.bfloat16)),
    ):
        moments = hmcl_jax.update_moments(empty(dtype=dtype), {"image": features})
        assert moments.total["image"].dtype == jnp.float32


def test_single_samples_count_after_a_hundred_million(rng):
    """20,000 samples of a new direction, one by one: each is below the rounding of the total."""
    turned = np.linalg.qr(rng.normal(size=(8, 8)))[0].astype(np.float32)
    heads = hmcl_jax.identity_heads(["image"], dim=8)
    old, new = turned[:, :2].T, 3 * turned[:, 2:3].T
    counts = {"image": np.full(2, 50_000_000, np.int32)}
    moments = hmcl_jax.update_moments(hmcl_jax.init_moments(heads), {"image": old}, counts=counts)

    def one(_, moments):
        return hmcl_jax.update_moments(moments, {"image": new})

    moments = jax.jit(lambda moments: jax.lax.fori_loop(0, 20_000, one, moments))(moments)
    assert int(moments.samples["image"]) == 100_020_000
    protection = hmcl_jax.protect(moments, heads, variance=0.9999)
    assert int(protection.rank["image"]) == 3
    V = np.float64(protection.basis["image"])[:, :3]
    outside = turned[:, :3] - V @ (V.T @ turned[:, :3])
    assert np.linalg.norm(outside, 2) < 1e-3  # sine of the largest angle
    energy = float(new[0] @ moments.total["image"][1:, 1:] @ new[0]) / 9
    np.testing.assert_allclose(energy, 20_000 * 9, rtol=0.05)
    both = hmcl_jax.merge_moments(moments, moments)
    np.testing.assert_array_equal(both.total["image"], 2 * moments.total["image"])
