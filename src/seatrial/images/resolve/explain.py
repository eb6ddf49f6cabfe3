"""Explain what uv found of a project's lines: bounded, at odds with each other, or not judged; and what would fit."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import replace

from packaging.requirements import Requirement
from packaging.specifiers import SpecifierSet
from packaging.utils import canonicalize_name
from packaging.version import Version

from seatrial.errors import ConfigError
from seatrial.images.requirements.imports import elsewhere, provides
from seatrial.images.requirements.named_wheels import compiled_against
from seatrial.images.requirements.pip_format import Needs, Requirements, canonical_name, is_for, parsed
from seatrial.images.resolve.answers import Answer, Lock, ResolveRequest, Unreachable, Unsatisfiable
from seatrial.images.resolve.edits import GONE, LOCK_OF, place_of, written
from seatrial.images.resolve.framework import PACKAGES, framework_place, public
from seatrial.images.resolve.uv import UvResolver
from seatrial.images.resolve.uv_texts import pinned
from seatrial.stack.facts import wheels
from seatrial.stack.resolve import PYTHONS
from seatrial.stack.rules import PARTNERS
from seatrial.system.text import first_of


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
    unknown = f"whether Python {python} has {first_of(lines, 3)}" if lines else "which releases fit together"
    return (f"{answer.reason}: {unknown} was not checked",)


def contradiction(resolver: UvResolver, answer: Unsatisfiable, request: ResolveRequest, needs: Needs) -> ConfigError:
    """Name the lines that exclude each other, with their places, whose they are, and releases that fit."""
    involved = _involved(answer, (*request.lines, *request.constraints))
    listed = "; ".join(f"{line} ({_place_of(line, needs)})" for line in involved[:4])
    if "requires Python" in answer.cause and needs.python:
        place = place_of(Requirement("python"), needs)
        listed += f"; Python {needs.python} ({place[0] if place else 'the project'})"
    change = f"change one of these versions in {needs.source}"
    if needs.source == "the imports":
        change = "write requirements.txt with versions that fit"
    message = f"the requirements contradict each other on Python {request.python}" + (f": {listed}" if listed else "")
    run = f"{change}, or name an image that has them: seatrial run --image IMAGE …"
    return ConfigError(message, cause=answer.cause, run=run, edits=lambda: _fitting(resolver, answer, request, needs))


def not_there(
    resolver: UvResolver, answer: Unsatisfiable, request: ResolveRequest, needs: Needs, line: str
) -> ConfigError:
    """Say that no index has the package of a line of the project, or its version, and what to write instead."""
    name = answer.name
    if answer.no_package and request.links and not any(each.kind == "index" for each in request.sources):
        folder = request.links[0].parent.name
        message = f"{line}: no wheel of {name} is in {folder}/, and no index may be used"
        return ConfigError(message, run=f"pip wheel --no-deps {name} -w {folder}")
    if answer.no_package:
        return ConfigError(
            f"{line}: the package index has no package {name}",
            cause="the name is wrong, or it is on another index",
            run=f"pip index versions {name}   # or name its index in seatrial.toml: [image] index_url",
            edits=lambda: [] if any(provides(name, each, each) for each in needs.imports) else [name + GONE],
        )
    message = f"{line}: the package index has no such version"
    if other := elsewhere(name):
        cause = f"{name} on the index belongs to another project"
        edits = [f"{name} @ {other}"] if "://" in other else []
        return ConfigError(message, cause=cause, run=written([other], needs), edits=lambda: edits)
    wanted = re.match(r"[^=]*===?\s*v?(\d+(?:\.\d+)*)", line)
    nearby = (f"{name}=={wanted[1]}.*", f"{name}<={wanted[1]}") if wanted else ()  # 4.27.0, of 4.27.0.dev0
    if (newest := _newest(resolver, request, name)) is None:
        return ConfigError(message, run=f"pip index versions {name}")
    lines = tuple(name if canonical_name(each) == name else each for each in request.lines)
    fitting = resolver.resolve(replace(request, lines=lines))  # jax==0.4.30 decides about jaxlib
    fitted = [each.version for each in fitting.packages if each.name == name] if isinstance(fitting, Lock) else []
    pin = f"{name}=={next(filter(None, (*(_newest(resolver, request, line) for line in nearby), *fitted)), newest)}"
    run = f"change the version, to {pin} for example"
    return ConfigError(message, cause=f"the newest is {newest}", run=run, edits=lambda: [pin])


def _newest(resolver: UvResolver, request: ResolveRequest, line: str) -> str | None:
    """Return the newest release that the line admits, without its requirements."""
    answer = resolver.resolve(request.only(line))
    return answer.packages[0].version if isinstance(answer, Lock) and answer.packages else None


def _fitting(resolver: UvResolver, answer: Unsatisfiable, request: ResolveRequest, needs: Needs) -> list[str]:
    """Loosen conflicting lines of files until uv, preferring pinned releases, has a solution; return the changed."""
    tried: Answer = answer
    opened, pins, older = dict[str, str](), dict[str, str](), False
    first = framework_place(Requirements(lines=request.lines))
    kept = {line for line in request.lines if re.search(r"[\w\]]<[\d.]+$", line) and not _is_listed(line, needs)}
    while not isinstance(tried, Unreachable):
        if isinstance(tried, Lock):  # of an open line without a wheel the release is unknown: open it further
            named = [line for line in opened if canonical_name(line) in tried.from_source]
        else:
            named = [line for line in _involved(tried, request.lines) if line not in kept]
            named = [line for line in named if first is None or line != request.lines[first]] or named
        ways = {line: _opened(line, request.python, needs, again=line in opened) for line in named}
        if all(way in (line, opened.get(line)) for line, way in ways.items()):
            if older or not isinstance(tried, Unsatisfiable):
                break
            older, ways = True, {line: f"{name}<{at}" for line in named for name, at in pinned([line], request.python)}
        opened |= ways
        pins = dict(pinned(opened, request.python))
        lines = tuple(opened.get(line, line) for line in request.lines)
        tried = resolver.resolve(replace(request, lines=lines, preferred=tuple(pins.items())))
    names = {canonical_name(line) for line in opened if Requirement(line).specifier}  # an open one follows
    found = [each for each in tried.packages if each.name in names] if isinstance(tried, Lock) else []
    listed = {*pinned(opened, request.python)}  # a list may pin two releases of one package
    edits = [f"{a.name}=={a.version}" for a in found if {at for name, at in listed if name == a.name} != {a.version}]
    idle = {canonical_name(line) for line in _involved(answer, request.lines)}
    idle -= {name for name in idle if name and any(provides(name, each, each) for each in needs.imports)}
    kept_lines = tuple(line for line in request.lines if canonical_name(line) not in idle)
    if edits or not idle or not isinstance(resolver.resolve(replace(request, lines=kept_lines)), Lock):
        return edits
    return [f"{name}{GONE}" for name in sorted(filter(None, idle))]


def _is_listed(line: str, needs: Needs) -> bool:
    """Return True if a file of the project has the line's package with these versions."""
    place = place_of(wanted := Requirement(line), needs)
    forms = (rf"(?<![\w.]){re.escape(each.version)}(?!\w)" for each in wanted.specifier)
    return place is not None and all(re.search(form, place[2]["rest"]) for form in forms)


