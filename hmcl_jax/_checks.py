"""Checks of user input: every error names the argument, its value and the remedy."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.typing import ArrayLike

# Products that define the geometry are never rounded to TF32 or bfloat16.
PRECISION = jax.lax.Precision.HIGHEST


def is_concrete(x: Any) -> bool:
    """Whether the value of `x` is known now; inside a transformation of JAX it is not."""
    return not isinstance(x, jax.core.Tracer)


def working_dtype(*arrays: jax.Array) -> np.dtype:
    """The dtype that a computation on `arrays` runs in: the widest, but at least float32."""
    known = (jax.dtypes.canonicalize_dtype(x.dtype) for x in arrays)
    return max((np.dtype(jnp.float32), *known), key=lambda t: t.itemsize)


def as_points(**named: ArrayLike) -> tuple[jax.Array, ...]:
    """Converts named arguments to floating arrays of one dtype with at least one axis."""
    arrays = []
    for name, value in named.items():
        array = jnp.asarray(value)
        if not jnp.issubdtype(array.dtype, jnp.floating):
            # Integers are welcome, as in [[1, 0]]; booleans and complex numbers are mistakes.
            if not jnp.issubdtype(array.dtype, jnp.integer):
                raise TypeError(f"{name} must hold real numbers, got dtype {array.dtype}.")
            array = array.astype(jnp.float32)
        if array.ndim == 0 or array.shape[-1] == 0:
            raise ValueError(
                f"{name} must have shape (..., d) with d >= 1, got shape {array.shape}."
            )
        arrays.append(array)
    dtype = working_dtype(*arrays)
    return tuple(array.astype(dtype) for array in arrays)


def same_dimension(**named: jax.Array) -> None:
    """Refuses points of different spaces."""
    if len({array.shape[-1] for array in named.values()}) > 1:
        shapes = ", ".join(f"{name} {array.shape}" for name, array in named.items())
        raise ValueError(f"The last axes must have one length, got shapes {shapes}.")


def matrices(**named: jax.Array) -> None:
    """Refuses anything but one matrix of points per argument."""
    for name, array in named.items():
        if array.ndim != 2:
            raise ValueError(
                f"{name} must have shape (n, d), got shape {array.shape}; "
                "use jax.vmap for further axes."
            )
    same_dimension(**named)


def number(name: str, value: ArrayLike) -> float | None:
    """The value of a real scalar, or None if it is traced."""
    if not is_concrete(value) and jnp.ndim(value) == 0:
        return None
    if not isinstance(value, int | float | np.number | np.ndarray | jax.Array):
        raise TypeError(f"{name} must be a number, got {name} = {value!r}.")
    if jnp.ndim(value) != 0:
        raise ValueError(f"{name} must be a scalar, got shape {jnp.shape(value)}.")
    return float(np.asarray(value))


def integer(name: str, value: Any, least: int) -> None:
    """Refuses anything but whole numbers from `least` on."""
    # In Python, True is an int.
    if isinstance(value, bool) or not isinstance(value, int | np.integer):
        raise TypeError(f"{name} must be a whole number, got {name} = {value!r}.")
    if value < least:
        raise ValueError(f"{name} must be at least {least}, got {name} = {value}.")


def instance(name: str, value: Any, kind: type, remedy: str) -> None:
    """Refuses a value of another type."""
    if not isinstance(value, kind):
        raise TypeError(f"{name} must be {remedy}, got {type(value).__name__}.")


def positive(name: str, value: ArrayLike, dtype: Any, *, or_zero: bool = False) -> jax.Array:
    """A positive finite scalar in the given dtype; traced values are trusted."""
    known = number(name, value)
    allowed = known is None or (np.isfinite(known) and (known > 0 or (or_zero and known == 0)))
    if not allowed:
        least = "at least 0" if or_zero else "positive"
        raise ValueError(f"{name} must be {least} and finite, got {name} = {value}.")
    return jnp.asarray(value, dtype)


def fraction(name: str, value: ArrayLike, *, low_open: bool, high_open: bool) -> None:
    """Refuses values outside the unit interval; traced values are trusted."""
    known = number(name, value)
    if known is None:
        return
    low_ok = known > 0 if low_open else known >= 0
    high_ok = known < 1 if high_open else known <= 1
    if not (low_ok and high_ok):
        interval = f"{'(' if low_open else '['}0, 1{')' if high_open else ']'}"
        raise ValueError(f"{name} must be in {interval}, got {name} = {value}.")


def choice(name: str, value: Any, options: tuple[str, ...]) -> None:
    """Refuses a value that is not one of the options."""
    if value not in options:
        listed = ", ".join(repr(option) for option in options)
        raise ValueError(f"{name} must be one of {listed}, got {name} = {value!r}.")


def finite(name: str, tree: Any) -> None:
    """Refuses NaN and infinity in the concrete arrays of a tree, naming the leaf."""
    for path, leaf in jax.tree_util.tree_leaves_with_path(tree):
        if not is_concrete(leaf) or not jnp.issubdtype(jnp.result_type(leaf), jnp.floating):
            continue
        # In numpy: inside a transformation even operations on constants would be traced.
        finite = np.isfinite(np.asarray(leaf))
        if not finite.all():
            bad = finite.size - np.count_nonzero(finite)
            at = jax.tree_util.keystr(path)
            raise ValueError(
                f"{name}{at} must be finite, got {bad} NaN or infinite value(s) "
                f"among {np.size(leaf)}."
            )
