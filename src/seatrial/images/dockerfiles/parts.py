"""A user's own Dockerfile as its rules see it, and what a rule says. Parsed by dockerfile-parse."""

from __future__ import annotations

import io
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from dockerfile_parse import DockerfileParser


@dataclass(frozen=True)
class Remark:
    """One thing found. ``line`` counts from 1; ``file`` is None for the Dockerfile itself."""

    line: int
    id: str
    severity: Literal["error", "warning", "hint"]
    message: str
    fix: str
    file: Path | None = None

    def to_dict(self) -> dict[str, object]:
        found = {name: getattr(self, name) for name in ("line", "id", "severity", "message", "fix")}
        return {**found, "file": str(self.file)} if self.file else found


@dataclass(frozen=True)
class Instruction:
    """One instruction, its line counted from 1, and the number of the stage it belongs to."""

    name: str
    value: str
    line: int
    stage: int


@dataclass(frozen=True)
class Stage:
    """One FROM. ``image`` is what it starts from, through earlier stages; ``name`` after AS."""

    image: str
    name: str
    line: int
    number: int


@dataclass(frozen=True)
class Dockerfile:
    """The file as the rules see it."""

    instructions: tuple[Instruction, ...]
    stages: tuple[Stage, ...]

    @property
    def final(self) -> Stage:
        return self.stages[-1]

    def of(self, name: str) -> Iterator[Instruction]:
        return (each for each in self.instructions if each.name == name)


def read_dockerfile(text: str) -> Dockerfile:
    """Instructions and stages; arguments of ARG before the first FROM are filled in."""
    parser = DockerfileParser(fileobj=io.BytesIO(text.encode()), cache_content=True)
    rows: list[dict[str, Any]] = [row for row in parser.structure if row["instruction"] != "COMMENT"]
    instructions: list[Instruction] = []
    stages: list[Stage] = []
    defaults: dict[str, str] = {}
    for row in rows:
        name, value, line = row["instruction"].upper(), row["value"].strip(), row["startline"] + 1
        if name == "ARG" and not stages:
            key, _, default = value.partition("=")
            defaults[key.strip()] = default.strip("\"' ")
        if name == "FROM":
            words = [word for word in value.split() if not word.startswith("--")] or [""]
            image = re.sub(r"\$\{?(\w+)(?::-[^}]*)?\}?", lambda match: defaults.get(match[1], match[0]), words[0])
            earlier = next((stage.image for stage in stages if stage.name and stage.name == image), None)
            stages.append(Stage(earlier or image, words[-1] if len(words) > 2 else "", line, len(stages)))
        instructions.append(Instruction(name, value, line, len(stages) - 1))
    return Dockerfile(tuple(instructions), tuple(stages))
