"""List the targets of a project, and read the commands of READMEs that start them."""

from __future__ import annotations

import itertools
import posixpath
import re
import shlex
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path, PurePosixPath
from typing import Any

from seatrial.errors import ConfigError, fallback
from seatrial.job.reading.flow import only_defines
from seatrial.job.reading.modules import folders_of, is_file, locate_module
from seatrial.job.reading.parsed_modules import CONVERT
from seatrial.system.names import hidden
from seatrial.system.source import MAX_BYTES, UnreadableSourceError, parse_source
from seatrial.system.text import first_of, regex

#: Programs that start Python on a script themselves.
LAUNCHERS = ("torchrun", "accelerate", "deepspeed", "ds", "horovodrun")
#: The same behind ``python -m``.
LAUNCHER_MODULES = (
    *("torch.distributed.launch", "torch.distributed.run", "accelerate.commands.launch", "horovod.runner.launch"),
    "deepspeed.launcher.runner",
)
#: Programs that start any program several times.
#: Source: man mpirun of Open MPI and MPICH, srun of Slurm, jsrun of LSF.
MPI_LAUNCHERS = ("mpirun", "mpiexec", "mpiexec.hydra", "srun", "jsrun", "aprun")
#: Programs that start another program once, unchanged.
WRAPPERS = ("nohup", "exec", "time", "srun", "env", "stdbuf", "numactl", "nice", "taskset", "xvfb-run", "command")
SHELLS = ("bash", "sh", "zsh")
#: Programs that submit a command or a script to a batch system. Source: man sbatch of Slurm, qsub of PBS, bsub of LSF.
SUBMITTERS = ("sbatch", "qsub", "bsub")
#: A batch system's GPUs of one node, or of one task, in its options or a script's comments; its time limit.
#: Sources: slurm.schedmd.com/sbatch.html, qsub of PBS Professional and Torque, bsub of LSF.
_BATCH_GPUS = regex(
    r"(?:--gres[= ](?:\S*,)?gpu|--gpus(?:-per-(?:node|task))?(?=[= ])|(?<!\S)-G(?=[ \d])"
    r"|\bn?gpus(?==)|-gpu \S*?num(?==))"
    r"(?:[:= ]+[a-zA-Z][\w.-]*)?(?:[:= ]*(\d+))?"
)
_BATCH_TIME = regex(r"(?:--time[= ]|(?<!\S)-t *|walltime=)(?:(\d+)-)?(\d+)(?::(\d+))?(?::(\d+))?")
BATCH_LINE = regex(r"(?m)^#(?:SBATCH|PBS|BSUB)[ \t]+([^#\n]*)")
#: Scripts for a shell, or for a batch system that starts one.
SHELL_SUFFIXES = (".sh", ".bash", ".zsh", ".ksh", ".slurm", ".sbatch", ".pbs", ".lsf")
ASSIGNMENT = regex(r"([A-Za-z_]\w*)=(.*)", re.DOTALL)

#: Stands for the number of GPUs in a script's command.
GPUS = "\1"

#: Programs that run a command in the project's environment → their options that a value follows.
#: Sources: docs.astral.sh/uv/reference/cli, python-poetry.org/docs/cli, docs.conda.io.
RUNNERS = {
    "uv": ("--extra", "--group", "--only-group", "--no-group", "--python", "-p", "--env-file", "--package"),
    **dict.fromkeys(("poetry", "pipenv", "pdm", "rye", "pixi", "hatch", "npm"), ("-e", "--environment", "-p")),
    **dict.fromkeys(("conda", "mamba", "micromamba"), ("-n", "--name", "-p", "--prefix")),
}

#: Python's own switches that change no result, and those that a variable replaces.
_PYTHON_VARIABLES = {"-W": "PYTHONWARNINGS"}
PYTHON_SWITCHES = ("-u", "-B", "-s", *_PYTHON_VARIABLES)

