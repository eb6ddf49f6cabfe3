"""Find the Python that has all packages of a list, by resolving it for one Python after the other; lock the list."""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import takewhile
from pathlib import Path

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from seatrial.errors import ConfigError, GpuContractError
from seatrial.images.base import Base
from seatrial.images.dockerfile.layer_program import FRAMEWORK
from seatrial.images.requirements.imports import provides
from seatrial.images.requirements.pip_format import Needs, Requirements, canonical_name
from seatrial.images.requirements.source_builds import SourceBuild
from seatrial.images.resolve.answers import Answer, Lock, ResolveRequest, Unreachable, Unsatisfiable
from seatrial.images.resolve.builds import builds_of, known_to_lack, refuse_unbuildable
from seatrial.images.resolve.dates import FREE, dated, framework_day, held, later, limited, named_row, with_releases
from seatrial.images.resolve.edits import LOCK_OF
from seatrial.images.resolve.explain import bounded, contradiction, not_there, unchecked
from seatrial.images.resolve.framework import PACKAGES, Resolved, framework_place
from seatrial.images.resolve.lock import OF_TORCH, Locked, lock_packages, preferring
from seatrial.images.resolve.uv import UvResolver
from seatrial.images.resolve.uv_texts import bare, pinned
from seatrial.images.resolve.wheel_files import judged, refuse_unstartable, with_names, with_provided, with_undeclared
from seatrial.images.sources import index_sources, wheels_of
from seatrial.job.model import Job
from seatrial.job.plan import Choice

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
    resolver: UvResolver | None, job: Job, needs: Needs, barred: Mapping[str, str], choose: Choose, *, own_base: bool
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
    again = partial(resolve_packages, resolver, job, barred=barred, choose=choose, own_base=own_base)
    if first := choice.request(resolved):
        choice.needs = needs = limited(resolver, first, needs)
        with suppress(ConfigError, GpuContractError):  # the list fits the head alone
            if (taken := with_releases(resolver, first, needs)) != needs:
                return again(taken)
        rows = ((name, at, needs.requirements.of(name)) for name, at in first.named)
        choice.further = {f"{name}=={at}" for name, at, own in rows if own and all(at in one.specifier for one in own)}
    if needs.guessed and (request := choice.request(resolved)) and (known := judged(resolver, request, needs)) != needs:
        return again(known)
    base, resolved, checked, needs = choice.made(base, resolved)
    request = choice.request(resolved)
    if request and checked.lock:
        needs = choice.needs = with_provided(resolver, request, needs, checked.lock)
        with suppress(ConfigError, GpuContractError):  # the package does not fit: keep its warning
            if needs.guessed and (known := judged(resolver, request, needs, checked.names)) != needs:
                return again(known)
        notes = list[str]()
        cuda = resolved.stack.wheel.cuda if resolved.stack.wheel else ""
        for added, note in with_undeclared(needs, checked.lock, cuda):
            with suppress(ConfigError, GpuContractError):
                if added != needs:
                    return again(added)
            notes.append(note)
        known, more = with_names(resolver, request, needs, checked.lock)
        with suppress(ConfigError, GpuContractError):
            if known != needs:
                return again(known)
        checked = replace(checked, warnings=(*checked.warnings, *notes, *more))
    if not own_base:
        checked = replace(checked, builds=builds_of(resolver, request, checked.lock, resolved))
    if request and checked.lock:
        checked = replace(checked, choices=(*named_row(needs, resolved, checked.lock), *checked.choices))
    if (needs.as_of or needs.until) and request and checked.lock:
        resolved, row = held(resolved, needs, request, checked.lock, checked.builds, given=job.image.as_of is not None)
        checked = replace(checked, choices=(*row, *checked.choices))
    elif exact := tuple(each.requirement for each in checked.builds if each.at):
        resolved = replace(resolved, requirements=resolved.requirements.plus(constraints=exact))
    return base, resolved, checked, needs


#: About the most lines left out (each takes a run of uv); most lines of a frozen list (a longer one takes minutes).
_MOST_LEFT_OUT, _MOST_FROZEN = 12, 200

#: Runs of uv at once; each has threads of its own.
_AT_ONCE = 4


