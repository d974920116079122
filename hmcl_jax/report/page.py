"""One self-contained HTML page: no network, no fonts from elsewhere, opens by double click.

All markup is in ``templates/report.html.j2``, where text is escaped; scripts and styles are beside
it. Without scripts the page can still be read. This module computes the values that the template
inserts: sort keys, colours, and the numbers in sentences.
"""

import base64
import functools
import hashlib
import json
import re
from collections.abc import Mapping
from importlib import resources
from typing import Any

import numpy as np

from hmcl_jax._extras import require
from hmcl_jax.evaluation import bonferroni, relative_change
from hmcl_jax.evaluation.statistics import seed_mean
from hmcl_jax.report.analyse import Analysis
from hmcl_jax.report.figures.style import INK
from hmcl_jax.report.results import SavedResults, columns, mean_std
from hmcl_jax.report.tables import Table, all_tables, p_value

SECTIONS = (
    *("summary", "methods", "stages", "drift", "norms", "hierarchy", "retrieval", "training"),
    *("traversals", "settings", "provenance", "conventions"),
)
UPPER_BOUND = "joint"  # trains on all tasks at once
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
        "data_uri": data_uri,
        "minus": true_minus,
        "pretty": lambda value: json.dumps(value, indent=1, ensure_ascii=False),
        "table": table,
    }
    return environment.from_string(_asset("report.html.j2")).module


def document(title: str, lead: str, sections: Mapping[str, str]) -> str:
    """A page with a table of contents; sections are text, or HTML of :func:`macros`, by title."""
    script = _asset("page.js")
    digest = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
    # Only our own script may run. Styles in attributes have no hashes.
    policy = (
        f"default-src 'none'; script-src 'sha256-{digest}'; style-src 'unsafe-inline'; "
        "img-src data:; base-uri 'none'; form-action 'none'"
    )
    page = macros().document(title, lead, sections, _asset("page.css"), script, policy)
    return FORBIDDEN.sub("\ufffd", page.lstrip())


def leading_number(text: str) -> float | None:
    """The number that a cell starts with, by which its column is sorted."""
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


def table(t: Table) -> str:
    """The HTML of a table; a click on a column's header sorts by it."""
    header, *body = t.rows
    numeric, best = [], []
    for i in range(len(header)):
        texts = [row[i] for row in body if row[i]]
        values = [value for text in texts if (value := leading_number(text)) is not None]
        numeric.append(i > 0 and 0 < len(values) == len(texts))
        best.append(t.best[i](values) if i in t.best and len(values) > 1 else None)

    def cell(i: int, text: str) -> tuple[str, str, float | None, bool]:
        value = leading_number(text)
        if i == 0 or value is None:
            return text, "", value, False
        # A number stays on one line, apart from its bracket.
        text, opening, rest = true_minus(text).replace(" ", "\u00a0").partition("\u00a0(")
        return text, opening[1:] + rest, value, value == best[i]

    heads = [(name, t.about.get(name), kind) for name, kind in zip(header, numeric, strict=True)]
    lines = [[cell(i, text) for i, text in enumerate(row)] for row in body]
    return macros().sortable(t.caption, heads, lines, t.note)


def data_uri(picture: bytes) -> str | None:
    """A JPEG, PNG or SVG file as an address that needs no network; None for anything else.

    Browsers run no scripts of a picture and load nothing for it, so an SVG may hold any text.
    """
    kind = next((kind for start, kind in PICTURES.items() if picture.startswith(start)), None)
    if kind is None:
        return None
    if "svg" in kind:  # its ink follows the page from light to dark
        text = re.sub(INK, "currentColor", picture.decode("utf8"), flags=re.IGNORECASE)
        picture = re.sub("<svg[^>]*>", rf"\g<0><style>{INKS}</style>", text, count=1).encode()
    return f"data:{kind};base64,{base64.b64encode(picture).decode()}"


def report_page(analysis: Analysis, drawings: Mapping[str, bytes] | None = None) -> str:
    """The page of an analysis, with figures of :func:`hmcl_jax.report.figures.draw.draw_all`."""
    report = _Report(analysis, drawings or {})
    made = {name.capitalize(): getattr(macros(), name)(report) for name in SECTIONS}
    sections = {title: html for title, html in made.items() if html.strip()}
    title = f"{analysis.store.name}: results of continual learning"
    return document(title, macros().lead(analysis), sections)


