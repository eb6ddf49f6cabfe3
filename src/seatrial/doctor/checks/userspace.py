"""Layer 3, the user-space driver: its libraries, of the loaded version; its nodes; and CUDA started on the host."""

from __future__ import annotations

import json
from pathlib import Path, PurePath

import seatrial
from seatrial.doctor.check import Check, Verdict, found, ok, skipped, unknown, worst
from seatrial.doctor.facts.machine import Machine
from seatrial.findings.catalogue import by_id
from seatrial.findings.finding import CREATE_NODES
from seatrial.findings.gpu_missing import CU_INIT_CAUSES
from seatrial.probe.driver_files import REQUIRED_LIBRARIES, WSL_FOLDER

#: The first cuInit after a start of the machine takes seconds; on a machine that is warm 0.2 s (H200, driver 580).
CU_INIT_S = 5.0


def _libraries(machine: Machine) -> Verdict:
    driver = machine.driver
    have = {PurePath(library.path).name.split(".so")[0] for library in driver.libraries}
    absent = [name for name in REQUIRED_LIBRARIES if name not in have]
    told = [line for line in driver.missing if line.startswith("lib")]
    if not absent:
        folders = sorted({str(PurePath(library.path).parent) for library in driver.libraries})
        return ok(f"libcuda and libnvidia-ml in {', '.join(folders)}")
    if any("only" in line for line in told):
        return ok("libraries have another version; see userspace.versions")
    if machine.wsl:
        return found("wsl-libcuda", told)
    branch = (driver.version or machine.inventory.driver_version or "580").split(".")[0]
    return found("nvml-library-missing", told, fix=_install_libraries(machine, branch))


def _install_libraries(machine: Machine, branch: str) -> str:
    family = f"{machine.os_release.get('ID', '')} {machine.os_release.get('ID_LIKE', '')}"
    if any(word in family for word in ("fedora", "rhel", "centos")):
        return "sudo dnf install nvidia-driver-cuda nvidia-driver-cuda-libs && sudo ldconfig"
    if "suse" in family:
        return "sudo zypper install nvidia-compute-G06 nvidia-compute-utils-G06 && sudo ldconfig"
    if "ubuntu" in family:
        return f"sudo apt install libnvidia-compute-{branch} nvidia-utils-{branch} && sudo ldconfig"
    return "sudo apt install libcuda1 libnvidia-ml1 nvidia-smi && sudo ldconfig"


def _versions(machine: Machine) -> Verdict:
    driver = machine.driver
    wrong = [line for line in driver.missing if line.startswith("lib") and "only" in line]
    said = machine.inventory.error or ""
    if wrong or "different versions" in said:
        evidence = [f"loaded module: {driver.version}", *wrong, *([f"NVML: {said}"] if said else [])]
        return found("driver-library-mismatch", evidence)
    if driver.version is None:
        return skipped("no NVIDIA kernel module is visible here to compare with")
    return ok(f"the libraries are {driver.version}, like the module")


def _wsl(machine: Machine) -> Verdict:
    if not machine.wsl:
        return skipped("not WSL")
    evidence = []
    library = f"{WSL_FOLDER}/libcuda.so.1"
    if not machine.exists(library):
        evidence.append(f"{library}: missing")
    inside = [name for name in machine.names("/usr/lib/x86_64-linux-gnu") if name.startswith("libcuda.so.")]
    if inside:
        evidence.append(f"/usr/lib/x86_64-linux-gnu/{inside[0]}: a Linux driver inside WSL hides the Windows one")
    return found("wsl-libcuda", evidence) if evidence else ok("the libcuda found is the Windows one")


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
    absent = sorted(minors - set(driver.gpus))
    if absent:
        names = ", ".join(f"/dev/nvidia{minor}" for minor in absent)
        return found("device-node-missing", evidence, message=f"{names} is not there", fix=CREATE_NODES)
    return ok(f"{len(there)} device nodes, /dev/nvidia-uvm among them")


def _access(machine: Machine) -> Verdict:
    driver = machine.driver
    nodes = (*driver.control, *driver.gpus.values())
    closed = [node for node in nodes if not node.accessible]
    enforcing = (machine.read("/sys/fs/selinux/enforce") or "0").strip() == "1"
    if closed:
        names = ", ".join(node.path for node in closed)
        fix = f"sudo chmod a+rw {' '.join(node.path for node in closed)}"
        return found("device-permission", [f"this user cannot open {names}"], fix=fix)
    if enforcing:
        allowed = machine.ask("getsebool", "container_use_devices")
        if allowed is None or allowed.exit_code != 0:
            return unknown("SELinux is enforcing, and getsebool does not report whether containers may use devices")
        if "--> on" not in allowed.stdout:
            return found(
                "device-permission",
                ["SELinux is enforcing", allowed.stdout.strip()],
                message="SELinux blocks containers from the GPU's device nodes",
                severity="warning",  # seatrial's own containers run with label=disable
            )
    grouped = [node.path for node in nodes if not node.world]
    if grouped:
        return ok(f"this user can open the nodes; others only through group: {', '.join(grouped)}")
    return ok("everyone can open the device nodes")


