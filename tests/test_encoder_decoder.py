"""Encoder-decoders: their graph, and the capture of their attention."""

import copy
import sys
import threading
from contextlib import contextmanager

import numpy as np
import pytest
import torch
import transformers
from ortools.graph.python import max_flow

import attnflow
from attnflow import graph as graph_module
from attnflow._maxflow import UNLIMITED
from attnflow.capture import CapturedPair, capture, capture_pair
from attnflow.edges.effective import effective_attention
from attnflow.flow import flow_bound
from attnflow.graph import UNIT, as_graph, encoder_decoder_graph

# ---- Graphs --------------------------------------------------------------------------------------

# Two source tokens, two target tokens, one layer of each kind. With a residual share of one half
# the edges weigh, in eighths and for the tokens s0, s1, t0, t1,
#
#   layer 1, encoder      layer 2, decoder      layer 3, cross
#   s0: 6  2  .  .        s0: pass              s0: pass
#   s1: 0  8  .  .        s1: pass              s1: pass
#   t0: pass              t0: .  .  8  0        t0: 2  2  4  .
#   t1: pass              t1: .  .  2  6        t1: 1  3  .  4
ENCODER = np.array([[[0.5, 0.5], [0.0, 1.0]]])
DECODER = np.array([[[1.0, 0.0], [0.5, 0.5]]])
CROSS = np.array([[[0.5, 0.5], [0.25, 0.75]]])

# From t0 of layer 3, a quarter goes to each output of the encoder and a half to t0 itself:
#   1/4 (3/4, 1/4) + 1/4 (0, 1) = (3, 5)/16 to the source, 1/2 (1, 0) to the target.
# From t1, 1/8 (3/4, 1/4) + 3/8 (0, 1) = (3, 13)/32 and 1/2 (1/4, 3/4) = (4, 12)/32.
ROLLOUT_BY_HAND = (
    np.array([[24, 8, 0, 0], [0, 32, 0, 0], [6, 10, 16, 0], [3, 13, 4, 12]]) / 32
)  # of layer 3

# From t0 of layer 3, which sends 2 to s0, 2 to s1 and 4 to t0, in eighths:
#   s0: 2 over s0, whose edge takes 6. s1: 2 over s0, whose edge takes 2, and 2 over s1. t0: 4.
# From t1, which sends 1 to s0, 3 to s1 and 4 to t1:
#   s0: 1. s1: 1 over s0 and 3 over s1. t0: 2, all that t1 sends to t0. t1: 4.
# From s0 and s1: what the encoder's layer sends, since nothing limits them on the way down.
FLOW_BY_HAND = np.array([[6, 2, 0, 0], [0, 8, 0, 0], [2, 4, 4, 0], [1, 4, 2, 4]]) / 8  # of layer 3


def rows_of(rng, *shape, sharpness=1.0):
    """Random attention of a shape, each row summing to 1."""
    scores = sharpness * rng.standard_normal(shape)
    weights = np.exp(scores - scores.max(axis=-1, keepdims=True))
    return weights / weights.sum(axis=-1, keepdims=True)


def random_pair(rng):
    """Attention of an encoder-decoder of random size: encoder, decoder and cross."""
    depth, decoder_depth = (int(size) for size in rng.integers(1, 4, 2))
    source, target = (int(size) for size in rng.integers(1, 8, 2))
    sharpness = rng.choice([0.0, 1.0, 10.0, 1000.0])
    encoder = rows_of(rng, depth, source, source, sharpness=sharpness)
    decoder = rows_of(rng, decoder_depth, target, target, sharpness=sharpness)
    decoder = np.tril(decoder) + 1e-12 * np.eye(target)
    decoder /= decoder.sum(axis=-1, keepdims=True)
    cross = rows_of(rng, decoder_depth, target, source, sharpness=sharpness)
    return encoder, decoder, cross


@pytest.fixture
def pair():
    """Three encoder layers over 5 tokens and two decoder layers over 4, of 3 heads each."""
    rng = np.random.default_rng(0)
    return rows_of(rng, 3, 3, 5, 5), rows_of(rng, 2, 3, 4, 4), rows_of(rng, 2, 3, 4, 5)


def test_edges_of_the_worked_example_are_as_worked_out_by_hand():
    graph = encoder_decoder_graph(ENCODER, DECODER, CROSS)
    assert (graph.layers, graph.tokens, graph.heads, graph.residual) == (3, 4, "mean", 0.5)
    expected = [
        [[6, 2, 0, 0], [0, 8, 0, 0], [0, 0, 8, 0], [0, 0, 0, 8]],
        [[8, 0, 0, 0], [0, 8, 0, 0], [0, 0, 8, 0], [0, 0, 2, 6]],
        [[8, 0, 0, 0], [0, 8, 0, 0], [2, 2, 4, 0], [1, 3, 0, 4]],
    ]
    np.testing.assert_array_equal(graph.capacities, np.array(expected) / 8)
    passing = [[0, 0, 1, 1], [1, 1, 0, 0], [1, 1, 0, 0]]
    np.testing.assert_array_equal(graph.passing, np.array(passing, dtype=bool))
    units = np.array(expected) * 2**47
    units[0, [2, 3], [2, 3]] = units[1:, [0, 1], [0, 1]] = UNLIMITED
    np.testing.assert_array_equal(graph.units, units)


def test_rollout_of_the_worked_example_is_as_worked_out_by_hand():
    graph = encoder_decoder_graph(ENCODER, DECODER, CROSS)
    np.testing.assert_array_equal(attnflow.attention_rollout(graph)[2], ROLLOUT_BY_HAND)
    for position in range(4):
        one = attnflow.attention_rollout(graph, positions=[position])[2, 0]
        np.testing.assert_array_equal(one, ROLLOUT_BY_HAND[position])


def test_flow_of_the_worked_example_is_as_worked_out_by_hand():
    graph = encoder_decoder_graph(ENCODER, DECODER, CROSS)
    np.testing.assert_array_equal(attnflow.attention_flow(graph, layers=[3])[0], FLOW_BY_HAND)


def test_the_cut_of_the_worked_example_is_as_worked_out_by_hand():
    graph = encoder_decoder_graph(ENCODER, DECODER, CROSS)
    # What t0 sends to s0, and what s0 sends on: no edge between the two, although s0 passes.
    assert attnflow.min_cut(graph, 3, 2, 1).edges == ((3, 2, 0, 0.25), (3, 2, 1, 0.25))
    assert attnflow.min_cut(graph, 3, 0, 1).edges == ((1, 0, 1, 0.25),)
    assert attnflow.min_cut(graph, 3, 3, 2).edges == ((2, 3, 2, 0.25),)


def test_saturation_of_the_worked_example_is_as_worked_out_by_hand():
    # In eighths, a target position sends 8, s0 and s1 are sent 6 and 10 by layer 1, t0 and t1 any
    # amount. No flow of a target position of layer 3 reaches min(out, in).
    graph = encoder_decoder_graph(ENCODER, DECODER, CROSS)
    assert attnflow.saturation(graph, positions=[2, 3])[2] == 0
    np.testing.assert_array_equal(flow_bound(graph, [2])[2, 0], [0.75, 1.0, 1.0, 1.0])


