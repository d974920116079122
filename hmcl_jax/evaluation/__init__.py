"""Scores of tasks, and what a matrix of scores says about a stream."""

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
    "Spread",
    "Summary",
    "backward_transfer",
    "forgetting",
    "immediate",
    "is_complete",
    "overall",
    "predict",
    "recall",
    "summary",
    "symmetric_recall",
    "top1",
]
