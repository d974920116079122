"""Writes a report: one page, figures, tables and all numbers, into a folder of its own."""

import dataclasses
import json
import os
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from hmcl_jax import _files
from hmcl_jax._versions import versions
from hmcl_jax.continual.errors import RunError
from hmcl_jax.evaluation import Drift
from hmcl_jax.evaluation.drift import CONES, MEASURES
from hmcl_jax.report.analysis import Analysis, compared_with
from hmcl_jax.report.gallery import draw_all
from hmcl_jax.report.results import columns
from hmcl_jax.report.story import report_page
from hmcl_jax.report.tables import all_tables
from hmcl_jax.report.trees import Hierarchy

FORMATS = ("png", "pdf", "svg")
MARK = "analysis.json"
KIND = "hmcl_jax report"


def check_report(out: str | os.PathLike[str], replace: bool = False) -> None:
    """Refuses a folder that a report cannot go to.

    Args:
      out: the folder.
      replace: whether a report that is there may be replaced. Anything else may not.

    Raises:
      RunError: naming the folder and what to do.
    """
    out = Path(out)
    _check_writable(out)
    if not out.exists() and not out.is_symlink():
        return
    if not out.is_dir() or out.is_symlink():
        raise RunError(f"{out} is no folder; choose another --out.")
    if not any(out.iterdir()):
        return
    try:
        ours = json.loads((out / MARK).read_text("utf8"))["kind"] == KIND
    except (OSError, ValueError, KeyError, TypeError):
        ours = False
    if not ours:
        raise RunError(f"{out} holds something else than a report; choose another --out.")
    if not replace:
        raise RunError(f"{out} holds a report already; --replace replaces it.")


def _check_writable(out: Path) -> None:
    """Refuses a folder beside which nothing can be written; reports are moved into place."""
    above = Path(os.path.abspath(out)).parent
    while not above.exists() and above != above.parent:
        above = above.parent
    if not above.is_dir():
        raise RunError(f"{out} cannot be made: {above} is no folder; choose another --out.")
    try:
        with tempfile.TemporaryFile(dir=above):
            pass
    except OSError as error:
        what = error.strerror or error
        raise RunError(
            f"{out} cannot be written in {above}: {what}; choose another --out."
        ) from error


def write_report(
    out: str | os.PathLike[str],
    analysis: Analysis,
    *,
    against: str = "vanilla",
    seed: int | None = None,
    formats: Sequence[str] = FORMATS,
    replace: bool = False,
    listener: Callable[[str, int, int], None] | None = None,
) -> Path:
    """Writes a report, whole or not at all.

    Args:
      out: a new folder, or one with an older report if `replace`.
      analysis: what was measured.
      against: the method that others are compared with; see
        :func:`hmcl_jax.report.analysis.compared_with`.
      seed: of the tree drawing. Default: the first.
      formats: of the figures, some of ``"png"``, ``"pdf"`` and ``"svg"``.
      replace: whether an older report may be replaced.
      listener: called with the name of a figure and how many of how many are drawn.

    Returns:
      The page, ``report.html``.

    Raises:
      RunError: if the folder cannot be used.
    """
    unknown = [name for name in formats if name not in FORMATS]
    if unknown or isinstance(formats, str):
        raise ValueError(f"formats must be some of {FORMATS}, got {formats!r}.")
    out = Path(os.path.abspath(out))
    check_report(out, replace)
    label, _ = compared_with(analysis.methods, against)
    with _files.partial_folder(out) as partial:
        (partial / "tables").mkdir()
        drawings = draw_all(
            analysis, partial / "figures", formats, against=label, seed=seed, listener=listener
        )
        for name, table in all_tables(analysis, label).items():
            (partial / "tables" / f"{name}.md").write_text(_clean(table.markdown()), "utf8")
            (partial / "tables" / f"{name}.tex").write_text(_clean(table.latex()), "utf8")
        page = report_page(analysis, drawings, against)
        (partial / "report.html").write_text(page.html(), "utf8")
        (partial / MARK).write_text(_files.json_text(as_numbers(analysis, label)), "utf8")
        check_report(out, replace)  # it may have come meanwhile
        _files.replace_folder(out, partial)
    return out / "report.html"


def _clean(text: str) -> str:
    """Without halves of surrogate pairs, which no file can hold."""
    return text.encode("utf8", "replace").decode("utf8")


def as_numbers(analysis: Analysis, against: str = "vanilla") -> dict[str, Any]:
    """All that was measured, as plain data; NaN is null.

    Args:
      analysis: what was measured.
      against: the method that drift is tested against.

    Returns:
      What ``analysis.json`` holds.
    """
    found: dict[str, Any] = {
        "kind": KIND,
        "store": {"name": analysis.store.name, "fingerprint": analysis.store.fingerprint},
        "versions": versions(),
        "tasks": analysis.order,
        "kinds": analysis.kinds,
        "seeds": analysis.seeds,
        "methods": analysis.methods,
        "settings": analysis.settings,
        "config": analysis.config,
        "lacking": analysis.lacking,
        "scores": {name: result.scores for name, result in analysis.results.items()},
        "score_seeds": {name: result.seeds for name, result in analysis.results.items()},
        "columns": {name: columns(result) for name, result in analysis.results.items()},
        "drift": None if analysis.drift is None else _drift(analysis.drift, against),
        "hierarchy": {tree.task: _hierarchy(tree) for tree in analysis.hierarchy},
        "hierarchy_methods": analysis.geometry,
        "traversals": [
            {
                "task": walk.task,
                "row": walk.row,
                "title": walk.title,
                "paths": {
                    method: {"all texts": paths[False], "entailing texts": paths[True]}
                    for method, paths in walk.paths.items()
                },
            }
            for walk in analysis.walks
        ],
    }
    return _files.without_nan(found)


def _drift(drift: Drift, against: str) -> dict[str, Any]:
    found: dict[str, Any] = {
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
        found["against"] = against
        found["reduction"] = drift.reduction(against)
        found["wilcoxon"] = {
            method: [test._asdict() for test in drift.compare(method, against)]
            for method in drift.methods
            if method != against
        }
    return found


def _hierarchy(tree: Hierarchy) -> dict[str, Any]:
    return {
        "axes": ["method", "seed", "task end and final"],
        "scores": tree.scores,
        "chance": tree.chance,
        "radius": None if tree.radius is None else dataclasses.asdict(tree.radius),
    }
