"""Judge whether a project's packages compute on NVIDIA's GPUs."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import product

from packaging.version import Version

from seatrial.errors import ConfigError, StackError
from seatrial.images.requirements.imports import packages_of_imports
from seatrial.images.requirements.pip_format import Needs, canonical_name
from seatrial.images.resolve.answers import Lock
from seatrial.images.resolve.check import Checked
from seatrial.images.resolve.framework import PACKAGES, Resolved
from seatrial.job.model import Job
from seatrial.job.script import BUILT_ON, ScriptFacts
from seatrial.stack.facts import table
from seatrial.stack.machine import TargetMachine
from seatrial.stack.rules import FIRST_CUDA
from seatrial.system.project_files import read_sources

#: Module → the accelerators that it alone computes on. Sources: their pages on pypi.org.
_OTHER_ACCELERATORS: dict[str, str] = table("import_names")["other_accelerators"]

#: Module → beginning of the packages without which it does not compute on GPUs; None: it never does.
_WITH_MORE: dict[str, str | None] = table("import_names")["gpus_with_more"]

_MOST_SOURCE_BYTES = 5_000_000

#: Beginnings of the names of packages that compute on NVIDIA's GPUs.
_FOR_GPUS = tuple(table("import_names")["for_gpus"].split())
#: Those of frameworks whose builds no table knows.
_OWN_CUDA = ("paddlepaddle-gpu", "mxnet-cu")
#: Package → the newest GPU that its releases on PyPI have code for; and those whose names give their CUDA. Sources:
#: paddlepaddle.org.cn, "Tables"; PaddleHelix#369; mindspore.cn, "Install" of 2.3, the last with GPUs (CUDA 11.6).
_NEWEST: dict[str, str] = table("import_names")["newest_gpus"]
#: Package → a GPU, and its first release with code for it.
_FIRST_CODE: dict[str, list[str]] = table("source_builds")["first_code"]
_FOR_CUDA = re.compile(r"(?:mxnet-cu|cupy-cuda|dgl-cu)(1\d|\d)(\d)(?:mkl)?")
_CUPY = re.compile(r"^cupy-cuda1[23]x(?!.*(?:\[|--hash))")
_OF_PADDLE = re.compile(r"^--.*paddle|^paddle.*post12")
#: NVIDIA's last image with MXNet, and the index of Paddle's builds for CUDA 12.
_ELSEWHERE = {
    "mxnet": "seatrial run … --image nvcr.io/nvidia/mxnet:24.06-py3",
    "paddlepaddle": "--extra-index-url https://www.paddlepaddle.org.cn/packages/stable/cu126/   # in the list",
}

#: Modules by which a script may start or load programs, libraries and modules that no list names.
_OPEN_DOORS = {"ctypes", "importlib", "subprocess"}

_ON_THE_CPU = "seatrial run … --gpus none   # on the CPU"


def without_use(
    job: Job, script: ScriptFacts, needs: Needs, resolved: Resolved, checked: Checked, machine: TargetMachine | None
) -> tuple[str, ...]:
    """Warn that no package computes on the machine's GPUs.

    Raises ConfigError: that is certain, and a GPU is requested. Raises StackError: the framework has no code for one.
    """
    names = [*map(canonical_name, resolved.requirements.lines), *checked.names]
    if old := tuple(dict.fromkeys(_older_than_the_gpus(needs, [each or "" for each in names], checked.lock, machine))):
        if resolved.stack.wheel is not None or old[0].split()[0] in _FIRST_CODE:  # no framework: the base may have it
            cupy = f"; require cupy-cuda{resolved.stack.wheel.cuda[:2]}x" if resolved.stack.wheel else ""
            return tuple(each + cupy * each.startswith("package cupy-") for each in old)
        raise StackError(old[0], run=_ELSEWHERE.get(old[0].split()[1].partition("-")[0], _ON_THE_CPU))
    own = [each for each in names if (each or "").startswith(_OWN_CUDA)]
    if own and resolved.stack.wheel is None:
        return (f"seatrial does not know which GPUs {own[0]} supports: see its release notes",)
    open_ended = needs.image or needs.extensions or None in names or job.target.kind not in ("script", "module")
    computes = any((name or "").startswith(_FOR_GPUS) for name in [*names, *script.where])
    if resolved.stack.wheel is not None or open_ended or computes:
        return ()
    listed = "" if needs.source == "the imports" else f"{needs.source} lists or "
    message = f"nothing that {listed}the target imports computes on a GPU"
    if alone := next((name for name in script.imports if name in _WITH_MORE), None):
        way = f"which does so only with {more}" if (more := _WITH_MORE[alone]) else "which never does"
        message += f": {script.where.get(alone, 'the target')} imports {alone}, {way}"
    elif checked.lock is None or not script.imports or packages_of_imports(script.imports, ()).strangers:
        return ()
    if job.gpus.kind != "auto" and _OPEN_DOORS.isdisjoint(script.modules):
        raise ConfigError(f"--gpus {job.gpus}: {message}", run=_ON_THE_CPU)
    if door := next((f"{each} ({script.modules[each]})" for each in script.modules if each in _OPEN_DOORS), ""):
        return (f"{message}, unless {door} loads another: list it in {needs.source if listed else 'requirements.txt'}",)
    return (f"{message}; --gpus none leaves the GPU to other runs",)


def _older_than_the_gpus(
    needs: Needs, names: Sequence[str], lock: Lock | None, machine: TargetMachine | None
) -> Iterator[str]:
    """Yield ``mxnet-cu112 has no code for H100 (sm_90): …`` for what was built before the machine's GPUs."""
    others = any(map(_OF_PADDLE.search, (*needs.requirements.options, *needs.requirements.lines)))
    at = {each.name: each.version for each in lock.packages if each.name in _FIRST_CODE} if lock else {}
    known = [each for each in names if each in _NEWEST or _FOR_CUDA.fullmatch(each)]
    for name, gpu in product([*known, *at], machine.gpus if machine else ()):
        first = (cuda for least, cuda in FIRST_CUDA if Version(gpu.cc) >= Version(least))
        needed, built, newest = max(first, default="0", key=Version), _FOR_CUDA.fullmatch(name), _NEWEST.get(name)
        message = f"package {name} has no code for {gpu.name} (sm_{gpu.cc.replace('.', '')})"
        if built and Version(cuda := f"{built[1]}.{built[2]}") < Version(needed):
            yield f"{message}: it is built for CUDA {cuda}, and the GPU needs {needed} or newer"
        elif newest and Version(gpu.cc) > Version(newest) and not (others and name.startswith("paddle")):
            yield f"{message}: its releases support GPUs up to sm_{newest.replace('.', '')}"
        since, release = _FIRST_CODE[name] if name in at else (gpu.cc, "0")
        if Version(gpu.cc) >= Version(since) and Version(at.get(name, release)) < Version(release):
            only = f"code only for GPUs before sm_{since.replace('.', '')}"
            yield f"{name} {at[name]} has {only}: require {name}>={release}"


