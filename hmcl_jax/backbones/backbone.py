"""A converted backbone: pictures and texts to points on the hyperboloid."""

import itertools
import json
import math
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from flax.traverse_util import unflatten_dict
from jax.sharding import Mesh, NamedSharding, PartitionSpec
from safetensors.numpy import load_file

from hmcl_jax import _checks, _files, lorentz
from hmcl_jax.backbones.convert import DESCRIPTION, SCHEMA, WEIGHTS, CheckpointError
from hmcl_jax.backbones.parameter_map import Sizes
from hmcl_jax.backbones.tokenizer import Tokenizer
from hmcl_jax.backbones.towers import ImageTower, TextTower

# MERU's features end at this radius, in units of sqrt K, and so do ours.
LARGEST_RADIUS = 2.0**15
DTYPES = ("float32", "bfloat16")


def load_backbone(
    folder: str | os.PathLike[str],
    dtype: str = "float32",
    devices: Sequence[jax.Device] | None = None,
    batch: int = 32,
) -> "Backbone":
    """Loads a folder that :func:`hmcl_jax.backbones.convert.convert_checkpoint` wrote.

    Args:
      folder: of the weights and their description; both are compared with their checksums.
      dtype: of the towers' products, ``"float32"`` or ``"bfloat16"``.
      devices: that share every batch; None for all of this process.
      batch: rows that are encoded at once, rounded up to a multiple of the devices. Smaller batches
        are padded, so that each tower is compiled once.

    Returns:
      The backbone.
    """
    _checks.choice("dtype", dtype, DTYPES)
    _checks.integer("batch", batch, 1)
    chosen = list(jax.local_devices() if devices is None else devices)
    folder = Path(folder)
    try:
        description = _read_description(folder)
        sizes = Sizes(**description["sizes"])
        weights = load_file(folder / WEIGHTS)
    except CheckpointError:
        raise
    except FileNotFoundError as error:
        raise CheckpointError(
            f"{folder} is not a converted backbone: {Path(error.filename).name} is missing; make "
            "one with `hmcl convert`."
        ) from None
    except Exception as error:  # damaged files cause many kinds of errors in json and safetensors
        reason = f"{type(error).__name__}: {error}"
        raise CheckpointError(f"{folder} is not a readable backbone: {reason}") from error
    return Backbone(description, sizes, weights, dtype, chosen, batch)


def _read_description(folder: Path) -> dict[str, Any]:
    path = folder / DESCRIPTION
    description = json.loads(path.read_text(encoding="ascii"))
    if description.get("schema") != SCHEMA:
        raise CheckpointError(
            f"{path}: schema must be {SCHEMA}, got {description.get('schema')!r}; convert again."
        )
    if description.get("sha256") != _files.json_sha256(description):
        raise CheckpointError(f"{path} does not match its own checksum; convert again.")
    if _files.file_sha256(folder / WEIGHTS) != description["weights_sha256"]:
        raise CheckpointError(f"{folder / WEIGHTS} does not match its checksum; convert again.")
    return description


