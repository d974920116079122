"""Whole streams: resuming, new modalities, refusals, files."""

import dataclasses
import json

import jax
import numpy as np
import pytest

from hmcl_jax.continual import ConfigError, RunError, Schedule, TrainConfig, run_stream
from hmcl_jax.data.store import Store, StoreError
from hmcl_jax.data.synthetic import synthetic_stream
from hmcl_jax.evaluation import is_complete
from hmcl_jax.report import check_results, columns, latex_table, markdown_table, write_results

FAST = TrainConfig(
    classification=Schedule(3, 0.02), retrieval=Schedule(2, 0.02), batch=32, seed_axis="map"
)


def small(**options) -> Store:
    settings = {"tasks": 3, "classes": 4, "dimension": 8, "train": 70, "test": 40, "overlap": 0.8}
    return synthetic_stream(**{**settings, "retrieval_every": 3, **options})


class Stop(Exception):
    pass


def same(a, b) -> bool:
    return all(jax.tree.leaves(jax.tree.map(np.array_equal, a, b)))


@pytest.fixture(scope="module")
def out(tmp_path_factory):
    return tmp_path_factory.mktemp("finished")


@pytest.fixture(scope="module")
def results(out):
    """Two methods on a stream of two classifications and a retrieval."""
    return run_stream(small(), ["vanilla", "hmcl_mr"], [0, 1], FAST, out=out)


@pytest.mark.parametrize("task", [1, pytest.param(2, marks=pytest.mark.slow)])
def test_a_lasting_optimizer_is_resumed_bitwise(tmp_path, task):
    config = dataclasses.replace(FAST, reset_optimizer=False)
    arguments = (small(), ["hmcl_rotation"], [0, 7], config)
    (whole,) = run_stream(*arguments).values()

    def stop(event):
        if event.kind == "scores" and event.number == task:
            raise Stop

    with pytest.raises(Stop):
        run_stream(*arguments, out=tmp_path, listener=stop)
    (resumed,) = run_stream(*arguments, out=tmp_path, resume=True).values()
    assert np.array_equal(resumed.scores, whole.scores, equal_nan=True)
    assert same(resumed.heads, whole.heads)
    assert (resumed.details, resumed.losses) == (whole.details, whole.losses)


def test_a_finished_run_is_read_back(results, out):
    again = run_stream(small(), ["vanilla"], [0, 1], FAST, out=out, resume=True)["vanilla"]
    first = results["vanilla"]
    assert again.programs == 0
    assert (again.seconds, again.details, again.logs) == (first.seconds, first.details, first.logs)
    assert np.array_equal(again.scores, first.scores, equal_nan=True)
    assert same(first.heads, again.heads)


def test_scores_are_a_lower_triangle_and_methods_differ(results):
    assert list(results) == ["vanilla", "hmcl_mr"]
    for result in results.values():
        assert result.scores.shape == (2, 3, 3)
        assert is_complete(result.scores).all()
        assert [len(row) for row in result.details] == [1, 2, 3]
        assert [np.shape(x) for x in result.losses] == [(2, 3), (2, 3), (2, 2)]
        assert all(loss[-1] < loss[0] for losses in result.losses for loss in losses)
        for row in result.details:
            assert set(row[0]) == {"score", "top1", "top1_macro"}
        assert len(result.details[2][2]) == 7
    one, other = (np.asarray(result.heads["image"]) for result in results.values())
    assert np.abs(one - other).max() > 1e-4


def test_heads_are_made_when_a_modality_appears(tmp_path):
    store, seen = small(modalities=3), []
    assert [task.specific for task in store] == ["image", "audio", "image"]
    arguments = (store, ["hmcl_rotation"], [0, 1], FAST)
    (result,) = run_stream(*arguments, listener=seen.append, out=tmp_path).values()
    assert sorted(result.heads) == ["audio", "image", "text"]
    told = [event.kind for event in seen if event.kind != "epoch"]  # of a task that takes long
    assert told == ["method", *["task", "scores"] * 3, "done"]
    (alone,) = run_stream(*arguments, order=["task1"]).values()
    assert sorted(alone.heads) == ["image", "text"]
    (resumed,) = run_stream(*arguments, out=tmp_path, resume=True).values()
    assert same(result.heads, resumed.heads)


@pytest.mark.slow
def test_a_head_without_a_task_neither_moves_nor_decays():
    arguments = (small(modalities=3), ["vanilla"], [0], dataclasses.replace(FAST, weight_decay=0.3))
    (whole,) = run_stream(*arguments).values()
    (first_two,) = run_stream(*arguments, order=["task1", "task2"]).values()
    assert same(first_two.heads["audio"], whole.heads["audio"])
    assert not same(first_two.heads["text"], whole.heads["text"])


@pytest.mark.slow
def test_any_two_modalities_pair():
    store = small(tasks=1)
    task = dataclasses.replace(store.tasks[0], general="audio", specific="thermal")
    both = dataclasses.replace(store.tasks[0], name="both", general="audio", specific="audio")
    store = dataclasses.replace(store, tasks=(task, both), orders={"canonical": ("task1", "both")})
    for result in run_stream(store, ["vanilla", "hmcl_ca"], [0], FAST).values():
        assert sorted(result.heads) == ["audio", "thermal"]
        assert is_complete(result.scores).all()


