"""What a project needs from pip: requirements.txt, else pyproject.toml, else its imports; and which torch."""

from __future__ import annotations

import sys
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from seatrial.errors import ConfigError
from seatrial.images.packages import packages_of_imports
from seatrial.images.requirements import (
    Requirements,
    canonical_name,
    checked_requirement,
    parsed,
    read_requirements,
)
from seatrial.job.plan import Choice

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

#: The torch that this version of seatrial is developed and tested with (constraints.txt of the repository;
#: https://pypi.org/project/torch/2.13.0/).
TORCH_VERSION = "2.13.0"

#: CPU builds of torch and its companions. Source: https://pytorch.org/get-started/locally/ (pip, Linux, CPU).
TORCH_CPU_INDEX = "https://download.pytorch.org/whl/cpu"

#: Packages whose releases each name one exact torch in Requires-Dist; when one is pinned, it decides.
_TIED_TO_TORCH = frozenset({"torchvision", "torchaudio", "torchtext", "xformers"})


def project_requirements(project: Path, imports: frozenset[str], script_dir: Path) -> tuple[Requirements, Choice]:
    """The project's own requirements, before torch is settled, and where they are from.

    Args:
        imports: top-level names that the target imports.
        script_dir: the script's folder; its modules belong to the project.

    Raises ConfigError naming ``file:line``.
    """
    file = project / "requirements.txt"
    if file.is_file():
        found = read_requirements(file, project)
        return found, _packages(found, "requirements.txt is there")
    packages = packages_of_imports(imports, {project, project / "src", script_dir})
    pyproject = project / "pyproject.toml"
    if pyproject.is_file() and (listed := _pyproject_requirements(pyproject, packages)) is not None:
        found = Requirements(lines=listed)
        return found, _packages(found, "[project] of pyproject.toml lists them")
    found = Requirements(lines=packages)
    return found, _packages(found, "neither requirements.txt nor pyproject.toml lists any: taken from the imports")


def settle_torch(
    found: Requirements, imports: frozenset[str], *, cpu_only: bool, own_sources: bool
) -> tuple[Requirements, str | None, list[Choice]]:
    """Add torch where it is imported and not required, fix its version where that is left open, choose its build.

    Args:
        cpu_only: the run has no GPU, so the CUDA build's gigabytes are of no use.
        own_sources: the user names an index or find-links.

    Returns:
        (requirements, index of CPU builds to look at as well or None, choices)
    """
    names = [canonical_name(line) for line in found.lines]
    if "torch" not in names:
        if "torch" not in imports:
            return found, None, []
        found += Requirements(lines=("torch",))
        names.append("torch")
        reason = "imported and not required"
    else:
        reason = "among the packages"
    place = names.index("torch")
    if _open_for_our_version(found.lines[place]) and not _another_decides(found):
        found = found.replaced(place, f"torch=={TORCH_VERSION}")
        reason += f"; {TORCH_VERSION} is the version that seatrial is tested with"
    if "numpy" not in names and _admits_our_version(found.lines[place]):
        # Without it `import torch` prints "Failed to initialize NumPy" (seen with 2.13.0+cpu).
        found += Requirements(lines=("numpy",))
    choices = [Choice(what="torch", value=found.lines[place], reason=reason)]
    if not cpu_only:
        choices.append(
            Choice(what="torch build", value="CUDA", reason="the wheel of the package index brings its own CUDA")
        )
        return found, None, choices
    if own_sources or found.names_an_index:
        choices.append(Choice(what="torch build", value="as your index has it", reason="you name the package index"))
        return found, None, choices
    choices.append(
        Choice(
            what="torch build",
            value=f"CPU, from {TORCH_CPU_INDEX}",
            reason="no GPU in this run; a base image whose pip names its own index or find-links is left to those",
        )
    )
    return found, TORCH_CPU_INDEX, choices


def _admits_our_version(line: str) -> bool:
    requirement = parsed(line)
    return requirement is not None and requirement.specifier.contains(TORCH_VERSION)


def _open_for_our_version(line: str) -> bool:
    """``torch`` or ``torch>=2.6``: no upper end, no exact version, no URL, no hash."""
    requirement = parsed(line)
    if requirement is None or requirement.url or requirement.extras or requirement.marker or " --" in line:
        return False
    open_ended = all(each.operator in (">=", ">", "!=") for each in requirement.specifier)
    return open_ended and _admits_our_version(line)


def _another_decides(found: Requirements) -> bool:
    """A constraint on torch, or a fixed version of a package that is tied to one torch."""
    if "torch" in map(canonical_name, found.constraints):
        return True
    tied = (parsed(line) for line in found.lines + found.constraints if canonical_name(line) in _TIED_TO_TORCH)
    return any(each is not None and (each.specifier or each.url) for each in tied)


def _packages(found: Requirements, reason: str) -> Choice:
    return Choice(what="packages", value=", ".join(found.lines) or "none", reason=reason)


def _pyproject_requirements(file: Path, imported: Iterable[str]) -> tuple[str, ...] | None:
    """``[project] dependencies``, and of its extras what is imported; None when it declares no dependencies."""
    text = file.read_text(encoding="utf-8")
    try:
        table = tomllib.loads(text).get("project", {})
    except tomllib.TOMLDecodeError as error:
        raise ConfigError(f"pyproject.toml: {error}", run=f"fix {file}") from error
    if "dependencies" not in table:
        return None
    required = _checked_list(table["dependencies"], "project.dependencies", text)
    have = {canonical_name(line) for line in required}
    wanted = {canonical_name(package) for package in imported} - have
    extras = table.get("optional-dependencies", {})
    optional = [
        line
        for extra in sorted(extras)
        for line in _checked_list(extras[extra], f"project.optional-dependencies.{extra}", text)
    ]
    for line in optional:
        if (name := canonical_name(line)) in wanted:
            required.append(line)
            wanted.remove(name)
    return tuple(required)


def _checked_list(value: Any, key: str, text: str) -> list[str]:
    if not isinstance(value, list) or not all(isinstance(item, str) for item in value):
        raise ConfigError(f"pyproject.toml: {key} must be a list of strings, not {value!r}")
    return [checked_requirement(item, f"pyproject.toml:{_line_of(item, text)}") for item in value]


def _line_of(item: str, text: str) -> int:
    """Line of the first mention; TOML parsers keep none."""
    return text[: max(text.find(item), 0)].count("\n") + 1
