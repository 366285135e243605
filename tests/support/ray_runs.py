"""Runs on Ray clusters that lose workers, machines and the process that asked.

Started by test_ray.py with a folder as its argument. The model is made once, and processes that are
to be ended are forked from this one before Ray has any thread in it. Prints one JSON object.
"""

import json
import logging
import os
import signal
import sys
import tempfile
import time
import uuid
from pathlib import Path

# No other machine or user can talk to these clusters, and what is killed is noticed in a second.
os.environ.update(
    RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER="0",
    RAY_AUTH_MODE="token",
    RAY_AUTH_TOKEN=uuid.uuid4().hex,
    RAY_USAGE_STATS_ENABLED="0",
    RAY_worker_niceness="0",
    RAY_health_check_initial_delay_ms="0",
    RAY_health_check_period_ms="500",
    RAY_health_check_failure_threshold="3",
)

import polars

import attnflow
from attnflow.dataset.ray import Cluster, joined, ray_map
from tests.support.dataset_signals import TEXTS, content, explainer, finished, forked

NAP = 0.15
MARK = f"ATTNFLOW_TEST_RAY={os.environ.get('ATTNFLOW_TEST_RAY', '')}".encode()


def nap(*arguments):
    """Let the model take its time, so that there is something to interrupt."""
    time.sleep(NAP)


def run(model, folder, **options):
    return attnflow.run(TEXTS, model, output=folder, method="rollout", shard_rows=4, **options)


def refused(task):
    """Return the message of the error that a function raises."""
    try:
        task()
    except attnflow.AttnflowError as error:
        return f"{type(error).__name__}: {error}"
    return None


def workers_of(raylet):
    """Return the ids of the processes with a model that a machine's raylet has started."""
    found = []
    children = Path(f"/proc/{raylet}/task/{raylet}/children").read_text().split()
    for child in map(int, children):
        try:
            name = Path(f"/proc/{child}/cmdline").read_bytes()
        except OSError:
            continue
        if name.startswith(b"ray::_Worker"):
            found.append(child)
    return found


def descendants(but=()):
    """Return the processes that this one, or one that it started, has started."""
    found = []
    for entry in Path("/proc").glob("[0-9]*"):
        try:
            mark = MARK in (entry / "environ").read_bytes()
        except OSError:
            continue
        if mark and int(entry.name) not in (os.getpid(), *but):
            found.append(int(entry.name))
    return found


def wait_for(condition, seconds=60):
    until = time.monotonic() + seconds
    while time.monotonic() < until:
        if condition():
            return True
        time.sleep(0.1)
    return False


def asker(model, folder, workers):
    """Fork a process that runs on the cluster whose address it is sent, and tells of progress."""
    asks, tells = os.pipe()
    hears, says = os.pipe()

    def task():
        address = os.read(asks, 1000).decode()
        run(
            model,
            folder,
            engine="ray",
            address=None if address == "none" else address,
            workers=workers,
            progress=lambda now: os.write(says, b"."),
        )

    child = forked(task)
    os.close(says)
    return child, tells, hears


def begin(child, address, shards):
    """Let a forked process run until it has finished some shards."""
    _, tells, hears = child
    os.write(tells, address.encode())
    for _ in range(1 + shards):
        os.read(hears, 1)


def begin_here(model, folder):
    """Do a few shards on this machine."""

    class Enough(Exception):
        pass

    def progress(now):
        if now.new >= 8:
            raise Enough

    try:
        run(model, folder, workers=1, progress=progress)
    except Enough:
        return len(finished(folder))


def odd(model, task):
    """Return a task's number, or fail."""
    if task % 2:
        raise ValueError(f"{task} is odd")
    return task, os.getpid()


