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
    """Imports a module such as ``"matplotlib.pyplot"``, which the extra `extra` installs.

    Raises an ImportError with the command that installs the extra if the package is missing.
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
