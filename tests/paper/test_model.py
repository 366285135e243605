"""Tests of the verb-number model, its tokenizer and its training."""

import dataclasses
import json
import os
import random
import re
import shutil
import signal
import subprocess
import sys
import textwrap

import numpy as np
import pytest
import torch
from transformers import AutoModelForSequenceClassification, AutoTokenizer

from attnflow import Explainer
from attnflow.capture import capture
from attnflow.errors import DataError, ModelError, OptionError
from attnflow.models.verb_number import checkpoint
from attnflow.models.verb_number.model import VerbNumberConfig, VerbNumberForSequenceClassification
from attnflow.models.verb_number.tokenizer import build_tokenizer
from attnflow.paper import Agreement
from attnflow.paper.accuracy import accuracy
from attnflow.paper.corpus import batches, encode, padded
from attnflow.paper.train import Recipe, Reserved, _embed_by_spelling, _stem, train

SMALL = {"n_layer": 2, "n_head": 2, "n_embd": 16, "vocab_size": 50}


@pytest.fixture(scope="module")
def model():
    torch.manual_seed(0)
    return VerbNumberForSequenceClassification(VerbNumberConfig(**SMALL)).eval()


# The model


def test_the_model_has_the_shape_of_the_paper():
    config = VerbNumberConfig()
    assert (config.n_layer, config.n_head, config.n_embd) == (6, 8, 128)
    assert config.id2label == {0: "VBZ", 1: "VBP"}


@pytest.mark.parametrize("attention", ["eager", "sdpa"])
def test_every_position_sees_every_other(model, attention):
    model.set_attn_implementation(attention)
    ids = torch.tensor([[2, 5, 6, 7]])
    other = torch.tensor([[2, 5, 6, 8]])
    with torch.no_grad():
        first, second = model.encode(ids), model.encode(other)
    assert not torch.allclose(first[0, 0], second[0, 0])
    weights = capture(model, {"input_ids": ids}).layers[0][0]
    assert (weights > 0).all()


@pytest.mark.parametrize("attention", ["eager", "sdpa"])
def test_padding_changes_nothing(model, attention):
    model.set_attn_implementation(attention)
    ids = torch.tensor([[2, 5, 6, 0, 0], [2, 7, 8, 9, 10]])
    with torch.no_grad():
        padded = model(input_ids=ids, attention_mask=(ids != 0).long()).logits[0]
        alone = model(input_ids=ids[:1, :3]).logits[0]
    torch.testing.assert_close(padded, alone)


def test_embeddings_can_take_the_place_of_words(model):
    ids = torch.tensor([[2, 5, 6]])
    with torch.no_grad():
        embedded = model(inputs_embeds=model.get_input_embeddings()(ids)).logits
        torch.testing.assert_close(embedded, model(input_ids=ids).logits)
    with pytest.raises(ValueError, match=r"input_ids.*inputs_embeds"):
        model()


def test_the_classifier_reads_the_first_token_alone(model):
    ids = torch.tensor([[2, 5, 6]])
    with torch.no_grad():
        last = model.encode(ids)
        torch.testing.assert_close(model.score(last[:, 0]), model(input_ids=ids).logits)


def test_the_loss_is_the_cross_entropy(model):
    ids, labels = torch.tensor([[2, 5], [2, 6]]), torch.tensor([0, 1])
    with torch.no_grad():
        output = model(input_ids=ids, labels=labels)
    chosen = output.logits.log_softmax(-1)[[0, 1], labels]
    torch.testing.assert_close(output.loss, -chosen.mean())


@pytest.mark.exhaustive
def test_a_saved_model_loads_as_any_other_in_a_process_that_knows_nothing_of_it(model, tmp_path):
    model.save_pretrained(tmp_path)
    build_tokenizer(["the keys to the cabinet"]).save_pretrained(tmp_path)
    assert (tmp_path / "model.safetensors").exists()
    script = f"""
        from attnflow import Explainer
        explanation = Explainer.from_pretrained({str(tmp_path)!r}).explain("the keys")
        assert explanation.tokens == ("[CLS]", "the", "keys"), explanation.tokens
        assert explanation.target in ("VBZ", "VBP")
    """
    subprocess.run([sys.executable, "-c", textwrap.dedent(script)], check=True)
    loaded = AutoModelForSequenceClassification.from_pretrained(tmp_path).eval()
    ids = torch.tensor([[2, 5, 6]])
    with torch.no_grad():
        torch.testing.assert_close(loaded(input_ids=ids).logits, model(input_ids=ids).logits)


