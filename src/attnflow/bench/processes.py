"""Running a solver where it can be stopped, and a function where nothing else has run before.

A solver inside one long call cannot be interrupted from within, so every solver lives in a process
of its own: it is asked over a pipe and ended when it overruns its budget.
"""

from __future__ import annotations

import multiprocessing
import os
import signal
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from multiprocessing.connection import Connection
from multiprocessing.process import BaseProcess
from typing import Any

import numpy as np
from numpy.typing import NDArray

from attnflow.bench.solvers import SCALE, Solver

__all__ = ["SETUP_LIMIT", "Answers", "SolverProcess", "call_in_fresh_process"]

SETUP_LIMIT = 30.0
"""Seconds a solver may take to build its graph before it is stopped."""

_START_LIMIT = 120.0
_SPAWN = multiprocessing.get_context("spawn")


@dataclass
class Answers:
    """What a solver said about one graph.

    Attributes:
        setup: seconds to build the graph, None if it was stopped before that.
        values: (index of the pair, answer in the solver's own unit), over all passes.
        prepare: seconds of preparation of each answer, over all passes.
        passes: seconds of solving of each pair, one list a pass over the pairs.
        floor: seconds of the quickest query without a path out of its source, None if not reached.
        scale: what its answers are divided by to give a flow.
        tolerance: how far the quotient may be off; 0 demands equal integers.
        stopped: seconds after which it was stopped, None if it stopped by itself.
        error: what went wrong in it, empty if nothing did.
    """

    setup: float | None = None
    values: list[tuple[int, float]] = field(default_factory=list)
    prepare: list[float] = field(default_factory=list)
    passes: list[list[float]] = field(default_factory=list)
    floor: float | None = None
    scale: float = SCALE
    tolerance: float = 0.0
    stopped: float | None = None
    error: str = ""

    def seconds_per_pair(self) -> float | None:
        """Return the mean of the quickest complete pass, or of the answers if none is complete."""
        if not self.passes or not self.passes[0]:
            return None
        complete = [times for times in self.passes if len(times) == len(self.passes[0])]
        return min(sum(times) / len(times) for times in complete)


@contextmanager
def _interruption_later() -> Iterator[None]:
    """Put Ctrl-C off to the end of a block: a process half started would end in a traceback."""
    if threading.current_thread() is not threading.main_thread():
        yield  # only the main thread is interrupted
        return
    pending: list[tuple[int, Any]] = []
    before = signal.signal(signal.SIGINT, lambda number, frame: pending.append((number, frame)))
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)
    if pending and callable(before):
        before(*pending[0])


class SolverProcess:
    """One solver in a process of its own, used for many graphs.

    The process starts with the first question and runs until `close`.

    Args:
        solver: the solver's class; it must be importable by name.
    """

    def __init__(self, solver: type[Solver]) -> None:
        self._solver = solver
        self._process: BaseProcess | None = None
        self._connection: Connection[Any, Any] | None = None

    def close(self) -> None:
        """End the process, whatever it is doing."""
        if self._process is not None:
            # Ctrl-C while it was starting leaves a process that never was.
            if self._process.pid is not None:
                self._process.kill()
                self._process.join()
            self._process = None
        if self._connection is not None:
            self._connection.close()
            self._connection = None

    def _connected(self) -> Connection[Any, Any]:
        if self._connection is None:
            self._connection, theirs = _SPAWN.Pipe()
            self._process = _SPAWN.Process(target=_serve, args=(theirs, self._solver), daemon=True)
            with _interruption_later():
                self._process.start()
            theirs.close()
            # Importing a library is not part of building a graph.
            if not self._connection.poll(_START_LIMIT):
                self.close()
                raise TimeoutError(f"{self._solver.title} did not start in {_START_LIMIT:g} s")
            if (message := self._connection.recv()) is not None:
                self.close()
                raise RuntimeError(f"{self._solver.title} did not start: {message}")
        return self._connection

    def ask(
        self,
        capacities: Sequence[NDArray[np.int64]],
        pairs: Sequence[tuple[int, int]],
        budget: float,
        passes: int = 3,
    ) -> Answers:
        """Build one graph and ask for pairs until the budget is used.

        Args:
            capacities: one (n, n) array per layer, the lowest first.
            pairs: (source, sink) nodes.
            budget: seconds for all pairs. A solver that has not answered its first pair by then is
                stopped; one that has may finish a pair up to a second budget later.
            passes: how many times to go through the pairs if the budget allows.

        Returns:
            What it answered, and how long that took.
        """
        answers = Answers()
        try:
            connection = self._connected()
            connection.send((list(capacities), list(pairs), budget, passes))
            deadline = time.perf_counter() + SETUP_LIMIT
            while True:
                if not connection.poll(max(0.0, deadline - time.perf_counter())):
                    answers.stopped = SETUP_LIMIT if answers.setup is None else budget
                    self.close()
                    return answers
                word, *details = connection.recv()
                if word == "ready":
                    answers.setup, answers.scale, answers.tolerance = details
                    deadline = time.perf_counter() + budget
                elif word == "answer":
                    if not answers.values:
                        deadline += budget
                    _add_answer(answers, *details)
                elif word == "floor":
                    (answers.floor,) = details
                elif word == "error":
                    (answers.error,) = details
                    return answers
                else:
                    return answers
        except (EOFError, BrokenPipeError, ConnectionResetError):
            # The process is gone, for instance because memory ran out.
            answers.error = "its process ended unexpectedly"
            self.close()
            return answers
        except BaseException:
            # Ctrl-C above all: what it was asked would otherwise be answered to the next question.
            self.close()
            raise


