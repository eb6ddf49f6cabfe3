"""Choose the packages of a project's list, and search for the edits with which a refused list plans."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import replace

from packaging.requirements import Requirement
from packaging.specifiers import SpecifierSet
from packaging.utils import canonicalize_name

from seatrial.errors import ConfigError, GpuContractError
from seatrial.images.base import Base
from seatrial.images.requirements.adjust import as_torch_decides, of_releases
from seatrial.images.requirements.pip_format import Needs, canonical_name, parsed
from seatrial.images.resolve.check import Checked
from seatrial.images.resolve.edits import CHANGE_IMPORT, LOCK_OF, written
from seatrial.images.resolve.framework import Resolved
from seatrial.images.resolve.uv import UvResolver

#: Most refusals in a row that one fix answers; the resolver's time limit ends the search as well.
_MOST_STEPS = 20

_BY_HAND = "no edit that was tried leads to a plan; name an image that has them: seatrial run --image IMAGE …"

#: What is chosen for a project's needs, and warnings about its code.
Chosen = tuple[Base, Resolved, Checked, Needs, tuple[str, ...]]


def of_list_or_imports(
    choose: Callable[[Needs], Chosen], prepared: Callable[..., Needs], day: str, resolver: UvResolver | None
) -> Chosen:
    """Choose the packages of the list or, of a frozen one that cannot be installed as a whole, what is imported."""
    needs = prepared(imported=False)
    if found := _of_day(choose, needs, day, resolver):
        return found
    fewer = prepared(imported=True) if needs.requirements.frozen else needs
    if fewer.left_out:
        try:
            found = choose(needs)
            refusal = "" if found[2].lock else "; ".join(found[2].warnings[:1])
            if not refusal:
                return found
        except (ConfigError, GpuContractError) as error:
            refusal = error.message
        note = f"{len(fewer.left_out)} of the {fewer.listed} packages that {needs.source} lists are"
        note += f" left out, as the target does not import them and no releases of all fit together ({refusal})"
        note += f'; to install all, in seatrial.toml: [image] requirements = ["-r {needs.source}"]'
        needs = fewer.changed(fewer.requirements, warning=note)
        if resolver is not None:
            resolver.began = None
        if found := _of_day(choose, needs, day, resolver):
            return found
    return chosen_or_fixed(choose, needs, resolver)


def _of_day(choose: Callable[[Needs], Chosen], needs: Needs, day: str, resolver: UvResolver | None) -> Chosen | None:
    """Choose packages of the day of the code; None without a day, or where it has no solution."""
    if not day or resolver is None:
        return None
    with suppress(ConfigError, GpuContractError):
        found = choose(replace(of_releases(needs, day), as_of=day))
        if found[2].lock is not None or resolver.late:  # a slow machine gets no other image
            return found
    resolver.began = None  # the attempt does not count towards the time limit
    return None


def chosen_or_fixed(choose: Callable[[Needs], Chosen], needs: Needs, resolver: UvResolver | None) -> Chosen:
    """Return what is chosen for these needs; a search for edits, in a time of its own, follows a refusal.

    Raises ConfigError, GpuContractError: the first refusal, with the edits unless the refusal they leave is about one.
    """
    try:
        return choose(needs)
    except (ConfigError, GpuContractError) as error:
        first = refusal = error
    python, aside = needs.unwished
    if python != needs.requirements.python and "does not satisfy Python" in (first.cause or ""):  # uv's words
        warnings = (*(each for each in needs.warnings if "the project excludes it" not in each), *aside)
        needs = replace(needs.changed(replace(needs.requirements, python=python)), warnings=warnings)
        return chosen_or_fixed(choose, needs, resolver)
    edits, further = dict[str, str](), dict[str, str]()
    if resolver is not None:
        resolver.began = None
    for _ in range(_MOST_STEPS):
        further = {canonical_name(line) or line: line for line in refusal.edits()}
        if further.items() <= edits.items() or (refusal is not first and resolver and resolver.left_s() < 1):
            break  # a choice without an answer proves nothing
        edits |= further
        try:
            _, resolved, checked, *_ = choose(_edited(needs, edits))
        except (ConfigError, GpuContractError) as error:
            refusal = error
            continue
        edits |= {"python": f"python=={resolved.stack.python}.*"} if "python" in edits else {}
        unread = checked.warnings[:1] if resolver and not checked.lock else ()
        notes = (f"   # not checked: {each.partition(': whether')[0]}" for each in unread)
        first.run = "".join((written([*edits.values()], needs), *notes))
        raise first
    if refusal is not first:
        parts = first.cause, f"with {', '.join(edits.values())}: {refusal.message}", refusal.cause
        first.cause = "; ".join(filter(None, parts))
        late = "seatrial plan …   # again: the time limit ended the search" * bool(resolver and resolver.left_s() < 1)
        named = {*map(canonicalize_name, re.findall(r"[A-Za-z][\w.-]*\w", refusal.message))}
        about = named & edits.keys() and not (refusal.run or "").startswith(CHANGE_IMPORT)  # they do not help
        ways = (late or _BY_HAND,) if about else (written([*edits.values()], needs), refusal.run)
        first.run = "\n    ".join(dict.fromkeys(filter(None, (*ways, late))))
    raise first


def _edited(needs: Needs, edits: Mapping[str, str]) -> Needs:
    """Return the needs of the edited files: lines keep their extras and markers, and a lock is made again."""

    def edited(line: str) -> str:
        own, edit = parsed(line), edits.get((canonical_name(line) or "").removesuffix("-cpu"))
        new = Requirement(edit) if own and edit else None
        if own is None or new is None:
            return line
        new.extras, new.marker = new.extras or own.extras, new.marker or own.marker
        return str(new)

    found = needs.requirements
    lines = dict.fromkeys(map(edited, found.lines))
    added = [line for name, line in edits.items() if name not in ("python", *map(canonical_name, lines))]
    python = SpecifierSet() if "python" in edits else found.python
    constraints = () if LOCK_OF.search(needs.reason) else tuple(map(edited, found.constraints))
    changed = replace(found, lines=(*lines, *added), constraints=constraints, python=python)
    return as_torch_decides(needs.changed(changed), edited=True)
