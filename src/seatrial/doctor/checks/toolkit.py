"""Layers 5 and 6: the container toolkit, which gives containers access to GPUs, and CDI specs, which name GPUs."""

from __future__ import annotations

import json
import os
import re
from pathlib import Path

from packaging.version import Version

from seatrial.backends.containers.cdi import CDI_KIND, DEFAULT_SPEC_DIRS, CdiDevice, CdiSpecs, read_specs
from seatrial.doctor.check import Layer, Verdict, found, of_finding, ok, skipped, worst
from seatrial.doctor.checks.engine import daemon_json_path, toolkit_steps
from seatrial.doctor.machine import Machine
from seatrial.errors import fallback
from seatrial.findings.finding import GENERATE_CDI
from seatrial.system.command import json_object

TOOLKIT = Layer("toolkit", "Container toolkit")

TOOLKIT_CONFIG = "/etc/nvidia-container-runtime/config.toml"
#: Last versions with a known way out of the container. Source: CVE-2025-23266, CVE-2024-0132 (www.cve.org).
VULNERABLE = (("1.16.1", "CVE-2024-0132"), ("1.17.7", "CVE-2025-23266"))
#: First version whose ``--gpus`` goes through CDI. Source: Docker Engine release notes, 29.2.
GPUS_THROUGH_CDI = Version("29.2")
#: First version with CDI on by default. Source: Docker Engine release notes, 28.2.
CDI_BY_DEFAULT = Version("28.2")

_NO_DOCKER = skipped("Docker does not respond")


def engine_version(text: str | None) -> Version | None:
    """Return ``20.10.24+dfsg1`` as 20.10.24; None for other text."""
    match = re.match(r"\d+(\.\d+)*", text or "")
    return Version(match.group(0)) if match else None


@TOOLKIT.check("daemon-json", "daemon.json is valid", "daemon-json-invalid")
def _daemon_json(machine: Machine) -> Verdict:
    if machine.docker_info is None:
        return skipped("Docker is not installed")
    path = daemon_json_path(machine)
    if (text := machine.read(path)) is None:
        return skipped(f"no {path}: Docker's defaults")
    try:
        settings = json.loads(text) if text.strip() else {}
    except ValueError as error:
        fix = f"sudoedit {path} && sudo systemctl restart docker"
        return found("daemon-json-invalid", [f"{path}: {error}"], fix=fix)
    if not isinstance(settings, dict):
        return found("daemon-json-invalid", [f"{path}: not a JSON object"], fix=f"sudoedit {path}")
    return ok(f"{path} is valid JSON")


@TOOLKIT.check(
    "installed",
    "Docker can pass a GPU to containers",
    "toolkit-missing",
    # There is nothing to hand over without a driver.
    needs="hardware.present driver.loaded userspace.libraries userspace.nodes engine.any",
)
def _installed(machine: Machine) -> Verdict:
    docker = machine.docker
    if docker is None or machine.engine is not docker:
        return skipped("only Docker needs the toolkit's hook; Podman uses CDI names or device nodes")
    if docker.desktop:
        return skipped("Docker Desktop includes its own")
    if docker.nvidia_hook or "nvidia" in docker.runtimes:
        return ok(f"Docker can pass GPUs to containers: {machine.hook or 'the nvidia runtime is registered'}")
    if cdi := [name for name in docker.cdi_devices if name.startswith("nvidia.com/")]:
        return ok(f"no toolkit; Docker resolves {len(cdi)} CDI devices")
    cause = "The NVIDIA Container Toolkit is not installed: docker run --gpus fails"
    absent = any(line.startswith(("/dev/", "/proc/", "lib")) for line in machine.driver.missing)
    can_mount = not absent and (machine.driver.gpus or machine.wsl)  # the driver by hand: every required file is there
    needed = not can_mount or any(gpu.mig for gpu in machine.inventory.gpus)
    if not needed:
        cause += "; until then, seatrial run mounts device nodes and libraries itself"
    evidence = ["nvidia-container-runtime-hook: not on the PATH of dockerd", f"runtimes: {', '.join(docker.runtimes)}"]
    severity = "error" if needed else "warning"
    return found("toolkit-missing", evidence, cause=cause, fix=toolkit_steps(machine), severity=severity)


