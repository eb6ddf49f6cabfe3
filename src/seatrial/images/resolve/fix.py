"""Search for the edits with which a project's list plans."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import replace

from packaging.requirements import Requirement
from packaging.specifiers import SpecifierSet
from packaging.utils import canonicalize_name

from seatrial.errors import ConfigError, GpuContractError
from seatrial.images.base import Base
from seatrial.images.requirements.adjust import as_torch_decides
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
        if further.items() <= edits.items():
            break
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
