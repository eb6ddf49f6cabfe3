"""Ask package indexes by uv, or by a program of our own, within a time limit, and remember the answers.

uv runs in an empty folder, with its own environment and our interpreter: in a project's folder it would start the
project's ``.venv/bin/python``. It gets no PATH: there is nothing else that it may start. Metadata comes from strangers,
so its memory is bounded.
"""

from __future__ import annotations

import hashlib
import json
import re
import sys
import tempfile
import time
from collections.abc import Callable, Collection, Iterable, Mapping
from contextlib import suppress
from dataclasses import asdict, replace
from itertools import chain
from pathlib import Path
from typing import Any, TypeVar

import packaging
from packaging.requirements import Requirement

import seatrial
from seatrial.errors import DiskError, EngineUnavailableError, SeatrialError, fallback
from seatrial.images.requirements.pip_format import MACHINE, is_for
from seatrial.images.resolve.answers import LackedNames, LockedPackage, ResolveRequest, SourceTexts
from seatrial.images.resolve.uv_texts import NO_SOLUTION, SILENT, configured, stored_names, stored_texts
from seatrial.images.sources import digest_of_wheel
from seatrial.stack.resolve import PYTHONS
from seatrial.system import command
from seatrial.system.files import make_folder, write_atomically
from seatrial.system.host import Host

#: Seconds of silence after which a request is repeated with twice the limit; uv keeps what it has received.
_SILENCE_S = 3
#: A lock is used again for this long: an image must not change because an index got a new release.
FRESH_S = 30 * 86_400.0
_FORMAT = 18

#: Limits of uv, as metadata may unpack to any size: 8 GiB of address space (uv takes 1 GB on two cores) and 256 MiB
#: per file. A lower limit stays in force; macOS does not limit address space.
_BOUNDED = ("/bin/sh", "-c", f'ulimit -v {8 << 20} 2>/dev/null; ulimit -f {1 << 19} 2>/dev/null; exec "$@"', "sh")

#: The programs that read an index; without a user's own folders of packages (-I), they get the two that they need.
_PROGRAM = "import sys; sys.path += sys.argv[1:]; from seatrial.images.resolve.{} import main; main()"
_FOLDERS = {str(Path(str(each.__file__)).parents[1]) for each in (seatrial, packaging)}

#: Ubuntu 22.04 has the oldest glibc of the base images, 2.35. Source: packages.ubuntu.com/jammy/libc6.
_PLATFORM = f"{MACHINE}-manylinux_2_35"

#: Largest wheel that is downloaded to list its files.
_MOST_LISTED_BYTES = 8_000_000

#: Variables of the machine that uv needs: the way to the network and to logins.
_PASSED_ON = ("NETRC", "SSL_CERT_DIR", "SSL_CERT_FILE", "TMPDIR")
_PROXIES = ("http_proxy", "https_proxy", "all_proxy", "no_proxy")

_Found = TypeVar("_Found")


