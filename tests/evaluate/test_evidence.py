"""Evidence: measures by hand and by brute force, and whole evaluations against a plain loop."""

import csv
import io
import itertools
import json
import re

import numpy as np
import pytest
import tokenizers
import transformers

from attnflow.cli import main
from attnflow.correlation import spearman
from attnflow.errors import OptionError, TextError
from attnflow.evaluate import Evaluation, Skipped, evaluate
from attnflow.evaluate import evidence as module
from attnflow.evaluate.baselines import BASELINES, baseline_scores
from attnflow.evaluate.evidence import (
    candidate_tokens,
    evidence_measures,
    evidence_spans,
    evidence_tokens,
    expected_reciprocal_rank,
    first_token,
)
from attnflow.evaluate.faithfulness import faithfulness
from attnflow.importance import importance
from attnflow.models import Explainer
from attnflow.tokens import Tokens
from attnflow.view.evaluation import report
from tests.support import evaluation as evaluation_models
from tests.support.evaluation import FEW, SIZES, TEXTS, VOCABULARY
from tests.support.tiny import sharpen

pytestmark = pytest.mark.usefixtures("one_thread")

# What each says, the word that it hangs on, and two words that may follow.
PAIRS = [
    ("the keys to the cabinet", "keys", "are", "is"),
    ("a key to the table", "key", "is", "are"),
    ("no one will forget the film", "film", "that", "on"),
    ("the film that no one will", "one", "forget", "is"),
    ("a film to forget", "to", "is", "are"),
    ("the keys on a table", "keys", "are", "is"),
]
SENTENCES, WORDS, GOOD, BAD = map(list, zip(*PAIRS, strict=True))


@pytest.fixture(scope="module")
def classifier():
    return evaluation_models.classifier()


@pytest.fixture(scope="module")
def decoder():
    return evaluation_models.decoder()


def options(**more):
    given = {"targets": GOOD, "contrasts": BAD, "evidence": WORDS, "keep_wrong": True}
    return {**given, "references": None, "workers": 1, **FEW, **more}


@pytest.fixture(scope="module")
def found(decoder):
    return evaluate(decoder, SENTENCES, **options())


# ---- Measures ------------------------------------------------------------------------------------


ALL = np.full(5, True)


def mark(*places, count=5):
    return np.isin(np.arange(count), places)


@pytest.mark.parametrize(
    ("scores", "evidence", "expected"),
    [
        # Second of five; 2 of 3 + 2 + 1.
        ([3.0, 2.0, 1.0, 0.0, -5.0], [1], [1 / 2, 0, 2 / 6]),
        # The better of two evidence tokens is third.
        ([3.0, 2.0, 1.0, 0.0, -5.0], [2, 4], [1 / 3, 0, 1 / 6]),
        # Negative scores are below zero, not large.
        ([-3.0, -2.0, 1.0, 0.0, -5.0], [1], [1 / 3, 0, 0]),
        # First and second, of which one is evidence: first or second with the same chance.
        ([2.0, 2.0, 1.0, 0.0, 0.0], [0], [(1 + 1 / 2) / 2, 1 / 2, 2 / 5]),
        # Both that are first are evidence.
        ([2.0, 2.0, 1.0, 0.0, 0.0], [0, 1], [1, 1, 4 / 5]),
        # Second, third or fourth.
        ([9.0, 1.0, 1.0, 1.0, 0.0], [2], [(1 / 2 + 1 / 3 + 1 / 4) / 3, 0, 1 / 12]),
        # Of three tied behind one, two are evidence: the first of them is second in 2 of 3 orders.
        ([9.0, 1.0, 1.0, 1.0, 0.0], [1, 2], [2 / 3 / 2 + 1 / 3 / 3, 0, 2 / 12]),
        # Nothing is positive.
        ([0.0, 0.0, -1.0, -1.0, -1.0], [2], [(1 / 3 + 1 / 4 + 1 / 5) / 3, 0, np.nan]),
        ([1.0, np.nan, 0.0, 0.0, 0.0], [0], [np.nan] * 3),
    ],
)
def test_measures_are_as_worked_out_by_hand(scores, evidence, expected):
    np.testing.assert_allclose(evidence_measures(scores, mark(*evidence), ALL), expected)


