"""Export, serve and tune as jobs: their targets and options, a server's port, and the wait until it answers."""

from __future__ import annotations

import contextlib
import errno
import hashlib
import ipaddress
import threading
import time
from collections.abc import Callable, Collection, Iterator, Sequence
from difflib import get_close_matches
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

from seatrial.backends import table
from seatrial.errors import DataError, UsageError, os_errors
from seatrial.job.gpu_request import GpuRequest
from seatrial.job.model import DataMount, Job, Target
from seatrial.job.tables import TOKEN, Changes, Serving, Tuning, Weights
from seatrial.system.address import is_loopback, taken
from seatrial.system.text import as_typed, from_here

if TYPE_CHECKING:
    from seatrial.runs.models import TrainedModel

#: Format → suffix of its files. Source: FORMATS in export/formats.py; a test compares.
SUFFIXES = {"onnx": ".onnx", "pt2": ".pt2", "safetensors": ".safetensors"}
#: Settings of a job that does not train: one process on one machine, from the beginning.
_ALONE: dict[str, Any] = {"nodes": 1, "hosts": (), "launcher": "none", "resume": None}
#: The folder of exported models, below the project.
FOLDER = "exports"


def check_format(to: str) -> None:
    """Check the name of an export's format. Raises UsageError."""
    if to not in SUFFIXES:
        close = next(iter(get_close_matches(to, SUFFIXES)), "onnx")
        message = f"--to {to}: no such format; there are {', '.join(SUFFIXES)}"
        raise UsageError(message, run=f"seatrial export last --to {close}", instead=(to, [close]))


def out_path(project: Path, model_name: str, to: str, wanted: str | None = None) -> str:
    """Return the file to write, below the project. Raises UsageError: it is not there, or has another suffix."""
    suffix = SUFFIXES[to]
    if wanted is None:
        return f"{FOLDER}/{model_name}{suffix}"
    if wanted.endswith("/") or (project / wanted).is_dir():
        return str(PurePosixPath(_inside(project, wanted)) / f"{model_name}{suffix}")
    out = _inside(project, wanted)
    if not out.endswith(suffix):
        run = f"seatrial export … --to {to} --out {PurePosixPath(wanted).with_suffix(suffix)}"
        raise UsageError(f"--out {wanted} does not end in {suffix}, as files of {to} do", run=run)
    return out


def export_job(
    job: Job, model: TrainedModel, to: str, out: str | None = None, *, options: Sequence[str] = (), typed: str = ""
) -> Job:
    """Make the export program the job's target; on the CPU, with the models folder read-only.

    ``out``: the file, below the project; None: exports/NAME.suffix. ``options``: further ones of ``python -m
    seatrial.export``. ``typed``: behind ``seatrial``. Raises UsageError: on Kubernetes; an output outside the project.
    """
    if table.is_elsewhere(job.backend):
        raise UsageError("seatrial export runs on this machine, not on Kubernetes", run="seatrial export … --on docker")
    out = out_path(job.project, model.name, to, out)
    word = model.name if model.kind == "recipe" else as_typed(model.folder / model.model)
    typed = typed or f"export {word} --to {to}"
    args = ("--model", model.model, "--to", to, "--out", out, *options)
    target = Target(kind="recipe", value="export", args=args, typed=typed)
    models = DataMount(source=model.folder, read_only=True)
    criteria = job.criteria.only("max_image_bytes", model=(out,))
    unset: dict[str, Any] = {"data": None, "restarts": None, "workdir": None, **_ALONE}
    return job.changed(target=target, models=models, gpus=GpuRequest("none"), criteria=criteria, **unset)


def _inside(project: Path, out: str) -> str:
    path, root = (project / out).resolve(), project.resolve()
    if not path.is_relative_to(root) or path == root:
        message = f"--out {out} is outside the project {root}"
        cause = "only the project folder can be written in the container"
        raise UsageError(message, cause=cause, run=f"seatrial export … --out {FOLDER}/{Path(out).name}")
    return str(path.relative_to(root))


