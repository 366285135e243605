"""Figures, with matplotlib.

A figure is returned and never shown. Nothing here uses pyplot, so no state is shared with the
caller's own figures.
"""

import math
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from attnflow.checks import integer, number, resolve_index
from attnflow.errors import OptionError
from attnflow.explanation import Explanation
from attnflow.generation import Generation
from attnflow.graph import AttentionGraph
from attnflow.options import ANSWER_METHODS
from attnflow.tokens import Tokens, readable
from attnflow.view import theme
from attnflow.view.captions import (
    METHOD_NAMES,
    addition,
    answers,
    completed,
    counted,
    format_score,
    reading,
    scale_name,
    title,
)
from attnflow.view.pieces import has_sign, headed, labels
from attnflow.view.sentences import is_long, largest, sentences, units
from attnflow.view.text import visible, wrap

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure


# The room in points that each upright label needs.
LABEL_ROOM: Final = 10.5
# Up to this many tokens, bars are horizontal, with a label each; more are vertical.
HORIZONTAL_BARS: Final = 40
# Of a long text, this many sentences are drawn, with this many characters of each.
MOST_SENTENCES: Final = 24
SENTENCE_LABEL: Final = 64
# More edges than this cannot be told apart, and make a large file.
MOST_EDGES: Final = 3000
# With many tokens, this many edges per layer can still be told apart.
EDGES_OF_MANY: Final = 120
# Edges that weigh less than this share of the heaviest cannot be seen.
FAINTEST: Final = 0.02
# A cell below 0 has a dash unless its colour is almost white.
FAINTEST_DASH: Final = 0.08
# The matrix of a generation has at most so many rows and columns.
MOST_ROWS: Final = 60
MOST_COLUMNS: Final = 60
# From this many tokens on, colours are relative to the text's median, as on the page.
MANY_TOKENS: Final = 100
# On a relative scale the median has this place, and this share of tokens is told apart.
MEDIAN_SHARE: Final = 0.3
BELOW_TOP: Final = 0.98
# With more tokens than this, the residual connections would hide the other edges of a graph.
RESIDUALS_SEEN: Final = 40


def heat_map(
    explanation: Explanation, ax: Any = None, *, relative: bool | None = None
) -> "tuple[Figure, Axes]":
    """Draw the scores of every layer over the tokens, or of one layer over an image's patches.

    Of a long text, the 24 sentences with the largest scores are drawn, a row each, with a column
    for each layer. Of an image with a text, the text is drawn beside the patches; into axes that
    are given, the patches alone.

    Special tokens often score far above all others. The colours are scaled to the other tokens, and
    a special token above that has the scale's last colour. Contributions are blue where they speak
    for the answer, and orange with a dash where they speak against it. A row has what the
    embeddings that enter a layer add; the colours are scaled to the first row.

    The scores of many tokens often differ little beside those of a few, and rollout and flow of a
    deep layer are almost the same everywhere. Relative colours show such differences: in each
    layer, the median of the text has the same colour.

    Args:
        explanation: The explanation.
        ax: The axes to draw into. None makes a figure of a suitable size.
        relative: Whether colours are relative to the median. None means those of 100 tokens or
            more, and of a long text, are. Contributions and images never are.

    Returns:
        The figure and the axes.

    Raises:
        MissingExtraError: If matplotlib is not installed.
    """
    signed = has_sign(explanation)
    if is_long(explanation):
        return _sentence_map(explanation, ax, relative is not False and not signed)
    if explanation.grid is None:
        ordinary = ~np.array(explanation.special, dtype=bool)
        usual = explanation.scores[ordinary]
        if relative is None:
            relative = len(explanation.tokens) >= MANY_TOKENS
        relative = relative and not signed and bool(ordinary.any())
        values = explanation.layer_scores
        figure, ax = _layers(
            relative_shares(values, ordinary) if relative else values,
            headed(explanation.pieces, labels(explanation.pieces, numbered=False)),
            special=explanation.special,
            layer=explanation.layer,
            top=_top(abs(usual), abs(explanation.scores)) if signed else None,
            title=title(explanation),
            scale=scale_name(explanation),
            relative=relative,
            signed=signed,
            ax=ax,
        )
        theme.set_footer(ax, _below(explanation, relative=relative))
        return figure, ax
    values = explanation.map()
    rows, columns = values.shape
    width, height = np.clip(0.3 * columns + 1.6, 3.6, 9.0), np.clip(0.3 * rows + 0.6, 2.4, 9.0)
    words = [i for i in range(len(explanation.tokens)) if i not in explanation.patches]
    beside = None
    if explanation.text and words and ax is None:
        room = float(np.clip(0.25 * len(words) + 1.6, 2.4, 14.0))
        figure, whole = theme.axes_of(None, width + room, max(height, 3.0))
        whole.remove()
        ax, beside = figure.subplots(1, 2, width_ratios=[width, room])
    figure, ax = theme.axes_of(ax, width, height)
    usual = explanation.scores[~np.array(explanation.special, dtype=bool)]
    top = _top(abs(usual) if signed else usual, abs(explanation.scores))
    image = _cells(ax, values, top, signed=signed)
    _finish_image(figure, ax, image, explanation)
    if beside is not None:
        names = labels(explanation.pieces, numbered=False)
        _layers(
            explanation.layer_scores[:, words],
            [names[i] for i in words],
            special=[explanation.special[i] for i in words],
            layer=explanation.layer,
            top=top,
            title="",
            scale=None,
            signed=signed,
            ax=beside,
        )
    return figure, ax


def relative_shares(
    values: NDArray[np.float64], counted: NDArray[np.bool_], below_top: float = BELOW_TOP
) -> NDArray[np.float64]:
    """Return scores as shares of a scale on which the median of each layer has one place.

    Args:
        values: The scores, of shape (L, n).
        counted: Which of the n tokens count for the median: those that are not special.
        below_top: The share of tokens that are told apart; what exceeds them has the highest share.

    Returns:
        Shares from 0, for the lowest score of a layer, over 0.3, for the median, to 1, for what by
        default only one token in fifty exceeds; of the same shape.

    Example:
        >>> scores = np.array([[0.1, 0.2, 0.3, 0.4, 0.9]])
        >>> relative_shares(scores, np.array([True, True, True, True, False])).round(2)
        array([[0.  , 0.2 , 0.53, 1.  , 1.  ]])
    """
    known = np.sort(values[:, counted], axis=1)
    low, middle = known[:, :1], np.median(known, axis=1, keepdims=True)
    top = known[:, [math.ceil(below_top * known.shape[1]) - 1]]

    def share(part: NDArray[np.float64], whole: NDArray[np.float64]) -> NDArray[np.float64]:
        # Where nothing lies between, what is beyond is at the end of the scale.
        ratio = np.divide(part, whole, out=np.sign(part), where=whole > 0)
        clipped: NDArray[np.float64] = np.clip(ratio, 0.0, 1.0)
        return clipped

    above = MEDIAN_SHARE + (1.0 - MEDIAN_SHARE) * share(values - middle, top - middle)
    below = MEDIAN_SHARE * (1.0 - share(middle - values, middle - low))
    return np.where(values >= middle, above, below)


