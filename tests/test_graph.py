"""The attention graph: what it reads, what it refuses, and what it holds."""

import re
import sys
import threading
from fractions import Fraction

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

import attnflow
from attnflow import checks
from attnflow.checks import resolve_layers, resolve_positions
from attnflow.graph import UNIT, as_graph, head_capacities, to_units


def rows_of(*shape, seed=0):
    """Random attention of the given shape, each row summing to 1."""
    weights = np.random.default_rng(seed).random(shape)
    return weights / weights.sum(axis=-1, keepdims=True)


# ---- What it holds -------------------------------------------------------------------------------


def test_edges_of_the_worked_example_are_as_worked_out_by_hand(worked_example):
    graph = attnflow.AttentionGraph(worked_example)
    assert (graph.layers, graph.tokens, graph.heads, graph.residual) == (3, 3, "mean", 0.5)
    np.testing.assert_array_equal(
        graph.capacities,
        np.array(
            [
                [[4, 3, 1], [2, 6, 0], [0, 2, 6]],
                [[5, 1, 2], [0, 7, 1], [0, 3, 5]],
                [[6, 0, 2], [1, 5, 2], [2, 0, 6]],
            ]
        )
        / 8,
    )
    np.testing.assert_array_equal(graph.attention, worked_example)
    assert repr(graph) == "AttentionGraph(layers=3, tokens=3, heads='mean', residual=0.5)"


@pytest.mark.parametrize("residual", [0, 0.2, 0.5, np.float32(0.75), 1])
@pytest.mark.parametrize("heads", ["mean", "max", "min", "sum", 2])
def test_rows_of_edges_sum_to_one(attention, heads, residual):
    graph = attnflow.AttentionGraph(attention, heads=heads, residual=residual)
    assert graph.capacities.dtype == np.float64
    np.testing.assert_allclose(graph.capacities.sum(axis=-1), 1.0, rtol=1e-14)
    np.testing.assert_allclose(graph.attention.sum(axis=-1), 1.0, rtol=1e-14)


@given(st.integers(1, 4), st.integers(1, 5), st.floats(0, 1), st.integers(0, 2**32 - 1))
def test_edges_are_attention_and_the_residual_in_their_shares(layers, tokens, residual, seed):
    attention = rows_of(layers, tokens, tokens, seed=seed)
    graph = attnflow.AttentionGraph(attention, residual=residual)
    expected = (1 - residual) * attention + residual * np.eye(tokens)
    np.testing.assert_allclose(graph.capacities, expected, atol=1e-15)


@given(
    st.integers(1, 4),
    st.integers(1, 40),
    st.sampled_from([0.0, 0.5, 1 / 3, 0.9, 1.0]),
    st.sampled_from([0.0, 1.0, 10.0, 300.0]),
    st.sampled_from([0.0, 0.6, 0.95]),
    st.integers(0, 2**32 - 1),
)
def test_every_row_has_the_same_sum_in_units(layers, tokens, residual, sharpness, zeros, seed):
    rng = np.random.default_rng(seed)
    weights = np.exp(-sharpness * rng.exponential(size=(layers, tokens, tokens)))
    weights *= rng.random(weights.shape) >= zeros
    weights[:, :, 0] += weights.sum(axis=-1) == 0
    weights /= weights.sum(axis=-1, keepdims=True)
    graph = attnflow.AttentionGraph(weights, residual=residual)
    assert (graph.units.sum(axis=-1) == 2**50).all()
    assert (np.abs(graph.units - graph.capacities / UNIT) < 1).all()
    assert not graph.units[graph.capacities == 0].any()


@given(st.integers(1, 30), st.floats(-1e-3, 1e-3), st.integers(0, 2**32 - 1))
def test_units_of_a_row_that_is_off_are_those_of_its_shares(tokens, off, seed):
    weights = rows_of(tokens, seed=seed) * (1 + off)
    units = to_units(weights)
    total = sum(map(Fraction, weights))
    assert sum(units.tolist()) == 2**50
    for unit, weight in zip(units.tolist(), weights, strict=True):
        # Dividing by the sum rounds once more, by an eighth of a unit at most.
        assert abs(unit - Fraction(weight) / total * 2**50) < 1.25


