"""Pins: requirements that not every release meets, and the Pythons that those which do have wheels for."""

from __future__ import annotations

import platform
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import Literal

from packaging.markers import Marker, UndefinedComparison, UndefinedEnvironmentName
from packaging.specifiers import InvalidSpecifier, SpecifierSet
from packaging.tags import Tag, compatible_tags, cpython_tags
from packaging.utils import InvalidWheelFilename, canonicalize_name, parse_wheel_filename
from packaging.version import InvalidVersion, Version

from seatrial.images.requirements.pip_format import Requirements, parsed
from seatrial.stack.python_ranges import brought, known_range
from seatrial.stack.resolve import PYTHONS
from seatrial.system.package_index import Answer
from seatrial.system.package_page import IndexFile

#: Operators by which a requirement keeps newer releases out.
_UPPER = {"==", "===", "<", "<=", "~="}

#: Pins that are looked up; a frozen environment has 200.
MOST_PINS = 200

#: Debian 12, from which the base images are made, has glibc 2.36. Source: packages.debian.org/bookworm/libc6.
_GLIBC_MINOR = 36
#: Names that wheels had before PEP 600, and the glibc that each asks for.
_LEGACY = ("manylinux2014", "manylinux2010", "manylinux1")

#: Packages of the table that have source distributions as well, which pip takes on a newer Python.
_WITH_SOURCES = ("numpy", "scipy")

#: wheel: there is one. source: none of these releases has any, for no Python, so that pip builds it. compiled: others
#: have one, this Python has not. None: pip finds nothing.
Way = Literal["wheel", "source", "compiled"]


@dataclass(frozen=True)
class Pin:
    """One requirement that names versions.

    Attributes:
        line: as it is written. place: the file it is in, for sentences. local: build that it names, ``cu113``.
        needed_by: the line there that needs it, where it is not listed itself.
    """

    line: str
    place: str
    name: str
    specifier: SpecifierSet
    marker: Marker | None = None
    local: str | None = None
    needed_by: str | None = None

    @property
    def said(self) -> str:
        return f"{self.line} ({f'which {self.needed_by} needs' if self.needed_by else self.place})"

    @property
    def public(self) -> SpecifierSet:
        """Its specifier without the builds that it names: the tables hold releases."""
        return SpecifierSet(",".join(f"{each.operator}{each.version.partition('+')[0]}" for each in self.specifier))

    def matches(self, version: str) -> bool:
        """An exact pin takes pre-releases, as pip does."""
        try:
            return self.specifier.contains(version, prereleases=self.is_exact or None)
        except InvalidVersion:
            return False

    @property
    def is_exact(self) -> bool:
        return any(each.operator in ("==", "===") and not each.version.endswith(".*") for each in self.specifier)

    @property
    def is_bounded(self) -> bool:
        """It keeps newer releases out, which an index is asked about."""
        return any(each.operator in _UPPER for each in self.specifier)

    def applies(self, python: str) -> bool:
        """Its marker, for this Python on Linux."""
        if self.marker is None:
            return True
        environment = {
            "python_version": python,
            "python_full_version": f"{python}.0",
            "sys_platform": "linux",
            "platform_system": "Linux",
            "platform_machine": platform.machine(),
            "os_name": "posix",
            "implementation_name": "cpython",
            "platform_python_implementation": "CPython",
            "extra": "",
        }
        try:
            return self.marker.evaluate(environment)
        except (UndefinedComparison, UndefinedEnvironmentName, InvalidVersion):
            return True


def pins_of(found: Requirements, place: str) -> tuple[Pin, ...]:
    """The first MOST_PINS of them; constraints count where a line has the package."""
    constraints: dict[str, list[SpecifierSet]] = {}
    for line in found.constraints:
        requirement = parsed(line)
        if requirement is not None and requirement.marker is None:
            constraints.setdefault(canonicalize_name(requirement.name), []).append(requirement.specifier)
    pins = []
    for line in found.lines:
        requirement = parsed(line)
        if requirement is None or requirement.url:
            continue
        name = canonicalize_name(requirement.name)
        specifier, said = requirement.specifier, line.partition(" --")[0]
        for more in constraints.get(name, ()):
            specifier &= more
            said = f"{requirement.name}{specifier}"
        if any(each.operator != "!=" for each in specifier):
            local = next((each.version.partition("+")[2] for each in specifier if "+" in each.version), None)
            pin = Pin(said, place, name, specifier, requirement.marker, local)
            if any(map(pin.applies, PYTHONS)):
                pins.append(pin)
    return tuple([*_brought_by(pins), *pins][:MOST_PINS])


