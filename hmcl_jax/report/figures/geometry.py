"""Figures of the geometry: drift, norms, class trees in the plane, radius by depth."""

import textwrap
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from hmcl_jax.evaluation import Drift
from hmcl_jax.evaluation.hierarchy import RadiusByDepth
from hmcl_jax.evaluation.radial_tree import RadialTree
from hmcl_jax.evaluation.statistics import seed_mean, seed_std
from hmcl_jax.report.figures import style
from hmcl_jax.report.figures.style import INK, WIDTH, Look, Paths, short

LABEL = 22  # characters of a method's name beside its row
FEW = 4  # methods that can be told apart within the row of a task
AXES = {
    "radial": "Radial\n|change of time component|",
    "angular": "Angular\n|change of cosines|\nwithin a modality",
    "cross_modal": "Cross-modal\n|change of cosines|\nbetween modalities",
    "paired_distance": "Paired distance\n|change of\nLorentz distance|",
}


def draw_drift(drift: Drift, path: Paths, against: str = "vanilla") -> None:
    """Draws the four measures of drift: every old task, and the mean of every method.

    With more than four methods the tasks are not named: each is a dot in the row of its method.
    Without the method to compare with in `drift`, no reduction is written.
    """
    looks = style.looks(drift.methods)
    few = len(looks) <= FEW
    heights = [0.19 * len(drift.tasks) + 0.01, 0.21 * len(looks) + 0.1][-2 if few else -1 :]
    with style.sheet(path) as plt:
        size, extra = (WIDTH, 0), sum(heights) + (1.5 if few else 1.51)
        shared = {"sharey": "row", "sharex": "col", "height_ratios": heights}
        figure, panels, _ = style.grid(plt, 4 * len(heights), 4, size, extra, **shared)
        most = max(map(len, (*drift.tasks, *drift.methods)))  # long names leave little room
        for measure, (axes, label) in enumerate(zip(panels[-4:], AXES.values(), strict=True)):
            if few:
                _task_rows(panels[measure], drift, measure, looks)
            _method_rows(axes, drift, measure, looks, against)
            axes.set_xlabel(label, fontsize=7)
            axes.set_xlim(left=0)
            axes.locator_params(axis="x", nbins=3 if most < 20 else 2)
        for axes in panels:
            style.rules(axes)
            axes.tick_params(axis="y", length=0)
        style.name_rows(panels[-4], [short(name, LABEL) for name in looks])
        if few:
            marks = [" (R)" if kind == "retrieval" else "" for kind in drift.kinds]
            names = [f"{short(n)}{mark}" for n, mark in zip(drift.tasks, marks, strict=True)]
            style.name_rows(panels[0], names)
            style.legend(figure, looks)
        else:
            ink: dict[str, Any] = {"color": INK, "linestyle": ""}
            dot = plt.Line2D([], [], marker=".", alpha=0.5, label="one old task", **ink)
            mean = plt.Line2D([], [], marker="o", label="mean of the old tasks", **ink)
            style.legend(figure, {}, [dot, mean])
        title = "Drift from the end of each task to the end of the stream; lower is better"
        if against in looks:
            title += f"\n(percent: change of the mean against {short(against)})"
        figure.suptitle(title)


def _task_rows(axes: Any, drift: Drift, measure: int, looks: Mapping[str, Look]) -> None:
    for index, look in enumerate(looks.values()):
        values = drift.values[index, :, :, measure]
        rows = np.arange(len(drift.tasks)) + (index - (len(looks) - 1) / 2) * 0.6 / len(looks)
        marks = {"linestyle": "", "markersize": 3.5, "elinewidth": 0.7, **look._asdict()}
        axes.errorbar(seed_mean(values, 0), rows, xerr=seed_std(values, axis=0), **marks)
    for row, kind in enumerate(drift.kinds):
        if kind == "retrieval":
            axes.axhspan(row - 0.5, row + 0.5, color=INK, alpha=0.07, linewidth=0, zorder=0)


def _method_rows(
    axes: Any, drift: Drift, measure: int, looks: Mapping[str, Look], against: str
) -> None:
    mean = drift.mean()[..., measure]
    cut = seed_mean(drift.reduction(against)[..., measure], 1) if against in looks else None
    edge = {"markersize": 6, "capsize": 2, "markeredgecolor": INK, "markeredgewidth": 0.6}
    for row, (name, look) in enumerate(looks.items()):
        tasks = seed_mean(drift.values[row, :, :, measure], 0)
        axes.plot(tasks, np.full(len(tasks), row), ".", color=look.color, alpha=0.45, markersize=4)
        middle, error = seed_mean(mean[row]), float(seed_std(mean[row]))
        axes.errorbar(middle, row, xerr=error, **edge, **look._asdict())
        if cut is not None and name != against and np.isfinite(cut[row]):
            style.beside_row(axes, row, f"{-100 * cut[row]:+.0f} %", x=1.0)


