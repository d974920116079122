"""The choice of settings: one seed, one rule, and then the other seeds without looking back."""

import json
import sys
from pathlib import Path

import pytest

from hmcl_jax.continual import ConfigError, run_stream
from hmcl_jax.continual.experiment import read_experiment
from hmcl_jax.data.store import read_store, write_store
from hmcl_jax.data.synthetic import synthetic_stream
from hmcl_jax.report import columns

ROOT = Path(__file__).parent.parent
sys.path.insert(0, str(ROOT / "experiments"))

import select_settings  # noqa: E402

HASTE = [
    "train.classification.epochs=2",
    "train.classification.learning_rate=0.02",
    "seeds=[0, 42]",
]
GRIDS = ["variance=0.5,0.99", "min_rank=1,4"]


@pytest.fixture(scope="module")
def stream(tmp_path_factory):
    made = synthetic_stream(tasks=2, classes=4, dimension=8, train=64, test=64, overlap=0.9)
    path = tmp_path_factory.mktemp("stream") / "store.zip"
    about = {"name": made.name, "backbone": made.backbone, "K": made.K, "tau": made.tau}
    write_store(path, made.tasks, **about)
    return path


def call(monkeypatch, stream, *more):
    words = ["--stream", stream, "--method", "hmcl_mr", *more]
    words += [word for setting in HASTE for word in ("--set", setting)]
    words += [word for grid in GRIDS for word in ("--grid", grid)]
    monkeypatch.setattr(sys, "argv", ["select_settings.py", *map(str, words)])
    monkeypatch.setattr(select_settings, "keep_programs", lambda on: None)
    select_settings.main()


def test_the_rule_is_the_largest_sum_and_the_first_of_equal_ones():
    rows = [
        {"beta": 0.1, "Overall": 40.0, "BWT": -2.0},
        {"beta": 0.2, "Overall": 41.0, "BWT": -2.5},
        {"beta": 0.3, "Overall": 39.0, "BWT": -0.5},
        {"beta": 0.4, "Overall": None, "BWT": None},
    ]
    assert select_settings.pick(rows)["beta"] == 0.2
    assert select_settings.pick(rows[:1] + rows[2:])["beta"] == 0.3
    with pytest.raises(ConfigError, match="Every point of the grid diverged"):
        select_settings.pick(rows[3:])


def test_all_combinations_and_what_is_no_grid():
    found = select_settings.points(["a=1,2", "b=0.5"])
    assert found == [{"a": 1, "b": 0.5}, {"a": 2, "b": 0.5}]
    for wrong in ([], ["a"], ["a=1,,2"], ["a=1", "a=2"]):
        with pytest.raises(ConfigError, match="--grid"):
            select_settings.points(wrong)


@pytest.mark.slow
def test_the_winner_is_fixed_and_run_with_all_seeds(tmp_path, monkeypatch, stream, capsys):
    out = tmp_path / "out"
    call(monkeypatch, stream, "--then-run", out)
    known = json.loads((out / "selection.json").read_text())
    assert [(row["variance"], row["min_rank"]) for row in known["rows"]] == [
        (0.5, 1), (0.5, 4), (0.99, 1), (0.99, 4)
    ]  # fmt: skip
    best = known["best"]
    assert best["sum"] == max(row["Overall"] + row["BWT"] for row in known["rows"])
    results = json.loads((out / "results.json").read_text())
    assert results["seeds"] == [0, 42]
    own = results["methods"]["hmcl_mr"]["settings"]
    assert (own["variance"], own["min_rank"]) == (best["variance"], best["min_rank"])
    # The points are what single runs on seed 42 give, and so is the chosen seed's row.
    row = known["rows"][1]
    settings = {"hmcl_mr": {"variance": row["variance"], "min_rank": row["min_rank"]}}
    train = read_experiment(None, HASTE, methods=["hmcl_mr"]).train
    alone = run_stream(read_store(stream), ["hmcl_mr"], [42], train, settings=settings)["hmcl_mr"]
    assert columns(alone)["Overall"][0] == pytest.approx(row["Overall"], abs=1e-3)
    assert results["methods"]["hmcl_mr"]["columns"]["Overall"][1] == pytest.approx(best["Overall"])
    # The same command again chooses nothing anew.
    capsys.readouterr()
    monkeypatch.setattr(select_settings, "run_grid", lambda *_: pytest.fail("chosen twice"))
    call(monkeypatch, stream, "--then-run", out)
    assert "hmcl_mr" in capsys.readouterr().out
    with pytest.raises(SystemExit, match="is of another selection"):
        call(monkeypatch, stream, "--then-run", out, "--seed", "7")


def test_a_folder_with_something_else_is_refused(tmp_path, monkeypatch, stream):
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / "letter.txt").write_text("mine")
    monkeypatch.setattr(select_settings, "run_grid", lambda *_: pytest.fail("ran"))
    with pytest.raises(SystemExit, match="holds something else"):
        call(monkeypatch, stream, "--then-run", tmp_path / "out")
    with pytest.raises(SystemExit, match=r"variance must be in \(0, 1\]"):
        call(monkeypatch, stream, "--grid", "beta=0.1", "--set", "methods.hmcl_mr.variance=7.0")
