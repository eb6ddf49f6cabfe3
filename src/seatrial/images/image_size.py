"""Bytes of an image's files: one number on every engine and image store, counted once for each image.

Engines disagree: ``Size`` is unpacked layers on Docker 20.10, compressed ones on 28.5's containerd store, both on 29.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import PurePosixPath

from seatrial.backends.base import ImageFacts, ImageStore
from seatrial.errors import DiskError, SeatrialError
from seatrial.job.plan import AGENT_PYTHON_FLAGS, Plan
from seatrial.system.files import make_folder, write_atomically
from seatrial.system.state import state_folder

#: In the user's state folder: a file for each image that was counted, by its ID.
FOLDER = "images"

#: Minutes for a disk that is slow and cold; 13,222 files take 0.1 s from memory.
_TIMEOUT_S = 300.0

#: An answer beyond this is no image's.
_MOST_BYTES = 1 << 50

#: Root may look into every folder and do nothing else.
_OPTIONS = (
    *("--user", "0", "--cap-drop", "ALL", "--cap-add", "DAC_READ_SEARCH"),
    *("--security-opt", "no-new-privileges"),
)

#: Prints the bytes of all files as ``du --apparent-size`` counts them: a hard link once, a hole as if it were full, a
#: folder as one block of 4,096. Left out is what the engine mounts, but for a VOLUME, which has a copy of the image's
#: own files. Python 3.8, standard library.
_PROGRAM = r"""
import os, re, stat
PSEUDO = b"cgroup cgroup2 devpts devtmpfs fuse.lxcfs mqueue proc securityfs sysfs tmpfs".split()
mounts = {}
with open("/proc/self/mountinfo", "rb") as lines:
    for line in lines:
        fields, _, source = line.partition(b" - ")
        path = re.sub(rb"\\([0-7]{3})", lambda octal: bytes([int(octal.group(1), 8)]), fields.split()[4])
        mounts[path] = source.split()[0]
total, linked, folders = 0, set(), [b"/"]
while folders:
    total += 4096
    with os.scandir(folders.pop()) as entries:
        for entry in entries:
            status = entry.stat(follow_symlinks=False)
            if stat.S_ISDIR(status.st_mode):
                if mounts.get(entry.path) not in PSEUDO:
                    folders.append(entry.path)
            elif entry.path not in mounts and (stat.S_ISREG(status.st_mode) or stat.S_ISLNK(status.st_mode)):
                file = status.st_dev, status.st_ino
                if file not in linked:
                    total += status.st_size
                if status.st_nlink > 1:
                    linked.add(file)
print(total)
"""


def image_bytes(store: ImageStore, facts: ImageFacts, python: str | None, environ: Mapping[str, str]) -> int | None:
    """Return the bytes of the image's files; None if they cannot be counted.

    The first time a container of the image counts them; then the number is in the state folder.

    Args:
        python: interpreter inside the image.
    """
    known = state_folder(environ) / FOLDER / f"{facts.id.rpartition(':')[2]}.json"
    try:
        return int(json.loads(known.read_bytes())["bytes"])
    except (OSError, ValueError, KeyError, TypeError):
        pass  # not counted yet, or no file of ours
    size = _count(store, facts.id, python) if python is not None else None
    if size is not None:
        try:
            make_folder(known.parent)
            write_atomically(known, json.dumps({"bytes": size}).encode())
        except DiskError:
            pass  # it is counted again next time
    return size


def image_bytes_of(plan: Plan, store: ImageStore | None, environ: Mapping[str, str]) -> int | None:
    """Return the bytes of the image that a plan runs; None if it has none, or its files cannot be counted."""
    if store is None or plan.image is None or python_mount(plan) is not None:
        return None
    facts = store.image(plan.image.tag)
    return image_bytes(store, facts, plan.image.python, environ) if facts is not None else None


def python_mount(plan: Plan) -> str | None:
    """Return the mount that Python comes from; None if the image has its own."""
    python = PurePosixPath(plan.image.python or "") if plan.image else PurePosixPath()
    targets = [mount.target for mount in plan.container.mounts] if plan.container else []
    return next((target for target in targets if PurePosixPath(target) in python.parents), None)


def _count(store: ImageStore, reference: str, python: str) -> int | None:
    try:
        ended = store.run_once(
            reference, [python, *AGENT_PYTHON_FLAGS, "-B", "-c", _PROGRAM], timeout_s=_TIMEOUT_S, options=_OPTIONS
        )
    except SeatrialError:  # an engine that is slow or gone is told by what needs it
        return None
    answer = ended.stdout.strip()
    if ended.exit_code != 0 or not answer.isdecimal() or len(answer) > len(str(_MOST_BYTES)):
        return None
    return int(answer) if 0 < int(answer) <= _MOST_BYTES else None
