"""The project's files as they are parsed: each once, and no more of them than a plan may wait for."""

from __future__ import annotations

import ast
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import TypeAlias

from seatrial.errors import TargetError
from seatrial.job.reading.flow import Flow
from seatrial.job.reading.modules import is_file
from seatrial.job.reading.newest_syntax import least_python
from seatrial.job.reading.unreadable import unreadable
from seatrial.system.project_files import read_bytes
from seatrial.system.source import MAX_BYTES, MOST_MARKS, UnreadableSourceError, marks, parse_source

#: Reading ends there: it is for hints, and what a plan waits for.
_MAX_FILES = 500
_MOST_MARKS, _MOST_BYTES = 3 * MOST_MARKS, 10 * MAX_BYTES

Import: TypeAlias = ast.Import | ast.ImportFrom

#: A module's top (""), or one of its functions.
Unit: TypeAlias = tuple[Path, str]


@dataclass
class Module:
    """A module of the project.

    Attributes:
        bound: name in it → (file, name there), for what it imports from the project; the name is None for a module.
        types: variable → the class that it was made of.
    """

    path: Path
    shown: str
    flow: Flow
    bound: dict[str, tuple[Path, str | None]] = field(default_factory=dict)
    types: dict[str, str] = field(default_factory=dict)


class ParsedModules:
    """Parses files on demand.

    Args:
        start: the script. It must parse; a module that does not may never be imported.
        inside: nothing is read elsewhere, wherever an import points.
        provided: whether an import in a file is there without an installed package.
        any_python: it may be written for another Python than this one: that of a ready image.

    Attributes:
        broken: files that did not parse. syntax: file → (its newest syntax, ``net.py:7``).
    """

    def __init__(
        self, project: Path, start: Path, inside: Path, provided: Callable[[Path, Import], bool], *, any_python: bool
    ) -> None:
        self.project, self.start, self.inside = project, start, inside
        self.any_python = any_python
        self.broken: dict[Path, UnreadableSourceError] = {}
        self.syntax: dict[Path, tuple[tuple[int, int], str]] = {}
        self._provided = provided
        self._modules: dict[Path, Module | None] = {}
        self._bytes_left, self._marks_left = _MOST_BYTES, _MOST_MARKS

    def at(self, path: Path) -> Module | None:
        """The file's module; None: it is too long, or one too many, or does not parse.

        Raises TargetError: it is the script itself, and cannot be read or parsed.
        """
        if path not in self._modules:
            if len(self._modules) >= _MAX_FILES:
                return None
            tree = self._parse(path, required=path == self.start)
            self._modules[path] = None
            if tree is not None:
                flow = Flow(tree, main=path == self.start, provided=lambda node: self._provided(path, node))
                self._modules[path] = Module(path, self.shown(path), flow)
        return self._modules[path]

    def known(self) -> list[Module]:
        """Those parsed so far."""
        return [module for module in self._modules.values() if module is not None]

    def files(self) -> tuple[str, ...]:
        """Names of the files that were looked at, the unreadable ones too."""
        return tuple(self.shown(path) for path in self._modules)

    def shown(self, path: Path) -> str:
        """The file's name in the project."""
        return str(path.relative_to(self.project)) if path.is_relative_to(self.project) else path.name

    def refuse_python_2(self, path: Path) -> None:
        """Raises TargetError: the file, imported in any case, is Python 2, which no image of ours runs."""
        if (error := self.broken.get(path)) is not None and error.python_2 and not self.any_python:
            raise unreadable(error, path)

    def _parse(self, path: Path, *, required: bool) -> ast.Module | None:
        """The file's tree; None of one that is too long, which then shows nothing."""
        try:
            if is_file(path) and path.stat().st_size > min(MAX_BYTES, self._bytes_left):
                return None
            source = read_bytes(path, inside=self.inside, limit_bytes=MAX_BYTES, refusal=TargetError)
            self._bytes_left -= len(source)
            if (count := marks(source)) > min(MOST_MARKS, self._marks_left):
                return None
            self._marks_left -= count
            tree = parse_source(source, self.shown(path))
            if (least := least_python(tree, source)) is not None:
                self.syntax[path] = (least[0], f"{self.shown(path)}:{least[1]}")
            return tree
        except TargetError:
            if required:
                raise
        except UnreadableSourceError as error:
            if required and not (self.any_python and error.grammar):
                raise unreadable(error, path) from None
            self.broken[path] = error
        return None
