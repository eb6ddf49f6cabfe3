"""Reading a Compose file: found, checked for YAML, and resolved by Compose itself, whose words get their line."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from seatrial.errors import UsageError
from seatrial.pipelines.compose.client import Compose, unescaped
from seatrial.pipelines.compose.file_names import COMPOSE_FILES, OVERRIDES
from seatrial.pipelines.compose.keys import SERVICE_KEYS, SINCE
from seatrial.pipelines.compose.lines import Lines, Place, read_document
from seatrial.pipelines.compose.service import Service
from seatrial.runs.services import TRACKERS
from seatrial.system import command
from seatrial.system.near import did_you_mean, nearest
from seatrial.system.typed_path import as_typed, from_here

_EXTRA_KEY = re.compile(r"(?P<path>\S+) Additional property (?P<key>\S+) is not allowed")
_UNDEFINED = re.compile(
    r'service "(?P<service>[^"]+)" (?:refers to|depends on) undefined (?P<kind>\w+) "?(?P<name>[^":]+)"?'
)
_CYCLE = re.compile(r"cycle detected: (?P<ring>.+)")
_ENV_FILE = re.compile(r"env file (?P<path>.+?) not found")
_NO_FILE = re.compile(r"open (?P<path>.+?): no such file or directory")
_UNSET = re.compile(r"interpolating (?P<path>\S+): required variable (?P<name>\w+) is missing a value:? ?(?P<why>.*)")
_SPEC = re.compile(r"invalid spec: (?P<spec>.+): (?P<what>[^:]+)$")
_BLANK = re.compile(r'The \\?"(?P<name>\w+)\\?" variable is not set')
_PATH = re.compile(r"^(?P<path>(?:services|volumes|networks|secrets|configs)(?:\.[\w\[\]-]+)*):? (?P<what>.+)")
_EXTENDED = re.compile(
    r'service "(?P<service>[^"]+)" in \S+: service "(?P<base>[^"]+)" not found(?: in (?P<file>\S+))?'
)
#: Source: distribution/reference, reference.go, without the lengths.
_PART = r"[a-z0-9]+(?:(?:\.|_|__|-+)[a-z0-9]+)*"
_IMAGE = re.compile(rf"(?:[\w.-]+(?::\d+)?/)?{_PART}(?:/{_PART})*(?::\w[\w.-]*)?(?:@[\w+.-]+:[0-9a-fA-F]+)?")
_NO_SERVICE = re.compile(r"no such service: (?P<name>\S+)")
_SERVICE = re.compile(r'service "(?P<service>[^"]+)" (?P<what>.+)')

#: Kind of thing that a service refers to → the key with which it does.
_KEYS = {"volume": "volumes", "network": "networks", "secret": "secrets", "config": "configs", "service": "depends_on"}


@dataclass(frozen=True)
class ComposeFile:
    """A Compose file as the user has it and as Compose resolves it.

    Attributes:
        name: Compose's project, which its containers and volumes are named after.
        config: all of ``docker compose config``, dollars as they are meant.
        services: those that are asked for, and what they need; in the file's order.
        unset: variables that it names, that are not set and have no default: Compose puts nothing in their place.
    """

    compose: Compose
    lines: Lines
    name: str
    config: Mapping[str, Any]
    services: Mapping[str, Service]
    unset: tuple[str, ...] = ()

    @property
    def path(self) -> Path:
        return self.compose.files[0]

    def place(self, service: str, *path: str) -> Place:
        """Where a service says something."""
        return self.lines.place("services", service, *path)

    def with_services(self, services: Mapping[str, Service]) -> ComposeFile:
        return replace(self, services=services)


def find_files(project: Path, environ: Mapping[str, str]) -> tuple[Path, ...]:
    """What ``docker compose`` without ``-f`` takes in this folder; () where there is none."""
    if listed := environ.get("COMPOSE_FILE"):
        separator = environ.get("COMPOSE_PATH_SEPARATOR") or os.pathsep
        return tuple(project / part for part in listed.split(separator) if part)
    first = next((project / name for name in COMPOSE_FILES if (project / name).is_file()), None)
    if first is None:
        return ()
    overrides = [project / name for name in OVERRIDES if (project / name).is_file()]
    return (first, *overrides[:1])


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
        raise _in_words(ended, compose, lines)
    config = unescaped(json.loads(ended.stdout))
    _refuse_missing_files(config, lines)
    services = {
        name: Service(name, each, str(each.get("image") or f"{config['name']}-{name}"))
        for name, each in (config.get("services") or {}).items()
    }
    if not services:
        raise _no_service(compose)
    unset = tuple(dict.fromkeys(_BLANK.findall(ended.stderr)))
    order = _order(lines, services)
    file = ComposeFile(compose, lines, str(config["name"]), config, {name: services[name] for name in order}, unset)
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
                run=f"export {file.unset[0]}=…" if file.unset else _show(place),
            )


def _no_service(compose: Compose) -> UsageError:
    profiles = compose.ask("config", "--profiles").stdout.split()
    return UsageError(
        f"{from_here(compose.files[0])} has no service to bring up",
        cause=f"Every service belongs to a profile: {', '.join(profiles)}" if profiles else "services: is empty",
        run=f"COMPOSE_PROFILES={profiles[0]} seatrial up" if profiles else f"cat {as_typed(compose.files[0])}",
    )


def _order(lines: Lines, services: Mapping[str, Service]) -> list[str]:
    """As they stand in the files; Compose sorts them."""
    return sorted(services, key=lambda name: (lines.has("services", name), lines.place("services", name).line))


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


def _in_words(ended: command.Completed, compose: Compose, lines: Lines) -> UsageError:
    """What Compose says is wrong, with the line where it stands."""
    said = _message(ended)
    found = next((words(match, compose, lines) for pattern, words in _WORDS if (match := pattern.search(said))), None)
    error = found or UsageError(f"{from_here(compose.files[0])}: Compose says: {said}", run=_config_command(compose))
    if error.cause is None and (blank := list(dict.fromkeys(_BLANK.findall(ended.stderr)))):
        error.cause = f"not set, and so empty: {', '.join(blank)}"
    return error


def _message(ended: command.Completed) -> str:
    """Compose's last line that is no log line, without its frame."""
    told = [line for line in ended.stderr.splitlines() if line.strip() and not line.startswith("time=")]
    said = told[-1] if told else ended.last_line()
    said = re.sub(r"^validating \S+: ", "", said.strip())
    return said.removesuffix(": invalid compose project")


