"""Expand variables, arguments and command output in the words of a script, as bash does."""

from __future__ import annotations

import ast
import operator
import posixpath
import re
import time
from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator, Sequence
from fnmatch import fnmatchcase
from itertools import dropwhile
from pathlib import Path

from seatrial.job.reading.values import OPERATORS
from seatrial.job.shell_grammar import pieces, tokens
from seatrial.job.startable import GPUS, UnreadCommand
from seatrial.system.names import is_secret

#: Mark of unknown text, and mark of a path from the working directory.
UNKNOWN, HERE = "\0", "\2"
MARKS = re.compile(f"[{UNKNOWN}{GPUS}]")

SET = re.compile(r"(\w+)(\[\w*\])?(\+?)=(.*)", re.S)
_SUBSTITUTED = re.compile(r"\$\{([#!]?)(\w+|[@*#])(?:\[([^]]*)\])?(?:(:?[-+=?]|##?|%%?|:)(.*))?\}", re.S)
_FINDS = ("which", "command", "type", "hash")
_MADE_BY_SHELL = re.compile(r"\*|\{[^{}]*(?:,|\.\.)")
#: An assignment in an expression that could not be computed.
_SETS = re.compile(r"(\w+)(?:\[[^]]*\])?\s*(?:<<|>>|[-+*/%&|^:])=(?!=)")
#: Limits: letters of a word, words of one, letters of a value that is cut by a pattern, and of an expression.
_LONGEST, _MOST_WORDS, _LONGEST_CUT, _LONGEST_SUM = 20_000, 1_000, 1_000, 200