def _sentence_map(explanation: Explanation, ax: Any, relative: bool) -> "tuple[Figure, Axes]":
    """Draw the largest sentences of a long text, a row each, over the layers."""
    shown, left_out = _largest(explanation)
    signed, values = has_sign(explanation), shown.layer_scores.T
    rows, columns = values.shape
    width = np.clip(0.24 * columns, 1.0, 7.0) + 0.063 * _longest(shown.tokens) + 1.2
    made = ax is None
    figure, ax = theme.axes_of(ax, width, 0.22 * rows + 1.7)
    sizes = abs(values) if signed else values
    top = _top(abs(shown.scores), sizes) if signed else _top(sizes)
    if relative:
        every = sentences(explanation)[0]
        ordinary = ~np.array(every.special, dtype=bool)
        kept = [every.spans.index(span) for span in shown.spans]
        # The highest are what is drawn, so few of them may have the last colour.
        apart = max(BELOW_TOP, 1.0 - 2.0 / max(1, int(ordinary.sum())))
        values, top = relative_shares(every.layer_scores, ordinary, apart)[:, kept].T, 1.0
    image = _cells(ax, values, top, signed=signed, aspect="auto")
    if columns <= 60:
        _rule(ax, rows, columns, 0.6)
    names = [theme.label(name, SENTENCE_LABEL) for name in shown.tokens]
    theme.set_ticks(ax.yaxis, range(rows), names)
    ax.tick_params(axis="y", length=0)
    room = theme.points(ax)[0] * LABEL_ROOM / 18.0
    _layer_ticks(ax.xaxis, range(1, columns + 1), room, offset=-1, bold=explanation.layer)
    if signed:
        theme.put_text(ax.xaxis.label, "entering layer", theme.SMALL_SIZE)
    wide = {"across": True} if made else {}
    theme.set_title(ax, title(explanation), **wide)
    theme.set_footer(ax, "\n".join([left_out, _below(explanation, relative=relative)]), **wide)
    _named_scale(figure, image, ax, scale_name(explanation), relative=relative)
    return figure, ax


def _largest(explanation: Explanation, most: int | None = None) -> tuple[Explanation, str]:
    """Return the largest sentences of a long text, and a line that says what is left out."""
    every = sentences(explanation)[0]
    shown = largest(every, MOST_SENTENCES if most is None else integer(most, "most", least=1))
    count = len(every.tokens) - sum(every.special)
    told = counted(count, units(every).removesuffix("s"))
    order = "in the order of the text"
    if len(shown.tokens) < count:
        return shown, f"The {len(shown.tokens)} of {told} with the largest scores, {order}."
    return shown, f"{told}, {order}."


def _longest(names: Sequence[str]) -> int:
    return min(SENTENCE_LABEL, max(map(len, names), default=1))


def layer_map(
    values: Any,
    tokens: Sequence[str],
    *,
    special: Sequence[bool] | None = None,
    layer: int | None = None,
    top: float | None = None,
    title: str | None = None,
    colour_bar: bool = True,
    signed: bool = False,
    ax: Any = None,
) -> "tuple[Figure, Axes]":
    """Draw scores of layers (y, the first at the bottom, as in the paper) and tokens (x).

    Args:
        values: The scores, of shape (L, n). NaN is drawn in grey.
        tokens: The n tokens.
        special: For each token whether it is special. The colours are scaled to the others.
        layer: A layer to emphasise, from 1.
        top: The score that has the last colour. None means the highest of tokens that are not
            special.
        title: The title.
        colour_bar: Whether to draw the colour scale.
        signed: Whether the sign of a score has a meaning. The colours then run from orange, with a
            dash in the cell, through white for 0 to blue.
        ax: The axes to draw into. None makes a figure of a suitable size.

    Returns:
        The figure and the axes.

    Raises:
        OptionError: If the shapes do not agree.
        MissingExtraError: If matplotlib is not installed.

    Example:
        >>> figure, axes = layer_map([[0.5, 0.5], [0.2, 0.8]], ["the", "keys"])
        >>> [label.get_text() for label in axes.get_xticklabels()]
        ['the', 'keys']
    """
    return _layers(
        values,
        readable(tokens),
        special=special,
        layer=layer,
        top=top,
        title=title,
        scale=("against \u2190 \u2192 for" if signed else "score") if colour_bar else None,
        signed=signed,
        ax=ax,
    )


def _layers(
    values: Any,
    tokens: Sequence[str],
    *,
    special: Sequence[bool] | None,
    layer: int | None,
    top: float | None,
    title: str | None,
    scale: str | None,
    relative: bool = False,
    signed: bool,
    ax: Any,
) -> "tuple[Figure, Axes]":
    """Draw what `layer_map` draws; scale is what the scale of colours is called, None without."""
    given = np.asarray(values)
    columns = len(tokens)
    if given.shape[1:] != (columns,) or given.size == 0 or given.dtype.kind not in "fiu":
        raise OptionError(
            f"values has shape {given.shape}; expected numbers to draw of shape (L, {columns}) for "
            f"{columns} tokens"
        )
    if special is not None and len(special) != columns:
        raise OptionError(f"special has {len(special)} items, but there are {columns} tokens")
    scores, rows = given.astype(np.float64), len(given)
    ordinary = ~np.array(special or [False] * columns)
    figure, ax = theme.axes_of(
        ax,
        np.clip(0.3 * columns + 1.7, 4.6, 13.0),
        np.clip(0.24 * rows + 1.15 + _label_height(tokens), 1.9, 9.0),
    )
    sizes = abs(scores) if signed else scores
    limit = 1.0 if relative else _top(sizes[:, ordinary], sizes) if top is None else float(top)
    image = _cells(ax, scores, limit, signed=signed, aspect="auto")
    # Lines between the cells help as long as there are few cells.
    if columns <= 60 and rows <= 60:
        _rule(ax, rows, columns, 0.6)
    _token_ticks(ax, tokens, np.nan_to_num(sizes).max(axis=0), ordinary)
    height = theme.points(ax)[1]
    _layer_ticks(ax.yaxis, range(1, rows + 1), height, offset=-1, bold=layer)
    ax.set_xlim(-0.5, columns - 0.5)
    # As in the paper, the first layer is at the bottom.
    ax.set_ylim(-0.5, rows - 0.5)
    theme.set_title(ax, title)
    if signed:
        theme.put_text(ax.yaxis.label, "entering layer", theme.SMALL_SIZE)
    if scale:
        _named_scale(figure, image, ax, scale, relative=relative)
    return figure, ax


