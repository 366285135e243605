"""Statistics over what a run has stored, against the functions for single texts."""

import json
import os
import re
import shutil

import numpy as np
import pandas
import pytest
import transformers
from scipy.stats import spearmanr

import attnflow
from attnflow.cli import main
from attnflow.dataset import run as run_dataset
from attnflow.errors import DataError, OptionError, TextError
from attnflow.evaluate import evaluate_stored
from attnflow.evaluate import stored as module
from attnflow.evaluate.baselines import BASELINES
from attnflow.importance import importance
from attnflow.models import Explainer
from attnflow.models.text import TextAdapter
from tests.support.pair import build_pair
from tests.support.tiny import sharpen, wordpiece_tokenizer

PIECES = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "the", "key", "##s", "##board", "to", "is"]
VOCABULARY = {piece: index for index, piece in enumerate(PIECES)}
SIZES = {
    "vocab_size": len(PIECES),
    "hidden_size": 16,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "intermediate_size": 16,
    "max_position_embeddings": 24,
}
TEXTS = [
    "the keys to the keyboard",
    "keyboards",
    "the key is to the keys",
    "",
    "is the keyboard the key",
    "to keys",
    "the the the",
]
GOOD = [text for text in TEXTS if text]
FEW = {"samples": 50, "permutations": 49}


@pytest.fixture(scope="module")
def classifier():
    config = transformers.BertConfig(**SIZES)
    model = sharpen(transformers.BertForSequenceClassification(config))
    return Explainer(model, wordpiece_tokenizer(VOCABULARY))


@pytest.fixture(scope="module")
def decoder():
    config = transformers.LlamaConfig(**SIZES, num_key_value_heads=1, eos_token_id=None)
    return Explainer(
        sharpen(transformers.LlamaForCausalLM(config)), wordpiece_tokenizer(VOCABULARY)
    )


def store(explainer, folder, texts=TEXTS, **options):
    """A data set of several shards."""
    run_dataset(texts, explainer, output=folder, workers=1, shard_rows=3, **options)
    return folder


@pytest.fixture(scope="module")
def made(classifier, tmp_path_factory):
    return store(classifier, tmp_path_factory.mktemp("stored") / "out", method="flow")


def value(statistics, what, measure, other=None, special=None):
    (row,) = [
        row
        for row in statistics.summary()
        if (row["what"], row["measure"], row["with"], row["special_tokens"])
        == (what, measure, other, special)
    ]
    return row


def correlation(scores, values):
    if len(scores) < 2 or len(set(scores)) < 2 or len(set(values)) < 2:
        return np.nan
    return spearmanr(scores, values).statistic


# ---- What is measured ----------------------------------------------------------------------------


def test_scores_are_taken_as_they_are_stored_and_compared_with_references(classifier, made):
    references = ("blank_out", "gradient_norm")
    found = evaluate_stored(made, classifier, references=references, workers=1, **FEW)
    assert found.count == len(GOOD)
    assert found.failed == 1
    frame = pandas.read_parquet(made / "data")
    for index, row in frame.iterrows():
        for place, reference in enumerate(references):
            values = importance(classifier, row["text"], reference=reference)
            ordinary = ~np.array(row["special"])
            expected = [
                correlation(row["scores"], values),
                correlation(row["scores"][ordinary], values[ordinary]),
            ]
            np.testing.assert_allclose(found.agreement[index, 0, place], expected, atol=1e-9)
            for order, guess in ((1, np.arange), (2, lambda n: -np.arange(n))):
                expected = correlation(guess(len(values)), values)
                got = found.agreement[index, 1 + order, place, 0]
                np.testing.assert_allclose(got, expected, atol=1e-9)


