"""Find the Python that has all packages of a list, by resolving it for one Python after the other; lock the list."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TypeVar

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from seatrial.errors import ConfigError, GpuContractError
from seatrial.images.dockerfile.layer_program import FRAMEWORK
from seatrial.images.requirements.imports import elsewhere
from seatrial.images.requirements.pip_format import Needs, Requirements, canonical_name, parsed
from seatrial.images.resolve.framework import PACKAGES, Resolved, framework_place, public
from seatrial.images.resolve.indexes import index_sources
from seatrial.images.resolve.lock import OF_TORCH, Locked, bare, lock_packages
from seatrial.images.resolve.uv import Answer, Lock, PackageResolver, ResolveRequest, Unreachable, Unsatisfiable
from seatrial.images.sources import wheels_of
from seatrial.job.model import Job
from seatrial.job.plan import Choice
from seatrial.stack.facts import wheels
from seatrial.stack.resolve import PYTHONS
from seatrial.system.project_files import is_there, read_text

#: A wheel is unpacked to about three times its size (torch 2.13, numpy, scipy).
_UNPACKED = 3

Base = TypeVar("Base")


@dataclass(frozen=True)
class Checked:
    """Hold the result; without a lock nothing was checked.

    Attributes:
        locked: what is installed by hash; None if pip resolves everything.
    """

    lock: Lock | None = None
    locked: Locked | None = None
    choices: tuple[Choice, ...] = ()
    warnings: tuple[str, ...] = ()

    @property
    def names(self) -> tuple[str, ...]:
        """All packages of the lock."""
        return tuple(each.name for each in self.lock.packages) if self.lock else ()

    @property
    def packages_bytes(self) -> int:
        """Estimate the unpacked size of all packages but the framework's."""
        packages = self.lock.packages if self.lock else ()
        return sum(each.size_bytes or 0 for each in packages if not FRAMEWORK.match(each.name)) * _UNPACKED


def resolve_packages(
    resolver: PackageResolver | None,
    job: Job,
    needs: Needs,
    barred: Mapping[str, str],
    choose: Callable[[Mapping[str, str], Needs], tuple[Base, Resolved]],
    *,
    own_base: bool,
) -> tuple[Base, Resolved, Checked, Needs]:
    """Choose a Python that has wheels of all packages, else the one where pip builds the fewest.

    Args:
        barred: Python → why it is out of the question, as a sentence without an end.
        choose: returns base image and frameworks for the best Python that is not barred.

    Returns:
        (base image, frameworks, what was checked, the needs without wrong guesses and with a framework's release that
        the other packages demand)
        own_base: the image is the user's own, whose pip may know other indexes: report, do not refuse.

    Raises ConfigError: an index lacks a package or a version, or versions contradict each other.
    """
    base, resolved = choose(barred, needs)
    if resolver is not None:
        base, resolved, needs = _adapted(resolver, job, needs, barred, choose, base, resolved)
    bounded = _bounded(needs.requirements)
    if resolver is None or (request := _request(resolver, job, resolved)) is None:
        return base, resolved, Checked(), needs
    if not bounded:
        answer = _resolve(resolver, request)
        if isinstance(answer, Unsatisfiable) and not (own_base or answer.no_package or answer.no_version):
            raise _contradiction(answer, request, needs)
        return base, resolved, _locked(resolver, job, resolved, answer, bounded), needs
    return *_python_with_wheels(resolver, job, needs, barred, choose, (base, resolved), own_base=own_base), needs


def _python_with_wheels(
    resolver: PackageResolver,
    job: Job,
    needs: Needs,
    barred: Mapping[str, str],
    choose: Callable[[Mapping[str, str], Needs], tuple[Base, Resolved]],
    first: tuple[Base, Resolved],
    *,
    own_base: bool,
) -> tuple[Base, Resolved, Checked]:
    """Try one Python after the other until one has a wheel of each package. The arguments are resolve_packages'."""
    (base, resolved), bounded = first, _bounded(needs.requirements)
    tried: dict[str, str] = {}
    usable: list[tuple[Base, Resolved, Lock]] = []
    refusal: ConfigError | None = None
    while True:
        request = _request(resolver, job, resolved)
        assert request is not None
        answer = _resolve(resolver, request)
        if isinstance(answer, Unreachable):
            if usable:
                break
            return base, resolved, Checked(warnings=_unchecked(answer, request, bounded))
        place = needs.source
        if isinstance(answer, Lock):
            usable.append((base, resolved, answer))
            if not answer.from_source:
                break
            tried[request.python] = (
                f"{_named(answer.from_source[0], bounded, place)} has no wheel for Python {request.python}"
            )
        else:
            if not own_base:
                _refuse_missing(answer, resolver, request, bounded, place)
            tried[request.python] = f"the packages do not fit together on Python {request.python}: {answer.cause}"
            refusal = refusal or _contradiction(answer, request, needs)
        if own_base:
            note = f"{tried[request.python]}, and the base image has Python {request.python}"
            checked = _locked(resolver, job, resolved, answer, bounded)
            return base, resolved, replace(checked, warnings=(note,))
        try:
            base, resolved = choose({**barred, **tried}, needs)
        except (ConfigError, GpuContractError):
            break
    if not usable:
        assert refusal is not None
        raise refusal
    best = min(usable, key=lambda each: len(each[2].from_source))
    chosen = best[1].stack.python
    base, resolved = choose({**barred, **{python: why for python, why in tried.items() if python != chosen}}, needs)
    return base, resolved, _locked(resolver, job, resolved, best[2], bounded)


