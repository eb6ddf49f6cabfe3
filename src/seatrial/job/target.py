"""resolve_target: the words on the command line → their Target, or an error that lists what is there."""

from __future__ import annotations

import difflib
import os
import re
import shlex
from collections.abc import Collection, Sequence
from dataclasses import replace
from itertools import dropwhile, takewhile
from pathlib import Path

from seatrial.errors import TargetError
from seatrial.job import startable
from seatrial.job.engine_grammar import image_refused
from seatrial.job.model import Target
from seatrial.job.reading.modules import fetch_of, find_module, folder_of, is_file, is_folder, is_package, locate_module
from seatrial.job.reading.parsed_modules import CONVERT
from seatrial.job.startable import LAUNCHERS, MPI_LAUNCHERS, SHELLS, PythonCommand, beginning, likely_scripts, scripts
from seatrial.system.names import hidden
from seatrial.system.text import as_typed, first_of, regex

#: runpy finds a module by the name of its file, which may have hyphens.
_MODULE = regex(r"\w[\w-]*(\.\w[\w-]*)*")

#: Text that a script has and a list of packages or a data file has not.
_CODE = regex(r"\A#!|^\s*(import|from|def|class|print|for|if|with)\b", re.MULTILINE)

_MOST_OF_YAML, _MOST_OF_SCRIPT, _MOST_OF_MODULE = 20_000, 50_000, 1_000_000
#: Most scripts that an error lists if none is similar.
_MOST_NAMED = 5
#: Linux's longest file name, in bytes; longer ones make every question about the file an error.
_MAX_NAME = 255


def resolve_target(
    words: Sequence[str],
    module: str | None,
    image: str | None,
    project: Path,
    recipes: Collection[str],
    start: Path | None = None,
) -> Target:
    """Return the target of a run.

    - ``-m name``: that module; every word is its argument.
    - the first word is a file: that script (a path as seen from ``start``, or absolute in the project).
    - the first word is a recipe's name: that recipe. A file of the same name wins: it is the user's.
    - an image and anything else: the image's own command, or ``words`` in its place.

    Raises TargetError: nothing to run, not there (with similar names), outside the project, or not Python.
    """
    start = start or project
    if module is not None:
        return _module_target(module, words, project, start)
    if words and is_file(start / words[0]):
        return Target(kind="script", value=_script(words[0], project, start), args=tuple(words[1:]))
    if words and words[0] in recipes:
        return Target(kind="recipe", value=words[0], args=tuple(words[1:]))
    is_ours = words and words[0].endswith(".py") and (words[0][0] != "/" or Path(words[0]).is_relative_to(start))
    if image is not None and not is_ours:  # an absolute path is the image's
        return Target(kind="image", value="", args=tuple(words))
    if not words:
        raise _nothing(start, recipes)
    if words[0] in (*LAUNCHERS, *MPI_LAUNCHERS):
        raise launcher_refused(words)
    raise _not_there(words, start, recipes)


_MPI = (
    "torchrun starts them; what needs MPI itself, as mpi4py does, needs an image that has it: --image IMAGE -- mpirun …"
)
#: How a module gets a name.
_GETS = r"(?m)\b(?:def|class|as|import)\b.*\b{0}\b|^[ \t]*(?:\w[\w ]*, *)*{0} *[,=:)\n]|import.*\*|globals|__getattr__"


