"""Scores of tasks, streams and hierarchies, drift of the geometry, walks to the origin."""

from hmcl_jax.evaluation.anchors import Anchors, fixed_anchors
from hmcl_jax.evaluation.drift import (
    angular_drift,
    cone_changes,
    cross_modal_drift,
    drift_measures,
    paired_distance_drift,
    radial_drift,
)
from hmcl_jax.evaluation.hierarchy import (
    RadiusByDepth,
    Tree,
    chance_scores,
    hierarchy_scores,
    make_tree,
    radius_by_depth,
    rank_correlation,
)
from hmcl_jax.evaluation.matrix import (
    CONVENTIONS,
    Spread,
    Summary,
    backward_transfer,
    forgetting,
    immediate,
    is_complete,
    overall,
    summary,
)
from hmcl_jax.evaluation.scores import predict, recall, symmetric_recall, top1
from hmcl_jax.evaluation.signed_rank import Wilcoxon, bonferroni, wilcoxon
from hmcl_jax.evaluation.stream_drift import Drift, Norms, measure_drift
from hmcl_jax.evaluation.traversal import (
    Pool,
    Traversal,
    compare_heads,
    store_pool,
    task_pool,
    traversal_table,
    traverse,
)

__all__ = [
    "CONVENTIONS",
    "Anchors",
    "Drift",
    "Norms",
    "Pool",
    "RadiusByDepth",
    "Spread",
    "Summary",
    "Traversal",
    "Tree",
    "Wilcoxon",
    "angular_drift",
    "backward_transfer",
    "bonferroni",
    "chance_scores",
    "compare_heads",
    "cone_changes",
    "cross_modal_drift",
    "drift_measures",
    "fixed_anchors",
    "forgetting",
    "hierarchy_scores",
    "immediate",
    "is_complete",
    "make_tree",
    "measure_drift",
    "overall",
    "paired_distance_drift",
    "predict",
    "radial_drift",
    "radius_by_depth",
    "rank_correlation",
    "recall",
    "store_pool",
    "summary",
    "symmetric_recall",
    "task_pool",
    "top1",
    "traversal_table",
    "traverse",
    "wilcoxon",
]
