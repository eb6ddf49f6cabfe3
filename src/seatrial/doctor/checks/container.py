"""Layers 7 and 8: the image, with its requirements on the driver; the container, started as for training."""

from __future__ import annotations

import re
from typing import Any

from seatrial.doctor.check import Layer, Verdict, found, of_finding, ok, skipped, unknown, worst
from seatrial.doctor.inspection import LookError
from seatrial.doctor.machine import Machine
from seatrial.errors import GpuContractError, SeatrialError
from seatrial.findings.catalogue import AT_START
from seatrial.findings.gpu_missing import explain_missing
from seatrial.findings.match import match_text
from seatrial.job.units import format_bytes

#: Names of GPUs of data centres and workstations, where a newer CUDA's compatibility libraries work.
#: Source: https://docs.nvidia.com/deploy/cuda-compatibility/forward-compatibility.html
FORWARD_COMPATIBLE = re.compile(
    r"\b(H\d{2,3}|B\d{2,3}|GB\d+|GH\d+|A\d{1,3}|L\d{1,2}S?|T4|V100|P\d{1,3}|Tesla|RTX (A|PRO)\w*)\b"
)
#: Docker's size of /dev/shm, through which PyTorch's data loaders hand over each batch.
DOCKER_SHM_BYTES = 64 * 2**20
#: NCCL's segments are 9,637,888 bytes for each pair and channel; a gigabyte holds those of 8 GPUs. Source: nccl#290.
NCCL_SHM_BYTES = 2**30


def _without_image(machine: Machine) -> Verdict | None:
    if machine.inspection.is_process:
        return skipped("a plain process has no image")
    return skipped("no image to inspect") if machine.inspection.reference is None else None


def without_python(machine: Machine) -> Verdict | None:
    """Skip what needs a Python inside; ``image.python`` reports how to name one."""
    return skipped("no Python inside to look with") if machine.inspection.python is None else None


IMAGE = Layer("image", "Image", needs="image.present", skips=_without_image)


@IMAGE.check(
    "present", "The image or container exists", "subject-missing", needs="engine.any", skips=False, timeout_s=10
)
def _present(machine: Machine) -> Verdict:
    inspection, request = machine.inspection, machine.inspection.request
    if inspection.is_process:
        return skipped("a plain process has no image")
    if request.container is not None and inspection.inspected is None:
        name = machine.engine.name if machine.engine else None
        evidence = [f"{name or 'no engine'}: no running container {request.container}"]
        message = f"Container {request.container} is not running"
        cause = "Its name differs, or it has ended: doctor can examine only a running container"
        client = name or "docker"
        fix = f"{client} ps --all   # its name; one that has ended: {client} start {request.container}"
        return found("subject-missing", evidence, message=message, cause=cause, fix=fix)
    try:
        image = inspection.image
    except SeatrialError as error:
        return unknown(f"the image cannot be read: {error.message}")
    if inspection.reference is None:
        return skipped("no image to inspect; name one: seatrial doctor --image IMAGE")
    if image is None:
        assert machine.engine is not None
        engine, name = machine.engine.name, inspection.reference
        message = f"Image {name} is not in {engine.capitalize()}'s store"
        return found("subject-missing", [f"{engine}: no image {name}"], message=message, fix=f"{engine} pull {name}")
    return ok(f"{request.container or inspection.reference}, {image.id[:19]}")


@IMAGE.check("requires", "The driver supports the CUDA version it requires", "image-requires-newer-driver")
def _requires(machine: Machine) -> Verdict:
    """Check NVIDIA_REQUIRE_CUDA, which only the toolkit's legacy hook reads; CDI and device nodes do not."""
    assert machine.inspection.image is not None
    env, inventory = machine.inspection.image.env, machine.inventory
    text, offered = env.get("NVIDIA_REQUIRE_CUDA", ""), inventory.cuda_driver_version
    if not text and "CUDA_VERSION" in env:  # minor versions are compatible: the major one is required
        text = f"cuda>={env['CUDA_VERSION'].split('.')[0]}.0"
    if not text:
        return ok("it requires no CUDA version from the driver")
    if offered is None:
        return unknown(f"the image requires {text[:60]}, but the driver's CUDA version is unknown")
    if env.get("NVIDIA_DISABLE_REQUIRE") in ("1", "true"):
        return ok("it disables its requirement (NVIDIA_DISABLE_REQUIRE)")
    if meets(text, offered, inventory.driver_version or "", [gpu.name for gpu in inventory.gpus]):
        return ok(f"it requires {text.split()[0]}; the driver supports CUDA {offered}")
    fix = "upgrade the driver, or use an image with a lower CUDA; to try anyway: --env NVIDIA_DISABLE_REQUIRE=1"
    return found("image-requires-newer-driver", [f"image: {text[:200]}", f"driver: CUDA up to {offered}"], fix=fix)


def meets(requirement: str, cuda: str, driver: str, names: list[str]) -> bool:
    """Return True if one of the alternatives holds: spaces stand for or, commas for and.

    Source: NVIDIA Container Toolkit documentation, "Constraints": cuda>=12.4 brand=tesla,driver>=470,driver<471 …
    """
    brand = "tesla" if any(FORWARD_COMPATIBLE.search(name) for name in names) else "geforce"
    values = {"cuda": cuda, "driver": driver, "brand": brand}
    return any(all(_holds(term, values) for term in terms.split(",")) for terms in requirement.split())


