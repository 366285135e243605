"""What the experiments share: the methods, the summary of a measurement, and a printable result."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from attnflow.evaluate.significance import bootstrap_interval
from attnflow.formats import without_nan

if TYPE_CHECKING:
    from matplotlib.figure import Figure

    from attnflow.view.tables import Report

__all__ = ["METHODS", "Result", "as_json", "digits", "spread", "summarize"]

METHODS: Final = ("raw", "rollout", "flow")
"""The methods that the paper compares."""


class Result(NamedTuple):
    """What an experiment found, ready to be printed or saved.

    Attributes:
        data: The numbers, as JSON can hold them; NaN is allowed and becomes null.
        report: Returns the tables to print; None if there is nothing to print.
        figure: Returns the figure; None if there is none.
        texts: Returns further formats of the result, by file ending.
    """

    data: Mapping[str, Any]
    report: Callable[[], Report] | None = None
    figure: Callable[[], Figure] | None = None
    texts: Mapping[str, Callable[[], str]] = {}

    def contents(self, endings: list[str]) -> list[str | bytes]:
        """Return the content of files of these endings, such as ".json" or ".png".

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


def summarize(values: NDArray[np.float64], *, samples: int, seed: int) -> Any:
    """Summarize a measurement over texts.

    Args:
        values: The values, of shape (texts, ...). NaN is left out.
        samples: How many bootstrap samples to draw for the confidence intervals.
        seed: The seed of the samples.

    Returns:
        Nested lists of the shape of one text's values, with a "mean", a "std" and a "ci" in each
        place.
    """
    means, stds = np.nanmean(values, axis=0), np.nanstd(values, axis=0)
    ends = bootstrap_interval(values, samples=samples, seed=seed)
    cells = np.empty(means.shape, dtype=object)
    for place in np.ndindex(means.shape):
        cells[place] = {
            "mean": float(means[place]),
            "std": float(stds[place]),
            "ci": [float(end[place]) for end in ends],
        }
    return cells.tolist()


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
