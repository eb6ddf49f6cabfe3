"""Find the Python that has all packages of a list, by resolving it for one Python after the other; lock the list."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from seatrial.errors import ConfigError, GpuContractError
from seatrial.images.base import Base
from seatrial.images.dockerfile.layer_program import FRAMEWORK
from seatrial.images.requirements.imports import elsewhere, provides
from seatrial.images.requirements.pip_format import Needs, Requirements, canonical_name, parsed
from seatrial.images.requirements.source_builds import SourceBuild
from seatrial.images.resolve.builds import builds_of, refuse_unbuildable
from seatrial.images.resolve.framework import PACKAGES, Resolved, framework_place, public
from seatrial.images.resolve.lock import OF_TORCH, Locked, bare, lock_packages
from seatrial.images.resolve.uv import Answer, Lock, PackageResolver, ResolveRequest, Unreachable, Unsatisfiable
from seatrial.images.sources import index_sources, wheels_of
from seatrial.job.model import Job
from seatrial.job.plan import Choice
from seatrial.stack.facts import wheels
from seatrial.stack.resolve import PYTHONS
from seatrial.system.project_files import is_there, read_text

#: A line that pins one release of a package, or its patch releases.
_PINNED = re.compile(r"[\w.-]+\s*==\s*([\d.]+?)(?:\.\*)?")

#: A wheel is unpacked to about three times its size (torch 2.13, numpy, scipy).
_UNPACKED = 3


@dataclass(frozen=True)
class Checked:
    """Hold the result; without a lock nothing was checked.

    Attributes:
        locked: what is installed by hash; None if pip resolves everything.
        builds: what pip builds from source.
    """

    lock: Lock | None = None
    locked: Locked | None = None
    choices: tuple[Choice, ...] = ()
    warnings: tuple[str, ...] = ()
    builds: tuple[SourceBuild, ...] = ()

    @property
    def names(self) -> tuple[str, ...]:
        """Return the names of all packages of the lock; () without a lock."""
        return (*(each.name for each in self.lock.packages), *self.lock.from_source) if self.lock else ()

    @property
    def packages_bytes(self) -> int:
        """Estimate the unpacked size of all packages but the framework's."""
        packages = self.lock.packages if self.lock else ()
        return sum(each.size_bytes or 0 for each in packages if not FRAMEWORK.match(each.name)) * _UNPACKED


Choose = Callable[[Mapping[str, str], Needs], tuple[Base, Resolved]]


def resolve_packages(
    resolver: PackageResolver | None,
    job: Job,
    needs: Needs,
    barred: Mapping[str, str],
    choose: Choose,
    *,
    own_base: bool,
) -> tuple[Base, Resolved, Checked, Needs]:
    """Choose a Python that has wheels of all packages, else the one where pip builds the fewest.

    Args:
        barred: Python → why it is out of the question, as a sentence without an end.
        choose: returns base image and frameworks for the best Python that is not barred.
        own_base: the image is the user's own, whose pip may know other indexes: report, do not refuse.

    Returns:
        (base image, frameworks, what was checked, the needs without wrong guesses and with a framework's release that
        the other packages demand)

    Raises ConfigError: an index lacks a package or a version, or versions contradict each other.
    """
    base, resolved = choose(barred, needs)
    if resolver is None:
        return base, resolved, Checked(builds=() if own_base else builds_of(None, None, None, resolved)), needs
    choice = _PackageChoice(resolver, job, needs, barred, choose, own_base)
    base, resolved, checked, needs = choice.made(base, resolved)
    if not own_base:
        checked = replace(checked, builds=builds_of(resolver, choice.request(resolved), checked.lock, resolved))
    return base, resolved, checked, needs


#: Limit on lines left out (each takes a run of uv); least and most lines of a frozen list (a longer one takes minutes);
#: the lock file in a reason.
_MOST_LEFT_OUT, _FROZEN, _LOCK_OF = 12, (40, 200), re.compile(r"(\S+\.lock) pins")