def test_units_are_rounded_up_where_the_remainder_is_largest():
    # In units, and with remainders of 1/4, 3/4 and 0: the second is rounded up.
    row = np.array([10.25, 20.75, 2.0**50 - 31])
    assert to_units(row * UNIT).tolist() == [10, 21, 2**50 - 31]
    # Of equal remainders, the larger weight; of equal weights, the first.
    tied = np.array([10.5, 20.5, 20.5, 10.5, 2.0**50 - 62])
    assert to_units(tied * UNIT).tolist() == [10, 21, 21, 10, 2**50 - 62]
    uniform = to_units(np.full((2, 7, 7), 1 / 7))
    up = 2**50 - 7 * (2**50 // 7)
    assert (uniform - 2**50 // 7 == [1] * up + [0] * (7 - up)).all()


def test_units_do_not_depend_on_what_is_rounded_with_them():
    weights = rows_of(3, 300, 300)
    together = to_units(weights)
    for layer in range(3):
        np.testing.assert_array_equal(to_units(weights[layer]), together[layer])
    np.testing.assert_array_equal(to_units(weights[1, 7]), together[1, 7])


def test_arrays_of_a_graph_are_read_only_and_computed_once(attention):
    graph = attnflow.AttentionGraph(attention)
    assert graph.capacities is graph.capacities
    for array in (graph.capacities, graph.attention, graph.padding):
        with pytest.raises(ValueError, match="read-only"):
            array[0] = 0


def test_a_graph_does_not_change_with_the_array_it_was_built_from(attention):
    graph = attnflow.AttentionGraph(attention[:, 0])
    before = graph.capacities.copy()
    attention[:] = 0.0
    np.testing.assert_array_equal(graph.capacities, before)


def test_a_graph_may_be_used_by_several_threads_at_once(attention):
    graph = attnflow.AttentionGraph(attention)
    seen = []
    threads = [
        threading.Thread(target=lambda: seen.append(graph.capacities.sum())) for _ in range(8)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert seen == [graph.capacities.sum()] * 8


def test_a_graph_of_uniform_attention_over_a_causal_mask_is_causal():
    lower = np.tril(np.ones((5, 5)))
    causal = np.stack([lower / lower.sum(axis=1, keepdims=True)] * 3)
    assert attnflow.AttentionGraph(causal).causal is True
    causal[2, 3] = 1 / 5  # one position of one layer sees what comes after it
    assert attnflow.AttentionGraph(causal).causal is False


def test_a_graph_of_bidirectional_attention_is_not_causal(attention):
    assert attnflow.AttentionGraph(attention).causal is False


def test_a_graph_of_one_token_is_not_called_causal():
    assert attnflow.AttentionGraph(np.ones((2, 1, 1))).causal is False


# ---- What it reads -------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "form",
    [
        lambda a: a,
        lambda a: a[:, None],
        lambda a: list(a),
        lambda a: tuple(a),
        lambda a: tuple(a[:, None]),
        lambda a: a.tolist(),
        lambda a: [[list(head) for head in layer] for layer in a],
        lambda a: np.asfortranarray(a),
        lambda a: a[::-1][::-1],
        lambda a: a.astype(">f8"),
        lambda a: a.astype(np.longdouble),
        lambda a: torch.tensor(a),
        lambda a: torch.tensor(a)[:, None],
        lambda a: tuple(torch.tensor(a)),
        lambda a: tuple(torch.tensor(a)[:, None]),
        lambda a: [torch.tensor(a[0])[None], *list(a[1:])],
    ],
    ids=[
        "4-D",
        "5-D",
        "list of (H, n, n)",
        "tuple of (H, n, n)",
        "tuple of (1, H, n, n)",
        "nested lists",
        "lists of arrays",
        "Fortran order",
        "strided",
        "big-endian",
        "long double",
        "torch 4-D",
        "torch 5-D",
        "tuple of torch (H, n, n)",
        "Hugging Face",
        "mixed",
    ],
)
def test_every_form_of_the_same_attention_gives_the_same_graph(attention, form):
    np.testing.assert_array_equal(
        attnflow.AttentionGraph(form(attention)).capacities,
        attnflow.AttentionGraph(attention).capacities,
    )


def test_attention_without_a_head_axis_is_taken_as_fused(attention):
    fused = attention.mean(axis=1)
    for form in (fused, list(fused), torch.tensor(fused), fused[:, None]):
        np.testing.assert_allclose(
            attnflow.AttentionGraph(form).attention, attention.mean(axis=1), rtol=1e-15
        )


@pytest.mark.parametrize("requires_grad", [False, True])
@pytest.mark.parametrize(
    ("dtype", "off"),
    [
        (torch.float64, 0),
        (torch.float32, 1e-7),
        (torch.float16, 1e-3),
        (torch.bfloat16, 8e-3),
    ],
)
def test_torch_of_any_float_type_is_read_within_its_precision(attention, dtype, off, requires_grad):
    tensor = torch.tensor(attention, dtype=dtype, requires_grad=requires_grad)
    raw = attnflow.raw_attention(tensor)
    np.testing.assert_allclose(raw.sum(axis=-1), 1.0, rtol=1e-15)
    np.testing.assert_allclose(raw, attention.mean(axis=1), atol=off + 1e-16)
    assert tensor.requires_grad is requires_grad


def test_every_row_that_softmax_gives_in_bfloat16_is_accepted():
    # Rounding to 8 significant bits can put a row off by more than the 1e-3 that other types get.
    scores = torch.randn(2, 8, 40, 40, generator=torch.Generator().manual_seed(0)) * 3
    rounded = scores.softmax(-1).to(torch.bfloat16)
    assert (rounded.double().sum(-1) - 1).abs().max() > 1e-3
    exact = scores.double().softmax(-1).mean(1).numpy()
    np.testing.assert_allclose(attnflow.raw_attention(rounded), exact, atol=4e-3)


def test_torch_on_another_device_is_brought_to_the_cpu_first(attention):
    # Stands in for a tensor on an accelerator, which refuses numpy() until it is on the CPU.
    class Elsewhere:
        def __init__(self, tensor, on_cpu=False):
            self.tensor, self.on_cpu = tensor, on_cpu
            self.shape, self.dtype = tensor.shape, tensor.dtype

        def __getitem__(self, index):
            return Elsewhere(self.tensor[index], self.on_cpu)

        def detach(self):
            return Elsewhere(self.tensor.detach(), self.on_cpu)

        def cpu(self):
            return Elsewhere(self.tensor, on_cpu=True)

        def numpy(self):
            if not self.on_cpu:
                raise TypeError("can't convert cuda:0 device type tensor to numpy")
            return self.tensor.numpy()

    tensor = torch.tensor(attention, requires_grad=True)
    for form in (Elsewhere(tensor), tuple(Elsewhere(layer[None]) for layer in tensor)):
        np.testing.assert_array_equal(
            attnflow.raw_attention(form), attnflow.raw_attention(attention)
        )


@pytest.mark.parametrize("dtype", [np.float16, np.float32, np.int8, np.int64, np.uint8])
def test_numpy_of_any_real_type_is_read(dtype):
    one_hot = np.stack([np.eye(4), np.eye(4)[::-1]]).astype(dtype)
    np.testing.assert_array_equal(attnflow.raw_attention(one_hot), one_hot.astype(np.float64))


def test_read_only_arrays_are_read_and_left_alone(attention):
    attention.flags.writeable = False
    before = attention.copy()
    attnflow.attention_rollout(attention)
    attnflow.head_rollout(attention, 1, 0)
    np.testing.assert_array_equal(attention, before)


def test_heads_of_the_smallest_weights_are_fused_without_loss():
    smallest = np.finfo(np.float32).smallest_subnormal
    weights = np.array([[[1.0, smallest], [smallest, 1.0]]], dtype=np.float32)
    assert attnflow.raw_attention(weights)[0, 0, 1] == float(smallest)


# ---- Padding -------------------------------------------------------------------------------------


def padded_attention():
    """Five tokens of which the last two are padding, as a model with an attention mask gives it."""
    attention = rows_of(2, 3, 5, 5)
    attention[:, :, :, 3:] = 0.0
    return attention / attention.sum(axis=-1, keepdims=True)


@pytest.mark.parametrize(
    "padding",
    [
        [3, 4],
        (-1, -2),
        np.array([4, 3]),
        torch.tensor([3, 4]),
        range(3, 5),
        [False, False, False, True, True],
        np.array([0, 0, 0, 1, 1], dtype=bool),
        torch.tensor([1, 1, 1, 0, 0]) == 0,
    ],
    ids=["list", "negative", "array", "tensor", "range", "bools", "mask", "attention_mask == 0"],
)
def test_padding_is_left_out(padding):
    attention = padded_attention()
    graph = attnflow.AttentionGraph(attention, padding=padding)
    alone = attnflow.AttentionGraph(attention[:, :, :3, :3])
    assert graph.padding.tolist() == [False, False, False, True, True]
    assert graph.tokens == 5
    assert graph.units.sum(axis=-1).tolist() == [[2**50] * 3 + [0] * 2] * 2
    for array, expected in (
        (graph.capacities, alone.capacities),
        (graph.attention, alone.attention),
    ):
        np.testing.assert_array_equal(array[:, :3, :3], expected)
        assert not array[:, 3:].any()
        assert not array[:, :, 3:].any()


def test_no_padding_may_be_named():
    attention = padded_attention()
    for padding in (None, [], np.zeros(5, bool)):
        graph = attnflow.AttentionGraph(attention, padding=padding)
        assert not graph.padding.any()


@pytest.mark.parametrize("content", [0.0, np.nan, -1.0])
def test_a_padded_row_may_hold_anything(content):
    attention = padded_attention()
    expected = attnflow.AttentionGraph(attention, padding=[3, 4]).capacities
    attention[:, :, 3:] = content
    graph = attnflow.AttentionGraph(attention, padding=[3, 4])
    np.testing.assert_array_equal(graph.capacities, expected)


def test_padding_on_the_left_of_a_causal_graph_leaves_it_causal():
    lower = np.tril(np.ones((4, 4)))
    lower[:, 0] = 0.0
    causal = lower / np.maximum(lower.sum(axis=1, keepdims=True), 1)
    assert attnflow.AttentionGraph(causal[None], padding=[0]).causal is True


def test_a_trace_of_weight_on_padding_is_dropped_and_the_row_made_whole():
    attention = padded_attention()
    attention[:, :, 0] *= 1 - 5e-4
    attention[:, :, 0, 4] = 5e-4
    graph = attnflow.AttentionGraph(attention, padding=[3, 4])
    assert not graph.attention[:, :, 3:].any()
    np.testing.assert_allclose(graph.attention[:, :3].sum(axis=-1), 1.0, rtol=1e-15)


def test_a_padded_position_cannot_be_asked_for():
    graph = attnflow.AttentionGraph(padded_attention(), padding=[3, 4])
    with pytest.raises(attnflow.OptionError, match=r"positions\[1\].*4.*padded"):
        attnflow.attention_rollout(graph, positions=[0, -1])
    with pytest.raises(attnflow.OptionError, match=r"tokens\[0\].*3.*padded"):
        resolve_positions([3], graph.padding, "tokens")


# ---- A graph in the place of attention -----------------------------------------------------------


def test_a_graph_may_be_given_again_with_its_own_options(attention):
    graph = attnflow.AttentionGraph(attention, heads=-1, residual=0.25)
    assert graph.heads == 2
    for options in ({}, {"heads": 2}, {"heads": -1}, {"residual": 0.25}, {"residual": 0.5}):
        assert as_graph(graph, **options) is graph


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"heads": "max"}, "heads.*'max'.*heads.*'min'"),
        ({"heads": 1}, "heads.*1.*heads.*'min'"),
        ({"heads": "median"}, "heads.*'median'.*'mean'.*'max'.*'min'.*'sum'"),
        ({"residual": 0.75}, r"residual.*0\.75.*residual.*0\.25"),
        ({"residual": 7}, "residual.*7"),
    ],
)
def test_a_graph_refuses_options_other_than_its_own(attention, options, message):
    graph = attnflow.AttentionGraph(attention, heads="min", residual=0.25)
    with pytest.raises(attnflow.OptionError, match=message):
        attnflow.attention_rollout(graph, **options)


