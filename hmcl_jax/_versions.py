"""Versions of the packages that results may depend on."""

import platform
from importlib import metadata

USUAL = ("hmcl_jax", "jax", "jaxlib", "optax", "numpy", "orbax-checkpoint")


def versions(packages: tuple[str, ...] = USUAL) -> dict[str, str]:
    """Versions of Python and of packages, by name."""
    found = {"python": platform.python_version()}
    for package in packages:
        try:
            found[package] = metadata.version(package)
        except metadata.PackageNotFoundError:
            found[package] = "not installed"
    return found
