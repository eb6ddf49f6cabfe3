"""Caller: who started this command, as far as a target may have what is theirs: input, and the terminal looked at."""

from __future__ import annotations

import os
import stat
from dataclasses import dataclass
from typing import Literal

from seatrial.system.host import Host

#: ``terminal``: someone who types, in the foreground. ``pipe``: a pipe or socket. ``file``: a regular file.
#: ``nothing``: closed, /dev/null, another device, or a terminal of a job in the background.
InputKind = Literal["terminal", "pipe", "file", "nothing"]

#: Size of a terminal that reports none (a serial line, some CI's).
_COLUMNS, _LINES = 80, 24


@dataclass(frozen=True)
class Caller:
    """Describes the standard streams of the process that runs a command.

    Attributes:
        input: what standard input is. asks: ``--interactive``: it is for the target in any case.
        screens: which of stdout (1) and stderr (2) are terminals that show the target's.
        columns, lines: of that terminal. term, colors: $TERM, $COLORTERM.
    """

    input: InputKind = "nothing"
    asks: bool = False
    screens: tuple[int, ...] = ()
    columns: int = _COLUMNS
    lines: int = _LINES
    term: str | None = None
    colors: str | None = None


def read_caller(host: Host, *, asks: bool = False, shows_output: bool = True) -> Caller:
    """Look at this process's standard streams.

    Args:
        shows_output: the target's stdout goes to ours.
    """
    screens = tuple(number for number in (1, 2) if shows_output and os.isatty(number))
    columns, lines = window_size(screens[0]) if screens else (_COLUMNS, _LINES)
    return Caller(
        input=_input_kind(),
        asks=asks,
        screens=screens,
        columns=columns,
        lines=lines,
        term=host.env.get("TERM"),
        colors=host.env.get("COLORTERM"),
    )


def window_size(descriptor: int) -> tuple[int, int]:
    """Return (columns, lines) of a terminal; those of a usual one where they are unknown."""
    try:
        size = os.get_terminal_size(descriptor)
    except OSError:
        return _COLUMNS, _LINES
    return size.columns or _COLUMNS, size.lines or _LINES


def _input_kind() -> InputKind:
    try:
        mode = os.fstat(0).st_mode
    except OSError:
        return "nothing"
    if stat.S_ISFIFO(mode) or stat.S_ISSOCK(mode):
        return "pipe"
    if stat.S_ISREG(mode):
        return "file"
    return "terminal" if in_foreground(0) else "nothing"


def in_foreground(descriptor: int) -> bool:
    """Return True if this is a terminal whose keys are for this process: reading as a background job would stop it."""
    try:
        return os.isatty(descriptor) and os.tcgetpgrp(descriptor) == os.getpgrp()
    except OSError:  # another session's terminal
        return False