def _named_scale(figure: Any, image: Any, ax: Any, text: str, *, relative: bool = False) -> None:
    """Draw a scale of colours and what it shows; on a relative one say where the median is."""
    # A line has room for so much beside axes of this height.
    height = 72.0 * figure.get_figheight() * 0.5
    room = max(16, int(height / (0.55 * theme.SMALL_SIZE)))
    bar = add_colour_bar(figure, image, ax, "\n".join(wrap(text, room)))
    if relative:
        names = ["lowest", "median", "highest"]
        theme.set_ticks(bar.ax.yaxis, [0.0, MEDIAN_SHARE, 1.0], names, theme.SMALL_SIZE)


def attention_graph(
    weights: Any,
    tokens: Sequence[str],
    *,
    position: int | None = None,
    edges: int | None = None,
    title: str | None = None,
    ax: Any = None,
) -> "tuple[Figure, Axes]":
    """Draw the layered graph: tokens at the bottom, a row of nodes per layer, edges by weight.

    Raw attention, rollout and flow can all be drawn: an edge from position k of layer l down to
    position m weighs ``weights[l - 1][k, m]``. Rollout and flow lead to input tokens, but are drawn
    between neighbouring layers, as in the paper's Figure 1. With more than 40 tokens, the edges
    from a position to itself would hide the others. They are then thin lines whatever they weigh,
    or, if a position is traced, no stronger than the others.

    Args:
        weights: A graph, whose capacities are drawn, or weights of shape (L, n, n).
        tokens: The n tokens.
        position: Trace one position of the last layer: an edge weighs the share of that position
            that passes along it, multiplied along paths. Such shares become small from layer to
            layer, so edges are drawn by their square root. None draws all edges as they are.
        edges: The largest number of edges to draw, the heaviest first. None means 3,000, or 120 per
            layer if there are more than 40 tokens.
        title: The title.
        ax: The axes to draw into. None makes a figure of a suitable size.

    Returns:
        The figure and the axes.

    Raises:
        OptionError: If the shapes do not agree, or an option is not valid.
        MissingExtraError: If matplotlib is not installed.

    Example:
        >>> figure, axes = attention_graph([[[0.5, 0.5], [0.0, 1.0]]], ["the", "keys"])
        >>> len(axes.collections[0].get_segments())  # an edge of weight 0 is not drawn
        3
    """
    array = weights.capacities if isinstance(weights, AttentionGraph) else np.asarray(weights)
    tokens = readable(tokens)
    if array.ndim != 3 or array.shape[1] != array.shape[2] or array.dtype.kind not in "fiu":
        raise OptionError(f"weights has shape {array.shape}; expected numbers of shape (L, n, n)")
    count = array.shape[1]
    if len(tokens) != count:
        raise OptionError(f"there are {len(tokens)} tokens, but weights has shape {array.shape}")
    drawn = np.nan_to_num(np.array(array, dtype=np.float64))
    if position is not None:
        position = resolve_index(position, count, "position", "tokens")
        drawn = np.sqrt(traced(drawn, position))
    many = position is None and count > RESIDUALS_SEEN
    return _layered(drawn, tokens, edges, title, ax, thin_residuals=many)


def contribution_graph(
    explanation: Explanation,
    *,
    edges: int | None = None,
    ax: Any = None,
) -> "tuple[Figure, Axes]":
    """Draw what each edge of the layered graph carried to the answer.

    Tokens are at the bottom and the last layer at the top, as in `attention_graph`. The edge of a
    position to itself has what the residual connection and the feed-forward layer carried. What
    speaks for the answer is blue; what speaks against it is orange and dashed. Few edges carry
    most, so an edge is drawn by the square root of what it carried.

    Args:
        explanation: An explanation with contributions, and with a trace that has them.
        edges: The largest number of edges to draw, the heaviest first. None means 3,000, or 120 per
            layer if there are more than 40 tokens.
        ax: The axes to draw into. None makes a figure of a suitable size.

    Returns:
        The figure and the axes.

    Raises:
        OptionError: If the explanation does not have what its edges carried, or `edges` is not
            valid.
        MissingExtraError: If matplotlib is not installed.
    """
    trace = explanation.trace
    if trace is None or trace.carried is None:
        raise OptionError(
            "explanation does not have what its edges carried; expected one of the method "
            f"'contribution' with a trace of it, got the method {explanation.method!r}"
        )
    shown = Tokens(explanation.text, trace.tokens, trace.spans, trace.special, explanation.segments)
    tokens = headed(shown, labels(shown))
    drawn = np.sign(trace.carried) * np.sqrt(abs(trace.carried))
    figure, ax = _layered(drawn, tokens, edges, title(explanation), ax)
    theme.set_footer(ax, _below(explanation))
    return figure, ax


def _layered(
    weights: NDArray[np.float64],
    tokens: Sequence[str],
    edges: int | None,
    title: str | None,
    ax: Any,
    *,
    thin_residuals: bool = False,
) -> "tuple[Figure, Axes]":
    """Draw a layered graph by the sizes and signs of its edges' weights, of shape (L, n, n)."""
    layers, count, _ = weights.shape
    many = count > RESIDUALS_SEEN
    most = EDGES_OF_MANY * layers if many else MOST_EDGES
    most = most if edges is None else integer(edges, "edges", least=1)
    figure, ax = theme.axes_of(
        ax,
        np.clip(0.45 * count + 1.0, 3.2, 13.0),
        np.clip(0.5 * layers + 0.7 + _label_height(tokens), 2.2, 9.0),
    )
    straight = np.eye(count, dtype=bool) & many
    top = float(abs(weights).max(initial=0.0, where=~straight))
    if top > 0:
        hidden = straight & thin_residuals
        _draw_edges(ax, np.where(hidden, 0.0, np.clip(weights / top, -1.0, 1.0)), most)
    if thin_residuals:
        ax.vlines(range(count), 0, layers, color=theme.FAINT, linewidth=0.3, zorder=1)
    across, up = np.meshgrid(np.arange(count), np.arange(layers + 1))
    size = float(np.clip(900.0 / count, 1.0, 18.0))
    ax.scatter(across, up, s=size, color=theme.INK, linewidths=0, zorder=3)
    theme.dress(ax)
    ax.tick_params(length=0)
    incoming = abs(weights).max(axis=(0, 1), initial=0.0)
    _token_ticks(ax, tokens, incoming, np.ones(count, dtype=bool))
    _layer_ticks(ax.yaxis, range(layers + 1), theme.points(ax)[1])
    ax.set_xlim(-0.6, count - 0.4)
    ax.set_ylim(-0.25, layers + 0.25)
    theme.set_title(ax, title)
    return figure, ax


