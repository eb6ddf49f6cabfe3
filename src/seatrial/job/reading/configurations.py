"""Configuration files that a run reads: their settings, and what Hydra composes."""

from __future__ import annotations

import ast
import os
import posixpath
import re
import sys
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any, TypeAlias

from seatrial.errors import ConfigError, fallback
from seatrial.job.reading.argparse_words import typed_options
from seatrial.job.reading.constants import ANY
from seatrial.job.reading.modules import is_file, is_folder
from seatrial.job.reading.signs import GATED, NAMED, REPORT_TO, dotted, full_name, keywords, literal
from seatrial.system.project_files import as_list, as_table, parse_yaml, read_sources, read_text, shown_path
from seatrial.system.text import regex

#: Endings of configuration files, and a setting in one.
CONFIGURATION = (".yaml", ".yml", ".json", ".json5", ".jsonnet", ".toml", ".ini", ".cfg", ".conf", ".config")
_SETTING = regex(
    r"""\s*(?:-\s+|local\s+)?["']?([\w-]+(?: [\w-]+)*)["']?\s*[:=]\s*["']?([^"'#\[{\s,](?:[^"'#,]*[^"'#,\s])?)["']?"""
    r"""\s*(?:[,;]\s*)?(?:#.*)?"""
)
_TYPED_SETTING = regex(r"(?:\+{0,2}|--(?=[\w-]+\.)|--\w+=)((?:\w[\w-]*[./])*[\w-]+)(?:=| = ')([^\s\[{']+)'?")
_DOTTED_OPTION = regex(r"--\w[\w-]*(\.[\w-]+)+$")
#: Numbers of GPUs in a list.
_NUMBERS = regex(r"(?m)^[ \t]*(?:devices|gpus|(?:device|gpu)_?ids?):[ \t]*(\[[\d, \t]*\]|(?:\n[ \t]*-[ \t]*\d+)+)")
#: A key; an INI file's section.
_HEAD = regex(r"""\s*(?:(?:-\s+|local\s+)?["']?([\w-]+(?: [\w-]+)*)["']?\s*[:=]|\[([\w.-]+)\])""")
_REPORTS = regex(r"""(?m)^[^#\n]*?\breport_to["']?\s*[:=](\s*\[[^\]]*|(?:\s+-\s+\S+)+|[ \t]*["']?\w+)""")
_REPORTED = f"{NAMED}{REPORT_TO}"
#: DeepSpeed's optimizer for the CPU is compiled by nvcc when it is first used. Source: deepspeed.ai/docs/config-json.
_OFFLOADS = regex(r"offload_optimizer[._]device$")
#: An override of Hydra's command line, ``model=large``; most files that are composed, most bytes of each.
_CHOICE = regex(r"\+{0,2}([\w/]+)(?:@[\w.]*)?=([\w./-]+)")
_MOST_COMPOSED, _MOST_BYTES, _MOST_SETTINGS = 100, 100_000, 200_000
_MOST_INNER, _MOST_TEXT = 4, 1_000  # interpolations in others, characters of a value
#: The keys under which Hydra puts a file. Format: hydra.cc/docs/advanced/overriding_packages.
_PACKAGE = regex(r"#\s*@package\s+([\w.]+)")
#: Matches an item of a YAML list. ``_NO_OPTION`` matches items of Hydra's defaults lists that name no file of the
#: project: Hydra's own groups, none, ``???`` and interpolations.
_ITEM = regex(r"\s*-\s+([^\s:#][^:#]*)")
_NO_OPTION = regex(r"^hydra/|(^|/)(None|null|_self_)$|[^\w/.@+=-]")
#: The keys that name a class.
_TARGET = regex(r"\b(?:_target_|class_path|(target)):\s*[\"']?(\w+(?:\.\w+)+)")

#: (key, value, place)
_Setting: TypeAlias = tuple[str, str, str]
_Files: TypeAlias = list[tuple[Path, str]]


def _settings(text: str) -> Iterator[tuple[str, str, int]]:
    """Yield (dotted key, value, line) of a configuration's lines: ``data.path`` by indentation or by section."""
    above: list[tuple[int, str]] = []
    lists = {text.count("\n", 0, each.start()): re.findall(r"\d+", each[1]) for each in _NUMBERS.finditer(text)}
    for number, line in enumerate(text.splitlines(), 1):
        if head := _HEAD.match(line):
            depth = head.start(1)  # -1 of a section
            above = [*(each for each in above if each[0] < depth), (depth, head[1] or head[2])]
            if found := _SETTING.fullmatch(line):
                yield ".".join(key for _, key in above), found[2], number
            elif number - 1 in lists:
                yield ".".join(key for _, key in above), f"[{','.join(lists[number - 1])}]", number


