"""Methods that keep old pairs: the memory, GEM, A-GEM and DER++, against plain versions."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import quadprog
import scipy.optimize
from task_ends import CONFIG, TAU, K, flat, heads, one, spec, task_end

from hmcl_jax import apply_head, objective
from hmcl_jax.continual import make_method
from hmcl_jax.continual.method import MethodState
from hmcl_jax.continual.methods import gem
from hmcl_jax.continual.methods.replay_memory import (
    empty_memory,
    memory_losses,
    memory_points,
    remember,
    task_weights,
)

# The memory


def test_the_memory_holds_as_many_pairs_of_every_task(rng):
    params = heads(rng)
    memory = empty_memory(64, params)
    for place in range(5):
        memory = remember(memory, task_end(rng, place, count=64), params)
        for row in np.asarray(memory.task):
            assert np.bincount(row[row >= 0]).tolist() == [64 // (place + 1)] * (place + 1)
    small = empty_memory(5, params)
    for place in range(5):
        small = remember(small, task_end(rng, place), params)
    with pytest.raises(ValueError, match="memory must be at least the number of tasks, 6, got 5"):
        remember(small, task_end(rng, 5), params)


def test_the_memory_keeps_pairs_together_and_depends_on_the_seed_alone(rng):
    params = heads(rng)
    end = task_end(rng, 0)
    memory = jax.device_get(remember(empty_memory(16, params), end, params))
    for row in range(2):
        for slot in range(16):
            (sample,) = np.flatnonzero((end.specific == memory.specific[row, slot]).all(axis=1))
            label = end.pairs[sample, 1]
            np.testing.assert_array_equal(end.general[label], memory.general[row, slot])
    assert not np.array_equal(memory.specific[0], memory.specific[1])
    alone = end._replace(seeds=(8,))
    single = remember(empty_memory(16, heads(rng, 1)), alone, {m: W[1:] for m, W in params.items()})
    np.testing.assert_array_equal(single.specific[0], memory.specific[1])


def filled(rng, tasks=3, slots=24):
    """Heads of two seeds, and a memory of tasks of two modalities."""
    params = heads(rng, modalities=("audio", "image", "text"))
    memory = empty_memory(slots, params)
    for place in range(tasks):
        specific = ("image", "audio")[place % 2]
        memory = remember(memory, task_end(rng, place, specific=specific), params)
    return params, memory


def wide(tree, seed=0):
    """A seed's part, in float64."""
    floating = jnp.floating
    return jax.tree.map(
        lambda x: x[seed].astype(float) if jnp.issubdtype(x.dtype, floating) else x[seed], tree
    )


def plain_loss(params, memory, task):
    """Loss of the stored pairs of one task, by the objective itself."""
    rows = np.flatnonzero(np.asarray(memory.task) == task)
    specific = ("image", "audio")[task % 2]
    settings = {"kappa": CONFIG.kappa, "entailment_weight": CONFIG.entailment_weight}
    return jax.jit(functools.partial(objective.pair_loss, tau=TAU, K=K, **settings))(
        apply_head(params["text"], memory.general[rows], K),
        apply_head(params[specific], memory.specific[rows], K),
    )


def test_memory_losses_are_the_objective_of_each_task(rng):
    params, memory = map(one, filled(rng))
    losses = memory_losses(*memory_points(memory, params, K), memory, spec())
    weights = task_weights(memory)
    for task in range(3):
        mean = jnp.sum(jnp.where(memory.task == task, losses * weights, 0))
        assert mean == pytest.approx(float(plain_loss(params, memory, task)), rel=1e-4)


# GEM


