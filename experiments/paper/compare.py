"""Our tables beside the paper's: numbers, differences, verdicts; as Markdown and as plain data."""

import dataclasses
import math
from collections.abc import Mapping, Sequence
from typing import Any

from hmcl_jax.report.results import markdown_rows
from paper.claims import WORDS, Verdict, by_claim
from paper.tables import Number, Table

WIDE = 7  # tables with more columns are turned: their columns become rows
HOW = (
    "Each cell is ours, with it the paper's number and the difference. *inside*: the difference "
    "is at most two of the paper's standard deviations; *outside*: it is more. Where the paper "
    "gives no deviation, neither is said."
)
OTHER = (
    "These are other data than the paper's: its numbers (of {reference}) stand beside ours to show "
    "the size of its effects, and differences are not judged. What can be compared are the claims."
)
# What has no table on the page, and where it is.
ELSEWHERE = (
    (
        "Class tree in the plane with rad. and pair. (fig:imagenet_wordnet_radial_geometry)",
        "experiments/analyse.py draws it of any folder of runs, with both numbers per method",
    ),
    (
        "Walks from pictures to the root (case studies)",
        "experiments/analyse.py; single pictures, of which no claim can be judged",
    ),
    (
        "Stability against plasticity (fig:stability_plasticity_sequence)",
        "experiments/frontier.py draws immediate score against forgetting",
    ),
    (
        "Sizes of the data sets (tab:datasets)",
        "checked by extract_features.py --suite hmcl16, which refuses other counts",
    ),
    (
        "Differences from vanilla in tab:main_results16",
        "follow from the rows of the main table; a test recomputes the paper's from its own rows",
    ),
)


@dataclasses.dataclass(frozen=True)
class Cell:
    """One number of ours beside the paper's.

    Attributes:
      block: of the table.
      method: row of the block.
      column: of the table.
      ours: measured, or None.
      paper: printed, or None.
      same: whether both are of the same data, so that the difference can be judged.
    """

    block: str
    method: str
    column: str
    ours: Number | None
    paper: Number | None
    same: bool

    @property
    def difference(self) -> float | None:
        """Ours minus the paper's."""
        if self.ours is None or self.paper is None:
            return None
        return self.ours.mean - self.paper.mean

    @property
    def inside(self) -> bool | None:
        """Whether it is within two of the paper's deviations; None if that is not known."""
        if self.difference is None or not self.same or self.paper is None or not self.paper.std:
            return None
        return abs(self.difference) <= 2 * self.paper.std


def beside(ours: Table, paper: Table | None, reference: str, same: bool) -> list[Cell]:
    """All cells of a table.

    Args:
      ours: measured.
      paper: its counterpart, if the paper prints numbers.
      reference: block of the paper's table to show where it has none of our name.
      same: whether both are of the same data.
    """
    cells = []
    for block, rows in ours.blocks.items():
        printed: Mapping[str, Mapping[str, Number]] = {}
        # Elsewhere the paper's numbers are of use only where the columns mean the same.
        if paper is not None and (same or set(paper.columns) <= set(ours.columns)):
            names = (block, reference, next(iter(paper.blocks)))
            printed = next(paper.blocks[name] for name in names if name in paper.blocks)
        extra = [
            column for column in (paper.columns if paper else ()) if column not in ours.columns
        ]
        columns = [*ours.columns, *(extra if same else ())]
        for method in dict.fromkeys([*rows, *printed]):
            for column in columns:
                mine = rows.get(method, {}).get(column)
                theirs = printed.get(method, {}).get(column)
                if mine is not None or theirs is not None:
                    cells.append(Cell(block, method, column, mine, theirs, same))
    return cells


def written(number: Number | None, like: Number | None = None) -> str:
    """A number as text, with as many digits as the paper's."""
    if number is None:
        return "-"
    unit = number.unit or (like.unit if like else 0)
    size = abs(number.mean)
    if 0 < unit < 1:
        places = round(-math.log10(unit))
    elif number.std is None and number.mean == round(number.mean):
        places = 0
    else:
        places = 2 if size >= 10 else 3
    if size < 0.01 and number.std is None and number.mean:  # such as a p-value
        return f"{number.mean:.2g}"
    text = f"{number.mean:.{places}f}"
    return text if number.std is None else f"{text} ± {number.std:.{places}f}"


