"""Read the commands of ``make train``, ``pixi run train`` and other tasks as a shell script."""

from __future__ import annotations

import ast
import json
import posixpath
import re
import shlex
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from fnmatch import fnmatchcase
from itertools import pairwise
from pathlib import Path, PurePosixPath
from typing import Any

from seatrial.errors import ConfigError
from seatrial.job.reading.modules import is_file
from seatrial.job.startable import UnreadCommand, beginning, whole, without_runner
from seatrial.system.project_files import as_list, as_table, parse_toml, parse_yaml

_REFERENCE = re.compile(r"\$(?:\$|\((\w+)\)|\{(\w+)\}|\(shell ([^()]*)\)|([@<^]))")
#: Lines of a Makefile that look like rules or variables, and are neither.
_DIRECTIVE = re.compile(
    r" *(ifn?eq|ifn?def|define|(un)?export|override|-?include|vpath|private"
    r"|\.(ONESHELL|EXPORT_ALL_VARIABLES|SECONDEXPANSION|DEFAULT))(?![\w.-]|\s*[?:+]*=)|\.RECIPEPREFIX"
)
_MOST_TEXT, _MOST_OF_TABLES, _LONGEST, _MOST_GOALS = 100_000, 1_000_000, 2_000, 200
#: Programs other than those of ``startable.RUNNERS`` whose tasks are read.
TASK_RUNNERS = ("make", "dvc", "mlflow")
#: Keys of a task that are read, or that change nothing of what it starts.
_COMMANDS, _NEEDS = ("cmd", "cmds", "shell", "chain"), ("depends-on", "depends_on", "deps")
_KEYS = (*_COMMANDS, *_NEEDS, "help", "desc", "description", "inputs", "outputs", "cwd", "env")
_MOST_TASKS = 20
#: Source: pixi.sh/latest/reference/environment_variables.
_PROJECT_ROOT = re.compile(r"\$\{?PIXI_PROJECT_ROOT\}?")
#: A goal's prerequisites, and its commands with their places.
_Rule = tuple[list[str], list[tuple[str, str]]]


def makefile(here: Path) -> Path | None:
    """Return the file that ``make`` reads, or None."""
    return next((here / name for name in ("GNUmakefile", "makefile", "Makefile") if is_file(here / name)), None)


def task_commands(words: Sequence[str], here: Path) -> list[tuple[str, str]]:
    """Return the commands of ``make``'s goals or of a task, each with its place, or "" for a task's."""
    if words[0] == "make":
        _refuse_options(words, "goals and variables of make")
        file = makefile(here)
        return _make_commands(words, file) if file else []
    if words[0] in ("invoke", "inv") and is_file(here / "tasks.py"):
        return [*_invoked(words[1:], here / "tasks.py")]
    if words[0] == "dvc" and (words[1:2] == ["repro"] or words[1:3] == ["exp", "run"]):
        _refuse_options(words, "stages of DVC and params.yaml", "-f", "--force", "-s", "--single-item")
        return [*_stages(words[2 + (words[1] == "exp") :], here)]
    if words[:2] == ["mlflow", "run"]:
        folder = next((each for each in words[2:] if is_file(here / each / "MLproject")), None)
        if folder is None:
            raise UnreadCommand(f"{shlex.join(words)} names no folder here that has a file MLproject")
        return [_entry_point(words[2:], folder, here / folder / "MLproject")]
    name, *arguments = words[1:] if words[0] == "task" and words[1:] else without_runner(words) or words
    typed = shlex.join(arguments[arguments[:1] == ["--"] :])
    for table in _tables(here) if not is_file(here / name) else ():
        for task in _tasks(table, name.rpartition(":")[2]):
            text = "\n".join(_commands(task, table, name)).replace("{{.CLI_ARGS}}", "{args}")
            filled = re.sub(r"\{args(?::([^}]*))?\}", lambda match: typed or match[1] or "", text)
            if text and "{{" not in text:  # a template
                return [(filled if filled != text else f"{text} {typed}", "")]
    return []


