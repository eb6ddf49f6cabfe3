"""Resolve packages with uv, without building or running anything that the project or a package brings.

uv runs in an empty folder, with its own environment and our interpreter: in a project's folder it would start the
project's ``.venv/bin/python``. It gets no PATH: there is nothing else that it may start. Sources are never built
(``--no-build``): pip builds a package without a wheel in the image. Metadata comes from strangers, so its memory is
bounded.

A pin that has a source and no wheel gets a stand-in, an empty wheel of its version, which requires what the source
lists: uv then sees what others require of it. No other package gets one.
"""

from __future__ import annotations

import hashlib
import json
import re
import sys
import tempfile
import time
from collections.abc import Callable, Collection, Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import asdict, replace
from datetime import date, timedelta
from functools import cached_property
from itertools import chain, islice, product
from pathlib import Path
from typing import Any, TypeVar

import packaging
from packaging.requirements import Requirement
from packaging.specifiers import SpecifierSet
from packaging.utils import canonicalize_name
from packaging.version import Version

import seatrial
from seatrial.errors import CommandTimeoutError, DiskError, EngineUnavailableError, SeatrialError, fallback
from seatrial.images.requirements.pip_format import MACHINE, canonical_name, is_for
from seatrial.images.requirements.source_builds import read_build
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
from seatrial.images.resolve.uv_texts import (
    NO_SOLUTION,
    SILENT,
    bounded_first,
    configured,
    pinned,
    read_lock,
    refusal,
    shown_index,
    stored_lock,
    stored_names,
    stored_texts,
    up_to,
)
from seatrial.images.resolve.wheel_metadata import write_links
from seatrial.images.sources import digest_of_wheel
from seatrial.stack.resolve import PYTHONS
from seatrial.system import command
from seatrial.system.files import make_folder, write_atomically
from seatrial.system.host import Host

#: Most seconds that a plan waits for all answers of all indexes; a run or a build waits PATIENT_S.
LIMIT_S, PATIENT_S = 30.0, 180.0
#: Seconds of silence after which a request is repeated with twice the limit; uv keeps what it has received.
_SILENCE_S = 3
#: A lock is used again for this long: an image must not change because an index got a new release.
_FRESH_S = 30 * 86_400.0
_FORMAT = 13

#: Limits of uv, as metadata may unpack to any size: 8 GiB of address space (uv takes 1 GB on two cores) and 256 MiB
#: per file. A lower limit stays in force; macOS does not limit address space.
_BOUNDED = ("/bin/sh", "-c", f'ulimit -v {8 << 20} 2>/dev/null; ulimit -f {1 << 19} 2>/dev/null; exec "$@"', "sh")

#: The programs that read an index; without a user's own folders of packages (-I), they get the two that they need.
_PROGRAM = "import sys; sys.path += sys.argv[1:]; from seatrial.images.resolve.{} import main; main()"
_FOLDERS = {str(Path(str(each.__file__)).parents[1]) for each in (seatrial, packaging)}

_Found = TypeVar("_Found")

#: Largest wheel that is downloaded to list its files; most packages without a wheel; each takes a run of uv;
#: most sources read for what they require.
_MOST_LISTED_BYTES, _MOST_EXCLUDED, _MOST_READ = 8_000_000, 40, 8

#: Days before the day of a request from which on a wheel counts as old: a newer source may exist, or a newer wheel.
_OLD_DAYS, _BEHIND_DAYS = 730, 365

#: The name that uv wants for a lock.
_LOCK = "pylock.toml"

#: Requires-Python in what uv 0.13 keeps of a wheel: the only text that begins with an operator, behind its length.
_PYTHONS = re.compile(rb"(?:[\xa2-\xbf]|\xd9[\x20-\xff])((?:(?:[<>!~=]=?|===)\d[\w.*]*(?:, ?)?)+)(?=[\x90-\x9f\xdc])")

