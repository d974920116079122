"""Drift of whole runs: heads of our choice with known drift, and runs that were trained."""

import numpy as np
import pytest
from saved_runs import heads_of, save_run

from hmcl_jax.continual import RunError, Schedule, TrainConfig, read_runs, run_stream
from hmcl_jax.data.synthetic import synthetic_stream
from hmcl_jax.evaluation import fixed_anchors, measure_drift, wilcoxon
from hmcl_jax.evaluation.drift import CONES, MEASURES
from hmcl_jax.report.drift import cone_table, drift_table, drift_tests_table, norm_table

STORE = synthetic_stream(
    tasks=4, classes=4, dimension=6, test=30, modalities=3, retrieval_every=3, overlap=0.7
)
SEEDS = (3, 5)


def spread(heads):
    """The same head for every seed."""
    return {m: np.repeat(W[None], len(SEEDS), axis=0).astype(np.float32) for m, W in heads.items()}


def course(last=None):
    """Heads after each of the four tasks; `last` maps the heads of the third to the fourth."""
    eye = np.eye(6, 7, k=1)
    steps = [{"image": eye, "text": eye}] + [{"audio": eye, "image": eye, "text": eye}] * 3
    if last is not None:
        steps = [*steps[:3], {m: last(m, W) for m, W in steps[2].items()}]
    return [spread(heads) for heads in steps]


@pytest.fixture(scope="module")
def found(tmp_path_factory):
    out = tmp_path_factory.mktemp("out")
    rng = np.random.default_rng(0)
    turn = np.linalg.qr(rng.normal(size=(6, 6)))[0]
    courses = {
        "vanilla": course(lambda m, W: 2 * W),
        "still": course(),
        "turned": course(lambda m, W: turn @ W),
        "audio": course(lambda m, W: turn @ W if m == "audio" else W),
        "random": [heads_of(STORE, SEEDS, n, rng) for n in range(1, 5)],
    }
    for method, heads in courses.items():
        save_run(out, STORE, method, SEEDS, heads)
    runs = read_runs(out, STORE, list(courses))
    return runs, measure_drift(runs, STORE, anchors=12, norm_anchors=40)  # of 30 samples


def of(drift, method):
    return drift.values[drift.methods.index(method)]


def test_known_heads_give_known_drift(found):
    _, drift = found
    assert drift.values.shape == (5, 2, 3, 4)
    assert drift.tasks == ("task1", "task2", "task3")
    assert drift.kinds == ("classification", "classification", "retrieval")
    assert drift.anchors == (12, 12, 12)
    assert (of(drift, "still") == 0).all()
    assert np.abs(of(drift, "turned")).max() < 2e-6
    doubled = dict(zip(MEASURES, np.moveaxis(of(drift, "vanilla"), -1, 0), strict=True))
    assert doubled["radial"].min() > 0.1
    assert max(doubled["angular"].max(), doubled["cross_modal"].max()) < 1e-6
    # Only the second task hears.
    heard = of(drift, "audio")
    assert (heard[:, [0, 2]] == 0).all()
    assert (heard[:, 1, [2, 3]] > 0.05).all()
    assert heard[:, 1, [0, 1]].max() < 2e-6


def test_every_entry_equals_numpy_in_float64(found):
    runs, drift = found
    run = runs["random"]
    for seed in range(2):
        for index, name in enumerate(drift.tasks):
            task = STORE[name]
            anchors = fixed_anchors(task, 12)

            def points(heads, task=task, anchors=anchors, seed=seed):
                sides = []
                for m, x in ((task.general, anchors.general), (task.specific, anchors.specific)):
                    x = np.asarray(x, np.float64)
                    lifted = np.hstack([np.sqrt(10 + (x**2).sum(1, keepdims=True)), x])
                    sides.append(lifted @ heads[m][seed].astype(np.float64).T)
                return sides

            def facts(sides):
                times = [np.sqrt(10 + (y**2).sum(1)) for y in sides]
                g, s = (y / np.linalg.norm(y, axis=1, keepdims=True) for y in sides)
                inner = (sides[0] * sides[1]).sum(1) - times[0] * times[1]
                return times, (g @ g.T, s @ s.T), s @ g.T, np.sqrt(10) * np.arccosh(-inner / 10)

            old, new = facts(points(run.heads(index + 1))), facts(points(run.heads()))
            expected = [
                np.abs(np.array(b) - np.array(a)).mean() for a, b in zip(old, new, strict=True)
            ]
            np.testing.assert_allclose(of(drift, "random")[seed, index], expected, rtol=1e-4)


def test_means_reductions_and_tests(found):
    _, drift = found
    mean = drift.mean()
    np.testing.assert_allclose(mean[4, 1], drift.values[4, 1].mean(0))
    np.testing.assert_allclose(drift.reduction("random")[0], 1 - mean[0] / mean[4])
    assert (drift.reduction("random")[1] == 1).all()
    assert np.isnan(drift.reduction("still")[1]).all()
    tests = drift.compare("audio", "random")
    gap = drift.values.mean(1)[4] - drift.values.mean(1)[3]
    assert tests == [wilcoxon(gap[:, i]) for i in range(4)]
    gap = drift.values[4, 1] - drift.values[3, 1]
    assert drift.compare("audio", "random", seed=5) == [wilcoxon(gap[:, i]) for i in range(4)]
    with pytest.raises(ValueError, match=r"method must be one of vanilla, .*got 'ewc'"):
        drift.compare("ewc")
    with pytest.raises(ValueError, match=r"seed must be one of \[3, 5\], got seed = 4"):
        drift.compare("still", seed=4)


