"""Read a Compose file: found as Compose finds it, resolved by Compose itself, with the lines where its keys stand."""

from __future__ import annotations

import json
import os
import re
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any

import yaml

from seatrial.compose.client import Compose, unescaped
from seatrial.compose.service import COMPLETED, Service, Volume
from seatrial.errors import UsageError
from seatrial.job.target import instead_of_manifest, manifest_refused
from seatrial.system import command
from seatrial.system.host import Host
from seatrial.system.project_files import read_bytes
from seatrial.system.typed_path import as_typed, from_here

#: Names that Compose looks for; the first that is there counts. Source: compose-go, cli/options.go.
COMPOSE_FILES = ("compose.yaml", "compose.yml", "docker-compose.yml", "docker-compose.yaml")

#: Read on top of one of those; the first that is there counts.
OVERRIDES = tuple(f"{stem}.override.{ending}" for stem in ("compose", "docker-compose") for ending in ("yml", "yaml"))

#: A Compose file of a hundred services has 100 KB.
MAX_BYTES = 1_000_000
_MOST_LEVELS = 50

_LOADER: Any = getattr(yaml, "CSafeLoader", yaml.SafeLoader)

_BLANK = re.compile(r'The \\?"(?P<name>\w+)\\?" variable is not set')

#: Where Compose's error names a place: a path of keys, a service, or a line.
_KEYS = re.compile(r"\b((?:services|volumes|networks|secrets|configs)(?:\.[\w-]+|\[[\w-]+\])+)")
_SERVICE = re.compile(r'service "([^"]+)"')
_LINE = re.compile(r"\bline (\d+)")


def find_files(project: Path, host: Host) -> tuple[Path, ...]:
    """Return the files that ``docker compose`` without ``-f`` takes in this folder; () if there is none."""
    if listed := host.env.get("COMPOSE_FILE"):
        separator = host.env.get("COMPOSE_PATH_SEPARATOR") or os.pathsep
        return tuple(project / part for part in listed.split(separator) if part)
    first = next((project / name for name in COMPOSE_FILES if (project / name).is_file()), None)
    if first is None:
        return ()
    overrides = [project / name for name in OVERRIDES if (project / name).is_file()]
    return (first, *overrides[:1])


def up_command(files: Sequence[Path], host: Host, names: Sequence[str] = ()) -> str:
    """Return the command line that brings up these files and services with the active profiles, as typed here."""
    found = find_files(files[0].parent, Host({})) if files[0].parent.resolve() == Path.cwd().resolve() else ()
    is_found = [path.resolve() for path in files] == [path.resolve() for path in found]
    given = [] if is_found else [f"-f {as_typed(path)}" for path in files]
    profiles = [f"--profile {shlex.quote(name)}" for name in profiles_in(host)]
    return " ".join(["seatrial up", *given, *profiles, *map(shlex.quote, names)])


def profiles_in(host: Host) -> list[str]:
    """Return the active profiles, as Compose reads them."""
    return [name for name in host.env.get("COMPOSE_PROFILES", "").split(",") if name]


def with_profiles(host: Host, names: Sequence[str]) -> Host:
    """Return an environment in which these profiles are active too."""
    found = dict.fromkeys([*profiles_in(host), *names])
    return host.with_env({"COMPOSE_PROFILES": ",".join(found)}) if found else host


@dataclass(frozen=True)
class Place:
    """A line of a file; ``str()`` is ``compose.yaml:12``."""

    file: Path
    line: int

    def __str__(self) -> str:
        return f"{from_here(self.file)}:{self.line}"

    @property
    def show(self) -> str:
        """The command that prints the line."""
        return f"sed -n {self.line}p {as_typed(self.file)}"


class Lines:
    """Find keys in the user's files, in the last one that has them: that is the one which Compose takes.

    Args:
        roots: file → its top node; None for a file that is not YAML, which Compose refuses.
    """

    def __init__(self, roots: Mapping[Path, yaml.Node | None]) -> None:
        self.roots = roots

    def place(self, *path: str) -> Place:
        """Return the line of a key, or of the nearest above it. A list's entry is found by its text."""
        best, depth = Place(next(iter(self.roots)), 1), 0
        for file, root in self.roots.items():
            line, found = _deepest(root, path)
            if found >= depth and found:
                best, depth = Place(file, line), found
        return best

    def has(self, *path: str) -> bool:
        """Return whether the key is written in one of the files themselves, not in one that they extend or include."""
        return any(_deepest(root, path)[1] == len(path) for root in self.roots.values())


