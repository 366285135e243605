"""The web application: its pages, its interface, and the answer to each request."""

import asyncio
import json
import math
import re
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Collection, MutableMapping
from contextlib import suppress
from typing import TYPE_CHECKING, Any, Final

from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response, StreamingResponse
from starlette.routing import Route

from attnflow.serve import guard
from attnflow.serve.answer import FAILED, Answer, Refused
from attnflow.serve.limits import Limits
from attnflow.serve.metrics import Metrics
from attnflow.serve.openapi import docs_page, openapi, read_file
from attnflow.serve.question import prompt_type, question_type, read_question
from attnflow.serve.queue import FairQueue, Job
from attnflow.serve.worker import Stage, too_late
from attnflow.view.generation import style

if TYPE_CHECKING:
    from attnflow.serve.messages import Model


# What happens to a job.
Events = asyncio.Queue[Stage | Answer]

NDJSON: Final = "application/x-ndjson"
# How long a client may take to send the head of a request, in seconds.
HEAD_SECONDS: Final = 10.0
# The longest silence of a stream, in seconds.
SILENCE: Final = 1.0
# A body that is too large is read up to this many times the limit. A client that sends all of it
# before it reads is then told why it was refused.
PATIENCE: Final = 16
# Marks a request whose question was accepted.
ACCEPTED: Final = "attnflow.accepted"

HEADERS: Final = [(name.encode(), value.encode()) for name, value in guard.HEADERS.items()]

_CLIENT: Final = re.compile(r"[A-Za-z0-9_-]{1,64}")
_JSON: Final = re.compile(r"application/json\s*(;\s*charset=\"?utf-8\"?\s*)?", re.IGNORECASE)


