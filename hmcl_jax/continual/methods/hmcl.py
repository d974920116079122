"""HMCL: corrects each optimizer step so that protected points of every modality move by the same
rotation, or not at all."""

import dataclasses
from collections.abc import Mapping
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax

from hmcl_jax.continual.config import ConfigError, at_least, fraction, one_of
from hmcl_jax.continual.method import (
    Heads,
    Method,
    MethodState,
    TaskData,
    TaskSpec,
    TrainState,
    adamw,
    note_update,
)
from hmcl_jax.moments import end_task, init_moments, merge_moments, update_moments
from hmcl_jax.projection import (
    SPANS,
    DefectSystem,
    defect_system,
    lorentz_defect,
    shared_rotation,
)
from hmcl_jax.protection import Protection, empty_protection, if_protected, protect
from hmcl_jax.transform import VARIANTS, begin_task, hmcl_project, task_anchor

PLACEMENTS = ("pre", "post", "post+anchor")
CHUNK = 16384  # rows of features per device transfer


class KeptSystem(NamedTuple):
    """What the step metrics need of a protection, decomposed once per task."""

    system: DefectSystem


def keep_system() -> optax.GradientTransformation:
    """Carries the :class:`KeptSystem` of a task; changes no update."""

    def init(heads: Heads) -> KeptSystem:
        shapes = jax.eval_shape(lambda: defect_system(empty_protection(heads)))
        return KeptSystem(jax.tree.map(lambda x: jnp.zeros(x.shape, x.dtype), shapes))

    return optax.GradientTransformation(init, lambda updates, state, heads=None: (updates, state))


@dataclasses.dataclass(frozen=True)
class Hmcl(Method):
    """HMCL.

    Attributes:
      variant: ``"mr"``, ``"ca"`` or ``"rotation"`` (the finite form of ca).
      placement: of the correction: ``"pre"`` (on the raw gradient), ``"post"`` (on the step that
        AdamW takes) or ``"post+anchor"``, the paper's complete method.
      variance: share rho of the features' energy that is protected.
      min_rank: least number of protected directions, k_min.
      beta: pullback towards the task's start.
      beta_retrieval: the same for retrieval tasks, if it differs.
      basis: ``"per_modality"`` or ``"joint"``.
      weighting: of old tasks in the moments: by ``"samples"`` or ``"tasks"``.
      span: of the shared rotation: ``"protected"`` (the paper's rank-r realization) or
        ``"ambient"``, see :func:`hmcl_jax.hmcl_project`.
    """

    variant: str = "ca"
    placement: str = "post+anchor"
    variance: float = 0.6
    min_rank: int = 8
    beta: float = 0.05
    beta_retrieval: float | None = None
    basis: str = "per_modality"
    weighting: str = "samples"
    span: str = "protected"

    sweepable = ("variance", "beta")

    def check(self) -> None:
        one_of("variant", self.variant, VARIANTS)
        one_of("placement", self.placement, PLACEMENTS)
        one_of("basis", self.basis, ("per_modality", "joint"))
        one_of("weighting", self.weighting, ("samples", "tasks"))
        one_of("span", self.span, SPANS)
        fraction("variance", self.variance, zero=False, one=True)
        at_least("min_rank", self.min_rank, 0)
        fraction("beta", self.beta, zero=True, one=False)
        if self.beta_retrieval is not None:
            fraction("beta_retrieval", self.beta_retrieval, zero=True, one=False)
        if self.variant == "rotation" and self.placement == "pre":
            raise ConfigError("variant 'rotation' corrects a step, so placement must not be 'pre'.")

    def init(self, heads: Heads) -> MethodState:
        return empty_moments(heads)

    def add_modalities(self, state: MethodState, heads: Heads) -> MethodState:
        return add_moments_of(state, heads)

    def optimizer(self, spec: TaskSpec) -> optax.GradientTransformation:
        """AdamW's step is noted, and the corrected one: the metrics are about these two."""
        step = optax.chain(adamw(spec), note_update())
        project = optax.chain(hmcl_project(self.variant, span=self.span), note_update())
        if self.placement == "pre":
            return optax.chain(project, step, keep_system())
        if self.placement == "post":
            return optax.chain(step, project, keep_system())
        # Beta is a part of the state, so that it may differ along the seed axis.
        anchor = optax.inject_hyperparams(task_anchor)(beta=0.0)
        return optax.chain(step, project, keep_system(), anchor)

    def begin_task(self, opt_state: Any, state: MethodState, heads: Heads, spec: TaskSpec) -> Any:
        seeds = len(next(iter(heads.values())))
        if self.placement == "post+anchor":
            retrieval = spec.kind == "retrieval" and self.beta_retrieval is not None
            given = np.asarray(self.beta_retrieval if retrieval else self.beta)
            beta = jnp.asarray(np.broadcast_to(given, seeds), float)
            anchor = opt_state[-1]._replace(hyperparams={"beta": beta})
            opt_state = (*opt_state[:-1], anchor)
        if spec.is_first:
            return _begin_task(opt_state, heads, None)
        protection = protect(
            state.shared,
            heads,
            variance=self.variance,
            min_rank=self.min_rank,
            basis=self.basis,
            weighting=self.weighting,
        )
        return _begin_task(opt_state, heads, protection)

    def step_metrics(
        self, gradient: Heads, before: TrainState, after: TrainState, spec: TaskSpec
    ) -> dict[str, jax.Array]:
        """The effect of the correction on a step of AdamW, and of the anchor.

        - ``defect_before``, ``defect_after``: root of the Lorentz defect of the step that AdamW
          alone would take, and of the one that is taken, before anchoring;
        - ``rotation``: size of the closest shared rotation of AdamW's step, in radians (root of the
          sum of its squared angles), whether it is taken or not;
        - ``anchor_distance``, ``step``: Frobenius norms over all heads of the way from the task's
          start, and of the step that is taken; the latter if every step is measured.
        """
        protection = protection_in(after.opt_state)
        if self.placement == "pre":
            project, step, kept = after.opt_state
            taken = step[1].update
            candidate, _ = adamw(spec).update(gradient, before.opt_state[1][0], before.heads)
        else:
            step, project, kept = after.opt_state[:3]
            candidate, taken = step[1].update, project[1].update
        zero = jnp.zeros((), protection.shared_basis.dtype)

        def measured() -> tuple[jax.Array, ...]:
            steps = (candidate, taken)
            defects = (lorentz_defect(x, protection, kept.system) for x in steps)
            turn = shared_rotation(candidate, protection, span=self.span)
            squared = jnp.sum(turn.inside**2) / 2
            if turn.outside is not None:
                squared += jnp.sum(turn.outside**2)
            return *map(jnp.sqrt, defects), jnp.sqrt(squared)

        found = if_protected(protection, measured, lambda: (zero, zero, zero))
        metrics = dict(zip(("defect_before", "defect_after", "rotation"), found, strict=True))
        if self.placement == "post+anchor":
            anchor = after.opt_state[-1].inner_state.anchor
            way = jax.tree.map(jnp.subtract, after.heads, anchor)
            metrics["anchor_distance"] = optax.tree.norm(way)
            if spec.train.step == "epoch":
                metrics["step"] = optax.tree.norm(taken)
        return metrics

    def end_task(self, state: MethodState, heads: Heads, data: TaskData) -> MethodState:
        return add_moments(state, data)

    def task_metrics(
        self, state: MethodState, opt_state: Any, steps: Mapping[str, np.ndarray]
    ) -> dict[str, Any]:
        """Protected ranks, and how far the anchor's bound lets the heads be after each epoch."""
        ranks = protection_in(opt_state).rank
        metrics: dict[str, Any] = {f"rank_{modality}": rank for modality, rank in ranks.items()}
        if self.placement == "post+anchor":
            beta = np.asarray(opt_state[-1].hyperparams["beta"], float)[:, None]
            if (beta > 0).all() and "step" in steps:
                longest = np.maximum.accumulate(np.asarray(steps["step"], float), axis=1)
                metrics["anchor_bound"] = (1 - beta) / beta * longest
        return metrics


