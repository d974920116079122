"""The tensors of a MERU or HyCoCLIP model: published names and shapes, and ours.

Published names are those of the checkpoints' state dict, with PyTorch's layouts: (out, in) for
products, (out, in, height, width) for the patches. Ours are the names of the parameters in
:mod:`hmcl_jax.backbones.towers`, with (in, out) everywhere.
"""

import dataclasses
import math
import re
from collections.abc import Iterator, Mapping

import numpy as np

SCALARS = ("curv", "logit_scale", "textual_alpha", "visual_alpha")
PIXELS = ("pixel_mean", "pixel_std")
DROPPED = ("textual.attn_mask",)  # causal; the tower makes its own

SIZE_LETTERS = {
    "w": "image_width",
    "h": "image_hidden",
    "n": "positions",
    "p": "patch",
    "t": "text_width",
    "m": "text_hidden",
    "v": "vocabulary",
    "c": "context",
    "e": "dimension",
}
# Published name: (shape, our name). 3w is three times w.
WHOLE = {
    "visual.cls_token": ("1 1 w", "image.token"),
    "visual.pos_embed": ("1 n w", "image.positions"),
    "visual.patch_embed.proj.weight": ("w 3 p p", "image.patch.kernel"),
    "visual.patch_embed.proj.bias": ("w", "image.patch.bias"),
    "visual.norm.weight": ("w", "image.norm.scale"),
    "visual.norm.bias": ("w", "image.norm.bias"),
    "visual_proj.weight": ("e w", "image.projection.kernel"),
    "textual.token_embed.weight": ("v t", "text.tokens"),
    "textual.posit_embed": ("c t", "text.positions"),
    "textual.ln_final.weight": ("t", "text.norm.scale"),
    "textual.ln_final.bias": ("t", "text.norm.bias"),
    "textual_proj.weight": ("e t", "text.projection.kernel"),
}
IMAGE_LAYER = {
    "norm1.weight": ("w", "norm1.scale"),
    "norm1.bias": ("w", "norm1.bias"),
    "attn.qkv.weight": ("3w w", "qkv.kernel"),
    "attn.qkv.bias": ("3w", "qkv.bias"),
    "attn.proj.weight": ("w w", "out.kernel"),
    "attn.proj.bias": ("w", "out.bias"),
    "norm2.weight": ("w", "norm2.scale"),
    "norm2.bias": ("w", "norm2.bias"),
    "mlp.fc1.weight": ("h w", "up.kernel"),
    "mlp.fc1.bias": ("h", "up.bias"),
    "mlp.fc2.weight": ("w h", "down.kernel"),
    "mlp.fc2.bias": ("w", "down.bias"),
}
TEXT_LAYER = {
    "ln_1.weight": ("t", "norm1.scale"),
    "ln_1.bias": ("t", "norm1.bias"),
    "attn.in_proj_weight": ("3t t", "qkv.kernel"),
    "attn.in_proj_bias": ("3t", "qkv.bias"),
    "attn.out_proj.weight": ("t t", "out.kernel"),
    "attn.out_proj.bias": ("t", "out.bias"),
    "ln_2.weight": ("t", "norm2.scale"),
    "ln_2.bias": ("t", "norm2.bias"),
    "mlp.c_fc.weight": ("m t", "up.kernel"),
    "mlp.c_fc.bias": ("m", "up.bias"),
    "mlp.c_proj.weight": ("t m", "down.kernel"),
    "mlp.c_proj.bias": ("t", "down.bias"),
}
LAYERS = (("visual.blocks", IMAGE_LAYER, "image"), ("textual.resblocks", TEXT_LAYER, "text"))


@dataclasses.dataclass(frozen=True)
class Sizes:
    """All sizes of a model; `width` is of the residual stream, `hidden` inside the MLPs."""

    image_width: int
    image_hidden: int
    image_layers: int
    patch: int  # side in pixels
    positions: int  # one for the class token and one per patch
    text_width: int
    text_hidden: int
    text_layers: int
    vocabulary: int  # number of different tokens
    context: int  # number of tokens of a text
    dimension: int  # of the embedding

    @property
    def image_size(self) -> int:
        """Side of a picture, in pixels."""
        return math.isqrt(self.positions - 1) * self.patch


