"""Build an ImagePlan with the engine's own BuildKit or Buildah; measure what came out."""

from __future__ import annotations

import os
import shutil
import tempfile
import time
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

from python_on_whales import DockerClient
from python_on_whales.client_config import ClientNotFoundError
from python_on_whales.exceptions import DockerException, NoSuchImage

from seatrial.errors import DiskError, EngineUnavailableError, ImageError
from seatrial.images.building.build_failure import explain, readable
from seatrial.images.building.heartbeat import Silence
from seatrial.images.building.space import check_space
from seatrial.images.building.wheel import wheel_bytes
from seatrial.images.dockerfiles.write import PIP_SECRET, SLIMMER
from seatrial.images.slim import slimmer_bytes
from seatrial.job.plan import ImagePlan

#: Lines of output that a failed build is explained from: pip's longest dependency conflict fits.
_REMEMBERED_LINES = 400


@dataclass(frozen=True)
class BuildResult:
    """A built image.

    Attributes:
        image_id: ``sha256:…`` of its configuration.
        size_bytes: uncompressed, base included, as the engine counts it.
        seconds: wall time of the whole call.
        cached: the tag was there already; nothing was built.
    """

    image_id: str
    size_bytes: int
    seconds: float
    cached: bool


def build(
    image: ImagePlan,
    *,
    engine: str,
    progress: Callable[[str], None],
    pip_conf: str | None = None,
    client_call: Sequence[str] | None = None,
    scratch: Path | None = None,
    labels: Mapping[str, str] | None = None,
) -> BuildResult:
    """Make the image exist under its tag. A tag that exists is the image: its digits hash all that goes in.

    The build gets a throw-away tag first; the real one appears in the end or, interrupted or failed, not at all.

    Args:
        progress: called with each line of the build as it happens.
        pip_conf: text of plan.pip_conf, a secret of the build; in no layer and no file that stays.
        client_call: the engine's executable and global options; default is its name.
        scratch: folder to make the build context in, for engines that cannot read /tmp (Docker's snap).
        labels: on top of the Dockerfile's, e.g. origin_labels; the tag does not depend on them.

    Raises:
        ImageError: names the failing step, the reason in one sentence and the next command.
        EngineUnavailableError: no engine, or Docker without buildx.
        DiskError: the context cannot be written, or the engine's disk has too little room for the image.
    """
    if image.dockerfile is None:
        raise ValueError(f"{image.tag} is an existing image; there is nothing to build")
    started = time.monotonic()
    client = DockerClient(client_call=list(client_call or [engine]))
    present = _inspect(client, image.tag)
    if present is None:
        _check_builder(client, engine)
        check_space(image, engine, list(client_call or [engine]))
        with _context(image, pip_conf, scratch) as (context, secrets):
            _build(client, engine, image, context, secrets, progress, labels or {})
    image_id, size_bytes = present or _inspect(client, image.tag) or _vanished(image.tag)
    return BuildResult(image_id, size_bytes, time.monotonic() - started, cached=present is not None)


def push(tag: str, *, progress: Callable[[str], None], client_call: Sequence[str]) -> None:
    """Send an image to the registry in its name.

    Raises ImageError naming the registry and the next command.
    """
    registry = tag.partition("/")[0]
    progress(f"pushing {tag}")
    try:
        DockerClient(client_call=list(client_call)).image.push(tag, quiet=True)
    except DockerException as error:
        raise ImageError(
            f"{tag} cannot be pushed: {_last_line(error)}",
            cause=f"{registry} needs a login, is unreachable, or has no such repository",
            run=f"{client_call[0]} login {registry}",
        ) from error


def image_size(engine: str, tag: str, client_call: Sequence[str] | None = None) -> int:
    """Uncompressed bytes of an image in the engine's store, as the engine counts them. Raises ImageError."""
    found = _inspect(DockerClient(client_call=list(client_call or [engine])), tag)
    if found is None:
        raise ImageError(f"{engine} has no image {tag}", run=f"{engine} pull {tag}")
    return found[1]


