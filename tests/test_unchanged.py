"""Stores that change during a run."""

import numpy as np
import pytest

from hmcl_jax.continual import Schedule, TrainConfig, run_stream
from hmcl_jax.continual.unchanged import check_unchanged, task_digest
from hmcl_jax.data.store import StoreError, read_store, write_store
from hmcl_jax.data.synthetic import synthetic_stream

CONFIG = TrainConfig(classification=Schedule(1, 0.01), batch=8)


@pytest.fixture
def path(tmp_path):
    made = synthetic_stream(tasks=2, classes=2, dimension=4, train=8, test=8)
    path = tmp_path / "store"
    write_store(path, made.tasks, name="s", backbone="b", K=made.K, tau=made.tau)
    return path


def zero(path):
    """Zeros in the last numbers of an array, in place."""
    with open(path, "r+b") as file:
        file.seek(-16, 2)
        file.write(bytes(16))


@pytest.mark.parametrize("array", ["train_features", "test_features"])
def test_a_task_that_changes_is_not_saved(tmp_path, path, array):
    arguments = (["vanilla"], [0], CONFIG)
    honest = run_stream(read_store(path), *arguments)["vanilla"]
    out, victim = tmp_path / "runs", path / "task2" / f"{array}.npy"
    whole = victim.read_bytes()

    def change(event):
        if event.kind == "task" and event.number == 1:
            zero(victim)

    with pytest.raises(StoreError, match=r"Task 'task2' .*changed during the run.*--resume"):
        run_stream(read_store(path), *arguments, out=out, listener=change)
    assert [step.name for step in (out / "vanilla" / "steps").iterdir()] == ["1"]
    victim.write_bytes(whole)
    again = run_stream(read_store(path), *arguments, out=out, resume=True)["vanilla"]
    assert np.array_equal(again.heads["image"], honest.heads["image"])
    np.testing.assert_array_equal(again.scores, honest.scores)


def test_every_array_counts(path):
    task = read_store(path)["task1"]
    before = task_digest(task)
    check_unchanged(task, before)
    for array in task.arrays:
        victim = path / "task1" / f"{array}.npy"
        whole = victim.read_bytes()
        with open(victim, "r+b") as file:
            file.seek(-1, 2)
            file.write(bytes([whole[-1] ^ 1]))
        with pytest.raises(StoreError, match="'task1'"):
            check_unchanged(task, before)
        with open(victim, "r+b") as file:
            file.write(whole)
    check_unchanged(task, before)
