"""Images of an engine: pull, push, build, inspect, and free what is ours and unused."""

from __future__ import annotations

import contextlib
import json
import os
import re
import shutil
from collections.abc import Iterator, Mapping, Sequence
from datetime import datetime, timezone
from pathlib import Path
from secrets import token_hex
from typing import Any, NamedTuple

from seatrial import errors
from seatrial.backends.base import Echo, Freed, ImageFacts
from seatrial.backends.containers.client import ANSWER_TIMEOUT_S, EngineClient, last_line, pull_error, start_error
from seatrial.job.cluster import registry_host
from seatrial.system import command
from seatrial.system.command import remembered

#: Label of each image that a Dockerfile of ours makes, and the comment at the end of each of its steps
#: (images/dockerfile/render.py).
BUILT_LABEL = "seatrial.built=true"
STEP_MARK = "# seatrial"
#: A build gets a name with this in it until it is finished (images/build/build.py).
_UNFINISHED = "-unfinished-"
#: Engines add up every layer for their disk use; Docker took 9 s for 40 GB on a slow disk.
_DISK_TIMEOUT_S = 300.0
#: Docker's units are decimal: https://pkg.go.dev/github.com/docker/go-units#HumanSize
_UNITS = {"": 1, "k": 1e3, "M": 1e6, "G": 1e9, "T": 1e12}
#: A step is removed before the one it stands on; one that stays after this many rounds has a child that is not ours.
_ROUNDS = 20

_CHUNK_BYTES = 1 << 20

#: Paths of Python in images, the most usual first.
PYTHON_CANDIDATES = (
    "python3",
    "python",
    "/opt/venv/bin/python",
    "/usr/bin/python3",
    "/usr/local/bin/python3",
    "/opt/conda/bin/python",
)
FIND_PYTHON = "import sys; print(sys.executable); sys.exit(sys.version_info < (3, 8))"


class OwnImage(NamedTuple):
    """An image with our label, and with names of ours alone; ``used``: a container has it."""

    id: str
    names: tuple[str, ...]
    created: str
    used: bool

    @property
    def repository(self) -> str:
        return self.names[0].rpartition(":")[0].removeprefix("localhost/")


class CacheStep(NamedTuple):
    """One record of BuildKit's cache that a step of ours made."""

    id: str
    size_bytes: float
    idle_s: float


def own_images(client: EngineClient) -> list[OwnImage]:
    """List every finished image of ours, the oldest first."""
    row = "{{.ID}}\t{{.Repository}}:{{.Tag}}\t{{.CreatedAt}}"
    listed = client.ask("images", "--no-trunc", "--filter", f"label={BUILT_LABEL}", "--format", row).stdout
    in_use = set(client.ask("ps", "--all", "--no-trunc", "--format", "{{.Image}}").stdout.split())
    names: dict[str, list[str]] = {}
    created: dict[str, str] = {}
    for line in reversed(listed.splitlines()):  # engines list the newest first
        image_id, name, created_at = line.split("\t")
        names.setdefault(image_id, []).extend([] if "<none>" in name else [name])
        created[image_id] = created_at
    found = [
        OwnImage(image_id.removeprefix("sha256:"), tuple(names[image_id]), created[image_id], used=used)
        for image_id in names
        if names[image_id] and all(_is_our_name(name) for name in names[image_id])
        for used in [bool(in_use & {image_id, image_id.removeprefix("sha256:"), *names[image_id]})]
    ]
    return sorted(found, key=lambda image: image.created)


def _is_our_name(name: str) -> bool:
    """Return whether images/plan.py gave the name. Images made from ours have our label, too, but other names."""
    return name.removeprefix("localhost/").startswith("seatrial/") and _UNFINISHED not in name


def unused_images(images: Sequence[OwnImage], repository: str | None) -> list[OwnImage]:
    """Return the unused images; of a ``repository`` all but the last listed. Pure."""
    named = [image for image in images if image.repository == repository][:-1]
    return [image for image in (images if repository is None else named) if not image.used]


def own_steps(client: EngineClient) -> list[CacheStep]:
    """List cached steps of ours that no image has and no build uses; none of Podman, whose cache are its images."""
    return [
        CacheStep(record["ID"].rstrip("*"), _bytes(record["Size"]), _idle_s(record))
        for record in sorted(_disk_use(client, "BuildCache"), key=lambda one: str(one["CreatedAt"]), reverse=True)
        if _is_ours(record["Description"]) and record["InUse"] == record["Shared"] == "false"
    ]


def _is_ours(description: str) -> bool:
    """Return True if the step's own text ends with our mark."""
    return description.strip().endswith(STEP_MARK)


def _drop_steps(client: EngineClient, steps: Sequence[CacheStep]) -> list[CacheStep]:
    """Remove steps; return those that are gone. A step stays until its children, ours or not, are gone."""
    left = list(steps)
    for _ in range(_ROUNDS):
        for step in left:
            words = ("builder", "prune", "--force", "--all", "--filter", f"id={step.id}")
            client.ask(*words, timeout_s=_DISK_TIMEOUT_S)
        there = {step.id for step in own_steps(client)} if left else set()
        still = [step for step in left if step.id in there]
        if len(still) == len(left):
            break
        left = still
    return [step for step in steps if step not in left]


