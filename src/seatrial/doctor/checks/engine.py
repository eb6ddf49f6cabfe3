"""Layer 4, the engine: Docker or Podman answers and can reach the GPU; its daemon.json; installing the toolkit."""

from __future__ import annotations

import json
from pathlib import PurePath
from typing import Any

from seatrial.backends.containers.docker_and_podman import SYSTEM_PATH
from seatrial.doctor.check import Layer, Verdict, found, of_finding, ok, skipped, unknown
from seatrial.doctor.machine import Machine
from seatrial.errors import EngineError, EngineUnavailableError
from seatrial.findings.finding import GENERATE_CDI
from seatrial.findings.match import first_in

ENGINE = Layer("engine", "Container engine")
#: Program → its key in ``docker info``. Source: docs.docker.com/reference/api/engine, SystemInfo.
PARTS = {"containerd": "ContainerdCommit", "runc": "RuncCommit"}

DAEMON_JSON = "/etc/docker/daemon.json"
SNAP_DAEMON_JSON = "/var/snap/docker/current/config/daemon.json"

#: Beginnings of the names of list files that the toolkit's earlier packages left.
_OLD = ("nvidia-docker", "libnvidia-container", "nvidia-container-runtime")


@ENGINE.check(
    "docker",
    "Docker responds",
    "engine-down engine-missing engine-permission docker-context-missing docker-is-podman docker-client-too-new",
)
def _docker(machine: Machine) -> Verdict:
    return _responds(machine, "docker", "podman")


@ENGINE.check("parts", "containerd and runc are installed", "engine-part-missing", needs="engine.docker")
def _parts(machine: Machine) -> Verdict:
    """Check Docker's containerd and runc; Docker answers without them, and reports ``N/A`` then.

    A build without a version, such as Debian's containerd, reports an empty one.
    Source: moby daemon/info_unix.go, populateRuncCommit; measured with Docker 28.5.2+dfsg4.
    """
    info = machine.docker_info
    if not isinstance(info, dict) or not machine.asks_for("docker"):
        return skipped("Docker does not respond")
    parts = {name: str((info.get(key) or {}).get("ID") or "") for name, key in PARTS.items()}
    if absent := [name for name, version in parts.items() if version == "N/A"]:
        return found("engine-part-missing", [f"docker info: {PARTS[name]} is N/A" for name in absent])
    return ok(", ".join(f"{name} {version[:20]}".rstrip() for name, version in parts.items()))


@ENGINE.check("buildx", "Docker's client can use its folder", "docker-folder-foreign", needs="engine.docker")
def _buildx(machine: Machine) -> Verdict:
    listed = machine.ask(*machine.host.client_call("docker"), "buildx", "ls") if machine.asks_for("docker") else None
    if listed is None:
        return skipped("Docker does not respond")
    if (match := first_in(listed.stderr, ("start",))) and match.known.id == "docker-folder-foreign":
        return of_finding(match.known.finding([listed.last_line()], values=match.values))
    return ok("Docker's client can use its folder")


@ENGINE.check("podman", "Podman responds", "engine-down engine-missing engine-permission rootless-no-subids")
def _podman(machine: Machine) -> Verdict:
    return _responds(machine, "podman", "docker", "sudo apt install podman   # or dnf, zypper")


def _responds(machine: Machine, name: str, other: str, install: str | None = None) -> Verdict:
    """Check that an engine answers; only warn if ``--on`` is auto and the other engine works."""
    if not machine.asks_for(name):
        return skipped(f"--on {machine.on} was given")
    title, info = name.capitalize(), machine.docker_info if name == "docker" else machine.podman_info
    if info is None:
        if machine.on == "auto":
            return skipped(f"{title} is not installed")
        return found("engine-missing", [f"{name}: not on PATH"], message=f"{title} is not installed", fix=install)
    facts = machine.facts(name)
    if facts is not None and facts.available:
        return ok(facts.reason)
    instead = machine.facts(other) if machine.on == "auto" else None
    severity = "warning" if instead is not None and instead.available else "error"
    if isinstance(info, EngineUnavailableError):
        words = {"message": info.message, "cause": info.cause, "fix": info.run}
        return found(info.finding, [info.message], **words, severity=severity)
    assert facts is not None
    return found("rootless-no-subids", [facts.reason], severity=severity, fix=facts.fix)


@ENGINE.check("any", "A container engine works", "engine-missing")
def _any(machine: Machine) -> Verdict:
    if machine.inspection.is_process:
        return skipped("running without an engine was requested")
    if machine.engine is not None:
        return ok(f"containers go to {machine.engine.reason.removesuffix(' responds')}")
    for info in (machine.docker_info, machine.podman_info):
        if isinstance(info, EngineUnavailableError):  # installed: its own line above has the reason
            return found("engine-missing", [info.message], cause=info.cause, fix=info.run)
    return found("engine-missing", ["neither docker nor podman is on PATH and usable by this user"])


@ENGINE.check("desktop", "Docker runs on the host, not in a virtual machine", "docker-desktop-context")
def _desktop(machine: Machine) -> Verdict:
    if machine.docker is None or not machine.docker.desktop:
        return skipped("not Docker Desktop")
    if machine.wsl:
        return ok("Docker Desktop on Windows, which has the GPU through WSL 2")
    return found("docker-desktop-context", ["docker info: OperatingSystem is Docker Desktop"])


@ENGINE.check("snap", "A snap's Docker reads its configuration", "docker-snap")
def _snap(machine: Machine) -> Verdict:
    if machine.docker is None or not machine.docker.snap:
        return skipped("Docker is not from a snap")
    if "nvidia" in machine.docker.runtimes:
        return ok("Docker is from a snap and has the nvidia runtime")
    return found("docker-snap", [f"docker is {machine.docker_client}"])


