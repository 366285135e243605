"""The Ray engine: runs the model in actors of a Ray cluster.

This process reads the source and writes the output, so neither needs to be on a shared disk. Every
worker is an actor with the model in memory. Ray's object store brings the model to each machine
once. A worker has at most two tasks: one that it computes, and the next. Nothing else is taken
from the source, so memory stays bounded.

If a worker or its machine is lost, its tasks go to the other workers. A new worker is started as
soon as the cluster has room for one. A task that loses four workers ends the run with an error.
"""

from __future__ import annotations

import io
import os
import sys
import threading
import time
import warnings
from collections import Counter
from collections.abc import Callable, Generator, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager, redirect_stdout
from itertools import chain
from typing import TYPE_CHECKING, Any, Final, NamedTuple, TypeVar

from attnflow.checks import choice, invalid
from attnflow.dataset.local import attempt, cpus, environment
from attnflow.errors import AttnflowError, DataError, MissingExtraError, OptionError

if TYPE_CHECKING:
    from attnflow.models import Explainer


Task = TypeVar("Task")
Found = TypeVar("Found")

DEVICES: Final = ("auto", "cpu", "cuda")
# One task to compute, and one that is there when it is finished.
_TASKS_EACH: Final = 2
# How many times a task is repeated after its worker was lost.
_RETRIES: Final = 3
# Seconds between two checks of the cluster while nothing is finished.
_POLL: Final = 1.0
# Seconds to wait until the cluster reports the room that workers leave.
_SETTLING: Final = 30.0
# The packages that determine the bytes of the results.
_PACKAGES: Final = ("attnflow", "numpy", "pyarrow", "tokenizers", "torch", "transformers")


class Cluster(NamedTuple):
    """A Ray cluster that this process has joined.

    Attributes:
        asked: The number of workers asked for; None is as many as there is room for.
        on_gpu: Whether every worker has a GPU.
    """

    asked: int | None
    on_gpu: bool

    def size(self) -> int:
        """Return how many workers there would be room for if nothing else ran."""
        import ray

        machines = [node["Resources"] for node in ray.nodes() if node["Alive"]]
        return sum(min(int(has.get(need, 0)) for need in self._needs) for has in machines)

    def room(self) -> int:
        """Return how many workers there is room for at the moment."""
        import ray

        free = ray.available_resources()
        return min(self.size(), *(int(free.get(need, 0)) for need in self._needs))

    def check_room(self) -> None:
        """Check that there is room for the workers.

        Raises:
            OptionError: If there is not.
        """
        room, wanted = self.room(), self.asked or 1
        if room < wanted:
            raise OptionError(
                f"workers is {wanted}, but the Ray cluster has room for {room}: each worker needs "
                f"a {' and a '.join(reversed(self._needs))}. All machines together have room for "
                f"{self.size()}, and other jobs use the rest. Wait until these end, or add a "
                "machine with: ray start --address"
            )

    @property
    def _needs(self) -> tuple[str, ...]:
        return ("CPU", "GPU") if self.on_gpu else ("CPU",)


@contextmanager
def joined(
    address: str | None = None, workers: int | None = None, device: str = "auto"
) -> Iterator[Cluster]:
    """Join a Ray cluster, or start one on this machine that ends with the context.

    A process that has already joined a cluster uses that one, and stays in it.

    Args:
        address: "auto" for the cluster that this machine is part of, or the "host:port" of one.
            None starts one.
        workers: The number of workers, each with one CPU. None is as many as there is room for.
        device: "cpu", "cuda" for a GPU for each worker, or "auto" for GPUs if there are any.

    Raises:
        MissingExtraError: If Ray is not installed.
        OptionError: If there is no such cluster, or no room in it for the workers.
    """
    from importlib.util import find_spec

    choice(device, "device", DEVICES)
    if address is not None and (not isinstance(address, str) or not address):
        raise invalid("address", address, "'auto', 'host:port' or None")
    if find_spec("ray") is None:
        raise MissingExtraError(
            'the Ray engine needs Ray, which is not installed; run: pip install "attnflow[ray]"'
        )
    # Ray reads this when it is imported. A cluster of one machine then accepts no other machine.
    with _defaults(**({"RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER": "0"} if address is None else {})):
        import ray

    with ExitStack() as stack:
        if not ray.is_initialized():
            stack.enter_context(redirect_stdout(_WithoutRay(sys.stdout)))
            _connect(address, workers)
            stack.callback(_leave)
        gpus = ray.cluster_resources().get("GPU", 0)
        cluster = Cluster(workers, gpus >= 1 if device == "auto" else device == "cuda")
        cluster.check_room()
        yield cluster


