"""Learning of tasks: against a run in plain numpy, and however it is laid out, padded or fed."""

import dataclasses
import functools
import logging
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import reference

from hmcl_jax import apply_head, objective, update_moments
from hmcl_jax.continual import (
    Carried,
    Setting,
    TrainConfig,
    feed,
    learn_task,
    make_method,
    run_stream,
    scoring,
)
from hmcl_jax.continual.config import Schedule
from hmcl_jax.continual.mesh import DeviceMesh
from hmcl_jax.continual.method import Method, MethodState, at_current_heads
from hmcl_jax.continual.programs import Programs
from hmcl_jax.data.store import Store, Task

K, TAU, DIM = 10.0, 0.1, 5
SCHEDULES = {"classification": Schedule(4, 0.05), "retrieval": Schedule(5, 0.03)}


def features(rng, count, scale=1.0):
    """Points away from the origin, with more energy in some directions than in others."""
    return scale * (rng.normal(size=(count, DIM)) * np.exp(-0.7 * np.arange(DIM)) + 0.5)


def classification(rng, name, specific, samples, classes, dtype=np.float32):
    prototypes = features(rng, classes, 0.6)
    arrays = {"prototypes": prototypes.astype(dtype)}
    for split, count in (("train", samples), ("test", 9)):
        labels = rng.integers(0, classes, count)
        points = 3 * prototypes[labels] + features(rng, count) - 0.5
        arrays |= {f"{split}_features": points.astype(dtype), f"{split}_labels": labels}
    names = tuple(f"{name}{i}" for i in range(classes))
    return Task(name, "classification", "text", specific, arrays, classes=names)


def retrieval(rng, name, specific, samples, dtype=np.float32):
    """One to three texts per sample, some near the origin; the last belongs to two samples."""
    arrays = {}
    for split, count in (("train", samples), ("test", 9)):
        owners = np.repeat(np.arange(count), 1 + np.arange(count) % 3)
        points = features(rng, count, 2.0)
        texts = 0.4 * points[owners] + features(rng, len(owners), 0.3)
        texts[::7] *= 0.3
        rows = np.stack([owners, np.arange(len(owners))], axis=1)
        arrays |= {
            f"{split}_specific": points.astype(dtype),
            f"{split}_general": texts.astype(dtype),
            f"{split}_pairs": np.concatenate([rows, [[0, len(owners) - 1]]]),
        }
    return Task(name, "retrieval", "text", specific, arrays)


def store_of(tasks):
    orders = {"canonical": tuple(task.name for task in tasks)}
    return Store("made", "made", K, TAU, DIM, tuple(tasks), orders, fingerprint="")


@pytest.fixture(scope="module")
def stream():
    """Sizes that minibatches of 64 do not divide; "sounds" brings a modality and lacks one."""
    rng = np.random.default_rng(7)
    shapes = classification(rng, "shapes", "image", 150, 4)
    captions = retrieval(rng, "captions", "image", 40, np.float16)
    sounds = classification(rng, "sounds", "audio", 13, 3)
    return store_of([shapes, captions, sounds, classification(rng, "digits", "image", 70, 6)])


@dataclasses.dataclass(frozen=True)
class Toy(Method):
    """A method with all that one may have.

    Its term pulls the points to where the first heads put them; from the second task on, a second
    gradient is taken ahead along the first.
    """

    pull: float = 0.4
    ahead: float = 0.01

    def init(self, heads):
        return MethodState(jnp.asarray(self.pull, float), heads)

    def extra_loss(self, state, minibatch, spec):
        way = 0
        for modality, z, points in (
            (spec.general, minibatch.general, minibatch.general_points),
            (spec.specific, minibatch.specific, minibatch.specific_points),
        ):
            way += jnp.sum((points - apply_head(state.own[modality], z, spec.K)) ** 2, axis=1)
        count = jnp.sum(minibatch.valid.astype(way.dtype))
        pull = state.shared.astype(way.dtype)
        return pull * jnp.sum(jnp.where(minibatch.valid, way, 0)) / count

    def probes(self, spec):
        def ahead(heads, gradients, state):
            return jax.tree.map(lambda W, g: W + self.ahead * g, heads, gradients[0])

        return (at_current_heads,) if spec.is_first else (at_current_heads, ahead)

    def combine(self, gradients, heads, state, num_minibatches, spec):
        share = 1 / num_minibatches.astype(gradients[0]["text"].dtype)
        first, *others = gradients
        return jax.tree.map(lambda g, *more: g + share * sum(more), first, *others)


