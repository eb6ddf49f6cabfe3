"""Estimate the image and the disk space that its build needs."""

from __future__ import annotations

import json
import re
import shutil
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path, PurePosixPath
from typing import Any

from seatrial.backends.base import ImageFacts
from seatrial.backends.containers.images import ImageStore
from seatrial.errors import DiskError, SeatrialError, fallback
from seatrial.job.in_container import AGENT_PYTHON_FLAGS
from seatrial.job.plan import Choice, ImagePlan, Plan
from seatrial.stack.facts import framework_image
from seatrial.system.files import make_folder, write_atomically
from seatrial.system.host import Host
from seatrial.system.project_files import own_table

#: Folder in the user's state folder with one file for each image that was counted, by its ID.
FOLDER = "images"

#: Minutes for a disk that is slow and cold; 13,222 files take 0.1 s from memory.
_TIMEOUT_S = 300.0

#: A larger answer does not come from an image.
_MOST_BYTES = 1 << 50

#: Root may read every folder and do nothing else.
_OPTIONS = (
    *("--user", "0", "--cap-drop", "ALL", "--cap-add", "DAC_READ_SEARCH"),
    *("--security-opt", "no-new-privileges"),
)

#: Prints the bytes of all files as ``du --apparent-size`` counts them: a hard link once, a hole as if it were full, a
#: folder as one block of 4,096. Mounts of the engine are left out, except a VOLUME, which has a copy of the image's own
#: files. Python 3.8, standard library.
_PROGRAM = Path(__file__).with_name("count_bytes.py.txt").read_text("utf-8")


def image_bytes(store: ImageStore, facts: ImageFacts, python: str | None, host: Host) -> int | None:
    """Return the bytes of the image's files, which its ``python`` counts once; None if they cannot be counted."""
    known = host.state_folder / FOLDER / f"{facts.id.rpartition(':')[2]}.json"
    with suppress(OSError, ValueError, KeyError, TypeError):  # not counted yet, or no file of ours
        return int(json.loads(known.read_bytes())["bytes"])
    size = _count(store, facts.id, python) if python is not None else None
    if size is not None:
        with suppress(DiskError):  # it is counted again next time
            make_folder(known.parent)
            write_atomically(known, json.dumps({"bytes": size}).encode())
    return size


def image_bytes_of(plan: Plan, store: ImageStore | None, host: Host) -> int | None:
    """Return the bytes of the image that a plan runs; None if it has none, or its files cannot be counted."""
    if store is None or plan.image is None or python_mount(plan) is not None:
        return None
    facts = store.image(plan.image.tag)
    return image_bytes(store, facts, plan.image.python, host) if facts is not None else None


def python_mount(plan: Plan) -> str | None:
    """Return the mount that Python comes from; None if the image has its own."""
    python = PurePosixPath(plan.image.python or "") if plan.image else PurePosixPath()
    targets = [mount.target for mount in plan.container.mounts] if plan.container else []
    return next((target for target in targets if PurePosixPath(target) in python.parents), None)


@fallback(None, on=SeatrialError)  # an engine that is slow or gone is reported where it is needed
def _count(store: ImageStore, reference: str, python: str) -> int | None:
    words = [python, *AGENT_PYTHON_FLAGS, "-B", "-c", _PROGRAM]
    ended = store.run_once(reference, words, timeout_s=_TIMEOUT_S, options=_OPTIONS)
    answer = ended.stdout.strip()
    if ended.exit_code != 0 or not answer.isdecimal() or len(answer) > len(str(_MOST_BYTES)):
        return None
    return int(answer) if 0 < int(answer) <= _MOST_BYTES else None


#: torch 2.13.0 for the CPU above the base, unpacked, measured (docs/benchmarks.md); a CUDA build of a framework that
#: unpacked.toml does not have. The download is a third of that again.
_CPU_BYTES, _GPU_BYTES = 950_000_000, 5_000_000_000
_OTHER_BYTES = 400_000_000
#: A smaller part is not listed.
_SHOWN_BYTES = 50_000_000

#: The official slim Python, unpacked, with the bytecode and the virtual environment that a build adds.
_BASE_BYTES = 150_000_000


def _measured() -> dict[str, dict[str, Any]]:
    return own_table(Path(__file__).with_name("unpacked.toml"))


def check_space(image: ImagePlan, store: ImageStore) -> None:
    """Refuse a build that the engine's disk cannot hold, if that disk is visible here. Raises DiskError."""
    if (root := store.storage_root()) is not None:
        refuse_too_little(image, str(root), shutil.disk_usage(root).free, store.call[0])


def needed_bytes(image: ImagePlan) -> int:
    """Return the bytes of the layers and the download, where the engine has none of them yet."""
    return installed_bytes(image) * 4 // 3


