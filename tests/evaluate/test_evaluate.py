"""Evaluation over texts, on tiny models and on one whose right answer is known by construction."""

import json
import os
import pickle
import re
import signal
import subprocess
import sys
import time

import numpy as np
import pytest
import torch
import transformers

from attnflow.correlation import spearman
from attnflow.errors import DataError, OptionError, TextError
from attnflow.evaluate import EvaluatedText, Evaluation, Skipped, evaluate
from attnflow.evaluate.baselines import BASELINES, baseline_scores
from attnflow.importance import importance
from attnflow.models import Explainer
from attnflow.models.adapter import Adapter
from attnflow.options import ATTENTION_METHODS
from tests.support import ROOT
from tests.support import evaluation as evaluation_models
from tests.support.evaluation import FEW, SIZES, TEXTS, VOCABULARY, tokenizer_of
from tests.support.tiny import sharpen


@pytest.fixture(scope="module")
def classifier():
    return evaluation_models.classifier()


@pytest.fixture(scope="module")
def decoder():
    return evaluation_models.decoder()


@pytest.fixture(scope="module")
def reader():
    """A classifier that reads one token, "keys": everything attends to it, and it alone decides.

    All other words, and UNK, have the same embedding, so that replacing one changes nothing.
    """
    config = transformers.BertConfig(
        **{**SIZES, "hidden_size": 4, "num_hidden_layers": 2, "num_attention_heads": 1}
    )
    model = transformers.BertForSequenceClassification(config)
    identity = torch.eye(4)
    key = torch.tensor([3.0, -1.0, -1.0, -1.0])
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if "LayerNorm" not in name:
                parameter.zero_()
        words = model.bert.embeddings.word_embeddings.weight
        words[:] = torch.tensor([-1.0, 3.0, -1.0, -1.0])
        words[VOCABULARY["[CLS]"]] = words[VOCABULARY["[SEP]"]] = torch.tensor([-1.0, -1, 3, -1])
        words[VOCABULARY["keys"]] = key
        for layer in model.bert.encoder.layer:
            attention = layer.attention
            # The same question everywhere, and the answer is how much a token is like "keys".
            attention.self.query.bias[0] = 4.0
            attention.self.key.weight[0] = key / 3
            attention.self.value.weight[:] = identity
            attention.output.dense.weight[:] = 2 * identity
        model.bert.pooler.dense.weight[:] = identity
        model.classifier.weight[1] = key
    return Explainer(model.eval(), tokenizer_of(special=True))


@pytest.fixture(scope="module")
def evaluation(classifier):
    return evaluate(
        classifier,
        [*TEXTS, "   ", "a " * 30],
        references=("blank_out", "gradient_x_input"),
        edges=("attention", "gradient"),
        drop_sink=(False, True),
        methods=ATTENTION_METHODS,
        **FEW,
    )


# ---- Correlations --------------------------------------------------------------------------------


def test_a_model_that_reads_one_token_agrees_with_all_references(reader):
    texts = ["the keys to the cabinet", "keys on a table", "no film will forget the keys"]
    found = evaluate(reader, texts, references=("blank_out", "gradient_x_input"), **FEW)
    for method in ("raw", "rollout", "flow"):
        for row in found.summary(method, special_tokens=False):
            # The keys come first by all methods in all layers, and the rest is tied.
            assert row["mean"] == 1.0
            assert row["std"] == 0.0
            assert row["ci"] == [1.0, 1.0]
            assert row["count"] == 3
    for text in texts:
        tokens = ["[CLS]", *text.split(), "[SEP]"]
        # Gradient x input is only what rounding leaves here, behind layer normalisation.
        for reference in ("blank_out", "gradient_norm"):
            values = importance(reader, text, reference=reference)
            assert tokens[int(values.argmax())] == "keys"