# ---- Layers, positions and single heads ----------------------------------------------------------


def test_layers_count_from_one_and_positions_from_zero(attention):
    graph = attnflow.AttentionGraph(attention)
    assert resolve_layers(None, graph.layers).tolist() == [1, 2, 3, 4]
    assert resolve_layers([4, -1, -4, 1], graph.layers).tolist() == [4, 4, 1, 1]
    assert resolve_positions(None, graph.padding).tolist() == [0, 1, 2, 3, 4, 5]
    assert resolve_positions([5, -1, -6, 0], graph.padding).tolist() == [5, 5, 0, 0]
    for indices in (
        np.array([2, 3], np.uint8),
        torch.tensor([2, 3]),
        range(2, 4),
        (2, np.int32(3)),
    ):
        assert resolve_positions(indices, graph.padding).tolist() == [2, 3]
        assert resolve_positions(indices, graph.padding).dtype == np.int64


@pytest.mark.parametrize(
    ("layers", "message"),
    [
        ([], "layers.*empty"),
        (2, "layers.*2"),
        ([1, 0], r"layers\[1\].*0.*1.*4"),
        ([5], r"layers\[0\].*5"),
        ([True], r"layers\[0\].*True"),
        (np.array([1.0]), r"layers\[0\].*1\.0"),
    ],
)
def test_layers_that_are_not_there_are_named(attention, layers, message):
    with pytest.raises(attnflow.OptionError, match=message):
        resolve_layers(layers, attention.shape[0])