def for_nvidia(needs: Needs, script: ScriptFacts) -> Needs:
    """Add the framework that the script imports later and no list has. Raises ConfigError: another maker's GPU."""
    for name in script.imports:
        if name in _OTHER_ACCELERATORS and not any("cuda" in text for text in _written(needs, script, name)):
            where, theirs = script.where.get(name, "the target"), _OTHER_ACCELERATORS[name]
            message = f"{where} imports {name}, which computes on {theirs}; seatrial runs on NVIDIA's GPUs"
            raise ConfigError(message, run=_ON_THE_CPU)
    written = (*needs.requirements.options, *needs.requirements.lines)
    if rocm := next((each for each in written if re.search(r"[/+\[-]rocm", each)), None):
        message = f"{needs.source} names packages for AMD's GPUs, {rocm}; seatrial runs on NVIDIA's"
        raise ConfigError(message, run=f"take it out of {needs.source}")
    framework = script.framework
    names = {canonical_name(line) for line in needs.requirements.lines}
    if framework is None and names.isdisjoint(PACKAGES):  # none of which wheels bring CUDA's libraries
        needs = needs.with_lines(_CUPY.sub(r"\g<0>[ctk]", line) for line in needs.requirements.lines)
    if framework is None or script.needs_framework or names & {*PACKAGES, "jax", "keras", "lightning"}:
        return needs
    built = next((name for name, on in BUILT_ON.items() if on == framework and name in script.where), framework)
    where = script.where.get(framework) or script.where.get(built, "the target")
    reason = f"{needs.reason}; {framework}, which {where} imports and the list leaves out"
    return replace(needs, imports=(*needs.imports, framework), reason=reason)


def _written(needs: Needs, script: ScriptFacts, name: str) -> Iterator[str]:
    """Yield the texts that name CUDA if the project also computes on NVIDIA's GPUs. torch_xla's import does not fail
    without a TPU: code counts.
    """
    yield from needs.requirements.lines
    if name == "torch_xla" and needs.project is not None:
        yield from read_sources([needs.project / each for each in script.files], needs.project, _MOST_SOURCE_BYTES)