def _adapted(
    resolver: PackageResolver,
    job: Job,
    needs: Needs,
    barred: Mapping[str, str],
    choose: Callable[[Mapping[str, str], Needs], tuple[Base, Resolved]],
    base: Base,
    resolved: Resolved,
) -> tuple[Base, Resolved, Needs]:
    """Leave out guesses that do not fit, and take the release of a framework that the other packages demand.

    What the project left open is ours to choose, and no contradiction of its own.
    """
    for _ in range(len(needs.guessed) + 2):
        request = _request(resolver, job, resolved)
        answer = _resolve(resolver, request) if request is not None else None
        if request is None or not isinstance(answer, Unsatisfiable):
            break
        if (wrong := _wrong_guess(answer, needs)) is not None:
            why = "the package index has none" if answer.no_package else "the package of this name is another's"
            changed = needs.without_guess(wrong, why)
        elif (release := _demanded(resolver, request, needs)) is not None:
            changed = needs.plus(Requirements(constraints=(release,)))
        else:
            break
        try:
            base, resolved = choose(barred, changed)
        except (ConfigError, GpuContractError):
            break
        needs = changed
    return base, resolved, needs


def _wrong_guess(answer: Unsatisfiable, needs: Needs) -> str | None:
    named = set(map(canonicalize_name, re.findall(r"[A-Za-z][\w.-]*\w", answer.cause)))
    return next((name for name in needs.guessed if name in {answer.no_package or "", *named}), None)


def _demanded(resolver: PackageResolver, request: ResolveRequest, needs: Needs) -> str | None:
    """Return ``torch==2.4.0``: the framework's newest release that fits the other packages; None: there is none."""
    place = framework_place(Requirements(lines=request.lines))
    if place is None:
        return None
    name = canonicalize_name(Requirement(request.lines[place]).name)
    if name != PACKAGES.get(name):
        return None
    own = bare((line for line in needs.requirements.lines if canonical_name(line) == name), builds=False)
    lines = (*request.lines[:place], *(own or (name,)), *request.lines[place + 1 :])
    answer = resolver.resolve(replace(request, lines=lines))
    packages = answer.packages if isinstance(answer, Lock) else ()
    found = next((f"{name}=={each.version}" for each in packages if canonicalize_name(each.name) == name), None)
    return found if found not in request.lines else None


def _bounded(found: Requirements) -> dict[str, str]:
    """Return canonical name → line of the packages with a version, known releases of frameworks left out."""
    bounded: dict[str, str] = {}
    for line in (*found.constraints, *found.lines):
        requirement = parsed(line)
        if requirement is None or requirement.url or not _applies(requirement):
            continue
        name = canonicalize_name(requirement.name)
        framework = PACKAGES.get(name)
        specifier, _ = public(requirement)
        if framework == name and any(specifier.contains(wheel.version) for wheel in wheels(framework)):
            continue
        if any(each.operator != "!=" for each in specifier):
            bounded[name] = line.partition(" --")[0]
    return bounded


def _applies(requirement: Requirement) -> bool:
    """Return True if the marker is true for some Python on Linux."""
    on_linux = {"sys_platform": "linux", "platform_system": "Linux", "os_name": "posix", "extra": ""}
    marker = requirement.marker
    versions = ({"python_version": python, "python_full_version": f"{python}.0"} for python in PYTHONS)
    return marker is None or any(marker.evaluate({**on_linux, **version}) for version in versions)


def _request(resolver: PackageResolver, job: Job, resolved: Resolved) -> ResolveRequest | None:
    """Return the request; None without an index or a known Python, or for a list with its own hashes."""
    found, options = resolved.requirements, job.image
    sources = index_sources(options, found, resolver.host)
    links = wheels_of(job)
    hashed = any("--hash" in line for line in found.lines)
    if hashed or not resolved.stack.python or not (sources or links):
        return None
    bundle = job.project / options.ca_bundle if options.ca_bundle else resolver.host.env.get("PIP_CERT")
    return ResolveRequest(
        lines=bare(found.lines, builds=False),
        constraints=bare(found.constraints, builds=False),
        python=resolved.stack.python,
        sources=sources,
        prereleases="--pre" in found.options,
        links=links,
        authorities=Path(bundle) if bundle else None,
    )


