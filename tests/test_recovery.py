"""Damaged newest steps, and the short form of the fault campaign."""

import shutil
import warnings
from pathlib import Path

import pytest
from run_directories import assert_same, resumed, saved

from hmcl_jax.continual.checkpoint import RunError
from hmcl_jax.continual.recovery import DamagedStep, usable_step

ROOT = Path(__file__).parent.parent
# Of a reading that fails, Orbax leaves coroutines behind.
pytestmark = pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")


@pytest.fixture
def path(tmp_path):
    return tmp_path / "runs" / "hmcl"


def flip(path, step):
    """One bit of the largest file of a step."""
    files = [file for file in (path / "steps" / str(step)).rglob("*") if file.is_file()]
    file = max(files, key=lambda file: file.stat().st_size)
    data = bytearray(file.read_bytes())
    data[len(data) // 2] ^= 1
    file.write_bytes(data)


def test_whole_steps_are_used_without_a_word(path):
    with resumed(path) as run:
        assert usable_step(run) is None
    saved_in = path.with_name("other")
    saved(saved_in, steps=2)
    with resumed(saved_in) as run, warnings.catch_warnings():
        warnings.simplefilter("error")
        assert usable_step(run) == 2


def test_a_damaged_newest_step_is_set_aside(path):
    states = saved(path, steps=3)
    for aside in ("3.damaged", "3.damaged-2"):
        flip(path, 3)
        found = rf"Step 3 of .*renamed {aside}; the run goes on from step 2\. What was found: "
        with resumed(path) as run:
            with pytest.warns(DamagedStep, match=found):
                assert usable_step(run) == 2
            assert (path / "steps" / aside).is_dir()
            assert run.latest() == 2
            assert_same(run.restore(states[2])[0], states[2])
            run.save(3, states[3], {})
            assert usable_step(run) == 3


def test_steps_between_may_have_been_deleted(path):
    states = saved(path, steps=4)
    for number in (2, 3):
        shutil.rmtree(path / "steps" / str(number))
    flip(path, 4)
    with resumed(path) as run:
        with pytest.warns(DamagedStep, match="the run goes on from step 1"):
            assert usable_step(run) == 1
        assert_same(run.restore(states[1])[0], states[1])
        run.save(2, states[2], {})


def test_a_lone_damaged_step_means_the_beginning(path):
    saved(path, steps=3)
    for number in (1, 2):
        shutil.rmtree(path / "steps" / str(number))
    flip(path, 3)
    with resumed(path) as run, pytest.raises(RunError, match="resume from the beginning"):
        usable_step(run)


@pytest.mark.parametrize(("steps", "damaged"), [(1, (1,)), (3, (2, 3))])
def test_nothing_is_moved_if_there_is_no_whole_step_before(path, steps, damaged):
    saved(path, steps=steps)
    for step in damaged:
        flip(path, step)
    with resumed(path) as run:
        with pytest.raises(RunError, match=f"Step {steps} cannot be read.*delete the directory"):
            usable_step(run)
        assert run.latest() == steps


def test_what_is_damaged_is_said_in_words(path):
    saved(path, steps=2)
    (path / "steps" / "2" / "state" / "_METADATA").write_bytes(b"")
    with resumed(path) as run, pytest.warns(DamagedStep, match="its list of arrays, or a file"):
        assert usable_step(run) == 1


def test_a_step_that_cannot_be_renamed_is_named(path, monkeypatch):
    saved(path, steps=2)
    flip(path, 2)

    def denied(self, target):
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(Path, "rename", denied)
    with resumed(path) as run, pytest.raises(RunError, match=r"renamed: Permission.*from step 1\."):
        usable_step(run)
