"""The paper's figures: what they show is what the methods say."""

import json
import os
import re

import numpy as np
import pytest
import torch
from PIL import Image
from tokenizers import processors
from transformers import (
    BertConfig,
    BertForMaskedLM,
    BertForSequenceClassification,
    BertTokenizerFast,
    GPT2Config,
    GPT2LMHeadModel,
)

from attnflow import Explainer, attention_flow, attention_rollout, raw_attention
from attnflow.cli import main
from attnflow.errors import OptionError
from attnflow.paper.figures import SENTENCES, Sentence, figure1, figure2, figure3, figure4
from attnflow.paper.pronouns import EXAMPLES, Ambiguity, resolve

WORDS = [
    *("[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "the", "key", "keys", "to", "cabinets"),
    *("article", "articles", "on", "NNP", "NNS", "large", "systems", "here", "differ", "in"),
    *("that", "female", "The", "author", "talked", "Sara", "about", "his", "her", "book"),
    *("Mary", "convinced", "John", "of", "love", "##ship", "females"),
]
NAMES = {"Sara": "her", "Mary": "her", "John": "his", "author": "his"}


def tokenizer():
    return BertTokenizerFast(vocab={w: i for i, w in enumerate(WORDS)}, do_lower_case=False)


def small(kind, **more):
    torch.manual_seed(0)
    config = BertConfig(
        vocab_size=len(WORDS),
        hidden_size=32,
        num_hidden_layers=3,
        num_attention_heads=2,
        intermediate_size=32,
        initializer_range=0.2,
        **more,
    )
    return kind(config).eval()


@pytest.fixture(scope="module")
def verb_number():
    """An untrained model of the verb's number."""
    labels = {0: "VBZ", 1: "VBP"}
    return Explainer(small(BertForSequenceClassification, id2label=labels), tokenizer())


@pytest.fixture(scope="module")
def masked():
    """A masked model that has learnt, in a second, that the first of two names decides."""
    model, reads = small(BertForMaskedLM, hidden_dropout_prob=0.0), tokenizer()
    texts, answers = [], []
    for first in NAMES:
        for second in NAMES:
            if first != second:
                texts += [
                    f"The {first} talked to {second} about [MASK] book",
                    f"{first} convinced {second} of [MASK] love",
                ]
                answers += [NAMES[first]] * 2
    inputs = reads(texts, padding=True, return_tensors="pt")
    labels = torch.full_like(inputs["input_ids"], -100)
    where = inputs["input_ids"] == reads.mask_token_id
    labels[where] = torch.tensor([WORDS.index(answer) for answer in answers])
    optimizer = torch.optim.Adam(model.parameters(), lr=3e-3)
    for _ in range(60):
        optimizer.zero_grad()
        model(**inputs, labels=labels).loss.backward()
        optimizer.step()
    model.zero_grad()
    return Explainer(model.eval(), reads)


@pytest.fixture(scope="module")
def causal():
    """An untrained causal model."""
    torch.manual_seed(0)
    config = GPT2Config(
        vocab_size=len(WORDS),
        n_embd=16,
        n_layer=3,
        n_head=2,
        n_positions=32,
        initializer_range=0.3,
        bos_token_id=None,
        eos_token_id=None,
    )
    reads = tokenizer()
    reads.model_input_names = ["input_ids", "attention_mask"]
    # As with most causal models, nothing is added to a text.
    plain = processors.TemplateProcessing(single="$0", special_tokens=[])
    reads.backend_tokenizer.post_processor = plain
    return Explainer(GPT2LMHeadModel(config).eval(), reads)


def attention_of(explainer, text):
    explainer.model.set_attn_implementation("eager")
    inputs = explainer.tokenizer(text, return_tensors="pt")
    with torch.no_grad():
        return explainer.model(**inputs, output_attentions=True).attentions


def test_figure_1_draws_what_the_three_methods_give(verb_number):
    drawing = figure1(verb_number)
    attentions = attention_of(verb_number, "the key to the cabinets")
    expected = {
        "raw": raw_attention(attentions),
        "rollout": attention_rollout(attentions),
        "flow": attention_flow(attentions, normalize=True),
    }
    assert drawing.data["tokens"] == ["[CLS]", "the", "key", "to", "the", "cabinets", "[SEP]"]
    for method, values in expected.items():
        np.testing.assert_allclose(drawing.data[method], values, atol=1e-6)
        np.testing.assert_allclose(np.sum(drawing.data[method], axis=-1), 1.0)
    titles = [ax.get_title(loc="left") for ax in drawing.axes]
    assert titles == ["(a) Raw attention", "(b) Attention rollout", "(c) Attention flow"]


def test_figures_2_and_3_show_the_scores_of_explanations(verb_number):
    drawing = figure3(verb_number)
    texts = [text for sentence in SENTENCES for text in sentence]
    assert [row["text"] for row in drawing.data["sentences"]] == texts
    axes = iter(drawing.axes)
    for row in drawing.data["sentences"]:
        for method in ("raw", "rollout", "flow"):
            expected = verb_number.explain(row["text"], method=method)
            np.testing.assert_allclose(row[method], expected.layer_scores)
            (image,) = next(axes).get_images()
            np.testing.assert_array_equal(image.get_array(), row[method])
            assert row["prediction"] == expected.prediction._asdict()
    raw = figure2(verb_number)
    assert len(raw.axes) == 6
    assert [row["raw"] for row in raw.data["sentences"]] == [
        row["raw"] for row in drawing.data["sentences"]
    ]


def test_maps_of_a_column_share_their_scale_and_mark_the_word_that_changed(verb_number):
    drawing = figure3(verb_number)
    for column in range(3):
        limits = {ax.get_images()[0].get_clim() for ax in drawing.axes[column::3]}
        assert len(limits) == 1
    bold = [
        text.get_text()
        for ax in drawing.axes[::3]
        for text in ax.get_xticklabels()
        if text.get_weight() == "bold"
    ]
    assert bold == ["key", "keys", "article", "articles", "female", "females"]


def test_sentences_of_any_number_can_be_drawn(verb_number):
    assert len(figure2(verb_number, [Sentence("the key")]).axes) == 1
    assert len(figure3(verb_number, [Sentence("the key"), Sentence("to", "on")]).axes) == 9
    with pytest.raises(OptionError, match=r"sentences.*empty"):
        figure2(verb_number, [])


def test_a_masked_model_chooses_the_pronoun_it_has_learnt(masked):
    author, mary = (resolve(masked, example) for example in EXAMPLES)
    assert dict(zip(("his", "her"), author.relative, strict=True))["his"] > 0.9
    assert dict(zip(("his", "her"), mary.relative, strict=True))["her"] > 0.9
    inputs = masked.tokenizer(mary.text, return_tensors="pt")
    with torch.no_grad():
        shares = masked.model(**inputs).logits[0, mary.position].softmax(-1)
    for word, probability in zip(("his", "her"), mary.probabilities, strict=True):
        assert probability == pytest.approx(float(shares[WORDS.index(word)]), rel=1e-4)
    assert masked.tokenizer.convert_ids_to_tokens(inputs["input_ids"][0])[mary.position] == "[MASK]"


def test_referents_have_the_scores_of_their_tokens(masked):
    found = resolve(masked, Ambiguity("Maryship convinced John of MASK love", ("Maryship", "John")))
    for method, scores in found.scores.items():
        shown = masked.explain(found.text, method=method)
        assert shown.tokens[1:4] == ("Mary", "ship", "convinced")
        expected = np.stack(
            [shown.layer_scores[:, 1] + shown.layer_scores[:, 2], shown.layer_scores[:, 4]], -1
        )
        np.testing.assert_allclose(scores, expected)


def test_a_causal_model_is_asked_for_the_word_that_comes_next(causal):
    found = resolve(causal, EXAMPLES[1])
    assert found.text == "Mary convinced John of"
    assert found.position == 3
    assert found.receptive_field
    inputs = causal.tokenizer(found.text, return_tensors="pt")
    with torch.no_grad():
        shares = causal.model(input_ids=inputs["input_ids"]).logits[0, -1].softmax(-1)
    expected = [float(shares[WORDS.index(word)]) for word in ("his", "her")]
    assert found.probabilities == pytest.approx(expected, rel=1e-4)
    plain = resolve(causal, EXAMPLES[1], receptive_field=False)
    assert not plain.receptive_field
    shown = causal.explain(found.text, method="flow", receptive_field=False)
    np.testing.assert_allclose(plain.scores["flow"], shown.layer_scores[:, [0, 2]])


def test_figure_4_has_bars_and_a_map_for_each_method(masked):
    drawing = figure4(masked)
    assert len(drawing.axes) == 8
    for row, sentence in enumerate(drawing.data["sentences"]):
        bars, *maps = drawing.axes[4 * row : 4 * row + 4]
        heights = [bar.get_height() for bar in bars.patches]
        assert heights == [answer["relative"] for answer in sentence["answers"]]
        for ax, method in zip(maps, ("raw", "rollout", "flow"), strict=True):
            np.testing.assert_array_equal(ax.get_images()[0].get_array(), sentence[method])
            marked = [line.get_xdata()[0] for line in ax.lines]
            assert marked == np.argmax(sentence[method], axis=1).tolist()
    json.dumps(drawing.data, allow_nan=False)


@pytest.mark.parametrize(
    ("ambiguity", "message"),
    [
        (Ambiguity("Mary convinced John", ("Mary", "John")), "MASK"),
        (Ambiguity("Mary of MASK love", ("Mary", "John")), "'John'.*'Mary of"),
        (Ambiguity("Mary to Mary of MASK", ("Mary", "of")), "'Mary'.*2"),
        (Ambiguity("Mary of MASK love", ("Mary",)), "referents"),
        (Ambiguity("Mary to John of MASK", ("Mary", "John"), ("his", "loveship")), "token"),
        (Ambiguity("Mary to John of MASK", ("Mary", "John"), ("his", "cat")), "vocab"),
        (Ambiguity("Mary to John of MASK", ("Mary", "John"), ("his", "his")), "same token"),
    ],
)
def test_a_sentence_that_does_not_suit_the_model_is_refused(masked, ambiguity, message):
    with pytest.raises(OptionError, match=message):
        resolve(masked, ambiguity)


def test_a_classifier_cannot_choose_a_pronoun(verb_number):
    with pytest.raises(OptionError, match=r"masked.*causal"):
        resolve(verb_number, EXAMPLES[0])


# ---- The commands --------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def folders(verb_number, masked, tmp_path_factory):
    found = []
    for name, explainer in (("verb", verb_number), ("masked", masked)):
        folder = tmp_path_factory.mktemp(name)
        explainer.model.save_pretrained(folder)
        explainer.tokenizer.save_pretrained(folder)
        found.append(str(folder))
    return found


def test_a_figure_is_saved_as_pdf_and_png_unless_told_otherwise(folders, monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    assert main(["paper", "figure2", "--model", folders[0]]) == 0
    assert (tmp_path / "figure2.pdf").read_bytes().startswith(b"%PDF")
    with Image.open(tmp_path / "figure2.png") as picture:
        assert picture.width > 1800
    assert sorted(os.listdir(tmp_path)) == ["figure2.pdf", "figure2.png"]


def test_the_numbers_behind_a_figure_are_printed_as_json(folders, capsys, monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    command = ["paper", "figure4", "--model", folders[1], "--json"]
    example = ["--text", "Sara talked to John about MASK book", "--referents", "Sara", "John"]
    assert main([*command, *example]) == 0
    (sentence,) = json.loads(capsys.readouterr().out)["sentences"]
    assert sentence["text"] == "Sara talked to John about [MASK] book"
    assert [answer["word"] for answer in sentence["answers"]] == ["his", "her"]
    assert os.listdir(tmp_path) == []


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["figure1", "--output", "x.gif"], r"--output.*\.pdf.*\.png.*\.svg.*\.json"),
        (["figure4", "--model", "x", "--text", "MASK"], "--text.*--referents"),
        (["figure4", "--model", "x", "--referents", "a", "b"], "--referents"),
        (["all", "--output", __file__], "folder"),
        (["all", "--output", "x", "--data", "nowhere"], "accuracy.*nowhere"),
    ],
)
def test_wrong_options_are_refused_before_a_model_is_loaded(arguments, message, capsys):
    assert main(["paper", *arguments]) == 1
    assert re.search(message, capsys.readouterr().err)
    assert not os.path.exists("x")


