"""Settings of the towers that ``build_pocket.py --select`` compares, and the rule that chooses.

The measures are those of held-out base pairs and of frozen features. No result of continual
learning takes part.
"""

import dataclasses
from typing import Any

import numpy as np

from hmcl_jax.evaluation.frozen import PairMeasures, pair_cells

_STUDY = {"separation_weight": 0.0, "stretch": 1.0, "level": 0.02, "epochs": 12}
_SHORT = {"warm_steps": 2000, "warm_rate": 1e-3, "inner_share": 0.6}
# Changes to the defaults, which are the candidate that was chosen.
CANDIDATES: dict[str, dict[str, Any]] = {
    "short warm start, no separation, eta .75": {**_STUDY, **_SHORT, "eta": 0.75},
    "short warm start": {**_STUDY, **_SHORT, "separation_weight": 1.0, "stretch": 1.22},
    "level .02, separation .3, eta .7": {
        **_STUDY,
        "separation_weight": 0.3,
        "eta": 0.7,
        "margin": 0.03,
        "stretch": 1.12,
    },
    "cones 1.5, 12 epochs": {"cone_weight": 1.5, "stretch": 1.1, "epochs": 12},
    "cones 1.5, separation 3, 12 epochs": {
        "cone_weight": 1.5,
        "separation_weight": 3.0,
        "stretch": 1.07,
        "epochs": 12,
    },
    "shipped": {},
}


@dataclasses.dataclass(frozen=True)
class Measures:
    """Measures of one backbone, trained on nine tenths of the base."""

    held_out: PairMeasures  # of held-out base pairs
    recall: float  # R@5 both ways of held-out base pairs, the mean over collections
    task_variation: float  # coefficient of variation of picture radii, the mean over tasks
    task_entailed: float  # share of texts that entail their picture, the mean over tasks
    task_entailed_others: float  # the same share for shuffled pairs
    spearman: float  # correlation of text radius and depth, the mean over the class trees
    zero_shot: float  # score of frozen features, the mean over tasks
    tau: float  # learned temperature


def mean_measures(rows: list[Measures]) -> Measures:
    """Means over seeds."""
    tables = [dataclasses.asdict(row) for row in rows]
    pairs = {key: np.mean([t["held_out"][key] for t in tables]) for key in tables[0]["held_out"]}
    rest = {key: np.mean([t[key] for t in tables]) for key in tables[0] if key != "held_out"}
    return Measures(PairMeasures(**pairs), **rest)


def attainment(found: Measures) -> dict[str, float]:
    """Each target's measure, in units of the target."""
    pairs = found.held_out
    return {
        "entailed": pairs.entailed / 0.90,
        "above shuffled": (pairs.entailed - pairs.entailed_others) / 0.35,
        "further out": pairs.further / 0.95,
        "variation of radii": pairs.specific_variation / 0.04,
        "spearman": found.spearman / 0.40,
        "zero-shot": found.zero_shot / 0.25,
    }


def choose(found: dict[str, Measures]) -> str:
    """The candidate that falls short of the targets least, then the one of the best R@5.

    The shortfall is the sum over targets of max(0, 1 - measure / target).
    """

    def rank(name: str) -> tuple[float, float]:
        short = sum(max(0.0, 1 - share) for share in attainment(found[name]).values())
        return short, -found[name].recall

    return min(found, key=rank)


HEADER = """\
| candidate | text radius (CV) | picture radius (CV) | entails % | shuffled % | further out % \
| R@5 % | CV, tasks % | entails, tasks % | shuffled, tasks % | Spearman | zero-shot % | tau |
|---|---:|---:|---:|---:|---:|---:|---:|---:|---:|---:|---:|---:|"""


def row(name: str, found: Measures) -> str:
    """A row of the table under :data:`HEADER`."""
    shares = (found.recall, found.task_variation, found.task_entailed, found.task_entailed_others)
    cells = [
        name,
        *pair_cells(found.held_out),
        *(f"{100 * x:.1f}" for x in shares),
        f"{found.spearman:.3f}",
        f"{100 * found.zero_shot:.1f}",
        f"{found.tau:.4f}",
    ]
    return "| " + " | ".join(cells) + " |"