def python_command(
    words: Sequence[str], here: Path, recipes: Collection[str] = (), env: Sequence[str] = ()
) -> PythonCommand | None:
    """Return the command that starts Python here: a launcher's, a shell's (which has ``env``), the project's; or None.

    A recipe's name is none, though a task has the same one. Raises TargetError: seatrial cannot express it.
    """
    if not words or not words[0]:
        return None
    from seatrial.job.tasks import activated, makefile, task_commands  # a Python script needs none of it

    try:
        typed, is_recipe, batch = shlex.join(words), words[0] in recipes, ""
        own = [*takewhile(startable.ASSIGNMENT.fullmatch, words[:-1])]
        words = words[len(own) :]
        variables = [*own, *(activated(here) if words[0] == "pixi" else ())]
        if (inner := startable.submitted(words, here)) or words[0] in startable.SUBMITTERS:
            variables += startable.set_for_job(words, inner)
            batch, words = startable.batch_words(words, inner), inner
        words = startable.without_runner(words) or words
        if not words:
            raise TargetError(f"{typed} submits no script in {here}", run="seatrial run SCRIPT")
        called = None if is_file(here / words[0]) else startable.console_script(words[0], here)
        if (called is None or called[2]) and (command := startable.read_command([*variables, *words], here)):
            return command.requesting(startable.batch_request(batch))
        if words[0] in SHELLS or (is_file(here / words[0]) and startable.is_shell(here / words[0])):
            return _in_shell(words, here, f"export {shlex.join(variables)}; " * bool(variables), batch, env)
        if not is_recipe and task_commands(words, here):
            place = makefile(here) if words[0] == "make" else here
            script = "".join(f"export {shlex.quote(each)}\n" for each in variables) + shlex.join(words)
            return _one_command(typed, place or here, here, script, [], words[0], env)
    except (startable.UnreadCommand, RuntimeError, OSError, ValueError) as error:  # one of a path, one of nesting
        raise launcher_refused([*own, *words], str(error)) from None
    if words[0] in (*LAUNCHERS, *MPI_LAUNCHERS):
        raise launcher_refused([*own, *words])
    if startable.is_python(words[0]) and words[1:] and (words[1] != "-m" or not words[2:]):
        code = words[2] if words[1] == "-c" and words[2:] else None
        rest = words[3:] if code else dropwhile(lambda word: not word.endswith(".py"), words)
        command = startable.read_command(["python", *["command.py"][: bool(code)], *rest])
        file = f"echo {shlex.quote(code)} > command.py && " if code else ""
        run = file + command.typed() if command else None
        raise TargetError("seatrial starts Python itself: name the script alone", run=run)
    if called is None:
        return None
    module, function, _, folder = called
    name = re.sub(r"\W", "_", words[0])
    name = f"run_{name}.py" if name == module.partition(".")[0] else f"{name}.py"  # the package keeps its name
    found = locate_module(module, [here / folder])
    what = f"the entry point {words[0]} calls {function}() of {module}"
    if found and not re.search(_GETS.format(function), text := beginning(found[0], _MOST_OF_MODULE)):
        file, starts = os.path.relpath(found[0], here), "__main__" in text
        run = f"seatrial run {shlex.quote(file)}" if starts else f"grep -n '^def ' {shlex.quote(file)}"
        raise TargetError(f"{what}, which has no {function}", run=run, instead=(words[0], [file]) if starts else None)
    first = f"echo 'from {module} import {function}; {function}()' > {name}"
    message = f"{what}, which -m {module} does not"
    raise TargetError(message, run=f"seatrial run {name}", instead=(words[0], [name]), first=first)


def _shell_scripts(folder: Path, here: Path) -> list[str]:
    """List a folder's shell scripts, as paths relative to ``here``."""
    return [os.path.relpath(each, here) for each in sorted(folder.glob("*.sh")) if is_file(each)]


def _in_shell(words: Sequence[str], here: Path, first: str, batch: str, env: Sequence[str]) -> PythonCommand:
    """Return the one command of ``bash train.sh 4`` or ``./train.sh``, after ``first``. Raises TargetError, …"""
    if words[1:2] == ["-c"] and words[2:]:
        return _one_command(shlex.join(words[:2]), here, here, first + words[2], words[3:], words[0], env, batch)
    at = 0 if words[0] not in SHELLS else next((at for at, word in enumerate(words) if at and word[:1] not in "-+"), 0)
    name = words[at]
    if not is_file(here / name):
        folder = (here / name).parent
        similar = _similar(name, _shell_scripts(folder, here))
        fetch = fetch_of([here / name], here)
        hint = f"; did you mean {' or '.join(similar)}?" if similar else ""
        retyped = shlex.join([*words[:at], *similar[:1], *words[at + 1 :]])
        run = f"seatrial run {retyped}" if similar else fetch or f"ls {as_typed(folder)}"
        raise TargetError(f"Shell script {name} not found in {here}{hint}", run=run)
    text = first + startable.whole(here / name, _MOST_OF_SCRIPT)
    return _one_command(name, here / name, here, text, words[at + 1 :], name, env, batch)


