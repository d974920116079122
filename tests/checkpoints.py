"""Small random models in the published layout."""

import re

import numpy as np

from hmcl_jax.backbones.convert import write_backbone
from hmcl_jax.backbones.parameter_map import Sizes, published_shapes

# Pictures of 32 x 32 in patches of 8, texts of 12 tokens out of 100.
SMALL = Sizes(64, 128, 2, 8, 17, 64, 96, 2, 100, 12, 48)
HEADS = (4, 2)  # of the image and the text tower
FULL = Sizes(768, 3072, 12, 16, 197, 512, 2048, 12, 49408, 77, 512)
SCALARS = {"curv": np.log(0.2), "logit_scale": 3.0, "visual_alpha": -0.4, "textual_alpha": -0.9}


def random_state(sizes=SMALL, seed=0):
    """Tensors by published name; every one has an effect on the features."""
    rng = np.random.default_rng(seed)
    state = {}
    for key, shape in published_shapes(vars(sizes)).items():
        values = rng.standard_normal(shape, np.float32)
        if re.search(r"(norm.?|ln_[a-z0-9]+)\.weight$", key):
            values = 1 + 0.2 * values
        elif key.endswith(("weight", "in_proj_weight")) and "token_embed" not in key:
            values *= np.prod(shape[1:]) ** -0.5
        elif key.endswith("bias"):
            values *= 0.2
        state[key] = np.asarray(values, np.float32)
    state |= {key: np.array(value, np.float32) for key, value in SCALARS.items()}
    state["pixel_mean"] = np.array([0.5, 0.4, 0.3], np.float32).reshape(3, 1, 1)
    state["pixel_std"] = np.array([0.2, 0.3, 0.25], np.float32).reshape(3, 1, 1)
    state["textual.attn_mask"] = np.triu(np.ones((sizes.context, sizes.context), bool), 1)
    return state


def random_pixels(rng, count, sizes=SMALL):
    return rng.integers(0, 256, (count, sizes.image_size, sizes.image_size, 3), np.uint8)


def random_tokens(rng, count, sizes=SMALL):
    """Texts of all lengths, with an end that is the largest token, padded with zeros."""
    tokens = rng.integers(1, sizes.vocabulary - 2, (count, sizes.context), np.int32)
    for row in tokens:
        end = rng.integers(1, sizes.context)
        row[0], row[end], row[end + 1 :] = sizes.vocabulary - 2, sizes.vocabulary - 1, 0
    return tokens


def make_backbone(out, state=None, name="meru-b/redcaps", **options):
    """The folder of a converted model, without a checkpoint of PyTorch."""
    source = out.with_suffix(".pth")
    source.write_bytes(b"the checkpoint")
    tensors = random_state() if state is None else state
    return write_backbone(tensors, out, name, source, **{"heads": HEADS, **options})