# Against the run in plain numpy


class Case(NamedTuple):
    """A run, in the words of both sides."""

    method: Method
    tasks: tuple
    train: dict
    setup: dict


IMAGES, ALL = ("shapes", "captions", "digits"), ("shapes", "captions", "sounds")


def vanilla(tasks=IMAGES, **shared):
    return Case(make_method("vanilla"), tasks, shared, shared)


def hmcl(variant, placement, tasks=IMAGES, variance=0.7, min_rank=1, span="protected", **shared):
    ranks = {"variance": variance, "min_rank": min_rank, "placement": placement, "span": span}
    method = make_method(f"hmcl_{variant}", {**ranks, "beta": 0.1, "beta_retrieval": 0.3})
    betas = {"classification": 0.1, "retrieval": 0.3}
    return Case(method, tasks, shared, {**shared, **ranks, "betas": betas, "correction": variant})


def two_stages(tasks, **shared):
    return Case(Toy(name="toy"), tasks, shared, {**shared, "pull": 0.4, "ahead": 0.01})


slow = pytest.mark.slow
EACH = {"step": "minibatch"}
LASTING = {"weight_decay": 0.3, "reset_optimizer": False}
CASES = {
    "vanilla": vanilla(),
    "mr": hmcl("mr", "post+anchor"),
    "ca": hmcl("ca", "post+anchor", ALL),
    "two stages and a term": two_stages(ALL[:2]),
}
SLOW_CASES = {
    "vanilla, a step per minibatch": vanilla(**EACH),
    "mr on the gradient": hmcl("mr", "pre", variance=0.5, min_rank=3),
    "ca without anchor, lasting": hmcl("ca", "post", variance=0.95, **LASTING),
    "vanilla, a new modality": vanilla(ALL),
    "mr without anchor": hmcl("mr", "post", ALL),
    "ca on the gradient": hmcl("ca", "pre", variance=0.95),
    "ca, ambient": hmcl("ca", "post+anchor", ALL, span="ambient"),
    "ca, a step per minibatch": hmcl("ca", "post+anchor", ALL, **EACH),
    "two stages and a term, a step per minibatch": two_stages(ALL, **EACH),
}


def learned_heads(method, store, tasks, seeds, config, monkeypatch):
    """Heads after every task of a run, and its result."""
    heads = []

    class Recorded(type(method)):
        def end_task(self, state, params, data):
            heads.append(jax.device_get(params))
            return super().end_task(state, params, data)

    def no_scores(self, params, tasks):
        return [{"score": np.zeros(len(seeds))} for _ in tasks]

    monkeypatch.setattr(scoring.Evaluator, "all", no_scores)  # not what is tested
    result = run_stream(store, [Recorded(**vars(method))], seeds, config, order=tasks)
    return heads, result[method.name]


def lesson(task):
    data = feed.training_pairs(task)
    return reference.Lesson(task.kind, task.general, task.specific, *map(np.asarray, data))


def reference_run(store, tasks, seed, **setup):
    epochs = {kind: schedule.epochs for kind, schedule in SCHEDULES.items()}
    rates = {kind: schedule.learning_rate for kind, schedule in SCHEDULES.items()}
    setup = reference.Setup(K=K, tau=TAU, batch=64, epochs=epochs, rates=rates, **setup)
    return reference.run([lesson(store[name]) for name in tasks], seed, setup)


def largest(tree):
    return max(np.abs(np.asarray(x)).max() for x in jax.tree.leaves(tree))


def apart(found, expected):
    return largest(jax.tree.map(lambda a, b: np.asarray(a) - np.asarray(b), found, expected))


PARAMS = [pytest.param(case, id=name) for name, case in CASES.items()]
PARAMS += [pytest.param(case, id=name, marks=slow) for name, case in SLOW_CASES.items()]


