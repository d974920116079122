"""A continual-learning method: a class whose fields are its settings, with one hook per event.

The hooks stand in the order in which the engine calls them. A run trains several seeds side by
side: the hooks `init`, `add_modalities`, `begin_task`, `end_task` and `task_metrics` run on the
host and see all seeds at once, so arrays of a seed have a leading seed axis there. `extra_loss`,
the functions of `probes`, `combine`, `optimizer` and `step_metrics` are compiled and see one seed.
All state is an argument: a hook must not keep anything of a task on `self`.
"""

import dataclasses
from collections.abc import Callable, Mapping
from typing import Any, ClassVar, NamedTuple

import jax
import numpy as np
import optax

from hmcl_jax.continual.config import TrainConfig

Heads = dict[str, jax.Array]


class MethodState(NamedTuple):
    """The state that a method carries from task to task."""

    shared: Any  # the same for all seeds, because frozen features are
    own: Any  # with a leading seed axis


class TrainState(NamedTuple):
    """The state that training carries from step to step, with a leading seed axis on the host."""

    heads: Heads
    opt_state: Any
    method_state: Any  # MethodState.own
    sweep: dict[str, jax.Array]  # settings by name that differ per seed; {} in a plain run


@dataclasses.dataclass(frozen=True)
class TaskSpec:
    """The static part of a task. It is a key of compiled programs, so it must hash."""

    kind: str  # "classification" or "retrieval"
    general: str  # modality of the prototypes or captions
    specific: str  # modality of the samples
    is_first: bool  # of the stream
    K: float  # squared radius of the hyperboloid
    tau: float  # temperature of the logits
    batch_rows: int  # rows of a minibatch; 0 for programs that see sums over minibatches alone
    train: TrainConfig


class Minibatch(NamedTuple):
    """A minibatch, as :meth:`Method.extra_loss` sees it."""

    general: jax.Array  # frozen features, (B, d)
    specific: jax.Array
    general_points: jax.Array  # their images under the current heads, (B, d)
    specific_points: jax.Array
    valid: jax.Array  # which rows are not padding
    heads: Heads  # all current heads
    number: jax.Array  # of the minibatch in its epoch


class TaskData(NamedTuple):
    """A learned task, as :meth:`Method.end_task` sees it; arrays may be memory mapped."""

    spec: TaskSpec
    # Frozen features by modality, (n, d), and how often each row occurs in the task's pairs. If one
    # modality takes both roles its rows are joined, general first.
    features: Mapping[str, np.ndarray]
    counts: Mapping[str, np.ndarray]
    pairs: np.ndarray  # rows (specific, general) of the two arrays below, (p, 2)
    general: np.ndarray
    specific: np.ndarray
    seeds: tuple[int, ...]
    task_index: int  # in the stream, from 0


Probe = Callable[[Heads, tuple[Heads, ...], MethodState], Heads]


def at_current_heads(heads: Heads, gradients: tuple[Heads, ...], state: MethodState) -> Heads:
    """The probe of plain training: the gradient is taken at the current heads."""
    return heads


def adamw(spec: TaskSpec) -> optax.GradientTransformation:
    """AdamW as all methods use it; heads that the task does not have do not decay."""
    rate = spec.train.schedule(spec.kind).learning_rate
    decay = spec.train.weight_decay
    if not decay:
        return optax.adamw(rate, weight_decay=0.0)

    def of_task(heads: Heads) -> dict[str, bool]:
        return {modality: modality in (spec.general, spec.specific) for modality in heads}

    return optax.adamw(rate, weight_decay=decay, mask=of_task)


def _with_missing(old: Any, fresh: Any) -> Any:
    """`old`, and what only `fresh` has in dicts, however deep."""
    if isinstance(old, dict) and isinstance(fresh, dict):
        return {**fresh, **{k: _with_missing(x, fresh.get(k)) for k, x in old.items()}}
    if isinstance(old, tuple) and type(old) is type(fresh) and hasattr(old, "_fields"):
        return type(old)(*map(_with_missing, old, fresh))
    return old


def _about(**options: Any) -> Any:
    """A field that is no setting of the method; methods that differ only here are equal."""
    return dataclasses.field(compare=False, kw_only=True, metadata={"setting": False}, **options)


