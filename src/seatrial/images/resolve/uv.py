"""Resolve packages with uv, without building or running anything that the project or a package brings.

uv runs in an empty folder, with its own environment and our interpreter: in a project's folder it would start the
project's ``.venv/bin/python``. It gets no PATH: there is nothing else that it may start. Sources are never built
(``--no-build``): a package without a wheel is excluded and listed as one that pip builds in the image. Metadata comes
from strangers, so its memory is bounded.
"""

from __future__ import annotations

import hashlib
import json
import platform
import re
import sys
import tempfile
import time
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, Protocol

from packaging.requirements import Requirement

from seatrial.errors import CommandTimeoutError, DiskError, EngineUnavailableError, SeatrialError
from seatrial.images.requirements.source_builds import SourceBuild, read_build
from seatrial.images.resolve.sdist import read_source
from seatrial.images.resolve.wheel_metadata import metadata_wheel
from seatrial.images.sources import PackageSource, digest_of_wheel
from seatrial.system import command
from seatrial.system.files import make_folder, write_atomically
from seatrial.system.host import Host
from seatrial.system.project_files import parse_toml

#: A plan waits no longer than this for one answer of all indexes together; uv gives up on one request after a third.
LIMIT_S = 15.0
#: A lock is used again for this long: an image must not change because an index got a new release.
_FRESH_S = 30 * 86_400.0
_FORMAT = 2

#: Address space of uv, which takes 1 GB on two cores; metadata of an index may unpack to any size.
_MOST_BYTES = 8 << 30
_BOUNDED = """
import contextlib, os, resource, sys
_, most, *argv = sys.argv
with contextlib.suppress(ValueError, OSError):  # macOS bounds no address space
    resource.setrlimit(resource.RLIMIT_AS, (int(most), int(most)))
os.execv(argv[0], argv)
"""

#: Packages without a wheel in one list.
_MOST_EXCLUDED = 20

#: The name that uv wants for a lock.
_LOCK = "pylock.toml"

#: Ubuntu 22.04 has the oldest glibc of the base images, 2.35. Source: packages.ubuntu.com/jammy/libc6.
_PLATFORM = f"{platform.machine()}-manylinux_2_35"

#: uv 0.13: the texts that are read; all others are shown as they are.
_NO_WHEEL = re.compile(r"Wheels are required for `([A-Za-z0-9._-]+)`")
_NO_PACKAGE = re.compile(r"Because ([A-Za-z0-9._-]+) was not found in the package registry")
_NO_VERSION = re.compile(r"there (?:is|are) no versions? of ([A-Za-z0-9._-]+?)(?=[=<>!~, ]|$)")
_NO_SOLUTION = "No solution found when resolving dependencies"
_LOGIN = re.compile(r"401 Unauthorized|403 Forbidden|Missing credentials")
_IN_URL = re.compile(r"(?<=://)[^/@\s]+@")

#: Variables of the machine that uv needs: the way to the network and to logins.
_PASSED_ON = ("NETRC", "SSL_CERT_DIR", "SSL_CERT_FILE", "TMPDIR")
_PROXIES = ("http_proxy", "https_proxy", "all_proxy", "no_proxy")


@dataclass(frozen=True)
class ResolveRequest:
    """Hold a question to the resolver.

    Attributes:
        lines, constraints: requirements without options, URLs and hashes.
        python: ``3.11``.
        dependencies: True resolves their requirements as well. lowest: True takes the oldest releases that fit.
        excluded: names that count as installed. preferred: versions by name, taken where the lines allow.
        elsewhere: names with wheels at an address of their own, which count as built from source.
        links: wheels that the build gets as well.
        authorities: PEM bundle in place of the system's; None for the system's.
    """

    lines: tuple[str, ...]
    python: str
    sources: tuple[PackageSource, ...]
    constraints: tuple[str, ...] = ()
    prereleases: bool = False
    dependencies: bool = True
    lowest: bool = False
    excluded: tuple[str, ...] = ()
    preferred: tuple[tuple[str, str], ...] = ()
    elsewhere: tuple[str, ...] = ()
    links: tuple[Path, ...] = ()
    authorities: Path | None = None


