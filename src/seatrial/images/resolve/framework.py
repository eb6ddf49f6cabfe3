"""Resolve frameworks: choose the release and build of torch, TensorFlow or JAX for the requirements, with a reason."""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field, replace

from packaging.requirements import Requirement
from packaging.specifiers import SpecifierSet
from packaging.version import Version

from seatrial.errors import ConfigError, StackError
from seatrial.images.requirements.pip_format import Needs, Requirements, canonical_name, is_for, parsed
from seatrial.images.resolve.edits import place_of, written
from seatrial.job.plan import Choice
from seatrial.job.script import BUILT_ON
from seatrial.stack.facts import TORCH_VERSION, Framework, released, table, wheels
from seatrial.stack.machine import TargetMachine
from seatrial.stack.resolve import PYTHONS, Conflict, Stack, resolve, resolve_once
from seatrial.stack.rules import PARTNERS, Constraints, partner_release
from seatrial.system.text import regex

FRAMEWORKS: tuple[Framework, ...] = ("torch", "tensorflow", "jax")

#: Package → the framework it is a build of.
PACKAGES: dict[str, Framework] = table("import_names")["frameworks"]

#: ``torch==1.12.0a0+2c916ef`` is a build of NVIDIA's images; an index has 1.12.0 alone.
_FROM_SOURCE = regex(r"(torch==\d+\.\d+\.\d+)a0\b")
#: Packages whose releases differ from the framework's own.
_OTHER_RELEASES = {"tf-nightly", "tf-nightly-cpu", "intel-tensorflow"}

#: Beginnings of JAX extras that bring packages for one kind of accelerator. Source: jax/setup.py, extras_require.
_ACCELERATORS = ("cuda", "tpu", "rocm")

#: Rules that the machine's GPUs break, not the project's files.
_GPU_RULES = {"architecture", "driver", "forward-compat", "cpu-build"}


@dataclass(frozen=True)
class Resolved:
    """Hold the requirements with every framework at one release and build.

    Attributes:
        index: package index to look at as well, or None. needed: the requirements name a build that only it has;
            otherwise it is left out where the base image's pip names its own sources.
        stack: of the first framework; without one, just a Python.
        pages: package → address of its wheels for this build, if the index has none.
    """

    requirements: Requirements
    stack: Stack
    index: str | None = None
    index_needed: bool = False
    choices: tuple[Choice, ...] = ()
    warnings: tuple[str, ...] = ()
    pages: Mapping[str, str] = field(default_factory=dict)


def resolve_frameworks(
    needs: Needs,
    imports: frozenset[str],
    *,
    machine: TargetMachine | None,
    own_sources: bool,
    python: str | None = None,
    mirror: str | None = None,
    barred: Mapping[str, str] | None = None,
    images: Collection[str] = (),
) -> Resolved:
    """Add what is imported and not required, fix what is left open, choose the build for the machine.

    Args:
        machine: None: the run has no GPU, so a CUDA build's gigabytes are of no use.
        own_sources: the user names an index or find-links.
        python: the base image's, where the user chose that.
        mirror: stands in for https://download.pytorch.org/whl.
        barred: Python → which pin has no wheel for it. images: see Constraints.

    Raises:
        StackError: no build does on these GPUs or this driver.
        ConfigError: the project's own requirements exclude each other.
    """
    found, own_sources = needs.requirements, own_sources or needs.requirements.names_an_index
    own = [python] if python else PYTHONS  # a list may have one release of a framework for each, and for each system
    found = replace(found, lines=tuple(line for line in found.lines if any(is_for(line, each) for each in own)))
    resolved = Resolved(found, Stack(python=python or ""))
    alone = {BUILT_ON.get(name) for name in imports} if imports.isdisjoint(FRAMEWORKS) else set()
    needed = [each for each in FRAMEWORKS if _place(found, each) is not None or each in imports | alone]
    computes = _fed_by_tensorflow(found, needed, imports)
    feeder: Framework | None = "tensorflow" if computes or "tensorflow" in {*needed} & {*needs.unused} else None
    on_gpu = [each for each in needed if each != feeder and each not in needs.unused]
    for framework in (*(each for each in needed if each != feeder), *([feeder] if feeder else [])):
        why = f"the list names the CPU build, and the code uses {computes}" if framework == feeder else None
        why = needs.unused.get(framework, why)
        fixed = python or resolved.stack.python or None
        cpu = framework == "jax" and len(needed) > 1 and any("cpu" in each.extras for each in found.of("jax"))
        on = None if why or cpu else machine  # jax[cpu] next to another framework stays on the CPU
        cuda = _cuda_of_tensorflow(needs) if "tensorflow" in on_gpu and framework in on_gpu[:-1] else ""
        resolved = _resolve_one(resolved, needs, framework, on, own_sources, fixed, barred or {}, cuda, images)
        known = [c.changed(reason=why or c.reason) if c.what == f"{framework} build" else c for c in resolved.choices]
        resolved = replace(resolved, choices=tuple(known))
    if resolved.stack.wheel is None and not resolved.stack.python:
        constraints = Constraints(
            None,
            python=python,
            python_specifier=needs.python,
            barred=barred or {},
            as_of=needs.as_of,
            named=_python(needs),
            source=needs.source,
        )
        stack = _or_raise(constraints, machine, needs)
        extra_choices = stack.choices if stack.python != PYTHONS[0] else ()
        resolved = replace(resolved, stack=stack, choices=(*resolved.choices, *extra_choices))
    if mirror and resolved.index:
        build = resolved.index.rpartition("/")[2]
        resolved = replace(resolved, index=f"{mirror.rstrip('/')}/{build}")
    return resolved


