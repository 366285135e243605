"""A graph as the arcs of another solver."""

import numpy as np
from ortools.graph.python import max_flow


def flow_of_ortools(arcs, source, sink):
    """The maximum flow along arcs of (from, to, capacity), whose nodes may be called anything."""
    names = {node: i for i, node in enumerate({node for arc in arcs for node in arc[:2]})}
    if source not in names or sink not in names:
        return 0
    solver = max_flow.SimpleMaxFlow()
    for tail, head, capacity in arcs:
        solver.add_arc_with_capacity(names[tail], names[head], int(capacity))
    assert solver.solve(names[source], names[sink]) == solver.OPTIMAL
    return solver.optimal_flow()


def layered_arcs(graph, top):
    """The graph as it is, with 2**58 for what is unlimited."""
    return [
        ((layer + 1, k), (layer, m), min(graph.units[layer, k, m], 2**58))
        for layer, k, m in np.argwhere(graph.units[:top])
    ]
