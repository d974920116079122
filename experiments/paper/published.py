"""Tables of the paper as data, and the form that our own take beside them.

The files in ``tables`` are the paper's, typed once, with its rounding. A table has blocks (a
backbone, an order, a weight decay), in each block methods, for each method a number per column, or
"-" where the paper says none. They live here and not in the package: only the comparison with the
paper needs them.
"""

import dataclasses
import re
import statistics
import tomllib
from collections.abc import Iterable, Mapping
from pathlib import Path

TABLES = Path(__file__).parent / "tables"
NUMBER = re.compile(r"(\*\*)?([+-]?[0-9.]+(?:e-?[0-9]+)?)(?: ± ([0-9.]+))?(\*\*)?")


@dataclasses.dataclass(frozen=True)
class Number:
    """A mean over seeds."""

    mean: float
    std: float | None = None  # sample standard deviation
    unit: float = 0.0  # the last printed digit's worth, 0 for a number that was not printed
    bold: bool = False  # in the paper
    values: tuple[float, ...] = ()  # one per seed, in order, as far as they are known


Block = Mapping[str, Mapping[str, Number]]


@dataclasses.dataclass(frozen=True)
class Table:
    """Numbers by block, method and column."""

    label: str  # in the paper
    title: str
    unit: str  # of the numbers
    columns: tuple[str, ...]
    lower: tuple[str, ...]  # columns in which less is better
    blocks: Mapping[str, Block]

    def better(self, column: str, one: float, other: float) -> bool:
        """Whether one value of a column is better than another."""
        return one < other if column in self.lower else one > other


def parse_number(text: str) -> Number:
    """A number as the paper prints it, like ``"**36.300 ± 0.114**"``.

    Raises:
      ValueError: if it is not one.
    """
    found = NUMBER.fullmatch(text)
    if not found or bool(found[1]) != bool(found[4]):
        raise ValueError(f"a number must be written like '36.300 ± 0.114', got {text!r}.")
    digits, _, power = found[2].partition("e")
    places = len(digits.partition(".")[2])
    return Number(
        mean=float(found[2]),
        std=None if found[3] is None else float(found[3]),
        unit=10.0 ** (int(power or 0) - places),
        bold=bool(found[1]),
    )


def spread(values: Iterable[float]) -> Number:
    """A measured number, from its values over seeds."""
    known = tuple(float(value) for value in values)
    std = statistics.stdev(known) if len(known) > 1 else None
    return Number(sum(known) / len(known), std, values=known)


def read_tables() -> dict[str, Table]:
    """All tables of the paper, by label.

    Raises:
      ValueError: naming the file and the row that is not as it should be.
    """
    tables = [_table(path) for path in sorted(TABLES.glob("*.toml"))]
    return {table.label: table for table in tables}


def _table(path: Path) -> Table:
    raw = tomllib.loads(path.read_text("utf8"))
    columns = tuple(raw["columns"])
    blocks: dict[str, dict[str, dict[str, Number]]] = {}
    for block, rows in raw["values"].items():
        blocks[block] = {}
        for method, cells in rows.items():
            if len(cells) != len(columns):
                raise ValueError(f"{path.name}, {block}, {method}: {len(cells)} cells.")
            known = ((c, x) for c, x in zip(columns, cells, strict=True) if x != "-")
            blocks[block][method] = {column: parse_number(cell) for column, cell in known}
    return Table(
        raw["label"], raw["title"], raw["unit"], columns, tuple(raw.get("lower", ())), blocks
    )
