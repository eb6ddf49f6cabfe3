"""CUDA libraries that an image has twice: in the packages, and in the base image or a second package."""

from __future__ import annotations

import os
import re
from collections.abc import Iterable
from pathlib import Path

#: Libraries of the CUDA toolkit, cuDNN, NCCL and NVSHMEM, by the part of their names before ``.so``. The driver's own
#: (libcuda, libnvidia-*) are not among them: they come from the host.
_CUDA = re.compile(
    r"lib(cudart|cublas|cublasLt|cudnn\w*|cufft|curand|cusolver|cusparse|cusparseLt|nccl|nvrtc|nvJitLink|nvshmem_host|"
    r"cupti)\.so(\.|$)"
)

#: Where base images and Debian packages have them.
SYSTEM = ("/usr/local", "/usr/lib", "/usr/lib64", "/opt")

#: Smaller ones are stubs to link against, or slimmed away.
_LEAST_BYTES = 200_000


def cuda_copies(site: Path, system: Iterable[str] = SYSTEM) -> dict[str, dict[str, int]]:
    """Library → path of each copy → bytes, for those that are there more than once."""
    found: dict[str, dict[str, int]] = {}
    seen = set()
    for root in (str(site), *system):
        for parent, _, files in os.walk(root):
            for file in files:
                match = _CUDA.match(file)
                path = os.path.join(parent, file)
                if not match or os.path.islink(path) or "/stubs" in parent:
                    continue
                status = os.stat(path)
                if status.st_size < _LEAST_BYTES or (status.st_dev, status.st_ino) in seen:
                    continue
                seen.add((status.st_dev, status.st_ino))
                found.setdefault(match[1], {})[path] = status.st_size
    return {name: paths for name, paths in sorted(found.items()) if len({os.path.dirname(each) for each in paths}) > 1}
