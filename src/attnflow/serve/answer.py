"""What the server answers: JSON, or an error with a status, a kind and a message."""

import json
from collections.abc import Mapping
from typing import Any, Final, NamedTuple

FAILED: Final = "the server failed; its terminal shows the traceback"


class Kind(NamedTuple):
    """A kind of error.

    Attributes:
        status: The status of the answer.
        when: When it is sent, in a sentence.
        retry_after: After how many seconds to try again; 0 if trying again does not help.
    """

    status: int
    when: str
    retry_after: int = 0


KINDS: Final = {
    "not_json": Kind(400, "The body is not JSON."),
    "twice": Kind(400, "A header is repeated that may be sent only once."),
    "no_token": Kind(401, "The server requires a token, and it is missing or wrong."),
    "wrong_origin": Kind(403, "The request comes from a page of another site."),
    "not_found": Kind(404, "There is no such path."),
    "wrong_method": Kind(405, "The path does not accept this method."),
    "too_slow": Kind(408, "The body did not arrive in time."),
    "too_large": Kind(413, "The body is too large."),
    "too_long": Kind(413, "A text is too long for this server."),
    "wrong_type": Kind(415, "The body is not application/json."),
    "wrong_host": Kind(421, "The Host header does not name this server."),
    "invalid": Kind(422, "A field is not valid, by itself or for this model."),
    "too_many": Kind(429, "Too many requests of this client are waiting.", retry_after=2),
    "failed": Kind(500, "The server failed. The traceback is on its terminal."),
    "busy": Kind(503, "Too many requests are waiting, or connections are open.", retry_after=5),
    "stopping": Kind(503, "The server is stopping.", retry_after=10),
    "too_late": Kind(504, "There was no answer in time."),
}


class Refused(Exception):
    """A request that is answered with an error.

    Args:
        kind: One of `KINDS`.
        message: What is wrong, what was given and what is accepted.
        headers: Headers of the answer.
    """

    def __init__(self, kind: str, message: str, headers: Mapping[str, str] | None = None) -> None:
        super().__init__(message)
        self.kind = kind
        self.message = message
        self.status, _, retry = KINDS[kind]
        self.headers = {**({"Retry-After": str(retry)} if retry else {}), **(headers or {})}


class Answer(NamedTuple):
    """The answer to a request.

    Attributes:
        status: Its status.
        body: JSON.
        headers: Headers in addition to those that every answer has.
    """

    status: int
    body: bytes
    headers: Mapping[str, str]

    @classmethod
    def of(cls, content: Any, status: int = 200) -> "Answer":
        """Return the answer with some content, or the one to a request that is refused.

        Example:
            >>> Answer.of({"status": "ok"}).body
            b'{"status":"ok"}'
            >>> Answer.of(Refused("busy", "64 requests are waiting")).headers
            {'Retry-After': '5'}
        """
        headers = {}
        if isinstance(content, Refused):
            status, headers = content.status, content.headers
            content = {
                "error": {"status": status, "kind": content.kind, "message": content.message}
            }
        body = json.dumps(content, allow_nan=False, separators=(",", ":"))
        return cls(status, body.encode(), headers)
