"""The benchmark of long texts: time and peak memory by the number of tokens.

The model's own forward pass, rollout, contributions and flow are each measured in a process of
their own, so that each has a peak of its own, and one that takes too long can be stopped.
"""

from __future__ import annotations

import argparse
import multiprocessing
import time
from collections.abc import Callable
from functools import partial
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

from attnflow import AttnflowError, OptionError
from benchmarks import inputs
from benchmarks.measure import give_back_memory, in_turns, memory_status, reset_peak
from benchmarks.runs import Job, at_least
from benchmarks.tables import Record

HELP = "measure time and memory of explanations of long texts"

METHODS = ("rollout", "contribution", "flow")
WHAT = ("forward", *METHODS)
TOKENS = (512, 1024, 2048, 4096, 8192)
FLOW_TOKENS = (512, 1024)
SHORT = (16, 32, 64, 128)
MAX_TOKENS = 8192
"""The longest text of SmolLM2."""

_QUICK = (16,)
_BUDGET = 1800
# Seconds that a process has to end, once it has sent its result.
_END = 30
_WARM_UP = 8
# A text below this many tokens is repeated, up to so many times or until so many seconds are over.
_ONCE_FROM = 4096
_REPEATS = 9
_SECONDS = 10.0
# Short texts: how often all take turns, and the seconds for which a short call is repeated in one.
_ROUNDS = 9
_AT_LEAST = 0.3


def add_options(parser: argparse.ArgumentParser) -> None:
    """Add the options of this benchmark to the command line."""

    def lengths(default: tuple[int, ...], of: str) -> Record:
        shown = " ".join(map(str, default))
        return {"nargs": "+", "type": at_least(3), "help": f"{of} (default: {shown})"}

    add = parser.add_argument
    add("--tokens", **lengths(TOKENS, "text lengths"))
    add(
        "--flow-tokens",
        **lengths(FLOW_TOKENS, "those of the text lengths at which flow is measured"),
    )
    add("--short", **lengths(SHORT, "lengths of the short texts, where all take turns"))
    add(
        "--budget",
        type=at_least(1),
        default=_BUDGET,
        metavar="SECONDS",
        help=f"stop a measurement that takes longer, loading included (default: {_BUDGET})",
    )


def options_of(args: argparse.Namespace) -> Record:
    """Return the options of a run from the command line.

    Raises:
        OptionError: If a length is too large for the model, or if the memory of a process cannot be
            measured on this system.
        MissingExtraError: If something is not installed.
    """
    if not Path("/proc/self/status").exists():
        raise OptionError("this benchmark reads the memory of a process from /proc: it needs Linux")
    inputs.check_installed("decoder")
    lengths = {
        "tokens": args.tokens or (_QUICK if args.quick else TOKENS),
        "flow_tokens": args.flow_tokens or (_QUICK if args.quick else FLOW_TOKENS),
        "short": args.short or (_QUICK if args.quick else SHORT),
    }
    for option, sizes in lengths.items():
        if max(sizes) > MAX_TOKENS:
            name = option.replace("_", "-")
            raise OptionError(
                f"--{name}: {max(sizes)} given; the model has at most {MAX_TOKENS} tokens"
            )
    return {
        **{option: sorted(set(sizes)) for option, sizes in lengths.items()},
        "budget": args.budget,
        "quick": args.quick,
    }


def plan(document: Record) -> dict[str, Job]:
    """Return the measurements of a run by name.

    Args:
        document: The results of the run so far, with its options.
    """
    options = document["options"]
    budget, quick = options["budget"], options["quick"]
    jobs: dict[str, Job] = {}
    for n in options["short"]:
        jobs[f"short/{n}"] = partial(in_own_process, budget, take_turns, quick, n)
    for n in options["tokens"]:
        for what in WHAT:
            job: Job = partial(in_own_process, budget, measure, quick, what, n)
            if what == "flow" and n not in options["flow_tokens"]:
                job = partial(_left_out, options)
            jobs[f"long/{what}/{n}"] = job
    return jobs


def _left_out(options: Record) -> Record:
    chosen = " ".join(map(str, options["flow_tokens"]))
    return {"status": "left out", "reason": f"not asked for (--flow-tokens {chosen})"}


# A process of its own ----------------------------------------------------------------------------


def in_own_process(budget: float, function: Callable[..., Record], *arguments: Any) -> Record:
    """Call a function in a new process, in which torch chooses its threads.

    Args:
        budget: Seconds after which it is stopped.
        function: What to call; it must be importable by name.
        *arguments: Its arguments.

    Returns:
        What the function returned, with "status": "measured"; or why it did not: the status
        "refused" (an error that attnflow raises on purpose, or too little memory), "stopped" (by
        the budget) or "failed", and the reason.
    """
    # Not forked: a fork shares memory with its parent, and inherits threads that do not run.
    context = multiprocessing.get_context("spawn")
    ours, theirs = context.Pipe(duplex=False)
    process = context.Process(target=_send, args=(theirs, function, arguments), daemon=True)
    process.start()
    theirs.close()
    try:
        if not ours.poll(budget):
            return {"status": "stopped", "reason": f"longer than {budget:,} s"}
        found: Record = ours.recv()
        # A process that is killed leaves semaphores behind.
        process.join(_END)
        return found
    except EOFError:
        process.join()
        # The system kills a process with signal 9 when there is no more memory.
        reason = f"its process ended with exit code {process.exitcode}"
        return {"status": "failed", "reason": reason}
    finally:
        process.kill()
        process.join()
        ours.close()


