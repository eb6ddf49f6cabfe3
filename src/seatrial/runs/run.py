"""Run: one run's record, and its place in the project.

A run is two folders. Its **record**, in the user's state folder, is the host's alone and its whole state:

    plan.json       the Plan, written before anything starts; agent.json: the agent's part, which it reads
    handle.json     how to find the process or container again
    events.jsonl    evidence, append-only and chained
    stdout.log, stderr.log, output.idx, agent.out
    receipt.json, receipt.md, receipt.html, summary.json     once it has ended

Its **place**, ``.seatrial/runs/<id>`` in the project, holds what the container writes (``outputs``, ``home``) and, for
people, copies of the receipt and links to the logs. Nothing in it is believed (docs/decisions.md, 0019).

Runs of before 0019 have no record: their folder in the project is shown as it is, and nothing more.
The models of a plan are imported where one is read or written: listing ended runs needs none.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from seatrial import events
from seatrial.errors import SeatrialError, UntrustedPathError, UsageError
from seatrial.events import Event, EvidenceLog
from seatrial.input_frames import PIPE
from seatrial.system import nofollow
from seatrial.system.files import write_atomically
from seatrial.system.text import without_login

if TYPE_CHECKING:
    from seatrial.backends.base import Handle
    from seatrial.job.plan import Plan
    from seatrial.runs.launching_process import LaunchingProcess

#: In a project: what its containers write, and what people look at.
PLACE_FOLDER = (".seatrial", "runs")

#: Receipts that people look at in the project; the record has them first.
COPIED = ("receipt.html", "receipt.md", "receipt.json")

#: Largest plan that is read; the text of a ConfigMap's script and of a Dockerfile stand in it.
_MOST_PLAN_BYTES = 32 << 20
_MOST_RECORD_BYTES = 1 << 20


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


def run_name(run: Run) -> str | None:
    """The name it was given, or None."""
    try:
        text = nofollow.read_regular(run.folder / "name", most_bytes=4096).decode("utf-8", "replace")
    except (FileNotFoundError, UntrustedPathError):
        return None
    return "".join(character for character in text if character.isprintable()).strip() or None
