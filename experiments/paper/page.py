"""The comparison as one self-contained HTML page, as Markdown, and as plain data."""

import dataclasses
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from hmcl_jax._extras import require
from hmcl_jax._files import json_text
from hmcl_jax.report.results import markdown_rows
from paper.claims import WORDS, Verdict, by_claim
from paper.compare import Cell, grid
from paper.published import Number, Table

jinja2 = require("jinja2", "report")

LONG = 60  # cells with more letters are not lined up in Markdown
READING = (
    "A claim is a list of comparisons of means over seeds. It holds if all of them do; in brackets "
    "stands on how many seeds a comparison holds. Not settled: no comparison fails, but repeated "
    "measurements lie on both sides of the bound."
)


@dataclasses.dataclass(frozen=True)
class Section:
    """One of the paper's tables on one stream, made from our numbers or not."""

    name: str  # of its config
    title: str
    stream: str
    missing: str = ""  # why it is not made
    notes: tuple[str, ...] = ()
    tables: tuple[tuple[Table, Sequence[Cell]], ...] = ()
    verdicts: tuple[Verdict, ...] = ()
    how: str = ""  # to read the cells
    tasks: tuple[str, ...] = ()  # of the maps
    maps: Mapping[str, np.ndarray] = dataclasses.field(default_factory=dict)  # (task, stage), in %


class Grid(NamedTuple):
    """A table of the page; `values` colours the cells of a map."""

    caption: str
    rows: list[list[str]]
    note: str = ""
    values: list[list[float]] | None = None


class Part(NamedTuple):
    """A heading of the page with what stands below it."""

    title: str
    paragraphs: list[str]
    grids: list[Grid]


def all_verdicts(sections: Sequence[Section]) -> list[Verdict]:
    return [verdict for section in sections for verdict in section.verdicts]


def verdict_rows(verdicts: Sequence[Verdict]) -> list[list[str]]:
    """Claims, where they were checked, and the outcome."""
    rows = [["Claim of the paper", "Checked on", "Verdict", "Comparisons that hold", "Numbers"]]
    for verdict in verdicts:
        word = verdict.word if verdict.holds else f"**{verdict.word}**"
        rows.append([verdict.claim, verdict.block, word, verdict.count, verdict.numbers()])
    return rows


def counted(verdicts: Sequence[Verdict]) -> str:
    """How many claims hold, and how many verdicts, as a sentence."""
    claims, states = list(by_claim(verdicts).values()), [verdict.holds for verdict in verdicts]
    return (
        f"Of {len(claims)} claims {claims.count(True)} hold wherever they were checked, "
        f"{claims.count(False)} do not hold; not settled: {claims.count(None)}. Of {len(states)} "
        "verdicts, each of one claim on one stream, order, measure or decay, "
        f"{states.count(True)} say: holds."
    )


def contents(sections: Sequence[Section], about: Mapping[str, Any]) -> list[Part]:
    """What both forms of the page show, as text with Markdown's stars."""
    verdicts = all_verdicts(sections)
    parts = []
    if verdicts:
        table = Grid("Claims", verdict_rows(verdicts), READING)
        parts.append(Part("Claims", [counted(verdicts)], [table]))
    parts += [_part(section) for section in sections]
    elsewhere = Grid("Not among the tables above", [["What", "Where"], *about["elsewhere"]])
    parts.append(Part("What else the paper shows", [], [elsewhere]))
    odd = [[e["where"], e["says"], e["but"]] for e in about["inconsistencies"]]
    inconsistencies = Grid("Inconsistencies", [["Where", "The paper says", "But"], *odd])
    title = "What does not fit together in the paper itself"
    parts.append(Part(title, [], [inconsistencies]))
    made = [["What", "Value"], *about.get("provenance", ())]
    made += [[f"version of {name}", str(value)] for name, value in about["versions"].items()]
    made += [[f"fingerprint of {name}", value] for name, value in about["stores"].items()]
    parts.append(Part("How this was made", [], [Grid("Request, versions and stores", made)]))
    return parts


