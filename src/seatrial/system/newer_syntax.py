"""Rewrite newer syntax of Python for an older parser: imports and calls stay, and every line keeps its number."""

from __future__ import annotations

import re
from collections.abc import Callable

Version = tuple[int, int]

_PREFIX = r"(?<!\w)(?P<prefix>[rRbBuUfFtT]{0,2})(?P<quote>'''|\"\"\"|'|\")"
#: Where syntax may begin that came after Python 3.9. Sources: PEP 634, 654, 695, 758.
_START = re.compile(
    rf"#[^\n]*|{_PREFIX}"
    r"|^(?P<indent>[ \t]*)(?P<kind>class|(?:async[ \t]+)?def|type)[ \t]+(?P<name>\w+)[ \t]*(?P<open>\[|(?==[^=]))"
    r"|^(?P<except>[ \t]*except)(?:(?P<star>[ \t]*\*)|[ \t]+(?P<several>[^(:\n#]{1,500})(?=:))"
    r"|^[ \t]*(?P<match>match)[ \t(][^\n]*:[ \t]*(?:\#[^\n]*)?\n\s*case\b",
    re.MULTILINE,
)
_IN_BRACKETS = re.compile(rf"#[^\n]*|{_PREFIX}|[\[\]{{}}():\n\\]")
_OPENING, _CLOSING = "([{", ")]}"


def in_old_syntax(text: str) -> tuple[str, tuple[Version, int] | None]:
    """Return (the text in the syntax of Python 3.10, (the Python that brought its newest syntax, line) or None).

    Strings in a replacement field are lost where an older parser could not read the field.
    """
    written: list[str] = []
    newest: tuple[Version, int] | None = None
    at = 0
    while match := _START.search(text, at):
        written.append(text[at : match.start()])
        new, at, since = _rewritten(text, match)
        written.append(new)
        if since and (newest is None or since > newest[0]):
            newest = since, text.count("\n", 0, match.start()) + 1
    return "".join([*written, text[at:]]), newest


def _rewritten(text: str, match: re.Match[str]) -> tuple[str, int, Version | None]:
    """Return (the text for the match and its brackets or string, the end of these, the Python that brought them)."""
    if match["quote"]:
        return _string(text, match)
    if match["open"] is not None:
        closed = _closed(text, match.end(), lambda _: None) if match["open"] else match.end()
        kind = "" if match["kind"] == "type" else f"{match['kind']} "
        lines = "\\\n" * text.count("\n", match.start(), closed)
        return f"{match['indent']}{kind}{match['name']} {lines}", closed, (3, 12)
    if match["several"] and re.search(r",[^,]*[A-Z]\w*\s*$", match["several"]):  # not ``IOError, e``
        return f"{match['except']} ({match['several']})", match.end(), (3, 14)
    if match["star"]:
        return f"{match['except']} ", match.end(), (3, 11)
    return match[0], match.end(), (3, 10) if match["match"] else None


def _string(text: str, match: re.Match[str]) -> tuple[str, int, Version | None]:
    prefix, quote, at = match["prefix"], match["quote"], match.end()
    if not set(prefix) & set("fFtT"):
        whole = re.compile(rf"(?:\\.|[^\\])*?(?:{quote}|\Z)", re.DOTALL).match(text, at)
        at = whole.end() if whole else len(text)
        return text[match.start() : at], at, None
    literal = re.compile(rf"\\N\{{[^}}]*\}}|\\[^{{}}]|\{{\{{|\{{|{quote}", re.DOTALL)
    written, newer = [], False
    while (found := literal.search(text, at)) is not None:
        written.append(text[at : found.start()].replace('"', "'"))
        at = found.end()
        if found[0] == quote:
            since = (3, 14) if set(prefix) & set("tT") else (3, 12) if newer else None
            new = re.sub("[tT]", "f", prefix) + '"""' + "".join(written) + '"""'
            return (new if since else text[match.start() : at]), at, since
        if found[0] != "{":
            written.append(found[0].replace('"', "'"))
            continue
        written.append("{")
        opened, at = at, _closed(text, at, written.append, quote)
        newer |= _is_newer(text[opened:at], quote)
    return text[match.start() :], len(text), None  # without an end


def _is_newer(field: str, quote: str) -> bool:
    """Return whether Python 3.11 refuses a replacement field of a string in these quotes. Source: PEP 701."""
    return (
        quote in field or "\\" in field or "#" in re.sub(r":[^:]*$", "", field) or ("\n" in field and len(quote) == 1)
    )


def _closed(text: str, at: int, write: Callable[[str], object], outer: str | None = None) -> int:
    """Return the place behind the bracket that closes the one before ``at``; write what an older parser may read.

    Args:
        outer: the quote of the string that the field is in, whose format may hold any character.
    """
    depth = 1
    while (match := _IN_BRACKETS.search(text, at)) is not None:
        write(text[at : match.start()])
        token, at = match[0], match.end()
        if match["quote"]:
            _, at, _ = _string(text, match)
            write("' '")
        elif outer and token == ":" and depth == 1:
            return _formatted(text, at, write, outer)
        elif token[0] not in "#\\":
            write(token)
            depth += (token in _OPENING) - (token in _CLOSING)
            if not depth:
                return at
    return len(text)


def _formatted(text: str, at: int, write: Callable[[str], object], outer: str) -> int:
    write(":")
    while (match := re.compile(r"[{}\"'\n]").search(text, at)) is not None:
        write(text[at : match.start()])
        at = match.end()
        if match[0] == "{":
            write("{")
            at = _closed(text, at, write, outer)
        elif match[0] == "}":
            write("}")
            return at
    return len(text)