def _brought_by(pins: list[Pin]) -> Iterator[Pin]:
    """What pinned releases need of others: old transformers, pure Python, of tokenizers, which is not."""
    named = {pin.name for pin in pins}
    for pin in pins:
        requirement = parsed(needs) if (needs := brought(pin.name, pin.public)) else None
        if requirement is not None and requirement.name not in named:
            specifier = requirement.specifier
            yield Pin(str(requirement), pin.place, requirement.name, specifier, pin.marker, needed_by=pin.line)


def ways(pin: Pin, answer: Answer | None) -> Mapping[str, Way | None] | None:
    """Python → how pip gets the pin there; None: nothing is known of it."""
    matching = _matching(pin, answer)
    if matching is None:
        known = known_range(pin.name, pin.public)
        if known is None:
            return None
        low, high = known
        above: Way | None = "compiled" if pin.name in _WITH_SOURCES else None
        found: dict[str, Way | None] = {}
        for python in PYTHONS:
            version = Version(python)
            found[python] = "wheel" if low <= version <= high else above if version > high else None
        return found
    wheels_somewhere = any(file.is_wheel for files in matching for file in files)
    return {python: _way(matching, python, wheels_somewhere) for python in PYTHONS}


def has_wheel(files: Iterable[IndexFile], pythons: Iterable[str]) -> bool:
    """One of the files is a wheel for one of these Pythons."""
    wanted = list(pythons)
    return any(file.is_wheel and _fits(file, python) for file in files for python in wanted)


def size_bytes(pin: Pin, answer: Answer | None, python: str) -> int | None:
    """Of the file that pip would take; None where it is not known."""
    if answer is None or not pin.applies(python):
        return None
    versions = sorted(filter(pin.matches, answer.releases), key=Version, reverse=True)
    for version in versions:
        files = [file for file in answer.releases[version] if _fits(file, python)]
        for file in sorted(files, key=lambda each: not each.is_wheel):
            return file.size_bytes
    return None


def _matching(pin: Pin, answer: Answer | None) -> list[tuple[IndexFile, ...]] | None:
    """Files of each release that the pin admits; None where no index told."""
    if answer is None:
        return None
    found = [files for version, files in answer.releases.items() if pin.matches(version)]
    return found if found or answer.complete else None


def _way(releases: list[tuple[IndexFile, ...]], python: str, wheels_somewhere: bool) -> Way | None:
    fitting = [file for files in releases for file in files if _fits(file, python)]
    if any(file.is_wheel for file in fitting):
        return "wheel"
    if not fitting:
        return None
    return "compiled" if wheels_somewhere else "source"


def _fits(file: IndexFile, python: str) -> bool:
    if file.requires_python and not _admits(file.requires_python, python):
        return False
    return not file.is_wheel or not _tags_of(file.name).isdisjoint(_tags(python))


@lru_cache(maxsize=4096)
def _admits(requires_python: str, python: str) -> bool:
    try:
        return SpecifierSet(requires_python).contains(f"{python}.99")
    except InvalidSpecifier:  # pip takes such a file, too
        return True


@lru_cache(maxsize=4096)
def _tags_of(wheel: str) -> frozenset[Tag]:
    try:
        return parse_wheel_filename(wheel)[3]
    except (InvalidWheelFilename, InvalidVersion):
        return frozenset()


@lru_cache(maxsize=16)
def _tags(python: str) -> frozenset[Tag]:
    """What the official slim image of this Python takes on this machine's architecture."""
    major, minor = map(int, python.split("."))
    machine, interpreter = platform.machine(), f"cp{major}{minor}"
    platforms = [f"manylinux_2_{number}_{machine}" for number in range(_GLIBC_MINOR, 4, -1)]
    platforms += [f"{name}_{machine}" for name in (*_LEGACY, "linux")]
    return frozenset(
        [
            *cpython_tags((major, minor), [interpreter], platforms),
            *compatible_tags((major, minor), interpreter, platforms),
        ]
    )
