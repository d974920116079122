"""One self-contained HTML page: no network, no fonts from elsewhere, opens by double click.

All markup is in ``templates/report.html.j2``, where text is escaped; scripts and styles are beside
it. Without scripts the page can still be read. This module computes the values that the template
inserts: sort keys, colours, captions, and which parts are left out of a page that is too large.
"""

import base64
import dataclasses
import functools
import hashlib
import json
import re
from collections.abc import Callable, Mapping, Sequence
from importlib import resources
from typing import Any

import numpy as np

from hmcl_jax._extras import require
from hmcl_jax.evaluation import bonferroni, relative_change
from hmcl_jax.evaluation.drift import MEASURES
from hmcl_jax.evaluation.statistics import seed_mean
from hmcl_jax.report.analyse import Analysis, compared_with
from hmcl_jax.report.figures.style import INK
from hmcl_jax.report.hierarchy import WHEN
from hmcl_jax.report.results import SavedResults, columns, mean_std
from hmcl_jax.report.tables import all_tables, p_value
from hmcl_jax.report.traversals import Start

LARGEST = 5_000_000  # bytes of a page
SECTIONS = (
    *("summary", "methods", "stages", "drift", "norms", "hierarchy", "retrieval", "training"),
    *("traversals", "settings", "provenance", "conventions"),
)
UPPER_BOUND = "joint"  # trains on all tasks at once
SHORT = 26  # characters of a name that stays on one line
NUMBER = re.compile(r"[-+\u2212]?(\d++\.?+\d*+|\.\d++)(e[-+]?\d++)?+(?!\w)", re.IGNORECASE)
MINUS = re.compile(r"(?<![\w.])-(?=[\d.])")
# What no HTML file may hold: controls except tab and line feed, and halves of surrogate pairs.
FORBIDDEN = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\ud800-\udfff\ufffe\uffff]")
PICTURES = {b"\xff\xd8\xff": "image/jpeg", b"\x89PNG": "image/png", b"<?xml": "image/svg+xml"}
INKS = ":root{color:#1d2126}@media(prefers-color-scheme:dark){:root{color:#e4e7eb}}"  # of drawings
LEVELS = 12  # of colour, on either side of 0


def _asset(name: str) -> str:
    return resources.files("hmcl_jax.report").joinpath("templates", name).read_text("utf8")


@functools.cache
def macros() -> Any:
    """The macros of the template; each returns HTML and escapes text that is not HTML yet."""
    jinja2 = require("jinja2", "report")
    environment = jinja2.Environment(
        autoescape=True, trim_blocks=True, lstrip_blocks=True, undefined=jinja2.StrictUndefined
    )
    environment.filters |= {
        "minus": true_minus,
        "pretty": lambda value: json.dumps(value, indent=1, ensure_ascii=False),
    }
    return environment.from_string(_asset("report.html.j2")).module


def document(title: str, lead: str, sections: Sequence[tuple[str, Sequence[Any]]]) -> str:
    """A page with a table of contents, light and dark.

    Args:
      title: of the page.
      lead: the first sentences.
      sections: title and parts of each: text, or HTML of :func:`macros`; None is left out.

    Returns:
      The page.

    Example:
      >>> from hmcl_jax.report.page import document
      >>> page = document("Results", "Means.", [("Scores <all>", ["Higher is better."])])
      >>> print(page[:15], "Scores &lt;all&gt;" in page, 'href="#scores-all"' in page)
      <!doctype html> True True
    """
    listed: list[dict[str, Any]] = []
    for name, parts in sections:
        base = anchor = re.sub(r"[^a-z0-9]+", "-", name.lower()).strip("-") or "section"
        taken = {section["anchor"] for section in listed}
        number = 2
        while anchor in taken:
            anchor, number = f"{base}-{number}", number + 1
        shown = [part for part in parts if part is not None]
        listed.append({"title": name, "anchor": anchor, "parts": shown})
    script = _asset("page.js")
    digest = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
    # Of scripts ours alone may run. Styles in attributes have no hashes.
    policy = (
        f"default-src 'none'; script-src 'sha256-{digest}'; style-src 'unsafe-inline'; "
        "img-src data:; base-uri 'none'; form-action 'none'"
    )
    page = macros().document(title, lead, listed, _asset("page.css"), script, policy).lstrip()
    return FORBIDDEN.sub("\ufffd", page.replace("\r\n", "\n").replace("\r", "\n"))


