"""Integrated gradients: against a closed form, and what they add up to."""

import numpy as np
import pytest
import torch

from attnflow.errors import OptionError
from attnflow.importance import importance, integrate, integrated_gradients
from tests.importance.test_importance import (
    MASKED,
    TEXT,
    build,
    build_pair,
    one_word,  # noqa: F401
)
from tests.support.pair import IDS

# DeBERTa's code does this when it is imported.
pytestmark = pytest.mark.filterwarnings("ignore:`torch.jit.script` is deprecated")


def logits_of(explainer, embeddings, position=None):
    with torch.no_grad():
        logits = explainer.model(inputs_embeds=embeddings).logits
    return (logits if position is None else logits[:, position])[0].double().numpy()


def test_a_linear_model_has_the_closed_form(one_word):  # noqa: F811
    """Each logit is linear in the one word: whatever the path, w . (x - b) is its part."""
    words, weight = (
        value.detach().double().numpy()
        for value in (one_word.model.words.weight, one_word.model.head.weight)
    )
    step = words[IDS["to"]] - words[IDS["[MASK]"]]
    expected = (weight[0] - weight[2]) @ step
    for steps in (1, 7):
        found = integrate(one_word, TEXT, target=0, contrast=2, steps=steps)
        assert found.scores[3] == pytest.approx(expected, rel=1e-5)
        np.testing.assert_allclose(np.delete(found.scores, 3), 0, atol=1e-12)
        assert found.answer - found.baseline == pytest.approx(expected, rel=1e-5)
        assert found.error < 1e-5
    absolute = integrated_gradients(one_word, TEXT, target=0, contrast=2)
    assert absolute[3] == pytest.approx(abs(expected), rel=1e-5)
    zero = integrate(one_word, TEXT, target=0, contrast=2, baseline="zero", steps=1)
    assert zero.scores[3] == pytest.approx((weight[0] - weight[2]) @ words[IDS["to"]], rel=1e-5)


@pytest.mark.parametrize(
    ("name", "text"), [("BERT", TEXT), ("GPT-2", TEXT), ("RoBERTa", MASKED), ("DeBERTa-v2", TEXT)]
)
def test_scores_add_up_to_the_change_of_the_answer_the_better_the_more_steps(name, text):
    explainer = build(name)
    baseline = "auto" if name != "GPT-2" else "the"
    errors = [
        integrate(explainer, text, steps=steps, baseline=baseline).error for steps in (2, 20, 200)
    ]
    assert errors[2] < 0.01
    assert errors[2] < errors[0]
    assert errors[1] < 0.1


def test_both_ends_are_answers_of_the_model():
    explainer = build("BERT", id2label={0: "bad", 1: "good"})
    found = integrate(explainer, TEXT, target="good", steps=3)
    ids = torch.tensor([explainer.tokenizer(TEXT)["input_ids"]])
    table = explainer.model.get_input_embeddings()
    logits = logits_of(explainer, table(ids).detach())
    assert found.answer == pytest.approx(logits[1] - logits[0], abs=1e-5)
    ids[:, 1:-1] = IDS["[MASK]"]
    logits = logits_of(explainer, table(ids).detach())
    assert found.baseline == pytest.approx(logits[1] - logits[0], abs=1e-5)
    # Of two classes, the log-odds are the difference of the logits.
    contrasted = integrate(explainer, TEXT, target="good", contrast="bad", steps=3)
    np.testing.assert_allclose(contrasted.scores, found.scores, atol=1e-9)
    other = integrate(explainer, TEXT, target="bad", steps=3)
    np.testing.assert_allclose(other.scores, -found.scores, atol=1e-9)
    assert found.scores[0] == found.scores[-1] == 0


def test_gradients_are_averaged_as_gauss_and_legendre_do():
    explainer = build("Llama")
    found = integrate(explainer, TEXT, target=7, contrast=9, steps=3)
    ids = torch.tensor([explainer.tokenizer(TEXT)["input_ids"]])
    end = explainer.model.get_input_embeddings()(ids).detach()
    mean = torch.zeros_like(end)
    # The tokenizer has no mask: the baseline is zero.
    for node, weight in ((-0.7745966692, 5 / 9), (0.0, 8 / 9), (0.7745966692, 5 / 9)):
        share = (node + 1) / 2
        point = (share * end).requires_grad_()
        logits = explainer.model(inputs_embeds=point).logits[0, -1]
        (gradient,) = torch.autograd.grad(logits[7] - logits[9], point)
        mean += weight / 2 * gradient
    expected = (mean * end).sum(-1)[0].double().numpy()
    np.testing.assert_allclose(found.scores, expected, atol=1e-4 * np.abs(expected).max())
    assert found.baseline == pytest.approx(
        np.diff(logits_of(explainer, 0 * end, -1)[[9, 7]])[0], abs=1e-5
    )


@pytest.mark.parametrize("name", ["T5", "BART"])
@pytest.mark.parametrize("baseline", ["auto", "unk"])
def test_pairs_have_scores_of_source_and_target(name, baseline):
    explainer = build_pair(name)
    found = integrate(explainer, ("the keys to the", "cabinet"), steps=200, baseline=baseline)
    assert found.scores.any()
    assert found.error < 0.1


def test_many_texts_are_measured_as_one_by_one_in_batches_of_any_size():
    explainer = build("BERT")
    texts = ["the keys to the", "keys", "the key to a"]
    together = integrate(explainer, texts, steps=5, batch_size=4)
    for text, found in zip(texts, together, strict=True):
        alone = integrate(explainer, text, steps=5)
        np.testing.assert_allclose(found.scores, alone.scores, atol=1e-5)
        assert found.answer == pytest.approx(alone.answer, abs=1e-5)
    result = importance(explainer, texts, reference="integrated_gradients")
    assert [len(one) for one in result] == [len(one.scores) for one in together]
    assert all((one >= 0).all() for one in result)


@pytest.mark.parametrize(
    ("options", "named"),
    [
        ({"steps": 0}, "steps.*0"),
        ({"steps": 1.5}, "steps.*1.5"),
        ({"baseline": "nothing"}, "baseline.*'nothing'"),
        ({"baseline": 99}, "baseline.*99"),
        ({"batch_size": 0}, "batch_size.*0"),
    ],
)
def test_wrong_options_are_errors_that_name_them(options, named):
    with pytest.raises(OptionError, match=named):
        integrate(build("BERT"), TEXT, **options)
