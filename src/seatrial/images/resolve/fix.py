"""Search for the edits of a project's list after which all of it plans."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace

from packaging.requirements import Requirement

from seatrial.errors import ConfigError, GpuContractError, SeatrialError
from seatrial.images.base import Base
from seatrial.images.requirements.pip_format import Needs, canonical_name, parsed
from seatrial.images.resolve.check import Checked
from seatrial.images.resolve.edits import LOCK_OF, written
from seatrial.images.resolve.framework import Resolved
from seatrial.images.resolve.uv import UvResolver

#: Most refusals in a row that one fix answers; the resolver's time limit ends the search as well.
_MOST_STEPS = 10

#: What is chosen for a project's needs, and warnings about its code.
Chosen = tuple[Base, Resolved, Checked, Needs, tuple[str, ...]]


def chosen_or_fixed(choose: Callable[[Needs], Chosen], needs: Needs, resolver: UvResolver | None) -> Chosen:
    """Return what is chosen for these needs; a refusal shows all edits after which the project plans.

    The search has a time limit of its own.

    Raises ConfigError, GpuContractError: the first refusal, with the edits, or with the refusal that none of them ends.
    """
    try:
        return choose(needs)
    except (ConfigError, GpuContractError) as error:
        refusal: SeatrialError = error
    first, edits = refusal, dict[str, str]()
    if resolver is not None:
        resolver.wait_again()
    for _ in range(_MOST_STEPS):
        further = {canonical_name(line) or line: line for line in refusal.edits()}
        if further.items() <= edits.items():
            break
        edits |= further
        try:
            checked = choose(_edited(needs, edits))[2]
        except (ConfigError, GpuContractError) as error:
            refusal = error
            continue
        late = checked.warnings[:1] if resolver and not checked.lock else ()
        notes = [f"# not checked: {each.partition(': whether')[0]}" for each in late]
        first.run = "\n    ".join([written([*edits.values()], needs), *notes])
        raise first
    if refusal is not first:
        parts = [first.cause, f"with {', '.join(edits.values())}: {refusal.message}", refusal.cause]
        first.cause = "; ".join(filter(None, parts))
        first.run = "\n    ".join(filter(None, [written([*edits.values()], needs), refusal.run]))
    raise first


def _edited(needs: Needs, edits: Mapping[str, str]) -> Needs:
    """Return the needs as the edited files have them; a package manager then locks again."""
    found = needs.requirements
    lines = tuple(dict.fromkeys(_lines(found.lines, edits)))
    listed = set(map(canonical_name, lines))
    added = [line for name, line in edits.items() if name not in listed]
    constraints = () if LOCK_OF.search(needs.reason) else tuple(_lines(found.constraints, edits))
    return needs.changed(replace(found, lines=(*lines, *added), constraints=constraints))


def _lines(listed: Sequence[str], edits: Mapping[str, str]) -> Iterator[str]:
    """Yield the lines with their own extras and markers, and the versions of the edits."""
    for line in listed:
        own, edit = parsed(line), edits.get(canonical_name(line) or "")
        if own is None or edit is None:
            yield line
        else:
            new = Requirement(edit)
            extras = f"[{','.join(sorted(new.extras or own.extras))}]" if new.extras or own.extras else ""
            yield f"{new.name}{extras}{new.specifier}" + (f" ; {own.marker}" if own.marker else "")