def leading_number(text: str) -> float | None:
    """The number that a cell starts with, by which its column is sorted.

    Example:
      >>> from hmcl_jax.report.page import leading_number
      >>> print(leading_number("-5.07 ± 0.20"), leading_number("12.5 %"), leading_number("3rd"))
      -5.07 12.5 None
    """
    match = NUMBER.match(text.strip())
    return float(match[0].replace("\u2212", "-")) if match else None


def true_minus(text: str) -> str:
    """Text whose negative numbers have a minus sign, not a hyphen."""
    return MINUS.sub("\u2212", text)


def signed(value: float, digits: int) -> str:
    """A number with its sign, a true minus, and no sign for 0."""
    text = f"{abs(value):.{digits}f}"
    if not float(text):
        return text
    return ("\u2212" if value < 0 else "+") + text


def table(
    rows: Sequence[Sequence[str]],
    caption: str,
    note: str = "",
    best: Mapping[int, Callable] | None = None,
    about: Mapping[str, str] | None = None,
) -> str:
    """A table that sorts by the column whose header is pressed.

    Args:
      rows: cells, the header first; the first column names its row.
      caption: what the table shows.
      note: units and conventions, below the table.
      best: by column, `max` or `min`: the best of its numbers is highlighted.
      about: what a column means, by header; shown as a tooltip.

    Returns:
      The HTML.

    Example:
      >>> from hmcl_jax.report.page import table
      >>> html = table([["Method", "Acc"], ["a<b", "30.99 ± 0.17"]], "Scores", "Percent.")
      >>> print('data-value="30.99"' in html, "a&lt;b" in html)
      True True
    """
    header, *body = ([str(cell) for cell in row] for row in rows)
    cells = [[(text, leading_number(text)) for text in row] for row in body]
    columns = [[row[i] for row in cells] for i in range(len(header))]
    numeric = [
        i > 0
        and any(text for text, _ in column)
        and all(value is not None for text, value in column if text)
        for i, column in enumerate(columns)
    ]
    winners = {}
    for i, choose in (best or {}).items():
        values = [value for _, value in columns[i] if value is not None]
        winners[i] = choose(values) if len(values) > 1 else None

    def cell(i: int, text: str, value: float | None) -> dict[str, Any]:
        kinds = ["short"] * (i == 0 and len(text) <= SHORT) + ["number"] * numeric[i]
        kinds += ["best"] * (i > 0 and value is not None and winners.get(i) == value)
        bracket = ""
        if i > 0 and value is not None:  # numbers stay on one line, with brackets apart
            text, bar, rest = true_minus(text).replace(" ", "\u00a0").partition("\u00a0(")
            bracket = f"({rest}" if bar else ""
        return {"main": text, "bracket": bracket, "value": value, "kind": " ".join(kinds)}

    heads = [(name, (about or {}).get(name), numeric[i]) for i, name in enumerate(header)]
    lines = [[cell(i, *content) for i, content in enumerate(row)] for row in cells]
    return macros().sortable(caption, heads, lines, note)


@dataclasses.dataclass(frozen=True)
class Scale:
    """A diverging colour scale, one for all maps that are to be compared.

    Attributes:
      limit: the value of the darkest colours; values beyond have them too.
      unit: written behind values.
      worse: what negative values mean.
      better: what positive values mean.
    """

    limit: float
    unit: str = ""
    worse: str = "worse"
    better: str = "better"

    def colour(self, value: float) -> str:
        """The name of a value's colour."""
        return _level(round(LEVELS * float(np.clip(value / self.limit, -1, 1))))

    def legend(self) -> str:
        """The colours and what they mean, as HTML."""
        return macros().legend(self, [_level(i) for i in range(-LEVELS, LEVELS + 1)])


