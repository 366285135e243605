"""The local engine: work done on the CPUs of this machine, or by a model on its GPU.

On CPUs, every worker is a process that was forked with the model in memory, and uses one CPU for
the model's forward pass and for the scores. While one runs the model another solves flows, nothing
waits for the interpreter's lock, and no CPU has two threads. A model that is elsewhere runs in this
process.

The model computes with one thread in either case, so that the same numbers come out whatever the
number of workers.
"""

from __future__ import annotations

import os
import signal
import sys
import warnings
from collections.abc import Callable, Generator, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar

from attnflow.errors import DataError

if TYPE_CHECKING:
    from multiprocessing.connection import Connection

    from attnflow.models import Explainer

__all__ = ["cpus", "local_map"]

Task = TypeVar("Task")
Found = TypeVar("Found")


def local_map(
    explainer: Explainer,
    work: Callable[[Explainer, Task], Found],
    todo: Iterator[tuple[int, Task]],
    workers: int | None,
    let_go: Callable[[], object],
) -> Generator[tuple[int, Found], None, None]:
    """Do work on numbered tasks, as many at once as there are workers.

    Args:
        explainer: The model.
        work: What is done with a task. What it returns, or raises, has to be picklable.
        todo: The tasks and their numbers. No more are taken than are worked on.
        workers: How many processes; None is one for each CPU.
        let_go: Called in a new process, to close what it has no business with.

    Yields:
        The number of a task, and what work made of it, as they are finished.

    Raises:
        DataError: If a worker's process is ended from outside.
    """
    if workers is None:
        # Forked processes must not use some frameworks of macOS.
        workers = cpus() if sys.platform == "linux" else 1
    if workers == 1 or explainer.model.device.type != "cpu":
        yield from _here(explainer, work, todo)
    else:
        yield from _forked(explainer, work, todo, workers, let_go)


def cpus() -> int:
    """Return how many CPUs this process may use."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def _here(
    explainer: Explainer,
    work: Callable[[Explainer, Task], Found],
    todo: Iterator[tuple[int, Task]],
) -> Iterator[tuple[int, Found]]:
    for number, task in todo:
        with _one_thread():
            found = work(explainer, task)
        yield number, found


@contextmanager
def _one_thread() -> Iterator[None]:
    import torch

    before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        with _plain_tokenizer():
            yield
    finally:
        torch.set_num_threads(before)


@contextmanager
def _plain_tokenizer() -> Iterator[None]:
    """Keep tokenizers to one thread; one that used several warns of every fork otherwise."""
    name = "TOKENIZERS_PARALLELISM"
    before = os.environ.get(name)
    os.environ[name] = "false"
    try:
        yield
    finally:
        if before is None:
            del os.environ[name]
        else:
            os.environ[name] = before


class _Worker(NamedTuple):
    """A process, and the end of the pipe to it."""

    process: Any
    pipe: Connection


def _forked(
    explainer: Explainer,
    work: Callable[[Explainer, Task], Found],
    todo: Iterator[tuple[int, Task]],
    most: int,
    let_go: Callable[[], object],
) -> Iterator[tuple[int, Found]]:
    from multiprocessing import get_context
    from multiprocessing.connection import wait

    context = get_context("fork")
    started: list[_Worker] = []
    busy: dict[Connection, _Worker] = {}

    def start() -> _Worker:
        here, there = context.Pipe()
        # A pipe ends when nobody holds its other end, so that no worker may hold another's.
        inherited = [here, *(worker.pipe for worker in started)]
        process = context.Process(
            target=_work, args=(there, inherited, let_go, explainer, work), daemon=True
        )
        with warnings.catch_warnings(), _plain_tokenizer():
            # The model's threads are idle, and the new process starts none.
            warnings.simplefilter("ignore", DeprecationWarning)
            process.start()
        there.close()
        started.append(_Worker(process, here))
        return started[-1]

    def finished() -> Iterator[tuple[int, Found]]:
        ready = wait(list(busy))
        for worker in [worker for pipe, worker in busy.items() if pipe in ready]:
            del busy[worker.pipe]
            yield _receive(worker)
            idle.append(worker)

    idle: list[_Worker] = []
    try:
        while True:
            # A task is taken once somebody is there to do it.
            while not idle and len(started) >= most:
                yield from finished()
            taken = next(todo, None)
            if taken is None:
                break
            worker = idle.pop() if idle else start()
            _send(worker, taken)
            busy[worker.pipe] = worker
        while busy:
            yield from finished()
    finally:
        for worker in started:
            worker.pipe.close()
            worker.process.kill()
            worker.process.join()
            worker.process.close()


def _send(worker: _Worker, task: tuple[int, Any]) -> None:
    try:
        worker.pipe.send(task)
    except OSError as error:
        raise _ended(worker) from error


def _receive(worker: _Worker) -> tuple[int, Any]:
    try:
        number, found, error = worker.pipe.recv()
    except (EOFError, OSError) as broken:
        raise _ended(worker) from broken
    if error is not None:
        raise error
    return number, found


def _ended(worker: _Worker) -> DataError:
    worker.process.join()
    code = worker.process.exitcode
    how = signal.Signals(-code).name if code is not None and code < 0 else f"status {code}"
    return DataError(
        f"a worker's process was ended from outside ({how}), as a system does that runs out of "
        "memory. What is finished stays, and the same command goes on from there; fewer "
        "workers, or less memory for each, may help"
    )


def _work(
    pipe: Connection,
    inherited: list[Connection],
    let_go: Callable[[], object],
    explainer: Explainer,
    work: Callable[[Explainer, Any], Any],
) -> None:
    """Do tasks until the other side is gone."""
    import torch

    # Ctrl-C in a terminal reaches all processes, and is for the one that started these.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    let_go()
    for other in inherited:
        other.close()
    torch.set_num_threads(1)
    try:
        while True:
            number, task = pipe.recv()
            try:
                answer: tuple[int, Any, Exception | None] = number, work(explainer, task), None
            except Exception as error:
                answer = number, None, _sendable(error)
            pipe.send(answer)
    except (EOFError, OSError):
        return


def _sendable(error: Exception) -> Exception:
    import pickle

    try:
        pickle.loads(pickle.dumps(error))
    except Exception:
        return RuntimeError(f"{type(error).__name__}: {error}")
    return error
