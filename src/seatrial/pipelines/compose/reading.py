"""Reading a Compose file: found, checked for YAML, and resolved by Compose itself, whose words get their line."""

from __future__ import annotations

import json
import os
import re
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from seatrial.errors import UsageError
from seatrial.pipelines.compose.client import Compose, unescaped
from seatrial.pipelines.compose.file_names import up_command
from seatrial.pipelines.compose.lines import MAX_BYTES, Lines, Place, read_document
from seatrial.pipelines.compose.refusals import blank_variables, in_words, show
from seatrial.pipelines.compose.service import COMPLETED, Service
from seatrial.system.project_files import is_there, read_bytes
from seatrial.system.typed_path import as_typed, from_here

#: Source: distribution/reference, reference.go, without the lengths.
_PART = r"[a-z0-9]+(?:(?:\.|_|__|-+)[a-z0-9]+)*"
_IMAGE = re.compile(rf"(?:[\w.-]+(?::\d+)?/)?{_PART}(?:/{_PART})*(?::\w[\w.-]*)?(?:@[\w+.-]+:[0-9a-fA-F]+)?")


@dataclass(frozen=True)
class ComposeFile:
    """A Compose file as the user has it and as Compose resolves it.

    Attributes:
        name: Compose's project, which its containers and volumes are named after.
        config: all of ``docker compose config``, dollars as they are meant.
        services: those that are asked for, and what they need; in the file's order.
        names: of the services that were asked for; () for all.
        unset: variables that it names, that are not set and have no default: Compose puts nothing in their place.
    """

    compose: Compose
    lines: Lines
    name: str
    config: Mapping[str, Any]
    services: Mapping[str, Service]
    unset: tuple[str, ...] = ()
    names: tuple[str, ...] = ()

    @property
    def path(self) -> Path:
        return self.compose.files[0]

    @property
    def command(self) -> str:
        """What brings it up, as it would be typed here."""
        return up_command(self.compose.files, self.compose.environ, self.names)

    def place(self, service: str, *path: str) -> Place:
        """Where a service says something."""
        return self.lines.place("services", service, *path)

    def with_services(self, services: Mapping[str, Service]) -> ComposeFile:
        return replace(self, services=services)


def read_compose(files: Sequence[Path], program: Compose, names: Sequence[str] = ()) -> ComposeFile:
    """Read, and have Compose resolve: variables, env files, extends, includes, profiles.

    Args:
        files: the user's. program: Compose, of any files.
        names: services that are asked for; () for all of the active profiles.

    Raises:
        UsageError: with the line: not YAML, or what Compose says is wrong with it.
        EngineUnavailableError: there is no Compose.
    """
    paths = tuple(Path(os.path.abspath(file)) for file in files)  # noqa: PTH100  # links stay as the user has them
    for path in paths:
        if not path.is_file():
            raise UsageError(f"There is no Compose file {from_here(path)}", run=f"ls {as_typed(path.parent)}")
    lines = Lines([read_document(path) for path in paths])
    for place, key in lines.duplicates():
        raise UsageError(f"{place}: the key {key} is written twice", run=f"sed -n {place.line}p {as_typed(place.file)}")
    compose = replace(program, files=paths)
    ended = compose.ask("config", "--format", "json", *names)
    if ended.exit_code != 0:
        raise in_words(ended, compose, lines)
    config = unescaped(json.loads(ended.stdout))
    _refuse_missing_files(config, lines)
    _refuse_unset_secrets(config, lines, compose)
    found = config.get("services") or {}
    awaited = {
        name
        for each in found.values()
        for name, how in (each.get("depends_on") or {}).items()
        if how.get("condition") == COMPLETED
    }
    services = {
        name: Service(name, each, str(each.get("image") or f"{config['name']}-{name}"), awaited=name in awaited)
        for name, each in found.items()
    }
    if not services:
        raise _no_service(compose)
    unset = blank_variables(ended.stderr)
    order = _order(lines, services)
    file = ComposeFile(
        compose, lines, str(config["name"]), config, {name: services[name] for name in order}, unset, tuple(names)
    )
    _refuse_no_images(file)
    return file


def _refuse_no_images(file: ComposeFile) -> None:
    """Names that no image can have, most often of variables that are not set."""
    for name, service in file.services.items():
        if not _IMAGE.fullmatch(service.image):
            place = file.place(name, "image")
            raise UsageError(
                f'{place}: the image of {name} is "{service.image}", which is no image\'s name',
                cause=f"not set, and so empty: {', '.join(file.unset)}" if file.unset else None,
                run=f"export {file.unset[0]}=…" if file.unset else show(place),
            )


def _no_service(compose: Compose) -> UsageError:
    profiles = compose.ask("config", "--profiles").stdout.split()
    return UsageError(
        f"{from_here(compose.files[0])} has no service to bring up",
        cause=f"Every service belongs to a profile: {', '.join(profiles)}" if profiles else "services: is empty",
        run=f"{up_command(compose.files, compose.environ)} --profile {shlex.quote(profiles[0])}"
        if profiles
        else f"cat {as_typed(compose.files[0])}",
    )


def _order(lines: Lines, services: Mapping[str, Service]) -> list[str]:
    """As they stand in the files; Compose sorts them."""
    return sorted(services, key=lambda name: (lines.has("services", name), lines.place("services", name).line))


def _refuse_unset_secrets(config: Mapping[str, Any], lines: Lines, compose: Compose) -> None:
    """Secrets and configs of variables, which Compose misses when it starts their service."""
    beside = compose.files[0].parent / ".env"
    if "COMPOSE_ENV_FILES" in compose.environ:
        return
    text = read_bytes(beside, inside=None, limit_bytes=MAX_BYTES).decode("utf-8", "replace") if is_there(beside) else ""
    for kind in ("secrets", "configs"):
        used = {each["source"] for one in (config.get("services") or {}).values() for each in one.get(kind) or ()}
        for name, each in (config.get(kind) or {}).items():
            variable = each.get("environment")
            if not variable:
                continue
            there = variable in compose.environ or re.search(
                rf"(?m)^[ \t]*(?:export[ \t]+)?{re.escape(variable)}[ \t]*[=:]", text
            )
            if name in used and not there:
                raise UsageError(
                    f"{lines.place(kind, name)}: the {kind[:-1]} {name} is the variable {variable}, which is not set",
                    run=f"export {shlex.quote(variable)}=…",
                )


def _refuse_missing_files(config: Mapping[str, Any], lines: Lines) -> None:
    """Dockerfiles and secrets, which Compose misses only when it is half through."""
    for name, service in (config.get("services") or {}).items():
        build = service.get("build") or {}
        context = build.get("context")
        if not context or "://" in context or context.startswith("git@") or "dockerfile_inline" in build:
            continue
        place = lines.place("services", name, "build")
        if not Path(context).is_dir():
            raise UsageError(
                f"{place}: {name} is built from {from_here(context)}, which is not there",
                run=f"ls {as_typed(Path(context).parent)}",
            )
        dockerfile = Path(context) / build.get("dockerfile", "Dockerfile")
        if not dockerfile.is_file():
            raise UsageError(
                f"{place}: {name} has no Dockerfile: there is no {from_here(dockerfile)}",
                run=f"ls {as_typed(context)}",
            )
    for kind in ("secrets", "configs"):
        for name, each in (config.get(kind) or {}).items():
            if "file" in each and not Path(each["file"]).exists():
                raise UsageError(
                    f"{lines.place(kind, name)}: the {kind[:-1]} {name} is read from {from_here(each['file'])}, "
                    "which is not there",
                    run=f"ls {as_typed(Path(each['file']).parent)}",
                )
