"""Layer 3, the user-space driver: its libraries, of the loaded version; its nodes; and CUDA started on the host."""

from __future__ import annotations

import json
import sys
from pathlib import Path, PurePath

import seatrial
from seatrial.doctor.check import Layer, Verdict, found, ok, skipped, unknown
from seatrial.doctor.machine import Machine
from seatrial.findings.catalogue import by_id
from seatrial.findings.finding import CREATE_NODES
from seatrial.findings.gpu_missing import CU_INIT_CAUSES
from seatrial.probe.driver_files import REQUIRED_LIBRARIES, WSL_FOLDER

USERSPACE = Layer("userspace", "User-space driver", needs="driver.loaded")
#: The first cuInit after a start of the machine takes seconds; on a machine that is warm 0.2 s (H200, driver 580).
CU_INIT_S = 5.0

#: Prints cuInit's status, its message, and the count of devices.
_CU_INIT = Path(__file__).with_name("cu_init.py.txt").read_text("utf-8")


@USERSPACE.check("libraries", "libcuda and libnvidia-ml are on the host", "nvml-library-missing wsl-libcuda")
def _libraries(machine: Machine) -> Verdict:
    driver = machine.driver
    have = {PurePath(library.path).name.split(".so")[0] for library in driver.libraries}
    missing = [line for line in driver.missing if line.startswith("lib")]
    if all(name in have for name in REQUIRED_LIBRARIES):
        folders = sorted({str(PurePath(library.path).parent) for library in driver.libraries})
        return ok(f"libcuda and libnvidia-ml in {', '.join(folders)}")
    if any("only" in line for line in missing):
        return ok("libraries have another version; see userspace.versions")
    if machine.wsl:
        return found("wsl-libcuda", missing)
    branch = (driver.version or machine.inventory.driver_version or "580").split(".")[0]
    return found("nvml-library-missing", missing, fix=machine.install("libraries", branch=branch))


@USERSPACE.check("versions", "Libraries and kernel module have the same version", "driver-library-mismatch")
def _versions(machine: Machine) -> Verdict:
    driver, error = machine.driver, machine.inventory.error or ""
    wrong = [line for line in driver.missing if line.startswith("lib") and "only" in line]
    if wrong or "different versions" in error:
        evidence = [f"loaded module: {driver.version}", *wrong, *([f"NVML: {error}"] if error else [])]
        return found("driver-library-mismatch", evidence)
    if driver.version is None:
        return skipped("no NVIDIA kernel module is visible here to compare with")
    return ok(f"the libraries are {driver.version}, like the module")


@USERSPACE.check("wsl", "WSL finds Windows's libcuda", "wsl-libcuda", needs="")
def _wsl(machine: Machine) -> Verdict:
    if not machine.wsl:
        return skipped("not WSL")
    library, folder = f"{WSL_FOLDER}/libcuda.so.1", "/usr/lib/x86_64-linux-gnu"
    evidence = [] if machine.exists(library) else [f"{library}: missing"]
    if inside := [name for name in machine.names(folder) if name.startswith("libcuda.so.")]:
        evidence.append(f"{folder}/{inside[0]}: a Linux driver inside WSL hides the Windows one")
    return found("wsl-libcuda", evidence) if evidence else ok("the libcuda found is the Windows one")


@USERSPACE.check("nodes", "The device nodes exist", "uvm-node-missing device-nodes-missing device-node-missing")
def _nodes(machine: Machine) -> Verdict:
    if machine.wsl:
        return ok("/dev/dxg is there")
    driver = machine.driver
    missing = [line.split(":")[0] for line in driver.missing if line.startswith("/dev/")]
    there = [node.path for node in (*driver.control, *driver.gpus.values())]
    evidence = [f"missing: {', '.join(missing)}", f"there: {', '.join(there) or 'none'}"]
    if missing == ["/dev/nvidia-uvm"]:
        loaded = "nvidia_uvm" in (machine.read("/proc/modules") or "")
        evidence.append(f"/proc/modules: nvidia_uvm is {'loaded' if loaded else 'not loaded'}")
        return found("uvm-node-missing", evidence)
    if missing:
        fix = by_id("gpu-node-missing-on-host").fix
        return found("device-nodes-missing", evidence, message=f"{', '.join(missing)} missing on this host", fix=fix)
    minors = {gpu.minor for gpu in machine.inventory.gpus if gpu.minor is not None}
    if absent := ", ".join(f"/dev/nvidia{minor}" for minor in sorted(minors - set(driver.gpus))):
        return found("device-node-missing", evidence, message=f"{absent} is not there", fix=CREATE_NODES)
    return ok(f"{len(there)} device nodes, /dev/nvidia-uvm among them")