def read_lines(files: Sequence[Path]) -> Lines:
    """Read the YAML nodes of the files. Raises UsageError for a file that is missing, too large or nested too deep."""
    roots: dict[Path, yaml.Node | None] = {}
    for path in files:
        if not path.is_file():
            raise UsageError(f"There is no Compose file {from_here(path)}", run=f"ls {as_typed(path.parent)}")
        text = read_bytes(path, inside=None, limit_bytes=MAX_BYTES, refusal=UsageError).decode("utf-8-sig", "replace")
        try:
            _refuse_depth(text, path)
            roots[path] = next(iter(yaml.compose_all(text, Loader=_LOADER)), None)
        except (yaml.YAMLError, ValueError):
            roots[path] = None
    return Lines(roots)


def _refuse_depth(text: str, path: Path) -> None:
    """Count levels before nodes are made of them, which takes a stack. Raises YAMLError, UsageError."""
    levels = 0
    event: Any
    for event in yaml.parse(text, Loader=_LOADER):
        levels += isinstance(event, yaml.CollectionStartEvent) - isinstance(event, yaml.CollectionEndEvent)
        if levels > _MOST_LEVELS:
            place = Place(path, event.start_mark.line + 1)
            raise UsageError(f"{place}: nested too deep for a Compose file", run=place.show)


def _deepest(node: yaml.Node | None, path: Sequence[str]) -> tuple[int, int]:
    """Return (line, how many steps of the path there are)."""
    line, steps = 1, 0
    for step in path:
        found = _step(node, step)
        if found is None:
            break
        line, node = found
        steps += 1
    return line, steps


def _step(node: yaml.Node | None, step: str) -> tuple[int, yaml.Node] | None:
    """Return (line, node) of a mapping's key, of a list's entry by number, or by a text that it contains."""
    if isinstance(node, yaml.MappingNode):
        merged: list[yaml.Node] = []
        for key, value in reversed(node.value):
            if key.value == step:
                return key.start_mark.line + 1, value
            if key.value == "<<":
                merged += value.value if isinstance(value, yaml.SequenceNode) else [value]
        return next((found for each in merged if (found := _step(each, step)) is not None), None)
    if isinstance(node, yaml.SequenceNode):
        if step.isdigit() and int(step) < len(node.value):
            entry = node.value[int(step)]
            return entry.start_mark.line + 1, entry
        for entry in node.value:
            if step in _texts(entry):
                return entry.start_mark.line + 1, entry
    return None


def _texts(node: yaml.Node) -> set[str]:
    """Return an entry's text, its parts between colons and equal signs, and the values of a mapping."""
    if isinstance(node, yaml.ScalarNode):
        text = str(node.value)
        return {text, *text.split(":"), text.partition("=")[0]}
    if isinstance(node, yaml.MappingNode):
        return {str(value.value) for _, value in node.value if isinstance(value, yaml.ScalarNode)}
    return set()


@dataclass(frozen=True)
class ComposeFile:
    """A Compose file as the user has it and as Compose resolves it.

    Attributes:
        name: Compose's project, which its containers and volumes are named after.
        services: the requested ones and what they need; in the file's order.
        names: of the requested services; () for all.
        unset: variables without value and default, which Compose takes as empty.
    """

    compose: Compose
    lines: Lines
    name: str
    services: Mapping[str, Service]
    names: tuple[str, ...] = ()
    unset: tuple[str, ...] = ()

    @property
    def path(self) -> Path:
        return self.compose.files[0]

    @property
    def command(self) -> str:
        """The command line that brings it up, as typed here."""
        return up_command(self.compose.files, self.compose.host, self.names)

    def place(self, service: str, *path: str) -> Place:
        """Return the line of a service's key."""
        return self.lines.place("services", service, *path)

    def with_services(self, services: Mapping[str, Service]) -> ComposeFile:
        return replace(self, services=services)

    @cached_property
    def short_waits(self) -> tuple[tuple[str, str], ...]:
        """(task, reader) where the reader depends on the task in the short form and mounts what the task writes.

        Compose starts such a reader as soon as the task has started, on an empty volume; the override waits for its
        end. One that shows what is being written (TensorBoard) has to be there before.
        """
        return tuple(
            (writer, name)
            for name, reader in self.services.items()
            for writer, condition in reader.depends_on.items()
            if condition == "service_started"
            and writer in self.services
            and self.services[writer].is_task
            and not reader.watches
            and not self.lines.has("services", name, "depends_on", writer, "condition")
            and _hands_over(self.services[writer], reader)
        )

    @cached_property
    def needs(self) -> dict[str, tuple[str, ...]]:
        """Service → those whose successful end it waits for."""
        return {
            name: tuple(
                other
                for other, condition in service.depends_on.items()
                if condition == COMPLETED or (other, name) in self.short_waits
            )
            for name, service in self.services.items()
        }

    def never_together(self, one: str, other: str) -> bool:
        """Return whether one of the two has ended before the other starts."""
        return other in self._awaited(one) or one in self._awaited(other)

    def _awaited(self, start: str) -> set[str]:
        seen: set[str] = set()
        pending = list(self.needs.get(start, ()))
        while pending:
            if (name := pending.pop()) not in seen:
                seen.add(name)
                pending += self.needs.get(name, ())
        return seen


