"""The progress bar: where it shows, what it says, and what it leaves alone."""

import io
import os
import re
import signal
import subprocess
import sys

import pytest

from attnflow.io import progress as module
from attnflow.io.progress import Progress, track


def in_terminal(code, *, stdout=None, interrupt=b""):
    """Run code with standard error on a terminal; return the status and what it showed."""
    ours, theirs = os.openpty()
    process = subprocess.Popen(
        [sys.executable, "-c", code],
        stdin=subprocess.DEVNULL,
        stdout=theirs if stdout is None else stdout,
        stderr=theirs,
        env={**os.environ, "COLUMNS": "120", "TERM": "xterm-256color"},
    )
    os.close(theirs)
    shown = b""
    try:
        while True:
            try:
                shown += os.read(ours, 4096)
            except OSError:  # the other side is closed
                break
            if interrupt and interrupt in shown:
                process.send_signal(signal.SIGINT)
                interrupt = b""
        return process.wait(), re.sub(r"\x1b\[[0-9;?]*[a-zA-Z]", "", shown.decode())
    finally:
        process.kill()
        process.wait()
        os.close(ours)


JOB = """
import signal, sys, time
signal.signal(signal.SIGINT, signal.default_int_handler)
from attnflow.io.progress import Progress
with Progress("explaining", "rows") as progress:
    progress.update(10, 40)
    for done in range(11, 31):
        time.sleep(0.05)
        print("row", done)
        progress.update(done, 40, note="loss 0.5")
    time.sleep(float(sys.argv[1]) if len(sys.argv) > 1 else 0)
"""


def test_a_terminal_shows_count_rate_time_left_and_a_note():
    status, shown = in_terminal(JOB)
    assert status == 0
    assert re.search(r"explaining .*2\d/40 .*\d\d\.\d a second, left: 0:00:0\d, loss 0\.5", shown)


def test_what_is_printed_to_a_file_stays_out_of_the_terminal(tmp_path):
    with open(tmp_path / "out.txt", "wb") as out:
        _, shown = in_terminal(JOB, stdout=out)
    assert (tmp_path / "out.txt").read_text().splitlines() == [f"row {n}" for n in range(11, 31)]
    assert "row 11" not in shown


def test_ctrl_c_ends_the_job_and_the_bar():
    code = JOB.replace("time.sleep(0.05)", "time.sleep(0.5)")
    status, shown = in_terminal(code, interrupt=b"12/40")
    assert status in (1, -signal.SIGINT)
    assert "KeyboardInterrupt" in shown


class Clock:
    """A clock that goes when it is told."""

    def __init__(self):
        self.now = 1000.0

    def monotonic(self):
        return self.now


@pytest.fixture
def clock(monkeypatch):
    clock = Clock()
    monkeypatch.setattr(module, "time", clock)
    return clock


def test_elsewhere_there_is_a_line_now_and_then(clock, capsys):
    with Progress("explaining", "rows", seconds_between_lines=30) as progress:
        progress.update(1000, 4000)
        for done in range(1100, 1701, 100):
            clock.now += 10
            progress.update(done, 4000)
    lines = capsys.readouterr().err.splitlines()
    assert lines == [
        "explaining: 1,300 of 4,000 rows, 10.0 a second, about 0:04:30 left",
        "explaining: 1,600 of 4,000 rows, 10.0 a second, about 0:04:00 left",
    ]


def test_without_a_total_there_is_no_time_left(clock, capsys):
    with Progress("counting") as progress:
        progress.update(0)
        assert progress.seconds_left is None
        clock.now += 100
        progress.update(50, note="loss 1")
        assert progress.seconds_left is None
    assert capsys.readouterr().err == "counting: 50, 0.5 a second, loss 1\n"


def test_the_time_left_is_that_of_the_rate_of_this_run(clock):
    with Progress("explaining", seconds_between_lines=None) as progress:
        progress.update(500, 1000)
        assert progress.seconds_left is None
        clock.now += 50
        progress.update(600, 1000)
        assert progress.seconds_left == pytest.approx(200)
        clock.now += 20
        assert progress.seconds_left == pytest.approx(180)


def test_no_lines_where_none_are_wanted(clock, capsys):
    with Progress("explaining", seconds_between_lines=None) as progress:
        progress.update(0, 10)
        clock.now += 1000
        progress.update(5, 10)
    assert capsys.readouterr().err == ""


def test_without_rich_a_terminal_gets_lines(clock, monkeypatch):
    class Terminal(io.StringIO):
        def isatty(self):
            return True

    monkeypatch.setitem(sys.modules, "rich", None)
    monkeypatch.setattr(sys, "stderr", Terminal())
    with Progress("explaining") as progress:
        progress.update(0, 10)
        clock.now += 100
        progress.update(5, 10)
        assert "5 of 10" in sys.stderr.getvalue()


def test_items_are_passed_on(capsys):
    assert list(track(iter("abc"), "spelling", "letters", 3)) == ["a", "b", "c"]
    assert capsys.readouterr().err == ""
