"""A path as the user would type it in the current folder of a shell."""

from __future__ import annotations

import os
import shlex
from pathlib import Path


def as_typed(path: Path | str) -> str:
    """Quote a path for the shell; relative to the working directory where that is shorter, and never like an option."""
    return shlex.quote(from_here(path))


def from_here(path: Path | str) -> str:
    """Return the same for reading: not quoted."""
    text = os.fspath(path)
    try:
        relative = os.path.relpath(text)
    except OSError:  # the working directory is gone
        relative = text
    shown = relative if len(relative) < len(text) or not text.startswith("/") else text
    return f"./{shown}" if shown.startswith("-") else shown
