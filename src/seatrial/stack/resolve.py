"""Resolve the project's constraints and a machine to a Stack with a reason per choice, or a Conflict. Pure."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import NamedTuple

from packaging.specifiers import SpecifierSet
from packaging.version import Version

from seatrial.job.plan import Choice
from seatrial.stack.facts import Wheel, cuda_of_driver, minimum_driver, released, torch_index, wheels
from seatrial.stack.machine import TargetMachine
from seatrial.stack.rules import Candidate, Constraints, Violation, code_for, has_forward_compat, violations

#: Pythons to choose from if nothing fixes one, best first. 3.11 comes first: every framework of the last three years
#: has wheels for it (tables/*.json), and of the official slim images that have it newest its image is the smallest.
PYTHONS = ("3.11", "3.12", "3.10", "3.13", "3.14", "3.9", "3.8")
#: Python → four months after its release, when most packages had wheels for it. Source: peps.python.org, PEPs 569, 596,
#: 619, 664, 693, 719 and 745.
PYTHON_SINCE = {"3.8": "2020-02-14", "3.9": "2021-02-05", "3.10": "2022-02-04", "3.11": "2023-02-24"}
PYTHON_SINCE |= {"3.12": "2024-02-02", "3.13": "2025-02-07", "3.14": "2026-02-07"}

#: Compute capability from which no TensorFlow up to 2.21 has machine code.
_BLACKWELL = Version("10.0")
#: Distance of a broken rule from the request: changes that keep the version are the closest.
_WEIGHTS = {"pins": 2, "version": 8, "variant": 6, "cpu-build": 5, "torchvision": 4}


@dataclass(frozen=True)
class Stack:
    """Versions that go together on the machine.

    Attributes:
        python: e.g. ``3.11``.
        requirement: the framework for pip, e.g. ``torch==2.13.0+cu126``; None without a framework.
        index: package index that has this build; None if the usual one has it.
        wheel: the build; None without a framework. cpu: its CPU build.
        forward_compat: NVIDIA's cuda-compat must stand in for the driver.
        of_the_base: True if the base is a framework image.
        choices: a reason each. warnings: what could not be checked.
    """

    python: str
    requirement: str | None = None
    index: str | None = None
    wheel: Wheel | None = None
    cpu: bool = False
    forward_compat: bool = False
    of_the_base: bool = False
    choices: tuple[Choice, ...] = ()
    warnings: tuple[str, ...] = ()

    @property
    def build(self) -> str | None:
        """Return ``cu130``, ``cpu`` or ``and-cuda``; None without a framework."""
        return None if self.wheel is None else "cpu" if self.cpu else self.wheel.variant

    @property
    def name(self) -> str:
        """Return a name for sentences: ``torch 2.13.0+cu126 on Python 3.11``."""
        if self.wheel is None:
            return f"Python {self.python}"
        return f"{Candidate(self.wheel, self.python, cpu=self.cpu).name} on Python {self.python}"

    @property
    def facts(self) -> dict[str, str]:
        """Return the versions as plain text, for labels, the receipt and the check of the built image."""
        facts = {"python": self.python} if self.python else {}
        if self.wheel is not None:
            facts |= {self.wheel.framework: self.wheel.version, "build": str(self.build)}
            if not self.cpu:
                facts["cuda"] = self.wheel.cuda
                facts |= {key: value for key in ("cudnn", "nccl") if (value := getattr(self.wheel, key))}
        return facts


class Conflict(NamedTuple):
    """No stack fits. ``broken``: rules that the nearest candidate breaks; ``nearest``: stacks, and what gives way."""

    broken: tuple[Violation, ...]
    nearest: tuple[tuple[str, Stack], ...]

    @property
    def sentence(self) -> str:
        first = self.broken[0]
        return f"{first.needs}, but {first.has}"


def resolve(constraints: Constraints, machine: TargetMachine) -> Stack | Conflict:
    """Return the best stack that breaks no rule, or the conflict."""
    if constraints.framework is None:
        pythons = (constraints.python,) if constraints.python else pythons_of(constraints.as_of, constraints.named)
        fitting = (each for each in pythons if constraints.python_specifier.contains(f"{each}.99"))
        python = next((each for each in fitting if each not in constraints.barred), None)
        if python is not None:
            return Stack(python=python, choices=(_python_choice(python, constraints, None),))
        required = f"the project requires Python {constraints.python_specifier}"
        if constraints.python and not len(constraints.python_specifier):
            required = f"the base image has Python {constraints.python}"
        needs = next(iter(constraints.barred.values()), f"Python {constraints.python or PYTHONS[0]}")
        return Conflict((Violation("requires-python", needs, required),), ())
    return resolve_once(constraints, machine) or _conflict(constraints, machine)


def candidates(constraints: Constraints, *, admitted: bool = False) -> Iterator[Candidate]:
    """Yield each build that might do, by Python, cuda-compat and CPU; ``admitted``: of admitted releases only."""
    assert constraints.framework is not None
    pythons = (constraints.python,) if constraints.python else PYTHONS
    for wheel in wheels(constraints.framework, pinned=constraints.pinned):
        for python in pythons if not admitted or constraints.admits(wheel.framework, wheel.version) else ():
            yield Candidate(wheel, python)
            yield Candidate(wheel, python, forward_compat=True)
            yield Candidate(wheel, python, cpu=True)


def _preference(candidate: Candidate, constraints: Constraints) -> tuple[object, ...]:
    """Return a sort key, the best first: no stop-gap, the version preferred, the newest, the index's own build."""
    wheel, pythons = candidate.wheel, pythons_of(constraints.as_of, constraints.named)
    return (
        candidate.forward_compat,
        candidate.cpu == constraints.gpu,
        *_by_release(wheel, constraints),
        constraints.cuda.partition(".")[0] not in ("", wheel.cuda.partition(".")[0]),
        not wheel.default,
        wheel.only_pinned,
        _descending(wheel.cuda),
        pythons.index(candidate.python) if candidate.python in pythons else len(pythons),
    )


