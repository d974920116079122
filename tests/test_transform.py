"""What the transformations do, step by step, and how begin_task treats its input."""

import functools

import chex
import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from problems import heads_of, protected, random_problem

import hmcl_jax
from hmcl_jax import HmclProjectState, TaskAnchorState, lorentz
from hmcl_jax.projection import SPANS
from hmcl_jax.transform import VARIANTS, FiniteRotationState

every_variant = pytest.mark.parametrize("variant", VARIANTS)
every_span = pytest.mark.parametrize("span", SPANS)


def began(tx, params, protection):
    """The state of a first task."""
    return hmcl_jax.begin_task(tx.init(params), params, protection)


def walk(tx, params, protection, deltas):
    """The parameters after each step of a first task."""

    def step(carry, delta):
        updates, state = tx.update(delta, carry[1], carry[0])
        now = optax.apply_updates(carry[0], updates)
        return (now, state), now

    start = params, began(tx, params, protection)
    return jax.jit(lambda start: jax.lax.scan(step, start, deltas))(start)[1]


def assert_close(found, expected, atol=1e-12):
    for m, x in found.items():
        np.testing.assert_allclose(x, expected[m], atol=atol)


def test_before_any_task_the_spatial_block_passes_and_the_time_column_is_held(rng):
    problem = random_problem(rng, 5, [3, 2], dtype=np.float32)
    for variant in VARIANTS:
        tx = hmcl_jax.hmcl_project(variant)
        updates, _ = tx.update(problem.delta, tx.init(problem.heads), problem.heads)
        released = hmcl_jax.hmcl_project(variant, hold_time=False)
        free, _ = released.update(problem.delta, released.init(problem.heads), problem.heads)
        for name, delta in problem.delta.items():
            np.testing.assert_array_equal(updates[name][:, 1:], delta[:, 1:])
            np.testing.assert_array_equal(updates[name][:, 0], 0)
            np.testing.assert_array_equal(free[name], delta)


@every_variant
def test_during_a_task_the_transformations_are_the_pure_functions(rng, variant):
    problem = random_problem(rng, 5, [3, 2], dtype=np.float32)
    protection = protected(problem)
    pure = {"mr": hmcl_jax.minimal_rotation, "ca": hmcl_jax.closest_admissible}
    for hold in (True, False):
        tx = hmcl_jax.hmcl_project(variant, hold_time=hold)
        state = began(tx, problem.heads, protection)
        updates, _ = jax.jit(tx.update)(problem.delta, state, problem.heads)
        for name, delta in problem.delta.items():
            np.testing.assert_array_equal(updates[name][:, 0], 0 if hold else delta[:, 0])
        if variant in pure:
            expected = pure[variant](problem.delta, protection, hold_time=hold)
            assert_close(updates, expected, atol=1e-6)


def test_anchor_follows_its_recursion(x64, rng):
    start = {"image": rng.normal(size=(3, 4))}
    tx = hmcl_jax.task_anchor(0.15)
    state = hmcl_jax.begin_task(tx.init(start), start, None)
    W = start["image"]
    params = start
    for _ in range(10):
        u = rng.normal(size=(3, 4))
        W = 0.15 * start["image"] + 0.85 * (W + u)
        updates, state = tx.update({"image": u}, state, params)
        params = optax.apply_updates(params, updates)
        np.testing.assert_allclose(params["image"], W, rtol=1e-12)


@pytest.mark.parametrize(("variant", "beta"), [("mr", 0.05), ("ca", 0.9)])
def test_anchoring_obeys_the_bound(rng, beta, variant):
    problem = random_problem(rng, 6, [2, 3], dtype=np.float32)
    tx = optax.chain(hmcl_jax.hmcl_project(variant), hmcl_jax.task_anchor(beta))
    params = heads_of(problem)
    # Always the same way, the worst case.
    direction = {m: rng.normal(size=W.shape) for m, W in params.items()}
    deltas = {
        m: np.float32(x + 0.1 * rng.normal(size=(200, *x.shape))) for m, x in direction.items()
    }

    way = walk(tx, params, protected(problem), deltas)
    moved = {m: np.asarray(way[m]) - problem.heads[m] for m in params}

    def lengths(tree):
        return np.sqrt(sum((np.asarray(x) ** 2).sum((1, 2)) for x in tree.values()))

    longest, furthest = lengths(deltas).max(), lengths(moved).max()
    assert furthest <= (1 - beta) / beta * longest * (1 + 1e-5)
    assert furthest > 0.2 * (1 - beta) / beta * longest
    defect = hmcl_jax.lorentz_defect({m: x[-1] for m, x in moved.items()}, protected(problem))
    assert float(defect) / furthest**2 < 1e-9


