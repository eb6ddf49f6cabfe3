"""Python packages: without a version, from the wrong index, twice, or from files that are not there yet."""

from __future__ import annotations

import re
from collections.abc import Iterator

from packaging.version import InvalidVersion, Version

from seatrial.images.base import python_of_image
from seatrial.images.dockerfiles.installs import Install, installs_of, pip_installs
from seatrial.images.dockerfiles.parts import Dockerfile, Remark
from seatrial.stack.facts import TORCH_VERSION, wheels

_FRAMEWORKS = ("torch", "tensorflow", "jax")

#: Images that have torch already, and the release where the tag says it.
_WITH_TORCH = re.compile(
    r"(?:docker\.io/)?(?:pytorch/pytorch:(?P<release>\d+\.\d+(?:\.\d+)?)?|nvcr\.io/nvidia/pytorch:|rocm/pytorch|"
    r"huggingface/transformers-pytorch-gpu)"
)
_FOR_GPUS = re.compile(r"nvidia/|nvcr\.io|cuda|cu1\d\d|[-_:/]gpu\b|pytorch/pytorch:.*cuda", re.IGNORECASE)
_CPU_SOURCE = re.compile(r"/whl/(?:nightly/)?cpu(?:[/\s\"']|$)")
#: A JAX with CUDA: its extra, its plug-in, a jaxlib that was built for it, or NVIDIA's own image.
_WITH_CUDA = re.compile(r"^jax(?:lib)?\[cuda|^jax-cuda|^jaxlib==[\d.]+\+cuda|jax_cuda_releases")
_WITH_JAX = re.compile(r"(?:nvcr\.io/nvidia|ghcr\.io/nvidia)/jax\b")
_BRANCHES = ("main", "master", "develop", "dev", "HEAD")


def no_pins(file: Dockerfile) -> Iterator[Remark]:
    """A package without a version is another one next month."""
    for each in pip_installs(file.commands):
        wanted = each.package(*_FRAMEWORKS)
        if (
            wanted
            and not re.search(r"[=<~@$]", wanted)
            and not {"-c", "--constraint"} & set(each.flags)
            and not _nightly(each)
        ):
            name = re.split(r"\[", wanted)[0]
            newest = TORCH_VERSION if name == "torch" else "VERSION"
            yield Remark(
                each.line,
                "no-pins",
                "warning",
                f"{wanted} has no pinned version: the same Dockerfile can give a different image later",
                f'pip install "{wanted}=={newest}"   # or -r requirements.txt with versions',
            )
    for stage in file.stages:
        named = stage.parent is None and stage.image != "scratch" and "nvidia/cuda" not in stage.image  # dead-tag
        if named and re.fullmatch(r"(?:[\w.-]+(?::\d+)?/)?[\w./-]+(:latest)?", stage.image):
            bare = stage.image.removesuffix(":latest")
            yield Remark(stage.line, "no-pins", "warning", f"{stage.image} has no version tag", f"FROM {bare}:VERSION")


def python_too_new(file: Dockerfile) -> Iterator[Remark]:
    """The pinned torch has no wheel for the base's Python."""
    for each in pip_installs(file.commands):
        image = file.stages[each.command.stage].image if each.command.stage >= 0 else ""
        python = python_of_image(image)
        pin = re.search(r"^torch==(\d+\.\d+(?:\.\d+)?)", each.package("torch") or "")
        rows = [wheel for wheel in wheels("torch") if pin and wheel.version == pin[1]]
        own_python = re.search(r"python3\.|conda|pyenv|\buv\b", " ".join(one.value for one in file.instructions))
        if (
            python
            and rows
            and not own_python
            and not Version(rows[0].python[0]) <= Version(python) <= Version(rows[0].python[1])
        ):
            low, high = rows[0].python
            yield Remark(
                each.line,
                "python-version",
                "error",
                f"torch {rows[0].version} has wheels for Python {low} to {high}, and {image} has {python}",
                f"FROM python:{high}-slim-bookworm",
            )


