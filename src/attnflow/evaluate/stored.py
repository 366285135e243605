"""`evaluate_stored`: statistics of the scores that `attnflow.run` stored.

Attention is not computed again. Rows are read shard by shard. References, if asked for, are
computed for the stored texts and compared with the stored scores.
"""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from typing import Any, Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from attnflow.checks import integer
from attnflow.dataset.engine import check_explainer
from attnflow.dataset.store import Finished, read_finished
from attnflow.errors import AttnflowError, OptionError, TextError
from attnflow.evaluate.baselines import BASELINES, every_baseline
from attnflow.evaluate.evaluation import Skipped
from attnflow.evaluate.measure import agreement, reference_values
from attnflow.evaluate.options import (
    check_replacement,
    check_task,
    choose,
    choose_baselines,
    statistics_options,
    token_counts,
)
from attnflow.evaluate.resumable import Resumable
from attnflow.evaluate.statistics import MEASURES, Statistics, TokenMean
from attnflow.formats import without_nan
from attnflow.importance import REFERENCES
from attnflow.io.journal import digest_of
from attnflow.io.records import require_pyarrow
from attnflow.models import Explainer
from attnflow.models.adapter import Encoded
from attnflow.options import ATTENTION_METHODS, OPTIONS
from attnflow.tokens import summed

# How many texts are measured and stored together.
SLICE: Final = 32
# How many of the tokens with the highest mean scores are reported. Rarer tokens are left out.
MOST_TOKENS: Final = 20
FEWEST: Final = 5

COLUMNS: Final = ("row", "text", "tokens", "scores", "special", "starts", "ends")


def evaluate_stored(
    folder: str | os.PathLike[str],
    explainer: Explainer | None = None,
    *,
    references: str | Sequence[str] | None = ("blank_out",),
    baselines: bool | str | Sequence[str] = True,
    frequencies: Mapping[str, int] | None = None,
    replacement: str | int = "auto",
    batch_size: int = 64,
    limit: int | None = None,
    samples: int = 2000,
    permutations: int = 9999,
    level: float = 0.95,
    seed: int = 0,
    store: str | os.PathLike[str] | None = None,
    engine: str = "local",
    workers: int | None = None,
    address: str | None = None,
    device: str = "auto",
    progress: Callable[[int, int], object] | None = None,
) -> Statistics:
    """Compute statistics of the scores that `attnflow.run` stored.

    Attention is not computed again. References are computed for the stored texts, with the stored
    positions, targets and options, and compared with the stored scores. If the scores are of words,
    references are summed over words in the same way.

    One shard is in memory at a time. Only a few numbers of every text are kept.

    Args:
        folder: The output of a run, finished or not.
        explainer: The model that computed the scores. None if there are no references.
        references: Any of `attnflow.importance.REFERENCES`. None means none.
        baselines: As in `attnflow.evaluate.evaluate`.
        frequencies: How often each token occurs, for the baseline. None counts the stored tokens.
        replacement: What blank-out replaces a token with.
        batch_size: How many texts with a token blanked out run together.
        limit: How many texts to use, from the first. None means all.
        samples: The number of bootstrap resamples for a confidence interval.
        permutations: The number of sign flips for a p-value.
        level: The confidence level.
        seed: The seed of the random numbers.
        store: A file that keeps what was measured, as in `attnflow.evaluate.evaluate`.
        engine: What runs the model, as in `attnflow.evaluate.evaluate`.
        workers: How many processes run the model.
        address: The Ray cluster.
        device: Where Ray's workers run the model.
        progress: Called with how many texts are done and how many there are.

    Returns:
        The statistics.

    Raises:
        OptionError: If an option is not valid, the folder is not the output of a run, or another
            model computed the scores.
        DataError: If a stored file is missing, damaged or was changed.
        TextError: If nothing is stored.
        MissingExtraError: If pyarrow is not installed.

    Example:
        >>> import tempfile
        >>> import attnflow
        >>> from transformers import BertConfig, BertForSequenceClassification, BertTokenizerFast
        >>> words = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "keys", "open", "doors"]
        >>> vocabulary = {word: index for index, word in enumerate(words)}
        >>> config = BertConfig(vocab_size=8, hidden_size=8, num_hidden_layers=2,
        ...                     num_attention_heads=2, intermediate_size=8)
        >>> model = BertForSequenceClassification(config)
        >>> explainer = attnflow.Explainer(model, BertTokenizerFast(vocab=vocabulary))
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     _ = attnflow.run(["keys open doors", "open doors"], explainer, output=folder,
        ...                      method="rollout", workers=1)
        ...     statistics = evaluate_stored(folder, explainer, workers=1, samples=100)
        >>> statistics.count
        2
        >>> [row["measure"] for row in statistics.summary()][:3]
        ['entropy', 'evenness', 'top_share']
    """
    options = dict(locals())
    for name in ("folder", "explainer", "progress"):
        del options[name]
    with StoredRun(folder, explainer, **options) as run:
        run.measure_all(progress)
        return run.result()


