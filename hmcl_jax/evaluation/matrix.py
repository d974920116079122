r"""Measures of a stream from its matrix of scores: Overall, backward transfer, forgetting.

:math:`R_{ti}` is the score on task i after training on task t, for T tasks counted from 0. A matrix
is complete if it is finite on and below the diagonal and NaN above it, where task i has not been
seen. Publications differ in how they average, so the conventions are written out in
:data:`CONVENTIONS`, to be printed beside the numbers. Scores keep their unit: shares or percent.

Functions take ``(..., T, T)``, for example one matrix per seed, and compute in float64.
"""

from typing import NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray

Score = np.float64 | NDArray[np.float64]

CONVENTIONS = {
    "overall": "mean of the scores on all T tasks after the last task",
    "backward_transfer": "final minus immediate score, mean over all T tasks, the last one's 0 too",
    "forgetting": "best score before the last task minus final score, mean over the first T - 1",
    "immediate": "score on each task right after training on it, mean over all T tasks",
}


def _square(name: str, R: ArrayLike) -> NDArray[np.float64]:
    scores = np.asarray(R)
    if scores.dtype.kind not in "fiu":
        raise TypeError(f"{name} must hold real numbers, got dtype {scores.dtype}.")
    if scores.ndim < 2 or scores.shape[-1] != scores.shape[-2] or scores.shape[-1] == 0:
        raise ValueError(
            f"{name} must have shape (..., T, T) with T >= 1, got shape {scores.shape}; "
            "row t holds the scores after task t, column i those on task i."
        )
    return scores.astype(np.float64)


def _wrong(scores: NDArray[np.float64]) -> NDArray[np.bool_]:
    """Entries that are not finite although seen, or not NaN although not seen."""
    seen = np.tri(scores.shape[-1], dtype=bool)
    return np.where(seen, ~np.isfinite(scores), ~np.isnan(scores))


def _complete(name: str, R: ArrayLike) -> NDArray[np.float64]:
    """The matrices as float64; an incomplete one is refused with its first wrong entry."""
    scores = _square(name, R)
    wrong = _wrong(scores)
    if wrong.any():
        index = tuple(int(i) for i in np.argwhere(wrong)[0])
        t, i = index[-2:]
        rule = (
            f"must be finite, got {scores[index]}; finish the run or leave this matrix out."
            if i <= t
            else f"must be NaN because task {i} comes later, got {scores[index]}; use "
            f"np.where(np.tri({scores.shape[-1]}), R, np.nan)."
        )
        at = f"{name}[{', '.join(map(str, index))}]"
        raise ValueError(f"{at}, the score on task {i} after task {t}, {rule}")
    return scores


def _diagonal(scores: NDArray[np.float64]) -> NDArray[np.float64]:
    return np.diagonal(scores, axis1=-2, axis2=-1)


def is_complete(R: ArrayLike) -> np.bool_ | NDArray[np.bool_]:
    """Whether every score on and below the diagonal is finite, and all above it are NaN.

    Args:
      R: scores, shape ``(..., T, T)``.

    Returns:
      Booleans of shape ``(...)``.

    Example:
      >>> import numpy as np
      >>> from hmcl_jax.evaluation import is_complete
      >>> done = [[0.9, np.nan], [0.7, 0.8]]
      >>> stopped = [[0.9, np.nan], [np.nan, np.nan]]
      >>> print(is_complete([done, stopped]))
      [ True False]
    """
    return ~_wrong(_square("R", R)).any(axis=(-2, -1))


def overall(R: ArrayLike) -> Score:
    r"""Mean of the final scores, :math:`\frac1T \sum_i R_{T-1,i}`.

    Args:
      R: complete scores, shape ``(..., T, T)``.

    Returns:
      Shape ``(...)``.

    Example:
      >>> import numpy as np
      >>> from hmcl_jax.evaluation import overall
      >>> print(overall([[0.75, np.nan], [0.5, 1.0]]))
      0.75
    """
    return _complete("R", R)[..., -1, :].mean(axis=-1)


def immediate(R: ArrayLike) -> Score:
    r"""Mean of the scores right after each task, :math:`\frac1T \sum_i R_{ii}`.

    Args:
      R: complete scores, shape ``(..., T, T)``.

    Returns:
      Shape ``(...)``.

    Example:
      >>> import numpy as np
      >>> from hmcl_jax.evaluation import immediate
      >>> print(immediate([[0.75, np.nan], [0.5, 1.0]]))
      0.875
    """
    return _diagonal(_complete("R", R)).mean(axis=-1)


