"""What a service's Dockerfile says of the image that will be built from it: whether it serves, and its command."""

from __future__ import annotations

import json
import shlex
from contextlib import suppress
from pathlib import Path

from seatrial.errors import SeatrialError, UsageError
from seatrial.images.lint.dockerfile import Dockerfile, read_dockerfile
from seatrial.pipelines.compose.service import ImageSays, Service
from seatrial.system.project_files import is_there, read_bytes

_MOST_BYTES = 200_000


def dockerfile_says(service: Service) -> ImageSays | None:
    """None where there is no Dockerfile to be read. What its base image says stays unknown until it is here."""
    text = _text(service)
    if text is None:
        return None
    file = read_dockerfile(text)
    if not file.stages:
        return None
    return ImageSays(
        ports=any(True for _ in file.of("EXPOSE")),
        health_check=any(not each.value.upper().startswith("NONE") for each in file.of("HEALTHCHECK")),
        entrypoint=_words(file, "ENTRYPOINT"),
        cmd=_words(file, "CMD"),
    )


def _text(service: Service) -> str | None:
    build = service.build or {}
    if inline := build.get("dockerfile_inline"):
        return str(inline)
    if service.context is None:
        return None
    path = service.context / Path(build.get("dockerfile", "Dockerfile"))
    with suppress(SeatrialError, OSError):
        if is_there(path):
            data = read_bytes(path, inside=None, limit_bytes=_MOST_BYTES, refusal=UsageError)
            return data.decode("utf-8", "replace")
    return None


def _words(file: Dockerfile, name: str) -> tuple[str, ...]:
    """Of the last one, in either form; only for guesses."""
    value = next((each.value for each in reversed(list(file.of(name)))), "")
    if value.startswith("["):
        with suppress(ValueError):
            loaded = json.loads(value)
            return tuple(map(str, loaded)) if isinstance(loaded, list) else ()
    try:
        return tuple(shlex.split(value))
    except ValueError:
        return tuple(value.split())
