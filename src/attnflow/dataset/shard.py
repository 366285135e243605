"""From the rows of a shard to the bytes of its files.

What comes out depends on the rows, the model and the options, and on nothing else: not on which
process makes the shard, on what ran before, or on how many run at once.
"""

from __future__ import annotations

import json
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from functools import cache, partial
from typing import Any, Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from attnflow.checks import resolve_index
from attnflow.dataset.attentions import Kept, attentions_file, keep_attention
from attnflow.dataset.local import cpus
from attnflow.dataset.source import Column, Row
from attnflow.errors import AttnflowError, DataError, OptionError, TextError
from attnflow.explain import Answer
from attnflow.explanation import Prediction
from attnflow.io.records import has_surrogates
from attnflow.models import Explainer
from attnflow.models.adapter import BATCH_POSITIONS, Encoded, Ran
from attnflow.models.text import TextAdapter
from attnflow.options import OPTIONS, Options
from attnflow.scoring import Scored, finish
from attnflow.tokens import Tokens

__all__ = ["Plan", "Shard", "batch_positions", "check_plan", "make_shard"]

# Of the memory that is granted, a batch may take this share: the scores of one are computed while
# the next one runs, and the rows and results of the shard need room too.
_SHARE_OF_A_BATCH: Final = 3
# The attention of a batch of so many positions, and what is computed from it, stays in the cache of
# a CPU.
_CPU_POSITIONS: Final = 2048
# How many batches may wait to be scored.
_WAITING: Final = 1

RESULTS: Final = (
    "row",
    "id",
    "text",
    "tokens",
    "scores",
    "special",
    "starts",
    "ends",
    "layer",
    "position",
    "target",
    "predicted",
    "probability",
    "saturation",
    "notes",
    "rest",
)
"""The columns that attnflow writes; one of the source with such a name gets a prefix."""


class Plan(NamedTuple):
    """What is done with every row.

    Attributes:
        options: The options of `Explainer.explain`.
        text_column: The column that has the text.
        id_column: The column that names a row, or None.
        id_type: Its type, as in `Column`.
        carried: The columns that are carried through.
        keeps_rest: Whether there is a column "rest" for what no other column takes.
        memory: How many bytes the batches may take.
        metadata: What the metadata of the files say.
        keep: The type that attention is kept in, "float16" or "float32"; None keeps none.
    """

    options: dict[str, Any]
    text_column: str
    id_column: str | None
    id_type: Any
    carried: tuple[Column, ...]
    keeps_rest: bool
    memory: int
    metadata: dict[str, Any]
    keep: str | None = None


class Found(NamedTuple):
    """What is stored of a text's explanation; as in `Explanation`."""

    tokens: Tokens
    scores: NDArray[np.float64]
    layer: int
    position: int
    target: str | None
    prediction: Prediction | None
    saturation: float | None
    notes: tuple[str, ...]


class Shard(NamedTuple):
    """What became of some rows.

    Attributes:
        data: The Parquet file of the explanations.
        errors: The Parquet file of the rows that failed; None if none did.
        rows: How many rows were explained.
        failed: How many failed.
        first_error: Where the first one that failed stands, and why it did.
        attentions: The safetensors file of their attention; None if there is none.
    """

    data: bytes
    errors: bytes | None
    rows: int
    failed: int
    first_error: str | None
    attentions: bytes | None = None


def check_plan(explainer: Explainer, options: Mapping[str, Any]) -> dict[str, Any]:
    """Return all options of `Explainer.explain`, checked as far as they can be without a text.

    Args:
        explainer: The model.
        options: Those that are given.

    Raises:
        OptionError: If one is not valid for this model, or the model does not read text.
    """
    chosen = Options(**options)
    for option in OPTIONS:
        if not option.in_data_sets and chosen[option.name] != option.default:
            raise OptionError(
                f"{option.name}={chosen[option.name]!r} is for single texts; a data set stores "
                "scores"
            )
    if not explainer.adapter.in_data_sets:
        raise OptionError(
            f"a data set of texts needs a model that reads text, and this one is for "
            f"{explainer.task}"
        )
    explainer.adapter.check(chosen)
    return chosen.to_dict()


