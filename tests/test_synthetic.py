"""The synthetic stream: valid, reproducible, and its knobs do what they say."""

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

import hmcl_jax
from hmcl_jax import apply_head, lorentz, objective
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


def forgetting(stream, steps=60):
    """Mean drop of accuracy of plain fine-tuning, task after task."""
    tx = optax.adamw(2e-3, weight_decay=0.0)

    def accuracy(params, task):
        text = apply_head(params["text"], task.arrays["prototypes"])
        image = apply_head(params["image"], task.arrays["test_features"])
        found = jnp.argmin(lorentz.pairwise_distance(text, image), axis=0)
        return float((found == task.arrays["test_labels"]).mean())

    @jax.jit
    def fit(params, prototypes, features, labels):
        def step(carry, _):
            params, state = carry

            def loss(p):
                text, image = apply_head(p["text"], prototypes), apply_head(p["image"], features)
                return objective.prototype_loss(text, image, labels, tau=0.1)

            updates, state = tx.update(jax.grad(loss)(params), state, params)
            return (optax.apply_updates(params, updates), state), None

        return jax.lax.scan(step, (params, tx.init(params)), None, length=steps)[0][0]

    params = hmcl_jax.identity_heads(["image", "text"], stream.dimension)
    own = []
    for task in stream:
        arrays = task.arrays
        labels = arrays["train_labels"].astype(np.int32)
        params = fit(params, arrays["prototypes"], arrays["train_features"], labels)
        own.append(accuracy(params, task))
    final = [accuracy(params, task) for task in stream]
    return np.mean(np.array(own[:-1]) - np.array(final[:-1])), np.mean(own)


@pytest.mark.slow
def test_forgetting_grows_with_overlap_and_falls_with_dimension():
    def measured(**knobs):
        runs = [forgetting(synthetic_stream(tasks=4, seed=seed, **knobs)) for seed in range(3)]
        return np.mean(runs, axis=0)

    by_overlap = [measured(dimension=48, overlap=overlap) for overlap in (0.0, 0.5, 1.0)]
    by_dimension = [measured(dimension=dimension, overlap=0.3) for dimension in (16, 48, 144)]
    assert by_overlap[0][0] < by_overlap[1][0] < by_overlap[2][0]
    assert by_dimension[0][0] > by_dimension[1][0] > by_dimension[2][0]
    assert min(own for _, own in by_overlap + by_dimension) > 0.6
