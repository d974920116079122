"""How many pictures per second does the image tower encode, against the same in PyTorch?

    pip install -e '.[backbones,torch]'
    python benchmarks/towers.py
    python benchmarks/towers.py --short             # a smaller tower; ours alone without PyTorch

ViT-B/16 with random weights, from pixels of 224 x 224 to points on the hyperboloid, in float32.
Sides take turns in one process, each with a call to settle before the one that counts:

- ours: `Backbone.encode_images`, one batch;
- eager: the same in PyTorch with its fused attention, as published code of such models has it;
- compiled: that by torch.compile (`--compiled`);
- products: only the matrix products of the layers, compiled by XLA; their time over ours is the
  share of the rate of products that the whole tower reaches.
"""

import argparse
import math
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from hmcl_jax.backbones.backbone import Backbone
from hmcl_jax.backbones.parameter_map import Sizes, our_shapes
from timing import claim, interleave, print_json, print_table, ratio, shown, undisturbed

BASE = Sizes(768, 3072, 12, 16, 197, 64, 64, 1, 100, 8, 512)
SHORT = Sizes(384, 1536, 4, 16, 197, 64, 64, 1, 100, 8, 512)
HEADS = 12
NUMBERS = {"K": 10.0, "tau": 0.07, "image_alpha": 0.1, "text_alpha": 0.1}
MEAN, STD = [0.485, 0.456, 0.406], [0.229, 0.224, 0.225]


def make_weights(sizes: Sizes) -> dict[str, np.ndarray]:
    """Random ones under our names, of a size that keeps the stream tame."""
    rng = np.random.default_rng(0)
    weights = {}
    for name, shape in our_shapes(sizes).items():
        values = rng.standard_normal(shape, np.float32)
        if name.endswith("kernel"):
            values /= math.sqrt(shape[0])  # products keep the size of their inputs
        weights[name] = 1 + 0.1 * values if name.endswith("scale") else values
    return weights


def make_backbone(sizes: Sizes, weights: dict[str, np.ndarray], batch: int) -> Backbone:
    description = {"name": "random", "sha256": "", "provenance": {}, **NUMBERS}
    description |= {"image_heads": HEADS, "text_heads": 1, "pixel_mean": MEAN, "pixel_std": STD}
    return Backbone(description, sizes, weights, "float32", jax.devices()[:1], batch)


