"""Compiled programs kept from run to run; each start is a process of its own."""

import json
import os
import subprocess
import sys

import jax
import pytest

from hmcl_jax.continual.cache import LIMIT, keep_programs

START = """
import json
import jax, jax.numpy as jnp
from hmcl_jax.continual.cache import CompileTime, keep_programs
folder = keep_programs()
compiling = CompileTime()
x = jax.jit(lambda x: jnp.linalg.svd(x)[1].sum() + jnp.linalg.eigh(x)[0].sum())(jnp.eye(20))
print(json.dumps({"folder": str(folder), "x": float(x), **compiling.described()}))
"""
OURS = ("compilation_cache_dir", "enable_compilation_cache", "compilation_cache_max_size")


def start(caches):
    """What a fresh process keeps, and what it writes to stderr."""
    known = {name: value for name, value in os.environ.items() if name != "JAX_" + OURS[0].upper()}
    least = {"JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS": "0", "JAX_PLATFORMS": "cpu"}
    done = subprocess.run(
        [sys.executable, "-c", START],
        capture_output=True,
        text=True,
        env={**known, **least, "XDG_CACHE_HOME": str(caches)},
    )
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout), done.stderr


def test_a_second_start_loads_what_the_first_compiled(tmp_path):
    first, said = start(tmp_path)
    folder = tmp_path / "hmcl_jax" / "programs"
    assert first["folder"] == str(folder), said
    assert first["programs_kept"] == 0
    assert folder.stat().st_mode & 0o777 == 0o700
    kept = sorted(folder.glob("*-cache"))
    assert len(kept) == first["programs"]
    second, said = start(tmp_path)
    assert second["programs_kept"] == second["programs"] == first["programs"]
    assert second["compile_seconds"] < first["compile_seconds"] / 2
    assert second["x"] == first["x"]
    assert sorted(folder.glob("*-cache")) == kept
    assert not said


@pytest.mark.slow
def test_a_folder_that_cannot_be_written_is_done_without(tmp_path):
    (tmp_path / "file").write_text("in the way")
    found, said = start(tmp_path / "file" / "folder")
    assert found["programs_kept"] == 0
    assert "persistent compilation cache" in said


@pytest.fixture
def config(monkeypatch, tmp_path):
    """JAX's options as a process starts with, put back afterwards."""
    before = {name: getattr(jax.config, f"jax_{name}") for name in OURS}
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setenv("JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS", "0.05")
    jax.config.update("jax_compilation_cache_dir", None)
    yield jax.config
    for name, value in before.items():
        jax.config.update(f"jax_{name}", value)


def test_the_users_own_folder_is_taken_and_it_can_be_turned_off(config, tmp_path):
    assert keep_programs() == tmp_path / "hmcl_jax" / "programs"
    assert config.jax_compilation_cache_max_size == LIMIT
    config.update("jax_compilation_cache_dir", str(tmp_path / "mine"))
    assert keep_programs() == tmp_path / "mine"
    assert keep_programs(on=False) is None
    assert not config.jax_enable_compilation_cache
    assert keep_programs() is None  # as with JAX_ENABLE_COMPILATION_CACHE=false
