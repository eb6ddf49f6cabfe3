"""Split RUN, CMD and ENTRYPOINT into simple commands, and find what they install."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path

from seatrial.errors import fallback
from seatrial.images.lint.instructions import JOINT, Instruction
from seatrial.system.project_files import own_table

_TOKEN = re.compile(
    rf"(?P<space>(?:[ \t\r{JOINT}]|\\\n)+)|(?P<newline>\n)|(?P<operator>&&|\|\||;;|[;|&()`])|(?P<comment>#[^\n]*)"
    r"|(?P<word>(?:[^\s;|&()`'\"\\]|\\.|\\$|'[^']*'|\"(?:[^\"\\]|\\.)*\"|['\"])+)",
    re.DOTALL,
)
_OPENING, _CLOSING = ("if", "case"), ("fi", "esac")
_KEYWORDS = ("then", "else", "elif", "do", "done", "while", "until", "!", "{", "}", "time", "exec", "command", "eval")
_ASSIGNMENT = re.compile(r"[A-Za-z_]\w*=")

#: Programs that run the program after them.
_WRAPPERS = ("sudo", "env", "nice", "nohup", "timeout", "xargs", "stdbuf", "conda run")
_CONDA = ("conda", "mamba", "micromamba")
_SHELLS = re.compile(r"(?:/usr)?(?:/bin/)?(?:ba|da|z)?sh$")

#: Deeper than people nest ``bash -c "…"``.
_MOST_NESTED = 3


@dataclass(frozen=True)
class Command:
    """Hold a simple command.

    Attributes:
        words: without quotes, assignments, keywords and wrappers such as sudo.
        line: of its first word, counted from 1 in the file.
        sometimes: True in an ``if`` or behind ``||``.
        stage: of its instruction.
        settings: assignments before it.
    """

    words: tuple[str, ...]
    line: int
    stage: int
    sometimes: bool = False
    settings: tuple[str, ...] = ()

    @property
    def text(self) -> str:
        return " ".join(self.words)


@fallback(None, on=(ValueError, RecursionError))
def words_of_list(value: str) -> list[str] | None:
    """Return the words of the exec form, ``["a", "b"]``; None if it is the shell form."""
    words = json.loads(value)
    return words if isinstance(words, list) and all(isinstance(word, str) for word in words) else None


def options_and_rest(raw: str) -> tuple[list[str], str]:
    """Split the instruction's own options, ``--mount=…``, from the text behind them."""
    found = re.match(rf"(?:[\s{JOINT}]*--[a-z][\w-]*(?:=[^\s{JOINT}]*)?(?=[\s{JOINT}]|$))*", raw)
    assert found is not None
    return found[0].replace(JOINT, " ").split(), raw[found.end() :]


def commands_of(each: Instruction) -> list[Command]:
    """Return the commands of a RUN, CMD or ENTRYPOINT; a here-document counts only if a shell reads it."""
    _, rest = options_and_rest(each.raw)
    line = each.line + each.raw[: len(each.raw) - len(rest)].count(JOINT)
    if (words := words_of_list(rest.replace(JOINT, "").strip())) is not None:
        found = list(_unwrapped(Command(tuple(words), line, each.stage), 0))
    else:
        found = list(_split(rest, line, each.stage, 0))
    if each.heredoc:
        reader = re.sub(r"\d*<<-?\S+", "", rest.replace(JOINT, " ")).split()
        if not reader or _SHELLS.match(reader[0]):
            found = list(_split(each.heredoc, each.heredoc_line, each.stage, 0))
    return found


def _split(text: str, line: int, stage: int, depth: int) -> Iterator[Command]:
    words: list[str] = []
    started, inside, behind_or = line, 0, False
    for token in _TOKEN.finditer(text):
        if token["word"]:
            word = _plain(token["word"])
            if not words and word in _KEYWORDS and not token["word"].startswith(("'", '"')):
                line += token[0].count("\n") + token[0].count(JOINT)
                continue  # the command behind it may begin in a later line
            started = started if words else line
            if not words and word in _OPENING + _CLOSING:
                inside = max(0, inside + (1 if word in _OPENING else -1))
            words.append(word)
        elif token["operator"] or token["newline"]:
            yield from _unwrapped(Command(tuple(words), started, stage, inside > 0 or behind_or), depth)
            words = []
            behind_or = token["operator"] == "||" or (behind_or and token["operator"] not in (";", None))
        line += token[0].count("\n") + token[0].count(JOINT)
    yield from _unwrapped(Command(tuple(words), started, stage, inside > 0 or behind_or), depth)


def _plain(word: str) -> str:
    """Remove quotes and line joints; variables stay as they are written."""
    quoted = r"'([^']*)'|\"((?:[^\"\\]|\\.)*)\"|\\(.)"
    return re.sub(quoted, lambda part: part[1] or part[2] or part[3] or "", word, flags=re.DOTALL).replace(JOINT, "")


