"""Attention flow: the maximum flow from a position to a token, with attention as capacities.

Abnar and Zuidema, "Quantifying Attention Flow in Transformers", ACL 2020, section 4.

The solver works on integers (see `attnflow.graph.AttentionGraph.units`). A flow is exact to the
last bit, equals the capacity of a minimum cut, and does not depend on the number of threads.
"""

import os
from collections.abc import Sequence
from typing import Any, Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from attnflow._maxflow import flow as solve_flow
from attnflow.cancel import check_limits
from attnflow.checks import (
    check_memory,
    copies_that_fit,
    integer,
    resolve_layer,
    resolve_layers,
    resolve_positions,
    switch,
)
from attnflow.graph import UNIT, AttentionGraph, as_graph, head_capacities, to_units

# A flow is saturated if it is this many units below its bound, or fewer. Weights that are equal may
# differ by a unit, because a row of them does not divide into equal units. Sums of them, and so two
# cuts that are equal in real numbers, differ by a few units. 32 units are 2.8e-14.
_TIE: Final = 32

# Bytes of an edge: the fused attention, the integer capacities, and a little for what is made layer
# by layer; and what each thread copies of the layers between the first and the topmost, with sets
# of edges, a bit each. Bytes of a flow: in units, and as a number.
_BYTES_OF_GRAPH: Final = 17
_BYTES_OF_COPY: Final = 8.5
_BYTES_OF_FLOW: Final = 16
# Copies that are smaller together are made without asking how much memory there is.
_SMALL: Final = 2**26

# Seconds of CPU time, measured as `flow_cost` says: of an edge, for the graph and its units; and of
# a pair, by the number of tokens and the layer it starts from.
_SECONDS_OF_EDGE: Final = 30e-9
_SECONDS_OF_PAIR: Final = 180e-9
_SECONDS_OF_PAIR_AND_LAYER: Final = 12e-9


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

    The edge weights of the attention graph are the capacities. A path carries as much as its
    smallest edge allows, and paths that use the same edge share its capacity.

    Every pair of a position and a token is a separate problem, so select only the layers, positions
    and tokens that you need. Pairs of the same token, or of the same position, share some work. On
    attention of trained models, the time for a pair grows about linearly with the number of tokens.
    Worst case O(L^2 n^3) for a pair, as in Dinic's algorithm; not observed on trained models.

    Args:
        attentions: Attention weights as `AttentionGraph` takes them, or an `AttentionGraph`.
        heads: How heads are fused: "mean", "max", "min", "sum", or the index of a head.
        residual: The share of the residual connection, from 0 to 1.
        layers: The layers to start from, from 1; -1 is the last. None means all.
        positions: The positions to start from. None means all.
        tokens: The input tokens to end in. None means all.
        normalize: Divide the flows of each position by their sum over the selected tokens, as the
            authors of the paper do over all tokens. Where that sum is 0, the flows stay 0.
        num_threads: The number of threads. None means one for each CPU this process may use.

    Returns:
        Array of shape (layers, P, T): the flow from each position of each layer to each token, at
        most 1. Flows to or from padded positions are 0. In an encoder-decoder, the flow from a
        target token to itself through layers that leave it unchanged is unlimited and given as
        2048.

    Raises:
        OptionError: If an option is not valid, or if `attentions` is a graph that was built with
            different `heads` or a different `residual`.
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
    tops = resolve_layers(layers, graph.layers)
    sources = resolve_positions(positions, graph.padding)
    sinks = resolve_positions(tokens, graph.padding, "tokens")
    threads = _resolve_threads(num_threads)
    normalize = switch(normalize, "normalize")
    flow = _in_weights(solve_units(graph.units, tops, sources, sinks, threads))
    if normalize:
        sums = flow.sum(axis=-1, keepdims=True)
        np.divide(flow, sums, out=flow, where=sums > 0)
    return flow


