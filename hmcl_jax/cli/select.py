r"""Chooses settings on one seed, by one rule.

  hmcl select grids --config baselines --out runs/selection
  hmcl select --method hmcl_mr --grid variance=0.6,0.7,0.8 --grid beta=0.0,0.05 --out runs/chosen
  hmcl run --config runs/chosen/selected.toml --out runs/mine

The first form chooses for all methods of a file of grids, with as many points for each; see
experiments/configs/grids.toml, which comes with the package. The second chooses for one method
among all combinations of --grid. The stream, the order and [train] are those of the config.

The paper selects "one fixed configuration on seed 42 using the Overall-BWT trade-off" and does not
say how the two are weighed. The rule here: the largest sum of Overall and BWT wins, so that a point
of final score weighs like a point of forgetting; of equal points the first; points that diverge are
out. Points that differ in sweepable settings alone run side by side.

Writes to --out, after every grid: selection.json (every point, the rule, the winners), selection.md
(the winners, and which of them lie at the end of their grid) and selected.toml, a config with the
chosen rows for `hmcl run` and `hmcl sweep`. An interrupted command continues with --resume: grids
that are in selection.json are kept, unless they have changed. As in the paper, the seed of the
selection is among the seeds of the table: on it the row was chosen, on the others not.
"""

import argparse
import dataclasses
import functools
import itertools
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from hmcl_jax.cli import options as shared
from hmcl_jax.cli import records
from hmcl_jax.cli.main import UsageError
from hmcl_jax.cli.records import (
    Bench,
    Job,
    Record,
    as_text,
    forgetting_and_immediate,
    full_settings,
    open_bench,
    run_jobs,
)
from hmcl_jax.continual import ConfigError, TrainConfig
from hmcl_jax.continual.config import parse_override, read_toml
from hmcl_jax.report.results import markdown_rows, write_files

RULE = "largest Overall + BWT on one seed, the first of equal ones"
SELECTION = "selection.json"


class Grid(NamedTuple):
    """What is tried for one row.

    Attributes:
      row: whose settings are chosen among this grid and the others of the same row.
      given: settings that are fixed, and perhaps the ``"method"``.
      axes: values by setting; none if there is nothing to choose.
    """

    row: str
    given: dict[str, Any]
    axes: dict[str, list[Any]]

    @property
    def points(self) -> list[dict[str, Any]]:
        """All combinations, the last setting fastest."""
        return [
            dict(zip(self.axes, values, strict=True))
            for values in itertools.product(*self.axes.values())
        ]


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
    if options.method is None:
        grids = read_grids(shared.find_config(options.grids))
        bench = open_bench(options, ["vanilla"], [options.seed])
    else:
        bench = open_bench(options, [options.method], [options.seed])
        given = dict(bench.experiment.settings.get(options.method, {}))
        grids = {options.method: Grid(options.method, given, read_axes(options.grid))}
    for name, grid in grids.items():
        full_settings(name, grid.given, grid.points)  # also of rows that have nothing to choose
    bench = bench._replace(about={**bench.about, "rule": RULE})
    jobs = [
        Job(name, name, grid.given, grid.points, {"points": grid.points})
        for name, grid in grids.items()
        if grid.axes
    ]
    out = Path(options.out)
    write_all = functools.partial(write, out, bench, grids)
    run_jobs(bench, jobs, out / SELECTION, options.resume, write_all)
    print(f"wrote {out}/{SELECTION}, selection.md and selected.toml")


def read_axes(grids: Sequence[str]) -> dict[str, list[Any]]:
    """Values by setting, from ``name=value,value,...``."""
    axes: dict[str, list[Any]] = {}
    for grid in grids:
        name, _, values = grid.partition("=")
        if not name or not values or not all(values.split(",")) or name in axes:
            raise ConfigError(f"--grid is written name=value,value,..., once each, got {grid!r}.")
        axes[name] = [parse_override(f"{name}={value}")[name] for value in values.split(",")]
    if not axes:
        raise ConfigError("--grid must be given at least once, as in --grid beta=0.02,0.05.")
    return axes


def read_grids(path: str | Path | None) -> dict[str, Grid]:
    """The grids of a file, by name."""
    table = read_toml(path or "")
    points, tables = table.pop("points", None), table.pop("grids", None)
    if table or not isinstance(points, int) or not isinstance(tables, dict) or not tables:
        raise ConfigError(f"{path} must hold points = NUMBER and tables [grids.NAME], no more.")
    found = {}
    for name, own in tables.items():
        if not isinstance(own, dict):
            raise ConfigError(f"grids.{name} must be a table, got {own!r}.")
        row = own.pop("row", name)
        axes = {key: value for key, value in own.items() if isinstance(value, list)}
        if row != name and not axes:
            raise ConfigError(f"grids.{name} has nothing to choose, got row = {row!r}.")
        found[name] = Grid(row, {key: own[key] for key in own if key not in axes}, axes)
    totals: dict[str, int] = {}
    for grid in found.values():
        if grid.axes:
            totals[grid.row] = totals.get(grid.row, 0) + len(grid.points)
    for row, total in totals.items():
        if total != points:
            raise ConfigError(f"The grids of row {row} must have {points} points, got {total}.")
    return found


