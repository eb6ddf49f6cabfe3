"""The token in front of a tracker: who gets in, who does not, and what a browser is left with."""

from __future__ import annotations

import asyncio
import base64
import hashlib
from typing import Any

import pytest

from seatrial.pipelines.trackers.served.guard import Guard

TOKEN = "a-token_of-enough-length"
DIGEST = hashlib.sha256(TOKEN.encode()).hexdigest()
HOST = "127.0.0.1:5000"


async def page(scope: Any, receive: Any, send: Any) -> None:
    await send({"type": "http.response.start", "status": 200, "headers": [(b"Referrer-Policy", b"origin")]})
    await send({"type": "http.response.body", "body": b"the page"})


def ask(
    query: str = "", *, method: str = "GET", path: str = "/", digest: str = DIGEST, **headers: str
) -> tuple[int, dict[str, str], str]:
    sent: list[Any] = []
    scope = {
        "type": "http",
        "method": method,
        "path": path,
        "query_string": query.encode(),
        "headers": [(key.encode(), value.encode("latin-1")) for key, value in {"host": HOST, **headers}.items()],
    }

    async def receive() -> Any:
        raise AssertionError("nobody asks for the body")

    async def send(message: Any) -> None:
        sent.append(message)

    asyncio.run(Guard(page, digest, "mlflow")(scope, receive, send))
    told = {key.decode().lower(): value.decode() for key, value in sent[0]["headers"]}
    return sent[0]["status"], told, b"".join(each.get("body", b"") for each in sent[1:]).decode()


def cookie(value: str = TOKEN) -> str:
    return f"seatrial-mlflow-token={value}"


def basic(password: str) -> str:
    return "Basic " + base64.b64encode(f"anybody:{password}".encode()).decode()


@pytest.mark.parametrize(
    "headers",
    [{"cookie": f"other=1; {cookie()}"}, {"authorization": f"Bearer {TOKEN}"}, {"authorization": basic(TOKEN)}],
)
def test_the_token_lets_in(headers: dict[str, str]) -> None:
    status, told, body = ask(**headers)
    assert (status, body) == (200, "the page")
    assert told["x-content-type-options"] == "nosniff" and told["referrer-policy"] == "origin"


@pytest.mark.parametrize(
    "headers",
    [
        {},
        {"cookie": cookie("wrong")},
        {"cookie": f"seatrial-tensorboard-token={TOKEN}"},
        {"cookie": f"{cookie()}; \x00=;;=, \\"},
        {"authorization": "Bearer "},
        {"authorization": TOKEN},
        {"authorization": basic("")},
        {"authorization": "Basic ???"},
        {"authorization": "Basic " + base64.b64encode(b"\xff\xfe").decode()},
        {"authorization": f"Bearer {DIGEST}"},
    ],
)
def test_nothing_else_does(headers: dict[str, str]) -> None:
    status, _, body = ask(**headers)
    if status == 200:  # a cookie among rubbish may still be read as the right one
        assert TOKEN in headers.get("cookie", "") and "seatrial-mlflow" in headers["cookie"]
    else:
        assert status == 401 and "seatrial up mlflow" in body and TOKEN not in body


def test_without_a_digest_nobody_gets_in() -> None:
    empty = hashlib.sha256(b"").hexdigest()
    assert ask(digest="", authorization="Bearer ")[0] == ask(digest=empty, authorization="Bearer ")[0] == 401


def test_a_browser_gives_it_once() -> None:
    status, told, _ = ask(f"a=1&token={TOKEN}&b=%26", path="/compare")
    assert status == 303 and told["location"] == "/compare?a=1&b=%26"
    assert told["set-cookie"].startswith(cookie()) and "HttpOnly" in told["set-cookie"]
    assert "SameSite=Strict" in told["set-cookie"]


def test_a_wrong_one_is_told_and_asked_again() -> None:
    status, told, body = ask("token=<script>", accept="text/html")
    assert status == 401 and "This is not the token" in body and "<script>" not in body
    assert "set-cookie" not in told and "default-src 'none'" in told["content-security-policy"]


@pytest.mark.parametrize("path", ["//evil.example/x", "/\\evil.example", "/a\r\nset-cookie: x=1", "/ä"])
def test_it_leads_to_no_other_site(path: str) -> None:
    status, told, _ = ask(f"token={TOKEN}", path=path)
    assert status == 303 and told["location"].startswith("/")
    assert not told["location"].startswith(("//", "/\\")) and "\n" not in told["location"]


def test_a_page_at_another_port_changes_nothing() -> None:
    """Cookies go along from every port of a host; what changes something has to come from this one."""
    assert ask(method="POST", cookie=cookie(), origin="http://127.0.0.1:6006")[0] == 403
    assert ask(method="POST", cookie=cookie(), origin="null")[0] == 403
    assert ask(method="POST", cookie=cookie(), origin=f"http://{HOST}")[0] == 200
    assert ask(method="POST", authorization=f"Bearer {TOKEN}")[0] == 200
    assert ask(f"token={TOKEN}", method="POST")[0] == 401
