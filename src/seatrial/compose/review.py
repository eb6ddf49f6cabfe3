"""Review a Compose file before it starts: find requests that need consent and faults on GPUs, each with its line."""

from __future__ import annotations

import json
import os
import re
import shutil
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from dataclasses import replace
from itertools import combinations
from pathlib import Path
from typing import Any, Literal, NamedTuple

from seatrial.compose.lines import Place
from seatrial.compose.read import ComposeFile
from seatrial.compose.service import RESERVED, GpuAsk, Service, foreign_ask, is_nvidias
from seatrial.errors import GpuRequestError
from seatrial.job.asks import Ask, digest_text, mounted, outside, plain
from seatrial.planning.container.plan import GPU_DEVICE
from seatrial.system.host import Host
from seatrial.system.project_files import filled_in, is_there, own_table, read_bytes
from seatrial.system.text import first_of, from_here

#: Characters of a value that a line shows; the answer is remembered for the whole value.
_MOST_SHOWN = 120
#: Variables that steer Compose itself, and none of which a container gets.
_STEERING = ("COMPOSE_PROFILES", "COMPOSE_PROJECT_NAME", "COMPOSE_ENV_FILES", "COMPOSE_DISABLE_ENV_FILE")

_INSIDE, _WARNINGS = (Path(__file__).with_name(f"{name}.toml") for name in ("inside", "warnings"))
#: The keys to a value, outermost first.
Keys = tuple[str, ...]
#: Key → True: any value stays inside; texts: those do; a mapping: its keys do; else a function decides.
Inside = Mapping[str, Any]
#: DataLoader workers in a script's text, or in a command's words.
_WORKERS_IN_CODE = re.compile(rb"num_workers\s*=\s*(?!0\b)[\w(]")
_WORKERS_IN_WORDS = re.compile(r"--?(num[-_]?workers|workers|n[-_]?workers)[ =](?!0\b)\d")
#: Frameworks whose trainers start workers by default.
_TRAINERS = re.compile(r"\b(yolo|ultralytics|torchrun|accelerate launch|lightning|deepspeed|tune run)\b")

_MOST_FILES, _MOST_BYTES, _MOST_NAMED = 20, 200_000, 3

_OF_SWARM = (*RESERVED[:-1], "generic_resources")
#: Service → the GPUs that it requests.
Asks = Mapping[str, GpuAsk]


def compose_asks(file: ComposeFile) -> tuple[Ask, ...]:
    """Return every wish of a Compose file, extended and included ones too, that needs consent. Raises UsageError."""
    found = [Ask(words=f"reads {plain(name)} for a container") for name in file.outside]
    found += [*_variables(file), *_beyond(file.config, _rules(own_table(_INSIDE)["file"]), (), file)]
    for name, service in file.services.items():
        for each in service.volumes:
            if each.kind == "bind":
                found += mounted(Path(each.source), file.root, each.target, each.read_only, f"{plain(name)}: ")
        if service.build is not None and service.config.get("image"):
            image = f"names the image it builds {plain(service.image)}, as another project's may be"
            found.append(Ask(words=f"{plain(name)}: {image}"))
    folder = re.sub(r"[^-_a-z0-9]", "", file.path.parent.name.lower()).lstrip("_-")
    if file.name not in (folder, file.compose.host.env.get("COMPOSE_PROJECT_NAME")):
        found.append(Ask(words=f"is the Compose project {plain(file.name)}, whose containers and volumes it uses"))
    return tuple(dict.fromkeys(found))


def _variables(file: ComposeFile) -> Iterator[Ask]:
    """Yield a line for each value that another environment would change: Compose puts this user's into it."""
    compose, env = file.compose, file.compose.host.env
    bare = {name: env[name] for name in _STEERING if name in env}
    if outside(Path(env.get("PWD", "/")), file.root) is None:
        bare["PWD"] = env["PWD"]
    own = {"HOME": "/nowhere", "DOCKER_CONFIG": env.get("DOCKER_CONFIG") or f"{env.get('HOME', '')}/.docker"}
    program = shutil.which(compose.call[0], path=env.get("PATH")) or compose.call[0]
    ended = replace(compose, call=(program, *compose.call[1:]), host=Host({**bare, **own})).config(file.names)
    written = {name for name in re.findall(r"\w+", file.text) if name in env and name not in bare}
    if ended.exit_code != 0:
        yield Ask(words=f"takes your variables {plain(', '.join(sorted(written)) or 'HOME')}")
        return
    without, into = dict(_leaves(json.loads(ended.stdout))), dict[str, list[str]]()
    for path, value in sorted(_leaves(json.loads(file.rendered))):
        held = {name for name, text in env.items() if text and text in value and name not in bare}
        named = held & written or held  # a short value is in many texts by chance
        at_path = path.endswith((".source", ".file", ".context"))
        if without.get(path) != value and not (at_path and all(env[name].startswith(os.sep) for name in named)):
            into.setdefault(", ".join(sorted(named or written)), []).append(path)
    yield from (Ask(words=f"puts your variable {plain(name)} into {plain(', '.join(into[name]))}") for name in into)


