"""Find code that the chosen versions cannot run, so that it is known before the build."""

from __future__ import annotations

import re
from collections.abc import Iterator
from functools import partial
from typing import NamedTuple

from packaging.specifiers import SpecifierSet
from packaging.version import InvalidVersion, Version

from seatrial.errors import ConfigError, fallback
from seatrial.images.requirements.pip_format import Needs, Requirements, canonical_name, parsed
from seatrial.images.requirements.source_builds import newest_torch
from seatrial.images.resolve.framework import Resolved
from seatrial.job.reading.modules import Lost, lost
from seatrial.job.script import ScriptFacts
from seatrial.stack.facts import TORCH_VERSION, Framework, table, wheels
from seatrial.stack.machine import TargetMachine
from seatrial.stack.rules import Candidate, has_code

#: Release of Keras → the first TensorFlow that comes with it, where their numbers differ.
_FIRST_WITH_KERAS = {"3.0": "2.16"}
#: First TensorFlow that requires the keras of its own number; before it, the list decides about keras. Source:
#: install_requires in tensorflow/tools/pip_package/setup.py of 2.5 and 2.6.
_FIRST_WITH_OWN_KERAS = "2.6"


#: The first transformers that downloads by huggingface_hub. Older ones do not follow the hub's relative redirects.
#: Sources: transformers#18438; DeepProZyme#10.
_OF_THE_HUB = "4.22"


def check_code(script: ScriptFacts, needs: Needs, resolved: Resolved) -> tuple[str, ...]:
    """Refuse code that the chosen releases cannot run, and warn where it may not run. Raises ConfigError."""
    warnings, lacked = _of_keras_2_11(script, resolved), dict[str, str]()  # sentence → edit
    for name, row in table("import_names")["removed_from_packages"].items():
        package, since = row["package"], row["since"]
        where = imported(name, script)
        address = _address_of("keras", resolved.requirements) if package == "keras" else None  # a fork
        if where and " " not in where and not address and not _still_has(name, since, package, resolved):
            tensorflow = _tensorflow_with_keras(name, resolved) if package == "keras" else None
            had = f"the plan has tensorflow {tensorflow}" if tensorflow else "no list asks for an older one"
            older = f"{package}<{since}" if row.get("has_wheels", True) else None  # for a Python that a plan takes
            pin = _older_tensorflow(since, resolved) if tensorflow else older
            what = f"{where} imports {name}, which {package} {since} and later lack"
            lacked[what] = row["instead"] + (f", or pin {pin}" if pin else "")
    if lacked:
        raise ConfigError(f"{', and '.join(lacked)}; {had}", run="\n    ".join(dict.fromkeys(lacked.values())))
    for name, place in script.modules.items():
        outer = name.rpartition(".")[0]  # Dataset.range is gone with Dataset
        if not (found := lost(name)) or found.package == "torch" or (outer in script.modules and lost(outer)):
            continue
        if found.package == "python":
            python, use = resolved.stack.python or "", f": use {found.instead}" * bool(found.instead)
            what = f"{_shown(place, name)}, which Python {found.since} removed; the plan has Python {python}{use}"
            warnings += [what] * _reaches(python, found.since)
            continue
        of_keras = ".keras" in f".{name}" and found[::2] == ("tensorflow", "2.16")
        kept = of_keras and _still_has(name, "3.0", "keras", resolved)
        if kept or _held_below(found.since, found.package, resolved):
            continue
        address = _address_of(found.package, needs.requirements)
        if address and _REVISION.search(address):
            continue
        file = f"place of {address}" if address else needs.source.replace("the imports", "requirements.txt")
        older = f"write {found.package}<{found.before} in {file}"
        if not _has_build(found):
            oldest = wheels("jax")[-1].version if found.package == "jax" else found.before
            older = f"change it, as seatrial knows no build for GPUs before {found.package} {oldest}"
        error = ConfigError(f"{_shown(place, name)}, which {found.package} {found.since} removed", run=older)
        error.edits = ([f"{found.package}<{found.before}"] * (not address and _has_build(found))).copy
        if found.package not in ("jax", "tensorflow") or " " not in place:
            raise error
        warnings.append(f"{error}: {error.run}")
    if script.hub_model and "transformers" in script.where and _held_below(_OF_THE_HUB, "transformers", resolved):
        model, where = script.hub_model
        note = f"{where} loads {model}, which no transformers before {_OF_THE_HUB} can download: require"
        warnings.append(f"{note} transformers>={_OF_THE_HUB}, or bring it: hf download {model} --local-dir {model}")
    _check_tensorflow(script, needs, resolved)
    nvcc, release = script.nvcc_evidence or "", _tensorflow(resolved) or "0"
    fails = f"{nvcc} does not compile the headers of tensorflow {release}, which need C++17: write -std=c++17,"
    is_old = nvcc.endswith("-std=c++11") and _reaches(release, "2.12")
    warnings += [f"{fails} and -D_GLIBCXX_USE_CXX11_ABI=1 if it sets that to 0"] * is_old
    wheel = resolved.stack.wheel
    runs = {"Python": resolved.stack.python} | ({wheel.framework: wheel.version} if wheel else {})
    for old in _old_code(script, resolved.requirements):
        if (has := runs.get(old.framework)) and _reaches(has, old.since):
            lacks = f"which {old.framework} {old.since} and later lack; the plan has {has}"
            message = f"{old.shown}, {lacks}"
            if old.problem:
                message = f"{old.shown} does not run with {old.framework} {has}: {old.problem}"
            asserts = [f"{place} asserts {each}" for each, place in script.asserted.items()]
            own = [each for each in asserts if f" {old.shown.partition('-')[0]}<" in each] if old.problem else []
            cause = "; ".join(own) or (needs.reason if old.problem else None)
            run = old.fix + "; the assert must allow this version" * bool(own)
            raise ConfigError(message, cause=cause, run=run, edits=partial(re.findall, r"^pin (\S+==[\d.]+)$", old.fix))
    return tuple(dict.fromkeys(warnings))


