"""Which positions the head of a model reads, and that they are what is explained."""

import json

import numpy as np
import pytest
import torch
import transformers
from pyarrow import parquet

from attnflow import Explainer, Explanation, run
from attnflow.errors import OptionError
from attnflow.models.text import pooling_of
from attnflow.options import ATTENTION_METHODS
from attnflow.view.captions import reading
from tests.support.text import VOCABULARY
from tests.support.tiny import sharpen, wordpiece_tokenizer
from tests.support.vision import SIZES, photo, processor

SMALL = {
    "vocab_size": 60,
    "hidden_size": 16,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "intermediate_size": 32,
    "num_labels": 3,
}
TEXT = "the keys to the cabinet"


def text_classifier(name):
    torch.manual_seed(0)
    if name == "BERT":
        model = transformers.BertForSequenceClassification(transformers.BertConfig(**SMALL))
    elif name == "GPT-2":
        sizes = {"vocab_size": 60, "n_embd": 16, "n_layer": 2, "n_head": 2, "num_labels": 3}
        model = transformers.GPT2ForSequenceClassification(
            transformers.GPT2Config(**sizes, pad_token_id=0)
        )
    else:
        config = transformers.ModernBertConfig(
            **SMALL, classifier_pooling=name.split()[-1], pad_token_id=0
        )
        model = transformers.ModernBertForSequenceClassification(config)
    return Explainer(sharpen(model), wordpiece_tokenizer(VOCABULARY))


def image_classifier(name):
    torch.manual_seed(0)
    kind, _, pooled = name.partition(" ")
    config = getattr(transformers, f"{kind}Config")(**SIZES, num_labels=3)
    if pooled:
        config.use_mean_pooling = pooled == "mean"
    model = getattr(transformers, f"{kind}ForImageClassification")(config)
    return Explainer(sharpen(model), processor())


def read_by_overwriting(explainer, item):
    """Overwrite each position of the last layer's output, and watch the answer."""
    adapter = explainer.adapter
    encoded = adapter.read(item)
    inputs, _ = adapter.stacked([encoded], [[0]])
    layers = next(
        module
        for module in explainer.model.modules()
        if isinstance(module, torch.nn.ModuleList) and len(module) in (2, 3)
    )
    changed = None

    def overwrite(_, __, output):
        values = (output if torch.is_tensor(output) else output[0]).clone()
        if changed is not None:
            values[:, changed] += torch.linspace(-3, 5, values.shape[-1])
        return values if torch.is_tensor(output) else (values, *output[1:])

    handle = layers[-1].register_forward_hook(overwrite)
    with torch.no_grad():
        plain = explainer.model(**inputs).logits
        found = []
        for changed in range(len(encoded.tokens)):
            if not torch.equal(explainer.model(**inputs).logits, plain):
                found.append(changed)
    handle.remove()
    return found


TEXTS = ("BERT", "GPT-2", "ModernBERT cls", "ModernBERT mean")
IMAGES = ("ViT", "DeiT", "Dinov2", "Beit mean", "Beit cls")


def build(name):
    if name in TEXTS:
        return text_classifier(name), TEXT
    return image_classifier(name), photo()


@pytest.mark.parametrize("name", [*TEXTS, *IMAGES])
@pytest.mark.parametrize("method", ["contribution", *ATTENTION_METHODS])
def test_the_positions_read_are_those_that_the_answer_depends_on(name, method):
    explainer, item = build(name)
    explanation = explainer.explain(item, method=method)
    expected = read_by_overwriting(explainer, item)
    assert [read.position for read in explanation.reads] == expected
    assert sum(read.weight for read in explanation.reads) == pytest.approx(1)
    assert explanation.position in expected
    several = f"mean of {len(expected)} positions"
    assert (several in reading(explanation)) == (len(expected) > 1)
    if "mean" in name:
        weights = [read.weight for read in explanation.reads]
        np.testing.assert_allclose(weights, 1 / len(weights), rtol=1e-4)


@pytest.mark.parametrize("name", ["ModernBERT mean", "Dinov2"])
@pytest.mark.parametrize("method", ATTENTION_METHODS)
def test_several_positions_are_explained_by_the_weighted_mean_of_their_scores(name, method):
    explainer, item = build(name)
    found = explainer.explain(item, method=method, layer=2)
    alone = [
        read.weight * explainer.explain(item, method=method, layer=2, position=read.position).scores
        for read in found.reads
    ]
    np.testing.assert_allclose(found.scores, sum(alone), atol=1e-12)


