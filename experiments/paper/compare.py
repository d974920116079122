"""Our tables beside the paper's: numbers and differences."""

import dataclasses
import math
from collections.abc import Mapping, Sequence

from paper.published import Number, Table

WIDE = 7  # tables with more columns are turned: their columns become rows
HOW = (
    "Each cell is ours, in brackets the paper's number and the difference. *inside*: the "
    "difference is at most two of the paper's standard deviations; *outside*: it is more. Where "
    "the paper gives no deviation, neither is said."
)
OTHER = (
    "These are other data than the paper's: its numbers (of {reference}) stand beside ours to show "
    "the size of its effects, and differences are not judged. What can be compared are the claims."
)


@dataclasses.dataclass(frozen=True)
class Cell:
    """One number of ours beside the paper's."""

    block: str
    method: str
    column: str
    ours: Number | None
    paper: Number | None
    same: bool  # whether both are of the same data, so that the difference can be judged

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

    def __str__(self) -> str:
        if self.paper is None:
            return written(self.ours)
        text = f"paper {written(self.paper)}"
        if self.difference is not None and self.same:
            sign = "+" if self.difference >= 0 else ""
            text += f", {sign}{written(Number(self.difference), self.paper)}"
            text += {True: " inside", False: " **outside**", None: ""}[self.inside]
        return f"{written(self.ours, self.paper)} ({text})"


def side_by_side(ours: Table, paper: Table | None, reference: str, same: bool) -> list[Cell]:
    """All cells of a table; `reference` is the paper's block to show where it has none of ours."""
    cells = []
    for block, rows in ours.blocks.items():
        printed: Mapping[str, Mapping[str, Number]] = {}
        # Elsewhere the paper's numbers are of use only where the columns mean the same.
        if paper is not None and (same or set(paper.columns) <= set(ours.columns)):
            names = (block, reference, next(iter(paper.blocks)))
            printed = next(paper.blocks[name] for name in names if name in paper.blocks)
        extra = [c for c in (paper.columns if paper and same else ()) if c not in ours.columns]
        for method in dict.fromkeys([*rows, *printed]):
            for column in (*ours.columns, *extra):
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


def grid(cells: Sequence[Cell], block: str) -> list[list[str]]:
    """Rows of text of one block, the header first; turned if it would be wide."""
    known = {(cell.method, cell.column): str(cell) for cell in cells if cell.block == block}
    methods = list(dict.fromkeys(method for method, _ in known))
    columns = list(dict.fromkeys(column for _, column in known))
    if len(columns) < WIDE:
        body = [[m, *(known.get((m, c), "-") for c in columns)] for m in methods]
        return [["", *columns], *body]
    return [["", *methods], *([c, *(known.get((m, c), "-") for m in methods)] for c in columns)]