# The tokenizer


def test_words_of_the_data_stay_as_they_are():
    data = "the NNS do n't have the girl 's `` long-term '' key -- PRP$ 1,000 ( u.s. )"
    tokenizer = build_tokenizer([data])
    assert tokenizer.tokenize(data) == data.split()


def test_plain_english_is_cut_as_a_treebank_would():
    cut = "the cat 's owner does n't say `` hello '' , ok ?"
    tokenizer = build_tokenizer([cut])
    assert tokenizer.tokenize("the cat's owner doesn't say \"hello\", ok?") == cut.split()
    assert tokenizer.tokenize("The CAT\u2019s") == ["the", "cat", "'s"]


def test_tags_are_tokens_only_in_capitals_and_alone():
    tokenizer = build_tokenizer(["the NNP in IN"])
    assert tokenizer.tokenize("the NNP IN in nnp NNPS") == [
        "the",
        "NNP",
        "IN",
        "in",
        "[UNK]",
        "[UNK]",
    ]


def test_the_vocabulary_is_the_most_common_words():
    tokenizer = build_tokenizer(["b b b a a c NN"], size=7)
    assert sorted(tokenizer.get_vocab(), key=tokenizer.get_vocab().get) == [
        "[PAD]",
        "[UNK]",
        "[CLS]",
        "[MASK]",
        "NN",
        "b",
        "a",
    ]


def test_a_saved_tokenizer_reads_the_same(tmp_path):
    tokenizer = build_tokenizer(["the keys of the NNS"])
    tokenizer.save_pretrained(tmp_path)
    loaded = AutoTokenizer.from_pretrained(tmp_path)
    text = "The keys of NNS, unknown"
    assert loaded(text)["input_ids"] == tokenizer(text)["input_ids"]


# The corpus


def test_batches_hold_every_sentence_once_and_no_more_than_their_tokens():
    lengths = np.random.default_rng(0).integers(1, 40, 500)
    rows = np.arange(100, 500)
    for order in (None, np.random.default_rng(1)):
        found = list(batches(lengths, rows, 128, order))
        assert sorted(np.concatenate(found).tolist()) == rows.tolist()
        assert all(len(batch) * lengths[batch].max() <= 128 for batch in found)


def test_sentences_come_back_from_the_corpus():
    tokenizer = build_tokenizer(["the keys to the cabinet"])
    rows = [Agreement("the keys", "VBP", 0), Agreement("the cabinet to", "VBZ", None)]
    corpus = encode(tokenizer, rows, ("VBZ", "VBP"))
    words, mask = padded(corpus.ids, [1, 0], tokenizer.pad_token_id)
    texts = tokenizer.batch_decode(words, skip_special_tokens=True)
    assert texts == ["the cabinet to", "the keys"]
    assert mask.tolist() == [[1, 1, 1, 1], [1, 1, 1, 0]]
    assert corpus.labels.tolist() == [1, 0]
    assert corpus.attractors.tolist() == [0, -1]
    assert corpus.lengths.tolist() == [3, 4]


# Training


def sentences(count, seed):
    """Subjects agree with their verb; the noun after them is of either number."""
    choice = random.Random(seed).choice
    for _ in range(count):
        plural = choice((False, True))
        noun = choice(("key", "dog", "cat", "door")) + "s" * plural
        other = choice(("box", "house", "car", "tree")) + choice(("", "s"))
        yield f"{'VBP' if plural else 'VBZ'}\tthe {noun} {choice(('of', 'near', 'by'))} the {other}"


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    folder = tmp_path_factory.mktemp("data")
    for name, count in {"numpred.val": 600, "numpred.test.1": 200}.items():
        (folder / name).write_text("\n".join(sentences(count, name)) + "\n")
    return folder


TINY = Recipe(
    epochs=10,
    learning_rate=5e-3,
    warmup=10,
    batch_tokens=256,
    dropout=0.0,
    hidden_words=0.05,
    average=0.9,
    extra_per_epoch=50,
    held_out=40,
    layers=2,
    heads=2,
    dimensions=16,
)