def test_projecting_the_gradient_is_not_enough_projecting_the_step_is(x64):
    # The paper's counterexample in the head of a plane: admissible directions are span([1, 1]),
    # the preconditioner is diag(1, 2).
    heads = hmcl_jax.identity_heads(["image"], 2, jnp.float64)
    protected_point = np.array([[1.0, -1.0]])
    moments = hmcl_jax.update_moments(hmcl_jax.init_moments(heads), {"image": protected_point})
    protection = hmcl_jax.protect(moments, heads)

    def precondition(updates, params=None):
        return {"image": -0.1 * updates["image"] * jnp.array([[1.0, 1.0, 2.0]])}

    scaling = optax.stateless(precondition)
    gradient = {"image": jnp.array([[0.0, 1.0, 1.0], [0.0, 1.0, 1.0]])}

    def motion(tx):
        updates, _ = jax.jit(tx.update)(gradient, began(tx, heads, protection), heads)
        return np.abs(np.asarray(updates["image"])[:, 1:] @ protected_point[0]).max()

    before = motion(optax.chain(hmcl_jax.hmcl_project("mr"), scaling))
    after = motion(optax.chain(scaling, hmcl_jax.hmcl_project("mr")))
    np.testing.assert_allclose(before, 0.1)
    assert after < 1e-15


def distortions(problem, before, after):
    """Largest relative change of Lorentz products (intra and cross) and of radii."""

    def lifted(W):
        y = {m: problem.lifted[m].astype(np.float64) @ np.asarray(W[m], np.float64).T for m in W}
        return np.asarray(np.concatenate(list(y.values())))

    a, b = lifted(before), lifted(after)
    with jax.enable_x64(True):
        products = [np.asarray(lorentz.pairwise_inner(y, y)) for y in (a, b)]
    radii = [np.linalg.norm(y, axis=1) for y in (a, b)]
    return np.abs(products[1] / products[0] - 1).max(), np.abs(radii[1] / radii[0] - 1).max()


@every_span
@pytest.mark.parametrize(("dim", "rank"), [(16, 4), pytest.param(128, 20, marks=pytest.mark.slow)])
def test_finite_rotation_keeps_the_geometry_over_a_thousand_steps(rng, dim, rank, span):
    problem = random_problem(rng, dim, [rank] * 2, samples=60, dtype=np.float32, time_column=False)
    params, protection = heads_of(problem), protected(problem)
    drift = {m: 2e-3 * rng.normal(size=W.shape) for m, W in params.items()}
    deltas = {m: np.float32(x + 1e-3 * rng.normal(size=(1000, *x.shape))) for m, x in drift.items()}
    found = {}
    for variant in ("ca", "rotation"):
        project = hmcl_jax.hmcl_project(variant, span=span)
        way = walk(optax.chain(project, hmcl_jax.task_anchor(0.1)), params, protection, deltas)
        after = {m: x[-1] for m, x in way.items()}
        found[variant] = products, radii = distortions(problem, params, after)
        print(f"{variant}, {span}, d = {dim}: products off by {products:.2e}, radii by {radii:.2e}")
        assert max(float(jnp.abs(after[m] - params[m]).max()) for m in params) > 1e-2
    assert max(found["rotation"]) < 1e-4
    assert min(found["ca"]) > 10 * max(found["rotation"])


@every_span
def test_finite_rotation_starts_as_first_order_ca(x64, rng, span):
    problem = random_problem(rng, 6, [2, 3])
    protection = protected(problem)
    tiny = {m: 1e-6 * x for m, x in problem.delta.items()}
    for beta in (0.0, 0.25):
        steps = {}
        for variant in ("ca", "rotation"):
            project = hmcl_jax.hmcl_project(variant, span=span)
            tx = optax.chain(project, hmcl_jax.task_anchor(beta))
            params, update = problem.heads, jax.jit(tx.update)
            state = began(tx, params, protection)
            for _ in range(3):
                updates, state = update(tiny, state, params)
                params = optax.apply_updates(params, updates)
            steps[variant] = {m: params[m] - problem.heads[m] for m in params}
        assert_close(steps["rotation"], steps["ca"], atol=1e-10)
        assert min(np.abs(x).max() for x in steps["ca"].values()) > 1e-7


