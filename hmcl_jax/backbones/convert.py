"""Converts a published checkpoint to safetensors and a small JSON file of its scalars.

The folder that results holds

- ``weights.safetensors``: the arrays of both towers under our names
  (:mod:`hmcl_jax.backbones.parameter_map`);
- ``backbone.json``: name, K, tau, alphas, pixel statistics, sizes, provenance, the SHA-256 of the
  weights, and one of the description itself.

PyTorch is needed for this step alone, to read the ``.pth`` file.
"""

import dataclasses
import json
import math
import os
import re
import zipfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
from safetensors import SafetensorError
from safetensors.numpy import save_file

from hmcl_jax import _checks, _files
from hmcl_jax._extras import require
from hmcl_jax._versions import versions
from hmcl_jax.backbones.parameter_map import (
    DROPPED,
    PIXELS,
    SCALARS,
    Sizes,
    our_layout,
    our_names,
    published_shapes,
    read_sizes,
)

SCHEMA = 1
WEIGHTS = "weights.safetensors"
DESCRIPTION = "backbone.json"
NAMES = (
    *("meru-l/redcaps", "meru-b/redcaps", "meru-s/redcaps", "meru-b/grit", "meru-s/grit"),
    *("hycoclip-b/grit", "hycoclip-s/grit"),
)
NAME = re.compile(r"[a-z0-9-]{1,40}/[a-z0-9-]{1,40}")
DTYPES = ("float32", "float16")
# Published files hold configurations beside the weights. PyTorch refuses their classes, and the
# packages need not be installed, so objects of these classes are replaced by empty ones.
PLAIN_CLASSES = re.compile(
    r"(omegaconf|typing)\.[\w.]+|_operator\.getitem|collections\.defaultdict"
    r"|builtins\.(bool|bytes|dict|float|int|list|set|str|tuple|type)"
    r"|numpy\.dtype|numpy\.(_core|core)\.multiarray\.scalar"
)


class CheckpointError(ValueError):
    """A damaged checkpoint, or one of another model; the message names the file."""


