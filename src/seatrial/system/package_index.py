"""Asking package indexes which files they have: in parallel, within a few seconds, remembered for a day.

Nothing is installed or run, and nothing here fails a plan: what cannot be asked is not known. A login in an address is
sent to its own host and is part of no message and no file name.
"""

from __future__ import annotations

import base64
import hashlib
import http.client
import json
import ssl
import threading
import time
import urllib.error
import urllib.request
import zlib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from queue import Empty, SimpleQueue
from typing import Any, Literal
from urllib.parse import unquote, urlsplit

from seatrial.errors import DiskError
from seatrial.system.files import make_folder, write_atomically
from seatrial.system.package_page import IndexFile, Releases, releases_of
from seatrial.system.without_login import without_login

#: A plan waits no longer than this for all answers together.
LIMIT_S = 5.0
#: An answer is as good as new for a day, and better than none for sixty.
FRESH_S, STALE_S = 86_400.0, 60 * 86_400.0
#: That something is missing is believed for minutes: it may have been released since.
MISSING_FRESH_S = 600.0

_MOST_THREADS = 8
#: torch_stable.html, the longest list of files that people name, has 5 MB.
_MOST_BYTES = 60_000_000
_ACCEPT = "application/vnd.pypi.simple.v1+json, application/vnd.pypi.simple.v1+html;q=0.2, text/html;q=0.1"
_FORMAT = 1


@dataclass(frozen=True)
class Source:
    """Where packages come from: an ``index`` with a page a project, or one page of ``links`` to files."""

    url: str = field(repr=False)
    kind: Literal["index", "links"] = "index"

    @property
    def shown(self) -> str:
        """The address without a login and a query."""
        return urlsplit(without_login(self.url))._replace(query="", fragment="").geturl()


@dataclass
class Answer:
    """What the sources have of a project.

    Attributes:
        releases: of all sources that answered. complete: all of them did, so that what is missing is missing.
        age_s: of the oldest page that this rests on; 0 for one just read.
        trouble: why a source did not answer, in a few words.
    """

    releases: Releases = field(default_factory=dict)
    complete: bool = True
    age_s: float = 0.0
    trouble: str | None = None


@dataclass(frozen=True)
class _Page:
    at: float
    releases: Releases | None  # None: the index has no such project


@dataclass(frozen=True)
class _Task:
    source: Source
    names: tuple[str, ...]


