"""HMCL as Optax transformations: ``chain(adamw, hmcl_project, task_anchor)`` and `begin_task`.

All state is in the optimizer state, so any training loop, checkpointer or trainer that carries an
Optax state works unchanged. Between tasks :func:`begin_task` replaces the protected system and the
anchor; shapes stay the same within a bucket of ranks, so nothing recompiles.

:func:`begin_task` finds its states inside any wrapper because every Optax state is a pytree, and a
wrapper (chain, masked, partition, MultiSteps, inject_hyperparams, ...) holds the states of what it
wraps as subtrees of its own. Flattening the whole state with our two state classes as leaves
reaches them at any depth, and unflattening puts new ones in their places; no wrapper has to be
known. Classes are safer than paths or names: Adam's moments mirror the parameters, so a parameter
called "anchor" occurs there too. The order of the leaves is that of the chain, so the anchor
*behind* a projection is one that comes later.
"""

from collections.abc import Mapping
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import optax
from jax.typing import ArrayLike

from hmcl_jax import _checks
from hmcl_jax.head import head_paths, is_masked, leaf_paths, map_by_path, select_heads
from hmcl_jax.lyapunov import matmul
from hmcl_jax.moments import Matrices
from hmcl_jax.projection import (
    SPANS,
    DefectSystem,
    Rotation,
    closest_motion,
    defect_system,
    finite_motion,
    motion_defect,
    protected_motion,
    replace_motion,
    rotation_angle,
    rotation_of_motion,
    side_by_side,
)
from hmcl_jax.protection import Protection, empty_protection, restrict

VARIANTS = ("mr", "ca", "rotation")
NO_PARAMS = "{} needs the current parameters: call update(updates, state, params)."


class FiniteRotationState(NamedTuple):
    """The additional state of the variant ``"rotation"``."""

    turned: Rotation  # since the start of the task
    anchor: Any  # heads at the start of the task, in the structure of the parameters
    beta: jax.Array  # of the task_anchor behind, 0 if there is none


class StepMeasures(NamedTuple):
    """What :func:`hmcl_project` measures of the last step; `system` and `gram` are a task's.

    Attributes:
      defect_before: root of the Lorentz defect of the candidate, see
        :func:`hmcl_jax.lorentz_defect`.
      defect_after: the same of the corrected step.
      rotation: size of the closest shared rotation of the candidate, in radians (root of the sum of
        its squared angles), whether the variant applies it or not.
      system: what the defects need of the protection.
      gram: ``V^T V`` of all modalities, one block each.
    """

    defect_before: jax.Array
    defect_after: jax.Array
    rotation: jax.Array
    system: DefectSystem
    gram: jax.Array


class HmclProjectState(NamedTuple):
    """State of :func:`hmcl_project`.

    Attributes:
      protection: the protected system of the current task.
      rotation: only for the variant ``"rotation"``, else None.
      measured: only with ``measure=True``, else None.
    """

    protection: Any
    rotation: Any = None
    measured: Any = None


class TaskAnchorState(NamedTuple):
    """State of :func:`task_anchor`.

    Attributes:
      anchor: parameters at the start of the task; other leaves are masked.
      beta: pullback coefficient, for :func:`begin_task` to read.
    """

    anchor: Any
    beta: jax.Array


