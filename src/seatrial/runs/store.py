"""The run store: what this machine's user knows of a project's runs.

A run is two folders. Its **record**, in the user's state folder, is the host's alone and its whole state:

    plan.json       the Plan, written before anything starts; agent.json: the agent's part, which it reads
    handle.json     how to find the process or container again
    events.jsonl    evidence, append-only and chained
    stdout.log, stderr.log, output.idx, agent.out
    receipt.json, receipt.md, receipt.html, summary.json     once it has ended

Its **place**, ``.seatrial/runs/<id>`` in the project, holds what the container writes (``outputs``, ``home``) and, for
people, copies of the receipt and links to the logs. Nothing in it is believed (docs/decisions/0019-trust-boundary.md).

Runs of before 0019 have no record: their folder in the project is shown as it is, and nothing more.
The models of a plan are imported where one is read or written: listing ended runs needs none.
"""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import json
import os
import re
import secrets
import shutil
import time
from collections import Counter
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

from seatrial import events
from seatrial.errors import DiskError, NameInUseError, RunNotFoundError, SeatrialError, UntrustedPathError, UsageError
from seatrial.events import Event, EvidenceLog
from seatrial.input_frames import PIPE
from seatrial.system import nofollow
from seatrial.system.files import write_atomically
from seatrial.system.near import did_you_mean
from seatrial.system.state import state_folder
from seatrial.system.typed_path import as_typed, from_here
from seatrial.system.without_login import without_login

if TYPE_CHECKING:
    from seatrial.backends.base import Handle
    from seatrial.job.plan import Plan
    from seatrial.runs.launching_process import LaunchingProcess

#: In a project: what its containers write, and what people look at.
PLACE_FOLDER = (".seatrial", "runs")

#: Beside it: what they write for TensorBoard, a folder each.
EVENTS_FOLDER = (".seatrial", "tensorboard")

#: Receipts that people look at in the project; and what stays with the record, with a link to it there.
COPIED = ("receipt.html", "receipt.md", "receipt.json")
LINKED = ("stdout.log", "stderr.log", "events.jsonl")

#: No letters that look like digits, no vowels that make words.
_ID_ALPHABET = "bcdfghjkmnpqrstvwxz23456789"

#: Letters of an ID that tell when its run began.
_STAMP = len("20261120-231501")

#: What a run ID looks like: a folder of another name is no run.
_ID = re.compile(r"\d{8}-\d{6}-[0-9a-z]+")

#: Largest plan that is read; the text of a ConfigMap's script and of a Dockerfile stand in it.
_MOST_PLAN_BYTES = 32 << 20
_MOST_RECORD_BYTES = 1 << 20


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


