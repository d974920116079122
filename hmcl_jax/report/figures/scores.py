"""Figures of scores: change from stage to stage, methods side by side, fine-grained retrieval."""

import functools
import itertools
import math
import textwrap
from collections.abc import Mapping, Sequence

import numpy as np

from hmcl_jax.evaluation.statistics import seed_std
from hmcl_jax.report.figures import style
from hmcl_jax.report.figures.style import INK, WIDTH, Paths, short
from hmcl_jax.report.results import COLUMNS
from hmcl_jax.report.tables import DIRECTIONS, RECALLS


def draw_stages(
    change: Mapping[str, np.ndarray], tasks: Sequence[str], kinds: Sequence[str], path: Paths
) -> None:
    """Draws heat maps of :func:`relative_change`, by method, of all tasks at all later stages.

    Rows are tasks and columns the stages of the stream. Red is worse than right after learning the
    task, blue better, on one scale for all methods; it ends where 98 % of all changes do.
    """
    T, methods = len(tasks), list(change)
    limit, clipped = _limit(np.stack(list(change.values())))
    seen = np.tri(T, dtype=bool)
    with style.sheet(path) as plt:
        from matplotlib.patches import Rectangle

        side = 2.0 if len(methods) > 1 else 3.4
        width = WIDTH if len(methods) > 1 else 5.2
        size, shared = (width, side + 0.2), {"sharex": True, "sharey": True}
        figure, panels, across = style.grid(plt, len(methods), 3, size, 1.1, **shared)
        scale = plt.cm.ScalarMappable(plt.Normalize(-limit, limit), "RdBu")
        labels = [
            f"{short(name, 18)}{' (R)' if kind == 'retrieval' else ''} {i}"
            for i, (name, kind) in enumerate(zip(tasks, kinds, strict=True), 1)
        ]
        unknown = any((np.isnan(values) & seen).any() for values in change.values())
        for axes, (name, values) in zip(panels, change.items(), strict=True):
            cells = scale.to_rgba(np.where(np.isnan(values), 0, values))
            cells[np.isnan(values)] = (0.5, 0.5, 0.5, 0.45)
            cells[~seen] = (0.5, 0.5, 0.5, 0.22)
            axes.imshow(cells.swapaxes(0, 1), aspect="equal")
            for t, i in np.argwhere(np.isnan(values) & seen):
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
        extend = "both" if clipped else "neither"
        bar = style.colour_bar(figure, panels, scale, 0.75, extend=extend)
        bar.set_label(
            "score on task i after stage t, change since it was learned (% of that score)"
            + (f"; scale ends at ±{limit:g} %" if clipped else "")
            + "\n(R): retrieval, symmetric R@5; others top-1. Grey: not yet learned."
            + (" Hatched: score 0 when learned." if unknown else "")
        )
        figure.suptitle("Change of every task's score, stage by stage: red is worse, blue better")


def _limit(change: np.ndarray) -> tuple[float, bool]:
    """Where the colour scale ends, a round number, and whether anything lies beyond."""
    sizes = np.abs(change[np.isfinite(change) & (change != 0)])
    if not sizes.size:
        return 1.0, False
    bound = float(np.quantile(sizes, 0.98))
    power = 10.0 ** math.floor(math.log10(bound))
    limit = next(step * power for step in (1, 2, 3, 5, 8, 10) if step * power >= bound * 0.999)
    return limit, bool((sizes > limit).any())


