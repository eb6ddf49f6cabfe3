"""Finding → the change that fixes it, for those that are safe: files that can be shown, backed up and taken back."""

from __future__ import annotations

import os
import stat
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

from seatrial.doctor.checks.toolkit import CDI_BY_DEFAULT, engine_version
from seatrial.doctor.examine import Result
from seatrial.doctor.facts.daemon_json import daemon_json_path, merged
from seatrial.doctor.facts.machine import Machine
from seatrial.doctor.fixing import cdi_spec
from seatrial.doctor.fixing.change import Change, current
from seatrial.errors import GpuContractError
from seatrial.probe import nvml

#: Of all folders that engines read specs from, the one that wins, and the toolkit's own choice.
SPEC = "/var/run/cdi/nvidia.yaml"

#: For containers that ask for no size of their own.
DEFAULT_SHM = "2g"

#: As nvidia-ctk registers it. Source: nvidia-container-toolkit, pkg/config/engine/docker.
NVIDIA_RUNTIME = {"runtimes": {"nvidia": {"args": [], "path": "nvidia-container-runtime"}}}


def changes_for(results: Sequence[Result], machine: Machine) -> list[Change]:
    """Changes for everything that was found, each path once; [] when nothing that was found is safe to fix."""
    found = {finding.id for result in results for finding in result.verdict.findings}
    settings: dict[str, Any] = {}
    why: list[str] = []
    for applies, wanted, reason in DAEMON_SETTINGS:
        if applies(machine, found):
            settings.update(wanted)
            why.append(reason)
    changes = []
    if settings:
        path = machine.here(daemon_json_path(machine))
        before = current(path)
        after = merged(before or "", settings)
        if after != before:
            changes.append(Change(path, "; ".join(why), before, after))
    changes += _spec(machine, found)
    changes += _char_links(machine, found)
    return changes


def _wants_runtime(machine: Machine, found: set[str]) -> bool:
    docker = machine.docker
    if (
        docker is None
        or docker.desktop
        or "nvidia" in docker.runtimes
        or not found & {"toolkit-missing", "runtime-unknown"}
    ):
        return False
    folders = ("/usr/local/bin", "/usr/bin")
    return any(machine.exists(f"{folder}/nvidia-container-runtime") for folder in folders)


def _wants_cdi(machine: Machine, found: set[str]) -> bool:
    docker = machine.docker
    version = engine_version(docker.version) if docker is not None else None
    if docker is None or version is None or docker.cdi_spec_dirs or "cdi-unresolvable" not in found:
        return False
    return version.major >= 25 and version < CDI_BY_DEFAULT


def _wants_shm(machine: Machine, found: set[str]) -> bool:
    return machine.docker is not None and bool(found & {"shared-memory-too-small", "nccl-shared-memory"})


#: When it applies, what is merged into daemon.json, why.
DAEMON_SETTINGS: tuple[tuple[Callable[[Machine, set[str]], bool], dict[str, Any], str], ...] = (
    (_wants_runtime, NVIDIA_RUNTIME, "register the nvidia runtime"),
    (
        _wants_cdi,
        {"features": {"cdi": True}},
        "enable CDI, which is off by default before Docker 28.2; other features are kept",
    ),
    (_wants_shm, {"default-shm-size": DEFAULT_SHM}, f"give containers {DEFAULT_SHM} of shared memory, not 64 MB"),
)


def _spec(machine: Machine, found: set[str]) -> Iterator[Change]:
    """A fresh spec, where NVIDIA's own program is not installed; where it is, the finding's fix names it."""
    wanted = {"cdi-unresolvable", "cdi-spec-stale", "cdi-spec-unreadable", "cdi-uvm-missing-in-spec", "cdi-no-vendor"}
    if not found & wanted or machine.ask("nvidia-ctk", "--version") is not None:
        return
    try:
        text = cdi_spec.to_yaml(spec_of(machine))
    except GpuContractError:  # the driver is not complete: an earlier link is what is broken
        return
    path = machine.here(SPEC)
    before = current(path)
    if before != text:
        yield Change(path, "a CDI spec of this machine's GPUs, for Podman and Docker 25 and later", before, text)


def spec_of(machine: Machine) -> dict[str, Any]:
    """The CDI spec of a machine. Raises GpuContractError."""
    return cdi_spec.make_spec(
        machine.driver,
        machine.inventory.gpus,
        slices=_slices(machine),
        sockets=[path for path in cdi_spec.SOCKETS if machine.exists(path)],
        machine=os.uname().machine,
    )


def _slices(machine: Machine) -> dict[str, tuple[nvml.Slice, Sequence[str]]]:
    if not any(gpu.mig for gpu in machine.inventory.gpus):
        return {}
    module = machine.pynvml if machine.pynvml is not None else nvml.load()
    return {part.uuid: (part, nvml.capability_nodes(part, machine.root)) for part in nvml.slices(module)}


def _char_links(machine: Machine, found: set[str]) -> Iterator[Change]:
    """/dev/char/MAJOR:MINOR for each node: by them systemd finds the device that a rule names.

    Source: https://github.com/NVIDIA/nvidia-container-toolkit/issues/48. The next start of the machine drops them.
    """
    if "device-access-lost" not in found:
        return
    for node in (*machine.driver.control, *machine.driver.gpus.values()):
        numbers = _numbers(machine.here(node.path))
        if numbers is None:
            continue
        path = machine.here(f"/dev/char/{numbers[0]}:{numbers[1]}")
        if current(path) is None:
            yield Change(
                path,
                "systemd uses this link to find the GPU's device rule",
                None,
                f"..{node.path.removeprefix('/dev')}",
                link=True,
            )


def _numbers(path: Path) -> tuple[int, int] | None:
    """Major and minor number, None for what is no device node."""
    status = path.stat()
    return (os.major(status.st_rdev), os.minor(status.st_rdev)) if stat.S_ISCHR(status.st_mode) else None
