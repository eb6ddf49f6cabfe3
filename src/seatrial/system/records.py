"""Records: small files that seatrial keeps of runs, groups, leases and trust, and who may be writing one.

A reader never meets half a record, follows no link and waits for no pipe; a crash leaves the old one or the new one.
Evidence is not a record: events.jsonl has a writer of its own, which appends.
"""

from __future__ import annotations

import contextlib
import dataclasses
import fcntl
import fnmatch
import json
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, BinaryIO, TypeVar

from seatrial.errors import DiskError, UntrustedPathError
from seatrial.probe import processes
from seatrial.system.files import write_atomically
from seatrial.system.nofollow import open_regular
from seatrial.system.typed_path import as_typed

T = TypeVar("T")

#: Far above what any record but a plan has.
MAX_BYTES = 1 << 20

#: Raised for a record that is missing, planted, cut off or of another version: readers see none.
NO_RECORD = (OSError, UntrustedPathError, ValueError, TypeError, KeyError, AttributeError, RecursionError)


class Folder:
    """The records in one folder.

    Args:
        mode: of the files and locks made here.
        own: only files of this user are read.
        shared: other users lock here too, so a lock is opened for reading alone. The kernel's fs.protected_regular
            refuses O_CREAT for another user's file in a sticky folder.
    """

    def __init__(self, path: Path, *, mode: int = 0o600, own: bool = False, shared: bool = False) -> None:
        self.path, self._mode, self._own, self._shared = path, mode, own, shared

    def load(self, name: str, *, max_bytes: int = MAX_BYTES) -> bytes:
        """Return a record's bytes.

        Raises:
            FileNotFoundError: there is none.
            UntrustedPathError: a link, pipe, device or folder, another user's file where that matters, or too large.
        """
        path = self.path / name
        with open_regular(path) as file:
            status = os.fstat(file.fileno())
            if self._own and status.st_uid != os.getuid():
                raise UntrustedPathError(f"{path} belongs to another user", run=f"ls -l {as_typed(path)}")
            data = file.read(max_bytes + 1)
        if len(data) > max_bytes:
            raise UntrustedPathError(f"{path} is larger than {max_bytes} bytes", run=f"ls -l {as_typed(path)}")
        return data

    def read(self, name: str, kind: Callable[..., T], *, max_bytes: int = MAX_BYTES) -> T | None:
        """Return a record; None if there is none, or none that can be believed.

        Args:
            kind: a pydantic model, or a callable that makes the value from decoded JSON.
        """
        try:
            data = self.load(name, max_bytes=max_bytes)
            from_json: Callable[[bytes], T] | None = getattr(kind, "model_validate_json", None)
            return from_json(data) if from_json is not None else kind(json.loads(data))
        except NO_RECORD:
            return None

    def write(self, name: str, value: Any) -> None:
        """Replace a record: bytes, text, a pydantic model, a dataclass or JSON data. Raises DiskError."""
        write_atomically(self.path / name, _encoded(value), mode=self._mode)

    def names(self, pattern: str) -> list[str]:
        """Return the sorted names of files here that match; none where the folder is missing."""
        try:
            return sorted(each.name for each in self.path.iterdir() if fnmatch.fnmatchcase(each.name, pattern))
        except OSError:
            return []

    def has(self, name: str) -> bool:
        """Return True if there is something of this name."""
        return os.path.lexists(self.path / name)

    def remove(self, name: str) -> None:
        """Delete a record if there is one. Raises OSError."""
        (self.path / name).unlink(missing_ok=True)

    @contextmanager
    def lock(self, name: str) -> Iterator[None]:
        """Hold an exclusive lock, so that two processes do not change the same record at once.

        Raises DiskError; UntrustedPathError for something other than a file in its place.
        """
        path = self.path / name
        try:
            file = self._open_lock(path)
        except OSError as error:
            raise DiskError(f"Cannot lock {path}: {error.strerror}", run=f"ls -la {as_typed(path.parent)}") from error
        with file:
            fcntl.flock(file, fcntl.LOCK_EX)
            yield

    def _open_lock(self, path: Path) -> BinaryIO:
        flags = os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
        if not self._shared:  # a network file system locks only what is open for writing
            return os.fdopen(os.open(path, os.O_RDWR | os.O_CREAT | flags, self._mode), "rb")
        with contextlib.suppress(FileExistsError):
            made = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, self._mode)
            os.fchmod(made, self._mode)  # in any umask: others must be able to read it
            os.close(made)
        return open_regular(path)


def _encoded(value: Any) -> bytes:
    if isinstance(value, bytes):
        return value
    if isinstance(value, str):
        return value.encode("utf-8", "surrogateescape")
    if (dump := getattr(value, "model_dump_json", None)) is not None:
        text: str = dump()
        return text.encode()
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        value = dataclasses.asdict(value)
    return json.dumps(value, indent=1).encode()


@dataclasses.dataclass(frozen=True)
class Process:
    """A process of this machine, by PID and start time, so that a reused PID is not mistaken for it."""

    pid: int
    started_ticks: int

    @classmethod
    def this(cls) -> Process:
        """Return the calling process."""
        me = cls.of(os.getpid())
        assert me is not None
        return me

    @classmethod
    def of(cls, pid: int) -> Process | None:
        """Return the process that has this PID now; None if there is none."""
        found = processes.read(pid)
        return None if found is None else cls(found.pid, found.started_ticks)

    @classmethod
    def from_json(cls, data: Any) -> Process:
        """Return a recorded process. Raises TypeError, KeyError, ValueError."""
        return cls(int(data["pid"]), int(data["started_ticks"]))

    def is_alive(self) -> bool:
        """Return True if it still runs; a zombie does not."""
        now = processes.read(self.pid)
        return now is not None and now.started_ticks == self.started_ticks and now.state != "Z"
