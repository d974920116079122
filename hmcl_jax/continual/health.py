"""Stops a seed whose gradients or updates become non-finite.

Other seeds keep training, and non-finite values are never checkpointed. A loss that rises to
``spike`` times its value at the task's start (or times 1, if it was less) stops a seed as well: it
is finite, but not for long.
"""

import dataclasses
import warnings
from collections.abc import Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from hmcl_jax.continual.config import TrainConfig
from hmcl_jax.continual.guard import GuardState
from hmcl_jax.continual.method import Heads

QUANTITIES = ("loss", "gradient", "step", "head", "state")


class BadNumbers(RuntimeWarning):
    """Some seeds of a run were stopped, or steps skipped; the others keep training."""


@dataclasses.dataclass(frozen=True)
class Stopped:
    """A seed that was stopped.

    Attributes:
      seed_index: of the seed along the seed axis.
      seed: itself.
      task: name of the task.
      epoch: in which it happened, from 1; 0 if it was at the end of the task.
      quantity: the first one to be bad: ``"loss"``, ``"gradient"``, ``"step"``, ``"head"`` (too
        large for its points to be finite), or ``"state"`` (of the method or the optimizer).
      modalities: whose gradient, step or head it was; for a loss, all that the task has.
      value: of the loss in that epoch, None if it was not finite.
    """

    seed_index: int
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
      name: of the list, for messages.
      found: a list of tables, of :func:`dataclasses.asdict`.
      seeds: of the run.
      tasks: names of its tasks.

    Raises:
      ValueError: if these are no reports on that run.
    """
    try:
        stopped = tuple(Stopped(**{**one, "modalities": tuple(one["modalities"])}) for one in found)
        # Records of tasks are read with NaN for null.
        stopped = tuple(
            dataclasses.replace(one, value=None) if one.value != one.value else one
            for one in stopped
        )
    except (KeyError, TypeError) as error:
        raise ValueError(f"{name} must be a list of reports on seeds ({error!r})") from error
    for one in stopped:
        if type(one.seed_index) is not int or not 0 <= one.seed_index < len(seeds):
            raise ValueError(f"{name} must name indices of seeds, got {one.seed_index!r}")
        fits = {
            "seed": one.seed == seeds[one.seed_index],
            "task": isinstance(one.task, str) and one.task in tasks,
            "epoch": type(one.epoch) is int and one.epoch >= 0,
            "quantity": isinstance(one.quantity, str) and one.quantity in QUANTITIES,
            "modalities": all(isinstance(m, str) and m.isprintable() for m in one.modalities),
            "value": one.value is None or (type(one.value) is float and np.isfinite(one.value)),
        }
        if wrong := [key for key, right in fits.items() if not right]:
            got = f"{getattr(one, wrong[0])!r:.60}"
            raise ValueError(f"{name} must be of this run, got {wrong[0]} {got}")
    return stopped


class Vitals(NamedTuple):
    """What is looked at after a task.

    Attributes:
      guard: state of the guard, with a seed axis.
      losses: per seed and epoch.
      heads: after the task.
    """

    guard: GuardState
    losses: np.ndarray
    heads: Heads


def find_stopped(
    vitals: Vitals,
    seeds: tuple[int, ...],
    task: str,
    modalities: tuple[str, ...],
    config: TrainConfig,
) -> list[Stopped]:
    """Which seeds are to be stopped after a task, and why.

    Args:
      vitals: of the task.
      seeds: as many as the seed axis is long.
      task: its name.
      modalities: of the task.
      config: says what is done about bad numbers.

    Returns:
      Reports, at most one per seed.
    """
    guard, losses, heads = vitals
    first, per_epoch = np.asarray(guard.first), max(1, int(guard.steps[0]) // losses.shape[1])
    # Of points whose squared norms are this large, no product is finite.
    far = jax.device_get(_too_far(heads))
    found = []
    for index, (seed, loss) in enumerate(zip(seeds, losses, strict=True)):
        finite = np.isfinite(loss)
        start = max(1.0, loss[0]) if finite[0] else 1.0
        spike = np.where(finite, loss, 0.0) > config.spike * start
        wrong = spike if config.on_bad == "skip" else spike | ~finite
        at = [int(wrong.argmax())] if wrong.any() else []
        at += [int(first[index]) // per_epoch] if first[index] >= 0 else []
        if not at:
            if large := tuple(m for m, x in far.items() if x[index]):
                found.append(Stopped(index, seed, task, len(loss), "head", large))
            continue
        epoch = min(at)
        if wrong[epoch]:
            quantity, of = "loss", modalities
        else:
            quantity = "gradient"
            of = tuple(m for m, x in guard.gradient.items() if x[index])
            if not of or config.on_bad == "skip":
                quantity = "step"
                of = tuple(m for m, x in guard.update.items() if x[index])
        value = float(loss[epoch]) if finite[epoch] else None
        found.append(Stopped(index, seed, task, epoch + 1, quantity, of, value))
    return found


@jax.jit
def _too_far(heads: Heads) -> dict[str, jax.Array]:
    return {
        m: ~jnp.isfinite(jnp.sum(jnp.square(jnp.square(W)), axis=(1, 2))) for m, W in heads.items()
    }


@jax.jit
def _finite(leaves: list[jax.Array]) -> list[jax.Array]:
    """For each array, and each entry of its first axis if it has one, whether it is finite."""
    return [jnp.isfinite(x).all(axis=tuple(range(1, x.ndim))) for x in leaves]


def _inexact(tree: Any) -> list[jax.Array]:
    return [x for x in jax.tree.leaves(tree) if jnp.issubdtype(x.dtype, jnp.inexact)]


def clean_state(tree: Any, stopped: np.ndarray) -> tuple[Any, np.ndarray]:
    """The state of all seeds without non-finite numbers, and whose state had some.

    Args:
      tree: arrays with a seed axis.
      stopped: which seeds are stopped already.

    Returns:
      The state, with 0 instead of non-finite numbers, and the seeds that had them.
    """
    bad = np.zeros_like(stopped)
    for finite in jax.device_get(_finite(_inexact(tree))):
        bad |= ~finite
    if bad.any():
        tree = jax.tree.map(
            lambda x: (
                jnp.where(jnp.isfinite(x), x, 0).astype(x.dtype)
                if jnp.issubdtype(x.dtype, jnp.inexact)
                else x
            ),
            tree,
        )
    return tree, bad & ~stopped


def check_finite(method: str, task: str, kept: Any) -> None:
    """Refuses to continue with non-finite numbers; none of them was saved."""
    if all(finite.all() for finite in jax.device_get(_finite(_inexact(kept)))):
        return
    for path, leaf in jax.tree_util.tree_leaves_with_path(kept):
        if jnp.issubdtype(leaf.dtype, jnp.inexact) and not jnp.isfinite(leaf).all():
            raise FloatingPointError(
                f"{method} keeps numbers of task {task!r} that are not finite, in "
                f"{jax.tree_util.keystr(path)}; is the store on the scale of its K?"
            )


def warn_stopped(method: str, found: Sequence[Stopped], kind: str, none_left: bool) -> None:
    """Warns of seeds that are stopped, or raises if there are no others."""
    text = (
        f"{method}: {'; '.join(map(str, found))}; lower the learning rate "
        f"(train.{kind}.learning_rate)."
    )
    if none_left:
        raise FloatingPointError(f"{text} No seed is left.")
    warnings.warn(f"{text} The other seeds keep training.", BadNumbers, stacklevel=3)


def warn_skipped(method: str, task: str, seeds: tuple[int, ...], skipped: np.ndarray) -> None:
    """Warns of steps that were left out."""
    if skipped.any():
        counts = {seed: int(n) for seed, n in zip(seeds, skipped, strict=True) if n}
        warnings.warn(
            f"{method} on task {task!r}: steps skipped because of gradients that are not finite, "
            f"by seed: {counts}.",
            BadNumbers,
            stacklevel=3,
        )