def test_texts_of_a_batch_read_their_own_positions():
    explainer = text_classifier("ModernBERT mean")
    texts = [TEXT, "the key", "keys"]
    for method in ("contribution", "rollout"):
        for text, found in zip(texts, explainer.explain(texts, method=method), strict=True):
            assert len(found.reads) == len(found.tokens)
            alone = explainer.explain(text, method=method)
            np.testing.assert_allclose(found.scores, alone.scores, atol=1e-6)


@pytest.mark.parametrize("method", ATTENTION_METHODS)
def test_a_run_over_many_texts_gives_the_same_scores(method, tmp_path):
    explainer = text_classifier("ModernBERT mean")
    texts = [TEXT, "the key", "keys to the film", "no one will forget a film"]
    output = tmp_path / "out"
    run(texts, explainer, output=output, method=method, workers=1)
    found = parquet.read_table(next(output.rglob("*.parquet"))).to_pylist()
    for text, row in zip(texts, found, strict=True):
        alone = explainer.explain(text, method=method)
        np.testing.assert_allclose(row["scores"], alone.scores, atol=1e-6)


def test_a_mean_can_be_asked_for_and_survives_a_file(tmp_path):
    explainer = text_classifier("BERT")
    found = explainer.explain(TEXT, method="rollout", position="mean")
    count = len(found.tokens)
    rows = [explainer.explain(TEXT, method="rollout", position=i).scores for i in range(count)]
    np.testing.assert_allclose(found.scores, np.mean(rows, axis=0))
    found.save(tmp_path / "mean.json")
    loaded = Explanation.load(tmp_path / "mean.json")
    assert loaded == found
    assert loaded.reads == found.reads
    assert len(found.reads) == count
    old = found.to_dict()
    del old["reads"]
    assert [read.position for read in Explanation.from_dict(old).reads] == [found.position]


def test_the_answer_of_a_language_model_is_not_a_mean():
    config = transformers.GPT2Config(vocab_size=60, n_embd=16, n_layer=2, n_head=2)
    explainer = Explainer(
        transformers.GPT2LMHeadModel(config).eval(), wordpiece_tokenizer(VOCABULARY)
    )
    with pytest.raises(OptionError, match="position is 'mean'"):
        explainer.explain(TEXT, position="mean")


@pytest.mark.parametrize(
    ("modes", "expected"),
    [
        ({"pooling_mode_mean_tokens": True, "pooling_mode_cls_token": False}, "mean"),
        ({"pooling_mode_cls_token": True}, "cls"),
        ({"pooling_mode_lasttoken": True}, "last"),
        ({"pooling_mode_max_tokens": True}, None),
        ({"pooling_mode_cls_token": True, "pooling_mode_mean_tokens": True}, None),
    ],
)
def test_a_folder_says_how_its_encoder_pools(tmp_path, modes, expected):
    assert pooling_of(str(tmp_path)) is None
    (tmp_path / "1_Pooling").mkdir()
    (tmp_path / "1_Pooling" / "config.json").write_text(json.dumps(modes))
    assert pooling_of(str(tmp_path)) == expected


def test_a_sentence_encoder_is_explained_by_the_mean_of_its_tokens(tmp_path):
    torch.manual_seed(0)
    model = transformers.BertModel(transformers.BertConfig(**SMALL)).eval()
    model.save_pretrained(tmp_path)
    wordpiece_tokenizer(VOCABULARY).save_pretrained(tmp_path)
    (tmp_path / "1_Pooling").mkdir()
    content = json.dumps({"pooling_mode_mean_tokens": True})
    (tmp_path / "1_Pooling" / "config.json").write_text(content)
    explainer = Explainer.from_pretrained(tmp_path)
    found = explainer.explain(TEXT)
    assert len(found.reads) == len(found.tokens)
    other = explainer.explain(TEXT, position="mean")
    np.testing.assert_array_equal(found.scores, other.scores)
    assert len(explainer.explain(TEXT, position="cls").reads) == 1
