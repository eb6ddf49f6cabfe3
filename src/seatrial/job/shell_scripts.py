"""Read a shell script's commands that start Python, as bash runs it: arguments, conditions, loops, functions.

Nothing is executed. What depends on more than the script, its arguments and the project's files is not known, and
a command with an unknown part is not read (docs/decisions.md, 0173 and 0206).
"""

from __future__ import annotations

import copy
import operator
import posixpath
import re
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from pathlib import Path

from seatrial.job.reading.modules import is_file
from seatrial.job.shell_grammar import Token, split, tokens
from seatrial.job.shell_words import HERE, SET, UNKNOWN, Words, unknown
from seatrial.job.startable import (
    GPUS,
    LAUNCHERS,
    SHELLS,
    PythonCommand,
    UnreadCommand,
    is_python,
    project_command,
    read_command,
)

_MARKS = re.compile(f"[{UNKNOWN}{GPUS}]")

#: Commands whose outcome depends on the machine, and others without an effect on the training.
_DEPENDS = re.compile(r"which|type|command|hash|pgrep|grep|wait|ls|nvidia-smi|conda|module|pip3?")
_HARMLESS = re.compile(
    rf"{_DEPENDS.pattern}|ulimit|mamba|mkdir|date|hostname|unset|nvcc|sleep|free|trap|shopt|umask|tee|alias|clear|cat"
    "|chmod|tail|head|sed|awk|exec|true|:|echo|printf|pwd|dirname|basename|realpath|readlink|seq"
)
_FINDS = ("which", "command", "type", "hash")
#: What makes an environment, which the image stands for, and what only handles files.
_INSTALLS = re.compile(r"python[\d.]* -m (venv|virtualenv|pip|ensurepip)\b")
_HANDLES_FILES = re.compile(r"cp|mv|rm|ln|touch|git|tar|zip|unzip|rsync|diff|wc")
_DECLARES = ("export", "declare", "local", "readonly", "typeset")
_LEAVES = ("exit", "return")
#: Builtins that read what is not known here, or jump.
_REFUSED = ("popd", "getopts", "read", "break", "continue", "select", "coproc")
#: Variables of batch systems for the folder of the job, which is the one that the command was typed in.
_FOLDERS = ("PWD", "SLURM_SUBMIT_DIR", "PBS_O_WORKDIR", "LS_SUBCWD")
#: Variables of the machine, which a container has of its own.
_OF_MACHINE = re.compile(r"PATH|LD_\w+|TMPDIR|HOME|USER|XDG_\w+")
_MAY_BE_OF_MACHINE = re.compile(r"SLURM_\w+|\w*CACHE\w*|\w+_HOME|CONDA\w*|\w+_API_KEY|\w*PATH")

_COUNTS_GPUS = re.compile(r"nvidia-smi.*(\bwc -l\b|-c )|cuda\.device_count\(\)", re.S)
_COUNTS_VISIBLE = re.compile(r"echo\s+\"?\$\{?CUDA_VISIBLE_DEVICES\}?\"?\s*\|.*(?:\bwc -[lw]\b|NF)")
_COMPARES: dict[str, Callable[[int, int], bool]] = {
    f"-{name}": getattr(operator, name) for name in ("eq", "ne", "lt", "gt", "le", "ge")
}
#: Limits: statements run, commands of Python, scripts and substitutions in each other, letters of a script.
_MOST_RUN, _MOST_STARTED, _DEEPEST, _MOST_TEXT = 5_000, 200, 20, 50_000


class _Left(Exception):
    """The end of a script or a function."""


@dataclass
class ShellReading:
    """Hold what a script does: each command of Python with its folder; other commands; the line that is not read."""

    started: list[tuple[str, PythonCommand]] = field(default_factory=list)
    others: list[str] = field(default_factory=list)
    unread: str | None = None


def read_shell(
    text: str, arguments: Sequence[str], name: str, here: Path, places: Sequence[str] | None = None
) -> ShellReading:
    """Return what a shell script starts, its variables filled in; of one that is not read, what precedes that line.

    Args:
        name: path of the script, relative to the working directory ``here``.
        places: of its lines, if they are another file's.
    """
    shell = _Shell(name, [*arguments], here)
    try:
        shell.run(tokens(text, name, places))
    except _Left:
        pass
    except UnreadCommand as unread:
        shell.reading.unread = str(unread)
    except RecursionError:
        shell.reading.unread = "it is in too many brackets"
    return shell.reading