def _unwrapped(command: Command, depth: int) -> Iterator[Command]:
    words, settings = list(command.words), []
    while words:
        program = words[0].rpartition("/")[2]
        wrapper = "conda run" if program in _CONDA and words[1:2] == ["run"] else program
        if words[0] in (*_KEYWORDS, *_OPENING, *_CLOSING):
            words.pop(0)
        elif _ASSIGNMENT.match(words[0]):
            settings.append(words.pop(0))
        elif wrapper in _WRAPPERS:
            del words[: len(wrapper.split())]
            while words and (words[0].startswith("-") or re.fullmatch(r"\d+[smh]?", words[0])):
                option = words.pop(0)
                del words[: option in _TAKING.get(wrapper, ())]
        else:
            break
    if len(words) > 2 and _SHELLS.match(words[0]) and depth < _MOST_NESTED:
        for at, word in enumerate(words[1:-1], 1):
            if re.fullmatch(r"-[a-z]*c", word):
                for inner in _split(words[at + 1], command.line, command.stage, depth + 1):
                    yield replace(inner, line=command.line, sometimes=inner.sometimes or command.sometimes)
                return
    if words or settings:
        yield replace(command, words=tuple(words), settings=tuple(settings))


_PYTHON = re.compile(r"(?:.*/)?python(?:[\d.]+|\$\{?\w+\}?)?$")
_PIP = re.compile(r"(?:.*/)?pip(?:[\d.]+|\$\{?\w+\}?)?$")
_SYSTEM = ("apt-get", "apt", "aptitude", "yum", "dnf", "microdnf", "apk", "zypper")

#: Tool → its options that take a word.
_TAKING: dict[str, list[str]] = own_table(Path(__file__).with_name("options.toml"))
_TAKING["uv"] = _TAKING["pip"]
_INDEXES = ("-i", "--index-url", "--default-index", "--index", "--extra-index-url", "-f", "--find-links")
_CHANNELS = ("-c", "--channel")
_BY_PIP = (("pip", "install"), ("uv", "install"), ("uv", "sync"), ("uv", "add"))
_FILES, _CONDA_FILES = ("-r", "--requirement", "--requirements"), ("-f", "--file")


@dataclass(frozen=True)
class Install:
    """Hold one command that installs: tool, action (``install``, ``sync``, ``create`` …) and the words behind it."""

    tool: str
    action: str
    words: tuple[str, ...]
    before: tuple[str, ...]
    command: Command

    @property
    def line(self) -> int:
        return self.command.line

    @cached_property
    def _sorted(self) -> tuple[list[str], list[tuple[str, str]]]:
        """Return (what is installed, options and their words)."""
        taking = _TAKING.get(self.tool, ())
        packages, options, waiting = [], [], ""
        for word in (*self.before, *self.words):
            if waiting:
                options.append((waiting, word))
                waiting = ""
            elif word in taking:
                waiting = word
            elif word.startswith("-"):
                name, _, value = word.partition("=")
                if re.match(r"-[rcfi][^-]", word):  # -rrequirements.txt
                    name, value = word[:2], word[2:]
                options.append((name, value))
            elif word not in (">", ">>", "<") and not re.match(r"\d?>", word):
                packages.append(word)
        return packages, options

    @property
    def packages(self) -> list[str]:
        return self._sorted[0]

    @property
    def flags(self) -> list[str]:
        return [name for name, _ in self._sorted[1]]

    @property
    def files(self) -> list[str]:
        """Return the requirement files."""
        if self.tool not in ("pip", "uv", "conda"):
            return []
        named = _CONDA_FILES if self.tool == "conda" else _FILES
        return [value for name, value in self._sorted[1] if name in named and value]

    @property
    def sources(self) -> list[str]:
        """Return the indexes, pages of wheels and channels."""
        return [value for name, value in self._sorted[1] if name in (_CHANNELS if self.tool == "conda" else _INDEXES)]

    def package(self, *names: str) -> str | None:
        """Return the requirement of one of these names as it is written, extras and version included, or None."""
        for word in self.packages:
            found = re.match(r"(?:[\w.-]+::)?([A-Za-z0-9][\w.-]*?)(?:\[[^\]]*\])?\s*(?:$|[=<>!~;@ ])", word)
            if found and found[1].lower().replace("_", "-") in names:
                return word
        return None


def installs_of(commands: tuple[Command, ...]) -> Iterator[Install]:
    """Yield the installations among commands."""
    yield from filter(None, map(_install, commands))


def _install(command: Command) -> Install | None:
    words = list(command.words)
    while words and _PYTHON.match(words[0]) and words[1:2] == ["-m"]:
        words = words[2:]
    if not words:
        return None
    program, tool = words[0].rpartition("/")[2], ""
    if _PIP.match(words[0]):
        tool = "pip"
    elif program == "uv":
        tool = "uv"
        words = [word for at, word in enumerate(words) if not (word == "pip" and at < 4)]
    elif program in _CONDA:
        tool = "conda"
        words = [word for at, word in enumerate(words) if not (word == "env" and at == 1)]
    elif program in _SYSTEM:
        tool = program
    if not tool:
        return None
    taking = () if tool == "conda" else _TAKING.get(tool, ())
    for at, word in enumerate(words[1:], 1):
        if not word.startswith("-") and words[at - 1] not in taking and "=" not in word:
            return Install(tool, word, tuple(words[at + 1 :]), tuple(words[1:at]), command)
    return None


def pip_installs(commands: tuple[Command, ...]) -> Iterator[Install]:
    """Return the installations by pip and uv."""
    return (each for each in installs_of(commands) if (each.tool, each.action) in _BY_PIP)
