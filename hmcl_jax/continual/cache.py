"""Compiled programs kept from run to run by JAX's own persistent compilation cache."""

import logging
import os
import stat
from pathlib import Path
from typing import Any

import jax

# Programs that compile faster than this are not kept: they are many, and gain little.
LEAST_SECONDS = 0.05
# Bytes; what was not used for longest goes first. Low, because JAX looks at every program that is
# there whenever it writes one. A stream takes about 1 MiB.
LIMIT = 64 * 2**20
COMPILED = "/jax/core/compile/backend_compile_duration"  # includes loading what was kept
LOADED = "/jax/compilation_cache/cache_retrieval_time_sec"

logger = logging.getLogger(__name__)


def keep_programs(on: bool = True) -> Path | None:
    """Keeps compiled programs on disk, so that the next process does not compile them again.

    In the folder that ``JAX_COMPILATION_CACHE_DIR`` names, with the limit of size that its owner
    gave; else in ``hmcl_jax/programs`` of the user's cache (``$XDG_CACHE_HOME`` or ``~/.cache``),
    which is held below 64 MiB. ``JAX_ENABLE_COMPILATION_CACHE=false`` turns it off. If the folder
    cannot be used, a warning says why, and nothing is kept.

    What is in the folder is executed: whoever can write to it can run code as you. It is made for
    its owner alone (mode 0700); do not share it with people you do not trust.

    Args:
      on: False to keep nothing and load nothing.

    Returns:
      The folder, or None.

    Example:
      >>> from hmcl_jax.continual.cache import keep_programs
      >>> folder = keep_programs()  # doctest: +SKIP
    """
    config: Any = jax.config  # its attributes are made at run time
    if not on or not config.jax_enable_compilation_cache:
        jax.config.update("jax_enable_compilation_cache", False)
        return None
    given = config.jax_compilation_cache_dir
    folder = Path(given) if given else own_folder()
    try:
        if not (given and "://" in given):
            _make(folder)
        if not given:
            _check_private(folder)
            _remove_half_written(folder)
    except OSError as error:
        logger.warning("Compiled programs are not kept in %s: %s", folder, error)
        jax.config.update("jax_enable_compilation_cache", False)
        return None
    if not given:
        jax.config.update("jax_compilation_cache_dir", str(folder))
        jax.config.update("jax_compilation_cache_max_size", LIMIT)
    if "JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS" not in os.environ:
        jax.config.update("jax_persistent_cache_min_compile_time_secs", LEAST_SECONDS)
    return folder


def own_folder() -> Path:
    """Where programs are kept if ``JAX_COMPILATION_CACHE_DIR`` does not say."""
    caches = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(caches) / "hmcl_jax" / "programs"


def _make(folder: Path) -> None:
    """A folder that can be written, for its owner alone if it is new."""
    folder.parent.mkdir(parents=True, exist_ok=True)
    folder.mkdir(mode=0o700, exist_ok=True)
    if not os.access(folder, os.W_OK | os.X_OK):
        raise PermissionError("it cannot be written to.")


def _check_private(folder: Path) -> None:
    """Refuses a folder from which others could make us run their programs."""
    about = folder.stat()
    if hasattr(os, "getuid") and about.st_uid != os.getuid():
        raise PermissionError("it belongs to another user.")
    if os.name == "posix" and stat.S_IMODE(about.st_mode) & 0o022:
        raise PermissionError("others can write to it; chmod 700 it, or remove it.")


def _remove_half_written(folder: Path) -> None:
    """JAX writes a program, then its date; one without the other would stop all later writes."""
    for program in folder.glob("*-cache"):
        if not program.with_name(program.name.removesuffix("-cache") + "-atime").exists():
            program.unlink(missing_ok=True)


class CompileTime:
    """Counts what JAX compiles, from the moment it is made.

    Attributes:
      seconds: spent on compiling, or on loading what was kept.
      programs: that were needed.
      kept: those of them that were loaded.

    Example:
      >>> import jax
      >>> from hmcl_jax.continual.cache import CompileTime
      >>> compiling = CompileTime()
      >>> five = jax.jit(lambda x: x + 4)(1)
      >>> compiling.programs, compiling.seconds > 0
      (1, True)
    """

    def __init__(self) -> None:
        self.seconds, self.programs, self.kept = 0.0, 0, 0
        jax.monitoring.register_event_duration_secs_listener(self._add)

    def _add(self, event: str, duration_secs: float, **kwargs: str | int) -> None:
        del kwargs
        if event == COMPILED:
            self.seconds += duration_secs
            self.programs += 1
        elif event == LOADED:
            self.kept += 1

    def described(self) -> dict[str, float]:
        """For the results of a run."""
        return {
            "compile_seconds": self.seconds,
            "programs": self.programs,
            "programs_kept": self.kept,
        }
