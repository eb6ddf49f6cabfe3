"""Check builds against a project's constraints, from its requirements, imports and configuration, and a machine."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import cached_property, lru_cache, partial

from packaging.specifiers import SpecifierSet
from packaging.version import Version

from seatrial.stack.facts import (
    Framework,
    Wheel,
    cuda_of_driver,
    driver_branch,
    forward_branches,
    framework_image,
    minimum_driver,
)
from seatrial.stack.machine import TargetGpu, TargetMachine


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
        as_of: day of the code, as 2021-09-03, whose releases come before ``prefer``; "" for today.
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
    as_of: str = ""
    source: str = "the project"

    @property
    def pinned(self) -> bool:
        """Return whether the project pins one release."""
        return any(each.operator == "==" for each in self.specifier)

    @cached_property
    def admits(self) -> Callable[[str, str], bool]:
        """Return whether a release of the framework, of a partner or of ``python`` is admitted; each is read once."""
        asked = {**self.partners, str(self.framework): self.specifier, "python": self.python_specifier}
        return lru_cache(maxsize=None)(lambda package, version: asked[package].contains(version))


#: Framework → packages that have a release of their own for each of its releases.
PARTNERS: dict[Framework, tuple[str, ...]] = {
    "torch": ("torchvision", "torchaudio"),
    "tensorflow": ("keras", "tensorflow-estimator"),
}

#: Minor releases of TensorFlow 2 from which on Keras is a package of its own, and Keras 3.
_FIRST_OWN_KERAS, _FIRST_KERAS_3 = 6, 16
#: Releases of Keras 3, and those that may come.
_KERAS_3 = tuple(f"3.{minor}.{patch}" for minor in range(40) for patch in range(5))


@dataclass(frozen=True)
class Candidate:
    """A build, the Python it is to run on, and whether NVIDIA's cuda-compat libraries stand in for a newer driver."""

    wheel: Wheel
    python: str
    forward_compat: bool = False
    cpu: bool = False

    @property
    def name(self) -> str:
        return f"{self.wheel.framework} {self.wheel.version}+cpu" if self.cpu else self.wheel.name


@dataclass(frozen=True)
class Violation:
    """A broken rule: what the build needs, and what the other side has."""

    rule: str
    needs: str
    has: str


Rule = Callable[[Candidate, Constraints, TargetMachine], Violation | None]


def version_fits(candidate: Candidate, constraints: Constraints, machine: TargetMachine) -> Violation | None:
    """Check that the project's version specifier admits the build."""
    if constraints.admits(candidate.wheel.framework, candidate.wheel.version):
        return None
    return Violation("version", f"{candidate.name} is not the requested version", constraints.source)


def variant_fits(candidate: Candidate, constraints: Constraints, machine: TargetMachine) -> Violation | None:
    """Check that the build is the named one, if one is named."""
    build = "cpu" if candidate.cpu else candidate.wheel.variant
    if constraints.variant in (None, build):
        return None
    return Violation(
        "variant", f"{candidate.name} is another build", f"{constraints.source} names {constraints.variant}"
    )


def gpu_build(candidate: Candidate, constraints: Constraints, machine: TargetMachine) -> Violation | None:
    """Check that a GPU run has a build with CUDA; a CPU run needs none."""
    if candidate.cpu and constraints.gpu:
        return Violation("cpu-build", f"{candidate.name} has no CUDA", "GPUs are requested")
    return None


def python_in_range(candidate: Candidate, constraints: Constraints, machine: TargetMachine) -> Violation | None:
    """Check that the build has a wheel for this Python."""
    low, high = map(_version, candidate.wheel.python)
    if low <= _version(candidate.python) <= high:
        return None
    return Violation(
        "python",
        f"{candidate.name} has wheels for Python {low} to {high}",
        f"the base image has Python {candidate.python}" if constraints.python else f"Python {candidate.python}",
    )


def python_as_required(candidate: Candidate, constraints: Constraints, machine: TargetMachine) -> Violation | None:
    """Check Python against the base image's, and against the project's requires-python."""
    if constraints.python and candidate.python != constraints.python:
        return Violation("base-python", f"Python {candidate.python}", f"the base image has Python {constraints.python}")
    if not constraints.admits("python", f"{candidate.python}.99"):
        return Violation(
            "requires-python",
            f"Python {candidate.python}",
            f"the project requires Python {constraints.python_specifier}",
        )
    return None


def pins_have_wheels(candidate: Candidate, constraints: Constraints, machine: TargetMachine) -> Violation | None:
    """Check that all other pins have wheels for this Python."""
    if (reason := constraints.barred.get(candidate.python)) is None:
        return None
    low, high = candidate.wheel.python
    has = f"{candidate.name} has wheels for Python {low} to {high}"
    required = f"the project requires Python {constraints.python_specifier}"
    return Violation("pins", reason, required if len(constraints.python_specifier) else has)


def driver_new_enough(candidate: Candidate, constraints: Constraints, machine: TargetMachine) -> Violation | None:
    """Check for CUDA's minimum driver, with minor-version compatibility, unless cuda-compat stands in."""
    if candidate.cpu or machine.driver is None or candidate.forward_compat:
        return None
    needed = minimum_driver(candidate.wheel.cuda)
    if Version(machine.driver) >= Version(needed):
        return None
    return Violation(
        "driver",
        f"{candidate.name} needs driver {needed} or later, for CUDA {candidate.wheel.cuda}",
        f"{machine.described} has driver {machine.driver}",
    )


