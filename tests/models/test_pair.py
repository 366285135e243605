"""Encoder-decoders, explained by their source and by their target so far, on tiny models."""

import copy
import io
import json

import numpy as np
import pytest
import torch
import transformers
from tokenizers import Tokenizer, models, pre_tokenizers, processors

import attnflow
from attnflow.capture import capture_pair
from attnflow.cli import main
from attnflow.graph import UNIT, encoder_decoder_graph
from attnflow.models import Explainer
from attnflow.view.pieces import pieces
from tests.support.arcs import flow_of_ortools, layered_arcs

SENTENCES = "the house is old das haus ist alt a cat eine katze"
WORDS = ["<pad>", "</s>", "<unk>", *SENTENCES.split()]
SIZES = {
    "vocab_size": len(WORDS),
    "d_model": 16,
    "decoder_start_token_id": 0,
    "eos_token_id": 1,
    "pad_token_id": 0,
}


def tokenizer():
    """Whole words, with an end, as T5 and Marian have it."""
    inner = Tokenizer(models.WordLevel({word: i for i, word in enumerate(WORDS)}, "<unk>"))
    inner.pre_tokenizer = pre_tokenizers.Whitespace()
    inner.post_processor = processors.TemplateProcessing(
        single="$0 </s>", special_tokens=[("</s>", 1)]
    )
    return transformers.PreTrainedTokenizerFast(
        tokenizer_object=inner,
        unk_token="<unk>",
        pad_token="<pad>",
        eos_token="</s>",
        model_max_length=16,
    )


def t5():
    config = transformers.T5Config(
        **SIZES, num_layers=3, num_decoder_layers=3, num_heads=2, d_kv=8, d_ff=16
    )
    return transformers.T5ForConditionalGeneration(config)


def bart(config=transformers.BartConfig, model=transformers.BartForConditionalGeneration):
    return model(
        config(
            **SIZES,
            encoder_layers=2,
            decoder_layers=3,
            encoder_attention_heads=2,
            decoder_attention_heads=2,
            encoder_ffn_dim=16,
            decoder_ffn_dim=16,
            max_position_embeddings=32,
            bos_token_id=0,
            forced_eos_token_id=None,
        )
    )


def marian():
    return bart(transformers.MarianConfig, transformers.MarianMTModel)


@pytest.fixture(scope="module", params=[t5, bart, marian], ids=lambda make: make.__name__)
def explainer(request):
    torch.manual_seed(1)
    model = request.param().eval()
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.ndim == 2:
                parameter.normal_(0, 0.3)
    return Explainer(model, tokenizer())


def own_outputs(explainer, source, target):
    """The model's own eager attention for a source and the target so far."""
    model = copy.deepcopy(explainer.model).eval()
    model.set_attn_implementation("eager")
    start = [model.config.decoder_start_token_id]
    said = explainer.tokenizer(text_target=target)["input_ids"][:-1]
    with torch.no_grad():
        return model(
            input_ids=explainer.tokenizer(source, return_tensors="pt")["input_ids"],
            decoder_input_ids=torch.tensor([start + said]),
            output_attentions=True,
            use_cache=False,
        )


@pytest.mark.parametrize("method", ["rollout", "flow"])
def test_source_and_target_are_scored_together(explainer, method):
    source, target = "the house is old", "das haus"
    explanation = explainer.explain((source, target), method=method, layer=2)
    outputs = own_outputs(explainer, source, target)
    graph = encoder_decoder_graph(
        outputs.encoder_attentions, outputs.decoder_attentions, outputs.cross_attentions
    )
    function = {"rollout": attnflow.attention_rollout, "flow": attnflow.attention_flow}[method]
    # The encoder's layers, then two steps for each decoder layer; five source tokens, then three.
    below = len(outputs.encoder_attentions)
    expected = function(graph, positions=[7])[[below + 1, below + 3, below + 5], 0]
    np.testing.assert_allclose(explanation.layer_scores, expected, atol=1e-5)
    assert explanation.tokens == (*source.split(), "</s>", "<pad>", *target.split())
    assert explanation.position == 7
    assert explanation.task == "seq2seq-lm"
    logits = outputs.logits[0, -1]
    assert explanation.prediction.index == int(logits.argmax())
    assert explanation.prediction.probability == pytest.approx(float(logits.softmax(0).max()), 1e-4)


