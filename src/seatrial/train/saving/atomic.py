"""Writing a file whole or not at all: aside, flushed to the disk, then renamed over the old one."""

from __future__ import annotations

import fcntl
import os
import tempfile
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import BinaryIO

from seatrial.train.errors import DiskFullError


def write_file(path: Path, write: Callable[[BinaryIO], object]) -> None:
    """Replace ``path`` by what ``write`` writes, or leave it intact. Raises DiskFullError: space, quota, permission."""
    aside = ""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        descriptor, aside = tempfile.mkstemp(prefix=f".{path.name}.", suffix=".part", dir=path.parent)
        with os.fdopen(descriptor, "wb") as file:
            with suppress(OSError):  # a file system without locks
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            write(file)
            file.flush()
            os.fsync(file.fileno())
        os.umask(mask := os.umask(0o022))
        Path(aside).chmod(0o666 & ~mask)  # mkstemp makes files that only the owner reads
        Path(aside).replace(path)
    except BaseException as error:
        if aside:
            Path(aside).unlink(missing_ok=True)
        if isinstance(error, OSError) or _is_torch_write_failure(error):
            reason = error.strerror if isinstance(error, OSError) and error.strerror else "the write failed"
            fix = f"free space or choose another folder: df -h {path.parent}"
            raise DiskFullError(f"cannot write {path}: {reason}", fix=fix) from error
        raise


def remove_abandoned(aside: Path) -> None:
    """Delete a file that ``write_file`` left aside when its process was killed; one that is being written stays."""
    with suppress(OSError), aside.open("rb") as file:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        aside.unlink()


def link_file(path: Path, name: Path) -> bool:
    """Link a whole file under a second name, in place of its file; False if the file system has no hard links."""
    aside = name.with_name(f".{name.name}.{os.getpid()}.part")
    try:
        aside.unlink(missing_ok=True)
        aside.hardlink_to(path)
        aside.replace(name)
    except OSError:
        aside.unlink(missing_ok=True)
        return False
    return True


def write_text(path: Path, text: str) -> None:
    """Write text with ``write_file``, in UTF-8."""
    write_file(path, lambda file: file.write(text.encode()))


def _is_torch_write_failure(error: BaseException) -> bool:
    """Recognise torch.save's RuntimeError for a failed write (torch 2.13: inline_container.cc)."""
    return isinstance(error, RuntimeError) and any(
        sign in str(error) for sign in ("PytorchStreamWriter", "unexpected pos", "file write failed")
    )
