"""Hyperbolic multimodal continual learning: pure functions and Optax transformations."""

from hmcl_jax import entailment, lorentz, objective
from hmcl_jax.head import (
    LorentzHead,
    apply_head,
    identity_head,
    identity_heads,
    select_heads,
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
    solve_lyapunov,
    strain,
)
from hmcl_jax.protection import (
    FeatureMoments,
    Protection,
    end_task,
    init_moments,
    merge_moments,
    protect,
    update_moments,
)
