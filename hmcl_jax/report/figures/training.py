"""The figure of training: loss and logs of every epoch of the stream."""

import itertools
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from hmcl_jax.evaluation.statistics import seed_mean
from hmcl_jax.report.figures import style
from hmcl_jax.report.figures.style import INK, WIDTH, Look, Paths, short

Panel = tuple[str, Sequence[tuple[str, str, str]], bool]
# Panels: title; name, line style and label of each curve; whether the scale is logarithmic.
PANELS: tuple[Panel, ...] = (
    ("loss", [("loss", "-", "")], False),
    (
        "root of the Lorentz defect of a step, over the protected features",
        [("defect_before", "--", "before correction"), ("defect_after", "-", "after")],
        True,
    ),
    (
        "shared rotation of a step of AdamW (radians, root of the sum of squared angles)",
        [("rotation", "-", "")],
        True,
    ),
    (
        "distance of the heads from the task's start (Frobenius norm)",
        [("anchor_bound", "--", "its bound"), ("anchor_distance", "-", "distance")],
        True,
    ),
)
RANK = "rank_"
DASHES = {"-": "solid:", "--": "dashed:", ":": "dotted:", "-.": "dash-dot:"}


def draw_training(
    losses: Mapping[str, Sequence[Any]],
    logs: Mapping[str, Sequence[Mapping[str, Any]]],
    tasks: Sequence[str],
    path: Paths,
) -> None:
    """Draws loss and logs over all epochs of a stream; a panel that no method has is left out.

    ``losses[method][t]`` has shape ``(seeds, epochs)``, as have the entries of ``logs[method][t]``
    except those of one number per task, ``(seeds,)``.
    """
    looks = style.looks([*losses, *logs])
    spans = [max(np.shape(series[t])[-1] for series in losses.values()) for t in range(len(tasks))]
    borders = np.concatenate([[0], np.cumsum(spans)])
    curves = {"loss": {name: list(series) for name, series in losses.items()}}
    for name, entries in logs.items():
        for key in {key for entry in entries for key in entry}:
            curves.setdefault(key, {})[name] = [entry.get(key) for entry in entries]
    ranks = zip(sorted(key for key in curves if key.startswith(RANK)), itertools.cycle(DASHES))
    ranked = [(key, dash, short(key.removeprefix(RANK))) for key, dash in ranks]
    panels: list[Panel] = [*PANELS, ("protected rank", ranked, False)]
    panels = [panel for panel in panels if any(key in curves for key, *_ in panel[1])]
    with style.sheet(path) as plt:
        figure, axes, _ = style.grid(plt, len(panels), 1, (WIDTH, 1.5), 1.5, sharex=True)
        for panel, (title, lines, power) in zip(axes, panels, strict=True):
            series = [(curves[key], dash, name) for key, dash, name in lines if key in curves]
            zeros = _draw(panel, series, looks, borders, power)
            notes = ", ".join(f"{DASHES[dash]} {name}" for _, dash, name in series if name)
            if zeros:
                notes = "; ".join(filter(None, [notes, "0 is drawn at the lower edge"]))
            panel_title = f"{title} ({notes})" if notes else title
            panel.text(0, 1.03, panel_title, transform=panel.transAxes, fontsize=7.5)
            for border in borders[1:-1]:
                panel.axvline(border, color=INK, alpha=0.2, linewidth=0.5)
            style.rules(panel, "y")
            panel.set_xlim(0, borders[-1])
        top = axes[0].secondary_xaxis("top")
        top.set_xticks((borders[1:] + borders[:-1]) / 2, [short(n, 16) for n in tasks])
        top.tick_params(length=0, labelsize=6.5, pad=16)
        for text in top.get_xticklabels():
            text.set(rotation=45, ha="left", va="bottom", rotation_mode="anchor")
        top.spines[:].set_visible(False)
        axes[-1].set_xlabel("epoch, counted through all tasks")
        style.legend(figure, looks)
        figure.suptitle("Training through the stream, mean over seeds")


def _draw(
    axes: Any,
    series: Sequence[tuple[Mapping[str, Sequence[Any]], str, str]],
    looks: Mapping[str, Look],
    borders: np.ndarray,
    power: bool,
) -> bool:
    """Draws the curves of one panel; returns whether it puts zeros at the edge of a log scale."""
    drawn = []
    for methods, dash, _ in series:
        for name, values in methods.items():
            x: list[Any] = [np.zeros(0)]
            y: list[Any] = [np.zeros(0)]
            for t, entry in enumerate(values):
                means = np.zeros(0) if entry is None else np.asarray(entry, np.float64)
                if not means.size or (power and not means.any()):  # nothing is protected yet
                    continue
                if means.ndim == 1:  # one number for the whole task
                    x.append(borders[[t, t + 1]])
                    y.append(np.repeat(seed_mean(means), 2))
                else:
                    x.append(borders[t] + np.arange(means.shape[1]) + 0.5)
                    y.append(seed_mean(means, 0))
                x.append([np.nan])  # lines end with their task
                y.append([np.nan])
            drawn.append((np.concatenate(x), np.concatenate(y), dash, looks[name].color))
    every = np.concatenate([np.zeros(0), *(heights for _, heights, *_ in drawn)])
    positive = every[np.isfinite(every) & (every > 0)]
    power = power and positive.size > 0 and positive.max() > 3 * positive.min()
    zeros = power and bool((every <= 0).any())
    floor = positive.min() / 3 if power else 0.0
    for epochs, heights, dash, colour in drawn:
        raised = np.where(heights <= 0, floor, heights) if power else heights
        axes.plot(epochs, raised, dash, color=colour, linewidth=1.1)
    if power:
        from matplotlib.ticker import LogLocator

        axes.set_yscale("log")
        if np.log10(positive.max() / positive.min()) < 2.5:  # too few powers of ten to read by
            axes.yaxis.set_major_locator(LogLocator(subs=(1, 2, 5)))
        axes.yaxis.set_major_formatter(lambda value, _: f"{value:.0e}" if value else "0")
        axes.yaxis.set_minor_formatter(lambda value, _: "")
        if zeros:
            axes.set_ylim(bottom=floor * 0.8)
    return zeros