def pick(rows: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """The point that the rule chooses, with the sum; empty if all diverged."""
    finite = [{**row, "sum": row["Overall"] + row["BWT"]} for row in rows if row["BWT"] is not None]
    return max(finite, key=lambda row: row["sum"], default={})


def winner(record: Record) -> dict[str, Any]:
    """The point of a record that the rule chooses, with its scores."""
    forgetting, immediate = forgetting_and_immediate(record)
    rows = []
    for point, (lost,), (learned,) in zip(record["points"], forgetting, immediate, strict=True):
        finite = abs(lost) + abs(learned) < float("inf")
        scores = {"Overall": float(learned - lost), "BWT": float(-lost)}
        rows.append({**point, **(scores if finite else dict.fromkeys(scores))})
    return pick(rows)


def choose(
    grids: Mapping[str, Grid], found: Mapping[str, Record]
) -> tuple[dict[str, dict[str, Any]], dict[str, dict[str, Any]]]:
    """The winner of every grid that was run, and the settings of every row: its best winner's."""
    best = {name: own for name, record in found.items() if (own := winner(record))}
    first: dict[str, str] = {}
    for name in best:
        row = grids[name].row
        if row not in first or best[name]["sum"] > best[first[row]]["sum"]:
            first[row] = name
    rows = {}
    for name, grid in grids.items():
        if name in best:
            best[name]["row"] = grid.row
            if first[grid.row] == name:
                chosen = {key: best[name][key] for key in grid.axes}
                rows[grid.row] = {**grid.given, **chosen}
        elif not grid.axes:
            rows[name] = grid.given
    return best, {
        name: {key: value for key, value in row.items() if (key, value) != ("method", name)}
        for name, row in rows.items()
    }


def at_end(grid: Grid, best: Mapping[str, Any]) -> list[str]:
    """Settings whose best value may lie beyond those tried; nothing lies beyond 0."""
    return [
        key
        for key, values in grid.axes.items()
        if len(values) > 2 and best[key] in (values[0], values[-1]) and best[key] != 0
    ]


def write(out: Path, bench: Bench, grids: Mapping[str, Grid], records: Mapping[str, Record]) -> str:
    """All files, each whole or not at all; gives the winners as a table and as TOML."""
    found = {name: record for name, record in records.items() if name in grids}
    best, rows = choose(grids, found)
    shown = table(grids, best)
    lost = [name for name in found if name not in best]
    shown += f"\n\nEvery point diverged: {', '.join(lost)}." if lost else ""
    methods = as_toml({"methods": rows})
    experiment = bench.experiment
    head = {"stream": experiment.stream, "order": experiment.order}
    train = changed(dataclasses.asdict(experiment.train), dataclasses.asdict(TrainConfig()))
    config = (
        f"# Chosen by `hmcl select` on seed {experiment.seeds[0]}: {RULE}.\n"
        f"{as_toml({**head, 'train': train})}\n{methods}"
    )
    texts = {
        SELECTION: as_text(bench.about, found, winners=best, rows=rows),
        "selection.md": shown + "\n",
        "selected.toml": config,
    }
    write_files(out, texts)
    return f"{methods}\n{shown}"


def table(grids: Mapping[str, Grid], best: Mapping[str, Mapping[str, Any]]) -> str:
    """The winners with their scores, one line per grid."""
    head = ["Grid", "Row", "Points", "Chosen", "Overall", "BWT", "Sum", "At the end of its values"]
    rows = [head]
    for name, own in best.items():
        grid = grids[name]
        chosen = ", ".join(f"{key} {own[key]}" for key in grid.axes)
        scores = [f"{own[key]:.2f}" for key in ("Overall", "BWT", "sum")]
        ends = ", ".join(at_end(grid, own)) or "-"
        rows.append([name, own["row"], str(len(grid.points)), chosen, *scores, ends])
    return markdown_rows(rows)


def changed(values: Mapping[str, Any], defaults: Mapping[str, Any]) -> dict[str, Any]:
    """Settings that are not the defaults."""
    found = {}
    for key, value in values.items():
        if isinstance(value, Mapping):
            if inner := changed(value, defaults[key]):
                found[key] = inner
        elif value != defaults[key]:
            found[key] = value
    return found


def as_toml(table: Mapping[str, Any], path: str = "") -> str:
    """Tables of plain values and tables as TOML."""
    plain = {key: value for key, value in table.items() if not isinstance(value, Mapping)}
    # JSON writes such values as TOML does.
    lines = [f"{key} = {json.dumps(value)}\n" for key, value in plain.items()]
    inner = {key: value for key, value in table.items() if isinstance(value, Mapping)}
    head = f"[{path}]\n" if path and (plain or not inner) else ""
    parts = [as_toml(value, f"{path}.{key}".lstrip(".")) for key, value in inner.items()]
    return "\n".join(part for part in [head + "".join(lines), *parts] if part)
