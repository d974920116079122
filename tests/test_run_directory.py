"""Run directories: exact restores, damage, crashes, and refusals that say what to do."""

import os
import random
import shutil
import subprocess
import sys
import warnings

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

import hmcl_jax
from hmcl_jax.continual import RunError
from hmcl_jax.continual.run_directory import DamagedStep, diff_identities, open_run, read_record

# Of a reading that fails, Orbax leaves coroutines behind.
pytestmark = pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")


IDENTITY = {
    "method": "hmcl",
    "seeds": [0, 1],
    "store": "ab12",
    "config": {"learning_rate": 0.0005, "head": {"dim": 8, "bias": None}},
}


def resumed(path):
    return open_run(path, IDENTITY, resume=True)


def refused(path, match, identity=IDENTITY, resume=True):
    """The message with which a directory is refused."""
    with pytest.raises(RunError, match=match) as caught:
        open_run(path, identity, resume=resume).__enter__()
    return str(caught.value)


def newest(run, template):
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
    with resumed(path) as run:
        run.save(1, state, {})
    with resumed(path) as run:
        finished, found = newest(run, state if template is None else template)
    assert finished == 1
    return found


def saved(path, steps=2):
    """A run with some steps; gives their states."""
    states = {n: {"W": jnp.arange(12.0) + n, "n": jnp.int32(n)} for n in range(1, steps + 1)}
    with resumed(path) as run:
        for n, state in states.items():
            run.save(n, state, {"finished": n})
    return states


@pytest.fixture
def path(tmp_path):
    return tmp_path / "runs" / "hmcl"


def test_every_dtype_comes_back_bit_by_bit(path, x64, rng):
    state = {"bool": jnp.array([True, False])}
    for name in ("float32", "float64", "float16", "bfloat16", "int32", "uint32", "int8", "int64"):
        bits = rng.integers(0, 256, (3, 4, 16), dtype=np.uint8).view(jnp.dtype(name))  # NaNs too
        state[name] = {
            "bits": jnp.asarray(bits),
            "scalar": jnp.asarray(bits[0, 0, 0]),
            "minus zero": jnp.full((70, 3), -0.0).astype(name),
            "transposed": bits.T,
            "strided": bits.reshape(-1)[::2],
        }
    assert_same(round_trip(path, state), state)


def test_every_kind_of_tree_comes_back(path, rng):
    heads = hmcl_jax.identity_heads(["image", "text"], dim=3)
    image = {"image": rng.normal(size=(20, 3)).astype(np.float32)}
    moments = hmcl_jax.update_moments(hmcl_jax.init_moments(heads), image)
    protection = hmcl_jax.protect(moments, heads)
    state = {
        "a/b.c ['d']": jnp.ones(2),
        "hmcl": hmcl_jax.begin_task(hmcl_jax.hmcl(1e-3).init(heads), heads, protection),
        "moments": moments,
        "nothing": [None, (), optax.EmptyState(), jnp.zeros((0, 3))],
        "numpy": np.arange(3),
        "keys": jax.random.split(jax.random.key(7, impl="rbg"), 3),
    }
    assert_same(round_trip(path, state), state)
    for number, small in enumerate((jnp.arange(3), ())):
        assert_same(round_trip(path.with_name(f"small{number}"), small), small)


def test_another_template_is_refused(path):
    state = {"W": jnp.zeros((2, 3)), "n": jnp.int32(0)}
    with pytest.raises(RunError, match=r"\['W'\]\.dtype: .*\['n'\]\.dtype: 'int32' .* absent"):
        round_trip(path, state, {"W": np.zeros((2, 3))})


def test_records_come_back_with_nan_for_what_is_not_finite(path):
    record = {"scores": [[0.1, float("inf")], [1 / 3, 0.25]], "seconds": {"train": 12.5}}
    with resumed(path) as run:
        run.save(1, {}, record)
        run.save(2, {}, {"a": None, "names": ["ä"]})
    with resumed(path) as run:
        _, (first, second) = run.restore(lambda finished: {})
    np.testing.assert_equal(first, {**record, "scores": [[0.1, np.nan], [1 / 3, 0.25]]})
    assert second == {"a": None, "names": ["ä"]}
    file = path / "tasks" / "0001.json"
    file.write_text(file.read_text().replace("12.5", "13.5"))
    with pytest.raises(RunError, match=r"0001\.json cannot be read: .*checksum.*--resume"):
        read_record(path, 1)


def test_a_run_can_be_moved_and_begun_anew_from_any_step(path):
    states = saved(path, steps=3)
    path = path.rename(path.with_name("elsewhere"))
    shutil.rmtree(path / "steps" / "3")
    (path / "steps" / "3.orbax-checkpoint-tmp").mkdir()  # of a save that was cut off
    with resumed(path) as run:
        finished, found = newest(run, states[2])
        assert finished == 2
        assert_same(found, states[2])
        run.save(3, states[1], {})
        assert_same(newest(run, states[1])[1], states[1])
    assert not list(path.glob("steps/*-tmp"))


