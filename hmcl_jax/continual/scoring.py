"""Scores of all seeds on the test part of a task."""

import functools
from collections.abc import Callable, Sequence
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
Test = dict[str, Any]  # padded arrays of both sides, and how many rows of them are valid


class Evaluator:
    """Evaluates tasks; keeps their padded test parts on the device.

    Args:
      K: squared radius of the hyperboloid.
      device_memory: MiB that may be kept there; the tests of further tasks are sent every time.
    """

    def __init__(self, K: float, device_memory: float = 2048.0) -> None:
        self.K = K
        self._room = device_memory * 2**20
        self._kept: dict[int, tuple[Task, Test]] = {}  # by id, so with the task itself

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
            measure = _classification if task.kind == "classification" else _retrieval
            measured = self._run(measure, params, task)
            # Tests that do not stay on the device are there one at a time.
            found.append(measured if id(task) in self._kept else jax.device_get(measured))
        return [
            {name: np.asarray(values, float) for name, values in measured.items()}
            for measured in jax.device_get(found)
        ]

    def predictions(self, params: Heads, task: Task) -> np.ndarray:
        """The class that each test sample of a classification task is given, ``(seeds, n)``."""
        if task.kind != "classification":
            raise ValueError(f"task must be a classification task, got {task.name!r}.")
        return np.asarray(self._run(_prediction, params, task))[:, : task.size("test")]

    def _run(self, measure: Callable[..., Any], params: Heads, task: Task) -> Any:
        heads = params[task.general], params[task.specific]
        return _of_all_seeds(measure, heads, self._test(task), K=self.K)

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


@functools.partial(jax.jit, static_argnames=("measure", "K"))
def _of_all_seeds(
    measure: Callable[..., Any], heads: tuple[jax.Array, jax.Array], test: Test, K: float
) -> Any:
    """A measure of the test's points under each seed's heads."""

    def valid(side: str) -> jax.Array:
        return jnp.arange(test[side].shape[0], dtype=jnp.int32) < test[f"{side}_count"]

    def points(W: jax.Array, side: str) -> jax.Array:
        return apply_head(W, test[side].astype(W.dtype), K)

    def one(heads: tuple[jax.Array, jax.Array]) -> Any:
        general, specific = points(heads[0], "general"), points(heads[1], "specific")
        return measure(test, K, general, valid("general"), specific, valid("specific"))

    return jax.lax.map(one, heads)


def _classification(
    test: Test, K: float, prototypes: Any, known: Any, samples: Any, valid: Any
) -> dict[str, jax.Array]:
    score = functools.partial(
        top1, prototypes, samples, test["labels"], K=K, valid=valid, valid_prototypes=known
    )
    micro = score(average="micro")
    return {"score": micro, "top1": micro, "top1_macro": score(average="macro")}


def _prediction(
    test: Test, K: float, prototypes: Any, known: Any, samples: Any, valid: Any
) -> jax.Array:
    del test, valid
    return predict(prototypes, samples, K=K, valid_prototypes=known)


def _retrieval(
    test: Test, K: float, general: Any, valid_general: Any, specific: Any, valid_specific: Any
) -> dict[str, jax.Array]:
    valid = {"valid_general": valid_general, "valid_specific": valid_specific}
    found = recall(general, specific, test["pairs"], ks=KS, K=K, **valid)
    flat = {f"{side}_r{k}": share for side in sorted(found) for k, share in found[side].items()}
    first, second = (found[side][5] for side in sorted(found))
    return {"score": (first + second) / 2, **flat}
