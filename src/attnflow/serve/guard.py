"""Who may ask: the door that every request comes through.

A page of another site can make a browser send requests to an address that only the browser can
reach, and can give its own name that address (DNS rebinding). So a request is let in only under a
name that is the server's own, and only from the server's own pages or from no page at all. There
are no cookies that a browser would add by itself: a token, where there is one, is in a header that
no other site can set.
"""

import hashlib
import hmac
import ipaddress
import re
from collections.abc import Awaitable, Callable, Iterable, MutableMapping
from typing import Any, Final
from urllib.parse import urlsplit

from attnflow.serve.question import Refused

__all__ = ["HEADERS", "Hosts", "check", "digest"]

Send = Callable[[MutableMapping[str, Any]], Awaitable[None]]

# What may be had without a token: the page itself, which is the same for everybody and shows
# nothing before it has one, and whether the server is up.
OPEN: Final = ("/", "/page.js", "/page.css", "/docs", "/openapi.json", "/healthz")
# What a link on another site may lead to. Neither does anything by itself.
LINKED: Final = ("/", "/docs")

# Of two that differ, this server might read one and whatever is in front of it the other.
ONCE: Final = (b"attnflow-client", b"authorization", b"content-type")

HEADERS: Final = {
    "content-security-policy": (
        "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; "
        "base-uri 'none'; form-action 'none'; frame-ancestors 'none'; "
        "require-trusted-types-for 'script'; trusted-types 'none'"
    ),
    "cache-control": "no-store",
    "cross-origin-opener-policy": "same-origin",
    "cross-origin-resource-policy": "same-origin",
    "permissions-policy": "camera=(), geolocation=(), microphone=()",
    "referrer-policy": "no-referrer",
    "x-content-type-options": "nosniff",
    "x-frame-options": "DENY",
}

_HOST: Final = re.compile(r"(\[[0-9A-Fa-f:.]+\]|[A-Za-z0-9._-]+)(?::([0-9]{1,5}))?")


class Hosts:
    """The names under which a server may be asked.

    An address in figures cannot be given to another name's page, so that a server which listens on
    all addresses may be asked under each of them. A name has to be known.

    Args:
        address: The address that the server listens on, in figures.
        names: Names of it.

    Example:
        >>> hosts = Hosts("127.0.0.1", ["workshop.example"])
        >>> hosts.knows("localhost:8000"), hosts.knows("[::1]"), hosts.knows("workshop.example:80")
        (True, True, True)
        >>> hosts.knows("evil.example:8000"), hosts.knows("192.0.2.7:8000"), hosts.knows("")
        (False, False, False)
    """

    def __init__(self, address: str, names: Iterable[str] = ()) -> None:
        self._address = ipaddress.ip_address(address)
        self._names = {"localhost", *(name.lower().rstrip(".") for name in names)}

    def knows(self, host: str) -> bool:
        """Return whether a Host header is one of this server.

        Args:
            host: The header's value.
        """
        match = _HOST.fullmatch(host)
        if match is None:
            return False
        name = match[1].lower().rstrip(".").strip("[]")
        try:
            address = ipaddress.ip_address(name)
        except ValueError:
            return name in self._names
        return address.is_loopback or self._address.is_unspecified or address == self._address


def digest(token: str) -> bytes:
    """Return what is kept of a token. All digests are of one length."""
    return hashlib.sha256(token.encode("utf-8", "surrogateescape")).digest()


def check(scope: MutableMapping[str, Any], hosts: Hosts, token: bytes | None) -> None:
    """Refuse a request that has no business here.

    Args:
        scope: The request, as ASGI describes it.
        hosts: The names of the server.
        token: The digest of the token that is asked for, if one is.

    Raises:
        Refused: If it is asked for under another name (421), by another site's page (403), or
            without the token (401).
    """
    path = scope["path"]
    for name in ONCE:
        _only(scope, name)
    host = _only(scope, b"host")
    if host is None or not hosts.knows(host):
        raise Refused(
            421,
            "wrong_host",
            f"{'there is no Host header' if host is None else f'this server is not {host!r}'}; use "
            "its address, or start it with --allow-host NAME",
        )
    origin = _only(scope, b"origin")
    if origin is not None and not _same(origin, host):
        raise Refused(403, "wrong_origin", "pages of another site may not ask this server")
    site = _only(scope, b"sec-fetch-site")
    linked = path in LINKED and _only(scope, b"sec-fetch-mode") == "navigate"
    if site not in (None, "same-origin", "none") and not linked:
        raise Refused(403, "wrong_origin", "pages of another site may not ask this server")
    if token is not None and path not in OPEN:
        scheme, _, given = (_only(scope, b"authorization") or "").partition(" ")
        # Digests of one length are compared in a time that says nothing about where they differ.
        right = hmac.compare_digest(digest(given.strip()), token)
        if scheme.lower() != "bearer" or not right:
            raise Refused(
                401,
                "no_token",
                "the token is missing or wrong; send it as Authorization: Bearer TOKEN",
                {"WWW-Authenticate": 'Bearer realm="attnflow"'},
            )


def _only(scope: MutableMapping[str, Any], name: bytes) -> str | None:
    """Return the value of a header. Two of them are as good as a wrong one."""
    values = [value for key, value in scope["headers"] if key == name]
    if len(values) > 1:
        raise Refused(400, "twice", f"there are {len(values)} headers {name.decode()}")
    return values[0].decode("latin-1") if values else None


def _same(origin: str, host: str) -> bool:
    try:
        parts = urlsplit(origin)
    except ValueError:
        return False
    return parts.scheme in ("http", "https") and parts.netloc.lower() == host.lower()
