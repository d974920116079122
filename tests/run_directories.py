"""Small run directories, and processes that write to them."""

import os
import subprocess
import sys
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from hmcl_jax.continual import RunError
from hmcl_jax.continual.run_directory import open_run

IDENTITY = {
    "method": "hmcl",
    "seeds": [0, 1],
    "store": "ab12",
    "config": {"learning_rate": 0.0005, "head": {"dim": 8, "bias": None}},
}


def begun(path):
    return open_run(path, IDENTITY, resume=False)


def resumed(path):
    return open_run(path, IDENTITY, resume=True)


def refused(path, match, identity=IDENTITY, resume=True):
    """The message with which a directory is refused."""
    with pytest.raises(RunError, match=match) as caught:
        open_run(path, identity, resume=resume).__enter__()
    return str(caught.value)


def newest(run, template):
    """How many tasks are finished, and the state after them."""
    state, records = run.restore(lambda finished: template)
    return len(records), state


def assert_same(found, expected):
    """Equal in structure, type, dtype, shape and every bit."""
    assert jax.tree.structure(found) == jax.tree.structure(expected)
    for a, b in zip(jax.tree.leaves(found), jax.tree.leaves(expected), strict=True):
        assert isinstance(a, np.ndarray) == isinstance(b, np.ndarray)
        assert (a.dtype, a.shape) == (b.dtype, b.shape)
        if jnp.issubdtype(a.dtype, jax.dtypes.prng_key):
            a, b = jax.random.key_data(a), jax.random.key_data(b)
        assert np.asarray(a).tobytes() == np.asarray(b).tobytes()


def round_trip(path, state, template=None):
    with begun(path) as run:
        run.save(1, state, {})
    with resumed(path) as run:
        finished, found = newest(run, state if template is None else template)
    assert finished == 1
    return found


def saved(path, steps=2):
    """A run with some steps; gives their states."""
    states = {n: {"W": jnp.arange(12.0) + n, "n": jnp.int32(n)} for n in range(1, steps + 1)}
    with begun(path) as run:
        for n, state in states.items():
            run.save(n, state, {"finished": n})
    return states


def python(code, *arguments):
    """A Python process of its own, which can import this file."""
    path = [str(Path(__file__).parent), os.environ.get("PYTHONPATH", "")]
    return subprocess.Popen(
        [sys.executable, "-W", "error", "-c", code, *map(str, arguments)],
        env={
            **os.environ,
            "JAX_PLATFORMS": "cpu",
            "PYTHONPATH": os.pathsep.join(filter(None, path)),
        },
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def output(process):
    out, err = process.communicate(timeout=300)
    assert process.returncode == 0, err[-2000:]
    return out, err
