"""Date a project by its code, and limit unpinned packages to the releases of that day."""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator
from dataclasses import replace
from datetime import date, datetime, timedelta, timezone

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from seatrial.images.requirements.adjust import of_releases
from seatrial.images.requirements.pip_format import Needs, Requirements
from seatrial.images.requirements.source_builds import SourceBuild
from seatrial.images.resolve.answers import Lock, ResolveRequest
from seatrial.images.resolve.framework import FRAMEWORKS, PACKAGES, Resolved, framework_place
from seatrial.images.resolve.uv import UvResolver
from seatrial.images.resolve.uv_texts import bare, pinned
from seatrial.job.model import Job
from seatrial.job.plan import Choice
from seatrial.stack.facts import released, table
from seatrial.stack.resolve import PYTHON_SINCE
from seatrial.stack.rules import PARTNERS
from seatrial.system.checkout import code_time
from seatrial.system.text import first_of

#: Code of the last two months takes current releases; files of an archive without times date from 1970 or 1980.
_CURRENT_DAYS, _FIRST = 60, "2015-01-01"

#: Days after a framework's release within which the packages that it requires were released.
_SOON_DAYS = 30

#: Packages without a day: each of their releases fits one release of a framework.
FREE = tuple(each for few in PARTNERS.values() for each in few)

#: Prefixes of packages that use TensorFlow's internals: they date from TensorFlow's release, not from the code.
_OF_TENSORFLOW = ("tensorflow", "tf-", "keras")

#: Packages that transformers requires at run time: its Trainer of 4.33 fails with accelerate 1.0.
_OF_TRANSFORMERS = ("accelerate", "tokenizers")

#: Days after the author's newest release, by which what they require was released: pytorch-lightning 1.4.2 fails with
#: torchmetrics 0.8, of eight months later.
_AFTER_DAYS = 90

#: Most packages named in the plan's row.
_MOST_NAMED = 6


def day_of(job: Job) -> str:
    """Return the day of the job's code, as 2021-09-03; "" for current releases."""
    if job.image.as_of is not None:
        return job.image.as_of.removeprefix("today")
    if job.target.kind not in ("script", "module") or job.serve is not None:
        return ""
    day = _day(code_time(job.project))
    return day if _FIRST <= day < _day(time.time() - _CURRENT_DAYS * 86_400) else ""


def dated(request: ResolveRequest, needs: Needs) -> ResolveRequest:
    """Return the request with the day of the code, or of its Python; pins and the framework's partners have none.

    What the lines require has the author's day if that is earlier.
    """
    of_code = needs.as_of and later(max(needs.as_of, PYTHON_SINCE.get(request.python, "")), 1)
    if not (day := min(filter(None, (of_code, needs.until)), default="")):
        return request
    free = (*FREE, *pins((*request.lines, *request.constraints)))
    own = [name for name in _names(request.lines) if name not in _OF_TRANSFORMERS] if day != of_code else []
    framework, theirs = framework_day(request.lines)
    found = replace(request, as_of=day, soon=theirs).dated(*own, as_of=of_code)
    beginnings = _OF_TENSORFLOW if framework == "tensorflow" else ()
    names = [name for name in _names(request.lines) if name.startswith(beginnings)]
    names += table("import_names")["of_jax"].split() if framework == "jax" and theirs > (of_code or theirs) else ()
    return found.dated(*names, as_of=max(theirs, of_code) if of_code else "").dated(*free)


def limited(resolver: UvResolver, request: ResolveRequest, needs: Needs) -> Needs:
    """Limit what others require to soon after the newest release that a list pins or a page names, if most do.

    A framework's release is the GPU's, and what it requires has no day.
    """
    lines = bare(needs.requirements.lines, builds=False)
    own = {name: at for name, (at, _) in needs.named.items()} | dict(pinned(lines, request.python))
    listed = [name for name in _names(lines) if name not in (*FREE, *PACKAGES)]
    own = {name: own[name] for name in listed if name in own}
    days = resolver.uploads(request, own) if 2 * len(own) > len(listed) and not needs.until else {}
    newest = max(days, key=lambda name: days[name], default="")
    if not days.get(newest) or (until := later(days[newest], _AFTER_DAYS)) >= (needs.as_of or _day(time.time())):
        return needs
    why = f"what they require is as of {until}, {_AFTER_DAYS} days after {newest} {own[newest]}"
    return replace(needs.changed(needs.requirements, why=why), until=until)


