"""Read and write CDI specs: the files by which an engine adds a named device to a container.

An engine reads every ``*.json`` and ``*.yaml`` in its spec folders; a device is named ``vendor/class=device``,
e.g. ``nvidia.com/gpu=0``. Format: https://github.com/cncf-tags/container-device-interface/blob/main/SPEC.md
"""

from __future__ import annotations

import contextlib
import json
import os
import re
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple, TypeGuard

from seatrial.errors import ConfigError, GpuContractError, printable
from seatrial.findings.finding import GENERATE_CDI, Finding
from seatrial.probe import nvml
from seatrial.probe.driver_files import DriverFiles
from seatrial.probe.nvml import GpuFact
from seatrial.system.project_files import parse_yaml, read_text
from seatrial.system.text import as_typed, shown

#: CDI kind of NVIDIA's GPUs.
CDI_KIND = "nvidia.com/gpu"
#: Folders that engines read by default; a later one wins over an earlier one. Source: container-device-interface,
#: pkg/cdi/spec-dirs.go, DefaultSpecDirs.
DEFAULT_SPEC_DIRS = (Path("/etc/cdi"), Path("/var/run/cdi"))
#: The toolkit's spec of a machine with 8 GPUs in 56 MIG slices has 60,000 bytes.
_MAX_BYTES = 1_000_000
#: Source: the format's SPEC.md, "kind" and "name"; _MOST_PATH is Linux's PATH_MAX.
_KIND = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]*/[A-Za-z0-9_.-]+")
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.:-]*")
_MOST_PATH = 4096
#: Lists of containerEdits → the key of an entry's path.
_PATH_KEYS = {"deviceNodes": "path", "mounts": "hostPath", "hooks": "path"}
#: Searched without a cache or LD_LIBRARY_PATH: the multiarch folder by Debian's linker, /usr/lib64 by Fedora's.
#: Source: ld.so(8), "trusted directories".
LIBRARY_FOLDERS = {
    "x86_64": ("/usr/lib/x86_64-linux-gnu", "/usr/lib64"),
    "aarch64": ("/usr/lib/aarch64-linux-gnu", "/usr/lib64"),
}

MOUNT_OPTIONS = ["ro", "nosuid", "nodev", "bind"]
#: Sockets of daemons that programs talk to where they run. Source: nvidia-container-toolkit, internal/discover/ipc.go.
SOCKETS = ("/run/nvidia-persistenced/socket", "/run/nvidia-fabricmanager/socket")


class CdiDevice(NamedTuple):
    """One device of a ``spec``, a file; its name is qualified, e.g. ``nvidia.com/gpu=GPU-de421f49-…``.

    ``host_paths``: device nodes, mount sources and programs on the host that it needs, the spec's common ones included.
    ``programs``: those of its hooks, which the runtime executes.
    """

    name: str
    spec: Path
    host_paths: tuple[str, ...]
    programs: tuple[str, ...] = ()


class CdiSpecs(NamedTuple):
    """The devices that an engine reading these folders can resolve, and the findings about the specs."""

    devices: tuple[CdiDevice, ...]
    findings: tuple[Finding, ...]

    @property
    def names(self) -> tuple[str, ...]:
        return tuple(device.name for device in self.devices)


def read_specs(folders: Iterable[Path]) -> CdiSpecs:
    """Read all specs; an unreadable one and a conflict become findings.

    A name defined twice in one folder is a conflict; in a later folder it replaces the earlier definition.
    """
    devices: dict[str, CdiDevice] = {}
    findings: list[Finding] = []
    for folder in folders:
        here: dict[str, CdiDevice] = {}
        conflicts: set[str] = set()
        files: list[Path] = []
        with contextlib.suppress(OSError):  # as engines do: no folder counts as an empty one
            files = sorted(folder.iterdir())
        for path in (path for path in files if path.suffix in {".json", ".yaml"}):
            try:
                spec_devices = list(_devices(path, _load(path)))
            except (ConfigError, ValueError) as error:
                title = f"{path} is not a CDI spec that an engine can read"
                why = printable(str(error).split("\n")[0])
                findings.append(Finding("cdi-spec-unreadable", "warning", title, why, GENERATE_CDI, [str(path)]))
                continue
            for device in spec_devices:
                if device.name in here:
                    conflicts.add(device.name)
                    title = f"{device.name} is defined twice, so engines cannot resolve it"
                    other, why = here[device.name].spec, "two specs of the same kind are in one folder"
                    fix, evidence = f"sudo rm {as_typed(other)}", [str(other), str(device.spec)]
                    findings.append(Finding("cdi-device-conflict", "warning", title, why, fix, evidence))
                here[device.name] = device
        devices.update(here)
        for name in conflicts:
            del devices[name]
    return CdiSpecs(tuple(devices.values()), tuple(findings))


def _load(path: Path) -> dict[str, Any]:
    """Read a spec. Raises ConfigError, ValueError."""
    text = read_text(path, inside=None, limit_bytes=_MAX_BYTES)
    try:
        spec = json.loads(text) if path.suffix == ".json" else parse_yaml(text, path.name)
    except RecursionError:
        raise ValueError("nested too deep") from None
    if not isinstance(spec, dict):
        raise ValueError("not a mapping")
    return spec


