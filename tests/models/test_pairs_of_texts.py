"""Two texts that a model reads as a pair: NLI models, rerankers, cross-encoders."""

import inspect
import io
import json
import sys
import time
from pathlib import Path

import numpy as np
import pyarrow.parquet
import pytest
import torch
import transformers

import attnflow
from attnflow import Explainer, Explanation, OptionError, TextError
from attnflow.cli import main
from attnflow.dataset import load_attentions
from attnflow.evaluate.run import evaluate
from attnflow.evaluate.stored import evaluate_stored
from attnflow.importance import blank_out, integrated_gradients
from attnflow.models.verb_number import checkpoint
from attnflow.options import Options
from attnflow.serve import Limits
from attnflow.serve.answer import Answer, Refused
from attnflow.serve.metrics import Metrics
from attnflow.serve.openapi import openapi
from attnflow.serve.question import Question, question_type, read_question
from attnflow.serve.queue import FairQueue, Job
from attnflow.serve.worker import Worker
from attnflow.view.browse import browse, explain_row
from attnflow.view.pieces import labels
from tests.support.architectures import CAUSAL, MODELS, build
from tests.support.text import SIZES, VOCABULARY, classifier, decoder, decoder_tokenizer, encoder
from tests.support.tiny import sharpen

# DeBERTa calls it when it is imported.
pytestmark = pytest.mark.filterwarnings("ignore:`torch.jit.script` is deprecated")

PAIR = ("the keys are on the tables", "a cabinet")
OTHER = ("no one will forget", "that film is on the table")
# "tables" is two tokens, table and ##s.
NAMES = ["[CLS]", "the", "keys", "are", "on", "the", "table", "s", "[SEP]", "a", "cabinet", "[SEP]"]


def tokenizer():
    """That of BERT, which gives the second text another type."""
    return transformers.BertTokenizerFast(vocab=VOCABULARY)


@pytest.fixture(scope="module")
def explainer():
    return Explainer(classifier().model, tokenizer())


@pytest.fixture(scope="module")
def masked():
    model = transformers.BertForMaskedLM(transformers.BertConfig(**SIZES))
    return Explainer(sharpen(model), tokenizer())


@pytest.fixture(scope="module")
def folder(explainer, tmp_path_factory):
    """A saved classifier, for the command line."""
    path = tmp_path_factory.mktemp("model")
    explainer.model.save_pretrained(path)
    explainer.tokenizer.save_pretrained(path)
    return str(path)


def table(path, rows):
    """A CSV file with the columns premise, hypothesis and label."""
    lines = ["premise,hypothesis,label", *(",".join(row) for row in rows)]
    path.write_text("\n".join(lines) + "\n", encoding="utf-8")
    return str(path)


def encoded(explainer, pair):
    return explainer.tokenizer(*pair, return_tensors="pt")


# ---- Reading -------------------------------------------------------------------------------------


def test_a_tuple_is_one_input_of_two_texts_and_a_list_mixes_texts_and_pairs(explainer):
    found = explainer.explain(PAIR)
    assert isinstance(found, Explanation)
    assert list(found.tokens) == NAMES
    mixed = explainer.explain([PAIR, "the keys are on", OTHER])
    assert mixed[0].tokens == found.tokens
    assert np.allclose(mixed[0].scores, found.scores, atol=1e-5)
    assert [len(one.segments) for one in mixed] == [2, 0, 2]
    assert mixed[2].text == "\n".join(OTHER)


def test_the_model_is_given_what_the_tokenizer_makes_of_a_pair(explainer):
    read = explainer.adapter.read(PAIR)
    expected = encoded(explainer, PAIR)
    assert set(read.inputs) == {"input_ids", "token_type_ids", "attention_mask"}
    for name, values in read.inputs.items():
        assert values == expected[name][0].tolist()
    # The second text, with the SEP that ends it.
    assert read.inputs["token_type_ids"] == [0] * 9 + [1] * 3


def test_spans_and_segments_are_places_in_both_texts(explainer):
    found = explainer.explain(PAIR, method="raw")
    assert [found.text[one.start : one.end] for one in found.segments] == list(PAIR)
    assert [one.name for one in found.segments] == ["first", "second"]
    for token, span in zip(found.tokens, found.spans, strict=True):
        assert span is None or found.text[slice(*span)] == token


