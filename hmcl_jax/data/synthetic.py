"""Synthetic hyperbolic streams whose settings decide how much their tasks collide."""

import dataclasses
import hashlib
import json
from typing import Any

import numpy as np

from hmcl_jax import _checks
from hmcl_jax.data.store import Store, Task

MODALITIES = ("image", "audio", "thermal", "depth")


@dataclasses.dataclass(frozen=True)
class SyntheticSettings:
    """The settings of :func:`synthetic_stream`."""

    tasks: int = 5
    classes: int = 8  # leaves of each tree
    depth: int = 2  # levels of each tree below its root
    dimension: int = 64
    overlap: float = 0.5  # share of each task's subspace that all tasks have in common
    gap: float = 0.5  # distance between the modalities' means, in the tangent space
    noise: float = 0.3  # standard deviation of samples around their class, relative to its length
    train: int = 256  # samples of each task
    test: int = 128
    modalities: int = 2  # text, and modalities - 1 kinds of samples, taken in turns
    retrieval_every: int = 0  # every n-th task is retrieval of one text per sample
    K: float = 10.0
    tau: float = 0.1
    seed: int = 0

    def __post_init__(self) -> None:
        least = {"tasks": 1, "classes": 2, "depth": 1, "dimension": 4, "train": 1}
        for name, value in least.items():
            _checks.integer(name, getattr(self, name), value)
        _checks.fraction("overlap", self.overlap, low_open=False, high_open=False)
        if not 2 <= self.modalities <= len(MODALITIES) + 1:
            raise ValueError(f"modalities must be from 2 to 5, got {self.modalities}.")


def synthetic_stream(**settings: Any) -> Store:
    """A stream of tasks whose classes are leaves of trees on the hyperboloid.

    Each task has a tree of concepts in a subspace of its own and classes at its leaves. Texts lie
    nearer the origin than samples. Samples are turned within the task's subspace by a rotation that
    the heads have to undo; where subspaces of two tasks overlap, undoing one disturbs the other.

    Args:
      **settings: the fields of :class:`SyntheticSettings`.

    Returns:
      A store, in memory.

    Example:
      >>> from hmcl_jax.data.synthetic import synthetic_stream
      >>> stream = synthetic_stream(tasks=2, classes=4, train=32, test=16)
      >>> stream.validate()
      >>> print([task.name for task in stream], stream["task1"].arrays["prototypes"].shape)
      ['task1', 'task2'] (4, 64)
    """
    s = SyntheticSettings(**settings)
    rng = np.random.default_rng(s.seed)
    width = max(2, s.dimension // 4)
    common = np.linalg.qr(rng.normal(size=(s.dimension, width)))[0]
    offsets = {m: _unit(rng.normal(size=s.dimension)) * s.gap for m in MODALITIES}
    tasks = []
    for index in range(s.tasks):
        specific = MODALITIES[index % (s.modalities - 1)]
        own = rng.normal(size=(s.dimension, width)) / np.sqrt(s.dimension)
        subspace = np.linalg.qr(np.sqrt(s.overlap) * common + np.sqrt(1 - s.overlap) * own)[0]
        turn = np.linalg.qr(rng.normal(size=(width, width)))[0]
        tree, classes, leaves = _tree(rng, f"task{index + 1}", s, width)
        retrieval = s.retrieval_every > 0 and (index + 1) % s.retrieval_every == 0
        arrays = {} if retrieval else {"prototypes": _exp_map0(leaves @ subspace.T, s.K)}
        for split, count in (("train", s.train), ("test", s.test)):
            labels = rng.integers(0, len(classes), count)
            spread = rng.normal(size=(count, width)) * s.noise / np.sqrt(width)
            directions = _unit(leaves[labels] @ turn.T + spread) @ subspace.T
            points = _exp_map0(2.0 * directions + offsets[specific], s.K)
            if retrieval:
                arrays[f"{split}_specific"] = points
                jitter = 0.1 * rng.normal(size=(count, s.dimension)) / np.sqrt(width)
                arrays[f"{split}_general"] = _exp_map0(leaves[labels] @ subspace.T + jitter, s.K)
                arrays[f"{split}_pairs"] = np.stack([np.arange(count)] * 2, axis=1)
            else:
                arrays[f"{split}_features"], arrays[f"{split}_labels"] = points, labels
        kind, name = "retrieval" if retrieval else "classification", f"task{index + 1}"
        names = ((), ()) if retrieval else (classes, tree)
        tasks.append(Task(name, kind, "text", specific, arrays, *names))
    text = json.dumps(dataclasses.asdict(s), sort_keys=True)
    return Store(
        name="synthetic",
        backbone="synthetic",
        K=s.K,
        tau=s.tau,
        dimension=s.dimension,
        tasks=tuple(tasks),
        orders={"canonical": tuple(task.name for task in tasks)},
        fingerprint=hashlib.sha256(text.encode()).hexdigest(),
        provenance={"knobs": text},
    )


def _tree(
    rng: np.random.Generator, name: str, s: SyntheticSettings, width: int
) -> tuple[tuple[tuple[str, str], ...], tuple[str, ...], np.ndarray]:
    """A random tree: (child, parent) rows, its leaves, and their directions."""
    places = {"root": rng.normal(size=width)}
    level, tree = ["root"], []
    for step in range(1, s.depth + 1):
        count = max(2, round(s.classes ** (step / s.depth)))
        kind = "class" if step == s.depth else f"level{step}"
        children = [f"{name}-{kind}{i}" for i in range(count)]
        for i, child in enumerate(children):
            parent = level[i * len(level) // count]
            places[child] = places[parent] + rng.normal(size=width) * 1.5
            tree.append((child, f"{name}-root" if parent == "root" else parent))
        level = children
    return tuple(tree), tuple(level), _unit(np.stack([places[child] for child in level]))


def _unit(x: np.ndarray) -> np.ndarray:
    return x / np.linalg.norm(x, axis=-1, keepdims=True)


def _exp_map0(v: np.ndarray, K: float) -> np.ndarray:
    length = np.linalg.norm(v, axis=-1, keepdims=True) / np.sqrt(K)
    return (v * np.sinh(length) / np.maximum(length, 1e-12)).astype(np.float32)
