"""The graph of uniform attention over a mask, which receptive fields compare with."""

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
