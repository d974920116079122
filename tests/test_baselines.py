"""Baselines without replay, and C-FLAT, each against a plain version of what it claims to be."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from task_ends import DIM, TAU, K, flat, heads, one, spec, task_end

from hmcl_jax import apply_head, lorentz, objective
from hmcl_jax.continual import make_method
from hmcl_jax.continual.method import MethodState, Minibatch
from hmcl_jax.continual.methods import METHODS, cflat, dns, ewc

# EWC


@pytest.mark.parametrize(
    ("fisher", "mode"),
    [
        ("sample", "separate"),
        pytest.param("batch", "online", marks=pytest.mark.slow),
        pytest.param("minibatch", "online", marks=pytest.mark.slow),
    ],
)
def test_ewc_is_the_gradient_of_its_penalty(rng, fisher, mode):
    method = ewc.Ewc(coefficient=0.3, memory=16, mode=mode, fisher=fisher, decay=0.5)
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
        own = MethodState((), one(state.own, seed))
        found = method.combine((zero,), one(params, seed), own, jnp.asarray(4), spec())
        np.testing.assert_allclose(flat(found), 4 * flat(one(expected, seed)), rtol=2e-4, atol=1e-6)
        assert np.abs(flat(found)).max() > 0
    assert (np.asarray(method.task_metrics(state, None, {})["penalty / loss gradient"]) > 0).all()


def test_ewc_pulls_no_head_from_where_one_task_left_it(rng):
    """Not even by rounding, of which AdamW would make whole steps; and none that a task lacks."""
    method = make_method("ewc", {"memory": 16})
    params = heads(rng, modalities=("audio", "image", "text"))
    state = method.end_task(method.init(params), params, task_end(rng, 0))
    zero = jax.tree.map(jnp.zeros_like, one(params))
    about = spec(specific="audio")

    @jax.jit
    def penalty(W):
        own = MethodState((), one(state.own))
        return method.combine((zero,), W, own, jnp.asarray(7), about)

    assert np.abs(flat(penalty(one(params)))).max() == 0
    moved = penalty(jax.tree.map(lambda W: W + 0.1, one(params)))
    assert np.abs(moved["text"]).max() > 0
    assert np.abs(moved["image"]).max() == 0


@pytest.mark.parametrize(
    ("fisher", "reduction"),
    [
        ("batch", "sum"),
        ("sample", "sum"),
        pytest.param("minibatch", "mean", marks=pytest.mark.slow),
        pytest.param("sample", "mean", marks=pytest.mark.slow),
    ],
)
def test_fishers_are_squares_of_gradients(x64, rng, monkeypatch, fisher, reduction):
    monkeypatch.setattr(ewc, "MINIBATCH", 10)
    method = ewc.Ewc(memory=24, fisher=fisher, reduction=reduction)
    params = heads(rng, 1, dtype=jnp.float64)
    end = task_end(rng, 0, count=18, seeds=(5,))
    found = method.end_task(method.init(params), params, end).own["fisher"]
    drawn = np.random.default_rng([5, 0, ewc.SALT]).permutation(18)
    text, image = map(
        jnp.asarray, (end.general[end.pairs[drawn, 1]], end.specific[end.pairs[drawn, 0]])
    )

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
    everything = np.arange(18)
    if fisher == "batch":
        gradients = [jax.grad(lambda W: reduce(terms(W, everything)))(one(params))]
    elif fisher == "minibatch":
        parts = (everything[:10], everything[10:])
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
    assert [len(method.probes(about)) for about in (spec(first=True), spec())] == [1, 4]
    A = rng.normal(size=(DIM * (DIM + 1) * 2,) * 2)
    params = one(heads(rng))

    def gradient(theta):  # of some smooth function
        return A @ np.tanh(A.T @ theta)

    def tree(x):
        first, second = (jnp.asarray(part.reshape(DIM, DIM + 1)) for part in np.split(x, 2))
        return {"image": first, "text": second}

    gradients = ()
    for probe in method.probes(spec()):
        at = probe(params, gradients, MethodState((), ()))
        gradients = (*gradients, tree(gradient(flat(at))))
    found = flat(method.combine(gradients, params, MethodState((), ()), jnp.asarray(1), spec()))

    theta = flat(params)
    g0 = gradient(theta)
    g1 = gradient(theta + 0.2 * g0 / np.linalg.norm(g0))
    e1 = 0.2 * (g1 - g0) / np.linalg.norm(g1 - g0)
    g2 = gradient(theta + e1)
    g3 = gradient(theta + e1 + 0.2 * g2 / np.linalg.norm(g2))
    np.testing.assert_allclose(found, g1 + 0.3 * (g3 - g2), rtol=1e-3, atol=1e-3)


@pytest.mark.parametrize(("place", "slots"), [(4, 4), (1, 0)])
def test_cflat_distils_similarities(rng, place, slots):
    method = cflat.Cflat(power=0.7, memory=slots, beside=3)
    params = heads(rng)
    state = method.end_task(method.init(params), params, task_end(rng, 0))
    now = one(jax.tree.map(lambda W: W + 0.3 * rng.normal(size=W.shape).astype(W.dtype), params))
    general, specific = (rng.normal(size=(3, DIM)).astype(np.float32) for _ in range(2))
    points = [apply_head(now[m], z, K) for m, z in (("text", general), ("image", specific))]
    valid = jnp.array([True, True, False])
    own = MethodState((), one(state.own))
    batch = Minibatch(general, specific, *points, valid, now, jnp.int32(place))
    found = float(method.extra_loss(own, batch, spec()))

    assert ("memory" in state.own) == bool(slots)
    if slots:
        turn = (3 * place + np.arange(3)) % 4
        stored = one(state.own["memory"])
        memory = {"text": stored.general[turn], "image": stored.specific[turn]}
    rows = {"now": [], "past": []}
    for when, W in (("now", now), ("past", one(params))):
        for m, z in (("text", general[:2]), ("image", specific[:2])):
            rows[when].append(np.asarray(apply_head(W[m], z, K)))
        for m, z in memory.items() if slots else ():
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
    assert float(method.extra_loss(own, batch, spec(first=True))) == 0


# DNS


def test_dns_keeps_old_products_at_full_rank(x64, rng):
    method = dns.Dns(lambda_min=1e-9, left_tolerance=1e-9)
    params = heads(rng, dtype=jnp.float64)
    end = task_end(rng, 0, count=3)  # few pairs: there is room beside them
    state = method.end_task(method.init(params), params, end)
    g = jax.tree.map(lambda W: jnp.asarray(rng.normal(size=W.shape)), params)
    for seed in range(2):
        own = MethodState(state.shared, one(state.own, seed))
        step = method.combine((one(g, seed),), one(params, seed), own, jnp.asarray(1), spec())
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
            outputs = state.own["outputs"][partner][seed]
            np.testing.assert_allclose(outputs, W @ C @ W.T, rtol=1e-3, atol=1e-3)


def test_dns_counts_every_pair_and_protects_modalities_that_come_late(rng):
    params = heads(rng, modalities=("audio", "image", "text"))
    ends = [task_end(rng, 0, count=90), task_end(rng, 1, count=10, specific="audio")]
    moments = {}
    for count in ("modality", "all"):
        method = make_method("dns", {"count": count})
        state = method.init({m: W for m, W in params.items() if m != "audio"})
        state = method.end_task(state, params, ends[0])
        state = method.add_modalities(state, params)
        moments[count] = method.end_task(state, params, ends[1]).shared["inputs"]
    x = ends[1].specific
    z = np.concatenate([np.sqrt(K + (x**2).sum(1, keepdims=True)), x], axis=1)
    np.testing.assert_allclose(moments["modality"]["audio"], z.T @ z / 10, rtol=1e-4, atol=1e-4)
    np.testing.assert_allclose(moments["all"]["audio"], z.T @ z / 100, rtol=1e-4, atol=1e-4)
    np.testing.assert_allclose(moments["modality"]["text"], moments["all"]["text"], rtol=1e-5)
    # One more pair counts, however many there were: float32 has no number between these.
    many = dict.fromkeys(params, jnp.int32(2**25))
    state = state._replace(shared={**state.shared, "samples": many})
    counted = make_method("dns").end_task(state, params, task_end(rng, 2, count=1)).shared
    assert int(counted["samples"]["image"]) == 2**25 + 1


def test_dns_leaves_no_rounding_where_all_directions_are_protected(rng, dtype):
    method = make_method("dns", {"lambda_min": 1e-3})
    params = heads(rng, dtype=dtype)
    state = method.end_task(method.init(params), params, task_end(rng, 0))
    g = jax.tree.map(lambda W: jnp.asarray(rng.normal(size=W.shape), dtype), one(params))
    own = MethodState(state.shared, one(state.own))
    step = method.combine((g,), g, own, jnp.asarray(1), spec())
    assert np.abs(step["image"]).max() == 0  # 40 samples span all of its 7 dimensions
    assert np.abs(step["text"]).max() > 0.1  # 5 texts do not


def test_dns_without_left_tolerance_is_one_sided_and_none_without_a_past(rng):
    method, params = make_method("dns"), heads(rng)
    state = method.end_task(method.init(params), params, task_end(rng, 0))
    eye = np.eye(DIM)
    np.testing.assert_array_equal(state.own["left"]["image"], np.stack([eye, eye]))
    fresh, g = method.init(params), one(params)
    own = MethodState(fresh.shared, one(fresh.own))
    untouched = method.combine((g,), g, own, jnp.asarray(1), spec(first=True))
    np.testing.assert_array_equal(flat(untouched), flat(g))


# What is carried from task to task


@pytest.mark.parametrize("name", METHODS)
def test_the_state_is_as_large_as_said_and_does_not_grow(rng, name):
    slots = 24
    holds = hasattr(METHODS[name].method, "memory")
    method = make_method(name, {"memory": slots} if holds else {})
    params = heads(rng)
    state = method.init(params)
    known = {"S": 2, "M": 2, "d": DIM, "n": slots}
    said = eval(METHODS[name].memory.split(",")[0], {"__builtins__": {}}, known)
    for place in range(4):
        state = method.end_task(state, params, task_end(rng, place))
        size = sum(leaf.nbytes for leaf in jax.tree.leaves(state))
        assert said <= size <= said + 64  # a few counters


# The null space behind the optimizer


def test_the_null_space_keeps_old_outputs(x64, rng):
    method = make_method("nullspace", {"variance": 1.0, "min_rank": 0})
    params, end = heads(rng, dtype=jnp.float64), task_end(rng, 0, count=3)
    state = method.end_task(method.init(params), params, end)
    tx = method.optimizer(spec())
    opt_state = method.begin_task(jax.vmap(tx.init)(params), state, params, spec())
    g = jax.tree.map(lambda W: jnp.asarray(rng.normal(size=W.shape)), params)
    updates, _ = jax.vmap(tx.update)(g, opt_state, params)
    assert np.abs(updates["image"]).max() > 1e-5
    x = lorentz.lift(jnp.asarray(end.specific, float), K)
    np.testing.assert_allclose(np.einsum("sij,nj->sni", updates["image"], x), 0, atol=1e-9)