def make_shard(explainer: Explainer, rows: list[Row], plan: Plan) -> Shard:
    """Explain rows and return the files of their shard.

    Args:
        explainer: The model.
        rows: The rows.
        plan: What to do with them.

    Returns:
        The shard. A row that fails is in its table of errors.
    """
    failed: dict[int, str] = {}
    texts: dict[int, str] = {}
    kept: dict[int, Kept] = {}
    for index, row in enumerate(rows):
        text = row.values.get(plan.text_column)
        reason = row.fault
        if reason is None and plan.id_column is not None and _id(row, plan) is None:
            reason = f"there is no {plan.id_column!r} of type {plan.id_type}"
        if reason is None and plan.text_column not in row.values:
            reason = f"there is no {plan.text_column!r}"
        if reason is None and isinstance(text, str) and has_surrogates(text):
            reason = "the text has half characters, which are not UTF-8 text"
        if reason is None and not isinstance(text, str):
            reason = f"the text is {type(text).__name__}; expected a string"
        if reason is None:
            texts[index] = str(text)
        else:
            failed[index] = reason
    found = dict(_explain(explainer, texts, plan, failed, kept))
    done = [(rows[index], found[index]) for index in sorted(found)]
    wrong = [(rows[index], failed[index]) for index in sorted(failed)]
    return Shard(
        _data_file(done, plan),
        _errors_file(wrong, plan) if wrong else None,
        len(done),
        len(wrong),
        f"{wrong[0][0].place}: {wrong[0][1]}" if wrong else None,
        None if plan.keep is None else _attentions_file(rows, kept, plan),
    )


# ---- Explaining ----------------------------------------------------------------------------------


class _Batch(NamedTuple):
    """Texts that ran together: their indices, what was read, where, and what came out."""

    indices: list[int]
    texts: list[Encoded]
    places: list[int | None]
    ran: Ran


def _explain(
    explainer: Explainer,
    texts: dict[int, str],
    plan: Plan,
    failed: dict[int, str],
    kept: dict[int, Kept],
) -> Iterator[tuple[int, Found]]:
    options = Options(**plan.options)
    adapter = explainer.adapter
    encoded: dict[int, Encoded] = {}
    places: dict[int, int | None] = {}
    bytes_of = cache(partial(_bytes_of, explainer))
    read = adapter.read_many(list(texts.values()), options.truncate)
    for index, text in zip(texts, read, strict=True):
        try:
            if isinstance(text, AttnflowError):
                raise text
            _check_size(len(text.tokens), bytes_of, plan)
            places[index] = adapter.position(text, options.position, None)
            encoded[index] = text
        except AttnflowError as error:
            failed[index] = str(error)
    lengths = {index: len(text.tokens) for index, text in encoded.items()}
    _check_room(explainer, list(lengths.values()), plan)
    batches = (
        part
        for batch in _batches(lengths, batch_positions(explainer), bytes_of, plan)
        for part in _run(
            explainer,
            batch,
            [encoded[index] for index in batch],
            [places[index] for index in batch],
            options,
            failed,
        )
    )
    if explainer.model.device.type == "cpu":
        for ran in batches:
            yield from _sorted_out(_score(explainer, ran, plan, kept), failed)
        return
    # A model that runs elsewhere leaves the CPUs to the scores.
    with ThreadPoolExecutor(max(1, cpus() - 1), "attnflow-scores") as pool:
        waiting: deque[Future[list[tuple[int, Found | str]]]] = deque()
        for ran in batches:
            waiting.append(pool.submit(_score, explainer, ran, plan, kept))
            del ran
            while len(waiting) > _WAITING:
                yield from _sorted_out(waiting.popleft().result(), failed)
        while waiting:
            yield from _sorted_out(waiting.popleft().result(), failed)


