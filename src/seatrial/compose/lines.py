"""Lines: where the keys of a Compose file stand, and the further files that they name."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import yaml

from seatrial.errors import UsageError
from seatrial.system.project_files import is_there, read_bytes
from seatrial.system.text import as_typed, from_here

#: A Compose file of a hundred services has 100 KB.
MAX_BYTES = 1_000_000
_MOST_LEVELS = 50

_LOADER: Any = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
#: Keys that name a file wherever they stand, except below _NAMING_NONE; those of _NAMING_TEXTS, no Compose file.
_NAMING = ("include", "path", "project_directory", "file", "env_file", "label_file")
_NAMING_NONE = {"environment", "args", "labels", "annotations", "options", "driver_opts", "watch"}
_NAMING_TEXTS = {"env_file", "label_file"}
_MOST_NAMES = 5000
#: ``$NAME`` and ``${NAME:-default}``; a line of .env, and a value there that stands for itself.
_VARIABLE = re.compile(r"\$(?:(\w+)|\{(\w+)(?:(:?-)([^{}$]*))?\})")
_SET = re.compile(r"^[ \t]*(?:export[ \t]+)?(\w+)[ \t]*[=:](.*)$", re.MULTILINE)
_PLAIN = re.compile(r"[\w./@:+,-]*")


class Place(NamedTuple):
    """A line of a file; ``str()`` is ``compose.yaml:12``."""

    file: Path
    line: int

    def __str__(self) -> str:
        return f"{from_here(self.file)}:{self.line}"

    @property
    def show(self) -> str:
        """Return the command that prints the line."""
        return f"sed -n {self.line}p {as_typed(self.file)}"


class SourceLines:
    """Find keys in the last of the user's files that has them, as Compose does; ``roots``: file → top node."""

    def __init__(self, roots: Mapping[Path, yaml.Node | None]) -> None:
        self.roots = roots

    def place(self, *path: str) -> Place:
        """Return the line of a key, or of the nearest above it. A list's entry is found by its text."""
        best, depth = Place(next(iter(self.roots)), 1), 0
        for file, root in self.roots.items():
            line, found = _deepest(root, path)
            if found >= depth and found:
                best, depth = Place(file, line), found
        return best

    def has(self, *path: str) -> bool:
        """Return whether the key is written in one of the files themselves, not in one that they extend or include."""
        return any(_deepest(root, path)[1] == len(path) for root in self.roots.values())


def read_lines(files: Sequence[Path]) -> SourceLines:
    """Read the YAML nodes of the files. Raises UsageError for a file that is missing, too large or nested too deep."""
    roots: dict[Path, yaml.Node | None] = {}
    for path in files:
        if not path.is_file():
            raise UsageError(f"Compose file not found: {from_here(path)}", run=f"ls {as_typed(path.parent)}")
        text = read_bytes(path, inside=None, limit_bytes=MAX_BYTES, refusal=UsageError).decode("utf-8-sig", "replace")
        roots[path] = next(iter(_roots(text, path)), None)
    return SourceLines(roots)


def _roots(text: str, path: Path) -> list[yaml.Node]:
    """Return the top node of each document; none where it is not YAML. Raises UsageError."""
    levels = 0
    event: Any
    try:
        for event in yaml.parse(text, Loader=_LOADER):  # before nodes are made of the levels, which takes a stack
            levels += isinstance(event, yaml.CollectionStartEvent) - isinstance(event, yaml.CollectionEndEvent)
            if levels > _MOST_LEVELS:
                place = Place(path, event.start_mark.line + 1)
                raise UsageError(f"{place}: nested too deep for a Compose file", run=place.show)
        return list(yaml.compose_all(text, Loader=_LOADER))
    except (yaml.YAMLError, ValueError):
        return []


def _deepest(node: yaml.Node | None, path: Sequence[str]) -> tuple[int, int]:
    """Return (line, number of the path's steps that are there)."""
    line, steps = 1, 0
    for step in path:
        if (found := _step(node, step)) is None:
            break
        line, node = found
        steps += 1
    return line, steps


def _step(node: yaml.Node | None, step: str) -> tuple[int, yaml.Node] | None:
    """Return (line, node) of a mapping's key, of a list's entry by number, or by a text that it contains."""
    if isinstance(node, yaml.MappingNode):
        merged: list[yaml.Node] = []
        for key, value in reversed(node.value):
            if key.value == step:
                return key.start_mark.line + 1, value
            if key.value == "<<":
                merged += value.value if isinstance(value, yaml.SequenceNode) else [value]
        return next((found for each in merged if (found := _step(each, step)) is not None), None)
    if isinstance(node, yaml.SequenceNode):
        if step.isdigit() and int(step) < len(node.value):
            entry = node.value[int(step)]
            return entry.start_mark.line + 1, entry
        return next(((entry.start_mark.line + 1, entry) for entry in node.value if step in _texts(entry)), None)
    return None


def _texts(node: yaml.Node) -> set[str]:
    """Return an entry's text, its parts between colons and equal signs, and the values of a mapping."""
    if isinstance(node, yaml.ScalarNode):
        text = str(node.value)
        return {text, *text.split(":"), text.partition("=")[0]}
    if isinstance(node, yaml.MappingNode):
        return {str(value.value) for _, value in node.value if isinstance(value, yaml.ScalarNode)}
    return set()


