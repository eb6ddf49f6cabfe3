"""Read the compatibility tables of this folder as objects. Each row of the JSON names its source and how sure it is.

Live facts win: NVML makes the Machine, and an image's packages are read after the build (images.verify_image).
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from functools import lru_cache
from pathlib import Path
from typing import Any, Literal, NamedTuple, cast

from packaging.version import Version
from pydantic import ConfigDict, Field

from seatrial.job.value import Value

#: The torch that this version of seatrial is tested with (constraints.txt of the repository), that a plan takes and
#: that a remark on a Dockerfile names. Source: https://pypi.org/project/torch/2.13.0/.
TORCH_VERSION = "2.13.0"

Framework = Literal["torch", "tensorflow", "jax"]

_TABLES = Path(__file__).parent / "tables"


class Wheel(NamedTuple):
    """One build of a framework on a package index.

    Attributes:
        variant: ``cu130``: the local version on torch's own index, or JAX's extra; TensorFlow has one build.
        cuda: CUDA toolkit it was built with.
        python: lowest and highest Python it has wheels for.
        default: what the Python Package Index gives when no build is named.
        sm: compute capabilities it has machine code for; ptx: those it has PTX for.
        jit_from: it compiles for the GPU at run time with a compiler of its own, from this capability on.
        extra: the package's extra that brings its CUDA libraries, e.g. ``and-cuda``; None: they are dependencies.
        system_cuda: it brings no CUDA and needs the image's.
        unlinked: folders below site-packages/nvidia of the CUDA libraries that it does not search.
        only_pinned: too old, or too rare, for seatrial to choose; a project may pin it.
        sure: the row was read in its source, not inferred.
    """

    framework: Framework
    version: str
    variant: str
    cuda: str
    python: tuple[str, str]
    default: bool
    sm: tuple[str, ...] = ()
    ptx: tuple[str, ...] = ()
    jit_from: str | None = None
    cudnn: str | None = None
    nccl: str | None = None
    torchvision: str | None = None
    extra: str | None = None
    system_cuda: bool = False
    unlinked: tuple[str, ...] = ()
    only_pinned: bool = False
    sure: bool = True

    @property
    def name(self) -> str:
        """Return the usual spelling: ``torch 2.13.0+cu130``, ``jax[cuda13] 0.10.2``, ``tensorflow 2.21.0``."""
        if self.framework == "torch":
            return f"torch {self.version}+{self.variant}"
        return f"jax[{self.variant}] {self.version}" if self.framework == "jax" else f"tensorflow {self.version}"


class GpuModel(Value):
    """A GPU by its marketing name. ``kind`` is ``datacenter``, ``workstation`` or ``jetson``."""

    model_config = ConfigDict(extra="ignore")

    gpu: str
    cc: str
    kind: Literal["datacenter", "workstation", "jetson"]


class CudaImage(Value):
    """A release of nvidia/cuda on Docker Hub.

    Attributes:
        cudnn_infix: ``cudnn8``, ``cudnn9`` or, from 12.4.1, plain ``cudnn``. cudnn: its major version.
        ubuntu: releases it is built on.
    """

    model_config = ConfigDict(extra="ignore")

    cuda: str
    cudnn_infix: str
    cudnn: int
    ubuntu: tuple[str, ...]

    def tag(self, flavour: str, ubuntu: str | None = None) -> str:
        """Return ``nvidia/cuda:12.6.3-cudnn-runtime-ubuntu24.04`` for ``cudnn-runtime``."""
        flavour = flavour.replace("cudnn", self.cudnn_infix)
        return f"nvidia/cuda:{self.cuda}-{flavour}-ubuntu{ubuntu or self.ubuntu[-1]}"


class FrameworkImage(Value):
    """A framework image: as a base it keeps its framework, its Python, and the packages that the framework needs.

    Attributes:
        wheel: the framework's build. python: the image's. Both are None if the image's name does not show them.
        packages: package that the framework needs → releases that it accepts.
        bounds: package → releases that run with the framework, although its metadata does not show that.
    """

    model_config = ConfigDict(extra="ignore")

    image: str
    framework: Framework
    wheel: Wheel | None = None
    python: str | None = None
    packages: dict[str, str] = Field(default_factory=dict)
    bounds: dict[str, str] = Field(default_factory=dict)

    @property
    def maker(self) -> str:
        """Return the image's name for messages."""
        return "NVIDIA's image" if self.image.startswith("nvcr.io/") else f"the image {self.image}"


@lru_cache
def table(name: str) -> dict[str, Any]:
    """Read one table as it is in its JSON file."""
    data: dict[str, Any] = json.loads((_TABLES / f"{name}.json").read_text(encoding="utf-8"))
    return data


@lru_cache
def wheels(framework: Framework, *, pinned: bool = False) -> tuple[Wheel, ...]:
    """Return the known builds of a framework with CUDA, newest first; ``pinned`` adds those that need a pin."""
    rows = table(framework)["releases" if framework == "tensorflow" else "wheels"]
    made = (_wheel(framework, {**row, framework: release}) for row in rows for release in _with_patches(row, framework))
    known = (each for each in made if pinned or not each.only_pinned)
    return tuple(sorted(known, key=lambda each: (Version(each.version), Version(each.cuda)), reverse=True))


