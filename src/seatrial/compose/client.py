"""Compose's command line, ``docker compose``, and its containers."""

from __future__ import annotations

import os
import re
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, NamedTuple

from seatrial.backends.containers.client import STATUSES
from seatrial.backends.containers.engine import COMPOSE_LABEL, ContainerEngine
from seatrial.system import command
from seatrial.system.host import Host
from seatrial.system.records import Process

#: Limits of queries, and of commands that stop or remove: containers get their grace time first.
ANSWER_TIMEOUT_S = 60.0
#: A project's .env could otherwise make Compose fetch files. Source: docker/compose, cmd/compose/compose.go.
_LOCAL = {"COMPOSE_EXPERIMENTAL_GIT_REMOTE": "false", "COMPOSE_EXPERIMENTAL_OCI_REMOTE": "false"}

_SERVICE_LABEL = "com.docker.compose.service"
_ONE_OFF_LABEL = "com.docker.compose.oneoff"
_EXIT = re.compile(r"Exited \((\d+)\)")


@dataclass(frozen=True)
class Compose:
    """Compose's command line over some files.

    Attributes:
        call: Compose's program with the engine's global options, e.g. ``("docker", "compose")``.
        files: the user's, in their order; the first one's folder is what paths count from. override: ours, the last.
        copies: what Compose reads of the project, each file at its path below it.
        rendered: stands in for them, so that what starts is what was looked at.
    """

    call: tuple[str, ...]
    files: tuple[Path, ...]
    host: Host
    override: Path | None = None
    rendered: Path | None = None
    copies: tempfile.TemporaryDirectory[str] | None = None

    def argv(self, *words: str) -> list[str]:
        """Return a command line of Compose."""
        own = [self.rendered] if self.rendered else [f"{self._copied}{file}" for file in self.files]
        files = [*own, *([self.override] if self.override else [])]
        # The project's .env steers Compose itself; and of profiles the rendered file has the active ones alone.
        steered = ["--env-file", os.devnull, "--profile", "*"] if self.rendered else []
        return [*self.call, *steered, *(word for file in files for word in ("-f", str(file))), *words]

    def config(self, names: Sequence[str]) -> command.Completed:
        """Let Compose resolve the files for these services, as JSON. It fetches nothing that they include."""
        return replace(self, host=self.host.with_env(_LOCAL)).ask("config", "--format", "json", *names)

    def ask(self, *words: str, timeout_s: float = ANSWER_TIMEOUT_S) -> command.Completed:
        """Run a command of Compose to its end; the caller judges its exit code."""
        argv, env = self.argv(*words), self.host.env
        ended = command.run(argv, timeout_s=timeout_s, env=env, cwd=self.files[0].parent, input="")
        copied = self._copied or os.devnull
        return ended._replace(stdout=ended.stdout.replace(copied, ""), stderr=ended.stderr.replace(copied, ""))

    def bring_up(self, log: Path, *words: str) -> Process:
        """Start ``docker compose up --detach``, with output to ``log``; it goes on when this process is killed."""
        argv = self.argv("--ansi", "never", "up", "--detach", "--no-build", *words)
        process = Process.of(command.spawn_detached(argv, output=log, env=self.host.env, cwd=self.files[0].parent))
        assert process is not None, "a child that nobody has waited for is in /proc"
        return process

    @property
    def _copied(self) -> str:
        return self.copies.name if self.copies and not self.rendered else ""


def unescaped(value: Any) -> Any:
    """Return what Compose prints with ``$$`` replaced by one dollar."""
    if isinstance(value, str):
        return value.replace("$$", "$")
    if isinstance(value, list):
        return [unescaped(each) for each in value]
    if isinstance(value, dict):
        return {key: unescaped(each) for key, each in value.items()}
    return value


def escaped(words: Sequence[str]) -> list[str]:
    """Double the dollars of words for a file that Compose reads, where one dollar begins a variable."""
    return [word.replace("$", "$$") for word in words]


def compose_of(backend: ContainerEngine, host: Host) -> Compose:
    """Return Compose over no files yet."""
    return Compose((*backend.client.call, "compose"), (), host)


class Container(NamedTuple):
    """Holds a container's state: ``created``, ``running`` or ``exited``, and the exit code of one that has ended."""

    status: str
    exit_code: int | None


def containers(backend: ContainerEngine, project: str) -> dict[str, Container]:
    """Return service → its container, the last that was made. Raises EngineUnavailableError."""
    labels = "\t".join(backend.dialect.label_form % label for label in (_SERVICE_LABEL, _ONE_OFF_LABEL))
    form = labels + "\t{{.State}}\t{{.Status}}"
    ended = backend.client.ask("ps", "--all", "--filter", f"label={COMPOSE_LABEL}={project}", "--format", form)
    if ended.exit_code != 0:
        raise backend.client.unavailable(ended.stderr)
    found: dict[str, Container] = {}
    for line in ended.stdout.splitlines():
        parts = line.split("\t")
        if len(parts) != 4 or parts[1].lower() == "true":
            continue
        code = _EXIT.match(parts[3])
        status = "exited" if code else STATUSES.get(parts[2].lower(), "running")
        found.setdefault(parts[0], Container(status, int(code[1]) if code else None))
    return found
