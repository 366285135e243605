"""Results as JSON, as CSV, and as data frames of pandas."""

import importlib
import io
import json
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from attnflow.errors import MissingExtraError
from attnflow.evaluate import Evaluation, Statistics
from attnflow.explanation import Explanation
from attnflow.generation import Generation


def explanation_json(explanation: Explanation) -> str:
    """Return an explanation, its trace included, as `Explanation.load` reads it.

    Args:
        explanation: The explanation.

    Returns:
        A JSON object with one line for each field, so that a person can find a field.
    """
    return _by_line(explanation.to_dict(trace=True))


def generation_json(generation: Generation) -> str:
    """Return a generation, with the trace of the whole, as `Generation.load` reads it."""
    return _by_line(generation.to_dict(trace=True))


def _by_line(data: Mapping[str, Any]) -> str:
    fields = (
        f"  {json.dumps(key)}: {json.dumps(value, ensure_ascii=False, allow_nan=False)}"
        for key, value in data.items()
    )
    return "{\n" + ",\n".join(fields) + "\n}\n"


def json_text(result: Evaluation | Statistics) -> str:
    """Return an evaluation or statistics as JSON.

    Args:
        result: The evaluation or the statistics.

    Returns:
        The JSON of its `to_dict`.
    """
    return json.dumps(result.to_dict(), ensure_ascii=False, allow_nan=False, indent=1) + "\n"


def table_csv(result: Explanation | Generation) -> str:
    """Return the scores of an explanation, or of every token of a generation, one row each.

    Args:
        result: The explanation or generation.

    Returns:
        The table of its `to_dataframe`.
    """
    columns = result.columns()
    return csv_text(list(columns), zip(*columns.values(), strict=True))


def evaluation_csv(evaluation: Evaluation, *, per_text: bool = False) -> str:
    """Return the correlations of an evaluation.

    Args:
        evaluation: The evaluation.
        per_text: Whether there is a row for every text, instead of the mean over texts.

    Returns:
        The table of `Evaluation.to_dataframe`.
    """
    records = list(evaluation.records(per_text=per_text))
    return csv_text(list(records[0]), (record.values() for record in records))


def statistics_csv(statistics: Statistics) -> str:
    """Return the means of statistics.

    Args:
        statistics: The statistics.

    Returns:
        The table of `Statistics.summary`, with the ends of intervals as "low" and "high".
    """
    names = ["what", "measure", "with", "special_tokens", "mean", "std", "low", "high"]
    names += ["count", "undefined"]
    rows = ({**row, "low": row["ci"][0], "high": row["ci"][1]} for row in statistics.summary())
    return csv_text(names, ([row[name] for name in names] for row in rows))


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
    import csv

    content = io.StringIO()
    writer = csv.writer(content)
    writer.writerow(names)
    writer.writerows([_field(value) for value in row] for row in rows)
    return content.getvalue()


def table_frame(result: Explanation | Generation) -> Any:
    """Return what `Explanation.to_dataframe` and `Generation.to_dataframe` return.

    Args:
        result: The explanation or generation.

    Returns:
        A `pandas.DataFrame`.

    Raises:
        MissingExtraError: If pandas is not installed.
    """
    return _frame(result.columns(), {"start": "Int64", "end": "Int64"})


def evaluation_frame(evaluation: Evaluation, *, per_text: bool = False) -> Any:
    """Return what `Evaluation.to_dataframe` returns.

    Args:
        evaluation: The evaluation.
        per_text: Whether there is a row for every text, instead of the mean over texts.

    Returns:
        A `pandas.DataFrame`.

    Raises:
        MissingExtraError: If pandas is not installed.
    """
    records = list(evaluation.records(per_text=per_text))
    columns = {name: [record[name] for record in records] for name in records[0]}
    return _frame(columns, {"layer": "Int64", "receptive_field": "boolean"})


def _frame(columns: Mapping[str, Sequence[Any]], types: Mapping[str, str]) -> Any:
    """Return columns as a data frame. `types` names the type of those that may lack values."""
    try:
        # Through importlib: pandas is not needed to check the types.
        pandas = importlib.import_module("pandas")
    except ImportError as error:
        raise MissingExtraError(
            "to_dataframe needs pandas, which is not installed; run: pip install pandas"
        ) from error
    return pandas.DataFrame(
        {
            name: pandas.array(values, dtype=types[name]) if name in types else values
            for name, values in columns.items()
        }
    )


def _field(value: Any) -> Any:
    if isinstance(value, bool):
        return str(value).lower()
    return "" if isinstance(value, float) and value != value else value
