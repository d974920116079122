"""Baselines, each against a plain version of what it claims to be."""

import dataclasses
import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import quadprog
import scipy.optimize

import hmcl_jax
from hmcl_jax import apply_head, lorentz, objective
from hmcl_jax.continual import TrainConfig, make_method
from hmcl_jax.continual.method import Batch, MethodState, TaskEnd, TaskInfo
from hmcl_jax.continual.methods import METHODS, cflat, dns, ewc, gem, list_methods
from hmcl_jax.continual.methods.memory import (
    empty_memory,
    memory_losses,
    memory_points,
    remember,
    task_weights,
)

DIM, K, TAU = 6, 10.0, 0.3
CONFIG = TrainConfig(kappa=0.1, entailment_weight=0.2)


def info(kind="classification", first=False, general="text", specific="image"):
    return TaskInfo(kind, general, specific, first, K, TAU, CONFIG)


def task_end(rng, place, count=40, seeds=(3, 8), specific="image"):
    """The end of a classification task of five classes."""
    general = rng.normal(size=(5, DIM)).astype(np.float32)
    features = rng.normal(size=(count, DIM)).astype(np.float32)
    pairs = np.stack([np.arange(count), rng.integers(0, 5, count)], axis=1)
    counts = {"text": np.bincount(pairs[:, 1], minlength=5), specific: np.ones(count, int)}
    shown = {"text": general, specific: features}
    about = info(first=place == 0, specific=specific)
    return TaskEnd(about, shown, counts, pairs, general, features, seeds, place)


def heads(rng, seeds=2, modalities=("image", "text"), dtype=jnp.float32):
    return {
        m: jnp.asarray(
            np.eye(DIM, DIM + 1, k=1) + 0.1 * rng.normal(size=(seeds, DIM, DIM + 1)), dtype
        )
        for m in modalities
    }


def one(tree, seed=0):
    return jax.tree.map(lambda x: x[seed], tree)


def flat(tree):
    return np.concatenate([np.asarray(tree[m], np.float64).ravel() for m in sorted(tree)])


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
    single = remember(empty_memory(16, heads(rng, 1)), alone, one_seed(params, 1))
    np.testing.assert_array_equal(single.specific[0], memory.specific[1])


def one_seed(params, seed):
    return {m: W[seed : seed + 1] for m, W in params.items()}


def filled(rng, tasks=3, slots=24, dtype=jnp.float32):
    """Heads of two seeds, a memory of tasks of two modalities, and its losses by task."""
    params = heads(rng, modalities=("audio", "image", "text"))
    memory = empty_memory(slots, params)
    for place in range(tasks):
        specific = ("image", "audio")[place % 2]
        memory = remember(memory, task_end(rng, place, specific=specific), params)
    return params, memory


def plain_loss(params, memory, task):
    """Loss of the stored pairs of one task, by the objective itself."""
    rows = np.flatnonzero(np.asarray(memory.task) == task)
    specific = ("image", "audio")[task % 2]
    return objective.pair_loss(
        apply_head(params["text"], memory.general[rows], K),
        apply_head(params[specific], memory.specific[rows], K),
        tau=TAU,
        K=K,
        kappa=CONFIG.kappa,
        entailment_weight=CONFIG.entailment_weight,
    )


def test_memory_losses_are_the_objective_of_each_task(rng):
    params, memory = filled(rng)
    params, memory = one(params), one(memory)
    losses = memory_losses(*memory_points(memory, params, K), memory, info())
    weights = task_weights(memory)
    for task in range(3):
        mean = jnp.sum(jnp.where(memory.task == task, losses * weights, 0))
        assert mean == pytest.approx(float(plain_loss(params, memory, task)), rel=1e-4)


# GEM


