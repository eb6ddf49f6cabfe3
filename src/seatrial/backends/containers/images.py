"""EngineImages: the image store of Docker or Podman on this machine."""

from __future__ import annotations

import contextlib
import os
import shutil
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from secrets import token_hex
from typing import Any

from seatrial.backends.base import Freed, ImageFacts
from seatrial.backends.containers.client import ANSWER_TIMEOUT_S, EngineClient, with_algorithm
from seatrial.backends.containers.engine_errors import last_line, pull_error, start_error
from seatrial.backends.containers.run_options import RunOptions
from seatrial.backends.remembered import remembered
from seatrial.errors import (
    CommandError,
    CommandTimeoutError,
    EngineError,
    EngineUnavailableError,
    ImageError,
    UsageError,
)
from seatrial.job.cluster_config import registry_host
from seatrial.system import command

_CHUNK_BYTES = 1 << 20

#: Where images keep their Python, most usual first.
PYTHON_CANDIDATES = (
    "python3",
    "python",
    "/opt/venv/bin/python",
    "/usr/bin/python3",
    "/usr/local/bin/python3",
    "/opt/conda/bin/python",
)
FIND_PYTHON = "import sys; print(sys.executable); sys.exit(sys.version_info < (3, 8))"


class EngineImages:
    """The ImageStore of an engine (backends/base.py)."""

    def __init__(self, client: EngineClient) -> None:
        self._client = client
        self.name = client.dialect.name
        self.call = client.call

    def image(self, reference: str) -> ImageFacts | None:
        question = ("image", *self.call, reference)
        inspected = remembered(
            question, lambda: self._client.inspect("image", reference), lambda told: told is not None
        )
        return image_facts(inspected) if inspected is not None else None

    def pull(self, reference: str, progress: Callable[[str], None] | None = None) -> ImageFacts:
        try:
            for line in command.lines([*self.call, "image", "pull", reference]):
                if progress is not None:
                    progress(line)
        except CommandError as error:
            raise pull_error(self.name, reference, error.stderr) from error
        facts = self.image(reference)
        if facts is None:
            raise pull_error(self.name, reference, "the engine pulled it but no longer has it")
        return facts

    def push(self, reference: str) -> None:
        registry = registry_host(reference)
        if registry is None:
            raise UsageError(
                f"{reference} is not pushed: it names no registry, and {self.name} would choose one",
                run='seatrial run … with [kubernetes] registry = "HOST/NAMESPACE", such as "ghcr.io/me"',
            )
        try:
            for _ in command.lines([*self.call, "image", "push", "--quiet", reference]):
                pass
        except CommandError as error:
            raise ImageError(
                f"{reference} cannot be pushed: {last_line(error.stderr)}",
                cause=f"{registry} needs a login, is unreachable, or has no such repository",
                run=f"{self.call[0]} login {registry}",
            ) from error

    def find_python(self, reference: str) -> str | None:
        for candidate in PYTHON_CANDIDATES:
            options = RunOptions(
                reference,
                ("-c", FIND_PYTHON),
                {
                    "cap_drop": ["ALL"],
                    "entrypoint": candidate,
                    "networks": ["none"],
                    "pull": "never",
                    "read_only": True,
                    "remove": True,
                },
            )
            ended = command.run(options.argv(self.call), timeout_s=ANSWER_TIMEOUT_S)
            if ended.exit_code == 0:
                return ended.stdout.strip() or candidate
            if ended.exit_code in (125, 126):  # the engine itself failed: the next candidate would, too
                raise start_error(self.name, ended.argv, ended.exit_code, ended.stderr)
        return None

    def run_once(
        self,
        reference: str,
        argv: Sequence[str],
        *,
        timeout_s: float,
        options: Sequence[str] = (),
        input: str | None = None,
    ) -> command.Completed:
        name = f"seatrial-once-{token_hex(6)}"
        words = [*self.call, "run", "--rm", "--name", name, "--interactive", "--pull", "never", "--network", "none"]
        words += [*options, "--entrypoint", argv[0], reference, *argv[1:]]
        try:
            return command.run(words, timeout_s=timeout_s, input=input)
        except (CommandTimeoutError, KeyboardInterrupt):  # the client has ended, and the container has not
            self._client.ask("rm", "--force", "--volumes", name)
            raise

    def save(self, reference: str) -> Iterator[bytes]:
        with contextlib.closing(command.piped([*self.call, "image", "save", reference])) as archive:
            while data := os.read(archive.stdout, _CHUNK_BYTES):
                yield data
            if (code := archive.wait()) != 0:
                raise EngineError(f"{reference} cannot be saved: exit code {code}", run=f"{self.call[0]} image ls")

    def tag(self, reference: str, name: str) -> None:
        command.check([*self.call, "tag", reference, name], timeout_s=ANSWER_TIMEOUT_S)

    def remove(self, reference: str) -> None:
        self._client.ask("rmi", reference)

    def free_unused(self, *, repository: str | None, idle_s: float, dry_run: bool) -> Freed:
        from seatrial.backends.containers import own_storage  # a plan and a run free nothing

        return own_storage.free(self._client, repository=repository, idle_s=idle_s, dry_run=dry_run)

    def storage_root(self) -> Path | None:
        told = self._client.ask("info", "--format", self._client.dialect.storage_root).stdout.strip()
        return Path(told) if told and Path(told).is_dir() else None

    def check_builder(self) -> None:
        if shutil.which(self.call[0]) is None:
            raise EngineUnavailableError(f"{self.call[0]} is not installed", run=self._client.dialect.install)
        if not self._client.dialect.buildkit:
            return
        ended = self._client.ask("buildx", "version")
        if ended.exit_code != 0:
            raise EngineUnavailableError(
                "Docker has no buildx, and its legacy builder cannot build this image",
                cause=last_line(ended.stderr),
                run="sudo apt-get install docker-buildx-plugin   # docker-buildx on Debian and Ubuntu",
            )

    def build(
        self, context: Path, tag: str, *, network: str | None, secrets: Sequence[str], labels: Mapping[str, str]
    ) -> Iterator[str]:
        words = ["buildx", "build", "--progress", "plain", "--load"] if self._client.dialect.buildkit else ["build"]
        words += ["--network", network] if network else []
        words += [word for secret in secrets for word in ("--secret", secret)]
        words += [word for name, value in labels.items() for word in ("--label", f"{name}={value}")]
        try:
            yield from command.lines([*self.call, *words, "--tag", tag, str(context)])
        except CommandError as error:
            raise ImageError(f"{tag} does not build: {last_line(error.stderr)}") from error


def image_facts(inspected: dict[str, Any]) -> ImageFacts:
    """One entry of ``image inspect``, which Docker and Podman print alike but for the prefix of the ID."""
    config = inspected.get("Config") or {}
    # Podman gives a local build a digest, too, of a repository that is nowhere.
    digests = [digest for digest in inspected.get("RepoDigests") or [] if not digest.startswith("localhost/")]
    return ImageFacts(
        id=with_algorithm(inspected["Id"]),
        digest=digests[0].partition("@")[2] if digests else None,
        entrypoint=tuple(config.get("Entrypoint") or ()),
        cmd=tuple(config.get("Cmd") or ()),
        env=dict(line.partition("=")[::2] for line in config.get("Env") or ()),
        workdir=config.get("WorkingDir") or "",
    )