def test_concentration_is_that_of_the_scores(classifier, made):
    found = evaluate_stored(made, references=None, **FEW)
    frame = pandas.read_parquet(made / "data")
    for index, row in frame.iterrows():
        shares = row["scores"] / row["scores"].sum()
        entropy = -sum(share * np.log2(share) for share in shares if share)
        expected = [
            entropy,
            entropy / np.log2(len(shares)),
            shares.max(),
            shares[row["special"]].sum(),
            row["saturation"],
        ]
        np.testing.assert_allclose(found.measures[index], expected, atol=1e-12)
        ordinary = ~np.array(row["special"])
        position = [
            correlation(row["scores"], range(len(shares))),
            correlation(row["scores"][ordinary], np.arange(len(shares))[ordinary]),
        ]
        got = found.likeness[index, BASELINES.index("position")]
        np.testing.assert_allclose(got, position, atol=1e-9)
    assert value(found, "scores", "entropy")["mean"] == pytest.approx(found.measures[:, 0].mean())
    assert found.agreement.shape == (len(GOOD), 1 + len(BASELINES), 0, 2)
    assert found.compare() == []


def test_tokens_are_ranked_by_their_mean_score(made):
    found = evaluate_stored(made, references=None, **FEW)
    frame = pandas.read_parquet(made / "data")
    scores = {}
    for _, row in frame.iterrows():
        for token, score in zip(row["tokens"], row["scores"], strict=True):
            scores.setdefault(token, []).append(score)
    means = {token: np.mean(all_) for token, all_ in scores.items() if len(all_) >= 5}
    assert [item.token for item in found.tokens] == sorted(means, key=means.get, reverse=True)
    for item in found.tokens:
        assert item.mean == pytest.approx(means[item.token])
        assert item.times == len(scores[item.token])


def test_the_frequency_baseline_counts_what_is_stored(classifier, made):
    counted = evaluate_stored(made, references=None, baselines="frequency", **FEW)
    frame = pandas.read_parquet(made / "data")
    times = {}
    for tokens in frame["tokens"]:
        for token in tokens:
            times[token] = times.get(token, 0) + 1
    expected = correlation(frame["scores"][0], [-times[token] for token in frame["tokens"][0]])
    np.testing.assert_allclose(counted.likeness[0, 0, 0], expected, atol=1e-9)
    given = evaluate_stored(made, references=None, frequencies={"the": 9}, **FEW)
    expected = correlation(
        frame["scores"][0], [-9.0 * (token == "the") for token in frame["tokens"][0]]
    )
    np.testing.assert_allclose(given.likeness[0, 3, 0], expected, atol=1e-9)


@pytest.mark.parametrize("units", ["tokens", "words"])
@pytest.mark.parametrize("special_tokens", [False, True])
@pytest.mark.parametrize("drop_sink", [False, True])
@pytest.mark.parametrize("kind", ["classifier", "decoder"])
def test_references_become_words_as_the_scores_did(
    kind, units, special_tokens, drop_sink, request, tmp_path
):
    explainer = request.getfixturevalue(kind)
    options = {
        "units": units,
        "special_tokens": special_tokens,
        "drop_sink": drop_sink,
    }
    texts = ["the keys to the keyboard", "is the keyboard the keys"]
    out = store(explainer, tmp_path / "out", texts, method="rollout", **options)
    found = evaluate_stored(out, explainer, workers=1, **FEW)
    assert found.skipped == ()
    for index, text in enumerate(texts):
        values = importance(explainer, text)
        [whole] = explainer.layer_scores(text, methods=["rollout"])
        kept = [
            place
            for place in range(len(whole.tokens))
            if not (drop_sink and place in whole.sinks)
            and (special_tokens or not whole.tokens.special[place])
        ]
        # By hand: a token that begins with ## goes with the one before it.
        groups = []
        for place in kept:
            name = explainer.tokenizer.tokenize(text, add_special_tokens=True)[place]
            if units == "words" and name.startswith("##") and place - 1 in kept:
                groups[-1].append(place)
            else:
                groups.append([place])
        summed = [sum(values[place] for place in group) for group in groups]
        scores = explainer.explain(text, method="rollout", **options).scores
        np.testing.assert_allclose(
            found.agreement[index, 0, 0, 0], correlation(scores, summed), atol=1e-9
        )


