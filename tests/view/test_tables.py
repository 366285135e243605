"""Tests of tables and reports: plain text, Markdown, and on a terminal."""

import io
import re

import pytest

from attnflow.view.tables import STRONG, Cell, Report, Table

WIDE = Table(
    "Correlations",
    ["method", *(f"L{i}" for i in range(1, 7))],
    [
        ["raw", *(Cell((f"0.{i}0 \u00b1.25", ".10,.90")) for i in range(6))],
        ["flow", *(Cell((f"0.{i}5 \u00b1.25", ".10,.90"), STRONG) for i in range(6))],
    ],
    ["baselines: none"],
)
REPORT = Report("tiny: 3 texts", [WIDE], ["Means over texts \u00b1 standard deviation."])


class Terminal(io.StringIO):
    encoding = "utf-8"

    def isatty(self):
        return True


@pytest.mark.parametrize("width", [20, 40, 80, 200])
def test_a_table_too_wide_is_divided_into_tables_with_all_its_columns(width):
    parts = list(WIDE.divided(width))
    assert [name for part in parts for name in part.columns[1:]] == list(WIDE.columns[1:])
    for part in parts:
        assert [row[0] for row in part.rows] == ["raw", "flow"]
        assert max(map(len, part.plain().splitlines()[1:-1])) <= max(width, 20)
    assert [bool(part.notes) for part in parts] == [False] * (len(parts) - 1) + [True]
    assert [part.title.endswith("(continued)") for part in parts] == [
        place > 0 for place in range(len(parts))
    ]


def test_a_table_of_left_columns_only_is_never_divided():
    table = Table("Targets", ["what", "result"], [["import", "met"]], left=2)
    assert list(table.divided(3)) == [table]


def test_a_cell_of_several_lines_is_several_lines_of_text():
    lines = WIDE.plain().splitlines()
    assert lines[3].split() == ["raw", *(f for i in range(6) for f in (f"0.{i}0", "\u00b1.25"))]
    assert lines[4].split() == [".10,.90"] * 6
    assert lines[-1] == "baselines: none"


def test_markdown_escapes_what_would_end_a_cell_and_sets_off_what_stands_out():
    table = Table("", ["a|b", "n"], [["x | y", Cell(("1", "p=.5"), STRONG)], ["", "2"]])
    assert table.markdown().splitlines() == [
        r"| a\|b | n |",
        "| --- | ---: |",
        r"| x \| y | **1**<br>p=.5 |",
        "|  | 2 |",
    ]


def test_a_report_is_written_in_the_characters_of_its_encoding():
    assert "+-" in REPORT.plain(encoding="ascii")
    REPORT.plain(encoding="ascii").encode("ascii")
    assert REPORT.plain(30).count("(continued)") == len(list(WIDE.divided(30))) - 1


def test_a_terminal_and_a_file_get_the_same_words(monkeypatch):
    monkeypatch.setenv("TERM", "xterm-256color")
    monkeypatch.setenv("COLUMNS", "80")
    monkeypatch.delenv("NO_COLOR", raising=False)
    terminal, file = Terminal(), io.StringIO()
    REPORT.show(terminal)
    REPORT.show(file)
    assert "\x1b[" in terminal.getvalue()
    assert "\x1b[" not in file.getvalue()
    words = re.sub(r"\x1b\[[0-9;]*m", "", terminal.getvalue()).replace("\u2500", "-")
    assert set(words.split()) - {"-"} >= set(file.getvalue().split()) - {"-" * 79}


def test_brackets_in_a_cell_are_text_on_a_terminal(monkeypatch):
    monkeypatch.setenv("TERM", "xterm-256color")
    terminal = Terminal()
    Report("x", [Table("t", ["token", "n"], [["[red]a[/red]", "1"]])], []).show(terminal)
    assert "[red]a[/red]" in terminal.getvalue()
