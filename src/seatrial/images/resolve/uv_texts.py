"""Write uv's lines and configuration, and read its locks and errors."""

from __future__ import annotations

import json
import re
import tempfile
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name
from packaging.version import Version

from seatrial.errors import SeatrialError, fallback
from seatrial.images.requirements.pip_format import is_for, parsed
from seatrial.images.resolve.answers import (
    Answer,
    LackedNames,
    Lock,
    LockedPackage,
    ResolveRequest,
    SourceTexts,
    Unreachable,
    Unsatisfiable,
)
from seatrial.images.resolve.framework import public
from seatrial.job.script import BUILT_ON
from seatrial.system.project_files import parse_toml
from seatrial.system.text import as_typed, regex

#: Minimum time that uv keeps an index's pages and files.
_KEPT = 'cache-control = { api = "max-age=60", files = "max-age=86400" }'

#: The day of NumPy 2.0.0rc1: no older wheel was compiled for NumPy 2. Source: pypi.org/project/numpy/2.0.0rc1.
_NUMPY_2 = "2024-04-01"

#: uv 0.13: the texts that are read; all others are shown as they are.
_NO_WHEEL = regex(r"Wheels are required for `([A-Za-z0-9._-]+)`")
_NO_PACKAGE = regex(r"Because ([A-Za-z0-9._-]+) was not found in the (?:package registry|provided package locations)")
_NO_VERSION = regex(r"there (?:is|are) no versions? of ([A-Za-z0-9._-]+?)(?=[=<>!~, ]|$)")
SILENT = regex(r"timed out|network timeout|UV_HTTP_TIMEOUT")
NO_SOLUTION = "No solution found when resolving dependencies"
_IN_URL = regex(r"(?<=://)[^/@\s]+@")


def pinned(lines: Iterable[str], python: str) -> Iterator[tuple[str, str]]:
    """Yield (name, version) of each line that pins one public release for this Python."""
    for line in lines:
        requirement = Requirement(line)
        exact = [each for each in requirement.specifier if each.operator == "==" and not set("*+") & set(each.version)]
        if len(exact) == len(requirement.specifier) == 1 and is_for(line, python):
            yield canonicalize_name(requirement.name), str(Version(exact[0].version))


def bare(lines: Iterable[str], *, builds: bool) -> tuple[str, ...]:
    """Leave out pip's options and addresses, which uv would fetch with the user's logins; ``builds`` keeps ``+cpu``."""
    requirements = (each for line in lines if (each := parsed(line)) is not None and each.url is None)
    found = []
    for each in requirements:
        extras = f"[{','.join(sorted(each.extras))}]" if each.extras else ""
        marker = f" ; {each.marker}" if each.marker else ""
        found.append(f"{each.name}{extras}{each.specifier if builds else public(each)[0]}{marker}")
    return tuple(found)


def bounded_first(request: ResolveRequest) -> list[str]:
    """Put upper bounds first, then the author's releases: the newest datasets would drag transformers<4.35 to 2.3."""
    every = [(line, Requirement(line)) for line in (*request.lines, *request.constraints)]
    limited = {each.name.lower() for _, each in every if re.search(r"<|~=|\*", str(each.specifier))}
    rank = {line: (each.name.lower() in limited) * (1 + (each.name in BUILT_ON)) for line, each in every}
    authors = dict(request.named)
    order = {line: (-rank[line], canonicalize_name(each.name) not in authors) for line, each in every}
    return sorted(request.lines, key=order.__getitem__)


def up_to(line: str) -> str | None:
    """Return the line without its lower bounds, ``numpy<=1.19.2`` of ``numpy==1.19.2``; None if it has no upper one."""
    requirement, upper = Requirement(line), list[str]()
    for each in requirement.specifier:
        if each.operator.startswith("<"):
            upper.append(str(each))
        elif each.operator == "~=" or each.version.endswith(".*"):
            upper += [f"<={each.version.rpartition('.')[0]}.999999"] * (each.operator != "!=")
        elif each.operator == "==":
            upper.append(f"<={Version(each.version).public}")
    return f"{canonicalize_name(requirement.name)}{','.join(upper)}" if upper else None


def configured(request: ResolveRequest) -> str:
    """Return uv.toml with the day, and the indexes, the first as default and last in order."""
    indexes = [each.url for each in request.sources if each.kind == "index"]
    rows = [f"[[index]]\nurl = {json.dumps(url)}\n{_KEPT}\n" for url in indexes]
    rows = [*rows[1:], *(f"{row}default = true\n" for row in rows[:1])] or ["no-index = true\n"]
    days = [f'{name} = "{day}T23:59:59Z"' if day else f"{name} = false" for name, day in request.dates]
    day = f'exclude-newer = "{request.as_of}T23:59:59Z"\nexclude-newer-package = {{ {", ".join(days)} }}\n'
    return "".join([day if request.as_of else "", *rows])