def hmcl_project(
    variant: str = "ca",
    heads: Mapping[str, str] | None = None,
    hold_time: bool = True,
    span: str = "protected",
    measure: bool = False,
) -> optax.GradientTransformationExtraArgs:
    r"""Corrects each update so that protected points move by one shared rotation, or not at all.

    Put it behind the optimizer, so that it corrects the step that is really taken (learning rate,
    moments and weight decay included), or before it to project the raw gradient.

    - ``"mr"``: minimal rotation, protected points stay (paper: cor:canonical_admissible).
    - ``"ca"``: the closest admissible update, to first order (paper: cor:closest_admissible).
    - ``"rotation"``: as ``"ca"``, but the rotation is accumulated over the task and applied as a
      finite one (by its Cayley transform). Protected Lorentz products, radii and cones are then
      kept to rounding over any number of steps (if the heads' time columns are 0, as they are by
      default; else those of the least-squares fit). Only behind the optimizer. A
      :func:`task_anchor` behind it shrinks the rotation instead of mixing matrices;
      :func:`begin_task` reads its beta, which must not change during the task.

    Until :func:`begin_task` is called, nothing is protected and spatial blocks pass unchanged.
    One transformation must see all heads that turn together. In one group of
    :func:`optax.partition`, for example, it may see only some of the protected modalities; these
    cannot turn with the others, and ``"ca"`` and ``"rotation"`` keep them in place, as ``"mr"``.

    Args:
      variant: ``"mr"``, ``"ca"`` or ``"rotation"``.
      heads: ``{modality: path}`` of the heads in a larger tree of parameters, with paths like
        ``"params/image_head/W"``; other leaves pass unchanged. By default every leaf is a head,
        and its path its modality. In a Flax NNX model the path leads to the ``nnx.Param``.
      hold_time: whether the column of the time input is held fixed, from the first task on.
      span: where the shared rotation of ``"ca"`` and ``"rotation"`` may take protected outputs:
        ``"protected"``, within their own span, or ``"ambient"``, anywhere; see
        :func:`closest_admissible`.
      measure: whether the state holds the :class:`StepMeasures` of the last step, made from what
        the correction computes anyway: ``optax.tree.get(state, "defect_before")``.

    Returns:
      A gradient transformation; extra arguments are ignored.

    Example:
      >>> import jax, jax.numpy as jnp, optax, hmcl_jax
      >>> params = hmcl_jax.identity_heads(["image", "text"], dim=3)
      >>> tx = optax.chain(optax.sgd(1.0), hmcl_jax.hmcl_project("mr"))
      >>> x = jnp.array([[1.0, 0.0, 0.0]])
      >>> moments = hmcl_jax.update_moments(hmcl_jax.init_moments(params), {"image": x})
      >>> state = hmcl_jax.begin_task(tx.init(params), params, hmcl_jax.protect(moments, params))
      >>> updates, state = tx.update(jax.tree.map(jnp.ones_like, params), state, params)
      >>> print(updates["image"][0] + 0, updates["text"][0] + 0)
      [ 0.  0. -1. -1.] [ 0. -1. -1. -1.]
    """
    _checks.choice("variant", variant, VARIANTS)
    _checks.choice("span", span, SPANS)
    _checks.instance("hold_time", hold_time, bool, "True or False")

    def init_fn(params: Any) -> HmclProjectState:
        found = select_heads(params, heads)
        if not found:
            # No head in this group, or optax.tree.map_params calls init with a placeholder.
            nothing = () if jax.tree.leaves(params) else params
            return HmclProjectState(nothing, nothing if variant == "rotation" else None)
        protection = empty_protection(found)
        rotation = measured = None
        if variant == "rotation":
            beta = jnp.zeros((), float)
            turned = _still(protection, span == "ambient")
            rotation = FiniteRotationState(turned, _only_heads(params, heads), beta)
        if measure:
            measured = _nothing_measured(protection)
        return HmclProjectState(protection, rotation, measured)

    def update_fn(
        updates: Any, state: HmclProjectState, params: Any = None, **extra_args: Any
    ) -> tuple[Any, HmclProjectState]:
        del extra_args
        protection = state.protection
        if not isinstance(protection, Protection):
            return updates, state
        paths = head_paths(updates, heads)
        for modality in protection.basis:
            if modality not in paths:
                raise ValueError(
                    f"updates must hold head {modality!r} like the params of init, "
                    f"got {sorted(leaf_paths(updates))}."
                )
        leaves = leaf_paths(updates)
        delta = {modality: leaves[path] for modality, path in paths.items()}
        if variant == "rotation" and params is None:
            raise ValueError(NO_PARAMS.format("hmcl_project('rotation')"))

        moved = protected_motion(delta, protection)
        if variant == "mr":
            change = jax.tree.map(jnp.negative, moved)
        elif variant == "ca":
            change = jax.tree.map(jnp.subtract, closest_motion(moved, protection, span), moved)
        else:
            since = select_heads(_since(state.rotation.anchor, params), heads)
            change, turned = _finite_rotation(moved, since, state, span)
            state = state._replace(rotation=state.rotation._replace(turned=turned))
        corrected = replace_motion(delta, change, protection, hold_time)
        if measure:
            state = state._replace(measured=_measure(delta, moved, change, state, span, hold_time))
        by_path = {paths[modality]: W for modality, W in corrected.items()}
        return map_by_path(lambda path, leaf: by_path.get(path, leaf), updates), state

    return optax.GradientTransformationExtraArgs(init_fn, update_fn)