@TOOLKIT.check("runtime", "The daemon has the configured runtime", "runtime-unknown toolkit-missing")
def _runtime(machine: Machine) -> Verdict:
    """Find a runtime of daemon.json that the daemon lacks: edited and not restarted, or of another Docker."""
    docker, path = machine.docker, daemon_json_path(machine)
    if docker is None:
        return _NO_DOCKER
    settings = json_object(machine.read(path) or "")
    named = isinstance(settings.get("runtimes"), dict) and "nvidia" in settings["runtimes"]
    if (named or settings.get("default-runtime") == "nvidia") and "nvidia" not in docker.runtimes:
        evidence = [f"{path}: nvidia", f"docker info: {', '.join(docker.runtimes)}"]
        cause = f"{path} names it, but the daemon was not restarted since, or reads another file"
        fix = "sudo snap restart docker" if docker.snap else "sudo systemctl restart docker"
        return found("runtime-unknown", evidence, cause=cause, fix=fix)
    if late := _installed_after_start(machine):
        cause = "The toolkit was installed after the Docker daemon started"
        return found("toolkit-missing", late, cause=cause, fix="sudo systemctl restart docker")
    return ok("the daemon has every runtime named in daemon.json")


@fallback([], on=OSError)
def _installed_after_start(machine: Machine) -> list[str]:
    """Compare the hook's time of change with dockerd's PID file: dockerd looks for the hook when it starts."""
    docker = machine.docker
    if machine.hook is None or docker is None or "nvidia" in docker.runtimes:
        return []
    changed = machine.here(machine.hook).stat().st_ctime
    started = machine.here("/var/run/docker.pid").stat().st_mtime
    return [f"{machine.hook} is {changed - started:.0f} s newer than the daemon"] if changed > started else []


@TOOLKIT.check("features", "No feature of daemon.json is lost", "ctk-erases-features")
def _features(machine: Machine) -> Verdict:
    """Find features that nvidia-ctk would drop, or has dropped: it writes the table ``features`` with cdi alone."""
    if machine.docker is None:
        return _NO_DOCKER
    path = daemon_json_path(machine)
    features = json_object(machine.read(path) or "").get("features")
    folder, _, name = path.rpartition("/")
    for backup in machine.names(folder):
        if not backup.startswith(name + ".") or "seatrial" in backup:
            continue
        before = json_object(machine.read(f"{folder}/{backup}") or "").get("features") or {}
        lost = sorted(set(before) - set(features or {}))
        if lost and features == {"cdi": True}:
            return found("ctk-erases-features", [f"{folder}/{backup} has {', '.join(lost)}", f"{path} has only cdi"])
    if isinstance(features, dict) and (others := ", ".join(sorted(set(features) - {"cdi"}))):
        return ok(f"features {others}: use seatrial doctor --fix for CDI, nvidia-ctk --cdi.enabled drops them")
    return ok("daemon.json sets no feature that could be lost")


@TOOLKIT.check("vendor", "--gpus finds the GPU vendor", "cdi-no-vendor")
def _cdi_vendor(machine: Machine) -> Verdict:
    docker = machine.docker
    version = engine_version(docker.version) if docker else None
    if docker is None or version is None or version < GPUS_THROUGH_CDI:
        return skipped("only Docker 29.2 and later resolves --gpus through CDI")
    if "nvidia" in docker.runtimes or any(name.startswith("nvidia.com/gpu=") for name in docker.cdi_devices):
        return ok("Docker finds the GPU's vendor")
    folders = ", ".join(docker.cdi_spec_dirs) or "none"
    return found("cdi-no-vendor", [f"Docker {docker.version}", f"CDI folders: {folders}"])


@TOOLKIT.check("cgroups", "The toolkit's cgroup setting fits the engine", "no-cgroups-rootful no-cgroups-rootless")
def _cgroups(machine: Machine) -> Verdict:
    text = machine.read(TOOLKIT_CONFIG)
    engine = machine.docker if machine.docker is not None else machine.engine
    if text is None:
        return skipped(f"no {TOOLKIT_CONFIG}")
    if engine is None:
        return skipped("no engine to compare with")
    # The key has a line of its own, commented out by default; nvidia-ctk writes it so.
    set_to = re.search(r"^\s*no-cgroups\s*=\s*(true|false)", text, re.MULTILINE)
    left_alone = set_to is not None and set_to.group(1) == "true"
    evidence = [f"{TOOLKIT_CONFIG}: no-cgroups = {str(left_alone).lower()}"]
    if left_alone and not engine.rootless:
        return found("no-cgroups-rootful", [*evidence, f"{engine.name} runs as root"])
    if not left_alone and engine.rootless and engine is machine.docker:
        return found("no-cgroups-rootless", [*evidence, "docker is rootless"])
    return ok(f"no-cgroups fits {'a rootless' if engine.rootless else 'an'} engine")


