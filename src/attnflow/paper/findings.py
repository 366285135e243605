"""What the paper leaves open about its own model: saturation, and single heads."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from attnflow.correlation import spearman
from attnflow.errors import DataError, ModelError
from attnflow.evaluate.significance import bootstrap_interval, holm, sign_flip_test
from attnflow.flow import attention_flow, flow_bound, head_flow
from attnflow.graph import AttentionGraph
from attnflow.rollout import attention_rollout, head_rollout

if TYPE_CHECKING:
    from attnflow.models import Explainer

__all__ = ["heads", "saturation_by_layer"]

Progress = Callable[[int, int], object]

_METHODS = ("raw", "rollout", "flow")


def saturation_by_layer(
    explainer: Explainer, texts: Sequence[str], *, progress: Progress | None = None
) -> dict[str, Any]:
    """Measure from which layer on flow no longer depends on the position asked about.

    Args:
        explainer: The model.
        texts: The texts.
        progress: Called with how many texts are done, and how many there are.

    Returns:
        Lists over the layers, all of them means over texts:

        - "pairs": the share of pairs of a position and a token whose flow is min(out(s), in(t)), of
          those where the token can reach the position at all;
        - "position": the same for the explained position alone;
        - "spread": how much the flows of one token differ between positions that can all see it,
          the standard deviation over the mean. 0 says that the position does not matter.

        And "count", how many texts there were.

    Raises:
        DataError: If there is no text.

    Example:
        >>> from attnflow import Explainer
        >>> from attnflow.models.verb_number import checkpoint
        >>> found = saturation_by_layer(Explainer.from_pretrained(checkpoint()), ["the keys"])
        >>> len(found["pairs"]), found["pairs"][0] < found["pairs"][-1]
        (6, True)
    """
    rows = []
    for index, text in enumerate(_some(texts)):
        attention, position = _attention(explainer, text, "mean")
        rows.append(_saturation(AttentionGraph(attention), position))
        if progress is not None:
            progress(index + 1, len(texts))
    means = np.mean(rows, axis=0)
    names = ("pairs", "position", "spread")
    found = {name: [float(value) for value in means[place]] for place, name in enumerate(names)}
    return {**found, "count": len(texts)}


def heads(
    explainer: Explainer,
    texts: Sequence[str],
    *,
    samples: int = 2000,
    permutations: int = 9999,
    seed: int = 0,
    progress: Progress | None = None,
) -> dict[str, Any]:
    """Measure how far every single head agrees with blank-out (appendix A.1 of the paper).

    Args:
        explainer: The model.
        texts: The texts.
        samples: How often texts are drawn for a confidence interval.
        permutations: How often signs are flipped for a p-value.
        seed: Where random numbers start.
        progress: Called with how many texts are done, and how many there are.

    Returns:
        "raw", "rollout" and "flow", each a list over the layers of lists over the heads of {"mean",
        "std", "ci"}: Spearman's correlation of the explained position's scores with blank-out, all
        tokens scored. "difference" is how much more than the mean of the layer's heads a head has,
        text by text, with its "difference_ci" and the "p_holm" of a sign-flip test, corrected over
        all heads of a method. "fused" has the same for the mean of the heads, a list over the
        layers for each method. And "count", how many texts there were.

    Raises:
        DataError: If there is no text.
        ModelError: If the model predicts nothing that a token could matter to.
    """
    from attnflow.importance import importance

    rows = []
    for index, text in enumerate(_some(texts)):
        attention, position = _attention(explainer, text, None)
        reference = importance(explainer, text)
        layers, count = attention.shape[:2]
        scores = np.empty((len(_METHODS), layers, count + 1, len(reference)))
        for layer in range(layers):
            for head in range(count):
                above = attention, layer + 1, head
                scores[0, layer, head] = attention[layer, head, position]
                scores[1, layer, head] = head_rollout(*above, positions=[position])[0]
                scores[2, layer, head] = head_flow(*above, positions=[position])[0]
        fused = AttentionGraph(attention)
        scores[0, :, -1] = fused.attention[:, position]
        scores[1, :, -1] = attention_rollout(fused, positions=[position])[:, 0]
        scores[2, :, -1] = attention_flow(fused, positions=[position])[:, 0]
        rows.append(spearman(scores, reference))
        if progress is not None:
            progress(index + 1, len(texts))
    values = np.array(rows)
    if np.isnan(values).all():
        raise DataError("no text has two tokens that matter differently; nothing can be compared")
    differences = values[..., :-1] - values[..., -1:]
    intervals = bootstrap_interval(values, samples=samples, seed=seed)
    means, spreads = np.nanmean(values, axis=0), np.nanstd(values, axis=0)
    more = np.nanmean(differences, axis=0)
    between = bootstrap_interval(differences, samples=samples, seed=seed)
    chances = sign_flip_test(differences, permutations=permutations, seed=seed)
    corrected = [holm(chances[place]) for place in range(len(_METHODS))]

    def cell(method: int, layer: int, head: int) -> dict[str, Any]:
        return {
            "mean": float(means[method, layer, head]),
            "std": float(spreads[method, layer, head]),
            "ci": [float(end) for end in intervals[:, method, layer, head]],
        }

    def compared(method: int, layer: int, head: int) -> dict[str, Any]:
        return {
            **cell(method, layer, head),
            "difference": float(more[method, layer, head]),
            "difference_ci": [float(end) for end in between[:, method, layer, head]],
            "p_holm": float(corrected[method][layer, head]),
        }

    _, layers, columns = means.shape
    return {
        **{
            name: [
                [compared(method, layer, head) for head in range(columns - 1)]
                for layer in range(layers)
            ]
            for method, name in enumerate(_METHODS)
        },
        "fused": {
            name: [cell(method, layer, columns - 1) for layer in range(layers)]
            for method, name in enumerate(_METHODS)
        },
        "count": len(texts),
    }


def _some(texts: Sequence[str]) -> Sequence[str]:
    if not texts:
        raise DataError("there is no text")
    return texts


def _attention(
    explainer: Explainer, text: str, fusion: str | None
) -> tuple[NDArray[np.float64], int]:
    """Return the attention weights, (L, n, n) or (L, H, n, n), and the position explained."""
    from attnflow.capture import capture

    if explainer.task in ("seq2seq-lm", "speech-to-text"):
        raise ModelError("an encoder-decoder has no one attention matrix a layer")
    position = explainer.explain(text, method="raw").position
    given = explainer.tokenizer(text, return_tensors="pt").to(explainer.model.device)
    layers = capture(explainer.model, dict(given), heads=fusion).layers
    return np.stack([layer[0].double().numpy() for layer in layers]), position


def _saturation(graph: AttentionGraph, position: int) -> NDArray[np.float64]:
    everywhere = list(range(graph.tokens))
    flow = attention_flow(graph)
    bound = flow_bound(graph, everywhere)
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
