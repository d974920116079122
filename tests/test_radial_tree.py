"""Proper rotations against brute force, and what a drawing of a tree must keep."""

import numpy as np
import pytest
from scipy.spatial.transform import Rotation

from hmcl_jax import lorentz
from hmcl_jax.evaluation import make_tree, proper_rotation
from hmcl_jax.evaluation.radial_tree import TreePoints, radial_tree


def random_rotation(rng, d):
    Q = np.linalg.qr(rng.normal(size=(d, d)))[0]
    Q[:, 0] *= np.sign(np.linalg.det(Q))
    return Q


@pytest.mark.parametrize("mirrored", [1, -1])
def test_no_other_rotation_comes_closer(rng, mirrored):
    x = rng.normal(size=(7, 3))
    turn = random_rotation(rng, 3) @ np.diag([mirrored, 1, 1])
    y = x @ turn.T + 0.1 * rng.normal(size=(7, 3))
    Q = proper_rotation(x, y)
    np.testing.assert_allclose(Q @ Q.T, np.eye(3), atol=1e-12)
    assert np.linalg.det(Q) == pytest.approx(1)
    every = np.stack([Q, *Rotation.random(20000, random_state=3).as_matrix()])
    costs = ((np.einsum("rij,nj->rni", every, x) - y) ** 2).sum(axis=(1, 2))
    assert costs[0] <= costs.min() + 1e-9


def made(before, after, methods=("a", "b")):
    tree = make_tree([("x", "top"), ("y", "top"), ("z", "x")], ["y", "z"])
    return TreePoints("t", tree, tree.names, methods, (7,), 10.0, before, after)


def test_a_shared_rotation_moves_nothing():
    rng = np.random.default_rng(0)
    before = rng.normal(size=(2, 1, 4, 6))
    found = radial_tree(made(before, before @ random_rotation(rng, 6).T))
    np.testing.assert_allclose(found.after[..., 1], found.before[..., 1], rtol=1e-5)
    np.testing.assert_allclose(np.exp(1j * found.after[..., 0]), np.exp(1j * found.before[..., 0]))
    assert max(found.radial_change.max(), found.pair_change.max()) < 1e-5
    assert [found.names[i] if i >= 0 else None for i in found.parents] == [None, "top", "top", "x"]
    assert found.depths.tolist() == [0, 1, 1, 2]


def test_movements_are_drawn_as_large_as_they_are():
    rng = np.random.default_rng(2)
    d, K = 6, 10.0
    before = rng.normal(size=(1, 1, 4, d))
    # One point lies where the plane is seen from, so that its angle there says nothing.
    before[0, 0, 3] = before[0, 0, :3].mean(axis=0)
    after = before + 0.01 * rng.normal(size=before.shape)
    found = radial_tree(made(before, after, methods=("a",)))
    start, end = before[0, 0], after[0, 0]
    end = end @ proper_rotation(end, start).T
    cosines = (start * end).sum(1) / np.linalg.norm(start, axis=1) / np.linalg.norm(end, axis=1)
    turned = np.abs(found.after[0, :, 0] - found.before[0, :, 0])
    np.testing.assert_allclose(turned, np.arccos(cosines), rtol=1e-3)
    radii = np.asarray(lorentz.distance_to_origin(np.float32(after[0, 0]), K))
    np.testing.assert_allclose(found.after[0, :, 1], radii, rtol=1e-5)


def test_changes_are_relative_to_the_end_of_the_task():
    rng = np.random.default_rng(1)
    before = rng.normal(size=(2, 1, 4, 6)).astype(np.float32)
    further = np.array(lorentz.exp_map0(1.25 * lorentz.log_map0(before, 10.0), 10.0))
    found = radial_tree(made(before, further))
    np.testing.assert_allclose(found.radial_change, 0.25, rtol=1e-4)
    radii = np.asarray(lorentz.distance_to_origin(before[:, 0], 10.0))
    np.testing.assert_allclose(found.before[..., 1], radii, rtol=1e-5)
    pairs = [
        [float(lorentz.distance(p[i], p[j], 10.0)) for i in range(4) for j in range(i)]
        for p in (before[0, 0], further[0, 0])
    ]
    expected = np.abs(np.subtract(*pairs)).mean() / np.mean(pairs[0])
    assert found.pair_change[0] == pytest.approx(expected, rel=1e-4)


def test_wrong_input_is_refused():
    with pytest.raises(ValueError, match=r"one shape \(n, d\), got \(2, 2\) and \(3, 2\)"):
        proper_rotation(np.ones((2, 2)), np.ones((3, 2)))
    points = np.ones((2, 1, 4, 6), np.float32)
    with pytest.raises(ValueError, match="seed = 8"):
        radial_tree(made(points, points), seed=8)
