"""Questions to a resolver of packages, and its answers."""

from __future__ import annotations

import re
from dataclasses import dataclass, replace
from pathlib import Path
from typing import NamedTuple

from packaging.utils import canonicalize_name

from seatrial.images.sources import PackageSource

_DEPENDENT = re.compile(r"([A-Za-z][\w.-]*\w)(?:\[[\w,-]*\])?(?:[<>=]\S+)? depends? on")


@dataclass(frozen=True)
class ResolveRequest:
    """Hold a question to the resolver.

    Attributes:
        lines, constraints: requirements without options, URLs and hashes.
        python: ``3.11``.
        dependencies: True resolves their requirements as well. lowest: True takes the oldest releases that fit.
        excluded: names that count as installed. preferred: versions by name, taken where the lines allow.
        named: the author's versions by name, preferred to newer ones of what goes with them.
        overrides: lines in place of what any package requires of theirs; a line of the request comes before one.
        early: packages whose pre-releases are taken; None: those of any whose other releases do not fit.
        elsewhere: packages with wheels at another address; they count as built from source.
        links: wheels that the build gets as well.
        authorities: PEM bundle in place of the system's; None for the system's.
        as_of: day by which packages were uploaded; "" for today. soon: torch's day. dates: package → a day of its own.
    """

    lines: tuple[str, ...]
    python: str
    sources: tuple[PackageSource, ...]
    constraints: tuple[str, ...] = ()
    prereleases: bool = False
    early: tuple[str, ...] | None = None
    dependencies: bool = True
    lowest: bool = False
    overrides: tuple[str, ...] = ()
    excluded: tuple[str, ...] = ()
    preferred: tuple[tuple[str, str], ...] = ()
    named: tuple[tuple[str, str], ...] = ()
    elsewhere: tuple[str, ...] = ()
    links: tuple[Path, ...] = ()
    authorities: Path | None = None
    as_of: str = ""
    dates: tuple[tuple[str, str], ...] = ()
    soon: str = ""

    def only(self, *lines: str) -> ResolveRequest:
        """Return the request for these lines, regardless of what they require, without bounds and preferences."""
        return replace(self, lines=lines, constraints=(), overrides=(), dependencies=False, preferred=(), named=())

    def dated(self, *names: str, as_of: str = "") -> ResolveRequest:
        """Return the request with this day for the named packages; "" for no day."""
        return replace(self, dates=tuple({**dict(self.dates), **dict.fromkeys(names, as_of)}.items()))


@dataclass(frozen=True)
class LockedPackage:
    """Hold one package of a lock; ``size_bytes`` is None and ``uploaded`` "" if the index does not show it."""

    name: str
    version: str
    sha256: tuple[str, ...] = ()
    size_bytes: int | None = None
    uploaded: str = ""
    numpy_1: bool = False  # its wheel was compiled for NumPy 1, and what it requires admits any newer one


@dataclass(frozen=True)
class Lock:
    """Hold versions that resolve together.

    Attributes:
        from_source: names of packages without a wheel, which pip builds. lacking: each as a requirement.
        later: packages for which the request's day was lifted; "*" for all.
        unfit: packages whose wheels of the day do not fit another's, which is from source, or of another day.
    """

    packages: tuple[LockedPackage, ...]
    from_source: tuple[str, ...] = ()
    lacking: tuple[str, ...] = ()
    later: tuple[str, ...] = ()
    unfit: tuple[str, ...] = ()


class Unsatisfiable(NamedTuple):
    """Hold the resolver's reason why no versions fit together.

    Attributes:
        no_package, no_version: name of a package that no index has at all, or not in a requested version.
        filtered: packages whose day excludes a release that others require.
        no_wheel: a release without a wheel, of a package whose wheels also do not fit; pip may build it.
    """

    cause: str
    no_package: str | None = None
    no_version: str | None = None
    filtered: tuple[str, ...] = ()
    no_wheel: str = ""

    @property
    def name(self) -> str:
        """Return the name of the package that no index has, at all or in a version; "" without one."""
        return canonicalize_name(self.no_package or self.no_version or "")

    @property
    def named(self) -> set[str]:
        """Return the words of the explanation that may be names of packages."""
        return set(map(canonicalize_name, re.findall(r"[A-Za-z][\w.-]*\w", self.cause)))

    @property
    def requiring(self) -> set[str]:
        """Return the packages that the explanation names as dependents: ``x`` of ``x==1 depends on y<2``."""
        return set(map(canonicalize_name, _DEPENDENT.findall(self.cause)))


class Unreachable(NamedTuple):
    """Hold the reason why nothing is known."""

    reason: str


@dataclass(frozen=True)
class SourceTexts:
    """Hold a source's paths below its first folder, and the texts of the files that decide how it is built."""

    names: tuple[str, ...]
    texts: dict[str, str]
    version: str = ""


class LackedNames(NamedTuple):
    """Hold the names that a wheel lacks, the newest older release with all, the next release or "", and its imports."""

    names: tuple[str, ...]
    newest: str
    below: str
    imports: tuple[str, ...]


Answer = Lock | Unsatisfiable | Unreachable
