"""Check a build: no CUDA on a CPU run, and installed versions equal to the planned ones."""

from __future__ import annotations

import json
import re
import shlex
from collections.abc import Sequence
from importlib import resources
from typing import Any

from packaging.version import InvalidVersion, Version

from seatrial.backends.base import Echo
from seatrial.backends.containers.images import ImageStore
from seatrial.errors import EngineError, ImageError, fallback
from seatrial.findings.catalogue import by_id, mid_sentence
from seatrial.findings.finding import Finding
from seatrial.job.plan import ImagePlan
from seatrial.stack.facts import torch_index, wheels

#: Prints versions of packages, and the CUDA of torch/version.py (None for a CPU build), without importing torch.
_PROGRAM = resources.files("seatrial.images.build").joinpath("versions.py.txt").read_text("utf-8")

_TIMEOUT_S = 120.0


def check_stack(image: ImagePlan, reference: str, store: ImageStore) -> None:
    """Compare the image's packages with the plan. Raises ImageError: another framework's build, or a contradiction."""
    if image.python is None or not image.stack:
        return
    ended = store.run_once(reference, [image.python, "-I", "-c", _PROGRAM], timeout_s=_TIMEOUT_S)
    lines = [line for line in ended.stdout.splitlines() if line.startswith("{")]
    if ended.exit_code != 0 or not lines:
        return  # verifying the image reports the error
    if (finding := mismatch(json.loads(lines[-1]), image)) is not None:
        message = f"{image.tag} was not finished: {mid_sentence(finding.message)}"
        raise ImageError(message, cause=finding.cause, run=finding.fix)


def mismatch(found: dict[str, Any], image: ImagePlan) -> Finding | None:
    """Return the first difference between what is installed and the plan.

    ``found``: package → version, and ``cuda`` of torch: None for a CPU build, absent when unknown.
    """
    return _framework(found, image) or _torch_build(found, image) or _pair(found)


def _framework(found: dict[str, Any], image: ImagePlan) -> Finding | None:
    for framework in ("torch", "tensorflow", "jax"):
        have = found.get(framework) or found.get(f"{framework}-cpu")
        if framework in image.stack and have and have.partition("+")[0] != image.stack[framework]:
            return _other_build(f"{framework} {have}", f"{framework} {image.stack[framework]}", image)
    return None


def _torch_build(found: dict[str, Any], image: ImagePlan) -> Finding | None:
    planned, version = image.stack.get("build", ""), found.get("torch")
    if "torch" not in image.stack or not version or "cuda" not in found:
        return None
    cuda = found["cuda"]
    if planned == "cpu" and cuda and not image.index_decides:
        return _other_build(f"torch {version} for CUDA {cuda}, which is gigabytes larger", "the CPU build", image)
    if planned.startswith("cu") and not cuda:
        return _other_build(f"torch {version}, a CPU build", f"the build {planned}", image)
    major = image.stack.get("cuda", "").partition(".")[0]
    if planned.startswith("cu") and major and cuda.partition(".")[0] != major and not image.index_decides:
        return _other_build(f"torch {version} for CUDA {cuda}", f"the build {planned}", image)
    return None


def _other_build(has: str, planned: str, image: ImagePlan) -> Finding:
    version, build = image.stack.get("torch", ""), image.stack.get("build", "")
    values = {"has": has, "planned": planned, "base": image.base or "the base image", "pin": f"{version}+{build}"}
    fix = None if version else "seatrial plan …   # what was resolved, and why"
    return by_id("torch-build-not-planned").finding(values=values, fix=fix)


def _pair(found: dict[str, Any]) -> Finding | None:
    """Find a torchvision whose compiled operators are for another torch, or another kind of build; None if both fit."""
    torch, vision = found.get("torch"), found.get("torchvision")
    if not torch or not vision:
        return None
    public = torch.partition("+")[0]  # to 2.14, each has a torchvision: https://github.com/pytorch/vision#installation
    needed = next((wheel.torchvision for wheel in wheels("torch") if wheel.version == public), None)
    builds = [version.partition("+")[2] for version in (torch, vision)]
    wrong = needed is not None and _minor(needed) != _minor(vision)
    if not wrong and not (all(re.fullmatch(r"cpu|cu\d+", build) for build in builds) and builds[0] != builds[1]):
        return None
    known = by_id("torchvision-mismatch")
    index = f"curl -sI https://download.pytorch.org/whl/{builds[0]}/torchvision/   # must answer"
    return known.finding(
        message=f"torch {torch} and torchvision {vision} do not belong together",
        cause=f"torch {public} goes with torchvision {needed if wrong else f'of the build {builds[0]}'}",
        fix=f"in requirements.txt: torch=={public} and torchvision=={needed}" if wrong else index,
    )


