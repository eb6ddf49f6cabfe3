"""Reading the small files of a project, which a stranger may have written: regular files inside it, of bounded size.

A link inside the project is followed, one that leads out of it is not: a file of the user's must not end up in an image
or a message because a project points at it. Nothing here waits: a FIFO and a device are refused before they are opened.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Iterable, Iterator
from pathlib import Path

from seatrial.errors import ConfigError, UntrustedPathError, UsageError
from seatrial.system.nofollow import open_source
from seatrial.system.typed_path import as_typed

#: Far above usual files, and read in milliseconds.
MAX_BYTES = 2_000_000

_KINDS = (
    (stat.S_ISDIR, "a folder"),
    (stat.S_ISFIFO, "a FIFO"),
    (stat.S_ISSOCK, "a socket"),
    (stat.S_ISCHR, "a device"),
    (stat.S_ISBLK, "a device"),
)


class _NotReadError(Exception):
    """A file is not read; the text follows the file's name in a sentence."""


def real_project(project: Path) -> Path:
    """Resolve the links in a project's path, once: what a link in its place leads to later is another project.

    Raises UsageError: it leads out of a project around it through a link, which a script that ran there may have made.
    """
    real = Path(os.path.realpath(project))
    for above in Path(os.path.abspath(project)).parents:  # noqa: PTH100  # resolve() would follow that link
        if (above / ".seatrial").is_dir() and not real.is_relative_to(os.path.realpath(above)):
            raise UsageError(
                f"The project {project} leads out of the project {above}, to {real}",
                cause="It is a symlink, which any script that ran there could have created",
                run=f"cd {as_typed(real)}   # if that is the folder you mean",
            )
    return real


#: Names in a project's folder: its own file, a repository, and without either what makes it a package.
_OWN = ("seatrial.toml", ".git")
_PACKAGING = ("pyproject.toml", "setup.py", "setup.cfg")


def project_root(folder: Path) -> Path:
    """Return the project of a folder: the nearest around it with seatrial.toml or .git, else with a package's files.

    Folders of homes, those above them and another user's files make no project: anyone can write into /tmp.
    """
    here = Path(os.path.realpath(folder))
    home = Path(os.path.realpath(os.path.expanduser("~")))  # noqa: PTH111  Path.home() raises where there is none
    packages = []
    for around in (here, *here.parents):
        if home.is_relative_to(around) or around == around.parent:
            break
        if is_project(around, here):
            return around
        packages += [around] if any(_is_own(around / name, here) for name in _PACKAGING) else []
    return next(iter(packages), here)


def is_project(folder: Path, here: Path) -> bool:
    """Return True for a repository, and for a folder with a file of ours; ``here``: where one stands."""
    return any(_is_own(folder / name, here) for name in _OWN) or _has_table(folder / "pyproject.toml", here)


def _is_own(path: Path, folder: Path) -> bool:
    try:
        return path.lstat().st_uid in (os.getuid(), folder.stat().st_uid)
    except (OSError, ValueError):
        return False


def _has_table(path: Path, folder: Path) -> bool:
    """Return True for a pyproject.toml that configures seatrial."""
    try:
        return _is_own(path, folder) and b"[tool.seatrial" in read_bytes(path, inside=path.parent)
    except ConfigError:
        return False


def is_there(path: Path) -> bool:
    """Return whether something has this name, be it a link that leads nowhere: reading it reports what is wrong."""
    try:
        path.lstat()
    except (OSError, ValueError):  # a name too long, a null byte: no file has it
        return False
    return True


def read_bytes(
    path: Path, *, inside: Path | None, limit_bytes: int = MAX_BYTES, refusal: type[UsageError] = ConfigError
) -> bytes:
    """Read the whole file.

    Args:
        inside: the project, which the file must lie in, links resolved; None: a file that the user or the
            machine names, anywhere.
        refusal: what to raise.

    Raises ``refusal`` naming the file: not there, no regular file, too large, outside.
    """
    try:
        descriptor = _open(path, inside)
        with os.fdopen(descriptor, "rb") as file:
            size = os.fstat(file.fileno()).st_size
            data = b"" if size > limit_bytes else file.read(limit_bytes + 1)
        if max(size, len(data)) > limit_bytes:
            size = max(size, len(data))
            raise _NotReadError(f"is {size / 1e6:.3g} MB, and at most {limit_bytes / 1e6:.3g} MB are read")
    except _NotReadError as error:
        problem = str(error)
    except OSError as error:
        problem = f"cannot be read: {error.strerror}"
    except ValueError:  # a null byte
        problem = "is not a valid file name"
    else:
        return data
    raise refusal(f"{shown_path(path, inside)} {problem}", run=f"ls -ld {as_typed(path)}")


def read_text(path: Path, *, inside: Path | None, limit_bytes: int = MAX_BYTES) -> str:
    """Read the whole file, which must be UTF-8; a byte order mark is left out. Raises as ``read_bytes``."""
    data = read_bytes(path, inside=inside, limit_bytes=limit_bytes)
    try:
        return data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        line = data.count(b"\n", 0, error.start) + 1
        raise ConfigError(f"{shown_path(path, inside)}:{line}: not UTF-8 text", run=f"file {as_typed(path)}") from None


def read_sources(paths: Iterable[Path], inside: Path, most_bytes: int) -> Iterator[str]:
    """Yield the text of each file that can be read; end when they are more than ``most_bytes`` together."""
    for path in paths:
        try:
            data = read_bytes(path, inside=inside, limit_bytes=min(MAX_BYTES, most_bytes))
        except ConfigError:  # not a source then
            continue
        most_bytes -= len(data)
        yield data.decode("utf-8", "replace")


def shown_path(path: Path, inside: Path | None) -> str:
    """Return a path for a sentence: relative to the project if it lies inside."""
    return str(path.relative_to(inside)) if inside is not None and path.is_relative_to(inside) else str(path)


def _open(path: Path, inside: Path | None) -> int:
    """Open the regular file and return its descriptor. Raises OSError, ValueError, _NotReadError."""
    real = Path(os.path.realpath(path, strict=True))
    if inside is not None and (not real.is_relative_to(root := inside.resolve()) or real == root):
        raise _NotReadError(f"points outside the project, to {real}: only files in the project are read")
    try:
        held = open_source(real)  # none of the folders above can become a link on the way
    except UntrustedPathError:
        raise _NotReadError("cannot be reached, or has changed just now") from None
    try:
        _refuse_odd(os.fstat(held))  # opening a device can have effects by itself
        return os.open(f"/proc/self/fd/{held}", os.O_RDONLY | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC)
    finally:
        os.close(held)


def _refuse_odd(found: os.stat_result) -> None:
    if not stat.S_ISREG(found.st_mode):
        kind = next((words for is_kind, words in _KINDS if is_kind(found.st_mode)), "something else")
        raise _NotReadError(f"is {kind}, not a file")
