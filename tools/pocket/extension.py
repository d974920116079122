r"""Towers of further modalities, trained against the text tower of pocket16 as it is.

The points of the texts and the temperature are fixed, so that a stream may mix the tasks of
pocket16 with tasks in a new modality. A tower has the form of that of the pictures,
:math:`v = \alpha \, e^{\ell(x)} (\sqrt{512} \, [c; 0] + g(x))`, and begins with the alpha of the
pictures and with their mean component along the shared axis, so that its radii begin near theirs.
A modality without ConSE's mixture c has :math:`\sqrt{512} \, g(x) / |g(x)|` in the parentheses, so
that unusual inputs do not fly off. The contrast of a few hundred pairs at
a fixed temperature would draw uncertain items to the origin; the mean of :math:`(d_0(x) - D)^2`,
with the mean distance D of pictures to the origin, keeps them near pictures.
"""

import dataclasses
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax

from hmcl_jax import lorentz
from hmcl_jax.data.pocket_towers import DIM, TEXT_DIM, PocketTowers, network
from hmcl_jax.data.store import Store
from pocket import evaluate
from pocket.towers import (
    TowerConfig,
    cone_loss,
    contrastive_loss,
    initial_network,
    separation_loss,
)


@dataclasses.dataclass(frozen=True)
class ExtensionConfig:
    """Settings of the training.

    The cone and separation terms are those of the towers of pocket16.
    """

    hidden: int = 512  # units of the network that gives directions
    length_hidden: int = 128  # units of the network that gives lengths
    steps: int = 300  # of the optimizer
    batch: int = 256  # pairs per step
    learning_rate: float = 1e-3  # peak
    weight_decay: float = 1e-2  # of AdamW
    dropout: float = 0.25  # of inputs and hidden units
    radius_weight: float = 20.0  # of the term that keeps items as far out as pictures
    seed: int = 0  # of everything random


CANDIDATES: list[dict[str, Any]] = [
    {"steps": steps, "dropout": dropout} for steps in (75, 150, 300) for dropout in (0.25, 0.5)
]


@dataclasses.dataclass(frozen=True)
class Pairs:
    """Items of a new modality and their texts."""

    inputs: np.ndarray  # features, (n, f)
    given: np.ndarray  # ConSE's mixtures, (n, 384), or of no columns
    variants: np.ndarray  # numbers of several texts of each item, (n, v); the first is its name
    texts: np.ndarray  # points of all texts, (m, 512)

    def rows(self, chosen: np.ndarray) -> "Pairs":
        """Some of the items."""
        parts = {name: getattr(self, name)[chosen] for name in ("inputs", "given", "variants")}
        return dataclasses.replace(self, **parts)

    def held_out(self, share: float = 0.2, seed: int = 0) -> np.ndarray:
        """True for the items of some names, to choose settings by."""
        names = np.unique(self.variants[:, 0])
        chosen = np.random.default_rng(seed).permutation(names)[: round(share * len(names))]
        return np.isin(self.variants[:, 0], chosen)


@dataclasses.dataclass(frozen=True)
class Start:
    """Where a tower begins: at the pictures of pocket16."""

    alpha: float  # log alpha of their tower
    axis: float  # their mean tangent component along the shared axis, the last dimension
    distance: float  # their mean distance to the origin
    tau: float  # temperature
    K: float  # squared radius of the hyperboloid

    @classmethod
    def of(cls, towers: PocketTowers, pocket: Store) -> "Start":
        """From the towers of pocket16 and its training pictures."""
        points = [
            np.float32(task.arrays["train_features" if task.classes else "train_specific"])
            for task in pocket
        ]
        tangents = lorentz.log_map0(np.concatenate(points), pocket.K)
        axis, distance = tangents[:, -1].mean(), jnp.linalg.norm(tangents, axis=1).mean()
        alpha = float(towers.params["picture"]["alpha"])
        return cls(alpha, float(axis), float(distance), pocket.tau, pocket.K)


def tangent(
    params: dict[str, Any],
    inputs: jax.Array,
    given: jax.Array,
    key: jax.Array | None = None,
    rate: float = 0.0,
) -> jax.Array:
    """Tangent vectors of items, (n, 512)."""
    keys = [None] * 3 if key is None else jax.random.split(key, 3)
    x = jnp.concatenate([inputs, 3 * given], axis=1)
    if keys[0] is not None:
        x = jnp.where(jax.random.bernoulli(keys[0], 1 - rate, x.shape), x / (1 - rate), 0)
    direction = network(params["direction"], x, keys[1], rate)
    if given.shape[1]:
        direction += np.sqrt(DIM) * jnp.pad(given, ((0, 0), (0, DIM - TEXT_DIM)))
    else:
        direction *= np.sqrt(DIM) / jnp.linalg.norm(direction, axis=1, keepdims=True)
    return jnp.exp(params["alpha"] + network(params["length"], x, keys[2], rate)) * direction


