"""Results that grow over several runs: nothing lost, nothing mixed, two runs kept apart."""

import json
import os
import signal
import subprocess
import sys
import time

import pytest

from attnflow.errors import DataError, OptionError
from attnflow.io.journal import Journal, difference, digest_of, locked, make_once, stamps

HEADER = {
    "format": "attnflow.test",
    "version": 1,
    "attnflow": "0.1.0",
    "model": "bert",
    "fingerprint": "f1",
    "options": {"method": "flow", "layers": [1, 2]},
    "data": {"items": 4, "digest": "d1"},
}


def fill(path, count, header=HEADER):
    with Journal(path, header) as journal:
        for number in range(count):
            if number not in journal.records:
                journal.add(number, {"square": number**2, "word": "clé"})
    return path.read_bytes()


def test_records_are_there_when_the_journal_is_opened_again(tmp_path):
    fill(tmp_path / "x.jsonl", 3)
    with Journal(tmp_path / "x.jsonl", HEADER) as journal:
        assert list(journal.records) == [0, 1, 2]
        assert journal.records[2] == {"number": 2, "square": 4, "word": "clé"}


def test_wherever_the_file_was_cut_off_the_bytes_are_the_same_in_the_end(tmp_path):
    path = tmp_path / "x.jsonl"
    whole = fill(path, 4)
    for cut in range(len(whole) + 1):
        path.write_bytes(whole[:cut])
        assert fill(path, 4) == whole


CHILD = """
import sys, time
from attnflow.io.journal import Journal
with Journal(sys.argv[1], {"format": "attnflow.test"}) as journal:
    for number in range(10**6):
        journal.add(number, {"text": "x" * 5000})
"""


def test_a_kill_loses_no_record_that_was_added(tmp_path):
    path = tmp_path / "x.jsonl"
    with subprocess.Popen([sys.executable, "-c", CHILD, str(path)]) as child:
        end = time.monotonic() + 60
        while not path.exists() or path.stat().st_size < 10**5:
            assert child.poll() is None
            assert time.monotonic() < end
        child.send_signal(signal.SIGKILL)
    whole = path.read_bytes().count(b"\n") - 1
    with Journal(path, {"format": "attnflow.test"}) as journal:
        assert list(journal.records) == list(range(whole))
        assert {record["text"] for record in journal.records.values()} == {"x" * 5000}


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"version": 2}, "version is 1 there and 2 here"),
        ({"attnflow": "0.2.0"}, "attnflow's version is 0.1.0 there and 0.2.0 here"),
        ({"model": "gpt", "fingerprint": "f2"}, "model is bert there and gpt here"),
        ({"fingerprint": "f2"}, "bert in both, but its weights"),
        ({"options": {"method": "raw", "layers": [1, 2]}}, "method is 'flow' there and 'raw' here"),
        (
            {"options": {"method": "flow", "layers": [1]}},
            r"layers is \[1, 2\] there and \[1\] here",
        ),
        ({"options": {"method": "flow"}}, r"layers is \[1, 2\] there and None here"),
        ({"data": {"items": 5, "digest": "d1"}}, "4 items there and 5 "),
        ({"data": {"items": 4, "digest": "d2"}}, "4 items there and 4 other"),
    ],
)
def test_a_journal_of_another_run_is_refused_with_what_differs(tmp_path, change, message):
    before = fill(tmp_path / "x.jsonl", 2)
    with pytest.raises(OptionError, match=rf"x\.jsonl.*{message}"):
        Journal(tmp_path / "x.jsonl", {**HEADER, **change})
    assert (tmp_path / "x.jsonl").read_bytes() == before


def test_two_runs_do_not_write_to_one_journal(tmp_path):
    with (
        Journal(tmp_path / "x.jsonl", HEADER),
        pytest.raises(OptionError, match=r"x\.jsonl is being written by another run"),
    ):
        Journal(tmp_path / "x.jsonl", HEADER)
    Journal(tmp_path / "x.jsonl", HEADER).close()


def test_a_lock_is_released_at_the_end_of_its_block(tmp_path):
    path = tmp_path / ".lock"
    with (
        locked(path, "output out"),
        pytest.raises(OptionError, match="output out is being written"),
        locked(path, "output out"),
    ):
        pass
    with locked(path, "output out"):
        pass


@pytest.mark.parametrize(
    "content", [b"the keys\n", b'{"a": 1}\n', b"[]\n", b"no line break", b"\xff\n"]
)
def test_a_file_that_is_not_a_journal_is_left_alone(tmp_path, content):
    (tmp_path / "notes.txt").write_bytes(content)
    with pytest.raises(DataError, match=r"notes\.txt"):
        Journal(tmp_path / "notes.txt", HEADER)
    assert (tmp_path / "notes.txt").read_bytes() == content


@pytest.mark.parametrize("line", [b"{\n", b"[]\n", b'{"word": "x"}\n', b'{"number": "x"}\n'])
def test_a_journal_damaged_in_the_middle_says_where(tmp_path, line):
    path = tmp_path / "x.jsonl"
    lines = fill(path, 2).splitlines(keepends=True)
    path.write_bytes(lines[0] + line + lines[2])
    with pytest.raises(DataError, match=r"x\.jsonl, line 2: not a record"):
        Journal(path, HEADER)


def test_a_folder_gets_a_file_of_its_own_and_a_wrong_path_is_told(tmp_path):
    Journal(tmp_path, HEADER, file_name="results.jsonl").close()
    assert (tmp_path / "results.jsonl").is_file()
    with pytest.raises(OptionError, match=r"x\.jsonl.*No such file"):
        Journal(tmp_path / "no" / "x.jsonl", HEADER)
    with pytest.raises(OptionError, match=r"/dev/null .*not a regular file"):
        Journal("/dev/null", HEADER)


def test_a_full_disk_is_told(tmp_path, monkeypatch):
    def full(file):
        raise OSError(28, "No space left on device")

    with Journal(tmp_path / "x.jsonl", HEADER) as journal, monkeypatch.context() as patched:
        patched.setattr(journal, "_file", type("Full", (), {"write": lambda *a: full(None)})())
        with pytest.raises(DataError, match=r"x\.jsonl cannot be written: No space left"):
            journal.add(0, {})


def test_headers_are_compared_in_what_they_have():
    assert difference({"options": {"a": 1}}, {"options": {"a": 1}}) == ""
    assert difference({}, {"options": {"a": "x"}}) == "a is None there and 'x' here"


def test_files_are_made_once_from_one_recipe(tmp_path):
    record, figure = tmp_path / "figure.json", tmp_path / "figure.txt"
    made = []

    def make():
        made.append(1)
        return {"value": len(made)}, {figure: f"figure {len(made)}"}

    recipe = digest_of({"limit": 1})
    assert make_once(record, [figure], recipe, make)
    assert not make_once(record, [figure], recipe, make)
    assert json.loads(record.read_text()) == {"value": 1, "recipe": recipe}
    assert make_once(record, [figure], digest_of({"limit": 2}), make)
    figure.unlink()
    assert make_once(record, [figure], digest_of({"limit": 2}), make)
    record.write_text("[]")
    assert make_once(record, [figure], digest_of({"limit": 2}), make)
    assert figure.read_text() == "figure 4"


def test_files_are_told_apart_by_name_size_and_time(tmp_path):
    path = tmp_path / "a.txt"
    path.write_text("x")
    before = stamps(tmp_path)
    assert [stamp[:2] for stamp in before] == [["a.txt", 1]]
    assert stamps(path) == before
    os.utime(path, ns=(0, 0))
    assert stamps(tmp_path) != before
    assert stamps(tmp_path / "nothing") == []
