"""A data set in the browser: one HTML file of its rows.

The file can be sent to others and opened years later. So it holds a part of a large data set, says
which, and stays small enough for a browser to open at once. A row whose attention was kept, and is
in the file, opens in the page of an explanation; the others show their scores.

`rows.js` chooses and orders rows, and `browse.js` shows them with the colours and words of the
page's modules.
"""

import base64
import json
import os
import shlex
import zlib
from collections.abc import Iterator, Mapping
from html import escape
from pathlib import Path
from typing import Any, Final

import numpy as np

from attnflow.checks import integer
from attnflow.dataset.attentions import Attentions, load_attentions
from attnflow.dataset.store import Finished, read_finished
from attnflow.dataset.table import RESULTS
from attnflow.errors import DataError, OptionError
from attnflow.explanation import Explanation
from attnflow.io.records import require_pyarrow
from attnflow.options import ANSWER_METHODS
from attnflow.tokens import Tokens, joined
from attnflow.view import page
from attnflow.view.captions import METHOD_NAMES
from attnflow.view.document import asset, data_element, direction, document
from attnflow.view.pieces import pieces
from attnflow.view.text import visible

__all__ = ["MOST_PAGES", "MOST_ROWS", "browse", "explain_row"]

MOST_ROWS: Final = 5_000
MOST_PAGES: Final = 50
# The largest size of the rows as JSON, of which the file has a quarter, and of the pages in it.
MOST_BYTES: Final = 48_000_000
MOST_PAGE_BYTES: Final = 16_000_000
# How many characters are shown of a value of another column, and of a text that failed.
MOST_VALUE: Final = 2_000


def browse(
    folder: str | os.PathLike[str],
    *,
    limit: int = MOST_ROWS,
    shuffle: int | None = None,
    pages: int = MOST_PAGES,
) -> str:
    """Return a page that browses the output of a run.

    Args:
        folder: The output.
        limit: The largest number of rows to show. If texts are long there are fewer, so that a
            browser can open the file at once. The page says how many.
        shuffle: A seed to choose rows at random. None takes the first rows.
        pages: How many rows open in the full page, where attentions were kept. They are the first
            rows shown.

    Returns:
        An HTML document that makes no network request.

    Raises:
        OptionError: If the folder is not the output of a run, or an option is not valid.
        DataError: If a file is damaged.
        MissingExtraError: If pyarrow is not installed.
    """
    require_pyarrow()
    integer(limit, "limit", least=1)
    integer(pages, "pages", least=0)
    integer(shuffle or 0, "shuffle", least=0)
    made = read_finished(folder)
    rows: list[dict[str, Any]] = []
    room = MOST_BYTES
    for record in _chosen(made, limit, shuffle):
        row = _row(record)
        room -= len(json.dumps(row))
        if rows and room < 0:
            break
        rows.append(row)
    data = _data(made, rows, shuffle, limit)
    packed_pages = (
        f'<script type="text/plain" id="attnflow-row-{number}">{packed}</script>'
        for number, packed in _full_pages(made, rows[:pages])
    )
    return document(
        title=data["title"],
        style=page.style() + asset("browse/browse.css"),
        main=f"""\
<main>
<div class="attnflow browse" data-theme="auto">
{_static(data, rows)}
</div>
</main>""",
        data="\n".join([data_element(data), *packed_pages]),
        script=asset("bundles/browse.js"),
    )


def explain_row(folder: str | os.PathLike[str], number: int) -> Explanation:
    """Return the explanation of one row, from the attention that was kept of it.

    Args:
        folder: The output of a run.
        number: The row's number.

    Returns:
        The explanation that the run made, with the trace that its page needs.

    Raises:
        OptionError: If there is no such row, or no attention was kept.
        DataError: If a file is damaged.
    """
    made = read_finished(folder)
    if not made.files("attentions"):
        raise OptionError(
            f"{os.fspath(folder)} has only scores, and the page of a row needs its attention; "
            "attnflow run --keep attentions stores it"
        )
    return _explained(made, load_attentions(folder), number)


