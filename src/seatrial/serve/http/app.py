"""The application of a front: requests to the model take a short path, everything else goes through Starlette."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Sequence

from starlette.responses import HTMLResponse, RedirectResponse, Response

from seatrial.serve import connections
from seatrial.serve.counters import KINDS, Counters
from seatrial.serve.decoder import Decoder, is_light
from seatrial.serve.errors import BadInputError, HeavyError
from seatrial.serve.http import bodies
from seatrial.serve.http.bodies import Headers, Message, Receive, Scope, Send, encode, error
from seatrial.serve.http.pages import pages
from seatrial.serve.http.protocol import Request, read
from seatrial.serve.model_link import ModelLink, Refusal
from seatrial.serve.options import Options
from seatrial.serve.readers.others import MOST_INPUTS
from seatrial.serve.served_model import Answer, Reader, Row
from seatrial.web.guard import Guard, Wrong, own_names, security_headers

_PREDICT, _INFER, _OTHER = range(len(KINDS))
COOKIE = "seatrial-serve-token"
_COOKIE_S = 30 * 24 * 3600
#: Headers of every answer that a browser may show.
_HEADERS: Headers = security_headers(images="'self' data: blob:", forms="'self'", frames="'none'")
#: Probes need no token.
_OPEN = frozenset(("/v2/health/live", "/v2/health/ready"))
_REFUSALS = {
    Wrong.HOST: Refusal(
        403, "This server answers to addresses and its own names: start it with a token, or set SEATRIAL_SERVE_HOSTS."
    ),
    Wrong.TOKEN: Refusal(401, "This is not the token."),
    Wrong.NO_TOKEN: Refusal(401, "A token is required: send the header authorization: Bearer TOKEN."),
    Wrong.ORIGIN: Refusal(403, "Another page's request: it is not answered."),
}
_LOG_IN = """<!doctype html><html lang="en"><meta charset="utf-8"><title>{title}</title>
<meta name="viewport" content="width=device-width"><link rel="stylesheet" href="/static/page.css">
<main><h1>{title}</h1><p>It was given when the server was started.</p>
<form method="get"><input name="token" type="password" size="36" autofocus aria-label="Token">
<button>Open</button></form></main></html>
"""

_JSON = (b"content-type", b"application/json")


class App:
    """The ASGI application, behind the guard."""

    def __init__(self, options: Options, link: ModelLink, counters: Counters) -> None:
        self._options, self._link, self._counters = options, link, counters
        self._infer_path = f"/v2/models/{options.name}/infer"
        self._guard = Guard(options.token, COOKIE, own_names(options.hosts), cookie_s=_COOKIE_S)
        self._pages = pages(options, link, counters)
        self._max_rows = min(MOST_INPUTS, options.queue)
        self._decoder: Decoder | None = None

    def close(self) -> None:
        """End the decoder."""
        if self._decoder is not None:
            self._decoder.close()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            return
        path = scope["path"]
        kind = _PREDICT if path == "/predict" else _INFER if path == self._infer_path else _OTHER
        if kind == _OTHER or scope["method"] != "POST":
            await self._other(scope, receive, send)
            return
        wrong = self._guard.check(scope["headers"])
        try:
            answer = _REFUSALS[wrong] if wrong else await self._answer(kind, scope, receive)
        except bodies.ClientLeftError:
            return
        status, body, headers = 200, answer, [_JSON]
        if isinstance(answer, Refusal):
            if answer.status == 499:
                return
            status, body, headers = answer.status, error(answer.sentence), [_JSON, *_headers(answer)]
        self._counters.answered(kind, status)
        close = self._link.phase in ("draining", "lost")
        connection, cycle = connections.of(scope)
        headers.append((b"content-length", b"%d" % len(body)))
        connection.answer(cycle, status, headers, body, close=close)

    async def _answer(self, kind: int, scope: Scope, receive: Receive) -> bytes | Refusal:
        began_s = time.perf_counter()
        body = await bodies.read(scope, receive, self._options.max_body_bytes)
        if isinstance(body, Refusal):
            return body
        if (reader := self._link.reader) is None:
            return self._link.unready()
        try:
            media_type = next((value for name, value in scope["headers"] if name == b"content-type"), b"")
            request = await self._read(reader, kind == _INFER, media_type, body)
            if isinstance(request, Refusal):
                return request
            if not request.rows:
                return Refusal(400, "The request has no input.")
            if len(request.rows) > self._max_rows:
                return Refusal(413, f"{len(request.rows)} inputs in one request: at most {self._max_rows}.")
            answers = await self._compute(request.rows, scope)
            self._counters.took(time.perf_counter() - began_s)
            if isinstance(answers, Refusal):
                return answers
            return encode(request.answer(reader, answers, self._options.name))
        except BadInputError as problem:
            return Refusal(problem.status, str(problem))
        except ValueError:  # encode
            return Refusal(500, "The model's answer is not a number.")

    async def _read(self, reader: Reader, as_infer: bool, content_type: bytes, body: bytes) -> Request | Refusal:
        """Read a small body here, one that may take long in the decoder. Raises BadInputError."""
        if is_light(reader, as_infer, content_type, len(body)):
            with contextlib.suppress(HeavyError):
                return read(reader, as_infer, content_type, body, inline=True)
        if self._decoder is None:
            self._decoder = Decoder(reader, self._options)
        return await self._decoder.read(as_infer, content_type, body)

    async def _compute(self, rows: Sequence[Row], scope: Scope) -> list[Answer] | Refusal:
        pending = self._link.send(rows)
        if isinstance(pending, Refusal):
            return pending
        connection, _ = connections.of(scope)
        connection.on_lost = lambda: self._link.abandon(pending)
        try:
            return await pending.answer
        finally:
            connection.on_lost = None

    async def _other(self, scope: Scope, receive: Receive, send: Send) -> None:
        async def send_on(message: Message) -> None:
            if message["type"] == "http.response.start":
                self._counters.answered(_OTHER, message["status"])
                message["headers"] = [*message["headers"], *_HEADERS]
                if self._link.phase in ("draining", "lost"):
                    message["headers"].append((b"connection", b"close"))
            await send(message)

        answer = None if scope["path"] in _OPEN else self._refusal(scope)
        await (answer or self._pages)(scope, receive, send_on)

    def _refusal(self, scope: Scope) -> Response | None:
        """Return the answer to a request without the right token, or log a browser in."""
        if scope["method"] in ("GET", "HEAD") and (answer := self._guard.log_in(scope)) is not None:
            logged_in = isinstance(answer, RedirectResponse)
            return answer if logged_in else HTMLResponse(_LOG_IN.format(title="This is not the token"), 401)
        wrong = self._guard.check(scope["headers"])
        if wrong is None or scope["path"] == "/static/page.css":
            return None
        refusal = _REFUSALS[wrong]
        page = any(name == b"accept" and b"text/html" in value for name, value in scope["headers"])
        if refusal.status == 401 and scope["path"] == "/" and page:
            return HTMLResponse(_LOG_IN.format(title="A token is required"), 401)
        headers = {key.decode(): value.decode() for key, value in _headers(refusal)}
        return Response(error(refusal.sentence), refusal.status, headers, "application/json")


def _headers(refusal: Refusal) -> Headers:
    if refusal.status == 401:
        return [(b"www-authenticate", b"Bearer")]
    if refusal.retry_after_s is None:
        return []
    return [(b"retry-after", b"%d" % refusal.retry_after_s)]