class _Shell(Words):
    def __init__(self, name: str, arguments: list[str], here: Path) -> None:
        super().__init__(name, arguments)
        self.here, self.values = here, dict.fromkeys(_FOLDERS, f"{HERE}.")
        self.exported, self.functions = dict[str, None](), dict[str, list[Token]]()
        self.folder, self.depth, self.left = ".", 0, [_MOST_RUN]
        self.reading, self.printed = ShellReading(), list[str]()

    def _copy(self) -> _Shell:
        other = copy.copy(self)
        other.values, other.exported, other.functions = {**self.values}, {**self.exported}, {**self.functions}
        other.reading, other.printed = ShellReading([*self.reading.started], [*self.reading.others]), []
        other.depth += 1
        if other.depth > _DEEPEST:
            raise UnreadCommand("scripts and substitutions are too deep in each other")
        return other

    def _unread(self, part: Sequence[Token]) -> UnreadCommand:
        return UnreadCommand(part[0].place)

    def run(self, found: Sequence[Token]) -> bool | None:
        """Run statements; return whether the last succeeds, None if that is not known. Raises UnreadCommand."""
        outcome: bool | None = True
        for _, statement in split(found, ";", "\n", "&"):
            for sign, part in split(statement, "&&", "||") if statement else ():
                if not part:
                    raise self._unread(statement)
                if sign and outcome is None:
                    self._either(part, part, [])
                elif not sign or outcome == (sign == "&&"):
                    outcome = self._pipeline(part)
        return outcome

    def _pipeline(self, part: list[Token]) -> bool | None:
        self.left[0] -= 1
        if self.left[0] < 0:
            raise self._unread(part)
        if part[0].text == "!":
            outcome = self._pipeline(part[1:]) if part[1:] else None
            return None if outcome is None else not outcome
        (_, first), *others = split(part, "|", "|&")
        outcome = self._statement(first) if first else None
        before = len(self.reading.started)
        for _, other in others:
            outcome = (self._statement(other) if other else None) and outcome
            self.printed = [UNKNOWN]
        if self.reading.started[before:]:  # it reads the output of another
            del self.reading.started[before:]
            raise self._unread(part)
        return outcome

    def _statement(self, part: list[Token]) -> bool | None:
        word = part[0].text
        rest = [token for token in part[1:] if token.text != "\n"] if word != "case" else part[1:]
        if word == "if":
            return self._if(part)
        if word in ("while", "until"):
            (_, condition), (_, body), *_ = self._clauses(part, "done", "do")
            while (outcome := self.run(condition)) == (word == "while"):
                self.run(body)
            if outcome is None:
                raise self._unread(part)
            return True
        if word == "for" and len(rest) > 3 and rest[1].text in ("in", "do", ";"):
            (_, values), (_, body), *_ = self._clauses(part, "done", "do")
            words = [each.text for each in values[2:] if not each.is_operator] or ['"$@"']
            for value in [value for each in words for value in self.fields(each)]:
                self.values[rest[0].text] = value
                if UNKNOWN in value:  # none, or several
                    self._either(part, body, [])
                else:
                    self.run(body)
            return True
        if word == "case":
            return self._case(part)
        if word == "{":
            return self.run(part[1 : _last(part, "}")])
        if word == "(":
            return self._inside(self._copy(), part[1 : _last(part, ")")])
        is_named = word == "function" and bool(rest)
        if is_named or [each.text for each in part[1:3]] == ["(", ")"]:
            name = part[is_named].text
            body = part[is_named + 1 :]
            self.functions[name] = body[2:] if [each.text for each in body[:2]] == ["(", ")"] else body
            return True
        if word in ("for", *_REFUSED):
            raise self._unread(part)
        return self._command(part)

    def _clauses(self, part: list[Token], end: str, *words: str) -> list[tuple[str, list[Token]]]:
        found = [*split(part[1 : _last(part, end)], *words)]
        if len(found) < 2:
            raise self._unread(part)
        return found

    def _inside(self, shell: _Shell, found: Sequence[Token]) -> bool | None:
        """Run statements in a shell of its own, whose commands count."""
        try:
            return shell.run(found)
        except _Left:
            return None
        finally:
            self.reading = shell.reading
            self.printed += shell.printed

    def _if(self, part: list[Token]) -> bool | None:
        end = _last(part, "fi")
        (_, condition), (_, body), *rest = self._clauses(part, "fi", "then", "elif", "else")
        at = len(condition) + len(body) + 2
        others = (
            [part[at]._replace(text="if"), *part[at + 1 :]] if rest and rest[0][0] == "elif" else part[at + 1 : end]
        )
        outcome = self.run(condition)
        if outcome is None:
            return self._either(part, body, others)
        return self.run(body if outcome else others)

    def _case(self, part: list[Token]) -> bool | None:
        subject = _without_missing(self.text(part[1].text))
        bodies = list[list[Token]]()
        for _, clause in split(part[3 : _last(part, "esac")], ";;", ";&", ";;&"):
            if not any(token.text == ")" for token in clause):
                continue
            end = next(at for at, token in enumerate(clause) if token.text == ")")
            patterns = [token.text for token in clause[:end] if not token.is_operator]
            bodies.append(clause[end + 1 :])
            if not _MARKS.search(subject) and any(fnmatchcase(subject, self.text(each)) for each in patterns):
                return self.run(bodies[-1])
        return self._either(part, *bodies, []) if _MARKS.search(subject) else True

    def _either(self, part: list[Token], *bodies: list[Token]) -> bool | None:
        """Run what one of several bodies may do; those that end the script are for another machine."""
        outcomes = list[_Shell]()
        for body in bodies:
            shell = self._copy()
            try:
                shell.run(body)
            except _Left:
                continue
            outcomes.append(shell)
        if not outcomes:
            raise _Left("exit")
        first = outcomes[0]
        if any((each.reading, each.folder) != (first.reading, first.folder) for each in outcomes):
            raise self._unread(part)
        names = {name for each in outcomes for name in each.values}
        differ = {name for name in names if any(each.values.get(name) != first.values.get(name) for each in outcomes)}
        self.values = {name: f"{UNKNOWN}{name}" if name in differ else first.values[name] for name in names}
        self.reading, self.folder, self.exported = first.reading, first.folder, first.exported
        return None

    def _command(self, part: list[Token]) -> bool | None:
        words, is_fed, is_target = list[str](), False, False
        for token in part:
            if token.is_operator and not re.search("[<>]", token.text):
                raise self._unread(part)
            if not token.is_operator and not is_target:
                words.append(token.text)
            is_fed, is_target = is_fed or (token.is_operator and "<" in token.text), token.is_operator
        own = [words.pop(0) for word in [*words] if len(words) and words[0] == word and SET.fullmatch(word)]
        if is_target:
            raise self._unread(part)
        if not words:
            for word in own:
                self.assign(word)
            return True
        if words[0].startswith("(("):
            raise self._unread(part)
        if words[0] in ("[", "[[", "test"):
            texts = [self.text(word) for word in words[1:]]
            return self._test(texts if words[0] == "test" else texts[:-1])
        if words[0] in _DECLARES:
            self._declare(words)
            return True
        fields = [each for word in words for each in self.fields(word)]
        return self._program(part, fields, own, is_fed=is_fed) if fields else True

    def _program(self, part: list[Token], fields: list[str], own: list[str], *, is_fed: bool) -> bool | None:
        program, arguments = posixpath.basename(fields[0]), fields[1:]
        if program in self.functions:
            return self._call(program, arguments)
        if program in ("source", ".", "eval", "cd", "pushd", "shift", "set", *SHELLS):
            return self._builtin(part, program, arguments)
        if program in _LEAVES:
            raise _Left(program)
        if _INSTALLS.match(" ".join((program, *arguments))):
            return True
        if _HARMLESS.fullmatch(program) and (program in _FINDS or not any(is_python(each) for each in arguments)):
            self.printed.append(self._answer(program, arguments))
            return None if _DEPENDS.fullmatch(program) else True
        if program == "false":
            return False
        shell = self._copy()
        for word in own:
            shell.assign(word)
        names = dict.fromkeys([*self.exported, *(word.partition("=")[0].rstrip("+") for word in own)])
        set_to = {name: value for name in names if isinstance(value := shell.values[name], str)}
        exported = [f"{name}={value}" for name, value in set_to.items() if not _is_of_machine(name, value)]
        typed = [re.sub(rf"{HERE}([\w./-]*)", self._from_folder, each) for each in [*exported, *fields]]
        try:
            words, own = typed[len(exported) :], typed[: len(exported)]
            command = read_command(words, own, self.here / self.folder) or project_command(words, own, self.here)
        except UnreadCommand as unread:
            why = f"{part[0].place.partition(': ')[0]}: {unread}"
            raise UnreadCommand(part[0].place if _MARKS.search(why) else why) from None
        if command is None:
            may_start = any(is_python(each) or each in LAUNCHERS or each.endswith(".py") for each in fields)
            if (is_fed or may_start) and not _HANDLES_FILES.fullmatch(program):
                raise self._unread(part)
            self.reading.others.append(str(self._unread(part)))
        elif mark := re.search(rf"{UNKNOWN}(\S{{1,40}})|{GPUS}", " ".join(command.words())):
            raise UnreadCommand(f"{part[0].place} (not known: {mark[1] or 'the number of GPUs'})")
        elif is_fed or len(self.reading.started) == _MOST_STARTED:
            raise self._unread(part)
        else:
            self.reading.started.append((self.folder, command))
        self.printed.append(UNKNOWN)
        return True

    def _from_folder(self, match: re.Match[str]) -> str:
        return posixpath.relpath(match[1] or ".", self.folder)

    def _call(self, name: str, arguments: list[str]) -> bool | None:
        before, self.arguments, self.depth = self.arguments, arguments, self.depth + 1
        if self.depth > _DEEPEST:
            raise UnreadCommand(f"{name} calls itself")
        try:
            return self.run(self.functions[name])
        except _Left as left:
            if "return" not in left.args:
                raise
            return None
        finally:
            self.arguments, self.depth = before, self.depth - 1

    def _builtin(self, part: list[Token], program: str, arguments: list[str]) -> bool | None:
        """Run what changes the shell's state, or another script."""
        if program == "shift":
            del self.arguments[: int(arguments[0]) if arguments and arguments[0].isdecimal() else 1]
        elif program == "set":
            self.arguments = arguments[arguments.index("--") + 1 :] if "--" in arguments else self.arguments
        elif program in ("cd", "pushd"):
            paths = [each for each in arguments if each not in ("--", "-P", "-L")]
            path = self._path(paths[0]) if len(paths) == 1 and paths[0] != "-" and UNKNOWN not in paths[0] else "/"
            if path.startswith("/") or not (self.here / path).is_dir():
                raise self._unread(part)
            self.folder, self.values["PWD"] = path, f"{HERE}{path}"
        elif program == "eval" or arguments[:1] == ["-c"]:
            text = " ".join(arguments).removeprefix("-c ")
            if UNKNOWN not in text:
                return self.run([each._replace(place=part[0].place) for each in tokens(text, self.name)])
            if not re.search(r"conda|mamba|pyenv|ssh-agent|direnv|modulecmd", part[1].text):
                raise self._unread(part)
        else:
            names = [each for each in arguments if each[:1] not in ("-", "+")]
            script = self._script(names[0]) if names else None
            if script is not None:
                shell = self._copy()
                shell.name, shell.arguments = names[0], names[1:] or ([] if program in SHELLS else self.arguments)
                outcome = self._inside(shell, tokens(script, self._path(names[0])))
                if program not in SHELLS:
                    self.values, self.exported, self.functions = shell.values, shell.exported, shell.functions
                    self.folder = shell.folder
                return outcome
            if program in SHELLS:
                raise self._unread(part)
        return True

    def _script(self, name: str) -> str | None:
        """Return the text of a shell script of the project; None of others, and of an environment's ``activate``."""
        path = (self.here / self._path(name)).resolve() if UNKNOWN not in name else self.here
        is_ours = path.is_relative_to(self.here.resolve()) and path.name != "activate" and is_file(path)
        return path.read_text(errors="replace")[:_MOST_TEXT] if is_ours else None

    def _path(self, name: str) -> str:
        """Return a path as it is seen from the working directory of the whole script."""
        return posixpath.normpath(name[1:] if name.startswith(HERE) else posixpath.join(self.folder, name))

    def _answer(self, program: str, arguments: list[str]) -> str:
        """Return the output of a command, with a mark if it is not known."""
        words = [each for each in arguments if each not in ("-f", "-e", "-m", "-n", "--", "-P")]
        path = words[0] if len(words) == 1 and UNKNOWN not in words[0] else ""
        if program == "pwd":
            return f"{HERE}{self.folder}"
        if program == "echo":
            return " ".join(words)
        if program == "date" and path.startswith("+"):
            return time.strftime(path[1:])
        if program in _FINDS and words:
            return words[-1]
        if path and program == "dirname":
            return posixpath.dirname(path) or (HERE if path.startswith(HERE) else "") + "."
        if path and program in ("realpath", "readlink"):
            return f"{HERE}{self._path(path)}"
        if path and program == "basename":
            return posixpath.basename(path)
        return UNKNOWN

    def _declare(self, words: list[str]) -> None:
        for word in words[1:]:
            name = word.partition("=")[0]
            if name != word:
                self.assign(word)
            if words[0] == "export" and name in self.values:
                self.exported[name] = None

    def output(self, text: str) -> str:
        """Return the output of a command substitution."""
        visible = self.values.get("CUDA_VISIBLE_DEVICES")
        if _COUNTS_VISIBLE.search(text) and isinstance(visible, str) and UNKNOWN not in visible:
            return str(visible.count(",") + 1)
        if _COUNTS_GPUS.search(text):
            return GPUS
        shell = self._copy()
        shell.reading = ShellReading()
        try:
            shell.run(tokens(text, self.name))
        except (UnreadCommand, _Left):
            return unknown(text)
        is_known = shell.reading == ShellReading() and UNKNOWN not in "".join(shell.printed)
        return (
            "\n".join(shell.printed[-1:] if shell.folder != self.folder else shell.printed)
            if is_known
            else unknown(text)
        )

    def _test(self, words: list[str]) -> bool | None:
        """Return the value of ``[ … ]``, or None if it is not known."""
        for sign, decides in (("||", True), ("-o", True), ("&&", False), ("-a", False)):
            if sign in words[1:-1]:
                at = words.index(sign, 1)
                sides = (self._test(words[:at]), self._test(words[at + 1 :]))
                return decides if decides in sides else None if None in sides else not decides
        if words[:1] == ["!"]:
            outcome = self._test(words[1:])
            return None if outcome is None else not outcome
        words = [_without_missing(each) for each in words]
        if _MARKS.search("".join(words)):
            return None
        first, second, third = [*words, "", "", ""][:3]
        if len(words) < 2:
            return first != ""
        if len(words) == 2 and first in ("-z", "-n"):
            return (second == "") == (first == "-z")
        if len(words) == 2 and first in ("-e", "-f", "-d", "-s", "-r", "-x") and not second.startswith("/"):
            path = self.here / self._path(second)
            return path.is_dir() if first == "-d" else path.is_file() if first == "-f" else path.exists()
        if len(words) == 3 and second in ("=", "==", "!="):
            return fnmatchcase(first, third) == (second != "!=")
        if len(words) == 3 and second in _COMPARES and first.isdecimal() and third.isdecimal():
            return _COMPARES[second](int(first), int(third))
        return None


def _last(part: list[Token], word: str) -> int:
    """Return the index of the word that ends a statement; redirections may follow it."""
    return max((at for at, token in enumerate(part) if token.text == word), default=len(part))


def _is_of_machine(name: str, value: str) -> bool:
    return bool(_OF_MACHINE.fullmatch(name) or (UNKNOWN in value and _MAY_BE_OF_MACHINE.fullmatch(name)))


def _without_missing(text: str) -> str:
    """Return text with variables that nothing sets as the empty text that they are to a condition."""
    return re.sub(rf"{UNKNOWN}\$\{{?(?!HOME|USER|PATH|\?|\$|RANDOM)(\w+)\}}?", "", text)
