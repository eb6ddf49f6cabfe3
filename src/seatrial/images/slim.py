"""Slimming decided on the host: which level, which features the project shows no use of, which architectures stay."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import seatrial
from seatrial.errors import ConfigError
from seatrial.images.slimming.unused import FEATURES
from seatrial.job.model import Job
from seatrial.job.plan import Choice
from seatrial.recipe_names import source_of
from seatrial.stack.machine import Machine
from seatrial.stack.resolve import Stack
from seatrial.system.project_files import read_sources
from seatrial.system.zip_bytes import zip_bytes

_PACKAGE = Path(seatrial.__file__).parent
_ROOM = Path("images") / "slimming"

#: Feature → what in a project's source shows its use. Generous: a false hit costs megabytes, a miss stops a run.
_SIGNS: dict[str, re.Pattern[str]] = {
    "fft": re.compile(r"fft|stft|spectrogram|melscale|torchaudio", re.IGNORECASE),
    "sparse": re.compile(r"sparse|to_csr|coalesce|torch_geometric|torch_scatter|\bdgl\b|bitsandbytes", re.IGNORECASE),
    "sparselt": re.compile(r"semi_structured|sparselt", re.IGNORECASE),
    "random": re.compile(r"curand|cupy", re.IGNORECASE),
    "nvshmem": re.compile(r"nvshmem|symm_mem|symmetric_memory", re.IGNORECASE),
    "nccl": re.compile(r"nccl|distributed|DataParallel|Accelerator|lightning|deepspeed|torchrun", re.IGNORECASE),
    "linalg": re.compile(
        r"linalg|\binv(erse)?\(|cholesky|\bsvd|\bqr\(|\beigh?|lstsq|lu_solve|pinverse|matrix_exp|orthogonal|"
        r"spectral_norm|logdet|slogdet|\bdet\(|MultivariateNormal|gpytorch",
        re.IGNORECASE,
    ),
    "compile": re.compile(r"triton|xformers|flash_attn|unsloth|liger|deepspeed|bitsandbytes|flex_attention"),
}

_MOST_FILES, _MOST_SOURCE_BYTES = 500, 50_000_000


@dataclass(frozen=True)
class Slimming:
    """Arguments of the slimming program; () when nothing is slimmed.

    Attributes:
        architectures: compute capabilities that the image is cut down to; () for all.
    """

    arguments: tuple[str, ...] = ()
    architectures: tuple[str, ...] = ()
    choices: tuple[Choice, ...] = ()


def slimming_for(job: Job, stack: Stack, machine: Machine | None, *, compiles: bool, multi_gpu: bool) -> Slimming:
    """What ``image.slim`` means for this job.

    Raises ConfigError where the level cannot be meant: other frameworks than torch, or an unknown GPU.
    """
    level = job.image.slim
    if level == "none":
        return Slimming()
    arguments = ["--level", level, *(["--keep-headers"] if compiles else [])]
    choices = [Choice(what="slimming", value=level, reason="image.slim; docs/images.md says what it leaves out")]
    if level == "files":
        return Slimming(tuple(arguments), choices=tuple(choices))
    if stack.wheel is None or stack.wheel.framework != "torch":
        raise ConfigError(
            f"image.slim = {level!r} supports only torch's libraries",
            cause=f"this project uses {stack.wheel.framework if stack.wheel else 'no framework'}",
            run='in seatrial.toml: [image] slim = "files"',
        )
    used = set(_used(job)) | ({"compile"} if compiles else set())
    if job.target.kind == "recipe":
        used.discard("nccl")  # recipes can, and do so with several ranks alone: that is known here
    used |= {"nccl"} if multi_gpu or job.nodes > 1 else set()
    unused = sorted({*FEATURES, "compile"} - used)
    arguments += ["--unused", ",".join(unused)]
    shown = ", ".join(sorted(used)) or "none of them"
    choices.append(Choice(what="left out", value=", ".join(unused), reason=f"the project shows use of: {shown}"))
    if level == "unused":
        return Slimming(tuple(arguments), choices=tuple(choices))
    if stack.cpu or machine is None or not machine.gpus:
        raise ConfigError(
            "image.slim = 'arch' needs to know the GPUs to keep code for",
            cause="this run has none" if machine is None else "none are known here",
            run="seatrial build … --target h100 --slim arch",
        )
    architectures = machine.capabilities
    arguments += ["--arch", ",".join(each.replace(".", "") for each in architectures)]
    choices.append(
        Choice(what="architectures", value=" ".join(architectures), reason=f"the GPUs of {machine.described}")
    )
    return Slimming(tuple(arguments), architectures, tuple(choices))


def _used(job: Job) -> Iterator[str]:
    """Features whose signs stand in the project's source, or in a recipe's."""
    inside = _PACKAGE if job.target.kind == "recipe" else job.project
    texts = list(read_sources(_sources(job), inside, _MOST_SOURCE_BYTES))
    for feature, signs in _SIGNS.items():
        if any(signs.search(text) for text in texts):
            yield feature


def _sources(job: Job) -> list[Path]:
    if job.target.kind == "recipe":
        return [source_of(job.target.value, job.target.args)]
    hidden = {"venv", ".venv", "node_modules", "site-packages", ".git", ".seatrial"}
    found = (path for path in sorted(job.project.rglob("*.py")) if not hidden & set(path.parts))
    return [path for path, _ in zip(found, range(_MOST_FILES), strict=False)]


def slimmer_bytes() -> bytes:
    """The slimming program as one file that Python runs. The bytes depend on the sources alone."""
    names = ["__init__.py", "images/__init__.py", "findings/__init__.py", "findings/device_code.py"]
    names += [str(_ROOM / path.name) for path in sorted((_PACKAGE / _ROOM).glob("*.py"))]
    contents = {f"seatrial/{name}": (_PACKAGE / name).read_bytes() for name in names}
    contents["__main__.py"] = b"from seatrial.images.slimming.main import main\n\nmain()\n"
    return zip_bytes(dict(sorted(contents.items())))
