"""Scores of tasks, streams and class trees, drift of the geometry, traversals to the origin."""

from hmcl_jax.evaluation.anchors import Anchors, fixed_anchors
from hmcl_jax.evaluation.drift import (
    Drift,
    Norms,
    cone_changes,
    drift_measures,
    join_drift,
    measure_drift,
)
from hmcl_jax.evaluation.frozen import measure_pairs, measure_table, measure_task
from hmcl_jax.evaluation.hierarchy import (
    RadiusByDepth,
    Tree,
    chance_scores,
    hierarchy_scores,
    make_tree,
    radius_by_depth,
)
from hmcl_jax.evaluation.matrix import (
    CONVENTIONS,
    backward_transfer,
    forgetting,
    immediate,
    is_complete,
    overall,
    relative_change,
)
from hmcl_jax.evaluation.modality_gap import measure_gaps
from hmcl_jax.evaluation.radial_tree import RadialTree, TreePoints, proper_rotation, radial_tree
from hmcl_jax.evaluation.scores import predict, recall, symmetric_recall, top1
from hmcl_jax.evaluation.statistics import Wilcoxon, bonferroni, rank_correlation, wilcoxon
from hmcl_jax.evaluation.traversal import (
    Pool,
    Traversal,
    compare_heads,
    store_pool,
    task_pool,
    traverse,
)

__all__ = [
    "CONVENTIONS",
    "Anchors",
    "Drift",
    "Norms",
    "Pool",
    "RadialTree",
    "RadiusByDepth",
    "Traversal",
    "Tree",
    "TreePoints",
    "Wilcoxon",
    "backward_transfer",
    "bonferroni",
    "chance_scores",
    "compare_heads",
    "cone_changes",
    "drift_measures",
    "fixed_anchors",
    "forgetting",
    "hierarchy_scores",
    "immediate",
    "is_complete",
    "join_drift",
    "make_tree",
    "measure_drift",
    "measure_gaps",
    "measure_pairs",
    "measure_table",
    "measure_task",
    "overall",
    "predict",
    "proper_rotation",
    "radial_tree",
    "radius_by_depth",
    "rank_correlation",
    "recall",
    "relative_change",
    "store_pool",
    "symmetric_recall",
    "task_pool",
    "top1",
    "traverse",
    "wilcoxon",
]