def test_the_edges_of_a_single_head_are_its_own(attention):
    weights, graph = head_capacities(attention.astype(np.float32), 2, -1, residual=0.25)
    np.testing.assert_allclose(weights, 0.75 * attention[1, 2] + 0.25 * np.eye(6), atol=1e-7)
    np.testing.assert_allclose(weights.sum(axis=-1), 1.0, rtol=1e-15)
    assert (graph.layers, graph.heads, graph.residual) == (4, "mean", 0.25)


# ---- What it refuses -----------------------------------------------------------------------------

KERNEL = 'sdpa.*attn_implementation="eager"'


def changed(index, value, *shape):
    """Random attention of the given shape with `value` put at `index`."""
    attention = rows_of(*shape)
    attention[index] = value
    return attention


class ModelOutput(dict):
    attentions = ()


@pytest.mark.parametrize(
    ("attentions", "message"),
    [
        (None, f"attentions.*None.*{KERNEL}"),
        ((), f"attentions.*empty tuple.*{KERNEL}"),
        ([], f"attentions.*empty list.*{KERNEL}"),
        ((rows_of(1, 2, 3, 3), None), f"layer 2.*attentions.*None.*{KERNEL}"),
        (ModelOutput(), r"attentions.*ModelOutput.*output\.attentions"),
        (7, r"attentions.*\bint\b"),
        ("x", r"attentions.*\bstr\b"),
        (iter([rows_of(3, 3)]), "attentions.*list_iterator"),
        (rows_of(3, 3), r"attentions.*\(3, 3\).*\(L, n, n\).*\(L, H, n, n\)"),
        (np.float64(1), r"attentions.*\(\).*\(L, n, n\)"),
        (rows_of(1, 1, 1, 1, 3, 3), r"attentions.*\(1, 1, 1, 1, 3, 3\)"),
        (rows_of(3, 3).tolist(), r"layer 1.*attentions.*\(3,\).*\(n, n\)"),
        ([rows_of(1, 1, 2, 3, 3)], r"layer 1.*attentions.*\(1, 1, 2, 3, 3\)"),
        ([[[1.0], [0.5, 0.5]]], "layer 1.*attentions.*array"),
        (
            [rows_of(1, 2, 3, 3), rows_of(4, 2, 3, 3)],
            r"layer 2.*attentions.*\(4, 2, 3, 3\).*batch of 4.*layer\[k\]",
        ),
        (
            rows_of(3, 4, 2, 3, 3),
            r"attentions.*\(3, 4, 2, 3, 3\).*batch of 4.*attentions\[:, k\]",
        ),
        (rows_of(2, 3, 4), r"layer 1.*attentions.*\(3, 4\).*square"),
        ([rows_of(3, 3), rows_of(3, 2)], r"layer 2.*attentions.*\(3, 2\).*square"),
        (
            [rows_of(2, 3, 3), rows_of(2, 4, 4)],
            r"layer 2.*attentions.*\(2, 4, 4\).*layer 1.*\(2, 3, 3\)",
        ),
        (
            [rows_of(2, 3, 3), rows_of(5, 3, 3)],
            r"layer 2.*attentions.*\(5, 3, 3\).*layer 1.*\(2, 3, 3\)",
        ),
        (
            [rows_of(3, 3), rows_of(1, 3, 3)],
            r"layer 2.*attentions.*\(1, 3, 3\).*layer 1.*\(3, 3\)",
        ),
        (np.zeros((0, 3, 3)), r"attentions.*\(0, 3, 3\)"),
        (np.zeros((2, 0, 0)), r"layer 1.*attentions.*empty.*\(0, 0\)"),
        (np.zeros((2, 0, 3, 3)), r"layer 1.*attentions.*empty.*\(0, 3, 3\)"),
        (np.eye(2, dtype=complex)[None], "layer 1.*attentions.*complex128"),
        (np.eye(2, dtype=object)[None], r"layer 1.*attentions.*\bobject\b"),
        (np.eye(2, dtype=bool)[None], r"layer 1.*attentions.*\bbool\b"),
        ([np.eye(2), [["1", "0"], ["0", "1"]]], "layer 2.*attentions.*str"),
        (torch.eye(2, dtype=torch.complex64)[None], "layer 1.*attentions.*complex64"),
        (torch.eye(2, dtype=torch.bool)[None], r"layer 1.*attentions.*\bbool\b"),
        (torch.eye(2).to_sparse()[None], "layer 1.*attentions.*array"),
        (torch.eye(2, device="meta")[None], "layer 1.*attentions.*array"),
        (
            changed((1, 2, 0, 3), np.nan, 2, 3, 4, 4),
            "attentions.*nan.*layer 2.*head 2.*row 0.*column 3",
        ),
        (
            changed((1, 0, 3), np.inf, 2, 4, 4),
            "attentions.*inf.*layer 2.*row 0.*column 3",
        ),
        (
            changed((0, 1, slice(None)), [np.inf, -np.inf, 0.0], 1, 3, 3),
            "attentions.*inf.*layer 1.*row 1.*column 0",
        ),
        (
            changed((0, 1, 2, 0), -1e-12, 2, 3, 4, 4),
            "attentions.*negative.*-1e-12.*layer 1.*head 1.*row 2.*column 0",
        ),
        (
            changed((1, 0, 2), 0.0, 2, 3, 4, 4),
            r"attentions.*zeros.*layer 2.*head 0.*row 2.*padding=\[2\]",
        ),
        (
            changed((1, 2), [0.5, 0.25, 0.125, 0.0], 2, 4, 4),
            r"attentions.*sum to 1.*layer 2.*row 2.*0\.875.*0\.12.*0\.001.*model\.eval\(\)",
        ),
        (
            changed((0, 1, 0), [1.0, 0.002, 0.0], 1, 2, 3, 3),
            "layer 1.*head 1.*row 0.*1.002.*0.002.*0.001",
        ),
        (
            changed((0, 1), [1e308, 1e308, 1e308], 1, 3, 3),
            "layer 1.*row 1.*inf",
        ),
    ],
)
def test_bad_attention_is_refused_and_the_error_says_what_and_where(attentions, message):
    with pytest.raises(attnflow.AttentionError, match=message):
        attnflow.AttentionGraph(attentions)