def _of_keras_2_11(script: ScriptFacts, resolved: Resolved) -> list[str]:
    """Return a warning for each optimizer argument that Keras 2.11 to 2.15 rejects or ignores."""
    version = _tensorflow(resolved)
    if version is None or not _reaches(version, "2.11") or _reaches(version, "2.16"):
        return []
    old = any(re.search(r"\boptimizers\.legacy|compat\.v1\.keras\.optimizers", name) for name in script.modules)
    if old or " " not in script.modules.get("tensorflow.compat.v1", " "):  # imported as tf, it has them, too
        return []
    ignores = f"trains with the default learning rate: tensorflow {version} ignores lr; write learning_rate, or"
    ways = {"decay": f"fails with tensorflow {version};", "lr": ignores}
    signs = {f"keras.optimizers.{argument}": way for argument, way in ways.items()}
    found = [(where, signs.get(name.removeprefix("tensorflow."))) for name, where in script.modules.items()]
    return [f"{where} {way} use the optimizer of tf.keras.optimizers.legacy" for where, way in found if way]


class _OldCode(NamedTuple):
    """Hold an import, or a line, that a framework from ``since`` on does not run; ``problem`` is the package's."""

    framework: str
    since: str
    shown: str
    problem: str
    fix: str


def _old_code(script: ScriptFacts, found: Requirements) -> Iterator[_OldCode]:
    conflicts = table("import_names")
    for module, row in conflicts["removed"].items():
        if where := imported(module, script):
            yield _OldCode(row["framework"], row["since"], _shown(where, module), "", row["fix"])
    for line in found.lines:
        for row in conflicts["old_packages"].get(canonical_name(line) or "", ()):
            wanted = parsed(line)
            if "used" in row and not any(imported(each, script) for each in row["used"].split()):
                continue
            if "before" not in row or (wanted and not wanted.url and is_below(wanted.specifier, row["before"])):
                yield _OldCode(row.get("framework", "torch"), row["since"], line, row["why"], row["fix"])


#: A tag or a commit; that revision may still have the name.
_REVISION = re.compile(r"(?:\.git|/[\w.-]+)@[\w./-]+")