def _hands_over(writer: Service, reader: Service) -> bool:
    """Return whether the reader mounts a volume or folder that the writer can write."""
    return any(
        volume.shared and not volume.read_only and volume.kind == other.kind and _same(volume, other)
        for volume in writer.volumes
        for other in reader.volumes
    )


def _same(one: Volume, other: Volume) -> bool:
    """Return whether both are one volume, or folders of which one holds the other."""
    if one.kind == "volume":
        return one.source == other.source
    return Path(one.source).is_relative_to(other.source) or Path(other.source).is_relative_to(one.source)


def read_compose(files: Sequence[Path], program: Compose, names: Sequence[str] = ()) -> ComposeFile:
    """Let Compose resolve the files: variables, env files, extends, includes, profiles.

    Args:
        files: the user's. program: Compose, of any files.
        names: requested services; () for all of the active profiles.

    Raises:
        UsageError: Compose refuses the file; in its words, with the line where they name one.
        EngineUnavailableError: there is no Compose.
    """
    paths = tuple(Path(os.path.abspath(file)) for file in files)  # noqa: PTH100  # links stay as the user has them
    lines = read_lines(paths)
    compose = replace(program, files=paths)
    ended = compose.ask("config", "--format", "json", *names)
    if ended.exit_code != 0:
        raise refusal(ended, paths, lines)
    config = unescaped(json.loads(ended.stdout))
    found = config.get("services") or {}
    if not found:
        raise UsageError(
            f"{from_here(paths[0])} has no service to bring up",
            cause="services: is empty, or each service belongs to a profile that is not active",
            run=f"docker compose -f {as_typed(paths[0])} config --profiles",
        )
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
    # As they stand in the files; Compose sorts them.
    order = sorted(services, key=lambda name: (lines.has("services", name), lines.place("services", name).line))
    unset = tuple(dict.fromkeys(_BLANK.findall(ended.stderr)))
    return ComposeFile(
        compose, lines, str(config["name"]), {name: services[name] for name in order}, tuple(names), unset
    )


def refusal(ended: command.Completed, files: Sequence[Path], lines: Lines) -> UsageError:
    """Return Compose's own words behind the file's name, with the line of what they name."""
    if lines.has("apiVersion") and lines.has("kind"):
        shown = from_here(files[0])
        return UsageError(manifest_refused(shown), run=instead_of_manifest(shown))
    printed = [line.strip() for line in ended.stderr.splitlines() if line.strip() and not line.startswith("time=")]
    text = "; ".join(printed) or ended.last_line()
    for path in files:
        text = text.replace(f"validating {path}: ", "").replace(str(path), from_here(path))
    where = from_here(files[0])
    if keys := _KEYS.search(text):
        where = str(lines.place(*(part for part in re.split(r"[.\[\]]+", keys[1]) if part)))
    elif service := _SERVICE.search(text):
        where = str(lines.place("services", service[1]))
    elif line := _LINE.search(text):
        where = str(Place(files[0], int(line[1])))
    blank = dict.fromkeys(_BLANK.findall(ended.stderr))
    return UsageError(
        f"{where}: Compose: {text}",
        cause=f"not set, and so empty: {', '.join(blank)}" if blank else None,
        run=f"docker compose {' '.join(f'-f {as_typed(path)}' for path in files)} config",
    )
