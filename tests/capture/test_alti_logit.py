"""ALTI-Logit: against a plain loop over layers and positions, and what must add up."""

import numpy as np
import pytest
import torch
import transformers

from attnflow.capture import alti_logit
from attnflow.errors import AttentionError, OptionError
from tests.edges.test_alti import (
    contributions,
    eager_run,
    gpt2_vectors,
    llama_vectors,
    model_named,
    sandwich,
)
from tests.support.architectures import CAUSAL, SMALL, build, state_of, texts

# The vectors of a layer, the modules whose output is added after it, the norm and its name for eps.
MODELS = {
    "GPT-2": (gpt2_vectors, lambda model: model.transformer.ln_f),
    "Llama": (llama_vectors, lambda model: model.model.norm),
}


def normalised(model, name, vector, stream):
    """A vector through the final norm, with the denominator of the whole stream."""
    norm = MODELS[name][1](model)
    if name == "Llama":
        return vector / (stream.pow(2).mean() + norm.variance_epsilon).sqrt() * norm.weight
    spread = (stream.var(unbiased=False) + norm.eps).sqrt()
    return (vector - vector.mean()) / spread * norm.weight


@pytest.mark.parametrize("contrast", [9, None])
@pytest.mark.parametrize("name", MODELS)
@torch.no_grad()
def test_scores_are_those_of_a_loop(name, contrast):
    model, inputs, place, target = model_named(name).double(), texts(7), 5, 7
    found = alti_logit(model, inputs, [place], [target], [contrast])
    outputs = eager_run(model, **inputs)
    vectors_of, norm = MODELS[name]
    streams = []
    handle = norm(model).register_forward_pre_hook(lambda _, given: streams.append(given[0][0]))
    model(**inputs)
    handle.remove()
    stream = streams[0][place]
    weight = model.lm_head.weight
    towards = weight[target] - (weight.mean(0) if contrast is None else weight[contrast])
    expected, rollout = np.zeros(7), np.eye(7)
    for layer in range(2):
        alone = vectors_of(model, outputs, layer, residual=False)
        for j in range(7):
            gain = float(normalised(model, name, alone[place, j], stream) @ towards)
            expected += gain * rollout[j]
        rollout = contributions(vectors_of(model, outputs, layer).numpy()) @ rollout
    np.testing.assert_allclose(found.scores[0].numpy(), expected, atol=1e-6)
    logits = outputs.logits[0, place]
    value = logits[target] - (logits.mean() if contrast is None else logits[contrast])
    assert float(found.values[0]) == pytest.approx(float(value), abs=1e-9)
    first = outputs.hidden_states[0][0, place]
    embedding = float(normalised(model, name, first, stream) @ towards)
    assert float(found.embeddings[0]) == pytest.approx(embedding, abs=1e-6)
    rest = float(found.feed_forward[0] + found.biases[0])
    assert expected.sum() + embedding + rest == pytest.approx(float(value), abs=1e-6)
    # Only what precedes the position matters, and not all of it equally.
    assert not expected[6:].any()
    assert np.ptp(expected[:6]) > 0.01


@torch.no_grad()
def test_feed_forward_layers_are_what_they_add_at_the_position():
    model, inputs = model_named("Llama").double(), texts(7)
    found = alti_logit(model, inputs, [-1], [7], [9])
    added, streams = [], []
    handles = [
        layer.mlp.register_forward_hook(lambda _, __, out: added.append(out[0, -1]))
        for layer in model.model.layers
    ]
    handles.append(
        model.model.norm.register_forward_pre_hook(lambda _, given: streams.append(given[0][0, -1]))
    )
    model(**inputs)
    for handle in handles:
        handle.remove()
    towards = model.lm_head.weight[7] - model.lm_head.weight[9]
    gains = [float(normalised(model, "Llama", one, streams[0]) @ towards) for one in added]
    assert float(found.feed_forward[0]) == pytest.approx(sum(gains), abs=1e-6)
    # Llama has no biases.
    assert float(found.biases[0]) == pytest.approx(0, abs=1e-9)


@pytest.mark.parametrize("name", [*CAUSAL, "Gemma3Text", "Olmo2"])
def test_parts_add_up_and_batches_with_padding_equal_one_by_one(name):
    model, inputs = model_named(name), texts(7, 4)
    before = state_of(model)
    found = alti_logit(model, inputs, [6, 2], [None, 5], [7, None])
    assert state_of(model) == before
    assert float(found.errors.max()) < 1e-5 < found.limit
    with torch.no_grad():
        logits = model(**inputs).logits
    torch.testing.assert_close(found.logits, logits[[0, 1], [6, 2]], atol=1e-4, rtol=0)
    assert found.targets == [int(logits[0, 6].argmax()), 5]
    alone = alti_logit(model, {"input_ids": inputs["input_ids"][1:, :4]}, [2], [5], [None])
    torch.testing.assert_close(found.scores[1, :4], alone.scores[0], atol=1e-4, rtol=0)
    torch.testing.assert_close(found.values[1:], alone.values, atol=1e-4, rtol=0)
    assert not found.scores[1, 3:].any()


def test_bfloat16_adds_up_but_for_rounding():
    found = alti_logit(model_named("Llama").bfloat16(), texts(7), [6], [5], [7])
    assert 0 < float(found.errors[0]) < found.limit < 0.1


def test_a_token_minus_another_is_minus_the_other_way_round():
    model, inputs = model_named("GPT-2"), texts(7)
    one = alti_logit(model, inputs, [6], [5], [7])
    other = alti_logit(model, inputs, [6], [7], [5])
    torch.testing.assert_close(one.scores, -other.scores)
    torch.testing.assert_close(one.values, -other.values)


def not_a_sum():
    """A decoder that halves what its layers return."""
    model = build("Llama")
    for layer in model.model.layers:
        layer.register_forward_hook(lambda _, __, output: output * 0.5)
    return model


@pytest.mark.parametrize(
    ("make", "reason"),
    [
        (lambda: build("BERT"), "linear head"),
        (lambda: build("RoBERTa"), "layer 1 normalises"),
        (lambda: build("MPNet"), "cannot be captured"),
        (lambda: build("ModernBERT"), "layer 3"),
        (lambda: sandwich("Gemma2"), "scaled or capped"),
        (not_a_sum, "layer 1"),
    ],
)
def test_other_models_are_refused_with_the_reason(make, reason):
    with pytest.raises(AttentionError, match=f"ALTI-Logit.*{reason}"):
        alti_logit(make(), texts(7), [6], [1], [2])


def test_an_encoder_decoder_is_refused():
    config = transformers.BartConfig(
        **{**SMALL, "d_model": 16, "encoder_layers": 1, "decoder_layers": 1},
        encoder_attention_heads=4,
        decoder_attention_heads=4,
        decoder_start_token_id=2,
    )
    model = transformers.BartForConditionalGeneration(config).eval()
    with pytest.raises(AttentionError, match="BartForConditionalGeneration"):
        alti_logit(model, texts(7), [6], [1], [2])


@pytest.mark.parametrize(
    ("given", "named"),
    [
        (([7], [1], [2]), "position.*7"),
        (([6], [50], [2]), "target.*50"),
        (([6], [1], [50]), "contrast.*50"),
        (([6, 5], [1], [2]), "positions.*2.*1"),
    ],
)
def test_what_there_is_not_is_an_error_that_names_it(given, named):
    with pytest.raises(OptionError, match=named):
        alti_logit(build("GPT-2"), texts(7), *given)