def _cuda_of_tensorflow(needs: Needs) -> str:
    """Return the CUDA of TensorFlow from 2.20 on; older ones pin each library to other releases than torch."""
    newest = wheels("tensorflow")[0]
    admitted = all(each.specifier.contains(newest.version) for each in needs.requirements.of("tensorflow"))
    return newest.cuda if admitted and released("tensorflow", newest.version) <= (needs.as_of or "9") else ""


def _fed_by_tensorflow(found: Requirements, needed: list[Framework], imports: frozenset[str]) -> Framework | None:
    """Return the framework that tf.data of TensorFlow's CPU build feeds; None if TensorFlow alone is imported."""
    place = _place(found, "tensorflow")
    if place is None or canonical_name(found.lines[place]) != "tensorflow-cpu":
        return None
    others = [each for each in needed if each != "tensorflow"]
    built_on = {BUILT_ON.get(name) for name in imports - {"transformers"}}  # transformers runs on TensorFlow as well
    imported = [each for each in others if each in imports or each in built_on]
    return next(iter(imported if "tensorflow" in imports else imported or others), None)


def _resolve_one(
    resolved: Resolved,
    needs: Needs,
    framework: Framework,
    machine: TargetMachine | None,
    own_sources: bool,
    python: str | None,
    barred: Mapping[str, str],
    cuda: str,
    images: Collection[str],
) -> Resolved:
    found, first = resolved.requirements, resolved.stack.wheel
    place = _place(found, framework)
    if place is None:
        line, reason = _name_alone(framework, machine), "imported"
        found, place = found.plus(line), len(found.lines)
    else:
        line, reason = found.lines[place], "imported" if needs.source == "the imports" else f"in {needs.source}"
        if line == framework and (needs.source == "the imports" or needs.source.startswith("the recipe ")):
            line = _name_alone(framework, machine)
            found = found.replaced(place, line)
    cuda = cuda or (first.cuda if first and machine else "")
    constraints = _constraints(framework, line, found, needs, machine, python)
    constraints = replace(constraints, barred=barred, cuda=cuda, images=images)
    requirement = parsed(line)
    other = canonical_name(line) in _OTHER_RELEASES
    known = any(constraints.specifier.contains(each.version) for each in wheels(framework, pinned=constraints.pinned))
    if requirement is None or requirement.url or other or not known:
        its_index = own_sources and framework == "jax"  # Google's page of JAX has older builds
        if machine is not None and requirement is not None and not (requirement.url or other or its_index):
            _refuse_older(constraints, machine, needs)
            if " -" not in line:  # releases after those of the tables have the extra as well
                line = re.sub(r"^tensorflow(?= *[=~>]=? *(2\.1[4-9]|2\.[2-9]\d|[3-9]))", "tensorflow[and-cuda]", line)
                found = found.replaced(place, line)
        return _left_to_pip(resolved, found, line, framework)
    stack = _or_raise(constraints, machine, needs)
    assert stack.requirement is not None
    assert stack.wheel is not None
    index = stack.index if not own_sources else None
    if " -" in line or not is_for(line, stack.python):  # another version would break a hash or an option
        chosen = line
    elif own_sources and machine is not None and constraints.variant is not None:
        chosen = line  # a build that the project's own index has
    elif own_sources or framework != "torch":
        chosen = _keeping_name(stack.requirement.partition("+")[0], requirement, gpu=machine is not None)
    else:
        chosen = stack.requirement
    found = found.replaced(place, chosen)
    found = _with_partners(_with_numpy(found, stack), stack, own_sources=own_sources)
    choices = [each for each in stack.choices if each.what != "python" or resolved.stack.wheel is None]
    why = choices[0].reason if len(constraints.specifier) else f"{reason}; {choices[0].reason}"
    if constraints.specifier != public(requirement)[0]:
        why = f"{reason}; the best match within the bounds of the code and of packages: {constraints.specifier}"
    choices[0] = choices[0].changed(value=chosen, reason=reason if chosen == line else why)
    if own_sources and stack.index:
        choices[1] = Choice(what=choices[1].what, value="as your index provides it", reason="you set the package index")
    elif index:
        choices[1] = choices[1].changed(value=f"{choices[1].value}, from {index}")
    warnings = [*resolved.warnings, *stack.warnings]
    both = [each for each in (first, stack.wheel) if each and machine and not (stack.cpu or resolved.stack.cpu)]
    if len({each.cuda.partition(".")[0] for each in both if not each.system_cuda}) > 1:
        names = " and ".join(each.name for each in both)
        warnings.append(f"{names} bring cuDNN for two CUDA versions, in one folder: one of them may not find its own")
    of_first = resolved.stack if first is not None else stack
    needed = resolved.index_needed or (index is not None and "+" in chosen)
    every = (*resolved.choices, *choices)
    return Resolved(found, of_first, resolved.index or index, needed, every, tuple(warnings))


