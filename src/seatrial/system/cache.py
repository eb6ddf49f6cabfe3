"""The cache folder: downloads and compiled kernels, which a run can do without and makes again."""

from __future__ import annotations

import os
import pwd
from collections.abc import Mapping
from pathlib import Path

from seatrial.errors import DiskError


def cache_folder(environ: Mapping[str, str]) -> Path:
    """``$XDG_CACHE_HOME/seatrial``, else ``~/.cache/seatrial``; made where it is not there.

    Without a HOME that can be written: ``/var/tmp/seatrial-cache-<uid>``. A relative path counts as none, as the
    XDG base directory specification wants it: https://specifications.freedesktop.org/basedir-spec/latest/

    Raises DiskError: none of them can be made, or all belong to another user.
    """
    candidates = _candidates(environ)
    for candidate in candidates:
        if _is_usable(candidate):
            return candidate
    raise DiskError(
        f"No cache folder is writable: {', '.join(map(str, candidates))} cannot be written",
        run="export XDG_CACHE_HOME=/path/to/your/folder",
    )


def _candidates(environ: Mapping[str, str]) -> list[Path]:
    found = []
    if (xdg := environ.get("XDG_CACHE_HOME", "")).startswith("/"):
        found.append(Path(xdg) / "seatrial")
    if (home := environ.get("HOME") or _home_of_the_account()).startswith("/"):
        found.append(Path(home) / ".cache" / "seatrial")
    return [*found, Path(f"/var/tmp/seatrial-cache-{os.getuid()}")]


def _home_of_the_account() -> str:
    try:
        return pwd.getpwuid(os.getuid()).pw_dir
    except KeyError:
        return ""


def _is_usable(folder: Path) -> bool:
    """Whether it is there, or can be made, and is this user's: another could put an agent of his own there.

    Links are judged by who made them: anybody may make one in /var/tmp.
    """
    try:
        folder.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        folder.mkdir(exist_ok=True)
        owners = {folder.lstat().st_uid, folder.parent.lstat().st_uid}
    except OSError:
        return False
    return owners <= {os.getuid(), 0} and os.access(folder, os.W_OK)
