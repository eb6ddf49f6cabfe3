"""Printing an error: one sentence, its cause, the command to run next. Never a traceback for what we know."""

from __future__ import annotations

import errno
import os
import re
import shlex
import sys
import tempfile
import traceback
from itertools import pairwise

from rich.console import Console
from rich.text import Text

from seatrial.errors import EXIT_ENGINE, EXIT_USAGE, CapacityError, GpuContractError, SeatrialError

#: How errors and findings say "the same on the CPU", without knowing what was typed.
WITHOUT_GPUS = "seatrial run --gpus none …"
#: And how they say "the same, and what the project asks for is allowed".
WITH_TRUST = "seatrial run --trust …"


def report(error: Exception, argv: list[str]) -> int:
    """Print it to stderr; the exit code."""
    console = Console(stderr=True, highlight=False, soft_wrap=True)
    if isinstance(error, SeatrialError):
        _print(console, error.message, error.cause, as_typed(error.run, argv))
        if isinstance(error, GpuContractError) and not isinstance(error, CapacityError):
            second_opinion(console, argv)
        return error.exit_code
    if (usage := _usage_problem(error, argv)) is not None:
        _print(console, *usage)
        return EXIT_USAGE
    if isinstance(error, OSError) and error.errno in (errno.ENOSPC, errno.EDQUOT, errno.EROFS):
        _print(console, f"{error.filename or 'A file'} cannot be written: {error.strerror}", None, "df -h . /tmp")
        return EXIT_ENGINE
    return _unexpected(console, error)


def second_opinion(console: Console, argv: list[str]) -> None:
    """What doctor sees of the host, for a GPU contract that is broken."""
    from seatrial.doctor import examine  # only now: no other error needs it

    console.print(Text(as_typed(examine.second_opinion(os.environ), argv) or ""))


def as_typed(advice: str | None, argv: list[str]) -> str | None:
    """Advice with the user's own command in place of WITHOUT_GPUS and WITH_TRUST."""
    if advice is None or (WITHOUT_GPUS not in advice and WITH_TRUST not in advice):
        return advice
    ours, theirs = (argv[: argv.index("--")], argv[argv.index("--") :]) if "--" in argv else (argv, [])
    kept = [
        word
        for before, word in pairwise(["", *ours])
        if before != "--gpus" and word != "--gpus" and not word.startswith("--gpus=")
    ]
    advice = advice.replace(WITH_TRUST, shlex.join(["seatrial", *ours, "--trust", *theirs]))
    return advice.replace(WITHOUT_GPUS, shlex.join(["seatrial", *kept, "--gpus", "none", *theirs]))


def _print(console: Console, message: str, cause: str | None, run: str | None) -> None:
    if re.match(r"(?!seatrial\b)[a-z]+ ", message):  # a sentence, and not a key, file or flag that begins it
        message = message[0].upper() + message[1:]
    lines = Text()
    lines.append("error", style="bold red").append(f": {message.rstrip('.')}\n")
    if cause:
        lines.append("  why", style="bold").append(f": {cause}\n")
    if run:
        lines.append("  run", style="bold").append(f": {run}\n")
    console.print(lines, end="")


def _usage_problem(error: Exception, argv: list[str]) -> tuple[str, str | None, str | None] | None:
    """(message, cause, command) of an error in the words typed, as typer's parser raises it, else None."""
    format_message = getattr(error, "format_message", None)
    if format_message is None:
        return None
    message: str = format_message().split(" (Possible options")[0]
    if type(error).__name__ == "NoSuchOption" and argv[0] in ("run", "plan") and "--" not in argv:
        option = getattr(error, "option_name", "")
        return (
            message,
            "The target's own arguments go behind --",
            f"seatrial {argv[0]} {_first_word(argv)} -- {option} …",
        )
    place = getattr(getattr(error, "ctx", None), "command_path", f"seatrial {argv[0]}")
    return message, None, f"{place} --help"


def _first_word(argv: list[str]) -> str:
    return next((word for word in argv[1:] if not word.startswith("-")), "TARGET")


def _unexpected(console: Console, error: Exception) -> int:
    """A defect of ours: a sentence for the user, the traceback in a file for the report."""
    with tempfile.NamedTemporaryFile("w", prefix="seatrial-", suffix=".traceback", delete=False) as file:
        traceback.print_exception(error, file=file)
    _print(
        console,
        f"seatrial itself failed: {type(error).__name__}: {error}",
        f"This is a defect of seatrial; the traceback is in {file.name}",
        f"SEATRIAL_TRACEBACK=1 seatrial {' '.join(sys.argv[1:])}",
    )
    return EXIT_ENGINE