def _by_release(wheel: Wheel, constraints: Constraints) -> tuple[object, ...]:
    """Return a sort key: by day the newest release, then the oldest later one; else the preferred; torch 1 last."""
    newest = _descending(wheel.version)
    if not constraints.as_of:
        return False, wheel.version != constraints.prefer, newest
    late = released(wheel.framework, wheel.version) > constraints.as_of
    return wheel.framework == "torch" and newest[0] > -2, late, tuple(-part for part in newest) if late else newest


@lru_cache(maxsize=256)
def pythons_of(as_of: str, named: str = "") -> tuple[str, ...]:
    """Return the Pythons, best first: ``named``, those that packages had wheels for on a day, the oldest later one."""
    early = [each for each in PYTHONS if not as_of or PYTHON_SINCE[each] <= as_of]
    return (*({named} & {*PYTHONS}), *early, *(each for each in PYTHON_SINCE if each not in early))


@lru_cache(maxsize=256)
def _descending(version: str) -> tuple[int, ...]:
    return tuple(-part for part in (*Version(version).release, 0, 0, 0)[:4])


def _stack(chosen: Candidate, constraints: Constraints, machine: TargetMachine) -> Stack:
    wheel = chosen.wheel
    own_index = wheel.framework == "torch" and not chosen.cpu and not wheel.default
    build = "cpu" if chosen.cpu else wheel.variant
    index = torch_index(build) if own_index or (wheel.framework == "torch" and chosen.cpu) else None
    extra = f"[{wheel.extra}]" if wheel.extra and not chosen.cpu else ""
    local = f"+{build}" if own_index or (index and constraints.variant == "cpu") else ""
    warnings = []
    if not wheel.sure and not chosen.cpu:
        warnings.append(f"the architectures of {wheel.name} are unknown")
    new = [gpu for gpu in machine.gpus if wheel.framework == "tensorflow" and Version(gpu.cc) >= _BLACKWELL]
    if new and not chosen.cpu:
        fails = "graphs may fail there (tensorflow#112272); the run's check shows it"
        warnings.append(f"{wheel.name} has no machine code for {new[0].name}: {fails}")
    requirement = f"{wheel.framework}{extra}=={wheel.version}{local}"
    version = Choice(what=wheel.framework, value=wheel.version, reason=_why_version(chosen, constraints))
    why_build = _why_build(chosen, constraints, machine)
    of_build = Choice(what=f"{wheel.framework} build", value=build, reason=why_build)
    choices = (version, of_build, _python_choice(chosen.python, constraints, wheel))
    stack = Stack(chosen.python, requirement, index, wheel, chosen.cpu, chosen.forward_compat)
    return replace(stack, choices=choices, warnings=tuple(warnings))


def _why_version(chosen: Candidate, constraints: Constraints) -> str:
    version = chosen.wheel.version
    if constraints.as_of and not len(constraints.specifier):
        late = released(chosen.wheel.framework, version) > constraints.as_of
        return f"the {'oldest that fits' if late else 'newest'} as of {constraints.as_of}"
    if len(constraints.specifier):
        return f"{constraints.source} asks for {constraints.specifier}; this is the best match"
    if version == constraints.prefer:
        return "the version that seatrial is tested with"
    if constraints.prefer:
        return f"{constraints.prefer}, which seatrial is tested with, does not match; this is the newest that does"
    return "the newest that fits"


