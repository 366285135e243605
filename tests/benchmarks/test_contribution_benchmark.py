"""The benchmark of contributions: a small run, its tables, and results that disagree."""

import json
from functools import partial
from pathlib import Path

import pytest
import torch

from benchmarks import contributions, contributions_report, decomposition, inputs, runs
from benchmarks.__main__ import main
from benchmarks.measure import added_memory, in_turns
from tests.support import text

ASKED = ["contributions", "--quick", "--models", "classifier", "decoder", "--threads", "1"]
ASKED += ["--tokens", "8", "12", "--decomposition", "8"]
JOBS = ["cost/{}/8", "cost/{}/12", "decomposition/{}/8"]


@pytest.fixture(scope="module")
def models():
    return {"classifier": text.classifier(), "decoder": text.decoder()}


@pytest.fixture
def tiny(models, monkeypatch):
    """Tiny models in the place of the real ones."""
    monkeypatch.setattr(inputs, "load", models.__getitem__)
    return models


@pytest.fixture(scope="module")
def quick_run(models, tmp_path_factory):
    folder = tmp_path_factory.mktemp("contributions")
    output, page = folder / "run.json", folder / "page.md"
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(inputs, "load", models.__getitem__)
        status = main([*ASKED, "--output", str(output), "--markdown", str(page)])
    return status, json.loads(output.read_text()), page.read_text(), output


def test_contributions_are_measured_against_the_forward_pass(quick_run):
    status, document, page, _ = quick_run
    assert (status, document["complete"]) == (0, True)
    names = [job.format(kind) for kind in ("classifier", "decoder") for job in JOBS]
    assert list(document["measurements"]) == names
    for name, record in document["measurements"].items():
        assert record["threads"] == 1
        assert all(seconds > 0 for times in record["seconds"].values() for seconds in times)
        if name.startswith("cost/"):
            assert list(record["seconds"]) == ["forward", "contribute", "steps", "explain"]
            assert list(record["peak_bytes"]) == list(record["seconds"])
            assert {len(times) for times in record["seconds"].values()} == {2}
    assert "quick run" in page
    assert page.count("| MiniLM classifier | 12 | 1 |") == 4
    assert page.count("| SmolLM2 | 12 |") == 4
    assert page.count("| 8 |") == 10


def test_the_decomposition_gives_the_same(quick_run):
    _, document, page, _ = quick_run
    for kind in ("classifier", "decoder"):
        record = document["measurements"][f"decomposition/{kind}/8"]
        assert 0 <= float(record["relative_difference"]) < 1e-5
    assert document["disagreements"] == []
    assert "agree" in page
    assert "DISAGREE" not in page


def test_models_are_left_as_they_were(quick_run, models):
    for explainer in models.values():
        assert explainer.model.config._attn_implementation == "sdpa"


def test_a_saved_run_is_shown_again(quick_run, capsys):
    _, _, page, output = quick_run
    again = output.with_name("again.md")
    assert main(["show", str(output), "--markdown", str(again)]) == 0
    assert again.read_text() == page
    assert "COST" in capsys.readouterr().out


def test_a_run_that_was_interrupted_is_resumed(quick_run, tiny, capsys):
    _, document, _, output = quick_run
    cut = output.with_name("cut.json")
    kept = dict(list(document["measurements"].items())[:4])
    runs.save({**document, "measurements": kept, "complete": False}, cut)
    assert main([*ASKED, "--output", str(cut), "--resume"]) == 0
    found = json.loads(cut.read_text())
    assert found["complete"]
    assert list(found["measurements"]) == list(document["measurements"])
    assert {name: found["measurements"][name] for name in kept} == kept
    assert "already measured: 4 of 6" in capsys.readouterr().err


@pytest.mark.parametrize("factor", [1.01, float("nan")])
def test_a_decomposition_that_gives_something_else_fails_the_run(
    tiny, tmp_path, monkeypatch, capsys, factor
):
    right = decomposition.bert
    monkeypatch.setattr(decomposition, "bert", lambda *given: factor * right(*given))
    output = tmp_path / "run.json"
    asked = ["contributions", "--quick", "--tokens", "8", "--decomposition", "8"]
    assert main([*asked, "--output", str(output)]) == 1
    (wrong,) = json.loads(output.read_text())["disagreements"]
    assert (wrong["model"], wrong["tokens"]) == ("classifier", 8)
    assert not float(wrong["relative_difference"]) < 1e-3
    shown = capsys.readouterr().out
    assert "1 of 1" in shown
    assert "DISAGREE" in shown


def test_the_answer_is_what_the_explainer_explains(tiny):
    for kind, explainer in tiny.items():
        case = contributions.Case(kind, 10)
        explanation = case.explain()
        assert explanation.method == "contribution"
        assert len(explanation.tokens) == 10
        *scores, bias = case.contribute().tolist()
        assert scores == pytest.approx(list(explanation.scores), rel=1e-4, abs=1e-6)
        assert bias == pytest.approx(explanation.bias, rel=1e-4, abs=1e-6)
        assert explainer.tokenizer(case.text)["input_ids"] == case.inputs["input_ids"][0].tolist()


