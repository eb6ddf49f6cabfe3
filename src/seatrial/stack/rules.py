"""Check builds against a project's constraints, from its requirements, imports and configuration, and a machine."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import cached_property, lru_cache
from typing import NamedTuple

from packaging.specifiers import SpecifierSet
from packaging.version import Version

from seatrial.stack import facts
from seatrial.stack.facts import Framework, Wheel
from seatrial.stack.machine import TargetGpu, TargetMachine

#: Framework → packages that have a release of their own for each of its releases.
PARTNERS: dict[Framework, tuple[str, ...]] = {
    "torch": ("torchvision", "torchaudio"),
    "tensorflow": ("keras", "tensorflow-estimator"),
}

#: Minor releases of TensorFlow 2 from which on Keras is a package of its own, and Keras 3.
_FIRST_OWN_KERAS, _FIRST_KERAS_3 = 6, 16
#: Releases of Keras 3, and those that may come.
_KERAS_3 = tuple(f"3.{minor}.{patch}" for minor in range(40) for patch in range(5))
#: Compute capability → the first CUDA whose cuBLAS and cuDNN run on it: only the framework has PTX. Sources: CUDA's
#: release notes; cuDNN's support matrix. On later GPUs the run's check decides (resolve._stack warns).
FIRST_CUDA = (("10.0", "0"), ("8.9", "11.8"), ("8.6", "11.1"))


@dataclass(frozen=True)
class Constraints:
    """Holds what a project requires of its stack.

    Attributes:
        framework: None: nothing to resolve but Python.
        specifier: on the framework's version, e.g. ``>=2.6,<2.10``; "" when open.
        variant: the build that is named: ``cu126``, ``cpu``, or None.
        gpu: it is to run on GPUs.
        python: Python of a base image that the user chose, or None when seatrial chooses it.
        python_specifier: ``requires-python`` of the project.
        barred: Python → what else is required and has no wheel for it, a sentence without an end.
        partners: package of PARTNERS → specifier on it, of those that are required.
        prefer: version that the choice falls on when it fits, e.g. the one seatrial is tested with.
        cuda: CUDA of another framework, whose major is preferred: cuDNN's wheels of both own nvidia/cudnn/lib.
        images: CUDA releases, as 12.4, of the base images that may be taken; () for any.
        as_of: day of the code, as 2021-09-03, whose releases come before ``prefer``; "" for today.
        named: Python of the project's pages, which comes first.
        source: the requirement and its file, for sentences: ``torch==2.0.1 (requirements.txt)``.
    """

    framework: Framework | None
    specifier: SpecifierSet = field(default_factory=SpecifierSet)
    variant: str | None = None
    gpu: bool = True
    python: str | None = None
    python_specifier: SpecifierSet = field(default_factory=SpecifierSet)
    barred: Mapping[str, str] = field(default_factory=dict)
    partners: Mapping[str, SpecifierSet] = field(default_factory=dict)
    prefer: str | None = None
    cuda: str = ""
    images: Collection[str] = ()
    as_of: str = ""
    named: str = ""
    source: str = "the project"

    @property
    def pinned(self) -> bool:
        """Return whether the project pins one release."""
        return any(each.operator == "==" for each in self.specifier)

    @cached_property
    def admits(self) -> Callable[[str, str], bool]:
        """Return whether a release of the framework, of a partner or of ``python`` is admitted; each is read once."""
        specifiers = {**self.partners, str(self.framework): self.specifier, "python": self.python_specifier}
        return lru_cache(maxsize=None)(lambda package, version: specifiers[package].contains(version))


class Candidate(NamedTuple):
    """A build, the Python it is to run on, and whether NVIDIA's cuda-compat libraries stand in for a newer driver."""

    wheel: Wheel
    python: str
    forward_compat: bool = False
    cpu: bool = False

    @property
    def name(self) -> str:
        return f"{self.wheel.framework} {self.wheel.version}+cpu" if self.cpu else self.wheel.name


class Violation(NamedTuple):
    """A broken rule: what the build needs, and what the other side has."""

    rule: str
    needs: str
    has: str