def _resolve(resolver: PackageResolver, request: ResolveRequest) -> Answer:
    answer = resolver.resolve(request)
    if isinstance(answer, Unsatisfiable) and (answer.no_package or answer.no_version) in OF_TORCH:
        return resolver.resolve(replace(request, excluded=OF_TORCH))  # a build that is on PyTorch's index alone
    return answer


def _unchecked(answer: Unreachable, request: ResolveRequest, bounded: Mapping[str, str]) -> tuple[str, ...]:
    """Name the first lines that exclude newer releases, which an old Python may need."""
    lines = [line for line in bounded.values() if re.search(r"[=~]=|<", line.replace(">=", ""))]
    listed = ", ".join(lines[:3]) + (f" and {len(lines) - 3} more" if len(lines) > 3 else "")
    return (f"{answer.reason}: whether Python {request.python} has {listed} was not checked",) if lines else ()


def _named(package: str, bounded: Mapping[str, str], place: str) -> str:
    line = bounded.get(canonicalize_name(package))
    return f"{line} ({place})" if line else f"{package} (which others need)"


def _contradiction(answer: Unsatisfiable, request: ResolveRequest, needs: Needs) -> ConfigError:
    """Name the lines that exclude each other, with their places, and whose they are."""
    named = set(map(canonicalize_name, re.findall(r"[A-Za-z][\w.-]*\w", answer.cause)))
    lines = [*request.lines, *request.constraints]
    involved = dict.fromkeys(line for line in lines if canonicalize_name(Requirement(line).name) in named)
    listed = "; ".join(f"{line} ({_place_of(line, needs)})" for line in list(involved)[:4])
    ours = needs.source == "the imports"
    change = (
        "write requirements.txt with versions that fit" if ours else f"change one of these versions in {needs.source}"
    )
    return ConfigError(
        f"the requirements contradict each other on Python {request.python}" + (f": {listed}" if listed else ""),
        cause=answer.cause,
        run=f"{change}, or name an image that has them: seatrial run --image IMAGE …",
    )


def _place_of(line: str, needs: Needs) -> str:
    """Return ``requirements.txt:4`` of a line of the project; of another, why it is there."""
    wanted = Requirement(line)
    name = canonicalize_name(wanted.name)
    own = {str(parsed(each).specifier) for each in needs.requirements.lines if canonical_name(each) == name}  # type: ignore[union-attr]
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


def _refuse_missing(
    answer: Unsatisfiable, resolver: PackageResolver, request: ResolveRequest, bounded: Mapping[str, str], place: str
) -> None:
    """Raise ConfigError if no index has a listed package or its version."""
    name = canonicalize_name(answer.no_package or answer.no_version or "")
    if name not in bounded:
        return
    line = _named(name, bounded, place)
    if answer.no_package:
        raise ConfigError(
            f"{line}: the package index has no package {name}",
            cause="the name is wrong, or it is on another index",
            run=f"pip index versions {name}   # or name its index in seatrial.toml: [image] index_url",
        )
    if other := elsewhere(name):
        raise ConfigError(
            f"{line}: the package index has no such version",
            cause=f"{name} on the index is another project",
            run=f"write {other} in {place}",
        )
    newest = resolver.resolve(replace(request, lines=(name,), constraints=(), dependencies=False))
    version = newest.packages[0].version if isinstance(newest, Lock) and newest.packages else None
    raise ConfigError(
        f"{line}: the package index has no such version",
        cause=f"the newest is {version}" if version else None,
        run=f"change the version, to {name}=={version} for example" if version else f"pip index versions {name}",
    )


def _locked(
    resolver: PackageResolver, job: Job, resolved: Resolved, lock: Answer, bounded: Mapping[str, str]
) -> Checked:
    """Lock what was answered, and name what has no hash."""
    request = _request(resolver, job, resolved)
    if request is None or not isinstance(lock, Lock):
        return Checked()
    locked = lock_packages(resolver, request, resolved, lock, job.image.base)
    choices = []
    if lock.from_source:
        built = [bounded.get(canonicalize_name(name), name) for name in lock.from_source]
        reason = "the index has no wheel of them: pip builds them, which takes a compiler unless they are plain Python"
        choices.append(Choice(what="from source", value=", ".join(built), reason=reason))
    if locked is None:
        reason = "the list's options or the base image decide which files pip takes"
        choices.append(Choice(what="not locked", value="all packages", reason=reason))
        return Checked(lock, None, tuple(choices))
    place = framework_place(resolved.requirements)
    framework = () if place is None or locked.framework else resolved.requirements.lines[place : place + 1]
    if framework or locked.rest:
        reason = "no hash is known on this machine: pip resolves them in the build"
        choices.append(Choice(what="not locked", value=", ".join((*framework, *locked.rest)), reason=reason))
    return Checked(lock, locked, tuple(choices))
