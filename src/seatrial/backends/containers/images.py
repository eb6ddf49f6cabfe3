"""EngineImages: the image store of Docker or Podman on this machine."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from secrets import token_hex
from typing import Any, cast

from seatrial.backends.base import Freed, ImageFacts
from seatrial.backends.containers.client import ANSWER_TIMEOUT_S, EngineClient, with_algorithm
from seatrial.backends.containers.engine_errors import last_line, pull_error, start_error
from seatrial.backends.containers.run_options import RunOptions
from seatrial.backends.remembered import remembered
from seatrial.errors import CommandTimeoutError, EngineUnavailableError, ImageError, UsageError
from seatrial.job.cluster_config import registry_host
from seatrial.system import command

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
        self.name = client.traits.name
        self.call = client.call

    def image(self, reference: str) -> ImageFacts | None:
        question = ("image", *self.call, reference)
        inspected = remembered(
            question, lambda: self._client.inspect("image", reference), lambda told: told is not None
        )
        return image_facts(inspected) if inspected is not None else None

    def pull(self, reference: str, progress: Callable[[str], None] | None = None) -> ImageFacts:
        from python_on_whales.exceptions import DockerException

        try:
            lines = self._client.whales().image.pull(reference, stream_logs=True)
            for _, line in cast(Iterable[tuple[str, bytes]], lines):
                if progress is not None:
                    progress(line.decode(errors="replace").rstrip())
        except DockerException as error:
            raise pull_error(self.name, reference, error.stderr or "") from error
        facts = self.image(reference)
        if facts is None:
            raise pull_error(self.name, reference, "the engine pulled it but no longer has it")
        return facts

    def push(self, reference: str) -> None:
        from python_on_whales.exceptions import DockerException

        registry = registry_host(reference)
        if registry is None:
            raise UsageError(
                f"{reference} is not pushed: it names no registry, and {self.name} would choose one",
                run='seatrial run … with [kubernetes] registry = "HOST/NAMESPACE", such as "ghcr.io/me"',
            )
        try:
            self._client.whales().image.push(reference, quiet=True)
        except DockerException as error:
            raise ImageError(
                f"{reference} cannot be pushed: {last_line(error.stderr or '')}",
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
        return cast("Iterator[bytes]", self._client.whales().image.save(reference))

    def tag(self, reference: str, name: str) -> None:
        command.check([*self.call, "tag", reference, name], timeout_s=ANSWER_TIMEOUT_S)

    def remove(self, reference: str) -> None:
        self._client.ask("rmi", reference)

    def free_unused(self, *, repository: str | None, idle_s: float, dry_run: bool) -> Freed:
        from seatrial.backends.containers import own_storage  # a plan and a run free nothing

        return own_storage.free(self._client, repository=repository, idle_s=idle_s, dry_run=dry_run)

    def storage_root(self) -> Path | None:
        told = self._client.ask("info", "--format", self._client.traits.storage_root).stdout.strip()
        return Path(told) if told and Path(told).is_dir() else None

    def check_builder(self) -> None:
        from python_on_whales.exceptions import DockerException

        client = self._client.whales()
        if not self._client.traits.buildkit:
            return
        try:
            client.buildx.version()
        except DockerException as error:
            raise EngineUnavailableError(
                "Docker has no buildx, and its legacy builder cannot build this image",
                cause=last_line(error.stderr or ""),
                run="sudo apt-get install docker-buildx-plugin   # docker-buildx on Debian and Ubuntu",
            ) from error

    def build(
        self, context: Path, tag: str, *, network: str | None, secrets: Sequence[str], labels: Mapping[str, str]
    ) -> Iterator[str]:
        from python_on_whales.exceptions import DockerException

        buildkit = self._client.traits.buildkit
        try:
            yield from self._client.whales().buildx.build(  # type: ignore[misc]  # an iterator when it streams
                context,
                progress="plain" if buildkit else "auto",
                load=buildkit,
                network=network,
                secrets=list(secrets),
                labels=dict(labels),
                tags=tag,
                stream_logs=True,
            )
        except DockerException as error:
            raise ImageError(f"{tag} does not build: {last_line(error.stderr or '')}") from error


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