def test_finite_rotation_repeats_a_dropped_step_and_begins_anew_with_a_task(x64, rng):
    problem = random_problem(rng, 6, [2, 3], time_column=False)
    tx = hmcl_jax.hmcl_project("rotation")
    state, update = began(tx, problem.heads, protected(problem)), jax.jit(tx.update)
    _, state = update(problem.delta, state, problem.heads)  # the update is dropped
    updates, state = update(problem.delta, state, problem.heads)
    heads = {m: np.asarray(W) for m, W in optax.apply_updates(problem.heads, updates).items()}
    assert max(distortions(problem, problem.heads, heads)) < 1e-12
    later = problem._replace(heads=heads)
    state = hmcl_jax.begin_task(state, heads, protected(later))
    assert not any(np.any(x) for x in state.rotation.turned)
    tiny = {m: 1e-7 * x for m, x in problem.delta.items()}
    updates, _ = update(tiny, state, heads)
    assert_close(updates, hmcl_jax.closest_admissible(tiny, protected(later)))


def test_the_rotation_learns_the_beta_of_the_anchor_behind_it(rng):
    problem = random_problem(rng, 5, [2, 2, 2], dtype=np.float32)
    params, protection = heads_of(problem), protected(problem)

    def betas(tx):
        state = began(tx, params, protection)
        nodes = jax.tree.leaves(state, is_leaf=lambda n: isinstance(n, FiniteRotationState))
        ours = [node for node in nodes if isinstance(node, FiniteRotationState)]
        return [round(float(node.beta), 3) for node in ours]

    rotation = hmcl_jax.hmcl_project("rotation")
    assert betas(rotation) == [0]
    assert betas(optax.chain(rotation, hmcl_jax.task_anchor(0.3))) == [0.3]
    heads_only = hmcl_jax.task_anchor(0.2, heads={"m0": "m0"})  # does not cover the heads
    assert betas(optax.chain(rotation, heads_only)) == [0]
    injected = optax.chain(rotation, optax.inject_hyperparams(hmcl_jax.task_anchor)(beta=0.2))
    assert betas(injected) == [0.2]
    state = injected.init(params)
    state[1].hyperparams["beta"] = jnp.asarray(0.6)
    begun = hmcl_jax.begin_task(state, params, protection)
    assert round(float(begun[0].rotation.beta), 3) == 0.6
    # An anchor that covers more than the heads counts, and each group has its own.
    named = hmcl_jax.hmcl_project("rotation", heads={"m0": "m0"})
    with_others = optax.chain(named, hmcl_jax.task_anchor(0.4))
    assert round(float(began(with_others, params, None)[0].rotation.beta), 3) == 0.4
    assert betas(optax.chain(hmcl_jax.task_anchor(0.3), rotation)) == [0]  # in front of it
    anchor = optax.inject_hyperparams(hmcl_jax.task_anchor)
    groups = {name: optax.chain(rotation, anchor(beta=b)) for name, b in (("a", 0.3), ("b", 0.5))}
    assert betas(optax.partition(groups, {"m0": "a", "m1": "a", "m2": "b"})) == [0.3, 0.5]
    with pytest.raises(ValueError, match="one task_anchor behind it, got 2"):
        betas(optax.chain(rotation, hmcl_jax.task_anchor(0.2), hmcl_jax.task_anchor(0.1)))


@pytest.mark.parametrize(("variant", "named"), [("ca", True), ("ca", False), ("rotation", True)])
def test_heads_that_cannot_turn_together_stay_in_place(x64, rng, variant, named):
    problem = random_problem(rng, 5, [2, 3, 0], time_column=False)
    stage = hmcl_jax.hmcl_project(variant, {m: m for m in problem.heads} if named else None)
    tx = optax.partition({"a": stage, "b": stage}, {"m0": "a", "m1": "b", "m2": "b"})

    def update(protection):
        return jax.jit(tx.update)(
            problem.delta, began(tx, problem.heads, protection), problem.heads
        )[0]

    held = hmcl_jax.minimal_rotation(problem.delta, protected(problem))
    assert_close(update(protected(problem)), held)
    # With nothing protected in the other group, the first may turn.
    alone = protected(problem._replace(lifted={**problem.lifted, "m1": problem.lifted["m1"][:0]}))
    if variant == "ca":
        assert_close(update(alone), hmcl_jax.closest_admissible(problem.delta, alone))


