"""Attention rollout, of all heads and of one."""

import functools

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import attnflow

# Worked out by hand from the edge weights in the docstring of `worked_example`.
#
# Layer 1 is A1. Layer 2 is A2 A1:
#   row 0: 5/8 (1/2, 3/8, 1/8) + 1/8 (1/4, 3/4, 0) + 1/4 (0, 1/4, 3/4)
#        = (22, 25, 17) / 64
#   row 1: 7/8 (1/4, 3/4, 0) + 1/8 (0, 1/4, 3/4)
#        = (14, 44, 6) / 64
#   row 2: 3/8 (1/4, 3/4, 0) + 5/8 (0, 1/4, 3/4)
#        = (6, 28, 30) / 64
# Layer 3 is A3 times that:
#   row 0: 3/4 (22, 25, 17)/64 + 1/4 (6, 28, 30)/64
#        = (72, 103, 81) / 256
#   row 1: 1/8 (22, 25, 17)/64 + 5/8 (14, 44, 6)/64 + 1/4 (6, 28, 30)/64
#        = (104, 301, 107) / 512
#   row 2: 1/4 (22, 25, 17)/64 + 3/4 (6, 28, 30)/64
#        = (40, 109, 107) / 256
BY_HAND = np.array(
    [
        np.array([[4, 3, 1], [2, 6, 0], [0, 2, 6]]) / 8,
        np.array([[22, 25, 17], [14, 44, 6], [6, 28, 30]]) / 64,
        np.array([[144, 206, 162], [104, 301, 107], [80, 218, 214]]) / 512,
    ]
)


@st.composite
def weights(draw, heads=False):
    """Attention of 1 to 5 layers and 1 to 6 tokens, some of it one-hot, some of it tiny."""
    layers, tokens = draw(st.integers(1, 5)), draw(st.integers(1, 6))
    rng = np.random.default_rng(draw(st.integers(0, 2**32 - 1)))
    sharpness = draw(st.sampled_from([0.0, 1.0, 10.0, 1000.0]))
    shape = (layers, draw(st.integers(1, 3)), tokens, tokens) if heads else (layers, tokens, tokens)
    scores = sharpness * rng.standard_normal(shape)
    exponentials = np.exp(scores - scores.max(axis=-1, keepdims=True))
    return exponentials / exponentials.sum(axis=-1, keepdims=True)


residuals = st.sampled_from([0.0, 0.25, 0.5, 0.9, 1.0])


def test_rollout_of_the_worked_example_is_as_worked_out_by_hand(worked_example):
    np.testing.assert_array_equal(attnflow.attention_rollout(worked_example), BY_HAND)


@pytest.mark.parametrize("positions", [[0], [2, 0], [-1], [1, 1]])
def test_positions_of_the_worked_example_pick_rows(worked_example, positions):
    np.testing.assert_array_equal(
        attnflow.attention_rollout(worked_example, positions=positions), BY_HAND[:, positions]
    )


def test_rollout_down_to_layer_1_of_the_worked_example_leaves_out_the_first_layer(worked_example):
    # From layer 2 down to layer 1 there is only A2. From layer 3, A3 A2, of which
    #   row 0: 3/4 (5/8, 1/8, 1/4) + 1/4 (0, 3/8, 5/8) = (15, 6, 11) / 32
    rollout = attnflow.attention_rollout(worked_example, start_layer=1)
    assert rollout.shape == (2, 3, 3)
    np.testing.assert_array_equal(rollout[0], np.array([[5, 1, 2], [0, 7, 1], [0, 3, 5]]) / 8)
    np.testing.assert_array_equal(rollout[1, 0], np.array([15, 6, 11]) / 32)
    np.testing.assert_array_equal(
        attnflow.attention_rollout(worked_example, start_layer=-3), rollout
    )


@given(weights(), residuals)
def test_rows_sum_to_one(attention, residual):
    rollout = attnflow.attention_rollout(attention, residual=residual)
    assert (rollout >= 0).all()
    np.testing.assert_allclose(rollout.sum(axis=-1), 1.0, rtol=1e-13)


