r"""Trains the two towers of :mod:`hmcl_jax.data.pocket_towers` on the base pairs.

With :math:`d_0` the distance to the origin, :math:`\theta(a, b)` the exterior angle at a towards b
and :math:`\omega(a)` the half aperture of the cone at a, the terms are

- contrast: symmetric cross entropy of :math:`-d(t_i, p_j) \, s` over the captions t and pictures p
  of a minibatch, with a learned scale s (the temperature is 1 / s); pairs of one name share their
  positives;
- cones: :math:`\max(0, \theta(a, b) - \eta \, \omega(a))`, an aperture scaled by
  :math:`\eta < 1`, for (caption, picture), (category, caption), (category, picture), (top category,
  caption) and (ancestor, noun);
- separation: :math:`\max(0, \omega(t_i) + \delta - \theta(t_i, p_j))` over the captions and
  pictures that do not match, so that a cone leaves other pictures out;
- order: :math:`(d_0(n) - d_0(a) - h g)^2 / h` for a noun n of WordNet and an ancestor a that lies g
  levels above it, with the length h of a level, and hinges :math:`\max(0, m - d_0(b) + d_0(a))`
  along category, caption, picture and from top category to caption (there 2 m).

Two choices make the cones satisfiable. The towers begin with a **shared axis**: a bias gives every
text and every picture a large equal component along the last of the 512 dimensions. It raises all
cosines alike, at little cost for the contrast because the space is nearly flat at these radii. And
the lengths of texts begin with a **warm start**: regression of differences of log length on levels
of WordNet, before the towers see a picture.
"""

import dataclasses
import functools
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax

from hmcl_jax import entailment, lorentz
from hmcl_jax.data.pocket_towers import (
    DIM,
    TEXT_DIM,
    Network,
    Params,
    PocketTowers,
    network,
    picture_tangent,
    text_tangent,
)

Batch = dict[str, Any]
MAX_SCALE = 100.0


@dataclasses.dataclass(frozen=True)
class TowerConfig:
    """Settings of the training.

    ``build_pocket.py --select`` chose them among the candidates of pocket/candidates.py, on
    held-out base pairs and frozen features.
    """

    hidden: int = 512  # units of the networks that give directions
    length_hidden: int = 128  # units of the networks that give lengths
    text_length: float = 0.4  # initial alpha times sqrt(512): the length without the shared axis
    picture_length: float = 0.9  # likewise of pictures
    text_axis: float = 0.35  # initial component along the shared axis
    picture_axis: float = 0.9  # likewise of pictures
    certainty: float = 0.5  # exponent with which length grows with the encoder's certainty
    scale: float = 50.0  # initial scale of the logits; at most 100
    eta: float = 0.65  # share of the half aperture that the cone terms leave to the specific side
    cone_weight: float = 1.0  # of the cone term of captions and pictures
    category_weight: float = 0.2  # of each other cone term
    separation_weight: float = 1.0  # of the separation term
    separation_margin: float = 0.1  # delta, in radians
    order_weight: float = 20.0  # of the order terms together
    level: float = 0.01  # length h of a level of WordNet
    margin: float = 0.02  # m of the order terms
    epochs: int = 16  # passes over the base
    batch: int = 512  # pairs per step, and pairs of WordNet per step
    learning_rate: float = 1e-3  # peak of a one-cycle schedule
    alpha_rate: float = 5.0  # learning rate of the alphas, in units of the networks'
    scale_rate: float = 10.0  # learning rate of the scale, likewise
    weight_decay: float = 1e-2  # of AdamW
    dropout: float = 0.25  # of the hidden units
    warm_steps: int = 5000  # of the warm start
    warm_rate: float = 3e-3  # peak learning rate of the warm start
    # Share of WordNet's rows whose noun has nouns below it: general texts are rarer than leaves.
    inner_share: float = 0.8
    # Factor on the alpha of pictures after the training: how many lie in the cones of their texts.
    stretch: float = 1.15
    K: float = 10.0  # squared radius of the hyperboloid
    seed: int = 0  # of everything random


def initial_network(key: jax.Array, inputs: int, hidden: int, outputs: int, last: float) -> Network:
    """Weights whose outputs have a standard deviation of about `last`, times that of GELU."""
    first, second = jax.random.split(key)
    return {
        "w1": jax.random.normal(first, (inputs, hidden)) / np.sqrt(inputs),
        "b1": jnp.zeros(hidden),
        "w2": jax.random.normal(second, (hidden, outputs)) * last / np.sqrt(hidden),
        "b2": jnp.zeros(outputs),
    }


def init(config: TowerConfig, features: int, key: jax.Array) -> Params:
    """Initial parameters of both towers and of the logits' log scale."""

    def tower(key: jax.Array, inputs: int, length: float, axis: float, last: float) -> Params:
        first, second = jax.random.split(key)
        alpha = length / np.sqrt(DIM)
        direction = initial_network(first, inputs, config.hidden, DIM, 0.5)
        direction["b2"] = direction["b2"].at[-1].set(axis / alpha)
        return {
            "direction": direction,
            "length": initial_network(second, inputs, config.length_hidden, 1, last),
            "alpha": jnp.log(alpha),
        }

    first, second = jax.random.split(key)
    text = tower(first, TEXT_DIM, config.text_length, config.text_axis, 0.05)
    picture = tower(
        second, features + TEXT_DIM, config.picture_length, config.picture_axis, 0.3
    ) | {"certainty": jnp.asarray(config.certainty)}
    return {"text": text, "picture": picture, "logits": {"scale": jnp.log(config.scale)}}


