"""Attention rollout: attention weights multiplied along each path and summed over all paths.

Abnar and Zuidema, "Quantifying Attention Flow in Transformers", ACL 2020, section 4.
"""

from typing import Any

import numpy as np
from numpy.typing import NDArray

from attnflow.checks import resolve_index, resolve_layer, resolve_positions
from attnflow.errors import OptionError
from attnflow.graph import AttentionGraph, as_graph, head_capacities


def attention_rollout(
    attentions: Any,
    *,
    heads: str | int = "mean",
    residual: float = 0.5,
    start_layer: int = 0,
    positions: Any = None,
) -> NDArray[np.float64]:
    """Return the rollout from every layer down to one.

    Rollout from layer i down to layer j is ``A[i] A[i-1] ... A[j+1]``, where ``A[l]`` are the edge
    weights of layer l. With j = 0, the default, it gives the share of each input token in each
    position of layer i.

    For all positions this takes L n^3 operations. For P of them, rows are multiplied from the top
    down, for all layers i in one pass, which takes P L^2 n^2 / 2. The cheaper of the two is used.

    Args:
        attentions: Attention weights as `AttentionGraph` takes them, or an `AttentionGraph`.
        heads: How heads are fused: "mean", "max", "min", "sum", or the index of a head.
        residual: The share of the residual connection, from 0 to 1.
        start_layer: The layer j to end in, from 0, the input, to L - 1. A negative one counts from
            the end: -1 is layer L.
        positions: The positions to start from. None means all.

    Returns:
        Array of shape (L - start_layer, P, n). Item k is the rollout from layer
        start_layer + 1 + k. Rows sum to 1; rows of padded positions are 0.

    Raises:
        OptionError: If `start_layer` or `positions` is not valid, or if `attentions` is a graph
            that was built with different `heads` or a different `residual`.
        AttnflowError: Whatever `AttentionGraph` raises.

    Example:
        >>> import numpy as np
        >>> attention = np.array([[[0.5, 0.5], [0.0, 1.0]]] * 2)  # two layers, two tokens
        >>> attention_rollout(attention)[-1]  # from the last layer
        array([[0.5625, 0.4375],
               [0.    , 1.    ]])
        >>> attention_rollout(attention, positions=[0])[-1]
        array([[0.5625, 0.4375]])
    """
    graph = as_graph(attentions, heads, residual)
    # Layer 0 is the input.
    bottom = resolve_index(start_layer, graph.layers + 1, "start_layer", "layers with the input")
    if bottom == graph.layers:
        raise OptionError(
            f"start_layer is {start_layer}, the last layer; expected 0, the input, to {bottom - 1}"
        )
    rows = resolve_positions(positions, graph.padding)
    if len(rows) * (graph.layers - bottom) < 2 * graph.tokens:
        return _top_down(graph, bottom, rows)
    return _bottom_up(graph.capacities[bottom:], rows)


def head_rollout(
    attentions: Any,
    layer: int,
    head: int,
    *,
    residual: float = 0.5,
    positions: Any = None,
) -> NDArray[np.float64]:
    """Return the rollout of a single head down to the input tokens.

    The head's own weights are used in its layer, the mean over heads in every layer below:
    ``A[i,h] A[i-1] ... A[1]`` (Abnar and Zuidema 2020, appendix A.1). This takes P i n^2 operations
    for P positions and layer i.

    Args:
        attentions: Attention weights with a head axis, as `AttentionGraph` takes them.
        layer: The head's layer i, from 1; -1 is the last.
        head: The head h, from 0; -1 is the last.
        residual: The share of the residual connection, from 0 to 1.
        positions: The positions to start from. None means all.

    Returns:
        Array of shape (P, n). Rows sum to 1.

    Raises:
        AttentionError: If `attentions` has no head axis or is an `AttentionGraph`, whose heads are
            fused.
        OptionError: If `layer`, `head` or `positions` is not valid.
        AttnflowError: Whatever `AttentionGraph` raises.

    Example:
        >>> import numpy as np
        >>> one_layer_two_heads = np.array([[[[1.0, 0.0], [0.0, 1.0]], [[0.5, 0.5], [0.0, 1.0]]]])
        >>> head_rollout(one_layer_two_heads, layer=1, head=1)
        array([[0.75, 0.25],
               [0.  , 1.  ]])
    """
    weights, graph = head_capacities(attentions, layer, head, residual)
    rollout = weights[resolve_positions(positions, graph.padding)]
    below = resolve_layer(layer, graph.layers) - 1
    for step in range(below, 0, -1):
        rollout = _step_down(rollout, graph.attention[step - 1], graph.residual_of(step))
    return rollout


def _step_down(
    rows: NDArray[np.float64],
    attention: NDArray[np.float64],
    residual: float | NDArray[np.float64],
) -> NDArray[np.float64]:
    """Multiply rows by a layer's edge weights without computing them: x A = (x (1 - r)) W + x r.

    r is a number, or an array with one for each position of the layer.
    """
    if isinstance(residual, float):
        return (1.0 - residual) * (rows @ attention) + residual * rows
    return (rows * (1.0 - residual)) @ attention + rows * residual


def _top_down(graph: AttentionGraph, bottom: int, rows: NDArray[np.int64]) -> NDArray[np.float64]:
    """Carry the rows of all layers above through each layer, reading each layer once."""
    layers = graph.attention[bottom:]
    rollout = np.empty((len(layers), len(rows), graph.tokens))
    for layer in reversed(range(len(layers))):
        residual = graph.residual_of(bottom + layer + 1)
        above = rollout[layer + 1 :].reshape(-1, graph.tokens)
        rollout[layer + 1 :].reshape(-1, graph.tokens)[:] = _step_down(
            above, layers[layer], residual
        )
        share = residual if isinstance(residual, float) else residual[rows]
        rollout[layer] = (1.0 - np.expand_dims(share, -1)) * layers[layer][rows]
        rollout[layer, range(len(rows)), rows] += share * ~graph.padding[rows]
    return rollout


def _bottom_up(layers: NDArray[np.float64], rows: NDArray[np.int64]) -> NDArray[np.float64]:
    """Compute the full product layer by layer and keep some rows of each."""
    count, tokens = len(layers), layers.shape[1]
    rollout = np.empty((count, len(rows), tokens))
    product = layers[0]
    rollout[0] = product[rows]
    for layer in range(1, count - 1):
        product = layers[layer] @ product
        rollout[layer] = product[rows]
    if count > 1:
        # No layer is above the last one, so the other rows of its product are not needed.
        rollout[-1] = layers[-1][rows] @ product
    return rollout