def test_rows_off_by_less_than_the_tolerance_are_made_whole(attention):
    attention *= 1 + 9e-4
    raw = attnflow.raw_attention(attention)
    np.testing.assert_allclose(raw.sum(axis=-1), 1.0, rtol=1e-15)


def test_a_row_of_one_head_is_refused_though_the_mean_over_heads_is_right():
    attention = np.array([[[[0.5, 0.0], [0.0, 1.0]], [[0.5, 1.0], [0.0, 1.0]]]])
    with pytest.raises(attnflow.AttentionError, match=r"layer 1.*head 0.*row 0.*0\.5"):
        attnflow.AttentionGraph(attention)


def test_the_least_over_heads_may_leave_nothing():
    attention = np.array([[[[1.0, 0.0], [0.0, 1.0]], [[1.0, 0.0], [1.0, 0.0]]]])
    with pytest.raises(attnflow.AttentionError, match=r"heads.*'min'.*layer 1.*row 1"):
        attnflow.AttentionGraph(attention, heads="min")


def test_weight_on_padded_positions_is_refused():
    attention = np.full((1, 2, 4, 4), 0.25)
    message = "weight on padded positions: 0.25 of the row at layer 1, head 0, row 0; expected 0"
    with pytest.raises(attnflow.AttentionError, match=message):
        attnflow.AttentionGraph(attention, padding=[3])


