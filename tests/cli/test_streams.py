"""Where output goes: terminals, pipes that close, full disks; and Ctrl-C."""

import io
import json
import os
import signal
import subprocess
import sys

import pytest

from attnflow.cli import main
from attnflow.explanation import Explanation
from attnflow.models import Explainer
from tests.support.chat import chatter
from tests.support.commands import environment, run_commands, screen

MANY = "the keys to the cabinets are on the tables of the houses\n" * 40
TEXTS = "the keys to the cabinet\n\nthe key\n"
ON_FULL_DISKS = ("explain", "generate", "explain --help")


BARS = """
from attnflow.capture.quiet import quiet
from transformers import modeling_gguf_pytorch_utils as gguf
from transformers.utils import logging
before = gguf.tqdm
with quiet():
    for bar in (gguf.tqdm, logging.tqdm):
        list(bar(range(3), desc="bar"))
    unfinished = iter(logging.tqdm(range(3), desc="bar"))
    next(unfinished)
assert gguf.tqdm is before
"""


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    folder = tmp_path_factory.mktemp("model")
    made = chatter()
    made.model.save_pretrained(folder)
    made.tokenizer.save_pretrained(folder)
    (folder / "texts.txt").write_text(TEXTS)
    return folder


@pytest.fixture(scope="module")
def printing(folder):
    """A command line for each command that prints, and for its help."""
    model, texts = ["--model", str(folder)], str(folder / "texts.txt")
    generate = ["generate", *model, "the keys to", "--max-new-tokens", "2"]
    evaluate = ["evaluate", "--data", texts, "--methods", "rollout", "--layers", "6"]
    return {
        "explain": ["explain", "the keys"],
        "generate": [*generate, "--json"],
        "evaluate": [*evaluate, "--samples", "10", "--workers", "1"],
        "run": ["run", texts, "--output", str(folder / "out"), "--workers", "1"],
        "view": ["view", str(folder / "keys.json"), "--no-open", "--output", f"{folder}/keys.html"],
        "explain --help": ["explain", "--help"],
        "paper --help": ["paper", "--help"],
        "--version": ["--version"],
    }


@pytest.fixture(scope="module")
def ran(printing, folder):
    """What the commands did that the tests below look at."""
    assert main(["explain", "the keys", "--output", str(folder / "keys.json")]) == 0
    generate = printing["generate"][:-1]
    jobs = {
        **{("broken", name): {"argv": argv} for name, argv in printing.items()},
        **{("full", name): {"argv": printing[name]} for name in ON_FULL_DISKS},
    }
    for kind, name in jobs:
        jobs[kind, name] |= {"stdout": kind}
    jobs |= {
        "several": {"argv": ["explain"], "stdout": "terminal", "stdin": TEXTS + "bad \udcff\n"},
        "to a file": {"argv": ["explain", "--json"], "terminal": True, "stdin": TEXTS},
        "to a pipe": {
            "argv": ["explain", "--json"],
            "terminal": True,
            "stdin": TEXTS,
            "stdout": "broken",
        },
        "bars": {"code": BARS, "terminal": True},
        "bars in a pipe": {"code": BARS},
        "written": {"argv": generate, "stdout": "terminal"},
        "loading": {"argv": generate, "stdout": "terminal", "interrupt": "Loading weights"},
        "writing": {"argv": generate, "stdout": "terminal", "interrupt": "writing"},
        "printing": {"argv": generate, "stdout": "terminal", "interrupt": "The model wrote"},
        "stuck": {"argv": ["explain", "--json"], "stdout": "stuck", "stdin": MANY},
    }
    return dict(zip(jobs, run_commands(*jobs.values()), strict=True))


# ---- Pipes and disks -----------------------------------------------------------------------------


def test_a_pipe_that_closes_early_ends_every_command_quietly(ran, printing):
    for name in printing:
        result = ran["broken", name]
        said = [line for line in result.err.splitlines() if not line.startswith("attnflow: ")]
        assert (name, result.status, said) == (name, 141, [])


def test_a_full_disk_is_one_line_and_a_status(ran):
    for name in ON_FULL_DISKS:
        result = ran["full", name]
        said = [line for line in result.err.splitlines() if "error" in line]
        expected = ["attnflow: error: standard output cannot be written: No space left on device"]
        assert (name, result.status, said) == (name, 1, expected)
        assert "Exception" not in result.err


