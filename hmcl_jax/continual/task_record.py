"""The record of a finished task as plain data: scores, losses, figures and times, per seed."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np


def with_nan(tree: Any) -> Any:
    """Plain data with NaN for each None in a list, as :func:`hmcl_jax._files.without_nan` took it.

    The value of a key stays None: it may mean that there is none.
    """
    if isinstance(tree, dict):
        return {key: with_nan(value) for key, value in tree.items()}
    if isinstance(tree, list):
        return [float("nan") if value is None else with_nan(value) for value in tree]
    return tree


def check_entry(name: str, entry: Mapping[str, Any], seeds: int, t: int) -> None:
    """Refuses a record of another form.

    Args:
      name: of the record, for messages.
      entry: the record.
      seeds: how many the run has.
      t: index of the task in the stream, from 0.

    Raises:
      ValueError, TypeError: they say what should be where.
    """
    if set(entry) != set(FORMS):
        raise ValueError(f"{name} must hold {', '.join(sorted(FORMS))}, got {in_short([*entry])}")
    for key, check in FORMS.items():
        check(f"{key} of {name}", entry[key], seeds, t)
    if not all("score" in cell for cell in entry["details"]):
        raise ValueError(f"details of {name} must have a score for every task")


def in_short(value: Any) -> str:
    """A value in few letters."""
    text = repr(value)
    return text if len(text) <= 40 else f"{text[:39]}…"


def mapping(name: str, value: Any) -> dict[str, Any]:
    """`value`, if it is a table."""
    if not isinstance(value, dict):
        raise TypeError(f"{name} must be an object, got {in_short(value)}")
    return value


def numbers(name: str, values: Any, shape: Sequence[int | None]) -> np.ndarray:
    """An array of numbers, NaN for null; None in the shape is any length."""
    array = np.array(values, object)
    fits = array.ndim == len(shape) and all(
        wanted in (None, got) for wanted, got in zip(shape, array.shape, strict=True)
    )
    if not fits:
        wanted = ", ".join("any" if n is None else str(n) for n in shape)
        raise ValueError(f"{name} must be numbers of shape ({wanted}), got shape {array.shape}")
    for value in array.flat:
        if value is not None and type(value) not in (int, float):
            raise TypeError(f"{name} must be numbers, got {in_short(value)}")
    try:
        return array.astype(np.float64)
    except OverflowError as error:
        raise ValueError(f"{name} must be numbers that a float can hold: {error}") from error


def _check_details(name: str, held: Any, seeds: int, t: int) -> None:
    if not isinstance(held, list) or len(held) != t + 1:
        raise ValueError(f"{name} must be a list of {t + 1} entries")
    for cell in held:
        for measure, values in mapping(name, cell).items():
            numbers(f"{name} {measure}", values, (seeds,))


def _check_losses(name: str, held: Any, seeds: int, t: int) -> None:
    numbers(name, held, (seeds, None))


def _check_logs(name: str, held: Any, seeds: int, t: int) -> None:
    for figure, values in mapping(name, held).items():
        deep = isinstance(values, list) and bool(values) and isinstance(values[0], list)
        numbers(f"{name} {figure}", values, (seeds, None) if deep else (seeds,))


def _check_seconds(name: str, held: Any, seeds: int, t: int) -> None:
    for what, value in mapping(name, held).items():
        if type(value) not in (int, float) or not -1e15 < value < 1e15:
            raise TypeError(f"{name} {what} must be a number, got {in_short(value)}")


FORMS = {
    "details": _check_details,
    "losses": _check_losses,
    "logs": _check_logs,
    "seconds": _check_seconds,
}
