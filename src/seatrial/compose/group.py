"""Group and Member: what one ``seatrial up`` started, as a record in the state folder beside the project's runs.

A group owns no process. Its file is its whole state, changed under a lock and replaced whole, so that a killed command
line loses nothing: a later ``up``, ``down`` or ``runs ls`` reads it and goes on. What a member computes is a run with
its own record; the group only knows its ID. Listing groups loads no models, as listing runs does not.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import shutil
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field, fields, replace
from pathlib import Path
from typing import Any, Literal

from seatrial.errors import DiskError, RunNotFoundError, SeatrialError, UntrustedPathError
from seatrial.probe import processes
from seatrial.runs.store import RunStore, is_run_id, new_run_id
from seatrial.system import nofollow
from seatrial.system.files import write_atomically
from seatrial.system.near import did_you_mean

#: task: ends by itself. service: runs until it is stopped.
Role = Literal["task", "service"]

#: waiting: for others, or for a GPU. skipped: what it needs failed.
State = Literal["waiting", "running", "done", "failed", "stopped", "skipped"]

#: States from which a member does not go on by itself.
ENDED: frozenset[State] = frozenset({"done", "failed", "stopped", "skipped"})

#: Of a whole group; interrupted: nobody looks after it and it is not complete.
GroupState = Literal["running", "done", "failed", "stopped", "interrupted"]

#: In a project: chained receipts, for people.
PAGES = (".seatrial", "pipelines")

#: Of the records; groups of kinds that earlier versions had are not read, their runs stand for themselves.
KIND = "compose"

_FILE = "group.json"
_MOST_BYTES = 8 << 20
_SCHEMA_VERSION = 1


@dataclass(frozen=True)
class Member:
    """One Compose service.

    Attributes:
        needs: members that must be done before.
        run: ID of the run that it is; None: none yet, or it is not one of ours.
        why: the state's reason in words.
        started_at, ended_at: seconds since the epoch.
        gpus: how many it holds or held.
        details: what the kind of group keeps of it, as JSON has it.
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
    """What belongs together.

    Attributes:
        launcher: (PID, start time in ticks) of the command line that looks after it; None: nobody has to.
        details: what the kind of group keeps, as JSON has it.
    """

    id: str
    members: tuple[Member, ...]
    name: str | None = None
    created_at: float = 0.0
    launcher: tuple[int, int] | None = None
    details: dict[str, Any] = field(default_factory=dict)

    def member(self, name: str) -> Member:
        """Raises KeyError."""
        for member in self.members:
            if member.name == name:
                return member
        raise KeyError(name)

    @property
    def looked_after(self) -> bool:
        """Its command line lives."""
        if self.launcher is None:
            return False
        process = processes.read(self.launcher[0])
        return process is not None and process.started_ticks == self.launcher[1] and process.state != "Z"

    @property
    def state(self) -> GroupState:
        """Of the members' states, as far as they have been written down."""
        states = {member.state for member in self.members}
        live = any(member.state == "running" for member in self.members)
        if states <= {"done"}:
            return "done"
        if live or self.looked_after:
            return "running"
        if "waiting" in states:
            return "interrupted"
        return "failed" if "failed" in states else "stopped"

    def changed(self, name: str, **changes: Any) -> Group:
        """With other values of one member."""
        return replace(
            self, members=tuple(replace(each, **changes) if each.name == name else each for each in self.members)
        )


def this_process() -> tuple[int, int]:
    """For ``Group.launcher``: this command line."""
    me = processes.read(os.getpid())
    assert me is not None
    return me.pid, me.started_ticks