def _rows(image_layers: int, text_layers: int) -> Iterator[tuple[str, str, str]]:
    """All rows of the table: published name, shape, our name."""
    for key, (shape, ours) in WHOLE.items():
        yield key, shape, ours
    for (prefix, rows, tower), number in zip(LAYERS, (image_layers, text_layers), strict=True):
        for i in range(number):
            for key, (shape, ours) in rows.items():
                yield f"{prefix}.{i}.{key}", shape, f"{tower}.layers.{i}.{ours}"


def _axes(shape: str) -> list[tuple[int, str]]:
    """The axes of a shape, each a factor and a size; the size may be empty."""
    axes = []
    for axis in shape.split():
        factor = axis.rstrip("".join(SIZE_LETTERS))
        axes.append((int(factor or 1), SIZE_LETTERS.get(axis[len(factor) :], "")))
    return axes


def read_sizes(shapes: Mapping[str, tuple[int, ...]]) -> dict[str, int]:
    """The sizes of a checkpoint, each from the first of its tensors that has it, if one does."""
    layers = []
    for prefix, _, _ in LAYERS:
        pattern = re.compile(rf"{re.escape(prefix)}\.(0|[1-9][0-9]{{0,2}})\.")
        layers.append(1 + max((int(m[1]) for m in map(pattern.match, shapes) if m), default=0))
    sizes = {"image_layers": layers[0], "text_layers": layers[1]}
    for key, shape, _ in _rows(*layers):
        axes, actual = _axes(shape), shapes.get(key, ())
        if len(axes) == len(actual):
            for (factor, name), size in zip(axes, actual, strict=True):
                if name and size % factor == 0:
                    sizes.setdefault(name, size // factor)
    return sizes


def published_shapes(sizes: Mapping[str, int]) -> dict[str, tuple[int | None, ...]]:
    """The tensors of a whole checkpoint, by published name; None where a size is not known."""
    shapes: dict[str, tuple[int | None, ...]] = dict.fromkeys(SCALARS, ())
    shapes |= dict.fromkeys(PIXELS, (3, 1, 1))
    for key, shape, _ in _rows(sizes["image_layers"], sizes["text_layers"]):
        shapes[key] = tuple(
            factor * sizes[name] if name in sizes else (None if name else factor)
            for factor, name in _axes(shape)
        )
    return shapes


def our_names(sizes: Sizes) -> dict[str, str]:
    """Our names by published names, without the scalars."""
    return {key: ours for key, _, ours in _rows(sizes.image_layers, sizes.text_layers)}


def our_shapes(sizes: Sizes) -> dict[str, tuple[int, ...]]:
    """The arrays of a converted model, by our names."""
    known = dataclasses.asdict(sizes)
    shapes = {}
    for _, shape, ours in _rows(sizes.image_layers, sizes.text_layers):
        published = (factor * known.get(name, 1) for factor, name in _axes(shape))
        shapes[ours] = _our_shape(ours, tuple(published))
    return shapes


def _our_shape(ours: str, shape: tuple[int, ...]) -> tuple[int, ...]:
    if ours == "image.patch.kernel":  # rows are the numbers of a patch: height, width, colour
        return math.prod(shape[1:]), shape[0]
    if ours.endswith(".kernel"):
        return shape[::-1]
    return {"image.token": shape[2:], "image.positions": shape[1:]}.get(ours, shape)


def our_layout(ours: str, tensor: np.ndarray) -> np.ndarray:
    """A published tensor in our layout; a view where possible."""
    shape = _our_shape(ours, tensor.shape)
    if ours == "image.patch.kernel":
        tensor = tensor.transpose(2, 3, 1, 0)
    elif ours.endswith(".kernel"):
        tensor = tensor.T
    return tensor.reshape(shape)