class PackageIndex:
    """The indexes of one plan, which all together get ``limit_s``."""

    def __init__(self, folder: Path, host: Host, limit_s: float) -> None:
        self.host, self._folder, self._limit_s = host, folder, limit_s
        self.began: float | None = None
        self.late = list[str]()  # answers that the time limit cut off
        self.unanswered = list[str]()  # programs whose questions about files no index answered
        self._unread = set[str]()  # sources that could not be read

    def left_s(self) -> float:
        """Return the seconds left of the limit, which starts at the first call."""
        self.began = time.monotonic() if self.began is None else self.began
        return max(self._limit_s - (time.monotonic() - self.began), 0.01)

    @fallback(None, on=(OSError, ValueError, KeyError, TypeError, AttributeError))
    def _remembered(self, memory: str, read: Callable[[Any], _Found], fresh_s: float = float("inf")) -> _Found | None:
        data = json.loads((self._folder / f"{memory}.json").read_bytes())
        return read(data["found"]) if 0 <= time.time() - float(data["at"]) <= fresh_s else None

    def _remember(self, memory: str, found: Any) -> None:
        file = self._folder / f"{memory}.json"
        with suppress(DiskError):  # the next plan asks uv again (→ "the next plan repeats it")
            make_folder(file.parent)
            write_atomically(file, json.dumps({"at": time.time(), "found": found}).encode(), 0o600)

    def files(self, request: ResolveRequest, package: LockedPackage, words: Iterable[str] = ()) -> frozenset[str]:
        """Return the wheel's files, unpacked by uv and never run, with ``:word`` for each of ``words`` in one."""
        if not package.sha256 or not 0 < (package.size_bytes or 0) < _MOST_LISTED_BYTES:
            return frozenset()
        digest = hashlib.sha256(" ".join(words).encode()).hexdigest()[:8] if words else ""
        memory = f"wheels/{package.sha256[0][:32]}{digest}"
        if (known := self._remembered(memory, frozenset[str])) is not None:
            return known
        with tempfile.TemporaryDirectory(prefix="seatrial-uv-") as scratch:
            folder = Path(scratch)
            argv = ["install", f"{package.name}=={package.version}", "--target", "wheel", "--no-deps"]
            argv += ["--only-binary", ":all:", "--link-mode", "symlink"]
            with suppress(SeatrialError, OSError):
                if self._uv_pip(argv, replace(request, as_of="", dates=()), folder).exit_code == 0:
                    wheel = folder / "wheel"
                    found = sorted(str(each.relative_to(wheel)) for each in wheel.rglob("*"))
                    code = (each for each in wheel.rglob("*.[ps][yo]*") if words and each.is_file())
                    read = (each.read_bytes() for each in code if each.stat().st_size < _MOST_LISTED_BYTES)
                    wanted = re.compile(rf"(?<!\w)(?:{'|'.join(map(re.escape, words))})(?!\w)".encode())
                    texts = chain(map(str.encode, found), read)
                    found += sorted({f":{word.decode()}" for text in texts for word in wanted.findall(text) if word})
                    self._remember(memory, found)
                    return frozenset(found)
        return frozenset()

    def source(self, line: str, request: ResolveRequest) -> SourceTexts | None:
        """Return a remembered source, or read it; none of an index with a login."""
        sources = tuple(each for each in request.sources if each.kind == "index" and "@" not in each.url)
        memory = f"sources/{digest_of(ResolveRequest((line,), request.python, sources, as_of=request.as_of))}"
        if (known := self._remembered(memory, stored_texts, FRESH_S)) is not None:
            return known
        for index in sources if memory not in self._unread else ():
            question = [line, request.python, index.url, request.as_of]
            if found := self._read_index("sdist", question, request, stored_texts):
                self._remember(memory, asdict(found))
                return found
        self._unread.add(memory)
        return None

    def names(self, request: ResolveRequest, wanted: Mapping[LockedPackage, Collection[str]]) -> dict[str, LackedNames]:
        """Return package → the names that its wheel lacks, remembered by the wheel; nothing for what is unknown."""
        found, memories = dict[str, LackedNames](), dict[str, str]()
        index = next((each.url for each in request.sources if each.kind == "index" and "@" not in each.url), "")
        rows = []
        for package, names in wanted.items():
            digest = hashlib.sha256(json.dumps([_FORMAT, PYTHONS, package.version, *names]).encode()).hexdigest()[:8]
            memory = f"names/{(package.sha256 or (package.name,))[0][:32]}{digest}"
            if known := self._remembered(memory, stored_names):
                found[package.name] = known
            else:
                memories[package.name] = memory
                rows.append([package.name, package.version, list(names)])
        read = self._read_index("wheel_names", [PYTHONS, index, rows], request, dict) if rows else None
        for name, row in (read or {}).items():
            self._remember(memories[name], row)
            found[name] = stored_names(row)
        return found

    def _read_index(
        self, program: str, question: Any, request: ResolveRequest, read: Callable[[Any], _Found]
    ) -> _Found | None:
        """Let a program with a time limit read an index, as a server may never end; None without an answer."""
        argv = [*_BOUNDED, sys.executable, "-I", "-c", _PROGRAM.format(program), *_FOLDERS]
        limit_s = self.left_s() / 3  # however many there are, uv gets some of the time
        end = time.monotonic() + limit_s
        with tempfile.TemporaryDirectory(prefix="seatrial-index-") as folder:
            env = self._environment(request, Path(folder), _SILENCE_S)
            with suppress(SeatrialError, OSError, ValueError, TypeError, KeyError):
                ended = command.run(argv, timeout_s=limit_s, input=json.dumps(question), env=env, cwd=Path(folder))
                return read(json.loads(ended.stdout))
        if time.monotonic() >= end:
            self.unanswered.append(program)
        return None

    @command.doing("asking the package index")
    def _uv_pip(self, argv: list[str], request: ResolveRequest, folder: Path) -> command.Completed:
        """Run uv, and repeat it if an index is silent. Raises CommandTimeoutError: the time limit is reached."""
        (folder / "uv.toml").write_text(configured(request))
        python = ["--python", sys.executable, "--python-version", f"{request.python}.99"]
        argv = [*_BOUNDED, _uv(), "pip", *argv, *python, "--python-platform", _PLATFORM]
        argv += ["--config-file", "uv.toml", "--quiet"]
        silence_s = _SILENCE_S
        while True:
            env = self._environment(request, folder, silence_s)
            ended = command.run(argv, timeout_s=self.left_s(), env=env, cwd=folder)
            if ended.exit_code == 0 or NO_SOLUTION in ended.stderr or not SILENT.search(ended.stderr):
                return ended
            silence_s *= 2

    def _environment(self, request: ResolveRequest, home: Path, silence_s: int) -> dict[str, str]:
        """Translate pip's settings into uv's; addresses may hold logins, so they stand in no argument."""
        passed = {name: self.host.env[name] for name in _PASSED_ON if name in self.host.env}
        passed |= {name: value for name, value in self.host.env.items() if name.lower() in _PROXIES}
        netrc = Path(self.host.env.get("HOME") or "/nonexistent", ".netrc")
        links = [each.url for each in request.sources if each.kind == "links"]
        return {
            **({"NETRC": str(netrc)} if netrc.is_file() else {}),
            **passed,
            "HOME": str(home),
            "UV_CACHE_DIR": str(self._folder / "uv"),
            "UV_PYTHON_DOWNLOADS": "never",
            "UV_HTTP_TIMEOUT": str(silence_s),
            "UV_HTTP_CONNECT_TIMEOUT": str(silence_s),
            "UV_HTTP_RETRIES": "0",
            "UV_SYSTEM_CERTS": "1",
            "NO_COLOR": "1",
            **({"SSL_CERT_FILE": str(request.authorities)} if request.authorities else {}),
            **({"UV_FIND_LINKS": ",".join(links)} if links else {}),
        }


