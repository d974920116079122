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
from hmcl_jax.evaluation import recall, top1
from hmcl_jax.head import apply_head

KS = (1, 5, 10)
SIDES = ("general", "specific")
Test = dict[str, Any]  # padded arrays of both sides, and how many rows of them are valid


class Evaluator:
    """Evaluates tasks; keeps `device_memory` MiB of their padded test parts on the device."""

    def __init__(self, K: float, device_memory: float = 2048.0) -> None:
        self.K = K
        self._room = device_memory * 2**20
        self._kept: dict[int, tuple[Task, Test]] = {}  # by id, so with the task itself

    def all(self, params: Heads, tasks: Sequence[Task]) -> list[dict[str, np.ndarray]]:
        """Measures by name of each task, each ``(seeds,)``; ``"score"`` is the one that counts.

        It is top-1 for classification, and for retrieval the mean of R@5 in both directions.
        """
        found = []
        for task in tasks:
            heads = params[task.general], params[task.specific]
            measured = _measures(heads, self._test(task), K=self.K)
            # Tests that do not stay on the device are there one at a time.
            found.append(measured if id(task) in self._kept else jax.device_get(measured))
        return [
            {name: np.asarray(values, float) for name, values in measured.items()}
            for measured in jax.device_get(found)
        ]

    def _test(self, task: Task) -> Test:
        if id(task) in self._kept:
            return self._kept[id(task)][1]
        test = _padded_test(task)
        size = sum(array.nbytes for array in test.values())
        if size <= self._room:
            self._room -= size
            test = jax.device_put(test)
            self._kept[id(task)] = task, test
        return test


def _rows(count: int) -> int:
    """Rows that a test array is padded to: 256, 1024, 4096, then multiples of 4096."""
    return next((size for size in (256, 1024) if count <= size), -(-count // 4096) * 4096)


def _pad(array: np.ndarray, rows: int, value: int = 0) -> np.ndarray:
    widths = ((0, rows - len(array)), *((0, 0) for _ in array.shape[1:]))
    return np.pad(np.asarray(array), widths, constant_values=value)


def _padded_test(task: Task) -> Test:
    general, specific, pairs = task.pairs("test")
    if task.kind == "classification":
        size = class_capacity(len(general))
        matches = {"labels": _pad(pairs[:, 1], _rows(len(specific)))}
    else:
        size = _rows(len(general))
        matches = {"pairs": _pad(pairs, _rows(len(pairs)), -1)}
    return {
        "general": _pad(general, size),
        "specific": _pad(specific, _rows(len(specific))),
        "general_count": np.int32(len(general)),
        "specific_count": np.int32(len(specific)),
        **matches,
    }


@functools.partial(jax.jit, static_argnames="K")
def _measures(heads: tuple[jax.Array, jax.Array], test: Test, K: float) -> dict[str, jax.Array]:
    known, valid = (
        jnp.arange(len(test[side]), dtype=jnp.int32) < test[f"{side}_count"] for side in SIDES
    )

    def of_seed(heads: tuple[jax.Array, jax.Array]) -> dict[str, jax.Array]:
        general, specific = (
            apply_head(W, test[side].astype(W.dtype), K)
            for W, side in zip(heads, SIDES, strict=True)
        )
        if "labels" in test:
            options = {"K": K, "valid": valid, "valid_prototypes": known}
            score = functools.partial(top1, general, specific, test["labels"], **options)
            micro = score(average="micro")
            return {"score": micro, "top1": micro, "top1_macro": score(average="macro")}
        options = {"K": K, "valid_general": known, "valid_specific": valid}
        found = recall(general, specific, test["pairs"], ks=KS, **options)
        flat = {f"{side}_r{k}": share for side in sorted(found) for k, share in found[side].items()}
        first, second = (found[side][5] for side in sorted(found))
        return {"score": (first + second) / 2, **flat}

    return jax.lax.map(of_seed, heads)
