"""The runs of a project: find, name, remove them; the nearest project that has runs."""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import re
import secrets
import shutil
import time
from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType

from seatrial.errors import DiskError, NameInUseError, RunNotFoundError, SeatrialError, UsageError
from seatrial.runs.run import PLACE_FOLDER, Run, run_name
from seatrial.system import nofollow
from seatrial.system.files import write_atomically
from seatrial.system.host import Host
from seatrial.system.text import nearest
from seatrial.system.typed_path import as_typed, from_here

#: What stays with the record, with a link to it in the project.
LINKED = ("stdout.log", "stderr.log", "events.jsonl")

#: No letters that look like digits, no vowels that make words.
_ID_ALPHABET = "bcdfghjkmnpqrstvwxz23456789"

#: Letters of an ID that tell when its run began.
_STAMP = len("20261120-231501")

#: What a run ID looks like: a folder of another name is no run.
_ID = re.compile(r"\d{8}-\d{6}-[0-9a-z]+")


def new_run_id(now: float | None = None) -> str:
    """A sortable ID: local start time and four random characters, e.g. ``20261120-231501-k3f9``."""
    stamp = time.strftime("%Y%m%d-%H%M%S", time.localtime(now))
    return f"{stamp}-{''.join(secrets.choice(_ID_ALPHABET) for _ in range(4))}"


def _planned(run: Run, in_second: Mapping[str, int]) -> float:
    """When the plan of one of several runs of a second was written; 0 of one that is alone in its own."""
    if in_second[run.id[:_STAMP]] < 2:
        return 0.0
    try:
        return (run.folder / "plan.json").lstat().st_mtime
    except OSError:
        return 0.0


class RunStore:
    """The runs of one project.

    Args:
        environ: where the state folder is told; default: this process's.
    """

    def __init__(self, project: Path, host: Host | None = None) -> None:
        self.project = Path(os.path.realpath(project))
        state = (host or Host()).state_folder
        self.record = state / "projects" / project_key(self.project)
        self.root = self.record / "runs"
        self.places = self.project.joinpath(*PLACE_FOLDER)

    def run(self, run_id: str) -> Run:
        """The run of this ID, there or not."""
        return Run(self.root / run_id, self.places / run_id)

    def create(self, run_id: str, name: str | None) -> Run:
        """Make the record and the place, whole or not at all.

        Raises:
            NameInUseError: a run that is not finalised has the name.
            DiskError: they cannot be written.
            UntrustedPathError: ``.seatrial`` in the project is a link.
        """
        if name is not None and (other := self.unfinalised(name)) is not None:
            raise NameInUseError(
                f'The name "{name}" belongs to run {other.id}, which has not ended',
                run=f"seatrial runs stop {name}   # or choose another --name",
            )
        from seatrial.runs.launching_process import LaunchingProcess

        run = self.run(run_id)
        try:
            self.root.mkdir(mode=0o700, parents=True, exist_ok=True)
            if not (self.record / "project.json").exists():
                about = json.dumps({"project": os.fsdecode(os.fsencode(self.project))}).encode()
                write_atomically(self.record / "project.json", about, mode=0o600)
            run.folder.mkdir(mode=0o700)
            write_atomically(
                run.folder / "launcher.json", LaunchingProcess.this_process().model_dump_json().encode(), 0o600
            )
            if name is not None:
                write_atomically(run.folder / "name", name.encode("utf-8", "surrogateescape"), mode=0o600)
            self._make_place(run)
        except (OSError, SeatrialError) as error:
            if not isinstance(error, FileExistsError):
                shutil.rmtree(run.folder, ignore_errors=True)
            if isinstance(error, SeatrialError):
                raise
            raise DiskError(
                f"Cannot create the run folder {error.filename or run.folder}: {error.strerror}",
                run=f"df -h {as_typed(self.project)}; ls -ld {as_typed(self.project)}",
            ) from error
        return run

    def _make_place(self, run: Run) -> None:
        with nofollow.folder(self.project, PLACE_FOLDER[0], make=True) as descriptor:
            flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC
            try:
                with os.fdopen(os.open(".gitignore", flags, 0o644, dir_fd=descriptor), "wb") as file:
                    file.write(b"*\n")  # runs never end up in the user's repository
            except FileExistsError:
                pass
        for inner in (("outputs", "checkpoints"), ("home",)):
            with nofollow.folder(self.project, *PLACE_FOLDER, run.id, *inner, make=True):
                pass
        with nofollow.folder(self.project, *PLACE_FOLDER, run.id) as descriptor:
            for name in LINKED:
                os.symlink(run.folder / name, name, dir_fd=descriptor)

    def let_any_user_write(self, run: Run) -> None:
        """For a container whose user is not the caller: its outputs are open, in a place that is closed to others."""
        place = (*PLACE_FOLDER, run.id)
        for inner, mode in (((), 0o700), (("outputs",), 0o777), (("outputs", "checkpoints"), 0o777)):
            with nofollow.folder(self.project, *place, *inner) as descriptor:
                os.fchmod(descriptor, mode)

    def ids(self) -> dict[str, bool]:
        """Of every run, in no order: ID → whether this machine has its record."""
        recorded = dict.fromkeys(_folders(self.root), True)
        old = (name for name in _folders(self.places) if name not in recorded)
        return {**{name: False for name in old if os.path.lexists(self.places / name / "plan.json")}, **recorded}

    def known(self, run_id: str, *, recorded: bool) -> Run:
        """A run that ``ids`` names."""
        return self.run(run_id) if recorded else Run(self.places / run_id, self.places / run_id, recorded=False)

    def all(self) -> list[Run]:
        """Every run, oldest first; those without a record as well. IDs sort by the second, plans tell within it."""
        return self._in_order(self.ids())

    def newest(self, count: int) -> list[Run]:
        """The newest of those with a record, newest first. Only these are looked into: there may be thousands."""
        recorded = sorted((name for name, recorded in self.ids().items() if recorded), reverse=True)
        return self._in_order(dict.fromkeys(recorded[:count], True))[::-1]

    def _in_order(self, ids: Mapping[str, bool]) -> list[Run]:
        runs = [self.known(name, recorded=recorded) for name, recorded in ids.items()]
        in_second = Counter(run.id[:_STAMP] for run in runs)
        return sorted(runs, key=lambda run: (run.id[:_STAMP], _planned(run, in_second), run.id))

    def find(self, reference: str, *, also: Mapping[str, str] = MappingProxyType({})) -> Run:
        """The run of this ID, unique ID prefix or suffix, or name (the newest of that name).

        ``last`` is the newest run. Raises RunNotFoundError.

        Args:
            also: further names, each with its run's ID; a run's own name counts before them.
        """
        runs = sorted(self.all() if reference else [], key=lambda run: run.recorded)  # a planted folder comes after all
        if reference == "last" and runs:
            return runs[-1]
        for run in reversed(runs):
            if reference in (run.id, run_name(run)):
                return run
        for run in runs:
            if run.id == also.get(reference):
                return run
        partial = [run for run in runs if run.id.startswith(reference) or run.id.endswith(f"-{reference}")]
        if len(partial) == 1:
            return partial[0]
        if partial:
            raise RunNotFoundError(
                f'"{reference}" matches {len(partial)} runs: {", ".join(run.id for run in partial[-3:])}',
                run="seatrial runs ls",
            )
        where = "in this project" if self.project == Path.cwd() else f"of {from_here(self.project)}"
        if reference == "last":
            raise RunNotFoundError(f"There are no runs {where} yet", run="seatrial run digits")
        near = nearest(reference, [*(name for run in runs if (name := run_name(run))), *also])
        meant = f"; did you mean {near}?" if near else ""
        raise RunNotFoundError(
            f'No run "{reference}" {where}{meant}',
            run="seatrial runs ls",
            instead=(reference, near) if near else None,
        )

    def remove(self, run: Run) -> None:
        """Delete a run's place and record: what this store has made, and never what a link in it leads to.

        Raises:
            UsageError: the run has no record, so nobody can say that the folder is a run's.
            DiskError: something in it cannot be deleted.
        """
        if not run.recorded or run.folder.parent != self.root or not _ID.fullmatch(run.id):
            raise UsageError(
                f"Run {run.id} has no record on this machine, so seatrial does not delete its folder",
                cause="It predates seatrial's own records, or someone else created it",
                run=f"ls -la {as_typed(run.place)}   # yours? then: rm -r {as_typed(run.place)}",
            )
        try:
            with contextlib.suppress(FileNotFoundError), nofollow.folder(self.project, *PLACE_FOLDER) as places:
                nofollow.remove_tree(places, run.id)
            with nofollow.folder(self.root) as records:
                nofollow.remove_tree(records, run.id)
        except OSError as error:
            raise DiskError(
                f"Cannot delete {error.filename or run.place}: {error.strerror}", run=f"ls -la {as_typed(run.place)}"
            ) from error

    def newest_of(self, name: str) -> Run | None:
        """The run that is found by this name, if there is one."""
        return next((run for run in reversed(self.all()) if run.recorded and run_name(run) == name), None)

    def unfinalised(self, name: str) -> Run | None:
        """The newest run of this name without a summary: it lives, or nobody has finalised it since it ended."""
        for run in reversed(self.all()):
            if run.recorded and run_name(run) == name and run.summary() is None:
                return run
        return None


