"""Attention flow, of all heads and of one, and its saturation."""

import signal
import subprocess
import sys
import threading

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import attnflow
from attnflow import _maxflow, checks, flow
from attnflow.flow import check_flow, flow_cost
from attnflow.graph import UNIT, to_units

# Worked out by hand from the edge weights in the docstring of `worked_example`, in eighths.
#
# Layer 1 is A1. Layer 2: a path from (2, s) goes through one node k of layer 1, so its flow is the
# sum over k of min(A2[s, k], A1[k, t]). From s = 0, whose row is (5, 1, 2):
#   t = 0, column (4, 2, 0): 4 + 1 + 0 = 5
#   t = 1, column (3, 6, 2): 3 + 1 + 2 = 6
#   t = 2, column (1, 0, 6): 1 + 0 + 2 = 3
# Layer 3, from s = 0, which sends at most 6 to (2, 0) and 2 to (2, 2):
#   t = 0: (2, 0) sends 4 over (1, 0) and 1 over (1, 1); (2, 2) has only (1, 1), which passes 2 in
#          all. 4 + 2 = 6, all that layer 1 sends to the token.
#   t = 1: (2, 0) sends 3 + 1 + 2 = 6 over (1, 0), (1, 1), (1, 2); (2, 2) sends 2 over (1, 1).
#          8, all that the source has.
#   t = 2: (2, 0) sends 1 over (1, 0) and 2 over (1, 2); (2, 2) sends its 2 over (1, 2). 5.
# From s = 1, which sends 1, 5, 2:
#   t = 0: (2, 0) sends 1 over (1, 0); (2, 1) sends 2 over (1, 1), which is then full. 3.
#   t = 1: 1 over (1, 0), 5 over (1, 1), 1 over (1, 1) and 1 over (1, 2). 8.
#   t = 2: 1 over (1, 0); (2, 1) sends 1 and (2, 2) sends 2 over (1, 2). 4.
# From s = 2, which sends 2 to (2, 0) and 6 to (2, 2):
#   t = 0: 2 over (1, 0), 2 over (1, 1). 4.
#   t = 1: (2, 0) sends 2 over (1, 0); (2, 2) sends 3 over (1, 1) and 2 over (1, 2). 7.
#   t = 2: (2, 0) sends 1 over (1, 0) and 1 over (1, 2); (2, 2) sends 5 over (1, 2). 7.
BY_HAND = (
    np.array(
        [
            [[4, 3, 1], [2, 6, 0], [0, 2, 6]],
            [[5, 6, 3], [2, 7, 1], [2, 5, 5]],
            [[6, 8, 5], [3, 8, 4], [4, 7, 7]],
        ]
    )
    / 8
)


@st.composite
def weights(draw, max_tokens=7):
    """Attention of 1 to 5 layers, from even to one-hot, some with zeros and some causal."""
    layers, tokens = draw(st.integers(1, 5)), draw(st.integers(1, max_tokens))
    rng = np.random.default_rng(draw(st.integers(0, 2**32 - 1)))
    sharpness = draw(st.sampled_from([0.0, 1.0, 10.0, 1000.0]))
    scores = sharpness * rng.standard_normal((layers, tokens, tokens))
    if draw(st.booleans()):
        scores[:, *np.triu_indices(tokens, 1)] = -np.inf
    exponentials = np.exp(scores - scores.max(axis=-1, keepdims=True))
    return exponentials / exponentials.sum(axis=-1, keepdims=True)


residuals = st.sampled_from([0.0, 0.25, 0.5, 0.9, 1.0])


def test_flow_of_the_worked_example_is_as_worked_out_by_hand(worked_example):
    np.testing.assert_array_equal(attnflow.attention_flow(worked_example), BY_HAND)


def test_layers_positions_and_tokens_pick_from_the_whole(worked_example):
    flow = attnflow.attention_flow(
        worked_example, layers=[-1, 1, 3], positions=[2, -3], tokens=[1, 1, -1]
    )
    expected = BY_HAND[[2, 0, 2]][:, [2, 0]][:, :, [1, 1, 2]]
    np.testing.assert_array_equal(flow, expected)


def test_normalised_flows_of_a_position_sum_to_one_over_the_tokens_asked_for(worked_example):
    flow = attnflow.attention_flow(worked_example, layers=[3], positions=[0], normalize=True)
    np.testing.assert_allclose(flow[0, 0], np.array([6, 8, 5]) / 19, rtol=1e-15)
    some = attnflow.attention_flow(worked_example, layers=[3], tokens=[0, 2], normalize=True)
    np.testing.assert_allclose(some[0, 0], np.array([6, 5]) / 11, rtol=1e-15)


