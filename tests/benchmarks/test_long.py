"""The benchmark of long texts: a small run, processes of their own, and the report's arithmetic."""

import json
import math
import os
import time
from pathlib import Path

import pytest

from benchmarks import inputs, long, long_report, runs
from benchmarks.__main__ import main
from tests.support import text

# The tiny model takes 24 tokens.
ASKED = ["long", "--quick", "--tokens", "8", "30", "--flow-tokens", "8", "--short", "8"]
JOBS = ["short/8", *(f"long/{what}/{n}" for n in (8, 30) for what in long.WHAT)]


def here(budget, function, *arguments):
    """Measure in this process, where the model is a tiny one."""
    assert budget == 1800
    return long.attempt(function, *arguments)


@pytest.fixture(scope="module")
def quick_run(tmp_path_factory):
    folder, model = tmp_path_factory.mktemp("long"), text.decoder()
    output, page = folder / "run.json", folder / "page.md"
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(inputs, "load", {"decoder": model}.__getitem__)
        patch.setattr(long, "in_own_process", here)
        status = main([*ASKED, "--output", str(output), "--markdown", str(page)])
    return status, json.loads(output.read_text()), page.read_text(), output


def test_everything_is_measured_or_says_why_not(quick_run):
    status, document, page, _ = quick_run
    assert (status, document["complete"]) == (0, True)
    assert list(document["measurements"]) == JOBS
    for what in long.WHAT:
        record = document["measurements"][f"long/{what}/8"]
        assert record["status"] == "measured"
        assert record["seconds"][0] > 0
        assert record["peak_bytes"] >= 0
    assert list(document["measurements"]["short/8"]["seconds"]) == list(long.WHAT)
    why = {row["what"]: row for row in long_report.tables(document)["not_measured"]}
    assert {what: row["status"] for what, row in why.items()} == {
        "rollout": "refused",
        "contributions": "refused",
        "flow": "left out",
    }
    assert all(str(n) in why["rollout"]["reason"] for n in (30, 24))
    assert "--flow-tokens 8" in why["flow"]["reason"]
    assert "quick run" in page
    assert all(f"| 8 | {name} |" in page for name in ("forward pass", "contributions", "flow"))
    # The targets are about 8,192 tokens.
    assert page.count("not measured") >= 6


def test_the_shape_is_that_of_the_model(quick_run):
    _, document, _, _ = quick_run
    shape = document["measurements"]["long/forward/8"]["shape"]
    expected = {"layers": 3, "heads": 2, "key_value_heads": 1, "head_size": 8, "width": 16}
    assert shape.items() >= {**expected, "bytes_per_number": 4}.items()


def test_a_saved_run_is_shown_again(quick_run, capsys):
    _, _, page, output = quick_run
    again = output.with_name("again.md")
    assert main(["show", str(output), "--markdown", str(again)]) == 0
    assert again.read_text() == page
    assert "SIZING" not in capsys.readouterr().out  # there is nothing to fit


def test_a_run_that_was_interrupted_is_resumed(quick_run, monkeypatch, capsys):
    _, document, _, output = quick_run
    cut = output.with_name("cut.json")
    kept = dict(list(document["measurements"].items())[:-1])
    runs.save({**document, "measurements": kept, "complete": False}, cut)
    monkeypatch.setattr(inputs, "load", None)  # what is left out loads nothing
    assert main([*ASKED, "--output", str(cut), "--resume"]) == 0
    assert json.loads(cut.read_text())["measurements"] == document["measurements"]
    assert "already measured: 8 of 9" in capsys.readouterr().err


@pytest.mark.exhaustive
def test_the_real_model_is_measured_in_processes_of_their_own(tmp_path):
    output = tmp_path / "run.json"
    asked = ["--tokens", "64", "--flow-tokens", "16", "--short", "16", "--output", str(output)]
    assert main(["long", "--quick", *asked]) == 0
    measured = json.loads(output.read_text())["measurements"]
    for what in ("forward", "rollout", "contribution"):
        record = measured[f"long/{what}/64"]
        assert record["status"] == "measured"
        assert record["peak_bytes"] > 2**20
        assert record["shape"]["layers"] == 30
    assert measured["long/flow/64"]["status"] == "left out"


