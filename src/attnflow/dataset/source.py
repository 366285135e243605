"""Where the texts of a data set come from: files of several formats, folders, and iterables.

Everything is streamed. A row that cannot be read is a row with a fault, and stops nothing.
"""

import csv
import hashlib
import json
import os
from collections.abc import Iterable, Iterator, Mapping
from itertools import chain, islice
from pathlib import Path
from typing import Any, Final, NamedTuple

from attnflow.errors import DataError, MissingExtraError, OptionError
from attnflow.lines import Lines, is_half, opened

__all__ = ["FORMATS", "Column", "Row", "Source"]

FORMATS: Final = ("auto", "text", "csv", "tsv", "jsonl", "parquet")

_ENDINGS: Final = {
    ".txt": "text",
    ".csv": "csv",
    ".tsv": "tsv",
    ".jsonl": "jsonl",
    ".ndjson": "jsonl",
    ".parquet": "parquet",
    ".pq": "parquet",
}
# What the column of texts is called where nobody says.
_USUAL: Final = ("text", "sentence")
# So many rows decide what the columns of a source without types are.
_FIRST_ROWS: Final = 1000
_WHOLE_NUMBERS: Final = range(-(2**63), 2**63)
# How a line begins whose file is UTF-16, either way round.
_UTF_16: Final = ("\udcff\udcfe", "\udcfe\udcff")


class Row(NamedTuple):
    """A row of a source.

    Attributes:
        number: Which one it is, from 0.
        place: Where it stands, for people: "films.csv, line 3".
        values: What its columns hold.
        fault: Why the row cannot be read; None if it can.
    """

    number: int
    place: str
    values: dict[str, Any]
    fault: str | None = None


class Column(NamedTuple):
    """A column that is carried through.

    Attributes:
        name: Its name in the source.
        type: "bool", "int64", "float64", "string", "json" (a string that holds JSON), or the Arrow
            type that a Parquet file gives it.
    """

    name: str
    type: Any

    def holds(self, value: Any) -> bool:
        """Return whether a value fits the column; None does.

        Example:
            >>> Column("stars", "int64").holds(4), Column("stars", "int64").holds("four")
            (True, False)
        """
        if value is None or not isinstance(self.type, str):
            return True
        if self.type == "string":
            return isinstance(value, str) and not is_half(value)
        if self.type == "bool":
            return isinstance(value, bool)
        if self.type == "int64":
            return _is_whole(value)
        if self.type == "float64":
            return isinstance(value, float) or (_is_whole(value) and abs(value) <= 2**53)
        return True


