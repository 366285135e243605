"""The paper's figure of pronouns, on trained language models."""

import numpy as np
import pytest
import torch

from attnflow import Explainer
from attnflow.paper.figures import figure4
from attnflow.paper.pronouns import Ambiguity, resolve


def test_a_masked_model_of_reactions_is_asked_for_the_atom_that_is_missing(albert):
    explainer = Explainer(albert.model, albert.tokenizer)
    sentence = Ambiguity("CCCO.CCCl.CCBr>>CCCMASK", ("Cl", "Br"), ("Cl", "Br"))
    found = resolve(explainer, sentence)
    inputs = albert.tokenizer(found.text, return_tensors="pt")
    place = inputs["input_ids"][0].tolist().index(albert.tokenizer.mask_token_id)
    assert found.position == place
    with torch.no_grad():
        shares = albert.model(**inputs).logits[0, place].double().softmax(-1)
    expected = [
        float(shares[albert.tokenizer.convert_tokens_to_ids(word)]) for word in ("Cl", "Br")
    ]
    np.testing.assert_allclose(found.probabilities, expected, rtol=1e-4)
    assert sum(found.relative) == pytest.approx(1.0)
    for method, scores in found.scores.items():
        shown = explainer.explain(found.text, method=method)
        places = [shown.tokens.index("Cl"), shown.tokens.index("Br")]
        np.testing.assert_allclose(scores, shown.layer_scores[:, places])
    bars, *maps = figure4(explainer, [sentence]).axes
    assert [bar.get_height() for bar in bars.patches] == pytest.approx(found.relative)
    # All twelve layers of both referents.
    assert [ax.get_images()[0].get_array().shape for ax in maps] == [(12, 2)] * 3


def test_a_causal_model_gives_a_woman_her_pronoun(smollm):
    explainer = Explainer(smollm.model, smollm.tokenizer)
    drawing = figure4(explainer)
    author, mary = drawing.data["sentences"]
    assert author["text"] == "The author talked to Sara about"
    assert mary["text"] == "Mary convinced John of"
    for sentence in (author, mary):
        assert sentence["receptive_field"]
        assert [np.shape(sentence[method]) for method in ("raw", "rollout", "flow")] == [
            (30, 2)
        ] * 3
    her = {answer["word"]: answer["relative"] for answer in author["answers"]}["her"]
    assert her > 0.8