def is_run_id(text: str) -> bool:
    """Whether it has the form of an ID, and so is no path."""
    return _ID.fullmatch(text) is not None


def project_key(project: Path) -> str:
    """The name of a project's folder among the records: readable, and one for each path."""
    readable = re.sub(r"[^A-Za-z0-9._-]+", "-", project.name)[:40].strip(".-") or "project"
    return f"{readable}-{hashlib.sha256(os.fsencode(project)).hexdigest()[:16]}"


def _folders(root: Path) -> list[str]:
    """Names of runs' folders. A root that is a link is not followed, and none counts as empty."""
    try:
        if root.is_symlink() or root.parent.is_symlink():
            return []
        with os.scandir(root) as entries:
            return [
                entry.name for entry in entries if _ID.fullmatch(entry.name) and entry.is_dir(follow_symlinks=False)
            ]
    except OSError:
        return []


#: A folder with one of these is a project of its own: runs of a folder around it are another's.
_ENDS = ("seatrial.toml", ".git")


def store_of(project: Path | None, host: Host | None = None) -> RunStore:
    """The store of the folder that ``--project`` names, of just that one; of the nearest where it names none.

    Raises UsageError: there is no such folder, and no runs are known of one that was there.
    """
    if project is None or project == Path():
        return nearest_store(Path(), host)
    store = RunStore(project.absolute(), host)
    if not project.is_dir() and not store.root.is_dir():
        there = next(parent for parent in project.absolute().parents if parent.is_dir())
        raise UsageError(f"There is no project folder {project}", run=f"ls {as_typed(there)}")
    return store


def nearest_store(folder: Path, host: Host | None = None) -> RunStore:
    """Of the folder itself or the nearest around it that has runs; of the folder itself where none has."""
    here = RunStore(folder.absolute(), host)
    for around in (here.project, *here.project.parents):
        store = RunStore(around, host)
        if store.root.is_dir() or os.path.lexists(store.places):
            return store
        if any(os.path.lexists(around / name) for name in _ENDS):
            break
    return here