class GroupStore:
    """The groups of one project.

    Args:
        store: the runs of the same project.
    """

    def __init__(self, store: RunStore) -> None:
        self.runs = store
        self.root = store.record / "groups"

    def folder(self, group_id: str) -> Path:
        """The record of a group, where its kind may keep files of its own."""
        return self.root / group_id

    def create(self, members: tuple[Member, ...], *, name: str | None = None, details: Mapping[str, Any] = {}) -> Group:
        """A new group, looked after by this process. Raises DiskError."""
        group = Group(new_run_id(), members, name, time.time(), this_process(), dict(details))
        try:
            self.folder(group.id).mkdir(mode=0o700, parents=True)
        except OSError as error:
            raise DiskError(f"Cannot create the folder of a group: {error.strerror}", run="df -h ~") from error
        self._write(group)
        return group

    def all(self) -> list[Group]:
        """Every group that can be read, oldest first."""
        try:
            names = sorted(entry.name for entry in os.scandir(self.root) if is_run_id(entry.name))
        except OSError:
            return []
        return [group for name in names if (group := self.read(name)) is not None]

    def read(self, group_id: str) -> Group | None:
        """The group as it is now; None where there is none, or none that can be read."""
        try:
            return _from_json(
                json.loads(nofollow.read_regular(self.folder(group_id) / _FILE, most_bytes=_MOST_BYTES)), group_id
            )
        except (FileNotFoundError, UntrustedPathError, ValueError, TypeError, KeyError, RecursionError):
            return None

    def find(self, reference: str) -> Group:
        """The group of this ID, unique part of one, or name (the newest of it); ``last`` is the newest.

        Raises RunNotFoundError.
        """
        group = self.look_up(reference)
        if group is None:
            names = [each.name for each in self.all() if each.name]
            raise RunNotFoundError(
                f'No group "{reference}" in this project{did_you_mean(reference, names)}',
                run="seatrial runs ls   # lists groups too",
            )
        return group

    def look_up(self, reference: str) -> Group | None:
        """As ``find``; None where there is none."""
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
        """Write down other values of one member; the group as it is then. Safe from several threads and processes."""
        with self.locked(group):
            now = (self.read(group.id) or group).changed(name, **changes)
            self._write(now)
        return now

    def change_group(self, group: Group, **changes: Any) -> Group:
        """Write down other values of the group itself; the group as it is then."""
        with self.locked(group):
            now = replace(self.read(group.id) or group, **changes)
            self._write(now)
        return now

    @contextmanager
    def locked(self, group: Group) -> Iterator[None]:
        """While one process changes a group, no other does."""
        with (self.folder(group.id) / ".lock").open("w") as file:
            fcntl.flock(file, fcntl.LOCK_EX)
            yield

    def remove(self, group: Group) -> None:
        """Forget a group, and delete its receipt in the project; its runs stay."""
        shutil.rmtree(self.folder(group.id), ignore_errors=True)
        with contextlib.suppress(OSError, SeatrialError), nofollow.folder(self.runs.project, *PAGES) as pages:
            nofollow.remove_tree(pages, group.id)

    def without_runs(self) -> list[Group]:
        """Groups that have ended and whose own runs are all gone; ``prune`` forgets them."""
        return [
            group
            for group in self.all()
            if not group.looked_after
            and all(member.ended for member in group.members)
            and not any(member.run and self.runs.run(member.run).folder.exists() for member in group.members)
        ]

    def _write(self, group: Group) -> None:
        text = json.dumps({"schema_version": _SCHEMA_VERSION, "kind": KIND, **asdict(group)}, indent=1)
        write_atomically(self.folder(group.id) / _FILE, text.encode("utf-8", "surrogateescape"), mode=0o600)


def with_ended_runs(group: Group, store: RunStore) -> Group:
    """With the states that members' runs have come to since they were written down; changes no file."""
    for member in group.members:
        if member.state != "running" or member.run is None:
            continue
        if (summary := store.run(member.run).summary()) is not None:
            group = group.changed(member.name, **ended(summary))
    return group


def ended(summary: Mapping[str, Any]) -> dict[str, Any]:
    """What a member becomes by the summary of its run."""
    code = summary.get("exit_code")
    state = "stopped" if summary.get("cause") == "stopped" else "done" if code == 0 else "failed"
    why = "" if state == "done" else str(summary.get("outcome") or "")
    return {"state": state, "why": why, "exit_code": code}


def refresh(store: GroupStore, group: Group, environ: Mapping[str, str]) -> Group:
    """Finalise members' runs that have ended while nobody watched, and write down what became of them."""
    from seatrial.runs.finalise import finalise

    for member in group.members:
        if member.state == "running" and member.run is not None:
            with contextlib.suppress(SeatrialError, OSError):
                finalise(store.runs.run(member.run), environ)
    now = with_ended_runs(group, store.runs)
    for member in now.members:
        if member != group.member(member.name):
            store.change(group, member.name, state=member.state, why=member.why, exit_code=member.exit_code)
    return now


def _from_json(loaded: Any, group_id: str) -> Group:
    """Raises KeyError, TypeError or ValueError for what is no group of this version."""
    if not isinstance(loaded, dict):
        raise TypeError(group_id)
    if loaded.pop("schema_version") != _SCHEMA_VERSION or loaded["id"] != group_id or loaded.pop("kind") != KIND:
        raise ValueError(group_id)
    known = {each.name for each in fields(Member)}
    members = tuple(
        Member(**{**{key: value for key, value in each.items() if key in known}, "needs": tuple(each["needs"])})
        for each in loaded["members"]
    )
    launcher = loaded.get("launcher")
    loaded.update(members=members, launcher=tuple(launcher) if launcher else None)
    return Group(**{key: value for key, value in loaded.items() if key in {each.name for each in fields(Group)}})
