"""Compiled programs kept from run to run; each start is a process of its own."""

import json
import os
import subprocess
import sys

import pytest

from hmcl_jax.continual.cache import LIMIT
from hmcl_jax.data.store import write_store
from hmcl_jax.data.synthetic import synthetic_stream

START = """
import json, sys
import jax, jax.numpy as jnp
from hmcl_jax.continual.cache import CompileTime, keep_programs
folder = keep_programs(sys.argv[1] == "on")
compiling = CompileTime()
x = jax.jit(lambda x: jnp.linalg.svd(x)[1].sum() + jnp.linalg.eigh(x)[0].sum())(jnp.eye(20))
print(json.dumps({"folder": folder and str(folder), "x": float(x), **compiling.described(),
                  "limit": jax.config.jax_compilation_cache_max_size}))
"""


def start(on=True, **environment):
    """What a fresh process keeps, and what it says."""
    ours = ("JAX_COMPILATION_CACHE_DIR", "JAX_ENABLE_COMPILATION_CACHE")
    known = {name: value for name, value in os.environ.items() if name not in ours}
    given = {name: str(value) for name, value in environment.items()}
    least = {"JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS": "0", "JAX_PLATFORMS": "cpu"}
    done = subprocess.run(
        [sys.executable, "-c", START, "on" if on else "off"],
        capture_output=True,
        text=True,
        env={**known, **least, **given},
    )
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout), done.stderr


def programs(folder):
    return sorted(path.name for path in folder.glob("*-cache"))


def test_a_second_start_loads_what_the_first_compiled(tmp_path):
    first, said = start(XDG_CACHE_HOME=tmp_path)
    folder = tmp_path / "hmcl_jax" / "programs"
    assert first["folder"] == str(folder), said
    assert first["limit"] == LIMIT
    assert first["programs_kept"] == 0
    assert folder.stat().st_mode & 0o777 == 0o700
    kept = programs(folder)
    assert len(kept) == first["programs"]
    second, said = start(XDG_CACHE_HOME=tmp_path)
    assert second["programs_kept"] == second["programs"] == first["programs"]
    assert second["compile_seconds"] < first["compile_seconds"] / 2
    assert second["x"] == first["x"]
    assert programs(folder) == kept
    assert not said


def test_the_users_own_folder_is_taken(tmp_path):
    own = tmp_path / "mine"
    found, _ = start(JAX_COMPILATION_CACHE_DIR=own, XDG_CACHE_HOME=tmp_path / "caches")
    assert found["folder"] == str(own)
    assert found["limit"] == -1
    assert len(programs(own)) == found["programs"]
    assert not (tmp_path / "caches").exists()


def test_a_folder_that_cannot_be_written_is_done_without(tmp_path):
    (tmp_path / "file").write_text("in the way")
    found, said = start(XDG_CACHE_HOME=tmp_path / "file" / "folder")
    assert found["folder"] is None
    assert said.startswith("Compiled programs are not kept in ")


def test_it_can_be_turned_off(tmp_path):
    for options in ({"on": False}, {"JAX_ENABLE_COMPILATION_CACHE": "false"}):
        found, said = start(XDG_CACHE_HOME=tmp_path, **options)
        assert found["folder"] is None
        assert not said
    assert not list(tmp_path.iterdir())


@pytest.mark.slow
def test_a_run_says_how_long_it_compiled(tmp_path):
    store = synthetic_stream(tasks=2, classes=4, dimension=8, train=64, test=16)
    path = tmp_path / "store.zip"
    write_store(path, store.tasks, name="s", backbone="synthetic", K=store.K, tau=store.tau)
    found = []
    for number in range(2):
        out = tmp_path / f"out{number}"
        command = ["-m", "hmcl_jax", "run", "--stream", str(path)]
        command += ["--methods", "hmcl_mr", "--seeds", "0", "--out", str(out)]
        known = {k: v for k, v in os.environ.items() if k != "JAX_COMPILATION_CACHE_DIR"}
        caches = {"XDG_CACHE_HOME": str(tmp_path / "caches"), "JAX_PLATFORMS": "cpu"}
        done = subprocess.run(
            [sys.executable, *command], env={**known, **caches}, capture_output=True, text=True
        )
        assert done.returncode == 0, done.stderr
        found.append(json.loads((out / "results.json").read_text("utf8")))
    first, second = (results["about"] for results in found)
    assert first["programs_kept"] < second["programs_kept"] <= second["programs"]
    assert second["compile_seconds"] < first["compile_seconds"] / 2
    assert found[0]["methods"]["hmcl_mr"]["scores"] == found[1]["methods"]["hmcl_mr"]["scores"]
