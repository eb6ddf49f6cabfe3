"""Layer 8, the container: started as training would be, does CUDA in it see the GPUs and run a kernel on each?"""

from __future__ import annotations

from typing import Any

from seatrial.doctor.check import Check, Verdict, found, of_finding, ok, skipped, unknown, worst
from seatrial.doctor.checks.image import does_not_start, no_python
from seatrial.doctor.facts.inspection import LookError
from seatrial.doctor.facts.machine import Machine
from seatrial.errors import GpuContractError
from seatrial.findings.gpu_missing import explain_missing
from seatrial.job.units import format_bytes

#: Docker's own. PyTorch's data loaders hand each batch over through it.
DOCKER_SHM_BYTES = 64 * 2**20

#: NCCL's segments are 9,637,888 bytes for each pair and channel; a gigabyte holds those of 8 GPUs. Source: nccl#290.
NCCL_SHM_BYTES = 2**30


def _nothing(machine: Machine) -> Verdict | None:
    """Why there is nothing to look into, or None."""
    inspection = machine.inspection
    if inspection.is_process:
        return None
    if inspection.reference is None:
        return skipped("no image to run")
    return no_python(machine)


def _starts(machine: Machine) -> Verdict:
    """The engine starts it with the GPUs in. What an engine says when it does not is in the catalogue."""
    if nothing := _nothing(machine):
        return nothing
    inspection = machine.inspection
    try:
        python = inspection.live["python"]
    except GpuContractError as error:
        return found("gpus-not-injectable", [error.message], cause=error.cause, fix=error.run)
    except LookError as error:
        return does_not_start(machine, error)
    if inspection.is_process:
        return ok(f"a plain process, Python {python}")
    if inspection.inspected is not None:
        return ok(f"container {inspection.request.container} is running; Python {python} inside")
    return ok(f"it starts; GPUs through {inspection.injection.strategy}; Python {python} inside")


def _context(machine: Machine, live: dict[str, Any]) -> dict[str, Any]:
    """The facts as findings.gpu_missing wants them; the agent makes the same from inside (agent/gpu_check.py)."""
    inspection = machine.inspection
    nvml, cuda, env = live["nvml"], live["cuda"], live["env"]
    if inspection.is_process:
        way = "host"
    elif inspection.inspected is not None:
        way = (
            "nvidia-runtime" if (inspection.inspected.get("HostConfig") or {}).get("DeviceRequests") else "device-nodes"
        )
    else:
        way = inspection.injection.strategy
    return {
        "device_nodes": live["device_nodes"],
        "libcuda": cuda["libcuda"],
        "cu_init": cuda["cu_init"],
        "cuda_driver": cuda["cuda_driver"],
        "nvml_error": nvml["error"],
        "cuda_visible_devices": env.get("CUDA_VISIBLE_DEVICES"),
        "nvidia_visible_devices": env.get("NVIDIA_VISIBLE_DEVICES"),
        "nvidia_driver_capabilities": env.get("NVIDIA_DRIVER_CAPABILITIES"),
        "driver_version": nvml["driver_version"],
        "mig": {"enabled": nvml["mig_enabled"], "instances": nvml["mig_instances"]},
        "injection": way,
    }


def _spelled(machine: Machine, live: dict[str, Any]) -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
    """Visible GPUs and kernels with NVML's spelling of UUIDs: CUDA gives 16 bytes for GPU- and MIG- alike."""
    spelling = {gpu.uuid.split("-", 1)[-1].lower(): gpu.uuid for gpu in machine.inspection.gpus}

    def spelled(entry: dict[str, Any]) -> dict[str, Any]:
        return {**entry, "uuid": spelling.get(entry["uuid"].split("-", 1)[-1].lower(), entry["uuid"])}

    return [spelled(entry) for entry in live["cuda"]["visible"]], [spelled(entry) for entry in live["cuda"]["kernels"]]


def _gpus(machine: Machine) -> Verdict:
    """By UUID: CUDA shows each GPU that it should have."""
    if nothing := _nothing(machine):
        return nothing
    live = machine.inspection.live
    expected = [gpu.model_dump() for gpu in machine.inspection.gpus]
    visible, _ = _spelled(machine, live)
    if not expected:
        return unknown("NVML lists no GPU on the host: cannot tell what the container should see")
    missing = {gpu["uuid"] for gpu in expected} - {gpu["uuid"] for gpu in visible}
    if missing:
        finding = explain_missing(expected, visible, _context(machine, live))
        finding.evidence.extend(filter(None, [live["cuda"]["error"], *live["nvml"]["faults"]]))
        return of_finding(finding)
    extra = [gpu["uuid"] for gpu in visible if gpu["uuid"] not in {gpu["uuid"] for gpu in expected}]
    names = ", ".join(f"{gpu['index']} {gpu['name']} {gpu['uuid'][:12]}" for gpu in visible)
    return ok(f"CUDA sees {names}" + (f", {len(extra)} more than requested" if extra else ""))


