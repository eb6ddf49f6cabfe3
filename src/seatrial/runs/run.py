"""Run: one run's record, and its folder in the project.

Its **record**, in the user's state folder, is the host's alone and the run's whole state:

    plan.json       the Plan, written before anything starts; agent.json: the agent's part, which it reads
    handle.json     how to find the process or container again
    events.jsonl    evidence, append-only and chained
    stdout.log, stderr.log, output.idx, agent.out
    home/           HOME of the container, which alone writes there
    receipt.json, receipt.md, receipt.html, seal.json, summary.json     once it has ended

Its **place**, ``.seatrial/runs/<id>`` in the project, holds what the container writes (``outputs``) and, for people,
copies of the receipt and links to the logs and to ``home``. Nothing in it is believed.

The models of a plan are imported where one is read or written: listing ended runs needs none.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar

from seatrial import events
from seatrial.errors import SeatrialError, UntrustedPathError, fallback, os_errors
from seatrial.events import Event, EvidenceLog
from seatrial.frames import PIPE
from seatrial.system import nofollow
from seatrial.system.files import status_of, write_atomically
from seatrial.system.nofollow import files_below
from seatrial.system.records import Folder, Process
from seatrial.system.text import as_typed

if TYPE_CHECKING:
    from seatrial.backends.base import Handle
    from seatrial.job.plan import Plan

T = TypeVar("T")
#: Folder of a project for the files of its containers and for those that people read.
PLACE_FOLDER = (".seatrial", "runs")
#: The keys of listings, so that thousands of receipts need not be parsed.
SUMMARY = "summary.json"
#: Receipts in the project, for people; the record has them first.
COPIED = ("receipt.html", "receipt.md", "receipt.json")
#: Entries of the record that the project links to.
LINKED = ("stdout.log", "stderr.log", "events.jsonl", "home")
#: HOME of the container, which alone writes there.
HOME = "home"
#: Records that come before the plan.
_CLAIM = ("launcher.json", "name", HOME)
#: A receipt's page that is copied.
_MOST_PAGE_BYTES = 32 << 20


@dataclass(frozen=True, kw_only=True)
class Summary:
    """The end of a run. Its file is written last: a run that has one has ended.

    Attributes:
        outcome: the exit cause in words. headline: of its receipt, in a few words; None in older ones, as ``level``.
        engine: its address, as its client reaches it.
        metrics: last value of each metric by name. percent: names of those in percent.
        receipt: digest of receipt.json. sealed: seal.json has one of every file.
    """

    exit_code: int
    target: str = "?"
    backend: str = "?"
    gpus: int | None = None
    outcome: str = ""
    id: str | None = None
    name: str | None = None
    engine: str | None = None
    cause: str | None = None
    headline: str | None = None
    level: str | None = None
    seconds: float | None = None
    metrics: dict[str, Any] = field(default_factory=dict)
    percent: tuple[str, ...] = ()
    receipt: str | None = None
    sealed: bool = False


class Run(NamedTuple):
    """One run: ``folder``, its record, and ``place``, its folder in the project."""

    folder: Path
    place: Path

    @property
    def records(self) -> Folder:
        return Folder(self.folder)

    @property
    def id(self) -> str:
        return self.folder.name

    @property
    def events_path(self) -> Path:
        return self.folder / "events.jsonl"

    def events(self) -> tuple[list[dict[str, Any]], int]:
        """Return (events so far, lines that were none). Raises UntrustedPathError."""
        return self._read(events.read)

    def find(self, kind: type[Event]) -> list[dict[str, Any]]:
        """Return the events of one kind so far, without parsing the others. Raises UntrustedPathError."""
        return self._read(lambda path: list(events.find(path, kind)))

    def _read(self, read: Callable[[str], T]) -> T:
        with os_errors(
            UntrustedPathError, f"{self.events_path} cannot be read", f"ls -ld {as_typed(self.events_path)}"
        ):
            return read(str(self.events_path))

    def has(self, kind: type[Event]) -> bool:
        """Return whether an event of this kind has been written."""
        return bool(self.find(kind))

    def record(self, event: Event) -> None:
        """Write an event of the host. Raises OSError."""
        with EvidenceLog(str(self.events_path), "host") as log:
            log.write(event)

    def started_at(self) -> float | None:
        """Return when its process or container was started, as Unix time; None before, while its image is made."""
        status = status_of(self.folder / "handle.json")
        return status.st_mtime if status else None

    @property
    def input(self) -> Path:
        """Return the named pipe of its caller's input, which exists while there is any."""
        return self.folder / PIPE

    @property
    def outputs(self) -> Path:
        """Return the folder that the target writes."""
        return self.place / "outputs"

    @property
    def checkpoints(self) -> Path:
        return self.outputs / "checkpoints"

    def plan(self) -> Plan:
        """Read the plan it was started with. Raises SeatrialError when plan.json is missing or of another version."""
        from seatrial.job.plan import MAX_BYTES, Plan

        forget = f"seatrial runs rm {self.id}"
        try:
            return self.records.get("plan.json", Plan, max_bytes=MAX_BYTES, run=forget)
        except FileNotFoundError:
            raise SeatrialError(f"Run {self.id} has no plan.json: it was never started", run=forget) from None

    def handle(self) -> Handle | None:
        """Read how to find it in its backend; None before it started, and if it cannot be read."""
        from seatrial.backends.base import Handle

        return self.records.read("handle.json", Handle)

    def is_starting(self) -> bool:
        """Return whether it has not started, and the process that should start it lives."""
        return self.handle() is None and self._launcher_lives()

    def _launcher_lives(self) -> bool:
        launcher = self.records.read("launcher.json", Process)
        return launcher is not None and launcher.is_alive()

    def is_abandoned(self) -> bool:
        """Return whether it has no plan, and the process that should make one is dead: nothing was started for it."""
        if (self.folder / "plan.json").exists():
            return False
        try:
            claims = all(each.name.startswith(".") or each.name in _CLAIM for each in self.folder.iterdir())
        except OSError:  # it was removed meanwhile
            return True
        return claims and not self._launcher_lives()

    def hand_over(self, launcher: Process) -> None:
        """Let another process start it: while that lives, the run is about to start."""
        self.records.write("launcher.json", launcher)

    def give_up(self) -> None:
        """Record that it will not be started."""
        self.records.remove("launcher.json")

    @property
    def given_up(self) -> bool:
        """Return whether its launcher could not start it."""
        return not self.records.has("launcher.json")

    def save_plan(self, plan: Plan) -> None:
        """Write plan.json, and agent.json, which the container sees; both without logins in URLs of package sources."""
        self.records.write("plan.json", plan.model_dump_json(indent=1))
        self.records.write("agent.json", plan.model_dump_json(include={"agent", "injection"}))

    def save_handle(self, handle: Handle) -> None:
        self.records.write("handle.json", handle)

    @fallback(None, on=FileNotFoundError)
    def summary(self) -> Summary | None:
        """Read a few keys for listings; None while it has not been finalised. Raises UntrustedPathError."""
        return self.records.get(SUMMARY, Summary, run=f"seatrial runs rm {self.id}")

    @property
    def ended(self) -> bool:
        """Return whether it has been finalised; faster than reading the summary."""
        return self.records.has(SUMMARY)

    def lock(self, name: str) -> AbstractContextManager[None]:
        """Hold an exclusive lock of this run, so that two processes do not finalise it at once."""
        return self.records.lock(f".{name}.lock")

    def show_receipt(self) -> None:
        """Copy the receipt into the project, for people. The copy proves nothing, so failing costs nothing."""
        project = self.place.parents[len(PLACE_FOLDER)]
        with (
            contextlib.suppress(OSError, SeatrialError),
            nofollow.folder(project, *PLACE_FOLDER, self.id) as descriptor,
        ):
            for name in COPIED:
                data = self.records.load(name, max_bytes=_MOST_PAGE_BYTES)
                write_atomically(self.place / name, data, None, folder=descriptor)


