"""The other maximum-flow solvers, each behind the same three calls.

A solver is given the integer capacities once, when it is made. `prepare` does what its library
insists on doing again for every pair and is timed apart; `solve` is what is compared with attnflow.
Only edges with a positive capacity are given to it. Node ``layer * n + position`` is position
`position` after layer `layer`, and layer 0 is the input tokens.
"""

from __future__ import annotations

from collections.abc import Sequence
from importlib.util import find_spec
from typing import Any, ClassVar, NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray

from attnflow.errors import MissingExtraError
from attnflow.graph import UNIT

__all__ = [
    "SCALE",
    "SOLVERS",
    "Edges",
    "EdmondsKarp",
    "Igraph",
    "OrTools",
    "PreflowPush",
    "PyMaxflow",
    "ScipyDinic",
    "Solver",
    "check_installed",
    "edges_of",
]

SCALE = int(1 / UNIT)
"""What integer capacities are multiplied by: a capacity of 1.0 is this integer."""

FLOAT_TOLERANCE = 1e-9
"""How far a solver that adds up floating-point numbers may be from the exact flow."""


class Edges(NamedTuple):
    """The edges with a positive capacity of a layered graph.

    Attributes:
        nodes: number of nodes, ``(layers + 1) * n``.
        tails: (E,) node each edge leaves.
        heads: (E,) node each edge enters.
        capacities: (E,) integer capacity of each edge.
    """

    nodes: int
    tails: NDArray[np.int64]
    heads: NDArray[np.int64]
    capacities: NDArray[np.int64]


def edges_of(capacities: Sequence[NDArray[np.int64]]) -> Edges:
    """List the edges of a layered graph.

    Args:
        capacities: one (n, n) array per layer, the lowest first; row = the position that attends.

    Returns:
        The edges with a positive capacity.

    Example:
        >>> edges = edges_of([np.array([[2, 0], [1, 1]])])
        >>> edges.nodes, edges.tails.tolist(), edges.heads.tolist(), edges.capacities.tolist()
        (4, [2, 3, 3], [0, 0, 1], [2, 1, 1])
    """
    n = len(capacities[0])
    tails, heads, values = [], [], []
    for layer, matrix in enumerate(capacities, start=1):
        rows, columns = np.nonzero(matrix > 0)
        tails.append(layer * n + rows)
        heads.append((layer - 1) * n + columns)
        values.append(matrix[rows, columns])
    return Edges(
        (len(capacities) + 1) * n,
        np.concatenate(tails),
        np.concatenate(heads),
        np.concatenate(values),
    )


class Solver(Protocol):
    """What every solver offers.

    Attributes:
        title: its name in a table.
        how: how its library was used, in one sentence.
        scale: what its answers are to be divided by to give a flow.
        tolerance: how far its answer, divided, may be from attnflow's. 0 demands equal integers.
    """

    title: ClassVar[str]
    how: ClassVar[str]
    scale: float
    tolerance: float

    def __init__(self, capacities: Sequence[NDArray[np.int64]]) -> None:
        """Build the graph, once for all pairs."""

    def prepare(self, source: int, sink: int) -> None:
        """Do what the library needs anew for this pair; not part of the solving time."""

    def solve(self, source: int, sink: int) -> float:
        """Return the maximum flow from node `source` to node `sink`."""


class _Networkx:
    """networkx on Python integers: exact."""

    scale: float = SCALE
    tolerance: float = 0.0
    algorithm: ClassVar[str]

    def __init__(self, capacities: Sequence[NDArray[np.int64]]) -> None:
        import networkx
        from networkx.algorithms import flow

        edges = edges_of(capacities)
        self._maximum_flow_value: Any = networkx.maximum_flow_value
        self._flow_func: Any = getattr(flow, self.algorithm)
        self._graph: Any = networkx.DiGraph()
        self._graph.add_nodes_from(range(edges.nodes))
        self._graph.add_edges_from(
            (tail, head, {"capacity": capacity})
            for tail, head, capacity in zip(
                edges.tails.tolist(), edges.heads.tolist(), edges.capacities.tolist(), strict=True
            )
        )

    def prepare(self, source: int, sink: int) -> None:
        """Nothing to do."""

    def solve(self, source: int, sink: int) -> float:
        """Return the maximum flow, as an integer."""
        return int(self._maximum_flow_value(self._graph, source, sink, flow_func=self._flow_func))


class EdmondsKarp(_Networkx):
    """networkx's Edmonds-Karp, which the authors' code calls."""

    title: ClassVar[str] = "networkx EK"
    how: ClassVar[str] = (
        "`maximum_flow_value(flow_func=edmonds_karp)` on one DiGraph, integer capacities; "
        "networkx builds its residual network anew in every call"
    )
    algorithm: ClassVar[str] = "edmonds_karp"


class PreflowPush(_Networkx):
    """networkx's preflow-push, its default."""

    title: ClassVar[str] = "networkx PP"
    how: ClassVar[str] = (
        "`maximum_flow_value(flow_func=preflow_push)` on one DiGraph, integer capacities; "
        "networkx builds its residual network anew in every call"
    )
    algorithm: ClassVar[str] = "preflow_push"


