"""Learning of tasks: against a run in plain numpy, and however it is laid out, padded or fed."""

import dataclasses
import logging

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import reference

from hmcl_jax import apply_head, objective, update_moments
from hmcl_jax.continual import TrainConfig, fit, run
from hmcl_jax.continual import pairs as pairs_module
from hmcl_jax.continual.config import Schedule
from hmcl_jax.continual.method import Method, MethodState, TaskInfo
from hmcl_jax.continual.methods import make_method
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
    return store_of(
        [
            classification(rng, "shapes", "image", 150, 4),
            retrieval(rng, "captions", "image", 40, np.float16),
            classification(rng, "sounds", "audio", 13, 3),
            classification(rng, "digits", "image", 70, 6),
        ]
    )


def toy(pull, ahead):
    """A method with all that a record may have.

    Its term pulls the points to where the first heads put them; from the second task on, a second
    gradient is taken ahead along the first.
    """

    def init(params):
        return MethodState(jnp.asarray(pull, float), params)

    def term(state, batch, info):
        way = 0
        for modality, z, points in (
            (info.general, batch.general, batch.general_points),
            (info.specific, batch.specific, batch.specific_points),
        ):
            way += jnp.sum((points - apply_head(state.own[modality], z, info.K)) ** 2, axis=1)
        count = jnp.sum(batch.valid.astype(way.dtype))
        return state.shared.astype(way.dtype) * jnp.sum(jnp.where(batch.valid, way, 0)) / count

    def point(params, gradients, state):
        del state
        return jax.tree.map(lambda W, *gs: W + ahead * sum(gs), params, *gradients)

    def combine(gradients, params, state, minibatches, info):
        del params, state, info
        share = 1 / minibatches.astype(gradients[0]["text"].dtype)
        first, *others = gradients
        return jax.tree.map(lambda g, *more: g + share * sum(more), first, *others)

    return Method(
        "toy",
        init=init,
        widen=lambda state, params: state._replace(own={**params, **state.own}),
        term=term,
        stages=lambda info: 1 if info.first else 2,
        point=point,
        combine=combine,
    )


# Against the run in plain numpy


@dataclasses.dataclass(frozen=True)
class Case:
    """A run, in the words of both sides."""

    method: Method
    tasks: tuple
    train: dict = dataclasses.field(default_factory=dict)
    setup: dict = dataclasses.field(default_factory=dict)


IMAGES, ALL = ("shapes", "captions", "digits"), ("shapes", "captions", "sounds")


def vanilla(tasks=IMAGES, **shared):
    return Case(make_method("vanilla"), tasks, shared, shared)


def hmcl(variant, placement, tasks=IMAGES, variance=0.7, min_rank=1, span="protected", **shared):
    ranks = {"variance": variance, "min_rank": min_rank, "placement": placement, "span": span}
    method = make_method(f"hmcl_{variant}", {**ranks, "beta": 0.1, "beta_retrieval": 0.3})
    betas = {"classification": 0.1, "retrieval": 0.3}
    return Case(method, tasks, shared, {**shared, **ranks, "betas": betas, "correction": variant})


def two_stages(tasks, **shared):
    return Case(toy(0.4, 0.01), tasks, shared, {**shared, "pull": 0.4, "ahead": 0.01})


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

    def end_task(state, params, end):
        heads.append(jax.device_get(params))
        return method.end_task(state, params, end)

    def no_scores(self, params, tasks):
        return [{"score": np.zeros(len(seeds))} for _ in tasks]

    monkeypatch.setattr(run.Evaluator, "all", no_scores)  # not what is tested
    recorded = dataclasses.replace(method, end_task=end_task)
    result = run.run_stream(store, [recorded], seeds, config, order=tasks)[method.name]
    return heads, result


def lesson(task):
    data = pairs_module.training_pairs(task)
    return reference.Lesson(task.kind, task.general, task.specific, *map(np.asarray, data))


def reference_run(store, tasks, seed, **setup):
    schedule = {
        "epochs": {kind: schedule.epochs for kind, schedule in SCHEDULES.items()},
        "rates": {kind: schedule.learning_rate for kind, schedule in SCHEDULES.items()},
    }
    setup = reference.Setup(K=K, tau=TAU, batch=64, **schedule, **setup)
    return reference.run([lesson(store[name]) for name in tasks], seed, setup)


def largest(difference):
    return max(np.abs(np.asarray(x)).max() for x in jax.tree.leaves(difference))


def apart(found, expected):
    return largest(jax.tree.map(lambda a, b: np.asarray(a) - np.asarray(b), found, expected))


