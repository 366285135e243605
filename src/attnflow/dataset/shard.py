"""`make_shard`: from the rows of a shard to the bytes of its files.

The bytes depend only on the rows, the model and the options: not on the process that makes the
shard, on what ran before, or on the number of workers.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from functools import cache, partial
from typing import Any, Final, NamedTuple, TypeVar, cast

import numpy as np
from numpy.typing import NDArray

from attnflow.checks import resolve_layer
from attnflow.dataset.attentions import Kept, attentions_file, keep_attention
from attnflow.dataset.local import cpus
from attnflow.dataset.source import Column, Row
from attnflow.dataset.table import data_file, errors_file, row_id
from attnflow.errors import AttnflowError, DataError, OptionError, TextError
from attnflow.explain import Answer
from attnflow.explanation import Explanation
from attnflow.io.records import has_surrogates
from attnflow.models import Explainer
from attnflow.models.adapter import BATCH_POSITIONS, SINK, Encoded, Ran
from attnflow.models.text import TextAdapter
from attnflow.options import ANSWER_METHODS, OPTIONS, UNITS, Options
from attnflow.scoring import Scored, finish
from attnflow.tokens import Tokens

# A batch may take one part in this many of the memory. The batch before it is being scored at the
# same time, and the rows and results of the shard need memory too.
_SHARE_OF_A_BATCH: Final = 3
# The attention of a batch of this many positions fits into the cache of a CPU.
_CPU_POSITIONS: Final = 2048
# How many batches may wait to be scored.
_WAITING: Final = 1


class Plan(NamedTuple):
    """What is done with every row.

    Attributes:
        options: The options of `Explainer.explain`.
        text_column: The column with the text.
        pair_column: The column with the second text of a pair, or None.
        id_column: The column that names a row, or None.
        id_type: Its type, as in `Column`.
        carried: The columns that are carried through.
        keeps_rest: Whether there is a column "rest" for values that no other column takes.
        memory: How many bytes the batches may take.
        metadata: The metadata of the files.
        keep: The type that attention is kept in, "float16" or "float32"; None if it is not kept.
    """

    options: dict[str, Any]
    text_column: str
    pair_column: str | None
    id_column: str | None
    id_type: Any
    carried: tuple[Column, ...]
    keeps_rest: bool
    memory: int
    metadata: dict[str, Any]
    keep: str | None = None


class Found(NamedTuple):
    """What is stored of a text: fields of its `Explanation`, and its attention if that is kept."""

    tokens: Tokens
    scores: NDArray[np.float64]
    layer: int
    position: int
    answer: Answer
    saturation: float | None
    notes: tuple[str, ...]
    kept: Kept | None


class Shard(NamedTuple):
    """The files of some rows.

    Attributes:
        data: The Parquet file of the explanations.
        errors: The Parquet file of the rows that failed; None if none did.
        rows: How many rows were explained.
        failed: How many failed.
        first_error: The place of the first row that failed, and the reason.
        attentions: The safetensors file of their attention; None if there is none.
    """

    data: bytes
    errors: bytes | None
    rows: int
    failed: int
    first_error: str | None
    attentions: bytes | None = None


def check_options(explainer: Explainer, options: Mapping[str, Any]) -> dict[str, Any]:
    """Return all options of `Explainer.explain`, checked as far as possible without a text.

    Args:
        explainer: The model.
        options: The options given.

    Raises:
        OptionError: If one is not valid for this model, or the model does not read text.
    """
    chosen = explainer.chosen(Options(**options))
    for option in OPTIONS:
        if not option.in_data_sets and chosen[option.name] != option.default:
            raise OptionError(
                f"{option.name} is {chosen[option.name]!r}, but a data set has only scores; leave "
                "it out"
            )
    if not isinstance(chosen.units, str):
        raise OptionError(
            "units is a list of stretches, which are of one text; for a data set expected "
            f"{', '.join(UNITS)}"
        )
    if not explainer.adapter.in_data_sets:
        raise OptionError(
            f"explainer is a model for {explainer.task}; a data set of texts needs a model that "
            "reads text"
        )
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
    failed = {index: reason for index, row in enumerate(rows) if (reason := _fault(row, plan))}
    texts = {index: _item(row, plan) for index, row in enumerate(rows) if index not in failed}
    found: dict[int, Found] = {}
    for index, result in _explain(explainer, texts, plan):
        if isinstance(result, str):
            failed[index] = result
        else:
            found[index] = result
    done = [(rows[index], found[index]) for index in sorted(found)]
    wrong = [(rows[index], failed[index]) for index in sorted(failed)]
    kept = [(row.number, row_id(row, plan), one.kept) for row, one in done if one.kept is not None]
    return Shard(
        data_file(done, plan),
        errors_file(wrong, plan) if wrong else None,
        len(done),
        len(wrong),
        f"{wrong[0][0].place}: {wrong[0][1]}" if wrong else None,
        None if plan.keep is None else attentions_file(kept, plan.keep, plan.metadata),
    )


def _fault(row: Row, plan: Plan) -> str | None:
    """Return why a row has no text to explain."""
    if row.fault is not None:
        return row.fault
    if plan.id_column is not None and row_id(row, plan) is None:
        return f"there is no {plan.id_column!r} of type {plan.id_type}"
    for column, name in ((plan.text_column, "text"), (plan.pair_column, "second text")):
        text = "" if column is None else row.values.get(column)
        if column is not None and column not in row.values:
            return f"there is no {column!r}"
        if not isinstance(text, str):
            return f"the {name} is {type(text).__name__}; expected a string"
        if has_surrogates(text):
            return f"the {name} has a lone surrogate, which is not valid UTF-8"
    return None


def _item(row: Row, plan: Plan) -> str | tuple[str, str]:
    """Return what the model reads of a row: a text, or a pair."""
    text: str = row.values[plan.text_column]
    return text if plan.pair_column is None else (text, row.values[plan.pair_column])


# ---- Explaining ----------------------------------------------------------------------------------


class _Item(NamedTuple):
    """A text that was read, and its row's number in the shard."""

    number: int
    text: Encoded


