"""Run directories: exact restores, refusals that say what to do, crashes, full disks, damage."""

import dataclasses
import json
import os
import pickle
import random
import shutil
import subprocess
import sys
import time
from pathlib import Path
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

import hmcl_jax
from hmcl_jax.continual.checkpoint import RunError, open_run

IDENTITY = {
    "method": "hmcl",
    "seeds": [0, 1],
    "store": "ab12",
    "config": {"learning_rate": 0.0005, "head": {"dim": 8, "bias": None}},
}
RECORD = {"scores": [[0.1, None], [1 / 3, 0.25]], "seconds": {"train": 12.5}, "names": ["ä", "b"]}


@pytest.fixture
def path(tmp_path):
    return tmp_path / "runs" / "hmcl"


def begun(path):
    return open_run(path, IDENTITY, resume=False)


def resumed(path):
    return open_run(path, IDENTITY, resume=True)


def refused(path, match, identity=IDENTITY, resume=True):
    """The message with which a directory is refused."""
    with pytest.raises(RunError, match=match) as caught:
        open_run(path, identity, resume=resume).__enter__()
    return str(caught.value)


def assert_same(found, expected):
    """Equal in structure, type, dtype, shape and every bit."""
    assert jax.tree.structure(found) == jax.tree.structure(expected)
    for a, b in zip(jax.tree.leaves(found), jax.tree.leaves(expected), strict=True):
        assert isinstance(a, np.ndarray) == isinstance(b, np.ndarray)
        assert (a.dtype, a.shape) == (b.dtype, b.shape)
        if jnp.issubdtype(a.dtype, jax.dtypes.prng_key):
            a, b = jax.random.key_data(a), jax.random.key_data(b)
        assert np.asarray(a).tobytes() == np.asarray(b).tobytes()


def abstract(state):
    return jax.tree.map(lambda x: jax.ShapeDtypeStruct(x.shape, x.dtype), state)


def round_trip(path, state, template=None):
    with begun(path) as run:
        run.save(1, state, RECORD)
    with resumed(path) as run:
        assert run.latest() == 1
        found, record = run.restore(abstract(state) if template is None else template)
    assert record == RECORD
    return found


def saved(path, steps=2):
    """A run with some steps; gives their states."""
    states = {n: {"W": jnp.arange(12.0) + n, "n": jnp.int32(n)} for n in range(1, steps + 1)}
    with begun(path) as run:
        for n, state in states.items():
            run.save(n, state, {"finished": n})
    return states


