"""Joint training: every step goes over many tasks at once. Not continual, but an upper bound.

Takes the place of a method in a stream: as many optimizer steps as the others take, each on the sum
of the gradients of all tasks. A pair contrasts with pairs of its own task, as it does for the
others. Its BWT does not measure forgetting: with ``tasks = "all"`` scores rise as training
continues.
"""

import dataclasses

import optax

from hmcl_jax.continual.config import one_of
from hmcl_jax.continual.method import Method, TaskSpec


@dataclasses.dataclass(frozen=True)
class Joint(Method):
    """Joint training."""

    tasks: str = "all"  # of the stream, later ones too; or those "seen" so far

    def check(self) -> None:
        one_of("tasks", self.tasks, ("all", "seen"))

    @property
    def trains_on(self) -> str:  # type: ignore[override]
        return self.tasks

    def optimizer(self, spec: TaskSpec) -> optax.GradientTransformation:
        # Every step has tasks of all modalities, so all heads decay.
        rate = spec.train.schedule(spec.kind).learning_rate
        return optax.adamw(rate, weight_decay=spec.train.weight_decay)
