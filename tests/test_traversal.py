"""Walks to the origin against a brute-force loop in NumPy, and what the filter leaves."""

import numpy as np
import pytest

import hmcl_jax
from hmcl_jax import lorentz
from hmcl_jax.evaluation import Pool, compare_heads, task_pool, traverse

K = 10.0


def points(rng, n, low, high, d=8):
    """Points around one direction, so that some cones hold some points."""
    x = 0.4 * rng.normal(size=(n, d)) / np.sqrt(d)
    x[:, 0] += 1
    return x * rng.uniform(low, high, (n, 1)) / np.linalg.norm(x, axis=1, keepdims=True)


def scene(rng, dtype=np.float32, n=12, m=30):
    images, texts = points(rng, n, 2, 4).astype(dtype), points(rng, m, 0.4, 2).astype(dtype)
    return images, texts, [f"text {i}" for i in range(m)]


def brute(image, texts, steps, entailing, K=K, kappa=0.1):
    """Nearest texts in float64, one step and one text after the other, as textbooks write it."""
    image, texts = np.float64(image), np.float64(texts)

    def time(x):
        return np.sqrt(K + x @ x)

    length = np.linalg.norm(image)
    tangent = image / length * np.sqrt(K) * np.arcsinh(length / np.sqrt(K)) if length else image
    nearest = []
    for step in range(steps):
        v = tangent * (1 - step / (steps - 1))
        size = np.linalg.norm(v)
        y = v / size * np.sqrt(K) * np.sinh(size / np.sqrt(K)) if size else v
        best, best_inner = -1, -np.sqrt(K) * time(y)  # the root
        for i, x in enumerate(texts):
            inner = x @ y - time(x) * time(y)
            if entailing:
                g = inner / K
                norm = np.linalg.norm(x)
                cosine = (time(y) + g * time(x)) / (norm * np.sqrt(g**2 - 1))
                angle = np.arccos(np.clip(cosine, -1, 1))
                if angle > np.arcsin(min(1, 2 * kappa * np.sqrt(K) / norm)):
                    continue
            if inner > best_inner:
                best, best_inner = i, inner
        nearest.append(best)
    return nearest


@pytest.mark.parametrize(("steps", "entailing"), [(2, True), (20, False)])
def test_walks_equal_brute_force(dtype, rng, steps, entailing):
    images, texts, names = scene(rng, dtype)
    found = traverse(images, texts, names, steps=steps, entailing=entailing)
    expected = [brute(image, texts, steps, entailing) for image in images]
    np.testing.assert_array_equal(found.nearest, expected)
    assert (found.entailing, found.names) == (entailing, (*names, "[ROOT]"))
    assert len(np.unique(found.nearest)) > 5


def test_curvature_aperture_and_blocks(rng, monkeypatch):
    monkeypatch.setattr("hmcl_jax.evaluation.traversal.BLOCK_ENTRIES", 3 * 31 * 20)
    images, texts, names = scene(rng, n=7)  # a shape of its own, so nothing is compiled yet
    for kappa in (0.02, 0.3):
        found = traverse(images, texts, names, K=2.0, kappa=kappa)
        expected = [brute(image, texts, 20, True, 2.0, kappa) for image in images]
        np.testing.assert_array_equal(found.nearest, expected)


def test_points_are_equally_far_apart_and_distances_are_those_to_the_texts(rng):
    images, texts, names = scene(rng)
    found = traverse(images, texts, names)
    path = lorentz.geodesic_to_origin(images, np.linspace(0, 1, 20, dtype=np.float32))
    np.testing.assert_allclose(found.radii, lorentz.radius(path), rtol=1e-5, atol=1e-6)
    chosen = np.concatenate([texts, np.zeros((1, 8), np.float32)])[found.nearest]
    expected = lorentz.distance(path, chosen)
    np.testing.assert_allclose(found.distances, expected, rtol=1e-4, atol=1e-6)


def test_texts_and_pictures_at_the_origin(dtype):
    origin, image = np.zeros((1, 2), dtype), np.array([[2, 0]], dtype)
    for start, text in ((origin, origin), (image, origin), (image, -image)):
        # The root wins against a text at the origin, and where no text entails the point.
        found = traverse(start, text, ["other"])
        assert found.path(0) == ("[ROOT]",)
        assert np.isfinite(found.distances).all()