class _Bar(NamedTuple):
    """A bar of `token_bars`: "token", "special", "rest" or "bias", or the "sum" of the others."""

    name: str
    score: float
    kind: str


def token_bars(
    explanation: Explanation, ax: Any = None, *, most: int | None = None
) -> "tuple[Figure, Axes]":
    """Draw the scores of one layer as bars, one for each token, in the order of the text.

    Of a long text, they are the 24 sentences with the largest scores. Up to 40 tokens all have a
    name beside their bar. With more, only the highest have. The bar of a special token that scores
    higher than all others is cut off at the edge, with its score written there.

    Contributions reach to both sides: what speaks against the answer is hatched. Where every bar
    has a name, what biases add and the answer's value follow, so that the bars add up.

    Args:
        explanation: The explanation.
        ax: The axes to draw into. None makes a figure of a suitable size.
        most: Draw so many tokens with the largest scores, and one bar for what all others add.
            None draws every token.

    Returns:
        The figure and the axes.

    Raises:
        OptionError: If there are no tokens, or `most` is not an integer of 1 or more.
        MissingExtraError: If matplotlib is not installed.
    """
    whole, left_out, width = explanation, "", 24
    if is_long(explanation):
        explanation, left_out = _largest(explanation, most)
        width = SENTENCE_LABEL
    if len(explanation.tokens) == 0:
        raise OptionError("the explanation has no tokens; there is nothing to draw")
    signed, made = has_sign(explanation), ax is None
    bars = _bars(explanation, whole, None if left_out else most)
    count = len(bars)
    horizontal = len(explanation.tokens) <= HORIZONTAL_BARS or most is not None
    if horizontal:
        inches = 4.6 if width == 24 else 3.6 + 0.063 * _longest(explanation.tokens)
        figure, ax = theme.axes_of(ax, inches, 0.19 * count + 1.0 + 0.45 * signed)
        _horizontal_bars(ax, bars, explanation.method, width)
    else:
        bars = [bar for bar in bars if bar.kind in ("token", "special")]
        figure, ax = theme.axes_of(ax, np.clip(0.045 * count + 2.0, 6.0, 13.0), 3.2 + 0.3 * signed)
        _vertical_bars(ax, bars, explanation.method)
    _few_ticks(ax.xaxis if horizontal else ax.yaxis)
    if made:
        wide = {"across": True} if left_out else {}
        axis = ax.xaxis if horizontal else ax.yaxis
        theme.put_text(axis.label, scale_name(explanation), theme.TEXT_SIZE)
        theme.set_title(ax, title(whole), **wide)
        theme.set_footer(ax, "\n".join(filter(None, [left_out, _below(whole)])), **wide)
    return figure, ax


def _bars(explanation: Explanation, whole: Explanation, most: int | None) -> list[_Bar]:
    """Return the bars of the units of an explanation, which is of the largest ones of a whole."""
    shown, scores, marks = explanation.pieces, explanation.scores, explanation.special
    # The first sentence that is shown need not be the first of its segment.
    names = list(shown.names) if explanation is not whole else headed(shown, labels(shown))
    kept = list(range(len(names)))
    signed = has_sign(explanation)
    if most is not None and len(kept) > integer(most, "most", least=1):
        # Special tokens, which say little to a reader, are among the others.
        sizes = abs(scores) if signed else scores
        order = sorted(kept, key=lambda i: (marks[i], -sizes[i]))
        kept = sorted(order[:most])
    bars = [_Bar(names[i], float(scores[i]), "special" if marks[i] else "token") for i in kept]
    if not signed or whole.value is None:
        return bars
    total = float(whole.scores.sum())
    others = total - sum(bar.score for bar in bars)
    if len(bars) < len(names) or explanation is not whole:
        usual = sum(not mark for mark in marks) - sum(bar.kind == "token" for bar in bars)
        every = explanation is whole and usual == 0
        bars.append(_Bar("special tokens" if every else "all others", others, "rest"))
    parts = completed(whole, total)
    bars += [_Bar(name, score, "bias") for name, score in parts[:-1]]
    return [*bars, _Bar(*parts[-1], "sum")]


def _looks(bars: Sequence[_Bar], method: str) -> tuple[float, float, dict[str, Any]]:
    """Return the ends of the axis of bars, below and above 0, and the looks of the bars."""
    scores = np.array([bar.score for bar in bars], dtype=np.float64)
    signed = method in ANSWER_METHODS
    usual = np.array([bar.kind == "token" for bar in bars])
    sizes = abs(scores) if signed else scores
    top = _top(sizes[usual], sizes)
    # A sum is shown in full, unless the tokens beside it would become too short to compare.
    whole = max((abs(bar.score) for bar in bars if bar.kind == "sum"), default=0.0)
    limit = 1.12 * (max(top, whole) if whole <= 3.0 * top else 1.5 * top)
    lowest = min(0.0, float(scores.min()))
    lowest = max(lowest, -limit) if signed else lowest
    own = {"special": theme.FAINT, "rest": theme.FAINT, "bias": theme.FAINT, "sum": theme.INK}
    colours = [
        own.get(bar.kind, theme.FOR if bar.score >= 0 else theme.AGAINST)
        if signed
        else own.get(bar.kind, theme.style_of(method).colour)
        for bar in bars
    ]
    # What speaks against the answer is hatched, too, for those who see no difference in hue.
    hatches = ["//////" if signed and bar.score < 0 and bar.kind != "sum" else "" for bar in bars]
    look = {"color": colours, "linewidth": 0, "hatch": hatches, "edgecolor": "white"}
    return lowest, limit, look


def _horizontal_bars(ax: Any, bars: Sequence[_Bar], method: str, width: int) -> None:
    """Draw bars to the right of their names, and those below 0 to the left of the others."""
    count, scores = len(bars), np.array([bar.score for bar in bars])
    signed = method in ANSWER_METHODS
    lowest, limit, look = _looks(bars, method)
    clipped = np.clip(scores, lowest, limit)
    ax.barh(np.arange(count), clipped, 0.72, **look)
    theme.dress(ax, frame=["left"])
    theme.set_ticks(ax.yaxis, range(count), [theme.label(bar.name, width) for bar in bars])
    for text, bar in zip(ax.get_yticklabels(), bars, strict=True):
        text.set_color(theme.INK if bar.kind in ("token", "sum") else theme.QUIET)
        text.set_fontweight("bold" if bar.kind == "sum" else "normal")
    ax.set_ylim(count - 0.4, -0.6)
    # The numbers of bars to the left need room there, about 36 points.
    share = 36.0 / max(108.0, theme.points(ax)[0] - 72.0)
    room = share * (limit - lowest) if signed and lowest < 0 else -0.12 * lowest
    ax.set_xlim(lowest - room, limit + max(share, 0.14) * (limit - lowest))
    ax.tick_params(axis="y", length=0)
    largest = float(abs(scores).max())
    for i, bar in enumerate(bars):
        number = format_score(bar.score, largest, signed=signed)
        beyond = bar.score > limit or bar.score < lowest
        # What is cut off has its score inside the bar. The score is beside all other bars.
        left = beyond != (signed and bar.score < 0)
        if beyond:
            number = f"\u2190 {number}" if bar.score < 0 else f"{number} \u2192"
        dark = theme.INK if bar.kind == "sum" or beyond else theme.QUIET
        theme.annotate(
            ax,
            number,
            (clipped[i], i),
            (-3 if left else 3, 0),
            ha="right" if left else "left",
            va="center",
            color="white" if beyond and bar.kind == "sum" else dark,
        )
    if signed:
        ax.axvline(0.0, color=theme.QUIET, linewidth=0.6, zorder=1)
    parts = [i for i, bar in enumerate(bars) if bar.kind in ("rest", "bias", "sum")]
    for place in {parts[0] - 0.5, count - 1.5} if parts else ():
        ax.axhline(place, color=theme.FAINT, linewidth=0.6, zorder=1)


