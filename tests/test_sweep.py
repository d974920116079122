"""Sweeps: many settings in one program must be what single runs are."""

import numpy as np
import pytest

from hmcl_jax.continual import METHODS, ConfigError, Schedule, TrainConfig, run_stream, run_sweep
from hmcl_jax.data.synthetic import synthetic_stream

FAST = TrainConfig(classification=Schedule(3, 0.02), retrieval=Schedule(2, 0.02), batch=32)
PROTECTING = [{"variance": 0.5, "beta": 0.3}, {"variance": 0.95, "beta": 0.0}]
POINTS = {
    "hmcl_mr": PROTECTING,
    "hmcl_ca": PROTECTING,
    "hmcl_rotation": PROTECTING,
    "ewc": [{"coefficient": 0.0}, {"coefficient": 10.0}],
    "gem": [{"margin": 0.0}, {"margin": 4.0, "eps": 0.1}],
    "cflat": [{"power": 0.0}, {"power": 9.0, "rho": 0.02, "coefficient": 2.0}],
    "dns": [{"lambda_min": 0.01}, {"lambda_min": 5.0}],
    "derpp": [{"alpha": 0.0}, {"alpha": 90.0, "beta": 3.0}],
    "nullspace": [{"variance": 0.6, "min_rank": 1}, {"variance": 0.999, "min_rank": 1}],
}


@pytest.fixture(scope="module")
def stream():
    return synthetic_stream(tasks=2, classes=4, dimension=8, train=70, test=40, overlap=0.8)


def test_every_method_with_knobs_is_swept_here():
    assert set(POINTS) == {name for name, entry in METHODS.items() if entry.method.sweepable}
    for name, points in POINTS.items():
        assert set(METHODS[name].method.sweepable) <= {key for point in points for key in point}


def assert_alone(stream, method, point, seeds, found):
    """The result of a point is that of a run of its own."""
    alone = run_stream(stream, [method], seeds, FAST, settings={method: point})[method]
    assert (found.settings, found.seeds) == (alone.settings, alone.seeds)
    for modality, W in alone.heads.items():
        np.testing.assert_allclose(found.heads[modality], W, rtol=1e-5, atol=1e-6)
    np.testing.assert_allclose(found.losses, alone.losses, rtol=1e-5, atol=1e-6)
    assert found.details[0][0].keys() == alone.details[0][0].keys()


@pytest.mark.parametrize(
    "method", [pytest.param(m, marks=[pytest.mark.slow] * (m != "hmcl_rotation")) for m in POINTS]
)
def test_points_are_single_runs(stream, method):
    swept = run_sweep(stream, method, POINTS[method], [0, 3], FAST)
    for point, found in zip(POINTS[method], swept, strict=True):
        assert_alone(stream, method, point, [0, 3], found)
    heads = [np.concatenate([W.ravel() for W in found.heads.values()]) for found in swept]
    assert np.abs(heads[0] - heads[1]).max() > 1e-4  # the settings do something


@pytest.mark.slow
def test_points_that_differ_elsewhere_run_one_after_the_other(stream):
    points = [{"placement": "post"}, {"beta": 0.2}, {"placement": "post", "variance": 0.99}]
    events = []
    swept = run_sweep(stream, "hmcl_mr", points, [1], FAST, listener=events.append)
    assert [event.kind for event in events].count("method") == 2
    for point, found in zip(points, swept, strict=True):
        assert_alone(stream, "hmcl_mr", point, [1], found)


@pytest.mark.slow
def test_a_point_that_diverges_leaves_the_others_alone(stream):
    points = [{"alpha": 0.1}, {"alpha": 3e38}, {"alpha": 0.1}]
    first, diverged, third = run_sweep(stream, "derpp", points, [0], FAST)
    assert np.isnan(diverged.scores[0, -1]).all()
    for found in (first, third):
        assert_alone(stream, "derpp", points[0], [0], found)


def test_bad_points_are_refused_before_training(stream):
    with pytest.raises(ConfigError, match="points must be at least one"):
        run_sweep(stream, "hmcl_mr", [], [0], FAST)
    with pytest.raises(ConfigError, match=r"beta must be in \[0, 1\), got beta = 1.5"):
        run_sweep(stream, "hmcl_mr", [{"beta": 0.1}, {"beta": 1.5}], [0], FAST)
    with pytest.raises(ConfigError, match="methods must be among"):
        run_sweep(stream, "hmcl", [{}], [0], FAST)
