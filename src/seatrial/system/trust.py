"""What the user has allowed projects: a digest for each project and list of wishes, in the user's state folder.

The digest covers the project's real path and every line. A changed, added or removed line is another digest, so
whoever rewrites a project's file, be it its own training script, is asked about again.
"""

from __future__ import annotations

import fcntl
import hashlib
import json
import os
import stat
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from seatrial.errors import DiskError
from seatrial.system.files import write_atomically
from seatrial.system.host import Host
from seatrial.system.typed_path import as_typed

FILE = "trust.json"

#: Entries kept, the newest; each is some 200 bytes.
MAX_ENTRIES = 2000
_MAX_BYTES = 4 << 20


class TrustStore:
    """``trust.json`` of the user's state folder, mode 0600.

    Attributes:
        problem: why the file counts as empty, in a sentence; None where it could be read, or is not there.

    Raises DiskError: there is no state folder.
    """

    def __init__(self, host: Host) -> None:
        self._path = host.state_folder / FILE
        self.problem: str | None = None
        self._entries = self._read()

    def allows(self, project: Path, lines: Sequence[str]) -> bool:
        """Whether exactly these lines were allowed this project."""
        return digest(project, lines) in self._entries

    def allow(self, project: Path, lines: Sequence[str]) -> None:
        """Remember them. Raises DiskError when the file cannot be written."""
        with self._locked():
            entries = self._read()
            entries.pop(key := digest(project, lines), None)
            entries[key] = {"project": _real(project), "at": time.strftime("%Y-%m-%dT%H:%M:%S%z")}
            kept = dict(list(entries.items())[-MAX_ENTRIES:])
            write_atomically(self._path, json.dumps({"version": 1, "allowed": kept}, indent=1).encode(), mode=0o600)
            self._entries = kept

    def _read(self) -> dict[str, dict[str, str]]:
        try:
            allowed = self._load()
        except FileNotFoundError:
            return {}
        except RecursionError:
            self.problem = f"{self._path} is nested too deep: treated as empty"
        except (OSError, ValueError) as error:  # JSON and UTF-8 that are none are ValueErrors
            why = error.strerror if isinstance(error, OSError) and error.strerror else str(error)
            self.problem = f"{self._path} cannot be read ({why}): treated as empty"
        else:
            return {key: value for key, value in allowed.items() if _is_entry(value)}
        return {}

    def _load(self) -> dict[str, Any]:
        """Raises OSError, ValueError, RecursionError. A link is not followed, and a FIFO not waited for."""
        descriptor = os.open(self._path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
        try:
            status = os.fstat(descriptor)
            if not stat.S_ISREG(status.st_mode):
                raise ValueError("not a regular file")
            if status.st_uid != os.getuid():
                raise ValueError("it belongs to another user")
            data = os.read(descriptor, _MAX_BYTES + 1)
        finally:
            os.close(descriptor)
        if len(data) > _MAX_BYTES:
            raise ValueError("too large")
        content = json.loads(data.decode("utf-8"))
        allowed = content.get("allowed") if isinstance(content, dict) else None
        if not isinstance(allowed, dict):
            raise ValueError('no object "allowed" in it')
        return allowed

    @contextmanager
    def _locked(self) -> Iterator[None]:
        path = self._path.with_suffix(".lock")
        try:
            descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC, 0o600)
        except OSError as error:
            raise DiskError(f"Cannot lock {path}: {error.strerror}", run=f"ls -la {as_typed(path.parent)}") from error
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX)
            yield
        finally:
            os.close(descriptor)


def digest(project: Path, lines: Sequence[str]) -> str:
    """SHA-256 of the project's real path and the lines, in any order."""
    return hashlib.sha256(json.dumps([_real(project), sorted(lines)]).encode()).hexdigest()


def _real(project: Path) -> str:
    return os.path.realpath(project)


def _is_entry(value: Any) -> bool:
    return isinstance(value, dict) and all(isinstance(word, str) for word in value.values())
