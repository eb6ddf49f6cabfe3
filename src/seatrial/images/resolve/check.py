"""Check a list of packages with the resolver: does the chosen Python have them all, and do they fit together?"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from seatrial.errors import ConfigError
from seatrial.images.dockerfile.layer_program import FRAMEWORK
from seatrial.images.requirements.imports import elsewhere
from seatrial.images.requirements.pip_format import Requirements, parsed
from seatrial.images.resolve.framework import Resolved
from seatrial.images.resolve.indexes import index_sources
from seatrial.images.resolve.pinned_pythons import Ways, in_tables
from seatrial.images.resolve.pins import Pin, Way
from seatrial.images.resolve.uv import Lock, PackageResolver, ResolveRequest, Unreachable, Unsatisfiable
from seatrial.job.model import Job
from seatrial.job.plan import Choice
from seatrial.stack.resolve import PYTHONS

#: A wheel is unpacked to about three times its size (torch 2.13, numpy, scipy).
_UNPACKED = 3

#: Packages with releases that only PyTorch's index has.
_OF_TORCH = ("torch", "torchvision", "torchaudio")

#: Pins whose Pythons are looked up at a time, and threads for that.
_MOST_SUSPECTS, _THREADS = 5, 4


@dataclass(frozen=True)
class Checked:
    """Hold the result; without a lock nothing was checked."""

    lock: Lock | None = None
    choices: tuple[Choice, ...] = ()
    warnings: tuple[str, ...] = ()

    @property
    def packages_bytes(self) -> int:
        """Estimate the unpacked size of all packages but the framework's."""
        packages = self.lock.packages if self.lock else ()
        return sum(each.size_bytes or 0 for each in packages if not FRAMEWORK.match(each.name)) * _UNPACKED


def check_packages(
    resolver: PackageResolver | None,
    job: Job,
    resolved: Resolved,
    pins: tuple[Pin, ...],
    learned: dict[Pin, Ways],
    *,
    own_base: bool,
) -> Checked | None:
    """Resolve the list for its Python; None if that showed which Pythons a pin has wheels for: choose again.

    Args:
        learned: gets those Pythons.
        own_base: the image is the user's own, whose pip may know other indexes: report, do not refuse.

    Raises ConfigError: an index lacks a package or a version, or versions contradict each other.
    """
    bounded = [pin for pin in pins if pin.is_bounded and not in_tables(pin)]
    request = _request(resolver, job, resolved) if resolver and bounded else None
    if resolver is None or request is None:
        return Checked()
    answer = resolver.resolve(request)
    if isinstance(answer, Unsatisfiable) and (answer.no_package or answer.no_version) in _OF_TORCH:
        answer = resolver.resolve(replace(request, excluded=_OF_TORCH))  # a build that is on PyTorch's index alone
    if isinstance(answer, Unreachable):
        unknown = [pin.shown.partition(" (")[0] for pin in bounded if pin not in learned]
        listed = ", ".join(unknown[:3]) + (f" and {len(unknown) - 3} more" if len(unknown) > 3 else "")
        return Checked(warnings=(f"{answer.reason}: whether Python {request.python} has {listed} was not checked",))
    if isinstance(answer, Unsatisfiable) and not own_base:
        _refuse_missing(answer, resolver, request, bounded)
    if suspects := [pin for pin in _suspects(answer, bounded) if pin not in learned][:_MOST_SUSPECTS]:
        learned |= {pin: ways for pin in suspects if (ways := _ways(resolver, request, pin)) is not None}
        if any(learned.get(pin, {}).get(request.python) != "wheel" for pin in suspects if pin in learned):
            return None
    if isinstance(answer, Unsatisfiable):
        if own_base:
            return Checked(warnings=(f"the packages do not fit together on Python {request.python}: {answer.cause}",))
        raise ConfigError(
            f"the requirements contradict each other on Python {request.python}",
            cause=answer.cause,
            run=f"change one of these versions in {bounded[0].place}",
        )
    return Checked(answer, _from_source(answer, pins))


def _request(resolver: PackageResolver, job: Job, resolved: Resolved) -> ResolveRequest | None:
    """Write the question; None if there is no index, the Python is unknown, or the list has its own hashes."""
    found, options = resolved.requirements, job.image
    sources = index_sources(options, found, resolver.host)
    links = job.project / options.find_links if options.find_links and "://" not in options.find_links else None
    hashed = any("--hash" in line for line in found.lines)
    if hashed or not resolved.stack.python or not (sources or links):
        return None
    bundle = job.project / options.ca_bundle if options.ca_bundle else resolver.host.env.get("PIP_CERT")
    return ResolveRequest(
        lines=_public(found, found.lines),
        constraints=_public(found, found.constraints),
        python=resolved.stack.python,
        sources=sources,
        prereleases="--pre" in found.options,
        links=links,
        authorities=Path(bundle) if bundle else None,
    )


