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


def anchors(rng, dtype, n=20, d=6, leading=()):
    """Texts nearer to the origin than samples, several of the same text."""
    texts = rng.normal(size=(*leading, n, d))
    texts[..., n // 2 :, :] = texts[..., : n - n // 2, :]
    samples = 2 * rng.normal(size=(*leading, n, d)) + 1
    return Anchors(jnp.asarray(texts, dtype), jnp.asarray(samples, dtype))


def rotation(rng, dtype, d=6):
    return jnp.asarray(np.linalg.qr(rng.normal(size=(d, d)))[0], dtype)


def moved(before, general=None, specific=None):
    """Both modalities, each times a matrix or a factor."""

    def move(x, by):
        if by is None:
            return x
        return jnp.matmul(x, by, precision="highest") if by.ndim == 2 and len(by) == 6 else x * by

    return Anchors(move(before.general, general), move(before.specific, specific))


def rounding(dtype):
    return 2e-6 if dtype == jnp.float32 else 1e-14


def measures(before, after, K=K):
    return dict(zip(MEASURES, np.asarray(COMPILED(before, after, K)), strict=True))


def cones(before, after, kappa=0.1):
    return dict(zip(CONES, np.asarray(jax.jit(cone_changes)(before, after, K, kappa)), strict=True))


def test_all_measures_of_an_example_computed_by_hand(dtype):
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


def test_nothing_drifts_under_a_shared_rotation(rng, dtype):
    before, turn = anchors(rng, dtype), rotation(rng, dtype)
    still = Anchors(before.general + 0, before.specific + 0)
    assert set(measures(before, still).values()) == {0}
    assert max(measures(before, moved(before, turn, turn)).values()) < rounding(dtype)


@pytest.mark.parametrize("side", Anchors._fields)
def test_a_rotation_of_one_modality_shows_between_the_two_only(rng, dtype, side):
    before, turn = anchors(rng, dtype), rotation(rng, dtype)
    found = measures(before, moved(before, **{side: turn}))
    assert max(found["radial"], found["angular"]) < rounding(dtype)
    assert min(found["cross_modal"], found["paired_distance"]) > 0.1


def test_a_radial_scaling_is_no_angular_drift(rng, dtype):
    before = anchors(rng, dtype)
    factor = jnp.asarray(rng.uniform(1.2, 2, size=(20, 1)), dtype)
    for after in (moved(before, factor, factor), moved(before, general=factor)):
        found = measures(before, after)
        assert max(found["angular"], found["cross_modal"]) < rounding(dtype)
        assert min(found["radial"], found["paired_distance"]) > 0.1


def test_points_at_the_origin_have_cosine_0():
    zero, one = jnp.zeros((2, 3)), jnp.ones((2, 3))
    still = measures(Anchors(zero, one), Anchors(zero, one))
    assert still["angular"] == still["cross_modal"] == 0
    found = measures(Anchors(zero, one), Anchors(one, one))
    np.testing.assert_allclose([found["angular"], found["cross_modal"]], [0.5, 1])


def test_cones_of_an_example_computed_by_hand(dtype):
    # Half aperture at (2, 0): arcsin(2 * 0.1 * sqrt(10) / 2).
    texts = jnp.array([[2, 0]] * 4, dtype)
    inside, outside = [3, 0], [-3, 0]  # exterior angles 0 and pi
    before = Anchors(texts, jnp.array([inside, inside, outside, outside], dtype))
    after = Anchors(texts, jnp.array([outside, inside, inside, outside], dtype))
    after = Anchors(*(x.at[1].set(before.specific[1]) for x in after))  # its own apex: inside
    found = cones(before, after)
    aperture = np.arcsin(0.1 * np.sqrt(K))
    last = np.arcsin(0.2 * np.sqrt(K) / 3)
    assert [found[name] for name in list(CONES)[:4]] == [0.5, 0.5, 0.25, 0.25]
    close = {"rtol": 10 * jnp.finfo(dtype).eps}
    np.testing.assert_allclose(found["excess_before"], np.pi / 2 - aperture, **close)
    np.testing.assert_allclose(
        found["excess_after"], np.pi / 2 - (3 * aperture + last) / 4, **close
    )


def test_cones_agree_with_entailment_and_turn_with_all(rng, x64):
    before, after = anchors(rng, "float64", n=200), anchors(rng, "float64", n=200)
    found = cones(before, after, 0.4)
    was, is_ = (np.asarray(entailment.entails(*x, K, 0.4)) for x in (before, after))
    assert 0 < was.mean() < 1
    np.testing.assert_allclose(found["outside_before"], 1 - was.mean())
    np.testing.assert_allclose(found["outside_after"], 1 - is_.mean())
    np.testing.assert_allclose(found["lost"], (was & ~is_).mean())
    np.testing.assert_allclose(found["gained"], (~was & is_).mean())
    turn = rotation(rng, "float64")
    turned = cones(before, moved(before, turn, turn), 0.4)
    assert turned["lost"] == turned["gained"] == 0
    np.testing.assert_allclose(turned["excess_after"], turned["excess_before"], rtol=1e-12)
    same = cones(before, before, 0.4)
    assert same["excess_after"] == same["excess_before"]


@pytest.mark.parametrize("function", [drift_measures, cone_changes])
def test_leading_axes_are_kept_under_jit_with_strict_dtypes(rng, dtype, strict_dtypes, function):
    before, after = (anchors(rng, dtype, leading=(2, 3)) for _ in range(2))
    compiled = jax.jit(function)
    found = compiled(before, after)
    assert found.dtype == dtype
    assert found.shape == (2, 3, len(MEASURES if function is drift_measures else CONES))
    for place in np.ndindex(2, 3):
        one = compiled(*(Anchors(*(x[place] for x in y)) for y in (before, after)))
        np.testing.assert_allclose(found[place], one, rtol=1e-5, atol=1e-6)


def test_anchors_that_do_not_match_are_refused():
    two, three = np.ones((2, 4)), np.ones((3, 4))
    with pytest.raises(ValueError, match=r"one shape .*got \(2, 4\), .*\(3, 4\)"):
        drift_measures(Anchors(two, two), Anchors(two, three))
    with pytest.raises(ValueError, match="with n >= 1"):
        cone_changes(*[Anchors(np.ones((0, 4)), np.ones((0, 4)))] * 2)
    with pytest.raises(TypeError, match=r"after\.specific must hold real numbers"):
        drift_measures(Anchors(two, two), Anchors(two, two > 0))


# Streams

STREAM = synthetic_stream(
    tasks=4, classes=4, dimension=6, test=30, modalities=3, retrieval_every=3, overlap=0.7
)
SEEDS = (3, 5)


def course(last=None):
    """Heads after each of the four tasks; `last` maps the heads of the third to the fourth."""
    eye = np.repeat(np.eye(6, 7, k=1, dtype=np.float32)[None], len(SEEDS), axis=0)
    steps = [{"image": eye, "text": eye}] + [{"audio": eye, "image": eye, "text": eye}] * 3
    return steps if last is None else [*steps[:3], {m: last(m, W) for m, W in steps[2].items()}]


@pytest.fixture(scope="module")
def courses():
    rng = np.random.default_rng(0)
    turn = np.linalg.qr(rng.normal(size=(6, 6)))[0]
    return {
        "vanilla": course(lambda m, W: 2 * W),
        "still": course(),
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
    assert drift.values.shape == (5, 2, 3, 4)
    assert drift.tasks == ("task1", "task2", "task3")
    assert drift.kinds == ("classification", "classification", "retrieval")
    assert drift.anchors == (12, 12, 12)
    assert (of(drift, "still") == 0).all()
    assert np.abs(of(drift, "turned")).max() < 2e-6
    doubled = dict(zip(MEASURES, np.moveaxis(of(drift, "vanilla"), -1, 0), strict=True))
    assert doubled["radial"].min() > 0.1
    assert max(doubled["angular"].max(), doubled["cross_modal"].max()) < 1e-6
    # Only the second task has audio.
    heard = of(drift, "audio")
    assert (heard[:, [0, 2]] == 0).all()
    assert (heard[:, 1, [2, 3]] > 0.05).all()
    assert heard[:, 1, [0, 1]].max() < 2e-6
    still = drift.cones[1]
    assert drift.cones.shape == (5, 2, 3, len(CONES))
    assert (still[..., 2:4] == 0).all()
    np.testing.assert_array_equal(still[..., [0, 4]], still[..., [1, 5]])


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
    gap = drift.values.mean(1)[4] - drift.values.mean(1)[3]
    assert drift.compare("audio", "random") == [wilcoxon(gap[:, i]) for i in range(4)]
    gap = drift.values[4, 1] - drift.values[3, 1]
    assert drift.compare("audio", "random", seed=5) == [wilcoxon(gap[:, i]) for i in range(4)]
    with pytest.raises(ValueError, match=r"method must be one of .*'ewc'"):
        drift.compare("ewc")
    with pytest.raises(ValueError, match=r"seed must be one of \[3, 5\], got seed = 4"):
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
    np.testing.assert_allclose(sounds.before[0, 1], own, rtol=1e-6)
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
    with pytest.raises(ValueError, match=r"one set of seeds.*\[3, 5\].*\[3, 4\] for other"):
        join_drift([drift, other])
    for few_heads, few_tasks in ((heads[:1], tasks[:1]), (heads[:3], tasks)):
        with pytest.raises(ValueError, match="at least two tasks and the heads after each"):
            measure_drift("still", few_heads, few_tasks, SEEDS)
    with pytest.raises(ValueError, match=r"counts\[0\] must be at least 1"):
        measure_drift("still", heads, tasks, SEEDS, counts=(0, 5))
