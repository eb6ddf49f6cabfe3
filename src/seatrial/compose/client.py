"""Compose's command line: ``docker compose``, or the same program over Podman's socket; and its containers.

``podman compose`` (Podman 4.7 and later) only calls another program, docker-compose or podman-compose, and points it at
Podman's socket. That is done here, so that it works with any Podman from 4.0 on and is always docker-compose:
podman-compose is another program with other words, and lacks much of what the override is made of.
"""

from __future__ import annotations

import hashlib
import os
import re
import shutil
import socket
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

from seatrial.backends.containers.client import STATUSES
from seatrial.backends.containers.engine import COMPOSE_LABEL, ContainerEngine
from seatrial.errors import EngineUnavailableError
from seatrial.system import command
from seatrial.system.host import Host
from seatrial.system.records import Process

#: Limits of queries, and of commands that stop or remove: containers get their grace time first.
ANSWER_TIMEOUT_S = 60.0

#: Folders of Docker's plug-ins by package. Source: docker/cli, cli-plugins/manager/manager_unix.go.
PLUGIN_FOLDERS = (
    "/usr/local/lib/docker/cli-plugins",
    "/usr/local/libexec/docker/cli-plugins",
    "/usr/lib/docker/cli-plugins",
    "/usr/libexec/docker/cli-plugins",
)

#: Podman's service ends by itself after this long without a connection; its containers go on.
_IDLE_S = 60

_START_TIMEOUT_S = 20.0

#: A project's .env could otherwise make Compose fetch files. Source: docker/compose, cmd/compose/compose.go.
_LOCAL = {"COMPOSE_EXPERIMENTAL_GIT_REMOTE": "false", "COMPOSE_EXPERIMENTAL_OCI_REMOTE": "false"}

#: Variables that change which containers Podman sees, or how it runs them.
_OF_PODMAN = ("CONTAINERS_CONF", "CONTAINERS_CONF_OVERRIDE", "CONTAINERS_STORAGE_CONF", "HOME")

_INSTALL = "sudo apt-get install docker-compose-plugin   # Debian: docker-compose; Docker itself is not needed"

_SERVICE_LABEL = "com.docker.compose.service"
_ONE_OFF_LABEL = "com.docker.compose.oneoff"
_EXIT = re.compile(r"Exited \((\d+)\)")


@dataclass(frozen=True)
class Compose:
    """Compose's command line over some files.

    Attributes:
        call: Compose's program with the engine's global options, e.g. ``("docker", "compose")``.
        files: the user's, in their order; the first one's folder is what paths count from. override: ours, the last.
        copies: folder with what Compose reads of the project, each file at its path below it.
        rendered: stands in for them, so that what starts is what was looked at.
        wake: makes the engine listen, where it does not always; called before each command.
    """

    call: tuple[str, ...]
    files: tuple[Path, ...]
    host: Host
    override: Path | None = None
    rendered: Path | None = None
    copies: tempfile.TemporaryDirectory[str] | None = None
    wake: Callable[[], None] = lambda: None

    def argv(self, *words: str) -> list[str]:
        """Return a command line, to be run now. Raises EngineUnavailableError: the engine cannot be made to listen."""
        self.wake()
        own = [self.rendered] if self.rendered else [f"{self._copied}{file}" for file in self.files]
        files = [*own, *([self.override] if self.override else [])]
        # The project's .env steers Compose itself; and of profiles the rendered file has the active ones alone.
        steered = ["--env-file", os.devnull, "--profile", "*"] if self.rendered else []
        return [*self.call, *steered, *(word for file in files for word in ("-f", str(file))), *words]

    def config(self, names: Sequence[str]) -> command.Completed:
        """Let Compose resolve the files for these services, as JSON. It fetches nothing that they include."""
        return replace(self, host=self.host.with_env(_LOCAL)).ask("config", "--format", "json", *names)

    def with_override(self, override: Path) -> Compose:
        return replace(self, override=override)

    def ask(self, *words: str, timeout_s: float = ANSWER_TIMEOUT_S) -> command.Completed:
        """Run a command of Compose to its end; the caller judges its exit code."""
        argv, env = self.argv(*words), self.host.env
        ended = command.run(argv, timeout_s=timeout_s, env=env, cwd=self.files[0].parent, input="")
        copied = self._copied or os.devnull
        return replace(ended, stdout=ended.stdout.replace(copied, ""), stderr=ended.stderr.replace(copied, ""))

    def bring_up(self, log: Path, *words: str) -> Process:
        """Start ``docker compose up --detach`` as a process of its own: it goes on when this one is killed.

        Args:
            log: file for its output. words: further options and services.
        """
        argv = self.argv("--ansi", "never", "up", "--detach", "--no-build", *words)
        pid = command.spawn_detached(argv, output=log, env=self.host.env, cwd=self.files[0].parent)
        process = Process.of(pid)
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
    """Return Compose over no files yet. Raises EngineUnavailableError: Podman without docker-compose."""
    if backend.dialect.compose:
        return Compose((*backend.client.call, "compose"), (), host)
    program = docker_compose(host)
    if program is None:
        raise EngineUnavailableError(
            "A Compose file on Podman needs the program docker-compose (Compose v2), which is not here", run=_INSTALL
        )
    settings = "\0".join([*backend.call, *(host.env.get(name, "") for name in _OF_PODMAN)])
    # A service for this Podman with its options; a socket's path has 107 characters at most, too few for the state's.
    address = host.runtime_folder / f"podman-{hashlib.sha256(settings.encode()).hexdigest()[:12]}.sock"
    kept = {name: value for name, value in host.env.items() if not name.startswith("DOCKER_")}
    # Podman builds through Docker's older API.
    of_podman = {**kept, "DOCKER_HOST": f"unix://{address}", "DOCKER_BUILDKIT": "0"}
    return Compose((program,), (), at := Host(of_podman), wake=partial(_wake, tuple(backend.call), address, at))


