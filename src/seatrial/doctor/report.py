"""The report as data: what ``--json`` prints (a stable schema) and ``--report`` writes, secrets redacted."""

from __future__ import annotations

import getpass
import platform
import re
import time
from collections.abc import Mapping, Sequence
from typing import Any

from seatrial import __version__
from seatrial.doctor.examine import Result
from seatrial.doctor.machine import Machine
from seatrial.errors import EngineUnavailableError

#: Raised when a key changes its meaning or goes; new keys do not raise it.
SCHEMA_VERSION = 1

EXIT_OK, EXIT_WARNINGS, EXIT_BROKEN = 0, 1, 2

#: Names of variables whose values are secrets, and of those whose values are of use in a report.
SECRET = re.compile(r"TOKEN|SECRET|PASSW|CREDENTIAL|AUTH|COOKIE|PRIVATE|(API|ACCESS|SSH).?KEY", re.IGNORECASE)
TELLING = re.compile(r"^(CUDA|NVIDIA|NCCL|DOCKER|CONTAINER|PODMAN|SEATRIAL|LD_LIBRARY_PATH|KUBECONFIG|XDG_|TORCH|TF_)")

#: What looks like a secret wherever it stands: user info of a URL, and well-known tokens.
SECRET_TEXT = re.compile(
    r"(?<=://)[^/\s:@]+:[^/\s@]+(?=@)|\b(?:hf_|ghp_|gho_|github_pat_|glpat-|sk-|xox[abp]-|AKIA)[A-Za-z0-9_-]{12,}"
)
REDACTED = "<redacted>"


def exit_code(results: Sequence[Result]) -> int:
    """0 ok, 1 warnings (or something that could not be seen), 2 broken."""
    statuses = {result.verdict.status for result in results}
    if "broken" in statuses:
        return EXIT_BROKEN
    return EXIT_WARNINGS if statuses & {"warning", "unknown"} else EXIT_OK


def to_dict(results: Sequence[Result]) -> dict[str, Any]:
    """What ``--json`` prints."""
    broken = next((result.check.id for result in results if result.verdict.status == "broken"), None)
    return {
        "schema_version": SCHEMA_VERSION,
        "seatrial": __version__,
        "created_at": time.strftime("%Y-%m-%dT%H:%M:%S%z"),
        "exit_code": exit_code(results),
        "first_broken": broken,
        "checks": [_check(result) for result in results],
    }


def _check(result: Result) -> dict[str, Any]:
    return {
        "id": result.check.id,
        "layer": result.check.layer,
        "title": result.check.title,
        "status": result.verdict.status,
        "line": result.verdict.line,
        "blocked_by": result.blocked_by,
        "seconds": round(result.seconds, 3),
        "findings": [finding.to_dict() for finding in result.verdict.findings],
    }


def full(results: Sequence[Result], machine: Machine) -> dict[str, Any]:
    """What ``--report`` writes: the results and the facts they rest on, without secrets and the user's name."""
    driver, inventory = machine.driver, machine.inventory
    facts = {
        "system": {
            "kernel": machine.kernel,
            "machine": platform.machine(),
            "python": platform.python_version(),
            "os_release": machine.os_release,
        },
        "bus": [gpu._asdict() for gpu in machine.gpus_on_bus],
        "driver": {
            "version": driver.version,
            "nodes": [node._asdict() for node in (*driver.control, *driver.gpus.values(), *driver.mig_caps)],
            "libraries": [library._asdict() for library in driver.libraries],
            "missing": list(driver.missing),
        },
        "nvml": {**inventory._asdict(), "gpus": [gpu._asdict() for gpu in inventory.gpus]},
        "health": [gpu._asdict() for gpu in machine.health],
        "docker": _info(machine.docker_info),
        "podman": _info(machine.podman_info),
        "environment": _environment(machine.environ),
    }
    redacted: dict[str, Any] = redact({**to_dict(results), "facts": facts}, _names(machine.environ))
    return redacted


def _info(info: dict[str, Any] | EngineUnavailableError | None) -> Any:
    return info.message if isinstance(info, EngineUnavailableError) else info


def _environment(environ: Mapping[str, str]) -> dict[str, str]:
    return {name: value for name, value in sorted(environ.items()) if TELLING.match(name)}


def _names(environ: Mapping[str, str]) -> list[str]:
    """Values to take out wherever they stand: those of secret variables, and the user's own name and home."""
    values = [value for name, value in environ.items() if SECRET.search(name) and len(value) >= 6]
    home = environ.get("HOME", "")
    try:
        user = getpass.getuser()
    except (KeyError, OSError):  # no entry for this uid, and no variable
        user = ""
    return sorted([*values, *([home] if len(home) > 1 and user != "root" else [])], key=len, reverse=True)


def redact(value: Any, names: Sequence[str]) -> Any:
    """The same structure without what is secret, in keys' values and in the middle of texts."""
    if isinstance(value, dict):
        return {
            key: REDACTED
            if isinstance(key, str) and SECRET.search(key) and isinstance(item, str)
            else redact(item, names)
            for key, item in value.items()
        }
    if isinstance(value, (list, tuple)):
        return [redact(item, names) for item in value]
    if isinstance(value, str):
        for name in names:
            value = value.replace(name, REDACTED)
        return SECRET_TEXT.sub(REDACTED, value)
    return value
