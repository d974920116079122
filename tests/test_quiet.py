"""What is not printed after a failed reading, and what still is."""

import asyncio
import gc
import sys
from types import SimpleNamespace

import pytest

from hmcl_jax.continual.quiet import ignore_stragglers


@pytest.fixture
def printed(monkeypatch):
    """What reaches the hook that was there before ours."""
    found = []
    monkeypatch.setattr(sys, "unraisablehook", found.append)
    ignore_stragglers()
    return found


def test_closed_loops_are_not_printed(printed):
    loop = asyncio.new_event_loop()
    loop.close()
    with pytest.raises(RuntimeError) as caught:
        loop.call_soon_threadsafe(print)
    sys.unraisablehook(SimpleNamespace(exc_value=caught.value, object=None))
    assert printed == []


@pytest.mark.parametrize(
    ("error", "thing"),
    [
        (RuntimeError("Event loop is closed"), print),
        (RuntimeError("Event loop"), None),
        (OSError("Event loop is closed"), None),
        (KeyboardInterrupt(), None),
    ],
)
def test_all_else_is(printed, error, thing):
    unraisable = SimpleNamespace(exc_value=error, object=thing)
    sys.unraisablehook(unraisable)
    assert printed == [unraisable]


def test_once_is_enough(printed):
    hook = sys.unraisablehook
    ignore_stragglers()
    assert sys.unraisablehook is hook


@pytest.mark.parametrize(
    ("text", "said"), [("OUT_OF_RANGE [tensorstore_spec='x']", False), ("something else", True)]
)
def test_failures_that_nobody_waits_for(printed, caplog, text, said):
    async def fail():
        asyncio.get_running_loop().create_future().set_exception(ValueError(text))
        gc.collect()

    asyncio.run(fail())
    assert ("was never retrieved" in caplog.text) == said
