"""Two small towers from frozen features into H^512, trained with the MERU objective on the base.

A tower gives a tangent vector at the origin: a direction and a length. The first 384 of the 512
dimensions begin as the text space itself, MiniLM's embedding of a text or ConSE's mixture for a
picture, which keeps what the picture encoder knows of photographs. What is learned either has the
other 128 dimensions to itself ("join") or is added to all of them ("add"). The length of a text is
learned from its embedding, within bounds below the length of the pictures, so that generic texts
can lie nearer the origin.
"""

import dataclasses
import functools
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax

from hmcl_jax import entailment, lorentz

DIM = 512


@dataclasses.dataclass(frozen=True)
class TowerConfig:
    """Settings of the training.

    Chosen among :data:`CANDIDATES` by ``build_pocket.py --select``, on held-out base pairs alone.

    Attributes:
      form: ``"join"`` or ``"add"``, see the module's head.
      hidden: width of the networks.
      kept: of the text space: its share of the squared direction, or its weight in the sum.
      shortest: tangent length of the most general text.
      longest: tangent length of the most specific text.
      picture_length: initial tangent length of pictures.
      epochs: passes over the base.
      batch: pairs per step.
      learning_rate: peak.
      dropout: of the hidden units.
      entailment_weight: of all cone terms together.
      margin: by which a child's length should exceed its parent's.
      K: squared radius of the hyperboloid.
      seed: of everything random.
    """

    form: str = "join"
    hidden: int = 512
    kept: float = 0.5
    shortest: float = 0.95
    longest: float = 1.1
    picture_length: float = 2.0
    epochs: int = 14
    batch: int = 512
    learning_rate: float = 1e-3
    dropout: float = 0.25
    entailment_weight: float = 0.2
    margin: float = 0.02
    K: float = 10.0
    seed: int = 0


CANDIDATES = [
    {"form": form, "kept": kept, "shortest": shortest, "longest": longest}
    for form, weights in (("join", (0.3, 0.5)), ("add", (1.0, 2.0)))
    for kept in weights
    for shortest, longest in ((0.5, 0.7), (0.95, 1.1))
]


def init(config: TowerConfig, features: int, key: jax.Array) -> dict[str, Any]:
    """Parameters of both towers."""

    def network(key: jax.Array, fan_in: int, fan_out: int) -> dict[str, jax.Array]:
        first, last = jax.random.split(key)
        return {
            "w1": jax.random.normal(first, (fan_in, config.hidden)) / np.sqrt(fan_in),
            "b1": jnp.zeros(config.hidden),
            "w2": jax.random.normal(last, (config.hidden, fan_out)) / np.sqrt(config.hidden),
            "b2": jnp.zeros(fan_out),
        }

    keys = jax.random.split(key, 3)
    learned = DIM - 384 if config.form == "join" else DIM
    return {
        "picture": network(keys[0], features + 384, learned),
        "text": network(keys[1], 384, learned),
        "length": network(keys[2], 384, 1),
        "picture_length": jnp.log(jnp.asarray(config.picture_length)),
        "scale": jnp.log(jnp.asarray(1 / 0.07)),
    }


def _network(w: dict[str, jax.Array], x: jax.Array, rate: float, key: Any) -> jax.Array:
    hidden = jax.nn.gelu(x @ w["w1"] + w["b1"])
    if key is not None:
        keep = jax.random.bernoulli(key, 1 - rate, hidden.shape)
        hidden = jnp.where(keep, hidden / (1 - rate), 0)
    return hidden @ w["w2"] + w["b2"]


def _unit(x: jax.Array) -> jax.Array:
    return x / jnp.linalg.norm(x, axis=-1, keepdims=True)


def _join(config: TowerConfig, given: jax.Array, learned: jax.Array) -> jax.Array:
    """Unit vectors of a given and a learned part."""
    if config.form == "add":
        padded = jnp.pad(given, ((0, 0), (0, DIM - 384)))
        return _unit(config.kept * padded + learned)
    parts = [np.sqrt(config.kept) * given, np.sqrt(1 - config.kept) * _unit(learned)]
    return jnp.concatenate(parts, axis=1)


def picture_tangent(
    params: dict[str, Any],
    config: TowerConfig,
    features: jax.Array,
    conse: jax.Array,
    key: Any = None,
) -> jax.Array:
    """Tangent vectors of pictures, (n, 512)."""
    inputs = jnp.concatenate([features, 3 * conse], axis=1)
    correction = _network(params["picture"], inputs, config.dropout, key)
    return jnp.exp(params["picture_length"]) * _join(config, conse, correction)


