"""Notifications: who is told that a run has ended, by a process of its own that the run does not wait for.

What is asked for lies beside the run's record, which no container sees, until somebody has judged the run: the command
line that started it, the recorder of a detached run, or a later ``seatrial runs``. That process starts another, and
goes on. What came of it is in NOTES.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from seatrial.errors import SeatrialError
from seatrial.job.model import Job
from seatrial.job.notify import Notify, host_of, program_of
from seatrial.receipt.model import Receipt
from seatrial.receipt.write import JSON_NAME, load
from seatrial.runs.store import Run, run_name
from seatrial.system import command, nofollow
from seatrial.system.desktop import show
from seatrial.system.files import write_atomically
from seatrial.system.post import post

#: In a run's record: what is asked for, until it is done; and a line for each that was told, or was not, and why.
REQUEST, NOTES = "notify.json", "notified.txt"

#: A command may upload a model; one that hangs must not stay for ever.
COMMAND_TIMEOUT_S = 600.0

_MOST_BYTES = 1 << 20


def keep_request(run: Run, job: Job) -> None:
    """Remember whom to tell. Raises DiskError."""
    text = json.dumps({"project": str(job.project), "notify": job.notify.model_dump(mode="json")})
    write_atomically(run.folder / REQUEST, text.encode(), mode=0o600)


def begin(run: Run, environ: Mapping[str, str]) -> None:
    """Start telling, and return at once. Never raises: a run does not fail for this."""
    try:
        if (run.folder / REQUEST).exists():
            argv = [sys.executable, "-m", "seatrial", "runs", "notify", run.id, "--project", str(run.place.parents[2])]
            # There, because ``-m`` imports from the current folder first, and the project may hold a json.py.
            command.spawn_detached(argv, output=run.folder / "notify.log", env=environ, cwd=run.folder)
    except (OSError, SeatrialError) as error:
        _note(run, f"nobody was told: {getattr(error, 'strerror', None) or error}")


def deliver(run: Run, environ: Mapping[str, str]) -> None:
    """Tell everybody who is to be told, once. Raises OSError where there is no receipt yet, or no request any more."""
    receipt = load(run.folder)
    request = json.loads(nofollow.read_regular(run.folder / REQUEST, most_bytes=_MOST_BYTES))
    (run.folder / REQUEST).unlink()  # two who would tell: one does
    notify, project = Notify.model_validate(request["notify"], strict=False), Path(request["project"])
    message = message_of(run, receipt)
    for whom, trouble in _tell(notify, message, project, run, environ):
        _note(run, f"{whom}: {trouble or 'told'}")


def notes(run: Run) -> list[str]:
    """What came of it; [] where nobody was to be told, or is not told yet."""
    try:
        text = nofollow.read_regular(run.folder / NOTES, most_bytes=_MOST_BYTES)
    except (OSError, SeatrialError):
        return []
    return text.decode("utf-8", "replace").splitlines()


def message_of(run: Run, receipt: Receipt) -> dict[str, Any]:
    """What is posted: no path, no address and, as the receipt is scrubbed, no name. ``text`` and ``content`` are what
    chat services show.
    """
    outcome = receipt.outcome
    name = run_name(run)
    what = f"{name} ({receipt.header.target})" if name else receipt.header.target
    text = f"seatrial: {what}: {'failed: ' if outcome.id == 'failed' else ''}{outcome.brief}"
    return {
        "run": run.id,
        "name": name,
        "target": receipt.header.target,
        "outcome": outcome.id,
        "level": outcome.level,
        "exit_code": receipt.exit_code,
        "headline": outcome.brief,
        "seconds": receipt.measurements.wall_s,
        "text": text,
        "content": text,
    }


def _tell(
    notify: Notify, message: Mapping[str, Any], project: Path, run: Run, environ: Mapping[str, str]
) -> Iterator[tuple[str, str | None]]:
    """(who, what went wrong or None) of each."""
    if notify.desktop:
        yield "desktop", show("seatrial", str(message["text"]).removeprefix("seatrial: "), environ)
    for url in notify.webhook:
        yield host_of(url), post(url, message)
    for line in notify.command:
        yield program_of(line), _run(line, message, project, run, environ)


def _run(line: str, message: Mapping[str, Any], project: Path, run: Run, environ: Mapping[str, str]) -> str | None:
    env = {
        **environ,
        "SEATRIAL_RUN_ID": run.id,
        "SEATRIAL_OUTCOME": str(message["outcome"]),
        "SEATRIAL_EXIT_CODE": str(message["exit_code"]),
        "SEATRIAL_MESSAGE": str(message["text"]),
        "SEATRIAL_RECEIPT": str(run.folder / JSON_NAME),
    }
    try:
        argv = ["/bin/sh", "-c", line]
        ended = command.run(argv, timeout_s=COMMAND_TIMEOUT_S, input=json.dumps(message), env=env, cwd=project)
    except (OSError, SeatrialError) as error:
        return f"it failed: {error}"
    return None if ended.exit_code == 0 else f"it exited with {ended.exit_code}: {ended.last_line()[:200]}"


def _note(run: Run, line: str) -> None:
    """Without what steers a terminal: a command or a server may have said it."""
    plain = "".join(letter if letter.isprintable() else " " for letter in line)
    try:
        with os.fdopen(os.open(run.folder / NOTES, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600), "a") as file:
            file.write(f"{plain}\n")
    except OSError:  # the run was deleted, or the disk is full: there is nobody left to say it to
        pass