@pytest.fixture(scope="module")
def trained(data, tmp_path_factory):
    out = tmp_path_factory.mktemp("trained") / "model"
    said = []
    report = train(
        [data / "numpred.val"],
        out,
        extra=[data / "numpred.test.1"],
        test=[Reserved(data / "numpred.val", 50), Reserved(data / "numpred.test.1", 20)],
        recipe=TINY,
        progress=said.append,
    )
    return out, report, said


def test_training_learns_the_task(trained):
    out, report, said = trained
    assert report["tests"]["numpred.val"]["accuracy"] == 1.0
    assert report["tests"]["numpred.test.1"]["by_attractors"]["1"] == {
        "accuracy": 1.0,
        "count": 20,
    }
    assert said[0].loss > said[-1].loss
    assert said[-1].step == len(said) <= said[0].steps
    assert Explainer.from_pretrained(out).explain("the keys of the box").target == "VBP"


def test_what_is_tested_is_not_trained_on(data, trained):
    _, report, _ = trained
    texts = {
        path.name: [line.split("\t")[1] for line in path.read_text().splitlines()]
        for path in data.iterdir()
    }
    tested = {*texts["numpred.val"][:50], *texts["numpred.test.1"][:20]}
    others = [text not in tested for text in texts["numpred.val"]]
    assert report["data"]["read"]["numpred.val"] == sum(others) < 550
    assert report["data"]["trained_on"] + report["data"]["held_out"] <= sum(others)


def test_a_training_leaves_a_report_a_picture_and_a_card(trained):
    out, report, _ = trained
    assert json.loads((out / "training.json").read_text()) == report
    assert (out / "training.png").read_bytes().startswith(b"\x89PNG")
    card = " ".join((out / "README.md").read_text().split())
    assert "| numpred.test.1 1 attractor | 20 | 1.0000 |" in card
    assert re.search(r"first 50 .*numpred\.val", card)
    assert report["recipe"] == dataclasses.asdict(TINY)
    assert sorted(path.name for path in out.iterdir()) == [
        "README.md",
        "config.json",
        "model.safetensors",
        "tokenizer.json",
        "tokenizer_config.json",
        "training.json",
        "training.png",
    ]


@pytest.mark.parametrize("resume", [False, True])
def test_a_trained_model_is_not_written_over(data, trained, resume):
    out, _, _ = trained
    with pytest.raises(OptionError, match="trained model"):
        train([data / "numpred.val"], out, recipe=TINY, resume=resume)


def test_training_ends_when_nothing_is_gained(data, tmp_path):
    recipe = dataclasses.replace(TINY, epochs=50, learning_rate=1e-7, patience=2)
    report = train([data / "numpred.val"], tmp_path / "out", recipe=recipe)
    assert len(report["curve"]) < 50
    held_out = [point["held_out"] for point in report["curve"]]
    assert held_out.index(max(held_out)) == len(held_out) - 3


def test_words_that_are_spelt_alike_begin_alike():
    tokenizer = build_tokenizer(["key keys moth moths glass class NNS 1950s"])
    weight = torch.randn(len(tokenizer), 400)
    before = weight.clone()
    _embed_by_spelling(weight, tokenizer, 1.0)

    def likeness(first, second):
        vectors = [weight[tokenizer.convert_tokens_to_ids(word)] for word in (first, second)]
        return float(torch.cosine_similarity(*vectors, dim=0))

    assert likeness("key", "keys") > 0.1
    assert likeness("keys", "moths") > 0.1
    assert likeness("glass", "class") > 0.3
    assert abs(likeness("key", "moths")) < 0.15
    for word in ("NNS", "1950s", "[UNK]"):
        index = tokenizer.convert_tokens_to_ids(word)
        assert (weight[index] == before[index]).all()


@pytest.mark.parametrize(
    ("word", "stem"),
    [
        ("keys", "key"),
        ("cities", "city"),
        ("glass", "glass"),
        ("churches", "church"),
        ("virus", "virus"),
        ("basis", "basis"),
        ("classes", "class"),
        ("key", "key"),
    ],
)
def test_a_plural_has_the_stem_of_its_singular(word, stem):
    assert _stem(word) == stem


