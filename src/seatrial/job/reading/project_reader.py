"""Reading a script and the modules of its project that it imports, from the script outwards, as Python would."""

from __future__ import annotations

import ast
import glob
import os
import sys
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import TypeAlias

from seatrial.errors import TargetError
from seatrial.job.reading.flow import Flow, Seen
from seatrial.job.reading.modules import is_file, is_folder, locate_module
from seatrial.job.reading.newest_syntax import least_python
from seatrial.job.reading.signs import (
    MOST_PARTS,
    TELLING,
    asserted_version,
    dotted,
    host_path,
    modules_of,
    signs,
    texts_of,
)
from seatrial.system.project_files import read_bytes
from seatrial.system.source import MAX_BYTES, MOST_MARKS, UnreadableSourceError, marks, parse_source
from seatrial.system.typed_path import as_typed

#: Reading ends there: it is for hints, and what a plan waits for.
_MAX_FILES = 500
_MOST_MARKS, _MOST_BYTES = 3 * MOST_MARKS, 10 * MAX_BYTES
_MOST_NAMES = 1_000
_MOST_UNITS = 5_000
_MOST_FOLDERS = 200
_MOST_PATHS = 100

#: A project with one of these can be installed with pip, which then makes its packages importable.
_PACKAGING = ("setup.py", "setup.cfg", "pyproject.toml")

#: Names of one ``from x import …`` that are looked for as files.
_MOST_ALIASES = 200

_Import: TypeAlias = ast.Import | ast.ImportFrom


@dataclass
class Reading:
    """What was seen; of everything the first sight, ``file.py:line``.

    Attributes:
        needed, optional: dotted names of modules that are not the project's.
        paths: literal path that may lie outside of the project → where.
        missing: modules of the project's packages that are needed and not there.
        asserted: module → (the version that an ``assert`` asks for, where).
        least_python: the newest syntax in what runs in any case, ``((3, 10), "net.py:7")``.
        signs, certain_signs: kind of sign → evidence; ``certain`` where the code runs in any case.
    """

    needed: dict[str, str] = field(default_factory=dict)
    optional: dict[str, str] = field(default_factory=dict)
    missing: dict[str, str] = field(default_factory=dict)
    signs: dict[str, str] = field(default_factory=dict)
    certain_signs: dict[str, str] = field(default_factory=dict)
    asserted: dict[str, tuple[str, str]] = field(default_factory=dict)
    paths: dict[str, str] = field(default_factory=dict)
    files: tuple[str, ...] = ()
    import_roots: tuple[str, ...] = ()
    least_python: tuple[tuple[int, int], str] | None = None


@dataclass
class _Module:
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


#: A module's top (""), or one of its functions.
_Unit: TypeAlias = tuple[Path, str]


