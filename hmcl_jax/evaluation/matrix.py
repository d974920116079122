r"""Measures of a stream from its matrix of scores: Overall, backward transfer, forgetting.

:math:`R_{ti}` is the score on task i after training on task t, for T tasks counted from 0. A matrix
is complete if it is finite on and below the diagonal and NaN above it, where task i has not been
seen. Publications differ in how they average, so the conventions are written out in
:data:`CONVENTIONS`, to be printed beside the numbers. Scores keep their unit: shares or percent.

Functions take ``(..., T, T)``, for example one matrix per seed, and compute in float64.
"""

import numpy as np
from numpy.typing import ArrayLike, NDArray

Score = np.float64 | NDArray[np.float64]

CONVENTIONS = {
    "overall": "mean of the scores on all T tasks after the last task",
    "backward_transfer": "final minus immediate score, mean over all T tasks, the last one's 0 too",
    "forgetting": "best score before the last task minus final score, mean over the first T - 1",
    "immediate": "score on each task right after training on it, mean over all T tasks",
}


def _square(R: ArrayLike) -> tuple[NDArray[np.float64], NDArray[np.bool_]]:
    """The matrices, and which entries are not finite although seen, or not NaN although unseen."""
    scores = np.asarray(R)
    if scores.dtype.kind not in "fiu":
        raise TypeError(f"R must hold real numbers, got dtype {scores.dtype}.")
    if scores.ndim < 2 or scores.shape[-1] != scores.shape[-2] or scores.shape[-1] == 0:
        raise ValueError(
            f"R must have shape (..., T, T) with T >= 1, got shape {scores.shape}; row t holds the "
            "scores after task t, column i those on task i."
        )
    seen = np.tri(scores.shape[-1], dtype=bool)
    return scores.astype(np.float64), np.where(seen, ~np.isfinite(scores), ~np.isnan(scores))


def _complete(R: ArrayLike) -> NDArray[np.float64]:
    scores, wrong = _square(R)
    if wrong.any():
        index = tuple(int(i) for i in np.argwhere(wrong)[0])
        t, i = index[-2:]
        remedy = "finish the run" if i <= t else "use np.where(np.tri(T), R, np.nan)"
        raise ValueError(
            f"R{list(index)}, the score on task {i} after task {t}, must be "
            f"{'finite' if i <= t else 'NaN'}, got {scores[index]}; {remedy}."
        )
    return scores


def is_complete(R: ArrayLike) -> np.bool_ | NDArray[np.bool_]:
    """Whether every score on and below the diagonal is finite, and all above it are NaN.

    Args:
      R: scores, shape ``(..., T, T)``.

    Returns:
      Booleans of shape ``(...)``.

    Example:
      >>> import numpy as np
      >>> from hmcl_jax.evaluation import is_complete
      >>> stopped = [[0.9, np.nan], [np.nan, np.nan]]
      >>> print(is_complete([[[0.9, np.nan], [0.7, 0.8]], stopped]))
      [ True False]
    """
    _, wrong = _square(R)
    return ~wrong.any(axis=(-2, -1))


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
    return _complete(R)[..., -1, :].mean(axis=-1)


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
    return np.diagonal(_complete(R), axis1=-2, axis2=-1).mean(axis=-1)


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
    scores = _complete(R)
    learned = np.diagonal(scores, axis1=-2, axis2=-1)
    return (scores[..., -1, :] - learned).mean(axis=-1)


def forgetting(R: ArrayLike) -> Score:
    r"""Mean loss since the best score before the last task; positive values mean forgetting.

    .. math::
      \frac1{T-1} \sum_{i=0}^{T-2} \Bigl(\max_{i \le t \le T-2} R_{ti} - R_{T-1,i}\Bigr)

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
    scores = _complete(R)
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
    scores = _complete(R)
    learned = np.diagonal(scores, axis1=-2, axis2=-1)[..., None, :]
    base = np.where(learned != 0, learned, np.nan)
    return 100 * (scores - base) / base
