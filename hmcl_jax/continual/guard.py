"""Numbers gone bad: what is not finite stops one seed, and neither the others nor a checkpoint.

Every optimizer step passes a guard. If a gradient or the step that comes of it is not finite, the
guard lets no further step of that seed through, so its heads stay where they last were finite, and
remembers what it saw. With ``on_bad = "skip"`` a step whose gradient is not finite is left out by
:func:`optax.apply_if_finite`, and the seed goes on; a step that is not finite although its gradient
is still stops the seed. A loss that rises to `spike` times what it was at the task's start (or
times 1, if it was less) stops a seed as well: it is finite, but not for long.
"""

import dataclasses
import warnings
from collections.abc import Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax

from hmcl_jax.continual.config import TrainConfig
from hmcl_jax.continual.method import Heads, Method, TaskInfo, Watch

QUANTITIES = ("loss", "gradient", "step", "head", "state")
ALWAYS = 2**31 - 2  # apply_if_finite gives up after so many bad steps in a row


class GuardState(NamedTuple):
    """An optimizer state, and what the guard saw during a task.

    Attributes:
      inner: state of the optimizer.
      steps: that were asked for.
      first: number of the first bad step, -1 if there was none.
      gradient: by modality, whether its gradient was bad in that step.
      update: by modality, whether what the optimizer made of it was.
      skipped: steps that were left out.
    """

    inner: Any
    steps: jax.Array
    first: jax.Array
    gradient: dict[str, jax.Array]
    update: dict[str, jax.Array]
    skipped: jax.Array


@dataclasses.dataclass(frozen=True)
class Stopped:
    """A seed that was stopped.

    Attributes:
      place: of the seed along the seed axis.
      seed: itself.
      task: name of the task.
      epoch: in which it happened, from 1; 0 if it was at the end of the task.
      quantity: what went bad first: ``"loss"``, ``"gradient"``, ``"step"``, ``"head"`` (too large
        for its points to be finite), or ``"state"`` (what the method or the optimizer keeps).
      modalities: whose gradient, step or head it was; for a loss, all that the task has.
      value: of the loss in that epoch, None if it was not finite.
    """

    place: int
    seed: int
    task: str
    epoch: int
    quantity: str
    modalities: tuple[str, ...]
    value: float | None = None

    def __str__(self) -> str:
        when = f"in epoch {self.epoch}" if self.epoch else "at its end"
        what = f"{self.quantity} of {', '.join(self.modalities)}" if self.modalities else "state"
        spike = self.quantity == "loss" and self.value is not None
        how = "was too large" if self.quantity == "head" else "was not finite"
        how = f"rose to {self.value:.4g}" if spike else how
        return f"seed {self.seed} stopped on task {self.task!r}, {when}: the {what} {how}"


def read_stopped(
    name: str, found: Any, seeds: Sequence[int], tasks: Sequence[str]
) -> tuple[Stopped, ...]:
    """Reports as they are kept in files.

    Args:
      name: of what is read, for messages.
      found: a list of tables, of :func:`dataclasses.asdict`.
      seeds: of the run.
      tasks: names of its tasks.

    Raises:
      ValueError: if these are no reports on that run.
    """
    try:
        stopped = tuple(Stopped(**{**one, "modalities": tuple(one["modalities"])}) for one in found)
    except (KeyError, TypeError) as error:
        raise ValueError(f"{name} must be a list of reports on seeds ({error!r})") from error
    for one in stopped:
        if type(one.place) is not int or not 0 <= one.place < len(seeds):
            raise ValueError(f"{name} must name places of seeds, got {one.place!r}")
        fits = {
            "seed": one.seed == seeds[one.place],
            "task": isinstance(one.task, str) and one.task in tasks,
            "epoch": type(one.epoch) is int and one.epoch >= 0,
            "quantity": isinstance(one.quantity, str) and one.quantity in QUANTITIES,
            "modalities": all(isinstance(m, str) and m.isprintable() for m in one.modalities),
            "value": one.value is None or (type(one.value) is float and np.isfinite(one.value)),
        }
        if wrong := [key for key, right in fits.items() if not right]:
            raise ValueError(f"{name} must be of this run, got {wrong[0]} {_short(one, wrong[0])}")
    return stopped


def _short(stopped: Stopped, field: str) -> str:
    return f"{getattr(stopped, field)!r:.60}"


class BadNumbers(RuntimeWarning):
    """Some seeds of a run were stopped, or steps skipped; the others went on."""