def temperature(params: Params) -> float:
    """The learned temperature 1 / s."""
    return float(np.exp(-min(float(params["logits"]["scale"]), np.log(MAX_SCALE))))


def contrastive_loss(logits: jax.Array, same: jax.Array) -> jax.Array:
    """Cross entropy both ways; `same` tells which pairs are positives."""
    targets = same / same.sum(axis=1, keepdims=True)
    terms = [
        jnp.sum(targets * jax.nn.log_softmax(logits, axis=axis), axis=1).mean() for axis in (0, 1)
    ]
    return -sum(terms) / 2


def cone_loss(general: jax.Array, specific: jax.Array, eta: float, K: float) -> jax.Array:
    """How far the specific points lie outside the cones of eta times the aperture, row by row."""
    angle = entailment.exterior_angle(general, specific, K)
    return jax.nn.relu(angle - eta * entailment.half_aperture(general, K))


def separation_loss(
    general: jax.Array, specific: jax.Array, same: jax.Array, margin: float, K: float
) -> jax.Array:
    """How deep the pairs that do not match lie inside the widened cones, the mean."""
    angle = entailment.pairwise_exterior_angle(general, specific, K)
    depth = entailment.half_aperture(general, K)[:, None] + margin - angle
    return jnp.sum(jax.nn.relu(depth) * (1 - same)) / jnp.maximum(jnp.sum(1 - same), 1)


def _loss(
    params: Params, batch: Batch, key: jax.Array, config: TowerConfig
) -> tuple[jax.Array, tuple[jax.Array, ...]]:
    K, first, second = config.K, *jax.random.split(key)
    picture = lorentz.exp_map0(
        picture_tangent(params, batch["features"], batch["mixtures"], first, config.dropout), K
    )
    sides = ("caption", "category", "top", "noun", "ancestor")
    embeddings = jnp.concatenate([batch[side] for side in sides])
    points = lorentz.exp_map0(text_tangent(params, embeddings, second, config.dropout), K)
    caption, category, top, noun, ancestor = jnp.split(points, len(sides))

    same = (batch["name"][:, None] == batch["name"][None, :]).astype(points.dtype)
    scale = jnp.exp(jnp.minimum(params["logits"]["scale"], np.log(MAX_SCALE)))
    contrast = contrastive_loss(-lorentz.pairwise_distance(caption, picture, K) * scale, same)

    cone = functools.partial(cone_loss, eta=config.eta, K=K)
    has_category, has_top = batch["has_category"], batch["has_top"]
    matching = cone(caption, picture).mean()
    categories = (
        jnp.mean(has_category * (cone(category, caption) + cone(category, picture)))
        + jnp.mean(has_top * cone(top, caption))
        + cone(ancestor, noun).mean()
    )
    separation = separation_loss(caption, picture, same, config.separation_margin, K)

    far = functools.partial(lorentz.distance_to_origin, K=K)

    def hinge(general: jax.Array, specific: jax.Array, margin: float) -> jax.Array:
        return jax.nn.relu(margin - far(specific) + far(general))

    gap = far(noun) - far(ancestor)
    order = (
        jnp.mean((gap - config.level * batch["levels"]) ** 2) / config.level
        + jnp.mean(has_category * hinge(category, caption, config.margin))
        + jnp.mean(hinge(caption, picture, config.margin))
        + jnp.mean(has_top * hinge(top, caption, 2 * config.margin))
    )
    total = (
        contrast
        + config.cone_weight * matching
        + config.category_weight * categories
        + config.separation_weight * separation
        + config.order_weight * order
    )
    return total, (contrast, matching, categories, separation, order)


def warm_start(
    weights: Network, config: TowerConfig, texts: np.ndarray, sample: Any, key: jax.Array
) -> Network:
    """Trains the text lengths on WordNet alone.

    The loss is the mean of :math:`(r (\\ell(n) - \\ell(a)) / h - g)^2` for nouns n and ancestors a
    that lie g levels above, with the initial tangent length r of texts: to first order the
    difference of tangent lengths in units of h.

    Args:
      weights: of the length network of texts.
      config: settings.
      texts: embeddings of all texts, by id.
      sample: gives rows (noun, ancestor, levels).
      key: of dropout.

    Returns:
      Trained weights.
    """
    tx = optax.adamw(
        optax.cosine_onecycle_schedule(config.warm_steps, config.warm_rate),
        weight_decay=config.weight_decay,
    )
    per_level = np.hypot(config.text_length, config.text_axis) / config.level

    def loss(weights: Network, noun: Any, ancestor: Any, levels: Any, key: Any) -> jax.Array:
        both = jnp.concatenate([noun, ancestor])
        lengths = network(weights, both, key, config.dropout)[:, 0]
        below, above = jnp.split(lengths, 2)
        return jnp.mean((per_level * (below - above) - levels) ** 2)

    @jax.jit
    def step(weights: Network, state: Any, *batch: Any) -> Any:
        updates, state = tx.update(jax.grad(loss)(weights, *batch), state, weights)
        return optax.apply_updates(weights, updates), state

    state = tx.init(weights)
    for at in range(config.warm_steps):
        noun, ancestor, levels = sample(config.batch).T
        batch = (texts[noun], texts[ancestor], levels.astype(np.float32))
        weights, state = step(weights, state, *batch, jax.random.fold_in(key, at))
    return weights