_MOST_SCRIPTS = 2000
#: Letters of a file that names or has a command.
_MOST_TEXT = 1_000_000


def scripts(folder: Path) -> Iterator[str]:
    """Yield Python files up to three folders deep, as paths relative to ``folder``; stop early in huge trees."""
    own = (path for each in folders_of(folder, deepest=2, skip=is_foreign) for path in sorted(each.glob("*.py")))
    plain = (path for path in own if not path.name.startswith((".", "__")) and path.is_file())
    yield from (str(path.relative_to(folder)) for path in itertools.islice(plain, _MOST_SCRIPTS))


def likely_scripts(project: Path) -> list[str]:
    """Return the scripts that people start, those for training first and modules of packages last."""
    found = [path for path in scripts(project) if path not in ("setup.py", "conftest.py")]
    last = {path for path in found if is_file(project / posixpath.dirname(path) / "__init__.py")}
    last |= {path for path in found if _only_defines(project / path)}
    end = [path for path in found if re.match(r"(?i)(.*/)?_*(eval|test|infer|predict|demo|plot|util|download)", path)]
    return sorted(found, key=lambda each: (each in last, each.count("/"), "train" not in each, each in end, each))


@fallback(False, on=(UnreadableSourceError, OSError))
def _only_defines(path: Path) -> bool:
    return only_defines(parse_source(path.read_bytes()[:MAX_BYTES], path.name).body)


def what_is_here(project: Path) -> tuple[str, str, str] | None:
    """Return (what can be started, a command to type before, words of the target), the likeliest first; or None."""
    likely = likely_scripts(project)
    mains = (path for folder in (project, project / "src") for path in sorted(folder.glob("*/__main__.py")))
    packages = (path.parent.name for path in mains if not is_foreign(path.parent))
    if all("/" in script for script in likely) and (package := next(filter(str.isidentifier, packages), None)):
        return f"is the package {package}", "", f"-m {package}"
    if likely:
        return f"{'are' if likely[1:] else 'is'} {first_of(likely)}", "", shlex.quote(likely[0])
    found = [*sorted(project.glob("*.ipynb")), *sorted(project.glob("[!.]*/*.ipynb"))]
    if notebook := next((each.relative_to(project).as_posix() for each in found if not is_foreign(each.parent)), None):
        script = shlex.quote(str(Path(notebook).with_suffix(".py")))
        return f"is the notebook {notebook}", f"{CONVERT} {shlex.quote(notebook)} && ", script
    return None


_NAMES = {"node_modules", "site-packages", "venv", "env", "build", "dist"}

#: Files that mark an environment of any name: Python's own, and conda's.
_MARKS = ("pyvenv.cfg", "conda-meta/history")


def is_foreign(folder: Path) -> bool:
    """Return whether a folder is not the project's own, by its name, or by what is in it."""
    is_named = folder.name.startswith((".", "__")) or folder.name in _NAMES
    return is_named or any(is_file(folder / mark) for mark in _MARKS)


def module_name(script: str, project: Path) -> str:
    """Return ``pkg.train`` of ``src/pkg/train.py`` or ``pkg/train.py``: its name if Python starts in the project."""
    parts = PurePosixPath(script).with_suffix("").parts
    return ".".join(parts[1:] if parts[0] == "src" and not is_file(project / "src/__init__.py") else parts)


