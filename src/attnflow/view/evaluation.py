"""An evaluation as tables, and as a figure."""

import itertools
import math
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from attnflow.evaluate.evaluation import COMPARISONS, FAITHFULNESS, Evaluation, Skipped
from attnflow.view import captions, theme
from attnflow.view.figures import correlation_over_layers
from attnflow.view.tables import STRONG, Cell, Report, Table
from attnflow.view.text import visible

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure


DIFFERENCES = "Differences, and p of a sign-flip test after Holm's correction"

MOST_SKIPPED = 8
"""How many of the texts that were not evaluated are reported with the reason."""


# ---- Figures -------------------------------------------------------------------------------------


def plot(
    evaluation: Evaluation,
    ax: Any = None,
    *,
    reference: str | None = None,
    special_tokens: bool = True,
    drop_sink: bool | None = None,
) -> "tuple[Figure, Axes]":
    """Draw the mean correlation over the layers, with confidence intervals and the baselines.

    Args:
        evaluation: The evaluation.
        ax: The axes to draw into. None makes a figure.
        reference: The reference. None means the first.
        special_tokens: Whether special tokens are among those scored.
        drop_sink: Whether the attention sink is left out. None means the first choice evaluated.

    Returns:
        The figure and the axes.

    Raises:
        OptionError: If a choice was not evaluated. The message lists what was.
        MissingExtraError: If matplotlib is not installed.
    """
    column: dict[str, Any] = {
        "reference": evaluation.references[0] if reference is None else reference,
        "special_tokens": special_tokens,
        "drop_sink": evaluation.drop_sinks[0] if drop_sink is None else drop_sink,
    }
    curves = {
        _name(evaluation, row): evaluation.summary(**row, **column) for row in evaluation.rows()
    }
    baselines = {
        captions.spaced(name): evaluation.summary(name, **column)[0]["mean"]
        for name in evaluation.baselines
        # The same line with the opposite sign.
        if name != "position_reversed"
    }
    return correlation_over_layers(
        curves,
        ax,
        baselines={name: mean for name, mean in baselines.items() if not math.isnan(mean)},
        title=_title(**column),
    )


