r"""Chooses settings on one seed, by one rule.

  hmcl select grids --config baselines --out runs/selection
  hmcl select --method hmcl_mr --grid variance=0.6,0.7,0.8 --grid beta=0.0,0.05 --out runs/chosen
  hmcl run --config runs/chosen/selected.toml --out runs/mine

The first form chooses for all methods of a file of grids, with as many points for each (see
experiments/configs/grids.toml, which comes with the package); the second for one method, among all
combinations of --grid. The stream, the order and [train] are those of the config.

The paper selects "one fixed configuration on seed 42 using the Overall-BWT trade-off" and does not
say how the two are weighed. Here the largest sum of Overall and BWT wins, so that a point of final
score weighs like a point of forgetting; of equal points the first. Points that diverge are out.

Writes to --out, after every grid: selection.json (every point, the rule, the winners), selection.md
(the winners, and which of them lie at the end of their grid) and selected.toml, a config with the
chosen rows for `hmcl run` and `hmcl sweep`. An interrupted command continues with --resume.
"""

import argparse
import dataclasses
import functools
import itertools
import json
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from hmcl_jax.cli import options as shared
from hmcl_jax.cli import records
from hmcl_jax.cli.main import UsageError
from hmcl_jax.cli.records import Job, Record, Study, scores
from hmcl_jax.continual import ConfigError, TrainConfig
from hmcl_jax.continual.config import parse_override, read_toml
from hmcl_jax.report.results import markdown_rows, write_files

RULE = "largest Overall + BWT on one seed, the first of equal ones"


class Grid(NamedTuple):
    """What is tried for one row."""

    row: str  # whose settings are chosen among this grid and the others of the same row
    given: dict[str, Any]  # settings that are fixed, and perhaps the "method"
    axes: dict[str, list[Any]]  # values by setting; none if there is nothing to choose

    @property
    def points(self) -> list[dict[str, Any]]:
        """All combinations, the last setting fastest."""
        return [
            dict(zip(self.axes, values, strict=True))
            for values in itertools.product(*self.axes.values())
        ]

    def job(self, name: str) -> Job:
        """The grid as a job, under its name in the file of grids."""
        points = [{**self.given, **point} for point in self.points]
        return Job(name, name, points, {"points": self.points})


def add_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("grids", nargs="?", metavar="FILE", help="a TOML file of grids, or 'grids'")
    parser.add_argument("--method", help="choose for this method alone")
    parser.add_argument("--grid", action="append", default=[], metavar="NAME=VALUES")
    parser.add_argument("--seed", type=int, default=42)
    records.add_options(parser)


def run(options: argparse.Namespace) -> None:
    """Runs what is missing, and writes after every grid."""
    if (options.grids is None) == (options.method is None):
        raise UsageError("give either a FILE of grids, or --method with --grid")
    shared.load_added_methods(options)
    shared.prepare_jax(options)
    study = Study(options, "selection", [options.method or "vanilla"], [options.seed])
    if options.method is None:
        grids = read_grids(shared.find_config(options.grids))
    else:
        given = dict(study.experiment.settings.get(options.method, {}))
        grids = {options.method: Grid(options.method, given, read_axes(options.grid))}
    study.about["rule"] = RULE
    for name, grid in grids.items():
        records.full_settings(grid.job(name))  # refuses bad ones, also of rows without a choice
    jobs = [grid.job(name) for name, grid in grids.items() if grid.axes]
    study.run(jobs, functools.partial(write, study, grids))


def read_axes(grids: Sequence[str]) -> dict[str, list[Any]]:
    """Values by setting, from ``name=value,value,...``."""
    axes: dict[str, list[Any]] = {}
    for grid in grids:
        name, _, values = grid.partition("=")
        words = values.split(",")
        if not name or not all(words) or name in axes:
            raise ConfigError(f"--grid is written name=value,value,..., once each, got {grid!r}.")
        axes[name] = [parse_override(f"value={word}")["value"] for word in words]
    if not axes:
        raise ConfigError("--grid must be given at least once, as in --grid beta=0.02,0.05.")
    return axes


def read_grids(path: str | Path | None) -> dict[str, Grid]:
    """The grids of a file, by name."""
    table = read_toml(path or "")
    points, tables = table.pop("points", None), table.pop("grids", None)
    if table or not isinstance(points, int) or not isinstance(tables, dict) or not tables:
        raise ConfigError(f"{path} must hold points = NUMBER and tables [grids.NAME], no more.")
    found: dict[str, Grid] = {}
    totals: dict[str, int] = {}
    for name, own in tables.items():
        if not isinstance(own, dict):
            raise ConfigError(f"grids.{name} must be a table, got {own!r}.")
        row = own.pop("row", name)
        axes = {key: value for key, value in own.items() if isinstance(value, list)}
        if row != name and not axes:
            raise ConfigError(f"grids.{name} has nothing to choose, got row = {row!r}.")
        found[name] = Grid(row, {key: own[key] for key in own if key not in axes}, axes)
        if axes:
            totals[row] = totals.get(row, 0) + len(found[name].points)
    # As many tries for each row, or the choice would favour the rows with more.
    for row, total in totals.items():
        if total != points:
            raise ConfigError(f"The grids of row {row} must have {points} points, got {total}.")
    return found