class Source:
    """A source of rows that can be read from its beginning to its end, once.

    Args:
        source: The path of a file or a folder, "-" for standard input, or an iterable of strings or
            of mappings.
        format: One of `FORMATS`; "auto" goes by the ending, or by the first line.
        text_column: The column that has the text. None looks for "text" and "sentence", or takes
            the only column.
        id_column: The column that names a row. None numbers the rows.
        columns: The other columns to carry through. None carries all.

    Attributes:
        name: What to call the source in messages.
        files: For each file its name, size and digest; empty for pipes and iterables.
        expected: About how many rows there are; None if nobody knows.
        text_column: The column that has the text.
        id_column: As given.
        carried: The columns that are carried through, without those two.
        keeps_rest: Whether rows may have values that no column takes.

    Raises:
        OptionError: If an option is not valid, or a column is not there.
        DataError: If a file cannot be read, is damaged at its beginning, or there is none.
        MissingExtraError: If a Parquet file is to be read and pyarrow is not installed.
    """

    def __init__(
        self,
        source: Any,
        *,
        format: str = "auto",
        text_column: str | None = None,
        id_column: str | None = None,
        columns: Iterable[str] | None = None,
    ) -> None:
        if format not in FORMATS:
            raise OptionError(f"format is {format!r}; expected {', '.join(FORMATS)}")
        if isinstance(columns, str):
            raise OptionError(f"columns is {columns!r}; expected a list of names")
        self.files: list[dict[str, Any]] = []
        self.expected: int | None = None
        self.id_column = id_column
        self._format = format
        self._paths: list[str] = []
        types: dict[str, Any] | None = None
        if isinstance(source, str | os.PathLike):
            self.name = os.fspath(source)
            self._paths = _paths(self.name, format)
            self._describe()
            rows = self._read_files()
            if all(self._kind(index) == "parquet" for index in range(len(self._paths))):
                types = _parquet_types(self._paths)
        else:
            self.name = f"the {type(source).__name__} given"
            if format != "auto":
                raise OptionError(f"format is {format!r}, but {self.name} is no file; leave it out")
            rows = _read_items(source)
        first = list(islice(rows, _FIRST_ROWS))
        self._rows = chain(first, rows)
        if not first:
            raise DataError(f"{self.name} is empty; expected texts")
        names = _names(first) if types is None else list(types)
        self.text_column = self._find_text(names, text_column)
        if id_column is not None and id_column not in names:
            raise OptionError(
                f"id_column is {id_column!r}, but {self.name} has {_listed(names) or 'no columns'}"
            )
        # Arrow's own types hold all that their columns have.
        self.keeps_rest = columns is None and (
            types is None or any(isinstance(kind, str) for kind in types.values())
        )
        self.carried = self._choose(names, columns, types, first)
        self.id_type: Any = "int64"
        if id_column is not None:
            known = _type_of(row.values.get(id_column) for row in first)
            self.id_type = known if types is None else types[id_column]

    def __iter__(self) -> Iterator[Row]:
        return self._rows

    def check_unchanged(self) -> None:
        """Check that no file was written to since it was described.

        Raises:
            DataError: If one was.
        """
        for path, file in zip(self._paths, self.files, strict=False):
            try:
                now = os.stat(path)
            except OSError as error:
                raise DataError(f"{path} was taken away while it was read") from error
            if (now.st_size, now.st_mtime_ns) != (file["size"], self._written[path]):
                raise DataError(
                    f"{path} was written to while it was read; what was computed before stays in "
                    "the output, but belongs to a source that is no more"
                )

    # ---- What is there ---------------------------------------------------------------------------

    def _describe(self) -> None:
        """Digest the files, and count their lines on the way."""
        self._written: dict[str, int] = {}
        # Standard input and other pipes, such as <(zcat texts.gz), can be read but once.
        if not os.path.isfile(self._paths[0]):
            return
        total: int | None = 0
        for index, path in enumerate(self._paths):
            digest, lines, size, packed = hashlib.blake2b(digest_size=16), 0, 0, False
            try:
                self._written[path] = os.stat(path).st_mtime_ns
                with open(path, "rb") as file:
                    while block := file.read(2**20):
                        packed = packed or (size == 0 and block[:2] == b"\x1f\x8b")
                        digest.update(block)
                        lines += block.count(b"\n")
                        size += len(block)
                        last = block[-1:]
            except OSError as error:
                raise DataError(f"{path} cannot be read: {error.strerror or error}") from error
            name = os.path.basename(path)
            self.files.append({"name": name, "size": size, "digest": digest.hexdigest()})
            if size == 0:
                continue
            kind = self._kind(index)
            if total is None or packed:
                total = None
            elif kind == "parquet":
                total += int(_parquet(path).metadata.num_rows)
            else:
                total += lines + (last != b"\n") - (kind in ("csv", "tsv"))
        self.expected = total

    def _kind(self, index: int) -> str:
        """Return the format of a file; "auto" if its first line is to tell."""
        if self._format != "auto":
            return self._format
        path = self._paths[index]
        ending = os.path.splitext(path.removesuffix(".gz"))[1].lower()
        if ending not in _ENDINGS and _begins_as_parquet(path):
            return "parquet"
        return _ENDINGS.get(ending, "auto")

    def _find_text(self, names: list[str], wanted: str | None) -> str:
        if wanted is not None:
            if wanted not in names:
                raise OptionError(
                    f"text_column is {wanted!r}, but {self.name} has {_listed(names)}"
                )
            return wanted
        for name in _USUAL:
            if name in names or not names:
                return name
        if len(names) == 1:
            return names[0]
        raise OptionError(
            f"{self.name} has {_listed(names)}; say which has the texts, as text_column"
        )

    def _choose(
        self,
        names: list[str],
        columns: Iterable[str] | None,
        types: dict[str, Any] | None,
        first: list[Row],
    ) -> list[Column]:
        taken = (self.text_column, self.id_column)
        if columns is None:
            wanted = [name for name in names if name not in taken]
        else:
            wanted = list(dict.fromkeys(columns))
            for name in wanted:
                if name not in names:
                    raise OptionError(f"columns has {name!r}, but {self.name} has {_listed(names)}")
            wanted = [name for name in wanted if name not in taken]
        if types is not None:
            return [Column(name, types[name]) for name in wanted]
        return [Column(name, _type_of(row.values.get(name) for row in first)) for name in wanted]

    # ---- Reading ---------------------------------------------------------------------------------

    def _read_files(self) -> Iterator[Row]:
        number = 0
        for index, path in enumerate(self._paths):
            kind = self._kind(index)
            name = "standard input" if path == "-" else path
            rows = _read_parquet(path) if kind == "parquet" else _read_lines(path, name, kind)
            for place, values, fault in rows:
                yield Row(number, place, values, fault)
                number += 1