def test_a_text_is_repeated_to_its_length():
    tokenizer = text.decoder_tokenizer()
    shorter = len(tokenizer(inputs.text())["input_ids"])
    (found,) = inputs.texts(tokenizer, 2 * shorter + 1, 1)
    assert len(tokenizer(found)["input_ids"]) == 2 * shorter + 1


# Processes of their own


def test_a_process_of_its_own_returns_what_it_measured():
    assert long.in_own_process(60, dict, {"pid": 1}) == {"status": "measured", "pid": 1}


@pytest.mark.parametrize(
    ("budget", "function", "argument", "status", "reason"),
    [
        (1, time.sleep, 60, "stopped", "1 s"),
        (60, os._exit, 3, "failed", "exit code 3"),
        (60, math.sqrt, -1.0, "failed", "ValueError"),
        (60, runs.load, Path("no|where.json"), "refused", "no/where.json"),
    ],
)
def test_a_measurement_that_does_not_end_well_says_why(budget, function, argument, status, reason):
    found = long.in_own_process(budget, function, argument)
    assert found["status"] == status
    assert reason in found["reason"]


# The report

LENGTHS = (512, 2048, 4096, 8192)
SHAPE = {
    "layers": 30,
    "heads": 9,
    "key_value_heads": 3,
    "head_size": 64,
    "width": 576,
    "bytes_per_number": 4,
    "parameters": 134_515_008,
}


def record(seconds, peak, reset=True):
    return {
        "status": "measured",
        "threads": 2,
        "seconds": [seconds],
        "cpu_seconds": [2 * seconds],
        "peak_bytes": peak,
        "peak_was_reset": reset,
        "shape": SHAPE,
    }


def made_up(memory, slower, lengths=LENGTHS, **options):
    """Return a run with a forward pass of n ms + n^2 ns and 50 kB a token.

    Args:
        memory: Bytes of each method, from the number of tokens.
        slower: How many times the time of the forward pass it takes.
    """
    measured = {}
    for n in lengths:
        seconds = 1e-3 * n + 1e-9 * n**2
        measured[f"long/forward/{n}"] = record(seconds, 50_000 * n)
        for what in ("rollout", "contribution"):
            measured[f"long/{what}/{n}"] = record(slower * seconds, memory(n))
    return {**runs.new("long", options), "measurements": measured, "complete": True}


def test_linear_memory_meets_the_targets():
    found = long_report.tables(made_up(lambda n: 10**8 + 150_000 * n, 4.2))
    # Over the forward pass: 0.1 GB and 100 kB a token.
    results = [(row["measured"], row["result"]) for row in found["targets"]]
    assert results[:4] == [
        ("0.919 GB", "met"),
        ("4.20x", "not met"),
        ("0.919 GB", "met"),
        ("4.20x", "met"),
    ]
    assert [result for _, result in results[4:]] == ["met", "met"]
    by_method = {row["what"]: row for row in found["exponents"]}
    assert by_method["forward pass"]["exponent of memory"] == pytest.approx(1)
    assert 0.8 < by_method["rollout"]["exponent of memory"] < 1
    assert by_method["rollout"]["lengths"] == "2,048, 4,096, 8,192"
    row = found["cost"][-1]
    assert (row["tokens"], row["what"], row["repeats"]) == (8192, "contributions", 1)
    assert row["GB above the forward pass"] == pytest.approx(0.9192)
    assert row["time_over_forward"] == pytest.approx(4.2)


def test_quadratic_memory_does_not():
    found = long_report.tables(made_up(lambda n: 100 * n**2, 3))
    assert [row["result"] for row in found["targets"]] == [
        *("not met", "met", "not met", "met"),
        *("not met", "not met"),
    ]
    assert found["targets"][-1]["measured"] == "2.00"


def test_an_exponent_of_other_lengths_is_no_result():
    found = long_report.tables(made_up(lambda n: n, 1, lengths=(2048, 4096)))
    assert {row["result"] for row in found["targets"]} == {"not measured"}
    assert len(found["exponents"]) == 3


