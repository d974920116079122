"""The two towers of MERU and HyCoCLIP in Flax: a vision transformer and a causal text transformer.

Both are stacks of pre-norm layers with exact GELU and a LayerNorm eps of 1e-5, and end in a
projection without bias to the tangent space at the origin. Products run in the compute dtype; the
residual stream, statistics, softmax and the last projection stay in float32.
"""

import math
from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp

from hmcl_jax._checks import PRECISION

EPS = 1e-5


def gelu(x: jax.Array) -> jax.Array:
    """Exact GELU; by erf, because erfc, as in :func:`jax.nn.gelu`, takes longer."""
    return 0.5 * x * (1 + jax.lax.erf(x * math.sqrt(0.5)))


def attend(q: jax.Array, k: jax.Array, v: jax.Array, mask: jax.Array | None) -> jax.Array:
    """Softmax attention; on a CPU five times as fast as :func:`jax.nn.dot_product_attention`.

    Arrays are ``(n, heads, tokens, width)``; the mask says which token (last axis) a query sees.
    """
    precision = _precision(v.dtype)
    q = q * (q.shape[-1] ** -0.5)
    logits = jnp.einsum(
        "bhqd,bhkd->bhqk", q, k, precision=precision, preferred_element_type=jnp.float32
    )
    if mask is not None:
        logits = jnp.where(mask, logits, -jnp.inf)
    shares = jnp.exp(logits - logits.max(axis=-1, keepdims=True))
    seen = jnp.einsum(
        *("bhqk,bhkd->bhqd", shares.astype(v.dtype), v),
        precision=precision,
        preferred_element_type=jnp.float32,
    )
    return (seen / shares.sum(axis=-1, keepdims=True)).astype(v.dtype)


def _precision(dtype: Any) -> Any:
    """Products of float32 are never rounded to less."""
    return PRECISION if dtype == jnp.float32 else None


def _norm(name: str) -> nn.LayerNorm:
    return nn.LayerNorm(EPS, dtype=jnp.float32, use_fast_variance=False, name=name)


def _dense(name: str, features: int, dtype: Any, use_bias: bool = True) -> nn.Dense:
    return nn.Dense(
        features, dtype=dtype, precision=_precision(dtype), use_bias=use_bias, name=name
    )


class Layer(nn.Module):
    """Attention and MLP, each on the normed stream and added to it."""

    heads: int
    hidden: int  # width inside the MLP
    causal: bool  # whether a token sees only itself and those before it
    dtype: Any  # of the products

    @nn.compact
    def __call__(self, x: jax.Array, at: jax.Array | None = None) -> tuple[jax.Array, None]:
        """The stream after the layer, as a carry of :func:`flax.linen.scan`.

        Only the token `at` of each row is computed, or all if it is None.
        """
        batch, tokens, width = x.shape
        qkv = _dense("qkv", 3 * width, self.dtype)(_norm("norm1")(x))
        q, k, v = qkv.reshape(batch, tokens, 3, self.heads, -1).transpose(2, 0, 3, 1, 4)
        places = jnp.arange(tokens)
        wanted = places[None]
        if at is not None:
            wanted = at[:, None]
            x = jnp.take_along_axis(x, wanted[:, :, None], axis=1)
            q = jnp.take_along_axis(q, wanted[:, None, :, None], axis=2)
        mask = places[None, None, None] <= wanted[:, None, :, None] if self.causal else None
        seen = attend(q, k, v, mask).transpose(0, 2, 1, 3).reshape(x.shape)
        x = x + _dense("out", width, self.dtype)(seen).astype(x.dtype)
        inside = gelu(_dense("up", self.hidden, self.dtype)(_norm("norm2")(x)))
        return x + _dense("down", width, self.dtype)(inside).astype(x.dtype), None


class Tower(nn.Module):
    """The layers of a transformer, and the projection of one token to the tangent space."""

    width: int  # of the residual stream
    depth: int  # number of layers
    heads: int
    hidden: int  # width inside the MLPs
    dimension: int  # of the tangent space
    dtype: Any  # of the products

    def project(self, x: jax.Array, at: jax.Array, causal: bool) -> jax.Array:
        """The token `at` of each row after all layers, the last norm and the projection.

        The layers but the last are compiled once, and their parameters have a leading axis. Of the
        last, only the part that the token needs is computed.
        """
        settings = (self.heads, self.hidden, causal, self.dtype)
        if self.depth > 1:
            stack = nn.scan(
                Layer,
                variable_axes={"params": 0},
                split_rngs={"params": True},
                length=self.depth - 1,
            )
            x, _ = stack(*settings, name="layers")(x, None)
        x, _ = Layer(*settings, name="last")(x, at)
        pooled = _norm("norm")(x[:, 0])
        return _dense("projection", self.dimension, jnp.float32, use_bias=False)(pooled)


class ImageTower(Tower):
    """A vision transformer whose class token is projected to the tangent space at the origin."""

    patch: int  # side, in pixels

    @nn.compact
    def __call__(self, pixels: jax.Array) -> jax.Array:
        """Tangent vectors, before alpha, of normalised pixels ``(n, side, side, 3)``."""
        batch, side = pixels.shape[:2]
        grid = side // self.patch
        cut = pixels.reshape(batch, grid, self.patch, grid, self.patch, 3)
        patches = cut.transpose(0, 1, 3, 2, 4, 5).reshape(batch, grid**2, -1)
        x = _dense("patch", self.width, self.dtype)(patches).astype(jnp.float32)
        zeros = nn.initializers.zeros
        token = self.param("token", zeros, (self.width,))
        positions = self.param("positions", zeros, (1 + grid**2, self.width))
        first = jnp.broadcast_to(token, (batch, 1, self.width))
        x = jnp.concatenate([first, x], axis=1) + positions[None]
        return self.project(x, jnp.zeros(batch, jnp.int32), causal=False)


class TextTower(Tower):
    """A causal transformer whose end-of-text token is projected to the tangent space."""

    vocabulary: int
    context: int

    @nn.compact
    def __call__(self, tokens: jax.Array) -> jax.Array:
        """Tangent vectors, before alpha, of tokens ``(n, length)``; a text ends at its largest."""
        zeros = nn.initializers.zeros
        table = self.param("tokens", zeros, (self.vocabulary, self.width))
        positions = self.param("positions", zeros, (self.context, self.width))
        x = table[tokens].astype(jnp.float32) + positions[None, : tokens.shape[1]]
        return self.project(x, jnp.argmax(tokens, axis=1), causal=True)
