"""Read the text of a shell script as statements, and a word as quotes, expansions and letters."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator, Sequence
from typing import NamedTuple

from seatrial.job.startable import UnreadCommand

_EXPANSION = r"\$(?:[A-Za-z_]\w*|[\d@*#?$!-])"
_PIECE = re.compile(rf"\\.|'[^']*'|\$'(?:\\.|[^'\\])*'|{_EXPANSION}|([$<>]?\(|\$\{{|[\"'`])|[\w./-]+|.", re.S)
_QUOTED_PIECE = re.compile(rf"\\.|{_EXPANSION}|(\$\(|\$\{{|`)|[^\\$`\"]+|.", re.S)
_CLOSING = {"(": ")", "{": "}", '"': '"', "'": "'", "`": "`"}
_BLANK = re.compile(r"(?:[ \t\r]|\\\r?\n)+|#[^\n]*")
_OPERATOR = re.compile(r"(\d*(?:&>>?|<<<|[<>]&|<>|>>|>\||<(?!\()|>(?!\()))|(?:&&|\|\||\|&?)\s*|;;|[;&()\n]")
_ARRAY = re.compile(r"\w+\+?=(?=\()")
_HEREDOC = re.compile(r"(?<!<)<<-?(\s*[\\'\"]?([^\s\\'\";&|<>()]+).*)")
#: A placeholder, ``<path>``: no file follows it, which would make ``>`` a redirection.
_PLACEHOLDER = re.compile(r"(?<!<)<([A-Za-z][\w ./-]*)>(?=/|[ \t]*(?:[\n\\;&|)\"'-]|\Z))")
#: A ``\\`` before a space or a comment, and comments between a command's lines; both end the command.
_CUT = re.compile(
    r"(?<=\s)\\[ \t]+(?:#[^\n]*)?(?=\n([ \t]+[^\s#]|-)?)|(?<=\\\n)(?:[ \t]*#[^\n]*\n)+(?=[ \t]*(?:-|\"?\$\{?[@*]))"
)
#: Words that begin a statement → those that end its parts.
_ENDS = {
    "while": ("do", "done"),
    "until": ("do", "done"),
    "for": ("done",),
    "select": ("done",),
    "{": ("}",),
    "(": (")",),
}


class Statement(NamedTuple):
    """Hold a command, or a compound of the kind ``if`` or ``&&``: its words as they are written, its statements."""

    place: str
    kind: str
    words: list[str]
    parts: Sequence[list[Statement]] = ()


def _piece(text: str, at: int, *, quoted: bool = False) -> str:
    match = (_QUOTED_PIECE if quoted else _PIECE).match(text, at)
    assert match is not None
    end = match.end()
    if opened := match[1]:
        while not text.startswith(_CLOSING[opened[-1]], end):
            if end >= len(text):
                raise UnreadCommand(f"{text[at : at + 80]} (its end is missing)")
            end += len(_piece(text, end, quoted=opened == '"'))
        end += 1
    return text[at:end]


def pieces(text: str, *, quoted: bool = False) -> Iterator[str]:
    """Yield quotes, expansions, escapes and letters; between double quotes, other quotes are letters."""
    at = 0
    while at < len(text):
        yield (piece := _piece(text, at, quoted=quoted))
        at += len(piece)


def tokens(text: str, name: str, place: str = "") -> Iterator[tuple[str, str]]:
    """Yield words and operators with ``place``, or ``name:line: text``; ``<`` for an input. Raises UnreadCommand."""
    lines = text.split("\n")
    text = _PLACEHOLDER.sub(lambda match: "$" + re.sub(r"\W", "_", match[1]), _without_documents(lines))
    at, line, is_file = 0, 0, False
    while at < len(text):
        start, found = at, place or f"{name}:{line + 1}: {lines[line].strip()[:80]}"
        if blank := _BLANK.match(text, at):
            at = blank.end()
        elif not text.startswith("((", at) and (operator := _OPERATOR.match(text, at)):
            at = operator.end()
            if is_file:
                raise UnreadCommand(found)
            is_file = bool(operator[1])
            if not is_file or "<" in operator[1]:
                yield "<" if is_file else operator[0].rstrip() or "\n", found
        else:
            at = array.end() if (array := _ARRAY.match(text, at)) else at
            try:
                at += len(_piece(text, at))
                while at < len(text) and not text[at].isspace() and not _OPERATOR.match(text, at):
                    at += len(_piece(text, at))
            except (UnreadCommand, RecursionError):  # a quote without its end, or nested too deep
                raise UnreadCommand(found) from None
            if not is_file:
                yield text[start:at], found
            is_file = False
        line += text.count("\n", start, at)


def _without_documents(lines: Sequence[str]) -> str:
    """Return a script's text with an empty input in place of each here-document."""
    found, places, at = list[str](), dict[str, list[int]](), 0
    for number in reversed(range(len(lines))):
        places.setdefault(lines[number].lstrip("\t"), []).append(number)
    while at < len(lines):
        line, end = lines[at], at
        for here in _HEREDOC.finditer(line):
            ends = places.get(here[2], [])
            while ends and ends[-1] <= at:
                ends.pop()
            if ends:
                end = ends[-1]
                line = line[: here.start()] + _input(here, "".join(f"{each}\n" for each in lines[at + 1 : end]))
                break
        found.append(line)
        at = end + 1
    return "\n".join(found)