def convert_checkpoint(
    path: str | os.PathLike[str],
    out: str | os.PathLike[str],
    name: str,
    *,
    dtype: str = "float32",
    image_heads: int | None = None,
    text_heads: int | None = None,
) -> dict[str, Any]:
    """Converts a published checkpoint of MERU or HyCoCLIP; never overwrites anything.

    Args:
      path: of the ``.pth`` file. No code in it is run.
      out: a new folder.
      name: model and training data, such as ``"meru-b/redcaps"``. The file cannot tell:
        ``meru_vit_b.pth`` was published for two sets of training data.
      dtype: of the weights, ``"float32"`` or ``"float16"``.
      image_heads: attention heads of the image tower; None for one per 64 numbers of its width, but
        12 at width 384.
      text_heads: attention heads of the text tower; None for one per 64 numbers of its width.

    Returns:
      The content of ``backbone.json``.
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
    tensors = read_checkpoint(path)
    return write_backbone(tensors, out, name, path, dtype=dtype, heads=(image_heads, text_heads))


def read_checkpoint(path: Path) -> dict[str, np.ndarray]:
    """The tensors of a ``.pth`` file that holds ``{"model": state, ...}``, or only the state.

    Names are without the prefix ``module.`` of data-parallel training. A file that needs a class
    other than those of plain data is refused.
    """
    torch = require("torch", "convert")
    serialization = require("torch.serialization", "convert")
    if not path.is_file():
        raise CheckpointError(f"There is no checkpoint at {str(path)!r}.")
    try:
        with zipfile.ZipFile(path) as archive:
            damaged = archive.testzip()  # PyTorch does not compare checksums
        if damaged is not None:
            raise CheckpointError(f"{path}: member {damaged!a} is damaged; get the file again.")
        classes = serialization.get_unsafe_globals_in_checkpoint(path)
        unknown = sorted(name for name in classes if not PLAIN_CLASSES.fullmatch(name))
        if unknown:
            raise CheckpointError(
                f"{path} needs {unknown[0][:200]!a}, which may run code; save "
                'torch.save({"model": model.state_dict()}) instead.'
            )
        with serialization.safe_globals([(_Empty, name) for name in classes]):
            top = torch.load(path, map_location="cpu", weights_only=True, mmap=True)
    except CheckpointError:
        raise
    except zipfile.BadZipFile:
        raise CheckpointError(
            f"{path} is truncated, or not a checkpoint of PyTorch 1.6 or later; get the file again."
        ) from None
    except Exception as error:  # damaged files cause many kinds of errors in PyTorch
        reason = f"{type(error).__name__}: {str(error)[:200]}"
        raise CheckpointError(f"{path} is not a readable checkpoint: {reason}") from error
    state = top.get("model", top) if isinstance(top, dict) else top
    if not isinstance(state, dict) or not state:
        raise CheckpointError(f"{path} holds no tensors; save model.state_dict() with PyTorch.")
    tensors = {}
    for key, tensor in state.items():
        name = str(key).removeprefix("module.")
        if not isinstance(tensor, torch.Tensor) or name in tensors:
            problem = "occurs twice" if name in tensors else "is not a tensor"
            raise CheckpointError(f"{path}: {name[:200]!a} {problem}.")
        exact = tensor.float() if tensor.dtype == torch.bfloat16 else tensor
        tensors[name] = exact.detach().numpy()
    return tensors


class _Empty:
    """Replaces the objects of a checkpoint that are not tensors or plain data."""

    def __init__(self, *arguments: Any) -> None: ...

    def __setstate__(self, state: Any) -> None: ...


def write_backbone(
    tensors: Mapping[str, np.ndarray],
    out: Path,
    name: str,
    source: Path,
    *,
    dtype: str = "float32",
    heads: tuple[int | None, int | None] = (None, None),
) -> dict[str, Any]:
    """Writes the folder of a converted model, or nothing; see :func:`convert_checkpoint`."""
    sizes = check_tensors(source, tensors)
    description = {
        "schema": SCHEMA,
        "name": name,
        **_scalars(source, tensors),
        "sizes": dataclasses.asdict(sizes),
        "image_heads": _heads(source, "image", sizes.image_width, heads[0]),
        "text_heads": _heads(source, "text", sizes.text_width, heads[1]),
        "dtype": dtype,
        "provenance": {
            "file": source.name,
            "sha256": _files.file_sha256(source),
            "converter": f"hmcl_jax {versions()['hmcl_jax']}",
        },
    }
    weights = {
        ours: _array(source, key, our_layout(ours, tensors[key]), dtype)
        for key, ours in our_names(sizes).items()
    }
    try:
        with _files.partial_folder(out) as partial:
            save_file(weights, partial / WEIGHTS)
            description["weights_sha256"] = _files.file_sha256(partial / WEIGHTS)
            description["sha256"] = _files.json_sha256(description)
            text = json.dumps(description, indent=1, sort_keys=True, allow_nan=False)
            (partial / DESCRIPTION).write_text(text, encoding="ascii")
            partial.rename(out)
    except SafetensorError as error:  # a full disk
        raise OSError(f"{out} cannot be written: {error}") from None
    return description


def check_tensors(path: Path, tensors: Mapping[str, np.ndarray]) -> Sizes:
    """The sizes of a model; refuses tensors that are missing or do not fit, naming all of them."""
    shapes = {key: tensor.shape for key, tensor in tensors.items() if key not in DROPPED}
    hyperbolic = ("curv", "textual_alpha", "visual_alpha")
    if any(key.startswith("visual.") for key in shapes) and not shapes.keys() & set(hyperbolic):
        raise CheckpointError(
            f"{path} is a CLIP checkpoint: without {', '.join(hyperbolic)} there is no hyperboloid "
            "for its features. Take a MERU or HyCoCLIP file."
        )
    sizes = read_sizes(shapes)
    expected = published_shapes(sizes)
    wrong = []
    for key, wanted in expected.items():
        shape = shapes.get(key, wanted)
        fits = len(shape) == len(wanted) and all(
            w in (None, s) for s, w in zip(shape, wanted, strict=True)
        )
        if not fits:
            wrong.append(f"{key} {shape} instead of {str(wanted).replace('None', '?')}")
        if key in shapes and not np.issubdtype(tensors[key].dtype, np.floating):
            wrong.append(f"{key} of {tensors[key].dtype} instead of floats")
    patches = sizes.get("positions", 2) - 1
    if not patches or math.isqrt(patches) ** 2 != patches:
        wrong.append(f"visual.pos_embed with {patches + 1} rows instead of 1 + a square")
    problems = {
        "missing": [key for key in expected if key not in shapes],
        "unexpected": sorted(ascii(key)[1:-1] for key in shapes if key not in expected),
        "wrong shape": wrong,
    }
    if any(problems.values()):
        listed = [f"{problem}: {', '.join(keys)}" for problem, keys in problems.items() if keys]
        raise CheckpointError(
            f"{path} does not hold the tensors of MERU or HyCoCLIP; {'; '.join(listed)}."
        )
    return Sizes(**sizes)


def _scalars(path: Path, tensors: Mapping[str, np.ndarray]) -> dict[str, Any]:
    """K, tau, alphas and pixel statistics."""
    logs = {key: float(tensors[key]) for key in SCALARS}
    for key, value in logs.items():
        if not abs(value) < 80:  # the exponential of more is not a float32
            raise CheckpointError(f"{path}: {key} must be a logarithm below 80, got {value}.")
    return {
        "K": math.exp(-logs["curv"]),
        "tau": math.exp(-logs["logit_scale"]),
        "image_alpha": math.exp(logs["visual_alpha"]),
        "text_alpha": math.exp(logs["textual_alpha"]),
        **{key: _array(path, key, tensors[key], "float64").ravel().tolist() for key in PIXELS},
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
        remedy = ", at least not in float16; use dtype = 'float32'" if dtype == "float16" else ""
        raise CheckpointError(f"{path}: {key} is not finite{remedy}.")
    return array