def installed_bytes(image: ImagePlan) -> int:
    """Return the bytes of the packages: the framework with its CUDA libraries, and what is known of the others."""
    frameworks = sum(size for _, size in _frameworks(image))
    return frameworks + max(image.packages_bytes, 0 if frameworks else _OTHER_BYTES)


def disk_choice(image: ImagePlan) -> Choice:
    """Return the plan's line about disk space: the packages' size and the space that the build needs."""
    frameworks = _frameworks(image)
    others = installed_bytes(image) - sum(size for _, size in frameworks)
    cuda = {_CPU_BYTES: ""}
    parts = [f"{name}{cuda.get(size, ' with its CUDA libraries')} {size / 1e9:.1f} GB" for name, size in frameworks]
    if not frameworks and image.packages_bytes < others:
        parts.append(f"packages of unknown size, taken for {others / 1e9:.1f} GB")
    elif others >= _SHOWN_BYTES:
        parts.append(f"other packages {others / 1e9:.1f} GB")
    needed = needed_bytes(image) / 1e9
    base = (_above(image) if image.base else "") or " above the base image"
    reason = f"{', '.join(parts)},{base}; pip's downloads take another third during the build"
    return Choice(what="disk", value=f"about {needed:.{int(needed < 1)}f} GB to build", reason=reason)


def _above(image: ImagePlan) -> str:
    """Return the base whose size is not known, and not counted: any but Python's slim ones."""
    return "" if re.match(r"python:[\d.]+-slim", image.base or "") else f" above {image.base}"


def size_choice(
    image: ImagePlan, level: str, left_out: Mapping[str, Sequence[str]], limit_bytes: int | None
) -> tuple[Choice, tuple[str, ...]]:
    """Return the plan's line on the finished image's size, and a warning if ``max_image_size`` will not hold.

    ``left_out``: level → features that it leaves out; {} where there is nothing to slim.
    """
    base = _above(image)
    known = 0 if base else _BASE_BYTES
    sizes = {each: known + _slimmed_bytes(image, each, features) for each, features in left_out.items()}
    size = sizes.pop(level, known + installed_bytes(image))
    reason = f"--slim {', '.join(f'{each}: {_gb(sizes[each])}' for each in sizes)}" if sizes else "an estimate"
    choice = Choice(what="image size", value=f"about {_gb(size)}{base}", reason=reason)
    if limit_bytes is None:
        return choice, ()
    if size <= limit_bytes or _gb(size) == _gb(limit_bytes):  # an estimate
        return choice.changed(reason=f"within max_image_size, {_gb(limit_bytes)}; {reason}"), ()
    smaller = [each for each in ("auto", "unused", "arch") if each in sizes and sizes[each] <= limit_bytes]
    way = f"--slim {smaller[0]}" if smaller else "[criteria] max_image_size in seatrial.toml"
    return choice, (f"the image will be over max_image_size, {_gb(limit_bytes)}: about {_gb(size)}{base}; see {way}",)


def _slimmed_bytes(image: ImagePlan, level: str, features: Sequence[str]) -> int:
    size = installed_bytes(image)
    first = next(iter(_frameworks(image)), ("", 0))[0]
    if level == "none" or (measured := _measured().get(first)) is None:
        return size
    gone: int = measured["files"] + (measured["headers"] if level != "auto" else 0)
    gone += sum(measured["features"].get(feature, 0) for feature in features)
    gone += measured["linker"] if set(features) >= {"fft", "sparse", "linalg"} else 0
    return size - 1_000_000 * (gone + (measured["arch"] if level == "arch" else 0))


def _gb(size_bytes: int) -> str:
    return f"{size_bytes / 1e9:.1f} GB"


def _frameworks(image: ImagePlan) -> list[tuple[str, int]]:
    """Return each framework above the base with its approximate size in bytes, the main one first."""
    first = next((name for name in ("torch", "tensorflow", "jax") if name in image.stack), "")
    brought = framework_image(image.base or "")
    builds = {**({first: image.stack["build"]} if "build" in image.stack else {}), **image.also}
    if brought is not None:
        builds.pop(brought.framework, None)
    on_gpus = {name: each["whole"] * 1_000_000 for name, each in _measured().items() if name in builds}
    return [(name, _CPU_BYTES if build == "cpu" else on_gpus.get(name, _GPU_BYTES)) for name, build in builds.items()]


def refuse_too_little(image: ImagePlan, root: str, free_bytes: int, engine: str) -> None:
    """Refuse a disk with less free space than the build needs. Raises DiskError naming both numbers."""
    if free_bytes < (needed := needed_bytes(image)):
        raise DiskError(
            f"{image.tag} takes about {needed / 1e9:.0f} GB to build; {root} has only {free_bytes / 1e9:.1f} GB free",
            run=f"{engine} system df; {engine} builder prune",
        )
