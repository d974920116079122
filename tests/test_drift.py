"""Drift: computed by hand, by loops, in NumPy; what changes it and what does not."""

import itertools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from saved_runs import heads_of

from hmcl_jax import entailment
from hmcl_jax.data.synthetic import synthetic_stream
from hmcl_jax.evaluation import (
    Anchors,
    cone_changes,
    drift_measures,
    fixed_anchors,
    join_drift,
    measure_drift,
    wilcoxon,
)
from hmcl_jax.evaluation.drift import CONES, MEASURES

K = 10.0
COMPILED = jax.jit(drift_measures)
ROUNDING = {"float32": 2e-6, "float64": 1e-14}


def anchors(rng, dtype, n=20, d=6, leading=()):
    """Texts nearer to the origin than samples, several of the same text."""
    texts = rng.normal(size=(*leading, n, d))
    texts[..., n // 2 :, :] = texts[..., : n - n // 2, :]
    samples = 2 * rng.normal(size=(*leading, n, d)) + 1
    return Anchors(jnp.asarray(texts, dtype), jnp.asarray(samples, dtype))


def rotation(rng, dtype, d=6):
    return jnp.asarray(np.linalg.qr(rng.normal(size=(d, d)))[0], dtype)


def moved(before, general=None, specific=None):
    """Both modalities, each times a matrix."""
    pairs = zip(before, (general, specific), strict=True)
    return Anchors(
        *(x if by is None else jnp.matmul(x, by, precision="highest") for x, by in pairs)
    )


def measures(before, after, K=K):
    return dict(zip(MEASURES, np.asarray(COMPILED(before, after, K)), strict=True))


def cones(before, after, kappa):
    return dict(zip(CONES, np.asarray(jax.jit(cone_changes)(before, after, K, kappa)), strict=True))


def test_all_measures_of_an_example_computed_by_hand(dtype, strict_dtypes):
    # K = 16: the time of (3, 0) is 5, of (0, 0) it is 4, of (4 sqrt 8, ...) 12.
    before = Anchors(jnp.array([[3, 0], [0, 3]], dtype), jnp.array([[3, 0], [0, 3]], dtype))
    far = 4 * np.sqrt(8)
    after = Anchors(jnp.array([[3, 0], [0, 3]], dtype), jnp.array([[far, 0], [3, 0]], dtype))
    close = {"rtol": 10 * jnp.finfo(dtype).eps}
    found = measures(before, after, K=16)
    # Of texts nothing changes; of samples one time goes from 5 to 12.
    np.testing.assert_allclose(found["radial"], (0 + (7 + 0) / 2) / 2, **close)
    # Samples had cosine 0 and have 1, in two of four entries.
    np.testing.assert_allclose(found["angular"], (0 + 2 / 4) / 2, **close)
    # The second sample now has cosine 1 with the first text and 0 with its own.
    np.testing.assert_allclose(found["cross_modal"], 2 / 4, **close)
    # Distances were 0: now along a ray from arsinh(3/4) to arsinh(sqrt 8), and across a corner.
    along = 4 * (np.arcsinh(np.sqrt(8)) - np.arcsinh(3 / 4))
    across = 4 * np.arccosh(25 / 16)
    np.testing.assert_allclose(found["paired_distance"], (along + across) / 2, **close)
    assert found["radial"].dtype == dtype


def test_what_rotations_change(rng, dtype):
    before, turn = anchors(rng, dtype), rotation(rng, dtype)
    still = Anchors(before.general + 0, before.specific + 0)
    assert set(measures(before, still).values()) == {0}
    assert max(measures(before, moved(before, turn, turn)).values()) < ROUNDING[dtype.name]
    for side in Anchors._fields:
        found = measures(before, moved(before, **{side: turn}))
        assert max(found["radial"], found["angular"]) < ROUNDING[dtype.name]
        assert min(found["cross_modal"], found["paired_distance"]) > 0.1


def test_a_radial_scaling_is_no_angular_drift(rng, dtype):
    before = anchors(rng, dtype)
    factor = jnp.asarray(rng.uniform(1.2, 2, size=(20, 1)), dtype)
    for specific in (before.specific, before.specific * factor):
        found = measures(before, Anchors(before.general * factor, specific))
        assert max(found["angular"], found["cross_modal"]) < ROUNDING[dtype.name]
        assert min(found["radial"], found["paired_distance"]) > 0.1


def test_points_at_the_origin_have_cosine_0():
    zero, one = jnp.zeros((2, 3)), jnp.ones((2, 3))
    still = measures(Anchors(zero, one), Anchors(zero, one))
    assert still["angular"] == still["cross_modal"] == 0
    found = measures(Anchors(zero, one), Anchors(one, one))
    np.testing.assert_allclose([found["angular"], found["cross_modal"]], [0.5, 1])


def test_cones_agree_with_entailment_and_turn_with_all(rng, x64):
    before, after = anchors(rng, "float64", n=200), anchors(rng, "float64", n=200)
    found = cones(before, after, 0.4)
    was, is_ = (np.asarray(entailment.entails(*x, K, 0.4)) for x in (before, after))
    assert 0 < was.mean() < 1
    np.testing.assert_allclose(found["outside_before"], 1 - was.mean())
    np.testing.assert_allclose(found["outside_after"], 1 - is_.mean())
    np.testing.assert_allclose(found["lost"], (was & ~is_).mean())
    np.testing.assert_allclose(found["gained"], (~was & is_).mean())
    angles = np.asarray(entailment.exterior_angle(*after, K))
    apertures = np.asarray(entailment.half_aperture(after.general, K, 0.4))
    np.testing.assert_allclose(found["excess_after"], np.mean(angles - apertures))
    turn = rotation(rng, "float64")
    turned = cones(before, moved(before, turn, turn), 0.4)
    assert turned["lost"] == turned["gained"] == 0
    np.testing.assert_allclose(turned["excess_after"], turned["excess_before"], rtol=1e-12)


def test_anchors_that_do_not_match_are_refused():
    two, three = np.ones((2, 4)), np.ones((3, 4))
    with pytest.raises(ValueError, match=r"one shape .*got \(2, 4\), .*\(3, 4\)"):
        drift_measures(Anchors(two, two), Anchors(two, three))


STREAM = synthetic_stream(
    tasks=4, classes=4, dimension=6, test=30, modalities=3, retrieval_every=3, overlap=0.7
)
SEEDS = (3, 5)


def course(last):
    """Heads after each of the four tasks; `last` maps the heads of the third to the fourth."""
    eye = np.repeat(np.eye(6, 7, k=1, dtype=np.float32)[None], len(SEEDS), axis=0)
    whole = {"audio": eye, "image": eye, "text": eye}
    return [whole, whole, whole, {m: last(m, W) for m, W in whole.items()}]


@pytest.fixture(scope="module")
def courses():
    rng = np.random.default_rng(0)
    turn = np.linalg.qr(rng.normal(size=(6, 6)))[0]
    return {
        "vanilla": course(lambda m, W: 2 * W),
        "still": course(lambda m, W: W),
        "turned": course(lambda m, W: turn @ W),
        "audio": course(lambda m, W: turn @ W if m == "audio" else W),
        "random": [heads_of(STREAM, SEEDS, n, rng) for n in range(1, 5)],
    }


@pytest.fixture(scope="module")
def drift(courses):
    options = {"K": STREAM.K, "counts": (12, 40)}  # of 30 samples
    return join_drift(
        [measure_drift(m, heads, STREAM.tasks, SEEDS, **options) for m, heads in courses.items()]
    )


def of(drift, method):
    return drift.values[drift.methods.index(method)]


def test_known_heads_give_known_drift(drift):
    assert (drift.values.shape, drift.cones.shape) == ((5, 2, 3, 4), (5, 2, 3, 6))
    assert drift.tasks == ("task1", "task2", "task3")
    assert drift.kinds == ("classification", "classification", "retrieval")
    assert drift.anchors == (12, 12, 12)
    assert (of(drift, "still") == 0).all()
    assert np.abs(of(drift, "turned")).max() < 2e-6
    doubled = of(drift, "vanilla")
    assert doubled[..., 0].min() > 0.1
    assert doubled[..., 1:3].max() < 1e-6
    heard = of(drift, "audio")  # only the second task has audio
    assert (heard[:, [0, 2]] == 0).all()
    assert (heard[:, 1, [2, 3]] > 0.05).all()
    assert (drift.cones[1, ..., 2:4] == 0).all()


def test_every_entry_equals_numpy_in_float64(courses, drift):
    heads = courses["random"]

    def facts(task, heads, seed):
        times, points = [], []
        for m, x in zip((task.general, task.specific), fixed_anchors(task, 12), strict=True):
            x = np.asarray(x, np.float64)
            lifted = np.hstack([np.sqrt(10 + (x**2).sum(1, keepdims=True)), x])
            points.append(lifted @ heads[m][seed].astype(np.float64).T)
            times.append(np.sqrt(10 + (points[-1] ** 2).sum(1)))
        g, s = (y / np.linalg.norm(y, axis=1, keepdims=True) for y in points)
        inner = (points[0] * points[1]).sum(1) - times[0] * times[1]
        return times, (g @ g.T, s @ s.T), s @ g.T, np.sqrt(10) * np.arccosh(-inner / 10)

    for seed, (index, name) in itertools.product(range(2), enumerate(drift.tasks)):
        old, new = (facts(STREAM[name], heads[i], seed) for i in (index, -1))
        expected = [np.abs(np.array(b) - np.array(a)).mean() for a, b in zip(old, new, strict=True)]
        np.testing.assert_allclose(of(drift, "random")[seed, index], expected, rtol=1e-4)


def test_means_reductions_and_tests(drift):
    mean = drift.mean()
    np.testing.assert_allclose(mean[4, 1], drift.values[4, 1].mean(0))
    np.testing.assert_allclose(drift.reduction("random")[0], 1 - mean[0] / mean[4])
    assert (drift.reduction("random")[1] == 1).all()
    assert np.isnan(drift.reduction("still")[1]).all()
    for seed, of_seeds in ((None, [0, 1]), (5, [1])):
        gap = (drift.values[4] - drift.values[3])[of_seeds].mean(0)
        assert drift.compare("audio", "random", seed) == [wilcoxon(gap[:, i]) for i in range(4)]
    with pytest.raises(ValueError, match=r"method must be one of .*'ewc'"):
        drift.compare("ewc")
    with pytest.raises(ValueError, match="seed = 4"):
        drift.compare("still", seed=4)


def test_norms_are_pooled_by_modality(drift):
    assert sorted(drift.norms) == ["audio", "image", "text"]
    texts, images, sounds = (drift.norms[m] for m in ("text", "image", "audio"))
    assert texts.before.shape == texts.after.shape == (5, 2, 90)
    assert images.tasks.tolist() == [0] * 30 + [2] * 30
    assert sounds.tasks.tolist() == [1] * 30
    np.testing.assert_allclose(texts.contraction()[:4], [[2, 2], [1, 1], [1, 1], [1, 1]], rtol=1e-6)
    np.testing.assert_allclose(texts.task_contraction(1)[0], 2, rtol=1e-6)
    assert np.isnan(sounds.task_contraction(0)).all()
    own = np.linalg.norm(np.asarray(fixed_anchors(STREAM["task2"], 30).specific, float), axis=1)
    np.testing.assert_allclose(sounds.after[0, 1], 2 * own, rtol=1e-6)


def test_a_stopped_seed_is_nan_alone(courses, drift):
    broken = [{m: W.copy() for m, W in heads.items()} for heads in courses["random"]]
    broken[-1]["text"][0] = np.nan
    found = measure_drift("random", broken, STREAM.tasks, SEEDS, K=STREAM.K, counts=(12, 40))
    for name in ("values", "cones"):
        assert np.isnan(getattr(found, name)[0, 0]).all()
        np.testing.assert_array_equal(getattr(found, name)[0, 1], getattr(drift, name)[4, 1])
    assert np.isnan(found.norms["image"].ratios[0, 0]).all()


def test_what_cannot_be_measured_or_compared_is_refused(courses, drift):
    heads, tasks = courses["still"], STREAM.tasks
    other = measure_drift("other", heads, tasks, (3, 4), counts=(12, 40))
    with pytest.raises(ValueError, match=r"one set of seeds.*\(3, 5\).*\(3, 4\) for \('other'"):
        join_drift([drift, other])
    for few_heads, few_tasks in ((heads[:1], tasks[:1]), (heads[:3], tasks)):
        with pytest.raises(ValueError, match="at least two tasks and the heads after each"):
            measure_drift("still", few_heads, few_tasks, SEEDS)