def test_rollout_is_the_product_of_the_parts():
    rng = np.random.default_rng(1)
    for _ in range(50):
        encoder, decoder, cross = random_pair(rng)
        residual = rng.choice([0.0, 0.3, 0.5, 1.0])
        source, target = encoder.shape[-1], decoder.shape[-1]

        def step(weights, residual=residual):
            return (1 - residual) * weights + residual * np.eye(len(weights))

        # What the encoder's outputs, and the target positions, get from the source and the target.
        outputs = np.eye(source)
        for weights in encoder:
            outputs = step(weights) @ outputs
        from_source, from_target = np.zeros((target, source)), np.eye(target)
        graph = encoder_decoder_graph(encoder, decoder, cross, residual=residual)
        rollout = attnflow.attention_rollout(graph)
        few = attnflow.attention_rollout(graph, positions=[-1])
        for i, (own, other) in enumerate(zip(decoder, cross, strict=True), 1):
            from_source, from_target = step(own) @ from_source, step(own) @ from_target
            from_source = residual * from_source + (1 - residual) * other @ outputs
            from_target = residual * from_target
            layer = len(encoder) + 2 * i
            np.testing.assert_allclose(
                rollout[layer - 1, source:, :source], from_source, atol=1e-12
            )
            np.testing.assert_allclose(
                rollout[layer - 1, source:, source:], from_target, atol=1e-12
            )
            np.testing.assert_allclose(rollout[layer - 1, :source, :source], outputs, atol=1e-12)
            np.testing.assert_allclose(few[layer - 1, 0, :source], from_source[-1], atol=1e-12)
            np.testing.assert_allclose(few[layer - 1, 0, source:], from_target[-1], atol=1e-12)


@pytest.mark.parametrize("residual", [0, 0.1, 0.5, 0.7, 1])
@pytest.mark.parametrize("heads", ["mean", "max", "min", "sum", 2, -1])
def test_rows_of_edges_and_of_rollout_sum_to_one(pair, heads, residual):
    graph = encoder_decoder_graph(*pair, heads=heads, residual=residual)
    assert (graph.layers, graph.tokens) == (3 + 2 * 2, 5 + 4)
    np.testing.assert_allclose(graph.attention.sum(axis=-1), 1.0, rtol=1e-14)
    np.testing.assert_allclose(graph.capacities.sum(axis=-1), 1.0, rtol=1e-14)
    np.testing.assert_allclose(attnflow.attention_rollout(graph).sum(axis=-1), 1.0, rtol=1e-13)
    few = attnflow.attention_rollout(graph, positions=[-1])
    np.testing.assert_allclose(few.sum(axis=-1), 1.0, rtol=1e-13)


@pytest.mark.parametrize("residual", [0, 0.1, 0.3, 0.5, 0.7, 1])
def test_what_passes_weighs_exactly_one_and_is_unlimited_in_flow(pair, residual):
    graph = encoder_decoder_graph(*pair, residual=residual)
    for array, weight in ((graph.attention, 1), (graph.capacities, 1), (graph.units, UNLIMITED)):
        for layer, position in np.argwhere(graph.passing):
            row = np.zeros(9, dtype=array.dtype)
            row[position] = weight
            np.testing.assert_array_equal(array[layer, position], row)
    assert (graph.units[~graph.passing] <= 2**50).all()


def test_heads_are_fused_as_in_a_graph_of_each_part(pair):
    encoder, decoder, cross = pair
    for heads in ("mean", "max", "min", 1):
        graph = encoder_decoder_graph(*pair, heads=heads)
        own = attnflow.AttentionGraph(encoder, heads=heads).attention
        np.testing.assert_array_equal(graph.attention[:3, :5, :5], own)
        own = attnflow.AttentionGraph(decoder, heads=heads).attention
        np.testing.assert_array_equal(graph.attention[3::2, 5:, 5:], own)
    fused = cross.mean(axis=1)
    graph = encoder_decoder_graph(*pair)
    np.testing.assert_allclose(graph.attention[4::2, 5:, :5], fused, atol=1e-15)
    apart = encoder_decoder_graph(encoder.mean(axis=1), decoder, list(torch.tensor(cross[:, None])))
    np.testing.assert_allclose(apart.attention, graph.attention, atol=1e-15)


def test_arrays_of_the_graph_are_read_only(pair):
    graph = encoder_decoder_graph(*pair)
    for array in (graph.attention, graph.capacities, graph.units, graph.passing, graph.padding):
        with pytest.raises(ValueError, match="read-only"):
            array[0] = 0


def test_nothing_passes_in_an_ordinary_graph(pair):
    graph = attnflow.AttentionGraph(pair[0])
    assert graph.passing.shape == (3, 5)
    assert not graph.passing.any()
    with pytest.raises(ValueError, match="read-only"):
        graph.passing[0] = True


def test_an_encoder_decoder_is_not_causal_even_if_nothing_is_above_the_diagonal():
    one_source_token = encoder_decoder_graph(np.ones((1, 1, 1)), DECODER, np.ones((1, 2, 1)))
    assert not np.triu(one_source_token.attention, 1).any()
    assert one_source_token.causal is False


def test_options_of_a_graph_hold_where_it_is_used(pair):
    graph = encoder_decoder_graph(*pair, heads=-1, residual=0.25)
    assert (graph.heads, as_graph(graph, heads=2), as_graph(graph)) == (2, graph, graph)
    with pytest.raises(attnflow.OptionError, match="heads=1 does not fit the AttentionGraph"):
        as_graph(graph, heads=1)


def test_a_position_whose_row_is_empty_keeps_to_itself():
    empty = changed(CROSS, (0, 1), 0.0)
    with pytest.raises(
        attnflow.AttentionError, match=r"cross holds a row of zeros at layer 1, row"
    ):
        encoder_decoder_graph(ENCODER, DECODER, empty)
    graph = encoder_decoder_graph(ENCODER, DECODER, empty, allow_empty=True)
    np.testing.assert_array_equal(
        graph.attention[2], [[1, 0, 0, 0], [0, 1, 0, 0], [0.5, 0.5, 0, 0], [0, 0, 0, 1]]
    )
    np.testing.assert_array_equal(graph.capacities[2, 3], [0, 0, 0, 1])
    # All that t1 has is its own, a quarter of it from t0.
    rollout = attnflow.attention_rollout(graph, positions=[3])[2, 0]
    np.testing.assert_array_equal(rollout, [0, 0, 0.25, 0.75])
    np.testing.assert_array_equal(
        attnflow.attention_flow(graph, layers=[3], positions=[2, 3])[0],
        [FLOW_BY_HAND[2], [0, 0, 0.25, 0.75]],
    )


