"""Explain what uv found of a project's lines: bounded, at odds with each other, or not judged; and what would fit."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import replace

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from seatrial.errors import ConfigError
from seatrial.images.requirements.pip_format import Needs, Requirements, canonical_name, parsed
from seatrial.images.resolve.answers import Lock, ResolveRequest, Unreachable, Unsatisfiable
from seatrial.images.resolve.framework import PACKAGES, is_for, public, written
from seatrial.images.resolve.uv import UvResolver
from seatrial.stack.facts import wheels
from seatrial.stack.resolve import PYTHONS
from seatrial.system.project_files import is_there, read_text

#: Lines opened one by one, and rounds, in search of releases that fit.
_MOST_OPENED = 3


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
    if needs.source == "the imports":
        change = "write requirements.txt with versions that fit"
    elif dead := re.search(r"\b([\w.-]+)==([\w.]+) has no wheels with a matching", answer.cause):
        change = written([f"{dead[1]}>={dead[2]}"], needs.source, needs)
    else:
        change = _fitting(resolver, answer, request, needs) or f"change one of these versions in {needs.source}"
    return ConfigError(
        f"the requirements contradict each other on Python {request.python}" + (f": {listed}" if listed else ""),
        cause=answer.cause,
        run=f"{change}, or name an image that has them: seatrial run --image IMAGE …",
    )


def _fitting(resolver: UvResolver, answer: Unsatisfiable, request: ResolveRequest, needs: Needs) -> str | None:
    """Return an edit of few pinned lines with which uv finds releases of all packages, or None."""
    opened = list[str]()
    for _ in range(_MOST_OPENED):
        found = [line for line in _involved(answer, request.lines) if "==" in line and line not in opened]
        own = [line for line in found if canonical_name(line) not in PACKAGES]
        for further in (*([line] for line in own[:_MOST_OPENED]), own):
            names = {canonicalize_name(Requirement(line).name) for line in (*opened, *further)}
            lines = tuple(name if (name := canonical_name(line) or "") in names else line for line in request.lines)
            tried = resolver.resolve(replace(request, lines=lines))
            if isinstance(tried, Lock):
                releases = {canonicalize_name(each.name): each.version for each in tried.packages}
                return written([f"{name}=={releases[name]}" for name in names & {*releases}], needs.source, needs)
        if not own or not isinstance(tried, Unsatisfiable):
            break
        opened, answer = [*opened, *own], tried
    return None


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
    of_a_line = re.compile(r"^[^#\w]*" + name.replace("-", "[-_.]+") + r"(?![\w.-])(.*)", re.IGNORECASE)
    versions = [each.version for each in wanted.specifier]
    places = []
    for source in dict.fromkeys((needs.source, "pyproject.toml", "setup.py", "setup.cfg")):
        if not is_there(needs.project / source):
            continue
        try:
            text = read_text(needs.project / source, inside=needs.project)
        except ConfigError:
            continue
        for number, each in enumerate(text.splitlines(), 1):
            if match := of_a_line.match(each):
                places.append((not all(version in match[1] for version in versions), f"{source}:{number}"))
    place = min(places, default=(False, needs.source), key=lambda each: each[0])[1]
    return place if str(wanted.specifier) in own or not PACKAGES.get(name) else f"{place}; the version is seatrial's"
