"""Tasks as the benchmarks learn them: made once, learned again and again from the same start."""

from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from hmcl_jax.continual import Method, MethodState, TrainConfig
from hmcl_jax.continual.fit import Fitted, Fitter
from hmcl_jax.continual.method import Heads, TaskEnd, TaskInfo
from hmcl_jax.continual.pairs import training_pairs
from hmcl_jax.data.store import Task
from hmcl_jax.head import identity_head


def make_task(samples: int, classes: int, dim: int, seed: int = 0) -> Task:
    """A classification task of random points around random prototypes."""
    rng = np.random.default_rng(seed)
    prototypes = rng.standard_normal((classes, dim), np.float32) / np.float32(np.sqrt(dim))
    labels = rng.integers(0, classes, samples).astype(np.int32)
    features = rng.standard_normal((samples, dim), np.float32) / np.float32(np.sqrt(dim))
    features += 2 * prototypes[labels]
    arrays = {"prototypes": prototypes, "train_features": features, "train_labels": labels}
    names = tuple(f"class {i}" for i in range(classes))
    return Task(f"task{seed}", "classification", "text", "image", arrays, classes=names)


class Stage:
    """A method between two tasks, with the heads and the state that it has there."""

    def __init__(self, method: Method, config: TrainConfig, dim: int, seeds: int = 1) -> None:
        self.method, self.config, self.seeds = method, config, tuple(range(seeds))
        head = jnp.repeat(identity_head(dim)[None], seeds, axis=0)
        self.params: Heads = {"image": head, "text": head}
        self.state: MethodState = method.init(self.params)
        self.place = 0
        self.fitter = Fitter(method, config)

    def at(self, params: Heads, state: MethodState, place: int) -> "Stage":
        """The same method, with the same programs, elsewhere in its stream."""
        other = object.__new__(Stage)
        other.__dict__.update(self.__dict__, params=params, state=state, place=place)
        return other

    def info(self, task: Task) -> TaskInfo:
        sides = (task.kind, task.general, task.specific)
        return TaskInfo(*sides, self.place == 0, 10.0, 0.07, self.config)

    def begin(self, task: Task) -> Any:
        """The optimizer state that the task begins with: protection and anchor."""
        info = self.info(task)
        fresh = jax.vmap(self.method.transform(self.config, info).init)(self.params)
        return self.method.begin_task(fresh, self.state, self.params, info)

    def fit(self, task: Task, opt_state: Any, seeds: Sequence[int] | None = None) -> Fitted:
        """Learns the task, with these seeds instead of the first ones."""
        about = (task, self.info(task), list(seeds or self.seeds), self.place)
        return self.fitter(self.params, opt_state, self.state, *about)

    def end(self, task: Task, params: Heads) -> MethodState:
        """The state after the task."""
        data = training_pairs(task)
        features = {task.general: data.general, task.specific: data.specific}
        counts = {
            task.general: np.bincount(data.pairs[:, 1], minlength=len(data.general)),
            task.specific: np.bincount(data.pairs[:, 0], minlength=len(data.specific)),
        }
        sides = (data.pairs, data.general, data.specific)
        about = TaskEnd(self.info(task), features, counts, *sides, self.seeds, self.place)
        return self.method.end_task(self.state, params, about)

    def seen(self, task: Task) -> "Stage":
        """The stage after a task of which only the features were seen; the heads stay."""
        return self.at(self.params, self.end(task, self.params), self.place + 1)

    def learned(self, task: Task) -> "Stage":
        """The stage after a task: all that a run does between two evaluations."""
        fitted = self.fit(task, self.begin(task))
        state = self.end(task, fitted.params)
        return self.at(fitted.params, state, self.place + 1)
