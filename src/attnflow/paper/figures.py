"""The paper's Figures 1 to 4, on any model and any sentences.

Each function returns what was drawn and the numbers behind it. Sizes are those of a page of two
columns, so that the figures can be printed as they are.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from attnflow.errors import OptionError
from attnflow.flow import attention_flow
from attnflow.graph import AttentionGraph
from attnflow.paper.pronouns import EXAMPLES, METHODS, Ambiguity, Resolution, resolve
from attnflow.rollout import attention_rollout
from attnflow.view import theme
from attnflow.view.captions import METHOD_NAMES
from attnflow.view.figures import add_colour_bar, attention_graph, layer_map

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

    from attnflow.models import Explainer
from attnflow.options import Options

__all__ = ["SENTENCES", "Drawing", "Sentence", "figure1", "figure2", "figure3", "figure4"]

# A page of two columns leaves this much, in inches.
PAGE: Final = 7.0
# More tokens than this side by side cannot be told apart.
SIDE_BY_SIDE: Final = 14


class Sentence(NamedTuple):
    """A sentence up to its verb, and the same with the number of its subject changed.

    Attributes:
        text: The sentence.
        flipped: The sentence with its subject in the other number, or None.
    """

    text: str
    flipped: str | None = None


SENTENCES: Final = (
    Sentence("the key to the cabinets", "the keys to the cabinets"),
    Sentence("the article on NNP large systems", "the articles on NNP large systems"),
    Sentence("here the NNS differ in that the female", "here the NNS differ in that the females"),
)
"""The paper's examples. NNS stands for a rare plural noun, NNP for a name."""


class Drawing(NamedTuple):
    """A figure and the numbers behind it.

    Attributes:
        figure: The figure.
        axes: Its axes, row by row.
        data: The numbers, as what JSON can hold.
    """

    figure: Figure
    axes: tuple[Axes, ...]
    data: dict[str, Any]


def figure1(explainer: Explainer, text: str = SENTENCES[0].text) -> Drawing:
    """Draw the attention graphs of a sentence: raw attention, rollout and flow.

    Args:
        explainer: The model.
        text: The sentence.

    Returns:
        Three graphs, whose edges weigh raw attention; rollout to the input; and flow to the input,
        as shares, so that what leaves a node sums to 1 in all three.

    Raises:
        AttnflowError: If the text or the model is not valid.
        MissingExtraError: If matplotlib is not installed.
    """
    theme.require()
    explanation = explainer.explain(text, method="raw", receptive_field=False)
    tokens, graph = _graph(explainer, text)
    weights = {
        "raw": graph.attention,
        "rollout": attention_rollout(graph),
        "flow": attention_flow(graph, normalize=True),
    }
    beside = len(tokens) <= SIDE_BY_SIDE
    tall = float(np.clip(0.42 * graph.layers, 1.4, 6.0)) + 0.7
    figure = theme.new_figure(
        PAGE if beside else float(np.clip(0.16 * len(tokens) + 1.0, PAGE, 13.0)),
        tall if beside else 3 * tall,
    )
    axes = figure.subplots(*((1, 3) if beside else (3, 1)), squeeze=False).ravel()
    for letter, ax, (method, values) in zip("abc", axes, weights.items(), strict=True):
        attention_graph(values, tokens, ax=ax)
        theme.set_title(ax, f"({letter}) {METHOD_NAMES[method]}", theme.TEXT_SIZE)
    return Drawing(
        figure,
        tuple(axes),
        {
            "text": text,
            "tokens": list(tokens),
            "prediction": _prediction(explanation),
            **{method: values.tolist() for method, values in weights.items()},
        },
    )


