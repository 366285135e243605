"""Tests of attnflow paper train, train-sst2 and accuracy, as a user calls them."""

import json
import os
import random
import re
import signal
import subprocess
import sys

import pytest
import torch
from tokenizers import Tokenizer
from tokenizers.models import WordLevel
from tokenizers.pre_tokenizers import Whitespace
from tokenizers.processors import TemplateProcessing
from transformers import BertConfig, BertModel, PreTrainedTokenizerFast

from attnflow import Explainer, OptionError
from attnflow.cli import main
from attnflow.paper.sst2 import FineTuning, _layers_above

TINY = [
    "--layers",
    "1",
    "--heads",
    "1",
    "--dimensions",
    "8",
    "--held-out",
    "20",
    "--batch-tokens",
    "256",
    "--warmup",
    "5",
]


def agreement(count):
    choice = random.Random(0).choice
    for _ in range(count):
        noun, end = choice(("key", "dog", "cat")), choice(("", "s"))
        yield f"{'VBP' if end else 'VBZ'}\tthe {noun}{end} of {choice('abcdefgh')}"


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    folder = tmp_path_factory.mktemp("data")
    (folder / "numpred.val").write_text("\n".join(agreement(300)) + "\n")
    (folder / "numpred.test.1").write_text("\n".join(agreement(60)) + "\n")
    return folder


@pytest.fixture(scope="module")
def model(data):
    out = data / "model"
    arguments = ["--data", data / "numpred.val", "--extra", data / "numpred.test.1", "--out", out]
    status = main(
        [
            "paper",
            "train",
            *map(str, arguments),
            "--test",
            f"{data / 'numpred.val'}:10",
            *TINY,
            "--epochs",
            "2",
        ]
    )
    assert status == 0
    return out


def test_train_says_what_came_of_it(data, tmp_path, capsys):
    arguments = ["--data", str(data / "numpred.val"), "--out", str(tmp_path / "x"), "--epochs", "2"]
    assert main(["paper", "train", *arguments, *TINY]) == 0
    said = capsys.readouterr()
    assert "trained on" in said.out
    assert "held out: " in said.out
    assert "epoch 1: loss" in said.err
    assert "left" in said.err
    assert Explainer.from_pretrained(tmp_path / "x").explain("the key").target in ("VBZ", "VBP")


def test_accuracy_prints_what_it_was_asked_for(data, model, capsys):
    arguments = ["--model", str(model), "--limit", "50", "--data", str(data / "numpred.val")]
    assert main(["paper", "accuracy", *arguments, str(data / "numpred.test.1"), "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found.keys() == {"accuracy", "count", "by_attractors"}
    assert found["count"] == 100
    assert {name: each["count"] for name, each in found["by_attractors"].items()} == {
        "unknown": 50,
        "1": 50,
    }
    assert main(["paper", "accuracy", *arguments]) == 0
    assert "attractors not known: " in capsys.readouterr().out


def test_lines_that_are_skipped_are_counted(data, model, tmp_path, capsys):
    path = tmp_path / "numpred.val"
    path.write_text("VBZ\tthe key\nbad\n")
    arguments = ["paper", "accuracy", "--model", str(model), "--data", str(path)]
    assert main(arguments) == 1
    assert re.search("line 2.*tab", capsys.readouterr().err)
    assert main([*arguments, "--on-error", "skip"]) == 0
    said = capsys.readouterr()
    assert re.search("line 2.*tab", said.err)
    assert "1 line" in said.err
    for command in (["paper", "table1"], ["paper", "accuracy"]):
        more = ["--model", str(model), "--data", str(path), "--on-error", "skip", "--json"]
        assert main([*command, *more]) == 0
        said = capsys.readouterr()
        assert json.loads(said.out)["count"] == 1
        assert "1 line" in said.err


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["train", "--data", "nothing", "--out", "x"], "nothing"),
        (["train-sst2", "--model", "x", "--data", "nothing", "--out", "x"], "nothing"),
        (["accuracy", "--data", "nothing"], "nothing"),
    ],
)
def test_a_file_that_is_not_there_is_told_before_anything_is_loaded(arguments, message, capsys):
    assert main(["paper", *arguments]) == 1
    assert re.search(message, capsys.readouterr().err)


def test_a_test_that_is_not_a_file_and_a_number_is_told(capsys):
    with pytest.raises(SystemExit):
        main(["paper", "train", "--data", "x", "--out", "y", "--test", "dev.tsv"])
    assert "FILE:N" in capsys.readouterr().err


