"""The graph of uniform attention over a mask, which receptive fields compare with."""

from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

from attnflow.graph import AttentionGraph, encoder_decoder_graph


def uniform_graph(
    mask: NDArray[np.bool_],
    *,
    residual: float | NDArray[np.float64] = 0.5,
    encoder: tuple[int, int] | None = None,
    sunk: NDArray[np.bool_] | None = None,
) -> AttentionGraph:
    """Return the graph of uniform attention.

    A learned sink counts as one more position that every token may attend to.

    Args:
        mask: Which offsets, from -(n - 1) to n - 1, each layer attends over, of shape (L, 2 n - 1).
        residual: The residual share, as in `AttentionGraph`.
        encoder: For an encoder-decoder, how many layers its encoder has and how many tokens its
            source.
        sunk: If position 0 is a learned sink, which layers attend to it, of shape (L,). The mask is
            that of the other positions.

    Example:
        >>> uniform_graph(np.array([[True, True, False]])).attention
        array([[[1. , 0. ],
                [0.5, 0.5]]])
    """
    count = (mask.shape[1] + 1) // 2
    place = np.arange(count)
    allowed = mask[:, place - place[:, None] + count - 1]
    if encoder is not None:
        allowed &= sides(len(mask), count, encoder)
    if sunk is not None:
        allowed[:, :, 0] = sunk[:, None]
        allowed[:, 0] = place == 0
    return layered_graph(
        allowed / allowed.sum(axis=-1, keepdims=True),
        residual=residual,
        encoder=encoder,
        sink=sunk is not None,
    )


def uniform_rollout(
    mask: NDArray[np.bool_],
    weights: NDArray[np.float64],
    *,
    residual: float | NDArray[np.float64] = 0.5,
    sunk: NDArray[np.bool_] | None = None,
) -> NDArray[np.float64]:
    """Return the rollout of uniform attention from every layer down to the input.

    A position attends equally to all within its offsets, so what it passes on to them is a sum over
    a range. With running sums a layer takes time and memory in proportion to n for each row, and
    not to its square.

    Args:
        mask: As in `uniform_graph`, of shape (L, 2 n - 1).
        weights: The weight of every position in each of P means to start from, of shape (P, n).
        residual: The residual share, as in `AttentionGraph`.
        sunk: As in `uniform_graph`.

    Returns:
        Array of shape (L, P, n), as `attnflow.attention_rollout` gives it for `uniform_graph`.

    Example:
        >>> uniform_rollout(np.array([[True, True, False]]), np.array([[0.0, 1.0]]))
        array([[[0.25, 0.75]]])
    """
    layers, (count, tokens) = len(mask), weights.shape
    rollout = np.empty((layers, count, tokens))
    for layer in reversed(range(layers)):
        share = residual if isinstance(residual, float) else residual[layer]
        rollout[layer] = weights
        rows = rollout[layer:]
        sink = None if sunk is None else bool(sunk[layer])
        rows[:] = _spread(rows * (1.0 - share), mask[layer], sink) + rows * share
    return rollout


def _spread(
    rows: NDArray[np.float64], offsets: NDArray[np.bool_], sink: bool | None
) -> NDArray[np.float64]:
    """Multiply rows by a layer of uniform attention; with a sink, tell whether it is attended to.

    Args:
        rows: Of shape (..., n).
        offsets: Which offsets, from -(n - 1) to n - 1, the layer attends over.
        sink: None without a learned sink.
    """
    first, middle = 0 if sink is None else 1, rows.shape[-1] - 1
    given = rows[..., first:]
    size = given.shape[-1]
    place = np.arange(size)
    edges = np.flatnonzero(np.diff(offsets, prepend=False, append=False)) - middle
    # From which to which position each one attends; several ranges if offsets are left out.
    ranges = [
        (np.clip(place + low, 0, size), np.clip(place + end, 0, size))
        for low, end in list(pairwise(edges))[::2]
    ]
    counts = sum((high - low for low, high in ranges), np.zeros(size)) + bool(sink)
    given = given / counts
    sums = np.zeros((*given.shape[:-1], size + 1))
    np.cumsum(given, axis=-1, out=sums[..., 1:])
    result = np.zeros(rows.shape)
    for low, end in list(pairwise(edges))[::2]:
        # Those who attend to a position are as far before it as it is after them.
        last, begin = np.clip(place - low + 1, 0, size), np.clip(place - end + 1, 0, size)
        result[..., first:] += sums[..., last] - sums[..., begin]
    if first:
        result[..., 0] = rows[..., 0] + (sums[..., -1] if sink else 0.0)
    return result


def layered_graph(
    attention: NDArray[np.float64],
    *,
    residual: float | NDArray[np.float64] = 0.5,
    encoder: tuple[int, int] | None = None,
    sink: bool = False,
) -> AttentionGraph:
    """Return the graph of fused attention, given as it stands in a graph.

    Args:
        attention: As `AttentionGraph.attention`, of shape (L, n, n).
        residual: The residual share.
        encoder: For an encoder-decoder, how many layers its encoder has and how many tokens its
            source, as `AttentionGraph.encoder`.
        sink: Whether position 0 is a learned sink.
    """
    if encoder is None:
        return AttentionGraph(attention, residual=residual, sink=sink)
    below, source = encoder
    return encoder_decoder_graph(
        attention[:below, :source, :source],
        attention[below::2, source:, source:],
        attention[below + 1 :: 2, source:, :source],
        residual=residual,
        allow_empty=True,
    )


def sides(layers: int, count: int, encoder: tuple[int, int]) -> NDArray[np.bool_]:
    """Return which edges an encoder-decoder may have, of shape (L, n, n).

    The source attends to itself in the encoder's layers. Above, the target attends to itself and to
    the source by turns. Positions that do not attend pass the layer, and keep to themselves.

    Args:
        layers: The layers of the graph.
        count: Its tokens, source and target.
        encoder: The layers of the encoder, and the tokens of the source.
    """
    below, source = encoder
    allowed = np.zeros((layers, count, count), dtype=np.bool_)
    allowed[:below, :source, :source] = True
    allowed[:below, source:, source:] = np.eye(count - source, dtype=np.bool_)
    allowed[below:, :source, :source] = np.eye(source, dtype=np.bool_)
    allowed[below::2, source:, source:] = True
    allowed[below + 1 :: 2, source:, :source] = True
    return allowed