def test_a_layers_raw_attention_is_half_to_the_target_and_half_to_the_source(explainer):
    explanation = explainer.explain(("the house", "das"), method="raw", layer=1)
    outputs = own_outputs(explainer, "the house", "das")
    cross = outputs.cross_attentions[0][0].mean(0)[-1].numpy() / 2
    own = outputs.decoder_attentions[0][0].mean(0)[-1].numpy() / 2
    np.testing.assert_allclose(explanation.scores, np.concatenate([cross, own]), atol=1e-6)


def test_a_source_alone_explains_the_first_token_written(explainer):
    explanation = explainer.explain("the house is old", method="rollout")
    assert explanation.tokens == ("the", "house", "is", "old", "</s>", "<pad>")
    assert explanation.text == "the house is old"
    logits = own_outputs(explainer, "the house is old", "").logits[0, 0]
    assert explanation.prediction.index == int(logits.argmax())


def test_both_sides_are_one_text_and_every_token_has_its_place_in_it(explainer):
    explanation = explainer.explain(("the house", "das haus"), method="rollout", units="words")
    assert explanation.text == "the house → das haus"
    shown = [explanation.text[slice(*span)] for span in explanation.spans if span is not None]
    # The arrow is where the target starts.
    assert [word.strip() for word in shown] == ["the", "house", "→", "das", "haus"]
    assert explanation.tokens == ("the", "house", "</s>", "<pad>", "das", "haus")
    drawn = "".join(piece.text for piece in pieces(explanation.pieces))
    assert drawn.split() == ["the", "house", "</s>", "→", "das", "haus"]
    plain = explainer.explain(("the house", "das haus"), method="rollout", special_tokens=False)
    assert plain.tokens == ("the", "house", "das", "haus")


def test_an_unknown_word_is_a_word(explainer):
    explanation = explainer.explain(("the zebra", "das"), method="rollout", special_tokens=False)
    assert explanation.tokens == ("the", "zebra", "das")


def test_an_encoder_alone_is_explained_as_an_encoder(explainer):
    alone = Explainer(explainer.model.get_encoder(), tokenizer())
    assert alone.task == "encoder"
    explanation = alone.explain("the house", method="rollout", position=1)
    outputs = own_outputs(explainer, "the house", "das")
    expected = attnflow.attention_rollout(outputs.encoder_attentions)[:, 1]
    np.testing.assert_allclose(explanation.layer_scores, expected, atol=1e-5)


def test_every_token_written_is_explained_as_if_asked_for_alone(explainer):
    steps = explainer.generate("the house is old", max_new_tokens=4, method="rollout")
    said = []
    for step in steps:
        alone = explainer.explain(("the house is old", " ".join(said)), method="rollout")
        np.testing.assert_allclose(step.layer_scores, alone.layer_scores, atol=1e-5)
        assert step.position == alone.position
        assert step.target == step.prediction.label == alone.prediction.label
        assert step.tokens == alone.tokens
        said.append(step.target)


def test_the_whole_target_is_the_sum_over_its_tokens(explainer):
    generation = explainer.generate((SOURCE, "das"), max_new_tokens=4)
    whole = generation.whole
    assert generation.prompt.startswith(SOURCE)
    assert generation.text.replace(" ", "") == "".join(step.target for step in generation)
    assert whole.value == pytest.approx(sum(step.value for step in generation), abs=1e-4)
    np.testing.assert_allclose(np.nansum(generation.matrix, axis=0), whole.scores, atol=1e-4)
    assert whole.scores.sum() + whole.bias == pytest.approx(whole.value, abs=1e-4)
    # The last token written is not among those that others were written from.
    assert sum(generation.written) == len(generation) - 1
    assert generation.written[: len(generation[0].tokens)] == (False,) * len(generation[0].tokens)
    generation.show(io.StringIO())
    assert SOURCE.split()[0] in generation.to_html()


