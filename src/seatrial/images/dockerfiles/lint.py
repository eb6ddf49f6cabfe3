"""A user's own Dockerfile, checked for what goes wrong on GPUs. Nothing is built."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Literal

from packaging.version import Version

from seatrial.errors import UsageError
from seatrial.images.base import python_of_image
from seatrial.images.dockerfiles.build_context import context_remarks
from seatrial.images.dockerfiles.parts import Dockerfile, Instruction, Remark, read_dockerfile
from seatrial.stack.facts import CudaImage, cuda_images, wheels
from seatrial.system.project_files import is_there, read_bytes

#: Far above what people write; the parser's time grows with lines times stages.
_MAX_BYTES, _MOST_LINES = 200_000, 5000

_CUDA_IMAGE = re.compile(r"(?:docker\.io/)?nvidia/cuda:(?P<cuda>\d+\.\d+(?:\.\d+)?)?-?(?P<rest>[a-z0-9.-]*)")
_VARIANT = re.compile(r"whl/(?:nightly/)?cu(?P<digits>\d{3})|torch==[\d.]+\+cu(?P<local>\d{3})")
_PIP_INSTALL = re.compile(r"\bpip3?\s+install\b|\buv\s+(pip\s+install|sync|add)\b")
_GPU_CHECK = re.compile(r"nvidia-smi|cuda\.is_available\(\)|list_physical_devices|cuda\.device_count|jax\.devices\(")
_FRAMEWORK = re.compile(r"(?<![\w./-])(torch|tensorflow(?:\[and-cuda\])?|jax\[cuda\d\d\])(?![\w/-])")
_CPU_BUILD = re.compile(r"/whl/cpu|torch==[\d.]+\+cpu")
_PINNED = re.compile(r"==|~=|@|-r\s|--requirement|-c\s|requirements|pyproject|uv sync|\s\.(\[|\s|$)|\$\{?\w+")


def check_dockerfile(path: Path) -> list[Remark]:
    """Every remark, in the order of lines. Raises UsageError for a file that is no Dockerfile."""
    if not is_there(path):
        raise UsageError(f"there is no file {path}", run=f"ls {path.parent}")
    text = read_bytes(path, inside=None, limit_bytes=_MAX_BYTES, refusal=UsageError).decode("utf-8", "replace")
    if text.count("\n") > _MOST_LINES:
        raise UsageError(f"{path} has more than {_MOST_LINES} lines", run=f"wc -l {path}")
    file = read_dockerfile(text)
    if not file.stages:
        raise UsageError(f"{path} is not a Dockerfile: it has no FROM", run=f"head {path}")
    remarks = [*(remark for rule in RULES for remark in rule(file)), *context_remarks(file, path)]
    return sorted(remarks, key=lambda remark: (remark.line, remark.id))


def cuda_twice(file: Dockerfile) -> Iterator[Remark]:
    """pip's wheels bring their own CUDA: on a base that has it, it is there twice."""
    base = _CUDA_IMAGE.match(file.final.image)
    if not base or not re.search("runtime|devel", base["rest"]):
        return
    shipped = (file.final.number, *_parents(file))
    cpu_index = any("/whl/cpu" in each.value for each in file.instructions if each.name in ("ENV", "ARG"))
    for each in _installs(file):
        wheel = _FRAMEWORK.search(_packages(each.value))
        own_cuda = wheel and wheel[1] != "tensorflow" and not cpu_index and not _CPU_BUILD.search(each.value)
        if wheel and own_cuda and each.stage in shipped:
            yield Remark(
                each.line,
                "cuda-twice",
                "warning",
                f"CUDA is in this image twice: in its base (line {file.final.line}) and in the wheels of {wheel[1]}",
                "FROM python:3.11-slim-bookworm   # the wheel includes CUDA; the driver comes from the host",
            )


def devel_at_run_time(file: Dockerfile) -> Iterator[Remark]:
    """The compiler and the headers of CUDA are 5 GB that no training run reads."""
    if (base := _CUDA_IMAGE.match(file.final.image)) and "devel" in base["rest"]:
        yield Remark(
            file.final.line,
            "devel-at-run-time",
            "warning",
            "the final stage is a devel image: nvcc, headers and static libraries are shipped",
            "build in `FROM …-devel AS builder`, and COPY --from=builder into a slim or -base stage",
        )