def _opened(line: str, python: str, needs: Needs, *, again: bool) -> str:
    """Return ``numpy>=1.18,<2`` for ``numpy==1.18``, ``~=`` for a framework; again: the name, ``>=`` for an import."""
    opened = Requirement(line)
    form = "~={0}" if opened.name in PACKAGES else ">={0},<{1}"
    if again and any(provides(opened.name, each, each) for each in needs.imports) and _is_listed(line, needs):
        form, again = ">={0}", opened.name in PACKAGES
    bounds = [] if again else [form.format(at, Version(at).major + 1) for _, at in pinned([line], python)]
    opened.specifier = SpecifierSet(",".join(bounds))
    return str(opened)


def _involved(answer: Unsatisfiable, lines: Iterable[str]) -> list[str]:
    """Return the lines of packages that uv's explanation names, open ones only where nothing bounds the package."""
    found = {line: each for line in lines if canonicalize_name((each := Requirement(line)).name) in answer.named}
    bounded = {each.name for each in found.values() if each.specifier}
    return [line for line, each in found.items() if each.specifier or each.name not in bounded]


def _place_of(line: str, needs: Needs) -> str:
    """Return ``requirements.txt:4`` of a line of the project; of another, why it is there."""
    wanted = Requirement(line)
    name = canonicalize_name(wanted.name)
    listed = needs.requirements.of(name, constraints=False)
    own = {str(each.specifier) for each in listed}
    if wheel := next((each for each in needs.requirements.lines if line in compiled_against([each])), None):
        return f"{canonical_name(wheel)}'s wheel is compiled against it"
    if needs.project is None or not own:
        return "seatrial's choice" if PACKAGES.get(name) else "imported"
    place = (place_of(wanted, needs) or (needs.source,))[0]
    ours = str(wanted.specifier) not in own and name in (*PACKAGES, *PARTNERS["torch"])
    added = ",".join(sorted(wanted.extras.difference(*(each.extras for each in listed))))
    whose = (LOCK_OF.search(needs.reason) or ("", "seatrial"))[1]
    note = f"; the version is {whose}'s" if ours else f"; [{added}] is seatrial's" if added else ""
    return place + note