@pytest.mark.parametrize("options", [{}, {"edges": "value_norm"}, {"receptive_field": True}])
def test_the_trace_gives_the_scores_of_every_method(explainer, options, tmp_path):
    explained = explainer.explain((SOURCE, TARGET), position=1, method="raw", **options)
    explained.save(tmp_path / "pair.json")
    trace = attnflow.Explanation.load(tmp_path / "pair.json").trace
    assert trace.tokens == explained.tokens
    place = explained.position
    # A decoder layer ends with the second of its two steps.
    steps = [trace.encoder[0] + 2 * layer - 1 for layer in range(1, trace.depth + 1)]
    for method, function in (
        ("rollout", attnflow.attention_rollout),
        ("flow", attnflow.attention_flow),
    ):
        expected = explainer.explain((SOURCE, TARGET), position=1, method=method, **options)
        scores = function(trace.graph(), positions=[place])[steps, 0]
        if options.get("receptive_field"):
            scores = scores / function(trace.uniform(), positions=[place])[steps, 0]
            scores /= scores.sum(axis=1, keepdims=True)
        np.testing.assert_allclose(scores, expected.layer_scores, atol=1e-6)


def test_a_target_so_far_is_gone_on_with(explainer):
    whole = explainer.generate(SOURCE, max_new_tokens=4, method="rollout")
    said = " ".join(step.target for step in whole[:2])
    rest = explainer.generate((SOURCE, said), max_new_tokens=len(whole) - 2, method="rollout")
    assert [step.target for step in rest] == [step.target for step in whole[2:]]
    for step, expected in zip(rest, whole[2:], strict=True):
        np.testing.assert_allclose(step.scores, expected.scores, atol=1e-5)


@pytest.mark.parametrize("method", ["rollout", "flow"])
def test_where_attention_has_no_preference_the_receptive_field_leaves_none(method):
    model = bart().eval()
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if "q_proj" in name:
                parameter.zero_()
    explainer = Explainer(model, tokenizer())
    even = explainer.explain(("the house", "das haus"), method=method, receptive_field=True)
    np.testing.assert_allclose(even.layer_scores, 1 / 6, rtol=1e-5)
    plain = explainer.explain(("the house", "das haus"), method=method)
    assert plain.scores.max() > 1.9 * plain.scores.min()


# ---- Other edges ---------------------------------------------------------------------------------

SOURCE, TARGET = "the house is old", "das haus"


def rows_or(alone, weights):
    """Rows divided by their sums; those of `alone` in the place of rows of zeros."""
    return np.array(
        [
            row / row.sum() if row.sum() > 0 else other
            for row, other in zip(weights, alone, strict=True)
        ]
    )


def gradient_graph(explainer):
    """Gradient-weighted attention of the pair, from the model's own eager attention."""
    model = copy.deepcopy(explainer.model).eval()
    model.set_attn_implementation("eager")
    said = explainer.tokenizer(text_target=TARGET)["input_ids"][:-1]
    outputs = model(
        input_ids=explainer.tokenizer(SOURCE, return_tensors="pt")["input_ids"],
        decoder_input_ids=torch.tensor([[model.config.decoder_start_token_id, *said]]),
        output_attentions=True,
        use_cache=False,
    )
    kinds = outputs.encoder_attentions, outputs.decoder_attentions, outputs.cross_attentions
    every = [layer for kind in kinds for layer in kind]
    gradients = iter(torch.autograd.grad(outputs.logits[0, -1].max(), every))
    weighed = [
        [(next(gradients) * layer).relu()[0].mean(0).detach().double().numpy() for layer in kind]
        for kind in kinds
    ]
    encoder, decoder = ([rows_or(np.eye(len(w)), w) for w in kind] for kind in weighed[:2])
    cross = [rows_or(np.zeros_like(w), w) for w in weighed[2]]
    return encoder_decoder_graph(encoder, decoder, cross, allow_empty=True)


