"""A data set in the browser: one HTML file of its rows, which needs no network and no server.

A file can be sent to somebody, kept, and opened in years. So it holds a part of a large data set,
says which, and never grows beyond what a browser opens at once. A row whose attention was kept, and
comes along, opens in the page of an explanation; the others show their scores.

`rows.js` chooses and orders rows, and `browse.js` shows them; both come after the modules of the
page, whose colours and words they share.
"""

import base64
import json
import os
import shlex
import zlib
from collections.abc import Iterator, Mapping
from functools import cache
from html import escape
from importlib.resources import files
from pathlib import Path
from string import Template
from typing import Any, Final

import numpy as np

from attnflow.dataset.attentions import Attentions, load_attentions
from attnflow.dataset.shard import RESULTS
from attnflow.dataset.source import require_pyarrow
from attnflow.dataset.store import Finished, read_finished
from attnflow.errors import DataError, OptionError
from attnflow.explanation import Explanation
from attnflow.view import page
from attnflow.view.captions import METHOD_NAMES
from attnflow.view.pieces import pieces
from attnflow.view.text import visible

__all__ = ["MOST_PAGES", "MOST_ROWS", "browse", "explain_row"]

MODULES: Final = ("rows.js", "browse.js")
MOST_ROWS: Final = 5_000
MOST_PAGES: Final = 50
# What the rows may take as JSON, a quarter of which is in the file; and what pages take there.
MOST_BYTES: Final = 48_000_000
MOST_PAGE_BYTES: Final = 16_000_000
# Of a value of another column, and of a text that failed, this many characters are shown.
MOST_VALUE: Final = 2_000

