"""SIGTERM, the notice of a scheduler that a job must go: stop at once, and say how to go on.

What is on disk is a whole run at every moment (:mod:`hmcl_jax.continual.checkpoint`), so there is
nothing to finish. Python runs handlers only between its own instructions, and a task may be one
compiled program of minutes; so a thread waits for the signal, and ends the process.
"""

import contextlib
import os
import signal
import sys
import threading
from collections.abc import Callable

TERMINATED = 128 + int(signal.SIGTERM)  # 143, what shells report of a process that SIGTERM ended


def stop_on_sigterm(message: str, tidy: Callable[[], None] = lambda: None) -> None:
    """From now on, SIGTERM prints a message and ends this process at once with code 143.

    Args:
      message: printed to standard error.
      tidy: called before the end, in another thread than the one that is busy.
    """
    if threading.current_thread() is not threading.main_thread():
        return  # only the main thread may say what signals do
    reading, writing = os.pipe()
    os.set_blocking(writing, False)
    # The number of every signal that has a handler is written there, whatever Python is busy with.
    signal.set_wakeup_fd(writing, warn_on_full_buffer=False)
    signal.signal(signal.SIGTERM, lambda number, frame: None)
    arguments = (reading, message, tidy)
    threading.Thread(target=_wait, args=arguments, name="sigterm", daemon=True).start()


def _wait(reading: int, message: str, tidy: Callable[[], None]) -> None:
    while int(signal.SIGTERM) not in os.read(reading, 64):
        pass
    with contextlib.suppress(Exception):  # whatever it leaves, the process must end
        tidy()
    show_cursor = "\x1b[?25h" if sys.stderr.isatty() else ""
    # Not print: another thread may be in the middle of it, and hold its lock.
    os.write(2, f"\n{show_cursor}{message}\n".encode())
    os._exit(TERMINATED)