@fallback((), on=InvalidVersion)
def _minor(version: str) -> tuple[int, ...]:
    return Version(version).release[:2]


#: A wheel of torch without a local version, as pip names it; ``.metadata``: its description, which pip reads first.
_PLAIN_TORCH = re.compile(
    r"(?:Downloading|Using cached|Processing) \S*?\btorch-[\d.]+-\S*linux\S*x86_64\.whl(?P<metadata>\.metadata)?"
    r"(?: \((?P<size>[\d.]+) (?P<unit>[kMG]B)\))?"
)

#: Packages that only CUDA builds of frameworks require; nvidia-nccl and nvidia-ml-py come with small packages, too.
_CUDA_LIBRARY = re.compile(r"\b(?:Collecting|Downloading|Using cached|Processing) \S*?\bnvidia[-_](?:cublas|cudnn)\b")

#: pip's warnings about an index that does not answer name the requested page.
_OUT_OF_REACH = re.compile(r"(?:Retrying|Could not fetch|Skipping page).*?/cpu/torch/")

#: Requirements that name CUDA.
_ASKED = re.compile(r"nvidia[-_](?:cublas|cudnn)|\+cu\d|/whl/cu\d|\bcuda\d*\b", re.IGNORECASE)

#: CPU wheels of torch 1.0 to 2.13 for x86-64 are 90 to 210 MB, CUDA's 500 MB and more. Source: PyTorch's index.
_LEAST_CUDA_MB = 400.0


class CudaUnaskedError(EngineError):
    """pip was about to take a CUDA build for a run without a GPU."""


def without_cuda(progress: Echo, requirements: Sequence[str], *, image: bool = False) -> Echo:
    """Wrap ``progress`` to end pip by CudaUnaskedError before it downloads CUDA that no requirement names."""
    if any(_ASKED.search(line) for line in requirements):
        return progress
    out_of_reach = False

    def look(line: str) -> None:
        nonlocal out_of_reach
        progress(line)
        out_of_reach = out_of_reach or _OUT_OF_REACH.search(line) is not None
        if _CUDA_LIBRARY.search(line) or _is_cuda(_PLAIN_TORCH.search(line), out_of_reach):
            raise _refused(requirements, out_of_reach, image)

    return look


def _is_cuda(found: re.Match[str] | None, out_of_reach: bool) -> bool:
    """Return True for a CUDA build: by its size, or because PyTorch's own index was unreachable."""
    if found is None:
        return False
    if found["metadata"] or not found["size"]:
        return out_of_reach
    return float(found["size"]) * {"kB": 1e-3, "MB": 1.0, "GB": 1e3}[found["unit"]] >= _LEAST_CUDA_MB


def _refused(requirements: Sequence[str], out_of_reach: bool, image: bool) -> CudaUnaskedError:
    index = next((line.split()[-1] for line in requirements if line.endswith("/cpu")), "PyTorch's index of CPU builds")
    cause = f"{index} does not answer" if out_of_reach else "the package indexes have no CPU build of it"
    packages = [line for line in requirements if not line.startswith("-")]  # an option may hold an index's password
    own = f"python3 -m venv .venv && . .venv/bin/activate && {shlex.join(['pip', 'install', *packages])}"
    return CudaUnaskedError(
        "This run has no GPU, and pip was about to download torch for CUDA, 2 GB or more; nothing was installed",
        cause=f"{cause}; a mirror of it can be named in seatrial.toml: [image] torch_index",
        run=f"curl -I {torch_index('cpu')}/torch/" if image else f"{own}   # to take CUDA all the same",
    )
