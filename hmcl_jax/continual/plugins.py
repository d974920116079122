"""Methods that are not in the package: a Python file of the user's, or an installed package.

Either offers a mapping ``METHODS`` from names to :class:`hmcl_jax.continual.methods.Entry`, a
package by an entry point of the group ``hmcl_jax.methods``; see docs/extend.md. Loading executes
the file, as ``python FILE.py`` would.
"""

import dataclasses
import functools
import importlib.metadata
import json
import os
import runpy
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from hmcl_jax._files import file_sha256
from hmcl_jax.continual.config import ConfigError
from hmcl_jax.continual.method import Method
from hmcl_jax.continual.methods import METHODS, Entry, check_name

GROUP = "hmcl_jax.methods"


def load_methods(path: str | os.PathLike[str]) -> tuple[str, ...]:
    """Executes a Python file and adds its ``METHODS`` to the known ones; gives their names."""
    if not Path(path).is_file():
        raise ConfigError(f"A file of methods must be a Python file, got {str(path)!r}.")
    found = _guarded(f"{path} failed", lambda: runpy.run_path(str(path)).get("METHODS"))
    return _add(str(path), found, file_sha256(path))


def load_plugin(name: str) -> tuple[str, ...]:
    """Imports an entry point of an installed package and adds its methods; gives their names."""
    points = importlib.metadata.entry_points(group=GROUP)
    chosen = [point for point in points if point.name == name]
    if len(chosen) != 1:
        known = ", ".join(sorted(point.name for point in points)) or "none"
        raise ConfigError(
            f"A plugin must be one entry point of {GROUP}, got {name!r}, of which there are "
            f"{len(chosen)}; installed: {known}."
        )
    (point,) = chosen
    source = f"The entry point {name} = {point.value}"
    found = _guarded(f"{source} failed", point.load)
    # Of the package's other files only the version tells whether they have changed.
    version = f"{point.dist.name} {point.dist.version}" if point.dist else ""
    file = getattr(sys.modules.get(point.module), "__file__", None)
    return _add(source, found, f"{version} {file_sha256(file) if file else point.value}")


def is_users(method: str) -> bool:
    """Whether a method of METHODS is from a file or a plugin, not from this package."""
    return bool(METHODS[method].method.code)


def _guarded(what: str, call: Callable[[], Any]) -> Any:
    """The result of the user's code; whatever it raises, exits included, becomes our error."""
    try:
        return call()
    except KeyboardInterrupt:
        raise
    except BaseException as error:
        raise ConfigError(f"{what}: {type(error).__name__}: {error}") from error


def _add(source: str, found: Any, code: str) -> tuple[str, ...]:
    """Adds a mapping of methods, all or none of them."""
    if not isinstance(found, Mapping) or not found:
        kind = type(found).__name__
        raise ConfigError(f"{source} must have METHODS = {{name: Entry(...)}}, got one of {kind}.")
    made = {}
    for name, entry in found.items():
        _guarded(source, functools.partial(check_name, name))
        if name.lower() in {known.lower() for known in METHODS}:
            raise ConfigError(f"{source}: {name!r} is a method already; choose another name.")
        if not isinstance(entry, Entry) or not isinstance(entry.method, Method):
            raise ConfigError(
                f"{source}: METHODS[{name!r}] must be an Entry of a Method, got {entry!r}."
            )
        method = entry.method
        to_json = functools.partial(json.dumps, method.described(), allow_nan=False)
        _guarded(f"{source}: settings of {name} must hold only what JSON has", to_json)
        _guarded(f"{source}: {name} cannot be made", method.check)
        made[name] = entry._replace(method=dataclasses.replace(method, code=code))
    METHODS.update(made)
    return tuple(made)