#: Most commands of a script that an error lists.
_MOST_LISTED = 8


def _one_command(
    name: str, path: Path, here: Path, text: str, arguments: Sequence[str], called: str, env: Sequence[str], *batch: str
) -> PythonCommand:
    """Return the only command of a script. Raises TargetError, with each command, for a script that does more."""
    from seatrial.job.shell_scripts import read_shell
    from seatrial.job.shell_words import MARKS

    reading = read_shell(text, arguments, called, here, batch, env)
    found = _existing(reading.started, here)
    is_here = found and (reading.started == found or any(each.target[0] != "-m" for _, each in found))
    for folder in takewhile(lambda each: each != here, path.parents if is_file(path) and not is_here else ()):
        script = os.path.relpath(path, folder)
        begun = read_shell(text, arguments, script, folder, batch, env).started
        if there := [x for x in _existing([*begun, *reading.started], folder) if not found or x[1].target[0] != "-m"]:
            where = "its own folder" if folder == path.parent else as_typed(folder)
            run = f"(cd {as_typed(folder)} && {shlex.join(['seatrial', 'run', 'bash', script, *arguments])})"
            raise TargetError(f"{name} finds {there[0][1].target[-1]} from {where} alone", run=run)
    if not (reading.unread or reading.others or reading.cut) and [at for at, _ in reading.started] == ["."]:
        command = reading.started[0][1]
        kept = (each for each in reading.left if "--nodes" not in command.options or not re.match("--nodes|-N", each))
        return replace(command, left=tuple(dict.fromkeys(kept)))
    if len(found) > _MOST_LISTED:
        found = sorted(found, key=lambda each: "train" not in each[1].target[-1])[:1]
    words = ([_with_gaps(*re.split(MARKS, each, maxsplit=1)) for each in command.words()] for _, command in found)
    runs = [hidden(f"seatrial run {' '.join(each)}", reading.secrets) for each in words]
    typed = [run if at == "." else f"(cd {shlex.quote(at)} && {run})" for run, (at, _) in zip(runs, found, strict=True)]
    lacks = not (found or reading.unset or any(MARKS.search(each.target[-1]) for _, each in reading.started))
    found = [] if reading.unset and len(reading.why) == len(reading.started) else found
    if lacks and reading.started and (reading.others or reading.why or not reading.unread):
        at, command = reading.started[0]
        fetch = fetch_of([here / at / command.target[-1]], here)
        others = reading.others[:1] if fetch is None else []
        message = f"{name} starts {command.target[-1]}, which does not exist"
        message += ": first run what creates it" if others else ""
        typed_here = None if reading.why else command.typed()
        raise TargetError(message, cause=f"it runs {others[0]}" if others else None, run=fetch or typed_here)
    if not found:
        beyond = next(filter(None, (reading.unread, *reading.others)), None)
        if not reading.unset:
            raise _no_python(name, path, beyond, here)
        lost = [f"; not read: {each}" for each in reading.left if re.match(r"(source|\.) (?!.*activate)", each)][:1]
        values, message = "".join(f"-e {each}=VALUE " for each in reading.unset), ", ".join(reading.unset)
        run = f"seatrial run {values}{shlex.join([name, *arguments])}"
        raise TargetError(f"{name} needs values for {message}", cause="".join([beyond or "", *lost]), run=run)
    if reading.cut:
        message = f"bash ends the command at {reading.cut}, so its next lines are not part of it"
        rule = "a \\ must be the last character of its line, and no comment may stand between the lines"
        raise TargetError(message, cause=rule, run="\n".join(typed))
    count = len(reading.started)
    message = f"{name} starts Python {count} times, and a run starts it once"
    if reading.unread:
        message = f"{name} has commands that seatrial cannot read"
    elif reading.others or count == 1:
        message = f"{name} does more than start Python"
    moved = next((at for at, _ in found if at != "."), None)
    cause = f"it also runs {reading.others[0]}" if reading.others else moved and f"it starts Python in {moved}"
    raise TargetError(message, cause=reading.unread or cause, run="\n".join(typed))


