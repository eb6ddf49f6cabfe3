"""Which engine answers, and the options that lead its client to the same one from any terminal."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from seatrial.backends.base import this_machine
from seatrial.job.plan import EngineAddress
from seatrial.system.command import Completed

#: Options of a client that choose the engine themselves: no other may stand beside them.
#: Source: docker(1), "Options"; podman(1), "GLOBAL OPTIONS".
CHOOSING = ("-H", "--host", "-c", "--context", "--url", "--connection", "--remote", "--root", "--runroot")

#: Files in a folder of Docker's TLS certificates. Source: docs.docker.com/engine/security/protect-access.
_TLS = {"--tlscacert": "ca.pem", "--tlscert": "cert.pem", "--tlskey": "key.pem"}


def docker_address(
    info: Mapping[str, Any], context: Mapping[str, Any], environ: Mapping[str, str] = os.environ
) -> EngineAddress:
    """Read a daemon's address.

    Args:
        info: of ``docker info``. The ID alone is not enough: up to Docker 23 it is a key in /etc/docker, which two
            daemons of one machine share, and which a daemon keeps when its data moves.
        context: the entry of ``docker context inspect`` that ``info`` was asked through.
    """
    stored = Path((context.get("Storage") or {}).get("TLSPath") or "<")
    if (context.get("TLSMaterial") or {}).get("docker") and stored.is_absolute():
        tls = str(stored / "docker")
    elif environ.get("DOCKER_TLS_VERIFY") or environ.get("DOCKER_TLS"):
        tls = environ.get("DOCKER_CERT_PATH") or str(Path(environ.get("HOME", "/root"), ".docker"))
    else:
        tls = None
    identity = f"{info.get('ID')} {info.get('DockerRootDir')}"
    return EngineAddress(endpoint=context["Endpoints"]["docker"]["Host"], id=identity, credentials=tls)


def podman_address(
    info: Mapping[str, Any], ask: Callable[..., Completed], environ: Mapping[str, str] = os.environ
) -> EngineAddress:
    """Read a Podman's address: its storage on this machine, or the service that the client speaks to.

    Args:
        info: of ``podman info``. ask: asks the same Podman more.
    """
    store = str(info["store"]["graphRoot"])
    if not info["host"].get("serviceIsRemote"):
        return EngineAddress(endpoint=store, id=f"{this_machine().id} {store}")
    identity = f"{info['host'].get('hostname')} {store}"
    if url := environ.get("CONTAINER_HOST"):
        return EngineAddress(endpoint=url, id=identity, credentials=environ.get("CONTAINER_SSHKEY") or None)
    known = json.loads(ask("system", "connection", "list", "--format", "json").stdout or "[]")
    name = environ.get("CONTAINER_CONNECTION")
    for connection in known:
        if connection["Name"].rstrip("*") == name if name else connection.get("Default"):
            return EngineAddress(
                endpoint=connection["URI"], id=identity, credentials=connection.get("Identity") or None
            )
    return EngineAddress(endpoint="podman-remote", id=identity)


def addressed(call: Sequence[str], at: EngineAddress, *, tls: bool) -> list[str]:
    """Return the client's call with the options that lead to ``at``; unchanged if its user has given such an option.

    Args:
        tls: the options are Docker's, which take certificates, and not Podman's, which take a key.
    """
    if any(word.partition("=")[0] in CHOOSING for word in call[1:]):
        return list(call)
    if tls:
        folder = Path(at.credentials) if at.credentials else None
        files = [f"{flag}={folder / name}" for flag, name in _TLS.items() if folder and (folder / name).is_file()]
        return [*call, "--host", at.endpoint, *(["--tlsverify", *files] if folder else [])]
    if at.endpoint.startswith("/"):
        return [*call, "--remote=false"]
    if "://" not in at.endpoint:
        return list(call)
    return [*call, "--url", at.endpoint, *(["--identity", at.credentials] if at.credentials else [])]