@given(weights(), residuals, st.data())
def test_rollout_from_i_to_j_composes(attention, residual, data):
    middle = data.draw(st.integers(0, len(attention) - 1))
    to_input = attnflow.attention_rollout(attention, residual=residual)
    to_middle = attnflow.attention_rollout(attention, residual=residual, start_layer=middle)
    if middle == 0:
        np.testing.assert_array_equal(to_middle, to_input)
    else:
        np.testing.assert_allclose(
            to_middle @ to_input[middle - 1], to_input[middle:], rtol=1e-12, atol=1e-300
        )


@given(weights(), st.data())
def test_some_positions_are_a_slice_of_all(attention, data):
    tokens = attention.shape[-1]
    positions = data.draw(
        st.lists(st.integers(-tokens, tokens - 1), min_size=1, max_size=2 * tokens)
    )
    start = data.draw(st.integers(0, len(attention) - 1))
    np.testing.assert_allclose(
        attnflow.attention_rollout(attention, positions=positions, start_layer=start),
        attnflow.attention_rollout(attention, start_layer=start)[:, positions],
        rtol=1e-12,
        atol=1e-300,
    )


@given(weights(), st.data())
def test_renaming_tokens_renames_the_answer(attention, data):
    order = data.draw(st.permutations(range(attention.shape[-1])))
    renamed = attention[:, order][:, :, order]
    np.testing.assert_allclose(
        attnflow.attention_rollout(renamed),
        attnflow.attention_rollout(attention)[:, order][:, :, order],
        rtol=1e-12,
        atol=1e-300,
    )


@given(weights())
def test_all_residual_leaves_every_token_to_itself(attention):
    rollout = attnflow.attention_rollout(attention, residual=1.0)
    np.testing.assert_array_equal(rollout, np.broadcast_to(np.eye(rollout.shape[1]), rollout.shape))


@given(weights())
def test_without_residual_rollout_is_the_product_of_the_attention(attention):
    product = functools.reduce(lambda below, layer: layer @ below, attention)
    np.testing.assert_allclose(
        attnflow.attention_rollout(attention, residual=0.0)[-1], product, rtol=1e-12, atol=1e-300
    )


@given(weights(heads=True), residuals, st.data())
def test_a_single_head_is_its_weights_times_the_rollout_below(attention, residual, data):
    layers, heads, tokens, _ = attention.shape
    layer, head = data.draw(st.integers(1, layers)), data.draw(st.integers(0, heads - 1))
    identity = np.eye(tokens)
    expected = (1 - residual) * attention[layer - 1, head] + residual * identity
    for below in attention[: layer - 1].mean(axis=1)[::-1]:
        expected = expected @ ((1 - residual) * below + residual * identity)
    np.testing.assert_allclose(
        attnflow.head_rollout(attention, layer, head, residual=residual),
        expected,
        rtol=1e-12,
        atol=1e-300,
    )
    np.testing.assert_allclose(
        attnflow.head_rollout(attention, layer, head, residual=residual, positions=[-1]),
        expected[-1:],
        rtol=1e-12,
        atol=1e-300,
    )


def test_a_single_head_of_the_worked_example_is_as_worked_out_by_hand(worked_example):
    # Two heads that differ in layer 3 only: there head 0 attends to the middle token alone. Its
    # edges from the first position weigh (1/2, 1/2, 0), so that the rollout from there is
    # 1/2 (22, 25, 17)/64 + 1/2 (14, 44, 6)/64.
    two_heads = np.stack([worked_example, worked_example], axis=1)
    two_heads[2, 0] = [0.0, 1.0, 0.0]
    for layer, head in [(3, 0), (-1, 0), (3, -2)]:
        np.testing.assert_array_equal(
            attnflow.head_rollout(two_heads, layer, head, positions=[0]),
            np.array([[36, 69, 23]]) / 128,
        )
    # Head 1 is that of the worked example, and so is everything below it.
    np.testing.assert_array_equal(attnflow.head_rollout(two_heads, 3, 1), BY_HAND[2])
    np.testing.assert_array_equal(attnflow.head_rollout(two_heads, 1, 1), BY_HAND[0])


