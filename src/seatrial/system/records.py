"""Records: small files that seatrial keeps of runs, groups, leases and trust, and who may be writing one.

A reader never meets half a record, follows no link and waits for no pipe; a crash leaves the old one or the new one.
Evidence is not a record: events.jsonl has a writer of its own, which appends.
"""

from __future__ import annotations

import contextlib
import dataclasses
import fcntl
import fnmatch
import hashlib
import json
import os
import time
import types
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from typing import Any, BinaryIO, Literal, TypeVar, Union, cast, get_args, get_origin, get_type_hints

from seatrial.errors import DiskError, UntrustedPathError, fallback, os_errors
from seatrial.probe import processes
from seatrial.system.files import write_atomically
from seatrial.system.host import Host
from seatrial.system.nofollow import open_regular, require_regular
from seatrial.system.text import as_typed

T = TypeVar("T")
#: Far above any record except a plan.
MAX_BYTES = 1 << 20
#: Far above the output of tools whose last lines are read.
MAX_OUTPUT_BYTES = 64 << 20
#: Largest file that a digest is made of: a second.
MAX_MEASURED_BYTES = 512 << 20
#: Raised for a record that is missing, planted, cut off or of another version: readers see none.
NO_RECORD = (OSError, UntrustedPathError, ValueError, TypeError, LookupError, AttributeError, ArithmeticError,
             RecursionError)  # fmt: skip
#: Largest time, size or measurement of a record.
_MAX_NUMBER, _MAX_INTEGER = 1e100, 1 << 63

_hints = cache(get_type_hints)

_TRUST = "trust.json"
#: Limit on the permissions kept, the newest first; each takes about 200 bytes.
MAX_ENTRIES = 2000
_MAX_TRUST_BYTES = 4 << 20


class Folder:
    """The records in one folder.

    Args:
        mode: of the files and locks made here. own: only files of this user are read.
        shared: other users lock here too, so a lock is opened for reading alone. The kernel's fs.protected_regular
            refuses O_CREAT for another user's file in a sticky folder.
    """

    def __init__(self, path: Path, *, mode: int = 0o600, own: bool = False, shared: bool = False) -> None:
        self.path, self._mode, self._own, self._shared = path, mode, own, shared

    def load(self, name: str, *, max_bytes: int = MAX_BYTES) -> bytes:
        """Return a record's bytes. Raises FileNotFoundError; UntrustedPathError: no file, another user's, too large."""
        path = self.path / name
        with open_regular(path) as file:
            if self._own and os.fstat(file.fileno()).st_uid != os.getuid():
                raise UntrustedPathError(f"{path} belongs to another user", run=f"ls -l {as_typed(path)}")
            data = file.read(max_bytes + 1)
        if len(data) > max_bytes:
            raise UntrustedPathError(f"{path} is larger than {max_bytes} bytes", run=f"ls -l {as_typed(path)}")
        return data

    def get(self, name: str, kind: Callable[..., T], *, max_bytes: int = MAX_BYTES, run: str | None = None) -> T:
        """Return a record, checked. Raises FileNotFoundError; UntrustedPathError as ``load``, or for another kind.

        ``kind``: a pydantic model, a dataclass, or a callable that makes the value from decoded JSON. ``run``: the
        command that goes on where it cannot be read.
        """
        data = self.load(name, max_bytes=max_bytes)
        try:
            content = json.loads(data, parse_constant=_finite, parse_float=_finite, parse_int=_whole)
            if (from_json := getattr(kind, "model_validate_json", None)) is not None:
                return cast(T, from_json(data, strict=False))
            return typed(cast(Any, kind), content) if dataclasses.is_dataclass(kind) else kind(content)
        except NO_RECORD as error:
            problem, cause = f"{self.path / name} cannot be read by this version of seatrial", _cause(error)
            raise UntrustedPathError(problem, cause=cause, run=run or f"ls -l {as_typed(self.path / name)}") from error

    @fallback(None, on=NO_RECORD)
    def read(self, name: str, kind: Callable[..., T], *, max_bytes: int = MAX_BYTES) -> T | None:
        """Return a record as ``get`` does; None if there is none, or none that can be believed."""
        return self.get(name, kind, max_bytes=max_bytes)

    def measure(self, name: str, *, max_bytes: int = MAX_MEASURED_BYTES) -> tuple[int, str | None]:
        """Return size and SHA-256 of a file; of a larger one the size alone. Raises as ``load``."""
        found, size = hashlib.sha256(), 0
        with open_regular(self.path / name) as file:
            if (whole := os.fstat(file.fileno()).st_size) > max_bytes:
                return whole, None
            while size <= max_bytes and (piece := file.read(MAX_BYTES)):
                found.update(piece)
                size += len(piece)
        return size, found.hexdigest()

    def write(self, name: str, value: Any) -> None:
        """Replace a record: bytes, text, a pydantic model, a dataclass or JSON data. Raises DiskError."""
        write_atomically(self.path / name, encoded(value), mode=self._mode)

    def names(self, pattern: str) -> list[str]:
        """Return the sorted names of files here that match; none where the folder is missing."""
        with contextlib.suppress(OSError):
            return sorted(each.name for each in self.path.iterdir() if fnmatch.fnmatchcase(each.name, pattern))
        return []

    def has(self, name: str) -> bool:
        """Return whether something has this name, even a broken link."""
        return os.path.lexists(self.path / name)

    def remove(self, name: str) -> None:
        """Delete a record if there is one. Raises OSError."""
        (self.path / name).unlink(missing_ok=True)

    @contextmanager
    def lock(self, name: str) -> Iterator[None]:
        """Hold an exclusive lock on a record. Raises DiskError; UntrustedPathError for something else in its place."""
        with self.open_lock(name) as file:
            fcntl.flock(file, fcntl.LOCK_EX)
            yield

    def open_lock(self, name: str) -> BinaryIO:
        """Open a file to lock, made if there is none. Raises as ``lock``."""
        path, flags = self.path / name, os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
        with os_errors(DiskError, f"Cannot lock {path}", f"ls -la {as_typed(path.parent)}"):
            if not self._shared:  # a network file system locks only what is open for writing
                return require_regular(os.open(path, os.O_RDWR | os.O_CREAT | flags, self._mode), path)
            with contextlib.suppress(FileExistsError):
                made = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, self._mode)
                os.fchmod(made, self._mode)  # in any umask: others must be able to read it
                os.close(made)
            return open_regular(path)


