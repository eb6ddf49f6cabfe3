"""The training command that a shell script or Makefile holds, in seatrial's words. Nothing is run."""

from __future__ import annotations

import posixpath
import re
import shlex
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

#: Text that is looked at; a command stands at the top of a script of this kind.
_MOST_CHARACTERS = 100_000

#: Words in front of a command that change how it is started, and not what.
_WRAPPERS = {"exec", "env", "nohup", "time", "sudo", "command", "then", "do", "else", "nice"}
_ASSIGNMENT = re.compile(r"[A-Za-z_]\w*=")
_PYTHON = re.compile(r"([\w./~-]*/)?python[\d.]*|\$[({]?PYTHON\d?[)}]?")

#: Launchers' words for the number of processes. Source: --help of torchrun, accelerate launch, deepspeed, horovodrun.
_PROCESSES = re.compile(r"(?:--(?:nproc[_-]per[_-]node|num[_-]processes|num[_-]gpus|num-proc)|-np)(?:=(.*))?")
#: Programs that start Python on a script themselves.
LAUNCHERS = ("torchrun", "accelerate", "deepspeed", "horovodrun")
#: Programs that start any program several times; Horovod's scripts are started by them, too.
#: Source: man mpirun of Open MPI and MPICH, srun of Slurm, jsrun of LSF.
MPI_LAUNCHERS = ("mpirun", "mpiexec", "mpiexec.hydra", "srun", "jsrun", "aprun")
_RANKS = re.compile(r"(?:-n|-np|--np|--ntasks|--nrs)(?:=(.*))?|-n(\d+)")
_HOSTS = re.compile(r"(?:-H|-host|--host|--hosts|-hosts)(?:=(.*))?")
_REDIRECTION = re.compile(r"[0-9&]?[<>]")
_LAUNCH_MODULES = ("torch.distributed.run", "torch.distributed.launch", "accelerate.commands.launch")

#: A variable's value where it is used: $NAME, ${NAME}, ${NAME:-default}; in a Makefile also $(NAME). What stands in
#: single quotes is text.
_VARIABLE = re.compile(r"'[^']*'|\$(?:(\w+)|\{(\w+)(?::?[-=]([^{}]*))?\}|\((\w+)\))")
_MAKE_VARIABLE = re.compile(r"(\w+)\s*[:?]*=\s*(.*)")
_SETTERS = {"export", "declare", "local", "readonly", "typeset"}
#: All arguments of the shell script itself.
_ALL_ARGUMENTS = re.compile(r"\$(?:[@*]|\{[@*](?::\d+)?\})")
_NAME = re.compile(r"\$\{?([A-Za-z_]\w*|\d)")
#: The script's own folder: $(dirname "$0"), and the whole path of it by cd and pwd.
_OWN_FOLDER = re.compile(
    r"""\$\(\s*dirname\s+(?:--\s+)?"?(?:\$0|\$\{0\}|\$BASH_SOURCE|\$\{BASH_SOURCE(?:\[0\])?\})"?\s*\)|`dirname\s+"?\$0"?`|\$\{0%/\*\}"""
)
_WHOLE_PATH = re.compile(r"""\$\(\s*cd\s+(["']?)([^"'$&)]*)\1[^)]*?&&\s*pwd(?:\s+-P)?\s*\)""")
_HOST_FILE = re.compile(r"(?:--?hostfile|--?machinefile)(?:=(.*))?")
#: What Slurm is asked for. Source: man sbatch and man srun.
_SLURM_NODES = re.compile(r"(?:-N|--nodes)(?:=(.*))?|-N(\d.*)")
_SLURM_TASKS = re.compile(r"(?:-n|--ntasks)(?:=(.*))?|-n(\d+)")
_SLURM_TASKS_PER_NODE = re.compile(r"--ntasks-per-node(?:=(.*))?")
_SLURM_GRES = re.compile(r"--gres(?:=(.*))?")
_SLURM_GPUS = re.compile(r"(?:-G|--gpus)(?:=(.*))?|-G(\d.*)")
_SLURM_GPUS_PER_NODE = re.compile(r"--gpus-per-node(?:=(.*))?")
_SLURM_GPUS_PER_TASK = re.compile(r"--gpus-per-task(?:=(.*))?")
#: 4, a100:4; of --gres also gpu, gpu:4, gpu:a100:4.
_SLURM_COUNT = re.compile(r"(?:[\w.-]*[A-Za-z][\w.-]*:)?(\d+)")
_SLURM_GPU = re.compile(r"gpu(?::[\w.-]*[A-Za-z][\w.-]*)?(?:[:=](\d+))?")