def panels(evaluation: Evaluation) -> "Figure":
    """Draw everything that was evaluated: a panel for each reference and choice of tokens.

    Args:
        evaluation: The evaluation.

    Returns:
        The figure.

    Raises:
        MissingExtraError: If matplotlib is not installed.
    """
    columns = list(_columns(evaluation))
    rows = -(-len(columns) // 2)
    figure = theme.new_figure(10.4, 3.4 * rows)
    axes = figure.subplots(rows, 2, squeeze=False, sharey=True).ravel()
    for panel, column in itertools.zip_longest(axes, columns):
        if column is None:
            panel.set_axis_off()
        else:
            plot(evaluation, panel, **column)
            # All panels have the same curves.
            if panel is not axes[1] and panel.get_legend() is not None:
                panel.get_legend().remove()
    return figure


# ---- Tables --------------------------------------------------------------------------------------


def report(evaluation: Evaluation) -> Report:
    """Return an evaluation as tables: the layers across, the methods down.

    Args:
        evaluation: The evaluation.

    Returns:
        The tables, with notes on how to read them and on what was skipped.
    """
    tables: list[Table] = []
    for column in _columns(evaluation):
        tables.append(_correlations(evaluation, column))
        tables.extend(_comparisons(evaluation, column))
    if evaluation.faithfulness is not None:
        tables += [_faithfulness(evaluation, measure) for measure in FAITHFULNESS]
    return Report(_headline(evaluation), tables, list(_notes(evaluation)))


def _columns(evaluation: Evaluation) -> Iterator[dict[str, Any]]:
    for reference, drop, special in itertools.product(
        evaluation.references, evaluation.drop_sinks, (True, False)
    ):
        if special or not _same_without_special(evaluation):
            yield {"reference": reference, "special_tokens": special, "drop_sink": drop}


def _same_without_special(evaluation: Evaluation) -> bool:
    """Return whether no token is special, so that leaving special tokens out changes nothing."""
    values = evaluation.correlations
    return np.array_equal(values[..., 0, :], values[..., 1, :], equal_nan=True)


def _correlations(evaluation: Evaluation, column: dict[str, Any]) -> Table:
    rows = [
        (_name(evaluation, row), evaluation.summary(**row, **column)) for row in evaluation.rows()
    ]
    best = [
        max((values[j]["mean"] for _, values in rows), default=math.nan)
        for j in range(len(evaluation.layers))
    ]
    cells = {
        name: [
            Cell(captions.mean_and_interval(value), STRONG if value["mean"] == best[j] else "")
            for j, value in enumerate(values)
        ]
        for name, values in rows
    }
    notes = [_fixed(name, evaluation.summary(name, **column)[0]) for name in evaluation.baselines]
    if notes:
        notes.insert(0, "baselines, the same in every layer:")
    return _table(f"Spearman's rank correlation with {_title(**column)}", evaluation, cells, notes)


def _comparisons(evaluation: Evaluation, column: dict[str, Any]) -> Iterator[Table]:
    """Yield the tests of pairs of rows, and of every row against the best of the baselines."""
    means = {name: evaluation.summary(name, **column)[0]["mean"] for name in evaluation.baselines}
    known = {name: mean for name, mean in means.items() if not math.isnan(mean)}
    best = max(known, key=known.__getitem__, default=None)
    level = evaluation.options["level"]
    rows: dict[str, list[Cell]] = {}
    for over in COMPARISONS:
        for item in evaluation.compare(over, **column):
            baseline = item["second"].get("baseline")
            if baseline is not None and baseline != best:
                continue
            other = captions.spaced(baseline) if baseline else _name(evaluation, item["second"])
            lines = (captions.signed(item["difference"]), captions.p_value(item["p_holm"]))
            cell = Cell(lines, STRONG if item["p_holm"] <= 1 - level else "")
            rows.setdefault(f"{_name(evaluation, item['first'])} - {other}", []).append(cell)
    if rows:
        yield _table(DIFFERENCES, evaluation, rows)


def _faithfulness(evaluation: Evaluation, measure: str) -> Table:
    rows: dict[str, list[Cell]] = {}
    notes = ["references and baselines, the same in every layer:"]
    for item in evaluation.faithfulness_summary():
        if item["measure"] != measure:
            continue
        if item["layer"] is None:
            notes.append(_fixed(item.get("reference") or item["baseline"], item))
        else:
            cell = Cell(captions.mean_and_interval(item))
            rows.setdefault(_name(evaluation, item), []).append(cell)
    better = "lower" if measure in ("sufficiency", "log_odds") else "higher"
    title = f"When tokens are removed: {captions.spaced(measure)}, the {better} the better"
    return _table(title, evaluation, rows, notes)


def _table(
    title: str, evaluation: Evaluation, rows: dict[str, list[Cell]], notes: Sequence[str] = ()
) -> Table:
    columns = ["", *(f"L{layer}" for layer in evaluation.layers)]
    return Table(title, columns, [[name, *cells] for name, cells in rows.items()], notes)


def _fixed(name: str, values: dict[str, Any]) -> str:
    """Return a line about something that does not depend on the layer."""
    mean, interval = captions.mean_and_interval(values)
    return f"  {captions.spaced(name):<18}{mean:>12}  {interval}"


def _name(evaluation: Evaluation, row: dict[str, Any]) -> str:
    """Return the name of a row: the options that differ between rows."""
    name = str(row["method"])
    if len(evaluation.edges) > 1:
        name += f" {captions.spaced(row['edges'])}"
    if len(evaluation.receptive_fields) > 1 and row["method"] != "raw" and row["receptive_field"]:
        name += " /uniform"
    return name


def _title(reference: str, special_tokens: bool, drop_sink: bool) -> str:
    tokens = "all tokens" if special_tokens else "without special tokens"
    if drop_sink:
        tokens += " and without the sink" if not special_tokens else " but the sink"
    return f"{captions.spaced(reference)}, {tokens}"


def _headline(evaluation: Evaluation) -> str:
    edges = "" if len(evaluation.edges) > 1 else f", edges {captions.spaced(evaluation.edges[0])}"
    always = evaluation.receptive_fields == (True,)
    relative = ", relative to uniform attention" if always else ""
    name = visible(captions.model_name(evaluation.model), line_breaks=False)
    return f"{name}: {captions.counted(len(evaluation.texts))}{edges}{relative}"


# ---- Notes ---------------------------------------------------------------------------------------


def _notes(evaluation: Evaluation) -> Iterator[str]:
    undefined = sum(
        values["undefined"]
        for column in _columns(evaluation)
        for row in evaluation.rows()
        for values in evaluation.summary(**row, **column)
    )
    more = []
    if _same_without_special(evaluation):
        more.append("No token is special: results without special tokens are the same.")
    if len(evaluation.receptive_fields) > 1:
        more.append("/uniform: divided by the scores of uniform attention over the same mask.")
    yield from statistics_notes(evaluation.options["level"], [*evaluation.notes], undefined, more)
    yield from _too_many_tests(evaluation)
    if evaluation.pending:
        yield f"Not finished: {captions.counted(evaluation.pending)} left to evaluate."
    yield from skipped_notes(evaluation.skipped, "could not be evaluated")


def statistics_notes(
    level: float, notes: Sequence[str], undefined: int, more: Sequence[str] = ()
) -> Iterator[str]:
    """Explain the numbers of a table of means over texts.

    Args:
        level: The confidence level of the intervals.
        notes: The notes of the result.
        undefined: How many correlations are not defined.
        more: Further notes.

    Yields:
        Sentences.
    """
    yield (
        "Means over texts \u00b1 standard deviation, and below them the ends of their "
        f"{level:.0%} confidence intervals."
    )
    yield from (f"Note: {note}" for note in notes)
    yield from more
    if undefined:
        yield (
            f"{undefined} of the correlations are not defined (all scores are equal, or there are "
            "fewer than two tokens) and are not in the means."
        )


def skipped_notes(skipped: Sequence[Skipped], what: str, unit: str = "") -> Iterator[str]:
    """Report the texts that were skipped.

    Args:
        skipped: The texts.
        what: What could not be done with them.
        unit: What the numbers of the texts count.

    Yields:
        A sentence, the first texts with the reason of each, and the numbers of the others.
    """
    if not skipped:
        return
    yield f"{captions.counted(len(skipped))} {what}:"
    for item in skipped[:MOST_SKIPPED]:
        yield f"  {unit}{item.number}: {visible(item.reason, line_breaks=False)}"
    rest = [str(item.number) for item in skipped[MOST_SKIPPED:]]
    if rest:
        yield f"  and {len(rest)} more: {', '.join(rest[:20])}{', ...' if len(rest) > 20 else ''}"


def _too_many_tests(evaluation: Evaluation) -> Iterator[str]:
    """Report the families of tests in which no p-value can survive Holm's correction."""
    permutations, texts = evaluation.options["permutations"], len(evaluation.texts)
    exact = texts < 63 and 2**texts <= permutations + 1
    smallest = 2 / 2**texts if exact else 1 / (permutations + 1)
    remedy = "evaluate more texts" if exact else "increase permutations"
    for over in COMPARISONS:
        tests = len(evaluation.compare(over))
        if smallest * tests > 1 - evaluation.options["level"]:
            yield (
                f"No difference by {captions.spaced(over)} can be significant: the smallest "
                f"p-value of this test, {smallest:.2g}, times the {tests} tests of its family is "
                f"too large. Evaluate fewer layers, or {remedy}."
            )