def python(code, *arguments, **environment):
    """A Python process of its own, which can import this file."""
    return subprocess.Popen(
        [sys.executable, "-W", "error", "-c", code, *map(str, arguments)],
        env={
            **os.environ,
            "JAX_PLATFORMS": "cpu",
            "PYTHONPATH": str(Path(__file__).parent),
            **environment,
        },
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def output(process):
    out, err = process.communicate(timeout=300)
    assert process.returncode == 0, err[-2000:]
    return out, err


# Exact restores


class Counters(NamedTuple):
    count: jax.Array
    nothing: None


@jax.tree_util.register_dataclass
@dataclasses.dataclass
class Learned:
    weights: dict[str, jax.Array]
    counters: Counters
    kept: bool = dataclasses.field(metadata={"static": True}, default=True)


def test_every_dtype_comes_back_bit_by_bit(path, x64, rng):
    state, template = {"bool": jnp.array([True, False])}, {}
    for name in ("float32", "float64", "float16", "bfloat16", "int32", "uint32", "int8", "int64"):
        bits = rng.integers(0, 256, (3, 4, 16), dtype=np.uint8).view(jnp.dtype(name))  # NaNs too
        state[name] = {
            "bits": jnp.asarray(bits),
            "scalar": jnp.asarray(bits[0, 0, 0]),
            "minus zero": jnp.full((70, 3), -0.0).astype(name),
            "transposed": bits.T,
            "strided": bits.reshape(-1)[::2],
        }
        plain = {key: state[name][key] for key in ("transposed", "strided")}
        template[name] = {**abstract(state[name]), **plain}
    assert_same(round_trip(path, state, {**abstract(state), **template}), state)


def test_every_kind_of_tree_comes_back(path, rng):
    params = {"image": jnp.ones((2, 3)), "text": jnp.zeros((2, 3)), "a/b.c ['d']": jnp.ones(2)}
    groups = dict(zip(params, "aba", strict=True))
    tx = optax.chain(
        optax.masked(optax.adamw(1e-3), {name: group == "a" for name, group in groups.items()}),
        optax.inject_hyperparams(optax.sgd)(0.1, momentum=0.9),
        optax.partition({"a": optax.adam(1.0), "b": optax.set_to_zero()}, groups),
    )
    heads = hmcl_jax.identity_heads(["image", "text"], dim=3)
    image = {"image": rng.normal(size=(20, 3)).astype(np.float32)}
    moments = hmcl_jax.update_moments(hmcl_jax.init_moments(heads), image)
    protection = hmcl_jax.protect(moments, heads)
    state = {
        "params": params,
        "opt_state": tx.init(params),
        "hmcl": hmcl_jax.begin_task(hmcl_jax.hmcl(1e-3).init(heads), heads, protection),
        "moments": moments,
        "protection": protection,
        "learned": Learned({"W": jnp.ones(3)}, Counters(jnp.int32(3), None)),
        "nothing": [None, (), optax.EmptyState(), optax.MaskedNode()],
        "numpy": np.arange(3),
    }
    template = {**abstract(state), "numpy": np.zeros(3, int)}
    assert_same(round_trip(path, state, template), state)


@pytest.mark.parametrize("implementation", ["threefry2x32", "rbg"])
def test_typed_keys_come_back(path, implementation):
    key = jax.random.key(7, impl=implementation)
    state = {"key": key, "keys": jax.random.split(key, 3), "old": jax.random.PRNGKey(1)}
    assert_same(round_trip(path, state), state)
    with resumed(path) as run:
        assert_same(run.restore(state)[0], state)
        with pytest.raises(RunError, match=r"state\['old'\].*uint32\[2\].*key<fry>\[\]"):
            run.restore({**state, "old": jax.random.key(0)})


@pytest.mark.parametrize(
    "state",
    [jnp.arange(3), (), {"a": jnp.zeros((0, 3))}, [jnp.zeros((2, 0), jnp.bfloat16), jnp.ones(2)]],
)
def test_small_states_come_back(path, state):
    assert_same(round_trip(path, state), state)


def test_the_template_decides_who_is_tied_to_a_device(path):
    device = jax.sharding.SingleDeviceSharding(jax.devices()[0])
    state = {"free": jnp.ones(2), "tied": jax.device_put(jnp.ones(2), device), "plain": jnp.ones(2)}
    found = round_trip(path, state, {**state, "plain": abstract(state["plain"])})
    assert [found[name].committed for name in ("free", "tied", "plain")] == [False, True, False]


def test_restored_states_can_be_donated(path):
    found = round_trip(path, {"W": jnp.ones((64, 64))})
    step = jax.jit(lambda s: jax.tree.map(lambda x: x + 1, s), donate_argnums=0)
    assert_same(step(step(found)), {"W": jnp.full((64, 64), 3.0)})


def test_double_precision_is_not_rounded_in_silence(path):
    state = {"W": np.arange(3.0)}
    assert_same(round_trip(path, state, state), state)
    refusal = r"state\['W'\] was saved as float64.*JAX_ENABLE_X64=1"
    with resumed(path) as run, pytest.raises(RunError, match=refusal):
        run.restore(abstract(state))


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"W": jnp.zeros((2, 4))}, r"\['W'\]: 'float32\[2, 3\]' in step 1, 'float32\[2, 4\]' in t"),
        ({"W": jnp.zeros((2, 3), jnp.bfloat16)}, r"\['W'\]: .*'bfloat16\[2, 3\]'"),
        ({"n": jnp.float32(0)}, r"\['n'\]: 'int32\[\]' .* 'float32\[\]'"),
        ({"n": None}, r"state\['n'\]: 'int32\[\]' in step 1, absent in the template"),
        ({"m": jnp.ones(())}, r"state\['m'\]: absent in step 1, 'float32\[\]' in the template"),
    ],
)
def test_another_template_is_refused(path, change, message):
    state = {"W": jnp.zeros((2, 3)), "n": jnp.int32(0)}
    with pytest.raises(RunError, match=message):
        round_trip(path, state, {**state, **change})