def main():
    folder = Path(sys.argv[1])
    model = explainer()
    model.model.register_forward_pre_hook(nap)
    out = folder / "out"
    run(model, folder / "whole", workers=1)
    reference = content(folder / "whole")
    facts = {"shards": len(finished(folder / "whole")), "here": begin_here(model, out)}
    own = asker(model, folder / "own", 1)
    killed = asker(model, out, None)
    interrupted = asker(model, out, None)
    begin(own, "none", 0)
    facts["own cluster"] = os.waitstatus_to_exitcode(os.waitpid(own[0], 0)[1])
    facts["own cluster's bytes"] = content(folder / "own") == reference
    facts["own cluster ends"] = wait_for(lambda: not descendants(but=(killed[0], interrupted[0])))

    import ray
    from ray.cluster_utils import Cluster as Machines

    facts["addresses"] = {
        address: refused(lambda address=address: run(model, out, engine="ray", address=address))
        for address in ("127.0.0.1:1", "ray://127.0.0.1:10001", "somewhere", "")
    }
    # As the file does that a cluster leaves behind when its machine is switched off.
    os.environ["RAY_ADDRESS"] = "127.0.0.1:1"
    facts["addresses"]["auto"] = refused(lambda: run(model, out, engine="ray", address="auto"))
    del os.environ["RAY_ADDRESS"]
    with tempfile.TemporaryDirectory(prefix="ray-", ignore_cleanup_errors=True) as temporary:
        machines = Machines(
            initialize_head=True,
            head_node_args={
                "num_cpus": 0,
                "include_dashboard": False,
                "node_ip_address": "127.0.0.1",
                "temp_dir": temporary,
            },
        )
        try:
            address = machines.address

            def run_there(**options):
                return run(model, out, engine="ray", address=address, **options)

            facts["no CPU"] = refused(run_there)
            machine = machines.add_node(num_cpus=1, node_ip_address="127.0.0.1")
            raylet = machine.all_processes["raylet"][0].process.pid
            facts["one CPU for two"] = refused(lambda: run_there(workers=2))
            facts["no GPU"] = refused(lambda: run_there(device="cuda"))

            begin(killed, address, 2)
            facts["workers at kill"] = len(workers_of(raylet))
            os.kill(killed[0], signal.SIGKILL)
            os.waitpid(killed[0], 0)
            facts["workers end"] = wait_for(lambda: not workers_of(raylet))
            facts["after kill"] = len(finished(out))

            begin(interrupted, address, 1)
            os.kill(interrupted[0], signal.SIGINT)
            facts["interrupt status"] = os.waitstatus_to_exitcode(os.waitpid(interrupted[0], 0)[1])
            facts["after interrupt"] = len(finished(out))

            ray.init(address=address, log_to_driver=False, logging_level=logging.ERROR)
            holder = ray.remote(num_cpus=1)(dict).remote()
            wait_for(lambda: Cluster(None, False).room() == 0)
            facts["taken"] = refused(run_there)
            ray.kill(holder)
            wait_for(lambda: Cluster(None, False).room() == 1)
            facts["still joined"] = ray.is_initialized()

            with joined(address) as cluster:
                results = ray_map(model, odd, iter([(7, 0), (5, 2), (9, 3)]), cluster)
                facts["numbers"] = []
                try:
                    for number, (task, _) in results:
                        facts["numbers"].append((number, task))
                except ValueError as error:
                    facts["work's error"] = str(error)
            ray.shutdown()

            other = machines.add_node(num_cpus=1, node_ip_address="127.0.0.1")
            others = other.all_processes["raylet"][0].process.pid
            lost = {}

            def lose(now):
                # A worker as soon as something is done, and a machine with a worker later on.
                if now.new and "worker" not in lost:
                    lost["worker"] = (workers_of(raylet) + workers_of(others))[0]
                    os.kill(lost["worker"], signal.SIGKILL)
                elif now.new >= 8 and "machine" not in lost:
                    wait_for(lambda: workers_of(others))
                    lost["machine"] = len(workers_of(others))
                    machines.remove_node(other, allow_graceful=False)

            result = run_there(progress=lose)
            facts["lost"] = sorted(lost)
            facts["workers on the lost machine"] = lost["machine"]
            facts["new"] = result.new
            facts["same"] = content(out) == reference

            table = polars.DataFrame({"text": TEXTS[:8], "stars": range(8)})
            options = {"method": "rollout", "shard_rows": 4}
            attnflow.run(table, model, output=folder / "table", workers=1, **options)
            options |= {"engine": "ray", "address": address}
            attnflow.run(table, model, output=folder / "table there", **options)
            facts["table"] = content(folder / "table there") == content(folder / "table")
        finally:
            if ray.is_initialized():
                ray.shutdown()
            machines.shutdown()
            for child, *_ in (killed, interrupted):
                try:
                    os.kill(child, signal.SIGKILL)
                    os.waitpid(child, 0)
                except OSError:
                    pass
    print(json.dumps(facts))


if __name__ == "__main__":
    main()
