"""What an engine prints when it will not do something → our error, with the likely cause and the next command.

Strings of Docker 20.10.24 and Podman 4.3.1 were printed here and are kept in tests/recorded/engine-errors.json;
those of later engines come from the bug reports named beside them.
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

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
from seatrial.findings.catalogue import by_id

ADD_SUBIDS = 'sudo usermod --add-subuids 100000-165535 --add-subgids 100000-165535 "$USER" && podman system migrate'


@dataclass(frozen=True)
class Symptom:
    """One thing that engines say.

    Attributes:
        pattern: searched in stderr, ignoring case.
        message, cause, run: may name the pattern's groups, ``{engine}`` (the command) and ``{Engine}`` (its name).
        known: entry of the catalogue of failures that has cause and remedy; None: this one's own.
    """

    pattern: str
    error: type[SeatrialError]
    message: str
    cause: str | None = None
    run: str | None = None
    known: str | None = None


#: The first match counts: what is special stands before what is general.
START_SYMPTOMS: tuple[Symptom, ...] = (
    Symptom(
        r'could not select device driver "cdi"',
        GpuContractError,
        "{Engine} cannot resolve GPUs by CDI name",
        known="cdi-off",
    ),
    Symptom(
        r"could not select device driver .* with capabilities: \[\[.*gpu",
        GpuContractError,
        "{Engine} cannot pass GPUs to containers",
        known="toolkit-missing",
    ),
    Symptom(  # Docker >= 29.2 resolves --gpus through CDI: github.com/ShaneIsrael/fireshare/issues/689
        r"failed to discover GPU vendor from CDI|AMD CDI spec not found",
        GpuContractError,
        "{Engine} finds no CDI spec for an NVIDIA GPU",
        known="cdi-no-vendor",
    ),
    Symptom(  # Docker: github.com/devnen/Chatterbox-TTS-Server/issues/5
        r"unresolvable CDI devices (?P<devices>\S+)",
        GpuContractError,
        "{Engine} has no CDI device {devices}",
        known="cdi-unresolvable",
    ),
    Symptom(  # github.com/NVIDIA/nvidia-container-toolkit/issues/885
        r'failed to stat CDI host device "(?P<device>[^"]+)"',
        GpuContractError,
        "The CDI spec names {device}, which does not exist",
        known="cdi-spec-stale",
    ),
    Symptom(
        r"nvidia-container-cli: requirement error: unsatisfied condition: (?P<condition>[^,\n]+)",
        GpuContractError,
        "The image requires {condition}, which this GPU driver does not support",
        known="image-requires-newer-driver",
    ),
    Symptom(
        r"nvidia-container-cli: (?P<reason>[^\n]+)",
        GpuContractError,
        "The NVIDIA Container Toolkit could not add the GPU to the container: {reason}",
        "the driver and the toolkit are incompatible, or the driver is not loaded",
        "nvidia-smi && nvidia-container-cli --debug=/dev/stderr info",
    ),
    Symptom(
        r'(?:Unknown runtime specified|unknown or invalid runtime name:|OCI runtime) "?nvidia\b',
        GpuContractError,
        "{Engine} has no runtime named nvidia",
        known="runtime-unknown",
    ),
    Symptom(
        r'(?:Unknown runtime specified|unknown or invalid runtime name:|default OCI runtime) "?(?P<runtime>[\w.-]+)',
        EngineError,
        "{Engine} has no runtime named {runtime}",
        None,
        "{engine} info",
    ),
    Symptom(
        r'(?:custom device "|stat )(?P<device>/dev/(?:nvidia|dxg)[\w/-]*)"?: no such file',
        GpuContractError,
        "The GPU's device node {device} does not exist",
        "the driver is not loaded, or its device nodes were not created after boot",
        "sudo nvidia-modprobe -u -c=0 && ls -l /dev/nvidia*",
    ),
    Symptom(
        r'(?:custom device "|stat )(?P<device>/dev/[^":\s]+)"?: no such file',
        UsageError,
        "There is no device {device}",
        None,
        "ls -l /dev",
    ),
    Symptom(
        r'container name "/?(?P<name>[^"]+)" is already in use',
        NameInUseError,
        "A container named {name} already exists",
        None,
        "{engine} ps --all --filter name={name}",
    ),
    Symptom(
        r"Bind for (?P<address>\S+:(?P<port>\d+)) failed: port is already allocated"
        r"|listen tcp4? (?P<address2>\S+:(?P<port2>\d+)): bind: address already in use",
        EngineError,
        "Port {port} on this machine is in use",
        "another container or program is listening on it",
        "ss -ltnp 'sport = :{port}'",
    ),
    Symptom(
        r"(?:bind source path does not exist:|statfs) (?P<path>/[^:\n]*)(?:: no such file|$)",
        UsageError,
        "The folder to mount does not exist: {path}",
        "it is not on the engine's machine",
        "ls -ld {path}",
    ),
    Symptom(  # Docker Desktop: docs.docker.com/desktop/troubleshoot-and-support/troubleshoot/topics/
        r"mounts denied|is not shared from the host",
        EngineError,
        "{Engine} is not allowed to mount this folder",
        "Docker Desktop mounts only the folders named in Settings, Resources, File sharing",
        "docker context use default",
    ),
    Symptom(
        r"error while creating mount source path '(?P<path>[^']+)'",
        EngineError,
        "{Engine} cannot see {path}",
        "Docker from a snap cannot read outside the home folder",
        "sudo snap remove docker && curl -fsSL https://get.docker.com | sudo sh",
    ),
    Symptom(
        r"no space left on device",
        DiskError,
        "The disk of {Engine} is full",
        None,
        "{engine} system df",
    ),
    Symptom(
        r'exec: "(?P<program>[^"]+)": (?:executable file not found|stat .*no such file|permission denied)',
        ImageError,
        "The image cannot run {program}",
        "the image has no such program",
    ),
    Symptom(
        r"network (?P<network>\S+) not found|network with name or ID (?P<network2>\S+): network not found",
        UsageError,
        "{Engine} has no network named {network}",
        None,
        "{engine} network ls",
    ),
    Symptom(
        r"No such image: (?P<image>\S+)|(?P<image2>\S+): image not known",
        ImageError,
        "Image {image} is not in {Engine}'s store",
        None,
        "{engine} pull {image}",
    ),
)

UNAVAILABLE_SYMPTOMS: tuple[Symptom, ...] = (
    Symptom(
        r"permission denied while trying to connect|dial unix \S+: connect: permission denied",
        EngineUnavailableError,
        "You have no access to the Docker daemon's socket",
        "your user is not in the docker group",
        'sudo usermod -aG docker "$USER" && newgrp docker',
    ),
    Symptom(
        r"Cannot connect to the Docker daemon at (?P<socket>\S+?)\.? |failed to connect to the docker API",
        EngineUnavailableError,
        "The Docker daemon does not respond",
        "it is not running",
        "sudo systemctl start docker",
    ),
    Symptom(  # "newuidmap" and "insufficient": github.com/containers/podman/blob/main/troubleshooting.md
        r"newuidmap|no subuid ranges found|insufficient UIDs or GIDs",
        EngineUnavailableError,
        "Rootless Podman has no subordinate user IDs to map",
        "/etc/subuid and /etc/subgid have no range for your user",
        ADD_SUBIDS,
    ),
)

#: What is said of a pull; ``{reference}`` is the image.
PULL_SYMPTOMS: tuple[Symptom, ...] = (
    Symptom(
        r"no space left on device",
        DiskError,
        "The disk of {Engine} is full: image {reference} does not fit",
        None,
        "{engine} system df",
    ),
    Symptom(
        r"manifest unknown|manifest for \S+ not found|name unknown",
        ImageError,
        "There is no image {reference}",
        "the registry has no such name or tag",
        "{engine} manifest inspect {reference}",
    ),
    Symptom(
        r"pull access denied|unauthorized|access to the resource is denied|authentication required",
        ImageError,
        "The registry denied access to image {reference}",
        "it does not exist, or it needs a login",
        "{engine} login",
    ),
    Symptom(
        r"toomanyrequests|rate limit",
        ImageError,
        "The registry refused image {reference} temporarily",
        "its limit for anonymous pulls was reached",
        "{engine} login",
    ),
    Symptom(
        r"certificate signed by unknown authority|x509:",
        ImageError,
        "The registry's certificate is not trusted: image {reference} was not pulled",
        "a proxy signs with a certificate authority that {Engine} does not trust",
        "ls /etc/docker/certs.d /etc/containers/certs.d",
    ),
    Symptom(
        r"no such host|dial tcp|i/o timeout|network is unreachable|connection refused|TLS handshake timeout",
        ImageError,
        "Image {reference} cannot be pulled: the registry cannot be reached",
        "no network, or a proxy that {Engine} is not configured for",
        "{engine} pull {reference}",
    ),
    Symptom(
        r"did not resolve to an alias and no unqualified-search registries",
        ImageError,
        "Podman does not know which registry {reference} is from",
        "no unqualified-search registry is set",
        "podman pull docker.io/{reference}",
    ),
)


#: Where each engine's client is told that the engine listens.
ADDRESS_VARIABLES = {"docker": "DOCKER_HOST", "podman": "CONTAINER_HOST"}
_LOGIN = re.compile(r"(?<=://)[^/@\s]*@")


def start_error(engine: str, argv: Sequence[str], exit_code: int, stderr: str) -> SeatrialError:
    """The error for a container that could not be made or started."""
    found = _match((*UNAVAILABLE_SYMPTOMS, *START_SYMPTOMS), engine, stderr)
    return found or CommandError(
        f"{engine.capitalize()} could not start the container: {last_line(stderr) or f'exit code {exit_code}'}",
        argv=argv,
        exit_code_of_command=exit_code,
        stderr=stderr,
        run=f"{engine} container run --help",
    )


def pull_error(engine: str, reference: str, stderr: str) -> SeatrialError:
    """The error for an image that could not be pulled."""
    return _match((*UNAVAILABLE_SYMPTOMS, *PULL_SYMPTOMS), engine, stderr, reference=reference) or ImageError(
        f"Image {reference} cannot be pulled: {last_line(stderr)}", run=f"{engine} pull {reference}"
    )


def unavailable_error(engine: str, stderr: str, environ: Mapping[str, str] = os.environ) -> EngineUnavailableError:
    """The error for an engine that gave no answer to a plain question."""
    found = _match(UNAVAILABLE_SYMPTOMS, engine, stderr)
    if not isinstance(found, EngineUnavailableError):
        said = f"{engine.capitalize()} does not respond: {last_line(stderr)}"
        found = EngineUnavailableError(said, run=f"{engine} info")
    return as_addressed(found, engine, environ)


def as_addressed(
    error: EngineUnavailableError, engine: str, environ: Mapping[str, str] = os.environ
) -> EngineUnavailableError:
    """The error of an engine that a variable leads to: the variable is what to look at then, without its login."""
    variable = ADDRESS_VARIABLES[engine]
    if not environ.get(variable):
        return error
    said = error.message.partition(": ")[2]
    return EngineUnavailableError(
        _LOGIN.sub("", f"{engine.capitalize()} does not respond at {variable}={environ[variable]}"),
        cause=_LOGIN.sub("", said or error.cause or error.message),
        run=f"unset {variable}   # or set it to where {engine} listens; then: {engine} info",
    )


def last_line(stderr: str) -> str:
    """The engine's own reason: the last line that is not its pointer to ``--help``, without its prefixes."""
    pointers = ("Run '", "See '", "Usage:")
    lines = [line.strip() for line in stderr.splitlines() if line.strip() and not line.startswith(pointers)]
    if not lines:
        return ""
    return re.sub(r"^(?:docker: |Error: |Error response from daemon: )+", "", lines[-1])


def _match(symptoms: Sequence[Symptom], engine: str, stderr: str, **names: str) -> SeatrialError | None:
    for symptom in symptoms:
        if found := re.search(symptom.pattern, stderr, re.IGNORECASE | re.MULTILINE):
            # Two spellings of one thing have groups ``port`` and ``port2``: whichever matched is ``port``.
            groups = {name.rstrip("2"): value for name, value in found.groupdict().items() if value is not None}
            values = {"engine": engine, "Engine": engine.capitalize(), **groups, **names}
            if symptom.known is not None:
                entry = by_id(symptom.known)
                return symptom.error(symptom.message.format(**values), cause=entry.cause, run=entry.fix)
            return symptom.error(
                symptom.message.format(**values),
                cause=symptom.cause and symptom.cause.format(**values),
                run=symptom.run and symptom.run.format(**values),
            )
    return None
