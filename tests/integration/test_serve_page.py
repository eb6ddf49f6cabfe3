"""The page to try a model in a real headless Chromium: offline, light and dark, on a phone."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

for needed in ("uvicorn", "uvloop", "httptools", "starlette", "python_multipart", "httpx", "numpy", "playwright"):
    pytest.importorskip(needed, reason=f"{needed} is not installed")


from served import Server  # noqa: E402

pytestmark = pytest.mark.xdist_group("serve")

#: Pictures to look at are left here.
PICTURES = os.environ.get("SEATRIAL_PICTURES")


@pytest.fixture
def page(browser):
    """On a phone's width; what goes to another host, or is an error on the console, fails the test."""
    context = browser.new_context(viewport={"width": 390, "height": 800})
    page, wrong = context.new_page(), []
    page.on("console", lambda message: wrong.append(message.text) if message.type == "error" else None)
    page.on("pageerror", lambda error: wrong.append(str(error)))
    page.on("request", lambda request: wrong.append(request.url) if not _ours(request.url) else None)
    yield page
    context.close()
    assert wrong == []


def _ours(url: str) -> bool:
    return url.startswith(("http://127.0.0.1:", "blob:http://127.0.0.1:", "data:"))


def look(page, name):
    """No sideways scrolling; pictures in both colour schemes where somebody wants to look."""
    assert page.evaluate("document.documentElement.scrollWidth <= innerWidth")
    if PICTURES:
        for scheme in ("light", "dark"):
            page.emulate_media(color_scheme=scheme)
            page.screenshot(path=Path(PICTURES) / f"{name}-{scheme}.png", full_page=True)


def test_a_digit_is_drawn(page):
    with Server("--name", "digits", ECHO_KIND="image") as server:
        page.goto(server.url)
        canvas = page.locator("#canvas")
        box = canvas.bounding_box()
        page.mouse.move(box["x"] + 140, box["y"] + 40)
        page.mouse.down()
        page.mouse.move(box["x"] + 140, box["y"] + 240, steps=8)
        page.mouse.up()
        page.locator("#bars li").nth(9).wait_for()
        assert page.locator("#label").inner_text() == "0" and page.title() == "Try digits"
        look(page, "draw")
        page.get_by_role("button", name="Clear").click()
        assert page.locator("#result").is_hidden()
        image = {"name": "x.png", "mimeType": "image/png", "buffer": b"\x89PNG not really"}
        page.locator("#file").set_input_files(image)
        page.locator("#bars li").nth(9).wait_for()


def test_a_message_is_typed(page):
    with Server("--name", "spam", ECHO_KIND="text") as server:
        page.goto(server.url)
        page.locator("#text").fill("WINNER!! <b>Call</b> now")
        page.get_by_role("button", name="Ask the model").click()
        page.locator("#bars li").nth(1).wait_for()
        assert page.locator("#label").inner_text() == "ham"
        look(page, "write")


def test_numbers_and_the_api(page):
    with Server("--name", "net", SEATRIAL_SERVE_TOKEN="hello-there") as server:
        page.goto(f"{server.url}/?token=hello-there")
        assert "token" not in page.url
        page.locator("#text").fill('{"input": [2, 3]}')
        page.get_by_role("button", name="Ask the model").click()
        page.locator("#raw").wait_for()
        assert '"product": 6' in page.locator("#raw").inner_text()
        assert page.get_by_role("link", name="API").get_attribute("href") == "/openapi.json"