def test_correlations_are_of_what_explain_and_importance_say(classifier, evaluation):
    for index, text in enumerate(TEXTS):
        for edges in ("attention", "gradient"):
            explanation = classifier.explain(text, method="rollout", edges=edges)
            for reference in ("blank_out", "gradient_x_input"):
                values = importance(classifier, text, reference=reference)
                ordinary = ~np.array(explanation.special)
                for layer in (1, 2, 3):
                    scores = explanation.layer_scores[layer - 1]
                    for special, kept in ((True, slice(None)), (False, ordinary)):
                        found = evaluation.per_text(
                            "rollout",
                            layer,
                            edges=edges,
                            reference=reference,
                            special_tokens=special,
                            drop_sink=False,
                        )[index]
                        expected = spearman(scores[kept], values[kept])
                        np.testing.assert_allclose(found, expected, atol=1e-9)


@pytest.mark.parametrize("edges", ["attention", "gradient", "effective", "value_norm"])
def test_layer_scores_are_those_of_explain(classifier, decoder, edges):
    text = TEXTS[1]
    for explainer in (classifier, decoder):
        [found] = explainer.layer_scores(text, edges=edges, receptive_fields=(True, False))
        for (method, relative), scores in found.scores.items():
            explanation = explainer.explain(
                text, method=method, edges=edges, receptive_field=relative
            )
            np.testing.assert_array_equal(scores, explanation.layer_scores)
            assert found.tokens.names == explanation.tokens
            assert found.tokens.special == explanation.special
            assert found.position == explanation.position
            assert found.prediction == explanation.prediction
            assert found.target == explanation.target


def test_the_model_runs_once_for_all_methods_and_layers(classifier, monkeypatch):
    calls = []
    run = Adapter.run
    monkeypatch.setattr(Adapter, "run", lambda *a, **k: calls.append(1) or run(*a, **k))
    options = {"edges": ("attention", "effective"), "baselines": False, "workers": 1}
    evaluate(classifier, TEXTS[:2], **options, **FEW)
    assert len(calls) == 2 * 2


def test_the_sink_is_left_out_where_it_is_asked_for(classifier, evaluation):
    text = TEXTS[0]
    whole = classifier.explain(text, method="flow", layer=2)
    dropped = classifier.explain(text, method="flow", layer=2, drop_sink=True)
    assert len(dropped.tokens) == len(whole.tokens) - 1
    [sink] = classifier.layer_scores(text)[0].sinks
    values = np.delete(importance(classifier, text), sink)
    expected = spearman(dropped.scores, values)
    found = evaluation.per_text("flow", 2, drop_sink=True)[0]
    np.testing.assert_allclose(found, expected, atol=1e-9)


def test_a_decoders_scores_come_with_and_without_the_receptive_field(decoder):
    found = evaluate(decoder, TEXTS, receptive_field=(False, True), **FEW)
    assert found.receptive_fields == (False, True)
    for index, text in enumerate(TEXTS):
        values = importance(decoder, text)
        for relative in (False, True):
            explanation = decoder.explain(text, method="flow", receptive_field=relative)
            expected = spearman(explanation.scores, values)
            got = found.per_text("flow", -1, receptive_field=relative)[index]
            np.testing.assert_allclose(got, expected, atol=1e-9)
    np.testing.assert_array_equal(
        found.per_text("raw", receptive_field=False), found.per_text("raw", receptive_field=True)
    )
    pairs = found.compare("receptive_field")
    assert {pair["first"]["method"] for pair in pairs} == {"rollout", "flow"}


def test_auto_relates_a_decoders_scores_to_uniform_attention_and_no_encoders(classifier, decoder):
    options = {"methods": "rollout", "layers": [2], "baselines": False, **FEW}
    auto, both = (
        evaluate(decoder, TEXTS[:3], receptive_field=choice, **options)
        for choice in ("auto", (False, True))
    )
    assert auto.receptive_fields == (True,)
    np.testing.assert_array_equal(
        auto.per_text("rollout", 2), both.per_text("rollout", 2, receptive_field=True)
    )
    assert evaluate(classifier, TEXTS[:2], **options).receptive_fields == (False,)


