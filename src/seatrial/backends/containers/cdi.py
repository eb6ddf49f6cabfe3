"""CDI specs: the files that tell an engine how a named device gets into a container.

An engine reads every ``*.json`` and ``*.yaml`` in its spec folders; a device is named ``vendor/class=device``,
e.g. ``nvidia.com/gpu=0``. Format: https://github.com/cncf-tags/container-device-interface/blob/main/SPEC.md
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from seatrial.errors import ConfigError, printable
from seatrial.findings.finding import GENERATE_CDI, Finding
from seatrial.system.project_files import read_text
from seatrial.system.text import shown
from seatrial.system.typed_path import as_typed
from seatrial.system.yaml_file import parse_yaml

#: Where engines look when nobody told them otherwise; a later folder wins over an earlier one.
#: Source: container-device-interface, pkg/cdi/spec-dirs.go, DefaultSpecDirs.
DEFAULT_SPEC_DIRS = (Path("/etc/cdi"), Path("/var/run/cdi"))

#: What writes a fresh spec. Source: NVIDIA Container Toolkit documentation, "Support for CDI".


#: The toolkit's spec of a machine with 8 GPUs in 56 MIG slices has 60,000 bytes.
_MAX_BYTES = 1_000_000

#: Source: the format's SPEC.md, "kind" and "name"; _MOST_PATH is Linux's PATH_MAX.
_KIND = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]*/[A-Za-z0-9_.-]+")
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.:-]*")
_MOST_PATH = 4096


@dataclass(frozen=True)
class CdiDevice:
    """One device of a spec.

    Attributes:
        name: qualified, e.g. ``nvidia.com/gpu=GPU-de421f49-…``.
        spec: the file that defines it.
        host_paths: device nodes, mount sources and programs on the host that it needs, the spec's common ones included.
        programs: those of its hooks, which the runtime executes.
    """

    name: str
    spec: Path
    host_paths: tuple[str, ...]
    programs: tuple[str, ...] = ()


@dataclass(frozen=True)
class CdiSpecs:
    """The devices that an engine reading these folders can resolve, and what is wrong with the specs."""

    devices: tuple[CdiDevice, ...]
    findings: tuple[Finding, ...]

    @property
    def names(self) -> tuple[str, ...]:
        return tuple(device.name for device in self.devices)


def read_specs(folders: Iterable[Path]) -> CdiSpecs:
    """Read all specs. Never raises: an unreadable spec, a conflict and a stale path become findings.

    A name defined twice in one folder is a conflict that engines refuse to resolve; in a later folder it replaces
    the earlier definition.
    """
    devices: dict[str, CdiDevice] = {}
    findings: list[Finding] = []
    for folder in folders:
        here: dict[str, CdiDevice] = {}
        conflicts: set[str] = set()
        for path in _spec_files(folder):
            try:
                spec_devices = list(_devices(path, _load(path)))
            except (ConfigError, ValueError) as error:
                findings.append(_unreadable(path, error))
                continue
            for device in spec_devices:
                if device.name in here:
                    conflicts.add(device.name)
                    findings.append(_conflict(device, here[device.name]))
                here[device.name] = device
        devices.update(here)
        for name in conflicts:
            del devices[name]
    findings.extend(_stale(devices.values()))
    return CdiSpecs(tuple(devices.values()), tuple(findings))


def _spec_files(folder: Path) -> list[Path]:
    try:
        return sorted(path for path in folder.iterdir() if path.suffix in {".json", ".yaml"})
    except OSError:  # an engine treats a folder that is not there as empty, and so do we
        return []


def _load(path: Path) -> dict[str, Any]:
    """Raises ConfigError, ValueError."""
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
    """(device nodes and mount sources on the host, programs of hooks) of one containerEdits."""
    paths: list[str] = []
    hooks: list[str] = []
    if edits is None:
        return paths, hooks
    if not isinstance(edits, dict):
        raise ValueError("containerEdits must be a mapping")
    for node in _list(edits, "deviceNodes"):
        if not isinstance(node, dict) or not _is_path(node.get("path")):
            raise ValueError("a device node needs a path")
        host_path = node.get("hostPath") or node["path"]
        if not _is_path(host_path):
            raise ValueError(f"the hostPath of a device node is {shown(host_path)}")
        paths.append(host_path)
    for mount in _list(edits, "mounts"):
        if not isinstance(mount, dict) or not _is_path(mount.get("hostPath")):
            raise ValueError("a mount needs a hostPath")
        paths.append(mount["hostPath"])
    for hook in _list(edits, "hooks"):
        if not isinstance(hook, dict) or not _is_path(hook.get("path")):
            raise ValueError("a hook needs the path of a program")
        hooks.append(hook["path"])
    return paths, hooks


def _list(edits: dict[str, Any], key: str) -> list[Any]:
    value = edits.get(key) or []
    if not isinstance(value, list):
        raise ValueError(f"{key} must be a list")
    return value


def _is_path(value: Any) -> bool:
    """Return whether the file system and a terminal can take a text."""
    return isinstance(value, str) and value.isprintable() and 0 < len(value) < _MOST_PATH


def _unreadable(path: Path, error: Exception) -> Finding:
    return Finding(
        "cdi-spec-unreadable",
        "warning",
        f"{path} is not a CDI spec that an engine can read",
        cause=printable(str(error).split("\n")[0]),
        fix=GENERATE_CDI,
        evidence=[str(path)],
    )


def _conflict(device: CdiDevice, other: CdiDevice) -> Finding:
    return Finding(
        "cdi-device-conflict",
        "warning",
        f"{device.name} is defined twice, so engines cannot resolve it",
        cause="two specs of the same kind are in one folder",
        fix=f"sudo rm {as_typed(other.spec)}",
        evidence=[str(other.spec), str(device.spec)],
    )


def _exists(path: str) -> bool:
    try:
        return Path(path).exists()
    except OSError:  # a name too long: nothing has it
        return False


def _stale(devices: Iterable[CdiDevice]) -> Iterator[Finding]:
    """A finding for each spec that names host paths that are not there: the driver changed after it was written."""
    missing: dict[Path, dict[str, None]] = {}
    for device in devices:
        for path in device.host_paths:
            if not _exists(path):
                missing.setdefault(device.spec, {})[path] = None
    for spec, paths in missing.items():
        yield Finding(
            "cdi-spec-stale",
            "warning",
            f"{spec} names {len(paths)} host paths that do not exist, so the container would not start",
            cause="the driver was updated, or its device nodes were removed, after the spec was written",
            fix=GENERATE_CDI,
            evidence=list(paths),
        )
