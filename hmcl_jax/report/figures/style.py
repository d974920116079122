"""Style of all figures: colours and markers of methods, fonts, labels, files.

Text, axes and rules are drawn in one colour, :data:`INK`, in greys by its opacity alone, so that a
figure within a page can take the page's own colour of text.
"""

import contextlib
import os
import re
import warnings
import zlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from hmcl_jax import _files
from hmcl_jax._extras import require

INK = "#1c1e21"
WIDTH = 7.2  # inches; at 96 dots per inch, 700 pixels
LINE = 110  # characters of small type in that width
ENDINGS = (".png", ".pdf", ".svg")
Paths = str | os.PathLike[str] | Sequence[str | os.PathLike[str]]

# After Okabe and Ito, then darker and lighter ones; all are seen on white and on black.
COLOURS = (
    *("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9"),
    *("#8C8C8C", "#A6761D", "#B0A000", "#9467BD", "#E7298A", "#E31A1C"),
)
MINUS = "\N{MINUS SIGN}"
MARKERS = "osD^vP<X>*ph"
MARKER_STEP = 5  # from one user of a colour to the next; it meets all twelve markers
SHADES = (0.0, -0.4, 0.4)  # of a colour that several have
# The paper's grey, blue and green for its three methods; colours apart from them for the others.
OWN = (
    *("hmcl_mr", "hmcl_rotation", "hmcl_ca", "dns", "nullspace", "ewc"),
    *("vanilla", "agem", "gem", "cflat", "derpp", "joint"),
)
STYLE = Path(__file__).with_name("hmcl.mplstyle")


def pyplot() -> Any:
    """matplotlib.pyplot, set up for drawing into files."""
    plt = require("matplotlib.pyplot", "report")
    plt.switch_backend("Agg")
    return plt


class Look(NamedTuple):
    """How a method is drawn: the colour of lines and areas, and the marker of points."""

    color: str
    marker: str


def looks(methods: Iterable[str]) -> dict[str, Look]:
    """Colours and markers, the same for a method in all figures.

    Methods of the library have a colour of their own, also in a folder, ``"folder/vanilla"``;
    others take one by their name, or the next that is free. Those that share a colour have it
    darker and lighter, with other markers; looks repeat beyond three times twelve methods.
    """
    names = list(dict.fromkeys(methods))
    count = len(COLOURS)
    taken = {name: OWN.index(name) for name in names if name in OWN}
    for name in (name for name in names if name not in taken):
        own = name.rpartition("/")[2]
        wished = zlib.crc32(name.encode("utf8", "replace")) % count
        free = sorted(range(count), key=lambda i: (i - wished) % count)
        used = list(taken.values())
        taken[name] = OWN.index(own) if own in OWN else min(free, key=used.count)
    by_name, turns = {}, [0] * count
    for name, index in taken.items():
        marker = MARKERS[(index + turns[index] * MARKER_STEP) % len(MARKERS)]
        colour = _shade(COLOURS[index], SHADES[turns[index] % len(SHADES)])
        by_name[name] = Look(colour, marker)
        turns[index] += 1
    return {name: by_name[name] for name in names}


def _shade(colour: str, share: float) -> str:
    """A colour mixed with white, or with black if the share is below 0."""
    channels = (int(colour[i : i + 2], 16) for i in (1, 3, 5))
    aim = 255 if share > 0 else 0
    return "#" + "".join(f"{round(c + abs(share) * (aim - c)):02X}" for c in channels)


def short(name: str, limit: int = 24) -> str:
    """A name in one line that every file can hold, cut after `limit` characters."""
    line = re.sub(r"[\x00-\x1f\x7f-\x9f\u2028\u2029\ud800-\udfff\ufffe\uffff]", " ", str(name))
    line = " ".join(line.split()) or "(no name)"
    return line if len(line) <= limit else line[: limit - 1] + "…"


