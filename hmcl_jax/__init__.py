"""Hyperbolic multimodal continual learning: pure functions and Optax transformations.

Importing the package imports JAX, Optax and the method. The embedded streams and the Flax head are
imported on first use, runs, reports and commands from their own modules.
"""

import importlib
from typing import TYPE_CHECKING, Any

from hmcl_jax import entailment, lorentz, objective
from hmcl_jax.head import apply_head, identity_head, identity_heads, select_heads
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

if TYPE_CHECKING:
    from hmcl_jax.data.pocket import load_pocket, load_pocket_modalities
    from hmcl_jax.flax_head import LorentzHead

__version__ = "0.1.0"

__all__ = [
    "FeatureMoments",
    "HmclProjectState",
    "LorentzHead",
    "Protection",
    "Rotation",
    "Strain",
    "TaskAnchorState",
    "__version__",
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

# Imported on first use, because they are slow to import or need further packages.
_LAZY = {
    "LorentzHead": "hmcl_jax.flax_head",
    "load_pocket": "hmcl_jax.data.pocket",
    "load_pocket_modalities": "hmcl_jax.data.pocket",
}


def __getattr__(name: str) -> Any:
    if name not in _LAZY:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = getattr(importlib.import_module(_LAZY[name]), name)
    globals()[name] = value
    return value
