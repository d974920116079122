"""Each method's trade-off between learning and forgetting as its strength varies."""

import argparse
import functools
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np

from hmcl_jax.cli.options import split_names, split_seeds
from hmcl_jax.cli.records import (
    Bench,
    Job,
    Record,
    as_text,
    forgetting_and_immediate,
    open_bench,
    run_jobs,
)
from hmcl_jax.continual import ConfigError
from hmcl_jax.report.figures.sweeps import Curve, draw_frontier
from hmcl_jax.report.results import markdown_rows, write_files


class Sweep(NamedTuple):
    """What is swept: a method or row, and its setting; a point if there is nothing to vary."""

    name: str
    setting: str = ""
    values: tuple[float, ...] = ()

    @property
    def label(self) -> str:
        return f"{self.name}: {self.setting}" if self.setting else self.name


RHO = (0.4, 0.6, 0.7, 0.8, 0.9)
BETA = (0.0, 0.02, 0.05, 0.1, 0.3)
SWEEPS = (
    Sweep("vanilla"),
    Sweep("hmcl_mr", "variance", RHO),
    Sweep("hmcl_mr", "beta", BETA),
    Sweep("hmcl_ca", "variance", RHO),
    Sweep("hmcl_ca", "beta", BETA),
    Sweep("hmcl_ca_ambient", "variance", RHO),
    Sweep("hmcl_rotation", "variance", RHO),
    Sweep("hmcl_rotation", "beta", BETA),
    Sweep("ewc", "coefficient", (1e-4, 1e-3, 1e-2, 1e-1, 1.0, 10.0)),
    Sweep("dns", "lambda_min", (1e-4, 1e-3, 1e-2, 1e-1, 1.0)),
    Sweep("nullspace", "variance", (0.8, 0.9, 0.95, 0.98, 0.995)),
    Sweep("gem", "margin", (0.0, 0.1, 0.25, 0.5, 2.0)),
    Sweep("agem"),
    Sweep("cflat"),  # four gradients per step: one point is slow enough
    Sweep("derpp", "alpha", (0.5, 51.2, 512.0, 5120.0, 51200.0, 512000.0)),
    Sweep("joint"),
)
# Rows that a config need not have.
ROWS = {"hmcl_ca_ambient": {"method": "hmcl_ca", "span": "ambient"}}
REPLAY = ("gem", "agem", "cflat", "derpp", "joint")


def sweep(options: argparse.Namespace) -> None:
    """Runs what is missing, and writes after every curve."""
    sweeps = chosen_sweeps(split_names("--methods", options.methods))
    names = list(dict.fromkeys(each.name for each in sweeps))
    rows = {name: ROWS[name] for name in names if name in ROWS}
    bench = open_bench(options, names, split_seeds(options.seeds), rows)
    jobs = [
        Job(
            each.label,
            each.name,
            bench.experiment.settings.get(each.name, {}),
            [{each.setting: value} for value in each.values] or [{}],
            {"values": list(each.values)},
        )
        for each in sweeps
    ]
    out = Path(options.out)
    write_all = functools.partial(write, out, bench)
    run_jobs(bench, jobs, out / "frontier.json", options.resume, write_all)
    print(f"wrote {out}/frontier.json, .md, .png and .svg")


def chosen_sweeps(names: Sequence[str] | None) -> list[Sweep]:
    """The sweeps of some methods and rows; of all by default."""
    known = list(dict.fromkeys(each.name for each in SWEEPS))
    for name in names or ():
        if name not in known:
            raise ConfigError(f"--methods must be among {', '.join(known)}, got {name!r}.")
    return [each for each in SWEEPS if names is None or each.name in names]


def write(out: Path, bench: Bench, found: Mapping[str, Record]) -> str:
    """All files, each whole or not at all; the pictures from the numbers. Gives the table."""
    text = table(found)
    write_files(out, {"frontier.json": as_text(bench.about, found), "frontier.md": text + "\n"})
    curves = []
    for label, record in found.items():
        method, (forgetting, immediate) = record["method"], forgetting_and_immediate(record)
        kept = np.isfinite(forgetting).all(axis=1)  # points that did not diverge
        values = [value for value, keep in zip(record["values"], kept, strict=False) if keep]
        points = (forgetting[kept], immediate[kept])
        curves.append(Curve(label, method, values, *points, method in REPLAY))
    draw_frontier(curves, [out / "frontier.png", out / "frontier.svg"])
    return text


def table(found: Mapping[str, Record]) -> str:
    """All points, and whether another method without replay does better in both respects."""
    points = []
    for label, record in found.items():
        forgetting, immediate = (x.mean(axis=1) for x in forgetting_and_immediate(record))
        values = [f"{value:g}" for value in record["values"]] or ["-"]
        points += [
            (label, record["method"], *point)
            for point in zip(values, forgetting, immediate, strict=True)
        ]
    rows = [["Curve", "Value", "Immediate", "Forgetting", "Final", "Beaten in both by"]]
    for label, method, value, forgetting, immediate in points:
        better = [
            f"{other} {at}"
            for other, name, at, f, i in points
            if name != method and name not in REPLAY and f < forgetting and i > immediate
        ]
        by = "(replay)" if method in REPLAY else (better or ["-"])[0]
        numbers = [f"{x:.2f}" for x in (immediate, forgetting, immediate - forgetting)]
        rows.append([label, value, *numbers, by])
    return markdown_rows(rows)
