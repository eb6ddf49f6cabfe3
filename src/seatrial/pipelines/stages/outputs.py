"""Putting a stage's outputs in place: each whole or not at all, whatever is killed at whatever time.

An output lies in the view that its run worked in, on the same file system. One rename puts it into the project: where
an older one is, the two change places (renameat2(2), RENAME_EXCHANGE), so that there is no moment without either.
"""

from __future__ import annotations

import ctypes
import errno
import os
import shutil
import stat
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path, PurePosixPath

from seatrial.errors import DiskError, UntrustedPathError
from seatrial.system import nofollow
from seatrial.system.typed_path import as_typed

#: Source: linux/fs.h.
_NOREPLACE, _EXCHANGE = 1, 2

#: Not to be had: by this kernel, by this file system, by a filter of system calls.
_NO_SUCH_RENAME = (errno.ENOSYS, errno.EINVAL, errno.EPERM, errno.ENOTSUP)


def is_empty(view: Path, output: str) -> bool:
    """Whether a run wrote nothing there: no file of that name, or a folder without any file.

    Raises UntrustedPathError: it is a link, a pipe or a device, or lies behind a link.
    """
    try:
        with _parent(view, output) as folder:
            found = os.stat(PurePosixPath(output).name, dir_fd=folder, follow_symlinks=False)
    except FileNotFoundError:
        return True
    path = view / output
    if stat.S_ISDIR(found.st_mode):
        return next(iter(nofollow.files_below(path, hidden=True, links=True)), None) is None
    if not stat.S_ISREG(found.st_mode):
        raise UntrustedPathError(f"{output} is neither a file nor a folder", run=f"ls -ld {as_typed(path)}")
    return False


def place(view: Path, project: Path, output: str) -> None:
    """Put an output of the view into the project, in the place of what is there.

    Raises DiskError, UntrustedPathError.
    """
    name = PurePosixPath(output).name
    target = project / output
    try:
        with _parent(view, output) as source, _parent(project, output, make=True) as parent:
            if os.fstat(source).st_dev == os.fstat(parent).st_dev:
                _swap(source, name, parent, name)
                return
            aside = f".{name}.seatrial"
            nofollow.remove_tree(parent, aside)
            _copy(view / output, target.parent / aside)
            _swap(parent, aside, parent, name)
            nofollow.remove_tree(parent, aside)
    except OSError as error:
        raise DiskError(
            f"Cannot put {output} in its place: {error.strerror}",
            cause=f"It is complete in {view / output}",
            run=f"ls -la {as_typed(target.parent)}; seatrial up",
        ) from error


def discard(view: Path, output: str) -> None:
    """Delete what the view still has of an output that is in its place: the older one, or a copy of the same."""
    with suppress(OSError), _parent(view, output) as folder:
        nofollow.remove_tree(folder, PurePosixPath(output).name)


@contextmanager
def _parent(top: Path, output: str, *, make: bool = False) -> Iterator[int]:
    with nofollow.folder(top, *PurePosixPath(output).parts[:-1], make=make) as descriptor:
        yield descriptor


def _swap(source: int, name: str, parent: int, new_name: str) -> None:
    """Rename; what has the new name gets the old one, or a hidden one where the two cannot be exchanged."""
    try:
        os.stat(new_name, dir_fd=parent, follow_symlinks=False)
    except FileNotFoundError:
        os.rename(name, new_name, src_dir_fd=source, dst_dir_fd=parent)
        return
    code = _renameat2(source, name, parent, new_name, _EXCHANGE)
    if code == 0:
        return
    if code not in _NO_SUCH_RENAME:
        raise OSError(code, os.strerror(code))
    try:
        os.rename(
            name, new_name, src_dir_fd=source, dst_dir_fd=parent
        )  # a file over a file, a folder over an empty one
    except OSError as error:
        if error.errno not in (errno.ENOTEMPTY, errno.EEXIST, errno.EISDIR, errno.ENOTDIR):
            raise
        hidden = f".{new_name}.old"
        nofollow.remove_tree(source, hidden)
        os.rename(new_name, hidden, src_dir_fd=parent, dst_dir_fd=source)
        os.rename(name, new_name, src_dir_fd=source, dst_dir_fd=parent)
        nofollow.remove_tree(source, hidden)


def _renameat2(source: int, name: str, parent: int, new_name: str, flags: int) -> int:
    """0, or the error's number."""
    libc = ctypes.CDLL(None, use_errno=True)
    try:
        call = libc.renameat2
    except AttributeError:  # glibc before 2.28, musl
        return errno.ENOSYS
    done = call(source, os.fsencode(name), parent, os.fsencode(new_name), ctypes.c_uint(flags))
    return 0 if done == 0 else ctypes.get_errno()


def _copy(source: Path, target: Path) -> None:
    if source.is_dir() and not source.is_symlink():
        shutil.copytree(source, target, symlinks=True)
    else:
        shutil.copy2(source, target, follow_symlinks=False)
