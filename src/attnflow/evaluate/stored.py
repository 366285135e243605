"""From what `attnflow.run` has stored to statistics, without computing attention again.

Scores, tokens and texts are read shard by shard. What the model depends on, if it is asked for, is
measured for the stored texts and compared with the stored scores.
"""

from __future__ import annotations

import hashlib
import os
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any, Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from attnflow.dataset.store import Finished, read_finished
from attnflow.errors import AttnflowError, DataError, OptionError, TextError
from attnflow.evaluate.baselines import BASELINES, baseline_scores
from attnflow.evaluate.evaluation import Skipped
from attnflow.evaluate.measure import agreement, listed
from attnflow.evaluate.resumable import Resumable
from attnflow.evaluate.run import (
    TASKS,
    _choices,
    _count,
    _digest,
    _frequencies,
    baselines_of,
    statistics_options,
    workers_of,
)
from attnflow.evaluate.statistics import MEASURES, Statistics, TokenMean
from attnflow.io.records import require_pyarrow
from attnflow.models import Explainer
from attnflow.models.adapter import Encoded
from attnflow.options import OPTIONS
from attnflow.tokens import summed

__all__ = ["StoredRun", "evaluate_stored"]

# So many texts are measured together. What is finished of a run that is killed stays.
SLICE: Final = 32
# Of the tokens that score highest so many are kept, if they occur so often at least.
MOST_TOKENS: Final = 20
FEWEST: Final = 5