def _refuse_options(words: Sequence[str], read: str, *known: str) -> None:
    if option := next((word for word in words if word.startswith("-") and word not in known), None):
        raise UnreadCommand(f"{shlex.join(words)}: only {read} are read, not {option}")


def _make_commands(words: Sequence[str], file: Path) -> list[tuple[str, str]]:
    """Return the commands of make's goals and of what they need, each with its place."""
    given = dict(word.partition("=")[::2] for word in words[1:] if "=" in word)
    rules, variables, recipe, number = dict[str, _Rule](), {**given}, list[tuple[str, str]](), 1
    for match in re.finditer(r"((?:\\\n|[^\n])*)\n?", whole(file, _MOST_TEXT)):
        line, place = match[1].replace("\\\n", " "), f"{file.name}:{number}: {match[1].strip()[:80]}"
        number += match[0].count("\n")
        if _DIRECTIVE.match(line) or len(rules) > _MOST_GOALS:
            raise UnreadCommand(place)
        if line.startswith("\t"):
            recipe.append((line.strip().lstrip("@-+ "), place))
        elif variable := re.fullmatch(r"([\w.-]+)\s*(\?|::?|\+)?=\s*(.*)", line.strip()):
            name, sign, value = variable.groups()
            before, value = variables.get(name, ""), re.sub(r"(^|\s)#.*", "", value).rstrip()
            value = _expanded(value, variables) if sign in (":", "::") else value
            if name not in given:
                variables[name] = f"{before} {value}" if sign == "+" else before if sign == "?" and before else value
        elif rule := re.fullmatch(r"([^\s:=#][^:=#]*)::?(?!=)([^:=#;]*)(?:#.*)?", line):
            recipe = []
            for goal in rule[1].split():
                needs, commands = rules.get(goal, ([], recipe))
                rules[goal] = ([*needs, *rule[2].replace("|", " ").split()], commands or recipe)
        elif line.strip() and not line.lstrip().startswith("#"):
            raise UnreadCommand(place)
    first = variables.get(".DEFAULT_GOAL") or next((goal for goal in rules if goal[0] not in ".%"), "")
    goals = [word for word in words[1:] if "=" not in word] or [first]
    if missing := [goal for goal in goals if goal not in rules]:
        raise UnreadCommand(f"{file.name} has no rule of the name {missing[0]}")
    return [*_lines(goals, rules, variables)]


def _in_order(names: Sequence[str], needs: dict[str, list[str]], done: set[str]) -> Iterator[str]:
    """Yield names of tasks once, those that they need first."""
    for name in (each for each in names if each not in done):
        done.add(name)
        yield from _in_order(needs.get(name, []), needs, done)
        yield name


def _lines(goals: Sequence[str], rules: dict[str, _Rule], variables: dict[str, str]) -> Iterator[tuple[str, str]]:
    """Yield the commands of goals with their places, prerequisites first."""
    for goal in _in_order(goals, {goal: needs for goal, (needs, _) in rules.items()}, set()):
        if goal in rules:
            needs, recipe = rules[goal]
            automatic = {"@": goal, "<": next(iter(needs), ""), "^": " ".join(needs)}
            filled = ((_expanded(text, {**variables, **automatic}), place) for text, place in recipe)
            yield from ((text.replace("$$", "$"), place) for text, place in filled)
        elif any("%" in each and fnmatchcase(goal, each.replace("%", "*")) for each in rules):
            raise UnreadCommand(f"{goal[:80]} is made by a rule with %")


def _expanded(text: str, variables: dict[str, str]) -> str:
    """Return text with make's variables filled in; others become the shell's, with ``$$`` as in a Makefile."""

    def value(match: re.Match[str]) -> str:
        name = match[1] or match[2] or match[4]
        found = match[0] if name is None else variables.get(name, f"$${{{name}}}")
        if len(found) > _LONGEST:
            raise UnreadCommand(f"the Makefile's function {name} is not supported (check: what `name` is there)")
        return found if match[3] is None else f"$$({match[3]})"

    for _ in range(5):
        text = _REFERENCE.sub(value, text)
        if len(text) > _MOST_TEXT:
            raise UnreadCommand(text[:80])
    return text


