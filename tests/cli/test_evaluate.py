"""``attnflow evaluate``: files in, tables out."""

import csv
import io
import json
import re
import signal
import subprocess
import sys
import time

import pytest

from attnflow.cli import main
from attnflow.evaluate import Evaluation, evaluate
from attnflow.view.evaluation import report
from tests.support import evaluation as evaluation_models
from tests.support.evaluation import TEXTS

FEW = ["--samples", "100", "--permutations", "99"]


@pytest.fixture(scope="module")
def classifier():
    return evaluation_models.classifier()


@pytest.fixture(scope="module")
def decoder():
    return evaluation_models.decoder()


@pytest.fixture(scope="module")
def model(classifier, tmp_path_factory):
    folder = tmp_path_factory.mktemp("model")
    classifier.model.save_pretrained(folder)
    classifier.tokenizer.save_pretrained(folder)
    return folder


@pytest.fixture
def data(tmp_path):
    path = tmp_path / "texts.txt"
    path.write_text("\n".join([*TEXTS[:4], "", "a " * 40]) + "\n")
    return path


def run(model, data, *options):
    return main(["evaluate", "--model", str(model), "--data", str(data), *FEW, *map(str, options)])


# ---- The command ---------------------------------------------------------------------------------


def test_the_table_has_layers_across_and_methods_down(model, data, capsys):
    assert run(model, data) == 0
    out = capsys.readouterr().out
    assert "\x1b" not in out
    lines = out.splitlines()
    assert re.search("4 texts.*attention", lines[0])
    titles = [i for i, line in enumerate(lines) if re.match(r"\S.*blank out", line)]
    table = titles[0]
    assert lines[table + 1].split() == ["L1", "L2", "L3"]
    assert [lines[table + i].split()[0] for i in (3, 5, 7)] == ["raw", "rollout", "flow"]
    assert "special tokens" in lines[titles[1]]
    assert any(line.startswith("  frequency ") for line in lines)
    assert any(line.startswith("raw - rollout") for line in lines)
    (skipped,) = [i for i, line in enumerate(lines) if line.startswith("2 texts")]
    assert re.match("  5: .*empty", lines[skipped + 1])
    assert re.match("  6: .*42 tokens", lines[skipped + 2])
    table = lines[table:skipped]
    assert max(map(len, table)) <= 80


def test_the_numbers_are_those_of_evaluate(model, data, capsys, classifier):
    options = ("--references", "blank_out,gradient_x_input", "--layers", "1,3", "--json")
    assert run(model, data, *options) == 0
    found = json.loads(capsys.readouterr().out)
    expected = evaluate(
        classifier,
        TEXTS[:4],
        references=("blank_out", "gradient_x_input"),
        layers=[1, 3],
        samples=100,
        permutations=99,
    ).to_dict(per_text=False)
    assert found["results"] == expected["results"]
    assert found["baselines"] == expected["baselines"]
    assert found["comparisons"] == expected["comparisons"]
    assert [item["number"] for item in found["skipped"]] == [5, 6]


def test_results_are_saved_as_they_are_asked_for(model, data, tmp_path, capsys):
    names = {"--output": "all.json", "--csv": "means.csv", "--plot": "layers.pdf"}
    options = [part for option, name in names.items() for part in (option, tmp_path / name)]
    assert run(model, data, *options) == 0
    saved = Evaluation.load(tmp_path / "all.json")
    assert len(saved.texts) == 4
    rows = list(csv.DictReader(io.StringIO((tmp_path / "means.csv").read_text())))
    # Three methods in three layers; contributions and six baselines, which have none.
    assert len(rows) == (3 * 3 + 1 + 6) * 2
    assert (tmp_path / "layers.pdf").read_bytes().startswith(b"%PDF")
    assert capsys.readouterr().err.count("saved ") == 3