def draw_methods(figures: Mapping[str, Mapping[str, np.ndarray]], path: Paths) -> None:
    """Draws Overall and BWT of all methods side by side, with their spread over seeds."""
    looks = style.looks(figures)
    with style.sheet(path) as plt:
        size = (WIDTH, 0.55 + 0.22 * len(figures))
        figure, panels, _ = style.grid(plt, 2, 2, size, sharey=True)
        for axes, column in zip(panels, ("Overall", "BWT"), strict=True):
            for row, (name, look) in enumerate(looks.items()):
                values = np.asarray(figures[name][column], np.float64)
                middle, error = values.mean(), float(seed_std(values))
                if np.isnan(middle):
                    continue
                many = len(values) > 1
                bars = {"xerr": error if many else None, "capsize": 2}
                axes.errorbar(middle, row, markersize=5, **bars, **look._asdict())
                style.beside_row(axes, row, f"{middle:.2f}" + f" ± {error:.2f}" * many)
            axes.locator_params(axis="x", nbins=5)
            if column.startswith("BWT"):
                axes.axvline(0, color=INK, linewidth=0.7)
            percent = "percentage points" if column.startswith("BWT") else "%"
            axes.set_title(f"{column} ({percent}), higher is better")
            style.rules(axes)
        style.name_rows(panels[0], [short(name) for name in figures])
        figure.suptitle("Methods: mean and sample standard deviation over seeds")
        note = f"Overall: {COLUMNS['Overall']}; BWT: {COLUMNS['BWT']}"
        figure.supxlabel(textwrap.fill(note, style.LINE), fontsize=7)


def draw_retrieval(
    details: Mapping[str, Sequence[Sequence[Mapping[str, Sequence[float]]]]],
    tasks: Mapping[int, str],
    path: Paths,
    sides: tuple[str, str] = ("text", "sample"),
) -> None:
    """Draws R@1, R@5 and R@10 in both directions of every retrieval task.

    `details` is by method as in :class:`hmcl_jax.continual.StreamResult`, `tasks` has names by
    index in the stream, `sides` the names of the general and the specific modality.
    """
    looks = style.looks(details)
    general, specific = map(short, sides)
    ways = (f"{general} to {specific}", f"{specific} to {general}")
    ink = {"color": INK, "linestyle": "solid"}
    with style.sheet(path) as plt:
        shared = {"sharex": True, "sharey": "row"}
        figure, panels, _ = style.grid(plt, 2 * len(tasks), 2, (WIDTH, 1.15), 0.9, **shared)
        wide = 0.84 / len(looks)
        for panel, (task, way) in zip(panels, itertools.product(tasks, (0, 1)), strict=True):
            for number, (name, look) in enumerate(looks.items()):
                final, learned = (
                    100 * np.array([stage[task][f"{DIRECTIONS[way]}_r{k}"] for k in RECALLS])
                    for stage in (details[name][-1], details[name][task])
                )
                middle, error = final.mean(axis=-1), seed_std(final)
                x = np.arange(len(RECALLS)) + (number - (len(looks) - 1) / 2) * wide
                panel.bar(x, middle, 0.9 * wide, color=look.color)
                panel.vlines(x, middle - error, middle + error, linewidth=0.7, **ink)
                left, right = x - 0.45 * wide, x + 0.45 * wide
                panel.hlines(learned.mean(axis=-1), left, right, linewidth=1.1, **ink)
            style.rules(panel, "y")
            panel.tick_params(axis="x", length=0)
            panel.set_xticks(range(len(RECALLS)), [f"R@{k}" for k in RECALLS])
            if not way:
                panel.set_ylabel("%")
            panel.set_title(f"{short(tasks[task])}: {ways[way]}", fontsize=7.5, loc="left", pad=2)
        for pair in zip(panels[::2], panels[1::2], strict=True):  # they share their scale
            pair[0].set_ylim(0, 1.06 * max(panel.dataLim.y1 for panel in pair))
        square = functools.partial(plt.Rectangle, (0, 0), 1, 1)
        handles = [square(color=look.color, label=short(name)) for name, look in looks.items()]
        handles.append(plt.Line2D([], [], color=INK, label="right after its task"))
        style.legend(figure, {}, handles)
        figure.suptitle(
            "Retrieval after the last task: recall at 1, 5 and 10, mean over seeds "
            "± sample standard deviation"
        )