def draw_norms(drift: Drift, path: Paths) -> None:
    """Draws how the norms of old anchors changed: distributions of final over task-end norm."""
    looks = style.looks(drift.methods)
    with style.sheet(path) as plt:
        size, shared = (WIDTH, 0.5 + 0.32 * len(looks)), {"sharex": True, "sharey": True}
        figure, panels, _ = style.grid(plt, len(drift.norms), 3, size, 0.9, **shared)
        known = [norms.ratios[np.isfinite(norms.ratios)] for norms in drift.norms.values()]
        low, high = np.quantile(np.concatenate([*known, np.ones(1)]), [0.001, 0.999])
        room = max(0.02, 0.05 * (high - low))
        low, high = min(low, 1) - room, max(high, 1) + room
        edges = np.linspace(low, high, 101)
        middles = (edges[1:] + edges[:-1]) / 2
        for axes, (modality, norms) in zip(panels, drift.norms.items(), strict=True):
            for row, look in enumerate(looks.values()):
                ratios = norms.ratios[row].reshape(-1)
                ratios = ratios[np.isfinite(ratios)]
                if not ratios.size:
                    continue
                heights = np.histogram(np.clip(ratios, low, high), edges)[0].astype(float)
                # A Hann window smooths the counts, which are few in the tails.
                heights = np.convolve(heights, np.hanning(7) / np.hanning(7).sum(), "same")
                half = 0.42 * heights / heights.max()
                band = (middles, row - half, row + half)
                axes.fill_between(*band, color=look.color, alpha=0.75, linewidth=0)
                median = float(seed_mean(norms.contraction()[row]))
                axes.plot([median] * 2, [row - 0.3, row + 0.3], color=INK, linewidth=1.2)
                style.beside_row(axes, row, f"{median:.4f}", size=7)
            axes.axvline(1, color=INK, linewidth=0.8, linestyle=":")
            axes.set_title(f"{short(modality)} (at the right: median)")
            axes.yaxis.set_tick_params(length=0)
            axes.tick_params(labelbottom=True)
            style.rules(axes)
        panels[0].set_xlim(low, high)
        style.name_rows(panels[0], [short(name, LABEL) for name in drift.methods])
        figure.supxlabel("Euclidean norm at the end of the stream / at the end of the task", size=8)
        figure.suptitle(
            "Norms of the anchors of all old tasks and seeds: below 1 is contraction\n"
            "(smoothed histograms, beyond 0.1 % at either end put at the edge)"
        )


def draw_radial_tree(tree: RadialTree, path: Paths, title: str) -> None:
    """Draws a class tree in the plane for every method, at the end of its task and finally."""
    radii = np.concatenate([tree.before[..., 1].ravel(), tree.after[..., 1].ravel()])
    low, high = float(radii.min()), float(radii.max())
    inner = max(0.0, low - 0.4 * (high - low)) if low > 0.4 * high else 0.0
    width = high - inner or 1.0
    with style.sheet(path) as plt:
        from matplotlib.ticker import MaxNLocator

        height = 2.45 if len(tree.methods) > 1 else 4.2
        figure, panels, _ = style.grid(plt, len(tree.methods), 3, (WIDTH, height), 1.4)
        scale = plt.Normalize(tree.depths.min(), max(tree.depths.max(), tree.depths.min() + 1))
        ticks = np.asarray(MaxNLocator(4).tick_values(inner, high))
        rings = ticks[(ticks > inner + 0.1 * width) & (ticks <= high)]
        crowded = len(tree.names) > 60
        for index, (axes, name) in enumerate(zip(panels, tree.methods, strict=True)):
            first, last = (_plane(side[index], inner) for side in (tree.before, tree.after))
            for ring in rings:
                circle = plt.Circle((0, 0), ring - inner, fill=False, ec=INK, lw=0.5, alpha=0.25)
                axes.add_patch(circle)
                where = {"ha": "center", "va": "bottom", "zorder": 5}
                axes.text(0, ring - inner, f"{ring:.3g}", fontsize=6, alpha=0.75, **where)
            children = np.flatnonzero(tree.parents >= 0)
            parents = tree.parents[children]
            _lines(axes, last[children], last[parents], linewidth=0.6, alpha=0.3, color=INK)
            _lines(axes, first, last, linewidth=0.7, alpha=0.8, color="#E69F00")
            if not crowded:
                axes.plot(*first.T, "o", mfc="none", mec=INK, mew=0.4, markersize=2.5, alpha=0.6)
            for depth in np.unique(tree.depths):
                colour = plt.get_cmap("viridis")(scale(depth))
                size = 2.5 if crowded else 4
                axes.plot(*last[tree.depths == depth].T, "o", color=colour, mew=0, markersize=size)
            radial, pair = 100 * tree.radial_change[index], 100 * tree.pair_change[index]
            heading = f"{short(name)}\nrad. {radial:.1f} %   pair. {pair:.1f} %"
            axes.set_title(heading, fontsize=7.5)
            edge = 1.05 * width
            axes.set(xlim=(-edge, edge), ylim=(-edge, edge), aspect="equal")
            axes.axis("off")
        _names(panels[0], _plane(tree.after[0], inner), tree, width, 10 if crowded else 40)
        bar = style.colour_bar(figure, panels, plt.cm.ScalarMappable(scale, "viridis"), 0.6)
        bar.set_ticks(np.unique(tree.depths))
        start = "free ends of lines" if crowded else "hollow"
        bar.set_label(
            f"depth in the class tree. Dots: end of the stream; {start}: end of the task; orange: "
            "the way between.\n"
            f"Rings: distance from the origin (the centre is {inner:.3g}). Angle: in one "
            "projection, its changes as in full dimension.\nrad., pair.: mean absolute change of "
            "radius and of pairwise distance, over their means, in full dimension.",
            fontsize=7,
        )
        heading = "Class tree, aligned with the task's end by a proper rotation"
        figure.suptitle(f"{heading}\n{short(title, 60)}")


