"""Measuring that is under way: piece by piece, on any engine, and gone on with after a stop."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Generator, Iterator, Mapping
from contextlib import ExitStack, closing
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self

from attnflow.evaluate.store import Store

if TYPE_CHECKING:
    from attnflow.models import Explainer

__all__ = ["UnderWay"]


class UnderWay(ABC):
    """What `attnflow.evaluate.Run` and `attnflow.evaluate.StoredRun` have in common.

    Iterate over it to have the pieces measured that are missing. Every piece is stored as soon as
    it is there.

    Args:
        explainer: The model; None if measuring needs none.
        work: Measures a piece; the result is what JSON can hold.
        header: What is measured, for the store; None if there is none.
        options: "engine", "workers", "address" and "device", which say what runs the model; and
            "store", where results are kept, or None.

    Raises:
        OptionError: If an option is not valid, or the store is of something else.
        DataError: If the store is damaged.
    """

    def __init__(
        self,
        explainer: Explainer | None,
        work: Callable[[Any, Any], dict[str, Any]],
        header: Mapping[str, Any] | None,
        options: Mapping[str, Any],
    ) -> None:
        from attnflow.dataset.engine import opened

        self._model, self._work = explainer, work
        self._records: dict[int, Any] = {}
        self._store: Store | None = None
        engine = {name: options[name] for name in ("workers", "address", "device")}
        with ExitStack() as stack:
            self._map = stack.enter_context(opened(options["engine"], **engine))
            if header is not None:
                self._store = stack.enter_context(closing(Store(options["store"], header)))
                self._records = {
                    number: self._kept(record) for number, record in self._store.records.items()
                }
                self._store.records.clear()
            # All went well, so that it stays open.
            self._open = stack.pop_all()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self._open.close()

    def __iter__(self) -> Iterator[int]:
        running = self._run()
        # Workers end with the context, not when somebody lets go of an error.
        self._open.callback(running.close)
        return running

    @property
    def done(self) -> int:
        """How many texts have been measured."""
        return len(self._records)

    @abstractmethod
    def _missing(self) -> Iterator[tuple[int, Any]]:
        """Yield the pieces that have not been measured yet, with their numbers."""

    def _kept(self, record: dict[str, Any]) -> Any:
        """Return what stays in memory of a result."""
        return record

    def _run(self) -> Generator[int]:
        found: Iterator[tuple[int, dict[str, Any]]]
        if self._model is None:
            found = ((number, self._work(None, piece)) for number, piece in self._missing())
        else:
            let_go = (lambda: None) if self._store is None else self._store.close
            found = self._map(self._model, self._work, self._missing(), let_go)
        for number, record in found:
            if self._store is not None:
                self._store.add({"text": number, **record})
            self._records[number] = self._kept(record)
            yield self.done
