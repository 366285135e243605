"""`run`: explain all texts of a source, and store the explanations."""

from __future__ import annotations

import os
import pickle
import signal
import tempfile
import threading
from array import array
from collections.abc import Callable, Iterable, Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass, field
from functools import partial
from itertools import islice
from pathlib import Path
from typing import Any, Final, NamedTuple

import numpy as np

from attnflow import checks
from attnflow.dataset.attentions import DTYPES, require_safetensors
from attnflow.dataset.engine import Map, check_explainer, opened
from attnflow.dataset.shard import Plan, check_options, make_shard
from attnflow.dataset.source import Row, Source
from attnflow.dataset.store import Store, digest
from attnflow.dataset.table import name_in_output
from attnflow.errors import DataError, OptionError
from attnflow.io.records import require_pyarrow
from attnflow.models import Explainer
from attnflow.options import ANSWER_METHODS
from attnflow.version import __version__

SHARD_ROWS: Final = 512
MEMORY: Final = 512


class Progress(NamedTuple):
    """The progress of a run.

    Attributes:
        done: How many rows are done, including those that failed and those of earlier runs.
        failed: How many of them failed.
        new: How many of them this run did.
        expected: About how many rows there are; None if that is not known.
    """

    done: int
    failed: int
    new: int
    expected: int | None


class Result(NamedTuple):
    """The result of a run.

    Attributes:
        output: The folder.
        rows: How many rows are explained; they are in the folder "data".
        failed: How many rows failed; they are in the folder "errors".
        new: How many rows this run did itself.
        remade: The shards of an earlier run that were made again, because their files were missing
            or had changed.
    """

    output: Path
    rows: int
    failed: int
    new: int
    remade: tuple[int, ...]


