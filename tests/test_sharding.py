"""Seeds spread over devices give the same numbers as one device; four virtual ones, apart."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

SCRIPT = """
import jax, jax.numpy as jnp, numpy as np, optax
from jax.sharding import AxisType, NamedSharding, PartitionSpec as P
import hmcl_jax
from problems import random_problem

problem = random_problem(np.random.default_rng(0), 6, [2, 3], dtype=np.float32)
moments = hmcl_jax.update_moments(hmcl_jax.init_moments(problem.heads), problem.lifted)
heads = {m: jnp.stack([jnp.array(W) * (1 + k / 8) for k in range(4)]) for m, W in
         problem.heads.items()}
delta = {m: jnp.stack([jnp.array(x)] * 4) for m, x in problem.delta.items()}
mesh = jax.make_mesh((4,), ("seed",), axis_types=(AxisType.Auto,))
spread = NamedSharding(mesh, P("seed"))
tx = hmcl_jax.hmcl(1e-2, variant="rotation")
state = hmcl_jax.begin_task(jax.vmap(tx.init)(heads), heads, hmcl_jax.protect(moments, heads))

def step(params, state, delta):
    updates, state = jax.vmap(tx.update)(delta, state, params)
    return optax.apply_updates(params, updates), state

expected, _ = jax.jit(step)(heads, state, delta)
placed = jax.device_put((heads, state, delta), spread)
sharded, _ = jax.jit(step, in_shardings=spread, out_shardings=spread)(*placed)
mapped, _ = jax.jit(jax.shard_map(step, mesh=mesh, in_specs=P("seed"), out_specs=P("seed")))(
    *placed)
for found in (sharded, mapped):
    assert len(found["m0"].sharding.device_set) == 4
    for m, W in expected.items():
        np.testing.assert_allclose(found[m], W, atol=1e-6)
print("equal on", jax.device_count(), "devices")
"""


@pytest.mark.slow
def test_seeds_over_four_devices():
    environment = {
        **os.environ,
        "XLA_FLAGS": "--xla_force_host_platform_device_count=4",
        "JAX_PLATFORMS": "cpu",
        "PYTHONPATH": str(Path(__file__).parent),
    }
    done = subprocess.run(
        [sys.executable, "-c", SCRIPT], env=environment, capture_output=True, text=True, timeout=300
    )
    assert done.returncode == 0, done.stderr[-2000:]
    assert "equal on 4 devices" in done.stdout