def test_a_position_without_flow_stays_without_flow_when_normalised():
    attention = np.eye(3)[None]
    flow = attnflow.attention_flow(attention, positions=[0], tokens=[1, 2], normalize=True)
    np.testing.assert_array_equal(flow, np.zeros((1, 1, 2)))


def test_saturation_of_the_worked_example_is_as_worked_out_by_hand(worked_example):
    # Every position sends 8 eighths, and layer 1 sends 6, 11 and 7 to the tokens, so that flows
    # are saturated at 6, 8 and 7: in layer 3 from 0 to 0 and 1, from 1 to 1 and from 2 to 2.
    np.testing.assert_array_equal(attnflow.saturation(worked_example), [0, 0, 4 / 9])
    np.testing.assert_array_equal(attnflow.saturation(worked_example, positions=[0]), [0, 0, 2 / 3])


def sparse(rng, sharpness):
    scores = np.exp(sharpness * rng.standard_normal((12, 10, 10)))
    scores *= rng.random(scores.shape) >= 0.6
    empty = scores.sum(axis=-1) == 0
    np.einsum("lii->li", scores)[empty] = 1.0
    return scores / scores.sum(axis=-1, keepdims=True)


def equal_weights(rng, width):
    """Every position attends alike to those around it: ties everywhere."""
    near = np.abs(np.subtract.outer(np.arange(10), np.arange(10))) <= width
    kept = near | (rng.random((12, 10, 10)) < 0.05)
    return kept / kept.sum(axis=-1, keepdims=True)


@pytest.mark.parametrize("make", [sparse, equal_weights])
@pytest.mark.parametrize("shape", [1, 2, 3])
def test_saturation_is_what_real_numbers_give(make, shape):
    # Cuts that are equal in real numbers may differ by some units.
    rng = np.random.default_rng(0)
    tied = 0
    for _ in range(60):
        graph = attnflow.AttentionGraph(make(rng, shape))
        out, into = graph.capacities.sum(axis=2), graph.capacities[0].sum(axis=0)
        gap = np.minimum(out[:, :, None], into) - attnflow.attention_flow(graph, num_threads=1)
        full = np.abs(gap) < 3e-14
        np.testing.assert_array_equal(attnflow.saturation(graph), full.mean(axis=(1, 2)))
        # There is nothing between a tie and a flow that is really smaller.
        assert not ((gap >= 3e-14) & (gap < 1e-9)).any()
        tied += int((full & (gap != 0)).sum())
    assert tied > 0


@given(weights(), residuals)
def test_flow_of_layer_1_is_its_capacities(attention, residual):
    graph = attnflow.AttentionGraph(attention, residual=residual)
    flow = attnflow.attention_flow(graph, layers=[1])[0]
    np.testing.assert_array_equal(flow, graph.units[0] * UNIT)
    np.testing.assert_allclose(flow, graph.capacities[0], rtol=0, atol=UNIT)


@given(weights(), residuals)
def test_two_layers_have_a_closed_form(attention, residual):
    graph = attnflow.AttentionGraph(np.concatenate([attention] * 2)[:2], residual=residual)
    first, second = graph.units
    closed = np.minimum(second[:, :, None], first[None, :, :]).sum(axis=1)
    np.testing.assert_array_equal(attnflow.attention_flow(graph, layers=[2])[0], closed * UNIT)


@given(weights(), residuals)
def test_flow_lies_between_nothing_and_what_leaves_and_arrives(attention, residual):
    graph = attnflow.AttentionGraph(attention, residual=residual)
    flow = attnflow.attention_flow(graph)
    leaving = graph.units.sum(axis=2)[:, :, None] * UNIT
    arriving = graph.units[0].sum(axis=0) * UNIT
    assert (flow >= 0).all()
    assert (flow <= np.minimum(leaving, arriving)).all()


@given(weights(), residuals, st.data())
def test_a_larger_capacity_never_means_a_smaller_flow(attention, residual, data):
    graph = attnflow.AttentionGraph(attention, residual=residual)
    layer = data.draw(st.integers(0, graph.layers - 1))
    edge = [data.draw(st.integers(0, graph.tokens - 1)) for _ in range(2)]
    raised = graph.units.copy()
    raised[layer, *edge] += data.draw(st.integers(1, 2**50))
    everything = list(range(graph.tokens))
    before, after = (
        attnflow._maxflow.flow(
            list(units), list(range(1, graph.layers + 1)), everything, everything, 1
        )
        for units in (graph.units, raised)
    )
    assert (after >= before).all()


