"""Means over the seeds that came to the end; a seed that was stopped is NaN."""

from typing import Any

import numpy as np
from numpy.typing import ArrayLike


def seed_mean(values: ArrayLike, axis: int | tuple[int, ...] = -1) -> Any:
    """Mean of what is not NaN, without a warning where nothing is left.

    Args:
      values: numbers with an axis of seeds.
      axis: of the seeds, and others that are averaged as well.

    Returns:
      The mean; NaN where all is NaN.

    Example:
      >>> import numpy as np
      >>> from hmcl_jax.evaluation.seeds import seed_mean
      >>> print(seed_mean([[1.0, np.nan, 3.0], [np.nan, np.nan, np.nan]]))
      [ 2. nan]
    """
    array = np.asarray(values, np.float64)
    known = ~np.isnan(array)
    if known.all():
        return array.mean(axis=axis) if array.size else np.float64(np.nan)
    with np.errstate(invalid="ignore"):
        return np.where(known, array, 0.0).sum(axis=axis) / known.sum(axis=axis)


def seed_std(values: ArrayLike, axis: int = -1) -> Any:
    """Sample standard deviation of what is not NaN; 0 for one number or none, which have no spread.

    Args:
      values: numbers with an axis of seeds.
      axis: of the seeds.

    Returns:
      The deviation.

    Example:
      >>> import numpy as np
      >>> from hmcl_jax.evaluation.seeds import seed_std
      >>> print(seed_std([1.0, np.nan, 3.0]).round(4), seed_std([1.0, np.nan]))
      1.4142 0.0
    """
    array = np.asarray(values, np.float64)
    count = (~np.isnan(array)).sum(axis=axis)
    gaps = array - np.expand_dims(seed_mean(array, axis), axis)
    squares = np.where(np.isnan(gaps), 0.0, gaps**2).sum(axis=axis)
    return np.sqrt(squares / np.maximum(count - 1, 1))