def _leaves(value: Any) -> Iterator[tuple[str, str]]:
    """Yield (path, text) of each value of JSON, however deep."""
    pending = [("", value)]
    while pending:
        path, each = pending.pop()
        if isinstance(each, (dict, list)):
            entries = each.items() if isinstance(each, dict) else enumerate(each)
            pending += [(f"{path}.{key}".lstrip("."), inner) for key, inner in entries]
        else:
            yield path, str(each)


def _beyond(value: Mapping[str, Any], inside: Inside, where: Keys, file: ComposeFile) -> Iterator[Ask]:
    """Yield a line for each key of a mapping that is not known to stay inside. A list has the rule of its key."""
    for key, inner in value.items():
        rule, path = inside.get(key, inside.get("*", ())), (*where, key)
        if rule is True or (key.startswith("x-") and "*" not in inside):
            continue
        for each in inner if isinstance(inner, list) else [inner]:
            if isinstance(rule, Mapping) and isinstance(each, Mapping):
                yield from _beyond(each, rule, path, file)
            elif not (each in (None, False, "", {}) or (rule(each, path, file) if callable(rule) else each in rule)):
                text = json.dumps(each, sort_keys=True)
                short = text if len(text) <= _MOST_SHOWN else f"{text[:_MOST_SHOWN]}…"
                words = f"sets {plain('.'.join(path))} to {plain(short)}{own_table(_INSIDE)['means'].get(key, '')}"
                yield Ask(words=words, apart=digest_text(text))


def _is_gpu(request: Any, path: Keys, file: ComposeFile) -> bool:
    """Return True for a GPU's device node, or a request for GPUs; ``gpus:`` has those without the capability."""
    if len(path) == 3 and path[-1] == "devices":
        return bool(GPU_DEVICE.match(str(request["source"]))) and request.keys() <= _DEVICE
    more = ["gpu"] if path[-1] == "gpus" else []
    return is_nvidias({**request, "capabilities": [*(request.get("capabilities") or ()), *more]})


def _is_inside(value: Any, path: Keys, file: ComposeFile) -> bool:
    """Return True for a path in the project, or another service's build. Compose makes local paths absolute."""
    here = Path(file.config["services"][path[1]]["build"]["context"]) if path[-1] == "dockerfile" else Path()
    is_path = "://" not in str(value) and (here / value).is_absolute()
    return str(value).startswith("service:") or (is_path and outside(here / value, file.root) is None)


_OWN_NAMESPACES = ("none", "bridge", "default", "private", "shareable")
_DEVICE = {"source", "target", "permissions"}
#: Name in inside.toml → the function of a value, its keys and the file that decides.
_DECIDES: dict[str, Callable[[Any, Keys, ComposeFile], bool]] = {
    "gpu": _is_gpu,
    "inside": _is_inside,
    "own namespace": lambda value, path, file: value in _OWN_NAMESPACES or str(value).startswith("service:"),
    "own name": lambda value, path, file: bool(value == f"{file.name}_{path[1]}"),  # which Compose gives it
}


def _rules(table: Mapping[str, Any]) -> Inside:
    """Return the rules in a table of inside.toml."""
    named = {key: rule for key, rule in table.items() if key != "any"}
    rules = {key: _rules(rule) if isinstance(rule, dict) else rule for key, rule in named.items()}
    found = {key: _DECIDES[rule] if isinstance(rule, str) else rule for key, rule in rules.items()}
    return {**dict.fromkeys(table.get("any", "").split(), True), **found}


class ComposeWarning(NamedTuple):
    """One thing found in a Compose file: an error cannot work as written, a warning will hurt."""

    place: Place
    id: str
    severity: Literal["error", "warning"]
    message: str
    fix: str

    def __str__(self) -> str:
        return f"{self.place}: {self.severity}: {self.message}; fix: {self.fix}"


def warning(place: Place, key: str, /, **values: object) -> ComposeWarning:
    """Make the warning that warnings.toml has under ``key``: its ID, and more words where a rule words several."""
    return ComposeWarning(place, key.partition(" ")[0], **filled_in(_WARNINGS, key, values))


def check_compose(file: ComposeFile) -> list[ComposeWarning]:
    """Return every warning, in the order of lines."""
    asks: dict[str, GpuAsk] = {}
    for name, service in file.services.items():
        with suppress(GpuRequestError):  # raised when it is planned
            if (ask := file.gpu_ask(service)) is not None:
                asks[name] = ask
    found = [*_reserved_twice(file, asks)]
    for name, service in file.services.items():
        found += _of_service(file, name, service, on_gpu=name in asks)
        found += _of_request(file, name, service, asks[name]) if name in asks else ()
    return sorted(dict.fromkeys(found), key=lambda each: (str(each.place.file), each.place.line, each.id))