# The last of the script: it shows the data that is in the file.
START: Final = """
browse(
  document.querySelector(".browse"),
  JSON.parse(document.getElementById("attnflow-data").textContent),
).catch((error) => {
  document.querySelector(".browse").append(`This page cannot be shown: ${error.message}`);
});
"""


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
        limit: How many rows to show at most. Fewer come along where texts are long, so that the
            file stays one that a browser opens at once; it says how many.
        shuffle: A seed: the rows are taken at random. None takes the first.
        pages: How many rows open in the full page, where attentions were kept. They are the first
            of those shown.

    Returns:
        An HTML document that asks the network for nothing.

    Raises:
        OptionError: If it is not the output of a run, or an option is not valid.
        DataError: If a file is damaged.
        MissingExtraError: If pyarrow is not installed.
    """
    require_pyarrow()
    seed = 0 if shuffle is None else shuffle
    for name, value, least in (("limit", limit, 1), ("pages", pages, 0), ("shuffle", seed, 0)):
        if isinstance(value, bool) or not isinstance(value, int) or value < least:
            raise OptionError(f"{name} is {value!r}; expected a whole number of {least} or more")
    made = read_finished(folder)
    rows: list[dict[str, Any]] = []
    room = MOST_BYTES
    for record in _chosen(made, limit, shuffle):
        row = _row(record)
        room -= len(json.dumps(row))
        if rows and room < 0:
            break
        rows.append(row)
    errors = list(_errors(made, limit))
    full = dict(_full_pages(made, rows[:pages]))
    data = _data(made, rows, errors, shuffle, limit)
    code = "\n".join([page.script(), *(page.inlined(_read(name)) for name in MODULES), START])
    rules = page.style() + _read("browse.css")
    parts = [
        f'<script type="application/json" id="attnflow-data">{page._for_script(data)}</script>',
        *(
            f'<script type="text/plain" id="attnflow-row-{number}">{packed}</script>'
            for number, packed in full.items()
        ),
    ]
    return Template(_read("browse.html")).substitute(
        policy=(
            f"default-src 'none'; script-src '{page._hash(code)}'; "
            f"style-src '{page._hash(rules)}'; base-uri 'none'; form-action 'none'"
        ),
        title=escape(data["title"]),
        style=rules,
        static=_static(data, rows),
        data="\n".join(parts),
        script=code,
    )


def explain_row(folder: str | os.PathLike[str], number: int) -> Explanation:
    """Return the explanation of one row, from the attention that was kept of it.

    Args:
        folder: The output of a run.
        number: The row's number.

    Returns:
        The explanation that the run made, with all that its page needs.

    Raises:
        OptionError: If there is no such row, or no attention was kept.
        DataError: If a file is damaged.
    """
    made = read_finished(folder)
    if not made.files("attentions"):
        raise OptionError(
            f"{os.fspath(folder)} has scores only, and --row shows what is behind them; attnflow "
            "run --keep attentions stores that"
        )
    return _explained(made, load_attentions(folder), number)


def _explained(made: Finished, stored: Attentions, number: int) -> Explanation:
    """Explain a row as the run did."""
    names = ("method", "layer", "receptive_field", "units", "special_tokens", "drop_sink")
    options = {name: made.header["options"][name] for name in names}
    text = stored.row(number)
    if text.residual is None:
        options["residual"] = made.header["options"]["residual"]
    position = "auto" if text.position is None else text.position
    return text.explain(**options, position=position)


# ---- What the page is given ----------------------------------------------------------------------


def _chosen(made: Finished, limit: int, shuffle: int | None) -> Iterator[dict[str, Any]]:
    """Yield the records of the rows that are shown."""
    places: dict[int, list[int]] = {}
    if shuffle is not None:
        order = np.random.default_rng(shuffle).permutation(made.rows)[:limit]
        starts = np.cumsum([0, *(shard["rows"] for shard in made.shards.values())])
        numbers = list(made.shards)
        for index in np.sort(order):
            shard = int(np.searchsorted(starts, index, side="right")) - 1
            places.setdefault(numbers[shard], []).append(int(index - starts[shard]))
    left = limit
    for number, path in made.files("data").items():
        if left <= 0 or (shuffle is not None and number not in places):
            continue
        table = _table(path)
        table = table.slice(0, left) if shuffle is None else table.take(places[number])
        left -= len(table)
        yield from table.to_pylist()


def _errors(made: Finished, limit: int) -> Iterator[dict[str, Any]]:
    left = limit
    for path in made.files("errors").values():
        if left <= 0:
            return
        table = _table(path).slice(0, left)
        left -= len(table)
        for record in table.select(["row", "id", "place", "reason", "text"]).to_pylist():
            number = record.pop("row")
            # What cannot be read has no id.
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
        spans = [
            None if start is None else (start, end)
            for start, end in zip(record["starts"], record["ends"], strict=True)
        ]
        # The text is divided as everywhere; layers and method have no part in it.
        explanation = Explanation(
            tokens=record["tokens"],
            scores=record["scores"],
            layer_scores=[record["scores"]],
            method="raw",
            layer=1,
            position=0,
            text=record["text"],
            spans=spans,
            special=record["special"],
            model="",
            task="",
        )
    except (KeyError, TypeError, ValueError) as error:
        raise DataError(f"a row of the data set cannot be read: {error}") from error
    others = [name for name in record if name not in RESULTS or name == "rest"]
    probability = record["probability"]
    return {
        "row": record["row"],
        "id": _shown(record["id"]),
        "pieces": [[_plain(piece.text), list(piece.tokens)] for piece in pieces(explanation)],
        "direction": page._direction(record["text"]),
        "scores": [float(f"{score:.4g}") for score in record["scores"]],
        "special": [i for i, special in enumerate(record["special"]) if special],
        "answer": None if record["predicted"] is None else _shown(record["predicted"]),
        "probability": None if probability is None else round(probability, 6),
        "saturation": record["saturation"],
        "target": None if record["target"] is None else _shown(record["target"]),
        "layer": record["layer"],
        "position": record["position"],
        "notes": [_shown(note) for note in record["notes"]],
        "columns": [
            [_shown(name), _shown(record[name])] for name in others if record[name] is not None
        ],
    }


def _plain(text: str) -> str:
    # What can be printed has nothing that must be made visible, and that is nearly every word.
    return text if text.isprintable() else visible(text)


def _shown(value: Any) -> str:
    text = value if isinstance(value, str) else str(value)
    return visible(text[:MOST_VALUE], line_breaks=False)


def _full_pages(made: Finished, rows: list[dict[str, Any]]) -> Iterator[tuple[int, str]]:
    """Yield rows whose attention was kept, with their pages' data, as far as there is room."""
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
    made: Finished,
    rows: list[dict[str, Any]],
    errors: list[dict[str, Any]],
    shuffle: int | None,
    limit: int,
) -> dict[str, Any]:
    header = made.header
    options = header["options"]
    source = Path(str(header["source"]["name"])).name or "data set"
    name = _shown(source)
    method = METHOD_NAMES[options["method"]]
    layer = options["layer"]
    folder = shlex.quote(str(made.folder))
    part = []
    if not made.complete:
        part.append("The run is not finished. This is what there was when this page was made.")
    if len(rows) < made.rows:
        which = "The first" if shuffle is None else "At random"
        more = f" `attnflow view {folder} --limit {made.rows}` takes more." * (len(rows) == limit)
        size = " More would make a file that is slow to open." * (len(rows) < limit)
        some = f" `attnflow view {folder} --shuffle 0` takes some at random." * (shuffle is None)
        part.append(
            f"{which} {len(rows):,} of {made.rows:,} rows are here, and are searched.{more}{size}"
            f"{some}"
        )
    layer_name = "last layer" if layer == -1 else f"layer {layer}"
    model = "/".join(str(header["model"]).replace("\\", "/").rstrip("/").split("/")[-2:])
    return {
        "name": name,
        "title": f"{name}: {method}",
        "subtitle": f"{made.rows:,} rows explained · {method}, {layer_name} · {_shown(model)}",
        "part": part,
        "method": options["method"],
        "named": options["id_column"] is not None,
        "total": made.rows,
        "failed": made.failed,
        "errors": errors,
        "about": [
            ["Model", _shown(model)],
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
        # The number of a row goes in between.
        "hint": [
            f"Its attention is kept, but not in this file: `attnflow view {folder} --row ",
            "` shows it by every method, in every layer and for every position.",
        ]
        if made.files("attentions")
        else [
            "The data set has the scores alone. With `attnflow run --keep attentions`, a row can "
            "be looked at by every method, in every layer and for every position."
        ],
        "rows": _packed(rows),
    }


def _option(value: Any) -> str:
    if isinstance(value, list):
        return ", ".join(_option(item) for item in value)
    return value if isinstance(value, str) else json.dumps(value, default=str)


def _static(data: Mapping[str, Any], rows: list[dict[str, Any]]) -> str:
    """Return what is seen where scripts do not run."""
    lines = ["".join(text for text, _ in row["pieces"]) for row in rows[:20]]
    blocks = [
        f"<h1>{escape(data['name'])}</h1>",
        f"<p>{escape(data['subtitle'])}</p>",
        "<p>This page needs scripts to show the rows. The first of them:</p>",
        "<ul>",
        *(f'<li dir="auto">{escape(line[:MOST_VALUE])}</li>' for line in lines),
        "</ul>",
    ]
    return "\n".join(blocks)


@cache
def _read(name: str) -> str:
    return files(__name__).joinpath(name).read_text(encoding="utf-8")