def _uv() -> str:
    """Return the path of the installed uv. Raises EngineUnavailableError if there is none."""
    try:
        from uv import find_uv_bin

        return str(find_uv_bin())
    except (ImportError, FileNotFoundError) as error:
        raise EngineUnavailableError("uv is not installed", run="pip install --force-reinstall seatrial") from error


def digest_of(request: ResolveRequest) -> str:
    """Digest all that a lock follows from, logins included: another login may see other packages."""
    parts: list[Any] = [_FORMAT, _PLATFORM, request.lines, request.constraints, request.python]
    parts += [request.prereleases, request.dependencies, request.excluded, request.preferred]
    parts += [request.lowest, request.overrides, request.elsewhere, request.named]
    parts += [request.as_of, (request.dates, request.soon) if request.as_of else ()]
    parts += [[each.kind, each.url] for each in request.sources]
    parts += [[path.name, digest_of_wheel(path)] for path in request.links]
    return hashlib.sha256(json.dumps(parts).encode()).hexdigest()[:32]


@fallback(False, on=ValueError)
def admits_any_numpy(metadata: bytes, python: str) -> bool:
    """Return True if a wheel's metadata, as uv keeps it, requires NumPy 1 or any newer release."""
    found = re.findall(rb"(?:[\xa5-\xbf]|\xd9[\x20-\xff])(numpy(?![\w.-])[\x20-\x7e]*)", metadata)
    bounds = [Requirement(line).specifier for line in map(bytes.decode, found) if is_for(line, python)]
    return bool(bounds) and all("1.26.4" in each and not re.search("<|==|~=", str(each)) for each in bounds)
