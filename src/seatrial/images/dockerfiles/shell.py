"""What a RUN, a CMD or an ENTRYPOINT runs: simple commands, each with its line and its words."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from dataclasses import dataclass, replace

from seatrial.images.dockerfiles.instructions import JOINT, Instruction

_TOKEN = re.compile(
    rf"(?P<space>(?:[ \t\r{JOINT}]|\\\n)+)|(?P<newline>\n)|(?P<operator>&&|\|\||;;|[;|&()`])|(?P<comment>#[^\n]*)"
    r"|(?P<word>(?:[^\s;|&()`'\"\\]|\\.|\\$|'[^']*'|\"(?:[^\"\\]|\\.)*\"|['\"])+)",
    re.DOTALL,
)
_OPENING, _CLOSING = ("if", "case"), ("fi", "esac")
_KEYWORDS = ("then", "else", "elif", "do", "done", "while", "until", "!", "{", "}", "time", "exec", "command", "eval")
_ASSIGNMENT = re.compile(r"[A-Za-z_]\w*=")

#: Programs that run the one behind them, and their options that take a word.
_WRAPPERS = {"sudo": "-u", "env": "-u", "nice": "-n", "nohup": "", "timeout": "", "xargs": "-n", "stdbuf": ""}
_SHELLS = re.compile(r"(?:/usr)?(?:/bin/)?(?:ba|da|z)?sh$")

#: Deeper than people nest ``bash -c "…"``.
_MOST_NESTED = 3


@dataclass(frozen=True)
class Command:
    """A simple command.

    Attributes:
        words: without quotes, assignments, keywords and wrappers such as sudo.
        line: of its first word, counted from 1 in the file.
        sometimes: in an ``if`` or behind ``||``.
        stage: of its instruction.
        settings: assignments before it.
        fed: something is piped into it.
    """

    words: tuple[str, ...]
    line: int
    stage: int
    sometimes: bool = False
    settings: tuple[str, ...] = ()
    fed: bool = False

    @property
    def text(self) -> str:
        return " ".join(self.words)


def words_of_list(value: str) -> list[str] | None:
    """The words of the exec form, ``["a", "b"]``; None for the shell form."""
    try:
        words = json.loads(value)
    except (ValueError, RecursionError):
        return None
    return words if isinstance(words, list) and all(isinstance(word, str) for word in words) else None


def options_and_rest(raw: str) -> tuple[list[str], str]:
    """Options of the instruction itself, ``--mount=…``, and what stands behind them."""
    found = re.match(rf"(?:[\s{JOINT}]*--[a-z][\w-]*(?:=[^\s{JOINT}]*)?(?=[\s{JOINT}]|$))*", raw)
    assert found is not None
    return found[0].replace(JOINT, " ").split(), raw[found.end() :]


def commands_of(each: Instruction) -> list[Command]:
    """The commands of a RUN, CMD or ENTRYPOINT. Of a here-document only where a shell reads it."""
    _, rest = options_and_rest(each.raw)
    before = each.raw[: len(each.raw) - len(rest)]
    line = each.line + before.count(JOINT)
    words = words_of_list(rest.replace(JOINT, "").strip())
    if words is not None:
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
    started, inside, behind_or, fed = line, 0, False, False
    for token in _TOKEN.finditer(text):
        if token["word"]:
            word = _plain(token["word"])
            if not words and word in _KEYWORDS and not token["word"].startswith(("'", '"')):
                line += token[0].count("\n") + token[0].count(JOINT)
                continue  # what it stands before may begin in a later line
            started = started if words else line
            if not words and word in _OPENING + _CLOSING:
                inside = max(0, inside + (1 if word in _OPENING else -1))
            words.append(word)
        elif token["operator"] or token["newline"]:
            command = Command(tuple(words), started, stage, inside > 0 or behind_or, fed=fed)
            yield from _unwrapped(command, depth)
            words, fed = [], token["operator"] == "|"
            behind_or = token["operator"] == "||" or (behind_or and token["operator"] not in (";", None))
        line += token[0].count("\n") + token[0].count(JOINT)
    yield from _unwrapped(Command(tuple(words), started, stage, inside > 0 or behind_or, fed=fed), depth)


def _plain(word: str) -> str:
    """Without quotes and line joints. Variables stay as they are written."""
    parts = re.findall(r"'[^']*'|\"(?:[^\"\\]|\\.)*\"|\\.|[^'\"\\]+|['\"\\]", word, re.DOTALL)
    plain = []
    for part in parts:
        if part[:1] in ("'", '"') and len(part) > 1:
            part = part[1:-1]
        elif part[:1] == "\\" and len(part) > 1:
            part = part[1:]
        plain.append(part)
    return "".join(plain).replace(JOINT, "")


def _unwrapped(command: Command, depth: int) -> Iterator[Command]:
    words, settings = list(command.words), []
    while words:
        first = words[0]
        if first in (*_KEYWORDS, *_OPENING, *_CLOSING):
            words.pop(0)
        elif _ASSIGNMENT.match(first):
            settings.append(words.pop(0))
        elif first.rpartition("/")[2] in _WRAPPERS:
            taking = _WRAPPERS[first.rpartition("/")[2]]
            words.pop(0)
            while words and (words[0].startswith("-") or re.fullmatch(r"\d+[smh]?", words[0])):
                option = words.pop(0)
                if option == taking and words:
                    words.pop(0)
        elif first.rpartition("/")[2] in ("conda", "mamba", "micromamba") and words[1:2] == ["run"]:
            words = _behind_conda_run(words)
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


def _behind_conda_run(words: list[str]) -> list[str]:
    rest = words[2:]
    while rest and rest[0].startswith("-"):
        option = rest.pop(0)
        if option in ("-n", "--name", "-p", "--prefix", "--cwd") and rest:
            rest.pop(0)
    return rest
