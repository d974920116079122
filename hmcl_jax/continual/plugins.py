"""Methods that are not in the package: one Python file of the user's, named on the command line.

The file says what it offers in a mapping ``METHODS`` from names to
:class:`hmcl_jax.continual.methods.Entry`, the form of the package's own methods::

    import dataclasses
    from hmcl_jax.continual.method import Method
    from hmcl_jax.continual.methods import Entry

    @dataclasses.dataclass(frozen=True)
    class Settings:
        share: float = 0.5

    def make(name, settings):
        def combine(gradients, params, state, minibatches, info):
            return {m: settings.share * g for m, g in gradients[0].items()}

        return Method(name, settings, combine=combine)

    METHODS = {"halved": Entry(Settings(), make, "half the gradient", "0", "-")}

Loading executes the file, as ``python FILE.py`` would. Only name files that you would run.
"""

import dataclasses
import hashlib
import os
import runpy
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from hmcl_jax.continual.config import ConfigError
from hmcl_jax.continual.method import Method
from hmcl_jax.continual.methods import METHODS, NAME, Entry


def load_methods(path: str | os.PathLike[str]) -> tuple[str, ...]:
    """Executes a file and adds the methods that it offers to the known ones.

    Args:
      path: of a Python file with a mapping ``METHODS``.

    Returns:
      Names of its methods. They can be asked for like those of the package.

    Raises:
      ConfigError: if the file fails, has no such mapping, or uses a name that is taken.

    Example:
      >>> from hmcl_jax.continual.plugins import load_methods
      >>> load_methods("halved.py")  # doctest: +SKIP
      ('halved',)
    """
    if not Path(path).is_file():
        raise ConfigError(f"A file of methods must be a Python file, got {str(path)!r}.")
    try:
        found = runpy.run_path(str(path)).get("METHODS")
    except Exception as error:  # whatever the user's code raises
        raise ConfigError(f"{path} failed: {type(error).__name__}: {error}") from error
    if not isinstance(found, Mapping) or not found:
        raise ConfigError(f"{path} must have METHODS = {{name: Entry(...)}}, got {found!r}.")
    for name, entry in found.items():
        if not isinstance(name, str) or not NAME.fullmatch(name):
            raise ConfigError(
                f"{path}: a method's name must be letters, digits, '_' or '-', got {name!r}."
            )
        if not isinstance(entry, Entry):
            raise ConfigError(f"{path}: METHODS[{name!r}] must be an Entry, got {entry!r}.")
        if name in METHODS:
            raise ConfigError(f"{path}: {name!r} is a method already; choose another name.")
        try:
            made = entry.make(name, entry.settings)
        except Exception as error:
            raise ConfigError(f"{path}: {name} cannot be made: {error}") from error
        if not isinstance(made, Method):
            raise ConfigError(f"{path}: make of {name!r} must give a Method, got {made!r}.")
    code = hashlib.sha256(Path(path).read_bytes()).hexdigest()
    METHODS.update({name: _of_file(entry, code) for name, entry in found.items()})
    return tuple(found)


def _of_file(entry: Entry, code: str) -> Entry:
    """An entry whose methods say which file they are from."""

    def make(name: str, settings: Any) -> Method:
        return dataclasses.replace(entry.make(name, settings), code=code)

    return entry._replace(make=make)
