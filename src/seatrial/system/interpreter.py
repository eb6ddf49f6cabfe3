"""The Python that the agent runs on: the command line's own, copied with everything it loads (docs/decisions.md, 0096).

It is mounted read-only, so no package and no layer of an image decides what records the evidence.
"""

from __future__ import annotations

import hashlib
import json
import os
import platform
import shutil
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path

from seatrial.errors import SeatrialError
from seatrial.system import command, interpreter_program
from seatrial.system.files import write_atomically

#: Libraries are copied and a hundred modules written; a second on a fast disk.
_TIMEOUT_S = 120.0


@dataclass(frozen=True)
class Interpreter:
    """A copy. ``words``: its version, its source and the digest of its content."""

    folder: Path
    words: str


def build(directory: Path, archive: Path) -> Interpreter | None:
    """Return the copy in ``directory`` for an agent's archive, made where it is missing or older than its parts.

    None where this Python cannot be copied: another system than Linux, another C library than glibc. Raises DiskError.
    """
    if sys.platform != "linux":
        return None
    program = Path(interpreter_program.__file__)
    made_of = [os.path.realpath("/proc/self/exe"), str(archive), program.read_text()]
    index = directory / f"python-{hashlib.sha256(repr(made_of).encode()).hexdigest()[:16]}.json"
    try:
        kept = json.loads(index.read_bytes())
        if kept["sources"] == _states(kept["sources"]) and (directory / kept["folder"]).is_dir():
            return Interpreter(directory / kept["folder"], kept["words"])
    except (OSError, ValueError, KeyError, TypeError):
        pass
    aside = Path(tempfile.mkdtemp(dir=directory, prefix=".python-"))
    try:
        call = [made_of[0], "-I", "-S", str(program), str(archive), str(aside)]
        sources = json.loads(command.check(call, timeout_s=_TIMEOUT_S).stdout)
        digest = _digest(aside)
        folder = directory / f"python-{digest[:16]}"
        aside.chmod(0o755)  # mkdtemp's 0700 would lock out a container that runs as another user
        if not folder.is_dir():
            aside.rename(folder)
    except (SeatrialError, ValueError):
        return None
    finally:
        shutil.rmtree(aside, ignore_errors=True)
    words = f"CPython {platform.python_version()} of the command line, sha256:{digest}"
    kept = {"folder": folder.name, "words": words, "sources": _states(sources)}
    write_atomically(index, json.dumps(kept).encode())
    return Interpreter(folder, words)


def _states(paths: object) -> dict[str, list[int]]:
    """Return path → time of the last change and size: a library that the system has updated is copied again."""
    assert isinstance(paths, (list, dict))
    found = {path: Path(path).stat() for path in paths}
    return {path: [state.st_mtime_ns, state.st_size] for path, state in found.items()}


def _digest(folder: Path) -> str:
    digest = hashlib.sha256()
    for path in sorted(path for path in folder.rglob("*") if path.is_file()):
        digest.update(b"%s\0%d\0" % (str(path.relative_to(folder)).encode(), path.stat().st_size))
        digest.update(path.read_bytes())
    return digest.hexdigest()
