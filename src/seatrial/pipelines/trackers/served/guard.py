"""Guard: the token in front of a tracker's page, as ASGI middleware of the standard library alone.

The container knows the token's digest and not the token, so that nothing which a run makes the page read can tell it.
A browser gives the token once, as ``?token=``, and keeps it in a cookie; programs send it as a bearer token or as the
password of basic authentication.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import hmac
from collections.abc import Awaitable, Callable, MutableMapping
from http.cookies import CookieError, SimpleCookie
from typing import Any
from urllib.parse import parse_qsl, urlencode

Scope = MutableMapping[str, Any]
Message = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]
App = Callable[[Scope, Receive, Send], Awaitable[None]]

#: A cookie lasts until the browser ends, or this long.
_COOKIE_S = 30 * 24 * 3600

_HEADERS = (
    (b"x-content-type-options", b"nosniff"),
    (b"referrer-policy", b"no-referrer"),
    (b"cross-origin-opener-policy", b"same-origin"),
    (b"cross-origin-resource-policy", b"same-origin"),
)

_LOG_IN = """<!doctype html><html lang="en"><meta charset="utf-8"><title>{name}: token</title>
<body style="font: 16px sans-serif; margin: 4em auto; max-width: 34em">
<h1 style="font-size: 1.3em">{title}</h1>
<p>Open the address that <code>seatrial up {name}</code> prints, or enter its token:</p>
<form method="get"><input name="token" type="password" size="36" autofocus aria-label="Token"> <button>Open</button>
</form></body></html>
"""


class Guard:
    """ASGI middleware.

    Args:
        digest: SHA-256 of the token, in hex.
        name: the tracker's, for its cookie and sentences. Cookies do not tell ports apart.
    """

    def __init__(self, app: App, digest: str, name: str) -> None:
        self._app, self._digest, self._name = app, digest, name
        self._cookie_name = f"seatrial-{name}-token"

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "websocket":
            await receive()
            await send({"type": "websocket.close", "code": 1008})
            return
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return

        async def send_guarded(message: Message) -> None:
            if message["type"] == "http.response.start":
                given = {key.lower() for key, _ in message.get("headers", ())}
                more = [(key, value) for key, value in _HEADERS if key not in given]
                message["headers"] = [*message.get("headers", ()), *more]
            await send(message)

        refusal = self._refusal(scope)
        if refusal is None:
            await self._app(scope, receive, send_guarded)
            return
        status, headers, body = refusal
        length = (b"content-length", str(len(body)).encode())
        await send_guarded({"type": "http.response.start", "status": status, "headers": [*headers, length]})
        await send_guarded({"type": "http.response.body", "body": body})

    def _refusal(self, scope: Scope) -> tuple[int, list[tuple[bytes, bytes]], bytes] | None:
        headers = {key.decode("latin-1").lower(): value.decode("latin-1") for key, value in scope["headers"]}
        query = parse_qsl(scope.get("query_string", b"").decode("latin-1"), keep_blank_values=True)
        token = next((value for key, value in query if key == "token"), None)
        if token is not None and scope["method"] in ("GET", "HEAD"):
            return self._log_in(scope, query, token)
        if self._matches(_authorization(headers.get("authorization", ""))):
            return None
        if self._matches(self._cookie(headers.get("cookie", ""))):
            if scope["method"] in ("GET", "HEAD", "OPTIONS") or _same_origin(headers):
                return None
            return _plain(403, "Another page's request: it is not passed on.")
        if "text/html" not in headers.get("accept", ""):
            return _plain(401, f"A token is required: seatrial up {self._name} prints it.")
        return self._ask("A token is required")

    def _log_in(
        self, scope: Scope, query: list[tuple[str, str]], token: str
    ) -> tuple[int, list[tuple[bytes, bytes]], bytes]:
        """The token leaves the address bar, and with it history and logs."""
        if not self._matches(token):
            return self._ask("This is not the token")
        rest = urlencode([(key, value) for key, value in query if key != "token"])
        path = "/" + scope["path"].lstrip("/\\")  # never another site's address
        cookie = f"{self._cookie_name}={token}; Max-Age={_COOKIE_S}; Path=/; HttpOnly; SameSite=Strict"
        location = (path + (f"?{rest}" if rest else "")).encode("utf-8", "replace")
        if any(byte < 0x21 or byte > 0x7E for byte in location):
            location = b"/"
        return 303, [(b"location", location), (b"set-cookie", cookie.encode("latin-1", "replace"))], b""

    def _ask(self, title: str) -> tuple[int, list[tuple[bytes, bytes]], bytes]:
        body = _LOG_IN.format(name=self._name, title=title).encode()
        policy = b"default-src 'none'; style-src 'unsafe-inline'; form-action 'self'; frame-ancestors 'none'"
        return 401, [(b"content-type", b"text/html; charset=utf-8"), (b"content-security-policy", policy)], body

    def _matches(self, given: str) -> bool:
        digest = hashlib.sha256(given.encode("utf-8", "replace")).hexdigest()
        return bool(given) and hmac.compare_digest(digest, self._digest)

    def _cookie(self, header: str) -> str:
        try:
            morsel = SimpleCookie(header).get(self._cookie_name)
        except CookieError:
            return ""
        return morsel.value if morsel else ""


def _authorization(header: str) -> str:
    """The token of a bearer, or the password of basic authentication; "" without one."""
    kind, _, value = header.partition(" ")
    if kind.lower() == "bearer":
        return value.strip()
    if kind.lower() == "basic":
        try:
            return base64.b64decode(value, validate=True).decode().partition(":")[2]
        except (binascii.Error, UnicodeDecodeError):
            return ""
    return ""


def _same_origin(headers: dict[str, str]) -> bool:
    """A cookie goes along from pages at other ports of this host too; the Origin header tells them apart."""
    origin = headers.get("origin")
    return origin is None or origin.partition("://")[2] == headers.get("host")


def _plain(status: int, sentence: str) -> tuple[int, list[tuple[bytes, bytes]], bytes]:
    return status, [(b"content-type", b"text/plain; charset=utf-8")], (sentence + "\n").encode()
