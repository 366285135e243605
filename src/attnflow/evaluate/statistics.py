"""Statistics: what is to be said of the scores of a whole data set."""

from __future__ import annotations

import csv
import io
import itertools
import json
import os
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final, NamedTuple, TextIO

import numpy as np
from numpy.typing import NDArray

from attnflow.evaluate.evaluation import (
    Skipped,
    _array,
    _cell,
    _defined,
    _statistics,
    _Table,
    _table,
    check_path,
)
from attnflow.evaluate.significance import bootstrap_interval, holm, sign_flip_test
from attnflow.files import write_whole

if TYPE_CHECKING:
    from matplotlib.figure import Figure

__all__ = ["MEASURES", "Statistics", "TokenMean"]

FORMAT: Final = "attnflow.statistics"
VERSION: Final = 1

MEASURES: Final = {
    "entropy": "entropy of the scores, as shares, in bits",
    "evenness": "entropy over the highest it could be, from 0 to 1",
    "top_share": "share of the token that scores highest",
    "special_share": "share of special tokens",
    "saturation": "share of tokens whose flow is saturated",
}
"""What is measured of the scores of a text, and what that is."""


class TokenMean(NamedTuple):
    """How high a token scores on average.

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
    """What there is to say of the scores that `attnflow.run` has stored.

    `attnflow.evaluate.evaluate_stored` makes it. Only a few numbers of every text are kept.

    Args:
        data: The folder.
        model: The name of the model that the scores are of.
        task: What the model does.
        fingerprint: What stands for its weights.
        options: The options that the scores were computed with.
        statistics: "samples", "permutations", "level" and "seed" of the intervals and tests.
        references: The R references that the scores were compared with; there may be none.
        baselines: The B baselines.
        failed: How many rows of the source have no scores.
        complete: Whether the run that stores the scores has finished.
        pending: How many texts there was no time for.
        skipped: Texts that references could not be had for.
        tokens: The tokens that score highest on average, the highest first.
        measures: One number a text for each of `MEASURES`, of shape (N, 5). NaN if not defined.
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
            object.__setattr__(self, name, _array(getattr(self, name), name, shape))

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
        """Return the mean over texts of all that was measured.

        Returns:
            For each quantity "what" it is of ("scores", or a baseline), the "measure" (of
            `MEASURES`, or "correlation"), "with" (the reference or baseline that a correlation is
            with) and "special_tokens", both None where they make no sense; and as in
            `Evaluation.summary` the "mean", "std", "ci", "count" and "undefined".
        """
        rows = []
        table = self._table("measures")
        for place, name in enumerate(MEASURES):
            rows.append(_row("scores", name, None, None, table, (place,)))
        kept = list(enumerate((True, False)))
        for (i, what), (j, reference), (k, special) in itertools.product(
            enumerate(("scores", *self.baselines)), enumerate(self.references), kept
        ):
            table = self._table("agreement")
            rows.append(_row(what, "correlation", reference, special, table, (i, j, k)))
        for (i, name), (k, special) in itertools.product(enumerate(self.baselines), kept):
            table = self._table("likeness")
            rows.append(_row("scores", "correlation", name, special, table, (i, k)))
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
        options = self.statistics
        if not self.baselines or not self.references:
            return
        differences = self.agreement[:, :1] - self.agreement[:, 1:]
        ends = bootstrap_interval(
            differences, samples=options["samples"], level=options["level"], seed=options["seed"]
        )
        p = sign_flip_test(differences, permutations=options["permutations"], seed=options["seed"])
        means = _table_means(differences)
        counts = (~np.isnan(differences)).sum(axis=0)
        for (j, reference), (k, special) in itertools.product(
            enumerate(self.references), enumerate((True, False))
        ):
            corrected = holm(p[:, j, k])
            for i, name in enumerate(self.baselines):
                yield {
                    "reference": reference,
                    "special_tokens": special,
                    "baseline": name,
                    "difference": float(means[i, j, k]),
                    "ci": [float(end) for end in ends[:, i, j, k]],
                    "count": int(counts[i, j, k]),
                    "p": float(p[i, j, k]),
                    "p_holm": float(corrected[i]),
                }

    def to_dict(self) -> dict[str, Any]:
        """Return the statistics as lists, dictionaries, strings and numbers.

        Returns:
            What JSON can hold, with the keys "format" and "version" first. None stands for what is
            not defined.
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
        defined: dict[str, Any] = _defined(data)
        return defined

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write the statistics to a file, whole or not at all.

        Args:
            path: The file. Its ending says what is written: ".json" what `to_dict` gives; ".csv"
                the table of `summary`; ".png", ".svg" and ".pdf" are `plot`.

        Raises:
            OptionError: If the ending is not one of these.
            MissingExtraError: If a figure is asked for and matplotlib is not installed.
            OSError: If the file cannot be written.
        """
        name = os.fspath(path)
        ending = check_path(name)
        if ending == ".json":
            content = json.dumps(self.to_dict(), ensure_ascii=False, allow_nan=False, indent=1)
            write_whole(name, content + "\n")
        elif ending == ".csv":
            write_whole(name, self._csv())
        else:
            from attnflow.view import theme

            write_whole(name, theme.content(self.plot(), ending))

    def plot(self) -> Figure:
        """Draw what the scores agree with, and the tokens that score highest.

        Returns:
            The figure. It is not shown.

        Raises:
            MissingExtraError: If matplotlib is not installed.
        """
        from attnflow.evaluate.report import draw

        return draw(self)

    def show(self, file: TextIO | None = None) -> None:
        """Print the statistics as tables.

        Args:
            file: The text stream to print to. None means standard output.
        """
        from attnflow.evaluate.report import show

        show(self, file)

    def _table(self, name: str) -> _Table:
        """Return the statistics over texts of an array, worked out once."""
        if name not in self._cache:
            self._cache[name] = _table(getattr(self, name), self.statistics)
        table: _Table = self._cache[name]
        return table

    def _csv(self) -> str:
        content = io.StringIO()
        names = ("what", "measure", "with", "special_tokens", "mean", "std", "low", "high")
        writer = csv.DictWriter(content, (*names, "count", "undefined"))
        writer.writeheader()
        for row in self.summary():
            row["low"], row["high"] = row.pop("ci")
            writer.writerow({name: _cell(value) for name, value in row.items()})
        return content.getvalue()


def _row(
    what: str,
    measure: str,
    other: str | None,
    special: bool | None,
    table: _Table,
    place: tuple[int, ...],
) -> dict[str, Any]:
    values = _statistics(None, table, place)
    del values["layer"]
    return {"what": what, "measure": measure, "with": other, "special_tokens": special, **values}


def _table_means(values: NDArray[np.float64]) -> NDArray[np.float64]:
    known = ~np.isnan(values)
    counts = known.sum(axis=0)
    means: NDArray[np.float64] = np.where(known, values, 0.0).sum(axis=0) / np.where(
        counts, counts, np.nan
    )
    return means