def test_a_sink_that_cannot_be_told_from_others_is_reported(decoder, tmp_path):
    # Without special tokens, and in a word of three, nobody can see that its middle was not it.
    texts = ["the keyboards", "the keys"]
    options = {"units": "words", "special_tokens": False, "drop_sink": True}
    out = store(decoder, tmp_path / "out", texts, method="rollout", **options)
    found = evaluate_stored(out, decoder, workers=1, **FEW)
    (skipped,) = found.skipped
    assert skipped.number == 0
    assert "several tokens" in skipped.reason


def test_the_sources_of_an_encoder_decoder_are_compared_too(tmp_path):
    translator = build_pair("T5")
    texts = ["the keys to the cabinet", "a film"]
    out = store(translator, tmp_path / "out", texts, method="rollout")
    found = evaluate_stored(out, translator, workers=1, **FEW)
    for index, text in enumerate(texts):
        expected = correlation(
            translator.explain(text, method="rollout").scores, importance(translator, text)
        )
        np.testing.assert_allclose(found.agreement[index, 0, 0, 0], expected, atol=1e-9)
    out = store(translator, tmp_path / "sinks", texts, method="rollout", drop_sink=True)
    with pytest.raises(OptionError, match="tokens"):
        evaluate_stored(out, translator, **FEW)
    assert evaluate_stored(out, references=None, **FEW).count == 2


def test_stored_options_are_used_again(classifier, tmp_path):
    out = store(classifier, tmp_path / "out", target=1, method="raw", layer=1)
    found = evaluate_stored(out, classifier, workers=1, **FEW)
    text = GOOD[0]
    scores = classifier.explain(text, method="raw", layer=1).scores
    expected = correlation(scores, importance(classifier, text, target=1))
    np.testing.assert_allclose(found.agreement[0, 0, 0, 0], expected, atol=1e-9)
    assert found.options["target"] == 1
    # Only flow has a saturation.
    assert value(found, "scores", "saturation")["count"] == 0


# ---- Going on, and engines -----------------------------------------------------------------------


def test_wherever_it_was_stopped_and_however_many_workers_the_result_is_the_same(
    classifier, made, tmp_path, monkeypatch
):
    monkeypatch.setattr(module, "SLICE", 2)
    whole = evaluate_stored(made, classifier, workers=1, **FEW)
    path = tmp_path / "refs.jsonl"

    def stop(done, total):
        assert total == len(GOOD)
        if done >= 2:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        evaluate_stored(made, classifier, store=path, workers=2, progress=stop, **FEW)
    seen = []
    again = evaluate_stored(
        made, classifier, store=path, workers=2, progress=lambda *at: seen.append(at), **FEW
    )
    assert seen[0][0] >= 2
    assert seen[-1] == (len(GOOD), len(GOOD))
    assert again == whole
    lines = path.read_bytes().splitlines(keepends=True)
    path.write_bytes(b"".join(lines[:2]) + lines[2][:9])
    assert evaluate_stored(made, classifier, store=path, workers=1, **FEW) == whole


def test_a_store_of_something_else_is_refused(classifier, made, tmp_path):
    path = tmp_path / "refs.jsonl"
    evaluate_stored(made, classifier, store=path, workers=1, **FEW)
    for options, message in (
        ({"references": "gradient_norm"}, "references.*blank_out.*gradient_norm"),
        ({"limit": 2}, "6 texts.*2"),
        ({"seed": 3}, "seed.*0.*3"),
    ):
        with pytest.raises(OptionError, match=f"another .*{message}"):
            evaluate_stored(made, classifier, store=path, **options, **FEW)


def test_a_limit_takes_the_first_texts(made):
    found = evaluate_stored(made, references=None, limit=4, **FEW)
    whole = evaluate_stored(made, references=None, **FEW)
    np.testing.assert_array_equal(found.measures, whole.measures[:4])


