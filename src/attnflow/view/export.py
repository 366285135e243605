"""Results as JSON and CSV."""

import csv
import io
import json
from collections.abc import Iterable, Sequence
from typing import Any

from attnflow.explanation import Explanation

__all__ = ["csv_text", "explanation_csv", "explanation_json"]


def explanation_json(explanation: Explanation) -> str:
    """Return an explanation, its trace included, as `Explanation.load` reads it.

    Args:
        explanation: The explanation.

    Returns:
        A JSON object with one line for each field, so that a person can find a field.
    """
    fields = (
        f"  {json.dumps(key)}: {json.dumps(value, ensure_ascii=False, allow_nan=False)}"
        for key, value in explanation.to_dict(trace=True).items()
    )
    return "{\n" + ",\n".join(fields) + "\n}\n"


def explanation_csv(explanation: Explanation) -> str:
    """Return the tokens of an explanation with their scores, one row each.

    Args:
        explanation: The explanation.

    Returns:
        The table of `Explanation.to_dataframe`.
    """
    columns = explanation.columns()
    return csv_text(list(columns), zip(*columns.values(), strict=True))


def csv_text(names: Sequence[str], rows: Iterable[Iterable[Any]]) -> str:
    r"""Return rows as comma-separated values.

    Args:
        names: The names of the columns.
        rows: The rows. None and NaN become an empty field, and booleans "true" and "false".

    Returns:
        The lines, with the names first.

    Example:
        >>> csv_text(["layer", "special", "mean"], [(1, True, float("nan"))])
        'layer,special,mean\r\n1,true,\r\n'
    """
    content = io.StringIO()
    writer = csv.writer(content)
    writer.writerow(names)
    writer.writerows([_field(value) for value in row] for row in rows)
    return content.getvalue()


def _field(value: Any) -> Any:
    if isinstance(value, bool):
        return str(value).lower()
    return "" if isinstance(value, float) and value != value else value
