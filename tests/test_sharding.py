"""Seeds spread over devices give the same numbers as one device; four virtual ones, apart."""

import subprocess
import sys

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from jax.sharding import AxisType, NamedSharding
from jax.sharding import PartitionSpec as P
from problems import random_problem
from test_mesh import environment

import hmcl_jax


def check_seeds():
    problem = random_problem(np.random.default_rng(0), 6, [2, 3], dtype=np.float32)
    moments = hmcl_jax.update_moments(hmcl_jax.init_moments(problem.heads), problem.lifted)
    seeds = jnp.arange(4.0)[:, None, None]
    heads = {m: jnp.asarray(W) * (1 + seeds / 8) for m, W in problem.heads.items()}
    delta = {m: jnp.stack([jnp.array(x)] * 4) for m, x in problem.delta.items()}
    tx = hmcl_jax.hmcl(1e-2, variant="rotation")
    state = hmcl_jax.begin_task(jax.vmap(tx.init)(heads), heads, hmcl_jax.protect(moments, heads))

    def step(params, state, delta):
        updates, state = jax.vmap(tx.update)(delta, state, params)
        return optax.apply_updates(params, updates), state

    expected, _ = jax.jit(step)(heads, state, delta)
    mesh = jax.make_mesh((4,), ("seed",), axis_types=(AxisType.Auto,))
    spread = NamedSharding(mesh, P("seed"))
    placed = jax.device_put((heads, state, delta), spread)
    sharded, _ = jax.jit(step, in_shardings=spread, out_shardings=spread)(*placed)
    mapped, _ = jax.jit(jax.shard_map(step, mesh=mesh, in_specs=P("seed"), out_specs=P("seed")))(
        *placed
    )
    for found in (sharded, mapped):
        assert len(found["m0"].sharding.device_set) == 4
        for m, W in expected.items():
            np.testing.assert_allclose(found[m], W, atol=1e-6)


@pytest.mark.slow
def test_seeds_over_four_devices(tmp_path):
    call = [sys.executable, "-c", "import test_sharding; test_sharding.check_seeds()"]
    done = subprocess.run(call, env=environment(4, tmp_path), stderr=subprocess.PIPE, text=True)
    assert done.returncode == 0, done.stderr[-2000:]