def test_another_run_in_the_directory_is_refused(results, out):
    def again(store=None, resume=True, **changes):
        config = dataclasses.replace(FAST, **changes)
        run_stream(store or small(), ["vanilla"], [0, 1], config, out=out, resume=resume)

    with pytest.raises(RunError, match="resume"):
        again(resume=False)
    with pytest.raises(RunError, match=r"config\.batch: 32 in the directory, 64 asked for"):
        again(batch=64)
    with pytest.raises(RunError, match=r"store\.fingerprint"):
        again(small(seed=1))
    again(seed_axis="loop", device_memory=1.0)  # how the work is laid out may change


def test_folders_are_checked_before_training(results, out, tmp_path):
    with pytest.raises(RunError, match=r"holds a run of another experiment, hmcl_mr: seeds"):
        run_stream(small(), ["hmcl_ca"], [1], FAST, out=out)
    assert not (out / "hmcl_ca").exists()
    (tmp_path / "hmcl_ca").mkdir()
    (tmp_path / "hmcl_ca" / "thesis.tex").write_text("mine")
    events = []
    with pytest.raises(RunError):
        run_stream(small(), ["vanilla", "hmcl_ca"], [0], FAST, out=tmp_path, listener=events.append)
    assert not events


def test_results_are_not_overwritten(tmp_path):
    check_results(tmp_path, ["vanilla"], resume=False)
    (tmp_path / "table.md").write_text("mine")
    with pytest.raises(RunError, match=r"table.md exists already; choose another --out"):
        check_results(tmp_path, ["vanilla"], resume=False)
    (tmp_path / "results.json").write_text("mine")
    with pytest.raises(RunError, match=r"results.json is damaged, or not of a run"):
        check_results(tmp_path, ["vanilla"], resume=True)
    (tmp_path / "results.json").write_text('{"methods": {"vanilla": 1, "hmcl_mr": 2}}')
    check_results(tmp_path, ["vanilla", "hmcl_mr"], resume=True)
    with pytest.raises(RunError, match=r"also holds hmcl_mr, which would be lost"):
        check_results(tmp_path, ["vanilla"], resume=True)


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"config": {"batch": 3}}, "config must be a TrainConfig, got {'batch': 3}"),
        ({"settings": {"vanilla": 3}}, "settings must be tables by name, got {'vanilla': 3}"),
        ({"order": "seq2"}, "order must be one of canonical"),
        ({"order": ["task9"]}, "order must name tasks of synthetic .*'task9'"),
        ({"order": ["task1", "task1"]}, "each once"),
    ],
)
def test_bad_arguments_are_named_before_anything_is_written(tmp_path, change, said):
    arguments = {"methods": ["vanilla"], "seeds": [0], "config": FAST, "out": tmp_path / "out"}
    with pytest.raises(ConfigError, match=said):
        run_stream(small(), **{**arguments, **change})
    assert not (tmp_path / "out").exists()


def test_mistyped_options_are_named():
    with pytest.raises(TypeError, match="no parameter 'listner'"):
        run_stream(small(), listner=print)


def test_bad_stores_are_named_before_anything_is_written(tmp_path):
    store = small()
    task = store.tasks[0]
    features = np.array(task.arrays["train_features"])
    features[3, 1] = np.nan
    task = dataclasses.replace(task, arrays={**task.arrays, "train_features": features})
    damaged = dataclasses.replace(store, tasks=(task, *store.tasks[1:]))
    with pytest.raises(StoreError, match="train_features row 3 is not finite"):
        run_stream(damaged, ["vanilla"], [0], FAST, out=tmp_path / "out")
    assert not (tmp_path / "out").exists()


def test_diverging_runs_do_not_count():
    wild = dataclasses.replace(FAST, classification=Schedule(3, 1e30))
    with pytest.raises(FloatingPointError, match="lower train"):
        run_stream(small(), ["vanilla"], [0, 1], wild)


def test_tables_and_files(results, tmp_path):
    shown = columns(results["vanilla"])
    R = results["vanilla"].scores
    assert np.allclose(shown["Acc"], 100 * R[:, -1, :2].mean(1))
    assert np.allclose(shown["R@5"], 100 * R[:, -1, 2])
    assert np.allclose((2 * shown["BWT_A"] + shown["BWT_R5"]) / 3, shown["BWT"])
    lines = markdown_table(results).splitlines()
    assert len(lines) == 4
    assert len({len(line) for line in lines}) == 1
    mean, std = shown["Overall"].mean(), shown["Overall"].std(ddof=1)
    assert f"{mean:.2f} ± {std:.2f}" in lines[2]
    assert latex_table(results).count(r"\\") == 4
    write_results(tmp_path, results, {"note": 1})
    names = ["results.json", "table.md", "table.tex"]
    assert sorted(path.name for path in tmp_path.iterdir()) == names
    found = json.loads((tmp_path / "results.json").read_text())
    assert found["methods"]["vanilla"]["scores"][0][0][1] is None
    assert found["methods"]["vanilla"]["scores"][1][2][0] == R[1, 2, 0]
    assert found["versions"]["jax"] == jax.__version__
