"""Listening, and stopping without losing a question.

The main thread runs the model, and a second thread the web server. SIGINT and SIGTERM stop both:
the questions that were accepted are answered first, and new ones are refused. A second signal stops
the server at once.
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

from attnflow.checks import integer
from attnflow.errors import OptionError
from attnflow.serve.guard import Hosts
from attnflow.serve.limits import Limits
from attnflow.serve.metrics import Metrics
from attnflow.serve.queue import FairQueue
from attnflow.serve.worker import Worker, read_model

if TYPE_CHECKING:
    from attnflow.models import Explainer


# A server that is stopping ends when there has been no request for this many seconds. Whoever asks
# in the meantime is told why and not cut off.
QUIET: Final = 0.5
# A server that is stopping ends at the latest this many seconds after its last answer, and after
# the time limit of a request.
PATIENCE: Final = 5.0
MIN_TOKEN: Final = 16
STOPPING: Final = b"attnflow: stopping when all is answered; Ctrl-C again stops it at once\n"


def check_token(token: str | None) -> None:
    """Refuse a token that can be guessed, or that cannot be sent in a header.

    Args:
        token: The token, or None.

    Raises:
        OptionError: If it has less than 16 characters, or others than visible ASCII characters.
    """
    if token is None:
        return
    if len(token) < MIN_TOKEN or not all("!" <= character <= "~" for character in token):
        raise OptionError(
            f"token has {len(token)} characters; expected {MIN_TOKEN} or more, all visible ASCII "
            "characters without spaces. python -c 'import secrets; print(secrets.token_urlsafe())' "
            "makes one"
        )


def listen(host: str, port: int, *, token: str | None) -> socket.socket:
    """Bind an address and a port.

    Args:
        host: The address, or a name of it.
        port: The port. 0 takes any free one.
        token: The token that clients need. Only an address that other machines cannot reach may
            go without.

    Returns:
        A socket that is bound, and does not listen yet.

    Raises:
        OptionError: If there is no such address, the port is in use, or a token is required.
    """
    integer(port, "port", least=0, most=65535)
    check_token(token)
    try:
        found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
    except (OSError, UnicodeError) as error:
        raise OptionError(f"host is {host!r}; expected an address or its name: {error}") from error
    family, _, _, _, address = found[0]
    if not ipaddress.ip_address(address[0]).is_loopback and token is None:
        raise OptionError(
            f"host is {host!r}, which other machines can reach, and token is missing; give a "
            "token, or use the host 127.0.0.1 to serve this machine only"
        )
    listening = socket.socket(family, socket.SOCK_STREAM)
    try:
        listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listening.bind(address)
    except OSError as error:
        listening.close()
        advice = "; choose another port, or 0 for a free one"
        raise OptionError(
            f"cannot listen on host {host!r}, port {port}: {error.strerror or error}"
            f"{advice if error.errno == errno.EADDRINUSE else ''}"
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
    """Serve a model until a signal stops it. Call this from the main thread.

    Args:
        explainer: The model.
        listening: What `listen` returned. It is closed in the end.
        token: The token that clients need, or None.
        limits: The limits of the server.
        names: Host names of the server, besides its address and localhost.
        ready: Called with the server's address when it accepts requests.

    Raises:
        OptionError: If the token is not valid.
        ModelError: If the model does not read text.
        KeyboardInterrupt: If a second signal came before all was answered.
    """
    import uvicorn

    from attnflow.serve.app import Service

    check_token(token)
    limits = limits or Limits()
    with listening:
        host, port = listening.getsockname()[:2]
        model = read_model(explainer, limits)
        queue = FairQueue(limits)
        metrics = Metrics(model["model"], model["task"], queue.__len__)
        worker = Worker(explainer, queue, limits, metrics)
        service = Service(model, queue, limits, metrics, Hosts(host, names), token)
        config = uvicorn.Config(
            service,
            http="h11",
            ws="none",
            lifespan="off",
            log_config=None,
            # Clients are told what is wrong with their requests. The log is for the server itself.
            log_level="error",
            access_log=False,
            server_header=False,
            proxy_headers=False,
            timeout_graceful_shutdown=int(PATIENCE),
            callback_notify=service.close_silent,
            timeout_notify=1,
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
                # Cutting off requests is what was asked for, not an error to log.
                log.disabled = True
                raise
            finally:
                server.should_exit = True
                thread.join(2 * PATIENCE)
                log.disabled = False


def _work(worker: Worker, service: Any, thread: threading.Thread, limits: Limits) -> None:
    """Answer questions until a signal came and all are answered."""
    latest: float | None = None
    busy = time.monotonic()
    while thread.is_alive():
        worked = worker.work(0.1)
        now = time.monotonic()
        if worked or service.accepted:
            busy = now
        if not service.stopping:
            continue
        if latest is None:
            latest, busy = now + limits.seconds + PATIENCE, now
        # A client that asks again and again is refused, and does not keep the server from stopping.
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
        # One system call: the signal may have interrupted another write.
        os.write(2, STOPPING)

    before = {number: signal.signal(number, stop) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