@USERSPACE.check("access", "The device nodes can be opened", "device-permission", needs="userspace.nodes")
def _access(machine: Machine) -> Verdict:
    nodes = (*machine.driver.control, *machine.driver.gpus.values())
    if closed := [node.path for node in nodes if not node.accessible]:
        evidence, fix = [f"this user cannot open {', '.join(closed)}"], f"sudo chmod a+rw {' '.join(closed)}"
        return found("device-permission", evidence, fix=fix)
    if (machine.read("/sys/fs/selinux/enforce") or "0").strip() == "1":
        allowed = machine.ask("getsebool", "container_use_devices")
        if allowed is None or allowed.exit_code != 0:
            return unknown("SELinux is enforcing, and getsebool does not report whether containers may use devices")
        if "--> on" not in allowed.stdout:
            evidence = ["SELinux is enforcing", allowed.stdout.strip()]
            message = "SELinux blocks containers from the GPU's device nodes"  # seatrial's run with label=disable
            return found("device-permission", evidence, message=message, severity="warning")
    if grouped := ", ".join(node.path for node in nodes if not node.world):
        return ok(f"this user can open the nodes; others only through group: {grouped}")
    return ok("everyone can open the device nodes")


@USERSPACE.check(
    "cuda",
    "CUDA starts on the host",
    f"cuda-visible-devices mig-no-instances gpus-unusable {' '.join(sorted(set(CU_INIT_CAUSES.values())))}",
    needs="userspace.libraries userspace.versions userspace.nodes userspace.access",
)
def _cuda(machine: Machine) -> Verdict:
    """Call cuInit in a child with the caller's environment: CUDA on the host itself, before any container."""
    program = _CU_INIT.format(package=str(Path(seatrial.__file__).resolve().parents[1]))
    ended = machine.command([sys.executable, "-I", "-c", program], timeout_s=CU_INIT_S)
    if ended.exit_code != 0:
        return unknown(f"cuInit could not be run: {ended.last_line()}")
    status, error, count = json.loads(ended.stdout)
    if status is None:
        message = "libcuda.so.1 cannot be loaded on this host"
        return found("libcuda-missing", [error], message=message, fix="sudo ldconfig")
    hidden = machine.host.env.get("CUDA_VISIBLE_DEVICES")
    if status in (0, 100) and count == 0 and hidden is not None:
        return found("cuda-visible-devices", [f"CUDA_VISIBLE_DEVICES={hidden!r} in this shell", error or "0 devices"])
    if status == 100 and any(gpu.mig_current for gpu in machine.health):
        return found("mig-no-instances", [error])
    if status != 0:
        return found(CU_INIT_CAUSES.get(status, "gpus-unusable"), [error])
    return ok(f"CUDA starts on the host and sees {count} device{'s' * (count != 1)}")


@USERSPACE.check(
    "upgrades", "No unattended upgrade replaces the driver during a run", "driver-upgraded-unattended", needs=""
)
def _held_back(machine: Machine) -> Verdict:
    """Find unattended upgrades of the driver, which break NVML until the next restart."""
    if machine.os_release.get("ID") not in ("ubuntu", "debian") or machine.driver.version is None:
        return skipped("no apt unattended upgrades here")
    folder = "/etc/apt/apt.conf.d"
    text = "".join(machine.read(f"{folder}/{name}") or "" for name in machine.names(folder))
    lines = [line for line in text.splitlines() if not line.lstrip().startswith(("//", "#"))]
    on = any('Unattended-Upgrade "1"' in line for line in lines)
    if on and not any("nvidia" in line for line in lines):
        evidence = ['APT::Periodic::Unattended-Upgrade "1"', "no Package-Blacklist names nvidia"]
        return found("driver-upgraded-unattended", evidence)
    return ok("no unattended upgrade touches the driver")
