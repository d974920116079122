"""The picture of stability and plasticity: what it is drawn from, and the command."""

import json

import numpy as np
import pytest

from hmcl_jax.cli import frontier
from hmcl_jax.data.store import write_store
from hmcl_jax.data.synthetic import synthetic_stream
from hmcl_jax.report.figures.sweeps import Curve, draw_frontier


def test_a_picture_is_drawn(tmp_path, rng):
    curves = [
        Curve("a: knob", "a", (0.1, 10.0), rng.normal(size=(2, 3)), rng.normal(size=(2, 3))),
        Curve("b", "b", (), rng.normal(size=(1, 1)), rng.normal(size=(1, 1)), replay=True),
    ]
    for ending in ("png", "svg"):
        draw_frontier(curves, tmp_path / f"picture.{ending}")
        assert (tmp_path / f"picture.{ending}").stat().st_size > 5000
    text = (tmp_path / "picture.svg").read_text()
    draw_frontier(curves, tmp_path / "again.svg")
    assert "a: knob" in text or "<path" in text
    assert "date" not in text.split("<defs>")[0].lower()


def test_points_that_are_beaten_are_named():
    def curve(method, forgetting, immediate):
        return {
            "method": method,
            "values": list(range(len(forgetting))),
            "forgetting": [[x] for x in forgetting],
            "immediate": [[x] for x in immediate],
        }

    found = {
        "dns: k": curve("dns", [5.0, 1.0], [30.0, 31.0]),
        "ewc: k": curve("ewc", [3.0], [30.5]),
        "gem: k": curve("gem", [0.0], [40.0]),
    }
    lines = frontier.table(found).split("\n")[2:]
    assert [line.split("|")[-2].strip() for line in lines] == [
        "ewc: k 0",
        "-",
        "dns: k 1",
        "(replay)",
    ]


@pytest.mark.slow
def test_the_command_continues_and_refuses(tmp_path, hmcl, capsys):
    store = synthetic_stream(tasks=2, classes=4, dimension=8, train=40, test=20)
    about = {"name": "small", "backbone": "synthetic", "K": store.K, "tau": store.tau}
    write_store(tmp_path / "store", store.tasks, **about)

    def run(*more):
        options = ["--stream", tmp_path / "store", "--seeds", "0,1", "--out", tmp_path / "out"]
        options += ["--set", "train.batch=32", "--set", "train.classification.epochs=2"]
        hmcl("sweep", "frontier", *options, *more)
        return capsys.readouterr().out

    run("--methods", "vanilla")
    with pytest.raises(SystemExit, match="exists already; choose another --out, or continue with"):
        run("--methods", "vanilla")
    assert "vanilla: 1 points" not in run("--methods", "vanilla,dns", "--resume")  # it is kept
    held = json.loads((tmp_path / "out" / "frontier.json").read_text())
    assert held["about"]["seeds"] == [0, 1]
    curve = held["records"]["dns: lambda_min"]
    assert np.shape(curve["forgetting"]) == (len(curve["values"]), 2)
    assert curve["programs"] == 1  # for all values and seeds
    assert (tmp_path / "out" / "frontier.png").stat().st_size > 5000
    with pytest.raises(SystemExit, match="is of another experiment; choose another --out"):
        run("--methods", "vanilla", "--resume", "--set", "train.batch=16")
    with pytest.raises(SystemExit, match="--methods must be among vanilla"):
        run("--methods", "none")


def test_sweeps_are_of_sweepable_settings():
    from hmcl_jax.continual import METHODS

    bases = {row: table["method"] for row, table in frontier.ROWS.items()}
    for sweep in frontier.SWEEPS:
        entry = METHODS[bases.get(sweep.name, sweep.name)]
        assert not sweep.setting or sweep.setting in entry.method.sweepable
        assert bool(sweep.values) == bool(sweep.setting)
    assert set(METHODS) == {bases.get(sweep.name, sweep.name) for sweep in frontier.SWEEPS}