def _disk_bytes(client: EngineClient) -> float:
    """Return the size of all images, as the engine counts them: to four digits."""
    printed = client.ask("system", "df", "--format", "{{.Type}}\t{{.Size}}", timeout_s=_DISK_TIMEOUT_S).stdout
    rows = (line.partition("\t")[::2] for line in printed.splitlines())
    return sum(_bytes(size) for kind, size in rows if kind == "Images")


def _disk_use(client: EngineClient, part: str) -> list[dict[str, str]]:
    """Return the entries of one part of the engine's disk use; [] from Podman, which prints them as a table."""
    if not client.dialect.buildkit:
        return []
    form = f"{{{{json .{part}}}}}"
    printed = client.ask("system", "df", "--verbose", "--format", form, timeout_s=_DISK_TIMEOUT_S).stdout
    with contextlib.suppress(json.JSONDecodeError):
        return json.loads(printed or "[]") or []
    return []


def _bytes(text: str) -> float:
    match = re.match(r"([\d.]+)\s*([kMGT]?)i?B", text.strip())
    return float(match[1]) * _UNITS[match[2]] if match else 0.0


@errors.fallback(0.0, on=ValueError)
def _idle_s(record: dict[str, str]) -> float:
    """Return the seconds since a build has used the step."""
    text = (record.get("LastUsedAt") or record.get("CreatedAt") or "")[:19]
    last = datetime.strptime(text, "%Y-%m-%d %H:%M:%S").replace(tzinfo=timezone.utc)
    return (datetime.now(timezone.utc) - last).total_seconds()


