"""Where two trees of plain data differ."""

import json
from collections.abc import Iterator
from typing import Any


def text(value: Any) -> str:
    """Plain data as JSON, with one text for equal values."""
    return json.dumps(value, sort_keys=True)


def _flat(tree: Any, path: tuple[str, ...] = ()) -> Iterator[tuple[tuple[str, ...], Any]]:
    if isinstance(tree, dict) and tree:
        for key, value in tree.items():
            yield from _flat(value, (*path, key))
    else:
        yield path, tree


def differences(found: dict[str, Any], asked: dict[str, Any], here: str, there: str) -> list[str]:
    """Where two trees of dicts differ, by dotted path.

    Args:
      found: one tree.
      asked: the other.
      here: where the one is, in words.
      there: where the other is.

    Returns:
      A phrase for every difference.

    Example:
      >>> from hmcl_jax.continual.differences import differences
      >>> differences({"a": {"b": 1}}, {"a": {"b": 2}}, "here", "there")
      ['a.b: 1 here, 2 there']
    """
    a, b = dict(_flat(found)), dict(_flat(asked))

    def shown(values: dict[tuple[str, ...], Any], path: tuple[str, ...]) -> str:
        return repr(values[path]) if path in values else "absent"

    return [
        f"{'.'.join(path)}: {shown(a, path)} {here}, {shown(b, path)} {there}"
        for path in sorted({*a, *b})
        if path not in a or path not in b or text(a[path]) != text(b[path])
    ]
