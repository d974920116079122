"""One contract for hmcl_project (all variants) and task_anchor, behind and inside Optax.

Every transformation: keeps dtypes, compiles once, works behind every optimizer and inside every
wrapper, under jit, vmap, scan, cond and donation, and its state survives a round trip.
"""

import collections

import chex
import jax
import jax.numpy as jnp
import numpy as np
import optax
import optax.contrib
import pytest
from flax import nnx
from problems import heads_of, moments_of, protected, random_problem

import hmcl_jax

DIM = 6
OPTIONS = {  # by the name of a variant here
    "mr": {"variant": "mr"},
    "ca": {"variant": "ca"},
    "rotation": {"variant": "rotation"},
    "ca-ambient": {"variant": "ca", "span": "ambient"},
    "rotation-ambient": {"variant": "rotation", "span": "ambient"},
}
# One for each kind of state: without rotation, and with all parts of it.
KINDS = ["ca", "rotation-ambient"]


def project(name, **more):
    return hmcl_jax.hmcl_project(**OPTIONS[name], **more)


STAGES = {
    "ca": lambda: project("ca"),
    "rotation": lambda: project("rotation-ambient"),
    "anchor": lambda: hmcl_jax.task_anchor(0.2),
}
OPTIMIZERS = {
    "sgd": lambda: optax.sgd(1e-2, momentum=0.9),
    "adam": lambda: optax.adam(1e-2),
    "adamw": lambda: optax.adamw(1e-2, weight_decay=0.1),
    "lion": lambda: optax.lion(1e-2),
    "adafactor": lambda: optax.adafactor(1e-2, min_dim_size_to_factor=2),
    "muon": lambda: optax.contrib.muon(1e-2),
}


@pytest.fixture
def problem(rng):
    return random_problem(rng, DIM, [2, 3], dtype=np.float32, time_column=False)


def gradients(params, seed=0):
    leaves, structure = jax.tree.flatten(params)
    keys = jax.random.split(jax.random.key(seed), len(leaves))
    return structure.unflatten(
        [jax.random.normal(k, x.shape).astype(x.dtype) for k, x in zip(keys, leaves, strict=True)]
    )


def make_step(tx):
    """Compiled; gives its state and parameters away, so they must not share buffers."""

    def step(g, state, params):
        updates, state = tx.update(g, state, params)
        return optax.apply_updates(params, updates), state

    return jax.jit(step, donate_argnums=(1, 2))


def run(step, state, params, steps=4):
    params = jax.tree.map(jnp.copy, params)
    for k in range(steps):
        params, state = step(gradients(params, k), state, params)
    return params, state


def assert_protected(problem, before, after, variant, tolerance=1e-5):
    """Protected points kept their Lorentz products; under mr they did not move at all."""
    outputs = [
        np.concatenate([problem.lifted[m] @ np.asarray(W[m], np.float32).T for m in problem.heads])
        for W in (before, after)
    ]
    moved = np.abs(outputs[1] - outputs[0]).max()
    grams = [y @ y.T for y in outputs]
    distortion = np.abs(grams[1] - grams[0]).max() / np.abs(grams[0]).max()
    if variant == "mr":
        assert moved < tolerance * np.abs(outputs[0]).max()
    else:
        assert moved > 1e-3
    # First-order CA distorts by the square of the motion; the finite rotation not at all.
    limit = (moved / np.abs(outputs[0]).max()) ** 2 * 10 if variant.startswith("ca") else tolerance
    assert distortion < limit
    assert any(float(jnp.abs(after[m] - before[m]).max()) > 1e-3 for m in before)


PAIRS = [("adamw", v) for v in OPTIONS] + [(name, "ca") for name in OPTIMIZERS if name != "adamw"]


@pytest.mark.parametrize(("optimizer", "variant"), PAIRS)
def test_protects_behind_every_optimizer(problem, optimizer, variant):
    params = heads_of(problem)
    tx = optax.chain(OPTIMIZERS[optimizer](), project(variant), hmcl_jax.task_anchor(0.1))
    state = hmcl_jax.begin_task(tx.init(params), params, protected(problem))
    after, _ = run(make_step(tx), state, params)
    assert_protected(problem, params, after, variant)