TRAIN = """
    import sys
    from attnflow.paper.train import Recipe, train
    from attnflow.paper.train import Reserved
    import torch
    torch.set_num_threads(1)
    data, out, resume = sys.argv[1:]
    train([data + "/numpred.val"], out, extra=[data + "/numpred.test.1"],
          test=[Reserved(data + "/numpred.val", 50)], recipe=Recipe(**{recipe}),
          resume=resume == "resume", save_every=0.0, progress=lambda s: print(s.step, flush=True))
"""


def start(data, out, resume):
    recipe = {**dataclasses.asdict(TINY), "epochs": 3, "dropout": 0.1}
    script = textwrap.dedent(TRAIN).replace("{recipe}", repr(recipe))
    return subprocess.Popen(
        [sys.executable, "-c", script, str(data), str(out), resume],
        stdout=subprocess.PIPE,
        text=True,
    )


def weights(folder):
    model = AutoModelForSequenceClassification.from_pretrained(folder)
    return {name: value.numpy() for name, value in model.state_dict().items()}


@pytest.mark.exhaustive
def test_a_killed_training_goes_on_to_the_same_weights(data, tmp_path):
    with start(data, tmp_path / "whole", "") as whole:
        steps = int(whole.stdout.read().split()[-1])
    assert whole.returncode == 0
    for number, stop in enumerate((steps // 5, steps // 2)):
        with start(data, tmp_path / "killed", "resume" if number else "") as process:
            for line in process.stdout:
                if int(line) >= stop:
                    process.send_signal(signal.SIGKILL)
                    break
            process.stdout.read()
        assert process.returncode == -signal.SIGKILL
    assert not (tmp_path / "killed" / "model.safetensors").exists()
    with start(data, tmp_path / "killed", "resume") as process:
        first = int(process.stdout.readline())
        process.stdout.read()
    assert process.returncode == 0
    assert steps // 2 <= first < steps
    expected, found = weights(tmp_path / "whole"), weights(tmp_path / "killed")
    assert expected.keys() == found.keys()
    assert all((expected[name] == found[name]).all() for name in expected)
    curves = [
        json.loads((tmp_path / name / "training.json").read_text())["curve"]
        for name in ("whole", "killed")
    ]
    assert curves[0] == curves[1]


@pytest.fixture(scope="module")
def cut_off(data, tmp_path_factory):
    out = tmp_path_factory.mktemp("cut-off")

    def stop(status):
        if status.step == 5:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        train([data / "numpred.val"], out, recipe=TINY, progress=stop)
    return out


def test_an_interrupted_training_is_not_begun_again_by_mistake(data, cut_off):
    with pytest.raises(OptionError, match="resume"):
        train([data / "numpred.val"], cut_off, recipe=TINY)


def test_an_interrupted_training_loses_no_step(data, cut_off, tmp_path):
    copy = shutil.copytree(cut_off, tmp_path / "copy")
    said = []
    recipe = TINY
    train([data / "numpred.val"], copy, recipe=recipe, resume=True, progress=said.append)
    assert said[0].step == 6


def test_a_training_of_another_recipe_or_other_data_is_not_gone_on_with(data, cut_off, tmp_path):
    other = dataclasses.replace(TINY, learning_rate=1e-2)
    with pytest.raises(OptionError, match=r"learning_rate.*0\.005"):
        train([data / "numpred.val"], cut_off, recipe=other, resume=True)
    changed = tmp_path / "numpred.val"
    changed.write_text((data / "numpred.val").read_text().replace("dog", "door"))
    with pytest.raises(OptionError, match=r"\bdata\b"):
        train([changed], cut_off, recipe=TINY, resume=True)
    damaged = shutil.copytree(cut_off, tmp_path / "damaged")
    state = damaged / "training-state.pt"
    state.write_bytes(state.read_bytes()[:1000])
    with pytest.raises(DataError, match=r"training-state\.pt.*damaged"):
        train([data / "numpred.val"], damaged, recipe=TINY, resume=True)


def test_two_trainings_do_not_share_a_folder(data, cut_off, tmp_path):
    copy = shutil.copytree(cut_off, tmp_path / "copy")

    def second(status):
        with pytest.raises(OptionError, match=r"the training in .* being written by another run"):
            train([data / "numpred.val"], copy, recipe=TINY, resume=True)
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        train([data / "numpred.val"], copy, recipe=TINY, resume=True, progress=second)
    assert os.listdir(copy) == ["training-state.pt"]


def test_a_training_killed_before_it_saved_anything_starts_from_the_beginning(data, tmp_path):
    recipe = dataclasses.replace(TINY, epochs=1)
    whole = train([data / "numpred.val"], tmp_path / "whole", recipe=recipe)
    (tmp_path / "killed").mkdir()
    (tmp_path / "killed" / ".attnflow-0123.tmp").write_bytes(b"half of it")
    again = train([data / "numpred.val"], tmp_path / "killed", recipe=recipe, resume=True)
    assert again["curve"] == whole["curve"]
    assert sorted(os.listdir(tmp_path / "killed")) == sorted(os.listdir(tmp_path / "whole"))


def test_bad_lines_are_counted_once(data, tmp_path):
    path = tmp_path / "numpred.val"
    path.write_text((data / "numpred.val").read_text() + "bad\n\n")
    with pytest.raises(DataError, match=r"line 601.*tab"):
        train([path], tmp_path / "out", recipe=TINY)
    faults = []
    recipe = dataclasses.replace(TINY, epochs=1)
    report = train([path], tmp_path / "out", recipe=recipe, on_error=faults.append)
    assert [fault.line for fault in faults] == [601, 602]
    assert report["data"]["skipped"] == {"numpred.val": 2}


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"epochs": 0}, "epochs.*0"),
        ({"dropout": 1.0}, r"dropout.*1\.0"),
        ({"learning_rate": float("nan")}, "learning_rate.*nan"),
        ({"dimensions": 10, "heads": 4}, "dimensions.*10.*4 heads"),
    ],
)
def test_a_recipe_that_makes_no_sense_is_told(options, message):
    with pytest.raises(OptionError, match=message):
        Recipe(**options)


