"""Permissions that the user has granted projects: a digest for each project and list of wishes.

The digest covers the project's real path and every line. A changed, added or removed line is another digest, so
a project's file that is rewritten, even by its own training script, needs permission again.
"""

from __future__ import annotations

import hashlib
import json
import os
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from seatrial.errors import UntrustedPathError
from seatrial.system.host import Host
from seatrial.system.records import Folder

FILE = "trust.json"

#: Entries kept, the newest; each is some 200 bytes.
MAX_ENTRIES = 2000
_MAX_BYTES = 4 << 20


class TrustStore:
    """``trust.json`` of the user's state folder.

    Attributes:
        problem: why the file counts as empty, in a sentence; None if it could be read or does not exist.

    Raises DiskError: no state folder can be made.
    """

    def __init__(self, host: Host) -> None:
        self._folder = Folder(host.state_folder, own=True)
        self.problem: str | None = None
        self._entries = self._read()

    def allows(self, project: Path, lines: Sequence[str]) -> bool:
        """Return True if exactly these lines were allowed this project."""
        return digest(project, lines) in self._entries

    def allow(self, project: Path, lines: Sequence[str]) -> None:
        """Remember them. Raises DiskError when the file cannot be written."""
        with self._folder.lock("trust.lock"):
            entries = self._read()
            entries.pop(key := digest(project, lines), None)
            entries[key] = {"project": _real(project), "at": time.strftime("%Y-%m-%dT%H:%M:%S%z")}
            self._entries = dict(list(entries.items())[-MAX_ENTRIES:])
            self._folder.write(FILE, {"version": 1, "allowed": self._entries})

    def _read(self) -> dict[str, dict[str, str]]:
        try:
            return self._folder.get(FILE, _entries, max_bytes=_MAX_BYTES)
        except FileNotFoundError:
            return {}
        except UntrustedPathError as error:
            self.problem = f"{error.message}: treated as empty"
            return {}


def digest(project: Path, lines: Sequence[str]) -> str:
    """Return the SHA-256 of the project's real path and the lines, in any order."""
    return hashlib.sha256(json.dumps([_real(project), sorted(lines)]).encode()).hexdigest()


def _real(project: Path) -> str:
    return os.path.realpath(project)


def _entries(data: Any) -> dict[str, dict[str, str]]:
    """Return the permissions in the file's data; entries of another kind are left out."""
    allowed = data["allowed"].items()
    return {key: each for key, each in allowed if isinstance(each, dict) and {*map(type, each.values())} <= {str}}
