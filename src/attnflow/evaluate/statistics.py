"""Statistics of the scores of a whole data set."""

from __future__ import annotations

import itertools
import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any, Final, NamedTuple, TextIO

import numpy as np
from numpy.typing import NDArray

from attnflow import formats
from attnflow.evaluate.evaluation import Skipped, read_only
from attnflow.evaluate.significance import Differences, Means, holm

if TYPE_CHECKING:
    from matplotlib.figure import Figure


FORMAT: Final = "attnflow.statistics"
VERSION: Final = 1

Measure = Callable[[NDArray[np.float64], Mapping[str, Any]], Any]


def _entropy(shares: NDArray[np.float64]) -> float:
    return abs(float((shares * np.log2(np.where(shares > 0, shares, 1.0))).sum()))


MEASURES: Final[dict[str, Measure]] = {
    # In bits.
    "entropy": lambda shares, row: _entropy(shares),
    # From 0 to 1: the entropy divided by its maximum.
    "evenness": lambda shares, row: (
        _entropy(shares) / np.log2(len(shares)) if len(shares) > 1 else None
    ),
    "top_share": lambda shares, row: shares.max(),
    "special_share": lambda shares, row: (
        None if row["special"] is None else (shares * row["special"]).sum()
    ),
    "saturation": lambda shares, row: row["saturation"],
}
"""What is measured of the scores of a text, by name.

The arguments are the scores divided by their sum, and the stored row; its "special" is None if
special tokens were left out. None means that the measure is not defined.
"""


class TokenMean(NamedTuple):
    """The mean score of a token.

    Attributes:
        token: The token, or word.
        mean: The mean of its scores.
        times: How often it occurs.
    """

    token: str
    mean: float
    times: int


