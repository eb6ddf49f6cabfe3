"""Notifications: who is told that a run, a sweep or an ``up`` has ended, by a process that nobody waits for.

What is asked for lies in the record of what is to end, which no container sees, until somebody knows its end: of a run
the command line that started it, the recorder of a detached one, or a later ``seatrial runs``. That process writes
down what to tell, starts another, and goes on. The results are in NOTES.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from seatrial.errors import SeatrialError
from seatrial.job.notify import Notify, program_of
from seatrial.receipt.model import Receipt
from seatrial.receipt.store import JSON_NAME
from seatrial.runs.run import Run, run_name
from seatrial.system import command, nofollow
from seatrial.system.files import write_atomically
from seatrial.system.host import Host

#: In a record: what is asked for, until it is done, and what to tell.
REQUEST, MESSAGE = "notify.json", "notify-message.json"

#: In a record: a line for each command and its result.
NOTES = "notified.txt"

#: A command may upload a model; one that hangs must not stay for ever.
COMMAND_TIMEOUT_S = 600.0

_MOST_BYTES = 1 << 20


@dataclass(frozen=True, kw_only=True)
class Ended:
    """What is told: no path, no address, no name of a person or machine.

    Attributes:
        kind: run, sweep or compose. id: what ``seatrial`` finds it by.
        outcome: of a run as its receipt has it; else done, unmet, failed, stopped or interrupted.
        exit_code: of the command; None: it was killed, and somebody else found out.
        text: the sentence that a person reads.
        receipt: for a command, which is run on this machine.
    """

    kind: str
    id: str
    name: str | None
    target: str
    outcome: str
    level: str
    exit_code: int | None
    headline: str
    seconds: float | None
    text: str
    receipt: Path

    @property
    def message(self) -> dict[str, Any]:
        """The JSON that a command gets. ``text`` and ``content`` are the keys that chat services show."""
        told = {key: value for key, value in asdict(self).items() if key != "receipt"}
        return {**told, "run": self.id if self.kind == "run" else None, "content": self.text}


def keep_request(folder: Path, project: Path, notify: Notify) -> None:
    """Remember whom to tell of the end of what ``folder`` is the record of. Raises DiskError."""
    text = json.dumps({"project": str(project), "notify": notify.model_dump(mode="json")})
    write_atomically(folder / REQUEST, text.encode(), mode=0o600)


def begin(folder: Path, ended: Ended, host: Host) -> None:
    """Start telling those who are to be told, and return at once. Never raises: nothing fails for this."""
    try:
        if (folder / REQUEST).exists():
            told = {"message": ended.message, "receipt": str(ended.receipt)}
            write_atomically(folder / MESSAGE, json.dumps(told).encode(), mode=0o600)
            argv = [sys.executable, "-m", "seatrial", "runs", "notify", str(folder)]
            # There, because ``-m`` imports from the current folder first, and the project may hold a json.py.
            command.spawn_detached(argv, output=folder / "notify.log", env=host.env, cwd=folder)
    except (OSError, SeatrialError) as error:
        _note(folder, f"nobody was told: {getattr(error, 'strerror', None) or error}")


def deliver(folder: Path, host: Host) -> None:
    """Tell everybody who is to be told, once. Raises OSError where nothing has ended yet, or no request is left."""
    told = json.loads(nofollow.read_regular(folder / MESSAGE, most_bytes=_MOST_BYTES))
    request = json.loads(nofollow.read_regular(folder / REQUEST, most_bytes=_MOST_BYTES))
    (folder / REQUEST).unlink()  # two who would tell: one does
    notify, project = Notify.model_validate(request["notify"], strict=False), Path(request["project"])
    for whom, trouble in _tell(notify, told["message"], project, told["receipt"], host):
        _note(folder, f"{whom}: {trouble or 'done'}")


def ended_run(run: Run, receipt: Receipt) -> Ended:
    """Of a run, from its receipt, which is scrubbed."""
    outcome, name = receipt.outcome, run_name(run)
    what = f"{name} ({receipt.header.target})" if name else receipt.header.target
    return Ended(
        kind="run",
        id=run.id,
        name=name,
        target=receipt.header.target,
        outcome=outcome.id,
        level=outcome.level,
        exit_code=receipt.exit_code,
        headline=outcome.brief,
        seconds=receipt.measurements.wall_s,
        text=f"seatrial: {what}: {'failed: ' if outcome.id == 'failed' else ''}{outcome.brief}",
        receipt=run.folder / JSON_NAME,
    )


def _tell(
    notify: Notify, message: Mapping[str, Any], project: Path, receipt: str, host: Host
) -> Iterator[tuple[str, str | None]]:
    """(who, what went wrong or None) of each."""
    for line in notify.command:
        yield program_of(line), _run(line, message, project, receipt, host)


def _run(line: str, message: Mapping[str, Any], project: Path, receipt: str, host: Host) -> str | None:
    env = {
        **host.env,
        "SEATRIAL_KIND": str(message["kind"]),
        "SEATRIAL_RUN_ID": str(message["id"]),
        "SEATRIAL_OUTCOME": str(message["outcome"]),
        "SEATRIAL_EXIT_CODE": str(message["exit_code"] if message["exit_code"] is not None else ""),
        "SEATRIAL_MESSAGE": str(message["text"]),
        "SEATRIAL_RECEIPT": receipt,
    }
    try:
        argv = ["/bin/sh", "-c", line]
        ended = command.run(argv, timeout_s=COMMAND_TIMEOUT_S, input=json.dumps(message), env=env, cwd=project)
    except (OSError, SeatrialError) as error:
        return f"it failed: {error}"
    return None if ended.exit_code == 0 else f"it exited with {ended.exit_code}: {ended.last_line()[:200]}"


def _note(folder: Path, line: str) -> None:
    """Without what steers a terminal: a command or a server may have said it."""
    plain = "".join(letter if letter.isprintable() else " " for letter in line)
    try:
        with os.fdopen(os.open(folder / NOTES, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600), "a") as file:
            file.write(f"{plain}\n")
    except OSError:  # the record was deleted, or the disk is full: there is nobody left to say it to
        pass


def notes(folder: Path) -> list[str]:
    """Return the lines of NOTES; [] if there was nobody to notify, or not yet."""
    try:
        text = nofollow.read_regular(folder / NOTES, most_bytes=_MOST_BYTES)
    except (OSError, SeatrialError):
        return []
    return text.decode("utf-8", "replace").splitlines()
