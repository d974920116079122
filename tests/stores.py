"""A small store of two tasks."""

import json

import numpy as np

from hmcl_jax._files import file_sha256, json_sha256
from hmcl_jax.data.store import MANIFEST, Task, write_store

DIM = 8


def tasks(rng):
    def points(n):
        return rng.normal(size=(n, DIM)).astype(np.float16)

    return [
        Task(
            "animals",
            "classification",
            "text",
            "image",
            {
                "prototypes": points(3),
                "train_features": points(12),
                "train_labels": rng.integers(0, 3, 12),
                "test_features": points(5),
                "test_labels": rng.integers(0, 3, 5),
                "tree_features": points(5),
            },
            classes=("cat", "dog", "owl"),
            tree=(("cat", "mammal"), ("dog", "mammal"), ("mammal", "animal"), ("owl", "animal")),
            scores={"zero_shot": 0.5},
            provenance={"licence": "none"},
        ),
        Task(
            "sounds",
            "retrieval",
            "text",
            "audio",
            {
                "train_specific": points(4),
                "train_general": points(6),
                "train_pairs": np.array([[0, 0], [1, 1], [2, 2], [3, 3], [3, 4], [3, 5]]),
                "test_specific": points(3),
                "test_general": points(3),
                "test_pairs": np.array([[0, 2], [1, 1], [2, 0]]),
                "thumbnails": np.frombuffer(b"onetwo", np.uint8),
                "thumbnail_ends": np.array([3, 6]),
                "thumbnail_rows": np.array([2, 0]),
            },
        ),
    ]


def plant(index, value):
    """An edit of an array."""

    def edit(array):
        array[index] = value
        return array

    return edit


def write(path, made, **more):
    settings = {"name": "two", "backbone": "made", "K": 10.0, "tau": 0.07}
    return write_store(path, made, **{**settings, **more})


def sign(store):
    """Gives the manifest the checksums of the files as they are."""
    manifest = json.loads((store / MANIFEST).read_bytes())
    for task in manifest["tasks"]:
        for array, entry in task["arrays"].items():
            parts = {f".{key}": x for key, x in entry.items() if isinstance(x, dict)}
            for suffix, part in (parts or {"": entry}).items():
                part["sha256"] = file_sha256(store / task["name"] / f"{array}{suffix}.npy")
    manifest["sha256"] = json_sha256(manifest)
    (store / MANIFEST).write_text(json.dumps(manifest))