def _run(
    explainer: Explainer,
    indices: list[int],
    texts: list[Encoded],
    places: list[int | None],
    options: Options,
    failed: dict[int, str],
) -> Iterator[_Batch]:
    """Run the model; where a batch fails, run its texts one by one, and note which fail."""
    positions = [
        [len(text.tokens) - 1 if place is None else place]
        for text, place in zip(texts, places, strict=True)
    ]
    try:
        ran = explainer.adapter.run(texts, positions, options)
    except MemoryError:
        raise
    except Exception as error:  # whatever a model makes of a text, the others go on
        if len(indices) == 1:
            failed[indices[0]] = _reason(error)
            return
    else:
        yield _Batch(indices, texts, places, ran)
        return
    for index, text, place in zip(indices, texts, places, strict=True):
        yield from _run(explainer, [index], [text], [place], options, failed)


def _reason(error: Exception) -> str:
    if isinstance(error, AttnflowError):
        return str(error)
    return f"the model failed: {type(error).__name__}: {error}"


def _score(
    explainer: Explainer, batch: _Batch, plan: Plan, kept: dict[int, Kept]
) -> list[tuple[int, Found | str]]:
    """Return what was found of each text of a batch, or why nothing was; keep its attention."""
    options = Options(**plan.options)
    adapter = explainer.adapter
    found: list[Found | str]
    try:
        found = [*_score_together(explainer, batch, options)]
    except AttnflowError:
        # One of them has invalid attention. Scored one by one, its own error says what is wrong.
        found = [_score_one(explainer, batch, row, options) for row in range(len(batch.texts))]
    results = []
    for row, (index, text, result) in enumerate(
        zip(batch.indices, batch.texts, found, strict=True)
    ):
        results.append((index, result))
        if plan.keep is not None and not isinstance(result, str):
            if not isinstance(adapter, TextAdapter):
                raise OptionError(f"attention is not kept of models for {explainer.task}")
            kept[index] = keep_attention(
                adapter,
                adapter.graph(batch.ran.captured, row, text, options),
                text,
                {
                    "position": result.position,
                    "prediction": result.prediction,
                    "target": result.target,
                },
                plan.keep,
            )
    return results


def _score_together(explainer: Explainer, batch: _Batch, options: Options) -> list[Found]:
    """Score a batch at once, where its kind of input allows it."""
    adapter = explainer.adapter
    together = adapter.batch(batch.ran.captured, batch.texts, options)
    if together is None:
        return [_scored(explainer, batch, row, options) for row in range(len(batch.texts))]
    depth = len(batch.ran.captured.layers)
    layer = resolve_index(options.layer, depth, "layer", "layers", first=1)
    positions = [
        (adapter.position(text, options.position, causal) or 0) if place is None else place
        for text, place, causal in zip(batch.texts, batch.places, together.causal, strict=True)
    ]
    scored = together.score(options, layer, positions, explainer.uniform)
    return [
        _found(text, one, 0, layer, adapter.answer(batch.ran, row)[0], options)
        for row, (text, one) in enumerate(zip(batch.texts, scored, strict=True))
    ]


def _score_one(explainer: Explainer, batch: _Batch, row: int, options: Options) -> Found | str:
    try:
        return _scored(explainer, batch, row, options)
    except AttnflowError as error:
        return str(error)


def _scored(explainer: Explainer, batch: _Batch, row: int, options: Options) -> Found:
    """Score one text of a batch by its own graph."""
    adapter, text, place = explainer.adapter, batch.texts[row], batch.places[row]
    scorer = explainer.scorer(batch.ran, row, text, options, num_threads=1)
    layer = resolve_index(options.layer, scorer.depth, "layer", "layers", first=1)
    if place is None:
        place = adapter.position(text, options.position, scorer.graph.causal) or 0
    [scored] = scorer.score(options, layer, [text.node(place)])
    answer = adapter.answer(batch.ran, row)[0]
    return _found(text, scored, layer - 1, layer, answer, options)


def _found(
    text: Encoded, scored: Scored, row: int, layer: int, answer: Answer, options: Options
) -> Found:
    finished = finish(text.tokens, scored, row, layer, options)
    return Found(
        finished.tokens,
        finished.layer_scores[row],
        layer,
        scored.position,
        answer.target,
        answer.prediction,
        scored.saturation,
        finished.notes,
    )


