"""Scores of all seeds on the test part of a task."""

import functools
from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from hmcl_jax.continual.feed import class_capacity
from hmcl_jax.continual.method import Heads
from hmcl_jax.data.store import Task
from hmcl_jax.evaluation import predict, recall, top1
from hmcl_jax.head import apply_head

KS = (1, 5, 10)


class Evaluator:
    """Evaluates tasks; keeps their padded test parts on the device.

    Args:
      K: squared radius of the hyperboloid.
      device_memory: MiB that may be kept there; the tests of further tasks are sent every time.
    """

    def __init__(self, K: float, device_memory: float = 2048.0) -> None:
        self.K = K
        self._room = device_memory * 2**20
        self._tests: dict[str, tuple[Task, Any]] = {}

    def __call__(self, params: Heads, task: Task) -> dict[str, np.ndarray]:
        """Measures by name, each ``(seeds,)``; ``"score"`` is the one that counts.

        Top-1 for classification (and its mean over classes, ``top1_macro``); for retrieval the
        mean of R@5 in both directions (and R@1, R@5 and R@10 in each).
        """
        return self.all(params, [task])[0]

    def all(self, params: Heads, tasks: Sequence[Task]) -> list[dict[str, np.ndarray]]:
        """The measures of several tasks, which are waited for together."""
        found = []
        for task in tasks:
            measured = self._start(params, task)
            kept = self._kept(task) is not None
            found.append(measured if kept else jax.device_get(measured))  # one such at a time
        return [
            {name: np.asarray(values, float) for name, values in measured.items()}
            for measured in jax.device_get(found)
        ]

    def _start(self, params: Heads, task: Task) -> dict[str, jax.Array]:
        program = _classify if task.kind == "classification" else _retrieve
        heads = params[task.general], params[task.specific]
        return program(*heads, self._test(task), K=self.K)

    def predictions(self, params: Heads, task: Task) -> np.ndarray:
        """The class that each test sample of a classification task is given, ``(seeds, n)``."""
        if task.kind != "classification":
            raise ValueError(f"task must be a classification task, got {task.name!r}.")
        heads = params[task.general], params[task.specific]
        found = _predict(*heads, self._test(task), K=self.K)
        return np.asarray(found)[:, : task.size("test")]

    def _test(self, task: Task) -> dict[str, Any]:
        if (test := self._kept(task)) is not None:
            return test
        test = _padded_test(task)
        size = sum(array.nbytes for array in test.values())
        if size > self._room:
            return test
        self._room -= size
        test = jax.device_put(test)
        self._tests[task.name] = task, test
        return test

    def _kept(self, task: Task) -> dict[str, Any] | None:
        of, test = self._tests.get(task.name, (None, None))
        return test if of is task else None


def _rows(count: int) -> int:
    """Rows that a test array is padded to: 256, 1024, 4096, then multiples of 4096."""
    for size in (256, 1024):
        if count <= size:
            return size
    return -(-count // 4096) * 4096


def _pad(array: np.ndarray, rows: int, value: int = 0) -> np.ndarray:
    widths = ((0, rows - len(array)), *((0, 0) for _ in array.shape[1:]))
    return np.pad(np.asarray(array), widths, constant_values=value)


def _padded_test(task: Task) -> dict[str, Any]:
    arrays = task.arrays
    if task.kind == "classification":
        general, specific = arrays["prototypes"], arrays["test_features"]
        size = class_capacity(len(general))
        matches = {"labels": _pad(arrays["test_labels"].astype(np.int32), _rows(len(specific)))}
    else:
        general, specific = arrays["test_general"], arrays["test_specific"]
        size = _rows(len(general))
        pairs = arrays["test_pairs"].astype(np.int32)
        matches = {"pairs": _pad(pairs, _rows(len(pairs)), -1)}
    return {
        "general": _pad(general, size),
        "specific": _pad(specific, _rows(len(specific))),
        "general_count": np.int32(len(general)),
        "specific_count": np.int32(len(specific)),
        **matches,
    }


def _points(W: jax.Array, features: jax.Array, K: float) -> jax.Array:
    return apply_head(W, features.astype(W.dtype), K)


def _valid(test: dict[str, jax.Array], side: str) -> jax.Array:
    return jnp.arange(test[side].shape[0], dtype=jnp.int32) < test[f"{side}_count"]


@functools.partial(jax.jit, static_argnames="K")
def _classify(
    general: jax.Array, specific: jax.Array, test: dict[str, jax.Array], K: float
) -> dict[str, jax.Array]:
    def one(heads: tuple[jax.Array, jax.Array]) -> dict[str, jax.Array]:
        prototypes = _points(heads[0], test["general"], K)
        samples = _points(heads[1], test["specific"], K)
        masks: dict[str, Any] = {
            "valid": _valid(test, "specific"),
            "valid_prototypes": _valid(test, "general"),
        }
        score = {
            average: top1(prototypes, samples, test["labels"], K=K, average=average, **masks)
            for average in ("micro", "macro")
        }
        return {"score": score["micro"], "top1": score["micro"], "top1_macro": score["macro"]}

    return jax.lax.map(one, (general, specific))


@functools.partial(jax.jit, static_argnames="K")
def _predict(
    general: jax.Array, specific: jax.Array, test: dict[str, jax.Array], K: float
) -> jax.Array:
    def one(heads: tuple[jax.Array, jax.Array]) -> jax.Array:
        prototypes = _points(heads[0], test["general"], K)
        samples = _points(heads[1], test["specific"], K)
        return predict(prototypes, samples, K=K, valid_prototypes=_valid(test, "general"))

    return jax.lax.map(one, (general, specific))


@functools.partial(jax.jit, static_argnames="K")
def _retrieve(
    general: jax.Array, specific: jax.Array, test: dict[str, jax.Array], K: float
) -> dict[str, jax.Array]:
    def one(heads: tuple[jax.Array, jax.Array]) -> dict[str, jax.Array]:
        found = recall(
            _points(heads[0], test["general"], K),
            _points(heads[1], test["specific"], K),
            test["pairs"],
            ks=KS,
            K=K,
            valid_general=_valid(test, "general"),
            valid_specific=_valid(test, "specific"),
        )
        both = [found[direction][5] for direction in sorted(found)]
        flat = {
            f"{direction}_r{k}": share
            for direction, by_k in sorted(found.items())
            for k, share in by_k.items()
        }
        return {"score": (both[0] + both[1]) / 2, **flat}

    return jax.lax.map(one, (general, specific))
