"""The choice of settings for all methods by one command: grids, rule, and what is written."""

import json
import math
import sys
import tomllib
from pathlib import Path

import pytest

from hmcl_jax.continual import METHODS, ConfigError
from hmcl_jax.continual.experiment import read_experiment
from hmcl_jax.data.store import write_store
from hmcl_jax.data.synthetic import synthetic_stream

ROOT = Path(__file__).parent.parent
CONFIGS = ROOT / "experiments" / "configs"
sys.path.insert(0, str(ROOT / "experiments"))

import select_all  # noqa: E402
import sweeps  # noqa: E402

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


def test_every_method_has_a_grid_and_as_many_points():
    grids = select_all.read_grids(CONFIGS / "grids.toml")
    assert {grid.given.get("method", name) for name, grid in grids.items()} == set(METHODS)
    points = {}
    for grid in grids.values():
        if grid.axes:
            points.setdefault(grid.row, []).extend({**grid.given, **p} for p in grid.points)
    assert {len(own) for own in points.values()} == {24}
    # The rows of the table are those that are chosen, with settings of a point.
    experiment = read_experiment(CONFIGS / "baselines.toml")
    assert {grid.row for grid in grids.values()} == set(experiment.methods)
    for name, table in experiment.settings.items():
        own = {key: value for key, value in table.items() if key != "method"}
        if name in points:
            assert own in [{k: v for k, v in p.items() if k != "method"} for p in points[name]]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("points = 4", "must hold points = NUMBER and tables"),
        ("points = 4\nstream = 'pocket'\n[grids.vanilla]", "no more"),
        ("points = 4\n[grids.gem]\nmargin = [0.0, 0.1]", "row gem must have 4 points, got 2"),
        ("points = 1\n[grids.gem]\nmargin = [-1.0]", "margin must"),
        ("points = 1\n[grids.mine]\nmargin = [1.0]", "methods must be among"),
        ("points = 1\n[grids]\ngem = 3", "grids.gem must be a table, got 3"),
        (
            "points = 1\n[grids.g]\nmethod = 'gem'\nrow = 'gem'\neps = [1.0, 2.0]",
            "row gem must .* 2",
        ),
        ("points = 1\n[grids.agem]\nrow = 'gem'", "grids.agem has nothing to choose"),
    ],
)
def test_what_is_no_grid(tmp_path, text, message):
    (tmp_path / "grids.toml").write_text(text)
    with pytest.raises(ConfigError, match=message):
        select_all.read_grids(tmp_path / "grids.toml")


def test_tables_are_written_as_toml():
    table = {
        "stream": 'a "b" \\ c',
        "train": {"batch": 256, "classification": {"learning_rate": 1e-05}},
        "methods": {"vanilla": {}, "a_b": {"on": True, "train": {"weight_decay": 0.1}}},
    }
    assert tomllib.loads(select_all.as_toml(table)) == table


@pytest.fixture(scope="module")
def stream(tmp_path_factory):
    made = synthetic_stream(tasks=2, classes=4, dimension=8, train=64, test=64, overlap=0.9)
    path = tmp_path_factory.mktemp("stream") / "store.zip"
    about = {"name": made.name, "backbone": made.backbone, "K": made.K, "tau": made.tau}
    write_store(path, made.tasks, **about)
    return path


def call(monkeypatch, stream, folder, *more, grids=GRIDS):
    (folder / "grids.toml").write_text(grids)
    words = [folder / "grids.toml", "--stream", stream, "--out", folder / "out", *more]
    words += ["--set", "train.classification.epochs=2", "--set", "train.batch=64"]
    monkeypatch.setattr(sys, "argv", ["select_all.py", *map(str, words)])
    monkeypatch.setattr(sweeps, "keep_programs", lambda on: None)
    select_all.main()
    return json.loads((folder / "out" / "selection.json").read_text())


def fake_measure(ran):
    """Overall and BWT that beta decides: 0.1 is the best, and diverges where all do."""

    def measure(bench, label, name, given, points):
        ran.append(label)
        assert bench.experiment.seeds == (42,)
        best = [abs(point["beta"] - 0.1) for point in points]
        shift = 0.5 if given.get("span") == "ambient" else 0.0
        return {
            "settings": sweeps.described(name, given, points),
            "immediate": [[math.nan if gap > 0.15 else 40.0 - gap] for gap in best],
            "forgetting": [[2.0 - shift] for _ in best],
        }

    return measure