@pytest.mark.parametrize("case", PARAMS)
def test_a_run_is_the_one_in_plain_numpy(stream, x64, monkeypatch, case):
    seeds, tasks = (42, 5), case.tasks
    config = TrainConfig(batch=64, **SCHEDULES, **case.train)
    found, result = learned_heads(case.method, stream, tasks, seeds, config, monkeypatch)
    assert all(W.dtype == np.float64 for W in jax.tree.leaves(found))
    for row, seed in enumerate(seeds):
        before = dict.fromkeys(stream.modalities, np.eye(DIM, DIM + 1, k=1))
        for place, expected in enumerate(reference_run(stream, tasks, seed, **case.setup)):
            heads = {m: W[row] for m, W in found[place].items()}
            assert apart(heads, expected.heads) < 1e-9
            np.testing.assert_allclose(result.losses[place][row], expected.losses, rtol=1e-9)
            for m in (stream[tasks[place]].general, stream[tasks[place]].specific):
                assert np.abs(heads[m] - before[m]).max() > 0.01
            if "correction" in case.setup and place > 0:
                assert all(0 < rank < DIM or m == "audio" for m, rank in expected.ranks.items())
            before |= heads
        if case.setup:
            assert apart(heads, reference_run(stream, tasks, seed)[-1].heads) > 0.01
    assert largest({m: W[0] - W[1] for m, W in found[-1].items()}) > 1e-3  # orders matter


# However a task is laid out, padded or fed

SEEDS = (42, 123, 456)
SHORT = {"classification": Schedule(4, 0.02), "retrieval": Schedule(5, 0.02)}
METHODS = {
    "vanilla": make_method("vanilla"),
    "ca": make_method("hmcl_ca", {"variance": 0.7, "min_rank": 1}),
    "toy": Toy(name="toy"),
}


@pytest.fixture(scope="module")
def task():
    """Tasks by kind, of 27 and 33 minibatches of 16, the last one partial."""
    rng = np.random.default_rng(8)
    return {
        "classification": classification(rng, "colours", "image", 425, 5),
        "retrieval": retrieval(rng, "letters", "image", 260),
    }


def learn(name, task, seeds=SEEDS, programs=None, told=None, **options):
    """Learns a task as the fourth of a stream, from heads of the seed's own."""
    heads = {}
    for i, m in enumerate(("audio", "image", "text")):
        noise = [np.random.default_rng([seed, i]).normal(size=(DIM, DIM + 1)) for seed in seeds]
        heads[m] = jnp.asarray(np.eye(DIM, DIM + 1, k=1) + 0.05 * np.stack(noise), float)
    method, old = METHODS[name], features(np.random.default_rng(9), 30).astype(np.float32)
    state = method.init(heads)
    if name == "ca":
        state = state._replace(shared=update_moments(state.shared, {"audio": old, "text": old}, K))
    setting = Setting(K, TAU, tuple(seeds), TrainConfig(batch=16, **SHORT, **options))
    on_epoch = (lambda *done: None) if told is None else (lambda *done: told.append(done))
    carried = Carried(heads, None, state)
    after, learned = learn_task(method, carried, [(task, 3)], setting, programs, on_epoch)
    assert largest(jax.tree.map(jnp.subtract, after.heads, heads)) > 0.02
    return jax.device_get(after.heads), learned.losses


@pytest.fixture(scope="module")
def plainly(task):
    """What a method learns of a task with default padding, all features on the device."""

    @functools.cache
    def learn_once(method, kind, **options):
        return learn(method, task[kind], **options)

    return learn_once


def assert_same(found, expected, tolerance):
    assert apart(found[0], expected[0]) < tolerance
    np.testing.assert_allclose(found[1], expected[1], rtol=10 * tolerance)


KINDS = ["classification", pytest.param("retrieval", marks=slow)]


