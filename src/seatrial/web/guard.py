"""Decide who may read a page or send a request, and restrict what a browser may do with the answer.

With a token everybody must send it: as a bearer token, in a cookie, or once as ``?token=``, which becomes the cookie.
Without one the Host header must be an address, a name without a dot, or one of a list: a page of another site that
points its own name at this server is turned away. Requests that a browser sends for another site's page (Origin) are
refused, unless they carry the bearer token.
"""

from __future__ import annotations

import enum
import hmac
import ipaddress
import socket
from collections.abc import Callable, Iterable, MutableMapping
from http.cookies import CookieError, SimpleCookie
from typing import Any
from urllib.parse import parse_qsl, urlencode

from starlette.responses import PlainTextResponse, RedirectResponse, Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

#: Hosts that were accepted are kept; no more of them than this.
_MOST_HOSTS = 64
_COOKIE = "seatrial-token"


class Wrong(enum.Enum):
    """The reason for which a request is refused."""

    HOST = 403, "This page is served to localhost and 127.0.0.1 only."
    ORIGIN = 403, "Another page's request: it is not answered."
    TOKEN = 401, "Wrong token."
    NO_TOKEN = 401, "A token is required: open the address that seatrial dashboard printed."


class Guard:
    """Check requests before anything else is read.

    ``token``: required from everybody if it is set, also in the cookie of this name and age. ``accepts``: without a
    token, return True for a Host header that is answered.
    """

    def __init__(
        self, token: str | None, cookie: str, accepts: Callable[[str], bool], *, cookie_s: int | None = None
    ) -> None:
        self._token, self._cookie, self._accepts, self._cookie_s = token, cookie, accepts, cookie_s
        self._bearer = b"Bearer " + token.encode() if token else b""
        self._good_hosts: set[bytes] = set()

    def check(self, headers: Iterable[tuple[bytes, bytes]]) -> Wrong | None:
        """Return why a request is refused, or None."""
        given = dict(headers)
        host, origin = given.get(b"host", b""), given.get(b"origin", b"")
        if self._token is None:
            if host not in self._good_hosts and not self._is_good(host):
                return Wrong.HOST
        elif authorization := given.get(b"authorization"):
            return None if hmac.compare_digest(authorization, self._bearer) else Wrong.TOKEN
        elif not self._matches(self._token_in(given.get(b"cookie", b""))):
            return Wrong.NO_TOKEN
        return Wrong.ORIGIN if origin and origin.partition(b"://")[2] != host else None

    def log_in(self, scope: MutableMapping[str, Any]) -> Response | None:
        """Turn ``?token=`` into a cookie, out of history and logs; return a redirection, 401 if wrong, or None."""
        if self._token is None:
            return None
        query = parse_qsl(scope["query_string"].decode("latin-1"), keep_blank_values=True)
        if (token := next((value for key, value in query if key == "token"), None)) is None:
            return None
        if not self._matches(token):
            return _plain(Wrong.TOKEN)
        rest = urlencode([each for each in query if each[0] != "token"])
        path = "/" + scope["path"].lstrip("/\\")  # never another site's address
        answer = RedirectResponse(path + (f"?{rest}" if rest else ""), 303)
        answer.set_cookie(self._cookie, token, self._cookie_s, httponly=True, samesite="strict", path="/")
        return answer

    def _is_good(self, host: bytes) -> bool:
        good = self._accepts(host.decode("latin-1"))
        if good and len(self._good_hosts) < _MOST_HOSTS:
            self._good_hosts.add(host)
        return good

    def _matches(self, given: str) -> bool:
        assert self._token is not None
        return hmac.compare_digest(given.encode("utf-8", "replace"), self._token.encode())

    def _token_in(self, header: bytes) -> str:
        try:
            morsel = SimpleCookie(header.decode("latin-1")).get(self._cookie)
        except CookieError:
            return ""
        return morsel.value if morsel else ""


class Guarded:
    """ASGI middleware for pages that change nothing: only GET and HEAD pass, nothing can be forged. See ``Guard``."""

    def __init__(self, app: ASGIApp, token: str | None, accepts: Callable[[str], bool]) -> None:
        self._app, self._guard = app, Guard(token, _COOKIE, accepts)
        self._headers = security_headers(images="'self'", forms="'none'", frames="'self'")

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            if scope["type"] == "lifespan":
                await self._app(scope, receive, send)
            return

        async def send_guarded(message: Message) -> None:
            if message["type"] == "http.response.start":
                own = {name.lower() for name, _ in message["headers"]}
                message["headers"] = [*message["headers"], *(each for each in self._headers if each[0] not in own)]
            await send(message)

        await (self._refusal(scope) or self._app)(scope, receive, send_guarded)

    def _refusal(self, scope: Scope) -> Response | None:
        if scope["method"] not in ("GET", "HEAD"):
            return PlainTextResponse("Only GET: nothing can be changed here.\n", 405)
        if (answer := self._guard.log_in(scope)) is not None:
            return answer
        wrong = self._guard.check(scope["headers"])
        return _plain(wrong) if wrong else None


def _plain(wrong: Wrong) -> Response:
    status, sentence = wrong.value
    return PlainTextResponse(f"{sentence}\n", status)


def security_headers(*, images: str, forms: str, frames: str) -> list[tuple[bytes, bytes]]:
    """Return the headers of every answer: scripts and style sheets of our own only, none in the page itself."""
    policy = (
        f"default-src 'none'; script-src 'self'; style-src 'self'; img-src {images}; connect-src 'self'; "
        f"frame-src {frames}; base-uri 'none'; form-action {forms}; frame-ancestors {frames}"
    )
    return [
        (b"x-content-type-options", b"nosniff"),
        (b"referrer-policy", b"no-referrer"),
        (b"cross-origin-opener-policy", b"same-origin"),
        (b"cross-origin-resource-policy", b"same-origin"),
        (b"cache-control", b"no-store"),
        (b"content-security-policy", policy.encode()),
    ]


def own_names(more: Iterable[str] = ()) -> Callable[[str], bool]:
    """Return a test of Host headers: an address, a name without a dot, this machine's names, or one of ``more``.

    No page of the internet has a name without a dot. Every device of a network can take a name that ends with .local.
    """
    machine = socket.gethostname().lower()
    names = {machine, f"{machine.partition('.')[0]}.local", *(name.strip().lower() for name in more)}

    def accepts(host: str) -> bool:
        name, _, port = host.rpartition(":")
        if not (port.isascii() and port.isdecimal()):
            name = host
        name = name.removeprefix("[").removesuffix("]").lower()
        try:
            ipaddress.ip_address(name)
        except ValueError:
            return bool(name) and ("." not in name or name in names)
        return True

    return accepts