def pip_cache_left(file: Dockerfile) -> Iterator[Remark]:
    """pip keeps every wheel it downloaded: gigabytes for a framework."""
    off = any("PIP_NO_CACHE_DIR" in each.value for each in file.instructions)
    for each in file.of("RUN"):
        kept = re.search(r"--no-cache|--mount=type=cache|cache purge|\.cache", each.value)
        if off or kept or each.stage not in file.chain:
            continue
        first = next((one for one in pip_installs(tuple(file.commands_of(each))) if one.tool == "pip"), None)
        if first:
            yield Remark(
                first.line,
                "pip-cache",
                "warning",
                "pip's download cache stays in the layer",
                "RUN --mount=type=cache,target=/root/.cache/pip pip install …",
            )


def torch_twice(file: Dockerfile) -> Iterator[Remark]:
    """A second torch: of the base, of an earlier RUN, of conda."""
    base = _WITH_TORCH.match(file.final.image)
    before, tool = (f"the base {file.final.image}", "pip") if base else ("", "")
    release = base["release"] if base else None
    for each in installs_of(file.commands):
        wanted, where = _torch_of(each, file)
        if not wanted or each.command.stage not in file.chain or each.command.sometimes:
            continue
        pin = re.search(r"==?([\d.]+\d)", wanted)
        other = pin and (release is None or not _same_release(pin[1], release))
        anew = {"-U", "--upgrade", "--force-reinstall", "--pre", "-I", "--ignore-installed"} & set(each.flags)
        kind = "conda" if each.tool == "conda" else "pip"
        if before and (other or anew or (kind == "conda" and tool == "pip")):
            yield Remark(
                each.line,
                "torch-twice",
                "warning",
                f"torch is installed twice: in {before} and again {where}; the first stays in its layer, gigabytes "
                "that nothing uses, and what was built for it can break",
                f"use one of them: remove {wanted} here" + (", or FROM python:3.11-slim-bookworm" if base else ""),
            )
        before, release, tool = f"line {each.line}", pin[1] if pin else None, kind


def _torch_of(each: Install, file: Dockerfile) -> tuple[str | None, str]:
    """(the requirement of torch that a command installs, where it stands)."""
    if each.tool == "conda":
        return (each.package("pytorch", "pytorch-gpu") if each.action in ("install", "create") else None), "here"
    if each.tool not in ("pip", "uv") or each.action not in ("install", "add"):
        return None, ""
    if wanted := each.package("torch"):
        return wanted, "here"
    for name in each.files:
        for line in file.requirements.get(name, ()):
            if re.match(r"torch\s*(?:$|[=<>!~;@\[])", line):
                return line.replace(" ", ""), f"here ({line} in {name})"
    return None, ""


def _same_release(one: str, other: str) -> bool:
    try:
        return Version(one).release[:2] == Version(other).release[:2] and (
            one.count(".") < 2 or Version(one) == Version(other)
        )
    except InvalidVersion:
        return True


def cpu_torch(file: Dockerfile) -> Iterator[Remark]:
    """torch without CUDA in an image for GPUs: everything runs, on the CPU."""
    if not _is_for_gpus(file):
        return
    for each in installs_of(file.commands):
        if each.command.stage not in file.shipped or each.command.sometimes or not _installs_torch(each):
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
            yield Remark(
                each.line,
                "cpu-torch",
                "error",
                f"{found} gives a torch without CUDA, in an image for GPUs ({file.final.image}): training "
                "runs on the CPU",
                f"pip install torch=={TORCH_VERSION} --index-url https://download.pytorch.org/whl/cu126",
            )


