"""Slimming decided on the host: which level, which features the project shows no use of, which architectures stay."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import seatrial
from seatrial.errors import ConfigError
from seatrial.images.requirements.pip_format import canonical_name
from seatrial.job.model import Job
from seatrial.job.plan import Choice
from seatrial.recipe_names import source_of
from seatrial.stack.machine import TargetMachine
from seatrial.stack.resolve import Stack
from seatrial.system.agent_archive import zip_bytes
from seatrial.system.project_files import read_sources

_PACKAGE = Path(seatrial.__file__).parent
_ROOM = Path("images/slim/program")

#: Feature → what in a project's source shows its use. Generous: a false hit costs megabytes, a miss stops a run.
#: Text, compiled when an image is slimmed: every plan imports this.
_SIGNS: dict[str, str] = {
    "fft": r"(?i)fft|stft|spectrogram|melscale|torchaudio",
    "sparse": r"(?i)sparse|to_csr|coalesce|torch_geometric|torch_scatter|\bdgl\b|bitsandbytes",
    "sparselt": r"(?i)semi_structured|sparselt|torchao",
    "random": r"(?i)curand|cupy",
    "nvshmem": r"(?i)nvshmem|symm_mem|symmetric_memory",
    "nccl": r"(?i)nccl|distributed|DataParallel|accelerat(or|e\b)|lightning|deepspeed|torchrun",
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

#: Features that only code which names them uses, so that the project's source and requirements prove their absence:
#: nothing in torch, TensorFlow and JAX calls cuRAND or nvcc, and one function of torch each cuSPARSELt and NVSHMEM. Any
#: package may call FFT, decompositions or sparse products with no word of it in the script: ``auto`` keeps those.
_NAMED = ("nvcc", "nvshmem", "random", "sparselt")

#: Packages that start no collective of several GPUs by themselves. With any other, ``auto`` keeps NCCL.
_WITHOUT_COLLECTIVES = """
click einops h5py imageio jax jaxlib keras matplotlib mlflow mlflow-skinny numpy opencv-python opencv-python-headless
packaging pandas pillow psutil pyarrow python-dotenv pyyaml regex requests rich safetensors scikit-image scikit-learn
scipy seaborn sentencepiece six sympy tensorboard tensorboardx tensorflow tokenizers torch torchaudio torchvision tqdm
typer typing-extensions
"""

_MOST_FILES, _MOST_SOURCE_BYTES = 500, 50_000_000


@dataclass(frozen=True)
class Slimming:
    """Arguments of the slimming program; () when nothing is slimmed.

    Attributes:
        left_out: level → features that it would leave out of this job's image; {} where there is nothing to slim.
        architectures: compute capabilities that the image is cut down to; () for all.
        packages: the project's packages are slimmed, too, and not the framework's alone.
    """

    arguments: tuple[str, ...] = ()
    left_out: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    architectures: tuple[str, ...] = ()
    packages: bool = True
    choices: tuple[Choice, ...] = ()


def slimming_for(
    job: Job,
    stack: Stack,
    machine: TargetMachine | None,
    *,
    compiles: bool,
    multi_gpu: bool,
    requirements: Sequence[str] = (),
) -> Slimming:
    """Return what ``image.slim`` means for this job, whose packages are ``requirements``.

    Raises ConfigError if the level cannot apply: no framework, or an unknown GPU.
    """
    level = job.image.slim
    has_cuda = stack.wheel is not None and not stack.cpu
    if not has_cuda and level in ("auto", "none"):
        return Slimming()
    if stack.wheel is None and level in ("unused", "arch"):
        raise ConfigError(
            f"image.slim = {level!r} supports only libraries of torch, TensorFlow and JAX",
            cause="this project uses no framework",
            run='in seatrial.toml: [image] slim = "files"',
        )
    used: set[str] = set()
    left_out: dict[str, tuple[str, ...]] = {"none": (), "files": ()}
    if stack.wheel is not None:
        signs = _SIGNS if stack.wheel.framework == "torch" else _XLA_SIGNS
        used = _used(job, signs, requirements) | ({"compile", "nvcc"} if compiles else set())
        used |= {"nccl"} if multi_gpu or job.nodes > 1 else set()
        if signs is _XLA_SIGNS and "linalg" in used:
            used.add("sparse")  # cuSOLVER is linked to cuSPARSE
        unused = tuple(sorted({*signs, "sparselt", "compile"} - used))
        named = {*_NAMED, "nccl"} if _starts_no_collective(job, requirements) else {*_NAMED}
        proven = tuple(feature for feature in unused if feature in named and feature in signs)
        left_out |= {"auto": proven, "unused": unused, "arch": unused}
    left_out = left_out if has_cuda else {}
    if level == "none":
        return Slimming(left_out=left_out)
    if level == "auto":
        reason = f"out of the framework: symbols, archives, and what this job cannot call ({', '.join(proven) or '-'})"
        return Slimming(
            ("--level", "unused", "--keep-headers", "--unused", ",".join(proven) or "none"),
            left_out,
            packages=False,
            choices=(Choice(what="slimming", value="auto", reason=reason),),
        )
    arguments = ["--level", level, *(["--keep-headers"] if compiles else [])]
    choices = [
        Choice(what="slimming", value=level, reason="image.slim; what each level saves: seatrial build --explain")
    ]
    if level == "files":
        return Slimming(tuple(arguments), left_out, choices=tuple(choices))
    arguments += ["--unused", ",".join(unused)]
    shown = ", ".join(sorted(used)) or "none of them"
    choices.append(Choice(what="left out", value=", ".join(unused), reason=f"the project shows use of: {shown}"))
    if level == "unused":
        return Slimming(tuple(arguments), left_out, choices=tuple(choices))
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
    return Slimming(tuple(arguments), left_out, architectures, choices=tuple(choices))


def _used(job: Job, signs: Mapping[str, str], requirements: Sequence[str]) -> set[str]:
    """Features whose signs stand in the project's source or requirements, or in a recipe's source.

    All of them for a project of more source than is read: nothing is proven then.
    """
    sources = _sources(job)
    if len(sources) > _MOST_FILES:
        return {*signs, "compile"}
    if job.target.kind == "recipe":
        texts = list(read_sources(sources, _PACKAGE, _MOST_SOURCE_BYTES))
        # Recipes can use NCCL, and do so with several ranks alone: that is known here.
        signs = {feature: sign for feature, sign in signs.items() if feature != "nccl"}
    else:
        texts = [*read_sources(sources, job.project, _MOST_SOURCE_BYTES), *requirements]
    return {feature for feature, sign in signs.items() if any(re.search(sign, text) for text in texts)}


def _starts_no_collective(job: Job, requirements: Sequence[str]) -> bool:
    """True if no package of the job starts NCCL with no word of it in the project's source."""
    known = set(_WITHOUT_COLLECTIVES.split())
    return job.target.kind == "recipe" or all(canonical_name(line) in known for line in requirements)


def _sources(job: Job) -> list[Path]:
    if job.target.kind == "recipe":
        return [source_of(job.target.value)]
    hidden = {"venv", ".venv", "node_modules", "site-packages", ".git", ".seatrial"}
    found = (path for path in sorted(job.project.rglob("*.py")) if not hidden & set(path.parts))
    return [path for path, _ in zip(found, range(_MOST_FILES + 1), strict=False)]


def slimmer_bytes() -> bytes:
    """The slimming program as one file that Python runs. The bytes depend on the sources alone."""
    names = [
        "__init__.py",
        "images/__init__.py",
        "images/slim/__init__.py",
        "findings/__init__.py",
        "findings/device_code.py",
    ]
    names += [str(_ROOM / path.name) for path in sorted((_PACKAGE / _ROOM).glob("*.py"))]
    contents = {f"seatrial/{name}": (_PACKAGE / name).read_bytes() for name in names}
    contents["__main__.py"] = b"from seatrial.images.slim.program.main import main\n\nmain()\n"
    return zip_bytes(dict(sorted(contents.items())))
