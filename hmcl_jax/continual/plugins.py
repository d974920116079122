"""Methods that are not in the package: a Python file of the user's, or an installed package.

The file says what it offers in a mapping ``METHODS`` from names to
:class:`hmcl_jax.continual.methods.Entry`, the form of the package's own methods::

    import dataclasses
    from hmcl_jax.continual import Method
    from hmcl_jax.continual.methods import Entry

    @dataclasses.dataclass(frozen=True)
    class Halved(Method):
        share: float = 0.5

        def combine(self, gradients, heads, state, num_minibatches, spec):
            return {m: self.share * g for m, g in gradients[0].items()}

    METHODS = {"halved": Entry(Halved(), "half the gradient", "0", "-")}

Loading executes the file, as ``python FILE.py`` would. Only name files that you would run.

A package offers such a mapping by an entry point of the group ``hmcl_jax.methods``::

    [project.entry-points."hmcl_jax.methods"]
    halved = "my_package.halved:METHODS"

None is loaded unless it is asked for by name.
"""

import dataclasses
import functools
import hashlib
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
from hmcl_jax.continual.methods import METHODS, NAME, Entry

GROUP = "hmcl_jax.methods"


def load_methods(path: str | os.PathLike[str]) -> tuple[str, ...]:
    """Executes a file and adds the methods that it offers to the known ones.

    Args:
      path: of a Python file with a mapping ``METHODS``.

    Returns:
      Names of its methods. They can be asked for like those of the package.

    Raises:
      ConfigError: if the file fails, has no such mapping, or uses a name that is taken.
    """
    if not Path(path).is_file():
        raise ConfigError(f"A file of methods must be a Python file, got {str(path)!r}.")
    found = _guarded(f"{path} failed", lambda: runpy.run_path(str(path)).get("METHODS"))
    return _add(str(path), found, file_sha256(path))


def load_plugin(name: str) -> tuple[str, ...]:
    """Imports what an installed package offers as an entry point, and adds its methods.

    Args:
      name: of an entry point of the group ``hmcl_jax.methods``; it is a mapping like ``METHODS``.

    Returns:
      Names of its methods.

    Raises:
      ConfigError: if there is none, or more than one, of that name, or as in :func:`load_methods`.
    """
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
    version = "" if point.dist is None else f"{point.dist.name} {point.dist.version} "
    file = getattr(sys.modules.get(point.module), "__file__", None)
    code = file_sha256(file) if file else hashlib.sha256(point.value.encode()).hexdigest()
    return _add(source, found, f"{version}{code}")


def is_users(method: str) -> bool:
    """Whether a method of METHODS is from a file or a plugin, not from this package.

    Example:
      >>> from hmcl_jax.continual.plugins import is_users
      >>> is_users("vanilla")
      False
    """
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
        if not isinstance(name, str) or not NAME.fullmatch(name):
            raise ConfigError(
                f"{source}: a method's name must be letters, digits, '_' or '-', got {name!r}."
            )
        if name.lower() in {known.lower() for known in METHODS}:
            raise ConfigError(f"{source}: {name!r} is a method already; choose another name.")
        method = entry.method if isinstance(entry, Entry) else entry
        if not isinstance(entry, Entry) or not isinstance(method, Method):
            kind = type(method).__name__
            raise ConfigError(
                f"{source}: METHODS[{name!r}] must be an Entry of a Method, got one of {kind}."
            )
        to_json = functools.partial(json.dumps, method.described(), allow_nan=False)
        _guarded(f"{source}: settings of {name} must hold only what JSON has", to_json)
        _guarded(f"{source}: {name} cannot be made", method.check)
        made[name] = entry._replace(method=dataclasses.replace(method, code=code))
    METHODS.update(made)
    return tuple(made)