def ray_map(
    explainer: Explainer,
    work: Callable[[Explainer, Task], Found],
    todo: Iterator[tuple[int, Task]],
    cluster: Cluster,
) -> Generator[tuple[int, Found], None, None]:
    """Apply a function to numbered tasks, in the workers of a cluster.

    Args:
        explainer: The model.
        work: The function, which every machine must be able to import. What it returns or raises
            must be picklable.
        todo: The numbers and the tasks. At most two for each worker are taken ahead.
        cluster: The cluster.

    Yields:
        The number of a task and its result, in the order in which tasks finish.

    Raises:
        OptionError: If the cluster has no room any more.
        DataError: If the same task loses worker after worker, or a machine of the cluster has other
            versions of the packages than this one.
    """
    import ray

    first = next(todo, None)
    if first is None:
        return
    room = cluster.room()
    if room < 1:
        cluster.check_room()
    recipe = ray.put(_recipe(explainer, work, cluster.on_gpu))
    pool = _Pool(cluster, recipe, min(room, cluster.asked or room))
    tasks = chain([first], todo)
    ended = False
    try:
        while True:
            while not ended and pool.wants_task():
                taken = next(tasks, None)
                ended = taken is None
                if taken is not None:
                    pool.add(*taken)
            if ended and not pool.tasks:
                break
            yield from pool.results()
    finally:
        # The process may have left the cluster before this generator was closed.
        if ray.is_initialized():
            pool.close()
            # The next map would otherwise find no room.
            _settle(cluster, room)


def _settle(cluster: Cluster, places: int) -> None:
    """Wait until lost or ended workers have left room for new ones."""
    until = time.monotonic() + _SETTLING
    while cluster.room() < min(places, cluster.size()) and time.monotonic() < until:
        time.sleep(0.1)


# ---- The cluster ---------------------------------------------------------------------------------


class _WithoutRay:
    """Standard output without the messages that a thread of Ray prints when a worker is lost.

    Ray has no option to turn them off. They would spoil the JSON that a command prints.
    """

    def __init__(self, stream: Any) -> None:
        self._stream = stream

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)

    def write(self, text: str) -> int:
        if threading.current_thread().name.startswith("ray_"):
            return len(text)
        return int(self._stream.write(text))


def _leave() -> None:
    """Leave the cluster, without the repeated messages that Ray has held back and prints here."""
    import ray

    with redirect_stdout(io.StringIO()):
        ray.shutdown()


def _defaults(**values: str) -> AbstractContextManager[None]:
    """Set environment variables that are not set, until the context ends."""
    return environment(**{name: value for name, value in values.items() if name not in os.environ})


def _connect(address: str | None, workers: int | None) -> None:
    import logging

    import ray

    how: dict[str, Any] = {"address": address}
    if address is None:
        how = {"address": "local", "num_cpus": workers or cpus(), "include_dashboard": False}
    else:
        _check_address(address)
    try:
        with warnings.catch_warnings(), _defaults(RAY_USAGE_STATS_ENABLED="0"):
            warnings.simplefilter("ignore")
            ray.init(**how, log_to_driver=False, logging_level=logging.ERROR)
    except (ConnectionError, RuntimeError, ValueError, OSError) as error:
        if address is None:
            raise OptionError(f"Ray cannot be started: {_first_line(error)}") from error
        raise OptionError(
            f"address is {address!r}, and there is no Ray cluster to join: {_first_line(error)}. "
            "Start one with: ray start --head"
        ) from error


def _check_address(address: str) -> None:
    """Check that something answers at an address; Ray itself would try for two minutes."""
    import socket

    named = f"address is {address!r}"
    if address == "auto":
        found = _last_cluster()
        if found is None:
            return  # Ray looks for its processes on this machine, and fails at once without any.
        address = found
        named += f", which is {address!r}"
    if "://" in address:
        raise OptionError(
            f"{named}; expected 'auto' or 'host:port'. This process must run on a machine of the "
            "cluster; from another machine, submit it with: ray job submit"
        )
    host, _, port = address.rpartition(":")
    if not host or not port.isdecimal():
        raise OptionError(f"{named}; expected 'auto' or 'host:port'")
    try:
        socket.create_connection((host.strip("[]"), int(port)), timeout=5).close()
    except (OSError, OverflowError) as error:
        raise OptionError(
            f"{named}, and nothing answers there: {_first_line(error)}. Start a cluster with: ray "
            "start --head"
        ) from error


