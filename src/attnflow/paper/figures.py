"""The paper's Figures 1 to 4, for any model and any sentences.

Each function returns the figure and the numbers behind it. The sizes are those of a page with two
columns, for printing.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import cycle, zip_longest
from string import ascii_lowercase
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from attnflow.checks import items
from attnflow.flow import attention_flow
from attnflow.options import ATTENTION_METHODS as METHODS
from attnflow.paper.findings import attention_of
from attnflow.paper.pronouns import EXAMPLES, Ambiguity, Resolution, resolve
from attnflow.rollout import attention_rollout
from attnflow.view import theme
from attnflow.view.captions import METHOD_NAMES
from attnflow.view.figures import add_colour_bar, attention_graph, layer_map

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

    from attnflow.models import Explainer


# The width of the text on a page with two columns, in inches.
PAGE: Final = 7.0
# With more tokens than this, graphs are below each other.
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
        data: The numbers, for JSON.
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
        Three graphs. Their edges weigh raw attention, rollout to the input, and flow to the input.
        Flow is normalized: in all three graphs the edges that leave a node sum to 1.

    Raises:
        AttnflowError: If the text or the model is not valid.
        MissingExtraError: If matplotlib is not installed.
    """
    theme.require()
    data = _scored(explainer, text, ())
    graph = attention_of(explainer, text).graph
    weights = {
        "raw": graph.attention,
        "rollout": attention_rollout(graph),
        "flow": attention_flow(graph, normalize=True),
    }
    count = graph.tokens
    beside = count <= SIDE_BY_SIDE
    tall = _within(0.42 * graph.layers, 1.4, 6.0) + 0.7
    figure = theme.new_figure(
        PAGE if beside else _within(0.16 * count + 1.0, PAGE, 13.0), tall if beside else 3 * tall
    )
    axes = figure.subplots(*((1, 3) if beside else (3, 1)), squeeze=False).ravel()
    for letter, ax, (method, values) in zip("abc", axes, weights.items(), strict=True):
        attention_graph(values, data["tokens"], ax=ax)
        theme.set_title(ax, f"({letter}) {METHOD_NAMES[method]}", theme.TEXT_SIZE)
    data = {name: data[name] for name in ("text", "tokens", "prediction")}
    data |= {method: values.tolist() for method, values in weights.items()}
    return Drawing(figure, tuple(axes), data)


def figure2(explainer: Explainer, sentences: Sequence[Sentence] = SENTENCES) -> Drawing:
    """Draw the raw attention of CLS over tokens (x) and layers (y).

    Args:
        explainer: The model.
        sentences: The sentences. Below each is the same with its subject's number changed.

    Returns:
        A map for each sentence, all on one scale, with the model's prediction above it.

    Raises:
        AttnflowError: If a text or the model is not valid.
        MissingExtraError: If matplotlib is not installed.
    """
    theme.require()
    pairs = [_pair(explainer, one, ("raw",)) for one in items(sentences, "sentences", "sentences")]
    rows = [row for pair in pairs for row in pair]
    longest = max(len(row["tokens"]) for row in rows)
    # A column for each sentence, or long sentences below each other.
    table = list(zip_longest(*pairs)) if longest <= 24 else [(row,) for row in rows]
    figure = theme.new_figure(PAGE, _map_height(rows[0]["raw"], longest) * len(table) + 0.6)
    grid = figure.subplots(len(table), len(table[0]), squeeze=False)
    top = _highest(rows, "raw")
    used = []
    for place, ax in np.ndenumerate(grid):
        row = table[place[0]][place[1]]
        if row is None:
            ax.set_axis_off()
            continue
        _draw_map(ax, row, "raw", top, _outcome(row))
        used.append(ax)
    _scale(figure, used, "raw attention of the explained position", grid.size)
    return Drawing(figure, tuple(used), {"sentences": rows})


def figure3(explainer: Explainer, sentences: Sequence[Sentence] = SENTENCES) -> Drawing:
    """Draw raw attention, rollout and flow of CLS over tokens (x) and layers (y).

    Args:
        explainer: The model.
        sentences: The sentences. Below each is the same with its subject's number changed.

    Returns:
        A row of three maps for each sentence, with the model's prediction beside it. Each column is
        one method and has one scale.

    Raises:
        AttnflowError: If a text or the model is not valid.
        MissingExtraError: If matplotlib is not installed.
    """
    theme.require()
    chosen = items(sentences, "sentences", "sentences")
    rows = [row for one in chosen for row in _pair(explainer, one, METHODS)]
    longest = max(len(row["tokens"]) for row in rows)
    width = _within(3 * (0.16 * longest + 0.4) + 0.8, PAGE, 16.0)
    figure = theme.new_figure(width, _map_height(rows[0]["raw"], longest) * len(rows) + 0.8)
    grid = figure.subplots(len(rows), 3, squeeze=False)
    for axes, method in zip(grid.T, METHODS, strict=True):
        top = _highest(rows, method)
        for ax, row in zip(axes, rows, strict=True):
            _draw_map(ax, row, method, top, METHOD_NAMES[method] if ax is axes[0] else None)
            if method == METHODS[0]:
                theme.put_text(ax.yaxis.label, _outcome(row).replace(", ", "\n"), theme.TICK_SIZE)
            else:
                ax.tick_params(axis="y", labelleft=False)
        _scale(figure, list(axes), f"score, {method}", len(rows))
    return Drawing(figure, tuple(grid.ravel()), {"sentences": rows})


