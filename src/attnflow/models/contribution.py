"""From the contributions of a batch to the explanation of one input."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from attnflow.explain import Answer, Explained, explained, reads_of, traced
from attnflow.graph import AttentionGraph
from attnflow.models.adapter import Adapter, Contributed, Encoded
from attnflow.options import Options
from attnflow.scoring import Scored, Scorer, token_starts
from attnflow.trace import Trace


def contributions(
    adapter: Adapter,
    encoded: Encoded,
    places: Sequence[int],
    found: Contributed,
    options: Options,
    model: str,
    attention: tuple[Any, int] | None = None,
    notes: Sequence[str] = (),
) -> Explained:
    """Explain what an answer came from.

    Args:
        adapter: What read the input and ran the model.
        encoded: The input.
        places: The positions at which the answer was read.
        found: What the answer came from.
        options: The options.
        model: The model's name.
        attention: What `Adapter.capture` gave, and the row of the input in it, where attention
            could not be followed in the same pass.
        notes: What else a reader has to know.
    """
    rows, trace = found.scores[None], None
    if found.found.steps:
        attention = adapter.followed(found.found), found.row
    if attention is not None:
        graph, trace = _traced(adapter, encoded, found, options, *attention)
        if trace is not None and trace.carried is not None:
            # A learned sink contributes nothing, and is left out.
            later = _entering(trace.carried, graph)[:, int(trace.sink) :]
            rows = np.concatenate([rows, later])
    scores = by_token(rows, encoded)[:, : seen(adapter, encoded, max(places), found)]
    weights = _weights(adapter, encoded, places, found, options)
    details = {
        "model": model,
        "task": adapter.task,
        **adapter.details(encoded, found.found.outputs),
    }
    if not adapter.compares:
        details["options"] = {**details.get("options", {}), "compared": False}
    return explained(
        encoded.tokens,
        Scored(scores, int(weights.argmax()), None, (), False),
        1,
        options,
        answer_of(adapter, found, encoded),
        trace,
        {
            **details,
            "reads": reads_of(weights),
            "notes": [*details.get("notes", ()), *notes_on(adapter, found), *notes],
        },
        until=adapter.asks_about_targets,
    )


def _weights(
    adapter: Adapter,
    encoded: Encoded,
    places: Sequence[int],
    found: Contributed,
    options: Options,
) -> NDArray[np.float64]:
    """Return how much of the answer is read at each token."""
    weights = np.zeros(len(encoded.tokens))
    if adapter.head_chooses and options.position == "auto" and found.reads is not None:
        return by_token(adapter.in_graph(found.reads, encoded), encoded)
    # Of an encoder-decoder, positions count those of the target.
    first = encoded.source if adapter.asks_about_targets else 0
    for place in places:
        weights[first + place] += 1.0 / len(places)
    return weights


def answer_of(adapter: Adapter, found: Contributed, encoded: Encoded) -> Answer:
    """Return the answer and what it is made of."""
    targets = [target for target in found.asked.targets if target is not None]
    others, contrast = found.asked.others, found.asked.contrast
    compared = None if contrast is None else adapter.label(contrast)
    return Answer(
        found.prediction,
        adapter.joined(targets, encoded),
        adapter.joined(others, encoded) if others else compared,
        found.value,
        found.bias,
    )


def notes_on(adapter: Adapter, found: Contributed) -> list[str]:
    """Return what a reader of contributions has to be warned of."""
    notes = [found.note] if found.note else []
    if found.asked.same:
        name = adapter.label(found.asked.contrast or 0)
        notes.append(
            f"The contrast, {name!r}, is what the model predicts, so there is no difference to "
            "explain. Give the target, too."
        )
    return notes


def by_token(rows: NDArray[np.float64], encoded: Encoded) -> NDArray[np.float64]:
    """Add up the positions of each token, of shape (..., positions)."""
    starts = token_starts(encoded.sizes, rows.shape[-1])
    return rows if starts is None else np.add.reduceat(rows, starts, axis=-1)


def seen(adapter: Adapter, encoded: Encoded, place: int, found: Contributed) -> int:
    """Return how many tokens a position can see: of a model that writes, none that follows it."""
    last = encoded.node(place)
    if not adapter.writes or found.scores[last + 1 :].any():
        return len(encoded.tokens)
    return encoded.source + place + 1


def _traced(
    adapter: Adapter,
    encoded: Encoded,
    found: Contributed,
    options: Options,
    captured: Any,
    row: int,
) -> tuple[AttentionGraph, Trace | None]:
    """Return the graph of the attention beside contributions, and the trace of both."""
    # It is what the options of attention say, but for the edges.
    graph = adapter.graph(captured, row, encoded, options.replace(edges="attention"))
    scorer = Scorer(graph, mask=adapter.mask(graph))
    mask = scorer.mask if scorer.has_receptive_field(options.receptive_field) else None
    heads, values, count = None, None, graph.tokens
    steps = found.found.steps
    if options.keep_heads:
        values = np.stack([step.heads[found.row].numpy() for step in steps]) if steps else None
        heads = [layer[row, :, :count, :count].numpy() for layer in captured.layers]
    carried = adapter.carried(found.found, found.row, encoded) if steps else None
    tokens = adapter.shown(captured, encoded).tokens
    return graph, traced(graph, tokens, mask=mask, heads=heads, carried=carried, head_values=values)


def _entering(carried: NDArray[np.float64], graph: AttentionGraph) -> NDArray[np.float64]:
    """Return what the positions contribute where they enter each layer after the first."""
    entering: NDArray[np.float64] = carried.sum(axis=1)
    # A layer of a decoder that attends to an encoder is two steps.
    return entering[1:] if graph.encoder is None else entering[graph.encoder[0] + 2 :: 2]