def read_settings(
    names: Iterable[str], arguments: Sequence[str], folder: Path, keys: Collection[str]
) -> tuple[list[_Setting], dict[str, str]]:
    """Return the settings in files and on the command line, and sign → place, such as for trackers.

    ``keys``: of settings in code, which merge_from_list sets.
    """
    typed_ones = re.findall(r"\breport[_-]to[= ](\w+(?: \w+)*)", " ".join(arguments))
    found = {f"{_REPORTED}{tracker}": "--report_to" for tracker in " ".join(typed_ones).split()}
    settings = list[_Setting]()
    for name in names:
        text = "".join(read_sources([folder / name], folder, _MOST_SETTINGS))
        settings += ((key, value, f"{name}:{number}") for key, value, number in _settings(text))
        for one in () if typed_ones else _REPORTS.finditer(text):
            place = f"{name}:{text.count(chr(10), 0, one.start()) + 1}"
            found |= dict.fromkeys((f"{_REPORTED}{each}" for each in re.findall(r"\w+", one[1])), place)
    words = (_TYPED_SETTING.fullmatch(word) for word in arguments)
    typed = {match[1].replace("/", "."): match[2] for match in words if match}
    typed |= {key.lstrip("-"): value for key, value in pairwise(arguments) if key in keys or _DOTTED_OPTION.match(key)}
    settings = [
        each
        for each in settings
        if not any(f".{each[0]}".endswith(f".{key}") or f".{key}".endswith(f".{each[0]}") for key in typed)
    ]
    settings += ((key, value, key) for key, value in typed.items())
    for key, value, where in settings:
        if GATED.fullmatch(value):
            found.setdefault("hub-token", f"{where} {value}")
        elif value == "cpu" and _OFFLOADS.search(key):
            found.setdefault("cpu-adam", f"{where} {key}")
    return settings, found


def by_ends(*sources: Iterable[_Setting]) -> dict[str, tuple[str, str]]:
    """Return each end of a dotted key → its value and place, if it has one alone; a later source's go first."""
    known: dict[str, dict[str, str]] = {}
    for settings in sources:
        values: dict[str, dict[str, str]] = {}
        for key, value, where in (each for each in settings if "offload_" not in each[0]):  # DeepSpeed's
            parts = key.split(".")
            for at in range(len(parts)):
                values.setdefault(".".join(parts[at:]), {}).setdefault(value, where)
        known |= values
    return {key: next(iter(each.items())) for key, each in known.items() if len(each) == 1 and ANY not in each}


def targets(text: str) -> Iterator[tuple[int, str, bool]]:
    """Yield (line, dotted name of a class, whether its key may mean something else), by the keys of Hydra,
    jsonargparse and latent-diffusion."""
    lines = ((number, line) for number, line in enumerate(text.splitlines(), 1) if line.lstrip()[:1] != "#")
    yield from ((number, found[2], bool(found[1])) for number, line in lines for found in _TARGET.finditer(line))


def flattened(files: _Files, words: Sequence[str]) -> dict[str, object]:
    """Return dotted key → value of the configuration that Hydra composes of files, with overrides ``data.path=a``.

    ``*`` stands for the value of a key that several files set: which of them comes last is not known.
    """
    found = dict[str, object]()
    base = Path(os.path.commonpath([each.parent for each, _ in files])) if files else Path()
    read = fallback(None, on=ConfigError)(parse_yaml)
    for file, text in files:
        named = _PACKAGE.match(text)
        package = named[1].replace("_global_", "").split(".") if named else file.parent.relative_to(base).parts
        pending = [([*filter(None, package)], read(text, file.name))]
        for keys, node in pending:
            rows = [*node.items()] if isinstance(node, dict) else [*enumerate(node)] if isinstance(node, list) else []
            pending += (([*keys, str(key)], each) for key, each in rows)
            found |= {} if rows else {(key := ".".join(keys)): node if found.get(key, node) == node else ANY}
    typed = (word.lstrip("+").partition("=") for word in words)
    return found | {key.replace("/", "."): read(value, key) for key, is_given, value in typed if is_given}


def interpolated(text: str, config: Mapping[str, object]) -> str:
    """Return a value with ``${data.name}`` replaced by its own value, by ``*`` if that is unknown."""
    for _ in range(_MOST_INNER):
        if len(text) < _MOST_TEXT:
            text = re.sub(r"\$\{([\w.:]+)\}", lambda each: str(config.get(each[1].replace(":", "."), ANY)), text)
    return re.sub(r"\$\{.*\}", ANY, text[:_MOST_TEXT], flags=re.S)


