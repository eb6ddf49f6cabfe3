"""Lock a project's packages: what is installed by hash, in which layer, and what only pip can resolve."""

from __future__ import annotations

import re
from dataclasses import replace
from typing import NamedTuple

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from seatrial.images.base import DEFAULT_BASE, python_of_image
from seatrial.images.dockerfile.layer_program import FRAMEWORK
from seatrial.images.requirements.pip_format import Requirements, canonical_name, parsed
from seatrial.images.resolve.answers import Answer, Lock, ResolveRequest, Unreachable
from seatrial.images.resolve.dates import framework_day, pins
from seatrial.images.resolve.framework import Resolved, framework_place
from seatrial.images.resolve.uv import UvResolver
from seatrial.images.resolve.uv_texts import bare
from seatrial.images.sources import PackageSource

#: Packages with releases and builds that only PyTorch's index has.
OF_TORCH = ("torch", "torchvision", "torchaudio")

#: Base images for which an index may have other wheels than uv finds: their glibc is older than 2.35.
_OTHER_WHEELS = r"stretch|buster|bullseye|debian:(9|1[01])\b|bionic|focal|(18|20)\.04"

#: A list that changes how pip chooses files is left to pip.
_CHOOSING = ("--no-binary", "--only-binary", "--prefer-binary")


class Locked(NamedTuple):
    """Hold requirements with their hashes, no address among them.

    Attributes:
        framework: the framework and what it needs of CUDA; () if pip resolves it. required: what it requires besides.
        rest: what has no hash: pip resolves it, after all that has one.
    """

    framework: tuple[str, ...] = ()
    required: tuple[str, ...] = ()
    packages: tuple[str, ...] = ()
    rest: tuple[str, ...] = ()


def lock_packages(
    resolver: UvResolver, request: ResolveRequest, resolved: Resolved, lock: Lock, base: str
) -> Locked | Unreachable | None:
    """Lock what ``request`` was answered with; None if pip must resolve everything.

    Versions that the framework leaves open are the same for all projects that allow them: they are resolved without
    the project's lines first, and preferred then. A build that only PyTorch's index has is locked if that answers.
    """
    found = resolved.requirements
    unknown = base != DEFAULT_BASE and (python_of_image(base) is None or re.search(_OTHER_WHEELS, base))
    if unknown or any(option.startswith(_CHOOSING) for option in found.options):
        return None
    if framework_place(found) is None:
        return _by_layer(found, lock, frozenset(), hashed=True)
    further = (PackageSource(resolved.index),) if resolved.index else ()
    answer: Answer = lock
    for builds, sources in ((True, further), *(((False, ()),) if further else ())):
        lines, constraints = (bare(each, builds=builds) for each in (found.lines, found.constraints))
        question = replace(request, lines=lines, constraints=constraints, excluded=())
        question = preferring(resolver, replace(question, sources=(*request.sources, *sources)))
        of_framework = frozenset(dict(question.preferred).keys() - dict(request.preferred).keys())
        if sources and not of_framework:
            continue  # that index has just failed to answer for the framework alone
        answer = resolver.resolve(question)
        if isinstance(answer, Lock) and of_framework:
            return _by_layer(found, answer, of_framework, hashed=builds)
    return answer if isinstance(answer, Unreachable) else None


def preferring(resolver: UvResolver, request: ResolveRequest) -> ResolveRequest:
    """Return the request with the releases that the framework gets without other packages as preferences."""
    if (place := framework_place(Requirements(lines=request.lines))) is None:
        return request
    alone = replace(request.only(request.lines[place], "numpy"), dependencies=True, excluded=())
    if request.as_of:
        _, day = framework_day(alone.lines)
        dates = tuple((name, "") for name in pins(alone.lines))
        alone = replace(alone, as_of=day and max(day, request.as_of), dates=dates)
    own = resolver.resolve(alone)
    found = own.packages if isinstance(own, Lock) else ()
    listed = {canonicalize_name(Requirement(line).name) for line in request.lines}
    brought = (each.name for each in found if each.name not in listed) if request.as_of else ()
    preferred = {each.name: each.version for each in found} | dict(request.preferred)
    return replace(request, preferred=tuple(preferred.items())).dated(*brought)


def _by_layer(found: Requirements, lock: Lock, of_framework: frozenset[str], *, hashed: bool) -> Locked:
    """Divide a lock by ``of_framework``: names of the framework and of all that it requires.

    ``hashed``: the lock holds the framework's build; otherwise pip resolves that, and what is built for it.
    """
    names = {each.name for each in lock.packages}
    known = (each for each in lock.packages if each.sha256)
    lines = {each.name: " --hash=sha256:".join((f"{each.name}=={each.version}", *each.sha256)) for each in known}
    binary = {name for name in of_framework & names if FRAMEWORK.match(name)}
    hashed = hashed and binary <= set(lines)
    if not hashed:
        lines = {name: line for name, line in lines.items() if name not in {*binary, *OF_TORCH}}
    unhashed = {*lock.from_source, *names} - set(lines) - (binary if not hashed else set())
    lines_of = {line: parsed(line) for line in found.lines}
    listed = [line for line, each in lines_of.items() if canonical_name(line) in unhashed or not each or each.url]
    further = unhashed.difference(filter(None, map(canonical_name, listed)))
    required = of_framework - binary
    return Locked(
        framework=tuple(sorted(line for name, line in lines.items() if name in binary)),
        required=tuple(sorted(line for name, line in lines.items() if name in required)),
        packages=tuple(sorted(line for name, line in lines.items() if name not in of_framework)),
        rest=(*listed, *sorted(further)),
    )
