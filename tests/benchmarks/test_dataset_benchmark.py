"""The data-set benchmark: a small run, its report, and how it is resumed."""

import json

import pytest

from benchmarks import datasets, datasets_report, inputs, runs
from benchmarks.__main__ import main

ASKED = ["datasets", "--quick", "--tokens", "8", "--workers", "1", "--texts", "20"]
METHODS = ["raw", "rollout", "flow", "contribution"]


@pytest.fixture(scope="module")
def dataset_run(tmp_path_factory):
    folder = tmp_path_factory.mktemp("dataset")
    output, page = folder / "run.json", folder / "page.md"
    status = main([*ASKED, "--output", str(output), "--markdown", str(page)])
    return status, json.loads(output.read_text()), page.read_text(), output


def test_a_run_over_texts_is_timed_against_a_loop_and_against_the_forward_pass(dataset_run):
    status, document, page, _ = dataset_run
    assert (status, document["complete"]) == (0, True)
    rates = document["measurements"]["dataset/8"]["texts_per_second"]
    forward = max(rates["forward/threads"], rates["forward/processes"])
    found = datasets_report.tables(document)["texts_per_second"]
    assert [row["method"] for row in found] == METHODS
    for row in found:
        rate = rates[f"local/{row['method']}"]
        assert row["tokens"] == "8"
        assert row["run_over_loop"] == rate / rates[f"loop/{row['method']}"] > 0
        assert row["run_over_forward"] == rate / forward > 0
    # One table by the clock, and one by CPU time.
    shown = [line.split(" | ")[1] for line in page.splitlines() if line.startswith("| 8 |")]
    assert shown == METHODS * 2


def test_memory_is_sampled_while_texts_are_run(dataset_run):
    _, document, _, _ = dataset_run
    memory = document["measurements"]["memory/local"]
    assert memory["texts"] == 20
    assert memory["samples"][0] > 2**20
    assert memory["peak_bytes"] == max(memory["samples"])


def test_a_saved_run_over_texts_is_shown_again(dataset_run, capsys):
    _, document, page, output = dataset_run
    again = output.with_name("again.md")
    assert main(["show", str(output), "--markdown", str(again)]) == 0
    assert again.read_text() == page
    printed = capsys.readouterr().out
    assert "TEXTS PER SECOND" in printed
    assert "MEMORY" in printed
    # Only 16 and 64 tokens have a target of their own.
    targets = datasets_report.tables(document)["targets"]
    assert targets[0]["what"].startswith("worst of all over a loop")


def test_a_run_over_texts_that_was_interrupted_is_resumed(dataset_run, capsys):
    _, document, _, output = dataset_run
    cut = output.with_name("cut.json")
    kept = {"dataset/8": document["measurements"]["dataset/8"]}
    runs.save({**document, "measurements": kept, "complete": False}, cut)
    assert main([*ASKED, "--output", str(cut), "--resume"]) == 0
    found = json.loads(cut.read_text())
    assert found["complete"]
    assert found["measurements"]["dataset/8"] == kept["dataset/8"]
    assert "memory/local" in found["measurements"]
    assert "already measured: 1 of 2" in capsys.readouterr().err


def test_contributions_have_targets_over_the_forward_pass_alone():
    rates = {f"{kind}/{method}": 1.0 for kind in ("loop", "local") for method in METHODS}
    rates |= {"forward/threads": 3.0, "forward/processes": 5.0, "local/contribution": 1.25}
    record = {"texts_per_second": rates, "texts_per_cpu_second": rates}
    measured = {f"dataset/{tokens}": record for tokens in (16, 64, 256)}
    document = {**runs.new("datasets", {}), "measurements": measured}
    found = [
        (row["what"], row["measured"], row["result"])
        for row in datasets_report.tables(document)["targets"]
        if "contribution" in row["what"]
    ]
    assert found == [
        (f"contribution over the forward pass, {tokens} tokens", "0.250x", "met")
        for tokens in (16, 64)
    ]


@pytest.mark.exhaustive
def test_engines_are_compared_over_whole_runs():
    options = {"tokens": [8], "engines": ["local", "ray"], "workers": 1, "texts": 0, "quick": True}
    document = runs.new("datasets", options)
    jobs = datasets.plan(document)
    assert list(jobs) == ["dataset/8", "whole/local", "whole/ray"]
    document["measurements"] = {name: jobs[name]() for name in ("whole/local", "whole/ray")}
    for record in document["measurements"].values():
        assert (record["tokens"], record["texts"]) == (8, 16)
        assert 0 < record["first_shard_seconds"] <= record["run_seconds"]
    assert [row["engine"] for row in datasets_report.tables(document)["engines"]] == [
        "local",
        "ray",
    ]


def test_texts_have_the_length_that_is_asked_for():
    tokenizer = inputs.load("real").tokenizer
    texts = inputs.texts(tokenizer, 12, 40)
    assert len(texts) == 40
    assert {len(ids) for ids in tokenizer(texts)["input_ids"]} == {12}


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (["--texts", "-1"], ("--texts", "-1 given", "0 or more")),
        (["--workers", "0"], ("--workers", "0 given", "1 or more")),
        (["--engines", "steam"], ("--engines", "'steam'", "local", "ray")),
        (["--tokens", "2"], ("--tokens", "2 given", "3 or more")),
    ],
)
def test_an_option_that_cannot_be_parsed_is_named(options, words, capsys):
    with pytest.raises(SystemExit):
        main(["datasets", *options])
    shown = capsys.readouterr().err
    assert all(word in shown for word in words)


def test_texts_that_are_too_long_are_refused(capsys):
    assert main(["datasets", "--tokens", "513"]) == 1
    shown = capsys.readouterr().err
    assert "513" in shown
    assert "512" in shown
