"""Readers for the texts of an evaluation: plain text, CSV, TSV, JSON lines, and the paper's data.

All of them stream. A line that cannot be read is reported with its number and stops nothing.
"""

import csv
import json
import os
from collections.abc import Callable, Iterator
from itertools import islice
from typing import Any, Final, NamedTuple

from attnflow.errors import DataError, OptionError
from attnflow.lines import Lines, is_half, opened

__all__ = ["FORMATS", "Text", "read_texts"]

FORMATS: Final = ("auto", "text", "csv", "tsv", "jsonl", "agreement")

_ENDINGS: Final = {
    ".txt": "text",
    ".csv": "csv",
    ".tsv": "tsv",
    ".jsonl": "jsonl",
    ".ndjson": "jsonl",
}
# What the column of texts is called where nobody says.
_USUAL: Final = ("text", "sentence")

_Fault = Callable[[int, str], object]


class Text(NamedTuple):
    """A text of a file.

    Attributes:
        number: The line it ends on, from 1.
        text: The text.
        label: What its label column has; None if there is none.
    """

    number: int
    text: str
    label: str | None


def read_texts(
    path: str | os.PathLike[str],
    *,
    format: str = "auto",
    text_column: str | None = None,
    label_column: str | None = None,
    limit: int | None = None,
    on_fault: _Fault | None = None,
) -> Iterator[Text]:
    r"""Read texts from a file, one after the other.

    Args:
        path: The file, plain or gzipped; "-" is standard input.
        format: "text": one text a line. "csv" and "tsv": with a header; a TSV has no quoting.
            "jsonl": a JSON object, or a string, a line. "agreement": the verb-number data of Linzen
            et al., as `attnflow.paper.read_agreement` takes them. "auto" goes by the file's ending
            and its first line.
        text_column: The column, or JSON field, that has the text. None looks for "text" and
            "sentence".
        label_column: The column, or JSON field, that has the label. None reads no labels.
        limit: How many texts to read at most. Lines that cannot be read do not count.
        on_fault: Called with the number of a line that cannot be read, and the reason. None makes
            it an error.

    Yields:
        The texts.

    Raises:
        DataError: If the file is damaged, has no such column, or has a line that cannot be read
            and `on_fault` is None.
        OptionError: If an option is not valid.
        OSError: If the file cannot be opened.

    Example:
        >>> import tempfile
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     path = os.path.join(folder, "films.tsv")
        ...     with open(path, "w") as file:
        ...         _ = file.write("sentence\tlabel\na joy\t1\n\nno \"plot\"\t0\n")
        ...     for text in read_texts(path, label_column="label", on_fault=print):
        ...         print(text)
        Text(number=2, text='a joy', label='1')
        3 the line is empty
        Text(number=4, text='no "plot"', label='0')
    """
    if format not in FORMATS:
        raise OptionError(f"format is {format!r}; expected {', '.join(FORMATS)}")
    if limit is not None and (isinstance(limit, bool) or not isinstance(limit, int) or limit < 1):
        raise OptionError(f"limit is {limit!r}; expected a whole number of 1 or more, or None")
    name = os.fspath(path)

    def fault(number: int, reason: str) -> None:
        if on_fault is None:
            raise DataError(f"{name}, line {number}: {reason}")
        on_fault(number, reason)

    return islice(_read(name, format, text_column, label_column, fault), limit)


def _read(
    name: str, format: str, text_column: str | None, label_column: str | None, fault: _Fault
) -> Iterator[Text]:
    with opened(name) as file:
        lines = Lines(name, file)
        empty = 0
        # The first line that is not empty says what the file is.
        while (first := lines.peek()) is not None and not first.strip():
            next(lines)
            empty += 1
        if first is None:
            raise DataError(f"{name} is empty; expected texts")
        if format == "auto":
            format = _format_of(name, first)
        if format == "agreement":
            if name == "-":
                raise OptionError("the agreement format is read from a file, not standard input")
        else:
            for number in range(1, empty + 1):
                fault(number, "the line is empty")
            rows = {"text": _plain, "csv": _table, "tsv": _table, "jsonl": _json_lines}[format]
            columns = _Columns(name, format, text_column, label_column)
            for text in rows(lines, columns, fault):
                if not text.text.strip():
                    fault(text.number, "the text is empty")
                elif any(map(is_half, (text.text, text.label or ""))):
                    fault(text.number, "the line is not UTF-8 text")
                elif "\0" in text.text:
                    fault(text.number, "the line has a NUL byte, and is no text")
                else:
                    yield text
            return
    yield from _agreement(name, first, label_column, fault)


class _Columns(NamedTuple):
    """The file, its format, and the columns asked for."""

    name: str
    format: str
    text: str | None
    label: str | None


