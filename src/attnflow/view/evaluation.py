"""An evaluation in the terminal, as tables, and as a figure."""

import itertools
import math
import sys
import textwrap
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple, TextIO

import numpy as np

from attnflow.evaluate.evaluation import COMPARISONS, FAITHFULNESS, Evaluation
from attnflow.view.stream import ACCENT, console_for, encoding_of, width_of
from attnflow.view.text import encodable, visible

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

__all__ = ["plot", "render", "render_plain", "show"]

MOST_SKIPPED = 8
"""How many of the texts that were not evaluated are named."""


# ---- Figure --------------------------------------------------------------------------------------


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
        drop_sink: Whether the attention sink is left out. None means the first that was evaluated.

    Returns:
        The figure and the axes.

    Raises:
        OptionError: If something was not evaluated; the message says what was.
        MissingExtraError: If matplotlib is not installed.
    """
    from attnflow.view.figures import correlation_over_layers

    column: dict[str, Any] = {
        "reference": reference,
        "special_tokens": special_tokens,
        "drop_sink": drop_sink,
    }
    curves = {
        _name(evaluation, row): evaluation.summary(**row, **column) for _, row in evaluation._rows()
    }
    lines = {
        _spaced(name): evaluation.summary(name, **column)[0]["mean"]
        for name in evaluation.baselines
        # The same line with the other sign.
        if name != "position_reversed"
    }
    chosen = {**column, "reference": reference or evaluation.references[0]}
    if drop_sink is None:
        chosen["drop_sink"] = evaluation.drop_sinks[0]
    return correlation_over_layers(
        curves,
        ax,
        baselines={name: mean for name, mean in lines.items() if not math.isnan(mean)},
        title=_title(evaluation, **chosen),
    )


def render(evaluation: Evaluation, ending: str) -> bytes:
    """Return a figure of all that was evaluated as a file's content: a panel for each column.

    Args:
        evaluation: The evaluation.
        ending: ".png", ".svg" or ".pdf".

    Returns:
        The content.

    Raises:
        MissingExtraError: If matplotlib is not installed.
    """
    from attnflow.view import theme

    columns = list(_columns(evaluation))
    theme.require()
    rows = -(-len(columns) // 2)
    figure = theme.new_figure(10.4, 3.4 * rows)
    panels = figure.subplots(rows, 2, squeeze=False, sharey=True).ravel()
    for panel, column in itertools.zip_longest(panels, columns):
        if column is None:
            panel.set_axis_off()
        else:
            plot(evaluation, panel, **column)
            # All panels have the same curves.
            if panel is not panels[1] and panel.get_legend() is not None:
                panel.get_legend().remove()
    return theme.content(figure, ending)


# ---- Tables --------------------------------------------------------------------------------------


class _Cell(NamedTuple):
    """What stands in a cell: one line after the other, and whether it is set off."""

    lines: tuple[str, ...]
    strong: bool = False


class _Table(NamedTuple):
    """A table, and what is said below it."""

    title: str
    head: list[str]
    rows: list[tuple[str, list[_Cell]]]
    notes: list[str]


def show(evaluation: Evaluation, file: TextIO | None = None) -> None:
    """Print an evaluation as tables: the layers across, the methods down.

    A terminal gets the tables as rich draws them, without colours if NO_COLOR is set. Other streams
    get plain text.

    Args:
        evaluation: The evaluation.
        file: The text stream to print to. None means standard output.
    """
    stream = sys.stdout if file is None else file
    console = console_for(stream)
    if console is None:
        stream.write(render_plain(evaluation, width=width_of(stream), encoding=encoding_of(stream)))
        return
    from rich.box import SIMPLE_HEAD
    from rich.table import Table
    from rich.text import Text

    encoding = encoding_of(stream)

    def said(text: str) -> str:
        return _written(text, encoding)

    console.print(Text(said(_headline(evaluation)), style="bold"))
    for table in _tables(evaluation, console.width):
        drawn = Table(
            box=SIMPLE_HEAD,
            show_edge=False,
            pad_edge=False,
            padding=(0, 1, 0, 0),
        )
        for number, name in enumerate(table.head):
            drawn.add_column(Text(name), justify="right" if number else "left", no_wrap=True)
        for name, cells in table.rows:
            texts = [Text(said(name))]
            for cell in cells:
                text = Text(said(cell.lines[0]), style=f"bold {ACCENT}" if cell.strong else "")
                below = "".join(f"\n{said(line)}" for line in cell.lines[1:])
                texts.append(Text.assemble(text, (below, "dim"), justify="right"))
            drawn.add_row(*texts)
        console.print()
        console.print(Text(said(table.title), style="italic"))
        console.print(drawn)
        for note in table.notes:
            console.print(Text(said(note)))
    console.print()
    for note in _closing(evaluation):
        console.print(Text(said(note)))


def render_plain(evaluation: Evaluation, *, width: int = 80, encoding: str = "utf-8") -> str:
    """Return an evaluation as plain text.

    Args:
        evaluation: The evaluation.
        width: How wide lines may be, in characters; tables of many layers are divided.
        encoding: What the text can be written in.

    Returns:
        The text, with a line break at its end.
    """
    lines = [_headline(evaluation), ""]
    for table in _tables(evaluation, width):
        lines += [table.title, *_plain(table), *table.notes, ""]
    for note in _closing(evaluation):
        lines += textwrap.wrap(note, max(width, 20), subsequent_indent="  ") or [""]
    return _written("\n".join(lines).rstrip("\n") + "\n", encoding)


def _written(text: str, encoding: str) -> str:
    """Return a text with nothing in it that the encoding lacks."""
    if encodable(text, encoding):
        return text
    plain = text.replace("\u00b1", "+-")
    return plain.encode(encoding, "backslashreplace").decode(encoding)


def _plain(table: _Table) -> Iterator[str]:
    widths = [len(name) for name in table.head]
    for name, cells in table.rows:
        widths[0] = max(widths[0], len(name))
        for i, cell in enumerate(cells, start=1):
            widths[i] = max(widths[i], *map(len, cell.lines))
    ruled = [table.head[0].ljust(widths[0])]
    ruled += [name.rjust(width) for name, width in zip(table.head[1:], widths[1:], strict=True)]
    yield "  ".join(ruled).rstrip()
    yield "-" * (sum(widths) + 2 * (len(widths) - 1))
    for name, cells in table.rows:
        for k in range(max(len(cell.lines) for cell in cells)):
            parts = [(name if k == 0 else "").ljust(widths[0])]
            for cell, width in zip(cells, widths[1:], strict=True):
                parts.append((cell.lines[k] if k < len(cell.lines) else "").rjust(width))
            yield "  ".join(parts).rstrip()


def _columns(evaluation: Evaluation) -> Iterator[dict[str, Any]]:
    for reference, drop, special in itertools.product(
        evaluation.references, evaluation.drop_sinks, (True, False)
    ):
        if special or not _same_without_special(evaluation):
            yield {"reference": reference, "special_tokens": special, "drop_sink": drop}


def _same_without_special(evaluation: Evaluation) -> bool:
    """Whether no token is special, so that leaving special tokens out changes nothing."""
    values = evaluation.correlations
    return np.array_equal(values[..., 0, :], values[..., 1, :], equal_nan=True)


def _tables(evaluation: Evaluation, width: int) -> Iterator[_Table]:
    for column in _columns(evaluation):
        yield from _correlations(evaluation, column, width)
        yield from _comparisons(evaluation, column, width)
    if evaluation.faithfulness is not None:
        yield from _faithfulness(evaluation, width)


def _correlations(evaluation: Evaluation, column: dict[str, Any], width: int) -> Iterator[_Table]:
    rows = [
        (_name(evaluation, row), evaluation.summary(**row, **column))
        for _, row in evaluation._rows()
    ]
    best = [
        max((values[j]["mean"] for _, values in rows), default=math.nan)
        for j in range(len(evaluation.layers))
    ]
    filled = [
        (
            name,
            [
                _Cell(_figures(cell), strong=cell["mean"] == best[j])
                for j, cell in enumerate(values)
            ],
        )
        for name, values in rows
    ]
    notes = []
    if evaluation.baselines:
        said = []
        for name in evaluation.baselines:
            mean, interval = _figures(evaluation.summary(name, **column)[0])
            said.append(f"  {_spaced(name):<18}{mean:>12}  {interval}")
        notes += ["baselines, the same in every layer:", *said]
    title = _title(evaluation, **column)
    title = f"Spearman's rank correlation with {title}"
    yield from _divided(title, "", evaluation.layers, filled, notes, width)


def _comparisons(evaluation: Evaluation, column: dict[str, Any], width: int) -> Iterator[_Table]:
    """Yield the tests: pairs of rows, and every row against the best of the baselines."""
    found = [
        item
        for over in ("method", "edges", "receptive_field")
        for item in evaluation.compare(over, **column)
    ]
    if evaluation.baselines:
        means = {
            name: evaluation.summary(name, **column)[0]["mean"] for name in evaluation.baselines
        }
        known = {name: mean for name, mean in means.items() if not math.isnan(mean)}
        if known:
            best = max(known, key=known.__getitem__)
            found += [
                item
                for item in evaluation.compare("baseline", **column)
                if item["second"]["baseline"] == best
            ]
    rows: dict[str, list[_Cell]] = {}
    for item in found:
        second = item["second"]
        other = _spaced(second["baseline"]) if "baseline" in second else _name(evaluation, second)
        name = f"{_name(evaluation, item['first'])} - {other}"
        lines = (_signed(item["difference"]), _probability(item["p_holm"]))
        sure = item["p_holm"] <= 1 - evaluation.options["level"]
        rows.setdefault(name, []).append(_Cell(lines, strong=sure))
    if rows:
        yield from _divided(
            "Differences, and p of a sign-flip test after Holm's correction",
            "",
            evaluation.layers,
            list(rows.items()),
            [],
            width,
        )


def _faithfulness(evaluation: Evaluation, width: int) -> Iterator[_Table]:
    summary = evaluation.faithfulness_summary()
    for measure in FAITHFULNESS:
        rows: dict[str, list[_Cell]] = {}
        notes = ["references and baselines, the same in every layer:"]
        for item in summary:
            if item["measure"] != measure:
                continue
            if item["layer"] is None:
                name = _spaced(item.get("reference") or item["baseline"])
                mean, interval = _figures(item)
                notes.append(f"  {name:<18}{mean:>12}  {interval}")
            else:
                rows.setdefault(_name(evaluation, item), []).append(_Cell(_figures(item)))
        better = "lower" if measure in ("sufficiency", "log_odds") else "higher"
        title = f"When tokens are removed: {_spaced(measure)}, the {better} the better"
        yield from _divided(title, "", evaluation.layers, list(rows.items()), notes, width)


def _divided(
    title: str,
    corner: str,
    layers: Sequence[int],
    rows: list[tuple[str, list[_Cell]]],
    notes: list[str],
    width: int,
) -> Iterator[_Table]:
    """Yield a table, in parts that are no wider than the terminal."""
    first = max(len(name) for name, _ in rows)
    widest = max(len(line) for _, cells in rows for cell in cells for line in cell.lines)
    fit = max(1, (width - first) // (widest + 2))
    for start in range(0, len(layers), fit):
        part = slice(start, start + fit)
        yield _Table(
            title if start == 0 else f"{title} (continued)",
            [corner, *(f"L{layer}" for layer in layers[part])],
            [(name, cells[part]) for name, cells in rows],
            notes if start + fit >= len(layers) else [],
        )


def _figures(values: dict[str, Any]) -> tuple[str, str]:
    """Return a mean with its standard deviation, and the interval, in words."""
    if not values["count"]:
        return "undefined", ""
    std = "" if math.isnan(values["std"]) else f" \u00b1{_short(values['std'])}"
    low, high = values["ci"]
    interval = "" if math.isnan(low) else f"{_short(low)},{_short(high)}"
    return f"{values['mean']:.2f}{std}", interval


def _short(number: float) -> str:
    """Return a number without the 0 before its point, so that six layers fit into a terminal."""
    digits = f"{number:.2f}"
    if abs(number) >= 0.995:
        return digits
    return digits.replace("-0.00", "0.00").replace("0.", ".", 1)


def _signed(difference: float) -> str:
    return "undefined" if math.isnan(difference) else f"{difference:+.2f}"


def _probability(p: float) -> str:
    if math.isnan(p):
        return ""
    return "p<.001" if p < 0.001 else f"p={p:.3f}"


def _name(evaluation: Evaluation, row: dict[str, Any]) -> str:
    """Name a row by what it does not share with all others."""
    name = str(row["method"])
    if len(evaluation.edges) > 1:
        name += f" {_spaced(row['edges'])}"
    if len(evaluation.receptive_fields) > 1 and row["method"] != "raw" and row["receptive_field"]:
        name += " /uniform"
    return name


def _title(evaluation: Evaluation, reference: str, special_tokens: bool, drop_sink: bool) -> str:
    tokens = "all tokens" if special_tokens else "without special tokens"
    if drop_sink:
        tokens += " and without the sink" if not special_tokens else " but the sink"
    return f"{_spaced(reference)}, {tokens}"


def _headline(evaluation: Evaluation) -> str:
    edges = "" if len(evaluation.edges) > 1 else f", edges {_spaced(evaluation.edges[0])}"
    relative = ""
    if evaluation.receptive_fields == (True,):
        relative = ", related to uniform attention"
    name = visible(evaluation.model, line_breaks=False)
    return f"{name}: {_texts(len(evaluation.texts))}{edges}{relative}"


def _closing(evaluation: Evaluation) -> list[str]:
    level = f"{evaluation.options['level']:.0%}"
    lines = [
        "Means over texts \u00b1 standard deviation, and below them the ends of their "
        f"{level} intervals."
    ]
    lines += [f"Note: {note}" for note in evaluation.notes]
    if _same_without_special(evaluation):
        lines.append("No token is special: without special tokens, all is the same.")
    if len(evaluation.receptive_fields) > 1:
        lines.append("/uniform: divided by what uniform attention over the same mask gives.")
    undefined = sum(
        values["undefined"]
        for column in _columns(evaluation)
        for _, row in evaluation._rows()
        for values in evaluation.summary(**row, **column)
    )
    if undefined:
        lines.append(
            f"{undefined} of the correlations are not defined (all scores the same, or fewer than "
            "two tokens) and are not in the means."
        )
    lines += _hopeless(evaluation)
    if evaluation.pending:
        lines.append(f"Not finished: {_texts(evaluation.pending)} more to evaluate.")
    if evaluation.skipped:
        lines.append(f"{_texts(len(evaluation.skipped))} could not be evaluated:")
        for item in evaluation.skipped[:MOST_SKIPPED]:
            lines.append(f"  {item.number}: {visible(item.reason, line_breaks=False)}")
        if len(evaluation.skipped) > MOST_SKIPPED:
            rest = [str(item.number) for item in evaluation.skipped[MOST_SKIPPED:]]
            shown = ", ".join(rest[:20]) + (", ..." if len(rest) > 20 else "")
            lines.append(f"  and {len(rest)} more: {shown}")
    return lines


def _hopeless(evaluation: Evaluation) -> list[str]:
    """Say of which differences no p-value can be small enough to survive the correction."""
    permutations, texts = evaluation.options["permutations"], len(evaluation.texts)
    exact = texts < 63 and 2**texts <= permutations + 1
    least = 2 / 2**texts if exact else 1 / (permutations + 1)
    cure = "evaluate more texts" if exact else "raise permutations"
    lines = []
    for over in COMPARISONS:
        tests = len(evaluation.compare(over))
        if least * tests > 1 - evaluation.options["level"]:
            what = "from baselines" if over == "baseline" else f"between two {_several(over)}"
            lines.append(
                f"No difference {what} can be significant: the smallest p-value there is, "
                f"{least:.2g}, times the {tests} tests of that family is too much. Ask for fewer "
                f"layers, or {cure}."
            )
    return lines


def _several(over: str) -> str:
    return {"method": "methods", "edges": "kinds of edges"}.get(over, "receptive fields")


def _texts(count: int) -> str:
    return f"{count} text" if count == 1 else f"{count} texts"


def _spaced(name: str) -> str:
    return name.replace("_", " ")