def _part(section: Section) -> Part:
    title = f"{section.title}: {section.stream}"
    if section.missing:
        return Part(title, [f"Not made: {section.missing}"], [])
    paragraphs, grids = list(section.notes), []
    if any(cell.paper for _, cells in section.tables for cell in cells):
        paragraphs.append(section.how)
    for table, cells in section.tables:
        label = f" ({table.label})" if table.label else ""
        for block in table.blocks:
            caption = f"{table.title}{label}: {block}"
            grids.append(Grid(caption, grid(cells, block), f"Unit: {table.unit}."))
    for method, values in section.maps.items():
        shown = [[f"{x:.1f}" if np.isfinite(x) else "" for x in row] for row in values]
        rows = [
            ["", *section.tasks],
            *([t, *row] for t, row in zip(section.tasks, shown, strict=True)),
        ]
        caption = f"{method}: change of each task (row) after each stage, percent of its score"
        grids.append(Grid(caption, rows, "", np.asarray(values).tolist()))
    return Part(title, paragraphs, grids)


def markdown(sections: Sequence[Section], about: Mapping[str, Any]) -> str:
    """The whole page."""
    lines = ["# Reproduction of the paper's tables", "", about["lead"], ""]
    for part in contents(sections, about):
        lines += [f"## {part.title}", ""]
        for paragraph in part.paragraphs:
            lines += [paragraph, ""]
        for table in part.grids:
            lines += [" ".join(filter(None, [f"{table.caption}.", table.note])), ""]
            if max(len(cell) for row in table.rows for cell in row) < LONG:
                lines += [markdown_rows(table.rows), ""]
            else:
                head, *body = [f"| {' | '.join(row)} |" for row in table.rows]
                lines += [head, "|---" * len(table.rows[0]) + "|", *body, ""]
    return "\n".join(lines)


def html(sections: Sequence[Section], about: Mapping[str, Any]) -> str:
    """The whole page; it needs nothing else."""
    loader = jinja2.FileSystemLoader(Path(__file__).parent)
    page = jinja2.Environment(loader=loader, autoescape=True, trim_blocks=True, lstrip_blocks=True)
    page.filters |= {"plain": lambda text: text.replace("*", "").replace("`", ""), "shade": shade}
    return page.get_template("reproduction.html.j2").render(
        lead=about["lead"], parts=contents(sections, about)
    )


def shade(value: float) -> str:
    """The background of a cell of a map: blue for gains, red for losses, up to 100 percent."""
    if not np.isfinite(value):
        return "none"
    colour = "31, 119, 180" if value > 0 else "214, 39, 40"
    return f"rgba({colour}, {min(abs(value) / 100, 1):.2f})"


def as_json(sections: Sequence[Section], about: Mapping[str, Any]) -> str:
    """Everything as plain data."""

    def plain(number: Number | None) -> dict[str, Any] | None:
        return None if number is None else dataclasses.asdict(number)

    data = []
    for section in sections:
        cells = [
            {
                "label": table.label,
                **{key: getattr(cell, key) for key in ("block", "method", "column")},
                **{key: plain(getattr(cell, key)) for key in ("ours", "paper")},
                **{key: getattr(cell, key) for key in ("difference", "inside")},
            }
            for table, cells in section.tables
            for cell in cells
        ]
        verdicts = [
            {**dataclasses.asdict(v), "holds": v.holds, "verdict": v.word} for v in section.verdicts
        ]
        about_it = {key: getattr(section, key) for key in ("name", "title", "stream", "notes")}
        about_it |= {"missing": section.missing} if section.missing else {}
        data.append({**about_it, "cells": cells, "verdicts": verdicts})
    states = by_claim(all_verdicts(sections))
    claims = [{"claim": c, "holds": state, "verdict": WORDS[state]} for c, state in states.items()]
    return json_text({"about": dict(about), "claims": claims, "sections": data})