def test_too_little_data_is_told(tmp_path):
    path = tmp_path / "numpred.val"
    path.write_text("VBZ\tthe key\n")
    with pytest.raises(DataError, match="sentences"):
        train([path], tmp_path / "out", recipe=TINY)
    with pytest.raises(OptionError, match=r"data.*empty"):
        train([], tmp_path / "out", recipe=TINY)


# Accuracy


def test_accuracy_is_the_share_of_right_answers(trained):
    explainer = Explainer.from_pretrained(trained[0])
    rows = [
        Agreement("the keys of the box", "VBP", 1),
        Agreement("the keys of the box", "VBZ", 1),
        Agreement("the key of the box", "VBZ", None),
    ]
    done = []
    assert accuracy(explainer.model, explainer.tokenizer, rows, done.append) == {
        "accuracy": 2 / 3,
        "count": 3,
        "by_attractors": {
            "unknown": {"accuracy": 1.0, "count": 1},
            "1": {"accuracy": 0.5, "count": 2},
        },
    }
    assert done == [3]
    with pytest.raises(DataError, match="sentence"):
        accuracy(explainer.model, explainer.tokenizer, [])


def test_the_accuracy_of_a_model_of_something_else_is_refused(model):
    other = VerbNumberForSequenceClassification(
        VerbNumberConfig(**SMALL, id2label={0: "bad", 1: "good"}, label2id={"bad": 0, "good": 1})
    )
    with pytest.raises(ModelError, match=r"bad.*good.*VBZ.*VBP"):
        accuracy(other, None, [Agreement("x", "VBZ", None)])


# The checkpoint that ships with the package


def test_the_shipped_checkpoint_is_small_and_knows_the_paper_sentences():
    size = sum(path.stat().st_size for path in checkpoint().rglob("*"))
    assert size <= 10_000_000
    explainer = Explainer.from_pretrained(checkpoint())
    expected = {
        "the key to the cabinets": "VBZ",
        "the keys to the cabinet": "VBP",
        "the keys to the cabinets": "VBP",
        "the key to the cabinet": "VBZ",
    }
    found = {text: explainer.explain(text).prediction.label for text in expected}
    assert found == expected


def test_the_card_of_the_shipped_checkpoint_says_what_its_report_says():
    report = json.loads((checkpoint() / "training.json").read_text())
    card = (checkpoint() / "README.md").read_text()
    assert report["tests"]["numpred.val"]["count"] == 2000
    for test in report["tests"].values():
        assert f"{test['accuracy']:.4f}" in card
    assert report["seconds"] <= 3600
