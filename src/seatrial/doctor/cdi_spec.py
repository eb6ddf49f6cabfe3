"""Make a CDI spec of this machine's GPUs, for hosts that have a driver and no toolkit.

A driver alone brings no nvidia-cdi-hook, so nothing can refresh the container's linker cache or make links in it:
each library is mounted under the names that programs ask for, in the folders that linkers search by themselves.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any

import yaml

from seatrial.errors import GpuContractError
from seatrial.probe import nvml
from seatrial.probe.driver_files import DriverFiles

if TYPE_CHECKING:
    from seatrial.doctor.machine import Machine

KIND = "nvidia.com/gpu"

#: Searched without a cache or LD_LIBRARY_PATH: the multiarch folder by Debian's linker, /usr/lib64 by Fedora's.
#: Source: ld.so(8), "trusted directories".
LIBRARY_FOLDERS = {
    "x86_64": ("/usr/lib/x86_64-linux-gnu", "/usr/lib64"),
    "aarch64": ("/usr/lib/aarch64-linux-gnu", "/usr/lib64"),
}

MOUNT_OPTIONS = ["ro", "nosuid", "nodev", "bind"]

#: Sockets of daemons that programs talk to where they run. Source: nvidia-container-toolkit, internal/discover/ipc.go.
SOCKETS = ("/run/nvidia-persistenced/socket", "/run/nvidia-fabricmanager/socket")


def make_spec(machine: Machine) -> dict[str, Any]:
    """Make the spec of a machine in the lowest version that can express it.

    Raises GpuContractError when the driver is not complete or has no GPU: such a spec would only fail later.
    """
    driver = machine.driver
    missing = [line for line in driver.missing if line.startswith(("/dev/", "/proc/", "lib"))]
    if missing:
        raise GpuContractError(
            "The CDI spec would name files that do not exist",
            cause="; ".join(missing),
            run="seatrial doctor --host-only",
        )
    devices = _wsl_devices(driver) if driver.wsl else list(_devices(machine))
    if not devices:
        raise GpuContractError("No GPU to write a CDI spec for", run="seatrial doctor --host-only")
    return {
        # Names that begin with a digit need 0.5.0, and an older engine refuses versions it does not know. Source:
        # container-device-interface, specs-go/version.go.
        "cdiVersion": "0.3.0" if all(device["name"][0].isalpha() for device in devices) else "0.5.0",
        "kind": KIND,
        "devices": devices,
        "containerEdits": {
            # The toolkit's legacy hook, where it is the default runtime, must not bring GPUs in a second time.
            "env": ["NVIDIA_VISIBLE_DEVICES=void"],
            "deviceNodes": [{"path": node.path} for node in driver.control],
            "mounts": [
                *_libraries(driver),
                *(_mount(path, f"/usr/bin/{name}") for name, path in driver.binaries.items()),
                *(_mount(path, path) for path in SOCKETS if machine.exists(path)),
            ],
        },
    }


def _devices(machine: Machine) -> Iterator[dict[str, Any]]:
    """Yield NVML's GPUs, the slices of those in MIG mode, and all of them together."""
    every: dict[str, None] = {}
    for gpu in machine.inventory.gpus:
        minor = gpu.index if gpu.minor is None else gpu.minor
        if gpu.mig_enabled or minor not in machine.driver.gpus:
            continue
        nodes = [machine.driver.gpus[minor].path]
        if gpu.mig is not None:
            nodes += nvml.capability_nodes(gpu, machine.root)
        every.update(dict.fromkeys(nodes))
        for name in (gpu.mig or str(gpu.index), gpu.uuid):
            yield {"name": name, "containerEdits": {"deviceNodes": [{"path": path} for path in nodes]}}
    if every:
        yield {"name": "all", "containerEdits": {"deviceNodes": [{"path": path} for path in every]}}


def _wsl_devices(driver: DriverFiles) -> list[dict[str, Any]]:
    """Return the device of WSL 2, where one node stands for all GPUs."""
    return [{"name": "all", "containerEdits": {"deviceNodes": [{"path": node.path} for node in driver.control]}}]


def _libraries(driver: DriverFiles) -> Iterator[dict[str, Any]]:
    for folder in LIBRARY_FOLDERS.get(os.uname().machine, LIBRARY_FOLDERS["x86_64"]):
        for library in driver.libraries:
            for name in library.names:
                yield _mount(library.path, f"{folder}/{name}")


def _mount(source: str, target: str) -> dict[str, Any]:
    return {"hostPath": source, "containerPath": target, "options": list(MOUNT_OPTIONS)}


def to_yaml(spec: Mapping[str, Any]) -> str:
    """Return the spec as YAML, with a comment on who wrote it and what to do when the driver changes."""
    head = "# Written by `seatrial doctor --write-cdi`; regenerate after a driver update or a MIG change.\n"
    return head + yaml.safe_dump(dict(spec), sort_keys=False, default_flow_style=False)
