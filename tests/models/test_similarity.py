"""CLIP and SigLIP with both towers: contributions of words and patches, on random weights."""

import copy

import numpy as np
import pytest
import torch
import transformers

import attnflow
from attnflow import importance
from attnflow.errors import ImageError
from attnflow.models import Explainer
from tests.support.architectures import randomised, state_of, unusual
from tests.support.image_text import photo, similarity
from tests.support.vision import processor

TEXTS = ["a cat on the table", "a dog", "red image"]
IMAGE = photo(40, 40)


@pytest.fixture(scope="module", params=["CLIP", "Siglip"])
def explainer(request):
    model, reader = similarity(request.param)
    return Explainer(randomised(model), reader)


def logits_of(explainer, texts, image=IMAGE):
    """The similarities that the model itself gives."""
    siglip = explainer.adapter.multi_label
    inputs = explainer.tokenizer(
        images=[image],
        text=texts,
        return_tensors="pt",
        padding="max_length" if siglip else True,
        max_length=12 if siglip else None,
    )
    if siglip:
        inputs.pop("attention_mask", None)
    with torch.no_grad():
        return explainer.model(**inputs).logits_per_image[0].double().numpy()


def test_contributions_add_up_to_the_similarity(explainer):
    explanation = explainer.explain((IMAGE, TEXTS[0]))
    [logit] = logits_of(explainer, TEXTS[:1])
    assert explanation.value == pytest.approx(logit, abs=1e-4)
    assert explanation.scores.sum() + explanation.bias == pytest.approx(logit, abs=1e-4)
    assert explanation.notes == ()
    assert explanation.grid == (4, 4)
    words = [t for t, span in zip(explanation.tokens, explanation.spans, strict=True) if span]
    assert words == TEXTS[0].split()


def test_both_towers_have_the_same_share_of_the_product(explainer):
    # The product of two vectors is halved, so the parts of each tower, biases aside, are one half.
    model = copy.deepcopy(explainer.model)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if name.endswith("bias") and "logit" not in name:
                parameter.zero_()
        if hasattr(model, "logit_bias"):
            model.logit_bias.zero_()
    explanation = Explainer(model, explainer.tokenizer).explain((IMAGE, TEXTS[0]))
    count = len(explanation.patches) + ("[CLS]" in explanation.tokens)
    image, text = explanation.scores[-count:].sum(), explanation.scores[:-count].sum()
    assert image == pytest.approx(explanation.value / 2, abs=1e-4)
    assert text == pytest.approx(explanation.value / 2, abs=1e-4)


@pytest.mark.parametrize(
    ("asked", "weights"),
    [
        ({"target": 1, "contrast": 2}, [0, 1, -1]),
        ({"target": "text 0"}, [1, -0.5, -0.5]),
        ({"target": 2, "contrast": "text 0"}, [-1, 0, 1]),
    ],
)
def test_several_texts_are_compared(explainer, asked, weights):
    explanation = explainer.explain((IMAGE, TEXTS), **asked)
    logits = logits_of(explainer, TEXTS)
    assert explanation.value == pytest.approx(float(logits @ weights), abs=1e-4)
    assert explanation.scores.sum() + explanation.bias == pytest.approx(explanation.value, abs=1e-4)
    assert explanation.prediction.index == int(logits.argmax())
    assert [part.name for part in explanation.segments] == ["text 0", "text 1", "text 2"]
    units = explanation.by_unit("segments")
    np.testing.assert_allclose(units.map(), explanation.map())
    for weight, part in zip(weights, explanation.segments, strict=True):
        inside = [
            abs(score)
            for score, span in zip(explanation.scores, explanation.spans, strict=True)
            if span and part.start <= span[0] < part.end
        ]
        assert bool(max(inside) > 0) == (weight != 0)


