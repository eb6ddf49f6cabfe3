"""Describe what a stack has to run on: this machine, one by ``driver=535.129,gpu=A4000``, or a class (``h100``)."""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterable
from contextlib import suppress
from typing import NamedTuple

from packaging.version import Version

from seatrial.errors import UsageError
from seatrial.stack.facts import GpuModel, gpu_models

_CC = re.compile(r"(?:sm_?)?(\d{1,2})\.?(\d)[af]?")
_EXAMPLE = "seatrial plan … --target driver=535.129,gpu=A4000"


class TargetGpu(NamedTuple):
    """A GPU to build for. ``datacenter`` is None if its name does not show it."""

    name: str
    cc: str
    datacenter: bool | None = None


class TargetMachine(NamedTuple):
    """Driver and GPUs.

    Attributes:
        driver: e.g. ``535.129.03``; None when unknown, and then no rule about drivers is applied.
        gpus: () if it has none, or none is requested.
        described: how to call it in a sentence: ``this machine``, ``the target h100``.
    """

    driver: str | None = None
    gpus: tuple[TargetGpu, ...] = ()
    described: str = "this machine"

    @property
    def capabilities(self) -> tuple[str, ...]:
        """Return the distinct compute capabilities, lowest first."""
        return tuple(sorted({gpu.cc for gpu in self.gpus}, key=Version))


def this_machine(driver: str | None, gpus: Iterable[tuple[str, str | None]]) -> TargetMachine:
    """Describe this machine by NVML's (name, compute capability) a GPU; a table has the latter if NVML lacks it."""
    found = []
    for name, cc in gpus:
        model = _model_of(name)
        if cc or model:
            kind = None if model is None else model.kind == "datacenter"
            found.append(TargetGpu(name, cc or (model.cc if model else ""), kind))
    return TargetMachine(driver, tuple(found))


def same_machine(target: TargetMachine, here: TargetMachine) -> bool:
    """Return True if a described machine may be this one: it has each named GPU and the driver."""
    present = [(_model_of(gpu.name), gpu.cc) for gpu in here.gpus]
    named = [(_model_of(gpu.name), gpu.cc) for gpu in target.gpus]
    found = all(any(model in (None, other) and cc == own for other, own in present) for model, cc in named)
    return found and target.driver in (None, here.driver)


def parse_target(text: str) -> TargetMachine:
    """Parse ``--target``: a GPU's name or capability, or ``driver=…,gpu=…[,gpu=…]``. Raises UsageError."""
    driver: str | None = None
    gpus: list[TargetGpu] = []
    for part in text.split(","):
        key, separator, value = part.strip().partition("=")
        if not separator:
            key, value = "gpu", key
        if key == "driver":
            driver = _checked_driver(value)
        elif key == "gpu" and value:
            gpus.append(_gpu(value))
        else:
            raise UsageError(f"--target {text}: {part!r} is neither driver=VERSION nor gpu=NAME", run=_EXAMPLE)
    if not gpus:
        raise UsageError(f"--target {text}: does not name a GPU", run=_EXAMPLE)
    return TargetMachine(driver, tuple(gpus), f"the target {text}")


def _checked_driver(value: str) -> str:
    with suppress(ValueError):  # InvalidVersion is one
        if Version(value).major >= 300:  # a CUDA version, most often
            return value
    raise UsageError(f"--target: {value!r} is not a valid driver version", cause="e.g. 535.129.03", run="nvidia-smi")


def _gpu(name: str) -> TargetGpu:
    if match := _CC.fullmatch(name.lower()):
        return TargetGpu(name, f"{match[1]}.{match[2]}")
    if (model := _model_of(name)) is None:
        known = {"".join(_words(each.gpu)): each.gpu for each in gpu_models()}
        similar = [known[key] for key in difflib.get_close_matches("".join(_words(name)), known, n=3, cutoff=0.5)]
        cause = f"similar: {', '.join(similar)}" if similar else "name it by its compute capability"
        run = f"seatrial plan … --target {'-'.join(_words(similar[0])) if similar else 'sm_90'}"
        raise UsageError(f"--target: unknown GPU {name!r}", cause=cause, run=run)
    return TargetGpu(model.gpu, model.cc, model.kind == "datacenter")


def _model_of(name: str) -> GpuModel | None:
    """Return the table's row for NVML's name ("NVIDIA H100 80GB HBM3") or a short one ("4090"); None without one."""
    words = _words(name)
    rows = sorted(gpu_models(), key=lambda row: -len(_words(row.gpu)))
    for row in rows:  # the longest name first: "RTX 6000 Ada" before "RTX 6000"
        wanted = _words(row.gpu)
        if any(words[start : start + len(wanted)] == wanted for start in range(len(words) - len(wanted) + 1)):
            return row
    return next((row for row in rows if len(words) == 1 and words[0] in _words(row.gpu)), None)


def _words(name: str) -> list[str]:
    noise = ("nvidia", "tesla", "geforce", "generation")
    return [word for word in re.split(r"[\s\-_/]+", name.lower()) if word and word not in noise]