def test_everything_in_the_state_is_a_copy(rng):
    problem = random_problem(rng, 5, [3], dtype=np.float32)
    params, given = heads_of(problem), protected(problem)
    state = began(hmcl_jax.hmcl(1e-2, variant="rotation"), params, given)
    pointers = {x.unsafe_buffer_pointer() for x in jax.tree.leaves((params, given))}
    for leaf in jax.tree.leaves(state):
        assert leaf.unsafe_buffer_pointer() not in pointers
    anchor = next(s for s in state if isinstance(s, TaskAnchorState))
    np.testing.assert_array_equal(anchor.anchor["m0"], params["m0"])


def test_a_whole_branch_may_be_masked(rng):
    params = {"image": hmcl_jax.identity_head(4), "tower": {"a": jnp.ones(3), "b": jnp.ones(2)}}
    mask = {"image": True, "tower": False}
    named = {"image": "image", "text": "tower/a"}
    tx = optax.masked(hmcl_jax.hmcl_project("mr", heads=named), mask)
    ones = jax.tree.map(jnp.ones_like, params)
    updates, _ = tx.update(ones, began(tx, params, None), params)
    np.testing.assert_array_equal(updates["tower"]["a"], 1)
    np.testing.assert_array_equal(updates["image"][:, 0], 0)


def test_the_preset_hands_everything_on(rng):
    problem = random_problem(rng, 4, [2], dtype=np.float32)
    params = {"m0": jnp.array(problem.heads["m0"]), "scale": jnp.array(2.0)}
    gradient = {"m0": problem.delta["m0"], "scale": jnp.array(1.0)}
    heads = {"m0": "m0"}

    def update(**options):
        tx = hmcl_jax.hmcl(1e-2, heads=heads, **options)
        moved = jax.tree.map(lambda x: x + 1, params)
        return jax.jit(tx.update)(gradient, tx.init(params), moved)[0]

    plain = update(beta=0.0)
    assert float(update(beta=0.5)["scale"]) == float(plain["scale"])  # only heads are anchored
    assert np.abs(update(beta=0.5)["m0"] - plain["m0"]).max() > 0.1
    assert np.abs(update(beta=0.0, weight_decay=0.9)["m0"] - plain["m0"]).max() > 1e-3
    assert np.abs(plain["m0"][:, 0]).max() == 0
    assert np.abs(update(beta=0.0, hold_time=False)["m0"][:, 0]).max() > 1e-3


def test_the_preset_is_the_papers_by_default(rng):
    problem = random_problem(rng, 4, [2, 3], dtype=np.float32)
    stages = optax.adamw(1e-2, weight_decay=0.0), hmcl_jax.hmcl_project("ca")
    by_hand = optax.chain(*stages, hmcl_jax.task_anchor(0.15))
    injected = optax.inject_hyperparams(hmcl_jax.hmcl)(1e-2, beta=0.15)
    found = []
    for tx in (hmcl_jax.hmcl(1e-2), injected, by_hand):
        params, update = heads_of(problem), jax.jit(tx.update)
        state = began(tx, params, protected(problem))
        for k in range(3):
            gradient = {m: (-0.5) ** k * x for m, x in problem.delta.items()}
            updates, state = update(gradient, state, params)
            params = optax.apply_updates(params, updates)
        found.append(params)
    for preset in found[:2]:
        assert_close(preset, found[2], atol=1e-6)


def test_the_protected_width_may_grow_from_task_to_task(rng):
    tx = hmcl_jax.hmcl(1e-2, variant="rotation", span="ambient")
    for ranks, width in (([3, 2], 16), ([3, 40], 64), ([0, 70], 100)):
        problem = random_problem(rng, 100, ranks, samples=80, dtype=np.float32)
        state = began(tx, problem.heads, protected(problem))
        project = next(s for s in state if isinstance(s, HmclProjectState))
        assert project.protection.basis["m0"].shape == (100, width)
        shared = project.protection.shared_basis.shape
        assert project.rotation.turned.outside.shape == shared
        assert project.rotation.turned.inside.shape == (shared[1], shared[1])