class _Plan(NamedTuple):
    """What is measured of every stored text. `options` are those of the run."""

    options: dict[str, Any]
    references: tuple[str, ...]
    baselines: tuple[str, ...]
    frequencies: Mapping[str, int]
    replacement: str | int
    batch_size: int
    seed: int


class StoredRun(Resumable):
    """Statistics in progress. Iterate over it to measure texts, then call `result`.

    `evaluate_stored` does all of this in one call.

    Args:
        folder: As in `evaluate_stored`.
        explainer: As in `evaluate_stored`.
        **options: All options of `evaluate_stored` but `progress`.

    Attributes:
        total: How many texts there are.
        done: How many have been measured.

    Raises:
        AttnflowError: Whatever `evaluate_stored` raises.
    """

    def __init__(
        self, folder: str | os.PathLike[str], explainer: Explainer | None = None, **options: Any
    ) -> None:
        require_pyarrow()
        self._made = read_finished(folder)
        self._statistics = statistics_options(options)
        references = _references(self._made, explainer, options)
        if not references and options["engine"] != "local":
            raise OptionError(
                f"engine is {options['engine']!r}, but without references there is no model to "
                "run; leave it out"
            )
        self.total = self._made.rows
        if options["limit"] is not None:
            self.total = min(self.total, integer(options["limit"], "limit", least=1))
        if not self.total:
            raise TextError(f"{os.fspath(folder)} has no row that was explained")
        self._count_tokens()
        self._plan = _Plan(
            options=self._made.header["options"],
            references=references,
            baselines=choose_baselines(options["baselines"], BASELINES),
            frequencies=token_counts(options["frequencies"], self._counts),
            replacement=options["replacement"],
            batch_size=integer(options["batch_size"], "batch_size", least=1),
            seed=self._statistics["seed"],
        )
        if explainer is not None and "blank_out" in references:
            explainer.adapter.fill(self._plan.replacement)
        self._done = 0
        work = partial(_measured, plan=self._plan)
        super().__init__(explainer if references else None, work, options)

    @property
    def done(self) -> int:
        """How many texts have been measured."""
        return self._done

    def _kept(self, record: dict[str, Any]) -> Any:
        # An array takes a quarter of the memory of a list.
        values = np.array(record["values"], dtype=np.float64)
        self._done += len(values)
        return {"values": values, "skipped": record["skipped"]}

    def result(self) -> Statistics:
        """Return the statistics of the texts done so far.

        Raises:
            TextError: If no text has been measured.
        """
        if not self._records:
            raise TextError("no text has been measured yet")
        plan, header = self._plan, self._made.header
        records = [self._records[number] for number in sorted(self._records)]
        values = np.concatenate([record["values"] for record in records])
        guesses, references = len(plan.baselines), len(plan.references)
        measures, likeness, agreeing = np.split(
            values, np.cumsum([len(MEASURES), guesses * 2]), axis=1
        )
        notes = ("The run has not finished. These are statistics of the rows stored so far.",)
        return Statistics(
            data=str(self._made.folder),
            model=header["model"],
            task=header["task"],
            fingerprint=header["fingerprint"],
            options={
                option.name: plan.options[option.name]
                for option in OPTIONS
                if option.name in plan.options
            },
            statistics=self._statistics,
            references=plan.references,
            baselines=plan.baselines,
            failed=self._made.failed,
            complete=self._made.complete,
            pending=self.total - self.done,
            skipped=tuple(Skipped(*item) for record in records for item in record["skipped"]),
            tokens=self._highest_tokens(),
            measures=measures,
            likeness=likeness.reshape(len(values), guesses, 2),
            agreement=agreeing.reshape(len(values), 1 + guesses, references, 2),
            notes=() if self._made.complete else notes,
        )

    # ---- Reading ---------------------------------------------------------------------------------

    def _tables(self, columns: Sequence[str], *, check: bool = False) -> Iterator[Any]:
        """Yield the tables of the shards, up to the limit."""
        left = self.total
        for number in self._made.shards:
            if left <= 0:
                return
            table = self._made.table(number, columns, check=check)
            yield table.slice(0, left)
            left -= len(table)

    def _missing(self) -> Iterator[tuple[int, Any]]:
        # A task is numbered by its first text.
        first = 0
        pair = ["pair"] if self._made.header["options"].get("pair_column") is not None else []
        for table in self._tables((*COLUMNS, "position", "saturation", *pair)):
            for start in range(0, len(table), SLICE):
                if first + start not in self._records:
                    yield first + start, table.slice(start, SLICE).to_pylist()
            first += len(table)

    def _count_tokens(self) -> None:
        """Count the stored tokens, and add up their scores."""
        import pyarrow

        self._counts: Counter[str] = Counter()
        self._sums: dict[str, float] = {}
        for table in self._tables(("tokens", "scores"), check=True):
            tokens, scores = (
                table[name].combine_chunks().flatten() for name in ("tokens", "scores")
            )
            # With one thread, sums are added up in the same order every time.
            grouped = (
                pyarrow.table({"token": tokens, "score": scores})
                .group_by("token", use_threads=False)
                .aggregate([("score", "sum"), ("score", "count")])
            )
            for row in grouped.to_pylist():
                token = row["token"]
                self._sums[token] = self._sums.get(token, 0.0) + row["score_sum"]
                self._counts[token] += row["score_count"]

    def _highest_tokens(self) -> tuple[TokenMean, ...]:
        """Return the tokens with the highest mean scores, without rare ones."""
        common = [token for token, count in self._counts.items() if count >= FEWEST]
        means = [
            TokenMean(token, self._sums[token] / self._counts[token], self._counts[token])
            for token in common or self._counts
        ]
        means.sort(key=lambda item: (-item.mean, item.token))
        return tuple(means[:MOST_TOKENS])

    def _header(self) -> dict[str, Any]:
        plan, made = self._plan, self._made
        names = ("references", "baselines", "replacement", "batch_size", "seed")
        files = [shard["files"] for shard in made.shards.values()]
        return {
            "model": made.header["model"],
            "fingerprint": made.header["fingerprint"],
            "options": {"of": "stored scores", **{name: getattr(plan, name) for name in names}},
            "data": {"texts": self.total, "digest": digest_of([plan.options, files])},
        }


