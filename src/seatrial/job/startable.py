"""Lists what a project has to start, and reads the commands of READMEs and shell scripts that start it."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path, PurePosixPath

from seatrial.job.reading.modules import is_file, locate_module

#: Programs that start Python on a script themselves.
LAUNCHERS = ("torchrun", "accelerate", "deepspeed", "horovodrun")
#: The same behind ``python -m``.
LAUNCHER_MODULES = (
    *("torch.distributed.launch", "torch.distributed.run", "accelerate.commands.launch", "horovod.runner.launch"),
    "deepspeed.launcher.runner",
)
#: Programs that start any program several times.
#: Source: man mpirun of Open MPI and MPICH, srun of Slurm, jsrun of LSF.
MPI_LAUNCHERS = ("mpirun", "mpiexec", "mpiexec.hydra", "srun", "jsrun", "aprun")
SHELLS = ("bash", "sh", "zsh", "sbatch")
_PYTHON = re.compile(r"([\w./~-]*/)?python[\d.]*")
_ASSIGNMENT = re.compile(r"([A-Za-z_]\w*)=(.*)", re.DOTALL)

#: Options of torchrun, accelerate and deepspeed, without dashes: numbers of processes on a machine, and of machines.
#: Sources: docs.pytorch.org/docs/stable/elastic/run.html, huggingface.co/docs/accelerate/package_reference/cli,
#: deepspeed.ai/getting-started.
_PROCESSES = ("nproc_per_node", "num_processes", "num_gpus")
_DEVICES = ("gpu_ids", "include")
_MACHINES = ("nnodes", "num_machines", "num_nodes")
#: Options for where one machine's ranks meet and write; seatrial sets these itself.
_MEETING = (
    *("master_addr", "master_port", "main_process_ip", "main_process_port", "node_rank", "machine_rank"),
    *("rdzv_backend", "rdzv_endpoint", "rdzv_id", "rdzv_conf", "max_restarts", "log_dir", "redirects", "tee"),
)
_SWITCHES = ("standalone", "use_env", "multi_gpu")
#: Options that accelerate passes on as a variable. Source: accelerate/utils/launch.py.
_VARIABLES = {"mixed_precision": "ACCELERATE_MIXED_PRECISION"}

#: Python's own switches that change no result, and those that a variable replaces.
_PYTHON_VARIABLES = {"-W": "PYTHONWARNINGS"}
PYTHON_SWITCHES = ("-u", "-B", "-s", *_PYTHON_VARIABLES)

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

#: Letters after which a quote is taken to have no end, and a command with its variables filled in to be too long.
_LONGEST_QUOTE, _LONGEST_COMMAND = 2_000, 20_000

_MAX_LOOKED_AT = 2000


def scripts(folder: Path) -> Iterator[str]:
    """Yield Python files up to three folders deep, as paths relative to ``folder``; stop early in huge trees."""
    pending = [(folder, 0)]
    looked_at = 0
    while pending:
        current, depth = pending.pop(0)
        try:
            entries = sorted(current.iterdir())
        except OSError:  # a folder that may not be read has nothing to suggest
            continue
        for entry in entries:
            looked_at += 1
            if looked_at > _MAX_LOOKED_AT:
                return
            if entry.name.startswith((".", "__")):
                continue
            if entry.suffix == ".py" and entry.is_file():
                yield str(entry.relative_to(folder))
            elif depth < 2 and entry.is_dir() and not entry.is_symlink() and not is_foreign(entry):
                pending.append((entry, depth + 1))


def likely_scripts(project: Path) -> list[str]:
    """Return the scripts that people start, those for training first."""
    found = (path for path in scripts(project) if path not in ("setup.py", "conftest.py"))
    return sorted(found, key=lambda path: (path.count("/"), "train" not in path, path))


def runnable_package(project: Path) -> str | None:
    """Return the package that ``python -m`` can start, or None: net, for net/__main__.py or src/net/__main__.py."""
    mains = (path for folder in (project, project / "src") for path in sorted(folder.glob("*/__main__.py")))
    packages = (path.parent for path in mains)
    return next((folder.name for folder in packages if folder.name.isidentifier() and not is_foreign(folder)), None)


def first_notebook(project: Path) -> str | None:
    """Return the first notebook of the project's own folder, or of the folders in it; None if there is none."""
    found = [*sorted(project.glob("*.ipynb")), *sorted(project.glob("[!.]*/*.ipynb"))]
    return next((path.relative_to(project).as_posix() for path in found if not is_foreign(path.parent)), None)


