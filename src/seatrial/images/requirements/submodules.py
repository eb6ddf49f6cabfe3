"""Git's submodules that a clone left empty: what the script imports from them is no package of an index.

Format: https://git-scm.com/docs/gitmodules
"""

from __future__ import annotations

import re
from pathlib import Path

from seatrial.errors import ConfigError
from seatrial.system.project_files import is_there, read_text

_PATH = re.compile(r"^\s*path\s*=\s*(\S.*?)\s*$", re.MULTILINE)
_MAX_BYTES, _MOST = 100_000, 100


def empty_submodules(project: Path) -> list[str]:
    """Folders of submodules in which there is nothing, as .gitmodules names them."""
    if not is_there(file := project / ".gitmodules"):
        return []
    try:
        text = read_text(file, inside=project, limit_bytes=_MAX_BYTES)
    except ConfigError:  # whether it is right matters to git alone
        return []
    return [path for path in _PATH.findall(text)[:_MOST] if _is_empty(project / path)]


def _is_empty(folder: Path) -> bool:
    try:
        return next(folder.iterdir(), None) is None
    except (OSError, ValueError):  # not there at all: left out on purpose, or the file names another place
        return False