def test_the_anchor_computes_in_float32_and_leaves_integers_alone():
    tx = hmcl_jax.task_anchor(0.1)
    start = {"W": jnp.array([1.0], jnp.bfloat16), "step": jnp.array(3)}
    now = {"W": jnp.array([1.0078125], jnp.bfloat16), "step": jnp.array(5)}
    update = {"W": jnp.array([0.0100097], jnp.bfloat16), "step": jnp.array(1)}
    updates, _ = tx.update(update, tx.init(start), now)
    exact = 0.9 * float(update["W"][0]) - 0.1 * 0.0078125
    assert updates["W"].dtype == jnp.bfloat16
    assert float(updates["W"][0]) == float(jnp.asarray(exact, jnp.bfloat16))
    assert int(updates["step"]) == 1


@pytest.mark.parametrize(("variant", "hold_time"), [("ca", False), ("rotation", True)])
def test_an_empty_protection_leaves_the_plain_update(rng, variant, hold_time):
    problem = random_problem(rng, 5, [2, 3], dtype=np.float32)
    params = heads_of(problem)
    tx = optax.chain(hmcl_jax.hmcl_project(variant, hold_time=hold_time), hmcl_jax.task_anchor(0.2))
    full = began(tx, params, protected(problem))
    empty = hmcl_jax.begin_task(full, params, None)
    assert jax.tree.map(jnp.shape, empty) == jax.tree.map(jnp.shape, full)
    plain = {m: np.array(x) for m, x in problem.delta.items()}
    for x in plain.values():
        x[:, 0] *= not hold_time
    anchor = hmcl_jax.task_anchor(0.2)
    expected, _ = anchor.update(plain, anchor.init(params), params)
    alone = jax.jit(tx.update)(problem.delta, empty, params)
    corrected = jax.jit(tx.update)(problem.delta, full, params)
    both = jax.tree.map(lambda *x: jnp.stack(x), empty, full)
    many = {m: jnp.stack([x, x]) for m, x in problem.delta.items()}

    # Seeds of both kinds together, and one after the other.
    update = jax.vmap(lambda delta, state: tx.update(delta, state, params))
    in_turn = functools.partial(jax.lax.map, lambda x: tx.update(*x, params))
    for found in (jax.jit(update)(many, both), jax.jit(in_turn)((many, both))):
        first, second = (jax.tree.map(lambda x, k=k: x[k], found) for k in range(2))
        chex.assert_trees_all_close((first, second), (alone, corrected), rtol=1e-4, atol=1e-6)
        assert_close(first[0], expected, atol=0)
    assert_close(alone[0], expected, atol=0)
    if variant == "rotation":
        assert not any(np.any(x) for x in jax.tree.leaves(alone[1][0].rotation.turned))


@pytest.mark.parametrize(("variant", "hold_time"), [("mr", True), ("rotation", False)])
def test_the_state_holds_measures_of_the_step(x64, rng, variant, hold_time):
    problem = random_problem(rng, 6, [2, 3])
    protection = protected(problem)
    tx = hmcl_jax.hmcl_project(variant, span="ambient", hold_time=hold_time, measure=True)
    state = tx.init(problem.heads)
    _, nothing = tx.update(problem.delta, state, problem.heads)
    assert not any(np.any(x) for x in jax.tree.leaves(nothing.measured))
    state = hmcl_jax.begin_task(state, problem.heads, protection)
    step, state = jax.jit(tx.update)(problem.delta, state, problem.heads)
    measured = state.measured
    for root, delta in ((measured.defect_before, problem.delta), (measured.defect_after, step)):
        expected = np.sqrt(hmcl_jax.lorentz_defect(delta, protection))
        np.testing.assert_allclose(root, expected, rtol=1e-9, atol=1e-9)
    turn = hmcl_jax.shared_rotation(problem.delta, protection, span="ambient")
    omega = hmcl_jax.generator(turn, protection)
    np.testing.assert_allclose(measured.rotation, np.linalg.norm(omega) / np.sqrt(2), rtol=1e-9)
    plain = hmcl_jax.hmcl_project(variant, span="ambient", hold_time=hold_time)
    begun = hmcl_jax.begin_task(plain.init(problem.heads), problem.heads, protection)
    assert_close(plain.update(problem.delta, begun, problem.heads)[0], step, atol=1e-12)
