r"""The Lorentz layer :math:`f(W; z) = [\sqrt{K + |W z|^2}; W z]` (paper: eq:lorentz_layer).

A head is one array ``W = [w0 | Ws]`` of shape ``(d, d + 1)``: `w0` acts on the time component of
its input, `Ws` on the space components. Heads are a mapping ``{modality: W}``. The initial head
``[0 | I]`` hands the frozen backbone's points on unchanged.
"""

from collections.abc import Callable, Iterable, Mapping
from typing import Any

import jax
import jax.numpy as jnp
import optax
from jax.typing import ArrayLike

from hmcl_jax import _checks, lorentz
from hmcl_jax._checks import PRECISION


def identity_head(dim: int, dtype: Any = jnp.float32) -> jax.Array:
    """The head ``[0 | I]``, which changes nothing.

    Args:
      dim: dimension d of the space.
      dtype: of the array.

    Returns:
      Shape ``(d, d + 1)``.

    Example:
      >>> import hmcl_jax
      >>> print(hmcl_jax.identity_head(2))
      [[0. 1. 0.]
       [0. 0. 1.]]
    """
    _checks.integer("dim", dim, 1)
    if not jnp.issubdtype(dtype, jnp.floating):
        raise TypeError(f"dtype must be a floating dtype, got dtype = {dtype!r}.")
    return jnp.eye(dim, dim + 1, k=1, dtype=dtype)


def identity_heads(
    modalities: Iterable[str], dim: int, dtype: Any = jnp.float32
) -> dict[str, jax.Array]:
    """One :func:`identity_head` for each modality.

    Args:
      modalities: names.
      dim: dimension d of the space.
      dtype: of the arrays.

    Returns:
      ``{modality: W}``.

    Example:
      >>> import hmcl_jax
      >>> sorted(hmcl_jax.identity_heads(["image", "text"], dim=4))
      ['image', 'text']
    """
    if isinstance(modalities, str):
        raise TypeError(f"modalities must be a collection of names, got the string {modalities!r}.")
    return {modality: identity_head(dim, dtype) for modality in modalities}


def check_head(name: str, W: Any, hint: str = "") -> int:
    """Dimension of a head; refuses everything else."""
    if not hasattr(W, "shape") or not hasattr(W, "dtype"):
        raise TypeError(f"{name} must be an array, got {type(W).__name__}.{hint}")
    if jnp.ndim(W) < 2 or W.shape[-1] != W.shape[-2] + 1:
        raise ValueError(
            f"{name} must be a head of shape (d, d + 1), got shape {tuple(jnp.shape(W))}.{hint}"
        )
    if not jnp.issubdtype(W.dtype, jnp.floating):
        raise TypeError(f"{name} must be a head of floating dtype, got dtype {W.dtype}.{hint}")
    return int(W.shape[-2])


def as_lifted(name: str, z: ArrayLike, dim: int, K: ArrayLike) -> jax.Array:
    """Lifted points, from points of dimension `dim` or from points that are lifted already."""
    (z,) = _checks.as_points(**{name: z})
    _checks.positive("K", K, z.dtype)
    if z.shape[-1] == dim:
        return lorentz.lift(z, K)
    if z.shape[-1] == dim + 1:
        return z
    raise ValueError(
        f"{name} must have {dim} space components, or {dim + 1} components with time first, "
        f"got shape {z.shape}."
    )


def apply_head(W: ArrayLike, z: ArrayLike, K: ArrayLike = 10.0) -> jax.Array:
    """Moves frozen features through a head.

    Args:
      W: head, shape ``(d, d + 1)``.
      z: features, shape ``(..., d)``, or lifted points, shape ``(..., d + 1)``.
      K: squared radius of the hyperboloid.

    Returns:
      Space components of the outputs, shape ``(..., d)``; :func:`lorentz.lift` adds the time.

    Example:
      >>> import hmcl_jax
      >>> W = hmcl_jax.identity_head(2).at[0, 0].set(1.0)   # adds the time to the first component
      >>> print(hmcl_jax.apply_head(W, [3.0, 0.0], K=16.0))
      [8. 0.]
    """
    W = jnp.asarray(W)
    dim = check_head("W", W)
    if W.ndim != 2:
        raise ValueError(f"W must be one head (d, d + 1), got shape {W.shape}; use jax.vmap.")
    lifted = as_lifted("z", z, dim, K)
    dtype = _checks.working_dtype(W, lifted)
    return jnp.matmul(lifted.astype(dtype), W.astype(dtype).T, precision=PRECISION)


