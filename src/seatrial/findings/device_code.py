"""Which device code a GPU can run.

A cubin (``sm_``) runs on its own major version from its minor on; PTX (``compute_``) is compiled for anything later.
Code for one architecture's own features (``sm_90a``) runs on exactly that compute capability, code for a family's
(``sm_100f``) on that major version from its minor on; PTX with such a suffix likewise.
Source: https://docs.nvidia.com/cuda/cuda-c-programming-guide/#feature-set-compiler-targets and
https://docs.nvidia.com/cuda/cuda-compiler-driver-nvcc/#gpu-feature-list
"""

import re
from typing import Iterable

#: Environment variable of an image with less: the compute capabilities that it keeps code for, ``8.0 9.0``.
ARCHITECTURES = "SEATRIAL_ARCHITECTURES"

_NAME = re.compile(r"(sm|compute)_(\d+)(\d)([af]?)")


def runs_on(code: str, capability: str) -> bool:
    """Return whether ``sm_90a`` or ``compute_90`` runs on a compute capability, ``9.0``. An invalid name runs
    nowhere."""
    if (match := _NAME.fullmatch(code)) is None:
        return False
    kind, suffix = match.group(1), match.group(4)
    made_for = int(match.group(2)), int(match.group(3))
    major, _, minor = capability.partition(".")
    device = int(major), int(minor)
    if suffix == "a":
        return made_for == device
    if kind == "compute" and not suffix:
        return made_for <= device
    return made_for[0] == device[0] and made_for[1] <= device[1]


def covers(codes: Iterable[str], capability: str) -> bool:
    """Return whether any of them does."""
    return any(runs_on(code, capability) for code in codes)


def keeps_code_for(kept: Iterable[str], capability: str) -> bool:
    """Return whether machine code that was kept for these compute capabilities runs on another."""
    return any(runs_on("sm_" + cc.replace(".", ""), capability) for cc in kept)
