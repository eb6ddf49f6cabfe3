"""Docker's daemon.json: where it is, and merging keys into it without losing any other."""

from __future__ import annotations

import json
from pathlib import PurePath
from typing import Any

from seatrial.doctor.facts.machine import Machine
from seatrial.errors import EngineError

DEFAULT = "/etc/docker/daemon.json"
SNAP = "/var/snap/docker/current/config/daemon.json"


def daemon_json_path(machine: Machine) -> str:
    """The file that this machine's Docker reads; a rootless one has its own under the user's home."""
    docker = machine.docker
    if docker is not None and docker.snap:
        return SNAP
    if docker is not None and docker.rootless:
        home = machine.host.env.get("XDG_CONFIG_HOME") or f"{machine.host.env.get('HOME', '')}/.config"
        return str(PurePath(home) / "docker" / "daemon.json")
    return DEFAULT


def merged(text: str, wanted: dict[str, Any]) -> str:
    """The file with ``wanted`` merged in, table by table; every other key stays, in its place.

    Raises EngineError when the file is no JSON object: there is nothing to merge into.
    """
    try:
        settings = json.loads(text) if text.strip() else {}
    except ValueError as error:
        raise EngineError(f"daemon.json is not valid JSON: {error}", run=f"sudoedit {DEFAULT}") from error
    if not isinstance(settings, dict):
        raise EngineError("daemon.json is not a JSON object", run=f"sudoedit {DEFAULT}")
    return json.dumps(_merge(settings, wanted), indent=_indent(text)) + "\n"


def _merge(old: dict[str, Any], new: dict[str, Any]) -> dict[str, Any]:
    result = dict(old)
    for key, value in new.items():
        before = result.get(key)
        result[key] = _merge(before, value) if isinstance(before, dict) and isinstance(value, dict) else value
    return result


def _indent(text: str) -> int | str:
    """That of the file, so that the difference shows what has changed and nothing else."""
    for line in text.splitlines()[1:]:
        space = line[: len(line) - len(line.lstrip())]
        if space:
            return space if "\t" in space else len(space)
    return 4