def test_tokens_that_are_not_candidates_do_not_count():
    scores = [9.0, 1.0, 2.0, 8.0, 3.0]
    measured = evidence_measures(scores, mark(0, 2), mark(1, 2, 4))
    np.testing.assert_allclose(measured, [1 / 2, 0, 2 / 6])


def test_equal_scores_measure_as_the_mean_over_all_orders():
    rng = np.random.default_rng(0)
    for _ in range(30):
        scores = rng.integers(0, 3, 6).astype(float)
        evidence = mark(*rng.choice(6, rng.integers(1, 4), replace=False), count=6)
        reciprocals, firsts = [], []
        for order in itertools.permutations(range(6)):
            ranked = sorted(order, key=lambda i: -scores[i])
            place = next(i for i, token in enumerate(ranked) if evidence[token])
            reciprocals.append(1 / (place + 1))
            firsts.append(place == 0)
        measured = evidence_measures(scores, evidence, np.full(6, True))
        np.testing.assert_allclose(measured[:2], [np.mean(reciprocals), np.mean(firsts)])


def test_a_random_order_of_one_evidence_token_has_the_harmonic_mean():
    for count in (1, 2, 7, 40):
        expected = np.mean(1 / np.arange(1, count + 1))
        assert expected_reciprocal_rank(0, count, 1) == pytest.approx(expected)
        assert expected_reciprocal_rank(0, count, count) == 1.0


def test_measures_keep_the_axes_of_the_scores():
    scores = np.random.default_rng(0).random((2, 3, 5))
    measured = evidence_measures(scores, mark(2), ALL)
    assert measured.shape == (2, 3, 3)
    np.testing.assert_allclose(measured[1, 2], evidence_measures(scores[1, 2], mark(2), ALL))


# ---- Spans and tokens ----------------------------------------------------------------------------

TEXT = "The niece of nieces, a niece"


@pytest.mark.parametrize(
    ("evidence", "expected"),
    [
        ("niece", [(4, 9), (23, 28)]),
        (" niece ", [(4, 9), (23, 28)]),
        ("of nieces", [(10, 19)]),
        ("nieces,", [(13, 20)]),
        ("4-9", [(4, 9)]),
        ("4-9,23-28", [(4, 9), (23, 28)]),
        (" 4 - 9, 23-28", [(4, 9), (23, 28)]),
        ([[4, 9]], [(4, 9)]),
        (((4, 9), (0, 1)), [(4, 9), (0, 1)]),
    ],
)
def test_evidence_is_a_word_or_spans(evidence, expected):
    assert evidence_spans(evidence, TEXT) == expected


@pytest.mark.parametrize(
    ("evidence", "reason"),
    [
        ("nephew", module.NOT_IN_TEXT),
        ("Niece", module.NOT_IN_TEXT),
        ("iece", module.NOT_IN_TEXT),
        ("", module.NOT_IN_TEXT),
        ("NA", module.NOT_IN_TEXT),
        ("4-40", "4-40.*28 characters"),
        ("9-4", "9-4"),
        ([], "evidence is .*expected"),
        ([[4, 9, 1]], "expected"),
        (7, "7.*expected"),
        ([["a", "b"]], "expected"),
    ],
)
def test_evidence_that_is_not_there_says_so(evidence, reason):
    with pytest.raises(TextError, match=reason):
        evidence_spans(evidence, TEXT)


