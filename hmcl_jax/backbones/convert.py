"""Converts a published checkpoint to safetensors and a small JSON of scalars and provenance.

The folder that results holds

- ``weights.safetensors``: the arrays of both towers under our names
  (:mod:`hmcl_jax.backbones.layout`);
- ``backbone.json``: name, K, tau, alphas, pixel statistics, sizes, where all is from, the SHA-256
  of the weights, and one of all this.
"""

import dataclasses
import json
import math
import os
import re
from collections.abc import Iterable, Mapping
from importlib import metadata
from pathlib import Path
from typing import Any

import numpy as np

from hmcl_jax import _checks, _files
from hmcl_jax.backbones.checkpoint import CheckpointError, read_checkpoint
from hmcl_jax.backbones.layout import (
    DROPPED,
    SCALARS,
    Sizes,
    our_layout,
    our_names,
    published_shapes,
    read_sizes,
)
from hmcl_jax.backbones.pickled import shown

SCHEMA = 1
WEIGHTS = "weights.safetensors"
DESCRIPTION = "backbone.json"
NAMES = (
    "meru-l/redcaps",
    "meru-b/redcaps",
    "meru-s/redcaps",
    "meru-b/grit",
    "meru-s/grit",
    "hycoclip-b/grit",
    "hycoclip-s/grit",
)
NAME = re.compile(r"[a-z0-9-]{1,40}/[a-z0-9-]{1,40}")
DTYPES = ("float32", "float16")
MOST_LISTED = 500


def convert_checkpoint(
    path: str | os.PathLike[str],
    out: str | os.PathLike[str],
    name: str,
    *,
    dtype: str = "float32",
    image_heads: int | None = None,
    text_heads: int | None = None,
) -> dict[str, Any]:
    """Converts a published checkpoint of MERU or HyCoCLIP; nothing is overwritten.

    Args:
      path: of the ``.pth`` file. Nothing in it is run, and PyTorch is not needed.
      out: a new folder.
      name: model and training data, such as ``"meru-b/redcaps"``. The file cannot tell:
        ``meru_vit_b.pth`` was published for two sets of training data.
      dtype: of the weights, ``"float32"`` or ``"float16"``.
      image_heads: of attention in the image tower; by its width if None, 64 numbers each, but 12 of
        32 at width 384.
      text_heads: of attention in the text tower; by its width if None.

    Returns:
      What ``backbone.json`` holds.

    Raises:
      CheckpointError: if the checkpoint is damaged, or not of this kind: with all keys that are
        missing, unexpected or of the wrong shape.
    """
    path, out = Path(path), Path(out)
    _checks.choice("dtype", dtype, DTYPES)
    if not isinstance(name, str) or not NAME.fullmatch(name):
        raise ValueError(
            f"name must be model/data in small letters, digits and hyphens, got {name!r}; known "
            f"ones are {', '.join(NAMES)}."
        )
    if out.exists():
        raise ValueError(f"out = {str(out)!r} exists already; choose another or remove it.")
    require_safetensors()
    checkpoint = read_checkpoint(path)
    sizes = check_tensors(path, checkpoint.tensors)
    description = {
        "schema": SCHEMA,
        "name": name,
        **_scalars(path, checkpoint.tensors),
        "sizes": dataclasses.asdict(sizes),
        "image_heads": _heads(path, "image", sizes.image_width, image_heads),
        "text_heads": _heads(path, "text", sizes.text_width, text_heads),
        "dtype": dtype,
        "provenance": {**checkpoint.about, "converter": f"hmcl_jax {_version()}"},
    }
    weights = {
        ours: _array(path, key, our_layout(ours, checkpoint.tensors[key]), dtype)
        for key, ours in our_names(sizes).items()
    }
    return _write(out, weights, description)


def check_tensors(path: Path, tensors: Mapping[str, np.ndarray]) -> Sizes:
    """The sizes of a model, if its tensors are all there and fit each other.

    Args:
      path: of the file, for messages.
      tensors: by published name.

    Returns:
      The sizes.

    Raises:
      CheckpointError: with every key that is missing, unexpected, or of the wrong shape or type.
    """
    shapes = {key: tensor.shape for key, tensor in tensors.items() if key not in DROPPED}
    hyperbolic = ("curv", "textual_alpha", "visual_alpha")
    if any(key.startswith("visual.") for key in shapes) and not shapes.keys() & set(hyperbolic):
        raise CheckpointError(
            f"{path} is a CLIP checkpoint: without {', '.join(hyperbolic)} there is no hyperboloid "
            "for its features. Take a MERU or HyCoCLIP file."
        )
    sizes = read_sizes(shapes)
    expected = published_shapes(sizes)
    wrong = [
        f"{key} {shapes[key]} instead of {_shape_text(shape)}"
        for key, shape in expected.items()
        if key in shapes and not _fits(shapes[key], shape)
    ]
    wrong += [
        f"{key} of {tensors[key].dtype} instead of floats"
        for key in expected
        if key in shapes and not _is_float(tensors[key].dtype)
    ]
    patches = sizes.get("positions", 2) - 1
    if not patches or math.isqrt(patches) ** 2 != patches:
        wrong.append(f"visual.pos_embed with {patches + 1} rows instead of 1 + a square")
    problems = {
        "missing": [key for key in expected if key not in shapes],
        "unexpected": sorted(shown(key) for key in shapes if key not in expected),
        "wrong shape": wrong,
    }
    if any(problems.values()):
        told = [f"{what}: {_listed(keys)}" for what, keys in problems.items() if keys]
        raise CheckpointError(
            f"{path} does not hold the tensors of MERU or HyCoCLIP; {'; '.join(told)}."
        )
    return Sizes(**sizes)