def _since(anchor: Any, params: Any) -> Any:
    """How far the parameters are from an anchor; other leaves stay masked."""
    return jax.tree.map(
        lambda start, now: start if is_masked(start) else now - start,
        anchor,
        params,
        is_leaf=is_masked,
    )


def _finite_rotation(
    moved: Matrices, since: Matrices, state: HmclProjectState, span: str
) -> tuple[Matrices, Rotation]:
    """The change of motion that, once anchored by beta, brings the heads to the turned target.

    The target is ``W_0 + (R - I) U V^T + (1 - beta) (W - W_0 + delta)(I - V V^T)``, where `since`
    is ``W - W_0``, so rounding (or an update that was dropped downstream) is corrected by the next
    step. Returns the change by modality, and the new rotation.
    """
    protection, old = state.protection, state.rotation
    keep = 1 - old.beta.astype(protection.shared_basis.dtype)
    step = rotation_of_motion(moved, protection, span)
    # The recursion of the anchor (paper: eq:supp_anchored_recurrence), on generators: mixing
    # matrices would shrink protected points.
    turned = jax.tree.map(lambda total, new: keep * (total + new), old.turned, step)
    wanted, away = finite_motion(turned, protection), protected_motion(since, protection)
    # Divided by 1 - beta, because the anchor behind multiplies by it.
    return {m: wanted[m] / keep - away[m] - moved[m] for m in moved}, turned


def _measure(
    delta: Matrices,
    moved: Matrices,
    change: Matrices,
    state: HmclProjectState,
    span: str,
    hold_time: bool,
) -> StepMeasures:
    """Measures a step from the motions that its correction has computed."""
    protection, (*_, system, gram) = state.protection, state.measured
    before = side_by_side(moved)
    # The motion that remains. V^T V is I up to rounding; so is a defect that should be 0.
    after = before + matmul(side_by_side(change), gram)
    time = sum(jnp.sum(W[:, 0].astype(before.dtype) ** 2) for W in delta.values())
    left = 0 if hold_time else time
    any_protected = jnp.any(jnp.stack(list(protection.rank.values())) > 0)
    roots = jnp.sqrt(
        jnp.stack([time + motion_defect(before, system), left + motion_defect(after, system)])
    )
    defect_before, defect_after = jnp.where(any_protected, roots, 0)
    turn = rotation_of_motion(moved, protection, span)
    return state.measured._replace(
        defect_before=defect_before, defect_after=defect_after, rotation=rotation_angle(turn)
    )


def _nothing_measured(protection: Protection) -> StepMeasures:
    """Measures before the first step of a task; the system is that of the task."""
    leading = protection.shared_basis.shape[:-2]
    # Seed by seed: a batch of decompositions can stall XLA on a CPU, see protection.
    system = jax.lax.map(defect_system, protection) if leading else defect_system(protection)

    def zero() -> jax.Array:  # one of its own each: a buffer that occurs twice cannot be donated
        return jnp.zeros(leading, protection.shared_basis.dtype)

    grams = (matmul(V.mT, V) for V in protection.basis.values())
    block_diag = jax.scipy.linalg.block_diag
    gram = jax.vmap(block_diag)(*grams) if leading else block_diag(*grams)
    return StepMeasures(zero(), zero(), zero(), system, gram)


def _still(protection: Protection, ambient: bool) -> Rotation:
    """The rotation by 0."""
    Q, scales = protection.shared_basis, protection.shared_scales
    inside = jnp.zeros((*scales.shape, scales.shape[-1]), Q.dtype)
    return Rotation(inside, jnp.zeros_like(Q) if ambient else None)


