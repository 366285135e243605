"""What real models depend on."""

import numpy as np
import pytest
import torch

import attnflow
from attnflow.evaluate.faithfulness import faithfulness
from attnflow.importance import blank_out, gradient_norm, gradient_x_input, importance

REACTION = "CC(=O)Cl.[MASK]CC>>CC(=O)NCC"


@pytest.fixture(scope="module")
def language_model(smollm):
    return attnflow.Explainer(smollm.model, smollm.tokenizer)


@pytest.fixture(scope="module")
def reaction_model(albert):
    return attnflow.Explainer(albert.model, albert.tokenizer)


def test_the_number_of_the_verb_comes_from_its_subject(language_model):
    found = gradient_x_input(language_model, "The keys to the cabinet", target=" are")
    assert len(found) == 5
    assert found.argmax() == 1


def test_a_token_that_separates_texts_hides_what_comes_before_it(language_model):
    # SmolLM2's UNK is one. Wherever it stands, little is left of the probability of the verb.
    assert language_model.tokenizer.unk_token == "<|endoftext|>"
    by_separator = blank_out(
        language_model, "The keys to the cabinet", target=" are", replacement="unk"
    )
    assert by_separator[1:].min() > 0.95 * by_separator.max()
    by_word = blank_out(
        language_model, "The keys to the cabinet", target=" are", replacement=" the"
    )
    assert by_word[3] == 0
    assert by_word[1] > by_word[2]


def test_blank_out_of_the_decoder_is_that_of_a_plain_loop(language_model):
    text = "The keys to the cabinet"
    model, tokenizer = language_model.model, language_model.tokenizer
    ids = tokenizer(text)["input_ids"]
    [space] = tokenizer(" ")["input_ids"]
    with torch.no_grad():
        whole = model(torch.tensor([ids])).logits[0, -1].double().softmax(-1)
        expected = []
        for token in range(len(ids)):
            changed = [*ids[:token], space, *ids[token + 1 :]]
            p = model(torch.tensor([changed])).logits[0, -1].double().softmax(-1)
            expected.append(abs(float(whole.max() - p[whole.argmax()])))
    np.testing.assert_allclose(blank_out(language_model, text), expected, atol=1e-4)


def test_blank_out_of_the_masked_model_is_that_of_a_plain_loop(reaction_model):
    model, tokenizer = reaction_model.model, reaction_model.tokenizer
    ids = tokenizer(REACTION)["input_ids"]
    place = ids.index(tokenizer.mask_token_id)
    with torch.no_grad():
        whole = model(torch.tensor([ids])).logits[0, place].double().softmax(-1)
        expected = []
        for token in range(len(ids)):
            changed = [*ids[:token], tokenizer.unk_token_id, *ids[token + 1 :]]
            p = model(torch.tensor([changed])).logits[0, place].double().softmax(-1)
            expected.append(abs(float(whole.max() - p[whole.argmax()])))
    np.testing.assert_allclose(blank_out(reaction_model, REACTION), expected, atol=1e-5)


@pytest.mark.parametrize("fixture", ["language_model", "reaction_model"])
def test_gradients_are_those_by_the_embeddings_that_a_model_takes_as_input(request, fixture):
    explainer = request.getfixturevalue(fixture)
    masked = explainer.task == "masked-lm"
    text = REACTION if masked else "The keys to the cabinet"
    ids = explainer.tokenizer(text)["input_ids"]
    place = ids.index(explainer.tokenizer.mask_token_id) if masked else len(ids) - 1
    embeddings = explainer.model.get_input_embeddings()(torch.tensor([ids])).detach()
    embeddings.requires_grad_()
    p = explainer.model(inputs_embeds=embeddings).logits[0, place].double().softmax(-1).max()
    (gradient,) = torch.autograd.grad(p, embeddings)
    norms = gradient[0].double().norm(dim=-1)
    np.testing.assert_allclose(gradient_norm(explainer, text), norms, rtol=1e-3, atol=1e-7)
    products = (gradient * embeddings.detach())[0].double().sum(-1).abs()
    found = gradient_x_input(explainer, text)
    np.testing.assert_allclose(found, products, rtol=1e-2, atol=1e-3 * float(products.max()))


@pytest.mark.parametrize("reference", ["blank_out", "gradient_norm"])
def test_texts_of_the_decoder_are_measured_together_as_alone(language_model, reference):
    texts = ["The keys to the cabinet", "Paris is", "The key to the cabinets", "It was"]
    together = importance(language_model, texts, reference=reference)
    for text, one in zip(texts, together, strict=True):
        alone = importance(language_model, text, reference=reference)
        np.testing.assert_allclose(one, alone, rtol=0.02, atol=1e-3 * alone.max())


def test_removing_what_matters_costs_more_than_removing_what_does_not(reaction_model):
    scores = blank_out(reaction_model, REACTION)
    right, wrong = faithfulness(reaction_model, [REACTION] * 2, [scores, -scores])
    assert right.comprehensiveness > wrong.comprehensiveness
    assert right.aopc > wrong.aopc
    assert right.log_odds < wrong.log_odds
