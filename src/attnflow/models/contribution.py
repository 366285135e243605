"""From the contributions of a batch to the explanation of one input."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from attnflow.explain import Answer, Explained, explained, traced
from attnflow.models.adapter import Adapter, Contributed, Encoded
from attnflow.options import Options
from attnflow.scoring import Scored, mask_of
from attnflow.trace import Trace


def contributions(
    adapter: Adapter, encoded: Encoded, place: int, found: Contributed, options: Options, model: str
) -> Explained:
    """Explain what an answer came from.

    Args:
        adapter: What read the input and ran the model.
        encoded: The input.
        place: The position at which the answer was read.
        found: What the answer came from.
        options: The options.
        model: The model's name.
    """
    trace, rows = None, found.scores[None]
    if found.found.steps:
        trace, rows = _followed(adapter, encoded, found, options)
    scores = by_token(rows, encoded)[:, : seen(adapter, encoded, place, found)]
    position = encoded.source + place if adapter.asks_about_targets else place
    details = {
        "model": model,
        "task": adapter.task,
        **adapter.details(encoded, found.found.outputs, None),
    }
    return explained(
        encoded.tokens,
        Scored(scores, position, None, (), False),
        1,
        options,
        answer_of(adapter, found),
        trace,
        {**details, "notes": [*details.get("notes", ()), *notes_on(adapter, found)]},
        until=adapter.asks_about_targets,
    )


def answer_of(adapter: Adapter, found: Contributed) -> Answer:
    """Return the answer and what it is made of."""
    target, contrast = found.asked.target, found.asked.contrast
    return Answer(
        found.prediction,
        None if target is None else adapter.label(target),
        None if contrast is None else adapter.label(contrast),
        found.value,
        found.bias,
    )


def notes_on(adapter: Adapter, found: Contributed) -> list[str]:
    """Return what a reader of contributions has to be warned of."""
    notes = [found.note] if found.note else []
    if found.asked.target == found.asked.contrast:
        name = adapter.label(found.prediction.index)
        notes.append(
            f"The contrast, {name!r}, is what the model predicts, so there is no difference to "
            "explain. Give the target, too."
        )
    return notes


def by_token(rows: NDArray[np.float64], encoded: Encoded) -> NDArray[np.float64]:
    """Add up the positions of each token, of shape (..., positions)."""
    if encoded.sizes is None:
        return rows
    every = [*encoded.sizes, *[1] * (rows.shape[-1] - sum(encoded.sizes))]
    added: NDArray[np.float64] = np.add.reduceat(rows, np.cumsum([0, *every[:-1]]), axis=-1)
    return added


def seen(adapter: Adapter, encoded: Encoded, place: int, found: Contributed) -> int:
    """Return how many tokens a position can see: of a model that writes, none that follows it."""
    last = encoded.node(place)
    if not adapter.writes or found.scores[last + 1 :].any():
        return len(encoded.tokens)
    return encoded.source + place + 1


def _followed(
    adapter: Adapter, encoded: Encoded, found: Contributed, options: Options
) -> tuple[Trace | None, NDArray[np.float64]]:
    """Return the trace of what flowed, and what the positions contribute in each layer."""
    captured = adapter.followed(found.found)
    # The attention beside the contributions is what the options of attention say it is.
    graph = adapter.graph(captured, found.row, encoded, options.replace(edges="attention"))
    carried = adapter.carried(found.found, found.row, encoded)
    relative = options.receptive_field is True or (
        options.receptive_field == "auto" and graph.causal
    )
    heads = None
    if options.keep_heads:
        count = graph.tokens
        heads = [layer[found.row, :, :count, :count].numpy() for layer in captured.layers]
    mask = adapter.mask(graph)
    trace = traced(
        graph,
        encoded.tokens,
        mask=(mask_of(graph) if mask is None else mask) if relative else None,
        heads=heads,
        carried=carried,
    )
    if adapter.asks_about_targets:
        # The steps of a decoder are not its layers; the embeddings are what is scored.
        return trace, found.scores[None]
    return trace, carried.sum(axis=1)