def test_errors_name_rows_by_their_position_though_others_are_padded():
    attention = np.zeros((1, 4, 4))
    attention[0, 1:, 1:] = 1 / 3
    attention[0, 2] = 0.0
    with pytest.raises(attnflow.AttentionError, match=r"zeros.*layer 1.*row 2"):
        attnflow.AttentionGraph(attention, padding=[0])


def test_a_graph_is_not_built_from_a_graph(attention):
    with pytest.raises(attnflow.AttentionError, match=r"attentions.*AttentionGraph"):
        attnflow.AttentionGraph(attnflow.AttentionGraph(attention))


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"heads": "median"}, "heads.*'median'.*'mean'.*'max'.*'min'.*'sum'"),
        ({"heads": 3}, "heads.*3.*0.*2"),
        ({"heads": -4}, "heads.*-4"),
        ({"heads": True}, "heads.*True"),
        ({"heads": 1.0}, r"heads.*1\.0"),
        ({"heads": None}, "heads.*None"),
        ({"residual": -0.1}, r"residual.*-0\.1"),
        ({"residual": 1.1}, r"residual.*1\.1"),
        ({"residual": float("nan")}, "residual.*nan"),
        ({"residual": True}, "residual.*True"),
        ({"residual": "0.5"}, r"residual.*'0\.5'"),
        ({"residual": None}, "residual.*None"),
        ({"padding": 3}, "padding.*3"),
        ({"padding": "left"}, "padding.*'left'"),
        ({"padding": [6]}, r"padding\[0\].*6"),
        ({"padding": [True] * 4}, "padding.*4.*6 tokens"),
        ({"padding": [1, True]}, r"padding\[1\].*True"),
        ({"padding": [0.5]}, r"padding\[0\].*0\.5"),
        ({"padding": [1, 1, 1, 1, 0, 0]}, "padding.*position 1.*twice"),
        ({"padding": range(6)}, "padding.*6 positions"),
    ],
)
def test_a_wrong_option_is_named_and_the_valid_ones_are_listed(attention, options, message):
    with pytest.raises(attnflow.OptionError, match=message):
        attnflow.AttentionGraph(attention, **options)


