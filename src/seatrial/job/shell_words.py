"""Put a shell's variables, arguments and the output of commands into the words of a script, as bash does."""

from __future__ import annotations

import re
from abc import ABC, abstractmethod
from fnmatch import fnmatchcase

from seatrial.job.shell_grammar import pieces, tokens
from seatrial.job.startable import UnreadCommand

#: Marks text that is not known; a path from the working directory begins with the second.
UNKNOWN, HERE = "\0", "\2"

SET = re.compile(r"(\w+)(\[\w*\])?(\+?)=(.*)", re.S)
_SUBSTITUTED = re.compile(r"\$\{(#?)(\w+|[@*#])(?:\[([^]]*)\])?(?:(:?[-=+?]|##?|%%?|//?|:)(.*))?\}", re.S)
_MADE_BY_SHELL = re.compile(r"\*|(?<!\$)\{[^{}\s'\"]*(?:,|\.\.)")
_LONGEST = 20_000


class Words(ABC):
    """Hold what a shell knows: its name, its arguments and its variables."""

    def __init__(self, name: str, arguments: list[str]) -> None:
        self.name, self.arguments = name, arguments
        self.values = dict[str, str | list[str]]()

    @abstractmethod
    def output(self, text: str) -> str:
        """Return the output of a command substitution."""

    def assign(self, word: str) -> None:
        match = SET.fullmatch(word)
        if match is None:
            return
        name, index, adds, text = match.groups()
        before = self.values.get(name)
        if text.startswith("("):
            items = [each for token in tokens(text[1:-1], name) for each in self.fields(token.text.strip())]
            items = [*(before if adds and isinstance(before, list) else []), *items]
            self.values[name] = items if UNKNOWN not in "".join(items) else unknown(word)
            return
        own = re.compile(rf":?{UNKNOWN}\$(?:\{{{name}\}}|{name}\b)")  # A=$A:x, A is not set
        value = own.sub("", self.text(text)) if name not in self.values else self.text(text)
        value = f"{before}{value}" if adds and isinstance(before, str) else value
        if len(value) > _LONGEST:
            raise UnreadCommand(word[:80])
        self.values[name] = f"{UNKNOWN}${name}" if index else value

    def text(self, word: str) -> str:
        """Return a word that the shell does not split, its expansions filled in."""
        return " ".join(self.fields(word, splits=False))

    def fields(self, word: str, *, splits: bool = True) -> list[str]:
        """Return the words that the shell makes of one; a mark precedes what it would replace by files."""
        bare = re.sub(r"\\.|'[^']*'|\"[^\"]*\"", "", word)
        fields, text, is_there = list[str](), UNKNOWN * bool(splits and _MADE_BY_SHELL.search(bare)), False
        for piece in pieces(word):
            if piece[0] in "\"'\\":
                inner = piece[1:].replace("\n", "") if piece[0] == "\\" else piece[1:-1]
                several = self._quoted(inner) if piece[0] == '"' else [inner]
            elif piece[0] in "$`" and len(piece) > 1:
                value = self._value(piece)
                value = " ".join(value) if isinstance(value, list) else value
                several = re.split(r"\s+", value) if splits else [value]
                if several[1:]:  # blanks at its ends separate it from its neighbours
                    fields += [text + several[0]] if text + several[0] or is_there else []
                    fields += several[1:-1]
                    text, is_there, several = "", False, several[-1:]
            else:
                is_home = piece == "~" and (not text or text[-1] in ":=")
                several = [UNKNOWN + piece if is_home else piece]
            is_there = is_there or (piece[0] in "\"'\\" and several != [])
            fields += [text + several[0], *several[1:-1]] if several[1:] else []
            text = several[-1] if several[1:] else text + "".join(several)
            if len(text) > _LONGEST:
                raise UnreadCommand(word[:80])
        return [*fields, text] if text or is_there else fields

    def _quoted(self, text: str) -> list[str]:
        """Return the text between double quotes; several words only for "$@" and "${A[@]}"."""
        if re.fullmatch(r"\$@|\$\{(@|\w+\[@\])(:[^}]*)?\}", text):
            value = self._value(text)
            return value if isinstance(value, list) else [value]
        result = ""
        for piece in pieces(text, quoted=True):
            value = self._value(piece) if piece[0] in "$`" and len(piece) > 1 else piece
            if piece[0] == "\\":
                value = "" if piece[1:] == "\n" else piece[1:] if piece[1:] in ("$", "`", '"', "\\") else piece
            result += " ".join(value) if isinstance(value, list) else value
            if len(result) > _LONGEST:
                raise UnreadCommand(text[:80])
        return [result]

    def _value(self, piece: str) -> str | list[str]:
        """Return what the shell puts in place of an expansion; with a mark before it if that is not known."""
        if piece[0] == "`" or piece.startswith("$("):
            return self.output(piece[1:-1] if piece[0] == "`" else piece[2:-1])
        match = _SUBSTITUTED.fullmatch(piece if piece[1] == "{" else f"${{{piece[1:]}}}")
        if match is None:
            return unknown(piece)
        counts, name, index, change, word = match.groups()
        value = self._get(name, index)
        if change is not None and change.lstrip(":") in tuple("-=+?"):
            is_set = value is not None and (value != "" or change[0] != ":")
            if change[-1] == "+":
                return self.text(word) if is_set else ""
            if not is_set and change[-1] != "?":
                value = self.text(word if re.search("['\"]", word) else f'"{word}"')
                self.values |= {name: value} if change[-1] == "=" else {}
        elif change is not None and value is not None:
            value = _changed(value, change, self.text(word), first=int(name in "@*"))
        if value is None or (counts and UNKNOWN in value):
            return unknown(piece)
        return str(len(value)) if counts else value

    def _get(self, name: str, index: str | None) -> str | list[str] | None:
        """Return the value of a variable, or None if it has none that is known."""
        if name in ("@", "*"):
            return self.arguments
        if name in ("#", "0", "BASH_SOURCE"):
            return str(len(self.arguments)) if name == "#" else self.name
        if name.isdecimal():
            return self.arguments[int(name) - 1] if int(name) <= len(self.arguments) else None
        value = self.values.get(name)
        if index in ("@", "*") or not isinstance(value, list):
            return value
        at = int(index or 0) if (index or "0").isdecimal() else len(value)
        return value[at] if at < len(value) else None


def unknown(text: str) -> str:
    """Return a mark and the text, as one word."""
    return UNKNOWN + re.sub(r"\s", "_", text)


def _changed(value: str | list[str], change: str, word: str, *, first: int) -> str | list[str] | None:
    """Return a value without its beginning or its end; the words from a number on; None if it is not known."""
    if UNKNOWN in "".join(value) or UNKNOWN in word:
        return None
    if isinstance(value, list):
        return value[max(int(word) - first, 0) :] if change == ":" and word.isdecimal() else None
    if change[0] not in "#%":
        return None
    cuts = [at for at in range(len(value) + 1) if fnmatchcase(value[:at] if change[0] == "#" else value[at:], word)]
    if not cuts:
        return value
    at = (max if change in ("##", "%") else min)(cuts)
    return value[at:] if change[0] == "#" else value[:at]
