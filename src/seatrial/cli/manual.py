"""The manual page: everything that can be typed, in roff, from the same data as completion."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from seatrial import __version__

#: As in the table of docs/how-to/index.md.
EXIT_CODES = (
    (0, "done"),
    (1, "the target failed; its own exit code is in the receipt"),
    (2, "usage: an invalid request"),
    (3, "GPU contract: requested GPUs are missing, unusable or unused"),
    (4, "criteria not met, under --strict"),
    (5, "engine or environment"),
)


def manual(commands: Mapping[str, Mapping[str, Any]]) -> str:
    """seatrial(1), of what words.read gives."""
    return "\n".join(_lines(commands)) + "\n"


def _lines(commands: Mapping[str, Mapping[str, Any]]) -> Iterator[str]:
    yield f'.TH SEATRIAL 1 "" "seatrial {__version__}" "User Commands"'
    yield from (".SH NAME", r"seatrial \- takes a training script into a GPU container and proves what the GPU did")
    yield from (".SH SYNOPSIS", r".B seatrial", r"COMMAND [OPTIONS] [TARGET] [\-\- TARGET'S OWN ARGUMENTS]")
    yield ".SH DESCRIPTION"
    yield "Runs a training script in a lean container on the GPUs requested, and ends every run with a receipt:"
    yield "measured evidence of what the GPU did."
    yield ".SH COMMANDS"
    for name, command in commands.items():
        yield from _command(name, command)
    yield ".SH EXIT STATUS"
    for code, words in EXIT_CODES:
        yield from (".TP", f".B {code}", _text(words))
    yield from (".SH FILES", ".TP", ".I seatrial.toml", "A project's settings; every flag of a job is a key there.")
    yield from (".TP", ".I .seatrial/runs/", "A folder for each run: receipt, logs, what it saved.")
    yield from (".TP", ".I ~/.local/state/seatrial", "What seatrial knows about runs; no container sees it.")


def _command(name: str, command: Mapping[str, Any]) -> Iterator[str]:
    arguments = " ".join(argument["metavar"] for argument in command["arguments"])
    yield f'.SS "seatrial {_text(name)} {_text(arguments)}"'
    for paragraph in command["about"].split("\n\n"):
        yield from (".PP", _text(" ".join(paragraph.split())))
    for argument in command["arguments"]:
        if argument["help"]:
            yield from (".TP", f".I {_text(argument['metavar'])}", _text(argument["help"]))
    for option in command["options"]:
        shown = ", ".join(option["names"]) + (f" {option['metavar']}" if option["metavar"] else "")
        yield from (".TP", f".B {_text(shown)}", _text(option["help"]))
    if command["examples"]:
        yield from (".PP", "Examples:", ".nf", *(f".RS\n{_text(line)}\n.RE" for line in command["examples"]), ".fi")


def _text(words: str) -> str:
    """As roff prints it: its own signs escaped, and no line that begins a request."""
    escaped = " ".join(words.split()).replace("\\", r"\e").replace("-", r"\-")
    return rf"\&{escaped}" if escaped.startswith((".", "'")) else escaped
