"""Asking package indexes which files they have: in parallel, within a few seconds, remembered for a day.

Nothing is installed or run, and nothing here fails a plan: what cannot be asked is not known. A login in an address is
sent to its own host and is part of no message and no file name.
"""

from __future__ import annotations

import hashlib
import json
import time
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from seatrial.errors import DiskError
from seatrial.system.files import make_folder, write_atomically
from seatrial.system.package_page import IndexFile, Releases
from seatrial.system.package_source import Source, Task

#: A plan waits no longer than this for all answers together.
LIMIT_S = 5.0
#: An answer is as good as new for a day, and better than none for sixty.
FRESH_S, STALE_S = 86_400.0, 60 * 86_400.0
#: That something is missing is believed for minutes: it may have been released since.
MISSING_FRESH_S = 600.0

_FORMAT = 1


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
        if not pairs:
            return {}, {}
        from seatrial.system.package_fetch import fetch  # HTTP and TLS: most plans have all pages in the cache

        tasks: list[Task] = []
        together: dict[Source, list[str]] = {}
        for source, name in pairs:
            if source.kind == "links":
                together.setdefault(source, []).append(name)
            else:
                tasks.append(Task(source, (name,)))
        tasks += [Task(source, tuple(names)) for source, names in together.items()]
        fetched: dict[tuple[Source, str], _Page] = {}
        troubles: dict[Source, str] = {}
        for task, found in fetch(tasks, self._authorities, self._limit_s):
            if isinstance(found, str):
                troubles[task.source] = found
                continue
            for name, releases in found.items():
                page = fetched[task.source, name] = _Page(time.time(), releases)
                self._remember(task.source, name, page)
        return fetched, troubles

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
