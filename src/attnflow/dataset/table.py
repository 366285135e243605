"""The columns of a data set, and the bytes of its Parquet files."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, Final

from attnflow.dataset.source import Column, Row

if TYPE_CHECKING:
    from attnflow.dataset.shard import Found, Plan


Value = Callable[[Row, "Found", "Plan"], Any]

COLUMNS: Final[dict[str, tuple[str, Value]]] = {
    "row": ("int64", lambda row, found, plan: row.number),
    "id": ("id", lambda row, found, plan: row_id(row, plan)),
    "text": ("string", lambda row, found, plan: row.values[plan.text_column]),
    "pair": ("string", lambda row, found, plan: row.values.get(plan.pair_column or "")),
    "tokens": ("list string", lambda row, found, plan: found.tokens.names),
    "scores": ("list float64", lambda row, found, plan: found.scores),
    "special": ("list bool", lambda row, found, plan: found.tokens.special),
    "starts": ("list int32", lambda row, found, plan: [x and x[0] for x in found.tokens.spans]),
    "ends": ("list int32", lambda row, found, plan: [x and x[1] for x in found.tokens.spans]),
    "layer": ("int32", lambda row, found, plan: found.layer),
    "position": ("int32", lambda row, found, plan: found.position),
    "target": ("string", lambda row, found, plan: found.answer.target),
    "contrast": ("string", lambda row, found, plan: found.answer.contrast),
    "value": ("float64", lambda row, found, plan: found.answer.value),
    "bias": ("float64", lambda row, found, plan: found.answer.bias),
    "predicted": (
        "string",
        lambda row, found, plan: found.answer.prediction and found.answer.prediction.label,
    ),
    "probability": (
        "float64",
        lambda row, found, plan: found.answer.prediction and found.answer.prediction.probability,
    ),
    "saturation": ("float64", lambda row, found, plan: found.saturation),
    "notes": ("list string", lambda row, found, plan: found.notes),
}
"""The columns that a run computes: the type of each, and its value for a row.

Only a run over pairs has "pair". Starts and ends are then counted in the two texts as one, with a
line break between them.
"""

RESULTS: Final = (*COLUMNS, "rest")
"""All columns that a run may add. A column of the source with such a name gets a prefix."""


def name_in_output(name: str) -> str:
    """Return the name in the output of a column of the source.

    Example:
        >>> name_in_output("stars"), name_in_output("tokens")
        ('stars', 'source_tokens')
    """
    return f"source_{name}" if name in RESULTS else name


def row_id(row: Row, plan: Plan) -> Any:
    """Return the id of a row; None if it has none of the column's type."""
    if plan.id_column is None:
        return row.number
    column = Column(plan.id_column, plan.id_type)
    value = row.values.get(plan.id_column)
    return _stored(column, value)


def data_file(done: Sequence[tuple[Row, Found]], plan: Plan) -> bytes:
    """Return the Parquet file of explained rows.

    Args:
        done: The rows and what was found.
        plan: How they were explained.
    """
    columns = [
        (name, plan.id_type if kind == "id" else kind, [value(*pair, plan) for pair in done])
        for name, (kind, value) in COLUMNS.items()
        if name != "pair" or plan.pair_column is not None
    ]
    for column in plan.carried:
        values = [_stored(column, row.values.get(column.name)) for row, _ in done]
        columns.append((name_in_output(column.name), column.type, values))
    if plan.keeps_rest:
        columns.append(("rest", "string", [_rest(row, plan) for row, _ in done]))
    return _parquet(columns, plan)


def errors_file(failed: Sequence[tuple[Row, str]], plan: Plan) -> bytes:
    """Return the Parquet file of rows that failed.

    Args:
        failed: The rows and the reasons.
        plan: How they were to be explained.
    """
    rows = [row for row, _ in failed]
    texts = [row.values.get(plan.text_column) for row in rows]
    return _parquet(
        [
            ("row", "int64", [row.number for row in rows]),
            ("id", plan.id_type, [row_id(row, plan) for row in rows]),
            ("place", "string", [_utf8(row.place) for row in rows]),
            ("reason", "string", [_utf8(reason) for _, reason in failed]),
            ("values", "string", [_json(row.values) if row.values else None for row in rows]),
            ("text", "string", [_utf8(x) if isinstance(x, str) else None for x in texts]),
        ],
        plan,
    )


def _stored(column: Column, value: Any) -> Any:
    """Return a value as a column stores it; None if it does not fit."""
    if value is None or not column.holds(value):
        return None
    return _json(value) if isinstance(column.type, str) and column.type == "json" else value


def _rest(row: Row, plan: Plan) -> str | None:
    """Return as JSON the values that no column takes: new fields, and values of another type."""
    known = {column.name: column for column in plan.carried}
    rest = {
        name: value
        for name, value in row.values.items()
        if name not in (plan.text_column, plan.pair_column, plan.id_column)
        and (name not in known or not known[name].holds(value))
    }
    return _json(rest) if rest else None


def _json(value: Any) -> str:
    return json.dumps(value, ensure_ascii=True, default=str)


def _utf8(text: str) -> str:
    return text.encode("utf-8", "backslashreplace").decode()


def _parquet(columns: Sequence[tuple[str, Any, Any]], plan: Plan) -> bytes:
    import pyarrow as pa
    import pyarrow.parquet as pq

    def arrow(kind: Any) -> Any:
        if not isinstance(kind, str):
            return kind
        if kind.startswith("list "):
            return pa.list_(pa.type_for_alias(kind.removeprefix("list ")))
        return pa.type_for_alias("string" if kind == "json" else kind)

    schema = pa.schema(
        [(name, arrow(kind)) for name, kind, _ in columns],
        metadata={"attnflow": json.dumps(plan.metadata, sort_keys=True, ensure_ascii=False)},
    )
    arrays = [
        pa.array(values, field.type) for field, (*_, values) in zip(schema, columns, strict=True)
    ]
    sink = pa.BufferOutputStream()
    # All options that affect the bytes are given, because pyarrow's defaults may change.
    pq.write_table(
        pa.Table.from_arrays(arrays, schema=schema),
        sink,
        version="2.6",
        data_page_version="1.0",
        compression="zstd",
        compression_level=3,
        use_dictionary=True,
        write_statistics=True,
        row_group_size=2**20,
    )
    return bytes(sink.getvalue().to_pybytes())