def _bad(tree: dict[str, jax.Array]) -> dict[str, jax.Array]:
    return {name: ~jnp.isfinite(x).all() for name, x in tree.items()}


def guarded(method: Method) -> Method:
    """A method whose optimizer has the guard around it.

    Args:
      method: the record.

    Returns:
      A record whose optimizer state is a :class:`GuardState`, for one seed.
    """

    def transform(config: TrainConfig, info: TaskInfo) -> optax.GradientTransformation:
        tx = method.transform(config, info)
        return guard(optax.apply_if_finite(tx, ALWAYS) if config.on_bad == "skip" else tx)

    def watch(opt_state: Any, info: TaskInfo) -> Watch:
        measure = method.watch(plain(opt_state), info)
        return lambda gradient, params, state, moved: measure(gradient, params, plain(state), moved)

    return dataclasses.replace(method, transform=transform, watch=watch)


def guard(tx: optax.GradientTransformation) -> optax.GradientTransformation:
    """A transformation of heads ``{modality: W}`` that makes no step after a bad one.

    Args:
      tx: the optimizer. If it is from :func:`optax.apply_if_finite`, bad gradients are its matter.

    Returns:
      A transformation whose state is a :class:`GuardState`.

    Example:
      >>> import jax.numpy as jnp, optax
      >>> from hmcl_jax.continual.guard import guard
      >>> tx = guard(optax.sgd(1.0))
      >>> W = {"text": jnp.ones(2)}
      >>> state = tx.init(W)
      >>> for gradient in (1.0, jnp.nan, 1.0):
      ...     step, state = tx.update({"text": jnp.full(2, gradient)}, state, W)
      ...     W = optax.apply_updates(W, step)
      >>> print(W["text"], state.first, state.gradient["text"])
      [0. 0.] 1 True
    """

    def update(gradient: Heads, state: GuardState, params: Heads) -> tuple[Heads, GuardState]:
        updates, inner = tx.update(gradient, state.inner, params)
        bad = {"gradient": _bad(gradient), "update": _bad(updates)}
        skips = isinstance(inner, optax.ApplyIfFiniteState)
        counted = [*bad["update"].values(), *([] if skips else bad["gradient"].values())]
        now = jnp.stack(counted).any()
        before = state.first >= 0
        stopped = before | now
        updates = jax.tree.map(lambda x: jnp.where(stopped, jnp.zeros_like(x), x), updates)
        inner = jax.tree.map(
            lambda new, old: new if new is old else jnp.where(stopped, old, new), inner, state.inner
        )
        seen = {
            name: {m: jnp.where(before, getattr(state, name)[m], x) for m, x in found.items()}
            for name, found in bad.items()
        }
        return updates, GuardState(
            inner=inner,
            steps=state.steps + 1,
            first=jnp.where(now & ~before, state.steps, state.first),
            skipped=inner.total_notfinite if skips else state.skipped,
            **seen,
        )

    return optax.GradientTransformation(lambda params: _fresh(tx.init(params), params, ()), update)


def _fresh(inner: Any, params: Heads, shape: tuple[int, ...]) -> GuardState:
    none = {modality: jnp.zeros(shape, bool) for modality in params}
    zero = jnp.zeros(shape, jnp.int32)
    return GuardState(inner, zero, zero - 1, none, dict(none), zero)


def begin(opt_state: Any, params: Heads, config: TrainConfig) -> GuardState:
    """The guard's state at the start of a task, around an optimizer state with a seed axis."""
    shape = next(iter(params.values())).shape[:1]
    if config.on_bad == "skip":
        zero = jnp.zeros(shape, jnp.int32)
        opt_state = optax.ApplyIfFiniteState(zero, jnp.ones(shape, bool), zero, opt_state)
    return _fresh(opt_state, params, shape)


def plain(state: GuardState) -> Any:
    """The state of the optimizer itself."""
    skips = isinstance(state.inner, optax.ApplyIfFiniteState)
    return state.inner.inner_state if skips else state.inner