def _devices(path: Path, spec: dict[str, Any]) -> Iterator[CdiDevice]:
    kind, devices = spec.get("kind"), spec.get("devices")
    if not isinstance(kind, str) or not _KIND.fullmatch(kind):
        raise ValueError(f"kind must be vendor/class, not {shown(kind)}")
    if not isinstance(devices, list) or not devices:
        raise ValueError("devices must be a list of at least one device")
    common, common_hooks = _host_paths(spec.get("containerEdits"))
    for device in devices:
        # nvidia-ctk once wrote index names as bare YAML integers; the engines read them as text.
        name = device.get("name") if isinstance(device, dict) else None
        name = str(name) if isinstance(name, int) and abs(name) < 10**9 else name
        if not isinstance(name, str) or not _NAME.fullmatch(name):
            raise ValueError(f"a device's name must be text, not {shown(name)}")
        own, own_hooks = _host_paths(device.get("containerEdits"))
        programs = tuple(dict.fromkeys((*common_hooks, *own_hooks)))
        yield CdiDevice(f"{kind}={name}", path, tuple(dict.fromkeys((*common, *own, *programs))), programs)


def _host_paths(edits: Any) -> tuple[list[str], list[str]]:
    """Return (device nodes and mount sources on the host, programs of hooks) of one containerEdits."""
    if edits is None:
        return [], []
    if not isinstance(edits, dict):
        raise ValueError("containerEdits must be a mapping")
    found: dict[str, list[str]] = {}
    for key, wanted in _PATH_KEYS.items():
        entries = edits.get(key) or []
        if not isinstance(entries, list):
            raise ValueError(f"{key} must be a list")
        found[key] = []
        for entry in entries:
            path = entry.get(wanted) if isinstance(entry, dict) else None
            if not _is_path(path):
                raise ValueError(f"each of {key} needs a {wanted}")
            host_path = (entry.get("hostPath") or path) if key == "deviceNodes" else path
            if not _is_path(host_path):
                raise ValueError(f"the hostPath of a device node is {shown(host_path)}")
            found[key].append(host_path)
    return [*found["deviceNodes"], *found["mounts"]], found["hooks"]


def _is_path(value: Any) -> TypeGuard[str]:
    """Return whether the file system and a terminal can take a text."""
    return isinstance(value, str) and value.isprintable() and 0 < len(value) < _MOST_PATH


def spec_text(driver: DriverFiles, gpus: Sequence[GpuFact], root: str = "") -> str:
    """Return the spec of a machine's GPUs as YAML, in the lowest version that can express it; ``root`` is ``/``.

    For hosts with a driver and without a toolkit. A driver has no nvidia-cdi-hook, so no program can refresh the
    container's linker cache or make links. Each library is therefore mounted under every name that programs open, in
    the linker's default folders. Raises GpuContractError: the driver is incomplete or has no GPU.
    """
    import yaml  # takes 90 ms, and few specs are made

    if missing := [line for line in driver.missing if line.startswith(("/dev/", "/proc/", "lib"))]:
        message = "The CDI spec would name files that do not exist"
        raise GpuContractError(message, cause="; ".join(missing), run="seatrial doctor --host-only")
    control = [{"path": node.path} for node in driver.control]  # on WSL 2 one node, which stands for all GPUs
    every = [{"name": "all", "containerEdits": {"deviceNodes": control}}]
    devices: list[dict[str, Any]] = every if driver.wsl else list(_gpu_devices(driver, gpus, root))
    if not devices:
        raise GpuContractError("No GPU to write a CDI spec for", run="seatrial doctor --host-only")
    spec = {
        # Names that begin with a digit need 0.5.0, and an older engine refuses versions it does not know. Source:
        # container-device-interface, specs-go/version.go.
        "cdiVersion": "0.3.0" if all(device["name"][0].isalpha() for device in devices) else "0.5.0",
        "kind": CDI_KIND,
        "devices": devices,
        "containerEdits": {
            # The toolkit's legacy hook, where it is the default runtime, must not bring GPUs in a second time.
            "env": ["NVIDIA_VISIBLE_DEVICES=void"],
            "deviceNodes": [{"path": node.path} for node in driver.control],
            "mounts": [
                *_libraries(driver),
                *(_mount(path, f"/usr/bin/{name}") for name, path in driver.binaries.items()),
                *(_mount(path, path) for path in SOCKETS if Path(root + path).exists()),
            ],
        },
    }
    head = "# Written by `seatrial doctor --write-cdi`; regenerate after a driver update or a MIG change.\n"
    return head + yaml.safe_dump(spec, sort_keys=False, default_flow_style=False)


def _gpu_devices(driver: DriverFiles, gpus: Sequence[GpuFact], root: str) -> Iterator[dict[str, Any]]:
    """Yield NVML's GPUs, the slices of those in MIG mode, and all of them together."""
    every: dict[str, None] = {}
    for gpu in gpus:
        minor = gpu.index if gpu.minor is None else gpu.minor
        if gpu.mig_enabled or minor not in driver.gpus:
            continue
        nodes = [driver.gpus[minor].path]
        if gpu.mig is not None:
            nodes += nvml.capability_nodes(gpu, root)
        every.update(dict.fromkeys(nodes))
        for name in (gpu.mig or str(gpu.index), gpu.uuid):
            yield {"name": name, "containerEdits": {"deviceNodes": [{"path": path} for path in nodes]}}
    if every:
        yield {"name": "all", "containerEdits": {"deviceNodes": [{"path": path} for path in every]}}


def _libraries(driver: DriverFiles) -> Iterator[dict[str, Any]]:
    for folder in LIBRARY_FOLDERS.get(os.uname().machine, LIBRARY_FOLDERS["x86_64"]):
        for library in driver.libraries:
            yield from (_mount(library.path, f"{folder}/{name}") for name in library.names)


def _mount(source: str, target: str) -> dict[str, Any]:
    return {"hostPath": source, "containerPath": target, "options": list(MOUNT_OPTIONS)}