class Words(ABC):
    """Hold what a shell knows: its name, arguments, variables and folder, and the place of its statement."""

    def __init__(self, name: str, arguments: list[str], here: Path) -> None:
        self.name, self.arguments, self.place, self.here, self.folder = name, arguments, name, here, "."
        self.input = list[str]()  # of a command behind a pipe
        self.values, self.secrets = dict[str, str | list[str]](), dict[str, str]()

    @abstractmethod
    def output(self, text: str) -> str:
        """Return the output of a command substitution."""

    def assign(self, word: str) -> None:
        """Set a variable; do nothing for another word."""
        match = SET.fullmatch(word)
        if match is None:
            return
        name, index, adds, text = match.groups()
        before = self.values.get(name)
        is_merged = adds and isinstance(before, str) and UNKNOWN in before  # it may be a list
        if re.match(r"\((?!\s*\[)", text) and not is_merged:  # not of declare -A
            items = self.every_field(token.strip() for token, _ in tokens(text[1:-1], ""))
            first = [before] if isinstance(before, str) else before or []
            self.values[name] = [*first, *items] if adds else items
            return
        value = self.text(f"${{{name}:-}}{text}" if adds else text)
        if before is None:  # A=$A:x
            value = re.sub(rf":?{UNKNOWN}\$(?:\{{{name}\}}|{name}\b)", "", value)
        self.values[name] = unknown(word) if index or text[:1] == "(" else value
        self.secrets |= {value: name} if is_secret(name, value) and UNKNOWN not in value else {}

    def text(self, word: str) -> str:
        """Return a word that the shell does not split, its expansions filled in."""
        return " ".join(self.fields(word, splits=False))

    def every_field(self, words: Iterable[str]) -> list[str]:
        """Return the words that the shell makes of several. Raises UnreadCommand for too many."""
        found = list[str]()
        for word in words:
            found += self.fields(word)
            if len(found) > _MOST_WORDS or sum(map(len, found)) > _LONGEST:
                raise UnreadCommand(self.place)
        return found

    def fields(self, word: str, *, splits: bool = True) -> list[str]:
        """Split a word as the shell does; a mark precedes a file pattern."""
        bare = "".join(piece for piece in pieces(word) if piece[0] not in "\"'\\$`")
        fields, text, is_there = list[str](), UNKNOWN * bool(splits and _MADE_BY_SHELL.search(bare)), False
        for value, is_quoted in self._parts(word):
            whole = [value] if isinstance(value, str) else value
            several = whole if splits and is_quoted else [" ".join(whole)]
            several = re.split(r"\s+", several[0]) if splits and not is_quoted else several
            is_home = not is_quoted and several == ["~"] and (not text or text[-1] in ":=")
            is_there = is_there or (is_quoted and several != [])
            for number, each in enumerate(several):
                if number:
                    fields += [text] if text or is_there else []
                    text, is_there = "", is_quoted
                text += UNKNOWN * is_home + each
            if len(text) > _LONGEST or len(fields) > _MOST_WORDS:
                raise UnreadCommand(self.place)
        return [*fields, text] if text or is_there else fields

    def _parts(self, word: str, *, quoted: bool = False) -> Iterator[tuple[str | list[str], bool]]:
        """Yield the values of a word's pieces, and whether the shell keeps each as it is."""
        for piece in pieces(word, quoted=quoted):
            first, is_long = piece[0], len(piece) > 1
            if first == "\\":
                is_kept = quoted and piece[1:] not in ("$", "`", '"', "\\", "\n")
                yield piece if is_kept else piece[1:].replace("\n", ""), piece[1:] != "\n"
            elif first in "$`" and is_long:
                yield self._value(piece), quoted
            elif first == '"' and not quoted:
                yield from self._parts(piece[1:-1], quoted=True) if piece != '""' else [("", True)]
            elif first == "'" and not quoted:
                yield piece[1:-1], True
            else:
                yield unknown(piece) if first in "<>" and is_long else piece, quoted

    def _value(self, piece: str) -> str | list[str]:
        """Return the value of an expansion, with a mark before it if the value is unknown."""
        if piece.startswith("$(("):
            return unknown(piece) if (result := self.calculate(piece[3:-2])) is None else str(result)
        if piece[0] == "`" or piece.startswith("$("):
            return self.output(piece[1:-1] if piece[0] == "`" else piece[2:-1])
        match = _SUBSTITUTED.fullmatch(piece if piece[1] == "{" else f"${{{piece[1:]}}}")
        if match is None:
            return unknown(piece)
        counts, name, index, change, word = match.groups()
        value = self._get(name, index)
        if counts == "!":  # the indices, or the variable of that name
            is_known = isinstance(value, list) and UNKNOWN not in "".join(value)
            value, counts = [str(at) for at in range(len(value or ()))] if is_known else None, ""
        if change is not None and change.lstrip(":") in tuple("-+=?"):
            is_set = value is not None and (value != "" or change[0] != ":")
            if change[-1] == "+" and not is_set:
                value = ""
            elif change[-1] != "?" and is_set == (change[-1] == "+" and (value or "")[:1] != UNKNOWN):
                value = self.text(word if re.search("['\"]", word) else f'"{word}"')
                self.values |= {name: value} if change[-1] == "=" else {}
        elif change is not None and value is not None:
            value = _changed(value, change, self.text(word), first=int(name in "@*"))
        if value is None and index not in (None, "", "@", "*") and isinstance(self.values.get(name), list):
            evaluated = self.text(f"${index}" if index.isidentifier() else index)
            return evaluated if UNKNOWN in evaluated else "" if re.fullmatch(r"-?\d+", evaluated) else unknown(piece)
        if value is None or (counts and UNKNOWN in "".join(value)):
            return unknown(piece)
        return str(len(value)) if counts else " ".join(value) if "*" in (name, index) else value

    def _get(self, name: str, index: str | None) -> str | list[str] | None:
        """Return the value of a variable, or None if it has none that is known."""
        if name in ("@", "*"):
            return self.arguments
        if name in ("#", "BASH_SOURCE"):
            return str(len(self.arguments)) if name == "#" else self.name
        value = self.values.get(name)
        if name.isdecimal():
            value, index = [self.name, *self.arguments], name
        if index in ("@", "*") or not isinstance(value, list):
            return value
        at = self.calculate(index or "0")
        return value[at] if at is not None and -len(value) <= at < len(value) else None

    def calculate(self, text: str) -> int | None:
        """Return the value of an arithmetic expression, which may set variables; None if it is not known."""
        if len(text := self.text(f'"{text}"')) > _LONGEST_SUM:
            if re.search(r"=|([+-])\1", text):  # it may set a variable
                raise UnreadCommand(self.place)
            return None
        text = re.sub(r"([a-zA-Z_]\w*)\s*([+-])\2", r"((\1 = \1 \2 1) - (0 \2 1))", text)
        text = re.sub(r"([+-])\1\s*([a-zA-Z_]\w*)", r"(\2 = \2 \1 1)", text)
        text = re.sub(r"^\s*(\w+)\s*([-+*/%])=(?!=)(.+)$", r"\1 = \1 \2 (\3)", text)
        text = re.sub(r"(?<![-<>=!&|^+*/%])=(?!=)", ":=", text).replace("&&", " and ").replace("||", " or ")
        try:
            return self._number(ast.parse(f"({text})", mode="eval").body)
        except (SyntaxError, ValueError, ArithmeticError, LookupError, RecursionError):
            self.values |= {name: unknown(name) for name in _SETS.findall(text)}
            return None

    def _number(self, node: ast.expr) -> int:
        match node:
            case ast.Name(name):
                value = str(self._get(name, None))
                inner = (str(self._get(each, None)) for each in re.findall(r"[A-Za-z_]\w*", value))
                if len(value) > _LONGEST_SUM or not all(each.lstrip("-").isdigit() for each in inner):
                    raise ValueError(name)  # nested names grow exponentially
                return self._number(ast.parse(value, mode="eval").body)
            case ast.NamedExpr(ast.Name(name), inner):
                self.values[name] = str(number := self._number(inner))
                return number
            case ast.UnaryOp(ast.USub(), inner):
                return -self._number(inner)
            case ast.BoolOp(sign, parts):
                return int((any if isinstance(sign, ast.Or) else all)(map(self._number, parts)))
            case ast.BinOp(one, ast.Mod(), other):  # with the sign of the first, as in C
                return (-1 if (first := self._number(one)) < 0 else 1) * (abs(first) % abs(self._number(other)))
            case ast.BinOp(one, sign, other) | ast.Compare(one, [sign], [other]):
                return int(OPERATORS[type(sign)](self._number(one), self._number(other)))
        return int(ast.unparse(node))

    def path(self, name: str) -> str:
        """Return a path relative to the working directory of the whole script."""
        return posixpath.normpath(name[1:] if name.startswith(HERE) else posixpath.join(self.folder, name))

    def answer(self, program: str, arguments: list[str]) -> str:
        """Return the output of a command, with a mark if it is not known."""
        words = [each for each in arguments if each not in ("-f", "-e", "-m", "-n", "--", "-P")]
        path = words[0] if len(words) == 1 and UNKNOWN not in words[0] else ""
        if program == "pwd":
            return f"{HERE}{self.folder}"
        if program == "echo":
            printed = [*dropwhile(lambda word: re.fullmatch("-[neE]+", word), arguments)]
            return UNKNOWN if "\\" in "".join(printed) and arguments[0][:1] == "-" else " ".join(printed)
        if program == "uname" and words in ([], ["-s"]):
            return "Linux"
        if program == "date" and path.startswith("+"):
            return time.strftime(path[1:])
        if program in _FINDS and words:
            return words[-1]
        if path and program == "dirname":
            return posixpath.dirname(path) or (HERE if path.startswith(HERE) else "") + "."
        if path and program in ("realpath", "readlink"):
            return f"{HERE}{self.path(path)}"
        return posixpath.basename(path) if path and program == "basename" else UNKNOWN

    def filtered(self, program: str, arguments: Sequence[str]) -> str | None:
        """Return a command's output for its input, if known: ``echo 0,1 | tr , '\\n' | wc -l`` is 2."""
        text, how = "\n".join(self.input), re.sub(r"\s", "", "".join(arguments))
        if not self.input or MARKS.search(text):
            return None
        known = dict.fromkeys(("tr,\\n", "tr,"), text.replace(",", "\n")) | {
            "awk-F,{printNF}": str(text.count(",") + 1)
        }
        return (known | dict.fromkeys(("wc-l", "wc-w"), str(len(text.split())))).get(program + how)

    def next_option(self, place: str, letters: str, name: str, words: Sequence[str]) -> bool:
        """Run ``getopts``: set its variables for the next option of one letter; return whether there is one."""
        at = number(str(self.values["OPTIND"])) or 1
        word, value = [*words, "", ""][at - 1 : at + 1] if at <= len(words) else ("", "")
        is_option, letter, attached = word[:1] == "-" and word not in ("-", "--"), word[1:2], word[2:]
        takes = is_option and f"{letter}:" in letters
        goes_on = is_option and attached != "" and not takes  # -vx is -v, then -x
        if UNKNOWN in word or (goes_on and words is not self.arguments):
            raise UnreadCommand(place)
        self.arguments = [*words[: at - 1], f"-{attached}", *words[at:]] if goes_on else self.arguments
        is_silent, lacks = letters[:1] == ":", takes and not attached and at == len(words)
        is_known = is_option and letter in letters.replace(":", "") and not lacks
        self.values[name] = letter if is_known else ":" if lacks and is_silent else "?"
        self.values["OPTARG"] = (attached or value) * takes if is_known or not is_silent else letter
        whole = (is_option or word == "--") and not goes_on
        self.values["OPTIND"] = str(at + whole + (takes and not attached and not lacks))
        return is_option

    def test(self, words: list[str]) -> bool | None:
        """Return the value of ``[ … ]``, or None if it is not known."""
        for sign, decides in (("||", True), ("&&", False)):
            if sign in words[1:-1]:
                at = words.index(sign, 1)
                sides = (self.test(words[:at]), self.test(words[at + 1 :]))
                return decides if decides in sides else None if None in sides else not decides
        if words[:1] == ["!"]:
            outcome = self.test(words[1:])
            return None if outcome is None else not outcome
        words = [without_missing(each) for each in words]
        if MARKS.search("".join(words)):
            return None
        match words:
            case [] | [_]:
                return words not in ([], [""])
            case ["-v", name]:
                return name in self.values
            case [("-z" | "-n") as sign, text]:
                return (text == "") == (sign == "-z")
            case [("-e" | "-f" | "-d" | "-s" | "-r" | "-x") as sign, name] if not re.match("/|.*venv", name):
                path = self.here / self.path(name)
                return path.is_dir() if sign == "-d" else path.is_file() if sign == "-f" else path.exists()
            case [text, ("=" | "==" | "!=") as sign, pattern]:
                return fnmatchcase(text, pattern) == (sign != "!=")
            case [first, sign, second] if sign in ("-eq", "-ne", "-lt", "-gt", "-le", "-ge"):
                one, other = number(first), number(second)
                return None if one is None or other is None else bool(getattr(operator, sign[1:])(one, other))
        return None


