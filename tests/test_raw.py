"""Raw attention."""

import numpy as np
import pytest

import attnflow


def test_raw_attention_of_the_worked_example_is_the_attention_itself(worked_example):
    np.testing.assert_array_equal(attnflow.raw_attention(worked_example), worked_example)


def test_heads_are_fused_as_worked_out_by_hand():
    # Two heads, one layer, two tokens. The rows of the first position are (1/4, 3/4) and
    # (3/4, 1/4), those of the second (1, 0) and (1/2, 1/2).
    #   mean: (1/2, 1/2) and (3/4, 1/4)
    #   sum:  (1, 1) and (3/2, 1/2), re-normalised the same as the mean
    #   max:  (3/4, 3/4) and (1, 1/2), re-normalised (1/2, 1/2) and (2/3, 1/3)
    #   min:  (1/4, 1/4) and (1/2, 0), re-normalised (1/2, 1/2) and (1, 0)
    heads = np.array([[[[0.25, 0.75], [1.0, 0.0]], [[0.75, 0.25], [0.5, 0.5]]]])
    expected = {
        "mean": [[0.5, 0.5], [0.75, 0.25]],
        "sum": [[0.5, 0.5], [0.75, 0.25]],
        "max": [[0.5, 0.5], [2 / 3, 1 / 3]],
        "min": [[0.5, 0.5], [1.0, 0.0]],
        0: [[0.25, 0.75], [1.0, 0.0]],
        1: [[0.75, 0.25], [0.5, 0.5]],
        -1: [[0.75, 0.25], [0.5, 0.5]],
        -2: [[0.25, 0.75], [1.0, 0.0]],
    }
    for fusion, rows in expected.items():
        np.testing.assert_allclose(
            attnflow.raw_attention(heads, heads=fusion), [rows], rtol=1e-15, err_msg=str(fusion)
        )


def test_rows_sum_to_one_in_float64_though_the_input_is_float32(attention):
    raw = attnflow.raw_attention(attention.astype(np.float32))
    assert raw.dtype == np.float64
    np.testing.assert_allclose(raw.sum(axis=-1), 1.0, rtol=1e-15)
    np.testing.assert_allclose(raw, attention.mean(axis=1), atol=1e-7)


@pytest.mark.parametrize("residual", [0.0, 0.3, 0.5, 1.0])
def test_a_graph_gives_the_same_as_the_weights_whatever_its_residual(attention, residual):
    graph = attnflow.AttentionGraph(attention, heads="max", residual=residual)
    np.testing.assert_array_equal(
        attnflow.raw_attention(graph), attnflow.raw_attention(attention, heads="max")
    )


def test_the_result_belongs_to_the_caller(attention):
    graph = attnflow.AttentionGraph(attention)
    attnflow.raw_attention(graph)[:] = 7.0
    np.testing.assert_allclose(graph.attention, attention.mean(axis=1), rtol=1e-15)
