"""Choose an image's base and frameworks together: the base has one Python, and the frameworks may need a base."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from typing import Any

from packaging.version import Version

from seatrial.errors import ConfigError, GpuContractError
from seatrial.images.base import DEFAULT_BASE, Base, cuda_base, needed_flavour, python_of_image, slim_base, toolkit_base
from seatrial.images.requirements.on_framework_image import kept_packages
from seatrial.images.requirements.pip_format import Needs, canonical_name
from seatrial.images.requirements.removed_apis import is_below
from seatrial.images.requirements.source_builds import own_page
from seatrial.images.resolve.framework import Resolved, resolve_frameworks
from seatrial.images.sources import has_own_sources
from seatrial.job.model import Flavour, Job
from seatrial.job.reading.modules import REMOVED_IN, removed_part
from seatrial.job.script import ScriptFacts
from seatrial.stack.facts import cuda_images, table
from seatrial.stack.machine import TargetMachine
from seatrial.stack.resolve import PYTHONS, Stack


def frameworks(job: Job, needs: Needs, machine: TargetMachine | None, **how: Any) -> Resolved:
    """Resolve the frameworks with the job's own sources; ``how``: the Python, and those that are barred."""
    own, mirror = has_own_sources(job.image), job.image.torch_index
    found = resolve_frameworks(needs, frozenset(needs.imports), machine=machine, own_sources=own, mirror=mirror, **how)
    if own or found.requirements.hashed:
        return found
    lines, sms = found.requirements.lines, machine.capabilities if machine else ()
    pages = {canonical_name(line) or line: page for line in lines if (page := own_page(line, found.stack, sms))}
    return replace(found, pages=pages)


def base_and_stack(
    job: Job, needs: Needs, machine: TargetMachine | None, barred: Mapping[str, str]
) -> tuple[Base, Resolved]:
    """Choose base image and stack together: the base has one Python, and the stack may need a base."""

    def resolved_on(python: str | None, **how: Any) -> Resolved:
        return frameworks(job, needs, machine, python=python, barred=barred, **how)

    if needs.image is not None:
        if (why := barred.get(needs.image.python or "")) is not None:
            message = f"{why}, and {needs.image.image} has Python {needs.image.python}"
            way = f"change that in {needs.source}, or name an image that has them: --image IMAGE"
            raise ConfigError(message, run=way)
        resolved = resolved_on(needs.image.python)
        stack = replace(resolved.stack, wheel=resolved.stack.wheel or needs.image.wheel, of_the_base=True)
        base, *choices = needs.image_choices
        own = (each for each in resolved.choices if each.what != "python" or not needs.image.python)
        resolved = replace(resolved, stack=stack, choices=(*choices, *own))
        return Base(needs.image.image, None, (), base, kept_packages(needs.image)), resolved
    if job.image.base != DEFAULT_BASE:
        resolved = resolved_on(python_of_image(job.image.base))
        return slim_base(resolved.stack, job.image, ""), resolved
    flavour, reason = needed_flavour(job.image, job.project, needs)
    admitted = [each for each in PYTHONS if each not in barred and needs.python.contains(f"{each}.99")]
    if flavour is None or machine is None:
        resolved = _on_some_python(resolved_on, admitted)
        if machine is None:
            reason = "small; no GPU in this run"
        flavour, why = _flavour_of(resolved.stack)
        if flavour is None:
            return slim_base(resolved.stack, job.image, reason), resolved
        reason = why
    return _cuda_base(resolved_on, needs, admitted, flavour, reason)


def _on_some_python(resolved_on: Callable[[str | None], Resolved], pythons: Iterable[str]) -> Resolved:
    """Resolve for the first framework's Python, or the newest that all have. Raises ConfigError, GpuContractError."""
    try:
        return resolved_on(None)
    except (ConfigError, GpuContractError) as error:
        failed = [error]
        for python in sorted(pythons, key=Version, reverse=True):
            try:
                return resolved_on(python)
            except (ConfigError, GpuContractError) as other:
                failed.append(other)
        named = [each.message.partition(", but ")[0] for each in failed]
        other_cause = (each for each, name in zip(failed, named, strict=True) if " has wheels for Python " not in name)
        if len(set(named)) > 1:
            both = f"{' and '.join(dict.fromkeys(named))}: no Python has {'all' if len(set(named)) > 2 else 'both'}"
            error = ConfigError(both, cause=error.cause, run=error.run, edits=error.edits)
        raise next(other_cause, error) from None


