r"""The reader of rows: plain text, CSV, TSV, JSON lines and Parquet.

Data sets, texts to evaluate, the paper's data and standard input are all read here. Files are
streamed, and all but Parquet may be gzipped. A row that cannot be read is a `Record` with a fault,
and reading goes on with the next row.

Example:
    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     path = os.path.join(folder, "films.csv")
    ...     with open(path, "w") as file:
    ...         _ = file.write("text,stars\na joy,5\na bore\n")
    ...     for record in read_records(path):
    ...         print(record)
    Record(number=2, values={'text': 'a joy', 'stars': '5'}, fault=None)
    Record(number=3, values={}, fault='1 columns; the header has 2')
"""

import csv
import gzip
import json
import os
import sys
import zlib
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from itertools import chain, islice
from typing import IO, Any, Final, Generic, NamedTuple, TypeVar

from attnflow.errors import AttnflowError, DataError, MissingExtraError, OptionError

FORMATS: Final = ("auto", "text", "csv", "tsv", "jsonl", "parquet")

ENDINGS: Final = {
    ".txt": "text",
    ".csv": "csv",
    ".tsv": "tsv",
    ".jsonl": "jsonl",
    ".ndjson": "jsonl",
    ".parquet": "parquet",
    ".pq": "parquet",
}
"""The formats of files, by how their names end; .gz may follow."""

TEXT_COLUMNS: Final = ("text", "sentence")
"""The columns that hold the texts by default, the first that there is."""

EMPTY: Final = ("the line is empty", "the text is empty")
"""The faults of what has no text at all."""

_PARQUET: Final = "PAR1"
# The first line of text within this many lines tells the format of a file.
_LINES_AHEAD: Final = 1000

Example = TypeVar("Example")


class Record(NamedTuple):
    """A row of a file.

    Attributes:
        number: The line that the row ends on, or the row of a Parquet file, from 1.
        values: The values by column.
        fault: Why the row cannot be read; None if it can.
    """

    number: int
    values: dict[str, Any]
    fault: str | None = None


class CutOffError(DataError):
    """Compressed data ends too early or is damaged.

    Attributes:
        number: The first line that cannot be read.
        reason: What is wrong with it.
    """

    def __init__(self, name: str, number: int) -> None:
        self.number = number
        self.reason = "the compressed data is cut off or damaged here"
        super().__init__(f"{name}, line {number}: {self.reason}")


# ---- Lines ---------------------------------------------------------------------------------------


class Lines(NamedTuple):
    """The lines of an open file. Bytes that are not UTF-8 become lone surrogates.

    Attributes:
        path: The file, "-" for standard input.
        name: Its name in messages.
        first: The first line of text, which tells the format; None if there is no text.
        lines: The lines, from the first one of the file.
    """

    path: str
    name: str
    first: str | None
    lines: Iterator[str]


@contextmanager
def open_lines(path: str) -> Iterator[Lines]:
    """Open a file, plain or gzipped, to read its lines.

    Args:
        path: The file; "-" is standard input.

    Yields:
        Its lines.

    Raises:
        DataError: If it cannot be opened, is UTF-16, or is compressed and damaged.
    """
    name = "standard input" if path == "-" else path
    with ExitStack() as stack:
        try:
            file: Any = sys.stdin.buffer if path == "-" else stack.enter_context(open(path, "rb"))
        except OSError as error:
            raise DataError(f"{path} cannot be read: {error.strerror or error}") from error
        if hasattr(file, "peek") and file.peek(2)[:2] == b"\x1f\x8b":
            file = stack.enter_context(gzip.GzipFile(fileobj=file))
        lines = _decoded(name, file)
        ahead: list[str] = []
        for line in islice(lines, _LINES_AHEAD):
            ahead.append(line)
            if line.startswith(_PARQUET) or (line.strip() and not has_surrogates(line)):
                break
        first = next((line.rstrip("\r\n") for line in reversed(ahead) if line.strip()), None)
        yield Lines(path, name, first, chain(ahead, lines))


def _decoded(name: str, file: IO[bytes]) -> Iterator[str]:
    number = 0
    try:
        for number, line in enumerate(file, start=1):
            if number == 1 and line.startswith((b"\xff\xfe", b"\xfe\xff")):
                raise DataError(f"{name} is UTF-16; expected UTF-8. Convert it: iconv -f UTF-16")
            yield line.decode("utf-8-sig" if number == 1 else "utf-8", "surrogateescape")
    except (EOFError, zlib.error, gzip.BadGzipFile) as error:
        raise CutOffError(name, number + 1) from error