def captured_graph(explainer, edges):
    """The graph of the pair with edges that a capture gives."""
    said = explainer.tokenizer(text_target=TARGET)["input_ids"][:-1]
    start = explainer.model.config.decoder_start_token_id
    captured = capture_pair(
        explainer.model,
        {
            "input_ids": explainer.tokenizer(SOURCE, return_tensors="pt")["input_ids"],
            "decoder_input_ids": torch.tensor([[start, *said]]),
        },
        edges=edges,
    )
    residual = 0.5
    if edges == "value_norm":
        encoder, decoder, cross = (
            [part[0].numpy() for part in kind] for kind in captured.residuals
        )
        passing = {"source": np.full(5, 0.5), "target": np.full(3, 0.5)}
        residual = [np.concatenate([share, passing["target"]]) for share in encoder]
        for own, across in zip(decoder, cross, strict=True):
            residual += [np.concatenate([passing["source"], share]) for share in (own, across)]
        residual = np.array(residual)
    layers = ([layer[0] for layer in part] for part in captured[:3])
    return encoder_decoder_graph(*layers, residual=residual, allow_empty=True)


def graph_with(explainer, edges):
    return gradient_graph(explainer) if edges == "gradient" else captured_graph(explainer, edges)


@pytest.mark.parametrize("method", ["raw", "rollout", "flow"])
@pytest.mark.parametrize("edges", ["gradient", "effective", "value_norm"])
def test_explanations_are_made_of_the_edges_asked_for(explainer, edges, method):
    explanation = explainer.explain((SOURCE, TARGET), edges=edges, method=method)
    graph = graph_with(explainer, edges)
    below = graph.layers - 6
    steps = [below + 1, below + 3, below + 5]
    if method == "raw":
        raw = attnflow.raw_attention(graph)
        expected = (raw[[step - 1 for step in steps], 7] + raw[steps, 7]) / 2
    elif method == "rollout":
        expected = attnflow.attention_rollout(graph)[steps, 7]
    else:
        expected = attnflow.attention_flow(graph)[steps, 7]
    np.testing.assert_allclose(explanation.layer_scores, expected, atol=1e-5)
    assert explanation.options["edges"] == edges
    assert explanation.options["residual"] == ("measured" if edges == "value_norm" else 0.5)
    if edges != "effective":  # five tokens are fewer than a head has dimensions
        other = explainer.explain((SOURCE, TARGET), method=method)
        assert np.abs(other.layer_scores - explanation.layer_scores).max() > 1e-3


@pytest.mark.parametrize("edges", ["attention", "gradient", "effective", "value_norm"])
def test_flow_is_that_of_ortools_on_the_same_graph(explainer, edges):
    explanation = explainer.explain((SOURCE, TARGET), edges=edges, method="flow")
    graph = graph_with(explainer, edges)
    arcs = layered_arcs(graph, graph.layers)
    expected = [flow_of_ortools(arcs, (graph.layers, 7), (0, token)) for token in range(8)]
    np.testing.assert_allclose(explanation.scores, np.array(expected) * UNIT, atol=1e-5)


def test_gradients_are_those_of_the_target_asked_for(explainer):
    predicted = explainer.explain((SOURCE, TARGET), edges="gradient", method="rollout")
    index = (predicted.prediction.index + 1) % len(WORDS)
    other = explainer.explain((SOURCE, TARGET), edges="gradient", method="rollout", target=index)
    assert other.target == WORDS[index]
    assert np.abs(other.scores - predicted.scores).max() > 1e-3