def _existing(started: Sequence[tuple[str, PythonCommand]], here: Path) -> list[tuple[str, PythonCommand]]:
    """Return those of a script's commands whose scripts exist before it runs."""
    return [each for each in started if each[1].target[0] == "-m" or is_file(here / each[0] / each[1].target[0])]


def _with_gaps(known: str, unknown: str | None = None) -> str:
    """Return a word as it is typed: what the user's shell fills in stays, another unknown part is ``VALUE``."""
    if unknown is None:
        return shlex.quote(known)
    if re.fullmatch(r"(?=.*[*?~{])[\w./*?~{},:=-]+", unknown):
        return shlex.quote(known) * bool(known) + unknown
    if re.fullmatch(r"\$\{?[A-Za-z_]\w*\}?[\w./:=-]*", unknown):
        return '"' + re.sub(r'([\\"$`])', r"\\\1", known) + f'{unknown}"'
    return shlex.quote(f"{known}VALUE")


def launcher_refused(words: Sequence[str], why: str | None = None) -> TargetError:
    """Return the error for ``mpirun -np 4 python train.py``, with seatrial's command or the reason (``why``)."""
    try:
        command = startable.script_alone(words)
    except startable.UnreadCommand as error:
        command, why = None, why or str(error)
    launchers = (word for word in words if Path(word).name in (*LAUNCHERS, *startable.LAUNCHER_MODULES, *MPI_LAUNCHERS))
    launcher, program = next(launchers, None), next(dropwhile(startable.ASSIGNMENT.fullmatch, words), words[0])
    message = f"seatrial does not read what {program} starts here"
    if launcher:
        message = f"seatrial starts the ranks itself: {launcher} is a launcher, not a script"
    cause = why or (_MPI if program in MPI_LAUNCHERS else None)
    return TargetError(message, cause=cause, run=command.typed() if command else None)


def _module_target(module: str, words: Sequence[str], project: Path, start: Path) -> Target:
    """Return a module's target; one of the project must exist, others may be in the image, as only the run can see."""
    if module in startable.LAUNCHER_MODULES and words:
        raise launcher_refused([f"python -m {module}", *words])
    if not _MODULE.fullmatch(module) or len(module) > _MAX_NAME:
        dotted = startable.module_name(module, start) if is_file(start / module) else ""
        dotted = dotted if _MODULE.fullmatch(dotted) else "package.module"
        raise TargetError(f"-m {module!r} is not a module's name", run=f"seatrial run -m {dotted} …")
    roots = list(dict.fromkeys([start, project, project / "src"]))
    top = module.split(".")[0]
    ours = any(is_folder(root / top) or is_file(root / f"{top}.py") for root in roots)
    elsewhere = folder_of(module, project)
    if (ours or elsewhere) and find_module(module, [*roots, project / (elsewhere or ".")], main=True) is None:
        names = [path[:-3].removeprefix("src/").replace("/", ".") for path in likely_scripts(project)]
        similar = difflib.get_close_matches(module, names, n=1)
        if is_package := elsewhere is not None:  # Python starts its __main__.py, which it lacks
            similar = [each for each in names if f".{module}." in f".{each}"]
        what = f"the package {module} has no __main__.py" if is_package else f"module {module} is not in {project}"
        hint = f"; did you mean {similar[0]}?" if similar else ""
        raise TargetError(f"{what}{hint}", run=f"seatrial run -m {similar[0] if similar else top} …")
    return Target(kind="module", value=module, args=tuple(words))


