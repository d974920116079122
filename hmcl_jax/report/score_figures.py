"""Figures of scores: change from stage to stage, methods side by side, fine-grained retrieval."""

import dataclasses
import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from hmcl_jax.report import canvas
from hmcl_jax.report.canvas import INK, WIDTH, Paths, shown
from hmcl_jax.report.results import COLUMNS

DEPTHS = (1, 5, 10)
DIRECTIONS = ("general_to_specific", "specific_to_general")


def draw_stages(
    change: np.ndarray,
    tasks: Sequence[str],
    kinds: Sequence[str],
    methods: Sequence[str],
    path: Paths,
) -> None:
    """Draws heat maps of what became of every task's score at every later stage.

    Rows are tasks and columns the stages of the stream. Red is worse than right after learning the
    task, blue better, on one scale for all methods; it ends where 98 % of all changes do.

    Args:
      change: of :func:`hmcl_jax.evaluation.relative_change`, ``(methods, T, T)``: of one seed, or
        the mean over seeds.
      tasks: their T names, in the order of the stream.
      kinds: of the tasks; those of kind ``"retrieval"`` are marked (R).
      methods: names.
      path: of the picture, or several; the ending says the format.
    """
    change = np.asarray(change, np.float64)
    T = len(tasks)
    if change.shape != (len(methods), T, T) or not change.size or len(kinds) != T:
        raise ValueError(
            f"change must have shape ({len(methods)}, {T}, {T}) for {len(methods)} methods and "
            f"{T} tasks with {len(kinds)} kinds, got shape {change.shape}."
        )
    limit, clipped = _limit(change)
    seen = np.tri(T, dtype=bool)
    with canvas.sheet(path) as plt:
        from matplotlib.patches import Rectangle

        side = 2.0 if len(methods) > 1 else 3.4
        width = WIDTH if len(methods) > 1 else 5.2
        figure, panels, across = canvas.grid(
            *(plt, len(methods), 3, (width, side + 0.2), 1.1), sharex=True, sharey=True
        )
        scale = plt.Normalize(-limit, limit)
        colours = plt.get_cmap("RdBu")
        labels = [
            f"{shown(name, 18)}{' (R)' if kind == 'retrieval' else ''} {i}"
            for i, (name, kind) in enumerate(zip(tasks, kinds, strict=True), 1)
        ]
        unknown = False
        for axes, name, values in zip(panels, methods, change, strict=True):
            cells = colours(scale(np.where(np.isnan(values), 0, values)))
            cells[np.isnan(values)] = (0.5, 0.5, 0.5, 0.45)
            cells[~seen] = (0.5, 0.5, 0.5, 0.22)
            axes.imshow(cells.swapaxes(0, 1), aspect="equal")
            for t, i in np.argwhere(np.isnan(values) & seen):
                unknown = True
                place = (t - 0.5, i - 0.5)
                axes.add_patch(Rectangle(place, 1, 1, fill=False, hatch="/////", linewidth=0))
            for t in range(T):
                axes.add_patch(Rectangle((t - 0.5, t - 0.5), 1, 1, fill=False, lw=0.6, ec=INK))
            axes.add_patch(Rectangle((T - 1.5, -0.5), 1, T, fill=False, lw=1.1, ec=INK))
            axes.set_title(shown(name))
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
        canvas.save(figure, path)


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
    _some("figures", figures)
    for column in columns:
        if column not in COLUMNS:
            raise ValueError(f"columns must be among {', '.join(COLUMNS)}, got {column!r}.")
    methods = list(figures)
    looks = canvas.looks(methods)
    with canvas.sheet(path) as plt:
        size = (WIDTH, 0.55 + 0.22 * len(methods))
        figure, panels, _ = canvas.grid(plt, len(columns), len(columns), size, sharey=True)
        for axes, column in zip(panels, columns, strict=True):
            for row, name in enumerate(methods):
                values = np.asarray(figures[name][column], np.float64)
                middle, error = values.mean(), float(canvas.spread(values))
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
                    *(1.01, row, text.replace("-", canvas.MINUS)),
                    transform=axes.get_yaxis_transform(),
                    va="center",
                    fontsize=6.5,
                )
            axes.locator_params(axis="x", nbins=5)
            if column.startswith("BWT"):
                axes.axvline(0, color=INK, linewidth=0.7)
            percent = "percentage points" if column.startswith("BWT") else "%"
            axes.set_title(f"{column} ({percent}), higher is better")
            canvas.rules(axes)
        panels[0].set_yticks(range(len(methods)), [shown(name) for name in methods])
        panels[0].set_ylim(len(methods) - 0.4, -0.6)
        figure.suptitle("Methods: mean and sample standard deviation over seeds")
        note = "; ".join(f"{column}: {COLUMNS[column]}" for column in columns)
        figure.supxlabel(canvas.wrapped(note), fontsize=7)
        canvas.save(figure, path)


def _some(name: str, held: Mapping[str, Any]) -> None:
    if not held:
        raise ValueError(f"{name} must hold at least one method, got none.")


@dataclasses.dataclass(frozen=True)
class Retrieval:
    """Fine-grained scores of the retrieval tasks of a stream under one method.

    Attributes:
      tasks: names.
      final: R@1, R@5 and R@10 after the last task in percent, ``(tasks, 2, 3, seeds)``: text
        to sample and sample to text.
      immediate: the same right after each task.
    """

    tasks: tuple[str, ...]
    final: np.ndarray
    immediate: np.ndarray


