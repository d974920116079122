"""Ends of small tasks, and heads of two seeds, for the tests of methods."""

import jax
import jax.numpy as jnp
import numpy as np

from hmcl_jax.continual import TrainConfig
from hmcl_jax.continual.method import TaskData, TaskSpec

DIM, K, TAU = 6, 10.0, 0.3
CONFIG = TrainConfig(kappa=0.1, entailment_weight=0.2)


def spec(kind="classification", first=False, general="text", specific="image"):
    return TaskSpec(kind, general, specific, first, K, TAU, 64, CONFIG)


def task_end(rng, place, count=40, seeds=(3, 8), specific="image"):
    """The end of a classification task of five classes."""
    general = rng.normal(size=(5, DIM)).astype(np.float32)
    features = rng.normal(size=(count, DIM)).astype(np.float32)
    pairs = np.stack([np.arange(count), rng.integers(0, 5, count)], axis=1)
    counts = {"text": np.bincount(pairs[:, 1], minlength=5), specific: np.ones(count, int)}
    shown = {"text": general, specific: features}
    about = spec(first=place == 0, specific=specific)
    return TaskData(about, shown, counts, pairs, general, features, seeds, place)


def heads(rng, seeds=2, modalities=("image", "text"), dtype=jnp.float32):
    return {
        m: jnp.asarray(
            np.eye(DIM, DIM + 1, k=1) + 0.1 * rng.normal(size=(seeds, DIM, DIM + 1)), dtype
        )
        for m in modalities
    }


def one(tree, seed=0):
    return jax.tree.map(lambda x: x[seed], tree)


def flat(tree):
    return np.concatenate([np.asarray(tree[m], np.float64).ravel() for m in sorted(tree)])
