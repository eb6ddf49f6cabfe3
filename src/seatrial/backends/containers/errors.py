"""Errors of the engines: their words matched with the catalogue."""

from __future__ import annotations

import re
from collections.abc import Sequence

from seatrial.errors import (
    CommandError,
    DiskError,
    EngineError,
    EngineUnavailableError,
    GpuContractError,
    ImageError,
    NameInUseError,
    SeatrialError,
    UsageError,
)
from seatrial.findings.catalogue import AT_PULL, AT_START, Known, entries, mid_sentence
from seatrial.findings.match import first_in
from seatrial.job.plan import EngineAddress
from seatrial.system.host import Host

#: Layers whose failures keep a GPU out of a container, apart from those in ERRORS.
GPU_LAYERS = ("host", "engine")

#: Entries of those layers that are about the engine itself.
_OF_THE_ENGINE = (
    "capabilities-forbidden", "cgroup-limit", "cgroup-not-delegated", "cgroup-not-mounted", "containerd-down",
    "crun-kernel", "daemon-json-conflict", "daemon-json-invalid", "docker-not-installed", "docker-service-failed",
    "engine-missing", "engine-part-missing", "mount-not-propagated", "namespaces-forbidden",
    "network-bridge-missing", "network-pair-failed", "newuidmap-missing", "no-login-session", "podman-down",
    "podman-ebpf-forbidden", "podman-fuse-not-loaded", "podman-network", "podman-registries",
    "podman-remote-login", "podman-storage-driver", "rootless-storage", "runtime-not-allowed", "selinux-storage",
    "toolkit-apt-sources",
)  # fmt: skip

#: Entry of the catalogue → the error it is.
ERRORS: dict[str, type[SeatrialError]] = {
    **dict.fromkeys(("engine-permission", "engine-down", "docker-context-missing"), EngineUnavailableError),
    **dict.fromkeys(("docker-is-podman", "docker-client-too-new", "rootless-no-subids"), EngineUnavailableError),
    **dict.fromkeys(_OF_THE_ENGINE, EngineError),
    **dict.fromkeys(("device-not-there", "limit-out-of-range", "podman-ports-of-the-pod"), UsageError),
    **dict.fromkeys(("privileged-port", "mount-not-there", "network-not-there"), UsageError),
    "container-name-in-use": NameInUseError,
    **dict.fromkeys(("image-without-python", "program-not-there", "image-not-there"), ImageError),
    **dict.fromkeys(("disk-full", "read-only-root"), DiskError),
}

#: The variable of each engine's client for the engine's address.
ADDRESS_VARIABLES = {"docker": "DOCKER_HOST", "podman": "CONTAINER_HOST"}
#: Entries about the address that a variable names; other entries are about the client or its request.
OF_ADDRESS = ("engine-down", "engine-permission")
_LOGIN = re.compile(r"(?<=://)[^/@\s]*@")


def start_error(engine: str, argv: Sequence[str], exit_code: int, stderr: str) -> SeatrialError:
    """Return the error for a container that could not be made or started."""
    return _known(AT_START, engine, stderr) or CommandError(
        f"{engine.capitalize()} could not start the container: {last_line(stderr) or f'exit code {exit_code}'}",
        argv=argv,
        exit_code_of_command=exit_code,
        stderr=stderr,
        run=f"seatrial doctor --on {engine}",
    )


def pull_error(engine: str, reference: str, stderr: str) -> SeatrialError:
    """Return the error for an image that could not be pulled."""
    return _known(AT_PULL, engine, stderr, reference=reference) or ImageError(
        f"Image {reference} cannot be pulled: {last_line(stderr)}", run=f"{engine} pull {reference}"
    )


def unavailable_error(
    engine: str, stderr: str, host: Host | None = None, at: EngineAddress | None = None
) -> EngineUnavailableError:
    """Return the error for an engine that gave no answer to a plain question. ``at``: its client was led there."""
    found = _known(("engine",), engine, stderr)
    if not isinstance(found, EngineUnavailableError):
        words = last_line(stderr)
        found = EngineUnavailableError(
            f"{engine.capitalize()} does not respond: {words}" if words else f"{engine.capitalize()} gave no answer",
            cause=f"its client or its daemon failed; `{engine} info` shows all of its output",
            run=f"{engine} info",
        )
    return as_addressed(found, engine, host, at)


def as_addressed(
    error: EngineUnavailableError, engine: str, host: Host | None = None, at: EngineAddress | None = None
) -> EngineUnavailableError:
    """Return the error of an engine that a variable leads to: it names the variable, without its login."""
    if at is not None:
        message = f"Engine at {_LOGIN.sub('', at.endpoint)} not reachable: {mid_sentence(error.message)}"
        return EngineUnavailableError(message, cause=error.cause, run=error.run, finding=error.finding)
    variable = ADDRESS_VARIABLES[engine]
    host = host or Host()
    if not host.env.get(variable) or error.finding not in OF_ADDRESS:
        return error
    if error.finding == "engine-permission":
        message, cause = error.message, "The user is not in the group that may use this socket"
    else:
        message = f"{engine.capitalize()} does not respond"
        cause = error.message.partition(": ")[2] or error.cause or error.message
    return EngineUnavailableError(
        _LOGIN.sub("", f"{message} at {variable}={host.env[variable]}"),
        cause=_LOGIN.sub("", cause),
        run=f"unset {variable}   # or set it to where {engine} listens; then: {engine} info",
        finding=error.finding,
    )


def last_line(stderr: str) -> str:
    """Return the engine's own reason: the last line that is not its pointer to ``--help``, without its prefixes."""
    pointers = ("Run '", "See '", "Usage:")
    lines = [line.strip() for line in stderr.splitlines() if line.strip() and not line.startswith(pointers)]
    if not lines:
        return ""
    return re.sub(r"^(?:\* |docker: |Error: |Error response from daemon: )+", "", lines[-1])


def _known(layers: Sequence[str], engine: str, stderr: str, **values: str) -> SeatrialError | None:
    """Return the error that the catalogue has for these words; None where it has none."""
    match = first_in(stderr, layers)
    if match is None:
        return None
    finding = match.known.finding(values={**match.values, "engine": engine, "Engine": engine.capitalize(), **values})
    error = _error_type(match.known)
    if issubclass(error, EngineUnavailableError):
        return error(finding.message, cause=finding.cause, run=finding.fix, finding=finding.id)
    return error(finding.message, cause=finding.cause, run=finding.fix)


def _error_type(known: Known) -> type[SeatrialError]:
    if known in entries(("registry",)):
        return ImageError
    return ERRORS.get(known.id) or (GpuContractError if known in entries(GPU_LAYERS) else EngineError)