def _level(level: int) -> str:
    return f"h{'m' if level < 0 else 'p'}{abs(level)}"


def heat_map(
    values: np.ndarray,
    names: tuple[Sequence[str], Sequence[str]],
    caption: str,
    scale: Scale,
    label: Callable[[int, int], str] | None = None,
    framed: Callable[[int, int], bool] | None = None,
) -> str:
    """Numbers as colours; hover, focus and arrow keys show them exactly.

    Args:
      values: of shape ``(rows, columns)``; NaN is an empty cell.
      names: of the rows and of the columns; numbers, from 1, stand for the columns above the map.
      caption: what it shows.
      scale: shared by maps that are to be compared.
      label: the text for a cell. Default: its row, column and value.
      framed: which cells are framed.

    Returns:
      The HTML.

    Example:
      >>> import numpy as np
      >>> from hmcl_jax.report.page import Scale, heat_map
      >>> values = np.array([[0.0, -12.34]])
      >>> html = heat_map(values, (["cats"], ["cats", "dogs"]), "Change", Scale(20.0, " %"))
      >>> print('aria-label="cats, dogs: \u221212.3 %"' in html)
      True
    """
    rows, columns = names
    values = np.asarray(values, float)
    if values.shape != (len(rows), len(columns)):
        raise ValueError(
            f"values must have shape ({len(rows)}, {len(columns)}), one row per name in names[0] "
            f"and one column per name in names[1], got shape {values.shape}."
        )
    first = next(iter(map(tuple, np.argwhere(~np.isnan(values)))), None)

    def cell(i: int, j: int) -> dict[str, Any] | None:
        if np.isnan(values[i, j]):
            return None
        text = f"{rows[i]}, {columns[j]}: {signed(values[i, j], 1)}{scale.unit}"
        return {
            "kind": scale.colour(values[i, j]) + (" framed" if framed and framed(i, j) else ""),
            "tabindex": 0 if (i, j) == first else -1,
            "label": label(i, j) if label else text,
            "text": signed(values[i, j], 0),
        }

    lines = [
        (name, "short" if len(name) <= SHORT else "", [cell(i, j) for j in range(len(columns))])
        for i, name in enumerate(rows)
    ]
    return macros().map(caption, columns, lines)


def data_uri(picture: bytes) -> str | None:
    """A JPEG, PNG or SVG file as an address that needs no network; None for anything else.

    Browsers run no scripts of a picture and load nothing for it, so an SVG may hold any text.
    """
    for start, kind in PICTURES.items():
        if picture.startswith(start):
            picture = _themed(picture) if "svg" in kind else picture
            return f"data:{kind};base64,{base64.b64encode(picture).decode()}"
    return None


def _themed(svg: bytes) -> bytes:
    """With ink that follows the page from light to dark."""
    text = re.sub(INK, "currentColor", svg.decode("utf8"), flags=re.IGNORECASE)
    return re.sub("<svg[^>]*>", rf"\g<0><style>{INKS}</style>", text, count=1).encode("utf8")


def report_page(
    analysis: Analysis, drawings: Mapping[str, bytes] | None = None, against: str = "vanilla"
) -> str:
    """The page of an analysis.

    Args:
      analysis: of :func:`hmcl_jax.report.analyse.analyse`.
      drawings: figures by name, SVG or PNG files, of :func:`hmcl_jax.report.figures.draw.draw_all`.
      against: the method that others are compared with.

    Returns:
      The page. If it would be too large, the largest figures and traversals are left out.

    Raises:
      ValueError: if it is too large even without them.
    """
    report = _Report(analysis, drawings or {}, against)
    while True:
        report.sizes.clear()
        made = [(name, getattr(macros(), name)(report)) for name in SECTIONS]
        sections = [(name.capitalize(), [html]) for name, html in made if html.strip()]
        page = document(report.title, report.lead, sections)
        size = len(page.encode("utf8", "replace"))
        if size <= LARGEST:
            return page
        if not report.sizes:
            raise ValueError(
                f"The page has {size} bytes, more than {LARGEST}; analyse fewer methods at a time."
            )
        report.left_out.add(max(report.sizes, key=lambda name: report.sizes[name]))


