"""The data-set benchmark: how fast `attnflow.run` explains texts, and how much memory it takes.

The local engine is timed on texts of one length against a loop over `Explainer.explain`, and
against the model's own forward pass in batches, which is the least that any of it can take. Several
engines are timed against each other, their start included.
"""

from __future__ import annotations

import argparse
import multiprocessing
import os
import tempfile
import threading
import time
import warnings
from collections.abc import Callable, Iterable
from contextlib import suppress
from functools import partial
from itertools import cycle, islice
from pathlib import Path
from typing import Any, NamedTuple

import attnflow
from attnflow import OptionError
from attnflow.dataset.shard import batch_positions
from attnflow.models.verb_number import checkpoint
from benchmarks import inputs
from benchmarks.runs import Job, at_least
from benchmarks.tables import Record

HELP = "compare attnflow run with a loop and with the model's forward pass"

METHODS = ("raw", "rollout", "flow", "contribution")
# The model is a sentence encoder, whose default is the mean of all positions.
POSITION = "cls"
TOKENS = (16, 64, 256)
QUICK_TOKENS = (8, 16)

# Every worker gets this many shards of this many positions.
_SHARDS_PER_WORKER = 2
_POSITIONS = 4096
_QUICK_POSITIONS = 128
_REPEATS = 3
# The texts of a comparison of engines.
_WHOLE = 10_000
_QUICK_WHOLE = 16
# The memory measurement: words in a text, texts in a shard, seconds between samples, and the share
# of the samples after which memory counts as settled.
_WORDS = 12
_SHARD_ROWS = 512
_INTERVAL = 0.5
_SETTLED = 0.1


def add_options(parser: argparse.ArgumentParser) -> None:
    """Add the options of this benchmark to the command line."""
    add = parser.add_argument
    add("--tokens", nargs="+", type=at_least(3), help="text lengths (default: 16 64 256)")
    add("--workers", type=at_least(1), default=os.cpu_count(), help="CPUs to use (default: all)")
    add(
        "--engines",
        nargs="+",
        choices=("local", "ray"),
        default=["local"],
        help="engines of attnflow run to compare (default: local)",
    )
    add("--texts", type=at_least(0), default=0, help="texts of the memory measurement (default: 0)")


def options_of(args: argparse.Namespace) -> Record:
    """Return the options of a run from the command line.

    Raises:
        OptionError: If a length is too large for the model.
        MissingExtraError: If something is not installed.
    """
    inputs.check_installed("classifier")
    tokens = sorted(set(args.tokens or (QUICK_TOKENS if args.quick else TOKENS)))
    limit = inputs.MAX_TOKENS["classifier"]
    if tokens[-1] > limit:
        raise OptionError(f"--tokens: {tokens[-1]} given; the model has at most {limit} tokens")
    return {
        "tokens": tokens,
        "workers": args.workers,
        "engines": list(dict.fromkeys(args.engines)),
        "texts": args.texts,
        "quick": args.quick,
    }


def plan(document: Record) -> dict[str, Job]:
    """Return the measurements of a run by name.

    Args:
        document: The results of the run so far, with its options.
    """
    options = document["options"]
    jobs: dict[str, Job] = {f"dataset/{n}": partial(_rates, options, n) for n in options["tokens"]}
    if len(options["engines"]) > 1:
        jobs |= {f"whole/{name}": partial(_whole, options, name) for name in options["engines"]}
    if options["texts"]:
        jobs |= {f"memory/{name}": partial(_memory, options, name) for name in options["engines"]}
    return jobs


class _Taken(NamedTuple):
    """The time of something, and the CPU time of this process and of workers that have ended."""

    seconds: float
    cpu: float

    @classmethod
    def now(cls) -> _Taken:
        return cls(time.perf_counter(), sum(os.times()[:4]))

    def since(self) -> _Taken:
        now = self.now()
        return _Taken(now.seconds - self.seconds, now.cpu - self.cpu)


# Rates -------------------------------------------------------------------------------------------