def _left_to_pip(resolved: Resolved, found: Requirements, line: str, framework: Framework) -> Resolved:
    """Leave a URL, or a release that the tables do not know, to pip, with a warning that nothing was checked."""
    choice = Choice(what=framework, value=line, reason="not in seatrial's tables: pip decides; not checked")
    warning = f"{line} is not in seatrial's tables: whether it supports the GPU and driver is checked after the build"
    choices, warnings = (*resolved.choices, choice), (*resolved.warnings, warning)
    return replace(resolved, requirements=found, choices=choices, warnings=warnings)


def _refuse_older(constraints: Constraints, machine: TargetMachine, needs: Needs) -> None:
    """Raise StackError for a limit below the tables' releases: their builds are for old Pythons, or elsewhere."""
    assert constraints.framework is not None
    first = min((each.version for each in wheels(constraints.framework, pinned=True)), key=Version)
    limits = [each for each in constraints.specifier if each.operator in ("==", "<", "<=", "~=")]
    nearest = resolve_once(Constraints(constraints.framework, as_of="2000-01-01"), machine)  # the oldest that fits
    if nearest and nearest.requirement and any(Version(each.version.rstrip(".*")) <= Version(first) for each in limits):
        lines, cause = [nearest.requirement.partition("+")[0]], f"what works: {nearest.name} (the next version)"
        known = f"{constraints.framework} {first}, the first whose builds for GPUs seatrial knows"
        message = f"{constraints.source} is older than {known}"
        raise StackError(message, cause=cause, run=written(lines, needs), edits=lambda: lines)


