"""Draws each method's trade-off between learning and forgetting as its strength varies.

    python experiments/frontier.py --config experiments/configs/baselines.toml --out runs/frontier

For every method one sweep over its strength and all seeds at once; other settings are the config's.
Writes to --out, after every curve: frontier.json (everything), frontier.md (the points, and which
of them no other method without replay beats in both respects), frontier.png and frontier.svg. A
sweep that was stopped goes on with --resume: curves that are there already are kept.
"""

import argparse
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
from run_stream import split
from sweeps import (
    Record,
    as_text,
    described,
    forgetting_and_immediate,
    known_records,
    make_parser,
    measure,
    open_bench,
    run_command,
    split_numbers,
)

from hmcl_jax.continual import ConfigError
from hmcl_jax.report.figures.style import pyplot
from hmcl_jax.report.figures.sweeps import Curve, draw_frontier
from hmcl_jax.report.results import write_files

RHO = (0.4, 0.6, 0.7, 0.8, 0.9)
BETA = (0.0, 0.02, 0.05, 0.1, 0.3)
# Method or row, setting, values; no setting for those that have nothing to vary.
SWEEPS = (
    ("vanilla", None, ()),
    ("hmcl_mr", "variance", RHO),
    ("hmcl_mr", "beta", BETA),
    ("hmcl_ca", "variance", RHO),
    ("hmcl_ca", "beta", BETA),
    ("hmcl_ca_ambient", "variance", RHO),
    ("hmcl_rotation", "variance", RHO),
    ("hmcl_rotation", "beta", BETA),
    ("ewc", "coefficient", (1e-4, 1e-3, 1e-2, 1e-1, 1.0, 10.0)),
    ("dns", "lambda_min", (1e-4, 1e-3, 1e-2, 1e-1, 1.0)),
    ("nullspace", "variance", (0.8, 0.9, 0.95, 0.98, 0.995)),
    ("gem", "margin", (0.0, 0.1, 0.25, 0.5, 2.0)),
    ("agem", None, ()),
    ("cflat", None, ()),  # four gradients per step: one point is slow enough
    ("derpp", "alpha", (0.5, 51.2, 512.0, 5120.0, 51200.0, 512000.0)),
    ("joint", None, ()),
)
# Rows that a config need not have.
ROWS = {"hmcl_ca_ambient": {"method": "hmcl_ca", "span": "ambient"}}
REPLAY = ("gem", "agem", "cflat", "derpp", "joint")


def main() -> None:
    parser = make_parser(__doc__.split("\n")[0])
    parser.add_argument("--seeds", help="whole numbers, separated by commas")
    parser.add_argument("--methods", help="names, separated by commas; by default all")
    run_command("frontier", sweep_all, parser.parse_args())


def chosen_sweeps(names: list[str] | None) -> list[tuple]:
    known = list(dict.fromkeys(sweep[0] for sweep in SWEEPS))
    for name in names or ():
        if name not in known:
            raise ConfigError(f"--methods must be among {', '.join(known)}, got {name!r}.")
    return [sweep for sweep in SWEEPS if names is None or sweep[0] in names]


def sweep_all(arguments: argparse.Namespace) -> None:
    """Runs what is missing, and writes after every curve."""
    pyplot()  # refused before anything is trained
    sweeps = chosen_sweeps(split("--methods", arguments.methods))
    names = list(dict.fromkeys(sweep[0] for sweep in sweeps))
    rows = [
        f"methods.{name}.{key}='{value}'"
        for name in names
        for key, value in ROWS.get(name, {}).items()
    ]
    bench = open_bench(arguments, names, split_numbers("--seeds", arguments.seeds), rows)
    jobs = []
    for name, setting, values in sweeps:
        given = bench.experiment.settings.get(name, {})
        points = [{setting: value} for value in values] or [{}]
        asked = described(name, given, points)  # refuses bad ones, before anything is trained
        jobs.append((f"{name}: {setting}" if setting else name, name, given, points, asked, values))
    out = Path(arguments.out)
    found = known_records(out / "frontier.json", bench.about, arguments.resume)
    for label, name, given, points, asked, values in jobs:
        if label in found and found[label]["settings"] == asked:
            continue
        found[label] = {**measure(bench, label, name, given, points), "values": list(values)}
        write(out, bench.about, found)
    write(out, bench.about, found)
    print(table(found))
    print(f"wrote {out}/frontier.json, .md, .png and .svg")


def write(out: Path, about: Mapping[str, Any], found: Mapping[str, Record]) -> None:
    """All files, each whole or not at all; the pictures from the numbers."""
    texts = {"frontier.json": as_text(about, found), "frontier.md": table(found) + "\n"}
    write_files(out, texts)
    curves = []
    for label, curve in found.items():
        forgetting, immediate = forgetting_and_immediate(curve)
        kept = np.isfinite(forgetting).all(axis=1)  # points that did not diverge
        values = [v for v, keep in zip(curve["values"], kept, strict=False) if keep]
        curves.append(
            Curve(
                label,
                curve["method"],
                values,
                forgetting[kept],
                immediate[kept],
                curve["method"] in REPLAY,
            )
        )
    for ending in ("png", "svg"):
        draw_frontier(curves, out / f"frontier.{ending}")


def table(found: Mapping[str, Record]) -> str:
    """All points, and whether another method without replay does better in both respects."""
    rows = []
    for label, curve in found.items():
        forgetting, immediate = (x.mean(axis=1) for x in forgetting_and_immediate(curve))
        shown = [f"{value:g}" for value in curve["values"]] or ["-"]
        rows += [
            (label, curve["method"], *row) for row in zip(shown, forgetting, immediate, strict=True)
        ]
    lines = [
        "| Curve | Value | Immediate | Forgetting | Final | Beaten in both by |",
        "|---|---:|---:|---:|---:|---|",
    ]
    for label, method, value, forgetting, immediate in rows:
        better = [
            f"{other} {at}"
            for other, name, at, f, i in rows
            if name != method and name not in REPLAY and f < forgetting and i > immediate
        ]
        by = ("-" if not better else better[0]) if method not in REPLAY else "(replay)"
        cells = (f"{immediate:.2f}", f"{forgetting:.2f}", f"{immediate - forgetting:.2f}")
        lines.append(f"| {label} | {value} | {' | '.join(cells)} | {by} |")
    return "\n".join(lines)


if __name__ == "__main__":
    main()