# ---------------------------------------------------------------------------------------------------- serve


#: Options of a project's file for its training, which a server ignores: field → key of the file.
_OF_TRAINING = {"data": "data", "timeout_s": "timeout", "restarts": "restarts", "name": "name"}

_CHUNK_BYTES = 1 << 20


def serving_job(
    job: Job,
    found: TrainedModel,
    *,
    port: int = 8000,
    address: str = "127.0.0.1",
    token: bool = False,
    options: Sequence[str] = (),
    typed: str = "",
    given: Collection[str] = (),
) -> Job:
    """Make the server the job's target: GPUs, mounts, variables and image options are the project's.

    ``token``: True if requests need one. ``options``: those of ``python -m seatrial.serve``. ``typed``: the words after
    ``seatrial serve``. ``given``: keys set on the command line, which count. Raises UsageError: several GPUs or nodes,
    or an address that is none. DataError: the model cannot be read.
    """
    try:
        ipaddress.ip_address(address)
    except ValueError:
        run = "seatrial serve … --host 127.0.0.1   # or 0.0.0.0, every address of this machine"
        raise UsageError(f"--host {address[:80]} is not a numeric address", run=run) from None
    gpus = _one_gpu(job.gpus, given="gpus" in given)
    if job.nodes > 1 and "nodes" in given:
        raise UsageError("A server runs on one machine", run="seatrial serve …   # without --nodes")
    name = job.name if "name" in given and job.name is not None else found.name
    serving = Serving(
        kind=found.kind,
        model=found.model,
        name=name,
        address=address,
        port=port,
        options=tuple(options),
        weights=tuple(_weights(file, found.folder) for file in found.files),
        of_run=found.of_run,
        typed=typed,
    )
    reset: dict[str, Any] = {
        field: Job.model_fields[field].default for field, key in _OF_TRAINING.items() if key not in given
    }
    reset |= {"criteria": job.criteria.only("max_image_bytes"), "watch": job.watch.changed(hang_after_s=None), **_ALONE}
    target, models = Target(kind="recipe", value="serve"), DataMount(source=found.folder, read_only=True)
    secrets = (*job.secrets, *([TOKEN] if token and TOKEN not in job.secrets else []))
    return job.changed(**reset, target=target, serve=serving, models=models, secrets=secrets, gpus=gpus)


def _one_gpu(request: GpuRequest, *, given: bool) -> GpuRequest:
    """Return one GPU of a file's request, which is its training's. Raises UsageError: the command line sets several."""
    several = request.kind == "all" or (request.count or len(request.devices)) > 1
    if several and given:
        raise UsageError(
            "A server computes on one GPU; start one for each, on ports of their own", run="seatrial serve … --gpus 1"
        )
    return GpuRequest("count", 1, capabilities=request.capabilities) if several else request


def _weights(file: Path, top: Path) -> Weights:
    """Describe a file with its digest. Raises DataError."""
    digest = hashlib.sha256()
    reading = os_errors(DataError, f"{from_here(file)} cannot be read", f"ls -l {as_typed(file)}")
    with reading, file.open("rb") as opened:
        while chunk := opened.read(_CHUNK_BYTES):
            digest.update(chunk)
        size = opened.tell()
    return Weights(path=str(file.relative_to(top)), sha256=digest.hexdigest(), bytes=size)


READY_PATH = "/v2/health/ready"
#: Between two requests to a server that is loading its model, and for one answer.
_INTERVAL_S, _ANSWER_S = 0.2, 2.0
#: Most ports tried for a free one to name in place of a taken one.
_LOOKED_AT = 20


