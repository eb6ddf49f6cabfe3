"""A project's git checkout, examined without running anything that the project names.

A repository's own settings name programs that git starts: core.fsmonitor, clean filters, hooks, those of submodules.
Anyone who can write the project can write them. So the command that would start them, git diff, is
run with a folder of settings of our own; git reads the project's objects, index and files, and none of its settings.
"""

from __future__ import annotations

import os
import tempfile
from collections.abc import Mapping
from contextlib import suppress
from fnmatch import fnmatch
from itertools import islice
from pathlib import Path

from seatrial.errors import CommandTimeoutError, EngineUnavailableError, UntrustedPathError, fallback
from seatrial.system import command
from seatrial.system.nofollow import NO_RESULTS, files_below
from seatrial.system.records import Folder

_TIMEOUT_S = 10.0
#: Most files of a checkout that are looked at before git is, and most bytes of a file that names a folder.
_MOST_FILES, _MOST_BYTES = 20_000, 10_000
#: Hooks of the system and the user stay off, too: they would run in a folder that is not theirs.
_QUIET = ("git", "-c", "core.fsmonitor=false", "-c", "core.hooksPath=/dev/null")
#: Code, and lists of packages: what dates a project.
_CODE = ("*.py", "*.ipynb", "*requirements*.txt", "setup.cfg", "pyproject.toml", "Pipfile", "environment*.y*ml")

_SETTINGS = "[core]\n\trepositoryformatversion = 0\n\tbare = false\n"


def commit(project: Path) -> str | None:
    """Return the full hash of the project's commit; None: no git, no checkout, somebody else's, or no commit yet."""
    found = _git(project, "rev-parse", "HEAD") if _is_readable(project) else None
    return found if found and set(found) <= set("0123456789abcdef") else None


def remote(project: Path) -> str | None:
    """Return the URL of the remote ``origin``, which may hold a login; None without one."""
    return (_is_readable(project) and _git(project, "config", "--get", "remote.origin.url")) or None


def differs(project: Path) -> bool:
    """Return True if files that git knows differ from the commit; False if git fails."""
    return bool(_isolated(project, "status", "--porcelain", "--untracked-files=no", "--ignore-submodules=all"))


def code_time(project: Path) -> float:
    """Return when code or a list was last committed, else last changed, in seconds since the epoch; 0 for neither."""
    if found := _isolated(project, "rev-list", "-1", "--format=%ct", "HEAD", "--", *_CODE):
        return float(found.split()[-1])
    files = files_below(project, skip=NO_RESULTS, most_entries=_MOST_FILES)
    code = (each for each in files if any(fnmatch(each.name, pattern) for pattern in _CODE))
    return max((each.stat(follow_symlinks=False).st_mtime for each in code), default=0.0)


def _isolated(project: Path, *words: str) -> str | None:
    """Run git on the checkout's objects, index and files with settings of our own; None if it fails."""
    paths = [word for name in ("objects", "index", "shallow") for word in ("--git-path", name)]
    found = _git(project, "rev-parse", "HEAD", "--show-toplevel", *paths) if _is_readable(project) else None
    if len(lines := (found or "").split("\n")) < len(paths) - 1:
        return None
    head, top, *rest = lines
    objects, index, shallow = (project / path for path in rest)
    with tempfile.TemporaryDirectory(prefix="seatrial-") as folder:
        settings = Path(folder)
        (settings / "refs").mkdir()
        (settings / "HEAD").write_text(f"{head}\n")
        (settings / "config").write_text(_SETTINGS)
        with suppress(OSError, UntrustedPathError):
            (settings / "shallow").write_bytes(_load(shallow))
        own = {"GIT_DIR": folder, "GIT_WORK_TREE": top, "GIT_OPTIONAL_LOCKS": "0"}
        own |= {"GIT_OBJECT_DIRECTORY": str(objects), "GIT_INDEX_FILE": str(index)}
        return _git(project, *words, env={**os.environ, **own})


@fallback(False, on=(StopIteration, OSError, ValueError, UntrustedPathError))
def _is_readable(project: Path) -> bool:
    """Return False where git would wait: the checkout's folder holds something other than files and folders."""
    found = next(path for folder in (project, *project.parents) if os.path.lexists(path := folder / ".git"))
    if not found.is_dir():
        found = found.parent / _load(found).decode().removeprefix("gitdir: ").strip()
    common = found / "commondir"
    shared = found / _load(common).decode().strip() if common.exists() else found
    walks = (os.walk(top) for top in dict.fromkeys((found, shared)))
    files = (os.path.join(at, name) for walk in walks for at, _, names in walk for name in names)  # noqa: PTH118
    return all(os.path.isfile(path) or not os.path.exists(path) for path in islice(files, _MOST_FILES))  # noqa: PTH110, PTH113


@fallback(None, on=(EngineUnavailableError, CommandTimeoutError))
def _git(folder: Path, *words: str, env: Mapping[str, str] | None = None) -> str | None:
    ended = command.run([*_QUIET, "-C", str(folder), *words], timeout_s=_TIMEOUT_S, env=env)
    return ended.stdout.strip() if ended.exit_code == 0 else None


def _load(path: Path) -> bytes:
    return Folder(path.parent).load(path.name, max_bytes=_MOST_BYTES)
