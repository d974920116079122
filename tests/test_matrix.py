"""Measures of a score matrix against hand-computed examples, and which matrices are refused."""

import numpy as np
import pytest

from hmcl_jax import evaluation
from hmcl_jax.evaluation import (
    CONVENTIONS,
    backward_transfer,
    forgetting,
    immediate,
    is_complete,
    overall,
    relative_change,
)

NAN = np.nan
# Task 0 falls from 80 to 60, task 1 rises from 90 to 95, task 2 is last.
R = np.array([[80, NAN, NAN], [70, 90, NAN], [60, 95, 50]])
MEASURES = (overall, backward_transfer, forgetting, immediate)


def changed(t, i, value):
    return np.where((np.arange(3)[:, None] == t) & (np.arange(3) == i), value, R)


def test_measures_of_a_matrix_computed_by_hand():
    np.testing.assert_allclose(overall(R), (60 + 95 + 50) / 3)
    np.testing.assert_allclose(immediate(R), (80 + 90 + 50) / 3)
    np.testing.assert_allclose(forgetting(R), (20 - 5) / 2)
    np.testing.assert_allclose(backward_transfer(R), (-20 + 5 + 0) / 3)  # of all three tasks
    assert all(callable(getattr(evaluation, name)) for name in CONVENTIONS)


def test_measures_equal_loops_and_keep_leading_axes(rng):
    scores = np.where(np.tri(4, dtype=bool), rng.uniform(size=(2, 3, 4, 4)), NAN)
    for measure in MEASURES:
        assert measure(scores).shape == (2, 3)
    for place in np.ndindex(2, 3):
        m = scores[place]
        last = [m[3, i] for i in range(4)]
        lost = [max(m[t, i] for t in range(i, 3)) - m[3, i] for i in range(3)]
        np.testing.assert_allclose(overall(scores)[place], sum(last) / 4)
        np.testing.assert_allclose(forgetting(scores)[place], sum(lost) / 3)
        gains = [m[3, i] - m[i, i] for i in range(4)]
        np.testing.assert_allclose(backward_transfer(scores)[place], sum(gains) / 4)


def test_one_task_transfers_and_forgets_nothing():
    assert [float(measure([[0.7]])) for measure in MEASURES] == [0.7, 0, 0, 0.7]
    assert forgetting(np.ones((5, 1, 1), np.float32)).shape == (5,)


def test_a_matrix_is_complete_if_it_is_finite_where_seen_and_nan_elsewhere():
    assert is_complete(R)
    for t, i, value in ((2, 0, NAN), (1, 1, np.inf), (2, 2, -np.inf), (0, 2, 0.0), (0, 1, np.inf)):
        assert not is_complete(changed(t, i, value))
    np.testing.assert_array_equal(is_complete([R, changed(2, 2, NAN)]), [True, False])


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        (changed(2, 1, NAN), r"R\[2, 1\], the score on task 1 after task 2, .* finite, got nan"),
        (changed(1, 2, 0.0), r"R\[1, 2\].*must be NaN.*got 0\.0"),
        ([R, changed(1, 0, NAN)], r"R\[1, 1, 0\], the score on task 0 after task 1"),
        (np.ones(3), r"\(\.\.\., T, T\).*got shape \(3,\)"),
        (np.ones((0, 0)), r"got shape \(0, 0\)"),
        ([["0.5"]], "R must hold real numbers"),
    ],
)
def test_wrong_matrices_are_refused(wrong, message):
    with pytest.raises((TypeError, ValueError), match=message):
        overall(wrong)


def test_relative_change_is_in_percent_of_the_score_when_learned():
    nothing = np.array([[80, NAN, NAN], [70, 0, NAN], [60, 95, 50]])
    expected = [[0, NAN, NAN], [-12.5, 0, NAN], [-25, 500 / 90, 0]]
    np.testing.assert_allclose(relative_change(R), expected)
    np.testing.assert_allclose(
        relative_change([R, nothing])[1], [[0, NAN, NAN], [-12.5, NAN, NAN], [-25, NAN, 0]]
    )
