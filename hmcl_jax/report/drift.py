"""Drift of old tasks as Markdown tables."""

import numpy as np

from hmcl_jax.evaluation import Drift, bonferroni
from hmcl_jax.evaluation.drift import CONES, MEASURES
from hmcl_jax.evaluation.seeds import seed_mean, seed_std
from hmcl_jax.report.results import markdown_rows

TITLES = {
    "radial": "Radial",
    "angular": "Angular",
    "cross_modal": "Cross-modal",
    "paired_distance": "Paired distance",
}
CONVENTION = (
    "Change between the end of a task and the end of the stream on fixed test anchors, mean over "
    "the old tasks (all but the last) and over seeds; lower is better. "
    + " ".join(f"{TITLES[name]}: {said}." for name, said in MEASURES.items())
)
TEST_CONVENTION = (
    "Exact two-sided Wilcoxon signed-rank test over the old tasks (drift averaged over seeds), "
    "Bonferroni-adjusted over the four measures; in brackets, on how many old tasks drift is lower."
)


def drift_table(drift: Drift, against: str = "vanilla") -> str:
    """Mean drift of each method and, in brackets, its change relative to another method.

    Args:
      drift: what was measured.
      against: the method to compare with; without it in `drift`, nothing is in brackets.

    Returns:
      A Markdown table with one row per method; for the convention see :data:`CONVENTION`.
    """
    return markdown_rows(drift_rows(drift, against))


def drift_rows(drift: Drift, against: str = "vanilla") -> list[list[str]]:
    """The cells of :func:`drift_table`, the header first."""
    mean = drift.mean()
    changes = -seed_mean(drift.reduction(against), 1) if against in drift.methods else None
    rows = [["Method", *TITLES.values()]]
    for index, method in enumerate(drift.methods):
        cells = []
        for measure in range(len(MEASURES)):
            cell = _spread(mean[index, :, measure])
            if changes is not None and method != against and np.isfinite(changes[index, measure]):
                cell += f" ({100 * changes[index, measure]:+.0f} %)"
            cells.append(cell)
        rows.append([method, *cells])
    return rows


def drift_tests_table(drift: Drift, against: str = "vanilla", seed: int | None = None) -> str:
    """Adjusted p-values of the difference in drift between each method and another.

    Args:
      drift: what was measured.
      against: the method to compare with.
      seed: of the runs compared. Default: means over all seeds.

    Returns:
      A Markdown table with one row per other method; see :data:`TEST_CONVENTION`.
    """
    return markdown_rows(drift_tests_rows(drift, against, seed))


def drift_tests_rows(
    drift: Drift, against: str = "vanilla", seed: int | None = None
) -> list[list[str]]:
    """The cells of :func:`drift_tests_table`, the header first."""
    rows = [[f"Method against {against}", *TITLES.values()]]
    for method in drift.methods:
        if method != against:
            tests = drift.compare(method, against, seed)
            cells = [
                f"{p_value(bonferroni(test.p, len(tests)))} ({test.positive}/{len(drift.tasks)})"
                for test in tests
            ]
            rows.append([method, *cells])
    return rows


def p_value(p: float) -> str:
    """A p-value in two digits; in three or more near 0.05, so that its side can be seen.

    Example:
      >>> from hmcl_jax.report.drift import p_value
      >>> print(p_value(0.000244140625), p_value(0.0498), p_value(0.0512))
      0.00024 0.0498 0.0512
    """
    digits = 3 if 0.045 <= p <= 0.055 else 2
    while float(f"{p:.{digits}g}") == 0.05 != p and digits < 17:
        digits += 1
    return f"{p:.{digits}g}"


def cone_table(drift: Drift) -> str:
    """What became of the cones, mean over old tasks and seeds: percent, and excess in degrees.

    Args:
      drift: what was measured.

    Returns:
      A Markdown table with one row per method; for the columns see
      :data:`hmcl_jax.evaluation.drift.CONES`.
    """
    return markdown_rows(cone_rows(drift))


def cone_rows(drift: Drift) -> list[list[str]]:
    """The cells of :func:`cone_table`, the header first."""
    mean = seed_mean(drift.cones, (1, 2))
    rows = [["Method", *(name.replace("_", " ").capitalize() for name in CONES)]]
    for method, figures in zip(drift.methods, mean, strict=True):
        shares = [f"{100 * share:.1f} %" for share in figures[:4]]
        cells = [*shares, *(f"{np.rad2deg(angle):+.2f}°" for angle in figures[4:])]
        known = np.isfinite(figures)
        rows.append([method, *(c if k else "" for c, k in zip(cells, known, strict=True))])
    return rows


def norm_table(drift: Drift) -> str:
    """Median ratio of final norm to norm at the end of the task, by modality; mean over seeds.

    Args:
      drift: what was measured.

    Returns:
      A Markdown table with one row per method; in brackets the number of old tasks that have the
      modality whose own median is below 0.9 in the mean over seeds.
    """
    return markdown_rows(norm_rows(drift))


def norm_rows(drift: Drift) -> list[list[str]]:
    """The cells of :func:`norm_table`, the header first."""
    rows = [["Method", *drift.norms]]
    for index, method in enumerate(drift.methods):
        cells = []
        for norms in drift.norms.values():
            own = np.array([norms.task_contraction(task) for task in np.unique(norms.tasks)])
            below = int(np.sum(seed_mean(own[:, index], 1) < 0.9))
            cell = _spread(norms.contraction()[index])
            cells.append(f"{cell} ({below})" if cell else "")
        rows.append([method, *cells])
    return rows


def _spread(values: np.ndarray) -> str:
    count = int((~np.isnan(values)).sum())
    if not count:
        return ""
    mean = f"{seed_mean(values):.4f}"
    return f"{mean} ± {seed_std(values):.4f}" if count > 1 else mean