def test_a_position_within_the_text_sees_and_scores_what_precedes_it(decoder):
    found = evaluate(decoder, ["the keys to the cabinet are"], position=3, **FEW)
    assert found.texts[0].tokens == 4
    assert found.texts[0].position == 3


def test_given_targets_are_explained(classifier):
    given = evaluate(classifier, TEXTS[:3], targets=["good", 0, None], **FEW)
    assert [text.target for text in given.texts[:2]] == ["good", "bad"]
    assert given.texts[2].target == given.texts[2].prediction.label
    values = importance(classifier, TEXTS[0], target="good")
    expected = spearman(classifier.explain(TEXTS[0], method="raw").scores, values)
    np.testing.assert_allclose(given.per_text("raw", 3)[0], expected, atol=1e-9)


def test_a_text_gets_the_same_numbers_whatever_stands_beside_it(classifier):
    options = {"baselines": ("position",), **FEW}
    together = evaluate(classifier, TEXTS, **options)
    alone = evaluate(classifier, [TEXTS[5]], **options)
    np.testing.assert_array_equal(together.correlations[5], alone.correlations[0])


def test_masked_language_models_are_asked_at_the_mask():
    model = sharpen(transformers.BertForMaskedLM(transformers.BertConfig(**SIZES)))
    explainer = Explainer(model, tokenizer_of(special=True))
    texts = ["the keys [MASK] on", "no mask", "[MASK] [MASK] is"]
    found = evaluate(explainer, texts, **FEW)
    assert [text.position for text in found.texts] == [3]
    assert [item.number for item in found.skipped] == [2, 3]
    assert "[MASK]" in found.skipped[0].reason


def test_undefined_correlations_are_counted_not_dropped(classifier):
    # Of two tokens of the text one is the sink, so that one is left.
    found = evaluate(classifier, ["keys", *TEXTS[:3]], **FEW)
    (row,) = found.summary("flow", special_tokens=False)[-1:]
    assert (row["count"], row["undefined"]) == (3, 1)
    values = found.per_text("flow", -1, special_tokens=False)
    assert np.isnan(values[0])
    assert row["mean"] == pytest.approx(np.nanmean(values))
    assert row["std"] == pytest.approx(np.nanstd(values, ddof=1))


def test_a_reference_that_is_rounding_error_is_noted(classifier, decoder):
    options = {"references": "input_gradient", "methods": "raw", **FEW}
    (note,) = evaluate(classifier, TEXTS[:2], **options).notes
    assert re.search("input_gradient.*rounding error", note)
    assert evaluate(decoder, TEXTS[:2], **options).notes == ()
    assert evaluate(classifier, TEXTS[:2], methods="raw", **FEW).notes == ()


# ---- Baselines, comparisons, faithfulness --------------------------------------------------------


def test_baselines_are_what_they_say(classifier, evaluation):
    tokens = [classifier.layer_scores(text)[0].tokens.names for text in TEXTS]
    counted = {token: sum(row.count(token) for row in tokens) for row in tokens for token in row}
    for index, text in enumerate(TEXTS):
        values = importance(classifier, text)
        position = spearman(np.arange(len(values)), values)
        rare = spearman([-counted[token] for token in tokens[index]], values)
        for name, expected in (
            ("position", position),
            ("position_reversed", -position),
            ("frequency", rare),
        ):
            np.testing.assert_allclose(evaluation.per_text(name)[index], expected, atol=1e-9)
    again = evaluate(classifier, TEXTS, methods="raw", layers=[1], seed=1, **FEW)
    assert (again.per_text("random") != evaluation.per_text("random")).any()


def test_random_scores_agree_with_nothing():
    rng = np.random.default_rng(3)
    tokens = ["a"] * 12
    found = [
        spearman(baseline_scores("random", tokens, frequencies={}, seed=(0, i)), rng.random(12))
        for i in range(2000)
    ]
    assert abs(np.mean(found)) < 0.03
    assert np.std(found) == pytest.approx(1 / np.sqrt(11), rel=0.06)