def problem(rng, rows, columns=40):
    """Memory gradients of norms over six orders of magnitude, some equal, zero or feasible."""
    M = rng.normal(size=(rows, columns)) * 10 ** rng.uniform(-3, 3, size=(rows, 1))
    g = rng.normal(size=columns)
    kind = rng.integers(0, 5)
    if kind == 1 and rows > 1:
        M[1] = M[0]
    elif kind == 2:
        M[rng.integers(0, rows)] = 0
    elif kind == 3:
        g = M.T @ np.abs(rng.normal(size=rows))
    elif kind == 4:
        g = -M.T @ np.abs(rng.normal(size=rows)) + 0.1 * g
    return M, g


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
    for number in range(500):
        rows = 1 + number % 15
        M, g = (x.astype(dtype).astype(np.float64) for x in problem(rng, rows))
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


def test_gem_adds_the_dual_combination_of_the_memory_gradients(x64, rng):
    params, memory = filled(rng)
    memory = jax.tree.map(lambda x: x.astype(float) if x.dtype == jnp.float32 else x, memory)
    params = one(jax.tree.map(lambda x: x.astype(float), params), 1)
    own = {"memory": one(memory, 1)}
    M = np.stack(
        [
            flat(jax.grad(functools.partial(plain_loss, memory=own["memory"], task=task))(params))
            for task in range(3)
        ]
    )
    method = make_method("gem")
    for sign in (-1, 1):
        noise = jax.tree.map(lambda x: jnp.asarray(rng.normal(size=x.shape)), params)
        towards = dict(zip(sorted(params), np.split(M.sum(0), 3), strict=True))
        g = {m: 0.01 * x + sign * towards[m].reshape(x.shape) for m, x in noise.items()}
        found = flat(combine_with(method, g, params, own, 7))
        if sign > 0:
            np.testing.assert_array_equal(found, flat(g))  # nothing is violated
            continue
        v = dual_by_nnls(7 * M, flat(g), 0.5, 1e-3)
        np.testing.assert_allclose(found, flat(g) + 7 * M.T @ v, rtol=1e-9, atol=1e-9)


def combine_with(method, g, params, own, minibatches):
    state = MethodState((), own)
    about = info()
    return jax.jit(lambda g: method.combine((g,), params, state, jnp.asarray(minibatches), about))(
        g
    )


def test_agem_takes_the_part_against_the_memory_away(x64, rng):
    params, memory = filled(rng)
    memory = jax.tree.map(lambda x: x.astype(float) if x.dtype == jnp.float32 else x, memory)
    params, own = one(jax.tree.map(lambda x: x.astype(float), params)), {"memory": one(memory)}

    def total(params):
        return sum(plain_loss(params, own["memory"], task) for task in range(3))

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
    params, memory = filled(rng)
    params, memory = (jax.tree.map(lambda x: _wide(x[0]), tree) for tree in (params, memory))
    now = jax.tree.map(lambda W: W + 0.2 * rng.normal(size=W.shape), params)
    g = jax.tree.map(lambda W: jnp.asarray(rng.normal(size=W.shape)), params)
    method = make_method("derpp", {"alpha": 0.7, "beta": 0.3, "memory": 24})
    found = method.combine((g,), now, MethodState((), {"memory": memory}), jnp.asarray(5), info())

    def naive(W):
        total, pairs = 0.0, 0
        for task in range(3):
            rows = np.flatnonzero(np.asarray(memory.task) == task)
            specific = ("image", "audio")[task % 2]
            sides = (("text", memory.general, memory.general_points),)
            sides += ((specific, memory.specific, memory.specific_points),)
            for modality, features, then in sides:
                here = apply_head(W[modality], features[rows], K)
                total = total + 0.7 * jnp.sum((here - then[rows]) ** 2)
            total = total + 0.3 * len(rows) * plain_loss(W, memory, task)
            pairs += len(rows)
        return 5 * total / pairs

    added = jax.grad(naive)(now)
    expected = jax.tree.map(jnp.add, g, added)
    np.testing.assert_allclose(flat(found), flat(expected), rtol=1e-6, atol=1e-9)


def _wide(x):
    return x.astype(jnp.float64) if jnp.issubdtype(x.dtype, jnp.floating) else x


# EWC