def test_every_row_may_be_empty_and_no_other_row_may_be_wrong(pair):
    encoder, decoder, cross = pair
    alone = encoder_decoder_graph(encoder, decoder, np.zeros_like(cross), allow_empty=True)
    rollout = attnflow.attention_rollout(alone, positions=[5, 8])[-1]
    assert not rollout[:, :5].any()
    np.testing.assert_allclose(rollout[:, 5:].sum(1), 1)
    off = changed(cross, (1, 2, 3), 0.5)
    with pytest.raises(
        attnflow.AttentionError,
        match=r"cross has rows that do not sum to 1: the one "
        r"at layer 2, head 2, row 3",
    ):
        encoder_decoder_graph(encoder, decoder, off, allow_empty=True)


def test_shares_of_the_residual_are_those_of_each_step():
    shares = np.array([[0.25, 0.5, 0.9, 0.9], [0.9, 0.9, 0.0, 0.75], [0.9, 0.9, 1.0, 0.25]])
    graph = encoder_decoder_graph(ENCODER, DECODER, CROSS, residual=shares)
    expected = [
        [[0.625, 0.375, 0, 0], [0, 1, 0, 0], [0, 0, 1, 0], [0, 0, 0, 1]],
        [[1, 0, 0, 0], [0, 1, 0, 0], [0, 0, 1, 0], [0, 0, 0.125, 0.875]],
        [[1, 0, 0, 0], [0, 1, 0, 0], [0, 0, 1, 0], [0.1875, 0.5625, 0, 0.25]],
    ]
    np.testing.assert_allclose(graph.capacities, expected, atol=1e-15)
    with pytest.raises(attnflow.OptionError, match=r"of shape \(2, 4\); expected \(3, 4\)"):
        encoder_decoder_graph(ENCODER, DECODER, CROSS, residual=shares[:2])


# ---- Flow against another solver -----------------------------------------------------------------


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


def contracted_arcs(graph, top):
    """The graph without its passing edges: what passes is the node of the layer below."""

    def node(layer, position):
        while layer and graph.passing[layer - 1, position]:
            layer -= 1
        return layer, position

    return [
        (node(layer + 1, k), node(layer, m), graph.units[layer, k, m])
        for layer, k, m in np.argwhere(graph.units[:top])
        if not graph.passing[layer, k]
    ], node


def test_flow_equals_that_of_ortools_with_and_without_the_edges_that_pass():
    rng = np.random.default_rng(2)
    for number in range(200):
        encoder, decoder, cross = random_pair(rng)
        residual = rng.choice([0.5, 0.5, 0.0, rng.random()])
        if number % 4 == 0:
            # As gradients and value norms have it: positions of which the source gets nothing, and
            # a share of the residual for each.
            cross = cross * (rng.random((*cross.shape[:2], 1)) < 0.7)
            layers, tokens = len(encoder) + 2 * len(decoder), cross.shape[1] + cross.shape[2]
            residual = rng.random((layers, tokens))
        graph = encoder_decoder_graph(
            encoder, decoder, cross, residual=residual, allow_empty=number % 4 == 0
        )
        top = int(rng.integers(len(encoder) + 1, graph.layers + 1))
        flow = attnflow.attention_flow(graph, layers=[top], num_threads=1)[0] / UNIT
        layered = layered_arcs(graph, top)
        contracted, node = contracted_arcs(graph, top)
        for position, token in rng.integers(0, graph.tokens, (5, 2)):
            expected = flow_of_ortools(layered, (top, position), (0, token))
            assert flow[position, token] == expected
            start, end = node(top, position), node(0, token)
            assert expected == flow_of_ortools(contracted, start, end)


def test_a_flow_is_at_most_one_where_a_position_has_attended():
    rng = np.random.default_rng(3)
    for _ in range(50):
        encoder, decoder, cross = random_pair(rng)
        graph = encoder_decoder_graph(encoder, decoder, cross)
        source = encoder.shape[-1]
        flow = attnflow.attention_flow(graph)
        assert (flow >= 0).all()
        assert (flow[:, :source] <= 1 + 100 * UNIT).all()
        assert (flow[len(encoder) :] <= 1 + 100 * UNIT).all()
        np.testing.assert_array_equal(
            flow[: len(encoder), source:, source:],
            np.stack([2048 * np.eye(graph.tokens - source)] * len(encoder)),
        )
        bound = flow_bound(graph, range(graph.tokens))
        assert (flow <= bound).all()
        share = attnflow.saturation(graph)
        np.testing.assert_array_equal(share, (flow == bound).mean(axis=(1, 2)))


def test_a_minimum_cut_never_cuts_what_passes():
    rng = np.random.default_rng(4)
    for _ in range(200):
        encoder, decoder, cross = random_pair(rng)
        residual = rng.choice([0.5, 0.5, 0.0, 1.0, rng.random()])
        graph = encoder_decoder_graph(encoder, decoder, cross, residual=residual)
        top = int(rng.integers(len(encoder) + 1, graph.layers + 1))
        position, token = (int(place) for place in rng.integers(0, graph.tokens, 2))
        cut = attnflow.min_cut(graph, top, position, token)
        assert not any(graph.passing[layer - 1, k] for layer, k, _, _ in cut.edges)
        assert cut.value == sum(edge[3] for edge in cut.edges)
        flow = attnflow.attention_flow(graph, layers=[top], positions=[position], tokens=[token])
        assert cut.value == flow[0, 0, 0]


# ---- What a graph refuses ------------------------------------------------------------------------


