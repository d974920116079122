"""Devices and processes that share the work give the numbers of one device; virtual ones, apart."""

import dataclasses
import os
import re
import shutil
import socket
import subprocess
import sys
from pathlib import Path

import jax
import numpy as np
import pytest
from recording import RecordingPrograms

from hmcl_jax.continual import (
    Carried,
    ConfigError,
    Setting,
    TrainConfig,
    learn_task,
    make_method,
    run_stream,
    run_sweep,
)
from hmcl_jax.continual import mesh as mesh_module
from hmcl_jax.continual.config import Schedule
from hmcl_jax.continual.distributed import start_processes
from hmcl_jax.continual.run_directory import read_step
from hmcl_jax.data.store import write_store
from hmcl_jax.data.synthetic import synthetic_stream

ROOT = Path(__file__).parents[1]
SEEDS = [3, 4]
# Seven minibatches, or fewer: four devices have unequal shares, and the last of eight has none.
CONFIG = TrainConfig(batch=32, classification=Schedule(3, 0.02), retrieval=Schedule(2, 0.02))
SETTINGS = {
    "hmcl_rotation": {"variance": 0.7},
    "gem": {"memory": 16},
    "cflat": {"memory": 16, "perturb": "minibatch"},
}
COLLECTIVES = "all-reduce|all-gather|all-to-all|reduce-scatter|collective-[a-z]+"


def stream(tasks=3):
    return synthetic_stream(
        tasks=tasks, classes=4, dimension=8, train=200, test=16, retrieval_every=2
    )


def environment(devices, cache):
    """For a process with virtual devices, and with programs that compile fast."""
    flags = (
        f"--xla_force_host_platform_device_count={devices}",
        "--xla_backend_optimization_level=0",
        "--xla_llvm_disable_expensive_passes=true",
    )
    return {
        **os.environ,
        "XLA_FLAGS": " ".join(flags),
        "JAX_PLATFORMS": "cpu",
        "JAX_COMPILATION_CACHE_DIR": str(cache),
        "JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS": "0",
        "PYTHONPATH": f"{ROOT}{os.pathsep}{ROOT / 'tests'}",
    }


def on_eight_devices(call, cache):
    """Runs a function of this file in a process that has eight devices."""
    code = f"import test_mesh; test_mesh.{call}; print('passed')"
    command, pipes = [sys.executable, "-c", code], {"capture_output": True, "text": True}
    done = subprocess.run(command, env=environment(8, cache), timeout=300, **pipes)
    assert done.returncode == 0, done.stderr[-3000:]
    assert done.stdout.endswith("passed\n")


CLASSES = ("task1", "task3")  # one kind of task, one program


def learned(method, order="canonical", out=None, resume=False, **options):
    config = dataclasses.replace(CONFIG, **options)
    settings = {method: SETTINGS.get(method, {})}
    results = run_stream(
        stream(), [method], SEEDS, config, order=order, settings=settings, out=out, resume=resume
    )
    return results[method]


def assert_close(found, expected):
    moved = 0
    for name, W in expected.heads.items():
        assert found.heads[name].sharding.num_devices == 1
        np.testing.assert_allclose(found.heads[name], W, atol=1e-5, rtol=0)
        moved = max(moved, float(np.abs(W[:, :, 1:] - np.eye(8)).max()))
    assert moved > 0.05  # or the comparison would say nothing
    np.testing.assert_allclose(found.losses[-1], expected.losses[-1], rtol=1e-4)


# Eight devices


def check_meshes():
    expected = learned("vanilla")
    for options in (
        {"mesh": "2x4"},
        {"mesh": "1x8", "seed_axis": "vmap"},
        {"mesh": "2x2", "device_memory": 0.005},  # several chunks
    ):
        assert_close(learned("vanilla", **options), expected)


def check_method(method, mesh="2x4", **options):
    expected = learned(method, CLASSES, **options)
    assert_close(learned(method, CLASSES, mesh=mesh, **options), expected)


def check_resume(out):
    kept = {"reset_optimizer": False}
    expected = learned("hmcl_rotation", mesh="1x1", out=out, **kept)
    shutil.rmtree(Path(out) / "hmcl_rotation" / "steps" / "3")
    assert_close(learned("hmcl_rotation", mesh="2x4", out=out, resume=True, **kept), expected)


def check_one_all_reduce():
    """One for the gradient of a feed, whatever the kind of task, and none anywhere else."""
    config = dataclasses.replace(CONFIG, mesh="2x4")
    programs = RecordingPrograms(config)
    store = stream()
    setting = Setting(store.K, store.tau, tuple(SEEDS), config)
    cflat = make_method("cflat", {"memory": 16, "perturb": "minibatch"})
    for method in (make_method("vanilla"), cflat):
        carried = Carried()
        for index, task in enumerate(store):
            carried, _ = learn_task(method, carried, [(task, index)], setting, programs)
    unique = {(name, id(program)): (program, given) for name, program, given in programs.calls}
    for (name, _), (program, arguments) in unique.items():
        text = program.lower(*arguments).compile().as_text()
        found = re.findall(rf" ({COLLECTIVES})(?:-start)?\(", text)
        assert found == ["all-reduce"] * (name == "accumulate")
    assert {name for name, _ in unique} == {"accumulate", "update"}


@pytest.fixture(scope="module")
def cache(tmp_path_factory):
    return tmp_path_factory.mktemp("mesh_programs")


SLOW = ["check_method('gem')", "check_method('cflat')", "check_resume('out')"]
SLOW += ["check_method('vanilla', '2x1', step='minibatch')"]


