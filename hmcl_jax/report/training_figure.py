"""The figure of training: what was logged in every epoch, through the whole stream."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from hmcl_jax.evaluation.seeds import seed_mean
from hmcl_jax.report import canvas
from hmcl_jax.report.canvas import INK, WIDTH, Look, Paths, shown

Panel = tuple[str, tuple[tuple[str, str, str], ...], bool]
# Panels after the loss: title, drawn names with their line styles, whether the scale is a power.
PANELS: tuple[Panel, ...] = (
    (
        "root of the Lorentz defect of a step, over the protected features",
        (("defect_before", "--", "before correction"), ("defect_after", "-", "after")),
        True,
    ),
    (
        "shared rotation of a step of AdamW (radians, root of the sum of squared angles)",
        (("rotation", "-", ""),),
        True,
    ),
    (
        "distance of the heads from the task's start (Frobenius norm)",
        (("anchor_bound", "--", "its bound"), ("anchor_distance", "-", "distance")),
        True,
    ),
)
RANK = "rank_"


def draw_training(
    losses: Mapping[str, Sequence[Any]],
    logs: Mapping[str, Sequence[Mapping[str, Any]]],
    tasks: Sequence[str],
    path: Paths,
) -> None:
    """Draws loss and logs over all epochs of a stream; a panel that no method has is left out.

    Args:
      losses: by method, ``losses[method][t]`` of shape ``(seeds, epochs)``.
      logs: by method, ``logs[method][t]``: by name ``(seeds, epochs)`` for ``defect_before``,
        ``defect_after``, ``rotation``, ``anchor_distance`` and ``anchor_bound``, and ``(seeds,)``
        for ``rank_<modality>``.
      tasks: names in the order of the stream.
      path: of the picture, or several; the ending says the format.
    """
    for name, held in losses.items():
        if len(held) != len(tasks):
            raise ValueError(
                f"losses[{name!r}] must have an entry for each of {len(tasks)} tasks, "
                f"got {len(held)}; finish the run."
            )
    if not losses or not tasks:
        raise ValueError("losses must hold at least one method and task, got none.")
    looks = canvas.looks([*losses, *logs])
    spans = [max(np.shape(held[t])[-1] for held in losses.values()) for t in range(len(tasks))]
    borders = np.concatenate([[0], np.cumsum(spans)])
    curves = {"loss": {name: list(held) for name, held in losses.items()}}
    for name, held in logs.items():
        for key in {key for entry in held for key in entry}:
            curves.setdefault(key, {})[name] = [entry.get(key) for entry in held]
    panels: list[Panel] = [("loss", (("loss", "-", ""),), False)]
    panels += [p for p in PANELS if any(key in curves for key, *_ in p[1])]
    ranks = sorted(key for key in curves if key.startswith(RANK))
    styles = ("-", "--", ":", "-.")
    if ranks:
        drawn = [(key, styles[i % 4], shown(key[len(RANK) :])) for i, key in enumerate(ranks)]
        panels.append(("protected rank", tuple(drawn), False))
    with canvas.sheet(path) as plt:
        figure, axes, _ = canvas.grid(*(plt, len(panels), 1, (WIDTH, 1.5), 1.5), sharex=True)
        for panel, (title, lines, power) in zip(axes, panels, strict=True):
            held = [(curves[key], *rest) for key, *rest in lines if key in curves]
            zeros = _draw(panel, held, looks, borders, power)
            said = ", ".join(f"{_DASHES[style]} {label}" for _, style, label in held if label)
            if zeros:
                said = "; ".join(filter(None, [said, "0 is drawn at the lower edge"]))
            whole = f"{title}{f' ({said})' if said else ''}"
            panel.text(0, 1.03, whole, transform=panel.transAxes, fontsize=7.5)
            for border in borders[1:-1]:
                panel.axvline(border, color=INK, alpha=0.2, linewidth=0.5)
            canvas.rules(panel, "y")
            panel.set_xlim(0, borders[-1])
        top = axes[0].secondary_xaxis("top")
        top.set_xticks((borders[1:] + borders[:-1]) / 2, [shown(n, 16) for n in tasks])
        top.tick_params(length=0, labelsize=6.5, pad=16)
        for text in top.get_xticklabels():
            text.set(rotation=45, ha="left", va="bottom", rotation_mode="anchor")
        top.spines[:].set_visible(False)
        axes[-1].set_xlabel("epoch, counted through all tasks")
        canvas.legend(figure, looks)
        figure.suptitle("Training through the stream, mean over seeds")
        canvas.save(figure, path)


_DASHES = {"-": "solid:", "--": "dashed:", ":": "dotted:", "-.": "dash-dot:"}


def _draw(
    axes: Any,
    held: Sequence[tuple[Mapping[str, Sequence[Any]], str, str]],
    looks: Mapping[str, Look],
    borders: np.ndarray,
    power: bool,
) -> bool:
    """Draws curves of one panel; whether some 0 had to be put at the edge of a scale of powers."""
    from matplotlib.ticker import LogLocator

    drawn = []
    for methods, style, _ in held:
        for name, values in methods.items():
            x: list[float] = []
            y: list[float] = []
            for t, entry in enumerate(values):
                if entry is None or not np.size(entry):
                    continue
                known = np.asarray(entry, np.float64)
                if power and not known.any():
                    continue  # nothing is protected yet
                start, span = borders[t], borders[t + 1] - borders[t]
                if known.ndim == 1:  # one number for the whole task
                    x += [start, start + span, np.nan]
                    y += [float(seed_mean(known))] * 2 + [np.nan]
                else:
                    x += [*(start + np.arange(known.shape[1]) + 0.5), np.nan]
                    y += [*seed_mean(known, 0), np.nan]
            drawn.append((np.array(x), np.array(y), name, style))
    every = np.concatenate([heights for _, heights, *_ in drawn] or [np.zeros(0)])
    positive = every[np.isfinite(every) & (every > 0)]
    power = power and positive.size > 0 and positive.max() > 3 * positive.min()
    zeros = power and bool((every <= 0).any())
    floor = positive.min() / 3 if power else 0.0
    for places, heights, name, style in drawn:
        kept = np.where(heights <= 0, floor, heights) if power else heights
        axes.plot(places, kept, style, color=looks[name].color, linewidth=1.1)
    if power:
        axes.set_yscale("log")
        if np.log10(positive.max() / positive.min()) < 2.5:  # too few powers of ten to read by
            axes.yaxis.set_major_locator(LogLocator(subs=(1, 2, 5)))
        axes.yaxis.set_major_formatter(lambda value, _: f"{value:.0e}" if value else "0")
        axes.yaxis.set_minor_formatter(lambda value, _: "")
        if zeros:
            axes.set_ylim(bottom=floor * 0.8)
    return zeros
