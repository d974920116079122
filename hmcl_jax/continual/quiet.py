"""Keeps Orbax and TensorStore from printing tracebacks after a save or a reading has failed.

The first array that fails ends Orbax's event loop, and is what we explain. The others, still under
way, find the loop closed or fail too with nobody waiting for them, and Python would print a
traceback for each, around the one message that says what to do.
"""

import logging
import sys
from typing import Any


def ignore_stragglers() -> None:
    """From now on, arrays that fail after the first do not print it; all else is printed."""
    logging.getLogger("asyncio").addFilter(_is_no_straggler)  # once, however often it is asked
    if not isinstance(sys.unraisablehook, _Hook):
        sys.unraisablehook = _Hook(sys.unraisablehook)


def _is_no_straggler(record: logging.LogRecord) -> bool:
    error = record.exc_info[1] if record.exc_info else None
    return not ("was never retrieved" in record.getMessage() and "tensorstore" in str(error))


class _Hook:
    def __init__(self, before: Any) -> None:
        self.before = before

    def __call__(self, unraisable: Any, /) -> None:
        error = unraisable.exc_value
        closed = isinstance(error, RuntimeError) and str(error) == "Event loop is closed"
        if not (closed and unraisable.object is None):
            self.before(unraisable)