def test_blank_out_replaces_words_and_paints_patches(explainer):
    explanation = explainer.explain((IMAGE, TEXTS), target=0, contrast=1, check=True)
    check = explanation.check
    assert check.value == pytest.approx(explanation.value, abs=1e-4)
    fill = explainer.adapter.tokenizer.decode([explainer.adapter.fill("auto")])
    changed = [TEXTS[0].replace("cat", fill), *TEXTS[1:]]
    logits = logits_of(explainer, changed)
    effect = explanation.value - float(logits[0] - logits[1])
    assert check.effects[check.names.index("cat")] == pytest.approx(effect, abs=1e-4)
    assert "0,0" in check.names
    assert check.units == "tokens and patches"
    found = importance.blank_out(explainer, (IMAGE, TEXTS[:2]))
    assert found.max() > 0


def test_the_model_is_left_as_it_was_found():
    model, reader = similarity()
    before = state_of(unusual(model))
    Explainer(model, reader).explain((IMAGE, TEXTS[0]))
    assert state_of(model) == before


def test_many_pairs_and_every_view(explainer, tmp_path):
    both = explainer.explain([(IMAGE, TEXTS[0]), (photo(50, 30), TEXTS)])
    assert [one.task for one in both] == ["image-text-similarity"] * 2
    for one in both:
        one.save(tmp_path / "both.json")
        assert attnflow.Explanation.load(tmp_path / "both.json") == one
        assert "mean of all tokens" not in one.to_html()
        one.plot()


@pytest.mark.parametrize(
    ("item", "options", "error", "said"),
    [
        ((IMAGE, "a cat"), {"method": "rollout"}, attnflow.OptionError, "two towers"),
        ((IMAGE, "a cat"), {"position": 3}, attnflow.OptionError, "position is 3"),
        ((IMAGE, "a cat"), {"truncate": True}, attnflow.OptionError, "truncate"),
        ((IMAGE, "a cat"), {"target": 1}, attnflow.OptionError, "target is text 1"),
        ((IMAGE, "a cat"), {"target": "a cat"}, attnflow.OptionError, "target is 'a cat'"),
        ((IMAGE, TEXTS), {"target": 0, "contrast": 5}, attnflow.OptionError, "contrast is text 5"),
        (IMAGE, {}, ImageError, "ndarray"),
        ("a cat", {}, ImageError, "tuple"),
        ((IMAGE, []), {}, attnflow.TextError, "list"),
        ((IMAGE, ["a cat", ""]), {}, attnflow.TextError, "empty"),
        ((IMAGE, "a cat " * 20), {}, attnflow.TextError, "takes 12"),
        ([(IMAGE, "a cat"), (IMAGE, "")], {}, attnflow.TextError, "item 1"),
    ],
)
def test_what_cannot_be_explained_is_refused(explainer, item, options, error, said):
    with pytest.raises(error, match=said):
        explainer.explain(item, **options)


def test_both_towers_need_a_processor_for_both():
    model, reader = similarity()
    for lacking in (reader.tokenizer, processor()):
        with pytest.raises(attnflow.ModelError, match=r"CLIPModel reads an image and a text"):
            Explainer(model, lacking)


def test_gradients_of_embeddings_are_refused(explainer):
    with pytest.raises(attnflow.ModelError, match="two towers"):
        importance.gradient_norm(explainer, (IMAGE, "a cat"))


def test_a_checkpoint_is_loaded_with_both_towers_or_one(tmp_path):
    model, reader = similarity()
    model.save_pretrained(tmp_path)
    reader.save_pretrained(tmp_path)
    both = Explainer.from_pretrained(tmp_path)
    assert both.task == "image-text-similarity"
    expected = Explainer(model, reader).explain((IMAGE, "a cat"))
    np.testing.assert_allclose(both.explain((IMAGE, "a cat")).scores, expected.scores, atol=1e-5)
    image = Explainer.from_pretrained(tmp_path, task="image-encoder")
    assert isinstance(image.model, transformers.CLIPVisionModel)
    assert image.explain(IMAGE, method="rollout").grid == (4, 4)