# ---- The model, and damage -----------------------------------------------------------------------


def test_another_model_is_refused_with_what_differs(classifier, decoder, made):
    with pytest.raises(OptionError, match=r"classification.*causal-lm"):
        evaluate_stored(made, decoder, **FEW)
    model = sharpen(type(classifier.model)(classifier.model.config), 0.3)
    other = Explainer(model, classifier.tokenizer)
    with pytest.raises(OptionError, match=r"fingerprint.*\w{32}.*\w{32}"):
        evaluate_stored(made, other, **FEW)
    with pytest.raises(OptionError, match=r"explainer.*references"):
        evaluate_stored(made, **FEW)


def test_an_encoder_has_statistics_and_no_references(tmp_path):
    model = sharpen(transformers.BertModel(transformers.BertConfig(**SIZES)))
    encoder = Explainer(model, wordpiece_tokenizer(VOCABULARY))
    out = store(encoder, tmp_path / "out", method="raw")
    with pytest.raises(OptionError, match="encoder"):
        evaluate_stored(out, encoder, **FEW)
    assert evaluate_stored(out, references=None, **FEW).count == len(GOOD)


def test_the_command_does_without_references_where_a_model_gives_no_answer(tmp_path, capsys):
    model = sharpen(transformers.BertModel(transformers.BertConfig(**SIZES)))
    encoder = Explainer(model, wordpiece_tokenizer(VOCABULARY))
    store(encoder, tmp_path / "out", method="raw")
    assert run(tmp_path, "--json") == 0
    captured = capsys.readouterr()
    assert json.loads(captured.out)["references"] == []
    assert "encoder" in captured.err
    assert run(tmp_path, "--references", "gradient_norm") == 1


def test_damaged_and_missing_files_are_named(made, tmp_path):
    out = tmp_path / "out"
    shutil.copytree(made, out)
    part = out / "data" / "part-00001.parquet"
    part.write_bytes(part.read_bytes()[:-1])
    with pytest.raises(DataError, match=r"part-00001\.parquet"):
        evaluate_stored(out, references=None, **FEW)
    part.unlink()
    with pytest.raises(DataError, match=r"part-00001\.parquet.*missing"):
        evaluate_stored(out, references=None, **FEW)
    manifest = out / "manifest.json"
    manifest.write_text(manifest.read_text().replace('"flow"', '"raw"'))
    with pytest.raises(DataError, match="edited"):
        evaluate_stored(out, references=None, **FEW)
    with pytest.raises(OptionError, match=r"manifest\.json"):
        evaluate_stored(tmp_path, references=None, **FEW)


def test_texts_that_the_tokenizer_reads_otherwise_are_reported(classifier, made, monkeypatch):
    read = TextAdapter.read
    monkeypatch.setattr(
        TextAdapter, "read", lambda self, text, cut: read(self, text.replace("keys", "is"), cut)
    )
    found = evaluate_stored(made, classifier, workers=1, **FEW)
    assert [item.number for item in found.skipped] == [0, 2, 5]
    assert "tokenizer" in found.skipped[0].reason
    row = value(found, "scores", "correlation", "blank_out", True)
    assert row["count"] + row["undefined"] == len(GOOD)
    assert np.isnan(found.agreement[0]).all()
    assert not np.isnan(found.measures[0]).any()


def test_nothing_stored_is_an_error(classifier, tmp_path):
    out = store(classifier, tmp_path / "out", [""])
    with pytest.raises(TextError, match="no row"):
        evaluate_stored(out, references=None)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"references": "gradient"}, "references.*'gradient'"),
        ({"references": None, "replacement": "unk"}, "references"),
        ({"references": None, "engine": "ray"}, "model"),
        ({"references": None, "engine": "cloud"}, "engine"),
        ({"references": None, "limit": 0}, "limit.*0"),
        ({"references": None, "baselines": "luck"}, "baselines.*'luck'"),
        ({"references": None, "samples": 0}, "samples.*0"),
        ({"references": None, "workers": 0}, "workers.*0"),
        ({"references": None, "address": "auto"}, "address.*'auto'.*engine.*'ray'"),
    ],
)
def test_wrong_options_are_named(made, options, message):
    with pytest.raises(OptionError, match=message):
        evaluate_stored(made, **options)