def refusal(text: str, request: ResolveRequest, cache: Path = Path()) -> Answer | str:
    """Read uv's error: a package without a wheel, a full disk, a silent index, a conflict; ``cache``: uv's folder."""
    text = _IN_URL.sub("", text)
    if failed := re.search(r"No space left on device|Disk quota exceeded|Read-only file system", text):
        return Unreachable(f"uv cannot write: {failed[0]} (df -h {as_typed(cache)} {tempfile.gettempdir()})")
    filtered = tuple(map(canonicalize_name, re.findall(r"`([A-Za-z0-9._-]+)` was filtered by `exclude-newer`", text)))
    if (no_wheel := _NO_WHEEL.findall(text)) and not filtered:
        words = " ".join(text.split())
        others = [each for each in no_wheel if not re.search(rf"\b{re.escape(each)}\S* depends? on", words)]
        name = min(others or no_wheel, key=words.find)  # the explanation begins with what the others depend on
        release = re.search(rf"\b{re.escape(name)}==[\w.]+(?= has no usable wheels)", words)
        found = release[0] if release else str(name)
        return found if others else Unsatisfiable(_cause(text), no_wheel=found)
    if re.search(r"401 Unauthorized|403 Forbidden|Missing credentials", text):
        return Unreachable(f"{shown_index(request, text)} asks for a login: put it in seatrial.toml, [image] index_url")
    if NO_SOLUTION not in text:
        causes = [line.partition("cause:")[2].strip() for line in text.splitlines() if "cause:" in line]
        last = causes[-1] if causes else " ".join(text.split())[:200]
        return Unreachable(f"{shown_index(request, text)} cannot be read: {last}")
    if (no_package := _NO_PACKAGE.search(text)) is not None:
        return Unsatisfiable(_cause(text), no_package=no_package[1])
    no_version = _NO_VERSION.search(text)
    return Unsatisfiable(_cause(text), no_version=no_version[1] if no_version else None, filtered=filtered)


def _cause(text: str) -> str:
    """Return uv's explanation as one line, without its prefixes and hints."""
    return " ".join((text.partition("cause:")[2].partition("\nhint:")[0] or text).split()).removesuffix(".")


def shown_index(request: ResolveRequest, text: str = "") -> str:
    """Return the index that uv's error names, or the first one."""
    named = (each.shown for each in request.sources if f"://{urlsplit(each.url).hostname}" in text)
    return next(named, request.sources[0].shown if request.sources else "the folder of wheels")


@fallback(None, on=(OSError, ValueError, KeyError, TypeError, AttributeError, SeatrialError))
def read_lock(file: Path, digests: Mapping[str, str | None]) -> Lock | None:
    """Read names, versions, hashes and sizes, or return None; ``digests``: found → real, or None for a stand-in."""
    listed = parse_toml(file.read_text(encoding="utf-8"), file).get("packages", [])
    packages = [_package(each, digests) for each in listed]
    stood_in = [each for each in packages if each.sha256 == ("",)]
    lines = [f"{each.name}=={each.version}" for each in stood_in]
    found = tuple(each for each in packages if each not in stood_in)
    return Lock(found, tuple(each.name for each in stood_in), tuple(lines))


def _package(row: dict[str, Any], digests: Mapping[str, str | None]) -> LockedPackage:
    """Read one row; a package with only a stand-in has the hash ""."""
    wheels = row.get("wheels", [])
    sizes = [wheel["size"] for wheel in wheels if isinstance(wheel.get("size"), int)]
    hashes = [wheel["hashes"]["sha256"] for wheel in wheels if "sha256" in wheel.get("hashes", {})]
    real = {digests.get(each, each) for each in hashes}
    known = tuple(sorted(each for each in real if each is not None))
    uploaded = max((str(wheel.get("upload-time", ""))[:10] for wheel in wheels), default="")
    known = known or ("",) * (None in real)
    old = "" < uploaded < _NUMPY_2 and any(re.search(r"-cp\d+-(cp|abi)[^/]*$", str(each.get("url"))) for each in wheels)
    return LockedPackage(row["name"], row["version"], known, max(sizes, default=None), uploaded, old)


def stored_lock(data: Any) -> Lock:
    """Read what a lock was remembered as."""
    rows = [LockedPackage(**{**row, "sha256": tuple(row["sha256"])}) for row in data["packages"]]
    return Lock(
        tuple(rows), *(tuple(map(str, data.get(key, ()))) for key in ("from_source", "lacking", "later", "unfit"))
    )


def stored_names(data: Any) -> LackedNames:
    """Read the names that a wheel lacks, and those that it imports."""
    names, newest, below, imports = data
    return LackedNames(tuple(map(str, names)), str(newest), str(below), tuple(map(str, imports)))


def stored_texts(data: Any) -> SourceTexts:
    """Read what a source was written as."""
    texts = {str(name): str(text) for name, text in data["texts"].items()}
    return SourceTexts(tuple(map(str, data["names"])), texts, str(data.get("version", "")))