def test_labels_say_which_class_is_explained(model, tmp_path, capsys):
    data = tmp_path / "films.tsv"
    data.write_text(
        "sentence\tlabel\n" + "".join(f"{text}\t{i % 2}\n" for i, text in enumerate(TEXTS))
    )
    output = tmp_path / "all.json"
    assert run(model, data, "--label-column", "label", "--limit", 4, "--output", output) == 0
    assert [text.target for text in Evaluation.load(output).texts] == ["bad", "good"] * 2
    assert [text.number for text in Evaluation.load(output).texts] == [2, 3, 4, 5]
    assert run(model, data, "--label-column", "label", "--target", "good") == 1
    assert "give one" in capsys.readouterr().err


def test_a_decoders_options_are_passed_on(model, data, capsys):
    options = ("--receptive-field", "both", "--drop-sink", "both", "--methods", "rollout")
    assert run(model, data, *options, "--edges", "attention,effective", "--no-baselines") == 0
    out = capsys.readouterr().out
    assert "rollout attention /uniform" in out
    assert re.search("blank out.*special tokens.*sink", out)
    assert "baselines" not in out


def test_a_stopped_run_goes_on_and_says_so(model, data, tmp_path, capsys):
    store = tmp_path / "run.jsonl"
    assert run(model, data, "--json") == 0
    whole = capsys.readouterr().out
    assert run(model, data, "--store", store, "--json") == 0
    lines = store.read_bytes().splitlines(keepends=True)
    store.write_bytes(b"".join(lines[:3]) + lines[3][:50])
    capsys.readouterr()
    assert run(model, data, "--store", store, "--json") == 0
    captured = capsys.readouterr()
    assert captured.out == whole
    assert re.search(f"2 of 4 texts.*{re.escape(str(store))}", captured.err)
    assert run(model, data, "--store", store, "--heads", "max") == 1
    assert re.search("heads.*mean.*max", capsys.readouterr().err)


CHILD = """
import signal, sys, time
signal.signal(signal.SIGINT, signal.default_int_handler)
import attnflow.evaluate.run as run
measure = run.measure
def slowly(*args, **options):
    time.sleep(0.3)
    return measure(*args, **options)
run.measure = slowly
from attnflow.cli import main
sys.exit(main(sys.argv[1:]))
"""


@pytest.mark.exhaustive
def test_ctrl_c_keeps_what_is_done_and_says_how_to_go_on(model, tmp_path, capsys):
    data, store = tmp_path / "texts.txt", tmp_path / "run.jsonl"
    data.write_text("\n".join(TEXTS) + "\n")
    options = ["evaluate", "--model", str(model), "--data", str(data), "--store", str(store)]
    command = [sys.executable, "-c", CHILD, *options, *FEW, "--json"]
    with subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as child:
        end = time.monotonic() + 300
        while not store.exists() or store.read_bytes().count(b"\n") < 3:
            assert child.poll() is None, child.communicate()
            assert time.monotonic() < end, "the child did nothing"
            time.sleep(0.01)
        child.send_signal(signal.SIGINT)
        out, err = child.communicate(timeout=300)
    assert child.returncode == 130
    assert "Traceback" not in err
    found = json.loads(out)
    assert found["count"] >= 2
    assert found["count"] + found["pending"] == len(TEXTS)
    assert re.search(f"{found['count']} of 8 texts.*{re.escape(str(store))}", err)
    assert "same command" in err
    assert run(model, data, "--store", store, "--json") == 0
    assert json.loads(capsys.readouterr().out)["pending"] == 0


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--methods", "cheese"], "methods.*'cheese'.*raw.*rollout.*flow"),
        (["--methods", ","], "--methods.*','"),
        (["--layers", "1,x"], "--layers.*'1,x'"),
        (["--layers", "9"], "layer"),
        (["--output", "x.xml"], r"\.json.*\.csv"),
        (["--csv", "x.json"], r"\.csv"),
        (["--plot", "nowhere/x.png"], "folder"),
        (["--text-column", "text"], "plain text"),
        (["--limit", "0"], "limit.*0"),
        (["--frequencies", "none.json"], r"--frequencies.*none\.json"),
        (["--data", "none.txt"], r"none\.txt.*No such file"),
        (["--model", "./none"], r"\./none"),
        (["--target", "ugly"], "target.*'ugly'"),
    ],
)
def test_wrong_options_are_one_sentence(model, data, capsys, options, message):
    assert run(model, data, *options) == 1
    captured = capsys.readouterr()
    assert captured.err.startswith("attnflow: error: ")
    assert re.search(message, captured.err)
    assert captured.out == ""


