"""Check frameworks: without a version or without CUDA; and two Pythons in one image."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, field

from seatrial.images.base import python3_of_distribution, python_of_image
from seatrial.images.lint.commands import Command, Install, commands_of, installs_of, pip_installs
from seatrial.images.lint.dockerfile import Dockerfile, Remark, remark
from seatrial.stack.facts import TORCH_VERSION

_FRAMEWORKS = ("torch", "tensorflow", "jax")

_FOR_GPUS = re.compile(r"nvidia/|nvcr\.io|cuda|cu1\d\d|[-_:/]gpu\b|pytorch/pytorch:.*cuda", re.IGNORECASE)
_CPU_SOURCE = re.compile(r"/whl/(?:nightly/)?cpu(?:[/\s\"']|$)")
#: A JAX with CUDA: its extra, its plug-in, a jaxlib that was built for it, or NVIDIA's own image.
_WITH_CUDA = re.compile(r"^jax(?:lib)?\[cuda|^jax-cuda|^jaxlib==[\d.]+\+cuda|jax_cuda_releases")
_WITH_JAX = re.compile(r"(?:nvcr\.io/nvidia|ghcr\.io/nvidia)/jax\b")


def no_pins(file: Dockerfile) -> Iterator[Remark]:
    """Find frameworks without a version, nightly builds included."""
    for each in pip_installs(file.commands):
        wanted = each.package(*_FRAMEWORKS)
        if wanted and not re.search(r"[=<~@$]", wanted) and not {"-c", "--constraint"} & set(each.flags):
            name = re.split(r"\[", wanted)[0]
            newest = TORCH_VERSION if name == "torch" else "VERSION"
            yield remark(each.line, "no-pins", wanted=wanted, newest=newest)


def cpu_torch(file: Dockerfile) -> Iterator[Remark]:
    """Find a torch without CUDA in an image for GPUs, where everything runs on the CPU."""
    if not _is_for_gpus(file):
        return
    for each in installs_of(file.commands):
        of_torch = each.files or each.package("torch", "pytorch", "torchvision", "torchaudio")
        if each.command.stage not in file.shipped or each.command.sometimes or not of_torch:
            continue
        settings = " ".join(each.command.settings)
        known = {name: one.value for name, one in file.environments[each.command.stage].items()}
        indexes = [*each.sources, settings, known.get("PIP_INDEX_URL", ""), known.get("PIP_EXTRA_INDEX_URL", "")]
        found = next((index for index in indexes if _CPU_SOURCE.search(index)), None)
        wanted = each.package("torch", "pytorch") or ""
        if not found and "+cpu" in wanted:
            found = wanted
        if not found and each.tool == "conda" and each.package("cpuonly"):
            found = "cpuonly"
        if found:
            yield remark(each.line, "cpu-torch", found=found, image=file.final.image, torch=TORCH_VERSION)


def cpu_tensorflow_or_jax(file: Dockerfile) -> Iterator[Remark]:
    """Find TensorFlow or JAX without CUDA in an image for GPUs, if nothing else brings one with CUDA."""
    shipped = [each for each in pip_installs(file.commands) if each.command.stage in file.shipped]
    if not _is_for_gpus(file) or _WITH_JAX.match(file.final.image):
        return
    with_cuda = any(_WITH_CUDA.search(word) for each in shipped for word in [*each.packages, *each.sources])
    if with_cuda:
        return
    others = any(each.package("torch", "tensorflow") for each in shipped)  # which TensorFlow's CPU build may feed
    fixed = {"jax": "jax[cuda12]"} if others else {"tensorflow-cpu": "tensorflow[and-cuda]", "jax": "jax[cuda12]"}
    for each in shipped:
        for name, wanted in fixed.items():
            if (found := each.package(name)) and not each.command.sometimes:
                version = re.search(r"==[\d.]+", found)
                yield remark(
                    each.line,
                    "cpu-framework",
                    found=found,
                    image=file.final.image,
                    wanted=wanted,
                    version=version[0] if version else "",
                )


def _is_for_gpus(file: Dockerfile) -> bool:
    """Return True if its base, or the variable that NVIDIA's toolkit reads, names GPUs."""
    visible = file.lasting("NVIDIA_VISIBLE_DEVICES")
    named = visible and visible.value not in ("", "void", "none")
    return bool(_FOR_GPUS.search(file.final.image) or named)