def clean_state(own: Any, stopped: np.ndarray) -> tuple[Any, np.ndarray]:
    """The state of all seeds without numbers that are not finite, and whose state had some.

    Args:
      own: arrays with a seed axis.
      stopped: which seeds are stopped already.

    Returns:
      The state, with 0 in the place of what is not finite, and the seeds that it was found in.
    """
    bad = np.zeros_like(stopped)
    for leaf in jax.tree.leaves(own):
        if jnp.issubdtype(leaf.dtype, jnp.inexact):
            bad |= ~np.asarray(jnp.isfinite(leaf).all(axis=tuple(range(1, leaf.ndim))))
    if bad.any():
        own = jax.tree.map(
            lambda x: (
                jnp.where(jnp.isfinite(x), x, 0).astype(x.dtype)
                if jnp.issubdtype(x.dtype, jnp.inexact)
                else x
            ),
            own,
        )
    return own, bad & ~stopped


def find_stopped(
    seen: GuardState,
    losses: np.ndarray,
    heads: Heads,
    seeds: tuple[int, ...],
    task: str,
    sides: tuple[str, ...],
    config: TrainConfig,
) -> list[Stopped]:
    """Which seeds are to be stopped after a task, and why.

    Args:
      seen: what the guard saw, with a seed axis.
      losses: per seed and epoch.
      heads: after the task.
      seeds: as many as the seed axis is long.
      task: its name.
      sides: its modalities.
      config: says what is done about bad numbers.

    Returns:
      Reports, at most one per seed.
    """
    first, per_epoch = np.asarray(seen.first), max(1, int(seen.steps[0]) // losses.shape[1])
    # Of points whose squared norms are this large, no product is finite.
    with np.errstate(over="ignore", invalid="ignore"):
        far = {m: ~np.isfinite(np.sum(np.asarray(W) ** 4, axis=(1, 2))) for m, W in heads.items()}
    found = []
    for place, (seed, loss) in enumerate(zip(seeds, losses, strict=True)):
        finite = np.isfinite(loss)
        start = max(1.0, loss[0]) if finite[0] else 1.0
        spike = np.where(finite, loss, 0.0) > config.spike * start
        wrong = spike if config.on_bad == "skip" else spike | ~finite
        at = [int(wrong.argmax())] if wrong.any() else []
        at += [int(first[place]) // per_epoch] if first[place] >= 0 else []
        if not at:
            if large := tuple(m for m, x in far.items() if x[place]):
                found.append(Stopped(place, seed, task, len(loss), "head", large))
            continue
        epoch = min(at)
        if wrong[epoch]:
            quantity, modalities = "loss", sides
        else:
            quantity = "gradient"
            modalities = tuple(m for m, x in seen.gradient.items() if x[place])
            if not modalities or config.on_bad == "skip":
                quantity = "step"
                modalities = tuple(m for m, x in seen.update.items() if x[place])
        value = float(loss[epoch]) if finite[epoch] else None
        found.append(Stopped(place, seed, task, epoch + 1, quantity, modalities, value))
    return found


def note_stopped(method: str, found: list[Stopped], kind: str, none_left: bool) -> None:
    """Warns of seeds that are stopped, or raises if there are no others."""
    text = (
        f"{method}: {'; '.join(map(str, found))}; lower the learning rate "
        f"(train.{kind}.learning_rate)."
    )
    if none_left:
        raise FloatingPointError(f"{text} No seed is left.")
    warnings.warn(f"{text} The other seeds go on.", BadNumbers, stacklevel=3)


def warn_skipped(method: str, task: str, seeds: tuple[int, ...], seen: GuardState) -> None:
    """Warns of steps that were left out."""
    skipped = np.asarray(seen.skipped)
    if skipped.any():
        counts = {seed: int(n) for seed, n in zip(seeds, skipped, strict=True) if n}
        warnings.warn(
            f"{method} on task {task!r}: steps skipped because of gradients that are not finite, "
            f"by seed: {counts}.",
            BadNumbers,
            stacklevel=3,
        )


def check_finite(method: str, task: str, kept: Any) -> None:
    """Refuses to go on with numbers that are not finite; nothing of them was saved."""
    for path, leaf in jax.tree_util.tree_leaves_with_path(kept):
        if jnp.issubdtype(leaf.dtype, jnp.inexact) and not jnp.isfinite(leaf).all():
            raise FloatingPointError(
                f"{method} keeps numbers of task {task!r} that are not finite, in "
                f"{jax.tree_util.keystr(path)}; is the store on the scale of its K?"
            )


def with_nan(tree: Any) -> Any:
    """Nested lists and dicts with NaN for None, as :func:`hmcl_jax._files.without_nan` took it."""
    if isinstance(tree, dict):
        return {key: with_nan(value) for key, value in tree.items()}
    if isinstance(tree, list):
        return [with_nan(value) for value in tree]
    return float("nan") if tree is None else tree
