"""Run a solver where it can be stopped, and a function where nothing else has run.

A solver in one long call cannot be interrupted from within its process. So every graph is solved
in a process of its own, which sends its answers over a pipe and is killed when it exceeds its
budget. The processes are forked from a server that has imported the solvers and nothing else.
"""

from __future__ import annotations

import multiprocessing
import os
import signal
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from itertools import product
from multiprocessing import resource_tracker
from multiprocessing.connection import Connection
from typing import Any, NamedTuple
from unittest.mock import patch

import numpy as np
from numpy.typing import NDArray

from benchmarks.libraries import SCALE, Solver

SETUP_LIMIT = 30.0
"""Seconds that a solver may take to build its graph before it is stopped."""

_START_LIMIT = 120.0
_FLOOR_REPEATS = 3
_BLAS_THREADS = ("OMP", "OPENBLAS", "MKL", "VECLIB_MAXIMUM")
_SERVER = multiprocessing.get_context("forkserver")
_SERVER.set_forkserver_preload(
    ["benchmarks.solvers", "igraph", "maxflow", "networkx", "ortools.graph.python", "scipy.sparse"]
)


class Answer(NamedTuple):
    """One answer of a solver.

    Attributes:
        pair: Index of the pair.
        value: The flow, in the solver's own unit.
        prepared: Seconds of preparation.
        solved: Seconds of solving.
    """

    pair: int
    value: float
    prepared: float
    solved: float


@dataclass
class Answers:
    """What a solver answered about one graph.

    Attributes:
        setup: Seconds to build the graph; None if the solver was stopped before.
        scale: A value divided by this is the flow.
        tolerance: How far the flow may be off. With 0, the integers must be equal.
        given: The answers, in one or more passes over the pairs.
        floor: Seconds of the fastest query whose source has no outgoing edge; None if not reached.
        stopped: The limit in seconds at which the solver was stopped; None if it was not.
        error: The error of the solver, or an empty string.
    """

    setup: float | None = None
    scale: float = SCALE
    tolerance: float = 0.0
    given: list[Answer] = field(default_factory=list)
    floor: float | None = None
    stopped: float | None = None
    error: str = ""

    @property
    def pairs(self) -> int:
        """The number of pairs answered."""
        return len({answer.pair for answer in self.given})

    def seconds_per_pair(self) -> float:
        """Return the mean time of the fastest complete pass."""
        size = self.pairs
        starts = range(0, len(self.given) - size + 1, size)
        return min(sum(a.solved for a in self.given[i : i + size]) / size for i in starts)


@contextmanager
def _starting() -> Iterator[None]:
    """Start processes in this block. Their BLAS uses one thread, and Ctrl-C does not reach them.

    This process gets a Ctrl-C at the end of the block.
    """
    # On Python 3.11, starting the tracker unblocks the signal.
    resource_tracker.ensure_running()
    signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        with patch.dict(os.environ, {f"{name}_NUM_THREADS": "1" for name in _BLAS_THREADS}):
            yield
    finally:
        signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGINT})


def ask(
    solver: type[Solver],
    capacities: NDArray[np.int64],
    pairs: Sequence[tuple[int, int]],
    budget: float,
    passes: int = 3,
) -> Answers:
    """Let a solver build a graph and solve pairs until its budget is used.

    Args:
        solver: The solver's class; it must be importable by name.
        capacities: (L, n, n) integer capacities, lowest layer first.
        pairs: (source, sink) nodes.
        budget: Seconds for all pairs. A solver that has not answered its first pair by then is
            stopped; one that has gets a second budget to finish the pair it is solving.
        passes: How many times to go through the pairs if the budget allows.

    Returns:
        The answers and their times.
    """
    ours, theirs = _SERVER.Pipe(duplex=False)
    question = (theirs, solver, capacities, pairs, budget, passes)
    process = _SERVER.Process(target=_answer, args=question, daemon=True)
    with _starting():
        process.start()
    theirs.close()
    answers, limit = Answers(), _START_LIMIT
    deadline = time.perf_counter() + limit
    try:
        while ours.poll(max(0.0, deadline - time.perf_counter())):
            word, details = ours.recv()
            if word == "started":
                limit = SETUP_LIMIT
                deadline = time.perf_counter() + limit
            elif word == "ready":
                answers.setup, answers.scale, answers.tolerance = details
                limit = budget
                deadline = time.perf_counter() + limit
            elif word == "answer":
                if not answers.given:
                    deadline += budget
                answers.given.append(details)
            elif word == "error":
                answers.error = details
                return answers
            else:
                answers.floor = details
                return answers
        answers.stopped = limit
    except EOFError:
        # For example because memory ran out.
        answers.error = "its process ended unexpectedly"
    finally:
        process.kill()
        process.join()
        ours.close()
    return answers


def _answer(
    connection: Connection[Any, Any],
    make: type[Solver],
    capacities: NDArray[np.int64],
    pairs: Sequence[tuple[int, int]],
    budget: float,
    passes: int,
) -> None:
    # After Ctrl-C, there may be nobody to answer.
    with suppress(BrokenPipeError):
        try:
            # The first use imports what the server has not imported.
            _timed(make(np.full((1, 2, 2), SCALE // 2)), 0, 2, 0)
            connection.send(("started", None))
            begin = time.perf_counter()
            solver = make(capacities)
            setup = time.perf_counter() - begin
            connection.send(("ready", (setup, solver.scale, solver.tolerance)))
            begin, last = time.perf_counter(), 0.0
            for turn, (index, (source, sink)) in product(range(passes), enumerate(pairs)):
                used = time.perf_counter() - begin
                # An incomplete later pass does not count, so it starts only if there is time.
                ahead = last if turn == 0 else used / turn if index == 0 else 0.0
                if (turn, index) != (0, 0) and used + ahead > budget:
                    break
                answer = _timed(solver, index, source, sink)
                last = answer.prepared + answer.solved
                connection.send(("answer", answer))
            # No edge leaves a token, so the flow between two tokens is 0.
            floor = min(_timed(solver, 0, 0, 1).solved for _ in range(_FLOOR_REPEATS))
            connection.send(("done", floor))
        except Exception as error:
            connection.send(("error", repr(error)))


def _timed(solver: Solver, index: int, source: int, sink: int) -> Answer:
    begin = time.perf_counter()
    solver.prepare(source, sink)
    prepared = time.perf_counter()
    value = solver.solve(source, sink)
    return Answer(index, value, prepared - begin, time.perf_counter() - prepared)


def in_fresh_process(function: Callable[..., Any], *arguments: Any) -> Any:
    """Call a function in a new process, in which BLAS uses one thread.

    Args:
        function: What to call; it must be importable by name.
        *arguments: Its arguments.

    Returns:
        What the function returned.
    """
    pool = ProcessPoolExecutor(1, mp_context=_SERVER)
    with _starting():
        future = pool.submit(function, *arguments)
    with pool:
        return future.result()
