"""The web application: its pages, its interface, and what each request is answered."""

import asyncio
import json
import re
import time
from collections.abc import AsyncIterator, MutableMapping, Sized
from contextlib import suppress
from importlib.resources import files
from typing import Any, Final

from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response, StreamingResponse
from starlette.routing import Route

from attnflow.serve import guard
from attnflow.serve.limits import Limits
from attnflow.serve.metrics import Metrics
from attnflow.serve.openapi import describe, docs_page
from attnflow.serve.question import Refused, read_question
from attnflow.serve.queue import FairQueue, Job
from attnflow.serve.worker import Answer, Model, Stage, Worker, too_late
from attnflow.view.page import script, style

__all__ = ["Service"]

NDJSON: Final = "application/x-ndjson"
# How long a stream may be silent, in seconds.
SILENCE: Final = 1.0
# A body that is too large is read on up to this many times the limit, so that a client which sends
# all of it before it listens hears why it was refused.
PATIENCE: Final = 16
# Marks a request whose question was taken.
TAKEN: Final = "attnflow.taken"

_CLIENT: Final = re.compile(r"[A-Za-z0-9_-]{1,64}")
_JSON: Final = re.compile(r"application/json\s*(;\s*charset=\"?utf-8\"?\s*)?", re.IGNORECASE)


class Service:
    """The application. It is called as ASGI says.

    Args:
        model: What the model is like.
        worker: Answers the questions.
        queue: Where the worker takes them from.
        limits: What clients may ask for.
        metrics: Counts what is answered.
        hosts: The names of the server.
        token: What a client has to know, or None.

    Attributes:
        stopping: Whether new questions are refused.
        connections: Those that are open, of all clients.
        taken: How many questions were taken, and are not answered yet to the last byte.
    """

    def __init__(
        self,
        model: Model,
        worker: Worker,
        queue: FairQueue,
        limits: Limits,
        metrics: Metrics,
        hosts: guard.Hosts,
        token: str | None = None,
    ) -> None:
        self._model = model
        self._worker = worker
        self._queue = queue
        self._limits = limits
        self._metrics = metrics
        self._hosts = hosts
        self._token = None if token is None else guard.digest(token)
        self.stopping = False
        self.connections: Sized = ()
        self.taken = 0
        # Each waiting request has a connection, and each client a few that do nothing.
        self._most_connections = 4 * limits.waiting + 256
        self._in_hand = 0
        self._last = time.monotonic()
        description = describe(limits, token=token is not None)
        own = files("attnflow.serve")
        fixed = {
            "/": ("text/html", own.joinpath("serve.html").read_text("utf-8")),
            "/page.js": (
                "text/javascript",
                f"{script()}\n{own.joinpath('serve.js').read_text('utf-8')}",
            ),
            "/page.css": ("text/css", f"{style()}\n{own.joinpath('serve.css').read_text('utf-8')}"),
            "/docs": ("text/html", docs_page(description)),
            "/openapi.json": ("application/json", json.dumps(description)),
            "/api/model": ("application/json", json.dumps(model._asdict())),
        }
        routes = [
            *(Route(path, _fixed(*content), methods=["GET"]) for path, content in fixed.items()),
            Route("/api/explain", self._explain, methods=["POST"]),
            Route("/healthz", self._health, methods=["GET"]),
            Route("/metrics", self._count, methods=["GET"]),
        ]
        self._paths = {route.path for route in routes}
        self._app = Starlette(
            routes=routes,
            exception_handlers={
                Refused: _refused,
                HTTPException: _http_error,
                ClientDisconnect: _gone_away,
                Exception: _failed,
            },
        )
        self._app.router.redirect_slashes = False

    def idle(self) -> float:
        """Return for how many seconds no request has been in hand."""
        return 0.0 if self._in_hand else time.monotonic() - self._last

    async def __call__(self, scope: MutableMapping[str, Any], receive: Any, send: Any) -> None:
        """Answer a request."""
        if scope["type"] != "http":
            raise RuntimeError(f"{scope['type']} is not spoken here")
        path = scope["path"] if scope["path"] in self._paths else "other"

        async def answer(message: MutableMapping[str, Any]) -> None:
            if message["type"] == "http.response.start":
                self._metrics.answered(path, message["status"])
                headers = message.setdefault("headers", [])
                headers += [(name.encode(), value.encode()) for name, value in HEADERS]
                if self.stopping and not any(name == b"connection" for name, _ in headers):
                    headers.append((b"connection", b"close"))
            await send(message)

        self._in_hand += 1
        try:
            try:
                guard.check(scope, self._hosts, self._token)
            except Refused as refused:
                await _response(Answer.of(refused))(scope, receive, answer)
            else:
                await self._app(scope, receive, answer)
        finally:
            self._in_hand -= 1
            self.taken -= TAKEN in scope
            self._last = time.monotonic()

    async def _health(self, request: Request) -> Response:
        if self.stopping:
            return _json({"status": "stopping"}, 503)
        return _json({"status": "ok"})

    async def _count(self, request: Request) -> Response:
        running = 0 if self._worker.running is None else 1
        text = self._metrics.text(waiting=len(self._queue), running=running)
        return Response(text, media_type="text/plain; version=0.0.4")

    async def _explain(self, request: Request) -> Response:
        self._check_running()
        if len(self.connections) > self._most_connections:
            raise Refused(
                503,
                "busy",
                f"{len(self.connections)} connections are open already; try again later",
                {"Retry-After": "5", "Connection": "close"},
            )
        client = self._client(request)
        question = read_question(await self._body(request), self._limits)
        loop = asyncio.get_running_loop()
        happened: asyncio.Queue[Stage | Answer] = asyncio.Queue()

        def tell(item: Stage | Answer) -> None:
            with suppress(RuntimeError):  # the loop has ended, and nobody listens
                loop.call_soon_threadsafe(happened.put_nowait, item)

        self._check_running()
        job = Job(question, client, self._limits.seconds, tell)
        self._queue.put(job)
        self.taken += 1
        request.scope[TAKEN] = True
        if NDJSON in request.headers.get("accept", ""):
            return StreamingResponse(self._events(job, happened), media_type=NDJSON)
        gone = asyncio.ensure_future(_gone(request))
        answer = asyncio.ensure_future(self._answer(job, happened))
        try:
            await asyncio.wait({gone, answer}, return_when=asyncio.FIRST_COMPLETED)
            if answer.done():
                return _response(answer.result())
            raise ClientDisconnect
        finally:
            self._drop(job)
            gone.cancel()
            answer.cancel()

    def _check_running(self) -> None:
        if self.stopping:
            raise Refused(
                503, "stopping", "the server is stopping; try again later", {"Retry-After": "10"}
            )

    def _client(self, request: Request) -> str:
        """Return who asks: by the name given, or else by address."""
        address = request.client.host if request.client is not None else ""
        name = request.headers.get("attnflow-client")
        if name is None:
            return address
        if not _CLIENT.fullmatch(name):
            raise Refused(
                422,
                "invalid",
                "Attnflow-Client must be 1 to 64 letters, digits, hyphens and underscores",
            )
        return f"{address} {name}"

    async def _body(self, request: Request) -> bytes:
        kind = request.headers.get("content-type", "")
        if not _JSON.fullmatch(kind) or "content-encoding" in request.headers:
            raise Refused(415, "wrong_type", "the body must be application/json, not compressed")
        limit = self._limits.body
        length = request.headers.get("content-length", "0")
        large = Refused(
            413, "too_large", f"the body may have {limit} bytes", {"Connection": "close"}
        )
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
                408,
                "too_slow",
                f"the body did not arrive within {self._limits.body_seconds:g} seconds",
                {"Connection": "close"},
            ) from error
        if size > limit:
            raise large
        return b"".join(parts)

    async def _answer(self, job: Job, happened: "asyncio.Queue[Stage | Answer]") -> Answer:
        try:
            async with asyncio.timeout_at(job.deadline):
                while True:
                    item = await happened.get()
                    if isinstance(item, Answer):
                        return item
        except TimeoutError:
            return too_late(self._limits)

    async def _events(
        self, job: Job, happened: "asyncio.Queue[Stage | Answer]"
    ) -> AsyncIterator[bytes]:
        """Yield what happens to a job, a line of JSON each, and the answer last."""
        started = time.monotonic()
        stage: Stage | None = None
        try:
            while True:
                event: dict[str, Any] = {"event": "waiting", "ahead": self._queue.ahead(job) or 0}
                if stage is not None:
                    event = {"event": "running", **stage._asdict()}
                event["seconds"] = round(time.monotonic() - started, 3)
                yield json.dumps(event).encode() + b"\n"
                left = job.deadline - time.monotonic()
                item: Stage | Answer | None = None
                try:
                    item = await asyncio.wait_for(happened.get(), min(max(left, 0.0), SILENCE))
                except TimeoutError:
                    if left <= SILENCE:
                        item = too_late(self._limits)
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


