"""Guard: decides who may read a page, and what a browser may do with it.

Only GET and HEAD pass, and nothing they reach changes anything, so there is nothing to forge. On the loopback address
the Host header must be a loopback name: a page of another site that points its own name at 127.0.0.1 is turned away.
Anywhere else a token is required: once as ``?token=``, which becomes a cookie, or as a bearer token. Metrics may be
read there by any name and without one, as Prometheus expects.
"""

from __future__ import annotations

import hmac
from http.cookies import CookieError, SimpleCookie
from urllib.parse import parse_qs, urlencode

from starlette.datastructures import Headers, MutableHeaders
from starlette.responses import PlainTextResponse, RedirectResponse, Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from seatrial.system.address import names_this_machine

COOKIE = "seatrial-token"

#: Scripts and style sheets of our own only: nothing stands in the page itself.
POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; connect-src 'self'; frame-src 'self'; "
    "base-uri 'none'; form-action 'none'; frame-ancestors 'self'"
)

_HEADERS = {
    "x-content-type-options": "nosniff",
    "referrer-policy": "no-referrer",
    "cross-origin-opener-policy": "same-origin",
    "cross-origin-resource-policy": "same-origin",
    "cache-control": "no-store",
}


class Guard:
    """ASGI middleware.

    Args:
        token: required from everybody if it is set. any_host: without a token, answer to any Host header.
    """

    def __init__(self, app: ASGIApp, token: str | None, *, any_host: bool = False) -> None:
        self._app, self._token, self._any_host = app, token, any_host

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            if scope["type"] == "lifespan":
                await self._app(scope, receive, send)
            return

        async def send_guarded(message: Message) -> None:
            if message["type"] == "http.response.start":
                headers = MutableHeaders(scope=message)
                for name, value in _HEADERS.items():
                    headers.setdefault(name, value)
                headers.setdefault("content-security-policy", POLICY)
            await send(message)

        refusal = self._refusal(scope)
        await (refusal or self._app)(scope, receive, send_guarded)

    def _refusal(self, scope: Scope) -> Response | None:
        if scope["method"] not in ("GET", "HEAD"):
            return PlainTextResponse("Only GET: nothing can be changed here.\n", 405)
        headers = Headers(scope=scope)
        if self._token is None:
            if self._any_host or names_this_machine(headers.get("host", "")):
                return None
            return PlainTextResponse("This page is served to localhost and 127.0.0.1 only.\n", 403)
        query = parse_qs(scope["query_string"].decode("latin-1"))
        if "token" in query:
            return self._log_in(scope, query)
        if self._matches(_cookie(headers.get("cookie", ""))) or self._matches(
            headers.get("authorization", "").removeprefix("Bearer ")
        ):
            return None
        return PlainTextResponse("A token is required: open the address that seatrial dashboard printed.\n", 401)

    def _log_in(self, scope: Scope, query: dict[str, list[str]]) -> Response:
        """Turn the token into a cookie: it leaves the address bar, and with it history and logs."""
        token = query.pop("token")[0]
        if not self._matches(token):
            return PlainTextResponse("Wrong token.\n", 401)
        rest = urlencode(query, doseq=True)
        path = "/" + scope["path"].lstrip("/\\")  # never another site's address
        answer = RedirectResponse(path + (f"?{rest}" if rest else ""), 303)
        answer.set_cookie(COOKIE, token, httponly=True, samesite="strict", path="/")
        return answer

    def _matches(self, given: str) -> bool:
        assert self._token is not None
        return hmac.compare_digest(given.encode("utf-8", "replace"), self._token.encode())


def _cookie(header: str) -> str:
    try:
        morsel = SimpleCookie(header).get(COOKIE)
    except CookieError:
        return ""
    return morsel.value if morsel else ""