def _why_build(chosen: Candidate, constraints: Constraints, machine: TargetMachine) -> str:
    wheel = chosen.wheel
    if chosen.cpu:
        return "no GPU in this run" if not constraints.gpu else f"{constraints.source} names it"
    parts = []
    if machine.gpus:
        parts.append(code_for(wheel, machine.gpus))
    if machine.driver is None:
        parts.append(f"CUDA {wheel.cuda} needs driver {minimum_driver(wheel.cuda)} or later")
    elif chosen.forward_compat:
        parts.append(f"CUDA {wheel.cuda} runs on driver {machine.driver} through cuda-compat")
    else:
        own = cuda_of_driver(machine.driver)
        newer = own is not None and Version(wheel.cuda) > Version(own)
        by_minor = f" (CUDA {own}) by minor-version compatibility" if newer else ""
        parts.append(f"CUDA {wheel.cuda} runs on driver {machine.driver}{by_minor}")
    if wheel.extra:
        parts.append(f"[{wheel.extra}] includes the CUDA libraries")
    return "; ".join(parts)


def _python_choice(python: str, constraints: Constraints, wheel: Wheel | None) -> Choice:
    if constraints.python:
        reason = "the base image's"
    elif python == constraints.named:
        reason = "the project's pages name it or an older one"
    elif python == PYTHONS[0]:
        reason = "every current framework has wheels for it"
    elif constraints.as_of:
        reason = f"as of {constraints.as_of}"
    elif PYTHONS[0] in constraints.barred:
        reason = constraints.barred[PYTHONS[0]]
    elif len(constraints.python_specifier):
        reason = f"the project requires Python {constraints.python_specifier}"
    elif wheel is not None:
        reason = f"{wheel.framework} {wheel.version} has wheels for Python {wheel.python[0]} to {wheel.python[1]}"
    else:
        reason = "the closest match"
    return Choice(what="python", value=python, reason=reason)


def _conflict(constraints: Constraints, machine: TargetMachine) -> Conflict:
    """Take the reason from the candidate that breaks least; then let each side give way in turn.

    A CPU build that nobody named does not explain why there is none for the GPU.
    """
    on_a_gpu = constraints.gpu and constraints.variant != "cpu"
    ranked = [
        (list(violations(each, constraints, machine)), each)
        for each in candidates(constraints)
        if not each.forward_compat and not (each.cpu and on_a_gpu)
    ]
    broken, _ = min(
        ranked,
        key=lambda pair: (sum(_WEIGHTS.get(each.rule, 3) for each in pair[0]), _preference(pair[1], constraints)),
    )
    another = replace(constraints, specifier=SpecifierSet(), partners={})
    ways = {
        "another version": another,
        "another build": replace(constraints, variant=None),
        "another Python": replace(constraints, python=None, python_specifier=SpecifierSet()),
        "another version and build": replace(another, variant=None),
        "another version, build and Python": Constraints(
            constraints.framework, gpu=constraints.gpu, prefer=constraints.prefer, barred=constraints.barred
        ),
    }
    found = [(way, resolve_once(changed, machine)) for way, changed in ways.items() if changed != constraints]
    if broken[0].rule in ("architecture", "cpu-build") or (broken[0].rule == "python" and not constraints.python):
        of_any_build = _next_release(constraints, ways["another version and build"], machine)
        found.insert(0, ("the next version and build", of_any_build))
        found.insert(0, ("the next version", _next_release(constraints, another, machine)))
    found.sort(key=lambda pair: pair[0] != "another build")  # it keeps the release
    newer = resolve_once(constraints, machine._replace(driver=None))
    if newer is not None and newer.wheel is not None and machine.driver is not None:
        found.append((f"driver {minimum_driver(newer.wheel.cuda)} or later", newer))
    found.append(("the CPU", resolve_once(replace(constraints, gpu=False), machine)))
    nearest: dict[str, tuple[str, Stack]] = {}
    for way, stack in found:
        if stack is not None:
            nearest.setdefault(stack.name, (way, stack))
    return Conflict(tuple(broken), tuple(nearest.values())[:4])


def _next_release(constraints: Constraints, another: Constraints, machine: TargetMachine) -> Stack | None:
    """Return the first stack after the requested release: the closest to the other versions of the project."""
    assert constraints.framework is not None
    releases = sorted({wheel.version for wheel in wheels(constraints.framework, pinned=True)}, key=Version)
    admitted = [each for each in releases if constraints.specifier.contains(each)]
    later = releases[releases.index(admitted[-1]) + 1 :] if admitted else []
    stacks = (resolve_once(replace(another, specifier=SpecifierSet(f"=={each}")), machine) for each in later)
    return next(filter(None, stacks), None)


def resolve_once(constraints: Constraints, machine: TargetMachine) -> Stack | None:
    """Return the best stack, or None; a conflict is not looked into."""
    fitting = (
        each
        for each in candidates(constraints, admitted=True)
        if not (each.cpu and constraints.gpu) and (not each.forward_compat or has_forward_compat(each.wheel, machine))
    )
    for each in sorted(fitting, key=lambda each: _preference(each, constraints)):  # the first of hundreds, as a rule
        if next(violations(each, constraints, machine), None) is None:
            return _stack(each, constraints, machine)
    return None
