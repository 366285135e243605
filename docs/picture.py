"""Draws docs/keys.svg, the picture at the top of the README and of the documentation.

Run it as: python docs/picture.py
It explains a sentence with the model that comes with attnflow, and also writes docs/keys.json, the
explanation that the documentation shows as a page. It needs the extras hf and view, and scipy.
"""

import re
from pathlib import Path
from typing import Any

import numpy as np
from matplotlib.patches import PathPatch
from matplotlib.path import Path as Curve
from numpy.typing import NDArray
from scipy.sparse import csr_array
from scipy.sparse.csgraph import maximum_flow

from attnflow import Explainer, Explanation
from attnflow.models.verb_number import checkpoint
from attnflow.view import answer, captions, figures, theme

HERE = Path(__file__).parent
SENTENCE = "the keys to the cabinet"
# Deep flow no longer depends on the position, so the picture shows a layer where it does.
PANELS = (("raw", 6), ("rollout", 6), ("flow", 3))
TITLES = {"raw": "Raw attention", "rollout": "Attention rollout", "flow": "Attention flow"}
MARK = "#b23900"
UNIT = 2**20


def main() -> None:
    """Explain the sentence and draw the picture."""
    explainer = Explainer.from_pretrained(checkpoint())
    explanation = explainer.explain(SENTENCE, method="flow", keep_heads=True)
    # Where the model is stored on this machine is not part of the picture.
    named = {**explanation.to_dict(trace=True), "model": "verb_number/checkpoint"}
    Explanation.from_dict(named).save(HERE / "keys.json")
    answered = explainer.explain(SENTENCE, check=True)
    found = [explainer.explain(SENTENCE, method=method, layer=layer) for method, layer in PANELS]
    picture = theme.content(draw(answered, found), ".svg")
    # A hundredth of a point cannot be seen, and the rest is a third of the file. It can be seen in
    # the size of letters.
    (HERE / "keys.svg").write_bytes(re.sub(rb"(?<!scale\(0)(\.\d\d)\d+", rb"\1", picture))
    for name in ("keys.json", "keys.svg"):
        print(HERE / name, (HERE / name).stat().st_size)


def draw(answered: Explanation, found: list[Explanation]) -> Any:
    """Return the figure: the answer with its bars, and a graph for each view of attention."""
    figure = theme.new_figure(10.4, 6.5, layout=None)
    write(figure, 0.03, 0.945, f"\u201c{SENTENCE} \u2026\u201d  is or are?", 15, weight="bold")
    write(figure, 0.03, 0.895, "Which words decided the answer?", 11, color=theme.QUIET)
    answer.shaded_text(answered, figure.add_axes((0.03, 0.515, 0.46, 0.35)))
    bars = figure.add_axes((0.6, 0.565, 0.37, 0.31))
    figures.token_bars(answered, bars)
    theme.put_text(bars.xaxis.label, captions.scale_name(answered), theme.SMALL_SIZE)
    question = "What could have reached [CLS], the token that the model reads its answer off?"
    write(figure, 0.03, 0.455, question, 11, color=theme.QUIET)
    for i, explanation in enumerate(found):
        left = 0.055 + 0.325 * i
        best = max(
            (j for j, special in enumerate(explanation.special) if not special),
            key=lambda j: explanation.scores[j],
        )
        write(figure, left, 0.41, TITLES[explanation.method], 10.5, weight="bold")
        write(figure, left, 0.378, sentence(explanation, best), 8.5, color=theme.QUIET)
        draw_graph(figure.add_axes((left, 0.02, 0.28, 0.34)), explanation, best)
    return figure


def write(figure: Any, x: float, y: float, text: str, size: float, **more: Any) -> None:
    """Write a line of text."""
    theme.put_text(figure.text(x, y, " "), text, size, **more)


def sentence(explanation: Explanation, best: int) -> str:
    """Return the caption of a panel."""
    name, score = explanation.tokens[best], explanation.scores[best]
    return {
        "raw": f"one step of layer {explanation.layer}: it looks most at \u201c{name}\u201d",
        "rollout": f"all paths, multiplied: {score:.0%} is from \u201c{name}\u201d",
        "flow": f"layer {explanation.layer}: up to {score:.0%} could be from \u201c{name}\u201d",
    }[explanation.method]


