"""Read a Compose file: found as Compose finds it, resolved by Compose itself, with the lines where its keys stand."""

from __future__ import annotations

import json
import os
import re
import shlex
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path, PurePosixPath
from typing import Any

from seatrial.compose.client import Compose, unescaped
from seatrial.compose.lines import Place, SourceLines, copied, read_lines
from seatrial.compose.service import COMPLETED, GpuAsk, Service, ServiceMount, gpu_ways
from seatrial.errors import DiskError, GpuRequestError, UsageError, os_errors
from seatrial.job.gpu_request import CAPABILITIES, GpuRequest
from seatrial.job.target import manifest_refused
from seatrial.system import command
from seatrial.system.host import Host
from seatrial.system.text import as_typed, from_here, nearest

#: Names of Compose files; the first that exists counts. Source: compose-go, cli/options.go.
COMPOSE_FILES = ("compose.yaml", "compose.yml", "docker-compose.yml", "docker-compose.yaml")
#: Override files, read on top of one of those; the first that exists counts.
OVERRIDES = tuple(f"{stem}.override.{ending}" for stem in ("compose", "docker-compose") for ending in ("yml", "yaml"))

_REQUIRED = re.compile(r"required variable (\w+) is missing a value")
_BLANK = re.compile(r'The \\?"(?P<name>\w+)\\?" variable is not set')
#: The place in a Compose error: a path of keys, a service, or a line.
_KEYS = re.compile(r"\b((?:services|volumes|networks|secrets|configs)(?:\.[\w-]+|\[[\w-]+\])+)")
_UNKNOWN = re.compile(r"(?i:additional (?:property|properties)) '?([^\s']+)'? (?:is )?not allowed")
_SERVICE = re.compile(r'service "([^"]+)"')
_NO_SERVICE = re.compile(r"no such service: (\S+)")
_LINE = re.compile(r"\bline (\d+)")


