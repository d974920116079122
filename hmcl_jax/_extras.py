"""Packages that only some features need: imported on first use, named if they are missing."""

import importlib
from typing import Any

# Which extra of hmcl_jax installs a package, by the name that is imported.
EXTRA_OF = {
    "PIL": "backbones",
    "array_record": "tfds",
    "datasets": "data",
    "filelock": "run",
    "flax": "flax",
    "ftfy": "backbones",
    "jinja2": "report",
    "matplotlib": "report",
    "orbax": "run",
    "rich": "run",
    "safetensors": "backbones",
    "tensorflow_datasets": "tfds",
    "tokenizers": "backbones",
    "torch": "convert",
}


def require(module: str, extra: str) -> Any:
    """Imports a module of an optional package.

    Args:
      module: such as ``"matplotlib.pyplot"``.
      extra: of hmcl_jax that installs the package, such as ``"report"``.

    Returns:
      The module.

    Raises:
      ImportError: with the command that installs the extra.

    Example:
      >>> from hmcl_jax._extras import require
      >>> require("no_such_package", "report")
      Traceback (most recent call last):
      ImportError: The package 'no_such_package' is missing: pip install 'hmcl_jax[report]'
    """
    try:
        return importlib.import_module(module)
    except ModuleNotFoundError as error:
        package = (error.name or module).partition(".")[0]
        raise ImportError(install_command(package, extra), name=package) from error


def install_command(package: str, extra: str | None = None) -> str:
    """The sentence that names a missing package and the command that installs it."""
    extra = extra or EXTRA_OF.get(package)
    wanted = f"'hmcl_jax[{extra}]'" if extra else package
    return f"The package {package!r} is missing: pip install {wanted}"
