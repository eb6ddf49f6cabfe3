"""Check the base image (its tag, its CUDA, its Python, root) and the frameworks that are installed on it."""

from __future__ import annotations

import copy
import re
from collections.abc import Iterator
from dataclasses import dataclass, field

from seatrial.images.base import python3_of_distribution, python_of_image
from seatrial.images.lint.commands import Command, commands_of, installs_of, pip_installs
from seatrial.images.lint.dockerfile import Dockerfile, Remark, Severity, remark
from seatrial.stack.facts import TORCH_VERSION, cuda_images

_CUDA_IMAGE = re.compile(
    r"(?P<host>docker\.io/|nvcr\.io/)?nvidia/cuda(?::|$)(?P<cuda>\d+\.\d+(?:\.\d+)?)?-?(?P<rest>[a-z0-9.-]*)"
)
_VARIANT = re.compile(r"whl/(?:nightly/)?cu(?P<digits>\d{3})|torch==[\d.]+\+cu(?P<local>\d{3})")
_WITHOUT_PYTHON = re.compile(r"(?:docker\.io/)?(?:nvidia/cuda|ubuntu|(?:library/)?debian)[:@]?")
_BRINGS_PYTHON = re.compile(
    r"python-is-python3|/bin/python|conda|mamba|venv|pyenv|\buv\b|bin.*python\b.*(?:ln|alternatives)"
    r"|(?:ln|alternatives)\b[^&;]*\bpython\b|--from="
)
#: Commands that can install pip, a user's script included; yum's and dnf's Python comes with it.
_BRINGS_PIP = re.compile(
    r"\b(?:yum|dnf)\b|-pip\b|get-pip|ensurepip|-m pip\b|easy_install|\.sh\b|make install|\bADD\b|jupyter"
)
_CPU_BUILD = re.compile(r"/whl/cpu|torch==[\d.]+\+cpu")


def cuda_twice(file: Dockerfile) -> Iterator[Remark]:
    """Find a devel image as the final stage, and wheels that bring their own CUDA to a base that has one."""
    base = _CUDA_IMAGE.match(file.final.image)
    if not base or not re.search("runtime|devel", base["rest"]):
        return
    if "devel" in base["rest"]:
        yield remark(file.final.line, "devel-at-run-time")
    if any("/whl/cpu" in each.value for each in file.instructions if each.name in ("ENV", "ARG")):
        return
    for each in pip_installs(file.commands):
        wheel = each.package("torch", "jax") or each.package("tensorflow")
        own_cuda = wheel and (wheel.startswith("torch") or re.search(r"\[(?:and-)?cuda", wheel))
        if wheel and own_cuda and not _CPU_BUILD.search(each.command.text) and each.command.stage in file.shipped:
            name = re.split(r"[=<>!~;@ ]", wheel)[0]
            yield remark(each.line, "cuda-twice", base_line=file.stages[file.chain[0]].line, wheel=name)
            return


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


def dead_tags(file: Dockerfile) -> Iterator[Remark]:
    """Find tags of nvidia/cuda that do not exist: no patch version, latest, no system, an Ubuntu it is not built on.

    A wrong cuDNN, too: cudnn8 up to 12.2.2, cudnn9 in 12.3.2, plain cudnn from 12.4.1 on.
    """
    newest = max(_key(each.cuda) for each in cuda_images())
    for stage in file.stages:
        base = _CUDA_IMAGE.match(stage.image) if stage.parent is None and "$" not in stage.image else None
        if not base or base["host"] == "nvcr.io/" or (base["cuda"] and _key(base["cuda"]) > newest):
            continue
        image = next((each for each in cuda_images() if each.cuda == base["cuda"]), None)
        infix = re.search(r"cudnn\d*", base["rest"])
        if image and infix and infix[0] != image.cudnn_infix:
            facts = {"image": stage.image, "cuda": image.cuda, "infix": image.cudnn_infix}
            yield remark(stage.line, "cudnn-name", **facts, right=stage.image.replace(infix[0], image.cudnn_infix))
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
            kind = next((kind for kind in ("devel", "runtime", "base") if f"-{kind}" in stage.image), "base")
            flavour = f"cudnn-{kind}" if "cudnn" in stage.image and kind != "base" else kind
            instead = image.tag(flavour) if image else _nearest(base["cuda"], ubuntu, flavour)
            yield remark(stage.line, "dead-tag", image=stage.image, problem=problem, instead=instead)


def _nearest(cuda: str | None, ubuntu: re.Match[str] | None, flavour: str) -> str:
    """Replace a removed release by the newest of the next major one on the same Ubuntu."""
    newer = (each for each in cuda_images() if cuda and _key(each.cuda) > _key(cuda))
    later = [each for each in newer if ubuntu and ubuntu[1] in each.ubuntu]
    first = [each for each in later if _key(each.cuda)[0] == _key(later[0].cuda)[0]]
    return first[-1].tag(flavour, ubuntu[1]) if first and ubuntu else cuda_images()[-1].tag(flavour)


