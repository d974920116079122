"""Scores of all seeds: tasks together and alone, kept on the device or sent."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from hmcl_jax.continual.scoring import Evaluator
from hmcl_jax.data.synthetic import synthetic_stream

STORE = synthetic_stream(tasks=3, classes=4, dimension=8, train=8, test=40, retrieval_every=3)


@pytest.fixture
def heads(rng):
    noise = 0.3 * rng.normal(size=(2, 2, 8, 9)).astype(np.float32)
    return {m: jnp.eye(8, 9, 1)[None] + noise[i] for i, m in enumerate(("image", "text"))}


def test_tasks_together_are_tasks_alone(heads):
    evaluator = Evaluator(STORE.K)
    together = evaluator.all(heads, list(STORE))
    assert [len(found) for found in together] == [3, 3, 7]
    for task, found in zip(STORE, together, strict=True):
        alone = Evaluator(STORE.K)(heads, task)
        assert found.keys() == alone.keys()
        for name, values in found.items():
            assert values.shape == (2,)
            np.testing.assert_array_equal(values, alone[name])
    assert len({float(found["score"][0]) for found in together}) > 1


def test_only_so_much_is_kept_on_the_device(heads):
    whole = Evaluator(STORE.K)
    expected = whole.all(heads, list(STORE))
    sizes = [
        sum(np.asarray(x).nbytes for x in jax.tree.leaves(whole._test(task))) for task in STORE
    ]
    for device_memory, kept in ((1e-9, 0), ((sizes[0] + sizes[1]) / 2**20, 2)):
        evaluator = Evaluator(STORE.K, device_memory)
        for _ in range(2):
            found = evaluator.all(heads, list(STORE))
            for one, other in zip(found, expected, strict=True):
                for name in other:
                    np.testing.assert_array_equal(one[name], other[name])
            assert len(evaluator._kept) == kept


def test_only_classes_are_predicted(heads):
    evaluator = Evaluator(STORE.K)
    predicted = evaluator.predictions(heads, STORE.tasks[0])
    assert predicted.shape == (2, STORE.tasks[0].size("test"))
    right = np.mean(predicted == STORE.tasks[0].arrays["test_labels"], axis=1)
    np.testing.assert_allclose(right, evaluator(heads, STORE.tasks[0])["top1"], atol=1e-6)
    with pytest.raises(ValueError, match="must be a classification task, got 'task3'"):
        evaluator.predictions(heads, STORE.tasks[2])
