"""The report as data: what ``--json`` prints (a stable schema) and ``--report`` writes, secrets redacted."""

from __future__ import annotations

import platform
import re
import time
from collections.abc import Sequence
from typing import Any
from urllib.parse import urlsplit

from seatrial import __version__
from seatrial.doctor.examine import Result
from seatrial.doctor.facts.machine import Machine
from seatrial.errors import EngineUnavailableError
from seatrial.system.host import Host
from seatrial.system.names import Names, names_of

#: Raised when a key changes its meaning or goes; new keys do not raise it.
SCHEMA_VERSION = 1

EXIT_OK, EXIT_WARNINGS, EXIT_BROKEN = 0, 1, 2

#: Names of variables whose values are of use in a report.
TELLING = re.compile(r"^(CUDA|NVIDIA|NCCL|DOCKER|CONTAINER|PODMAN|SEATRIAL|LD_LIBRARY_PATH|KUBECONFIG|XDG_|TORCH|TF_)")


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


def full(results: Sequence[Result], machine: Machine, *, with_names: bool = False) -> dict[str, Any]:
    """What ``--report`` writes: the results and the facts they rest on, without secrets.

    Args:
        with_names: user, host and home folder stay in.
    """
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
        "docker": _info(machine.docker_info, with_names),
        "podman": _info(machine.podman_info, with_names),
        "environment": _environment(machine.host),
    }
    names = names_of(machine.host, hosts=_engine_hosts(machine))
    if with_names:
        names = Names(secrets=names.secrets)
    return names.scrub({**to_dict(results), "facts": facts})


def _info(info: dict[str, Any] | EngineUnavailableError | None, with_names: bool) -> Any:
    """What the engine says of itself, the name of its machine aside."""
    if isinstance(info, EngineUnavailableError):
        return info.message
    if info is None or with_names:
        return info
    host = info.get("host")
    about = {"host": {key: value for key, value in host.items() if key != "hostname"}} if isinstance(host, dict) else {}
    return {**{key: value for key, value in info.items() if key != "Name"}, **about}


def _engine_hosts(machine: Machine) -> list[str]:
    """The engines' machines, which need not be this one: as they call themselves (Docker in "Name", Podman in "host"),
    and as they are addressed."""
    docker, podman = machine.docker_info, machine.podman_info
    host = podman.get("host") if isinstance(podman, dict) else None
    found = [docker.get("Name") if isinstance(docker, dict) else None]
    found += [host.get("hostname") if isinstance(host, dict) else None]
    found += [urlsplit(machine.host.env.get(variable, "")).hostname for variable in ("DOCKER_HOST", "CONTAINER_HOST")]
    return [name for name in found if isinstance(name, str)]


def _environment(host: Host) -> dict[str, str]:
    return {name: value for name, value in sorted(host.env.items()) if TELLING.match(name)}
