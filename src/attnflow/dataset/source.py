"""Where the texts of a data set come from: files, folders, tables in memory, and iterables.

Everything is streamed. A row that cannot be read is a row with a fault, and the others are read.
"""

import hashlib
import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from itertools import chain, islice
from pathlib import Path
from typing import Any, Final, NamedTuple

from attnflow.checks import choice
from attnflow.dataset.frame import Frame, arrow_types, is_frame
from attnflow.errors import DataError, OptionError
from attnflow.io.records import (
    ENDINGS,
    FORMATS,
    check_names,
    find_text_column,
    format_of,
    has_surrogates,
    open_parquet,
    read_records,
    require_column,
)

# How many rows decide the types of columns, if the source has none.
_FIRST_ROWS: Final = 1000
# The column of the second text of a tuple.
_PAIR: Final = "pair"
_INT64: Final = range(-(2**63), 2**63)


class Row(NamedTuple):
    """A row of a source.

    Attributes:
        number: The index of the row, from 0.
        place: Where it is, for messages: "films.csv, line 3".
        values: The values by column.
        fault: Why the row cannot be read; None if it can.
        pair: Whether it is a tuple of two texts.
    """

    number: int
    place: str
    values: dict[str, Any]
    fault: str | None = None
    pair: bool = False


class Column(NamedTuple):
    """A column that is carried through.

    Attributes:
        name: Its name in the source.
        type: "bool", "int64", "float64", "string", "json" (a string that holds JSON), or the Arrow
            type that a Parquet file or a table gives it.
    """

    name: str
    type: Any

    def holds(self, value: Any) -> bool:
        """Return whether a value fits the column; None does.

        Example:
            >>> Column("stars", "int64").holds(4), Column("stars", "int64").holds("four")
            (True, False)
        """
        return value is None or not isinstance(self.type, str) or _HOLDS[self.type](value)


