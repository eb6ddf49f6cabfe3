"""What Compose refuses, as one sentence with the line where it stands."""

from __future__ import annotations

import re
import shlex
from pathlib import Path
from typing import Any

import yaml

from seatrial.errors import UsageError
from seatrial.job.target import instead_of_manifest, manifest_refused
from seatrial.pipelines.compose.client import Compose
from seatrial.pipelines.compose.file_names import find_files, up_command
from seatrial.pipelines.compose.keys import SERVICE_KEYS, SINCE
from seatrial.pipelines.compose.lines import Lines, Place, read_document
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
_INTERPOLATION = re.compile(r"invalid interpolation format for (?P<path>\S+?)\.?$")
_DECODING = re.compile(r"error decoding '(?P<path>[^']+)': (?P<what>.+)")
_LIST_OF_PAIRS = re.compile(r"(?P<path>services\.\S+)\.\[(?P<entry>\d+)\]: unexpected type map")
_BAD_PORT = re.compile(r"[Ii]nvalid (?:ip address|containerPort|hostPort|port range|proto)[^\d]*(?P<spec>\d[\d:.\-]*)")
_SPEC = re.compile(r"invalid spec: (?P<spec>.+): (?P<what>[^:]+)$")
_BLANK = re.compile(r'The \\?"(?P<name>\w+)\\?" variable is not set')
_PATH = re.compile(r"^(?P<path>(?:services|volumes|networks|secrets|configs)(?:\.[\w\[\]-]+)*):? (?P<what>.+)")
_EXTENDED = re.compile(
    r'service "(?P<service>[^"]+)" in \S+: service "(?P<base>[^"]+)" not found(?: in (?P<file>\S+))?'
)
_NO_SERVICE = re.compile(r"no such service: (?P<name>\S+)")
_SERVICE = re.compile(r'service "(?P<service>[^"]+)" (?P<what>.+)')

#: Kind of thing that a service refers to → the key with which it does.
_KEYS = {"volume": "volumes", "network": "networks", "secret": "secrets", "config": "configs", "service": "depends_on"}

#: Key → where Compose takes it, for those that people write elsewhere.
_BELONGS = {
    "resources": "deploy:",
    "reservations": "deploy: resources:",
    "limits": "deploy: resources:",
    "replicas": "deploy:",
    "devices": "deploy: resources: reservations:",
}

_TOP_KEYS = ("services", "volumes", "networks", "secrets", "configs", "include", "models", "name")

#: Messages of Compose 2.40's validator → the same as earlier versions print them.
_EARLIER_FORMS = (
    (
        re.compile(r"^ *additional properties '(\w[^']*)'.* not allowed$"),
        r"(root) Additional property \1 is not allowed",
    ),
    (re.compile(r"additional properties '([^']+)'.* not allowed$"), r"Additional property \1 is not allowed"),
    (re.compile(r"missing property '([^']+)'$"), r"\1 is required"),
    (re.compile(r"value must be one of (.+)$"), r"must be one of the following: \1"),
    (re.compile(r"^'(services\[[^']+)' (.+)$"), r"error decoding '\1': \2"),
)

#: What Compose says of a value → what is meant.
_AS_MEANT = {"capabilities is required": "Beside driver and count write: capabilities: [gpu]"}


def in_words(ended: command.Completed, compose: Compose, lines: Lines) -> UsageError:
    """What Compose says is wrong, with the line where it stands."""
    said = _message(ended)
    found = next((words(match, compose, lines) for pattern, words in _WORDS if (match := pattern.search(said))), None)
    error = found or UsageError(f"{from_here(compose.files[0])}: Compose says: {said}", run=_config_command(compose))
    if error.cause is None and (blank := blank_variables(ended.stderr)):
        error.cause = f"not set, and so empty: {', '.join(blank)}"
    return error


def blank_variables(stderr: str) -> tuple[str, ...]:
    """Variables of which Compose warns that they are not set."""
    return tuple(dict.fromkeys(_BLANK.findall(stderr)))


def _message(ended: command.Completed) -> str:
    """Compose's last line that is no log line, without its frame."""
    told = [line for line in ended.stderr.splitlines() if line.strip() and not line.startswith("time=")]
    framed = next((line for line in told if _INTERPOLATION.search(line)), None)  # it goes on with the value
    said = framed or (told[-1] if told else ended.last_line())
    said = re.sub(r"^validating \S+: ", "", said.strip())
    for pattern, earlier in _EARLIER_FORMS:
        said = pattern.sub(earlier, said)
    return said.removesuffix(": invalid compose project")