def number(text: str) -> int | None:
    """Return a number that bash can hold; None for another text."""
    return int(text) if re.fullmatch(r"[0-9]{1,18}", text) else None


def unknown(text: str) -> str:
    """Return a mark and the text, as one word."""
    return UNKNOWN + re.sub(r"\s", "_", text)


def without_missing(text: str) -> str:
    """Replace unset variables with empty text, as a condition does."""
    return re.sub(rf"{UNKNOWN}\$\{{?(?!HOME|USER|PATH|\?|\$)(\w+)\}}?", "", text)


def _changed(value: str | list[str], change: str, word: str, *, first: int) -> str | list[str] | None:
    """Return a value without its prefix or suffix, or the words from an index on; None if unknown."""
    if UNKNOWN in "".join(value) or UNKNOWN in word:
        return None
    if change == ":" and (part := re.fullmatch(r" *(-?\d+)(?: *: *(\d+))?", word)):
        at = int(part[1]) + len(value) if part[1][0] == "-" else max(int(part[1]) - first, 0)
        return value[at if at >= 0 else len(value) :][: int(part[2]) if part[2] else None]
    if change == ":" or isinstance(value, list):
        return None
    if len(value) > _LONGEST_CUT:
        return None
    cuts = [at for at in range(len(value) + 1) if fnmatchcase(value[:at] if change[0] == "#" else value[at:], word)]
    if not cuts:
        return value
    cut = (max if change in ("##", "%") else min)(cuts)
    return value[cut:] if change[0] == "#" else value[:cut]