def _is_int64(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value in _INT64


_HOLDS: Final[dict[str, Callable[[Any], bool]]] = {
    "bool": lambda value: isinstance(value, bool),
    "int64": _is_int64,
    # A float holds integers up to 2**53 exactly.
    "float64": lambda value: isinstance(value, float) or (_is_int64(value) and abs(value) <= 2**53),
    "string": lambda value: isinstance(value, str) and not has_surrogates(value),
    "json": lambda value: True,
}
"""What the types of columns hold, the narrowest type first."""


class Source:
    """A source of rows that can be read once, from beginning to end.

    Args:
        source: The path of a file or a folder, "-" for standard input, a table in memory as
            `attnflow.dataset.frame` knows them, or an iterable of strings, of tuples of two
            strings, or of mappings.
        format: One of `attnflow.io.records.FORMATS`; "auto" goes by the ending of a file's name, or
            by its first line.
        text_column: The column that has the text. None looks for "text" and "sentence", or takes
            the only column.
        pair_column: The column that has the second text of a pair. None reads one text a row; the
            second of a tuple is in the column "pair".
        id_column: The column that names a row. None numbers the rows.
        columns: The other columns to carry through. None carries all.

    Attributes:
        name: What to call the source in messages.
        files: For each file its name, size and digest, or for a table its name, number of rows and
            digest; empty for pipes, iterables and what else can be read only once.
        expected: About how many rows there are; None if that is not known.
        text_column: The column that has the text.
        pair_column: The column that has the second text of a pair; None if there is none.
        id_column: As given.
        id_type: Its type, as in `Column`.
        carried: The columns that are carried through, without those.
        keeps_rest: Whether rows may have values that do not fit any column.

    Raises:
        OptionError: If an option is not valid, or there is no such column.
        DataError: If a file does not exist, cannot be read, or is damaged at its beginning; or a
            table cannot be read.
        MissingExtraError: If a Parquet file or a table is to be read and pyarrow is not installed.
    """

    def __init__(
        self,
        source: Any,
        *,
        format: str = "auto",
        text_column: str | None = None,
        pair_column: str | None = None,
        id_column: str | None = None,
        columns: Sequence[str] | None = None,
    ) -> None:
        choice(format, "format", FORMATS)
        self.files: list[dict[str, Any]] = []
        self.expected: int | None = None
        self.id_column = id_column
        # The formats of the files, by their paths.
        self._formats: dict[str, str] = {}
        self._written: dict[str, int] = {}
        types: dict[str, Any] | None = None
        if isinstance(source, str | os.PathLike):
            self.name = os.fspath(source)
            self._formats = dict.fromkeys(_paths(self.name, format), format)
            self._describe()
            rows = self._read_files()
            if set(self._formats.values()) == {"parquet"}:
                types = _parquet_types(self._formats)
        else:
            self.name = f"the {type(source).__name__} given"
            if format != "auto":
                raise OptionError(
                    f"format is {format!r}, but {self.name} is not a file; leave it out"
                )
            if is_frame(source):
                frame = Frame(source, self.name)
                types = frame.types
                rows = self._read_frame(frame)
            else:
                rows = _rows(source)
        first = list(islice(rows, _FIRST_ROWS))
        self._rows = chain(first, rows)
        if not first:
            raise DataError(f"{self.name} is empty; expected texts")
        if types is None:
            names = list(dict.fromkeys(name for row in first for name in row.values))
            types = {name: _type_of(row.values.get(name) for row in first) for name in names}
        names = list(types)
        if pair_column is not None:
            require_column(pair_column, names, "pair_column", self.name)
        elif any(row.pair for row in first):
            pair_column = _PAIR
        left = [name for name in names if name != pair_column]
        self.text_column = find_text_column(left, text_column, self.name)
        self.pair_column = pair_column
        if id_column is not None:
            require_column(id_column, names, "id_column", self.name)
        self.id_type: Any = "int64" if id_column is None else types[id_column]
        # The Arrow types of Parquet files and tables hold all that their columns have.
        self.keeps_rest = columns is None and not (
            types and all(not isinstance(kind, str) for kind in types.values())
        )
        wanted = names if columns is None else list(dict.fromkeys(columns))
        for name in wanted:
            require_column(name, names, "columns", self.name)
        self.carried = [
            Column(name, types[name])
            for name in wanted
            if name not in (self.text_column, pair_column, id_column)
        ]

    def __iter__(self) -> Iterator[Row]:
        return self._rows

    def check_unchanged(self) -> None:
        """Check that no file has been written to since it was described.

        Raises:
            DataError: If one has.
        """
        for path, file in zip(self._formats, self.files, strict=False):
            try:
                now = os.stat(path)
            except OSError as error:
                raise DataError(f"{path} was removed while it was read") from error
            if (now.st_size, now.st_mtime_ns) != (file["size"], self._written[path]):
                raise DataError(
                    f"{path} was written to while it was read. What was computed before stays in "
                    "the output, but belongs to a source that no longer exists"
                )

    def _describe(self) -> None:
        """Digest the files, and find their formats and how many lines they have."""
        # Standard input and other pipes, such as <(zcat texts.gz), can be read only once.
        if not os.path.isfile(next(iter(self._formats))):
            return
        total: int | None = 0
        for path, format in self._formats.items():
            digest, lines, size, head, last = hashlib.blake2b(digest_size=16), 0, 0, b"", b""
            try:
                self._written[path] = os.stat(path).st_mtime_ns
                with open(path, "rb") as file:
                    while block := file.read(2**20):
                        head = head or block[:4]
                        digest.update(block)
                        lines += block.count(b"\n")
                        size += len(block)
                        last = block[-1:]
            except OSError as error:
                raise DataError(f"{path} cannot be read: {error.strerror or error}") from error
            name = os.path.basename(path)
            self.files.append({"name": name, "size": size, "digest": digest.hexdigest()})
            if format == "auto" and format_of(path, head.decode("latin-1")) == "parquet":
                self._formats[path] = "parquet"
            if size == 0:
                continue
            if total is None or head.startswith(b"\x1f\x8b"):
                total = None
            elif self._formats[path] == "parquet":
                with open_parquet(path) as file:
                    total += int(file.metadata.num_rows)
            else:
                header = format in ("csv", "tsv") or ENDINGS.get(_ending(path)) in ("csv", "tsv")
                total += lines + (last != b"\n") - header
        self.expected = total

    def _read_frame(self, frame: Frame) -> Iterator[Row]:
        """Digest a table, and return its rows."""
        found = frame.digest()
        if found is not None:
            self.files.append({"name": self.name, **found._asdict()})
            self.expected = found.rows
        return (Row(number, f"row {number}", values) for number, values in enumerate(frame))

    def _read_files(self) -> Iterator[Row]:
        number = 0
        for path, format in self._formats.items():
            name = "standard input" if path == "-" else path
            unit = "row" if format == "parquet" else "line"
            for record in read_records(path, format):
                place = f"{name}, {unit} {record.number}"
                yield Row(number, place, record.values, record.fault)
                number += 1


def _ending(path: str) -> str:
    return os.path.splitext(path.removesuffix(".gz"))[1].lower()


def _paths(name: str, format: str) -> list[str]:
    """Return the files of a source."""
    if name == "-":
        if format == "parquet":
            raise OptionError("format is 'parquet', which is read from a file, not standard input")
        return ["-"]
    if not os.path.exists(name):
        raise DataError(f"{name} does not exist; expected a file, a folder or - for standard input")
    if not os.path.isdir(name):
        return [name]
    found = [
        str(path)
        for path in sorted(Path(name).iterdir())
        if ENDINGS.get(_ending(path.name), "") in (FORMATS[1:] if format == "auto" else [format])
        and not path.name.startswith((".", "_"))
        and path.is_file()
    ]
    if not found:
        raise DataError(
            f"the folder {name} has no file to read; expected names that end in "
            f"{', '.join(ENDINGS)}"
        )
    return found


def _rows(source: Any) -> Iterator[Row]:
    """Return the rows of an iterable of strings, of tuples of two, or of mappings."""
    kind = type(source)
    expected = (
        "a path, a table such as a data frame, or an iterable of strings, of tuples of two "
        "strings, or of mappings"
    )
    if hasattr(kind, "columns") and hasattr(kind, "collect"):
        expected = "a table that is computed: pass source.collect()"
    elif hasattr(kind, "columns") and hasattr(kind, "to_dict"):
        expected = 'rows: pass source.to_dict("records") or source.to_dicts()'
    elif isinstance(source, Mapping) and hasattr(kind, "column_names"):
        expected = f"one of its splits: pass source[{next(iter(source), 'train')!r}]"
    elif hasattr(source, "__iter__") and not isinstance(source, Mapping | bytes):
        return (_row(number, item) for number, item in enumerate(source))
    raise OptionError(f"source is a {kind.__name__}; expected {expected}")


def _row(number: int, item: Any) -> Row:
    values: dict[str, Any] = {}
    fault = None
    pair = isinstance(item, tuple) and len(item) == 2
    if isinstance(item, str):
        values = {"text": item}
    elif pair:
        values = dict(zip(("text", _PAIR), item, strict=True))
    elif isinstance(item, Mapping):
        # NumPy's numbers and arrays are stored as numbers and lists.
        values = {
            str(name): value.tolist() if type(value).__module__ == "numpy" else value
            for name, value in item.items()
        }
        try:
            check_names(values)
        except ValueError as error:
            values, fault = {}, str(error)
    else:
        fault = f"it is {type(item).__name__}; expected a string, a tuple of two or a mapping"
    return Row(number, f"item {number}", values, fault, pair)


# ---- Types ---------------------------------------------------------------------------------------


def _type_of(values: Iterable[Any]) -> str:
    """Return the type that holds all of some values.

    Example:
        >>> _type_of([1, None, 2.5]), _type_of(["a"]), _type_of([1, "a"]), _type_of([[1]])
        ('float64', 'string', 'json', 'json')
    """
    found = [value for value in values if value is not None]
    if not found:
        return "string"
    return next(name for name, holds in _HOLDS.items() if all(map(holds, found)))


def _parquet_types(paths: Iterable[str]) -> dict[str, Any]:
    """Return the columns of all files, with their types."""
    types: dict[str, Any] = {}
    for path in paths:
        with open_parquet(path) as file:
            schema = file.schema_arrow
        for name, found in arrow_types(schema, path).items():
            types[name] = _common_type(types.get(name, found), found)
    return types


def _common_type(one: Any, other: Any) -> Any:
    """Return the type of a column that has one type in some files, and another in others.

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