def _sorted_out(
    results: list[tuple[int, Found | str]], failed: dict[int, str]
) -> Iterator[tuple[int, Found]]:
    for index, result in results:
        if isinstance(result, str):
            failed[index] = result
        else:
            yield index, result


def _check_size(tokens: int, bytes_of: Callable[[int], int], plan: Plan) -> None:
    needed = bytes_of(tokens)
    if needed > plan.memory:
        raise TextError(
            f"the text has {tokens} tokens, which take about {needed / 2**20:.0f} MiB, and memory "
            f"is {plan.memory / 2**20:.0f}"
        )


def _check_room(explainer: Explainer, lengths: list[int], plan: Plan) -> None:
    """See that the attention that a shard keeps fits into the memory that is granted."""
    if plan.keep is None:
        return
    layers = getattr(explainer.model.config, "num_hidden_layers", None)
    layers = layers if isinstance(layers, int) else 12
    width = int(plan.keep.removeprefix("float")) // 8
    needed = sum(layers * tokens * tokens * width for tokens in lengths)
    if needed > plan.memory:
        raise DataError(
            f"the attention of {len(lengths)} rows, which make a shard, takes "
            f"{needed / 2**20:.0f} MiB, and memory is {plan.memory / 2**20:.0f}. The shards that "
            "are finished stay: the same command with more memory goes on from there; fewer rows a "
            "shard need another output"
        )


def batch_positions(explainer: Explainer) -> int:
    """Return how many positions, padded ones included, go through a model together."""
    on_cpu = explainer.model.device.type == "cpu"
    return _CPU_POSITIONS if on_cpu else BATCH_POSITIONS


def _batches(
    lengths: dict[int, int], positions: int, bytes_of: Callable[[int], int], plan: Plan
) -> Iterator[list[int]]:
    """Yield the indices of texts that run together: of similar length, the short ones first."""
    batch: list[int] = []
    for tokens, index in sorted((tokens, index) for index, tokens in lengths.items()):
        count = len(batch) + 1
        if batch and (
            count * tokens > positions
            or count * bytes_of(tokens) > plan.memory // _SHARE_OF_A_BATCH
        ):
            yield batch
            batch = []
        batch.append(index)
    if batch:
        yield batch


def _bytes_of(explainer: Explainer, tokens: int) -> int:
    """Return about how much memory one text of a batch takes in the forward pass and after it."""
    config = explainer.model.config

    def size(name: str, otherwise: int) -> int:
        value = getattr(config, name, None)
        return value if isinstance(value, int) else otherwise

    width = size("hidden_size", 768)
    heads, layers = size("num_attention_heads", 12), size("num_hidden_layers", 12)
    # Scores before and after the softmax, a copy, and the fused weights of every layer; the graph
    # of one text is in float64 and, for flow, in integers too.
    attention = tokens * tokens * (4 * (3 * heads + layers) + 24 * layers)
    hidden = tokens * 4 * (8 * width + 2 * size("intermediate_size", 4 * width))
    logits = tokens * 4 * size("vocab_size", 0) if explainer.task == "masked-lm" else 0
    return attention + hidden + logits


# ---- Files ---------------------------------------------------------------------------------------


def _arrow_type(given: Any) -> Any:
    import pyarrow

    names = {
        "bool": pyarrow.bool_(),
        "int64": pyarrow.int64(),
        "float64": pyarrow.float64(),
        "string": pyarrow.string(),
        "json": pyarrow.string(),
    }
    return names[given] if isinstance(given, str) else given


def _id(row: Row, plan: Plan) -> Any:
    if plan.id_column is None:
        return row.number
    value = row.values.get(plan.id_column)
    if value is None or not Column("id", plan.id_type).holds(value):
        return None
    return _json(value) if isinstance(plan.id_type, str) and plan.id_type == "json" else value


def _json(value: Any) -> str:
    return json.dumps(value, ensure_ascii=True, default=str)


def column_name(name: str) -> str:
    """Return what a column of the source is called in the output.

    Example:
        >>> column_name("stars"), column_name("tokens")
        ('stars', 'source_tokens')
    """
    return f"source_{name}" if name in RESULTS else name


