"""Compiled programs kept from run to run by JAX's own persistent compilation cache."""

import contextlib
import os
from pathlib import Path
from typing import Any

import jax

LEAST_SECONDS = 0.05  # programs that compile faster are many, and gain little
# Bytes; what was not used for longest goes first. Low, because JAX looks at every program that is
# there whenever it writes one. A stream takes about 1 MiB.
LIMIT = 64 * 2**20
COMPILED = "/jax/core/compile/backend_compile_duration"  # includes loading from the cache
LOADED = "/jax/compilation_cache/cache_retrieval_time_sec"


def keep_programs(on: bool = True) -> Path | None:
    """Keeps compiled programs on disk for later processes; gives the folder, None if it is off.

    The folder is ``JAX_COMPILATION_CACHE_DIR``, else ``hmcl_jax/programs`` in the user's cache.
    Its files are executed: whoever can write to it can run code as you.
    """
    config: Any = jax.config  # its attributes are made at run time
    if not on or not config.jax_enable_compilation_cache:
        config.update("jax_enable_compilation_cache", False)
        return None
    if "JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS" not in os.environ:
        config.update("jax_persistent_cache_min_compile_time_secs", LEAST_SECONDS)
    if not config.jax_compilation_cache_dir:
        caches = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
        folder = caches / "hmcl_jax" / "programs"
        with contextlib.suppress(OSError):  # JAX warns when it uses the folder
            folder.parent.mkdir(parents=True, exist_ok=True)
            folder.mkdir(mode=0o700, exist_ok=True)
        config.update("jax_compilation_cache_dir", str(folder))
        config.update("jax_compilation_cache_max_size", LIMIT)
    return Path(config.jax_compilation_cache_dir)


class CompileTime:
    """Counts the programs that JAX compiles, or loads from the cache, and the seconds of it."""

    def __init__(self) -> None:
        self.seconds, self.programs, self.kept = 0.0, 0, 0
        jax.monitoring.register_event_duration_secs_listener(self._add)

    def _add(self, event: str, duration_secs: float, **_: str | int) -> None:
        if event == COMPILED:
            self.seconds += duration_secs
            self.programs += 1
        elif event == LOADED:
            self.kept += 1

    def described(self) -> dict[str, float]:
        names = ("compile_seconds", "programs", "programs_kept")
        return dict(zip(names, (self.seconds, self.programs, self.kept), strict=True))