def with_releases(resolver: UvResolver, request: ResolveRequest, needs: Needs) -> Needs:
    """Replace each repository without a commit, whose head is today's, by its release on the day of the pins."""
    taken = of_releases(needs, needs.until) if needs.until else needs
    lines = (line for line in taken.requirements.lines if line not in needs.requirements.lines)
    found = resolver.resolve(replace(request.only(*lines), as_of=needs.until, dates=())) if taken != needs else None
    exact = [f"{each.name}=={each.version}" for each in found.packages] if isinstance(found, Lock) else []
    return taken.changed(taken.requirements.plus(constraints=exact)) if exact else needs


def named_row(needs: Needs, resolved: Resolved, lock: Lock) -> tuple[Choice, ...]:
    """Return the plan's row about releases that the project's pages name, and that no list pins."""
    found, stack = needs.requirements, resolved.stack
    at = {each.name: each.version for each in lock.packages} | stack.facts
    lines = bare((*found.lines, *found.constraints), builds=False)
    bounded = {*_names(line for line in lines if Requirement(line).specifier)} & PACKAGES.keys()
    bounds = {*FREE, *bounded, *pins(lines), *["python"] * len(needs.python)}
    used, other = list[str](), list[str]()
    for name, (release, place) in needs.named.items():
        if name in at and name not in bounds:
            same = f"{release}.".startswith(f"{at[name]}.") or f"{at[name]}.".startswith(f"{release}.")
            (used if same else other).append(f"{name} {release} ({place})")
    why = f"the lists, the code's day, the GPU, a Python, the index or another package excludes {', '.join(other)}"
    why = why if other else "the project's pages name them"
    return (Choice(what="named releases", value=", ".join(used) or "none", reason=why),) if used or other else ()


def framework_day(lines: tuple[str, ...]) -> tuple[str, str]:
    """Return the framework, and the day by which what it requires was released; "" for an unknown release."""
    if (place := framework_place(Requirements(lines=lines))) is None:
        return "", ""
    requirement = Requirement(lines[place])
    framework = PACKAGES[canonicalize_name(requirement.name)]
    day = next(filter(None, (released(framework, each.version) for each in requirement.specifier)), "")
    return framework, later(day, _SOON_DAYS) if day else ""


def held(
    resolved: Resolved, needs: Needs, request: ResolveRequest, lock: Lock, builds: Iterable[SourceBuild], *, given: bool
) -> tuple[Resolved, tuple[Choice, ...]]:
    """Constrain unpinned packages to the releases found, also for pip; return the plan's row."""
    own_days = dict(request.dates)
    names = [name for name in _names(request.lines) if own_days.get(name, "-") and "*" not in lock.later]
    at = {each.name: each.version for each in lock.packages} | {each.name: each.at for each in builds if each.at}
    exact = tuple(f"{name}=={at[name]}" for name in names if name in at)
    rows = resolved.choices if needs.as_of else ()
    shown: list[str] = [each.what for each in rows if each.what in FRAMEWORKS and needs.as_of in each.reason]
    late = framework_day(request.lines)[1]
    shown += [name for name in names if name in at and name not in lock.later and own_days.get(name) != late]
    if not shown:
        return replace(resolved, requirements=resolved.requirements.plus(constraints=exact)), ()
    listed = first_of(shown, _MOST_NAMED)
    why = "the last change to the code" if needs.as_of else "soon after the releases that the project names"
    why = "image.as_of in seatrial.toml" if given and needs.as_of else why
    day = needs.as_of or needs.until
    if needs.as_of and (since := PYTHON_SINCE.get(request.python, "")) > day:
        day, why = since, f"when packages had wheels for Python {request.python}; {why} is of {day}"
    row = Choice(what="as of", value=day, reason=f"{listed}: {why}")
    return replace(resolved, requirements=resolved.requirements.plus(constraints=exact)), (row,)


def _names(lines: Iterable[str]) -> Iterator[str]:
    yield from dict.fromkeys(canonicalize_name(Requirement(line).name) for line in lines)


def pins(lines: Iterable[str]) -> Iterator[str]:
    """Yield the packages that a line pins."""
    exact = (line for line in lines if any(each.operator.startswith("==") for each in Requirement(line).specifier))
    yield from _names(exact)


def _day(seconds: float) -> str:
    return datetime.fromtimestamp(seconds, timezone.utc).date().isoformat()


def later(day: str, days: int) -> str:
    return (date.fromisoformat(day) + timedelta(days=days)).isoformat()
