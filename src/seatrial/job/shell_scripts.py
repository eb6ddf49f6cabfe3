"""Read the Python commands that a shell script starts, executing nothing; an unknown part is left unread.

docs/decisions.md, 0173 and 0206.
"""

from __future__ import annotations

import copy
import posixpath
import re
import shlex
import time
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from fnmatch import fnmatchcase
from functools import partial
from itertools import dropwhile, takewhile
from pathlib import Path

from seatrial.job import startable
from seatrial.job.reading.modules import is_file, is_folder
from seatrial.job.shell_grammar import Statement, joined, statements
from seatrial.job.shell_words import HERE, MARKS, SET, UNKNOWN, Words, number, unknown, without_missing
from seatrial.job.startable import GPUS, SHELL_SUFFIXES, SHELLS, PythonCommand, UnreadCommand, batch_request, is_python
from seatrial.job.tasks import TASK_RUNNERS, task_commands
from seatrial.system.names import hidden
from seatrial.system.project_files import own_table

_TO_HERE = re.compile(rf"{HERE}([\w./-]*)")

_TABLE = own_table(Path(__file__).with_name("launchers.toml"))["shell"]
_DEPENDS, _OTHERS, _HANDLES_FILES = ("|".join(_TABLE[each].split()) for each in ("depends", "others", "files"))
#: bash counts up or down, and keeps zeros in front, which are not read.
_RANGE = re.compile(r"\{(0|[1-9]\d{0,2})\.\.(0|[1-9]\d{0,2})\}")
#: Commands that create an environment, which the image replaces; commands that only handle files.
_INSTALLS = re.compile(r"python\S* (-m (v(irtual)?env|(ensure)?pip)|setup.py (install|develop))\b|uv (venv|pip|sync)\b")
_LEFT_OUT = re.compile(rf"(module|ml|conda|mamba|pip3?|mkdir|ulimit) |{_INSTALLS.pattern}")
#: Variables of batch systems with the job's folder: the folder of the submitting command.
_FOLDERS = ("PWD", "SLURM_SUBMIT_DIR", "PBS_O_WORKDIR", "LS_SUBCWD")
_NODES = re.compile(r"(?:--nodes|(?<!\S)-N)[= ]*(\d+)(?!\w)")
_TASKS = re.compile(r"(?:--ntasks(-per-node)?|(?<!\S)-n)[= ]*(\d+)")
#: Variables of the machine, which a container has of its own; the second with values that are not known.
_OF_MACHINE = re.compile(
    r"(PATH|LD_\w+|TMPDIR|HOME|USER|XDG_\w+)=.*"
    rf"|(SLURM_\w+|\w*CACHE\w*|\w+_HOME|CONDA\w*|\w+_API_KEY|\w*PATH|\w*PORT)=.*{UNKNOWN}.*",
    re.S,
)
_UNSET = re.compile(rf"{UNKNOWN}(?:\$(?:\{{(?=\w+\}}))?((?!(?:HOME|USER|PATH)\b)[A-Za-z_]\w*)(?![\w\[]))?")
_COUNTS_GPUS = re.compile(r"nvidia-smi.*(\bwc -l\b|-c )|cuda\.device_count\(\)", re.S)
#: Limits: statements run, letters of a script.
_MOST_RUN, _MOST_TEXT = 5_000, 50_000


class _Left(Exception):
    """Signal the end of a script or a function."""


@dataclass
class ShellReading:
    """Hold a script's Python commands with their folders, its other commands, its first unread line and first cut."""

    started: list[tuple[str, PythonCommand]] = field(default_factory=list)
    others: list[str] = field(default_factory=list)
    unread: str | None = None
    cut: str | None = None
    left: list[str] = field(default_factory=list, compare=False)  # what the image replaces: ``module load``
    why: list[str] = field(default_factory=list, compare=False)  # a place of each command that has unknown words
    unset: list[str] = field(default_factory=list, compare=False)  # variables that the unread command lacks
    secrets: dict[str, str] = field(default_factory=dict, compare=False)  # values that its lines may have → variables