def _references(made: Finished, explainer: Any, options: Mapping[str, Any]) -> tuple[str, ...]:
    """Return the references, after checking that the model and the stored scores allow them."""
    given = () if options["references"] is None else options["references"]
    references = choose(given, "references", REFERENCES) if len(given) else ()
    check_replacement(options["replacement"], references)
    if not references:
        return ()
    name, task = made.header["model"], made.header["task"]
    check_task(task, f"{name}, which computed the scores of {made.folder},")
    if task == "seq2seq-lm" and made.header["options"]["drop_sink"]:
        raise OptionError(
            f"{made.folder} has the scores of an encoder-decoder without its two attention sinks, "
            "and does not say which tokens these are, so references cannot be compared; expected "
            "references=None (--references none), or a run without drop_sink"
        )
    if explainer is None:
        raise OptionError(
            f"explainer is None, but references need the model that computed the scores of "
            f"{made.folder}, {name}; give it, or leave references out"
        )
    check_explainer(explainer)
    fingerprint, expected = explainer.fingerprint(), made.header["fingerprint"]
    if (fingerprint, explainer.task) != (expected, task):
        raise OptionError(
            f"the scores of {made.folder} were computed by another model than {explainer.name}, by "
            f"{name}: the task is {task} there and {explainer.task} here, and the fingerprint is "
            f"{expected} there and {fingerprint} here"
        )
    return references