def _key(cuda: str) -> tuple[int, ...]:
    return tuple(int(part[:6]) for part in cuda.split("."))


def python_missing(file: Dockerfile) -> Iterator[Remark]:
    """Find calls of a python or pip that nvidia/cuda, ubuntu and debian images do not have."""
    text = " ".join(each.value for each in file.instructions if each.stage in file.chain)
    if not _WITHOUT_PYTHON.match(file.final.image) or _BRINGS_PYTHON.search(text):
        return
    if re.search(r"(?:16|18)\.04", file.final.image) and re.search(r"\bpython(?:-[a-z]+)?(?=[\s\\]|$)", text):
        return  # python-dev, python-pip and the like bring Python 2, whose name is python there
    lacking = {"python"} | ({"pip", "pip3"} if not _BRINGS_PIP.search(text) else set())
    if not re.search(r"python|conda|uv ", " ".join(each.value for each in file.of("RUN"))):
        lacking.add("python3")
    for each in file.instructions:
        if each.stage == file.final.number and each.name in ("CMD", "ENTRYPOINT", "RUN"):
            called = [one.words[0] for one in file.commands_of(each) if one.words and not one.sometimes]
            called.sort(key=lambda name: name.startswith("pip"))
            if missing := next((name for name in called if name in lacking), None):
                yield remark(each.line, "python-missing", image=file.final.image, missing=missing)
                return


def runs_as_root(file: Dockerfile) -> Iterator[Remark]:
    """Find a final image without USER, whose files in mounted folders belong to root."""
    users = [each for each in file.of("USER") if each.stage in file.chain]
    if not users or users[-1].value.split(":")[0] in ("root", "0"):
        yield remark(users[-1].line if users else file.instructions[-1].line, "root")


_FOR_GPUS = re.compile(r"nvidia/|nvcr\.io|cuda|cu1\d\d|[-_:/]gpu\b|pytorch/pytorch:.*cuda", re.IGNORECASE)
_CPU_SOURCE = re.compile(r"/whl/(?:nightly/)?cpu(?:[/\s\"']|$)")
#: A JAX with CUDA: its extra, its plug-in, a jaxlib that was built for it, or NVIDIA's own image.
_WITH_CUDA = re.compile(r"^jax(?:lib)?\[cuda|^jax-cuda|^jaxlib==[\d.]+\+cuda|jax_cuda_releases")


def no_pins(file: Dockerfile) -> Iterator[Remark]:
    """Find frameworks without a version, nightly builds included."""
    for each in pip_installs(file.commands):
        wanted = each.package(*("torch", "tensorflow", "jax"))
        if wanted and not re.search(r"[=<~@$]", wanted) and not {"-c", "--constraint"} & set(each.flags):
            newest = TORCH_VERSION if re.split(r"\[", wanted)[0] == "torch" else "VERSION"
            yield remark(each.line, "no-pins", wanted=wanted, newest=newest)


def cpu_torch(file: Dockerfile) -> Iterator[Remark]:
    """Find a torch without CUDA in an image for GPUs, where everything runs on the CPU."""
    if not _is_for_gpus(file):
        return
    for each in installs_of(file.commands):
        of_torch = each.files or each.package("torch", "pytorch", "torchvision", "torchaudio")
        if each.command.stage not in file.shipped or each.command.sometimes or not of_torch:
            continue
        known = {name: one.value for name, one in file.environments[each.command.stage].items()}
        indexes = [*each.sources, " ".join(each.command.settings)]
        indexes += [known.get("PIP_INDEX_URL", ""), known.get("PIP_EXTRA_INDEX_URL", "")]
        wanted = each.package("torch", "pytorch") or ""
        signs = [index for index in indexes if _CPU_SOURCE.search(index)] + [wanted] * ("+cpu" in wanted)
        signs += ["cpuonly"] if each.tool == "conda" and each.package("cpuonly") else []
        if signs:
            yield remark(each.line, "cpu-torch", found=signs[0], image=file.final.image, torch=TORCH_VERSION)


def cpu_tensorflow_or_jax(file: Dockerfile) -> Iterator[Remark]:
    """Find TensorFlow or JAX without CUDA in an image for GPUs, if nothing else brings one with CUDA."""
    shipped = [each for each in pip_installs(file.commands) if each.command.stage in file.shipped]
    if not _is_for_gpus(file) or re.match(r"(?:nvcr\.io/nvidia|ghcr\.io/nvidia)/jax\b", file.final.image):
        return
    if any(_WITH_CUDA.search(word) for each in shipped for word in [*each.packages, *each.sources]):
        return
    others = any(each.package("torch", "tensorflow") for each in shipped)  # which TensorFlow's CPU build may feed
    fixed = {"jax": "jax[cuda12]"} if others else {"tensorflow-cpu": "tensorflow[and-cuda]", "jax": "jax[cuda12]"}
    for each in shipped:
        for name, wanted in fixed.items():
            if (found := each.package(name)) and not each.command.sometimes:
                facts = {"found": found, "image": file.final.image, "wanted": wanted}
                version = re.search(r"==[\d.]+", found)
                yield remark(each.line, "cpu-framework", **facts, version=version[0] if version else "")