def _format_of(name: str, first: str) -> str:
    fields = first.rstrip("\r\n").split("\t")
    if fields[0] in ("VBZ", "VBP") and len(fields) == 2:
        return "agreement"
    # A numpred file is one also if its first line is a bad one.
    if os.path.basename(name).startswith("numpred."):
        return "agreement"
    if {"sentence", "verb_pos", "verb_index"} <= set(fields):
        return "agreement"
    ending = os.path.splitext(name.removesuffix(".gz"))[1].lower()
    if ending in _ENDINGS:
        return _ENDINGS[ending]
    if first.lstrip().startswith("{"):
        return "jsonl"
    if ending == ".json":
        raise DataError(f"{name} does not begin with an object; expected one JSON object a line")
    return "text"


def _plain(lines: Lines, columns: _Columns, fault: _Fault) -> Iterator[Text]:
    for option, column in (("text_column", columns.text), ("label_column", columns.label)):
        if column is not None:
            raise OptionError(
                f"{option} is {column!r}, but {columns.name} is plain text, one text a line; if "
                "it has columns, say its format: csv, tsv or jsonl"
            )
    for line in lines:
        yield Text(lines.number, line.rstrip("\r\n"), None)


def _table(lines: Lines, columns: _Columns, fault: _Fault) -> Iterator[Text]:
    tabs = columns.format == "tsv"
    rows = csv.reader(
        lines,
        delimiter="\t" if tabs else ",",
        quoting=csv.QUOTE_NONE if tabs else csv.QUOTE_MINIMAL,
        strict=True,
    )
    try:
        header = next(rows)
    except csv.Error as error:
        raise DataError(f"{columns.name}, line 1: {error}") from error
    place = _column(columns, header)
    labels = None
    if columns.label is not None:
        labels = _named(columns.name, header, columns.label, "label_column")
    while True:
        try:
            row = next(rows)
        except StopIteration:
            return
        except csv.Error as error:
            fault(lines.number, str(error))
            continue
        if not row:
            fault(lines.number, "the line is empty")
        elif len(row) != len(header):
            fault(lines.number, f"{len(row)} columns; the header has {len(header)}")
        else:
            yield Text(lines.number, row[place], None if labels is None else row[labels])


def _column(columns: _Columns, header: list[str]) -> int:
    if columns.text is not None:
        return _named(columns.name, header, columns.text, "text_column")
    for usual in _USUAL:
        if usual in header:
            return header.index(usual)
    if len(header) == 1:
        return 0
    raise DataError(
        f"{columns.name} has the columns {', '.join(map(repr, header))}; say which has the texts, "
        "as text_column"
    )


def _named(name: str, header: list[str], column: str, option: str) -> int:
    if column not in header:
        raise OptionError(
            f"{option} is {column!r}, but {name} has the columns {', '.join(map(repr, header))}"
        )
    return header.index(column)


def _json_lines(lines: Lines, columns: _Columns, fault: _Fault) -> Iterator[Text]:
    names = _USUAL if columns.text is None else (columns.text,)
    for line in lines:
        try:
            if not line.strip():
                raise ValueError("the line is empty")
            yield _json_text(line, names, columns.label, lines.number)
        except RecursionError:
            fault(lines.number, "not JSON that can be read: it is nested too deeply")
        except ValueError as error:
            fault(lines.number, str(error))


def _json_text(line: str, names: tuple[str, ...], label: str | None, number: int) -> Text:
    try:
        row: Any = json.loads(line)
    except json.JSONDecodeError as error:
        raise ValueError(f"not JSON: {error.msg} at character {error.pos + 1}") from error
    if isinstance(row, str) and label is None:
        return Text(number, row, None)
    if not isinstance(row, dict):
        raise ValueError("not a JSON object")
    text = next((row[name] for name in names if name in row), None)
    if not isinstance(text, str):
        raise ValueError(f"there is no string {' or '.join(map(repr, names))}")
    if label is None:
        return Text(number, text, None)
    value = row.get(label)
    if isinstance(value, bool) or not isinstance(value, str | int):
        raise ValueError(f"there is no {label!r} that is a string or an integer")
    return Text(number, text, str(value))


def _agreement(name: str, first: str, label_column: str | None, fault: _Fault) -> Iterator[Text]:
    from attnflow.paper.data import read_agreement

    if label_column not in (None, "label"):
        raise OptionError(
            f"label_column is {label_column!r}, but {name} has verbs' numbers; expected 'label'"
        )
    faults = 0

    def count(found: Any) -> None:
        nonlocal faults
        faults += 1
        fault(found.line, found.reason)

    # Every line but a header is either a sentence or a fault.
    header = int("sentence" in first.rstrip("\r\n").split("\t"))
    for number, row in enumerate(read_agreement(name, on_error=count), start=1 + header):
        yield Text(number + faults, row.text, row.label if label_column else None)
