"""Keep Group and Member: the services that one ``seatrial up`` started, in the store of the project's runs.

A group owns no process. Its file is its whole state, changed under a lock and replaced whole: a later command goes on
where a killed one ended. A member that computes is a run with its own record; the group only has its ID.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any, Literal

from seatrial.errors import DiskError, NameInUseError, RunNotFoundError, SeatrialError, os_errors
from seatrial.runs.run import Run, Summary
from seatrial.runs.store import CLAIMS, RunStore, is_run_id, new_run_id
from seatrial.system import nofollow
from seatrial.system.records import Folder, Process, typed
from seatrial.system.text import did_you_mean

#: task: ends by itself. service: runs until it is stopped.
Role = Literal["task", "service"]
#: waiting: for others, or for a GPU. skipped: a task that it needs failed.
State = Literal["waiting", "running", "done", "failed", "stopped", "skipped"]
#: States from which a member does not go on by itself.
ENDED: frozenset[State] = frozenset({"done", "failed", "stopped", "skipped"})
#: interrupted: no command line follows it, and it is not complete.
GroupState = Literal["running", "done", "failed", "stopped", "interrupted"]
#: Folder of a project with the chained receipts that people read.
PAGES = (".seatrial", "pipelines")
#: Kind of the records. Groups of other kinds, which earlier versions had, are not read; their runs stand alone.
KIND = "compose"

_FILE = "group.json"
_MOST_BYTES = 8 << 20
_SCHEMA_VERSION = 1


@dataclass(frozen=True)
class Member:
    """One Compose service; times are seconds since the epoch.

    ``needs``: members that must be done before. ``run``: ID of its run; None if it has none yet, or is not measured.
    ``why``: the state's reason. ``gpus``: how many it holds or held.
    """

    name: str
    role: Role = "task"
    target: str = ""
    needs: tuple[str, ...] = ()
    state: State = "waiting"
    why: str = ""
    run: str | None = None
    exit_code: int | None = None
    started_at: float | None = None
    ended_at: float | None = None
    gpus: int = 0
    details: dict[str, Any] = field(default_factory=dict)

    @property
    def ended(self) -> bool:
        return self.state in ENDED


@dataclass(frozen=True)
class Group:
    """The members of one ``seatrial up``.

    ``launcher``: (PID, start time in ticks) of the command line that follows it; None if it is complete. ``details``:
    Compose's project, files, profiles, and engine.
    """

    id: str
    members: tuple[Member, ...]
    name: str | None = None
    created_at: float = 0.0
    launcher: tuple[int, int] | None = None
    details: dict[str, Any] = field(default_factory=dict)

    def member(self, name: str) -> Member:
        return next(member for member in self.members if member.name == name)

    @property
    def followed(self) -> bool:
        """Return True while the process that follows the group lives."""
        return is_alive(self.launcher)

    @property
    def state(self) -> GroupState:
        """Derive the state from the members' recorded states; a service is done when it is stopped."""
        states = {"done" if each.state == "stopped" and each.role == "service" else each.state for each in self.members}
        if states <= {"done"}:
            return "done"
        if "running" in states or self.followed:
            return "running"
        if "waiting" in states:
            return "interrupted"
        return "failed" if "failed" in states else "stopped"

    def is_in_the_way_of(self, other: Group) -> bool:
        """Return True if it was prepared or started, has not ended, and has the other's name or project."""
        if all(member.ended for member in self.members) or not (self.followed or self.details.get("compose")):
            return False
        names = {self.name, self.details.get("project")} & {other.name, other.details.get("project")}
        return bool(names - {None})

    def changed(self, name: str, **changes: Any) -> Group:
        """Return the group with other values of one member."""
        members = tuple(replace(each, **changes) if each.name == name else each for each in self.members)
        return replace(self, members=members)


def identity(process: Process) -> tuple[int, int]:
    """Return the PID and start time of a process, as recorded in a group's file."""
    return process.pid, process.started_ticks


def is_alive(kept: Sequence[int] | None) -> bool:
    """Return True while the process of this identity lives; False for None."""
    return kept is not None and Process(pid=kept[0], started_ticks=kept[1]).is_alive()