@dataclass
class _PackageChoice:
    """One choice of packages. The first attributes are arguments of resolve_packages."""

    resolver: PackageResolver
    job: Job
    needs: Needs
    barred: Mapping[str, str]
    choose: Choose
    own_base: bool
    bounded: dict[str, str] = field(default_factory=dict)
    left_out: int = 0

    def made(self, base: Base, resolved: Resolved) -> tuple[Base, Resolved, Checked, Needs]:
        base, resolved = self._adapted(base, resolved)
        if self.needs.image is not None:
            base, resolved = self._with_next_wheels(base, resolved)
        self.bounded = _bounded(self.needs.requirements)
        if (request := self.request(resolved)) is None:
            return base, resolved, Checked(), self.needs
        if self.bounded:
            return *self._with_wheels(base, resolved), self.needs
        answer = self._answer(request)
        if isinstance(answer, Unsatisfiable) and not self.own_base:
            self._refuse_missing(answer, request)
            if not (answer.no_package or answer.no_version):
                raise _contradiction(answer, request, self.needs)
        return base, resolved, self._locked(resolved, answer), self.needs

    def _adapted(self, base: Base, resolved: Resolved) -> tuple[Base, Resolved]:
        """Leave out guesses that do not fit, and take the release of a framework that the other packages demand.

        What the project left open is ours to choose, and no contradiction of its own.
        """
        for _ in range(len(self.needs.guessed) + _MOST_LEFT_OUT + 2):
            request = self.request(resolved)
            answer = self._answer(request) if request is not None else None
            if request is None or not isinstance(answer, Unsatisfiable):
                break
            if (wrong := _wrong_guess(answer, self.needs)) is not None:
                why = "the package index lacks it" if answer.no_package else "the package of this name is another's"
                changed = self.needs.without_guess(wrong, why)
            elif (left_out := self._left_out(answer)) is not None:
                changed = left_out
            elif (release := self._demanded(request)) is not None:
                changed = self.needs.changed(self.needs.requirements.plus(constraints=(release,)))
            else:
                break
            try:
                base, resolved = self.choose(self.barred, changed)
            except (ConfigError, GpuContractError):
                break
            self.needs = changed
        return base, resolved

    def _with_next_wheels(self, base: Base, resolved: Resolved) -> tuple[Base, Resolved]:
        """Replace each pin that has wheels only for older Pythons by the next release with one for the image's Python.

        A pin without any wheel stays: pip builds it, and most such packages are pure Python.
        """
        request = self.request(resolved)
        answer = self._answer(request) if request is not None else None
        if request is None or not isinstance(answer, Lock):
            return base, resolved
        found = self.needs.requirements
        pins = {canonical_name(line): (line, match[1]) for line in found.lines if (match := _PINNED.fullmatch(line))}
        compiled: list[str] = []
        left = [name for name in map(canonicalize_name, answer.from_source) if name in pins]
        alone = replace(request, constraints=(), dependencies=False)
        for python in ("3.7", "3.6") if left else ():
            older = self.resolver.resolve(replace(alone, lines=tuple(pins[name][0] for name in left), python=python))
            if isinstance(older, Lock):
                compiled += [name for name in left if name not in map(canonicalize_name, older.from_source)]
                left = [name for name in left if name not in compiled]
        bounds = tuple(f"{name}>={pins[name][1]}" for name in compiled)
        later = self.resolver.resolve(replace(alone, lines=bounds, lowest=True)) if bounds else None
        notes = []
        for each in later.packages if isinstance(later, Lock) else ():
            line = pins[canonicalize_name(each.name)][0]
            found = found.replaced(found.lines.index(line), f"{each.name}=={each.version}")
            notes.append(f"{line} → {each.version}")
        if not notes:
            return base, resolved
        why = f"{', '.join(notes)}: the next with wheels for Python {request.python}"
        self.needs = self.needs.changed(found, why=why)
        return self.choose(self.barred, self.needs)

    def _left_out(self, answer: Unsatisfiable) -> Needs | None:
        """Return the needs without one line that the index lost: a lock's pin, or a frozen line that nothing imports.

        An index loses releases, and a frozen list has the packages of another machine's image.
        """
        needs, found = self.needs, self.needs.requirements
        if self.left_out >= _MOST_LEFT_OUT:
            return None
        name = canonicalize_name(answer.no_package or answer.no_version or "")
        pins = [line for line in found.constraints if canonical_name(line) == name]
        listed = [line for line in found.lines if canonical_name(line) == name]
        if pins and not listed and (lock := _LOCK_OF.search(needs.reason)):
            kept = tuple(line for line in found.constraints if line not in pins)
            self.left_out += 1
            note = f"{lock[1]} pins {pins[0]}, which the package index does not have: its version is left open"
            return needs.changed(replace(found, constraints=kept), warning=note)
        frozen = (
            _FROZEN[0] <= len(found.lines) <= _FROZEN[1]
            and sum("==" in line for line in found.lines) > len(found.lines) / 2
        )
        if listed and frozen and not any(provides(name, each, each) for each in needs.imports):
            self.left_out += 1
            note = f"{listed[0]} ({needs.source}) is left out: the package index has none, and nothing imports it"
            return needs.with_lines((line for line in found.lines if line not in listed), warning=note)
        return None

    def _with_wheels(self, base: Base, resolved: Resolved) -> tuple[Base, Resolved, Checked]:
        """Try one Python after the other until one has a wheel of each package."""
        tried: dict[str, str] = {}
        usable: list[tuple[Base, Resolved, Lock]] = []
        at_odds: set[str] = set()
        refusal: ConfigError | None = None
        while True:
            request = self.request(resolved)
            assert request is not None
            answer = self._answer(request)
            if isinstance(answer, Unreachable):
                if usable:
                    break
                return base, resolved, Checked(warnings=_unchecked(answer, request, self.bounded))
            if isinstance(answer, Lock):
                hidden = at_odds & set(map(canonicalize_name, answer.from_source))  # its requirements are unknown
                usable += [] if hidden else [(base, resolved, answer)]
                built = [name for name in answer.from_source if name not in request.elsewhere]
                if not built:
                    break
                lacking = self._named(built[0])
                tried[request.python] = f"{lacking} has no wheel for Python {request.python}"
            else:
                if (left_out := self._left_out(answer)) is not None:
                    self.needs, self.bounded = left_out, _bounded(left_out.requirements)
                    base, resolved = self.choose({**self.barred, **tried}, self.needs)
                    continue
                if not self.own_base:
                    self._refuse_missing(answer, request)
                tried[request.python] = f"the packages do not fit together on Python {request.python}: {answer.cause}"
                refusal = refusal or _contradiction(answer, request, self.needs)
                at_odds |= _requiring(answer.cause)
            if self.own_base:
                note = f"{tried[request.python]}, and the base image has Python {request.python}"
                return base, resolved, replace(self._locked(resolved, answer), warnings=(note,))
            try:
                base, resolved = self.choose({**self.barred, **tried}, self.needs)
            except (ConfigError, GpuContractError):
                break
        if not usable:
            assert refusal is not None
            raise refusal
        best = min(usable, key=lambda each: len(each[2].from_source))
        if not self.own_base:
            refuse_unbuildable(best[2], self.needs, best[1].stack.python, self.bounded)
        tried.pop(best[1].stack.python, None)
        base, resolved = self.choose({**self.barred, **tried}, self.needs)
        return base, resolved, self._locked(resolved, best[2])

    def request(self, resolved: Resolved) -> ResolveRequest | None:
        """Return the request; None without an index or a known Python, or for a list with its own hashes."""
        found, options, host = resolved.requirements, self.job.image, self.resolver.host
        sources = index_sources(options, found, host)
        links = wheels_of(self.job)
        if found.hashed or not resolved.stack.python or not (sources or links):
            return None
        bundle = self.job.project / options.ca_bundle if options.ca_bundle else host.env.get("PIP_CERT")
        return ResolveRequest(
            lines=bare(found.lines, builds=False),
            constraints=bare(found.constraints, builds=False),
            python=resolved.stack.python,
            sources=sources,
            prereleases="--pre" in found.options,
            excluded=tuple(self.needs.image.packages) if self.needs.image else (),
            elsewhere=tuple(resolved.pages),
            links=links,
            authorities=Path(bundle) if bundle else None,
        )

    def _answer(self, request: ResolveRequest) -> Answer:
        answer = self.resolver.resolve(request)
        if isinstance(answer, Unsatisfiable) and (answer.no_package or answer.no_version) in OF_TORCH:
            return self.resolver.resolve(
                replace(request, excluded=(*request.excluded, *OF_TORCH))
            )  # only PyTorch's index has this build
        return answer

    def _demanded(self, request: ResolveRequest) -> str | None:
        """Return ``torch==2.4.0``: the framework's newest release that fits the other packages; None: there is none."""
        place = framework_place(Requirements(lines=request.lines))
        if place is None:
            return None
        name = canonicalize_name(Requirement(request.lines[place]).name)
        if name != PACKAGES.get(name):
            return None
        own = bare((line for line in self.needs.requirements.lines if canonical_name(line) == name), builds=False)
        lines = (*request.lines[:place], *(own or (name,)), *request.lines[place + 1 :])
        answer = self.resolver.resolve(replace(request, lines=lines))
        packages = answer.packages if isinstance(answer, Lock) else ()
        found = next((f"{name}=={each.version}" for each in packages if canonicalize_name(each.name) == name), None)
        return found if found not in request.lines else None

    def _named(self, package: str) -> str:
        own = next(iter(self.needs.requirements.of(canonicalize_name(package), constraints=False)), None)
        line = self.bounded.get(canonicalize_name(package), str(own or ""))
        return f"{line} ({self.needs.source})" if line else f"{package} (which others need)"

    def _refuse_missing(self, answer: Unsatisfiable, request: ResolveRequest) -> None:
        """Raise ConfigError if no index has a listed package or its version."""
        name = canonicalize_name(answer.no_package or answer.no_version or "")
        listed = self.needs.requirements.of(name, constraints=False) if answer.no_package else []
        if name not in self.bounded and not listed:
            return
        line = self._named(name)
        if answer.no_package:
            raise ConfigError(
                f"{line}: the package index has no package {name}",
                cause="the name is wrong, or it is on another index",
                run=f"pip index versions {name}   # or name its index in seatrial.toml: [image] index_url",
            )
        if other := elsewhere(name):
            cause, run = f"{name} on the index is another project", f"write {other} in {self.needs.source}"
            raise ConfigError(f"{line}: the package index has no such version", cause=cause, run=run)
        newest = self._newest(request, name)
        wanted = re.match(r"[^=]*===?\s*v?(\d+(?:\.\d+)*)", line)
        closest = self._newest(request, f"{name}<={wanted[1]}") if wanted else None  # 4.27.0, of 4.27.0.dev0
        raise ConfigError(
            f"{line}: the package index has no such version",
            cause=f"the newest is {newest}" if newest else None,
            run=f"change the version, to {name}=={closest or newest} for example"
            if newest
            else f"pip index versions {name}",
        )

    def _newest(self, request: ResolveRequest, line: str) -> str | None:
        """Return the newest release that the line admits, without its requirements."""
        answer = self.resolver.resolve(replace(request, lines=(line,), constraints=(), dependencies=False))
        return answer.packages[0].version if isinstance(answer, Lock) and answer.packages else None

    def _locked(self, resolved: Resolved, answer: Answer) -> Checked:
        """Lock what was answered, and name what has no hash."""
        request = self.request(resolved)
        if request is None or not isinstance(answer, Lock):
            return Checked()
        base = self.needs.image.image if self.needs.image else self.job.image.base
        locked = lock_packages(self.resolver, request, resolved, answer, base)
        choices = []
        if locked is None:
            reason = "the list's options or the base image decide which files pip takes"
            choices.append(Choice(what="not locked", value="all packages", reason=reason))
            return Checked(answer, None, tuple(choices))
        place = framework_place(resolved.requirements)
        framework = () if place is None or locked.framework else resolved.requirements.lines[place : place + 1]
        if framework or locked.rest:
            reason = "no hash is known on this machine: pip resolves them in the build"
            choices.append(Choice(what="not locked", value=", ".join((*framework, *locked.rest)), reason=reason))
        return Checked(answer, locked, tuple(choices))


def _requiring(cause: str) -> set[str]:
    """Return the packages that, by uv's explanation, require a release that others exclude: ``x==1 depends on y<2``."""
    return set(map(canonicalize_name, re.findall(r"([A-Za-z][\w.-]*\w)(?:==\S+)? depends? on", cause)))


def _wrong_guess(answer: Unsatisfiable, needs: Needs) -> str | None:
    named = set(map(canonicalize_name, re.findall(r"[A-Za-z][\w.-]*\w", answer.cause)))
    return next((name for name in needs.guessed if name in {answer.no_package or "", *named}), None)


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


def _unchecked(answer: Unreachable, request: ResolveRequest, bounded: Mapping[str, str]) -> tuple[str, ...]:
    """Name the first lines that exclude newer releases, which an old Python may need."""
    lines = [line for line in bounded.values() if re.search(r"[=~]=|<", line.replace(">=", ""))]
    listed = ", ".join(lines[:3]) + (f" and {len(lines) - 3} more" if len(lines) > 3 else "")
    return (f"{answer.reason}: whether Python {request.python} has {listed} was not checked",) if lines else ()


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