def _plane(polar: np.ndarray, inner: float) -> np.ndarray:
    angle, radius = polar.T
    return (radius - inner)[:, None] * np.stack([np.cos(angle), np.sin(angle)], axis=1)


def _lines(axes: Any, first: np.ndarray, last: np.ndarray, **look: Any) -> None:
    """Many lines as one with gaps, which keeps files small."""
    ends = np.stack([first, last, np.full(first.shape, np.nan)], axis=1)
    axes.plot(*ends.reshape(-1, 2).T, zorder=1, **look)


def _names(axes: Any, points: np.ndarray, tree: RadialTree, width: float, most: int) -> None:
    """Names points at the top of the tree, as far as names do not cover each other."""
    taken: list[tuple[float, float]] = []
    for i in np.argsort(tree.depths, kind="stable")[:most]:
        x, y = points[i]
        if all(abs(x - a) > 0.75 * width or abs(y - b) > 0.13 * width for a, b in taken):
            taken.append((x, y))
            side, gap = ("left", 3) if x < 0 else ("right", -3)
            place = {"xytext": (gap, 3), "textcoords": "offset points", "ha": side}
            axes.annotate(short(tree.names[i], 14), (x, y), fontsize=5.5, **place)


def draw_depth(methods: Sequence[str], radius: RadiusByDepth, path: Paths, title: str) -> None:
    """Draws mean radius at every depth of a class tree, at the end of its task and finally.

    `radius` has leading axes ``(methods, seeds, 2)``.
    """
    first: dict[str, Any] = {"color": INK, "linestyle": "--", "alpha": 0.7}
    with style.sheet(path) as plt:
        shared = {"sharex": True, "sharey": True}
        figure, panels, across = style.grid(plt, len(methods), 3, (WIDTH, 1.65), 0.95, **shared)
        looks = style.looks(methods).items()
        for index, (axes, (name, look)) in enumerate(zip(panels, looks, strict=True)):
            for end, shown in enumerate((first, {"markersize": 4, **look._asdict()})):
                means = radius.means[index, :, end]
                middle, error = seed_mean(means, 0), seed_std(means, axis=0)
                axes.errorbar(radius.depths, middle, yerr=error, elinewidth=0.7, **shown)
            means = seed_mean(np.asarray(radius.correlation)[index], 0)
            rho = ["none" if np.isnan(mean) else f"{mean:.2f}" for mean in means]
            change = " → ".join(rho).replace("-", style.MINUS)
            axes.set_title(f"{short(name)}\nrank correlation {change}", fontsize=7)
            axes.tick_params(labelbottom=True)
            axes.set_xticks(radius.depths)
            style.rules(axes, "y")
            if index % across == 0:
                axes.set_ylabel("mean radius", fontsize=7)
        for axes in panels[-across:]:
            axes.set_xlabel("depth in the class tree", fontsize=7)
        pairs = zip(radius.depths, radius.counts, strict=True)
        counts = ", ".join(f"{depth}:\N{NO-BREAK SPACE}{count}" for depth, count in pairs)
        note = f"rank correlation of radius with depth: task end → final; names by depth: {counts}"
        before = plt.Line2D([], [], label="end of the task", **first)
        after = plt.Line2D([], [], color=INK, marker="o", markersize=4, label="end of the stream")
        style.legend(figure, {}, [before, after])
        heading = f"Distance from the origin by depth: {short(title, 30)}"
        heading += " (mean over seeds ± standard deviation)"
        figure.suptitle(f"{heading}\n{textwrap.fill(note, style.LINE)}", fontsize=8)