@given(weights(), residuals, st.randoms(use_true_random=False))
def test_renaming_tokens_renames_the_answer(attention, residual, random):
    order = list(range(attention.shape[-1]))
    random.shuffle(order)
    flow = attnflow.attention_flow(attention, residual=residual)
    renamed = attnflow.attention_flow(attention[:, order][:, :, order], residual=residual)
    np.testing.assert_allclose(renamed, flow[:, order][:, :, order], rtol=0, atol=100 * UNIT)


@given(weights(max_tokens=12), residuals, st.integers(2, 4))
def test_the_number_of_threads_changes_no_bit(attention, residual, threads):
    one = attnflow.attention_flow(attention, residual=residual, num_threads=1)
    many = attnflow.attention_flow(attention, residual=residual, num_threads=threads)
    np.testing.assert_array_equal(many, one)


def test_float32_attention_gives_the_flow_of_float64_to_its_own_precision(attention):
    single = attnflow.attention_flow(attention.astype(np.float32))
    np.testing.assert_allclose(single, attnflow.attention_flow(attention), rtol=0, atol=1e-6)


def test_padded_positions_carry_nothing_and_the_others_do_not_notice(attention):
    padded = np.zeros((4, 3, 8, 8))
    kept = [0, 1, 3, 4, 5, 7]
    padded[np.ix_(range(4), range(3), kept, kept)] = attention
    padded[:, :, [2, 6], 0] = 1.0  # what a model computes for padding, which means nothing
    graph = attnflow.AttentionGraph(padded, padding=[2, 6])
    flow = attnflow.attention_flow(graph)
    np.testing.assert_array_equal(flow[:, kept][:, :, kept], attnflow.attention_flow(attention))
    assert not flow[:, [2, 6]].any()
    assert not flow[:, :, [2, 6]].any()
    np.testing.assert_array_equal(attnflow.saturation(graph), attnflow.saturation(attention))


def test_flow_of_a_single_head_takes_its_own_layer_and_the_mean_below(attention):
    mixed = attention.mean(axis=1)
    mixed[2] = attention[2, 1]
    expected = attnflow.attention_flow(mixed, layers=[3], positions=[4, 0], tokens=[5, 1, 2])[0]
    flow = attnflow.head_flow(attention, 3, 1, positions=[4, 0], tokens=[5, 1, 2])
    np.testing.assert_allclose(flow, expected, rtol=0, atol=100 * UNIT)
    first = attnflow.head_flow(attention, layer=1, head=-1)
    np.testing.assert_allclose(first, 0.5 * attention[0, -1] + 0.5 * np.eye(6), atol=UNIT)


def test_threads_of_python_may_use_the_same_array_at_once(attention):
    expected = attnflow.attention_flow(attention)
    graph = attnflow.AttentionGraph(attention)
    answers = []

    def ask(item):
        answers.extend(attnflow.attention_flow(item, num_threads=2) for _ in range(20))

    askers = [threading.Thread(target=ask, args=(item,)) for item in (attention, graph) * 4]
    for asker in askers:
        asker.start()
    for asker in askers:
        asker.join()
    assert len(answers) == 160
    for answer in answers:
        np.testing.assert_array_equal(answer, expected)


# A process started in the background of a shell script ignores Ctrl-C, and so do its children.
LONG_CALL = """
import signal
signal.signal(signal.SIGINT, signal.default_int_handler)
import numpy as np, attnflow
scores = 3 * np.random.default_rng(0).standard_normal((8, 1024, 1024))
weights = np.exp(scores)
graph = attnflow.AttentionGraph(weights / weights.sum(axis=-1, keepdims=True))
graph.units
print("ready", flush=True)
try:
    attnflow.attention_flow(graph, num_threads={threads})
except KeyboardInterrupt:
    print("stopped", flush=True)
"""


@pytest.mark.parametrize("threads", [1, 2])
def test_ctrl_c_ends_a_call_that_would_take_hours(threads):
    process = subprocess.Popen(
        [sys.executable, "-c", LONG_CALL.format(threads=threads)], stdout=subprocess.PIPE, text=True
    )
    try:
        assert process.stdout.readline() == "ready\n"
        with pytest.raises(subprocess.TimeoutExpired):
            process.wait(timeout=1)
        process.send_signal(signal.SIGINT)
        output, _ = process.communicate(timeout=60)
    finally:
        process.kill()
    assert output == "stopped\n"
    assert process.returncode == 0


