"""Statistics over seeds and tasks: means without stopped seeds, paired tests, rank correlation."""

import warnings
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray

PERMUTED = 16  # up to this many tied differences, all signs are listed


def seed_mean(values: ArrayLike, axis: int | tuple[int, ...] = -1) -> Any:
    """Mean over seeds without stopped ones (NaN); NaN, without a warning, where all are stopped."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", RuntimeWarning)
        return np.nanmean(np.asarray(values, np.float64), axis=axis)


def seed_std(values: ArrayLike, axis: int = -1) -> Any:
    """Sample standard deviation over seeds without stopped ones; 0 if fewer than two are left."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", RuntimeWarning)
        return np.nan_to_num(np.nanstd(np.asarray(values, np.float64), axis=axis, ddof=1))


class Wilcoxon(NamedTuple):
    """Outcome of a signed-rank test."""

    statistic: float  # the smaller of the sums of ranks of positive and of negative differences
    p: float  # two-sided
    pairs: int  # number of differences that are not 0
    positive: int  # how many of them are above 0


def wilcoxon(differences: ArrayLike) -> Wilcoxon:
    """Exact two-sided signed-rank test of whether paired differences are symmetric about 0.

    This is :func:`scipy.stats.wilcoxon` without the differences that are 0. With more than 16
    differences of which some have the same size, the p-value is that of the normal approximation.

    Args:
      differences: real numbers, shape ``(n,)``.

    Returns:
      A :class:`Wilcoxon`; p is 1 if all differences are 0.

    Example:
      >>> from hmcl_jax.evaluation import wilcoxon
      >>> wilcoxon([0.5, 1.5, 2.0, 0.25, -0.1, 0.75])
      Wilcoxon(statistic=1.0, p=0.0625, pairs=6, positive=5)
    """
    from scipy import stats  # slow to import

    values = _finite("differences", differences)
    if values.ndim != 1:
        raise ValueError(f"differences must have shape (n,), got shape {values.shape}.")
    values = values[values != 0].astype(np.float64)
    if not values.size:
        return Wilcoxon(0.0, 1.0, 0, 0)
    method: Any = "exact"
    # SciPy's exact distribution assumes that no two sizes are equal; permutations do not.
    if len(np.unique(np.abs(values))) < len(values):
        every_sign = stats.PermutationMethod(n_resamples=np.inf)
        method = every_sign if len(values) <= PERMUTED else "asymptotic"
    test = stats.wilcoxon(values, method=method)
    return Wilcoxon(float(test.statistic), float(test.pvalue), len(values), int((values > 0).sum()))


def bonferroni(p: float, tests: int) -> float:
    """The p-value `p` of one of several tests, adjusted so that all of them hold at once.

    Example:
      >>> from hmcl_jax.evaluation import bonferroni
      >>> print(bonferroni(2**-14, 4))  # four measures, 15 pairs of one sign
      0.000244140625
    """
    return min(1.0, tests * p)


def rank_correlation(x: ArrayLike, y: ArrayLike) -> np.float64 | NDArray[np.float64]:
    """Spearman's rank correlation along the last axis, by :func:`scipy.stats.spearmanr`.

    Args:
      x: finite numbers, shape ``(..., n)``.
      y: likewise; leading axes broadcast.

    Returns:
      Shape ``(...)``, in [-1, 1]; NaN where `x` or `y` is constant.

    Example:
      >>> from hmcl_jax.evaluation import rank_correlation
      >>> print(rank_correlation([0.1, 0.2, 0.9, 0.8], [1, 1, 2, 2]).round(4))
      0.8944
    """
    from scipy.stats import spearmanr  # slow to import

    def correlation(a: np.ndarray, b: np.ndarray) -> float:
        constant = np.ptp(a) == 0 or np.ptp(b) == 0  # SciPy warns of these
        return np.nan if constant else float(spearmanr(a, b).statistic)

    rows = np.vectorize(correlation, otypes=[float], signature="(n),(n)->()")
    return rows(_finite("x", x), _finite("y", y))[()]


def _finite(name: str, values: ArrayLike) -> np.ndarray:
    array = np.asarray(values)
    if array.dtype.kind not in "fiu" or not np.isfinite(array).all():
        raise ValueError(
            f"{name} must hold finite numbers, got {array.dtype} of shape {array.shape}; leave out "
            "NaN and infinity."
        )
    return array
