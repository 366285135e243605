"""What the experiments share: the summary of a measurement, and a result to print and save."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from attnflow.evaluate.significance import bootstrap_interval
from attnflow.formats import without_nan

if TYPE_CHECKING:
    from matplotlib.figure import Figure


class Result(NamedTuple):
    """The result of an experiment, to be printed or saved.

    Attributes:
        data: The numbers, for JSON. NaN becomes null.
        text: Returns the text to print; None if there is nothing to print.
        figure: Returns the figure; None if there is none.
        texts: By file ending, functions that return the result in further formats.
    """

    data: Mapping[str, Any]
    text: Callable[[], str] | None = None
    figure: Callable[[], Figure] | None = None
    texts: Mapping[str, Callable[[], str]] = {}

    def contents(self, endings: list[str]) -> list[str | bytes]:
        """Return the contents of files with these endings, such as ".json" or ".png".

        Raises:
            MissingExtraError: If a figure is asked for and matplotlib is not installed.
        """
        texts = {".json": lambda: as_json(self.data) + "\n", **self.texts}
        drawn: Any = None
        found: list[str | bytes] = []
        for ending in endings:
            if ending in texts:
                found.append(texts[ending]())
                continue
            from attnflow.view import theme

            assert self.figure is not None
            drawn = drawn or theme.settle(self.figure())
            found.append(theme.content(drawn, ending, dpi=300))
        return found


def as_json(value: Any) -> str:
    """Return a value as JSON, with null for numbers that are not defined."""
    return json.dumps(without_nan(value), ensure_ascii=False, allow_nan=False, indent=1)


def summarize(values: NDArray[np.float64]) -> NDArray[Any]:
    """Summarize a measurement over texts.

    Args:
        values: The values, of shape (texts, ...). NaN is left out.

    Returns:
        An array of the shape of one text's values. Each item is a dictionary of the "mean", the
        "std" and the "ci", a bootstrap interval of 95 %.
    """
    means, stds = np.nanmean(values, axis=0), np.nanstd(values, axis=0)
    low, high = bootstrap_interval(values)
    cells = np.empty(means.shape, dtype=object)
    for place, mean in np.ndenumerate(means):
        ci = [float(low[place]), float(high[place])]
        cells[place] = {"mean": float(mean), "std": float(stds[place]), "ci": ci}
    return cells


def spread(mean: float, std: float) -> str:
    """Return a mean and its standard deviation for a table.

    Example:
        >>> spread(0.125, 0.5)
        '0.12 ± 0.50'
    """
    if mean != mean:
        return "\u2013"
    return digits(mean) + ("" if std != std else f" \u00b1 {digits(std)}")


def digits(number: float) -> str:
    """Return a number with two decimals; zero has no sign."""
    return f"{round(number, 2) + 0.0:.2f}"