MEMORY_OF_A_CALL = """
import pathlib, re, sys
import numpy as np
from attnflow import _maxflow

def peak():  # of this process alone; getrusage counts from the parent's
    status = pathlib.Path("/proc/self/status").read_text()
    return int(re.search(r"VmHWM:\\s+(\\d+) kB", status)[1]) * 1024

rows = np.random.default_rng(0).integers(1, 2**40, (8, 700, 700))
rows[:, range(700), range(700)] = 2**49
layers = list(rows)
_maxflow.flow(layers[:3], [3], [0], [1], 1)  # what the first call alone brings along
before = peak()
_maxflow.flow(layers, [8], [0, 1], list(range(700)), int(sys.argv[1]))
print((peak() - before) / rows.size)
"""


@pytest.mark.skipif(sys.platform != "linux", reason="reads the peak from /proc, which is Linux's")
@pytest.mark.parametrize("threads", [1, 2])
def test_the_solver_needs_one_copy_of_the_capacities_for_each_thread(threads):
    result = subprocess.run(
        [sys.executable, "-c", MEMORY_OF_A_CALL, str(threads)],
        capture_output=True,
        text=True,
        check=True,
    )
    # 8 bytes an edge of layers 2 to L - 1, and three sets of edges, a bit each.
    assert 0 < float(result.stdout) <= 8 * threads


def test_a_flow_does_not_keep_the_edge_weights_as_numbers_too(attention):
    graph = attnflow.AttentionGraph(attention)
    attnflow.attention_flow(graph)
    attnflow.min_cut(graph, 4, 0, 1)
    assert "capacities" not in vars(graph)


# ---- What a flow needs ---------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("smaller", "larger"),
    [
        ((6, 128, 1), (12, 128, 1)),
        ((6, 128, 1), (6, 256, 1)),
        ((6, 128, 1), (6, 128, 5)),
        ((6, 128, 1, 10), (6, 128, 1)),
    ],
)
def test_a_larger_flow_costs_more(smaller, larger):
    small, large = (flow_cost(*sizes, threads=2) for sizes in (smaller, larger))
    assert small.seconds < large.seconds
    assert 0 < small.bytes <= large.bytes


def test_the_memory_of_a_flow_grows_with_the_edges_and_the_threads():
    def cost(layers, tokens, threads=1):
        return flow_cost(layers, tokens, 1, threads=threads)

    assert cost(12, 2048).bytes == pytest.approx(16 * cost(12, 512).bytes, rel=0.01)
    assert cost(24, 512).bytes == pytest.approx(2 * cost(12, 512).bytes, rel=0.1)
    several = [cost(12, 512, threads).bytes for threads in (1, 2, 3)]
    assert several[0] < several[1] < several[2]
    assert cost(12, 512, 4).seconds < cost(12, 512, 1).seconds


def test_flow_from_every_layer_takes_longer_than_from_the_last():
    last, every = (flow_cost(6, 128, 10, tops=tops) for tops in (None, range(1, 7)))
    assert last.seconds < every.seconds
    assert last == flow_cost(6, 128, 10, tops=[6])


def test_a_flow_that_cannot_fit_says_what_it_needs_and_what_needs_less(monkeypatch):
    monkeypatch.setattr(checks, "available_memory", lambda: 2 * 10**9)
    with pytest.raises(attnflow.GraphSizeError) as caught:
        check_flow(layers=30, tokens=4096, positions=1, threads=2)
    cost = flow_cost(layers=30, tokens=4096, positions=1, threads=1)
    for part in (
        "4096 tokens",
        "30 layers",
        f"{cost.bytes / 1e9:.1f} GB",
        f"{cost.seconds:.0f} seconds",
        "2.0 GB are available",
        "method='contribution'",
        "method='rollout'",
        "shorten the text",
        "fewer positions",
    ):
        assert part in str(caught.value)


def test_a_flow_that_fits_with_fewer_threads_uses_fewer(monkeypatch):
    one, four = (flow_cost(12, 1024, 1, threads=threads) for threads in (1, 4))
    monkeypatch.setattr(checks, "available_memory", lambda: four.bytes)
    assert check_flow(12, 1024, 1, threads=4) == four
    monkeypatch.setattr(checks, "available_memory", lambda: one.bytes)
    assert check_flow(12, 1024, 1, threads=4) == one
    monkeypatch.setattr(checks, "available_memory", lambda: one.bytes - 1)
    with pytest.raises(attnflow.GraphSizeError):
        check_flow(12, 1024, 1, threads=4)
    monkeypatch.setattr(checks, "available_memory", lambda: None)
    assert check_flow(12, 1024, 1, threads=4) == four


