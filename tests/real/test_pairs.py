"""A trained classifier of pairs of texts: does the second follow from the first?"""

import numpy as np
import pytest
import torch

from attnflow import Explainer
from attnflow.importance import blank_out

PREMISE = "A man is playing a guitar on stage."
FOLLOWS = "A man is making music."
DOES_NOT = "A man is asleep in bed."


@pytest.fixture(scope="module")
def explainer(nli):
    return Explainer(nli.model, nli.tokenizer)


def test_the_answer_is_that_of_the_pair(explainer):
    found = explainer.explain([(PREMISE, FOLLOWS), (PREMISE, DOES_NOT)])
    assert [one.prediction.index for one in found] == [1, 0]
    assert all(one.prediction.probability > 0.99 for one in found)
    for one in found:
        size = np.abs(one.scores).sum()
        assert abs(one.scores.sum() + one.bias - one.value) < 1e-4 * size
        assert not one.notes


def test_rows_are_the_attention_of_the_model_on_the_pair(explainer):
    model = explainer.model
    with torch.no_grad():
        model.set_attn_implementation("eager")
        try:
            inputs = explainer.tokenizer(PREMISE, FOLLOWS, return_tensors="pt")
            rows = model(**inputs, output_attentions=True).attentions
        finally:
            model.set_attn_implementation("sdpa")
    found = explainer.explain([(PREMISE, FOLLOWS), PREMISE], method="raw", position=0)[0]
    expected = torch.stack(rows)[:, 0].mean(dim=1)[:, 0].numpy()
    np.testing.assert_allclose(found.layer_scores, expected, atol=1e-5)


def test_without_either_text_the_answer_changes(explainer):
    found = explainer.explain((PREMISE, FOLLOWS), units="segments", check=True)
    assert found.tokens == ("[CLS]", "first", "[SEP]", "second", "[SEP]")
    assert found.check.names == ("first", "second")
    # The answer is nearly lost without the first, and another one without the second.
    assert min(found.check.effects) > 0.9 * found.value
    assert found.check.effects[1] > found.value


def test_contributions_find_the_words_that_do_not_follow(explainer):
    found = explainer.explain((PREMISE, DOES_NOT), units="words", check=True)
    assert {name for name, _ in found.top(2)} == {"asleep", "bed"}
    assert found.check.agreement > 0.5
    assert found.check.p < 0.01
    # The same word matters most when single tokens are blanked out.
    tokens = explainer.explain((PREMISE, DOES_NOT)).tokens
    assert tokens[int(blank_out(explainer, (PREMISE, DOES_NOT)).argmax())] == "asleep"