def _send(
    connection: Connection[Any, Any], function: Callable[..., Record], arguments: tuple[Any, ...]
) -> None:
    connection.send(attempt(function, *arguments))


def attempt(function: Callable[..., Record], *arguments: Any) -> Record:
    """Call a function, and return what `in_own_process` returns."""
    try:
        return {"status": "measured", **function(*arguments)}
    except (AttnflowError, MemoryError) as error:
        return {"status": "refused", "reason": _one_line(error)}
    except Exception as error:
        return {"status": "failed", "reason": f"{type(error).__name__}: {_one_line(error)}"}


def _one_line(error: BaseException) -> str:
    # A bar would end the cell of a table.
    return " ".join(str(error).split()).replace("|", "/") or type(error).__name__


# What is measured --------------------------------------------------------------------------------


class Case:
    """SmolLM2, and a text of so many tokens.

    Args:
        tokens: Number of tokens of the text.
    """

    def __init__(self, tokens: int) -> None:
        self.explainer, self.tokens = inputs.load("decoder"), tokens
        tokenizer = self.explainer.tokenizer
        self._texts = {n: inputs.texts(tokenizer, n, 1)[0] for n in {_WARM_UP, tokens}}

    def call(self, what: str, tokens: int | None = None) -> Callable[[], Any]:
        """Return what is timed.

        Args:
            what: One of `WHAT`.
            tokens: Number of tokens, that of the case by default.
        """
        text = self._texts[tokens or self.tokens]
        if what != "forward":
            return partial(self.explainer.explain, text, method=what)
        read = self.explainer.tokenizer(text, return_tensors="pt", verbose=False)
        return partial(self._forward, read["input_ids"])

    def _forward(self, ids: Any) -> Any:
        """Run the model as it was loaded: no cache, and logits of the last position only."""
        import torch

        with torch.inference_mode():
            return self.explainer.model(input_ids=ids, use_cache=False, logits_to_keep=1)

    def shape(self) -> Record:
        """Return the sizes of the model that decide how much memory a text needs."""
        model = self.explainer.model
        config = model.config.get_text_config()
        heads = config.num_attention_heads
        return {
            "layers": config.num_hidden_layers,
            "heads": heads,
            "key_value_heads": getattr(config, "num_key_value_heads", None) or heads,
            "head_size": getattr(config, "head_dim", None) or config.hidden_size // heads,
            "width": config.hidden_size,
            "bytes_per_number": model.dtype.itemsize,
            "parameters": model.num_parameters(),
        }


def measure(quick: bool, what: str, tokens: int) -> Record:
    """Measure time, CPU time and peak memory of one thing on one text.

    Args:
        quick: Whether to measure once.
        what: One of `WHAT`.
        tokens: Number of tokens of the text.
    """
    case = Case(tokens)
    case.call(what, _WARM_UP)()
    call = case.call(what)
    seconds: list[float] = []
    cpu: list[float] = []
    peaks: list[int] = []
    most = 1 if quick or tokens >= _ONCE_FROM else _REPEATS
    with inputs.torch_threads(None) as threads:
        while len(seconds) < most and sum(seconds) < _SECONDS:
            give_back_memory()
            # Where it cannot be reset, the peak may be that of loading the model.
            reset = reset_peak()
            before = memory_status("VmRSS")
            start, start_cpu = time.perf_counter(), time.process_time()
            call()
            seconds.append(time.perf_counter() - start)
            cpu.append(time.process_time() - start_cpu)
            peaks.append(memory_status("VmHWM") - before)
    return {
        "threads": threads,
        "seconds": seconds,
        "cpu_seconds": cpu,
        "peak_bytes": max(peaks),
        "peak_was_reset": reset,
        "shape": case.shape(),
    }


def take_turns(quick: bool, tokens: int) -> Record:
    """Time the forward pass and all methods in turns on a short text.

    Args:
        quick: Whether to measure once.
        tokens: Number of tokens of the text.
    """
    case = Case(tokens)
    calls = {what: case.call(what) for what in WHAT}
    rounds, least = (1, 0.0) if quick else (_ROUNDS, _AT_LEAST)
    with inputs.torch_threads(None) as threads:
        for call in calls.values():
            call()
        return {"threads": threads, "seconds": in_turns(calls, rounds, least)}