@pytest.mark.parametrize("argv", [["explain", "the keys"], ["view", "--help"], ["--version"]])
def test_a_closed_output_is_refused_before_any_work(argv):
    command = [sys.executable, "-m", "attnflow", *argv]
    shell = subprocess.run(
        ["sh", "-c", '"$@" >&-', "sh", *command], capture_output=True, text=True, check=False
    )
    assert shell.returncode == 1
    assert shell.stderr.startswith("attnflow: error: standard output is closed")
    assert shell.stderr.count("\n") == 1


def test_other_streams_may_be_closed():
    command = [sys.executable, "-m", "attnflow", "explain"]
    for closed in ("<&-", "2>&-"):
        shell = subprocess.run(
            ["sh", "-c", f'"$@" {closed}', "sh", *command],
            capture_output=True,
            text=True,
            check=False,
        )
        assert (shell.returncode, shell.stdout) == (1, "")
        assert "Traceback" not in shell.stderr


def test_a_file_that_cannot_be_written_is_named(capsys, tmp_path, monkeypatch):
    def no_room(*_):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("attnflow.formats.write_whole", no_room)
    assert main(["explain", "the keys", "--output", str(tmp_path / "keys.json")]) == 1
    said = capsys.readouterr().err
    assert f"{tmp_path / 'keys.json'} cannot be written: No space left on device" in said


# ---- Terminals -----------------------------------------------------------------------------------


def test_bars_are_shown_and_leave_nothing_behind(ran):
    written, several = ran["written"], ran["several"]
    for bar in ("loading torch", "Loading weights", "writing", "explaining"):
        assert bar in written.shown
    assert written.screen[0] == "  The model wrote"
    assert "explaining" in several.shown
    for result in (written, several):
        assert result.status == (result is several)
        for line in result.screen:
            assert not any(bar in line for bar in ("oading", "writing", "explaining", "━", "%|"))


def test_several_texts_are_apart_and_faults_in_their_places(ran):
    lines = ran["several"].screen
    starts = [i for i, line in enumerate(lines) if line == "  The model answers"]
    assert len(starts) == 2
    assert lines[starts[1] - 1] == ""
    [fault] = [i for i, line in enumerate(lines) if "line 4" in line]
    assert fault > starts[1]


def test_no_bar_is_shown_over_what_the_reader_of_a_pipe_prints(ran):
    assert "explaining" in ran["to a file"].shown
    assert [line for line in ran["to a file"].screen if line] == []
    assert "explaining" not in ran["to a pipe"].shown


def test_bars_of_transformers_go_when_they_are_done_and_a_pipe_gets_none(ran):
    assert ran["bars in a pipe"] == (0, "", "", "")
    shown = ran["bars"]
    assert shown.status == 0
    assert shown.shown.count("bar: ") >= 3
    assert "".join(shown.screen) == ""


# ---- Ctrl-C --------------------------------------------------------------------------------------


@pytest.mark.parametrize("stage", ["loading", "writing", "printing"])
def test_ctrl_c_is_one_line_at_every_stage(ran, stage):
    result = ran[stage]
    assert result.status == 130
    lines = [line for line in result.screen if line]
    assert lines[-1].endswith("attnflow: interrupted")
    assert "Traceback" not in result.shown
    if stage != "printing":
        assert lines == ["attnflow: interrupted"]


def test_ctrl_c_while_nobody_reads_the_output(ran):
    result = ran["stuck"]
    assert result.status == 130
    first, second = result.err.splitlines()  # one for each Ctrl-C
    assert first.startswith("attnflow: interrupted after")
    assert second == "attnflow: interrupted"


def test_ctrl_c_while_torch_is_imported():
    ours, theirs = os.openpty()
    process = subprocess.Popen(
        [sys.executable, "-m", "attnflow", "explain", "the keys"],
        stdin=subprocess.DEVNULL,
        stdout=theirs,
        stderr=theirs,
        env=environment(),
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.default_int_handler),
    )
    os.close(theirs)
    shown, sent = b"", False
    while True:
        try:
            shown += os.read(ours, 4096)
        except OSError:  # the other side is closed
            break
        if b"loading torch" in shown and not sent:
            process.send_signal(signal.SIGINT)
            sent = True
    assert process.wait() == 130
    os.close(ours)
    assert screen(shown.decode()) == ["attnflow: interrupted", ""]


# ---- Lines in, lines out -------------------------------------------------------------------------


@pytest.fixture
def piped(monkeypatch, capsys):
    """Run a command with standard input; return its status, its lines and what it said."""

    def run(given, *argv):
        monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(given)))
        status = main(["explain", *argv])
        out, err = capsys.readouterr()
        return status, out.splitlines(), err

    return run