def run(
    source: Any,
    explainer: Explainer,
    *,
    output: str | os.PathLike[str],
    method: str = "auto",
    engine: str = "local",
    address: str | None = None,
    device: str = "auto",
    format: str = "auto",
    text_column: str | None = None,
    pair_column: str | None = None,
    id_column: str | None = None,
    columns: Iterable[str] | None = None,
    limit: int | None = None,
    shuffle: int | None = None,
    strict: bool = False,
    shard_rows: int = SHARD_ROWS,
    workers: int | None = None,
    memory: int = MEMORY,
    keep: Iterable[str] = (),
    keep_dtype: str = "float16",
    progress: Callable[[Progress], object] | None = None,
    on_interrupt: Callable[[], object] | None = None,
    **options: Any,
) -> Result:
    r"""Explain every text of a source, and store the explanations as a Parquet data set.

    The same call resumes a run that was stopped, and writes the same bytes as a run that was not.
    After Ctrl-C, the run ends once the shards in progress are written.

    Args:
        source: The path of a file (plain text, CSV, TSV, JSON lines or Parquet; all but the last
            may be gzipped), or of a folder of them; "-" for standard input; a table in memory,
            such as a data frame of pandas or polars, an Arrow table or a Hugging Face `Dataset`;
            or an iterable of strings, of tuples of two strings, or of mappings. Pipes and iterables
            are read once.
        explainer: The model.
        output: The folder to write to; it is made if it does not exist.
        method: "contribution", "raw", "rollout" or "flow", as in `Explainer.explain`. "auto" is
            "rollout" if attention is kept.
        engine: What runs the model: "local", this machine, or "ray", a Ray cluster.
        address: The Ray cluster: "auto" for the one that this machine is part of, or its
            "host:port". None starts one on this machine, for this run.
        device: Where the workers of a Ray cluster run the model: "cpu", "cuda" for a GPU each, or
            "auto" for GPUs if the cluster has any.
        format: "text", "csv", "tsv", "jsonl" or "parquet". "auto" goes by the ending of the file's
            name, or by its first line.
        text_column: The column that has the text. None looks for "text" and "sentence", or takes
            the only column.
        pair_column: The column that has the second text of each pair, such as a hypothesis, for a
            model that reads two texts as one input. None reads one text a row.
        id_column: A column that names each row. None takes the row's number.
        columns: Which other columns to carry through. None carries all.
        limit: The largest number of rows.
        shuffle: A seed to process rows in random order, so that the rows done so far are a random
            sample. The rows are copied to a temporary file in the output.
        strict: Stop at the first row that fails, instead of listing it among the errors.
        shard_rows: How many rows make a shard.
        workers: How many processes run the model, each on one CPU. None means one for each CPU that
            this process may use, or that is free in the Ray cluster. Without Ray, a model that is
            not on the CPU runs in this process.
        memory: The memory for the batches of one worker, in MiB. A text that takes more fails.
        keep: What else to store. ("attentions",) stores the attention of every row, heads fused, in
            the folder "attentions". `attnflow.dataset.load_attentions` explains it by any method
            without the model. It takes 2 n^2 bytes per layer for n tokens.
        keep_dtype: The type of the stored attention: "float16", or "float32", which takes twice the
            space.
        progress: Called after every shard with a `Progress`.
        on_interrupt: Called at the first Ctrl-C.
        **options: Options of `Explainer.explain`, such as `layer`, `units` and `truncate`.

    Returns:
        Where the data set is, and how many rows it has.

    Raises:
        OptionError: If an option is not valid, or the output belongs to another run; the message
            says what differs.
        DataError: If the source cannot be read or has changed, the output cannot be written, or a
            row fails and `strict` is True. Finished shards are kept.
        MissingExtraError: If pyarrow, or Ray for its engine, is not installed.
        KeyboardInterrupt: After Ctrl-C.

    Example:
        >>> from transformers import BertConfig, BertModel, BertTokenizerFast
        >>> words = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "keys", "open", "doors"]
        >>> vocabulary = {word: index for index, word in enumerate(words)}
        >>> config = BertConfig(vocab_size=8, hidden_size=8, num_hidden_layers=2,
        ...                     num_attention_heads=2, intermediate_size=8)
        >>> from attnflow import Explainer
        >>> explainer = Explainer(BertModel(config), BertTokenizerFast(vocab=vocabulary))
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     result = run(["keys open doors", "", "open keys"], explainer,
        ...                  output=f"{folder}/out", workers=1)
        ...     import pyarrow.parquet
        ...     table = pyarrow.parquet.read_table(f"{folder}/out/data")
        ...     errors = pyarrow.parquet.read_table(f"{folder}/out/errors")
        >>> result.rows, result.failed
        (2, 1)
        >>> table["tokens"].to_pylist()[1]
        ['[CLS]', 'open', 'keys', '[SEP]']
        >>> errors["reason"].to_pylist()
        ['the text is empty; there is nothing to explain']
    """
    require_pyarrow()
    check_explainer(explainer)
    if not isinstance(output, str | os.PathLike) or "\0" in os.fspath(output):
        raise OptionError(f"output is {output!r}; expected the path of a folder")
    limit, shuffle, workers = (
        None if value is None else checks.integer(value, name, least=least, otherwise="None")
        for name, value, least in (
            ("limit", limit, 1),
            ("shuffle", shuffle, 0),
            ("workers", workers, 1),
        )
    )
    shard_rows = checks.integer(shard_rows, "shard_rows", least=1)
    memory = checks.integer(memory, "memory", least=1)
    strict = checks.switch(strict, "strict")
    if columns is not None:
        columns = checks.items(columns, "columns", "names", allow_empty=True)
    kept = _check_keep(keep, keep_dtype, explainer.task)
    if kept is not None and method == "auto":
        method = "rollout"
    chosen = check_options(explainer, {"method": method, **options})
    if kept is not None and chosen["method"] in ANSWER_METHODS:
        raise OptionError(
            f"keep is {keep!r}, but method={method!r} captures no attention; expected 'raw', "
            "'rollout' or 'flow'"
        )
    # A cluster that cannot be joined is reported before the source is read.
    with opened(engine, workers=workers, address=address, device=device) as mapped:
        rows = Source(
            source,
            format=format,
            text_column=text_column,
            pair_column=pair_column,
            id_column=id_column,
            columns=columns,
        )
        _check_names(rows)
        if rows.pair_column is not None:
            _check_pairs(rows, explainer)
        made_of = {
            "attnflow": __version__,
            "model": explainer.name,
            "path": explainer.path,
            "fingerprint": explainer.fingerprint(),
            "task": explainer.task,
        }
        header = {
            **made_of,
            "options": {
                **chosen,
                "text_column": rows.text_column,
                "pair_column": rows.pair_column,
                "id_column": id_column,
                "columns": columns,
                "limit": limit,
                "shuffle": shuffle,
                "shard_rows": shard_rows,
                "keep": [] if kept is None else ["attentions"],
                "keep_dtype": kept,
            },
            "source": {"name": rows.name, "files": rows.files},
        }
        with Store(output, header) as store:
            plan = Plan(
                options=chosen,
                text_column=rows.text_column,
                pair_column=rows.pair_column,
                id_column=id_column,
                id_type=rows.id_type,
                carried=tuple(rows.carried),
                keeps_rest=rows.keeps_rest,
                memory=memory * 2**20,
                # If the model has another path when a run is resumed, the first path is used.
                metadata={name: store.header[name] for name in (*made_of, "options")},
                keep=kept,
            )
            chosen_rows: Iterator[Row] = islice(rows, limit)
            if shuffle is not None:
                chosen_rows = _shuffled(iter(rows), shuffle, limit, store.folder)
            expected = rows.expected
            if expected is not None and limit is not None:
                expected = min(expected, limit)
            job = _Job(store, rows, chosen_rows, shard_rows, expected, strict, progress)
            if not (store.complete and rows.files):
                with _interrupts(on_interrupt) as job.interrupted:
                    job.run(explainer, plan, mapped)
                if not store.complete:
                    raise KeyboardInterrupt
            remade = tuple(store.damaged)
            return Result(Path(output), store.rows, store.failed, job.new, remade)