@pytest.mark.parametrize(
    "case",
    [
        *(pytest.param(case, id=name) for name, case in CASES.items()),
        *(pytest.param(case, id=name, marks=slow) for name, case in SLOW_CASES.items()),
    ],
)
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
            task = stream[tasks[place]]
            assert all(
                np.abs(heads[m] - before[m]).max() > 0.01 for m in (task.general, task.specific)
            )
            if "correction" in case.setup and place > 0:
                assert all(0 < rank < DIM or m == "audio" for m, rank in expected.ranks.items())
            before |= heads
        if case.setup:
            assert apart(heads, reference_run(stream, tasks, seed)[-1].heads) > 0.01
    assert largest({m: W[0] - W[1] for m, W in found[-1].items()}) > 1e-3  # orders matter


def test_the_gradient_in_plain_numpy_is_one(stream, rng):
    setup = reference.Setup(K=K, tau=TAU, epochs={}, rates={}, batch=64, pull=0.3)
    for task in map(lesson, stream):
        heads = {
            m: np.eye(DIM, DIM + 1, k=1) + 0.05 * rng.normal(size=(DIM, DIM + 1))
            for m in (task.general, task.specific)
        }
        chosen = task.pairs[:30]
        _, gradient = reference.minibatch_gradient(heads, task, chosen, setup)
        for m, i, j in [(m, i, j) for m in heads for i in range(DIM) for j in range(DIM + 1)]:
            change = np.zeros((DIM, DIM + 1))
            change[i, j] = 1e-6
            ahead, behind = (
                reference.minibatch_gradient({**heads, m: W}, task, chosen, setup)[0]
                for W in (heads[m] + change, heads[m] - change)
            )
            assert abs((ahead - behind) / 2e-6 - gradient[m][i, j]) < 1e-6


# However a task is laid out, padded or fed

SEEDS = (42, 123, 456, 789, 1024)
SHORT = {"classification": Schedule(4, 0.02), "retrieval": Schedule(5, 0.02)}
METHODS = {
    "vanilla": make_method("vanilla"),
    "ca": make_method("hmcl_ca", {"variance": 0.7, "min_rank": 1}),
    "toy": toy(0.4, 0.01),
}


@pytest.fixture(scope="module")
def task():
    """Tasks by kind, of 27 and 33 minibatches of 16, the last one partial."""
    rng = np.random.default_rng(8)
    return {
        "classification": classification(rng, "colours", "image", 425, 5),
        "retrieval": retrieval(rng, "letters", "image", 260),
    }


def fitter_of(method, tell=lambda done, epochs: None, **options):
    return fit.Fitter(METHODS[method], TrainConfig(batch=16, **SHORT, **options), tell)


def fit_task(fitter, task, seeds=SEEDS):
    """Learns a task as the fourth of a stream, from heads of the seed's own."""
    info = TaskInfo(task.kind, task.general, task.specific, False, K, TAU)
    params = {}
    for i, m in enumerate(("audio", "image", "text")):
        noise = [np.random.default_rng([seed, i]).normal(size=(DIM, DIM + 1)) for seed in seeds]
        params[m] = jnp.asarray(np.eye(DIM, DIM + 1, k=1) + 0.05 * np.stack(noise), float)
    method, old = fitter.method, features(np.random.default_rng(9), 30).astype(np.float32)
    state = method.init(params)
    if method.name.startswith("hmcl"):
        state = state._replace(shared=update_moments(state.shared, {"audio": old, "text": old}, K))
    opt_state = jax.vmap(method.transform(fitter.config, info).init)(params)
    opt_state = method.begin_task(opt_state, state, params, info)
    found = fitter(params, opt_state, state, task, info, seeds, 3)
    assert largest(jax.tree.map(jnp.subtract, found.params, params)) > 0.02
    return jax.device_get(found)


@pytest.fixture(scope="module")
def plainly(task):
    """What a method learns of a task in the plainest way: one program, default padding."""
    known = {}

    def learn(method, kind, **options):
        key = (method, kind, *options.items())
        if key not in known:
            known[key] = fit_task(fitter_of(method, **options), task[kind])
        return known[key]

    return learn


def assert_same(found, expected, tolerance):
    assert jax.tree.structure(found) == jax.tree.structure(expected)
    assert apart(found.params, expected.params) < tolerance
    np.testing.assert_allclose(found.losses, expected.losses, rtol=10 * tolerance)


KINDS = ["classification", pytest.param("retrieval", marks=slow)]


def of_seeds(found, rows):
    return jax.tree.map(lambda x: x[np.asarray(rows)], found)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("seed_axis", ["vmap", "map", "loop"])
def test_seeds_side_by_side_are_seeds_alone(task, plainly, kind, seed_axis):
    together = plainly("ca", kind, seed_axis=seed_axis)
    alone = fitter_of("ca", seed_axis="loop")
    for row, seed in enumerate(SEEDS):
        assert_same(of_seeds(together, [row]), fit_task(alone, task[kind], [seed]), 1e-5)
    assert alone.compilations() == 1
    assert largest(together.params["image"] - together.params["image"][:1]) > 1e-3