@dataclass
class _PackageChoice:
    """One choice of packages. The first attributes are arguments of resolve_packages.

    Attributes:
        bounded: canonical name → line of the packages with a version.
        options: Python → base image and frameworks, best first. lacking: Python → pins without a wheel for it.
        further: requirements that lack a wheel for some Python, besides the listed pins.
        unread: warnings about packages that no index answered for.
    """

    resolver: UvResolver
    job: Job
    needs: Needs
    barred: Mapping[str, str]
    choose: Choose
    own_base: bool
    bounded: dict[str, str] = field(default_factory=dict)
    options: dict[str, tuple[Base, Resolved]] = field(default_factory=dict)
    lacking: dict[str, tuple[str, ...]] = field(default_factory=dict)
    unread: tuple[str, ...] = ()
    further: set[str] = field(default_factory=set)

    def made(self, base: Base, resolved: Resolved) -> tuple[Base, Resolved, Checked, Needs]:
        base, resolved = self._adapted(*self._with_most_wheels(base, resolved))
        if self.needs.image is not None:
            base, resolved = self._with_next_wheels(base, resolved)
            self._with_most_wheels(base, resolved)
        if (request := self.request(resolved)) is None:
            return base, resolved, Checked(), self.needs
        answer = None if self.bounded or len(self.options) > 1 else self._answer(request)
        if answer is None or getattr(answer, "lacking", None) or not getattr(answer, "no_package", True):
            return *self._with_wheels(), self.needs
        if isinstance(answer, Unreachable):
            return base, resolved, Checked(warnings=unchecked(answer, request.python, {})), self.needs
        if isinstance(answer, Unsatisfiable) and not self.own_base:
            self._refuse_missing(answer, request)
        return base, resolved, self._locked(resolved, answer), self.needs

    def _adapted(self, base: Base, resolved: Resolved) -> tuple[Base, Resolved]:
        """Leave out guesses that do not fit; take the release of an open framework that other packages demand."""
        for _ in range(len(self.needs.guessed) + _MOST_LEFT_OUT + 2):
            request = self.request(resolved)
            answer = self._answer(request) if request is not None else None
            if isinstance(answer, Lock) and answer.unfit:
                answer = Unsatisfiable("")  # perhaps another release of the framework fits their wheels
            if request is None or answer is None or isinstance(answer, Unreachable | Lock):
                break
            guesses = {answer.no_package, *answer.named} & self.needs.guessed.keys()
            if wrong := next((each for line in request.lines if (each := canonical_name(line)) in guesses), None):
                note = f"{wrong} is not installed: an import has this name, but no release of the package fits"
                changed = self.needs.judged(wrong, warning=note)
            elif (left_out := self._left_out(answer)) is not None:
                changed = left_out
            elif (on_cpu := self._without_cuda_of_tensorflow(request, answer)) is not None:
                changed = on_cpu
            elif (release := self._demanded(request)) is not None:
                changed = self.needs.changed(self.needs.requirements.plus(constraints=(release,)))
            else:
                break
            try:
                found = self.choose(self.barred, changed)
            except (ConfigError, GpuContractError):
                break
            self.needs = changed
            base, resolved = self._with_most_wheels(*found)
        return base, resolved

    def _with_next_wheels(self, base: Base, resolved: Resolved) -> tuple[Base, Resolved]:
        """Replace pins with wheels for older Pythons only by the next release that fits; those without any stay."""
        request = self.request(resolved)
        answer = self._answer(request) if request is not None else None
        if request is None or not isinstance(answer, Lock):
            return base, resolved
        found = self.needs.requirements
        pins = {canonical_name(line): (line, match[1]) for line in found.lines if (match := _PINNED.fullmatch(line))}
        compiled: list[str] = []
        left = [name for name in map(canonicalize_name, answer.from_source) if name in pins]
        for python in ("3.7", "3.6") if left else ():
            older = self.resolver.lacking(replace(request.only(*(pins[name][0] for name in left)), python=python))
            if not isinstance(older, Unreachable):
                still = {canonical_name(line) for line in older}
                compiled += [name for name in left if name not in still]
                left = [name for name in left if name in still]
        bounds = tuple(f"{name}>={pins[name][1]}" for name in compiled)
        later = self.resolver.resolve(replace(request.only(*bounds), lowest=True)) if bounds else None
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
        """Return the needs without a line that the index lost: a lock's pin, or a frozen one that nothing imports."""
        needs, found = self.needs, self.needs.requirements
        broken = re.match(r"Because ([\w.-]+?)==\S+ has invalid metadata", answer.cause)
        name = canonicalize_name(broken[1]) if broken else answer.name
        pins = [line for line in found.constraints if canonical_name(line) == name]
        listed = [line for line in found.lines if canonical_name(line) == name]
        if pins and not listed and (lock := LOCK_OF.search(needs.reason)):
            kept = tuple(line for line in found.constraints if line not in pins)
            note = f"{lock[1]} pins {pins[0]}, which the package index does not have: its version is left open"
            return needs.changed(replace(found, constraints=kept), warning=note)
        frozen = found.frozen and len(found.lines) <= _MOST_FROZEN
        if listed and frozen and not any(provides(name, each, each) for each in needs.imports):
            why = "its metadata is invalid" if broken else "no index has it"
            note = f"{listed[0]} ({needs.source}) is left out: {why}, and the target does not import it"
            return needs.with_lines((line for line in found.lines if line not in listed), warning=note)
        return None

    def _with_most_wheels(self, base: Base, resolved: Resolved) -> tuple[Base, Resolved]:
        """Choose the first Python with the fewest missing wheels; try others only if the first lacks one."""
        self.bounded = bounded(self.needs.requirements)
        self.unread, self.lacking = (), {}
        self.options = {resolved.stack.python: (base, resolved)}
        self._compare(self.options)
        if any(self.lacking.values()):
            self._add_other_pythons()
        return self.options[min(self.options, key=lambda python: len(self.lacking[python]))]

    def _add_other_pythons(self) -> None:
        """Add each Python that the frameworks and the code allow, best first."""
        barred, others = {**self.barred, **dict.fromkeys(self.options, "")}, dict[str, tuple[Base, Resolved]]()
        while not self.own_base and self.needs.image is None:
            try:
                base, resolved = self.choose(barred, self.needs)
            except (ConfigError, GpuContractError):
                break
            others[resolved.stack.python], barred[resolved.stack.python] = (base, resolved), ""
        self.options |= others
        self._compare(others)

    def _compare(self, pythons: Collection[str]) -> None:
        """Find what lacks a wheel for each; one of which no index answers is an option only if the first is silent."""
        silent = bool(self.unread) or len(self.options) == 1
        with ThreadPoolExecutor(_AT_ONCE) as threads:
            if len(self.options) == 1 and (request := self.request(next(iter(self.options.values()))[1])) is not None:
                threads.submit(preferring, self.resolver, request)  # the next question finds the answer in the cache
            found = threads.map(lambda python: self._without_wheels(self.options[python][1]), pythons)
            answers = dict(zip(pythons, found, strict=True))
        for python, answer in answers.items():
            if isinstance(answer, Unreachable):
                self.unread = self.unread or unchecked(answer, python, self.bounded)
                answer = known_to_lack(self.bounded, python)
                if not silent:
                    del self.options[python]
            self.lacking[python] = answer

    def _without_wheels(self, resolved: Resolved) -> tuple[str, ...] | Unreachable:
        """Return the packages without a wheel for this Python."""
        if (request := self.request(resolved)) is None:
            return ()
        lacking = self.resolver.lacking(request, self.further)
        if isinstance(lacking, Unreachable):
            return lacking
        return tuple(name for line in lacking if (name := Requirement(line).name) not in resolved.pages)

    def _with_wheels(self) -> tuple[Base, Resolved, Checked]:
        """Resolve for the most promising Python, then for others while one may need fewer builds from source."""
        refused: dict[str, str] = {}
        locks: dict[str, Lock] = {}
        at_odds: set[str] = set()
        refusal: tuple[Unsatisfiable, ResolveRequest] | None = None
        while remaining := [python for python in self.options if python not in refused]:
            python = min(remaining, key=lambda each: len(self._missing(each, locks)))
            base, resolved = self.options[python]
            if python in locks:
                break
            request = self.request(resolved)
            assert request is not None
            answer = self._answer(request)
            if isinstance(answer, Unreachable):
                if not self.own_base:
                    refuse_unbuildable(Lock((), self._missing(python, locks)), self.needs, python, self.bounded)
                self.unread = unchecked(answer, python, self.bounded)
                known = [each for each in locks if each not in refused]
                python = min(known, key=lambda each: len(locks[each].from_source), default=python)
                base, resolved = self.options[python]
                break
            if isinstance(answer, Lock):
                hidden = at_odds & set(map(canonicalize_name, answer.from_source))  # its requirements are unknown
                locks[python] = answer
                if not set(answer.lacking) <= self.further:
                    self.further |= set(answer.lacking)
                    self._compare([each for each in self.options if each not in {**locks, **refused}])
                if hidden or (self.own_base and self._missing(python, locks)):
                    refused[python] = self._no_wheel(answer.from_source, python)
            else:
                if not self.own_base and not locks:
                    self._refuse_missing(answer, request)
                refused[python] = f"the packages do not fit together on Python {python}: {answer.cause}"
                refusal = refusal or (answer, request)
                at_odds |= answer.requiring
            if self.own_base and python in refused:
                note = f"{refused[python]}, and the base image has Python {python}"
                return base, resolved, replace(self._locked(resolved, answer), warnings=(note,))
            if len(self.options) == 1 and (python in refused or self._missing(python, locks)):
                self._add_other_pythons()
        else:
            assert refusal is not None
            raise contradiction(self.resolver, *refusal, self.needs)
        if python in locks and not self.own_base:
            refuse_unbuildable(locks[python], self.needs, python, self.bounded)
        better = takewhile(lambda each: each != python, self.options)
        worse = {each: refused.get(each) or self._no_wheel(self._missing(each, locks), each) for each in better}
        base, resolved = self.choose({**self.barred, **worse}, self.needs)
        checked = self._locked(resolved, locks[python]) if python in locks else Checked()
        return base, resolved, replace(checked, warnings=(*checked.warnings, *self.unread))

    def _missing(self, python: str, locks: Mapping[str, Lock]) -> tuple[str, ...]:
        names = locks[python].from_source if python in locks else self.lacking[python]
        return tuple(name for name in names if name not in self.options[python][1].pages)

    def _no_wheel(self, names: tuple[str, ...], python: str) -> str:
        if not names:
            return f"no index answered for Python {python}"
        return f"{self._named(names[0])} has no wheel for Python {python}"

    def request(self, resolved: Resolved) -> ResolveRequest | None:
        """Return the request; None without an index or a known Python, or for a list with its own hashes."""
        found, options, host = resolved.requirements, self.job.image, self.resolver.host
        sources = index_sources(options, found, host)
        links = wheels_of(self.job)
        if found.hashed or not resolved.stack.python or not (sources or links):
            return None
        bundle = self.job.project / options.ca_bundle if options.ca_bundle else host.env.get("PIP_CERT")
        request = ResolveRequest(
            lines=bare(found.lines, builds=False),
            constraints=bare(found.constraints, builds=False),
            python=resolved.stack.python,
            preferred=tuple(pinned(bare(self.needs.left_out, builds=False), resolved.stack.python)),
            named=tuple((name, at) for name, (at, _) in self.needs.named.items() if name not in (*FREE, *PACKAGES)),
            sources=sources,
            prereleases="--pre" in found.options,
            excluded=tuple(self.needs.image.packages) if self.needs.image else (),
            elsewhere=tuple(resolved.pages),
            links=links,
            overrides=bare(found.lines if self.needs.alone else found.overrides, builds=False),
            authorities=Path(bundle) if bundle else None,
        )
        return dated(request, self.needs)

    def _answer(self, request: ResolveRequest) -> Answer:
        answer = self.resolver.resolve(preferring(self.resolver, request))
        name = answer.name if isinstance(answer, Unsatisfiable) else None
        own_build = any(re.match(rf"{name} *==.*\da0$", line) for line in request.lines)  # of NVIDIA's containers
        if name in OF_TORCH and not own_build:  # only PyTorch's index has this build
            return self.resolver.resolve(replace(request, excluded=(*request.excluded, *OF_TORCH)))
        return answer

    def _without_cuda_of_tensorflow(self, request: ResolveRequest, answer: Unsatisfiable) -> Needs | None:
        """Return the needs with TensorFlow on the CPU, as its list has it, where its CUDA excludes another's."""
        first = framework_place(Requirements(lines=request.lines))
        extra = [line for line in request.lines if line.startswith("tensorflow[and-cuda]")]
        own = not self.needs.feeds or any(each.extras for each in self.needs.requirements.of("tensorflow"))
        if first is None or own or not extra or request.lines[first] in extra or "tensorflow" not in answer.named:
            return None
        why = f"the CUDA libraries of {extra[0]} exclude those of {request.lines[first]}: TensorFlow runs on the CPU"
        return replace(self.needs, unused={**self.needs.unused, "tensorflow": why})

    def _demanded(self, request: ResolveRequest) -> str | None:
        """Return ``torch==2.4.0``: the framework's release that fits the other packages; None: there is none.

        It is the newest; with a day another patch of the chosen one, a newer one of the next year, or the day's newest.
        """
        place = framework_place(Requirements(lines=request.lines))
        if place is None:
            return None
        name = canonicalize_name(Requirement(request.lines[place]).name)
        if name != PACKAGES.get(name):
            return None
        own = bare((line for line in self.needs.requirements.lines if canonical_name(line) == name), builds=False)
        lines = (*request.lines[:place], *(own or (name,)), *request.lines[place + 1 :])
        own = bare(self.needs.requirements.constraints, builds=False)  # without those of the chosen release's partners
        first = replace(request, lines=lines, constraints=own)
        questions, at = [first], dict(pinned(request.lines, request.python)).get(name)
        if request.as_of and at:
            bounds = f"{name}=={'.'.join(at.split('.')[:2])}.*,!={at}", f"{name}>{at}"
            patch, newer = (replace(first, constraints=(*own, bound)) for bound in bounds)
            day = max(framework_day(request.lines)[1], request.as_of)
            newer = newer.dated(name, as_of=later(day, 365))  # those that share CUDA's libraries
            questions = [patch, newer, first.dated(name, as_of=day), first]
        answers = (self.resolver.resolve(each) for each in questions)
        packages = next((each.packages for each in answers if isinstance(each, Lock) and not each.unfit), ())
        found = next((each.version for each in packages if each.name == name), at)
        return f"{name}=={found}" if found != at else None

    def _named(self, package: str) -> str:
        release, place = self.needs.named.get(canonicalize_name(package), ("", ""))
        if f"{package}=={release}" in self.further and package not in self.bounded:
            return f"{package} {release} ({place})"
        own = next(iter(self.needs.requirements.of(canonicalize_name(package), constraints=False)), None)
        line = self.bounded.get(canonicalize_name(package), str(own or ""))
        return f"{line} ({self.needs.source})" if line else f"{package} (which others need)"

    def _refuse_missing(self, answer: Unsatisfiable, request: ResolveRequest) -> None:
        """Raise ConfigError if no index has a listed package or its version."""
        listed = self.needs.requirements.of(answer.name, constraints=False) if answer.no_package else []
        if answer.name in self.bounded or listed:
            raise not_there(self.resolver, answer, request, self.needs, self._named(answer.name))

    def _locked(self, resolved: Resolved, answer: Answer) -> Checked:
        """Lock what was answered, and name what has no hash."""
        request = self.request(resolved)
        if request is None or not isinstance(answer, Lock):
            return Checked()
        refuse_unstartable(self.resolver, request, answer, self.job)
        base = self.needs.image.image if self.needs.image else self.job.image.base
        locked = lock_packages(self.resolver, request, resolved, answer, base)
        if locked is None or isinstance(locked, Unreachable):
            reason = "the list's options or the base image decide which files pip takes"
            reason = f"{locked.reason}: pip resolves them in the build" if locked else reason
            return Checked(answer, None, (Choice(what="not locked", value="all packages", reason=reason),))
        place = framework_place(resolved.requirements)
        framework = () if place is None or locked.framework else resolved.requirements.lines[place : place + 1]
        if framework or locked.rest:
            reason = "no hash is known here: pip chooses the files in the build"
            left = ", ".join((*framework, *locked.rest))
            return Checked(answer, locked, (Choice(what="not locked", value=left, reason=reason),))
        return Checked(answer, locked)
