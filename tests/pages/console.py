"""Runs the console blocks of a page and compares their output with the page.

A page that begins with ``<!-- executable -->``, or with ``: docker`` or ``: cluster`` after the word, has its blocks
run in order, in one shell and one empty folder. ``<!-- file: NAME -->`` before a block writes it to that file;
``<!-- file of PAGE: NAME -->`` by itself writes one that another page shows. A console block that does not run has a
line before it: ``<!-- recorded 2026-11-21: gpu -->`` gives the date of its output and what it needs,
``<!-- not run: REASON -->`` explains a missing output.
"""

from __future__ import annotations

import re
import subprocess
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import date
from pathlib import Path

EXECUTABLE = re.compile(r"^<!-- executable(?:: (docker|cluster))? -->$", re.MULTILINE)

_FILE_OF = re.compile(r"^<!-- file of ([^\s:]+): (\S+) -->$", re.MULTILINE)

#: What a block may need that a machine for tests lacks.
NEEDS = ("gpu", "docker", "cluster", "network")

_BLOCK = re.compile(r"(?:^<!-- ([^\n]*) -->\n+)?^```(\w+)[^\n]*\n(.*?)^```$", re.MULTILINE | re.DOTALL)
_RECORDED = re.compile(r"recorded (\d{4}-\d\d-\d\d): (\w+(?:, \w+)*)")
_RUN_NAME = re.compile(r"\b\d{8}-\d{6}-[a-z0-9]{4}\b")
_NUMBER = re.compile(r"\d[\d,]*(?:\.\d+)?")

#: Ends a command's output: no program prints it.
_END = "\x1e"


@dataclass
class Command:
    """One line after ``$``, and the lines shown below it."""

    typed: str
    shown: list[str] = field(default_factory=list)


@dataclass
class Block:
    """One fenced block: a file to write, or commands. ``recorded``: since when, where it cannot run here.

    ``not_run``: why no test runs it, where it shows no output either.
    """

    line: int
    file: str | None = None
    text: str = ""
    commands: list[Command] = field(default_factory=list)
    recorded: date | None = None
    needs: tuple[str, ...] = ()
    not_run: str = ""


def blocks(page: str) -> Iterator[Block]:
    """Yield the files and console blocks of a page. Raises ValueError: an unknown marker."""
    for found in _BLOCK.finditer(page):
        marker, language, text = found.groups()
        block = Block(line=page.count("\n", 0, found.start()) + 1, text=text)
        if marker and marker.startswith("file: "):
            block.file = marker.removeprefix("file: ").strip()
        elif marker and marker.startswith("recorded"):
            block.recorded, block.needs = _recorded(marker)
        elif marker and marker.startswith("not run: "):
            block.not_run = marker.removeprefix("not run: ")
        elif marker and not marker.startswith(("executable", "file of ")):
            raise ValueError(f"line {block.line}: unknown marker {marker!r}")
        if language == "console":
            block.commands = list(_commands(text))
        if block.not_run and any(command.shown for command in block.commands):
            raise ValueError(f"line {block.line}: what is not run shows no output; recorded output has a date")
        if block.file or block.commands:
            yield block


def _recorded(marker: str) -> tuple[date, tuple[str, ...]]:
    found = _RECORDED.fullmatch(marker)
    if not found:
        raise ValueError(f"not 'recorded YYYY-MM-DD: {' | '.join(NEEDS)}': {marker!r}")
    needs = tuple(found[2].split(", "))
    if unknown := set(needs) - set(NEEDS):
        raise ValueError(f"{marker!r}: unknown {', '.join(sorted(unknown))}")
    return date.fromisoformat(found[1]), needs


def _commands(text: str) -> Iterator[Command]:
    command: Command | None = None
    for line in text.splitlines():
        if line.startswith("$ "):
            if command:
                yield command
            command = Command(line[2:])
        elif command is None:
            raise ValueError(f"a console block begins with '$ ': {line!r}")
        elif command.typed.endswith("\\") and not command.shown:
            command.typed += "\n" + line
        else:
            command.shown.append(line)
    if command:
        yield command


def borrowed(page: str) -> list[tuple[str, str]]:
    """Return files that other pages show: ``(PAGE, NAME)``."""
    return _FILE_OF.findall(page)


def run(page: str, folder: Path, environment: Mapping[str, str], timeout_s: float = 300) -> list[str]:
    """Run a page and return each difference. A command must end with 0, or ``echo $?`` follows it."""
    wrong: list[str] = []
    typed: list[Command] = []
    script = ["exec 2>&1 </dev/null"]
    for block in blocks(page):
        if block.recorded or block.not_run:
            continue
        if block.file:
            script += [f"cat > '{block.file}' <<'{_END}'", block.text + _END]
        for command in block.commands:
            typed.append(command)
            script += [command.typed, f"__code=$?; printf '\\n{_END}%d\\n' $__code; (exit $__code)"]
    done = subprocess.run(
        ["bash", "-c", "\n".join(script)],
        cwd=folder, env=dict(environment), stdout=subprocess.PIPE, text=True, timeout=timeout_s, check=False,
    )  # fmt: skip
    printed = re.split(rf"\n?{_END}(\d+)\n", done.stdout)
    for place, command in enumerate(typed):
        if 2 * place + 1 >= len(printed):
            return [*wrong, f"$ {command.typed}\nwas not reached; the shell ended with {done.returncode}"]
        output, code = printed[2 * place], int(printed[2 * place + 1])
        follows = typed[place + 1].typed if place + 1 < len(typed) else ""
        if code and not follows.startswith("echo $?"):
            wrong.append(f"$ {command.typed}\nended with {code}:\n{output}")
        elif command.shown and not same(command.shown, output.splitlines()):
            wrong.append(f"$ {command.typed}\nprinted:\n{output}\nthe page shows:\n" + "\n".join(command.shown))
    return wrong


def same(shown: Sequence[str], printed: Sequence[str]) -> bool:
    """Compare, ignoring numbers with a fraction, run names, widths of space, and text that … replaces.

    Whole numbers count: an exit code or a step is part of the page. A sentence on indented lines may break
    elsewhere: with a longer number in it, it does.
    """
    lines = [line for line in shown if line.strip()]
    pattern = ""
    for place, line in enumerate(lines, 1):
        follows = lines[place] if place < len(lines) else ""
        one = _pattern(line)
        if one == "…":
            pattern += r"(?:[^\n]*\n)*?"
            continue
        indent = _indent(line)
        goes_on = indent and indent == _indent(follows) and follows.strip() != "…"
        pattern += (one.replace("\\ ", r"[ \n]") if indent else one) + (r"[ \n]" if goes_on else r"\n")
    text = "".join(" ".join(line.split()) + "\n" for line in printed if line.strip())
    return re.fullmatch(pattern, text) is not None


def _indent(line: str) -> int:
    return len(line) - len(line.lstrip(" "))


def _pattern(line: str) -> str:
    """Return a line as a regular expression; a line of … alone is returned unchanged."""
    words = " ".join(line.split())
    if words == "…":
        return words
    words = _RUN_NAME.sub("\x01", words)
    words = _NUMBER.sub(lambda found: "\x02" if "." in found[0] else found[0], words)
    words = re.escape(words).replace("…", "[^\\n]*")
    words = re.sub(r"[▁▂▃▄▅▆▇█]+", "[▁▂▃▄▅▆▇█]+", words)
    return words.replace("\x01", _RUN_NAME.pattern).replace("\x02", _NUMBER.pattern)
