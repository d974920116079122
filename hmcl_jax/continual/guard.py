"""An optimizer that stops a seed once its gradients or updates become non-finite.

In the form of :func:`optax.apply_if_finite`, which skips a bad step and continues: here the heads
stay where they last were finite, and the state says which step and which heads were bad. A state
may hold leaves of another shape after an update, which no step is computed from (see
:mod:`hmcl_jax.continual.methods.hmcl`); `lax.cond`, which Optax uses, does not allow that.
"""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax

from hmcl_jax.continual.method import Heads


class GuardState(NamedTuple):
    """State of :func:`halt_on_nonfinite`."""

    inner: Any  # state of the optimizer
    steps: Any  # so far, the skipped ones too
    first: Any  # number of the first bad step, -1 if there was none
    gradient: dict[str, Any]  # by modality, whether its gradient was bad in that step
    update: dict[str, Any]  # by modality, whether the optimizer's update was
    skipped: Any  # number of skipped steps


def halt_on_nonfinite(
    tx: optax.GradientTransformation, on_bad: str = "stop"
) -> optax.GradientTransformation:
    """A transformation of heads ``{modality: W}`` that makes no step after a bad one.

    With ``on_bad = "skip"`` a step whose gradient is not finite is skipped, and only a bad update
    of a finite gradient stops.
    """

    def init(heads: Heads) -> GuardState:
        return wrap(tx.init(heads), heads, ())

    def update(
        gradient: Heads, state: GuardState, heads: Heads | None = None
    ) -> tuple[Heads, GuardState]:
        updates, inner = tx.update(gradient, state.inner, heads)
        bad = {"gradient": _bad(gradient), "update": _bad(updates)}
        bad_gradient, bad_update = (jnp.stack([*x.values()]).any() for x in bad.values())
        before, skip = state.first >= 0, jnp.zeros((), bool)
        if on_bad == "skip":
            skip, bad_gradient = bad_gradient & ~before, jnp.zeros((), bool)
        now = (bad_gradient | bad_update) & ~skip
        hold = before | now | skip
        updates = jax.tree.map(lambda x: jnp.where(hold, jnp.zeros_like(x), x), updates)
        inner = jax.tree.map(
            lambda new, old: new if new is old else jnp.where(hold, old, new), inner, state.inner
        )
        seen = {
            name: {m: jnp.where(before, getattr(state, name)[m], x) for m, x in found.items()}
            for name, found in bad.items()
        }
        return updates, GuardState(
            inner=inner,
            steps=state.steps + 1,
            first=jnp.where(now & ~before, state.steps, state.first),
            skipped=state.skipped + skip,
            **seen,
        )

    return optax.GradientTransformation(init, update)


def _bad(tree: dict[str, jax.Array]) -> dict[str, jax.Array]:
    return {name: ~jnp.isfinite(x).all() for name, x in tree.items()}


def wrap(opt_state: Any, heads: Heads, shape: tuple[int, ...]) -> GuardState:
    """The guard's state at the start of a task; `shape` is that of the seed axis."""
    none = {modality: np.zeros(shape, bool) for modality in heads}
    zero = np.zeros(shape, np.int32)
    return GuardState(opt_state, zero, zero - 1, none, dict(none), zero)