def forward_compat_allowed(candidate: Candidate, constraints: Constraints, machine: TargetMachine) -> Violation | None:
    """Check that cuda-compat is on data-centre GPUs, and on a driver branch that NVIDIA names."""
    if not candidate.forward_compat:
        return None
    if candidate.cpu or machine.driver is None or not machine.gpus:
        return Violation("forward-compat", "cuda-compat needs a known driver", "the driver is unknown")
    others = [gpu.name for gpu in machine.gpus if not gpu.datacenter]
    if others:
        return Violation(
            "forward-compat", "forward compatibility works on data-centre GPUs only", f"{others[0]} is none"
        )
    branches = forward_branches(candidate.wheel.cuda)
    if driver_branch(machine.driver) not in branches:
        listed = ", ".join(map(str, branches)) or "no driver"
        return Violation(
            "forward-compat",
            f"cuda-compat for CUDA {candidate.wheel.cuda} supports the branches {listed}",
            f"{machine.described} has driver {machine.driver}",
        )
    return None


def code_for_every_gpu(candidate: Candidate, constraints: Constraints, machine: TargetMachine) -> Violation | None:
    """Check for code of each GPU's major and no higher minor, or PTX that a driver as new as its CUDA compiles."""
    if candidate.cpu or not constraints.gpu:
        return None
    for gpu in machine.gpus:
        if not _has_code(candidate, gpu, machine):
            has = ", ".join(f"sm_{cc.replace('.', '')}" for cc in candidate.wheel.sm)
            has = has or f"capability {candidate.wheel.jit_from} and later"
            is_sm = f"{gpu.name} is sm_{gpu.cc.replace('.', '')}"
            return Violation("architecture", f"{candidate.name} has code for {has}", is_sm)
    return None


def partner_fits(
    package: str, candidate: Candidate, constraints: Constraints, machine: TargetMachine
) -> Violation | None:
    """Check that a package that is built for one release of the framework has one that the project admits."""
    wheel, wanted = candidate.wheel, constraints.partners.get(package)
    own = partner_release(wheel, package) if package in PARTNERS.get(wheel.framework, ()) else None
    if wanted is None or own is None:
        return None
    releases = _KERAS_3 if own == "3" else (own,) if own.count(".") > 1 else [f"{own}.{patch}" for patch in range(5)]
    if any(constraints.admits(package, each) for each in releases):
        return None
    name = f"{wheel.framework} {wheel.version}"
    return Violation("torchvision", f"{name} goes with {package} {own}", f"{package}{wanted} is required")


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


#: Every rule, in the order of a conflict's message: the project's requirements, then the machine.
RULES: tuple[Rule, ...] = (
    version_fits, variant_fits, gpu_build, python_in_range, python_as_required, pins_have_wheels,
    *(partial(partner_fits, package) for packages in PARTNERS.values() for package in packages),
    code_for_every_gpu, driver_new_enough, forward_compat_allowed,
)  # fmt: skip


def violations(candidate: Candidate, constraints: Constraints, machine: TargetMachine) -> Iterator[Violation]:
    """Yield a violation for every rule that the candidate breaks."""
    for rule in RULES:
        if (broken := rule(candidate, constraints, machine)) is not None:
            yield broken


#: Compute capability → the first CUDA whose cuBLAS and cuDNN run on it: only the framework has PTX. Sources: CUDA's
#: release notes; cuDNN's support matrix. On later GPUs the run's check decides (resolve._stack warns).
_FIRST_CUDA = (("10.0", "0"), ("8.9", "11.8"), ("8.6", "11.1"))


def _has_code(candidate: Candidate, gpu: TargetGpu, machine: TargetMachine) -> bool:
    wheel, cc = candidate.wheel, _version(gpu.cc)
    if wheel.jit_from is not None:
        return cc >= Version(wheel.jit_from)
    if any(_version(sm).major == cc.major and _version(sm).minor <= cc.minor for sm in wheel.sm):
        return True
    first = next((cuda for least, cuda in _FIRST_CUDA if cc >= Version(least)), "0")
    if not any(_version(ptx) <= cc for ptx in wheel.ptx) or _version(wheel.cuda) < Version(first):
        return False
    if machine.driver is None or candidate.forward_compat:
        return True
    own = cuda_of_driver(machine.driver)
    return own is not None and Version(own) >= Version(wheel.cuda)


def image_problems(image: str, machine: TargetMachine) -> Iterator[Violation]:
    """Yield the reasons why the framework of a framework image does not run on the machine."""
    found = framework_image(image)
    if found is not None and found.wheel is not None:
        candidate, constraints = Candidate(found.wheel, found.wheel.python[1]), Constraints(found.framework)
        broken = (rule(candidate, constraints, machine) for rule in (code_for_every_gpu, driver_new_enough))
        yield from (violation for violation in broken if violation is not None)


@lru_cache(maxsize=256)
def _version(text: str) -> Version:
    return Version(text)
