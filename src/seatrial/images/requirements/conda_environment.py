"""environment.yml of conda: its pip part, and the Python it pins. What conda itself would install is not read."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from packaging.specifiers import SpecifierSet

from seatrial.errors import ConfigError
from seatrial.images.requirements.pyproject import python_specifier
from seatrial.images.requirements.requirements_files import MOST_LINES, checked_requirement
from seatrial.system import yaml_file
from seatrial.system.project_files import read_text

#: An environment of hundreds of packages has 30,000 bytes.
_MAX_BYTES = 300_000

_PYTHON = re.compile(r"python\s*(=+|>=|<=|<|>)\s*(\d+(?:\.\d+)?)")


@dataclass(frozen=True)
class Environment:
    """What environment.yml asks of pip."""

    lines: tuple[str, ...]
    python: SpecifierSet


def read_environment(file: Path) -> Environment:
    """The file's pip part. Raises ConfigError naming ``file:line``."""
    text = read_text(file, inside=file.parent, limit_bytes=_MAX_BYTES)
    data = yaml_file.parse_yaml(text, file.name)
    listed = data.get("dependencies") if isinstance(data, dict) else None
    if not isinstance(listed, list):
        raise ConfigError(f"{file.name}: has no list of dependencies", run=f"cat {file}")
    lines: list[str] = []
    python = SpecifierSet()
    for item in listed:
        if isinstance(item, dict) and isinstance(item.get("pip"), list):
            lines += map(str, item["pip"])
        elif isinstance(item, str) and (match := _PYTHON.match(item)):
            sign, version = match.groups()
            python = python_specifier(
                f"=={version}.*" if sign.startswith("=") else f"{sign}{version}", f"{file.name}: {match[0]}"
            )
    if len(lines) > MOST_LINES:
        raise ConfigError(
            f"{file.name}: {len(lines)} packages are more than any image could contain", run=f"wc -l {file}"
        )
    return Environment(
        tuple(checked_requirement(line, f"{file.name}:{_line_of(line, text)}") for line in lines), python
    )


def _line_of(item: Any, text: str) -> int:
    return text[: max(text.find(str(item)), 0)].count("\n") + 1
