"""Anchors: matched, fixed, never twice."""

import dataclasses

import numpy as np
import pytest

from hmcl_jax.data.synthetic import synthetic_stream
from hmcl_jax.evaluation import fixed_anchors

STORE = synthetic_stream(tasks=2, classes=4, dimension=6, test=30, retrieval_every=2)


def rows(anchors, features):
    """Which feature each anchor is."""
    found = (anchors[:, None, :] == features[None, :, :]).all(-1)
    return found.argmax(1)


def test_samples_are_matched_with_the_prototype_of_their_class():
    task = STORE["task1"]
    anchors = fixed_anchors(task, 20)
    samples = rows(anchors.specific, task.arrays["test_features"])
    assert len(set(samples)) == 20
    texts = rows(anchors.general, task.arrays["prototypes"])
    np.testing.assert_array_equal(texts, task.arrays["test_labels"][samples])


def test_samples_are_matched_with_one_of_their_captions():
    task = STORE["task2"]
    # Two captions for every sample but the first, which has none.
    pairs = np.array([(i, (i + j) % 30) for i in range(1, 30) for j in (0, 7)])
    task = dataclasses.replace(task, arrays={**task.arrays, "test_pairs": pairs})
    anchors = fixed_anchors(task, 500)
    samples = rows(anchors.specific, task.arrays["test_specific"])
    texts = rows(anchors.general, task.arrays["test_general"])
    assert sorted(samples) == list(range(1, 30))
    assert set((texts - samples) % 30) == {0, 7}


def test_they_depend_on_the_name_of_the_task_alone():
    for task in STORE:
        many, few = fixed_anchors(task, 25), fixed_anchors(task, 10)
        for a, b in zip(many, few, strict=True):
            np.testing.assert_array_equal(a[:10], b)
        again = fixed_anchors(dataclasses.replace(task, classes=(), tree=()), 25)
        np.testing.assert_array_equal(again.specific, many.specific)
        other = fixed_anchors(dataclasses.replace(task, name="other"), 25)
        assert not np.array_equal(other.specific, many.specific)


def test_the_choice_never_changes():
    task = STORE["task1"]
    features = np.arange(30.0)[:, None] * np.ones((1, 6))
    task = dataclasses.replace(task, arrays={**task.arrays, "test_features": features})
    assert fixed_anchors(task, 5).specific[:, 0].tolist() == [4, 26, 6, 0, 14]
    with pytest.raises(ValueError, match="count must be at least 1, got count = 0"):
        fixed_anchors(task, 0)
