"""List commands that install the NVIDIA Container Toolkit on this distribution, and edit Docker's daemon.json.

Source: https://docs.nvidia.com/datacenter/cloud-native/container-toolkit/latest/install-guide.html, read in November
2026: one repository for every distribution of a package format, its key in a keyring of its own.
"""

from __future__ import annotations

import json
import shlex
from pathlib import PurePath
from typing import TYPE_CHECKING, Any

from seatrial.errors import EngineError
from seatrial.findings.finding import GENERATE_CDI

if TYPE_CHECKING:
    from seatrial.doctor.machine import Machine

REPOSITORY = "https://nvidia.github.io/libnvidia-container"
KEYRING = "/usr/share/keyrings/nvidia-container-toolkit-keyring.gpg"
LIST = "/etc/apt/sources.list.d/nvidia-container-toolkit.list"

DAEMON_JSON = "/etc/docker/daemon.json"
SNAP_DAEMON_JSON = "/var/snap/docker/current/config/daemon.json"


def toolkit_steps(machine: Machine) -> str:
    """Return this distribution's commands in one line. They need root and the network: doctor only prints them."""
    return " && ".join(_toolkit_steps(machine))


def _toolkit_steps(machine: Machine) -> tuple[str, ...]:
    restart = (
        "sudo snap restart docker"
        if machine.docker is not None and machine.docker.snap
        else "sudo systemctl restart docker"
    )
    config = " --config=/var/snap/docker/current/config/daemon.json" if "snap" in restart else ""
    configure: tuple[str, ...] = (f"sudo nvidia-ctk runtime configure --runtime=docker{config}", restart)
    if machine.docker is None:  # Podman takes CDI names
        configure = (GENERATE_CDI,)
    rpm = f"{REPOSITORY}/stable/rpm/nvidia-container-toolkit.repo"
    if machine.family in ("debian", "ubuntu"):
        return (*_leave_old(machine), *_apt(), *configure)
    if machine.family == "fedora":
        repo = f"curl -fsSL {rpm} | sudo tee /etc/yum.repos.d/nvidia-container-toolkit.repo"
        return (repo, "sudo dnf install -y nvidia-container-toolkit", *configure)
    if machine.family == "suse":
        install = "sudo zypper --gpg-auto-import-keys install -y nvidia-container-toolkit"
        return (f"sudo zypper ar {rpm}", install, *configure)
    if machine.family == "arch":
        return ("sudo pacman -S --needed nvidia-container-toolkit", *configure)
    return ("sudo seatrial doctor --write-cdi",)


def _apt() -> tuple[str, ...]:
    edit = f"s#deb https://#deb [signed-by={KEYRING}] https://#g"
    return (
        f"curl -fsSL {REPOSITORY}/gpgkey | sudo gpg --dearmor --yes -o {KEYRING}",
        f"curl -fsSL {REPOSITORY}/stable/deb/nvidia-container-toolkit.list | sed {shlex.quote(edit)} | sudo tee {LIST}",
        "sudo apt-get update",
        "sudo apt-get install -y nvidia-container-toolkit",
    )


def _leave_old(machine: Machine) -> tuple[str, ...]:
    """Return commands that remove nvidia-docker2 and apt-key's key: their list files conflict with the new one."""
    folder = "/etc/apt/sources.list.d"
    old = [
        name
        for name in machine.names(folder)
        if name.startswith(("nvidia-docker", "libnvidia-container", "nvidia-container-runtime"))
    ]
    commands: list[str] = []
    status = machine.read("/var/lib/dpkg/status") or ""
    if "\nPackage: nvidia-docker2\n" in f"\n{status}":
        commands.append("sudo apt-get purge -y nvidia-docker2")
    if old:
        commands.append("sudo rm -f " + " ".join(f"{folder}/{name}" for name in old))
    if any("nvidia" in name for name in machine.names("/etc/apt/trusted.gpg.d")):
        commands.append("sudo rm -f /etc/apt/trusted.gpg.d/*nvidia*")
    return tuple(commands)


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
    """Merge ``wanted`` into the file's text, table by table; every other key stays, in its place.

    Raises EngineError for a file that does not hold a JSON object.
    """
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
        space = line[: len(line) - len(line.lstrip())]
        if space:
            return space if "\t" in space else len(space)
    return 4