def test_a_graph_gives_the_same_as_the_weights(attention):
    graph = attnflow.AttentionGraph(attention, heads="max", residual=0.25)
    expected = attnflow.attention_rollout(attention, heads="max", residual=0.25)
    np.testing.assert_array_equal(attnflow.attention_rollout(graph), expected)
    np.testing.assert_array_equal(
        attnflow.attention_rollout(graph, heads="max", residual=0.25), expected
    )


def test_padded_positions_take_no_part(attention):
    # Five tokens of which the last two are padding give what three tokens alone give.
    alone = attention[:, :, :3, :3] / attention[:, :, :3, :3].sum(axis=-1, keepdims=True)
    padded = np.zeros((4, 3, 5, 5))
    padded[:, :, :3, :3] = alone
    padded[:, :, 3:, :3] = 1 / 3  # a padded row may hold anything
    graph = attnflow.AttentionGraph(padded, padding=[3, 4])
    rollout = attnflow.attention_rollout(graph)
    assert rollout.shape == (4, 5, 5)
    np.testing.assert_allclose(rollout[:, :3, :3], attnflow.attention_rollout(alone), rtol=1e-13)
    assert not rollout[:, 3:].any()
    assert not rollout[:, :, 3:].any()


def test_the_result_belongs_to_the_caller(attention):
    graph = attnflow.AttentionGraph(attention)
    before = graph.capacities.copy()
    for positions in (None, [0]):
        for start_layer in (0, 3):
            attnflow.attention_rollout(graph, positions=positions, start_layer=start_layer)[:] = 7.0
    attnflow.head_rollout(attention, 1, 0)[:] = 7.0
    np.testing.assert_array_equal(graph.capacities, before)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"start_layer": 4}, "start_layer.*4.*0.*3"),
        ({"start_layer": -1}, "start_layer.*-1.*0.*3"),
        ({"start_layer": -6}, "start_layer.*-6"),
        ({"start_layer": 1.0}, r"start_layer.*1\.0"),
        ({"start_layer": True}, "start_layer.*True"),
        ({"positions": []}, "positions.*empty"),
        ({"positions": 3}, "positions.*3"),
        ({"positions": "all"}, "positions.*'all'"),
        ({"positions": [0, 6]}, r"positions\[1\].*6.*0.*5"),
        ({"positions": [-7]}, r"positions\[0\].*-7.*-6.*-1"),
        ({"positions": [0, True]}, r"positions\[1\].*True"),
        ({"positions": np.ones(6, bool)}, r"positions\[0\].*True"),
        ({"positions": [1.5]}, r"positions\[0\].*1\.5"),
        ({"positions": [[0, 1]]}, r"positions\[0\].*\[0, 1\]"),
    ],
)
def test_a_wrong_option_is_named(attention, options, message):
    with pytest.raises(attnflow.OptionError, match=message):
        attnflow.attention_rollout(attention, **options)


@pytest.mark.parametrize(
    ("layer", "head", "options", "message"),
    [
        (0, 0, {}, "layer.*0.*1.*4"),
        (5, 0, {}, "layer.*5"),
        (-5, 0, {}, "layer.*-5"),
        (1.0, 0, {}, r"layer.*1\.0"),
        (1, 3, {}, "head.*3.*0.*2"),
        (1, "mean", {}, "head.*'mean'"),
        (1, 0, {"residual": 2}, "residual.*2"),
        (1, 0, {"positions": [9]}, r"positions\[0\].*9"),
    ],
)
def test_a_wrong_option_for_a_single_head_is_named(attention, layer, head, options, message):
    with pytest.raises(attnflow.OptionError, match=message):
        attnflow.head_rollout(attention, layer, head, **options)


def test_a_single_head_cannot_be_had_once_heads_are_fused(attention):
    with pytest.raises(attnflow.AttentionError, match=r"heads.*fus"):
        attnflow.head_rollout(attnflow.AttentionGraph(attention), 1, 0)
    with pytest.raises(attnflow.AttentionError, match=r"head axis.*head.*0"):
        attnflow.head_rollout(attention[:, 0], 1, 0)
