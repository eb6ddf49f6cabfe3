"""Slimming decided on the host: which level, which features the project shows no use of, which architectures stay."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import seatrial
from seatrial.errors import ConfigError
from seatrial.job.model import Job
from seatrial.job.plan import Choice
from seatrial.recipe_names import source_of
from seatrial.stack.machine import Machine
from seatrial.stack.resolve import Stack
from seatrial.system.project_files import read_sources
from seatrial.system.records import dataclass
from seatrial.system.zip_bytes import zip_bytes

_PACKAGE = Path(seatrial.__file__).parent
_ROOM = Path("images") / "slimming"

#: Feature → what in a project's source shows its use. Generous: a false hit costs megabytes, a miss stops a run.
#: Text, compiled when an image is slimmed: every plan imports this.
_SIGNS: dict[str, str] = {
    "fft": r"(?i)fft|stft|spectrogram|melscale|torchaudio",
    "sparse": r"(?i)sparse|to_csr|coalesce|torch_geometric|torch_scatter|\bdgl\b|bitsandbytes",
    "sparselt": r"(?i)semi_structured|sparselt",
    "random": r"(?i)curand|cupy",
    "nvshmem": r"(?i)nvshmem|symm_mem|symmetric_memory",
    "nccl": r"(?i)nccl|distributed|DataParallel|Accelerator|lightning|deepspeed|torchrun",
    "linalg": (
        r"(?i)linalg|\binv(erse)?\(|cholesky|\bsvd|\bqr\(|\beigh?(vals)?\b|lstsq|lu_solve|pinverse|matrix_exp|orthogonal|"
        r"spectral_norm|logdet|slogdet|\bdet\(|MultivariateNormal|gpytorch"
    ),
    "compile": r"triton|xformers|flash_attn|unsloth|liger|deepspeed|bitsandbytes|flex_attention",
}

#: The same for TensorFlow and JAX: what they call by other names, and what calls it without a word of it in the script:
#: recurrent layers of Keras and Flax draw their first weights by a QR decomposition, which is cuSOLVER's.
_XLA_SIGNS: dict[str, str] = {
    "fft": r"(?i)fft|stft|spectrogram|fourier|fnet|librosa|tensorflow_io",
    "sparse": r"(?i)sparse(?!_?(categorical|top_?k|softmax))|to_csr|tridiagonal|\bgraph_?nets?|jraph",
    "random": r"(?i)curand|cupy",
    "nvshmem": r"(?i)nvshmem|mosaic|pallas",
    "nccl": (
        r"(?i)nccl|distribute|Strategy|DataParallel|ModelParallel|pmap|shard|\bMesh\b|PartitionSpec|psum|pmean|all_?reduce|"
        r"multihost|horovod"
    ),
    "linalg": (
        _SIGNS["linalg"] + r"|lstm|gru|rnn|solve|\blu\b|expm|sqrtm|polar\b|schur|tridiagonal|multivariate|shampoo|"
        r"\bsoap\b|kfac|tensorflow_probability|\btfp\b|gpflow|gpjax|numpyro|distrax|blackjax|lineax|diffrax|jaxopt|optimistix"
    ),
    "rnn": r"(?i)lstm|gru|rnn|ctc|multiheadattn",
    "nvcc": r"(?i)numba|cupy|nvcc|nvvm|pycuda|cuda\.core|cuda\.bindings|load_op_library|\bwarp\b",
    "libclang": r"clang",
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

    Raises ConfigError where the level cannot be meant: no framework, or an unknown GPU.
    """
    level = job.image.slim
    if level == "none":
        return Slimming()
    arguments = ["--level", level, *(["--keep-headers"] if compiles else [])]
    choices = [
        Choice(what="slimming", value=level, reason="image.slim; what each level saves: seatrial build --explain")
    ]
    if level == "files":
        return Slimming(tuple(arguments), choices=tuple(choices))
    if stack.wheel is None:
        raise ConfigError(
            f"image.slim = {level!r} supports only libraries of torch, TensorFlow and JAX",
            cause="this project uses no framework",
            run='in seatrial.toml: [image] slim = "files"',
        )
    signs = _SIGNS if stack.wheel.framework == "torch" else _XLA_SIGNS
    used = set(_used(job, signs)) | ({"compile", "nvcc"} if compiles else set())
    if job.target.kind == "recipe":
        used.discard("nccl")  # recipes can, and do so with several ranks alone: that is known here
    used |= {"nccl"} if multi_gpu or job.nodes > 1 else set()
    if signs is _XLA_SIGNS and "linalg" in used:
        used.add("sparse")  # cuSOLVER is linked to cuSPARSE
    unused = sorted({*signs, "sparselt", "compile"} - used)
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


def _used(job: Job, signs: dict[str, str]) -> Iterator[str]:
    """Features whose signs stand in the project's source, or in a recipe's."""
    inside = _PACKAGE if job.target.kind == "recipe" else job.project
    texts = list(read_sources(_sources(job), inside, _MOST_SOURCE_BYTES))
    for feature, sign in signs.items():
        if any(re.search(sign, text) for text in texts):
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