def _vertical_bars(ax: Any, bars: Sequence[_Bar], method: str) -> None:
    """Draw many bars in the order of the text, and name the highest."""
    scores, signed = np.array([bar.score for bar in bars]), method in ANSWER_METHODS
    lowest, limit, look = _looks(bars, method)
    clipped = np.clip(scores, lowest, limit)
    beyond = (scores > limit) | (scores < lowest)
    ax.bar(np.arange(len(bars)), clipped, 0.9, **look)
    theme.dress(ax, frame=["bottom"])
    ax.set_xlim(-1.0, len(bars))
    ax.set_ylim(1.12 * lowest, 1.05 * limit)
    largest = float(abs(scores).max())
    names = [theme.label(bar.name) for bar in bars]
    for i in np.flatnonzero(beyond).tolist():
        names[i] += f" {format_score(scores[i], largest, signed=signed)} \u2192"
    usual = np.array([bar.kind == "token" for bar in bars])
    _name_peaks(ax, names, np.where(usual | beyond, clipped, 0.0), both=signed)
    theme.put_text(ax.xaxis.label, "token, in the order of the text", theme.TEXT_SIZE)
    if signed:
        ax.axhline(0.0, color=theme.QUIET, linewidth=0.6, zorder=1)


def comparison(
    explanations: "Mapping[str, Explanation] | Sequence[Explanation]", ax: Any = None
) -> "tuple[Figure, Axes]":
    """Draw the scores of several methods for the same tokens, a row each.

    The scores of methods have no common unit, so each row is coloured by its own highest score
    among tokens that are not special. With up to 16 tokens the cells show the numbers. Among
    contributions, what speaks against the answer is orange, with a dash or a number below 0.

    Args:
        explanations: Explanations of the same tokens, by the names to show, or a list of them,
            which are named by method and layer.
        ax: The axes to draw into. None makes a figure of a suitable size.

    Returns:
        The figure and the axes.

    Raises:
        OptionError: If there are none, or they are not of the same tokens.
        MissingExtraError: If matplotlib is not installed.
    """
    if isinstance(explanations, Mapping):
        names, items = list(explanations), list(explanations.values())
    else:
        items = list(explanations)
        names = [
            METHOD_NAMES[item.method] + ("" if has_sign(item) else f", L{item.layer}")
            for item in items
        ]
    if not items:
        raise OptionError("explanations is empty; expected one or more to compare")
    first = items[0]
    for name, item in zip(names, items, strict=True):
        if item.tokens != first.tokens:
            raise OptionError(f"the explanation {name!r} is of other tokens than the first")
    ordinary = ~np.array(first.special, dtype=bool)
    scores = np.stack([item.scores for item in items])
    signs = [has_sign(item) for item in items]
    sizes = [abs(row) if sign else row for row, sign in zip(scores, signs, strict=True)]
    tops = np.array([_top(row[ordinary], row) for row in sizes])
    shares = scores / tops[:, None]
    rows, columns = shares.shape
    signed = any(signs)
    figure, ax = theme.axes_of(
        ax,
        np.clip(0.42 * columns + 2.4, 4.2, 13.0),
        np.clip(0.3 * rows + 0.75 + _label_height(first.tokens), 1.6, 8.0),
    )
    numbered = columns <= 16 and theme.points(ax)[0] / columns > 20
    image = _cells(ax, shares, 1.0, signed=signed, dashes=not numbered, aspect="auto")
    ax.tick_params(length=0)
    _rule(ax, rows, 1, 2.0)
    theme.set_ticks(ax.yaxis, range(rows), [theme.label(name) for name in names])
    _token_ticks(ax, labels(first.pieces, numbered=False), abs(shares).max(axis=0), ordinary)
    if numbered:
        for (row, column), score in np.ndenumerate(scores):
            digits = format_score(float(score), float(tops[row]), signed=signs[row])
            ink = theme.readable(float(shares[row, column]), signed=signed)
            theme.annotate(
                ax,
                digits.replace("0.", ".", 1),
                (column, row),
                ha="center",
                va="center",
                color=ink,
            )
    add_colour_bar(figure, image, ax, f"share of the row's {'largest' if signed else 'highest'}")
    return figure, ax