def _public(found: Requirements, lines: Iterable[str]) -> tuple[str, ...]:
    """Leave out addresses, which uv would fetch with the user's logins, and builds, which are on other indexes."""
    requirements = (each for line in lines if (each := parsed(line)) is not None and each.url is None)
    return tuple(map(_without_build, requirements))


def _without_build(requirement: Requirement) -> str:
    extras = f"[{','.join(sorted(requirement.extras))}]" if requirement.extras else ""
    specifier = ",".join(f"{each.operator}{each.version.partition('+')[0]}" for each in requirement.specifier)
    return f"{requirement.name}{extras}{specifier}" + (f" ; {requirement.marker}" if requirement.marker else "")


def _suspects(answer: Lock | Unsatisfiable, pins: list[Pin]) -> list[Pin]:
    """Return the pins that have no wheel, or that the resolver's reason names."""
    if isinstance(answer, Lock):
        names = set(map(canonicalize_name, answer.from_source))
    else:
        names = {canonicalize_name(word) for word in re.findall(r"[A-Za-z0-9][A-Za-z0-9._-]*", answer.cause)}
    return [pin for pin in pins if pin.name in names]


def _ways(resolver: PackageResolver, request: ResolveRequest, pin: Pin) -> Ways | None:
    """Ask for each Python how pip gets the pin; None if an index did not answer."""
    from concurrent.futures import ThreadPoolExecutor  # few plans come here

    line = f"{pin.name}{pin.public}"
    alone = replace(request, lines=(line,), constraints=(), dependencies=False)
    with ThreadPoolExecutor(_THREADS) as threads:
        found = list(threads.map(lambda python: resolver.resolve(replace(alone, python=python)), PYTHONS))
    if any(isinstance(answer, Unreachable) for answer in found):
        return None
    wheels = any(isinstance(answer, Lock) and not answer.from_source for answer in found)
    built: Way = "compiled" if wheels else "source"
    return {
        python: None if not isinstance(answer, Lock) else built if answer.from_source else "wheel"
        for python, answer in zip(PYTHONS, found, strict=True)
    }


def _refuse_missing(answer: Unsatisfiable, resolver: PackageResolver, request: ResolveRequest, pins: list[Pin]) -> None:
    """Raise ConfigError if no index has the package or the version of a pin."""
    missing = {canonicalize_name(name) for name in (answer.no_package, answer.no_version) if name}
    pin = next((pin for pin in pins if pin.name in missing), None)
    if pin is None:
        return
    if answer.no_package:
        raise ConfigError(
            f"{pin.shown}: the package index has no package {pin.name}",
            cause="the name is wrong, or it is on another index",
            run=f"pip index versions {pin.name}   # or name its index in seatrial.toml: [image] index_url",
        )
    if other := elsewhere(pin.name):
        raise ConfigError(
            f"{pin.shown}: the package index has no such version",
            cause=f"{pin.name} on the index is another project",
            run=f"write {other} in {pin.place}",
        )
    close = _nearest(pin, resolver, request)
    raise ConfigError(
        f"{pin.shown}: the package index has no such version",
        cause=f"near it: {', '.join(close)}" if close else None,
        run=f"change the version, to {pin.name}=={close[0]} for example" if close else f"pip index versions {pin.name}",
    )


def _nearest(pin: Pin, resolver: PackageResolver, request: ResolveRequest) -> list[str]:
    """Return the next older version that the Python has a wheel of, and the newest."""
    version = next(iter(pin.public)).version.removesuffix(".*")
    found = []
    for line in (f"{pin.name}<={version}", pin.name):
        answer = resolver.resolve(replace(request, lines=(line,), constraints=(), dependencies=False))
        found += [each.version for each in answer.packages] if isinstance(answer, Lock) else []
    return list(dict.fromkeys(found))


def _from_source(lock: Lock, pins: tuple[Pin, ...]) -> tuple[Choice, ...]:
    if not lock.from_source:
        return ()
    lines: Mapping[str, str] = {pin.name: pin.line for pin in pins}
    built = [lines.get(canonicalize_name(name), name) for name in lock.from_source]
    reason = "the index has no wheel of them: pip builds them, which takes a compiler unless they are plain Python"
    return (Choice(what="from source", value=", ".join(built), reason=reason),)