def test_tokens_are_evidence_if_they_share_a_character_with_it():
    # As byte-level tokenizers divide it: a space belongs to the word after it.
    spans = [(0, 3), (3, 6), (6, 9), (9, 12), (12, 15), None]
    tokens = Tokens(
        "The niece of at", ("The", "ni", "ece", "of", "at", "</s>"), tuple(spans), (False,) * 6
    )
    every = np.full(6, True)
    found = evidence_tokens(tokens, "niece", every)
    assert found.tolist() == [False, True, True, False, False, False]
    # The space at the end of this span is not part of "of".
    found = evidence_tokens(tokens, "4-10", every)
    assert found.tolist() == [False, True, True, False, False, False]
    with pytest.raises(TextError, match=module.ONLY_FIRST):
        evidence_tokens(tokens, "The", ~mark(0, count=6))
    with pytest.raises(TextError, match=module.NOT_SEEN):
        evidence_tokens(tokens.first(3), "of", every[:3])


def test_special_tokens_and_the_first_position_of_a_decoder_are_not_ranked(classifier, decoder):
    encoded = classifier.adapter.read("the keys")
    assert candidate_tokens(classifier, encoded.tokens).tolist() == [False, True, True, False]
    encoded = decoder.adapter.read("the keys to")
    assert candidate_tokens(decoder, encoded.tokens).tolist() == [False, True, True]


# ---- Answers -------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def writer():
    """A decoder whose tokens begin with the space before a word, as GPT-2's do."""
    inner = tokenizers.ByteLevelBPETokenizer()
    corpus = ["the keys are on the table", "a key is hers", "are is keys key"] * 4
    inner.train_from_iterator(corpus, vocab_size=300, min_frequency=2)
    config = transformers.LlamaConfig(**{**SIZES, "vocab_size": 300}, num_key_value_heads=1)
    tokenizer = transformers.PreTrainedTokenizerFast(tokenizer_object=inner._tokenizer)
    return Explainer(sharpen(transformers.LlamaForCausalLM(config)), tokenizer)


def test_an_answer_follows_its_text_after_a_space(writer):
    name = writer.tokenizer.convert_ids_to_tokens
    assert name(first_token(writer, "the keys", "are")) == "\u0120are"
    assert name(first_token(writer, "the keys", " are")) == "\u0120are"
    # The space is there already.
    assert not name(first_token(writer, "the keys ", "are")).startswith("\u0120")
    # A word of several tokens is represented by its first.
    pieces = writer.tokenizer.tokenize(" aren't")
    assert len(pieces) > 1
    assert name(first_token(writer, "the keys", "aren't")) == pieces[0]
    with pytest.raises(TextError, match="answer ''"):
        first_token(writer, "the keys", "")


def test_an_answer_takes_the_place_of_a_mask():
    config = transformers.BertConfig(**SIZES)
    tokenizer = evaluation_models.tokenizer_of(special=True)
    masked = Explainer(sharpen(transformers.BertForMaskedLM(config)), tokenizer)
    assert first_token(masked, "the keys [MASK] on", "are") == VOCABULARY["are"]


# ---- Evaluations ---------------------------------------------------------------------------------


def test_evidence_is_measured_on_the_scores_of_explain(decoder, found):
    assert found.skipped == ()
    counted = {}
    for text in SENTENCES:
        for word in text.split():
            counted[word] = counted.get(word, 0) + 1
    for index, (text, word, good, bad) in enumerate(PAIRS):
        words = text.split()
        evidence = np.array([one == word for one in words])[1:]
        asked = {"target": VOCABULARY[good], "contrast": VOCABULARY[bad]}

        def expected(scores, evidence=evidence):
            return evidence_measures(scores, evidence, np.full(len(evidence), True))

        contribution = decoder.explain(text, method="contribution", **asked)
        rows = {"contribution": expected(contribution.scores[1:])}
        for method in ("raw", "rollout", "flow"):
            explanation = decoder.explain(text, method=method)
            rows[method] = expected(explanation.layer_scores[-1][1:])
        for name in BASELINES:
            scores = baseline_scores(name, words[1:], frequencies=counted)
            rows[name] = expected(np.ones(len(evidence)) if name == "random" else scores)
        for name, values in rows.items():
            for place, measure in enumerate(("mrr", "pointing", "mass")):
                layer = -1 if name in ("raw", "rollout", "flow") else None
                got = found.per_text(name, layer, measure=measure)[index]
                np.testing.assert_allclose(got, values[place], atol=1e-6)
    assert [text.target for text in found.texts] == GOOD
    assert [text.contrast for text in found.texts] == BAD