def has_surrogates(text: str) -> bool:
    r"""Return whether a text has lone surrogates, which UTF-8 cannot encode.

    Example:
        >>> has_surrogates("é"), has_surrogates("\udce9")
        (False, True)
    """
    try:
        text.encode()
    except UnicodeEncodeError:
        return True
    return False


# ---- Records -------------------------------------------------------------------------------------


def format_of(path: str, first: str) -> str:
    """Return the format of a file: by the ending of its name, or else by its first line.

    Args:
        path: The file's name.
        first: Its first line of text.

    Returns:
        One of `FORMATS`, but not "auto".

    Raises:
        DataError: If it is a JSON list.

    Example:
        >>> format_of("films.csv.gz", ""), format_of("-", '{"text": "a joy"}'), format_of("-", "a")
        ('csv', 'jsonl', 'text')
    """
    ending = os.path.splitext(path.removesuffix(".gz"))[1].lower()
    if ending in ENDINGS:
        return ENDINGS[ending]
    if first.startswith(_PARQUET):
        return "parquet"
    if ending == ".json" and first.lstrip().startswith("["):
        raise DataError(
            f"{path} is a JSON list; expected JSON lines, one object a line, as made by jq -c '.[]'"
        )
    return "jsonl" if ending == ".json" or first.lstrip().startswith("{") else "text"


def read_records(path: str, format: str = "auto") -> Iterator[Record]:
    """Read the rows of a file.

    Args:
        path: The file; "-" is standard input.
        format: One of `FORMATS`. "auto" goes by the ending of the name, or by the first line.

    Yields:
        The rows. Plain text and JSON strings have the one column "text".

    Raises:
        DataError: If the file cannot be read, is damaged, or its header is not valid.
        MissingExtraError: If it is a Parquet file and pyarrow is not installed.
    """
    if format == "parquet":
        yield from _parquet_records(path)
        return
    with open_lines(path) as lines:
        yield from _records(
            lines, format_of(path, lines.first or "") if format == "auto" else format
        )


def _records(lines: Lines, format: str) -> Iterator[Record]:
    if format == "parquet":
        if not os.path.isfile(lines.path):
            raise DataError(f"{lines.name} is Parquet, which is read from a file, not from a pipe")
        yield from _parquet_records(lines.path)
    elif format in ("csv", "tsv"):
        yield from _table_records(lines, tabs=format == "tsv")
    else:
        for number, line in enumerate(lines.lines, start=1):
            yield _line_record(number, line, format)


def _line_record(number: int, line: str, format: str) -> Record:
    try:
        line.encode()
        values = {"text": line.rstrip("\r\n")} if format == "text" else _json_values(line)
    except UnicodeEncodeError as error:
        place = len(line[: error.start].encode()) + 1
        return Record(number, {}, f"byte {place} of the line is not UTF-8")
    except ValueError as error:
        return Record(number, {}, str(error))
    return Record(number, values)


def _json_values(line: str) -> dict[str, Any]:
    if not line.strip():
        raise ValueError(EMPTY[0])
    try:
        found = json.loads(line)
    except RecursionError:
        raise ValueError("not JSON that can be read: it is nested too deeply") from None
    except ValueError as error:
        raise ValueError(f"not JSON: {error}") from None
    if isinstance(found, str):
        return {"text": found}
    if not isinstance(found, dict):
        raise ValueError("not a JSON object")
    check_names(found)
    return found


def check_names(names: Iterable[str]) -> None:
    """Check that the names of columns can be written as UTF-8.

    Raises:
        ValueError: If one cannot.
    """
    if any(map(has_surrogates, names)):
        raise ValueError("the name of a field has a lone surrogate, which is not valid UTF-8")


def _table_records(lines: Lines, *, tabs: bool) -> Iterator[Record]:
    header: list[str] = []
    for number, row, fault in _csv_rows(lines.lines, tabs):
        if fault is None and len(row) < 2 and not "".join(row).strip():
            fault = EMPTY[0]
        elif not header:
            fault = fault or _header_fault(row, tabs)
            if fault is not None:
                raise DataError(f"{lines.name}, line {number}: {fault}")
            header = row
            continue
        elif fault is None and len(row) != len(header):
            fault = f"{len(row)} columns; the header has {len(header)}"
        elif fault is None and any(map(has_surrogates, row)):
            fault = "the line is not UTF-8"
        yield Record(number, dict(zip(header, row, strict=True)) if fault is None else {}, fault)


