"""Room on the engine's disk for an image, estimated before it is built."""

from __future__ import annotations

import re
import shutil
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from seatrial.backends.base import ImageStore
from seatrial.errors import DiskError
from seatrial.job.plan import Choice, ImagePlan

#: torch 2.13.0 for the CPU above the base, unpacked, measured (docs/benchmarks.md); a CUDA build of a framework that
#: _MEASURED does not have. The download is a third of that again, and pip keeps it.
_CPU_BYTES, _GPU_BYTES = 950_000_000, 5_000_000_000
_OTHER_BYTES = 400_000_000
#: Less than this is not worth a word beside gigabytes.
_SHOWN_BYTES = 50_000_000

#: The official slim Python, unpacked, with the bytecode and the virtual environment that a build adds.
_BASE_BYTES = 150_000_000


@dataclass(frozen=True)
class _Unpacked:
    """Megabytes of a framework with CUDA as pip unpacks it, and of what slimming takes.

    Attributes:
        files: of level ``files``, without the headers. arch: device code of other GPUs than one.
        features: of the libraries of each. linker: nvJitLink, where no feature of _LINKED stays.
    """

    whole: int
    files: int
    headers: int
    arch: int
    features: Mapping[str, int]
    linker: int = 0


_LINKED = {"fft", "sparse", "linalg"}

#: torch 2.13.0 and JAX 0.10.2 with CUDA 13.0, TensorFlow 2.21.0 with CUDA 12 (docs/benchmarks.md,
#: docs/tensorflow-and-jax.md, 21 and 22 November 2026). Other releases differ by some per cent.
_MEASURED = {
    "torch": _Unpacked(
        *(4840, 860, 50, 719),
        {
            "fft": 286,
            "compile": 279,
            "linalg": 245,
            "sparselt": 234,
            "nccl": 195,
            "sparse": 163,
            "random": 133,
            "nvshmem": 74,
        },
        linker=117,
    ),
    "tensorflow": _Unpacked(
        *(6490, 450, 411, 0),
        {
            "linalg": 495,
            "nccl": 490,
            "sparse": 486,
            "fft": 294,
            "rnn": 233,
            "random": 167,
            "libclang": 64,
            "nvcc": 63,
        },
        linker=96,
    ),
    "jax": _Unpacked(
        *(4600, 380, 50, 400),
        {
            "fft": 286,
            "linalg": 245,
            "rnn": 233,
            "nccl": 195,
            "sparse": 163,
            "random": 133,
            "nvcc": 110,
            "nvshmem": 74,
        },
    ),
}


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
    cuda = {_CPU_BYTES: ""}
    parts = [f"{name}{cuda.get(size, ' with its CUDA libraries')} {size / 1e9:.1f} GB" for name, size in frameworks]
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


def size_choice(
    image: ImagePlan, level: str, left_out: Mapping[str, Sequence[str]], limit_bytes: int | None
) -> tuple[Choice, tuple[str, ...]]:
    """Return the plan's line on the finished image's size, and a warning if ``max_image_size`` will not hold.

    Args:
        left_out: level → features that it leaves out; {} where there is nothing to slim.
    """
    base = f" above {image.base}" if not re.match(r"python:[\d.]+-slim", image.base or "") else ""
    known = 0 if base else _BASE_BYTES
    sizes = {each: known + _slimmed_bytes(image, each, features) for each, features in left_out.items()}
    size = sizes.pop(level, known + installed_bytes(image))
    reason = f"--slim {', '.join(f'{each}: {_gb(sizes[each])}' for each in sizes)}" if sizes else "an estimate"
    choice = Choice(what="image size", value=f"about {_gb(size)}{base}", reason=reason)
    if limit_bytes is None:
        return choice, ()
    if size <= limit_bytes:
        return choice.model_copy(update={"reason": f"within max_image_size, {_gb(limit_bytes)}; {reason}"}), ()
    smaller = [each for each in ("auto", "unused", "arch") if each in sizes and sizes[each] <= limit_bytes]
    way = f"--slim {smaller[0]}" if smaller else "[criteria] max_image_size in seatrial.toml"
    return choice, (f"the image will be over max_image_size, {_gb(limit_bytes)}: about {_gb(size)}{base}; see {way}",)


def _slimmed_bytes(image: ImagePlan, level: str, features: Sequence[str]) -> int:
    size = installed_bytes(image)
    first = next(iter(_frameworks(image)), ("", 0))[0]
    if level == "none" or (measured := _MEASURED.get(first)) is None:
        return size
    gone = measured.files + (measured.headers if level != "auto" else 0)
    gone += sum(measured.features.get(feature, 0) for feature in features)
    gone += measured.linker if set(features) >= _LINKED else 0
    return size - 1_000_000 * (gone + (measured.arch if level == "arch" else 0))


def _gb(size_bytes: int) -> str:
    return f"{size_bytes / 1e9:.1f} GB"


def _frameworks(image: ImagePlan) -> list[tuple[str, int]]:
    """Each framework and about how many bytes it has, the first first."""
    first = next((name for name in ("torch", "tensorflow", "jax") if name in image.stack), "")
    builds = {first: image.stack["build"]} if "build" in image.stack else {}
    return [
        (name, _CPU_BYTES if build == "cpu" else _MEASURED[name].whole * 1_000_000 if name in _MEASURED else _GPU_BYTES)
        for name, build in {**builds, **image.also}.items()
    ]


def refuse_too_little(image: ImagePlan, root: str, free_bytes: int, engine: str) -> None:
    """Raises DiskError naming both numbers."""
    if free_bytes < (needed := needed_bytes(image)):
        raise DiskError(
            f"{image.tag} takes about {needed / 1e9:.0f} GB to build; {root} has only {free_bytes / 1e9:.1f} GB free",
            run=f"{engine} system df; {engine} builder prune",
        )