class ImageStore:
    """The images of an engine on this machine; ``call`` is its program and global options."""

    def __init__(self, client: EngineClient) -> None:
        self._client = client
        self.name = client.dialect.name
        self.call = client.call

    def image(self, reference: str) -> ImageFacts | None:
        """Look an image up in the store; None if it is not there. Raises EngineUnavailableError."""
        question = ("image", *self.call, reference)
        inspected = remembered(question, lambda: self._client.inspect("image", reference), bool)
        return image_facts(inspected) if inspected is not None else None

    def pull(self, reference: str, progress: Echo) -> ImageFacts:
        """Pull an image; ``progress`` gets the engine's lines. Raises ImageError."""
        try:
            for line in command.lines([*self.call, "image", "pull", reference]):
                progress(line)
        except errors.CommandError as error:
            raise pull_error(self.name, reference, error.stderr) from error
        if (facts := self.image(reference)) is None:
            raise pull_error(self.name, reference, "the engine pulled it but no longer has it")
        return facts

    def push(self, reference: str) -> str:
        """Push to the registry in the name; return the image by digest. Raises UsageError without one, ImageError."""
        if (registry := registry_host(reference)) is None:
            message = f"{reference} is not pushed: it names no registry, and {self.name} would choose one"
            raise errors.UsageError(message, run='in seatrial.toml: [kubernetes] registry = "ghcr.io/me"')
        try:
            for _ in command.lines([*self.call, "image", "push", "--quiet", reference]):
                pass
        except errors.CommandError as error:
            message = f"{reference} cannot be pushed: {last_line(error.stderr)}"
            cause = f"{registry} needs a login, is unreachable, or has no such repository"
            raise errors.ImageError(message, cause=cause, run=f"{self.call[0]} login {registry}") from error
        digests = (self._client.inspect("image", reference) or {}).get("RepoDigests") or ()
        return next((one for one in digests if one.startswith(f"{reference.rpartition(':')[0]}@")), reference)

    def find_python(self, reference: str) -> str | None:
        """Return the path of a Python >= 3.8 inside, found by running the image; None without one."""
        for candidate in PYTHON_CANDIDATES:
            argv, safe = (candidate, "-c", FIND_PYTHON), ("--cap-drop", "ALL", "--read-only")
            ended = self.run_once(reference, argv, timeout_s=ANSWER_TIMEOUT_S, options=safe)
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
        """Run a command in a container without a network that is removed afterwards."""
        name = f"seatrial-once-{token_hex(6)}"
        words = [*self.call, "run", "--rm", "--name", name, "--interactive", "--pull", "never", "--network", "none"]
        words += [*options, "--entrypoint", argv[0], reference, *argv[1:]]
        try:
            return command.run(words, timeout_s=timeout_s, input=input)
        except (errors.CommandTimeoutError, KeyboardInterrupt):  # the client has ended, and the container has not
            self._client.ask("rm", "--force", "--volumes", name)
            raise

    def save(self, reference: str) -> Iterator[bytes]:
        """Yield the image as a tar archive. Raises EngineError."""
        with contextlib.closing(command.Piped([*self.call, "image", "save", reference])) as archive:
            while data := os.read(archive.stdout, _CHUNK_BYTES):
                yield data
            if (code := archive.wait()) != 0:
                message = f"{reference} cannot be saved: exit code {code}"
                raise errors.EngineError(message, run=f"{self.call[0]} image ls")

    def tag(self, reference: str, name: str) -> None:
        command.check([*self.call, "tag", reference, name], timeout_s=ANSWER_TIMEOUT_S)

    def remove(self, reference: str) -> None:
        """Remove a name, and the image with its last one. No error if there is none."""
        self._client.ask("rmi", reference)

    def free_unused(self, *, repository: str | None, idle_s: float, dry_run: bool) -> Freed:
        """Remove images of our builds without a container, then the cached steps that only they had or nobody uses.

        ``repository``: images of this name but the newest; None: all. ``idle_s``: since a build used a cached step.
        """
        client = self._client
        doomed, unused = unused_images(own_images(client), repository), own_steps(client)
        idle, known = [step for step in unused if step.idle_s >= idle_s], {step.id for step in unused}
        used = _disk_use(client, "Images") if doomed else []
        unique = {each["ID"].removeprefix("sha256:"): _bytes(each["UniqueSize"]) for each in used}  # of one image alone
        if dry_run:
            size = sum(unique.get(image.id, 0.0) for image in doomed) + sum(step.size_bytes for step in idle)
            return Freed(len(doomed), len(idle), round(size))
        before = _disk_bytes(client) if doomed and not client.dialect.buildkit else 0.0
        # The engine itself refuses to remove an image in use, as force is not set.
        removed = [image for image in doomed if client.ask("rmi", *image.names).exit_code == 0]
        if not client.dialect.buildkit:
            return Freed(len(removed), 0, max(0, round(before - _disk_bytes(client))) if removed else 0)
        orphaned = [step for step in own_steps(client) if step.id not in known] if removed else []
        dropped = _drop_steps(client, [*orphaned, *idle])
        # The removed images' layers are among the orphaned steps, except those that the cache no longer had.
        uncached = sum(unique.get(image.id, 0.0) for image in removed) - sum(step.size_bytes for step in orphaned)
        return Freed(len(removed), len(dropped), round(sum(step.size_bytes for step in dropped) + max(0.0, uncached)))

    def storage_root(self) -> Path | None:
        """Return the folder of the layers; None if it is not on this machine's disk."""
        root = self._client.ask("info", "--format", self._client.dialect.storage_root).stdout.strip()
        return Path(root) if root and Path(root).is_dir() else None

    def check_builder(self) -> None:
        """Check that images can be built. Raises EngineUnavailableError: no bind mounts and secrets in builds."""
        if shutil.which(self.call[0]) is None:
            raise errors.EngineUnavailableError(f"{self.call[0]} is not installed", run=self._client.dialect.install)
        if not self._client.dialect.buildkit:
            return
        ended = self._client.ask("buildx", "version")
        if ended.exit_code != 0:
            message = "Docker has no buildx, and its legacy builder cannot build this image"
            run = "sudo apt-get install docker-buildx-plugin   # docker-buildx on Debian and Ubuntu"
            raise errors.EngineUnavailableError(message, cause=last_line(ended.stderr), run=run)

    def build(
        self, context: Path, tag: str, *, network: str | None, secrets: Sequence[str], labels: Mapping[str, str]
    ) -> Iterator[str]:
        """Build the Dockerfile in a folder; yield the lines of output. Raises ImageError.

        ``network``: for RUN; None is the engine's default. ``secrets``: ``id=NAME,src=PATH`` each.
        """
        words = ["buildx", "build", "--progress", "plain", "--load"] if self._client.dialect.buildkit else ["build"]
        words += ["--network", network] if network else []
        words += [word for secret in secrets for word in ("--secret", secret)]
        words += [word for name, value in labels.items() for word in ("--label", f"{name}={value}")]
        try:
            yield from command.lines([*self.call, *words, "--tag", tag, str(context)])
        except errors.CommandError as error:
            raise errors.ImageError(f"{tag} does not build: {last_line(error.stderr)}") from error


def image_facts(inspected: dict[str, Any]) -> ImageFacts:
    """Read one entry of ``image inspect``, which Docker and Podman print alike but for the prefix of the ID."""
    config = inspected.get("Config") or {}
    # Podman gives a local build a digest, too, of a repository that is nowhere.
    digests = [digest for digest in inspected.get("RepoDigests") or [] if not digest.startswith("localhost/")]
    return ImageFacts(
        id=f"sha256:{inspected['Id'].removeprefix('sha256:')}",
        digest=digests[0].partition("@")[2] if digests else None,
        entrypoint=tuple(config.get("Entrypoint") or ()),
        cmd=tuple(config.get("Cmd") or ()),
        env=dict(line.partition("=")[::2] for line in config.get("Env") or ()),
        workdir=config.get("WorkingDir") or "",
        ports=bool(config.get("ExposedPorts")),
        health_check=bool(config.get("Healthcheck")),
        user=str(config.get("User") or ""),
        layers=tuple((inspected.get("RootFS") or {}).get("Layers") or ()),
    )
