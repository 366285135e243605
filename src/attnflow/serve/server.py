"""Listening, and stopping without losing what was asked.

The main thread runs the model, and a second thread the web server. SIGINT and SIGTERM stop both:
questions that were taken are answered first, and new ones are refused. A second signal ends at
once.
"""

import errno
import ipaddress
import logging
import os
import signal
import socket
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from types import FrameType
from typing import TYPE_CHECKING, Any, Final

from attnflow.errors import OptionError
from attnflow.serve.guard import Hosts
from attnflow.serve.limits import Limits
from attnflow.serve.metrics import Metrics
from attnflow.serve.queue import FairQueue
from attnflow.serve.worker import Worker, read_model

if TYPE_CHECKING:
    from attnflow.models import Explainer

__all__ = ["check_token", "listen", "serve"]

# How long nobody may have asked before a server that is stopping goes, in seconds: whoever asks in
# the meantime is told so, and not cut off.
QUIET: Final = 0.5
# How long a server that is stopping stays at most after the last answer, and beyond the time limit
# of a request, in seconds.
PATIENCE: Final = 5.0
SHORTEST_TOKEN: Final = 16
STOPPING: Final = b"attnflow: stopping when all is answered; Ctrl-C again stops it at once\n"


def check_token(token: str | None) -> None:
    """Refuse a token that can be guessed, or that fits into no header.

    Args:
        token: The token.

    Raises:
        OptionError: If it has less than 16 characters, or others than visible ones of ASCII.
    """
    if token is None:
        return
    if len(token) < SHORTEST_TOKEN or not all("!" <= character <= "~" for character in token):
        raise OptionError(
            f"the token has {len(token)} characters; expected {SHORTEST_TOKEN} or more, without "
            "spaces, of ASCII: python -c 'import secrets; print(secrets.token_urlsafe())' makes one"
        )


def listen(host: str, port: int, *, token: str | None) -> socket.socket:
    """Take an address and a port.

    Args:
        host: The address, or a name of it.
        port: The port; 0 takes any that is free.
        token: What clients have to know. Only an address that nobody else can reach needs none.

    Returns:
        A socket that is bound, and does not listen yet.

    Raises:
        OptionError: If there is no such address, the port is taken, or a token is needed.
    """
    if isinstance(port, bool) or not 0 <= port <= 65535:
        raise OptionError(f"port is {port!r}; expected a number from 0 to 65535")
    check_token(token)
    try:
        found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
    except (OSError, UnicodeError) as error:
        raise OptionError(f"--host is {host!r}, which is no address: {error}") from error
    family, _, _, _, address = found[0]
    if not ipaddress.ip_address(address[0]).is_loopback and token is None:
        raise OptionError(
            f"--host {host} can be reached by others, so that a token is needed: give --token, "
            "or leave --host out to serve this machine alone"
        )
    listening = socket.socket(family, socket.SOCK_STREAM)
    try:
        listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listening.bind(address)
    except OSError as error:
        listening.close()
        taken = "; give another with --port, or 0 for one that is free"
        raise OptionError(
            f"{host}, port {port} cannot be listened on: {error.strerror or error}"
            f"{taken if error.errno == errno.EADDRINUSE else ''}"
        ) from error
    return listening


def serve(
    explainer: "Explainer",
    listening: socket.socket,
    *,
    token: str | None = None,
    limits: Limits | None = None,
    names: Sequence[str] = (),
    ready: Callable[[str], None] | None = None,
) -> None:
    """Serve a model until a signal says to stop. Only the main thread can.

    Args:
        explainer: The model.
        listening: What `listen` returned. It is closed in the end.
        token: What clients have to know, or None.
        limits: What clients may ask for.
        names: Names of the server, besides its address and localhost.
        ready: Is given the server's address when it can be asked.

    Raises:
        OptionError: If the token is not valid.
        ModelError: If the model does not read texts.
        KeyboardInterrupt: If a second signal came before all was answered.
    """
    import uvicorn

    from attnflow.serve.app import Service
    from attnflow.serve.connection import Connection

    check_token(token)
    limits = limits or Limits()
    with listening:
        host, port = listening.getsockname()[:2]
        model = read_model(explainer, limits)
        queue = FairQueue(limits)
        metrics = Metrics(model.model, model.task)
        worker = Worker(explainer, queue, limits, metrics)
        service = Service(model, worker, queue, limits, metrics, Hosts(host, names), token)
        config = uvicorn.Config(
            service,
            http=Connection,
            ws="none",
            lifespan="off",
            log_config=None,
            # What clients get wrong they are told; here is said what the server does.
            log_level="error",
            access_log=False,
            server_header=False,
            proxy_headers=False,
            timeout_graceful_shutdown=int(PATIENCE),
        )
        log = logging.getLogger("uvicorn.error")
        server = uvicorn.Server(config)
        service.connections = server.server_state.connections
        thread = threading.Thread(
            target=server.run, kwargs={"sockets": [listening]}, name="attnflow-web", daemon=True
        )
        with _signals(service):
            thread.start()
            try:
                while not server.started and thread.is_alive():
                    time.sleep(0.01)
                if ready is not None and server.started:
                    ready(f"http://{f'[{host}]' if ':' in host else host}:{port}/")
                _work(worker, service, thread, limits)
            except BaseException:
                server.force_exit = True
                # That requests are cut off is what was asked for, and no error to report.
                log.disabled = True
                raise
            finally:
                server.should_exit = True
                thread.join(2 * PATIENCE)
                log.disabled = False


def _work(worker: Worker, service: Any, thread: threading.Thread, limits: Limits) -> None:
    """Answer questions until all are answered after a signal."""
    latest: float | None = None
    busy = time.monotonic()
    while thread.is_alive():
        worked = worker.work(0.1)
        now = time.monotonic()
        if worked or service.taken:
            busy = now
        if not service.stopping:
            continue
        if latest is None:
            latest, busy = now + limits.seconds + PATIENCE, now
        # Somebody who asks again and again is told that it stops, and does not keep it from that.
        quiet = service.idle() > QUIET or now - busy > PATIENCE
        if not worked and (quiet or now > latest):
            return


@contextmanager
def _signals(service: Any) -> Iterator[None]:
    """Let the first SIGINT or SIGTERM ask the service to stop, and the second end it."""

    def stop(number: int, frame: FrameType | None) -> None:
        if service.stopping:
            raise KeyboardInterrupt
        service.stopping = True
        # Written at once and whole: what the signal came in the middle of may be writing, too.
        os.write(2, STOPPING)

    before = {number: signal.signal(number, stop) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
