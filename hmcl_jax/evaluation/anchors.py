"""Test anchors: the matched pairs on which drift of a task's geometry is measured."""

import hashlib
from typing import NamedTuple

import jax
import numpy as np

from hmcl_jax import _checks
from hmcl_jax.data.store import Task

Array = jax.Array | np.ndarray


class Anchors(NamedTuple):
    """Matched points of two modalities, row by row, each of shape ``(..., n, d)``."""

    general: Array  # texts
    specific: Array  # samples


def fixed_anchors(task: Task, count: int = 50) -> Anchors:
    """Frozen features of some test samples of a task and of the text that each belongs to.

    The text of a sample is the prototype of its class, or for retrieval one of its captions. The
    choice depends only on the name of the task, so it is the same for all methods and seeds, and a
    smaller count takes the first of a larger. No sample occurs twice.

    Args:
      task: of a store.
      count: how many; all test samples with a text if there are fewer.

    Returns:
      The anchors, in the dtype of the store.

    Example:
      >>> from hmcl_jax.data.synthetic import synthetic_stream
      >>> from hmcl_jax.evaluation import fixed_anchors
      >>> anchors = fixed_anchors(synthetic_stream(tasks=1, dimension=8)["task1"], count=20)
      >>> print(anchors.general.shape, anchors.specific.shape)
      (20, 8) (20, 8)
    """
    _checks.integer("count", count, 1)
    general, specific, pairs = task.pairs("test")
    seed = int.from_bytes(hashlib.sha256(task.name.encode()).digest()[:4], "little")
    # The stream of RandomState is frozen; that of default_rng may change between releases of NumPy.
    pairs = pairs[np.random.RandomState(seed).permutation(len(pairs))]
    _, first = np.unique(pairs[:, 0], return_index=True)
    rows = pairs[np.sort(first)[:count]]
    return Anchors(np.asarray(general[rows[:, 1]]), np.asarray(specific[rows[:, 0]]))
