"""Encoder-decoders, explained by their source and by their target so far, on tiny models."""

import copy
import json

import numpy as np
import pytest
import torch
import transformers
from tokenizers import Tokenizer, models, pre_tokenizers, processors

import attnflow
from attnflow.cli import main
from attnflow.explain import Explainer
from attnflow.graph import encoder_decoder_graph

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
    explanation = explainer.explain(("the house", "das haus"), method="rollout", words=True)
    assert explanation.text == "the house → das haus"
    shown = [explanation.text[slice(*span)] for span in explanation.spans if span is not None]
    assert [word.strip() for word in shown] == ["the", "house", "das", "haus"]
    plain = explainer.explain(("the house", "das haus"), method="rollout", special_tokens=False)
    assert plain.tokens == ("the", "house", "das", "haus")


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
    assert plain.scores.max() > 2 * plain.scores.min()


def test_many_pairs_are_explained_in_their_order(explainer):
    inputs = ["a cat", ("the house", "das"), "the house is old"]
    for item, together in zip(inputs, explainer.explain(inputs, method="rollout"), strict=True):
        alone = explainer.explain(item, method="rollout")
        assert together.tokens == alone.tokens
        np.testing.assert_array_equal(together.scores, alone.scores)


@pytest.mark.parametrize(
    ("inputs", "options", "error", "message"),
    [
        ("", {}, attnflow.TextError, "the source text is empty"),
        ([], {}, attnflow.TextError, "inputs is an empty list"),
        (("a", 1), {}, attnflow.TextError, "expected a source text, or a tuple of a source"),
        ("the " * 20, {}, attnflow.TextError, "has 21 tokens and the model takes 16"),
        ("a cat", {"layer": 4}, attnflow.OptionError, "layer is 4, but there are 3 layers"),
        ("a cat", {"position": 1}, attnflow.OptionError, "there are 1 target positions"),
        ("a cat", {"position": "cls"}, attnflow.OptionError, "expected an index, auto or last"),
        ("a cat", {"edges": "gradient"}, attnflow.OptionError, "for an encoder-decoder"),
        ("a cat", {"drop_sink": True}, attnflow.OptionError, "one stack of layers"),
        ("a cat", {"target": "das haus"}, attnflow.OptionError, "which is 2 tokens"),
        ("a cat", {"method": "flows"}, attnflow.OptionError, "expected raw, rollout, flow"),
    ],
)
def test_what_cannot_be_explained_says_why(explainer, inputs, options, error, message):
    with pytest.raises(error, match=message):
        explainer.explain(inputs, **options)


def test_a_model_that_writes_no_text_is_refused():
    config = bart().config
    with pytest.raises(attnflow.ModelError, match="without a head that writes text"):
        Explainer(transformers.BartModel(config), tokenizer())
    sound = transformers.WhisperConfig(
        vocab_size=20,
        d_model=16,
        encoder_layers=1,
        decoder_layers=1,
        encoder_attention_heads=2,
        decoder_attention_heads=2,
        encoder_ffn_dim=16,
        decoder_ffn_dim=16,
        pad_token_id=0,
        bos_token_id=0,
        eos_token_id=1,
        decoder_start_token_id=2,
    )
    with pytest.raises(attnflow.ModelError, match="reads input_features, not text"):
        Explainer(transformers.WhisperForConditionalGeneration(sound), tokenizer())


def test_a_saved_model_is_loaded_and_explained_in_a_shell(tmp_path, capsys):
    model = t5().eval()
    model.save_pretrained(tmp_path)
    tokenizer().save_pretrained(tmp_path)
    assert Explainer.from_pretrained(tmp_path).task == "seq2seq-lm"
    arguments = ["explain", "--model", str(tmp_path), "--method", "rollout", "--json", "a cat"]
    assert main(arguments) == 0
    assert json.loads(capsys.readouterr().out)["tokens"] == ["a", "cat", "</s>", "<pad>"]
