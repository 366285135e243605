"""The Ray engine: work done by actors of a Ray cluster, each with the model in memory.

Ray Data streams the tasks through `map_batches` to a pool of actors. The process that asked reads
the source and writes the output, so that neither has to be where the other machines can see it. It
hands out two tasks for each worker and waits; no more is in memory, here or in the cluster.

A task goes from this process to the conductor, an actor on the same machine that runs Ray Data.
There a read task, which needs no CPU, makes a block of it. A worker gets the block, and what it
makes of it comes back the same way. The model reaches the workers through Ray's object store, once
for every machine.

Ray starts a worker again whose process was ended, and gives it its task again. If a machine is
lost there may be no room to do so, and Ray would wait for it. Then everything that is under way is
started anew on what is left of the cluster.
"""

from __future__ import annotations

import os
import pickle
import threading
import time
import warnings
from collections.abc import Callable, Generator, Iterator
from contextlib import contextmanager
from itertools import chain, count
from typing import TYPE_CHECKING, Any, Final, NamedTuple, TypeVar

from attnflow.errors import AttnflowError, DataError, MissingExtraError, OptionError

if TYPE_CHECKING:
    from attnflow.models import Explainer

__all__ = ["Cluster", "joined", "ray_map"]

Task = TypeVar("Task")
Found = TypeVar("Found")

DEVICES: Final = ("auto", "cpu", "cuda")
# One is worked on, and the next one is there when it is finished.
_TASKS_EACH: Final = 2
# How often the same task may cost a worker its process.
_RETRIES: Final = 3
# How many seconds go by before somebody looks whether all machines are still there.
_PATIENCE: Final = 2.0
# How many seconds a cluster is given to notice that workers have ended.
_SETTLING: Final = 30.0
# What decides the bytes that come out.
_PACKAGES: Final = ("attnflow", "numpy", "pyarrow", "tokenizers", "torch", "transformers")