def cell_text(cell: Cell, line: str = "<br>") -> str:
    """A cell as text of up to two lines."""
    if cell.paper is None:
        return written(cell.ours)
    text = f"{written(cell.ours, cell.paper)}{line}paper {written(cell.paper)}"
    if cell.difference is not None and cell.same:
        sign = "+" if cell.difference >= 0 else ""
        text += f", {sign}{written(Number(cell.difference), cell.paper)}"
        text += {True: " inside", False: " **outside**", None: ""}[cell.inside]
    return text


def grid(cells: Sequence[Cell], block: str, line: str = "<br>") -> list[list[str]]:
    """Rows of text of one block, the header first; turned if it would be wide."""
    chosen = [cell for cell in cells if cell.block == block]
    methods = list(dict.fromkeys(cell.method for cell in chosen))
    columns = list(dict.fromkeys(cell.column for cell in chosen))
    known = {(cell.method, cell.column): cell_text(cell, line) for cell in chosen}
    if len(columns) < WIDE:
        body = [[m, *(known.get((m, c), "-") for c in columns)] for m in methods]
        return [["", *columns], *body]
    return [["", *methods], *([c, *(known.get((m, c), "-") for m in methods)] for c in columns)]


def verdict_rows(verdicts: Sequence[Verdict]) -> list[list[str]]:
    """Claims, where they were checked, and what came out."""
    rows = [["Claim of the paper", "Checked on", "Verdict", "Comparisons that hold", "Numbers"]]
    for verdict in verdicts:
        said = verdict.word if verdict.holds else f"**{verdict.word}**"
        rows.append([verdict.claim, verdict.block, said, verdict.count, verdict.numbers()])
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


def markdown(sections: Sequence[Mapping[str, Any]], about: Mapping[str, Any]) -> str:
    """The whole page."""
    verdicts = [v for section in sections for v in section.get("verdicts", ())]
    lines = ["# Reproduction of the paper's tables", "", about["lead"], ""]
    if verdicts:
        lines += ["## Claims", "", counted(verdicts), ""]
        rows = verdict_rows(verdicts)
        lines += [_line(rows[0]), "|---" * len(rows[0]) + "|", *map(_line, rows[1:]), ""]
    for section in sections:
        lines += [f"## {section['title']}: {section['stream']}", ""]
        if "missing" in section:
            lines += [f"Not made: {section['missing']}", ""]
            continue
        for note in section.get("notes", ()):
            lines += [note, ""]
        for table, cells in section["tables"]:
            label = f" (`{table.label}`)" if table.label else ""
            lines += [f"{table.title}{label}. Unit: {table.unit}."]
            lines += ["", *([section["how"], ""] if any(c.paper for c in cells) else [])]
            for block in table.blocks:
                title = [f"**{block}**", ""] if len(table.blocks) > 1 else []
                lines += [*title, markdown_rows(grid(cells, block)), ""]
    lines += ["## What else the paper shows", ""]
    lines += [f"- {what}: {where}" for what, where in ELSEWHERE]
    lines += ["", "## What does not fit together in the paper itself", ""]
    for found in about["inconsistencies"]:
        lines += [f"- {found['where']}. {found['says']} But: {found['but']}"]
    return "\n".join(lines) + "\n"


def _line(row: Sequence[str]) -> str:
    """A row of a table whose cells are too long to be lined up."""
    return f"| {' | '.join(row)} |"


def as_json(sections: Sequence[Mapping[str, Any]], about: Mapping[str, Any]) -> dict[str, Any]:
    """Everything as plain data."""

    def plain(number: Number | None) -> dict[str, Any] | None:
        if number is None:
            return None
        return {"mean": number.mean, "std": number.std, "values": list(number.values)}

    told = []
    for section in sections:
        rows = [
            {
                "label": table.label,
                "block": cell.block,
                "method": cell.method,
                "column": cell.column,
                "ours": plain(cell.ours),
                "paper": plain(cell.paper),
                "difference": cell.difference,
                "inside": cell.inside,
            }
            for table, cells in section.get("tables", ())
            for cell in cells
        ]
        verdicts = [
            {**dataclasses.asdict(v), "holds": v.holds, "verdict": v.word}
            for v in section.get("verdicts", ())
        ]
        kept = {
            key: section[key]
            for key in ("name", "title", "stream", "missing", "notes")
            if key in section
        }
        told.append({**kept, "cells": rows, "verdicts": verdicts})
    states = by_claim(v for section in sections for v in section.get("verdicts", ()))
    claims = [{"claim": c, "holds": state, "verdict": WORDS[state]} for c, state in states.items()]
    return {"about": dict(about), "claims": claims, "sections": told}
