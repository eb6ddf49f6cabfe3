"""The runs of a project: find, name, remove them; the nearest project that has runs."""

from __future__ import annotations

import contextlib
import hashlib
import os
import random
import re
import shlex
import shutil
import time
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from types import MappingProxyType

from seatrial.errors import DiskError, NameInUseError, RunNotFoundError, SeatrialError, UsageError
from seatrial.runs.run import LINKED, PLACE_FOLDER, Run, run_name
from seatrial.system import nofollow
from seatrial.system.files import status_of
from seatrial.system.host import Host
from seatrial.system.project_files import is_project, project_root, require_folder
from seatrial.system.records import Folder, Process
from seatrial.system.text import as_typed, from_here, nearest

#: Locked while a run or a group claims its name.
CLAIMS = ".claims.lock"
#: Letters of an ID: none that look like digits, and no vowels that make words.
_ID_ALPHABET = "bcdfghjkmnpqrstvwxz23456789"
#: Letters of an ID that hold the time when its run began.
_STAMP = len("20261120-231501")
#: A run ID; folders of other names are not runs.
_ID = re.compile(r"\d{8}-\d{6}-[0-9a-z]+")


def new_run_id(now: float | None = None) -> str:
    """Make an ID that sorts in every time zone: UTC and four random characters, e.g. ``20261120-231501-k3f9``."""
    stamp = time.strftime("%Y%m%d-%H%M%S", time.gmtime(now))
    return f"{stamp}-{''.join(random.SystemRandom().choices(_ID_ALPHABET, k=4))}"


def _planned(run: Run, in_second: Mapping[str, int]) -> float:
    """Return when the plan of one of several runs of a second was written; 0 for the only one of its second."""
    if in_second[run.id[:_STAMP]] < 2:
        return 0.0
    status = status_of(run.folder / "plan.json")
    return status.st_mtime if status else 0.0