def console_script(word: str, project: Path) -> tuple[str, str, bool, str] | None:
    """Return (module, function, whether ``-m module`` calls it, its folder) of a project's or a known command."""
    entry = re.compile(rf"""(?m)(?:^|["'])[ \t]*{re.escape(word)}["']?\s*=\s*["']?([\w.]+):([\w.]+)""")
    for name in ("pyproject.toml", "setup.cfg", "setup.py"):
        for file in (project / name, *sorted(project.glob(f"*/{name}"))):
            if is_file(file) and (found := entry.search(beginning(file, _MOST_TEXT))):
                module, function = found.groups()
                inner, _, function = function.rpartition(".")
                module += f".{inner}" * bool(inner)
                roots = [file.parent, file.parent / "src"]
                if place := locate_module(module, roots, main=True) or locate_module(module, roots):
                    main = beginning(place[0], _MOST_TEXT).partition("__main__")[2] * (place[0].stem != "__init__")
                    is_main = re.search(rf"\b{function}\(", main) is not None
                    return module, function, is_main, place[1].relative_to(project).as_posix()
    fairseq = f"fairseq_cli.{word[8:].replace('-', '_')}" * word.startswith("fairseq-")
    module, _, function = _launchers()["commands"].get(word, fairseq).partition(":")
    return (module, function, not function, ".") if module else None


class UnreadCommand(Exception):
    """A command that sets or does something that seatrial cannot express."""


def beginning(path: Path, letters: int) -> str:
    """Return a file's first letters."""
    with path.open(errors="replace") as file:
        return file.read(letters)


def whole(path: Path, most: int) -> str:
    """Return a file's text. Raises UnreadCommand: it has more letters, and what they do is not known."""
    text = beginning(path, most + 1)
    if len(text) > most:
        raise UnreadCommand(f"{path.name} has more than {most} letters")
    return text


@dataclass(frozen=True)
class PythonCommand:
    """Hold what a command starts: seatrial's options in place of a launcher's, the target and its arguments."""

    options: tuple[str, ...]
    target: tuple[str, ...]
    arguments: tuple[str, ...]
    left: tuple[str, ...] = field(default=(), compare=False)  # what its script does besides, and a run does not
    secrets: Mapping[str, str] = field(default_factory=dict, compare=False)  # values in its script → their variables

    def words(self) -> list[str]:
        """Return the words of seatrial's command line."""
        return [*self.options, *self.target, *(["--", *self.arguments] if self.arguments else [])]

    def typed(self) -> str:
        """Return seatrial's command line."""
        return hidden(f"seatrial run {shlex.join(self.words())}", self.secrets)

    def requesting(self, batch: Sequence[str]) -> PythonCommand:
        """Return the command with what a batch system's ``batch`` requests and the command itself does not."""
        pairs = [pair for pair in zip(batch[::2], batch[1::2], strict=True) if pair[0] not in self.options]
        return replace(self, options=(*self.options, *itertools.chain(*dict(reversed(pairs)).items())))


def batch_words(words: Sequence[str], inner: Sequence[str]) -> str:
    """Return the options of the submitting command, without the one that it submits."""
    return "".join(f" {word}" for word in words if word not in inner and " " not in word)


def batch_request(text: str) -> list[str]:
    """Return seatrial's options for ``--gres=gpu:2 --time=1:00:00`` of a batch system."""
    options = list[str]()
    if gpus := _BATCH_GPUS.search(text):
        tasks = re.search(r"(?:--ntasks(?:-per-node)?[= ]|(?<!\S)-n *)(\d+)", text) if "-task" in gpus[0] else None
        options = ["--gpus", str((int(gpus[1] or 1) * int(tasks[1] if tasks else 1)) or "none")]
    if time := _BATCH_TIME.search(text):
        alone = "dsmh" if "wall" in time[0] and not time[3] else "dmsh"  # PBS counts seconds, Slurm minutes
        units = "dhms" if time[1] or time[4] else alone
        limit = "".join(f"{int(each)}{unit}" for each, unit in zip(time.groups(), units, strict=True) if int(each or 0))
        options += ["--timeout", limit] if limit else []
    return options


def is_python(word: str) -> bool:
    """Return whether a word starts Python: ``python``, ``/usr/bin/python3.10``."""
    return re.fullmatch(r"([\w./~-]*/)?python[\d.]*", word) is not None