def _only_heads(params: Any, heads: Mapping[str, str] | None) -> Any:
    """A copy of the parameters in which everything but the heads is masked."""
    if heads is None:
        return jax.tree.map(jnp.copy, params)
    chosen = set(head_paths(params, heads).values())
    return map_by_path(
        lambda path, leaf: jnp.copy(leaf) if path in chosen else optax.MaskedNode(), params
    )


def task_anchor(
    beta: ArrayLike, heads: Mapping[str, str] | None = None
) -> optax.GradientTransformationExtraArgs:
    r"""Pulls the parameters back towards the start of the task at every step.

    :math:`W_{k+1} = \beta W_0 + (1 - \beta)(W_k + u)`, that is the update
    :math:`(1 - \beta) u + \beta (W_0 - W_k)` (paper: eq:optimizer_consistent_anchored_update). With
    updates no longer than u, no task moves further than :math:`u (1 - \beta) / \beta` (paper:
    thm:optimizer_consistent_closest_update). It must be the last transformation of a chain and
    needs the parameters in ``update``.

    Args:
      beta: pullback coefficient in [0, 1).
      heads: ``{modality: path}`` of the leaves to anchor; by default all are.

    Returns:
      A gradient transformation; extra arguments are ignored.

    Example:
      >>> import jax.numpy as jnp, optax, hmcl_jax
      >>> tx = hmcl_jax.task_anchor(0.5)
      >>> state = tx.init(jnp.zeros(2))
      >>> updates, state = tx.update(jnp.ones(2), state, jnp.full(2, 3.0))   # (0 + 3 + 1) / 2 - 3
      >>> print(updates)
      [-1. -1.]
    """
    _checks.fraction("beta", beta, low_open=False, high_open=True)

    def init_fn(params: Any) -> TaskAnchorState:
        # A copy: inject_hyperparams keeps beta too, and a donated state must not hold it twice.
        return TaskAnchorState(_only_heads(params, heads), jnp.array(beta, float))

    def update_fn(
        updates: Any, state: TaskAnchorState, params: Any = None, **extra_args: Any
    ) -> tuple[Any, TaskAnchorState]:
        del extra_args
        if params is None:
            raise ValueError(NO_PARAMS.format("task_anchor"))

        def anchored(start: Any, update: Any, now: Any) -> Any:
            if is_masked(start) or not jnp.issubdtype(update.dtype, jnp.floating):
                return update
            # In float32 at least: in bfloat16 a small pull would be rounded away.
            dtype = _checks.working_dtype(update, now)
            pull = jnp.asarray(beta, dtype)
            back = start.astype(dtype) - now.astype(dtype)
            return ((1 - pull) * update.astype(dtype) + pull * back).astype(update.dtype)

        return jax.tree.map(anchored, state.anchor, updates, params, is_leaf=is_masked), state

    return optax.GradientTransformationExtraArgs(init_fn, update_fn)


def hmcl(
    learning_rate: optax.ScalarOrSchedule,
    variant: str = "ca",
    beta: ArrayLike = 0.15,
    heads: Mapping[str, str] | None = None,
    hold_time: bool = True,
    span: str = "protected",
    weight_decay: ArrayLike = 0.0,
) -> optax.GradientTransformationExtraArgs:
    """The paper's update: AdamW, then :func:`hmcl_project`, then :func:`task_anchor`.

    For another optimizer, or other settings of AdamW, write the chain::

      optax.chain(optax.adamw(5e-4, b2=0.99), hmcl_project("ca"), task_anchor(0.15))

    Args:
      learning_rate: of AdamW.
      variant: ``"mr"``, ``"ca"`` or ``"rotation"``, see :func:`hmcl_project`.
      beta: pullback coefficient in [0, 1).
      heads: ``{modality: path}`` of the heads in a larger tree of parameters; other leaves are
        trained by AdamW alone. By default every leaf is a head.
      hold_time: whether the column of the time input is held fixed.
      span: of the shared rotation, ``"protected"`` or ``"ambient"``, see :func:`hmcl_project`.
      weight_decay: of AdamW; the decay is part of the step that is projected.

    Returns:
      A gradient transformation.

    Example:
      >>> import hmcl_jax
      >>> tx = hmcl_jax.hmcl(5e-4, variant="rotation", beta=0.15)
      >>> params = hmcl_jax.identity_heads(["image", "text"], dim=3)
      >>> state = tx.init(params)
    """
    return optax.with_extra_args_support(
        optax.chain(
            optax.adamw(learning_rate, weight_decay=weight_decay),
            hmcl_project(variant, heads=heads, hold_time=hold_time, span=span),
            task_anchor(beta, heads=heads),
        )
    )


