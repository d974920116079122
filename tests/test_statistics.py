"""Paired tests against SciPy and against all signs, rank correlation, adjusted p-values."""

import numpy as np
import pytest
from scipy import stats

from hmcl_jax.evaluation import bonferroni, rank_correlation, wilcoxon
from hmcl_jax.evaluation.statistics import seed_mean, seed_std


@pytest.mark.parametrize(("n", "ties"), [(5, False), (16, False), (5, True), (12, True)])
def test_the_exact_p_value_counts_all_signs(rng, n, ties):
    x = rng.normal(size=n) + 0.5
    if ties:
        x = np.concatenate([[2, -2, 0], rng.integers(-3, 5, size=n - 3)]).astype(float)
    test = wilcoxon(x)
    x = x[x != 0]
    ranks = stats.rankdata(np.abs(x)).astype(np.float32)  # halves, so exact
    signs = (np.arange(2 ** len(x))[:, None] >> np.arange(len(x))) & 1
    smaller = min(ranks[x > 0].sum(), ranks[x < 0].sum())
    share = np.mean(signs.astype(np.float32) @ ranks <= smaller)
    assert test.statistic == smaller
    assert (test.pairs, test.positive) == (len(x), np.sum(x > 0))
    np.testing.assert_allclose(test.p, min(1, 2 * share), rtol=1e-12)


def test_fifteen_differences_of_one_sign_give_the_papers_values():
    test = wilcoxon(np.arange(1.0, 16))
    assert test == (0, 2 / 2**15, 15, 15)
    assert f"{test.p:.1e} {bonferroni(test.p, 4):.1e}" == "6.1e-05 2.4e-04"


def test_stopped_seeds_do_not_count():
    nan = np.nan
    np.testing.assert_array_equal(seed_mean([[1.0, nan, 3.0], [nan] * 3]), [2, nan])
    np.testing.assert_allclose(seed_std([[1.0, nan, 3.0], [1.0, nan, nan]]), [np.sqrt(2), 0])


def test_no_difference_is_no_evidence():
    assert wilcoxon([0.0, 0.0]) == wilcoxon([]) == (0, 1, 0, 0)
    assert wilcoxon([2.0]).p == wilcoxon([1, -1]).p == bonferroni(0.4, 4) == 1


def test_many_tied_differences_take_the_normal_approximation(rng):
    x = rng.integers(-9, 12, size=200)
    assert wilcoxon(x).p == stats.wilcoxon(x[x != 0], method="asymptotic").pvalue


@pytest.mark.parametrize("ties", [False, True])
def test_rank_correlation_is_the_correlation_of_the_ranks(rng, ties):
    x, y = rng.normal(size=(2, 6, 80))
    if ties:
        x, y = np.round(x), np.round(2 * y)
    correlation = rank_correlation(x, y)
    for row in range(6):
        ranks = stats.rankdata(x[row]), stats.rankdata(y[row])
        np.testing.assert_allclose(correlation[row], np.corrcoef(*ranks)[0, 1])
    np.testing.assert_allclose(rank_correlation(x, y[0])[3], rank_correlation(x[3], y[0]))


def test_rank_correlation_of_constants_and_wrong_input():
    assert np.isnan(rank_correlation([1.0, 1.0], [1.0, 2.0]))
    assert np.isnan(rank_correlation([1.0], [1.0]))
    assert rank_correlation([1.0, 2.0], [4.0, 3.0]) == pytest.approx(-1)
    with pytest.raises(ValueError, match="y must hold finite"):
        rank_correlation([1.0, 2.0], [1.0, np.nan])
    with pytest.raises(ValueError, match="differences must have shape"):
        wilcoxon([[1.0], [2.0]])