@dataclass(frozen=True)
class ShellCommand:
    """One command.

    Attributes:
        line: its first line, from 1. typed: the words as they stand there.
        seatrial: the same as ``seatrial run …``.
    """

    line: int
    typed: str
    seatrial: str


def training_command(
    text: str, is_file: Callable[[str], bool], *, makefile: bool = False, own: str = "."
) -> ShellCommand | None:
    """The first command that starts Python on a script or module of the project, or None; one by a launcher goes first.

    Variables have the values that the script gives them; those that it does not give any stay.

    Args:
        is_file: whether a path relative to the project is a file. own: the folder of the shell script there.
    """
    folder, last = ".", 0
    first = None
    text = _WHOLE_PATH.sub(lambda path: path[2], _OWN_FOLDER.sub(lambda _: own, text[:_MOST_CHARACTERS]))
    batch = () if makefile else tuple(_batch_words(text))
    slurm = _slurm_gpus(batch, None)
    for line, typed, words in _commands(text, makefile):
        if makefile and line != last:
            folder = "."  # each line of a recipe has a shell of its own
        last = line
        if words[:1] == ["cd"] and len(words) == 2:
            folder = posixpath.normpath(posixpath.join(folder, words[1]))
            continue
        start = _read(words, folder, is_file, batch)
        if start is None:
            continue
        if start.gpus is None and slurm:
            start = replace(start, gpus=slurm)
        found = ShellCommand(line, typed, _as_run(start))
        if start.launcher:
            return found
        first = first or found
    return first


def _commands(text: str, makefile: bool) -> Iterator[tuple[int, str, list[str]]]:
    """(first line, as typed, words) of each simple command; lines that are no shell are passed over."""
    joined: list[str] = []
    start = 1
    variables: dict[str, str] = {}
    for number, line in enumerate(text.splitlines(), 1):
        start = start if joined else number
        joined.append(line[:-1] if line.endswith("\\") else line)
        if line.endswith("\\"):
            continue
        whole, joined = " ".join(joined), []
        if makefile:
            if not whole.startswith("\t"):
                if match := _MAKE_VARIABLE.fullmatch(whole.strip()):
                    variables[match[1]] = _with_values(match[2], variables)
                continue
            whole = _with_values(whole.lstrip("\t@-+ "), variables).replace("$$", "$")
        for part in re.split(r"&&|\|\||;|\|", whole):
            try:
                words = shlex.split(part if makefile else _with_values(part, variables), comments=True)
            except ValueError:
                continue
            if words and not _set(words, variables):
                yield start, " ".join(part.split()), words


def _with_values(text: str, variables: Mapping[str, str]) -> str:
    """Text in which each variable that is known, or has a default there, is its value."""

    def value(use: re.Match[str]) -> str:
        name = use[1] or use[2] or use[4]
        default = use[3].strip("\"'") if use[3] is not None and "$" not in use[3] else use[0]
        return variables.get(name, default) if name else use[0]

    return _VARIABLE.sub(value, text)


def _set(words: Sequence[str], variables: dict[str, str]) -> bool:
    """Whether these words only set variables. They are set; one whose value is not known here is forgotten."""
    words = words[1:] if words[0] in _SETTERS else words
    if not all(_ASSIGNMENT.match(word) for word in words):
        return False
    for word in words:
        name, _, value = word.partition("=")
        variables.pop(name, None)
        if not re.search(r"[$`]", value):
            variables[name] = value
    return True