def _input(here: re.Match[str], body: str) -> str:
    """Return an empty input for a here-document; a batch system's is a script, which ``--wrap`` gives it too."""
    is_script = re.search(r"\b(sbatch|qsub|bsub)\b[^|;&]*$", here.string[: here.start()])
    is_quoted = here[1].lstrip()[0] in "\\'\""
    if not is_script or (re.search(r"\$\(|`", body) and '"' in body and not is_quoted):
        return "<" + here[1] + "\n" * (body.count("\n") + 1)
    escaped = re.sub(r'(\\?)"|\\.', lambda each: r"\\\"" if each[1] else r"\"" if each[0] == '"' else each[0], body)
    quoted = shlex.quote(body) if is_quoted else f'"{escaped}"'
    return f" --wrap {quoted}{here[1].partition(here[2])[2].lstrip(here[1].lstrip()[0] * is_quoted)}\n"


def joined(text: str, name: str) -> tuple[str, str | None]:
    """Return the script with its cut commands joined, and ``name:line`` of the first cut, or None."""
    cuts = list[str]()

    def join(match: re.Match[str]) -> str:
        at = match.start()
        if text[text.rfind("\n", 0, at - 1) + 1 : at].lstrip()[:1] == "#":
            return match[0]
        cuts.append(f"{name}:{text.count(chr(10), 0, at) + 1}")
        return "\\\n" * match[0].count("\n") if match[0][0] != "\\" else "\\" * bool(match[1])

    return _CUT.sub(join, text), next(iter(cuts), None)


def statements(text: str, name: str, place: str = "") -> list[Statement]:
    """Return the statements of a script; the arguments are those of ``tokens``. Raises UnreadCommand."""
    return _Parser([*tokens(text, name, place)]).statements()[0]


class _Parser:
    def __init__(self, found: list[tuple[str, str]]) -> None:
        self.rest, self.place = found[::-1], ""

    def _next(self) -> str:
        if not self.rest:
            raise UnreadCommand(f"{self.place} (its end is missing)")
        text, self.place = self.rest.pop()
        return text

    def _take(self, *texts: str) -> str:
        """Return and remove the next token if it is one of these."""
        return self._next() if self.rest and self.rest[-1][0] in texts else ""

    def _words(self, end: str) -> list[str]:
        """Return and remove the words before a token, and that token."""
        return [word for word in iter(self._next, end) if not _OPERATOR.fullmatch(word)]

    def statements(self, *ends: str) -> tuple[list[Statement], str]:
        """Return the statements before one of the tokens, and that token; all statements if none is given."""
        found = list[Statement]()
        while True:
            while self._take("\n", ";", "&"):
                pass
            if (end := self._take(*ends)) or not (self.rest or ends):
                return found, end
            found.append(self._chain())

    def _chain(self) -> Statement:
        found = self._pipeline()
        while sign := self._take("&&", "||"):
            found = Statement(found.place, sign, [], ([found], [self._pipeline()]))
        return found

    def _pipeline(self) -> Statement:
        found = self._command()
        self._take("<")
        while self._take("|", "|&"):
            reader = self._command()
            if reader.kind:
                raise UnreadCommand(reader.place)
            found = Statement(found.place, "|", [], ([found], [reader._replace(words=[*reader.words, "<"])]))
        return found

    def _command(self) -> Statement:
        words, place = [self._next()], self.place
        [kind] = words
        if kind == "!":
            return Statement(place, kind, [], ([self._pipeline()],))
        if kind == "if":
            return self._if(place)
        if kind == "case":
            return self._case(place)
        if kind in _ENDS:
            words = self._words("do") if kind in ("for", "select") else []
            return Statement(place, kind, words, [self.statements(end)[0] for end in _ENDS[kind]])
        if _OPERATOR.fullmatch(kind) and kind != "<":
            raise UnreadCommand(place)
        if kind == "function" or self._take("("):
            words = [self._next()] if kind == "function" else words
            while self._take("(", ")", "\n"):
                pass
            return Statement(place, "function", words, ([self._command()],))
        while self.rest:
            is_test = words[0] == "[[" and words[-1] != "]]"
            if not is_test and _OPERATOR.fullmatch(self.rest[-1][0]) and self.rest[-1][0] != "<":
                break
            words.append(self._next())
        return Statement(place, "", words)

    def _if(self, place: str) -> Statement:
        condition, _ = self.statements("then")
        body, end = self.statements("elif", "else", "fi")
        others = [self._if(self.place)] if end == "elif" else self.statements("fi")[0] if end == "else" else []
        return Statement(place, "if", [], (condition, body, others))

    def _case(self, place: str) -> Statement:
        words, clauses, end = self._words("in"), list[Statement](), ""
        while end != "esac":
            while self._take("\n"):
                pass
            if self._take("esac"):
                break
            patterns = self._words(")")
            body, end = self.statements(";;", "esac")
            clauses.append(Statement(place, "", patterns, (body,)))
        return Statement(place, "case", words, (clauses,))
