"""The run store: ``.seatrial/runs/<id>/`` under the project. A folder is a run's whole state.

plan.json       the Plan, written before anything starts
handle.json     how to find the process or container again
events.jsonl    evidence, append-only
stdout.log, stderr.log, output.idx, agent.out
checkpoints/    what the target saved for ``--resume``
receipt.json, receipt.md, receipt.html, summary.json     once it has ended

The models of a plan are imported where one is read or written: listing ended runs needs none.
"""

from __future__ import annotations

import fcntl
import json
import os
import secrets
import shutil
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from seatrial.errors import DiskError, NameInUseError, RunNotFoundError, SeatrialError
from seatrial.system.files import write_atomically

if TYPE_CHECKING:
    from seatrial.backends.base import Handle
    from seatrial.job.plan import Plan

STORE_FOLDER = Path(".seatrial") / "runs"

#: No letters that look like digits, no vowels that make words.
_ID_ALPHABET = "bcdfghjkmnpqrstvwxz23456789"


def new_run_id(now: float | None = None) -> str:
    """A sortable ID: local start time and four random characters, e.g. ``20261120-231501-k3f9``."""
    stamp = time.strftime("%Y%m%d-%H%M%S", time.localtime(now))
    return f"{stamp}-{''.join(secrets.choice(_ID_ALPHABET) for _ in range(4))}"


@dataclass(frozen=True)
class Run:
    """One run's folder."""

    folder: Path

    @property
    def id(self) -> str:
        return self.folder.name

    @property
    def events_path(self) -> Path:
        return self.folder / "events.jsonl"

    @property
    def checkpoints(self) -> Path:
        return self.folder / "checkpoints"

    def plan(self) -> Plan:
        """The plan it was started with. Raises SeatrialError when plan.json is missing or of another version."""
        from pydantic import ValidationError

        from seatrial.job.plan import Plan

        path = self.folder / "plan.json"
        try:
            return Plan.model_validate_json(path.read_bytes(), strict=False)
        except FileNotFoundError:
            raise SeatrialError(
                f"Run {self.id} has no plan.json: it was never started",
                run=f"seatrial runs rm {self.id}",
            ) from None
        except ValidationError as error:
            raise SeatrialError(
                f"{path} cannot be read by this version of seatrial",
                cause=f"{error.error_count()} of its keys do not fit, the first: {error.errors()[0]['loc']}",
                run=f"seatrial runs rm {self.id}",
            ) from error

    def handle(self) -> Handle | None:
        """How to find it in its backend, or None before it started."""
        from seatrial.backends.base import Handle

        try:
            return Handle.model_validate_json((self.folder / "handle.json").read_bytes())
        except FileNotFoundError:
            return None

    def is_starting(self) -> bool:
        """It has not started, and the process that should start it lives."""
        from pydantic import ValidationError

        from seatrial.runs.launcher import Launcher

        if self.handle() is not None:
            return False
        try:
            return Launcher.model_validate_json((self.folder / "launcher.json").read_bytes()).is_alive()
        except (FileNotFoundError, ValidationError):
            return False

    def give_up(self) -> None:
        """It will not be started: its launcher no longer stands for it."""
        (self.folder / "launcher.json").unlink(missing_ok=True)

    def save_plan(self, plan: Plan) -> None:
        """Write plan.json. A login in the package index's URL stays out of it."""
        from seatrial.images.plan import without_login

        image = plan.job.image
        if image.index_url is not None:
            image = image.model_copy(update={"index_url": without_login(image.index_url)})
            plan = plan.model_copy(update={"job": plan.job.model_copy(update={"image": image})})
        write_atomically(self.folder / "plan.json", plan.model_dump_json(indent=1).encode())

    def save_handle(self, handle: Handle) -> None:
        write_atomically(self.folder / "handle.json", handle.model_dump_json().encode())

    def summary(self) -> dict[str, Any] | None:
        """A few keys for listings, or None while it has not been finalised."""
        try:
            loaded = json.loads((self.folder / "summary.json").read_bytes())
        except (FileNotFoundError, ValueError):
            return None
        return loaded if isinstance(loaded, dict) else None

    @property
    def ended(self) -> bool:
        """Whether it has been finalised; told faster than by reading the summary."""
        return (self.folder / "summary.json").exists()

    @contextmanager
    def lock(self, name: str) -> Iterator[None]:
        """Hold an exclusive lock of this run, so that two processes do not finalise it at once."""
        with (self.folder / f".{name}.lock").open("w") as file:
            fcntl.flock(file, fcntl.LOCK_EX)
            yield


class RunStore:
    """The runs of one project."""

    def __init__(self, project: Path) -> None:
        self.project = project
        self.root = project / STORE_FOLDER

    def create(self, run_id: str, name: str | None) -> Run:
        """Make the folder, whole or not at all.

        Raises NameInUseError when a run that is not finalised has the name, DiskError when it cannot be written.
        """
        if name is not None and (other := self.unfinalised(name)) is not None:
            raise NameInUseError(
                f'The name "{name}" belongs to run {other.id}, which has not ended',
                run=f"seatrial runs stop {name}   # or choose another --name",
            )
        from seatrial.runs.launcher import Launcher

        run = Run(self.root / run_id)
        try:
            run.checkpoints.mkdir(parents=True)
            (run.folder / "launcher.json").write_text(Launcher.this_process().model_dump_json())
            ignore = self.root.parent / ".gitignore"
            if not ignore.exists():
                ignore.write_text("*\n")  # runs never end up in the user's repository
        except OSError as error:
            if not isinstance(error, FileExistsError):
                shutil.rmtree(run.folder, ignore_errors=True)
            raise DiskError(
                f"Cannot make the run folder {run.folder}: {error.strerror}",
                run=f"df -h {self.project}; ls -ld {self.project}",
            ) from error
        if name is not None:
            (run.folder / "name").write_text(name)
        return run

    def all(self) -> list[Run]:
        """Every run, oldest first (IDs sort by time)."""
        try:
            with os.scandir(self.root) as entries:
                names = sorted(entry.name for entry in entries if entry.is_dir())
        except FileNotFoundError:
            return []
        return [Run(self.root / name) for name in names]

    def find(self, reference: str) -> Run:
        """The run of this ID, unique ID prefix or suffix, or name (the newest of that name).

        ``last`` is the newest run. Raises RunNotFoundError.
        """
        runs = self.all()
        if reference == "last" and runs:
            return runs[-1]
        for run in reversed(runs):
            if reference in (run.id, run_name(run)):
                return run
        partial = [run for run in runs if run.id.startswith(reference) or run.id.endswith(f"-{reference}")]
        if len(partial) == 1:
            return partial[0]
        if partial:
            raise RunNotFoundError(
                f'"{reference}" fits {len(partial)} runs: {", ".join(run.id for run in partial[-3:])}',
                run="seatrial runs ls",
            )
        raise RunNotFoundError(f'No run "{reference}" in {self.root}', run="seatrial runs ls")

    def remove(self, run: Run) -> None:
        """Delete a run's folder."""
        shutil.rmtree(run.folder)

    def unfinalised(self, name: str) -> Run | None:
        """The newest run of this name without a summary: it lives, or nobody has finalised it since it ended."""
        for run in reversed(self.all()):
            if run_name(run) == name and run.summary() is None:
                return run
        return None


def run_name(run: Run) -> str | None:
    """The name it was given, or None."""
    try:
        return (run.folder / "name").read_text().strip() or None
    except FileNotFoundError:
        return None
