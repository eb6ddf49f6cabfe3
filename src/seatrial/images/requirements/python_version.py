"""The Python that a project asks for, from every file that may say so."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

from packaging.specifiers import SpecifierSet

from seatrial.errors import ConfigError
from seatrial.images.requirements.conda_environment import ENVIRONMENT_FILES, read_environment
from seatrial.images.requirements.pyproject import requires_python
from seatrial.stack.resolve import PYTHONS
from seatrial.system.project_files import is_there, read_text

#: pyenv's and uv's file: a version a line, the first that is there counts.
VERSION_FILE = ".python-version"
_MAX_BYTES, _MOST_WORDS = 10_000, 20
_VERSION = re.compile(r"(?:cpython-|python-?)?(3\.\d{1,3})(?:\.\d{1,3})?(?:-.*)?$")


def asked_python(project: Path, listed: SpecifierSet, source: str) -> tuple[SpecifierSet, tuple[str, ...]]:
    """(the Pythons that the project admits, what is left aside and why).

    pyproject.toml and the file of the requirements bind. .python-version and environment.yml name the one to take, as
    far as that can be done.

    Args:
        listed: what the requirements' own file says. source: its name.

    Raises ConfigError naming the file.
    """
    found = requires_python(project / "pyproject.toml") & listed
    warnings = []
    for place, specifier in _wishes(project, source):
        if _admits(found & specifier):
            found &= specifier
        elif _admits(specifier):
            warnings.append(f"{place} asks for Python {specifier}, and the project excludes it ({found}): not used")
        else:
            warnings.append(f"{place} asks for Python {specifier}, which seatrial does not support: not used")
    return found, tuple(warnings)


def _admits(specifier: SpecifierSet) -> bool:
    return any(specifier.contains(f"{python}.99") for python in PYTHONS)


def _wishes(project: Path, source: str) -> Iterator[tuple[str, SpecifierSet]]:
    if is_there(file := project / VERSION_FILE):
        try:
            words = read_text(file, inside=project, limit_bytes=_MAX_BYTES).split()
        except ConfigError:  # a folder, a binary: nobody's version
            words = []
        if match := next(filter(None, map(_VERSION.match, words[:_MOST_WORDS])), None):
            yield VERSION_FILE, SpecifierSet(f"=={match[1]}.*")
    for name in ENVIRONMENT_FILES:
        if name != source and is_there(file := project / name):
            try:
                environment = read_environment(file)
            except ConfigError:  # it is not what packages are taken from: whether it is right matters to conda alone
                continue
            if len(environment.python):
                yield name, environment.python