def test_paths_are_in_order_and_hold_each_text_once():
    texts = np.array([[2.0, 0.1], [1.2, 0.0], [2.0, -0.1]], np.float32)
    found = traverse(np.array([[4.0, 0.0]], np.float32), texts, ["a", "b", "a"], entailing=False)
    assert found.path(0) == ("a", "b", "[ROOT]")
    with pytest.raises(ValueError, match="index must be one number per leading axis"):
        found.path()


def test_two_heads_side_by_side(rng):
    images, texts, names = scene(rng)
    pool = Pool(tuple(names), texts, ("noun",) * len(names))
    start = hmcl_jax.identity_heads(["image", "text"], 8)
    turned = {m: W.at[:].set(W[::-1]) for m, W in start.items()}  # one turn for both
    found = compare_heads({"task end": start, "final": turned}, images, pool)
    alone = traverse(images, texts, names)
    for walks in found.values():
        np.testing.assert_array_equal(walks.nearest, alone.nearest)
    seeds = {m: np.stack([W, 1.2 * W]) for m, W in start.items()}
    both = compare_heads({"seeds": seeds}, images, pool, entailing=False)["seeds"]
    assert both.nearest.shape == (2, 12, 20)
    stretched = traverse(1.2 * images, 1.2 * texts, names, entailing=False)
    np.testing.assert_array_equal(both.nearest[1], stretched.nearest)
    assert both.path(1, 2) == stretched.path(2)
    with pytest.raises(ValueError, match=r"heads\['x'\] must have heads for \['audio'\]"):
        compare_heads({"x": start}, images, pool, modality="audio")


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"images": np.ones(3)}, r"shapes \(n, d\) and \(m, d\).*got shapes \(3,\) and \(2, 3\)"),
        ({"images": np.ones((4, 2))}, r"one length, got shapes images \(4, 2\), texts \(2, 3\)"),
        ({"images": np.ones((0, 3))}, r"n, m >= 1.*got shapes \(0, 3\)"),
        ({"images": np.full((1, 3), np.nan)}, r"images must be finite, got 3 NaN"),
        ({"names": ["a"]}, r"one name per text.*got 1 names for 2 texts"),
        ({"names": ["a", "[ROOT]"]}, r"without '\[ROOT\]'"),
        ({"steps": 1}, r"steps must be at least 2, got steps = 1"),
        ({"K": 0.0}, r"K must be positive and finite, got K = 0.0"),
    ],
)
def test_wrong_arguments_are_refused(change, message):
    right = {"images": np.ones((4, 3)), "texts": np.ones((2, 3)), "names": ["a", "b"]}
    with pytest.raises(ValueError, match=message):
        traverse(**{**right, **change})


@pytest.fixture(scope="module")
def store():
    return hmcl_jax.load_pocket()


def test_pool_of_a_task(store):
    task = store["qd-animals"]
    pool = task_pool(task)
    assert set(pool.names) == {*task.tree_names, *task.classes}
    assert (pool.features.shape, pool.modality) == ((len(pool.names), 512), "text")
    first = task_pool(task, ["classes", "tree"])  # now the prototype comes first
    ways = ((pool, "tree_features", task.tree_names), (first, "prototypes", task.classes))
    for found, array, names in ways:
        point = found.features[found.names.index("bird")]
        np.testing.assert_array_equal(point, np.float32(task.arrays[array][names.index("bird")]))


def test_captions_have_the_names_that_the_store_knows(store):
    assert task_pool(store["flags"], ["captions"]).names[0] == "flag of Afghanistan"
    unknown = task_pool(store["game-icons"], ["captions"])
    assert unknown.names[1] == "caption 1 of game-icons"
    captions = store["game-icons"].arrays["test_general"]
    np.testing.assert_array_equal(unknown.features, np.float32(captions))


def test_pools_that_cannot_be_made_are_refused(store):
    for wrong in ("tree", ["nouns"]):
        with pytest.raises(ValueError, match="parts must be some of"):
            task_pool(store["flags"], wrong)
    with pytest.raises(ValueError, match="The store has no tree for mnist"):
        task_pool(store["mnist"], ["tree"])
