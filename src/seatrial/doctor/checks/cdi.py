"""Layer 6, CDI: specs that name this machine's GPUs, match its driver, and lie where the engine looks."""

from __future__ import annotations

import os
import re
from pathlib import Path

from seatrial.backends.containers.cdi import CdiDevice, CdiSpecs, read_specs
from seatrial.doctor.cdi_spec import KIND
from seatrial.doctor.check import Layer, Verdict, found, of_finding, ok, skipped, worst
from seatrial.doctor.checks.toolkit import CDI_BY_DEFAULT, engine_version
from seatrial.doctor.machine import Machine
from seatrial.findings.finding import GENERATE_CDI

CDI = Layer("cdi", "CDI")

#: Folders in the engines' order: a later one wins. Source: container-device-interface, pkg/cdi/spec-dirs.go.
FOLDERS = ("/etc/cdi", "/var/run/cdi")

#: A library's name that ends in the driver's version.
VERSIONED = re.compile(r"\.so\.(\d{3,}\.\d+(?:\.\d+)?)$")


def _generate_command(machine: Machine) -> str:
    """Return the command that writes a fresh spec here: NVIDIA's program if installed, else ours."""
    ctk = machine.ask("nvidia-ctk", "--version")
    return GENERATE_CDI if ctk else "sudo seatrial doctor --write-cdi"


def _folders(machine: Machine) -> tuple[str, ...]:
    """Return the folders where the engine reads specs: those that it reports, else the usual ones."""
    docker = machine.docker
    own = docker.cdi_spec_dirs if docker is not None and machine.engine is docker else ()
    return tuple(dict.fromkeys((*own, *FOLDERS)))


def _specs(machine: Machine, *folders: str) -> CdiSpecs:
    return read_specs([machine.here(folder) for folder in folders or _folders(machine)])


def _nvidia_devices(specs: CdiSpecs) -> list[CdiDevice]:
    return [device for device in specs.devices if device.name.startswith(f"{KIND}=")]


def _shown(machine: Machine, spec: Path) -> str:
    return str(spec).removeprefix(machine.root)


@CDI.check("readable", "Specs are readable and define each device once", "cdi-spec-unreadable cdi-device-conflict")
def _readable(machine: Machine) -> Verdict:
    problems = []
    for finding in _specs(machine).findings:
        if finding.id != "cdi-spec-stale":  # whose paths are looked for under our root, in _fresh
            if finding.id != "cdi-device-conflict":
                finding.fix = _generate_command(machine)
            problems.append(of_finding(finding))
    return worst(problems, "every spec is readable")


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
        return found(
            "cdi-unresolvable",
            ["docker info: no CDISpecDirs", f"{len(devices)} devices in specs"],
            severity="warning",
            cause="CDI is disabled: before Docker 28.2, daemon.json needs features.cdi = true",
            fix="sudo seatrial doctor --fix" if version is not None and version < CDI_BY_DEFAULT else None,
        )
    if not devices:
        if engine.takes_gpus_flag:
            return skipped("no CDI spec; Docker uses its hook for GPUs")
        return found(
            "cdi-unresolvable",
            [f"looked in {', '.join(_folders(machine))}"],
            severity="warning",
            message=f"{engine.name.capitalize()} has no CDI device",
            cause="No CDI spec of kind nvidia.com/gpu found; until one exists, seatrial run mounts device nodes",
            fix=_generate_command(machine),
        )
    names = {device.name.partition("=")[2] for device in devices}
    whole_or_slices = (gpu for gpu in machine.inventory.gpus if not gpu.mig_enabled)
    lacking = [gpu.uuid for gpu in whole_or_slices if not names & {gpu.uuid, gpu.mig or str(gpu.index)}]
    if lacking and "all" not in names:
        evidence, cause = [f"no device for {uuid}" for uuid in lacking], "The spec was written for other GPUs"
        return found("cdi-unresolvable", evidence, cause=cause, fix=_generate_command(machine))
    return ok(f"{len(devices)} devices: {', '.join(sorted(names))[:100]}")


@CDI.check("fresh", "Specs match the driver", "cdi-spec-stale")
def _fresh(machine: Machine) -> Verdict:
    devices = _nvidia_devices(_specs(machine))
    if not devices:
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
