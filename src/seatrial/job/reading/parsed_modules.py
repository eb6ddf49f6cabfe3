"""The project's files as they are parsed: each once, and no more of them than a plan may wait for."""

from __future__ import annotations

import ast
import re
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import TypeAlias

from seatrial.errors import TargetError
from seatrial.job.reading.flow import Flow
from seatrial.job.reading.modules import is_file
from seatrial.system.newer_syntax import in_old_syntax
from seatrial.system.project_files import read_bytes
from seatrial.system.source import MAX_BYTES, MOST_MARKS, UnreadableSourceError, marks, parse_source
from seatrial.system.text import as_typed

#: Most files read: reading is for hints, and a plan waits for it.
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
        types: variable → the class that it was made of. names: see imported_names.
    """

    path: Path
    shown: str
    flow: Flow
    source: bytes
    bound: dict[str, tuple[Path, str | None]] = field(default_factory=dict)
    types: dict[str, str] = field(default_factory=dict)
    names: dict[str, str] = field(default_factory=dict)

    def lacks(self, name: str) -> bool:
        """Return whether the module cannot have a name: its text lacks the name and binds no names dynamically.

        A build may make modules of the package: ``_C``, ``foo.pyx``, ``foo_pb2``, ``version``.
        """
        if name.startswith("_") or name.endswith(("_pb2", "_pb2_grpc", "version")):
            return False
        by_text = rb"import[\s(\\]*\*|__getattr__|globals|locals|vars|exec|modules|attach"
        found = re.search(rb"\b%s\b|%s" % (name.encode(), by_text), self.source)
        return found is None and not any(self.path.parent.glob(f"{name}.*"))


class ParsedModules:
    """Parses files on demand.

    Args:
        start: the script. It must parse; a module that does not may never be imported.
        inside: nothing is read elsewhere, wherever an import points.
        any_python: it may be written for the Python of a ready image.

    Attributes:
        broken: files that did not parse. syntax: file → (its newest syntax, ``net.py:7``).
    """

    def __init__(self, project: Path, start: Path, inside: Path, *, any_python: bool) -> None:
        self.project, self.start, self.inside = project, start, inside
        self.any_python = any_python
        self.broken: dict[Path, UnreadableSourceError] = {}
        self.syntax: dict[Path, tuple[tuple[int, int], str]] = {}
        self._parsed: dict[Path, tuple[ast.Module, bytes] | None] = {}
        self._bytes_left, self._marks_left = _MOST_BYTES, _MOST_MARKS

    def begin(self, provided: Callable[[Path, Import], bool]) -> None:
        """Forget what was noted in modules. Args: provided: an import in a file needs no installed package."""
        self._provided = provided
        self._modules: dict[Path, Module | None] = {}

    def at(self, path: Path) -> Module | None:
        """Return the file's module; None if it is too long, or one too many, or does not parse.

        Raises TargetError: it is the script itself, and cannot be read or parsed.
        """
        if path not in self._modules:
            if len(self._modules) >= _MAX_FILES:
                return None
            if path not in self._parsed:
                self._parsed[path] = self._parse(path, required=path == self.start)
            self._modules[path] = None
            if (parsed := self._parsed[path]) is not None:
                flow = Flow(parsed[0], main=path == self.start, provided=lambda node: self._provided(path, node))
                self._modules[path] = Module(path, self.shown(path), flow, parsed[1])
        return self._modules[path]

    def known(self) -> list[Module]:
        """Return the modules parsed so far."""
        return [module for module in self._modules.values() if module is not None]

    def files(self) -> tuple[str, ...]:
        """Return the names of the files that were looked at, the unreadable ones too."""
        return tuple(self.shown(path) for path in self._modules)

    def shown(self, path: Path) -> str:
        """Return the file's path in the project; only its name if it lies elsewhere."""
        return str(path.relative_to(self.project)) if path.is_relative_to(self.project) else path.name

    def refuse_python_2(self, path: Path) -> None:
        """Refuse a file of Python 2, imported in any case, which no image of ours runs. Raises TargetError."""
        if (error := self.broken.get(path)) is not None and error.python_2 and not self.any_python:
            raise unreadable(error, path)

    def _parse(self, path: Path, *, required: bool) -> tuple[ast.Module, bytes] | None:
        """Return (a file's tree, its source); None for a long file, or an unreadable one that is not required."""
        try:
            if is_file(path) and path.stat().st_size > min(MAX_BYTES, self._bytes_left):
                return None
            source = read_bytes(path, inside=self.inside, limit_bytes=MAX_BYTES, refusal=TargetError)
            self._bytes_left -= len(source)
            if (count := marks(source)) > min(MOST_MARKS, self._marks_left):
                return None
            self._marks_left -= count
            tree = parse_source(source, self.shown(path))
            least = in_old_syntax(source.decode("utf-8-sig", "replace"))[1] if _HINTS.search(source) else None
            if least is not None:
                self.syntax[path] = (least[0], f"{self.shown(path)}:{least[1]}")
            return tree, source
        except TargetError:
            if required:
                raise
        except UnreadableSourceError as error:
            if required and not (self.any_python and error.grammar):
                raise unreadable(error, path) from None
            self.broken[path] = error
        return None


#: Words of newer syntax; modules without them need no search.
_HINTS = re.compile(
    rb"^[ \t]*(?:match[ \t(]|except[ \t]*\*|type[ \t]+\w|(?:async[ \t]+)?def[ \t]+\w+[ \t]*\[|class[ \t]+\w+[ \t]*\["
    rb"|except[ \t]+[^(:\n]+,)|\b(?:[tT][rR]?|[rR][tT])[\"']"
    rb"|\b[rR]?[fF][rR]?(?P<quote>[\"'])[^\"'\n]{0,400}\{(?:[^}\n]{0,400}?(?:(?P=quote)|\\)|[^}\"'\n]{0,400}$)",
    re.MULTILINE,
)


def unreadable(error: UnreadableSourceError, path: Path) -> TargetError:
    """Return the error to raise for the file at ``path``."""
    if error.python_2:
        return TargetError(
            f"{error.python_2}: this is Python 2, which no image that seatrial builds can run",
            cause="the target is this file or imports it at once",
            run=f"2to3 -w {as_typed(path)}   # or an image that has Python 2: seatrial run --image IMAGE …",
        )
    if error.magic:
        return notebook_error(f"{error.magic} works only in a notebook", path, "/^[[:space:]]*[%!]/d")
    cause = "it is only parsed, for its imports and GPU use; it is never run here"
    if error.grammar:
        cause = "it is not valid Python 3.8 to 3.14"
    return TargetError(str(error), cause=cause, run=f"python3 -m py_compile {as_typed(path)}")


def notebook_error(message: str, file: Path, delete: str) -> TargetError:
    """Return the error for a script that was a notebook. ``delete``: what sed removes such lines by."""
    return TargetError(
        message,
        cause="a notebook exported to a script keeps its % and ! lines",
        run=f"sed -i '{delete}' {as_typed(file)}    # and list in requirements.txt what they install",
    )