def variant_against_base(file: Dockerfile) -> Iterator[Remark]:
    """The CUDA of the base's tag and of torch's build differ."""
    for each in _installs(file):
        stage = file.stages[max(each.stage, 0)]
        base, build = _CUDA_IMAGE.match(stage.image), _VARIANT.search(each.value)
        if not base or not build or not base["cuda"]:
            continue
        digits = build["digits"] or build["local"]
        own, theirs = f"{digits[:2]}.{digits[2:]}", ".".join(base["cuda"].split(".")[:2])
        if own != theirs:
            severity: Literal["error", "hint"] = "error" if own.split(".")[0] != theirs.split(".")[0] else "hint"
            yield Remark(
                each.line,
                "cuda-differs",
                severity,
                f"torch for CUDA {own} on a base of CUDA {theirs} (line {stage.line})",
                "use slim Python as the base; extensions compiled here need the same CUDA in both",
            )


def python_missing(file: Dockerfile) -> Iterator[Remark]:
    """nvidia/cuda, ubuntu and debian images have no python; even with python3 installed there is no `python`."""
    bare = re.match(r"(?:docker\.io/)?(?:nvidia/cuda|ubuntu|(?:library/)?debian)[:@]?", file.final.image)
    if not bare:
        return
    text = " ".join(each.value for each in file.instructions if each.stage in (file.final.number, *_parents(file)))
    installed = re.search(r"python|conda|uv ", " ".join(each.value for each in file.of("RUN")))
    for each in file.instructions:
        if each.stage != file.final.number or each.name not in ("CMD", "ENTRYPOINT", "RUN"):
            continue
        first = re.sub(r'[\[\]",]', " ", each.value).split()
        if "python-is-python3" in text or "/bin/python" in text or "conda" in text or "venv" in text:
            return
        if first[:1] == ["python"] or (not installed and first[:1] == ["python3"]):
            yield Remark(
                each.line,
                "python-missing",
                "error",
                f"{file.final.image} has no `{first[0]}`",
                "RUN apt-get update && apt-get install -y --no-install-recommends python3-pip python-is-python3",
            )
            return


def no_pins(file: Dockerfile) -> Iterator[Remark]:
    """A package without a version is another one next month."""
    for each in _installs(file):
        packages = _FRAMEWORK.findall(_packages(each.value))
        if packages and not _PINNED.search(re.sub(r"--\S*index-url[= ]\S+", "", each.value)):
            newest = wheels("torch")[0].version if packages[0] == "torch" else "…"
            yield Remark(
                each.line,
                "no-pins",
                "warning",
                f"{packages[0]} has no pinned version: the same Dockerfile can give a different image later",
                f'pip install "{packages[0]}=={newest}"   # or -r requirements.txt with versions',
            )
    for stage in file.stages:
        if re.fullmatch(r"[\w./-]+(:latest)?", stage.image) and stage.image not in ("scratch", *_names(file)):
            yield Remark(
                stage.line,
                "no-pins",
                "warning",
                f"{stage.image} has no version tag",
                f"FROM {stage.image.split(':')[0]}:VERSION",
            )


def runs_as_root(file: Dockerfile) -> Iterator[Remark]:
    """Without USER the container is root, and so is what it writes to mounted folders."""
    users = [each for each in file.of("USER") if each.stage == file.final.number]
    if not users or users[-1].value.split(":")[0] in ("root", "0"):
        line = users[-1].line if users else file.instructions[-1].line
        yield Remark(
            line, "root", "warning", "it runs as root: files in mounted folders will belong to root", "USER 1000:1000"
        )


def pip_cache_left(file: Dockerfile) -> Iterator[Remark]:
    """pip keeps every wheel it downloaded: gigabytes for a framework."""
    off = any("PIP_NO_CACHE_DIR" in each.value for each in file.instructions)
    for each in _installs(file):
        kept = "--no-cache" in each.value or "--mount=type=cache" in each.value or "cache purge" in each.value
        if not off and not kept and each.stage == file.final.number:
            yield Remark(
                each.line,
                "pip-cache",
                "warning",
                "pip's download cache stays in the layer",
                "RUN --mount=type=cache,target=/root/.cache/pip pip install …",
            )


def gpu_at_build_time(file: Dockerfile) -> Iterator[Remark]:
    """There is no GPU while an image is built."""
    for each in file.of("RUN"):
        if match := _GPU_CHECK.search(each.value):
            yield Remark(
                each.line,
                "gpu-at-build-time",
                "error",
                f"{match[0]} runs during the image build, where there is no GPU",
                "remove it; `seatrial run` checks the GPUs when the container starts",
            )


def wrong_cudnn_infix(file: Dockerfile) -> Iterator[Remark]:
    """cudnn8 up to 12.2.2, cudnn9 in 12.3.2, plain cudnn from 12.4.1 on."""
    for stage in file.stages:
        base = _CUDA_IMAGE.match(stage.image)
        image = _release(base["cuda"]) if base else None
        if base and image and (infix := re.search(r"cudnn\d*", base["rest"])) and infix[0] != image.cudnn_infix:
            yield Remark(
                stage.line,
                "cudnn-name",
                "error",
                f"there is no {stage.image}: in CUDA {image.cuda} the tag says {image.cudnn_infix}",
                f"FROM {stage.image.replace(infix[0], image.cudnn_infix)}",
            )