def changed(array, index, value):
    array = array.copy()
    array[index] = value
    return array


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (
            lambda e, d, c: (e, d, c[:1]),
            r"cross has 1 layers, but decoder has 2; expected one for each layer of the decoder",
        ),
        (
            lambda e, d, c: (e, d, c[:, :, :3]),
            r"cross has 3 rows, but decoder has 4 tokens; expected a row for each target token",
        ),
        (
            lambda e, d, c: (e[:, :, :4, :4] / e[:, :, :4, :4].sum(-1, keepdims=True), d, c),
            r"cross has 5 columns, but encoder has 4 tokens; expected a column for each source",
        ),
        (
            lambda e, d, c: (c, d, c),
            r"layer 1 of encoder has 4 rows and 5 columns; expected as many of one as of the other",
        ),
        (
            lambda e, d, c: (e, c, c),
            r"layer 1 of decoder has 4 rows and 5 columns; expected as many of one as of the other",
        ),
        (
            lambda e, d, c: (e, d, c[0, 0]),
            r"cross has shape \(4, 5\); expected \(L, m, n\), \(L, H, m, n\) or \(L, 1, H, m, n\)",
        ),
        (
            lambda e, d, c: (e, d, [c[0, 0, 0], c[0, 0, 1]]),
            r"layer 1 of cross has shape \(5,\); expected \(m, n\), \(H, m, n\) or \(1, H, m, n\)",
        ),
        (
            lambda e, d, c: (e, d, [c[0], c[1, :, :3]]),
            r"layer 2 of cross has 3 heads and 3 rows of 5 columns, but layer 1 has 3 heads and 4 "
            r"rows of 5 columns; all layers must be alike",
        ),
        (
            lambda e, d, c: (e, [d[0], d[1, 0]], c),
            r"layer 2 of decoder has no head axis and 4 tokens, but layer 1 has 3 heads and 4 tok",
        ),
        (
            lambda e, d, c: (e, d, np.stack([c, c], axis=1)),
            r"cross has shape \(2, 2, 3, 4, 5\), a batch of 2 texts in each layer; expected one: "
            r"pick text k with cross\[:, k\]",
        ),
        (
            lambda e, d, c: (list(np.stack([e, e], axis=1)), d, c),
            r"layer 1 of encoder has shape \(2, 3, 5, 5\), a batch of 2 texts; expected one: pick "
            r"text k with \[layer\[k\] for layer in encoder\]",
        ),
        (lambda e, d, c: (e, None, c), r"decoder is None: a fused attention kernel"),
        (lambda e, d, c: (e, d, ()), r"cross is an empty tuple: a fused attention kernel"),
        (lambda e, d, c: (e, d, [c[0], None]), r"layer 2 of cross is None: a fused attention"),
        (lambda e, d, c: (e, d, "text"), r"cross must be an array, or a list or tuple.*got str"),
        (lambda e, d, c: (e[:0], d, c), r"encoder has shape \(0, 3, 5, 5\), so there are no lay"),
        (lambda e, d, c: (e, d, c[..., :0]), r"layer 1 of cross is empty: its shape is \(3, 4, 0"),
        (lambda e, d, c: (e, d, c + 0j), r"layer 1 of cross is of type complex128; expected real"),
        (
            lambda e, d, c: (e, d, changed(c, (1, 2, 3, 4), np.nan)),
            r"cross holds nan at layer 2, head 2, row 3, column 4; expected a finite number",
        ),
        (
            lambda e, d, c: (changed(e, (2, 0, 1, 0), np.inf), d, c),
            r"encoder holds inf at layer 3, head 0, row 1, column 0; expected a finite number",
        ),
        (
            lambda e, d, c: (e, changed(d, (0, 0, 0, 0), -0.25), c),
            r"decoder holds a negative weight, -0.25, at layer 1, head 0, row 0, column 0",
        ),
        (
            lambda e, d, c: (e, d, changed(c, (0, 1, 3), 0.25)),
            r"cross has rows that do not sum to 1: the one at layer 1, head 1, row 3 sums to 1.25, "
            r"off by 0.25 where 0.001 is allowed; a model in train mode does this",
        ),
        (
            lambda e, d, c: (e, changed(d, (1, 2, 3), 0.0), c),
            r"decoder holds a row of zeros at layer 2, head 2, row 3; if the position is padded, "
            r"leave it out",
        ),
    ],
)
def test_attention_that_is_wrong_or_does_not_fit_is_named(pair, change, message):
    with pytest.raises(attnflow.AttentionError, match=message):
        encoder_decoder_graph(*change(*pair))


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"heads": 3}, r"heads is 3, but there are 3 heads"),
        ({"heads": "median"}, r"heads is 'median'; expected 'mean', 'max', 'min', 'sum' or"),
        ({"residual": 1.5}, r"residual must be a number from 0 to 1, got 1.5"),
    ],
)
def test_a_wrong_option_is_named(pair, options, message):
    with pytest.raises(attnflow.OptionError, match=message):
        encoder_decoder_graph(*pair, **options)


def test_a_head_must_be_the_same_one_everywhere(pair):
    encoder, decoder, cross = pair
    with pytest.raises(attnflow.OptionError, match="heads=1 picks a head, but cross has no head"):
        encoder_decoder_graph(encoder, decoder, cross[:, 0], heads=1)
    with pytest.raises(
        attnflow.OptionError,
        match=r"heads=-1 counts from the end.*encoder has 2, decoder has 3, cross has 3 heads",
    ):
        encoder_decoder_graph(encoder[:, :2], decoder, cross, heads=-1)
    with pytest.raises(attnflow.OptionError, match="heads is 2, but there are 2 heads"):
        encoder_decoder_graph(encoder[:, :2], decoder, cross, heads=2)
    assert encoder_decoder_graph(encoder[:, :2], decoder, cross, heads=1).heads == 1


def test_no_token_that_every_head_attends_to_is_an_error(pair):
    encoder, decoder, cross = pair
    cross = changed(cross, (1, slice(None), 2), np.eye(5)[:3])
    with pytest.raises(
        attnflow.AttentionError, match=r"heads='min' leaves nothing of layer 2 of cross, row 2"
    ):
        encoder_decoder_graph(encoder, decoder, cross, heads="min")


def test_the_whole_output_of_a_model_is_an_error_that_says_what_to_pass(pair):
    output = transformers.modeling_outputs.Seq2SeqLMOutput(logits=torch.zeros(1))
    with pytest.raises(
        attnflow.AttentionError, match=r"whole output; pass its fields: encoder_decoder_graph\("
    ):
        encoder_decoder_graph(output, *pair[1:])
    with pytest.raises(attnflow.AttentionError, match=r"attentions is a Seq2SeqLMOutput, an enc"):
        attnflow.AttentionGraph(output)


def test_a_graph_that_cannot_fit_into_memory_is_an_error(pair, monkeypatch):
    monkeypatch.setattr(graph_module, "_available_memory", lambda: 32 * 7 * 9 * 9 - 1)
    with pytest.raises(attnflow.GraphSizeError, match="9 tokens and 7 layers"):
        encoder_decoder_graph(*pair)


# ---- Capture: models -----------------------------------------------------------------------------

SMALL = {
    "vocab_size": 50,
    "d_model": 16,
    "encoder_layers": 3,
    "decoder_layers": 2,
    "encoder_attention_heads": 4,
    "decoder_attention_heads": 4,
    "encoder_ffn_dim": 32,
    "decoder_ffn_dim": 32,
    # Large weights, so that attention is far from uniform.
    "init_std": 0.8,
    "dropout": 0.1,
    "attention_dropout": 0.1,
    "pad_token_id": 0,
    "bos_token_id": 1,
    "eos_token_id": 2,
    "decoder_start_token_id": 1,
}
T5 = {
    "vocab_size": 50,
    "d_model": 16,
    "d_kv": 4,
    "d_ff": 32,
    "num_layers": 3,
    "num_decoder_layers": 2,
    "num_heads": 4,
    "initializer_factor": 1.5,
    "pad_token_id": 0,
    "decoder_start_token_id": 0,
}
MODELS = {
    "T5": ("T5ForConditionalGeneration", T5),
    "BART": ("BartForConditionalGeneration", {**SMALL, "forced_eos_token_id": 2}),
    "Marian": ("MarianMTModel", {**SMALL, "forced_eos_token_id": 2}),
    "Whisper": (
        "WhisperForConditionalGeneration",
        # Sound of 14 frames, which a convolution makes 7.
        {**SMALL, "num_mel_bins": 4, "max_source_positions": 7, "max_target_positions": 16},
    ),
}
SOURCE = 7