def _constraints(
    framework: Framework,
    line: str,
    found: Requirements,
    needs: Needs,
    machine: TargetMachine | None,
    python: str | None,
) -> Constraints:
    requirement = parsed(_FROM_SOURCE.sub(r"\1", line) if machine else line)
    specifier, variant = public(requirement)
    for constraint in found.constraints:
        if PACKAGES.get(canonical_name(constraint) or "") == framework:
            more, build = public(parsed(constraint))
            specifier, variant = specifier & more, variant or build
    if requirement is not None and framework == "jax" and machine is not None:
        named = (each for each in _extras(requirement) if each != "cuda")  # any CUDA, until 0.4
        variant = next((each for each in named if each.startswith(_ACCELERATORS)), variant)
    if framework == "torch" and machine is not None and "--hash" in line and variant is None:
        pinned = (each for each in wheels("torch", pinned=True) if each.default and specifier.contains(each.version))
        variant = next((each.variant for each in pinned), None)  # hashes in lists are of PyPI's build
    if machine is not None and canonical_name(line) == "tensorflow-cpu":
        variant = "cpu"  # on GPUs it is a conflict; without any, either package is its CPU build
    release, _ = needs.named.get(framework, ("", ""))
    wanted = {each: ",".join(str(public(one)[0]) for one in found.of(each)) for each in PARTNERS.get(framework, ())}
    return Constraints(
        framework,
        specifier,
        variant=variant,
        gpu=machine is not None,
        python=python,
        python_specifier=needs.python,
        partners={each: SpecifierSet(text) for each, text in wanted.items() if text.strip(",")},
        prefer=TORCH_VERSION if framework == "torch" else None,
        as_of=(released(framework, release) if release and not len(specifier) else "") or needs.as_of,
        named=_python(needs),
        source=f"{line} ({needs.source})",
    )


def _python(needs: Needs) -> str:
    """Return the Python that the project's pages name, as 3.8, or the oldest if they name an older; "" for none."""
    named = ".".join(needs.named.get("python", ("", ""))[0].split(".")[:2])
    return max(named, PYTHONS[-1], key=Version) if named else ""


def public(requirement: Requirement | None) -> tuple[SpecifierSet, str | None]:
    """Split ``==2.13.0+cu126`` into (``==2.13.0``, ``cu126``): tables hold releases, the local version is the build."""
    if requirement is None:
        return SpecifierSet(), None
    build, parts = None, []
    for each in requirement.specifier:
        public, _, local = each.version.partition("+")
        build = local or build
        parts.append(f"{each.operator}{public}")
    return SpecifierSet(",".join(parts)), build


def _or_raise(constraints: Constraints, machine: TargetMachine | None, needs: Needs) -> Stack:
    found = resolve(constraints, machine or TargetMachine())
    if isinstance(found, Stack):
        return found
    names = ((way, each.name if "Python" in way else each.name.partition(" on ")[0]) for way, each in found.nearest)
    works = "; ".join(f"{name} ({way})" for way, name in names)  # other packages decide about Python as well
    kind = StackError if found.broken[0].rule in _GPU_RULES else ConfigError
    cause = f"what works: {works}" if works else None
    run, lines = _way_out(found, constraints, needs)
    own = f"{constraints.source} is a build from source, as NVIDIA's images have; "
    own *= bool(_FROM_SOURCE.match(constraints.source))
    raise kind(f"{own}{found.sentence}", cause=cause, run=run or written(lines, needs), edits=lambda: lines)


def _way_out(found: Conflict, constraints: Constraints, needs: Needs) -> tuple[str, list[str]]:
    """Return the nearest way out of the conflict, as a command or as lines of a list."""
    bound = constraints.python is None and place_of(Requirement("python"), needs) is not None
    if found.broken[0].rule == "torchvision":
        package, version = found.broken[0].needs.rpartition(" goes with ")[2].split()
        return "", [f"{package}=={version}" if version.count(".") > 1 else f"{package}=={version}.*"]
    if found.broken[0].rule == "cpu-build" and constraints.source.startswith("tensorflow-cpu ("):  # of any release
        return "", ["tensorflow"]
    if found.broken[0].rule == "cpu-build" and needs.on_cpu:  # a CUDA build is of no use to the code
        return "seatrial plan … --gpus none", []
    for way, stack in found.nearest:
        if way.startswith(("the next", "another")) and stack.requirement and "Python" not in way:
            return "", [stack.requirement if "build" in way else stack.requirement.partition("+")[0]]
        if way == "another Python" and bound:  # by the project, in a file
            return "", [f"python=={stack.python}.*"]
        if way == "another Python" and constraints.python and found.broken[0].rule != "pins":
            return f'in seatrial.toml: [image] base = "python:{stack.python}-slim-bookworm"', []
    if found.broken[0].rule in ("pins", "python", "requires-python") and found.nearest:
        source = constraints.source.rpartition("(")[2].rstrip(")").replace("the imports", "requirements.txt")
        return f"require Python {found.nearest[0][1].python} in {source}", []
    return "seatrial plan … --gpus none", []


