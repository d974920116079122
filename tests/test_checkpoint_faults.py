"""Run directories under damage, full disks, crashes and other devices."""

import json
import os
import random
import shutil
import time
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from run_directories import abstract, assert_same, output, python, refused, resumed, saved

from hmcl_jax._files import json_sha256
from hmcl_jax.continual.checkpoint import RunError


@pytest.fixture
def path(tmp_path):
    return tmp_path / "runs" / "hmcl"


# Damage


def damages(data):
    yield "gone", None
    if data:
        middle = len(data) // 2
        yield "empty", b""
        yield "truncated", data[:middle]
        for at in (0, middle, len(data) - 1):
            yield f"byte {at}", data[:at] + bytes([data[at] ^ 4]) + data[at + 1 :]


# Of a reading that fails, Orbax leaves coroutines behind.
@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
def test_damage_is_named_or_harmless(path):
    states = saved(path)
    step = path / "steps" / "2"
    remedy = f"delete the directory {step} and resume from step 1."
    named = set()
    for file in sorted(file for file in step.rglob("*") if file.is_file()):
        data = file.read_bytes()
        for damage, bad in damages(data):
            file.unlink()
            if bad is not None:
                file.write_bytes(bad)
            message = None
            with resumed(path) as run:
                try:
                    found, record = run.restore(states[2])
                except RunError as error:
                    message = str(error)
            if message is None:
                assert_same(found, states[2])
                assert record == {"finished": 2}, (file, damage)
            else:
                assert message.startswith("Step 2 cannot be read: "), (file, damage)
                assert message.endswith(remedy), (file, damage)
                named.add(file.relative_to(step).parts[0])
            file.write_bytes(data)
    assert named >= {"_CHECKPOINT_METADATA", "state"}
    shutil.rmtree(step)
    with resumed(path) as run:
        assert_same(run.restore(states[1])[0], states[1])
        run.save(2, states[2], {})
        (path / "steps" / "3").mkdir()
        with pytest.raises(RunError, match=r"Step 3 cannot be read.*resume from step 2\."):
            run.restore(states[2])


@pytest.mark.parametrize(("wrong", "named"), [("state", r"state\['W'\]"), ("record", "its record")])
def test_whole_files_with_other_contents_are_caught(path, wrong, named, monkeypatch):
    """What no checksum of Orbax can see: other numbers, properly written."""
    from orbax.checkpoint import v1 as ocp

    write = ocp.save

    def other(path, arrays, custom_metadata):
        if wrong == "state":
            arrays["state['W']"] = arrays["state['W']"] + np.float32(1e-6)
        else:
            custom_metadata["record"]["finished"] = 7
        write(path, arrays, custom_metadata=custom_metadata)

    monkeypatch.setattr(ocp, "save", other)
    states = saved(path, steps=1)
    message = f"Step 1.*{named} does not match.*from the beginning"
    with resumed(path) as run, pytest.raises(RunError, match=message):
        run.restore(states[1])


W = "state['W']"


@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
@pytest.mark.parametrize(
    ("edit", "said"),
    [
        (lambda note: note["leaves"][W].update(shape=[2**36]), "has shape .12,., not .68719476736"),
        (lambda note: note["leaves"][W].update(shape=[-1]), "has no shape"),
        (lambda note: note["leaves"][W].update(dtype="float64"), "has shape"),
        (lambda note: note["leaves"][W].update(dtype=None), "is not described"),
        (lambda note: note.update(record=[]), "its record is none"),
        (lambda note: note.update(leaves=3), "AttributeError"),
        (lambda note: note.pop("leaves"), "KeyError"),
        (lambda note: note["leaves"][W].update(prng="foo"), "has no kind of random numbers"),
        (lambda note: note["leaves"][W].update(prng=3), "has no kind of random numbers"),
    ],
)
def test_notes_of_another_form_are_refused_before_memory_is_taken(path, edit, said):
    """Whoever wrote them made the checksum right."""
    states = saved(path, steps=1)
    file = path / "steps" / "1" / "_CHECKPOINT_METADATA"
    whole = json.loads(file.read_text())
    note = whole["custom_metadata"]
    edit(note)
    note["sha256"] = json_sha256(note)
    file.write_text(json.dumps(whole))
    with resumed(path) as run, pytest.raises(RunError, match=f"Step 1 cannot be read: .*{said}"):
        run.restore(states[1])


# Full disks


@pytest.mark.parametrize("wrapped", [False, True])
def test_a_full_disk_is_named(path, monkeypatch, wrapped):
    from orbax.checkpoint import v1 as ocp

    def full(path, *args, **kwargs):
        Path(f"{path}.orbax-checkpoint-tmp").mkdir()
        error = OSError(28, os.strerror(28))
        if wrapped:
            raise RuntimeError("save failed") from error
        raise error

    states = saved(path, steps=1)
    with resumed(path) as run:
        with monkeypatch.context() as patched:
            patched.setattr(ocp, "save", full)
            with pytest.raises(RunError, match=r"Step 2 .*disk is full.*resume the run"):
                run.save(2, states[1], {})
        assert [step.name for step in run.steps.iterdir()] == ["1"]
        assert_same(run.restore(states[1])[0], states[1])
        run.save(2, states[1], {})