def what_is_here(project: Path) -> tuple[str, str, str] | None:
    """Return (what can be started, a command to type before, words of the target), the likeliest first; or None."""
    likely = likely_scripts(project)[:5]
    if (package := runnable_package(project)) and all("/" in script for script in likely):
        return f"is the package {package}", "", f"-m {package}"
    if likely:
        return f"{'are' if likely[1:] else 'is'} {', '.join(likely)}", "", shlex.quote(likely[0])
    if notebook := first_notebook(project):
        convert, script = converted(notebook)
        return f"is the notebook {notebook}", f"{convert} && ", shlex.quote(script)
    return None


def converted(notebook: str) -> tuple[str, str]:
    """Return the command that makes a script of a notebook, and the script."""
    return f"jupyter nbconvert --to script {shlex.quote(notebook)}", str(Path(notebook).with_suffix(".py"))


_NAMES = {"node_modules", "site-packages", "venv", "env", "build", "dist"}

#: Files that mark an environment of any name: Python's own, and conda's.
_MARKS = ("pyvenv.cfg", "conda-meta/history")


def is_foreign(folder: Path) -> bool:
    """Return whether a folder is not the project's own, by its name, or by what is in it."""
    if folder.name.startswith((".", "__")) or folder.name in _NAMES:
        return True
    return any(is_file(folder / mark) for mark in _MARKS)


def module_name(script: str, project: Path) -> str:
    """Return ``pkg.train`` of ``src/pkg/train.py`` or ``pkg/train.py``: its name if Python starts in the project."""
    path = PurePosixPath(script)
    parts = path.with_suffix("").parts
    return ".".join(parts[1:] if parts[0] == "src" and not is_file(project / "src/__init__.py") else parts)


def console_script(word: str, project: Path) -> tuple[str, str, bool, str] | None:
    """Return (module, function, whether ``-m module`` calls it, its folder) of a command in the metadata."""
    entry = re.compile(rf"""(?m)(?:^|["'])\s*{re.escape(word)}["']?\s*=\s*["']?([\w.]+):(\w+)""")
    for name in ("pyproject.toml", "setup.cfg", "setup.py"):
        for file in (project / name, *sorted(project.glob(f"*/{name}"))):
            if is_file(file) and (found := entry.search(file.read_text(errors="replace"))):
                module, function = found.groups()
                if place := locate_module(module, [file.parent, file.parent / "src"], main=True):
                    main = re.search(rf"(?s)__main__.*\b{function}\(", place[0].read_text(errors="replace"))
                    return module, function, main is not None, place[1].relative_to(project).as_posix()
    return None


class UnreadCommand(Exception):
    """A command that sets or does something that seatrial cannot express."""


@dataclass(frozen=True)
class PythonCommand:
    """Hold what a command starts: seatrial's options in place of a launcher's, the target and its arguments."""

    options: tuple[str, ...]
    target: tuple[str, ...]
    arguments: tuple[str, ...]

    def words(self) -> list[str]:
        """Return the words of seatrial's command line."""
        return [*self.options, *self.target, *(["--", *self.arguments] if self.arguments else [])]


def is_python(word: str) -> bool:
    """Return whether a word starts Python: ``python``, ``/usr/bin/python3.10``."""
    return _PYTHON.fullmatch(word) is not None


def read_command(words: Sequence[str], exported: Sequence[str] = ()) -> PythonCommand | None:
    """Read ``A=1 torchrun --nproc_per_node 4 train.py --lr 1``; return None where no Python is started.

    Args:
        exported: ``NAME=VALUE`` from the script that contains the command.

    Raises UnreadCommand.
    """
    rest, options, devices = [*words], list[str](), list[str]()
    while rest and _ASSIGNMENT.fullmatch(rest[0]):
        exported = (*exported, rest.pop(0))
    for name, _, value in (each.partition("=") for each in exported):
        if name == "CUDA_VISIBLE_DEVICES":
            devices = ["--gpus", str(len(value.split(","))) if value not in ("", "-1") else "none"]
        elif not name.startswith(("MASTER_", "SLURM_", "CUDA_HOME")):
            options += ["--env", f"{name}={value}"]
    while rest and rest[0] in ("nohup", "exec", "time", "srun"):
        del rest[0]
    if rest[:1] in (["uv"], ["poetry"], ["pipenv"]) and rest[1:2] == ["run"]:
        rest[:2] = ["python"] if rest[2:] and rest[2].endswith(".py") else []
    program = PurePosixPath(rest[0]).name if rest else ""
    if is_python(program):
        del rest[0]
        while rest and rest[0] in PYTHON_SWITCHES:
            if rest[0] in _PYTHON_VARIABLES:
                options += ["--env", f"{_PYTHON_VARIABLES[rest.pop(0)]}={rest[0] if rest else ''}"]
            rest = rest[1:]
        program = rest.pop(1) if rest[:1] == ["-m"] and rest[1:2] and rest[1] in LAUNCHER_MODULES else ""
    elif program not in LAUNCHERS or (program == "accelerate" and rest[1:2] != ["launch"]):
        return None
    if program:
        options += _launched(program, rest)
    else:
        options += devices
    if rest[:1] in (["-m"], ["--module"]) and len(rest) > 1:
        return PythonCommand(tuple(options), ("-m", rest[1]), tuple(rest[2:]))
    if not rest or rest[0].startswith("-"):
        return None
    return PythonCommand(tuple(options), (rest[0],), tuple(rest[1:]))


