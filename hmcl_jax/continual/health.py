"""Stops a seed whose gradients or updates become non-finite.

Other seeds keep training, and non-finite values are never checkpointed. A loss that rises to
``spike`` times its value at the task's start (or times 1, if it was less) stops a seed as well: it
is finite, but not for long.
"""

import dataclasses
import warnings
from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.tree_util import keystr

from hmcl_jax.continual.config import TrainConfig
from hmcl_jax.continual.guard import GuardState
from hmcl_jax.continual.method import Heads


class BadNumbers(RuntimeWarning):
    """Some seeds of a run were stopped, or steps skipped; the others keep training."""


@dataclasses.dataclass(frozen=True)
class Stopped:
    """A seed that was stopped, and the first quantity of it that was bad."""

    seed_index: int  # along the seed axis
    seed: int
    task: str
    epoch: int  # from 1; 0 at the end of the task
    # "loss", "gradient", "step", "head" (too large for its points to be finite), or "state" (of the
    # method or the optimizer).
    quantity: str
    modalities: tuple[str, ...]  # of the gradient, step or head; for a loss, all of the task
    value: float | None = None  # of the loss in that epoch if it was finite

    def __str__(self) -> str:
        when = f"in epoch {self.epoch}" if self.epoch else "at its end"
        what = f"{self.quantity} of {', '.join(self.modalities)}" if self.modalities else "state"
        how = "was too large" if self.quantity == "head" else "was not finite"
        if self.quantity == "loss" and self.value is not None:
            how = f"rose to {self.value:.4g}"
        return f"seed {self.seed} stopped on task {self.task!r}, {when}: the {what} {how}"


def load_stopped(found: Any, name: str = "stopped") -> tuple[Stopped, ...]:
    """The inverse of :func:`dataclasses.asdict`, for a list called `name` in messages."""
    try:
        return tuple(Stopped(**{**one, "modalities": tuple(one["modalities"])}) for one in found)
    except (KeyError, TypeError) as error:
        raise ValueError(f"{name} must be a list of reports on seeds ({error!r})") from error


def find_stopped(
    guard: GuardState,
    losses: np.ndarray,
    heads: Heads,
    seeds: tuple[int, ...],
    task: str,
    modalities: tuple[str, ...],
    config: TrainConfig,
) -> list[Stopped]:
    """The seeds to stop after a task, at most one report each; losses are (seeds, epochs)."""
    skip = config.on_bad == "skip"
    steps_per_epoch = max(1, int(guard.steps[0]) // losses.shape[1])
    # Of points whose squared norms are this large, no product is finite.
    too_far = {m: ~np.isfinite(jnp.power(W, 4).sum(axis=(1, 2))) for m, W in heads.items()}
    found = []
    for index, (seed, loss) in enumerate(zip(seeds, losses, strict=True)):
        finite = np.isfinite(loss)
        start = max(1.0, loss[0]) if finite[0] else 1.0
        wrong = np.where(finite, loss, 0.0) > config.spike * start
        wrong |= ~finite & (not skip)
        epochs = [int(wrong.argmax())] if wrong.any() else []
        epochs += [int(guard.first[index]) // steps_per_epoch] if guard.first[index] >= 0 else []
        if epochs:
            epoch = min(epochs)
            if wrong[epoch]:
                quantity, whose = "loss", modalities
            elif not skip and (whose := _modalities_of(guard.gradient, index)):
                quantity = "gradient"
            else:
                quantity, whose = "step", _modalities_of(guard.update, index)
            value = float(loss[epoch]) if finite[epoch] else None
            found.append(Stopped(index, seed, task, epoch + 1, quantity, whose, value))
        elif large := _modalities_of(too_far, index):
            found.append(Stopped(index, seed, task, len(loss), "head", large))
    return found


def _modalities_of(bad: dict[str, np.ndarray], index: int) -> tuple[str, ...]:
    return tuple(modality for modality, of_seeds in bad.items() if of_seeds[index])


def clean_state(tree: Any, stopped: np.ndarray) -> tuple[Any, np.ndarray]:
    """Arrays with 0 for non-finite numbers, and which seeds had some but were not `stopped`."""
    bad = np.zeros_like(stopped)
    for finite in _finite(tree).values():
        bad |= ~finite

    def clean(x: jax.Array) -> jax.Array:
        return jnp.where(jnp.isfinite(x), x, 0).astype(x.dtype) if _is_inexact(x) else x

    return jax.tree.map(clean, tree) if bad.any() else tree, bad & ~stopped


def check_finite(method: str, task: str, kept: Any) -> None:
    """Raises before non-finite numbers are saved."""
    for path, finite in _finite(kept).items():
        if not finite.all():
            raise FloatingPointError(
                f"{method} keeps numbers of task {task!r} that are not finite, in {path}; is the "
                "store on the scale of its K?"
            )


def _finite(tree: Any) -> dict[str, np.ndarray]:
    """By path of each floating array, which entries of its first axis (if any) are finite."""
    leaves = {keystr(path): x for path, x in jax.tree.leaves_with_path(tree) if _is_inexact(x)}
    return jax.device_get(_all_finite(leaves))


@jax.jit
def _all_finite(leaves: dict[str, jax.Array]) -> dict[str, jax.Array]:
    return {name: jnp.isfinite(x).all(axis=tuple(range(1, x.ndim))) for name, x in leaves.items()}


def _is_inexact(x: Any) -> bool:
    return jnp.issubdtype(x.dtype, jnp.inexact)


def warn_stopped(method: str, found: Sequence[Stopped], kind: str, none_left: bool) -> None:
    text = f"{method}: {'; '.join(map(str, found))}; lower train.{kind}.learning_rate."
    if none_left:
        raise FloatingPointError(f"{text} No seed is left.")
    warnings.warn(f"{text} The other seeds keep training.", BadNumbers, stacklevel=3)


def warn_skipped(method: str, task: str, seeds: tuple[int, ...], skipped: np.ndarray) -> None:
    if skipped.any():
        counts = {seed: int(n) for seed, n in zip(seeds, skipped, strict=True) if n}
        text = f"{method} on task {task!r}: skipped steps of bad gradients, by seed: {counts}."
        warnings.warn(text, BadNumbers, stacklevel=3)
