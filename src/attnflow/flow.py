"""Attention flow: attention as capacities, and the maximum flow from a position to a token.

Abnar and Zuidema, "Quantifying Attention Flow in Transformers", ACL 2020, section 4.

The solver works on integers (see `attnflow.graph.AttentionGraph.units`), so a flow is exact to the
last bit, equals the capacity of a minimum cut, and does not depend on the number of threads.
"""

import os
from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from attnflow import _maxflow
from attnflow.errors import OptionError
from attnflow.graph import (
    UNIT,
    AttentionGraph,
    as_graph,
    head_capacities,
    resolve_layer,
    resolve_layers,
    resolve_positions,
    to_units,
)

__all__ = ["attention_flow", "flow_bound", "head_flow", "saturation", "solve_units"]


def attention_flow(
    attentions: Any,
    *,
    heads: str | int = "mean",
    residual: float = 0.5,
    layers: Any = None,
    positions: Any = None,
    tokens: Any = None,
    normalize: bool = False,
    num_threads: int | None = None,
) -> NDArray[np.float64]:
    """Return the maximum flow from positions of some layers to input tokens.

    The edge weights of the attention graph are taken as capacities. A path carries as much as its
    smallest edge lets through, and paths share what their edges can carry.

    Every pair is a problem of its own, so ask for the layers, positions and tokens that you need.
    The time for a pair grows about linearly with the number of tokens. Pairs of one token, or of
    one position, share work. Bad luck, which attention of trained models has not been seen to
    have, costs O(L^2 n^3) for a pair, as in Dinic's method.

    Args:
        attentions: Attention weights as `AttentionGraph` takes them, or an `AttentionGraph`.
        heads: How heads become one: "mean", "max", "min", "sum", or the index of a head.
        residual: The share of the residual connection, from 0 to 1.
        layers: The layers to start from, from 1; -1 is the last. None means all.
        positions: The positions to start from. None means all.
        tokens: The input tokens to end in. None means all.
        normalize: Divide the flows of each position by their sum over the tokens asked for, as the
            paper's authors do over all tokens. Where that sum is 0, the flows stay 0.
        num_threads: How many threads to use. None means one for each CPU this process may use.

    Returns:
        Array of shape (layers, P, T): the flow from each position of each layer to each token, at
        most 1. Flows to or from padded positions are 0. (Of an encoder-decoder, a target token that
        a step only passes on has no limit there, and a flow of 2048 says so.)

    Raises:
        OptionError: If an option is not valid, or if `attentions` is a graph that was built with
            other `heads` or another `residual`.
        AttnflowError: Whatever `AttentionGraph` raises.

    Example:
        >>> import numpy as np
        >>> attention = np.array([[[0.5, 0.5], [0.0, 1.0]]] * 2)  # two layers, two tokens
        >>> attention_flow(attention, layers=[2])[0]
        array([[0.75, 0.5 ],
               [0.  , 1.  ]])
        >>> attention_flow(attention, layers=[-1], positions=[0], normalize=True)
        array([[[0.6, 0.4]]])
    """
    graph = as_graph(attentions, heads, residual)
    tops = resolve_layers(layers, graph)
    sources = resolve_positions(positions, graph)
    sinks = resolve_positions(tokens, graph, "tokens")
    threads = _resolve_threads(num_threads)
    if not isinstance(normalize, bool | np.bool_):
        raise OptionError(f"normalize is {normalize!r}; expected True or False")
    flow = _in_weights(solve_units(graph.units, tops, sources, sinks, threads))
    if normalize:
        sums = flow.sum(axis=-1, keepdims=True)
        np.divide(flow, sums, out=flow, where=sums > 0)
    return flow


def head_flow(
    attentions: Any,
    layer: int,
    head: int,
    *,
    residual: float = 0.5,
    positions: Any = None,
    tokens: Any = None,
) -> NDArray[np.float64]:
    """Return the maximum flow from positions of a single head to input tokens.

    The head's own weights are the capacities of its layer, the mean over heads those of every
    layer below (Abnar and Zuidema 2020, appendix A.1).

    Args:
        attentions: Attention weights with a head axis, as `AttentionGraph` takes them.
        layer: The head's layer, from 1; -1 is the last.
        head: The head, from 0; -1 is the last.
        residual: The share of the residual connection, from 0 to 1.
        positions: The positions to start from. None means all.
        tokens: The input tokens to end in. None means all.

    Returns:
        Array of shape (P, T).

    Raises:
        AttentionError: If `attentions` has no head axis or is an `AttentionGraph`, whose heads are
            fused.
        OptionError: If `layer`, `head`, `positions` or `tokens` is not valid.
        AttnflowError: Whatever `AttentionGraph` raises.

    Example:
        >>> import numpy as np
        >>> one_layer_two_heads = np.array([[[[1.0, 0.0], [0.0, 1.0]], [[0.5, 0.5], [0.0, 1.0]]]])
        >>> head_flow(one_layer_two_heads, layer=1, head=1)
        array([[0.75, 0.25],
               [0.  , 1.  ]])
    """
    weights, graph = head_capacities(attentions, layer, head, residual)
    top = resolve_layer(layer, graph)
    sources = resolve_positions(positions, graph)
    sinks = resolve_positions(tokens, graph, "tokens")
    stack = [*graph.units[: top - 1], to_units(weights)]
    return _in_weights(
        solve_units(stack, np.array([top]), sources, sinks, _resolve_threads(None))[0]
    )


