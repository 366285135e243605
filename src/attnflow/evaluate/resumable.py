"""An evaluation in progress: measured task by task, on any engine, and resumed after a stop."""

from __future__ import annotations

import json
from abc import ABC, abstractmethod
from collections.abc import Callable, Generator, Iterator, Mapping
from contextlib import ExitStack
from typing import TYPE_CHECKING, Any, Self

from attnflow.checks import integer
from attnflow.dataset.engine import opened
from attnflow.io.journal import Journal, digest_of
from attnflow.version import __version__

if TYPE_CHECKING:
    from attnflow.models import Explainer


FORMAT = {"format": "attnflow.evaluation-store", "version": 1, "attnflow": __version__}
FILE_NAME = "evaluation.jsonl"
"""The name of a store where a folder is given."""


class Resumable(ABC):
    """What `attnflow.evaluate.Run` and `attnflow.evaluate.StoredRun` have in common.

    Iterating over it measures what is missing. Every result is stored as soon as it is there.

    Args:
        explainer: The model; None if measuring needs none.
        work: Measures a task. Its result must be JSON-serialisable.
        options: "engine", "workers", "address" and "device", which say what runs the model;
            "store", the file or folder where results are kept, or None; and "frequencies".

    Attributes:
        total: How many texts there are.

    Raises:
        OptionError: If an option is not valid, or the store belongs to something else.
        DataError: If the store is damaged.
    """

    total: int

    def __init__(
        self,
        explainer: Explainer | None,
        work: Callable[[Any, Any], dict[str, Any]],
        options: Mapping[str, Any],
    ) -> None:
        self._model, self._work = explainer, work
        self._records: dict[int, Any] = {}
        self._journal: Journal | None = None
        if options["workers"] is not None:
            integer(options["workers"], "workers", least=1, otherwise="None")
        engine = {name: options[name] for name in ("workers", "address", "device")}
        with ExitStack() as stack:
            self._map = stack.enter_context(opened(options["engine"], **engine))
            if options["store"] is not None:
                self._journal = stack.enter_context(
                    Journal(
                        options["store"],
                        self._full_header(options["frequencies"]),
                        key="text",
                        items="texts",
                        file_name=FILE_NAME,
                    )
                )
                found = self._journal.records
                self._records = {number: self._kept(found.pop(number)) for number in list(found)}
            # There was no error, so the engine and the journal stay open.
            self._open = stack.pop_all()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self._open.close()

    def __iter__(self) -> Iterator[int]:
        running = self._run()
        # The workers end with the context, even if an error keeps this generator alive.
        self._open.callback(running.close)
        return running

    def measure_all(self, progress: Callable[[int, int], object] | None = None) -> None:
        """Measure everything that is missing.

        Args:
            progress: Called with how many texts are done and how many there are.
        """
        tell = progress or (lambda done, total: None)
        tell(self.done, self.total)
        for done in self:
            tell(done, self.total)

    @property
    def done(self) -> int:
        """How many texts have been measured."""
        return len(self._records)

    @abstractmethod
    def _missing(self) -> Iterator[tuple[int, Any]]:
        """Yield the tasks that have not been done yet, with their numbers."""

    @abstractmethod
    def _header(self) -> dict[str, Any]:
        """Return what is measured: "model", "fingerprint", "options" and "data"."""

    def _full_header(self, frequencies: Mapping[str, int] | None) -> dict[str, Any]:
        header = {**FORMAT, **self._header()}
        counted = "counted in the texts"
        if frequencies is not None:
            counted = f"from a table, {digest_of(repr(sorted(frequencies.items())))}"
        header["options"]["frequencies"] = counted
        # A header that was read back has lists in place of tuples.
        plain: dict[str, Any] = json.loads(json.dumps(header))
        return plain

    def _kept(self, record: dict[str, Any]) -> Any:
        """Return what stays in memory of a result."""
        return record

    def _run(self) -> Generator[int]:
        journal = self._journal
        found: Iterator[tuple[int, dict[str, Any]]]
        if self._model is None:
            found = ((number, self._work(None, task)) for number, task in self._missing())
        else:
            close = (lambda: None) if journal is None else journal.close
            found = self._map(self._model, self._work, self._missing(), close)
        for number, record in found:
            if journal is not None:
                journal.add(number, record)
            self._records[number] = self._kept(record)
            yield self.done