class Backbone:
    """A frozen pair of towers on the hyperboloid of squared radius K; see :func:`load_backbone`.

    Its fingerprint is the SHA-256 of description and weights.
    """

    def __init__(
        self,
        description: Mapping[str, Any],
        sizes: Sizes,
        weights: Mapping[str, np.ndarray],
        dtype: str,
        devices: Sequence[jax.Device],
        batch: int,
    ) -> None:
        self.name: str = description["name"]
        self.K, self.tau = float(description["K"]), float(description["tau"])
        self._image_alpha, self._text_alpha = (
            np.float32(description[key]) for key in ("image_alpha", "text_alpha")
        )
        self.dimension = sizes.dimension
        self.context, self.vocabulary = sizes.context, sizes.vocabulary
        self.image_size = sizes.image_size
        self.batch = -(-batch // len(devices)) * len(devices)
        self.dtype = dtype
        self._tokenizer = Tokenizer(sizes.context)
        self.fingerprint: str = description["sha256"]
        self.provenance: dict[str, str] = dict(description["provenance"])
        mesh = Mesh(np.array(devices), ("batch",))
        self._shared = NamedSharding(mesh, PartitionSpec("batch"))
        whole = NamedSharding(mesh, PartitionSpec())
        self._image_params, self._text_params = (
            jax.device_put(_tree(weights, tower, layers, dtype), whole)
            for tower, layers in (("image", sizes.image_layers), ("text", sizes.text_layers))
        )

        def tower(kind: Any, side: str, **own: int) -> Any:
            return kind(
                width=getattr(sizes, f"{side}_width"),
                depth=getattr(sizes, f"{side}_layers"),
                heads=description[f"{side}_heads"],
                hidden=getattr(sizes, f"{side}_hidden"),
                dimension=sizes.dimension,
                dtype=jnp.dtype(dtype),
                **own,
            )

        image = tower(ImageTower, "image", patch=sizes.patch)
        text = tower(TextTower, "text", vocabulary=sizes.vocabulary, context=sizes.context)
        mean, std = (
            np.array(description[key], np.float32).reshape(1, 1, 1, 3)
            for key in ("pixel_mean", "pixel_std")
        )

        def image_tangents(params: Any, pixels: jax.Array) -> Any:
            shares = pixels.astype(jnp.float32) / 255
            return image.apply({"params": params}, (shares - mean) / std)

        def text_tangents(params: Any, tokens: jax.Array) -> Any:
            return text.apply({"params": params}, tokens)

        def points(tangents: jax.Array, alpha: jax.Array) -> jax.Array:
            return to_points(tangents * alpha, self.K)

        self._image_tangents, self._text_tangents = (
            jax.jit(function, in_shardings=(whole, self._shared), out_shardings=self._shared)
            for function in (image_tangents, text_tangents)
        )
        self._points = jax.jit(
            points, in_shardings=(self._shared, whole), out_shardings=self._shared
        )

    def tokenize(self, texts: Sequence[str]) -> np.ndarray:
        """Token ids of texts, int32, shape ``(n, context)``."""
        return self._tokenizer(texts)

    def encode_images(self, pixels: np.ndarray) -> np.ndarray:
        """Points, float32 ``(n, dimension)``, of uint8 ``(n, image_size, image_size, 3)``."""
        pixels = np.asarray(pixels)
        shape = (self.image_size, self.image_size, 3)
        if pixels.dtype != np.uint8 or pixels.ndim != 4 or pixels.shape[1:] != shape:
            raise ValueError(
                f"pixels must be uint8 of shape (n, {', '.join(map(str, shape))}), got "
                f"{pixels.dtype} of shape {pixels.shape}; use hmcl_jax.backbones.images."
            )

        def encode(rows: jax.Array) -> jax.Array:
            return self._points(self._image_tangents(self._image_params, rows), self._image_alpha)

        return self._in_batches(encode, pixels)

    def encode_texts(self, tokens: np.ndarray) -> np.ndarray:
        """Points of texts, float32 ``(n, dimension)``; a text ends at its largest token."""

        def encode(rows: jax.Array) -> jax.Array:
            return self._points(self._text_tangents(self._text_params, rows), self._text_alpha)

        return self._in_batches(encode, self._checked_tokens(tokens))

    def prototypes(self, tokens: np.ndarray, classes: np.ndarray) -> np.ndarray:
        """Points of classes: their prompts, averaged in the tangent space at the origin.

        Classes say which one each prompt belongs to; they are numbered from 0 without gaps.
        """
        tokens, classes = self._checked_tokens(tokens), np.asarray(classes)
        known, counts = np.unique(classes, return_counts=True)
        numbered = classes.dtype.kind in "iu" and np.array_equal(known, np.arange(len(known)))
        if not numbered or classes.shape != (len(tokens),):
            raise ValueError(
                "classes must be whole numbers from 0 on without gaps, one for each of "
                f"{len(tokens)} texts, got {known} of shape {classes.shape}."
            )
        # The map to the hyperboloid is not linear: the mean of prompts is taken before it.
        tangents = self._in_batches(
            lambda rows: self._text_tangents(self._text_params, rows), tokens
        )
        sums = np.zeros((len(counts), self.dimension))
        np.add.at(sums, classes, tangents)
        means = (sums / counts[:, None]).astype(np.float32)
        return self._in_batches(lambda rows: self._points(rows, self._text_alpha), means)

    def _checked_tokens(self, tokens: np.ndarray) -> np.ndarray:
        tokens = np.asarray(tokens)
        whole = np.issubdtype(tokens.dtype, np.integer)
        if not whole or tokens.ndim != 2 or tokens.shape[1] != self.context:
            raise ValueError(
                f"tokens must be whole numbers of shape (n, {self.context}), got {tokens.dtype} of "
                f"shape {tokens.shape}; make them with tokenize()."
            )
        if tokens.size and (tokens.min() < 0 or tokens.max() >= self.vocabulary):
            low, high = int(tokens.min()), int(tokens.max())
            raise ValueError(
                f"tokens must be from 0 to {self.vocabulary - 1}, got {low} to {high}."
            )
        return tokens.astype(np.int32)

    def _in_batches(
        self, program: Callable[[jax.Array], jax.Array], rows: np.ndarray
    ) -> np.ndarray:
        """All rows through a program of `batch` rows."""

        # All batches have one shape, so each tower is compiled once.
        def results() -> Iterator[jax.Array]:
            for start in range(0, len(rows), self.batch):
                part = rows[start : start + self.batch]
                padding = [(0, self.batch - len(part)), *[(0, 0)] * (rows.ndim - 1)]
                yield program(jax.device_put(np.pad(part, padding), self._shared))

        fetched = [np.zeros((0, self.dimension), np.float32)]
        # A pair is complete when the next batch runs: only then is the one before it fetched.
        for result, _ in itertools.pairwise(itertools.chain(results(), [None])):
            fetched.append(np.asarray(result))
        features = np.concatenate(fetched)[: len(rows)]
        finite = np.isfinite(features).all(axis=1)
        if not finite.all():
            row = int(np.flatnonzero(~finite)[0])
            raise FloatingPointError(f"{self.name} gives no finite feature for row {row}.")
        return features


def to_points(tangents: jax.Array, K: float) -> jax.Array:
    """MERU's exp_map0: :func:`hmcl_jax.lorentz.exp_map0` up to the radius ``2**15 * sqrt(K)``."""
    longest = math.asinh(LARGEST_RADIUS) * math.sqrt(K)
    length = jnp.linalg.norm(tangents, axis=-1, keepdims=True)
    return lorentz.exp_map0(tangents * (longest / jnp.maximum(length, longest)), K)


def _tree(weights: Mapping[str, np.ndarray], tower: str, layers: int, dtype: str) -> dict[str, Any]:
    """The parameters of a tower as Flax has them: all layers but the last stacked."""
    flat: dict[tuple[str, ...], np.ndarray] = {}
    for name, array in weights.items():
        side, *path = name.split(".")
        if side != tower or (path[0] == "layers" and path[1] not in ("0", str(layers - 1))):
            continue
        if path[0] == "layers":
            number, *rest = path[1:]
            if number == str(layers - 1):
                path = ["last", *rest]
            else:
                all_but_last = (f"{tower}.layers.{i}.{'.'.join(rest)}" for i in range(layers - 1))
                path, array = ["layers", *rest], np.stack([weights[key] for key in all_but_last])
        # The projection, norms, biases and embeddings stay in float32 (see `towers`).
        product = path[-1] == "kernel" and path[0] != "projection"
        flat[tuple(path)] = array.astype(jnp.dtype(dtype) if product else np.float32, copy=False)
    return unflatten_dict(flat)
