"""Check the base image: tags that do not exist, CUDA installed twice or of another version, no Python, root."""

from __future__ import annotations

import re
from collections.abc import Iterator

from seatrial.images.lint.commands import pip_installs
from seatrial.images.lint.dockerfile import Dockerfile, Remark, Severity, Stage, remark
from seatrial.stack.facts import CudaImage, cuda_images

_CUDA_IMAGE = re.compile(
    r"(?P<host>docker\.io/|nvcr\.io/)?nvidia/cuda(?::|$)(?P<cuda>\d+\.\d+(?:\.\d+)?)?-?(?P<rest>[a-z0-9.-]*)"
)
_VARIANT = re.compile(r"whl/(?:nightly/)?cu(?P<digits>\d{3})|torch==[\d.]+\+cu(?P<local>\d{3})")
#: Commands that can install pip, a user's script included; yum's and dnf's Python comes with it.
_BRINGS_PIP = re.compile(
    r"\b(?:yum|dnf)\b|-pip\b|get-pip|ensurepip|-m pip\b|easy_install|\.sh\b|make install|\bADD\b|jupyter"
)
_CPU_BUILD = re.compile(r"/whl/cpu|torch==[\d.]+\+cpu")


def cuda_twice(file: Dockerfile) -> Iterator[Remark]:
    """Find wheels that bring their own CUDA to a base that has one."""
    base = _CUDA_IMAGE.match(file.final.image)
    if not base or not re.search("runtime|devel", base["rest"]):
        return
    cpu_index = any("/whl/cpu" in each.value for each in file.instructions if each.name in ("ENV", "ARG"))
    for each in pip_installs(file.commands):
        wheel = each.package("torch", "jax") or each.package("tensorflow")
        own_cuda = wheel and (wheel.startswith("torch") or re.search(r"\[(?:and-)?cuda", wheel))
        if (
            wheel
            and own_cuda
            and not cpu_index
            and not _CPU_BUILD.search(each.command.text)
            and each.command.stage in file.shipped
        ):
            yield remark(each.line, "cuda-twice", base_line=file.stages[file.chain[0]].line, wheel=_name(wheel))
            return


def devel_at_run_time(file: Dockerfile) -> Iterator[Remark]:
    """Find a devel image as the final stage: CUDA's compiler and headers are 5 GB that no run reads."""
    if (base := _CUDA_IMAGE.match(file.final.image)) and "devel" in base["rest"]:
        yield remark(file.final.line, "devel-at-run-time")


def variant_against_base(file: Dockerfile) -> Iterator[Remark]:
    """Find a build of torch for another CUDA than the base's tag names."""
    for each in pip_installs(file.commands):
        if each.command.stage < 0 or each.command.sometimes:
            continue
        stage = file.stages[each.command.stage]
        base, build = _CUDA_IMAGE.match(stage.image), _VARIANT.search(each.command.text)
        if not base or not build or not base["cuda"] or not each.package("torch"):
            continue
        digits = build["digits"] or build["local"]
        own, theirs = f"{digits[:2]}.{digits[2:]}", ".".join(base["cuda"].split(".")[:2])
        if own != theirs:
            compiles = "devel" in base["rest"] and own.split(".")[0] != theirs.split(".")[0]
            severity: Severity = "error" if compiles else "hint"  # the wheel runs with its own CUDA
            yield remark(each.line, "cuda-differs", own=own, theirs=theirs, base_line=stage.line, severity=severity)


def wrong_cudnn_infix(file: Dockerfile) -> Iterator[Remark]:
    """Find a wrong cuDNN in a tag: cudnn8 up to 12.2.2, cudnn9 in 12.3.2, plain cudnn from 12.4.1 on."""
    for stage in file.stages:
        base = _on_docker_hub(stage)
        image = _release(base["cuda"]) if base else None
        if base and image and (infix := re.search(r"cudnn\d*", base["rest"])) and infix[0] != image.cudnn_infix:
            yield remark(
                stage.line,
                "cudnn-name",
                image=stage.image,
                cuda=image.cuda,
                infix=image.cudnn_infix,
                right=stage.image.replace(infix[0], image.cudnn_infix),
            )