def _is_for_gpus(file: Dockerfile) -> bool:
    """Return True if its base, or the variable that NVIDIA's toolkit reads, names GPUs."""
    visible = file.lasting("NVIDIA_VISIBLE_DEVICES")
    return bool(_FOR_GPUS.search(file.final.image) or (visible and visible.value not in ("", "void", "none")))


#: Packages that bring an interpreter: https://packages.ubuntu.com/source/jammy/python3.11.
_INTERPRETER = re.compile(r"python(3\.\d+)(?:-(?:minimal|full|dev|venv))?(?:[=:].*)?$")
_ENVIRONMENT = re.compile(r"-m venv\b|virtualenv|\bconda\b|\bmamba\b|pyenv|get-pip|ensurepip")
#: The distribution's own names, by which its python3 is run.
_PIP, _PYTHON = ("pip", "pip3", "/usr/bin/pip3"), ("python3", "/usr/bin/python3")


@dataclass
class _Pythons:
    """Hold the Pythons of one stage.

    Attributes:
        default: version of the distribution's python3; None if something else is python3 or pip3.
        added: version → line that installs it. filled: version → line that installs packages for it.
    """

    default: str | None
    added: dict[str, int] = field(default_factory=dict)
    filled: dict[str, int] = field(default_factory=dict)


def other_python(file: Dockerfile) -> Iterator[Remark]:
    """Find pip3 and python3 of the distribution in an image that installs another Python."""
    stages: list[_Pythons] = []
    for stage in file.stages:
        if stage.parent is None:
            pythons = _Pythons(python_of_image(stage.image) or python3_of_distribution(stage.image))
        else:
            pythons = copy.deepcopy(stages[stage.parent])
        stages.append(pythons)
        for command in (each for each in file.commands if each.stage == stage.number):
            if pythons.default and _fills_default(command, pythons):
                version, at = next(iter(pythons.added.items()))
                used = " ".join(command.words[: command.words.index("install")])
                facts = {"default": pythons.default, "image": stage.image, "version": version}
                yield remark(command.line, "other-python", used=used, at=at, **facts)
                pythons.default = None  # once is enough
    last = stages[-1]
    if last.default is None or not last.filled or last.default in last.filled:
        return
    version, at = next(iter(last.filled.items()))
    final = (each for each in file.instructions if each.stage == file.final.number)
    for command in (one for each in final if each.name in ("CMD", "ENTRYPOINT") for one in commands_of(each)):
        if command.words and command.words[0] in _PYTHON:
            facts = {"words": command.words[0], "default": last.default, "version": version}
            yield remark(command.line, "other-python at the start", at=at, **facts)


def deprecated_launcher(file: Dockerfile) -> Iterator[Remark]:
    """Find CMD and ENTRYPOINT with torch.distributed.launch."""
    starts = (each for each in file.instructions if each.name in ("CMD", "ENTRYPOINT"))
    yield from (remark(each.line, "deprecated-launcher") for each in starts if "torch.distributed.launch" in each.raw)


def _fills_default(command: Command, pythons: _Pythons) -> bool:
    """Record a command in ``pythons``; return True for the distribution's pip where another Python was added."""
    words, text, install = command.words, command.text, next(installs_of((command,)), None)
    versioned = re.match(r"(?:/usr/bin/)?python(3\.\d+)$", words[0]) if words else None
    tool = install.tool if install else ""
    if words[:1] in (("update-alternatives",), ("ln",)):
        replaced = re.search(r"/(?:python3|pip3?)(?:\s|$)", text) is not None
    else:
        replaced = tool == "uv" or _ENVIRONMENT.search(text) is not None
        replaced = replaced or bool(versioned and install and tool == "pip" and install.package("pip"))
    if replaced:
        pythons.default = None
    if replaced or install is None or install.action != "install":
        return False
    if tool in ("apt-get", "apt", "aptitude"):
        for name in install.packages:
            if (match := _INTERPRETER.match(name)) and match[1] != pythons.default:
                pythons.added.setdefault(match[1], install.line)
    elif versioned:
        pythons.filled.setdefault(versioned[1], install.line)
    is_own = words[0] in _PIP or (words[0] in _PYTHON and words[1:3] == ("-m", "pip"))
    return tool == "pip" and is_own and bool(pythons.added)


RULES = (
    cuda_twice,
    variant_against_base,
    dead_tags,
    python_missing,
    runs_as_root,
    no_pins,
    cpu_torch,
    cpu_tensorflow_or_jax,
    other_python,
    deprecated_launcher,
)
