"""What a user is told of a script that cannot be read as Python 3."""

from __future__ import annotations

import sys
from pathlib import Path

from seatrial.errors import TargetError
from seatrial.system.source import UnreadableSourceError
from seatrial.system.typed_path import as_typed


def unreadable(error: UnreadableSourceError, path: Path) -> TargetError:
    """The error to raise for the file at ``path``."""
    if error.python_2:
        return TargetError(
            f"{error.python_2}: this is Python 2, which no image that seatrial builds can run",
            cause="the target is this file or imports it at once",
            run=f"2to3 -w {as_typed(path)}   # or an image that has Python 2: seatrial run --image IMAGE …",
        )
    if error.magic:
        return notebook_error(f"{error.magic} works only in a notebook", path, "/^[[:space:]]*[%!]/d")
    python = f"{sys.version_info.major}.{sys.version_info.minor}"
    cause = "it is only parsed, for its imports and GPU use; it is never run here"
    if error.grammar:
        cause = f"parsed as Python {python}, which seatrial runs on; newer syntax needs a newer Python"
    return TargetError(str(error), cause=cause, run=f"python3 -m py_compile {as_typed(path)}")


def notebook_error(message: str, file: Path, delete: str) -> TargetError:
    """For a script that was a notebook. ``delete``: what sed removes such lines by."""
    return TargetError(
        message,
        cause="a notebook exported to a script keeps its % and ! lines",
        run=f"sed -i '{delete}' {as_typed(file)}    # and list in requirements.txt what they install",
    )