def test_frequencies_may_be_given(classifier):
    found = evaluate(classifier, TEXTS[:2], frequencies={"the": 5}, baselines="frequency", **FEW)
    assert found.baselines == ("frequency",)
    for index, text in enumerate(TEXTS[:2]):
        scores = [
            -5.0 * (token == "the") for token in classifier.layer_scores(text)[0].tokens.names
        ]
        expected = spearman(scores, importance(classifier, text))
        np.testing.assert_allclose(found.per_text("frequency")[index], expected, atol=1e-9)


def test_comparisons_are_paired_and_corrected_over_their_family(evaluation):
    found = evaluation.compare("method", reference="blank_out")
    assert len(found) == 2 * 3 * 3  # edges, pairs, layers
    for item in found:
        first, second = (
            evaluation.per_text(layer=item["layer"], **item[side]) for side in ("first", "second")
        )
        assert item["difference"] == pytest.approx(np.mean(first - second))
        assert item["ci"][0] <= item["difference"] <= item["ci"][1]
        assert item["count"] == len(TEXTS)
        assert item["p"] <= item["p_holm"] <= 1
    edges = evaluation.compare("edges")
    assert {item["first"]["edges"] for item in edges} == {"attention"}
    assert all(item["first"]["method"] == item["second"]["method"] for item in edges)
    assert len(evaluation.compare("baseline")) == 6 * len(BASELINES) * 3
    assert evaluation.compare("receptive_field") == []


def simulated(methods, correlations):
    """An evaluation of numbers made up, of shape (texts, methods)."""
    values = np.asarray(correlations)[:, None, :, None, None, None, None, None]
    return Evaluation(
        model="simulated",
        task="classification",
        fingerprint="",
        layers=[1],
        methods=methods,
        edges=["attention"],
        receptive_fields=[False],
        drop_sinks=[False],
        references=["blank_out"],
        baselines=[],
        options={"samples": 500, "permutations": 999, "level": 0.95, "seed": 0},
        texts=[EvaluatedText(i + 1, 9, 0, None, None) for i in range(len(values))],
        skipped=[],
        pending=0,
        correlations=np.repeat(values, 2, axis=6),
        baseline_correlations=np.empty((len(values), 0, 1, 1, 2)),
    )


def test_a_real_difference_is_found_where_means_alone_would_not_tell():
    rng = np.random.default_rng(1)
    text = rng.uniform(-0.8, 0.8, 80)  # some texts are hard for all methods
    noise = rng.normal(0, 0.05, (80, 3))
    found = simulated(
        ["raw", "rollout", "flow"], np.clip(text[:, None] + noise + [0, 0, 0.05], -1, 1)
    )
    p = {
        (item["first"]["method"], item["second"]["method"]): item["p_holm"]
        for item in found.compare()
    }
    assert p["raw", "flow"] <= 0.05
    assert p["rollout", "flow"] <= 0.05
    assert p["raw", "rollout"] > 0.05
    (raw,), (flow,) = found.summary("raw"), found.summary("flow")
    assert raw["ci"][1] > flow["ci"][0]


def test_faithfulness_is_measured_for_methods_references_and_baselines(reader):
    texts = ["the keys to the cabinet", "keys on a table"]
    options = {"layers": [2], "baselines": ("position",), "methods": ATTENTION_METHODS, **FEW}
    assert evaluate(reader, texts, **options).faithfulness_summary() == []
    found = evaluate(reader, texts, faithfulness=True, **options)
    means = {
        item.get("method") or item.get("reference") or item["baseline"]: item["mean"]
        for item in found.faithfulness_summary()
        if item["measure"] == "comprehensiveness"
    }
    assert set(means) == {"raw", "rollout", "flow", "blank_out", "position"}
    # All put the keys first, and then the rest makes no difference.
    assert means["raw"] == pytest.approx(means["flow"])
    assert means["flow"] == pytest.approx(means["blank_out"])
    assert means["flow"] > means["position"]
    assert Evaluation.from_dict(json.loads(json.dumps(found.to_dict()))) == found


