"""Room on the engine's disk for an image, estimated before it is built."""

from __future__ import annotations

import shutil

from seatrial.backends.base import ImageStore
from seatrial.errors import DiskError
from seatrial.job.plan import Choice, ImagePlan

#: Packages above the base, unpacked: torch 2.13.0 for the CPU and for CUDA 13.0, measured (docs/benchmarks.md). The
#: download is a third of that again, and pip keeps it.
_CPU_BYTES, _GPU_BYTES = 950_000_000, 5_000_000_000
_OTHER_BYTES = 400_000_000
#: Less than this is not worth a word beside gigabytes.
_SHOWN_BYTES = 50_000_000


def check_space(image: ImagePlan, store: ImageStore) -> None:
    """Raises DiskError when the engine's disk cannot hold what building the image takes.

    A virtual machine's or another host's disk is not seen here, and then nothing is said.
    """
    if (root := store.storage_root()) is not None:
        refuse_too_little(image, str(root), shutil.disk_usage(root).free, store.call[0])


def needed_bytes(image: ImagePlan) -> int:
    """Bytes of the layers and the download, where the engine has none of them yet."""
    return installed_bytes(image) * 4 // 3


def installed_bytes(image: ImagePlan) -> int:
    """Bytes of the packages in the image: the framework with its CUDA libraries, and what is known of the others."""
    frameworks = sum(size for _, size in _frameworks(image))
    return frameworks + max(image.packages_bytes, 0 if frameworks else _OTHER_BYTES)


def disk_choice(image: ImagePlan) -> Choice:
    """What the plan says of it: the packages' size, and the room that building takes."""
    frameworks = _frameworks(image)
    others = installed_bytes(image) - sum(size for _, size in frameworks)
    cuda = {_GPU_BYTES: " with its CUDA libraries"}
    parts = [f"{name}{cuda.get(size, '')} {size / 1e9:.1f} GB" for name, size in frameworks]
    if not frameworks and image.packages_bytes < others:
        parts.append(f"packages of unknown size, taken for {others / 1e9:.1f} GB")
    elif others >= _SHOWN_BYTES:
        parts.append(f"other packages {others / 1e9:.1f} GB")
    needed = needed_bytes(image) / 1e9
    return Choice(
        what="disk",
        value=f"about {needed:.{int(needed < 1)}f} GB to build",
        reason=f"{', '.join(parts)}, above the base image; pip keeps the downloads, a third of that again",
    )


def _frameworks(image: ImagePlan) -> list[tuple[str, int]]:
    """Each framework and about how many bytes it has, the first first."""
    first = next((name for name in ("torch", "tensorflow", "jax") if name in image.stack), "")
    builds = {first: image.stack["build"]} if "build" in image.stack else {}
    return [(name, _CPU_BYTES if build == "cpu" else _GPU_BYTES) for name, build in {**builds, **image.also}.items()]


def refuse_too_little(image: ImagePlan, root: str, free_bytes: int, engine: str) -> None:
    """Raises DiskError naming both numbers."""
    if free_bytes < (needed := needed_bytes(image)):
        raise DiskError(
            f"{image.tag} takes about {needed / 1e9:.0f} GB to build; {root} has only {free_bytes / 1e9:.1f} GB free",
            run=f"{engine} system df; {engine} builder prune",
        )