class PackageIndex:
    """Pages of indexes, from the cache or the network."""

    def __init__(self, folder: Path, *, authorities: Path | None = None, limit_s: float = LIMIT_S) -> None:
        self._folder = folder
        self._authorities = authorities
        self._limit_s = limit_s

    def ask(
        self, names: Iterable[str], sources: Mapping[str, tuple[Source, ...]], fresh_s: float = FRESH_S
    ) -> dict[str, Answer]:
        """What each project's sources have of it.

        Args:
            names: canonical, without repetition.
            sources: project → where it may come from; ``""`` for those without an entry of their own.
            fresh_s: what is remembered for longer is asked for again.
        """
        wanted = {name: sources.get(name, sources.get("", ())) for name in names}
        pairs = [(source, name) for name, its in wanted.items() for source in its]
        pages = {pair: page for pair in pairs if (page := self._remembered(*pair)) is not None}
        now = time.time()
        stale = [
            pair for pair in pairs if pair not in pages or now - pages[pair].at > min(fresh_s, _fresh_s(pages[pair]))
        ]
        fetched, troubles = self._fetch(stale)
        pages.update(fetched)
        answers = {}
        for name, its in wanted.items():
            answer = answers[name] = Answer()
            for source in its:
                page, trouble = pages.get((source, name)), troubles.get(source)
                if (source, name) in stale and (source, name) not in fetched:
                    answer.complete, answer.trouble = False, trouble or f"{source.shown} did not answer in time"
                if page is not None:
                    answer.age_s = max(answer.age_s, now - page.at)
                    merge(answer.releases, page.releases or {})
        return answers

    def _fetch(self, pairs: list[tuple[Source, str]]) -> tuple[dict[tuple[Source, str], _Page], dict[Source, str]]:
        """(pages read now, source → why it could not be read)."""
        tasks: SimpleQueue[_Task] = SimpleQueue()
        together: dict[Source, list[str]] = {}
        for source, name in pairs:
            if source.kind == "links":
                together.setdefault(source, []).append(name)
            else:
                tasks.put(_Task(source, (name,)))
        for source, names in together.items():
            tasks.put(_Task(source, tuple(names)))
        waiting = tasks.qsize()
        done: SimpleQueue[tuple[_Task, dict[str, Releases | None] | str]] = SimpleQueue()
        end = time.monotonic() + self._limit_s
        if waiting:
            opener = self._opener()
            for _ in range(min(_MOST_THREADS, waiting)):  # daemons: one that hangs does not keep the program
                threading.Thread(target=_work, args=(opener, tasks, done, end), daemon=True).start()
        fetched: dict[tuple[Source, str], _Page] = {}
        troubles: dict[Source, str] = {}
        for _ in range(waiting):
            try:
                task, found = done.get(timeout=max(0.001, end - time.monotonic()))
            except Empty:
                break
            if isinstance(found, str):
                troubles[task.source] = found
                continue
            for name, releases in found.items():
                page = fetched[task.source, name] = _Page(time.time(), releases)
                self._remember(task.source, name, page)
        return fetched, troubles

    def _opener(self) -> urllib.request.OpenerDirector:
        context = ssl.create_default_context()
        if self._authorities is not None:
            try:
                context.load_verify_locations(self._authorities)
            except (OSError, ssl.SSLError):
                pass  # the plan says what is wrong with the file
        return urllib.request.build_opener(urllib.request.HTTPSHandler(context=context))

    # ------------------------------------------------------------------ cache

    def _file(self, source: Source, name: str) -> Path:
        key = f"{_FORMAT} {source.kind} {source.shown} {name}"
        return self._folder / f"{hashlib.sha256(key.encode()).hexdigest()[:32]}.json"

    def _remembered(self, source: Source, name: str) -> _Page | None:
        try:
            data = json.loads(self._file(source, name).read_bytes())
            releases = None if data["releases"] is None else _from_json(data["releases"])
            page = _Page(float(data["at"]), releases)
        except (OSError, ValueError, KeyError, TypeError, AttributeError):
            return None
        return page if 0 <= time.time() - page.at <= STALE_S else None

    def _remember(self, source: Source, name: str, page: _Page) -> None:
        data = {"at": page.at, "releases": None if page.releases is None else _to_json(page.releases)}
        try:
            make_folder(self._folder)
            write_atomically(self._file(source, name), json.dumps(data, separators=(",", ":")).encode(), 0o600)
        except DiskError:
            pass  # it will be asked again


def _fresh_s(page: _Page) -> float:
    return FRESH_S if page.releases else MISSING_FRESH_S


def _work(
    opener: urllib.request.OpenerDirector,
    tasks: SimpleQueue[_Task],
    done: SimpleQueue[tuple[_Task, dict[str, Releases | None] | str]],
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


def _pages(opener: urllib.request.OpenerDirector, task: _Task, timeout_s: float) -> dict[str, Releases | None]:
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


def merge(into: Releases, more: Releases) -> None:
    """Add what another source has."""
    for version, files in more.items():
        into[version] = into.get(version, ()) + files


def _to_json(releases: Releases) -> dict[str, Any]:
    return {
        version: [[file.name, file.requires_python, file.size_bytes] for file in files]
        for version, files in releases.items()
    }


def _from_json(data: Any) -> Releases:
    return {
        str(version): tuple(IndexFile(str(name), str(requires), size) for name, requires, size in files)
        for version, files in data.items()
    }