# ---- The result ----------------------------------------------------------------------------------


def test_what_was_left_out_is_reported(evaluation):
    assert [item.number for item in evaluation.skipped] == [9, 10]
    assert "empty" in evaluation.skipped[0].reason
    assert re.search("32 tokens.*24", evaluation.skipped[1].reason)
    assert len(evaluation.texts) == len(TEXTS)


def test_texts_keep_the_numbers_they_are_given(classifier):
    found = evaluate(
        classifier,
        ["", *TEXTS[:2]],
        numbers=[3, 5, 9],
        skipped=[Skipped(4, "no text")],
        **FEW,
    )
    assert [text.number for text in found.texts] == [5, 9]
    assert [item.number for item in found.skipped] == [3, 4]


def test_an_evaluation_is_stored_without_loss(evaluation, tmp_path):
    path = tmp_path / "evaluation.json"
    evaluation.save(path)
    loaded = Evaluation.load(path)
    assert loaded == evaluation
    assert loaded.to_dict() == evaluation.to_dict()
    assert hash(loaded) == hash(evaluation)
    assert pickle.loads(pickle.dumps(evaluation)) == evaluation
    assert "NaN" not in path.read_text()


def test_the_dictionary_has_the_means_the_paper_prints(evaluation):
    data = evaluation.to_dict(per_text=False)
    row = next(
        item
        for item in data["results"]
        if (item["method"], item["edges"], item["reference"]) == ("flow", "attention", "blank_out")
        and item["special_tokens"]
        and not item["drop_sink"]
    )
    assert [cell["layer"] for cell in row["layers"]] == [1, 2, 3]
    values = evaluation.per_text("flow", 3)
    assert row["layers"][2]["mean"] == pytest.approx(values.mean())
    assert row["layers"][2]["std"] == pytest.approx(values.std(ddof=1))
    assert "per_text" not in row
    with pytest.raises(OptionError, match="means"):
        Evaluation.from_dict(data)


def test_tables_have_a_row_for_each_mean_or_each_text(evaluation, tmp_path):
    import pandas

    frame = evaluation.to_dataframe()
    rows = 2 * 3 * 3 + len(BASELINES)
    assert len(frame) == rows * 2 * 2 * 2
    chosen = frame[
        (frame.method == "flow")
        & (frame.edges == "gradient")
        & (frame.reference == "blank_out")
        & frame.special_tokens
        & ~frame.drop_sink
        & (frame.layer == 2)
    ]
    assert chosen["mean"].item() == evaluation.summary("flow", edges="gradient")[1]["mean"]
    long = evaluation.to_dataframe(per_text=True)
    assert len(long) == len(frame) * len(TEXTS)
    evaluation.to_csv(tmp_path / "long.csv", per_text=True)
    evaluation.save(tmp_path / "short.csv")
    assert len(pandas.read_csv(tmp_path / "long.csv")) == len(long)
    read = pandas.read_csv(tmp_path / "short.csv")
    assert list(read.columns) == list(frame.columns)
    np.testing.assert_allclose(read["mean"], frame["mean"])


def test_an_evaluation_cannot_be_changed(evaluation):
    with pytest.raises(AttributeError, match="model"):
        evaluation.model = "other"
    with pytest.raises(ValueError, match="read-only"):
        evaluation.correlations[0] = 0


