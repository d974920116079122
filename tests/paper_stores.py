"""Stores in the layout of the paper's streams (tasks, classes, orders), with made-up points."""

import numpy as np

from hmcl_jax.data.store import Task, write_store
from hmcl_jax.data.suites import ORDERS, SUITES

SUITE = SUITES["hmcl16"]
CAPTIONS = 5


def points(directions, radius, K=10.0):
    """Points at a distance from the origin."""
    unit = directions / np.linalg.norm(directions, axis=1, keepdims=True)
    return (np.sqrt(K) * np.sinh(radius / np.sqrt(K)) * unit).astype(np.float16)


def classification(rng, expected, scale, dim, most):
    classes = min(expected.classes, most)
    centres = rng.normal(size=(classes, dim))
    arrays = {"prototypes": points(centres, 1.0)}
    for split, count in (("train", expected.train), ("test", expected.test)):
        labels = rng.integers(0, classes, max(1, round(count * scale)))
        noise = 2 * rng.normal(size=(len(labels), dim))
        arrays[f"{split}_features"] = points(centres[labels] + noise, 2.0)
        arrays[f"{split}_labels"] = labels
    names = tuple(f"{expected.name} {i}" for i in range(classes))
    groups = [(name, f"group {i % 7}") for i, name in enumerate(names)]
    tree = (*groups, *((group, "all") for group in dict.fromkeys(g for _, g in groups)))
    return Task(expected.name, "classification", "text", "image", arrays, classes=names, tree=tree)


def retrieval(rng, name, train, test, scale, dim, specific="image"):
    arrays = {}
    for split, count in (("train", train), ("test", test)):
        rows = max(1, round(count * scale))
        centres = rng.normal(size=(rows, dim))
        texts = np.repeat(centres, CAPTIONS, axis=0) + rng.normal(size=(CAPTIONS * rows, dim))
        arrays[f"{split}_specific"] = points(centres, 2.0)
        arrays[f"{split}_general"] = points(texts, 1.0)
        pairs = np.stack([np.repeat(np.arange(rows), CAPTIONS), np.arange(CAPTIONS * rows)], axis=1)
        arrays[f"{split}_pairs"] = pairs
    return Task(name, "retrieval", "text", specific, arrays)


def hmcl16_store(path, backbone, scale=0.01, dim=512, most_classes=1000, seed=0, only=None):
    """The 16 tasks of the paper in its canonical order, with seq2 and seq3.

    Args:
      path: where to write.
      backbone: name of the store.
      scale: share of the paper's numbers of pictures.
      dim: of the points.
      most_classes: upper limit of a task's classes, for haste.
      seed: of everything.
      only: names of the tasks to write. Default: all.
    """
    tasks = [t for t in _tasks(scale, dim, most_classes, seed) if only is None or t.name in only]
    names = [task.name for task in tasks]
    others = {
        order: [n for n in listed if n in names] for order, listed in ORDERS["hmcl16"].items()
    }
    return _write(path, tasks, backbone, others)


def modalities_store(path, backbone, scale=0.01, dim=512, most_classes=1000, seed=1, only=None):
    """The stream with an audio and a thermal task, without ImageNet; see :func:`hmcl16_store`."""
    rng = np.random.default_rng(seed)
    tasks = [t for t in _tasks(scale, dim, most_classes, seed) if t.name != "imagenet"]
    tasks.insert(4, retrieval(rng, "sounds", 5000, 2000, scale, dim, "audio"))
    tasks.insert(9, retrieval(rng, "heat", 5000, 2000, scale, dim, "thermal"))
    tasks = [task for task in tasks if only is None or task.name in only]
    return _write(path, tasks, f"{backbone}-modalities", {})


def _tasks(scale, dim, most_classes, seed):
    rng = np.random.default_rng(seed)
    return [
        classification(rng, e, scale, dim, most_classes)
        if e.kind == "classification"
        else retrieval(rng, e.name, e.train, e.test, scale, dim)
        for e in SUITE
    ]


def _write(path, tasks, name, orders):
    write_store(path, tasks, name=name, backbone=name, K=10.0, tau=0.07, orders=orders)
    return path
