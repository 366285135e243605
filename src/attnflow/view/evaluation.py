"""An evaluation as tables, and as a figure."""

import itertools
import math
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from attnflow.evaluate.evaluation import (
    COMPARISONS,
    EVIDENCE,
    FAITHFULNESS,
    Evaluation,
    Skipped,
)
from attnflow.evaluate.evidence import LEFT_OUT
from attnflow.options import ANSWER_METHODS
from attnflow.view import captions, theme
from attnflow.view.figures import correlation_over_layers
from attnflow.view.tables import STRONG, Cell, Report, Table
from attnflow.view.text import visible

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure


DIFFERENCES = "Differences, and p of a sign-flip test after Holm's correction"

MEASURES = {
    "mrr": "MRR",
    "pointing": "pointing game",
    "mass": "mass",
    "aopc": "AOPC",
    "aopc_shares": "AOPC by shares",
}
"""The names of measures that are not words."""

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
    rows = {
        _name(evaluation, row): evaluation.summary(**row, **column) for row in evaluation.rows()
    }
    curves = {name: values for name, values in rows.items() if values[0]["layer"] is not None}
    baselines = {
        captions.spaced(name): evaluation.summary(name, **column)
        for name in evaluation.baselines
        # The same line with the opposite sign.
        if name != "position_reversed"
    }
    fixed = {name: values for name, values in rows.items() if name not in curves} | baselines
    if not curves:
        dots = [(name, values[0]) for name, values in fixed.items()]
        return _dots(dots, ax, "Spearman\u2019s rank correlation", _title(**column))
    means = {name: values[0]["mean"] for name, values in fixed.items()}
    return correlation_over_layers(
        curves,
        ax,
        baselines={name: mean for name, mean in means.items() if not math.isnan(mean)},
        title=_title(**column),
    )


def _dots(
    rows: Sequence[tuple[str, dict[str, Any]]], ax: Any, label: str, title: str
) -> "tuple[Figure, Axes]":
    """Draw means with their intervals, one below the other."""
    figure, ax = theme.axes_of(ax, 5.2, 1.0 + 0.22 * len(rows))
    theme.dress(ax, frame=["bottom"])
    for place, (name, values) in enumerate(rows):
        method = next((one for one in theme.STYLES if name.startswith(one)), None)
        style = theme.style_of(method or name)
        colour = style.colour if method else theme.QUIET
        ax.hlines(place, *values["ci"], color=colour, linewidth=1.6)
        ax.plot(values["mean"], place, color=colour, marker=style.marker, markersize=5)
    theme.set_ticks(ax.yaxis, range(len(rows)), [theme.label(name, 40) for name, _ in rows])
    ax.invert_yaxis()
    ax.set_xlabel(label, size=theme.TEXT_SIZE)
    theme.set_title(ax, title)
    return figure, ax


def _measure_panel(evaluation: Evaluation, measure: str, ax: Any) -> None:
    rows = [
        (row.name, row.values[measure])
        for row in _standings(evaluation, (measure,))
        if row.values[measure]["count"]
    ]
    title = "evidence" if measure in EVIDENCE else "removing tokens"
    _dots(rows, ax, MEASURES[measure], title)