def _explained(made: Finished, stored: Attentions, number: int) -> Explanation:
    """Explain a row as the run did."""
    text = stored.row(number)
    names = ["method", "layer", "receptive_field", "units", "special_tokens", "drop_sink"]
    if text.residual is None:
        names.append("residual")
    options = {name: made.header["options"][name] for name in names}
    # The position kept counts a learned sink, and the option does not.
    position = "auto" if text.position is None else text.position - text.sink
    return text.explain(**options, position=position)


# ---- Data of the page ----------------------------------------------------------------------------


def _chosen(made: Finished, limit: int, shuffle: int | None) -> Iterator[dict[str, Any]]:
    """Yield the records of the rows that are shown."""
    wanted = np.arange(made.rows)
    if shuffle is not None:
        wanted = np.random.default_rng(shuffle).permutation(wanted)
    wanted = np.sort(wanted[:limit])
    start = 0
    for number, path in made.files("data").items():
        end = start + made.shards[number]["rows"]
        here = wanted[(start <= wanted) & (wanted < end)] - start
        if here.size:
            yield from _table(path).take(here).to_pylist()
        start = end


def _errors(made: Finished, limit: int) -> Iterator[dict[str, Any]]:
    for path in made.files("errors").values():
        table = _table(path).slice(0, limit)
        limit -= len(table)
        for record in table.select(["row", "id", "place", "reason", "text"]).to_pylist():
            number = record.pop("row")
            # A row that cannot be read has no id.
            record["id"] = f"row {number}" if record["id"] is None else record["id"]
            yield {name: None if x is None else _shown(x) for name, x in record.items()}


def _table(path: Path) -> Any:
    import pyarrow
    import pyarrow.parquet

    try:
        with pyarrow.parquet.ParquetFile(path) as file:
            return file.read()
    except (OSError, pyarrow.ArrowException) as error:
        raise DataError(f"{path} cannot be read: {error}") from error


def _row(record: Mapping[str, Any]) -> dict[str, Any]:
    """Return what the page shows of a row."""
    try:
        lists = zip(
            *(record[name] for name in ("starts", "ends", "tokens", "scores", "special")),
            strict=True,
        )
        spans = tuple(None if first is None else (first, last) for first, last, *_ in lists)
        pair = record.get("pair")
        text, segments = (record["text"], ()) if pair is None else joined((record["text"], pair))
        shown = pieces(Tokens(text, record["tokens"], spans, record["special"], segments))
        scores = [float(f"{score:.4g}") for score in record["scores"]]
    except (KeyError, IndexError, TypeError, ValueError) as error:
        raise DataError(f"a row of the data set cannot be read: {error}") from error
    others = [name for name in record if name not in RESULTS or name == "rest"]
    probability = record["probability"]
    return {
        "row": record["row"],
        "id": _shown(record["id"]),
        "pieces": [
            [_plain(piece.text), list(piece.tokens), *([True] if piece.label else [])]
            for piece in shown
        ],
        "direction": direction(record["text"]),
        "scores": scores,
        "special": [i for i, special in enumerate(record["special"]) if special],
        "answer": None if record["predicted"] is None else _shown(record["predicted"]),
        "probability": None if probability is None else round(probability, 6),
        "saturation": record["saturation"],
        "target": None if record["target"] is None else _shown(record["target"]),
        # Data sets of older versions have no contributions.
        "contrast": None if record.get("contrast") is None else _shown(record["contrast"]),
        "value": record.get("value"),
        "bias": record.get("bias"),
        "layer": record["layer"],
        "position": record["position"],
        "notes": [_shown(note) for note in record["notes"]],
        "columns": [
            [_shown(name), _shown(record[name])] for name in others if record[name] is not None
        ],
    }


def _plain(text: str) -> str:
    # Nearly every word is printable, and then nothing in it must be made visible.
    return text if text.isprintable() else visible(text)