def figure2(explainer: Explainer, sentences: Sequence[Sentence] = SENTENCES) -> Drawing:
    """Draw the raw attention of CLS over tokens (x) and layers (y).

    Args:
        explainer: The model.
        sentences: The sentences. Under each is the same with its subject's number changed.

    Returns:
        A map for each sentence, all on one scale, with what the model predicts above it.

    Raises:
        AttnflowError: If a text or the model is not valid.
        MissingExtraError: If matplotlib is not installed.
    """
    theme.require()
    rows = [_pair(explainer, one, ("raw",)) for one in _some(sentences)]
    # A column a sentence; the second row has the sentences with another number.
    height = max(len(column) for column in rows)
    most = max(len(item["tokens"]) for column in rows for item in column)
    wide = len(rows) if most <= 24 else 1
    figure = theme.new_figure(
        PAGE, _map_height(rows[0][0], most) * height * -(-len(rows) // wide) + 0.6
    )
    grid = figure.subplots(height * -(-len(rows) // wide), wide, squeeze=False)
    top = _highest([item for column in rows for item in column], "raw")
    used = []
    for number, column in enumerate(rows):
        for line in range(height):
            ax = grid[number // wide * height + line, number % wide]
            if line >= len(column):
                ax.set_axis_off()
                continue
            _draw_map(ax, column[line], "raw", top, _outcome(column[line]))
            used.append(ax)
    for ax in grid.ravel()[len(rows) * height :]:
        ax.set_axis_off()
    _scale(figure, used[0], used, "raw attention of the explained position", height * wide)
    return Drawing(figure, tuple(used), {"sentences": [item for column in rows for item in column]})


def figure3(explainer: Explainer, sentences: Sequence[Sentence] = SENTENCES) -> Drawing:
    """Draw raw attention, rollout and flow of CLS over tokens (x) and layers (y).

    Args:
        explainer: The model.
        sentences: The sentences. Under each is the same with its subject's number changed.

    Returns:
        A row of three maps for each sentence. A column is one method and has one scale. What the
        model predicts is written beside the row.

    Raises:
        AttnflowError: If a text or the model is not valid.
        MissingExtraError: If matplotlib is not installed.
    """
    theme.require()
    rows = [row for one in _some(sentences) for row in _pair(explainer, one, METHODS)]
    most = max(len(row["tokens"]) for row in rows)
    width = float(np.clip(3 * (0.16 * most + 0.4) + 0.8, PAGE, 16.0))
    figure = theme.new_figure(width, _map_height(rows[0], most) * len(rows) + 0.8)
    grid = figure.subplots(len(rows), 3, squeeze=False)
    for column, method in enumerate(METHODS):
        top = _highest(rows, method)
        for line, row in enumerate(rows):
            ax = grid[line, column]
            _draw_map(ax, row, method, top, METHOD_NAMES[method] if line == 0 else None)
            if column == 0:
                theme.put_text(ax.yaxis.label, _outcome(row).replace(", ", "\n"), theme.TICK_SIZE)
            else:
                ax.tick_params(axis="y", labelleft=False)
        _scale(figure, grid[0, column], list(grid[:, column]), f"score, {method}", len(rows))
    return Drawing(figure, tuple(grid.ravel()), {"sentences": rows})


def figure4(
    explainer: Explainer,
    ambiguities: Sequence[Ambiguity] = EXAMPLES,
    *,
    receptive_field: str | bool = "auto",
) -> Drawing:
    """Draw how a language model resolves a pronoun, and what its position attends to.

    Args:
        explainer: A masked or a causal language model.
        ambiguities: The sentences.
        receptive_field: As in `Explainer.explain`.

    Returns:
        For each sentence the relative probabilities of the answers as bars, and for each method a
        map of the referents in all layers. A dot marks the referent that scores higher.

    Raises:
        OptionError: If the model is not such a model, or a sentence does not suit it.
        MissingExtraError: If matplotlib is not installed.
    """
    theme.require()
    if not ambiguities:
        raise OptionError("ambiguities is empty; expected one or more sentences")
    found = [resolve(explainer, one, receptive_field=receptive_field) for one in ambiguities]
    depth = len(found[0].scores["raw"])
    tall = float(np.clip(0.15 * depth, 1.2, 3.4)) + 0.85
    figure = theme.new_figure(PAGE, tall * len(found))
    parts = figure.subfigures(len(found), 1, squeeze=False).ravel()
    axes: list[Any] = []
    for letter, part, one in zip("abcdefghijklmnopqrstuvwxyz" * 9, parts, found, strict=False):
        row = part.subplots(1, 4, width_ratios=[1.15, 1.0, 1.0, 1.0])
        shown = one.text if explainer.task == "masked-lm" else f"{one.text} \u2026"
        heading = part.suptitle(" ", x=0.01, ha="left")
        theme.put_text(heading, f"({letter}) {theme.label(shown, 90)}", theme.TITLE_SIZE)
        _draw_answers(row[0], one)
        for ax, method in zip(row[1:], METHODS, strict=True):
            _draw_referents(part, ax, one, method)
        axes += list(row)
    return Drawing(figure, tuple(axes), {"sentences": [one.to_dict() for one in found]})


# ---- Numbers -------------------------------------------------------------------------------------


def _some(sentences: Sequence[Sentence]) -> Sequence[Sentence]:
    if not sentences:
        raise OptionError("sentences is empty; expected one or more")
    return sentences


def _pair(explainer: Explainer, sentence: Sentence, methods: Sequence[str]) -> list[dict[str, Any]]:
    """Return the scores of a sentence, and of its other version if it has one."""
    rows = [_scored(explainer, text, methods) for text in sentence if text is not None]
    first, last = rows[0]["tokens"], rows[-1]["tokens"]
    changed = [i for i, (one, other) in enumerate(zip(first, last, strict=False)) if one != other]
    for row in rows:
        row["changed"] = changed if len(first) == len(last) else []
    return rows


def _scored(explainer: Explainer, text: str, methods: Sequence[str]) -> dict[str, Any]:
    """Return the scores of a text by several methods, in every layer."""
    [scored] = explainer.layer_scores(text, methods=methods, receptive_fields=(False,))
    return {
        "text": text,
        "tokens": list(scored.tokens.names),
        "special": list(scored.tokens.special),
        "position": scored.position,
        "prediction": None if scored.prediction is None else scored.prediction._asdict(),
        **{method: scored.scores[method, False].tolist() for method in methods},
    }


def _graph(explainer: Explainer, text: str) -> tuple[tuple[str, ...], AttentionGraph]:
    """Return the tokens of a text, and the graph of a model's attention among all of them."""
    options = Options()
    encoded = explainer.adapter.read(text)
    ran = explainer.adapter.run([encoded], [[0]], options)
    return encoded.tokens.names, explainer.adapter.graph(ran.captured, 0, encoded, options)


def _prediction(explanation: Any) -> dict[str, Any] | None:
    return None if explanation.prediction is None else explanation.prediction._asdict()


def _highest(rows: Sequence[dict[str, Any]], method: str) -> float:
    """Return the highest score of tokens that are not special, over several maps."""
    found = [
        np.array(row[method])[:, ~np.array(row["special"], dtype=bool)].max(initial=0.0)
        for row in rows
    ]
    return max(float(max(found)), 1e-12)


def _outcome(row: dict[str, Any]) -> str:
    """Return what the model predicts, in few words."""
    prediction = row["prediction"]
    if prediction is None:
        return "no prediction"
    return f"{theme.label(prediction['label'], 16)}, p = {prediction['probability']:.2f}"


# ---- Drawing -------------------------------------------------------------------------------------


def _map_height(row: dict[str, Any], most: int) -> float:
    layers = len(next(row[method] for method in METHODS if method in row))
    return float(np.clip(0.135 * layers, 0.75, 4.0)) + (0.75 if most <= 40 else 0.9)


def _draw_map(ax: Any, row: dict[str, Any], method: str, top: float, title: str | None) -> None:
    layer_map(row[method], row["tokens"], special=row["special"], top=top, colour_bar=False, ax=ax)
    if title is not None:
        theme.set_title(ax, title, theme.TEXT_SIZE)
    # The word in which a sentence and its other version differ.
    places = [round(float(place)) for place in ax.get_xticks()]
    for place, text in zip(places, ax.get_xticklabels(), strict=True):
        text.set_fontweight("bold" if place in row["changed"] else "normal")


def _scale(figure: Any, of: Any, axes: list[Any], text: str, rows: int) -> None:
    """Draw one colour bar for several maps, below them."""
    add_colour_bar(
        figure,
        of.get_images()[0],
        axes,
        text,
        above=True,
        orientation="horizontal",
        location="bottom",
        aspect=28,
        fraction=0.12 / rows,
        pad=0.01,
    )


def _draw_answers(ax: Any, one: Resolution) -> None:
    """Draw the relative probability of each answer as a bar."""
    styles = (theme.STYLES["flow"], theme.STYLES["raw"], *theme.OTHERS)
    shares = one.relative
    places = np.arange(len(shares))
    for place, share, style in zip(places, shares, styles, strict=False):
        ax.bar(place, share, 0.6, color=style.colour, linewidth=0)
        note = ax.annotate(
            " ", (place, share), (0, 2), textcoords="offset points", ha="center", va="bottom"
        )
        theme.put_text(note, f"{share:.2f}", theme.SMALL_SIZE)
    theme.dress(ax, frame=["left", "bottom"])
    theme.set_ticks(
        ax.xaxis, range(len(shares)), [theme.label(word, 12) for word in one.ambiguity.answers]
    )
    ax.tick_params(axis="x", length=0)
    ax.set_xlim(-0.6, len(shares) - 0.4)
    ax.set_ylim(0.0, 1.12)
    theme.set_ticks(ax.yaxis, [0.0, 0.5, 1.0], ["0", "0.5", "1"])
    theme.put_text(ax.yaxis.label, "relative probability", theme.TICK_SIZE)


def _draw_referents(figure: Any, ax: Any, one: Resolution, method: str) -> None:
    """Draw the scores of the referents in all layers, with a dot on the higher one."""
    scores: NDArray[np.float64] = one.scores[method]
    referents = [theme.label(word, 14) for word in one.ambiguity.referents]
    layer_map(scores, referents, colour_bar=False, ax=ax)
    theme.set_title(ax, METHOD_NAMES[method], theme.TEXT_SIZE)
    best = scores.argmax(axis=1)
    top = max(float(scores.max()), 1e-12)
    decided = scores.max(axis=1) > scores.min(axis=1)
    for layer in np.flatnonzero(decided).tolist():
        colour = theme.readable(float(scores[layer, best[layer]]) / top)
        ax.plot(best[layer], layer, "o", markersize=2.4, color=colour, markeredgewidth=0)
    add_colour_bar(figure, ax.get_images()[0], ax, "", aspect=70, fraction=0.05)
