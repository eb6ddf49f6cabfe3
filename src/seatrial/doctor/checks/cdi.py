"""Layer 6, CDI: specs that name this machine's GPUs, are as new as its driver, and lie where the engine looks."""

from __future__ import annotations

import os
import re
from pathlib import Path

from seatrial.backends.containers.cdi import CdiDevice, CdiSpecs, read_specs
from seatrial.doctor.check import Check, Verdict, found, of_finding, ok, skipped, worst
from seatrial.doctor.checks.toolkit import CDI_BY_DEFAULT, engine_version
from seatrial.doctor.facts.machine import Machine
from seatrial.findings.finding import GENERATE_CDI

KIND = "nvidia.com/gpu"

#: In the engines' order: a later folder wins. Source: container-device-interface, pkg/cdi/spec-dirs.go.
FOLDERS = ("/etc/cdi", "/var/run/cdi")

#: A library's name with the driver's version behind it.
VERSIONED = re.compile(r"\.so\.(\d{3,}\.\d+(?:\.\d+)?)$")


def generate_command(machine: Machine) -> str:
    """What writes a fresh spec here: NVIDIA's program where it is installed, else ours."""
    ctk = machine.ask("nvidia-ctk", "--version")
    return GENERATE_CDI if ctk else "sudo seatrial doctor --write-cdi"


def folders(machine: Machine) -> tuple[str, ...]:
    """Where the engine looked at reads specs: what it says, else the usual ones."""
    told = machine.docker.cdi_spec_dirs if machine.docker is not None and machine.engine is machine.docker else ()
    return tuple(dict.fromkeys((*told, *FOLDERS)))


def specs(machine: Machine) -> CdiSpecs:
    return read_specs([machine.here(folder) for folder in folders(machine)])


def nvidia_devices(machine: Machine) -> list[CdiDevice]:
    return [device for device in specs(machine).devices if device.name.startswith(f"{KIND}=")]


def _seen(machine: Machine, spec: Path) -> str:
    return str(spec).removeprefix(machine.root)


def _readable(machine: Machine) -> Verdict:
    fix = generate_command(machine)
    told = []
    for finding in specs(machine).findings:
        if finding.id != "cdi-spec-stale":  # whose paths are looked for under our root, in _fresh
            finding.fix = finding.fix if finding.id == "cdi-device-conflict" else fix
            told.append(of_finding(finding))
    return worst(told, "every spec is readable")


def _names(machine: Machine) -> Verdict:
    engine = machine.engine
    devices = nvidia_devices(machine)
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
        fix = "sudo seatrial doctor --fix" if version is not None and version < CDI_BY_DEFAULT else None
        cause = "CDI is disabled: before Docker 28.2, daemon.json needs features.cdi = true"
        evidence = ["docker info: no CDISpecDirs", f"{len(devices)} devices in specs"]
        return found("cdi-unresolvable", evidence, severity="warning", cause=cause, fix=fix)
    if not devices:
        if engine.takes_gpus_flag:
            return skipped("no CDI spec; Docker uses its hook for GPUs")
        cause = "There is no spec of kind nvidia.com/gpu; until then, seatrial run mounts device nodes"
        fix = generate_command(machine)
        return found(
            "cdi-unresolvable",
            [f"looked in {', '.join(folders(machine))}"],
            severity="warning",
            message=f"{engine.name.capitalize()} has no CDI device",
            cause=cause,
            fix=fix,
        )
    names = {device.name.partition("=")[2] for device in devices}
    lacking = [
        gpu.uuid
        for gpu in machine.inventory.gpus
        if not gpu.mig_enabled and not names & {gpu.uuid, gpu.mig or str(gpu.index)}
    ]
    if lacking and "all" not in names:
        evidence = [f"no device for {uuid}" for uuid in lacking]
        return found(
            "cdi-unresolvable", evidence, cause="The spec was written for other GPUs", fix=generate_command(machine)
        )
    return ok(f"{len(devices)} devices: {', '.join(sorted(names))[:100]}")


def _fresh(machine: Machine) -> Verdict:
    devices = nvidia_devices(machine)
    if not devices:
        return skipped("no spec of kind nvidia.com/gpu")
    loaded = machine.driver.version or machine.inventory.driver_version
    evidence: dict[str, None] = {}
    for device in devices:
        for path in device.host_paths:
            version = VERSIONED.search(path)
            if not machine.exists(path):
                evidence[f"{_seen(machine, device.spec)}: {path} does not exist"] = None
            elif version and loaded and version.group(1) != loaded:
                evidence[f"{_seen(machine, device.spec)}: {path} does not belong to driver {loaded}"] = None
            elif path in device.programs and not os.access(machine.here(path), os.X_OK):
                evidence[f"{_seen(machine, device.spec)}: {path}, a hook's program, is not executable"] = None
    if evidence:
        return found("cdi-spec-stale", list(evidence), fix=generate_command(machine))
    return ok("every path in the specs exists and belongs to the loaded driver")


def _uvm(machine: Machine) -> Verdict:
    devices = nvidia_devices(machine)
    if not devices or machine.wsl:
        return skipped("no spec of kind nvidia.com/gpu, or WSL")
    lacking = sorted({_seen(machine, d.spec) for d in devices if "/dev/nvidia-uvm" not in d.host_paths})
    if lacking:
        fix = f"sudo nvidia-modprobe -u -c=0 && {generate_command(machine)}"
        return found("cdi-uvm-missing-in-spec", [f"{spec}: no /dev/nvidia-uvm" for spec in lacking], fix=fix)
    return ok("every device includes /dev/nvidia-uvm")


def _shadowed(machine: Machine) -> Verdict:
    """One kind in two folders: the later folder's devices win, name by name, and the others' linger."""
    by_folder: dict[str, set[Path]] = {}
    for folder in folders(machine):
        alone = read_specs([machine.here(folder)])
        by_folder[folder] = {device.spec for device in alone.devices if device.name.startswith(f"{KIND}=")}
    several = [str(spec).removeprefix(machine.root) for specs in by_folder.values() for spec in sorted(specs)]
    if len(several) > 1:
        # The links /run and /var/run are one folder.
        real = {machine.here(spec).resolve() for spec in several}
        if len(real) > 1:
            keep = several[-1]
            stale = [spec for spec in several if machine.here(spec).resolve() != machine.here(keep).resolve()]
            return found("cdi-spec-shadowed", several, fix=f"sudo rm {' '.join(stale)}   # {keep} wins")
    return ok("one spec of kind nvidia.com/gpu" if several else "no spec of kind nvidia.com/gpu")


CDI = (
    Check(
        "cdi.readable",
        "Specs are readable and define each device once",
        ("cdi-spec-unreadable", "cdi-device-conflict"),
        _readable,
    ),
    Check(
        "cdi.names",
        "The engine resolves every GPU's CDI name",
        ("cdi-unresolvable",),
        _names,
        needs=("hardware.present",),
    ),
    Check("cdi.fresh", "Specs match the driver", ("cdi-spec-stale",), _fresh),
    Check("cdi.uvm", "Specs include /dev/nvidia-uvm", ("cdi-uvm-missing-in-spec",), _uvm),
    Check("cdi.shadowed", "No second spec shadows another", ("cdi-spec-shadowed",), _shadowed),
)
