"""Statistics of a data set in the terminal, as tables, and as a figure."""

from __future__ import annotations

import sys
import textwrap
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, TextIO

from attnflow.evaluate.statistics import MEASURES, Statistics
from attnflow.view.evaluation import (
    MOST_SKIPPED,
    _Cell,
    _figures,
    _plain,
    _probability,
    _signed,
    _spaced,
    _Table,
    _texts,
    _written,
)
from attnflow.view.stream import encoding_of, width_of
from attnflow.view.text import visible

if TYPE_CHECKING:
    from matplotlib.figure import Figure

__all__ = ["draw", "render", "show"]


def show(statistics: Statistics, file: TextIO | None = None) -> None:
    """Print statistics as tables.

    Args:
        statistics: The statistics.
        file: The text stream to print to. None means standard output.
    """
    stream = sys.stdout if file is None else file
    stream.write(render(statistics, width=width_of(stream), encoding=encoding_of(stream)))


def render(statistics: Statistics, *, width: int = 80, encoding: str = "utf-8") -> str:
    """Return statistics as plain text.

    Args:
        statistics: The statistics.
        width: How wide the notes may be, in characters.
        encoding: What the text can be written in.

    Returns:
        The text, with a line break at its end.
    """
    lines = [_headline(statistics), ""]
    for table in _tables(statistics):
        lines += [table.title, *_plain(table), *table.notes, ""]
    for note in _closing(statistics):
        lines += textwrap.wrap(note, max(width, 20), subsequent_indent="  ") or [""]
    return _written("\n".join(lines).rstrip("\n") + "\n", encoding)


def _headline(statistics: Statistics) -> str:
    options = statistics.options
    layer = "the last layer" if options["layer"] == -1 else f"layer {options['layer']}"
    of = "words" if options["words"] else "tokens"
    return visible(
        f"{statistics.data}: {_texts(statistics.count)}, {options['method']} of {of} in {layer}, "
        f"edges {_spaced(options['edges'])}, {statistics.model}",
        line_breaks=False,
    )


def _tables(statistics: Statistics) -> Iterator[_Table]:
    summary = statistics.summary()
    rows = [
        (_spaced(row["measure"]), [_cell(row)])
        for row in summary
        if row["measure"] in MEASURES and row["count"]
    ]
    # What is not defined, such as the saturation of rollout, is not there.
    if rows:
        yield _Table("How the scores are spread", ["", "mean"], rows, [])
    for reference in statistics.references:
        rows = [
            (
                _spaced(what),
                [_cell(row) for row in summary if (row["what"], row["with"]) == (what, reference)],
            )
            for what in ("scores", *statistics.baselines)
        ]
        title = f"Spearman's rank correlation with {_spaced(reference)}"
        yield _Table(title, ["of", "all tokens", "without special"], rows, [])
        compared = [item for item in statistics.compare() if item["reference"] == reference]
        rows = [
            (
                f"scores - {_spaced(name)}",
                [
                    _Cell((_signed(item["difference"]), _probability(item["p_holm"])))
                    for item in compared
                    if item["baseline"] == name
                ],
            )
            for name in statistics.baselines
        ]
        if rows:
            title = "Differences, and p of a sign-flip test after Holm's correction"
            yield _Table(title, ["", "all tokens", "without special"], rows, [])
    rows = [
        (
            _spaced(name),
            [_cell(row) for row in summary if (row["what"], row["with"]) == ("scores", name)],
        )
        for name in statistics.baselines
    ]
    if rows:
        title = "Spearman's rank correlation of the scores with baselines"
        yield _Table(title, ["with", "all tokens", "without special"], rows, [])
    if statistics.tokens:
        rows = [
            (
                visible(token.token, line_breaks=False),
                [_Cell((f"{token.mean:.4f}",)), _Cell((f"{token.times:,}",))],
            )
            for token in statistics.tokens
        ]
        yield _Table("What scores highest on average", ["", "mean score", "times"], rows, [])