def cpu_tensorflow_or_jax(file: Dockerfile) -> Iterator[Remark]:
    """TensorFlow's or JAX's build without CUDA in an image for GPUs, where nothing else brings one with it."""
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
                yield Remark(
                    each.line,
                    "cpu-framework",
                    "error",
                    f"{found} has no CUDA, in an image for GPUs ({file.final.image}): training runs on the CPU",
                    f'pip install "{wanted}{version[0] if version else ""}"',
                )


def _is_for_gpus(file: Dockerfile) -> bool:
    """By its base, or by the variable that NVIDIA's toolkit reads."""
    visible = file.lasting("NVIDIA_VISIBLE_DEVICES")
    named = visible and visible.value not in ("", "void", "none")
    return bool(_FOR_GPUS.search(file.final.image) or named)


def _installs_torch(each: Install) -> bool:
    return bool(each.package("torch", "pytorch", "torchvision", "torchaudio")) or bool(each.files)


def _nightly(each: Install) -> bool:
    return any("/whl/nightly" in source for source in each.sources)


def unpinned_sources(file: Dockerfile) -> Iterator[Remark]:
    """Nightly builds and git branches: what they give changes from day to day."""
    for each in pip_installs(file.commands):
        wanted = each.package("torch")
        if _nightly(each) and wanted and not re.search(r"==|\$", wanted):
            yield Remark(
                each.line,
                "nightly-unpinned",
                "warning",
                f"{wanted} is whatever was built last night: the same Dockerfile gives another image tomorrow",
                f"pip install torch=={TORCH_VERSION}   # or a dated build: torch==X.Y.0.devYYYYMMDD",
            )
        branches = [word for word in each.packages if re.search(r"git\+\w+://|git\+ssh:", word) and not _git_pin(word)]
        if branches:
            more = f" and {len(branches) - 1} more" if len(branches) > 1 else ""
            source = branches[0].partition("#")[0].strip().removesuffix("@main").removesuffix("@master")
            yield Remark(
                each.line,
                "git-unpinned",
                "warning",
                f"{branches[0]}{more} is the newest commit of a branch: the same Dockerfile gives another "
                "image tomorrow",
                f'pip install "{source}@COMMIT"',
            )
    yield from _unpinned_clones(file)


def _unpinned_clones(file: Dockerfile) -> Iterator[Remark]:
    for at, command in enumerate(file.commands):
        words = command.words
        if words[:1] != ("git",) or "clone" not in words[1:4] or command.stage not in file.shipped:
            continue
        options = {name: words[i + 1] for i, name in enumerate(words[:-1]) if name in ("-b", "--branch", "--revision")}
        options |= {
            word.partition("=")[0]: word.partition("=")[2]
            for word in words
            if word.startswith(("--branch=", "--revision="))
        }
        if options and not set(options.values()) & set(_BRANCHES):
            continue
        later = (one for one in file.commands[at + 1 :] if one.stage == command.stage and one.words[:1] == ("git",))
        if any(_checks_out(one.words) for one in later):
            continue
        yield Remark(
            command.line,
            "git-unpinned",
            "warning",
            "git clone takes the newest commit of a branch: the same Dockerfile gives another image "
            "tomorrow, and a cached layer "
            "keeps an old one",
            "git clone … && git -C FOLDER checkout COMMIT",
        )


def _git_pin(word: str) -> bool:
    """A ref behind the repository's path, other than a branch that moves."""
    ref = re.search(r"\.(?:git)?[^@\s]*/[^@\s]*@([^#\s]+)", word.partition("git+")[2])
    return bool(ref) and ref[1] not in _BRANCHES if ref else False


def _checks_out(words: tuple[str, ...]) -> bool:
    named = [word for word in words[1:] if not word.startswith("-") and word not in (".", *_BRANCHES)]
    return any(verb in named[:3] and named[-1] != verb for verb in ("checkout", "reset", "switch"))


RULES = (no_pins, python_too_new, pip_cache_left, torch_twice, cpu_torch, cpu_tensorflow_or_jax, unpinned_sources)
