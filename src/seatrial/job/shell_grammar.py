"""Split the text of a shell script: into tokens, statements, and the pieces of a word."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from typing import NamedTuple

from seatrial.job.startable import UnreadCommand

_NAME = re.compile(r"\$(?:[A-Za-z_]\w*|[\d@*#?$!-])")
_BLANK = re.compile(r"(?:[ \t\r]|\\\r?\n)+|#[^\n]*")
_OPERATOR = re.compile(r"&>>?|&&|\|\||\|&|;;&|;;|;&|\d*(?:<<<|<<-?|<&|<>|>>|>&|>\||<(?!\()|>(?!\())|[;&|()\n]")
_ARRAY = re.compile(r"\w+(?:\[\w*\])?\+?=")
_BRACKETS = {"(": ")", "{": "}"}
#: Words behind which a command begins, and those that open and close a statement.
_BEFORE_COMMAND = ("if", "then", "elif", "else", "while", "until", "do", "!", "{", "function")
_OPENS = {"if": "fi", "for": "done", "while": "done", "until": "done", "case": "esac", "{": "}", "(": ")"}


class Token(NamedTuple):
    """Hold a word as it is written, or an operator, and ``file:line: text`` of its line."""

    text: str
    is_operator: bool
    place: str


def end_of(text: str, at: int) -> int:
    """Return the index behind the quote, the expansion or the letter that begins at ``at``. Raises UnreadCommand."""
    opened = text[at : at + 2]
    if opened[0] == "\\":
        return min(at + 2, len(text))
    if name := _NAME.match(text, at):
        return name.end()
    if opened in ("$(", "${", "<(", ">("):
        closing, inside = _BRACKETS[opened[1]], at + 2
    elif opened[0] in "\"'`(":
        closing, inside = _BRACKETS.get(opened[0], opened[0]), at + 1
    else:
        return at + 1
    literal = {"'": None, '"': "'(<>", "}": "(<>"}.get(closing, "")
    while inside < len(text):
        if text[inside] == closing:
            return inside + 1
        inside = inside + 1 if literal is None or text[inside] in literal else end_of(text, inside)
    raise UnreadCommand(text[at:].strip().partition("\n")[0][:80])


def pieces(text: str, *, quoted: bool = False) -> Iterator[str]:
    """Yield quotes, expansions, escapes and letters; between double quotes, other quotes are letters."""
    at = 0
    while at < len(text):
        end = at + 1 if quoted and text[at] not in "$`\\" else end_of(text, at)
        yield text[at:end]
        at = end


def tokens(text: str, name: str, places: Sequence[str] | None = None) -> list[Token]:
    """Return a script's tokens; the text behind a ``<<`` is left out. Raises UnreadCommand.

    Args:
        places: one for each line, in place of the script's name and the line's number.
    """
    found, at, line, documents, is_test = list[Token](), 0, 1, list[str](), False
    places = places or [f"{name}:{number}: {line.strip()[:80]}" for number, line in enumerate(text.split("\n"), 1)]
    while at < len(text):
        start = at
        if blank := _BLANK.match(text, at):
            at = blank.end()
        elif not text.startswith("((", at) and (operator := _OPERATOR.match(text, at)):
            found.append(Token(operator[0], not is_test, places[line - 1]))
            at = operator.end()
            while operator[0] == "\n" and documents:
                end = re.compile(rf"(?m)^\t*{re.escape(documents.pop(0))}$").search(text, at)
                at = end.end() if end else len(text)
        else:
            at = end_of(text, at) if text.startswith("((", at) else at
            while at < len(text) and not text[at].isspace() and not _OPERATOR.match(text, at):
                at = end_of(text, at)
                at = end_of(text, at) if text[at : at + 1] == "(" and _ARRAY.fullmatch(text, start, at) else at
            if found and re.fullmatch(r"\d*<<-?", found[-1].text):
                documents.append(re.sub(r"[\\'\"]", "", text[start:at]))
            found.append(Token(text[start:at], False, places[line - 1]))
            is_test = found[-1].text == "[[" or (is_test and found[-1].text != "]]")
        line += text.count("\n", start, at)
    return found


def split(found: Sequence[Token], *separators: str) -> Iterator[tuple[str, list[Token]]]:
    """Yield (the separator before it, tokens) of each part; not at separators inside a statement or brackets."""
    before, part, opened, is_first, is_pattern = "", list[Token](), list[str](), True, False
    for token in found:
        text = token.text
        if not opened and text in separators and (token.is_operator or is_first):
            yield before, part
            before, part, is_first = text, [], True
            continue
        part.append(token)
        if is_pattern and text != "esac":  # of a case
            is_pattern, is_first = text != ")", text == ")"
            continue
        if text in _OPENS and (is_first or text == "("):
            opened.append(_OPENS[text])
        elif opened and text == opened[-1] and (is_first or is_pattern or token.is_operator):
            opened.pop()
        is_pattern = opened[-1:] == ["esac"] and text in ("in", ";;", ";&", ";;&")
        is_first = not re.search("[<>]", text) if token.is_operator else text in _BEFORE_COMMAND
    if opened:
        raise UnreadCommand(f"{opened[-1]} is missing")
    yield before, part
