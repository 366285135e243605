"""What the paper leaves open about its own model: saturation, and single heads."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from attnflow.correlation import spearman
from attnflow.errors import DataError, ModelError
from attnflow.evaluate.significance import holm, sign_flip_test
from attnflow.flow import attention_flow, flow_bound, head_flow
from attnflow.graph import AttentionGraph
from attnflow.paper.result import METHODS, Result, digits, summarize
from attnflow.rollout import attention_rollout, head_rollout
from attnflow.scoring import settled
from attnflow.view import theme
from attnflow.view.figures import correlation_over_layers
from attnflow.view.tables import Report, Table

if TYPE_CHECKING:
    from matplotlib.figure import Figure

    from attnflow.models import Explainer

__all__ = ["heads", "heads_result", "measured", "saturation_by_layer", "saturation_result"]

Progress = Callable[[int, int], object]

SATURATION = {"pairs": "pairs saturated", "position": "of the position", "spread": "spread"}


def saturation_by_layer(
    explainer: Explainer, texts: Sequence[str], *, progress: Progress | None = None
) -> dict[str, Any]:
    """Measure from which layer on flow no longer depends on the explained position.

    Args:
        explainer: The model.
        texts: The texts.
        progress: Called with the number of texts done, and the number of all texts.

    Returns:
        Lists over the layers, each a mean over the texts:

        - "pairs": the share of pairs of a position and a token whose flow is min(out(s), in(t)),
          among the pairs in which the token can reach the position;
        - "position": the same for the explained position only;
        - "spread": how much the flows of one token differ between the positions that can see it,
          as the standard deviation divided by the mean. At 0 the position does not matter.

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
        attention, position = _attention(explainer, text, "mean")
        return _saturation(AttentionGraph(attention), position)

    means = measured(texts, measure, progress).mean(axis=0)
    return {**dict(zip(SATURATION, means.tolist(), strict=True)), "count": len(texts)}


def saturation_result(explainer: Explainer, texts: Sequence[str], progress: Progress) -> Result:
    """Measure saturation, for printing and saving; see `saturation_by_layer`."""
    found = saturation_by_layer(explainer, texts, progress=progress)

    def report() -> Report:
        rows = zip(*(found[name] for name in SATURATION), strict=True)
        cells = [
            [str(layer), f"{pairs:.1%}", f"{position:.1%}", f"{spread:.3f}"]
            for layer, (pairs, position, spread) in enumerate(rows, start=1)
        ]
        note = "spread: how much the flows of one token differ between positions; 0: not at all"
        table = Table("Means over texts", ["layer", *SATURATION.values()], cells)
        return Report(f"{len(texts):,} texts; {explainer.name}", [table], [note])

    def figure() -> Figure:
        curves = {"saturated pairs": found["pairs"], "spread of flow": found["spread"]}
        return correlation_over_layers(curves, ylabel="share of pairs; relative spread")[0]

    return Result(found, report, figure)


def heads(
    explainer: Explainer,
    texts: Sequence[str],
    *,
    samples: int = 2000,
    permutations: int = 9999,
    seed: int = 0,
    progress: Progress | None = None,
) -> dict[str, Any]:
    """Measure how well each single head agrees with blank-out (appendix A.1 of the paper).

    Args:
        explainer: The model.
        texts: The texts.
        samples: How many bootstrap samples to draw for a confidence interval.
        permutations: How many sign flips to draw for a p-value.
        seed: The seed of both.
        progress: Called with the number of texts done, and the number of all texts.

    Returns:
        "raw", "rollout" and "flow", each a list over the layers of lists over the heads of {"mean",
        "std", "ci"}: Spearman's correlation of the explained position's scores with blank-out, all
        tokens scored. "difference" is how much higher it is than that of the mean of the layer's
        heads, with its "difference_ci" and the "p_holm" of a sign-flip test, corrected over all
        heads of a method. "fused" has the same for the mean of the heads, a list over the layers
        for each method. And "count", the number of texts.

    Raises:
        DataError: If there is no text.
        ModelError: If the model makes no prediction that a token could matter to.
    """
    from attnflow.importance import importance

    def measure(text: str) -> NDArray[np.float64]:
        attention, position = _attention(explainer, text, None)
        reference = importance(explainer, text)
        layers, count = attention.shape[:2]
        scores = np.empty((len(METHODS), layers, count + 1, len(reference)))
        for layer in range(layers):
            for head in range(count):
                above = attention, layer + 1, head
                scores[0, layer, head] = attention[layer, head, position]
                scores[1, layer, head] = head_rollout(*above, positions=[position])[0]
                scores[2, layer, head] = settled(head_flow(*above, positions=[position])[0])
        fused = AttentionGraph(attention)
        scores[0, :, -1] = fused.attention[:, position]
        scores[1, :, -1] = attention_rollout(fused, positions=[position])[:, 0]
        scores[2, :, -1] = settled(attention_flow(fused, positions=[position])[:, 0])
        found: NDArray[np.float64] = spearman(scores, reference)
        return found

    values = measured(texts, measure, progress)
    if np.isnan(values).all():
        raise DataError("no text has two tokens of different importance; nothing can be compared")
    differences = values[..., :-1] - values[..., -1:]
    chances = sign_flip_test(differences, permutations=permutations, seed=seed)
    means = summarize(values, samples=samples, seed=seed)
    more = summarize(differences, samples=samples, seed=seed)
    found: dict[str, Any] = {}
    for place, method in enumerate(METHODS):
        corrected = holm(chances[place])
        found[method] = [
            [
                {
                    **means[place][layer][head],
                    "difference": cell["mean"],
                    "difference_ci": cell["ci"],
                    "p_holm": float(corrected[layer, head]),
                }
                for head, cell in enumerate(row)
            ]
            for layer, row in enumerate(more[place])
        ]
    fused = {method: [row[-1] for row in of] for method, of in zip(METHODS, means, strict=True)}
    return {**found, "fused": fused, "count": len(texts)}


