"""The state folder: what seatrial knows of its runs, in a place of the user's that no container is given.

Plans, handles, locks, evidence and receipts lie here, trust in projects too (docs/decisions.md, 0019).
A project's own ``.seatrial`` holds what its containers write, and copies for people to look at; nothing in it is
believed.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Mapping
from pathlib import Path

from seatrial.errors import DiskError

#: Moves the state folder, e.g. where HOME is on a file system without locks.
STATE_VARIABLE = "SEATRIAL_STATE"


def state_folder(environ: Mapping[str, str]) -> Path:
    """``$SEATRIAL_STATE``, else ``$XDG_STATE_HOME/seatrial``, else ``~/.local/state/seatrial``; made, mode 0700.
    One that is there is the user's, and nobody else can write it afterwards.

    Without a HOME that can be written: ``/var/tmp/seatrial-<uid>``, which outlives a restart of the machine.

    Raises DiskError: none of them can be made, or the folder belongs to another user.
    """
    trouble: OSError | None = None
    for candidate in _candidates(environ):
        try:
            candidate.mkdir(mode=0o700, parents=True, exist_ok=True)
        except OSError as error:
            trouble = trouble or error
            continue
        status = candidate.lstat()
        if stat.S_ISDIR(status.st_mode) and status.st_uid == os.getuid() and os.access(candidate, os.W_OK):
            if status.st_mode & 0o022:
                candidate.chmod(stat.S_IMODE(status.st_mode) & ~0o022)
            return candidate.resolve()
    first = _candidates(environ)[0]
    why = trouble.strerror if trouble else "it belongs to another user"
    raise DiskError(
        f"Cannot use the state folder {first}: {why}",
        cause="seatrial keeps its plans and receipts there, inaccessible to containers",
        run=f"export {STATE_VARIABLE}=/path/to/your/folder",
    )


def _candidates(environ: Mapping[str, str]) -> list[Path]:
    if chosen := environ.get(STATE_VARIABLE):
        return [Path(os.path.abspath(chosen))]  # noqa: PTH100  resolve() would follow a link before it is looked at
    found = []
    if (xdg := environ.get("XDG_STATE_HOME", "")).startswith("/"):
        found.append(Path(xdg) / "seatrial")
    if (home := environ.get("HOME", "")).startswith("/"):
        found.append(Path(home) / ".local" / "state" / "seatrial")
    return [*found, Path(f"/var/tmp/seatrial-{os.getuid()}")]