class ProjectReader:
    """Walks from the script through what it calls and imports: first what runs in any case, then what may run."""

    def __init__(self, project: Path, roots: list[Path], inside: Path, *, any_python: bool = False) -> None:
        self.project = project
        self.any_python = any_python  # it may be written for another Python than this one: that of a ready image
        self.inside = inside  # nothing is read elsewhere, wherever an import points
        self.roots = list(dict.fromkeys(roots))
        self.added: list[Path] = []  # by the script, to sys.path
        self.own: set[str] = set()  # top-level names under which the project has something
        self.found_under: dict[Path, None] = {}
        self.packaged: list[Path] = []
        self.reading = Reading()
        self.modules: dict[Path, _Module | None] = {}
        self.broken: dict[Path, UnreadableSourceError] = {}
        self.syntax: dict[Path, tuple[tuple[int, int], str]] = {}
        self.bytes_left, self.marks_left = _MOST_BYTES, _MOST_MARKS
        self.certain: list[_Unit] = []
        self.perhaps: list[_Unit] = []
        self.visited: set[_Unit] = set()
        self.mentioned: set[str] = set()
        self.located: dict[tuple[str, Path | None], list[tuple[Path, Path] | None]] = {}
        self._is_package: bool | None = None
        self._top_folders: list[Path] | None = None

    def read(self, start: Path) -> Reading:
        """Raises TargetError: the script itself cannot be read or parsed."""
        self.start = start
        self._module(start)
        self.certain.append((start, ""))
        while self.certain:
            self._visit(self.certain.pop(0), certain=True)
        while self.perhaps or self._mention():
            self._visit(self.perhaps.pop(0), certain=False)
        for modules in (self.reading.needed, self.reading.optional):
            for name in [each for each in modules if each.partition(".")[0] in self.own]:
                del modules[name]
        usual = {self.project, self.project / "src", *self.packaged} - {start.parent}
        own = [root for root in self.found_under if root in usual]
        self.reading.import_roots = tuple(str(root.relative_to(self.project)) for root in own)
        self.reading.files = tuple(self._shown(path) for path, module in self.modules.items())
        return self.reading

    def _mention(self) -> bool:
        """Queue functions that code which was read speaks of, and modules that only a condition imports."""
        for path, module in list(self.modules.items()):
            if module is None:
                continue
            for name, function in module.flow.functions.items():
                owner, _, known = name.rpartition(".")
                # Calling a class runs its __init__, using it its other methods of that kind.
                spoken_of = (owner if known.startswith("__") else known) in self.mentioned or function.decorator_list
                if (path, name) not in self.visited and spoken_of:
                    self.perhaps.append((path, name))
        return bool(self.perhaps)

    def _visit(self, unit: _Unit, *, certain: bool) -> None:
        path, name = unit
        module = self._module(path)
        if certain:
            self._needs(path)
        if unit in self.visited or module is None or len(self.visited) >= _MOST_UNITS:
            self.visited.add(unit)
            return
        self.visited.add(unit)
        for seen in module.flow.inside(name) if name else module.flow.top():
            self._note(module, name, seen, certain)

    def _note(self, module: _Module, unit: str, seen: Seen, certain: bool) -> None:
        node = seen.node
        if isinstance(node, ast.Name):  # nearly half of all nodes
            self.mentioned.add(node.id)
            return
        if isinstance(node, ast.Attribute):
            self.mentioned.add(node.attr)
        elif isinstance(node, ast.Assign):
            self._remember_type(module, node)
        elif isinstance(node, ast.Assert) and certain and seen.certain and (asserted := asserted_version(node)):
            self.reading.asserted.setdefault(asserted[0], (asserted[1], f"{module.shown}:{node.lineno}"))
        if (path := host_path(node)) and len(self.reading.paths) < _MOST_PATHS:
            self.reading.paths.setdefault(path, f"{module.shown}:{getattr(node, 'lineno', 1)}")
        if isinstance(node, TELLING):
            for sign, shown in signs(node):
                evidence = f"{module.shown}:{node.lineno} {shown}"
                self.reading.signs.setdefault(sign, evidence)
                if certain and seen.certain:
                    self.reading.certain_signs.setdefault(sign, evidence)
        if isinstance(node, _Import) and len(self.located) < _MOST_NAMES:
            self._follow(module, node, needed=certain and seen.needed)
        elif isinstance(node, ast.Call):
            self._extend_path(module, node)
            if certain and seen.certain:
                self.certain += self._called(module, unit, node)

    def _needs(self, path: Path) -> None:
        """A module is imported in any case. Raises TargetError: it is Python 2, which no image of ours runs."""
        if (error := self.broken.get(path)) is not None and error.python_2 and not self.any_python:
            raise _unreadable(error, path)
        least = self.syntax.get(path)
        if least is not None and (self.reading.least_python is None or least > self.reading.least_python):
            self.reading.least_python = least

    # ------------------------------------------------------------------ files

    def _shown(self, path: Path) -> str:
        return str(path.relative_to(self.project)) if path.is_relative_to(self.project) else path.name

    def _module(self, path: Path) -> _Module | None:
        if path not in self.modules:
            if len(self.modules) >= _MAX_FILES:
                return None
            tree = self._parse(path, required=path == self.start)
            self.modules[path] = None
            if tree is not None:
                flow = Flow(tree, main=path == self.start, provided=lambda node: self._provided(path, node))
                self.modules[path] = _Module(path, self._shown(path), flow)
        return self.modules[path]

    def _parse(self, path: Path, *, required: bool) -> ast.Module | None:
        """The file's tree; None of one that is too long, which then shows nothing.

        A module that does not parse may never be imported: only the script itself must.
        """
        try:
            if is_file(path) and path.stat().st_size > min(MAX_BYTES, self.bytes_left):
                return None
            source = read_bytes(path, inside=self.inside, limit_bytes=MAX_BYTES, refusal=TargetError)
            self.bytes_left -= len(source)
            if (count := marks(source)) > min(MOST_MARKS, self.marks_left):
                return None
            self.marks_left -= count
            tree = parse_source(source, self._shown(path))
            if (least := least_python(tree, source)) is not None:
                self.syntax[path] = (least[0], f"{self._shown(path)}:{least[1]}")
            return tree
        except TargetError:
            if required:
                raise
        except UnreadableSourceError as error:
            if required and not (self.any_python and error.grammar):
                raise _unreadable(error, path) from None
            self.broken[path] = error
        return None

    # ---------------------------------------------------------------- imports

    def _follow(self, module: _Module, node: _Import, *, needed: bool) -> None:
        """Queue files of the project that an import names; note the other modules."""
        for name, roots, bound in _imported(node, module.path, self.roots):
            parts = name.split(".", MOST_PARTS)[:MOST_PARTS]
            found = self._located(parts, roots)
            if found is None:
                return
            if roots is self.roots and any(found):
                self.own.add(parts[0])
            for each in found:
                if each is not None:
                    (self.certain if needed else self.perhaps).append((each[0], ""))
                    if roots is self.roots:
                        self.found_under.setdefault(each[1])
            is_module = isinstance(node, ast.Import) or name == node.module  # and no name in a module
            if needed and is_module and found[-1] is None and (any(found[:-1]) or roots is not self.roots):
                self._note_missing(module, node, parts, roots)
            if found[-1] is not None:
                for local, inner in bound.items():
                    module.bound[local] = (found[-1][0], inner)
            modules = self.reading.needed if needed else self.reading.optional
            if name in modules or roots is not self.roots or any(found) or self._is_projects(module, parts[0]):
                continue
            modules[name] = f"{module.shown}:{node.lineno}"

    def _note_missing(self, module: _Module, node: _Import, parts: list[str], roots: list[Path]) -> None:
        """A module inside one of the project's packages that is not there: setup.py writes it, or a compiler does."""
        for root in roots:
            inside = root.joinpath(*parts[:-1])
            if is_folder(inside / parts[-1]) or any(inside.glob(f"{glob.escape(parts[-1])}.*")):
                return
        dots = "." * (node.level if isinstance(node, ast.ImportFrom) else 0)
        self.reading.missing.setdefault(dots + ".".join(parts), f"{module.shown}:{node.lineno}")

    def _located(self, parts: list[str], roots: list[Path]) -> list[tuple[Path, Path] | None] | None:
        """(file, root) of the module and of the packages that it is in; None when too many names were looked for."""
        key = (".".join(parts), None if roots is self.roots else roots[0])  # None: an absolute import
        if key not in self.located:
            if len(self.located) >= _MOST_NAMES:
                return None
            if roots is self.roots:
                self._extend_by_package(parts[0])
            self.located[key] = [locate_module(".".join(parts[: end + 1]), roots) for end in range(len(parts))]
        return self.located[key]

    def _is_projects(self, module: _Module, top: str) -> bool:
        """A folder without ``__init__.py``, or a file beside the one that imports it.

        Of a folder where Python looks first, ``wandb/`` or ``tensorflow/``, this is not known: an installed package of
        that name goes before it.
        """
        first = {self.start.parent, self.project, self.project / "src"}
        if any(is_folder(root / top) for root in (*self.roots, module.path.parent) if root not in first):
            return True
        return is_file(module.path.parent / f"{top}.py")

    def _extend_by_package(self, top: str) -> None:
        """A package of the project in ``lib/`` or ``python/`` is imported once the project is installed."""
        if self._is_package is None:
            self._is_package = any(is_file(self.project / name) for name in _PACKAGING)
        if not self._is_package or top in sys.stdlib_module_names or locate_module(top, self.roots):
            return
        for folder in self._folders():
            if is_file(folder / top / "__init__.py"):
                self.packaged.append(folder)
                self.roots.append(folder)
                self.located.clear()
                return

    def _folders(self) -> list[Path]:
        """Folders at the project's top, hidden ones aside."""
        if self._top_folders is None:
            try:
                inside = sorted(self.project.iterdir())[:_MOST_FOLDERS]
            except OSError:
                inside = []
            self._top_folders = [each for each in inside if is_folder(each) and not each.name.startswith((".", "__"))]
        return self._top_folders

    def _provided(self, path: Path, node: _Import) -> bool:
        if isinstance(node, ast.ImportFrom) and node.level:
            return True
        tops = [name.partition(".")[0] for name in modules_of(node)]
        return all(top in sys.stdlib_module_names or locate_module(top, [path.parent, *self.roots]) for top in tops)

    def _extend_path(self, module: _Module, call: ast.Call) -> None:
        """``sys.path.append("lib")`` makes the folder one more place to look in."""
        if dotted(call.func) not in ("sys.path.append", "sys.path.insert", "site.addsitedir"):
            return
        named = [text for each in call.args for text in texts_of(each)]
        for text in named or module.flow.joined_texts():  # the folder may be made elsewhere in the module
            for base in (self.project, module.path.parent):
                folder = Path(os.path.normpath(base / text))
                ours = folder.is_relative_to(self.project) and is_folder(folder)
                if ours and folder not in self.roots and len(self.roots) < MOST_PARTS:
                    self.roots.append(folder)
                    self.added.append(folder)
                    self.located.clear()

    # ------------------------------------------------------------------ calls

    def _remember_type(self, module: _Module, node: ast.Assign) -> None:
        if isinstance(node.value, ast.Call) and len(node.targets) == 1 and isinstance(node.targets[0], ast.Name):
            module.types[node.targets[0].id] = dotted(node.value.func)

    def _called(self, module: _Module, unit: str, call: ast.Call) -> Iterator[_Unit]:
        """Functions of the project that a call runs: its own, and those that it is given by name."""
        names = [call.func, *call.args, *(keyword.value for keyword in call.keywords)]
        for each in names:
            called = dotted(each)
            if called and (each is call.func or isinstance(each, ast.Name)):
                yield from self._resolve(module, unit, called)

    def _resolve(self, module: _Module, unit: str, called: str) -> Iterator[_Unit]:
        first, _, rest = called.partition(".")
        if first == "self" and "." in unit:
            first = unit.partition(".")[0]
        elif first in module.types and rest:
            first = module.types[first]
            if "." not in first:
                yield from self._in(module, f"{first}.{rest}")
                return
        if first in module.bound:
            path, inner = module.bound[first]
            other = self._module(path)
            name = ".".join(part for part in (inner, rest) if part)
            if other is not None and name:
                yield from self._in(other, name)
        else:
            yield from self._in(module, f"{first}.{rest}" if rest else first)

    def _in(self, module: _Module, name: str) -> Iterator[_Unit]:
        flow = module.flow
        if name in flow.functions:
            yield module.path, name
        elif name in flow.bases:  # a class: calling it runs its __init__
            if f"{name}.__init__" in flow.functions:
                yield module.path, f"{name}.__init__"
        elif "." in name:  # a method of a class above
            owner, _, method = name.partition(".")
            for base in flow.bases.get(owner, ()):
                if f"{base}.{method}" in flow.functions:
                    yield module.path, f"{base}.{method}"
                    return