LIMITED = """
import resource, sys
import numpy as np
from hmcl_jax.continual.checkpoint import RunError
from run_directories import assert_same, begun

small = {f"W{i}": np.ones((64, 64)) for i in range(30)}
large = {f"W{i}": np.random.default_rng(i).normal(size=(64, 64)) for i in range(30)}
with begun(sys.argv[1]) as run:
    run.save(1, small, {})
    allowed = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (8192, allowed[1]))
    try:
        run.save(2, large, {})
    except RunError as error:
        print(error)
    resource.setrlimit(resource.RLIMIT_FSIZE, allowed)
    assert run.latest() == 1
    assert_same(run.restore(small)[0], small)
    run.save(2, large, {})
    assert_same(run.restore(large)[0], large)
"""


def test_files_that_cannot_grow_are_a_full_disk(path):
    out, err = output(python(LIMITED, path))
    assert out.startswith("Step 2 could not be saved in ")
    assert "the disk is full or a quota is reached (File too large)" in out
    # Orbax may print that further arrays failed; nothing else is printed.
    stragglers = err.count("Event loop is closed\n") + err.count("was never retrieved")
    assert err.count("Traceback") == stragglers


# Crashes

LEARNER = """
import sys, time
from run_directories import resumed
from test_checkpoint_faults import first, train

with resumed(sys.argv[1]) as run:
    state = run.restore(first())[0] if run.latest() else first()
    print("open", flush=True)
    for task in range(run.latest() or 0, int(sys.argv[2])):
        state = train(state)
        run.save(task + 1, state, {"task": task})
    time.sleep(float(sys.argv[3]))
"""


def first():
    return {"W": np.zeros((4, 64, 64)), "key": jax.random.key(0), "count": np.array(0)}


def train(state):
    """A task of training, in NumPy because compiling takes longer than the rest of the test."""
    noise = np.random.default_rng(int(state["count"])).normal(size=state["W"].shape)
    return {**state, "W": 0.9 * state["W"] + noise, "count": np.array(state["count"] + 1)}


def kill_and_resume(path, kills, seed, steps):
    """Kills in the middle of saves, then lets the last process come to the end."""
    chance = random.Random(seed)
    trained = [first()]
    for _ in range(steps):
        trained.append(train(trained[-1]))
    torn = 0
    for _ in range(kills):
        process = python(LEARNER, path, steps, 0)
        assert process.stdout.readline() == "open\n", process.communicate()[1][-2000:]
        time.sleep(chance.uniform(0, 0.3))
        while process.poll() is None and not list(path.glob("steps/*-tmp")):
            time.sleep(0.001)
        time.sleep(chance.choice([0, chance.uniform(0, 0.1)]))
        process.kill()
        process.communicate()
        torn += bool(list(path.glob("steps/*-tmp")))
        with resumed(path) as run:
            assert not list(path.glob("steps/*-tmp"))
            if run.latest():
                state, record = run.restore(first())
                assert record == {"task": run.latest() - 1}
                assert_same(state, trained[run.latest()])
    output(python(LEARNER, path, steps, 0))
    with resumed(path) as run:
        assert run.latest() == steps
        assert_same(run.restore(first())[0], trained[steps])
    return torn


def test_killed_runs_resume_bitwise(path):
    assert kill_and_resume(path, kills=2, seed=0, steps=12) > 0


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(3))
def test_killed_runs_resume_bitwise_many_times(path, seed):
    assert kill_and_resume(path, kills=12, seed=seed, steps=150) > 0


def test_one_run_at_a_time_and_none_after_a_kill(path):
    process = python(LEARNER, path, 1, 60)
    try:
        assert process.stdout.readline() == "open\n"
        refused(path, rf"{path}.* in use by another process, pid {process.pid}; wait.*--out")
    finally:
        process.kill()
        process.communicate()
    with resumed(path):
        refused(path, rf"in use by another process, pid {os.getpid()};")


# Devices

SHARDED = """
import sys
import jax, numpy as np
from jax.sharding import AxisType, Mesh, NamedSharding, PartitionSpec as P, SingleDeviceSharding
from run_directories import assert_same, begun
from test_checkpoint_faults import spread

def over(sizes, spec):
    devices = np.array(jax.devices()[: int(np.prod(sizes))]).reshape(sizes)
    axes = ("seed", "row")[: len(sizes)]
    return NamedSharding(Mesh(devices, axes, axis_types=(AxisType.Auto,) * len(sizes)), spec)

state = spread()
with begun(sys.argv[1]) as run:
    run.save(1, jax.device_put(state, over([4], P("seed"))), {})
    for sharding in (over([2, 2], P("seed")), over([2], P("seed")), over([4], P()),
                     SingleDeviceSharding(jax.devices()[3])):
        template = jax.tree.map(
            lambda x: jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=sharding), state)
        for like in (template, jax.device_put(state, sharding)):
            found, _ = run.restore(like)
            assert_same(found, state)
            assert all(x.sharding.is_equivalent_to(sharding, x.ndim) for x in found.values())
print("resharded on", jax.device_count(), "devices")
"""


def spread():
    keys = jax.random.split(jax.random.key(0), 4)
    return {"W": jnp.arange(32.0).reshape(4, 8), "keys": keys, "none": jnp.zeros((4, 0))}


def test_restores_onto_other_devices(path):
    flags = "--xla_force_host_platform_device_count=4"
    assert output(python(SHARDED, path, XLA_FLAGS=flags))[0] == "resharded on 4 devices\n"
    with resumed(path) as run:  # one device here
        assert_same(run.restore(abstract(spread()))[0], spread())
