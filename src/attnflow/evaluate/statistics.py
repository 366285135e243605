"""Statistics of the scores of a whole data set."""

from __future__ import annotations

import itertools
import os
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final, NamedTuple, TextIO

import numpy as np
from numpy.typing import NDArray

from attnflow import formats
from attnflow.evaluate.evaluation import Skipped, read_only
from attnflow.evaluate.significance import Means, holm, tested

if TYPE_CHECKING:
    from matplotlib.figure import Figure

__all__ = ["MEASURES", "Statistics", "TokenMean"]

FORMAT: Final = "attnflow.statistics"
VERSION: Final = 1

MEASURES: Final = {
    "entropy": "entropy of the scores, as shares, in bits",
    "evenness": "entropy divided by its maximum, from 0 to 1",
    "top_share": "share of the token with the highest score",
    "special_share": "share of special tokens",
    "saturation": "share of tokens whose flow is saturated",
}
"""What is measured of the scores of a text, and what each measure is."""


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
    _cache: dict[str, Any] = field(default_factory=dict, repr=False)

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

        def row(
            array: str, place: tuple[int, ...], what: str, measure: str, other: Any, special: Any
        ) -> dict[str, Any]:
            named = {"what": what, "measure": measure, "with": other, "special_tokens": special}
            return {**named, **self._means(array).at(place)}

        kept = list(enumerate((True, False)))
        rows = [
            row("measures", (i,), "scores", name, None, None) for i, name in enumerate(MEASURES)
        ]
        for (i, what), (j, reference), (k, special) in itertools.product(
            enumerate(("scores", *self.baselines)), enumerate(self.references), kept
        ):
            rows.append(row("agreement", (i, j, k), what, "correlation", reference, special))
        for (i, name), (k, special) in itertools.product(enumerate(self.baselines), kept):
            rows.append(row("likeness", (i, k), "scores", "correlation", name, special))
        return rows

    def compare(self) -> list[dict[str, Any]]:
        """Test whether the scores agree with a reference more than the baselines do.

        Returns:
            For each reference and choice of "special_tokens", and each "baseline": "difference"
            (the mean of the scores' correlation minus the baseline's), its "ci", "count", "p" of
            the sign-flip test and "p_holm", corrected over the baselines.
        """
        if "compare" not in self._cache:
            self._cache["compare"] = list(self._compare())
        return [dict(item) for item in self._cache["compare"]]

    def _compare(self) -> Iterator[dict[str, Any]]:
        if not self.baselines or not self.references:
            return
        means, p = tested(self.agreement[:, :1] - self.agreement[:, 1:], self.statistics)
        for (j, reference), (k, special) in itertools.product(
            enumerate(self.references), enumerate((True, False))
        ):
            corrected = holm(p[:, j, k])
            for i, name in enumerate(self.baselines):
                values = means.at((i, j, k))
                yield {
                    "reference": reference,
                    "special_tokens": special,
                    "baseline": name,
                    "difference": values["mean"],
                    "ci": values["ci"],
                    "count": values["count"],
                    "p": float(p[i, j, k]),
                    "p_holm": float(corrected[i]),
                }

    def to_dict(self) -> dict[str, Any]:
        """Return the statistics as lists, dictionaries, strings and numbers.

        Returns:
            What JSON can hold, with the keys "format" and "version" first. None stands for a number
            that is not defined.
        """
        data: dict[str, Any] = {
            "format": FORMAT,
            "version": VERSION,
            "data": self.data,
            "model": self.model,
            "task": self.task,
            "fingerprint": self.fingerprint,
            "options": {**self.options},
            "statistics": {**self.statistics},
            "references": list(self.references),
            "baselines": list(self.baselines),
            "count": self.count,
            "failed": self.failed,
            "complete": self.complete,
            "pending": self.pending,
            "skipped": [item._asdict() for item in self.skipped],
            "notes": list(self.notes),
            "summary": self.summary(),
            "comparisons": self.compare(),
            "tokens": [token._asdict() for token in self.tokens],
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

    def _means(self, name: str) -> Means:
        """Return the means over texts of an array, computed once."""
        if name not in self._cache:
            self._cache[name] = Means.of(getattr(self, name), self.statistics)
        means: Means = self._cache[name]
        return means