def retrieval_scores(
    details: Sequence[Sequence[Mapping[str, Sequence[float]]]],
    tasks: Sequence[str],
    kinds: Sequence[str],
) -> Retrieval:
    """Fine-grained scores of the retrieval tasks, from what a run has kept.

    Args:
      details: ``details[t][i][measure]``, a list over seeds, as in
        :class:`hmcl_jax.continual.StreamResult` and ``results.json``.
      tasks: names in the order of the stream.
      kinds: of the tasks.

    Returns:
      A :class:`Retrieval`, without tasks if the stream has none of that kind.

    Example:
      >>> from hmcl_jax.report.score_figures import retrieval_scores
      >>> names = [f"{way}_to_{back}_r{k}" for way, back in (("general", "specific"),
      ...     ("specific", "general")) for k in (1, 5, 10)]
      >>> found = retrieval_scores([[dict.fromkeys(names, [0.25, 0.75])]], ["a"], ["retrieval"])
      >>> print(found.tasks, found.final.shape, found.final.mean())
      ('a',) (1, 2, 3, 2) 50.0
    """
    chosen = [i for i, kind in enumerate(kinds) if kind == "retrieval"]
    if len(details) != len(tasks) or len(kinds) != len(tasks):
        raise ValueError(
            f"details must have an entry for each of {len(tasks)} tasks and {len(kinds)} kinds, "
            f"got {len(details)}; finish the run."
        )

    def table(stage: int, task: int) -> list:
        held = details[stage][task]
        return [[held[f"{way}_r{k}"] for k in DEPTHS] for way in DIRECTIONS]

    seeds = len(details[0][0]["score"]) if not chosen else -1
    shape = (len(chosen), len(DIRECTIONS), len(DEPTHS), seeds)
    final = np.array([table(-1, i) for i in chosen], np.float64).reshape(shape)
    immediate = np.array([table(i, i) for i in chosen], np.float64).reshape(shape)
    return Retrieval(tuple(tasks[i] for i in chosen), 100 * final, 100 * immediate)


def draw_retrieval(
    scores: Mapping[str, Retrieval],
    path: Paths,
    sides: tuple[str, str] = ("text", "sample"),
) -> None:
    """Draws R@1, R@5 and R@10 in both directions of every retrieval task.

    Args:
      scores: by method, of :func:`retrieval_scores`.
      path: of the picture, or several; the ending says the format.
      sides: what the general and the specific modality are called.
    """
    _some("scores", scores)
    methods = list(scores)
    looks = canvas.looks(methods)
    tasks = scores[methods[0]].tasks
    if not tasks or any(held.tasks != tasks for held in scores.values()):
        raise ValueError(
            "scores must be of the same retrieval tasks, at least one, got "
            f"{ {name: held.tasks for name, held in scores.items()} }."
        )
    ways = (f"{shown(sides[0])} to {shown(sides[1])}", f"{shown(sides[1])} to {shown(sides[0])}")
    with canvas.sheet(path) as plt:
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
        for (task, way), panel in np.ndenumerate(axes):
            learned, errors = [], []
            for number, name in enumerate(methods):
                values = scores[name].final[task, way]
                middle, error = values.mean(axis=-1), canvas.spread(values)
                x = np.arange(len(DEPTHS)) + (number - (len(methods) - 1) / 2) * wide
                left, right = x - wide * 0.45, x + wide * 0.45
                # One path for all bars of a method keeps the file small, and so do gaps in lines.
                bars = [
                    np.array([(l, 0), (r, 0), (r, m), (l, m), (l, 0)])
                    for l, r, m in zip(left, right, middle, strict=True)
                ]
                shape = Path.make_compound_path(*(Path(v, closed=True) for v in bars))
                panel.add_patch(PathPatch(shape, color=looks[name].color, linewidth=0))
                errors.append((x, x, middle - error, middle + error))
                height = scores[name].immediate[task, way].mean(axis=-1)
                learned.append((left, right, height, height))
            for lines, thick in ((errors, 0.7), (learned, 1.1)):
                left, right, low, high = np.concatenate(lines, axis=-1)
                _segments(panel, (left, right), (low, high), thick)
            canvas.rules(panel, "y")
            panel.tick_params(axis="x", length=0)
            panel.set_xticks(range(len(DEPTHS)), [f"R@{k}" for k in DEPTHS])
            if not way:
                panel.set_ylabel("%")
            panel.set_title(f"{shown(tasks[task])}: {ways[way]}", fontsize=7.5, loc="left", pad=2)
        for row in axes:  # its panels share their scale
            row[0].set_ylim(0, 1.06 * max(panel.dataLim.y1 for panel in row))
        handles = [Patch(color=look.color, label=shown(name)) for name, look in looks.items()]
        handles.append(plt.Line2D([], [], color=INK, label="right after its task"))
        canvas.keys(figure, handles)
        figure.suptitle(
            "Retrieval after the last task: recall at 1, 5 and 10, mean over seeds "
            "± sample standard deviation"
        )
        canvas.save(figure, path)


def _segments(axes: Any, x: Sequence[np.ndarray], y: Sequence[np.ndarray], width: float) -> None:
    """Many lines in ink as one, each from ``(x[0], y[0])`` to ``(x[1], y[1])``."""
    gap = np.full(len(x[0]), np.nan)
    ends = (np.stack([*side, gap], axis=1).reshape(-1) for side in (x, y))
    axes.plot(*ends, color=INK, linewidth=width, solid_capstyle="butt")