@TOOLKIT.check("device-rules", "Running containers keep the GPU", "device-access-lost")
def _device_rules(machine: Machine) -> Verdict:
    """Find GPUs that the legacy hook injects behind runc: the next ``systemctl daemon-reload`` takes them away."""
    docker = machine.docker
    if docker is None or not docker.takes_gpus_flag:
        return skipped("no legacy hook")
    if docker.cgroup_driver != "systemd" or docker.rootless:
        return ok(f"cgroup driver {docker.cgroup_driver}: nothing rewrites device rules")
    if machine.has_char_links:
        return ok("/dev/char has the GPU's links, so systemd keeps its rules")
    evidence = ["docker info: CgroupDriver systemd", "/dev/char: no link 195:*"]
    message = "A systemctl daemon-reload removes GPU access from running containers"
    return found("device-access-lost", evidence, message=message, severity="warning")


@TOOLKIT.check("version", "The toolkit has no known vulnerability", "toolkit-vulnerable")
def _version(machine: Machine) -> Verdict:
    ended = machine.ask("nvidia-ctk", "--version")
    match = re.search(r"version (\d+\.\d+\.\d+)", ended.stdout) if ended is not None else None
    if match is None:
        return skipped("nvidia-ctk is not installed")
    version = match.group(1)
    if holes := [cve for last, cve in VULNERABLE if Version(version) <= Version(last)]:
        return found("toolkit-vulnerable", [f"nvidia-ctk {version}: {', '.join(holes)}"])
    return ok(f"toolkit {version}")


@TOOLKIT.check("apt", "apt has the toolkit's repository once", "toolkit-apt-sources")
def _apt(machine: Machine) -> Verdict:
    folder, keys = "/etc/apt/sources.list.d", "/etc/apt/trusted.gpg.d"
    naming: list[str] = []
    old: list[str] = []
    for path in (f"{folder}/{name}" for name in machine.names(folder)):
        lines = (machine.read(path) or "").splitlines()
        used = "\n".join(line for line in lines if not line.lstrip().startswith("#"))
        naming += [path] if "nvidia.github.io/libnvidia-container" in used else []
        old += [path] if re.search(r"nvidia\.github\.io/(nvidia-docker|nvidia-container-runtime)", used) else []
    if len(naming) > 1 or old:
        fix = f"sudo rm -f {' '.join([*old, *naming])} && {toolkit_steps(machine)}"
        return found("toolkit-apt-sources", [*naming, *old], fix=fix)
    if evidence := [f"{keys}/{name}" for name in machine.names(keys) if "nvidia" in name]:
        message = "The toolkit's key was added with apt-key, which apt no longer supports"
        return found("toolkit-apt-sources", evidence, message=message, severity="warning")
    return ok("apt has the toolkit's repository once" if naming else "apt does not have the toolkit's repository")


CDI = Layer("cdi", "CDI")
#: A library's name that ends in the driver's version.
VERSIONED = re.compile(r"\.so\.(\d{3,}\.\d+(?:\.\d+)?)$")


def _generate_command(machine: Machine) -> str:
    """Return the command that writes a fresh spec here: NVIDIA's program if installed, else ours."""
    return GENERATE_CDI if machine.ask("nvidia-ctk", "--version") else "sudo seatrial doctor --write-cdi"


def _folders(machine: Machine) -> tuple[str, ...]:
    """Return the folders where the engine reads specs: those that it reports, else the usual ones."""
    docker = machine.docker
    own = docker.cdi_spec_dirs if docker is not None and machine.engine is docker else ()
    return tuple(dict.fromkeys((*own, *map(str, DEFAULT_SPEC_DIRS))))


def _specs(machine: Machine, *folders: str) -> CdiSpecs:
    return read_specs([machine.here(folder) for folder in folders or _folders(machine)])


def _nvidia_devices(specs: CdiSpecs) -> list[CdiDevice]:
    return [device for device in specs.devices if device.name.startswith(f"{CDI_KIND}=")]


def _shown(machine: Machine, spec: Path) -> str:
    return str(spec).removeprefix(machine.root)


@CDI.check("readable", "Specs are readable and define each device once", "cdi-spec-unreadable cdi-device-conflict")
def _readable(machine: Machine) -> Verdict:
    findings = _specs(machine).findings
    for finding in findings:
        if finding.id == "cdi-spec-unreadable":
            finding.fix = _generate_command(machine)
    return worst([of_finding(finding) for finding in findings], "every spec is readable")