class ScipyDinic:
    """scipy's Dinic. It takes 32-bit capacities only, so they are scaled to 2**30."""

    title: ClassVar[str] = "scipy"
    how: ClassVar[str] = (
        '`scipy.sparse.csgraph.maximum_flow(method="dinic")` on one csr_array; it takes 32-bit '
        "capacities only, so they are rounded to multiples of 2^-30 and its answers are "
        "compared within the rounding bound, edges * 2^-31; it adds the reverse edges in every call"
    )
    scale: float = 2.0**30

    def __init__(self, capacities: Sequence[NDArray[np.int64]]) -> None:
        from scipy.sparse import csr_array
        from scipy.sparse.csgraph import maximum_flow

        edges = edges_of(capacities)
        # Rounding moves an edge by at most half a unit, and so a cut by that times its edges.
        self.tolerance: float = len(edges.capacities) / 2**31
        rounded = np.rint(edges.capacities / (SCALE / self.scale)).astype(np.int32)
        kept = rounded > 0
        self._maximum_flow: Any = maximum_flow
        self._graph: Any = csr_array(
            (rounded[kept], (edges.tails[kept], edges.heads[kept])),
            shape=(edges.nodes, edges.nodes),
        )

    def prepare(self, source: int, sink: int) -> None:
        """Nothing to do."""

    def solve(self, source: int, sink: int) -> float:
        """Return the maximum flow, as a multiple of 2**-30."""
        return int(self._maximum_flow(self._graph, source, sink, method="dinic").flow_value)


class Igraph:
    """igraph's push-relabel, in floating point."""

    title: ClassVar[str] = "igraph"
    how: ClassVar[str] = (
        "`Graph.maxflow_value` on one Graph, capacities as a list of floats, which its API "
        "reads anew in every call"
    )
    scale: float = 1.0
    tolerance: float = FLOAT_TOLERANCE

    def __init__(self, capacities: Sequence[NDArray[np.int64]]) -> None:
        import igraph

        edges = edges_of(capacities)
        self._graph: Any = igraph.Graph(
            edges.nodes, np.stack([edges.tails, edges.heads], axis=1), directed=True
        )
        self._capacities = (edges.capacities / SCALE).tolist()

    def prepare(self, source: int, sink: int) -> None:
        """Nothing to do."""

    def solve(self, source: int, sink: int) -> float:
        """Return the maximum flow."""
        return float(self._graph.maxflow_value(source, sink, self._capacities))


class OrTools:
    """OR-tools' push-relabel, on the same integers as attnflow: answers must be equal."""

    title: ClassVar[str] = "OR-tools"
    how: ClassVar[str] = (
        "`SimpleMaxFlow`, arcs added in bulk once, `solve` called on the same object for every "
        "pair; 64-bit integers, so its answers must equal attnflow's; it builds its inner graph "
        "anew in every `solve`"
    )
    scale: float = SCALE
    tolerance: float = 0.0

    def __init__(self, capacities: Sequence[NDArray[np.int64]]) -> None:
        from ortools.graph.python import max_flow

        edges = edges_of(capacities)
        self._solver: Any = max_flow.SimpleMaxFlow()
        self._solver.add_arcs_with_capacity(
            edges.tails.astype(np.int32), edges.heads.astype(np.int32), edges.capacities
        )

    def prepare(self, source: int, sink: int) -> None:
        """Nothing to do."""

    def solve(self, source: int, sink: int) -> float:
        """Return the maximum flow, as an integer.

        Raises:
            RuntimeError: OR-tools did not call its answer optimal.
        """
        status = self._solver.solve(source, sink)
        if status != self._solver.OPTIMAL:
            raise RuntimeError(f"OR-tools answered {status} instead of OPTIMAL")
        return int(self._solver.optimal_flow())


class PyMaxflow:
    """PyMaxflow's Boykov-Kolmogorov search, in floating point."""

    title: ClassVar[str] = "PyMaxflow"
    how: ClassVar[str] = (
        "`GraphFloat`, built once; solving uses a graph up, so every pair works on a copy, with "
        "the source and the sink tied to the terminals by links of capacity 2, which no flow "
        "fills; copying is timed apart, under building"
    )
    scale: float = 1.0
    tolerance: float = FLOAT_TOLERANCE

    # No flow exceeds 1, the sum of a row, so a terminal link of 2 is never what limits it.
    _TERMINAL = 2.0

    def __init__(self, capacities: Sequence[NDArray[np.int64]]) -> None:
        import maxflow

        edges = edges_of(capacities)
        values = edges.capacities / SCALE
        self._template: Any = maxflow.GraphFloat(edges.nodes, len(values))
        self._template.add_nodes(edges.nodes)
        self._template.add_edges(edges.tails, edges.heads, values, np.zeros_like(values))
        self._graph: Any = None

    def prepare(self, source: int, sink: int) -> None:
        """Copy the graph and tie the two nodes to the terminals."""
        self._graph = self._template.copy()
        self._graph.add_tedge(source, self._TERMINAL, 0.0)
        self._graph.add_tedge(sink, 0.0, self._TERMINAL)

    def solve(self, source: int, sink: int) -> float:
        """Return the maximum flow of the pair last prepared."""
        return float(self._graph.maxflow())


SOLVERS: dict[str, type[Solver]] = {
    "networkx-edmonds-karp": EdmondsKarp,
    "networkx-preflow-push": PreflowPush,
    "scipy": ScipyDinic,
    "igraph": Igraph,
    "ortools": OrTools,
    "pymaxflow": PyMaxflow,
}
"""Every solver that attnflow is compared with, by its name in the results."""


def check_installed() -> None:
    """See that the benchmark's dependencies are there, without importing them.

    Raises:
        MissingExtraError: one is missing; the message names it and the pip install to run.
    """
    modules = ("igraph", "maxflow", "networkx", "ortools", "rich", "scipy")
    missing = [name for name in modules if find_spec(name) is None]
    if missing:
        raise MissingExtraError(
            f"attnflow bench needs {', '.join(missing)}, which cannot be found; "
            'run: pip install "attnflow[bench]"'
        )
