"""The other maximum-flow solvers, behind one interface.

A solver gets the integer capacities once, when it is made. `prepare` does what its library has to
repeat for every pair, and is timed separately. `solve` is what is compared with attnflow. Solvers
get only the edges with a positive capacity. Node ``layer * n + position`` is a position after a
layer; layer 0 is the input. The page of the benchmark (pages/solvers.md) describes each solver.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Any, ClassVar, NamedTuple

import numpy as np
from numpy.typing import NDArray

from attnflow.graph import UNIT

SCALE = int(1 / UNIT)
"""The integer that stands for a capacity of 1."""

_FLOAT_TOLERANCE = 1e-9


class Edges(NamedTuple):
    """The edges with a positive capacity of a layered graph.

    Attributes:
        nodes: Number of nodes, ``(layers + 1) * n``.
        tails: (E,) node that each edge leaves.
        heads: (E,) node that each edge enters.
        capacities: (E,) integer capacity of each edge.
    """

    nodes: int
    tails: NDArray[np.int64]
    heads: NDArray[np.int64]
    capacities: NDArray[np.int64]


def edges_of(capacities: NDArray[np.int64]) -> Edges:
    """List the edges of a layered graph.

    Args:
        capacities: (L, n, n) integers, lowest layer first. A row is a position that attends.

    Example:
        >>> edges = edges_of(np.array([[[2, 0], [1, 1]]]))
        >>> edges.nodes, edges.tails.tolist(), edges.heads.tolist(), edges.capacities.tolist()
        (4, [2, 3, 3], [0, 0, 1], [2, 1, 1])
    """
    depth, n, _ = capacities.shape
    layers, rows, columns = np.nonzero(capacities > 0)
    values = capacities[layers, rows, columns]
    return Edges((depth + 1) * n, (layers + 1) * n + rows, layers * n + columns, values)


class Solver(ABC):
    """A maximum-flow solver.

    Args:
        capacities: (L, n, n) integers, lowest layer first.

    Attributes:
        title: Its name in a table.
        scale: An answer divided by this is the flow.
        tolerance: How far the flow may be from attnflow's. With 0, the integers must be equal.
    """

    title: ClassVar[str]
    scale: float = SCALE
    tolerance: float = 0.0

    def __init__(self, capacities: NDArray[np.int64]) -> None:
        self.build(edges_of(capacities))

    @abstractmethod
    def build(self, edges: Edges) -> None:
        """Build the graph, once for all pairs."""

    def prepare(self, source: int, sink: int) -> None:  # noqa: B027 (most need nothing)
        """Do what the library needs again for this pair. By default, nothing."""

    @abstractmethod
    def solve(self, source: int, sink: int) -> float:
        """Return the maximum flow from node `source` to node `sink`."""


class EdmondsKarp(Solver):
    """networkx's Edmonds-Karp, which the paper's authors use."""

    title = "networkx EK"
    algorithm = "edmonds_karp"

    def build(self, edges: Edges) -> None:
        import networkx

        self.flow_func = getattr(networkx.algorithms.flow, self.algorithm)
        self.maximum_flow_value = networkx.maximum_flow_value
        self.graph = networkx.DiGraph()
        self.graph.add_nodes_from(range(edges.nodes))
        columns = (edges.tails, edges.heads, edges.capacities)
        self.graph.add_weighted_edges_from(
            zip(*(column.tolist() for column in columns), strict=True), weight="capacity"
        )

    def solve(self, source: int, sink: int) -> float:
        return int(self.maximum_flow_value(self.graph, source, sink, flow_func=self.flow_func))


class PreflowPush(EdmondsKarp):
    """networkx's preflow-push, its default."""

    title = "networkx PP"
    algorithm = "preflow_push"


class ScipyDinic(Solver):
    """scipy's Dinic. It takes only 32-bit capacities, so they are scaled to 2**30."""

    title = "scipy"
    scale = 2.0**30

    def build(self, edges: Edges) -> None:
        from scipy.sparse import csr_array
        from scipy.sparse.csgraph import maximum_flow

        # Rounding moves an edge by at most half a unit, and a cut by that times its edges.
        self.tolerance = len(edges.capacities) / 2**31
        rounded = np.rint(edges.capacities / (SCALE / self.scale)).astype(np.int32)
        kept = rounded > 0
        self.maximum_flow = maximum_flow
        self.graph = csr_array(
            (rounded[kept], (edges.tails[kept], edges.heads[kept])),
            shape=(edges.nodes, edges.nodes),
        )

    def solve(self, source: int, sink: int) -> float:
        return int(self.maximum_flow(self.graph, source, sink, method="dinic").flow_value)


class Igraph(Solver):
    """igraph's push-relabel, in floating point."""

    title = "igraph"
    scale = 1.0
    tolerance = _FLOAT_TOLERANCE

    def build(self, edges: Edges) -> None:
        import igraph

        pairs = np.stack([edges.tails, edges.heads], axis=1)
        self.graph = igraph.Graph(edges.nodes, pairs, directed=True)
        self.capacities = (edges.capacities / SCALE).tolist()

    def solve(self, source: int, sink: int) -> float:
        return float(self.graph.maxflow_value(source, sink, self.capacities))


class OrTools(Solver):
    """OR-tools' push-relabel, on the same integers as attnflow: answers must be equal."""

    title = "OR-tools"

    def build(self, edges: Edges) -> None:
        from ortools.graph.python import max_flow

        self.solver = max_flow.SimpleMaxFlow()
        self.solver.add_arcs_with_capacity(
            edges.tails.astype(np.int32), edges.heads.astype(np.int32), edges.capacities
        )

    def solve(self, source: int, sink: int) -> float:
        status = self.solver.solve(source, sink)
        if status != self.solver.OPTIMAL:
            raise RuntimeError(f"OR-tools returned {status} instead of OPTIMAL")
        return int(self.solver.optimal_flow())


class PyMaxflow(Solver):
    """PyMaxflow's Boykov-Kolmogorov search, in floating point."""

    title = "PyMaxflow"
    scale = 1.0
    tolerance = _FLOAT_TOLERANCE

    # No flow exceeds 1, the sum of a row, so a terminal link of 2 never limits it.
    terminal = 2.0

    def build(self, edges: Edges) -> None:
        import maxflow

        values = edges.capacities / SCALE
        self.template = maxflow.GraphFloat(edges.nodes, len(values))
        self.template.add_nodes(edges.nodes)
        self.template.add_edges(edges.tails, edges.heads, values, np.zeros_like(values))
        self.graph: Any = None

    def prepare(self, source: int, sink: int) -> None:
        self.graph = self.template.copy()
        self.graph.add_tedge(source, self.terminal, 0.0)
        self.graph.add_tedge(sink, 0.0, self.terminal)

    def solve(self, source: int, sink: int) -> float:
        return float(self.graph.maxflow())


SOLVERS: dict[str, type[Solver]] = {
    "networkx-edmonds-karp": EdmondsKarp,
    "networkx-preflow-push": PreflowPush,
    "scipy": ScipyDinic,
    "igraph": Igraph,
    "ortools": OrTools,
    "pymaxflow": PyMaxflow,
}
"""The solvers that attnflow is compared with, by their names in the results."""
