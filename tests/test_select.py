"""`hmcl select`: grids, the rule, what is written, and how it continues."""

import json
import math
import tomllib
from pathlib import Path

import numpy as np
import pytest

from hmcl_jax.cli import records, select
from hmcl_jax.continual import METHODS, ConfigError, run_stream
from hmcl_jax.continual.experiment import read_experiment
from hmcl_jax.data.store import read_store, write_store
from hmcl_jax.data.synthetic import synthetic_stream
from hmcl_jax.report import columns

CONFIGS = Path(__file__).parent.parent / "experiments" / "configs"
HASTE = ["train.classification.epochs=2", "train.batch=64"]
GRIDS = """
points = 4
[grids.vanilla]
[grids.hmcl_mr]
variance = [0.5, 0.99]
beta = [0.0, 0.5]
[grids.turn]
method = "hmcl_ca"
span = "protected"
beta = [0.0, 0.1]
[grids.turn_ambient]
method = "hmcl_ca"
row = "turn"
span = "ambient"
train.weight_decay = 0.1
beta = [0.1, 0.2]
"""


@pytest.fixture(scope="module")
def stream(tmp_path_factory):
    made = synthetic_stream(tasks=2, classes=4, dimension=8, train=64, test=64, overlap=0.9)
    path = tmp_path_factory.mktemp("stream") / "store.zip"
    write_store(path, made.tasks, name="s", backbone="synthetic", K=made.K, tau=made.tau)
    return path


@pytest.fixture
def call(hmcl, stream, tmp_path):
    """Runs `hmcl select`; a file of grids unless --method is given."""

    def call(*more, grids=GRIDS):
        (tmp_path / "grids.toml").write_text(grids)
        first = [] if "--method" in more else [tmp_path / "grids.toml"]
        settings = [word for setting in HASTE for word in ("--set", setting)]
        out = tmp_path / "out"
        hmcl("select", *first, "--stream", stream, "--out", out, *settings, *more)
        return json.loads((out / "selection.json").read_text())

    return call


@pytest.fixture
def ran(monkeypatch):
    """The grids that are run, of which beta alone decides; 0.1 is best, and far away diverges."""
    labels = []

    def measure(study, job):
        labels.append(job.label)
        assert study.experiment.seeds == (42,)
        gaps = [abs(point["beta"] - 0.1) for point in job.points]
        shift = 0.5 if job.points[0].get("span") == "ambient" else 0.0
        return {
            "settings": records.full_settings(job),
            "immediate": [[math.nan if gap > 0.15 else 40.0 - gap] for gap in gaps],
            "forgetting": [[2.0 - shift] for _ in gaps],
        }

    monkeypatch.setattr(records, "measure", measure)
    return labels


def test_the_rule_is_the_largest_sum_and_the_first_of_equal_ones():
    def winner(*points):
        immediate, forgetting = np.array(points).T[:, :, None]
        betas = [{"beta": number} for number in range(len(points))]
        record = {"points": betas, "immediate": immediate, "forgetting": forgetting}
        return select.winner(record).get("beta")

    a, b, c, lost = (42.0, 2.0), (43.5, 2.5), (39.5, 0.5), (math.nan, math.nan)
    assert winner(a, b, c, lost) == 1  # Overall 41, BWT -2.5: as much as c
    assert winner(a, c, lost, b) == 1
    assert winner(lost) is None


def test_every_method_has_a_grid_and_as_many_points():
    grids = select.read_grids(CONFIGS / "grids.toml")
    assert {grid.given.get("method", name) for name, grid in grids.items()} == set(METHODS)
    points = {}
    for name, grid in grids.items():
        settings = records.full_settings(grid.job(name))  # refuses bad ones
        if grid.axes:
            points.setdefault(grid.row, []).extend(settings)
    assert {len(own) for own in points.values()} == {24}
    # The rows of the table are those that are chosen, with settings of a point.
    experiment = read_experiment(CONFIGS / "baselines.toml")
    assert {grid.row for grid in grids.values()} == set(experiment.methods)
    for name, table in experiment.settings.items():
        if name in points:
            (settings,) = records.full_settings(records.Job(name, name, [table], {}))
            assert settings in points[name], name


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("points = 4", "must hold points = NUMBER and tables"),
        ("points = 4\nstream = 'pocket'\n[grids.vanilla]", "no more"),
        ("points = 4\n[grids.gem]\nmargin = [0.0, 0.1]", "row gem must have 4 points, got 2"),
        ("points = 1\n[grids.gem]\nmargin = [-1.0]", "margin must"),
        ("points = 1\n[grids.mine]\nmargin = [1.0]", "methods must be among"),
        ("points = 1\n[grids]\ngem = 3", "grids.gem must be a table, got 3"),
        ("points = 1\n[grids.agem]\nrow = 'gem'", "grids.agem has nothing to choose"),
    ],
)
def test_bad_grids_are_refused(call, ran, text, message):
    with pytest.raises(SystemExit, match=message):
        call(grids=text)
    assert not ran


