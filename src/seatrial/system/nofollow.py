"""Files and folders that somebody else can write: opened, made, walked and deleted without following a link.

Every step goes by descriptor (openat(2)), so that what was looked at is what is used, however names change meanwhile.
"""

from __future__ import annotations

import contextlib
import itertools
import os
import shlex
import shutil
import stat
from collections.abc import Collection, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import BinaryIO

from seatrial.errors import DiskError, UntrustedPathError, os_errors
from seatrial.system.files import in_the_way, write_atomically
from seatrial.system.text import as_typed

_FOLDER = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
_FILE = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
#: Most entries read when sizes are added up; a container can make any number.
MOST_ENTRIES = 200_000
#: Folders of a project that hold no result of a run: environments and caches.
NO_RESULTS = frozenset({"__pycache__", "node_modules", "site-packages", "venv", "env"})


def open_regular(path: Path) -> BinaryIO:
    """Open a regular file, to be read. Raises FileNotFoundError, or UntrustedPathError for a link or any other file."""
    try:
        descriptor = os.open(path, _FILE)
    except FileNotFoundError:
        raise
    except OSError as error:
        raise UntrustedPathError(f"{path} cannot be read: {error.strerror}", run=f"ls -ld {as_typed(path)}") from error
    return require_regular(descriptor, path)


def require_regular(descriptor: int, path: Path) -> BinaryIO:
    """Return the open file. Raises UntrustedPathError: it is a folder, a pipe or a device, and closed."""
    if not stat.S_ISREG(os.fstat(descriptor).st_mode):
        os.close(descriptor)
        raise UntrustedPathError(f"{path} is not a regular file", run=f"ls -ld {as_typed(path)}")
    return os.fdopen(descriptor, "rb")


