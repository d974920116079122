"""Converts a published checkpoint of MERU or HyCoCLIP to safetensors and a JSON of its scalars.

  hmcl convert meru_vit_b.pth backbones/meru-b --name meru-b/redcaps

The name says model and training data; files of the same name were published for different data, so
only you can tell.
"""

import argparse
import math
from collections.abc import Mapping
from typing import Any

from hmcl_jax.backbones.convert import DTYPES, NAMES, convert_checkpoint
from hmcl_jax.backbones.parameter_map import Sizes, our_shapes


def add_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("checkpoint", metavar="IN.pth", help="as published")
    parser.add_argument("out", metavar="OUT", help="a new folder")
    parser.add_argument(
        "--name",
        required=True,
        metavar="MODEL/DATA",
        help=f"by source: {', '.join(NAMES)}, or another of that form",
    )
    parser.add_argument("--dtype", choices=DTYPES, default="float32", help="of the weights")
    for side in ("image", "text"):
        parser.add_argument(
            f"--{side}-heads", type=int, metavar="N", help="if the width does not tell the number"
        )


def run(options: argparse.Namespace) -> None:
    found = convert_checkpoint(
        options.checkpoint,
        options.out,
        options.name,
        dtype=options.dtype,
        image_heads=options.image_heads,
        text_heads=options.text_heads,
    )
    print(f"{described(found)}\nwrote {options.out} as {options.name}")


def described(found: Mapping[str, Any]) -> str:
    """What a checkpoint holds, for the screen."""
    sizes = Sizes(**found["sizes"])
    parameters = {"image": 0, "text": 0}
    for name, shape in our_shapes(sizes).items():
        parameters[name.split(".")[0]] += math.prod(shape)
    side = sizes.image_size
    rows = {
        "image tower": f"{sizes.image_layers} layers of width {sizes.image_width}, "
        f"{found['image_heads']} heads, patches of {sizes.patch} in {side} x {side} pixels, "
        f"{parameters['image']:,} parameters",
        "text tower": f"{sizes.text_layers} layers of width {sizes.text_width}, "
        f"{found['text_heads']} heads, {sizes.context} tokens of {sizes.vocabulary:,}, "
        f"{parameters['text']:,} parameters",
        "dimension": sizes.dimension,
        "K": f"{found['K']:.6g} (curvature {-1 / found['K']:.6g})",
        "tau": f"{found['tau']:.6g}",
        "alphas": f"image {found['image_alpha']:.6g}, text {found['text_alpha']:.6g}",
        "pixel mean": ", ".join(f"{value:.4g}" for value in found["pixel_mean"]),
        "pixel std": ", ".join(f"{value:.4g}" for value in found["pixel_std"]),
        "source": f"{found['provenance']['file']}, SHA-256 {found['provenance']['sha256']}",
    }
    return "\n".join(f"{name:<12} {value}" for name, value in rows.items())