def _add_answer(answers: Answers, index: int, value: float, prepare: float, solve: float) -> None:
    if index == 0:
        answers.passes.append([])
    answers.passes[-1].append(solve)
    answers.prepare.append(prepare)
    answers.values.append((index, value))


def _serve(connection: Connection[Any, Any], solver: type[Solver]) -> None:
    """Answer questions until the other end of the pipe is closed."""
    # Ctrl-C reaches every process of the terminal; the parent decides what it means.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    # When the parent is gone there is nobody to answer, and nothing to complain of.
    with suppress(BrokenPipeError):
        _serve_until_closed(connection, solver)


def _serve_until_closed(connection: Connection[Any, Any], solver: type[Solver]) -> None:
    try:
        small = solver([np.full((2, 2), SCALE // 2)])
        small.prepare(2, 0)
        small.solve(2, 0)
    except Exception as error:
        connection.send(repr(error))
        return
    connection.send(None)
    while True:
        try:
            capacities, pairs, budget, passes = connection.recv()
        except (EOFError, ConnectionResetError):
            return
        try:
            _answer(connection, solver, capacities, pairs, budget, passes)
        except Exception as error:
            connection.send(("error", repr(error)))
        else:
            connection.send(("done",))


def _answer(
    connection: Connection[Any, Any],
    make: type[Solver],
    capacities: list[NDArray[np.int64]],
    pairs: list[tuple[int, int]],
    budget: float,
    passes: int,
) -> None:
    clock = time.perf_counter
    start = clock()
    solver = make(capacities)
    connection.send(("ready", clock() - start, float(solver.scale), float(solver.tolerance)))
    begin, last = clock(), 0.0
    for turn, (index, (source, sink)) in (
        (turn, item) for turn in range(passes) for item in enumerate(pairs)
    ):
        # A later pass only counts when complete, so it is not begun without the time for it.
        ahead = last if turn == 0 else (clock() - begin) / turn if index == 0 else 0.0
        if (turn, index) != (0, 0) and clock() - begin + ahead > budget:
            break
        before = clock()
        solver.prepare(source, sink)
        prepared = clock()
        value = solver.solve(source, sink)
        solved = clock()
        last = solved - before
        connection.send(("answer", index, value, prepared - before, solved - prepared))
    connection.send(("floor", min(_floor_times(solver))))


def _floor_times(solver: Solver) -> Iterator[float]:
    """Time queries from one token to another: no edge leaves a token, so the flow is 0."""
    for _ in range(3):
        solver.prepare(0, 1)
        before = time.perf_counter()
        solver.solve(0, 1)
        yield time.perf_counter() - before


def call_in_fresh_process(
    function: Callable[..., Any], *arguments: Any, environment: Mapping[str, str] | None = None
) -> Any:
    """Call a function in a new interpreter.

    Args:
        function: what to call; it must be importable by name.
        *arguments: what to call it with.
        environment: variables to set for it, such as the number of threads of a BLAS library, which
            is read once when NumPy is imported.

    Returns:
        What the function returned.

    Raises:
        RuntimeError: the function raised; the message has its error.
    """
    ours, theirs = _SPAWN.Pipe(duplex=False)
    process = _SPAWN.Process(target=_call, args=(theirs, function, arguments), daemon=True)
    with _environment(environment or {}):
        process.start()
    theirs.close()
    try:
        succeeded, value = ours.recv()
    except EOFError:
        raise RuntimeError(f"{function.__name__} ended unexpectedly") from None
    finally:
        process.kill()
        process.join()
        ours.close()
    if not succeeded:
        raise RuntimeError(f"{function.__name__} failed: {value}")
    return value


def _call(
    connection: Connection[Any, Any], function: Callable[..., Any], arguments: tuple[Any, ...]
) -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        connection.send((True, function(*arguments)))
    except Exception as error:
        connection.send((False, repr(error)))


@contextmanager
def _environment(variables: Mapping[str, str]) -> Iterator[None]:
    before = {name: os.environ.get(name) for name in variables}
    os.environ.update(variables)
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                del os.environ[name]
            else:
                os.environ[name] = value