def _last_cluster() -> str | None:
    """Return the address that `ray start` left on this machine; its cluster may have ended."""
    import tempfile
    from pathlib import Path

    if given := os.environ.get("RAY_ADDRESS"):
        return None if given in ("auto", "local") else given
    temporary = "/tmp" if os.name == "posix" else tempfile.gettempdir()
    file = Path(os.environ.get("RAY_TMPDIR", temporary)) / "ray" / "ray_current_cluster"
    try:
        return file.read_text().strip() or None
    except OSError:
        return None


def _first_line(error: BaseException) -> str:
    return (str(error).strip().splitlines() or [type(error).__name__])[0]


# ---- The workers of a map ------------------------------------------------------------------------


class _Pool:
    """The workers of a map, and the tasks that they have.

    Args:
        cluster: The cluster.
        recipe: A reference to what the workers need.
        workers: The number of workers.

    Attributes:
        tasks: The tasks that are not finished, by their place in the order in which they came.
    """

    def __init__(self, cluster: Cluster, recipe: Any, workers: int) -> None:
        self.tasks: dict[int, tuple[int, Any]] = {}
        self._cluster, self._recipe, self._most = cluster, recipe, workers
        self._added = 0
        # The places of tasks that no worker has, because theirs was lost.
        self._returned: list[int] = []
        # Every worker with the places of its tasks, oldest first.
        self._workers: dict[Any, list[int]] = {}
        self._starting: set[Any] = set()
        # What is under way: the worker, and the place of the task, or None while the worker starts.
        self._running: dict[Any, tuple[Any, int | None]] = {}
        self._losses: Counter[int | None] = Counter()
        for _ in range(workers):
            self._start()

    def wants_task(self) -> bool:
        """Return whether a worker has room for a task that no worker had before."""
        return not self._returned and self._free() is not None

    def add(self, number: int, task: Any) -> None:
        """Give a task to the worker that has the fewest."""
        self.tasks[self._added] = number, task
        self._give(self._added)
        self._added += 1

    def results(self) -> Iterator[tuple[int, Any]]:
        """Wait until something has happened, and yield the numbers and results of finished tasks.

        Raises:
            OptionError: If the cluster has no room for any worker.
            DataError: If workers are lost again and again.
            Exception: The error of a task.
        """
        import ray

        if not self._workers:
            _settle(self._cluster, 1)
            if self._cluster.room() < 1:
                self._cluster.check_room()
        if len(self._workers) < self._most and self._cluster.room() > 0:
            self._start()
        ready, _ = ray.wait(list(self._running), timeout=_POLL)
        if ready:
            worker, place = self._running[ready[0]]
            try:
                found, error = ray.get(ready[0])
            except ray.exceptions.RayError as lost:
                self._lose(worker, lost)
            else:
                if error is not None:
                    raise error
                del self._running[ready[0]]
                if place is None:
                    self._starting.remove(worker)
                    del self._losses[None]
                else:
                    self._workers[worker].remove(place)
                    yield self.tasks.pop(place)[0], found
        elif len(self._starting) == len(self._workers) and self._cluster.size() < 1:
            # Ray would wait for ever for a machine that the workers can start on.
            self._cluster.check_room()
        while self._returned and self._free() is not None:
            self._give(self._returned.pop(0))

    def close(self) -> None:
        """End the workers."""
        import ray

        for worker in self._workers:
            ray.kill(worker)

    def _start(self) -> None:
        import ray

        gpus = 1 if self._cluster.on_gpu else 0
        worker = ray.remote(num_cpus=1, num_gpus=gpus)(_Worker).remote()
        self._workers[worker] = []
        self._starting.add(worker)
        self._running[worker.prepare.remote([self._recipe])] = worker, None

    def _free(self) -> Any:
        """Return the worker that has the fewest tasks, or None if all have enough."""
        started = [worker for worker in self._workers if worker not in self._starting]
        worker = min(started, key=lambda worker: len(self._workers[worker]), default=None)
        return None if worker is None or len(self._workers[worker]) >= _TASKS_EACH else worker

    def _give(self, place: int) -> None:
        worker = self._free()
        self._workers[worker].append(place)
        self._running[worker.do.remote(self.tasks[place][1])] = worker, place

    def _lose(self, worker: Any, error: Exception) -> None:
        """Take the tasks of a lost worker back."""
        import ray

        places = self._workers.pop(worker)
        self._starting.discard(worker)
        ray.kill(worker)
        self._running = {
            reference: item for reference, item in self._running.items() if item[0] is not worker
        }
        self._returned = sorted(self._returned + places)
        # The worker computes its oldest task.
        culprit = places[0] if places else None
        self._losses[culprit] += 1
        if self._losses[culprit] > _RETRIES or isinstance(error, ray.exceptions.RayTaskError):
            raise DataError(
                f"the Ray cluster gave up: {_reason(error)}. Finished results are kept, and the "
                "same command resumes; try fewer workers, or less memory for each"
            ) from error


