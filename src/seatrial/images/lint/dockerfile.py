"""Represent a Dockerfile for the rules: stages, environments, commands; and a remark."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Literal

from seatrial.images.lint.commands import Command, commands_of, options_and_rest
from seatrial.images.lint.instructions import JOINT, Instruction, read_instructions
from seatrial.system.project_files import filled_in

#: A value that grows beyond this is left as it is written: ``ARG A=$A$A`` doubles with every line.
_MOST_CHARACTERS = 4000

_VARIABLE = re.compile(r"\\\$|\$(?:(?P<bare>\w+)|\{(?P<name>\w+)(?::?(?P<kind>[-+])(?P<other>[^{}]*))?\})")
_PAIR = re.compile(r"([A-Za-z_][\w.-]*)=((?:\"(?:[^\"\\]|\\.)*\"|'[^']*'|\\.|[^\s\"'])*)")


Severity = Literal["error", "warning", "hint"]


@dataclass(frozen=True)
class Remark:
    """Hold one finding; ``line`` counts from 1."""

    line: int
    id: str
    severity: Severity
    message: str
    fix: str


def remark(line: int, key: str, /, **values: object) -> Remark:
    """Make the remark that remarks.toml has under ``key``: its ID, and more words where a rule words several."""
    return Remark(line, key.partition(" ")[0], **filled_in(Path(__file__).with_name("remarks.toml"), key, values))


@dataclass(frozen=True)
class Stage:
    """Hold one FROM.

    Attributes:
        image: the image that it starts from, through earlier stages, variables filled in.
        name: after AS, in small letters; "" without.
        line: of the FROM.
        number: counted from 0.
        parent: number of the stage that it starts from; None if it starts from an image.
    """

    image: str
    name: str
    line: int
    number: int
    parent: int | None = None


@dataclass(frozen=True)
class Setting:
    """Hold a variable of a stage; ENV's outlive the build, ARG's do not."""

    value: str
    line: int
    lasts: bool


@dataclass(frozen=True)
class Dockerfile:
    """Hold the parsed file, with the environment of each stage at its end, inherited variables included."""

    instructions: tuple[Instruction, ...]
    stages: tuple[Stage, ...]
    environments: tuple[dict[str, Setting], ...]

    @property
    def final(self) -> Stage:
        return self.stages[-1]

    @cached_property
    def chain(self) -> tuple[int, ...]:
        """List the final stage and those it starts from, the first one first."""
        found: list[int] = []
        number: int | None = self.final.number
        while number is not None:
            found.append(number)
            number = self.stages[number].parent
        return tuple(reversed(found))

    @cached_property
    def shipped(self) -> frozenset[int]:
        """Return the chain, and the stages that it copies from."""
        names = {stage.name: stage.number for stage in self.stages if stage.name}
        found: set[int] = set()
        waiting = [self.final.number]
        while waiting:
            number = waiting.pop()
            if number in found:
                continue
            found.add(number)
            if (parent := self.stages[number].parent) is not None:
                waiting.append(parent)
            for each in self.of("COPY"):
                if each.stage == number and (source := re.search(r"--from=(\S+)", each.value)):
                    of = names.get(source[1].lower(), int(source[1]) if re.fullmatch(r"\d{1,4}", source[1]) else -1)
                    waiting += [of] if 0 <= of < len(self.stages) else []
        return frozenset(found)

    @cached_property
    def commands(self) -> tuple[Command, ...]:
        """Return the commands of every RUN, with known variables filled in."""
        return tuple(command for each in self.of("RUN") for command in self.commands_of(each))

    def commands_of(self, each: Instruction) -> list[Command]:
        known = self.environments[each.stage] if each.stage >= 0 else {}
        return [replace(one, words=tuple(_filled(word, known) for word in one.words)) for one in commands_of(each)]

    def of(self, name: str) -> Iterator[Instruction]:
        return (each for each in self.instructions if each.name == name)

    def lasting(self, name: str) -> Setting | None:
        """Return a variable of the final image; None if the file does not set it."""
        setting = self.environments[-1].get(name)
        return setting if setting and setting.lasts else None


def read_dockerfile(text: str) -> Dockerfile:
    """Parse instructions, stages and their environments; variables are filled in where the file sets them."""
    instructions: list[Instruction] = []
    stages: list[Stage] = []
    environments: list[dict[str, Setting]] = []
    outside: dict[str, Setting] = {}
    for each in read_instructions(text):
        if each.name == "FROM":
            stage = _stage(each, stages, outside)
            stages.append(stage)
            inherited = {} if stage.parent is None else environments[stage.parent]
            environments.append({name: setting for name, setting in inherited.items() if setting.lasts})
        each = replace(each, stage=len(stages) - 1)
        instructions.append(each)
        known = environments[-1] if stages else outside
        if each.name == "ARG":
            _declare(each, known, outside if stages else {})
        elif each.name == "ENV" and stages:
            for name, value in pairs_of(each.value):
                found = re.search(rf"(?:^|[\s{JOINT}]){re.escape(name)}[=\s]", each.raw)
                above = each.raw[: found.end()].count(JOINT) if found else 0  # joints of lines
                known[name] = Setting(_filled(value, known), each.line + above, lasts=True)
    return Dockerfile(tuple(instructions), tuple(stages), tuple(environments))


def pairs_of(value: str) -> list[tuple[str, str]]:
    """Split ``A=b C="d e"``, and the old form ``A b c``."""
    if not re.match(r"[A-Za-z_][\w.-]*=", value):
        name, _, rest = value.partition(" ")
        return [(name, rest.strip())] if name else []
    return [(name, _unquoted(text)) for name, text in _PAIR.findall(value)]


def _stage(each: Instruction, stages: list[Stage], outside: dict[str, Setting]) -> Stage:
    _, rest = options_and_rest(each.raw)
    words = rest.replace(JOINT, " ").split() or [""]
    image = _filled(words[0].strip("\"'"), outside)
    name = words[2].lower() if len(words) > 2 and words[1].lower() == "as" else ""
    parent = next((stage for stage in reversed(stages) if stage.name and stage.name == image.lower()), None)
    below = (parent.image, parent.number) if parent else (image, None)
    return Stage(below[0], name, each.line, len(stages), below[1])


def _declare(each: Instruction, known: dict[str, Setting], outside: dict[str, Setting]) -> None:
    """Record ``ARG A=b C``: without a value the one above the first FROM counts; an ENV of that name wins."""
    given: list[tuple[str, str | None]] = [(name, _unquoted(text)) for name, text in _PAIR.findall(each.value)]
    for name, value in given or [(word, None) for word in each.value.split()]:
        if (before := known.get(name)) and before.lasts:
            continue
        if value is not None:
            known[name] = Setting(_filled(value, known), each.line, lasts=False)
        elif name in outside:
            known[name] = replace(outside[name], lasts=False)


def _filled(text: str, known: dict[str, Setting]) -> str:
    if "$" not in text:
        return text

    def value(match: re.Match[str]) -> str:
        name = match["bare"] or match["name"]
        kind, found = match["kind"], known[name].value if name in known else None
        if kind == ("+" if found else "-"):
            return _filled(match["other"], known)
        return match[0] if found is None else "" if kind == "+" else found

    filled = _VARIABLE.sub(value, text)
    return filled if len(filled) <= max(_MOST_CHARACTERS, len(text)) else text


def _unquoted(text: str) -> str:
    return re.sub(r"\\(.)|[\"']", lambda match: match[1] or "", text)