class Cluster(NamedTuple):
    """A Ray cluster that this process has joined.

    Attributes:
        asked: How many workers were asked for; None is as many as there is room for.
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

    @property
    def _needs(self) -> tuple[str, ...]:
        return ("CPU", "GPU") if self.on_gpu else ("CPU",)


@contextmanager
def joined(
    address: str | None = None, workers: int | None = None, device: str = "auto"
) -> Iterator[Cluster]:
    """Join a Ray cluster, or start one on this machine that ends with the context.

    In a process that has joined a cluster already, that one is used, and stays joined.

    Args:
        address: "auto" for the cluster that this machine is part of, or the "host:port" of one.
            None starts one.
        workers: How many workers there are to be, each with one CPU. None is as many as there is
            room for.
        device: "cpu", "cuda" for a GPU for each worker, or "auto" for GPUs if there are any.

    Raises:
        MissingExtraError: If Ray is not installed.
        OptionError: If there is no such cluster, or no room in it for the workers.
    """
    if device not in DEVICES:
        raise OptionError(f"device is {device!r}; expected {', '.join(DEVICES)}")
    if address is not None and (not isinstance(address, str) or not address):
        raise OptionError(f"address is {address!r}; expected 'auto', 'host:port' or None")
    # Ray reads this when it is imported. A cluster of one machine then listens to no other.
    with _environment(RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER="0" if address is None else None):
        _require_ray()
        import ray

    ours = not ray.is_initialized()
    if ours:
        _connect(address, workers)
    try:
        gpus = ray.cluster_resources().get("GPU", 0)
        cluster = Cluster(workers, gpus >= 1 if device == "auto" else device == "cuda")
        _check_room(cluster)
        yield cluster
    finally:
        if ours:
            ray.shutdown()


def ray_map(
    explainer: Explainer,
    work: Callable[[Explainer, Task], Found],
    todo: Iterator[tuple[int, Task]],
    cluster: Cluster,
) -> Generator[tuple[int, Found], None, None]:
    """Do work on numbered tasks, as many at once as there are workers in a cluster.

    Args:
        explainer: The model.
        work: What is done with a task, a function that every machine can import. What it returns,
            or raises, has to be picklable.
        todo: The tasks and their numbers. No more than two for each worker are taken ahead.
        cluster: Where it is done.

    Yields:
        The number of a task, and what work made of it, as they are finished.

    Raises:
        OptionError: If there is no room in the cluster any more.
        DataError: If a worker's process is ended from outside again and again, or a machine of the
            cluster has other versions of the packages than this one.
    """
    import ray

    first = next(todo, None)
    if first is None:
        return
    recipe = ray.put(_recipe(explainer, work, cluster.on_gpu))
    taken_by_others = cluster.size() - cluster.room()
    stream = _Stream(cluster, recipe)

    def finished() -> Iterator[tuple[int, Found]]:
        nonlocal stream
        try:
            results = stream.results()
        except _StreamEnded as ended:
            stream.close()
            if not ended.worth_another:
                raise DataError(
                    f"the Ray cluster gave up: {ended}. What is finished stays, and the same "
                    "command goes on from there; fewer workers, or less memory for each, may help"
                ) from ended.__cause__
            _settle(cluster, taken_by_others)
            unfinished = stream.waiting.values()
            stream = _Stream(cluster, recipe)
            for number, content in unfinished:
                stream.add(number, content)
            return
        for number, result in results:
            found, error = pickle.loads(result)
            if error is not None:
                raise error
            yield number, found

    try:
        for number, task in chain([first], todo):
            stream.add(number, pickle.dumps(task, protocol=5))
            while len(stream.waiting) >= stream.most:
                yield from finished()
        while stream.waiting:
            yield from finished()
    finally:
        stream.close()
        # Whoever uses the cluster next would otherwise find no room in it.
        if ray.is_initialized():
            _settle(cluster, taken_by_others)


def _settle(cluster: Cluster, taken_by_others: int) -> None:
    """Wait until the workers of a stream that was closed have made room."""
    until = time.monotonic() + _SETTLING
    while time.monotonic() < until:
        wanted = cluster.size() - taken_by_others
        if cluster.asked is not None:
            wanted = min(wanted, cluster.asked)
        if cluster.room() >= max(1, wanted):
            break
        time.sleep(0.2)


# ---- The cluster ---------------------------------------------------------------------------------


def _require_ray() -> None:
    from importlib.util import find_spec

    if find_spec("ray") is None or find_spec("ray.data") is None:
        raise MissingExtraError(
            "the Ray engine needs Ray Data, which is not installed; run: pip install "
            '"attnflow[ray]"'
        )


def _say_nothing(*arguments: object) -> None:
    """Stand in for what Ray prints."""


def _connect(address: str | None, workers: int | None) -> None:
    import logging
    from unittest.mock import patch

    import ray

    from attnflow.dataset.local import cpus

    how: dict[str, Any] = {"address": address}
    if address is None:
        how = {"address": "local", "num_cpus": workers or cpus(), "include_dashboard": False}
    else:
        _check_address(address)
    try:
        with warnings.catch_warnings(), _environment(RAY_USAGE_STATS_ENABLED="0"):
            warnings.simplefilter("ignore")
            # Ray prints what becomes of workers, in between what the caller prints.
            with patch("ray._private.worker.listen_error_messages", _say_nothing):
                ray.init(**how, log_to_driver=False, logging_level=logging.ERROR)
    except (ConnectionError, RuntimeError, ValueError, OSError) as error:
        if address is None:
            raise OptionError(f"Ray cannot be started: {_first_line(error)}") from error
        raise _no_cluster(address, error) from error


@contextmanager
def _environment(**values: str | None) -> Iterator[None]:
    """Set variables of the environment that are not set, for a while."""
    added = {name: value for name, value in values.items() if value and name not in os.environ}
    os.environ.update(added)
    try:
        yield
    finally:
        for name in added:
            os.environ.pop(name, None)


def _found(address: str) -> str:
    """Return where the cluster is that "auto" stands for."""
    from ray._private.services import canonicalize_bootstrap_address

    try:
        return str(canonicalize_bootstrap_address(address))
    except (ConnectionError, ValueError) as error:
        raise _no_cluster(address, error) from error


def _no_cluster(address: str, error: BaseException) -> OptionError:
    return OptionError(
        f"address is {address!r}, and there is no Ray cluster to join: {_first_line(error)}. "
        "Start one with: ray start --head"
    )


def _check_address(address: str) -> None:
    """Find out in a second what Ray takes a minute to."""
    import socket

    named = f"address is {address!r}"
    if address == "auto":
        # It may be what a cluster that is gone has left behind.
        address = _found(address)
        named += f", which is {address!r}"
    if "://" in address:
        raise OptionError(
            f"{named}; expected 'auto' or 'host:port'. This process has to run on a machine of the "
            "cluster; elsewhere, hand it in with: ray job submit"
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


def _check_room(cluster: Cluster) -> None:
    each = "a worker needs a GPU and a CPU" if cluster.on_gpu else "a worker needs a CPU"
    size, room = cluster.size(), cluster.room()
    if size < 1:
        raise OptionError(
            f"the Ray cluster has no room for a worker: {each}, and no machine has that. Add one "
            "with: ray start --address"
        )
    if room < 1:
        raise OptionError(
            f"the Ray cluster has no room for a worker at the moment: {each}, and other jobs have "
            f"taken all there is for {size}; wait for them"
        )
    if cluster.asked is not None and cluster.asked > room:
        raise OptionError(
            f"workers is {cluster.asked}, and the Ray cluster has room for {room}: {each}"
        )


def _first_line(error: BaseException) -> str:
    return (str(error).strip().splitlines() or [type(error).__name__])[0]


# ---- One stream through the cluster --------------------------------------------------------------


class _StreamEnded(Exception):
    """Ray Data has ended, or is not going to.

    Attributes:
        worth_another: Whether it had got anywhere, or a machine was lost.
    """

    def __init__(self, reason: str, worth_another: bool) -> None:
        super().__init__(reason)
        self.worth_another = worth_another


class _Stream:
    """Ray Data at work: tasks in, results out, until it is closed or loses a machine.

    Attributes:
        most: How many tasks may be handed out at once.
        waiting: The tasks that are handed out, with their numbers.
    """

    def __init__(self, cluster: Cluster, recipe: Any) -> None:
        import ray
        from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

        room = cluster.room()
        if room < 1:
            _check_room(cluster)
        workers = min(room, cluster.asked or room)
        self.most = workers * _TASKS_EACH
        # By their place in the order of handing out; numbers need not follow each other.
        self.waiting: dict[int, tuple[int, bytes]] = {}
        self._added = 0
        self._moved = False
        here = NodeAffinitySchedulingStrategy(ray.get_runtime_context().get_node_id(), soft=False)
        made = ray.remote(num_cpus=0, max_concurrency=8, scheduling_strategy=here)(_Conductor)
        self._conductor = made.remote()
        self._running = self._conductor.run.remote(
            self._conductor, [recipe], workers, cluster.on_gpu
        )

    def add(self, number: int, task: bytes) -> None:
        """Hand a task out."""
        self.waiting[self._added] = (number, task)
        self._conductor.add.remote(self._added, task)
        self._added += 1

    def results(self) -> list[tuple[int, bytes]]:
        """Wait for results, and return them with their numbers.

        Raises:
            _StreamEnded: If there will not be any more.
        """
        import ray

        try:
            while True:
                found, machines = ray.get(self._conductor.results.remote(_PATIENCE))
                if found:
                    self._moved = True
                    # What Ray did twice counts once.
                    return [
                        (self.waiting.pop(place)[0], result)
                        for place, result in found
                        if place in self.waiting
                    ]
                alive = {node["NodeID"] for node in ray.nodes() if node["Alive"]}
                if machines - alive:
                    raise _StreamEnded("a machine was lost", worth_another=True)
                if ray.wait([self._running], timeout=0)[0]:
                    ray.get(self._running)
                    raise _StreamEnded("Ray Data ended", worth_another=self._moved)
        except ray.exceptions.RayError as error:
            raise _StreamEnded(_reason(error), worth_another=self._moved) from error

    def close(self) -> None:
        """End what is under way."""
        import ray

        # What it has started ends with it. Ray would start itself anew to kill something.
        if ray.is_initialized():
            ray.kill(self._conductor)


def _reason(error: BaseException) -> str:
    """Say in a line what happened to Ray."""
    import ray

    if isinstance(error, ray.exceptions.RayActorError):
        return (
            "its processes are ended from outside again and again, as a system does that runs out "
            "of memory"
        )
    # The first lines say where it happened, and the last one what.
    lines = [line.strip() for line in str(error).strip().splitlines() if line.strip()]
    return lines[-1].rstrip(".") if lines else type(error).__name__


class _Conductor:
    """Runs Ray Data, and stands between it and the process that asked.

    An actor on the machine of that process. Every method runs in a thread of its own.
    """

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._tasks: dict[int, bytes] = {}
        self._taken = 0
        self._results: list[tuple[int, bytes]] = []
        self._machines: set[str] = set()

    def run(self, me: Any, recipe: list[Any], workers: int, on_gpu: bool) -> None:
        """Stream tasks through a pool of workers; never returns."""
        import ray.data

        context = ray.data.DataContext.get_current()
        # A block for every task.
        context.target_max_block_size = 1
        context.enable_progress_bars = False
        blocks = ray.data.read_datasource(_source(me), num_cpus=0, override_num_blocks=1)
        results = blocks.map_batches(
            _Worker,
            batch_size=1,
            batch_format="pyarrow",
            # One is the least, or Ray Data complains of tasks that are fewer than workers.
            compute=ray.data.ActorPoolStrategy(
                min_size=1,
                max_size=workers,
                initial_size=workers,
                max_tasks_in_flight_per_actor=_TASKS_EACH,
            ),
            fn_constructor_args=(me, recipe),
            num_cpus=1,
            num_gpus=1 if on_gpu else 0,
            # Ray Data's own choice is to try again for ever.
            ray_remote_args_fn=lambda: {"max_restarts": -1, "max_task_retries": _RETRIES},
        )
        for table in results.iter_batches(
            batch_size=None, batch_format="pyarrow", prefetch_batches=0
        ):
            pairs = zip(*(table[name].to_pylist() for name in ("place", "content")), strict=True)
            with self._changed:
                for place, content in pairs:
                    self._tasks.pop(place, None)
                    self._results.append((place, content))
                self._changed.notify_all()

    def add(self, place: int, task: bytes) -> None:
        """Take the task at a place."""
        with self._changed:
            self._tasks[place] = task
            self._changed.notify_all()

    def take(self, place: int) -> bytes:
        """Return the task at a place, as soon as there is one.

        If the one who asks was started again it asks for all of them again; then there is nothing
        at the places of those that are finished.
        """
        with self._changed:
            self._changed.wait_for(lambda: place < self._taken or place in self._tasks)
            self._taken = max(self._taken, place + 1)
            return self._tasks.get(place, b"")

    def results(self, patience: float) -> tuple[list[tuple[int, bytes]], set[str]]:
        """Return results and the machines that there are workers on; wait if there are none."""
        with self._changed:
            self._changed.wait_for(lambda: self._results, patience)
            found, self._results = self._results, []
            return found, self._machines

    def works_on(self, machine: str) -> None:
        """Note a machine that a worker is on."""
        self._machines.add(machine)


def _block(places: Any, contents: list[bytes]) -> Any:
    """Return tasks or results as Ray Data has them, an Arrow table."""
    import pyarrow

    # Shards may be larger than the 2 GiB that binary has room for.
    return pyarrow.table(
        {"place": places, "content": pyarrow.array(contents, pyarrow.large_binary())}
    )


def _source(conductor: Any) -> Any:
    """Return what Ray Data reads: the tasks that the conductor has, a block each."""
    import ray
    from ray.data.block import BlockMetadata
    from ray.data.datasource import Datasource, ReadTask

    def read() -> Iterator[Any]:
        for place in count():
            yield _block([place], [ray.get(conductor.take.remote(place))])

    class Tasks(Datasource):  # type: ignore[misc]
        @property
        def supports_distributed_reads(self) -> bool:
            return False  # stays on the conductor's machine

        def estimate_inmemory_data_size(self) -> int | None:
            return None

        def get_read_tasks(self, *arguments: Any, **options: Any) -> list[Any]:
            return [ReadTask(read, BlockMetadata(None, None, None, None))]

    return Tasks()


# ---- A worker ------------------------------------------------------------------------------------


class _Recipe(NamedTuple):
    """What a worker needs to know.

    Attributes:
        explainer: The model, on the CPU.
        fingerprint: Its fingerprint.
        work: What to do with a task.
        on_gpu: Whether to do it on a GPU.
        versions: The releases of the packages.
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
    """Has the model in memory, and does task after task; Ray Data makes an actor of it."""

    def __init__(self, conductor: Any, recipe: list[Any]) -> None:
        import ray

        machine = ray.get_runtime_context().get_node_id()
        ray.get(conductor.works_on.remote(machine))
        self._broken: Exception | None = None
        # Whatever is wrong here would be an unreadable error of Ray's if it were raised.
        try:
            self._recipe: _Recipe = ray.get(recipe[0])
            self._prepare(ray.util.get_node_ip_address())
        except AttnflowError as error:
            self._broken = error
        except Exception as error:
            self._broken = DataError(
                f"a worker cannot start on {ray.util.get_node_ip_address()}: "
                f"{type(error).__name__}: {error}"
            )

    def _prepare(self, machine: str) -> None:
        import torch

        os.environ["TOKENIZERS_PARALLELISM"] = "false"
        # As the local engine does it, so that the same numbers come out.
        torch.set_num_threads(1)
        for name, version in _versions().items():
            if version != self._recipe.versions[name]:
                raise DataError(
                    f"{name} is {version} on the machine {machine} of the Ray cluster, and "
                    f"{self._recipe.versions[name]} here, so that other numbers might come out; "
                    "install the same release on both"
                )
        found = self._recipe.explainer.fingerprint()
        if found != self._recipe.fingerprint:
            raise DataError(
                f"the model that reached the machine {machine} of the Ray cluster is not the one "
                f"that was sent: its fingerprint is {found}, and was {self._recipe.fingerprint}"
            )
        if self._recipe.on_gpu:
            if not torch.cuda.is_available():
                raise DataError(
                    f"Ray gave a worker on {machine} a GPU that torch cannot use; install a torch "
                    "with CUDA there, or choose device='cpu'"
                )
            self._recipe.explainer.model.to("cuda")

    def __call__(self, table: Any) -> Any:
        """Do the tasks of a block.

        Args:
            table: The tasks, an Arrow table.

        Returns:
            What became of them, an Arrow table.
        """
        from attnflow.dataset.local import _sendable

        results = []
        for content in table["content"].to_pylist():
            answer: tuple[Any, Exception | None] = None, self._broken
            if content and self._broken is None:
                try:
                    answer = self._recipe.work(self._recipe.explainer, pickle.loads(content)), None
                except Exception as error:
                    answer = None, _sendable(error)
            results.append(pickle.dumps(answer, protocol=5))
        return _block(table["place"], results)
