"""The methods of the package: one file each, and their registry."""

from hmcl_jax.continual.methods.registry import (
    METHODS,
    NAME,
    Entry,
    check_name,
    list_methods,
    make_method,
)

__all__ = ["METHODS", "NAME", "Entry", "check_name", "list_methods", "make_method"]
