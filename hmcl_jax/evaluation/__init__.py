"""Scores of tasks, of streams and of hierarchies, and walks from pictures to the origin."""

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
    "Pool",
    "RadiusByDepth",
    "Spread",
    "Summary",
    "Traversal",
    "Tree",
    "backward_transfer",
    "chance_scores",
    "compare_heads",
    "forgetting",
    "hierarchy_scores",
    "immediate",
    "is_complete",
    "make_tree",
    "overall",
    "predict",
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
]