@dataclasses.dataclass(frozen=True)
class Method:
    """A continual-learning method; as it stands, plain fine-tuning.

    Subclasses are frozen dataclasses: their fields are the settings, with defaults. ``check`` must
    refuse bad values; :func:`hmcl_jax.continual.make_method` calls it. It is not done in
    ``__post_init__`` because in a sweep some settings are arrays, one number per seed.

    Example:
      >>> import dataclasses
      >>> from hmcl_jax.continual import Method
      >>> @dataclasses.dataclass(frozen=True)
      ... class Slower(Method):
      ...     share: float = 0.5
      ...     def combine(self, gradients, heads, state, num_minibatches, spec):
      ...         return {m: self.share * g for m, g in gradients[0].items()}
      >>> Slower().settings()
      {'share': 0.5}
    """

    name: str = _about(default="")  # for tables and folders
    train: Mapping[str, Any] = _about(default_factory=dict)  # overrides of the shared settings
    code: str = _about(default="")  # SHA-256 of a user's file; a run of other code is another run

    # Settings that may differ along the seed axis of a sweep, the most important first.
    sweepable: ClassVar[tuple[str, ...]] = ()
    # An addition to the loss of every minibatch, (state, minibatch, spec) -> scalar.
    extra_loss: ClassVar[Callable[..., jax.Array] | None] = None
    # Apply probes and `combine` to every minibatch and sum the results, instead of combining sums.
    per_minibatch: ClassVar[bool] = False
    # Tasks that a step goes over: the "current" one, all "seen" or "all".
    trains_on: ClassVar[str] = "current"

    def check(self) -> None:
        """Refuses settings out of range with a :class:`hmcl_jax.continual.ConfigError`."""

    def settings(self) -> dict[str, Any]:
        """The settings by name."""
        fields = dataclasses.fields(self)
        return {f.name: getattr(self, f.name) for f in fields if f.metadata.get("setting", True)}

    def described(self) -> dict[str, Any]:
        """The method as plain data, for results and to recognise a run."""
        found = self.settings() | ({"train": dict(self.train)} if self.train else {})
        return found | ({"code": self.code} if self.code else {})

    def structure(self) -> Any:
        """What of the sweepable settings changes the programs; points that differ are apart."""
        return None

    def init(self, heads: Heads) -> MethodState:
        """The state before the first task."""
        return MethodState((), ())

    def add_modalities(self, state: MethodState, heads: Heads) -> MethodState:
        """The state once new modalities have heads; by default dicts gain the entries of `init`."""
        return _with_missing(state, self.init(heads))

    def optimizer(self, spec: TaskSpec) -> optax.GradientTransformation:
        """The optimizer of a task."""
        return adamw(spec)

    def begin_task(self, opt_state: Any, state: MethodState, heads: Heads, spec: TaskSpec) -> Any:
        """The optimizer state at the start of a task, from a fresh or a carried one."""
        return opt_state

    def probes(self, spec: TaskSpec) -> tuple[Probe, ...]:
        """Where a step takes gradients of the objective.

        Each is a function of the heads, the gradients of the probes before it (sums over
        minibatches) and the state.
        """
        return (at_current_heads,)

    def combine(
        self,
        gradients: tuple[Heads, ...],
        heads: Heads,
        state: MethodState,
        num_minibatches: jax.Array,
        spec: TaskSpec,
    ) -> Heads:
        """The gradient for the optimizer, from those of all probes, sums over minibatches."""
        return gradients[0]

    def step_metrics(
        self, gradient: Heads, before: TrainState, after: TrainState, spec: TaskSpec
    ) -> dict[str, jax.Array]:
        """Scalars about a step; a run keeps those of the last step of every epoch."""
        return {}

    def end_task(self, state: MethodState, heads: Heads, data: TaskData) -> MethodState:
        """The state after a task."""
        return state

    def task_metrics(
        self, state: MethodState, opt_state: Any, steps: Mapping[str, np.ndarray]
    ) -> dict[str, Any]:
        """Figures about the last task, ``(seeds,)`` or ``(seeds, epochs)``; `steps` are curves."""
        return {}
