"""Tests of what is measured beyond the paper: saturation, single heads, the authors' script."""

import json
import re

import numpy as np
import pytest
import transformers
from scipy.stats import rankdata, spearmanr

from attnflow import (
    Explainer,
    attention_flow,
    attention_rollout,
    raw_attention,
    saturation,
)
from attnflow.capture import capture
from attnflow.cli import main
from attnflow.errors import DataError, ModelError, TextError
from attnflow.flow import head_flow
from attnflow.importance import importance
from attnflow.models.verb_number import checkpoint
from attnflow.paper.findings import heads, saturation_by_layer
from attnflow.paper.script import as_scripted, dense_spearman
from attnflow.rollout import head_rollout
from tests.support.tiny import sharpen, wordpiece_tokenizer

TEXTS = ["the keys to the cabinet", "the author of the books that they like"]


@pytest.fixture(scope="module")
def verb():
    return Explainer.from_pretrained(checkpoint())


def attention(explainer, text):
    given = explainer.tokenizer(text, return_tensors="pt")
    layers = capture(explainer.model, dict(given), heads=None).layers
    return np.stack([layer[0].numpy() for layer in layers])


def test_saturation_of_an_encoder_is_that_of_all_pairs(verb):
    found = saturation_by_layer(verb, TEXTS)
    expected = np.mean([saturation(attention(verb, text)) for text in TEXTS], axis=0)
    np.testing.assert_allclose(found["pairs"], expected, atol=1e-12)
    of_cls = [saturation(attention(verb, text), positions=[0]) for text in TEXTS]
    np.testing.assert_allclose(found["position"], np.mean(of_cls, axis=0), atol=1e-12)
    assert found["count"] == 2


def test_where_everything_is_saturated_flows_are_the_same_everywhere(verb):
    found = saturation_by_layer(verb, TEXTS)
    for share, spread in zip(found["pairs"], found["spread"], strict=True):
        assert (spread == pytest.approx(0, abs=1e-12)) == (share == 1.0)


def test_heads_are_those_of_the_papers_appendix(verb):
    done = []
    found = heads(verb, TEXTS, progress=lambda *count: done.append(count))
    assert done == [(1, 2), (2, 2)]
    layer, head = 3, 5
    expected = {"raw": [], "rollout": [], "flow": []}
    for text in TEXTS:
        weights, reference = attention(verb, text), importance(verb, text)
        scores = {
            "raw": weights[layer - 1, head, 0],
            "rollout": head_rollout(weights, layer, head)[0],
            "flow": head_flow(weights, layer, head)[0],
        }
        for method, score in scores.items():
            expected[method].append(spearmanr(score, reference).statistic)
    for method, values in expected.items():
        cell = found[method][layer - 1][head]
        assert cell["mean"] == pytest.approx(np.mean(values))
        assert cell["std"] == pytest.approx(np.std(values))
        assert cell["ci"][0] <= cell["mean"] <= cell["ci"][1]


def test_heads_are_compared_with_the_mean_of_their_layers_heads(verb):
    found = heads(verb, TEXTS)
    for place, method in enumerate(("raw", "rollout", "flow")):
        alone, fused = [], []
        for text in TEXTS:
            weights, reference = attention(verb, text), importance(verb, text)
            mean = weights.mean(axis=1)
            methods = (raw_attention, attention_rollout, attention_flow)
            fused.append(spearmanr(methods[place](mean)[1, 0], reference).statistic)
            scores = (weights[1, 3, 0], head_rollout(weights, 2, 3)[0], head_flow(weights, 2, 3)[0])
            alone.append(spearmanr(scores[place], reference).statistic)
        assert found["fused"][method][1]["mean"] == pytest.approx(np.mean(fused))
        cell = found[method][1][3]
        assert cell["difference"] == pytest.approx(np.mean(alone) - np.mean(fused))
        low, high = cell["difference_ci"]
        assert low <= cell["difference"] <= high
        # Two texts have four ways to flip their signs, and 48 heads are compared.
        assert cell["p_holm"] == 1.0


def test_nothing_to_measure_is_told(verb):
    with pytest.raises(DataError, match="no text"):
        saturation_by_layer(verb, [])