def test_the_plot_draws_every_row_and_baseline(evaluation, tmp_path):
    figure, axes = evaluation.plot(reference="gradient_x_input", special_tokens=False)
    assert figure is axes.figure
    names = [text.get_text() for text in axes.get_legend().get_texts()]
    assert "flow gradient" in names
    assert "position" in names
    assert re.search("gradient x input.*special tokens", axes.get_title(loc="left"))
    drawn = {line.get_label(): line.get_ydata() for line in axes.lines}
    expected = evaluation.summary(
        "flow", edges="gradient", reference="gradient_x_input", special_tokens=False
    )
    np.testing.assert_allclose(drawn["flow gradient"], [row["mean"] for row in expected])
    evaluation.save(tmp_path / "all.png")
    assert (tmp_path / "all.png").read_bytes().startswith(b"\x89PNG")


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda e: e.summary("attention"), "method.*'attention'"),
        (lambda e: e.summary("flow", reference="gradient"), "'blank_out'.*'gradient_x_input'"),
        (lambda e: e.summary("flow", edges="value_norm"), "edges.*'value_norm'"),
        (lambda e: e.summary("flow", receptive_field=True), "receptive_field.*True.*False"),
        (lambda e: e.per_text("flow", 7), "layer.*7.*1.*2.*3"),
        (lambda e: e.per_text("random", 1), "'random'.*layers"),
        (lambda e: e.compare("layer"), "over.*'layer'.*method.*edges"),
        (lambda e: e.save("x.txt"), r"path.*\.json"),
    ],
)
def test_what_was_not_evaluated_is_named(evaluation, call, message):
    with pytest.raises(OptionError, match=message):
        call(evaluation)


@pytest.mark.parametrize(
    "change",
    [
        lambda data: data.pop("layers"),
        lambda data: data.update(version=2),
        lambda data: data.update(format="other"),
        lambda data: data["texts"].pop(),
        lambda data: data["results"].pop(),
        lambda data: data["results"][0]["per_text"].pop(),
        lambda data: data["results"][0]["per_text"][0].__setitem__(0, 7.0),
        lambda data: data["skipped"].append({"line": 1}),
    ],
)
def test_a_damaged_file_is_refused(evaluation, tmp_path, change):
    data = evaluation.to_dict()
    change(data)
    path = tmp_path / "damaged.json"
    path.write_text(json.dumps(data))
    with pytest.raises(OptionError, match="evaluation"):
        Evaluation.load(path)


# ---- Wrong options -------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"methods": "attention"}, "methods.*'attention'.*raw.*rollout.*flow"),
        ({"methods": []}, "methods.*empty"),
        ({"methods": ("raw", "raw")}, "twice"),
        ({"edges": ("cheese",)}, "edges.*'cheese'"),
        ({"references": ("gradient",)}, "references.*'gradient'.*blank_out"),
        ({"layers": [4]}, "layer"),
        ({"layers": [1, -3]}, "layers.*twice"),
        ({"targets": "ugly"}, "target.*'ugly'.*bad.*good"),
        ({"targets": ["good"]}, "targets.*1.*2 texts"),
        ({"position": "middle"}, "position.*'middle'"),
        ({"residual": 2}, "residual.*0.*1"),
        ({"receptive_field": "yes"}, "receptive_field.*'yes'.*True.*False.*'auto'"),
        ({"receptive_field": (True, True)}, "twice"),
        ({"drop_sink": "first"}, "drop_sink.*'first'.*True.*False"),
        ({"baselines": ("luck",)}, "baselines.*'luck'.*random.*position"),
        ({"frequencies": [1]}, "frequencies.*dictionary"),
        ({"faithfulness": 1}, "faithfulness.*1"),
        ({"samples": 0}, "samples.*0"),
        ({"permutations": -1}, "permutations.*-1"),
        ({"level": 95}, "level.*95"),
        ({"seed": 0.5}, "seed.*0.5"),
        ({"batch_size": 0}, "batch_size.*0"),
        ({"numbers": [1]}, "numbers.*1"),
        ({"replacement": "cheese"}, "cheese"),
        (
            {"replacement": "mask", "references": "gradient_x_input"},
            "replacement.*'mask'.*blank_out",
        ),
    ],
)
def test_wrong_options_are_named(classifier, options, message):
    with pytest.raises(OptionError, match=message):
        evaluate(classifier, TEXTS[:2], **options)


def test_a_single_text_that_is_no_list_is_refused(classifier):
    with pytest.raises(OptionError, match=r"texts.*'the keys'"):
        evaluate(classifier, "the keys")