def problems(rng, rows=40, columns=12):
    """Rows and a gradient of many kinds: few, dependent, of all sizes, feasible."""
    M, g = rng.normal(size=(rows, columns)), rng.normal(size=columns)
    low_rank = rng.normal(size=(rows, 3)) @ rng.normal(size=(3, columns))
    even, twice = np.arange(rows) % 2 == 0, np.repeat(M[::2], 2, axis=0)[:rows]
    return {
        "plain": (M, g),
        "few rows": (M[:5], g),
        "duplicate": (twice, g),
        "near-duplicate": (twice + 1e-5 * M[::-1] * even[:, None], g),
        "opposite": (twice * np.where(even, 1, -1)[:, None], g),
        "low-rank": (low_rank, g),
        "zero rows": (M * (np.arange(rows) % 3 > 0)[:, None], g),
        "integer": (np.round(M), np.round(2 * g)),
        "large": (1e4 * M, g),
        "small": (1e-4 * M, g),
        "of all sizes": (M * 10 ** rng.uniform(-4, 4, size=(rows, 1)), g),
        "feasible": (M * np.where(M @ g < 0, -1, 1)[:, None], g),
        "large gradient": (M, 1e4 * g),
    }


def dual_by_nnls(M, g, margin, eps):
    P = M @ M.T + eps * np.eye(len(M))
    c = M @ g + P @ np.full(len(M), margin)
    L = np.linalg.cholesky((P + P.T) / 2)
    u, _ = scipy.optimize.nnls(L.T, -np.linalg.solve(L, c), maxiter=10_000)
    return margin + u


def dual_by_quadprog(M, g, margin, eps):
    """In units in which rows have norm 1: quadprog loses digits when norms differ by 1e6."""
    P = M @ M.T + eps * np.eye(len(M))
    unit = 1 / np.sqrt(np.diag(P))
    scaled = P * unit[:, None] * unit[None, :]
    w = quadprog.solve_qp((scaled + scaled.T) / 2, -(M @ g) * unit, np.eye(len(M)), margin / unit)
    return w[0] * unit


def test_gems_dual_is_that_of_two_other_solvers(dtype):
    rng = np.random.default_rng(0)
    solve = jax.jit(lambda G, q, present: gem.solve_dual(G, q, 0.5, 1e-3, present))
    tolerance = 1e-6 if dtype == jnp.float32 else 1e-9
    for M, g in [x for _ in range(8) for x in problems(rng, rows=15, columns=40).values()]:
        M, g = (x.astype(dtype).astype(np.float64) for x in (M, g))
        rows = len(M)
        gram, products = np.zeros((15, 15), dtype), np.zeros(15, dtype)
        gram[:rows, :rows], products[:rows] = M @ M.T, M @ g
        v = np.asarray(solve(gram, products, np.arange(15) < rows), np.float64)
        assert (v[rows:] == 0).all()
        v = v[:rows]
        assert (v >= 0.5 * (1 - 1e-6)).all()
        for oracle in (dual_by_nnls, dual_by_quadprog):
            expected = oracle(M, g, 0.5, 1e-3)
            size = np.linalg.norm(g) + np.linalg.norm(M.T * expected)
            assert np.linalg.norm(M.T @ (v - expected)) <= tolerance * size


@pytest.mark.parametrize("margin", [0.0, 0.5])
def test_gems_step_is_quadprogs_for_many_dependent_or_large_rows(margin, dtype):
    """The step of float32 heads too: rows are float32, but not the products of rows."""
    rng = np.random.default_rng(0)
    number = gem.head_number("m")

    @jax.jit
    def project(M, g):
        """The step, if every row is the gradient of a task of one pair."""
        each = jnp.eye(len(M), dtype=bool)
        ones = jnp.ones((len(M), 1), M.dtype)
        heads = jnp.full(len(M), number, jnp.int32)
        with jax.enable_x64(True):
            M, ones, wide = (gem._wide(x) for x in (M, ones, g))
            products = gem._products(M, ones, heads, {"m": wide[:, None]})
            weights = gem._weights_of_pairs(*products, each, margin, 1e-3)
            return wide + gem._weighted(weights, M, ones, heads, {"m": g})["m"][:, 0]

    for kind, rows in [item for _ in range(4) for item in problems(rng).items()]:
        M, g = (x.astype(dtype) for x in rows)
        step = np.asarray(project(M, g), np.float64)
        M, g = M.astype(np.float64), g.astype(np.float64)
        expected = dual_by_quadprog(M, g, margin, 1e-3)
        if not (M @ g < 0).any():
            expected = np.zeros(len(M))
        error = np.linalg.norm(step - g - M.T @ expected)
        assert error < 1e-6 * (np.linalg.norm(g) + np.linalg.norm(M.T @ expected)), kind