def test_contributions_of_source_and_target_add_up_and_are_conserved(explainer):
    explained = explainer.explain((SOURCE, TARGET), contrast=4, position=1)
    assert explained.method == "contribution"
    assert explained.tokens == explained.trace.tokens
    size = np.abs(explained.scores).sum()
    assert abs(explained.scores.sum() + explained.bias - explained.value) < 1e-4 * size
    carried, (below, source) = explained.trace.carried, explained.trace.encoder
    np.testing.assert_allclose(carried[0].sum(axis=0), explained.scores, atol=1e-6)
    # Each step gives on what it got, but for biases; and the target is not read by the source.
    for lower, upper in zip(carried[below::2], carried[below + 1 :: 2], strict=True):
        np.testing.assert_allclose(lower.sum(axis=1), upper.sum(axis=0), atol=1e-6)
    assert not carried[:, :source, source:].any()
    # After the last layer nothing of the source is left to be read.
    np.testing.assert_allclose(carried[-1][:source], 0.0, atol=1e-6)


def test_contributions_of_many_pairs_equal_themselves_alone(explainer):
    pairs = [(SOURCE, TARGET), ("the cat", "eine"), ("old", "")]
    for pair, together in zip(pairs, explainer.explain(pairs), strict=True):
        alone = explainer.explain(pair)
        np.testing.assert_allclose(together.scores, alone.scores, atol=1e-5)
        assert together.value == pytest.approx(alone.value, abs=1e-5)


@pytest.mark.parametrize("method", ["rollout", "flow"])
def test_the_receptive_field_keeps_measured_shares(explainer, method):
    graph = captured_graph(explainer, "value_norm")
    below = graph.layers - 6
    causal = np.tri(3) / np.array([[1], [2], [3]])
    uniform = encoder_decoder_graph(
        [np.full((5, 5), 0.2)] * below,
        [causal] * 3,
        [np.full((3, 5), 0.2)] * 3,
        residual=graph.residual,
    )
    function = {"rollout": attnflow.attention_rollout, "flow": attnflow.attention_flow}[method]
    ratio = function(graph)[-1, 7] / function(uniform)[-1, 7]
    explanation = explainer.explain(
        (SOURCE, TARGET), edges="value_norm", method=method, receptive_field=True
    )
    np.testing.assert_allclose(explanation.scores, ratio / ratio.sum(), atol=1e-5)


@pytest.mark.parametrize("edges", ["gradient", "effective", "value_norm"])
def test_tokens_written_are_explained_by_other_edges_too(explainer, edges):
    steps = explainer.generate(SOURCE, max_new_tokens=3, method="rollout", edges=edges)
    said = []
    for step in steps:
        alone = explainer.explain((SOURCE, " ".join(said)), method="rollout", edges=edges)
        np.testing.assert_allclose(step.layer_scores, alone.layer_scores, atol=1e-4)
        said.append(step.target)


# ---- Many pairs, sinks and limits ----------------------------------------------------------------


@pytest.mark.parametrize("edges", ["attention", "gradient", "effective", "value_norm"])
def test_many_pairs_run_together_and_equal_themselves_alone(explainer, edges):
    inputs = [
        ("the house is old", "das haus ist"),
        "a cat",
        ("the house", "das"),
        ("a cat", "eine katze eine katze eine"),
        "the house is old the house is old",
    ]
    passes = []
    handle = explainer.model.register_forward_pre_hook(lambda *_: passes.append(1))
    try:
        several = explainer.explain(inputs, method="rollout", edges=edges)
    finally:
        handle.remove()
    assert len(passes) == 1
    for item, together in zip(inputs, several, strict=True):
        alone = explainer.explain(item, method="rollout", edges=edges)
        assert together.tokens == alone.tokens
        assert together.prediction.label == alone.prediction.label
        np.testing.assert_allclose(together.layer_scores, alone.layer_scores, atol=1e-5)


def test_pairs_of_similar_length_run_together_the_short_ones_first(explainer, monkeypatch):
    monkeypatch.setattr("attnflow.models.adapter.BATCH_POSITIONS", 20)
    sizes = []
    handle = explainer.model.register_forward_pre_hook(
        lambda _, __, options: sizes.append(tuple(options["input_ids"].shape)), with_kwargs=True
    )
    inputs = ["the house is old", "a cat", "a a cat", "the old cat is old", "cat"]
    try:
        order = [index for index, _ in explainer.explain_each(inputs, method="rollout")]
    finally:
        handle.remove()
    assert order == [4, 1, 2, 0, 3]
    assert sizes == [(4, 5), (1, 6)] or sizes == [(3, 4), (2, 6)]