def _csv_rows(lines: Iterator[str], tabs: bool) -> Iterator[tuple[int, list[str], str | None]]:
    """Yield the line that a row ends on, its fields, and why they cannot be read."""
    rows = csv.reader(
        lines,
        delimiter="\t" if tabs else ",",
        quoting=csv.QUOTE_NONE if tabs else csv.QUOTE_MINIMAL,
        strict=True,
    )
    while True:
        begins = rows.line_num + 1
        try:
            row = next(rows)
        except StopIteration:
            return
        except csv.Error as error:
            yield rows.line_num, [], _csv_reason(error, begins)
        else:
            yield rows.line_num, row, None


def _header_fault(header: list[str], tabs: bool) -> str | None:
    if len(set(header)) < len(header):
        twice = next(column for column in header if header.count(column) > 1)
        return f"the header has the column {twice!r} twice"
    if any(map(has_surrogates, header)):
        return "the header is not UTF-8"
    if len(header) == 1 and any(mark in header[0] for mark in ";,\t"):
        marks = "tabs" if tabs else "commas"
        return f"the header is {header[0]!r}, a single column; expected names separated by {marks}"
    return None


def _csv_reason(error: csv.Error, begins: int) -> str:
    """Say what is wrong with a row of a table that begins on a line."""
    if "new-line character" in str(error):
        return "a field has a carriage return in it, and no quotes around it"
    if "unexpected end" in str(error):
        return f"the row begins on line {begins}, and a quote in it is not closed"
    if "field limit" in str(error):
        return (
            f"the row begins on line {begins}, and a field has more than "
            f"{csv.field_size_limit():,} characters; a quote may not be closed"
        )
    return str(error)


# ---- Parquet -------------------------------------------------------------------------------------


def require_pyarrow() -> None:
    """Check that pyarrow is installed.

    Raises:
        MissingExtraError: If it is not.
    """
    from importlib.util import find_spec

    if find_spec("pyarrow") is None:
        raise MissingExtraError(
            'Parquet files need pyarrow, which is not installed; run: pip install "attnflow[data]"'
        )


def open_parquet(path: str) -> Any:
    """Open a Parquet file.

    Args:
        path: The file.

    Returns:
        A `pyarrow.parquet.ParquetFile`, which is a context manager.

    Raises:
        DataError: If it is not a Parquet file, or is damaged.
        MissingExtraError: If pyarrow is not installed.
    """
    require_pyarrow()
    import pyarrow
    import pyarrow.parquet

    try:
        return pyarrow.parquet.ParquetFile(path)
    except (pyarrow.ArrowException, OSError) as error:
        raise DataError(
            f"{path} is not a Parquet file, or is damaged: {_first_line(error)}"
        ) from error


def _parquet_records(path: str) -> Iterator[Record]:
    number = 0
    with open_parquet(path) as file:
        import pyarrow

        try:
            for batch in file.iter_batches(batch_size=1024, use_threads=False):
                for values in batch.to_pylist():
                    number += 1
                    yield Record(number, values)
        except (pyarrow.ArrowException, OSError, ValueError) as error:
            raise DataError(
                f"{path} cannot be read after row {number}: {_first_line(error)}"
            ) from error


def _first_line(error: BaseException) -> str:
    return (str(error).splitlines() or [type(error).__name__])[0]


# ---- Examples: rows with a meaning ---------------------------------------------------------------


class Layout(NamedTuple, Generic[Example]):
    """How a file is read, and what its rows mean.

    Attributes:
        format: One of `FORMATS`, but not "auto".
        parse: Turns the values of a row into an example. It raises ValueError, with the reason, if
            they are not valid.
    """

    format: str
    parse: Callable[[Mapping[str, Any]], Example]


class Labelled(NamedTuple):
    """A text and the class it belongs to."""

    text: str
    label: str


class Text(NamedTuple):
    """A text of a file.

    Attributes:
        number: The line that it ends on, from 1.
        text: The text.
        label: Its label; None if no labels are read.
    """

    number: int
    text: str
    label: str | None


class Annotated(NamedTuple):
    """A text of a file with the values of further columns.

    Attributes:
        text: The text.
        more: The values, by the options that name their columns.
    """

    text: Text
    more: Mapping[str, Any]