def is_masked(node: Any) -> bool:
    """Whether a node of a tree stands for what Optax has masked out."""
    return isinstance(node, optax.MaskedNode)


def _path(keys: Any) -> str:
    """The path of a leaf, such as ``params/image/W``."""
    # Flax NNX shows Optax a parameter as a Variable, whose array is its attribute `value`, in init,
    # and as that array in update. The path is the same for both.
    if len(keys) > 1 and keys[-1] == jax.tree_util.GetAttrKey("value"):
        keys = keys[:-1]
    return jax.tree_util.keystr(keys, simple=True, separator="/")


def map_by_path(function: Callable[[str, Any], Any], tree: Any) -> Any:
    """Maps ``function(path, leaf)`` over a tree; masked nodes stay as they are."""

    def apply(path: Any, leaf: Any) -> Any:
        if is_masked(leaf):
            return leaf
        return function(_path(path), leaf)

    return jax.tree_util.tree_map_with_path(apply, tree, is_leaf=is_masked)


def leaf_paths(tree: Any) -> dict[str, Any]:
    """Leaves by path, such as ``params/image/W``; masked ones as Optax's node."""
    found: dict[str, Any] = {}
    for keys, leaf in jax.tree_util.tree_leaves_with_path(tree, is_leaf=is_masked):
        path = _path(keys)
        if path in found:
            raise ValueError(f"Two leaves have the path {path!r}; rename one of their keys.")
        found[path] = leaf
    return found


def head_paths(params: Any, heads: Mapping[str, str] | None) -> dict[str, str]:
    """Paths of the heads in a tree of parameters, by modality and sorted; without masked ones.

    With ``heads=None`` every leaf is a head, named by its path.
    """
    if heads is not None:
        _checks.instance("heads", heads, Mapping, "a mapping {modality: path}")
        if not heads or len(set(heads.values())) < len(heads):
            raise ValueError(f"heads must name each head once, got heads = {dict(heads)}.")
    leaves = leaf_paths(params)
    masked = [path for path, leaf in leaves.items() if is_masked(leaf)]
    present = {path: leaf for path, leaf in leaves.items() if path not in masked}
    found = {}
    for modality, path in ({p: p for p in present} if heads is None else heads).items():
        if path not in leaves and path.removesuffix("/value") in leaves:
            path = path.removesuffix("/value")  # as Flax NNX prints it
        if path in present:
            found[modality] = path
        elif not any(path == node or path.startswith(f"{node}/") for node in masked):
            raise ValueError(
                f"heads[{modality!r}] = {path!r} is not a leaf of params; "
                f"its leaves are {sorted(leaves)}."
            )
    return dict(sorted(found.items()))


def select_heads(params: Any, heads: Mapping[str, str] | None = None) -> dict[str, jax.Array]:
    """The heads in a tree of parameters, by modality, all of one dimension.

    Args:
      params: parameters. With ``heads=None`` every leaf must be a head; in a flat mapping
        ``{modality: W}`` its key is the modality.
      heads: ``{modality: path}`` if heads sit in a larger tree, with paths like
        ``"params/image_head/W"``.

    Returns:
      ``{modality: W}``.

    Example:
      >>> import jax.numpy as jnp, hmcl_jax
      >>> model = {"params": {"head": {"W": hmcl_jax.identity_head(4)}, "scale": jnp.ones(())}}
      >>> print({m: W.shape for m, W in
      ...        hmcl_jax.select_heads(model, {"image": "params/head/W"}).items()})
      {'image': (4, 5)}
    """
    leaves = leaf_paths(params)
    found = {modality: leaves[path] for modality, path in head_paths(params, heads).items()}
    hint = " If params holds other leaves too, name the heads: heads={modality: path}."
    hint = "" if heads else hint
    dims = {m: check_head(f"Head {m!r}", W, hint) for m, W in found.items()}
    if len(set(dims.values())) > 1:
        raise ValueError(f"All heads must have one dimension, got {dims}.")
    return found