def figure4(
    explainer: Explainer,
    ambiguities: Sequence[Ambiguity] = EXAMPLES,
    *,
    receptive_field: str | bool = "auto",
) -> Drawing:
    """Draw how a language model resolves a pronoun, and what its position attends to.

    Args:
        explainer: A masked or causal language model.
        ambiguities: The sentences.
        receptive_field: As in `Explainer.explain`.

    Returns:
        For each sentence, the relative probabilities of the answers as bars, and for each method a
        map of the referents in all layers. A dot marks the referent that scores higher.

    Raises:
        OptionError: If the model is not a language model, or cannot resolve a sentence.
        MissingExtraError: If matplotlib is not installed.
    """
    theme.require()
    chosen = items(ambiguities, "ambiguities", "sentences")
    found = [resolve(explainer, one, receptive_field=receptive_field) for one in chosen]
    tall = _within(0.15 * len(found[0].scores["raw"]), 1.2, 3.4) + 0.85
    figure = theme.new_figure(PAGE, tall * len(found))
    parts = figure.subfigures(len(found), 1, squeeze=False).ravel()
    axes: list[Any] = []
    for letter, part, one in zip(cycle(ascii_lowercase), parts, found, strict=False):
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


def _highest(rows: Sequence[dict[str, Any]], method: str) -> float:
    """Return the highest score of tokens that are not special, over several maps."""
    found = [
        np.array(row[method])[:, ~np.array(row["special"], dtype=bool)].max(initial=1e-12)
        for row in rows
    ]
    return float(max(found))


def _outcome(row: dict[str, Any]) -> str:
    """Return the model's prediction as text."""
    prediction = row["prediction"]
    if prediction is None:
        return "no prediction"
    return f"{theme.label(prediction['label'], 16)}, p = {prediction['probability']:.2f}"


# ---- Drawing -------------------------------------------------------------------------------------


def _within(size: float, least: float, most: float) -> float:
    return float(np.clip(size, least, most))


def _map_height(layers: Sequence[Any], longest: int) -> float:
    return _within(0.135 * len(layers), 0.75, 4.0) + (0.75 if longest <= 40 else 0.9)


def _draw_map(ax: Any, row: dict[str, Any], method: str, top: float, title: str | None) -> None:
    layer_map(row[method], row["tokens"], special=row["special"], top=top, colour_bar=False, ax=ax)
    if title is not None:
        theme.set_title(ax, title, theme.TEXT_SIZE)
    # The words in which a sentence and its other version differ are bold.
    places = [round(float(place)) for place in ax.get_xticks()]
    for place, text in zip(places, ax.get_xticklabels(), strict=True):
        text.set_fontweight("bold" if place in row["changed"] else "normal")


def _scale(figure: Any, axes: list[Any], text: str, maps: int) -> None:
    """Draw one colour bar for several maps, below them."""
    below = {"orientation": "horizontal", "location": "bottom", "aspect": 28, "pad": 0.01}
    image = axes[0].get_images()[0]
    add_colour_bar(figure, image, axes, text, above=True, fraction=0.12 / maps, **below)


def _draw_answers(ax: Any, one: Resolution) -> None:
    """Draw the relative probability of each answer as a bar."""
    styles = (theme.STYLES["flow"], theme.STYLES["raw"], *theme.OTHERS)
    shares = one.relative
    for place, (share, style) in enumerate(zip(shares, cycle(styles), strict=False)):
        bar = ax.bar(place, share, 0.6, color=style.colour, linewidth=0)
        [note] = ax.bar_label(bar, [" "], padding=2)
        theme.put_text(note, f"{share:.2f}", theme.SMALL_SIZE)
    theme.dress(ax, frame=["left", "bottom"])
    words = [theme.label(word, 12) for word in one.ambiguity.answers]
    theme.set_ticks(ax.xaxis, range(len(words)), words)
    ax.tick_params(axis="x", length=0)
    ax.set_xlim(-0.6, len(shares) - 0.4)
    ax.set_ylim(0.0, 1.12)
    theme.set_ticks(ax.yaxis, [0.0, 0.5, 1.0], ["0", "0.5", "1"])
    theme.put_text(ax.yaxis.label, "relative probability", theme.TICK_SIZE)


def _draw_referents(figure: Any, ax: Any, one: Resolution, method: str) -> None:
    """Draw the scores of the referents in all layers, with a dot on the highest."""
    scores: NDArray[np.float64] = one.scores[method]
    referents = [theme.label(word, 14) for word in one.ambiguity.referents]
    layer_map(scores, referents, colour_bar=False, ax=ax)
    theme.set_title(ax, METHOD_NAMES[method], theme.TEXT_SIZE)
    top = max(float(scores.max()), 1e-12)
    for layer, row in enumerate(scores):
        if row.max() > row.min():
            colour = theme.readable(float(row.max()) / top)
            ax.plot(row.argmax(), layer, "o", markersize=2.4, color=colour, markeredgewidth=0)
    add_colour_bar(figure, ax.get_images()[0], ax, "", aspect=70, fraction=0.05)