class RunStore:
    """The runs of one project."""

    def __init__(self, project: Path, host: Host | None = None) -> None:
        self.project = Path(os.path.realpath(project))
        self._host = host
        self.record = (host or Host()).state_folder / "projects" / project_key(self.project)
        self.root = self.record / "runs"
        self.places = self.project.joinpath(*PLACE_FOLDER)

    def run(self, run_id: str) -> Run:
        """Return the run of this ID, whether or not it exists."""
        return Run(self.root / run_id, self.places / run_id)

    @property
    def option(self) -> str:
        """Return `` -C FOLDER`` for a command that would look into another store here without it; else ""."""
        is_nearest = nearest_store(Path(), self._host).project == self.project
        return "" if is_nearest else f" -C {shlex.quote(str(self.project))}"

    def create(self, run_id: str, name: str | None) -> Run:
        """Make the record and the place, both or neither.

        Raises NameInUseError if a run that is not finalised has the name, DiskError if they cannot be written,
        UntrustedPathError if ``.seatrial`` in the project is a link.
        """
        run = self.run(run_id)
        try:
            self.root.mkdir(mode=0o700, parents=True, exist_ok=True)
            if not (self.record / "project.json").exists():
                self._sign()
            with Folder(self.record).lock(CLAIMS):
                self._clear()
                if name is not None and (other := self.unfinalised(name)) is not None:
                    message = f'The name "{name}" belongs to run {other.id}, which has not ended'
                    raise NameInUseError(message, run=f"seatrial runs stop {name}   # or choose another --name")
                run.folder.mkdir(mode=0o700)
                run.hand_over(Process.this())
                if name is not None:
                    run.records.write("name", name)
            self._make_place(run)
        except (OSError, SeatrialError) as error:
            if not isinstance(error, FileExistsError):
                shutil.rmtree(run.folder, ignore_errors=True)
            if isinstance(error, SeatrialError):
                raise
            message = f"Cannot create the run folder {error.filename or run.folder}: {error.strerror}"
            look = f"df -h {as_typed(self.project)}; ls -ld {as_typed(self.project)}"
            raise DiskError(message, run=look) from error
        return run

    def _sign(self) -> None:
        identity = {"project": str(self.project), "inode": self.project.stat().st_ino}
        Folder(self.record).write("project.json", identity)

    def adopt(self) -> None:
        """Take over the records of this folder's earlier name: of the same inode, with the places of their runs here.

        Neither alone is enough: an inode may be a deleted folder's, and a clone may have any place.
        """
        if self.record.exists() or not (here := set(_folders(self.places))):
            return
        for record in map(Folder, self.record.parent.glob("*")):
            known = record.read("project.json", lambda data: (data["inode"], Path(data["project"])))
            if known is None or known[0] != self.project.stat().st_ino or known[1].exists():
                continue
            old = RunStore(known[1], self._host)
            if here & set(_folders(old.root)) and all(run.ended or run.is_abandoned() for run in old.all()):
                old.record.rename(self.record)
                self._sign()
                for run_id in here & set(_folders(self.root)):
                    self._link(self.run(run_id))
                return

    def _clear(self) -> None:
        """Delete what killed commands have left: runs without a plan, and half a record. The caller has the lock."""
        with nofollow.folder(self.root) as records, contextlib.suppress(OSError):
            for each in self.root.glob(".*"):
                nofollow.remove_tree(records, each.name)
        for run in map(self.run, _folders(self.root)):
            if run.is_abandoned():
                with contextlib.suppress(SeatrialError):
                    self.remove(run)

    def _make_place(self, run: Run) -> None:
        if not os.path.lexists(self.project / PLACE_FOLDER[0] / ".gitignore"):  # runs never end up in a repository
            nofollow.write_inside(self.project, PLACE_FOLDER[0], ".gitignore", data=b"*\n")
        (run.folder / "home").mkdir()
        with nofollow.folder(self.project, *PLACE_FOLDER, run.id, "outputs", "checkpoints", make=True):
            pass
        self._link(run)

    def _link(self, run: Run) -> None:
        with nofollow.folder(self.project, *PLACE_FOLDER, run.id) as descriptor:
            for name in LINKED:
                with contextlib.suppress(FileNotFoundError):
                    os.unlink(name, dir_fd=descriptor)
                os.symlink(run.folder / name, name, dir_fd=descriptor)

    def let_any_user_write(self, run: Run) -> None:
        """Open the outputs to a container whose user is not the caller, in a place that is closed to others."""
        place = (*PLACE_FOLDER, run.id)
        for inner, mode in (((), 0o700), (("outputs",), 0o777), (("outputs", "checkpoints"), 0o777)):
            with nofollow.folder(self.project, *place, *inner) as descriptor:
                os.fchmod(descriptor, mode)

    def ids(self) -> set[str]:
        """Return the ID of every run that this machine has a record of."""
        return {name for name in _folders(self.root) if not self.run(name).is_abandoned()}

    def all(self) -> list[Run]:
        """Return every run, oldest first. Plans order the runs of one second."""
        return self._in_order(self.ids())

    def newest(self, count: int) -> list[Run]:
        """Return the newest runs, newest first. Only these are read: there may be thousands."""
        return self._in_order(sorted(self.ids(), reverse=True)[:count])[::-1]

    def _in_order(self, ids: Iterable[str]) -> list[Run]:
        runs = [self.run(name) for name in ids]
        in_second = Counter(run.id[:_STAMP] for run in runs)
        return sorted(runs, key=lambda run: (run.id[:_STAMP], _planned(run, in_second), run.id))

    def find(self, reference: str, *, also: Mapping[str, str] = MappingProxyType({})) -> Run:
        """Find the run of this ID, unique ID prefix or suffix, or name (the newest); ``last`` is the newest run.

        ``also``: further names, each with its run's ID; a run's own name counts before them. Raises RunNotFoundError.
        """
        runs = self.all() if reference else []
        if reference == "last" and runs:
            return runs[-1]
        exact = [run for run in reversed(runs) if reference in (run.id, run_name(run))]
        if exact := exact or [run for run in runs if run.id == also.get(reference)]:
            return exact[0]
        partial = [run for run in runs if run.id.startswith(reference) or run.id.endswith(f"-{reference}")]
        if len(partial) == 1:
            return partial[0]
        if partial:
            listed = ", ".join([*(["…"] * (len(partial) > 3)), *(run.id for run in partial[-3:])])
            raise RunNotFoundError(f'"{reference}" matches {len(partial)} runs: {listed}', run="seatrial runs ls")
        where = "in this project" if self.project == Path.cwd() else f"of {from_here(self.project)}"
        if reference == "last":
            raise RunNotFoundError(f"No runs {where} yet", run="seatrial run digits")
        close = nearest(reference, [*(name for run in runs if (name := run_name(run))), *also])
        hint = f"; did you mean {close}?" if close else ""
        instead = (reference, [close]) if close else None
        raise RunNotFoundError(f'No run "{reference}" {where}{hint}', run="seatrial runs ls", instead=instead)

    def remove(self, run: Run) -> None:
        """Delete a run's place and record, and no link's target. Raises DiskError; UsageError without a record here."""
        if run.folder.parent != self.root or not _ID.fullmatch(run.id):
            message = f"Run {run.id} has no record on this machine, so seatrial does not delete its folder"
            look = f"ls -la {as_typed(run.place)}   # yours? then: rm -r {as_typed(run.place)}"
            raise UsageError(message, run=look)
        try:
            with contextlib.suppress(FileNotFoundError), nofollow.folder(self.project, *PLACE_FOLDER) as places:
                nofollow.remove_tree(places, run.id)
            with nofollow.folder(self.root) as records:
                removed = f".{run.id}"  # under this name nobody finds half a record
                with contextlib.suppress(FileNotFoundError):
                    os.rename(run.id, removed, src_dir_fd=records, dst_dir_fd=records)
                nofollow.remove_tree(records, removed)
        except OSError as error:
            raise DiskError(
                f"Cannot delete {error.filename or run.place}: {error.strerror}", run=f"ls -la {as_typed(run.place)}"
            ) from error

    def named(self, name: str) -> Iterator[Run]:
        """Yield the runs of this name, newest first."""
        return (run for run in reversed(self.all()) if run_name(run) == name)

    def unfinalised(self, name: str) -> Run | None:
        """Return the newest run of this name without a summary: it lives, or nobody has finalised it."""
        return next((run for run in self.named(name) if not run.ended and not run.is_abandoned()), None)


