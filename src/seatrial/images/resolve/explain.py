"""Explain what uv found of a project's lines: bounded, at odds with each other, or not judged; and what would fit."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import replace

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name
from packaging.version import Version

from seatrial.errors import ConfigError
from seatrial.images.requirements.pip_format import Needs, Requirements, canonical_name, parsed
from seatrial.images.resolve.answers import Lock, ResolveRequest, Unreachable, Unsatisfiable
from seatrial.images.resolve.edits import place_of, written
from seatrial.images.resolve.framework import PACKAGES, is_for, public
from seatrial.images.resolve.uv import UvResolver, pinned
from seatrial.stack.facts import wheels
from seatrial.stack.resolve import PYTHONS

#: Most runs of uv in search of releases that fit.
_MOST_ROUNDS = 12


def requiring(cause: str) -> set[str]:
    """Return the packages that uv's explanation names as dependents: ``x`` of ``x==1 depends on y<2``."""
    return set(map(canonicalize_name, re.findall(r"([A-Za-z][\w.-]*\w)(?:==\S+)? depends? on", cause)))


def wrong_guess(answer: Unsatisfiable, needs: Needs) -> str | None:
    """Return the guess that the answer is about, or None."""
    return next((name for name in needs.guessed if name in {answer.no_package, *answer.named}), None)


def bounded(found: Requirements) -> dict[str, str]:
    """Map canonical names to lines of packages with a version, except known releases of frameworks."""
    bounded: dict[str, str] = {}
    for line in (*found.constraints, *found.lines):
        requirement = parsed(line)
        if requirement is None or requirement.url or not any(is_for(line, python) for python in PYTHONS):
            continue
        name = canonicalize_name(requirement.name)
        framework = PACKAGES.get(name)
        specifier, _ = public(requirement)
        if framework == name and any(specifier.contains(wheel.version) for wheel in wheels(framework)):
            continue
        if any(each.operator != "!=" for each in specifier):
            bounded[name] = line.partition(" --")[0]
    return bounded


def unchecked(answer: Unreachable, python: str, bounded: Mapping[str, str]) -> tuple[str, ...]:
    """Return the warning that versions were not checked, with the first lines that may need an older Python."""
    lines = [line for line in bounded.values() if re.search(r"[=~]=|<", line.replace(">=", ""))]
    listed = ", ".join(lines[:3]) + (f" and {len(lines) - 3} more" if len(lines) > 3 else "")
    unknown = f"whether Python {python} has {listed}" if lines else "which releases fit together"
    return (f"{answer.reason}: {unknown} was not checked",)


def contradiction(resolver: UvResolver, answer: Unsatisfiable, request: ResolveRequest, needs: Needs) -> ConfigError:
    """Name the lines that exclude each other, with their places, whose they are, and releases that fit."""
    involved = _involved(answer, (*request.lines, *request.constraints))
    listed = "; ".join(f"{line} ({_place_of(line, needs)})" for line in involved[:4])
    change = f"change one of these versions in {needs.source}"
    if needs.source == "the imports":
        change = "write requirements.txt with versions that fit"
    elif dead := re.search(r"\b([\w.-]+)==([\w.]+) has no wheels with a matching", answer.cause):
        change = written([f"{dead[1]}>={dead[2]}"], needs)
    return ConfigError(
        f"the requirements contradict each other on Python {request.python}" + (f": {listed}" if listed else ""),
        cause=answer.cause,
        run=f"{change}, or name an image that has them: seatrial run --image IMAGE …",
        edits=lambda: _fitting(resolver, answer, request),
    )


def _fitting(resolver: UvResolver, answer: Unsatisfiable, request: ResolveRequest) -> list[str]:
    """Open the pinned lines that contradict each other until uv finds releases of all packages; return the changed.

    uv prefers the pinned release of an opened line, then releases of the same major version.
    """
    opened = dict[str, str]()
    for _ in range(_MOST_ROUNDS):
        named = [line for line in _involved(answer, request.lines) if canonical_name(line) not in PACKAGES]
        further = {line: bound for line in named if (bound := _opened(line, opened.get(line))) is not None}
        if not further:
            break
        opened |= further
        pins = dict(pinned(opened, request.python))
        lines = tuple(opened.get(line, line) for line in request.lines)
        tried = resolver.resolve(replace(request, lines=lines, preferred=tuple(pins.items())))
        if isinstance(tried, Lock):
            found = {str(canonicalize_name(each.name)): each.version for each in tried.packages}
            names = dict.fromkeys(canonical_name(line) or "" for line in opened)
            return [f"{name}=={found[name]}" for name in names if found.get(name, pins.get(name)) != pins.get(name)]
        if not isinstance(tried, Unsatisfiable):
            break
        answer = tried
    return []


def _opened(line: str, before: str | None) -> str | None:
    """Return ``numpy>=1.18,<2`` of ``numpy==1.18``, then ``numpy>=1.18``, then ``numpy``; None if it is that open."""
    requirement = Requirement(line)
    extras = f"[{','.join(sorted(requirement.extras))}]" if requirement.extras else ""
    name, least = requirement.name + extras, [Version(at) for _, at in pinned([line], "3.11")]
    ways = [f"{name}>={each},<{each.major + 1}" for each in least] + [f"{name}>={each}" for each in least] + [name]
    return next(iter(ways[ways.index(before) + 1 :] if before in ways else ways if requirement.specifier else ()), None)


def _involved(answer: Unsatisfiable, lines: Iterable[str]) -> list[str]:
    """Return the lines of packages that uv's explanation names."""
    return [*dict.fromkeys(line for line in lines if canonicalize_name(Requirement(line).name) in answer.named)]


def _place_of(line: str, needs: Needs) -> str:
    """Return ``requirements.txt:4`` of a line of the project; of another, why it is there."""
    wanted = Requirement(line)
    name = canonicalize_name(wanted.name)
    own = {str(each.specifier) for each in needs.requirements.of(name, constraints=False)}
    if needs.project is None or not own:
        return "seatrial's choice" if PACKAGES.get(name) else "imported"
    found = place_of(line, needs)
    place = f"{found.file}:{found.line}" if found else needs.source
    return place if str(wanted.specifier) in own or not PACKAGES.get(name) else f"{place}; the version is seatrial's"