def build(name, implementation=None):
    """A small model with random weights, in eval mode."""
    class_name, options = MODELS[name]
    kind = getattr(transformers, class_name)
    config = kind.config_class(**options)
    if implementation is not None:
        config._attn_implementation = implementation
    torch.manual_seed(0)
    return kind(config).eval()


def inputs_for(name, target, batch=2):
    """Inputs of 7 source positions; those of a text are padded after 5 in the second item."""
    generator = torch.Generator().manual_seed(0)
    ids = torch.randint(3, 50, (batch, SOURCE), generator=generator)
    inputs = {"decoder_input_ids": torch.randint(3, 50, (batch, target), generator=generator)}
    if name == "Whisper":
        inputs["input_features"] = torch.randn(batch, 4, 2 * SOURCE, generator=generator)
        return inputs
    mask = torch.ones_like(ids)
    mask[1:, 5:] = 0
    return {**inputs, "input_ids": ids * mask, "attention_mask": mask}


def eager_copy(model):
    eager = copy.deepcopy(model)
    eager.set_attn_implementation("eager")
    return eager


def score_of(outputs):
    """A number for each item: a logit of its last target position."""
    return outputs.logits[:, -1, 7]


@pytest.fixture(params=MODELS)
def name(request):
    return request.param


# The second is as long as the source, so that shapes do not tell the kinds of attention apart.
@pytest.fixture(params=[4, SOURCE], ids=["shorter target", "target as long as the source"])
def target(request):
    return request.param


# ---- Capture: what comes out ---------------------------------------------------------------------


def test_weights_are_those_the_model_returns_with_eager_attention(name, target):
    model, inputs = build(name), inputs_for(name, target)
    captured = capture_pair(model, inputs, heads=None)
    with torch.no_grad():
        outputs = eager_copy(model)(**inputs, output_attentions=True)
    assert isinstance(captured, CapturedPair)
    assert [len(part) for part in captured[:3]] == [3, 2, 2]
    for layers, expected, shape in (
        (captured.encoder, outputs.encoder_attentions, (2, 4, SOURCE, SOURCE)),
        (captured.decoder, outputs.decoder_attentions, (2, 4, target, target)),
        (captured.cross, outputs.cross_attentions, (2, 4, target, SOURCE)),
    ):
        for layer, weights in zip(layers, expected, strict=True):
            assert (layer.shape, layer.dtype) == (shape, torch.float32)
            torch.testing.assert_close(layer, weights, atol=1e-5, rtol=0)
        # Attention that is all but uniform would agree with nearly anything.
        assert layers[-1].amax() > 0.5


@pytest.mark.parametrize("implementation", ["eager", "sdpa"])
def test_outputs_are_those_of_the_model_as_it_is(name, implementation):
    model, inputs = build(name, implementation), inputs_for(name, 4)
    with torch.no_grad():
        expected = model(**inputs)
    for options in ({}, {"score": score_of}):
        outputs = capture_pair(model, inputs, **options).outputs
        assert type(outputs) is type(expected)
        torch.testing.assert_close(outputs.logits, expected.logits, atol=1e-5, rtol=1e-5)
        assert not outputs.logits.requires_grad
        for field in ("encoder_attentions", "decoder_attentions", "cross_attentions"):
            assert field not in outputs
        assert "past_key_values" not in outputs


def test_heads_fused_as_they_pass_equal_heads_fused_afterwards(name):
    model, inputs = build(name), inputs_for(name, 4)
    apart = capture_pair(model, inputs, heads=None)
    for heads in ("mean", "max", "min", "sum", 2, -1):
        fused = capture_pair(model, inputs, heads=heads)
        graphs = [
            encoder_decoder_graph(*([layer[0] for layer in part] for part in pair[:3]), heads=given)
            for pair, given in ((fused, "mean"), (apart, heads))
        ]
        np.testing.assert_allclose(graphs[0].attention, graphs[1].attention, atol=1e-6)


def test_a_target_position_is_explained_by_the_source_and_by_what_precedes_it(name):
    captured = capture_pair(build(name), inputs_for(name, 4))
    graph = encoder_decoder_graph(*([layer[0] for layer in part] for part in captured[:3]))
    assert (graph.layers, graph.tokens) == (3 + 2 * 2, SOURCE + 4)
    rollout = attnflow.attention_rollout(graph, positions=[SOURCE + 2])[-1, 0]
    flow = attnflow.attention_flow(graph, layers=[-1], positions=[SOURCE + 2])[0, 0]
    assert rollout.sum() == pytest.approx(1)
    for scores in (rollout, flow):
        assert (scores[: SOURCE + 3] > 0).all()
        assert (scores <= 1 + 100 * UNIT).all()  # rows are rounded to units
        assert scores[SOURCE + 3] == 0  # the target token that comes after it


def test_padded_items_equal_themselves_alone():
    for name in ("T5", "BART", "Marian"):
        model, inputs = build(name), inputs_for(name, 4)
        batch = capture_pair(model, inputs)
        alone = capture_pair(
            model,
            {
                "input_ids": inputs["input_ids"][1:, :5],
                "decoder_input_ids": inputs["decoder_input_ids"][1:],
            },
        )
        for part, expected, rows, columns in zip(
            batch[:3], alone[:3], (5, 4, 4), (5, 4, 5), strict=True
        ):
            for layer, weights in zip(part, expected, strict=True):
                torch.testing.assert_close(layer[1, :rows, :columns], weights[0], atol=1e-5, rtol=0)
                assert not layer[1, :rows, columns:].any()


def test_gradients_are_those_of_the_weights_an_eager_model_returns(name, target):
    model, inputs = build(name), inputs_for(name, target)
    outputs = eager_copy(model)(**inputs, output_attentions=True)
    weights = [
        *outputs.encoder_attentions,
        *outputs.decoder_attentions,
        *outputs.cross_attentions,
    ]
    gradients = torch.autograd.grad(score_of(outputs).sum(), weights)
    apart = capture_pair(model, inputs, score=score_of, heads=None)
    fused = capture_pair(model, inputs, score=score_of)
    assert [len(part) for part in apart[:3]] == [len(part) for part in fused[:3]] == [3, 2, 2]
    layers = [*apart.encoder, *apart.decoder, *apart.cross]
    fused_layers = [*fused.encoder, *fused.decoder, *fused.cross]
    for i, (layer, one) in enumerate(zip(layers, fused_layers, strict=True)):
        expected = (gradients[i] * weights[i]).clamp(min=0).detach()
        assert expected.any()
        assert not layer.requires_grad
        torch.testing.assert_close(layer, expected, atol=1e-5, rtol=1e-3)
        torch.testing.assert_close(one, expected.mean(1), atol=1e-5, rtol=1e-3)


def test_gradients_are_had_where_every_parameter_is_frozen(name):
    model, inputs = build(name), inputs_for(name, 4)
    expected = capture_pair(model, inputs, score=score_of)
    frozen = capture_pair(model.requires_grad_(False), inputs, score=score_of)
    for part, other in zip(frozen[:3], expected[:3], strict=True):
        for layer, weights in zip(part, other, strict=True):
            torch.testing.assert_close(layer, weights)