def _finite(text: str) -> float:
    """Return a number of usable size. Raises ValueError: NaN, Infinity, 1e999."""
    if not abs(value := float(text)) < _MAX_NUMBER:
        raise ValueError(text)
    return value


def _whole(text: str) -> int:
    return int(text) if _finite(text) else 0


def typed(kind: Callable[..., T], data: Any) -> T:
    """Make a dataclass of JSON by annotations, less unknown keys. Raises TypeError: wrong, out of range or missing."""
    if not isinstance(data, dict):
        raise TypeError(data)
    values = {}
    for key, hint in _hints(kind).items():
        if key in data:
            try:
                values[key] = _checked(hint, data[key])
            except (TypeError, ValueError):
                raise TypeError(f"its key {key} is invalid") from None
    return kind(**values)


def _checked(hint: Any, value: Any) -> Any:
    """Return a value of this type; of an array a tuple. Raises TypeError."""
    kind, inner = get_origin(hint), get_args(hint)
    if kind in (Union, types.UnionType):
        for each in inner:
            with contextlib.suppress(TypeError):
                return _checked(each, value)
    elif kind is tuple and isinstance(value, list):
        hints = inner[:1] * len(value) if inner[1:] == (...,) else inner
        return tuple(_checked(*pair) for pair in zip(hints, value, strict=True))
    elif dataclasses.is_dataclass(hint):
        return typed(cast(Any, hint), value)
    elif hint is Any or (kind is Literal and value in inner):
        return value
    elif hint is float:
        if type(value) in (int, float) and abs(value) < _MAX_NUMBER:  # no NaN
            return float(value)
    elif type(value) is (kind or hint) and not (hint is int and abs(value) > _MAX_INTEGER):
        return value
    raise TypeError(value)


def _cause(error: BaseException) -> str:
    """Return what is wrong with the content; of pydantic's errors the first."""
    errors: list[Any] = getattr(error, "errors", list)()
    if errors and errors[0]["loc"]:
        return f"its key {'.'.join(map(str, errors[0]['loc']))} is invalid"
    return str(error) if str(error).startswith("its key") else "it is not JSON, or of another kind"


def encoded(value: Any) -> bytes:
    """Return the bytes that ``write`` writes."""
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

    def is_alive(self) -> bool:
        """Return True if it still runs; a zombie does not."""
        now = processes.read(self.pid)
        return now is not None and now.started_ticks == self.started_ticks and now.state != "Z"


class TrustStore:
    """The permissions that the user has granted projects: ``trust.json`` of the state folder.

    Each is a digest of a project's real path and of every line that it requests. A changed, added or removed line
    changes the digest, so a rewritten file, even one that the training script rewrote, needs permission again.

    ``problem``: why the file counts as empty, in a sentence; None if it could be read or does not exist. Raises
    DiskError: no state folder can be made.
    """

    def __init__(self, host: Host) -> None:
        self._folder = Folder(host.state_folder, own=True)
        self.problem: str | None = None
        self._entries = self._read()

    def allows(self, project: Path, lines: Sequence[str]) -> bool:
        """Return True if exactly these lines were allowed this project."""
        return _permission(project, lines) in self._entries

    def allow(self, project: Path, lines: Sequence[str]) -> None:
        """Remember that these lines are allowed. Raises DiskError when the file cannot be written."""
        with self._folder.lock("trust.lock"):
            entries = self._read()
            entries.pop(key := _permission(project, lines), None)
            entries[key] = {"project": os.path.realpath(project), "at": time.strftime("%Y-%m-%dT%H:%M:%S%z")}
            self._entries = dict(list(entries.items())[-MAX_ENTRIES:])
            self._folder.write(_TRUST, {"version": 1, "allowed": self._entries})

    def _read(self) -> dict[str, dict[str, str]]:
        try:
            return self._folder.get(_TRUST, _permissions, max_bytes=_MAX_TRUST_BYTES)
        except FileNotFoundError:
            return {}
        except UntrustedPathError as error:
            self.problem = f"{error.message}: treated as empty"
            return {}


def _permission(project: Path, lines: Sequence[str]) -> str:
    """Return the SHA-256 of the project's real path and the lines, in any order."""
    return hashlib.sha256(json.dumps([os.path.realpath(project), sorted(lines)]).encode()).hexdigest()


def _permissions(data: Any) -> dict[str, dict[str, str]]:
    """Return the permissions in the file's data; entries of another kind are left out."""
    allowed = data["allowed"].items()
    return {key: each for key, each in allowed if isinstance(each, dict) and {*map(type, each.values())} <= {str}}