def correlation_over_layers(
    curves: Mapping[str, Any],
    ax: Any = None,
    *,
    baselines: Mapping[str, float] | None = None,
    title: str | None = None,
    ylabel: str = "Spearman\u2019s rank correlation",
) -> "tuple[Figure, Axes]":
    """Draw how far methods agree with a reference, layer by layer, with their intervals.

    Args:
        curves: By name, a curve: for each layer a mapping with "mean", and if known "ci" (low and
            high) and "layer", as `Evaluation.summary` returns them; or plain numbers, one for each
            layer from 1. "raw", "rollout" and "flow", alone or at the beginning of a name, have
            their own colours. A mean that is None or NaN is a gap.
        ax: The axes to draw into. None makes a figure.
        baselines: By name, a number that does not depend on the layer, drawn as a line across.
        title: The title.
        ylabel: The label of the y axis.

    Returns:
        The figure and the axes.

    Raises:
        OptionError: If there is no curve, or one has no layers or lacks its mean.
        MissingExtraError: If matplotlib is not installed.

    Example:
        >>> figure, axes = correlation_over_layers({"flow": [{"mean": 0.4, "ci": [0.3, 0.5]},
        ...                                                  {"mean": 0.7, "ci": [0.6, 0.8]}]})
        >>> [float(mean) for mean in axes.lines[0].get_ydata()]
        [0.4, 0.7]
    """
    if not isinstance(curves, Mapping) or not curves:
        raise OptionError("curves must be a dictionary of one or more curves by name")
    read = {name: _curve(name, curve) for name, curve in curves.items()}
    last = max(int(places.max()) for places, *_ in read.values())
    figure, ax = theme.axes_of(ax, np.clip(0.42 * last + 2.4, 4.8, 9.0), 3.1)
    theme.dress(ax, frame=["left", "bottom"])
    others = 0
    drawn: set[str] = set()
    for name, (places, means, low, high) in read.items():
        method = next((known for known in theme.STYLES if name.startswith(known)), name)
        style = theme.style_of(method, others)
        others += method not in theme.STYLES
        dashes = (0, (1.2, 1.2)) if method in drawn else style.dashes
        line = {"color": style.colour, "linestyle": dashes, "linewidth": 1.6, "zorder": 3}
        points = {"marker": style.marker, "markersize": 4.5 if last <= 16 else 3.0}
        edge = {"markeredgecolor": "white", "markeredgewidth": 0.5}
        ax.plot(places, means, label=theme.label(name, 40), **line, **points, **edge)
        drawn.add(method)
        if np.isfinite(low).any():
            ax.fill_between(places, low, high, color=style.colour, alpha=0.22, linewidth=0)
    ax.axhline(0.0, color=theme.QUIET, linewidth=0.6, zorder=1)
    for i, (name, value) in enumerate((baselines or {}).items(), others):
        style = theme.style_of(name, i)
        look = {"color": style.colour, "linestyle": style.dashes, "linewidth": 1.0, "zorder": 2}
        ax.axhline(float(value), label=theme.label(name, 40), **look)
    _layer_ticks(ax.xaxis, range(1, last + 1), theme.points(ax)[0] * LABEL_ROOM / 18.0)
    ax.set_xlim(0.7, last + 0.3)
    theme.put_text(ax.xaxis.label, "layer", theme.TEXT_SIZE)
    theme.put_text(ax.yaxis.label, theme.label(ylabel, 60), theme.TEXT_SIZE)
    ax.grid(axis="y", color="#ececec", linewidth=0.6)
    ax.set_axisbelow(True)
    _few_ticks(ax.yaxis)
    _legend(ax, len(read) + len(baselines or {}))
    theme.set_title(ax, title)
    return figure, ax


def generation_map(generation: Generation, ax: Any = None) -> "tuple[Figure, Axes]":
    """Draw what each token that a model wrote came from: the `matrix` of a generation.

    A row is a token of the answer, the first at the top, and a column a token that was there before
    it: of the prompt, and after the line of the answer. Cells are grey where the column's token
    was not written yet. Special tokens have no column. Of many columns those with the largest
    scores are drawn, and of many rows the first.

    Args:
        generation: The generation, with the explanations of its tokens.
        ax: The axes to draw into. None makes a figure of a suitable size.

    Returns:
        The figure and the axes.

    Raises:
        OptionError: If its tokens were not explained.
        MissingExtraError: If matplotlib is not installed.
    """
    whole = generation.whole
    if whole is None or len(generation) == 0:
        raise OptionError(
            "the generation has no explanations of its tokens; expected some to draw a row each"
        )
    matrix = generation.matrix[:MOST_ROWS]
    ordinary, signed = ~np.array(whole.special, dtype=bool), has_sign(whole)
    # Special tokens, such as those of a chat template, often exceed all others.
    usual = np.flatnonzero(ordinary if ordinary.any() else ~ordinary)
    weight = np.nansum(abs(matrix[:, usual]), axis=0)
    kept = usual[np.sort((-weight).argsort(kind="stable")[:MOST_COLUMNS])]
    values, own = matrix[:, kept], np.array(generation.written, dtype=bool)[kept]
    names = labels(whole.pieces, numbered=False)
    rows, columns = values.shape
    height = 0.19 * rows + 1.3 + _label_height(names)
    figure, ax = theme.axes_of(ax, np.clip(0.2 * columns + 2.2, 4.6, 13.0), height)
    sizes = abs(values) if signed else values
    image = _cells(ax, values, _top(sizes), signed=signed, aspect="auto")
    _rule(ax, rows, columns, 0.6)
    peaks = np.nan_to_num(sizes).max(axis=0)
    _token_ticks(ax, [names[i] for i in kept], peaks, ordinary[kept])
    written = [one.target or "" for one in generation][:MOST_ROWS]
    theme.set_ticks(ax.yaxis, range(rows), [theme.label(name.strip() or name) for name in written])
    ax.tick_params(axis="y", length=0)
    if own.any() and not own.all():
        ax.axvline(float(np.argmax(own)) - 0.5, color=theme.INK, linewidth=1.0)
    told = []
    if columns < len(usual):
        told.append(f"The {columns} of {len(usual)} columns with the largest scores.")
    if len(usual) < len(names):
        told.append("Special tokens are left out.")
    if rows < len(generation):
        told.append(f"The first {rows} of {len(generation)} tokens written.")
    told.append("Right of the line: the answer itself. Grey: not written yet.")
    theme.set_footer(ax, " ".join(told))
    _named_scale(figure, image, ax, scale_name(whole))
    return figure, ax


def image_overlay(
    explanation: Explanation, image: Any, ax: Any = None, *, alpha: float = 0.5
) -> "tuple[Figure, Axes]":
    """Draw the scores of an image's patches over the image.

    The image is shown in grey, so colour shows only the score: the lighter and yellower, the
    higher. Parts that the model did not see, such as an edge that was cut off, have no colour.
    Contributions are blue or orange, the stronger the larger, and a dashed line surrounds what
    speaks most against the answer.

    Args:
        explanation: The explanation of an image.
        image: The image: a Pillow image, or an array of shape (height, width) or
            (height, width, 3) of bytes, or of numbers from 0 to 1.
        ax: The axes to draw into. None makes a figure of a suitable size.
        alpha: The opacity of the colours over the image, from 0 to 1.

    Returns:
        The figure and the axes.

    Raises:
        OptionError: If it is not the explanation of an image, or an argument is not valid.
        MissingExtraError: If matplotlib is not installed.
    """
    if explanation.grid is None:
        raise OptionError("this is the explanation of a text; expected one of an image")
    alpha = number(alpha, "alpha", least=0, most=1)
    grey = _grey(image)
    values = explanation.map(grey.shape)
    ratio = grey.shape[0] / grey.shape[1]
    width = float(np.clip(3.6 / math.sqrt(ratio), 2.4, 7.0))
    figure, ax = theme.axes_of(ax, width + 1.0, width * ratio + 0.5)
    ax.imshow(grey, cmap="gray", vmin=0.0, vmax=1.0, interpolation="bilinear")
    if has_sign(explanation):
        top = _top(abs(values))
        look = {"cmap": theme.signed_scale(), "vmin": -top, "vmax": top}
        # The picture shows where there is little to say of it.
        look["alpha"] = alpha * np.nan_to_num(np.sqrt(abs(values) / top))
        if np.nanmin(values) < -0.25 * top:
            line = {"colors": theme.INK, "linestyles": "dashed", "linewidths": 0.8}
            ax.contour(values, levels=[-0.25 * top], **line)
    else:
        # Light stands out on a picture, and ink on paper, so this scale runs the other way.
        look = {"cmap": "cividis", "vmin": 0.0, "vmax": _top(values), "alpha": alpha}
    drawn = ax.imshow(np.ma.masked_invalid(values), **look)
    theme.dress(ax)
    _finish_image(figure, ax, drawn, explanation)
    return figure, ax


