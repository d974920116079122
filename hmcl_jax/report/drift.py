"""Drift of old tasks as Markdown tables."""

import numpy as np

from hmcl_jax.evaluation import Drift, bonferroni
from hmcl_jax.evaluation.drift import CONES, MEASURES
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
    changes = -drift.reduction(against).mean(axis=1) if against in drift.methods else None
    rows = [["Method", *TITLES.values()]]
    for index, method in enumerate(drift.methods):
        cells = []
        for measure in range(len(MEASURES)):
            cell = _spread(mean[index, :, measure])
            if changes is not None and method != against:
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
                f"{bonferroni(test.p, len(tests)):.2g} ({test.positive}/{len(drift.tasks)})"
                for test in tests
            ]
            rows.append([method, *cells])
    return rows


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
    mean = drift.cones.mean(axis=(1, 2))
    rows = [["Method", *(name.replace("_", " ").capitalize() for name in CONES)]]
    for method, figures in zip(drift.methods, mean, strict=True):
        shares = [f"{100 * share:.1f} %" for share in figures[:4]]
        rows.append([method, *shares, *(f"{np.rad2deg(angle):+.2f}°" for angle in figures[4:])])
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
            below = int(np.sum(own[:, index].mean(axis=1) < 0.9))
            cells.append(f"{_spread(norms.contraction()[index])} ({below})")
        rows.append([method, *cells])
    return rows


def _spread(values: np.ndarray) -> str:
    if len(values) == 1:
        return f"{values[0]:.4f}"
    return f"{values.mean():.4f} ± {values.std(ddof=1):.4f}"
