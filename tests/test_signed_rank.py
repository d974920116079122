"""The exact signed-rank test against SciPy and against all signs."""

import numpy as np
import pytest
from scipy import stats

from hmcl_jax.evaluation import bonferroni, wilcoxon


@pytest.mark.parametrize("n", range(5, 21))
def test_without_ties_it_is_scipys(rng, n):
    for shift in (0.0, 0.5, 3.0):
        x = rng.normal(size=n) + shift
        expected = stats.wilcoxon(x, method="exact")
        found = wilcoxon(x)
        np.testing.assert_allclose(found.p, expected.pvalue, rtol=1e-12)
        assert found.statistic == expected.statistic
        assert (found.pairs, found.positive) == (n, np.sum(x > 0))


def tied(rng, n):
    return np.concatenate([[2, -2, 0], rng.integers(-3, 5, size=n - 3)]).astype(float)


@pytest.mark.parametrize("n", range(5, 11))
def test_with_ties_and_zeros_it_is_scipys(rng, n):
    """SciPy lists all signs if there are ties; its table is for ranks without."""
    x = tied(rng, n)
    expected = stats.wilcoxon(x, method=stats.PermutationMethod(n_resamples=np.inf))
    found = wilcoxon(x)
    assert found.statistic == expected.statistic
    assert found.pairs == np.count_nonzero(x) < n
    np.testing.assert_allclose(found.p, expected.pvalue, rtol=1e-12)


@pytest.mark.parametrize("n", range(5, 21))
def test_with_ties_and_zeros_it_counts_all_signs(rng, n):
    """What SciPy would do, had it the patience."""
    for _ in range(3):
        x = tied(rng, n)
        x = x[x != 0]
        ranks = stats.rankdata(np.abs(x)).astype(np.float32)  # halves, so exact
        signs = (np.arange(2 ** len(x))[:, None] >> np.arange(len(x))) & 1
        smaller = min(ranks[x > 0].sum(), ranks[x < 0].sum())
        assert wilcoxon(x).statistic == smaller
        share = np.mean(signs.astype(np.float32) @ ranks <= smaller)
        np.testing.assert_allclose(wilcoxon(x).p, min(1, 2 * share), rtol=1e-12)


def test_fifteen_differences_of_one_sign_give_the_papers_values():
    found = wilcoxon(np.arange(1.0, 16))
    assert found == (0, 2 / 2**15, 15, 15)
    assert f"{found.p:.1e} {bonferroni(found.p, 4):.1e}" == "6.1e-05 2.4e-04"


def test_only_order_and_signs_count(rng):
    x = rng.normal(size=12) + 0.4
    for other in (-x, x**3, np.concatenate([[0, 0], x]), x[::-1], x.astype(np.float32)):
        assert wilcoxon(other).p == wilcoxon(x).p
    assert wilcoxon(-x).positive == 12 - wilcoxon(x).positive


def test_no_difference_is_no_evidence():
    assert wilcoxon([0.0, 0.0]) == (0, 1, 0, 0)
    assert wilcoxon([]) == (0, 1, 0, 0)
    assert wilcoxon([2.0]).p == 1
    assert wilcoxon([1, -1]).p == 1
    assert bonferroni(0.4, 4) == 1


def test_a_thousand_differences_are_no_trouble(rng):
    x = rng.normal(size=1000) + 0.05
    expected = stats.wilcoxon(x, method="asymptotic").pvalue
    np.testing.assert_allclose(wilcoxon(x).p, expected, rtol=0.02)


def test_what_is_no_list_of_numbers_is_refused():
    with pytest.raises(ValueError, match=r"got 1 NaN or infinite value\(s\) in shape \(2,\)"):
        wilcoxon([1.0, np.nan])
    with pytest.raises(ValueError, match=r"of shape \(n,\), got .* in shape \(2, 1\)"):
        wilcoxon([[1.0], [2.0]])
    with pytest.raises(TypeError, match="must hold real numbers"):
        wilcoxon(["a"])