def begin_task(opt_state: Any, params: Any, protection: Protection | None) -> Any:
    """The optimizer state for the next task: its protection, and an anchor at its start.

    Replaces the states of :func:`hmcl_project` and :func:`task_anchor` wherever they are in
    `opt_state`, also inside Optax wrappers; everything else stays as it is. To reset the
    optimizer's own moments as well, start from ``tx.init(params)``. Works on states with a leading
    seed axis if `params` and `protection` have it too, and inside jit, vmap and scan.

    Args:
      opt_state: state of an optimizer that holds at least one of the two transformations.
      params: parameters at the start of the task.
      protection: of :func:`protect` for these parameters, or None to protect nothing. Both are
        copied, so that the state may be donated.

    Returns:
      The new optimizer state, of the same structure.

    Example:
      >>> import jax, hmcl_jax
      >>> params = hmcl_jax.identity_heads(["image", "text"], dim=3)
      >>> tx = hmcl_jax.hmcl(1e-3)
      >>> state = tx.init(params)
      >>> x = jax.random.normal(jax.random.key(0), (10, 3))
      >>> moments = hmcl_jax.update_moments(hmcl_jax.init_moments(params), {"image": x, "text": x})
      >>> state = hmcl_jax.begin_task(state, params, hmcl_jax.protect(moments, params))
    """
    if protection is not None:
        _checks.instance("protection", protection, Protection, "what protect gives, or None")
        _checks.finite("protection", protection)
    ours = (HmclProjectState, TaskAnchorState)
    leaves, structure = jax.tree_util.tree_flatten_with_path(
        opt_state, is_leaf=lambda node: isinstance(node, ours)
    )
    if not any(isinstance(node, ours) for _, node in leaves):
        raise ValueError(
            "opt_state must hold a state of hmcl_project or task_anchor, but none was found in "
            f"{structure}."
        )
    if protection is not None:
        _check_all_seen(protection, [node for _, node in leaves])
    replaced = []
    for index, (_, node) in enumerate(leaves):
        if isinstance(node, TaskAnchorState):
            node = node._replace(anchor=_anchor_at(node.anchor, params))
        elif isinstance(node, HmclProjectState) and isinstance(node.protection, Protection):
            chosen = jax.tree.map(jnp.copy, _fitting(node.protection, protection))
            rotation = node.rotation
            if rotation is not None:
                start = _anchor_at(rotation.anchor, params)
                (was,) = jax.tree.leaves(rotation.beta)
                beta = _beta_behind(opt_state, leaves[index + 1 :], start, was)
                turned = _still(chosen, rotation.turned.outside is not None)
                rotation = FiniteRotationState(turned, start, beta)
            measured = None if node.measured is None else _nothing_measured(chosen)
            # Flax NNX wraps every array of the state: the new arrays go into the old wrappers.
            new = jax.tree.leaves(HmclProjectState(chosen, rotation, measured))
            node = jax.tree.unflatten(jax.tree.structure(node), new)
        replaced.append(node)
    return jax.tree.unflatten(structure, replaced)


def _check_all_seen(protection: Protection, nodes: list[Any]) -> None:
    projects = [node.protection for node in nodes if isinstance(node, HmclProjectState)]
    # A projection that sees no head (in another group of a partition) holds no protection.
    states = [state for state in projects if isinstance(state, Protection)]
    seen = sorted({modality for state in states for modality in state.basis})
    for modality in protection.basis:
        if seen and modality not in seen:
            raise ValueError(
                f"protection holds {modality!r}, but no hmcl_project in opt_state sees such a "
                f"head: they see {seen}."
            )