def _inspect(client: DockerClient, tag: str) -> tuple[str, int] | None:
    """(image ID, size in bytes), or None when the engine has no such image."""
    try:
        image = client.image.inspect(tag)
        return f"sha256:{image.id.removeprefix('sha256:')}", image.size  # Podman leaves the algorithm out
    except NoSuchImage:
        return None
    except (DockerException, ClientNotFoundError) as error:
        call = " ".join(map(str, client.client_config.client_call))
        raise EngineUnavailableError(
            f"`{call}` does not respond", cause=_last_line(error), run=f"{call} info"
        ) from error


def _last_line(error: Exception) -> str:
    text = (error.stderr or "") if isinstance(error, DockerException) else str(error)
    return text.strip().rpartition("\n")[2]


def _vanished(tag: str) -> tuple[str, int]:
    raise ImageError(f"{tag} was built but no longer exists", cause="another program removed it", run="seatrial run …")


def _check_builder(client: DockerClient, engine: str) -> None:
    """Docker's legacy builder knows neither cache mounts nor secrets, so buildx must be there."""
    if engine == "podman":
        return
    try:
        client.buildx.version()
    except DockerException as error:
        raise EngineUnavailableError(
            "Docker has no buildx, and its legacy builder cannot build this image",
            cause=_last_line(error),
            run="sudo apt-get install docker-buildx-plugin   # docker-buildx on Debian and Ubuntu",
        ) from error


@contextmanager
def _context(image: ImagePlan, pip_conf: str | None, scratch: Path | None) -> Iterator[tuple[Path, list[str]]]:
    """A fresh folder with the files that the plan lists and nothing else, and ``--secret`` arguments."""
    with tempfile.TemporaryDirectory(prefix="seatrial-build-", dir=scratch) as folder:
        context = Path(folder) / "context"
        try:
            _write_context(image, context)
            secrets = [f"id={name},src={path}" for name, path in sorted(image.secrets.items())]
            if pip_conf is not None:
                secret = Path(folder) / PIP_SECRET
                secret.touch(mode=0o600)
                secret.write_text(pip_conf, encoding="utf-8")
                secrets.append(f"id={PIP_SECRET},src={secret}")
        except OSError as error:
            raise DiskError(f"Cannot write the build context in {folder}: {error}", run=f"df -h {folder}") from error
        yield context, secrets


def _write_context(image: ImagePlan, context: Path) -> None:
    contents = {"Dockerfile": str(image.dockerfile).encode()}
    contents |= {name: text.encode() for name, text in image.context_texts.items()}
    if image.own_wheel:
        contents[image.own_wheel] = wheel_bytes()
    if image.slimmed:
        contents[SLIMMER] = slimmer_bytes()
    for name in (*contents, *image.context_files):
        (context / name).parent.mkdir(parents=True, exist_ok=True)
    for name, data in contents.items():
        (context / name).write_bytes(data)
    for name, source in image.context_files.items():
        shutil.copyfile(source, context / name)


def _build(
    client: DockerClient,
    engine: str,
    image: ImagePlan,
    context: Path,
    secrets: list[str],
    progress: Callable[[str], None],
    labels: Mapping[str, str],
) -> None:
    unfinished = f"{image.tag}-unfinished-{os.getpid()}"
    last_lines: deque[str] = deque(maxlen=_REMEMBERED_LINES)
    try:
        stream: Iterator[str] = client.buildx.build(  # type: ignore[assignment]  # an iterator when it streams
            context,
            # Podman 4 has no --progress and no --load: "auto" and False write neither.
            progress="plain" if engine == "docker" else "auto",
            load=engine == "docker",
            network=None if image.network == "default" else image.network,
            secrets=secrets,
            labels=dict(labels),
            tags=unfinished,
            stream_logs=True,
        )
        with Silence(progress) as telling:
            for line in stream:
                if text := readable(line):
                    last_lines.append(text)
                    telling.line(text)
        client.image.tag(unfinished, image.tag)
    except DockerException as error:
        raise explain(list(last_lines), image=image, engine=engine) from error
    finally:
        with suppress(DockerException):  # a failed build has none
            client.image.remove(unfinished)  # the name alone: a finished image keeps its real one