def test_a_flow_of_two_layers_copies_nothing_and_may_not_fit_either(monkeypatch):
    monkeypatch.setattr(checks, "available_memory", lambda: 10**6)
    assert check_flow(2, 100, 1, threads=4) == flow_cost(2, 100, 1, threads=4)
    with pytest.raises(attnflow.GraphSizeError, match="2 layers"):
        check_flow(2, 1000, 1, threads=4)


def test_where_memory_is_short_the_solver_gets_fewer_threads(attention, monkeypatch):
    used = []

    def solve(matrices, tops, sources, sinks, threads, check):
        used.append(threads)
        return _maxflow.flow(matrices, tops, sources, sinks, threads, check)

    graph = attnflow.AttentionGraph(attention)
    expected = attnflow.attention_flow(graph, num_threads=3)
    monkeypatch.setattr(flow, "_SMALL", 0)
    monkeypatch.setattr(flow, "solve_flow", solve)
    for available in (10**9, 1):
        monkeypatch.setattr(checks, "available_memory", lambda available=available: available)
        np.testing.assert_array_equal(attnflow.attention_flow(graph, num_threads=3), expected)
    assert used == [3, 1]


@pytest.mark.parametrize("residual", [0.0, 0.3, 1.0, "of each position"])
def test_units_are_the_rounded_edge_weights(attention, residual):
    if residual == "of each position":
        residual = np.random.default_rng(0).random((4, 6))
    graph = attnflow.AttentionGraph(attention[:, 0], residual=residual)
    np.testing.assert_array_equal(graph.units, to_units(graph.capacities))
    weights = np.delete(attention[:, 0], 2, axis=2)
    weights = np.insert(weights / weights.sum(axis=2, keepdims=True), 2, 0, axis=2)
    padded = attnflow.AttentionGraph(weights, residual=residual, padding=[2])
    np.testing.assert_array_equal(padded.units, to_units(padded.capacities))


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"layers": [0]}, r"layers\[0\].*0.*1.*4"),
        ({"layers": [2, 5]}, r"layers\[1\].*5"),
        ({"layers": []}, "layers.*empty"),
        ({"layers": 6}, "layers"),
        ({"positions": [6]}, r"positions\[0\].*6.*0.*5"),
        ({"positions": [0.5]}, r"positions\[0\].*0.5"),
        ({"tokens": [1, -7]}, r"tokens\[1\].*-7"),
        ({"tokens": []}, "tokens.*empty"),
        ({"tokens": [True]}, r"tokens\[0\].*True"),
        ({"normalize": "yes"}, "normalize.*'yes'"),
        ({"num_threads": 0}, "num_threads.*0"),
        ({"num_threads": 1.5}, "num_threads.*1.5"),
        ({"num_threads": True}, "num_threads.*True"),
        ({"heads": "median"}, "heads"),
        ({"residual": 2}, "residual"),
    ],
)
def test_a_wrong_option_is_named_with_what_is_expected(attention, options, message):
    with pytest.raises(attnflow.OptionError, match=message):
        attnflow.attention_flow(attention, **options)


def test_a_padded_position_or_token_cannot_be_asked_for():
    attention = np.zeros((2, 3, 3))
    attention[:, :2, :2] = 0.5
    graph = attnflow.AttentionGraph(attention, padding=[2])
    with pytest.raises(attnflow.OptionError, match=r"positions\[0\].*2.*padded"):
        attnflow.attention_flow(graph, positions=[2])
    with pytest.raises(attnflow.OptionError, match=r"tokens\[1\].*2.*padded"):
        attnflow.attention_flow(graph, tokens=[0, -1])


@pytest.mark.parametrize(
    ("layer", "head", "message"),
    [
        (5, 0, "layer.*5"),
        (1, 3, "head.*3"),
        (1, "mean", "head.*'mean'"),
    ],
)
def test_a_head_that_does_not_exist_is_an_error(attention, layer, head, message):
    with pytest.raises(attnflow.OptionError, match=message):
        attnflow.head_flow(attention, layer, head)


def test_single_heads_need_weights_with_heads(attention):
    with pytest.raises(attnflow.AttentionError, match="head axis"):
        attnflow.head_flow(attention.mean(axis=1), 1, 0)
    with pytest.raises(attnflow.AttentionError, match=r"heads.*fus"):
        attnflow.head_flow(attnflow.AttentionGraph(attention), 1, 0)