def test_inputs_made_in_inference_mode_may_be_used(name):
    model = build(name)
    with torch.inference_mode():
        inputs = {key: value.clone() for key, value in inputs_for(name, 4).items()}
        captured = capture_pair(model, inputs, score=score_of)
    assert captured.cross[0].any()


def test_labels_stand_for_the_target(name):
    model, inputs = build(name), inputs_for(name, 4)
    labels = inputs.pop("decoder_input_ids")
    captured = capture_pair(model, {**inputs, "labels": labels})
    assert captured.cross[0].shape == (2, 4, SOURCE)
    assert captured.outputs.loss is not None


def test_a_classifier_makes_its_own_target():
    torch.manual_seed(0)
    model = transformers.BartForSequenceClassification(transformers.BartConfig(**SMALL)).eval()
    ids = inputs_for("BART", 4)["input_ids"][:1]
    ids[:, -1] = 2
    captured = capture_pair(model, {"input_ids": ids})
    assert captured.cross[0].shape == (1, SOURCE, SOURCE)


def test_float64_stays_float64_and_bfloat16_sums_to_one():
    inputs = inputs_for("T5", 4)
    for part in capture_pair(build("T5").double(), inputs)[:3]:
        assert {layer.dtype for layer in part} == {torch.float64}
    for heads in (None, "mean", "max", 1):
        captured = capture_pair(build("T5").to(torch.bfloat16), inputs, heads=heads)
        for layer in captured.encoder + captured.decoder + captured.cross:
            assert layer.dtype == torch.float32
            torch.testing.assert_close(
                layer.sum(-1), torch.ones(layer.shape[:-1]), atol=1e-6, rtol=0
            )


# ---- Capture: other edges ------------------------------------------------------------------------


@contextmanager
def inputs_of(modules):
    """Collect the first input of each module while it runs."""
    found = {}

    def collect(module, arguments, options):
        found[module] = arguments[0] if arguments else options["hidden_states"]

    handles = [m.register_forward_pre_hook(collect, with_kwargs=True) for m in modules]
    try:
        yield found
    finally:
        for handle in handles:
            handle.remove()


def attention_parts(name, model):
    """For each kind: its layers' attention, the module whose input is the residual, and the norm.

    The norm is what is between the residual and the attention; None where there is none.
    """
    encoder, decoder = model.get_encoder(), model.get_decoder()
    if name == "T5":
        own, before = (
            [(b.layer[0].SelfAttention, b.layer[0], b.layer[0].layer_norm) for b in part.block]
            for part in (encoder, decoder)
        )
        across = [(b.layer[1].EncDecAttention, b.layer[1], None) for b in decoder.block]
        return own, before, across
    first = name == "Whisper"  # its norms come before attention, those of BART and Marian after
    own, before = (
        [(b.self_attn, b, b.self_attn_layer_norm if first else None) for b in part.layers]
        for part in (encoder, decoder)
    )
    across = [
        (b.encoder_attn, b.encoder_attn_layer_norm if first else b.encoder_attn, None)
        for b in decoder.layers
    ]
    return own, before, across


def layer_parts(name, model, inputs, item=0):
    """For each kind, each layer's weights, values, projection and residual, read off the model."""
    model = eager_copy(model)
    kinds = attention_parts(name, model)
    with torch.no_grad(), inputs_of([m for kind in kinds for _, m, _ in kind]) as given:
        outputs = model(**inputs, output_attentions=True, use_cache=False)
    weights = outputs.encoder_attentions, outputs.decoder_attentions, outputs.cross_attentions
    result = []
    for kind, layers in enumerate(kinds):
        result.append([])
        for layer, (attention, module, norm) in enumerate(layers):
            residual = given[module]
            with torch.no_grad():
                read = outputs.encoder_last_hidden_state if kind == 2 else residual
                value, project = (
                    (attention.v, attention.o)
                    if name == "T5"
                    else (attention.v_proj, attention.out_proj)
                )
                values = value(read if norm is None else norm(read))
            result[-1].append(
                tuple(
                    part.double().numpy()
                    for part in (
                        weights[kind][layer][item],
                        values[item].unflatten(-1, (4, 4)).transpose(0, 1),
                        project.weight.detach().T.reshape(4, 4, 16),
                        residual[item],
                    )
                )
            )
    return result


def looped(weights, values, projection, residual):
    """Value norms and shares, one pair of positions and one head at a time."""
    heads, rows, columns = weights.shape
    norms, shares = np.zeros((rows, columns)), np.zeros(rows)
    for k in range(rows):
        for m in range(columns):
            vector = 0.0
            for h in range(heads):
                vector = vector + weights[h, k, m] * (values[h, m] @ projection[h])
            norms[k, m] = np.linalg.norm(vector)
        length = np.linalg.norm(residual[k])
        shares[k] = length / (length + norms[k].sum())
        norms[k] /= norms[k].sum()
    return norms, shares


def test_value_norms_and_shares_are_those_of_a_loop(name, target):
    model, inputs = build(name), inputs_for(name, target)
    captured = capture_pair(model, inputs, edges="value_norm")
    for kind, parts in enumerate(layer_parts(name, model, inputs)):
        assert len(captured[kind]) == len(captured.residuals[kind]) == len(parts)
        apart = []
        for layer, part in enumerate(parts):
            rows, shares = looped(*part)
            apart.append(np.ptp(shares))
            np.testing.assert_allclose(captured[kind][layer][0].numpy(), rows, atol=1e-5)
            np.testing.assert_allclose(captured.residuals[kind][layer][0], shares, atol=1e-5)
        # Shares that are all alike would agree with nearly any vector.
        assert max(apart) > 1e-3


def test_value_norms_of_one_head_are_its_own(name):
    model, inputs = build(name), inputs_for(name, 4)
    captured = capture_pair(model, inputs, edges="value_norm", heads=-2)
    for kind, parts in enumerate(layer_parts(name, model, inputs)):
        for layer, (weights, values, projection, residual) in enumerate(parts):
            rows, shares = looped(weights[[2]], values[[2]], projection[[2]], residual)
            np.testing.assert_allclose(captured[kind][layer][0].numpy(), rows, atol=1e-5)
            np.testing.assert_allclose(captured.residuals[kind][layer][0], shares, atol=1e-5)


