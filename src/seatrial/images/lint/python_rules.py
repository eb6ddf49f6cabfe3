"""Find two Pythons in one image: the distribution's python3, and another one that apt installs."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, field

from seatrial.images.base import python3_of_distribution, python_of_image
from seatrial.images.lint.commands import Command, Install, commands_of, installs_of
from seatrial.images.lint.dockerfile import Dockerfile, Remark

_APT = ("apt-get", "apt", "aptitude")
#: Packages that bring an interpreter: https://packages.ubuntu.com/source/jammy/python3.11.
_INTERPRETER = re.compile(r"python(3\.\d+)(?:-(?:minimal|full|dev|venv))?(?:[=:].*)?$")
_VERSIONED = re.compile(r"(?:/usr/bin/)?python(3\.\d+)$")
#: The distribution's own names, by which its python3 is run.
_PIP, _PYTHON = ("pip", "pip3", "/usr/bin/pip3"), ("python3", "/usr/bin/python3")


@dataclass
class _Pythons:
    """Hold the Pythons of one stage.

    Attributes:
        default: version of the distribution's python3; None if something else is python3 or pip3.
        added: version → line that installs it. filled: version → line that installs packages for it.
    """

    default: str | None
    added: dict[str, int] = field(default_factory=dict)
    filled: dict[str, int] = field(default_factory=dict)


def other_python(file: Dockerfile) -> Iterator[Remark]:
    """Find pip3 and python3 of the distribution in an image that installs another Python."""
    stages: list[_Pythons] = []
    for stage in file.stages:
        if stage.parent is None:
            pythons = _Pythons(python_of_image(stage.image) or python3_of_distribution(stage.image))
        else:
            before = stages[stage.parent]
            pythons = _Pythons(before.default, {**before.added}, {**before.filled})
        stages.append(pythons)
        for command in (each for each in file.commands if each.stage == stage.number):
            if pythons.default and (remark := _remark_on(command, pythons, stage.image)):
                yield remark
                pythons.default = None  # once is enough
    yield from _starts(file, stages[-1])


def _remark_on(command: Command, pythons: _Pythons, image: str) -> Remark | None:
    """Record a command in ``pythons``; return its remark, or None if it has none."""
    assert pythons.default is not None
    if _stands_in(command):
        pythons.default = None
        return None
    install = next(installs_of((command,)), None)
    if install is None or install.action != "install":
        return None
    if install.tool in _APT:
        for name in install.packages:
            if (match := _INTERPRETER.match(name)) and match[1] != pythons.default:
                pythons.added.setdefault(match[1], install.line)
    elif own := _VERSIONED.match(command.words[0]):
        pythons.filled.setdefault(own[1], install.line)
    elif pythons.added and _is_the_distributions(install):
        version, line = next(iter(pythons.added.items()))
        used = " ".join(command.words[: command.words.index("install")])
        return Remark(
            install.line,
            "other-python",
            "warning",
            f"{used} installs for Python {pythons.default}, the python3 of {image}; python{version}, which line {line} "
            "installs, has none of it",
            f"python{version} -m pip install …, and python{version} in CMD; or without python{version}, on Python "
            f"{pythons.default}; or FROM python:{version}-slim-bookworm",
        )
    return None


def _is_the_distributions(install: Install) -> bool:
    words = install.command.words
    return install.tool == "pip" and (words[0] in _PIP or (words[0] in _PYTHON and words[1:3] == ("-m", "pip")))


def _stands_in(command: Command) -> bool:
    """Return True if python3 or pip3 is another one afterwards: linked, in an environment, or a pip of a version."""
    words, text = command.words, command.text
    if words[:1] == ("update-alternatives",) or words[:1] == ("ln",):
        return bool(re.search(r"/(?:python3|pip3?)(?:\s|$)", text))
    if re.search(r"-m venv\b|virtualenv|\bconda\b|\bmamba\b|pyenv|get-pip|ensurepip", text):
        return True
    install = next(installs_of((command,)), None)
    return bool(install and install.tool == "uv") or bool(
        install and install.tool == "pip" and _VERSIONED.match(words[0]) and install.package("pip")
    )


def _starts(file: Dockerfile, pythons: _Pythons) -> Iterator[Remark]:
    """Find CMD and ENTRYPOINT that start python3 while the packages belong to another Python."""
    default = pythons.default
    if default is None or not pythons.filled or default in pythons.filled:
        return
    version, line = next(iter(pythons.filled.items()))
    for each in (each for each in file.instructions if each.name in ("CMD", "ENTRYPOINT")):
        for command in commands_of(each) if each.stage == file.final.number else ():
            if command.words[:1] and command.words[0] in _PYTHON:
                yield Remark(
                    command.line,
                    "other-python",
                    "error",
                    f"{command.words[0]} is Python {default} here, and line {line} installs for python{version}",
                    f'CMD ["python{version}", …]',
                )


RULES = (other_python,)