def products(sizes: Sizes, batch: int) -> Callable[[], Any]:
    """The matrix products of all layers, nothing else."""
    rows, width, hidden = batch * sizes.positions, sizes.image_width, sizes.image_hidden
    rng = np.random.default_rng(1)

    def normal(*shape: int) -> jax.Array:
        return jnp.asarray(rng.standard_normal(shape, np.float32))

    x, inside = normal(rows, width), normal(rows, hidden)
    kernels = [normal(width, n) for n in (3 * width, width, hidden)], normal(hidden, width)
    q = normal(batch * HEADS, sizes.positions, width // HEADS)

    @jax.jit
    def layer(x: Any, inside: Any, kernels: Any, q: Any) -> Any:
        weights = jnp.einsum("bqd,bkd->bqk", q, q)
        seen = jnp.einsum("bqk,bkd->bqd", weights, q)
        return [x @ kernel for kernel in kernels[0]], inside @ kernels[1], seen

    def run() -> Any:
        for _ in range(sizes.image_layers):
            jax.block_until_ready(layer(x, inside, kernels, q))

    return run


def with_torch(
    sizes: Sizes, weights: dict[str, np.ndarray], pixels: np.ndarray, compiled: bool
) -> Callable[[], Any] | None:
    """The same tower in PyTorch, with weights in its own layout; None if it is not installed."""
    try:
        import torch
        import torch.nn.functional as F
    except ImportError:
        return None

    def turned(name: str, array: np.ndarray) -> Any:
        if name == "image.patch.kernel":  # ours is one product, PyTorch's a convolution
            side = sizes.patch
            array = array.reshape(side, side, 3, -1).transpose(3, 2, 0, 1)
        elif name.endswith("kernel"):
            array = array.T
        return torch.from_numpy(np.ascontiguousarray(array))

    held = {name.removeprefix("image."): turned(name, array) for name, array in weights.items()}
    mean, std = (torch.tensor(values).reshape(3, 1, 1) for values in (MEAN, STD))
    given = torch.from_numpy(pixels)

    def linear(x: Any, name: str) -> Any:
        return F.linear(x, held[f"{name}.kernel"], held[f"{name}.bias"])

    def norm(x: Any, name: str) -> Any:
        return F.layer_norm(x, x.shape[-1:], held[f"{name}.scale"], held[f"{name}.bias"], 1e-5)

    def encode(given: Any) -> Any:
        x = (given.permute(0, 3, 1, 2).float() / 255 - mean) / std
        x = F.conv2d(x, held["patch.kernel"], held["patch.bias"], sizes.patch)
        token = held["token"].expand(len(x), 1, -1)
        x = torch.cat([token, x.flatten(2).transpose(1, 2)], 1) + held["positions"]
        batch, tokens = x.shape[:2]
        for i in range(sizes.image_layers):
            layer = f"layers.{i}"
            qkv = linear(norm(x, f"{layer}.norm1"), f"{layer}.qkv")
            qkv = qkv.reshape(batch, tokens, 3, HEADS, -1).permute(2, 0, 3, 1, 4)
            seen = F.scaled_dot_product_attention(*qkv.unbind(0))
            x = x + linear(seen.transpose(1, 2).reshape(x.shape), f"{layer}.out")
            inside = F.gelu(linear(norm(x, f"{layer}.norm2"), f"{layer}.up"))
            x = x + linear(inside, f"{layer}.down")
        v = F.linear(norm(x, "norm")[:, 0], held["projection.kernel"]) * NUMBERS["image_alpha"]
        n = v.norm(dim=-1, keepdim=True) / math.sqrt(NUMBERS["K"])
        # The exponential map at the origin; beyond asinh(2^15) float16 would overflow.
        return torch.sinh(n.clamp(1e-8, math.asinh(2**15))) * v / n.clamp(min=1e-8)

    if compiled:
        encode = torch.compile(encode)

    def run() -> Any:
        with torch.inference_mode():  # as extraction runs it: no graph is kept
            return encode(given).numpy()

    return run


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--short", action="store_true", help="a smaller tower, fewer repeats")
    parser.add_argument("--repeats", type=int, default=15)
    parser.add_argument("--batch", type=int, default=16)
    parser.add_argument("--compiled", action="store_true", help="torch.compile too (slow to start)")
    arguments = parser.parse_args()
    sizes, repeats, batch = BASE, arguments.repeats, arguments.batch
    if arguments.short:
        sizes, repeats, batch = SHORT, 5, 8
    weights = make_weights(sizes)
    rng = np.random.default_rng(2)
    pixels = rng.integers(0, 256, (batch, sizes.image_size, sizes.image_size, 3), np.uint8)
    backbone = make_backbone(sizes, weights, batch)
    sides = {"ours": lambda: backbone.encode_images(pixels), "products": products(sizes, batch)}
    eager = with_torch(sizes, weights, pixels, False)
    if eager is not None:
        sides["eager"] = eager
        off = float(np.abs(eager() - sides["ours"]()).max())
        if off > 1e-3:  # float32 through all layers; points lie a few units from the origin
            raise SystemExit(f"towers: features differ by {off:.1e}.")
        if arguments.compiled and (compiled := with_torch(sizes, weights, pixels, True)):
            sides["compiled"] = compiled
    times = interleave(sides, repeats, settle=True)
    rows, found, claims = [], {}, []
    for side, seconds in times.items():
        fastest = undisturbed(seconds)
        found[side] = {"seconds": fastest, "pictures per second": batch / fastest}
        found[side] |= {"over ours": ratio(times, side, "ours")}
        over = shown(found[side]["over ours"]) if side != "ours" else "1"
        rows.append([side, 1e3 * fastest, batch / fastest, over])
    print_table(["side", "ms", "pictures / s", "time / ours"], rows)
    if "eager" in found:
        over = found["eager"]["over ours"]["undisturbed"]
        claims.append(claim("throughput of ours over eager PyTorch", over, least=0.9))
    print_json("towers", batch=batch, sizes=vars(sizes), sides=found, claims=claims)


if __name__ == "__main__":
    main()
