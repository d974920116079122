"""Figures of scores: change from stage to stage, methods side by side, fine-grained retrieval."""

import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from hmcl_jax.evaluation.statistics import seed_std
from hmcl_jax.report.figures import style
from hmcl_jax.report.figures.style import INK, WIDTH, Paths, short
from hmcl_jax.report.results import COLUMNS
from hmcl_jax.report.tables import DIRECTIONS, RECALLS


def draw_stages(
    change: Mapping[str, np.ndarray], tasks: Sequence[str], kinds: Sequence[str], path: Paths
) -> None:
    """Draws heat maps of the change of every task's score at every later stage.

    Rows are tasks and columns the stages of the stream. Red is worse than right after learning the
    task, blue better, on one scale for all methods; it ends where 98 % of all changes do.

    Args:
      change: by method, of :func:`hmcl_jax.evaluation.relative_change`, ``(T, T)``.
      tasks: names, in the order of the stream.
      kinds: of the tasks; those of kind ``"retrieval"`` are marked (R).
      path: of the picture, or several; the ending says the format.
    """
    T, methods = len(tasks), list(change)
    limit, clipped = _limit(np.stack(list(change.values())))
    seen = np.tri(T, dtype=bool)
    with style.sheet(path) as plt:
        from matplotlib.patches import Rectangle

        side = 2.0 if len(methods) > 1 else 3.4
        width = WIDTH if len(methods) > 1 else 5.2
        figure, panels, across = style.grid(
            *(plt, len(methods), 3, (width, side + 0.2), 1.1), sharex=True, sharey=True
        )
        scale = plt.Normalize(-limit, limit)
        colours = plt.get_cmap("RdBu")
        labels = [
            f"{short(name, 18)}{' (R)' if kind == 'retrieval' else ''} {i}"
            for i, (name, kind) in enumerate(zip(tasks, kinds, strict=True), 1)
        ]
        unknown = False
        for axes, (name, values) in zip(panels, change.items(), strict=True):
            cells = colours(scale(np.where(np.isnan(values), 0, values)))
            cells[np.isnan(values)] = (0.5, 0.5, 0.5, 0.45)
            cells[~seen] = (0.5, 0.5, 0.5, 0.22)
            axes.imshow(cells.swapaxes(0, 1), aspect="equal")
            for t, i in np.argwhere(np.isnan(values) & seen):
                unknown = True
                corner = (t - 0.5, i - 0.5)
                axes.add_patch(Rectangle(corner, 1, 1, fill=False, hatch="/////", linewidth=0))
            for t in range(T):
                axes.add_patch(Rectangle((t - 0.5, t - 0.5), 1, 1, fill=False, lw=0.6, ec=INK))
            axes.add_patch(Rectangle((T - 1.5, -0.5), 1, T, fill=False, lw=1.1, ec=INK))
            axes.set_title(short(name))
            axes.spines[:].set_visible(False)
            axes.tick_params(length=0, pad=2)
            step = 1 if T <= 8 or len(methods) == 1 else -(-T // 8)
            axes.set_xticks(range(0, T, step), [str(t + 1) for t in range(0, T, step)])
            axes.set_yticks(range(T), labels, fontsize=6.5)
        for axes in panels[-across:]:
            axes.set_xlabel("after task (stage t)")
            axes.tick_params(labelbottom=True)
        bar = figure.colorbar(
            plt.cm.ScalarMappable(scale, colours),
            ax=panels,
            location="bottom",
            extend="both" if clipped else "neither",
            aspect=50,
            shrink=0.75,
            pad=0.02,
        )
        bar.outline.set_visible(False)
        bar.set_label(
            "score on task i after stage t, change since it was learned (% of that score)"
            + (f"; scale ends at ±{limit:g} %" if clipped else "")
            + "\n(R): retrieval, symmetric R@5; others top-1. Grey: not yet learned."
            + (" Hatched: score 0 when learned." if unknown else "")
        )
        figure.suptitle("Change of every task's score, stage by stage: red is worse, blue better")
        style.save(figure, path)


def _limit(change: np.ndarray) -> tuple[float, bool]:
    """Where the colour scale ends, a round number, and whether anything lies beyond."""
    sizes = np.abs(change[np.isfinite(change) & (change != 0)])
    if not sizes.size:
        return 1.0, False
    bound = float(np.quantile(sizes, 0.98))
    power = 10.0 ** math.floor(math.log10(bound))
    limit = next(step * power for step in (1, 2, 3, 5, 8, 10) if step * power >= bound * 0.999)
    return limit, bool((sizes > limit).any())


def draw_methods(
    figures: Mapping[str, Mapping[str, np.ndarray]],
    path: Paths,
    columns: Sequence[str] = ("Overall", "BWT"),
) -> None:
    """Draws the paper's figures of all methods side by side, with their spread over seeds.

    Args:
      figures: by method, in the order to draw them, each of
        :func:`hmcl_jax.report.results.columns`: percent by column, ``(seeds,)``.
      path: of the picture, or several; the ending says the format.
      columns: which of :data:`hmcl_jax.report.results.COLUMNS`.
    """
    methods = list(figures)
    looks = style.looks(methods)
    with style.sheet(path) as plt:
        size = (WIDTH, 0.55 + 0.22 * len(methods))
        figure, panels, _ = style.grid(plt, len(columns), len(columns), size, sharey=True)
        for axes, column in zip(panels, columns, strict=True):
            for row, name in enumerate(methods):
                values = np.asarray(figures[name][column], np.float64)
                middle, error = values.mean(), float(seed_std(values))
                if np.isnan(middle):
                    continue
                look = looks[name]
                axes.errorbar(
                    *(middle, row),
                    xerr=error if len(values) > 1 else None,
                    color=look.color,
                    marker=look.marker,
                    markersize=5,
                    capsize=2,
                )
                text = f"{middle:.2f}" + (f" ± {error:.2f}" if len(values) > 1 else "")
                axes.text(
                    *(1.01, row, text.replace("-", style.MINUS)),
                    transform=axes.get_yaxis_transform(),
                    va="center",
                    fontsize=6.5,
                )
            axes.locator_params(axis="x", nbins=5)
            if column.startswith("BWT"):
                axes.axvline(0, color=INK, linewidth=0.7)
            percent = "percentage points" if column.startswith("BWT") else "%"
            axes.set_title(f"{column} ({percent}), higher is better")
            style.rules(axes)
        panels[0].set_yticks(range(len(methods)), [short(name) for name in methods])
        panels[0].set_ylim(len(methods) - 0.4, -0.6)
        figure.suptitle("Methods: mean and sample standard deviation over seeds")
        note = "; ".join(f"{column}: {COLUMNS[column]}" for column in columns)
        figure.supxlabel(style.wrapped(note), fontsize=7)
        style.save(figure, path)


def draw_retrieval(
    details: Mapping[str, Sequence[Sequence[Mapping[str, Sequence[float]]]]],
    tasks: Mapping[int, str],
    path: Paths,
    sides: tuple[str, str] = ("text", "sample"),
) -> None:
    """Draws R@1, R@5 and R@10 in both directions of every retrieval task.

    Args:
      details: by method, ``details[method][t][i][measure]``, a list over seeds, as in
        :class:`hmcl_jax.continual.StreamResult`.
      tasks: names of the retrieval tasks by their index in the stream.
      path: of the picture, or several; the ending says the format.
      sides: names of the general and the specific modality.
    """
    methods = list(details)
    looks = style.looks(methods)
    ways = (f"{short(sides[0])} to {short(sides[1])}", f"{short(sides[1])} to {short(sides[0])}")
    with style.sheet(path) as plt:
        from matplotlib.patches import Patch, PathPatch
        from matplotlib.path import Path

        figure, axes = plt.subplots(
            *(len(tasks), 2),
            figsize=(WIDTH, 1.15 * len(tasks) + 0.9),
            layout="constrained",
            squeeze=False,
            sharex=True,
            sharey="row",
        )
        wide = 0.84 / len(methods)
        for (row, way), panel in np.ndenumerate(axes):
            task = list(tasks)[row]
            learned, errors = [], []
            for number, name in enumerate(methods):
                stages = [details[name][stage][task] for stage in (-1, task)]
                final, immediate = (
                    100 * np.array([stage[f"{DIRECTIONS[way]}_r{k}"] for k in RECALLS])
                    for stage in stages
                )
                middle, error = final.mean(axis=-1), seed_std(final)
                x = np.arange(len(RECALLS)) + (number - (len(methods) - 1) / 2) * wide
                left, right = x - wide * 0.45, x + wide * 0.45
                # One path for all bars of a method keeps the file small, and so do gaps in lines.
                bars = [
                    np.array([(l, 0), (r, 0), (r, m), (l, m), (l, 0)])
                    for l, r, m in zip(left, right, middle, strict=True)
                ]
                shape = Path.make_compound_path(*(Path(v, closed=True) for v in bars))
                panel.add_patch(PathPatch(shape, color=looks[name].color, linewidth=0))
                errors.append((x, x, middle - error, middle + error))
                height = immediate.mean(axis=-1)
                learned.append((left, right, height, height))
            for lines, thick in ((errors, 0.7), (learned, 1.1)):
                left, right, low, high = np.concatenate(lines, axis=-1)
                _segments(panel, (left, right), (low, high), thick)
            style.rules(panel, "y")
            panel.tick_params(axis="x", length=0)
            panel.set_xticks(range(len(RECALLS)), [f"R@{k}" for k in RECALLS])
            if not way:
                panel.set_ylabel("%")
            panel.set_title(f"{short(tasks[task])}: {ways[way]}", fontsize=7.5, loc="left", pad=2)
        for row in axes:  # its panels share their scale
            row[0].set_ylim(0, 1.06 * max(panel.dataLim.y1 for panel in row))
        handles = [Patch(color=look.color, label=short(name)) for name, look in looks.items()]
        handles.append(plt.Line2D([], [], color=INK, label="right after its task"))
        style.keys(figure, handles)
        figure.suptitle(
            "Retrieval after the last task: recall at 1, 5 and 10, mean over seeds "
            "± sample standard deviation"
        )
        style.save(figure, path)


def _segments(axes: Any, x: Sequence[np.ndarray], y: Sequence[np.ndarray], width: float) -> None:
    """Many lines in ink as one, each from ``(x[0], y[0])`` to ``(x[1], y[1])``."""
    gap = np.full(len(x[0]), np.nan)
    ends = (np.stack([*side, gap], axis=1).reshape(-1) for side in (x, y))
    axes.plot(*ends, color=INK, linewidth=width, solid_capstyle="butt")
