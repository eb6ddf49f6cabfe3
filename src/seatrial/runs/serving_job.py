"""serving_job: a project's job and a model → the job of a server."""

from __future__ import annotations

import hashlib
import ipaddress
from collections.abc import Collection
from pathlib import Path
from typing import Any

from seatrial.errors import DataError, UsageError
from seatrial.job.gpu_request import GpuRequest
from seatrial.job.model import DataMount, Job, Target
from seatrial.job.serving import TOKEN, Serving, Weights
from seatrial.runs.trained_model import TrainedModel
from seatrial.system.records import dataclass
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
