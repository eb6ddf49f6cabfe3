"""Groups in ``runs ls``: runs, newest first, a group's under it with the members that have no run."""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

from seatrial.compose.group import KIND, Group, GroupStore, Member
from seatrial.runs.listing import Line, line_of
from seatrial.runs.store import RunStore
from seatrial.system.host import Host


@dataclass(frozen=True)
class MemberLine(Line):
    """A group, or a member without a run, in the form of a run's line."""

    status: str  # type: ignore[assignment]


@dataclass(frozen=True)
class Listed:
    """One line of ``runs ls``.

    Attributes:
        group: ID of the group that it is, or belongs to. member: its name in the group; None if it is not a member.
    """

    line: Line
    group: str | None = None
    member: str | None = None


def listed(store: RunStore, host: Host, *, limit: int | None = None) -> list[Listed]:
    """Return the newest ``limit`` runs and groups (None: all), newest first; below a group all its members."""
    groups = GroupStore(store)
    found = {group.id: group for group in groups.all()}
    owned = {member.run for group in found.values() for member in group.members}
    ids = store.ids()  # of thousands, of which a screen shows twenty: only those are looked into
    tops = sorted([*found, *(run_id for run_id in ids if run_id not in owned)], reverse=True)[:limit]
    lines: list[Listed] = []
    for top in tops:
        if top in found:
            lines += _group(groups, found[top], ids, host)
        else:
            lines.append(Listed(line_of(store.known(top, recorded=ids[top]), host)))
    return lines


def as_json(lines: list[Listed]) -> list[dict[str, Any]]:
    """Return runs, each with its group and its name in it; groups and members without a run are left out."""
    return [
        {**asdict(each.line), "group": each.group, "member": each.member}
        for each in lines
        if not isinstance(each.line, MemberLine)
    ]


def _group(groups: GroupStore, group: Group, ids: Mapping[str, bool], host: Host) -> list[Listed]:
    if any(member.state == "running" for member in group.members):
        from seatrial.compose.commands import refresh  # a group that lives; most have ended

        group = refresh(groups, group, host)
    lines = []
    for member in group.members:
        if member.run is not None and member.run in ids:
            line = line_of(groups.runs.known(member.run, recorded=ids[member.run]), host)
        else:
            line = _without_run(member)
        lines.append(Listed(line, group.id, member.name))
    return [Listed(_head(group), group.id), *lines]


def _head(group: Group) -> MemberLine:
    count = f"{len(group.members)} member{'s' * (len(group.members) != 1)}"
    failed = ", ".join(member.name for member in group.members if member.state == "failed")
    outcome = {"failed": failed, "interrupted": "seatrial up goes on with it"}.get(group.state, "")
    ends = [member.ended_at for member in group.members if member.ended_at is not None]
    end = max(ends, default=None) if group.state != "running" else time.time()
    return MemberLine(
        id=group.id,
        name=group.name,
        target=f"{KIND}: {count}",
        backend="",
        gpus=sum(member.gpus for member in group.members),
        status=f"interrupted: {outcome}" if group.state == "interrupted" else group.state,
        outcome=outcome,
        seconds=None if end is None else max(0.0, end - group.created_at),
    )


def _without_run(member: Member) -> MemberLine:
    seconds = None
    if member.started_at is not None:
        seconds = (member.ended_at or time.time()) - member.started_at
    run_id = member.run or ""
    return MemberLine(
        run_id, member.name, member.target, member.role, member.gpus, member.state, member.why, seconds=seconds
    )