def dead_tags(file: Dockerfile) -> Iterator[Remark]:
    """Tags of nvidia/cuda that never were or are gone: no patch version, latest, an Ubuntu it is not built on."""
    for stage in file.stages:
        base = _CUDA_IMAGE.match(stage.image)
        if not base:
            continue
        image = _release(base["cuda"]) if base["cuda"] else None
        ubuntu = re.search(r"ubuntu(\d\d\.\d\d)", base["rest"])
        problem = None
        if not base["cuda"]:
            problem = "nvidia/cuda has no tag latest"
        elif image is None:
            problem = f"there is no known nvidia/cuda tag for CUDA {base['cuda']}"
            near = [each for each in cuda_images() if each.cuda.startswith(".".join(base["cuda"].split(".")[:2]) + ".")]
            image = near[-1] if near else None
        elif ubuntu and ubuntu[1] not in image.ubuntu:
            problem = f"CUDA {image.cuda} is not built on Ubuntu {ubuntu[1]}"
        if problem:
            flavour = next((kind for kind in ("devel", "runtime", "base") if kind in base["rest"]), "base")
            flavour = f"cudnn-{flavour}" if "cudnn" in base["rest"] and flavour != "base" else flavour
            instead = (image or cuda_images()[-1]).tag(flavour)
            yield Remark(
                stage.line, "dead-tag", "error", f"{stage.image} cannot be pulled: {problem}", f"FROM {instead}"
            )


def shared_memory(file: Dockerfile) -> Iterator[Remark]:
    """An image cannot make /dev/shm larger; that is the engine's when the container starts."""
    for each in file.of("RUN"):
        if re.search(r"/dev/shm|shmmax", each.value):
            yield Remark(
                each.line,
                "shm",
                "error",
                "/dev/shm belongs to the running container: the image cannot change its 64 MB",
                "docker run --shm-size=2g …   # seatrial run does this automatically",
            )


def old_keys(file: Dockerfile) -> Iterator[Remark]:
    """apt-key is gone from Debian 13 and Ubuntu 24.10; NVIDIA's key of before 2022 is revoked."""
    for each in file.of("RUN"):
        if match := re.search(r"apt-key|7fa2af80\.pub", each.value):
            yield Remark(
                each.line,
                "apt-key",
                "error" if "7fa2af80" in match[0] else "warning",
                f"{match[0]}: NVIDIA changed its key in April 2022, and current releases have no apt-key",
                "install cuda-keyring_1.1-1_all.deb, or use a base that has what you need",
            )


def python_too_new(file: Dockerfile) -> Iterator[Remark]:
    """The pinned torch has no wheel for the base's Python."""
    python = python_of_image(file.final.image)
    for each in _installs(file):
        pin = re.search(r"\btorch==(\d+\.\d+(?:\.\d+)?)", each.value)
        rows = [wheel for wheel in wheels("torch") if pin and wheel.version == pin[1]]
        if python and rows and not Version(rows[0].python[0]) <= Version(python) <= Version(rows[0].python[1]):
            low, high = rows[0].python
            yield Remark(
                each.line,
                "python-version",
                "error",
                f"torch {rows[0].version} has wheels for Python {low} to {high}, and {file.final.image} has {python}",
                f"FROM python:{high}-slim-bookworm",
            )


Rule = Callable[[Dockerfile], Iterator[Remark]]

RULES: tuple[Rule, ...] = (
    cuda_twice,
    devel_at_run_time,
    variant_against_base,
    python_missing,
    python_too_new,
    no_pins,
    runs_as_root,
    pip_cache_left,
    gpu_at_build_time,
    wrong_cudnn_infix,
    dead_tags,
    shared_memory,
    old_keys,
)


def _installs(file: Dockerfile) -> Iterator[Instruction]:
    return (each for each in file.of("RUN") if _PIP_INSTALL.search(each.value))


def _packages(value: str) -> str:
    """What follows each `pip install` of a RUN, up to the next command: `python -c "import torch"` installs nothing."""
    commands = re.split(r"&&|\|\||[;|\n]", value)
    return " ".join(_PIP_INSTALL.split(command)[-1] for command in commands if _PIP_INSTALL.search(command))


def _release(cuda: str | None) -> CudaImage | None:
    return next((image for image in cuda_images() if image.cuda == cuda), None)


def _names(file: Dockerfile) -> list[str]:
    return [stage.name for stage in file.stages]


def _parents(file: Dockerfile) -> Iterator[int]:
    """Stages that the final one starts from."""
    return (stage.number for stage in file.stages[:-1] if stage.image == file.final.image)