def test_one_head_cannot_be_picked_where_there_are_none(attention):
    message = r"heads=0.* attentions has no head axis"
    with pytest.raises(attnflow.OptionError, match=message):
        attnflow.AttentionGraph(attention[:, 0], heads=0)


# ---- Size ----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "attentions",
    [
        np.broadcast_to(np.float32(0), (6, 10**6, 10**6)),
        (np.broadcast_to(np.float32(0), (1, 12, 10**6, 10**6)),) * 6,
        torch.zeros(1).expand(6, 10**6, 10**6),
        torch.empty((6, 10**6, 10**6), device="meta"),
    ],
    ids=["NumPy", "tuple", "torch expanded", "torch meta"],
)
def test_a_graph_that_cannot_fit_says_so_before_an_element_is_read(attentions):
    message = r"attentions of 1000000 tokens and 6 layers need about 150,000\.0 GB of memory, but "
    with pytest.raises(attnflow.GraphSizeError, match=message):
        attnflow.attention_rollout(attentions, positions=[0])


def test_a_graph_fits_if_there_are_25_bytes_for_every_edge(attention, monkeypatch):
    edges = attention[:, 0].size
    monkeypatch.setattr(checks, "available_memory", lambda: 25 * edges)
    attnflow.AttentionGraph(attention)
    monkeypatch.setattr(checks, "available_memory", lambda: 25 * edges - 1)
    with pytest.raises(attnflow.GraphSizeError, match=r"attentions.*6 tokens.*4 layers"):
        attnflow.AttentionGraph(attention)
    monkeypatch.setattr(checks, "available_memory", lambda: None)
    attnflow.AttentionGraph(attention)


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="/proc/meminfo is Linux's")
def test_available_memory_is_what_linux_reports():
    with open("/proc/meminfo", encoding="ascii") as file:
        text = file.read()
    total = 1024 * int(re.search(r"MemTotal:\s+(\d+)", text)[1])
    assert 0 < checks.available_memory() <= total


def test_only_one_layer_is_held_in_float64_at_a_time():
    # 8 layers of 12 heads in float64 would take 8 * 12 times as much as one fused layer.
    import tracemalloc

    attention = rows_of(8, 12, 64, 64).astype(np.float32)
    fused_layer = 64 * 64 * 8
    tracemalloc.start()
    try:
        attnflow.AttentionGraph(attention)
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert peak < (8 + 12) * fused_layer