@pytest.mark.parametrize("seed_axis", ["vmap", "map"])
def test_a_seed_does_not_depend_on_those_beside_it(task, plainly, seed_axis):
    others = (9, SEEDS[3], 8, 7, SEEDS[0])
    fitter = fitter_of("ca", seed_axis=seed_axis)
    found = fit_task(fitter, task["classification"], others)
    expected = plainly("ca", "classification", seed_axis=seed_axis)
    assert_same(of_seeds(found, [1, 4]), of_seeds(expected, [3, 0]), 1e-6)


@pytest.mark.parametrize("method", ["ca", pytest.param("toy", marks=slow)])
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("more", [37, pytest.param(0, marks=slow)])
def test_padding_has_no_effect(task, plainly, monkeypatch, method, kind, more):
    expected = plainly(method, kind)
    monkeypatch.setattr(pairs_module, "capacity", lambda rows: rows + more)
    monkeypatch.setattr(pairs_module, "class_capacity", lambda classes: classes + more)
    assert_same(fit_task(fitter_of(method), task[kind]), expected, 1e-6)


@pytest.mark.parametrize(
    ("method", "kind", "together"),
    [
        ("ca", "classification", 1),
        pytest.param("ca", "retrieval", 2, marks=slow),
        pytest.param("toy", "retrieval", 2, marks=slow),
    ],
)
def test_a_long_task_is_split_between_epochs(task, plainly, monkeypatch, method, kind, together):
    expected, told = plainly(method, kind), []
    fitter = fitter_of(method, lambda done, epochs: told.append((done, epochs)))
    of_epoch = len(SEEDS) * len(pairs_module.training_pairs(task[kind]).pairs) * DIM**2 * 6
    monkeypatch.setattr(fit, "LONG", 1.0 if together == 1 else (together + 0.5) * of_epoch)
    found = fit_task(fitter, task[kind])
    assert_same(found, expected, 1e-6)
    assert apart(found.opt_state, expected.opt_state) < 1e-6 * largest(expected.opt_state)
    epochs = SHORT[kind].epochs
    assert told == [(min(n + together, epochs), epochs) for n in range(0, epochs, together)]


@pytest.mark.parametrize(
    ("method", "kind", "options"),
    [
        pytest.param("ca", "classification", {}, marks=slow),
        ("ca", "retrieval", {}),
        ("toy", "classification", {}),
        pytest.param("toy", "retrieval", {}, marks=slow),
        ("vanilla", "classification", {"step": "minibatch"}),
        pytest.param("toy", "classification", {"step": "minibatch"}, marks=slow),
        pytest.param("toy", "retrieval", {"step": "minibatch"}, marks=slow),
    ],
)
@pytest.mark.parametrize("chunk", [2, pytest.param(1, marks=slow)])
def test_a_task_that_is_fed_in_chunks(task, plainly, monkeypatch, method, kind, options, chunk):
    sizes, told = [], []

    def gather(data, kind, order, padded):
        sizes.append((order.shape[1], padded))
        return pairs_module.gather(data, kind, order, padded)

    monkeypatch.setattr(fit, "gather", gather)
    row = 4 * DIM * (2 if kind == "retrieval" else 1)
    memory = 2 * chunk * len(SEEDS) * 16 * row / 2**20  # two chunks fit
    fitter = fitter_of(
        method, lambda done, epochs: told.append((done, epochs)), device_memory=memory, **options
    )
    found = fit_task(fitter, task[kind])
    assert_same(found, plainly(method, kind, **options), 1e-6)
    minibatches, epochs = {"classification": (27, 4), "retrieval": (33, 5)}[kind]
    stages = 2 if method == "toy" and not options else 1
    whole, last = (16 * chunk, 16 * chunk), (16, 16 * chunk)
    parts = -(-minibatches // chunk)
    assert sizes == [*[whole] * (parts - 1), last] * (epochs * stages)
    assert told == [(n + 1, epochs) for n in range(epochs)]


# Compilations

FIRST = [(12, 3), (200, 30), (150, 9), (6, 0), (300, 0), (5000, 12), (60, 5), (280, 20)]
SECOND = [(16, 7), (256, 100), (100, 16), (5, 0), (99, 0), (4500, 4), (33, 2), (199, 11)]


@pytest.mark.parametrize(
    "name",
    [
        *(pytest.param(name, marks=slow) for name in ("vanilla", "hmcl_mr", "hmcl_ca")),
        "hmcl_rotation",  # whose state holds all that the others have
    ],
)
def test_tasks_of_many_sizes_share_few_programs(monkeypatch, caplog, rng, name):
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
        result = run.run_stream(store_of(tasks), [name], [1, 2], config, listener=listener)[name]
    assert 6 <= result.programs <= 8
    assert all(any("jit(run)" in message for message in compiled[i]) for i in (0, 1, 2, 3, 4, 5))
    assert compiled[len(FIRST) :] == [[]] * len(SECOND)  # nothing at all, evaluation included