def _address_of(package: str, found: Requirements) -> str | None:
    """Return the requirement that installs a package from an address, or None."""
    lines = (line for line in found.lines if (each := parsed(line)) is None or each.url)
    return next((line for line in lines if re.search(rf"\b{package}\b", line)), None)


def _shown(where: str, name: str) -> str:
    return where if " " in where else f"{where} imports {name}"  # the place is a line of code or an import


def bounds_of_code(script: ScriptFacts, needs: Needs) -> Iterator[tuple[str, str]]:
    """Yield (``torch<2.6``, reason) for each open package whose newer releases do not support the code."""
    pairs = ((canonical_name(line), parsed(line)) for line in needs.requirements.lines)
    names = {name for name, own in pairs if not own or own.url or {each.operator for each in own.specifier} - {">="}}
    names.add("Python")  # no package
    keras = ((name, first, _shown(where, module)) for name, first, where, module in _old_keras(script))
    for name, since, why, *_ in (*_old_code(script, needs.requirements), *keras):
        if name not in names and any(not _reaches(wheel.version, since) for wheel in wheels(name)):
            yield f"{name}<{since}", f"as {why}"
            names.add(name)
    gone = [(found, _shown(place, name)) for name, place in script.modules.items() if (found := lost(name))]
    for found, why in sorted(gone, key=lambda each: Version(each[0].before)):
        of_it = [each.specifier for each in needs.requirements.of(found.package)]
        fixed = any(is_below(each, found.since) or "==" in {part.operator for part in each} for each in of_it)
        if not fixed and not _address_of(found.package, needs.requirements) and _has_build(found):
            yield f"{found.package}<{found.before}", f"as {why}"
    if (where := script.modules.get("yaml.load")) and "pyyaml" not in names:
        yield "pyyaml<5.4", f"as {where} names no Loader"  # the last release that builds on newer Pythons
    lines = needs.requirements.lines
    fitting = min(((Version(most), most, line) for line in lines if (most := newest_torch(line))), default=None)
    if fitting is not None and "torch" not in names and _reaches(TORCH_VERSION, fitting[1]):
        yield f"torch<{fitting[1]}", f"the newest release with wheels of {fitting[2]}"


def transformers_for_torch(needs: Needs) -> Iterator[Needs]:
    """Yield the needs with ``transformers[torch]``, so that uv selects one that supports the listed torch."""
    operators = {part.operator for each in needs.requirements.of("torch") for part in each.specifier}
    for place, line in enumerate(needs.requirements.lines):
        if re.fullmatch(r"transformers(?:\s*>=[\s\d.]+)?", line) and operators & {"==", "<", "<=", "~="}:
            extra = line.replace("transformers", "transformers[torch]")
            found = needs.requirements.replaced(place, extra)
            yield needs.changed(found, why=f"{extra}, so that it matches the listed torch")


def _old_keras(script: ScriptFacts) -> Iterator[tuple[Framework, str, str, str]]:
    """Yield (TensorFlow, its first release whose Keras lacks a name, where that is imported, the name)."""
    for name, row in table("import_names")["removed_from_packages"].items():
        if row["package"] == "keras" and (where := imported(name, script)):
            yield "tensorflow", _FIRST_WITH_KERAS.get(row["since"], row["since"]), where, name


def keras_of_tensorflow_1(script: ScriptFacts, machine: TargetMachine | None) -> str | None:
    """Return the place of what every Keras for this machine's TensorFlow 2 lacks, an import or Keras 1's arguments."""
    if "keras.1" in script.modules:
        return f"{script.modules['keras.1']}, which no Keras from 2.4 on takes,"
    builds, target = (Candidate(wheel, wheel.python[1]) for wheel in wheels("tensorflow")), machine or TargetMachine()
    known = [each.wheel.version for each in builds if all(has_code(each, gpu, target) for gpu in target.gpus)]
    for _, first, where, name in _old_keras(script):
        if " " not in where and name.startswith("keras.") and all(_reaches(version, first) for version in known):
            return f"{where} {name}, which no TensorFlow 2 for this machine has,"
    return None


