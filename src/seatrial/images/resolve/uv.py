"""Resolve packages with uv, without building or running anything that the project or a package brings.

Sources are never built (``--no-build``): pip builds a package without a wheel in the image.

A pin that has a source and no wheel gets a stand-in, an empty wheel of its version, which requires what the source
lists: uv then sees what others require of it. No other package gets one. Of the user's own wheels, which uv would
unpack at any size, it gets the metadata.
"""

from __future__ import annotations

import hashlib
import os
import re
import tempfile
import zipfile
import zlib
from collections.abc import Callable, Collection, Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, replace
from datetime import date, timedelta
from functools import cached_property
from itertools import islice, product
from pathlib import Path

from packaging.requirements import Requirement
from packaging.specifiers import SpecifierSet
from packaging.utils import canonicalize_name
from packaging.version import Version

from seatrial.errors import CommandTimeoutError, EngineUnavailableError, fallback
from seatrial.images.requirements.pip_format import canonical_name, is_for
from seatrial.images.requirements.source_builds import read_build
from seatrial.images.resolve.answers import Answer, Lock, LockedPackage, ResolveRequest, Unreachable, Unsatisfiable
from seatrial.images.resolve.package_index import FRESH_S, PackageIndex, admits_any_numpy, digest_of
from seatrial.images.resolve.uv_texts import bounded_first, pinned, read_lock, refusal, shown_index, stored_lock, up_to
from seatrial.images.sources import digest_of_wheel
from seatrial.system.agent_archive import zip_bytes
from seatrial.system.files import ArchiveFile
from seatrial.system.host import Host

#: Most seconds that a plan waits for all answers of all indexes; a run or a build waits PATIENT_S.
LIMIT_S, PATIENT_S = 30.0, 180.0

#: Most packages without a wheel; each takes a run of uv; most sources read for what they require; most bytes of a
#: wheel's metadata, of which torch's has 30 kB.
_MOST_EXCLUDED, _MOST_READ, _MOST_METADATA = 40, 8, 1 << 20

#: Days before the day of a request from which on a wheel counts as old: a newer source may exist, or a newer wheel.
_OLD_DAYS, _BEHIND_DAYS = 730, 365

#: The name that uv wants for a lock.
_LOCK = "pylock.toml"

#: Requires-Python in what uv 0.13 keeps of a wheel: the only text that begins with an operator, behind its length.
_PYTHONS = re.compile(rb"(?:[\xa2-\xbf]|\xd9[\x20-\xff])((?:(?:[<>!~=]=?|===)\d[\w.*]*(?:, ?)?)+)(?=[\x90-\x9f\xdc])")

#: A requirement without an address, which uv takes from a list alone.
_REQUIREMENT = re.compile(r"(?m)^[\w.-]+(?:\[[\w,.-]*\])?(?:[<>=!~]=?=?[\w.*+!-]+,?)*$")

#: The last setuptools with pkg_resources, which packages import without requiring it. Source: setuptools' NEWS, 82.0.0.
_SETUPTOOLS = ("setuptools", "81.0.0")