def test_raw_attention_is_the_eager_attention_of_the_pair(explainer):
    model = explainer.model
    with torch.no_grad():
        model.set_attn_implementation("eager")
        try:
            rows = model(**encoded(explainer, PAIR), output_attentions=True).attentions
        finally:
            model.set_attn_implementation("sdpa")
    # Beside a longer pair and a text, so that it is padded.
    found = explainer.explain([PAIR, OTHER, "the keys"], method="raw", position=0)[0]
    expected = torch.stack(rows)[:, 0].mean(dim=1)[:, 0].numpy()
    assert np.allclose(found.layer_scores, expected, atol=1e-6)


def test_contributions_add_up_to_the_answer_for_the_pair(explainer):
    found = explainer.explain(PAIR, target="good", contrast="bad")
    with torch.no_grad():
        logits = explainer.model(**encoded(explainer, PAIR)).logits[0]
    answer = float(logits[1] - logits[0])
    assert found.value == pytest.approx(answer, abs=1e-4)
    assert found.scores.sum() + found.bias == pytest.approx(answer, abs=1e-3)
    assert not any("add up" in note for note in found.notes)
    # The second text matters to it.
    assert found.value != pytest.approx(
        explainer.explain(PAIR[0], target="good", contrast="bad").value, abs=1e-3
    )


@pytest.mark.parametrize("family", [name for name in MODELS if name not in CAUSAL])
def test_every_encoder_reads_pairs_as_its_tokenizer_gives_them(family):
    explainer = Explainer(build(family, type_vocab_size=2), tokenizer())
    pair = ("the keys are", "on the [MASK]")
    model, inputs = build(family, "eager", type_vocab_size=2), encoded(explainer, pair)
    taken = inspect.signature(model.forward).parameters
    with torch.no_grad():
        given = {name: values for name, values in inputs.items() if name in taken}
        rows = model(**given, output_attentions=True).attentions
    found = explainer.explain(pair, method="raw", position=1)
    expected = torch.stack(rows)[:, 0].mean(dim=1)[:, 1].numpy()
    assert np.allclose(found.layer_scores, expected, atol=1e-5)
    answer = explainer.explain(pair)
    error = abs(answer.scores.sum() + answer.bias - answer.value)
    assert error < 1e-4 * np.abs(answer.scores).sum()


def test_encoders_and_masked_language_models_read_pairs(masked):
    found = encoder().explain(PAIR)
    assert list(found.tokens) == NAMES
    filled = masked.explain(("the keys are", "on the [MASK]"), check=True)
    assert filled.position == filled.tokens.index("[MASK]")
    with torch.no_grad():
        logits = masked.model(**encoded(masked, ("the keys are", "on the [MASK]"))).logits
    assert filled.prediction.index == int(logits[0, filled.position].argmax())
    assert filled.text[slice(*filled.spans[filled.position])] == "[MASK]"


def test_a_slow_tokenizer_has_segments_without_spans(explainer, monkeypatch):
    class Slow:
        """Calls the tokenizer without what only a fast one gives."""

        is_fast = False

        def __getattr__(self, name):
            return getattr(explainer.tokenizer, name)

        def __call__(self, *texts, return_offsets_mapping=False, **options):
            assert not return_offsets_mapping
            return dict(explainer.tokenizer(*texts, **options))

    found = Explainer(explainer.model, Slow()).explain(PAIR, method="raw")
    assert found.spans == (None,) * len(NAMES)
    assert len(found.segments) == 2
    with pytest.raises(TextError, match=r"have 32 tokens, 35 with special tokens"):
        Explainer(explainer.model, Slow()).explain(("the keys " * 8, "the keys " * 8))


# ---- Units and references ------------------------------------------------------------------------


def test_no_unit_is_in_two_texts(explainer):
    # Without the line break these would be one word, and one sentence.
    pair = ("the key", "s are on")
    words = explainer.explain(pair, units="words")
    assert [name for name in words.tokens if name[0] != "["] == ["the", "key", "s", "are", "on"]
    sentences = explainer.explain(pair, units="sentences")
    assert sentences.tokens == ("[CLS]", "the key", "[SEP]", "s are on", "[SEP]")
    whole = explainer.explain(pair)
    segments = explainer.explain(pair, units="segments")
    assert segments.tokens == ("[CLS]", "first", "[SEP]", "second", "[SEP]")
    assert segments.scores[1] == pytest.approx(whole.scores[1:3].sum())
    assert segments.scores[3] == pytest.approx(whole.scores[4:7].sum())
    assert labels(segments.pieces)[1::2] == ["first", "second"]