@pytest.mark.parametrize("mode", ["separate", "online"])
@pytest.mark.parametrize("fisher", ["batch", "minibatch", "sample"])
def test_ewc_is_the_gradient_of_its_penalty(rng, mode, fisher):
    settings = ewc.EwcSettings(coefficient=0.3, memory=16, mode=mode, fisher=fisher, decay=0.5)
    method = ewc.make("ewc", settings)
    start = heads(rng)
    state = method.init(start)
    kept = []  # Fishers and anchors of all tasks, stored one by one
    decay = 0.5 if mode == "online" else 1.0
    for place in range(3):
        params = jax.tree.map(lambda W: W + 0.1 * rng.normal(size=W.shape).astype(W.dtype), start)
        before = state.own["fisher"]
        state = method.end_task(state, params, task_end(rng, place))
        added = jax.tree.map(lambda new, old: new - decay * old, state.own["fisher"], before)
        kept.append((added, params))
    params = jax.tree.map(lambda W: W + 0.2, start)

    def penalty(params):
        terms = kept if mode == "separate" else [(state.own["fisher"], kept[-1][1])]
        return 0.3 * sum(
            jnp.sum(F[m] * (params[m] - anchor[m]) ** 2) for F, anchor in terms for m in params
        )

    expected = jax.grad(penalty)(params)
    zero = jax.tree.map(jnp.zeros_like, one(params))
    for seed in range(2):
        found = method.combine(
            (zero,),
            one(params, seed),
            MethodState((), one(state.own, seed)),
            jnp.asarray(4),
            info(),
        )
        np.testing.assert_allclose(flat(found), 4 * flat(one(expected, seed)), rtol=2e-4, atol=1e-6)
        assert np.abs(flat(found)).max() > 0
    assert (np.asarray(method.log(state)["penalty / loss gradient"]) > 0).all()


@pytest.mark.parametrize("reduction", [pytest.param("mean", marks=pytest.mark.slow), "sum"])
@pytest.mark.parametrize("fisher", ["batch", "minibatch", "sample"])
def test_fishers_are_squares_of_gradients(x64, rng, fisher, reduction):
    settings = ewc.EwcSettings(memory=128, fisher=fisher, reduction=reduction)
    method = ewc.make("ewc", settings)
    params = heads(rng, 1, dtype=jnp.float64)
    end = task_end(rng, 0, count=100, seeds=(5,))
    found = method.end_task(method.init(params), params, end).own["fisher"]
    drawn = np.random.default_rng([5, 0, ewc.SALT]).permutation(100)
    text, image = end.general[end.pairs[drawn, 1]], end.specific[end.pairs[drawn, 0]]

    def terms(params, rows):
        return objective.pair_terms(
            apply_head(params["text"], text[rows].astype(float), K),
            apply_head(params["image"], image[rows].astype(float), K),
            tau=TAU,
            K=K,
            kappa=0.1,
            entailment_weight=0.2,
        )

    reduce = jnp.mean if reduction == "mean" else jnp.sum
    everything = np.arange(100)
    if fisher == "batch":
        gradients = [jax.grad(lambda W: reduce(terms(W, everything)))(one(params))]
    elif fisher == "minibatch":
        parts = (everything[:64], everything[64:])
        gradients = [jax.grad(lambda W, p=p: reduce(terms(W, p)))(one(params)) for p in parts]
    else:
        rows = jax.jacrev(lambda W: terms(W, everything))(one(params))
        gradients = [one(rows, i) for i in everything]
    squares = np.stack([flat(g) ** 2 for g in gradients])
    summed = fisher == "sample" and reduction == "sum"
    expected = squares.sum(0) if summed else squares.mean(0)
    np.testing.assert_allclose(flat(one(found)), expected, rtol=1e-6, atol=1e-12)


# C-FLAT