@pytest.fixture(scope="module")
def alone(task):
    """Each seed learns for itself; by kind."""
    programs = Programs(TrainConfig(seed_axis="loop"))

    @functools.cache
    def learn_each(kind):
        return [learn("ca", task[kind], [seed], programs, seed_axis="loop") for seed in SEEDS]

    yield learn_each
    assert programs.count() <= 3 * 2  # the start of the optimizer, gradients, steps; two kinds


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("seed_axis", ["vmap", "map", "loop"])
def test_seeds_side_by_side_are_seeds_alone(plainly, alone, kind, seed_axis):
    together = plainly("ca", kind, seed_axis=seed_axis)
    for row, expected in enumerate(alone(kind)):
        assert_same(jax.tree.map(lambda x: x[row : row + 1], together), expected, 1e-5)  # noqa: B023
    assert largest(together[0]["image"] - together[0]["image"][:1]) > 1e-3


def feed_memory(kind, minibatches):
    """MiB of the device at which a feed holds so many minibatches."""
    row = 4 * DIM * (2 if kind == "retrieval" else 1)
    return 2 * minibatches * len(SEEDS) * 16 * row / 2**20  # two feeds are there at a time


@pytest.mark.parametrize(
    ("method", "kind", "options"),
    [
        ("ca", "retrieval", {}),
        ("toy", "classification", {}),
        ("vanilla", "classification", {"step": "minibatch"}),
        pytest.param("toy", "retrieval", {"step": "minibatch"}, marks=slow),
    ],
)
def test_a_task_that_stays_on_the_host(task, plainly, method, kind, options):
    told = []
    found = learn(method, task[kind], told=told, device_memory=feed_memory(kind, 2), **options)
    assert_same(found, plainly(method, kind, **options), 1e-6)
    epochs = SHORT[kind].epochs
    assert told == [(n + 1, epochs) for n in range(epochs)]


def test_feeds_keep_to_the_memory_of_the_device(task):
    config = TrainConfig(batch=16, device_memory=feed_memory("retrieval", 2))
    spec = Setting(K, TAU, SEEDS, config).spec(task["retrieval"], 3)
    data = feed.training_pairs(task["retrieval"])
    made = feed.task_feed(data, spec, 3, SEEDS, DeviceMesh((1, 1)), resident=False)
    parts = list(made.feeds(1))
    assert sum(int(part.count) for part in parts) == made.num_minibatches
    for part in parts:
        general, specific, _ = part.per_seed
        assert general.nbytes + specific.nbytes <= config.device_memory * 2**20 / 2
    assert not np.array_equal(parts[0].per_seed[2][0], parts[0].per_seed[2][1])  # other orders


# Compilations

FIRST = [(12, 3), (200, 30), (150, 9), (6, 0), (300, 0), (5000, 12), (60, 5), (280, 20)]
SECOND = [(16, 7), (256, 100), (100, 16), (5, 0), (99, 0), (4500, 4), (33, 2), (199, 11)]


def test_tasks_of_many_sizes_share_few_programs(monkeypatch, caplog, rng):
    name = "hmcl_rotation"  # whose state holds all that the others have
    # How many programs there are does not depend on the loss; how long they compile does.
    monkeypatch.setattr(objective, "prototype_loss", lambda x, y, *_, **__: jnp.sum(x) + jnp.sum(y))
    monkeypatch.setattr(objective, "pair_loss", lambda x, y, **_: jnp.sum(x) + jnp.sum(y))
    tasks = [  # by samples and classes; retrieval where there are none
        classification(rng, f"task{i}", "image", samples, classes)
        if classes
        else retrieval(rng, f"task{i}", "image", samples)
        for i, (samples, classes) in enumerate(FIRST + SECOND)
    ]
    compiled = []

    def listener(event):
        if event.kind == "task":
            caplog.clear()
        if event.kind == "scores":
            messages = [record.getMessage() for record in caplog.records]
            compiled.append([message for message in messages if "Compiling" in message])

    config = TrainConfig(batch=64, **dict.fromkeys(SHORT, Schedule(1, 0.01)))
    with jax.log_compiles(), caplog.at_level(logging.WARNING):
        result = run_stream(store_of(tasks), [name], [1, 2], config, listener=listener)[name]
    assert result.programs == 10
    # A step is compiled once per kind of task, a gradient once per shape.
    updating = [any("jit(update)" in message for message in messages) for messages in compiled]
    assert [i for i, found in enumerate(updating) if found] == [0, 3]
    assert compiled[len(FIRST) :] == [[]] * len(SECOND)  # nothing at all, evaluation included
