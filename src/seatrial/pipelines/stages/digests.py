"""Digests of files and folders by content, each file read again only when its size, time or inode has changed."""

from __future__ import annotations

import hashlib
import json
import os
import stat
import time
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path

from seatrial.errors import DiskError, UsageError
from seatrial.system import nofollow
from seatrial.system.files import write_atomically
from seatrial.system.typed_path import as_typed

#: A file changed within this time of being read may change again and keep its time: its digest is not kept. File times
#: come from the kernel's coarse clock (10 ms at HZ=100); some file systems keep whole seconds, FAT two of them.
RACY_S, RACY_WHOLE_S = 0.1, 2.0

#: Entries kept of files that a command did not look at, at most.
_MOST_UNUSED = 200_000

_CHUNK_BYTES = 1 << 20
_MOST_BYTES = 256 << 20
#: Not content: what Python and tools leave beside it.
_LEFT_OUT = frozenset({"__pycache__", ".git", ".seatrial", ".ipynb_checkpoints"})


@dataclass(frozen=True)
class Digest:
    """A file or folder.

    Attributes:
        path: below the project. digest: ``sha256:…``; of a folder over names, kinds, and contents of all in it.
    """

    path: str
    digest: str
    bytes: int
    files: int

    def as_dict(self) -> dict[str, object]:
        return asdict(self)


class Digests:
    """Content digests, kept between commands.

    Args:
        cache: the file that they are kept in.
    """

    def __init__(self, cache: Path) -> None:
        self._path = cache
        self._known: dict[str, list[object]] = {}
        self._used: dict[str, list[object]] = {}
        self._changed = False
        try:
            loaded = json.loads(nofollow.read_regular(cache, most_bytes=_MOST_BYTES))
            self._known = loaded if isinstance(loaded, dict) else {}
        except (OSError, ValueError, RecursionError):
            pass

    def of(self, project: Path, path: str) -> Digest | None:
        """Of what is at ``path`` below the project; None where nothing is. No link is followed below the path itself.

        Raises DiskError: something in it cannot be read.
        """
        top = project / path
        try:
            found = top.stat()
        except OSError:
            return None
        if stat.S_ISREG(found.st_mode):
            return Digest(path, "sha256:" + self._file(top, found), found.st_size, 1)
        if not stat.S_ISDIR(found.st_mode):
            raise UsageError(f"{path} is neither a file nor a folder", run=f"ls -ld {as_typed(top)}")
        whole, size, count = hashlib.sha256(), 0, 0
        for name, status, entry in _walk(str(top)):
            if stat.S_ISLNK(status.st_mode):
                line = f"link {name}\0{Path(entry).readlink()}"
            elif stat.S_ISDIR(status.st_mode):
                line = f"folder {name}"
            elif stat.S_ISREG(status.st_mode):
                line = f"file {name}\0{self._file(Path(entry), status)}"
                size, count = size + status.st_size, count + 1
            else:
                continue  # a socket or a pipe has no content
            whole.update(line.encode("utf-8", "surrogateescape") + b"\0\n")
        return Digest(path, "sha256:" + whole.hexdigest(), size, count)

    def save(self) -> None:
        """Keep them for the next command. Raises DiskError."""
        if not self._changed:
            return
        unused = {key: value for key, value in self._known.items() if key not in self._used}
        kept = {} if len(unused) > _MOST_UNUSED else unused
        write_atomically(self._path, json.dumps({**kept, **self._used}).encode(), mode=0o600)
        self._changed = False

    def _file(self, path: Path, status: os.stat_result) -> str:
        """By inode, so that files of a renamed folder need not be read again. ctime catches what sets mtime back."""
        key = f"{status.st_dev}:{status.st_ino}"
        mark: list[object] = [status.st_size, status.st_mtime_ns, status.st_ctime_ns]
        known = self._used.get(key) or self._known.get(key)
        if isinstance(known, list) and len(known) == 4 and known[:3] == mark and isinstance(known[3], str):
            self._used[key] = known
            return known[3]
        began = time.time()
        digest = _read(path)
        racy_s = RACY_S if status.st_mtime_ns % 1_000_000_000 else RACY_WHOLE_S
        if began - max(status.st_mtime, status.st_ctime) > racy_s:
            self._used[key] = [*mark, digest]
            self._changed = True
        return digest


def _read(path: Path) -> str:
    whole = hashlib.sha256()
    try:
        with path.open("rb") as file:
            while chunk := file.read(_CHUNK_BYTES):
                whole.update(chunk)
    except OSError as error:
        raise DiskError(f"Cannot read {path}: {error.strerror}", run=f"ls -l {as_typed(path)}") from error
    return whole.hexdigest()


def _walk(top: str) -> Iterator[tuple[str, os.stat_result, str]]:
    """(name below the top, status, path) of all that a folder holds, sorted: the order on disk plays no part."""
    pending = [""]
    while pending:
        folder = pending.pop()
        try:
            with os.scandir(os.path.join(top, folder)) as found:  # noqa: PTH118  a hundred thousand Paths take a second
                entries = sorted(found, key=lambda entry: entry.name)
        except OSError as error:
            raise DiskError(
                f"Cannot read {folder or top}: {error.strerror}", run=f"ls -la {as_typed(Path(top))}"
            ) from error
        for entry in entries:
            if entry.name in _LEFT_OUT:
                continue
            name = f"{folder}/{entry.name}" if folder else entry.name
            status = entry.stat(follow_symlinks=False)
            yield name, status, entry.path
            if stat.S_ISDIR(status.st_mode):
                pending.append(name)
