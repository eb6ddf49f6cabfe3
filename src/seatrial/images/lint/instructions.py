"""Split a Dockerfile into instructions as BuildKit's parser does (docs/decisions.md, 0002: why no library reads it)."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass

#: Stands in a value where the file has a line end that does not count. No text has this character (private use).
JOINT = "\ue000"

_DIRECTIVE = re.compile(r"#\s*(?P<name>\w+)\s*=\s*(?P<value>.*)")
_COMMENT = re.compile(r"\s*#")

#: A word ``<<EOF``, ``<<-"EOF"`` or ``3<<EOF``, outside of quotes. Only these three instructions may have one.
#: Source: docs.docker.com/reference/dockerfile/#here-documents
_WORD = re.compile(r"(?:[^\s\"'\\]|\\.|'[^']*'|\"(?:[^\"\\]|\\.)*\"|[\"'].*|\\)+", re.DOTALL)
_HEREDOC = re.compile(r"\d*<<(?P<dash>-?)(?P<quote>[\"']?)(?P<name>[^<\"']+)(?P=quote)$")


@dataclass(frozen=True)
class Instruction:
    """Hold one instruction.

    Attributes:
        name: in capitals; of ``ONBUILD RUN x`` it is ``ONBUILD``.
        raw: the text behind the name, with JOINT where lines were joined.
        line: where it begins, counted from 1.
        stage: number of the FROM above it, -1 before the first.
        heredoc: the bodies of its here-documents, one behind the other; "" without.
        heredoc_line: where the first body begins.
    """

    name: str
    raw: str
    line: int
    stage: int = -1
    heredoc: str = ""
    heredoc_line: int = 0

    @property
    def value(self) -> str:
        """Return the text behind the name, here-documents included."""
        text = self.raw.replace(JOINT, "").strip()
        return f"{text}\n{self.heredoc}" if self.heredoc else text


def read_instructions(text: str) -> Iterator[Instruction]:
    """Yield the instructions in order. Text that is not a Dockerfile gives instructions with odd names."""
    lines = text.removeprefix("\ufeff").splitlines()
    escape = _escape(lines)
    number = 0
    while number < len(lines):
        first = number
        if not lines[first].strip() or _COMMENT.match(lines[first]):
            number += 1
            continue
        parts: list[str] = []
        while number < len(lines):
            line = lines[number]
            number += 1
            if parts and (not line.strip() or _COMMENT.match(line)):
                parts.append("")  # comments and empty lines between continued ones do not count
                continue
            more = re.search(re.escape(escape) + r"[ \t]*$", line)
            parts.append(line[: more.start()] if more else line)
            if not more:
                break
        logical = JOINT.join(parts)
        begun = re.match(rf"[\s{JOINT}]*([^\s{JOINT}]+)", logical)
        name, rest = (begun[1].upper(), logical[begun.end() :]) if begun else ("", "")
        heredoc, body_line = [], number + 1
        if name in ("RUN", "COPY", "ADD"):
            words = _WORD.findall(rest.replace(JOINT, " ")) if "<<" in rest else []
            for found in filter(None, map(_HEREDOC.match, words)):
                body, number = _body(lines, number, found["name"], strip_tabs=bool(found["dash"]))
                heredoc += body
        yield Instruction(name, rest, first + 1, heredoc="\n".join(heredoc), heredoc_line=body_line)


def _escape(lines: list[str]) -> str:
    """Return the escape character: a backslash, or the one that a directive at the top names."""
    for line in lines:
        if not (directive := _DIRECTIVE.match(line.strip())):
            break
        if directive["name"].lower() == "escape" and directive["value"].strip() in ("`", "\\"):
            return directive["value"].strip()
    return "\\"


def _body(lines: list[str], number: int, name: str, *, strip_tabs: bool) -> tuple[list[str], int]:
    """Return the lines above the one that is the name alone, and the number of the line below it."""
    for end in range(number, len(lines)):
        if (lines[end].lstrip("\t") if strip_tabs else lines[end]) == name:
            return lines[number:end], end + 1
    return lines[number:], len(lines)