@pytest.mark.parametrize(
    ("state", "error", "message"),
    [
        ({"n": 3}, TypeError, r"state\['n'\] must be an array, got 3; use jnp.asarray"),
        ({"n": np.float32(3)}, TypeError, r"state\['n'\] must be an array"),
        (jax.ShapeDtypeStruct((), jnp.float32), TypeError, "state must be an array, got Shape"),
        ({"n": np.array(["a"])}, RunError, r"state\['n'\] must hold numbers.*<U1"),
        ({"n": np.array([object()])}, RunError, r"state\['n'\] must hold numbers.*object"),
        ({"n": np.arange(3, dtype=">i4")}, RunError, r"state\['n'\].*native byte order.*>i4"),
    ],
)
def test_what_is_no_array_is_refused(path, state, error, message):
    with begun(path) as run:
        with pytest.raises(error, match=message):
            run.save(1, state, {})
        assert run.latest() is None


@pytest.mark.parametrize(
    ("bad", "message"),
    [
        ({"a": float("nan")}, "must hold only what JSON has.*None for NaN"),
        ({"a": np.ones(3)}, "must hold only what JSON has.*ndarray.*lists for arrays"),
    ],
)
def test_what_is_no_json_is_refused(path, bad, message):
    refused(path, f"identity {message}", bad)
    assert not path.exists()
    with begun(path) as run:
        with pytest.raises(RunError, match=f"record {message}"):
            run.save(1, {"W": jnp.ones(3)}, bad)
        assert run.latest() is None


# Directories


def test_steps_are_written_once_and_in_order(path):
    state = {"W": jnp.ones(3)}
    with resumed(path) as run:  # nothing there: starts
        assert run.latest() is None
        with pytest.raises(RunError, match="holds no step to restore; start with the first"):
            run.restore(state)
        with pytest.raises(ValueError, match="finished must be at least 1, got finished = 0"):
            run.save(0, state, {})
        for last in range(10):
            for wrong in {max(last, 1), last + 2} - {last + 1}:
                message = rf"finished = {wrong} cannot.*the next step is {last + 1}\."
                with pytest.raises(RunError, match=message):
                    run.save(wrong, state, {})
            run.save(last + 1, {"W": jnp.full(3, float(last))}, {})
            assert run.latest() == last + 1
    with pytest.raises(RunError, match="the run is closed"):
        run.save(11, state, {})
    shutil.rmtree(path / "steps" / "10")
    with resumed(path) as run:
        assert run.latest() == 9
        assert_same(run.restore(state)[0], {"W": jnp.full(3, 8.0)})


def test_a_run_can_be_moved(path):
    states = saved(path)
    with resumed(path.rename(path.with_name("elsewhere"))) as run:
        assert_same(run.restore(states[2])[0], states[2])


def test_half_written_steps_are_not_seen_and_then_removed(path):
    saved(path, steps=1)
    half, other = path / "steps" / "2.orbax-checkpoint-tmp", path / "steps" / "notes"
    with resumed(path) as run:
        (half / "state").mkdir(parents=True)
        other.mkdir()
        assert run.latest() == 1
    with resumed(path):
        assert (half.exists(), other.exists()) == (False, True)


