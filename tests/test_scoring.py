"""Scores of all seeds: padded or not, kept on the device or sent."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from hmcl_jax.continual.scoring import Evaluator
from hmcl_jax.data.synthetic import synthetic_stream
from hmcl_jax.evaluation import recall, top1
from hmcl_jax.head import apply_head

STORE = synthetic_stream(tasks=3, classes=4, dimension=8, train=8, test=40, retrieval_every=3)


@pytest.fixture
def heads(rng):
    noise = 0.3 * rng.normal(size=(2, 2, 8, 9)).astype(np.float32)
    return {m: jnp.eye(8, 9, 1)[None] + noise[i] for i, m in enumerate(("image", "text"))}


def test_padding_changes_nothing(heads):
    found = Evaluator(STORE.K).all(heads, list(STORE))
    for task, measures in zip(STORE, found, strict=True):
        general, specific, pairs = task.pairs("test")
        for seed in range(2):
            x, y = (
                apply_head(heads[m][seed], features, STORE.K)
                for m, features in ((task.general, general), (task.specific, specific))
            )
            if task.kind == "classification":
                expected = top1(x, y, pairs[:, 1], K=STORE.K)
            else:
                both = recall(x, y, pairs, ks=(5,), K=STORE.K)
                expected = np.mean([share for of_ks in both.values() for share in of_ks.values()])
            np.testing.assert_allclose(measures["score"][seed], expected, atol=1e-6)
    assert [len(measures) for measures in found] == [3, 3, 7]


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
