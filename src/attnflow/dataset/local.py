"""The local engine: runs the model on the CPUs of this machine, or on its GPU.

On CPUs, every worker is a forked process that shares the model's memory and uses one CPU, for the
forward pass and for the scores. A model on another device runs in this process.

In both cases the model computes with one thread. The results therefore do not depend on the number
of workers.
"""

from __future__ import annotations

import os
import signal
import sys
import warnings
from collections.abc import Callable, Generator, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, TypeVar

from attnflow.errors import DataError

if TYPE_CHECKING:
    from multiprocessing.connection import Connection

    from attnflow.models import Explainer


Task = TypeVar("Task")
Found = TypeVar("Found")


def local_map(
    explainer: Explainer,
    work: Callable[[Explainer, Task], Found],
    todo: Iterator[tuple[int, Task]],
    workers: int | None,
    let_go: Callable[[], object],
) -> Generator[tuple[int, Found], None, None]:
    """Apply a function to numbered tasks, one per worker at a time.

    Args:
        explainer: The model.
        work: The function. What it returns or raises must be picklable.
        todo: The numbers and the tasks. A task is taken only when a worker is free.
        workers: The number of processes; None is one for each CPU.
        let_go: Called in every new process, to close files and locks that it inherited.

    Yields:
        The number of a task and its result, in the order in which tasks finish.

    Raises:
        DataError: If a worker process is killed.
    """
    if workers is None:
        # On macOS, forked processes must not use some system frameworks.
        workers = cpus() if sys.platform == "linux" else 1
    if workers == 1 or explainer.model.device.type != "cpu":
        for number, task in todo:
            with _one_thread():
                found = work(explainer, task)
            yield number, found
    else:
        yield from _forked(explainer, work, todo, workers, let_go)


def cpus() -> int:
    """Return how many CPUs this process may use."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def attempt(
    explainer: Explainer, work: Callable[[Explainer, Task], Found], task: Task
) -> tuple[Found | None, Exception | None]:
    """Do a task in a worker.

    Args:
        explainer: The model.
        work: What to do.
        task: What to do it with.

    Returns:
        The result and None, or None and the error. An error that cannot be pickled is replaced by a
        RuntimeError with its type and message.
    """
    import pickle

    try:
        return work(explainer, task), None
    except Exception as error:
        try:
            pickle.loads(pickle.dumps(error))
        except Exception:
            return None, RuntimeError(f"{type(error).__name__}: {error}")
        return None, error


@contextmanager
def environment(**values: str) -> Iterator[None]:
    """Set environment variables, and restore them when the context ends."""
    before = {name: os.environ.get(name) for name in values}
    os.environ.update(values)
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                os.environ.pop(name, None)
            else:
                os.environ[name] = value


@contextmanager
def _one_thread() -> Iterator[None]:
    import torch

    before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        with environment(TOKENIZERS_PARALLELISM="false"):
            yield
    finally:
        torch.set_num_threads(before)


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
    # The workers, by this process's end of the pipe to each.
    started: dict[Connection, Any] = {}
    idle: list[Connection] = []
    busy: list[Connection] = []

    def start() -> Connection:
        here, there = context.Pipe()
        # A worker ends when its pipe is closed here, so no other worker may keep this end open.
        process = context.Process(
            target=_work, args=(there, [here, *started], let_go, explainer, work), daemon=True
        )
        # Tokenizers warn after every fork unless they are told to use one thread.
        with warnings.catch_warnings(), environment(TOKENIZERS_PARALLELISM="false"):
            # Python warns because of the model's threads, which are idle.
            warnings.simplefilter("ignore", DeprecationWarning)
            process.start()
        there.close()
        started[here] = process
        return here

    def finished() -> Iterator[tuple[int, Found]]:
        ready = wait(busy)
        for pipe in [pipe for pipe in busy if pipe in ready]:
            busy.remove(pipe)
            try:
                number, found, error = pipe.recv()
            except (EOFError, OSError) as broken:
                raise _killed(started[pipe]) from broken
            if error is not None:
                raise error
            yield number, found
            idle.append(pipe)

    try:
        while True:
            while not idle and len(started) >= most:
                yield from finished()
            taken = next(todo, None)
            if taken is None:
                break
            pipe = idle.pop() if idle else start()
            try:
                pipe.send(taken)
            except OSError as error:
                raise _killed(started[pipe]) from error
            busy.append(pipe)
        while busy:
            yield from finished()
    finally:
        for pipe, process in started.items():
            pipe.close()
            process.kill()
            process.join()
            process.close()


def _killed(process: Any) -> DataError:
    process.join()
    code = process.exitcode
    how = signal.Signals(-code).name if code is not None and code < 0 else f"status {code}"
    return DataError(
        f"a worker process was killed ({how}); the system may be out of memory. Finished results "
        "are kept, and the same command resumes; try fewer workers, or less memory for each"
    )


def _work(
    pipe: Connection,
    inherited: list[Connection],
    let_go: Callable[[], object],
    explainer: Explainer,
    work: Callable[[Explainer, Any], Any],
) -> None:
    """Do tasks until the other end of the pipe is closed."""
    import torch

    # Ctrl-C in a terminal reaches all processes. The parent handles it.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    let_go()
    for other in inherited:
        other.close()
    torch.set_num_threads(1)
    try:
        while True:
            number, task = pipe.recv()
            pipe.send((number, *attempt(explainer, work, task)))
    except (EOFError, OSError):
        return