Results = list[tuple[int, Found | str]]
"""The number of each text, with what was found or why it failed."""


def _explain(
    explainer: Explainer, texts: dict[int, Any], plan: Plan
) -> Iterator[tuple[int, Found | str]]:
    options = Options(**plan.options)
    adapter = explainer.adapter
    bytes_of = cache(partial(_bytes_of, explainer, options))
    items = []
    read = adapter.read_many(list(texts.values()), options.truncate)
    for index, text in zip(texts, read, strict=True):
        try:
            if isinstance(text, AttnflowError):
                raise text
            needed = bytes_of(len(text.tokens))
            if needed > plan.memory:
                raise TextError(
                    f"the text has {len(text.tokens)} tokens, which take about {_mib(needed)}, "
                    f"more than the {_mib(plan.memory)} of memory"
                )
            adapter.position(text, options.position, None)
            items.append(_Item(index, text))
        except AttnflowError as error:
            yield index, str(error)
    _check_room(explainer, [len(item.text.tokens) for item in items], plan)
    if options.method in ANSWER_METHODS:
        for batch in _batches(explainer, items, bytes_of, plan):
            yield from _contributed(explainer, batch, options)
        return
    batches = (
        part
        for batch in _batches(explainer, items, bytes_of, plan)
        for part in _run(explainer, batch, options, keep=plan.keep is not None)
    )
    score = partial(_score, explainer, options=options, keep=plan.keep)
    if explainer.model.device.type == "cpu":
        for batch, ran in batches:
            yield from score(batch, ran)
        return
    # The CPUs score a batch while the model runs the next one on its device.
    with ThreadPoolExecutor(max(1, cpus() - 1), "attnflow-scores") as pool:
        waiting: deque[Future[Results]] = deque()
        for batch, ran in batches:
            waiting.append(pool.submit(score, batch, ran))
            del ran
            while len(waiting) > _WAITING:
                yield from waiting.popleft().result()
        while waiting:
            yield from waiting.popleft().result()


def _run(
    explainer: Explainer, batch: list[_Item], options: Options, *, keep: bool
) -> Iterator[tuple[list[_Item], Ran | str]]:
    """Run the model on a batch. Where it fails, each text runs by itself, or has a reason."""

    def run(texts: list[Encoded]) -> Ran:
        return explainer.run(texts, options, keep=keep)

    return _attempt(run, batch)


def _contributed(explainer: Explainer, batch: list[_Item], options: Options) -> Iterator[Any]:
    """Yield what the answer for each text of a batch came from, or why it failed."""

    def run(texts: list[Encoded]) -> list[Explanation]:
        return explainer.contributions(texts, options)

    for part, found in _attempt(run, batch):
        for row, item in enumerate(part):
            if isinstance(found, str):
                yield item.number, found
                continue
            one = found[row]
            answer = Answer(one.prediction, one.target, one.contrast, one.value, one.bias)
            values = (one.scores, one.layer, one.position, answer, None, one.notes, None)
            yield item.number, Found(one.pieces, *values)


Result = TypeVar("Result")


def _attempt(
    run: Callable[[list[Encoded]], Result], batch: list[_Item]
) -> Iterator[tuple[list[_Item], Result | str]]:
    """Run a batch. If it fails, run its texts one by one, with a reason for each failure."""
    result: Result | str
    try:
        result = run([item.text for item in batch])
    except MemoryError:
        raise
    except Exception as error:  # a text that the model fails on does not stop the others
        known = isinstance(error, AttnflowError)
        result = str(error) if known else f"the model failed: {type(error).__name__}: {error}"
    if isinstance(result, str) and len(batch) > 1:
        for item in batch:
            yield from _attempt(run, [item])
    else:
        yield batch, result


def _score(
    explainer: Explainer, batch: list[_Item], ran: Ran | str, *, options: Options, keep: str | None
) -> Results:
    """Return what was found for each text of a batch, or why it failed."""
    if isinstance(ran, str):
        return [(item.number, ran) for item in batch]
    try:
        together = _score_together(explainer, batch, ran, options)
    except AttnflowError:
        # One text has invalid attention. If texts are scored one by one, it alone fails.
        together = None
    results: Results = []
    for row, item in enumerate(batch):
        try:
            layer, scored = (
                together[row] if together else _score_one(explainer, item, ran, row, options)
            )
            found = _found(explainer, item, ran, row, layer, scored, options, keep)
            results.append((item.number, found))
        except AttnflowError as error:
            results.append((item.number, str(error)))
    return results


