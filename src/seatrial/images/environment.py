"""environment.yml of conda: its pip part, and the Python it pins. What conda itself would install is not read."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml
from packaging.specifiers import SpecifierSet

from seatrial.errors import ConfigError
from seatrial.images.requirements import checked_requirement

_PYTHON = re.compile(r"python\s*(=+|>=|<=|<|>)\s*(\d+(?:\.\d+)?)")


@dataclass(frozen=True)
class Environment:
    """What environment.yml asks of pip."""

    lines: tuple[str, ...]
    python: SpecifierSet


def read_environment(file: Path) -> Environment:
    """The file's pip part. Raises ConfigError naming ``file:line``."""
    text = file.read_text(encoding="utf-8")
    try:
        data: Any = yaml.safe_load(text)
    except yaml.YAMLError as error:
        line = getattr(getattr(error, "problem_mark", None), "line", 0) + 1
        raise ConfigError(f"{file.name}:{line}: not YAML: {getattr(error, 'problem', error)}") from error
    listed = data.get("dependencies") if isinstance(data, dict) else None
    if not isinstance(listed, list):
        raise ConfigError(f"{file.name}: has no list of dependencies", run=f"cat {file}")
    lines: list[str] = []
    python = SpecifierSet()
    for item in listed:
        if isinstance(item, dict) and isinstance(item.get("pip"), list):
            lines += [checked_requirement(str(line), f"{file.name}:{_line_of(line, text)}") for line in item["pip"]]
        elif match := _PYTHON.match(str(item)):
            sign, version = match.groups()
            python = SpecifierSet(f"=={version}.*" if sign.startswith("=") else f"{sign}{version}")
    return Environment(tuple(lines), python)


def _line_of(item: Any, text: str) -> int:
    return text[: max(text.find(str(item)), 0)].count("\n") + 1