def is_run_id(text: str) -> bool:
    """Return whether it has the form of an ID, which a path has not."""
    return _ID.fullmatch(text) is not None


def project_key(project: Path) -> str:
    """Name a project's folder among the records: readable, and one for each path."""
    readable = re.sub(r"[^A-Za-z0-9._-]+", "-", project.name)[:40].strip(".-") or "project"
    return f"{readable}-{hashlib.sha256(os.fsencode(project)).hexdigest()[:16]}"


def known_projects(host: Host) -> list[Path]:
    """Return the folder of each project that has a record on this machine, where its record names that one."""
    found = []
    for record in map(Folder, sorted((host.state_folder / "projects").glob("*"))):
        path = record.read("project.json", lambda data: Path(data["project"]))
        found += [path] if path is not None and project_key(path) == record.path.name else []
    return found


def other_projects(host: Host) -> list[Path]:
    """Return ``.seatrial`` of each project that has runs on this machine and still is there."""
    places = (path / PLACE_FOLDER[0] for path in known_projects(host))
    return [place for place in places if place.is_dir() and not place.is_symlink()]


class Projects:
    """The stores of one project, or of every project of this user, by keys that reveal nothing of them.

    The registry is the state folder: the first run of a project writes ``projects/<key>/project.json`` there.
    ``first``: the project where somebody stands, or that was named. ``host``: whose others are found, if any.
    """

    def __init__(self, first: RunStore, host: Host | None = None) -> None:
        self.first, self._host = first, host
        self._stores = {_key(first.record): first}

    def all(self) -> dict[str, RunStore]:
        """Return key → store, the first one first; new projects are found each time."""
        if self._host is not None:
            for store in (RunStore(path, self._host) for path in known_projects(self._host)):
                self._stores.setdefault(_key(store.record), store)
        return dict(self._stores)

    def name_of(self, key: str) -> str:
        """Return the name of the folder of a project that ``all`` returned; its path if another has that name."""
        own = self._stores[key].project
        alone = sum(store.project.name == own.name for store in self._stores.values()) == 1
        return own.name if alone else str(own)

    def find(self, run_id: str) -> tuple[str, Run]:
        """Return (project's key, run) by ID alone, of which no path can be made. Raises RunNotFoundError."""
        if is_run_id(run_id):
            for key, store in self.all().items():
                run = store.run(run_id)
                if run.folder.is_dir() and not run.folder.is_symlink():
                    return key, run
        raise RunNotFoundError("Run not found")

    def runs(self) -> Iterator[tuple[str, Run]]:
        """Yield (project's key, run) of every run, in no order."""
        yield from ((key, run) for key, store in self.all().items() for run in store.all())


def _key(record: Path) -> str:
    """Return the digest at the end of the folder's name."""
    return record.name.rpartition("-")[2]


def _folders(root: Path) -> list[str]:
    """List the names of runs' folders; none if the root is a link or missing."""
    with contextlib.suppress(OSError):
        if root.is_symlink() or root.parent.is_symlink():
            return []
        with os.scandir(root) as entries:
            return [each.name for each in entries if _ID.fullmatch(each.name) and each.is_dir(follow_symlinks=False)]
    return []


def store_of(project: Path | None, host: Host | None = None) -> RunStore:
    """Return the store of the folder of ``--project``, else the nearest. Raises UsageError: no folder and no runs."""
    if project is None:
        return nearest_store(Path(), host)
    store = RunStore(project.absolute(), host)
    store.adopt()
    if not store.root.is_dir():
        require_folder(project)
    return store


def nearest_store(folder: Path, host: Host | None = None) -> RunStore:
    """Return the store of the folder's project if it has runs, else of the nearest folder around that has some."""
    own = RunStore(project_root(folder), host)
    here = Path(os.path.realpath(folder))
    folders = (here, *here.parents)
    ends = next((place for place, each in enumerate(folders) if is_project(each, here)), len(folders)) + 1
    for store in (own, *(RunStore(each, host) for each in folders[:ends])):
        store.adopt()
        if store.root.is_dir():
            return store
    return own
