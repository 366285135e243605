"""From scores to explanations. No model is needed."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from attnflow.checks import resolve_index
from attnflow.explanation import Explanation, Prediction, Read
from attnflow.graph import AttentionGraph
from attnflow.options import Options
from attnflow.scoring import Scored, Scorer, finish
from attnflow.tokens import Tokens
from attnflow.trace import MOST_HEAD_WEIGHTS, Trace


class Answer(NamedTuple):
    """What a model answered at a position, and what is explained.

    Attributes:
        prediction: What it predicted; None if it has no head.
        target: The class or token explained; None if there is none.
        contrast: The one that it is compared with; None if none was given.
        value: The answer that contributions add up to; None for other methods.
        bias: What biases add to it; None for other methods.
    """

    prediction: Prediction | None = None
    target: str | None = None
    contrast: str | None = None
    value: float | None = None
    bias: float | None = None


class Explained(NamedTuple):
    """An explanation, and what it was made of.

    Attributes:
        explanation: The explanation.
        groups: For each unit that it scores the tokens of the input, by index.
        scored: The scores of the tokens, before any were left out or added up.
    """

    explanation: Explanation
    groups: list[list[int]]
    scored: Scored


def explain_graph(
    scorer: Scorer,
    tokens: Tokens,
    weights: Sequence[NDArray[np.float64]],
    options: Options,
    answers: Sequence[Answer],
    *,
    details: Mapping[str, Any],
    heads: Sequence[Any] | None = None,
) -> list[Explained]:
    """Return explanations of an input, each of a position or of the mean of several.

    Args:
        scorer: What scores the input's graph.
        tokens: Its tokens.
        weights: For each explanation the weight of every position of the graph.
        options: The options.
        answers: What the model answered in each.
        details: Other arguments of `Explanation`: ``model``, ``task``, and such as ``grid``. Its
            ``options`` and ``notes`` are added to those that are made here.
        heads: For each layer the weights of its heads, to be kept in the trace.

    Raises:
        OptionError: If there is no such layer.
    """
    layer = resolve_index(options.layer, scorer.depth, "layer", "layers", first=1)
    trace = None
    if isinstance(scorer.graph, AttentionGraph):
        mask = scorer.mask if scorer.has_receptive_field(options.receptive_field) else None
        trace = traced(scorer.graph, tokens, mask=mask, heads=heads)
    count = 0 if heads is None else sum(np.size(layer) for layer in heads)
    if count > MOST_HEAD_WEIGHTS:
        left_out = (
            f"Single heads are not shown: they have {count:,} weights, and a page holds at most "
            f"{MOST_HEAD_WEIGHTS:,}."
        )
        details = {**details, "notes": (*details.get("notes", ()), left_out)}
    until = scorer.encoder is not None
    return [
        explained(
            tokens,
            scored,
            layer,
            options,
            answer,
            trace,
            {**details, "reads": reads_of(scorer.by_token(each))},
            until=until,
        )
        for each, scored, answer in zip(
            weights, scorer.score_means(options, layer, weights), answers, strict=True
        )
    ]


def reads_of(weights: NDArray[np.float64]) -> list[Read]:
    """Return the positions that have a weight, with it.

    Example:
        >>> reads_of(np.array([0.0, 0.25, 0.75]))
        [Read(position=1, weight=0.25), Read(position=2, weight=0.75)]
    """
    return [Read(int(place), float(weights[place])) for place in np.flatnonzero(weights)]


def traced(
    graph: AttentionGraph,
    tokens: Tokens,
    *,
    mask: NDArray[np.bool_] | None,
    heads: Sequence[Any] | None,
    carried: NDArray[np.float64] | None = None,
    head_values: NDArray[np.float64] | None = None,
) -> Trace | None:
    """Return the trace of a graph; None if a token has several of its positions.

    The arguments are those of `Trace.of`.
    """
    if len(tokens) != graph.tokens:
        return None
    return Trace.of(
        graph,
        tokens=tokens.names,
        spans=tokens.spans,
        special=tokens.special,
        mask=mask,
        heads=heads,
        carried=carried,
        head_values=head_values,
    )


def explained(
    tokens: Tokens,
    scored: Scored,
    layer: int,
    options: Options,
    answer: Answer,
    trace: Trace | None,
    details: Mapping[str, Any],
    *,
    until: bool = False,
) -> Explained:
    """Return the explanation of one position of an input.

    Args:
        tokens: The input's tokens.
        scored: The scores of every layer.
        layer: The layer explained, from 1.
        options: The options.
        answer: What the model answered.
        trace: The trace of the whole graph.
        details: Other arguments of `Explanation`, as in `explain_graph`.
        until: Whether what follows the last token scored is left out of the text and the trace, as
            for a position of a target.
    """
    finished = finish(tokens, scored, layer - 1, layer, options)
    text, seen = tokens.text, scored.scores.shape[1]
    end = max((span[1] for span in tokens.spans[:seen] if span is not None), default=0)
    if until:
        trace = None if trace is None else trace.first(seen)
        text = text[:end]
    given: Mapping[str, Any] = {
        **details,
        "options": {
            **options.recorded(receptive_field=scored.relative),
            **details.get("options", {}),
            # A causal position reads nothing after it, and a text may have been cut.
            **({"read": end} if text[end:].strip() else {}),
        },
        "notes": (*finished.notes, *details.get("notes", ())),
    }
    explanation = Explanation(
        tokens=finished.tokens.names,
        scores=finished.layer_scores[layer - 1],
        layer_scores=finished.layer_scores,
        method=options.method,
        layer=layer,
        position=scored.position,
        text=text,
        spans=finished.tokens.spans,
        special=finished.tokens.special,
        segments=tuple(one for one in tokens.segments if one.end <= len(text)),
        saturation=scored.saturation,
        trace=trace,
        **answer._asdict(),
        **given,
    )
    return Explained(explanation, finished.groups, scored)