def find_files(project: Path, host: Host) -> tuple[Path, ...]:
    """Return the files that ``docker compose`` without ``-f`` takes in this folder; () if there is none."""
    if listed := host.env.get("COMPOSE_FILE"):
        separator = host.env.get("COMPOSE_PATH_SEPARATOR") or os.pathsep
        return tuple(project / part for part in listed.split(separator) if part)
    first = next((project / name for name in COMPOSE_FILES if (project / name).is_file()), None)
    if first is None:
        return ()
    return (first, *[project / name for name in OVERRIDES if (project / name).is_file()][:1])


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
class ComposeFile:
    """Holds a Compose file as the user has it and as Compose resolves it.

    Attributes:
        name: Compose's project, which its containers and volumes are named after.
        services: the requested ones (``names``; () for all) and what they need; in the file's order.
        unset: variables without value and default, which Compose takes as empty.
        rendered: what Compose makes of the files, as it prints it. config: the same, with ``$$`` read as one dollar.
        outside: files that are not the project's and that a file of the project names. text: of the project's files.
    """

    compose: Compose
    lines: SourceLines
    name: str
    services: Mapping[str, Service]
    names: tuple[str, ...] = ()
    unset: tuple[str, ...] = ()
    rendered: str = ""
    config: Mapping[str, Any] = field(default_factory=dict)
    outside: tuple[str, ...] = ()
    text: str = ""

    @property
    def root(self) -> Path:
        """Return the folder that the project brings, links resolved."""
        return Path(os.path.realpath(self.path.parent))

    @property
    def path(self) -> Path:
        return self.compose.files[0]

    @property
    def command(self) -> str:
        """Return the command line that brings the file up, as typed here."""
        return up_command(self.compose.files, self.compose.host, self.names)

    def place(self, service: str, *path: str) -> Place:
        """Return the line of a service's key."""
        return self.lines.place("services", service, *path)

    def gpu_ask(self, service: Service) -> GpuAsk | None:
        """Return a service's GPU request; None if it has none. Raises GpuRequestError with the invalid line."""
        if not (ways := gpu_ways(service)):
            return None
        what, capabilities = next(iter(ways.values()))
        names = [name for name in capabilities if name in CAPABILITIES]
        added = bool(names) and not {"compute", "all"} & set(names)
        if names:
            what += ",capabilities=" + ",".join(["compute", *names] if added else names)
        ask = GpuAsk(GpuRequest("all"), tuple(ways), added)
        try:
            return replace(ask, request=GpuRequest.parse(what))
        except GpuRequestError as error:
            place = self.place(service.name, *ask.path)
            unset = f"not set, and so empty: {', '.join(self.unset)}" if self.unset else None
            cause = error.cause or unset
            run = f"export {self.unset[0]}=…" if self.unset else place.show
            raise GpuRequestError(f"{place}: {service.name}: {error.message}", cause=cause, run=run) from None

    @cached_property
    def short_waits(self) -> tuple[tuple[str, str], ...]:
        """Find (task, reader) where the reader depends on the task in the short form and mounts what it writes.

        Compose would start it at once, on an empty volume: the override waits, except for one that shows (TensorBoard).
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
            and any(
                volume.shared and not volume.read_only and volume.kind == other.kind and _same(volume, other)
                for volume in self.services[writer].volumes
                for other in reader.volumes
            )
        )

    @cached_property
    def needs(self) -> dict[str, tuple[str, ...]]:
        """Return service → the services whose successful end it waits for."""
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


def _same(one: ServiceMount, other: ServiceMount) -> bool:
    """Return True if both are one volume, or folders of which one holds the other."""
    if one.kind == "volume":
        return one.source == other.source
    return Path(one.source).is_relative_to(other.source) or Path(other.source).is_relative_to(one.source)


def read_compose(files: Sequence[Path], program: Compose, names: Sequence[str] = ()) -> ComposeFile:
    """Let Compose, the ``program``, resolve the user's files: variables, env files, extends, includes, profiles.

    ``names``: requested services; () for all of the active profiles. Raises EngineUnavailableError: it is missing;
    UsageError: it refuses the file, in its words, with the line where they name one.
    """
    copies = tempfile.TemporaryDirectory(prefix="seatrial-compose-", dir=os.path.realpath(tempfile.gettempdir()))
    try:
        return _read(files, replace(program, copies=copies), copies.name, names)
    except BaseException:
        copies.cleanup()
        raise


def _read(files: Sequence[Path], program: Compose, top: str, names: Sequence[str]) -> ComposeFile:
    paths = tuple(Path(os.path.abspath(file)) for file in files)  # noqa: PTH100  # links stay as the user has them
    lines = read_lines(paths)
    compose = replace(program, files=paths)
    with os_errors(DiskError, f"Cannot copy {from_here(paths[0])}", f"df -h {top}"):
        outside, text = copied(paths, compose.host.env, top)
    ended = compose.config(names)
    if ended.exit_code != 0:
        raise _no_service(ended, compose, names) or refusal(ended, paths, lines)
    config = unescaped(json.loads(ended.stdout))
    found = config.get("services") or {}
    if not found:
        cause = "services: is empty, or each service belongs to a profile that is not active"
        run = f"grep -nA2 -E 'services:|profiles:' {as_typed(paths[0])}"
        raise UsageError(f"{from_here(paths[0])} has no service to bring up", cause=cause, run=run)
    waits = [wait for each in found.values() for wait in (each.get("depends_on") or {}).items()]
    awaited = {name for name, how in waits if how.get("condition") == COMPLETED}
    services = {}
    for name, each in found.items():
        image, by_path = str(each.get("image") or f"{config['name']}-{name}"), tuple(_by_path(config, each))
        services[name] = Service(name, each, image, awaited=name in awaited, by_path=by_path)
    # Keep the order of the files; Compose sorts services.
    order = sorted(services, key=lambda name: (lines.has("services", name), lines.place("services", name).line))
    unset = tuple(dict.fromkeys(_BLANK.findall(ended.stderr)))
    services, name = {name: services[name] for name in order}, str(config["name"])
    return ComposeFile(compose, lines, name, services, tuple(names), unset, ended.stdout, config, outside, text)


def _by_path(config: Mapping[str, Any], service: Mapping[str, Any]) -> Iterator[ServiceMount]:
    """Yield what the engine mounts into a service by a path of this machine, under any name in the file."""
    for each in service.get("volumes") or ():
        source, read_only = str(each.get("source") or ""), bool(each.get("read_only"))
        options = ((config.get("volumes") or {}).get(source) or {}).get("driver_opts") or {}
        if each["type"] == "volume" and {"bind", "rbind"} & set(str(options.get("o")).split(",")):
            source = str(Path(str(options.get("device")), (each.get("volume") or {}).get("subpath") or ""))
        if source.startswith("/"):
            yield ServiceMount(str(each["type"]), source, str(each["target"]), read_only)
    for kind, folder in (("secrets", "/run/secrets"), ("configs", "/")):
        for each in service.get(kind) or ():
            if file := config[kind][each["source"]].get("file"):
                target = PurePosixPath(folder, str(each.get("target") or each["source"]))
                yield ServiceMount(kind, str(file), str(target), read_only=True)


def _no_service(ended: command.Completed, compose: Compose, names: Sequence[str]) -> UsageError | None:
    """Return the error for a name that no service has, with the nearest that one has; None for another error."""
    missing = _NO_SERVICE.search(ended.stderr)
    if missing is None or missing[1] not in names:
        return None
    listed = compose.ask("config", "--services")
    known = listed.stdout.split() if listed.exit_code == 0 else []
    close = nearest(missing[1], known)
    hint = f"did you mean {close}?" if close else f"it has {', '.join(known)}"
    typed = [close if close and name == missing[1] else name for name in names]
    run = up_command(compose.files, compose.host, typed if close else ["--plan"])
    if not close and missing[1].endswith(".py"):
        hint, run = "seatrial run starts scripts", shlex.join(["seatrial", "run", missing[1]])
    return UsageError(f"{from_here(compose.files[0])} has no service {missing[1]}; {hint}", run=run)


def refusal(ended: command.Completed, files: Sequence[Path], lines: SourceLines) -> UsageError:
    """Return Compose's own words behind the file's name, with the line of what they name."""
    if lines.has("apiVersion") and lines.has("kind"):
        return manifest_refused(from_here(files[0]))
    printed = [line.strip() for line in ended.stderr.splitlines() if line.strip() and not line.startswith("time=")]
    text = "; ".join(printed) or ended.last_line()
    for path in files:
        text = text.replace(f"validating {path}: ", "").replace(str(path), from_here(path))
    where = None
    if keys := _KEYS.search(text):
        where = lines.place(*filter(None, re.split(r"[.\[\]]+", keys[1])), *_UNKNOWN.findall(text)[:1])
    elif service := _SERVICE.search(text):
        where = lines.place("services", service[1])
    elif line := _LINE.search(text):
        where = Place(files[0], int(line[1]))
    blank, required = dict.fromkeys(_BLANK.findall(ended.stderr)), _REQUIRED.findall(text)
    check = f"docker compose {' '.join(f'-f {as_typed(path)}' for path in files)} config"
    cause = f"not set, and so empty: {', '.join(blank)}" if blank else None
    run = f"export {required[0]}=…" if required else where.show if where else check
    return UsageError(f"{where or from_here(files[0])}: Compose: {text}", cause=cause, run=run)
