"""Notifications: run the commands of ``[notify]`` after a run, in a process of their own.

The request lies in the record of the run, which no container sees, until a process knows its end: the command line
that started it, the recorder of a detached one, or a later ``seatrial runs``. That process writes the message, starts
another, and goes on. The results are in NOTES.
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

from seatrial.errors import SeatrialError, fallback
from seatrial.job.tables import Notify, program_of
from seatrial.receipt.model import JSON_NAME, Receipt
from seatrial.runs.run import Run, run_name
from seatrial.system import command
from seatrial.system.host import Host
from seatrial.system.records import Folder

#: Files of a record: the request, until it is done, and the message.
REQUEST, MESSAGE = "notify.json", "notify-message.json"
#: File of a record with a line for each command and its result.
NOTES = "notified.txt"
#: Lines of them that are shown; a job has a handful of commands.
_MOST_NOTES = 100
#: A command may upload a model; one that hangs must end.
COMMAND_TIMEOUT_S = 600.0


def keep_request(folder: Path, project: Path, notify: Notify) -> None:
    """Write the request into the record of a run. Raises DiskError."""
    Folder(folder).write(REQUEST, {"project": str(project), "notify": notify.model_dump(mode="json")})


def begin(run: Run, receipt: Receipt, host: Host) -> None:
    """Start the commands and return at once. Never raises: nothing fails for this."""
    try:
        if run.records.has(REQUEST):
            receipt_path = str(run.folder / JSON_NAME)  # for a command, which is run on this machine
            run.records.write(MESSAGE, {"message": _message(run, receipt), "receipt": receipt_path})
            argv = command.own_program("runs", "notify", str(run.folder))
            command.spawn_detached(argv, output=run.folder / "notify.log", env=host.env, cwd=run.folder)
    except (OSError, SeatrialError) as error:
        _note(run.folder, f"no notification was sent: {getattr(error, 'strerror', None) or error}")


def _message(run: Run, receipt: Receipt) -> dict[str, Any]:
    """Return the JSON that a command gets, from a receipt, which is scrubbed; ``exit_code``: None if it was killed.

    ``text`` and ``content``, the sentence for people, are the keys that chat services show.
    """
    outcome, name, target = receipt.outcome, run_name(run), receipt.header.target
    failed = "failed: " if outcome.id == "failed" else ""
    text = f"seatrial: {f'{name} ({target})' if name else target}: {failed}{outcome.brief}"
    return {
        "kind": "run",
        "id": run.id,
        "run": run.id,
        "name": name,
        "target": target,
        "outcome": outcome.id,
        "level": outcome.level,
        "exit_code": receipt.exit_code,
        "headline": outcome.brief,
        "seconds": receipt.measurements.wall_s,
        "text": text,
        "content": text,
    }


def deliver(folder: Path, host: Host) -> None:
    """Run every command, once. Raises OSError if nothing has ended yet, or no request is left."""
    records = Folder(folder)
    data, request = json.loads(records.load(MESSAGE)), json.loads(records.load(REQUEST))
    (folder / REQUEST).unlink()  # of two processes one delivers
    notify, message = Notify.model_validate(request["notify"], strict=False), data["message"]
    env = {
        **host.env,
        "SEATRIAL_KIND": str(message["kind"]),
        "SEATRIAL_RUN_ID": str(message["id"]),
        "SEATRIAL_OUTCOME": str(message["outcome"]),
        "SEATRIAL_EXIT_CODE": str(message["exit_code"] if message["exit_code"] is not None else ""),
        "SEATRIAL_MESSAGE": str(message["text"]),
        "SEATRIAL_RECEIPT": data["receipt"],
    }
    for line in notify.command:
        _note(folder, f"{program_of(line)}: {_run(line, message, Path(request['project']), env)}")


def _run(line: str, message: Mapping[str, Any], project: Path, env: Mapping[str, str]) -> str:
    """Run a command with the message on its input; return ``done``, or its failure."""
    try:
        argv = ["/bin/sh", "-c", line]
        ended = command.run(argv, timeout_s=COMMAND_TIMEOUT_S, input=json.dumps(message), env=env, cwd=project)
    except (OSError, SeatrialError) as error:
        return f"it failed: {error}"
    return "done" if ended.exit_code == 0 else f"it exited with {ended.exit_code}: {ended.last_line()[:200]}"


def _note(folder: Path, line: str) -> None:
    """Append a line to NOTES without control characters: it may hold a command's output."""
    plain = "".join(letter if letter.isprintable() else " " for letter in line)
    flags = os.O_WRONLY | os.O_CREAT | os.O_APPEND
    with suppress(OSError), os.fdopen(os.open(folder / NOTES, flags, 0o600), "a") as file:  # deleted, or a full disk
        file.write(f"{plain}\n")


@fallback([], on=(OSError, SeatrialError))
def notes(folder: Path) -> list[str]:
    """Return the lines of NOTES; [] if there was nobody to notify, or not yet."""
    return Folder(folder).load(NOTES).decode(errors="replace").splitlines()[:_MOST_NOTES]
