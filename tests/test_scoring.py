"""The scoring engine: one input at a time, and batches that give the same numbers."""

import numpy as np
import pytest

from attnflow import (
    AttentionError,
    AttentionGraph,
    attention_flow,
    attention_rollout,
    encoder_decoder_graph,
)
from attnflow.options import Options
from attnflow.scoring import Batch, Scorer, finish, gradient_rows, mask_of
from attnflow.tokens import Tokens
from attnflow.uniform import uniform_graph


def attention(rng, layers, count, causal=False, sharpness=2.0):
    weights = np.exp(rng.normal(0, sharpness, (layers, count, count)))
    if causal:
        weights = np.tril(weights)
    return weights / weights.sum(axis=-1, keepdims=True)


def padded(texts):
    """Attention of several texts as one batch, with rubbish where it is padded."""
    size = max(text.shape[-1] for text in texts)
    layers = np.full((len(texts[0]), len(texts), size, size), 0.25, dtype=np.float32)
    for row, text in enumerate(texts):
        count = text.shape[-1]
        layers[:, row, :count, count:] = 0.0
        layers[:, row, :count, :count] = text
    return list(layers)


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("method", ["raw", "rollout", "flow"])
@pytest.mark.parametrize("receptive_field", ["auto", True, False])
@pytest.mark.parametrize("layer", [1, 3])
def test_a_batch_has_the_scores_of_its_texts(causal, method, receptive_field, layer):
    rng = np.random.default_rng(7)
    texts = [
        attention(rng, 3, count, causal).astype(np.float32).astype(np.float64)
        for count in (5, 2, 7)
    ]
    positions = [4, 0, 3]
    options = Options(method=method, receptive_field=receptive_field, residual=0.3)
    batch = Batch(padded(texts), [5, 2, 7], residual=0.3)
    assert batch.causal == [causal] * 3
    found = batch.score(options, layer, positions)
    for text, position, scored in zip(texts, positions, found, strict=True):
        scorer = Scorer(AttentionGraph(text, residual=0.3))
        [expected] = scorer.score(options, layer, [position])
        np.testing.assert_allclose(scored.scores[0], expected.scores[layer - 1], atol=1e-12)
        assert scored.sinks == expected.sinks
        assert scored.relative == expected.relative
        assert scored.position == expected.position
        assert (scored.saturation is None) == (expected.saturation is None)


def test_a_batch_of_gradients_keeps_to_itself_where_nothing_helps():
    rng = np.random.default_rng(1)
    weights = np.maximum(rng.normal(0, 1, (2, 4, 4)), 0)
    weights[:, 2] = 0
    batch = Batch([layer[None] for layer in weights], [4], gradient=True)
    graph = AttentionGraph([gradient_rows(layer) for layer in weights])
    for method in ("raw", "rollout", "flow"):
        options = Options(method=method, edges="gradient", receptive_field=False)
        [scored] = batch.score(options, 2, [1])
        [expected] = Scorer(graph).score(options, 2, [1])
        np.testing.assert_allclose(scored.scores[0], expected.scores[1], atol=1e-12)


def test_a_batch_takes_a_residual_for_each_position():
    rng = np.random.default_rng(2)
    texts = [attention(rng, 2, 4), attention(rng, 2, 3)]
    shares = rng.uniform(0, 1, (2, 2, 4))
    batch = Batch(padded(texts), [4, 3], residual=list(shares))
    for method in ("rollout", "flow"):
        options = Options(method=method, receptive_field=True)
        found = batch.score(options, 2, [0, 2])
        for row, (text, position) in enumerate(zip(texts, [0, 2], strict=True)):
            graph = AttentionGraph(
                text.astype(np.float32), residual=shares[:, row, : text.shape[-1]]
            )
            [expected] = Scorer(graph).score(options, 2, [position])
            np.testing.assert_allclose(found[row].scores[0], expected.scores[1], atol=1e-12)


def test_a_batch_refuses_weights_that_are_not_attention():
    weights = np.array([[[0.5, 0.2], [0.5, 0.5]]])
    with pytest.raises(AttentionError, match="layer 1"):
        Batch([weights], [2]).score(Options(method="raw"), 1, [0])


def test_scores_are_those_of_the_methods():
    graph = AttentionGraph(attention(np.random.default_rng(3), 3, 5))
    scorer = Scorer(graph)
    np.testing.assert_array_equal(scorer.scores("raw", [2]), graph.attention[:, [2]])
    np.testing.assert_array_equal(
        scorer.scores("rollout", [2]), attention_rollout(graph, positions=[2])
    )
    flows = attention_flow(graph, positions=[2])
    np.testing.assert_allclose(scorer.scores("flow", [2]), flows, rtol=0, atol=2.0**-41)
    [scored] = scorer.score(Options(method="flow"), 2, [2])
    flow = attention_flow(graph, layers=[2], positions=[2])[0, 0]
    bound = np.minimum(graph.capacities[1, 2].sum(), graph.capacities[0].sum(axis=0))
    assert scored.saturation == np.mean(np.abs(flow - bound) < 1e-13)