@dataclass(frozen=True)
class LockedPackage:
    """Hold one package of a lock; ``size_bytes`` is None if the index does not give it."""

    name: str
    version: str
    sha256: tuple[str, ...] = ()
    size_bytes: int | None = None


@dataclass(frozen=True)
class Lock:
    """Hold versions that fit together; ``from_source`` names packages without a wheel, which pip builds."""

    packages: tuple[LockedPackage, ...]
    from_source: tuple[str, ...] = ()


@dataclass(frozen=True)
class Unsatisfiable:
    """Hold the resolver's reason why no versions fit together.

    Attributes:
        no_package, no_version: name of a package that no index has at all, or not in a requested version.
    """

    cause: str
    no_package: str | None = None
    no_version: str | None = None


@dataclass(frozen=True)
class Unreachable:
    """Hold the reason why nothing is known."""

    reason: str


Answer = Lock | Unsatisfiable | Unreachable


class PackageResolver(Protocol):
    """Find versions that fit together; the plan needs nothing else of a resolver."""

    host: Host

    def resolve(self, request: ResolveRequest) -> Answer:
        """Resolve the request, which is for one Python."""

    def build_of(self, name: str, line: str, request: ResolveRequest) -> SourceBuild | None:
        """Return what building a package takes, read from its source; None if that cannot be had."""