def test_effective_attention_is_what_the_values_let_through(name, target):
    model, inputs = build(name), inputs_for(name, target)
    apart = capture_pair(model, inputs, edges="effective", heads=None)
    fused = capture_pair(model, inputs, edges="effective")
    assert apart.residuals is None
    for kind, parts in enumerate(layer_parts(name, model, inputs)):
        for layer, (weights, values, projection, _) in enumerate(parts):
            vectors = values @ projection
            expected = np.zeros_like(weights)
            for head, k in np.ndindex(*weights.shape[:2]):
                seen = np.flatnonzero(weights[:, k].any(0))
                inverse = np.linalg.pinv(vectors[head, seen], rcond=1e-12)
                expected[head, k, seen] = weights[head, k, seen] @ vectors[head, seen] @ inverse
            found = effective_attention(
                *(torch.from_numpy(part) for part in (weights[None], values[None], projection))
            )[0].numpy()
            np.testing.assert_allclose(found @ vectors, weights @ vectors, atol=1e-6)
            np.testing.assert_allclose(found, expected, atol=1e-6)
            rows = np.abs(expected) / np.abs(expected).sum(-1, keepdims=True)
            np.testing.assert_allclose(apart[kind][layer][0].numpy(), rows, atol=1e-4)
            np.testing.assert_allclose(fused[kind][layer][0].numpy(), rows.mean(0), atol=1e-4)
    # Seven positions do not fit into four dimensions.
    assert np.abs(rows - weights).max() > 0.01


@pytest.mark.parametrize("heads", ["mean", "max", "min", "sum", 1])
def test_heads_of_effective_attention_are_fused_as_those_of_attention(heads):
    model, inputs = build("BART"), inputs_for("BART", 4)
    apart = capture_pair(model, inputs, edges="effective", heads=None)
    fused = capture_pair(model, inputs, edges="effective", heads=heads)
    graphs = [
        encoder_decoder_graph(*([layer[0] for layer in part] for part in pair[:3]), heads=given)
        for pair, given in ((fused, "mean"), (apart, heads))
    ]
    np.testing.assert_allclose(graphs[0].attention, graphs[1].attention, atol=1e-6)


@pytest.mark.parametrize("edges", ["effective", "value_norm"])
def test_padded_items_have_the_edges_that_they_have_alone(edges):
    for name in ("T5", "BART", "Marian"):
        model, inputs = build(name), inputs_for(name, 4)
        batch = capture_pair(model, inputs, edges=edges)
        alone = capture_pair(
            model,
            {
                "input_ids": inputs["input_ids"][1:, :5],
                "decoder_input_ids": inputs["decoder_input_ids"][1:],
            },
            edges=edges,
        )
        for kind, (rows, columns) in enumerate(((5, 5), (4, 4), (4, 5))):
            for layer, weights in zip(batch[kind], alone[kind], strict=True):
                torch.testing.assert_close(layer[1, :rows, :columns], weights[0], atol=1e-4, rtol=0)
            if edges == "value_norm":
                for shares, expected in zip(
                    batch.residuals[kind], alone.residuals[kind], strict=True
                ):
                    torch.testing.assert_close(shares[1, :rows], expected[0], atol=1e-5, rtol=0)


@pytest.mark.parametrize("edges", ["effective", "value_norm"])
def test_cross_attention_to_values_of_zero_leaves_a_position_to_itself(edges):
    model, inputs = build("BART"), inputs_for("BART", 4)
    with torch.no_grad():
        for layer in model.get_decoder().layers:
            layer.encoder_attn.v_proj.weight.zero_()
            layer.encoder_attn.v_proj.bias.zero_()
    captured = capture_pair(model, inputs, edges=edges)
    assert not any(layer.any() for layer in captured.cross)
    parts = ([layer[0] for layer in part] for part in captured[:3])
    graph = encoder_decoder_graph(*parts, allow_empty=True)
    for method in (attnflow.attention_rollout, attnflow.attention_flow):
        assert not method(graph, positions=[SOURCE, SOURCE + 3])[-1, :, :SOURCE].any()


@pytest.mark.parametrize("kind", [0, 1, 2], ids=["encoder", "decoder", "cross"])
@pytest.mark.parametrize("name", ["T5", "BART"])
def test_gradients_are_those_of_finite_differences(name, kind, monkeypatch):
    model = build(name, "eager").double()
    # T5's norms round to float32, which is too coarse to see a small difference through.
    exact = lambda norm, x: norm.weight * x / (x.pow(2).mean(-1, keepdim=True) + 1e-6).sqrt()  # noqa: E731
    monkeypatch.setattr(transformers.models.t5.modeling_t5.T5LayerNorm, "forward", exact)
    inputs = {
        "input_ids": torch.tensor([[5, 6, 7, 8]]),
        "decoder_input_ids": torch.tensor([[1, 9, 4]]),
    }
    layer = 0
    gradients = capture_pair(model, inputs, score=score_of, heads=None)[kind][layer]
    weights = capture_pair(model, inputs, heads=None)[kind][layer]
    # The encoder's three layers run first, then self- and cross-attention of each decoder layer.
    wanted = {0: layer, 1: 3 + 2 * layer, 2: 3 + 2 * layer + 1}[kind]
    source = sys.modules[type(model).__module__]
    own = source.eager_attention_forward
    change = torch.zeros_like(weights)
    calls = []

    def disturbed(module, query, key, value, *arguments, **options):
        output, attention = own(module, query, key, value, *arguments, **options)
        calls.append(module)
        if len(calls) == wanted + 1:
            output = output + (change @ value).transpose(1, 2)
        return output, attention

    monkeypatch.setattr(source, "eager_attention_forward", disturbed)

    def score_with(place, by):
        calls.clear()
        change.zero_()
        change[place] = by
        with torch.no_grad():
            value = score_of(model(**inputs, use_cache=False)).item()
        assert len(calls) == 7
        return value

    assert gradients.any()
    for place in np.ndindex(*weights.shape):
        slope = (score_with(place, 1e-5) - score_with(place, -1e-5)) / 2e-5
        assert gradients[place].item() == pytest.approx(
            max(0.0, slope * weights[place].item()), abs=1e-8, rel=1e-6
        )


# ---- Capture: what the model is like afterwards --------------------------------------------------


def state_of(model):
    """All that must be as before: implementations, modes, hooks, flags, gradients and values."""
    state = {}
    for path, module in model.named_modules():
        state[path, "mode"] = module.training
        state[path, "attributes"] = sorted(vars(module))
        for kind in sorted(vars(module)):
            if "hooks" in kind and isinstance(vars(module)[kind], dict):
                state[path, kind] = list(vars(module)[kind].items())
        config = getattr(module, "config", None)
        if config is not None:
            state[path, "implementation"] = config._attn_implementation
            state[path, "config"] = config.to_dict()
    for path, parameter in model.named_parameters():
        state[path, "parameter"] = (
            parameter.requires_grad,
            parameter.grad,
            parameter.data_ptr(),
            parameter._version,
        )
    return state


@pytest.mark.parametrize("implementation", ["eager", "sdpa"])
@pytest.mark.parametrize(
    "options", [{}, {"heads": None}, {"score": score_of}, {"edges": "value_norm"}]
)
def test_the_model_is_left_as_it_was_found(name, implementation, options):
    model = build(name, implementation).train()
    model.get_decoder().eval()
    before = state_of(model)
    capture_pair(model, inputs_for(name, 4), **options)
    assert state_of(model) == before