def instances(config: Mapping[str, object]) -> Iterator[tuple[str, str, ast.Call]]:
    """Yield (dotted name of a class, the key above it, a call with its settings) of each object that Hydra makes."""
    ends = [key.removesuffix("_target_") for key in config if f".{key}".endswith("._target_")]
    inside: dict[str, dict[str, None]] = {above: {} for above in ends}
    for key in config:
        for at in (0, *(each.end() for each in re.finditer(r"\.", key))):
            inside.get(key[:at], {})[key[at:].partition(".")[0]] = None
    for above, names in inside.items():
        given = list[ast.keyword]()
        for name in filter(str.isidentifier, names):
            value: Any = config.get(above + name, ANY)  # of a list or a table, too
            value = interpolated(value, config) if isinstance(value, str) else value
            is_known = isinstance(value, str | int | float | None) and ANY not in str(value)
            given.append(ast.keyword(name, ast.Constant(value) if is_known else ast.Name("", lineno=0)))
        call = ast.Call(ast.Name("instantiate"), [], given, lineno=sys.maxsize)  # after all else
        yield str(config[f"{above}_target_"]), above, call


def initialized(node: ast.Call, file: Path, names: Mapping[str, str], folder: Path) -> str | None:
    """Return the folder of configurations that ``hydra.initialize`` in a file sets, seen from ``folder``, or None."""
    full, given = full_name(dotted(node.func), names), keywords(node)
    if full not in ("hydra.initialize", "hydra.initialize_config_module"):
        return None
    name = literal(next(iter(node.args), given.get("config_path", given.get("config_module")))) or ""
    path = file.parent / name if full == "hydra.initialize" else folder / name.replace(".", "/")
    return os.path.relpath(path, folder) if name and is_folder(path) else None


def composed(call: ast.Call, path: Path, shown: str, words: Sequence[str], project: Path) -> tuple[_Files, _Files]:
    """Return (file, text) of what hydra.main, called in a file, composes, and (file, where) of what it lacks."""
    given = dict(zip(("config_path", "config_name"), call.args, strict=False)) | keywords(call)
    folder, named = (literal(given.get(key)) for key in ("config_path", "config_name"))
    options = dict(typed_options(words))
    name = options.get("--config-name") or options.get("-cn") or named or "config"
    base = Path(os.path.normpath(path.parent / (folder or ".")))
    files, lost = _composed(base, name, words, project)
    if not files:
        required = bool(folder and (named or name != "config"))
        lost = [(base / f"{name.removesuffix('.yaml')}.yaml", f"{shown}:{call.lineno}")] * required
        files, _ = _composed(base, named or "config", words, project)
    return files, [] if re.search(r"--config-(?!name)|(^| )-c[pd]|://", " ".join((*words, folder or ""))) else lost


def _composed(folder: Path, name: str, words: Sequence[str], project: Path) -> tuple[_Files, _Files]:
    """Return (file, text) of each file that Hydra composes for ``words``, and (file, where) of those that it lacks.

    Both are empty without the primary file, ``name``. Format: hydra.cc/docs/advanced/defaults_list.
    """
    chosen: dict[str, Any] = {match[1]: match[2] for word in words if (match := _CHOICE.fullmatch(word))}
    typed = {re.split("[@=]", word.lstrip("+~"))[0]: word for word in words}
    groups = [group for group in chosen if is_folder(folder / group)]
    pending = [*((group, chosen[group], typed[group]) for group in groups), ("", name.removesuffix(".yaml"), "")]
    found, lost = dict[Path, str](), list[tuple[str, str, Path, str]]()
    while pending and len(found) + len(lost) < _MOST_COMPOSED:
        group, option, where = pending.pop(0)
        path = posixpath.join(group, option.partition("@")[0].removesuffix(".yaml")).lstrip("/")
        file = folder / f"{path}.yaml"
        if file in found:
            continue
        if not is_file(file):
            lost += [(group, option, file, where)] * (where != "" and not _NO_OPTION.search(path))
            continue
        try:
            found[file] = read_text(file, inside=project, limit_bytes=_MOST_BYTES)
            defaults = as_table(parse_yaml(found[file], file.name)).get("defaults")
        except ConfigError:
            continue
        items = [*enumerate(map(_ITEM.match, found[file].splitlines()), 1)]
        lines = {item[1].rstrip(): number for number, item in reversed(items) if item}
        for item in defaults if isinstance(defaults, list) else ():
            for key, value in item.items() if isinstance(item, dict) else [("", item)]:
                *how, group = str(key).partition("@")[0].split() or [""]
                group = posixpath.normpath(posixpath.join("/", posixpath.dirname(path), group))[1:]
                if "override" in how:
                    chosen.setdefault(group, value)
                options = chosen.get(group, value) if key else value
                line = lines.get(str(key or value))
                shown = f"{shown_path(file, project)}:{line}" if line else ""
                known = not how and (group in chosen or group not in typed)  # else data=a,b, a sweep
                pending += ((group, str(each), typed.get(group, shown) * known) for each in as_list(options))
    if folder / f"{name.removesuffix('.yaml')}.yaml" not in found:
        return [], []
    lost *= "searchpath" not in "".join((*found.values(), *words))  # else other folders have options, too
    kept = (each for each in lost if each[1] in map(str, as_list(chosen.get(each[0], each[1]))))
    return list(found.items()), [(file, where) for _, _, file, where in kept]