def _extended(match: re.Match[str], compose: Compose, lines: Lines) -> UsageError:
    place = lines.place("services", match["service"], "extends")
    where = f"{match['file']}" if match["file"] else "the file"
    return UsageError(
        f"{place}: {match['service']} extends {match['base']}, and {where} has no such service", run=show(place)
    )


def _no_such_service(match: re.Match[str], compose: Compose, lines: Lines) -> UsageError:
    """A name of the command line."""
    services = _services(lines)
    near = nearest(match["name"], services)
    meant = f"did you mean {near}?" if near else f"there are {', '.join(services)}"
    return UsageError(
        f'{from_here(compose.files[0])} has no service "{match["name"]}"; {meant}',
        run=up_command(compose.files, compose.environ, [near or services[0]]),
    )


def _extra_key(match: re.Match[str], compose: Compose, lines: Lines) -> UsageError:
    path, key = match["path"].split("."), match["key"].strip("'\"")
    place = lines.place(*path, key)
    in_service = len(path) == 2 and path[0] == "services"
    if path == ["(root)"]:
        return _no_compose_file(key, compose, lines)
    if in_service and key in SINCE:
        version, now = SINCE[key], ".".join(map(str, compose.version()))
        return UsageError(
            f"{place}: {key} needs Docker Compose {version}; this one is {now}",
            cause="deploy.resources.reservations.devices says the same to every Compose v2" if key == "gpus" else None,
            run=show(place),
        )
    hint = did_you_mean(key, SERVICE_KEYS) if in_service else ""
    belongs = _BELONGS.get(key) if in_service or path[-1:] == ["limits"] else None
    return UsageError(
        f"{place}: Compose knows no key {key} in {match['path']}{hint}",
        cause=f"{key} belongs under {belongs}" if belongs else None,
        run=show(place),
    )


def _no_compose_file(key: str, compose: Compose, lines: Lines) -> UsageError:
    """A key that a Compose file does not have at its top: it may be a file of another kind."""
    file = lines.place(key).file
    if lines.has("apiVersion") and lines.has("kind"):
        shown = from_here(file)
        return UsageError(manifest_refused(shown), run=instead_of_manifest(shown))
    place = lines.place(key)
    if any(lines.has(key, each) for each in ("image", "build", "command")):
        return UsageError(
            f"{place}: {key} stands outside of services:, as in Compose files before 2016",
            cause="Write a line services: above, and indent what follows",
            run=show(place),
        )
    hint = did_you_mean(key, _TOP_KEYS)
    return UsageError(f"{place}: Compose knows no key {key} at the top of a file{hint}", run=show(place))


def _undefined(match: re.Match[str], compose: Compose, lines: Lines) -> UsageError:
    kind, name = match["kind"], match["name"].strip()
    place = lines.place("services", match["service"], _KEYS.get(kind, kind), name)
    if kind == "service":
        return UsageError(f"{place}: {match['service']} depends on {name}, which is no service here", run=show(place))
    if "/" in name:  # a volume's name has none
        return UsageError(
            f"{place}: {match['service']} mounts {name}, and Compose takes that for the name of a volume",
            cause=f"A folder beside the file begins with ./: write ./{name}",
            run=show(place),
        )
    return UsageError(
        f"{place}: {match['service']} uses the {kind} {name}, which the file does not declare",
        cause=f"At the end of the file, {kind}s: needs a line {name}:",
        run=show(place),
    )


def _cycle(match: re.Match[str], compose: Compose, lines: Lines) -> UsageError:
    ring = match["ring"].split(" -> ")
    place = lines.place("services", ring[0], "depends_on", *ring[1:2])
    return UsageError(
        f"{place}: services wait for each other in a circle: {' → '.join(ring)}",
        cause="Each would have to start before the other",
        run=show(place),
    )


def _env_file(match: re.Match[str], compose: Compose, lines: Lines) -> UsageError:
    path = Path(match["path"])
    for service in _services(lines):
        for way in (("env_file", path.name), ("env_file", f"./{path.name}"), ("env_file",)):
            if lines.has("services", service, *way):
                place = lines.place("services", service, *way)
                text = f"{place}: {service} reads its variables from {from_here(path)}, which is not there"
                return UsageError(text, cause="One that may be missing says required: false", run=_like_it(path))
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
        run=f"grep -n -- {shlex.quote(path.name)} {as_typed(compose.files[0])}",
    )