def _script(word: str, project: Path, start: Path) -> str:
    """Return the script's path relative to the project, which alone is in the container. Raises TargetError."""
    path = (start / word).resolve()
    root = project.resolve()
    if path.suffix == ".ipynb":
        first, script = f"{CONVERT} {shlex.quote(word)}", str(Path(word).with_suffix(".py"))
        run = f"{first} && seatrial run {shlex.quote(script)}"
        raise TargetError(f"{word} is a notebook, not a script", run=run, instead=(word, [script]), first=first)
    if found := _of_another_file(path):
        kind, command = found
        refused = TargetError(f"{word} is {kind}, not a script", run=f"{command} {shlex.quote(word)}")
        raise manifest_refused(word) if command is None else refused
    if _is_makefile(path) or startable.is_shell(path):
        raise _no_python(word, path)
    suffixes = ("", ".py", ".pyw", ".pyc", ".pyz", ".zip")
    if path.suffix not in suffixes and not _CODE.search(beginning(path, _MOST_OF_YAML)):
        run = next((f"seatrial run {shlex.quote(each)}" for each in likely_scripts(path.parent)), "ls *.py")
        raise TargetError(f"{word} is not a Python script", run=run)
    if not path.is_relative_to(root):
        message, cause = f"{word} is outside the project {root}", "only the project folder is in the container"
        enter = f"cd {as_typed(path.parent)}"
        run = f"{enter} && seatrial run {shlex.quote(path.name)}"
        raise TargetError(message, cause=cause, run=run, instead=(word, [path.name]), first=enter)
    name = str(path.relative_to(root))
    return f"./{name}" if name.startswith("-") else name  # Python takes it for an option


def manifest_refused(word: str) -> TargetError:
    """Return the error for a Kubernetes manifest given to run, plan or up."""
    message = f"{word} is a Kubernetes manifest, which run takes with --file"
    return TargetError(message, run=f"seatrial run -f {shlex.quote(word)}")


def _of_another_file(path: Path) -> tuple[str, str | None] | None:
    """Return (kind, command for it or None) of a Dockerfile or YAML, by its name and keys; None for other files."""
    if re.match(r"(?i)(docker|container)file(\.|$)|.*\.dockerfile$", path.name) and path.suffix != ".py":
        return "a Dockerfile", "seatrial build --check"
    if path.suffix not in (".yaml", ".yml") or not is_file(path):
        return None
    text = beginning(path, _MOST_OF_YAML)
    if re.search(r"(?m)^apiVersion\s*:", text):
        return "a Kubernetes manifest", None
    if re.search(r"(?m)^(services|include)\s*:", text):
        return "a Compose file", "seatrial up -f"
    return "a YAML file", "head"


def _is_makefile(path: Path) -> bool:
    return path.suffix == ".mk" or path.name.lower() in ("makefile", "gnumakefile")


