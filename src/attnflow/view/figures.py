"""Figures, with matplotlib.

A figure is returned and never shown. Nothing here touches pyplot, so that no state is shared with
the caller's own figures.
"""

import math
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final

import numpy as np
from numpy.typing import NDArray

from attnflow.errors import OptionError
from attnflow.explanation import Explanation
from attnflow.graph import AttentionGraph
from attnflow.view import theme
from attnflow.view.captions import METHOD_NAMES, format_score, headline
from attnflow.view.pieces import labels

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

__all__ = [
    "add_colour_bar",
    "attention_graph",
    "comparison",
    "correlation_over_layers",
    "heat_map",
    "image_overlay",
    "layer_map",
    "token_bars",
]

# Labels that stand upright need this much room each, in points.
LABEL_ROOM: Final = 10.5
# Up to this many tokens, bars lie beside their tokens; more stand on a line.
LYING_BARS: Final = 40
# More edges than this are a blur, and make a large file.
MOST_EDGES: Final = 3000
# Of many tokens, so many edges a layer can still be told apart.
EDGES_OF_MANY: Final = 120
# Edges that weigh less than this share of the heaviest cannot be seen.
FAINTEST: Final = 0.02
# Of more tokens than this, the residual connections would hide all else in a graph.
RESIDUALS_SEEN: Final = 40


def heat_map(explanation: Explanation, ax: Any = None) -> "tuple[Figure, Axes]":
    """Draw the scores of every layer over the tokens, or of one layer over an image's patches.

    Special tokens often score far above all others. The colours are scaled to the other tokens, and
    a special token above that has the scale's last colour.

    Args:
        explanation: The explanation.
        ax: The axes to draw into. None makes a figure of a fitting size.

    Returns:
        The figure and the axes.

    Raises:
        MissingExtraError: If matplotlib is not installed.
    """
    title = f"{METHOD_NAMES[explanation.method]}, {headline(explanation)}"
    if explanation.grid is None:
        return layer_map(
            explanation.layer_scores,
            explanation.tokens,
            special=explanation.special,
            layer=explanation.layer,
            title=title,
            ax=ax,
        )
    values = explanation.map()
    rows, columns = values.shape
    figure, ax = theme.axes_of(
        ax, np.clip(0.3 * columns + 1.6, 3.6, 9.0), np.clip(0.3 * rows + 0.6, 2.4, 9.0)
    )
    top = _top(values)
    image = ax.imshow(values, cmap=theme.scale(), vmin=0.0, vmax=top, interpolation="nearest")
    theme.dress(ax, frame=["left", "right", "top", "bottom"])
    ax.set_xticks([])
    ax.set_yticks([])
    theme.set_title(ax, title)
    add_colour_bar(figure, image, ax, "score")
    return figure, ax