@dataclass(frozen=True)
class Run:
    """One run.

    Attributes:
        folder: its record; of a run without one, its folder in the project.
        place: its folder in the project.
        recorded: the record is this machine's own. Without one the run can be looked at, and nothing else.
    """

    folder: Path
    place: Path
    recorded: bool = True

    @property
    def id(self) -> str:
        return self.folder.name

    @property
    def events_path(self) -> Path:
        return self.folder / "events.jsonl"

    def events(self) -> tuple[list[dict[str, Any]], int]:
        """(events so far, lines that were none). Raises OSError."""
        return events.read(str(self.events_path))

    def has(self, kind: type[Event]) -> bool:
        """Whether an event of this kind has been written."""
        return any(events.of_type(self.events()[0], kind))

    def record(self, event: Event) -> None:
        """Write down what the host saw or did. Raises OSError."""
        with EvidenceLog(str(self.events_path), "host") as log:
            log.write(event)

    def started_at(self) -> float | None:
        """When its process or container was started, as Unix time; before that its image is made."""
        try:
            return (self.folder / "handle.json").lstat().st_mtime
        except OSError:
            return None

    @property
    def input(self) -> Path:
        """The named pipe of what its caller types, while somebody does."""
        return self.folder / PIPE

    @property
    def outputs(self) -> Path:
        """What the target writes."""
        return self.place / "outputs"

    @property
    def events_folder(self) -> Path:
        """What the target writes for TensorBoard, where that is up: beside the others', for one page over all."""
        return self.place.parents[1] / "tensorboard" / self.id

    @property
    def checkpoints(self) -> Path:
        return (self.outputs if self.recorded else self.place) / "checkpoints"

    def plan(self) -> Plan:
        """The plan it was started with. Raises SeatrialError when plan.json is missing or of another version."""
        from pydantic import ValidationError

        from seatrial.job.plan import Plan

        path = self.folder / "plan.json"
        try:
            return Plan.model_validate_json(nofollow.read_regular(path, most_bytes=_MOST_PLAN_BYTES), strict=False)
        except FileNotFoundError:
            raise SeatrialError(
                f"Run {self.id} has no plan.json: it was never started",
                run=f"seatrial runs rm {self.id}",
            ) from None
        except ValidationError as error:
            first = error.errors()[0]["loc"]
            raise SeatrialError(
                f"{path} cannot be read by this version of seatrial",
                cause=f"its key {'.'.join(map(str, first))} is invalid" if first else "it is not JSON, or not a plan",
                run=f"seatrial runs rm {self.id}",
            ) from error

    def trusted_plan(self) -> Plan:
        """The plan, to act on. Raises UsageError for a run without a record of this machine's."""
        if not self.recorded:
            raise UsageError(
                f"Run {self.id} predates seatrial's own records: it can be shown but not controlled",
                cause="Its plan is in the project, where any script could have changed it",
                run=f"seatrial runs show {self.id}   # or start again: seatrial run TARGET --resume {self.id}",
            )
        return self.plan()

    def handle(self) -> Handle | None:
        """How to find it in its backend, or None before it started. One that cannot be read counts as none."""
        from pydantic import ValidationError

        from seatrial.backends.base import Handle

        if not self.recorded:
            return None
        try:
            return Handle.model_validate_json(self._read("handle.json"))
        except (FileNotFoundError, ValidationError):
            return None

    def is_starting(self) -> bool:
        """It has not started, and the process that should start it lives."""
        from pydantic import ValidationError

        from seatrial.runs.launching_process import LaunchingProcess

        if not self.recorded or self.handle() is not None:
            return False
        try:
            return LaunchingProcess.model_validate_json(self._read("launcher.json")).is_alive()
        except (FileNotFoundError, ValidationError):
            return False

    def hand_over(self, launcher: LaunchingProcess) -> None:
        """Another process starts it: while that lives, the run is about to start."""
        write_atomically(self.folder / "launcher.json", launcher.model_dump_json().encode(), mode=0o600)

    def give_up(self) -> None:
        """It will not be started: its launcher no longer stands for it."""
        (self.folder / "launcher.json").unlink(missing_ok=True)

    @property
    def given_up(self) -> bool:
        """Its launcher could not start it, and said so."""
        return not (self.folder / "launcher.json").exists()

    def save_plan(self, plan: Plan) -> None:
        """Write plan.json, and agent.json, which is all that the container sees of it.

        Logins in the URLs of package sources stay out of both.
        """
        image = plan.job.image
        urls = {key: getattr(image, key) for key in ("index_url", "find_links")}
        public = {key: without_login(url) for key, url in urls.items() if url and "://" in url}
        if public:
            image = image.model_copy(update=public)
            plan = plan.model_copy(update={"job": plan.job.model_copy(update={"image": image})})
        write_atomically(self.folder / "plan.json", plan.model_dump_json(indent=1).encode(), mode=0o600)
        agents = plan.model_dump_json(include={"agent", "injection"}).encode()
        write_atomically(self.folder / "agent.json", agents, mode=0o600)

    def save_handle(self, handle: Handle) -> None:
        write_atomically(self.folder / "handle.json", handle.model_dump_json().encode(), mode=0o600)

    def summary(self) -> dict[str, Any] | None:
        """A few keys for listings, or None while it has not been finalised."""
        try:
            loaded = json.loads(self._read("summary.json"))
        except (FileNotFoundError, UntrustedPathError, ValueError, RecursionError):
            return None
        return loaded if isinstance(loaded, dict) else None

    @property
    def ended(self) -> bool:
        """Whether it has been finalised; told faster than by reading the summary."""
        return not self.recorded or (self.folder / "summary.json").exists()

    @contextmanager
    def lock(self, name: str) -> Iterator[None]:
        """Hold an exclusive lock of this run, so that two processes do not finalise it at once."""
        with (self.folder / f".{name}.lock").open("w") as file:
            fcntl.flock(file, fcntl.LOCK_EX)
            yield

    def show_receipt(self) -> None:
        """Copy the receipt into the project, for people. The copy is nobody's proof, so failing costs nothing."""
        project = self.place.parents[len(PLACE_FOLDER)]
        with (
            contextlib.suppress(OSError, SeatrialError),
            nofollow.folder(project, *PLACE_FOLDER, self.id) as descriptor,
        ):
            for name in COPIED:
                data = (self.folder / name).read_bytes()
                flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
                with contextlib.suppress(FileNotFoundError):
                    os.unlink(name, dir_fd=descriptor)
                with os.fdopen(os.open(name, flags, 0o644, dir_fd=descriptor), "wb") as file:
                    file.write(data)

    def _read(self, name: str) -> bytes:
        return nofollow.read_regular(self.folder / name, most_bytes=_MOST_RECORD_BYTES)


class RunStore:
    """The runs of one project.

    Args:
        environ: where the state folder is told; default: this process's.
    """

    def __init__(self, project: Path, environ: Mapping[str, str] | None = None) -> None:
        self.project = Path(os.path.realpath(project))
        state = state_folder(os.environ if environ is None else environ)
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
        near = did_you_mean(reference, [*(name for run in runs if (name := run_name(run))), *also])
        raise RunNotFoundError(f'No run "{reference}" {where}{near}', run="seatrial runs ls")

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
            for folder in (PLACE_FOLDER, EVENTS_FOLDER):
                with contextlib.suppress(FileNotFoundError), nofollow.folder(self.project, *folder) as places:
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


def run_name(run: Run) -> str | None:
    """The name it was given, or None."""
    try:
        text = nofollow.read_regular(run.folder / "name", most_bytes=4096).decode("utf-8", "replace")
    except (FileNotFoundError, UntrustedPathError):
        return None
    return "".join(character for character in text if character.isprintable()).strip() or None
