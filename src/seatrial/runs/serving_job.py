"""serve as a job: its plan, its port, and the wait until it answers."""

from __future__ import annotations

import contextlib
import errno
import hashlib
import ipaddress
import socket
import threading
import time
from collections.abc import Callable, Collection, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from seatrial.errors import DataError, SeatrialError, UsageError
from seatrial.job.gpu_request import GpuRequest
from seatrial.job.model import DataMount, Job, Target
from seatrial.job.tables import TOKEN, Serving, Weights
from seatrial.runs.models import TrainedModel
from seatrial.runs.run import Run, run_name
from seatrial.runs.store import RunStore
from seatrial.system.address import is_loopback
from seatrial.system.typed_path import as_typed, from_here


@dataclass(frozen=True)
class Options:
    """How it is served.

    Attributes:
        program: options of ``python -m seatrial.serve``. typed: Serving.typed.
    """

    port: int = 8000
    address: str = "127.0.0.1"
    token: bool = False
    program: tuple[str, ...] = ()
    typed: str = ""


#: What a project's file says of its training and means nothing for a server: field → key of the file.
_OF_TRAINING = {"data": "data", "timeout_s": "timeout", "restarts": "restarts", "name": "name"}

_CHUNK_BYTES = 1 << 20


def serving_job(job: Job, found: TrainedModel, options: Options, given: Collection[str] = ()) -> Job:
    """The job with the server as its target: GPUs, mounts, variables and image options are the project's.

    Args:
        given: keys that were asked for on the command line, which stand.

    Raises:
        UsageError: several GPUs or nodes, or an address that is none.
        DataError: the model cannot be read.
    """
    _check_address(options)
    gpus = _one_gpu(job.gpus, asked="gpus" in given)
    if job.nodes > 1 and "nodes" in given:
        raise UsageError("A server runs on one machine", run="seatrial serve …   # without --nodes")
    name = job.name if "name" in given and job.name is not None else found.name
    serving = Serving(
        kind=found.kind,
        model=found.model,
        name=name,
        address=options.address,
        port=options.port,
        options=options.program,
        weights=tuple(_weights(file, found.folder or job.project) for file in found.files),
        of_run=found.of_run,
        typed=options.typed,
    )
    reset: dict[str, Any] = {
        field: Job.model_fields[field].default for field, key in _OF_TRAINING.items() if key not in given
    }
    models = None if found.folder is None else DataMount(source=found.folder, read_only=True)
    return job.model_copy(
        update={
            **reset,
            "target": Target(kind="recipe", value="serve"),
            "serve": serving,
            "models": models or (job.models and job.models.model_copy(update={"read_only": True})),
            "secrets": (*job.secrets, *([TOKEN] if options.token and TOKEN not in job.secrets else [])),
            "criteria": job.criteria.only("max_image_bytes"),
            "watch": job.watch.model_copy(update={"hang_after_s": None}),  # nobody asking is no hang
            "gpus": gpus,
            "nodes": 1,
            "hosts": (),
            "launcher": "none",
            "resume": None,
        }
    )


def _one_gpu(request: GpuRequest, *, asked: bool) -> GpuRequest:
    """What a server computes on. A file's request is its training's: of several GPUs one is left.

    Raises UsageError: several were asked for on the command line.
    """
    several = request.kind == "all" or (request.count or len(request.devices)) > 1
    if several and asked:
        raise UsageError(
            "A server computes on one GPU; start one for each, on ports of their own",
            run="seatrial serve … --gpus 1",
        )
    return GpuRequest("count", 1, capabilities=request.capabilities) if several else request


def _check_address(options: Options) -> None:
    """An engine takes numbers alone."""
    try:
        ipaddress.ip_address(options.address)
    except ValueError:
        raise UsageError(
            f"--host {options.address[:80]} is no address in numbers",
            run="seatrial serve … --host 127.0.0.1   # or 0.0.0.0, every address of this machine",
        ) from None


def _weights(file: Path, top: Path) -> Weights:
    """A file with its digest. Raises DataError: it cannot be read."""
    digest = hashlib.sha256()
    try:
        with file.open("rb") as opened:
            while chunk := opened.read(_CHUNK_BYTES):
                digest.update(chunk)
            size = opened.tell()
    except OSError as error:
        raise DataError(f"{from_here(file)} cannot be read: {error.strerror}", run=f"ls -l {as_typed(file)}") from error
    path = str(file.relative_to(top)) if file.is_relative_to(top) else file.name
    return Weights(path=path, sha256=digest.hexdigest(), bytes=size)


READY_PATH = "/v2/health/ready"