_Found = tuple[str, dict[str, Any], str | None]


def _paths(name: str, format: str) -> list[str]:
    if name == "-":
        if format == "parquet":
            raise OptionError("format is 'parquet', which is read from a file, not standard input")
        return ["-"]
    if not os.path.exists(name):
        raise DataError(f"{name} does not exist; expected a file, a folder or - for standard input")
    if not os.path.isdir(name):
        return [name]
    found = []
    for path in sorted(Path(name).iterdir()):
        ending = os.path.splitext(path.name.removesuffix(".gz"))[1].lower()
        hidden = path.name.startswith((".", "_"))
        if format in ("auto", _ENDINGS.get(ending)) and ending in _ENDINGS and not hidden:
            found += [str(path)] if path.is_file() else []
    if not found:
        raise DataError(
            f"the folder {name} has no file to read; expected names that end in "
            f"{', '.join(_ENDINGS)}"
        )
    return found


def _read_items(items: Any) -> Iterator[Row]:
    """Return the rows of an iterable of strings or mappings."""
    if isinstance(items, Mapping | bytes) or not hasattr(items, "__iter__"):
        raise OptionError(
            f"source is {type(items).__name__}; expected a path, or an iterable of strings or of "
            "mappings"
        )
    if hasattr(items, "columns") and hasattr(items, "to_dict"):
        raise OptionError(
            f"source is a {type(items).__name__}, whose iteration gives no rows; pass its rows, "
            'as source.to_dict("records") or source.to_dicts() gives them'
        )
    return _items(items)


def _items(items: Iterable[Any]) -> Iterator[Row]:
    for number, item in enumerate(items):
        place = f"item {number}"
        if isinstance(item, str):
            yield Row(number, place, {"text": item})
        elif isinstance(item, Mapping):
            # What NumPy holds is stored as what it stands for.
            values = {
                str(name): value.tolist() if type(value).__module__ == "numpy" else value
                for name, value in item.items()
            }
            yield Row(number, place, *_with_names(values))
        else:
            reason = f"it is {type(item).__name__}; expected a string or a mapping"
            yield Row(number, place, {}, reason)


