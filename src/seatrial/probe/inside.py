"""Collect what a container, or a plain process, sees of the GPUs and of itself, for doctor to judge outside.

Runs under any Python >= 3.8 in the place looked at; prints one line of JSON. Nothing here imports a framework.
"""

import glob
import json
import os
import re
import sys
from contextlib import suppress
from itertools import permutations
from typing import Any, Dict, List, Optional

from seatrial.probe import container, cuda, nvml
from seatrial.probe.container import Cgroup
from seatrial.probe.processes import file_bytes

#: Variables that steer CUDA and the engines; nothing else of the environment leaves the container.
VARIABLES = (
    *("CUDA_DEVICE_ORDER", "CUDA_VERSION", "CUDA_VISIBLE_DEVICES", "LD_LIBRARY_PATH", "NCCL_P2P_DISABLE"),
    *("NVIDIA_DRIVER_CAPABILITIES", "NVIDIA_REQUIRE_CUDA", "NVIDIA_VISIBLE_DEVICES"),
)

#: Folders of libraries in images, besides LD_LIBRARY_PATH.
LIBRARY_FOLDERS = (
    "/usr/lib/x86_64-linux-gnu",
    "/usr/lib/aarch64-linux-gnu",
    "/usr/lib64",
    "/usr/lib",
    "/usr/local/lib",
    "/usr/local/cuda/lib64",
    "/usr/local/cuda/compat",
)

#: Distributions whose presence and version show what a framework was built for.
DISTRIBUTIONS = re.compile(r"^(torch|tensorflow.*|jax.*|nvidia-.*|triton)$")


def main(gpus: bool = True) -> None:
    """Print facts(gpus) as one line of JSON."""
    sys.stdout.write(json.dumps(facts(gpus)) + "\n")


def facts(gpus: bool = True) -> Dict[str, Any]:
    """Return all facts; with ``gpus`` False only those of the file system: CUDA and NVML are left alone."""
    result: Dict[str, Any] = {
        "python": "%d.%d.%d" % sys.version_info[:3],
        "executable": sys.executable,
        "env": {name: os.environ[name] for name in VARIABLES if name in os.environ},
        "device_nodes": [os.path.basename(path) for path in _nodes()],
        "closed_nodes": [path for path in _nodes() if not os.access(path, os.R_OK | os.W_OK)],
        "libraries": _libraries(),
        "distributions": _distributions(),
        "torch": _torch_build(),
        "memory_limit_bytes": Cgroup().memory_limit_bytes(),
    }
    space = container.read()
    result["shm_bytes"] = space.total_bytes if space else None
    result["shm_stale"] = sorted(os.path.basename(path) for path in glob.glob("/dev/shm/nccl-*"))
    if gpus:
        result["nvml"] = _nvml()
        result["cuda"] = cuda.check()
        result["peers"] = _peers(len(result["cuda"]["visible"]))
    return result


def _nodes() -> List[str]:
    return [path for path in sorted(glob.glob("/dev/nvidia*") + glob.glob("/dev/dxg")) if not os.path.isdir(path)]


def _nvml() -> Dict[str, Any]:
    inventory = nvml.inventory()
    return {
        "driver_version": inventory.driver_version,
        "cuda_driver_version": inventory.cuda_driver_version,
        "error": inventory.error,
        "faults": list(inventory.faults),
        "uuids": [gpu.uuid for gpu in inventory.gpus],
        "mig_enabled": any(gpu.mig_enabled for gpu in inventory.gpus),
        "mig_instances": sum(gpu.mig is not None for gpu in inventory.gpus),
    }


def _libraries() -> Dict[str, List[str]]:
    """Return library paths by kind: the driver's outside of compat folders, cuDNN's behind links, and compat's."""
    folders = [folder for folder in os.environ.get("LD_LIBRARY_PATH", "").split(":") if folder.startswith("/")]
    folders += LIBRARY_FOLDERS
    for root in sys.path:
        folders += glob.glob(os.path.join(root, "nvidia", "cudnn", "lib"))
    found: Dict[str, List[str]] = {"driver": [], "cudnn": [], "compat": []}
    seen = set()
    for folder in folders:
        real = os.path.realpath(folder)
        if real in seen:
            continue
        seen.add(real)
        found["driver"] += glob.glob(folder + "/libcuda.so.*") + glob.glob(folder + "/libnvidia-ml.so.*")
        found["cudnn"] += [os.path.realpath(path) for path in glob.glob(folder + "/libcudnn.so.*")]
    found["compat"] = glob.glob("/usr/local/cuda*/compat/libcuda.so.*")
    compat = {os.path.realpath(path) for path in found["compat"]}
    found["driver"] = [path for path in found["driver"] if os.path.realpath(path) not in compat]
    return {kind: sorted(set(paths)) for kind, paths in found.items()}


def _distributions() -> Dict[str, str]:
    import importlib.metadata  # here: 20 ms that the agent, which shares this package, never pays

    every = importlib.metadata.distributions()
    named = (((each.metadata["Name"] or "").lower().replace("_", "-"), each) for each in every)
    return {name: each.version for name, each in named if DISTRIBUTIONS.match(name)}


def _torch_build() -> Optional[Dict[str, Optional[str]]]:
    """Return ``{"version", "cuda"}`` from torch/version.py, read and not imported; None without torch."""
    for root in sys.path:
        text = file_bytes(os.path.join(root or ".", "torch", "version.py")).decode()
        if not text:
            continue
        version = re.search(r"^__version__ = ['\"](.+?)['\"]", text, re.MULTILINE)
        cuda = re.search(r"^cuda\b.*= ['\"](.+?)['\"]", text, re.MULTILINE)
        return {"version": version.group(1) if version else None, "cuda": cuda.group(1) if cuda else None}
    return None


def _peers(count: int) -> List[List[int]]:
    """Return the pairs of CUDA devices of which the first cannot reach the second's memory directly."""
    with suppress(cuda.CudaError):  # what is broken, the kernels have shown already
        driver = cuda.CudaDriver()
        driver.call("cuInit", 0)
        devices = [driver.number("cuDeviceGet", index) for index in range(count)]
        pairs = permutations(range(count), 2)
        return [[i, j] for i, j in pairs if not driver.number("cuDeviceCanAccessPeer", devices[i], devices[j])]
    return []