def test_the_sinks_of_both_sides_are_left_out_and_named(explainer):
    plain = explainer.explain((SOURCE, TARGET), method="rollout")
    outputs = own_outputs(explainer, SOURCE, TARGET)
    encoder, decoder, cross = (
        np.array([layer[0].mean(0).numpy() for layer in kind])
        for kind in (
            outputs.encoder_attentions,
            outputs.decoder_attentions,
            outputs.cross_attentions,
        )
    )
    to_source = (encoder * (1 - np.eye(5))).sum((0, 1)) + cross.sum((0, 1))
    to_target = (decoder * (1 - np.eye(3))).sum((0, 1))
    sinks = [int(to_source.argmax()), 5 + int(to_target.argmax())]
    left = explainer.explain((SOURCE, TARGET), method="rollout", drop_sink=True)
    kept = [i for i in range(8) if i not in sinks]
    assert left.tokens == tuple(plain.tokens[i] for i in kept)
    np.testing.assert_array_equal(left.layer_scores, plain.layer_scores[:, kept])
    assert left.options["drop_sink"] is True
    for sink in sinks:
        assert f"token {sink}, {plain.tokens[sink]!r}" in left.notes[-1]
    first = explainer.explain(SOURCE, method="rollout", drop_sink=True)
    assert first.tokens[-1] == "<pad>"  # nothing else of the target is there to be attended to
    assert len(first.tokens) == 5
    relative = explainer.explain(
        (SOURCE, TARGET), method="rollout", drop_sink=True, receptive_field=True
    )
    assert relative.scores.sum() == pytest.approx(1)


def test_a_sink_with_most_of_the_scores_is_named():
    model = bart().eval()
    with torch.no_grad():
        # The end of the source stands out, and every query asks for what stands out.
        model.get_input_embeddings().weight[1, 0] = 50.0
        for layer in [*model.get_encoder().layers, *model.get_decoder().layers]:
            attention = getattr(layer, "encoder_attn", layer.self_attn)
            for projection in (attention.q_proj, attention.k_proj):
                projection.weight.zero_()
                projection.bias.zero_()
            attention.q_proj.bias[[0, 8]] = 40.0
            attention.k_proj.weight[[0, 8], 0] = 1.0
    explainer = Explainer(model, tokenizer())
    explanation = explainer.explain(("the house", "das"), method="rollout")
    assert explanation.scores[2] > 0.5 * explanation.scores.sum()
    assert explanation.notes[0].startswith("Token 2, '</s>'")
    left = explainer.explain(("the house", "das"), method="rollout", drop_sink=True)
    assert left.tokens == ("the", "house", "das")


def test_a_target_longer_than_the_model_takes_is_an_error():
    explainer = Explainer(bart().eval(), tokenizer())
    with pytest.raises(attnflow.TextError, match=r"target.*41 tokens.*32"):
        explainer.explain(("a cat", "eine " * 40))
    with pytest.raises(attnflow.TextError, match=r"1 token.*40"):
        explainer.generate("a cat", max_new_tokens=40)


def test_a_source_longer_than_the_model_takes_is_an_error_if_only_the_model_says_so():
    unlimited = tokenizer()
    unlimited.model_max_length = 10**30
    explainer = Explainer(bart().eval(), unlimited)
    with pytest.raises(attnflow.TextError, match=r"41 tokens.*32"):
        explainer.explain("the " * 40)
    assert len(explainer.explain("the " * 40, method="raw", truncate=True).tokens) == 33


