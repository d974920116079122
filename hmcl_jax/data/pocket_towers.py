r"""The towers of pocket16: they map frozen features of pictures and texts to points of H^512.

A text enters as its MiniLM embedding :math:`t`, of length 1 with 384 components. A picture enters
as the features :math:`f` (1280, standardised) and the logits (1000) of EfficientNet-Lite0. Its
class probabilities mix the MiniLM embeddings of the names of the ImageNet classes (ConSE); the
mixture has length :math:`n`, near 1 for a picture that looks like one class, and direction
:math:`c`. The tangent vectors at the origin are

.. math::
    v_T = \alpha_T \, e^{\ell_T(t)} \, (\sqrt{512} \, [t; 0] + g_T(t)), \qquad
    v_I = \alpha_I \, e^{\ell_I(x)} (n / 0.75)^{\gamma} \, (\sqrt{512} \, [c; 0] + g_I(x)),
    \qquad x = [f; 3 c],

with one scalar :math:`\alpha` per modality and networks :math:`g` (512 outputs) and :math:`\ell`
(one output) of one hidden layer; :math:`[t; 0]` pads to 512 components. The points are
:math:`\exp_0(v)`, as in MERU, and their radii are free. ``tools/build_pocket.py`` trains the
towers and computes the features of the store with the functions of this module.
"""

import dataclasses
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.typing import ArrayLike

from hmcl_jax import lorentz

DIM = 512
TEXT_DIM = 384
TEMPERATURE, CLASSES = 2.0, 20  # of the class probabilities, and how many of them are mixed
USUAL_LENGTH = 0.75  # of a mixture
Network = dict[str, jax.Array]
Params = dict[str, dict[str, Any]]  # by tower: networks and scalars


def network(
    weights: Network, x: jax.Array, key: jax.Array | None = None, rate: float = 0.0
) -> jax.Array:
    """One hidden layer with GELU; a key turns dropout of the hidden units on."""
    hidden = jax.nn.gelu(x @ weights["w1"] + weights["b1"][None])
    if key is not None:
        keep = jax.random.bernoulli(key, 1 - rate, hidden.shape)
        hidden = jnp.where(keep, hidden / (1 - rate), 0)
    return hidden @ weights["w2"] + weights["b2"][None]


def _tangent(
    tower: dict[str, Any], given: jax.Array, x: jax.Array, key: jax.Array | None, rate: float
) -> jax.Array:
    keys = (None, None) if key is None else jax.random.split(key)
    padded = jnp.pad(given, ((0, 0), (0, DIM - TEXT_DIM)))
    direction = np.sqrt(DIM) * padded + network(tower["direction"], x, keys[0], rate)
    return jnp.exp(tower["alpha"] + network(tower["length"], x, keys[1], rate)) * direction


def text_tangent(
    params: Params, embeddings: jax.Array, key: jax.Array | None = None, rate: float = 0.0
) -> jax.Array:
    """Tangent vectors (n, 512) of MiniLM embeddings (n, 384); a key turns dropout on."""
    return _tangent(params["text"], embeddings, embeddings, key, rate)


def picture_tangent(
    params: Params,
    features: jax.Array,
    mixtures: jax.Array,
    key: jax.Array | None = None,
    rate: float = 0.0,
) -> jax.Array:
    """Tangent vectors (n, 512) of standardised features (n, 1280) and mixtures (n, 384)."""
    length = jnp.linalg.norm(mixtures, axis=1, keepdims=True)
    given = mixtures / length
    x = jnp.concatenate([features, 3 * given], axis=1)
    certainty = (length / USUAL_LENGTH) ** params["picture"]["certainty"]
    return certainty * _tangent(params["picture"], given, x, key, rate)


def mix_class_names(logits: ArrayLike, class_names: ArrayLike) -> jax.Array:
    """Pictures in the text space (n, 384), from logits of ImageNet's classes and names (1000, 384).

    It is the mean of the names of the likeliest classes, weighted by probability (ConSE).
    """
    best, classes = jax.lax.top_k(jnp.asarray(logits, jnp.float32), CLASSES)
    weights = jax.nn.softmax(best / TEMPERATURE, axis=1)
    return jnp.einsum("nk,nkd->nd", weights, jnp.asarray(class_names, jnp.float32)[classes])


@dataclasses.dataclass(frozen=True, eq=False)
class PocketTowers:
    """Both towers and what prepares their inputs, of :func:`load_pocket_towers`."""

    # For `text` and `picture` the networks `direction` and `length` and log alpha (`alpha`); for
    # `picture` the exponent gamma (`certainty`).
    params: Params
    mean: jax.Array  # of the picture features of the base, (1280,)
    spread: jax.Array  # their standard deviation
    class_names: jax.Array  # embeddings of the names of the ImageNet classes, (1000, 384)
    K: float

    def texts(self, embeddings: ArrayLike) -> jax.Array:
        """Points (n, 512) of normalised MiniLM embeddings (all-MiniLM-L6-v2) of shape (n, 384).

        Of embeddings (prompts, n, 384) the tangent vectors are averaged over the prompts.
        """
        x = jnp.asarray(embeddings, jnp.float32)
        tangents = _texts(self.params, x.reshape(-1, TEXT_DIM)).reshape(-1, x.shape[-2], DIM)
        return lorentz.exp_map0(tangents.mean(axis=0), self.K)

    def pictures(self, features: ArrayLike, logits: ArrayLike) -> jax.Array:
        """Points (n, 512) of EfficientNet-Lite0's last features (n, 1280) and logits (n, 1000).

        The features are means over the last feature map.
        """
        features, logits = (jnp.asarray(x, jnp.float32) for x in (features, logits))
        if logits.shape[-1] != len(self.class_names):  # other widths would mix wrong names
            raise ValueError(f"logits must have shape (n, 1000), got {logits.shape}.")
        standard = (features - self.mean[None]) / self.spread[None]
        mixtures = mix_class_names(logits, self.class_names)
        return lorentz.exp_map0(_pictures(self.params, standard, mixtures), self.K)


_texts, _pictures = jax.jit(text_tangent), jax.jit(picture_tangent)


def load_pocket_towers(path: Path | None = None) -> PocketTowers:
    """Opens the towers that made the features of pocket16, or those in another file.

    Example:
      >>> import numpy as np
      >>> from hmcl_jax.data.pocket_towers import load_pocket_towers
      >>> print(load_pocket_towers().texts(np.eye(384)[:2]).shape)
      (2, 512)
    """
    with np.load(path or Path(__file__).with_name("pocket_towers.npz"), allow_pickle=False) as file:
        arrays = {name: jnp.asarray(array, jnp.float32) for name, array in file.items()}
        K = float(file["K"])
    params: Params = {}
    for name, array in arrays.items():
        if "/" in name:  # such as "text/direction/w1"
            *parents, last = name.split("/")
            node: dict[str, Any] = params
            for parent in parents:
                node = node.setdefault(parent, {})
            node[last] = array
    return PocketTowers(params, arrays["mean"], arrays["spread"], arrays["class_names"], K)