def _cuda(machine: Machine) -> Verdict:
    """cuInit in a child, with the caller's environment: CUDA on the host itself, before any container."""
    package = str(Path(seatrial.__file__).resolve().parents[1])
    program = (
        f"import sys, json; sys.path.insert(0, {package!r}); from seatrial.probe import cuda\n"
        "status, said, count = 0, None, 0\n"
        "try:\n"
        "    driver = cuda.Driver(); driver.call('cuInit', 0); count = driver.number('cuDeviceGetCount')\n"
        "except cuda.CudaError as error:\n"
        "    status, said = error.status, str(error)\n"
        "print(json.dumps([status, said, count]))\n"
    )
    ended = machine.command([machine.python, "-I", "-c", program], timeout_s=CU_INIT_S)
    if ended.exit_code != 0:
        return unknown(f"cuInit could not be run: {ended.last_line()}")
    status, said, count = json.loads(ended.stdout)
    if status is None:
        return found(
            "libcuda-missing", [said], message="libcuda.so.1 cannot be loaded on this host", fix="sudo ldconfig"
        )
    hidden = machine.host.env.get("CUDA_VISIBLE_DEVICES")
    if status in (0, 100) and count == 0 and hidden is not None:
        return found("cuda-visible-devices", [f"CUDA_VISIBLE_DEVICES={hidden!r} in this shell", said or "0 devices"])
    if status == 100 and any(gpu.mig_current for gpu in machine.health):
        return found("mig-no-instances", [said])
    if status != 0:
        return found(CU_INIT_CAUSES.get(status, "gpus-unusable"), [said])
    return ok(f"CUDA starts on the host and sees {count} device{'s' * (count != 1)}")


def _held_back(machine: Machine) -> Verdict:
    """A driver that is upgraded unattended breaks NVML until the next restart."""
    if machine.os_release.get("ID") not in ("ubuntu", "debian") or machine.driver.version is None:
        return skipped("no apt unattended upgrades here")
    told = "".join(machine.read(f"/etc/apt/apt.conf.d/{name}") or "" for name in machine.names("/etc/apt/apt.conf.d"))
    lines = [line for line in told.splitlines() if not line.lstrip().startswith(("//", "#"))]
    on = any('Unattended-Upgrade "1"' in line for line in lines)
    blocked = any("nvidia" in line for line in lines)
    if on and not blocked:
        return found(
            "driver-upgraded-unattended", ['APT::Periodic::Unattended-Upgrade "1"', "no Package-Blacklist names nvidia"]
        )
    return worst([], "no unattended upgrade touches the driver")


USERSPACE = (
    Check(
        "userspace.libraries",
        "libcuda and libnvidia-ml are on the host",
        ("nvml-library-missing", "wsl-libcuda"),
        _libraries,
        needs=("driver.loaded",),
    ),
    Check(
        "userspace.versions",
        "Libraries and kernel module have the same version",
        ("driver-library-mismatch",),
        _versions,
        needs=("driver.loaded",),
    ),
    Check("userspace.wsl", "WSL finds Windows's libcuda", ("wsl-libcuda",), _wsl),
    Check(
        "userspace.nodes",
        "The device nodes exist",
        ("uvm-node-missing", "device-nodes-missing", "device-node-missing"),
        _nodes,
        needs=("driver.loaded",),
    ),
    Check(
        "userspace.access",
        "The device nodes can be opened",
        ("device-permission",),
        _access,
        needs=("userspace.nodes",),
    ),
    Check(
        "userspace.cuda",
        "CUDA starts on the host",
        (
            "cuda-visible-devices",
            "mig-no-instances",
            "gpus-unusable",
            *sorted(set(CU_INIT_CAUSES.values())),
        ),
        _cuda,
        needs=("userspace.libraries", "userspace.versions", "userspace.nodes", "userspace.access"),
    ),
    Check(
        "userspace.upgrades",
        "No unattended upgrade replaces the driver during a run",
        ("driver-upgraded-unattended",),
        _held_back,
    ),
)