def test_what_shows_nothing_is_left_out_and_counted(decoder):
    texts = [*SENTENCES[:3], "keys to table", "the film", "", "the keys"]
    given = options(
        targets=[*GOOD[:3], "are", "is", "is", "are"],
        contrasts=[*BAD[:3], "is", "is", "are", "is"],
        evidence=[*WORDS[:3], "keys", "film", "film", "table"],
        keep_wrong=False,
    )
    logits = {}
    for text, good, bad in zip(texts[:3], GOOD, BAD, strict=False):
        ids = decoder.tokenizer(text, return_tensors="pt")["input_ids"]
        values = decoder.model(ids).logits[0, -1].detach()
        logits[text] = float(values[VOCABULARY[good]] - values[VOCABULARY[bad]])
    wrong = [text for text, value in logits.items() if value <= 0]
    assert 0 < len(wrong) < 3
    evaluation = evaluate(decoder, texts, **given)
    reasons = {item.number: item.reason for item in evaluation.skipped}
    for number, text in enumerate(texts[:3], start=1):
        assert (reasons.get(number) == module.PREFERS_OTHER) == (text in wrong)
    assert reasons[5] == module.SAME_TOKEN
    assert "empty" in reasons[6]
    counts = evaluation.counts()
    assert counts["texts"] == 7
    assert counts["measured"] == len(evaluation.texts) == 3 - len(wrong)
    assert counts[module.SAME_TOKEN] == counts["other reasons"] == 1
    assert sum(counts.values()) == 2 * 7
    kept = evaluate(decoder, texts, **{**given, "keep_wrong": True})
    reasons = {item.number: item.reason for item in kept.skipped}
    assert reasons[4] == module.ONLY_FIRST
    assert reasons[7] == module.NOT_IN_TEXT
    assert [text.number for text in kept.texts] == [1, 2, 3]
    text = " ".join(report(kept).plain().split())
    assert re.search("7 texts: 3 measured.*1 left out because the good and the bad", text)


def test_a_classifier_is_right_if_it_predicts_the_class(classifier):
    texts = TEXTS[:6]
    predicted = [classifier.explain(text, method="raw").prediction.label for text in texts]
    words = [text.split()[0] for text in texts]
    given = {"evidence": words, "references": None, "workers": 1, **FEW}
    assert len(evaluate(classifier, texts, **given).texts) == 6
    for contrasts in (None, ["good" if label == "bad" else "bad" for label in predicted]):
        right = evaluate(classifier, texts, targets=predicted, contrasts=contrasts, **given)
        assert len(right.texts) == 6
    others = ["good" if label == "bad" else "bad" for label in predicted]
    with pytest.raises(TextError, match=f"none of the 6 texts.*6: {module.PREFERS_OTHER}"):
        evaluate(classifier, texts, targets=others, **given)
    kept = evaluate(classifier, texts, targets=others, keep_wrong=True, **given)
    assert [text.target for text in kept.texts] == others


def test_spans_give_the_same_as_the_words_they_cover(decoder, found):
    spans = [evidence_spans(word, text) for text, word, *_ in PAIRS]
    as_text = [",".join(f"{start}-{end}" for start, end in one) for one in spans]
    for given in (spans, as_text):
        again = evaluate(decoder, SENTENCES, **options(evidence=given))
        assert again == found