def violations(candidate: Candidate, constraints: Constraints, machine: TargetMachine) -> Iterator[Violation]:
    """Yield each broken rule in the order of a conflict's message: the project's requirements, then the machine."""
    wheel, name, build = candidate.wheel, candidate.name, "cpu" if candidate.cpu else candidate.wheel.variant
    if not constraints.admits(wheel.framework, wheel.version):
        yield Violation("version", f"{name} is not the requested version", constraints.source)
    if constraints.variant not in (None, build):
        yield Violation("variant", f"{name} is another build", f"{constraints.source} names {constraints.variant}")
    if candidate.cpu and constraints.gpu:
        yield Violation("cpu-build", f"{name} has no CUDA", "GPUs are requested")
    yield from _of_python(candidate, constraints)
    for package in PARTNERS.get(wheel.framework, ()):
        own, wanted = partner_release(wheel, package), constraints.partners.get(package)
        if own is not None and wanted is not None and not _admits_partner(constraints, package, own):
            goes_with = f"{wheel.framework} {wheel.version} goes with {package} {own}"
            yield Violation("torchvision", goes_with, f"{package}{wanted} is required")
    if constraints.images and not candidate.cpu and wheel.cuda not in constraints.images:
        lacks = "no nvidia/cuda image with this Python has it"
        yield Violation("image", f"{wheel.name} needs CUDA {wheel.cuda}", lacks)
    yield from _of_machine(candidate, machine, gpus=machine.gpus if constraints.gpu else ())


def _of_python(candidate: Candidate, constraints: Constraints) -> Iterator[Violation]:
    """Check for wheels for this Python, of the build and of all other pins, and the project's requires-python."""
    python, (low, high) = f"Python {candidate.python}", candidate.wheel.python
    required = f"the project requires Python {constraints.python_specifier}"
    has_wheels = f"{candidate.name} has wheels for Python {low} to {high}"
    if not _version(low) <= _version(candidate.python) <= _version(high):
        has = required if not constraints.admits("python", f"{high}.99") else constraints.barred.get(high)
        has = f"the base image has {python}" if constraints.python else has or "images have Python 3.8 or later"
        yield Violation("python", has_wheels, has)
    if not constraints.admits("python", f"{candidate.python}.99"):
        of_base = f"the base image has {python}"
        yield Violation("requires-python", of_base if constraints.python else has_wheels, required)
    if (reason := constraints.barred.get(candidate.python)) is not None:
        yield Violation("pins", reason, required if len(constraints.python_specifier) else has_wheels)


def _of_machine(candidate: Candidate, machine: TargetMachine, gpus: Iterable[TargetGpu]) -> Iterator[Violation]:
    """Check for code for each GPU, and for CUDA's minimum driver: with minor-version compatibility, or cuda-compat."""
    wheel, driver = candidate.wheel, machine.driver
    if candidate.cpu:
        return
    if (gpu := next((each for each in gpus if not has_code(candidate, each, machine)), None)) is not None:
        has = ", ".join(f"sm_{cc.replace('.', '')}" for cc in wheel.sm) or f"capability {wheel.jit_from} and later"
        needs, is_sm = f"{wheel.name} has code for {has}", f"{gpu.name} is sm_{gpu.cc.replace('.', '')}"
        if wheel.ptx and _version(wheel.cuda) < (first := _first_cuda(gpu)):
            needs += f" and PTX, for CUDA {wheel.cuda}"
            is_sm += f", which cuBLAS and cuDNN support since CUDA {first}"
        yield Violation("architecture", needs, is_sm)
    needed = facts.minimum_driver(wheel.cuda)
    if driver is not None and not candidate.forward_compat and _version(driver) < _version(needed):
        needs = f"{wheel.name} needs driver {needed} or later, for CUDA {wheel.cuda}"
        yield Violation("driver", needs, f"{machine.described} has driver {driver}")


def has_forward_compat(wheel: Wheel, machine: TargetMachine) -> bool:
    """Return True if cuda-compat works: on data-centre GPUs alone, and on a driver branch that NVIDIA names."""
    known = machine.driver is not None and facts.driver_branch(machine.driver) in facts.forward_branches(wheel.cuda)
    return known and bool(machine.gpus) and all(gpu.datacenter for gpu in machine.gpus)


