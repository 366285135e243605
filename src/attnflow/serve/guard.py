"""Who may ask: the checks that every request has to pass.

A page of another site can make a browser send requests to an address that only the browser can
reach, and can make its own name resolve to that address (DNS rebinding). A request is therefore
accepted only under one of the server's own names, and only from the server's own pages or from no
page at all. There are no cookies, which a browser would add by itself. The token is in a header
that no other site can set.
"""

import hashlib
import hmac
import ipaddress
import re
from collections.abc import Iterable, MutableMapping
from typing import Any, Final

from attnflow.serve.answer import Refused

# What needs no token: the page itself, which is the same for everybody and shows nothing until it
# has the token, the description of the interface, and whether the server is up.
OPEN: Final = ("/", "/page.js", "/page.css", "/docs", "/openapi.json", "/healthz")
# What a link on another site may lead to. Neither has side effects.
LINKED: Final = ("/", "/docs")

# Of two that differ, this server might read one and a proxy in front of it the other.
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
    """The host names and addresses of a server.

    No other site can have an IP address as its name, so a server that listens on all addresses
    accepts each of them. Names have to be listed.

    Args:
        address: The IP address that the server listens on.
        names: Its names.

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
        """Return whether a Host header names this server.

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
    """Return what is kept of a token. All digests have the same length."""
    return hashlib.sha256(token.encode("utf-8", "surrogateescape")).digest()


def check(scope: MutableMapping[str, Any], hosts: Hosts, token: bytes | None) -> None:
    """Refuse a request that is for another server, from another site, or without the token.

    Args:
        scope: The request, as ASGI describes it.
        hosts: The names of the server.
        token: The digest of the required token, or None.

    Raises:
        Refused: If a header is repeated (400), the Host header names another server (421), the
            request comes from another site's page (403), or the token is missing or wrong (401).
    """
    path = scope["path"]
    for name in ONCE:
        _only(scope, name)
    host = _only(scope, b"host")
    if host is None or not hosts.knows(host):
        raise Refused(
            "wrong_host",
            f"the Host header is {host or ''!r}; expected the address of this server, or one of "
            "the names that it was started with",
        )
    origin = _only(scope, b"origin")
    site = _only(scope, b"sec-fetch-site")
    linked = path in LINKED and _only(scope, b"sec-fetch-mode") == "navigate"
    own = (f"http://{host}".lower(), f"https://{host}".lower())
    other_origin = origin is not None and origin.lower() not in own
    if other_origin or (site not in (None, "same-origin", "none") and not linked):
        raise Refused("wrong_origin", "pages of other sites may not use this server")
    if token is not None and path not in OPEN:
        scheme, _, given = (_only(scope, b"authorization") or "").partition(" ")
        # Comparing digests takes a time that does not depend on where the tokens differ.
        right = hmac.compare_digest(digest(given.strip()), token)
        if scheme.lower() != "bearer" or not right:
            raise Refused(
                "no_token",
                "the token is missing or wrong; send it as Authorization: Bearer TOKEN",
                {"WWW-Authenticate": 'Bearer realm="attnflow"'},
            )


def _only(scope: MutableMapping[str, Any], name: bytes) -> str | None:
    """Return the value of a header, or None. Refuse a repeated one."""
    values = [value for key, value in scope["headers"] if key == name]
    if len(values) > 1:
        raise Refused("twice", f"the header {name.decode()} is sent {len(values)} times")
    return values[0].decode("latin-1") if values else None