def test_contributions_are_compared_by_size_and_removed_by_sign(classifier):
    texts = TEXTS[:4]
    evaluation = evaluate(
        classifier,
        texts,
        edges=("attention", "gradient"),
        receptive_field=(False, True),
        faithfulness=True,
        removal="mask",
        layers=[1, 3],
        workers=1,
        **FEW,
    )
    rows = [row for row in evaluation.rows() if row["method"] == "contribution"]
    assert rows == [{"method": "contribution", "edges": None, "receptive_field": None}]
    for index, text in enumerate(texts):
        scores = classifier.explain(text, method="contribution").scores
        values = importance(classifier, text)
        found = evaluation.per_text("contribution")[index]
        np.testing.assert_allclose(found, spearman(np.abs(scores), values), atol=1e-9)
        expected = faithfulness(classifier, text, scores, removal="mask")
        for measure, value in expected._asdict().items():
            found = evaluation.per_text("contribution", measure=measure)[index]
            assert found == pytest.approx(value, abs=1e-6)
    [summary] = evaluation.summary("contribution")
    assert summary["layer"] is None
    with pytest.raises(OptionError, match=r"layer is 1.*'contribution'"):
        evaluation.per_text("contribution", 1)
    data = evaluation.to_dict()
    kept = [item for item in data["results"] if item["method"] == "contribution"]
    assert len(kept) == 2  # with and without special tokens
    assert [len(item["layers"]) for item in kept] == [1, 1]
    measured = [item for item in data["faithfulness"] if item.get("method") == "contribution"]
    assert [item["layer"] for item in measured] == [None] * 5
    assert Evaluation.from_dict(json.loads(json.dumps(data))) == evaluation
    # Against each of the others: two layers, two kinds of edges, and two receptive fields but for
    # raw attention, of which there is one.
    pairs = [
        item
        for item in evaluation.compare("method")
        if "contribution" in (item["first"]["method"], item["second"]["method"])
    ]
    assert len(pairs) == 2 * 2 * (1 + 2 + 2)
    fixed = [item for item in evaluation.compare("baseline") if item["layer"] is None]
    assert len(fixed) == len(BASELINES)
    assert len(report(evaluation).tables) == 2 * 2 + 5


def test_contributions_alone_have_no_layers(classifier, tmp_path):
    given = {"methods": "contribution", "workers": 1, **FEW}
    evaluation = evaluate(classifier, TEXTS[:3], **given)
    text = report(evaluation).plain()
    assert not re.search(r"\bL1\b|edges", text)
    assert "contribution" in text
    evaluation.save(tmp_path / "x.png")
    for name, value in (("layers", [1]), ("edges", "gradient")):
        with pytest.raises(OptionError, match=f"{name} is .*contribution"):
            evaluate(classifier, TEXTS[:3], **given, **{name: value})


def test_every_method_is_tested_against_every_other_and_every_baseline(found):
    methods = ("contribution", "raw", "rollout", "flow")
    pairs = found.compare(measure="mrr", layer=-1)
    assert len(pairs) == 6
    for item in pairs:
        first, second = (
            found.per_text(
                item[side]["method"],
                None if item[side]["method"] == "contribution" else -1,
                measure="mrr",
            )
            for side in ("first", "second")
        )
        assert item["difference"] == pytest.approx(np.mean(first - second))
        assert item["p"] <= item["p_holm"] <= 1
    against = found.compare("baseline", measure="mrr", layer=-1)
    assert {(item["first"]["method"], item["second"]["baseline"]) for item in against} == set(
        itertools.product(methods, BASELINES)
    )
    assert found.compare("reference", measure="mrr") == []
    assert found.compare() == []
    every = found.compare("baseline", measure="pointing")
    assert len(every) == (3 * 3 + 1) * len(BASELINES)
    with pytest.raises(OptionError, match=r"measure is 'f1'.*correlation.*mrr"):
        found.compare(measure="f1")
    with pytest.raises(OptionError, match=r"measure is 'aopc'.*not evaluated"):
        found.compare(measure="aopc")
    with pytest.raises(OptionError, match="reference"):
        found.summary("rollout")


def test_references_stand_beside_the_methods(classifier):
    texts = TEXTS[:5]
    words = [text.split()[1] for text in texts]
    evaluation = evaluate(classifier, texts, evidence=words, faithfulness=True, workers=1, **FEW)
    named = {item.get("reference") for item in evaluation.evidence_summary()}
    assert named == {None, "blank_out"}
    for index, (text, word) in enumerate(zip(texts, words, strict=True)):
        values = importance(classifier, text, signed=True)[1:-1]
        marked = np.array([one == word for one in text.split()])
        expected = evidence_measures(values, marked, np.full(len(values), True))
        found = [
            evaluation.per_text("blank_out", measure=measure)[index]
            for measure in ("mrr", "pointing", "mass")
        ]
        np.testing.assert_allclose(found, expected)
    for measure in ("mrr", "aopc_shares"):
        assert len(evaluation.compare("reference", measure=measure, layer=-1)) == 4
    assert evaluation.main_measures == ("mrr", "aopc_shares")


