"""Reading pages of package indexes from the network or from files: in parallel, and for a few seconds."""

from __future__ import annotations

import base64
import http.client
import ssl
import threading
import time
import urllib.error
import urllib.request
import zlib
from collections.abc import Iterator, Sequence
from pathlib import Path
from queue import Empty, SimpleQueue
from urllib.parse import unquote, urlsplit

from seatrial.system.package_page import Releases, releases_of
from seatrial.system.package_source import Task
from seatrial.system.without_login import without_login

_MOST_THREADS = 8
#: torch_stable.html, the longest list of files that people name, has 5 MB.
_MOST_BYTES = 60_000_000
_ACCEPT = "application/vnd.pypi.simple.v1+json, application/vnd.pypi.simple.v1+html;q=0.2, text/html;q=0.1"

#: Project → its releases, None for one that the index does not have; or why its page could not be read.
Found = dict[str, Releases | None] | str


def fetch(tasks: Sequence[Task], authorities: Path | None, limit_s: float) -> Iterator[tuple[Task, Found]]:
    """What is found, as it comes; what has not come within the limit is left out.

    Args:
        authorities: a file of certificates to believe besides the system's.
    """
    end = time.monotonic() + limit_s
    left: SimpleQueue[Task] = SimpleQueue()
    for task in tasks:
        left.put(task)
    done: SimpleQueue[tuple[Task, Found]] = SimpleQueue()
    opener = _opener(authorities)
    for _ in range(min(_MOST_THREADS, len(tasks))):  # daemons: one that hangs does not keep the program
        threading.Thread(target=_work, args=(opener, left, done, end), daemon=True).start()
    for _ in tasks:
        try:
            yield done.get(timeout=max(0.001, end - time.monotonic()))
        except Empty:
            return


def _opener(authorities: Path | None) -> urllib.request.OpenerDirector:
    context = ssl.create_default_context()
    if authorities is not None:
        try:
            context.load_verify_locations(authorities)
        except (OSError, ssl.SSLError):
            pass  # the plan says what is wrong with the file
    return urllib.request.build_opener(urllib.request.HTTPSHandler(context=context))


def _work(
    opener: urllib.request.OpenerDirector,
    tasks: SimpleQueue[Task],
    done: SimpleQueue[tuple[Task, Found]],
    end: float,
) -> None:
    """Fetch until nothing is left or the time is over."""
    while time.monotonic() < end:
        try:
            task = tasks.get_nowait()
        except Empty:
            return
        try:
            done.put((task, _pages(opener, task, end - time.monotonic())))
        except urllib.error.HTTPError as error:
            what = "asks for a login" if error.code in (401, 403, 407) else f"answered {error.code}"
            done.put((task, f"{task.source.shown} {what}"))
        except (OSError, http.client.HTTPException):  # URLError is an OSError
            done.put((task, f"{task.source.shown} cannot be reached"))
        except (ValueError, zlib.error):
            done.put((task, f"{task.source.shown} answered what is no page of a package index"))


def _pages(opener: urllib.request.OpenerDirector, task: Task, timeout_s: float) -> dict[str, Releases | None]:
    """Project → its releases, None for one that the index does not have."""
    url = task.source.url
    if task.source.kind == "index":
        url = f"{url.rstrip('/')}/{task.names[0]}/"
    try:
        page, content_type = _read(opener, url, timeout_s)
    except FileNotFoundError:
        return dict.fromkeys(task.names)
    found = releases_of(page, content_type, task.names)
    if task.source.kind == "index" and "json" not in content_type and not any(found.values()):
        raise ValueError("a page without files: that of a login, perhaps")
    return {name: releases or None for name, releases in found.items()}


def _read(opener: urllib.request.OpenerDirector, url: str, timeout_s: float) -> tuple[bytes, str]:
    """(body, content type). Raises FileNotFoundError: there is no such page."""
    parts = urlsplit(url)
    if parts.scheme == "file":
        path = Path(unquote(parts.path))
        path = path / "index.html" if path.is_dir() else path
        with path.open("rb") as file:
            return file.read(_MOST_BYTES), "text/html"
    if parts.scheme not in ("http", "https"):
        raise ValueError("neither a file nor an address of the web")
    headers = {"Accept": _ACCEPT, "Accept-Encoding": "gzip", "User-Agent": "seatrial"}
    request = urllib.request.Request(without_login(url), headers=headers)
    if parts.username is not None:  # to this host alone: a redirect does not take it along
        login = f"{unquote(parts.username)}:{unquote(parts.password or '')}"
        request.add_unredirected_header("Authorization", f"Basic {base64.b64encode(login.encode()).decode()}")
    try:
        with opener.open(request, timeout=timeout_s) as response:
            body: bytes = response.read(_MOST_BYTES)
            if response.headers.get("Content-Encoding") == "gzip":
                body = zlib.decompressobj(zlib.MAX_WBITS | 16).decompress(body, _MOST_BYTES)
            return body, response.headers.get("Content-Type", "")
    except urllib.error.HTTPError as error:
        if error.code in (404, 410):
            raise FileNotFoundError from error
        raise
