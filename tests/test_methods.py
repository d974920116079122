"""What every method must keep to, whatever it does: the same stream, engine and promises."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import monitoring
from task_ends import DIM, K, heads, spec, task_end

from hmcl_jax import apply_head
from hmcl_jax.continual import METHODS, Schedule, TrainConfig, make_method, run_stream
from hmcl_jax.continual.method import MethodState, Minibatch
from hmcl_jax.data.store import Store
from hmcl_jax.data.synthetic import synthetic_stream
from hmcl_jax.evaluation import is_complete

FAST = TrainConfig(
    classification=Schedule(3, 0.02), retrieval=Schedule(2, 0.02), batch=32, seed_axis="map"
)
SEEDS = (0, 7)
COMPILED = []


@pytest.fixture(scope="module", autouse=True)
def count_compilations():
    def listen(event: str, seconds: float, **_) -> None:
        if event == "/jax/core/compile/backend_compile_duration":
            COMPILED.append(seconds)

    monitoring.register_event_duration_secs_listener(listen)
    yield
    monitoring.unregister_event_duration_listener(listen)


def cut(task, name, classes, samples):
    """A task of a few classes, and of a few samples for training and for testing."""
    arrays = dict(task.arrays)
    arrays["prototypes"] = arrays["prototypes"][:classes]
    for split in ("train", "test"):
        arrays[f"{split}_features"] = arrays[f"{split}_features"][:samples]
        arrays[f"{split}_labels"] = np.arange(samples, dtype=np.int32) % classes
    named = task.classes[:classes]
    return dataclasses.replace(task, name=name, arrays=arrays, classes=named, tree=())


@pytest.fixture(scope="module")
def stream() -> Store:
    """Classification and retrieval, among them tasks of one class and of one sample."""
    store = synthetic_stream(
        tasks=4, classes=4, dimension=8, train=70, test=40, overlap=0.8, retrieval_every=2
    )
    first, second, third, fourth = store.tasks
    tiny = cut(third, "one-sample", 1, 1), cut(third, "one-class", 1, 30)
    tasks = (first, *tiny, second, third, fourth)
    names = tuple(task.name for task in tasks)
    return dataclasses.replace(store, tasks=tasks, orders={"canonical": names})


def run(store, method, seeds=SEEDS, **options):
    """A run with a small memory, whose programs compile fast."""
    # Of 7 slots the fourth and all later tasks get one each, so no shape changes.
    small = hasattr(METHODS[method].method, "memory")
    settings = {method: {"memory": 7} if small else {}}
    return run_stream(store, [method], seeds, FAST, settings=settings, **options)[method]


class Stop(Exception):
    pass


ALWAYS = ("gem", "hmcl_rotation")


@pytest.fixture(
    scope="module",
    params=[pytest.param(m, marks=[pytest.mark.slow] * (m not in ALWAYS)) for m in METHODS],
)
def runs(request, stream, tmp_path_factory):
    """A method on the stream, whole and stopped after three tasks; compilations by task."""
    method, counts = request.param, []

    def count(event) -> None:
        if event.kind == "scores":
            counts.append(len(COMPILED))

    def stop(event) -> None:
        if event.kind == "scores" and event.number == 3:
            raise Stop

    out = tmp_path_factory.mktemp(method)
    whole = run(stream, method, listener=count)
    with pytest.raises(Stop):
        run(stream, method, out=out, listener=stop)
    resumed = run(stream, method, out=out, resume=True)
    return method, whole, resumed, counts


def test_scores_are_finite_with_one_class_and_one_sample(runs):
    _, whole, _, _ = runs
    assert is_complete(whole.scores).all()
    assert np.isfinite(whole.losses[1]).all()
    assert all(np.isfinite(W).all() for W in whole.heads.values())


def test_a_stopped_run_goes_on_bitwise(runs):
    _, whole, resumed, _ = runs
    assert np.array_equal(resumed.scores, whole.scores, equal_nan=True)
    assert all(np.array_equal(resumed.heads[m], W) for m, W in whole.heads.items())
    for name in ("details", "losses", "logs"):
        assert getattr(resumed, name) == getattr(whole, name)


def test_later_tasks_compile_nothing(runs):
    """The first task of each kind has been seen: retrieval at place 4, classification before."""
    _, _, _, counts = runs
    assert counts[5] == counts[4] == counts[3]


# Heads of modalities that a task does not have, and seeds beside each other

TURNS = ("hmcl_ca", "hmcl_rotation")  # all heads turn together: that is what protects them
REPLAYS = ("gem", "agem", "cflat", "derpp", "joint")  # stored pairs, or all data, of old modalities
BY_DEFAULT = ("hmcl_mr", "dns")


def every_method(chosen=METHODS):
    return [pytest.param(m, marks=[pytest.mark.slow] * (m not in BY_DEFAULT)) for m in chosen]


@pytest.fixture(scope="module")
def of_three_modalities() -> Store:
    """Sounds in the second and fourth task; not in the fifth."""
    store = synthetic_stream(tasks=5, classes=4, dimension=8, train=70, test=40, modalities=3)
    assert [task.specific for task in store] == ["image", "audio", "image", "audio", "image"]
    return store


@pytest.mark.parametrize("method", every_method([m for m in METHODS if m not in REPLAYS]))
def test_heads_that_a_task_does_not_have_stay(method, of_three_modalities):
    """Bitwise, but for the rotation that all heads share."""
    names = [task.name for task in of_three_modalities]
    before, after = (
        run(of_three_modalities, method, order=order).heads for order in (names[:4], names)
    )
    assert np.abs(after["image"] - before["image"]).max() > 1e-3
    if method in TURNS:
        assert np.abs(after["audio"] - before["audio"]).max() > 0
    else:
        np.testing.assert_array_equal(after["audio"], before["audio"])


@pytest.mark.parametrize("name", [m for m in REPLAYS if m != "joint"])
def test_replay_moves_only_heads_of_stored_pairs(rng, name):
    """A replaying method moves the heads of absent modalities too, but by their pairs alone."""
    method = make_method(name, {"memory": 24})
    params = heads(rng, modalities=("audio", "image", "text"))
    state = method.end_task(method.init(params), params, task_end(rng, 0))
    now = jax.tree.map(lambda W: W[0] + 0.3 * rng.normal(size=W[0].shape).astype(W.dtype), params)
    own = MethodState(state.shared, jax.tree.map(lambda x: x[0], state.own))
    if name == "cflat":  # by its term
        z = rng.normal(size=(2, 3, DIM)).astype(np.float32)

        def term(W):
            points = apply_head(W["text"], z[0], K), apply_head(W["image"], z[1], K)
            batch = Minibatch(z[0], z[1], *points, jnp.ones(3, bool), W, jnp.int32(0))
            return method.extra_loss(own, batch, spec())

        added = jax.jit(jax.grad(term))(now)
    else:
        g = {m: 1e-3 * jnp.ones_like(W) * (m != "audio") for m, W in now.items()}
        combine = jax.jit(lambda W: method.combine((g,), W, own, jnp.asarray(3), spec()))
        against = combine(now)
        g = jax.tree.map(lambda g, found: g - 2 * found, g, against)  # a constraint is violated
        added = jax.jit(lambda W: method.combine((g,), W, own, jnp.asarray(3), spec()))(now)
    assert np.abs(added["audio"]).max() == 0
    assert np.abs(added["text"]).max() > 0


@pytest.mark.parametrize("method", every_method())
def test_a_seed_does_not_depend_on_the_seeds_beside_it(method, of_three_modalities):
    """Bitwise among others; alone up to rounding, because XLA unrolls a loop over one seed."""
    order = [task.name for task in of_three_modalities][:3]
    with_others = {
        seeds: run(of_three_modalities, method, seeds, order=order).heads
        for seeds in ((4,), (3, 4), (9, 4, 3))
    }
    for modality, W in with_others[3, 4].items():
        np.testing.assert_array_equal(with_others[9, 4, 3][modality][1], W[1])
        np.testing.assert_allclose(with_others[4,][modality][0], W[1], rtol=2e-4, atol=2e-5)
        assert np.abs(W[0] - W[1]).max() > 1e-4