def heads_result(explainer: Explainer, texts: Sequence[str], progress: Progress) -> Result:
    """Measure the agreement of heads, for printing and saving; see `heads`."""
    found = heads(explainer, texts, progress=progress)
    count = len(found["raw"][0])

    def means(method: str) -> list[list[float]]:
        return [
            [cell["mean"] for cell in (*row, fused)]
            for row, fused in zip(found[method], found["fused"][method], strict=True)
        ]

    def report() -> Report:
        columns = ["layer", *(f"head {head}" for head in range(count)), "mean of heads"]
        tables = [
            Table(
                method,
                columns,
                [
                    [str(layer), *(f"{mean:.2f}" for mean in row)]
                    for layer, row in enumerate(means(method), start=1)
                ],
                _better(found[method]),
            )
            for method in METHODS
        ]
        what = "mean Spearman correlation with blank-out"
        return Report(f"{len(texts):,} texts; {what}; {explainer.name}", tables, [])

    def figure() -> Figure:
        layers = len(found["raw"])
        drawn = theme.new_figure(min(11.0, 1.4 + 1.05 * (count + 1)), 0.9 + 0.3 * layers)
        for ax, method in zip(drawn.subplots(1, 3, sharey=True), METHODS, strict=True):
            # Red and blue of equal lightness look alike in grey. This scale is dark at +1 and
            # light at -1.
            values = means(method)
            scale = {"cmap": theme.scale(), "vmin": -1, "vmax": 1}
            image = ax.imshow(values, origin="lower", aspect="auto", **scale)
            theme.dress(ax)
            theme.set_title(ax, method)
            ax.axvline(count - 0.5, color="white", linewidth=2.0)
            theme.set_ticks(ax.xaxis, range(count + 1), [*map(str, range(count)), "all"])
            theme.set_ticks(ax.yaxis, range(layers), [f"L{layer + 1}" for layer in range(layers)])
            theme.put_text(ax.xaxis.label, "head", theme.TEXT_SIZE)
            for row, head in np.ndindex(layers, count + 1):
                mean = values[row][head]
                text = ax.text(head, row, " ", ha="center", va="center")
                colour = theme.readable((mean + 1) / 2)
                theme.put_text(text, digits(mean).replace("0.", "."), 5.5, color=colour)
        bar = drawn.colorbar(image, ax=drawn.axes, shrink=0.9, aspect=20, pad=0.01)
        bar.ax.tick_params(labelsize=theme.SMALL_SIZE, length=2)
        theme.put_text(bar.ax.yaxis.label, "mean Spearman correlation", theme.SMALL_SIZE)
        return drawn

    return Result(found, report, figure)


def _better(layers: list[list[dict[str, Any]]]) -> list[str]:
    """Say which heads agree better than the mean of their layer's heads, and how many worse."""
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


def _attention(
    explainer: Explainer, text: str, fusion: str | None
) -> tuple[NDArray[np.float64], int]:
    """Return the attention weights, (L, n, n) or (L, H, n, n), and the explained position."""
    from attnflow.capture import capture

    if explainer.task in ("seq2seq-lm", "speech-to-text"):
        raise ModelError("an encoder-decoder has more than one attention matrix for each layer")
    position = explainer.explain(text, method="raw").position
    given = explainer.tokenizer(text, return_tensors="pt").to(explainer.model.device)
    layers = capture(explainer.model, dict(given), heads=fusion).layers
    return np.stack([layer[0].double().numpy() for layer in layers]), position


def _saturation(graph: AttentionGraph, position: int) -> NDArray[np.float64]:
    flow = attention_flow(graph)
    bound = flow_bound(graph, list(range(graph.tokens)))
    reached = flow > 0
    saturated = (flow == bound) & reached
    result = np.empty((3, graph.layers))
    for layer in range(graph.layers):
        result[0, layer] = saturated[layer].sum() / reached[layer].sum()
        result[1, layer] = saturated[layer, position].sum() / reached[layer, position].sum()
        spreads = [
            np.std(column[seen]) / np.mean(column[seen])
            for column, seen in zip(flow[layer].T, reached[layer].T, strict=True)
            if seen.sum() > 1
        ]
        result[2, layer] = np.mean(spreads) if spreads else 0.0
    return result
