"""The application of a front: requests to the model on a short way, everything else through Starlette."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Sequence

from seatrial.serve import connections
from seatrial.serve.counts import KINDS
from seatrial.serve.decoder import Decoder, Request, is_light, read
from seatrial.serve.errors import BadInputError, HeavyError
from seatrial.serve.http import bodies
from seatrial.serve.http.answers import Headers, Message, Receive, Scope, Send, encode, error, json_headers
from seatrial.serve.http.guard import Guard
from seatrial.serve.http.pages import pages
from seatrial.serve.http.site import Site
from seatrial.serve.model_link import Refusal
from seatrial.serve.models.bodies import MOST_INPUTS
from seatrial.serve.served_model import Answer, Reader, Row

_PREDICT, _INFER, _OTHER = range(len(KINDS))


class App:
    """The ASGI application, behind the guard."""

    def __init__(self, site: Site) -> None:
        self._site, self._link, self._counts = site, site.link, site.counts
        self._most_bytes = site.options.max_body_bytes
        self._infer_path = f"/v2/models/{site.options.name}/infer"
        self._guard = Guard(site.options)
        self._pages = pages(site)
        self._most_rows = min(MOST_INPUTS, site.options.queue)
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
        refusal = self._guard.refusal(scope)
        try:
            answer = refusal or await self._answer(kind, scope, receive)
        except bodies.ClientLeftError:
            return
        if isinstance(answer, Refusal):
            if answer.status == 499:
                return
            status, body, headers = answer.status, error(answer.sentence), _headers(answer)
        else:
            status, body, headers = 200, answer, []
        self._counts.answered(kind, status)
        close = self._link.phase in ("draining", "lost")
        connection, cycle = connections.of(scope)
        connection.answer(cycle, status, json_headers(body, headers), body, close=close)

    async def _answer(self, kind: int, scope: Scope, receive: Receive) -> bytes | Refusal:
        began_s = time.perf_counter()
        body = await bodies.read(scope, receive, self._most_bytes)
        if isinstance(body, Refusal):
            return body
        reader = self._link.reader
        if reader is None:
            return self._link.unready()
        try:
            request = await self._read(reader, kind == _INFER, _content_type(scope), body)
            if isinstance(request, Refusal):
                return request
            rows = request.rows
            if not 0 < len(rows) <= self._most_rows:
                return self._wrong_count(len(rows))
            answers = await self._ask(rows, scope)
            self._counts.took(time.perf_counter() - began_s)
            if isinstance(answers, Refusal):
                return answers
            answer = request.answer(reader, answers)
            return encode(answer if kind == _PREDICT else {"model_name": self._site.options.name, **answer})
        except BadInputError as problem:
            return Refusal(problem.status, str(problem))
        except ValueError:  # encode
            return Refusal(500, "The model's answer is not a number.")

    async def _read(self, reader: Reader, as_infer: bool, content_type: bytes, body: bytes) -> Request | Refusal:
        """Read what is small here, and what may take long in the decoder. Raises BadInputError."""
        if is_light(reader, as_infer, content_type, len(body)):
            with contextlib.suppress(HeavyError):
                return read(reader, as_infer, content_type, body, inline=True)
        if self._decoder is None:
            self._decoder = Decoder(reader, self._site.options)
        return await self._decoder.read(as_infer, content_type, body)

    async def _ask(self, rows: Sequence[Row], scope: Scope) -> list[Answer] | Refusal:
        asked = self._link.ask(rows)
        if isinstance(asked, Refusal):
            return asked
        connection, _ = connections.of(scope)
        connection.on_lost = lambda: self._link.abandon(asked)
        try:
            return await asked.answer
        finally:
            connection.on_lost = None

    def _wrong_count(self, count: int) -> Refusal:
        if not count:
            return Refusal(400, "There is no input in the request.")
        return Refusal(413, f"{count} inputs in one request: at most {self._most_rows}.")

    async def _other(self, scope: Scope, receive: Receive, send: Send) -> None:
        async def send_on(message: Message) -> None:
            if message["type"] == "http.response.start":
                self._counts.answered(_OTHER, message["status"])
                message["headers"] = [*message["headers"], *self._guard.headers(scope)]
                if self._link.phase in ("draining", "lost"):
                    message["headers"].append((b"connection", b"close"))
            await send(message)

        if scope["path"] in _OPEN:
            await self._pages(scope, receive, send_on)
        elif (response := self._guard.response(scope)) is not None:
            await response(scope, receive, send_on)
        else:
            await self._pages(scope, receive, send_on)


#: Probes ask without a token.
_OPEN = frozenset(("/v2/health/live", "/v2/health/ready"))


def _content_type(scope: Scope) -> bytes:
    return next((value for name, value in scope["headers"] if name == b"content-type"), b"")


def _headers(refusal: Refusal) -> Headers:
    if refusal.status == 401:
        return [(b"www-authenticate", b"Bearer")]
    if refusal.retry_after_s is None:
        return []
    return [(b"retry-after", b"%d" % refusal.retry_after_s)]
