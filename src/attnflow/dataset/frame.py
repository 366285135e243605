"""Tables in memory: data frames of pandas and polars, Arrow tables, Hugging Face data sets.

All are read through Arrow. Libraries of tables exchange them by one interface,
`__arrow_c_stream__`, so none of them is imported here. Rows become Python values a few at a time.
"""

import hashlib
import re
from collections.abc import Iterable, Iterator
from typing import Any, Final, NamedTuple

from attnflow.errors import DataError
from attnflow.io.records import require_pyarrow

# How many rows are Python values at a time.
_ROWS: Final = 1024
# What pandas calls the index of a frame that has no name for it.
_UNNAMED_INDEX: Final = re.compile(r"__index_level_\d+__")


class Digest(NamedTuple):
    """What identifies the content of a table: how many rows it has, and their digest."""

    rows: int
    digest: str


def is_frame(source: Any) -> bool:
    """Return whether something is a table in memory.

    Args:
        source: Anything. No attribute of it is computed.

    Example:
        >>> import pyarrow
        >>> is_frame(pyarrow.table({"text": ["keys"]})), is_frame([{"text": "keys"}])
        (True, False)
    """
    kind = type(source)
    # A series also exchanges Arrow data, but has no columns.
    named = hasattr(kind, "columns") or hasattr(kind, "schema")
    return (hasattr(kind, "__arrow_c_stream__") and named) or _is_data_set(source)


class Frame:
    """A table in memory.

    Args:
        source: A table that `is_frame` knows.
        name: What to call it in messages.

    Attributes:
        types: The Arrow types of the columns, as Parquet stores them.

    Raises:
        DataError: If it cannot be read as Arrow, or two of its columns have the same name.
        MissingExtraError: If pyarrow is not installed.

    Example:
        >>> import pyarrow
        >>> frame = Frame(pyarrow.table({"text": ["keys", "doors"]}), "the Table given")
        >>> frame.types, list(frame)
        ({'text': DataType(string)}, [{'text': 'keys'}, {'text': 'doors'}])
        >>> frame.digest().rows
        2
    """

    def __init__(self, source: Any, name: str) -> None:
        require_pyarrow()
        self._source = source
        self._name = name
        # What can be read only once is opened once.
        self._reader = self._open()
        self.types = arrow_types(self._fields(), name)

    def __iter__(self) -> Iterator[dict[str, Any]]:
        import pyarrow

        reader = self._open() if self._reader is None else self._reader
        self._reader = None
        names = list(self.types)
        try:
            for batch in reader:
                for start in range(0, batch.num_rows, _ROWS):
                    yield from batch.slice(start, _ROWS).select(names).to_pylist()
        except (pyarrow.ArrowException, ValueError) as error:
            raise self._unreadable(error) from error

    def digest(self) -> Digest | None:
        """Return a digest of the types and the values; None for a stream, which is read once.

        It does not depend on how the table is laid out in memory.
        """
        if not hasattr(type(self._source), "__len__"):
            return None
        found, rows = hashlib.blake2b(repr(self.types).encode(), digest_size=16), 0
        for rows, values in enumerate(self, 1):  # noqa: B007 # the last number is how many
            found.update(repr(values).encode("utf-8", "surrogatepass"))
        return Digest(rows, found.hexdigest())

    def _open(self) -> Any:
        import pyarrow

        source = self._source
        try:
            if not _is_data_set(source):
                return pyarrow.RecordBatchReader.from_stream(source)
            parts = source.with_format("arrow").iter(_ROWS)
            return pyarrow.RecordBatchReader.from_batches(
                source.features.arrow_schema,
                (batch for part in parts for batch in part.to_batches()),
            )
        except (pyarrow.ArrowException, ValueError) as error:
            raise self._unreadable(error) from error

    def _fields(self) -> list[Any]:
        fields = self._reader.schema
        return [field for field in fields if not _UNNAMED_INDEX.fullmatch(field.name)]

    def _unreadable(self, error: Exception) -> DataError:
        # Arrow says in a second argument which column it is.
        reason = "; ".join(str(part).strip() for part in error.args)
        return DataError(
            f"{self._name} cannot be read as an Arrow table: {reason}. Expected columns of "
            "different names, each of one type that Arrow has"
        )


def arrow_types(fields: Iterable[Any], name: str) -> dict[str, Any]:
    """Return the types of columns as Parquet stores them.

    Args:
        fields: Arrow's fields.
        name: What has the columns, for the error.

    Raises:
        DataError: If two columns have the same name.

    Example:
        >>> import pyarrow as pa
        >>> arrow_types([pa.field("kind", pa.dictionary(pa.int8(), pa.string()))], "films")
        {'kind': DataType(string)}
    """
    types: dict[str, Any] = {}
    for field in fields:
        if field.name in types:
            raise DataError(f"{name} has two columns of the same name, {field.name!r}")
        types[field.name] = _plain(field.type)
    return types


def _plain(kind: Any) -> Any:
    """Return the type of the same values without dictionaries and views.

    Readers of Parquet know neither in every place.
    """
    import pyarrow
    from pyarrow import types

    if types.is_dictionary(kind):
        return _plain(kind.value_type)
    if str(kind) in ("string_view", "binary_view"):
        return pyarrow.type_for_alias(f"large_{str(kind).removesuffix('_view')}")
    if types.is_list(kind):
        return pyarrow.list_(kind.value_field.with_type(_plain(kind.value_type)))
    if types.is_large_list(kind):
        return pyarrow.large_list(kind.value_field.with_type(_plain(kind.value_type)))
    if types.is_struct(kind):
        return pyarrow.struct([field.with_type(_plain(field.type)) for field in kind])
    return kind


def _is_data_set(source: Any) -> bool:
    """Return whether something is a Hugging Face data set. One that is streamed has no length."""
    names = ("with_format", "features", "__len__")
    return all(hasattr(type(source), name) for name in names)