def short_form(file: ComposeFile) -> ComposeWarning | None:
    """Return the warning that readers wait for their tasks' end, with the long form of depends_on, or None."""
    if not file.short_waits:
        return None
    writer, reader = file.short_waits[0]
    waits = ", ".join(f"{each} waits until {task} has ended well" for task, each in file.short_waits)
    return warning(file.place(reader, "depends_on", writer), "short-depends-on", waits=waits, writer=writer)


def _reserved_twice(file: ComposeFile, asks: Asks) -> Iterator[ComposeWarning]:
    """Find one GPU that several services name, since Compose gives it to all of them without a warning."""
    for one, other in combinations(asks, 2):
        both = [name for name in asks[other].request.devices if name in asks[one].request.devices]
        if both and not file.never_together(one, other):
            yield warning(file.place(other, *asks[other].path), "same-gpu", one=one, other=other, both=", ".join(both))
    for name in [name for name, ask in asks.items() if ask.request.kind == "all"]:
        rivals = [other for other in asks if other != name and not file.never_together(name, other)]
        if rivals:
            named = first_of(rivals, _MOST_NAMED)
            yield warning(file.place(name, *asks[name].path), "same-gpu all", name=name, rivals=named)
            return  # the others would repeat it


def _of_request(file: ComposeFile, name: str, service: Service, ask: GpuAsk) -> Iterator[ComposeWarning]:
    """Find a request without CUDA, one that all replicas share, and a CUDA_VISIBLE_DEVICES that hides its GPUs."""
    if ask.compute_added:
        key = (*ask.path, "0", "capabilities") if ask.ways[0] == "deploy" else ()
        yield warning(file.place(name, *key), "no-compute", name=name)
    listed = [each.strip() for each in service.environment.get("CUDA_VISIBLE_DEVICES", "").split(",")]
    count = ask.request.count or len(ask.request.devices)  # which a container counts from 0 again
    hides = count and listed[0].isdigit() and any(each.isdigit() and int(each) >= count for each in listed)
    if hides and ask.ways[0] != "runtime":
        inside = "one GPU is 0" if count == 1 else f"{count} GPUs are 0 to {count - 1}"
        words = {"name": name, "listed": ",".join(listed), "inside": inside}
        yield warning(file.place(name, "environment", "CUDA_VISIBLE_DEVICES"), "counted-from-outside", **words)
    if service.replicas > 1:
        key = ("scale",) if "scale" in service.config else ("deploy", "replicas")
        how = {"replicas": service.replicas, "request": ask.request, "setting": key[-1]}
        yield warning(file.place(name, *key), "replicas-share", name=name, **how)
    if ask.ways[0] == "environment":
        yield warning(file.place(name, *ask.path), "variable-alone", name=name)


def _of_service(file: ComposeFile, name: str, service: Service, *, on_gpu: bool) -> Iterator[ComposeWarning]:
    """Find a build without its folder, requests that give no GPU of NVIDIA's, and DataLoader workers whose batches pass
    through an engine's 64 MB of /dev/shm, to end in "Bus error".
    """
    if service.context and service.context.is_absolute() and not service.context.exists():
        yield warning(file.place(name, "build"), "no-context", name=name, folder=from_here(service.context))
    if (path := foreign_ask(service)) is not None:
        yield warning(file.place(name, *path), "not-nvidia", name=name)
    if file.lines.has("services", name, *_OF_SWARM):
        yield warning(file.place(name, *_OF_SWARM), "for-swarm", name=name)
    tmpfs = [str(each).partition(":")[0] for each in service.config.get("tmpfs") or ()]
    sized = service.config.get("shm_size") or service.config.get("ipc") or "/dev/shm" in tmpfs
    if sized or any(volume.target == "/dev/shm" for volume in service.volumes):
        return
    if (why := _workers(service, on_gpu)) is not None:
        yield warning(file.place(name), "shm-size", name=name, why=why)


def _workers(service: Service, on_gpu: bool) -> str | None:
    """Return where it shows that it uses workers; None if it does not."""
    words = service.words
    match = _WORKERS_IN_WORDS.search(words)
    if match and match[1] == "workers" and not service.is_task:
        match = None  # a server's own processes: gunicorn, uvicorn, mlflow server
    if match := match or (_TRAINERS.search(words) if on_gpu else None):
        return match[0]
    for path in [] if service.context is None else sorted(service.context.glob("*.py"))[:_MOST_FILES]:
        if path.name in words and is_there(path):
            text = read_bytes(path, inside=None, limit_bytes=_MOST_BYTES)
            if match_in := _WORKERS_IN_CODE.search(text):
                line = text.count(b"\n", 0, match_in.start()) + 1
                return f"{path.name}:{line}"
    return None