def _fits(found: tuple[int, ...], expected: tuple[int | None, ...]) -> bool:
    same = len(found) == len(expected)
    return same and all(e in (None, f) for f, e in zip(found, expected, strict=True))


def _is_float(dtype: np.dtype) -> bool:
    return np.issubdtype(dtype, np.floating) or dtype.name == "bfloat16"


def _shape_text(shape: tuple[int | None, ...]) -> str:
    return str(tuple("?" if size is None else size for size in shape)).replace("'", "")


def _listed(names: Iterable[str]) -> str:
    names = list(names)
    more = f" and {len(names) - MOST_LISTED} more" if len(names) > MOST_LISTED else ""
    return ", ".join(names[:MOST_LISTED]) + more


def _scalars(path: Path, tensors: Mapping[str, np.ndarray]) -> dict[str, Any]:
    """K, tau, alphas and pixel statistics."""
    logs = {key: float(tensors[key]) for key in SCALARS}
    for key, value in logs.items():
        if not abs(value) < 80:  # beyond, its exponential is no float32
            raise CheckpointError(f"{path}: {key} must be a logarithm below 80, got {value}.")
    mean, std = (tensors[key].astype(np.float64).ravel() for key in ("pixel_mean", "pixel_std"))
    if not (np.isfinite(mean).all() and np.isfinite(std).all() and (std > 0).all()):
        raise CheckpointError(
            f"{path}: pixel_mean must be finite and pixel_std positive, got {mean} and {std}."
        )
    return {
        "K": math.exp(-logs["curv"]),
        "tau": math.exp(-logs["logit_scale"]),
        "image_alpha": math.exp(logs["visual_alpha"]),
        "text_alpha": math.exp(logs["textual_alpha"]),
        "pixel_mean": mean.tolist(),
        "pixel_std": std.tolist(),
    }


def _heads(path: Path, tower: str, width: int, given: int | None) -> int:
    if given is not None:
        _checks.integer(f"{tower}_heads", given, 1)
    usual = 12 if (tower, width) == ("image", 384) else max(1, width // 64)
    heads = int(given or usual)
    if width % heads:
        raise CheckpointError(
            f"{path}: the {tower} tower of width {width} cannot have {heads} heads; give "
            f"{tower}_heads, a number that divides it."
        )
    return heads


def _array(path: Path, key: str, tensor: np.ndarray, dtype: str) -> np.ndarray:
    with np.errstate(over="ignore"):
        array = np.ascontiguousarray(tensor.astype(dtype))
    if not np.isfinite(array).all():
        remedy = "" if dtype == "float32" else ", at least not in float16; use dtype = 'float32'"
        raise CheckpointError(f"{path}: {key} is not finite{remedy}.")
    return array


def _write(
    out: Path, weights: Mapping[str, np.ndarray], description: dict[str, Any]
) -> dict[str, Any]:
    """Both files into a new folder, or nothing."""
    from safetensors import SafetensorError
    from safetensors.numpy import save_file

    try:
        with _files.partial_folder(out) as partial:
            save_file(dict(weights), partial / WEIGHTS)
            found = {**description, "weights_sha256": _files.file_sha256(partial / WEIGHTS)}
            found["sha256"] = _files.json_sha256(found)
            text = json.dumps(found, indent=1, sort_keys=True, allow_nan=False)
            (partial / DESCRIPTION).write_text(text, encoding="ascii")
            partial.rename(out)
    except SafetensorError as error:
        raise OSError(f"{out} cannot be written: {error}") from None
    return found


def require_safetensors() -> None:
    """Refuses to start without the package that reads and writes weights."""
    try:
        import safetensors  # noqa: F401
    except ImportError:
        raise ImportError("Backbones need safetensors: pip install 'hmcl_jax[backbones]'") from None


def _version() -> str:
    try:
        return metadata.version("hmcl_jax")
    except metadata.PackageNotFoundError:
        return "(not installed)"