def is_shell(path: Path) -> bool:
    """Recognise a shell script by its name, or by its first line: batch systems take a script of any name."""
    if path.suffix in SHELL_SUFFIXES or path.suffix == ".py" or not is_file(path):
        return path.suffix in SHELL_SUFFIXES
    return re.match(r"#!\s*\S*/(?:env\s+(?:-\S+\s+)*)?(?:ba|z|k|da)?sh\b", beginning(path, 100)) is not None


def starts_python(word: str) -> bool:
    """Return whether a word is a program or a script that starts Python, or a shell command that has one."""
    name = PurePosixPath(word).name
    return is_python(name) or name in LAUNCHERS or word.endswith(".py") or bool(re.search(r"\bpython|\.py\b", word))


def set_for_job(words: Sequence[str], inner: Sequence[str]) -> list[str]:
    """Return the variables that ``sbatch --export=ALL,A=1 …`` and ``qsub -v A=1,B=2 …`` set for ``inner``."""
    pairs = itertools.pairwise(words[: len(words) - len(inner) + 1])
    given = (word for before, word in pairs if before in ("-v", "--export") or word.startswith("--export="))
    listed = (each for word in given for each in word.removeprefix("--export=").split(","))
    return [*filter(ASSIGNMENT.fullmatch, listed)]


def submitted(words: Sequence[str], here: Path) -> list[str]:
    """Return the command that ``sbatch --gres=gpu:1 train.sh`` submits or the shell that a wrapper starts; or []."""
    starts = PurePosixPath(words[0]).name in (*SUBMITTERS, *WRAPPERS)
    for at, word in enumerate(words[1:] if starts else (), 1):
        if word.startswith("--wrap"):
            return ["bash", "-c", word.partition("=")[2] or " ".join(words[at + 1 : at + 2])]
        is_script = is_file(here / word) and word.endswith(".py")
        if word in SHELLS or (is_file(here / word) and not is_script and is_shell(here / word)):
            return [*([] if word in SHELLS else ["bash"]), *words[at:]]
        if is_script or is_python(word) or word in (*LAUNCHERS, *RUNNERS):
            return [] if words[0] in WRAPPERS else [*words[at:]]
        if " " in word and starts_python(word):
            return ["bash", "-c", word]
    return []


def without_runner(words: Sequence[str]) -> list[str]:
    """Return the command after ``uv run --extra gpu`` and the like, or all words. Raises UnreadCommand."""
    rest = [*words]
    if not rest or rest[0] not in RUNNERS or rest[1:2] != ["run"]:
        return rest
    valued, rest = RUNNERS[rest[0]], rest[2:]
    while rest and rest[0].startswith("-") and rest[0] not in ("-m", "--module"):
        if (option := rest.pop(0)) == "--":
            break
        if option.startswith(("--with", "--directory", "--project", "--cwd", "-C")):
            raise UnreadCommand(f"{option} of {words[0]} run has no counterpart: see [image] requirements, and -C")
        rest = rest[1:] if option in valued else rest
    return ["python", *rest] if rest[:1] in (["-m"], ["--module"]) or (rest and rest[0].endswith(".py")) else rest


def _devices(listed: str, count: str = "") -> str:
    """Return the request for GPUs that are listed as CUDA_VISIBLE_DEVICES lists them, at most a count of them."""
    if listed in ("", "-1"):
        return "none"
    devices = re.sub(r"\s", "", listed).split(",")
    return f"device={','.join(devices[: int(count or len(devices))])}" if len(devices) >= int(count or 0) else count