def _extended(match: re.Match[str], compose: Compose, lines: Lines) -> UsageError:
    place = lines.place("services", match["service"], "extends")
    where = f"{match['file']}" if match["file"] else "the file"
    return UsageError(
        f"{place}: {match['service']} extends {match['base']}, and {where} has no such service", run=_show(place)
    )


def _no_such_service(match: re.Match[str], compose: Compose, lines: Lines) -> UsageError:
    """A name of the command line."""
    services = _services(lines)
    near = nearest(match["name"], [*services, *TRACKERS])
    meant = f"did you mean {near}?" if near else f"there are {', '.join(services)}"
    files = " ".join(f"-f {as_typed(file)}" for file in compose.files)
    return UsageError(
        f'{from_here(compose.files[0])} has no service "{match["name"]}"; {meant}',
        run=f"seatrial up {near}" if near in TRACKERS else f"seatrial up {files} {near or services[0]}",
    )


def _extra_key(match: re.Match[str], compose: Compose, lines: Lines) -> UsageError:
    path, key = match["path"].split("."), match["key"].strip("'\"")
    place = lines.place(*path, key)
    in_service = len(path) == 2 and path[0] == "services"
    if in_service and key in SINCE:
        version, now = SINCE[key], ".".join(map(str, compose.version()))
        return UsageError(
            f"{place}: {key} needs Docker Compose {version}; this one is {now}",
            cause="deploy.resources.reservations.devices says the same to every Compose v2" if key == "gpus" else None,
            run=_show(place),
        )
    hint = did_you_mean(key, SERVICE_KEYS) if in_service else ""
    return UsageError(f"{place}: Compose knows no key {key} in {match['path']}{hint}", run=_show(place))