def panels(evaluation: Evaluation) -> "Figure":
    """Draw everything that was evaluated.

    Args:
        evaluation: The evaluation.

    Returns:
        The figure, with a panel for each reference and choice of tokens, and one for each of
        `Evaluation.main_measures`.

    Raises:
        MissingExtraError: If matplotlib is not installed.
    """
    columns = list(_columns(evaluation))
    drawn: list[Any] = [*columns, *evaluation.main_measures]
    across = min(2, len(drawn))
    rows = -(-len(drawn) // across)
    figure = theme.new_figure(5.2 * across, 3.4 * rows)
    axes = figure.subplots(rows, across, squeeze=False).ravel()
    for i, (panel, what) in enumerate(itertools.zip_longest(axes, drawn)):
        if what is None:
            panel.set_axis_off()
        elif isinstance(what, str):
            _measure_panel(evaluation, what, panel)
        else:
            if i:
                panel.sharey(axes[0])
            plot(evaluation, panel, **what)
            # All panels have the same curves.
            if i != min(1, len(columns) - 1) and panel.get_legend() is not None:
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
    tables = [
        table
        for column in _columns(evaluation)
        for table in (_correlations(evaluation, column), *_comparisons(evaluation, column))
    ]
    if evaluation.faithfulness is not None:
        tables += [_faithfulness(evaluation, measure) for measure in FAITHFULNESS]
    if evaluation.evidence is not None:
        tables += [_evidence(evaluation), *_evidence_comparisons(evaluation)]
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
    rows = {
        _name(evaluation, row): evaluation.summary(**row, **column) for row in evaluation.rows()
    }
    baselines = {
        captions.spaced(name): evaluation.summary(name, **column) for name in evaluation.baselines
    }
    title = f"Spearman's rank correlation with {_title(**column)}"
    return _table(title, evaluation, rows, {"baselines": baselines}, best=True)


def _comparisons(evaluation: Evaluation, column: dict[str, Any]) -> Iterator[Table]:
    """Yield the tests of pairs of rows, and of every row against the best of the baselines."""
    means = {name: evaluation.summary(name, **column)[0]["mean"] for name in evaluation.baselines}
    known = {name: mean for name, mean in means.items() if not math.isnan(mean)}
    best = max(known, key=known.__getitem__, default=None)
    rows: dict[str, list[Cell]] = {}
    notes = []
    for over in COMPARISONS:
        for item in evaluation.compare(over, **column):
            baseline = item["second"].get("baseline")
            if baseline is not None and baseline != best:
                continue
            name, cell = _difference(evaluation, item)
            if item["layer"] is None:
                notes.append(f"  {name}: {', '.join(cell.lines)}")
            else:
                rows.setdefault(name, []).append(cell)
    if notes:
        notes.insert(0, "the same in every layer:")
    if rows or notes:
        yield _layered(DIFFERENCES, evaluation, rows, notes)


def _difference(evaluation: Evaluation, item: dict[str, Any]) -> tuple[str, Cell]:
    """Return the name of a comparison, and a cell with the difference and its p-value."""
    second = item["second"]
    fixed = second.get("baseline") or second.get("reference")
    other = captions.spaced(fixed) if fixed else _name(evaluation, second)
    lines = (captions.signed(item["difference"]), captions.p_value(item["p_holm"]))
    found = item["p_holm"] <= 1 - evaluation.options["level"]
    return f"{_name(evaluation, item['first'])} - {other}", Cell(lines, STRONG if found else "")


def _faithfulness(evaluation: Evaluation, measure: str) -> Table:
    kinds: dict[str, dict[str, list[dict[str, Any]]]] = {
        "method": {},
        "reference": {},
        "baseline": {},
    }
    for item in evaluation.faithfulness_summary():
        if item["measure"] == measure:
            kind = next(kind for kind in kinds if kind in item)
            name = _name(evaluation, item) if kind == "method" else captions.spaced(item[kind])
            kinds[kind].setdefault(name, []).append(item)
    better = "lower" if measure in ("sufficiency", "log_odds") else "higher"
    name = MEASURES.get(measure, captions.spaced(measure))
    title = f"When tokens are removed: {name}, the {better} the better"
    fixed = {"references": kinds["reference"], "baselines": kinds["baseline"]}
    return _table(title, evaluation, kinds["method"], fixed)


def _table(
    title: str,
    evaluation: Evaluation,
    rows: dict[str, list[dict[str, Any]]],
    others: dict[str, dict[str, list[dict[str, Any]]]],
    *,
    best: bool = False,
) -> Table:
    """Return a table with the layers across; what has no layers stands below.

    `rows` and `others`, such as baselines, have lists of means by name. With `best`, the highest
    mean of each layer stands out.
    """
    layered = {name: values for name, values in rows.items() if values[0]["layer"] is not None}
    fixed = {name: values for name, values in rows.items() if name not in layered}
    groups = {what: named for what, named in {"methods": fixed, **others}.items() if named}
    if not layered:
        lines: list[list[str | Cell]] = [
            [name, Cell(captions.mean_and_interval(values[0]))]
            for named in groups.values()
            for name, values in named.items()
        ]
        return Table(title, ["", "mean"], lines)
    tops = [
        max(values[j]["mean"] for values in layered.values()) if best else math.nan
        for j in range(len(evaluation.layers))
    ]
    cells = {
        name: [
            Cell(captions.mean_and_interval(value), STRONG if value["mean"] == top else "")
            for value, top in zip(values, tops, strict=True)
        ]
        for name, values in layered.items()
    }
    notes = []
    for what, named in groups.items():
        notes.append(f"{what}, the same in every layer:")
        for name, (values,) in named.items():
            mean, interval = captions.mean_and_interval(values)
            notes.append(f"  {name:<18}{mean:>12}  {interval}")
    return _layered(title, evaluation, cells, notes)


def _layered(
    title: str, evaluation: Evaluation, rows: dict[str, list[Cell]], notes: Sequence[str] = ()
) -> Table:
    columns = ["", *(f"L{layer}" for layer in evaluation.layers)] if rows else [""]
    return Table(title, columns, [[name, *cells] for name, cells in rows.items()], notes)


# ---- Evidence ------------------------------------------------------------------------------------


class _Standing(NamedTuple):
    """A method in one layer, a reference or a baseline, with the means of some measures.

    `last` is whether it is what methods are compared by: the last layer, or all there is.
    """

    name: str
    kind: str
    row: dict[str, Any]
    last: bool
    values: dict[str, dict[str, Any]]


def _standings(evaluation: Evaluation, measures: Sequence[str]) -> list[_Standing]:
    """Return everything that was measured, the highest mean of the first measure first.

    A method with layers has its last layer, and its best one.
    """
    found = []
    named = [("method", row) for row in evaluation.rows()]
    for kind, names in (("reference", evaluation.references), ("baseline", evaluation.baselines)):
        named += [(kind, {"method": name}) for name in names]
    for kind, row in named:
        means = {measure: evaluation.summary(measure=measure, **row) for measure in measures}
        label = _name(evaluation, row) if kind == "method" else captions.spaced(row["method"])
        each = means[measures[0]]
        last = len(each) - 1
        best = max(range(len(each)), key=lambda i: (_height(each[i]["mean"]), i))
        for place in dict.fromkeys((last, best)):
            layer = each[place]["layer"]
            name = label if layer is None else f"{label}, L{layer}"
            if place == best != last:
                name += " (best)"
            values = {measure: means[measure][place] for measure in measures}
            found.append(_Standing(name, kind, row, place == last, values))
    return sorted(found, key=lambda one: -_height(one.values[measures[0]]["mean"]))


def _height(mean: float) -> float:
    """Return a mean; one that is not defined is the lowest."""
    return -math.inf if math.isnan(mean) else mean


def _evidence(evaluation: Evaluation) -> Table:
    found = _standings(evaluation, EVIDENCE)
    tops = {
        measure: max(_height(one.values[measure]["mean"]) for one in found) for measure in EVIDENCE
    }
    rows: list[list[str | Cell]] = [
        [
            one.name,
            one.kind,
            *(
                Cell(captions.mean_and_interval(values), STRONG if values["mean"] == top else "")
                for values, top in zip(one.values.values(), tops.values(), strict=True)
            ),
        ]
        for one in found
    ]
    columns = ["", "", *(MEASURES[measure] for measure in EVIDENCE)]
    return Table("Where the evidence ranks, best first", columns, rows, left=2)


def _evidence_comparisons(evaluation: Evaluation) -> Iterator[Table]:
    """Yield the tests of the method with the highest MRR against everything else."""
    standing = [one for one in _standings(evaluation, ("mrr",)) if one.last]
    best = next(one for one in standing if one.kind == "method").row
    rows: list[list[str | Cell]] = []
    for over in COMPARISONS:
        for item in evaluation.compare(over, measure="mrr", layer=-1):
            if item["second"] == best:
                turned = {"first": best, "second": item["first"], "difference": -item["difference"]}
                item |= turned | {"ci": [-end for end in reversed(item["ci"])]}
            if item["first"] == best:
                name, cell = _difference(evaluation, item)
                low, high = map(captions.signed, item["ci"])
                rows.append(
                    [name, Cell(cell.lines[:1], cell.style), f"{low} to {high}", cell.lines[1]]
                )
    if rows:
        level = evaluation.options["level"]
        columns = ["", "MRR", f"{level:.0%} interval", "p"]
        title = DIFFERENCES.replace("Differences", "Differences in the last layer")
        yield Table(title, columns, rows)


def _name(evaluation: Evaluation, row: dict[str, Any]) -> str:
    """Return the name of a row: the options that differ between rows."""
    name = str(row["method"])
    if row["edges"] is not None and len(evaluation.edges) > 1:
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
    if set(evaluation.methods) <= set(ANSWER_METHODS):
        edges = ""
    always = evaluation.receptive_fields == (True,)
    relative = ", relative to uniform attention" if always else ""
    name = visible(evaluation.model, line_breaks=False)
    return f"{name}: {captions.counted(len(evaluation.texts))}{edges}{relative}"


# ---- Notes ---------------------------------------------------------------------------------------


def _notes(evaluation: Evaluation) -> Iterator[str]:
    undefined = sum(
        values["undefined"]
        for column in _columns(evaluation)
        for row in evaluation.rows()
        for values in evaluation.summary(**row, **column)
    )
    yield from _counts(evaluation)
    more = []
    if evaluation.references and _same_without_special(evaluation):
        more.append("No token is special: results without special tokens are the same.")
    if len(evaluation.receptive_fields) > 1:
        more.append("/uniform: divided by the scores of uniform attention over the same mask.")
    yield from statistics_notes(evaluation.options["level"], [*evaluation.notes], undefined, more)
    yield from _too_many_tests(evaluation)
    if evaluation.pending:
        yield f"Not finished: {captions.counted(evaluation.pending)} left to evaluate."
    others = [item for item in evaluation.skipped if item.reason not in LEFT_OUT]
    yield from skipped_notes(others, "could not be evaluated")


def _counts(evaluation: Evaluation) -> Iterator[str]:
    """Say how many texts were measured, and what the measures of evidence are."""
    counts = evaluation.counts()
    if evaluation.evidence is not None or counts.keys() & set(LEFT_OUT):
        total, measured = counts.pop("texts"), counts.pop("measured")
        reasons = [
            f"; {count:,} left out {'because' if reason in LEFT_OUT else 'for'} {reason}"
            for reason, count in counts.items()
        ]
        yield f"{total:,} texts: {measured:,} measured{''.join(reasons)}."
    if evaluation.evidence is not None:
        yield (
            "MRR: the mean reciprocal rank of the best-ranked token of the evidence. Pointing "
            "game: how often it comes first. Mass: its share of the positive scores. Random is the "
            "mean over all orders. A best layer was chosen on these texts, and will be lower on "
            "others."
        )


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
    families = [(over, len(evaluation.compare(over))) for over in COMPARISONS]
    if evaluation.evidence is not None:
        families += [
            (f"{over} in MRR", len(evaluation.compare(over, measure="mrr", layer=-1)))
            for over in COMPARISONS
        ]
    for over, tests in families:
        if smallest * tests > 1 - evaluation.options["level"]:
            yield (
                f"No difference by {captions.spaced(over)} can be significant: the smallest "
                f"p-value of this test, {smallest:.2g}, times the {tests} tests of its family is "
                f"too large. Evaluate fewer layers, or {remedy}."
            )
