"""attnflow's methods in inseq: what inseq shows of them is what attnflow explains."""

import numpy as np
import pytest
import torch
import transformers
from tokenizers import Tokenizer, models, pre_tokenizers

import attnflow
from tests.support.pair import build_pair
from tests.support.tiny import sharpen

TEXT = "the keys to the cabinet are on a table"
PROMPT = "the keys to the cabinet"
METHODS = ["attention_rollout", "attention_flow", "contribution"]


@pytest.fixture(scope="module")
def inseq():
    import inseq

    import attnflow.integrations.inseq  # noqa: F401

    return inseq


def llama():
    words = ["<pad>", "</s>", *dict.fromkeys(TEXT.split()), "is", "key"]
    inner = Tokenizer(models.WordLevel({word: i for i, word in enumerate(words)}, "<pad>"))
    inner.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    tokenizer = transformers.PreTrainedTokenizerFast(
        tokenizer_object=inner,
        unk_token="<pad>",
        pad_token="<pad>",
        eos_token="</s>",
        padding_side="left",
    )
    config = transformers.LlamaConfig(
        vocab_size=len(words),
        hidden_size=16,
        intermediate_size=16,
        num_hidden_layers=3,
        num_attention_heads=2,
        max_position_embeddings=32,
        pad_token_id=0,
        bos_token_id=1,
        eos_token_id=1,
    )
    return sharpen(transformers.LlamaForCausalLM(config)), tokenizer


@pytest.fixture(scope="module")
def loaded(inseq):
    """A decoder as inseq and as attnflow load it, by the method of inseq."""
    model, tokenizer = llama()
    explainer = attnflow.Explainer(model, tokenizer)

    def load(method):
        return inseq.load_model(model, method, tokenizer=tokenizer), explainer

    return load


def attribute(model, *texts, **options):
    return model.attribute(*texts, show_progress=False, pretty_progress=False, **options)


def expected(explainer, method, ids, **options):
    """The scores of the token after some others."""
    words = explainer.tokenizer.decode(ids).split()
    if method == "contribution":
        options["target"] = words[-1]
    method = method.removeprefix("attention_")
    text = " ".join(words[:-1])
    return explainer.explain(text, method=method, position="last", **options)


def test_importing_the_module_adds_the_methods_and_no_other(inseq):
    found = set(inseq.list_feature_attribution_methods())
    assert set(METHODS) <= found
    assert {"attention", "saliency", "dummy"} <= found
    assert not [name for name in found if "attnflow" in name]


@pytest.mark.parametrize("method", METHODS)
def test_every_step_has_the_scores_of_the_explainer(loaded, method):
    model, explainer = loaded(method)
    [found] = attribute(model, PROMPT, TEXT).sequence_attributions
    ids = [token.id for token in found.target]
    first = len(PROMPT.split())
    scores = found.target_attributions.numpy()
    assert scores.shape == (len(ids), len(ids) - first)
    for step, place in enumerate(range(first, len(ids))):
        explanation = expected(explainer, method, ids[: place + 1])
        np.testing.assert_allclose(scores[:place, step], explanation.scores, atol=1e-6)
        assert np.isnan(scores[place:, step]).all()
        if method == "contribution":
            value, bias = (
                float(found.step_scores[f"contribution_{name}"][step]) for name in ("value", "bias")
            )
            assert value == pytest.approx(explanation.value, abs=1e-5)
            assert scores[:place, step].sum() + bias == pytest.approx(value, abs=1e-4)


@pytest.mark.parametrize(
    ("method", "options"),
    [
        ("attention_rollout", {"layer": 2, "heads": 1, "residual": 0.25}),
        ("attention_rollout", {"edges": "value_norm"}),
        ("attention_flow", {"layer": 1, "receptive_field": False, "heads": "max"}),
        ("contribution", {"contrast": "is"}),
    ],
)
def test_options_are_those_of_explain(loaded, method, options):
    model, explainer = loaded(method)
    [found] = attribute(model, PROMPT, TEXT, **options).sequence_attributions
    ids = [token.id for token in found.target]
    explanation = expected(explainer, method, ids, **options)
    scores = found.target_attributions.numpy()
    np.testing.assert_allclose(scores[:-1, -1], explanation.scores, atol=1e-6)
    [plain] = attribute(model, PROMPT, TEXT).sequence_attributions
    assert abs(plain.target_attributions.numpy()[:-1, -1] - scores[:-1, -1]).max() > 1e-4