def in_chain(stage):
    return optax.chain(optax.adamw(1e-2), stage, hmcl_jax.task_anchor(0.1))


def in_masked(stage):
    mask = {"m0": True, "m1": True, "scale": False}
    return optax.chain(
        optax.adamw(1e-2), optax.masked(stage, mask), optax.masked(hmcl_jax.task_anchor(0.1), mask)
    )


def in_partition(stage):
    labels = {"m0": "heads", "m1": "heads", "scale": "rest"}
    return optax.partition({"heads": in_chain(stage), "rest": optax.sgd(1e-2)}, labels)


def in_multi_steps(stage):
    return optax.MultiSteps(in_chain(stage), every_k_schedule=2).gradient_transformation()


def in_apply_if_finite(stage):
    return optax.apply_if_finite(in_chain(stage), max_consecutive_errors=3)


def in_inject(stage):
    def make(rate):
        return optax.chain(optax.adamw(rate), stage, hmcl_jax.task_anchor(0.1))

    return optax.inject_hyperparams(make)(rate=1e-2)


WRAPPERS = [in_chain, in_masked, in_partition, in_multi_steps, in_apply_if_finite, in_inject]
WITH_OTHER_LEAVES = [in_masked, in_partition]


@pytest.mark.parametrize("wrapper", WRAPPERS)
@pytest.mark.parametrize("variant", KINDS)
def test_protects_inside_every_wrapper(problem, wrapper, variant):
    params = heads_of(problem)
    if wrapper in WITH_OTHER_LEAVES:
        params["scale"] = jnp.ones(())
    tx = wrapper(project(variant))
    step, state = make_step(tx), tx.init(params)
    structure = jax.tree.structure(state)
    # A fresh state and its parameters are given away together, then come two tasks.
    params, state = step(gradients(params), state, params)
    for _ in range(2):
        heads = {m: np.array(params[m]) for m in problem.heads}
        protection = protected(problem._replace(heads=heads))
        state = hmcl_jax.begin_task(state, params, protection)
        assert jax.tree.structure(state) == structure
        params, state = run(step, state, params)
        assert_protected(problem, heads, {m: params[m] for m in heads}, variant)
    if "scale" in params:
        assert float(params["scale"]) != 1.0


@pytest.mark.parametrize("stage", STAGES)
def test_keeps_bfloat16(problem, stage):
    params = {m: W.astype(jnp.bfloat16) for m, W in heads_of(problem).items()}
    tx = optax.chain(optax.adamw(1e-2), STAGES[stage]())
    moments = hmcl_jax.update_moments(hmcl_jax.init_moments(params), problem.lifted)
    state = hmcl_jax.begin_task(tx.init(params), params, hmcl_jax.protect(moments, params))
    updates, new_state = tx.update(gradients(params), state, params)
    assert {x.dtype for x in jax.tree.leaves(updates)} == {jnp.dtype(jnp.bfloat16)}
    after = optax.apply_updates(params, updates)
    assert {x.dtype for x in jax.tree.leaves(after)} == {jnp.dtype(jnp.bfloat16)}
    chex.assert_trees_all_equal_shapes_and_dtypes(state, new_state)


@pytest.mark.parametrize("stage", STAGES)
def test_compiles_once_whatever_the_task_and_the_rank(rng, stage):
    params = {f"m{i}": hmcl_jax.identity_head(40) for i in range(2)}
    tx = optax.chain(optax.adamw(1e-2), STAGES[stage]())
    update = jax.jit(chex.assert_max_traces(tx.update, n=1))
    state = tx.init(params)
    chex.clear_trace_counter()
    updates, state = update(gradients(params), state, params)  # before any task is protected
    params = optax.apply_updates(params, updates)
    for ranks in ([2, 3], [10, 1], [0, 15]):
        problem = random_problem(rng, 40, ranks, dtype=np.float32)
        problem = problem._replace(heads={m: np.asarray(W) for m, W in params.items()})
        state = hmcl_jax.begin_task(state, params, protected(problem))
        for k in range(2):
            updates, state = update(gradients(params, k), state, params)
            params = optax.apply_updates(params, updates)


