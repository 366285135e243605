"""The graph of an encoder-decoder."""

import numpy as np
import pytest
import torch
import transformers

import attnflow
from attnflow import checks
from attnflow._maxflow import UNLIMITED
from attnflow.flow import flow_bound
from attnflow.graph import UNIT, as_graph, encoder_decoder_graph
from tests.support.arcs import flow_of_ortools, layered_arcs

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
    assert (graph.units[~graph.passing].sum(axis=-1) == 2**50).all()


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
    with pytest.raises(attnflow.OptionError, match=r"heads.*1.*AttentionGraph"):
        as_graph(graph, heads=1)


def test_a_position_whose_row_is_empty_keeps_to_itself():
    empty = changed(CROSS, (0, 1), 0.0)
    with pytest.raises(attnflow.AttentionError, match=r"cross.*zeros.*layer 1.*row"):
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
        match=r"cross.*sum to 1.*layer 2.*head 2.*row 3",
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
    with pytest.raises(attnflow.OptionError, match=r"\(2, 4\).*\(3, 4\)"):
        encoder_decoder_graph(ENCODER, DECODER, CROSS, residual=shares[:2])


# ---- Flow against another solver -----------------------------------------------------------------


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
        np.testing.assert_array_equal(share, (bound - flow < 3e-14).mean(axis=(1, 2)))


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
            "cross.*1 layers.*decoder.*2",
        ),
        (
            lambda e, d, c: (e, d, c[:, :, :3]),
            "cross.*3 rows.*decoder.*4 tokens",
        ),
        (
            lambda e, d, c: (e[:, :, :4, :4] / e[:, :, :4, :4].sum(-1, keepdims=True), d, c),
            "cross.*5 columns.*encoder.*4 tokens",
        ),
        (
            lambda e, d, c: (c, d, c),
            r"layer 1.*encoder.*\(3, 4, 5\).*square",
        ),
        (
            lambda e, d, c: (e, c, c),
            r"layer 1.*decoder.*\(3, 4, 5\).*square",
        ),
        (
            lambda e, d, c: (e, d, c[0, 0]),
            r"cross.*\(4, 5\).*\(L, m, n\).*\(L, H, m, n\).*\(L, 1, H, m, n\)",
        ),
        (
            lambda e, d, c: (e, d, [c[0, 0, 0], c[0, 0, 1]]),
            r"layer 1.*cross.*\(5,\).*\(m, n\).*\(H, m, n\).*\(1, H, m, n\)",
        ),
        (
            lambda e, d, c: (e, d, [c[0], c[1, :, :3]]),
            r"layer 2.*cross.*\(3, 3, 5\).*layer 1.*\(3, 4, 5\)",
        ),
        (
            lambda e, d, c: (e, [d[0], d[1, 0]], c),
            r"layer 2.*decoder.*\(4, 4\).*layer 1.*\(3, 4, 4\)",
        ),
        (
            lambda e, d, c: (e, d, np.stack([c, c], axis=1)),
            r"cross.*\(2, 2, 3, 4, 5\).*batch of 2.*cross\[:, k\]",
        ),
        (
            lambda e, d, c: (list(np.stack([e, e], axis=1)), d, c),
            r"layer 1.*encoder.*\(2, 3, 5, 5\).*batch of 2.*layer\[k\]",
        ),
        (lambda e, d, c: (e, None, c), "decoder.*None.*kernel"),
        (lambda e, d, c: (e, d, ()), r"cross.*empty.*\btuple\b.*kernel"),
        (lambda e, d, c: (e, d, [c[0], None]), "layer 2.*cross.*None"),
        (lambda e, d, c: (e, d, "text"), r"cross.*\bstr\b"),
        (lambda e, d, c: (e[:0], d, c), r"encoder.*\(0, 3, 5, 5\)"),
        (lambda e, d, c: (e, d, c[..., :0]), r"layer 1.*cross.*empty.*\(3, 4, 0"),
        (lambda e, d, c: (e, d, c + 0j), "layer 1.*cross.*complex128"),
        (
            lambda e, d, c: (e, d, changed(c, (1, 2, 3, 4), np.nan)),
            "cross.*nan.*layer 2.*head 2.*row 3.*column 4",
        ),
        (
            lambda e, d, c: (changed(e, (2, 0, 1, 0), np.inf), d, c),
            "encoder.*inf.*layer 3.*head 0.*row 1.*column 0",
        ),
        (
            lambda e, d, c: (e, changed(d, (0, 0, 0, 0), -0.25), c),
            "decoder.*negative.*-0.25.*layer 1.*head 0.*row 0.*column 0",
        ),
        (
            lambda e, d, c: (e, d, changed(c, (0, 1, 3), 0.25)),
            r"cross.*sum to 1.*layer 1.*head 1.*row 3.*1\.25.*0\.25.*0\.001",
        ),
        (
            lambda e, d, c: (e, changed(d, (1, 2, 3), 0.0), c),
            "decoder.*zeros.*layer 2.*head 2.*row 3",
        ),
    ],
)
def test_attention_that_is_wrong_or_does_not_fit_is_named(pair, change, message):
    with pytest.raises(attnflow.AttentionError, match=message):
        encoder_decoder_graph(*change(*pair))


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"heads": 3}, "heads.*3"),
        ({"heads": "median"}, "heads.*'median'.*'mean'.*'max'.*'min'.*'sum'"),
        ({"residual": 1.5}, "residual.*1.5"),
    ],
)
def test_a_wrong_option_is_named(pair, options, message):
    with pytest.raises(attnflow.OptionError, match=message):
        encoder_decoder_graph(*pair, **options)


def test_a_head_must_be_the_same_one_everywhere(pair):
    encoder, decoder, cross = pair
    with pytest.raises(attnflow.OptionError, match=r"heads.*1.*cross"):
        encoder_decoder_graph(encoder, decoder, cross[:, 0], heads=1)
    with pytest.raises(
        attnflow.OptionError,
        match=r"heads.*-1.*encoder.*2.*decoder.*3.*cross.*3",
    ):
        encoder_decoder_graph(encoder[:, :2], decoder, cross, heads=-1)
    with pytest.raises(attnflow.OptionError, match=r"heads.*2"):
        encoder_decoder_graph(encoder[:, :2], decoder, cross, heads=2)
    assert encoder_decoder_graph(encoder[:, :2], decoder, cross, heads=1).heads == 1


def test_no_token_that_every_head_attends_to_is_an_error(pair):
    encoder, decoder, cross = pair
    cross = changed(cross, (1, slice(None), 2), np.eye(5)[:3])
    with pytest.raises(attnflow.AttentionError, match=r"heads.*'min'.*layer 2.*cross.*row 2"):
        encoder_decoder_graph(encoder, decoder, cross, heads="min")


def test_the_whole_output_of_a_model_is_an_error_that_says_what_to_pass(pair):
    output = transformers.modeling_outputs.Seq2SeqLMOutput(logits=torch.zeros(1))
    with pytest.raises(attnflow.AttentionError, match="encoder_decoder_graph"):
        encoder_decoder_graph(output, *pair[1:])
    with pytest.raises(attnflow.AttentionError, match=r"attentions.*Seq2SeqLMOutput"):
        attnflow.AttentionGraph(output)


def test_a_graph_that_cannot_fit_into_memory_is_an_error(pair, monkeypatch):
    monkeypatch.setattr(checks, "available_memory", lambda: 25 * 7 * 9 * 9 - 1)
    with pytest.raises(attnflow.GraphSizeError, match=r"9 tokens.*7 layers"):
        encoder_decoder_graph(*pair)
