"""Measurements beyond the paper's tables: saturation of flow, and single heads."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from attnflow.correlation import spearman
from attnflow.errors import DataError
from attnflow.evaluate.significance import holm, sign_flip_test
from attnflow.flow import attention_flow, flow_bound, head_flow, is_saturated
from attnflow.graph import AttentionGraph
from attnflow.options import ATTENTION_METHODS as METHODS
from attnflow.options import Options
from attnflow.paper.result import Result, digits, summarize
from attnflow.rollout import attention_rollout, head_rollout
from attnflow.scoring import settled
from attnflow.view import theme
from attnflow.view.figures import add_colour_bar, correlation_over_layers, layer_map
from attnflow.view.tables import Report, Table

if TYPE_CHECKING:
    from matplotlib.figure import Figure

    from attnflow.models import Explainer


Progress = Callable[[int, int], object]


class Attention(NamedTuple):
    """The attention of a model for a text.

    Attributes:
        heads: The attention weights of each head, float64 of shape (L, H, n, n).
        graph: The graph of the mean of the heads.
        position: The explained position.
    """

    heads: NDArray[np.float64]
    graph: AttentionGraph
    position: int


SATURATION = {"pairs": "pairs saturated", "position": "of the position", "spread": "spread"}


def saturation_by_layer(
    explainer: Explainer, texts: Sequence[str], *, progress: Progress | None = None
) -> dict[str, Any]:
    """Measure in which layers flow does not depend on the explained position.

    Args:
        explainer: The model.
        texts: The texts.
        progress: Called with the number of texts done, and the total number of texts.

    Returns:
        Lists over the layers, each a mean over the texts:

        - "pairs": the share of pairs of a position and a token whose flow is min(out(s), in(t)),
          among the pairs with a flow above 0;
        - "position": the same for the explained position only;
        - "spread": the standard deviation divided by the mean of the flows of a token over the
          positions that see it. At 0, all positions have the same flow.

        And "count", the number of texts.

    Raises:
        DataError: If there is no text.

    Example:
        >>> from attnflow.models import Explainer
        >>> from attnflow.models.verb_number import checkpoint
        >>> found = saturation_by_layer(Explainer.from_pretrained(checkpoint()), ["the keys"])
        >>> len(found["pairs"]), found["pairs"][0] < found["pairs"][-1]
        (6, True)
    """

    def measure(text: str) -> NDArray[np.float64]:
        found = attention_of(explainer, text)
        return _saturation(found.graph, found.position)

    means = measured(texts, measure, progress).mean(axis=0)
    return {**dict(zip(SATURATION, means.tolist(), strict=True)), "count": len(texts)}


def saturation_result(explainer: Explainer, texts: Sequence[str], progress: Progress) -> Result:
    """Measure saturation, for printing and saving; see `saturation_by_layer`."""
    found = saturation_by_layer(explainer, texts, progress=progress)

    def text() -> str:
        rows = zip(*(found[name] for name in SATURATION), strict=True)
        cells = [
            [str(layer), f"{pairs:.1%}", f"{position:.1%}", f"{spread:.3f}"]
            for layer, (pairs, position, spread) in enumerate(rows, start=1)
        ]
        note = "spread: standard deviation / mean of the flows of a token over the positions"
        table = Table("Means over texts", ["layer", *SATURATION.values()], cells)
        return Report(f"{len(texts):,} texts; {explainer.name}", [table], [note]).plain(100)

    def figure() -> Figure:
        curves = {"saturated pairs": found["pairs"], "spread of flow": found["spread"]}
        return correlation_over_layers(curves, ylabel="share of pairs; relative spread")[0]

    return Result(found, text, figure)


def heads(
    explainer: Explainer, texts: Sequence[str], *, progress: Progress | None = None
) -> dict[str, Any]:
    """Measure how well each single head agrees with blank-out (appendix A.1 of the paper).

    Args:
        explainer: The model.
        texts: The texts.
        progress: Called with the number of texts done, and the total number of texts.

    Returns:
        "raw", "rollout" and "flow", each a list over the layers of lists over the heads of {"mean",
        "std", "ci"}: Spearman's correlation of the explained position's scores with blank-out, over
        all tokens. "difference" is that correlation minus that of the mean of the layer's heads,
        with its "difference_ci" and the "p_holm" of a sign-flip test, corrected over all heads of a
        method. "fused" has the same for the mean of the heads, a list over the layers for each
        method. And "count", the number of texts.

    Raises:
        DataError: If there is no text.
        ModelError: If the model makes no prediction.
    """
    from attnflow.importance import importance

    def measure(text: str) -> NDArray[np.float64]:
        attention, fused, position = attention_of(explainer, text)
        reference = importance(explainer, text)
        layers, count = attention.shape[:2]
        scores = np.empty((len(METHODS), layers, count + 1, len(reference)))
        for layer, head in np.ndindex(layers, count):
            above = attention, layer + 1, head
            scores[0, layer, head] = attention[layer, head, position]
            scores[1, layer, head] = head_rollout(*above, positions=[position])[0]
            scores[2, layer, head] = settled(head_flow(*above, positions=[position])[0])
        scores[0, :, -1] = fused.attention[:, position]
        scores[1, :, -1] = attention_rollout(fused, positions=[position])[:, 0]
        scores[2, :, -1] = settled(attention_flow(fused, positions=[position])[:, 0])
        found: NDArray[np.float64] = spearman(scores, reference)
        return found

    values = measured(texts, measure, progress)
    if np.isnan(values).all():
        raise DataError("no text has two tokens of different importance; nothing can be compared")
    differences = values[..., :-1] - values[..., -1:]
    p_values = np.stack([holm(of_method) for of_method in sign_flip_test(differences)])
    cells = summarize(values)
    for place, cell in np.ndenumerate(summarize(differences)):
        cells[place]["difference"] = cell["mean"]
        cells[place]["difference_ci"] = cell["ci"]
        cells[place]["p_holm"] = float(p_values[place])
    by_method = dict(zip(METHODS, cells, strict=True))
    return {
        **{method: of_method[:, :-1].tolist() for method, of_method in by_method.items()},
        "fused": {method: of_method[:, -1].tolist() for method, of_method in by_method.items()},
        "count": len(texts),
    }


def heads_result(explainer: Explainer, texts: Sequence[str], progress: Progress) -> Result:
    """Measure the agreement of heads, for printing and saving; see `heads`."""
    found = heads(explainer, texts, progress=progress)
    count = len(found["raw"][0])

    def means(method: str) -> list[list[float]]:
        return [
            [cell["mean"] for cell in (*row, fused)]
            for row, fused in zip(found[method], found["fused"][method], strict=True)
        ]

    def text() -> str:
        columns = ["layer", *(f"head {head}" for head in range(count)), "mean of heads"]
        tables = []
        for method in METHODS:
            rows = enumerate(means(method), start=1)
            cells = [[str(layer), *(f"{mean:.2f}" for mean in row)] for layer, row in rows]
            tables.append(Table(method, columns, cells, _better(found[method])))
        what = "mean Spearman correlation with blank-out"
        return Report(f"{len(texts):,} texts; {what}; {explainer.name}", tables, []).plain(100)

    def figure() -> Figure:
        layers = len(found["raw"])
        drawn = theme.new_figure(min(11.0, 1.4 + 1.05 * (count + 1)), 0.9 + 0.3 * layers)
        names = [*map(str, range(count)), "all"]
        for ax, method in zip(drawn.subplots(1, 3), METHODS, strict=True):
            layer_map(means(method), names, title=method, colour_bar=False, ax=ax)
            image = ax.get_images()[0]
            image.set_clim(-1, 1)  # light at -1 and dark at +1
            theme.put_text(ax.xaxis.label, "head", theme.TEXT_SIZE)
            for (layer, head), mean in np.ndenumerate(np.array(means(method))):
                text = ax.text(head, layer, " ", ha="center", va="center")
                colour = theme.readable((mean + 1) / 2)
                theme.put_text(text, digits(mean).replace("0.", "."), 5.5, color=colour)
        add_colour_bar(drawn, image, drawn.axes, "mean Spearman correlation", pad=0.01)
        return drawn

    return Result(found, text, figure)


def _better(layers: list[list[dict[str, Any]]]) -> list[str]:
    """Return lines that list the heads which agree better than the mean of their layer's heads."""
    cells = {
        f"layer {layer} head {head}": cell
        for layer, row in enumerate(layers, start=1)
        for head, cell in enumerate(row)
    }
    sure = {name: cell for name, cell in cells.items() if cell["p_holm"] <= 0.05}
    better = {name: cell for name, cell in sure.items() if cell["difference"] > 0}
    lines = [
        f"better than the mean of their layer's heads (p <= .05 after Holm's correction): "
        f"{len(better)} of {len(cells)}; worse: {len(sure) - len(better)}"
    ]
    for name, cell in sorted(better.items(), key=lambda item: -item[1]["difference"]):
        low, high = cell["difference_ci"]
        lines.append(f"  {name}: {cell['difference']:+.2f} ({low:+.2f} to {high:+.2f})")
    return lines