def copied(files: Sequence[Path], env: Mapping[str, str], top: str) -> tuple[tuple[str, ...], str]:
    """Copy to ``top`` the project's files that Compose reads; return those outside, and the text of those inside.

    Compose opens by path, where a script of the project may have put a link by then.
    Raises UsageError: a device, a FIFO, a file that is too large, or a name that Compose alone could resolve.
    """
    root, known = Path(os.path.realpath(files[0].parent)), _variables(files[0].parent, env)
    folders, names = {files[0].parent}, {(".env", False), *((str(file), True) for file in files)}
    seen, texts, outside = set[tuple[Path, bool]](), dict[Path, str](), dict[str, None]()
    while pending := {(_joined(folder, name), is_yaml) for folder in folders for name, is_yaml in names} - seen:
        seen |= pending
        if len(seen) > _MOST_NAMES:
            raise UsageError(f"{from_here(files[0])} names too many files", run=Place(files[0], 1).show)
        for path, is_yaml in sorted(each for each in pending if is_there(each[0])):
            is_own = path in files or _is_below(path, root)
            if not is_own:
                outside[_shown(path, files[0].parent)] = None
            target = Path(f"{top}{path}")
            (target if path.is_dir() and is_own else target.parent).mkdir(parents=True, exist_ok=True)
            if path.is_dir():
                folders.add(path)
                continue
            inside = root if is_own and path not in files else None
            data = read_bytes(path, inside=inside, limit_bytes=MAX_BYTES, refusal=UsageError)
            if is_own and (is_yaml or path not in texts):
                texts[path] = data.decode("utf-8-sig", "replace")
                if is_yaml:
                    text, more = _settled(path, texts[path], known, root, top)
                    data = text.encode("utf-8", "surrogateescape")
                    names |= more
                folders.add(path.parent)
                target.write_bytes(data)
    return tuple(outside), "\n".join(texts.values())


def _variables(folder: Path, env: Mapping[str, str]) -> dict[str, str]:
    """Return what Compose puts into names: of .env only plain values; another keeps its dollar, and so is refused."""
    files = [folder / name for name in (env.get("COMPOSE_ENV_FILES") or ".env").split(",")]
    contents = (read_bytes(file, inside=None, refusal=UsageError) for file in files if is_there(file))
    texts = [content.decode("utf-8", "replace") for content in contents]
    found = {name: value.strip() for name, value in _SET.findall("\n".join(texts))}
    return {name: value if _PLAIN.fullmatch(value) else "$" for name, value in found.items()} | dict(env)


def _settled(
    path: Path, text: str, known: Mapping[str, str], root: Path, top: str
) -> tuple[str, set[tuple[str, bool]]]:
    """Return a file's text in which each name of a file is written out, and (name, is a Compose file) of each."""
    named, written = set[tuple[str, bool]](), dict[int, tuple[int, str]]()
    for node, is_yaml in _names_in(_roots(text, path)):
        name = _VARIABLE.sub(lambda match: _value(match, known), node.value)
        if "$" in name:
            place = Place(path, node.start_mark.line + 1)
            raise UsageError(f"{place}: the name {node.value} depends on variables of the project", run=place.show)
        whole = _joined(path.parent, name := os.path.expanduser(name))  # noqa: PTH111  Path's raises for nobody's home
        named.add((name, is_yaml))
        if "://" not in name and is_there(whole) and not _is_below(whole, root):
            name = os.path.realpath(whole)
        elif name.startswith("/"):
            name = f"{top}{whole}" if _is_below(whole, root) else name
        if name != node.value:
            written[node.start_mark.index] = (node.end_mark.index, json.dumps(name, ensure_ascii=False))
    for start, (end, name) in sorted(written.items(), reverse=True):
        text = text[:start] + name.replace("$", "$$") + ("\n" if text[start:end].endswith("\n") else "") + text[end:]
    return text, named


def _value(match: re.Match[str], known: Mapping[str, str]) -> str:
    """Return a variable's value, or its default where it is unset or, after a colon, empty."""
    value, how = known.get(match[1] or match[2]), match[3]
    return value if value or (value is not None and how != ":-") else match[4] or ""


def _joined(folder: Path, name: str) -> Path:
    return Path(os.path.normpath(folder / name))


def _is_below(path: Path, root: Path) -> bool:
    return Path(os.path.realpath(path)).is_relative_to(root)


def _shown(path: Path, folder: Path) -> str:
    """Return where a path leads, and its own name if that is the project's."""
    if not path.is_relative_to(folder):
        return str(path)
    return f"{os.path.realpath(path)} (./{path.relative_to(folder)} is a link there)"


def _names_in(roots: Sequence[yaml.Node]) -> Iterator[tuple[yaml.ScalarNode, bool]]:
    """Yield the names of files, however they are aliased, and whether each may be a Compose file."""
    pending, seen = [(root, ("", "", "")) for root in roots], set[tuple[int, tuple[str, str, str]]]()
    while pending:
        node, keys = pending.pop()
        key, above, top = keys
        if (id(node), keys) in seen or (above in _NAMING_NONE and top != "services"):  # a service may have such a name
            continue
        seen.add((id(node), keys))
        if isinstance(node, yaml.SequenceNode):
            pending += [(each, keys) for each in node.value]
        elif isinstance(node, yaml.MappingNode):
            for name, each in node.value:
                pending.append((each, keys if name.value == "<<" else (str(name.value), key, above)))
        elif isinstance(node, yaml.ScalarNode) and key in _NAMING:
            is_text = {key, above} & _NAMING_TEXTS or (top in ("secrets", "configs") and above != "extends")
            yield node, not is_text
