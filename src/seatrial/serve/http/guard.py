"""Guard: who may ask, and what a browser may do with the answer.

With a token it is asked of everybody but probes of health: as a bearer token, or once as ``?token=``, which becomes a
cookie. Without one the Host header must be an address, a loopback name or a name that is no domain of the internet: a
page of another site that points its own name at this server is turned away. Requests that a browser sends for another
page (Origin) are refused, unless they carry the bearer token.
"""

from __future__ import annotations

import hmac
import ipaddress
from http.cookies import CookieError, SimpleCookie
from urllib.parse import parse_qsl, urlencode

from starlette.responses import HTMLResponse, RedirectResponse, Response

from seatrial.serve.http.answers import Headers, Scope, error
from seatrial.serve.model_link import Refusal
from seatrial.serve.options import Options

COOKIE = "seatrial-serve-token"
_COOKIE_S = 30 * 24 * 3600

POLICY = (
    b"default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data: blob:; connect-src 'self'; "
    b"base-uri 'none'; form-action 'self'; frame-ancestors 'none'"
)
_HEADERS: Headers = [
    (b"x-content-type-options", b"nosniff"),
    (b"referrer-policy", b"no-referrer"),
    (b"cross-origin-opener-policy", b"same-origin"),
    (b"cross-origin-resource-policy", b"same-origin"),
    (b"cache-control", b"no-store"),
    (b"content-security-policy", POLICY),
]
#: Names of clusters and private networks, which nobody on the internet can own.
_PRIVATE = (".svc", ".cluster.local", ".local", ".internal", ".localhost")
#: Hosts found good are remembered; no more of them than this.
_MOST_HOSTS = 64

_LOG_IN = """<!doctype html><html lang="en"><meta charset="utf-8"><title>{title}</title>
<meta name="viewport" content="width=device-width"><link rel="stylesheet" href="/static/page.css">
<main><h1>{title}</h1><p>It was given when the server was started.</p>
<form method="get"><input name="token" type="password" size="36" autofocus aria-label="Token">
<button>Open</button></form></main></html>
"""


class Guard:
    """Asked before anything is read."""

    def __init__(self, options: Options) -> None:
        self._token = options.token
        self._bearer = b"Bearer " + options.token.encode() if options.token else b""
        self._good_hosts: set[bytes] = set()

    def refusal(self, scope: Scope) -> Refusal | None:
        """Why this request is not answered."""
        host = origin = authorization = cookie = b""
        for name, value in scope["headers"]:
            if name == b"host":
                host = value
            elif name == b"origin":
                origin = value
            elif name == b"authorization":
                authorization = value
            elif name == b"cookie":
                cookie = value
        if self._token is None:
            if host not in self._good_hosts and not self._good_host(host):
                return Refusal(403, "This server answers to addresses and local names only: start it with a token.")
        elif authorization:
            if hmac.compare_digest(authorization, self._bearer):
                return None
            return Refusal(401, "This is not the token.")
        elif not self._matches(_cookie(cookie)):
            return Refusal(401, "A token is required: send the header authorization: Bearer TOKEN.")
        if origin and origin.partition(b"://")[2] != host:
            return Refusal(403, "Another page's request: it is not answered.")
        return None

    def response(self, scope: Scope) -> Response | None:
        """The same for pages, where a browser can log in."""
        if self._token is not None and scope["method"] in ("GET", "HEAD"):
            query = parse_qsl(scope["query_string"].decode("latin-1"), keep_blank_values=True)
            token = next((value for key, value in query if key == "token"), None)
            if token is not None:
                return self._log_in(scope, token, [each for each in query if each[0] != "token"])
        refusal = self.refusal(scope)
        if refusal is None or scope["path"] == "/static/page.css":
            return None
        headers = {"www-authenticate": "Bearer"} if refusal.status == 401 else {}
        if refusal.status == 401 and scope["path"] == "/" and _wants_page(scope):
            return HTMLResponse(_LOG_IN.format(title="A token is required"), 401)
        return Response(error(refusal.sentence), refusal.status, headers, "application/json")

    def headers(self, scope: Scope) -> Headers:
        """Of every answer that a browser may show."""
        return _HEADERS

    def _good_host(self, host: bytes) -> bool:
        good = _is_local(host.decode("latin-1"))
        if good and len(self._good_hosts) < _MOST_HOSTS:
            self._good_hosts.add(host)
        return good

    def _log_in(self, scope: Scope, token: str, rest: list[tuple[str, str]]) -> Response:
        """The token leaves the address bar, and with it history and logs."""
        if not self._matches(token):
            return HTMLResponse(_LOG_IN.format(title="This is not the token"), 401)
        path = "/" + scope["path"].lstrip("/\\")  # never another site's address
        answer = RedirectResponse(path + (f"?{urlencode(rest)}" if rest else ""), 303)
        answer.set_cookie(COOKIE, token, max_age=_COOKIE_S, httponly=True, samesite="strict", path="/")
        return answer

    def _matches(self, given: str) -> bool:
        assert self._token is not None
        return hmac.compare_digest(given.encode("utf-8", "replace"), self._token.encode())


def _is_local(host: str) -> bool:
    """Whether a Host header is an address or a name that no site of the internet can have."""
    name, _, port = host.rpartition(":")
    if not port.isdecimal():
        name = host
    name = name.removeprefix("[").removesuffix("]").lower()
    try:
        ipaddress.ip_address(name)
    except ValueError:
        return bool(name) and ("." not in name or name.endswith(_PRIVATE))
    return True


def _cookie(header: bytes) -> str:
    try:
        morsel = SimpleCookie(header.decode("latin-1")).get(COOKIE)
    except CookieError:
        return ""
    return morsel.value if morsel else ""


def _wants_page(scope: Scope) -> bool:
    return any(name == b"accept" and b"text/html" in value for name, value in scope["headers"])
