"""Layer 8, the container: started as for training, CUDA in it sees the GPUs and runs a kernel on each."""

from __future__ import annotations

from typing import Any

from seatrial.doctor.check import Layer, Verdict, found, of_finding, ok, skipped, unknown, worst
from seatrial.doctor.checks.image import does_not_start, without_python
from seatrial.doctor.inspection import LookError
from seatrial.doctor.machine import Machine
from seatrial.errors import GpuContractError
from seatrial.findings.gpu_missing import explain_missing
from seatrial.job.units import format_bytes

#: Docker's own. PyTorch's data loaders hand each batch over through it.
DOCKER_SHM_BYTES = 64 * 2**20

#: NCCL's segments are 9,637,888 bytes for each pair and channel; a gigabyte holds those of 8 GPUs. Source: nccl#290.
NCCL_SHM_BYTES = 2**30


def _without_container(machine: Machine) -> Verdict | None:
    inspection = machine.inspection
    if inspection.is_process:
        return None
    return skipped("no image to run") if inspection.reference is None else without_python(machine)


CONTAINER = Layer("container", "Container", needs="container.starts", skips=_without_container)


@CONTAINER.check(
    "starts",
    "The container starts with the GPUs",
    "gpus-not-injectable subject-does-not-start",
    needs="image.python userspace.cuda",
    timeout_s=70,
)
def _starts(machine: Machine) -> Verdict:
    """Start the container with the GPUs in; the catalogue has the engine's messages when that fails."""
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
    """Return the facts in the form of findings.gpu_missing; agent/gpu_check.py makes the same from inside."""
    inspection = machine.inspection
    nvml, cuda, env = live["nvml"], live["cuda"], live["env"]
    if inspection.is_process:
        strategy = "host"
    elif inspection.inspected is None:
        strategy = inspection.injection.strategy
    else:
        requests = (inspection.inspected.get("HostConfig") or {}).get("DeviceRequests")
        strategy = "nvidia-runtime" if requests else "device-nodes"
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
        "injection": strategy,
    }


def _spelled(machine: Machine, kind: str) -> list[dict[str, Any]]:
    """Return ``visible`` GPUs or ``kernels`` with NVML's UUIDs: CUDA gives 16 bytes for GPU- and MIG- alike."""
    spelling = {gpu.uuid.split("-", 1)[-1].lower(): gpu.uuid for gpu in machine.inspection.gpus}
    entries = machine.inspection.live["cuda"][kind]
    return [{**each, "uuid": spelling.get(each["uuid"].split("-", 1)[-1].lower(), each["uuid"])} for each in entries]


@CONTAINER.check(
    "gpus",
    "CUDA in the container sees the requested GPUs",
    "nvidia-visible-devices device-nodes-missing device-node-missing uvm-node-missing capabilities-lack-compute "
    "libcuda-missing mig-no-instances cuda-visible-devices gpus-missing other-gpus gpus-unusable",
    timeout_s=70,
)
def _gpus(machine: Machine) -> Verdict:
    """Compare the GPUs that CUDA shows with the expected ones, by UUID."""
    live, visible = machine.inspection.live, _spelled(machine, "visible")
    expected = [gpu.model_dump() for gpu in machine.inspection.gpus]
    if not expected:
        return unknown("NVML lists no GPU on the host, so the GPUs expected in the container are unknown")
    wanted = {gpu["uuid"] for gpu in expected}
    if wanted - {gpu["uuid"] for gpu in visible}:
        finding = explain_missing(expected, visible, _context(machine, live))
        finding.evidence.extend(filter(None, [live["cuda"]["error"], *live["nvml"]["faults"]]))
        return of_finding(finding)
    extra = sum(gpu["uuid"] not in wanted for gpu in visible)
    names = ", ".join(f"{gpu['index']} {gpu['name']} {gpu['uuid'][:12]}" for gpu in visible)
    return ok(f"CUDA sees {names}" + (f", {extra} more than requested" if extra else ""))


@CONTAINER.check(
    "kernels",
    "A kernel runs on each GPU",
    "gpus-unusable gpu-memory-held compute-mode-exclusive no-kernel-image",
    needs="container.gpus",
)
def _kernels(machine: Machine) -> Verdict:
    live, visible, kernels = machine.inspection.live, _spelled(machine, "visible"), _spelled(machine, "kernels")
    if not kernels:
        return unknown("CUDA reports no device to run a kernel on")
    problems = []
    for kernel in kernels:
        if not kernel["ok"]:
            context = {**_context(machine, live), "kernel_error": kernel["error"], "kernel_uuid": kernel["uuid"]}
            expected = [gpu for gpu in visible if gpu["uuid"] == kernel["uuid"]]
            problems.append(of_finding(explain_missing(expected, visible, context)))
    times = ", ".join(f"{kernel['ms']:g} ms" for kernel in kernels)
    return worst(problems, f"a kernel ran on each of {len(kernels)} ({times})")


@CONTAINER.check("peers", "GPUs can access each other's memory", "no-peer-access", needs="container.gpus")
def _peers(machine: Machine) -> Verdict:
    count, pairs = len(machine.inspection.live["cuda"]["visible"]), machine.inspection.live["peers"]
    if count < 2:
        return skipped("one GPU has no peer")
    if not pairs:
        return ok(f"each of {count} GPUs can access the others' memory")
    evidence = [f"{len(pairs)} of {count * (count - 1)} ways, the first from {pairs[0][0]} to {pairs[0][1]}"]
    return found("no-peer-access", evidence)


@CONTAINER.check("shm", "Shared memory is large enough", "shared-memory-too-small nccl-shared-memory")
def _shm(machine: Machine) -> Verdict:
    live, count = machine.inspection.live, len(machine.inspection.gpus)
    size, problems = live["shm_bytes"], []
    if size is None:
        return unknown("/dev/shm is missing in the container, so data loaders cannot be checked")
    if stale := live["shm_stale"][:3]:
        message = "Dead ranks left stale segments in /dev/shm"
        fix = "rm /dev/shm/nccl-*"
        problems.append(found("nccl-shared-memory", stale, message=message, severity="warning", fix=fix))
    if count > 1 and size < NCCL_SHM_BYTES:
        problems.append(found("nccl-shared-memory", [f"/dev/shm: {format_bytes(size)} for {count} GPUs"]))
    elif size <= DOCKER_SHM_BYTES:
        problems.append(found("shared-memory-too-small", [f"/dev/shm: {format_bytes(size)}"], severity="warning"))
    return worst(problems, f"/dev/shm: {format_bytes(size)}")


@CONTAINER.check(
    "access", "Its device nodes can be opened, and remain accessible", "device-permission device-access-lost"
)
def _access(machine: Machine) -> Verdict:
    """Find nodes that may not be opened inside, and access that a daemon-reload takes away."""
    live, problems = machine.inspection.live, []
    if live["closed_nodes"]:
        evidence = [f"{path} cannot be opened inside" for path in live["closed_nodes"]]
        problems.append(found("device-permission", evidence))
    host = (machine.inspection.inspected or {}).get("HostConfig") or {}
    behind_runc = host.get("DeviceRequests") and not host.get("Devices")
    systemd = machine.docker is not None and machine.docker.cgroup_driver == "systemd"
    if behind_runc and systemd and not machine.has_char_links:
        evidence = ["CgroupDriver systemd", "HostConfig.Devices: empty", "/dev/char: no link 195:*"]
        message = "A systemctl daemon-reload will remove its GPU access"
        problems.append(found("device-access-lost", evidence, severity="warning", message=message))
    return worst(problems, f"{len(live['device_nodes'])} device nodes can be opened")
