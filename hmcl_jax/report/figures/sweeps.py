"""Figures of sweeps and stores, by matplotlib (the extra ``report``)."""

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from hmcl_jax.evaluation.modality_gap import Side
from hmcl_jax.evaluation.statistics import seed_std
from hmcl_jax.report.figures import style
from hmcl_jax.report.figures.style import INK, Paths, short

DOTS: dict[str, Any] = {"markersize": 5, "elinewidth": 0.7}


@dataclasses.dataclass(frozen=True)
class Curve:
    """A method in the plane of forgetting and immediate score, as one setting varies."""

    label: str
    family: str  # curves of one family share a colour
    values: Sequence[float]  # of the setting; empty for a single point
    forgetting: np.ndarray  # (points, seeds), in percent, mean over tasks, as is the next
    immediate: np.ndarray
    replay: bool = False  # keeps old pairs; drawn dashed


def draw_frontier(curves: Sequence[Curve], path: Paths) -> None:
    """Draws immediate score against forgetting, one curve per method; up and left is better.

    Thin diagonals join points of equal final score, which is the one minus the other.
    """
    with style.sheet(path) as plt:
        figure, axes = plt.subplots(figsize=(8.4, 5.6), layout="constrained")
        looks = style.looks(curve.family for curve in curves)
        for number, curve in enumerate(curves):
            x, y = curve.forgetting.mean(axis=1), curve.immediate.mean(axis=1)
            color, marker = looks[curve.family].color, "os^Dv<>P*X"[number % 10]
            errors = {"xerr": seed_std(curve.forgetting), "yerr": seed_std(curve.immediate)}
            line = {"linestyle": "--" if curve.replay else "-", "linewidth": 1.4, **DOTS}
            label = short(curve.label, 40)
            axes.errorbar(x, y, **errors, color=color, marker=marker, label=label, **line)
            place = {"textcoords": "offset points", "xytext": (4, 4), "fontsize": 7}
            for end in (0, -1) if len(x) > 1 else ():
                axes.annotate(f"{curve.values[end]:g}", (x[end], y[end]), color=color, **place)
        axes.margins(0.06)
        low, high = axes.get_xlim(), axes.get_ylim()
        for final in np.arange(np.floor(high[0] - low[1]), np.ceil(high[1] - low[0]) + 1, 2):
            axes.axline((0, final), slope=1, color=INK, alpha=0.13, linewidth=0.7, zorder=0)
        axes.set_xlim(low)
        axes.set_ylim(high)
        axes.set_xlabel("forgetting: immediate minus final score, mean over tasks (points)")
        axes.set_ylabel("immediate score, mean over tasks (%)")
        figure.suptitle("Stability and plasticity: up and left is better")
        style.side_legend(axes)


@dataclasses.dataclass(frozen=True)
class Budget:
    """A method's final score as it may keep more pairs."""

    label: str
    pairs: Sequence[int]  # how many it keeps in all, rising; 0 may be the first
    overall: np.ndarray  # (pairs, seeds), in percent


def draw_budget(
    curves: Sequence[Budget], lines: Mapping[str, np.ndarray], path: Paths, note: str = ""
) -> None:
    """Draws final score against pairs kept, and methods that keep none as lines across.

    Pairs are on a logarithmic axis; 0 stands at its left end, joined by a dotted line. Bars and
    bands are one sample standard deviation over seeds.
    """
    with style.sheet(path) as plt:
        figure, axes = plt.subplots(figsize=(8.4, 5.0), layout="constrained")
        looks = style.looks([*lines, *(curve.label for curve in curves)])
        sizes = sorted({int(size) for curve in curves for size in curve.pairs})
        least = min((size for size in sizes if size), default=1)
        position = {size: np.log2(size) if size else np.log2(least) - 1 for size in sizes}
        for number, (label, overall) in enumerate(lines.items()):
            middle, width = np.mean(overall), seed_std(np.asarray(overall))
            color, dash = looks[label].color, ("-", "--", "-.", ":")[number % 4]
            axes.axhspan(middle - width, middle + width, color=color, alpha=0.12, linewidth=0)
            axes.axhline(middle, color=color, ls=dash, linewidth=1.4, label=short(label, 40))
        for curve in curves:
            look, x = looks[curve.label], np.array([position[int(size)] for size in curve.pairs])
            some = np.array(curve.pairs) > 0
            y, bars = curve.overall.mean(axis=1), seed_std(curve.overall)
            axes.plot(x, y, color=look.color, linestyle=":", linewidth=1.0)
            axes.plot(x[some], y[some], color=look.color, linewidth=1.4)
            label = short(curve.label, 40)
            axes.errorbar(x, y, bars, linestyle="", label=label, **look._asdict(), **DOTS)
        axes.set_xticks([position[size] for size in sizes], [str(size) for size in sizes])
        axes.set_xlabel("pairs kept in all" + (f"\n{note}" if note else ""))
        axes.set_ylabel("Overall: mean final score (%)")
        style.rules(axes, "y")
        figure.suptitle("Final score against pairs kept; lines keep none")
        if curves or lines:
            style.side_legend(axes)


def draw_gap(sides: Sequence[Side], path: Paths) -> None:
    """Draws where the modalities of every task lie: radii, and the plane that parts them."""
    with style.sheet(path) as plt:
        tasks = list(dict.fromkeys(side.task for side in sides))
        modalities = list(dict.fromkeys(side.modality for side in sides))
        colour = {m: style.COLOURS[i % len(style.COLOURS)] for i, m in enumerate(modalities)}
        across = min(4, len(tasks))
        down = -(-len(tasks) // across)
        size = (2.6 + 1.9 * across, max(2.6, 1.7 * down) + 0.5)
        figure = plt.figure(figsize=size, layout="constrained")
        grid = figure.add_gridspec(down, across + 1, width_ratios=[1.4] + [1] * across)
        radii = figure.add_subplot(grid[:, 0])
        for number, task in enumerate(tasks):
            plane = figure.add_subplot(grid[number // across, 1 + number % across])
            plane.set_title(short(task), fontsize=7)
            plane.tick_params(labelsize=5)
            for side in sides:
                if side.task == task:
                    look = {"color": colour[side.modality]}
                    plane.scatter(
                        *side.plane.T, 3, alpha=0.6, linewidths=0, rasterized=True, **look
                    )
                    low, middle, high = np.quantile(side.radii, [0, 0.5, 1])
                    position = -number - 0.15 * modalities.index(side.modality)
                    radii.plot([low, high], [position, position], linewidth=1.5, **look)
                    radii.plot([middle], [position], marker="o", markersize=4, **look)
        for modality, shade in colour.items():
            radii.plot([], [], color=shade, marker="o", label=short(modality))
        radii.set_yticks(-np.arange(len(tasks)), list(map(short, tasks)), fontsize=6)
        radii.tick_params(axis="x", labelsize=6)
        radii.set_title("radius: least, median, largest", fontsize=8)
        radii.legend(fontsize=7, frameon=False)
        figure.suptitle("Tangent space of every task: along the gap, and across it", fontsize=9)