def _admits_partner(constraints: Constraints, package: str, own: str) -> bool:
    exact = (own, "0.8.0") if own == "0.8.1" else (own,)  # both require torch 1.7.0
    releases = _KERAS_3 if own == "3" else exact if own.count(".") > 1 else [f"{own}.{patch}" for patch in range(5)]
    return any(constraints.admits(package, each) for each in releases)


def partner_release(wheel: Wheel, package: str) -> str | None:
    """Return the release of a partner for a build; None if any will do.

    torchaudio before 2.9 has torch's own minor number, 0.13 for 1.13. TensorFlow 2.6 to 2.15 each need the Keras of
    their own number, later ones Keras 3; releases before 2.16 need the estimator of their number. Sources:
    https://docs.pytorch.org/audio/stable/installation.html, "Compatibility Matrix"; install_requires in
    tensorflow/tools/pip_package/setup.py of these releases.
    """
    major, minor = Version(wheel.version).release[:2]
    if package == "torchvision":
        return wheel.torchvision
    if package == "torchaudio" and (major, minor) < (2, 9):
        return f"{major}.{minor}" if major >= 2 else f"0.{minor}"
    if package == "tensorflow-estimator" and (major, minor) < (2, _FIRST_KERAS_3):
        return f"{major}.{minor}"
    if package == "keras" and minor >= _FIRST_OWN_KERAS:
        return f"2.{minor}" if minor < _FIRST_KERAS_3 else "3"
    return None


def has_code(candidate: Candidate, gpu: TargetGpu, machine: TargetMachine) -> bool:
    """Return True for code of the GPU's major and no higher minor, or PTX that a driver as new as its CUDA compiles."""
    wheel, cc = candidate.wheel, _version(gpu.cc)
    if wheel.jit_from is not None:
        return cc >= Version(wheel.jit_from)
    if _has_machine_code(wheel, gpu):
        return True
    if not any(_version(ptx) <= cc for ptx in wheel.ptx) or _version(wheel.cuda) < _first_cuda(gpu):
        return False
    if machine.driver is None or candidate.forward_compat:
        return True
    own = facts.cuda_of_driver(machine.driver)
    return own is not None and Version(own) >= Version(wheel.cuda)


def _first_cuda(gpu: TargetGpu) -> Version:
    return next((Version(cuda) for least, cuda in FIRST_CUDA if _version(gpu.cc) >= Version(least)), Version("0"))


def _has_machine_code(wheel: Wheel, gpu: TargetGpu) -> bool:
    cc = _version(gpu.cc)
    return any(_version(sm).major == cc.major and _version(sm).minor <= cc.minor for sm in wheel.sm)


def code_for(wheel: Wheel, gpus: Iterable[TargetGpu]) -> str:
    """Return ``has code for H100 (sm_90)``, or for a GPU without machine code in the build what compiles there."""
    listed = dict.fromkeys(gpus)
    without = [gpu for gpu in listed if not _has_machine_code(wheel, gpu)]
    shown = ", ".join(f"{gpu.name} (sm_{gpu.cc.replace('.', '')})" for gpu in without or listed)
    if wheel.jit_from is not None:
        return f"compiles for {shown} as it runs"
    if not without:
        return f"has code for {shown}"
    ptx = max(wheel.ptx, key=Version, default="0").replace(".", "")
    kept = "the driver compiles it at the first start, for minutes, and caches the result"
    return f"has only PTX (compute_{ptx}) for {shown}: {kept}"


def image_problems(image: str, machine: TargetMachine) -> Iterator[Violation]:
    """Yield the reasons why the framework of a framework image does not run on the machine."""
    found = facts.framework_image(image)
    if found is not None and found.wheel is not None:
        yield from _of_machine(Candidate(found.wheel, found.wheel.python[1]), machine, machine.gpus)


@lru_cache(maxsize=256)
def _version(text: str) -> Version:
    return Version(text)