@pytest.mark.parametrize("stage", STAGES)
def test_map_params_abstract_init_and_extra_arguments(problem, stage):
    params = heads_of(problem)
    tx = optax.chain(optax.adam(1e-2), STAGES[stage]())
    state = hmcl_jax.begin_task(tx.init(params), params, protected(problem))
    chex.assert_trees_all_equal(optax.tree.map_params(tx, lambda x: x, state), state)
    abstract = jax.eval_shape(tx.init, params)
    chex.assert_trees_all_equal_shapes_and_dtypes(abstract, tx.init(params))
    update = jax.jit(tx.update)
    updates, _ = update(gradients(params), state, params, value=1.0, anything=2)
    expected, _ = update(gradients(params), state, params)
    chex.assert_trees_all_equal(updates, expected)


@pytest.mark.parametrize("stage", STAGES)
def test_tasks_can_change_inside_a_scan(problem, stage):
    params = heads_of(problem)
    tx = optax.chain(optax.adamw(1e-2), STAGES[stage]())
    moments = hmcl_jax.update_moments(hmcl_jax.init_moments(params), problem.lifted)

    def task(carry, k):
        params, state = carry
        begun = hmcl_jax.begin_task(state, params, hmcl_jax.protect(moments, params))
        begun = jax.lax.cond(k >= 0, lambda: begun, lambda: state)
        updates, state = tx.update(jax.tree.map(jnp.cos, params), begun, params)
        return (optax.apply_updates(params, updates), state), None

    fresh = params, tx.init(params)  # of the smallest width, as all that follow
    (scanned, _), _ = jax.jit(lambda c: jax.lax.scan(task, c, jnp.arange(3)))(fresh)
    one, carry = jax.jit(task), fresh
    for k in range(3):
        carry, _ = one(carry, k)
    chex.assert_trees_all_close(scanned, carry[0], atol=1e-5)
    assert any(float(jnp.abs(scanned[m] - params[m]).max()) > 1e-3 for m in params)


def anchor_of_injected_beta():
    return optax.chain(
        optax.adamw(1e-2),
        hmcl_jax.hmcl_project("rotation"),
        optax.inject_hyperparams(hmcl_jax.task_anchor)(beta=0.1),
    )


SEEDED = {
    **{v: lambda v=v: hmcl_jax.hmcl(1e-2, **OPTIONS[v], beta=0.1) for v in KINDS},
    "in MultiSteps": lambda: in_multi_steps(project("rotation")),
    "injected beta": anchor_of_injected_beta,
}


@pytest.mark.parametrize("chain", SEEDED)
def test_seeds_on_a_leading_axis_equal_single_runs(problem, chain):
    tx = SEEDED[chain]()
    moments = moments_of(problem)
    params = {m: jnp.stack([W, 1.5 * W]) for m, W in heads_of(problem).items()}
    protection = hmcl_jax.protect(moments, params, variance=1.0)
    state = hmcl_jax.begin_task(jax.vmap(tx.init)(params), params, protection)
    # The state is given away: no buffer may be in it twice, as one beta for all seeds could be.
    update = jax.jit(jax.vmap(tx.update), donate_argnums=1)
    together = params
    for k in range(3):
        updates, state = update(gradients(params, k), state, together)
        together = optax.apply_updates(together, updates)
    update = jax.jit(tx.update)
    for seed in range(2):
        alone = {m: W[seed] for m, W in params.items()}
        protection = hmcl_jax.protect(moments, alone, variance=1.0)
        own = hmcl_jax.begin_task(tx.init(alone), alone, protection)
        for k in range(3):
            g = {m: x[seed] for m, x in gradients(params, k).items()}
            updates, own = update(g, own, alone)
            alone = optax.apply_updates(alone, updates)
        chex.assert_trees_all_close({m: W[seed] for m, W in together.items()}, alone, atol=2e-5)


