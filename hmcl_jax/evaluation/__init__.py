"""Scores of tasks, of streams and of hierarchies."""

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

__all__ = [
    "CONVENTIONS",
    "RadiusByDepth",
    "Spread",
    "Summary",
    "Tree",
    "backward_transfer",
    "chance_scores",
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
    "summary",
    "symmetric_recall",
    "top1",
]
