"""Joint training: every step goes over many tasks at once. Not continual, but an upper bound.

Takes the place of a method in a stream: as many optimizer steps as the others take, each on the sum
of the gradients of all tasks. A pair contrasts with pairs of its own task, as it does for the
others. Its BWT is not a loss of what was learned: with ``tasks = "all"`` scores rise as training
goes on.
"""

import dataclasses

import optax

from hmcl_jax.continual.config import TrainConfig, one_of
from hmcl_jax.continual.method import Method, TaskInfo


@dataclasses.dataclass(frozen=True)
class JointSettings:
    """Settings of joint training.

    Attributes:
      tasks: ``"all"`` tasks of the stream, later ones too, or those ``"seen"`` so far.
    """

    tasks: str = "all"

    def __post_init__(self) -> None:
        one_of("tasks", self.tasks, ("all", "seen"))


def make(name: str, settings: JointSettings) -> Method:
    """The record of joint training."""
    return Method(name, settings, transform=_transform, over=settings.tasks)


def _transform(config: TrainConfig, info: TaskInfo) -> optax.GradientTransformation:
    rate = config.schedule(info.kind).learning_rate
    return optax.adamw(rate, weight_decay=config.weight_decay)