class _Report:
    """An analysis as the template asks for it; parts that may be left out have names and sizes."""

    measures, ends = MEASURES, [when.capitalize() for when in WHEN]
    any_table = staticmethod(table)

    def __init__(self, analysis: Analysis, drawings: Mapping[str, bytes], against: str) -> None:
        self.analysis, self.drawings = analysis, drawings
        self.against, chosen = compared_with(analysis.methods, against)
        if self.against not in analysis.methods:
            chosen = f"There is no {against} to compare with; --against names another."
        self.warnings = [*analysis.warnings, *([chosen] if chosen else [])]
        self.tables = all_tables(analysis, self.against)
        self.left_out: set[str] = set()
        self.sizes: dict[str, int] = {}
        kinds = analysis.kinds
        self.kinds = ", ".join(f"{kinds.count(kind)} {kind}" for kind in dict.fromkeys(kinds))
        logs = (log for result in analysis.results.values() for log in result.logs)
        self.logged = any("defect_after" in log for log in logs)
        self.title = f"{analysis.store.name}: what was learned, and what was kept"
        many = [len(x) for x in (analysis.methods, analysis.order, analysis.seeds)]
        self.lead = (
            f"{many[0]} method{'s' * (many[0] > 1)} on {many[1]} tasks, {many[2]} "
            f"seed{'s' * (many[2] > 1)} each. Scores, drift of the geometry, hierarchy, retrieval "
            "and traversals to the root, from the checkpoints of the runs."
        )

    def measured(self, name: str, html: str) -> str:
        self.sizes[name] = len(html)
        return html

    def table(self, name: str) -> str:
        t = self.tables[name]
        return table(t.rows, t.caption, t.note, t.best, t.about)

    def figure(self, name: str, caption: str) -> str:
        if name not in self.drawings:
            return ""
        if name in self.left_out:
            return macros().note(
                f"Left out because the page would be too large: figures/{name}.png."
            )
        source = data_uri(self.drawings[name])
        return self.measured(name, macros().picture(source, caption, caption.partition(";")[0]))

    def thumbnail(self, start: Start) -> str | None:
        return data_uri(start.thumbnail) if start.thumbnail else None

    def best(self, column: str) -> dict[str, str] | None:
        """The method with the highest mean, the upper bound left out."""
        values = {name: columns(result)[column] for name, result in self.analysis.results.items()}
        bounds = [name for name in values if name.split("/")[-1] == UPPER_BOUND]
        fair = {name: v for name, v in values.items() if name not in bounds} or values
        if not fair:
            return None
        method = max(fair, key=lambda name: float(fair[name].mean()))
        other = mean_std(values[self.against]) if self.against in values else ""
        return {
            "method": method,
            "number": mean_std(fair[method]),
            "other": "" if method == self.against else other,
            "bound": bounds[0] if bounds and len(fair) < len(values) else "",
        }

    def reduction(self) -> dict[str, str] | None:
        """The method that avoids most drift, and the largest p-value of its tests."""
        drift = self.analysis.drift
        if drift is None or self.against not in drift.methods:
            return None
        reduction = seed_mean(drift.reduction(self.against), 1)
        avoided = {
            method: values
            for method, values in zip(drift.methods, reduction, strict=True)
            if method != self.against
            and method.split("/")[-1] != UPPER_BOUND
            and np.isfinite(values).all()
        }
        if not avoided:
            return None
        method = max(avoided, key=lambda m: float(avoided[m].mean()))
        low, high = 100 * avoided[method].min(), 100 * avoided[method].max()
        tests = drift.compare(method, self.against)
        p = max(bonferroni(test.p, len(tests)) for test in tests)
        return {"method": method, "number": f"{low:.0f} to {high:.0f} %", "p": p_value(p)}

    def stages(self) -> dict[str, Any]:
        """A heat map of relative changes for each method, in one scale."""
        a = self.analysis
        means = {name: result.scores.mean(axis=0) for name, result in a.results.items()}
        changes = {name: relative_change(R).T for name, R in means.items()}  # (task, stage)
        known = [np.zeros(1), *(np.abs(c[np.isfinite(c)]) for c in changes.values())]
        limit = max(5.0, 5 * float(np.ceil(np.quantile(np.concatenate(known), 0.97) / 5)))
        scale = Scale(limit, " %")
        marks = [" (R)" if kind == "retrieval" else "" for kind in a.kinds]
        names = [f"{name}{mark}" for name, mark in zip(a.order, marks, strict=True)]

        def map_of(method: str) -> str:
            R, values = 100 * means[method], changes[method]

            def label(i: int, t: int) -> str:
                scores = f"{R[i, i]:.1f} \u2192 {R[t, i]:.1f}"
                return (
                    f"{names[i]} after {t + 1} {names[t]}: {signed(values[i, t], 1)} % ({scores})"
                )

            last = len(names) - 1
            return heat_map(
                values, (names, names), method, scale, label, lambda i, t: t in (i, last)
            )

        maps = [map_of(method) for method in changes]
        return {"legend": scale.legend(), "limit": limit, "maps": maps}

    def filtered(self) -> list[int]:
        """Lengths of the traversals with the filter."""
        every = [paths for start in self.analysis.starts for paths in start.paths.values()]
        return [len(path) for paths in every for path in paths[True]]

    def method_settings(self) -> list[list[str]]:
        rows = [["Method", "Settings"]]
        for method, settings in self.analysis.settings.items():
            text = ", ".join(f"{key} = {_plain(value)}" for key, value in settings.items())
            rows.append([method, text or "none"])
        return rows

    def training_settings(self) -> dict[tuple[tuple[str, str], ...], list[str]]:
        """Methods by the settings that they share."""
        shared: dict[tuple[tuple[str, str], ...], list[str]] = {}
        for method, config in self.analysis.config.items():
            shared.setdefault(tuple(_flat(config)), []).append(method)
        return shared

    def stream_facts(self) -> list[tuple[str, str]]:
        a = self.analysis
        return [
            ("Name", a.store.name),
            ("Fingerprint", a.store.fingerprint),
            ("Backbone", a.store.backbone),
            ("K (curvature is \u22121/K)", f"{a.store.K:g}"),
            ("tau", f"{a.store.tau:.5g}"),
            ("Dimension", str(a.store.dimension)),
            ("Order", ", ".join(a.order)),
            ("Seeds", ", ".join(map(str, a.seeds))),
        ]

    def run_facts(self, saved: SavedResults) -> list[tuple[str, str]]:
        versions = [(f"Version of {name}", str(v)) for name, v in saved.versions.items()]
        return versions + _flat({k: v for k, v in saved.about.items() if k != "experiment"})

    def times(self, saved: SavedResults) -> list[list[str]]:
        learn = {
            method: sum(task.get("learn", 0) for task in result.seconds)
            for method, result in saved.results.items()
        }
        return [["Method", "Seconds"], *([m, f"{s:.1f}"] for m, s in learn.items() if s)]


def _plain(value: object) -> str:
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False, default=str)


def _flat(values: Mapping[str, object], before: str = "") -> list[tuple[str, str]]:
    """Nested settings as rows, ``train.batch``."""
    rows: list[tuple[str, str]] = []
    for key, value in values.items():
        if isinstance(value, Mapping):
            rows += _flat(value, f"{before}{key}.")
        else:
            rows.append((f"{before}{key}", _plain(value)))
    return rows
