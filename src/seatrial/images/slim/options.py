"""Decide the slimming on the host: its level, the features that the project does not use, the architectures to keep."""

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
from seatrial.system.project_files import own_table, read_sources

_PACKAGE = Path(seatrial.__file__).parent
_ROOM = Path("images/slim/program")

_MOST_FILES, _MOST_SOURCE_BYTES = 500, 50_000_000


@dataclass(frozen=True)
class Slimming:
    """Hold the arguments of the slimming program; () if nothing is slimmed.

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
    """Return the slimming of ``image.slim`` for this job. Raises ConfigError: no framework, or an unknown GPU."""
    level = job.image.slim
    has_cuda = stack.wheel is not None and not stack.cpu and not stack.of_the_base
    if not has_cuda and level in ("auto", "none"):
        return Slimming()
    if (stack.wheel is None or stack.of_the_base) and level in ("unused", "arch"):
        message = f"image.slim = {level!r} supports only libraries of torch, TensorFlow and JAX"
        cause = "the base image brings the framework" if stack.of_the_base else "this project uses no framework"
        raise ConfigError(message, cause=cause, run='in seatrial.toml: [image] slim = "files"')
    used: set[str] = set()
    left_out: dict[str, tuple[str, ...]] = {"none": (), "files": ()}
    if stack.wheel is not None:
        known_signs = own_table(Path(__file__).with_name("signs.toml"))
        signs, proof = known_signs["torch" if stack.wheel.framework == "torch" else "xla"], known_signs["proof"]
        used = _used(job, signs, requirements) | ({"compile", "nvcc"} if compiles else set())
        used |= {"nccl"} if multi_gpu or job.nodes > 1 else set()
        if stack.wheel.framework != "torch" and "linalg" in used:
            used.add("sparse")  # cuSOLVER is linked to cuSPARSE
        unused = tuple(sorted({*signs, "sparselt", "compile"} - used))
        known = {*proof["without_collectives"]}  # packages that start NCCL with no word of it in the source are not
        without = job.target.kind == "recipe" or all(canonical_name(line) in known for line in requirements)
        named = {*proof["named"], *(["nccl"] if without else [])}
        proven = tuple(feature for feature in unused if feature in named and feature in signs)
        left_out |= {"auto": proven, "unused": unused, "arch": unused}
    left_out = left_out if has_cuda else {}
    if level == "none":
        return Slimming(left_out=left_out)
    if level == "auto":
        reason = f"out of the framework: symbols, archives, and what this job cannot call ({', '.join(proven) or '-'})"
        proved = ("--level", "unused", "--keep-headers", "--unused", ",".join(proven) or "none")
        choice = Choice(what="slimming", value="auto", reason=reason)
        return Slimming(proved, left_out, packages=False, choices=(choice,))
    arguments = ["--level", level, *(["--keep-headers"] if compiles else [])]
    explained = "image.slim; what each level saves: seatrial build --explain"
    choices = [Choice(what="slimming", value=level, reason=explained)]
    architectures: tuple[str, ...] = ()
    if level != "files":
        arguments += ["--unused", ",".join(unused)]
        shown = ", ".join(sorted(used)) or "none of them"
        choices.append(Choice(what="left out", value=", ".join(unused), reason=f"the project shows use of: {shown}"))
    if level == "arch":
        if stack.cpu or machine is None or not machine.gpus:
            message = "image.slim = 'arch' needs to know the GPUs to keep code for"
            cause = "this run has none" if machine is None else "none are known here"
            raise ConfigError(message, cause=cause, run="seatrial build … --target h100 --slim arch")
        architectures, reason = machine.capabilities, f"the GPUs of {machine.described}"
        arguments += ["--arch", ",".join(each.replace(".", "") for each in architectures)]
        choices.append(Choice(what="architectures", value=" ".join(architectures), reason=reason))
    return Slimming(tuple(arguments), left_out, architectures, choices=tuple(choices))


def _used(job: Job, signs: Mapping[str, str], requirements: Sequence[str]) -> set[str]:
    """Return features whose signs are in the source or requirements; all, if there is more source than is read."""
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


def _sources(job: Job) -> list[Path]:
    if job.target.kind == "recipe":
        return [source_of(job.target.value)]
    hidden = {"venv", ".venv", "node_modules", "site-packages", ".git", ".seatrial"}
    found = (path for path in sorted(job.project.rglob("*.py")) if not hidden & set(path.parts))
    return [path for path, _ in zip(found, range(_MOST_FILES + 1), strict=False)]


def slimmer_bytes() -> bytes:
    """Build the slimming program as one file that Python runs. The bytes depend on the sources alone."""
    names = [f"{folder}__init__.py" for folder in ("", "images/", "images/slim/", "findings/")]
    names += ["findings/device_code.py"]
    names += [str(_ROOM / path.name) for path in sorted((_PACKAGE / _ROOM).glob("*.py"))]
    contents = {f"seatrial/{name}": (_PACKAGE / name).read_bytes() for name in names}
    contents["__main__.py"] = b"from seatrial.images.slim.program.main import main\n\nmain()\n"
    return zip_bytes(dict(sorted(contents.items())))