def _flavour_of(stack: Stack) -> tuple[Flavour | None, str]:
    """Return the base's flavour that the stack itself needs, and the reason."""
    if stack.wheel is not None and stack.wheel.system_cuda and not stack.cpu:
        return "cudnn-runtime", f"{stack.wheel.name} does not include CUDA"
    if stack.forward_compat:
        return "base", "the driver is older than the CUDA version: this base has NVIDIA's cuda-compat"
    return None, ""


def _cuda_base(
    resolved_on: Callable[..., Resolved], needs: Needs, admitted: Iterable[str], flavour: Flavour, reason: str
) -> tuple[Base, Resolved]:
    """Return the base on the newest Ubuntu whose Python the stack has wheels for and that nvidia/cuda is built on.

    Where the stack's own CUDA has none, take another build of it.
    """
    failed: Exception | None = None
    pythons = sorted(table("nvidia_images")["python"].items(), reverse=True)
    for any_build, (ubuntu, python) in itertools.product((False, True), pythons):
        images = {each.cuda.rpartition(".")[0] for each in cuda_images() if ubuntu in each.ubuntu}
        try:
            resolved = resolved_on(python, images=images if any_build else ())
        except (ConfigError, GpuContractError) as error:
            failed = failed or error
            continue
        if base := cuda_base(resolved.stack, flavour, ubuntu, reason, nvcc=needs.nvcc is not None):
            return base, resolved
    resolved = _on_some_python(resolved_on, admitted)  # what has no solution on any Python is not the image's fault
    if flavour == "devel" and (base := toolkit_base(resolved.stack, reason, nvcc=needs.nvcc is not None)):
        return base, resolved
    if not any(needs.python.contains(f"{python}.99") for _, python in pythons):
        have = f"nvidia/cuda's images{', with nvcc,' * (flavour == 'devel')} have {', '.join(dict(pythons).values())}"
        run = 'change the Python, or in seatrial.toml: [image] base = "…", your own image'
        raise ConfigError(f"{reason}, and the project requires Python {needs.python}: {have}", run=run)
    assert failed is not None
    raise failed


def barred_by_packages(needs: Needs) -> dict[str, str]:
    """Map each Python to the package that fails on it although its metadata admits it.

    Where that leaves no Python of the project's, what nothing imports may fail.
    """
    barred = dict[str, str]()
    for name, row in table("import_names")["newest_python"].items():
        newest = Version(row["python"])
        if any("before" not in row or is_below(each.specifier, row["before"]) for each in needs.requirements.of(name)):
            newer = {each: f"{name}: {row['why']}" for each in PYTHONS if Version(each) > newest}
            left = any(needs.python.contains(f"{each}.99") for each in PYTHONS if each not in newer)
            barred |= newer if left or name.partition("-")[0] in needs.imports else {}
    return barred


def barred_by_code(script: ScriptFacts, needs: Needs) -> dict[str, str]:
    """Return Python → why it cannot run the target's files; a module that no Python of the project has bars none."""
    barred = dict[str, str]()
    for name in sorted(filter(None, map(removed_part, script.modules))):
        since, verb = REMOVED_IN[name][0], "uses" if "." in name else "imports"
        newer = [python for python in PYTHONS if Version(python) >= Version(since)]
        if any(needs.python.contains(f"{each}.99") for each in PYTHONS if each not in newer):
            barred |= dict.fromkeys(newer, f"the code {verb} {name}, which Python {since} removed")
    if script.least_python is None:
        return barred
    least, where = script.least_python
    reason = f"{where} is syntax of Python {least[0]}.{least[1]} and later"
    return barred | {python: reason for python in PYTHONS if tuple(map(int, python.split("."))) < least}
