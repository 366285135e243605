"""Scores of an image's patches as a map of the whole image."""

import numpy as np
from numpy.typing import NDArray

INTERPOLATIONS = ("bilinear", "nearest")

Area = tuple[float, float, float, float]
"""Top, left, bottom and right, as shares of an image's height and width."""


def resampled(
    values: NDArray[np.float64], size: tuple[int, int], area: Area, interpolation: str
) -> NDArray[np.float64]:
    """Return the map of an image, of which a grid of patches covers an area.

    Args:
        values: One number a patch, of shape (rows, columns); NaN where there is none.
        size: The height and width of the map.
        area: What the patches cover of the image.
        interpolation: "bilinear" between the middles of patches, or "nearest".

    Returns:
        float64 of shape `size`; NaN outside the area, and on patches without a number.

    Example:
        >>> resampled(np.array([[0.0, 1.0]]), (1, 4), (0.0, 0.0, 1.0, 1.0), "bilinear")
        array([[0.  , 0.25, 0.75, 1.  ]])
    """
    rows, row_of, rows_seen = _weights(size[0], values.shape[0], area[0], area[2])
    columns, column_of, columns_seen = _weights(size[1], values.shape[1], area[1], area[3])
    nearest: NDArray[np.float64] = values[row_of][:, column_of]
    if interpolation == "bilinear":
        known = np.isfinite(values)
        # Beside a patch without a score, its share goes to the others.
        shares = rows @ known @ columns.T
        sums = rows @ np.where(known, values, 0.0) @ columns.T
        smooth = np.divide(sums, shares, out=np.full(size, np.nan), where=shares > 0)
        nearest = np.where(np.isfinite(nearest), smooth, np.nan)
    nearest[~rows_seen] = np.nan
    nearest[:, ~columns_seen] = np.nan
    return nearest


def _weights(
    pixels: int, patches: int, start: float, end: float
) -> tuple[NDArray[np.float64], NDArray[np.int64], NDArray[np.bool_]]:
    """Return how the pixels of one axis depend on its patches.

    Args:
        pixels: How many pixels there are.
        patches: How many patches there are.
        start: Where the first patch begins, as a share of the axis.
        end: Where the last patch ends.

    Returns:
        The weights of the patches in each pixel, (pixels, patches), rows summing to 1; the patch
        that each pixel lies in; and whether it lies in one at all.
    """
    # Where the middle of a pixel is, counted in patches.
    place = ((np.arange(pixels) + 0.5) / pixels - start) / (end - start) * patches
    inside = (place >= 0) & (place < patches)
    nearest = np.clip(np.floor(place), 0, patches - 1).astype(np.int64)
    middle = np.clip(place - 0.5, 0, patches - 1)
    weights = np.maximum(0.0, 1.0 - np.abs(middle[:, None] - np.arange(patches)))
    return weights, nearest, inside