def protection_in(opt_state: Any) -> Protection:
    """The protection in the state of an :class:`Hmcl` optimizer."""
    return optax.tree.get(opt_state, "protection")


@jax.jit
def _begin_task(opt_state: Any, heads: Heads, protection: Protection | None) -> Any:
    opt_state = begin_task(opt_state, heads, protection)
    if protection is None:
        return opt_state
    system = KeptSystem(jax.lax.map(defect_system, protection))
    return tuple(system if isinstance(part, KeptSystem) else part for part in opt_state)


_end_task, _update_moments = jax.jit(end_task), jax.jit(update_moments)


def empty_moments(heads: Heads) -> MethodState:
    """A state of empty moments."""
    return MethodState(
        init_moments({m: np.zeros(W.shape[1:], W.dtype) for m, W in heads.items()}), ()
    )


def add_moments_of(state: MethodState, heads: Heads) -> MethodState:
    """Moments for heads among which new ones have appeared."""
    return state._replace(shared=merge_moments(state.shared, empty_moments(heads).shared))


def add_moments(state: MethodState, data: TaskData) -> MethodState:
    """Moments with those of a learned task."""
    moments = state.shared
    for modality, features in data.features.items():
        for start in range(0, len(features), CHUNK):
            rows, counts = features[start : start + CHUNK], data.counts[modality]
            counts = counts[start : start + CHUNK]
            # Padded to few shapes, so that few programs are compiled.
            missing = _padded(len(rows)) - len(rows)
            rows = np.pad(np.asarray(rows), ((0, missing), (0, 0)))
            counts = np.pad(counts, (0, missing)).astype(np.int32)
            moments = _update_moments(moments, {modality: rows}, data.spec.K, {modality: counts})
    return state._replace(shared=_end_task(moments))


def _padded(rows: int) -> int:
    size = 256
    while size < rows:
        size *= 4
    return min(size, CHUNK)