def read_shell(
    text: str, arguments: Sequence[str], name: str, here: Path, batch: Sequence[str] = (), env: Sequence[str] = ()
) -> ShellReading:
    """Return a script's commands in ``here``, as ``batch`` submits it, with ``env``, up to the first unread line."""
    shell = _Shell(name, [*arguments], here)
    for variable, sign, value in (each.partition("=") for each in env):
        shell.assign(f"{variable}={shlex.quote(value)}" * bool(sign))
    shell.batched(*batch, *startable.BATCH_LINE.findall(text))
    text, shell.reading.cut = joined(text, name)
    try:
        shell.run(statements(text, name))
    except _Left:
        if not (shell.reading.started or shell.reading.unread):
            last = [each.replace(HERE, "") for each in shell.printed if each.strip() and UNKNOWN not in each][-3:]
            shell.reading.unread = f"{shell.place} (the script ends here{'; it prints: ' * bool(last)}{' '.join(last)})"
    except UnreadCommand as unread:
        shell.reading.unread = str(unread)
    except (RuntimeError, OSError, ValueError) as error:  # nested too deep, a path that cannot exist
        shell.reading.unread = f"{shell.place} ({error})"
    shown, why = partial(hidden, secrets=shell.secrets), shell.reading.unread or next(iter(shell.reading.why), None)
    return replace(
        shell.reading,
        started=[(at, replace(each, secrets=shell.secrets)) for at, each in shell.reading.started],
        others=[*map(shown, shell.reading.others)],
        unread=why and shown(why),
        left=[*map(shown, shell.reading.left)],
        secrets=shell.secrets,
    )


