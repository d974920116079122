"""HMCL: every step of AdamW is corrected so that old modalities move by one shared rotation."""

import dataclasses
import functools
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax

from hmcl_jax.continual.config import ConfigError, TrainConfig, at_least, fraction, one_of
from hmcl_jax.continual.method import (
    Heads,
    Method,
    MethodState,
    TaskEnd,
    TaskInfo,
    Watch,
    adamw,
    knob,
)
from hmcl_jax.moments import end_task, init_moments, merge_moments, update_moments
from hmcl_jax.projection import SPANS, defect_system, lorentz_defect, shared_rotation
from hmcl_jax.protection import if_protected, protect
from hmcl_jax.transform import VARIANTS, begin_task, hmcl_project, task_anchor

PLACEMENTS = ("pre", "post", "post+anchor")
CHUNK = 16384  # rows of features per device transfer


@dataclasses.dataclass(frozen=True)
class HmclSettings:
    """Settings of HMCL.

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

    def __post_init__(self) -> None:
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


def make(name: str, settings: HmclSettings) -> Method:
    """The record of HMCL."""
    return Method(
        name,
        settings,
        init=init_state,
        widen=widen_state,
        transform=functools.partial(_transform, settings),
        begin_task=functools.partial(_begin_task, settings),
        end_task=add_moments,
        watch=functools.partial(_watch, settings),
        log=functools.partial(_log, settings),
    )


def _transform(
    settings: HmclSettings, config: TrainConfig, info: TaskInfo
) -> optax.GradientTransformation:
    step = adamw(config, info)
    project = hmcl_project(settings.variant, span=settings.span)
    if settings.placement == "pre":
        return optax.chain(project, step)
    if settings.placement == "post":
        return optax.chain(step, project)
    # Beta is a part of the state, so that it may differ along the seed axis.
    return optax.chain(step, project, optax.inject_hyperparams(task_anchor)(beta=settings.beta))


def _watch(settings: HmclSettings, opt_state: Any, info: TaskInfo) -> Watch:
    """What the correction does to a step of AdamW, and how far the anchor lets it go.

    - ``defect_before``, ``defect_after``: root of the Lorentz defect of the step that AdamW alone
      would take from here, and of the one that is taken, before anchoring;
    - ``rotation``: size of the closest shared rotation of AdamW's step, in radians (root of the sum
      of its squared angles), taken or not;
    - ``anchor_distance``, ``step``: Frobenius norms over all heads of the way from the task's
      start, and of the step that is taken; the latter if every step is measured.
    """
    pre, anchored = settings.placement == "pre", settings.placement == "post+anchor"
    adam = adamw(info.config, info)
    project = hmcl_project(settings.variant, span=settings.span)
    protection = opt_state[0 if pre else 1].protection
    system = defect_system(protection)

    def watch(gradient: Heads, params: Heads, opt_state: Any, moved: Heads) -> dict[str, jax.Array]:
        candidate, _ = adam.update(gradient, opt_state[1 if pre else 0], params)
        if pre:
            taken = jax.tree.map(jnp.subtract, moved, params)
        else:
            taken, _ = project.update(candidate, opt_state[1], params)
        zero = jnp.zeros((), protection.shared_basis.dtype)

        def measured() -> tuple[jax.Array, ...]:
            defects = (lorentz_defect(step, protection, system) for step in (candidate, taken))
            turn = shared_rotation(candidate, protection, span=settings.span)
            squared = jnp.sum(turn.inside**2) / 2
            if turn.outside is not None:
                squared += jnp.sum(turn.outside**2)
            return *map(jnp.sqrt, defects), jnp.sqrt(squared)

        found = if_protected(protection, measured, lambda: (zero, zero, zero))
        figures = dict(zip(("defect_before", "defect_after", "rotation"), found, strict=True))
        if anchored:
            way = jax.tree.map(jnp.subtract, moved, opt_state[2].inner_state.anchor)
            figures["anchor_distance"] = optax.tree.norm(way)
            if info.config.step == "epoch":
                figures["step"] = optax.tree.norm(taken)
        return figures

    return watch


def _log(settings: HmclSettings, state: MethodState, fitted: Any) -> dict[str, jax.Array]:
    """Protected ranks, and how far the anchor's bound lets the heads be after each epoch."""
    del state
    project = fitted.opt_state[0 if settings.placement == "pre" else 1]
    figures = {f"rank_{modality}": rank for modality, rank in project.protection.rank.items()}
    if settings.placement == "post+anchor":
        beta = np.asarray(fitted.opt_state[2].hyperparams["beta"], float)[:, None]
        if (beta > 0).all() and "step" in fitted.figures:
            longest = np.maximum.accumulate(np.asarray(fitted.figures["step"], float), axis=1)
            figures["anchor_bound"] = (1 - beta) / beta * longest
    return figures


def init_state(params: Heads) -> MethodState:
    """Empty moments."""
    return MethodState(init_moments({m: W[0] for m, W in params.items()}), ())


def widen_state(state: MethodState, params: Heads) -> MethodState:
    """Moments for heads among which new ones have appeared."""
    return state._replace(shared=merge_moments(state.shared, init_state(params).shared))


def _begin_task(
    settings: HmclSettings, opt_state: Any, state: MethodState, params: Heads, info: TaskInfo
) -> Any:
    if settings.placement == "post+anchor":
        beta = knob(settings, state, "beta")
        if info.kind == "retrieval" and settings.beta_retrieval is not None:
            beta = settings.beta_retrieval
        seeds = next(iter(params.values())).shape[0]
        beta = jnp.array(jnp.broadcast_to(jnp.asarray(beta, float), seeds))
        anchor = opt_state[-1]._replace(hyperparams={"beta": beta})
        opt_state = (*opt_state[:-1], anchor)
    if info.first:
        return begin_task(opt_state, params, None)
    protection = protect(
        state.shared,
        params,
        variance=knob(settings, state, "variance"),
        min_rank=settings.min_rank,
        basis=settings.basis,
        weighting=settings.weighting,
    )
    return begin_task(opt_state, params, protection)


def add_moments(state: MethodState, params: Heads, end: TaskEnd) -> MethodState:
    """Moments with those of a learned task."""
    del params
    moments = state.shared
    for modality, features in end.features.items():
        for start in range(0, len(features), CHUNK):
            rows, counts = features[start : start + CHUNK], end.counts[modality]
            counts = counts[start : start + CHUNK]
            # Padded to few shapes, so that few programs are compiled.
            missing = _padded(len(rows)) - len(rows)
            rows = np.pad(np.asarray(rows), ((0, missing), (0, 0)))
            moments = update_moments(
                moments,
                {modality: rows},
                end.info.K,
                {modality: np.pad(counts, (0, missing)).astype(np.int32)},
            )
    return state._replace(shared=end_task(moments))


def _padded(rows: int) -> int:
    size = 256
    while size < rows:
        size *= 4
    return min(size, CHUNK)
