"""Select the packages that pip builds from source, and leave out unused ones that must be compiled."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from seatrial.errors import ConfigError
from seatrial.images.requirements.imports import packages_of_imports
from seatrial.images.requirements.pip_format import Needs, canonical_name, parsed
from seatrial.images.requirements.removed_apis import is_below
from seatrial.images.requirements.source_builds import SourceBuild, debian_packages, known_build, read_build
from seatrial.images.resolve.answers import Answer, Lock, ResolveRequest, SourceTexts
from seatrial.images.resolve.edits import place_of, written
from seatrial.images.resolve.framework import Resolved
from seatrial.images.resolve.uv import UvResolver
from seatrial.images.resolve.uv_texts import pinned
from seatrial.job.plan import Choice
from seatrial.stack.facts import table
from seatrial.stack.resolve import PYTHONS

#: Package → what compiles it, besides a C compiler.
_UNBUILDABLE: dict[str, str] = table("source_builds")["unbuildable"]
#: Package → Python → its first release with a wheel.
_FIRST: dict[str, dict[str, str]] = table("source_builds")["first_wheels"]

#: Most sources that one plan reads, and most at once.
_MOST_READ, _AT_ONCE = 20, 4


def refuse_unbuildable(lock: Lock, needs: Needs, python: str, bounded: Mapping[str, str]) -> None:
    """Raise ConfigError for a listed release without a wheel whose source needs more than a compiler."""
    built = set(map(canonicalize_name, lock.from_source)) & bounded.keys()
    for name, tools in _UNBUILDABLE.items():
        if name in built:
            cause = f"compiling it needs {tools}"
            edits = sorted(bounded[each].replace("==", ">=") for each in _UNBUILDABLE.keys() & built)
            later = (each for each in PYTHONS if int(each[2:]) > int(python[2:]))
            newer = next((each for each in later if name not in known_to_lack(bounded, each)), None)
            if newer and name in _FIRST.keys() - {*known_to_lack(bounded, python), *known_to_lack(bounded, "3.9")}:
                cause = f"this release needs a newer Python, such as {newer}"
                place = place_of(Requirement("python"), needs) if len(needs.python) == 1 else None
                pin = f"python=={newer}.*" if place and ".y" in place[0] else ""  # an environment's alone
                edits = [pin or bounded[name].replace("==", "<=")]
            message = f"{bounded[name]} ({needs.source}) has no wheel for Python {python} or another candidate"
            raise ConfigError(message, cause=cause, run=written(edits, needs), edits=edits.copy)


def known_to_lack(bounded: Mapping[str, str], python: str) -> tuple[str, ...]:
    """Return the packages whose releases are older than the first with a wheel for this Python, from the table."""
    known = {name: Requirement(line).specifier for name, line in bounded.items() if name in _FIRST}
    return tuple(name for name, specifier in known.items() if is_below(specifier, _FIRST[name].get(python, "0")))


def builds_of(
    resolver: UvResolver | None, request: ResolveRequest | None, answer: Answer | None, resolved: Resolved
) -> tuple[SourceBuild, ...]:
    """Return what pip builds: packages without a wheel, and addresses of sources; without a lock, known ones."""
    found = resolved.requirements
    lines = {canonical_name(line) or line: line for line in found.lines}
    names = [name for name, line in lines.items() if _is_source(line)]
    locked = answer if isinstance(answer, Lock) else None
    if locked:
        names += [name for name in map(canonicalize_name, locked.from_source) if name not in resolved.pages]
    else:
        names += [name for name in lines if name not in (*names, *resolved.pages)]
    lacking = locked.lacking if locked else ()
    released: dict[str, str] = {canonicalize_name(Requirement(each).name): each for each in lacking}
    # A newer release may be at odds with what requires it.
    fixed = {name: f"{name}=={at}" for name, at in pinned(request.constraints, request.python)} if request else {}
    queries = {name: lines.get(name) or released.get(name, name) for name in names}
    bare: dict[str, str] = {}
    dated: set[str] = set()
    sources: dict[str, SourceTexts | None] = {}
    if resolver and request and locked:
        own = {name: line for name, line in queries.items() if not _is_source(line)}
        bare = {name: str(parsed(line) or name).partition(";")[0] for name, line in own.items()}
        bare |= {name: line for name, line in fixed.items() if name in bare}
        unpinned = [name for name, line in bare.items() if name in lines and "==" not in line]
        dated = {name for name in unpinned if request.as_of or "==" in released.get(name, "")}
        own = {name: dict(request.dates).get(name, request.as_of) for name in dated}
        requests = [replace(request, as_of=own.get(name, "")) for name in bare][:_MOST_READ]
        with ThreadPoolExecutor(_AT_ONCE) as threads:
            sources = dict(zip(bare, threads.map(resolver.source, bare.values(), requests), strict=False))
    builds = []
    for name, line in queries.items():
        build = known_build(line)
        if name in bare:
            build = build or SourceBuild(name, bare[name], read=False)
            source = sources.get(name)
            build = read_build(name, bare[name], source.names, source.texts) if source else build
            if source and build.lacks and "==" not in bare[name] and resolver and request:
                day = f"{int(request.as_of[:4]) + 1}{request.as_of[4:]}" if request.as_of else ""
                newer_ones = Requirement(bare[name]).specifier & f">{source.version}"
                later = resolver.source(f"{name}{newer_ones}", replace(request, as_of=day))
                newer = read_build(name, bare[name], later.names, later.texts) if later else build
                if later and not newer.lacks:
                    source, build, dated = later, newer, {*dated, name}
            build = replace(build, at=source.version) if source and name in dated | fixed.keys() else build
        if build is not None and found.hashed:  # pip takes no wheel that it built before: it has no hash
            build = replace(build, modules=(), legacy=False)
        if build is not None:
            builds.append(replace(build, line=line))
    return tuple(builds)


def _is_source(line: str) -> bool:
    requirement = parsed(line)
    address = line if requirement is None else requirement.url or ""
    return "://" in address and ".whl" not in address


def with_builds(needs: Needs, builds: Collection[SourceBuild], wanted: Collection[str | None], *, gpus: bool) -> Needs:
    """Record which package compiles CUDA code; leave out unused ones with headers and, if frozen, all that compile."""
    known = packages_of_imports(needs.imports, ())
    imported = {canonical_name(each) for each in (*known.known.values(), *known.guessed.values())}
    used = {*imported, *wanted, *table("import_names")["loaded_by_name"].split()}
    heavy = [each for each in builds if needs.requirements.frozen or any(tool[-4:] == "-dev" for tool in each.tools)]
    idle = [each.line for each in heavy if each.compiles and not (each.cuda or "torch" in each.modules)]
    lines = needs.requirements.lines if needs.imports and not needs.requirements.hashed else ()
    left = [line for line in lines if line in idle and canonical_name(line) not in used]
    if left:
        note = f"{', '.join(left)} ({needs.source}) {'is' if len(left) == 1 else 'are'} left out: the package index has"
        note += " no wheel, the source must be compiled, and the code does not import it"
        needs = needs.with_lines((line for line in needs.requirements.lines if line not in left), warning=note)
    cuda = next((each.line for each in builds if each.cuda and each.line not in left), None) if gpus else None
    return replace(needs, compiled=cuda)


def build_choices(builds: Collection[SourceBuild], lock: Lock | None, resolved: Resolved) -> Iterator[Choice]:
    """Yield the plan's lines for packages without a lock: packages built from source, and wheels of other indexes."""
    if builds:
        tools = [each for each in debian_packages(builds) if not each.startswith("lib")]
        sight = sorted({tool for each in builds for tool in each.modules if tool in ("torch", "numpy", "Cython")})
        reason = "the index has no wheel of them: pip builds them"
        reason += f" with {', '.join(tools)} in a separate stage" if tools else ""
        reason += " and nvcc" if any(each.cuda for each in builds) and not resolved.stack.cpu else ""
        reason += f", against {' and '.join(sight)}" if sight else ""
        unread = ", ".join(each.name for each in builds if not each.read)
        reason += f"; what else {unread} needs is unknown, as its source was not read" if unread else ""
        lacks = ", ".join(f"{each.requirement} {each.lacks}" for each in builds if each.lacks)
        reason += f"; sources lack files that setup.py compiles, unless it gets a wheel: {lacks}" if lacks else ""
        yield Choice(what="from source", value=", ".join(each.requirement for each in builds), reason=reason)
    elif built := [name for name in (lock.from_source if lock else ()) if name not in resolved.pages]:
        reason = "the index has no wheel of them: pip builds them, which takes a compiler unless they are plain Python"
        yield Choice(what="from source", value=", ".join(built), reason=reason)
    for page in dict.fromkeys(resolved.pages.values()):
        names = ", ".join(name for name, address in resolved.pages.items() if address == page)
        reason = f"from {page}, because the index has none for {resolved.stack.name}"
        yield Choice(what="wheels", value=names, reason=reason)