class _Report:
    """The values that the template inserts."""

    levels = LEVELS

    def __init__(self, analysis: Analysis, drawings: Mapping[str, bytes]) -> None:
        self.analysis, self.tables = analysis, all_tables(analysis)
        self.drawings = {name: data_uri(picture) for name, picture in drawings.items()}

    def best(self, column: str) -> dict[str, str] | None:
        """The method with the highest mean, without the upper bound if there are others."""
        a, against = self.analysis, self.analysis.against
        values = {name: columns(result)[column] for name, result in a.results.items()}
        fair = {name: v for name, v in values.items() if not _is_bound(name)} or values
        if not fair:
            return None
        method = max(fair, key=lambda name: float(fair[name].mean()))
        compared = against in values and method != against
        return {
            "method": method,
            "number": mean_std(fair[method]),
            "other": mean_std(values[against]) if compared else "",
            "bound": next((name for name in values if name not in fair), ""),
        }

    def reduction(self) -> dict[str, str] | None:
        """The method that avoids most drift, and the largest p-value of its tests."""
        drift, against = self.analysis.drift, self.analysis.against
        if drift is None or against not in drift.methods:
            return None
        reductions = zip(drift.methods, seed_mean(drift.reduction(against), 1), strict=True)
        avoided = {
            method: 100 * values
            for method, values in reductions
            if method != against and not _is_bound(method) and np.isfinite(values).all()
        }
        if not avoided:
            return None
        method = max(avoided, key=lambda m: float(avoided[m].mean()))
        tests = drift.compare(method, against)
        p = max(bonferroni(test.p, len(tests)) for test in tests)
        number = f"{avoided[method].min():.0f} to {avoided[method].max():.0f} %"
        return {"method": method, "number": number, "p": p_value(p)}

    def stages(self) -> dict[str, Any]:
        """The cells of a heat map of relative changes for each method, in one scale of colours."""
        a = self.analysis
        marks = [" (R)" if kind == "retrieval" else "" for kind in a.kinds]
        names = [f"{name}{mark}" for name, mark in zip(a.order, marks, strict=True)]
        means = {method: result.scores.mean(axis=0) for method, result in a.results.items()}
        changes = {method: relative_change(R) for method, R in means.items()}  # (stage, task)
        known = np.concatenate([np.zeros(1), *(np.ravel(c) for c in changes.values())])
        limit = max(5.0, 5 * float(np.ceil(np.nanquantile(np.abs(known), 0.97) / 5)))

        def cell(R: np.ndarray, change: float, i: int, t: int) -> dict[str, Any] | None:
            if np.isnan(change):
                return None
            scores = f"{100 * R[i, i]:.1f} \u2192 {100 * R[t, i]:.1f}"
            return {
                "level": round(LEVELS * float(np.clip(change / limit, -1, 1))),
                "framed": t in (i, len(names) - 1),
                "label": f"{names[i]} after {t + 1} {names[t]}: {signed(change, 1)} % ({scores})",
                "text": signed(change, 0),
            }

        maps = {
            method: [
                (name, [cell(means[method], change, i, t) for t, change in enumerate(column)])
                for i, (name, column) in enumerate(zip(names, changes[method].T, strict=True))
            ]
            for method in a.results
        }
        return {"limit": limit, "names": names, "maps": maps}

    def filtered(self) -> list[int]:
        """Lengths of the traversals with the filter."""
        every = (paths for start in self.analysis.starts for paths in start.paths.values())
        return [len(path) for paths in every for path in paths[True]]

    def method_settings(self) -> Table:
        rows = [["Method", "Settings"]]
        for method, run in self.analysis.runs.items():
            text = ", ".join(f"{key} = {value}" for key, value in _flat(run.settings))
            rows.append([method, text or "none"])
        return Table("Settings of each method", rows, "`hmcl methods` explains them.")

    def training_settings(self) -> dict[tuple[tuple[str, str], ...], list[str]]:
        """Methods by the settings that they share."""
        shared: dict[tuple[tuple[str, str], ...], list[str]] = {}
        for method, run in self.analysis.runs.items():
            shared.setdefault(tuple(_flat(run.config)), []).append(method)
        return shared

    def run_facts(self, saved: SavedResults) -> list[tuple[str, str]]:
        versions = [(f"Version of {name}", str(v)) for name, v in saved.versions.items()]
        return versions + _flat({k: v for k, v in saved.about.items() if k != "experiment"})

    def times(self, folder: str, saved: SavedResults) -> Table:
        rows = [["Method", "Seconds"]]
        for method, result in saved.results.items():
            if seconds := sum(task.get("learn", 0) for task in result.seconds):
                rows.append([method, f"{seconds:.1f}"])
        note = "Seconds to learn all tasks with all seeds, compilation included."
        return Table(f"Times in {folder}", rows, note)


def _is_bound(method: str) -> bool:
    return method.rpartition("/")[2] == UPPER_BOUND


def _flat(values: Mapping[str, object], before: str = "") -> list[tuple[str, str]]:
    """Nested settings as rows, ``train.batch``."""
    rows: list[tuple[str, str]] = []
    for key, value in values.items():
        if isinstance(value, Mapping):
            rows += _flat(value, f"{before}{key}.")
        else:
            text = json.dumps(value, ensure_ascii=False, default=str)
            rows.append((f"{before}{key}", value if isinstance(value, str) else text))
    return rows