def test_cflat_goes_through_its_four_gradients(rng):
    method = make_method("cflat", {"rho": 0.2, "coefficient": 0.3})
    assert (method.stages(info(first=True)), method.stages(info())) == (1, 4)
    A = rng.normal(size=(DIM * (DIM + 1) * 2,) * 2)
    params = one(heads(rng))
    sizes = {m: W.shape for m, W in params.items()}

    def gradient(theta):  # of some smooth function
        return A @ np.tanh(A.T @ theta)

    def tree(x):
        parts = np.split(x, 2)
        return {
            m: jnp.asarray(p.reshape(sizes[m])) for m, p in zip(sorted(sizes), parts, strict=True)
        }

    gradients = ()
    for _ in range(4):
        at = method.point(params, gradients, MethodState((), ()))
        gradients = (*gradients, tree(gradient(flat(at))))
    found = flat(method.combine(gradients, params, MethodState((), ()), jnp.asarray(1), info()))

    theta = flat(params)
    g0 = gradient(theta)
    g1 = gradient(theta + 0.2 * g0 / np.linalg.norm(g0))
    e1 = 0.2 * (g1 - g0) / np.linalg.norm(g1 - g0)
    g2 = gradient(theta + e1)
    g3 = gradient(theta + e1 + 0.2 * g2 / np.linalg.norm(g2))
    np.testing.assert_allclose(found, g1 + 0.3 * (g3 - g2), rtol=1e-3, atol=1e-3)


@pytest.mark.parametrize("place", [0, 1, 4])
def test_cflat_distils_similarities(rng, place):
    settings = cflat.CflatSettings(power=0.7, memory=4, beside=3)
    method = cflat.make("cflat", settings)
    params = heads(rng)
    state = method.end_task(method.init(params), params, task_end(rng, 0))
    now = one(jax.tree.map(lambda W: W + 0.3 * rng.normal(size=W.shape).astype(W.dtype), params))
    general, specific = (rng.normal(size=(3, DIM)).astype(np.float32) for _ in range(2))
    points = [apply_head(now[m], z, K) for m, z in (("text", general), ("image", specific))]
    valid = jnp.array([True, True, False])
    own = MethodState((), one(state.own))
    batch = Batch(general, specific, *points, valid, now, jnp.int32(place))
    found = float(method.term(own, batch, info()))

    turn = (3 * place + np.arange(3)) % 4
    memory = jax.tree.map(lambda x: x[turn], one(state.own["memory"]))
    rows = {"now": [], "past": []}
    for when, W in (("now", now), ("past", one(params))):
        for m, z in (("text", general[:2]), ("image", specific[:2])):
            rows[when].append(np.asarray(apply_head(W[m], z, K)))
        for m, z in (("text", memory.general), ("image", memory.specific)):
            rows[when].append(np.asarray(apply_head(W[m], z, K)))
    p = {}
    for when, temperature in (("now", 0.2), ("past", 0.01)):
        y = np.concatenate(rows[when]).astype(np.float64)
        y /= np.linalg.norm(y, axis=1, keepdims=True)
        s = y @ y.T / temperature
        np.fill_diagonal(s, -np.inf)
        s -= s.max(axis=1, keepdims=True)
        p[when] = np.exp(s) / np.exp(s).sum(axis=1, keepdims=True)
    off = ~np.eye(len(p["now"]), dtype=bool)
    expected = -(p["past"][off] * np.log(p["now"][off])).sum() / len(p["now"]) * 0.7
    assert found == pytest.approx(expected, rel=1e-4)
    assert float(method.term(own, batch, info(first=True))) == 0


# DNS


def test_dns_keeps_old_products_at_full_rank(x64, rng):
    settings = dns.DnsSettings(lambda_min=1e-9, left_tolerance=1e-9)
    method = dns.make("dns", settings)
    params = heads(rng, dtype=jnp.float64)
    state = method.init(params)
    end = task_end(rng, 0, count=3)  # few pairs: there is room beside them
    state = method.end_task(state, params, end)
    g = jax.tree.map(lambda W: jnp.asarray(rng.normal(size=W.shape)), params)
    for seed in range(2):
        own = MethodState(state.shared, one(state.own, seed))
        step = method.combine((one(g, seed),), one(params, seed), own, jnp.asarray(1), info())
        assert np.abs(flat(step)).max() > 0.1
        z = {
            "image": lorentz.lift(jnp.asarray(end.specific[end.pairs[:, 0]], float), K),
            "text": lorentz.lift(jnp.asarray(end.general[end.pairs[:, 1]], float), K),
        }
        for a, b in (("image", "text"), ("text", "image")):
            moved = z[a] @ step[a].T
            partner = z[b] @ params[b][seed].T
            np.testing.assert_allclose(moved @ partner.T, 0, atol=1e-6)