def _check_tensorflow(script: ScriptFacts, needs: Needs, resolved: Resolved) -> None:
    """Find names of TensorFlow 1 where the project's own list demands TensorFlow 2, even with another framework."""
    version = _tensorflow(resolved)
    if script.tensorflow_1 and version and _reaches(version, "2"):
        renamed = "replace `import tensorflow as tf` by `import tensorflow.compat.v1 as tf`, or "
        message = f"{script.tensorflow_1} is TensorFlow 1, and the plan has tensorflow {version}"
        also = "" if "contrib" in script.tensorflow_1 else renamed
        raise ConfigError(message, run=f"{also}write tensorflow<2 in {needs.source}")


def _tensorflow(resolved: Resolved) -> str | None:
    """Return the TensorFlow release that the plan pins; None if it pins none."""
    found = resolved.requirements
    own = (*found.of("tensorflow", constraints=False), *found.of("tensorflow-cpu", constraints=False))
    return next((part.version for each in own for part in each.specifier if part.operator == "=="), None)


def _has_build(found: Lost) -> bool:
    """Return False for a name of Python, and if every build of JAX or TensorFlow for GPUs lacks the name."""
    builds = {"jax": wheels("jax"), "tensorflow": wheels("tensorflow")}.get(found.package, ())
    older = any(not _reaches(each.version, found.before) for each in builds)
    return found.package != "python" and (older or not builds)


def imported(name: str, script: ScriptFacts) -> str | None:
    """Return where the target imports a module, or a part of it; None if it does not."""
    return next((where for each, where in script.modules.items() if each == name or each.startswith(f"{name}.")), None)


def _still_has(name: str, since: str, package: str, resolved: Resolved) -> bool:
    """Return True if the plan's release of the package is known to be older than the one that lacks the name."""
    if package == "keras" and (tensorflow := _tensorflow_with_keras(name, resolved)) is not None:
        legacy = any(canonical_name(line) == "tf-keras" for line in resolved.requirements.lines)
        if legacy and name.startswith("tensorflow.") and since == "3.0":
            return True  # with TF_USE_LEGACY_KERAS=1, tensorflow.keras is tf-keras, which is Keras 2
        return not _reaches(tensorflow, _FIRST_WITH_KERAS.get(since, since))
    return _held_below(since, package, resolved) or name == "tensorflow_addons"  # which another TensorFlow may run


def _tensorflow_with_keras(name: str, resolved: Resolved) -> str | None:
    """Return the plan's TensorFlow if it decides on the Keras that has this name; otherwise None."""
    version = _tensorflow(resolved)
    decides = name.startswith("tensorflow") or (version is not None and _reaches(version, _FIRST_WITH_OWN_KERAS))
    return version if decides else None


def _older_tensorflow(since: str, resolved: Resolved) -> str | None:
    """Return the pin for a Keras before this one; None if seatrial knows no TensorFlow that old."""
    first = _FIRST_WITH_KERAS.get(since, since)
    if all(_reaches(wheel.version, first) for wheel in wheels("tensorflow")):
        return None
    bounded = any(each.specifier for each in resolved.requirements.of("keras"))
    return f"tensorflow<{first}" + (f" and keras<{since}" if bounded else "")


def _held_below(version: str, package: str, resolved: Resolved) -> bool:
    """Return True if a list or a lock file keeps pip from taking this release of the package, or a later one."""
    return any(is_below(each.specifier, version) for each in resolved.requirements.of(package))


def is_below(specifier: SpecifierSet, version: str) -> bool:
    """Return True if the specifier admits releases before this one, and neither it nor a later one."""
    least = (each.version.removesuffix(".*") for each in specifier if each.operator in ("==", "===", "~=", ">=", ">"))
    return not any(map(specifier.contains, (version, "9999"))) and not any(_reaches(each, version) for each in least)


@fallback(False, on=InvalidVersion)  # ==2.*
def _reaches(version: str, least: str) -> bool:
    return Version(version) >= Version(least)
