"""Small random checkpoints in the published layout, written with PyTorch or without."""

import re
import struct
import zipfile

import numpy as np

from hmcl_jax.backbones.layout import Sizes, published_shapes

# Pictures of 32 x 32 in patches of 8, texts of 12 tokens out of 100.
SMALL = Sizes(64, 128, 2, 8, 17, 64, 96, 2, 100, 12, 48)
HEADS = {"image_heads": 4, "text_heads": 2}
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


# Pickles of protocol 2, opcode by opcode


def text(value):
    data = value.encode()
    return b"X" + struct.pack("<I", len(data)) + data


def number(value):
    """A whole number of any size."""
    data = value.to_bytes(value.bit_length() // 8 + 1, "little", signed=True)
    return b"\x8b" + struct.pack("<i", len(data)) + data


def sequence(values):
    return b"(" + b"".join(values) + b"t"


def mapping(items):
    """A dict of pickled values by plain names."""
    return b"}(" + b"".join(text(key) + value for key, value in items.items()) + b"u"


def name(module, attribute):
    return f"c{module}\n{attribute}\n".encode()


def call(function, *arguments):
    return function + sequence(arguments) + b"R"


KINDS = {
    "float64": "DoubleStorage",
    "float32": "FloatStorage",
    "float16": "HalfStorage",
    "bfloat16": "BFloat16Storage",
    "int64": "LongStorage",
    "bool": "BoolStorage",
}


def tensor(key, shape, kind="FloatStorage", *, size=None, offset=0, strides=None):
    """A tensor in the member ``data/<key>``."""
    if strides is None:
        strides = [int(np.prod(shape[i + 1 :])) for i in range(len(shape))]
    size = int(np.prod(shape)) if size is None else size
    storage = (text("storage"), name("torch", kind), text(key), text("cpu"), number(size))
    return call(
        name("torch._utils", "_rebuild_tensor_v2"),
        sequence(storage) + b"Q",
        number(offset),
        sequence(map(number, shape)),
        sequence(map(number, strides)),
        b"\x89",
        call(name("collections", "OrderedDict")),
    )


# What published files hold beside the model.
CONFIG = (
    name("omegaconf.listconfig", "ListConfig")
    + b")\x81}("
    + (text("_content") + b"](G?\xec\xcc\xcc\xcc\xcc\xcc\xcdNe")
    + (text("_metadata") + name("omegaconf.base", "ContainerMetadata") + b")\x81}(")
    + (text("ref_type") + call(name("_operator", "getitem"), name("typing", "Union"), b"N"))
    + (text("resolver_cache") + call(name("collections", "defaultdict"), name("builtins", "dict")))
    + b"ubub"
)


def pickled(state, prefix="", beside=None, wrapped=True):
    """The pickle of a checkpoint and its storages."""
    storages, entries = {}, {}
    for i, (key, values) in enumerate(state.items()):
        storages[str(i)] = np.ascontiguousarray(values).tobytes()
        entries[prefix + key] = tensor(str(i), values.shape, KINDS[values.dtype.name])
    model = mapping(entries)
    if wrapped:
        model = mapping({"optimizer": CONFIG, "model": model, **(beside or {})})
    return b"\x80\x02" + model + b".", storages


def write_zip(path, data, storages, byteorder=b"little", compressed=(), root="small"):
    """A checkpoint of a pickle and its storages."""
    members = {"data.pkl": data, "byteorder": byteorder}
    members |= {f"data/{key}": values for key, values in storages.items()}
    with zipfile.ZipFile(path, "w") as archive:
        for member, values in members.items():
            kind = zipfile.ZIP_DEFLATED if member in compressed else zipfile.ZIP_STORED
            archive.writestr(zipfile.ZipInfo(f"{root}/{member}"), values, kind)
    return path


def write_checkpoint(path, state, **options):
    """A checkpoint as PyTorch writes it, without PyTorch."""
    return write_zip(path, *pickled(state, **options))