@ENGINE.check("runtimes", "Registered runtimes exist", "runtime-unknown")
def _runtime_programs(machine: Machine) -> Verdict:
    """Find a runtime whose program is gone: it fails at the start of a container, with an error about a file."""
    info = machine.docker_info
    if not isinstance(info, dict):
        return skipped("Docker does not respond")
    if not (program := str(((info.get("Runtimes") or {}).get("nvidia") or {}).get("path") or "")):
        return ok("no nvidia runtime is registered")
    folders = [""] if program.startswith("/") else [f"{folder}/" for folder in SYSTEM_PATH.split(":")]
    if any(machine.exists(f"{folder}{program}") for folder in folders):
        return ok(f"the nvidia runtime's program exists: {program}")
    processes = (name for name in machine.names("/proc") if name.isdigit())
    daemons = [pid for pid in processes if (machine.read(f"/proc/{pid}/comm") or "").strip() == "dockerd"]
    for pid in daemons:  # the one that answers is among them; its PATH and root are not this process's
        own = folders if program.startswith("/") else _path_of(machine, pid)
        folders += [folder for folder in own if folder not in folders]
        roots = ["", f"/proc/{pid}/root" if machine.names(f"/proc/{pid}/root") else ""]
        if any(machine.exists(f"{root}{folder}{program}") for root in roots for folder in own):
            return ok(f"the nvidia runtime's program exists on the PATH of dockerd: {program}")
    if not daemons or machine.unseen:
        seen = "its PATH cannot be read" if daemons else "no dockerd runs here"
        return unknown(f"{seen}: whether Docker finds {program} is unknown")
    looked = (f"looked in {folder}" for folder in folders if folder)
    message = "The nvidia runtime is registered, but its program is missing"
    return found("runtime-unknown", [f"runtime nvidia: {program} does not exist", *looked], message=message)


def _path_of(machine: Machine, pid: str) -> list[str]:
    """Return the folders in which a process looks for programs."""
    variables = (machine.read(f"/proc/{pid}/environ") or "").split("\0")
    path = next((word[5:] for word in variables if word.startswith("PATH=")), "")
    return [f"{folder}/" for folder in path.split(":") if folder]


def toolkit_steps(machine: Machine) -> str:
    """Return this distribution's commands in one line. They need root and the network: doctor only prints them."""
    if not (install := machine.install("toolkit")):
        return "sudo seatrial doctor --write-cdi"
    commands = [*(_leave_old(machine) if machine.family in ("debian", "ubuntu") else ()), install]
    if machine.docker is None:
        return " && ".join([*commands, GENERATE_CDI])  # Podman's CDI names
    config = f" --config={SNAP_DAEMON_JSON}" if machine.docker.snap else ""
    restart = f"sudo {'snap' if machine.docker.snap else 'systemctl'} restart docker"
    return " && ".join([*commands, f"sudo nvidia-ctk runtime configure --runtime=docker{config}", restart])


def _leave_old(machine: Machine) -> list[str]:
    """Return commands that remove nvidia-docker2 and apt-key's key: their list files conflict with the new one."""
    folder, status = "/etc/apt/sources.list.d", machine.read("/var/lib/dpkg/status") or ""
    old = [f"{folder}/{name}" for name in machine.names(folder) if name.startswith(_OLD)]
    commands = ["sudo apt-get purge -y nvidia-docker2"] if "\nPackage: nvidia-docker2\n" in f"\n{status}" else []
    commands += [f"sudo rm -f {' '.join(old)}"] if old else []
    if any("nvidia" in name for name in machine.names("/etc/apt/trusted.gpg.d")):
        commands.append("sudo rm -f /etc/apt/trusted.gpg.d/*nvidia*")
    return commands


def daemon_json_path(machine: Machine) -> str:
    """Return the daemon.json of this machine's Docker; a rootless one has its own under the user's home."""
    docker = machine.docker
    if docker is not None and docker.snap:
        return SNAP_DAEMON_JSON
    if docker is not None and docker.rootless:
        home = machine.host.env.get("XDG_CONFIG_HOME") or f"{machine.host.env.get('HOME', '')}/.config"
        return str(PurePath(home) / "docker" / "daemon.json")
    return DAEMON_JSON


def merged(text: str, wanted: dict[str, Any]) -> str:
    """Merge ``wanted`` into the file's text, table by table; other keys stay. Raises EngineError: no JSON object."""
    try:
        settings = json.loads(text) if text.strip() else {}
    except ValueError as error:
        raise EngineError(f"daemon.json is not valid JSON: {error}", run=f"sudoedit {DAEMON_JSON}") from error
    if not isinstance(settings, dict):
        raise EngineError("daemon.json is not a JSON object", run=f"sudoedit {DAEMON_JSON}")
    return json.dumps(_merge(settings, wanted), indent=_indent(text)) + "\n"


def _merge(old: dict[str, Any], new: dict[str, Any]) -> dict[str, Any]:
    result = dict(old)
    for key, value in new.items():
        before = result.get(key)
        result[key] = _merge(before, value) if isinstance(before, dict) and isinstance(value, dict) else value
    return result


def _indent(text: str) -> int | str:
    """Return the file's indentation, so that the difference shows the change alone."""
    for line in text.splitlines()[1:]:
        if space := line[: len(line) - len(line.lstrip())]:
            return space if "\t" in space else len(space)
    return 4
