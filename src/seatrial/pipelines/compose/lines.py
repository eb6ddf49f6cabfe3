"""Where in the user's files a key stands. Only that: what it means, Compose says itself."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from seatrial.errors import UsageError
from seatrial.system.project_files import read_bytes
from seatrial.system.typed_path import as_typed, from_here

#: A Compose file of a hundred services has 100 KB.
MAX_BYTES = 1_000_000
_MOST_LEVELS = 50

_LOADER: Any = getattr(yaml, "CSafeLoader", yaml.SafeLoader)


@dataclass(frozen=True)
class Place:
    """A line of a file; ``str()`` is ``compose.yaml:12``."""

    file: Path
    line: int

    def __str__(self) -> str:
        return f"{from_here(self.file)}:{self.line}"


@dataclass(frozen=True)
class Document:
    """One file as text and as YAML's nodes."""

    path: Path
    text: str
    root: yaml.Node | None


def read_document(path: Path) -> Document:
    """Raises UsageError, with the line where there is one: no such file, not text, not YAML."""
    text = read_bytes(path, inside=None, limit_bytes=MAX_BYTES, refusal=UsageError).decode("utf-8-sig", "replace")
    try:
        _refuse_depth(text, path)
        root = next(iter(yaml.compose_all(text, Loader=_LOADER)), None)
    except (yaml.YAMLError, ValueError) as error:
        mark = getattr(error, "problem_mark", None)
        if mark is not None and mark.index >= len(text.rstrip()):  # what was opened earlier has no end
            mark = getattr(error, "context_mark", None) or mark
        line = min(mark.line + 1, len(text.rstrip().splitlines()) or 1) if mark is not None else 1
        problem = _plain(error, text, line) or str(error).splitlines()[0]
        raise UsageError(
            f"{Place(path, line)}: this is not YAML: {problem}",
            run=f"sed -n {max(1, line - 1)},{line}p {as_typed(path)}",
        ) from error
    if root is None:
        raise UsageError(f"{from_here(path)} is empty", run=f"ls -l {as_typed(path)}")
    if not isinstance(root, yaml.MappingNode):
        line = root.start_mark.line + 1
        raise UsageError(
            f"{Place(path, line)}: a Compose file begins with a key such as services:", run=f"head {as_typed(path)}"
        )
    return Document(path, text, root)


def _plain(error: Exception, text: str, line: int) -> str | None:
    """The parser's words, where it has none that say what to mend."""
    problem: str | None = getattr(error, "problem", None)
    if problem is None:
        return None
    lines = text.splitlines()
    if line <= len(lines) and "\t" in lines[line - 1][: len(lines[line - 1]) - len(lines[line - 1].lstrip())]:
        return "a tab at the beginning of a line, where YAML takes spaces alone"
    mark = getattr(error, "problem_mark", None)
    if mark is not None and mark.index >= len(text.rstrip()):
        return "the file ends inside of a bracket or a quote"
    return problem


def _refuse_depth(text: str, path: Path) -> None:
    """Before nodes are made of it, which takes a stack. Raises YAMLError, UsageError."""
    levels = 0
    event: Any
    for event in yaml.parse(text, Loader=_LOADER):
        levels += isinstance(event, yaml.CollectionStartEvent) - isinstance(event, yaml.CollectionEndEvent)
        if levels > _MOST_LEVELS:
            line = event.start_mark.line + 1
            raise UsageError(f"{Place(path, line)}: nested too deep for a Compose file", run=f"sed -n {line}p {path}")


class Lines:
    """Looks keys up in the files, in the last one that has them: that is the one which Compose takes."""

    def __init__(self, documents: Sequence[Document]) -> None:
        self.documents = tuple(documents)

    def place(self, *path: str) -> Place:
        """Of a key, or of the nearest above it that is written down. A list's entry is found by its text."""
        best, depth = Place(self.documents[0].path, 1), 0
        for document in self.documents:
            line, found = _deepest(document.root, path)
            if found >= depth and found:
                best, depth = Place(document.path, line), found
        return best

    def has(self, *path: str) -> bool:
        """Whether the key is written in one of the files themselves, not in one that they extend or include."""
        return any(_deepest(document.root, path)[1] == len(path) for document in self.documents)

    def node(self, *path: str) -> yaml.Node | None:
        """What stands there, in the last file that has it."""
        found = [node for document in self.documents if (node := _node(document.root, path)) is not None]
        return found[-1] if found else None

    def duplicates(self) -> Iterator[tuple[Place, str]]:
        """Keys of one mapping that are written twice."""
        for document in self.documents:
            for node in _mappings(document.root):
                seen: dict[str, int] = {}
                for key, _ in node.value:
                    if key.value in seen and key.value != "<<":
                        yield Place(document.path, key.start_mark.line + 1), str(key.value)
                    seen[str(key.value)] = key.start_mark.line


def _deepest(node: yaml.Node | None, path: Sequence[str]) -> tuple[int, int]:
    """(line, how many steps of the path there are)."""
    line, steps = 1, 0
    for step in path:
        found = _step(node, step)
        if found is None:
            break
        line, node = found
        steps += 1
    return line, steps


def _node(node: yaml.Node | None, path: Sequence[str]) -> yaml.Node | None:
    for step in path:
        found = _step(node, step)
        if found is None:
            return None
        node = found[1]
    return node


def _step(node: yaml.Node | None, step: str) -> tuple[int, yaml.Node] | None:
    """(line, node) of a mapping's key, of a list's entry by number, or by a text that begins or stands in it."""
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
    """An entry's text, its parts between colons and equal signs, and the values of a mapping."""
    if isinstance(node, yaml.ScalarNode):
        text = str(node.value)
        return {text, *text.split(":"), text.partition("=")[0]}
    if isinstance(node, yaml.MappingNode):
        return {str(value.value) for _, value in node.value if isinstance(value, yaml.ScalarNode)}
    return set()


def _mappings(node: yaml.Node | None) -> Iterator[yaml.MappingNode]:
    """Every mapping once; an anchor's is met through each of its aliases."""
    pending, seen = [node], set[int]()
    while pending:
        current = pending.pop()
        if current is None or id(current) in seen or isinstance(current, yaml.ScalarNode):
            continue
        seen.add(id(current))
        if isinstance(current, yaml.MappingNode):
            yield current
            pending += [value for _, value in current.value]
        elif isinstance(current, yaml.SequenceNode):
            pending += current.value
