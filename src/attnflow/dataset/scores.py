"""The scores of a whole batch of texts, computed at once.

They are those of `Explainer.explain`, up to rounding. Rollout carries one row a text down the
layers, for all texts in one product a layer, and nothing is computed for a layer that was not asked
for: a data set has the scores of one.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from attnflow.errors import AttentionError
from attnflow.explain import Explainer, _Encoded, _explanation, _Measured, _Options, _uniform_scores
from attnflow.explanation import Explanation, Prediction
from attnflow.flow import _solve
from attnflow.graph import ROW_TOLERANCE, UNIT, _add_residual, resolve_index, to_units
from attnflow.scoring import notes_on, predict, relative_to

if TYPE_CHECKING:
    import torch

    from attnflow.capture import Captured

__all__ = ["Found", "score_batch"]


class Found(NamedTuple):
    """What is stored of a text's explanation; as in `Explanation`."""

    tokens: tuple[str, ...]
    scores: NDArray[np.float64]
    special: tuple[bool, ...]
    spans: tuple[tuple[int, int] | None, ...]
    layer: int
    position: int
    target: str | None
    prediction: Prediction | None
    saturation: float | None
    notes: tuple[str, ...]

    @classmethod
    def of(cls, explanation: Explanation) -> Found:
        """Return what is stored of an explanation."""
        return cls(*(getattr(explanation, name) for name in cls._fields))


class _Batch(NamedTuple):
    """What was read off the attention of B texts, padded to N tokens.

    `rows` are the scores of raw attention and of rollout, (B, N), `units` the integer capacities
    for flow, (B, N, N) for each layer up to the one asked for. `masks` says which offsets each
    layer attends over, (L, B, 2 N - 1), where that is needed.
    """

    rows: NDArray[np.float64]
    sinks: list[int]
    units: list[NDArray[np.int64]]
    masks: NDArray[np.bool_] | None


def score_batch(
    explainer: Explainer,
    texts: Sequence[_Encoded],
    places: Sequence[int | None],
    captured: Captured,
    logits: Sequence[NDArray[np.float64] | None],
    targets: Sequence[list[int] | None],
    options: _Options,
) -> list[Found]:
    """Score the texts of a batch.

    Args:
        explainer: The model.
        texts: The texts.
        places: The position of each, None where it depends on whether the attention is causal.
        captured: Their attention.
        logits: For each text the logits of its position; None if the model has no head.
        targets: For each text a list of the class or token that it is explained for, or None.
        options: The options of `Explainer.explain`.

    Returns:
        What is stored of each text.

    Raises:
        AttentionError: If the attention of any text is not what a graph is made of.
        OptionError: If there is no such layer.
    """
    import torch

    layer = resolve_index(options.layer, len(captured.layers), "layer", "layers", first=1)
    lengths = [len(text.ids) for text in texts]
    real = torch.arange(captured.layers[0].shape[-1]) < torch.tensor(lengths)[:, None]
    causal = _causal(captured.layers, real)
    positions = [
        (explainer._position(text, options.position, down) or 0) if place is None else place
        for text, place, down in zip(texts, places, causal, strict=True)
    ]
    seen = [
        place + 1 if down else length
        for place, length, down in zip(positions, lengths, causal, strict=True)
    ]
    relative = [
        # A row of raw attention over a uniform row is the same row once it is normalised.
        options.method != "raw"
        and (options.receptive_field is True or (options.receptive_field == "auto" and down))
        for down in causal
    ]
    batch = _read(captured, real, positions, seen, layer, options, masks=any(relative))
    found = []
    for row, (text, place, length) in enumerate(zip(texts, positions, lengths, strict=True)):
        scores, saturation = batch.rows[row, :length], None
        if options.method == "flow":
            scores, saturation = _flow([x[row, :length, :length] for x in batch.units], place)
        if batch.masks is not None and relative[row]:
            size = real.shape[1]
            residual: float | NDArray[np.float64] = float(options.residual)
            if captured.residuals is not None:
                residual = np.stack([share[row, :length].numpy() for share in captured.residuals])
            measured = _Measured(
                layer,
                [place],
                scores[None, None],
                [saturation],
                [seen[row]],
                [batch.sinks[row]],
                batch.masks[:, row, size - length : size + length - 1],
                residual,
            )
            uniform = _uniform_scores(measured, options, explainer._uniform, num_threads=1)
            scores = relative_to(uniform[layer - 1, 0], scores)
        answer, wanted = logits[row], targets[row]
        found.append(
            _found(
                text,
                scores[: seen[row]],
                layer,
                place,
                None if answer is None else predict(answer[0], explainer._label),
                None if answer is None or wanted is None else explainer._label(wanted[0]),
                saturation,
                batch.sinks[row],
                relative[row],
                options,
            )
        )
    return found


def _causal(layers: Sequence[torch.Tensor], real: torch.Tensor) -> list[bool]:
    """Return for each text whether no position attends to a later one, in any layer."""
    causal = real[:, 1:].any(dim=1)
    for layer in layers:
        # The first row settles it for nearly every text that is not.
        causal &= ~((layer[:, 0, 1:] != 0) & real[:, 1:]).any(dim=1)
    for layer in layers:
        if not causal.any():
            break
        above = (layer != 0).triu(1) & real[:, :, None] & real[:, None, :]
        causal &= ~above.flatten(1).any(dim=1)
    return [bool(x) for x in causal]


