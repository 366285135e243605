"""Explanations of real models."""

import numpy as np
import pytest
import torch

import attnflow


@pytest.fixture(scope="module")
def sentence_encoder(minilm):
    return attnflow.Explainer(minilm.model, minilm.tokenizer)


@pytest.fixture(scope="module")
def language_model(smollm):
    return attnflow.Explainer(smollm.model, smollm.tokenizer)


@pytest.fixture(scope="module")
def reaction_model(albert):
    return attnflow.Explainer(albert.model, albert.tokenizer)


def test_a_sentence_encoder_is_explained_by_the_mean_of_its_tokens_word_by_word(sentence_encoder):
    text = "The keys to the cabinet are on the table."
    explanation = sentence_encoder.explain(
        text, method="rollout", units="words", special_tokens=False
    )
    assert explanation.tokens == (*text.removesuffix(".").split(), ".")
    model, tokenizer = sentence_encoder.model, sentence_encoder.tokenizer
    model.set_attn_implementation("eager")
    try:
        with torch.no_grad():
            inputs = tokenizer(text, return_tensors="pt")
            attentions = model(**inputs, output_attentions=True).attentions
    finally:
        model.set_attn_implementation("sdpa")
    assert len(explanation.reads) == len(inputs["input_ids"][0])
    expected = attnflow.attention_rollout(attentions)[-1].mean(axis=0)[1:-1]
    np.testing.assert_allclose(explanation.scores, expected, atol=1e-5)


def test_the_decoders_explanation_reads_the_position_that_predicts_the_verb(language_model):
    plural = language_model.explain("The keys to the cabinet", method="rollout", target=" are")
    singular = language_model.explain("The key to the cabinets", method="rollout", target=" is")
    assert plural.position == singular.position == 4
    # The position explained is the one whose logits tell " are" from " is".
    model, tokenizer = language_model.model, language_model.tokenizer
    are, is_ = (tokenizer(word)["input_ids"][0] for word in (" are", " is"))
    margins = []
    for explanation in (plural, singular):
        with torch.no_grad():
            logits = model(**tokenizer(explanation.text, return_tensors="pt")).logits[0]
        margins.append(float(logits[explanation.position, are] - logits[explanation.position, is_]))
        top = logits[explanation.position].softmax(0)
        assert explanation.prediction.index == int(top.argmax())
        assert explanation.prediction.probability == pytest.approx(float(top.max()), abs=1e-4)
    assert margins[0] > 2
    assert margins[1] < -1
    assert (plural.target, singular.target) == (" are", " is")


def test_generated_tokens_are_explained_in_one_pass(language_model):
    steps = language_model.generate("The capital of France is", max_new_tokens=3, method="rollout")
    assert len(steps) == 3
    for i, step in enumerate(steps):
        assert step.position == 4 + i
        assert step.target == step.prediction.label
        assert step.scores.sum() == pytest.approx(1)
    again = language_model.explain("The capital of France is", method="rollout")
    np.testing.assert_allclose(steps[0].layer_scores, again.layer_scores, atol=1e-4)


def test_an_answer_to_a_chat_comes_from_the_words_of_the_question(language_model):
    messages = [
        {"role": "system", "content": "Answer in one sentence."},
        {"role": "user", "content": "What is the capital of France?"},
    ]
    generation = language_model.generate(messages, max_new_tokens=12)
    assert generation.ended
    assert "Paris" in generation.text
    whole = generation.whole
    text = whole.text
    assert [(name, text[start:end]) for name, start, end in whole.segments] == [
        ("system", messages[0]["content"]),
        ("user", messages[1]["content"]),
        ("answer", generation.text),
    ]
    assert text.startswith("<|im_start|>system\nAnswer in one sentence.<|im_end|>\n")
    # One backward pass against a pass for each token, as far as float32 goes.
    np.testing.assert_allclose(
        np.nansum(generation.matrix, axis=0), whole.scores, atol=1e-3 * abs(whole.scores).max()
    )
    assert whole.scores.sum() + whole.bias == pytest.approx(whole.value, rel=1e-3)
    best = [token for token, _ in generation.top(3)]
    assert {"capital", "France"} <= set(best)


def test_a_seed_repeats_what_is_drawn(language_model):
    options = {"max_new_tokens": 6, "do_sample": True, "temperature": 1.5, "method": "raw"}
    one, same, other = (
        language_model.generate("Once upon a time", seed=seed, **options).text for seed in (1, 1, 2)
    )
    assert one == same != other


def test_texts_of_the_decoder_are_explained_together_as_alone(language_model):
    texts = ["The keys to the cabinet", "Paris is", "It was a film that no one will forget"]
    for text, together in zip(texts, language_model.explain(texts, method="rollout"), strict=True):
        alone = language_model.explain(text, method="rollout")
        np.testing.assert_allclose(together.scores, alone.scores, atol=1e-4)


def test_emoji_and_chinese_keep_their_characters_whole(language_model):
    text = "naïve 👩‍👩‍👧 说 中文 café"
    words = language_model.explain(text, method="rollout", units="words")
    assert "👩‍👩‍👧" in words.tokens
    assert "naïve" in words.tokens
    assert {"说"} <= set(words.tokens)
    tokens = language_model.explain(text, method="rollout")
    assert words.scores.sum() == pytest.approx(tokens.scores.sum())


def test_a_masked_model_is_explained_at_its_mask(reaction_model):
    mask = reaction_model.tokenizer.mask_token
    explanation = reaction_model.explain(f"CC{mask}C>>CCO", method="flow", layer=3)
    assert explanation.tokens[explanation.position] == mask
    assert 0 < explanation.prediction.probability <= 1


@pytest.mark.exhaustive
def test_a_text_of_2048_tokens_goes_through_the_decoder(language_model):
    tokenizer = language_model.tokenizer
    ids = tokenizer("The keys to the cabinet are on the table. " * 300)["input_ids"][:2048]
    explanation = language_model.explain(tokenizer.decode(ids), method="rollout")
    assert len(explanation.tokens) == 2048
    assert explanation.scores.sum() == pytest.approx(1)


def test_contributions_of_the_decoder_add_up_and_are_conserved(language_model):
    explained = language_model.explain(
        "The keys to the cabinet", target=" are", contrast=" is", check=True
    )
    assert (explained.method, explained.target, explained.contrast) == (
        "contribution",
        " are",
        " is",
    )
    size = np.abs(explained.scores).sum()
    assert explained.bias == 0.0  # there are none in the model
    assert abs(explained.scores.sum() - explained.value) < 1e-4 * size
    assert explained.scores[1] > max(explained.scores[2:])  # "keys" decides, but for the sink
    carried = explained.trace.carried
    np.testing.assert_allclose(carried[1:].sum(axis=1), carried[:-1].sum(axis=2), atol=1e-4)
    np.testing.assert_allclose(carried.sum(axis=(1, 2)), explained.value, atol=1e-3)
    assert explained.check.names == ("The", "keys", "to", "the", "cabinet")
    assert explained.check.replacement == "a space"


def test_words_of_several_tokens_are_compared_where_they_differ(language_model):
    explained = language_model.explain(
        "A niece of most senators", target=" unbelievable", contrast=" unbelievers"
    )
    assert explained.text.endswith("unbelie")
    assert (explained.target, explained.contrast) == ("vable", "vers")