def _holds(term: str, values: dict[str, str]) -> bool:
    match = re.fullmatch(r"(\w+)(>=|<=|!=|=|<|>)(.+)", term)
    if match is None or match.group(1) not in values:  # e.g. arch, which does not concern the driver
        return True
    name, sign, wanted = match.groups()
    if name == "brand":
        return (values[name] == wanted) == (sign == "=")
    have, want = _numbers(values[name]), _numbers(wanted)
    length = min(len(have), len(want)) or 1
    have, want = have[:length], want[:length]
    orders = {">=": have >= want, "<=": have <= want, ">": have > want, "<": have < want}
    return orders.get(sign, (have == want) == (sign == "="))


def _numbers(text: str) -> list[int]:
    return [int(part) for part in re.findall(r"\d+", text)]


@IMAGE.check(
    "variables", "Its variables hide no GPU", "nvidia-visible-devices capabilities-lack-compute cuda-visible-devices"
)
def _variables(machine: Machine) -> Verdict:
    assert machine.inspection.image is not None
    env, problems = machine.inspection.image.env, []
    hidden = env.get("NVIDIA_VISIBLE_DEVICES")
    if hidden is not None and hidden.strip().lower() in ("void", "none", ""):
        evidence = [f"image: NVIDIA_VISIBLE_DEVICES={hidden!r}"]
        problems.append(found("nvidia-visible-devices", evidence, severity="warning"))
    capabilities = env.get("NVIDIA_DRIVER_CAPABILITIES")
    if capabilities and not {"compute", "all"} & {word.strip() for word in capabilities.split(",")}:
        evidence = [f"image: NVIDIA_DRIVER_CAPABILITIES={capabilities}"]
        problems.append(found("capabilities-lack-compute", evidence, severity="warning"))
    devices = env.get("CUDA_VISIBLE_DEVICES")
    if devices is not None and not re.fullmatch(r"\d+(,\d+)*", devices):
        problems.append(found("cuda-visible-devices", [f"image: CUDA_VISIBLE_DEVICES={devices!r}"]))
    return worst(problems, "its variables hide no GPU")


@IMAGE.check(
    "python", "It starts, and its Python runs", "program-not-there subject-does-not-start", skips=False, timeout_s=60
)
def _python(machine: Machine) -> Verdict:
    """Start the image's Python that the inspection uses, at first without GPUs."""
    inspection = machine.inspection
    if not inspection.is_process and (nothing := _without_image(machine)):
        return nothing
    if inspection.python is None:
        return unknown("No Python 3.8 or later found in the image; name it with --python PATH")
    try:
        return ok(f"Python {inspection.still['python']} inside")
    except LookError as error:
        return does_not_start(machine, error)


def does_not_start(machine: Machine, error: LookError) -> Verdict:
    """Return the catalogue's entry for an engine's message that it does not start."""
    if known := match_text(error.stderr or str(error), AT_START):
        known[0].fix = (known[0].fix or "").replace("<image>", machine.inspection.reference or "…")
        return of_finding(known[0])
    evidence = [str(error), *error.stderr.splitlines()[-3:]]
    cause = "This Python is not there, or it ended before it answered" if machine.inspection.is_process else None
    fix = error.error.run if error.error is not None else None
    return found("subject-does-not-start", evidence, message=str(error), cause=cause, fix=fix)


@IMAGE.check(
    "driver-libraries",
    "It contains no driver of its own",
    "driver-libraries-in-image",
    needs="image.python",
    timeout_s=60,
)
def _carries_driver(machine: Machine) -> Verdict:
    """Look in the image started without GPUs: with them, the host's own libraries are there, too."""
    inspection = machine.inspection
    if inspection.inspected is not None:
        return skipped("in a running container the host's libraries look like its own; check with --image")
    if nothing := without_python(machine):
        return nothing
    mounted = tuple(f"{mount.target}/" for mount in inspection.request.mounts)
    paths = inspection.still["libraries"]["driver"]
    if inside := [path for path in paths if not path.startswith(mounted) and "stubs" not in path][:5]:
        return found("driver-libraries-in-image", inside, fix=f"RUN rm -f {' '.join(inside)}   # in the Dockerfile")
    return ok("it contains no driver library")


@IMAGE.check(
    "compat", "Its compatibility libraries fit the GPU", "forward-compatibility", needs="image.python", timeout_s=60
)
def _compat(machine: Machine) -> Verdict:
    if nothing := without_python(machine):
        return nothing
    if not (paths := machine.inspection.still["libraries"]["compat"]):
        return ok("it contains no CUDA compatibility libraries")
    versions = [match.group(1) for path in paths if (match := re.search(r"\.so\.(\d{3,}\.\d+(\.\d+)?)$", path))]
    driver = machine.inventory.driver_version or machine.driver.version or ""
    newer = any(_numbers(version) > _numbers(driver) for version in versions)
    names = [gpu.name for gpu in machine.inventory.gpus]
    if newer and driver and names and not all(FORWARD_COMPATIBLE.search(name) for name in names):
        return found("forward-compatibility", [f"image: {', '.join(paths[:3])}", f"host: driver {driver}", *names])
    return ok("its CUDA compatibility libraries fit this GPU, or are older than the driver")


def without_subject(machine: Machine) -> Verdict | None:
    """Skip what needs a Python in an image, or on this machine."""
    without_image = not machine.inspection.is_process and machine.inspection.reference is None
    return skipped("no image to inspect") if without_image else without_python(machine)


CONTAINER = Layer("container", "Container", needs="container.starts", skips=without_subject)


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
    if not (expected := [gpu.model_dump() for gpu in machine.inspection.gpus]):
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
