"""Each method's trade-off between learning and forgetting as its strength varies."""

import argparse
import functools
from collections.abc import Mapping

import numpy as np

from hmcl_jax.cli.records import Job, Record, Study, scores
from hmcl_jax.continual import ConfigError
from hmcl_jax.report.figures.sweeps import Curve, draw_frontier
from hmcl_jax.report.results import markdown_rows

RHO = (0.4, 0.6, 0.7, 0.8, 0.9)
BETA = (0.0, 0.02, 0.05, 0.1, 0.3)
# Values by method or row and its setting; a single point if there is nothing to vary.
SWEEPS: Mapping[tuple[str, str], tuple[float, ...]] = {
    ("vanilla", ""): (),
    ("hmcl_mr", "variance"): RHO,
    ("hmcl_mr", "beta"): BETA,
    ("hmcl_ca", "variance"): RHO,
    ("hmcl_ca", "beta"): BETA,
    ("hmcl_ca_ambient", "variance"): RHO,
    ("hmcl_rotation", "variance"): RHO,
    ("hmcl_rotation", "beta"): BETA,
    ("ewc", "coefficient"): (1e-4, 1e-3, 1e-2, 1e-1, 1.0, 10.0),
    ("dns", "lambda_min"): (1e-4, 1e-3, 1e-2, 1e-1, 1.0),
    ("nullspace", "variance"): (0.8, 0.9, 0.95, 0.98, 0.995),
    ("gem", "margin"): (0.0, 0.1, 0.25, 0.5, 2.0),
    ("agem", ""): (),
    ("cflat", ""): (),  # four gradients per step: one point is slow enough
    ("derpp", "alpha"): (0.5, 51.2, 512.0, 5120.0, 51200.0, 512000.0),
    ("joint", ""): (),
}
# The row that a config need not have; the command line lies on top.
AMBIENT = ("methods.hmcl_ca_ambient.method=hmcl_ca", "methods.hmcl_ca_ambient.span=ambient")
# Methods that keep pairs of old tasks; the table does not compare others with them.
REPLAY = ("gem", "agem", "cflat", "derpp", "joint")


def sweep(options: argparse.Namespace) -> None:
    """Runs what is missing, and writes after every curve."""
    names = list(dict.fromkeys(name for name, _ in SWEEPS))
    chosen = options.methods or names
    for name in chosen:
        if name not in names:
            raise ConfigError(f"--methods must be among {', '.join(names)}, got {name!r}.")
    options.set = [*AMBIENT, *options.set]
    study = Study(options, "frontier", list(dict.fromkeys(chosen)), options.seeds)
    jobs = []
    for (name, setting), values in SWEEPS.items():
        if name not in chosen:
            continue
        given = dict(study.experiment.settings.get(name, {}))
        points = [{**given, setting: value} for value in values] or [given]
        label = f"{name}: {setting}" if setting else name
        jobs.append(Job(label, name, points, {"values": list(values)}))
    study.run(jobs, functools.partial(write, study))


def write(study: Study, records: Mapping[str, Record]) -> str:
    """Writes numbers, then the table and the pictures of them; returns the table."""
    text = table(records)
    study.save(records, text)
    curves = []
    for label, record in records.items():
        method, (immediate, forgetting, _) = record["method"], scores(record)
        kept = np.isfinite(forgetting).all(axis=1)  # points that did not diverge
        values = np.array(record["values"])[kept].tolist() if record["values"] else []
        points = (forgetting[kept], immediate[kept])
        curves.append(Curve(label, method, values, *points, method in REPLAY))
    draw_frontier(curves, [study.out / "frontier.png", study.out / "frontier.svg"])
    return text


def table(records: Mapping[str, Record]) -> str:
    """All points, and whether another method without replay does better in both respects."""
    points = []
    for label, record in records.items():
        means = (x.mean(axis=1) for x in scores(record))
        values = [f"{value:g}" for value in record["values"]] or ["-"]
        points += [(label, record["method"], *point) for point in zip(values, *means, strict=True)]
    rows = [["Curve", "Value", "Immediate", "Forgetting", "Final", "Beaten in both by"]]
    for label, method, value, immediate, forgetting, final in points:
        better = [
            f"{other} {at}"
            for other, name, at, i, f, _ in points
            if name != method and name not in REPLAY and f < forgetting and i > immediate
        ]
        by = "(replay)" if method in REPLAY else (better or ["-"])[0]
        rows.append([label, value, *(f"{x:.2f}" for x in (immediate, forgetting, final)), by])
    return markdown_rows(rows)