def test_axes_on_the_command_line(call, ran):
    axes = select.read_axes(["a=1,2", "b.c=0.5"])
    points = select.Grid("x", {}, axes).points
    assert points == [{"a": 1, "b.c": 0.5}, {"a": 2, "b.c": 0.5}]
    for wrong in ([], ["a"], ["a=1,,2"], ["a=1", "a=2"]):
        with pytest.raises(ConfigError, match="--grid"):
            select.read_axes(wrong)
    with pytest.raises(SystemExit, match=r"variance must be in \(0, 1\]"):
        call("--method", "hmcl_mr", "--grid", "beta=0.1", "--set", "methods.hmcl_mr.variance=7.0")
    assert not ran


def test_rows_that_share_a_name_are_chosen_by_the_same_rule(call, ran, tmp_path, stream, capsys):
    held = call()
    assert ran == ["hmcl_mr", "turn", "turn_ambient"]
    won = held["winners"]["turn_ambient"]
    assert (won["row"], won["beta"], won["Overall"]) == ("turn", 0.1, 38.5)
    assert won["sum"] == pytest.approx(37.0)
    assert held["winners"]["turn"]["row"] == "turn"
    assert held["about"]["rule"] == select.RULE
    turn = {"method": "hmcl_ca", "span": "ambient", "train": {"weight_decay": 0.1}, "beta": 0.1}
    chosen = {"vanilla": {}, "hmcl_mr": {"variance": 0.5, "beta": 0.0}, "turn": turn}
    assert held["rows"] == chosen
    experiment = read_experiment(tmp_path / "out" / "selected.toml")
    assert experiment.settings == chosen
    assert experiment.train.classification.epochs == 2
    assert experiment.stream == str(stream)
    shown = capsys.readouterr().out
    assert '[methods.turn]\nmethod = "hmcl_ca"\nspan = "ambient"\n' in shown
    (line,) = (line for line in shown.splitlines() if line.startswith("| turn_ambient"))
    cells = [cell.strip() for cell in line.split("|")[1:-1]]
    assert cells == ["turn_ambient", "turn", "2", "beta 0.1", "38.50", "-1.50", "37.00", "-"]


def test_settings_are_written_as_toml():
    table = {"stream": 'a "b" \\ c', "on": True, "train": {"batch": 256, "decay": {"rate": 1e-05}}}
    assert tomllib.loads(select.as_toml(table)) == table


def test_it_continues_and_refuses(call, ran, capsys):
    call()
    del ran[:]
    with pytest.raises(SystemExit, match="exists already; choose another --out, or add --resume"):
        call()
    call("--resume")
    assert not ran
    call("--resume", grids=GRIDS.replace("variance = [0.5, 0.99]", "variance = [0.6, 0.99]"))
    assert ran == ["hmcl_mr"]
    with pytest.raises(SystemExit, match="is of another experiment"):
        call("--resume", "--seed", "7")
    # A grid that diverges everywhere does not stop the others.
    capsys.readouterr()
    held = call("--resume", grids=GRIDS.replace("beta = [0.0, 0.5]", "beta = [0.4, 0.5]"))
    assert "hmcl_mr" not in held["rows"]
    assert "Every point diverged: hmcl_mr." in capsys.readouterr().out


def test_values_at_the_end_of_a_grid_are_named():
    grid = select.Grid("gem", {}, {"margin": [0.0, 0.1, 2.0], "eps": [0.1, 1.0]})
    assert select.at_end(grid, {"margin": 2.0, "eps": 1.0}) == ["margin"]
    assert select.at_end(grid, {"margin": 0.0, "eps": 0.1}) == []  # nothing is below 0


@pytest.mark.slow
def test_points_are_those_of_single_runs_and_of_the_other_form(call, stream, hmcl, tmp_path):
    held = call()
    by_option = [*("--grid", "variance=0.5,0.99"), *("--grid", "beta=0.0,0.5")]
    call("--method", "hmcl_mr", *by_option, "--out", tmp_path / "one")
    alone = json.loads((tmp_path / "one" / "selection.json").read_text())
    assert alone["rows"]["hmcl_mr"] == held["rows"]["hmcl_mr"]
    overall = records.scores(held["records"]["hmcl_mr"])[2][:, 0]
    assert records.scores(alone["records"]["hmcl_mr"])[2][:, 0] == pytest.approx(overall)
    train = read_experiment(None, HASTE, methods=["hmcl_mr"]).train
    settings = {"hmcl_mr": {"variance": 0.5, "beta": 0.5}}
    single = run_stream(read_store(stream), ["hmcl_mr"], [42], train, settings=settings)
    assert columns(single["hmcl_mr"])["Overall"][0] == pytest.approx(overall[1], abs=1e-3)
    # The chosen rows are a config, which gives the winner's score on the selection's seed.
    chosen = ["--config", tmp_path / "one" / "selected.toml", "--seeds", "0,42"]
    hmcl("run", *chosen, "--out", tmp_path / "run")
    results = json.loads((tmp_path / "run" / "results.json").read_text())
    won = held["winners"]["hmcl_mr"]["Overall"]
    assert results["methods"]["hmcl_mr"]["columns"]["Overall"][1] == pytest.approx(won, abs=1e-3)