def _no_python(word: str, path: Path, beyond: str | None = None, here: Path = Path()) -> TargetError:
    """Return the error for a Makefile, or for a script that starts no Python that seatrial reads."""
    kind = "Makefile" if _is_makefile(path) else "shell script" if path.is_file() else "task"
    text = re.sub(r"(?m)(^|\s)#.*$", "", beginning(path, _MOST_OF_YAML)) if path.is_file() else ""
    lines = re.findall(rf"""(?m)^[^\n'"]*\b(?:{"|".join(startable.SUBMITTERS)})\b((?:\\\n|[^\n;&|])*)""", text)
    jobs = (each for each in " ".join(lines).split() if each.endswith(startable.SHELL_SUFFIXES))
    if job := next((each for each in jobs if is_file(here / each)), None):
        return TargetError(f"{word} submits {job} to a batch system", run=f"seatrial run {shlex.quote(job)}")
    text = re.sub(r"\$\w+/", "${}/", text)
    named = [*dict.fromkeys(re.findall(r"(?<![\w./$-])(?<!\})[\w./-]+\.py\b|(?<=[)}]/)[\w./-]+\.py\b", text))][:3]
    is_alone = kind == "shell script" and not (beyond or lines or named) and "python" not in text
    if kind == "shell script" and not text.strip():
        return TargetError(f"{word} is empty: it starts nothing", run=f"ls {as_typed(path.parent)}")
    run = f"seatrial run --image python:3.11-slim-bookworm -- bash {shlex.quote(word)}" if is_alone else None
    tails = (Path(*Path(each).parts[at:]) for each in named for at in range(len(Path(each).parts)))
    if script := next((str(each) for each in tails if is_file(here / each)), None):  # of the author's path, its end
        run = f"seatrial run {shlex.quote(script)}   # its arguments stand behind --"
    if re.search(r"\b(?:apt|apt-get|dnf|yum|zypper|nvidia-ctk)\b", text):
        run = "seatrial doctor"
    elif re.search(r"\b(?:docker|podman) (?:build|run|compose)\b", text):
        run = next((f"seatrial run {shlex.quote(each)}" for each in [*named, *likely_scripts(path.parent)]), run)
    if beyond and (end := re.match(r"(?s)([^:]+):(\d+).*\(the script ends here", beyond)):
        usage = re.search(r"(?i)it prints: .*\busage: *(\S.*)\)", beyond)
        run = f"seatrial run {usage[1]}" if usage else f"sed -n 1,{end[2]}p {shlex.quote(end[1])}"
        return TargetError(f"{word} ends before it starts Python", cause=beyond, run=run)
    cause = "seatrial starts Python itself; other programs run in an existing image"
    if beyond:
        cause = f"seatrial runs a script's one command of Python, and this one does more: {beyond}"
    names = f"; it names {', '.join(named)}" if named else ""
    return TargetError(f"{word} is a {kind}, not Python{names}", cause=cause, run=run)


def _nothing(project: Path, recipes: Collection[str]) -> TargetError:
    """Return the error for no target at all, with what there is here."""
    message = "nothing to run: name a script, a recipe or -m module"
    if found := startable.what_is_here(project):
        what, before, words = found
        return TargetError(f"{message}; here {what}", run=f"{before}seatrial run {words}")
    example = "digits" if "digits" in recipes else min(recipes, default="train.py")  # it needs no data
    return TargetError(f"{message}; recipes: {', '.join(sorted(recipes))}", run=f"seatrial run {example}")


