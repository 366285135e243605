"""From a graph to explanations. No model is needed."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from attnflow.checks import resolve_index
from attnflow.explanation import Explanation, Prediction
from attnflow.options import Options
from attnflow.scoring import Scorer, finish
from attnflow.tokens import Tokens
from attnflow.trace import Trace


class Answer(NamedTuple):
    """What a model answered at a position, and what is explained.

    Attributes:
        prediction: What it predicted; None if it has no head.
        target: The class or token explained; None if there is none.
    """

    prediction: Prediction | None = None
    target: str | None = None


def explain_graph(
    scorer: Scorer,
    tokens: Tokens,
    positions: Sequence[int],
    options: Options,
    answers: Sequence[Answer],
    *,
    model: str,
    task: str,
    heads: Sequence[Any] | None = None,
    details: Mapping[str, Any] | None = None,
) -> list[Explanation]:
    """Return the explanation of each of some positions of an input.

    Args:
        scorer: What scores the input's graph.
        tokens: Its tokens.
        positions: The positions, as indices of the graph.
        options: The options.
        answers: What the model answered at each position.
        model: The model's name.
        task: What the model does.
        heads: For each layer the weights of its heads, to be kept in the trace.
        details: Other arguments of `Explanation`, such as ``grid``. Its ``options`` and ``notes``
            are added to those that are made here.

    Raises:
        OptionError: If there is no such layer.
    """
    layer = resolve_index(options.layer, scorer.depth, "layer", "layers", first=1)
    graph, details = scorer.graph, details or {}
    trace = None
    if len(tokens) == graph.tokens:
        trace = Trace.of(
            graph,
            tokens=tokens.names,
            spans=tokens.spans,
            special=tokens.special,
            mask=scorer.mask if scorer.has_receptive_field(options.receptive_field) else None,
            heads=heads,
        )
    found = []
    for scored, answer in zip(scorer.score(options, layer, positions), answers, strict=True):
        finished = finish(tokens, scored, layer - 1, layer, options)
        text, kept = tokens.text, trace
        if graph.encoder is not None:
            # What follows a position of the target has no part in it.
            seen = scored.scores.shape[1]
            kept = None if trace is None else trace.first(seen)
            ends = [span[1] for span in tokens.spans[:seen] if span is not None]
            text = text[: max(ends, default=0)]
        recorded = options.recorded(receptive_field=scored.relative)
        given = {
            **details,
            "options": {**recorded, **details.get("options", {})},
            "notes": (*finished.notes, *details.get("notes", ())),
        }
        found.append(
            Explanation(
                tokens=finished.tokens.names,
                scores=finished.layer_scores[layer - 1],
                layer_scores=finished.layer_scores,
                method=options.method,
                layer=layer,
                position=scored.position,
                target=answer.target,
                prediction=answer.prediction,
                text=text,
                spans=finished.tokens.spans,
                special=finished.tokens.special,
                model=model,
                task=task,
                saturation=scored.saturation,
                trace=kept,
                **given,
            )
        )
    return found