def _unset(match: re.Match[str], compose: Compose, lines: Lines) -> UsageError:
    place = lines.place(*match["path"].split("."))
    why = f": {match['why']}" if match["why"] else ""
    return UsageError(f"{place}: the variable {match['name']} is not set{why}", run=f"export {match['name']}=…")


def _wrong_spec(match: re.Match[str], compose: Compose, lines: Lines) -> UsageError:
    """A volume's or port's short form that came out wrong, most often of variables that are not set."""
    tail = match["spec"].rpartition(":")[2] or match["spec"]
    place = Place(lines.documents[0].path, _line_with(lines, tail))
    return UsageError(f"{place}: {match['spec']} cannot be read: {match['what']}", run=show(place))


def _wrong_value(match: re.Match[str], compose: Compose, lines: Lines) -> UsageError:
    path = [part for part in match["path"].replace("[]", "").split(".") if part]
    place = lines.place(*path)
    what = match["what"].removeprefix(match["path"]).strip()
    cause = _AS_MEANT.get(what)
    node = lines.node(*path)
    if what == "must be a string" and isinstance(node, yaml.ScalarNode):
        cause = f'In YAML a number is no text: write it in quotes, "{node.value}"'
    return UsageError(f"{place}: {match['path'].rstrip('.')}: {what}", cause=cause, run=show(place))


def _wrong_text(match: re.Match[str], compose: Compose, lines: Lines) -> UsageError:
    """A size or a time that Compose cannot read."""
    path = [part for part in re.split(r"[.\[\]]+", match["path"]) if part]
    place = lines.place(*path)
    return UsageError(f"{place}: {'.'.join(path)}: {match['what']}", run=show(place))


def _interpolation(match: re.Match[str], compose: Compose, lines: Lines) -> UsageError:
    place = lines.place(*match["path"].split("."))
    return UsageError(
        f"{place}: {match['path']} has a dollar that Compose cannot read",
        cause="$NAME and ${NAME:-default} are Compose's variables; a dollar for the container's shell is written $$",
        run=show(place),
    )


def _pair_in_list(match: re.Match[str], compose: Compose, lines: Lines) -> UsageError:
    place = lines.place(*match["path"].split("."), match["entry"])
    return UsageError(
        f"{place}: {match['path']} is a list, and this entry of it is NAME: VALUE",
        cause="In a list write - NAME=VALUE; or leave out all the dashes",
        run=show(place),
    )


def _wrong_port(match: re.Match[str], compose: Compose, lines: Lines) -> UsageError:
    line = _line_with(lines, match["spec"].strip(":"))
    place = Place(lines.documents[0].path, line)
    return UsageError(
        f"{place}: {match['spec'].strip(':')} cannot be read as a port",
        cause="Compose takes HOST:CONTAINER, as 8080:80, or ADDRESS:HOST:CONTAINER",
        run=show(place),
    )


def _line_with(lines: Lines, text: str) -> int:
    return next((n for n, line in enumerate(lines.documents[0].text.splitlines(), 1) if text in line), 1)


def _about_a_service(match: re.Match[str], compose: Compose, lines: Lines) -> UsageError:
    place = lines.place("services", match["service"])
    if "neither an image nor a build" in match["what"] and (base := _file_of(match["service"], compose, lines)):
        return UsageError(
            f"{place}: {match['service']} has neither an image nor a build context here",
            cause=f"{from_here(base)} has it: this file adds to that one",
            run=up_command([base, *compose.files], compose.environ),
        )
    return UsageError(f"{place}: {match['service']} {match['what']}", run=show(place))


def _file_of(service: str, compose: Compose, lines: Lines) -> Path | None:
    """The Compose file of the folder, where it has the service and was not given."""
    for path in find_files(compose.files[0].parent, {})[:1]:
        if path not in compose.files and Lines([read_document(path)]).has("services", service):
            return path
    return None


_WORDS = (
    (_INTERPOLATION, _interpolation),
    (_DECODING, _wrong_text),
    (_LIST_OF_PAIRS, _pair_in_list),
    (_BAD_PORT, _wrong_port),
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


def show(place: Place) -> str:
    return f"sed -n {place.line}p {as_typed(place.file)}"


def _config_command(compose: Compose) -> str:
    return f"docker compose -f {as_typed(compose.files[0])} config"
