"""What a run logs of the steps of HMCL, against figures that are computed apart from it."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

import hmcl_jax
from hmcl_jax.continual import Carried, Setting, TrainConfig, learn_task, make_method, run_stream
from hmcl_jax.continual.config import Schedule
from hmcl_jax.data.synthetic import synthetic_stream

STORE = synthetic_stream(tasks=3, dimension=12, seed=3)
ONE = TrainConfig(batch=64, classification=Schedule(1, 1e-2), retrieval=Schedule(1, 1e-2))


def second_task(settings):
    """Heads at the start of the second task, and what its training gives; two seeds."""
    method = make_method("hmcl_ca", settings)
    setting = Setting(STORE.K, STORE.tau, (0, 1), ONE)
    heads = hmcl_jax.identity_heads(["image", "text"], dim=12)
    heads = jax.tree.map(lambda W: jnp.stack([W, 1.1 * W]), heads)
    carried = Carried(heads, None, method.init(heads))
    for index in range(2):
        start = carried.heads
        carried, learned = learn_task(method, carried, [(STORE.tasks[index], index)], setting)
    return start, carried, learned.metrics


def protection_of(carried):
    return optax.tree.get(carried.opt_state, "protection")


def one(tree, seed):
    return jax.tree.map(lambda x: x[seed], tree)


@pytest.mark.parametrize("variant", [pytest.param("mr", marks=pytest.mark.slow), "ca", "rotation"])
def test_a_step_of_a_task_is_measured_as_it_was_taken(variant):
    beta = 0.25
    start, carried, metrics = second_task({"variant": variant, "beta": beta})
    for seed in range(2):
        protection = one(protection_of(carried), seed)
        taken = jax.tree.map(
            lambda now, then: (now - then) / (1 - beta), one(carried.heads, seed), one(start, seed)
        )
        # The first step of Adam is the sign of the gradient; corrected, its free part is left.
        # What was taken must have the logged defect, and be as long as logged.
        defect = hmcl_jax.lorentz_defect(taken, protection)
        logged = one(metrics, seed)
        assert abs(float(logged["defect_after"][0]) - float(defect) ** 0.5) < 2e-3
        np.testing.assert_allclose(logged["step"][0], optax.tree.norm(taken), rtol=1e-4)
        distance = (1 - beta) * optax.tree.norm(taken)
        np.testing.assert_allclose(logged["anchor_distance"][0], distance, rtol=1e-4)
        if variant != "rotation":
            assert float(logged["defect_after"][0]) < 1e-3 * float(logged["defect_before"][0])
        assert float(logged["defect_before"][0]) > 1e-3
    bound = (1 - beta) / beta * metrics["step"]
    np.testing.assert_allclose(metrics["anchor_bound"], bound, rtol=1e-6)
    for modality, rank in protection_of(carried).rank.items():
        np.testing.assert_array_equal(metrics[f"rank_{modality}"], rank)
        assert (np.asarray(rank) > 0).all()


def test_before_correction_it_is_the_step_of_adamw():
    """Without protection nothing is corrected, so the step then is AdamW's own."""
    start, carried, metrics = second_task({"variant": "mr", "beta": 0.0})
    method = make_method("vanilla", {})
    plain, _ = learn_task(
        method,
        Carried(start, None, method.init(start)),
        [(STORE.tasks[1], 1)],
        Setting(STORE.K, STORE.tau, (0, 1), ONE),
    )
    for seed in range(2):
        protection = one(protection_of(carried), seed)
        step = jax.tree.map(jnp.subtract, one(plain.heads, seed), one(start, seed))
        expected = hmcl_jax.lorentz_defect(step, protection) ** 0.5
        np.testing.assert_allclose(metrics["defect_before"][seed, 0], expected, rtol=1e-3)
        omega = hmcl_jax.generator(hmcl_jax.shared_rotation(step, protection), protection)
        angles = np.linalg.norm(omega) / np.sqrt(2)  # every angle is an eigenvalue twice
        np.testing.assert_allclose(metrics["rotation"][seed, 0], angles, rtol=1e-3)
    assert not {"anchor_distance", "anchor_bound"} & metrics.keys()  # beta = 0 has no anchor


def test_single_minibatches_give_no_bound():
    """Only one step of an epoch is measured, and any other may be longer."""
    store = synthetic_stream(tasks=1, classes=2, dimension=4, train=8, test=4)
    config = dataclasses.replace(ONE, batch=8, step="minibatch")
    setting = Setting(store.K, store.tau, (0,), config)
    _, learned = learn_task(make_method("hmcl_mr"), Carried(), [(store.tasks[0], 0)], setting)
    assert "anchor_distance" in learned.metrics
    assert not {"step", "anchor_bound"} & learned.metrics.keys()


def test_projecting_before_adamw_leaves_a_defect():
    metrics = second_task({"variant": "mr", "placement": "pre"})[2]
    after, before = (metrics[f"defect_{when}"] for when in ("after", "before"))
    assert (after > 0.05 * before).all()
    assert (before > 0).all()
    assert "anchor_distance" not in metrics


@pytest.mark.slow
def test_every_epoch_is_logged_however_seeds_and_features_are_laid_out():
    short = {"classification": Schedule(3, 5e-4), "retrieval": Schedule(3, 5e-5)}
    config = TrainConfig(batch=64, seed_axis="vmap", **short)
    other = dataclasses.replace(config, device_memory=1e-3, seed_axis="loop")
    base, again = (run_stream(STORE, ["hmcl_rotation"], [0, 1], c) for c in (config, other))
    first, _, last = logs = base["hmcl_rotation"].logs
    for here, there in zip(logs, again["hmcl_rotation"].logs, strict=True):
        assert sorted(here) == sorted(there)
        for name in here:
            np.testing.assert_allclose(here[name], there[name], rtol=2e-3, atol=1e-4)
    assert np.shape(last["defect_before"]) == (2, 3)
    assert not np.any(first["defect_before"])
    assert np.all(np.array(last["defect_before"]) > 0)
    assert (np.array(last["anchor_distance"]) <= np.array(last["anchor_bound"])).all()
