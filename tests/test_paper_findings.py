"""Tests of what is measured beyond the paper: saturation by layer, and single heads."""

import json

import numpy as np
import pytest
from scipy.stats import spearmanr

from attnflow import Explainer, saturation
from attnflow.capture import capture
from attnflow.cli import main
from attnflow.errors import DataError
from attnflow.flow import head_flow
from attnflow.importance import importance
from attnflow.paper import checkpoint
from attnflow.paper.findings import heads, saturation_by_layer
from attnflow.rollout import head_rollout

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
    found = heads(verb, TEXTS, samples=50, progress=lambda *count: done.append(count))
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


def test_nothing_to_measure_is_told(verb):
    with pytest.raises(DataError, match="there is no text"):
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
    assert main([*arguments, "--output", "x.txt"]) == 1
    assert "--output must end in .json or .png" in capsys.readouterr().err