def test_rows_that_share_a_name_are_chosen_by_the_same_rule(tmp_path, monkeypatch, stream, capsys):
    ran = []
    monkeypatch.setattr(select_all, "measure", fake_measure(ran))
    held = call(monkeypatch, stream, tmp_path)
    assert ran == ["hmcl_mr", "turn", "turn_ambient"]
    won = held["winners"]["turn_ambient"]
    assert (won["row"], won["beta"], won["Overall"]) == ("turn", 0.1, 38.5)
    assert won["sum"] == pytest.approx(37.0)
    assert held["winners"]["turn"]["row"] == "turn"
    assert held["about"]["rule"] == select_all.RULE
    chosen = {
        "vanilla": {},
        "hmcl_mr": {"variance": 0.5, "beta": 0.0},
        "turn": {"method": "hmcl_ca", "span": "ambient", "train": {"weight_decay": 0.1}},
    }
    chosen["turn"]["beta"] = 0.1
    assert held["rows"] == chosen
    experiment = read_experiment(tmp_path / "out" / "selected.toml")
    assert experiment.settings == chosen
    assert experiment.train.classification.epochs == 2
    assert experiment.stream == str(stream)
    told = capsys.readouterr().out
    assert '[methods.turn]\nmethod = "hmcl_ca"\nspan = "ambient"\nbeta = 0.1' in told
    assert "| turn_ambient | turn | 2 | beta 0.1 | 38.50 | -1.50 | 37.00 | - |" in told


def test_the_command_goes_on_and_refuses(tmp_path, monkeypatch, stream, capsys):
    ran = []
    monkeypatch.setattr(select_all, "measure", fake_measure(ran))
    call(monkeypatch, stream, tmp_path)
    del ran[:]
    with pytest.raises(SystemExit, match="exists already; choose another --out, or go on with"):
        call(monkeypatch, stream, tmp_path)
    call(monkeypatch, stream, tmp_path, "--resume")
    assert not ran
    wider = GRIDS.replace("variance = [0.5, 0.99]", "variance = [0.6, 0.99]")
    held = call(monkeypatch, stream, tmp_path, "--resume", grids=wider)
    assert ran == ["hmcl_mr"]
    with pytest.raises(SystemExit, match="is of another experiment"):
        call(monkeypatch, stream, tmp_path, "--resume", "--seed", "7")
    # A grid that diverges everywhere does not stop the others.
    lost = GRIDS.replace("beta = [0.0, 0.5]", "beta = [0.4, 0.5]")
    capsys.readouterr()
    held = call(monkeypatch, stream, tmp_path, "--resume", grids=lost)
    assert "hmcl_mr" not in held["rows"]
    assert "Every point diverged: hmcl_mr." in capsys.readouterr().out


def test_values_at_the_end_of_a_grid_are_told():
    grid = select_all.Grid("gem", {}, {"margin": [0.0, 0.1, 2.0], "eps": [0.1, 1.0]})
    assert select_all.at_end(grid, {"margin": 2.0, "eps": 1.0}) == ["margin"]
    assert select_all.at_end(grid, {"margin": 0.0, "eps": 0.1}) == []  # nothing is below 0


@pytest.mark.slow
def test_points_are_those_of_select_settings(tmp_path, monkeypatch, stream):
    import select_settings

    held = call(monkeypatch, stream, tmp_path)
    overall = sweeps.overall(held["records"]["hmcl_mr"])[:, 0]
    words = ["--stream", str(stream), "--method", "hmcl_mr", "--then-run", str(tmp_path / "one")]
    words += ["--grid", "variance=0.5,0.99", "--grid", "beta=0.0,0.5", "--set", "seeds=[42]"]
    words += ["--set", "train.classification.epochs=2", "--set", "train.batch=64"]
    monkeypatch.setattr(sys, "argv", ["select_settings.py", *words])
    monkeypatch.setattr(select_settings, "keep_programs", lambda on: None)
    select_settings.main()
    alone = json.loads((tmp_path / "one" / "selection.json").read_text())
    assert [row["Overall"] for row in alone["rows"]] == pytest.approx(overall.tolist())
    won = held["winners"]["hmcl_mr"]
    assert {key: won[key] for key in ("variance", "beta", "sum")} == {
        key: alone["best"][key] for key in ("variance", "beta", "sum")
    }
