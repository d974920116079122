"""Top-1 and recall against brute force, with padding, ties, NaN, seeds and blocks."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from hmcl_jax import evaluation

top1 = jax.jit(evaluation.top1, static_argnames="average")
predict = jax.jit(evaluation.predict)
recall = jax.jit(evaluation.recall, static_argnames="ks")
symmetric_recall = jax.jit(evaluation.symmetric_recall, static_argnames="k")

pytestmark = pytest.mark.usefixtures("strict_dtypes")

DIRECTIONS = ("general_to_specific", "specific_to_general")
KS = (1, 5, 1000)  # the last is longer than any gallery


@pytest.fixture(params=[None, 150])
def blocks(request, monkeypatch):
    """One block, or several with a last one that is not full."""
    if request.param:
        monkeypatch.setattr("hmcl_jax.evaluation.scores.BLOCK_ENTRIES", request.param)
    for function in (top1, predict, recall):
        function.clear_cache()
    yield
    for function in (top1, predict, recall):
        function.clear_cache()


def distances(x, y, K=10.0):
    """All Lorentz distances in float64, as textbooks write them; NaN where a point is broken."""
    x, y = np.float64(x), np.float64(y)
    products = np.array([[a @ b for b in y] for a in x])
    times = np.outer(np.sqrt(K + (x**2).sum(1)), np.sqrt(K + (y**2).sum(1)))
    return np.sqrt(K) * np.arccosh(np.maximum(1, (times - products) / K))


def nearest(x, y, K=10.0):
    """Per query the items at a finite distance, in a stable order."""
    return [
        [i for i in np.argsort(row, kind="stable") if np.isfinite(row[i])]
        for row in distances(x, y, K)
    ]


def brute_top1(prototypes, samples, labels, average="micro", K=10.0):
    orders = nearest(samples, prototypes, K)
    hits = np.array([order[:1] == [c] for order, c in zip(orders, labels, strict=True)])
    if average == "micro":
        return hits.mean()
    return np.mean([hits[labels == c].mean() for c in set(labels)])


def brute_recall(general, specific, pairs, ks=KS, K=10.0):
    result = {}
    ways = ((general, specific, 1, 0), (specific, general, 0, 1))
    for name, (queries, gallery, q, g) in zip(DIRECTIONS, ways, strict=True):
        orders = nearest(queries, gallery, K)
        partners = {i: {p[g] for p in pairs if p[q] == i} for i in range(len(queries))}
        counted = [i for i in partners if partners[i]]
        result[name] = {
            k: np.mean([bool(partners[i] & set(orders[i][:k])) for i in counted]) for k in ks
        }
    return result


def points(rng, n, d=16, spread=0.8, dtype=np.float32):
    """Points around one direction, as of a backbone, at radius 0.5 to 4."""
    x = spread * rng.normal(size=(n, d)) / np.sqrt(d)
    x[:, 0] += 1
    x *= rng.uniform(0.5, 4, (n, 1)) / np.linalg.norm(x, axis=1, keepdims=True)
    return x.astype(dtype)


def classification(rng, dtype=np.float32, n=57, classes=7):
    prototypes = points(rng, classes, dtype=dtype)
    labels = rng.integers(0, classes - 1, n)  # the last class does not occur
    samples = 0.4 * prototypes[labels] + 0.8 * points(rng, n, dtype=dtype)
    return prototypes, samples.astype(dtype), labels.astype(np.int32)


def retrieval(rng, dtype=np.float32, n=23, m=61):
    """Some pictures have several captions, some captions several pictures, some none."""
    specific = points(rng, n, dtype=dtype)
    pairs = np.stack([rng.integers(0, n - 1, m - 2), np.arange(m - 2)], axis=1)
    pairs = np.concatenate([pairs, [[3, 5], [4, 5]]]).astype(np.int32)
    general = 0.7 * points(rng, m, dtype=dtype)
    general[pairs[:, 1]] += 0.4 * specific[pairs[:, 0]]
    return general, specific, np.unique(pairs, axis=0)


def assert_same(ours, truth):
    assert set(ours) == set(truth)
    for name in truth:
        assert list(ours[name]) == list(truth[name])
        for k, share in truth[name].items():
            np.testing.assert_allclose(ours[name][k], share, rtol=1e-6, err_msg=f"{name} at {k}")


def test_top1_equals_brute_force(dtype, rng, blocks):
    prototypes, samples, labels = classification(rng, dtype)
    for average in ("micro", "macro"):
        ours = top1(prototypes, samples, labels, average=average)
        truth = brute_top1(prototypes, samples, labels, average)
        assert ours.dtype == dtype
        np.testing.assert_allclose(ours, truth, rtol=1e-6)


def test_predictions_are_the_nearest_prototypes_that_top1_counts(dtype, rng, blocks):
    prototypes, samples, labels = classification(rng, dtype)
    samples[[3, 40]] = np.nan
    prototypes[2] = prototypes[5]  # the lower index wins
    found = np.asarray(predict(prototypes, samples))
    expected = [order[0] if order else -1 for order in nearest(samples, prototypes)]
    np.testing.assert_array_equal(found, expected)
    assert found.dtype == np.int32
    assert 2 in found
    np.testing.assert_allclose(top1(prototypes, samples, labels), np.mean(found == labels))
    padded = predict(prototypes, samples, valid_prototypes=np.arange(7) != 2)
    np.testing.assert_array_equal(padded, np.where(found == 2, 5, found))


def test_recall_equals_brute_force(dtype, rng, blocks):
    general, specific, pairs = retrieval(rng, dtype)
    ours = recall(general, specific, pairs, ks=KS)
    assert ours["general_to_specific"][1].dtype == dtype
    truth = brute_recall(general, specific, pairs)
    assert_same(ours, truth)
    both_ways = np.mean([truth[name][5] for name in DIRECTIONS])
    np.testing.assert_allclose(symmetric_recall(general, specific, pairs), both_ways, rtol=1e-6)
    curved = brute_recall(3 * general, 3 * specific, pairs, K=0.5)
    assert curved != brute_recall(3 * general, 3 * specific, pairs, K=1e4)
    assert_same(recall(3 * general, 3 * specific, pairs, ks=KS, K=0.5), curved)


def test_ties_stand_in_the_order_of_the_index(dtype, rng, blocks):
    # With K = 16 these points have whole time components, so every distance is exact.
    corners = np.array([[0, 0], [3, 0], [0, 3], [-3, 0], [0, -3]], dtype)
    general, specific = corners[rng.integers(0, 5, 40)], corners[rng.integers(0, 5, 30)]
    pairs = np.stack([rng.integers(0, 30, 50), rng.integers(0, 40, 50)], axis=1).astype(np.int32)
    ours = recall(general, specific, pairs, ks=KS, K=16.0)
    assert_same(ours, brute_recall(general, specific, pairs, K=16.0))
    labels = rng.integers(0, 40, 30).astype(np.int32)
    truth = brute_top1(general, specific, labels, K=16.0)
    assert truth > 0
    np.testing.assert_allclose(top1(general, specific, labels, K=16.0), truth, rtol=1e-6)


@pytest.mark.parametrize("bad", [np.nan, np.inf, 1e30])  # (1e30)^2 overflows
def test_broken_points_are_never_hits_and_stand_behind_all_others(rng, bad):
    general, specific, pairs = retrieval(rng)
    marked = general.copy(), specific.copy()
    general[5], specific[7, 2] = bad, bad
    marked[0][5], marked[1][7, 2] = np.nan, np.nan
    truth = brute_recall(*marked, pairs)
    assert truth["specific_to_general"][1000] < 1
    assert_same(recall(general, specific, pairs, ks=KS), truth)


def test_padding_does_not_change_top1(rng):
    prototypes, samples, labels = classification(rng)
    more, extra = samples[:9], labels[:9] + 9  # would count, were they valid
    padded = (
        np.concatenate([more, prototypes]),
        np.concatenate([samples, more]),
        np.concatenate([labels + 9, extra]),
    )
    valid = {"valid": np.arange(66) < 57, "valid_prototypes": np.arange(16) >= 9}
    for average in ("micro", "macro"):
        plain = top1(prototypes, samples, labels, average=average)
        np.testing.assert_array_equal(top1(*padded, average=average, **valid), plain)


def test_padding_does_not_change_recall(rng):
    general, specific, pairs = retrieval(rng)
    padded = np.concatenate([specific[:9], general]), np.concatenate([general[:9], specific])
    valid = {"valid_general": np.arange(70) >= 9, "valid_specific": np.arange(32) >= 9}
    # Rows of -1 are no pairs, nor are those that name padding on either side.
    extra = [[-1, -1], [-1, 12], [12, -1], [3, 12], [12, 3], [31, 0], [0, 68], [0, 0]]
    ours = recall(*padded, np.concatenate([extra, pairs + 9]).astype(np.int32), ks=KS, **valid)
    truth = recall(general, specific, pairs, ks=KS)
    jax.tree.map(np.testing.assert_array_equal, ours, truth)


def test_vmap_over_seeds_equals_a_loop(rng):
    problems = [retrieval(rng, n=23, m=61) for _ in range(2)]
    general, specific = (np.stack([p[i] for p in problems]) for i in (0, 1))
    pairs = problems[0][2]
    valid = np.arange(61) < 60

    def one(general, specific):
        return recall(general, specific, pairs, ks=KS, valid_general=valid)

    ours = jax.jit(jax.vmap(one))(general, specific)
    for seed in range(2):
        truth = brute_recall(general[seed, :60], specific[seed], pairs[pairs[:, 1] < 60])
        assert_same(jax.tree.map(lambda share, seed=seed: share[seed], ours), truth)

    prototypes, samples, labels = (np.stack([x, x]) for x in classification(rng))
    ours = jax.vmap(top1)(prototypes, samples, labels)
    np.testing.assert_allclose(ours, [top1(prototypes[0], samples[0], labels[0])] * 2, rtol=1e-6)


@pytest.mark.parametrize("radius", [0.5, 4.0])
def test_float32_keeps_the_order_of_float64(rng, radius):
    # Partners are planted at the boundary of what k sees: the last item seen for every other query,
    # the first one not seen for the rest. One exchange of neighbours would change the score.
    n, m, d = 400, 500, 512
    x, y = (points(rng, rows, d, spread=0.4, dtype=np.float64) for rows in (n, m))
    x, y = (radius * z / np.linalg.norm(z, axis=1, keepdims=True) for z in (x, y))
    x, y = (np.float32(z * rng.uniform(0.9, 1.1, (len(z), 1))) for z in (x, y))
    a, b = np.float64(x), np.float64(y)
    times = np.outer(np.sqrt(10 + (a**2).sum(1)), np.sqrt(10 + (b**2).sum(1)))
    order = np.argsort(times - a @ b.T, axis=1)
    levels = np.sort(times - a @ b.T, axis=1)
    for k in (1, 5):
        # The rounding unit of float32 is 6e-8 of the products |x||y|, of which 512 are summed.
        clear = np.flatnonzero(levels[:, k] - levels[:, k - 1] > 1e-6 * radius**2)
        assert len(clear) > 0.95 * n
        partner = order[clear, k - 1 + clear % 2]
        found = recall(y, x, np.stack([clear, partner], axis=1).astype(np.int32), ks=(k,))
        np.testing.assert_allclose(
            found["specific_to_general"][k], np.mean(clear % 2 == 0), rtol=1e-6
        )


def test_nothing_but_nan_is_no_hit_and_nothing_to_score_is_nan():
    nan, pairs = np.full((3, 2), np.nan, np.float32), np.array([[0, 0], [1, 1], [2, 2]])
    assert not any(jax.tree.leaves(recall(nan, np.zeros_like(nan), pairs, ks=(1, 3, 100))))
    assert float(top1(np.zeros_like(nan), nan, np.arange(3))) == 0
    x = np.ones((3, 2), np.float32)
    none = np.zeros(3, bool)
    for average in ("micro", "macro"):
        assert np.isnan(top1(x, x, np.arange(3), average=average, valid=none))
    assert np.isnan(symmetric_recall(x, x, np.zeros((0, 2), np.int32)))
    assert np.isnan(symmetric_recall(x, x, np.array([[1, 1]]), valid_general=none))


def test_memory_does_not_grow_to_the_whole_matrix():
    imagenet = (1000, 512), (50_000, 512), (50_000,)
    coco = (25_000, 512), (5_000, 512), (25_000, 2)
    for score, shapes, most in ((top1, imagenet, 60e6), (recall, coco, 150e6)):
        dtypes = (jnp.float32, jnp.float32, jnp.int32)
        task = map(jax.ShapeDtypeStruct, shapes, dtypes)
        analysis = score.lower(*task).compile().memory_analysis()
        assert analysis.temp_size_in_bytes < most


X = np.ones((4, 3), np.float32)
LABELS = np.arange(4)
PAIRS = np.stack([LABELS, LABELS], axis=1)


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: evaluation.top1(X, X, LABELS, average="mean"), "average .*'mean'"),
        (lambda: evaluation.top1(X, X, LABELS + 1), r"labels .*\[0, 4\), got 4"),
        (lambda: evaluation.top1(X, X, LABELS, valid=X[:, 0]), r"valid .*\(4,\), got float"),
        (lambda: evaluation.recall(X[None], X, PAIRS), "general .*use jax.vmap"),
        (lambda: evaluation.recall(X[:0], X, PAIRS), r"general .*one row.*\(0, 3\)"),
        (lambda: evaluation.recall(X, X, PAIRS, ks=(0, 1)), "ks = 0"),
        (lambda: evaluation.recall(X, X[:3], PAIRS), r"of specific rows .*\[-1, 3\), got 3"),
    ],
)
def test_errors_name_the_argument_and_its_value(call, message):
    with pytest.raises(ValueError, match=message):
        call()
