"""Warnings about a Compose file that trains on GPUs, each with its line. Starts nothing."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from itertools import combinations
from pathlib import Path
from typing import Literal

from seatrial.compose.gpu_requests import RESERVED, GpuAsk, foreign_ask, gpu_ask
from seatrial.compose.lines import Place
from seatrial.compose.read import ComposeFile
from seatrial.compose.service import Service
from seatrial.errors import GpuRequestError
from seatrial.system.project_files import filled_in, is_there, read_bytes

#: DataLoader workers in a script's text, or in a command's words.
_WORKERS_IN_CODE = re.compile(rb"num_workers\s*=\s*(?!0\b)[\w(]")
_WORKERS_IN_WORDS = re.compile(r"--?(num[-_]?workers|workers|n[-_]?workers)[ =](?!0\b)\d")

#: Frameworks whose trainers start workers by default.
_TRAINERS = re.compile(r"\b(yolo|ultralytics|torchrun|accelerate launch|lightning|deepspeed|tune run)\b")

_MOST_FILES, _MOST_BYTES, _MOST_NAMED = 20, 200_000, 3

#: Service → the GPUs that it requests.
Asks = Mapping[str, GpuAsk]


@dataclass(frozen=True)
class ComposeWarning:
    """One thing found in a Compose file.

    Attributes:
        severity: error if it cannot work as written; warning if it will hurt.
        fix: what to write.
    """

    place: Place
    id: str
    severity: Literal["error", "warning"]
    message: str
    fix: str

    def __str__(self) -> str:
        return f"{self.place}: {self.severity}: {self.message}; fix: {self.fix}"


def warning(place: Place, key: str, /, **values: object) -> ComposeWarning:
    """Make the warning that warnings.toml has under ``key``: its ID, and more words where a rule words several."""
    texts = filled_in(Path(__file__).with_name("warnings.toml"), key, values)
    return ComposeWarning(place, key.partition(" ")[0], **texts)


def check_compose(file: ComposeFile) -> list[ComposeWarning]:
    """Return every warning, in the order of lines."""
    asks = _asks(file)
    found = [each for rule in RULES for each in rule(file, asks)]
    return sorted(dict.fromkeys(found), key=lambda each: (str(each.place.file), each.place.line, each.id))


def short_form(file: ComposeFile) -> ComposeWarning | None:
    """Return the warning that readers wait for their tasks' end, with the long form of depends_on; None if none does.

    Known once the images are here, which show what a task is.
    """
    if not file.short_waits:
        return None
    writer, reader = file.short_waits[0]
    waits = ", ".join(f"{each} waits until {task} has ended well" for task, each in file.short_waits)
    return warning(file.place(reader, "depends_on", writer), "short-depends-on", waits=waits, writer=writer)


def _asks(file: ComposeFile) -> Asks:
    found: dict[str, GpuAsk] = {}
    for name, service in file.services.items():
        with suppress(GpuRequestError):  # raised when it is planned
            if (ask := gpu_ask(file, service)) is not None:
                found[name] = ask
    return found


def _reserved_twice(file: ComposeFile, asks: Asks) -> Iterator[ComposeWarning]:
    """Find one GPU that several services name, since Compose gives it to all of them without a warning."""
    for one, other in combinations(asks, 2):
        both = [name for name in asks[other].request.devices if name in asks[one].request.devices]
        if both and not file.never_together(one, other):
            yield warning(file.place(other, *asks[other].path), "same-gpu", one=one, other=other, both=", ".join(both))
    for name in [name for name, ask in asks.items() if ask.request.kind == "all"]:
        rivals = [other for other in asks if other != name and not file.never_together(name, other)]
        if rivals:
            more = f" and {len(rivals) - _MOST_NAMED} more" if len(rivals) > _MOST_NAMED else ""
            named = ", ".join(rivals[:_MOST_NAMED]) + more
            yield warning(file.place(name, *asks[name].path), "same-gpu all", name=name, rivals=named)
            return  # the others would repeat it


def _no_compute(file: ComposeFile, asks: Asks) -> Iterator[ComposeWarning]:
    for name, ask in asks.items():
        if ask.compute_added:
            yield warning(
                file.place(name, *ask.path, "0", "capabilities") if ask.ways[0] == "deploy" else file.place(name),
                "no-compute",
                name=name,
            )


def _counted_from_outside(file: ComposeFile, asks: Asks) -> Iterator[ComposeWarning]:
    """Find a CUDA_VISIBLE_DEVICES that hides reserved GPUs, which a container counts from 0 again."""
    for name, ask in asks.items():
        if ask.ways[0] == "runtime":
            continue
        listed = [each.strip() for each in file.services[name].environment.get("CUDA_VISIBLE_DEVICES", "").split(",")]
        count = ask.request.count or len(ask.request.devices)
        if not count or not listed[0].isdigit():
            continue
        if any(each.isdigit() and int(each) >= count for each in listed):
            inside = "one GPU is 0" if count == 1 else f"{count} GPUs are 0 to {count - 1}"
            yield warning(
                file.place(name, "environment", "CUDA_VISIBLE_DEVICES"),
                "counted-from-outside",
                name=name,
                listed=",".join(listed),
                inside=inside,
            )


def _replicas_share(file: ComposeFile, asks: Asks) -> Iterator[ComposeWarning]:
    for name, ask in asks.items():
        if file.services[name].replicas > 1:
            key = ("scale",) if "scale" in file.services[name].config else ("deploy", "replicas")
            yield warning(
                file.place(name, *key),
                "replicas-share",
                name=name,
                replicas=file.services[name].replicas,
                request=ask.request,
                setting=key[-1],
            )


def _no_gpu_comes(file: ComposeFile, asks: Asks) -> Iterator[ComposeWarning]:
    """Find requests that give no GPU, or one that is not NVIDIA's."""
    swarm = (*RESERVED[:-1], "generic_resources")
    for name, service in file.services.items():
        if (path := foreign_ask(service)) is not None:
            yield warning(file.place(name, *path), "not-nvidia", name=name)
        if file.lines.has("services", name, *swarm):
            yield warning(file.place(name, *swarm), "for-swarm", name=name)
        if name in asks and asks[name].ways[0] == "environment":
            yield warning(file.place(name, *asks[name].path), "variable-alone", name=name)


def _small_shared_memory(file: ComposeFile, asks: Asks) -> Iterator[ComposeWarning]:
    """Find DataLoader workers whose batches pass through an engine's 64 MB of /dev/shm, to end in "Bus error"."""
    for name, service in file.services.items():
        if service.config.get("shm_size") or service.config.get("ipc") or _mounts_shm(service):
            continue
        if (why := _workers(service, name in asks)) is not None:
            yield warning(file.place(name), "shm-size", name=name, why=why)


def _mounts_shm(service: Service) -> bool:
    tmpfs = [str(each).partition(":")[0] for each in service.config.get("tmpfs") or ()]
    return "/dev/shm" in tmpfs or any(volume.target == "/dev/shm" for volume in service.volumes)


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


RULES: tuple[Callable[[ComposeFile, Asks], Iterator[ComposeWarning]], ...] = (
    _reserved_twice,
    _no_compute,
    _counted_from_outside,
    _replicas_share,
    _no_gpu_comes,
    _small_shared_memory,
)