def read_project(project: Path, roots: list[Path], inside: Path, start: Path, *, any_python: bool = False) -> Reading:
    """The reading of a script, begun again where it puts folders on its path: they hold for what was imported before.

    Raises TargetError: the script itself cannot be read or parsed.
    """
    added: list[Path] = []
    while True:
        reader = ProjectReader(project, [*roots, *added], inside, any_python=any_python)
        reading = reader.read(start)
        if not reader.added or len(added) >= MOST_PARTS:
            return reading
        added += reader.added


def _imported(node: _Import, path: Path, roots: list[Path]) -> Iterator[tuple[str, list[Path], dict[str, str | None]]]:
    """(dotted name, roots to look under, name that it binds → name in that module) of what an import names."""
    if isinstance(node, ast.Import):
        for alias in node.names:
            bound = alias.asname or alias.name.partition(".")[0]
            yield alias.name, roots, {bound: None} if alias.asname or "." not in alias.name else {}
        return
    if node.level:
        roots = [path.parents[min(node.level, len(path.parents)) - 1]]
    prefix = node.module or ""
    inner: dict[str, str | None] = {}
    for alias in node.names[:_MOST_ALIASES]:
        submodule = f"{prefix}.{alias.name}".lstrip(".")
        if locate_module(submodule, roots):
            yield submodule, roots, {alias.asname or alias.name: None}
        else:
            inner[alias.asname or alias.name] = alias.name
    if prefix:
        yield prefix, roots, inner
        yield from ((f"{prefix}.{name}", roots, {}) for name in inner.values() if _is_foreign(prefix, roots))