@dataclass
class _Job:
    """The shards of a source that are missing in an output.

    Attributes:
        store: The output.
        source: The source.
        rows: The rows to explain, in order.
        shard_rows: How many rows make a shard.
        expected: About how many rows there are, or None.
        strict: Whether to stop at the first row that fails.
        progress: Called after every shard.
        interrupted: Set if no further shard is to be started.
        digests: The digests of the rows of the shards in progress.
        ended: Whether all rows have been read.
    """

    store: Store
    source: Source
    rows: Iterator[Row]
    shard_rows: int
    expected: int | None
    strict: bool
    progress: Callable[[Progress], object] | None
    interrupted: threading.Event = field(default_factory=threading.Event)
    digests: dict[int, str] = field(default_factory=dict)
    ended: bool = False

    def __post_init__(self) -> None:
        self.before = self.done

    @property
    def done(self) -> int:
        """How many rows are done."""
        return self.store.rows + self.store.failed

    @property
    def new(self) -> int:
        """How many rows this run has done."""
        return self.done - self.before

    def run(self, explainer: Explainer, plan: Plan, mapped: Map) -> None:
        """Make the shards that are missing, and mark the output complete once none is."""
        store = self.store
        self.tell()
        work = partial(make_shard, plan=plan)
        with closing(mapped(explainer, work, self.missing(), store.close)) as made:
            for number, shard in made:
                if self.strict and shard.first_error is not None:
                    raise DataError(
                        f"{shard.first_error}. The run stops because of strict=True; finished "
                        "shards are kept"
                    )
                store.add(number, shard, self.digests.pop(number))
                self.tell()
        self.source.check_unchanged()
        if self.ended:
            store.finish()

    def tell(self) -> None:
        """Tell the caller how far the run is."""
        if self.progress is not None:
            self.progress(Progress(self.done, self.store.failed, self.new, self.expected))

    def missing(self) -> Iterator[tuple[int, list[Row]]]:
        """Yield the shards to make: their numbers and their rows."""
        number = 0
        while not self.interrupted.is_set():
            rows = list(islice(self.rows, self.shard_rows))
            if not rows:
                self.ended = True
                break
            read = "".join(repr((row.number, row.values, row.fault)) for row in rows)
            found = digest(read.encode("utf-8", "surrogatepass"))
            known = self.store.shards.get(number)
            if known is None:
                self.digests[number] = found
                yield number, rows
            elif known["source"] != found:
                first = number * self.shard_rows
                raise self.changed(f"its rows from {first} on are not those that were explained")
            number += 1
        if self.ended and any(known >= number for known in self.store.shards):
            raise self.changed("it has fewer rows than were explained")

    def changed(self, how: str) -> DataError:
        """Return the error for a source that is not the one the output was made of."""
        return DataError(
            f"{self.source.name} has changed since the output {self.store.folder} was made: {how}. "
            "Its results are kept; choose another output"
        )