class UvResolver(PackageIndex):
    """Resolve for one plan with the uv of this environment, in ``limit_s`` altogether; cache locks by all inputs."""

    def __init__(self, folder: Path, host: Host, *, limit_s: float = LIMIT_S) -> None:
        super().__init__(folder, host, limit_s)
        self._sources = set[tuple[str, str, str]]()  # (Python, name, version) of existing sources
        self._required: dict[tuple[str, str], str] = {}  # (name, version) → text of a source's requires.txt

    @cached_property
    def for_guesses(self) -> UvResolver:
        """Return a resolver for all guesses of packages together, with a tenth of the time."""
        found = UvResolver(self._folder, self.host, limit_s=self._limit_s / 10)
        found.late, found.unanswered = self.late, self.unanswered
        return found

    def resolve(self, request: ResolveRequest) -> Answer:
        """Return a remembered lock, or run uv."""
        if request.preferred:  # a framework alone: the preferences are the answer
            own = self._remembered(f"locks/{digest_of(replace(request, preferred=()))}", stored_lock, FRESH_S)
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
        packages = lock.packages if isinstance(lock, Lock) else ()
        found = {each.name: Version(each.version).public for each in packages}
        wanted = ((canonicalize_name(Requirement(line).name), Requirement(line).specifier) for line in questions)
        missing = ((name, each) for name, each in wanted if name not in found or not each.contains(found[name], True))
        return tuple(f"{name}{specifier}" for name, specifier in missing)

    def _answer(self, request: ResolveRequest, answered: Callable[[ResolveRequest], Answer]) -> Answer:
        """Return a remembered lock, however old it is where no index answers, or the new one."""
        memory = f"locks/{digest_of(request)}"
        if (lock := self._remembered(memory, stored_lock, FRESH_S)) is not None:
            return lock
        try:
            answer = answered(request)
        except TimeoutError as error:
            answer = Unreachable(str(error))
        if isinstance(answer, Lock):
            self._remember(memory, asdict(answer))
        elif isinstance(answer, Unreachable):
            return self._remembered(memory, stored_lock) or answer
        return answer

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
        unfit: tuple[str, ...] = ()
        while True:
            exact = (f"{name}{'>=' if name in later else '=='}{at}" for name, at in (newest or {}).items())
            try:
                bounded = replace(request, constraints=(*request.constraints, *exact), early=early)
                answer = self._fitting(bounded, excluded, stand_ins)
            except CommandTimeoutError:
                return self._late(request)
            except (EngineUnavailableError, OSError) as error:
                return Unreachable(f"uv cannot be run: {error}")
            if isinstance(answer, Unsatisfiable) and answer.no_wheel and dated is None:  # else it fits without `newest`
                name = canonicalize_name(Requirement(answer.no_wheel).name)
                if self.source(name, request) or self.unanswered:
                    answer, unfit = answer.no_wheel, (*unfit, name)
            if isinstance(answer, Lock):
                if not retried and (early := self._early(request, answer)) is not None:
                    retried = True
                    continue
                if request.dependencies and (newer := self._newer_sources(request, answer, excluded)):
                    excluded |= newer
                    continue
                lacking = (*answer.lacking, *filter(None, excluded.values()))
                found = replace(answer, from_source=(*answer.from_source, *excluded), lacking=lacking, later=later)
                found = replace(found, unfit=unfit)
                dependent = newest is None and request.dependencies and not request.lowest
                newest = self._behind(request, answer) if dependent else None
                if not newest:
                    return dated if dated and _oldest(dated, found, request) > _oldest(found, dated, request) else found
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
                cause = answer.cause if isinstance(answer, Unsatisfiable) else ""
                unfit += tuple(name for name in pins if re.search(rf"depends? on {re.escape(name)}==", cause))
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
            if refused and isinstance(answer, Unsatisfiable) and not answer.no_wheel:
                return Unsatisfiable("; ".join(refused.values()))
            roots = [*kept.glob("wheels-*/pypi"), *kept.glob("wheels-*/index/*")] if request.dependencies else []
            before, numpy_1 = dict(refused), set[str]()
            for each, root in product(_packages(answer), roots):
                for file in islice((root / each.name).glob(f"{each.version}-*.msgpack"), 1):
                    pythons = match[1].decode() if (match := _PYTHONS.search(metadata := file.read_bytes())) else ""
                    numpy_1 |= {each.name} if each.numpy_1 and admits_any_numpy(metadata, request.python) else set()
                    many = sum(known.startswith(f"{each.name}!=") for known in before) > 1  # minor by minor
                    release = ".".join(each.version.split(".")[:2]) + ".*" if many else each.version
                    if not SpecifierSet(pythons).contains(f"{request.python}.99"):
                        refused[f"{each.name}!={release}"] = f"{each.name} {each.version} requires Python {pythons}"
            if refused == before:
                rows = (replace(each, numpy_1=each.name in numpy_1) for each in _packages(answer))
                return replace(answer, packages=tuple(rows)) if isinstance(answer, Lock) else answer

    def _behind(self, request: ResolveRequest, lock: Lock) -> dict[str, str]:
        """Return the newest release of its day, or the author's, of each listed package if one has an older; or {}."""
        if not request.as_of:
            old = _older(lock, request, _BEHIND_DAYS)  # a dependency of a newer one may lack a wheel
            return {name: at for name, (_, at) in self._apart(request, old).items() if Version(at) > Version(old[name])}
        free, named = {name for name, day in request.dates if not day}, dict(request.named)
        found = {each.name: Version(each.version) for each in lock.packages if each.name not in free}
        lines = tuple(line for line in request.lines if "==" not in str(Requirement(line).specifier))
        newest = self._newest(replace(request, lines=lines, preferred=()))
        rows = {each.name: each.version for each in _packages(newest, heard=True)}
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
        """Find the newest release with a wheel of each line, regardless of what it requires; version 0 without one."""
        oldest: dict[str, str] = {canonicalize_name(Requirement(line).name): "0" for line in request.lines}
        return self._answer(replace(request, dependencies=False), lambda request: self._run(request, {}, oldest))

    def _newer_sources(self, request: ResolveRequest, lock: Lock, excluded: Collection[str]) -> dict[str, str]:
        """Return open lines whose newest wheel, other lines aside, is old, and that have a newer source of Python."""
        early = {each.name: each.version for each in lock.packages if Version(each.version).is_prerelease}
        old = _older(lock, request, _OLD_DAYS) | early  # deepspeed has no other wheel
        apart = ((name, *row) for name, row in self._apart(request, old).items() if name not in excluded)
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
        found = _packages(self._newest(alone), heard=True) if alone.lines else ()
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