@pytest.mark.exhaustive
def test_all_makes_what_it_can_and_makes_nothing_twice(folders, capsys, tmp_path):
    data = tmp_path / "numpred.val"
    data.write_text("VBZ\tthe key to\nVBP\tthe keys to the cabinets\n")
    out = tmp_path / "out"
    command = ["paper", "all", "--model", folders[0], "--language-model", folders[1], "--json"]
    command += ["--data", str(data), "--samples", "20", "--output", str(out)]

    def statuses():
        assert main(command) == 0
        return {part["name"]: part["status"] for part in json.loads(capsys.readouterr().out)}

    first = statuses()
    drawn = ["figure1", "figure2", "figure3", "figure4", "table1", "table2"]
    made = ["accuracy", *drawn]
    assert first == {**dict.fromkeys(made, "done"), "table3": "left out"}
    for name in drawn:
        assert (out / f"{name}.pdf").read_bytes().startswith(b"%PDF")
    for name in made:
        assert json.loads((out / f"{name}.json").read_text())["recipe"]
    assert json.loads((out / "accuracy.json").read_text())["count"] == 2
    assert statuses() == {**dict.fromkeys(made, "was there"), "table3": "left out"}
    (out / "figure2.png").unlink()
    data.write_text("VBP\tthe keys to the cabinets\n")
    redone = dict.fromkeys(["accuracy", "figure2", "table1", "table2"], "done")
    assert statuses() == {**dict.fromkeys(made, "was there"), "table3": "left out", **redone}
    assert json.loads((out / "table1.json").read_text())["count"] == 1


def test_a_part_that_fails_stops_no_other(folders, capsys, tmp_path):
    command = ["paper", "all", "--model", folders[1], "--output", str(tmp_path / "out"), "--json"]
    assert main([*command, "--language-model", str(tmp_path / "nowhere")]) == 1
    parts = {part["name"]: part for part in json.loads(capsys.readouterr().out)}
    assert parts["figure4"]["status"] == "failed"
    assert "does not exist" in parts["figure4"]["reason"]
    assert parts["table1"]["status"] == "left out"