class Service:
    """The ASGI application.

    Args:
        model: What a client needs to know about the model.
        queue: The questions for the worker.
        limits: The limits of the server.
        metrics: The metrics of the server.
        hosts: The names of the server.
        token: The token that clients need, or None.

    Attributes:
        stopping: Whether new questions are refused.
        connections: The open connections of all clients, as uvicorn keeps them.
        accepted: How many questions were accepted and not yet answered to the last byte.
    """

    def __init__(
        self,
        model: "Model",
        queue: FairQueue,
        limits: Limits,
        metrics: Metrics,
        hosts: guard.Hosts,
        token: str | None = None,
    ) -> None:
        self._queue = queue
        self._limits = limits
        self._metrics = metrics
        self._hosts = hosts
        self._token = None if token is None else guard.digest(token)
        self.stopping = False
        self.connections: Collection[Any] = ()
        self.accepted = 0
        # Each waiting request has a connection, and each client a few idle ones.
        self._max_connections = 4 * limits.waiting + 256
        # When each connection must have sent the head of its next request, by its client.
        self._deadlines: dict[Any, float] = {}
        self._active = 0
        self._last = time.monotonic()
        description = openapi(limits, token=token is not None)
        fixed = {
            "/": ("text/html", read_file("serve.html")),
            "/page.js": ("text/javascript", read_file("bundles/serve.js")),
            "/page.css": ("text/css", f"{style()}\n{read_file('serve.css')}"),
            "/docs": ("text/html", docs_page(description)),
            "/openapi.json": ("application/json", json.dumps(description)),
            "/api/model": ("application/json", json.dumps(model)),
        }
        routes = [
            *(
                Route(path, Response(content, media_type=kind), methods=["GET"])
                for path, (kind, content) in fixed.items()
            ),
            Route("/api/explain", self._asking(question_type(limits)), methods=["POST"]),
            Route("/api/generate", self._asking(prompt_type(limits)), methods=["POST"]),
            Route("/healthz", self._health, methods=["GET"]),
            Route("/metrics", self._count, methods=["GET"]),
        ]
        self._paths = {route.path for route in routes}
        self._app = Starlette(
            routes=routes,
            exception_handlers=dict.fromkeys(
                (Refused, HTTPException, ClientDisconnect, Exception), _error
            ),
        )
        self._app.router.redirect_slashes = False

    def idle(self) -> float:
        """Return for how many seconds there has been no request."""
        return 0.0 if self._active else time.monotonic() - self._last

    async def close_silent(self) -> None:
        """Close the connections that have not sent a request in time. To be called regularly.

        uvicorn waits without limit for the first request of a connection, for the rest of a head,
        and for the rest of a body that was refused. Without this, anybody who can connect could
        use up all connections, even without the token.
        """
        now = time.monotonic()
        connections = {connection.client: connection for connection in self.connections}
        self._deadlines = {
            client: self._deadlines.get(client, now + HEAD_SECONDS) for client in connections
        }
        for client, deadline in self._deadlines.items():
            if now > deadline:
                connections[client].transport.close()

    async def __call__(self, scope: MutableMapping[str, Any], receive: Any, send: Any) -> None:
        """Answer a request."""
        if scope["type"] != "http":
            raise RuntimeError(f"the scope is {scope['type']!r}; expected 'http'")
        path = scope["path"] if scope["path"] in self._paths else "other"

        async def answer(message: MutableMapping[str, Any]) -> None:
            if message["type"] == "http.response.start":
                self._metrics.requests.labels(path, message["status"]).inc()
                headers = message["headers"] = [*message.get("headers", ()), *HEADERS]
                if self.stopping and not any(name == b"connection" for name, _ in headers):
                    headers.append((b"connection", b"close"))
            await send(message)

        self._active += 1
        self._deadlines[scope["client"]] = math.inf
        try:
            try:
                guard.check(scope, self._hosts, self._token)
            except Refused as refused:
                await _response(Answer.of(refused))(scope, receive, answer)
            else:
                await self._app(scope, receive, answer)
        finally:
            self._active -= 1
            self.accepted -= ACCEPTED in scope
            self._last = time.monotonic()
            self._deadlines[scope["client"]] = self._last + HEAD_SECONDS

    async def _health(self, request: Request) -> Response:
        if self.stopping:
            return _response(Answer.of({"status": "stopping"}, 503))
        return _response(Answer.of({"status": "ok"}))

    async def _count(self, request: Request) -> Response:
        return Response(self._metrics.text(), media_type="text/plain; version=0.0.4")

    def _asking(self, kind: Any) -> Callable[[Request], Awaitable[Response]]:
        """Return what answers requests whose body is of a type."""

        async def ask(request: Request) -> Response:
            return await self._ask(request, kind)

        return ask

    async def _ask(self, request: Request, kind: Any) -> Response:
        self._check_running()
        if len(self.connections) > self._max_connections:
            raise Refused(
                "busy",
                f"{len(self.connections)} connections are open; try again later",
                {"Connection": "close"},
            )
        client = self._client(request)
        question = read_question(await self._body(request), kind)
        loop = asyncio.get_running_loop()
        events: Events = asyncio.Queue()

        def tell(item: Stage | Answer) -> None:
            with suppress(RuntimeError):  # the loop has ended, and nobody listens
                loop.call_soon_threadsafe(events.put_nowait, item)

        self._check_running()
        job = Job(question, client, time.monotonic() + self._limits.seconds, tell)
        self._queue.put(job)
        self.accepted += 1
        request.scope[ACCEPTED] = True
        if NDJSON in request.headers.get("accept", ""):
            return StreamingResponse(self._stream(job, events), media_type=NDJSON)
        try:
            while not isinstance(item := await self._next(job, events), Answer):
                if await request.is_disconnected():
                    raise ClientDisconnect
            return _response(item)
        finally:
            self._drop(job)

    def _check_running(self) -> None:
        if self.stopping:
            raise Refused("stopping", "the server is stopping; try again later")

    def _client(self, request: Request) -> str:
        """Return who asks: an address, and a name if one is given."""
        address = request.client.host if request.client is not None else ""
        name = request.headers.get("attnflow-client")
        if name is None:
            return address
        if not _CLIENT.fullmatch(name):
            raise Refused(
                "invalid",
                f"Attnflow-Client is {name[:64]!r}; expected 1 to 64 letters, digits, hyphens and "
                "underscores",
            )
        return f"{address} {name}"

    async def _body(self, request: Request) -> bytes:
        kind = request.headers.get("content-type", "")
        if not _JSON.fullmatch(kind) or "content-encoding" in request.headers:
            raise Refused("wrong_type", "the body must be application/json, not compressed")
        limit = self._limits.body
        length = request.headers.get("content-length", "0")
        large = Refused("too_large", f"the body may have {limit} bytes", {"Connection": "close"})
        if not length.isascii() or not length.isdigit() or int(length[:18]) > PATIENCE * limit:
            raise large
        parts, size = [], 0
        try:
            async with asyncio.timeout(self._limits.body_seconds):
                async for part in request.stream():
                    size += len(part)
                    if size <= limit:
                        parts.append(part)
                    elif size > PATIENCE * limit:
                        raise large
        except TimeoutError as error:
            raise Refused(
                "too_slow",
                f"the body did not arrive within {self._limits.body_seconds:g} seconds",
                {"Connection": "close"},
            ) from error
        if size > limit:
            raise large
        return b"".join(parts)

    async def _next(self, job: Job, events: Events) -> Stage | Answer | None:
        """Return what happens next to a job, or None if nothing does for a second."""
        left = max(job.deadline - time.monotonic(), 0.0)
        try:
            return await asyncio.wait_for(events.get(), min(left, SILENCE))
        except TimeoutError:
            return None if left > SILENCE else too_late(self._limits)

    async def _stream(self, job: Job, events: Events) -> AsyncIterator[bytes]:
        """Yield what happens to a job as lines of JSON, the answer last."""
        started = time.monotonic()
        stage: Stage | None = None
        try:
            while True:
                event: dict[str, Any] = {"event": "waiting", "ahead": self._queue.ahead(job) or 0}
                if stage is not None:
                    event = {"event": "running", **stage.to_dict()}
                event["seconds"] = round(time.monotonic() - started, 3)
                yield json.dumps(event).encode() + b"\n"
                item = await self._next(job, events)
                if isinstance(item, Answer):
                    head = f'{{"event":"answer","status":{item.status},"body":'.encode()
                    yield head + item.body + b"}\n"
                    return
                stage = stage if item is None else item
        finally:
            self._drop(job)

    def _drop(self, job: Job) -> None:
        """Forget a job that is answered, or that nobody waits for."""
        job.given_up = True
        self._queue.remove(job)


def _response(answer: Answer) -> Response:
    status, body, headers = answer
    return Response(body, status, headers, "application/json")


async def _error(request: Request, error: Exception) -> Response:
    path = request.url.path
    match error:
        case Refused():
            refused = error
        case HTTPException(status_code=404):
            refused = Refused("not_found", f"there is nothing at {path}")
        case HTTPException(status_code=405, headers=headers):
            refused = Refused("wrong_method", f"{path} does not accept {request.method}", headers)
        case ClientDisconnect():
            # Nobody reads this. 499 is what other servers log for it.
            return Response(status_code=499)
        case _:
            refused = Refused("failed", FAILED)
    return _response(Answer.of(refused))