def test_texts_that_are_all_bad_are_an_error_with_the_reason(classifier):
    with pytest.raises(TextError, match=r"2 texts.*number 1.*empty"):
        evaluate(classifier, ["", " "])


def test_a_model_without_an_answer_cannot_be_evaluated():
    model = transformers.BertModel(transformers.BertConfig(**SIZES))
    with pytest.raises(OptionError, match=r"encoder.*references"):
        evaluate(Explainer(model.eval(), tokenizer_of(special=True)), TEXTS)
    with pytest.raises(OptionError, match=r"explainer.*\bstr\b"):
        evaluate("model", TEXTS)


# ---- Going on with a run -------------------------------------------------------------------------


def stop_after(count):
    def progress(done, total):
        if done >= count:
            raise KeyboardInterrupt

    return progress


def test_a_run_that_was_stopped_goes_on_to_the_same_result(classifier, tmp_path):
    whole = evaluate(classifier, [*TEXTS, ""], **FEW)
    store = tmp_path / "run.jsonl"
    with pytest.raises(KeyboardInterrupt):
        evaluate(classifier, [*TEXTS, ""], store=store, progress=stop_after(3), **FEW)
    assert len(store.read_text().splitlines()) == 1 + 3
    seen = []
    found = evaluate(
        classifier, [*TEXTS, ""], store=store, progress=lambda *at: seen.append(at), **FEW
    )
    assert seen == [(done, 8) for done in range(3, 9)]
    assert found.to_dict() == whole.to_dict()
    # All is there: nothing is measured again.
    before = store.read_bytes()
    again = evaluate(classifier, [*TEXTS, ""], store=store, **FEW)
    assert again == whole
    assert store.read_bytes() == before


def test_wherever_the_file_was_cut_off_the_result_is_the_same(classifier, tmp_path):
    store = tmp_path / "run.jsonl"
    texts = TEXTS[:3]
    # Several workers write the same lines, in the order in which they are done.
    options = {"store": store, "workers": 1, **FEW}
    whole = evaluate(classifier, texts, **options)
    content = store.read_bytes()
    lines = content.splitlines(keepends=True)
    cuts = [0, 1, 20, len(lines[0]) - 1, len(lines[0]), len(lines[0]) + 5]
    cuts += [len(content) - 1, len(content) - len(lines[-1]), len(content)]
    for cut in cuts:
        store.write_bytes(content[:cut])
        assert evaluate(classifier, texts, **options) == whole
        assert store.read_bytes() == content


CHILD = """
import sys, time
from attnflow.evaluate import evaluate
from tests.support.evaluation import FEW, TEXTS, classifier
evaluate(classifier(), TEXTS, store=sys.argv[1], progress=lambda *at: time.sleep(0.1), **FEW)
"""


@pytest.mark.exhaustive
def test_a_run_killed_in_the_middle_goes_on_to_the_same_result(classifier, tmp_path):
    store = tmp_path / "run.jsonl"
    command = [sys.executable, "-c", CHILD, str(store)]
    with subprocess.Popen(command, cwd=ROOT, env={**os.environ, "OMP_NUM_THREADS": "1"}) as child:
        end = time.monotonic() + 300
        while not store.exists() or store.read_bytes().count(b"\n") < 3:
            assert child.poll() is None, "the child ended too early"
            assert time.monotonic() < end, "the child did nothing"
            time.sleep(0.01)
        child.send_signal(signal.SIGKILL)
        child.wait()
    done = store.read_bytes().count(b"\n") - 1
    assert 2 <= done < len(TEXTS)
    found = evaluate(classifier, TEXTS, store=store, **FEW)
    assert found == evaluate(classifier, TEXTS, **FEW)


def test_a_folder_gets_a_file_of_its_own(classifier, tmp_path):
    evaluate(classifier, TEXTS[:1], store=tmp_path, **FEW)
    assert (tmp_path / "evaluation.jsonl").is_file()


