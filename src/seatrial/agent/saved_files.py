"""Report models that the target saved out of the host's reach, and copy results that would end with the container."""

import itertools
import os
import re
import stat
import time
from contextlib import suppress
from typing import Any, Callable, Dict, Iterator, List, Optional, Sequence, Tuple

from seatrial.events import MODEL_SUFFIXES, FilesOutside, is_result

#: Entries of folders, at most: a target can make any number.
MOST_LOOKED_AT = 200_000
#: Most files in a line of evidence, which stays short.
MOST = 20
#: File times come from the kernel's coarse clock, up to a tick late; a network volume's server has a clock of its own.
SLACK_S = 2.0
#: Most files and bytes that are copied.
MOST_FILES, MOST_BYTES = 1000, 10 * 2**30
_CHUNK_BYTES = 1 << 22
#: Files of libraries, not results: caches, compiled kernels, logs of their own processes.
_NOISE = re.compile(
    r"\.|__pycache__$|site-packages$|node_modules$|(torchinductor|torchelastic|matplotlib|pymp|pip|ray)([-_]|$)"
)
#: Names by tempfile, and hidden ones such as onnxruntime's /tmp/.ses: scratch files, unless they are models.
_SCRATCH = re.compile(r"/tmp[a-z0-9_]{8}(?=[./]|$)|/\.[^/]*$")
#: Folders of an image that hold no results of scripts.
_SYSTEM = {"/bin", "/boot", "/dev", "/etc", "/lib", "/lib32", "/lib64", "/proc", "/run", "/sbin", "/sys", "/usr"}

FOLDER = "container"


def models(folder: str, started: float) -> List[Dict[str, Any]]:
    """Return ``{"path", "bytes"}`` of the model files written since ``started`` (Unix time), the newest first.

    Paths are relative to ``folder``. Our own folders there, which begin with a dot, are left out.
    """
    every = files(
        folder, lambda name: name.lower().endswith(MODEL_SUFFIXES), lambda path: os.path.basename(path).startswith(".")
    )
    found = [(modified, path, size) for path, size, modified, _ in every if modified >= started - SLACK_S]
    newest = sorted(found, reverse=True)[:MOST]
    return [{"path": os.path.relpath(path, folder), "bytes": size} for _, path, size in newest]


def files(
    folder: str, wanted: Callable[[str], bool], passes_over: Callable[[str], bool]
) -> Iterator[Tuple[str, int, float, float]]:
    """Yield (path, bytes, times of the last modification and change) of regular files.

    The folder is the target's: no link is followed, and there is an end to it. ``wanted``: whether a file of this name
    counts. ``passes_over``: whether a folder below, by its path, is left out.
    """
    left, looked_at = [folder], 0
    while left and looked_at < MOST_LOOKED_AT:
        parent = left.pop()
        try:
            with os.scandir(parent) as found:
                entries = list(itertools.islice(found, MOST_LOOKED_AT - looked_at))
        except OSError:  # gone since, or too deep for a path
            continue
        for entry in entries:
            looked_at += 1
            with suppress(OSError):
                if entry.is_dir(follow_symlinks=False):
                    if not passes_over(entry.path):
                        left.append(entry.path)
                elif wanted(entry.name) and entry.is_file(follow_symlinks=False):
                    status = entry.stat(follow_symlinks=False)
                    yield entry.path, status.st_size, status.st_mtime, status.st_ctime


def keep(folders: Sequence[str], run_dir: str, started: float, limit_s: float) -> Optional[FilesOutside]:
    """Copy the results below ``folders`` that changed since ``started`` (Unix time); None where there are none.

    They go into a new folder of ``run_dir``, for ``limit_s`` seconds at most.
    """
    found = sorted(_results(folders, started), key=lambda file: not file[0].lower().endswith(MODEL_SUFFIXES))
    if not found:
        return None
    until_s = time.monotonic() + limit_s
    copied: List[Dict[str, Any]] = []
    lost: List[Dict[str, Any]] = []
    left_bytes = MOST_BYTES
    place = _new_folder(run_dir)
    for path, size in found:
        entry = {"path": path, "bytes": size}
        is_over = len(copied) >= MOST_FILES or size > left_bytes or time.monotonic() > until_s
        if place is not None and not is_over and _copy(path, place + path, left_bytes, until_s):
            left_bytes -= size
            copied.append(entry)
        else:
            lost.append(entry)
    folder, count = None if place is None else os.path.basename(place), len(copied)
    return FilesOutside(folder=folder, copied=copied[:MOST], copied_files=count, lost=lost[:MOST], lost_files=len(lost))


def _results(folders: Sequence[str], started: float) -> Iterator[Tuple[str, int]]:
    with open("/proc/self/mountinfo", encoding="utf-8", errors="surrogateescape") as lines:
        mounted = {re.sub(r"\\([0-7]{3})", lambda m: chr(int(m[1], 8)), line.split()[4]) for line in lines}
    mounted.add("/seatrial")  # seatrial's own; a mount is kept, or scanned by itself

    def passes_over(path: str) -> bool:
        return path in mounted or path in _SYSTEM or bool(_NOISE.match(os.path.basename(path)))

    for folder in folders:
        for path, size, _, changed in files(folder, is_result, passes_over):
            scratch = _SCRATCH.search(path) and not path.lower().endswith(MODEL_SUFFIXES)
            if size and changed >= started and not scratch:
                yield path, size


def _new_folder(run_dir: str) -> Optional[str]:
    """Make a folder under a new name, which no link of the target has, and return it; None if none can be made."""
    with suppress(OSError):
        for number in range(1, 100):
            path = os.path.join(run_dir, FOLDER if number == 1 else "%s-%d" % (FOLDER, number))
            with suppress(FileExistsError):
                os.mkdir(path)
                return path
    return None


def _copy(path: str, to: str, most_bytes: int, until_s: float) -> bool:
    """Return whether it was copied, whole; otherwise nothing is left of the copy."""
    try:
        source = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    except OSError:
        return False
    try:
        if not stat.S_ISREG(os.fstat(source).st_mode):
            return False
        os.makedirs(os.path.dirname(to), exist_ok=True)
        with open(to, "xb") as target:
            while True:
                if not (data := os.read(source, _CHUNK_BYTES)):
                    return True
                most_bytes -= len(data)
                if most_bytes < 0 or time.monotonic() > until_s:
                    break
                target.write(data)
    except OSError:  # a full disk
        pass
    finally:
        os.close(source)
    with suppress(OSError):
        os.unlink(to)
    return False
