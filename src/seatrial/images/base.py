"""Choose the base image: slim Python where wheels bring CUDA, an nvidia/cuda image where something else needs it."""

from __future__ import annotations

import re
from collections.abc import Collection
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple

from packaging.version import Version

from seatrial.errors import ConfigError
from seatrial.images.requirements.pip_format import Needs, canonical_name
from seatrial.job.model import Flavour, ImageOptions
from seatrial.job.plan import Choice
from seatrial.job.script import ScriptFacts
from seatrial.stack.facts import CudaImage, cuda_images, table
from seatrial.stack.resolve import Stack

DEFAULT_BASE: str = ImageOptions.model_fields["base"].default

#: Packages whose wheels on the index have CUDA code that they compile at their first use; builds for one torch and CUDA
#: have a local version, and have it compiled. Sources: their install pages.
_COMPILED_AT_FIRST_USE: list[str] = table("import_names")["compiled_at_first_use"]

#: Debian's releases, from which many images are made, and their python3; https://packages.debian.org/python3.
_PYTHON_OF_DEBIAN = {"buster": "3.7", "bullseye": "3.9", "bookworm": "3.11", "trixie": "3.13"}
_PYTHON_OF_DEBIAN |= dict(zip(("10", "11", "12", "13"), _PYTHON_OF_DEBIAN.values(), strict=True))
#: Ubuntu's releases by their names; https://wiki.ubuntu.com/Releases.
_UBUNTU = {"bionic": "18.04", "focal": "20.04", "jammy": "22.04", "noble": "24.04"}

#: The first TensorFlow whose Keras compiles optimizers with XLA on a GPU: it needs ptxas and libdevice, which NVIDIA's
#: runtime images lack. Source: keras 2.11, optimizers/optimizer_experimental/optimizer.py, jit_compile.
_XLA_SINCE = Version("2.11")

#: Packages for a virtual environment that Ubuntu's images lack.
_UBUNTU_PYTHON: tuple[str, ...] = ("python3", "python3-venv")


class Base(NamedTuple):
    """Images to build from.

    Attributes:
        image: of the final stage. builder: of the builder stage, where that needs more, or None.
        system_packages: Debian packages that the base needs before anything else.
        kept: packages of a framework image, which no layer above it may replace.
        toolkit: nvidia/cuda image whose nvcc is copied: to the image itself if that gets compilers, or the builder.
    """

    image: str
    builder: str | None
    system_packages: tuple[str, ...]
    choice: Choice
    kept: tuple[str, ...] = ()
    toolkit: str = ""


def python_of_image(image: str) -> str | None:
    """Return the Python of an image by its name; None if the name does not contain it."""
    name = image.partition("@")[0]
    repository, _, tag = name.rpartition("/")[2].partition(":")
    if repository == "python" and (match := re.match(r"(\d{1,2}\.\d{1,3})(?!\d)", tag)):
        return match[1]
    if repository in ("debian", "ubuntu") or re.search(r"ubuntu[:-]?\d\d\.04", name):
        return python3_of_distribution(image)
    return None


def python3_of_distribution(image: str) -> str | None:
    """Return the version of python3 in the image's distribution (``debian:12``, ``…-ubuntu22.04``); None if unknown."""
    name = image.partition("@")[0]
    repository, _, tag = name.rpartition("/")[2].partition(":")
    if release := re.search(r"ubuntu[:-]?(\d\d\.04)", name) or re.search("|".join(_UBUNTU), tag):
        ubuntu: dict[str, str] = table("nvidia_images")["python"]
        return ubuntu.get(_UBUNTU.get(release[0]) or release[1])
    if repository == "debian" and (number := re.match(r"1[0-3](?![0-9])", tag)):
        return _PYTHON_OF_DEBIAN[number[0]]
    debian = re.search(r"bookworm|bullseye|buster|trixie", tag)
    return _PYTHON_OF_DEBIAN[debian[0]] if debian else None


def with_nvcc(needs: Needs, script: ScriptFacts, brought: Collection[str] = ()) -> Needs:
    """Note in the needs what compiles CUDA code in the run itself: the target, or a package, listed or ``brought``."""
    listed = {canonical_name(line): line for line in needs.requirements.lines}
    lines = (listed.get(name, name) for name in _COMPILED_AT_FIRST_USE if name in listed or name in brought)
    return replace(needs, nvcc=script.nvcc_evidence or next((line for line in lines if "+" not in line), None))