def docker_compose(host: Host) -> str | None:
    """Find the program of Compose v2, a plug-in of Docker's command line that runs without it; None without one."""
    home = host.env.get("HOME")
    folders = [f"{home}/.docker/cli-plugins"] if home else []
    for folder in [*folders, *PLUGIN_FOLDERS]:
        if os.access(path := f"{folder}/docker-compose", os.X_OK):
            return path
    found = shutil.which("docker-compose", path=host.env.get("PATH"))
    # Version 1, a Python script, has the same name; everything else is v2.
    return found if found and Path(found).read_bytes()[:4] == b"\x7fELF" else None


def _wake(call: tuple[str, ...], address: Path, host: Host) -> None:
    """Start Podman's service if it does not listen. Raises EngineUnavailableError."""
    if _listens(address):
        return
    argv = [*call, "system", "service", "--time", str(_IDLE_S), f"unix://{address}"]
    log = address.with_suffix(".log")
    log.unlink(missing_ok=True)
    command.spawn_detached(argv, output=log, env=host.env)
    deadline_s = time.monotonic() + _START_TIMEOUT_S
    while not _listens(address):
        if time.monotonic() > deadline_s:
            lines = log.read_text(errors="replace").strip().splitlines()
            raise EngineUnavailableError(
                f"Podman's service does not listen on {address}", cause=lines[-1] if lines else None, run=" ".join(argv)
            )
        time.sleep(0.05)


def _listens(address: Path) -> bool:
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as made:
        try:
            made.connect(str(address))
        except OSError:
            return False
    return True


@dataclass(frozen=True)
class Container:
    """Holds the state of one container of the project.

    Attributes:
        status: ``created``, ``running`` or ``exited``. exit_code: of one that has ended.
        unchecked: its ID, where no health check has decided yet.
    """

    status: str
    exit_code: int | None
    unchecked: str | None = None


def containers(backend: ContainerEngine, project: str) -> dict[str, Container]:
    """Return service → its container, the last that was made. Raises EngineUnavailableError."""
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
        code = _EXIT.match(parts[4])  # Podman has these words as the state, too
        status = "exited" if code else STATUSES.get(parts[3].lower(), "running")
        unchecked = parts[0] if status == "running" and parts[4].endswith("(starting)") else None
        found.setdefault(parts[1], Container(status, int(code[1]) if code else None, unchecked))
    return found