def _score_together(
    explainer: Explainer, batch: list[_Item], ran: Ran, options: Options
) -> list[tuple[int, Scored]] | None:
    """Return the layer and its scores for each text; None if texts are scored one by one."""
    adapter = explainer.adapter
    texts = [item.text for item in batch]
    together = adapter.batch(ran.captured, texts, options)
    if together is None:
        return None
    layer = resolve_layer(options.layer, len(ran.captured.layers))
    weights = [
        explainer.weights(ran, row, item.text, options.position, causal)
        for row, (item, causal) in enumerate(zip(batch, together.causal, strict=True))
    ]
    several = any(np.count_nonzero(own) > 1 for own in weights)
    if several and (any(together.causal) or options.receptive_field is True):
        return None  # a mean of ratios is not the ratio of means
    places = [int(own.argmax()) for own in weights]
    found = together.score(options, layer, places, explainer.uniform, weights)
    return [(layer, one) for one in found]


def _score_one(
    explainer: Explainer, item: _Item, ran: Ran, row: int, options: Options
) -> tuple[int, Scored]:
    """Return the layer and its scores for one text of a batch, from the graph of the text."""
    scorer = explainer.scorer(ran, row, item.text, options, num_threads=1)
    layer = resolve_layer(options.layer, scorer.depth)
    weights = explainer.weights(ran, row, item.text, options.position, scorer.graph.causal)
    [scored] = scorer.score_means(options, layer, [weights])
    return layer, scored._replace(scores=scored.scores[layer - 1 : layer])


def _found(
    explainer: Explainer,
    item: _Item,
    ran: Ran,
    row: int,
    layer: int,
    scored: Scored,
    options: Options,
    keep: str | None,
) -> Found:
    answer = explainer.adapter.answer(ran, row)[0]
    shown = explainer.adapter.shown(ran.captured, item.text)
    finished = finish(shown.tokens, scored, 0, layer, options)
    notes = finished.notes if shown is item.text else (*finished.notes, SINK)
    kept = None
    if keep is not None:
        adapter = cast("TextAdapter", explainer.adapter)
        graph = adapter.graph(ran.captured, row, item.text, options)
        about = {
            "position": scored.position,
            "prediction": answer.prediction,
            "target": answer.target,
        }
        kept = keep_attention(adapter, graph, item.text, about, keep, ran.reads(row))
    return Found(
        finished.tokens,
        finished.layer_scores[0],
        layer,
        scored.position,
        answer,
        scored.saturation,
        notes,
        kept,
    )


# ---- Memory --------------------------------------------------------------------------------------


def _mib(size: float) -> str:
    return f"{size / 2**20:.0f} MiB"


def _check_room(explainer: Explainer, lengths: list[int], plan: Plan) -> None:
    """Check that the attention that a shard keeps fits into the memory."""
    if plan.keep is None:
        return
    width = int(plan.keep.removeprefix("float")) // 8
    needed = width * _size(explainer, "num_hidden_layers", 12) * sum(n * n for n in lengths)
    if needed > plan.memory:
        raise DataError(
            f"the attention of the {len(lengths)} rows of a shard takes {_mib(needed)}, more than "
            f"the {_mib(plan.memory)} of memory. Finished shards are kept: the same command with "
            "more memory resumes. Fewer rows a shard need another output"
        )


def batch_positions(explainer: Explainer) -> int:
    """Return how many positions, padded ones included, go through a model together."""
    on_cpu = explainer.model.device.type == "cpu"
    return _CPU_POSITIONS if on_cpu else BATCH_POSITIONS


def _batches(
    explainer: Explainer, items: list[_Item], bytes_of: Callable[[int], int], plan: Plan
) -> Iterator[list[_Item]]:
    """Yield texts that run together: of similar length, shortest first."""
    positions = batch_positions(explainer)
    memory = plan.memory // _SHARE_OF_A_BATCH
    batch: list[_Item] = []
    for item in sorted(items, key=lambda item: (len(item.text.tokens), item.number)):
        count, tokens = len(batch) + 1, len(item.text.tokens)
        if batch and (count * tokens > positions or count * bytes_of(tokens) > memory):
            yield batch
            batch = []
        batch.append(item)
    if batch:
        yield batch


def _bytes_of(explainer: Explainer, options: Options, tokens: int) -> int:
    """Return about how much memory a text takes in the forward pass and after it."""
    vocabulary = _size(explainer, "vocab_size", 0) if explainer.task == "masked-lm" else 0
    return explainer.adapter.bytes_of(tokens, options) + 4 * tokens * vocabulary


def _size(explainer: Explainer, name: str, otherwise: int) -> int:
    value = getattr(explainer.model.config, name, None)
    return value if isinstance(value, int) else otherwise