def _reason(error: Exception) -> str:
    """Say in a line what Ray reports."""
    import ray

    if isinstance(error, ray.exceptions.ActorDiedError) and "creation task" not in str(error):
        return "workers are killed again and again; a machine may be out of memory"
    # The first lines say where it happened, and the last one what.
    lines = [line.strip() for line in str(error).strip().splitlines() if line.strip()]
    return lines[-1].rstrip(".") if lines else type(error).__name__


# ---- A worker ------------------------------------------------------------------------------------


class _Recipe(NamedTuple):
    """What a worker needs.

    Attributes:
        explainer: The model, on the CPU.
        fingerprint: Its fingerprint.
        work: The function to apply to tasks.
        on_gpu: Whether to move the model to a GPU.
        versions: The versions of the packages.
    """

    explainer: Explainer
    fingerprint: str
    work: Callable[[Explainer, Any], Any]
    on_gpu: bool
    versions: dict[str, str]


def _recipe(
    explainer: Explainer, work: Callable[[Explainer, Task], Found], on_gpu: bool
) -> _Recipe:
    if explainer.model.device.type != "cpu":
        from copy import copy, deepcopy

        explainer = copy(explainer)
        explainer.model = deepcopy(explainer.model).to("cpu")
    return _Recipe(explainer, explainer.fingerprint(), work, on_gpu, _versions())


def _versions() -> dict[str, str]:
    from importlib.metadata import version

    return {name: version(name) for name in _PACKAGES}


class _Worker:
    """An actor with the model in memory."""

    def prepare(self, recipe: list[Any]) -> tuple[None, Exception | None]:
        """Get the model.

        Args:
            recipe: A reference to the `_Recipe`. It is in a list so that Ray does not resolve it;
                an error would be hard to read.

        Returns:
            None, and the error if this machine cannot do the work.
        """
        import ray

        machine = ray.util.get_node_ip_address()
        try:
            self._recipe = _prepared(ray.get(recipe[0]), machine)
        except AttnflowError as error:
            return None, error
        except Exception as error:
            return None, DataError(
                f"a worker cannot start on {machine}: {type(error).__name__}: {error}"
            )
        return None, None

    def do(self, task: Any) -> tuple[Any, Exception | None]:
        """Do a task; return the result, and the error if there is one."""
        return attempt(self._recipe.explainer, self._recipe.work, task)


def _prepared(recipe: _Recipe, machine: str) -> _Recipe:
    """Check that this machine gives the same results, and move the model to its GPU."""
    import torch

    os.environ["TOKENIZERS_PARALLELISM"] = "false"
    # The local engine uses one thread too. The results are then the same.
    torch.set_num_threads(1)
    for name, version in _versions().items():
        if version != recipe.versions[name]:
            raise DataError(
                f"{name} is {version} on machine {machine} of the Ray cluster, but "
                f"{recipe.versions[name]} here, which may change results; install the same version "
                "on both"
            )
    found = recipe.explainer.fingerprint()
    if found != recipe.fingerprint:
        raise DataError(
            f"the model that reached machine {machine} of the Ray cluster is not the one that was "
            f"sent: its fingerprint is {found}; expected {recipe.fingerprint}"
        )
    if recipe.on_gpu:
        if not torch.cuda.is_available():
            raise DataError(
                f"Ray gave a worker on {machine} a GPU that torch cannot use; install torch with "
                "CUDA there, or choose device='cpu'"
            )
        recipe.explainer.model.to("cuda")
    return recipe
