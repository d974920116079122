"""Run directories: exact restores, and refusals that say what to do."""

import dataclasses
import json
import pickle
import shutil
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from run_directories import (
    IDENTITY,
    abstract,
    assert_same,
    begun,
    output,
    python,
    refused,
    resumed,
    round_trip,
    saved,
)

import hmcl_jax
from hmcl_jax.continual.checkpoint import RunError, open_run


@pytest.fixture
def path(tmp_path):
    return tmp_path / "runs" / "hmcl"


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
    (path / ".run.json.partial-123").write_text('{"sch')
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
