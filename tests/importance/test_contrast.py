"""References for the difference of two logits."""

import numpy as np
import pytest
import torch

from attnflow.errors import OptionError
from attnflow.importance import (
    REFERENCES,
    SIGNED,
    blank_out,
    gradient_norm,
    gradient_x_input,
    importance,
    input_gradient,
)
from attnflow.models.adapter import Question
from attnflow.models.answers import ask
from tests.importance.test_importance import (
    TEXT,
    build,
    build_pair,
    one_word,  # noqa: F401
)
from tests.support.pair import IDS


def test_blank_out_is_the_difference_of_the_two_logits():
    explainer = build("GPT-2")
    ids = explainer.tokenizer(TEXT)["input_ids"]

    def answer(given):
        with torch.no_grad():
            logits = explainer.model(input_ids=torch.tensor([given])).logits[0, -1].double()
        return float(logits[IDS["keys"]] - logits[IDS["key"]])

    expected = []
    for place in range(len(ids)):
        changed = [IDS["[UNK]"] if index == place else one for index, one in enumerate(ids)]
        expected.append(answer(ids) - answer(changed))
    found = blank_out(explainer, TEXT, target="keys", contrast="key")
    np.testing.assert_allclose(found, np.abs(expected), atol=1e-5)
    assert max(expected) > 0.1
    signed = blank_out(explainer, TEXT, target="keys", contrast="key", signed=True)
    np.testing.assert_allclose(signed, expected, atol=1e-5)
    assert min(expected) < 0
    # The other way round it is the same but for the sign, which is not kept.
    other = blank_out(explainer, TEXT, target="key", contrast="keys")
    np.testing.assert_allclose(found, other, atol=1e-9)


def test_gradients_are_those_of_the_difference(one_word):  # noqa: F811
    words, weight = (
        value.detach().double().numpy()
        for value in (one_word.model.words.weight, one_word.model.head.weight)
    )
    x, gradient = words[IDS["to"]], weight[0] - weight[2]
    options = {"target": 0, "contrast": 2}
    for function, expected in (
        (input_gradient, abs(gradient.sum())),
        (gradient_x_input, abs(gradient @ x)),
        (gradient_norm, np.linalg.norm(gradient)),
    ):
        assert function(one_word, TEXT, **options)[3] == pytest.approx(expected, rel=1e-5)
    found = gradient_x_input(one_word, TEXT, signed=True, **options)[3]
    assert found == pytest.approx(gradient @ x, rel=1e-5)


@pytest.mark.parametrize("reference", REFERENCES)
def test_signs_are_kept_on_request(reference):
    explainer = build("GPT-2")
    plain = importance(explainer, TEXT, reference=reference)
    signed = importance(explainer, TEXT, reference=reference, signed=True)
    np.testing.assert_allclose(np.abs(signed), plain)
    assert bool((signed < 0).any()) == (reference in SIGNED)
    with pytest.raises(OptionError, match="signed is 'yes'"):
        importance(explainer, TEXT, reference=reference, signed="yes")


@pytest.mark.parametrize("reference", REFERENCES)
def test_many_texts_may_have_contrasts_of_their_own(reference):
    explainer = build("GPT-2")
    texts = ["the keys", "the key", "a film"]
    options = {"reference": reference, "target": "keys"}
    together = importance(explainer, texts, contrast=["key", None, "film"], **options)
    for text, contrast, found in zip(texts, ["key", None, "film"], together, strict=True):
        alone = importance(explainer, text, contrast=contrast, **options)
        np.testing.assert_allclose(found, alone, atol=1e-5, rtol=1e-4)
    plain = importance(explainer, texts[0], **options)
    assert not np.allclose(together[0], plain)


@pytest.mark.parametrize("name", ["T5", "BART"])
@pytest.mark.parametrize("reference", REFERENCES)
def test_pairs_take_a_contrast(name, reference):
    explainer = build_pair(name)
    pair = ("the keys to the", "cabinet")
    found = importance(explainer, pair, reference=reference, target="keys", contrast="key")
    assert found.any()
    assert (found >= 0).all()


def test_answers_have_the_value_that_contributions_add_up_to():
    explainer = build("GPT-2")
    questions = [Question("auto", 7, None), Question("auto", 7, 9), Question("auto", None, None)]
    readings = explainer.adapter.readings([TEXT] * 3, questions, False)
    found = ask(explainer, readings, 8)
    with torch.no_grad():
        ids = torch.tensor([explainer.tokenizer(TEXT)["input_ids"]])
        logits = explainer.model(input_ids=ids).logits[0, -1].double()
    best = int(logits.argmax())
    assert [answer.predicted for answer in found] == [best] * 3
    assert [answer.target for answer in found] == [7, 7, best]
    values = [logits[7] - logits.mean(), logits[7] - logits[9], logits[best] - logits.mean()]
    assert [answer.value for answer in found] == pytest.approx([float(x) for x in values], abs=1e-5)
    p = float(logits.softmax(-1)[7])
    assert found[1].probability == pytest.approx(p, rel=1e-4)
    classes = build("BERT", num_labels=3)
    readings = classes.adapter.readings([TEXT], [Question("auto", 1, None)], False)
    with torch.no_grad():
        given = torch.tensor([classes.tokenizer(TEXT)["input_ids"]])
        logits = classes.model(input_ids=given).logits[0].double()
    expected = float(logits[1] - (logits[0] + logits[2]) / 2)
    assert ask(classes, readings, 8)[0].value == pytest.approx(expected, abs=1e-5)


@pytest.mark.parametrize(
    ("contrast", "named"),
    [
        ("nowhere", "contrast.*'nowhere'.*bad.*good"),
        (5, "contrast.*5"),
        ("good", "contrast.*'good'.*target"),
        (["bad", "good"], "contrast.*2.*one input"),
    ],
)
def test_wrong_contrasts_are_errors_that_name_them(contrast, named):
    explainer = build("BERT", id2label={0: "bad", 1: "good"})
    for reference in REFERENCES:
        with pytest.raises(OptionError, match=named):
            importance(explainer, TEXT, reference=reference, target="good", contrast=contrast)


def test_a_contrast_that_is_what_the_model_predicts_is_an_error():
    explainer = build("BERT", id2label={0: "bad", 1: "good"})
    [answer] = ask(
        explainer, explainer.adapter.readings([TEXT], [Question("auto", None)], False), 1
    )
    label = explainer.adapter.label(answer.predicted)
    with pytest.raises(OptionError, match=f"contrast.*'{label}'.*predicts"):
        blank_out(explainer, TEXT, contrast=label)


def test_a_contrast_of_several_tokens_is_shown_in_its_pieces():
    with pytest.raises(OptionError, match=r"contrast.*'keys film'.*2 tokens.*'keys', 'film'"):
        blank_out(build("GPT-2"), TEXT, target="keys", contrast="keys film")
