"""The local engine: shards made on the CPUs of this machine, or by a model on its GPU.

On CPUs, every worker is a process that was forked with the model in memory, and uses one CPU for
the model's forward pass and for the scores. While one runs the model another solves flows, nothing
waits for the interpreter's lock, and no CPU has two threads. A model that is elsewhere runs in this
process, and threads compute scores while it runs.

The model computes with one thread in either case, so that the same numbers come out whatever the
number of workers.
"""

from __future__ import annotations

import os
import signal
import sys
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, NamedTuple

from attnflow.dataset.shard import Plan, Shard, make_shard
from attnflow.errors import DataError

if TYPE_CHECKING:
    from multiprocessing.connection import Connection

    from attnflow.dataset.source import Row
    from attnflow.explain import Explainer

__all__ = ["explain_shards"]


def explain_shards(
    explainer: Explainer,
    plan: Plan,
    todo: Iterator[tuple[int, list[Row]]],
    workers: int | None,
    let_go: Callable[[], object],
) -> Iterator[tuple[int, Shard]]:
    """Make shards, as many at once as there are workers.

    Args:
        explainer: The model.
        plan: What to do with the rows.
        todo: The numbers of the shards, and their rows. No more are taken than are worked on.
        workers: How many processes; None is one for each CPU.
        let_go: Called in a new process, to close what it has no business with.

    Yields:
        The number of a shard, and the shard, as they are finished.

    Raises:
        DataError: If a worker's process is ended from outside.
    """
    cpus = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    on_cpu = explainer.model.device.type == "cpu"
    if workers is None:
        # Forked processes must not use some frameworks of macOS.
        workers = cpus if sys.platform == "linux" else 1
    if workers == 1 or not on_cpu:
        yield from _here(explainer, plan, todo, 1 if on_cpu else max(1, cpus - 1))
    else:
        yield from _forked(explainer, plan, todo, workers, let_go)


def _here(
    explainer: Explainer, plan: Plan, todo: Iterator[tuple[int, list[Row]]], threads: int
) -> Iterator[tuple[int, Shard]]:
    from concurrent.futures import ThreadPoolExecutor

    with ThreadPoolExecutor(threads, "attnflow-scores") as pool:
        for number, rows in todo:
            with _one_thread():
                shard = make_shard(explainer, rows, plan, pool)
            yield number, shard


@contextmanager
def _one_thread() -> Iterator[None]:
    import torch

    before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(before)


class _Worker(NamedTuple):
    """A process, and the end of the pipe to it."""

    process: Any
    pipe: Connection


def _forked(
    explainer: Explainer,
    plan: Plan,
    todo: Iterator[tuple[int, list[Row]]],
    most: int,
    let_go: Callable[[], object],
) -> Iterator[tuple[int, Shard]]:
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
            target=_work, args=(there, inherited, let_go, explainer, plan), daemon=True
        )
        with warnings.catch_warnings():
            # The model's threads are idle, and the new process starts none.
            warnings.simplefilter("ignore", DeprecationWarning)
            process.start()
        there.close()
        started.append(_Worker(process, here))
        return started[-1]

    def finished() -> Iterator[tuple[int, Shard]]:
        ready = wait(list(busy))
        for worker in [worker for pipe, worker in busy.items() if pipe in ready]:
            del busy[worker.pipe]
            yield _receive(worker)
            idle.append(worker)

    idle: list[_Worker] = []
    try:
        for number, rows in todo:
            while not idle and len(started) >= most:
                yield from finished()
            worker = idle.pop() if idle else start()
            _send(worker, (number, rows))
            busy[worker.pipe] = worker
        while busy:
            yield from finished()
    finally:
        for worker in started:
            worker.pipe.close()
            worker.process.kill()
            worker.process.join()
            worker.process.close()


def _send(worker: _Worker, task: tuple[int, list[Row]]) -> None:
    try:
        worker.pipe.send(task)
    except OSError as error:
        raise _ended(worker) from error


def _receive(worker: _Worker) -> tuple[int, Shard]:
    try:
        number, result = worker.pipe.recv()
    except (EOFError, OSError) as error:
        raise _ended(worker) from error
    if isinstance(result, BaseException):
        raise result
    return number, result


def _ended(worker: _Worker) -> DataError:
    worker.process.join()
    code = worker.process.exitcode
    how = signal.Signals(-code).name if code is not None and code < 0 else f"status {code}"
    return DataError(
        f"a worker's process was ended from outside ({how}), as a system does that runs out of "
        "memory. The shards that are finished stay, and the same command goes on from there; fewer "
        "workers, or less memory for each, may help"
    )


def _work(
    pipe: Connection,
    inherited: list[Connection],
    let_go: Callable[[], object],
    explainer: Explainer,
    plan: Plan,
) -> None:
    """Make shards until the other side is gone."""
    import torch

    # Ctrl-C in a terminal reaches all processes, and is for the one that started these.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    let_go()
    for other in inherited:
        other.close()
    os.environ["TOKENIZERS_PARALLELISM"] = "false"
    torch.set_num_threads(1)
    try:
        while True:
            number, rows = pipe.recv()
            try:
                result: Shard | BaseException = make_shard(explainer, rows, plan)
            except Exception as error:
                result = _sendable(error)
            pipe.send((number, result))
    except (EOFError, OSError):
        return


def _sendable(error: Exception) -> Exception:
    import pickle

    try:
        pickle.loads(pickle.dumps(error))
    except Exception:
        return RuntimeError(f"{type(error).__name__}: {error}")
    return error