def test_the_check_of_segments_blanks_out_one_text_as_a_whole(explainer):
    found = explainer.explain(PAIR, units="segments", check=True, target="good", contrast="bad")
    inputs = encoded(explainer, PAIR)
    unknown = explainer.tokenizer.unk_token_id

    def answer(blanked):
        ids = inputs["input_ids"].clone()
        ids[0, blanked] = unknown
        with torch.no_grad():
            logits = explainer.model(**{**inputs, "input_ids": ids}).logits[0]
        return float(logits[1] - logits[0])

    whole = answer([])
    expected = [whole - answer(list(range(1, 8))), whole - answer([9, 10])]
    assert found.check.names == ("first", "second")
    assert np.allclose(found.check.effects, expected, atol=1e-4)


def test_blank_out_and_gradients_score_every_token_of_a_pair(explainer):
    inputs = encoded(explainer, PAIR)
    with torch.no_grad():
        whole = explainer.model(**inputs).logits[0].softmax(-1)
        target = int(whole.argmax())
        expected = []
        for place in range(len(NAMES)):
            ids = inputs["input_ids"].clone()
            ids[0, place] = explainer.tokenizer.unk_token_id
            changed = explainer.model(**{**inputs, "input_ids": ids}).logits[0].softmax(-1)
            expected.append(abs(float(whole[target] - changed[target])))
    assert np.allclose(blank_out(explainer, PAIR), expected, atol=1e-5)
    many = blank_out(explainer, [PAIR, "the keys"])
    assert [len(one) for one in many] == [len(NAMES), 4]
    assert integrated_gradients(explainer, PAIR, steps=2).shape == (len(NAMES),)


# ---- Errors --------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("given", "said"),
    [
        (("the keys",), r"two texts, and this one has 1 items; expected \(first, second\)"),
        (("a", "film", "that"), r"this one has 3 items.*a list for many"),
        (("the keys", " "), "the second text of the pair is empty"),
        (("", "the keys"), "the first text of the pair is empty"),
        (("the keys", 3), "the second text of the pair is int"),
        ((["the keys"], "a film"), "the first text of the pair is list"),
        ([PAIR, ("a", "")], "item 1: the second text"),
        ([PAIR, ["a", "film"]], "item 1: the text is list; expected a string, or a tuple of two"),
    ],
)
def test_what_is_not_a_pair_is_refused(given, said, explainer):
    with pytest.raises(TextError, match=said):
        explainer.explain(given)


def test_a_causal_language_model_says_what_to_do_with_two_texts():
    for call in (decoder().explain, decoder().generate):
        with pytest.raises(TextError, match=r"LlamaForCausalLM is a causal.*join them to one"):
            call(PAIR)


def test_a_tokenizer_that_leaves_cls_out_of_a_pair_is_refused(tmp_path):
    shipped = Explainer.from_pretrained(checkpoint())
    assert shipped.tokenizer.cls_token_id not in shipped.tokenizer(*PAIR)["input_ids"]
    with pytest.raises(TextError, match=r"has a tokenizer for one: .*; join them to one text"):
        shipped.explain(PAIR)
    with pytest.raises(OptionError, match="pair_column is 'pair'"):
        attnflow.run([PAIR], shipped, output=tmp_path)


def test_a_text_of_a_pair_without_tokens_is_named(explainer):
    # Control characters are not tokens.
    with pytest.raises(TextError, match="no token in the second text of the pair"):
        explainer.explain(("the keys", "\x00\x01"))


def test_a_tokenizer_without_token_types_gets_a_note():
    # What the tests of other files have: transformers' general class, which gives none.
    assert any("gives no token types" in note for note in classifier().explain(PAIR).notes)


def test_a_model_of_one_token_type_refuses_pairs(explainer):
    config = transformers.BertConfig(**SIZES, type_vocab_size=1)
    model = transformers.BertForSequenceClassification(config).eval()
    with pytest.raises(TextError, match=r"types up to 1, and .* knows 1: it was not made for"):
        Explainer(model, explainer.tokenizer).explain(PAIR)