#: The last setuptools with pkg_resources, which packages import without requiring it. Source: setuptools' NEWS, 82.0.0.
_SETUPTOOLS = ("setuptools", "81.0.0")

#: Ubuntu 22.04 has the oldest glibc of the base images, 2.35. Source: packages.ubuntu.com/jammy/libc6.
_PLATFORM = f"{MACHINE}-manylinux_2_35"

#: Variables of the machine that uv needs: the way to the network and to logins.
_PASSED_ON = ("NETRC", "SSL_CERT_DIR", "SSL_CERT_FILE", "TMPDIR")
_PROXIES = ("http_proxy", "https_proxy", "all_proxy", "no_proxy")


class UvResolver:
    """Resolve for one plan with the uv of this environment, in ``limit_s`` altogether; cache locks by all inputs."""

    def __init__(self, folder: Path, host: Host, *, limit_s: float = LIMIT_S) -> None:
        self.host = host
        self._folder = folder
        self._limit_s = limit_s
        self.began: float | None = None
        self.late = list[str]()  # answers that the time limit cut off
        self._sources = set[tuple[str, str, str]]()  # (Python, name, version) of existing sources
        self._unread = set[str]()  # those that could not be read
        self._required: dict[tuple[str, str], str] = {}  # (name, version) → text of a source's requires.txt

    @cached_property
    def for_guesses(self) -> UvResolver:
        """Return a resolver for all guesses of packages together, with a tenth of the time."""
        found = UvResolver(self._folder, self.host, limit_s=self._limit_s / 10)
        found.late = self.late
        return found

    def resolve(self, request: ResolveRequest) -> Answer:
        """Return a remembered lock, or run uv."""
        if request.preferred:  # a framework alone: the preferences are the answer
            own = self._remembered(f"locks/{_digest(replace(request, preferred=()))}", stored_lock, _FRESH_S)
            if own and tuple((each.name, each.version) for each in own.packages) == request.preferred:
                return own
        return self._answer(request, self._resolve)

    def lacking(self, request: ResolveRequest, further: Collection[str] = ()) -> tuple[str, ...] | Unreachable:
        """Find all lines without a wheel in one run of uv; an empty one of version 0 stands in for them."""
        bounded = {line: newest for line in request.lines if (newest := up_to(line)) and is_for(line, request.python)}
        questions = {**bounded, **{line: up_to(line) or line for line in further}}
        lines = tuple(sorted(questions.values()))
        lock = self._newest(replace(request.only(*lines), as_of="", dates=())) if questions else Lock(())
        if isinstance(lock, Unreachable):
            return lock
        found = {each.name: each.version for each in lock.packages} if isinstance(lock, Lock) else {}
        wanted = ((canonicalize_name(Requirement(line).name), Requirement(line).specifier) for line in questions)
        return tuple(
            f"{name}{specifier}"
            for name, specifier in wanted
            if name not in found or not specifier.contains(Version(found[name]).public, prereleases=True)
        )

    def _answer(self, request: ResolveRequest, answered: Callable[[ResolveRequest], Answer]) -> Answer:
        """Return a remembered lock, however old it is where no index answers, or the new one."""
        memory = f"locks/{_digest(request)}"
        if (lock := self._remembered(memory, stored_lock, _FRESH_S)) is not None:
            return lock
        answer = answered(request)
        if isinstance(answer, Lock):
            self._remember(memory, asdict(answer))
        elif isinstance(answer, Unreachable):
            return self._remembered(memory, stored_lock) or answer
        return answer

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
        memory = f"sources/{_digest(ResolveRequest((line,), request.python, sources, as_of=request.as_of))}"
        if (known := self._remembered(memory, stored_texts, _FRESH_S)) is not None:
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
        with tempfile.TemporaryDirectory(prefix="seatrial-index-") as folder:
            env = self._environment(request, Path(folder), _SILENCE_S)
            with suppress(SeatrialError, OSError, ValueError, TypeError, KeyError):
                ended = command.run(argv, timeout_s=limit_s, input=json.dumps(question), env=env, cwd=Path(folder))
                return read(json.loads(ended.stdout))
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

    def left_s(self) -> float:
        """Return the seconds left of the limit, which starts at the first call."""
        self.began = time.monotonic() if self.began is None else self.began
        return max(self._limit_s - (time.monotonic() - self.began), 0.01)

    def _resolve(self, request: ResolveRequest) -> Answer:
        """Find the pins without a wheel first, because the check of each source takes a run of uv."""
        others = (*request.excluded, *request.elsewhere)
        pins = {name: at for name, at in pinned(request.lines, request.python) if name not in others}
        lacking = self.lacking(request) if request.dependencies and len(pins) > 1 else ()
        if isinstance(lacking, Unreachable):
            return lacking
        stand_ins = {name: at for name, at in pins.items() if (request.python, name, at) in self._sources}
        names = {Requirement(line).name for line in lacking} & pins.keys() - stand_ins.keys()
        doubtful = request.only(*(f"{name}=={pins[name]}" for name in sorted(names)))
        if names and not isinstance(sources := self._run(doubtful, pins, stand_ins), Lock):
            return sources
        return self._run(request, pins, stand_ins)

    def _run(self, request: ResolveRequest, pins: Mapping[str, str], stand_ins: dict[str, str]) -> Answer:
        """Run uv until all packages without a wheel are known; packages of ``pins`` become stand-ins.

        A day that leaves no solution, or no wheel, is a year later for the packages named, or torch's, then lifted. So
        it is where a listed package is older than its day, as what it requires had no wheel then.
        """
        excluded, later, dated = dict.fromkeys(request.elsewhere, ""), tuple[str, ...](), None
        newest: dict[str, str] | None = None  # listed packages that fell behind, with the releases of their day
        early, retried, soon = None, False, ""  # whether uv passed over releases in favour of pre-releases
        while True:
            exact = (f"{name}{'>=' if name in later else '=='}{at}" for name, at in (newest or {}).items())
            try:
                bounded = replace(request, constraints=(*request.constraints, *exact), early=early)
                answer = self._fitting(bounded, excluded, stand_ins)
            except CommandTimeoutError:
                return self._late(request)
            except (EngineUnavailableError, OSError) as error:
                return Unreachable(f"uv cannot be run: {error}")
            if isinstance(answer, Lock):
                if not retried and (early := self._early(request, answer)) is not None:
                    retried = True
                    continue
                if request.dependencies and (newer := self._newer_sources(request, answer, excluded)):
                    excluded |= newer
                    continue
                lacking = (*answer.lacking, *filter(None, excluded.values()))
                found = replace(answer, from_source=(*answer.from_source, *excluded), lacking=lacking, later=later)
                dependent = newest is None and request.dependencies and not request.lowest
                newest = self._behind(request, answer) if dependent else None
                if not newest:
                    return found
                dated = found
                continue
            if early is not None and newest is None and isinstance(answer, Unsatisfiable):
                early = None  # the list fits pre-releases alone
                continue
            if newest and isinstance(answer, Unsatisfiable):
                at_odds = answer.named & newest.keys() or {*newest}
                at_odds = at_odds - answer.requiring or at_odds  # hydra-core bounds omegaconf: that one is too new
                if odd := at_odds - dict(request.named).keys() if request.named and not answer.filtered else ():
                    newest = {name: version for name, version in newest.items() if name not in odd}
                    continue
            if request.as_of and (names := self._to_lift(request, answer, every=not newest)):
                soon = request.soon if isinstance(answer, Unsatisfiable) and "torch" in answer.named else soon
                request, later = _lifted(request, names, later, soon), (*later, *names)
                continue
            if newest and isinstance(answer, Unsatisfiable):
                newest = {name: version for name, version in newest.items() if name not in at_odds}
            if dated and not newest:
                return dated
            if newest and not isinstance(answer, str):
                continue
            if not isinstance(answer, str):
                return answer
            name = canonicalize_name(Requirement(answer).name)
            if name in stand_ins or name in excluded or len(excluded) >= _MOST_EXCLUDED:
                return Unsatisfiable(f"{answer} has no wheel")
            if name in pins:
                stand_ins[name] = at = pins[name]
                self._sources.add((request.python, name, at))
                if (name, at) not in self._required and len(self._required) < _MOST_READ:
                    source = self.source(f"{name}=={at}", replace(request, as_of="", dates=()))
                    self._required[name, at] = source.texts.get("requires.txt", "") if source else ""
            else:
                excluded[name] = answer

    def _fitting(self, request: ResolveRequest, excluded: Iterable[str], stand_ins: Mapping[str, str]) -> Answer | str:
        """Run uv without releases that pip refuses on this Python: uv ignores the upper bounds of Requires-Python."""
        refused, kept = dict[str, str](), self._folder / "uv"
        while True:
            answer = self._compile(replace(request, constraints=(*request.constraints, *refused)), excluded, stand_ins)
            if refused and isinstance(answer, Unsatisfiable):
                return Unsatisfiable("; ".join(refused.values()))
            roots = [*kept.glob("wheels-*/pypi"), *kept.glob("wheels-*/index/*")] if request.dependencies else []
            before = dict(refused)
            for each, root in product(_packages(answer), roots):
                for file in islice((root / each.name).glob(f"{each.version}-*.msgpack"), 1):
                    pythons = match[1].decode() if (match := _PYTHONS.search(file.read_bytes())) else ""
                    many = sum(known.startswith(f"{each.name}!=") for known in before) > 1  # minor by minor
                    release = ".".join(each.version.split(".")[:2]) + ".*" if many else each.version
                    if not SpecifierSet(pythons).contains(f"{request.python}.99"):
                        refused[f"{each.name}!={release}"] = f"{each.name} {each.version} requires Python {pythons}"
            if refused == before:
                return answer

    def _behind(self, request: ResolveRequest, lock: Lock) -> dict[str, str]:
        """Return the newest release of its day, or the author's, of each listed package if one has an older; or {}."""
        if not request.as_of:
            old = _older(lock, request, _BEHIND_DAYS)  # a dependency of a newer one may lack a wheel
            return {name: at for name, (_, at) in self._apart(request, old).items() if Version(at) > Version(old[name])}
        free, named = {name for name, day in request.dates if not day}, dict(request.named)
        found = {each.name: Version(each.version) for each in lock.packages if each.name not in free}
        lines = tuple(line for line in request.lines if "==" not in str(Requirement(line).specifier))
        newest = self._newest(replace(request, lines=lines, preferred=()))
        rows = {each.name: each.version for each in _packages(newest)}
        rows = {name: at for name, at in rows.items() if name in found and (name in named or Version(at) > found[name])}
        return rows if any(Version(at) != found[name] for name, at in rows.items()) else {}

    def uploads(self, request: ResolveRequest, releases: Mapping[str, str]) -> dict[str, str]:
        """Return package → upload of its release with a wheel for this Python, or of a pin for an older one."""
        days, left = dict[str, str](), {name: Version(at) for name, at in releases.items()}
        for python in (request.python, "3.8", "3.6"):
            alone = replace(request.only(*(f"{name}<={at}" for name, at in left.items())), as_of="", dates=())
            found = _packages(self._newest(replace(alone, python=python))) if left else ()
            days |= {each.name: each.uploaded for each in found if Version(each.version) == left[each.name]}
            left = {name: at for name, at in left.items() if name not in days | dict(request.named)}
        return days

    def _newest(self, request: ResolveRequest) -> Answer:
        """Find the newest release with a wheel of each line, whatever it requires; version 0 without one."""
        oldest: dict[str, str] = {canonicalize_name(Requirement(line).name): "0" for line in request.lines}
        return self._answer(replace(request, dependencies=False), lambda request: self._run(request, {}, oldest))

    def _newer_sources(self, request: ResolveRequest, lock: Lock, excluded: Collection[str]) -> dict[str, str]:
        """Return open lines whose newest wheel, other lines aside, is old, and that have a newer source of Python."""
        old = _older(lock, request, _OLD_DAYS)
        apart = ((name, *row) for name, row in self._apart(request, old).items() if name not in excluded)
        early = {name for name, at in old.items() if Version(at).is_prerelease}  # deepspeed has no other wheel
        last = [(name, wanted) for name, wanted, at in apart if at == old[name]]
        lines = ((canonicalize_name(each.name), each.specifier) for each in map(Requirement, request.lines))
        last += [row for row in lines if row[0] in early and not row[1].prereleases]
        newer = [f"{name}{wanted & SpecifierSet(f'>{old[name]}')}" for name, wanted in last[:_MOST_READ]]
        with ThreadPoolExecutor(_MOST_READ) as threads:
            sources = threads.map(lambda line: self.source(line, request), newer)
        return {
            name: f"{name}=={source.version}"
            for (name, _), source in zip(last, sources, strict=False)
            if source and (name in early or not read_build(name, name, source.names, source.texts).compiles)
        }

    def _apart(self, request: ResolveRequest, names: Iterable[str]) -> dict[str, tuple[SpecifierSet, str]]:
        """Return listed, open package → (bounds, the newest release with a wheel, of all that there are) of these."""
        lines = map(Requirement, request.lines)
        wanted: dict[str, SpecifierSet]
        wanted = {canonicalize_name(each.name): each.specifier for each in lines if "==" not in str(each.specifier)}
        alone = request.only(*(f"{name}{wanted[name]}" for name in names if name in wanted))
        found = _packages(self._newest(alone)) if alone.lines else ()
        return {each.name: (wanted[each.name], each.version) for each in found}

    def _early(self, request: ResolveRequest, lock: Lock) -> tuple[str, ...] | None:
        """Return the packages that stay at pre-releases; None unless uv passed over another release of a listed one."""
        early = [each.name for each in lock.packages if Version(each.version).is_prerelease]
        apart = self._apart(request, early) if request.dependencies and not request.prereleases else {}
        stable = {name for name, (wanted, at) in apart.items() if not (wanted.prereleases or Version(at).is_prerelease)}
        return tuple(name for name in early if name not in stable) if stable else None

    def _to_lift(self, request: ResolveRequest, answer: Answer | str, *, every: bool) -> tuple[str, ...]:
        """Return the packages whose day leaves no solution or wheel, "*" for all; () if the day is not the reason."""
        free = {name for name, day in request.dates if not day}
        if isinstance(answer, str):
            return tuple({canonicalize_name(Requirement(answer).name)} - free)
        if not isinstance(answer, Unsatisfiable):
            return ()
        listed = {canonicalize_name(Requirement(line).name) for line in request.lines}
        return tuple(sorted({*answer.filtered} - free or (answer.named & listed) - free)) or ("*",) * every

    def _late(self, request: ResolveRequest) -> Unreachable:
        longer = f"; run waits {PATIENT_S:g} s" if self._limit_s < PATIENT_S else ""
        again = f"plan again to continue from the answers received{longer}"
        self.late.append(f"{shown_index(request)} did not answer within {self._limit_s:g} s ({again})")
        return Unreachable(self.late[-1])

    def _compile(self, request: ResolveRequest, excluded: Iterable[str], stand_ins: Mapping[str, str]) -> Answer | str:
        """Run uv once; return a requirement without a wheel, or the answer."""
        with tempfile.TemporaryDirectory(prefix="seatrial-uv-") as scratch:
            folder = Path(scratch)
            (folder / "requirements.in").write_text("\n".join([*bounded_first(request), ""]))
            early = [f"{name}>=0a0" for name in request.early or ()]
            (folder / "constraints.txt").write_text("\n".join([*request.constraints, *early, ""]))
            over = set(map(canonical_name, request.overrides))
            first = [each for each in request.lines if canonical_name(each) in over and is_for(each, request.python)]
            over -= set(map(canonical_name, first))  # a line wins; one override for another machine drops the package
            first += [each for each in request.overrides if canonical_name(each) in over]
            (folder / "overrides.txt").write_text("\n".join(first))
            (folder / "excludes.txt").write_text("\n".join([*request.excluded, *excluded, ""]))
            digests = write_links(folder / "links", request.links, stand_ins, self._required)
            preferred = {_SETUPTOOLS[0]: _SETUPTOOLS[1], **dict(request.preferred), **dict(request.named)}
            rows = [f'[[packages]]\nname = "{name}"\nversion = "{at}"\n' for name, at in preferred.items()]
            (folder / _LOCK).write_text("".join(['lock-version = "1.0"\ncreated-by = "seatrial"\n', *rows]))
            argv = ["compile", "requirements.in", "--constraints", "constraints.txt", "--excludes", "excludes.txt"]
            argv += ["--no-build", "--no-header", "--format", "pylock.toml", "-o", _LOCK]
            if sum(each.kind == "index" for each in request.sources) > 1:  # as pip; uv then passes over refused logins
                argv += ["--index-strategy", "unsafe-best-match"]
            argv += ["--prerelease", "allow"] if request.prereleases else []
            argv += ["--prerelease", "explicit"] if request.early is not None else []
            argv += [] if request.dependencies else ["--no-deps"]
            argv += ["--resolution", "lowest"] if request.lowest else []
            argv += ["--overrides", "overrides.txt"] if request.overrides else []
            argv += ["--find-links", "links"] if request.links or stand_ins else []
            ended = self._uv_pip(argv, request, folder)
            if ended.exit_code == 0:
                return read_lock(folder / _LOCK, digests) or Unreachable("uv wrote a lock that cannot be read")
        answer, own = refusal(ended.stderr, request, self._folder), {**dict(request.preferred), **dict(request.named)}
        if isinstance(answer, Unsatisfiable) and len(request.sources) > 1 and answer.named & own.keys():
            others = tuple((name, at) for name, at in own.items() if name not in answer.named)
            request = replace(request, preferred=others, named=())  # uv asks the first index alone for a preference
            return self._compile(request, excluded, stand_ins)
        return answer

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