HEADERS: Final = tuple(guard.HEADERS.items())


def _fixed(kind: str, content: str) -> Any:
    """Return what answers with the same each time."""
    encoded = content.encode()

    async def answer(request: Request) -> Response:
        return Response(encoded, media_type=kind)

    return answer


async def _gone(request: Request) -> None:
    """Return when the client has gone."""
    while (await request.receive())["type"] != "http.disconnect":
        pass


def _json(content: dict[str, Any], status: int = 200) -> Response:
    return _response(Answer(status, json.dumps(content).encode(), {}))


def _response(answer: Answer) -> Response:
    return Response(
        answer.body,
        status_code=answer.status,
        headers=answer.headers,
        media_type="application/json",
    )


async def _refused(request: Request, error: Any) -> Response:
    return _response(Answer.of(error))


async def _http_error(request: Request, error: Any) -> Response:
    kind = {404: "not_found", 405: "wrong_method"}.get(error.status_code, "failed")
    message = {
        404: f"there is nothing at {request.url.path}",
        405: f"{request.url.path} does not take {request.method}",
    }.get(error.status_code, str(error.detail))
    return _response(Answer.of(Refused(error.status_code, kind, message, error.headers)))


async def _gone_away(request: Request, error: Any) -> Response:
    # Nobody reads this; the number is what other servers log for it.
    return Response(status_code=499)


async def _failed(request: Request, error: Any) -> Response:
    return _response(
        Answer.of(Refused(500, "failed", "the server failed; its terminal says how and where"))
    )