def refuse_taken_port(job: Job) -> None:
    """Check a server's address. Raises UsageError: the port is taken, or the address is not this machine's."""
    serving = job.serve
    if serving is None or (error := taken(serving.address, serving.port)) is None:
        return
    where = f"{serving.address}:{serving.port}"
    if error.errno == errno.EADDRINUSE:
        above = range(serving.port + 1, min(serving.port + _LOOKED_AT, 65536))
        free = next((port for port in above if taken(serving.address, port) is None), serving.port + 1)
        raise UsageError(f"Port {serving.port} is taken", run=f"seatrial serve {_with_port(serving.typed, free)}")
    if error.errno == errno.EACCES:
        message = f"Port {serving.port} may be opened by root alone"
        raise UsageError(message, run=f"seatrial serve {_with_port(serving.typed, serving.port + 8000)}")
    message = f"{where} is not an address of this machine: {error.strerror}"
    raise UsageError(message, run="seatrial serve … --host 0.0.0.0   # every address of this machine")


def warnings_of(job: Job) -> tuple[str, ...]:
    """Return a warning about a server that others can use, without a token; else ()."""
    serving = job.serve
    if serving is None or is_loopback(serving.address) or TOKEN in job.secrets:
        return ()
    return (f"anyone who reaches {serving.address}:{serving.port} can use the model; --token asks for one",)


def _is_ready(serving: Serving) -> bool:
    where = urlsplit(serving.url)
    from http.client import HTTPConnection, HTTPException  # most runs serve nothing

    connection = HTTPConnection(where.hostname or "", serving.port, timeout=_ANSWER_S)
    try:
        connection.request("GET", READY_PATH)
        return connection.getresponse().status in (200, 401)  # 401: it requires a token, so it answers
    except (OSError, HTTPException, ValueError):
        return False
    finally:
        connection.close()


def wait_until_ready(serving: Serving, ended: Callable[[], bool]) -> float | None:
    """Wait for a server and return the seconds until it answered; None if it ended before."""
    started_s = time.monotonic()
    while not ended():
        if _is_ready(serving):
            return time.monotonic() - started_s
        time.sleep(_INTERVAL_S)
    return None


@contextlib.contextmanager
def report_when_ready(serving: Serving | None, echo: Callable[[str], None]) -> Iterator[None]:
    """Report a server's address once it answers."""
    if serving is None:
        yield
        return
    over = threading.Event()

    def watch() -> None:
        seconds = wait_until_ready(serving, over.is_set)
        if seconds is not None and not over.is_set():
            echo(ready_words(serving, seconds))

    thread = threading.Thread(target=watch, name="ready", daemon=True)
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join(timeout=_ANSWER_S + 1)


def ready_words(serving: Serving, seconds: float) -> str:
    """Return ``serves digits at http://127.0.0.1:8000, ready after 2.1 s`` and the address to try it."""
    return f"serves {serving.name} at {serving.url}, ready after {seconds:.1f} s; to try it: {serving.url}/"


def _with_port(typed: str, port: int) -> str:
    words = typed.split(" ")
    if "--port" in words:
        words[words.index("--port") + 1] = str(port)
        return " ".join(words)
    return f"{typed} --port {port}"


# ----------------------------------------------------------------------------------------------------- tune

#: Seconds of a budget below which a baseline and one change do not fit.
_LEAST_BUDGET_S = 20.0


def tuning_job(job: Job, tuning: Tuning) -> Job:
    """Return the job with its script tuned, and no criteria. Raises UsageError if it cannot: a recipe, no hook …"""
    if job.target.kind == "recipe":
        message = f"{job.target.value} is a recipe, which is tuned already; seatrial tune is for scripts"
        raise UsageError(message, run="seatrial tune train.py")
    if job.nodes > 1:
        raise UsageError("seatrial tune runs on one machine", run="seatrial tune …   # without --nodes")
    if job.no_hook:
        raise UsageError("seatrial tune measures with the hook that --no-hook leaves out", run="seatrial tune …")
    if tuning.budget_s < _LEAST_BUDGET_S:
        message = f"--budget {tuning.budget_s:g}: a baseline and one change need at least {_LEAST_BUDGET_S:g} s"
        raise UsageError(message, run="seatrial tune … --budget 180")
    return job.changed(
        tuning=tuning, tune=Changes(), criteria=job.criteria.only("max_image_bytes"), restarts=0, resume=None
    )
