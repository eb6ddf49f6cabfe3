"""Read a shell script's commands that start Python, as bash does: variables, defaults, paths of the script.

Only assignments, output and starts are read (docs/decisions.md, 0173).
"""

from __future__ import annotations

import itertools
import posixpath
import re
import shlex
from collections.abc import Iterator, Sequence
from pathlib import Path

from seatrial.job.startable import ASSIGNMENT, PythonCommand, UnreadCommand, read_command

#: Commands in a shell script that do not affect the training.
_HARMLESS = (
    *("echo", "printf", "set", "ulimit", "module", "conda", "source", ".", "mkdir", "date", "hostname", "unset"),
    *("nvidia-smi", "nvcc", "which", "sleep", "wait", "pwd", "true", "free", "ls"),
)
_OUTPUT = re.compile(r"\s(?:\d|&)?>>?\s*(?:&\d|[^\s;&|]+)|\|\s*tee\b[^;&|]*|&\s*$")
_QUOTED = re.compile(r"""'[^']*'|"[^"]*"|[^'"]+|['"]""")
#: Text outside of quotes in whose place the shell puts names that exist, the home, or words of its own.
_MADE_BY_SHELL = re.compile(r"\*|(?:^|(?<=[\s=:]))~|(?<!\$)\{[^{}\s]*(?:,|\.\.)")
_EXPANDED = re.compile(r"`|\$(?:\{(\w+)(?::?-([^}]*))?\}|(\w+|[@#])|)")
#: Stands for "$@", whose words stay as they are.
_ALL = "_all_arguments"
#: Marks variables that the shell would fill in and this script does not set.
_UNKNOWN = "\0"

#: A command substitution; options and redirections that do not change its output; arguments from a number on.
_COMMAND = re.compile(r"\$\(([^()`]*)\)|`([^`]*)`")
_NOISE = re.compile(r"\s(?:\d|&)?>{1,2}\s*(?:/dev/null|&\d)|\s-(?:f|e|m)\b(?=\s)|;")
_FURTHER = re.compile(r'"?\$\{[@*]:(\d)\}"?')
#: ``for x in a b; do``, words that open and close a condition or a loop, ``declare -a names=(a b)``, ``: ${A:=b}``.
_LOOP = re.compile(r"\s*for\s+(\w+)\s+in\s+(\S[^;]*)")
_OPENS = re.compile(r"(?:^|;|&&|\bthen|\bdo|\belse)\s*(if|for|while|until|case)\b|\{\s*$")
_CLOSES = re.compile(r"(?:^|;)\s*(?:fi|done|esac)\b|^\s*\}")
_ARRAY = re.compile(r"^\s*(?:declare\s+-a\s+)?(\w+)=\(\s*([^\s)]+)[^)]*\)\s*$")
_DEFAULT = re.compile(r'^\s*:\s+"?\$\{(\w+):?=((?:[^{}]|\{[^{}]*\})*)\}"?\s*$')
_STARTS = re.compile(r"\b(?:python[\d.]*|torchrun|accelerate|deepspeed|uv run)\s")
_MOVES, _MOVES_BACK = re.compile(r"\b(?:cd|pushd)\s+(?![-.]\s*$)"), re.compile(r"\bcd\s+-|\bpopd\b")
_SETS = re.compile(r"(?:^|[\s;])(\w+)=")
_SHIFTS = re.compile(r"\b(?:shift|eval|getopts|set\s+--)\b")
#: A default that contains a variable.
_NESTED = re.compile(r"(\$\{\w+:-[^${}]*)\$(?:\{(\w+)\}|(\w+))")
#: Text that the shell does not expand or split.
_SAFE = re.compile(r"[\w./@%+=:,-]+")

#: Limits on the letters of a quote, and of a command with its variables filled in.
_LONGEST_QUOTE, _LONGEST_COMMAND = 2_000, 20_000


def read_shell(text: str, arguments: Sequence[str], name: str, here: Path) -> list[PythonCommand]:
    """Return the commands of Python in a shell script, their variables filled in. Raises UnreadCommand.

    Args:
        name: path of the script, relative to the working directory.
    """
    values = _given(arguments, name)
    found, exported = list[PythonCommand](), dict[str, str]()
    for line in _lines(text):
        found += _taken(line, values, exported, here)
    return found


