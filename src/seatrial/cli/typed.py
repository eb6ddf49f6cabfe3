"""What may be typed: words that are text, references to runs, counts. What cannot be meant is refused by its name."""

from __future__ import annotations

import os
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import click

from seatrial.errors import UsageError

#: IDs, their parts, and names as seatrial.toml's ``name`` takes them (job/model.py).
_REFERENCE = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]{0,62}")


def check_words(argv: Sequence[str]) -> None:
    """Every word must be UTF-8: it goes into plan.json and to a container. Raises UsageError naming the first."""
    for word in argv:
        if word.isascii() or not _has_undecoded(word):
            continue
        verb = argv[0]
        try:
            text = os.fsencode(word).decode("utf-8")
        except UnicodeDecodeError:
            raise UsageError(
                f"An argument is not UTF-8 text: {quoted(word)}", run=f"seatrial {verb} --help   # rename the file"
            ) from None
        raise UsageError(
            f"This locale cannot encode {quoted(text)}",
            cause="it is not UTF-8",
            run=f"PYTHONUTF8=1 seatrial {verb} …",
        )


def check_folder(project: Path) -> Path:
    """A project's folder as given. Raises UsageError when its path is not UTF-8 text."""
    if _has_undecoded(str(project)):
        raise UsageError(
            f"The project's path is not UTF-8 text: {quoted(str(project))}",
            cause="it goes into plan.json and to a container",
            run="rename the folder",
        )
    return project


class RunReference(click.ParamType[str, Any]):
    """A run as people name it: an ID, a part of one, a name, or last. "" would fit every run."""

    name = "run"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> str:
        if not _REFERENCE.fullmatch(value):
            raise UsageError(
                f"{quoted(value)} is not a run: expected an ID, part of an ID, a name, or last", run="seatrial runs ls"
            )
        return str(value)


class RunAndPath(RunReference):
    """``RUN[:PATH]``, of which RUN is checked."""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> str:
        super().convert(value.partition(":")[0], param, ctx)
        return str(value)


class GroupName(click.ParamType[str, Any]):
    """A name to be given, by which a group can be found again."""

    name = "name"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> str:
        if value == "last" or not _REFERENCE.fullmatch(value):
            raise UsageError(
                f"{quoted(value)} cannot be a name: letters, digits, . _ - (at most 63), and not last",
                run="seatrial up --name NAME",
            )
        return str(value)


def statuses(text: str | None, known: Sequence[str]) -> tuple[str, ...]:
    """``failed`` or ``failed,unmet``. Raises UsageError for one that is none."""
    words = tuple(word.strip() for word in (text or "").split(",") if word.strip())
    if (text is not None and not words) or (strange := [word for word in words if word not in known]):
        wrong = quoted(strange[0] if words else text or "")
        raise UsageError(
            f"{wrong} is not a status: choose from {', '.join(known)}", run="seatrial runs ls --status failed"
        )
    return words


def duration(text: str) -> float:
    """Seconds of ``30m``, ``2h``, ``2d``, ``1w``. Raises UsageError."""
    from seatrial.job.units import parse_seconds

    days = re.fullmatch(r"([0-9]{1,4})([dw])", text.strip())
    if days:
        return float(days[1]) * {"d": 86400, "w": 604800}[days[2]]
    try:
        return parse_seconds(text)
    except UsageError as error:
        raise UsageError(f"--since: {error.message}", run="seatrial runs ls --since 2d") from None


def quoted(text: str) -> str:
    """In quotes on one line, at most 80 letters of it; bytes that are not UTF-8 as ``\\\\xff``."""
    plain = os.fsencode(text).decode("utf-8", "backslashreplace") if _has_undecoded(text) else text
    line = "".join(letter if letter.isprintable() else letter.encode("unicode_escape").decode() for letter in plain)
    return f'"{line if len(line) <= 80 else line[:79] + "…"}"'


def _has_undecoded(text: str) -> bool:
    """Whether it holds bytes that Python could not decode, which it keeps as halves of characters (PEP 383)."""
    return any("\ud800" <= letter <= "\udfff" for letter in text)
