"""Scores of tasks, what a matrix of scores says about a stream, and drift of the geometry."""

from hmcl_jax.evaluation.anchors import Anchors, fixed_anchors
from hmcl_jax.evaluation.drift import (
    angular_drift,
    cone_changes,
    cross_modal_drift,
    drift_measures,
    paired_distance_drift,
    radial_drift,
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
from hmcl_jax.evaluation.scores import recall, symmetric_recall, top1
from hmcl_jax.evaluation.signed_rank import Wilcoxon, bonferroni, wilcoxon
from hmcl_jax.evaluation.stream_drift import Drift, Norms, measure_drift

__all__ = [
    "CONVENTIONS",
    "Anchors",
    "Drift",
    "Norms",
    "Spread",
    "Summary",
    "Wilcoxon",
    "angular_drift",
    "backward_transfer",
    "bonferroni",
    "cone_changes",
    "cross_modal_drift",
    "drift_measures",
    "fixed_anchors",
    "forgetting",
    "immediate",
    "is_complete",
    "measure_drift",
    "overall",
    "paired_distance_drift",
    "radial_drift",
    "recall",
    "summary",
    "symmetric_recall",
    "top1",
    "wilcoxon",
]