class FlowCost(NamedTuple):
    """What a call of attention flow needs.

    Attributes:
        bytes: Memory for the graph and the solver.
        seconds: Time, by the clock, on CPUs that do nothing else.
    """

    bytes: int
    seconds: float


def flow_cost(
    layers: int,
    tokens: int,
    positions: int,
    sinks: int | None = None,
    *,
    tops: Sequence[int] | None = None,
    threads: int | None = None,
) -> FlowCost:
    """Estimate what attention flow needs, without the attention.

    The memory is that of the graph, of the solver and of the result; the attention of all heads, if
    the caller holds it, comes on top. It grows with the number of edges, L n^2, and with the
    threads.

    The time is calibrated on MiniLM (an encoder of 6 layers) with 64 to 512 tokens and SmolLM2-135M
    (a decoder of 30 layers) with 64 and 128, on one thread of an AMD EPYC processor. For single
    positions of the last layer it was within a factor of 3. All pairs of a decoder take less,
    because half of them are 0. Flow from a middle layer takes a sixth to four times as long: that
    depends on how far it is from saturation. Flow through sharply peaked attention takes up to 70
    times as long.

    Args:
        layers: The number of layers L of the graph.
        tokens: The number of tokens n.
        positions: The number of positions to start from.
        sinks: The number of tokens to end in. None means all.
        tops: The layers to start from, from 1. None means the last alone.
        threads: The number of threads. None means one for each CPU this process may use.

    Returns:
        The memory and the time.

    Example:
        >>> cost = flow_cost(layers=30, tokens=2048, positions=1, threads=1)
        >>> f"{cost.bytes / 1e9:.1f} GB, {cost.seconds:.0f} s"
        '3.1 GB, 6 s'
    """
    threads = _resolve_threads(threads)
    starts = [layers] if tops is None else list(tops)
    # A thread without a pair makes no copy.
    pairs = positions * (tokens if sinks is None else sinks)
    flows = pairs * len(starts)
    edges = layers * tokens * tokens
    size = _BYTES_OF_GRAPH * edges + _BYTES_OF_FLOW * flows
    size += min(threads, flows) * _bytes_of_copy(max(starts), tokens)
    # From layers 1 and 2, a flow is read off two rows.
    per_token = sum(
        _SECONDS_OF_PAIR + _SECONDS_OF_PAIR_AND_LAYER * top for top in starts if top > 2
    )
    return FlowCost(size, _SECONDS_OF_EDGE * edges + pairs * tokens * per_token / threads)