def _kernels(machine: Machine) -> Verdict:
    if nothing := _nothing(machine):
        return nothing
    live = machine.inspection.live
    visible, kernels = _spelled(machine, live)
    if not kernels:
        return unknown("CUDA reports no device to run a kernel on")
    told = []
    for kernel in kernels:
        if not kernel["ok"]:
            context = {**_context(machine, live), "kernel_error": kernel["error"], "kernel_uuid": kernel["uuid"]}
            expected = [gpu for gpu in visible if gpu["uuid"] == kernel["uuid"]]
            told.append(of_finding(explain_missing(expected, visible, context)))
    times = ", ".join(f"{kernel['ms']:g} ms" for kernel in kernels)
    return worst(told, f"a kernel ran on each of {len(kernels)} ({times})")


def _peers(machine: Machine) -> Verdict:
    if nothing := _nothing(machine):
        return nothing
    count = len(machine.inspection.live["cuda"]["visible"])
    if count < 2:
        return skipped("one GPU has no peer")
    pairs = machine.inspection.live["peers"]
    if not pairs:
        return ok(f"each of {count} GPUs can access the others' memory")
    evidence = [f"{len(pairs)} of {count * (count - 1)} ways, the first from {pairs[0][0]} to {pairs[0][1]}"]
    return found("no-peer-access", evidence)


def _shm(machine: Machine) -> Verdict:
    if nothing := _nothing(machine):
        return nothing
    live = machine.inspection.live
    size, count = live["shm_bytes"], len(machine.inspection.gpus)
    told = []
    if size is None:
        return unknown("there is no /dev/shm inside: cannot verify that data loaders work")
    if live["shm_stale"]:
        told.append(
            found(
                "nccl-shared-memory",
                live["shm_stale"][:3],
                message="Dead ranks left stale segments in /dev/shm",
                severity="warning",
                fix="rm /dev/shm/nccl-*",
            )
        )
    if count > 1 and size < NCCL_SHM_BYTES:
        told.append(found("nccl-shared-memory", [f"/dev/shm: {format_bytes(size)} for {count} GPUs"]))
    elif size <= DOCKER_SHM_BYTES:
        told.append(found("shared-memory-too-small", [f"/dev/shm: {format_bytes(size)}"], severity="warning"))
    return worst(told, f"/dev/shm: {format_bytes(size)}")


def _access(machine: Machine) -> Verdict:
    """Nodes that are in the container and may not be opened; and whether a daemon-reload takes them away."""
    if nothing := _nothing(machine):
        return nothing
    live = machine.inspection.live
    told = []
    if live["closed_nodes"]:
        told.append(found("device-permission", [f"{path} cannot be opened inside" for path in live["closed_nodes"]]))
    told += _injected_behind_runc(machine)
    return worst(told, f"{len(live['device_nodes'])} device nodes can be opened")


def _injected_behind_runc(machine: Machine) -> list[Verdict]:
    inspected, docker = machine.inspection.inspected, machine.docker
    if inspected is None or docker is None or docker.cgroup_driver != "systemd":
        return []
    host = inspected.get("HostConfig") or {}
    if host.get("DeviceRequests") and not host.get("Devices") and not _char_links(machine):
        evidence = ["CgroupDriver systemd", "HostConfig.Devices: empty", "/dev/char: no link 195:*"]
        return [
            found(
                "device-access-lost",
                evidence,
                severity="warning",
                message="A systemctl daemon-reload will remove its GPU access",
            )
        ]
    return []


def _char_links(machine: Machine) -> bool:
    return any(name.startswith("195:") for name in machine.names("/dev/char"))


CONTAINER = (
    Check(
        "container.starts",
        "The container starts with the GPUs",
        ("gpus-not-injectable", "subject-does-not-start"),
        _starts,
        needs=("image.python", "userspace.cuda"),
        timeout_s=70,
    ),
    Check(
        "container.gpus",
        "CUDA in the container sees the requested GPUs",
        (
            "nvidia-visible-devices",
            "device-nodes-missing",
            "device-node-missing",
            "uvm-node-missing",
            "capabilities-lack-compute",
            "libcuda-missing",
            "mig-no-instances",
            "cuda-visible-devices",
            "gpus-missing",
            "other-gpus",
            "gpus-unusable",
        ),
        _gpus,
        needs=("container.starts",),
        timeout_s=70,
    ),
    Check(
        "container.kernels",
        "A kernel runs on each GPU",
        ("gpus-unusable", "gpu-memory-held", "compute-mode-exclusive", "no-kernel-image"),
        _kernels,
        needs=("container.gpus",),
    ),
    Check(
        "container.peers", "GPUs can access each other's memory", ("no-peer-access",), _peers, needs=("container.gpus",)
    ),
    Check(
        "container.shm",
        "Shared memory is large enough",
        ("shared-memory-too-small", "nccl-shared-memory"),
        _shm,
        needs=("container.starts",),
    ),
    Check(
        "container.access",
        "Its device nodes can be opened, and remain accessible",
        ("device-permission", "device-access-lost"),
        _access,
        needs=("container.starts",),
    ),
)