COLUMNS: Final = (
    "row",
    "text",
    "tokens",
    "scores",
    "special",
    "starts",
    "ends",
    "position",
    "saturation",
)


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
    """Work out statistics over the scores that `attnflow.run` has stored.

    They are taken as they are: attention is not computed again. With references, the model is asked
    what its answers to the stored texts depend on, with the position, the target and the options
    that were stored, and that is compared with the stored scores. If these are of words, so are the
    references: summed in the same way.

    Texts, tokens and scores are in memory a shard at a time, and of every text a few numbers stay.

    Args:
        folder: The output of a run, finished or not.
        explainer: The model that the scores are of. None if there are no references.
        references: Of `attnflow.importance.REFERENCES`. None for none.
        baselines: Whether to compare with scores that know nothing of the model, or which ones, as
            in `attnflow.evaluate.evaluate`.
        frequencies: How often each token occurs, for the baseline. None counts the stored tokens.
        replacement: What blank-out puts in a token's place.
        batch_size: How many texts with a token blanked out run together.
        limit: How many texts to look at, from the first. None means all.
        samples: How often texts are drawn anew for a confidence interval.
        permutations: How often signs are flipped for a p-value.
        level: The level of confidence intervals.
        seed: Where random numbers start.
        store: A file that keeps what was measured, as in `attnflow.evaluate.evaluate`.
        engine: What runs the model, as in `attnflow.evaluate.evaluate`.
        workers: How many processes run the model.
        address: The Ray cluster.
        device: Where Ray's workers run the model.
        progress: Called with how many texts are done and how many there are.

    Returns:
        The statistics.

    Raises:
        OptionError: If an option is not valid, it is not the output of a run, or the model is not
            the one that the scores are of; the message says what differs.
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
    """What is measured of every stored text.

    Attributes:
        task: What the model does.
        options: The options that the scores were computed with.
        references: May be empty.
        baselines: May be empty.
        frequencies: How often each token occurs.
        replacement: As in `attnflow.importance.importance`.
        batch_size: As in `attnflow.importance.importance`.
        seed: Where random numbers start.
    """

    task: str
    options: dict[str, Any]
    references: tuple[str, ...]
    baselines: tuple[str, ...]
    frequencies: Mapping[str, int]
    replacement: str | int
    batch_size: int
    seed: int


class StoredRun(Resumable):
    """Statistics under way: iterate over it to measure slice by slice, then ask for the result.

    `evaluate_stored` is the short way.

    Args:
        folder: As in `evaluate_stored`.
        explainer: As in `evaluate_stored`.
        **options: The options of `evaluate_stored`, all of them, but for `progress`.

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
        references = _references(self._made, options)
        if references:
            _check_model(self._made, explainer)
        elif options["engine"] != "local":
            raise OptionError(
                f"engine is {options['engine']!r}, but without references there is no model to "
                "run; leave it out"
            )
        limit = options["limit"]
        rows = self._made.rows
        self.total = rows if limit is None else min(rows, _count(limit, "limit", 1))
        if not self.total:
            raise TextError(f"{os.fspath(folder)} has no row that was explained")
        workers_of(options)
        given = options["frequencies"]
        self._tokens = _Tokens()
        for table in self._tables(("tokens", "scores"), check=True):
            self._tokens.add(table)
        counts = self._tokens.counts() if given is None else _frequencies(given)
        self._plan = _Plan(
            task=self._made.header["task"],
            options=self._made.header["options"],
            references=references,
            baselines=baselines_of(options["baselines"], BASELINES),
            frequencies=counts,
            replacement=options["replacement"],
            batch_size=_count(options["batch_size"], "batch_size", 1),
            seed=self._statistics["seed"],
        )
        if explainer is not None and "blank_out" in references:
            explainer.adapter.fill(self._plan.replacement)
        self._done = 0
        header = None if options["store"] is None else self._header(given)
        work = partial(_measured, plan=self._plan)
        super().__init__(explainer if references else None, work, header, options)

    @property
    def done(self) -> int:
        """How many texts have been measured."""
        return self._done

    def _kept(self, record: dict[str, Any]) -> Any:
        # As an array, which takes a quarter of the memory.
        values = np.array(record["values"], dtype=np.float64)
        self._done += len(values)
        return {"values": values, "skipped": record["skipped"]}

    def result(self) -> Statistics:
        """Return the statistics of the texts done so far.

        Raises:
            TextError: If no text has been measured.
        """
        if not self._records:
            raise TextError("no text was measured, so that there is no result")
        plan, header = self._plan, self._made.header
        records = [self._records[number] for number in sorted(self._records)]
        values = np.concatenate([record["values"] for record in records])
        guesses, references = len(plan.baselines), len(plan.references)
        parts = np.split(values, np.cumsum([len(MEASURES), guesses * 2]), axis=1)
        measures, likeness, agreeing = parts
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
            tokens=self._tokens.highest(),
            measures=measures,
            likeness=likeness.reshape(len(values), guesses, 2),
            agreement=agreeing.reshape(len(values), 1 + guesses, references, 2),
            notes=self._notes(),
        )

    def _notes(self) -> tuple[str, ...]:
        if self._made.complete:
            return ()
        return ("The run that stores these scores has not finished; what is there was looked at.",)

    # ---- Reading ---------------------------------------------------------------------------------

    def _tables(self, columns: Sequence[str], *, check: bool = False) -> Iterator[Any]:
        """Yield the tables of the shards, the last one cut to the limit."""
        import pyarrow
        import pyarrow.parquet

        left = self.total
        for number, path in self._made.files("data").items():
            if left <= 0:
                return
            try:
                if check:
                    _check_file(path, self._made.shards[number]["files"]["data"])
                table = pyarrow.parquet.read_table(path, columns=list(columns))
            except (OSError, pyarrow.ArrowException) as error:
                raise _damaged(path, str(error).splitlines()[0]) from error
            yield table.slice(0, left)
            left -= len(table)

    def _missing(self) -> Iterator[tuple[int, Any]]:
        # By the number of the first text.
        first = 0
        for table in self._tables(COLUMNS):
            for start in range(0, len(table), SLICE):
                if first + start not in self._records:
                    yield first + start, table.slice(start, SLICE).to_pylist()
            first += len(table)

    def _header(self, frequencies: Any) -> dict[str, Any]:
        """Say what is measured, so that a store of something else is not taken for it."""
        from attnflow.version import __version__

        plan = self._plan
        return {
            "attnflow": __version__,
            "model": self._made.header["model"],
            "fingerprint": self._made.header["fingerprint"],
            "options": {
                "of": "stored scores",
                "references": list(plan.references),
                "baselines": list(plan.baselines),
                "replacement": plan.replacement,
                "batch_size": plan.batch_size,
                "seed": plan.seed,
                "frequencies": "of the texts"
                if frequencies is None
                else f"of a table, {_digest(plan.frequencies)}",
            },
            "data": {
                "texts": self.total,
                "digest": _digest(
                    [plan.options, [shard["files"] for shard in self._made.shards.values()]]
                ),
            },
        }