def _read_lines(path: str, name: str, kind: str) -> Iterator[_Found]:
    with opened(path) as file:
        lines = Lines(name, file)
        first = lines.peek()
        if first is None:
            return
        if first.startswith(_UTF_16):
            raise DataError(f"{name} is UTF-16; expected UTF-8, as iconv -f UTF-16 makes it")
        if kind == "auto":
            kind = _kind_of(first, name)
        if kind in ("csv", "tsv"):
            yield from _read_table(lines, name, tabs=kind == "tsv")
            return
        for line in lines:
            place = f"{name}, line {lines.number}"
            if is_half(line):
                yield place, {}, "the line is not UTF-8 text"
            elif kind == "text":
                yield place, {"text": line.rstrip("\r\n")}, None
            else:
                yield (place, *_read_json(line))


def _read_json(line: str) -> tuple[dict[str, Any], str | None]:
    try:
        value = json.loads(line)
    except RecursionError:
        return {}, "not JSON that can be read: it is nested too deeply"
    except ValueError as error:
        if not line.strip():
            return {}, "the line is empty"
        return {}, f"not JSON: {error}"
    if isinstance(value, str):
        return {"text": value}, None
    if not isinstance(value, dict):
        return {}, "not a JSON object"
    return _with_names(value)


def _with_names(values: dict[str, Any]) -> tuple[dict[str, Any], str | None]:
    """Return values and no fault, if their names can be those of columns."""
    if any(map(is_half, values)):
        return {}, "the name of a field has half characters, which are not UTF-8 text"
    return values, None


def _kind_of(first: str, name: str) -> str:
    """Return the format that a first line tells of."""
    if first.startswith("PAR1"):
        raise DataError(f"{name} is Parquet, which is read from a file, not from a pipe")
    if first.lstrip().startswith("[") and name.lower().endswith((".json", ".json.gz")):
        raise DataError(
            f"{name} is a JSON list; expected JSON lines, an object a line, as jq -c '.[]' makes "
            "of it"
        )
    return "jsonl" if first.lstrip().startswith("{") else "text"


def _read_table(lines: Lines, name: str, *, tabs: bool) -> Iterator[_Found]:
    rows = csv.reader(
        lines,
        delimiter="\t" if tabs else ",",
        quoting=csv.QUOTE_NONE if tabs else csv.QUOTE_MINIMAL,
        strict=True,
    )
    try:
        header = next(rows)
    except (csv.Error, StopIteration) as error:
        reason = _csv_reason(error, 1) if isinstance(error, csv.Error) else "there is no header"
        raise DataError(f"{name}, line 1: {reason}") from error
    if len(set(header)) < len(header):
        twice = next(column for column in header if header.count(column) > 1)
        raise DataError(f"{name}, line 1: the header has the column {twice!r} twice")
    if any(map(is_half, header)):
        raise DataError(f"{name}, line 1: the header is not UTF-8 text")
    if len(header) == 1 and any(mark in header[0] for mark in ";,\t"):
        raise DataError(
            f"{name}, line 1: the header is {header[0]!r}, a single column; expected names "
            f"separated by {'tabs' if tabs else 'commas'}"
        )
    while True:
        begins = lines.number + 1
        try:
            row = next(rows)
        except StopIteration:
            return
        except csv.Error as error:
            yield f"{name}, line {lines.number}", {}, _csv_reason(error, begins)
            continue
        place = f"{name}, line {lines.number}"
        if not row:
            yield place, {}, "the line is empty"
        elif len(row) != len(header):
            yield place, {}, f"{len(row)} columns; the header has {len(header)}"
        elif any(map(is_half, row)):
            yield place, {}, "the line is not UTF-8 text"
        else:
            yield place, dict(zip(header, row, strict=True)), None


def _csv_reason(error: csv.Error, begins: int) -> str:
    """Say what is wrong with a row of a table, which begins on a line."""
    if "unexpected end" in str(error):
        return f"the row begins on line {begins}, and a quote in it is not closed"
    if "field limit" in str(error):
        return (
            f"the row begins on line {begins}, and a field in it has more than "
            f"{csv.field_size_limit():,} characters; a quote may not be closed"
        )
    if "new-line character" in str(error):
        return "a field has a carriage return in it, and no quotes around it"
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
            'data sets are Parquet files, which need pyarrow; run: pip install "attnflow[data]"'
        )