def test_dns_moments_are_those_of_all_pairs(rng):
    method = make_method("dns")
    params = heads(rng)
    state = method.init(params)
    ends = [task_end(rng, place, count=20 + 10 * place) for place in range(3)]
    for end in ends:
        state = method.end_task(state, params, end)
    for m, column, side in (("image", 0, "specific"), ("text", 1, "general")):
        x = np.concatenate([getattr(end, side)[end.pairs[:, column]] for end in ends])
        z = np.concatenate([np.sqrt(K + (x**2).sum(1, keepdims=True)), x], axis=1)
        C = z.T @ z / len(z)
        np.testing.assert_allclose(state.shared["inputs"][m], C, rtol=1e-4, atol=1e-4)
        partner = "text" if m == "image" else "image"
        for seed in range(2):
            W = np.asarray(params[m][seed])
            expected = W @ C @ W.T
            np.testing.assert_allclose(
                state.own["outputs"][partner][seed], expected, rtol=1e-3, atol=1e-3
            )


def test_dns_without_left_tolerance_is_one_sided(rng):
    method = make_method("dns")
    params = heads(rng)
    state = method.end_task(method.init(params), params, task_end(rng, 0))
    eye = np.eye(DIM)
    np.testing.assert_array_equal(state.own["left"]["image"], np.stack([eye, eye]))
    fresh = method.init(params)
    g = one(params)
    own = MethodState(fresh.shared, one(fresh.own))
    untouched = method.combine((g,), g, own, jnp.asarray(1), info(first=True))
    np.testing.assert_array_equal(flat(untouched), flat(g))


# What is carried from task to task


@pytest.mark.parametrize("name", METHODS)
def test_the_state_is_as_large_as_said_and_does_not_grow(rng, name):
    slots = 24
    holds = hasattr(METHODS[name].settings, "memory")
    method = make_method(name, {"memory": slots} if holds else {})
    params = heads(rng)
    state = method.init(params)
    known = {"S": 2, "M": 2, "d": DIM, "n": slots}
    said = eval(METHODS[name].memory.split(",")[0], {"__builtins__": {}}, known)
    for place in range(4):
        state = method.end_task(state, params, task_end(rng, place))
        size = sum(leaf.nbytes for leaf in jax.tree.leaves(state))
        assert said <= size <= said + 64  # a few counters


def test_the_list_names_every_method_and_setting():
    text = list_methods()
    for name, entry in METHODS.items():
        assert f"{name}: {entry.about}" in text
        for setting in dataclasses.asdict(entry.settings):
            assert f"{setting} = " in text


# The null space behind the optimizer


def test_the_null_space_keeps_old_outputs(x64, rng):
    method = make_method("nullspace", {"variance": 1.0, "min_rank": 0})
    params = heads(rng, dtype=jnp.float64)
    state = method.init(params)
    end = task_end(rng, 0, count=3)
    state = method.end_task(state, params, end)
    tx = method.transform(CONFIG, info())
    opt_state = method.begin_task(jax.vmap(tx.init)(params), state, params, info())
    g = jax.tree.map(lambda W: jnp.asarray(rng.normal(size=W.shape)), params)
    updates, _ = jax.vmap(tx.update)(g, opt_state, params)
    assert np.abs(updates["image"]).max() > 1e-5
    x = hmcl_jax.lorentz.lift(jnp.asarray(end.specific, float), K)
    np.testing.assert_allclose(np.einsum("sij,nj->sni", updates["image"], x), 0, atol=1e-9)
