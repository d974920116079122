"""Synthetic hyperbolic streams, with knobs for what makes tasks collide."""

import hashlib
import json

import numpy as np

from hmcl_jax.data.store import Store, Task

MODALITIES = ("image", "audio", "thermal", "depth")


def synthetic_stream(
    tasks: int = 5,
    classes: int = 8,
    depth: int = 2,
    dimension: int = 64,
    overlap: float = 0.5,
    gap: float = 0.5,
    noise: float = 0.3,
    train: int = 256,
    test: int = 128,
    modalities: int = 2,
    retrieval_every: int = 0,
    K: float = 10.0,
    tau: float = 0.1,
    seed: int = 0,
) -> Store:
    """A stream of tasks whose classes are leaves of trees on the hyperboloid.

    Each task has a tree of concepts in a subspace of its own and classes at its leaves. Texts lie
    nearer the origin than samples. Samples are turned within the task's subspace by a rotation that
    the heads have to undo; where subspaces of two tasks overlap, undoing one disturbs the other.

    Args:
      tasks: number of tasks.
      classes: leaves of each tree.
      depth: levels of each tree below its root.
      dimension: d of the space.
      overlap: share of each task's subspace that all tasks have in common, in [0, 1].
      gap: distance between the modalities' means, in the tangent space.
      noise: standard deviation of samples around their class, relative to its length.
      train: training samples of each task.
      test: test samples of each task.
      modalities: texts plus so many kinds of samples, taken in turns (2: text and image).
      retrieval_every: every so manieth task is retrieval of one text per sample; 0 for none.
      K: squared radius of the hyperboloid.
      tau: temperature.
      seed: of everything.

    Returns:
      A store, in memory.

    Example:
      >>> from hmcl_jax.data.synthetic import synthetic_stream
      >>> stream = synthetic_stream(tasks=2, classes=4, train=32, test=16)
      >>> stream.validate()
      >>> print([task.name for task in stream], stream["task1"].arrays["prototypes"].shape)
      ['task1', 'task2'] (4, 64)
    """
    knobs = dict(locals())
    for name, least in (("tasks", 1), ("classes", 2), ("depth", 1), ("dimension", 4), ("train", 1)):
        if knobs[name] < least:
            raise ValueError(f"{name} must be at least {least}, got {name} = {knobs[name]}.")
    if not 2 <= modalities <= len(MODALITIES) + 1:
        raise ValueError(f"modalities must be in 2..{len(MODALITIES) + 1}, got {modalities}.")
    if not 0 <= overlap <= 1:
        raise ValueError(f"overlap must be in [0, 1], got overlap = {overlap}.")
    rng = np.random.default_rng(seed)
    width = max(2, dimension // 4)
    common = np.linalg.qr(rng.normal(size=(dimension, width)))[0]
    offsets = {m: _unit(rng.normal(size=dimension)) * gap for m in MODALITIES}
    made = []
    for index in range(tasks):
        specific = MODALITIES[index % (modalities - 1)]
        own = rng.normal(size=(dimension, width)) / np.sqrt(dimension)
        subspace = np.linalg.qr(np.sqrt(overlap) * common + np.sqrt(1 - overlap) * own)[0]
        turn = np.linalg.qr(rng.normal(size=(width, width)))[0]
        retrieval = retrieval_every > 0 and (index + 1) % retrieval_every == 0
        made.append(
            _task(
                rng,
                f"task{index + 1}",
                specific,
                subspace,
                turn,
                offsets[specific],
                knobs,
                retrieval,
            )
        )
    digest = hashlib.sha256(json.dumps(knobs, sort_keys=True).encode()).hexdigest()
    names = tuple(task.name for task in made)
    return Store(
        name="synthetic",
        backbone="synthetic",
        K=K,
        tau=tau,
        dimension=dimension,
        tasks=tuple(made),
        orders={"canonical": names},
        fingerprint=digest,
        provenance={"knobs": json.dumps(knobs, sort_keys=True)},
    )


def _unit(x: np.ndarray) -> np.ndarray:
    return x / np.linalg.norm(x, axis=-1, keepdims=True)


def _exp_map0(v: np.ndarray, K: float) -> np.ndarray:
    length = np.linalg.norm(v, axis=-1, keepdims=True) / np.sqrt(K)
    return (v * np.sinh(length) / np.maximum(length, 1e-12)).astype(np.float32)


def _task(
    rng: np.random.Generator,
    name: str,
    specific: str,
    subspace: np.ndarray,
    turn: np.ndarray,
    offset: np.ndarray,
    knobs: dict,
    retrieval: bool,
) -> Task:
    depth, classes, width, K = knobs["depth"], knobs["classes"], subspace.shape[1], knobs["K"]
    nodes = {"root": rng.normal(size=width)}
    level, tree = ["root"], []
    for step in range(1, depth + 1):
        count = max(2, round(classes ** (step / depth)))
        parents = [level[i * len(level) // count] for i in range(count)]
        children = [
            f"{name}-{'class' if step == depth else f'level{step}'}{i}" for i in range(count)
        ]
        for child, parent in zip(children, parents, strict=True):
            nodes[child] = nodes[parent] + rng.normal(size=width) * 1.5
            tree.append((child, f"{name}-root" if parent == "root" else parent))
        level = children
    leaves = _unit(np.stack([nodes[child] for child in level]))
    texts = _exp_map0(1.0 * leaves @ subspace.T, K)

    def samples(count: int) -> tuple[np.ndarray, np.ndarray]:
        labels = rng.integers(0, len(level), count)
        spread = rng.normal(size=(count, width)) * knobs["noise"] / np.sqrt(width)
        directions = _unit(leaves[labels] @ turn.T + spread) @ subspace.T
        return _exp_map0(2.0 * directions + offset, K), labels

    arrays = {}
    for split, count in (("train", knobs["train"]), ("test", knobs["test"])):
        points, labels = samples(count)
        if retrieval:
            arrays[f"{split}_specific"] = points
            jitter = 0.1 * rng.normal(size=(count, subspace.shape[0])) / np.sqrt(width)
            arrays[f"{split}_general"] = _exp_map0(leaves[labels] @ subspace.T + jitter, K)
            arrays[f"{split}_pairs"] = np.stack([np.arange(count)] * 2, axis=1)
        else:
            arrays[f"{split}_features"], arrays[f"{split}_labels"] = points, labels
    if retrieval:
        return Task(name, "retrieval", "text", specific, arrays)
    arrays["prototypes"] = texts
    return Task(
        name,
        "classification",
        "text",
        specific,
        arrays,
        classes=tuple(level),
        tree=tuple(tree),
    )
