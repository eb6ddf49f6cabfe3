"""Plan on a framework image: the image's packages stay, and the project's lines for them are dropped."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from packaging.requirements import Requirement
from packaging.specifiers import SpecifierSet

from seatrial.errors import StackError
from seatrial.images.base import DEFAULT_BASE
from seatrial.images.requirements.pip_format import Needs, canonical_name, parsed
from seatrial.images.requirements.removed_apis import imported, is_below, keras_of_tensorflow_1
from seatrial.images.resolve.framework import PACKAGES
from seatrial.job.plan import Choice
from seatrial.job.script import BUILT_ON, ScriptFacts
from seatrial.stack.facts import TENSORFLOW_1, FrameworkImage, framework_image, minimum_driver, table, wheels
from seatrial.stack.machine import TargetMachine
from seatrial.stack.rules import PARTNERS, code_for, image_problems

#: The last release of TensorFlow 1, and the first Keras that needs TensorFlow 2. Source: Keras' release notes, 2.4.0.
_LAST, _FIRST_KERAS = "1.15.5", "2.4"

_PORT = "port it to TensorFlow 2, and begin with `import tensorflow.compat.v1 as tf`"


def onto_framework_image(base: str, script: ScriptFacts, needs: Needs, machine: TargetMachine | None) -> Needs:
    """Adjust the needs to a framework image, if there is one: the user's base, or NVIDIA's last for TensorFlow 1.

    Raises StackError: the image for TensorFlow 1 has no code for the machine's GPUs, or its driver is too old.
    """
    if base != DEFAULT_BASE:
        image, why = framework_image(base), "image.base names it"
    else:
        evidence = _tensorflow_1(script, needs, machine)
        image, why = framework_image(TENSORFLOW_1) if evidence else None, f"{evidence} is TensorFlow 1"
        for broken in image_problems(TENSORFLOW_1, machine) if evidence and machine else ():
            message = f"{evidence} is TensorFlow 1; in NVIDIA's last image with it, {broken.needs}, but {broken.has}"
            raise StackError(message, run="seatrial doctor" if broken.rule == "driver" else _PORT)
    return needs if image is None else _above(needs, image, why, machine)


def _tensorflow_1(script: ScriptFacts, needs: Needs, machine: TargetMachine | None) -> str | None:
    """Return the line or place that needs TensorFlow 1, or None; a list of TensorFlow 2 alone overrides the code."""
    found = needs.requirements
    names = {line: canonical_name(line) or "" for line in (*found.lines, *found.constraints)}
    listed = [line for line, name in names.items() if PACKAGES.get(name) == "tensorflow"]
    wanted = {line: each.specifier for line in listed if (each := parsed(line)) is not None}
    for line, specifier in wanted.items():
        known = any(specifier.contains(wheel.version) for wheel in wheels("tensorflow"))
        known = known or "==2" in str(specifier)  # 2.0.0b1 is below 2
        if specifier and not known and (is_below(specifier, "2") or specifier.contains(_LAST)):
            return f"{line} ({needs.source})"
    if not all(specifier.contains(_LAST) for specifier in wanted.values()):
        return None
    in_code = None
    if listed or "tensorflow" in needs.imports:  # else tf is another module, or TensorFlow an option of the code
        in_code = script.tensorflow_1 or (script.tensorflow_1_perhaps if script.framework == "tensorflow" else None)
    gone = (name for name, row in table("import_names")["removed"].items() if row["since"] == "2.0")
    if old := next((f"{where} {name}" for name in gone if (where := imported(name, script))), None):
        return old
    keras = (each for each in found.of("keras") if is_below(each.specifier, _FIRST_KERAS))
    old_keras = next((f"what {each} ({needs.source}) runs on" for each in keras), None)
    return in_code or old_keras or keras_of_tensorflow_1(script, machine)


def _above(needs: Needs, image: FrameworkImage, why: str, machine: TargetMachine | None) -> Needs:
    """Drop lines for the image's packages, restrict the others to releases that run on it, and note each change."""
    found, notes, lines = needs.requirements, [why], []
    gpus = ", ".join(dict.fromkeys(gpu.name for gpu in machine.gpus)) if machine else ""
    only = f", the only TensorFlow 1 with code for {gpus or 'current GPUs'}" if image.image == TENSORFLOW_1 else ""
    for line in found.lines:
        name, requirement = canonical_name(line) or "", parsed(line)
        has = _releases(name, image)
        if requirement is None or has is None or (requirement.url and name in image.bounds):
            lines.append(line)  # with a URL the project's fork of the framework
            continue
        fits = not (requirement.specifier or requirement.url) or _overlap(requirement, has)
        if not fits:
            if name in image.bounds and "==" in str(requirement.specifier):
                has = has.replace(">=", "==")  # the pin's next release that runs, not the newest
            reason = only if PACKAGES.get(name) == image.framework else ""
            notes.append(f"{line} → {has.removeprefix('==') or 'that'} of {image.maker}{reason}")
        if name in image.bounds:
            lines.append(line if fits else f"{name}{has}")
        elif name in PARTNERS.get(image.framework, ()):
            lines.append(name)
    constraints = [line for line in found.constraints if _releases(canonical_name(line) or "", image) is None]
    constraints += [f"{name}{bound}" for name, bound in image.bounds.items() if f"{name} @" not in " ".join(lines)]
    if image.python and not found.python.contains(f"{image.python}.99"):
        notes.append(f"the project requires Python {found.python}, and the image's Python stays")
    requirements = replace(found, lines=tuple(lines), constraints=tuple(constraints), python=SpecifierSet())
    imports = tuple(each for each in needs.imports if image.framework not in (each, BUILT_ON.get(each)))
    choices = tuple(_choices(image, "; ".join(notes), machine))
    return replace(needs, requirements=requirements, imports=imports, image=image, image_choices=choices)