def framework_place(found: Requirements) -> int | None:
    """Return where the line of the first framework is: torch before TensorFlow before JAX, as they are resolved."""
    places = (at for each in FRAMEWORKS if (at := _place(found, each)) is not None)
    return next((at for at in places if (line := parsed(found.lines[at])) and not line.url), None)


def _place(found: Requirements, framework: Framework) -> int | None:
    places = [at for at, line in enumerate(found.lines) if PACKAGES.get(canonical_name(line) or "") == framework]
    return next((at for at in places if is_for(found.lines[at], PYTHONS[0])), next(iter(places), None))


def _name_alone(framework: Framework, machine: TargetMachine | None) -> str:
    """Return the framework's package; TensorFlow's CPU build is one of its own, a third of the size."""
    return "tensorflow-cpu" if framework == "tensorflow" and machine is None else framework


def _extras(written: Requirement) -> list[str]:
    """Return the extras, sorted; ``cuda12_pip`` is what older releases of JAX called ``cuda12``."""
    return sorted(each.removesuffix("_pip") for each in written.extras)


def _keeping_name(chosen: str, written: Requirement, *, gpu: bool) -> str:
    """Return the resolved release under the package's own name and with its own extras; CUDA's only for a GPU."""
    resolved = Requirement(chosen)
    kept = (each for each in _extras(written) if each != "cuda" and (gpu or "cuda" not in each))
    extras = sorted({*kept, *resolved.extras})
    own = canonical_name(written.name) or ""
    name = own if own in PACKAGES else resolved.name
    if name == "tensorflow-cpu":
        extras = []
    return name + (f"[{','.join(extras)}]" if extras else "") + str(resolved.specifier)


def _with_numpy(found: Requirements, stack: Stack) -> Requirements:
    """Add a NumPy that torch can use.

    Without any, `import torch` prints "Failed to initialize NumPy" (seen with 2.13.0+cpu). Before 2.3, torch is built
    for NumPy 1 and prints the same with NumPy 2: https://github.com/pytorch/pytorch/issues/107302.
    """
    wheel = stack.wheel
    if wheel is None or wheel.framework != "torch" or Version(wheel.version) < Version("2"):
        return found
    old = Version(wheel.version) < Version("2.3")
    listed = [line for line in found.lines if canonical_name(line) == "numpy"]
    if not listed:
        return found.plus("numpy<2" if old else "numpy")
    own = found.of("numpy", constraints=False)
    is_open = "--hash" not in "".join(listed) and all(not each.url and each.specifier.contains("2.0.0") for each in own)
    return found.plus(constraints=("numpy<2",)) if old and is_open else found


def _with_partners(found: Requirements, stack: Stack, *, own_sources: bool) -> Requirements:
    """Pin torch's partners without a version to torch's release, as not all of their releases require a torch.

    A partner's pin loses another build than torch's: the index of torch's build does not have it.
    """
    if stack.wheel is None or stack.wheel.framework != "torch":
        return found
    if not (own_sources or found.hashed):
        other = re.compile(rf"((?:{'|'.join(PARTNERS['torch'])}) *== *[\d.]+)\+(?!{stack.build}\b)\w+")
        lines, pins = (tuple(other.sub(r"\1", x) for x in each) for each in (found.lines, found.constraints))
        found = replace(found, lines=lines, constraints=pins)
    releases = {each: partner_release(stack.wheel, each) for each in PARTNERS["torch"]}
    open_ones = {each for each in releases if any(not (own.specifier or own.url) for own in found.of(each))}
    exact = (f"{each}=={release}.*" for each, release in releases.items() if release and each in open_ones)
    return found.plus(constraints=exact)
