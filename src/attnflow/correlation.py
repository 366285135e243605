"""Spearman's rank correlation, with ties."""

from typing import Any

import numpy as np
from numpy.typing import NDArray


def ranks(values: Any) -> NDArray[np.float64]:
    """Rank numbers from 1; equal numbers get the mean of their ranks.

    Args:
        values: Numbers of shape (..., n), without NaN. Each row is ranked separately.

    Returns:
        The ranks, of the same shape.

    Example:
        >>> ranks([0.5, 0.1, 0.5, 0.9])
        array([2.5, 1. , 2.5, 4. ])
    """
    numbers = np.asarray(values, dtype=np.float64)
    result = np.empty(numbers.shape)
    if numbers.size == 0:
        return result
    order = np.argsort(numbers, axis=-1, kind="stable")
    ordered = np.take_along_axis(numbers, order, axis=-1)
    places = np.arange(numbers.shape[-1])
    differs = ordered[..., 1:] != ordered[..., :-1]
    edge = np.ones((*numbers.shape[:-1], 1), dtype=bool)
    # The start and the end of the run of equal numbers at each place.
    first = np.maximum.accumulate(np.where(np.concatenate([edge, differs], -1), places, 0), -1)
    ends = np.where(np.concatenate([differs, edge], -1), places, len(places))
    last = np.minimum.accumulate(ends[..., ::-1], -1)[..., ::-1]
    np.put_along_axis(result, order, (first + last) / 2 + 1, axis=-1)
    return result


def spearman(a: Any, b: Any) -> NDArray[np.float64]:
    """Return Spearman's rank correlation of rows.

    It is computed as Pearson's correlation of the ranks, which is valid with ties. The short
    formula with squared differences of ranks is not.

    Args:
        a: Numbers of shape (..., n).
        b: Numbers of a shape that broadcasts with it, such as (n,).

    Returns:
        The correlations, of shape (...), from -1 to 1. NaN where there are fewer than two numbers,
        where all numbers of a row are equal, and where one of them is NaN.

    Example:
        >>> spearman([[1.0, 2.0, 3.0], [9.0, 5.0, 2.0], [4.0, 4.0, 4.0]], [0.1, 0.2, 0.7])
        array([ 1., -1., nan])
    """
    x, y = ranks(a), ranks(b)
    if x.shape[-1] < 2:
        return np.full(np.broadcast_shapes(x.shape[:-1], y.shape[:-1]), np.nan)
    x = x - x.mean(axis=-1, keepdims=True)
    y = y - y.mean(axis=-1, keepdims=True)
    norm = np.sqrt((x * x).sum(axis=-1) * (y * y).sum(axis=-1))
    unknown = np.isnan(a).any(axis=-1) | np.isnan(b).any(axis=-1) | (norm == 0)
    product = (x * y).sum(axis=-1) / np.where(norm == 0, 1.0, norm)
    # Rounding can push a perfect correlation slightly above 1.
    return np.where(unknown, np.nan, np.clip(product, -1.0, 1.0))