def test_a_run_is_not_overwritten(path):
    saved(path)
    refused(path, r"holds a run already; .*--resume.*--out", resume=False)
    with open_run(path, {**IDENTITY, "seeds": (0, 1)}, resume=True) as run:  # JSON has no tuples
        assert run.latest() == 2


def test_another_run_is_refused_with_every_difference(path):
    saved(path, steps=1)
    config = {"learning_rate": 0.001, "head": {"dim": 8, "bias": False}, "decay": 0}
    other = {"method": "ewc", "seeds": [0, 1, 2], "store": "ab12", "config": config}
    assert (
        "holds another run: "
        "config.decay: absent in the directory, 0 asked for; "
        "config.head.bias: None in the directory, False asked for; "
        "config.learning_rate: 0.0005 in the directory, 0.001 asked for; "
        "method: 'hmcl' in the directory, 'ewc' asked for; "
        "seeds: [0, 1] in the directory, [0, 1, 2] asked for. Ask for the same"
    ) in refused(path, "--out", other)


@pytest.mark.parametrize(("ours", "theirs"), [(1, True), ({"a.b": 1}, {"a": {"b": 1}}), ({}, None)])
def test_near_misses_are_differences(path, ours, theirs):
    with open_run(path, {"x": ours}, resume=False):
        pass
    refused(path, "holds another run: x", {"x": theirs})


@pytest.mark.parametrize("resume", [False, True])
def test_files_of_something_else_are_left_alone(path, resume):
    path.mkdir(parents=True)
    (path / "thesis.tex").write_text("years of work")
    refused(path, r"holds no run\.json, but 'thesis\.tex'; .*--out", resume=resume)
    assert [file.name for file in path.iterdir()] == ["thesis.tex"]
    refused(path / "thesis.tex", "cannot be used: ", resume=resume)


@pytest.mark.parametrize("text", ["", "{", '{"schema": 1}', "[]", '{"schema": 1, "identity": 3}'])
def test_a_damaged_identity_is_named(path, text):
    saved(path, steps=1)
    (path / "run.json").write_text(text)
    refused(path, r"run\.json is damaged: .*--out")


def test_another_schema_is_named(path):
    saved(path, steps=1)
    file = path / "run.json"
    file.write_text(json.dumps({**json.loads(file.read_text()), "schema": 99}))
    refused(path, "schema 99, this version of hmcl_jax reads 1; resume with")


def test_a_crash_before_the_first_step_leaves_a_usable_directory(path):
    path.mkdir(parents=True)
    (path / "run.lock").write_text("123")
    (path / "run.json.partial").write_text('{"sch')
    with begun(path) as run:
        assert run.latest() is None


def test_errors_inside_pass_through_and_free_the_directory(path):
    with pytest.raises(OSError, match="mine"), begun(path):
        raise OSError("mine")
    with resumed(path):
        pass


def test_nothing_is_printed_and_nothing_unpickled(path, capfd, monkeypatch):
    states = saved(path)
    for name in ("load", "loads", "Unpickler"):
        monkeypatch.setattr(pickle, name, None)
    with resumed(path) as run:
        assert_same(run.restore(states[2])[0], states[2])
    assert capfd.readouterr() == ("", "")


def test_import_does_not_wait_for_orbax():
    code = "import sys, hmcl_jax.continual.checkpoint; print('orbax.checkpoint' in sys.modules)"
    assert output(python(code))[0] == "False\n"


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
from test_checkpoint import assert_same, begun

small = {f"W{i}": np.ones((64, 64)) for i in range(4)}
large = {f"W{i}": np.random.default_rng(i).normal(size=(64, 64)) for i in range(4)}
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
    assert "absl" not in err


# Crashes

LEARNER = """
import sys, time
from test_checkpoint import first, resumed, train

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
from test_checkpoint import assert_same, begun, spread

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