class _Tokens:
    """How often each token is stored, and the sum of its scores."""

    def __init__(self) -> None:
        self._sums: dict[str, float] = {}
        self._counts: Counter[str] = Counter()

    def add(self, table: Any) -> None:
        """Count the tokens of a table with the columns "tokens" and "scores"."""
        import pyarrow

        both = [table[name].combine_chunks() for name in ("tokens", "scores")]
        flat = pyarrow.table({"token": both[0].flatten(), "score": both[1].flatten()})
        # One thread, so that sums are added up in the same order every time.
        grouped = flat.group_by("token", use_threads=False).aggregate(
            [("score", "sum"), ("score", "count")]
        )
        columns = (grouped[name].to_pylist() for name in ("token", "score_sum", "score_count"))
        for token, total, count in zip(*columns, strict=True):
            self._sums[token] = self._sums.get(token, 0.0) + total
            self._counts[token] += count

    def counts(self) -> dict[str, int]:
        return dict(self._counts)

    def highest(self) -> tuple[TokenMean, ...]:
        """Return the tokens that score highest on average, those that are rare left out."""
        common = [token for token, count in self._counts.items() if count >= FEWEST]
        means = [
            TokenMean(token, self._sums[token] / self._counts[token], self._counts[token])
            for token in common or self._counts
        ]
        means.sort(key=lambda item: (-item.mean, item.token))
        return tuple(means[:MOST_TOKENS])


# ---- Checks --------------------------------------------------------------------------------------


def _references(made: Finished, options: Mapping[str, Any]) -> tuple[str, ...]:
    from attnflow.importance import REFERENCES

    given = options["references"]
    if given is None or (not isinstance(given, str) and not tuple(given)):
        if options["replacement"] != "auto":
            raise OptionError(
                f"replacement is {options['replacement']!r}, but there are no references; leave it "
                "out"
            )
        return ()
    references = _choices(given, "references", REFERENCES)
    if options["replacement"] != "auto" and "blank_out" not in references:
        raise OptionError(
            f"replacement is {options['replacement']!r}, but only blank_out replaces tokens, and "
            "it is not among the references; leave it out"
        )
    task = made.header["task"]
    if task not in TASKS:
        raise OptionError(
            f"{made.folder} has the scores of a model for {task}, which gives no answer that "
            "tokens could matter to; expected no references: references=None, or --references none"
        )
    if task == "seq2seq-lm" and made.header["options"]["drop_sink"]:
        raise OptionError(
            f"{made.folder} has the scores of an encoder-decoder without its two attention sinks, "
            "and does not say which tokens those were, so that references cannot be compared with "
            "them; expected references=None, or --references none, or a run without drop_sink"
        )
    return references


def _check_model(made: Finished, explainer: Any) -> None:
    name = made.header["model"]
    if explainer is None:
        raise OptionError(
            f"references are measured on the model that the scores of {made.folder} are of, "
            f"{name}; give it as explainer, or leave references out"
        )
    if not isinstance(explainer, Explainer):
        raise OptionError(f"explainer is {type(explainer).__name__}; expected an Explainer")
    found, expected = explainer.fingerprint(), made.header["fingerprint"]
    if found == expected and explainer.task == made.header["task"]:
        return
    if explainer.task != made.header["task"]:
        what = f"that one is for {made.header['task']}, and this one for {explainer.task}"
    else:
        what = (
            "their weights, their set-up or their vocabularies differ (the fingerprint is "
            f"{expected} there and {found} here)"
        )
    raise OptionError(
        f"{made.folder} has the scores of another model than {explainer.name}, namely of {name}: "
        f"{what}"
    )


def _check_file(path: Path, digest: str) -> None:
    with open(path, "rb") as file:
        found = hashlib.file_digest(file, lambda: hashlib.blake2b(digest_size=16)).hexdigest()
    if found != digest:
        raise _damaged(path, "it is not what the manifest says")