# ---- The command ---------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def command(classifier, tmp_path_factory):
    """A model in a folder, and what was stored with it."""
    folder = tmp_path_factory.mktemp("command")
    classifier.model.save_pretrained(folder / "model")
    classifier.tokenizer.save_pretrained(folder / "model")
    loaded = Explainer.from_pretrained(folder / "model", device="cpu")
    store(loaded, folder / "out", method="rollout")
    return folder


def run(folder, *options):
    few = ["--samples", "50", "--permutations", "49", "--workers", "1"]
    return main(["evaluate", "--data", str(folder / "out"), *few, *map(str, options)])


def test_the_command_finds_the_model_and_prints_what_python_gives(command, capsys):
    assert run(command, "--json") == 0
    found = json.loads(capsys.readouterr().out)
    loaded = attnflow.Explainer.from_pretrained(command / "model")
    expected = evaluate_stored(command / "out", loaded, workers=1, **FEW)
    assert found == expected.to_dict()
    assert found["format"] == "attnflow.statistics"


def test_the_command_prints_tables_and_saves_files(command, tmp_path, capsys):
    paths = {"--output": "all.json", "--csv": "means.csv", "--plot": "all.png"}
    options = [part for option, name in paths.items() for part in (option, tmp_path / name)]
    assert run(command, "--store", tmp_path / "refs.jsonl", *options) == 0
    captured = capsys.readouterr()
    lines = captured.out.splitlines()
    assert re.search("6 texts.*rollout.*last layer", lines[0])
    assert any("blank out" in line for line in lines)
    assert "Tokens with the highest mean scores" in lines
    assert any(line.startswith("special share") for line in lines)
    assert not any(line.startswith("saturation") for line in lines)
    assert any(line.startswith("1 text ") for line in lines)
    assert json.loads((tmp_path / "all.json").read_text())["count"] == 6
    header, *rows = (tmp_path / "means.csv").read_text().splitlines()
    assert header == "what,measure,with,special_tokens,mean,std,low,high,count,undefined"
    assert len(rows) == 5 + (1 + len(BASELINES)) * 2 + len(BASELINES) * 2
    assert (tmp_path / "all.png").read_bytes().startswith(b"\x89PNG")
    assert run(command, "--store", tmp_path / "refs.jsonl") == 0
    assert "6 of 6 texts" in capsys.readouterr().err


def test_without_a_model_the_command_says_what_needs_none(command, tmp_path, capsys):
    moved = tmp_path / "moved"
    os.rename(command / "model", moved)
    try:
        assert run(command) == 1
        said = capsys.readouterr().err
        assert re.search("--model.*--references none", said)
        assert run(command, "--references", "none") == 0
        out = capsys.readouterr().out
        assert "How the scores are spread" in out
        assert "blank out" not in out
        assert run(command, "--model", moved, "--json") == 0
        assert json.loads(capsys.readouterr().out)["references"] == ["blank_out"]
    finally:
        os.rename(moved, command / "model")


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--layers", "1"], "--layers"),
        (["--label-column", "x"], "--label-column"),
        (["--receptive-field", "both"], "--receptive-field"),
        (["--faithfulness"], "--faithfulness"),
        (["--references", "none", "--model", "x"], "--model"),
        (["--references", "none,blank_out"], "references.*'none'"),
        (["--model", "./none"], r"\./none"),
    ],
)
def test_the_command_names_wrong_options(command, capsys, options, message):
    assert run(command, *options) == 1
    assert re.search(message, capsys.readouterr().err)
