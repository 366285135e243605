"""The graphs with known flows that the tests of C++ and JavaScript read, too."""

import numpy as np
import pytest

import attnflow
from attnflow.graph import UNIT
from tests.support import golden

GRAPHS = golden.read()


@pytest.mark.parametrize(("name", "units", "flows"), GRAPHS, ids=[graph[0] for graph in GRAPHS])
def test_flows_and_cuts_are_those_on_file(name, units, flows):
    graph = attnflow.AttentionGraph(units * UNIT, residual=0)
    np.testing.assert_array_equal(graph.units, units)
    np.testing.assert_array_equal(attnflow.attention_flow(graph) / UNIT, flows)
    for layer, position, token in np.ndindex(flows.shape):
        cut = attnflow.min_cut(graph, layer + 1, position, token)
        assert cut.value / UNIT == flows[layer, position, token]


@pytest.mark.parametrize(("name", "units", "flows"), GRAPHS, ids=[graph[0] for graph in GRAPHS])
def test_flows_on_file_are_those_of_ortools(name, units, flows):
    graph = attnflow.AttentionGraph(units * UNIT, residual=0)
    np.testing.assert_array_equal(golden.flows_of(graph), flows)


def test_every_row_on_file_has_the_same_sum():
    for _, units, _ in GRAPHS:
        assert (units.sum(axis=-1) == 2**50).all()