def _rates(options: Record, tokens: int) -> Record:
    """Time texts of one length. All that is compared takes turns, and the best of each counts."""
    workers = options["workers"]
    rows = max(1, (_QUICK_POSITIONS if options["quick"] else _POSITIONS) // tokens)
    count = rows * workers * (1 if options["quick"] else _SHARDS_PER_WORKER)
    explainer = inputs.load("classifier")
    texts = inputs.texts(explainer.tokenizer, tokens, count)
    # A loop is slower, and each of its texts takes the same time.
    few = texts[: max(8, count // 16)]
    batches = _batches(explainer, texts)
    calls: list[tuple[str, int, Callable[[], _Taken]]] = [
        ("forward/threads", count, partial(_forward, explainer.model, batches, workers)),
        ("forward/processes", count, partial(_forked, explainer.model, batches, workers)),
    ]
    for method in METHODS:
        # Short texts may be faster without threads that wait for each other.
        for threads in {1, workers}:
            loop = partial(_loop, explainer, few, method, threads)
            calls.append((f"loop/{method}", len(few), loop))
        run = partial(_run_time, texts, explainer, method=method, workers=workers, shard_rows=rows)
        calls.append((f"local/{method}", count, run))
    explainer.explain(few[0], method="raw")  # the first call loads what is loaded once
    rates: dict[str, float] = {}
    cpu_rates: dict[str, float] = {}
    for _ in range(1 if options["quick"] else _REPEATS):
        for name, size, call in calls:
            taken = call()
            rates[name] = max(rates.get(name, 0.0), size / taken.seconds)
            cpu_rates[name] = max(cpu_rates.get(name, 0.0), size / taken.cpu)
    return {"texts": count, "texts_per_second": rates, "texts_per_cpu_second": cpu_rates}


def _batches(explainer: Any, texts: list[str]) -> list[Any]:
    """Return the inputs of the model, in the batches that the local engine makes."""
    encoded = explainer.tokenizer(texts, return_tensors="pt")
    encoded.pop("attention_mask")  # nothing is padded
    size = max(1, batch_positions(explainer) // encoded["input_ids"].shape[1])
    return [
        {name: values[i : i + size] for name, values in encoded.items()}
        for i in range(0, len(texts), size)
    ]


def _forward(model: Any, batches: list[Any], threads: int) -> _Taken:
    """Time the forward pass in this process."""
    import torch

    with inputs.torch_threads(threads), torch.inference_mode():
        start = _Taken.now()
        for batch in batches:
            model(**batch)
        return start.since()


def _forked(model: Any, batches: list[Any], workers: int) -> _Taken:
    """Time the forward pass in processes of one thread each, their start included."""
    fork = multiprocessing.get_context("fork")
    start = _Taken.now()
    processes = [
        fork.Process(target=_forward, args=(model, batches[i::workers], 1)) for i in range(workers)
    ]
    with warnings.catch_warnings():
        # The threads of this process are idle, and the new processes start none.
        warnings.simplefilter("ignore", DeprecationWarning)
        for process in processes:
            process.start()
    for process in processes:
        process.join()
        if process.exitcode:
            raise RuntimeError(f"a forward pass ended with status {process.exitcode}")
    return start.since()


def _loop(explainer: Any, texts: list[str], method: str, threads: int) -> _Taken:
    with inputs.torch_threads(threads):
        start = _Taken.now()
        for text in texts:
            explainer.explain(text, method=method, position=POSITION)
        return start.since()


def _run_time(texts: list[str], explainer: Any, **options: Any) -> _Taken:
    """Time a run from the first row of the source to the last of the output."""
    (first, _), *_, (last, _) = _run(texts, explainer, **options)
    # The CPU time of the workers is known once they have ended.
    return _Taken(last.seconds - first.seconds, first.since().cpu)


def _run(texts: Iterable[str], explainer: Any, **options: Any) -> list[tuple[_Taken, int]]:
    """Run `attnflow.run`, and return when it reported progress, and the new rows by then."""
    told: list[tuple[_Taken, int]] = []
    with tempfile.TemporaryDirectory(prefix="attnflow-bench-") as folder:
        attnflow.run(
            texts,
            explainer,
            output=Path(folder) / "out",
            progress=lambda progress: told.append((_Taken.now(), progress.new)),
            position=POSITION,
            **options,
        )
    return told


# Engines and memory ------------------------------------------------------------------------------


def _whole(options: Record, engine: str) -> Record:
    """Time a run of many short texts from its call to its end, with all that the engine starts."""
    tokens = options["tokens"][0]
    explainer = inputs.load("classifier")
    texts = inputs.texts(explainer.tokenizer, tokens, _QUICK_WHOLE if options["quick"] else _WHOLE)
    begun = _Taken.now()
    workers = options["workers"]
    told = _run(texts, explainer, method="rollout", engine=engine, workers=workers)
    return {
        "texts": len(texts),
        "tokens": tokens,
        "run_seconds": begun.since().seconds,
        "first_shard_seconds": next(t.seconds for t, new in told if new) - begun.seconds,
    }


def _memory(options: Record, engine: str) -> Record:
    """Sample the memory of a long run of short texts: of this process and of its workers.

    The model is the one that comes with attnflow, which is small enough for many texts.
    """
    explainer = attnflow.Explainer.from_pretrained(checkpoint(), device="cpu")
    words = inputs.text().split()
    texts = cycle([" ".join(words[i : i + _WORDS]) for i in range(len(words) - _WORDS)])
    count, workers = options["texts"], options["workers"]
    samples: list[int] = []
    stop = threading.Event()

    def watch() -> None:
        while True:
            own, *others = _memory_of_processes()
            if others or workers == 1:
                samples.append(own + sum(others))
            if stop.wait(_INTERVAL):
                return

    watcher = threading.Thread(target=watch, daemon=True)
    watcher.start()
    try:
        rows = min(_SHARD_ROWS, max(1, count // (4 * workers)))
        chosen = {"method": "rollout", "engine": engine, "workers": workers, "shard_rows": rows}
        (first, _), *_, (last, _) = _run(islice(texts, count), explainer, **chosen)
    finally:
        stop.set()
        watcher.join()
    settled = samples[int(len(samples) * _SETTLED) :]
    third = max(1, len(settled) // 3)
    # A saw-tooth is not growth, so this compares means.
    growth = (sum(settled[-third:]) - sum(settled[:third])) / third if settled else None
    return {
        "texts": count,
        "texts_per_second": count / (last.seconds - first.seconds),
        "peak_bytes": max(samples, default=None),
        "growth_bytes": growth,
        "samples": samples,
    }


def _memory_of_processes() -> list[int]:
    """Return the bytes of this process and of its descendants; shared memory counts in parts."""
    import psutil

    here = psutil.Process()
    found = []
    for process in [here, *here.children(recursive=True)]:
        with suppress(psutil.Error):  # it may have ended
            memory = process.memory_full_info()
            # The proportional share of shared memory is known on Linux only.
            found.append(getattr(memory, "pss", memory.rss))
    return found
