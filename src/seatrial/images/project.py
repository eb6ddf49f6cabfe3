"""What a project needs from pip, read from what it has: files first, its imports where it has none."""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from pathlib import Path

from packaging.specifiers import SpecifierSet

from seatrial.images.requirements.conda_environment import read_environment
from seatrial.images.requirements.packages import packages_of_imports
from seatrial.images.requirements.pyproject import locked_versions, pyproject_requirements, requires_python
from seatrial.images.requirements.requirements_files import Requirements, canonical_name, read_requirements
from seatrial.images.requirements.setup_py import read_setup
from seatrial.job.plan import Choice
from seatrial.system.project_files import is_there, read_sources

#: Written by ``seatrial build --lock``: every package of the image at its version.
LOCK = "seatrial.lock"

#: transformers and peft load these by themselves when a script asks for it; no import statement says so.
_QUANTISED = re.compile(r"\bBitsAndBytesConfig\b|\bload_in_[48]bit\b|\bpaged_adamw|adamw_bnb_8bit")

_MOST_SOURCE_BYTES = 20_000_000


@dataclass(frozen=True)
class Needs:
    """The project's own requirements, before a framework is resolved.

    Attributes:
        source: the file they are from, as it is called in sentences.
        python: the project's ``requires-python``.
    """

    requirements: Requirements
    source: str
    reason: str
    python: SpecifierSet = field(default_factory=SpecifierSet)

    @property
    def choice(self) -> Choice:
        return Choice(what="packages", value=", ".join(self.requirements.lines) or "none", reason=self.reason)


def project_needs(project: Path, imports: frozenset[str], script_dir: Path) -> Needs:
    """The first of requirements.txt, pyproject.toml (with uv.lock), setup.py, environment.yml, the imports.

    Args:
        imports: top-level names that the target imports.
        script_dir: the script's folder; its modules belong to the project.

    Raises ConfigError naming ``file:line``.
    """
    packages = packages_of_imports(imports, {project, project / "src", script_dir})
    needs = _from_files(project, packages)
    if needs is None:
        needs = Needs(Requirements(lines=packages), "the imports", "no file lists packages: using the imports")
    extra = _implied(needs.requirements, script_dir, project)
    return _locked(Needs(needs.requirements + extra, needs.source, needs.reason, needs.python), project)


def _from_files(project: Path, packages: tuple[str, ...]) -> Needs | None:
    python = requires_python(project / "pyproject.toml")
    if is_there(file := project / "requirements.txt"):
        return Needs(read_requirements(file, project), "requirements.txt", "requirements.txt exists", python)
    if is_there(file := project / "pyproject.toml"):
        listed = pyproject_requirements(file, packages)
        if listed is not None:
            reason = "[project] of pyproject.toml lists them"
            locked = locked_versions(project / "uv.lock")
            if locked:
                reason += f"; uv.lock pins {len(locked)} versions"
            return Needs(Requirements(lines=listed, constraints=locked), "pyproject.toml", reason, python)
    if is_there(file := project / "setup.py") and (setup := read_setup(file)) is not None:
        return Needs(
            Requirements(lines=setup.lines), "setup.py", "install_requires of setup.py lists them", setup.python
        )
    for name in ("environment.yml", "environment.yaml"):
        if is_there(file := project / name):
            environment = read_environment(file)
            have = {canonical_name(line) for line in environment.lines}
            more = tuple(package for package in packages if canonical_name(package) not in have)
            reason = f"the pip part of {name} lists them" + (", the imports list the rest" if more else "")
            return Needs(Requirements(lines=environment.lines + more), name, reason, environment.python)
    return None


def _implied(found: Requirements, script_dir: Path, project: Path) -> Requirements:
    """Packages that no import names, though the imported ones ask for them: accelerate, bitsandbytes."""
    have = {canonical_name(line) for line in found.lines}
    lines = []
    if "transformers" in have and "accelerate" not in have:
        lines.append("accelerate")  # Trainer and device_map refuse to work without it
    if have & {"transformers", "peft", "diffusers"} and "bitsandbytes" not in have and _quantises(script_dir, project):
        lines.append("bitsandbytes")
    return Requirements(lines=tuple(lines))


def _quantises(script_dir: Path, project: Path) -> bool:
    scripts = sorted(script_dir.glob("*.py"))[:200]
    return any(map(_QUANTISED.search, read_sources(scripts, project, _MOST_SOURCE_BYTES)))


def _locked(needs: Needs, project: Path) -> Needs:
    file = project / LOCK
    if not is_there(file):
        return needs
    locked = read_requirements(file, project)
    requirements = needs.requirements + Requirements(constraints=locked.lines)
    return Needs(requirements, needs.source, f"{needs.reason}; {LOCK} pins the versions", needs.python)
