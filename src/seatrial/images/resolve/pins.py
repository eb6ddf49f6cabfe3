"""Pins: requirements that not every release meets, and the Pythons that those which do have wheels for."""

from __future__ import annotations

import platform
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Literal

from packaging.markers import Marker, UndefinedComparison, UndefinedEnvironmentName
from packaging.specifiers import SpecifierSet
from packaging.utils import canonicalize_name
from packaging.version import InvalidVersion, Version

from seatrial.images.requirements.pip_format import Requirements, parsed
from seatrial.stack.python_ranges import brought, known_range
from seatrial.stack.resolve import PYTHONS

#: Operators by which a requirement keeps newer releases out.
_UPPER = {"==", "===", "<", "<=", "~="}

#: Pins that are looked up; a frozen environment has 200.
MOST_PINS = 200

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
    def shown(self) -> str:
        return f"{self.line} ({f'which {self.needed_by} needs' if self.needed_by else self.place})"

    @property
    def public(self) -> SpecifierSet:
        """Its specifier without the builds that it names: the tables hold releases."""
        return SpecifierSet(",".join(f"{each.operator}{each.version.partition('+')[0]}" for each in self.specifier))

    @property
    def is_bounded(self) -> bool:
        """Return True if it keeps newer releases out, so that the resolver must check it."""
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
        specifier, shown = requirement.specifier, line.partition(" --")[0]
        for more in constraints.get(name, ()):
            specifier &= more
            shown = f"{requirement.name}{specifier}"
        if any(each.operator != "!=" for each in specifier):
            local = next((each.version.partition("+")[2] for each in specifier if "+" in each.version), None)
            pin = Pin(shown, place, name, specifier, requirement.marker, local)
            if any(map(pin.applies, PYTHONS)):
                pins.append(pin)
    return tuple([*_brought_by(pins), *pins][:MOST_PINS])


def _brought_by(pins: list[Pin]) -> Iterator[Pin]:
    """Add requirements of pinned releases: old transformers, pure Python, needs tokenizers, which is not."""
    named = {pin.name for pin in pins}
    for pin in pins:
        requirement = parsed(needs) if (needs := brought(pin.name, pin.public)) else None
        if requirement is not None and requirement.name not in named:
            specifier = requirement.specifier
            yield Pin(str(requirement), pin.place, requirement.name, specifier, pin.marker, needed_by=pin.line)


def table_ways(pin: Pin) -> Mapping[str, Way | None] | None:
    """Return Python → how pip gets the pin there, from the tables; None if they do not know it."""
    known = known_range(pin.name, pin.public)
    if known is None:
        return None
    low, high = known
    above: Way | None = "compiled" if pin.name in _WITH_SOURCES else None
    return {
        python: "wheel" if low <= Version(python) <= high else above if Version(python) > high else None
        for python in PYTHONS
    }