def _fitting(old: Protection, new: Protection | None) -> Protection:
    """The part of the new protection for the heads of the old one, checked against it."""
    if new is None:
        return jax.tree.map(jnp.zeros_like, old)
    for modality in old.basis:
        if modality not in new.basis:
            raise ValueError(
                f"Head {modality!r} has no entry in protection, which holds {sorted(new.basis)}; "
                "give protect() the moments of every head (without samples its rank is 0)."
            )
    new = restrict(new, old.basis)
    # Trailing axes that are padded: their width may change from task to task, nothing else may.
    padded_axes = {"basis": 1, "coordinates": 2, "energy": 2, "time": 1, "rank": 0}
    padded_axes |= {"shared_basis": 1, "shared_scales": 1}
    for field, padded in padded_axes.items():
        pairs = zip(
            jax.tree_util.tree_leaves_with_path(getattr(old, field)),
            jax.tree.leaves(getattr(new, field)),
            strict=True,
        )
        for (path, was), now in pairs:
            fixed = was.shape[: was.ndim - padded]
            same_shape = was.ndim == now.ndim and now.shape[: len(fixed)] == fixed
            if not same_shape or was.dtype != now.dtype:
                raise ValueError(
                    f"protection.{field}{jax.tree_util.keystr(path)} must be {was.dtype} of shape "
                    f"{(*fixed, *('...',) * padded)} like the optimizer state, got {now.dtype} of "
                    f"shape {now.shape}; give protect() the heads of init."
                )
    return new


def _anchor_at(anchor: Any, params: Any) -> Any:
    """A copy of the parameters in the structure of an anchor, checked against it."""
    now = leaf_paths(params)
    was = leaf_paths(anchor)
    masked = [path for path, leaf in was.items() if is_masked(leaf)]
    for path in now:
        if path not in was and not any(path.startswith(f"{node}/") for node in masked):
            raise ValueError(
                f"params has a leaf {path!r} that the optimizer state does not know; "
                "was the state made by init of these params?"
            )

    def start(path: str, leaf: Any) -> jax.Array:
        if path not in now:
            raise ValueError(
                f"params must hold the leaf {path!r} that the optimizer state anchors, "
                f"got {sorted(now)}."
            )
        value = jnp.asarray(now[path])
        if value.shape != leaf.shape or value.dtype != leaf.dtype:
            raise ValueError(
                f"params leaf {path!r} must be {leaf.dtype} of shape {leaf.shape} like the "
                f"optimizer state, got {value.dtype} of shape {value.shape}."
            )
        _checks.finite(f"params leaf {path!r}", value)
        return jnp.copy(value)

    return map_by_path(start, anchor)


def _beta_behind(opt_state: Any, behind: list[Any], start: Any, like: jax.Array) -> jax.Array:
    """Beta of the task_anchor behind that anchors the same heads, 0 if there is none."""

    def anchored(tree: Any) -> set[str]:
        return {path for path, leaf in leaf_paths(tree).items() if not is_masked(leaf)}

    anchors = [(path, node) for path, node in behind if isinstance(node, TaskAnchorState)]
    found = [(at, node.beta) for at, node in anchors if anchored(start) <= anchored(node.anchor)]
    if len(found) > 1:
        raise ValueError(
            f"The variant 'rotation' takes one task_anchor behind it, got {len(found)}."
        )
    if not found:
        return jnp.zeros_like(like)
    (beta,) = jax.tree.leaves(_injected_beta(opt_state, *found[0]))
    # A copy: a state that holds one buffer twice cannot be donated.
    return jnp.array(jnp.broadcast_to(jnp.asarray(beta, like.dtype), like.shape))


def _injected_beta(opt_state: Any, path: Any, beta: jax.Array) -> jax.Array:
    """Beta of the anchor at `path`, or the one that optax.inject_hyperparams around it holds.

    The injected one may have been changed since init, which the anchor's state does not show.
    """

    def injects(node: Any) -> bool:
        return "beta" in getattr(node, "hyperparams", ())

    for at, node in jax.tree_util.tree_leaves_with_path(opt_state, is_leaf=injects):
        if injects(node) and path[: len(at)] == at:
            return node.hyperparams["beta"]
    return beta
