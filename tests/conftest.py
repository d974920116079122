"""Strictness for all tests, and the dtypes they run in."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from hmcl_jax.continual.methods import METHODS
from hmcl_jax.continual.threads import decompose_in_one_thread

jax.config.update("jax_numpy_rank_promotion", "raise")
decompose_in_one_thread()


@pytest.fixture(autouse=True, scope="session")
def compilation_cache(tmp_path_factory):
    """Programs of whole tasks are compiled once in a session, however often they are made."""
    folder = tmp_path_factory.getbasetemp().parent / "programs"  # shared by all workers
    jax.config.update("jax_compilation_cache_dir", str(folder))
    jax.config.update("jax_persistent_cache_min_compile_time_secs", 0.05)


@pytest.fixture(autouse=True, scope="module")
def forget_programs():
    """Thousands of small programs in one process would slow down all that comes after them."""
    yield
    jax.clear_caches()


@pytest.fixture(params=["float32", "float64"])
def dtype(request):
    """Runs a test in float32, and again in float64 with x64 enabled."""
    with jax.enable_x64(request.param == "float64"):
        yield jnp.dtype(request.param)


@pytest.fixture
def x64():
    """Runs a test with float64 enabled."""
    with jax.enable_x64(True):
        yield


@pytest.fixture
def strict_dtypes():
    """Refuses implicit promotion of dtypes; only for tests of our own code."""
    with jax.numpy_dtype_promotion("strict"):
        yield


@pytest.fixture
def rng():
    return np.random.default_rng(0)


@pytest.fixture
def hmcl(monkeypatch):
    """The command, in this process: ``hmcl("run", "--out", folder)``."""
    from hmcl_jax.cli import main, options

    monkeypatch.setattr(options, "keep_programs", lambda on: None)  # the session keeps them
    return lambda *arguments: main.main(arguments)


@pytest.fixture
def known_methods():
    """Forgets methods of the user's after a test."""
    before = dict(METHODS)
    yield
    METHODS.clear()
    METHODS.update(before)
