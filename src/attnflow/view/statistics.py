"""Statistics of a data set as tables, and as a figure."""

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from attnflow.evaluate.statistics import MEASURES, Statistics
from attnflow.options import ANSWER_METHODS
from attnflow.view import captions, theme
from attnflow.view.evaluation import DIFFERENCES, skipped_notes, statistics_notes
from attnflow.view.tables import Cell, Report, Table
from attnflow.view.text import visible

if TYPE_CHECKING:
    from matplotlib.figure import Figure


def report(statistics: Statistics) -> Report:
    """Return statistics as tables.

    Args:
        statistics: The statistics.

    Returns:
        The tables, with notes on how to read them and on what was skipped.
    """
    options = statistics.options
    layer = "the last layer" if options["layer"] == -1 else f"layer {options['layer']}"
    where = f" in {layer}, edges {captions.spaced(options['edges'])}"
    headline = (
        f"{statistics.data}: {captions.counted(statistics.count)}, {options['method']} of "
        f"{options['units']}{'' if options['method'] in ANSWER_METHODS else where}, "
        f"{statistics.model}"
    )
    tables = [table for table in _tables(statistics) if table.rows]
    return Report(visible(headline, line_breaks=False), tables, list(_notes(statistics)))


def _tables(statistics: Statistics) -> Iterator[Table]:
    summary = statistics.summary()
    kept = ["all tokens", "without special"]

    def correlations(named: str, what: str, other: str) -> list[str | Cell]:
        found = [_cell(row) for row in summary if (row["what"], row["with"]) == (what, other)]
        return [captions.spaced(named), *found]

    def differences(reference: str, baseline: str) -> list[str | Cell]:
        found = [
            Cell((captions.signed(item["difference"]), captions.p_value(item["p_holm"])))
            for item in statistics.compare()
            if (item["reference"], item["baseline"]) == (reference, baseline)
        ]
        return [f"scores - {captions.spaced(baseline)}", *found]

    # What is not defined, such as the saturation of rollout, is left out.
    spread: list[list[str | Cell]] = [
        [captions.spaced(row["measure"]), _cell(row)]
        for row in summary
        if row["measure"] in MEASURES and row["count"]
    ]
    yield Table("How the scores are spread", ["", "mean"], spread)
    baselines = statistics.baselines
    for reference in statistics.references:
        title = f"Spearman's rank correlation with {captions.spaced(reference)}"
        rows = [correlations(what, what, reference) for what in ("scores", *baselines)]
        yield Table(title, ["of", *kept], rows)
        yield Table(DIFFERENCES, ["", *kept], [differences(reference, name) for name in baselines])
    title = "Spearman's rank correlation of the scores with baselines"
    yield Table(title, ["with", *kept], [correlations(name, "scores", name) for name in baselines])
    highest = [
        [visible(token.token, line_breaks=False), f"{token.mean:.4f}", f"{token.times:,}"]
        for token in statistics.tokens
    ]
    yield Table("Tokens with the highest mean scores", ["", "mean score", "times"], highest)


def _cell(row: dict[str, Any]) -> Cell:
    return Cell(tuple(part for part in captions.mean_and_interval(row) if part))


def _notes(statistics: Statistics) -> Iterator[str]:
    undefined = sum(
        row["undefined"] for row in statistics.summary() if row["measure"] == "correlation"
    )
    yield from statistics_notes(statistics.statistics["level"], statistics.notes, undefined)
    if statistics.pending:
        yield f"Not finished: {captions.counted(statistics.pending)} left to evaluate."
    if statistics.failed:
        yield f"{captions.counted(statistics.failed)} of the source failed and have no scores."
    what = "could not be compared with references"
    yield from skipped_notes(statistics.skipped, what, unit="row ")


def draw(statistics: Statistics) -> "Figure":
    """Draw the correlations of the scores, and the tokens with the highest mean scores.

    Args:
        statistics: The statistics.

    Returns:
        The figure.

    Raises:
        MissingExtraError: If matplotlib is not installed.
    """
    correlations = [
        row
        for row in statistics.summary()
        if row["measure"] == "correlation"
        and row["what"] == "scores"
        and row["count"]
        # The same as "position" with the opposite sign.
        and row["with"] != "position_reversed"
    ]
    names = list(dict.fromkeys(row["with"] for row in correlations))
    height = 1.2 + 0.26 * max(len(names), len(statistics.tokens), 3)
    figure = theme.new_figure(9.6, height)
    left, right = figure.subplots(1, 2, width_ratios=(3, 2))
    theme.dress(left, frame=["bottom"])
    left.axvline(0.0, color=theme.QUIET, linewidth=0.6, zorder=1)
    for order, name in enumerate(["all tokens", "without special tokens"]):
        style = theme.style_of(name, order)
        chosen = [row for row in correlations if row["special_tokens"] == (order == 0)]
        places = [names.index(row["with"]) + 0.16 * (2 * order - 1) for row in chosen]
        lows, highs = ([row["ci"][end] for row in chosen] for end in (0, 1))
        left.hlines(places, lows, highs, color=style.colour, linewidth=1.6)
        look = {"linestyle": "none", "marker": style.marker, "markersize": 5, "label": name}
        left.plot([row["mean"] for row in chosen], places, color=style.colour, **look)
    theme.set_ticks(left.yaxis, range(len(names)), [captions.spaced(name) for name in names])
    left.invert_yaxis()
    left.set_xlabel("Spearman\u2019s rank correlation of the scores", size=theme.TEXT_SIZE)
    if names:
        left.legend(frameon=False, fontsize=theme.SMALL_SIZE, loc="best")
    theme.set_title(left, f"{captions.counted(statistics.count)}, {statistics.options['method']}")
    theme.dress(right, frame=["bottom"])
    tokens = range(len(statistics.tokens))
    colour = theme.style_of(statistics.options["method"]).colour
    right.barh(tokens, [token.mean for token in statistics.tokens], color=colour, height=0.7)
    theme.set_ticks(right.yaxis, tokens, [theme.label(token.token) for token in statistics.tokens])
    right.invert_yaxis()
    right.set_xlabel("mean score", size=theme.TEXT_SIZE)
    theme.set_title(right, "highest mean scores")
    settled: Figure = theme.settle(figure)
    return settled