def _data_file(done: list[tuple[Row, Found]], plan: Plan) -> bytes:
    import pyarrow as pa

    strings, flags = pa.list_(pa.string()), pa.list_(pa.bool_())
    numbers, places = pa.list_(pa.float64()), pa.list_(pa.int32())
    spans = [found.tokens.spans for _, found in done]
    predictions = [found.prediction for _, found in done]
    columns: list[tuple[str, Any, Any]] = [
        ("row", pa.int64(), [row.number for row, _ in done]),
        ("id", _arrow_type(plan.id_type), [_id(row, plan) for row, _ in done]),
        ("text", pa.string(), [row.values[plan.text_column] for row, _ in done]),
        ("tokens", strings, [list(found.tokens.names) for _, found in done]),
        ("scores", numbers, [found.scores for _, found in done]),
        ("special", flags, [list(found.tokens.special) for _, found in done]),
        ("starts", places, [[x and x[0] for x in row] for row in spans]),
        ("ends", places, [[x and x[1] for x in row] for row in spans]),
        ("layer", pa.int32(), [found.layer for _, found in done]),
        ("position", pa.int32(), [found.position for _, found in done]),
        ("target", pa.string(), [found.target for _, found in done]),
        ("predicted", pa.string(), [x and x.label for x in predictions]),
        ("probability", pa.float64(), [x and x.probability for x in predictions]),
        ("saturation", pa.float64(), [found.saturation for _, found in done]),
        ("notes", strings, [list(found.notes) for _, found in done]),
    ]
    for column in plan.carried:
        values = [row.values.get(column.name) for row, _ in done]
        if isinstance(column.type, str):
            kept = [value if column.holds(value) else None for value in values]
            if column.type == "json":
                kept = [None if value is None else _json(value) for value in kept]
            values = kept
        columns.append((column_name(column.name), _arrow_type(column.type), values))
    if plan.keeps_rest:
        columns.append(("rest", pa.string(), [_rest(row, plan) for row, _ in done]))
    return _write(columns, plan)


def _attentions_file(rows: list[Row], kept: dict[int, Kept], plan: Plan) -> bytes | None:
    items = [(rows[i].number, _id(rows[i], plan), kept[i]) for i in sorted(kept)]
    return attentions_file(items, str(plan.keep), plan.metadata)


def _rest(row: Row, plan: Plan) -> str | None:
    """Return what no column takes: fields that come late, and values of another type."""
    known = {column.name: column for column in plan.carried}
    rest = {
        name: value
        for name, value in row.values.items()
        if name not in (plan.text_column, plan.id_column)
        and (name not in known or not known[name].holds(value))
    }
    return _json(rest) if rest else None


def _errors_file(wrong: list[tuple[Row, str]], plan: Plan) -> bytes:
    import pyarrow as pa

    texts = [row.values.get(plan.text_column) for row, _ in wrong]
    columns: list[tuple[str, Any, Any]] = [
        ("row", pa.int64(), [row.number for row, _ in wrong]),
        ("id", _arrow_type(plan.id_type), [_id(row, plan) for row, _ in wrong]),
        ("place", pa.string(), [_plain(row.place) for row, _ in wrong]),
        ("reason", pa.string(), [_plain(reason) for _, reason in wrong]),
        ("values", pa.string(), [_json(row.values) if row.values else None for row, _ in wrong]),
        ("text", pa.string(), [_plain(x) if isinstance(x, str) else None for x in texts]),
    ]
    return _write(columns, plan)


def _plain(text: str) -> str:
    return text.encode("utf-8", "backslashreplace").decode()


def _write(columns: list[tuple[str, Any, Any]], plan: Plan) -> bytes:
    import pyarrow as pa
    import pyarrow.parquet as pq

    arrays = [pa.array(values, type=kind) for _, kind, values in columns]
    schema = pa.schema(
        [(name, kind) for name, kind, _ in columns],
        metadata={"attnflow": json.dumps(plan.metadata, sort_keys=True, ensure_ascii=False)},
    )
    sink = pa.BufferOutputStream()
    # Everything that decides the bytes is said, so that another default changes nothing.
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
