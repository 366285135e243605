"""Graphs whose flows are known, which the tests of C++, Python and JavaScript share.

``python -m tests.support.golden`` writes them again, with the flows of OR-tools.
"""

import json
from pathlib import Path

import numpy as np

from attnflow.graph import UNIT, AttentionGraph
from tests.support.arcs import flow_of_ortools, layered_arcs

FILE = Path(__file__).parents[1] / "data" / "golden_graphs.json"


def read():
    """Return each graph's name, its capacities and the flows of every pair, in units of 2**-50."""
    graphs = json.loads(FILE.read_text(encoding="utf-8"))["graphs"]
    return [(graph["name"], np.array(graph["units"]), np.array(graph["flows"])) for graph in graphs]


def make():
    """Yield the name and the attention of each graph, one of each kind that is hard to solve."""
    rng = np.random.default_rng(0)
    yield "uniform", np.ones((4, 3, 3))
    yield "random", rng.random((5, 6, 6))
    yield "peaked", np.exp(6 * rng.standard_normal((6, 6, 6)))
    yield "causal with a sink", np.tril(rng.random((6, 7, 7))) + 5 * (np.arange(7) == 0)
    yield "one-hot", np.eye(6)[rng.integers(0, 6, (7, 6))]
    yield "sparse", rng.random((8, 7, 7)) * (rng.random((8, 7, 7)) < 0.4) + 1e-3 * np.eye(7)
    yield "ties", 1.0 * (rng.random((6, 6, 6)).argsort(axis=-1) < rng.integers(1, 7, (6, 6, 1)))
    yield "one token", np.ones((3, 1, 1))


def flows_of(graph):
    """Return the flow of every pair of a graph, by OR-tools."""
    tops, tokens = range(1, graph.layers + 1), range(graph.tokens)
    return [
        [
            [flow_of_ortools(layered_arcs(graph, top), (top, s), (0, t)) for t in tokens]
            for s in tokens
        ]
        for top in tops
    ]


def write():
    """Write the file."""
    graphs = []
    for name, attention in make():
        weights = attention / attention.sum(axis=-1, keepdims=True)
        graph = AttentionGraph(weights, residual=0.3)
        # What is stored has no residual of its own, and its rows are exact.
        graph = AttentionGraph(graph.units * UNIT, residual=0)
        sizes = {"name": name, "layers": graph.layers, "tokens": graph.tokens}
        graphs.append(sizes | {"units": graph.units.tolist(), "flows": flows_of(graph)})
    lines = ",\n".join(json.dumps(graph, separators=(",", ":")) for graph in graphs)
    FILE.write_text(f'{{"graphs": [\n{lines}\n]}}\n', encoding="utf-8")


if __name__ == "__main__":
    write()