def first_of_shell(text: str, arguments: Sequence[str], name: str, here: Path) -> PythonCommand | None:
    """Return the first command of a script that cannot be read as a whole; in a loop, with the loop's first value.

    Return None if a condition, or a line that is not read, may set a part of the command.
    """
    values, exported, opened, moved = _given(arguments, name), dict[str, str](), list[str](), 0
    try:
        for line in _lines(re.sub(r"\$\{(\w+)\[[@*]\]\}", r"${\1}", text)):
            if loop := _LOOP.match(line):
                first = next(_commands(loop[2], values), [""])[0]
                values[loop[1]] = first if _UNKNOWN not in first else _UNKNOWN
            opened += _OPENS.findall(line)
            del opened[max(len(opened) - len(_CLOSES.findall(line)), 0) :]
            before = dict(values)
            try:
                line = _ARRAY.sub(r"\1=\2", line)
                if found := [*_taken(line, values, exported, here)]:
                    return None if moved > 0 else found[0]
            except UnreadCommand:
                moved += len(_MOVES.findall(line)) - len(_MOVES_BACK.findall(line))
                values |= dict.fromkeys(_SETS.findall(line), _UNKNOWN)
                if _STARTS.search(line) or _SHIFTS.search(line):
                    return None
            if not loop and {*opened} - {"for"}:
                values |= {name: _UNKNOWN for name, value in values.items() if before.get(name) != value}
    except UnreadCommand:
        pass
    return None


def _given(arguments: Sequence[str], name: str) -> dict[str, str]:
    """Return the variables that a shell sets for a script: its arguments, its name if that is safe text, and PWD."""
    values = {str(at): word for at, word in enumerate(arguments, 1)}
    values |= {"0": name, "BASH_SOURCE": name, "PWD": "."} if _SAFE.fullmatch(name) else {"PWD": "."}
    return values | {"@": " ".join(arguments), "#": str(len(arguments)), _ALL: shlex.join(arguments)}


def _lines(text: str) -> Iterator[str]:
    """Yield lines without comments; join lines within an open quote. Raises UnreadCommand: a quote has no end."""
    line, is_open = "", False
    for each in re.sub(r"\\\n", " ", text).splitlines():
        line = f"{line} {each}" if is_open else each
        is_open = _is_open(line)
        if is_open and len(line) > _LONGEST_QUOTE:
            break
        if not is_open and not line.lstrip().startswith("#"):
            yield line
    if is_open:
        raise UnreadCommand(line.strip()[:80])


def _taken(line: str, values: dict[str, str], exported: dict[str, str], here: Path) -> Iterator[PythonCommand]:
    """Yield the commands of Python in a line; note what it sets. Raises UnreadCommand."""
    for words in _commands(_DEFAULT.sub(r"\1=${\1:-\2}", line), values):
        for at, word in enumerate(itertools.takewhile(ASSIGNMENT.fullmatch, [*words])):
            own = re.escape(word.partition("=")[0])  # A=$A:x, A is not set
            words[at] = re.sub(rf":?{_UNKNOWN}\$(?:\{{{own}\}}|{own}\b)", "", word)
        exports = words[0] == "export"
        pairs = [ASSIGNMENT.fullmatch(word) for word in words[exports:]]
        if all(pairs):
            for name, value in (pair.groups() for pair in pairs if pair):
                values[name] = re.sub(rf"{_UNKNOWN}\$(?:\{{{name}\}}|{name}\b)", "", value)  # export PATH=$PATH:x
                exported |= {name: values[name]} if exports else {}
        elif words[:2] == ["set", "--"]:  # other arguments
            raise UnreadCommand(line.strip()[:80])
        elif not exports and words[0] not in _HARMLESS and words not in (["cd", "."], ["cd", "./"]):
            command = read_command(words, [f"{name}={value}" for name, value in exported.items()], here)
            if command is None or _UNKNOWN in "".join(command.words()):
                raise UnreadCommand(line.strip()[:80])
            yield command


def _is_open(line: str) -> bool:
    """Return whether a quote continues in the next line."""
    try:
        shlex.split(line, comments=True)
    except ValueError:
        return True
    return False