@pytest.mark.parametrize(
    ("texts", "options", "message"),
    [
        (TEXTS, {"residual": 0.3}, "residual.*0.5.*0.3"),
        (TEXTS, {"methods": "raw"}, "methods.*raw.*rollout.*flow.*raw"),
        (TEXTS, {"frequencies": {"a": 1}}, "frequencies.*texts.*table"),
        (TEXTS, {"seed": 4}, "seed.*0.*4"),
        (TEXTS[:4], {}, "8 texts.*4"),
        ([*TEXTS[:7], "the keys"], {}, "8 texts"),
        (TEXTS, {"targets": "good"}, "8 texts"),
    ],
)
def test_a_store_of_another_evaluation_is_refused(classifier, tmp_path, texts, options, message):
    store = tmp_path / "run.jsonl"
    with pytest.raises(KeyboardInterrupt):
        evaluate(classifier, TEXTS, store=store, progress=stop_after(0), **FEW)
    before = store.read_bytes()
    with pytest.raises(OptionError, match=f"another .*{message}"):
        evaluate(classifier, texts, store=store, **options)
    assert store.read_bytes() == before


def test_a_store_of_another_model_is_refused(classifier, decoder, tmp_path):
    store = tmp_path / "run.jsonl"
    evaluate(classifier, TEXTS[:1], store=store, **FEW)
    with pytest.raises(OptionError, match=r"BertForSequence.*Llama"):
        evaluate(decoder, TEXTS[:1], store=store, **FEW)
    model = sharpen(type(classifier.model)(classifier.model.config))
    changed = Explainer(model, classifier.tokenizer)
    with torch.no_grad():
        changed.model.classifier.bias[0] += 1e-3
    with pytest.raises(OptionError, match=r"weights.*vocabulary"):
        evaluate(changed, TEXTS[:1], store=store, **FEW)


@pytest.mark.parametrize(
    "content", [b"the keys\n", b'{"a": 1}\n', b"[]\n", b"no line break", b"\xff\n"]
)
def test_a_file_that_is_no_store_is_left_alone(classifier, tmp_path, content):
    store = tmp_path / "texts.txt"
    store.write_bytes(content)
    with pytest.raises(DataError, match=r"texts\.txt"):
        evaluate(classifier, TEXTS[:1], store=store, **FEW)
    assert store.read_bytes() == content


def test_a_store_damaged_in_the_middle_says_where(classifier, tmp_path):
    store = tmp_path / "run.jsonl"
    evaluate(classifier, TEXTS[:2], store=store, **FEW)
    lines = store.read_bytes().splitlines(keepends=True)
    store.write_bytes(lines[0] + b"{\n" + lines[2])
    with pytest.raises(DataError, match="line 2"):
        evaluate(classifier, TEXTS[:2], store=store, **FEW)


def test_a_store_in_use_is_refused(classifier, tmp_path):
    store = tmp_path / "run.jsonl"

    def second(done, total):
        with pytest.raises(OptionError, match="another run"):
            evaluate(classifier, TEXTS[:2], store=store, **FEW)

    evaluate(classifier, TEXTS[:2], store=store, progress=second, **FEW)


def test_a_store_that_cannot_be_is_an_error_before_any_work(classifier, tmp_path):
    with pytest.raises(OptionError, match=r"run\.jsonl"):
        evaluate(classifier, TEXTS[:1], store=tmp_path / "no" / "run.jsonl")
    with pytest.raises(OptionError, match="/dev/null"):
        evaluate(classifier, TEXTS[:1], store="/dev/null")


# ---- Fingerprints --------------------------------------------------------------------------------


def test_a_fingerprint_is_that_of_the_weights_wherever_they_are(classifier, tmp_path):
    folder = tmp_path / "model"
    classifier.model.save_pretrained(folder)
    classifier.tokenizer.save_pretrained(folder)
    loaded = Explainer.from_pretrained(folder, device="cpu")
    assert loaded.fingerprint() == classifier.fingerprint()
    with torch.no_grad():
        loaded.model.classifier.weight[0, 0] += 1e-4
    assert loaded.fingerprint() != classifier.fingerprint()
