"""The comparison as one self-contained HTML page."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from hmcl_jax.report.page import Scale, document, heat_map, macros, table
from paper.claims import by_claim
from paper.compare import ELSEWHERE, Cell, grid, verdict_rows

READING = (
    "A claim is a list of comparisons of means over seeds. It holds if all of them do; in brackets "
    "stands on how many seeds a comparison holds. Not settled: no comparison fails, but repeated "
    "measurements lie on both sides of the bound."
)


def plain(text: str) -> str:
    """Text without Markdown's stars."""
    return text.replace("**", "").replace("*", "")


def facts(sections: Sequence[Mapping[str, Any]]) -> list[tuple[str, str, object]]:
    """The main numbers of the page."""
    verdicts = [v for section in sections for v in section.get("verdicts", ())]
    cells: list[Cell] = [c for s in sections for _, cells in s.get("tables", ()) for c in cells]
    judged = [cell.inside for cell in cells if cell.inside is not None]
    made = sum("tables" in section for section in sections)
    claims, held = by_claim(verdicts), sum(v.holds is True for v in verdicts)
    open_ones = sum(state is None for state in claims.values())
    also = f", {open_ones} not settled" if open_ones else ""
    found: list[tuple[str, str, object]] = [
        (
            "Claims that hold",
            f"{sum(state is True for state in claims.values())} of {len(claims)}",
            f"wherever they were checked{also}; {held} of {len(verdicts)} verdicts, each of one "
            "claim on one stream, order, measure or decay",
        ),
        ("Tables and figures", f"{made} of {len(sections)}", "made from the runs"),
    ]
    if judged:
        share = f"{sum(judged)} of {len(judged)}"
        found.append(("Inside", share, "numbers within two of the paper's standard deviations"))
    return found


def html(sections: Sequence[Mapping[str, Any]], about: Mapping[str, Any]) -> str:
    """The whole page.

    Args:
      sections: of experiments/reproduce.py.
      about: what the page is of, and the paper's inconsistencies.
    """
    parts: list[tuple[str, list[Any]]] = []
    verdicts = [v for section in sections for v in section.get("verdicts", ())]
    rows = [[plain(cell) for cell in row] for row in verdict_rows(verdicts)]
    claims = table(rows, "Claims", READING) if verdicts else None
    parts.append(("Claims", [macros().cards(facts(sections)), claims]))
    for section in sections:
        title = f"{section['title']}: {section['stream']}"
        if "missing" in section:
            parts.append((title, [macros().paragraph(f"Not made: {section['missing']}")]))
            continue
        parts.append((title, _content(section)))
    elsewhere = [["What", "Where"], *map(list, ELSEWHERE)]
    parts.append(("What else the paper shows", [table(elsewhere, "Not among the tables above")]))
    found = [["Where", "The paper says", "But"]]
    found += [[e["where"], e["says"], e["but"]] for e in about["inconsistencies"]]
    title = "What does not fit together in the paper itself"
    parts.append((title, [table(found, "Inconsistencies")]))
    made = [["What", "Value"], *about.get("asked", ())]
    made += [[f"version of {name}", str(value)] for name, value in about["versions"].items()]
    made += [[f"fingerprint of {name}", value] for name, value in about["stores"].items()]
    details = macros().details("Versions and stores", table(made, "Provenance"))
    parts.append(("How this was made", [details]))
    return document("Reproduction of the paper's tables", about["lead"], parts)


def _content(section: Mapping[str, Any]) -> list[object]:
    parts: list[object] = [macros().paragraph(note) for note in section.get("notes", ())]
    for made, cells in section["tables"]:
        if any(cell.paper for cell in cells):
            parts.append(macros().paragraph(plain(section["how"])))
        for block in made.blocks:
            rows = [[_bracketed(cell) for cell in row] for row in grid(cells, block)]
            label = f" ({made.label})" if made.label else ""
            caption = f"{made.title}{label}: {block}"
            parts.append(table(rows, caption, f"Unit: {made.unit}."))
    maps: Mapping[str, np.ndarray] = section.get("maps", {})
    if maps:
        largest = max(float(np.nanmax(np.abs(values))) for values in maps.values())
        scale = Scale(min(100.0, max(1.0, largest)), " %")
        names = section["tasks"]
        for method, values in maps.items():
            caption = f"{method}: change of each task (row) after each stage, percent of its score"
            parts.append(heat_map(values, (names, names), caption, scale))
    return parts


def _bracketed(cell: str) -> str:
    ours, line, paper = cell.partition("<br>")
    return plain(f"{ours} ({paper})" if line else ours)