# ---- What is shown and stored --------------------------------------------------------------------


def test_an_evaluation_with_evidence_is_stored_without_loss(found, tmp_path):
    found.save(tmp_path / "x.json")
    assert Evaluation.load(tmp_path / "x.json") == found
    bare = evaluate(
        evaluation_models.decoder(),
        SENTENCES[:2],
        **options(baselines=False, targets=GOOD[:2], contrasts=BAD[:2], evidence=WORDS[:2]),
    )
    bare.save(tmp_path / "bare.json")
    assert Evaluation.load(tmp_path / "bare.json") == bare
    data = found.to_dict(per_text=False)
    assert data["counts"]["measured"] == 6
    assert {item["measure"] for item in data["evidence"]} == {"mrr", "pointing", "mass"}
    assert {item["measure"] for item in data["comparisons"]} == {"mrr"}


def test_tables_and_figures_show_the_evidence(found, tmp_path):
    rows = list(csv.DictReader(io.StringIO(_csv(found, tmp_path))))
    assert len(rows) == (3 * 3 + 1 + len(BASELINES)) * 3
    mean = next(
        row["mean"] for row in rows if (row["method"], row["measure"]) == ("contribution", "mrr")
    )
    assert float(mean) == found.summary("contribution", measure="mrr")[0]["mean"]
    long = found.to_dataframe(per_text=True)
    assert len(long) == len(rows) * 6
    text = report(found).plain()
    lines = text.splitlines()
    assert max(map(len, lines)) <= 80
    start = next(i for i, line in enumerate(lines) if "evidence ranks" in line)
    assert lines[start + 1].split() == ["MRR", "pointing", "game", "mass"]
    means = [
        float(re.search(r"(\d\.\d\d) ", line)[1])
        for line in lines[start + 3 : lines.index("", start)]
        if "method" in line or "baseline" in line
    ]
    assert len(means) >= 4 + len(BASELINES)
    assert means == sorted(means, reverse=True)
    assert "sign-flip" in text
    for name in ("x.png", "x.svg"):
        found.save(tmp_path / name)
        assert (tmp_path / name).stat().st_size > 0


def _csv(evaluation, folder):
    evaluation.save(folder / "x.csv")
    return (folder / "x.csv").read_text()


def test_several_workers_measure_the_same(decoder, found):
    assert evaluate(decoder, SENTENCES, **options(workers=2)) == found


@pytest.mark.parametrize(
    "change",
    [
        {"evidence": ["the", *WORDS[1:]]},
        {"contrasts": [*BAD[:-1], "that"]},
        {"targets": [*GOOD[:-1], "that"]},
        {"contrasts": None},
        {"evidence": None, "references": "blank_out"},
        {"keep_wrong": False},
    ],
)
def test_a_store_of_other_evidence_or_answers_is_refused(decoder, found, tmp_path, change):
    store = tmp_path / "run.jsonl"
    assert evaluate(decoder, SENTENCES, store=store, **options()) == found
    # All is there already.
    before = store.read_bytes()
    assert evaluate(decoder, SENTENCES, store=store, **options()) == found
    assert store.read_bytes() == before
    with pytest.raises(OptionError, match="another"):
        evaluate(decoder, SENTENCES, store=store, **options(**change))


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"evidence": WORDS[:2]}, "evidence has 2.*6 texts"),
        ({"evidence": "keys"}, "evidence.*'keys'"),
        ({"contrasts": BAD[:2]}, "contrasts has 2.*6 texts"),
        ({"evidence": None}, "references"),
        ({"keep_wrong": 1}, "keep_wrong.*1"),
        ({"contrasts": "no such token"}, "contrast is 'no such token'"),
    ],
)
def test_wrong_options_are_named(decoder, change, message):
    with pytest.raises(OptionError, match=message):
        evaluate(decoder, SENTENCES, **options(**change))