def _is_foreign(prefix: str, roots: list[Path]) -> bool:
    return locate_module(prefix.partition(".")[0], roots) is None


def _unreadable(error: UnreadableSourceError, path: Path) -> TargetError:
    if error.python_2:
        return TargetError(
            f"{error.python_2}: this is Python 2, which no image that seatrial builds can run",
            cause="the target is this file or imports it at once",
            run=f"2to3 -w {as_typed(path)}   # or an image that has Python 2: seatrial run --image IMAGE …",
        )
    if error.magic:
        return notebook_error(f"{error.magic} works only in a notebook", path, "/^[[:space:]]*[%!]/d")
    python = f"{sys.version_info.major}.{sys.version_info.minor}"
    cause = "it is only parsed, for its imports and GPU use; it is never run here"
    if error.grammar:
        cause = f"parsed as Python {python}, which seatrial runs on; newer syntax needs a newer Python"
    return TargetError(str(error), cause=cause, run=f"python3 -m py_compile {as_typed(path)}")


def notebook_error(message: str, file: Path, delete: str) -> TargetError:
    """For a script that was a notebook. ``delete``: what sed removes such lines by."""
    return TargetError(
        message,
        cause="a notebook exported to a script keeps its % and ! lines",
        run=f"sed -i '{delete}' {as_typed(file)}    # and list in requirements.txt what they install",
    )