LONG = b"word " * 600


def test_every_line_of_input_has_its_line_of_json(piped):
    given = [
        b"the keys to the cabinet",
        b"",
        b"bad \xff",
        LONG,
        b"  ",
        b"the key",
        b"a\0b",
        b"keys",
    ]
    status, lines, said = piped(b"\n".join(given), "--json")
    assert status == 1
    found = [json.loads(line) for line in lines]
    assert len(found) == len(given)
    for number, kind, part in (
        (2, "empty", "empty"),
        (3, "invalid", "byte 5"),
        (4, "invalid", "601 tokens"),
        (5, "empty", "empty"),
        (7, "invalid", "NUL"),
    ):
        error = found[number - 1]["error"]
        assert list(error) == ["number", "kind", "message"]
        assert (error["number"], error["kind"]) == (number, kind)
        assert part in error["message"]
    for number in (1, 6, 8):
        assert Explanation.from_dict(found[number - 1]).text == given[number - 1].decode()
    # One line names the first, as a command line does.
    assert said.count("\n") == 1
    assert "standard input, line 3" in said
    assert "3 of 8" in said
    assert "--truncate" in found[3]["error"]["message"]


def test_without_json_errors_name_their_lines_and_the_rest_is_printed(piped):
    status, lines, said = piped(b"\n".join([b"the keys", b"", b"bad \xff", LONG, b"the key"]))
    assert status == 1
    assert lines.count("  The model answers") == 2
    first, second = said.splitlines()
    assert first.startswith("attnflow: error: standard input, line 3: byte 5")
    assert second.startswith("attnflow: error: standard input, line 4: the text has 601 tokens")


def test_blank_lines_alone_are_no_failure(piped):
    status, lines, said = piped(b"the keys\n\n\n", "--json")
    assert (status, said) == (0, "")
    assert [json.loads(line).get("error", {}).get("number") for line in lines] == [None, 2, 3]


@pytest.mark.parametrize(
    ("given", "json_lines"), [(b"", 0), (b"\n \n", 2), (b"\xff\n", 1), (b"a\tb\tc\n", 1)]
)
def test_without_any_text_no_model_is_loaded(piped, given, json_lines):
    for argv in (["--json"], []):
        pairs = ["--tab-pairs"] if b"\t" in given else []
        status, lines, said = piped(given, "--model", "no-such-model", *argv, *pairs)
        assert status == 1
        assert len(lines) == (json_lines if argv else 0)
        assert "no-such-model" not in said


def test_json_lines_of_input_that_have_no_text_are_faults(piped):
    given = [b'{"text": "the keys"}', b"", b'{"id": 3}', b"{", b'{"text": ""}', b'"the key"']
    status, lines, _ = piped(b"\n".join(given), "--json")
    assert status == 1
    kinds = [json.loads(line).get("error", {}).get("kind") for line in lines]
    assert kinds == [None, "empty", "invalid", "invalid", "empty", None]


def test_an_option_that_is_not_valid_stops_before_the_first_line(piped):
    for option in (["--layer", "9"], ["--target", "maybe"]):
        status, lines, said = piped(b"the keys\nthe key\n", "--json", *option)
        assert (status, lines, said.count("\n")) == (1, [], 1)
        assert option[1] in said


def test_texts_of_the_command_line_are_numbered_too(capsys):
    assert main(["explain", "--json", "the keys", LONG.decode(), "the key"]) == 1
    out, err = capsys.readouterr()
    found = [json.loads(line) for line in out.splitlines()]
    assert [one.get("error", {}).get("number") for one in found] == [None, 2, None]
    assert "text 2: the text has 601 tokens" in err


def test_what_is_done_after_ctrl_c_keeps_its_place(piped, monkeypatch):
    explain_each = Explainer.explain_each

    def interrupted(self, inputs, **options):
        done = dict(explain_each(self, inputs, **options))
        yield from ((index, done[index]) for index in (0, 3))
        raise KeyboardInterrupt

    monkeypatch.setattr(Explainer, "explain_each", interrupted)
    status, lines, said = piped(b"the keys\n\nthe key\nkeys\na key\n", "--json")
    assert status == 130
    found = [json.loads(line) for line in lines]
    kinds = [one.get("error", {}).get("kind") for one in found]
    assert kinds == [None, "empty", "interrupted", "interrupted", None]
    assert said == "attnflow: interrupted after 3 of 5 texts\n"