class Model(nnx.Module):
    """Two heads and a parameter that is no head."""

    def __init__(self, heads):
        self.m0 = nnx.Param(heads["m0"])
        self.m1 = nnx.Param(heads["m1"])
        self.tower = nnx.Dict(scale=nnx.Param(jnp.ones(())))


@pytest.mark.parametrize("variant", KINDS)
def test_protects_inside_an_nnx_optimizer(problem, variant):
    params = heads_of(problem)
    model = Model(params)
    heads = {"m0": "m0/value", "m1": "m1"}
    tx = hmcl_jax.hmcl(1e-2, **OPTIONS[variant], beta=0.1, heads=heads)
    optimizer = nnx.Optimizer(model, tx, wrt=nnx.Param)
    fresh = optimizer.opt_state
    begun = hmcl_jax.begin_task(fresh, nnx.state(model, nnx.Param), protected(problem))
    assert jax.tree.structure(begun) == jax.tree.structure(fresh)
    optimizer.opt_state = begun

    @nnx.jit
    def step(model, optimizer, k):
        def loss(model):
            total = sum(jnp.sum(jnp.sin((k + 3) * W[...])) for W in (model.m0, model.m1))
            return total + model.tower["scale"][...]

        optimizer.update(model, nnx.grad(loss)(model))

    plain = dict(params)
    tx = hmcl_jax.hmcl(1e-2, **OPTIONS[variant], beta=0.1)
    state = hmcl_jax.begin_task(tx.init(plain), plain, protected(problem))
    update = jax.jit(tx.update)
    for k in range(4):
        step(model, optimizer, jnp.float32(k))
        g = {m: (k + 3) * jnp.cos((k + 3) * W) for m, W in plain.items()}
        updates, state = update(g, state, plain)
        plain = optax.apply_updates(plain, updates)
    after = {"m0": model.m0[...], "m1": model.m1[...]}
    assert_protected(problem, params, after, variant)
    chex.assert_trees_all_close(after, plain, atol=1e-5)
    assert float(model.tower["scale"][...]) < 1


@pytest.mark.parametrize("variant", KINDS)
def test_resumes_bitwise_from_orbax(problem, variant, tmp_path):
    from orbax.checkpoint import v1 as ocp

    params = heads_of(problem)
    tx = hmcl_jax.hmcl(1e-2, **OPTIONS[variant], beta=0.1)
    step, fresh = make_step(tx), tx.init(params)
    ocp.save(tmp_path / "fresh", fresh)
    chex.assert_trees_all_equal(ocp.load(tmp_path / "fresh", fresh), fresh)
    state = hmcl_jax.begin_task(fresh, params, protected(problem))
    middle = run(step, state, params, steps=2)
    ocp.save(tmp_path / "middle", middle)
    params, state = ocp.load(tmp_path / "middle", middle)
    expected, _ = run(step, middle[1], middle[0])
    chex.assert_trees_all_equal(run(step, state, params)[0], expected)


def test_only_our_states_are_touched_whatever_parameters_are_called(rng):
    # Parameters named like every field that we have, behind an Adam that mirrors them.
    names = ["anchor", "basis", "protection", "rotation", "beta", "shared_basis", "turned"]
    problem = random_problem(rng, DIM, [2] * len(names), dtype=np.float32, time_column=False)
    rename = dict(zip(problem.heads, names, strict=True))
    problem = type(problem)(*({rename[m]: x for m, x in part.items()} for part in problem))
    params = heads_of(problem)
    tx = optax.named_chain(
        ("anchor", optax.adamw(1e-2)),
        ("basis", project("rotation-ambient")),
        ("protection", hmcl_jax.task_anchor(0.1)),
    )
    step = make_step(tx)
    _, state = run(step, tx.init(params), params, steps=2)
    begun = hmcl_jax.begin_task(state, params, protected(problem))
    assert isinstance(begun, collections.OrderedDict) == isinstance(state, collections.OrderedDict)
    chex.assert_trees_all_equal(begun["anchor"], state["anchor"])
    chex.assert_trees_all_equal(begun["protection"].anchor, params)
    after, _ = run(step, begun, params)
    assert_protected(problem, params, after, "rotation", tolerance=1e-4)