def test_a_pair_that_is_too_long_is_cut_at_the_longer_text(explainer):
    first, second = "the keys are on the tables " * 4, "a cabinet"
    with pytest.raises(TextError, match=r"two texts have 28 and 2 tokens, 33 with special .* 24"):
        explainer.explain((first, second))
    found = explainer.explain((first, second), truncate=True)
    expected = explainer.tokenizer(first, second, truncation="longest_first", max_length=24)
    names = explainer.tokenizer.convert_ids_to_tokens(expected["input_ids"])
    assert [name.removeprefix("##") for name in names] == list(found.tokens)
    assert found.tokens[-3:] == ("a", "cabinet", "[SEP]")
    assert found.notes[0] == "The first text was cut: the model read 19 of its 28 tokens."
    both = explainer.explain((first, first), truncate=True)
    assert [note.split()[1] for note in both.notes if "was cut" in note] == ["first", "second"]


def test_a_text_that_is_cut_says_so(explainer):
    [note] = explainer.explain("the keys are on the tables " * 4, truncate=True).notes
    assert note == "The text was cut: the model read 22 of its 28 tokens."


def test_a_tokenizer_that_puts_nothing_between_the_texts_gets_a_note():
    config = transformers.GPT2Config(
        vocab_size=len(VOCABULARY), n_embd=16, n_layer=2, n_head=2, pad_token_id=0
    )
    model = sharpen(transformers.GPT2ForSequenceClassification(config))
    found = Explainer(model, decoder_tokenizer()).explain(("the film", "a table"), method="raw")
    assert any("puts nothing between the two texts" in note for note in found.notes)
    assert len(found.segments) == 2


# ---- Showing -------------------------------------------------------------------------------------


def test_both_texts_are_labelled_wherever_the_text_is_shown(explainer):
    found = explainer.explain(PAIR)
    stream = io.StringIO()
    found.show(stream)
    lines = [line.strip() for line in stream.getvalue().splitlines()]
    assert "first: [CLS] the keys are on the tables [SEP]" in lines
    assert "second: a cabinet [SEP]" in lines
    fragment = found._repr_html_()
    assert fragment.index("first: ") < fragment.index("second: ") < fragment.index("cabinet")
    page = found.to_html()
    assert '["first: ",[],true]' in page
    assert '["second: ",null,null,true]' in page
    static = page.partition("<main")[2].partition("</main>")[0]
    assert "<b>second: </b></bdi>a cabinet" in static


def test_a_label_is_not_part_of_the_text_without_segments(explainer):
    stream = io.StringIO()
    explainer.explain(PAIR[0]).show(stream)
    assert "first:" not in stream.getvalue()


def test_figures_name_the_texts_at_their_first_tokens(explainer):
    from attnflow.view.figures import heat_map, token_bars

    found = explainer.explain(PAIR)
    ticks = [text.get_text() for text in heat_map(found)[1].get_xticklabels()]
    assert "first: the" in ticks
    assert "second: a" in ticks
    names = [text.get_text() for text in token_bars(found)[1].get_yticklabels()]
    assert [name for name in names if ":" in name] == ["first: the (1st)", "second: a"]


def test_an_explanation_of_a_pair_survives_json(explainer, tmp_path):
    found = explainer.explain(PAIR, units="words")
    found.save(tmp_path / "pair.json")
    again = Explanation.load(tmp_path / "pair.json")
    assert again == found
    assert again.segments == found.segments
    assert json.loads(json.dumps(found.to_dict()))["segments"][1] == ["second", 27, 36]


# ---- Data sets -----------------------------------------------------------------------------------


