"""Writing files so that a reader, or a crash, never meets half of one."""

from __future__ import annotations

import os
import tempfile
from pathlib import Path

from seatrial.errors import DiskError
from seatrial.system.typed_path import as_typed


def write_atomically(path: Path, data: bytes, mode: int = 0o644) -> None:
    """Write aside in the same folder, flush to the disk, rename over ``path``.

    Raises DiskError; whatever was at ``path`` is then untouched.
    """
    try:
        descriptor, temporary = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
    except OSError as error:
        raise DiskError(f"Cannot write {path}: {error.strerror}", run=f"df -h {as_typed(path.parent)}") from error
    try:
        with os.fdopen(descriptor, "wb") as file:
            file.write(data)
            file.flush()
            os.fchmod(file.fileno(), mode)
            os.fsync(file.fileno())
        Path(temporary).replace(path)
    except OSError as error:
        Path(temporary).unlink(missing_ok=True)
        raise DiskError(f"Cannot write {path}: {error.strerror}", run=f"df -h {as_typed(path.parent)}") from error


def make_folder(path: Path) -> None:
    """Make a folder and those above it. Raises DiskError."""
    try:
        path.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise DiskError(
            f"Cannot create the folder {path}: {error.strerror}", run=f"ls -ld {as_typed(path.parent)}"
        ) from error
