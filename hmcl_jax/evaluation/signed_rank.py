"""The exact Wilcoxon signed-rank test, for a handful of paired differences."""

from typing import NamedTuple

import numpy as np
from numpy.typing import ArrayLike


class Wilcoxon(NamedTuple):
    """Outcome of a test.

    Attributes:
      statistic: the smaller of the two sums of ranks, of positive and of negative differences.
      p: probability, if signs were tossed with a fair coin, of a statistic at most as large.
      pairs: number of differences that are not 0.
      positive: how many of them are above 0.
    """

    statistic: float
    p: float
    pairs: int
    positive: int


def wilcoxon(differences: ArrayLike) -> Wilcoxon:
    r"""Exact two-sided test of whether paired differences are symmetric about 0.

    Differences that are 0 are left out, as Wilcoxon did (SciPy's ``zero_method="wilcox"``); others
    of the same size share the mean of their ranks. The p-value is that of all :math:`2^n` ways to
    give signs to the ranks at hand, ties included, found by adding one rank after the other to
    the distribution of their sum, not by listing the ways and without a normal approximation. With
    n differences it is at least :math:`2^{1-n}`.

    SciPy's ``method="exact"`` assumes that no two sizes are equal and gives other p-values if some
    are; its permutation method is exact, but lists all signs, which takes seconds from n = 16.

    Args:
      differences: real numbers, shape ``(n,)``.

    Returns:
      A :class:`Wilcoxon`; without differences other than 0, p is 1.

    Example:
      >>> from hmcl_jax.evaluation import wilcoxon
      >>> wilcoxon([0.5, 1.5, 2.0, 0.25, -0.1, 0.75])
      Wilcoxon(statistic=1.0, p=0.0625, pairs=6, positive=5)
    """
    values = np.asarray(differences)
    if values.dtype.kind not in "fiu":
        raise TypeError(f"differences must hold real numbers, got dtype {values.dtype}.")
    if values.ndim != 1 or not np.isfinite(values).all():
        raise ValueError(
            "differences must be finite numbers of shape (n,), got "
            f"{np.sum(~np.isfinite(values))} NaN or infinite value(s) in shape {values.shape}."
        )
    values = values[values != 0].astype(np.float64)
    _, place, ties = np.unique(np.abs(values), return_inverse=True, return_counts=True)
    # Twice the mean rank of each group of ties is whole: its first rank plus its last.
    doubled = (2 * np.cumsum(ties) - ties + 1)[place]
    above = int(doubled[values > 0].sum())
    smaller = min(above, int(doubled.sum()) - above)
    chance = np.zeros(int(doubled.sum()) + 1)
    chance[0] = 1.0
    for rank in doubled:
        chance[rank:] = (chance[rank:] + chance[:-rank]) / 2
        chance[:rank] /= 2
    p = min(1.0, 2 * float(chance[: smaller + 1].sum()))
    return Wilcoxon(smaller / 2, p, len(values), int(np.sum(values > 0)))


def bonferroni(p: float, tests: int) -> float:
    """The p-value of one of several tests, so that all of them hold at once.

    Args:
      p: of the test alone.
      tests: how many there are.

    Returns:
      ``min(1, tests * p)``.

    Example:
      >>> from hmcl_jax.evaluation import bonferroni
      >>> print(bonferroni(2**-14, 4))                 # four measures, each of 15 pairs alike
      0.000244140625
    """
    return min(1.0, tests * p)
