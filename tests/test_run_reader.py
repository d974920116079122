"""Heads read back from run directories: exactly, without touching them, or with a remedy."""

import shutil

import numpy as np
import pytest
from saved_runs import heads_of, identity, save_run

from hmcl_jax.continual import RunError, read_runs
from hmcl_jax.continual.run_directory import open_run
from hmcl_jax.data.synthetic import synthetic_stream

STORE = synthetic_stream(tasks=4, classes=4, dimension=6, test=20, modalities=3)
SEEDS = (3, 5)
HEADS = [heads_of(STORE, SEEDS, n, np.random.default_rng(n)) for n in range(1, 5)]


def snapshot(path):
    return {
        file: (file.stat().st_mtime_ns, file.read_bytes() if file.is_file() else None)
        for file in sorted(path.rglob("*"))
    }


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    """Two finished runs; heads of a modality are there from the first task that has it."""
    out = tmp_path_factory.mktemp("out")
    for method in ("vanilla", "hmcl_ca"):
        save_run(out, STORE, method, SEEDS, HEADS)
    return out


@pytest.fixture
def out(made, tmp_path):
    shutil.copytree(made, tmp_path / "out")
    return tmp_path / "out"


def test_heads_are_read_exactly_as_they_were_saved(made):
    run = read_runs(made, STORE)["vanilla"]
    assert (run.method, run.seeds, run.finished) == ("vanilla", SEEDS, 4)
    assert (run.order, run.config) == (("task1", "task2", "task3", "task4"), {"kappa": 0.1})
    for n, expected in enumerate(HEADS, 1):
        found = run.heads(n)
        assert list(found) == sorted(expected)
        for modality, W in expected.items():
            assert found[modality].dtype == W.dtype
            np.testing.assert_array_equal(found[modality], W)
    assert sorted(run.heads(1)) == ["image", "text"]
    assert sorted(run.heads()) == ["audio", "image", "text"]


def test_reading_takes_no_lock_and_writes_nothing(out):
    with open_run(out / "vanilla", identity(STORE, "vanilla", SEEDS), resume=True):
        (out / "vanilla" / "steps" / "5.orbax-checkpoint-tmp").mkdir()  # a step that is being saved
        before = snapshot(out)
        for run in read_runs(out, STORE).values():
            assert run.finished == 4
            assert run.heads(2).keys() == {"audio", "image", "text"}
        assert snapshot(out) == before


def test_methods_come_in_the_order_of_the_results(out):
    results = out / "results.json"
    for text, names in (
        ("[", ["hmcl_ca", "vanilla"]),
        ('{"methods": {"vanilla": 0, "ewc": 0, "hmcl_ca": 0}}', ["vanilla", "hmcl_ca"]),
    ):
        results.write_text(text)
        assert list(read_runs(out, STORE)) == names
    assert list(read_runs(out, STORE, ["hmcl_ca"])) == ["hmcl_ca"]


def test_steps_that_are_missing_or_damaged_are_named_with_the_remedy(out):
    run = read_runs(out, STORE)["hmcl_ca"]
    metadata = out / "hmcl_ca" / "steps" / "1" / "_CHECKPOINT_METADATA"
    metadata.write_text(metadata.read_text().replace('"float32"', '"int32"', 1))
    with pytest.raises(RunError, match="1 is damaged"):
        run.heads(1)
    shutil.rmtree(out / "hmcl_ca" / "steps" / "2")
    with pytest.raises(RunError, match=r"Step 2 of hmcl_ca is missing; 4 of 4 .*Delete later st"):
        run.heads(2)
    for n in (3, 4):
        shutil.rmtree(out / "hmcl_ca" / "steps" / str(n))
    with pytest.raises(RunError, match=r"Step 4 .*; 1 of 4 tasks are finished.*--resume"):
        run.heads()


def test_folders_that_hold_something_else_are_refused(out, tmp_path):
    with pytest.raises(RunError, match=r"vanilla is the run of one method; give the folder above"):
        read_runs(out / "vanilla", STORE)
    for folder in (tmp_path / "none", out / "vanilla" / "steps"):
        with pytest.raises(RunError, match=r"holds no run; make one with `hmcl run"):
            read_runs(folder, STORE)
    with pytest.raises(RunError, match=r"no run of 'ewc', only of hmcl_ca, vanilla; add it with"):
        read_runs(out, STORE, ["ewc"])
    (out / "vanilla" / "run.json").write_text("{")
    with pytest.raises(RunError, match=r"run\.json is damaged"):
        read_runs(out, STORE)


def test_another_store_is_refused(made):
    other = synthetic_stream(tasks=4, classes=4, dimension=6, test=20, modalities=3, seed=1)
    with pytest.raises(RunError, match=f"another store.*{STORE.fingerprint[:12]}"):
        read_runs(made, other)