def test_tokens_that_are_alike_have_equal_flows():
    # Thirds are not multiples of a unit: one of three edges carries a unit more.
    graph = AttentionGraph(np.full((2, 3, 3), 1 / 3), residual=0.0)
    assert len(set(graph.units[0, 0])) == 2
    assert len(set(Scorer(graph).scores("flow", [0])[-1, 0])) == 1
    [scored] = Batch([layer[None] for layer in graph.attention], [3], residual=0.0).score(
        Options(method="flow"), 2, [0]
    )
    assert len(set(scored.scores[0])) == 1
    assert scored.saturation == 1.0


def test_a_receptive_field_is_the_ratio_to_uniform_attention_over_the_mask():
    graph = AttentionGraph(attention(np.random.default_rng(4), 2, 4, causal=True))
    scorer = Scorer(graph)
    plain = attention_rollout(graph, positions=[3])[:, 0]
    even = np.tri(4) / np.arange(1, 5)[:, None]
    ratio = plain / attention_rollout([even] * 2, positions=[3])[:, 0]
    expected = ratio / ratio.sum(axis=-1, keepdims=True)
    np.testing.assert_allclose(scorer.scores("rollout", [3], relative=True)[:, 0], expected)
    assert scorer.is_relative("rollout", "auto")
    assert not scorer.is_relative("raw", True)


def test_the_mask_says_which_offsets_are_attended_over():
    window = np.triu(np.tri(5), -1)
    graph = AttentionGraph([window / window.sum(axis=1, keepdims=True)])
    assert mask_of(graph).tolist() == [[False] * 3 + [True, True] + [False] * 4]
    np.testing.assert_array_equal(uniform_graph(mask_of(graph)).attention, graph.attention)


def test_the_sink_is_the_token_that_the_others_attend_to():
    weights = attention(np.random.default_rng(5), 3, 6)
    scorer = Scorer(AttentionGraph(weights))
    received = [sum(layer[i, k] for layer in weights for i in range(6) if i != k) for k in range(6)]
    assert scorer.sinks(0) == (int(np.argmax(received)),)


def test_an_encoder_decoder_is_explained_by_its_decoder_layers():
    rng = np.random.default_rng(6)
    cross = np.exp(rng.normal(0, 1, (2, 3, 4)))
    graph = encoder_decoder_graph(
        attention(rng, 2, 4),
        attention(rng, 2, 3, causal=True),
        cross / cross.sum(-1, keepdims=True),
    )
    scorer = Scorer(graph, sizes=(3, 1))
    assert (graph.encoder, scorer.depth) == ((2, 4), 2)
    flow = attention_flow(graph, layers=[4, 6], positions=[5])
    found = scorer.scores("flow", [5])
    # The first source token has three positions.
    np.testing.assert_allclose(found[..., 0], flow[..., :3].sum(-1))
    np.testing.assert_allclose(found[..., 1:], flow[..., 3:])
    raw = (graph.attention[2, 5] + graph.attention[3, 5]) / 2
    np.testing.assert_allclose(scorer.scores("raw", [5])[0, 0, 1:], raw[3:])
    [scored] = scorer.score(Options(method="raw"), 1, [5])
    assert (scored.position, scored.scores.shape) == (3, (2, 4))
    assert len(scored.sinks) == 2


TOKENS = Tokens(
    "the keys", ("[CLS]", "the", "key", "s"), (None, (0, 3), (4, 7), (7, 8)), (True, *[False] * 3)
)


def finished(scores, **options):
    scorer = Scorer(AttentionGraph([np.tile(scores, (4, 1))]))
    chosen = Options(method="raw", **options)
    [scored] = scorer.score(chosen, 1, [0])
    return finish(TOKENS, scored, 0, 1, chosen)


def test_tokens_are_left_out_and_grouped():
    scores = [0.1, 0.2, 0.3, 0.4]
    whole = finished(scores)
    assert whole.tokens == TOKENS
    np.testing.assert_allclose(whole.layer_scores, [scores])
    words = finished(scores, units="words", special_tokens=False)
    assert words.tokens.names == ("the", "keys")
    np.testing.assert_allclose(words.layer_scores, [[0.2, 0.7]])
    dropped = finished(scores, drop_sink=True)
    assert dropped.tokens.names == ("[CLS]", "the", "key")


def test_a_sink_that_takes_most_of_the_scores_is_named():
    [note] = finished([0.1, 0.1, 0.1, 0.7]).notes
    assert "Token 3" in note
    assert "'s'" in note
    assert "70%" in note
    assert not finished([0.25] * 4).notes
    [note] = finished([0.1, 0.1, 0.1, 0.7], drop_sink=True).notes
    assert "token 3, 's'" in note
