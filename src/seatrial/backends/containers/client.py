"""EngineClient: an engine's command line, asked with a time limit; EngineTraits: what is its own in it.

Images are built, pulled, pushed and saved through python-on-whales, which streams what they print. Containers,
questions, and whatever must have an end, go to the same command line with a time-out, which python-on-whales has not: a
daemon that hangs must not hang us.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal, cast

from seatrial.backends.containers.engine_errors import as_addressed, unavailable_error
from seatrial.backends.containers.info import read_info
from seatrial.errors import CommandTimeoutError, EngineUnavailableError
from seatrial.system import command

if TYPE_CHECKING:  # loaded where it is used: half a second that a listing of runs need not wait for
    from python_on_whales import DockerClient

INFO_TIMEOUT_S = 5.0
#: For inspect, kill, remove: milliseconds when well; beside a build that holds the store's lock on a loaded machine of
#: two cores Podman 4.3 was seen to take more than 30 s.
ANSWER_TIMEOUT_S = 120.0


@dataclass(frozen=True)
class EngineTraits:
    """What one engine says or does in another way than the other.

    Attributes:
        install, restart: commands for a person.
        info_format: ``info --format`` of it prints JSON. info_key: is in there when the engine works.
        storage_root: ``info --format`` of it prints where layers are kept.
        buildkit: it builds through buildx, which has ``--progress`` and ``--load``; Podman 4 has neither.
    """

    name: Literal["docker", "podman"]
    install: str
    restart: str
    info_format: str
    info_key: str
    storage_root: str
    buildkit: bool


class EngineClient:
    """The engine's program with its global options."""

    def __init__(self, traits: EngineTraits, call: Sequence[str] = ()) -> None:
        """``call``: default is the engine's name."""
        self.traits = traits
        self.call = list(call) or [traits.name]

    def whales(self) -> DockerClient:
        """python-on-whales' client of this engine. Raises EngineUnavailableError: it is not installed."""
        from python_on_whales import DockerClient
        from python_on_whales.client_config import ClientNotFoundError

        client = DockerClient(client_call=self.call, client_type=self.traits.name)
        try:
            client.client_config.get_client_call_with_path()
        except ClientNotFoundError as error:
            raise EngineUnavailableError(f"{self.call[0]} is not installed", run=self.traits.install) from error
        return client

    def ask(self, *words: str, timeout_s: float = ANSWER_TIMEOUT_S) -> command.Completed:
        """Ask the engine something. Raises EngineUnavailableError when it does not answer at all."""
        try:
            return command.run([*self.call, *words], timeout_s=timeout_s)
        except CommandTimeoutError as error:
            silent = EngineUnavailableError(
                f"{self.traits.name.capitalize()} did not respond within {timeout_s:g} s",
                cause="it is busy with a build or pull, it hangs, or the machine is out of memory",
                run=self.traits.restart,
            )
            raise as_addressed(silent, self.traits.name) from error

    def info(self) -> dict[str, Any]:
        """What the engine says of itself. Raises EngineUnavailableError."""
        ended = self.ask("info", "--format", self.traits.info_format, timeout_s=INFO_TIMEOUT_S)
        return read_info(self.traits.name, self.traits.info_key, ended)

    def inspect(self, kind: Literal["image", "container"], id: str) -> dict[str, Any] | None:
        """What the engine knows of one; None when it has no such. Raises EngineUnavailableError."""
        ended = self.ask(kind, "inspect", id)
        if ended.exit_code == 0:
            return cast("dict[str, Any]", json.loads(ended.stdout)[0])
        if says_no_such(ended.stderr, kind):
            return None
        raise unavailable_error(self.traits.name, ended.stderr)


def says_no_such(stderr: str, kind: Literal["image", "container"]) -> bool:
    said = stderr.lower()
    return f"no such {kind}" in said or "no such object" in said or f"{kind} not known" in said


def with_algorithm(digest: str) -> str:
    """``sha256:…`` also where Podman leaves the algorithm out."""
    return digest if digest.startswith("sha256:") else f"sha256:{digest}"