def test_the_real_classifier_always_has_the_same_head():
    first = inputs.load("classifier").model.classifier.weight
    inputs.load.cache_clear()
    second = inputs.load("classifier").model.classifier.weight
    assert first is not second
    assert torch.equal(first, second)
    assert inputs.load("classifier").adapter.task == "classification"


# Measuring


def test_calls_are_timed_in_turns_and_in_changing_order():
    order = []
    calls = {name: partial(order.append, name) for name in "ab"}
    found = in_turns(calls, 3, at_least=0.0)
    assert order == ["a", "b", "b", "a", "a", "b"]
    assert {name: len(times) for name, times in found.items()} == {"a": 3, "b": 3}


def test_a_short_call_is_repeated_and_its_mean_counts():
    started = []
    ((seconds,),) = in_turns({"a": lambda: started.append(1)}, 1, at_least=0.05).values()
    assert len(started) > 1
    assert seconds * len(started) > 0.0499


@pytest.mark.skipif(not Path("/proc/self/clear_refs").exists(), reason="needs Linux")
def test_added_memory_is_the_peak_of_a_call():
    found = added_memory(lambda: torch.ones(2**24).sum())  # 64 MiB, which are freed
    assert 60 < found / 2**20 < 100


# The report


def document_with(measurements):
    return {**runs.new("contributions", {}), "measurements": measurements, "complete": True}


def test_ratios_are_medians_over_rounds_with_their_range():
    cost = {
        "threads": 1,
        "seconds": {"forward": [1.0, 2.0, 1.0], "contribute": [3.0, 4.0, 4.0]},
        "peak_bytes": {"forward": 2**20, "contribute": 5 * 2**20},
    }
    decomposed = {
        "threads": 1,
        "seconds": {"contribute": [1.0, 1.0, 2.0], "decomposition": [19.0, 30.0, 38.0]},
        "relative_difference": "2.345e-06",
    }
    document = document_with(
        {
            "cost/decoder/128": cost,
            "cost/classifier/16": cost,
            "decomposition/decoder/128": decomposed,
        }
    )
    found = contributions_report.tables(document)
    forward, ours = found["cost"][:2]
    assert (forward["what"], forward["time_over_forward"]) == ("forward pass", 1.0)
    assert (ours["model"], ours["tokens"], ours["what"]) == ("SmolLM2", "128", "contributions")
    assert (ours["time_seconds"], ours["time_over_forward"]) == (4.0, 3.0)
    assert ours["range"] == "2.00x to 4.00x"
    assert (ours["added_memory_bytes"], ours["memory_over_forward"]) == (5 * 2**20, 5.0)
    (row,) = found["decomposition"]
    assert (row["contributions_seconds"], row["decomposition_seconds"]) == (1.0, 30.0)
    assert row["decomposition_over_contributions"] == 19.0
    assert row["largest_relative_difference"] == "2.3e-06"
    # Only 128 and 512 tokens have a target.
    assert [(row["target"], row["measured"], row["result"]) for row in found["targets"]] == [
        ("<= 3.5x", "3.00x", "met"),
        (">= 20x", "19.0x", "not met"),
    ]


def test_memory_that_is_not_known_is_left_out():
    cost = {
        "threads": 1,
        "seconds": {"forward": [1.0], "explain": [5.0]},
        "peak_bytes": {"forward": None, "explain": None},
    }
    found = contributions_report.tables(document_with({"cost/classifier/512": cost}))
    assert [row["memory_over_forward"] for row in found["cost"]] == [None, None]
    (row,) = found["targets"]
    assert (row["measured"], row["result"]) == ("5.00x", "not met")
    assert contributions_report.remarks(document_with({})) == []


# Options


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (["--models", "abacus"], ("--models", "'abacus'", "classifier", "decoder")),
        (["--tokens", "2"], ("--tokens", "2 given", "3 or more")),
        (["--rounds", "0"], ("--rounds", "0 given", "1 or more")),
        (["--decomposition", "1"], ("--decomposition", "1 given", "3 or more")),
    ],
)
def test_an_option_that_cannot_be_parsed_is_named(options, words, capsys):
    with pytest.raises(SystemExit):
        main(["contributions", *options])
    shown = capsys.readouterr().err
    assert all(word in shown for word in words)


@pytest.mark.parametrize("option", ["--tokens", "--decomposition"])
def test_texts_that_are_too_long_are_refused(option, capsys):
    assert main(["contributions", option, "513"]) == 1
    shown = capsys.readouterr().err
    assert all(word in shown for word in (option, "513", "512"))


def test_a_forward_decomposition_can_be_left_out():
    document = runs.new("contributions", {"models": ["classifier"], "tokens": [128, 512]})
    document["options"]["decomposition"] = []
    assert list(contributions.plan(document)) == ["cost/classifier/128", "cost/classifier/512"]