def _undefined(match: re.Match[str], compose: Compose, lines: Lines) -> UsageError:
    kind, name = match["kind"], match["name"].strip()
    place = lines.place("services", match["service"], _KEYS.get(kind, kind), name)
    if kind == "service":
        return UsageError(f"{place}: {match['service']} depends on {name}, which is no service here", run=_show(place))
    return UsageError(
        f"{place}: {match['service']} uses the {kind} {name}, which the file does not declare",
        cause=f"At the end of the file, {kind}s: needs a line {name}:",
        run=_show(place),
    )


def _cycle(match: re.Match[str], compose: Compose, lines: Lines) -> UsageError:
    ring = match["ring"].split(" -> ")
    place = lines.place("services", ring[0], "depends_on", *ring[1:2])
    return UsageError(
        f"{place}: services wait for each other in a circle: {' → '.join(ring)}",
        cause="Each would have to start before the other",
        run=_show(place),
    )


def _env_file(match: re.Match[str], compose: Compose, lines: Lines) -> UsageError:
    path = Path(match["path"])
    for service in _services(lines):
        for way in (("env_file", path.name), ("env_file", f"./{path.name}"), ("env_file",)):
            if lines.has("services", service, *way):
                place = lines.place("services", service, *way)
                text = f"{place}: {service} reads its variables from {from_here(path)}, which is not there"
                return UsageError(text, run=_like_it(path))
    return UsageError(f"The env file {from_here(path)} is not there", run=_like_it(path))


def _like_it(path: Path) -> str:
    for suffix in (".example", ".sample", ".template", ".dist"):
        if path.with_name(path.name + suffix).is_file():
            return f"cp {as_typed(path.with_name(path.name + suffix))} {as_typed(path)}"
    return f"ls -a {as_typed(path.parent)}"


def _no_file(match: re.Match[str], compose: Compose, lines: Lines) -> UsageError:
    path = Path(match["path"])
    return UsageError(
        f"{from_here(compose.files[0])} refers to {from_here(path)}, which is not there",
        run=f"grep -n {path.name} {as_typed(compose.files[0])}",
    )


def _unset(match: re.Match[str], compose: Compose, lines: Lines) -> UsageError:
    place = lines.place(*match["path"].split("."))
    why = f": {match['why']}" if match["why"] else ""
    return UsageError(f"{place}: the variable {match['name']} is not set{why}", run=f"export {match['name']}=…")


def _wrong_spec(match: re.Match[str], compose: Compose, lines: Lines) -> UsageError:
    """A volume's or port's short form that came out wrong, most often of variables that are not set."""
    tail = match["spec"].rpartition(":")[2] or match["spec"]
    document = lines.documents[0]
    line = next((n for n, text in enumerate(document.text.splitlines(), 1) if tail in text), 1)
    place = Place(document.path, line)
    return UsageError(f"{place}: {match['spec']} cannot be read: {match['what']}", run=_show(place))


def _wrong_value(match: re.Match[str], compose: Compose, lines: Lines) -> UsageError:
    path = [part for part in match["path"].replace("[]", "").split(".") if part]
    place = lines.place(*path)
    cause = 'In YAML a number is no text: write it in quotes, "0"' if match["what"] == "must be a string" else None
    return UsageError(f"{place}: {match['path'].rstrip('.')}: {match['what']}", cause=cause, run=_show(place))


def _about_a_service(match: re.Match[str], compose: Compose, lines: Lines) -> UsageError:
    place = lines.place("services", match["service"])
    return UsageError(f"{place}: {match['service']} {match['what']}", run=_show(place))


_WORDS = (
    (_EXTRA_KEY, _extra_key),
    (_UNDEFINED, _undefined),
    (_CYCLE, _cycle),
    (_ENV_FILE, _env_file),
    (_NO_FILE, _no_file),
    (_UNSET, _unset),
    (_SPEC, _wrong_spec),
    (_PATH, _wrong_value),
    (_NO_SERVICE, _no_such_service),
    (_EXTENDED, _extended),
    (_SERVICE, _about_a_service),
)


def _services(lines: Lines) -> list[str]:
    node: Any = lines.node("services")
    return [str(key.value) for key, _ in node.value] if node is not None and isinstance(node.value, list) else []


def _show(place: Place) -> str:
    return f"sed -n {place.line}p {as_typed(place.file)}"


def _config_command(compose: Compose) -> str:
    return f"docker compose -f {as_typed(compose.files[0])} config"
