"""Minimum cuts: the edges that limit the attention flow to a token."""

from typing import Any, NamedTuple

import numpy as np

from attnflow._maxflow import min_cut as solve_cut
from attnflow.cancel import check_limits
from attnflow.checks import resolve_layer, resolve_position
from attnflow.graph import UNIT, as_graph


class Cut(NamedTuple):
    """A minimum cut of the attention graph.

    Attributes:
        value: The sum of the capacities of the cut edges, which equals the maximum flow.
        edges: The cut edges, from the source's layer down, each as
            ``(layer, position, to_position, capacity)``: it goes from that position of that layer
            to `to_position` of the layer below.
        source_side: The nodes ``(layer, position)`` on the source's side. Of all minimum cuts, this
            is the one nearest to the source.
    """

    value: float
    edges: tuple[tuple[int, int, int, float], ...]
    source_side: frozenset[tuple[int, int]]

    def __repr__(self) -> str:
        return (
            f"Cut(value={self.value:.6g}, {len(self.edges)} edges, "
            f"{len(self.source_side)} nodes on the source's side)"
        )


def min_cut(
    attentions: Any,
    layer: int,
    position: int,
    token: int,
    *,
    heads: str | int = "mean",
    residual: float = 0.5,
) -> Cut:
    """Return a minimum cut between a position of a layer and an input token.

    The maximum flow from the position to the token equals the smallest total capacity of edges
    whose removal separates the two (Ford and Fulkerson 1956). These edges limit the flow.

    Args:
        attentions: Attention weights as `AttentionGraph` takes them, or an `AttentionGraph`.
        layer: The layer to start from, from 1; -1 is the last.
        position: The position to start from.
        token: The input token to end in.
        heads: How heads are fused: "mean", "max", "min", "sum", or the index of a head.
        residual: The share of the residual connection, from 0 to 1.

    Returns:
        The cut nearest to the position.

    Raises:
        OptionError: If `layer`, `position` or `token` is not valid, or if `attentions` is a graph
            that was built with different `heads` or a different `residual`.
        AttnflowError: Whatever `AttentionGraph` raises.

    Example:
        >>> import numpy as np
        >>> attention = np.array([[[0.5, 0.5], [0.0, 1.0]]] * 2)  # two layers, two tokens
        >>> cut = min_cut(attention, layer=2, position=0, token=1)
        >>> cut.value
        0.5
        >>> cut.edges
        ((2, 0, 1, 0.25), (1, 0, 1, 0.25))
    """
    graph = as_graph(attentions, heads, residual)
    top = resolve_layer(layer, graph.layers)
    source = resolve_position(position, graph.padding, "position")
    sink = resolve_position(token, graph.padding, "token")
    check_limits()
    value, nodes = solve_cut(list(graph.units[:top]), source, sink, check_limits)
    inside = np.zeros((top + 1, graph.tokens), dtype=np.bool_)
    for node in nodes:
        inside[node] = True
    edges = []
    for level in range(top, 0, -1):
        units = graph.units[level - 1]
        across = inside[level][:, None] & ~inside[level - 1] & (units > 0)
        edges += [
            (level, int(k), int(m), float(units[k, m] * UNIT)) for k, m in np.argwhere(across)
        ]
    return Cut(value * UNIT, tuple(edges), frozenset(nodes))
