"""List groups in ``runs ls``: runs, newest first; members under their group, trials under their sweep."""

from __future__ import annotations

import re
import time
from collections import Counter
from collections.abc import Collection, Mapping
from contextlib import suppress
from dataclasses import asdict, dataclass
from typing import Any, NamedTuple

from seatrial.compose.group import KIND, Group, GroupStore, Member
from seatrial.errors import UntrustedPathError
from seatrial.runs.status import RunLine, line_of, started_at
from seatrial.runs.store import RunStore
from seatrial.system.host import Host
from seatrial.system.records import Folder

#: The number of a trial and its run, in a line of a study's journal (search/study.py).
_TRIAL = re.compile(rb'"trial_id": ?([0-9]+), ?"user_attr": ?\{"run": ?"([0-9a-z-]+)"')
#: A journal has some 200 bytes for each report of a trial.
_MOST_JOURNAL_BYTES = 64 << 20


@dataclass(frozen=True)
class MemberLine(RunLine):
    """A group, a sweep, or a member without a run, in the form of a run's line."""

    status: str  # type: ignore[assignment]


class Listed(NamedTuple):
    """One line of ``runs ls``.

    ``group``: ID of the group, or name of the sweep, that it is or belongs to. ``member``: its name there, or None.
    """

    line: RunLine
    group: str | None = None
    member: str | None = None


def listed(store: RunStore, host: Host, *, limit: int | None = None) -> list[Listed]:
    """Return the newest ``limit`` runs, groups and sweeps (None: all), newest first, each with all its members."""
    groups = GroupStore(store)
    found = {group.id: group for group in groups.all()}
    owned = {member.run for group in found.values() for member in group.members}
    ids = store.ids()  # of thousands, of which a screen shows twenty: only those are looked into
    sweeps = {min(trials.values()): (name, trials) for name, trials in _sweeps(store, ids).items()}
    owned.update(run_id for _, trials in sweeps.values() for run_id in trials.values())
    tops = sorted([*found, *sweeps, *(run_id for run_id in ids if run_id not in owned)], reverse=True)[:limit]
    lines: list[Listed] = []
    for top in tops:
        if top in found:
            lines += _group(groups, found[top], ids, host)
        elif top in sweeps:
            name, trials = sweeps[top]
            lines += _sweep(name, trials, [line_of(store.run(run), host) for run in trials.values()])
        else:
            lines.append(Listed(line_of(store.run(top), host)))
    return lines


def as_json(lines: list[Listed], store: RunStore) -> list[dict[str, Any]]:
    """Return runs, each with its group, its name in it, its start and its project; other lines are left out."""
    of = {"project": str(store.project)}
    return [
        {**asdict(each.line), "group": each.group, "member": each.member, "started_at": started_at(each.line.id), **of}
        for each in lines
        if not isinstance(each.line, MemberLine)
    ]


def _group(groups: GroupStore, group: Group, ids: Collection[str], host: Host) -> list[Listed]:
    if any(member.state == "running" for member in group.members):
        from seatrial.compose.commands import refresh  # a group that lives; most have ended

        group = refresh(groups, group, host)
    found = [Listed(_head(group), group.id)]
    for member in group.members:
        run = groups.runs.run(member.run) if member.run is not None and member.run in ids else None
        found.append(Listed(line_of(run, host) if run else _without_run(member), group.id, member.name))
    return found


def _sweeps(store: RunStore, ids: Collection[str]) -> dict[str, dict[int, str]]:
    """Return study → number of each trial that has a run → the run's ID."""
    found = {}
    for journal in (store.record / "sweeps").glob("*/study.journal"):
        with suppress(OSError, UntrustedPathError):
            text = Folder(journal.parent).load(journal.name, max_bytes=_MOST_JOURNAL_BYTES)
            trials = {int(number): run_id.decode() for number, run_id in _TRIAL.findall(text)}
            found[journal.parent.name] = {number: run_id for number, run_id in sorted(trials.items()) if run_id in ids}
    return {name: trials for name, trials in found.items() if trials}


def _sweep(name: str, trials: Mapping[int, str], lines: list[RunLine]) -> list[Listed]:
    states = Counter(line.status for line in lines)
    live = next((state for state in ("running", "starting", "waiting") if states[state]), None)
    status = live or ", ".join(f"{count} {state}" for state, count in states.items())
    count = f"sweep: {len(lines)} trial{'s' * (len(lines) != 1)}"
    gpus = max(line.gpus or 0 for line in lines)
    head = MemberLine(min(trials.values())[:15], name, count, "", gpus, status, "")
    return [Listed(head, name), *(Listed(line, name, f"trial {at}") for at, line in zip(trials, lines, strict=True))]


def _head(group: Group) -> MemberLine:
    count = f"{len(group.members)} member{'s' * (len(group.members) != 1)}"
    failed = ", ".join(member.name for member in group.members if member.state == "failed")
    outcome = {"failed": failed, "interrupted": "seatrial up goes on with it"}.get(group.state, "")
    ends = [member.ended_at for member in group.members if member.ended_at is not None]
    end = max(ends, default=None) if group.state != "running" else time.time()
    gpus = sum(member.gpus for member in group.members)
    status = f"interrupted: {outcome}" if group.state == "interrupted" else group.state
    seconds = None if end is None else max(0.0, end - group.created_at)
    return MemberLine(group.id, group.name, f"{KIND}: {count}", "", gpus, status, outcome, seconds=seconds)


def _without_run(member: Member) -> MemberLine:
    seconds = None if member.started_at is None else (member.ended_at or time.time()) - member.started_at
    shared = member.name, member.target, member.role, member.gpus, member.state, member.why
    return MemberLine(member.run or "", *shared, seconds=seconds)