class UvResolver:
    """Resolve with the uv of this environment; locks are remembered by all that they follow from."""

    def __init__(self, folder: Path, host: Host, *, limit_s: float = LIMIT_S) -> None:
        self.host = host
        self._folder = folder
        self._limit_s = limit_s

    def resolve(self, request: ResolveRequest) -> Answer:
        """Return a remembered lock, or run uv once for each package without a wheel that it must exclude."""
        memory = self._folder / "locks" / f"{_digest(request)}.json"
        if (lock := _remembered(memory, _FRESH_S)) is not None:
            return lock
        answer = self._resolve(request)
        if isinstance(answer, Lock):
            _write(memory, asdict(answer))
        elif isinstance(answer, Unreachable):
            return _remembered(memory, float("inf")) or answer
        return answer

    def build_of(self, name: str, line: str, request: ResolveRequest) -> SourceBuild | None:
        """Return a remembered answer, or read the package's newest source that the line admits."""
        memory = self._folder / "builds" / f"{_digest(replace(request, lines=(line,), constraints=()))}.json"
        with suppress(OSError, ValueError, KeyError, TypeError):
            data = json.loads(memory.read_bytes())
            if 0 <= time.time() - float(data["at"]) <= _FRESH_S:
                rows: dict[str, Any] = {
                    key: tuple(value) if isinstance(value, list) else value for key, value in data["build"].items()
                }
                return SourceBuild(**rows)
        limit_s = self._limit_s / 3
        source = read_source(Requirement(line), request.python, request.sources, request.authorities, limit_s)
        if source is None:
            return None
        found = read_build(name, line, source.names, source.texts)
        _write(memory, {"build": asdict(found)})
        return found

    def _resolve(self, request: ResolveRequest) -> Answer:
        from_source = list(request.elsewhere)
        while True:
            try:
                answer = self._compile(request, from_source)
            except CommandTimeoutError:
                return Unreachable(f"{_shown(request)} did not answer in time")
            except (EngineUnavailableError, OSError) as error:
                return Unreachable(f"uv cannot be run: {error}")
            if isinstance(answer, str) and answer not in from_source and len(from_source) < _MOST_EXCLUDED:
                from_source.append(answer)
                continue
            if isinstance(answer, str):
                return Unsatisfiable(f"{answer} has no wheel")
            return answer

    def _compile(self, request: ResolveRequest, from_source: list[str]) -> Answer | str:
        """Run uv once; return the name of a package that must be excluded, or the answer."""
        with tempfile.TemporaryDirectory(prefix="seatrial-uv-") as scratch:
            folder = Path(scratch)
            (folder / "requirements.in").write_text("\n".join([*request.lines, ""]))
            (folder / "constraints.txt").write_text("\n".join([*request.constraints, ""]))
            (folder / "excludes.txt").write_text("\n".join([*request.excluded, *from_source, ""]))
            (folder / "links").mkdir()
            digests = _write_links(folder / "links", request.links)
            if request.preferred:
                rows = [f'[[packages]]\nname = "{name}"\nversion = "{at}"\n' for name, at in request.preferred]
                (folder / _LOCK).write_text("".join(['lock-version = "1.0"\ncreated-by = "seatrial"\n', *rows]))
            argv = [sys.executable, "-I", "-S", "-c", _BOUNDED, str(_MOST_BYTES), _uv(), "pip", "compile"]
            argv += ["requirements.in", "--constraints", "constraints.txt", "--excludes", "excludes.txt"]
            argv += ["--python", sys.executable, "--python-version", f"{request.python}.99"]
            argv += ["--python-platform", _PLATFORM, "--no-build", "--no-config", "--no-header", "--quiet"]
            argv += ["--format", "pylock.toml", "-o", _LOCK]
            if sum(each.kind == "index" for each in request.sources) > 1:  # as pip; uv then passes over refused logins
                argv += ["--index-strategy", "unsafe-best-match"]
            argv += ["--prerelease", "allow"] if request.prereleases else []
            argv += [] if request.dependencies else ["--no-deps"]
            argv += ["--resolution", "lowest"] if request.lowest else []
            argv += ["--find-links", "links"] if request.links else []
            ended = command.run(argv, timeout_s=self._limit_s, env=self._environment(request, folder), cwd=folder)
            if ended.exit_code == 0:
                lock = _read_lock(folder / _LOCK, from_source, digests)
                return lock or Unreachable("uv wrote a lock that cannot be read")
        return _refusal(ended.stderr, request)

    def _environment(self, request: ResolveRequest, home: Path) -> dict[str, str]:
        """Translate pip's settings into uv's; addresses may hold logins, so they stand in no argument."""
        passed = {name: self.host.env[name] for name in _PASSED_ON if name in self.host.env}
        passed |= {name: value for name, value in self.host.env.items() if name.lower() in _PROXIES}
        netrc = Path(self.host.env.get("HOME") or "/nonexistent", ".netrc")
        indexes = [each.url for each in request.sources if each.kind == "index"]
        links = [each.url for each in request.sources if each.kind == "links"]
        return {
            **({"NETRC": str(netrc)} if netrc.is_file() else {}),
            **passed,
            "HOME": str(home),
            "UV_CACHE_DIR": str(self._folder / "uv"),
            "UV_PYTHON_DOWNLOADS": "never",
            "UV_HTTP_TIMEOUT": str(round(self._limit_s / 3) or 1),
            "UV_HTTP_RETRIES": "0",
            "UV_SYSTEM_CERTS": "1",
            "NO_COLOR": "1",
            **({"SSL_CERT_FILE": str(request.authorities)} if request.authorities else {}),
            **({"UV_DEFAULT_INDEX": indexes[0]} if indexes else {"UV_NO_INDEX": "1"}),
            **({"UV_INDEX": " ".join(indexes[1:])} if indexes[1:] else {}),
            **({"UV_FIND_LINKS": ",".join(links)} if links else {}),
        }


def _uv() -> str:
    """Return the path of the installed uv. Raises EngineUnavailableError if there is none."""
    try:
        from uv import find_uv_bin

        return str(find_uv_bin())
    except (ImportError, FileNotFoundError) as error:
        raise EngineUnavailableError("uv is not installed", run="pip install --force-reinstall seatrial") from error


