"""Measure two versions of attnflow against each other, alternately and in one run.

Each version is installed in an environment of its own, in which a worker process measures it. The
workers take turns, so that other work on the machine slows down both alike:

    python -m benchmarks.compare old/.venv/bin/python new/.venv/bin/python --rounds 7

The measurements call only what both versions have, and always name the method. Each is made by the
clock and in CPU time, which other work on the machine changes less.
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import cache, partial
from itertools import product
from pathlib import Path
from typing import Any

from benchmarks.measure import ratio
from benchmarks.tables import Record, plain

ROOT = Path(__file__).parents[1]

METHODS = ("rollout", "flow")
# What is measured with SmolLM2, on texts of so many tokens.
_DECODER = (("rollout", "contribution"), (16, 128))
# Seconds for which a short call is repeated in one round; the least time counts.
_AT_LEAST = 0.5
# Number of texts in a data set, by their number of tokens.
_TEXTS = {16: 384, 64: 96}
_SENTENCE = "the keys to the old cabinet in the kitchen"
_IMPORT = """
from time import perf_counter, process_time
start, start_cpu = perf_counter(), process_time()
import attnflow
print(perf_counter() - start, process_time() - start_cpu)
"""


# In the environments -----------------------------------------------------------------------------

Times = list[float]
"""Seconds by the clock, and seconds of CPU time."""


def _measurements() -> dict[str, Callable[[], Times]]:
    """Return what a worker measures, by name."""
    from benchmarks import inputs

    found: dict[str, Callable[[], Times]] = {}
    for method in METHODS:
        for tokens, count in _TEXTS.items():
            name = f"attnflow.run, {method}, {count} texts of {tokens} tokens"
            found[name] = partial(_run, method, tokens, count)
        found[f"explain, verb-number model, {method}"] = partial(_explain_sentence, method)
        name = f"explain, MiniLM, 128 tokens, {method}"
        found[name] = partial(_explain_text, method, "real", 128)
    for method, tokens in product(*_DECODER) if inputs.installed("decoder") else ():
        name = f"explain, SmolLM2, {tokens} tokens, {method}"
        found[name] = partial(_explain_text, method, "decoder", tokens)
    for tokens in (64, 128):
        found[f"flow of all pairs, {tokens} tokens"] = partial(_all_pairs, tokens)
    found["AttentionGraph and its units, 128 tokens"] = _graph
    return found


def _least(call: Callable[[], Any]) -> Times:
    """Repeat a call, and return the least time of one."""
    taken: list[Times] = []
    while sum(seconds for seconds, _ in taken) < _AT_LEAST:
        start, start_cpu = time.perf_counter(), _cpu_time()
        call()
        taken.append([time.perf_counter() - start, _cpu_time() - start_cpu])
    return [min(times) for times in zip(*taken, strict=True)]


def _cpu_time() -> float:
    """Return the CPU time of this process and of those of its children that have ended."""
    usages = [resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
    return sum(usage.ru_utime + usage.ru_stime for usage in usages)


def _run(method: str, tokens: int, count: int) -> Times:
    import attnflow
    from benchmarks import inputs

    explainer = inputs.load("real")
    texts = inputs.texts(explainer.tokenizer, tokens, count)

    def run() -> None:
        with tempfile.TemporaryDirectory(prefix="attnflow-compare-") as folder:
            attnflow.run(texts, explainer, output=Path(folder) / "out", method=method)

    return _least(run)


@cache
def _verb_number() -> Any:
    import attnflow

    # The folder has moved between versions.
    (config,) = Path(attnflow.__file__).parent.rglob("config.json")
    return attnflow.Explainer.from_pretrained(config.parent, device="cpu")


def _explain_sentence(method: str) -> Times:
    explainer = _verb_number()
    return _least(lambda: explainer.explain(_SENTENCE, method=method))


def _explain_text(method: str, kind: str, tokens: int) -> Times:
    from benchmarks import inputs

    explainer = inputs.load(kind)
    (text,) = inputs.texts(explainer.tokenizer, tokens, 1)
    return _least(lambda: explainer.explain(text, method=method))


@cache
def _attention(tokens: int) -> Any:
    from benchmarks import inputs

    return inputs.attention("real", tokens)


def _all_pairs(tokens: int) -> Times:
    import attnflow

    graph = attnflow.AttentionGraph(_attention(tokens))
    _ = graph.units  # computed on first use
    return _least(lambda: attnflow.attention_flow(graph, num_threads=1))


def _graph() -> Times:
    import attnflow

    attention = _attention(128)
    return _least(lambda: attnflow.AttentionGraph(attention).units)


def _work() -> None:
    """Answer names of measurements, one a line, with times or an error, as JSON."""
    answers = os.fdopen(os.dup(sys.stdout.fileno()), "w", encoding="utf-8")
    # What libraries print must not mix with the answers.
    os.dup2(sys.stderr.fileno(), sys.stdout.fileno())
    measurements = _measurements()
    for line in sys.stdin:
        try:
            answer: Record = {"times": measurements[line.strip()]()}
        except Exception as error:
            answer = {"error": repr(error)}
        print(json.dumps(answer), file=answers, flush=True)


# The comparison ----------------------------------------------------------------------------------


class _Environment:
    """An environment with a version of attnflow, and the worker in it."""

    def __init__(self, python: str, threads: int) -> None:
        self.python = python
        self.worker = subprocess.Popen(
            [python, "-m", "benchmarks.compare", "--worker"],
            cwd=ROOT,
            env={**os.environ, "OMP_NUM_THREADS": str(threads), "HF_HUB_OFFLINE": "1"},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )

    def measure(self, name: str) -> Times:
        """Make a measurement.

        Raises:
            RuntimeError: If it failed.
        """
        if name == "import attnflow":
            command = [self.python, "-c", _IMPORT]
            shown = subprocess.run(command, check=True, capture_output=True).stdout
            return [float(seconds) for seconds in shown.split()]
        assert self.worker.stdin is not None
        assert self.worker.stdout is not None
        # A worker that has ended gives an empty answer.
        with suppress(BrokenPipeError):
            print(name, file=self.worker.stdin, flush=True)
        line = self.worker.stdout.readline() or '{"error": "its worker has ended"}'
        answer: Record = json.loads(line)
        if "error" in answer:
            raise RuntimeError(f"{name}, in {self.python}: {answer['error']}")
        return list(answer["times"])

    def close(self) -> None:
        """End the worker."""
        self.worker.kill()
        self.worker.communicate()


def compare(
    old: str, new: str, rounds: int, only: str = "", threads: int = 1
) -> dict[str, list[tuple[Times, Times]]]:
    """Measure two environments alternately.

    Args:
        old: Python executable of one environment.
        new: Python executable of the other.
        rounds: How many times each measurement is made in each, after a warm-up.
        only: Measure only what has this in its name.
        threads: Threads of torch in one process.

    Returns:
        For each measurement, the times of the old and of the new version in every round.

    Raises:
        RuntimeError: If a measurement failed.
    """
    names = [name for name in ("import attnflow", *_measurements()) if only in name]
    found: dict[str, list[tuple[Times, Times]]] = {name: [] for name in names}
    environments = [_Environment(old, threads), _Environment(new, threads)]
    try:
        for turn in range(rounds + 1):
            print(f"round {turn} of {rounds}" if turn else "warm-up", file=sys.stderr, flush=True)
            for name in names:
                # The order changes, so that neither always has the warmer machine.
                order = (0, 1) if turn % 2 else (1, 0)
                times = {index: environments[index].measure(name) for index in order}
                if turn:
                    found[name].append((times[0], times[1]))
    finally:
        for environment in environments:
            environment.close()
    return found


def table(found: dict[str, list[tuple[Times, Times]]]) -> list[Record]:
    """Return the rows of a table: medians of times, and of ratios with their range.

    Args:
        found: What `compare` returned.

    Example:
        >>> rounds = [([2.0, 1.0], [1.0, 1.0]), ([2.0, 1.0], [2.0, 1.0]), ([4.0, 1.0], [3.0, 1.0])]
        >>> (row,) = table({"x": rounds})
        >>> row["new_over_old"], row["range"], row["CPU_new_over_old"]
        (0.75, '0.50x to 1.00x', 1.0)
    """
    rows = []
    for name, pairs in found.items():
        row: Record = {
            "what": name,
            "old_seconds": statistics.median(old[0] for old, _ in pairs),
            "new_seconds": statistics.median(new[0] for _, new in pairs),
        }
        for kind, index in (("", 0), ("CPU_", 1)):
            old, new = ([times[version][index] for times in pairs] for version in (0, 1))
            row |= ratio(f"{kind}new_over_old", new, old, kind)
        rows.append(row)
    return rows


def main(argv: Sequence[str] | None = None) -> int:
    """Compare two environments and print the ratios.

    Args:
        argv: The arguments; None is those of this process.

    Returns:
        The exit status.
    """
    if list(sys.argv[1:] if argv is None else argv) == ["--worker"]:
        _work()
        return 0
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.compare",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("old", help="Python executable of the old version's environment")
    parser.add_argument("new", help="Python executable of the new version's environment")
    parser.add_argument("--rounds", type=int, default=5, help="after a warm-up (default: 5)")
    parser.add_argument("--only", default="", help="measure what has this in its name")
    parser.add_argument("--threads", type=int, default=1, help="threads of torch (default: 1)")
    parser.add_argument("--output", type=Path, help="save all times, as JSON")
    args = parser.parse_args(argv)
    found = compare(args.old, args.new, args.rounds, args.only, args.threads)
    if args.output is not None:
        args.output.write_text(json.dumps(found, indent=1) + "\n", encoding="utf-8")
    print(plain(table(found)))
    print("\nnew over old: median of the ratios of all rounds; below 1x, the new version is faster")
    return 0


if __name__ == "__main__":
    sys.exit(main())
