"""conda's environment.yml and `conda list --export`: what pip has of them, and the Python that they pin."""

from __future__ import annotations

import re
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from packaging.specifiers import InvalidSpecifier, SpecifierSet

from seatrial.errors import ConfigError
from seatrial.images.requirements.packages import known_package
from seatrial.images.requirements.pyproject import python_specifier
from seatrial.images.requirements.requirements_files import (
    MOST_LINES,
    Requirements,
    canonical_name,
    checked_requirement,
    listed_requirements,
    text_of,
)
from seatrial.system import yaml_file
from seatrial.system.project_files import read_text

#: An environment of hundreds of packages has 30,000 bytes.
_MAX_BYTES = 300_000

#: What people call the file, in the order in which it is looked for.
ENVIRONMENT_FILES = tuple(
    f"{name}.{ending}"
    for name in ("environment", "env", "conda", "conda_environment", "conda_env", "conda-environment", "conda-env")
    for ending in ("yml", "yaml")
)

_PYTHON = re.compile(r"python\s*(=+|>=|<=|<|>)\s*(\d+(?:\.\d+)?)")
#: ``channel::name``, a version, a build. Source: conda's "package match specifications".
_CONDA = re.compile(r"(?:[\w./-]+::)?([A-Za-z0-9][\w.-]*)\s*([=<>!~].*|\d.*)?")

#: A line of ``conda list --export``: name, version, build; the build of what pip had installed is ``pypi_0``.
_EXPORTED = re.compile(r"([A-Za-z0-9_][\w.-]*)=([^=\s]+)=([^=\s]+)")

#: The project itself, in either of pip's ways.
_ITSELF = re.compile(r"(?:(?:-e|--editable)[ =]\s*)?\./?")


@dataclass(frozen=True)
class Environment:
    """What a file of conda's asks for, as pip knows it."""

    requirements: Requirements
    python: SpecifierSet


def read_environment(file: Path) -> Environment:
    """The file's pip part, options of pip's included, and the Python packages that conda would install.

    The project itself (``-e .``) is left out: it is mounted, and its packages are importable.

    Raises ConfigError naming ``file:line``.
    """
    text = read_text(file, inside=file.parent, limit_bytes=_MAX_BYTES)
    data = yaml_file.parse_yaml(text, file.name)
    listed = data.get("dependencies") if isinstance(data, dict) else None
    if not isinstance(listed, list):
        raise ConfigError(f"{file.name}: has no list of dependencies", run=f"cat {file}")
    lines: list[str] = []
    conda: list[str] = []
    python = SpecifierSet()
    for item in listed:
        if isinstance(item, dict) and isinstance(item.get("pip"), list):
            given = (str(each).strip() for each in item["pip"])
            lines += (each for each in given if each and not _ITSELF.fullmatch(each))
        elif isinstance(item, str) and (match := _PYTHON.match(item)):
            sign, version = match.groups()
            python = python_specifier(
                f"=={version}.*" if sign.startswith("=") else f"{sign}{version}", f"{file.name}: {match[0]}"
            )
        elif isinstance(item, str) and (line := _as_pip_has_it(item)):
            conda.append(line)
    if len(lines) + len(conda) > MOST_LINES:
        raise ConfigError(
            f"{file.name}: {len(lines)} packages are more than any image could contain", run=f"wc -l {file}"
        )
    pip = listed_requirements(((_line_of(line, text), line) for line in lines), file)
    named = {canonical_name(line) for line in pip.lines}
    own = tuple(line for line in conda if canonical_name(line) not in named)
    return Environment(replace(pip, lines=(*own, *pip.lines)), python)


def read_conda_list(file: Path, project: Path) -> Environment | None:
    """What ``conda list --export`` wrote, often under the name requirements.txt; None for a file of another format.

    Raises ConfigError for one that cannot be read.
    """
    lines = [line.strip() for line in text_of(file, project).splitlines()]
    matches = [_EXPORTED.fullmatch(line) for line in lines if line and not line.startswith("#")]
    found = [match for match in matches if match is not None]
    if not found or len(found) < len(matches):
        return None
    pinned = [match[2] for match in found if match[1] == "python"]
    python = python_specifier(f"=={'.'.join(pinned[0].split('.')[:2])}.*", file.name) if pinned else SpecifierSet()
    listed = (
        f"{name}=={version}" if build == "pypi_0" else _as_pip_has_it(f"{name}={version}")
        for name, version, build in (match.groups() for match in found if match[1] != "python")
    )
    lines = [checked_requirement(line, file.name) for line in listed if line]
    return Environment(Requirements(lines=tuple(lines)), python)


def _as_pip_has_it(item: str) -> str | None:
    """``pytorch=1.11`` → ``torch==1.11.*``; of three parts the very one. None for ffmpeg and the like."""
    match = _CONDA.fullmatch(item.strip())
    package = known_package(match[1]) if match else None
    if match is None or package is None:
        return None
    version = (match[2] or "").strip()
    if version[:1].isdigit() or (version.startswith("=") and not version.startswith("==")):
        number = version.lstrip("= ").partition("=")[0].strip().rstrip(".*")  # what follows is the build
        short = number.count(".") < 2 or package.startswith("opencv")  # its wheels have a fourth number of their own
        version = f"=={number}{'.*' * short}" if number else ""
    elif version.startswith("=="):
        version = "==" + version[2:].partition("=")[0].strip()
    try:
        return package + str(SpecifierSet(version.replace(" ", "")))
    except InvalidSpecifier:  # alternatives, 1.9|1.10: any version is nearer than none
        return package


def _line_of(item: Any, text: str) -> int:
    return text[: max(text.find(str(item)), 0)].count("\n") + 1