class GroupStore:
    """The groups of the project whose runs are in ``store``."""

    def __init__(self, store: RunStore) -> None:
        self.runs = store
        self.root = store.record / "groups"

    def folder(self, group_id: str) -> Path:
        """Return the folder of a group's record."""
        return self.root / group_id

    def create(self, members: tuple[Member, ...], *, name: str | None = None, details: Mapping[str, Any] = {}) -> Group:
        """Make a group that we follow. Raises DiskError, NameInUseError: a live one has its name or Compose project."""
        group = Group(new_run_id(), members, name, time.time(), identity(Process.this()), dict(details))
        with os_errors(DiskError, "Cannot create the folder of a group", "df -h ~"):
            self.root.mkdir(mode=0o700, parents=True, exist_ok=True)
            with Folder(self.runs.record).lock(CLAIMS):
                if (other := next((each for each in self.all() if each.is_in_the_way_of(group)), None)) is not None:
                    title = other.name or other.id
                    run = f"seatrial runs stop {title}{self.runs.option}   # or: seatrial up --name ANOTHER"
                    problem = f'The name "{title}" belongs to group {other.id}, which has not ended'
                    raise NameInUseError(problem, run=run)
                self.folder(group.id).mkdir(mode=0o700)
                self._write(group)
        return group

    def all(self) -> list[Group]:
        """Return every group that can be read, oldest first."""
        try:
            names = sorted(entry.name for entry in os.scandir(self.root) if is_run_id(entry.name))
        except OSError:
            return []
        return [group for name in names if (group := self.read(name)) is not None]

    def read(self, group_id: str) -> Group | None:
        """Return the group as it is now; None if there is none, or none that can be read."""
        group = Folder(self.folder(group_id)).read(_FILE, _from_json, max_bytes=_MOST_BYTES)
        return group if group is not None and group.id == group_id else None

    def find(self, reference: str) -> Group:
        """Return the group of an ID, part of one, or name; ``last`` is the newest. Raises RunNotFoundError."""
        if (group := self.look_up(reference)) is None:
            names = [each.name for each in self.all() if each.name]
            problem = f'No group "{reference}" in this project{did_you_mean(reference, names)}'
            raise RunNotFoundError(problem, run="seatrial runs ls   # lists groups too")
        return group

    def look_up(self, reference: str) -> Group | None:
        """Find a group as ``find`` does; None if there is none."""
        groups = self.all()
        if reference == "last":
            return groups[-1] if groups else None
        for group in reversed(groups):
            if reference in (group.id, group.name):
                return group
        partial = [group for group in groups if group.id.startswith(reference) or group.id.endswith(f"-{reference}")]
        if len(partial) > 1:
            listed = ", ".join(group.id for group in partial[-3:])
            raise RunNotFoundError(f'"{reference}" matches {len(partial)} groups: {listed}', run="seatrial runs ls")
        return partial[0] if partial else None

    def change(self, group: Group, name: str, **changes: Any) -> Group:
        """Record other values of one member; safe from several threads and processes."""
        return self._changed(group, lambda now: now.changed(name, **changes))

    def change_group(self, group: Group, **changes: Any) -> Group:
        """Record other values of the group itself."""
        return self._changed(group, lambda now: replace(now, **changes))

    def _changed(self, group: Group, change: Callable[[Group], Group]) -> Group:
        """Change the group as it is now, while no other process does; return it."""
        with Folder(self.folder(group.id)).lock(".lock"):
            self._write(now := change(self.read(group.id) or group))
        return now

    def remove(self, group: Group) -> None:
        """Forget a group, and delete its receipt in the project; its runs stay."""
        shutil.rmtree(self.folder(group.id), ignore_errors=True)
        with contextlib.suppress(OSError, SeatrialError), nofollow.folder(self.runs.project, *PAGES) as pages:
            nofollow.remove_tree(pages, group.id)

    def without_runs(self) -> list[Group]:
        """Return groups that have ended and whose runs are all gone; pruning forgets them."""
        return [
            group
            for group in self.all()
            if not group.followed
            and all(member.ended for member in group.members)
            and not any(member.run and self.runs.run(member.run).folder.exists() for member in group.members)
        ]

    def _write(self, group: Group) -> None:
        Folder(self.folder(group.id)).write(_FILE, {"schema_version": _SCHEMA_VERSION, "kind": KIND, **asdict(group)})


def ended(summary: Summary) -> dict[str, Any]:
    """Return the new values of a member whose run has this summary."""
    state = "stopped" if summary.cause == "stopped" else "done" if summary.exit_code == 0 else "failed"
    return {"state": state, "why": "" if state == "done" else summary.outcome, "exit_code": summary.exit_code}


def _from_json(loaded: Any) -> Group:
    """Parse a group. Raises KeyError, TypeError or ValueError for anything but one of this version."""
    if loaded["schema_version"] != _SCHEMA_VERSION or loaded["kind"] != KIND:
        raise ValueError(loaded["kind"])
    group = typed(Group, loaded)
    for at in (group.created_at, *(at for each in group.members for at in (each.started_at, each.ended_at))):
        time.localtime(at)  # raises OverflowError for a time that is none
    return group


def find_run(store: RunStore, reference: str) -> Run:
    """Find a run as ``RunStore.find``, or by a service of the newest group that has it. Raises RunNotFoundError."""
    members = newest_members(store)
    runs = {name: member.run for name, (_, member) in members.items() if member.run is not None}
    without = next((found for name, found in members.items() if name == reference and name not in runs), None)
    try:
        return store.find(reference, also=runs)
    except RunNotFoundError:
        if without is None:
            if GroupStore(store).look_up(reference) is None and not (store.record / "sweeps" / reference).is_dir():
                raise
            run = f"seatrial runs show {reference}   # lists its runs"
            raise RunNotFoundError(f'"{reference}" names a group of runs', run=run) from None
        group, member = without
        why = f": {member.why}" if member.why else ""
        logs = f"docker compose -p {group.details.get('project')} logs {reference}"
        ends = f"{logs}   # seatrial runs stop {group.id} stops the whole group"
        run = ends if member.state == "running" else f"seatrial runs show {group.id}"
        problem = f'"{reference}" of group {group.id} has no run; it is {member.state}{why}'
        raise RunNotFoundError(problem, run=run) from None


def newest_members(store: RunStore) -> dict[str, tuple[Group, Member]]:
    """Return each member's name → the newest group that has one, and it."""
    return {member.name: (group, member) for group in GroupStore(store).all() for member in group.members}