def test_sizing_goes_on_from_the_fits():
    found = long_report.tables(made_up(lambda n: 10**8 + 150_000 * n, 4))
    rows = {(row["tokens"], row["what"]): row for row in found["sizing"]}
    assert len(rows) == 6
    forward, rollout = (rows[131_072, what] for what in ("forward pass", "rollout"))
    assert forward["memory_GB"] == pytest.approx(131_072 * 5e-5)
    assert rollout["memory_GB"] == pytest.approx(0.1 + 131_072 * 1.5e-4)
    seconds = 131.072 + 1e-9 * 131_072**2
    assert forward["time_seconds"] == pytest.approx(seconds)
    assert rollout["time_seconds"] == pytest.approx(4 * seconds)


def test_what_is_kept_is_computed_from_the_shape():
    assert long_report.kept(SHAPE) == {"rollout": 30 * 12 * 64 * 4, "contribution": 30 * 576 * 4}
    found = long_report.tables(made_up(lambda n: 150_000 * n, 4))
    rollout, _ = found["kept"]
    assert rollout["kB a token, measured"] == pytest.approx(100)
    assert rollout["measured_over_computed"] == pytest.approx(100 / 92.16)
    rows = {(row["model"], row["tokens"]): row for row in found["shapes"]}
    llama = rows["Llama-8B shape, bfloat16", 131_072]
    # 32 layers of 40 heads of 128 numbers of 2 bytes, and 32 layers of 4096 numbers.
    assert llama["kept_by_rollout_GB"] == pytest.approx(42.949672960)
    assert llama["kept_by_contributions_GB"] == pytest.approx(34.359738368)
    assert llama["weights_GB"] == pytest.approx(16.06)
    assert rows["SmolLM2-135M", 8192]["flow's graph_GB"] == pytest.approx(30 * 8192**2 * 8e-9)


def test_a_time_that_bends_the_wrong_way_is_fitted_by_a_line():
    a, b = long_report.curve([(1, 1.0), (2, 1.8), (4, 3.2)])
    assert b == 0
    assert 0.8 < a < 1
    a, b = long_report.curve([(1, 1.0), (2, 5.0), (4, 30.0)])
    assert a == 0
    assert 1 < b < 2


def test_one_length_has_no_fit():
    for fit in (long_report.exponent, long_report.line, long_report.curve):
        assert fit([(2048, 1.0)]) is None


def test_remarks_say_how_memory_was_measured_and_what_failed():
    document = made_up(lambda n: n, 1, quick=True)
    assert any("was reset" in remark for remark in long_report.remarks(document))
    document["measurements"]["long/rollout/512"] = record(1.0, 1, reset=False)
    document["measurements"]["short/16"] = {"status": "failed", "reason": "out of order"}
    remarks = " ".join(long_report.remarks(document))
    assert "NOT be reset" in remarks
    assert "1 of 13 measurements FAILED" in remarks
    (row,) = long_report.tables(document)["not_measured"]
    assert (row["what"], row["tokens"], row["reason"]) == ("short text", 16, "out of order")


def test_short_texts_are_compared_round_by_round():
    seconds = {"forward": [1.0, 2.0, 1.0], "rollout": [3.0, 4.0, 4.0]}
    document = made_up(lambda n: n, 1)
    document["measurements"] = {"short/16": {"status": "measured", "seconds": seconds}}
    _, rollout = long_report.tables(document)["short_texts"]
    assert (rollout["time_seconds"], rollout["time_over_forward"]) == (4.0, 3.0)
    assert rollout["range"] == "2.00x to 4.00x"


# Options


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (["--tokens", "2"], ("--tokens", "2 given", "3 or more")),
        (["--budget", "0"], ("--budget", "0 given", "1 or more")),
    ],
)
def test_an_option_that_cannot_be_parsed_is_named(options, words, capsys):
    with pytest.raises(SystemExit):
        main(["long", *options])
    shown = capsys.readouterr().err
    assert all(word in shown for word in words)


@pytest.mark.parametrize("option", ["--tokens", "--flow-tokens", "--short"])
def test_texts_that_are_too_long_are_refused(option, capsys):
    assert main(["long", option, "8193"]) == 1
    shown = capsys.readouterr().err
    assert all(word in shown for word in (option, "8193", "8192"))
