"""Hyperbolic multimodal continual learning: pure functions and Optax transformations."""

from hmcl_jax import entailment, lorentz, objective
from hmcl_jax.data.pocket import load_pocket, load_pocket_modalities
from hmcl_jax.head import (
    LorentzHead,
    apply_head,
    identity_head,
    identity_heads,
    select_heads,
)
from hmcl_jax.lyapunov import solve_lyapunov
from hmcl_jax.moments import (
    FeatureMoments,
    end_task,
    init_moments,
    merge_moments,
    update_moments,
)
from hmcl_jax.projection import (
    Rotation,
    Strain,
    basis_image,
    closest_admissible,
    generator,
    lorentz_defect,
    minimal_rotation,
    rotate,
    shared_rotation,
    strain,
)
from hmcl_jax.protection import Protection, protect
from hmcl_jax.transform import (
    HmclProjectState,
    TaskAnchorState,
    begin_task,
    hmcl,
    hmcl_project,
    task_anchor,
)

__all__ = [
    "FeatureMoments",
    "HmclProjectState",
    "LorentzHead",
    "Protection",
    "Rotation",
    "Strain",
    "TaskAnchorState",
    "apply_head",
    "basis_image",
    "begin_task",
    "closest_admissible",
    "end_task",
    "entailment",
    "generator",
    "hmcl",
    "hmcl_project",
    "identity_head",
    "identity_heads",
    "init_moments",
    "load_pocket",
    "load_pocket_modalities",
    "lorentz",
    "lorentz_defect",
    "merge_moments",
    "minimal_rotation",
    "objective",
    "protect",
    "rotate",
    "select_heads",
    "shared_rotation",
    "solve_lyapunov",
    "strain",
    "task_anchor",
    "update_moments",
]