def read_command(words: Sequence[str], here: Path = Path()) -> PythonCommand | None:
    """Read ``A=1 torchrun --nproc_per_node 4 train.py --lr 1``; None: it starts no Python. Raises UnreadCommand."""
    variables = [*itertools.takewhile(ASSIGNMENT.fullmatch, words)]
    rest, options, visible = [*words[len(variables) :]], list[str](), list[str]()
    for name, _, value in (each.partition("=") for each in variables):
        if name == "CUDA_VISIBLE_DEVICES":
            visible = [value]
        elif not name.startswith(("MASTER_", "RDZV_", "SLURM_", "CUDA_HOME")):
            options += ["--env", f"{name}={value}"]
    starts = (at for at, word in enumerate(rest) if is_python(word) or word in (*LAUNCHERS, *RUNNERS))
    at = next(starts, 0) if rest and rest[0] in WRAPPERS else 0
    tasks = re.search(r"^srun.*? (?:-n|--ntasks)[ =]?(\d+)", shlex.join(rest[:at]))
    at = 0 if tasks and tasks[1] != "1" else at
    batch, rest = batch_request(shlex.join(rest[:at])), without_runner(rest[at:])
    program = PurePosixPath(rest[0]).name if rest else ""
    if is_python(program) or program.endswith(".py"):
        rest = rest[is_python(program) :]
        while rest and rest[0] in PYTHON_SWITCHES:
            if rest[0] in _PYTHON_VARIABLES:
                options += ["--env", f"{_PYTHON_VARIABLES[rest.pop(0)]}={rest[0] if rest else ''}"]
            rest = rest[1:]
        rest = ["-m", *rest[1:]] if rest and re.fullmatch(r"-[uBs]+m", rest[0]) else rest
        program = rest.pop(1) if rest[:1] == ["-m"] and rest[1:2] and rest[1] in LAUNCHER_MODULES else ""
    elif rest and (called := console_script(rest[0], here)):
        module, function, is_main, folder = called
        if not is_main:
            raise UnreadCommand(f"{rest[0]} calls {function}() of {module}")
        options += ["--env", f"PYTHONPATH={folder}"] if folder not in (".", "src") else []
        program, rest = "", ["-m", module, *rest[1:]]
    elif program not in LAUNCHERS or (program == "accelerate" and rest[1:2] != ["launch"]):
        return None
    if program:
        options += _launched(program, rest, here, *visible)
    else:
        options += [word for listed in visible for word in ("--gpus", _devices(listed))]
    is_module = rest[:1] in (["-m"], ["--module"]) and len(rest) > 1
    if not is_module and (not rest or rest[0].startswith("-")):
        return None
    target, arguments = (("-m", rest[1]), rest[2:]) if is_module else ((rest[0],), rest[1:])
    arguments = arguments[1:] if program and arguments[:1] == ["--"] else arguments  # a launcher takes it away
    return PythonCommand(tuple(options), target, tuple(arguments)).requesting(batch)


def script_alone(words: Sequence[str]) -> PythonCommand | None:
    """Return what a launcher or an unknown program starts, with as many GPUs as processes; None without Python."""
    own = [*itertools.takewhile(ASSIGNMENT.fullmatch, words)]
    places = (at for at, word in enumerate(words) if is_python(word) or word == "-m" or word.endswith(".py"))
    starts = (at for at in places if at >= len(own) and not {*words[at + 1 : at + 3]} & {*LAUNCHER_MODULES})
    at = next(starts, len(words))
    counts = r" (?:-np?|--ntasks|--nproc[_-]per[_-]node|--(?:num[_-])?(?:processes|gpus))[ =](\d+)(?!\S)"
    count = re.search(counts, shlex.join(words[:at]))
    python = [] if any(map(is_python, words[at : at + 1])) else ["python"]
    command = read_command([*own, *python, *words[at:]])
    return command and command.requesting(["--gpus", count[1]] if count and count[1] != "1" else [])


def _launchers() -> dict[str, Any]:
    """Return launchers.toml, with the role of each option."""
    from seatrial.system.project_files import own_table  # a Python script needs none of it

    table = own_table(Path(__file__).with_name("launchers.toml"))
    return {**table, "roles": {name: role for role, names in table["roles"].items() for name in names.split()}}