def _refusal(text: str, request: ResolveRequest) -> Answer | str:
    """Read uv's error: a package to exclude, an index that cannot be read, or the reason of a conflict."""
    text = _IN_URL.sub("", text)
    if no_wheel := _NO_WHEEL.search(text):
        return no_wheel[1]
    if _LOGIN.search(text):
        return Unreachable(f"{_shown(request)} asks for a login: put it in seatrial.toml, [image] index_url")
    if _NO_SOLUTION not in text:
        return Unreachable(f"{_shown(request)} cannot be read: {_last_cause(text)}")
    if (no_package := _NO_PACKAGE.search(text)) is not None:
        return Unsatisfiable(_cause(text), no_package=no_package[1])
    no_version = _NO_VERSION.search(text)
    return Unsatisfiable(_cause(text), no_version=no_version[1] if no_version else None)


def _cause(text: str) -> str:
    """Return uv's explanation as one line, without its prefixes and hints."""
    words = text.partition("cause:")[2].partition("\nhint:")[0] or text
    return " ".join(words.split()).removesuffix(".")


def _last_cause(text: str) -> str:
    causes = [line.partition("cause:")[2].strip() for line in text.splitlines() if "cause:" in line]
    return causes[-1] if causes else " ".join(text.split())[:200]


def _shown(request: ResolveRequest) -> str:
    return request.sources[0].shown if request.sources else "the folder of wheels"


def _write_links(folder: Path, wheels: tuple[Path, ...]) -> dict[str, str]:
    """Write the metadata of these wheels for uv; return the digests of what it reads → those of the wheels."""
    digests = {}
    for path in wheels:
        data = metadata_wheel(path) or b""  # nothing: uv then names the wheel, and gives up
        (folder / path.name).write_bytes(data)
        digests[hashlib.sha256(data).hexdigest()] = digest_of_wheel(path)
    return digests


def _read_lock(file: Path, from_source: list[str], digests: dict[str, str]) -> Lock | None:
    """Read names, versions, hashes and sizes; addresses and paths are left out. None if it is not such a file."""
    try:
        listed = parse_toml(file.read_text(encoding="utf-8"), file).get("packages", [])
        packages = tuple(_package(each, digests) for each in listed)
    except (OSError, ValueError, KeyError, TypeError, AttributeError, SeatrialError):
        return None
    return Lock(packages, tuple(from_source))


def _package(row: dict[str, Any], digests: dict[str, str]) -> LockedPackage:
    wheels = row.get("wheels", [])
    sizes = [wheel["size"] for wheel in wheels if isinstance(wheel.get("size"), int)]
    hashes = (wheel["hashes"]["sha256"] for wheel in wheels if "sha256" in wheel.get("hashes", {}))
    real = tuple(sorted({digests.get(each, each) for each in hashes}))
    return LockedPackage(row["name"], row["version"], real, max(sizes, default=None))


def _digest(request: ResolveRequest) -> str:
    """Digest all that a lock follows from, logins included: another login may see other packages."""
    parts: list[Any] = [_FORMAT, _PLATFORM, request.lines, request.constraints, request.python]
    parts += [request.prereleases, request.dependencies, request.excluded, request.preferred]
    parts += ["lowest"] if request.lowest else []
    parts += [["elsewhere", *request.elsewhere]] if request.elsewhere else []
    parts += [[each.kind, each.url] for each in request.sources]
    parts += [[path.name, digest_of_wheel(path)] for path in request.links]
    return hashlib.sha256(json.dumps(parts).encode()).hexdigest()[:32]


def _remembered(file: Path, fresh_s: float) -> Lock | None:
    try:
        data = json.loads(file.read_bytes())
        if not 0 <= time.time() - float(data["at"]) <= fresh_s:
            return None
        rows = [LockedPackage(**{**row, "sha256": tuple(row["sha256"])}) for row in data["packages"]]
        return Lock(tuple(rows), tuple(map(str, data["from_source"])))
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        return None


def _write(file: Path, found: Mapping[str, Any]) -> None:
    with suppress(DiskError):  # it is found out again
        make_folder(file.parent)
        write_atomically(file, json.dumps({"at": time.time(), **found}).encode(), 0o600)