def _oldest(lock: Lock, other: Lock, request: ResolveRequest) -> str:
    """Return the first upload of the listed packages whose releases differ between the locks."""
    names = {canonicalize_name(Requirement(line).name) for line in request.lines}
    theirs = {each.name: each.version for each in other.packages}
    differ = (each for each in lock.packages if each.name in names and theirs.get(each.name) != each.version)
    return min((each.uploaded for each in differ), default="")


def _packages(answer: Answer | str, *, heard: bool = False) -> tuple[LockedPackage, ...]:
    """Return an answer's packages. Raises TimeoutError if ``heard`` and no index answered: it may change a lock."""
    if heard and isinstance(answer, Unreachable):
        raise TimeoutError(answer.reason)
    return answer.packages if isinstance(answer, Lock) else ()


def write_links(
    folder: Path, wheels: Iterable[Path], stand_ins: Mapping[str, str], required: Mapping[tuple[str, str], str]
) -> dict[str, str | None]:
    """Make a folder of wheels for uv; return the digests of what it reads → those of the wheels, None for a stand-in.

    ``stand_ins``: name → version. ``required``: both → text of their requires.txt.
    """
    folder.mkdir()
    found = [(path.name, _metadata_wheel(path), digest_of_wheel(path)) for path in wheels]
    made = [(*_empty_wheel(*each, required.get(each, "")), None) for each in stand_ins.items()]
    digests: dict[str, str | None] = {}
    for name, data, digest in (*found, *made):
        (folder / name).write_bytes(data)
        digests[hashlib.sha256(data).hexdigest()] = digest
    return digests


@fallback(b"", on=(OSError, ValueError, EOFError, RuntimeError, zipfile.BadZipFile, zlib.error))
def _metadata_wheel(path: Path) -> bytes:
    """Return a wheel of the same metadata that no other wheel is turned into; b"" if unreadable: uv names it."""
    flags = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
    with ArchiveFile(os.open(path, flags)) as file, zipfile.ZipFile(file) as archive:
        found = [each for each in archive.infolist() if re.fullmatch(r"[^/]*\.dist-info/METADATA", each.filename)]
        [entry] = [each for each in found if each.compress_type in (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED)]
        with archive.open(entry) as opened:
            metadata = opened.read(_MOST_METADATA + 1)
    return b"" if len(metadata) > _MOST_METADATA else _wheel(entry.filename.partition("/")[0], metadata, path.name)


def _empty_wheel(name: str, version: str, required: str) -> tuple[str, bytes]:
    """Return the file name and content of a universal wheel without code; extras and markers are left out."""
    stem = f"{name.replace('-', '_')}-{version}"
    metadata = f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n"
    metadata += "".join(f"Requires-Dist: {each}\n" for each in _REQUIREMENT.findall(required.partition("\n[")[0]))
    return f"{stem}-py3-none-any.whl", _wheel(f"{stem}.dist-info", metadata.encode(), "seatrial")


def _wheel(folder: str, metadata: bytes, generator: str) -> bytes:
    wheel = f"Wheel-Version: 1.0\nGenerator: {generator}\nRoot-Is-Purelib: true\nTag: py3-none-any\n".encode()
    return zip_bytes({f"{folder}/METADATA": metadata, f"{folder}/WHEEL": wheel, f"{folder}/RECORD": b""})
