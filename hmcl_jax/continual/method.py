"""The record that every continual-learning method fills: a few pure functions.

A run trains seeds side by side, so parameters, optimizer state and a method's `own` state carry a
leading seed axis outside of :mod:`hmcl_jax.continual.fit` and none inside (`term`, `point`,
`combine` see one seed). What is the same for all seeds, because features are frozen, is `shared`.
All state is an argument: no function here closes over anything that a task changes.
"""

import dataclasses
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import jax
import numpy as np
import optax

from hmcl_jax.continual.config import TrainConfig

Heads = dict[str, jax.Array]


class MethodState(NamedTuple):
    """What a method carries from task to task.

    Attributes:
      shared: the same for all seeds.
      own: with a leading seed axis.
      knobs: settings by name that differ along that axis, in a sweep (see :func:`knob`).
    """

    shared: Any
    own: Any
    knobs: Any = {}  # noqa: RUF012


def knob(settings: Any, state: MethodState, name: str) -> Any:
    """A setting: what a sweep says for this place of the seed axis, else what `settings` say."""
    return state.knobs.get(name, getattr(settings, name))


class Batch(NamedTuple):
    """A minibatch, as a method's `term` sees it.

    Attributes:
      general: frozen features of the general modality, ``(B, d)``.
      specific: frozen features of the specific modality, ``(B, d)``.
      general_points: what the heads make of them now.
      specific_points: likewise.
      valid: which rows are not padding.
      heads: all heads now.
      place: number of the minibatch in its epoch.
    """

    general: jax.Array
    specific: jax.Array
    general_points: jax.Array
    specific_points: jax.Array
    valid: jax.Array
    heads: Heads
    place: jax.Array


@dataclasses.dataclass(frozen=True)
class TaskInfo:
    """What is known of a task when its program is compiled.

    Attributes:
      kind: ``"classification"`` or ``"retrieval"``.
      general: modality of the prototypes or captions.
      specific: modality of the samples.
      first: whether it is the first of the stream.
      K: squared radius of the hyperboloid.
      tau: temperature of the logits.
      config: what all methods share.
    """

    kind: str
    general: str
    specific: str
    first: bool
    K: float
    tau: float
    config: TrainConfig = TrainConfig()  # noqa: RUF009


class TaskEnd(NamedTuple):
    """What a method gets to see when a task has been learned.

    Attributes:
      info: of the task.
      features: frozen features by modality, ``(n, d)`` on the host, perhaps memory mapped. If one
        modality takes both roles its rows are joined, general first.
      counts: how often each of these rows occurs in the task's pairs.
      pairs: rows (specific, general) that belong together, ``(p, 2)``; of the two arrays below.
      general: frozen features of the general modality.
      specific: frozen features of the specific modality.
      seeds: of the run.
      place: of the task in the stream, from 0.
    """

    info: TaskInfo
    features: Mapping[str, np.ndarray]
    counts: Mapping[str, np.ndarray]
    pairs: np.ndarray
    general: np.ndarray
    specific: np.ndarray
    seeds: tuple[int, ...]
    place: int


def adamw(config: TrainConfig, info: TaskInfo) -> optax.GradientTransformation:
    """AdamW as all methods use it; heads that the task does not have do not decay."""
    rate = config.schedule(info.kind).learning_rate
    if not config.weight_decay:
        return optax.adamw(rate, weight_decay=0.0)

    def of_task(params: Heads) -> dict[str, bool]:
        return {modality: modality in (info.general, info.specific) for modality in params}

    return optax.adamw(rate, weight_decay=config.weight_decay, mask=of_task)


def _nothing(params: Heads) -> MethodState:
    del params
    return MethodState((), ())


def _keep(state: MethodState, params: Heads, *_: Any) -> MethodState:
    del params
    return state


def _untouched(opt_state: Any, state: MethodState, params: Heads, info: TaskInfo) -> Any:
    del state, params, info
    return opt_state


