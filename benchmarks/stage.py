"""Tasks as the benchmarks learn them: made once, learned again and again from the same start."""

from typing import Any

import jax.numpy as jnp
import numpy as np

from hmcl_jax.continual import Carried, Learned, Method, Setting, TrainConfig, learn_task
from hmcl_jax.continual.fit import fit_task
from hmcl_jax.continual.guard import wrap
from hmcl_jax.continual.learner import initial_opt_state, make_feeds, task_data
from hmcl_jax.continual.method import TrainState
from hmcl_jax.continual.programs import Programs
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
        self.method, self.programs = method, Programs(config)
        self.setting = Setting(10.0, 0.07, tuple(range(seeds)), config)
        head = jnp.repeat(identity_head(dim)[None], seeds, axis=0)
        heads = {"image": head, "text": head}
        self.carried, self.index = Carried(heads, None, method.init(heads)), 0

    def at(self, carried: Carried, index: int) -> "Stage":
        """The same method, with the same programs, elsewhere in its stream."""
        other = object.__new__(Stage)  # not Stage(...), which would compile again
        other.__dict__.update(self.__dict__, carried=carried, index=index)
        return other

    def begin(self, task: Task) -> Any:
        """The optimizer state that the task begins with: protection and anchor."""
        spec = self.setting.spec(task, self.index)
        fresh = initial_opt_state(self.method, self.carried, spec, self.programs)
        return self.method.begin_task(fresh, self.carried.state, self.carried.heads, spec)

    def fit(self, task: Task, opt_state: Any) -> Any:
        """Trains on the task, without what a task begins and ends with."""
        heads, state = self.carried.heads, self.carried.state
        # As learn_task does: a seed with non-finite gradients would stop alone.
        guarded = wrap(opt_state, heads, (len(self.setting.seeds),))
        return fit_task(
            self.programs,
            self.method,
            make_feeds([(task, self.index)], self.setting, self.programs),
            TrainState(heads, guarded, state.own, {}),
            state.shared,
            self.setting.train.schedule(task.kind).epochs,
            lambda done, epochs: None,
        )

    def learn(self, task: Task) -> tuple[Carried, Learned]:
        """All that a run does between two evaluations."""
        about = ([(task, self.index)], self.setting, self.programs)
        return learn_task(self.method, self.carried, *about)

    def seen(self, task: Task) -> "Stage":
        """The stage after a task of which only the features were seen; the heads stay."""
        data = task_data(task, self.setting.spec(task, self.index), self.setting.seeds, self.index)
        state = self.method.end_task(self.carried.state, self.carried.heads, data)
        return self.at(self.carried._replace(state=state), self.index + 1)

    def learned(self, task: Task) -> "Stage":
        """The stage after a task."""
        return self.at(self.learn(task)[0], self.index + 1)