def winner(record: Record) -> dict[str, Any]:
    """The point of a record that the rule chooses, with its scores; empty if all diverged."""
    _, forgetting, overall = (values[:, 0] for values in scores(record))
    sums = overall - forgetting
    finite = np.isfinite(sums)
    if not finite.any():
        return {}
    best = int(np.argmax(np.where(finite, sums, -np.inf)))  # the first of equal ones
    measured = {"Overall": overall[best], "BWT": -forgetting[best], "sum": sums[best]}
    return {**record["points"][best], **{name: float(x) for name, x in measured.items()}}


def choose(
    grids: Mapping[str, Grid], found: Mapping[str, Record]
) -> tuple[dict[str, dict[str, Any]], dict[str, dict[str, Any]]]:
    """The winner of every grid that was run, and the settings of every row: its best winner's."""
    best = {
        name: {**own, "row": grids[name].row}
        for name, record in found.items()
        if (own := winner(record))
    }
    chosen = {grid.row: grid.given for grid in grids.values() if not grid.axes}
    # The largest sum first, and the first of equal ones.
    for name in sorted(best, key=lambda name: -best[name]["sum"]):
        grid = grids[name]
        picked = {key: best[name][key] for key in grid.axes}
        chosen.setdefault(grid.row, {**grid.given, **picked})
    order = dict.fromkeys(grid.row for grid in grids.values() if grid.row in chosen)
    return best, {  # a row that is named like its method need not say it
        row: {key: value for key, value in chosen[row].items() if (key, value) != ("method", row)}
        for row in order
    }


def write(study: Study, grids: Mapping[str, Grid], known: Mapping[str, Record]) -> str:
    """Writes all files; returns the winners as TOML and as a table."""
    found = {name: record for name, record in known.items() if name in grids}
    best, rows = choose(grids, found)
    shown = table(grids, best)
    if lost := [name for name in found if name not in best]:
        shown += f"\n\nEvery point diverged: {', '.join(lost)}."
    experiment = study.experiment
    default = dict(assignments(dataclasses.asdict(TrainConfig()), "train."))
    train = assignments(dataclasses.asdict(experiment.train), "train.")
    head = {"stream": experiment.stream, "order": experiment.order}
    head |= {key: value for key, value in train if default[key] != value}
    methods = "\n".join(f"[methods.{name}]\n{as_toml(row)}" for name, row in rows.items())
    title = f"# Chosen by `hmcl select` on seed {experiment.seeds[0]}: {RULE}."
    study.save(found, shown, winners=best, rows=rows)
    write_files(study.out, {"selected.toml": f"{title}\n{as_toml(head)}\n{methods}"})
    return f"{methods}\n{shown}"


def table(grids: Mapping[str, Grid], best: Mapping[str, Mapping[str, Any]]) -> str:
    """The winners with their scores, one line per grid."""
    about = ("Grid", "Row", "Points", "Chosen")
    rows = [[*about, "Overall", "BWT", "Sum", "At the end of its values"]]
    for name, own in best.items():
        grid = grids[name]
        chosen = ", ".join(f"{key} {own[key]}" for key in grid.axes)
        numbers = [f"{own[key]:.2f}" for key in ("Overall", "BWT", "sum")]
        ends = [  # the best value may lie beyond those tried, but not beyond 0
            key
            for key, values in grid.axes.items()
            if len(values) > 2 and own[key] in (values[0], values[-1]) and own[key] != 0
        ]
        cells = [name, own["row"], str(len(grid.points)), chosen, *numbers]
        rows.append([*cells, ", ".join(ends) or "-"])
    return markdown_rows(rows)


def as_toml(settings: Mapping[str, Any]) -> str:
    """Nested settings as lines of TOML with dotted keys."""
    # JSON writes numbers, texts, booleans and lists as TOML does.
    return "".join(f"{key} = {json.dumps(value)}\n" for key, value in assignments(settings))


def assignments(settings: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    """Dotted keys and values of nested settings."""
    for key, value in settings.items():
        if isinstance(value, Mapping):
            yield from assignments(value, f"{prefix}{key}.")
        else:
            yield f"{prefix}{key}", value
