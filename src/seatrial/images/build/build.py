"""Build an ImagePlan with the engine's own BuildKit or Buildah."""

from __future__ import annotations

import os
import tempfile
import time
from collections import deque
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path, PurePath

from seatrial.backends.base import Echo
from seatrial.backends.containers.images import ImageStore
from seatrial.errors import DiskError, ImageError
from seatrial.images.build.checks import check_stack, without_cuda
from seatrial.images.build.failure import explain, readable
from seatrial.images.build.progress import CACHED, PULLING, READY
from seatrial.images.build.size import check_space
from seatrial.images.dockerfile.context import wheel_bytes
from seatrial.images.dockerfile.layers import PROGRAM, TOOLS, program
from seatrial.images.dockerfile.render import PIP_SECRET, SLIMMER, WHEELS
from seatrial.images.slim.options import slimmer_bytes
from seatrial.images.sources import digest_of_wheels
from seatrial.job.plan import ImagePlan
from seatrial.job.units import format_bytes, format_seconds
from seatrial.system import nofollow

#: Lines of output that a failed build is explained from: pip's longest dependency conflict fits.
_REMEMBERED_LINES = 400


@dataclass(frozen=True)
class BuildResult:
    """Hold a built image. ``image_id``: ``sha256:…``; ``seconds``: of the whole call; ``cached``: nothing was built."""

    image_id: str
    env: Mapping[str, str]
    seconds: float
    cached: bool

    def words(self, size_bytes: int | None) -> str:
        """Return ``image ready (cached)``, or ``image ready: 1.4 GB, built in 41 s``."""
        if self.cached:
            return CACHED
        size = f"{format_bytes(size_bytes)}, " if size_bytes is not None else ""
        return f"{READY}: {size}built in {format_seconds(self.seconds)}"


def build(
    image: ImagePlan,
    *,
    store: ImageStore,
    progress: Echo,
    pip_conf: str | None = None,
    labels: Mapping[str, str] | None = None,
) -> BuildResult:
    """Make the image exist under its tag. A tag that exists is the image: its digits hash all that goes in.

    The build gets a throw-away tag first; the real one appears in the end or, interrupted or failed, not at all.

    Args:
        progress: called with each line of the build as it happens.
        pip_conf: text of plan.pip_conf, a secret of the build; in no layer and no file that stays.
        labels: on top of the Dockerfile's, e.g. origin_labels; the tag does not depend on them.

    Raises:
        ImageError: names the failing step, the reason in one sentence and the next command; or what was built is
            another build of the framework than was planned.
        EngineUnavailableError: no engine, or Docker without buildx.
        DiskError: the context cannot be written, or the engine's disk has too little space for the image.
    """
    if image.dockerfile is None:
        raise ValueError(f"{image.tag} is an existing image; there is nothing to build")
    started = time.monotonic()
    if (present := store.image(image.tag)) is None:
        store.check_builder()
        check_space(image, store)
        with _context(image, pip_conf) as (context, secrets):
            _build(store, image, context, secrets, progress, labels or {})
    built = present or store.image(image.tag)
    if built is None:
        message = f"{image.tag} was built but no longer exists"
        raise ImageError(message, cause="another program removed it", run="seatrial run …")
    return BuildResult(built.id, built.env, time.monotonic() - started, cached=present is not None)


@contextmanager
def _context(image: ImagePlan, pip_conf: str | None) -> Iterator[tuple[Path, list[str]]]:
    """Provide a fresh folder with the files that the plan lists and nothing else, and ``--secret`` arguments."""
    with tempfile.TemporaryDirectory(prefix="seatrial-build-") as folder:
        context = Path(folder) / "context"
        try:
            write_context(image, context)
            secrets = []
            for name, path in sorted(image.secrets.items()):
                with (secret := Path(folder) / name).open("xb") as file:
                    nofollow.copy_file(Path(path), file)
                secrets.append(f"id={name},src={secret}")
            if pip_conf is not None:
                secret = Path(folder) / PIP_SECRET
                secret.touch(mode=0o600)
                secret.write_text(pip_conf, encoding="utf-8")
                secrets.append(f"id={PIP_SECRET},src={secret}")
        except OSError as error:
            raise DiskError(f"Cannot write the build context in {folder}: {error}", run=f"df -h {folder}") from error
        yield context, secrets


def context_of(image: ImagePlan) -> dict[str, bytes | Path]:
    """Return the Dockerfile and what it copies or mounts: contents, and paths of files on the host."""
    contents: dict[str, bytes | Path] = {"Dockerfile": str(image.dockerfile).encode()}
    contents[f"{TOOLS}/{PROGRAM}"] = program()
    contents |= {name: text.encode() for name, text in image.context_texts.items()}
    if image.own_wheel:
        contents[image.own_wheel] = wheel_bytes()
    if image.slimmed:
        folders = {PurePath(name).parent for name in image.context_texts}
        contents |= dict.fromkeys((f"{folder}/{SLIMMER}" for folder in folders), slimmer_bytes())
    return contents | {name: Path(source) for name, source in image.context_files.items()}


def write_context(image: ImagePlan, context: Path) -> None:
    """Write the context, following no newer link. Raises OSError, UntrustedPathError, DiskError, ImageError."""
    nofollow.write_tree(context.parent, context.name, context_of(image))
    wheels = sorted((context / WHEELS).glob("*"))
    if wheels and f"={digest_of_wheels(wheels)}\n" not in str(image.dockerfile):
        raise ImageError("The wheels of image.find_links have changed since they were planned", run="seatrial run …")


def _build(
    store: ImageStore, image: ImagePlan, context: Path, secrets: list[str], progress: Echo, labels: Mapping[str, str]
) -> None:
    unfinished = f"{image.tag}-unfinished-{os.getpid()}"
    last_lines: deque[str] = deque(maxlen=_REMEMBERED_LINES)
    network = None if image.network == "default" else image.network
    if image.stack.get("build") == "cpu" and not image.index_decides:  # it ends when pip takes a CUDA build
        texts = [line for text in image.context_texts.values() for line in text.splitlines()]
        progress = without_cuda(progress, texts, image=True)
    lists = (text for name, text in image.context_texts.items() if name.endswith("requirements.txt"))
    lines = [line for text in lists for line in text.splitlines() if line and line[0] not in "-# "]
    if any(" --hash=" in line for line in lines):
        progress(f"packages to install: {len(lines)}")
    try:
        try:
            for line in store.build(context, unfinished, network=network, secrets=secrets, labels=labels):
                if text := readable(line):
                    last_lines.append(line.rstrip())  # with BuildKit's numbers: they name the failed step
                    progress(text)
        except ImageError as error:
            raise explain(list(last_lines), image=image, engine=store.name) from error
        check_stack(image, unfinished, store)
        store.tag(unfinished, image.tag)
    finally:
        store.remove(unfinished)  # the name alone: a finished image keeps its real one; a failed build has none


def pull(store: ImageStore, reference: str, progress: Echo) -> None:
    """Make the image present. Raises ImageError naming the reference and the next command."""
    began_s = time.monotonic()
    progress(f"{PULLING}{reference}")
    store.pull(reference, progress)
    progress(f"{READY}: {reference}, pulled in {format_seconds(time.monotonic() - began_s)}")
