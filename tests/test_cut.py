"""Minimum cuts."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import attnflow
from attnflow.graph import UNIT


def test_the_cut_of_the_worked_example_is_as_worked_out_by_hand(worked_example):
    # From (3, 0) to token 2, in eighths: 2 go to (2, 2), which could pass on more. (2, 0) could
    # get 6, but sends on at most 2 to (1, 2), and 1 over (1, 0) to the token; what it could send
    # to (1, 1) leads nowhere, because (1, 1) has no edge to token 2. 2 + 2 + 1 = 5.
    cut = attnflow.min_cut(worked_example, layer=3, position=0, token=2)
    assert cut.value == 5 / 8
    assert cut.edges == ((3, 0, 2, 2 / 8), (2, 0, 2, 2 / 8), (1, 0, 2, 1 / 8))
    assert cut.source_side == {(3, 0), (2, 0), (1, 0), (1, 1), (0, 0), (0, 1)}


def test_a_cut_next_to_the_source_is_preferred(worked_example):
    # All 8 eighths of (3, 1) reach token 1, so its own edges are a minimum cut.
    cut = attnflow.min_cut(worked_example, 3, 1, 1)
    assert cut.value == 1
    assert cut.edges == ((3, 1, 0, 1 / 8), (3, 1, 1, 5 / 8), (3, 1, 2, 2 / 8))
    assert cut.source_side == {(3, 1)}


def test_one_layer_is_cut_at_its_only_edge(worked_example):
    cut = attnflow.min_cut(worked_example, layer=1, position=0, token=1)
    assert cut.edges == ((1, 0, 1, 3 / 8),)
    assert cut.source_side == {(1, 0), (0, 0), (0, 2)}


def test_what_is_not_connected_needs_no_edge_cut():
    attention = np.stack([np.eye(4)] * 3)
    cut = attnflow.min_cut(attention, 3, 0, 1)
    assert cut.value == 0
    assert cut.edges == ()
    assert cut.source_side == {(3, 0), (2, 0), (1, 0), (0, 0)}


@given(
    st.integers(1, 5),
    st.integers(1, 8),
    st.sampled_from([0.0, 1.0, 5.0, 50.0]),
    st.sampled_from([0.0, 0.3, 0.5, 1.0]),
    st.integers(0, 2**32 - 1),
)
def test_a_cut_is_as_large_as_the_flow_and_separates(layers, tokens, sharpness, residual, seed):
    rng = np.random.default_rng(seed)
    weights = np.exp(sharpness * rng.standard_normal((layers, tokens, tokens)))
    weights *= rng.random(weights.shape) < 0.7
    weights += 1e-9 * np.eye(tokens)
    graph = attnflow.AttentionGraph(
        weights / weights.sum(axis=-1, keepdims=True), residual=residual
    )
    layer, position, token = rng.integers(1, layers + 1), *rng.integers(0, tokens, 2)
    cut = attnflow.min_cut(graph, layer, position, token)
    flow = attnflow.attention_flow(graph, layers=[layer], positions=[position], tokens=[token])
    assert cut.value == flow[0, 0, 0]
    assert sum(edge[3] for edge in cut.edges) == cut.value
    for level, k, m, capacity in cut.edges:
        assert capacity == graph.units[level - 1, k, m] * UNIT > 0
        assert (level, k) in cut.source_side
        assert (level - 1, m) not in cut.source_side

    # Without the cut's edges no path is left: what can be reached is just the source's side.
    units = graph.units.copy()
    for level, k, m, _ in cut.edges:
        units[level - 1, k, m] = 0
    reached = {(layer, position)}
    for level in range(layer, 0, -1):
        here = [k for place, k in reached if place == level]
        reached |= {(level - 1, m) for k in here for m in np.flatnonzero(units[level - 1, k])}
    assert (0, token) not in reached
    assert reached <= cut.source_side


def test_a_cut_says_how_large_it_is(worked_example):
    cut = attnflow.min_cut(worked_example, 3, 0, 2)
    assert repr(cut) == "Cut(value=0.625, 3 edges, 6 nodes on the source's side)"


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ((5, 0, 0), "layer.*5"),
        ((1, 6, 0), "position.*6"),
        ((1, 0, 6), "token.*6"),
        ((1, 0, None), "token.*None"),
    ],
)
def test_what_does_not_exist_cannot_be_cut(attention, arguments, message):
    with pytest.raises(attnflow.OptionError, match=message):
        attnflow.min_cut(attention, *arguments)
