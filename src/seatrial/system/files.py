"""Writing files so that a reader, or a crash, never meets half of one."""

from __future__ import annotations

import contextlib
import errno
import io
import os
from functools import partial
from pathlib import Path

from seatrial.errors import DiskError, fallback, os_errors
from seatrial.system.text import as_typed

#: Longest list of files that is read from an archive: torch's wheel has 11,000 in 1.5 MB, a model one for each tensor.
_MOST_LISTED_BYTES = 8 << 20
#: The reason that a file cannot be written → the command that shows it.
_SHOWN_BY = {errno.ENOSPC: "df -h", errno.EDQUOT: "df -h", errno.EROFS: "findmnt -T"}


class ArchiveFile(io.FileIO):
    """An archive that is never read whole: zipfile reads the list of files at once, as long as the file claims."""

    def read(self, size: int | None = -1, /) -> bytes:
        data = super().read(_MOST_LISTED_BYTES + 1 if size is None or size < 0 else min(size, _MOST_LISTED_BYTES + 1))
        if len(data) > _MOST_LISTED_BYTES:
            raise OSError(errno.EFBIG, "its list of files is too long")
        return data


@fallback(None, on=(OSError, ValueError))  # a name too long, a null byte: no file has it
def status_of(path: Path) -> os.stat_result | None:
    """Return the status of what has this name, of a link its own; None if nothing has it."""
    return path.lstat()


def write_atomically(path: Path, data: bytes, mode: int | None = 0o644, *, folder: int | None = None) -> None:
    """Write aside in the same folder, flush to the disk, rename over ``path``. Raises DiskError; the file stays then.

    ``mode``: None: what the umask leaves, for files that people read. ``folder``: a descriptor of the path's folder, in
    whose place somebody may have put a link by now.
    """
    name = str(path) if folder is None else path.name
    aside = str(Path(name).with_name(f".{path.name}.{os.urandom(4).hex()}"))
    flags, made = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o666 if mode is None else 0o600
    try:
        descriptor = os.open(aside, flags, made, dir_fd=folder)
    except OSError as error:
        raise cannot_write(path, error) from error
    try:
        with os.fdopen(descriptor, "wb") as file:
            file.write(data)
            file.flush()
            if mode is not None:
                os.fchmod(file.fileno(), mode)
            os.fsync(file.fileno())
        os.replace(aside, name, src_dir_fd=folder, dst_dir_fd=folder)
    except OSError as error:
        with contextlib.suppress(FileNotFoundError):
            os.unlink(aside, dir_fd=folder)
        raise cannot_write(path, error) from error


def cannot_write(path: Path, error: OSError) -> DiskError:
    """Return the error for a file that cannot be written, and the command that shows or mends it."""
    folder = path.parent
    if path.is_dir():
        return DiskError(f"Cannot write {path}: it is a folder", run=f"ls -ld {as_typed(path)}")
    if isinstance(error, FileNotFoundError):
        return DiskError(f"Cannot write {path}: folder {folder} not found", run=f"mkdir -p {as_typed(folder)}")
    return DiskError(f"Cannot write {path}: {error.strerror}", run=in_the_way(folder, error))


def in_the_way(folder: Path, error: OSError) -> str:
    """Return the command that shows why a folder cannot be written into: its owner, free space or mount."""
    return f"{_SHOWN_BY.get(error.errno or 0, 'ls -ld')} {as_typed(folder)}"


def require_writable(path: Path) -> None:
    """Check before what takes long that a file can be written there. Raises DiskError, and changes nothing."""
    reasons = {
        errno.EISDIR: path.is_dir(),
        errno.ENOENT: not path.parent.exists(),
        errno.ENOTDIR: not path.parent.is_dir(),
        errno.EROFS: path.parent.exists() and os.statvfs(path.parent).f_flag & os.ST_RDONLY,
        errno.EACCES: not os.access(path.parent, os.W_OK | os.X_OK),
    }
    if (reason := next((number for number, holds in reasons.items() if holds), None)) is not None:
        error = OSError(reason, os.strerror(reason), str(path))
        raise cannot_write(path, error) from error


def make_folder(path: Path) -> None:
    """Make a folder and those above it. Raises DiskError."""
    with os_errors(DiskError, f"Cannot create the folder {path}", partial(in_the_way, path.parent)):
        path.mkdir(parents=True, exist_ok=True)
