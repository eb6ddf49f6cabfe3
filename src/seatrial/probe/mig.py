"""MIG slices and the device nodes that are their access rights."""

import re
from typing import Any, List, NamedTuple, Optional

from seatrial.probe.nvml import optional

#: One file a GPU instance and compute instance; it names the minor number of its node in /dev/nvidia-caps.
#: Source: https://docs.nvidia.com/datacenter/tesla/mig-user-guide/, "Device Nodes and Capabilities".
CAPABILITIES = "/proc/driver/nvidia/capabilities/gpu%d/mig/gi%d"


class Slice(NamedTuple):
    """A slice and what identifies it to the kernel.

    Attributes:
        name: ``"0:1"``, GPU index and MIG index. minor: of the GPU's own node.
        gpu_instance, compute_instance: numbers that NVML gives.
    """

    name: str
    uuid: str
    minor: int
    gpu_instance: int
    compute_instance: int


def slices(pynvml: Any) -> List[Slice]:
    """Every MIG slice of this machine. ``pynvml`` is initialised."""
    found = []
    for index in range(pynvml.nvmlDeviceGetCount()):
        try:
            handle = pynvml.nvmlDeviceGetHandleByIndex(index)
            mode = optional(pynvml, "nvmlDeviceGetMigMode", handle)
            if not mode or not mode[0]:
                continue
            minor = pynvml.nvmlDeviceGetMinorNumber(handle)
            for number in range(pynvml.nvmlDeviceGetMaxMigDeviceCount(handle)):
                part = optional(pynvml, "nvmlDeviceGetMigDeviceHandleByIndex", handle, number)
                if part is not None:
                    found.append(
                        Slice(
                            "%d:%d" % (index, number),
                            pynvml.nvmlDeviceGetUUID(part),
                            minor,
                            pynvml.nvmlDeviceGetGpuInstanceId(part),
                            pynvml.nvmlDeviceGetComputeInstanceId(part),
                        )
                    )
        except pynvml.NVMLError:  # a GPU that cannot be read has no slice to give
            continue
    return found


def capability_nodes(part: Slice, root: str = "") -> List[str]:
    """``/dev/nvidia-caps/nvidia-capN`` of the GPU instance and of the compute instance; [] when not told."""
    base = root + CAPABILITIES % (part.minor, part.gpu_instance)
    paths = (base + "/access", base + "/ci%d/access" % part.compute_instance)
    minors = [_minor(path) for path in paths]
    return ["/dev/nvidia-caps/nvidia-cap%d" % minor for minor in minors if minor is not None]


def _minor(path: str) -> Optional[int]:
    try:
        with open(path) as file:
            match = re.search(r"DeviceFileMinor:\s*(\d+)", file.read())
    except OSError:
        return None
    return int(match.group(1)) if match else None