def test_the_model_is_left_as_it_was_found_after_an_exception(name):
    model, inputs = build(name).train(), inputs_for(name, 4)
    before = state_of(model)
    with pytest.raises(ZeroDivisionError):
        capture_pair(model, inputs, score=lambda outputs: 1 / 0)
    assert state_of(model) == before

    def interrupt(*_):
        raise KeyboardInterrupt

    handle = list(model.get_decoder().modules())[-1].register_forward_hook(interrupt)
    with pytest.raises(KeyboardInterrupt):
        capture_pair(model, inputs)
    with pytest.raises(KeyboardInterrupt):
        capture_pair(model, inputs, edges="value_norm")
    handle.remove()
    assert state_of(model) == before


def test_dropout_does_not_touch_the_weights_of_a_model_in_train_mode(name):
    model, inputs = build(name), inputs_for(name, 4)
    expected = capture_pair(model, inputs)
    captured = capture_pair(model.train(), inputs)
    for part, other in zip(captured[:3], expected[:3], strict=True):
        for layer, weights in zip(part, other, strict=True):
            assert torch.equal(layer, weights)


def test_threads_do_not_mix_what_they_capture():
    jobs = [(build(name), inputs_for(name, target)) for name, target in (("T5", 4), ("BART", 6))]
    found = [[], []]

    def capture_often(which):
        found[which].extend(capture_pair(*jobs[which]).cross for _ in range(10))

    threads = [threading.Thread(target=capture_often, args=(which,)) for which in (0, 1)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    for job, runs in zip(jobs, found, strict=True):
        expected = capture_pair(*job).cross
        assert len(runs) == 10
        for run in runs:
            for layer, weights in zip(run, expected, strict=True):
                torch.testing.assert_close(layer, weights)


# ---- Capture: what is refused --------------------------------------------------------------------


def test_capture_of_an_encoder_decoder_names_what_to_use_and_takes_its_encoder(name):
    model, inputs = build(name), inputs_for(name, 4)
    with pytest.raises(attnflow.AttentionError, match=r"use attnflow.capture.capture_pair, or "):
        capture(model, inputs)
    del inputs["decoder_input_ids"]
    expected = capture_pair(model, inputs_for(name, 4)).encoder
    for layer, weights in zip(capture(model.get_encoder(), inputs).layers, expected, strict=True):
        torch.testing.assert_close(layer, weights)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (
            {"decoder_input_ids": None},
            r"inputs holds nothing for the decoder; expected decoder_inp",
        ),
        (
            {"decoder_input_ids": torch.ones(3, 4, dtype=torch.long)},
            r"2 items for the encoder, but what it holds for the decoder is of shape \(3, 4\)",
        ),
        (
            {"decoder_input_ids": torch.ones(2, 0, dtype=torch.long)},
            r"for the decoder is of shape \(2, 0\); expected as many, of one token or more",
        ),
        ({"encoder_outputs": (torch.zeros(2, 7, 16),)}, r"holds encoder_outputs, with which the"),
        ({"input_ids": torch.zeros(2, 0, dtype=torch.long)}, r"empty: their shape is \(2, 0\)"),
    ],
)
def test_bad_inputs_are_an_error_before_the_model_runs(change, message):
    model = build("BART")
    model.register_forward_pre_hook(lambda *_: pytest.fail("the model ran"))
    with pytest.raises(attnflow.OptionError, match=message):
        capture_pair(model, {**inputs_for("BART", 4), **change})


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"heads": "median"}, r"heads is 'median'; expected 'mean', 'max', 'min', 'sum', the inde"),
        ({"heads": 4}, r"heads is 4, but there are 4 heads: expected 0 to 3"),
        ({"heads": True}, r"heads must be an integer, got True"),
        ({"score": 3}, r"score must be a function of the model's outputs, got 3"),
        ({"edges": "gradient"}, r"edges is 'gradient'; expected 'attention', 'effective', 'value_"),
        ({"edges": "effective", "score": score_of}, r"leave out one of the two"),
        ({"edges": "value_norm", "heads": "max"}, r"heads is 'max', but edges='value_norm' adds"),
    ],
)
def test_a_bad_option_is_an_error_before_the_model_runs(name, options, message):
    model = build(name)
    model.register_forward_pre_hook(lambda *_: pytest.fail("the model ran"))
    with pytest.raises(attnflow.OptionError, match=message):
        capture_pair(model, inputs_for(name, 4), **options)


def test_a_model_of_another_kind_is_an_error():
    with pytest.raises(attnflow.OptionError, match=r"model must be a model of transformers, got s"):
        capture_pair("t5-small", inputs_for("T5", 4))
    encoder = build("T5").get_encoder()
    with pytest.raises(
        attnflow.AttentionError, match=r"T5Stack is no encoder-decoder; use .*captu"
    ):
        capture_pair(encoder, inputs_for("T5", 4))


def test_a_model_outside_the_attention_interface_is_an_error():
    config = transformers.FSMTConfig(
        langs=["en", "de"],
        src_vocab_size=50,
        tgt_vocab_size=50,
        **{key: value for key, value in SMALL.items() if key != "vocab_size"},
    )
    model = transformers.FSMTForConditionalGeneration(config)
    with pytest.raises(attnflow.AttentionError, match=r"attention of FSMT\w+ is not to be had"):
        capture_pair(model, inputs_for("BART", 4))
    model = transformers.LongT5ForConditionalGeneration(transformers.LongT5Config(**T5))
    with pytest.raises(attnflow.AttentionError, match=r"no layer of its encoder calls the attent"):
        capture_pair(model, inputs_for("T5", 4))


def test_a_cache_is_an_error():
    model, inputs = build("BART"), inputs_for("BART", 4)
    with torch.no_grad():
        cache = model(**inputs, use_cache=True).past_key_values
    with pytest.raises(
        attnflow.AttentionError,
        match=r"layer 1 of BartForConditionalGeneration's decoder .* 4 positions attend to 8",
    ):
        capture_pair(model, {**inputs, "past_key_values": cache})


def test_a_layer_that_does_not_attend_is_an_error():
    model, inputs = build("BART"), inputs_for("BART", 4)
    layer = model.get_decoder().layers[1]
    layer.encoder_attn.forward = lambda hidden_states, **_: (hidden_states, None)
    with pytest.raises(
        attnflow.AttentionError,
        match=r"layer 2 of BartForConditionalGeneration's decoder computed attention 1 times, "
        r"where 2 is expected: self-attention and then cross-attention",
    ):
        capture_pair(model, inputs)


def test_attention_outside_the_layers_is_an_error():
    model = build("BART")
    model.get_decoder().final_attn = copy.deepcopy(model.get_decoder().layers[0].self_attn)
    model.get_decoder().register_forward_hook(
        lambda decoder, _, output: decoder.final_attn(output.last_hidden_state) and None
    )
    with pytest.raises(
        attnflow.AttentionError, match=r"BartAttention of Bart\w+ is in no layer of"
    ):
        capture_pair(model, inputs_for("BART", 4))