def _parquet(path: str) -> Any:
    require_pyarrow()
    import pyarrow
    import pyarrow.parquet

    try:
        return pyarrow.parquet.ParquetFile(path)
    except (pyarrow.ArrowException, OSError) as error:
        raise DataError(
            f"{path} is no Parquet file, or is damaged: {_first_line(error)}"
        ) from error


def _begins_as_parquet(path: str) -> bool:
    if not os.path.isfile(path):
        return False
    with open(path, "rb") as file:
        return file.read(4) == b"PAR1"


def _parquet_types(paths: list[str]) -> dict[str, Any]:
    """Return the columns of all files, with their types."""
    types: dict[str, Any] = {}
    for path in paths:
        with _parquet(path) as file:
            schema = file.schema_arrow
        if len(set(schema.names)) < len(schema.names):
            raise DataError(f"{path} has two columns of the same name")
        for field in schema:
            found = _plain_type(field.type)
            types[field.name] = _common_type(types.get(field.name, found), found)
    return types


def _plain_type(given: Any) -> Any:
    import pyarrow

    return given.value_type if pyarrow.types.is_dictionary(given) else given


def _common_type(one: Any, other: Any) -> Any:
    """Return the type of a column that has one in some files, and another in others.

    Example:
        >>> import pyarrow as pa
        >>> _common_type(pa.null(), pa.int8()), _common_type(pa.int8(), pa.int64())
        (DataType(int8), 'int64')
        >>> _common_type("int64", pa.float32()), _common_type(pa.string(), pa.int8())
        ('float64', 'json')
    """
    import pyarrow
    from pyarrow import types

    if one == other or types.is_null(other):
        return one
    if isinstance(one, str):
        one = {"int64": pyarrow.int64(), "float64": pyarrow.float64()}.get(one)
    elif types.is_null(one):
        return other
    if one is None:
        return "json"
    both = (one, other)
    if all(types.is_string(kind) or types.is_large_string(kind) for kind in both):
        return pyarrow.large_string()
    if all(map(types.is_integer, both)):
        return "int64"
    if all(types.is_integer(kind) or types.is_floating(kind) for kind in both):
        return "float64"
    return "json"


def _read_parquet(path: str) -> Iterator[_Found]:
    import pyarrow

    number = 0
    with _parquet(path) as file:
        batches = file.iter_batches(batch_size=1024, use_threads=False)
        while True:
            try:
                batch = next(batches)
                rows = batch.to_pylist()
            except StopIteration:
                return
            except (pyarrow.ArrowException, OSError, ValueError) as error:
                raise DataError(
                    f"{path} cannot be read after row {number}: {_first_line(error)}"
                ) from error
            for values in rows:
                number += 1
                yield f"{path}, row {number}", values, None


# ---- Types ---------------------------------------------------------------------------------------


def _names(rows: list[Row]) -> list[str]:
    return list(dict.fromkeys(name for row in rows for name in row.values))


def _type_of(values: Iterable[Any]) -> str:
    """Return the type that holds all of some values.

    Example:
        >>> _type_of([1, None, 2.5]), _type_of(["a"]), _type_of([1, "a"]), _type_of([[1]])
        ('float64', 'string', 'json', 'json')
    """
    found = [value for value in values if value is not None]
    for name in ("bool", "int64", "float64", "string"):
        column = Column("", name)
        if found and all(column.holds(value) for value in found):
            return name
    return "json" if found else "string"


def _is_whole(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value in _WHOLE_NUMBERS


def _listed(names: list[str]) -> str:
    return f"the columns {', '.join(map(repr, names))}" if names else ""


def _first_line(error: BaseException) -> str:
    return (str(error).splitlines() or [type(error).__name__])[0]
