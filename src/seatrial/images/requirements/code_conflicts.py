"""Code that the chosen versions cannot run: known before the build, not after it."""

from __future__ import annotations

from packaging.version import InvalidVersion, Version

from seatrial.errors import ConfigError
from seatrial.images.project import Needs
from seatrial.images.requirements.requirements_files import canonical_name, parsed
from seatrial.images.requirements.resolve_frameworks import Resolved
from seatrial.job.script import ScriptFacts
from seatrial.stack.facts import table


def check_code(script: ScriptFacts, needs: Needs, resolved: Resolved) -> None:
    """Raises ConfigError: the target imports or uses what the chosen framework, or the newest of a package, lacks."""
    conflicts = table("import_names")
    for name, row in conflicts["removed_from_packages"].items():
        package, since = row["package"], row["since"]
        if (where := script.modules.get(name)) and not _held_below(since, package, resolved):
            raise ConfigError(
                f"{where} imports {name}, which {package} {since} and later lack; no list asks for an older one",
                run=f"{row['instead']}, or pin {package}<{since}",
            )
    _check_tensorflow(script, resolved)
    wheel = resolved.stack.wheel
    if wheel is None:
        return
    for module, row in conflicts["removed"].items():
        name, since, where = row["framework"], row["since"], script.modules.get(module)
        if where and wheel.framework == name and _reaches(wheel.version, since):
            raise ConfigError(
                f"{where} imports {module}, which {name} {since} and later lack; the plan has {wheel.version}",
                run=row["fix"],
            )
    for line in resolved.requirements.lines:
        for row in conflicts["old_packages"].get(canonical_name(line) or "", ()):
            pinned = _pinned(line)
            old = "before" not in row or (pinned and not _reaches(pinned, row["before"]))
            if old and wheel.framework == "torch" and _reaches(wheel.version, row["since"]):
                raise ConfigError(
                    f"{line} does not run with {wheel.framework} {wheel.version}: {row['why']}",
                    cause=needs.reason,
                    run=row["fix"],
                )


def _check_tensorflow(script: ScriptFacts, resolved: Resolved) -> None:
    """TensorFlow 1's names, where the plan has TensorFlow 2, be it beside another framework."""
    lines = [line for line in resolved.requirements.lines if canonical_name(line) in ("tensorflow", "tensorflow-cpu")]
    version = _pinned(lines[0]) if lines else None
    if script.tensorflow_1 and version and _reaches(version, "2"):
        raise ConfigError(
            f"{script.tensorflow_1} is TensorFlow 1, and the plan has tensorflow {version}",
            cause="TensorFlow 2 has these names under tf.compat.v1 alone; TensorFlow 1.15 needs Python 3.7",
            run="replace `import tensorflow as tf` by `import tensorflow.compat.v1 as tf`, or name an image that has "
            "TensorFlow 1: seatrial run --image tensorflow/tensorflow:1.15.5-gpu …",
        )


def _held_below(version: str, package: str, resolved: Resolved) -> bool:
    """A list or a lock file keeps pip from taking this release of the package, or a later one."""
    found = resolved.requirements
    requirements = [parsed(line) for line in (*found.lines, *found.constraints) if canonical_name(line) == package]
    newest = (version, "9999")
    return any(each is not None and not any(map(each.specifier.contains, newest)) for each in requirements)


def _pinned(line: str) -> str | None:
    requirement = parsed(line)
    versions = [each.version for each in requirement.specifier if each.operator == "=="] if requirement else []
    return versions[0] if versions else None


def _reaches(version: str, least: str) -> bool:
    try:
        return Version(version) >= Version(least)
    except InvalidVersion:  # ==2.*
        return False