def read_examples(
    path: str,
    layout_of: Callable[[str, str], Layout[Example]],
    on_fault: Callable[[int, str], object],
) -> Iterator[tuple[int, Example]]:
    """Read the examples of a file.

    Args:
        path: The file; "-" is standard input.
        layout_of: Returns the layout for the file's name and its first line of text.
        on_fault: Called with the number of a line that cannot be read, and the reason.

    Yields:
        The line that an example ends on, and the example.

    Raises:
        DataError: If the file has no text or cannot be read.
    """
    with open_lines(path) as lines:
        if lines.first is None:
            what = "has no line of text" if any(lines.lines) else "is empty"
            raise DataError(f"{lines.name} {what}; expected texts")
        layout = layout_of(path, lines.first)
        for number, values, fault in _records(lines, layout.format):
            try:
                if fault is not None:
                    raise ValueError(fault)
                example = layout.parse(values)
            except AttnflowError:
                raise
            except ValueError as error:
                on_fault(number, str(error))
            else:
                yield number, example


def text_of(values: Mapping[str, Any], names: Iterable[str]) -> str:
    """Return the text of a row.

    Args:
        values: The values of the row.
        names: The columns to look for; the first that there is has the text.

    Raises:
        ValueError: If there is no such string, it is empty, or it is not text.

    Example:
        >>> text_of({"sentence": "a joy", "label": 1}, ("text", "sentence"))
        'a joy'
    """
    text = next((values[name] for name in names if name in values), None)
    if not isinstance(text, str):
        raise ValueError(f"there is no string {' or '.join(map(repr, names))}")
    if not text.strip():
        raise ValueError(EMPTY[1])
    if has_surrogates(text):
        raise ValueError("the text has a lone surrogate, which is not valid UTF-8")
    if "\0" in text:
        raise ValueError("the text contains a NUL byte")
    return text


def label_of(values: Mapping[str, Any], name: str) -> str:
    """Return the label of a row, a string or an integer, as a string.

    Raises:
        ValueError: If it has none.
    """
    value = values.get(name)
    if isinstance(value, bool) or not isinstance(value, str | int):
        raise ValueError(f"there is no {name!r} that is a string or an integer")
    if has_surrogates(str(value)):
        raise ValueError(f"{name!r} has a lone surrogate, which is not valid UTF-8")
    return str(value)


def _value(values: Mapping[str, Any], name: str) -> Any:
    """Return the value of a row in a column: a string, a number, or lists of these.

    Raises:
        ValueError: If it has none.
    """
    if values.get(name) is None:
        raise ValueError(f"there is no {name!r}")
    if has_surrogates(str(values[name])):
        raise ValueError(f"{name!r} has a lone surrogate, which is not valid UTF-8")
    return values[name]


