"""Find the driver's libraries in a container, and recognise files that an image has under their names."""

import os
from typing import Iterator, Mapping, Sequence, Tuple

#: Folders of the libraries in a mounted folder of the driver.
_BELOW = ("", "lib", "lib64")


def find(name: str, filled: Sequence[str], env: Mapping[str, str]) -> Tuple[str, bool]:
    """Return (path of ``libcuda.so.1`` or another, whether an image could have put it there).

    An engine binds the driver's files read-only, from another file system than the image's. Without such a file, it is
    the first that the loader would find. The name itself: there is none.

    Args:
        filled: targets of mounts that hold other people's files.
        env: of the process that is to load it.
    """
    stem = name.partition(".so")[0] + ".so"
    for point in _engines_mounts(filled):
        if os.path.basename(point).startswith(stem) and _is_library(point):
            return point, False
        for below in _BELOW:
            path = os.path.realpath(os.path.join(point, below, name))
            if path.startswith(point + "/") and _is_library(path):
                return path, False
    from seatrial.probe.driver_files import FOLDERS, WSL_FOLDER

    for folder in [*env.get("LD_LIBRARY_PATH", "").split(":"), *FOLDERS, WSL_FOLDER]:
        if folder.startswith("/") and _is_library(os.path.join(folder, name)):
            return os.path.join(folder, name), True
    return name, False


def _engines_mounts(filled: Sequence[str]) -> Iterator[str]:
    """Yield the mount points that are read-only, from another file system than /, and not among ``filled``."""
    with open("/proc/self/mountinfo", encoding="utf-8", errors="surrogateescape") as file:
        mounts = [line.split(" ", 6) for line in file]  # Source: proc_pid_mountinfo(5)
    ours = [device for _, _, device, _, point, _, _ in mounts if point == "/"]
    for _, _, device, _, point, options, _ in mounts:
        others = any(point == target or point.startswith(target + "/") for target in filled)
        if device not in ours and "ro" in options.split(",") and not others:
            yield point


def _is_library(path: str) -> bool:
    """Return whether it is an ELF file of 64 bits: a driver for programs of 32 may be next to it."""
    try:
        with open(path, "rb") as file:
            return file.read(5) == b"\x7fELF\x02"
    except OSError:
        return False