def _launched(program: str, rest: list[str]) -> list[str]:
    """Return seatrial's options for a launcher's; remove its name and its options from ``rest``."""
    if "horovod" in program:
        raise UnreadCommand(f"{program} starts ranks that meet by MPI or Gloo")
    is_accelerate = program.startswith("accelerate")
    del rest[: 2 if program == "accelerate" else 1]
    count, options = "", list[str]()
    while rest and rest[0].startswith("-") and rest[0] not in ("-m", "--module"):
        typed, sign, value = rest.pop(0).partition("=")
        name = typed.lstrip("-").replace("-", "_")
        if name in _SWITCHES:
            continue
        value = value if sign or not rest else rest.pop(0)
        if name in _PROCESSES and value not in ("gpu", "auto"):
            count = value
        elif name in _DEVICES and value != "all":
            count = count or str(value.count(",") + 1)
        elif name in _VARIABLES:
            options += ["--env", f"{_VARIABLES[name]}={value}"]
        elif name in _MACHINES and value not in ("1", "1:1"):
            raise UnreadCommand(f"{typed} {value}: each machine has its own seatrial; see --nodes")
        elif name not in (*_PROCESSES, *_DEVICES, *_MACHINES, *_MEETING):
            raise UnreadCommand(f"{typed} is {program}'s, and seatrial starts the ranks with torchrun")
    if count and not count.isdecimal():
        raise UnreadCommand(f"{count!r} is not a number of processes")
    options += ["--gpus", count] if count else []
    return options + (["--launcher", "torchrun"] if count > "1" or not is_accelerate else [])


def read_shell(text: str, arguments: Sequence[str]) -> list[PythonCommand]:
    """Return the commands of Python in a shell script, their variables filled in. Raises UnreadCommand."""
    values = {str(at): word for at, word in enumerate(arguments, 1)}
    values |= {"@": " ".join(arguments), "#": str(len(arguments)), _ALL: shlex.join(arguments)}
    exported: dict[str, str] = {}
    found, line, is_open = list[PythonCommand](), "", False
    for each in re.sub(r"\\\n", " ", text).splitlines():
        line = f"{line} {each}" if is_open else each
        is_open = _is_open(line)
        if is_open and len(line) > _LONGEST_QUOTE:
            break
        if is_open or line.lstrip().startswith("#"):
            continue
        for words in _commands(line, values):
            exports = words[0] == "export"
            pairs = [_ASSIGNMENT.fullmatch(word) for word in words[exports:]]
            if all(pairs):
                for name, value in (pair.groups() for pair in pairs if pair):
                    values[name] = re.sub(rf"{_UNKNOWN}\$\{{?{name}\b\}}?", "", value)  # of PATH=$PATH:x
                    exported |= {name: values[name]} if exports else {}
            elif words[:2] == ["set", "--"]:  # other arguments
                raise UnreadCommand(line.strip()[:80])
            elif not exports and words[0] not in _HARMLESS:
                command = read_command(words, [f"{name}={value}" for name, value in exported.items()])
                if command is None or _UNKNOWN in "".join(command.words()):
                    raise UnreadCommand(line.strip()[:80])
                found.append(command)
    if is_open:
        raise UnreadCommand(line.strip()[:80])
    return found


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
    value = values.get(name, match[2])
    if value is None or (name != _ALL and re.search("""['"\\\\]""", value)):  # which the shell would not read again
        return _UNKNOWN + match[0]
    return value


def _marked(part: str) -> Iterator[str]:
    """Yield quoted and other text, with a mark before text in whose place the shell would put another."""
    for each in _QUOTED.findall(part):
        yield each if each[0] in "'\"" else _MADE_BY_SHELL.sub(rf"{_UNKNOWN}\g<0>", each)


def _commands(line: str, values: dict[str, str]) -> Iterator[list[str]]:
    """Yield the commands of a line, one by one: each may set variables of the next."""
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