def released(framework: Framework, version: str) -> str:
    """Return the day of a release, as 2023-03-15, or of the newest patch release of ``2.1``; "" for an unknown one."""
    days: dict[str, str] = table(framework)["released"]
    return days.get(version) or max((day for at, day in days.items() if at.startswith(f"{version}.")), default="")


def _with_patches(row: dict[str, Any], framework: Framework) -> Iterator[str]:
    """Yield the row's release and its ``patches``, which have the same build: 2.4.0, 2.4.1."""
    yield row[framework]
    yield from (f"{row[framework].rpartition('.')[0]}.{patch}" for patch in row.get("patches", ()))


def _wheel(framework: Framework, row: dict[str, Any]) -> Wheel:
    """Make a build of its row: TensorFlow has one for each release, JAX's bear the name of their extra."""
    extra = "and-cuda" if row.get("extra") is True else row.get("extra") or None
    facts = {
        "framework": framework,
        "default": row.get("default", framework == "tensorflow"),
        "version": row[framework],
        "variant": row.get("variant", extra or "system"),
        "extra": extra,
        "system_cuda": row.get("extra") is False,
        "jit_from": row.get("sm_from"),
        "sure": framework == "jax" or row["confidence"] in ("high", "medium"),
    }
    return _of_fields({**row, **facts})


def _of_fields(row: Mapping[str, Any]) -> Wheel:
    own: dict[str, Any] = {key: row[key] for key in Wheel._fields if key in row}
    own |= {key: tuple(value) for key, value in own.items() if isinstance(value, list)}
    return Wheel(**own)


@lru_cache
def gpu_models() -> tuple[GpuModel, ...]:
    """Return every GPU whose compute capability is known."""
    return tuple(GpuModel.model_validate(row) for row in table("gpus")["gpus"])


@lru_cache
def cuda_images() -> tuple[CudaImage, ...]:
    """Return every known release of nvidia/cuda, oldest first."""
    return tuple(CudaImage.model_validate(row) for row in table("nvidia_images")["images"])


#: Image with the last TensorFlow 1 that has code for current GPUs.
TENSORFLOW_1: str = "nvcr.io/nvidia/tensorflow:23.03-tf1-py3"

#: Names of framework images. Sources: Docker Hub's tags (``1.13.1-cuda11.6-cudnn8-runtime``), NVIDIA's
#: catalogue.
_WITH_FRAMEWORK = re.compile(
    r"(?:[\w-]*[.:][\w.:-]*/)?(?:py(?P<torch>torch)/pytorch|(?P<tensorflow>tensorflow)/tensorflow):"
    r"(?P<version>\d+\.\d+\.\d+)?(?:-cuda(?P<cuda>\d+\.\d+))?"
    r"|nvcr\.io/nvidia/(?P<nvidia>pytorch|tensorflow|jax):"
)


@lru_cache
def framework_image(image: str) -> FrameworkImage | None:
    """Return the facts of an image that a framework's publisher, or NVIDIA, made; None for any other image."""
    for row in table("nvidia_images")["framework_images"]:
        if row["image"] == image:
            own = _of_fields({**row, "default": False, "python": (row["python"], row["python"])})
            return FrameworkImage(**row, wheel=own)
    if (match := _WITH_FRAMEWORK.match(image)) is None:
        return None
    named = match["nvidia"] or match["tensorflow"] or "torch"
    framework = cast("Framework", "torch" if named == "pytorch" else named)
    known = wheels(framework) if match["version"] else ()
    fits = (each for each in known if each.version == match["version"] and match["cuda"] in (None, each.cuda))
    return FrameworkImage(image=image, framework=framework, wheel=next(fits, None))


def torch_index(variant: str) -> str:
    """Return the address of PyTorch's own package index of one build, ``cpu`` or ``cu126``."""
    return f"{table('torch')['index']}/{variant}"


def minimum_driver(cuda: str) -> str:
    """Return the oldest Linux driver for programs built with this CUDA, minor-version compatibility counted."""
    release = Version(cuda)
    for row in table("cuda")["majors"]:
        if row["major"] == release.major:
            return str(row["min_driver"])
    known = [row for row in table("cuda")["toolkits"] if Version(row["cuda"]) >= release]
    return str((known or table("cuda")["toolkits"])[-1 if not known else 0]["driver"])


def cuda_of_driver(driver: str) -> str | None:
    """Return the newest CUDA whose full toolkit this driver supports, as nvidia-smi prints it; None without one."""
    found = [row["cuda"] for row in table("cuda")["toolkits"] if driver_branch(driver) >= driver_branch(row["driver"])]
    return str(max(found, key=Version)) if found else None


def forward_branches(cuda: str) -> tuple[int, ...]:
    """Return the driver branches on which NVIDIA's cuda-compat package of this CUDA major is supported."""
    return next((tuple(row["branches"]) for row in table("cuda")["forward"] if row["major"] == Version(cuda).major), ())


def driver_branch(driver: str) -> int:
    """Return the branch of a driver: 535 of ``535.129.03``."""
    return Version(driver).major
