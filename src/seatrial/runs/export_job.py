"""export_job: a project's job and a trained model → the job whose target is the export program."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path, PurePosixPath

from seatrial.backends import table
from seatrial.errors import UsageError
from seatrial.job.gpu_request import GpuRequest
from seatrial.job.model import DataMount, Job, Target
from seatrial.runs.models import TrainedModel
from seatrial.system.typed_path import as_typed

#: Format → what its files end in. Source: FORMATS in export/formats.py; a test compares.
SUFFIXES = {"onnx": ".onnx", "pt2": ".pt2", "safetensors": ".safetensors"}

#: Where exported models go, below the project.
FOLDER = "exports"


@dataclass(frozen=True)
class Asked:
    """What is asked for.

    Attributes:
        to: the format. out: below the project; None: exports/NAME.suffix.
        options: further ones of ``python -m seatrial.export``. typed: the words after ``seatrial``.
    """

    to: str
    out: str | None = None
    options: tuple[str, ...] = ()
    typed: str = ""


def check_format(to: str) -> None:
    """Raises UsageError."""
    if to == "torchscript":
        raise UsageError(
            "--to torchscript is not written any more",
            cause="torch has deprecated TorchScript; a .pt2 file also carries its network",
            run="seatrial export last --to pt2",
        )
    if to not in SUFFIXES:
        raise UsageError(
            f"--to {to}: no such format; there are {', '.join(SUFFIXES)}", run="seatrial export last --to onnx"
        )


def out_path(project: Path, model_name: str, asked: Asked) -> str:
    """The file to write, relative to the project. Raises UsageError: outside of it, or of another format's suffix."""
    suffix = SUFFIXES[asked.to]
    if asked.out is None:
        return f"{FOLDER}/{model_name}{suffix}"
    if asked.out.endswith("/") or (project / asked.out).is_dir():
        return str(PurePosixPath(_inside(project, asked.out)) / f"{model_name}{suffix}")
    out = _inside(project, asked.out)
    if not out.endswith(suffix):
        raise UsageError(
            f"--out {asked.out} does not end in {suffix}, as files of {asked.to} do",
            run=f"seatrial export … --to {asked.to} --out {PurePosixPath(asked.out).with_suffix(suffix)}",
        )
    return out


def beside(out: str) -> tuple[str, str, str]:
    """All that an export writes: the model, its card, its examples."""
    stem = out.removesuffix(PurePosixPath(out).suffix)
    return out, f"{stem}.json", f"{stem}.examples.safetensors"


def export_job(job: Job, model: TrainedModel, asked: Asked) -> Job:
    """The job with the export program as its target; on the CPU, with the models folder read-only.

    Raises UsageError: on Kubernetes; weights without a factory; an output outside the project.
    """
    if table.is_elsewhere(job.backend):
        raise UsageError("seatrial export runs on this machine, not on Kubernetes", run="seatrial export … --on docker")
    if model.is_weights_alone and "--model-factory" not in asked.options:
        path = as_typed((model.folder or job.project) / model.model)
        raise UsageError(
            f"{model.model} holds weights without their network",
            cause="a function of yours makes it: net:make_model is make_model() in net.py",
            run=f"seatrial export {path} --to {asked.to} --model net:make_model",
        )
    out = out_path(job.project, model.name, asked)
    word = model.name if model.kind == "recipe" else as_typed((model.folder or job.project) / model.model)
    typed = asked.typed or f"export {word} --to {asked.to}"
    args: Sequence[str] = ("--model", model.model, "--to", asked.to, "--out", out, *asked.options)
    return job.model_copy(
        update={
            "target": Target(kind="recipe", value="export", args=tuple(args), typed=typed),
            "models": None if model.folder is None else DataMount(source=model.folder, read_only=True),
            "data": None,
            "gpus": GpuRequest("none"),
            "nodes": 1,
            "hosts": (),
            "launcher": "none",
            "restarts": None,
            "resume": None,
            "workdir": None,
            "criteria": job.criteria.only("max_image_bytes", model=(out,)),
        }
    )


def _inside(project: Path, out: str) -> str:
    path, root = (project / out).resolve(), project.resolve()
    if not path.is_relative_to(root) or path == root:
        raise UsageError(
            f"--out {out} is outside the project {root}",
            cause="only the project folder can be written in the container",
            run=f"seatrial export … --out {FOLDER}/{Path(out).name}",
        )
    return str(path.relative_to(root))