@pytest.mark.exhaustive
def test_ctrl_c_says_how_to_go_on_and_nothing_else_is_gone_on_with(data, tmp_path):
    out = tmp_path / "model"
    arguments = ["--data", str(data / "numpred.val"), "--out", str(out), *TINY, "--epochs", "500"]
    arguments += ["--patience", "500"]
    script = (
        "import signal, sys; signal.signal(signal.SIGINT, signal.default_int_handler);"
        "from attnflow.cli import main; sys.exit(main(sys.argv[1:]))"
    )
    command = [sys.executable, "-c", script, "paper", "train", *arguments]
    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True) as process:
        assert "epoch 1" in process.stderr.readline()
        process.send_signal(signal.SIGINT)
        said = process.stderr.read()
    assert process.returncode == 130
    assert "--resume" in said
    assert "Traceback" not in said
    assert os.listdir(out) == ["training-state.pt"]
    assert main(["paper", "train", *arguments]) == 1
    arguments[arguments.index("500")] = "2"
    assert main(["paper", "train", *arguments, "--resume"]) == 1


# SST-2


@pytest.fixture(scope="module")
def encoder(tmp_path_factory):
    folder = tmp_path_factory.mktemp("encoder")
    words = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", *["a", "very", "good", "bad", "film", "it", "was"]]
    tokenizer = Tokenizer(WordLevel({word: i for i, word in enumerate(words)}, "[UNK]"))
    tokenizer.pre_tokenizer = Whitespace()
    tokenizer.post_processor = TemplateProcessing(
        single="[CLS] $A [SEP]", special_tokens=[("[CLS]", 2), ("[SEP]", 3)]
    )
    PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        pad_token="[PAD]",
        unk_token="[UNK]",
        cls_token="[CLS]",
        sep_token="[SEP]",
    ).save_pretrained(folder)
    torch.manual_seed(0)
    shape = {"hidden_size": 16, "num_hidden_layers": 2, "num_attention_heads": 2}
    config = BertConfig(vocab_size=len(words), intermediate_size=32, **shape)
    BertModel(config).save_pretrained(folder)
    return folder


@pytest.fixture(scope="module")
def reviews(tmp_path_factory):
    folder = tmp_path_factory.mktemp("sst2")
    choice = random.Random(0).choice
    for name, count in {"train.tsv": 400, "dev.tsv": 40}.items():
        rows = ["sentence\tlabel"]
        for _ in range(count):
            good = choice((0, 1))
            start = choice(("it was a", "a", "a very"))
            rows.append(f"{start} {('bad', 'good')[good]} film\t{good}")
        (folder / name).write_text("\n".join(rows) + "\n")
    return folder


def test_an_encoder_is_fine_tuned_to_tell_good_from_bad(encoder, reviews, tmp_path, capsys):
    arguments = ["--model", str(encoder), "--data", str(reviews), "--out", str(tmp_path / "x")]
    recipe = {"epochs": 20, "patience": 20, "learning-rate": 0.003, "average": 0.9}
    for name, value in {**recipe, "batch-tokens": 128}.items():
        arguments += [f"--{name}", str(value)]
    assert main(["paper", "train-sst2", *arguments, "--json"]) == 0
    report = json.loads(capsys.readouterr().out)
    assert report["accuracy"] == 1.0
    assert report["count"] == 40
    assert json.loads((tmp_path / "x" / "training.json").read_text()) == report
    explainer = Explainer.from_pretrained(tmp_path / "x")
    assert explainer.explain("a bad film").prediction.label == "negative"
    assert explainer.explain("a good film").prediction.label == "positive"
    before = BertModel.from_pretrained(encoder).state_dict()
    learned = explainer.model.bert.state_dict()
    same = {name for name, value in before.items() if torch.equal(value, learned[name])}
    assert {name for name in same if "word_embeddings" in name or name.startswith("encoder")} == {
        "embeddings.word_embeddings.weight"
    }


def test_a_model_that_cannot_be_fine_tuned_is_told(reviews, tmp_path, capsys):
    arguments = ["--model", str(tmp_path / "none"), "--data", str(reviews), "--out", str(tmp_path)]
    assert main(["paper", "train-sst2", *arguments]) == 1
    assert "fine-tuned" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("name", "above"),
    [
        ("bert.embeddings.LayerNorm.weight", 6),
        ("bert.encoder.layer.0.output.dense.weight", 5),
        ("distilbert.transformer.layer.5.ffn.lin1.bias", 0),
        ("model.layers.2.attn.Wqkv.weight", 3),
        ("bert.pooler.dense.weight", 0),
        ("classifier.weight", 0),
    ],
)
def test_lower_layers_are_told_by_the_names_of_their_weights(name, above):
    assert _layers_above(name, 6) == above


@pytest.mark.parametrize(
    "option", [{"hidden_words": 1.0}, {"layer_decay": 0.0}, {"average": 1.0}, {"epochs": 0}]
)
def test_a_way_to_fine_tune_that_makes_no_sense_is_refused(option):
    with pytest.raises(OptionError, match=next(iter(option))):
        FineTuning(**option)
