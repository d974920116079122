"""Writes a report into a folder of its own: one page, figures, tables and all numbers."""

import dataclasses
import json
import os
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from hmcl_jax import _files
from hmcl_jax._versions import versions
from hmcl_jax.continual import RunError
from hmcl_jax.evaluation import Drift, chance_scores
from hmcl_jax.evaluation.drift import CONES, MEASURES
from hmcl_jax.report.analyse import Analysis
from hmcl_jax.report.figures.draw import draw_all
from hmcl_jax.report.figures.style import pyplot
from hmcl_jax.report.page import macros, report_page
from hmcl_jax.report.results import columns
from hmcl_jax.report.tables import all_tables

FORMATS = ("png", "pdf", "svg")
MARK = "analysis.json"
KIND = "hmcl_jax report"


def check_report(out: str | os.PathLike[str], replace: bool = False) -> None:
    """Refuses a folder that a report cannot go to, before anything is measured.

    Only a report is ever replaced. Missing packages of the extra ``report`` are refused, too.
    """
    pyplot()
    macros()
    out = Path(out)
    above = next(folder for folder in Path(os.path.abspath(out)).parents if folder.exists())
    try:
        tempfile.TemporaryFile(dir=above).close()
    except OSError as error:
        reason = f"{above}: {error.strerror}"
        raise RunError(f"{out} cannot be written: {reason}; choose another --out.") from error
    if not out.exists() and not out.is_symlink():
        return
    if not out.is_dir() or out.is_symlink():
        raise RunError(f"{out} is not a folder; choose another --out.")
    if not any(out.iterdir()):
        return
    try:
        kind = json.loads((out / MARK).read_text("utf8"))["kind"]
    except (OSError, ValueError, KeyError, TypeError):
        kind = None
    if kind != KIND:
        raise RunError(f"{out} holds files that are not of a report; choose another --out.")
    if not replace:
        raise RunError(f"{out} holds a report already; --replace replaces it.")


def write_report(
    out: str | os.PathLike[str],
    analysis: Analysis,
    *,
    seed: int | None = None,
    formats: Sequence[str] = FORMATS,
    replace: bool = False,
    listener: Callable[[str, int, int], None] | None = None,
) -> Path:
    """Writes a report, whole or not at all, and returns the path of its page.

    `seed` is that of the tree drawing; `listener` is called with the name of a figure and how many
    of how many are drawn.
    """
    out = Path(os.path.abspath(out))
    check_report(out, replace)
    with _files.partial_folder(out) as partial:
        drawings = draw_all(analysis, partial / "figures", formats, seed=seed, listener=listener)
        (partial / "tables").mkdir()
        contents = {"report.html": report_page(analysis, drawings)}
        for name, table in all_tables(analysis).items():
            contents[f"tables/{name}.md"] = table.markdown()
            contents[f"tables/{name}.tex"] = table.latex()
        contents[MARK] = _files.json_text(_numbers(analysis))
        for name, text in contents.items():  # no file can hold halves of surrogate pairs
            (partial / name).write_bytes(text.encode("utf8", "replace"))
        check_report(out, replace)  # another process may have written one meanwhile
        _files.replace_folder(out, partial)
    return out / "report.html"


def _numbers(a: Analysis) -> dict[str, Any]:
    """All measurements, for ``analysis.json``."""
    return {
        "kind": KIND,
        "store": {"name": a.store.name, "fingerprint": a.store.fingerprint},
        "versions": versions(),
        "tasks": a.order,
        "kinds": a.kinds,
        "seeds": a.seeds,
        "methods": a.methods,
        "settings": {name: run.settings for name, run in a.runs.items()},
        "config": {name: run.config for name, run in a.runs.items()},
        "warnings": a.warnings,
        "scores": {name: result.scores for name, result in a.results.items()},
        "score_seeds": {name: result.seeds for name, result in a.results.items()},
        "columns": {name: columns(result) for name, result in a.results.items()},
        "drift": None if a.drift is None else _drift(a.drift, a.against),
        "hierarchy": {
            h.task.name: {
                "axes": ["method", "seed", "task end and final"],
                "scores": h.scores,
                "chance": chance_scores(h.tree),
                "radius": None if h.radius is None else dataclasses.asdict(h.radius),
            }
            for h in a.hierarchies
        },
        "hierarchy_methods": a.geometry,
        "traversals": [
            {
                "task": start.task.name,
                "row": start.row,
                "title": start.title,
                "paths": {
                    method: {"all texts": paths[False], "entailing texts": paths[True]}
                    for method, paths in start.paths.items()
                },
            }
            for start in a.starts
        ],
    }


def _drift(drift: Drift, against: str) -> dict[str, Any]:
    numbers: dict[str, Any] = {
        "axes": ["method", "seed", "old task", "measure"],
        "methods": drift.methods,
        "tasks": drift.tasks,
        "anchors": drift.anchors,
        "measures": MEASURES,
        "values": drift.values,
        "cone_measures": CONES,
        "cones": drift.cones,
        "norm_ratio_median": {m: norms.contraction() for m, norms in drift.norms.items()},
    }
    if against in drift.methods:
        numbers["against"] = against
        numbers["reduction"] = drift.reduction(against)
        numbers["wilcoxon"] = {
            method: [test._asdict() for test in drift.compare(method, against)]
            for method in drift.methods
            if method != against
        }
    return numbers