def text_tangent(
    params: dict[str, Any], config: TowerConfig, texts: jax.Array, key: Any = None
) -> jax.Array:
    """Tangent vectors of texts, (n, 512)."""
    keys = (None, None) if key is None else jax.random.split(key)
    direction = _join(config, texts, _network(params["text"], texts, config.dropout, keys[0]))
    share = jax.nn.sigmoid(_network(params["length"], texts, config.dropout, keys[1]))
    return (config.shortest + (config.longest - config.shortest) * share) * direction


def _contrast(logits: jax.Array, same: jax.Array) -> jax.Array:
    """Cross entropy both ways; rows of one name share their positives."""
    targets = same / same.sum(axis=1, keepdims=True)
    forward = -jnp.sum(targets * jax.nn.log_softmax(logits, axis=1), axis=1).mean()
    backward = -jnp.sum(targets * jax.nn.log_softmax(logits, axis=0), axis=0).mean()
    return (forward + backward) / 2


def _loss(
    params: dict[str, Any], batch: dict[str, jax.Array], key: Any, config: TowerConfig
) -> Any:
    keys = jax.random.split(key, 5)
    lift = functools.partial(lorentz.exp_map0, K=config.K)
    text = functools.partial(text_tangent, params, config)
    picture = lift(picture_tangent(params, config, batch["features"], batch["conse"], keys[0]))
    caption = lift(text(batch["text"], keys[1]))
    scale = jnp.exp(jnp.minimum(params["scale"], jnp.log(100.0)))
    logits = -lorentz.pairwise_distance(caption, picture, config.K) * scale
    same = (batch["name"][:, None] == batch["name"][None, :]).astype(logits.dtype)
    contrast = _contrast(logits, same)

    category = lift(text(batch["category"], keys[2]))
    child, parent = lift(text(batch["child"], keys[3])), lift(text(batch["parent"], keys[4]))
    cone = functools.partial(entailment.entailment_loss, K=config.K)
    known = batch["categorised"]
    cones = (
        cone(caption, picture).mean()
        + jnp.mean(known * cone(category, caption))
        + jnp.mean(known * cone(category, picture))
        + cone(parent, child).mean()
    )

    def nearer(general: jax.Array, specific: jax.Array) -> jax.Array:
        gap = lorentz.distance_to_origin(specific, config.K) - lorentz.distance_to_origin(
            general, config.K
        )
        return jax.nn.relu(config.margin - gap)

    order = nearer(parent, child).mean() + jnp.mean(known * nearer(category, caption))
    return contrast + config.entailment_weight * cones + order, (contrast, cones, order)


def train(
    config: TowerConfig,
    base: dict[str, np.ndarray],
    texts: np.ndarray,
    pairs: np.ndarray,
) -> dict[str, Any]:
    """Trains both towers.

    Args:
      config: settings.
      base: per picture ``features``, ``conse``, ``variants`` (several text ids), ``name`` (id),
        ``category`` (text id or -1).
      texts: embeddings of all texts, by id.
      pairs: (child, parent) text ids.

    Returns:
      Parameters.
    """
    rng = np.random.default_rng(config.seed)
    key = jax.random.key(config.seed)
    params = init(config, base["features"].shape[1], key)
    count = len(base["features"])
    steps = config.epochs * (count // config.batch)
    schedule = optax.cosine_onecycle_schedule(steps, config.learning_rate)
    tx = optax.adamw(schedule, weight_decay=1e-2)
    state = tx.init(params)

    @jax.jit
    def step(params: Any, state: Any, batch: Any, key: Any) -> Any:
        (loss, parts), gradient = jax.value_and_grad(_loss, has_aux=True)(
            params, batch, key, config
        )
        updates, state = tx.update(gradient, state, params)
        return optax.apply_updates(params, updates), state, loss, parts

    at = 0
    for epoch in range(config.epochs):
        order = rng.permutation(count)
        for start in range(0, count - config.batch + 1, config.batch):
            rows = order[start : start + config.batch]
            column = rng.integers(0, base["variants"].shape[1], len(rows))
            chosen = pairs[rng.integers(0, len(pairs), config.batch)]
            category = base["category"][rows]
            batch = {
                "features": base["features"][rows],
                "conse": base["conse"][rows],
                "text": texts[base["variants"][rows, column]],
                "name": base["name"][rows],
                "category": texts[np.maximum(category, 0)],
                "categorised": (category >= 0).astype(np.float32),
                "child": texts[chosen[:, 0]],
                "parent": texts[chosen[:, 1]],
            }
            params, state, loss, parts = step(params, state, batch, jax.random.fold_in(key, at))
            at += 1
        shown = ", ".join(f"{float(x):.3f}" for x in parts)
        print(f"epoch {epoch + 1}/{config.epochs}: loss {float(loss):.3f} ({shown})", flush=True)
    return params