_APT = ("apt-get", "apt", "aptitude")
#: Packages that bring an interpreter: https://packages.ubuntu.com/source/jammy/python3.11.
_INTERPRETER = re.compile(r"python(3\.\d+)(?:-(?:minimal|full|dev|venv))?(?:[=:].*)?$")
_VERSIONED = re.compile(r"(?:/usr/bin/)?python(3\.\d+)$")
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
            before = stages[stage.parent]
            pythons = _Pythons(before.default, {**before.added}, {**before.filled})
        stages.append(pythons)
        for command in (each for each in file.commands if each.stage == stage.number):
            if pythons.default and (remark := _remark_on(command, pythons, stage.image)):
                yield remark
                pythons.default = None  # once is enough
    yield from _starts(file, stages[-1])


def _remark_on(command: Command, pythons: _Pythons, image: str) -> Remark | None:
    """Record a command in ``pythons``; return its remark, or None if it has none."""
    assert pythons.default is not None
    if _stands_in(command):
        pythons.default = None
        return None
    install = next(installs_of((command,)), None)
    if install is None or install.action != "install":
        return None
    if install.tool in _APT:
        for name in install.packages:
            if (match := _INTERPRETER.match(name)) and match[1] != pythons.default:
                pythons.added.setdefault(match[1], install.line)
    elif own := _VERSIONED.match(command.words[0]):
        pythons.filled.setdefault(own[1], install.line)
    elif pythons.added and _is_the_distributions(install):
        version, line = next(iter(pythons.added.items()))
        used = " ".join(command.words[: command.words.index("install")])
        return remark(
            install.line, "other-python", used=used, default=pythons.default, image=image, version=version, at=line
        )
    return None


def _is_the_distributions(install: Install) -> bool:
    words = install.command.words
    return install.tool == "pip" and (words[0] in _PIP or (words[0] in _PYTHON and words[1:3] == ("-m", "pip")))


def _stands_in(command: Command) -> bool:
    """Return True if python3 or pip3 is another one afterwards: linked, in an environment, or a pip of a version."""
    words, text = command.words, command.text
    if words[:1] == ("update-alternatives",) or words[:1] == ("ln",):
        return bool(re.search(r"/(?:python3|pip3?)(?:\s|$)", text))
    if re.search(r"-m venv\b|virtualenv|\bconda\b|\bmamba\b|pyenv|get-pip|ensurepip", text):
        return True
    install = next(installs_of((command,)), None)
    return bool(install and install.tool == "uv") or bool(
        install and install.tool == "pip" and _VERSIONED.match(words[0]) and install.package("pip")
    )


def _starts(file: Dockerfile, pythons: _Pythons) -> Iterator[Remark]:
    """Find CMD and ENTRYPOINT that start python3 while the packages belong to another Python."""
    default = pythons.default
    if default is None or not pythons.filled or default in pythons.filled:
        return
    version, line = next(iter(pythons.filled.items()))
    for each in (each for each in file.instructions if each.name in ("CMD", "ENTRYPOINT")):
        for command in commands_of(each) if each.stage == file.final.number else ():
            if command.words[:1] and command.words[0] in _PYTHON:
                yield remark(
                    command.line,
                    "other-python at the start",
                    words=command.words[0],
                    default=default,
                    at=line,
                    version=version,
                )


def deprecated_launcher(file: Dockerfile) -> Iterator[Remark]:
    """Find CMD and ENTRYPOINT with torch.distributed.launch."""
    for each in (each for each in file.instructions if each.name in ("CMD", "ENTRYPOINT")):
        if "torch.distributed.launch" in each.raw:
            yield remark(each.line, "deprecated-launcher")


RULES = (no_pins, cpu_torch, cpu_tensorflow_or_jax, other_python, deprecated_launcher)
