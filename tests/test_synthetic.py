"""The synthetic stream: valid, reproducible, and its knobs do what they say."""

import numpy as np
import pytest

from hmcl_jax import lorentz
from hmcl_jax.continual import Schedule, TrainConfig, run_stream
from hmcl_jax.data.synthetic import synthetic_stream


def test_streams_are_valid_and_reproducible():
    knobs = {"tasks": 4, "modalities": 3, "retrieval_every": 2, "train": 40, "test": 20, "depth": 3}
    stream, again = synthetic_stream(**knobs), synthetic_stream(**knobs)
    stream.validate()
    assert [task.kind for task in stream] == ["classification", "retrieval"] * 2
    assert stream.modalities == ("audio", "image", "text")
    assert stream.fingerprint == again.fingerprint != synthetic_stream(seed=1).fingerprint
    for task, same in zip(stream, again, strict=True):
        for name, array in task.arrays.items():
            np.testing.assert_array_equal(array, same.arrays[name])
    tree = dict(stream["task1"].tree)
    depths = []
    for name in stream["task1"].classes:
        depth = 0
        while name in tree:
            name, depth = tree[name], depth + 1
        depths.append(depth)
    assert set(depths) == {3}


def test_texts_are_nearer_the_origin_and_the_gap_opens():
    narrow, wide = (synthetic_stream(tasks=1, gap=gap)["task1"].arrays for gap in (0.0, 1.5))
    texts, samples = (lorentz.radius(narrow[a]) for a in ("prototypes", "train_features"))
    assert texts.mean() < samples.mean()
    shift = [np.linalg.norm(a["train_features"].mean(0)) for a in (narrow, wide)]
    assert shift[1] > shift[0] + 0.5


@pytest.mark.parametrize(
    ("knob", "value"), [("tasks", 0), ("overlap", 1.5), ("modalities", 9), ("classes", 1)]
)
def test_bad_knobs_are_named(knob, value):
    with pytest.raises(ValueError, match=f"{knob} must .*{value}"):
        synthetic_stream(**{knob: value})


@pytest.mark.slow
def test_forgetting_grows_with_overlap_and_falls_with_dimension():
    def measured(**knobs):
        """Mean drop of accuracy of plain fine-tuning, and the accuracy just after a task."""
        config = TrainConfig(Schedule(20, 6e-3), batch=256, entailment_weight=0.0)
        runs = []
        for seed in range(3):
            stream = synthetic_stream(tasks=4, seed=seed, **knobs)
            (scores,) = run_stream(stream, ["vanilla"], [seed], config)["vanilla"].scores
            own = np.diag(scores)
            runs.append([(own - scores[-1])[:-1].mean(), own.mean()])
        return np.mean(runs, axis=0)

    by_overlap = [measured(dimension=48, overlap=overlap) for overlap in (0.0, 0.5, 1.0)]
    by_dimension = [measured(dimension=dimension, overlap=0.3) for dimension in (16, 48, 144)]
    assert by_overlap[0][0] < by_overlap[1][0] < by_overlap[2][0]
    assert by_dimension[0][0] > by_dimension[1][0] > by_dimension[2][0]
    assert min(own for _, own in by_overlap + by_dimension) > 0.5
