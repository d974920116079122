"""Comparisons of numbers, which the claims are made of."""

import dataclasses
import functools
from collections.abc import Callable, Iterator, Sequence

from paper.tables import Number, Table


@dataclasses.dataclass(frozen=True)
class Check:
    """One comparison.

    Attributes:
      text: with the numbers.
      holds: for the means; None if the measurement cannot tell.
      seeds: on how many seeds it holds, and of how many; None if they are not known.
    """

    text: str
    holds: bool | None
    seeds: tuple[int, int] | None = None

    def told(self) -> str:
        """The text, with the seeds."""
        if self.seeds is None:
            return self.text
        return f"{self.text} ({self.seeds[0]} of {self.seeds[1]} seeds)"


def all_hold(states: Sequence[bool | None]) -> bool | None:
    """Whether all of some comparisons hold; None if none fails, but some are not settled."""
    if any(state is False for state in states):
        return False
    return None if None in states else True


def shown(value: float) -> str:
    """A number with as many digits as say something."""
    return f"{value:.2f}" if abs(value) >= 0.095 else f"{value:.2g}"


def compare(name: str, one: Number, other: Number, better: Callable[[float, float], bool]) -> Check:
    """Whether one number is better than another, in the mean and on each seed."""
    text = f"{name} {shown(one.mean)} against {shown(other.mean)}"
    seeds = None
    if len(one.values) == len(other.values) > 1:
        held = [better(a, b) for a, b in zip(one.values, other.values, strict=True)]
        seeds = (sum(held), len(held))
    return Check(text, better(one.mean, other.mean), seeds)


def beats(
    table: Table, block: str, ones: Sequence[str], others: Sequence[str], columns: Sequence[str]
) -> Iterator[Check]:
    """Comparisons of each of some methods with each of others, as far as they are in the table."""
    rows = table.blocks[block]
    for one in ones:
        for other in others:
            for column in columns:
                if one == other or column not in rows.get(one, {}).keys() & rows.get(other, {}):
                    continue
                name = f"{one} vs {other}, {column}:"
                pair = rows[one][column], rows[other][column]
                yield compare(name, *pair, functools.partial(table.better, column))


def limit(name: str, number: Number, bound: float, better: Callable[[float, float], bool]) -> Check:
    """Whether a number is on the right side of a bound."""
    other = Number(bound, values=(bound,) * len(number.values))
    return compare(name, number, other, better)


def settled(name: str, number: Number, bound: float) -> Check:
    """Whether a number that was measured several times is below a bound.

    Its values are here those of the repeats. If they lie on both sides of the bound, the
    measurement cannot tell. A number that is known without repeats is taken as it is.
    """
    if len(number.values) < 2:
        return limit(name, number, bound, below)
    low, high = min(number.values), max(number.values)
    spread = f"({shown(low)} to {shown(high)} in {len(number.values)} repeats)"
    text = f"{name} {shown(number.mean)} {spread} against {shown(bound)}"
    return Check(text, None if low <= bound <= high else number.mean < bound)


def minus(one: Number, other: Number) -> Number:
    """The difference, on each seed as well."""
    values = tuple(a - b for a, b in zip(one.values, other.values, strict=False))
    return Number(one.mean - other.mean, values=values)


def above(a: float, b: float) -> bool:
    return a > b


def below(a: float, b: float) -> bool:
    return a < b


def least(a: float, b: float) -> bool:
    return a >= b


def most(a: float, b: float) -> bool:
    return a <= b
