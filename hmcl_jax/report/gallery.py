"""All figures of an analysis, into a folder, and as parts of a page."""

import dataclasses
import shutil
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np

from hmcl_jax.evaluation import RadiusByDepth, TreePoints, radial_tree, relative_change
from hmcl_jax.report.analysis import Analysis
from hmcl_jax.report.canvas import inline_svg, shown
from hmcl_jax.report.geometry_figures import draw_depth, draw_drift, draw_norms, draw_radial_tree
from hmcl_jax.report.markup import Markup
from hmcl_jax.report.results import columns
from hmcl_jax.report.score_figures import (
    draw_methods,
    draw_retrieval,
    draw_stages,
    retrieval_scores,
)
from hmcl_jax.report.tables import has_recall
from hmcl_jax.report.training_figure import draw_training

LARGEST_SVG = 400_000  # bytes; a larger drawing goes into the page as a PNG

Job = Callable[[Sequence[Path]], None]


def draw_all(
    analysis: Analysis,
    folder: Path,
    formats: Sequence[str],
    *,
    against: str = "vanilla",
    seed: int | None = None,
    listener: Callable[[str, int, int], None] | None = None,
) -> dict[str, Markup | bytes]:
    """Draws every figure that an analysis has the numbers for.

    Args:
      analysis: what was measured.
      folder: for the files, which is made.
      formats: endings of the files, some of ``"png"``, ``"pdf"`` and ``"svg"``.
      against: the method that drift is compared with.
      seed: of the tree drawing. Default: the first.
      listener: called with the name of a figure and how many of how many are drawn.

    Returns:
      The figures for a page, by name: ``<svg>`` elements, or PNG files where those are large.
    """
    found: dict[str, Markup | bytes] = {}
    jobs = _jobs(analysis, against, seed)
    folder.mkdir(parents=True)
    with tempfile.TemporaryDirectory() as name:
        scratch = Path(name)
        for done, (figure, draw) in enumerate(jobs.items()):
            if listener is not None:
                listener(f"figure {figure}", done, len(jobs))
            draw([scratch / f"{figure}.{ending}" for ending in dict.fromkeys(("svg", *formats))])
            for ending in formats:
                shutil.copy(scratch / f"{figure}.{ending}", folder)
            svg = scratch / f"{figure}.svg"
            if svg.stat().st_size > LARGEST_SVG:
                png = svg.with_suffix(".png")
                if not png.exists():
                    draw([png])
                found[figure] = png.read_bytes()
            else:
                found[figure] = Markup(inline_svg(svg, figure.replace("_", "-")))
    return found


def _jobs(analysis: Analysis, against: str, seed: int | None) -> dict[str, Job]:
    jobs: dict[str, Job] = {}
    results, drift, points = analysis.results, analysis.drift, analysis.tree_points
    if results:
        figures = {name: columns(result) for name, result in results.items()}
        jobs["methods"] = lambda paths: draw_methods(figures, paths)
        change = np.stack([relative_change(r.scores.mean(axis=0)) for r in results.values()])
        jobs["stages"] = lambda paths: draw_stages(
            change, analysis.order, analysis.kinds, list(results), paths
        )
    if drift is not None:
        jobs["drift"] = lambda paths: draw_drift(drift, paths, against)
        jobs["norms"] = lambda paths: draw_norms(drift, paths)
    if points is not None:
        known, seed = _drawn_points(points, seed)
        if known.methods:
            tree = radial_tree(known, seed)
            title = f"{shown(points.task, 40)}, seed {seed}"
            jobs["radial_tree"] = lambda paths: draw_radial_tree(tree, paths, title)
        before, after = _by_depth(analysis, points.task)
        jobs["depth"] = lambda paths: draw_depth(points.methods, before, after, paths, points.task)
    if has_recall(analysis):
        recall = {
            name: retrieval_scores(result.details, analysis.order, analysis.kinds)
            for name, result in results.items()
        }
        jobs["retrieval"] = lambda paths: draw_retrieval(recall, paths, _sides(analysis))
    losses = {name: r.losses for name, r in results.items() if all(r.losses)}
    if losses:
        logs = {name: results[name].logs for name in losses}
        jobs["training"] = lambda paths: draw_training(losses, logs, analysis.order, paths)
    return jobs


def _drawn_points(points: TreePoints, seed: int | None) -> tuple[TreePoints, int]:
    """The methods whose seed was not stopped, and the seed: the first that most methods have."""
    both = np.stack([points.before, points.after])  # (2, methods, seeds, names, d)
    going = np.asarray(np.isfinite(both).all(axis=(0, 3, 4)))
    place = int(going.sum(axis=0).argmax()) if seed is None else points.seeds.index(seed)
    kept = np.flatnonzero(going[:, place])
    known = dataclasses.replace(
        points,
        methods=tuple(points.methods[i] for i in kept),
        before=points.before[kept],
        after=points.after[kept],
    )
    return known, points.seeds[place]


def _by_depth(analysis: Analysis, task: str) -> tuple[RadiusByDepth, RadiusByDepth]:
    """Radii by depth at the end of a task and of the stream; of stopped seeds they are NaN."""
    radius = next(tree.radius for tree in analysis.hierarchy if tree.task == task)
    assert radius is not None
    correlation = np.asarray(radius.correlation)
    first, last = (
        dataclasses.replace(
            radius, means=radius.means[:, :, when], correlation=correlation[:, :, when]
        )
        for when in (0, 1)
    )
    return first, last


def _sides(analysis: Analysis) -> tuple[str, str]:
    """What the two sides of the retrieval tasks are called."""
    tasks = (analysis.store[name] for name in analysis.order)
    sides = {(task.general, task.specific) for task in tasks if task.kind == "retrieval"}
    return sides.pop() if len(sides) == 1 else ("general", "specific")