def add_colour_bar(
    figure: Any, image: Any, ax: Any, text: str, above: bool | None = None, **more: Any
) -> Any:
    """Draw the colour scale of an image beside its axes.

    Args:
        figure: The figure.
        image: What ``Axes.imshow`` returned.
        ax: The axes to take the room from, or several.
        text: The label of the scale.
        above: Whether some values lie above the scale. None means to look at the values.
        **more: Other options of ``Figure.colorbar``.

    Returns:
        The colour bar.
    """
    values = np.ma.filled(np.ma.asarray(image.get_array(), dtype=np.float64), np.nan)
    low, high = image.get_clim()
    if above is None:
        above = bool(np.nanmax(values) > high * (1 + 1e-9))
    below = low < 0 and bool(np.nanmin(values) < low * (1 + 1e-9))
    extend = {(False, False): "neither", (True, False): "max", (False, True): "min"}
    options = {"fraction": 0.05, "pad": 0.02, "aspect": 18, **more}
    options["extend"] = extend.get((above, below), "both")
    bar = figure.colorbar(image, ax=ax, **options)
    bar.set_alpha(1.0)
    bar.outline.set_visible(False)
    bar.ax.tick_params(
        colors=theme.QUIET, labelcolor=theme.INK, labelsize=theme.SMALL_SIZE, width=0.6, length=2.5
    )
    _few_ticks(bar.ax.yaxis if bar.orientation == "vertical" else bar.ax.xaxis)
    bar.set_label(text, size=theme.SMALL_SIZE, color=theme.INK, family=[theme.FONT])
    return bar


def traced(weights: NDArray[np.float64], position: int) -> NDArray[np.float64]:
    """Return the share of a position that passes along each edge, over all paths.

    Args:
        weights: The weights of the edges, of shape (L, n, n).
        position: The index of a position of the last layer.

    Returns:
        The shares, of the same shape.
    """
    shares = np.empty_like(weights)
    share = np.zeros(weights.shape[1])
    share[position] = 1.0
    for layer in range(len(weights) - 1, -1, -1):
        shares[layer] = share[:, None] * weights[layer]
        share = shares[layer].sum(axis=0)
    return shares


# ---- What the figures share ----------------------------------------------------------------------


def _cells(
    ax: Any,
    values: NDArray[np.float64],
    top: float,
    *,
    signed: bool = False,
    dashes: bool = True,
    **more: Any,
) -> Any:
    """Draw an array as coloured cells, in a frame. A dash in a cell says that it is below 0."""
    colours, low = (theme.signed_scale(), -top) if signed else (theme.scale(), 0.0)
    options = {"cmap": colours, "vmin": low, "vmax": top, "interpolation": "nearest", **more}
    theme.dress(ax, frame=["left", "right", "top", "bottom"])
    image = ax.imshow(values, **options)
    if signed and dashes:
        from matplotlib.collections import LineCollection

        places = np.argwhere(np.nan_to_num(values) < -FAINTEST_DASH * top)
        ends = [[(column - 0.2, row), (column + 0.2, row)] for row, column in places.tolist()]
        inks = [theme.readable(values[row, column] / top, signed=True) for row, column in places]
        room = min(np.array(theme.points(ax)) / values.shape[::-1])
        width = float(np.clip(room / 12, 0.3, 1.2))
        ax.add_collection(LineCollection(ends, colors=inks, linewidths=width), autolim=False)
    return image


def _below(explanation: Explanation, *, relative: bool = False) -> str:
    """Return what is written below a figure: the answer, how to read it, and how sure it is."""
    lines = [f"{name}: {value}" for name, value in answers(explanation)]
    if has_sign(explanation):
        lines.append(f"Sum: {addition(explanation)}")
    lines.append(reading(explanation))
    if relative:
        lines.append(
            "Colours are relative: in each layer the median of the text has the same colour, and "
            "the few highest scores are equally dark."
        )
    if explanation.check is not None:
        lines.append(explanation.check.sentences()[0])
    # A line break may be the token that is explained.
    return "\n".join(visible(line, line_breaks=False) for line in lines)


def _finish_image(figure: Any, ax: Any, image: Any, explanation: Explanation) -> None:
    ax.set_xticks([])
    ax.set_yticks([])
    theme.set_title(ax, title(explanation))
    theme.set_footer(ax, _below(explanation))
    _named_scale(figure, image, ax, scale_name(explanation))


def _label_height(tokens: Sequence[str]) -> float:
    """Return the height of the longest label in inches, as it stands upright below the axes."""
    return 0.055 * min(24, max((len(token) for token in tokens), default=1))


def _top(*choices: NDArray[np.float64]) -> float:
    """Return the highest number of the first array that has one above 0."""
    for values in choices:
        known = values[np.isfinite(values)]
        if known.size and known.max() > 0:
            return float(known.max())
    return 1e-12


def _step(count: int, room: float) -> int:
    """Return the distance between labels at which they do not touch."""
    return max(1, math.ceil(count * LABEL_ROOM / max(room, 1.0)))


def _heaviest(weights: NDArray[np.float64], apart: int) -> Iterator[int]:
    """Yield indices from the heaviest on, leaving out those too near to one before."""
    taken = np.zeros(len(weights), dtype=bool)
    for i in np.argsort(-weights, kind="stable").tolist():
        if not taken[i]:
            taken[max(0, i - apart + 1) : i + apart] = True
            yield i


def _token_ticks(
    ax: Any,
    tokens: Sequence[str],
    weights: NDArray[np.float64],
    ordinary: NDArray[np.bool_],
) -> None:
    """Label the tokens along the x axis. If there is no room for all, label the heaviest."""
    count = len(tokens)
    room = theme.points(ax)[0]
    step = _step(count, room)
    shown = sorted(_heaviest(weights, step))
    names = [theme.label(tokens[i]) for i in shown]
    size = theme.TICK_SIZE if step == 1 and room / count > 12 else theme.SMALL_SIZE
    # Labels are horizontal where the longest has room.
    look: dict[str, Any] = {}
    if max(map(len, names), default=0) * 0.62 * theme.TICK_SIZE >= room / count:
        slanted = {"rotation": 45, "ha": "right", "rotation_mode": "anchor"}
        look = slanted if room / count > 14 else {"rotation": 90}
    theme.set_ticks(ax.xaxis, shown, names, size, **look)
    for i, text in zip(shown, ax.get_xticklabels(), strict=True):
        if not ordinary[i]:
            text.set_color(theme.QUIET)
    if step == 1:
        ax.tick_params(axis="x", length=0)


