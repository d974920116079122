"""Draws all figures of an analysis."""

import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np

from hmcl_jax.evaluation import TreePoints, radial_tree, relative_change
from hmcl_jax.report.analyse import Analysis
from hmcl_jax.report.figures.geometry import draw_depth, draw_drift, draw_norms, draw_radial_tree
from hmcl_jax.report.figures.scores import draw_methods, draw_retrieval, draw_stages
from hmcl_jax.report.figures.style import short
from hmcl_jax.report.figures.training import draw_training
from hmcl_jax.report.hierarchy import Hierarchy
from hmcl_jax.report.results import columns
from hmcl_jax.report.tables import has_recall, retrieval_sides

LARGEST_SVG = 400_000  # bytes; a larger drawing goes into the page as a PNG


def draw_all(
    analysis: Analysis,
    folder: Path,
    formats: Sequence[str],
    *,
    seed: int | None = None,
    listener: Callable[[str, int, int], None] | None = None,
) -> dict[str, bytes]:
    """Draws every figure that an analysis has the numbers for into a new folder.

    Returns those for a page, by name: SVG files, or PNG files where those are large.
    """
    pictures: dict[str, bytes] = {}
    jobs = _jobs(analysis, seed)
    folder.mkdir(parents=True)
    with tempfile.TemporaryDirectory() as scratch:
        for done, (name, draw) in enumerate(jobs.items()):
            if listener is not None:
                listener(f"figure {name}", done, len(jobs))
            files = {
                ending: (folder if ending in formats else Path(scratch)) / f"{name}.{ending}"
                for ending in (*formats, "svg")
            }
            draw(list(files.values()))
            pictures[name] = files["svg"].read_bytes()
            if len(pictures[name]) > LARGEST_SVG:
                draw([Path(scratch) / f"{name}.png"])
                pictures[name] = (Path(scratch) / f"{name}.png").read_bytes()
    return pictures


def _jobs(analysis: Analysis, seed: int | None) -> dict[str, Callable[[Sequence[Path]], None]]:
    jobs: dict[str, Callable[[Sequence[Path]], None]] = {}
    results, drift, kinds = analysis.results, analysis.drift, analysis.kinds
    if results:
        by_method = {name: columns(result) for name, result in results.items()}
        jobs["methods"] = lambda paths: draw_methods(by_method, paths)
        change = {name: relative_change(r.scores.mean(axis=0)) for name, r in results.items()}
        jobs["stages"] = lambda paths: draw_stages(change, analysis.order, kinds, paths)
    if drift is not None:
        jobs["drift"] = lambda paths: draw_drift(drift, paths, analysis.against)
        jobs["norms"] = lambda paths: draw_norms(drift, paths)
    drawn = next((h for h in analysis.hierarchies if h.points is not None), None)
    if drawn is not None and drawn.radius is not None:
        points, seed = _tree_points(analysis, drawn, seed)
        if points.methods:
            tree = radial_tree(points, seed)
            title = f"{short(points.task, 40)}, seed {seed}"
            jobs["radial_tree"] = lambda paths: draw_radial_tree(tree, paths, title)
        methods, radius = analysis.geometry, drawn.radius
        jobs["depth"] = lambda paths: draw_depth(methods, radius, paths, points.task)
    if has_recall(analysis):
        details = {name: result.details for name, result in results.items()}
        tasks = {i: analysis.order[i] for i, kind in enumerate(kinds) if kind == "retrieval"}
        sides = retrieval_sides(analysis)
        jobs["retrieval"] = lambda paths: draw_retrieval(details, tasks, paths, sides)
    losses = {name: r.losses for name, r in results.items() if all(r.losses)}
    if losses:
        logs = {name: results[name].logs for name in losses}
        jobs["training"] = lambda paths: draw_training(losses, logs, analysis.order, paths)
    return jobs


def _tree_points(analysis: Analysis, drawn: Hierarchy, seed: int | None) -> tuple[TreePoints, int]:
    """The methods that did not stop at a seed, and the seed: by default the one of most methods."""
    known = np.asarray(drawn.points)  # (methods, seeds, 2, names, d)
    finished = np.asarray(np.isfinite(known).all(axis=(2, 3, 4)))
    index = int(finished.sum(axis=0).argmax()) if seed is None else analysis.seeds.index(seed)
    chosen = np.flatnonzero(finished[:, index])
    points = TreePoints(
        task=drawn.task.name,
        tree=drawn.tree,
        names=drawn.task.tree_names,
        methods=tuple(analysis.geometry[i] for i in chosen),
        seeds=analysis.seeds,
        K=float(analysis.store.K),
        before=known[chosen, :, 0],
        after=known[chosen, :, 1],
    )
    return points, analysis.seeds[index]