class _Shell(Words):
    def __init__(self, name: str, arguments: list[str], here: Path) -> None:
        super().__init__(name, arguments, here)
        self.values = {"OPTIND": "1", **dict.fromkeys(_FOLDERS, f"{HERE}.")}
        self.values["RANDOM"] = str(int(time.time()) % 32768)
        self.exported, self.functions = dict[str, None](), dict[str, list[Statement]]()
        self.locals = dict[str, str | list[str]]()  # what a function's own variables were before
        self.left, self.batch = [_MOST_RUN], list[str]()
        self.reading, self.printed = ShellReading(), list[str]()

    def batched(self, *lines: str) -> None:
        """Take what a batch system's options request, behind those of an outer command; note the others."""
        self.batch = [*self.batch, *batch_request(text := " ".join(lines))]
        found, gpus = _NODES.search(text), dict(zip(self.batch[::2], self.batch[1::2], strict=True)).get("--gpus", GPUS)
        nodes, tasks = found[1] if found else str(self.values.get("SLURM_NNODES", 1)), _TASKS.search(text)
        ranks = int(tasks[2]) * int(nodes if tasks[1] else 1) if tasks else self.values.get("SLURM_NTASKS", nodes)
        known = {"SLURM_NNODES": nodes, "SLURM_JOB_NUM_NODES": nodes, "SLURM_NTASKS": str(ranks)}
        ids = dict.fromkeys(("SLURM_JOB_ID", "SLURM_JOBID", "PBS_JOBID", "LSB_JOBID"), self.values["RANDOM"])
        known |= {**ids, "SLURM_GPUS_ON_NODE": gpus, "SLURM_PROCID": "0", "SLURM_NODEID": "0"}
        for letter, name in (("J", "job-name"), ("c", "cpus-per-task")):
            text = re.sub(rf"(?<!\S)-{letter}[= ]*", f"--{name}=", text)
        options = re.findall(r"""--([a-z-]+)[= ]("[^"]*"|'[^']*'|\S+)""", text)
        self.values |= {f"SLURM_{name.upper().replace('-', '_')}": value.strip("'\"") for name, value in options}
        self.values |= known if text else {}
        self.reading.left += [line.strip() for line in lines if line.startswith("-") and not batch_request(line)]

    def _copy(self, own: Sequence[str] = ()) -> _Shell:
        """Return a shell that begins as this one is now, with variables; both note what they start in one place."""
        other = copy.copy(self)
        other.values, other.exported, other.functions = {**self.values}, {**self.exported}, {**self.functions}
        other.locals = {}
        for word in own:
            other._declare(word, exports=True)
        return other

    def _call(self, shell: _Shell, body: Sequence[Statement], name: str, arguments: list[str]) -> bool | None:
        """Run a function or a script in this shell, or statements in a copy, which alone ends by ``exit``."""
        before = self.name, self.arguments, self.locals
        shell.name, shell.arguments, shell.locals = name, arguments, {}
        try:
            return shell.run(body)
        except _Left as left:
            if shell is self and "return" not in left.args:
                raise
            return None
        finally:
            self.values |= self.locals if shell is self else {}
            self.name, self.arguments, self.locals = before

    def run(self, statements: Sequence[Statement]) -> bool | None:
        """Run statements; return whether the last succeeds, None if that is not known. Raises UnreadCommand."""
        outcome: bool | None = True
        for statement in statements:
            self.place, self.left[0] = statement.place, self.left[0] - 1
            if self.left[0] < 0:
                raise UnreadCommand(self.place)
            try:
                outcome = self._statement(*statement)
            except UnreadCommand as unread:  # a list of commands goes on; the script is not one command
                if self.left[0] < 0:
                    raise
                self.reading.unread = self.reading.unread or str(unread)
                self.values |= {name: unknown(name) for name in re.findall(r"['\"](\w+)\+?=", repr(statement))}
                outcome = None
        return outcome

    def _statement(self, place: str, kind: str, words: list[str], parts: Sequence[list[Statement]]) -> bool | None:
        if kind == "":
            return self._command(place, words)
        if kind == "function":
            self.functions[words[0]] = parts[0]
        elif kind == "for" and words[1:2] == ["in"]:
            ends = _RANGE.fullmatch(" ".join(words[2:]))
            first, last = map(int, ends.groups()) if ends else (0, 0)
            counted = range(first, last + 1) or range(first, last - 1, -1)
            for value in map(str, counted) if ends else self.every_field(words[2:]):
                self.values[words[0]] = value
                if UNKNOWN in value:  # none, or several
                    self._either(place, parts[0], [])
                elif not self._goes_on(parts[0]):
                    break
        elif kind == "for" and words and words[0].startswith("((") and words[0].count(";") == 2:
            begin, holds, step = (Statement(place, "", [f"(({each}))"]) for each in words[0][2:-2].split(";"))
            self.run([begin])
            return self._statement(place, "while", [], ([holds], parts[0], [step]))
        elif kind == "while":
            while (outcome := self.run(parts[0])) and self._goes_on(parts[1]):
                self.run([each for step in parts[2:] for each in step])
            if outcome is None:
                return self._either(place, parts[1], [])
        elif kind == "case":
            subject = without_missing(self.text(words[0]))
            if MARKS.search(subject):
                return self._either(place, *(clause.parts[0] for clause in parts[0]), [])
            fits = (each for each in parts[0] if any(fnmatchcase(subject, self.text(word)) for word in each.words))
            return self.run(clause.parts[0]) if (clause := next(fits, None)) else True
        elif kind == "(":
            return self._call(self._copy(), parts[0], self.name, self.arguments)
        elif kind == "|":
            before = len(self.printed)
            self.run(parts[0])
            self.input, self.printed[before:] = self.printed[before:], []
            outcome, self.input = self.run(parts[1]), []
            return outcome
        elif kind == "{":
            return self.run(parts[0])
        elif kind in ("!", "if", "&&", "||"):
            outcome = self.run(parts[0])
            if kind == "!":
                return None if outcome is None else not outcome
            bodies = [parts[1], *parts[2:], []][:2] if kind != "||" else [[], parts[1]]
            if outcome is None:
                return self._either(place, *bodies)
            body = bodies[not outcome]
            return self.run(body) if body else outcome or kind == "if"
        else:
            raise UnreadCommand(place)
        return True

    def _goes_on(self, body: Sequence[Statement]) -> bool:
        """Run a loop's body once; return whether the loop goes on behind it."""
        try:
            self.run(body)
        except _Left as left:
            kind, loops = left.args
            if kind not in ("break", "continue"):
                raise
            if loops != 1:
                raise (_Left(kind, loops - 1) if loops else UnreadCommand(self.place)) from None
            return bool(kind == "continue")
        return True

    def _either(self, place: str, *bodies: Sequence[Statement]) -> bool | None:
        """Run the bodies of a condition with an unknown outcome; ignore bodies that end the script."""
        shells = list[_Shell]()
        for body in bodies:
            shell = self._copy()
            shell.reading = replace(self.reading, started=[*self.reading.started], others=[*self.reading.others])
            printed = len(self.printed)
            try:
                shell.run(body)
            except _Left as left:
                del self.printed[printed:]
                self.reading.unread = self.reading.unread or (place if left.args[0] in ("break", "continue") else None)
                continue
            shells.append(shell)
        if not shells:
            raise _Left("exit", 1)
        first, readings, begun = shells[0], [each.reading for each in shells], len(self.reading.started)
        ends = [(each.reading.started, each.folder, each.arguments) for each in shells]
        if any(each != ends[0] for each in ends):
            readings[0].unread = readings[0].unread or place
            readings[0].started += [each for other in readings[1:] for each in other.started[begun:]]
        self.reading.unread = next((each.unread for each in readings if each.unread), self.reading.unread)
        self.reading.cut = next((each.cut for each in readings if each.cut), self.reading.cut)
        for name in {name for each in shells for name in each.values}:
            values = [each.values.get(name) for each in shells]
            self.values[name] = first.values[name] if values.count(values[0]) == len(values) else f"{UNKNOWN}{name}"
        self.reading.started[:] = readings[0].started
        self.reading.others[:] = dict.fromkeys(each for other in readings for each in other.others)
        self.folder, self.exported, self.arguments = first.folder, first.exported, first.arguments
        return None

    def _command(self, place: str, words: list[str]) -> bool | None:
        own = [*takewhile(SET.fullmatch, words)]
        is_fed, words = "<" in words, words[len(own) :]
        if not words:
            for word in own:
                self.assign(word)
            return True
        if words[0].startswith("(("):
            return None if (value := self.calculate(words[0][2:-2])) is None else value != 0
        if words[0] in ("[", "[[", "test"):
            texts = [self.text(word) for word in words[1:]]
            return self.test(texts if words[0] == "test" else texts[:-1])
        if words[0] in ("export", "declare", "local", "readonly", "typeset"):
            for word in words[1:]:
                if words[0] == "local" and (name := re.split(r"\W", word)[0]) not in self.locals:
                    self.locals[name] = self.values.get(name, f"{UNKNOWN}${name}")
                self._declare(word, exports=words[0] == "export")
            return True
        fields = self.every_field(word for word in words if word != "<")
        return self._program(place, fields, own, is_fed=is_fed) if fields else True

    def _declare(self, word: str, *, exports: bool) -> None:
        if word.startswith(('"', "'")):  # export "A=b"
            name, _, value = self.text(word).partition("=")
            word = f"{name}={shlex.quote(value)}"
        self.assign(word)
        name = re.split(r"\W", word)[0]
        self.exported |= {name: None} if exports and name in self.values else {}

    def _program(self, place: str, fields: list[str], own: list[str], *, is_fed: bool) -> bool | None:
        program, arguments = posixpath.basename(fields[0]), fields[1:]
        if program == "exec":
            return self._program(place, arguments, own, is_fed=is_fed) if arguments else True
        if program.endswith(SHELL_SUFFIXES) and UNKNOWN not in fields[0] and is_file(self.here / self.path(fields[0])):
            program, arguments = "bash", fields
        if is_fed and program in SHELLS and re.search(r": .*\b(curl|wget) ", place):  # the installer of a program
            self.reading.left.append(place.partition(": ")[2])
            self.reading.others[:] = [each for each in self.reading.others if each != place]
            return True
        if is_fed and (text := self.filtered(program, arguments)) is not None:
            self.printed.append(text)
            return True
        if re.match("--?[A-Za-z]", program) and self.reading.started:  # the line above lacks its \\
            name, _, line = place.partition(": ")[0].rpartition(":")
            folder, begun = self.reading.started.pop()
            self.reading.started.append((folder, replace(begun, arguments=(*begun.arguments, *fields))))
            self.reading.cut = self.reading.cut or f"{name}:{(number(line) or 1) - 1}"
            return True
        reads = [*self.functions, *SHELLS, "eval", "make", *startable.RUNNERS] * is_fed
        if program in ("popd", "pushd", "coproc", *reads):
            raise UnreadCommand(place)
        if program in self.functions:
            return self._call(self, self.functions[program], self.name, arguments)
        if program in ("source", ".", "eval", "cd", "shift", "set", "read", "unset", "getopts", *SHELLS):
            return self._builtin(place, program, arguments)
        if program in ("exit", "return", "break", "continue"):
            raise _Left(program, number("".join(arguments[:1]) or "1"))
        if inner := startable.submitted(fields, self.here / self.folder):
            shell = self._copy(startable.set_for_job(fields, inner))
            shell.batched(startable.batch_words(fields, inner))
            return shell._program(place, inner, own, is_fed=is_fed)
        shows, typed = is_python(program) and _only_shows(arguments, self.here / self.folder), [program, *arguments]
        self.reading.left += [shlex.join(typed)] if shows or _LEFT_OUT.match(shlex.join(typed)) else []
        if shows or _INSTALLS.match(" ".join(typed)):
            self.printed += [UNKNOWN] * shows
            return None if shows else True
        depends = re.fullmatch(_DEPENDS, program) is not None
        if (depends or re.fullmatch(_OTHERS, program)) and arguments[:1] != ["run"]:  # conda run python …
            self.printed.append(UNKNOWN if is_fed else self.answer(program, arguments))
            return None if depends else program != "false"
        command = self._python(place, fields, own)
        is_task = program in (*TASK_RUNNERS, *startable.RUNNERS, self.name)  # a task's own name where it was typed
        if command is None and is_task and (found := task_commands(fields, self.here / self.folder)):
            for text, its_place in found:
                self._call(self._copy(), statements(text, program, its_place), program, [])
            return True
        if command is None or is_fed:
            self.reading.others.append(place)
            if command is None and not re.fullmatch(_HANDLES_FILES, program):
                self._inner(place, fields, own)
        else:
            self.reading.started.append((self.folder, command))
        self.printed.append(UNKNOWN)
        return True

    def _inner(self, place: str, fields: list[str], own: list[str]) -> None:
        """Note the Python command that an unknown program starts, ``apptainer exec image.sif ./train.py``."""
        at = next((at for at, word in enumerate(fields) if at and startable.starts_python(word)), None)
        if at is None:
            return
        shell = self._copy(own)
        if " " in fields[at]:
            self._call(shell, statements(fields[at], "", place), self.name, [])
        else:
            shell._program(place, fields[at:], [], is_fed=False)

    def _python(self, place: str, fields: list[str], own: list[str]) -> PythonCommand | None:
        """Read a command that starts Python, with the variables that it gets; None for others."""
        shell = self._copy(own) if own else self
        variables = [f"{name}={value}" for name in shell.exported if isinstance(value := shell.values[name], str)]
        words = [*(each for each in variables if not _OF_MACHINE.fullmatch(each)), *fields]
        try:
            paths = [_TO_HERE.sub(lambda path: posixpath.relpath(path[1] or ".", self.folder), each) for each in words]
            command = startable.read_command(paths, self.here / self.folder)
        except UnreadCommand as unread:
            why = MARKS.sub("", f"{place.partition(': ')[0]}: {unread}")
            if (command := startable.script_alone(paths)) is None:
                raise UnreadCommand(why) from None
            self.reading.why.append(why)
        elsewhere = rf"/|{UNKNOWN}(~|\$HOME|\$\{{HOME\}})/"  # the author's machine
        if command and re.match(elsewhere, path := command.target[0]) and not is_file(Path(path)):
            ends = (path.split("/", count)[-1] for count in range(1, path.count("/") + 1))
            end = next((each for each in ends if is_file(self.here / self.folder / each)), path)
            self.reading.why += [f"{place} (not here: {MARKS.sub('', path)})"] * (end != path)
            theirs = path.removesuffix(end)
            arguments = (each.replace(theirs, "") if theirs[1:] else each for each in command.arguments)
            command = replace(command, target=(end,), arguments=tuple(arguments))
        text = " ".join(command.words()) if command else ""
        if mark := re.search(rf"{UNKNOWN}([^\s{UNKNOWN}{GPUS}]{{0,40}})|{GPUS}", text):
            unset = _UNSET.findall(text)
            self.reading.unset += dict.fromkeys(each for each in unset if all(unset) and each not in self.reading.unset)
            self.reading.why.append(f"{place} (unknown: {mark[1] or 'the number of GPUs'})")
        before = [*takewhile(lambda word: not startable.starts_python(word), fields)]
        nodes = _NODES.search(f"{shlex.join(before)} -N{self.values.get('SLURM_NNODES', 1)}")
        several = ["--nodes", nodes[1]] if before[:1] == ["srun"] and nodes and nodes[1] != "1" else []
        return command and command.requesting([*self.batch, *several])

    def _builtin(self, place: str, program: str, arguments: list[str]) -> bool | None:
        """Run a builtin that changes the shell's state, or another script."""
        count = number(arguments[0] if arguments else "1") if program == "shift" else 0
        if count is None:
            raise UnreadCommand(place)
        if program == "shift" or (program == "set" and "--" in arguments):
            if count > len(self.arguments):
                return False
            if program == "set" and any(re.match(f"{UNKNOWN}[^$]", each) for each in arguments):  # of any number
                raise UnreadCommand(place)
            self.arguments = self.arguments[count:] if program == "shift" else arguments[arguments.index("--") + 1 :]
        elif program == "getopts" and arguments[1:]:
            return self.next_option(place, arguments[0], arguments[1], arguments[2:] or self.arguments)
        elif program in ("read", "unset"):
            names = filter(str.isidentifier, arguments)
            self.values |= {name: unknown(name) if program == "read" else "" for name in names}
            self.exported = {name: None for name in self.exported if program == "read" or name not in arguments}
            return None if program == "read" else True
        elif program == "cd":
            paths = [each for each in arguments if each not in ("--", "-P", "-L")]
            if len(paths) != 1 or paths[0] == "-":
                raise UnreadCommand(place)
            path = self.path(paths[0]) if UNKNOWN not in paths[0] else "/"
            if path[0] == "/":  # the author's: its end may be a folder here
                self.reading.left.append(place.partition(": ")[2] or place)
                ends = (path.split("/", count)[-1] for count in range(2, path.count("/") + 1))
                path = next((each for each in ends if each and (self.here / each).is_dir()), ".")
            self.folder, self.values["PWD"] = path, f"{HERE}{path}"
            if not (self.here / path).is_dir():
                raise UnreadCommand(place)
        elif program == "eval" or arguments[:1] == ["-c"]:
            text = " ".join(arguments).removeprefix("-c ")
            self.batched(*startable.BATCH_LINE.findall(text))
            if UNKNOWN not in text:
                return self.run(statements(text, "", place))
            if not re.search(r"conda|mamba|pyenv|ssh-agent|direnv|modulecmd", text):
                raise UnreadCommand(place)
        else:
            return self._script(place, program, [*dropwhile(lambda word: word[:1] in ("-", "+"), arguments)])
        return True

    def _script(self, place: str, program: str, words: list[str]) -> bool | None:
        """Run a shell script of the project; nothing for an environment's ``activate`` and for others' files."""
        path = (self.here / self.path(words[0])).resolve() if words and UNKNOWN not in words[0] else self.here
        if path.is_relative_to(self.here.resolve()) and path.name != "activate" and is_file(path):
            body = statements(text := startable.whole(path, _MOST_TEXT), self.path(words[0]))
            if program in SHELLS:
                shell = self._copy()
                shell.batched(*startable.BATCH_LINE.findall(text))
                return self._call(shell, body, words[0], words[1:])
            return self._call(self, body, words[0], words[1:] or self.arguments)
        if program in SHELLS:
            raise UnreadCommand(place)
        self.reading.left.append(place.partition(": ")[2] or place)
        return True

    def output(self, text: str) -> str:
        """Return the output of a command substitution."""
        if _COUNTS_GPUS.search(text):
            return GPUS
        shell = self._copy()
        shell.reading, shell.printed = ShellReading(), []
        try:
            shell.run(statements(text, self.name))
        except (UnreadCommand, _Left):
            return unknown(text)
        printed = "\n".join(shell.printed)
        return unknown(text) if UNKNOWN in printed or shell.reading != ShellReading() else printed


def _only_shows(words: Sequence[str], here: Path) -> bool:
    """Return whether ``python -V`` or ``python -c "import torch; print(…)"`` runs none of the project's code."""
    code = words[1] if words[:1] == ["-c"] and words[1:] else "print" * (words in (["-V"], ["--version"]))
    parts = [each for each in re.split(r"[;\n]", code) if each.strip()]
    names = (name for name in re.findall(r"\w+", code) if is_file(here / f"{name}.py") or is_folder(here / name))
    shows = all(re.match(r"\s*(import|from|assert|print)\b", each) for each in parts)
    starts = re.search(r"\b(system|popen|subprocess|runpy|exec|eval|__import__|importlib)\b", code)
    return bool(parts) and shows and not (starts or any(names))