def _rates(params: Params, config: TowerConfig) -> Params:
    """Learning rates in units of the networks'."""
    rates = jax.tree.map(lambda _: 1.0, params)
    rates["text"]["alpha"] = rates["picture"]["alpha"] = config.alpha_rate
    rates["picture"]["certainty"] = 0.0
    rates["logits"]["scale"] = config.scale_rate
    return rates


def train(
    config: TowerConfig, pictures: dict[str, np.ndarray], texts: np.ndarray, chains: np.ndarray
) -> Params:
    """Trains both towers.

    Args:
      config: settings.
      pictures: per picture ``features``, ``mixtures``, ``variants`` (several text ids), ``name``
        (text id), ``category`` and ``top`` (text id or -1).
      texts: embeddings of all texts, by id.
      chains: rows (noun, ancestor, levels between them, whether the noun has nouns below it), the
        first two as text ids.

    Returns:
      Parameters.
    """
    rng = np.random.default_rng(config.seed)
    key, warm, start = jax.random.split(jax.random.key(config.seed), 3)
    inner = [np.flatnonzero(chains[:, 3] == flag) for flag in (0, 1)]

    def sample(count: int) -> np.ndarray:
        of_inner = round(config.inner_share * count)
        rows = [rng.choice(inner[0], count - of_inner), rng.choice(inner[1], of_inner)]
        return chains[np.concatenate(rows), :3]

    params = init(config, pictures["features"].shape[1], start)
    params["text"]["length"] = warm_start(params["text"]["length"], config, texts, sample, warm)
    count = len(pictures["features"])
    steps = config.epochs * (count // config.batch)
    tx = optax.adamw(
        optax.cosine_onecycle_schedule(steps, config.learning_rate),
        weight_decay=config.weight_decay,
    )
    rates = _rates(params, config)

    @jax.jit
    def step(params: Params, state: Any, batch: Batch, key: jax.Array) -> Any:
        (_, parts), gradient = jax.value_and_grad(_loss, has_aux=True)(params, batch, key, config)
        updates, state = tx.update(gradient, state, params)
        updates = jax.tree.map(lambda update, rate: rate * update, updates, rates)
        return optax.apply_updates(params, updates), state, parts

    state, at = tx.init(params), 0
    for epoch in range(config.epochs):
        order = rng.permutation(count)
        for begin in range(0, count - config.batch + 1, config.batch):
            rows = order[begin : begin + config.batch]
            column = rng.integers(0, pictures["variants"].shape[1], len(rows))
            noun, ancestor, levels = sample(config.batch).T
            category, top = pictures["category"][rows], pictures["top"][rows]
            batch = {
                "features": pictures["features"][rows],
                "mixtures": pictures["mixtures"][rows],
                "name": pictures["name"][rows],
                "caption": texts[pictures["variants"][rows, column]],
                "category": texts[category],
                "has_category": (category >= 0).astype(np.float32),
                "top": texts[top],
                "has_top": (top >= 0).astype(np.float32),
                "noun": texts[noun],
                "ancestor": texts[ancestor],
                "levels": levels.astype(np.float32),
            }
            params, state, parts = step(params, state, batch, jax.random.fold_in(key, at))
            at += 1
        shown = ", ".join(f"{float(part):.4f}" for part in parts)
        print(f"epoch {epoch + 1}/{config.epochs}: {shown}", flush=True)
    params["picture"]["alpha"] += np.log(config.stretch)
    return params


def rounded(towers: PocketTowers) -> PocketTowers:
    """The towers as :func:`save_towers` writes them: networks and names in float16."""

    def half(x: jax.Array) -> jax.Array:
        return jnp.asarray(np.float16(x), jnp.float32)

    params, names = jax.tree.map(half, (towers.params, towers.class_names))
    return dataclasses.replace(towers, params=params, class_names=names)


def save_towers(path: Path, towers: PocketTowers) -> None:
    """Writes towers as one ``.npz`` file without pickles; networks and names as float16."""
    leaves = jax.tree_util.tree_flatten_with_path(towers.params)[0]
    halves = {"/".join(str(key.key) for key in keys): np.float16(leaf) for keys, leaf in leaves}
    np.savez_compressed(
        path,
        allow_pickle=False,
        **halves,
        class_names=np.float16(towers.class_names),
        mean=np.float32(towers.mean),
        spread=np.float32(towers.spread),
        K=np.float64(towers.K),
    )