@dataclass(frozen=True)
class _Start:
    """What a command starts: options and target of ``seatrial run``, the target's arguments.

    Attributes:
        hosts_in: file that lists the machines, which is not read.
    """

    target: tuple[str, ...]
    arguments: tuple[str, ...]
    gpus: str | None
    launcher: bool
    nodes: tuple[str, ...] = ()
    hosts_in: str | None = None


def _read(words: list[str], folder: str, is_file: Callable[[str], bool], batch: Sequence[str]) -> _Start | None:
    while words and (words[0] in _WRAPPERS or _ASSIGNMENT.match(words[0])):
        words = words[1:]
    if not words:
        return None
    gpus: str | None = None
    nodes: tuple[str, ...] = ()
    hosts_in: str | None = None
    launcher = False
    if words[0] in MPI_LAUNCHERS:
        cut = next((at for at, word in enumerate(words) if _starts(word)), len(words))
        launcher = words[0] != "srun"
        if launcher:
            gpus, nodes, hosts_in = _on_hosts(_value_of(_RANKS, words[:cut]), words[:cut])
            gpus = gpus if nodes else _slurm_gpus(batch, None) or gpus
            gpus = gpus if gpus != "1" else None
        else:
            gpus = _slurm_gpus(batch, words[1:cut])
        words = words[cut:]
    if not words or not _starts(words[0]):
        return None
    if words[0] == "horovodrun":
        end = next((at for at, word in enumerate(words) if word.endswith(".py") or _PYTHON.fullmatch(word)), None)
        gpus, nodes, hosts_in = _on_hosts(_value_of(_PROCESSES, words[:end]), words[:end])
    rest = words[1:]
    launcher = launcher or not _PYTHON.fullmatch(words[0])
    while rest:
        word = rest.pop(0)
        if match := _PROCESSES.fullmatch(word):
            named = match[1] or (rest.pop(0) if rest else None)
            gpus = gpus if nodes or hosts_in else named
        elif word in ("-m", "--module") and rest and rest[0] in _LAUNCH_MODULES:
            launcher = bool(rest.pop(0))
        elif word in ("-m", "--module") and rest and not rest[0].endswith(".py"):
            return _Start(("-m", rest.pop(0)), _arguments(rest, launcher), gpus, launcher, nodes, hosts_in)
        elif word.endswith(".py"):
            script = _in_the_project(word, folder, is_file)
            if script is None:
                return None
            return _Start((script,), _arguments(rest, launcher), gpus, launcher, nodes, hosts_in)
        elif not word.startswith("-") and not launcher:
            return None  # python -c …, a script without .py
    return None


def _arguments(words: Sequence[str], launcher: bool) -> tuple[str, ...]:
    """The script's own; a launcher keeps a ``--`` in front of them to itself, as argparse does."""
    return tuple(words[1:] if launcher and words[:1] == ["--"] else words)


def _value_of(option: re.Pattern[str], words: Sequence[str]) -> str | None:
    """Of ``-np 4``, ``--np=4``, ``-n4``: the first."""
    for at, word in enumerate(words):
        if match := option.fullmatch(word):
            joined = next((value for value in match.groups() if value), None)
            return joined or (words[at + 1] if at + 1 < len(words) else None)
    return None