def _digest(request: ResolveRequest) -> str:
    """Digest all that a lock follows from, logins included: another login may see other packages."""
    parts: list[Any] = [_FORMAT, _PLATFORM, request.lines, request.constraints, request.python]
    parts += [request.prereleases, request.dependencies, request.excluded, request.preferred]
    parts += [request.lowest, request.overrides, request.elsewhere, request.named]
    parts += [request.as_of, (request.dates, request.soon) if request.as_of else ()]
    parts += [[each.kind, each.url] for each in request.sources]
    parts += [[path.name, digest_of_wheel(path)] for path in request.links]
    return hashlib.sha256(json.dumps(parts).encode()).hexdigest()[:32]


def _lifted(request: ResolveRequest, names: Collection[str], later: Collection[str], soon: str) -> ResolveRequest:
    """Return the request with a day a year later, or ``soon``, for these names, "*" for all; then without a day."""
    after = max((date.fromisoformat(request.as_of) + timedelta(days=365)).isoformat(), soon)
    if "*" in names:
        return replace(request, as_of="", dates=()) if "*" in later else replace(request, as_of=after)
    own = dict(request.dates)
    return request.dated(*names).dated(*(name for name in names if name not in own), as_of=after)


def _older(lock: Lock, request: ResolveRequest, days: int) -> dict[str, str]:
    since = date.fromisoformat(request.as_of or date.today().isoformat()) - timedelta(days=days)
    return {each.name: each.version for each in lock.packages if "" < each.uploaded < since.isoformat()}


def _packages(answer: Answer | str) -> tuple[LockedPackage, ...]:
    return answer.packages if isinstance(answer, Lock) else ()