@dataclass(frozen=True, eq=False)
class Statistics:
    """Statistics of the scores that `attnflow.run` has stored.

    `attnflow.evaluate.evaluate_stored` makes it. Only a few numbers of every text are kept.

    Args:
        data: The folder.
        model: The name of the model that computed the scores.
        task: The model's task.
        fingerprint: The fingerprint of its weights.
        options: The options that the scores were computed with.
        statistics: "samples", "permutations", "level" and "seed" of the intervals and tests.
        references: The R references that the scores were compared with; there may be none.
        baselines: The B baselines.
        failed: How many rows of the source have no scores.
        complete: Whether the run that stores the scores has finished.
        pending: How many texts are not evaluated yet.
        skipped: Texts whose references could not be computed.
        tokens: The tokens with the highest mean scores, the highest first.
        measures: One number per text for each of `MEASURES`, of shape (N, 5). NaN if not defined.
        likeness: Rank correlations of the scores with the baselines, of shape (N, B, 2): with all
            tokens, and without special ones.
        agreement: Rank correlations with the references, of shape (N, 1 + B, R, 2): of the scores
            first, then of the baselines.
        notes: Warnings, in words.
    """

    data: str
    model: str
    task: str
    fingerprint: str
    options: Mapping[str, Any]
    statistics: Mapping[str, Any]
    references: tuple[str, ...]
    baselines: tuple[str, ...]
    failed: int
    complete: bool
    pending: int
    skipped: tuple[Skipped, ...]
    tokens: tuple[TokenMean, ...]
    measures: NDArray[np.float64]
    likeness: NDArray[np.float64]
    agreement: NDArray[np.float64]
    notes: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        count, guesses, references = self.count, len(self.baselines), len(self.references)
        for name, shape in (
            ("measures", (count, len(MEASURES))),
            ("likeness", (count, guesses, 2)),
            ("agreement", (count, 1 + guesses, references, 2)),
        ):
            object.__setattr__(self, name, read_only(getattr(self, name), name, shape))

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Statistics) and self.to_dict() == other.to_dict()

    def __hash__(self) -> int:
        return hash((self.data, self.fingerprint, self.count))

    def __repr__(self) -> str:
        return f"Statistics({self.data!r}, {self.count} texts)"

    @property
    def count(self) -> int:
        """How many texts there are."""
        return len(self.measures)

    def summary(self) -> list[dict[str, Any]]:
        """Return the mean over texts of everything that was measured.

        Returns:
            For each quantity "what" it is of ("scores", or a baseline), the "measure" (of
            `MEASURES`, or "correlation"), "with" (the reference or baseline that a correlation is
            with) and "special_tokens", both None where they do not apply; and as in
            `Evaluation.summary` the "mean", "std", "ci", "count" and "undefined".
        """
        rows: list[tuple[str, str, str | None, bool | None]]
        rows = [("scores", measure, None, None) for measure in MEASURES]
        for names, others in (
            (("scores", *self.baselines), self.references),
            (("scores",), self.baselines),
        ):
            rows += itertools.product(names, ("correlation",), others, (True, False))
        keys = ("what", "measure", "with", "special_tokens")
        return [
            {**dict(zip(keys, row, strict=True)), **self._means.at((i,))}
            for i, row in enumerate(rows)
        ]

    def compare(self) -> list[dict[str, Any]]:
        """Test whether the scores agree with a reference more than the baselines do.

        Returns:
            For each reference and choice of "special_tokens", and each "baseline": "difference"
            (the mean of the scores' correlation minus the baseline's), its "ci", "count", "p" of
            the sign-flip test and "p_holm", corrected over the baselines.
        """
        return [dict(item) for item in self._comparisons]

    @cached_property
    def _comparisons(self) -> list[dict[str, Any]]:
        comparisons: list[dict[str, Any]] = []
        if not self.baselines or not self.references:
            return comparisons
        found = Differences.of(self.agreement[:, :1] - self.agreement[:, 1:], self.statistics)
        for (j, reference), (k, special) in itertools.product(
            enumerate(self.references), enumerate((True, False))
        ):
            corrected = holm(found.p[:, j, k])
            for i, name in enumerate(self.baselines):
                named = {"reference": reference, "special_tokens": special, "baseline": name}
                tested = {**found.at((i, j, k)), "p_holm": float(corrected[i])}
                comparisons.append({**named, **tested})
        return comparisons

    def to_dict(self) -> dict[str, Any]:
        """Return the statistics as lists, dictionaries, strings and numbers.

        Returns:
            What JSON can hold, with the keys "format" and "version" first. None stands for a number
            that is not defined.
        """
        names = ["data", "model", "task", "fingerprint", "options", "statistics", "references"]
        names += ["baselines", "count", "failed", "complete", "pending", "skipped", "notes"]
        data: dict[str, Any] = {
            "format": FORMAT,
            "version": VERSION,
            **{name: getattr(self, name) for name in names},
            "summary": self.summary(),
            "comparisons": self.compare(),
            "tokens": self.tokens,
        }
        plain: dict[str, Any] = formats.without_nan(data)
        return plain

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write the statistics to a file. A failure leaves no partial file.

        Args:
            path: The file. Its ending chooses the format: ".json" is `to_dict`; ".csv" is the table
                of `summary`; ".png", ".svg" and ".pdf" are `plot`.

        Raises:
            OptionError: If the ending is not one of these.
            MissingExtraError: If the format is a figure and matplotlib is not installed.
            OSError: If the file cannot be written.
        """
        formats.save(self, path)

    def plot(self) -> Figure:
        """Draw the correlations of the scores, and the tokens with the highest mean scores.

        Returns:
            The figure. It is not shown.

        Raises:
            MissingExtraError: If matplotlib is not installed.
        """
        figure: Figure = formats.render(self, "plot")
        return figure

    def show(self, file: TextIO | None = None) -> None:
        """Print the statistics as tables.

        Args:
            file: The text stream to print to. None means standard output.
        """
        formats.render(self, "terminal", file)

    @cached_property
    def _means(self) -> Means:
        """The means over texts, in the order of the rows of `summary`."""
        arrays = (self.measures, self.agreement, self.likeness)
        numbers = [array.reshape(self.count, -1) for array in arrays]
        return Means.of(np.concatenate(numbers, axis=1), self.statistics)
