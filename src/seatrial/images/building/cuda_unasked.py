"""A run without a GPU takes no CUDA build of torch, gigabytes of it, unasked: pip's own words tell before they come.

pip goes on without an index that does not answer. Then it takes torch from PyPI, whose builds for Linux on x86-64 are
for CUDA alone, so a CPU build that cannot be reached would become a download twenty times its size.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Callable, Sequence

from seatrial.errors import EngineError
from seatrial.stack.facts import torch_index

#: A wheel of torch without a local version, as pip names it; ``.metadata``: its description, which pip reads first.
_PLAIN_TORCH = re.compile(
    r"(?:Downloading|Using cached|Processing) \S*?\btorch-[\d.]+-\S*linux\S*x86_64\.whl(?P<metadata>\.metadata)?"
    r"(?: \((?P<size>[\d.]+) (?P<unit>[kMG]B)\))?"
)

#: What only CUDA builds of frameworks require; nvidia-nccl and nvidia-ml-py come with small packages, too.
_CUDA_LIBRARY = re.compile(r"\b(?:Collecting|Downloading|Using cached|Processing) \S*?\bnvidia[-_](?:cublas|cudnn)\b")

#: pip's warnings of an index that does not answer name the page that it asked for.
_OUT_OF_REACH = re.compile(r"(?:Retrying|Could not fetch|Skipping page).*?/cpu/torch/")

#: In the requirements: CUDA is asked for by name.
_ASKED = re.compile(r"nvidia[-_](?:cublas|cudnn)|\+cu\d|/whl/cu\d|\bcuda\d*\b", re.IGNORECASE)

#: CPU wheels of torch 1.0 to 2.13 for x86-64 are 90 to 210 MB, CUDA's 500 MB and more. Source: PyTorch's index.
_LEAST_CUDA_MB = 400.0
_IN_MB = {"kB": 1e-3, "MB": 1.0, "GB": 1e3}

Progress = Callable[[str], None]


class CudaUnaskedError(EngineError):
    """pip was about to take a CUDA build for a run without a GPU."""


def without_cuda(progress: Progress, requirements: Sequence[str], *, image: bool = False) -> Progress:
    """``progress``, which ends pip by CudaUnaskedError where it is about to download CUDA.

    Args:
        requirements: lines of requirements files; where one names CUDA, nothing is watched.
        image: it is an image that is built, and no virtual environment.
    """
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
    """By its size, or because PyTorch's own index, whose builds tell by their name, was not there to be asked."""
    if found is None:
        return False
    if found["metadata"] or not found["size"]:
        return out_of_reach
    return float(found["size"]) * _IN_MB[found["unit"]] >= _LEAST_CUDA_MB


def _refused(requirements: Sequence[str], out_of_reach: bool, image: bool) -> CudaUnaskedError:
    index = next((line.split()[-1] for line in requirements if line.endswith("/cpu")), "PyTorch's index of CPU builds")
    cause = f"{index} does not answer" if out_of_reach else "the package indexes that pip asked have no CPU build of it"
    packages = [line for line in requirements if not line.startswith("-")]  # an option may hold an index's password
    own = f"python3 -m venv .venv && . .venv/bin/activate && {shlex.join(['pip', 'install', *packages])}"
    return CudaUnaskedError(
        "This run has no GPU, and pip was about to download torch for CUDA, 2 GB or more; nothing was installed",
        cause=f"{cause}; a mirror of it can be named in seatrial.toml: [image] torch_index",
        run=f"curl -I {torch_index('cpu')}/torch/" if image else f"{own}   # to take CUDA all the same",
    )