def _on_hosts(ranks: str | None, words: Sequence[str]) -> tuple[str | None, tuple[str, ...], str | None]:
    """(ranks on each host, hosts, file that lists them) of ``-np 8 -H a:4,b:4``; of one host no name is needed."""
    listed = (_value_of(_HOSTS, words) or "").split(",")
    names = tuple(dict.fromkeys(each.partition(":")[0] for each in listed if each))
    hosts_in = None if names else _value_of(_HOST_FILE, words)
    if hosts_in is not None:
        return None, (), hosts_in
    if len(names) < 2 or not all(re.fullmatch(r"[\w.-]+", name) for name in names):
        return ranks, (), None
    slots = {each.partition(":")[2] for each in listed}
    even = str(int(ranks) // len(names)) if ranks and ranks.isdigit() else ranks
    return (slots.pop() or even) if len(slots) == 1 else even, names, None


def _batch_words(text: str) -> Iterator[str]:
    """Every word of the #SBATCH lines."""
    for line in re.findall(r"^#SBATCH\s(.*)", text, re.MULTILINE):
        try:
            yield from shlex.split(line, comments=True)
        except ValueError:
            continue


def _slurm_gpus(batch: Sequence[str], step: Sequence[str] | None) -> str | None:
    """GPUs of one machine, of ``--nodes=2 --gpus=8`` 4. Where none are counted, srun's tasks there, one for each GPU.

    Args:
        batch: words of the #SBATCH lines. step: srun's own, which go before them; None without srun.
    """

    def asked(option: re.Pattern[str]) -> str | None:
        return _value_of(option, step or ()) or _value_of(option, batch)

    def count(option: re.Pattern[str]) -> int | None:
        match = _SLURM_COUNT.fullmatch(asked(option) or "")
        return int(match[1]) if match else None

    def on_one(number: int | None) -> int | None:
        return max(1, number // machines) if number and machines else None

    named = asked(_SLURM_NODES)
    machines = count(_SLURM_NODES) if named is not None else 1
    for each in (asked(_SLURM_GRES) or "").split(","):
        if match := _SLURM_GPU.fullmatch(each):
            return match[1] or "1"
    tasks = count(_SLURM_TASKS_PER_NODE) or on_one(count(_SLURM_TASKS))
    of_each = count(_SLURM_GPUS_PER_TASK)
    gpus = count(_SLURM_GPUS_PER_NODE) or on_one(count(_SLURM_GPUS)) or (of_each and of_each * (tasks or 1))
    if gpus:
        return str(gpus)
    if step is None or not any("gpu" in word.lower() for word in (*step, *batch)):
        return None
    if tasks is None:
        return asked(_SLURM_TASKS) if named is None else None  # a variable's name
    return str(tasks) if tasks > 1 else None


def _in_the_project(script: str, folder: str, is_file: Callable[[str], bool]) -> str | None:
    """The file that is meant: there, or where its last folders are, for the project's path on another machine."""
    parts = [part for part in script.split("/") if part != "."]
    ways = [posixpath.normpath(posixpath.join(folder, script)), *("/".join(parts[at:]) for at in range(len(parts)))]
    return next((way for way in ways if way and not way.startswith("/") and is_file(way)), None)


def is_python(word: str) -> bool:
    """``python``, ``/usr/bin/python3.10``."""
    return _PYTHON.fullmatch(word) is not None


def _starts(word: str) -> bool:
    return _PYTHON.fullmatch(word) is not None or word in LAUNCHERS


def _as_run(start: _Start) -> str:
    """The command to paste; what is to be set first stands behind it as a comment."""
    words = ["seatrial", "run", *(["--nodes", ",".join(start.nodes)] if start.nodes else [])]
    gpus = start.gpus or ""
    if gpus.isdigit() or gpus in ("gpu", "auto") or _NAME.match(gpus):
        words += ["--gpus", "all" if gpus in ("gpu", "auto") else gpus]
    words += start.target
    arguments = start.arguments
    end = next((at for at, word in enumerate(arguments) if word == "&" or _REDIRECTION.match(word)), len(arguments))
    own = [word for word in arguments[:end] if not _ALL_ARGUMENTS.search(word)]
    words += ["--", *own] if own else []
    unset = dict.fromkeys(name for word in words for name in _NAME.findall(word))
    notes = [f"fill in {', '.join(f'${name}' for name in unset)}"] if unset else []
    notes += [f"on each of {', '.join(start.nodes)}"] if start.nodes else []
    if start.hosts_in is not None:
        each = "" if "--gpus" in words[:4] else " and --gpus with the GPUs of each"
        notes.append(f"add --nodes with the machines that {shlex.quote(start.hosts_in)} lists{each}")
    notes += ["append what $@ stands for"] if len(own) < end else []
    return " ".join(map(_pasted, words)) + (f"    # {'; '.join(notes)}" if notes else "")


def _pasted(word: str) -> str:
    """The word for a shell, which puts in the value of a variable."""
    if "$" not in word and "`" not in word:
        return shlex.quote(word)
    return '"' + re.sub(r'(["\\])', r"\\\1", word) + '"'