def _invoked(words: Sequence[str], file: Path) -> Iterator[tuple[str, str]]:
    """Yield the commands of an Invoke task, ``ctx.run(f"python src/{NAME}/train.py")``, with the names' values."""
    with suppress(SyntaxError):
        body = ast.parse(whole(file, _MOST_TEXT)).body
        functions = {each.name: each for each in body if isinstance(each, ast.FunctionDef) and each.decorator_list}
        if (task := functions.get(words[0].replace("-", "_") if words else "")) is None:
            raise UnreadCommand(f"the tasks of {file.name} are {', '.join(functions)}")
        pairs: list[tuple[ast.AST, ast.expr]] = [(x.targets[0], x.value) for x in body if isinstance(x, ast.Assign)]
        pairs += zip(reversed(task.args.args), reversed(task.args.defaults), strict=False)
        values = {getattr(key, "id", getattr(key, "arg", "")): _filled(value, {}) for key, value in pairs}
        typed = re.findall(r"--([\w-]+)[= ]([^\s-]\S*)", shlex.join(words[1:]))
        values |= {name.replace("-", "_"): value for name, value in typed}
        for node in ast.walk(task):
            if isinstance(node, ast.Call) and getattr(node.func, "attr", "") == "run" and node.args:
                yield _filled(node.args[0], values), f"{file.name}:{node.lineno}"


def _filled(node: ast.expr, values: dict[str, str]) -> str:
    """Replace known names in an f-string with their values, and others with shell variables."""
    quoted = re.fullmatch(r"(?s)f?(['\"]+)(.*)\1", text := ast.unparse(node))
    text = quoted[2] if quoted else text if isinstance(node, ast.Constant) else f"{{{text}}}"
    return re.sub(r"\{(\w+)[^{}]*\}", lambda name: values.get(name[1], f"${name[1]}"), text)


def _tables(here: Path, *files: str) -> Iterator[Any]:
    """Yield the tables of these files, or of those that may have tasks."""
    for file in files or ("pixi.toml", "pyproject.toml", "package.json", "Taskfile.yml", "Taskfile.yaml"):
        text = beginning(here / file, _MOST_OF_TABLES) if is_file(here / file) else ""
        with suppress(ValueError, ConfigError, RecursionError):
            parse: Callable[[str, Any], Any] = parse_toml if file.endswith("toml") else parse_yaml
            yield json.loads(text or "{}") if file.endswith("json") else parse(text, here / file)


def _stages(words: Sequence[str], here: Path) -> Iterator[tuple[str, str]]:
    """Yield the commands of DVC's stages and of those that they need, with values of params.yaml, and their places."""
    stages = as_table(next(_tables(here, "dvc.yaml"), {}), "stages")
    params: Any = next(_tables(here, "params.yaml"), {})
    names = [each for each in words if each[:1] != "-"]
    if missing := [each for each in names if each not in stages]:
        raise UnreadCommand(f"dvc.yaml has no stage of the name {missing[0]}")
    made = {path: name for name in stages for path in _paths(stages, name, "outs")}
    needs = {
        name: [made[each] for path in _paths(stages, name, "deps") for each in (path, *path.parents) if each in made]
        for name in stages
    }
    for name in names if {"-s", "--single-item"} & {*words} else _in_order(names or [*stages], needs, set()):
        folder = shlex.quote(_text(stages, name, "wdir") or ".")
        for text in as_list(as_table(stages, name).get("cmd", [])):
            filled = re.sub(r"\$\{([\w.]+)\}", lambda each: _text(params, *each[1].split(".")) or each[0], str(text))
            yield f"(cd {folder} && {filled}\n)", f"dvc.yaml: {name}"


def _paths(stages: Any, name: str, key: str) -> list[PurePosixPath]:
    """Return the paths of a stage's inputs or outputs, from the file's folder."""
    listed, folder = filter(None, as_list(as_table(stages, name).get(key))), _text(stages, name, "wdir")
    paths = (next(iter(each), "") if isinstance(each, dict) else str(each) for each in listed)
    return [PurePosixPath(posixpath.normpath(posixpath.join(folder, each))) for each in paths]