def _cell(row: dict[str, Any]) -> _Cell:
    return _Cell(tuple(part for part in _figures(row) if part))


def _closing(statistics: Statistics) -> Iterator[str]:
    yield (
        "Means over texts \u00b1 standard deviation, and below them the ends of their "
        f"{statistics.statistics['level']:.0%} intervals."
    )
    for note in statistics.notes:
        yield f"Note: {note}"
    undefined = sum(
        row["undefined"] for row in statistics.summary() if row["measure"] == "correlation"
    )
    if undefined:
        yield (
            f"{undefined} of the correlations are not defined (all scores the same, or fewer than "
            "two tokens) and are not in the means."
        )
    if statistics.pending:
        yield f"Not finished: {_texts(statistics.pending)} more to evaluate."
    if statistics.failed:
        yield f"{_texts(statistics.failed)} of the source have no scores: they failed."
    if statistics.skipped:
        yield f"{_texts(len(statistics.skipped))} could not be compared with references:"
        for item in statistics.skipped[:MOST_SKIPPED]:
            yield f"  row {item.number}: {visible(item.reason, line_breaks=False)}"
        if len(statistics.skipped) > MOST_SKIPPED:
            yield f"  and {len(statistics.skipped) - MOST_SKIPPED} more"


# ---- Figure --------------------------------------------------------------------------------------


def draw(statistics: Statistics) -> Figure:
    """Draw what the scores agree with, and the tokens that score highest.

    Args:
        statistics: The statistics.

    Returns:
        The figure.

    Raises:
        MissingExtraError: If matplotlib is not installed.
    """
    from attnflow.view import theme

    correlations = [
        row
        for row in statistics.summary()
        if row["measure"] == "correlation"
        and row["what"] == "scores"
        and row["count"]
        # The same as "position" with the other sign.
        and row["with"] != "position_reversed"
    ]
    names = list(dict.fromkeys(row["with"] for row in correlations))
    height = 1.2 + 0.26 * max(len(names), len(statistics.tokens), 3)
    figure = theme.new_figure(9.6, height)
    left, right = figure.subplots(1, 2, width_ratios=(3, 2))
    theme.dress(left, frame=["bottom"])
    left.axvline(0.0, color=theme.QUIET, linewidth=0.6, zorder=1)
    for order, special in enumerate((True, False)):
        style = theme.style_of("all tokens" if special else "without special tokens", order)
        chosen = [row for row in correlations if row["special_tokens"] == special]
        places = [names.index(row["with"]) + 0.16 * (2 * order - 1) for row in chosen]
        left.hlines(
            places,
            [row["ci"][0] for row in chosen],
            [row["ci"][1] for row in chosen],
            color=style.colour,
            linewidth=1.6,
        )
        left.plot(
            [row["mean"] for row in chosen],
            places,
            linestyle="none",
            marker=style.marker,
            markersize=5,
            color=style.colour,
            label="all tokens" if special else "without special tokens",
        )
    theme.set_ticks(left.yaxis, range(len(names)), [_spaced(name) for name in names])
    left.invert_yaxis()
    left.set_xlabel("Spearman\u2019s rank correlation of the scores", size=theme.TEXT_SIZE)
    if names:
        left.legend(frameon=False, fontsize=theme.SMALL_SIZE, loc="best")
    theme.set_title(left, f"{_texts(statistics.count)}, {statistics.options['method']}")
    theme.dress(right, frame=["bottom"])
    right.barh(
        range(len(statistics.tokens)),
        [token.mean for token in statistics.tokens],
        color=theme.style_of(statistics.options["method"]).colour,
        height=0.7,
    )
    theme.set_ticks(
        right.yaxis,
        range(len(statistics.tokens)),
        [theme.label(token.token) for token in statistics.tokens],
    )
    right.invert_yaxis()
    right.set_xlabel("mean score", size=theme.TEXT_SIZE)
    theme.set_title(right, "what scores highest")
    settled: Figure = theme.settle(figure)
    return settled