def test_a_run_over_pairs_stores_both_texts_and_is_shown(explainer, tmp_path):
    rows = [
        {"premise": PAIR[0], "hypothesis": PAIR[1], "stars": 3},
        {"premise": "the keys", "hypothesis": ""},
        {"premise": "the keys"},
        {"premise": OTHER[0], "hypothesis": OTHER[1], "stars": 4},
    ]
    options = {"text_column": "premise", "pair_column": "hypothesis", "workers": 1}
    result = attnflow.run(rows, explainer, output=tmp_path / "out", **options)
    assert (result.rows, result.failed) == (2, 2)
    stored = pyarrow.parquet.read_table(tmp_path / "out/data").to_pylist()
    assert [(row["text"], row["pair"], row["stars"]) for row in stored] == [(*PAIR, 3), (*OTHER, 4)]
    assert "hypothesis" not in stored[0]
    for row, pair in zip(stored, (PAIR, OTHER), strict=True):
        expected = explainer.explain(pair)
        assert row["tokens"] == list(expected.tokens)
        assert np.allclose(row["scores"], expected.scores, atol=1e-5)
        starts = [None if span is None else span[0] for span in expected.spans]
        assert row["starts"] == starts
    reasons = pyarrow.parquet.read_table(tmp_path / "out/errors")["reason"].to_pylist()
    assert reasons == [
        "the second text of the pair is empty; expected two texts",
        "there is no 'hypothesis'",
    ]
    again = attnflow.run(rows, explainer, output=tmp_path / "out", **options)
    assert again.new == 0
    page = browse(tmp_path / "out")
    assert "second: a cabinet [SEP]" in page
    found = evaluate_stored(tmp_path / "out", explainer, workers=1, samples=10)
    assert found.count == 2
    assert not found.skipped


def test_tuples_are_rows_and_kept_attention_knows_its_segments(explainer, tmp_path):
    attnflow.run([PAIR, OTHER], explainer, output=tmp_path / "out", workers=1, keep=("attentions",))
    stored = load_attentions(tmp_path / "out").row(1)
    expected = explainer.explain(OTHER, method="rollout", units="segments")
    found = stored.explain(method="rollout", units="segments")
    assert found.tokens == expected.tokens
    assert np.allclose(found.scores, expected.scores, atol=1e-3)
    assert explain_row(tmp_path / "out", 0).segments == explainer.explain(PAIR).segments


def test_a_pair_column_is_refused_where_it_means_nothing(explainer, tmp_path):
    rows = [{"text": "the keys", "more": "a film"}]
    with pytest.raises(OptionError, match=r"pair_column is 'more', but .* causal-lm"):
        attnflow.run(rows, decoder(), output=tmp_path / "a", pair_column="more")
    with pytest.raises(OptionError, match=r"pair_column is 'mor', but .*'text', 'more'"):
        attnflow.run(rows, explainer, output=tmp_path / "b", pair_column="mor")


# ---- Evaluation ----------------------------------------------------------------------------------


def test_an_evaluation_takes_pairs(explainer):
    found = evaluate(explainer, [PAIR, OTHER], samples=10, workers=1, faithfulness=True)
    assert [text.tokens for text in found.texts] == [len(NAMES), 13]
    assert not found.skipped


def test_evidence_is_looked_for_in_both_texts(explainer):
    options = {"references": None, "samples": 10, "workers": 1, "methods": "contribution"}
    targets = [explainer.explain(PAIR).prediction.label] * 2
    by_word = evaluate(
        explainer, [PAIR, PAIR], evidence=["cabinet", "29-36"], targets=targets, **options
    )
    found = by_word.evidence
    assert np.array_equal(found[0], found[1], equal_nan=True)


def test_a_masked_answer_in_the_second_text_is_compared(masked):
    pair = ("the keys are", "on the [MASK]")
    found = evaluate(
        masked,
        [pair],
        targets=["table"],
        contrasts=["cabinet"],
        evidence=["keys"],
        keep_wrong=True,
        references=None,
        methods="contribution",
        samples=10,
        workers=1,
    )
    assert len(found.texts) == 1


# ---- The command line ----------------------------------------------------------------------------


def test_the_command_line_explains_a_pair(folder, explainer, capsys, monkeypatch):
    assert main(["explain", "--model", folder, PAIR[0], "--pair", PAIR[1], "--json"]) == 0
    found = Explanation.from_dict(json.loads(capsys.readouterr().out))
    assert found.tokens == tuple(NAMES)
    assert np.allclose(found.scores, explainer.explain(PAIR).scores, atol=1e-5)
    lines = "\n".join("\t".join(pair) for pair in (PAIR, OTHER))
    standard = io.TextIOWrapper(io.BytesIO(f"{lines}\n".encode()))
    monkeypatch.setattr(sys, "stdin", standard)
    assert main(["explain", "--model", folder, "--tab-pairs", "--json"]) == 0
    both = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert [one["text"] for one in both] == ["\n".join(PAIR), "\n".join(OTHER)]