def _value(match: re.Match[str], values: dict[str, str]) -> str:
    """Return a variable's value or its default, with a mark where it is not known exactly."""
    name = match[1] or match[3] or ""
    value = values.get(name) or (values.get(name) if match[2] is None else match[2])  # ${A:-b}, A may be empty
    if (
        value is None
        or (match[2] == value and re.search(r"[$`]", value))
        or (name != _ALL and re.search("""['"\\\\]""", value))
    ):  # the shell does not expand a value again
        return _UNKNOWN + match[0]
    return value


def _marked(part: str) -> Iterator[str]:
    """Yield quoted and other text, with a mark before text in whose place the shell would put another."""
    for each in _QUOTED.findall(part):
        yield each if each[0] in "'\"" else _MADE_BY_SHELL.sub(rf"{_UNKNOWN}\g<0>", each)


def _with_known(line: str, values: dict[str, str]) -> str:
    """Replace ``$(dirname "$0")`` and ``$(pwd)`` with paths, and ``${@:3}`` with arguments."""
    for match in reversed([*_FURTHER.finditer(line)]):
        further = [values[str(at)] for at in range(int(match[1]), len(values) + 1) if str(at) in values]
        if all(map(_SAFE.fullmatch, further)):
            line = line[: match.start()] + " ".join(further) + line[match.end() :]
    line = re.sub(r"\$\{BASH_SOURCE\[0\]\}", "${BASH_SOURCE}", line)
    while (nested := _NESTED.search(line)) and _SAFE.fullmatch(values.get(nested[2] or nested[3], "")):
        if line[: nested.start()].count("'") % 2 or len(line) > _LONGEST_COMMAND:
            break
        line = line[: nested.start()] + nested[1] + values[nested[2] or nested[3]] + line[nested.end() :]
    while found := next(
        ((each, text) for each in _COMMAND.finditer(line) if (text := _answer(each, line, values))), None
    ):
        line = f"{line[: found[0].start()]}{found[1]}{line[found[0].end() :]}"
    return line


def _answer(match: re.Match[str], line: str, values: dict[str, str]) -> str | None:
    """Return the output of a command substitution that depends only on paths; None for any other."""
    inner = match[1] or match[2] or ""
    named = {each[1] or each[3] for each in _EXPANDED.finditer(inner)}
    if line[: match.start()].count("'") % 2 or any(re.search(rf"\b{name}=", line) for name in named if name):
        return None  # in single quotes, or this line sets its variable
    filled = _EXPANDED.sub(lambda each: _value(each, values), inner)
    try:
        words = [word for word in shlex.split(_NOISE.sub(" ", filled)) if word not in ("--", "-P", "&&", ";")]
    except ValueError:
        return None
    path = words[1] if len(words) > 1 else ""
    if not all(map(_SAFE.fullmatch, words)):
        return None
    if words == ["pwd"]:
        return "."
    if words[:1] == ["dirname"] and len(words) == 2:
        return posixpath.dirname(path) or "."
    if (words[:1] == ["cd"] and words[2:] == ["pwd"]) or (
        words[:1] in (["realpath"], ["readlink"]) and len(words) == 2
    ):
        return posixpath.normpath(path)
    return None


def _commands(line: str, values: dict[str, str]) -> Iterator[list[str]]:
    """Yield the commands of a line, one by one: each may set variables of the next."""
    line = _with_known(line, values)
    written = _OUTPUT.sub(" ", line.replace('"$@"', f"${_ALL}"))
    bare = re.sub(r"""'[^']*'|"[^"]*"|(^|\s)#.*|&&""", "", written)
    if re.search(r"[|&<>()]", bare):
        raise UnreadCommand(line.strip()[:80])
    for part in re.split(";|&&", written):
        filled = [
            each if each[0] == "'" else _EXPANDED.sub(lambda match: _value(match, values), each)
            for each in _marked(part)
        ]
        if sum(map(len, filled)) > _LONGEST_COMMAND:
            raise UnreadCommand(line.strip()[:80])
        try:
            words = shlex.split("".join(filled), comments=True)
        except ValueError:  # its ; is in quotes
            raise UnreadCommand(line.strip()[:80]) from None
        if words:
            yield words
