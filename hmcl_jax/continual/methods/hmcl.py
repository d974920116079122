"""HMCL: corrects each optimizer step so that protected points of every modality move by the same
rotation, or not at all."""

import dataclasses
from collections.abc import Mapping
from typing import Any

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
)
from hmcl_jax.moments import end_task, init_moments, update_moments
from hmcl_jax.projection import SPANS, lorentz_defect, rotation_angle, shared_rotation
from hmcl_jax.protection import protect
from hmcl_jax.transform import (
    VARIANTS,
    HmclProjectState,
    StepMeasures,
    begin_task,
    hmcl_project,
    task_anchor,
)

PLACEMENTS = ("pre", "post", "post+anchor")
CHUNK = 16384  # rows of features per device transfer


@dataclasses.dataclass(frozen=True)
class Hmcl(Method):
    """HMCL."""

    # "mr" (minimal rotation, eq:canonical_projection), "ca" (closest admissible,
    # eq:ca_poststep_solution) or "rotation" (the finite form of ca).
    variant: str = "ca"
    # Of the correction: "pre" (on the raw gradient), "post" (on the step that AdamW takes) or
    # "post+anchor", the paper's complete method (eq:optimizer_consistent_anchored_update).
    placement: str = "post+anchor"
    variance: float = 0.6  # share rho of the features' energy that is protected
    min_rank: int = 8  # least number of protected directions, k_min
    beta: float = 0.05  # pullback towards the task's start
    beta_retrieval: float | None = None  # the same for retrieval tasks, if it differs
    basis: str = "per_modality"  # or "joint"
    weighting: str = "samples"  # of old tasks in the moments, or "tasks"
    # Of the shared rotation: "protected" (the paper's rank-r realization) or "ambient".
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

    def structure(self) -> bool:
        return self._anchors()

    def _anchors(self) -> bool:
        """Whether any task is pulled back: an anchor with beta 0 would cost and change nothing.

        In a sweep beta is an array; its points with and without an anchor are apart.
        """
        betas = (self.beta, self.beta_retrieval)
        pulls = any(b is not None and (not isinstance(b, int | float) or b > 0) for b in betas)
        return self.placement == "post+anchor" and pulls

    def optimizer(self, spec: TaskSpec) -> optax.GradientTransformation:
        project = hmcl_project(self.variant, span=self.span, measure=True)
        if self.placement == "pre":
            return optax.chain(project, adamw(spec))
        if not self._anchors():
            return optax.chain(adamw(spec), project)
        # Beta is a part of the state, so that it may differ along the seed axis.
        anchor = optax.inject_hyperparams(task_anchor)(beta=0.0)
        return optax.chain(adamw(spec), project, anchor)

    def begin_task(self, opt_state: Any, state: MethodState, heads: Heads, spec: TaskSpec) -> Any:
        seeds = len(next(iter(heads.values())))
        if self._anchors():
            retrieval = spec.kind == "retrieval" and self.beta_retrieval is not None
            given = np.asarray(self.beta_retrieval if retrieval else self.beta)
            beta = jnp.asarray(np.broadcast_to(given, seeds), float)
            anchor = opt_state[-1]._replace(hyperparams={"beta": beta})
            opt_state = (*opt_state[:-1], anchor)
        protection = None
        if not spec.is_first:
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

        - ``defect_before``, ``defect_after``, ``rotation``: as in
          :class:`hmcl_jax.transform.StepMeasures`, before anchoring;
        - with an anchor, ``anchor_distance``: Frobenius norm over all heads of the way from the
          task's start, and ``step``: that of a step before anchoring, if every step is measured.
        """
        measured = _project_state(after.opt_state).measured
        if self.placement == "pre":
            measured = self._measure_step(gradient, before, after, spec)
        metrics = {"defect_before": measured.defect_before, "defect_after": measured.defect_after}
        metrics["rotation"] = measured.rotation
        if self._anchors():
            beta, start = (
                after.opt_state[-1].hyperparams["beta"],
                after.opt_state[-1].inner_state.anchor,
            )
            way = jax.tree.map(jnp.subtract, after.heads, start)
            metrics["anchor_distance"] = optax.tree.norm(way)
            if spec.train.step == "epoch":
                taken = jax.tree.map(
                    lambda now, then, first: (now - then - beta * (first - then)) / (1 - beta),
                    after.heads,
                    before.heads,
                    start,
                )
                metrics["step"] = optax.tree.norm(taken)
        return metrics

    def _measure_step(
        self, gradient: Heads, before: TrainState, after: TrainState, spec: TaskSpec
    ) -> StepMeasures:
        """The measures of a step whose gradient was corrected in front of AdamW."""
        protection, system = after.opt_state[0].protection, after.opt_state[0].measured.system
        candidate, _ = adamw(spec).update(gradient, before.opt_state[1], before.heads)
        taken = jax.tree.map(jnp.subtract, after.heads, before.heads)
        protects = jnp.any(jnp.stack(list(protection.rank.values())) > 0)
        defects = (lorentz_defect(step, protection, system) for step in (candidate, taken))
        defect_before, defect_after = (jnp.where(protects, jnp.sqrt(x), 0) for x in defects)
        angle = rotation_angle(shared_rotation(candidate, protection, span=self.span))
        return after.opt_state[0].measured._replace(
            defect_before=defect_before, defect_after=defect_after, rotation=angle
        )

    def end_task(self, state: MethodState, heads: Heads, data: TaskData) -> MethodState:
        return add_moments(state, data)

    def task_metrics(
        self, state: MethodState, opt_state: Any, steps: Mapping[str, np.ndarray]
    ) -> dict[str, Any]:
        """Protected ranks, and how far the anchor's bound lets the heads be after each epoch."""
        ranks = _project_state(opt_state).protection.rank
        metrics: dict[str, Any] = {f"rank_{modality}": rank for modality, rank in ranks.items()}
        if self._anchors():
            beta = np.asarray(opt_state[-1].hyperparams["beta"], float)[:, None]
            if (beta > 0).all() and "step" in steps:
                longest = np.maximum.accumulate(np.asarray(steps["step"], float), axis=1)
                metrics["anchor_bound"] = (1 - beta) / beta * longest
        return metrics


def _project_state(opt_state: Any) -> HmclProjectState:
    """The state of `hmcl_project` in the state of an :class:`Hmcl` optimizer."""
    return next(part for part in opt_state if isinstance(part, HmclProjectState))


_begin_task = jax.jit(begin_task)
_end_task, _update_moments = jax.jit(end_task), jax.jit(update_moments)


def empty_moments(heads: Heads) -> MethodState:
    """A state of empty moments."""
    # Moments are of frozen features, so all seeds share them: heads without the seed axis.
    return MethodState(
        init_moments({m: np.zeros(W.shape[1:], W.dtype) for m, W in heads.items()}), ()
    )


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