@pytest.mark.parametrize("experiment", ["saturation", "heads"])
def test_the_commands_print_and_save(experiment, tmp_path, capsys):
    data = tmp_path / "texts.txt"
    data.write_text("\n".join(TEXTS) + "\n")
    arguments = ["paper", experiment, "--data", str(data), "--limit", "2"]
    assert main([*arguments, "--output", str(tmp_path / "x.png")]) == 0
    said = capsys.readouterr()
    assert "2 texts" in said.out
    assert (tmp_path / "x.png").read_bytes().startswith(b"\x89PNG")
    assert main([*arguments, "--json", "--output", str(tmp_path / "x.json")]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["count"] == 2
    assert json.loads((tmp_path / "x.json").read_text()) == found
    assert main(["paper", experiment, "--data", str(data), "--limit", "1", "--json"]) == 0
    json.loads(capsys.readouterr().out, parse_constant=pytest.fail)
    assert main([*arguments, "--output", "x.txt"]) == 1
    assert re.search(r"--output.*\.json.*\.png", capsys.readouterr().err)


# ---- The authors' script -------------------------------------------------------------------------


@pytest.fixture(scope="module")
def sentiment(tmp_path_factory):
    """A BERT classifier of random weights, and the folder that it is in."""
    words = ["the", "a", "film", "that", "no", "one", "will", "forget"]
    names = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *words]
    config = transformers.BertConfig(
        vocab_size=len(names),
        hidden_size=16,
        num_hidden_layers=3,
        num_attention_heads=2,
        intermediate_size=16,
    )
    model = sharpen(transformers.BertForSequenceClassification(config))
    tokenizer = wordpiece_tokenizer({name: i for i, name in enumerate(names)})
    folder = tmp_path_factory.mktemp("sentiment")
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return Explainer(model, tokenizer), folder


FILMS = ["a film that no one will forget", "no film that one will forget the film"]


def test_the_script_takes_the_largest_score_of_all_positions(sentiment):
    explainer, _ = sentiment
    found = as_scripted(explainer, FILMS)
    expected = {"all": [], "cls": []}
    for text in FILMS:
        given = explainer.tokenizer(text, return_tensors="pt")
        x = explainer.model.bert.embeddings(given["input_ids"]).detach().requires_grad_()
        explainer.model.set_attn_implementation("eager")
        outputs = explainer.model(inputs_embeds=x, output_attentions=True)
        outputs.logits[0, 1].backward()
        norms = x.grad[0].norm(dim=-1).numpy()
        product = np.eye(x.shape[1])
        for layer in outputs.attentions:
            weights = layer[0].mean(dim=0).detach().double().numpy()
            product = (weights / 2 + np.eye(len(weights)) / 2) @ product
        expected["all"].append(spearmanr(product.max(axis=0), norms).statistic)
        expected["cls"].append(spearmanr(product[0], norms).statistic)
    for variant, values in expected.items():
        cell = found[variant]["norm"]["rollout"][2]
        assert cell["mean"] == pytest.approx(np.mean(values))
        assert cell["std"] == pytest.approx(np.std(values))
    assert found["count"] == 2


def test_a_gradient_summed_behind_layer_normalisation_is_rounding(sentiment):
    explainer, _ = sentiment
    assert as_scripted(explainer, FILMS)["share"] < 1e-5


def test_the_scripts_correlation_is_spearmans_without_ties_only():
    chance = np.random.default_rng(0)
    a, b = chance.random(9), chance.random(9)
    assert dense_spearman(a, b) == pytest.approx(spearmanr(a, b).statistic)
    ties = np.array([0.2, 0.2, 0.5, 0.5, 0.5, 0.9])
    other = np.array([3.0, 1.0, 2.0, 2.0, 7.0, 4.0])
    apart = rankdata(ties, "dense") - rankdata(other, "dense")
    assert dense_spearman(ties, other) == pytest.approx(1 - 6 * (apart**2).sum() / (6 * 35))
    assert dense_spearman(ties, other) != pytest.approx(spearmanr(ties, other).statistic)


def test_the_script_is_followed_by_a_command(sentiment, tmp_path, capsys):
    _, folder = sentiment
    data = tmp_path / "texts.txt"
    data.write_text("\n".join(FILMS) + "\n")
    arguments = ["paper", "script3", "--model", str(folder), "--data", str(data)]
    assert main([*arguments, "--output", str(tmp_path / "x.png")]) == 0
    printed = capsys.readouterr().out
    assert re.search("scores: .*gradient: ", printed)
    assert "rounding" in printed
    assert (tmp_path / "x.png").read_bytes().startswith(b"\x89PNG")
    assert main([*arguments, "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert len(found["cls"]["norm"]["flow"]) == 3
    # One text has no interval, which JSON has no number for.
    assert main([*arguments, "--limit", "1", "--json"]) == 0
    found = json.loads(capsys.readouterr().out, parse_constant=pytest.fail)
    assert found["all"]["script"]["raw"][0]["ci"] == [None, None]


def test_a_text_that_is_too_long_for_the_script_is_told(sentiment):
    explainer, _ = sentiment
    with pytest.raises(TextError, match=r"602 tokens.*512"):
        as_scripted(explainer, ["film " * 600])


def test_a_model_without_an_embedding_layer_cannot_follow_the_script(verb):
    with pytest.raises(ModelError, match=r"classifier.*embedding"):
        as_scripted(verb, FILMS)