@pytest.mark.parametrize("tasks", [3, pytest.param(65, marks=pytest.mark.slow)])
def test_gem_adds_the_dual_combination_of_the_memory_gradients(x64, rng, tasks):
    """With the program for few tasks, and with that for as many as slots."""
    params, memory = (wide(tree, seed=1) for tree in filled(rng, tasks, slots=80))
    assert len(np.unique(memory.task[memory.task >= 0])) == tasks

    def gradient(task):
        def mean_loss(params):
            losses = memory_losses(*memory_points(memory, params, K), memory, spec())
            return jnp.sum(jnp.where(memory.task == task, losses * task_weights(memory), 0))

        return jax.grad(mean_loss)(params)

    each = jax.device_get(jax.jit(lambda tasks: jax.lax.map(gradient, tasks))(jnp.arange(tasks)))
    M = 7 * np.stack([flat({m: x[t] for m, x in each.items()}) for t in range(tasks)])
    for sign in (-1, 1):
        g = {m: 0.01 * rng.normal(size=x[0].shape) + sign * x.sum(0) for m, x in each.items()}
        found = flat(combine_with(make_method("gem"), g, params, {"memory": memory}, 7))
        if tasks == 3 and sign > 0:
            np.testing.assert_array_equal(found, flat(g))  # nothing is violated
        else:
            expected = flat(g) + M.T @ dual_by_quadprog(M, flat(g), 0.5, 1e-3)
            np.testing.assert_allclose(found, expected, rtol=1e-9, atol=1e-9)


def combine_with(method, g, params, own, minibatches):
    state, about = MethodState((), own), spec()
    count = jnp.asarray(minibatches)
    return jax.jit(lambda g: method.combine((g,), params, state, count, about))(g)


def test_agem_takes_the_part_against_the_memory_away(x64, rng):
    params, memory = map(wide, filled(rng))
    own = {"memory": memory}

    def total(params):
        return sum(plain_loss(params, memory, task) for task in range(3))

    m = jax.grad(total)(params)
    method = make_method("agem")
    noise = jax.tree.map(lambda x: jnp.asarray(rng.normal(size=x.shape)), params)
    against = jax.tree.map(lambda n, m: n - 9 * m, noise, m)
    found = flat(combine_with(method, against, params, own, 1))
    assert abs(found @ flat(m)) < 1e-9 * np.linalg.norm(found) * np.linalg.norm(flat(m))
    expected = flat(against) - (flat(against) @ flat(m)) / (flat(m) @ flat(m)) * flat(m)
    np.testing.assert_allclose(found, expected, rtol=1e-9, atol=1e-12)
    along = jax.tree.map(lambda n, m: 0.01 * n + 9 * m, noise, m)
    np.testing.assert_array_equal(flat(combine_with(method, along, params, own, 1)), flat(along))


# DER++


def test_derpp_adds_the_gradient_of_its_two_terms(x64, rng):
    params, memory = map(wide, filled(rng))
    now = jax.tree.map(lambda W: W + 0.2 * rng.normal(size=W.shape), params)
    g = jax.tree.map(lambda W: jnp.asarray(rng.normal(size=W.shape)), params)
    method = make_method("derpp", {"alpha": 0.7, "beta": 0.3, "memory": 24})
    found = combine_with(method, g, now, {"memory": memory}, 5)

    def naive(W):
        total, pairs = 0.0, 0
        for task in range(3):
            rows = np.flatnonzero(np.asarray(memory.task) == task)
            specific = ("image", "audio")[task % 2]
            sides = (("text", memory.general, memory.general_points),)
            sides += ((specific, memory.specific, memory.specific_points),)
            for modality, features, then in sides:
                here = apply_head(W[modality], features[rows], K)
                total = total + 0.7 * jnp.sum((here - then[rows]) ** 2) / (2 * here.shape[1])
            total = total + 0.3 * len(rows) * plain_loss(W, memory, task)
            pairs += len(rows)
        return 5 * total / pairs

    added = jax.jit(jax.grad(naive))(now)
    expected = jax.tree.map(jnp.add, g, added)
    np.testing.assert_allclose(flat(found), flat(expected), rtol=1e-6, atol=1e-9)
