"""Radii and modality gaps of a store, and what `hmcl inspect` says of them."""

import dataclasses

import numpy as np
import pytest

from hmcl_jax import lorentz
from hmcl_jax.data.store import Task, read_store, write_store
from hmcl_jax.evaluation.modality_gap import centroid, measure_gaps


def test_the_centroid_is_nearest_to_all():
    rng = np.random.default_rng(0)
    points, K = rng.normal(size=(30, 4)), 2.0
    middle = centroid(points, K)

    def cost(x):
        lifted = np.sqrt(K + (points**2).sum(-1)) * np.sqrt(K + x @ x) - points @ x
        return lifted.sum()  # sum of -<p, x>, half the squared Lorentz distances up to a constant

    for _ in range(200):
        assert cost(middle) <= cost(middle + 1e-2 * rng.normal(size=4))


@pytest.fixture
def store(tmp_path):
    """Prototypes at -1.5 and samples at 1.5 along the first axis, unequal spread."""
    rng = np.random.default_rng(0)
    first = np.float32([1, 0, 0, 0, 0])
    arrays = {"prototypes": 0.01 * rng.normal(size=(4, 5)).astype(np.float32) - 1.5 * first}
    for split, rows in (("train", 8), ("test", 12)):
        samples = 0.1 * rng.normal(size=(rows, 5)).astype(np.float32) + 1.5 * first
        labels = np.arange(rows, dtype=np.int32) % 4
        arrays |= {f"{split}_features": samples, f"{split}_labels": labels}
    task = Task("clusters", "classification", "text", "image", arrays, classes=("a", "b", "c", "d"))
    write_store(tmp_path / "good", [task], name="s", backbone="b", K=4.0, tau=0.1)
    return read_store(tmp_path / "good")


def test_the_gap_of_two_clusters_is_their_distance(store):
    sides, (gap,) = measure_gaps(store)
    ends = np.zeros((2, 5), np.float32)
    ends[:, 0] = -1.5, 1.5
    expected = float(lorentz.distance(*ends, 4.0))
    assert gap.centroids == pytest.approx(expected, abs=0.1)
    assert gap.pairs == pytest.approx(expected, abs=0.2)
    text, image = sides
    assert (text.modality, text.rows, image.modality, image.rows) == ("text", 4, "image", 12)
    along = image.plane[:, 0].mean() - text.plane[:, 0].mean()
    assert along == pytest.approx(2 * float(lorentz.distance_to_origin(ends[1], 4.0)), abs=0.1)
    expected = np.asarray(lorentz.distance_to_origin(store.tasks[0].arrays["prototypes"], 4.0))
    np.testing.assert_allclose(text.radii, expected, rtol=1e-5)


def test_pairs_at_one_place_have_no_distance(store):
    points = np.random.default_rng(0).normal(size=(20, 5)).astype(np.float32)
    order = np.random.default_rng(1).permutation(20)
    pairs = np.stack([np.arange(20), np.argsort(order)], axis=1).astype(np.int32)
    arrays = {"test_specific": points, "test_general": points[order], "test_pairs": pairs}
    task = Task("same", "retrieval", "text", "image", arrays)
    _, (gap,) = measure_gaps(dataclasses.replace(store, tasks=(task,)))
    assert gap.pairs == pytest.approx(0, abs=1e-3)
    assert gap.centroids == pytest.approx(0, abs=1e-3)
    expected = float(np.asarray(lorentz.pairwise_distance(points, points, 4.0)).mean())
    assert gap.random == pytest.approx(expected, rel=0.3)


def test_inspect_shows_a_store_and_its_errors(tmp_path, store, hmcl, capsys, monkeypatch):
    monkeypatch.setattr("hmcl_jax.cli.options.EMBEDDED", {"pocket-modalities": lambda: store})
    hmcl("inspect", "pocket-modalities")
    assert "Nothing is wrong" in capsys.readouterr().out
    hmcl("inspect", tmp_path / "good", "--figure", tmp_path / "gap.png")
    assert "gap of centroids" in capsys.readouterr().out
    assert (tmp_path / "gap.png").read_bytes().startswith(b"\x89PNG")
    with pytest.raises(SystemExit, match="exists already"):
        hmcl("inspect", tmp_path / "good", "--figure", tmp_path / "gap.png")
    features = tmp_path / "good" / "clusters" / "test_features.npy"
    features.write_bytes(features.read_bytes()[:-4] + b"\0\0\xc0\x7f")  # a NaN
    with pytest.raises(SystemExit, match=r"clusters/test_features\.npy"):
        hmcl("inspect", tmp_path / "good")
