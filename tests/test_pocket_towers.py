"""The towers of pocket16: their form, their file, their training, and the features they made."""

from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import hmcl_jax
from hmcl_jax import lorentz
from hmcl_jax.data.pocket_towers import DIM, TEXT_DIM, PocketTowers, load_pocket_towers
from pocket import towers

ROOT = Path(__file__).parent.parent

FEATURES = 24
CONFIG = towers.TowerConfig(hidden=32, length_hidden=8, epochs=3, batch=32, warm_steps=5)


def units(rng, rows):
    x = rng.normal(size=(rows, TEXT_DIM)).astype(np.float32)
    return x / np.linalg.norm(x, axis=1, keepdims=True)


@pytest.fixture(scope="module")
def made():
    """A made-up base: pictures, embeddings of 40 texts, and chains."""
    rng = np.random.default_rng(0)
    texts = units(rng, 40)
    name = rng.integers(0, 30, 96)
    pictures = {
        "features": rng.normal(size=(96, FEATURES)).astype(np.float32),
        "mixtures": (texts[name] + 0.5 * units(rng, 96)).astype(np.float32),
        "name": name,
        "variants": np.stack([name] * 3, axis=1),
        "category": rng.integers(-1, 40, 96),
        "top": rng.integers(-1, 40, 96),
    }
    chains = np.array([(n, n // 2, 1 + n % 3, n < 20) for n in range(2, 40)])
    return pictures, texts, chains


@pytest.fixture(scope="module")
def random_towers():
    params = towers.init(CONFIG, FEATURES, jax.random.key(0))
    rng = np.random.default_rng(1)
    kept = {side: params[side] for side in ("text", "picture")}
    prepared = (rng.normal(size=FEATURES), rng.uniform(0.5, 2, FEATURES), units(rng, 1000))
    return PocketTowers(kept, *(jnp.asarray(x, jnp.float32) for x in prepared), K=10.0)


def test_the_points_are_the_equations_of_the_head(random_towers):
    t = random_towers
    rng = np.random.default_rng(2)
    features, logits = rng.normal(size=(3, FEATURES)), rng.normal(size=(3, 1000)) * 4

    def net(w, x):
        w = {key: np.float64(value) for key, value in w.items()}
        return np.float64(jax.nn.gelu(x @ w["w1"] + w["b1"])) @ w["w2"] + w["b2"]

    def lift(v):
        length = np.linalg.norm(v, axis=1, keepdims=True)
        return np.sqrt(10) * np.sinh(length / np.sqrt(10)) * v / length

    def tangent(w, given, x):
        padded = np.hstack([given, np.zeros((len(given), DIM - TEXT_DIM))])
        length = np.exp(np.float64(w["alpha"]) + net(w["length"], x))
        return length * (np.sqrt(DIM) * padded + net(w["direction"], x))

    texts = units(rng, 3)
    expected = lift(tangent(t.params["text"], texts, texts))
    assert np.allclose(t.texts(texts), expected, atol=1e-5)

    mixtures = []
    for row in logits:
        best = np.argsort(-row)[:20]
        weights = np.exp(row[best] / 2)
        mixtures.append(weights @ np.asarray(t.class_names)[best] / weights.sum())
    n = np.linalg.norm(mixtures, axis=1, keepdims=True)
    c = mixtures / n
    x = np.hstack([(features - np.asarray(t.mean)) / np.asarray(t.spread), 3 * c])
    certainty = (n / 0.75) ** float(t.params["picture"]["certainty"])
    expected = lift(certainty * tangent(t.params["picture"], c, x))
    assert np.allclose(t.pictures(features, logits), expected, rtol=1e-4, atol=1e-5)


def test_prompts_are_averaged_in_the_tangent_space(random_towers):
    one, other = (units(np.random.default_rng(seed), 4) for seed in (3, 4))
    tangents = [lorentz.log_map0(random_towers.texts(x)) for x in (one, other)]
    found = lorentz.log_map0(random_towers.texts(np.stack([one, other])))
    assert np.allclose(found, sum(tangents) / 2, atol=1e-5)


def test_a_file_holds_the_rounded_towers(random_towers, tmp_path):
    towers.save_towers(tmp_path / "t.npz", random_towers)
    read, rounded = load_pocket_towers(tmp_path / "t.npz"), towers.rounded(random_towers)
    assert vars(read).keys() == vars(rounded).keys()
    same = jax.tree.map(np.array_equal, vars(read), vars(rounded))
    assert all(jax.tree.leaves(same))
    assert read.K == 10.0


def test_logits_of_other_classes_are_refused(random_towers):
    with pytest.raises(ValueError, match="logits"):
        random_towers.pictures(np.ones((2, FEATURES)), np.ones((2, 1001)))


def test_features_of_the_store_come_from_the_packaged_towers():
    packaged, store = load_pocket_towers(), hmcl_jax.load_pocket()
    with np.load(ROOT / "tests" / "data" / "pocket_inputs.npz", allow_pickle=False) as inputs:
        task = store[str(inputs["task"])]
        pictures = packaged.pictures(inputs["features"], inputs["logits"])
        texts = packaged.texts(inputs["embeddings"])
    for points, shipped in ((pictures, "test_specific"), (texts, "tree_features")):
        assert np.allclose(points, task.arrays[shipped][: len(points)], atol=1e-3)


@pytest.mark.slow
def test_training_is_reproducible_and_keeps_what_is_fixed(made):
    first, second = (towers.train(CONFIG, *made) for _ in range(2))
    for a, b in zip(jax.tree.leaves(first), jax.tree.leaves(second), strict=True):
        assert np.array_equal(a, b)
        assert np.isfinite(a).all()
    assert float(first["picture"]["certainty"]) == CONFIG.certainty
    assert 0.01 <= towers.temperature(first) <= 1