#: How often a server that is loading its model is asked, and how long one answer may take.
_INTERVAL_S, _ANSWER_S = 0.2, 2.0

#: Ports looked at for the one to name in place of a taken one.
_NEAR = 20


def refuse_taken_port(job: Job, store: RunStore) -> None:
    """Raises UsageError: something listens there already, or the address is not this machine's."""
    serving = job.serve
    if serving is None or (error := _taken(serving.address, serving.port)) is None:
        return
    where = f"{serving.address}:{serving.port}"
    if error.errno == errno.EADDRINUSE:
        free = free_port_near(serving.address, serving.port)
        other = serving_on(store, serving.port)
        by = "" if other is None else f" by run {run_name(other) or other.id}, which serves too"
        again = _with_port(serving.typed, free)
        first = "" if other is None else f"seatrial runs stop {run_name(other) or other.id}   # or: "
        raise UsageError(f"Port {serving.port} is taken{by}", run=f"{first}seatrial serve {again}")
    if error.errno == errno.EACCES:
        raise UsageError(
            f"Port {serving.port} may be opened by root alone",
            run=f"seatrial serve {_with_port(serving.typed, serving.port + 8000)}",
        )
    raise UsageError(
        f"{where} is no address of this machine: {error.strerror}",
        run="seatrial serve … --host 0.0.0.0   # every address of this machine",
    )


def free_port_near(address: str, port: int) -> int:
    """The next one that nobody listens on."""
    near = range(port + 1, min(port + _NEAR, 65536))
    return next((other for other in near if _taken(address, other) is None), port + 1)


def serving_on(store: RunStore, port: int) -> Run | None:
    """The run of this project that serves on a port, as far as its record goes."""
    for run in reversed(store.all()):
        if not run.ended and (serving := serving_of(run)) is not None and serving.port == port:
            return run
    return None


def serving_of(run: Run) -> Serving | None:
    """What a run serves; None for one that does not, or whose plan cannot be read."""
    with contextlib.suppress(SeatrialError, OSError):  # whatever is wrong with it, somebody else says so
        return run.plan().job.serve
    return None


def warnings_of(job: Job) -> tuple[str, ...]:
    """Who else can reach it."""
    serving = job.serve
    if serving is None or is_loopback(serving.address) or TOKEN in job.secrets:
        return ()
    return (f"anyone who reaches {serving.address}:{serving.port} can use the model; --token asks for one",)


def is_ready(serving: Serving) -> bool:
    """Whether it answers requests by now."""
    where = urlsplit(serving.url)
    from http.client import HTTPConnection, HTTPException  # most runs serve nothing

    connection = HTTPConnection(where.hostname or "", serving.port, timeout=_ANSWER_S)
    try:
        connection.request("GET", READY_PATH)
        return connection.getresponse().status in (200, 401)  # 401: it asks for a token, so it answers
    except (OSError, HTTPException, ValueError):
        return False
    finally:
        connection.close()


def wait_until_ready(serving: Serving, ended: Callable[[], bool]) -> float | None:
    """Seconds until it answered; None where it ended before it did."""
    started_s = time.monotonic()
    while not ended():
        if is_ready(serving):
            return time.monotonic() - started_s
        time.sleep(_INTERVAL_S)
    return None


@contextlib.contextmanager
def saying_when_ready(serving: Serving | None, say: Callable[[str], None]) -> Iterator[None]:
    """While this holds, a server says its address once it answers."""
    if serving is None:
        yield
        return
    over = threading.Event()

    def watch() -> None:
        seconds = wait_until_ready(serving, over.is_set)
        if seconds is not None and not over.is_set():
            say(ready_words(serving, seconds))

    thread = threading.Thread(target=watch, name="ready", daemon=True)
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join(timeout=_ANSWER_S + 1)


def ready_words(serving: Serving, seconds: float) -> str:
    """``serves digits at http://127.0.0.1:8000, ready after 2.1 s``."""
    return f"serves {serving.name} at {serving.url}, ready after {seconds:.1f} s; to try it: {serving.url}/"


def _taken(address: str, port: int) -> OSError | None:
    """Why nobody can listen there now."""
    family = socket.AF_INET6 if ":" in address else socket.AF_INET
    with socket.socket(family, socket.SOCK_STREAM) as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)  # as servers do: closed connections do not count
        try:
            probe.bind((address, port))
        except OSError as error:
            return error
    return None


def _with_port(typed: str, port: int) -> str:
    words = typed.split(" ")
    if "--port" in words:
        words[words.index("--port") + 1] = str(port)
        return " ".join(words)
    return f"{typed} --port {port}"