def _entry_point(words: Sequence[str], folder: str, file: Path) -> tuple[str, str]:
    """Return the command of an MLproject's entry point, with the typed values and its parameters' defaults."""
    parts = (re.split(r"(?<=^-[Pe])(?=.)|(?<=^--param-list)=|(?<=^--entry-point)=", word) for word in words)
    pairs = [*pairwise(part for each in parts for part in each)]
    name = next((value for option, value in pairs if option in ("-e", "--entry-point")), "main")
    table = as_table(next(_tables(file.parent, file.name), {}), "entry_points", name)
    if not (text := _text(table, "command")):
        raise UnreadCommand(f"{file.name} has no command of an entry point {name}")
    known = {key: _text(table, "parameters", key, "default") for key in as_table(table, "parameters")}
    typed = dict(value.partition("=")[::2] for option, value in pairs if option in ("-P", "--param-list"))
    values = {key: shlex.quote(value) for key, value in {**known, **typed}.items() if value}
    filled = re.sub(r"\{(\w+)\}", lambda each: values.get(each[1], f"${each[1]}"), text)
    filled += "".join(f" --{key} {values[key]}" for key in typed if key not in known)
    return f"(cd {shlex.quote(folder)} && {filled}\n)", f"{file.name}: {name}"


def _text(table: Any, *keys: str) -> str:
    """Return the text of a nested value; an empty one without a value."""
    value = as_table(table, *keys[:-1]).get(keys[-1])
    if isinstance(value, bool):
        return str(value).lower()
    return "" if value is None or isinstance(value, dict | list) else str(value)


def activated(here: Path) -> list[str]:
    """Return ``NAME=value`` of each variable that pixi sets for every command, with paths from its file's folder."""
    values = dict[str, str]()
    for table in _tables(here):
        for name, value in as_table(as_table(table, "tool", "pixi") or table, "activation", "env").items():
            values[name] = re.sub(rf":?\$\{{?{re.escape(name)}\}}?:?", "", _PROJECT_ROOT.sub(".", str(value)))
    return [f"{name}={value}" for name, value in values.items() if "$" not in value]


def _tasks(table: Any, name: str) -> Iterator[Any]:
    """Yield a task's entries in tables named ``tasks`` or ``scripts``."""
    for key, value in table.items() if isinstance(table, dict) else ():
        if key in ("tasks", "scripts") and isinstance(value, dict) and name in value:
            yield value[name]
        yield from _tasks(value, name)


def _commands(task: Any, table: Any, name: str, done: set[str] | None = None) -> Iterator[str]:
    """Yield the commands of a task after those of its dependencies, each once; none of a function. ``done``: names."""
    is_needed, done = done is not None, done or {name}
    first: list[str] = []
    if isinstance(task, dict):
        if unread := [key for key in task if key not in _KEYS]:
            raise UnreadCommand(f"the task {name} has the key {unread[0]}, which seatrial does not read")
        for each in as_list(next((task[key] for key in _NEEDS if key in task), [])):
            other = str(each.get("task") if isinstance(each, dict) else each)
            if other in done:
                continue
            done.add(other)
            if (needed := next(_tasks(table, other), None)) is None or len(done) > _MOST_TASKS:
                raise UnreadCommand(f"the task {name} depends on {other}, which is missing, or on too many")
            yield from _commands(needed, table, other, done)
        first += [f'export {key}="{value}"' for key, value in as_table(task, "env").items()]
        first += [f"cd {shlex.quote(str(task['cwd']))}"] if "cwd" in task else []
        task = next((task[key] for key in _COMMANDS if key in task), [])
    found = [task] if isinstance(task, str) else [each for each in task if isinstance(each, str)] if task else []
    own = "\n".join(each for each in found if not re.fullmatch(r"[\w.]+:[\w.]+", each))
    text = "\n".join([*first, own]) if own else ""
    yield f"({text})" if text and is_needed and first else text