def check_flow(
    layers: int,
    tokens: int,
    positions: int,
    sinks: int | None = None,
    *,
    tops: Sequence[int] | None = None,
    threads: int | None = None,
) -> FlowCost:
    """Check that attention flow fits into memory, before there is any attention.

    Where memory is short, flow runs with as many threads as fit, which changes no result.

    Args:
        layers: The number of layers L of the graph.
        tokens: The number of tokens n.
        positions: The number of positions to start from.
        sinks: The number of tokens to end in. None means all.
        tops: The layers to start from, from 1. None means the last alone.
        threads: The most threads to use. None means one for each CPU this process may use.

    Returns:
        What it needs, with the threads that fit.

    Raises:
        GraphSizeError: If it does not fit with one thread. The error says what is needed, what is
            available, and what needs less.

    Example:
        >>> check_flow(layers=6, tokens=128, positions=1).bytes < 10**7
        True
    """
    copy = _bytes_of_copy(layers if tops is None else max(tops), tokens)
    before = flow_cost(layers, tokens, positions, sinks, tops=tops, threads=1).bytes - copy
    fitting = copies_that_fit(_resolve_threads(threads), copy, before)
    cost = flow_cost(layers, tokens, positions, sinks, tops=tops, threads=fitting)
    check_memory(layers, tokens, needed=cost.bytes, seconds=cost.seconds)
    return cost


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
    top = resolve_layer(layer, graph.layers)
    sources = resolve_positions(positions, graph.padding)
    sinks = resolve_positions(tokens, graph.padding, "tokens")
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
    """Return the share of flows in each layer that do not depend on the position.

    A flow is at most what leaves the position, and at most what all of layer 1 sends to the token:
    min(out(s), in(t)). A flow that reaches this bound is saturated. In a layer where all pairs are
    saturated, every position has the same flows, and they carry no information about the position.

    Args:
        attentions: Attention weights as `AttentionGraph` takes them, or an `AttentionGraph`.
        heads: How heads are fused: "mean", "max", "min", "sum", or the index of a head.
        residual: The share of the residual connection, from 0 to 1.
        positions: The positions to count. None means all.

    Returns:
        Array of shape (L,): for each layer the share of (position, token) pairs whose flow equals
        min(out(s), in(t)), within 3e-14. Padded positions and tokens are not counted.

    Raises:
        OptionError: If `positions` is not valid, or if `attentions` is a graph that was built with
            different `heads` or a different `residual`.
        AttnflowError: Whatever `AttentionGraph` raises.

    Example:
        >>> import numpy as np
        >>> attention = np.full((4, 3, 3), 1 / 3)  # four layers of uniform attention
        >>> saturation(attention).round(2)
        array([0.  , 0.33, 0.33, 1.  ])
    """
    graph = as_graph(attentions, heads, residual)
    kept = np.flatnonzero(~graph.padding)
    sources = kept if positions is None else resolve_positions(positions, graph.padding)
    flow = solve_units(
        graph.units, np.arange(1, graph.layers + 1), sources, kept, _resolve_threads(None)
    )
    bound = _bound_in_units(graph, sources, kept)
    share: NDArray[np.float64] = (flow >= bound - _TIE).mean(axis=(1, 2))
    return share


def is_saturated(flow: NDArray[np.float64], bound: NDArray[np.float64]) -> NDArray[np.bool_]:
    """Return whether flows are as large as their bounds, as `saturation` counts them.

    Example:
        >>> is_saturated(np.array([0.5, 0.25]), np.array([0.5, 0.5])).tolist()
        [True, False]
    """
    result: NDArray[np.bool_] = flow >= bound - _TIE * UNIT
    return result


def flow_bound(graph: AttentionGraph, positions: Sequence[int]) -> NDArray[np.float64]:
    """Return the upper bound of flows, min(out(s), in(t)), for all layers and tokens.

    Args:
        graph: The graph.
        positions: The indices of P positions.

    Returns:
        Array of shape (L, P, n). A flow that equals its bound is saturated.

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
    """Return maximum flows in units. Nothing is checked.

    Args:
        units: The capacities of each layer, from layer 1, int64 of shape (n, n).
        tops: The layers to start from, from 1. Layers above the topmost one are not used.
        sources: The positions to start from.
        sinks: The input tokens to end in.
        threads: The number of threads.

    Returns:
        Array of shape (tops, sources, sinks).

    Raises:
        StoppedError: If a limit of `attnflow.limited` is reached.
    """
    check_limits()
    matrices = list(units[: int(tops.max())])
    copy = _bytes_of_copy(len(matrices), len(matrices[0]))
    if threads * copy > _SMALL:
        threads = copies_that_fit(threads, copy)
    return solve_flow(
        matrices, tops.tolist(), sources.tolist(), sinks.tolist(), threads, check_limits
    )


def _bytes_of_copy(top: int, tokens: int) -> int:
    """Return the bytes that each thread of the solver needs for flows from this layer."""
    return int(_BYTES_OF_COPY * max(0, top - 2) * tokens * tokens)


def _in_weights(units: NDArray[np.int64]) -> NDArray[np.float64]:
    """Return amounts in units as weights, which float64 represents exactly."""
    weights: NDArray[np.float64] = units * np.float64(UNIT)
    return weights


def _resolve_threads(num_threads: Any) -> int:
    """Return a number of threads."""
    if num_threads is not None:
        return integer(num_threads, "num_threads", least=1, otherwise="None for all CPUs")
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1