def test_a_table_of_frequencies_is_read(model, data, tmp_path, capsys):
    path = tmp_path / "counts.json"
    path.write_text('{"the": 3}')
    assert run(model, data, "--frequencies", path, "--json") == 0
    path.write_text("[1]")
    assert run(model, data, "--frequencies", path) == 1
    assert "JSON object" in capsys.readouterr().err


def test_help_has_examples(capsys):
    with pytest.raises(SystemExit) as ended:
        main(["evaluate", "--help"])
    assert ended.value.code == 0
    assert "attnflow evaluate --data numpred.val --limit 200" in capsys.readouterr().out


# ---- What is shown -------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def evaluation(classifier):
    return evaluate(classifier, [*TEXTS[:4], *[""] * 12], samples=100, permutations=99)


class Terminal(io.StringIO):
    encoding = "utf-8"

    def isatty(self):
        return True


@pytest.mark.parametrize("width", [40, 80, 200])
def test_a_terminal_gets_a_table_no_wider_than_it_is(evaluation, monkeypatch, width):
    monkeypatch.setenv("COLUMNS", str(width))
    monkeypatch.setenv("TERM", "xterm-256color")
    monkeypatch.delenv("NO_COLOR", raising=False)
    terminal = Terminal()
    evaluation.show(terminal)
    out = terminal.getvalue()
    assert "\x1b[1" in out
    plain = re.sub(r"\x1b\[[0-9;]*m", "", out)
    assert max(map(len, plain.splitlines())) <= width
    assert "rollout" in out
    assert "\u2026" not in out


def test_no_color_leaves_the_colours_out(evaluation, monkeypatch):
    monkeypatch.setenv("TERM", "xterm-256color")
    coloured = re.compile(r"\x1b\[[0-9;]*[34]8;")
    for value, expected in (("", True), ("1", False)):
        monkeypatch.setenv("NO_COLOR", value)
        terminal = Terminal()
        evaluation.show(terminal)
        assert bool(coloured.search(terminal.getvalue())) == expected


def test_plain_text_is_divided_where_it_is_narrow_and_keeps_to_its_encoding(evaluation):
    text = report(evaluation).plain(30, "ascii")
    assert "(continued)" in text
    assert "+-" in text
    text.encode("ascii")
    assert re.search("4 more.*13, 14, 15, 16", text)


def test_tests_that_cannot_succeed_are_called_so(evaluation):
    # Of four texts there are 16 ways to flip the signs, and 36 tests.
    text = " ".join(report(evaluation).plain().split())
    assert re.search("difference by method .*significant", text)
    assert re.search("difference by baseline .*significant", text)
    assert "more texts" in text


def test_only_families_that_are_too_large_are_called_hopeless(decoder):
    # Of eight texts there are 256 ways to flip the signs; 4 tests of receptive fields can succeed,
    # and 40 against baselines cannot.
    found = evaluate(decoder, TEXTS, receptive_field=(False, True), samples=100)
    text = " ".join(report(found).plain().split())
    assert re.search("difference by baseline .*significant", text)
    assert "by receptive field" not in text


def test_without_special_tokens_there_is_one_table(decoder):
    found = evaluate(decoder, TEXTS[:3], samples=100, permutations=99)
    text = report(found).plain()
    assert len(re.findall(r"^\S.*blank out", text, re.M)) == 1