def _layer_ticks(
    axis: Any, layers: range, room: float, *, offset: int = 0, bold: int | None = None
) -> None:
    """Label as many layers as there is room for. Layer l is at l + offset; 0 is the input."""
    step = _step(len(layers), room)
    shown = [layer for layer in layers if layer % step == 0]
    names = [f"L{layer}" if layer else "input" for layer in shown]
    theme.set_ticks(axis, [layer + offset for layer in shown], names)
    for layer, text in zip(shown, axis.get_ticklabels(), strict=True):
        text.set_fontweight("bold" if layer == bold else "normal")
    axis.set_tick_params(length=0 if step == 1 else 2.5)


def _rule(ax: Any, rows: int, columns: int, width: float) -> None:
    """Draw white lines between the cells of an image. A grid would need a tick for each line."""
    from matplotlib.collections import LineCollection

    right, top = ax.get_images()[0].get_array().shape[1] - 0.5, rows - 0.5
    lines = [[(-0.5, y), (right, y)] for y in np.arange(1, rows) - 0.5]
    lines += [[(x, -0.5), (x, top)] for x in np.arange(1, columns) - 0.5]
    ax.add_collection(LineCollection(lines, colors="white", linewidths=width), autolim=False)


def _few_ticks(axis: Any) -> None:
    from matplotlib.ticker import MaxNLocator, ScalarFormatter

    axis.set_major_locator(MaxNLocator(nbins=5, min_n_ticks=2))
    plain = ScalarFormatter(useOffset=False, useMathText=False)
    plain.set_powerlimits((-4, 5))
    axis.set_major_formatter(plain)
    axis.set_tick_params(labelsize=theme.TICK_SIZE, labelfontfamily=theme.FONT)
    axis.get_offset_text().set(size=theme.SMALL_SIZE, family=[theme.FONT])


def _legend(ax: Any, entries: int) -> None:
    """Draw a legend at the right of the axes."""
    place = {"loc": "upper left", "bbox_to_anchor": (1.0, 1.02), "borderaxespad": 0.4}
    space = {"handlelength": 2.6, "labelspacing": 0.6, "ncols": 1 + entries // 16}
    legend = ax.legend(frameon=False, **place, **space)
    for text in legend.get_texts():
        theme.put_text(text, text.get_text(), theme.TEXT_SIZE)


def _draw_edges(ax: Any, weights: NDArray[np.float64], most: int) -> None:
    """Draw edges with weights from -1 to 1, the lightest first; dashed if below 0."""
    from matplotlib.collections import LineCollection

    count = weights.shape[1]
    places = np.argwhere(abs(weights) > FAINTEST)
    signed = weights[*places.T]
    order = np.argsort(abs(signed), kind="stable")[-most:]
    signed = signed[order]
    weight = abs(signed)
    ends = [[(start, layer + 1), (end, layer)] for layer, start, end in places[order].tolist()]
    widest = float(np.clip(60.0 / count, 1.2, 3.6))
    # Width and darkness both grow with the weight, which is legible in grey, too.
    if (signed < 0).any():
        colours = theme.signed_scale()(0.5 + 0.5 * np.sign(signed) * (0.4 + 0.6 * weight))
    else:
        colours = theme.scale()(0.2 + 0.65 * weight)
    colours[:, 3] = 0.25 + 0.75 * weight
    dashes = [(0, (2.5, 1.5)) if below else "solid" for below in signed < 0]
    look = {"linewidths": 0.15 + widest * weight, "linestyles": dashes, "zorder": 2}
    capstyle = "butt" if (signed < 0).any() else "round"
    ax.add_collection(LineCollection(ends, colors=colours, capstyle=capstyle, **look))


def _name_peaks(
    ax: Any, names: Sequence[str], scores: NDArray[np.float64], *, both: bool = False
) -> None:
    """Name the highest bars, without overlap; with `both`, the lowest below 0 as well."""
    width, height = theme.points(ax)
    apart = max(1, math.ceil(9.0 * len(names) / width))
    sizes = abs(scores) if both else scores
    taken = [i for i in _heaviest(sizes, apart) if sizes[i] > 0][:16]
    room = [0.0, 0.0]  # below and above the bars, as shares of the height
    for i in taken:
        up = bool(scores[i] > 0)
        look = {"ha": "center", "va": "bottom" if up else "top", "rotation": 90}
        theme.annotate(ax, names[i], (i, scores[i]), (0, 3 if up else -3), **look)
        needed = len(names[i]) * 0.6 * theme.SMALL_SIZE / height
        room[up] = max(room[up], min(0.3 if both else 0.6, needed))
    low, high = ax.get_ylim()
    span = (high - low if both else high) / (1.0 - sum(room))
    ax.set_ylim(low - room[0] * span, high + room[1] * span)


def _curve(name: str, curve: Any) -> NDArray[np.float64]:
    """Return the layers, the means, and the ends of the intervals of a curve, of shape (4, L)."""
    points = [] if isinstance(curve, str | Mapping) else list(curve)
    if not points:
        raise OptionError(
            f"the curve {name!r} has no layers; expected a number or mapping for each layer"
        )
    rows = []
    for i, point in enumerate(points, start=1):
        row = point if isinstance(point, Mapping) else {"mean": point}
        if "mean" not in row:
            raise OptionError(f"layer {i} of the curve {name!r} has no 'mean'")
        rows.append((row.get("layer", i), row["mean"], *(row.get("ci") or (None, None))))
    # None becomes NaN.
    return np.array(rows, dtype=np.float64).T


def _grey(image: Any) -> NDArray[np.float64]:
    """Return an image as lightness from 0 to 1, of shape (height, width)."""
    array = np.asarray(image)
    colour = array.ndim == 3 and array.shape[2] in (3, 4)
    known = (colour or array.ndim == 2) and array.size and array.dtype.kind in "fiu"
    if not known or not np.isfinite(array).all():
        raise OptionError(
            f"image has shape {array.shape} and type {array.dtype}; expected (height, width) or "
            "(height, width, 3), bytes or finite numbers from 0 to 1"
        )
    # ITU-R BT.601, as Pillow turns colour to grey.
    grey = array[..., :3] @ np.array([0.299, 0.587, 0.114]) if colour else array
    scaled: NDArray[np.float64] = grey / (255.0 if array.dtype.kind in "iu" else 1.0)
    return scaled.clip(0.0, 1.0)