def _read(
    captured: Captured,
    real: torch.Tensor,
    positions: Sequence[int],
    seen: Sequence[int],
    layer: int,
    options: _Options,
    *,
    masks: bool,
) -> _Batch:
    """Go through the layers of a batch from the top down; `real` is False where it is padded."""
    import torch

    size = real.shape[1]
    inside = None if bool(real.all()) else real[:, :, None] & real[:, None, :]
    carried = torch.zeros(real.shape, dtype=torch.float64)
    carried[range(len(positions)), positions] = 1.0
    counted = (torch.arange(size) < torch.tensor(seen)[:, None]).double()
    attracted = torch.zeros_like(carried)
    units: list[NDArray[np.int64]] = []
    offsets: list[torch.Tensor] = []
    for number in range(len(captured.layers), 0, -1):
        weights = captured.layers[number - 1].double()
        if inside is not None:
            weights = torch.where(inside, weights, 0.0)
        sums = weights.sum(dim=-1)
        if options.edges == "gradient":
            # Where nothing that a position attends to helps the target, it keeps to itself.
            empty = (sums <= 0) & real
            weights = weights + torch.diag_embed(empty.double())
            sums = torch.where(empty, 1.0, sums)
        _check(weights, sums, real, number, gradient=options.edges == "gradient")
        share: Any = float(options.residual)
        if captured.residuals is not None:
            share = torch.where(real, captured.residuals[number - 1], 0.0)
        scale = torch.where(real, 1.0 / sums, 0.0)
        rows = [counted * scale]
        if options.method == "raw" and number == layer:
            rows.append(carried * scale)
        elif options.method == "rollout" and number <= layer:
            rows.append(carried * scale * (1.0 - share))
        product = torch.bmm(torch.stack(rows, dim=1), weights)
        attracted += product[:, 0] - rows[0] * torch.diagonal(weights, dim1=1, dim2=2)
        if len(rows) > 1:
            carried = product[:, 1] + (0.0 if options.method == "raw" else share * carried)
        if options.method == "flow" and number <= layer:
            residual = share if isinstance(share, float) else share.numpy()
            normal = (weights * scale[:, :, None]).numpy()
            units.insert(0, to_units(_add_residual(normal, residual, real.numpy())))
        if masks:
            offsets.insert(0, _offsets(weights != 0))
    attracted.masked_fill_(counted == 0, -1.0)
    return _Batch(
        carried.numpy(),
        attracted.argmax(dim=1).tolist(),
        units,
        torch.stack(offsets).numpy() if masks else None,
    )


def _check(
    weights: torch.Tensor, sums: torch.Tensor, real: torch.Tensor, number: int, *, gradient: bool
) -> None:
    """Check rows as a graph does; what is wrong where, a graph of one text says better."""
    even = gradient or bool((((sums - 1.0).abs() <= ROW_TOLERANCE) | ~real).all())
    if not even or not bool((weights >= 0).all()):
        raise AttentionError(f"layer {number} of a text of the batch has rows that are no shares")


def _offsets(attended: torch.Tensor) -> torch.Tensor:
    """Return over which offsets, from -(N - 1) to N - 1, each of (B, N, N) masks attends.

    Rows are written one place longer than they are read, upside down, which puts every diagonal
    into a column.
    """
    import torch

    batch, size, _ = attended.shape
    wide = torch.zeros(batch, size, 2 * size, dtype=torch.bool)
    wide[:, :, :size] = attended.flip(1)
    shifted = wide.flatten(1)[:, : size * (2 * size - 1)].view(batch, size, 2 * size - 1)
    return shifted.any(dim=1)


def _flow(units: list[NDArray[np.int64]], place: int) -> tuple[NDArray[np.float64], float]:
    """Return the flows from a position of the top layer, and the share that is saturated."""
    stack = [np.ascontiguousarray(layer) for layer in units]
    top, tokens = np.array([len(stack)]), np.arange(len(stack[0]))
    # One thread: there are as many texts at work as there are CPUs to use.
    flow = _solve(stack, top, np.array([place]), tokens, 1)[0, 0]
    bound = np.minimum(stack[-1][place].sum(), stack[0].sum(axis=0))
    return flow * UNIT, float((flow == bound).mean())


def _found(
    text: _Encoded,
    scores: NDArray[np.float64],
    layer: int,
    position: int,
    prediction: Prediction | None,
    target: str | None,
    saturation: float | None,
    sink: int,
    relative: bool,
    options: _Options,
) -> Found:
    """Return what is stored of a text, given the scores of the tokens that its position sees."""
    count = len(scores)
    named = None if options.drop_sink else sink
    notes = notes_on(text.tokens, scores, position, layer, saturation, named)
    tokens, special, spans = text.tokens[:count], text.special[:count], text.spans[:count]
    if options.words or options.drop_sink or not options.special_tokens:
        # As the explanation of a model with this layer alone.
        made = _explanation(
            text,
            scores[None],
            1,
            position,
            None,
            None,
            None,
            sink,
            relative,
            None,
            options,
            "",
            "",
        )
        tokens, scores, special, spans = made.tokens, made.scores, made.special, made.spans
    return Found(
        tokens,
        scores,
        special,
        spans,
        layer,
        position,
        target,
        prediction,
        saturation,
        tuple(notes),
    )