@fallback(None, on=(FileNotFoundError, UntrustedPathError))
def run_name(run: Run) -> str | None:
    """Read the name it was given; None if it has none."""
    text = run.records.load("name", max_bytes=4096).decode("utf-8", "replace")
    return "".join(character for character in text if character.isprintable()).strip() or None


# ------------------------------------------------------------------------------------------------------ its seal
# seal.json has the digest of every file of the record at the time of the verdict. It is written before summary.json and
# has the digest of that file, so every ended run is sealed. A process that can write the record can also write a
# matching seal: only the seal's own digest, kept elsewhere, reveals that.

SEAL = "seal.json"
#: Name → size, and digest but of the largest files.
Entries = dict[str, tuple[int, Any]]
#: Files written after the judgement, by processes that announce the end or have followed it. Locks are empty.
LATER = frozenset({"notify.json", "notify-message.json", "notify.log", "notified.txt", "recorder.log"})

_MOST_SEAL_BYTES = 8 << 20

_NOTHING = (-1, None)


def write_seal(run: Run, summary: bytes) -> None:
    """Seal the record as it is now, with the summary that is written next. Raises DiskError."""
    entries = {name: _entry(run.records, name) for name in _names(run) if name != SUMMARY and name not in LATER}
    entries[SUMMARY] = len(summary), hashlib.sha256(summary).hexdigest()
    run.records.write(SEAL, _encoded(entries))