def _damaged(path: Path, reason: str) -> DataError:
    return DataError(
        f"{path} is missing, damaged or was changed ({reason}); attnflow run with the same options "
        "makes it again"
    )


# ---- Measuring -----------------------------------------------------------------------------------


def _measured(
    explainer: Explainer | None, rows: list[dict[str, Any]], plan: _Plan
) -> dict[str, Any]:
    """Measure some texts.

    Returns:
        What JSON can hold: "values", for each text the measures, the correlations with baselines
        and those with references; and "skipped", the texts that have no references, and why.
    """
    values, skipped = [], []
    for row in rows:
        scores = np.array(row["scores"], dtype=np.float64)
        special = np.array(row["special"], dtype=np.bool_)
        kept = np.ones_like(special)
        guesses = np.array(
            [
                baseline_scores(
                    name, row["tokens"], frequencies=plan.frequencies, seed=(plan.seed, row["row"])
                )
                for name in plan.baselines
            ]
        ).reshape(-1, len(scores))
        # All that a text has no value for is not defined.
        agreeing = np.full((1 + len(guesses), len(plan.references), 2), np.nan)
        if explainer is not None:
            try:
                references = _reference_values(explainer, row, plan)
            except AttnflowError as error:
                skipped.append([row["row"], str(error)])
            else:
                both = np.vstack([scores, guesses])
                agreeing = agreement(both, references, special, kept, (False,))[:, 0]
        likeness = agreement(guesses, scores[None], special, kept, (False,))
        values.append(
            np.concatenate(
                [_measures(scores, special, row, plan), likeness.ravel(), agreeing.ravel()]
            )
        )
    return {"values": listed(np.array(values)), "skipped": skipped}


def _measures(
    scores: NDArray[np.float64], special: NDArray[np.bool_], row: Mapping[str, Any], plan: _Plan
) -> NDArray[np.float64]:
    """Return `MEASURES` of the scores of a text."""
    result = dict.fromkeys(MEASURES, np.nan)
    if row["saturation"] is not None:
        result["saturation"] = row["saturation"]
    total = scores.sum()
    if total > 0:
        shares = scores / total
        positive = shares[shares > 0]
        # A sum of one token is minus 0.
        result["entropy"] = abs(float(positive @ np.log2(positive)))
        if len(scores) > 1:
            result["evenness"] = result["entropy"] / np.log2(len(scores))
        result["top_share"] = float(shares.max())
        if plan.options["special_tokens"]:
            result["special_share"] = float(shares[special].sum())
    return np.array(list(result.values()))


def _reference_values(
    explainer: Explainer, row: Mapping[str, Any], plan: _Plan
) -> NDArray[np.float64]:
    """Return the references of the stored tokens or words of a text, of shape (R, T)."""
    from attnflow.importance import importance

    options = plan.options
    text, truncate = row["text"], options["truncate"]
    encoded = explainer.adapter.read(text, truncate)
    # The positions of an encoder-decoder count its target's tokens, and the stored one all tokens.
    position = row["position"] - encoded.source
    values = np.stack(
        [
            importance(
                explainer,
                text,
                reference=name,
                target=options["target"],
                position=position,
                replacement=plan.replacement if name == "blank_out" else "auto",
                batch_size=plan.batch_size,
                truncate=truncate,
            )
            for name in plan.references
        ]
    )
    # A causal position sees what precedes it, and all others everything.
    found = [
        shown
        for seen in dict.fromkeys((len(encoded.tokens), row["position"] + 1))
        for left_out in (range(seen) if options["drop_sink"] else (None,))
        if (shown := _shown(encoded, values, seen, left_out, options, row)) is not None
    ]
    if not found:
        raise TextError(
            "the stored tokens are not those that the model's tokenizer finds in the text"
        )
    if any(not np.array_equal(shown, found[0]) for shown in found):
        raise TextError(
            "the attention sink was left out, and it is not known which of several tokens it was"
        )
    return found[0]


def _shown(
    encoded: Encoded,
    values: NDArray[np.float64],
    seen: int,
    left_out: int | None,
    options: Mapping[str, Any],
    row: Mapping[str, Any],
) -> NDArray[np.float64] | None:
    """Return references as the scores are stored, if the tokens come out as those that are."""
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
