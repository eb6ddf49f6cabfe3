"""Change: one edit of the host, shown before it is made, backed up, made atomically, and taken back by --undo."""

from __future__ import annotations

import base64
import difflib
import json
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from seatrial.errors import DiskError, UsageError
from seatrial.system.files import make_folder, write_atomically
from seatrial.system.host import Host


@dataclass(frozen=True)
class Change:
    """A file, or a symbolic link, as it is and as it shall be.

    Attributes:
        why: one sentence.
        before: content, or a link's target; None when there is nothing yet.
        after: the same, afterwards.
        link: it is a symbolic link.
    """

    path: Path
    why: str
    before: str | None
    after: str
    link: bool = False

    def diff(self) -> str:
        """What changes, as ``diff -u`` shows it."""
        if self.link:
            return f"+ {self.path} -> {self.after}\n"
        lines = difflib.unified_diff(
            (self.before or "").splitlines(keepends=True),
            self.after.splitlines(keepends=True),
            str(self.path) if self.before is not None else "/dev/null",
            str(self.path),
        )
        return "".join(line if line.endswith("\n") else line + "\n" for line in lines)

    def make(self) -> None:
        """Raises DiskError; the file is then as it was."""
        make_folder(self.path.parent)
        if current(self.path) != self.before:
            raise DiskError(f"{self.path} changed in the meantime; nothing was written", run="seatrial doctor --fix")
        if self.link:
            _link(self.path, self.after)
        else:
            write_atomically(self.path, self.after.encode(), _mode(self.path))

    def take_back(self) -> None:
        """Raises DiskError when somebody has changed it since: their edit must not be lost."""
        if current(self.path) != self.after:
            raise DiskError(f"{self.path} was changed after the fix; leaving it as is", run=f"ls -l {self.path}")
        if self.before is not None and not self.link:
            write_atomically(self.path, self.before.encode(), _mode(self.path))
            return
        try:
            self.path.unlink()
        except OSError as error:
            raise DiskError(f"Cannot remove {self.path}: {error.strerror}") from error


def current(path: Path) -> str | None:
    """A file's content or a link's target; None when there is nothing. Raises DiskError."""
    try:
        return str(path.readlink()) if path.is_symlink() else path.read_text(errors="replace")
    except FileNotFoundError:
        return None
    except OSError as error:
        raise DiskError(f"Cannot read {path}: {error.strerror}", run="sudo seatrial doctor --fix") from error


def _mode(path: Path) -> int:
    try:
        return path.stat().st_mode & 0o777
    except OSError:
        return 0o644


def _link(path: Path, target: str) -> None:
    try:
        path.symlink_to(target)
    except OSError as error:
        raise DiskError(f"Cannot create the link {path}: {error.strerror}", run="sudo seatrial doctor --fix") from error


class Journal:
    """What --fix has done, a file a session, under the caller's state folder; the newest is what --undo takes back."""

    def __init__(self, host: Host) -> None:
        home = host.env.get("XDG_STATE_HOME") or f"{host.env.get('HOME') or '/root'}/.local/state"
        self.folder = Path(home) / "seatrial" / "doctor"

    def write(self, changes: Sequence[Change]) -> Path:
        """Before the first change is made: a crash in between is undone, too."""
        make_folder(self.folder)
        path = self.folder / f"{time.strftime('%Y%m%d-%H%M%S')}-{time.time_ns() % 10**6:06d}.json"
        write_atomically(path, json.dumps([_to_dict(change) for change in changes], indent=1).encode(), 0o600)
        return path

    def newest(self) -> tuple[Path, list[Change]]:
        """Raises UsageError when there is nothing to undo."""
        files = sorted(self.folder.glob("*.json")) if self.folder.is_dir() else []
        if not files:
            raise UsageError("There is no fix to undo", cause=f"{self.folder} contains none", run="seatrial doctor")
        return files[-1], [_from_dict(entry) for entry in json.loads(files[-1].read_text())]

    def close(self, path: Path) -> None:
        """This session is undone."""
        path.rename(path.with_suffix(".undone"))


def _to_dict(change: Change) -> dict[str, Any]:
    return {
        "path": str(change.path),
        "why": change.why,
        "before": None if change.before is None else base64.b64encode(change.before.encode()).decode(),
        "after": base64.b64encode(change.after.encode()).decode(),
        "link": change.link,
    }


def _from_dict(entry: Mapping[str, Any]) -> Change:
    before = entry["before"]
    return Change(
        Path(entry["path"]),
        entry["why"],
        None if before is None else base64.b64decode(before).decode(),
        base64.b64decode(entry["after"]).decode(),
        bool(entry["link"]),
    )