def test_norms_are_pooled_by_modality(found):
    _, drift = found
    assert sorted(drift.norms) == ["audio", "image", "text"]
    texts, images, sounds = (drift.norms[m] for m in ("text", "image", "audio"))
    assert texts.before.shape == texts.after.shape == (5, 2, 90)
    assert images.tasks.tolist() == [0] * 30 + [2] * 30
    assert sounds.tasks.tolist() == [1] * 30
    np.testing.assert_allclose(texts.contraction()[:4], [[2, 2], [1, 1], [1, 1], [1, 1]], rtol=1e-6)
    np.testing.assert_allclose(texts.task_contraction(1)[0], 2, rtol=1e-6)
    assert np.isnan(sounds.task_contraction(0)).all()
    own = np.linalg.norm(np.asarray(fixed_anchors(STORE["task2"], 30).specific, float), axis=1)
    np.testing.assert_allclose(sounds.before[0, 1], own, rtol=1e-6)
    np.testing.assert_allclose(sounds.after[0, 1], 2 * own, rtol=1e-6)
    np.testing.assert_array_equal(
        texts.contraction()[4], np.median(texts.after[4] / texts.before[4], axis=-1)
    )


def test_cones_of_known_heads(found):
    _, drift = found
    assert drift.cones.shape == (5, 2, 3, len(CONES))
    still = drift.cones[1]
    assert (still[..., 2:4] == 0).all()
    np.testing.assert_array_equal(still[..., 0], still[..., 1])
    np.testing.assert_array_equal(still[..., 4], still[..., 5])


def test_tables(found):
    _, drift = found
    lines = drift_table(drift).splitlines()
    assert lines[0].split(" | ")[0] == "| Method "
    assert len({len(line) for line in lines}) == 1
    assert len(lines) == 2 + 5
    mean = drift.mean()[0, :, 0]
    assert f"{mean.mean():.4f} ± {mean.std(ddof=1):.4f} |" in lines[2]
    assert "0.0000 ± 0.0000 (-100 %)" in lines[3]
    assert "(" not in drift_table(drift, against="ewc")
    tests = drift_tests_table(drift, "random").splitlines()
    assert len(tests) == 2 + 4
    assert "| 1 (3/3) |" in tests[3]  # 4 * 2 / 2**3
    assert "°" in cone_table(drift)
    assert "2.0000 ± 0.0000 (0)" in norm_table(drift)


def test_tests_shown_are_those_of_the_seed(found):
    _, drift = found
    assert drift_tests_table(drift, "random", seed=3).count("(3/3)") >= 4


def test_runs_that_cannot_be_compared_are_refused(found, tmp_path, rng):
    runs, _ = found
    save_run(tmp_path, STORE, "other", (3,), [heads_of(STORE, (3,), 1, rng)])
    other = read_runs(tmp_path, STORE)
    with pytest.raises(ValueError, match=r"one seeds .*\[3\] for other and \[3, 5\] for vanilla"):
        measure_drift({**runs, **other}, STORE)
    with pytest.raises(RunError, match=r"Step 4 of other is not there: 1 of 4 .*--resume"):
        measure_drift(other, STORE)
    with pytest.raises(ValueError, match="at least one run"):
        measure_drift({}, STORE)
    single = synthetic_stream(tasks=1, dimension=6)
    save_run(tmp_path / "one", single, "vanilla", (3,), [heads_of(single, (3,), 1, rng)])
    with pytest.raises(ValueError, match=r"tasks that others follow, got the stream \['task1'\]"):
        measure_drift(read_runs(tmp_path / "one", single), single)
    with pytest.raises(ValueError, match="anchors must be at least 1"):
        measure_drift(runs, STORE, anchors=0)


def test_a_trained_run(tmp_path):
    """Heads on disk are those of the run, before and after; what is trained drifts."""
    store = synthetic_stream(tasks=3, classes=4, dimension=8, train=70, test=40)
    config = TrainConfig(classification=Schedule(3, 0.02), batch=32, seed_axis="map")
    trained = run_stream(store, ["vanilla"], [0, 7], config, out=tmp_path)["vanilla"].heads
    run = read_runs(tmp_path, store)["vanilla"]
    first = run_stream(store, ["vanilla"], [0, 7], config, order=["task1"])["vanilla"].heads
    for finished, heads in ((1, first), (3, trained)):
        found = run.heads(finished)
        assert found.keys() == heads.keys()
        for modality, W in heads.items():
            np.testing.assert_array_equal(found[modality], W)
    drift = measure_drift({"vanilla": run}, store)
    assert drift.anchors == (40, 40)  # all there are
    assert np.isfinite(drift.values).all()
    assert (drift.values > 0).all()