def _shown(value: Any) -> str:
    text = value if isinstance(value, str) else str(value)
    return visible(text[:MOST_VALUE], line_breaks=False)


def _full_pages(made: Finished, rows: list[dict[str, Any]]) -> Iterator[tuple[int, str]]:
    """Yield the rows whose attention was kept, with their pages' data, while there is room."""
    if not rows or not made.files("attentions"):
        return
    stored = load_attentions(made.folder)
    there, room = set(stored.rows), MOST_PAGE_BYTES
    for row in rows:
        if row["row"] not in there:
            continue
        packed = _packed(page.data(_explained(made, stored, row["row"])))
        room -= len(packed)
        if room < 0:
            return
        yield row["row"], packed


def _packed(value: Any) -> str:
    text = json.dumps(value, ensure_ascii=False, allow_nan=False, separators=(",", ":"))
    return base64.b64encode(zlib.compress(text.encode(), 6)).decode("ascii")


def _data(
    made: Finished, rows: list[dict[str, Any]], shuffle: int | None, limit: int
) -> dict[str, Any]:
    header = made.header
    options = header["options"]
    name = _shown(Path(str(header["source"]["name"])).name or "data set")
    method = METHOD_NAMES[options["method"]]
    layer = "last layer" if options["layer"] == -1 else f"layer {options['layer']}"
    if options["method"] in ANSWER_METHODS:
        layer = "what each token adds to the answer"
    model = _shown(str(header["model"]))
    folder = shlex.quote(str(made.folder))
    part = []
    if not made.complete:
        part.append("The run is not finished. The page shows the rows done when it was made.")
    if len(rows) < made.rows:
        which = "The first" if shuffle is None else "A random sample:"
        part.append(f"{which} {len(rows):,} of {made.rows:,} rows are here, and are searched.")
        if len(rows) == limit:
            part[-1] += f" `attnflow view {folder} --limit {made.rows}` takes more."
        else:
            part[-1] += " With more rows the file would be slow to open."
        if shuffle is None:
            part[-1] += f" `attnflow view {folder} --shuffle 0` takes some at random."
    hint = [
        "The data set has only scores. With `attnflow run --keep attentions`, a row can be opened "
        "with every method, layer and position."
    ]
    if made.files("attentions"):
        # The script puts the number of the row between the two.
        command = f"`attnflow view {folder} --row "
        hint = [f"Its attention is kept, but not in this file: {command}"]
        hint.append("` shows every method, layer and position.")
    return {
        "name": name,
        "title": f"{name}: {method}",
        "subtitle": f"{made.rows:,} rows explained · {method}, {layer} · {model}",
        "part": part,
        "method": options["method"],
        "named": options["id_column"] is not None,
        "total": made.rows,
        "failed": made.failed,
        "errors": list(_errors(made, limit)),
        "about": [
            ["Model", model],
            ["Task", _shown(header["task"])],
            ["Fingerprint", _shown(header["fingerprint"])],
            ["Source", name],
            *(
                [_shown(name.replace("_", " ")), _shown(_option(value))]
                for name, value in options.items()
                if value is not None and value != []
            ),
            ["Made by", f"attnflow {_shown(header['attnflow'])}"],
        ],
        "hint": hint,
        "rows": _packed(rows),
    }


def _option(value: Any) -> str:
    if isinstance(value, list):
        return ", ".join(map(_option, value))
    return value if isinstance(value, str) else json.dumps(value, default=str)


def _static(data: Mapping[str, Any], rows: list[dict[str, Any]]) -> str:
    """Return what is shown where scripts do not run."""
    lines = ["".join(text for text, *_ in row["pieces"]) for row in rows[:20]]
    items = "\n".join(f'<li dir="auto">{escape(line[:MOST_VALUE])}</li>' for line in lines)
    return (
        f"<h1>{escape(data['name'])}</h1>\n<p>{escape(data['subtitle'])}</p>\n"
        f"<p>This page needs scripts to show all rows. The first rows:</p>\n<ul>\n{items}\n</ul>"
    )