def _launched(program: str, rest: list[str], here: Path, visible: str = "") -> list[str]:
    """Return seatrial's options for a launcher's; remove its name and its options from ``rest``."""
    if "horovod" in program:
        raise UnreadCommand(f"{program} starts ranks that meet by MPI or Gloo")
    is_accelerate = program.startswith("accelerate")
    roles, variables = (_launchers()[each] for each in ("roles", "variables"))
    del rest[: 2 if program == "accelerate" else 1]
    count, nodes, options = "", 1, list[str]()
    while rest and rest[0].startswith("-") and rest[0] not in ("-m", "--module"):
        typed, sign, value = rest.pop(0).partition("=")
        name = typed.lstrip("-").replace("-", "_")
        if (role := roles.get(name)) == "switch":
            continue
        value = value if sign or not rest else rest.pop(0)
        if role == "processes" and value not in ("gpu", "auto", GPUS):
            count = value
        elif role == "devices" and (listed := re.search(r"(?:^|:)(\d+(?:,\d+)*)$", value)):
            visible = listed[1]
        elif is_accelerate and name in ("config_file", "config"):  # argparse takes a beginning
            configured, options = _configured(value, here)
            count = count or configured
        elif name in variables:
            options += ["--env", f"{variables[name]}={value}"]
        elif role == "machines" and value not in ("1", "1:1"):
            if not value.isdecimal():
                raise UnreadCommand(f"{typed} {value}: each machine has its own seatrial; see --nodes")
            nodes, options = int(value), [*options, "--nodes", value]
        elif role is None:
            raise UnreadCommand(f"{typed} is {program}'s, and seatrial starts the ranks with torchrun")
    if count and not count.isdecimal():
        raise UnreadCommand(f"'{count}' is not a number of processes")
    count = str(int(count) // (nodes or 1)) if count and is_accelerate else count  # it counts those of all machines
    gpus = _devices(visible, count) if visible not in ("", "-1") else count
    options += ["--gpus", gpus] if gpus else []
    return options + (["--launcher", "torchrun"] if count > "1" or "," in gpus or not is_accelerate else [])


def _configured(name: str, here: Path) -> tuple[str, list[str]]:
    """Return the processes and the variables of accelerate's configuration file. Raises UnreadCommand."""
    from seatrial.system.project_files import as_table, parse_yaml, read_text  # only a configuration file needs them

    try:
        table = as_table(parse_yaml(read_text(here / name, inside=None), name))
    except ConfigError as error:
        raise UnreadCommand(f"--config_file {str(error).replace(str(here / name), name)}") from None
    roles, known, kinds, idle = (_launchers()[each] for each in ("roles", "variables", "kinds", "idle"))
    kind = str(table.get("distributed_type") or "NO").upper()  # YAML reads a bare NO as false
    if kind not in kinds:
        raise UnreadCommand(f"{name}: distributed_type {kind} has no counterpart")
    if str(table.get("num_machines", 1)) != "1":
        raise UnreadCommand(f"{name}: num_machines: each machine has its own seatrial; see --nodes")
    variables = {kinds[kind]: "true"}
    for part in (table, as_table(table, "deepspeed_config"), as_table(table, "fsdp_config")):
        for key, value in ((str(key), value) for key, value in part.items()):
            if isinstance(value, dict | list | None) or roles.get(key, "switch") != "switch":
                continue
            own = known.get(key) or (key.upper() if key.startswith("fsdp_") else "")
            if not own and value and key not in idle["names"].split() and not key.startswith(("tpu_", "dynamo_")):
                raise UnreadCommand(f"{name}: {key} has no counterpart")
            text = value if isinstance(value, str) else str(value).lower()  # accelerate writes true and none so
            variables[own] = "no" if key == "mixed_precision" and value is False else text
    variables.pop("", None)
    count = str(table.get("num_processes", ""))
    return count, [word for each in variables.items() for word in ("--env", "=".join(each))]