@contextlib.contextmanager
def sheet(paths: Paths) -> Iterator[Any]:
    """matplotlib.pyplot in the style of all figures; saves the current figure at the end.

    Unknown endings are refused before anything is drawn.
    """
    files = [Path(path) for path in ([paths] if isinstance(paths, str | os.PathLike) else paths)]
    if wrong := [str(path) for path in files if path.suffix.lower() not in ENDINGS]:
        raise ValueError(f"path must end in {', '.join(ENDINGS)}, got {wrong[0]!r}.")
    plt = pyplot()
    before = set(plt.get_fignums())  # the caller's, which stay open
    with plt.rc_context(), warnings.catch_warnings():
        plt.style.use(["default", STYLE])
        # A font without an emoji draws a box; text that stays text may still find its glyph.
        warnings.filterwarnings("ignore", message=r"Glyph \d+ .* missing from")
        warnings.filterwarnings("ignore", message=r"Matplotlib currently does not support .*")
        try:
            yield plt
            save(plt.gcf(), files)
        finally:
            for number in set(plt.get_fignums()) - before:
                plt.close(number)


def save(figure: Any, files: Sequence[Path]) -> None:
    """Saves a figure in several formats, each file whole or not at all.

    The same figure gives the same bytes: no file holds a date. SVG files keep text as text and have
    no background.
    """
    title = short(figure.get_suptitle() or "figure", 300)
    metadata: dict[str, dict[str, str | None]] = {
        "svg": {"Date": None, "Creator": None, "Title": title},
        "pdf": {"CreationDate": None, "Producer": None, "Creator": None},
        "png": {"Software": None},
    }
    for path in files:
        kind = path.suffix.lower()[1:]
        dpi, paper = (100, "none") if kind == "svg" else (150, "white")  # of rasterised parts
        about = metadata[kind]
        with _files.whole_file(path) as partial:
            figure.savefig(partial, format=kind, dpi=dpi, facecolor=paper, metadata=about)


def legend(figure: Any, known: Mapping[str, Look], others: Sequence[Any] = ()) -> None:
    """One legend below all panels: methods in their looks, then other handles."""
    from matplotlib.lines import Line2D

    handles = [
        Line2D([], [], color=look.color, marker=look.marker, markersize=4, label=short(name))
        for name, look in known.items()
    ]
    handles += others
    figure.legend(handles=handles, loc="outside lower center", ncols=min(5, len(handles)))


def side_legend(axes: Any) -> None:
    """A legend to the right of a panel."""
    axes.legend(fontsize=8, frameon=False, loc="center left", bbox_to_anchor=(1.0, 0.5))


def rules(axes: Any, axis: str = "x") -> None:
    """Thin lines at the ticks, behind everything."""
    axes.grid(axis=axis, color=INK, alpha=0.13, linewidth=0.5)
    axes.set_axisbelow(True)


def name_rows(axes: Any, names: Sequence[str]) -> None:
    """Names rows from the top, the first at 0."""
    axes.set_yticks(range(len(names)), names)
    axes.set_ylim(len(names) - 0.4, -0.6)


def beside_row(axes: Any, row: int, text: str, x: float = 1.01, size: float = 6.5) -> None:
    """Writes a number to the right of a row."""
    where = axes.get_yaxis_transform()
    axes.text(x, row, text.replace("-", MINUS), transform=where, va="center", fontsize=size)


def grid(
    plt: Any, panels: int, across: int, size: tuple[float, float], extra: float = 0.6, **more: Any
) -> Any:
    """A figure with some panels, at most `across` side by side; their axes, and how many are.

    The size in inches is that of the whole across, of one row of panels down; `extra` is for titles
    and legends. Further settings are those of ``subplots``.
    """
    # Four panels stand better as two by two than as three and one.
    across = 2 if panels == 4 and across == 3 else min(across, panels)
    down = -(-panels // across)
    figure, axes = plt.subplots(
        *(down, across),
        figsize=(size[0], size[1] * down + extra),
        layout="constrained",
        squeeze=False,
        **more,
    )
    for spare in axes.flat[panels:]:
        spare.remove()
    return figure, list(axes.flat[:panels]), across


def colour_bar(figure: Any, panels: Sequence[Any], scale: Any, shrink: float, **more: Any) -> Any:
    """A colour bar without a frame below all panels."""
    bar = figure.colorbar(
        scale, ax=panels, location="bottom", aspect=50, shrink=shrink, pad=0.02, **more
    )
    bar.outline.set_visible(False)
    return bar
