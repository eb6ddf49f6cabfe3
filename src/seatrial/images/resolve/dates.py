"""Date a project by its code, and limit unpinned packages to the releases of that day."""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator
from dataclasses import replace
from datetime import date, datetime, timedelta, timezone

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from seatrial.images.requirements.pip_format import Needs, Requirements
from seatrial.images.requirements.source_builds import SourceBuild
from seatrial.images.resolve.answers import Lock, ResolveRequest
from seatrial.images.resolve.framework import FRAMEWORKS, PACKAGES, Resolved, framework_place
from seatrial.job.model import Job
from seatrial.job.plan import Choice
from seatrial.stack.facts import released
from seatrial.stack.resolve import PYTHON_SINCE
from seatrial.stack.rules import PARTNERS
from seatrial.system.checkout import code_time

#: Code of the last two months takes current releases; files of an archive without times date from 1970 or 1980.
_CURRENT_DAYS, _FIRST = 60, "2015-01-01"

#: Days after a framework's release within which the packages that it requires were released.
_SOON_DAYS = 30

#: Packages without a day: each of their releases fits one release of a framework.
_FREE = tuple(each for few in PARTNERS.values() for each in few)

#: Prefixes of packages that use TensorFlow's internals: they date from TensorFlow's release, not from the code.
_OF_TENSORFLOW = ("tensorflow", "tf-", "keras")

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
    """Return the request with the day of the code, or of its Python; pins and the framework's partners have none."""
    if not needs.as_of:
        return request
    day = _later(max(needs.as_of, PYTHON_SINCE.get(request.python, "")), 1)
    found = replace(request, as_of=day).dated(*_FREE, *pins((*request.lines, *request.constraints)))
    framework, theirs = framework_day(request.lines)
    beginnings = {"jax": ("",), "tensorflow": _OF_TENSORFLOW}.get(framework, ())
    names = [name for name in _names(request.lines) if name.startswith(beginnings) and name not in dict(found.dates)]
    return found.dated(*names, as_of=max(theirs, day))


def framework_day(lines: tuple[str, ...]) -> tuple[str, str]:
    """Return the framework, and the day by which what it requires was released; "" for an unknown release."""
    if (place := framework_place(Requirements(lines=lines))) is None:
        return "", ""
    requirement = Requirement(lines[place])
    framework = PACKAGES[canonicalize_name(requirement.name)]
    day = next(filter(None, (released(framework, each.version) for each in requirement.specifier)), "")
    return framework, _later(day, _SOON_DAYS) if day else ""


def held(
    resolved: Resolved, needs: Needs, request: ResolveRequest, lock: Lock, builds: Iterable[SourceBuild], *, given: bool
) -> tuple[Resolved, tuple[Choice, ...]]:
    """Constrain unpinned packages to the releases found, also for pip; return the plan's row."""
    own_days = dict(request.dates)
    names = [name for name in _names(request.lines) if own_days.get(name, "-") and "*" not in lock.later]
    at = {each.name: each.version for each in lock.packages} | {each.name: each.at for each in builds if each.at}
    exact = tuple(f"{name}=={at[name]}" for name in names if name in at)
    chosen = [each.what for each in resolved.choices if each.what in FRAMEWORKS and needs.as_of in each.reason]
    shown = [*chosen, *(name for name in names if name in at and name not in lock.later)]
    if not shown:
        return replace(resolved, requirements=resolved.requirements.plus(constraints=exact)), ()
    listed = ", ".join(shown[:_MOST_NAMED]) + (f" and {len(shown) - _MOST_NAMED} more" * (len(shown) > _MOST_NAMED))
    why = "image.as_of in seatrial.toml" if given else "the last change to the code"
    row = Choice(what="as of", value=needs.as_of, reason=f"{listed}: {why}")
    return replace(resolved, requirements=resolved.requirements.plus(constraints=exact)), (row,)


def _names(lines: Iterable[str]) -> Iterator[str]:
    yield from dict.fromkeys(canonicalize_name(Requirement(line).name) for line in lines)


def pins(lines: Iterable[str]) -> Iterator[str]:
    """Yield the packages that a line pins."""
    exact = (line for line in lines if any(each.operator.startswith("==") for each in Requirement(line).specifier))
    yield from _names(exact)


def _day(seconds: float) -> str:
    return datetime.fromtimestamp(seconds, timezone.utc).date().isoformat()


def _later(day: str, days: int) -> str:
    return (date.fromisoformat(day) + timedelta(days=days)).isoformat()