def saturation(
    attentions: Any,
    *,
    heads: str | int = "mean",
    residual: float = 0.5,
    positions: Any = None,
) -> NDArray[np.float64]:
    """Return how much of each layer's flow no longer depends on the position asked about.

    A flow is at most what leaves the position, and at most what all of layer 1 sends to the token:
    min(out(s), in(t)). Where it reaches that, it is saturated. In a layer whose pairs are all
    saturated, every position has the same flows, and they say nothing about the position.

    Args:
        attentions: Attention weights as `AttentionGraph` takes them, or an `AttentionGraph`.
        heads: How heads become one: "mean", "max", "min", "sum", or the index of a head.
        residual: The share of the residual connection, from 0 to 1.
        positions: The positions to count. None means all.

    Returns:
        Array of shape (L,): for each layer the share of (position, token) pairs whose flow equals
        min(out(s), in(t)), compared as integers. Padded positions and tokens do not count.

    Raises:
        OptionError: If `positions` is not valid, or if `attentions` is a graph that was built with
            other `heads` or another `residual`.
        AttnflowError: Whatever `AttentionGraph` raises.

    Example:
        >>> import numpy as np
        >>> attention = np.full((4, 3, 3), 1 / 3)  # four layers of uniform attention
        >>> saturation(attention).round(2)
        array([0.  , 0.33, 0.33, 1.  ])
    """
    graph = as_graph(attentions, heads, residual)
    kept = np.flatnonzero(~graph.padding)
    sources = kept if positions is None else resolve_positions(positions, graph)
    flow = solve_units(
        graph.units, np.arange(1, graph.layers + 1), sources, kept, _resolve_threads(None)
    )
    bound = _bound_in_units(graph, sources, kept)
    share: NDArray[np.float64] = (flow == bound).mean(axis=(1, 2))
    return share


def flow_bound(graph: AttentionGraph, positions: Sequence[int]) -> NDArray[np.float64]:
    """Return what no flow exceeds: min(out(s), in(t)) for all layers, some positions, all tokens.

    Args:
        graph: The graph.
        positions: Indices of positions.

    Returns:
        Array of shape (L, P, n). Where a flow equals it, the flow is saturated.

    Example:
        >>> import numpy as np
        >>> graph = as_graph(np.array([[[0.5, 0.5], [0.0, 1.0]]]))
        >>> flow_bound(graph, [0])
        array([[[0.75, 1.  ]]])
    """
    return _in_weights(
        _bound_in_units(graph, np.asarray(positions, np.int64), np.arange(graph.tokens))
    )


def _bound_in_units(
    graph: AttentionGraph, sources: NDArray[np.int64], sinks: NDArray[np.int64]
) -> NDArray[np.int64]:
    leaving = graph.units.sum(axis=2)[:, sources, None]
    arriving = graph.units[0].sum(axis=0)[sinks]
    bound: NDArray[np.int64] = np.minimum(leaving, arriving)
    return bound


def solve_units(
    units: Sequence[NDArray[np.int64]] | NDArray[np.int64],
    tops: NDArray[np.int64],
    sources: NDArray[np.int64],
    sinks: NDArray[np.int64],
    threads: int,
) -> NDArray[np.int64]:
    """Return maximum flows in whole units, without any check.

    Args:
        units: The capacities of each layer, lowest first, int64 of shape (n, n).
        tops: The layers to start from, from 1. Layers above the topmost one are not looked at.
        sources: The positions to start from.
        sinks: The input tokens to end in.
        threads: How many threads to use.

    Returns:
        Array of shape (tops, sources, sinks).
    """
    return _maxflow.flow(
        list(units[: int(tops.max())]), tops.tolist(), sources.tolist(), sinks.tolist(), threads
    )


def _in_weights(units: NDArray[np.int64]) -> NDArray[np.float64]:
    """Return amounts of flow as weights; float64 holds them exactly."""
    weights: NDArray[np.float64] = units * np.float64(UNIT)
    return weights


def _resolve_threads(num_threads: Any) -> int:
    """Return a number of threads."""
    if num_threads is None:
        if hasattr(os, "sched_getaffinity"):
            return len(os.sched_getaffinity(0))
        return os.cpu_count() or 1
    if isinstance(num_threads, bool) or not isinstance(num_threads, int | np.integer):
        raise OptionError(f"num_threads is {num_threads!r}; expected a whole number or None")
    if num_threads < 1:
        raise OptionError(f"num_threads is {num_threads}; expected 1 or more, or None for all CPUs")
    return int(num_threads)
