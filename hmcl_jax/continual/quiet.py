"""Keeps TensorStore's threads from printing tracebacks after a save or a reading has failed.

The first array that fails ends Orbax's event loop. Those still under way find it closed, and for
each of them Python would print a traceback, around the one message that says what to do.
"""

import sys
from typing import Any


def ignore_closed_loops() -> None:
    """From now on, threads that find an event loop closed do not print it; all else is printed."""
    before = sys.unraisablehook
    if isinstance(before, _Hook):
        return
    sys.unraisablehook = _Hook(before)


class _Hook:
    def __init__(self, before: Any) -> None:
        self.before = before

    def __call__(self, unraisable: Any, /) -> None:
        error = unraisable.exc_value
        closed = isinstance(error, RuntimeError) and str(error) == "Event loop is closed"
        if not (closed and unraisable.object is None):
            self.before(unraisable)
