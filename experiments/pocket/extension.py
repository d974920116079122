"""Towers of further modalities, trained against the text tower of pocket16 as it is.

The texts' points and the temperature are fixed, so that a stream may mix the tasks of pocket16 with
tasks in a new modality. A tower gives, like that of the pictures, a direction and one length. With
ConSE's mixture its first 384 dimensions are given and the others learned; without, all are learned.
"""

import dataclasses
import functools
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax

from hmcl_jax import entailment, lorentz
from pocket import evaluate
from pocket.towers import DIM

TEXT_DIM = 384


@dataclasses.dataclass(frozen=True)
class ExtensionConfig:
    """Settings of the training.

    Attributes:
      hidden: width of the network.
      kept: share of the squared direction of the first 384 dimensions, as in pocket16.
      length: initial tangent length.
      steps: of the optimizer.
      batch: pairs per step.
      learning_rate: peak.
      weight_decay: of AdamW.
      dropout: of inputs and hidden units.
      entailment_weight: of the cone term.
      K: squared radius of the hyperboloid.
      seed: of everything random.
    """

    hidden: int = 512
    kept: float = 0.5
    length: float = 2.0
    steps: int = 150
    batch: int = 256
    learning_rate: float = 1e-3
    weight_decay: float = 1e-2
    dropout: float = 0.25
    entailment_weight: float = 0.2
    K: float = 10.0
    seed: int = 0


CANDIDATES: list[dict[str, Any]] = [
    {"steps": steps, "dropout": dropout} for steps in (75, 150, 400) for dropout in (0.25, 0.5)
]


@dataclasses.dataclass(frozen=True)
class Pairs:
    """Items of a new modality and their texts.

    Attributes:
      inputs: features, (n, f).
      given: ConSE's mixtures, (n, 384), or of no columns.
      variants: numbers of several texts of each item, (n, v); the first is its name.
      texts: points of all texts, (m, 512).
    """

    inputs: np.ndarray
    given: np.ndarray
    variants: np.ndarray
    texts: np.ndarray

    def rows(self, chosen: np.ndarray) -> "Pairs":
        """Some of the items."""
        parts = {name: getattr(self, name)[chosen] for name in ("inputs", "given", "variants")}
        return dataclasses.replace(self, **parts)

    def held_out(self, share: float = 0.2, seed: int = 0) -> np.ndarray:
        """True for the items of some names, to choose settings by."""
        names = np.unique(self.variants[:, 0])
        chosen = np.random.default_rng(seed).permutation(names)[: round(share * len(names))]
        return np.isin(self.variants[:, 0], chosen)


def tangent(
    params: dict[str, Any],
    config: ExtensionConfig,
    inputs: jax.Array,
    given: jax.Array,
    key: Any = None,
) -> jax.Array:
    """Tangent vectors of items, (n, 512)."""

    def dropped(x: jax.Array, key: Any) -> jax.Array:
        if key is None:
            return x
        keep = jax.random.bernoulli(key, 1 - config.dropout, x.shape)
        return jnp.where(keep, x / (1 - config.dropout), 0)

    keys = (None, None) if key is None else jax.random.split(key)
    x = jnp.concatenate([inputs, 3 * given], axis=1)
    hidden = jax.nn.gelu(dropped(x, keys[0]) @ params["w1"] + params["b1"])
    learned = dropped(hidden, keys[1]) @ params["w2"] + params["b2"]
    first = given if given.shape[1] else learned[:, :TEXT_DIM]
    rest = learned if given.shape[1] else learned[:, TEXT_DIM:]
    parts = [
        np.sqrt(share) * part / jnp.linalg.norm(part, axis=1, keepdims=True)
        for share, part in ((config.kept, first), (1 - config.kept, rest))
    ]
    return jnp.exp(params["length"]) * jnp.concatenate(parts, axis=1)


class Tower:
    """A network from features of one modality into H^512, trained on pairs."""

    def __init__(self, config: ExtensionConfig, pairs: Pairs, tau: float) -> None:
        self.config = config
        self.mean, self.spread = pairs.inputs.mean(axis=0), pairs.inputs.std(axis=0) + 1e-6
        self.params = self._train(pairs, tau)
        self._tangent = jax.jit(functools.partial(tangent, config=config))

    def _standard(self, inputs: np.ndarray) -> np.ndarray:
        return ((inputs - self.mean) / self.spread).astype(np.float32)

    def __call__(self, inputs: np.ndarray, given: np.ndarray) -> np.ndarray:
        """Points of items, float16."""
        found = self._tangent(
            self.params, inputs=self._standard(inputs), given=given.astype(np.float32)
        )
        return np.asarray(lorentz.exp_map0(found, self.config.K)).astype(np.float16)

    def score(self, pairs: Pairs) -> float:
        """R@5 both ways between items and their names."""
        names, column = np.unique(pairs.variants[:, 0], return_inverse=True)
        points = self(pairs.inputs, pairs.given)
        far = evaluate.distances(pairs.texts[names], points, self.config.K)
        return evaluate.recall(far, np.stack([np.arange(len(points)), column], axis=1))

    def _train(self, pairs: Pairs, tau: float) -> dict[str, jax.Array]:
        config = self.config
        inputs, given = self._standard(pairs.inputs), pairs.given.astype(np.float32)
        fan_in, fan_out = inputs.shape[1] + given.shape[1], DIM - given.shape[1]
        key = jax.random.key(config.seed)
        first, last = jax.random.split(key)
        params = {
            "w1": jax.random.normal(first, (fan_in, config.hidden)) / np.sqrt(fan_in),
            "b1": jnp.zeros(config.hidden),
            "w2": jax.random.normal(last, (config.hidden, fan_out)) / np.sqrt(config.hidden),
            "b2": jnp.zeros(fan_out),
            "length": jnp.log(jnp.asarray(config.length)),
        }
        schedule = optax.cosine_onecycle_schedule(config.steps, config.learning_rate)
        tx = optax.adamw(schedule, weight_decay=config.weight_decay)

        def loss(params: Any, batch: Any, key: Any) -> jax.Array:
            points = lorentz.exp_map0(
                tangent(params, config, batch["inputs"], batch["given"], key), config.K
            )
            logits = -lorentz.pairwise_distance(batch["text"], points, config.K) / tau
            same = batch["name"][:, None] == batch["name"][None, :]
            targets = same / same.sum(axis=1, keepdims=True)
            contrast = -sum(
                jnp.sum(targets * jax.nn.log_softmax(logits, axis=axis), axis=axis).mean()
                for axis in (0, 1)
            )
            cone = entailment.entailment_loss(batch["text"], points, K=config.K).mean()
            return contrast / 2 + config.entailment_weight * cone

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