@contextmanager
def folder(top: Path, *parts: str, make: bool = False) -> Iterator[int]:
    """Open the folder ``top/parts…``. ``top`` is trusted, links in it too; no part below may be one.

    ``make``: what is missing is made, for which no part of ``top`` may be a link either. Raises FileNotFoundError,
    UntrustedPathError for a part that is a link or no folder, DiskError if it cannot be made.
    """
    descriptor = open_source(top) if make else os.open(top, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    path = top
    try:
        for part in parts:
            path = path / part
            if make:
                _make(descriptor, part, path)
            inner = _enter(descriptor, part, path)
            os.close(descriptor)
            descriptor = inner
        yield descriptor
    finally:
        os.close(descriptor)


def _make(parent: int, name: str, path: Path) -> None:
    try:
        os.mkdir(name, 0o755, dir_fd=parent)
    except FileExistsError:
        pass
    except OSError as error:
        run = in_the_way(path.parent, error)
        if isinstance(error, PermissionError):
            project = next((each.parent for each in path.parents if each.name == ".seatrial"), path.parent)
            copy = f"Work in a copy: cp -r {shlex.quote(str(project))} ~/{shlex.quote(project.name + '-copy')}"
            home = os.path.realpath(os.path.expanduser("~"))  # noqa: PTH111  Path.home() raises where there is none
            above = Path(home).is_relative_to(project)
            run += f"   # no write permission? {'First: cd FOLDER_OF_THE_SCRIPT' if above else copy}"
        raise DiskError(f"Cannot create the folder {path}: {error.strerror}", run=run) from error


def _enter(parent: int, name: str, path: Path) -> int:
    try:
        return os.open(name, _FOLDER, dir_fd=parent)
    except FileNotFoundError:
        raise
    except OSError as error:
        with contextlib.suppress(OSError):
            if stat.S_ISLNK(os.stat(name, dir_fd=parent, follow_symlinks=False).st_mode):
                raise _is_a_link(path) from None
        raise UntrustedPathError(f"Cannot enter {path}: {error.strerror}", run=f"ls -ld {as_typed(path)}") from error


def _is_a_link(path: Path) -> UntrustedPathError:
    cause = "Containers write there; a symlink would redirect their files"
    run = f"ls -ld {as_typed(path)}; rm {as_typed(path)}"
    return UntrustedPathError(f"{path} is a symlink, which seatrial does not follow", cause=cause, run=run)


def open_source(path: Path) -> int:
    """Return a descriptor of what an absolute path names, and of nothing behind a link on its way.

    Folders are opened; a file, pipe or device is held (O_PATH). Raises UntrustedPathError: a link, or nothing there.
    """
    descriptor, at = os.open("/", _FOLDER), Path("/")
    for part in path.parts[1:]:
        parent, at = descriptor, at / part
        try:
            descriptor = _hold(parent, part, at)
        finally:
            os.close(parent)
    return descriptor


def _hold(parent: int, name: str, path: Path) -> int:
    """Open a folder, which mounts what waits for that (autofs), or hold what cannot be read or is none."""
    with contextlib.suppress(OSError):
        return os.open(name, _FOLDER, dir_fd=parent)
    with os_errors(UntrustedPathError, f"Cannot open {path}", f"ls -ld {as_typed(path)}"):
        held = os.open(name, os.O_PATH | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=parent)
    if stat.S_ISLNK(os.fstat(held).st_mode):
        os.close(held)
        raise _is_a_link(path)
    return held


def copy_tree(top: Path, target: Path, *, names: Collection[str] = (), hidden: Collection[os.stat_result] = ()) -> None:
    """Copy a folder and what is below it; its files by a hard link where the disk is the same. A link stays one.

    ``top``: absolute, with no link on its way. ``names``: of folders in it that are left out; ``hidden``: wherever they
    are. Raises UntrustedPathError; DiskError.
    """
    held, modes = open_source(top), list[tuple[Path, int]]()
    pending: list[tuple[str, ...]] = [()]
    apart = {(each.st_dev, each.st_ino) for each in hidden}
    try:
        for parts in pending:
            with folder(Path(f"/proc/self/fd/{held}"), *parts) as found:
                status, into = os.fstat(found), target.joinpath(*parts)
                if (status.st_dev, status.st_ino) in apart:
                    continue
                into.mkdir(mode=0o700, parents=True)
                modes.append((into, stat.S_IMODE(status.st_mode)))
                pending += [(*parts, name) for name in _copy_files(found, into) if parts or name not in names]
        for into, mode in reversed(modes):
            into.chmod(mode)
    except OSError as error:
        raise DiskError(f"Cannot copy {top}: {error}", run=f"ls -ld {as_typed(top)}; df -h {target.parent}") from error
    finally:
        os.close(held)


def _copy_files(source: int, target: Path) -> list[str]:
    """Copy files and links, and return the names of folders. Raises OSError."""
    folders = []
    for name in os.listdir(source):
        status, copy = os.stat(name, dir_fd=source, follow_symlinks=False), target / name
        if stat.S_ISDIR(status.st_mode):
            folders.append(name)
        elif stat.S_ISLNK(status.st_mode):
            copy.symlink_to(os.readlink(name, dir_fd=source))
        elif stat.S_ISREG(status.st_mode):
            try:
                os.link(name, copy, src_dir_fd=source, follow_symlinks=False)
            except OSError:  # another disk, or another user's file
                with require_regular(os.open(name, _FILE, dir_fd=source), copy) as file, copy.open("wb") as written:
                    shutil.copyfileobj(file, written)
                copy.chmod(stat.S_IMODE(status.st_mode))
                os.utime(copy, ns=(status.st_atime_ns, status.st_mtime_ns))
    return folders


def write_inside(project: Path, *parts: str, data: bytes) -> Path:
    """Replace or make a file of a project; return its path. Raises UntrustedPathError: a link on the way; DiskError."""
    path = project.joinpath(*parts)
    with folder(project, *parts[:-1], make=True) as held:
        write_atomically(path, data, folder=held)
    return path


def write_tree(parent: Path, name: str, files: Mapping[str, bytes | Path]) -> None:
    """Make a folder with these files, whole or not at all: aside, then renamed. A path's file is copied.

    Raises OSError: also for a name that is taken, unless by an empty folder; UntrustedPathError; DiskError.
    """
    top, aside = Path(os.path.realpath(parent)), f".{name}.{os.urandom(4).hex()}"
    try:
        for place, content in files.items():
            *folders, last = Path(place).parts
            with folder(top, aside, *folders, make=True) as held:
                flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC
                with os.fdopen(os.open(last, flags, 0o644, dir_fd=held), "wb") as file:
                    if isinstance(content, bytes):
                        file.write(content)
                    else:
                        copy_file(content, file)
        with folder(top) as held:
            os.rename(aside, name, src_dir_fd=held, dst_dir_fd=held)
    finally:
        with folder(top) as held:
            remove_tree(held, aside)


def copy_file(source: Path, target: BinaryIO) -> None:
    """Copy a regular file, of an absolute path with no link on its way. Raises OSError, UntrustedPathError."""
    held = open_source(source)
    try:
        with require_regular(os.open(f"/proc/self/fd/{held}", os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC), source) as f:
            shutil.copyfileobj(f, target, 1 << 20)
    finally:
        os.close(held)


def remove_tree(parent: int, name: str) -> None:
    """Delete a folder and all below it, or any other file of the name; a link is deleted, never what it points to.

    However deep: folders in it are moved up before they are emptied, so two descriptors are enough. Raises OSError.
    """
    try:
        os.unlink(name, dir_fd=parent)
        return
    except FileNotFoundError:
        return
    except (IsADirectoryError, PermissionError):  # POSIX has EPERM for unlink of a folder
        pass
    top = _open_up(parent, name)
    try:
        number, prefix = 0, f".{os.urandom(8).hex()}-"  # no name that is there already
        while folders := _empty(top):
            for inner in folders:
                with contextlib.suppress(OSError):
                    os.rmdir(inner, dir_fd=top)
                    continue
                descriptor = _open_up(top, inner)
                try:
                    for deeper in _empty(descriptor):
                        number += 1
                        os.close(_open_up(descriptor, deeper))  # its ".." changes: it must be writable itself
                        os.rename(deeper, f"{prefix}{number}", src_dir_fd=descriptor, dst_dir_fd=top)
                finally:
                    os.close(descriptor)
                os.rmdir(inner, dir_fd=top)
    finally:
        os.close(top)
    os.rmdir(name, dir_fd=parent)


def _open_up(parent: int, name: str) -> int:
    """Open a folder, which its owner may then read and write, in any mode, and return its descriptor."""
    handle = os.open(name, os.O_PATH | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=parent)
    try:
        with contextlib.suppress(OSError):
            os.chmod(f"/proc/self/fd/{handle}", 0o700)  # noqa: PTH101  that very folder, even if renamed
        return os.open(".", _FOLDER, dir_fd=handle)
    finally:
        os.close(handle)


def _empty(descriptor: int) -> list[str]:
    """Delete all but the folders in a folder; return their names."""
    folders = []
    for name in os.listdir(descriptor):
        if stat.S_ISDIR(os.stat(name, dir_fd=descriptor, follow_symlinks=False).st_mode):
            folders.append(name)
        else:
            os.unlink(name, dir_fd=descriptor)
    return folders


def files_below(
    top: Path,
    *,
    most_entries: int = MOST_ENTRIES,
    skip: Collection[str] = (),
    hidden: bool = False,
    links: bool = False,
) -> Iterator[os.DirEntry[str]]:
    """Yield entries of regular files below a folder, as deep as paths go; at most so many are looked at.

    A link is passed over, or named with ``links``; so is a folder of ``skip``, or with a dot unless ``hidden``.
    """
    left, looked_at = [str(top)], 0
    while left and looked_at < most_entries:
        try:
            with os.scandir(left.pop()) as found:
                entries = list(itertools.islice(found, most_entries - looked_at))
        except OSError:  # gone, another user's, or too deep for a path
            continue
        for entry in entries:
            looked_at += 1
            with contextlib.suppress(OSError):
                if entry.is_dir(follow_symlinks=False):
                    if (hidden or not entry.name.startswith(".")) and entry.name not in skip:
                        left.append(entry.path)
                elif entry.is_file(follow_symlinks=False) or (links and entry.is_symlink()):
                    yield entry


def tree_bytes(top: Path) -> int:
    """Sum the bytes of the regular files below a folder, as far as MOST_ENTRIES of them."""
    total = 0
    for entry in files_below(top, hidden=True):
        with contextlib.suppress(OSError):
            total += entry.stat(follow_symlinks=False).st_size
    return total