def _one_stage(info: TaskInfo) -> int:
    del info
    return 1


def _here(params: Heads, gradients: tuple[Heads, ...], state: MethodState) -> Heads:
    del gradients, state
    return params


def _no_log(state: MethodState, fitted: Any) -> dict[str, jax.Array]:
    del state, fitted
    return {}


Watch = Callable[[Heads, Heads, Any, Heads], dict[str, jax.Array]]


def _watch_nothing(opt_state: Any, info: TaskInfo) -> Watch:
    del opt_state, info
    return lambda gradient, params, opt_state, moved: {}


def _the_gradient(
    gradients: tuple[Heads, ...],
    params: Heads,
    state: MethodState,
    minibatches: jax.Array,
    info: TaskInfo,
) -> Heads:
    del params, state, minibatches, info
    return gradients[0]


@dataclasses.dataclass(frozen=True)
class Method:
    """A continual-learning method. The defaults make plain fine-tuning.

    Attributes:
      name: for tables and folders.
      settings: a frozen dataclass, kept with the results.
      init: heads (seed axis) to the first :class:`MethodState`.
      widen: the state for heads among which new modalities have appeared.
      transform: the optimizer of a task, from the shared config.
      begin_task: the optimizer state at a task's start, from a fresh or a carried one. On the host,
        all seeds at once.
      term: an addition to the loss of every minibatch, ``(state, batch, info) -> scalar``.
      stages: how many gradients of the whole objective a step takes.
      point: where gradient number ``len(gradients)`` is taken.
      combine: the gradient handed to the optimizer, from those of all stages, which are sums over
        so many minibatches.
      per_minibatch: whether stages are gone through, and combined, for every minibatch, and the
        results are summed; by default it is the sums that are combined.
      end_task: the state after a task. On the host, all seeds at once.
      watch: from the optimizer state at a task's start, a function that measures a step:
        ``(gradient, params, opt_state, params after it) -> {figure: scalar}``. The run's log holds
        the figures of the last step of every epoch, each ``(seeds, epochs)``.
      log: further figures about the last task, each ``(seeds,)`` or ``(seeds, epochs)``, from the
        state after it and what :class:`hmcl_jax.continual.fit.Fitter` gave.
      over: which tasks a step goes over: the current ``"one"``, all ``"seen"`` or ``"all"`` of the
        stream.
      train: shared settings that are others for this method, as in a config file.
      code: SHA-256 of the user's file that it is from; a run of other code is another run.
    """

    name: str
    settings: Any = None
    init: Callable[[Heads], MethodState] = _nothing
    widen: Callable[[MethodState, Heads], MethodState] = _keep
    transform: Callable[[TrainConfig, TaskInfo], optax.GradientTransformation] = adamw
    begin_task: Callable[[Any, MethodState, Heads, TaskInfo], Any] = _untouched
    term: Callable[[MethodState, Batch, TaskInfo], jax.Array] | None = None
    stages: Callable[[TaskInfo], int] = _one_stage
    point: Callable[[Heads, tuple[Heads, ...], MethodState], Heads] = _here
    combine: Callable[[tuple[Heads, ...], Heads, MethodState, jax.Array, TaskInfo], Heads] = (
        _the_gradient
    )
    per_minibatch: bool = False
    end_task: Callable[[MethodState, Heads, TaskEnd], MethodState] = _keep
    watch: Callable[[Any, TaskInfo], Watch] = _watch_nothing
    log: Callable[[MethodState, Any], dict[str, jax.Array]] = _no_log
    over: str = "one"
    train: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    code: str = ""

    def described(self) -> dict[str, Any]:
        """Its settings as plain data, for results and for checking that two runs are the same."""
        found = dataclasses.asdict(self.settings) if self.settings else {}
        found |= {"train": dict(self.train)} if self.train else {}
        return found | ({"code": self.code} if self.code else {})