def dead_tags(file: Dockerfile) -> Iterator[Remark]:
    """Find tags of nvidia/cuda that do not exist: no patch version, latest, no system, an Ubuntu it is not built on."""
    newest = max(_key(each.cuda) for each in cuda_images())
    for stage in file.stages:
        base = _on_docker_hub(stage)
        if not base or (base["cuda"] and _key(base["cuda"]) > newest):
            continue
        image = _release(base["cuda"]) if base["cuda"] else None
        ubuntu = re.search(r"ubuntu(\d\d\.\d\d)", base["rest"])
        problem = None
        if not base["cuda"]:
            problem = "nvidia/cuda has no tag latest"
        elif image is None:
            problem = f"no nvidia/cuda tag is known for CUDA {base['cuda']}"
            same = [each for each in cuda_images() if each.cuda.startswith(".".join(base["cuda"].split(".")[:2]) + ".")]
            image = same[-1] if same else None
            if image and base["cuda"].count(".") == 2:  # an older patch release, whose tag may still be there
                continue
        elif ubuntu and ubuntu[1] not in image.ubuntu and ubuntu[1] <= max(max(one.ubuntu) for one in cuda_images()):
            problem = f"CUDA {image.cuda} is not built on Ubuntu {ubuntu[1]}"
        elif not re.search(r"-[a-z]+\d[\d.]*$", base["rest"]):
            problem = "every tag ends with its system"
        if problem:
            instead = (
                image.tag(_flavour(stage.image)) if image else _nearest(base["cuda"], ubuntu, _flavour(stage.image))
            )
            yield remark(stage.line, "dead-tag", image=stage.image, problem=problem, instead=instead)


def _nearest(cuda: str | None, ubuntu: re.Match[str] | None, flavour: str) -> str:
    """Replace a removed release by the newest of the next major one on the same Ubuntu."""
    later = [
        each for each in cuda_images() if ubuntu and cuda and ubuntu[1] in each.ubuntu and _key(each.cuda) > _key(cuda)
    ]
    first = [each for each in later if _key(each.cuda)[0] == _key(later[0].cuda)[0]]
    return first[-1].tag(flavour, ubuntu[1]) if first and ubuntu else cuda_images()[-1].tag(flavour)


def _key(cuda: str) -> tuple[int, ...]:
    return tuple(int(part[:6]) for part in cuda.split("."))


def _flavour(image: str) -> str:
    flavour = next((kind for kind in ("devel", "runtime", "base") if f"-{kind}" in image), "base")
    return f"cudnn-{flavour}" if "cudnn" in image and flavour != "base" else flavour


def _on_docker_hub(stage: Stage) -> re.Match[str] | None:
    base = _CUDA_IMAGE.match(stage.image) if stage.parent is None and "$" not in stage.image else None
    return base if base and base["host"] != "nvcr.io/" else None


def python_missing(file: Dockerfile) -> Iterator[Remark]:
    """Find calls of a python or pip that nvidia/cuda, ubuntu and debian images do not have."""
    bare = re.match(r"(?:docker\.io/)?(?:nvidia/cuda|ubuntu|(?:library/)?debian)[:@]?", file.final.image)
    if not bare:
        return
    text = " ".join(each.value for each in file.instructions if each.stage in file.chain)
    installed = re.search(r"python|conda|uv ", " ".join(each.value for each in file.of("RUN")))
    pip_there = _BRINGS_PIP.search(text)
    if re.search(r"(?:16|18)\.04", file.final.image) and re.search(r"\bpython(?:-[a-z]+)?(?=[\s\\]|$)", text):
        return  # python-dev, python-pip and the like bring Python 2, whose name is python there
    for each in file.instructions:
        if each.stage != file.final.number or each.name not in ("CMD", "ENTRYPOINT", "RUN"):
            continue
        if re.search(
            r"python-is-python3|/bin/python|conda|mamba|venv|pyenv|\buv\b|bin.*python\b.*(?:ln|alternatives)", text
        ):
            return
        if re.search(r"(?:ln|alternatives)\b[^&;]*\bpython\b|--from=", text):
            return
        first = [command.words[0] for command in file.commands_of(each) if command.words and not command.sometimes]
        missing = [name for name in first if name == "python" or (not installed and name == "python3")]
        missing += [name for name in first if name in ("pip", "pip3") and not pip_there]
        if missing:
            yield remark(each.line, "python-missing", image=file.final.image, missing=missing[0])
            return


def runs_as_root(file: Dockerfile) -> Iterator[Remark]:
    """Find a final image without USER, whose files in mounted folders belong to root."""
    users = [each for each in file.of("USER") if each.stage in file.chain]
    if not users or users[-1].value.split(":")[0] in ("root", "0"):
        line = users[-1].line if users else file.instructions[-1].line
        yield remark(line, "root")


RULES = (
    cuda_twice,
    devel_at_run_time,
    variant_against_base,
    wrong_cudnn_infix,
    dead_tags,
    python_missing,
    runs_as_root,
)


def _release(cuda: str | None) -> CudaImage | None:
    return next((image for image in cuda_images() if image.cuda == cuda), None)


def _name(requirement: str) -> str:
    return re.split(r"[=<>!~;@ ]", requirement)[0]
