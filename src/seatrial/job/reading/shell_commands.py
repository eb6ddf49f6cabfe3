"""The training command that a shell script or Makefile holds, in seatrial's words. Nothing is run."""

from __future__ import annotations

import posixpath
import re
import shlex
from collections.abc import Callable, Iterator

from seatrial.system.records import dataclass

#: Text that is looked at; a command stands at the top of a script of this kind.
_MOST_CHARACTERS = 100_000

#: Words in front of a command that change how it is started, and not what.
_WRAPPERS = {"exec", "env", "nohup", "time", "sudo", "command", "then", "do", "else", "nice"}
_ASSIGNMENT = re.compile(r"[A-Za-z_]\w*=")
_PYTHON = re.compile(r"([\w./~-]*/)?python[\d.]*|\$[({]?PYTHON\d?[)}]?")

#: Launchers' words for the number of processes. Source: --help of torchrun, accelerate launch, deepspeed, horovodrun.
_PROCESSES = re.compile(r"(?:--(?:nproc[_-]per[_-]node|num[_-]processes|num[_-]gpus|num-proc)|-np)(?:=(.*))?")
#: Programs that start Python on a script themselves.
LAUNCHERS = ("torchrun", "accelerate", "deepspeed", "horovodrun")
_REDIRECTION = re.compile(r"[0-9&]?[<>]")
_LAUNCH_MODULES = ("torch.distributed.run", "torch.distributed.launch", "accelerate.commands.launch")


@dataclass(frozen=True)
class ShellCommand:
    """One command.

    Attributes:
        line: its first line, from 1. typed: the words as they stand there.
        seatrial: the same as ``seatrial run …``.
    """

    line: int
    typed: str
    seatrial: str


def training_command(text: str, is_file: Callable[[str], bool], *, makefile: bool = False) -> ShellCommand | None:
    """The first command that starts Python on a script or module of the project, or None.

    Args:
        is_file: whether a path relative to the project is a file.
    """
    folder, last = ".", 0
    for line, words in _commands(text[:_MOST_CHARACTERS], makefile):
        if makefile and line != last:
            folder = "."  # each line of a recipe has a shell of its own
        last = line
        if words[:1] == ["cd"] and len(words) == 2:
            folder = posixpath.normpath(posixpath.join(folder, words[1]))
            continue
        found = _read(words, folder, is_file)
        if found is not None:
            return ShellCommand(line, shlex.join(words), found)
    return None


def _commands(text: str, makefile: bool) -> Iterator[tuple[int, list[str]]]:
    """(first line, words) of each simple command; lines that are no shell are passed over."""
    joined: list[str] = []
    start = 1
    for number, line in enumerate(text.splitlines(), 1):
        start = start if joined else number
        joined.append(line[:-1] if line.endswith("\\") else line)
        if line.endswith("\\"):
            continue
        whole, joined = " ".join(joined), []
        if makefile:
            if not whole.startswith("\t"):
                continue
            whole = whole.lstrip("\t@-+ ").replace("$$", "$")
        for part in re.split(r"&&|\|\||;|\|", whole):
            try:
                words = shlex.split(part, comments=True)
            except ValueError:
                continue
            if words:
                yield start, words


def _read(words: list[str], folder: str, is_file: Callable[[str], bool]) -> str | None:
    while words and (words[0] in _WRAPPERS or _ASSIGNMENT.match(words[0])):
        words = words[1:]
    if not words:
        return None
    if words[0] == "srun":
        words = words[next((at for at, word in enumerate(words) if _starts(word)), len(words)) :]
    if not words or not _starts(words[0]):
        return None
    gpus, rest = None, words[1:]
    launcher = words[0] if not _PYTHON.fullmatch(words[0]) else None
    while rest:
        word = rest.pop(0)
        if match := _PROCESSES.fullmatch(word):
            gpus = match[1] or (rest.pop(0) if rest else None)
        elif word in ("-m", "--module") and rest and rest[0] in _LAUNCH_MODULES:
            launcher = rest.pop(0)
        elif word in ("-m", "--module") and rest and not rest[0].endswith(".py"):
            return _as_run(gpus, ["-m", rest[0]], rest[1:])
        elif word.endswith(".py"):
            script = posixpath.normpath(posixpath.join(folder, word))
            return _as_run(gpus, [script], rest) if is_file(script) else None
        elif not word.startswith("-") and not launcher:
            return None  # python -c …, a script without .py
    return None


def _starts(word: str) -> bool:
    return _PYTHON.fullmatch(word) is not None or word in LAUNCHERS


def _as_run(gpus: str | None, target: list[str], arguments: list[str]) -> str:
    words = ["seatrial", "run"]
    if gpus is not None and (gpus.isdigit() or gpus in ("gpu", "auto")):
        words += ["--gpus", gpus if gpus.isdigit() else "all"]
    command = shlex.join([*words, *target])
    end = next((at for at, word in enumerate(arguments) if word == "&" or _REDIRECTION.match(word)), len(arguments))
    arguments = arguments[:end]
    if not arguments:
        return command
    if any(mark in word for word in arguments for mark in "$`"):
        return f"{command} -- …    # with its arguments: the shell's variables are not read"
    return f"{command} -- {shlex.join(arguments)}"
