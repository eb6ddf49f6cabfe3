"""The containers that Compose has made for a project, as the engine lists them."""

from __future__ import annotations

import re
from dataclasses import dataclass

from seatrial.backends.containers.container_state import STATUSES
from seatrial.backends.containers.engine import COMPOSE_LABEL, ContainerEngine

_SERVICE_LABEL = "com.docker.compose.service"
_ONE_OFF_LABEL = "com.docker.compose.oneoff"
_EXIT = re.compile(r"Exited \((\d+)\)")


@dataclass(frozen=True)
class Container:
    """One of them.

    Attributes:
        status: ``created``, ``running`` or ``exited``. exit_code: of one that has ended.
    """

    status: str
    exit_code: int | None


def containers(backend: ContainerEngine, project: str) -> dict[str, Container]:
    """Service → its container, the last that was made. Raises EngineUnavailableError."""
    labels = "\t".join(backend.dialect.label_form % label for label in (_SERVICE_LABEL, _ONE_OFF_LABEL))
    form = "{{.ID}}\t" + labels + "\t{{.State}}\t{{.Status}}"
    words = ("--all", "--no-trunc", "--filter", f"label={COMPOSE_LABEL}={project}", "--format", form)
    ended = backend.client.ask("ps", *words)
    if ended.exit_code != 0:
        raise backend.client.unavailable(ended.stderr)
    found: dict[str, Container] = {}
    for line in ended.stdout.splitlines():
        parts = line.split("\t")
        if len(parts) != 5 or parts[2].lower() == "true":
            continue
        status = STATUSES.get(parts[3].lower(), "running")
        code = _EXIT.match(parts[4])
        found.setdefault(parts[1], Container(status, int(code[1]) if code else None))
    return found