@CDI.check("names", "The engine resolves every GPU's CDI name", "cdi-unresolvable", needs="hardware.present")
def _names(machine: Machine) -> Verdict:
    engine, devices = machine.engine, _nvidia_devices(_specs(machine))
    if engine is None:
        return skipped("no engine to read specs")
    if not engine.cdi_spec_dirs and engine.takes_gpus_flag:
        return skipped("Docker uses its hook for GPUs, not CDI names")
    version = engine_version(engine.version)
    if not engine.cdi_spec_dirs:  # Podman always has some
        if not devices:
            return skipped("this Docker reads no CDI specs, and none exist")
        if version is not None and version.major < 25:
            return skipped(f"Docker {engine.version} has no CDI (25 and later)")
        evidence = ["docker info: no CDISpecDirs", f"{len(devices)} devices in specs"]
        cause = "CDI is disabled: before Docker 28.2, daemon.json needs features.cdi = true"
        fix = "sudo seatrial doctor --fix" if version is not None and version < CDI_BY_DEFAULT else None
        return found("cdi-unresolvable", evidence, severity="warning", cause=cause, fix=fix)
    if not devices:
        if engine.takes_gpus_flag:
            return skipped("no CDI spec; Docker uses its hook for GPUs")
        evidence = [f"looked in {', '.join(_folders(machine))}"]
        message = f"{engine.name.capitalize()} has no CDI device"
        cause = "No CDI spec of kind nvidia.com/gpu found; until one exists, seatrial run mounts device nodes"
        fix = _generate_command(machine)
        return found("cdi-unresolvable", evidence, severity="warning", message=message, cause=cause, fix=fix)
    names = {device.name.partition("=")[2] for device in devices}
    whole_or_slices = (gpu for gpu in machine.inventory.gpus if not gpu.mig_enabled)
    lacking = [gpu.uuid for gpu in whole_or_slices if not names & {gpu.uuid, gpu.mig or str(gpu.index)}]
    if lacking and "all" not in names:
        evidence, cause = [f"no device for {uuid}" for uuid in lacking], "The spec was written for other GPUs"
        return found("cdi-unresolvable", evidence, cause=cause, fix=_generate_command(machine))
    return ok(f"{len(devices)} devices: {', '.join(sorted(names))[:100]}")


@CDI.check("fresh", "Specs match the driver", "cdi-spec-stale")
def _fresh(machine: Machine) -> Verdict:
    if not (devices := _nvidia_devices(_specs(machine))):
        return skipped("no spec of kind nvidia.com/gpu")
    loaded = machine.driver.version or machine.inventory.driver_version
    evidence: dict[str, None] = {}
    for device in devices:
        for path in device.host_paths:
            version = VERSIONED.search(path)
            problem = None
            if not machine.exists(path):
                problem = f"{path} does not exist"
            elif version and loaded and version.group(1) != loaded:
                problem = f"{path} does not belong to driver {loaded}"
            elif path in device.programs and not os.access(machine.here(path), os.X_OK):
                problem = f"{path}, a hook's program, is not executable"
            if problem is not None:
                evidence[f"{_shown(machine, device.spec)}: {problem}"] = None
    if evidence:
        return found("cdi-spec-stale", list(evidence), fix=_generate_command(machine))
    return ok("every path in the specs exists and belongs to the loaded driver")


@CDI.check("uvm", "Specs include /dev/nvidia-uvm", "cdi-uvm-missing-in-spec")
def _uvm(machine: Machine) -> Verdict:
    devices = _nvidia_devices(_specs(machine))
    if not devices or machine.wsl:
        return skipped("no spec of kind nvidia.com/gpu, or WSL")
    lacking = sorted({_shown(machine, d.spec) for d in devices if "/dev/nvidia-uvm" not in d.host_paths})
    if lacking:
        fix = f"sudo nvidia-modprobe -u -c=0 && {_generate_command(machine)}"
        return found("cdi-uvm-missing-in-spec", [f"{spec}: no /dev/nvidia-uvm" for spec in lacking], fix=fix)
    return ok("every device includes /dev/nvidia-uvm")


@CDI.check("shadowed", "No second spec shadows another", "cdi-spec-shadowed")
def _shadowed(machine: Machine) -> Verdict:
    """Find a kind in two folders: the later folder's devices win, name by name, and the others' linger."""
    several = []
    for folder in _folders(machine):
        specs = {device.spec for device in _nvidia_devices(_specs(machine, folder))}
        several += [_shown(machine, spec) for spec in sorted(specs)]
    real = {spec: machine.here(spec).resolve() for spec in several}  # /run and /var/run are one folder
    if len(set(real.values())) > 1:
        keep = several[-1]
        stale = [spec for spec in several if real[spec] != real[keep]]
        return found("cdi-spec-shadowed", several, fix=f"sudo rm {' '.join(stale)}   # {keep} wins")
    return ok("one spec of kind nvidia.com/gpu" if several else "no spec of kind nvidia.com/gpu")
