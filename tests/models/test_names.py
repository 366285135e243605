"""One name for a model, in everything that is made with it."""

import json

import pytest
import torch
import transformers

import attnflow
from attnflow.cli import main
from attnflow.evaluate import evaluate
from attnflow.models import Explainer
from attnflow.models.load import name_of
from attnflow.models.verb_number import checkpoint
from attnflow.view.page import data
from tests.support.chat import chat_tokenizer
from tests.support.text import SIZES, classifier

FEW = {"samples": 20, "permutations": 19}


@pytest.fixture(scope="module")
def saved(tmp_path_factory):
    folder = tmp_path_factory.mktemp("models") / "org" / "tiny"
    explainer = classifier()
    explainer.model.save_pretrained(folder)
    explainer.tokenizer.save_pretrained(folder)
    return folder


def test_a_model_is_called_as_its_folder_its_file_or_on_the_hub(saved, tmp_path, monkeypatch):
    (tmp_path / "Some.Q4_1.gguf").touch()
    monkeypatch.chdir(saved.parent.parent)
    for given, name in (
        (saved, "tiny"),
        (f"{saved}/", "tiny"),
        ("org/tiny", "tiny"),
        ("./org/tiny", "tiny"),
        (tmp_path / "Some.Q4_1.gguf", "Some.Q4_1"),
        ("google/bert-tiny", "google/bert-tiny"),
        (checkpoint(), "verb_number"),
    ):
        assert name_of(given) == name
    assert classifier().name == "BertForSequenceClassification"
    assert classifier().path == ""


def test_every_result_has_the_same_name(saved, tmp_path, capsys):
    explainer = Explainer.from_pretrained(saved)
    assert (explainer.name, explainer.path) == ("tiny", str(saved))
    # In memory it knows where it came from.
    assert Explainer(explainer.model, explainer.tokenizer).name == "tiny"
    found = explainer.explain("the keys")
    assert (found.model, data(found)["model"], found.to_dict()["model"]) == ("tiny",) * 3
    assert evaluate(explainer, ["the keys", "a film"], **FEW).model == "tiny"
    folder = tmp_path / "out"
    attnflow.run(["the keys", "a film"], explainer, output=folder, workers=1)
    header = json.loads((folder / "manifest.json").read_text())
    header = header.get("header", header)
    assert (header["model"], header["path"]) == ("tiny", str(saved))
    assert main(["explain", "--model", str(saved), "--json", "the keys"]) == 0
    assert json.loads(capsys.readouterr().out)["model"] == "tiny"
    # The model of a run is found again.
    given = ["--references", "blank_out", "--samples", "20", "--permutations", "19"]
    assert main(["evaluate", "--data", str(folder), *given]) == 0
    assert "tiny" in capsys.readouterr().out


def test_the_classes_of_the_shipped_model_are_shown_with_their_meaning(capsys):
    explainer = Explainer.from_pretrained(checkpoint())
    found = explainer.explain("the keys to the cabinet", method="rollout")
    assert found.prediction.label == "VBP"
    assert data(found)["classes"] == {"VBP": "VBP (plural)", "VBZ": "VBZ (singular)"}
    assert main(["explain", "the keys to the cabinet", "--method", "rollout"]) == 0
    assert "Prediction: VBP (plural), 99" in capsys.readouterr().out
    assert data(classifier().explain("the keys"))["classes"] == {"good": "good"}


def test_a_token_that_only_the_model_has_is_called_by_its_number():
    """Vocabularies of models are rounded up, and those of tokenizers are not."""
    tokenizer = chat_tokenizer()
    extra = len(tokenizer)
    sizes = {**SIZES, "vocab_size": extra + 3, "max_position_embeddings": 48}
    torch.manual_seed(0)
    model = transformers.LlamaForCausalLM(transformers.LlamaConfig(**sizes)).eval()
    # The first token without a name gets the highest logit: twice that of the one predicted.
    text = "the keys to"
    with torch.no_grad():
        best = int(model(**tokenizer(text, return_tensors="pt")).logits[0, -1].argmax())
        model.lm_head.weight[extra] = 2 * model.lm_head.weight[best]
    found = Explainer(model, tokenizer).explain(text)
    assert found.prediction.label == found.target == f"token {extra}"