def needed_flavour(options: ImageOptions, project: Path, needs: Needs) -> tuple[Flavour | None, str]:
    """Return (flavour of nvidia/cuda image, reason), (None, reason) for slim Python. No framework is resolved yet."""
    if options.flavour is not None:
        return options.flavour, "image.flavour names it"
    if needs.nvcc is not None:
        return "devel", f"the target compiles CUDA code when it runs ({needs.nvcc})"
    if needs.compiled is not None:
        return "devel", f"{needs.compiled} compiles CUDA code when it is installed"
    if cuda := next((each for each in needs.extensions if each.cuda), None):
        return "devel", f"{cuda.folder}/setup.py compiles CUDA code, which the target imports"
    sources = [path.name for pattern in ("*.cu", "csrc/*.cu", "src/*.cu") for path in sorted(project.glob(pattern))]
    if sources:
        return "devel", f"the project has CUDA code ({sources[0]})"
    return None, "small, and the wheels include their own CUDA"


def slim_base(stack: Stack, options: ImageOptions, reason: str) -> Base:
    """Return the official slim Python, or the base that the user names. Raises ConfigError for an Alpine image."""
    image, is_own = options.base, options.base != DEFAULT_BASE
    if "alpine" in image:
        message = f"the base image {image} uses musl as its C library, and no framework has wheels for it"
        raise ConfigError(message, run=f'in seatrial.toml: [image] base = "{DEFAULT_BASE}"')
    image = image.replace("3.11", stack.python) if stack.python and not is_own else image
    reason = "image.base names it" if is_own else reason
    return Base(image, None, (), Choice(what="base image", value=image, reason=reason))


def cuda_base(stack: Stack, flavour: Flavour, ubuntu: str, reason: str, *, nvcc: bool) -> Base | None:
    """Return the nvidia/cuda image of the stack's CUDA on this Ubuntu; None if there is none.

    With ``devel`` the compiler stays in the builder stage and the final image is ``base``, unless the run itself
    needs ``nvcc``.
    """
    if (image := _release(stack, ubuntu)) is None:
        return None
    in_builder = flavour == "devel" and not nvcc
    tag = image.tag("base" if in_builder else flavour, ubuntu)
    if in_builder:
        reason += "; nvcc stays in the builder stage"
    packages, wheel = _UBUNTU_PYTHON, stack.wheel
    if flavour != "devel" and wheel and wheel.system_cuda and Version(wheel.version) >= _XLA_SINCE:
        packages = (*packages, f"cuda-nvcc-{wheel.cuda.replace('.', '-')}")
        reason += f"; XLA compiles optimizers with {packages[-1]}"
    choice = Choice(what="base image", value=tag, reason=reason)
    return Base(tag, image.tag("devel", ubuntu) if in_builder else None, packages, choice)


def toolkit_base(stack: Stack, reason: str, *, nvcc: bool) -> Base | None:
    """Return the slim Python that no nvidia/cuda image has, with nvcc of one whose CUDA accepts its distribution's gcc.

    Source: docs.nvidia.com/cuda/cuda-installation-guide-linux (host compilers): CUDA 11.1 takes gcc 10, 12.1 gcc 12.
    """
    found = next(filter(None, (_release(stack, ubuntu) for ubuntu in sorted(_UBUNTU.values(), reverse=True))), None)
    if found is None or Version(found.cuda) < Version("11.1"):
        return None
    debian = "bookworm" if Version(found.cuda) >= Version("12.1") else "bullseye"
    image, toolkit = f"python:{stack.python}-slim-{debian}", found.tag("devel")
    choice = Choice(what="base image", value=image, reason=f"{reason}; nvcc comes from {toolkit}")
    return Base(image, None, ("build-essential",) if nvcc else (), choice, toolkit=toolkit)


def _release(stack: Stack, ubuntu: str) -> CudaImage | None:
    """Return the newest patch of the stack's CUDA on this Ubuntu, of any CUDA if the stack names none; else None."""
    wanted = Version(stack.wheel.cuda).release[:2] if stack.wheel and not stack.cpu else None
    on_ubuntu = (image for image in cuda_images() if ubuntu in image.ubuntu)
    fitting = [image for image in on_ubuntu if wanted is None or Version(image.cuda).release[:2] == wanted]
    return max(fitting, key=lambda image: Version(image.cuda)) if fitting else None