def test_one_answer_may_be_given_for_all_texts(decoder):
    given = options(targets="are", contrasts=VOCABULARY["is"])
    evaluation = evaluate(decoder, SENTENCES, **given)
    assert {(text.target, text.contrast) for text in evaluation.texts} == {("are", "is")}
    # Without a target it is what the model predicts, of which some may be the contrast.
    predicted = [decoder.explain(text, method="raw").prediction.index for text in SENTENCES]
    evaluation = evaluate(decoder, SENTENCES, **options(targets=None, contrasts=predicted[0]))
    left = {item.number for item in evaluation.skipped}
    assert left == {i for i, one in enumerate(predicted, start=1) if one == predicted[0]}
    assert evaluation.skipped[0] == Skipped(1, module.NO_DIFFERENCE)


# ---- The command ---------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def model(decoder, tmp_path_factory):
    folder = tmp_path_factory.mktemp("model")
    decoder.model.save_pretrained(folder)
    decoder.tokenizer.save_pretrained(folder)
    return folder


def command(model, data, *more):
    few = ["--samples", "200", "--permutations", "199", "--references", "none", "--workers", "1"]
    return main(["evaluate", "--model", str(model), "--data", str(data), *few, *map(str, more)])


COLUMNS = ("--label-column", "good", "--contrast-column", "bad", "--evidence-column", "word")


def test_columns_of_a_table_have_evidence_and_answers(model, found, tmp_path, capsys):
    data = tmp_path / "pairs.csv"
    data.write_text("text,word,good,bad\n" + "".join(",".join(pair) + "\n" for pair in PAIRS))
    output = tmp_path / "x.json"
    assert command(model, data, *COLUMNS, "--keep-wrong", "--output", output) == 0
    out = capsys.readouterr().out
    assert "6 texts: 6 measured." in out
    saved = Evaluation.load(output)
    np.testing.assert_array_equal(saved.evidence, found.evidence)
    np.testing.assert_array_equal(saved.other_evidence, found.other_evidence)
    assert [text.number for text in saved.texts] == [2, 3, 4, 5, 6, 7]
    assert command(model, data, *COLUMNS, "--json", "--methods", "contribution") == 0
    data = json.loads(capsys.readouterr().out)
    assert data["counts"]["measured"] + data["counts"][module.PREFERS_OTHER] == 6


def test_json_lines_may_have_spans(model, found, tmp_path):
    data, output = tmp_path / "pairs.jsonl", tmp_path / "x.json"
    rows = [
        {"text": text, "word": evidence_spans(word, text), "good": good, "bad": bad}
        for text, word, good, bad in PAIRS
    ]
    rows.append({"text": "the keys", "good": "is", "bad": "are"})
    data.write_text("".join(json.dumps(row) + "\n" for row in rows))
    assert command(model, data, *COLUMNS, "--keep-wrong", "--output", output) == 0
    saved = Evaluation.load(output)
    np.testing.assert_array_equal(saved.evidence, found.evidence)
    assert saved.skipped == (Skipped(7, "there is no 'word'"),)


@pytest.mark.parametrize(
    ("more", "message"),
    [
        (("--evidence-column", "none"), "evidence_column is 'none'.*'word'"),
        (("--contrast-column", "none"), "contrast_column is 'none'.*'word'"),
        ((*COLUMNS, "--contrast", "is"), "--contrast and --contrast-column"),
        ((), "references"),
    ],
)
def test_wrong_flags_are_one_sentence(model, tmp_path, capsys, more, message):
    data = tmp_path / "pairs.csv"
    data.write_text("text,word,good,bad\n" + ",".join(PAIRS[0]) + "\n")
    assert command(model, data, *more) == 1
    assert re.search(message, capsys.readouterr().err)