@pytest.mark.parametrize(
    "call",
    ["check_meshes()", "check_one_all_reduce()"]
    + [pytest.param(call, marks=pytest.mark.slow) for call in SLOW],
)
def test_eight_devices(call, cache, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    on_eight_devices(call, cache)


# Two processes of two devices each


def start_two(folder, cache, *options):
    """Starts `hmcl run` twice; gives return codes and outputs."""
    with socket.socket() as free:
        free.bind(("localhost", 0))
        port = free.getsockname()[1]
    command = [sys.executable, "-W", "error", "-m", "hmcl_jax", "run"]
    for option, name in (("--stream", "store"), ("--order", "order"), ("--out", "two")):
        command += [option, str(folder / name)]
    command += ["--methods", "hmcl_rotation"]
    command += ["--seeds", ",".join(map(str, SEEDS)), "--set", "methods.hmcl_rotation.variance=0.7"]
    for setting in ("batch=32", "classification.epochs=3", "classification.learning_rate=0.02"):
        command += ["--set", f"train.{setting}"]
    command += ["--distributed", "--coordinator", f"localhost:{port}", "--processes", "2"]
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
    pipes["env"] = environment(2, cache)
    started = [
        subprocess.Popen([*command, "--process-id", number, *options], **pipes) for number in "01"
    ]
    try:
        texts = [process.communicate(timeout=240) for process in started]
    finally:
        for process in started:
            process.kill()
    return [process.returncode for process in started], texts


@pytest.mark.slow
def test_two_processes(tmp_path, cache):
    made, one = stream(), tmp_path / "one"
    about = {"name": "made", "backbone": "made", "K": made.K, "tau": made.tau}
    write_store(tmp_path / "store", made.tasks, **about)
    (tmp_path / "order").write_text("\n".join(CLASSES))
    on_eight_devices(f"learned('hmcl_rotation', test_mesh.CLASSES, {str(one)!r})", cache)
    out = tmp_path / "two"
    codes, texts = start_two(tmp_path, cache, "--mesh", "1x4")
    assert codes == [0, 0], texts
    assert ["wrote" in text for text, _ in texts] == [True, False]
    for name in ("results.json", "table.md", "table.tex"):
        assert (out / name).exists()

    codes, texts = start_two(tmp_path, cache, "--mesh", "1x4")
    assert codes == [1, 1]
    assert "--resume" in texts[0][1]
    assert "process 0 stopped" in texts[1][1]

    steps = out / "hmcl_rotation" / "steps"
    shutil.rmtree(steps / "2")
    codes, texts = start_two(tmp_path, cache, "--mesh", "2x2", "--resume")
    assert codes == [0, 0], texts
    for step in (1, 2):
        expected, found = (read_step(run / "hmcl_rotation", step) for run in (one, out))
        assert found.keys() == expected.keys()
        for name, array in expected.items():
            scale = max(1.0, float(np.abs(array).max()))
            np.testing.assert_allclose(found[name], array, atol=1e-5 * scale, rtol=0)


# Refusals


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"mesh": "2"}, "mesh must be written SEEDxDATA.*got mesh = '2'"),
        ({"mesh": "0x4"}, "got mesh = '0x4'"),
        ({"mesh": 4}, "got mesh = 4"),
        ({"mesh": "2x4", "step": "minibatch"}, "mesh = '2x4' with step = 'minibatch'; use .*'2x1'"),
        ({"mesh": "2x1", "seed_axis": "loop"}, "seed_axis = 'loop'.*got mesh = '2x1'; use"),
    ],
)
def test_refused_settings(options, message):
    with pytest.raises(ConfigError, match=message):
        TrainConfig(**options)


def refused(message, mesh, seeds, out, method="vanilla"):
    config = dataclasses.replace(CONFIG, mesh=mesh)
    with pytest.raises(ConfigError, match=message):
        run_stream(stream(2), [method], seeds, config, out=out)
    assert not out.exists()


def test_refused_meshes(tmp_path, monkeypatch):
    out = tmp_path / "out"
    virtual = "mesh = '2x4' needs 8 devices, but there are 1;.*host_platform_device_count=8"
    refused(virtual, "2x4", SEEDS, out)
    monkeypatch.setattr(jax, "device_count", lambda: 8)
    uneven = "mesh = '2x4' shares the seeds among 2 .*3 seeds .*mesh = '1x8'"
    refused(uneven, "2x4", [0, 1, 2], out)
    each = dataclasses.replace(make_method("vanilla"), train={"step": "minibatch"})
    refused("methods.vanilla.train: .*step = 'minibatch'", "2x4", SEEDS, out, each)
    points = [{"beta": 0.05}, {"beta": 0.1}, {"beta": 0.2}]
    with pytest.raises(ConfigError, match="3 seeds cannot be shared"):
        run_sweep(stream(2), "hmcl_mr", points, [0], dataclasses.replace(CONFIG, mesh="2x4"))
    monkeypatch.setattr(jax, "process_count", lambda: 2)
    with pytest.raises(ConfigError, match=r"mesh = '1x2' has 2 devices, but 2 processes .*'1x8'"):
        mesh_module.check_mesh(dataclasses.replace(CONFIG, mesh="1x2"), 2)


@pytest.mark.parametrize(
    ("given", "message"),
    [
        (("host:1", 2, None), "could not be joined: .*--process-id I"),
        (("host", 2, 0), "--coordinator must be HOST:PORT, got 'host'"),
        (("host:1", 2, 2), "below --processes, got --process-id 2 --processes 2"),
        ((None, None, None), "could not be joined: .*--coordinator HOST:PORT"),
    ],
)
def test_refused_processes(given, message):
    with pytest.raises(ConfigError, match=message):
        start_processes(*given)