def test_another_run_is_refused_with_every_difference(path):
    saved(path, steps=1)
    refused(path, r"holds a run already; .*--resume.*--out", resume=False)
    with open_run(path, {**IDENTITY, "seeds": (0, 1)}, resume=True):  # JSON has no tuples
        pass
    config = {"learning_rate": 0.0005, "head": {"dim": 8, "bias": False}, "decay": 0}
    other = {**IDENTITY, "seeds": [], "config": config}
    message = refused(path, "holds another run: .*--out", other)
    assert "config.decay: absent in the directory, 0 asked for" in message
    assert "config.head.bias: None in the directory, False asked for" in message
    assert "seeds: [0, 1] in the directory, [] asked for" in message
    assert "learning_rate" not in message
    for ours, theirs in ((1, True), ({"a.b": 1}, {"a": {"b": 1}}), ({}, None)):
        assert diff_identities({"x": ours}, {"x": theirs})
        assert not diff_identities({"x": ours}, {"x": ours})


@pytest.mark.parametrize("resume", [False, True])
def test_files_of_something_else_are_left_alone(path, resume):
    path.mkdir(parents=True)
    (path / "thesis.tex").write_text("years of work")
    refused(path, r"'thesis\.tex'.*--out", resume=resume)
    assert [file.name for file in path.iterdir()] == ["thesis.tex"]
    refused(path / "thesis.tex", "cannot be used: ", resume=resume)


@pytest.mark.parametrize(
    ("text", "said"), [("{", "JSONDecodeError"), ('{"schema": 99, "identity": {}}', "schema 99")]
)
def test_a_damaged_identity_is_named(path, text, said):
    path.mkdir(parents=True)
    (path / "run.json").write_text(text)
    refused(path, rf"run\.json is damaged or of another version: .*{said}.*--out")


def test_errors_inside_pass_through_and_free_the_directory(path):
    with pytest.raises(OSError, match="mine"), resumed(path):
        raise OSError("mine")
    with resumed(path):
        refused(path, "in use by another process")


@pytest.mark.parametrize("times", [12, pytest.param(200, marks=pytest.mark.slow)])
def test_damage_is_not_loaded(path, times):
    """With a flipped bit or a file cut off, the step before is used, with a warning."""
    states, chance, named = saved(path), random.Random(0), 0
    files = [file for file in sorted((path / "steps" / "2").rglob("*")) if file.is_file()]
    weights = [file.stat().st_size for file in files]
    for number in range(times):
        (file,) = chance.choices(files, weights)  # every byte is hit as likely
        whole = file.read_bytes()
        damaged, at = bytearray(whole), chance.randrange(len(whole))
        damaged[at] ^= 1 << chance.randrange(8)
        file.write_bytes(damaged[:at] if number % 4 == 3 else damaged)
        with resumed(path) as run, warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            finished, found = newest(run, states[2])
        assert_same(found, states[finished])
        assert (finished == 1) == any(w.category is DamagedStep for w in caught)
        named += finished == 1
        file.write_bytes(whole)
    assert named > times / 6


def test_a_damaged_step_is_written_again(path):
    states = saved(path, steps=3)
    for step in (2, 3):
        (path / "steps" / str(step) / "_CHECKPOINT_METADATA").unlink()
    with resumed(path) as run:
        with pytest.warns(DamagedStep, match=r"steps/3 is damaged.*after task 1"):
            assert newest(run, states[1])[0] == 1
        run.save(2, states[2], {})
        with pytest.warns(DamagedStep, match="after task 2"):
            assert newest(run, states[2])[0] == 2
        run.save(3, states[3], {})
        assert newest(run, states[3])[0] == 3
    for step in (1, 2, 3):
        shutil.rmtree(path / "steps" / str(step) / "state")
    with resumed(path) as run, pytest.raises(RunError, match=r"All checkpoints of .* are damaged"):
        newest(run, states[1])


LIMITED = """
import resource, sys
import numpy as np
import hmcl_jax.continual
assert "orbax.checkpoint" not in sys.modules  # importing it takes a second
from hmcl_jax.continual import RunError
from test_run_directory import assert_same, newest, resumed

small = {f"W{i}": np.ones((64, 64)) for i in range(30)}
large = {f"W{i}": np.random.default_rng(i).normal(size=(64, 64)) for i in range(30)}
with resumed(sys.argv[1]) as run:
    run.save(1, small, {})
    allowed = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (8192, allowed[1]))
    try:
        run.save(2, large, {})
    except RunError as error:
        print(error)
    resource.setrlimit(resource.RLIMIT_FSIZE, allowed)
with resumed(sys.argv[1]) as run:
    assert newest(run, small)[0] == 1
    run.save(2, large, {})
    assert_same(newest(run, large)[1], large)
"""


def test_a_full_disk_loses_nothing(path):
    done = subprocess.run(
        [sys.executable, "-W", "error", "-c", LIMITED, path],
        env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr[-2000:]
    assert done.stdout.startswith("Task 2 could not be saved in ")
    assert "rerun with --resume" in done.stdout