@fallback(None, on=FileNotFoundError)
def seal_of(run: Run) -> tuple[Entries, str] | None:
    """Return (sealed files, the seal's digest); None for an older run. Raises UntrustedPathError: it was changed."""
    entries = run.records.get(SEAL, _entries, max_bytes=_MOST_SEAL_BYTES)
    if (data := run.records.load(SEAL, max_bytes=_MOST_SEAL_BYTES)) != _encoded(entries):
        raise UntrustedPathError(f"{run.folder / SEAL} was changed after it was written")
    return entries, hashlib.sha256(data).hexdigest()


def seal_changes(run: Run, entries: Entries) -> list[str]:
    """Return a sentence for each file that is not as it was sealed, and for each copy that differs from its record."""
    names = _names(run)
    found = [f"{run.folder / name} is missing" for name in sorted(entries) if name not in names]
    for name in names:
        if name in entries and _entry(run.records, name, entries[name]) != entries[name]:
            found.append(f"{run.folder / name} was changed after it was written")
        elif name not in entries and name not in LATER:
            found.append(f"{run.folder / name} was added after the run was judged")
    for name in COPIED:
        copied = entries.get(name, _NOTHING)
        if os.path.lexists(run.place / name) and _entry(Folder(run.place), name, copied) != copied:
            found.append(f"{run.place / name} differs from the record; seatrial open shows that")
    for name in LINKED:
        link, target = run.place / name, run.folder / name
        if os.path.lexists(link) and not (link.is_symlink() and link.readlink() == target):
            found.append(f"{link} does not lead to the record; seatrial runs logs shows that")
    return found


def not_covered(run: Run, entries: Entries) -> list[str]:
    """Return the files without a digest among these; of one too large for one only its size is compared."""
    return [name for name in _names(run) if not entries.get(name, _NOTHING)[1]]


def _names(run: Run) -> list[str]:
    """Return every file of the record but locks, the seal and the container's HOME; links too."""
    found = files_below(run.folder, skip={HOME}, hidden=True, links=True)
    names = sorted(os.path.relpath(each.path, run.folder) for each in found)
    return [name for name in names if name != SEAL and not name.endswith(".lock")]


@fallback(_NOTHING, on=(OSError, UntrustedPathError))
def _entry(folder: Folder, name: str, sealed: tuple[int, Any] = _NOTHING) -> tuple[int, Any]:
    """Return size and digest; of what cannot be read none, and of what has grown no digest."""
    return folder.measure(name, **({"max_bytes": sealed[0]} if sealed[1] else {}))


def _entries(data: Any) -> Entries:
    return {str(name): (int(size), digest) for name, (size, digest) in data.items()}


def _encoded(entries: Entries) -> bytes:
    return json.dumps(entries, indent=1, sort_keys=True).encode()