def test_a_model_in_train_mode_writes_without_dropout_and_is_left_in_it(explainer):
    expected = [step.target for step in explainer.generate(SOURCE, max_new_tokens=6, method="raw")]
    model = copy.deepcopy(explainer.model)
    for module in model.modules():
        if isinstance(module, torch.nn.Dropout):
            module.p = 0.9
        elif hasattr(module, "dropout") and isinstance(module.dropout, float):
            module.dropout = 0.9
    training = Explainer(model.train(), tokenizer())
    written = [step.target for step in training.generate(SOURCE, max_new_tokens=6, method="raw")]
    assert written == expected
    assert all(module.training for module in model.modules())


@pytest.mark.parametrize(
    ("inputs", "options", "error", "message"),
    [
        ("", {}, attnflow.TextError, "source.*empty"),
        ([], {}, attnflow.TextError, "inputs.*empty"),
        (("a", 1), {}, attnflow.TextError, "tuple"),
        ("the " * 20, {}, attnflow.TextError, "21 tokens.*16"),
        ("a cat", {"layer": 4}, attnflow.OptionError, "layer.*4"),
        ("a cat", {"position": 1}, attnflow.OptionError, "position.*1"),
        ("a cat", {"position": "cls"}, attnflow.OptionError, "position.*'cls'.*auto.*last"),
        (
            "a cat",
            {"edges": "gradients"},
            attnflow.OptionError,
            "edges.*'gradients'.*attention.*gradient.*effective",
        ),
        ("a cat", {"drop_sink": "yes"}, attnflow.OptionError, "drop_sink.*'yes'.*True"),
        (
            "a cat",
            {"edges": "value_norm", "residual": 0.2},
            attnflow.OptionError,
            r"residual.*0\.2.*value_norm",
        ),
        (
            "a cat",
            {"edges": "gradient", "heads": 1},
            attnflow.OptionError,
            "heads.*1.*gradient|gradient.*heads",
        ),
        ("a cat", {"target": 15}, attnflow.OptionError, "target.*15"),
        ("a cat", {"target": "das haus"}, attnflow.OptionError, "'das haus'.*2 tokens"),
        ("a cat", {"method": "flows"}, attnflow.OptionError, "method.*'flows'.*raw.*rollout.*flow"),
    ],
)
def test_what_cannot_be_explained_says_why(explainer, inputs, options, error, message):
    with pytest.raises(error, match=message):
        explainer.explain(inputs, **options)


def test_a_model_that_writes_no_text_is_refused():
    config = bart().config
    with pytest.raises(attnflow.ModelError, match="head"):
        Explainer(transformers.BartModel(config), tokenizer())
    images = transformers.VisionEncoderDecoderConfig(
        encoder={
            "model_type": "vit",
            "hidden_size": 8,
            "num_hidden_layers": 1,
            "num_attention_heads": 2,
        },
        decoder={"model_type": "gpt2", "n_embd": 8, "n_layer": 1, "n_head": 2, "vocab_size": 9},
    )
    assert images.is_encoder_decoder
    with pytest.raises(attnflow.ModelError, match="pixel_values"):
        Explainer(transformers.VisionEncoderDecoderModel(images), tokenizer())


def test_an_encoder_decoder_is_loaded_for_what_it_can_do(tmp_path):
    model = transformers.BartForSequenceClassification(bart().config)
    model.save_pretrained(tmp_path)
    tokenizer().save_pretrained(tmp_path)
    with pytest.raises(attnflow.ModelError, match="BartForSequenceClassification"):
        Explainer.from_pretrained(tmp_path)
    with pytest.raises(attnflow.OptionError, match=r"task.*'causal-lm'.*encoder-decoder"):
        Explainer.from_pretrained(tmp_path, task="causal-lm")


def test_a_saved_model_is_loaded_and_explained_in_a_shell(tmp_path, capsys):
    model = t5().eval()
    model.save_pretrained(tmp_path)
    tokenizer().save_pretrained(tmp_path)
    assert Explainer.from_pretrained(tmp_path).task == "seq2seq-lm"
    arguments = ["explain", "--model", str(tmp_path), "--method", "rollout", "--json", "a cat"]
    assert main(arguments) == 0
    assert json.loads(capsys.readouterr().out)["tokens"] == ["a", "cat", "</s>", "<pad>"]
