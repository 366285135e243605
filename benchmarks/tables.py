"""Tables of measurements, and how their numbers are written."""

from __future__ import annotations

import math
from typing import Any

Record = dict[str, Any]
"""An object of JSON, or a row of a table: values by the names of their columns.

The name of a number says what it is: "_seconds" is a time, "_bytes" is memory, "_over_" a ratio.
"""


def rows(document: Record, job: str, *names: str) -> list[Record]:
    """Return the records of a job, with the parts of their names.

    Args:
        document: The results of a run.
        job: The first part of the names.
        names: How to call the other parts.

    Example:
        >>> rows({"measurements": {"flow/real/16": {"edges": 9}}}, "flow", "kind", "tokens")
        [{'kind': 'real', 'tokens': '16', 'edges': 9}]
    """
    found = []
    for name, record in document["measurements"].items():
        first, *parts = name.split("/")
        if first == job:
            found.append({**dict(zip(names, parts, strict=False)), **record})
    return found


def cells(table: list[Record]) -> list[list[str]]:
    """Return the cells of a table as text, the names of its columns first."""
    names = [
        name.removesuffix("_seconds").removesuffix("_bytes").replace("_", " ") for name in table[0]
    ]
    return [names, *([_cell(*item) for item in row.items()] for row in table)]


def _cell(name: str, value: Any) -> str:
    if value is None:
        return "-"
    if name.endswith("_seconds"):
        return duration(value)
    if name.endswith("_bytes"):
        return f"{number(value / 2**20)} MiB"
    if "_over_" in name:
        return times(value)
    if isinstance(value, float):
        return number(value)
    return f"{value:,}" if isinstance(value, int) else str(value)


def plain(table: list[Record]) -> str:
    """Return a table as aligned text.

    Example:
        >>> print(plain([{"n": 16, "one_seconds": 3e-6}, {"n": 128, "one_seconds": 2e-5}]))
        n    one
        16   3.00 us
        128  20.0 us
    """
    lines = cells(table)
    widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
    return "\n".join(
        "  ".join(cell.ljust(width) for cell, width in zip(line, widths, strict=True)).rstrip()
        for line in lines
    )


def markdown(table: list[Record]) -> str:
    """Return a table as Markdown, or "None." if it has no rows."""
    if not table:
        return "None."
    columns, *lines = cells(table)
    lines = [columns, ["---"] * len(columns), *lines]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def number(value: float) -> str:
    """Return a number with three significant digits.

    Example:
        >>> number(0.012345), number(1234.5)
        ('0.0123', '1,230')
    """
    if value == 0 or not math.isfinite(value):
        return f"{value:g}"
    digits = 2 - math.floor(math.log10(abs(value)))
    return f"{round(value, digits):,.{max(0, digits)}f}"


def duration(seconds: float) -> str:
    """Return a time with its unit.

    Example:
        >>> duration(0.0021), duration(75)
        ('2.10 ms', '75.0 s')
    """
    for factor, unit in ((1.0, "s"), (1e-3, "ms")):
        if abs(seconds) >= 0.9995 * factor:
            return f"{number(seconds / factor)} {unit}"
    return f"{number(seconds * 1e6)} us"


def times(ratio: float) -> str:
    """Return a ratio, such as '2.50x'."""
    return f"{number(ratio)}x"


def target(
    name: str, sign: str, aim: float, unit: str, value: float | None, note: str = ""
) -> Record:
    """Return a row of a table of targets.

    Args:
        name: What is measured.
        sign: ">=", "<=" or "<".
        aim: What the project aims at.
        unit: The unit of both numbers.
        value: The number that was measured; None if it was not.
        note: A remark, or an empty string.

    Example:
        >>> target("two threads over one", ">=", 1.7, "x", 1.9)["result"]
        'met'
    """
    measured, result = "-", "not measured"
    if value is not None:
        measured = f"{number(value)}{unit}"
        met = value >= aim if sign == ">=" else value < aim or (sign == "<=" and value == aim)
        result = "met" if met else "not met"
    wanted = f"{sign} {aim:g}{unit}"
    return {"what": name, "target": wanted, "measured": measured, "result": result, "note": note}
