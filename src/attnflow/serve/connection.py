"""A client's connection, which ends if a request does not arrive on it."""

import asyncio
from typing import Any, Final

from uvicorn.protocols.http.h11_impl import H11Protocol

__all__ = ["Connection"]

# How long a client may take to send the head of a request, in seconds.
HEAD_SECONDS: Final = 10.0


class Connection(H11Protocol):  # type: ignore[misc]
    """HTTP as uvicorn speaks it, with an end to waiting.

    uvicorn itself waits for ever for the first request of a connection, for the rest of a head of
    which it has a part, and for the rest of a body that was refused. Anybody who can connect could
    so take all connections that there are, without knowing the token.
    """

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        self._waiting: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:
        """Wait for a request."""
        super().connection_made(transport)
        self._wait()

    def data_received(self, data: bytes) -> None:
        """Go on waiting, unless this completes the head of a request."""
        before = self.cycle
        super().data_received(data)
        if self.cycle is not before:
            self._wait_no_more()
        if self._expects():
            self._wait()

    def connection_lost(self, exc: Exception | None) -> None:
        """Wait for nothing any more."""
        self._wait_no_more()
        super().connection_lost(exc)

    def _expects(self) -> bool:
        """Whether it is the client's turn to begin a request, or to end one that was refused."""
        return self.cycle is None or self.cycle.response_complete

    def _wait(self) -> None:
        if self._waiting is None and not self.transport.is_closing():
            self._waiting = self.loop.call_later(HEAD_SECONDS, self._end)

    def _end(self) -> None:
        if self._expects():
            self.transport.close()

    def _wait_no_more(self) -> None:
        if self._waiting is not None:
            self._waiting.cancel()
            self._waiting = None