def _choices(image: FrameworkImage, reason: str, machine: TargetMachine | None) -> Iterator[Choice]:
    kept = f"{image.maker} keeps its Python, its {image.framework} and what that needs"
    yield Choice(what="base image", value=image.image, reason=kept)
    if (wheel := image.wheel) is not None:
        code = f"{code_for(wheel, machine.gpus)}; " if machine is not None and machine.gpus else ""
        needs = f"{code}CUDA {wheel.cuda} needs driver {minimum_driver(wheel.cuda)} or later"
        yield Choice(what=wheel.framework, value=f"{wheel.version}, of {image.maker}", reason=reason)
        yield Choice(what=f"{wheel.framework} build", value=f"CUDA {wheel.cuda}", reason=needs)
    if image.python is not None:
        yield Choice(what="python", value=image.python, reason="the base image's")


def _releases(name: str, image: FrameworkImage) -> str | None:
    """Return the releases of a package that run on the image, "" for its own; None if the project decides."""
    if PACKAGES.get(name) == image.framework:
        return f"=={image.wheel.version}" if image.wheel else ""
    return {**dict.fromkeys(PARTNERS.get(image.framework, ()), ""), **image.bounds, **image.packages}.get(name)


def _overlap(requirement: Requirement, has: str) -> bool:
    """Return True if a release that either range names is in both."""
    if requirement.url or not has:
        return False
    theirs = SpecifierSet(has)
    named = {each.version.removesuffix(".*") for each in (*theirs, *requirement.specifier)}
    return any(theirs.contains(each) and requirement.specifier.contains(each) for each in named)


def kept_packages(image: FrameworkImage) -> tuple[str, ...]:
    """Return the names of the packages that no layer above the image may replace."""
    named = image.packages or (image.framework, *PARTNERS.get(image.framework, ()), "numpy", "jaxlib")
    return tuple(sorted({*named, *(name for name, of in PACKAGES.items() if of == image.framework)}))