def _shuffled(rows: Iterator[Row], seed: int, limit: int | None, folder: Path) -> Iterator[Row]:
    """Yield rows in random order, from a temporary copy on disk."""
    places = array("Q")
    with tempfile.TemporaryFile(dir=folder, prefix=".attnflow-", suffix=".tmp") as copy:
        try:
            for row in rows:
                places.append(copy.tell())
                pickle.dump(tuple(row), copy, protocol=5)
            copy.flush()
        except OSError as error:
            raise DataError(
                f"output {folder} cannot hold the copy of the rows that shuffle needs: "
                f"{error.strerror}"
            ) from error
        for index in np.random.default_rng(seed).permutation(len(places))[:limit]:
            copy.seek(places[int(index)])
            yield Row(*pickle.load(copy))


@contextmanager
def _interrupts(tell: Callable[[], object] | None) -> Iterator[threading.Event]:
    """Let the first Ctrl-C set an event; a second one raises KeyboardInterrupt."""
    asked = threading.Event()
    usual = signal.getsignal(signal.SIGINT)
    # A handler that the caller has installed stays.
    ours = threading.current_thread() is threading.main_thread() and (
        usual is signal.default_int_handler
    )

    def handle(number: int, frame: object) -> None:
        asked.set()
        signal.signal(signal.SIGINT, usual)
        if tell is not None:
            tell()

    if ours:
        signal.signal(signal.SIGINT, handle)
    try:
        yield asked
    finally:
        if ours:
            signal.signal(signal.SIGINT, usual)


def _check_names(source: Source) -> None:
    """Check that no two columns of the source get the same name in the output."""
    named: dict[str, str] = {}
    for column in source.carried:
        name = name_in_output(column.name)
        other = named.setdefault(name, column.name)
        if other != column.name:
            raise OptionError(
                f"{source.name} has the columns {other!r} and {column.name!r}, which would both be "
                f"{name!r} in the output; choose with columns which to carry through"
            )


def _check_pairs(source: Source, explainer: Explainer) -> None:
    """Check that a model reads pairs of texts."""
    if explainer.adapter.reads_pairs:
        return
    raise OptionError(
        f"pair_column is {source.pair_column!r}, but {explainer.name} is a model for "
        f"{explainer.task}, which does not read two texts as a pair; leave it out, or join the two "
        "texts to one"
    )


def _check_keep(keep: Any, dtype: Any, task: str) -> str | None:
    """Return the type that attention is kept in; None if it is not kept."""
    names = [keep] if isinstance(keep, str) else list(keep)
    for name in names:
        checks.choice(name, "keep", ("attentions",))
    kept = checks.choice(dtype, "keep_dtype", DTYPES)
    if not names:
        return None
    if task == "seq2seq-lm":
        raise OptionError(
            f"keep is {keep!r}, but the model is for {task}: attention can be kept only for models "
            "that read one text; leave keep out"
        )
    require_safetensors("keep='attentions'")
    return kept