def layer_map(
    values: Any,
    tokens: Sequence[str],
    *,
    special: Sequence[bool] | None = None,
    layer: int | None = None,
    top: float | None = None,
    title: str | None = None,
    colour_bar: bool = True,
    ax: Any = None,
) -> "tuple[Figure, Axes]":
    """Draw scores of layers (y, the first at the bottom, as in the paper) and tokens (x).

    Args:
        values: The scores, of shape (L, n). NaN is drawn in grey.
        tokens: The n tokens.
        special: For each token whether it is special. The colours are scaled to the others.
        layer: A layer to set off, from 1.
        top: The score that has the last colour. None is the highest of tokens not special.
        title: What to write above.
        colour_bar: Whether to draw the scale beside it.
        ax: The axes to draw into. None makes a figure of a fitting size.

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
    scores = _matrix(values, "values", len(tokens))
    rows, columns = scores.shape
    ordinary = np.ones(columns, dtype=bool)
    if special is not None:
        if len(special) != columns:
            raise OptionError(f"special has {len(special)} items, but there are {columns} tokens")
        ordinary = ~np.array(special, dtype=bool)
    longest = min(24, max((len(token) for token in tokens), default=1))
    figure, ax = theme.axes_of(
        ax,
        np.clip(0.3 * columns + 1.7, 3.6, 13.0),
        np.clip(0.24 * rows + 0.75 + 0.055 * longest, 1.9, 9.0),
    )
    limit = _top(scores[:, ordinary], scores) if top is None else float(top)
    image = ax.imshow(
        scores, cmap=theme.scale(), vmin=0.0, vmax=limit, aspect="auto", interpolation="nearest"
    )
    theme.dress(ax, frame=["left", "right", "top", "bottom"])
    # A hairline between cells helps the eye as long as there are few.
    if columns <= 60 and rows <= 60:
        _rule(ax, rows, columns, 0.6)
    _token_ticks(ax, tokens, np.nanmax(np.where(np.isnan(scores), 0.0, scores), axis=0), ordinary)
    _layer_ticks(ax, rows, layer)
    ax.set_xlim(-0.5, columns - 0.5)
    # As in the paper, the first layer is at the bottom.
    ax.set_ylim(-0.5, rows - 0.5)
    if title is not None:
        theme.set_title(ax, title)
    if colour_bar:
        add_colour_bar(figure, image, ax, "score")
    return figure, ax


def attention_graph(
    weights: Any,
    tokens: Sequence[str],
    *,
    position: int | None = None,
    edges: int | None = None,
    title: str | None = None,
    ax: Any = None,
) -> "tuple[Figure, Axes]":
    """Draw the layered graph: tokens at the bottom, a row of nodes a layer, edges by weight.

    Raw attention, rollout and flow can all be drawn: an edge from position k of layer l down to
    position m weighs ``weights[l - 1][k, m]``. Rollout and flow lead to input tokens, and are drawn
    between neighbouring layers all the same, as in the paper's Figure 1. Of more than 40 tokens,
    the edges from a position to itself are thin lines whatever they weigh, because they would hide
    the others; of a position that is traced, they are no stronger than the others.

    Args:
        weights: A graph, whose capacities are drawn, or weights of shape (L, n, n).
        tokens: The n tokens.
        position: Trace one position of the last layer: an edge weighs what comes along it of that
            position, multiplied along paths. Such shares get small from layer to layer, so that
            edges are drawn by the square root. None draws all edges as they are.
        edges: How many edges to draw at most, the heaviest first. None is 3,000, or, of more than
            40 tokens, 120 a layer.
        title: What to write above.
        ax: The axes to draw into. None makes a figure of a fitting size.

    Returns:
        The figure and the axes.

    Raises:
        OptionError: If the shapes do not agree, or an option is not valid.
        MissingExtraError: If matplotlib is not installed.

    Example:
        >>> figure, axes = attention_graph([[[0.5, 0.5], [0.0, 1.0]]], ["the", "keys"])
        >>> len(axes.collections[0].get_segments())  # an edge that weighs nothing is not drawn
        3
    """
    array = weights.capacities if isinstance(weights, AttentionGraph) else np.asarray(weights)
    if array.ndim != 3 or array.shape[1] != array.shape[2] or array.dtype.kind not in "fiu":
        raise OptionError(f"weights has shape {array.shape}; expected numbers of shape (L, n, n)")
    layers, count, _ = array.shape
    if len(tokens) != count:
        raise OptionError(f"there are {len(tokens)} tokens, but weights has shape {array.shape}")
    if edges is None:
        edges = MOST_EDGES if count <= RESIDUALS_SEEN else EDGES_OF_MANY * layers
    if isinstance(edges, bool) or not isinstance(edges, int) or edges < 1:
        raise OptionError(f"edges is {edges!r}; expected a whole number of 1 or more")
    if position is not None and not (
        isinstance(position, int | np.integer) and -count <= position < count
    ):
        raise OptionError(f"position is {position!r}; expected an index of the {count} tokens")
    longest = min(24, max((len(token) for token in tokens), default=1))
    figure, ax = theme.axes_of(
        ax,
        np.clip(0.45 * count + 1.0, 3.2, 13.0),
        np.clip(0.5 * layers + 0.7 + 0.055 * longest, 2.2, 9.0),
    )
    drawn = np.nan_to_num(np.array(array, dtype=np.float64))
    if position is not None:
        drawn = np.sqrt(_traced(drawn, int(position) % count))
    straight = np.eye(count, dtype=bool) & (count > RESIDUALS_SEEN)
    top = float(drawn.max(initial=0.0, where=~straight))
    if top > 0:
        hidden = straight & (position is None)
        _draw_edges(ax, np.where(hidden, 0.0, np.minimum(drawn / top, 1.0)), edges)
    if position is None and straight.any():
        ax.vlines(range(count), 0, layers, color=theme.FAINT, linewidth=0.3, zorder=1)
    across, up = np.meshgrid(np.arange(count), np.arange(layers + 1))
    size = float(np.clip(900.0 / count, 1.0, 18.0))
    ax.scatter(across, up, s=size, color=theme.INK, linewidths=0, zorder=3)
    theme.dress(ax)
    ax.tick_params(length=0)
    incoming = drawn.max(axis=(0, 1), initial=0.0)
    _token_ticks(ax, tokens, incoming, np.ones(count, dtype=bool))
    step = _step(layers + 1, theme.points(ax)[1])
    shown = range(0, layers + 1, step)
    names = ["input" if i == 0 else f"L{i}" for i in shown]
    theme.set_ticks(ax.yaxis, list(shown), names)
    ax.set_xlim(-0.6, count - 0.4)
    ax.set_ylim(-0.25, layers + 0.25)
    if title is not None:
        theme.set_title(ax, title)
    return figure, ax


def token_bars(explanation: Explanation, ax: Any = None) -> "tuple[Figure, Axes]":
    """Draw the scores of one layer as bars, one for each token, in the order of the text.

    Up to 40 tokens each have a name beside their bar. Of more, the highest are named. A special
    token that scores higher than all others is cut off at the edge, with its score written there.

    Args:
        explanation: The explanation.
        ax: The axes to draw into. None makes a figure of a fitting size.

    Returns:
        The figure and the axes.

    Raises:
        OptionError: If there are no tokens.
        MissingExtraError: If matplotlib is not installed.
    """
    scores = explanation.scores
    count = len(scores)
    if count == 0:
        raise OptionError("the explanation has no tokens; there is nothing to draw")
    ordinary = ~np.array(explanation.special, dtype=bool)
    top = _top(scores[ordinary], scores)
    lying = count <= LYING_BARS
    figure, ax = (
        theme.axes_of(ax, 4.6, 0.19 * count + 0.8)
        if lying
        else theme.axes_of(ax, np.clip(0.045 * count + 2.0, 6.0, 13.0), 2.9)
    )
    style = theme.style_of(explanation.method)
    colours = [style.colour if usual else theme.FAINT for usual in ordinary]
    names = [theme.label(name) for name in labels(explanation)]
    limit = 1.12 * top
    clipped = np.clip(scores, min(0.0, float(scores.min())), limit)
    draw = ax.barh if lying else ax.bar
    draw(np.arange(count), clipped, 0.72 if lying else 0.9, color=colours, linewidth=0)
    theme.dress(ax, frame=["left"] if lying else ["bottom"])
    lowest = min(0.0, 1.12 * float(scores.min()))
    if lying:
        theme.set_ticks(ax.yaxis, range(count), names)
        ax.set_ylim(count - 0.4, -0.6)
        ax.set_xlim(lowest, 1.25 * top)
        ax.tick_params(axis="y", length=0)
    else:
        ax.set_xlim(-1.0, count)
        ax.set_ylim(lowest, 1.05 * limit)
    largest = max(abs(top), abs(float(scores.min())))
    for i in range(count) if lying else []:
        beyond = bool(scores[i] > limit)
        note = ax.annotate(
            " ",
            (clipped[i], i),
            (-3 if beyond else 3, 0),
            textcoords="offset points",
            ha="right" if beyond else "left",
            va="center",
        )
        number = format_score(float(scores[i]), largest) + (" \u2192" if beyond else "")
        theme.put_text(note, number, theme.SMALL_SIZE, color=theme.INK if beyond else theme.QUIET)
    axis = ax.xaxis if lying else ax.yaxis
    if not lying:
        _name_peaks(
            ax,
            [
                f"{name} {format_score(float(score), largest)} \u2192" if score > limit else name
                for name, score in zip(names, scores, strict=True)
            ],
            np.where(ordinary | (scores > limit), clipped, -np.inf),
        )
        theme.put_text(ax.xaxis.label, "token, in the order of the text", theme.TEXT_SIZE)
    theme.put_text(axis.label, "score", theme.TEXT_SIZE)
    _few_ticks(axis)
    theme.set_title(ax, f"{METHOD_NAMES[explanation.method]}, {headline(explanation)}")
    return figure, ax


def comparison(
    explanations: "Mapping[str, Explanation] | Sequence[Explanation]", ax: Any = None
) -> "tuple[Figure, Axes]":
    """Draw what several methods say about the same tokens, a row each.

    A row is coloured by its own highest score among tokens that are not special, because the
    scores of methods have no common unit. Up to 16 tokens have the numbers written in.

    Args:
        explanations: Explanations of the same tokens, by the names to give them, or a list of them,
            which are named by method and layer.
        ax: The axes to draw into. None makes a figure of a fitting size.

    Returns:
        The figure and the axes.

    Raises:
        OptionError: If there are none, or they are not of the same tokens.
        MissingExtraError: If matplotlib is not installed.
    """
    named = (
        dict(explanations)
        if isinstance(explanations, Mapping)
        else {
            f"{METHOD_NAMES[item.method]}, L{item.layer}" + " " * i: item
            for i, item in enumerate(explanations)
        }
    )
    if not named:
        raise OptionError("explanations is empty; expected one or more to compare")
    first = next(iter(named.values()))
    for name, item in named.items():
        if item.tokens != first.tokens:
            raise OptionError(f"the explanation {name!r} is of other tokens than the first")
    ordinary = ~np.array(first.special, dtype=bool)
    scores = np.stack([item.scores for item in named.values()])
    tops = np.array([_top(row[ordinary], row) for row in scores])
    shares = scores / tops[:, None]
    rows, columns = shares.shape
    longest = min(24, max((len(token) for token in first.tokens), default=1))
    figure, ax = theme.axes_of(
        ax,
        np.clip(0.42 * columns + 2.4, 4.2, 13.0),
        np.clip(0.3 * rows + 0.75 + 0.055 * longest, 1.6, 8.0),
    )
    image = ax.imshow(
        shares, cmap=theme.scale(), vmin=0.0, vmax=1.0, aspect="auto", interpolation="nearest"
    )
    theme.dress(ax, frame=["left", "right", "top", "bottom"])
    ax.tick_params(length=0)
    _rule(ax, rows, 1, 2.0)
    theme.set_ticks(ax.yaxis, range(rows), [theme.label(name.rstrip()) for name in named])
    _token_ticks(ax, first.tokens, shares.max(axis=0), ordinary)
    if columns <= 16 and theme.points(ax)[0] / columns > 20:
        for (row, column), score in np.ndenumerate(scores):
            text = ax.text(column, row, " ", ha="center", va="center")
            share = float(np.clip(shares[row, column], 0.0, 1.0))
            digits = format_score(float(score), float(tops[row])).replace("0.", ".", 1)
            theme.put_text(text, digits, theme.SMALL_SIZE, color=theme.readable(share))
    add_colour_bar(figure, image, ax, "share of the row's highest", above=bool((shares > 1).any()))
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
            high) and "layer", as `Evaluation.summary` gives them; or plain numbers, one a layer
            from 1 on. "raw", "rollout" and "flow", alone or at the beginning of a name, have their
            own colours. A mean that is None or NaN is a gap.
        ax: The axes to draw into. None makes a figure.
        baselines: By name, a number that does not depend on the layer, drawn as a line across.
        title: What to write above.
        ylabel: What is correlated, in words.

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
    last = max(int(places.max()) for places, _, _ in read.values())
    figure, ax = theme.axes_of(ax, np.clip(0.42 * last + 2.4, 4.8, 9.0), 3.1)
    theme.dress(ax, frame=["left", "bottom"])
    others = 0
    ends: list[tuple[float, str, str]] = []
    for name, (places, means, interval) in read.items():
        method = next((known for known in theme.STYLES if name.startswith(known)), name)
        style = theme.style_of(method, others)
        others += method not in theme.STYLES
        alike = sum(1 for _, other, _ in ends if other.startswith(method))
        ax.plot(
            places,
            means,
            color=style.colour,
            linestyle=(0, (1.2, 1.2)) if alike else style.dashes,
            linewidth=1.6,
            marker=style.marker,
            markersize=4.5 if last <= 16 else 3.0,
            markeredgecolor="white",
            markeredgewidth=0.5,
            label=theme.label(name, 40),
            zorder=3,
        )
        if interval is not None:
            ax.fill_between(
                places, interval[0], interval[1], color=style.colour, alpha=0.22, linewidth=0
            )
        known = np.flatnonzero(np.isfinite(means))
        if known.size:
            ends.append((float(means[known[-1]]), name, style.colour))
    ax.axhline(0.0, color=theme.QUIET, linewidth=0.6, zorder=1)
    for name, value in (baselines or {}).items():
        style = theme.style_of(name, others)
        others += 1
        ax.axhline(
            float(value),
            color=style.colour,
            linestyle=style.dashes,
            linewidth=1.0,
            label=theme.label(name, 40),
            zorder=2,
        )
    step = _step(last, theme.points(ax)[0], 18.0)
    shown = range(1, last + 1) if step == 1 else range(step, last + 1, step)
    theme.set_ticks(ax.xaxis, list(shown), [f"L{i}" for i in shown])
    ax.set_xlim(0.7, last + 0.3)
    theme.put_text(ax.xaxis.label, "layer", theme.TEXT_SIZE)
    theme.put_text(ax.yaxis.label, theme.label(ylabel, 60), theme.TEXT_SIZE)
    ax.grid(axis="y", color="#ececec", linewidth=0.6)
    ax.set_axisbelow(True)
    _few_ticks(ax.yaxis)
    _legend(ax, len(read) + len(baselines or {}))
    if title is not None:
        theme.set_title(ax, title)
    return figure, ax


def image_overlay(
    explanation: Explanation, image: Any, ax: Any = None, *, alpha: float = 0.6
) -> "tuple[Figure, Axes]":
    """Draw the scores of an image's patches over the image.

    The image is shown in grey, so that colour says one thing only: the lighter and yellower, the
    higher the score. What the model did not see, as an edge that was cut off, is left uncoloured.

    Args:
        explanation: The explanation of an image.
        image: The image: a Pillow image, or an array of shape (height, width) or
            (height, width, 3) of bytes, or of numbers from 0 to 1.
        ax: The axes to draw into. None makes a figure of a fitting size.
        alpha: How much the colours cover the image, from 0 to 1.

    Returns:
        The figure and the axes.

    Raises:
        OptionError: If it is not the explanation of an image, or an argument is not valid.
        MissingExtraError: If matplotlib is not installed.
    """
    if explanation.grid is None:
        raise OptionError("this is the explanation of a text; expected one of an image")
    if isinstance(alpha, bool) or not isinstance(alpha, int | float) or not 0 <= alpha <= 1:
        raise OptionError(f"alpha is {alpha!r}; expected a number from 0 to 1")
    grey = _grey(image)
    values = explanation.map(grey.shape)
    ratio = grey.shape[0] / grey.shape[1]
    width = float(np.clip(3.6 / math.sqrt(ratio), 2.4, 7.0))
    figure, ax = theme.axes_of(ax, width + 1.0, width * ratio + 0.5)
    ax.imshow(grey, cmap="gray", vmin=0.0, vmax=1.0, interpolation="bilinear")
    # On a picture light stands out, and on paper ink does: so this scale runs the other way.
    drawn = ax.imshow(
        np.ma.masked_invalid(values), cmap="cividis", vmin=0.0, vmax=_top(values), alpha=alpha
    )
    theme.dress(ax)
    ax.set_xticks([])
    ax.set_yticks([])
    theme.set_title(ax, f"{METHOD_NAMES[explanation.method]}, {headline(explanation)}")
    add_colour_bar(figure, drawn, ax, "score")
    return figure, ax


def add_colour_bar(
    figure: Any, image: Any, ax: Any, text: str, above: bool | None = None, **more: Any
) -> Any:
    """Draw the scale of an image beside its axes.

    Args:
        figure: The figure.
        image: What ``Axes.imshow`` returned.
        ax: The axes to take the room from, or several.
        text: What the scale is of.
        above: Whether some values lie above the scale. None looks.
        **more: Other options of ``Figure.colorbar``.

    Returns:
        The colour bar.
    """
    values = np.ma.filled(np.ma.asarray(image.get_array(), dtype=np.float64), np.nan)
    if above is None:
        above = bool(np.nanmax(values) > image.get_clim()[1] * (1 + 1e-9))
    options = {"fraction": 0.05, "pad": 0.02, "aspect": 18, **more}
    bar = figure.colorbar(image, ax=ax, extend="max" if above else "neither", **options)
    bar.outline.set_visible(False)
    bar.ax.tick_params(
        colors=theme.QUIET, labelcolor=theme.INK, labelsize=theme.SMALL_SIZE, width=0.6, length=2.5
    )
    _few_ticks(bar.ax.yaxis if bar.orientation == "vertical" else bar.ax.xaxis)
    bar.set_label(text, size=theme.SMALL_SIZE, color=theme.INK, family=[theme.FONT])
    return bar


# ---- What the figures share ----------------------------------------------------------------------


def _matrix(values: Any, name: str, columns: int) -> NDArray[np.float64]:
    array = np.asarray(values)
    if array.ndim != 2 or array.shape[1] != columns or array.dtype.kind not in "fiu":
        raise OptionError(
            f"{name} has shape {array.shape}; expected numbers of shape (L, {columns}) for "
            f"{columns} tokens"
        )
    if array.size == 0:
        raise OptionError(f"{name} has shape {array.shape}; there is nothing to draw")
    return array.astype(np.float64)


def _top(*choices: NDArray[np.float64]) -> float:
    """Return the highest number of the first choice that has one above 0."""
    for values in choices:
        known = values[np.isfinite(values)]
        if known.size and known.max() > 0:
            return float(known.max())
    return 1e-12


def _step(count: int, room: float, each: float = LABEL_ROOM) -> int:
    """Return how many places lie between two labels so that they do not touch."""
    return max(1, math.ceil(count * each / max(room, 1.0)))


def _token_ticks(
    ax: Any,
    tokens: Sequence[str],
    weights: NDArray[np.float64],
    ordinary: NDArray[np.bool_],
) -> None:
    """Label the tokens along the x axis; where there is no room for all, those that weigh most."""
    count = len(tokens)
    room = theme.points(ax)[0]
    step = _step(count, room)
    shown = list(range(count))
    if step > 1:
        shown = []
        taken = np.zeros(count, dtype=bool)
        for i in np.argsort(-weights, kind="stable").tolist():
            if not taken[i]:
                shown.append(i)
                taken[max(0, i - step + 1) : i + step] = True
        shown.sort()
    names = [theme.label(tokens[i]) for i in shown]
    # Labels lie flat where the longest has room to.
    flat = max((len(name) for name in names), default=0) * 0.62 * theme.TICK_SIZE < room / count
    size = theme.TICK_SIZE if step == 1 and room / count > 12 else theme.SMALL_SIZE
    if flat:
        theme.set_ticks(ax.xaxis, shown, names, size)
    elif room / count > 14:
        theme.set_ticks(
            ax.xaxis, shown, names, size, rotation=45, ha="right", rotation_mode="anchor"
        )
    else:
        theme.set_ticks(ax.xaxis, shown, names, size, rotation=90)
    for i, text in zip(shown, ax.get_xticklabels(), strict=True):
        if not ordinary[i]:
            text.set_color(theme.QUIET)
    if step == 1:
        ax.tick_params(axis="x", length=0)


def _layer_ticks(ax: Any, rows: int, layer: int | None) -> None:
    step = _step(rows, theme.points(ax)[1])
    shown = [i for i in range(rows) if (i + 1) % step == 0 or step == 1]
    theme.set_ticks(ax.yaxis, shown, [f"L{i + 1}" for i in shown])
    for i, text in zip(shown, ax.get_yticklabels(), strict=True):
        text.set_fontweight("bold" if i + 1 == layer else "normal")
    ax.tick_params(axis="y", length=0 if step == 1 else 2.5)


def _rule(ax: Any, rows: int, columns: int, width: float) -> None:
    """Draw white lines between the cells of an image. A grid would need a tick for each."""
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
    legend = ax.legend(
        loc="upper left",
        bbox_to_anchor=(1.0, 1.02),
        frameon=False,
        handlelength=2.6,
        labelspacing=0.6,
        ncols=1 + entries // 16,
        borderaxespad=0.4,
    )
    for text in legend.get_texts():
        theme.put_text(text, text.get_text(), theme.TEXT_SIZE)


def _traced(weights: NDArray[np.float64], position: int) -> NDArray[np.float64]:
    """Return what of a position of the last layer comes along each edge, over all paths."""
    traced = np.empty_like(weights)
    share = np.zeros(weights.shape[1])
    share[position] = 1.0
    for layer in range(len(weights) - 1, -1, -1):
        traced[layer] = share[:, None] * weights[layer]
        share = traced[layer].sum(axis=0)
    return traced


def _draw_edges(ax: Any, weights: NDArray[np.float64], most: int) -> None:
    """Draw edges whose weights are from 0 to 1, the light ones first."""
    from matplotlib.collections import LineCollection

    count = weights.shape[1]
    layer, start, end = np.nonzero(weights > FAINTEST)
    weight = weights[layer, start, end]
    order = np.argsort(weight, kind="stable")[-most:]
    layer, start, end, weight = layer[order], start[order], end[order], weight[order]
    ends = np.stack(
        [np.stack([start, layer + 1], axis=-1), np.stack([end, layer], axis=-1)], axis=1
    )
    widest = float(np.clip(60.0 / count, 1.2, 3.6))
    # Width and darkness both grow with the weight: together they read well in grey, too.
    colours = theme.scale()(0.2 + 0.65 * weight)
    colours[:, 3] = 0.25 + 0.75 * weight
    ax.add_collection(
        LineCollection(
            list(ends),
            linewidths=0.15 + widest * weight,
            colors=colours,
            capstyle="round",
            zorder=2,
        )
    )


def _name_peaks(ax: Any, names: Sequence[str], scores: NDArray[np.float64]) -> None:
    """Name the highest bars, none over another."""
    room = theme.points(ax)[0] / len(names)
    apart = max(1, math.ceil(9.0 / room))
    taken: list[int] = []
    for i in np.argsort(-scores, kind="stable").tolist():
        if len(taken) == 16 or not np.isfinite(scores[i]) or scores[i] <= 0:
            break
        if all(abs(i - other) >= apart for other in taken):
            taken.append(i)
            note = ax.annotate(
                " ", (i, scores[i]), (0, 3), textcoords="offset points", ha="center", va="bottom"
            )
            theme.put_text(note, names[i], theme.SMALL_SIZE, rotation=90)
    # The names stand above the bars and need room there.
    low, high = ax.get_ylim()
    longest = max((len(names[i]) for i in taken), default=0)
    share = min(0.6, longest * 0.6 * theme.SMALL_SIZE / theme.points(ax)[1])
    ax.set_ylim(low, high / (1.0 - share))


def _curve(
    name: str, curve: Any
) -> tuple[
    NDArray[np.float64],
    NDArray[np.float64],
    tuple[NDArray[np.float64], NDArray[np.float64]] | None,
]:
    """Return the layers, means and interval of a curve."""
    points = [] if isinstance(curve, str | Mapping) else list(curve)
    if not points:
        raise OptionError(f"the curve {name!r} has no layers; expected one number or mapping each")
    rows = [point if isinstance(point, Mapping) else {"mean": point} for point in points]
    for i, row in enumerate(rows):
        if "mean" not in row:
            raise OptionError(f"layer {i + 1} of the curve {name!r} has no 'mean'")

    def numbers(values: list[Any]) -> NDArray[np.float64]:
        return np.array([np.nan if value is None else value for value in values], dtype=np.float64)

    places = numbers([row.get("layer", i + 1) for i, row in enumerate(rows)])
    means = numbers([row["mean"] for row in rows])
    if not all(row.get("ci") is not None for row in rows):
        return places, means, None
    return (
        places,
        means,
        (numbers([row["ci"][0] for row in rows]), numbers([row["ci"][1] for row in rows])),
    )


def _grey(image: Any) -> NDArray[np.float64]:
    """Return an image as lightness from 0 to 1, of shape (height, width)."""
    array = np.asarray(image)
    if array.ndim == 3 and array.shape[2] in (3, 4) and array.dtype.kind in "fiu":
        # ITU-R BT.601, as Pillow turns colour to grey.
        values = array[..., :3].astype(np.float64) @ np.array([0.299, 0.587, 0.114])
    elif array.ndim == 2 and array.dtype.kind in "fiu":
        values = array.astype(np.float64)
    else:
        raise OptionError(
            f"image has shape {array.shape} and type {array.dtype}; expected (height, width) or "
            "(height, width, 3), bytes or numbers from 0 to 1"
        )
    if array.size == 0 or not np.isfinite(values).all():
        raise OptionError("image must have pixels, all of them finite numbers")
    scaled: NDArray[np.float64] = values / 255.0 if array.dtype.kind in "iu" else values
    return scaled.clip(0.0, 1.0)