def _not_there(words: Sequence[str], project: Path, recipes: Collection[str]) -> TargetError:
    word = words[0]
    if not word.strip():
        first = min(scripts(project), default="digits")
        return TargetError("the target is empty", run=f"seatrial run {shlex.quote(first)}")
    if is_folder(project / word):
        message = f"the target {word} is a folder, not a script"
        if is_file(project / (main := (Path(word) / "__main__.py").as_posix())):
            module = startable.module_name(main, project).removesuffix("__main__").rstrip(".")
            own = ["-m", module] if is_package(project / word) and _MODULE.fullmatch(module) else [main]
            run = f"seatrial run {shlex.join(own)}"
            return TargetError(f"{message}; Python starts {main} in it", run=run, instead=(word, own))
        inside = [path for path in likely_scripts(project / word) if "/" not in path][:5]
        if not inside:
            return TargetError(f"{message}, and has no script in it", run=f"ls {as_typed(project / word)}")
        example = str(Path(word) / inside[0])
        run = f"seatrial run {shlex.quote(example)}"
        return TargetError(f"{message}; it contains {', '.join(inside)}", run=run, instead=(word, [example]))
    if re.match(r"(https?|ssh|git)://|git@", word):
        return TargetError(f"{word} is an address, not a script of this project", run=f"git clone {shlex.quote(word)}")
    parts = word.split()
    if parts[1:] and (parts[0] in (*LAUNCHERS, *SHELLS) or startable.is_python(parts[0]) or parts[0].endswith(".py")):
        return TargetError("the whole command is in quotes", run=f"seatrial run {word}", instead=(word, parts))
    if "." in word and _MODULE.fullmatch(word) and find_module(word, [project], main=True):
        return TargetError(f"{word} is a module", run=f"seatrial run -m {word}", instead=(word, ["-m", word]))
    if named := image_refused(word):
        raise named
    if "." not in word and words[1:] and ((refused := launcher_refused(words)).run or refused.cause):
        return refused
    if notebook := next((each for each in words[1:] if each.endswith(".ipynb") and is_file(project / each)), None):
        script = shlex.quote(str(Path(notebook).with_suffix(".py")))
        run = f"{CONVERT} {shlex.quote(notebook)} && seatrial run {script}"
        return TargetError(f"{word} runs the notebook {notebook}; a run starts a script", run=run)
    if fetch := fetch_of([project / word], project):
        return TargetError(f"Script {word} not found in {project}", run=fetch)
    of_shell = _shell_scripts((project / word).parent, project)
    similar = _similar(word, [*scripts(project), *recipes]) or _similar(word, of_shell)
    hint = f"; did you mean {' or '.join(similar)}?" if similar else ""
    kind = "script" if word.endswith(".py") or "/" in word else "script or recipe"
    others = [] if similar else likely_scripts(project)
    here = [] if similar else [f"scripts here: {first_of(others, _MOST_NAMED) or 'none up to two folders deep'}"]
    here += [f"recipes: {', '.join(recipes)}"] if here and kind != "script" else []
    likely = others if len(others) == 1 else [each for each in others if re.search(r"train|\bmain\.py", each)]
    first = next((each for each in [*similar, *likely] if similar or "/" not in each), "")
    folder, name = os.path.split(first)
    enter = f"cd {shlex.quote(folder)}" if folder and _starts_in(folder, name, words[1:], project) else None
    found = name if enter else first
    run = f"seatrial run {shlex.quote(found)}" if found else f"ls {as_typed(project)}"
    message = f"{kind.capitalize()} {word} not found in {project}{hint}"
    instead = (word, [found]) if found and (similar or "." in word) else None
    return TargetError(
        message, cause="; ".join(here) or None, run=f"{enter} && {run}" if enter else run, instead=instead, first=enter
    )


def _starts_in(folder: str, name: str, arguments: Sequence[str], project: Path) -> bool:
    """Return whether arguments of a script, or paths in its text, exist from its folder and not from here."""
    texts = re.findall(r"""["']([\w./-]*[./][\w./-]*)["']""", beginning(project / folder / name, _MOST_OF_SCRIPT))
    texts += [word.rpartition("=")[2] for word in arguments]
    pairs = [(project / folder / text, project / text) for text in texts if text[:1] not in ("", "/", "-")]
    return any(os.path.exists(there) and not os.path.exists(here) for there, here in pairs)  # noqa: PTH110  never raises


def _similar(word: str, names: Sequence[str]) -> list[str]:
    """Return names like the word: the same file elsewhere first, in the word's folder before others; then spelling."""
    same_file = [name for name in names if Path(name).name in (Path(word).name, f"{Path(word).name}.py")]
    same_file.sort(key=lambda name: -len({*Path(name).parts} & {*Path(word).parts}))
    stem = Path(word).stem  # a common folder makes no script similar
    stems = {name: Path(name).stem for name in names}
    ratios = {name: difflib.SequenceMatcher(None, stem, each).ratio() for name, each in stems.items()}
    spelled = [name for name, each in stems.items() if ratios[name] >= 0.7 or sorted(stem) == sorted(each)]
    return list(dict.fromkeys([*same_file, *difflib.get_close_matches(word, spelled, n=2, cutoff=0.6)]))[:2]