def backward_transfer(R: ArrayLike) -> Score:
    r"""Mean of final minus immediate score, :math:`\frac1T \sum_{i<T} (R_{T-1,i} - R_{ii})`.

    The last task contributes 0. This is the convention of the paper's tables and of GEM; where
    others divide by T - 1, multiply by ``T / (T - 1)``. Negative values mean forgetting.

    Args:
      R: complete scores, shape ``(..., T, T)``.

    Returns:
      Shape ``(...)``.

    Example:
      >>> import numpy as np
      >>> from hmcl_jax.evaluation import backward_transfer
      >>> print(backward_transfer([[0.75, np.nan], [0.5, 1.0]]))
      -0.125
    """
    scores = _complete("R", R)
    return (scores[..., -1, :] - _diagonal(scores)).mean(axis=-1)


def forgetting(R: ArrayLike) -> Score:
    r"""Mean loss since the best score before the last task.

    .. math::
      \frac1{T-1} \sum_{i=0}^{T-2} \Bigl(\max_{i \le t \le T-2} R_{ti} - R_{T-1,i}\Bigr)

    Positive values mean forgetting. Unlike in :func:`backward_transfer`, the last task is left out.

    Args:
      R: complete scores, shape ``(..., T, T)``.

    Returns:
      Shape ``(...)``; 0 if there is only one task.

    Example:
      >>> import numpy as np
      >>> from hmcl_jax.evaluation import forgetting
      >>> print(forgetting([[0.75, np.nan], [0.5, 1.0]]))
      0.25
    """
    scores = _complete("R", R)
    if scores.shape[-1] == 1:
        return np.zeros(scores.shape[:-2])[()]
    earlier = scores[..., :-1, :-1]  # without the last task's row and column
    best = np.where(np.tri(earlier.shape[-1], dtype=bool), earlier, -np.inf).max(axis=-2)
    return (best - scores[..., -1, :-1]).mean(axis=-1)


def relative_change(R: ArrayLike) -> NDArray[np.float64]:
    r"""Change of each task's score since it was learned, in percent of it.

    :math:`100\,(R_{ti} - R_{ii}) / R_{ii}`, as in the paper's stage-wise figure
    (fig:stage_task_relative_change).

    Args:
      R: complete scores, shape ``(..., T, T)``.

    Returns:
      Shape ``(..., T, T)``: row t, column i, 0 on the diagonal, NaN above it, and NaN throughout
      for a task whose score was 0 when it was learned.

    Example:
      >>> import numpy as np
      >>> from hmcl_jax.evaluation import relative_change
      >>> print(relative_change([[0.75, np.nan], [0.5, 1.0]]).round(1))
      [[  0.   nan]
       [-33.3   0. ]]
    """
    scores = _complete("R", R)
    learned = _diagonal(scores)[..., None, :]
    base = np.where(learned != 0, learned, np.nan)
    return 100 * (scores - base) / base


class Spread(NamedTuple):
    """A measure over seeds.

    Attributes:
      mean: over the seeds.
      std: sample standard deviation over the seeds (ddof = 1); None for a single seed, which has
        no spread.
    """

    mean: float
    std: float | None


class Summary(NamedTuple):
    """The measures of :data:`CONVENTIONS` over seeds, and the number of seeds."""

    overall: Spread
    backward_transfer: Spread
    forgetting: Spread
    immediate: Spread
    seeds: int


def summary(R_per_seed: ArrayLike) -> Summary:
    r"""Mean and sample standard deviation of every measure over seeds.

    With S seeds the deviation is :math:`\sqrt{\sum_s (x_s - \bar x)^2 / (S - 1)}`.

    Args:
      R_per_seed: complete scores, shape ``(S, T, T)``.

    Returns:
      A :class:`Summary`.

    Example:
      >>> import numpy as np
      >>> from hmcl_jax.evaluation import summary
      >>> first, second = [[0.75, np.nan], [0.5, 1.0]], [[1.0, np.nan], [0.5, 0.5]]
      >>> both = summary([first, second])
      >>> print(both.overall.mean, round(both.overall.std, 4), both.seeds)
      0.625 0.1768 2
      >>> print(summary([first]).overall)
      Spread(mean=0.75, std=None)
    """
    scores = _complete("R_per_seed", R_per_seed)
    if scores.ndim != 3 or scores.shape[0] == 0:
        raise ValueError(
            f"R_per_seed must have shape (seeds, T, T), got shape {scores.shape}; "
            "use R[None] for a single seed."
        )
    return Summary(
        overall=_spread(overall(scores)),
        backward_transfer=_spread(backward_transfer(scores)),
        forgetting=_spread(forgetting(scores)),
        immediate=_spread(immediate(scores)),
        seeds=len(scores),
    )


def _spread(values: Score) -> Spread:
    std = float(np.std(values, ddof=1)) if np.size(values) > 1 else None
    return Spread(float(np.mean(values)), std)