class Tower:
    """A network from features of one modality into H^512, trained on pairs."""

    def __init__(self, config: ExtensionConfig, pairs: Pairs, start: Start) -> None:
        self.config, self.K = config, start.K
        self.mean, self.spread = pairs.inputs.mean(axis=0), pairs.inputs.std(axis=0) + 1e-6
        self.params = self._train(pairs, start)
        self._tangent = jax.jit(tangent)

    def _standard(self, inputs: np.ndarray) -> np.ndarray:
        return ((inputs - self.mean) / self.spread).astype(np.float32)

    def __call__(self, inputs: np.ndarray, given: np.ndarray) -> np.ndarray:
        """Points of items, float16."""
        tangents = self._tangent(self.params, self._standard(inputs), given.astype(np.float32))
        return np.asarray(lorentz.exp_map0(tangents, self.K)).astype(np.float16)

    def score(self, pairs: Pairs) -> float:
        """R@5 both ways between items and their names."""
        names, column = np.unique(pairs.variants[:, 0], return_inverse=True)
        points = self(pairs.inputs, pairs.given)
        far = evaluate.distances(pairs.texts[names], points, self.K)
        return evaluate.recall(far, np.stack([np.arange(len(points)), column], axis=1))

    def _train(self, pairs: Pairs, start: Start) -> dict[str, Any]:
        config, recipe = self.config, TowerConfig()
        inputs, given = self._standard(pairs.inputs), pairs.given.astype(np.float32)
        fan_in = inputs.shape[1] + given.shape[1]
        key = jax.random.key(config.seed)
        first, last = jax.random.split(key)
        if given.shape[1]:
            scale, alpha, bias = 0.5, start.alpha, start.axis / np.exp(start.alpha)
        else:
            # The components of g have a standard deviation of about 0.65, that of GELU.
            share = start.axis / start.distance
            scale, alpha = 1.0, np.log(start.distance / np.sqrt(DIM))
            bias = 0.65 * np.sqrt(DIM) * share / np.sqrt(1 - share**2)
        params = {
            "direction": initial_network(first, fan_in, config.hidden, DIM, scale),
            "length": initial_network(last, fan_in, config.length_hidden, 1, 0.05),
            "alpha": jnp.asarray(alpha, jnp.float32),
        }
        outputs = params["direction"]["b2"]
        params["direction"]["b2"] = outputs.at[-1].set(bias)
        schedule = optax.cosine_onecycle_schedule(config.steps, config.learning_rate)
        tx = optax.adamw(schedule, weight_decay=config.weight_decay)

        def loss(params: Any, batch: Any, key: Any) -> jax.Array:
            points = lorentz.exp_map0(
                tangent(params, batch["inputs"], batch["given"], key, config.dropout), start.K
            )
            text, name = batch["text"], batch["name"]
            same = (name[:, None] == name[None, :]).astype(points.dtype)
            far = lorentz.pairwise_distance(text, points, start.K)
            cone = cone_loss(text, points, recipe.eta, start.K).mean()
            off = jnp.mean((lorentz.distance_to_origin(points, start.K) - start.distance) ** 2)
            apart = separation_loss(text, points, same, recipe.separation_margin, start.K)
            return (
                contrastive_loss(-far / start.tau, same)
                + recipe.cone_weight * cone
                + recipe.separation_weight * apart
                + config.radius_weight * off
            )

        @jax.jit
        def step(params: Any, state: Any, batch: Any, key: Any) -> Any:
            value, gradient = jax.value_and_grad(loss)(params, batch, key)
            updates, state = tx.update(gradient, state, params)
            return optax.apply_updates(params, updates), state, value

        state = tx.init(params)
        rng = np.random.default_rng(config.seed)
        count, value = min(config.batch, len(inputs)), jnp.nan
        for at in range(config.steps):
            rows = rng.permutation(len(inputs))[:count]
            column = rng.integers(0, pairs.variants.shape[1], count)
            batch = {
                "inputs": inputs[rows],
                "given": given[rows],
                "text": np.float32(pairs.texts[pairs.variants[rows, column]]),
                "name": pairs.variants[rows, 0],
            }
            params, state, value = step(params, state, batch, jax.random.fold_in(key, at))
        print(f"tower of {len(inputs)} pairs: loss {float(value):.3f} at the end", flush=True)
        return params
