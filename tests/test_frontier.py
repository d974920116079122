"""`hmcl sweep frontier`: which settings are swept, the table, and the command."""

import json

import numpy as np
import pytest

from hmcl_jax.cli import frontier
from hmcl_jax.continual import METHODS
from hmcl_jax.data.store import write_store
from hmcl_jax.data.synthetic import synthetic_stream
from hmcl_jax.report.figures.sweeps import Curve, draw_frontier


def test_a_picture_is_drawn(tmp_path, rng):
    x, y = rng.normal(size=(2, 2, 3))
    curves = [Curve("a: k", "a", (0.1, 10.0), x, y), Curve("b", "b", (), x[:1], y[:1], replay=True)]
    draw_frontier(curves, [tmp_path / "picture.png", tmp_path / "picture.svg"])
    assert all(path.stat().st_size > 5000 for path in tmp_path.iterdir())


def test_points_that_are_beaten_are_named():
    def curve(method, forgetting, immediate):
        columns = {"forgetting": forgetting, "immediate": immediate}
        columns = {name: [[x] for x in values] for name, values in columns.items()}
        return {"method": method, "values": list(range(len(forgetting))), **columns}

    found = {
        "dns: k": curve("dns", [5.0, 1.0], [30.0, 31.0]),
        "ewc: k": curve("ewc", [3.0], [30.5]),
        "gem: k": curve("gem", [0.0], [40.0]),
    }
    lines = frontier.table(found).split("\n")[2:]
    beaten = [line.split("|")[-2].strip() for line in lines]
    assert beaten == ["ewc: k 0", "-", "dns: k 1", "(replay)"]


@pytest.mark.slow
def test_the_command_continues_and_refuses(tmp_path, hmcl, capsys):
    made = synthetic_stream(tasks=2, classes=4, dimension=8, train=40, test=20)
    stream, out = tmp_path / "store", tmp_path / "out"
    write_store(stream, made.tasks, name="small", backbone="b", K=made.K, tau=made.tau)

    def run(*more):
        options = ["--stream", stream, "--seeds", "0,1", "--out", out]
        options += ["--set", "train.batch=32", "--set", "train.classification.epochs=2"]
        hmcl("sweep", "frontier", *options, *more)
        return capsys.readouterr().out

    run("--methods", "vanilla")
    # Its record is kept. A row that the config need not have is there, too.
    assert "vanilla: 1 points" not in run("--methods", "vanilla,dns,hmcl_ca_ambient", "--resume")
    held = json.loads((out / "frontier.json").read_text())
    assert held["about"]["seeds"] == [0, 1]
    curve = held["records"]["dns: lambda_min"]
    assert np.shape(curve["forgetting"]) == (len(curve["values"]), 2)
    assert curve["programs"] < len(curve["values"])  # all values and seeds share them
    assert held["records"]["hmcl_ca_ambient: variance"]["method"] == "hmcl_ca"
    assert (out / "frontier.png").stat().st_size > 5000
    with pytest.raises(SystemExit, match="--methods must be among vanilla"):
        run("--methods", "none")


def test_sweeps_are_of_sweepable_settings():
    methods = {name: row["method"] for name, row in frontier.ROWS.items()}
    swept = {methods.get(sweep.name, sweep.name) for sweep in frontier.SWEEPS}
    assert swept == set(METHODS)
    for sweep in frontier.SWEEPS:
        method = METHODS[methods.get(sweep.name, sweep.name)].method
        assert not sweep.setting or sweep.setting in method.sweepable
        assert bool(sweep.values) == bool(sweep.setting)