@pytest.mark.parametrize("method", METHODS)
def test_texts_of_a_batch_are_scored_as_if_alone(loaded, method):
    model, _ = loaded(method)
    written = {"max_new_tokens": 3, "suppress_tokens": [0, 1]}
    options = {"generation_args": written}
    prompts = [PROMPT, "the key is"]
    together = attribute(model, prompts, **options).sequence_attributions
    for prompt, found in zip(prompts, together, strict=True):
        [alone] = attribute(model, prompt, **options).sequence_attributions
        assert [token.id for token in found.target] == [token.id for token in alone.target]
        # In a batch, inseq begins where the shortest prompt ends.
        count = alone.target_attributions.shape[1]
        np.testing.assert_allclose(
            found.target_attributions[:, -count:], alone.target_attributions, rtol=0, atol=1e-5
        )


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("name", ["T5", "BART"])
def test_an_encoder_decoder_has_scores_of_its_source(inseq, method, name):
    explainer = build_pair(name)
    model = inseq.load_model(explainer.model, method, tokenizer=explainer.tokenizer)
    source, target = "the keys to the cabinet", "a film that no one"
    [found] = attribute(model, source, target, attribute_target=True).sequence_attributions
    [without] = attribute(model, source, target).sequence_attributions
    assert without.target_attributions is None
    words = target.split()
    options = {"target": words[3]} if method == "contribution" else {}
    # The position that writes the fourth word has read three of them and the start.
    explanation = explainer.explain(
        (source, " ".join(words[:3])),
        method=method.removeprefix("attention_"),
        position=3,
        **options,
    )
    count = len(source.split()) + 1
    sources = found.source_attributions.numpy()[:, 3]
    np.testing.assert_array_equal(sources, without.source_attributions.numpy()[:, 3])
    np.testing.assert_allclose(sources, explanation.scores[:count], atol=1e-6)
    # The start of the target, and what was written.
    targets = found.target_attributions.numpy()[:4, 3]
    np.testing.assert_allclose(targets, explanation.scores[count:], atol=1e-6)


def test_a_padded_source_is_scored_as_if_alone(inseq):
    explainer = build_pair("T5")
    for method in METHODS:
        model = inseq.load_model(explainer.model, method, tokenizer=explainer.tokenizer)
        texts = ["the key", "the keys to the cabinet"], ["a film", "no one will"]
        together = attribute(model, *texts, attribute_target=True).sequence_attributions
        for source, target, found in zip(*texts, together, strict=True):
            [alone] = attribute(model, source, target, attribute_target=True).sequence_attributions
            for name in ("source_attributions", "target_attributions"):
                np.testing.assert_allclose(
                    getattr(found, name), getattr(alone, name), rtol=0, atol=1e-6
                )


def test_the_result_is_shown_and_saved_as_any_of_inseq(loaded, tmp_path, inseq):
    model, _ = loaded("contribution")
    out = attribute(model, PROMPT, TEXT, step_scores=["probability"])
    html = out.show(display=False, return_html=True)
    assert "contribution_bias" in html
    assert "cabinet" in html
    out.save(str(tmp_path / "found.json"))
    again = inseq.FeatureAttributionOutput.load(str(tmp_path / "found.json"))
    torch.testing.assert_close(
        again[0].target_attributions, out[0].target_attributions, equal_nan=True
    )


@pytest.mark.parametrize(
    ("method", "options", "message"),
    [
        ("attention_rollout", {"layer": 4}, "layer is 4.*3 layers"),
        ("attention_flow", {"residual": 2}, "residual is 2"),
        ("attention_rollout", {"heads": 5}, "heads is 5.*2 heads"),
        ("attention_flow", {"edges": "none"}, "edges is 'none'"),
        ("contribution", {"contrast": "nowhere to be"}, "contrast is 'nowhere to be'"),
        ("contribution", {"attributed_fn": "entropy"}, "attributed_fn is 'entropy.*contrast"),
    ],
)
def test_what_cannot_be_attributed_is_refused(loaded, method, options, message):
    model, _ = loaded(method)
    with pytest.raises(attnflow.OptionError, match=message):
        attribute(model, PROMPT, TEXT, **options)


def test_the_logit_may_be_asked_for_by_its_name(loaded):
    model, _ = loaded("contribution")
    [named] = attribute(model, PROMPT, TEXT, attributed_fn="logit").sequence_attributions
    [plain] = attribute(model, PROMPT, TEXT).sequence_attributions
    torch.testing.assert_close(named.target_attributions, plain.target_attributions, equal_nan=True)


def test_without_inseq_the_extra_is_named(monkeypatch):
    import importlib
    import sys

    for name in [name for name in sys.modules if name.split(".")[0] == "inseq"]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "inseq", None)
    monkeypatch.delitem(sys.modules, "attnflow.integrations.inseq", raising=False)
    with pytest.raises(attnflow.MissingExtraError, match=r'pip install "attnflow\[inseq\]"'):
        importlib.import_module("attnflow.integrations.inseq")
