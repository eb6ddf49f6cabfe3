"""The folder that goes with a user's own Dockerfile: how much of it the builder gets, and its .dockerignore.

What seatrial builds itself needs none of this: its context holds the Dockerfile and the requirement files alone.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from seatrial.errors import ConfigError, printable
from seatrial.images.dockerfiles.dockerignore import BadPatternError, Pattern
from seatrial.images.dockerfiles.parts import Dockerfile, Remark
from seatrial.system.project_files import is_there, read_text

#: A context of this size is sent anew whenever a file in it changes; above the second, hardly anybody means it.
_MUCH_BYTES, _TOO_MUCH_BYTES = 1_000_000_000, 10_000_000_000

#: What most projects leave out; the names that are there are proposed.
_USUAL = (
    ".git",
    ".venv",
    "venv",
    "node_modules",
    "__pycache__",
    ".seatrial",
    "data",
    "models",
    "runs",
    "wandb",
    "mlruns",
)

_NAMED = 3


#: Lines of a .dockerignore that are looked at, and its bytes.
_MOST_LINES, _MAX_BYTES = 1000, 200_000


@dataclass(frozen=True)
class _Line:
    """A line of .dockerignore: paths it matches, or, with ``!``, takes back."""

    keeps: bool
    pattern: Pattern


def context_remarks(file: Dockerfile, path: Path) -> Iterator[Remark]:
    """What is wrong with the context of the Dockerfile at ``path``, when its folder is the context."""
    folder = path.parent
    copies = list(_copies(file))
    if not copies:
        return
    ignore = next((each for each in (Path(f"{path}.dockerignore"), folder / ".dockerignore") if is_there(each)), None)
    patterns: list[_Line] = []
    if ignore is not None:
        try:
            lines = read_text(ignore, inside=folder, limit_bytes=_MAX_BYTES).splitlines()
        except ConfigError as error:  # a link to itself, a folder
            yield Remark(1, "dockerignore", "error", error.message, f"ls -l {ignore}", ignore)
            return
        yield from _bad_lines(lines, ignore)
        patterns = _patterns(lines)
    sizes = _sent(folder, patterns, {source for _, source in copies})
    total, line = sum(sizes.values()), copies[0][0]
    largest = sorted((row for row in sizes.items() if row[1] * 100 >= total), key=lambda row: -row[1])[:_NAMED]
    named = ", ".join(f"{name} {size / 1e9:.1f} GB" for name, size in largest)
    if total >= _MUCH_BYTES:
        usual = [name for name, _ in largest if name in _USUAL and not _is_code(folder / name)] or [largest[0][0]]
        yield Remark(
            line,
            "context-size",
            "error" if total >= _TOO_MUCH_BYTES else "warning",
            f"the builder would receive {total / 1e9:.1f} GB of {folder.resolve()}: {named}",
            f"in .dockerignore: {' '.join(usual)}   # and mount them at run time",
        )
    elif ignore is None and (there := [name for name in _USUAL if name in sizes and not _is_code(folder / name)]):
        yield Remark(
            line,
            "dockerignore",
            "hint",
            f"there is no .dockerignore: {', '.join(there)} go into the image",
            f"printf '%s\\n' {' '.join(there)} > .dockerignore",
        )


def _is_code(folder: Path) -> bool:
    """``data`` and ``models`` are also what people call the modules that read data and hold models."""
    return folder.name in ("data", "models", "runs") and next(folder.glob("*.py"), None) is not None


def _copies(file: Dockerfile) -> Iterator[tuple[int, str]]:
    """(line, source) of what COPY and ADD take out of the context."""
    for each in file.instructions:
        if each.name not in ("COPY", "ADD") or "--from=" in each.value:
            continue
        words = [word.strip("\"'[],") for word in each.value.split() if not word.startswith("--")]
        for source in words[:-1]:
            if "://" not in source and not source.startswith("<<"):
                yield each.line, os.path.normpath(source).lstrip("/")


def _bad_lines(lines: list[str], ignore: Path) -> Iterator[Remark]:
    for number, line in enumerate(lines, 1):
        text = line.strip()
        if number > _MOST_LINES:
            reason, fix = f"more than {_MOST_LINES} lines: the rest is ignored", f"wc -l {ignore}"
            yield Remark(number, "dockerignore", "warning", reason, fix, ignore)
            return
        if text.startswith("#"):
            continue
        if f"{os.path.normpath(text.lstrip('!'))}/".startswith("../"):
            reason = f"{printable(text)} points outside the context: it matches nothing"
            yield Remark(
                number, "dockerignore", "error", reason, "write paths relative to the context's folder", ignore
            )
            continue
        try:
            Pattern.parse(text.lstrip("!").strip())
        except BadPatternError as error:
            reason = f"{printable(text)} is not a valid pattern: {error}"
            yield Remark(number, "dockerignore", "error", reason, "the builder rejects it: rewrite it", ignore)


def _patterns(lines: list[str]) -> list[_Line]:
    found = []
    for line in lines[:_MOST_LINES]:
        text = line.strip()
        if text and not text.startswith("#"):
            with suppress(BadPatternError):  # said already
                found.append(_Line(text.startswith("!"), Pattern.parse(text.lstrip("!").strip())))
    return found


def _sent(folder: Path, patterns: list[_Line], sources: set[str]) -> dict[str, int]:
    """Bytes by topmost name of what the sources take and no pattern leaves out. Links are sent as links."""
    wanted = []
    for source in sources:
        with suppress(BadPatternError):  # it takes nothing; the builder says so
            wanted.append(Pattern.parse(source))
    whole = bool({".", "*"} & sources)
    sizes: dict[str, int] = {}
    keeps = any(line.keeps for line in patterns)
    for parent, folders, files in os.walk(folder):
        inside = Path(parent).relative_to(folder)
        for name in files:
            place = inside / name
            taken = whole or any(each.matches(place) for each in wanted)
            if taken and not _ignored(place, patterns):
                with suppress(OSError):  # gone since
                    size = (folder / place).lstat().st_size
                    sizes[place.parts[0]] = sizes.get(place.parts[0], 0) + size
        if not keeps:
            folders[:] = [each for each in folders if not _ignored(inside / each, patterns)]
    return sizes


def _ignored(place: Path, patterns: list[_Line]) -> bool:
    """The last line that matches decides."""
    for line in reversed(patterns):
        if line.pattern.matches(place):
            return not line.keeps
    return False
