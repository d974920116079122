"""Chooses the settings of all methods on one seed, by one rule and with as many points for each.

    python experiments/select_all.py experiments/configs/grids.toml \
        --config experiments/configs/baselines.toml --out runs/selection

The rule is that of select_settings.py: the largest sum of Overall and BWT wins, of equal points the
first, and points that diverge are out. The file of grids says which settings are tried; see there
for its form. The stream, the order and [train] are those of the config. A row may have several
grids; the rule chooses among all their points.

Writes to --out, after every grid: selection.json (every point, the rule, the winners), selection.md
(the winners, and what to doubt: winners at the end of their grid) and selected.toml, a config with
the chosen rows, which run_stream.py, frontier.py and replay_budget.py read. A command that was
stopped goes on with --resume: grids that are there already are kept, unless the file of grids has
changed them.
"""

import argparse
import dataclasses
import itertools
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

from run_stream import add_method_file, load_users_methods
from select_settings import RULE, SELECTION, pick
from sweeps import (
    Bench,
    Record,
    as_text,
    described,
    forgetting_and_immediate,
    known_records,
    make_parser,
    measure,
    open_bench,
    run_command,
)

from hmcl_jax.continual import ConfigError, TrainConfig
from hmcl_jax.continual.config import read_toml
from hmcl_jax.report.results import write_files


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


def main() -> None:
    parser = make_parser(__doc__.split("\n")[0])
    parser.add_argument("grids", help="a TOML file; see experiments/configs/grids.toml")
    parser.add_argument("--seed", type=int, default=42)
    add_method_file(parser)
    run_command("select_all", select, parser.parse_args())


def read_grids(path: str | Path) -> dict[str, Grid]:
    """The grids of a file, by name."""
    table = read_toml(path)
    points, tables = table.pop("points", None), table.pop("grids", None)
    if table or not isinstance(points, int) or not isinstance(tables, dict) or not tables:
        raise ConfigError(f"{path} must hold points = NUMBER and tables [grids.NAME], no more.")
    found = {}
    for name, own in tables.items():
        if not isinstance(own, dict):
            raise ConfigError(f"grids.{name} must be a table, got {own!r}.")
        row = own.pop("row", name)
        axes = {key: value for key, value in own.items() if isinstance(value, list)}
        grid = Grid(row, {key: own[key] for key in own if key not in axes}, axes)
        if row != name and not axes:
            raise ConfigError(f"grids.{name} has nothing to choose, got row = {row!r}.")
        described(name, grid.given, grid.points)  # refuses bad ones, before anything is run
        found[name] = grid
    totals: dict[str, int] = {}
    for grid in found.values():
        if grid.axes:
            totals[grid.row] = totals.get(grid.row, 0) + len(grid.points)
    for row, total in totals.items():
        if total != points:
            raise ConfigError(f"The grids of row {row} must have {points} points, got {total}.")
    return found


def select(arguments: argparse.Namespace) -> None:
    """Runs what is missing, and writes after every grid."""
    load_users_methods(arguments)
    grids = read_grids(arguments.grids)
    bench = open_bench(arguments, ["vanilla"], [arguments.seed])
    bench = bench._replace(about={**bench.about, "rule": RULE})
    out = Path(arguments.out)
    found = known_records(out / SELECTION, bench.about, arguments.resume)
    found = {
        name: found[name]
        for name, grid in grids.items()
        if name in found and found[name]["settings"] == described(name, grid.given, grid.points)
    }
    for name, grid in grids.items():
        if grid.axes and name not in found:
            record = measure(bench, name, name, grid.given, grid.points)
            found[name] = {**record, "points": grid.points}
            write(out, bench, grids, found)
    print(write(out, bench, grids, found))
    print(f"wrote {out}/{SELECTION}, selection.md and selected.toml")


def winner(record: Record) -> dict[str, Any]:
    """The point that the rule chooses, with its scores; empty if all diverged."""
    forgetting, immediate = forgetting_and_immediate(record)
    rows = []
    for point, (lost,), (learned,) in zip(record["points"], forgetting, immediate, strict=True):
        finite = abs(lost) + abs(learned) < float("inf")
        scores = {"Overall": float(learned - lost), "BWT": float(-lost)}
        rows.append({**point, **(scores if finite else dict.fromkeys(scores))})
    return pick(rows) if any(row["BWT"] is not None for row in rows) else {}


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


def write(out: Path, bench: Bench, grids: Mapping[str, Grid], found: Mapping[str, Record]) -> str:
    """All files, each whole or not at all; gives the winners as a table and as TOML."""
    best, rows = choose(grids, found)
    shown = table(grids, best)
    lost = [name for name in found if name not in best]
    shown += f"\n\nEvery point diverged: {', '.join(lost)}." if lost else ""
    methods = as_toml({"methods": rows})
    experiment = bench.experiment
    head = {"stream": experiment.stream, "order": experiment.order}
    train = changed(dataclasses.asdict(experiment.train), dataclasses.asdict(TrainConfig()))
    config = (
        f"# Chosen by experiments/select_all.py on seed {experiment.seeds[0]}: {RULE}.\n"
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
    lines = [
        "| Grid | Row | Points | Chosen | Overall | BWT | Sum | At the end of its values |",
        "|---|---|---:|---|---:|---:|---:|---|",
    ]
    for name, own in best.items():
        grid = grids[name]
        chosen = ", ".join(f"{key} {own[key]}" for key in grid.axes)
        scores = " | ".join(f"{own[key]:.2f}" for key in ("Overall", "BWT", "sum"))
        ends = ", ".join(at_end(grid, own)) or "-"
        cells = (name, own["row"], len(grid.points), chosen, scores, ends)
        lines.append("| " + " | ".join(map(str, cells)) + " |")
    return "\n".join(lines)


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


if __name__ == "__main__":
    main()