def draw_graph(ax: Any, explanation: Explanation, best: int) -> None:
    """Draw the edges that a method follows down from CLS, and the tokens shaded by score."""
    trace = explanation.trace
    if trace is None:
        raise ValueError("a short text has a trace")
    capacities = trace.graph().capacities
    layers, count, _ = capacities.shape
    layer = explanation.layer
    followed = {
        "raw": lambda: one_step(trace.attention(), layer, explanation.position),
        "rollout": lambda: paths(capacities, layer, explanation.position),
        "flow": lambda: pipes(capacities, layer, explanation.position, best),
    }[explanation.method]()
    faint = np.where(capacities > 0.05, capacities, 0.0)
    edges(ax, faint, lambda weight: (0.5, theme.FAINT, 0.2 + 0.3 * weight))
    colours = theme.scale()
    heaviest = followed.max()

    def look(weight: float) -> tuple[float, Any, float]:
        share = (weight / heaviest) ** 0.6
        return 0.25 + 4.2 * share, colours(0.25 + 0.6 * share), 0.25 + 0.75 * share

    edges(ax, followed, look)
    across, up = np.meshgrid(np.arange(count), np.arange(1, layers + 1))
    ax.scatter(across, up, s=7, color="#9a9a9a", linewidths=0, zorder=4)
    ax.scatter([explanation.position], [layer], s=62, color=MARK, linewidths=0, zorder=5)
    ordinary = [not special for special in explanation.special]
    top = explanation.scores[ordinary].max()
    for j, (token, score) in enumerate(zip(explanation.tokens, explanation.scores, strict=True)):
        share = float(min(1.0, score / top))
        colour = theme.readable(share) if ordinary[j] else theme.QUIET
        box = {
            "boxstyle": "round,pad=0.32,rounding_size=0.5",
            "linewidth": 0.0,
            "facecolor": colours(share) if ordinary[j] else "#ebebeb",
        }
        text = ax.text(j, -0.18, " ", ha="center", va="top", bbox=box, zorder=6)
        theme.put_text(text, theme.label(token), 8.5, color=colour)
    theme.dress(ax)
    ax.tick_params(length=0)
    ax.set_xticks([])
    ax.set_xlim(-0.55, count - 0.45)
    ax.set_ylim(-0.75, layers + 0.3)
    theme.set_ticks(ax.yaxis, range(1, layers + 1), [f"L{i}" for i in range(1, layers + 1)], 7)
    ax.get_yticklabels()[layer - 1].set_fontweight("bold")


def one_step(attention: NDArray[np.float64], layer: int, position: int) -> NDArray[np.float64]:
    """Return the weights of one position in one layer, and zeros elsewhere."""
    weights = np.zeros_like(attention)
    weights[layer - 1, position] = attention[layer - 1, position]
    return weights


def paths(capacities: NDArray[np.float64], layer: int, position: int) -> NDArray[np.float64]:
    """Return the share of a position that each edge carries, multiplied along paths."""
    weights = np.zeros_like(capacities)
    share = np.zeros(capacities.shape[1])
    share[position] = 1.0
    for i in range(layer - 1, -1, -1):
        weights[i] = share[:, None] * capacities[i]
        share = weights[i].sum(axis=0)
    return weights


def pipes(
    capacities: NDArray[np.float64], layer: int, position: int, token: int
) -> NDArray[np.float64]:
    """Return one maximum flow from a token to a position, edge by edge."""
    _, count, _ = capacities.shape
    starts, ends, widths = [], [], []
    for i in range(layer):
        above, below = np.meshgrid(np.arange(count), np.arange(count), indexing="ij")
        starts.append(((i + 1) * count + above).ravel())
        ends.append((i * count + below).ravel())
        widths.append(np.rint(capacities[i] * UNIT).astype(np.int32).ravel())
    size = (layer + 1) * count
    network = csr_array(
        (np.concatenate(widths), (np.concatenate(starts), np.concatenate(ends))), shape=(size, size)
    )
    flow = maximum_flow(network, layer * count + position, token).flow.toarray() / UNIT
    weights = np.zeros_like(capacities)
    for i in range(layer):
        weights[i] = flow[(i + 1) * count : (i + 2) * count, i * count : (i + 1) * count].clip(0.0)
    return weights


def edges(ax: Any, weights: NDArray[np.float64], look: Any) -> None:
    """Draw edges as curves, light ones first."""
    layer, start, end = np.nonzero(weights > 0.012)
    for i in np.argsort(weights[layer, start, end], kind="stable"):
        up, a, b = int(layer[i]) + 1, int(start[i]), int(end[i])
        width, colour, alpha = look(float(weights[layer[i], a, b]))
        curve = Curve(
            [(a, up), (a, up - 0.5), (b, up - 0.5), (b, up - 1.0)],
            [Curve.MOVETO, Curve.CURVE4, Curve.CURVE4, Curve.CURVE4],
        )
        ax.add_patch(
            PathPatch(
                curve,
                fill=False,
                linewidth=width,
                edgecolor=colour,
                alpha=alpha,
                capstyle="round",
                clip_on=False,
                zorder=2,
            )
        )


if __name__ == "__main__":
    main()