@pytest.mark.parametrize(
    ("arguments", "given", "said"),
    [
        (["a text", "--tab-pairs"], "", "--tab-pairs reads pairs from standard input"),
        (["--tab-pairs", "--pair", "a"], "", "--tab-pairs reads pairs from standard input"),
        (["--tab-pairs"], "the keys\ta\nthe keys", "line 2: 0 tabs"),
        (["--attentions", "x", "--pair", "a"], "", "--pair needs a model"),
        (["the keys", "--pair", " "], "", "the second text of the pair is empty"),
    ],
)
def test_the_command_line_says_what_is_wrong_with_a_pair(
    arguments, given, said, folder, capsys, monkeypatch
):
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(given.encode())))
    model = [] if "--attentions" in arguments else ["--model", folder]
    assert main(["explain", *model, *arguments]) == 1
    assert said in capsys.readouterr().err


def test_run_and_evaluate_have_a_pair_column(folder, tmp_path, capsys):
    data = table(tmp_path / "nli.csv", [(*PAIR, "good"), (*OTHER, "bad")])
    columns = ["--text-column", "premise", "--pair-column", "hypothesis"]
    output = str(tmp_path / "out")
    arguments = ["run", data, *columns, "--model", folder, "--output", output, "--json"]
    assert main([*arguments, "--workers", "1"]) == 0
    assert json.loads(capsys.readouterr().out)["rows"] == 2
    assert main(["view", output, "--output", str(tmp_path / "out.html"), "--no-open"]) == 0
    evaluation = ["evaluate", "--model", folder, "--data", data, *columns, "--workers", "1"]
    capsys.readouterr()
    assert main([*evaluation, "--label-column", "label", "--samples", "10", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["model"] == Path(folder).name
    assert main(["evaluate", "--data", output, "--workers", "1", "--samples", "10"]) == 0


def test_evaluate_refuses_a_pair_column_for_a_model_that_reads_one_text(tmp_path, capsys):
    folder = tmp_path / "model"
    writer = decoder()
    writer.model.save_pretrained(folder)
    writer.tokenizer.save_pretrained(folder)
    data = table(tmp_path / "nli.csv", [(*PAIR, "good")])
    flags = ["--text-column", "premise", "--pair-column", "hypothesis"]
    assert main(["evaluate", "--model", str(folder), "--data", data, *flags]) == 1
    assert "--pair-column is for models that read two texts" in capsys.readouterr().err


# ---- The server ----------------------------------------------------------------------------------


def test_a_question_may_have_a_pair():
    kind = question_type(Limits(characters=20))
    body = {"text": ["the keys", "a film"], "compare": "the table"}
    found = read_question(json.dumps(body).encode(), kind)
    assert found.texts == (("the keys", "a film"), "the table")
    schema = openapi()["components"]["schemas"]["Question"]["properties"]["text"]
    _, pair, _ = schema["oneOf"]
    assert (pair["items"]["type"], pair["minItems"], pair["maxItems"]) == ("string", 2, 2)


def test_the_server_answers_a_question_about_a_pair(explainer):
    limits, metrics = Limits(tokens=len(NAMES)), Metrics("pairs", "classification", lambda: 0)
    queue = FairQueue(limits)
    told = []
    for pair in (PAIR, OTHER):
        question = Question((pair,), Options(), False, True)
        queue.put(Job(question, "here", time.monotonic() + 60, told.append))
        assert Worker(explainer, queue, limits, metrics).work(0)
    done, refused = (json.loads(one.body) for one in told if isinstance(one, Answer))
    assert done["explanations"][0]["segments"][1] == ["second", 27, 36]
    assert ["second: ", [], True] in done["pages"][0]["pieces"]
    assert "13 tokens, and this server accepts 12" in refused["error"]["message"]


@pytest.mark.parametrize(
    ("text", "said"),
    [
        (["a", "b", "c"], "at most 2 items"),
        (["a"], "at least 2 items"),
        (["a", 5], r"text\[1\] is 5"),
        (["a", ""], r"text\[1\] is \"\""),
        (["a", "x" * 21], r"text\[1\] has 21 characters"),
        (["a", "\ud800"], "lone surrogate"),
    ],
)
def test_a_question_with_something_else_is_refused(text, said):
    kind = question_type(Limits(characters=20))
    with pytest.raises(Refused, match=said):
        read_question(json.dumps({"text": text}).encode(), kind)