def measured(
    texts: Sequence[str],
    measure: Callable[[str], NDArray[np.float64]],
    progress: Progress | None,
) -> NDArray[np.float64]:
    """Measure every text, and return the arrays stacked.

    Raises:
        DataError: If there is no text.
    """
    if not texts:
        raise DataError("there is no text to measure")
    rows = []
    for index, text in enumerate(texts, start=1):
        rows.append(measure(text))
        if progress is not None:
            progress(index, len(texts))
    return np.array(rows)


def attention_of(explainer: Explainer, text: str) -> Attention:
    """Return the attention of a model for a text.

    Raises:
        OptionError: If the model does not read one text, as an encoder-decoder.
    """
    options = Options(keep_heads=True)
    adapter = explainer.adapter
    adapter.check(options)
    encoded = adapter.read(text)
    captured = adapter.run([encoded], [[0]], options).captured
    graph = adapter.graph(captured, 0, encoded, options)
    heads = np.stack([layer[0].double().numpy() for layer in captured.layers])
    return Attention(heads, graph, adapter.position(encoded, "auto", graph.causal) or 0)


def _saturation(graph: AttentionGraph, position: int) -> NDArray[np.float64]:
    flow = attention_flow(graph)
    bound = flow_bound(graph, list(range(graph.tokens)))
    reached = flow > 0
    saturated = is_saturated(flow, bound) & reached
    # For each layer and token, over the positions that see the token.
    flows = np.ma.masked_where(~reached, flow)
    spread = flows.std(axis=1) / flows.mean(axis=1)
    spread = np.ma.masked_where(reached.sum(axis=1) < 2, spread).mean(axis=1).filled(0.0)
    pairs = saturated.sum(axis=(1, 2)) / reached.sum(axis=(1, 2))
    of_position = saturated[:, position].sum(axis=1) / reached[:, position].sum(axis=1)
    return np.stack([pairs, of_position, spread])