# ---- Measuring -----------------------------------------------------------------------------------


def _measured(
    explainer: Explainer | None, rows: list[dict[str, Any]], plan: _Plan
) -> dict[str, Any]:
    """Measure some texts.

    Returns:
        A JSON-serialisable record: "values", for each text the measures, the correlations with
        baselines and those with references; and "skipped", the texts without references, and why.
    """
    values, skipped = [], []
    for row in rows:
        # Contributions have a sign, and references and shares do not.
        scores = np.abs(np.array(row["scores"], dtype=np.float64))
        special = np.array(row["special"], dtype=np.bool_)
        kept = np.ones_like(special)
        guesses = every_baseline(
            plan.baselines,
            row["tokens"],
            frequencies=plan.frequencies,
            seed=(plan.seed, row["row"]),
            special=row["special"],
        )
        agreeing = np.full((1 + len(guesses), len(plan.references), 2), np.nan)
        if explainer is not None:
            try:
                references = _stored_references(explainer, row, plan)
            except AttnflowError as error:
                skipped.append([row["row"], str(error)])
            else:
                both = np.vstack([scores, guesses])
                agreeing = agreement(both, references, special, kept, (False,))[:, 0]
        likeness = agreement(guesses, scores[None], special, kept, (False,))
        total = scores.sum()
        shares = scores / (total if total > 0 else np.nan)
        row["special"] = special if plan.options["special_tokens"] else None
        measures = [measure(shares, row) for measure in MEASURES.values()]
        values.append([*measures, *likeness.ravel(), *agreeing.ravel()])
    return {"values": without_nan(np.array(values, dtype=np.float64)), "skipped": skipped}


def _stored_references(
    explainer: Explainer, row: Mapping[str, Any], plan: _Plan
) -> NDArray[np.float64]:
    """Return the references of the stored tokens or words of a text, of shape (R, T)."""
    options = plan.options
    pair = row.get("pair")
    item = row["text"] if pair is None else (row["text"], pair)
    encoded = explainer.adapter.read(item, options["truncate"])
    count = len(encoded.tokens)
    attention = options["method"] in ATTENTION_METHODS and options["edges"] == "attention"
    if attention and explainer.adapter.has_sink(encoded):
        encoded = encoded.with_sink()
    contrast = options["contrast"]
    signed = reference_values(
        explainer,
        item,
        plan,
        count,
        target=options["target"],
        # The stored position counts source tokens too, and a learned sink. The option does not.
        position=row["position"] - encoded.source,
        truncate=options["truncate"],
        **({} if contrast is None else {"contrast": contrast}),
    )
    # Nothing depends on a learned sink, the first of the stored tokens.
    values = np.pad(np.abs(signed), ((0, 0), (len(encoded.tokens) - count, 0)))
    # A causal position sees the tokens up to itself. Any other position sees all.
    found = [
        shown
        for seen in dict.fromkeys((len(encoded.tokens), row["position"] + 1))
        for left_out in (range(seen) if options["drop_sink"] else (None,))
        if (shown := _as_stored(encoded, values, seen, left_out, options, row)) is not None
    ]
    if not found:
        raise TextError("the model's tokenizer gives other tokens for this text than the stored")
    if any(not np.array_equal(shown, found[0]) for shown in found):
        raise TextError(
            "the attention sink was dropped, and it may have been any of several tokens"
        )
    return found[0]


def _as_stored(
    encoded: Encoded,
    values: NDArray[np.float64],
    seen: int,
    left_out: int | None,
    options: Mapping[str, Any],
    row: Mapping[str, Any],
) -> NDArray[np.float64] | None:
    """Return references of the tokens or words shown; None if these are not the stored ones."""
    kept = [
        index
        for index in range(seen)
        if index != left_out and (options["special_tokens"] or not encoded.tokens.special[index])
    ]
    tokens, groups = encoded.tokens.select(kept).grouped(options["units"])
    spans = [
        None if start is None else (start, end)
        for start, end in zip(row["starts"], row["ends"], strict=True)
    ]
    same = list(tokens.names) == row["tokens"] and list(tokens.spans) == spans
    return summed(values[:, kept], groups) if same else None
