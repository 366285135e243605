"""The paper's tables, on a model whose right answer is known by construction."""

import csv
import io
import json
import re

import numpy as np
import pytest
import torch
from scipy.stats import spearmanr
from transformers import BertConfig, BertForSequenceClassification, BertTokenizerFast

from attnflow import Explainer
from attnflow.cli import main
from attnflow.errors import OptionError
from attnflow.importance import importance
from attnflow.paper.tables import METHODS, TABLES, Printed, make_table

WORDS = ("[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "the", "this", "key", "keys", "to")
SENTENCES = [("the key", "VBZ"), ("this keys", "VBP"), ("key this", "VBZ"), ("keys the", "VBP")]


def reader(layers=2, labels=("VBZ", "VBP")):
    """A classifier that reads the noun and nothing else.

    A word is four numbers, each followed by its negative so that layer normalisation has no mean to
    take away: the noun's number, and whether it is a noun, CLS, or another word. In layer 1 CLS
    attends to the noun and takes over its number, which the classifier reads. In every layer above,
    CLS attends to the other words and takes nothing from them.
    """
    number, noun, cls, other = 0, 2, 4, 6
    config = BertConfig(
        vocab_size=len(WORDS),
        hidden_size=8,
        num_hidden_layers=layers,
        num_attention_heads=1,
        intermediate_size=8,
        id2label=dict(enumerate(labels)),
        label2id={label: i for i, label in enumerate(labels)},
    )
    model = BertForSequenceClassification(config).eval()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.zero_()
        for module in model.modules():
            if isinstance(module, torch.nn.LayerNorm):
                module.weight.fill_(1.0)
        embed = model.bert.embeddings.word_embeddings.weight
        for index, word in enumerate(WORDS):
            kind = cls if word == "[CLS]" else noun if word in ("key", "keys") else other
            embed[index, kind], embed[index, kind + 1] = 1.0, -1.0
            if kind == noun:
                sign = 1.0 if word == "key" else -1.0
                embed[index, number], embed[index, number + 1] = sign, -sign
        for depth, layer in enumerate(model.bert.encoder.layer):
            attention = layer.attention
            attention.self.query.weight[0, cls] = 30.0
            attention.self.key.weight[0, noun if depth == 0 else other] = 1.0
            if depth == 0:
                attention.self.value.weight[number, number] = 1.0
                attention.self.value.weight[number + 1, number + 1] = 1.0
                attention.output.dense.weight.copy_(torch.eye(8))
        model.bert.pooler.dense.weight.copy_(torch.eye(8))
        model.classifier.weight[0, number] = 3.0
        model.classifier.weight[1, number] = -3.0
    tokenizer = BertTokenizerFast(vocab={word: i for i, word in enumerate(WORDS)})
    return Explainer(model, tokenizer)


@pytest.fixture(scope="module")
def two_layers():
    return reader()


@pytest.fixture(scope="module")
def saved(tmp_path_factory):
    folder = tmp_path_factory.mktemp("reader")
    explainer = reader(layers=6)
    explainer.model.save_pretrained(folder)
    explainer.tokenizer.save_pretrained(folder)
    data = folder / "numpred.tiny"
    data.write_text("".join(f"{label}\t{text}\n" for text, label in SENTENCES))
    return folder, data


def test_the_model_reads_the_noun(two_layers):
    for text, label in SENTENCES:
        assert two_layers.explain(text).prediction.label == label
    _, the, key, _ = importance(two_layers, "the key", reference="blank_out")
    assert the == 0.0
    assert key > 0.3


@pytest.mark.parametrize("number", [1, 2])
def test_raw_attention_misleads_above_the_layer_that_reads_and_the_others_do_not(
    two_layers, number
):
    table = make_table(number, two_layers, SENTENCES, samples=50)

    def means(method):
        return [row["mean"] for row in table.rows(method, special_tokens=False)]

    assert means("raw") == [1.0, -1.0]
    assert means("rollout") == [1.0, 1.0]
    assert means("flow") == [1.0, 1.0]
    assert table.accuracy == 1.0


def test_a_table_of_the_papers_sum_says_that_it_is_rounding_error(two_layers):
    table = make_table(2, two_layers, SENTENCES, reference="input_gradient", samples=50)
    assert re.search("input_gradient.*rounding error", table.to_text())
    assert "rounding error" not in make_table(2, two_layers, SENTENCES, samples=50).to_text()


def test_with_special_tokens_a_table_has_spearmans_correlation_over_all_tokens(two_layers):
    sentences = [("the key to the", "VBZ"), ("this to keys", "VBP"), ("keys", "VBP")]
    table = make_table(1, two_layers, sentences, samples=50)
    for method in METHODS:
        for row in table.rows(method):
            expected = []
            for text, label in sentences:
                shown = two_layers.explain(text, method=method)
                true = importance(two_layers, text, reference="blank_out", target=label)
                expected.append(spearmanr(shown.layer_scores[row["layer"] - 1], true).statistic)
            assert row["mean"] == pytest.approx(np.mean(expected))
            assert row["count"] == 3
            low, high = row["ci"]
            assert low <= row["mean"] <= high


def test_a_model_of_another_depth_has_all_its_layers_and_no_numbers_of_the_paper(two_layers):
    table = make_table(1, two_layers, SENTENCES, samples=50)
    assert [row["layer"] for row in table.rows("raw")] == [1, 2]
    assert table.printed("raw", 1) is None
    text = table.to_text()
    assert "6 layers" in text
    assert "0.69 ± 0.27" not in text


def test_the_papers_numbers_are_those_of_its_tables():
    assert TABLES[1].printed["raw"][0] == Printed(0.69, 0.27)
    assert TABLES[1].printed["flow"][5] == Printed(0.70, 0.22)
    assert TABLES[2].printed["rollout"][5] == Printed(0.54, 0.31)
    assert TABLES[3].printed["flow"][3] == Printed(0.14, 0.21)
    for setting in TABLES.values():
        for row in setting.printed.values():
            assert len(row) == len(setting.layers)
        # Over one layer there is one path, so that flow is rollout.
        assert setting.printed["flow"][0] == setting.printed["rollout"][0]


def test_the_command_prints_json_with_ours_and_the_papers(saved, capsys):
    folder, data = saved
    command = ["paper", "table1", "--model", str(folder), "--data", str(data), "--json"]
    assert main([*command, "--samples", "50", "--limit", "3"]) == 0
    found = json.loads(capsys.readouterr().out)
    for part in (found, found["without_special_tokens"]):
        for method in METHODS:
            assert len(part[method]) == 6
            assert all(set(row) == {"mean", "std", "ci"} for row in part[method])
    assert found["without_special_tokens"].keys() == set(METHODS)
    assert found["layers"] == [1, 2, 3, 4, 5, 6]
    assert found["defined"]["with_special_tokens"] == {method: [3] * 6 for method in METHODS}
    assert found["count"] == 3
    assert found["paper"]["raw"][0] == {"layer": 1, "mean": 0.69, "std": 0.27}
    raw = [row["mean"] for row in found["without_special_tokens"]["raw"]]
    assert raw == [1.0] + [-1.0] * 5


def test_a_table_is_saved_in_every_format_and_a_run_goes_on(saved, capsys, tmp_path):
    folder, data = saved
    paths = [tmp_path / f"t{ending}" for ending in (".json", ".md", ".csv", ".png")]
    command = ["paper", "table2", "--model", str(folder), "--data", str(data), "--samples", "50"]
    command += ["--store", str(tmp_path / "store.jsonl")]
    for path in paths:
        command += ["--output", str(path)]
    assert main(command) == 0
    as_json = json.loads(paths[0].read_text())
    assert as_json["reference"] == "gradient_norm"
    rows = list(csv.DictReader(io.StringIO(paths[2].read_text())))
    for method in METHODS:
        means = [
            float(row["mean"])
            for row in rows
            if row["method"] == method and row["special_tokens"] == "true"
        ]
        assert means == [row["mean"] for row in as_json[method]]
    markdown = paths[1].read_text()
    assert "| raw | ours |" in markdown
    assert markdown.count("| 0.53 ± 0.33 |") == 1
    assert paths[3].read_bytes().startswith(b"\x89PNG")
    before = paths[0].read_text()
    assert main(command) == 0
    assert paths[0].read_text() == before


def test_table_3_takes_the_class_by_its_index(capsys, tmp_path):
    explainer = reader(layers=6, labels=("negative", "positive"))
    explainer.model.save_pretrained(tmp_path)
    explainer.tokenizer.save_pretrained(tmp_path)
    data = tmp_path / "dev.tsv"
    data.write_text("sentence\tlabel\nthe key\t0\nthis keys\t1\n")
    command = ["paper", "table3", "--model", str(tmp_path), "--data", str(data)]
    assert main([*command, "--samples", "50"]) == 0
    shown = capsys.readouterr().out
    assert re.search(r"L1 +L3 +L5 +L6", shown)
    assert "accuracy 1.000" in shown
    assert "0.14 ± 0.21" in shown
    assert "100 sentences" in shown


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["table1"], "table 1.*--data"),
        (["table1", "--data", "nowhere.tsv"], r"--data.*nowhere\.tsv"),
        (["table3", "--model", "x"], "table 3.*--data.*SST-2"),
        (["table1", "--output", "table.doc"], r"--output.*\.json.*\.md"),
        (["table1", "--output", "no/such/folder/t.md"], "folder"),
    ],
)
def test_what_is_missing_is_said_before_a_model_is_loaded(arguments, message, capsys):
    assert main(["paper", *arguments]) == 1
    assert re.search(message, capsys.readouterr().err)


def test_labels_that_the_model_does_not_have_are_refused(two_layers):
    with pytest.raises(OptionError, match="'NN'"):
        make_table(1, two_layers, [("the key", "NN")])
    with pytest.raises(OptionError, match="sentences"):
        make_table(1, two_layers, [])
    with pytest.raises(OptionError, match=r"number.*4.*1.*2.*3"):
        make_table(4, two_layers, SENTENCES)
    encoder = Explainer(two_layers.model.bert, two_layers.tokenizer)
    with pytest.raises(OptionError, match=r"table 1.*classifier"):
        make_table(1, encoder, SENTENCES)
