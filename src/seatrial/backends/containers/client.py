"""EngineClient: an engine's command line, asked with a time limit; Dialect: what is its own in it.

A daemon that hangs must not hang us.
"""

from __future__ import annotations

import json
import shlex
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal, cast

from seatrial.backends.containers.address import addressed, docker_address, podman_address
from seatrial.backends.containers.engine_errors import as_addressed, unavailable_error
from seatrial.backends.containers.info import read_info
from seatrial.errors import CommandTimeoutError, EngineUnavailableError
from seatrial.job.plan import EngineAddress
from seatrial.system import command

INFO_TIMEOUT_S = 5.0
#: For inspect, kill, remove: milliseconds when well; beside a build that holds the store's lock on a loaded machine of
#: two cores Podman 4.3 was seen to take more than 30 s.
ANSWER_TIMEOUT_S = 120.0


@dataclass(frozen=True)
class Dialect:
    """Differences between the command lines of the engines.

    Attributes:
        install, restart: commands for a person.
        info_format: ``info --format`` of it prints JSON. info_key: is in there when the engine works.
        storage_root: ``info --format`` of it prints where layers are kept.
        buildkit: it builds through buildx, which has ``--progress`` and ``--load``; Podman 4 has neither.
        compose: its client has the commands ``compose`` and ``context``, and its API passes CDI names on.
        label_form: prints a label's value in ``ps --format``, with ``%s`` for the label.
    """

    name: Literal["docker", "podman"]
    install: str
    restart: str
    info_format: str
    info_key: str
    storage_root: str
    buildkit: bool
    compose: bool
    label_form: str


class EngineClient:
    """The engine's program with its global options.

    Attributes:
        at: the engine that it is led to; None: the one that the environment chooses.
        call: what runs it, led to ``at``. typed: the same as its user types it.
    """

    def __init__(self, dialect: Dialect, call: Sequence[str] = (), at: EngineAddress | None = None) -> None:
        """``call``: default is the engine's name."""
        self.dialect, self.at = dialect, at
        self.typed = list(call) or [dialect.name]
        self.call = self.typed if at is None else addressed(self.typed, at, tls=dialect.compose)

    def ask(self, *words: str, timeout_s: float = ANSWER_TIMEOUT_S) -> command.Completed:
        """Ask the engine something. Raises EngineUnavailableError when it does not answer at all."""
        try:
            return command.run([*self.call, *words], timeout_s=timeout_s)
        except CommandTimeoutError as error:
            silent = EngineUnavailableError(
                f"{self.dialect.name.capitalize()} did not respond within {timeout_s:g} s",
                cause="it is busy with a build or pull, it hangs, or the machine is out of memory",
                run=self.dialect.restart,
            )
            raise as_addressed(silent, self.dialect.name, at=self.at) from error

    def info(self) -> dict[str, Any]:
        """What the engine says of itself. Raises EngineUnavailableError."""
        ended = self.ask("info", "--format", self.dialect.info_format, timeout_s=INFO_TIMEOUT_S)
        return read_info(self.dialect.name, self.dialect.info_key, ended, at=self.at)

    def address(self, info: dict[str, Any] | None = None) -> EngineAddress:
        """The address of the engine that answers, whose ``info`` this is. Raises EngineUnavailableError."""
        info = info or self.info()
        if not self.dialect.compose:
            return podman_address(info, self.ask)
        ended = self.ask("context", "inspect", "--format", "{{json .}}", timeout_s=INFO_TIMEOUT_S)
        if ended.exit_code != 0:
            raise self.unavailable(ended.stderr)
        return docker_address(info, json.loads(ended.stdout))

    def confirm(self, engine: EngineAddress | None) -> None:
        """Make sure that "no such container" is the answer of the engine that was asked for.

        Raises EngineUnavailableError: another engine has answered, or nobody knows which one to ask.
        """
        name = self.dialect.name.capitalize()
        if engine is None:
            raise EngineUnavailableError(
                f"Engine of the run not recorded; the current {name} has no container of it",
                cause="An earlier version of seatrial started it, perhaps on another engine",
                run="seatrial runs ls   # where DOCKER_HOST, DOCKER_CONTEXT or CONTAINER_HOST are as they were then",
            )
        if (other := self.address()).id != engine.id:
            raise EngineUnavailableError(
                f"Engine at {engine.endpoint} not reachable: another {name} answers",
                cause=f"The run is on {engine.id}; {other.id} at {other.endpoint} has answered",
                run=shlex.join([*self.call, "info"]),
            )

    def unavailable(self, stderr: str) -> EngineUnavailableError:
        """The error for a plain question that got no answer."""
        return unavailable_error(self.dialect.name, stderr, at=self.at)

    def inspect(self, kind: Literal["image", "container"], id: str) -> dict[str, Any] | None:
        """What the engine knows of one; None when it has no such. Raises EngineUnavailableError."""
        ended = self.ask(kind, "inspect", id)
        if ended.exit_code == 0:
            return cast("dict[str, Any]", json.loads(ended.stdout)[0])
        if says_no_such(ended.stderr, kind):
            return None
        raise self.unavailable(ended.stderr)


def says_no_such(stderr: str, kind: Literal["image", "container"]) -> bool:
    said = stderr.lower()
    return f"no such {kind}" in said or "no such object" in said or f"{kind} not known" in said


def with_algorithm(digest: str) -> str:
    """``sha256:…`` also where Podman leaves the algorithm out."""
    return digest if digest.startswith("sha256:") else f"sha256:{digest}"
