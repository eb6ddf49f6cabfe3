"""Lines: where the keys of a Compose file stand, and the further files that they name."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from seatrial.errors import UsageError
from seatrial.system.project_files import is_there, read_bytes
from seatrial.system.typed_path import as_typed, from_here

#: A Compose file of a hundred services has 100 KB.
MAX_BYTES = 1_000_000
_MOST_LEVELS = 50

_LOADER: Any = getattr(yaml, "CSafeLoader", yaml.SafeLoader)

#: Keys that name a file, wherever they stand.
_NAMING = ("include", "path", "project_directory", "file", "env_file", "label_file")

#: ``$NAME`` and ``${NAME:-default}``.
_VARIABLE = re.compile(r"\$\{?(\w+)(?::?-([^{}]*))?\}?")


@dataclass(frozen=True)
class Place:
    """A line of a file; ``str()`` is ``compose.yaml:12``."""

    file: Path
    line: int

    def __str__(self) -> str:
        return f"{from_here(self.file)}:{self.line}"

    @property
    def show(self) -> str:
        """The command that prints the line."""
        return f"sed -n {self.line}p {as_typed(self.file)}"


class Lines:
    """Find keys in the user's files, in the last one that has them: that is the one which Compose takes.

    Args:
        roots: file → its top node; None for a file that is not YAML, which Compose refuses.
    """

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


def read_lines(files: Sequence[Path]) -> Lines:
    """Read the YAML nodes of the files. Raises UsageError for a file that is missing, too large or nested too deep."""
    roots: dict[Path, yaml.Node | None] = {}
    for path in files:
        if not path.is_file():
            raise UsageError(f"Compose file not found: {from_here(path)}", run=f"ls {as_typed(path.parent)}")
        text = read_bytes(path, inside=None, limit_bytes=MAX_BYTES, refusal=UsageError).decode("utf-8-sig", "replace")
        try:
            _refuse_depth(text, path)
            roots[path] = next(iter(yaml.compose_all(text, Loader=_LOADER)), None)
        except (yaml.YAMLError, ValueError):
            roots[path] = None
    return Lines(roots)


def _refuse_depth(text: str, path: Path) -> None:
    """Count levels before nodes are made of them, which takes a stack. Raises YAMLError, UsageError."""
    levels = 0
    event: Any
    for event in yaml.parse(text, Loader=_LOADER):
        levels += isinstance(event, yaml.CollectionStartEvent) - isinstance(event, yaml.CollectionEndEvent)
        if levels > _MOST_LEVELS:
            place = Place(path, event.start_mark.line + 1)
            raise UsageError(f"{place}: nested too deep for a Compose file", run=place.show)


def _deepest(node: yaml.Node | None, path: Sequence[str]) -> tuple[int, int]:
    """Return (line, how many steps of the path there are)."""
    line, steps = 1, 0
    for step in path:
        found = _step(node, step)
        if found is None:
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
        for entry in node.value:
            if step in _texts(entry):
                return entry.start_mark.line + 1, entry
    return None


def _texts(node: yaml.Node) -> set[str]:
    """Return an entry's text, its parts between colons and equal signs, and the values of a mapping."""
    if isinstance(node, yaml.ScalarNode):
        text = str(node.value)
        return {text, *text.split(":"), text.partition("=")[0]}
    if isinstance(node, yaml.MappingNode):
        return {str(value.value) for _, value in node.value if isinstance(value, yaml.ScalarNode)}
    return set()


def named_files(files: Sequence[Path], env: Mapping[str, str]) -> tuple[tuple[str, ...], str]:
    """Follow what the files extend, include and take variables from, before Compose opens any of it.

    Returns those outside, as Compose reads their names, and the text of those inside.
    Raises UsageError for a device, a FIFO, or a file that is too large.
    """
    root = Path(os.path.realpath(files[0].parent))
    pending, seen = [*files, files[0].parent / ".env"], dict[Path, str]()
    outside: dict[str, None] = {}
    while pending:
        path = pending.pop()
        if path in seen or not is_there(path):
            continue
        is_own = path in files or Path(os.path.realpath(path)).is_relative_to(root)
        if not is_own:
            outside[str(path)] = None
        if path.is_dir():
            continue
        text = read_bytes(path, inside=None, limit_bytes=MAX_BYTES, refusal=UsageError).decode("utf-8", "replace")
        if not is_own:
            continue
        seen[path] = text
        for name in _names_in(read_lines([path]).roots[path]):
            written = _VARIABLE.sub(lambda match: env.get(match[1]) or match[2] or "", name)
            if "$" in written or "://" in written:
                outside[written] = None
            pending.append(Path(os.path.normpath(path.parent / Path(written).expanduser())))
    return tuple(outside), "\n".join(seen.values())


def _names_in(root: yaml.Node | None) -> Iterator[str]:
    """Yield the names of files, however they are aliased."""
    pending, seen = [(root, "")], set[tuple[int, str]]()
    while pending:
        node, key = pending.pop()
        if (id(node), key) in seen:
            continue
        seen.add((id(node), key))
        if isinstance(node, yaml.SequenceNode):
            pending += [(each, key) for each in node.value]
        elif isinstance(node, yaml.MappingNode):
            pending += [(value, str(name.value)) for name, value in node.value]
        elif node is not None and key in _NAMING:
            yield str(node.value)