def read_texts(
    path: str | os.PathLike[str],
    *,
    format: str = "auto",
    text_column: str | None = None,
    label_column: str | None = None,
    limit: int | None = None,
    on_fault: Callable[[int, str], object] | None = None,
    dialect: Callable[[str, str, str], Layout[Any] | None] | None = None,
) -> Iterator[Text]:
    r"""Read texts, with or without labels, from a file.

    Args:
        path: The file, plain or gzipped; "-" is standard input.
        format: "text": one text a line. "csv" and "tsv": with a header; a TSV has no quoting.
            "jsonl": a JSON object, or a string, a line. "parquet". "auto" goes by the ending of the
            name and by the first line. A dialect may have formats of its own.
        text_column: The column, or JSON field, that has the text. None looks for "text" and
            "sentence".
        label_column: The column, or JSON field, that has the label. None reads no labels.
        limit: How many texts to read at most. Lines that cannot be read do not count.
        on_fault: Called with the number of a line that cannot be read, and the reason. None makes
            it an error.
        dialect: Reads files of another kind: called with `format`, the file's name and its first
            line of text, it returns the layout, whose examples have "text" and "label", or None for
            a file of one of the formats above.

    Returns:
        An iterator over the texts.

    Raises:
        DataError: If the file cannot be read or is damaged, the column of texts is not clear, or a
            line cannot be read and `on_fault` is None.
        OptionError: If an option is not valid, or there is no such column.

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
    found = read_annotated(
        path,
        {},
        format=format,
        text_column=text_column,
        label_column=label_column,
        limit=limit,
        on_fault=on_fault,
        dialect=dialect,
    )
    return (annotated.text for annotated in found)


def read_annotated(
    path: str | os.PathLike[str],
    columns: Mapping[str, str],
    *,
    format: str = "auto",
    text_column: str | None = None,
    label_column: str | None = None,
    limit: int | None = None,
    on_fault: Callable[[int, str], object] | None = None,
    dialect: Callable[[str, str, str], Layout[Any] | None] | None = None,
) -> Iterator[Annotated]:
    """Read texts as `read_texts` does, with the values of further columns.

    Args:
        path: The file.
        columns: The columns, or JSON fields, by the options that name them, for errors. That of
            "pair_column" has texts, as `text_column` has.
        format: As in `read_texts`.
        text_column: As in `read_texts`.
        label_column: As in `read_texts`.
        limit: As in `read_texts`.
        on_fault: As in `read_texts`.
        dialect: As in `read_texts`. It may not be given with columns.

    Yields:
        The texts with their values.

    Raises:
        AttnflowError: Whatever `read_texts` raises.
    """
    check_limit(limit)

    def layout_of(file: str, first: str) -> Layout[tuple[Any, Mapping[str, Any]]]:
        other = None if dialect is None else dialect(format, file, first)
        if other is None:
            kind = format_of(file, first) if format == "auto" else format
            parse = _labelled_parser(file, kind, text_column, label_column, columns)
            return Layout(kind, parse)
        for option, column in {"label_column": label_column, **columns}.items():
            if column is not None and (option, column) != ("label_column", "label"):
                raise OptionError(
                    f"{option} is {column!r}, but the labels of {file} are called 'label', and it "
                    "has no other columns; expected label_column='label'"
                )
        labelled = other.parse
        return Layout(other.format, lambda values: (labelled(values), {}))

    def fault(number: int, reason: str) -> None:
        if on_fault is None:
            raise DataError(f"{path}, line {number}: {reason}")
        on_fault(number, reason)

    for number, (example, more) in islice(read_examples(os.fspath(path), layout_of, fault), limit):
        label = None if label_column is None else example.label
        yield Annotated(Text(number, example.text, label), more)


def _labelled_parser(
    file: str,
    format: str,
    text_column: str | None,
    label_column: str | None,
    more: Mapping[str, str],
) -> Callable[[Mapping[str, Any]], tuple[Labelled, dict[str, Any]]]:
    """Return what reads the text and the label of a row, and its values in further columns."""
    if format not in FORMATS:
        raise OptionError(f"format is {format!r}; expected {', '.join(FORMATS)}")
    named = {"text_column": text_column, "label_column": label_column, **more}
    for option, column in named.items() if format == "text" else ():
        if column is not None:
            raise OptionError(
                f"{option} is {column!r}, but {file} is plain text, one text a line; if it has "
                "columns, give its format: csv, tsv or jsonl"
            )

    def parse(values: Mapping[str, Any]) -> tuple[Labelled, dict[str, Any]]:
        texts = TEXT_COLUMNS if text_column is None else (text_column,)
        pair = more.get("pair_column")
        # Every row of a table has the same columns; JSON objects may differ.
        if format != "jsonl":
            others = [name for name in values if name != pair]
            texts = (find_text_column(others, text_column, file),)
            for option, column in named.items():
                if column is not None:
                    require_column(column, values, option, file)
        text = text_of(values, texts)
        label = "" if label_column is None else label_of(values, label_column)
        further = {
            option: text_of(values, (name,)) if option == "pair_column" else _value(values, name)
            for option, name in more.items()
        }
        return Labelled(text, label), further

    return parse


# ---- Columns -------------------------------------------------------------------------------------


def find_text_column(names: Collection[str], wanted: str | None, source: str) -> str:
    """Return the column that has the texts.

    Args:
        names: The columns that there are.
        wanted: The column asked for. None looks for "text" and "sentence", or takes the only one.
        source: What has the columns, for errors.

    Raises:
        OptionError: If there is no such column.
        DataError: If several columns may have the texts.

    Example:
        >>> find_text_column(["id", "sentence"], None, "films.csv")
        'sentence'
    """
    if wanted is not None:
        require_column(wanted, names, "text_column", source)
        return wanted
    for name in TEXT_COLUMNS:
        if name in names or not names:
            return name
    if len(names) == 1:
        return next(iter(names))
    raise DataError(
        f"{source} has the columns {', '.join(map(repr, names))}; say which has the texts, with "
        "text_column"
    )


def require_column(name: str, names: Collection[str], option: str, source: str) -> None:
    """Check that there is a column.

    Args:
        name: The column.
        names: The columns that there are.
        option: The option that names the column, for the error.
        source: What has the columns, for the error.

    Raises:
        OptionError: If there is no such column.
    """
    if name not in names:
        columns = f"the columns {', '.join(map(repr, names))}" if names else "no columns"
        raise OptionError(f"{option} is {name!r}, but {source} has {columns}")


def check_limit(limit: Any) -> None:
    """Check how many rows are to be read at most.

    Raises:
        OptionError: If `limit` is neither None nor a whole number of 1 or more.
    """
    if limit is not None and (isinstance(limit, bool) or not isinstance(limit, int) or limit < 1):
        raise OptionError(f"limit is {limit!r}; expected a whole number of 1 or more, or None")
