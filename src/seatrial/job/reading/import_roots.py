"""Where Python will look for the modules that a project imports, and what it finds there."""

from __future__ import annotations

import ast
import os
import re
from collections.abc import Callable, Iterator, Sequence, Set
from functools import cache, cached_property
from pathlib import Path

from seatrial.job.reading.constants import ANY, Text
from seatrial.job.reading.modules import (
    EVERYWHERE,
    STANDARD_MODULES,
    Missing,
    folder_of,
    folders_of,
    is_empty,
    is_file,
    is_folder,
    is_package,
    locate_module,
    remedy,
)
from seatrial.job.reading.parsed_modules import Import, Module
from seatrial.job.reading.signs import MOST_PARTS, dotted, modules_of, texts_of, tops_of
from seatrial.system.project_files import PACKAGING, matching

#: Most names looked for, and modules that a pattern of names may give.
_MOST_NAMES, MOST_MODULES = 1_000, 300
#: Most names of one ``from x import …`` that are searched as files.
_MOST_ALIASES = 200


class ImportRoots:
    """Folders that modules are looked for in, the first first.

    Attributes:
        absolute: those of absolute imports. placed: of them, those that the script puts on sys.path. added: of those,
            new or moved in this reading. open: sys.path has folders that are unknown or lie outside of the project.
        folder: the working directory.
        packaged: of them, where the project's packages lie once it is installed. found_under: those that have modules.
        own: top-level names under which the project has something. missing: see Readings.
        foreign: names of installed packages, of which src/ has a folder that lacks what the code imports.
    """

    def __init__(
        self, project: Path, start: Path, roots: list[Path], folder: Path, placed: Sequence[Path], foreign: Set[str]
    ) -> None:
        self.project, self.start, self.folder = project, start, folder
        self.absolute = list(dict.fromkeys(roots))
        self.placed, self.open, self._builds = [*placed], False, False
        self.added: list[Path] = []
        self.packaged: list[Path] = []
        self.own, self.foreign = set[str](), {*foreign}
        self.found_under: dict[Path, None] = {}
        self.missing: dict[str, Missing] = {}
        self._located: dict[tuple[str, Path | None], list[tuple[Path, Path] | None] | None] = {}
        self._has_folder: Callable[[Path, str], bool] = cache(lambda root, name: is_folder(root / name))
        self._has_cython: Callable[..., bool] = cache(lambda name, *roots: _is_cython(name, [*roots]))

    @property
    def exhausted(self) -> bool:
        """Return whether the most names have been looked for."""
        return len(self._located) >= _MOST_NAMES

    def located(self, parts: list[str], roots: list[Path]) -> list[tuple[Path, Path] | None] | None:
        """Return (file, root) of the module and of its packages, None for each not found; None after too many names."""
        key = (".".join(parts), None if roots is self.absolute else roots[0])  # None: an absolute import
        if roots is self.absolute and parts[0] in self.foreign:
            return [None] * len(parts)
        if key not in self._located:
            if self.exhausted:
                return None
            if roots is self.absolute:
                self._extend_by_package(parts[0])
            self._located[key] = [locate_module(".".join(parts[: end + 1]), roots) for end in range(len(parts))]
        return self._located[key]

    def _holds(self, module: Module, top: str) -> bool:
        """Return whether ``top``, imported by the module, is the project's.

        It is a bare folder, or next to a module that changes sys.path. A folder where Python looks first may not be,
        such as ``wandb/``: an installed package of that name goes before it.
        """
        first, around = {self.start.parent, self.project, self.project / "src"}, module.path.parent
        is_bare = any(self._has_folder(root, top) for root in (*self.absolute, around) if root not in first)
        return is_bare or (is_file(around / f"{top}.py") and b"sys.path" in module.source)

    def resolved(
        self, module: Module, node: Import, at: Callable[[Path], Module | None], *, needed: bool
    ) -> Iterator[tuple[str, list[Path], bool, bool]]:
        """Bind the names of an import in a module, and yield (name, the project's files, whether it is the project's,
        whether a file is imported as a module of no package) of each module.

        Args: needed: note what is missing.
        """
        absolute = self.absolute
        if isinstance(node, ast.ImportFrom) and node.module and not node.level:  # its names may be modules of a package
            self.located([node.module.partition(".")[0]], absolute)
        for name, roots, bound in _imported_modules(node, module.path, absolute):
            self._builds |= name == "pyximport"
            parts = name.split(".", MOST_PARTS)[:MOST_PARTS]
            found = self.located(parts, roots)
            if found is None:
                return
            other = at(found[-1][0]) if found[-1] is not None else None
            lacking = [each for each in bound.values() if each not in (None, "*") and other and other.lacks(each)]
            home = found[0][1] if found[0] else next((each for each in roots if self._has_folder(each, parts[0])), None)
            guessed = roots is absolute and home not in (None, self.start.parent, self.project, *self.placed)
            is_module = isinstance(node, ast.Import) or name == node.module  # and no name in a module
            cython = found[-1] is None and self._has_cython(".".join(parts), *roots)
            folders = [root.joinpath(*parts[:-1]) for root in roots if len(parts) > 1]
            folders += [root / parts[0] for root in roots if len(parts) > 1 and is_empty(root / parts[0])]
            inside = is_module and (any(found[:-1]) or roots is not absolute or any(map(is_folder, folders)))
            if parts[1:] and not any(found) and any(is_folder(root / parts[0]) for root in roots):
                inside |= folder_of(name, self.project) is not None  # below another folder, which is to be installed
            missing = [(parts, "")] if found[-1] is None and (inside or cython) else []
            owner = parts if name != "__init__" else []
            missing += [([*owner, str(each)], other.shown) for each in lacking if other]
            level = node.level if isinstance(node, ast.ImportFrom) else 0
            for lost, where in missing if needed or guessed else ():
                fix = remedy(lost, roots, self.project, where, relative=level > 0, builds=self._builds) or ""
                if guessed and fix.startswith(("add ", "define ")) and not (parts[1:] and self._is_packaged):
                    self.foreign.add(parts[0])
                elif fix and needed:
                    self.missing.setdefault("." * level + ".".join(lost), Missing(f"{module.shown}:{node.lineno}", fix))
            if roots is absolute and parts[0] in self.foreign:  # the installed package datasets, not src/datasets
                self.added += [home] if home and parts[0] in self.own else []  # read again
                yield name, [], self._holds(module, parts[0]), False
                continue
            files = [each for each in found if each is not None]
            if roots is absolute and files:
                self.own.add(parts[0])
                self.found_under |= dict.fromkeys(root for _, root in files)
            if found[-1] is not None:
                for local, inner in bound.items():
                    module.bind(module.bound, f"*{found[-1][0]}" if local == "*" else local, (found[-1][0], inner))
            is_own = cython or roots is not absolute or bool(files) or self._holds(module, parts[0])
            file, root = found[0] or (module.path, None)
            is_alone = file.stem == name and roots is absolute and root in (self.start.parent, *self.placed)
            yield name, [file for file, _ in files], is_own, is_alone

    def matching(self, pattern: str, words: Set[str]) -> Iterator[Path]:
        """Yield files of modules by a path with ``*``, each of which stands for one of the words."""
        parts = re.compile(pattern.replace("*", "([^/]+)"))
        for root in self.absolute if words or "*" not in pattern else ():
            scripts = filter(is_file, matching(root, f"{pattern}.py", MOST_MODULES))
            packages = filter(is_file, matching(root, f"{pattern}/__init__.py", MOST_MODULES))
            names = {**{path.parent: path for path in packages}, **{path.with_suffix(""): path for path in scripts}}
            for name, path in names.items():
                made = parts.fullmatch(name.relative_to(root).as_posix())
                if made and set(made.groups()) <= words:
                    self.own.add(name.relative_to(root).parts[0])
                    self.found_under.setdefault(root)
                    yield path

    def provided(self, path: Path, node: Import) -> bool:
        """Return whether Python itself or the project has all that an import in ``path`` names."""
        if isinstance(node, ast.ImportFrom) and node.level:
            return True
        roots = [path.parent, *self.absolute]
        names = [*tops_of([node]), *modules_of(node)]  # the latter in folders without __init__.py
        found = {each.partition(".")[0] for each in names if locate_module(each, roots)}
        return tops_of([node]) <= found | STANDARD_MODULES

    def extend(self, module: Module, node: ast.AST, shown: Callable[[ast.expr], Text | None]) -> None:
        """Look in the folder of ``sys.path.append("lib")`` too, before others if the statement puts it there."""
        place, entries = _path_entries(node)
        for entry in entries:
            text = shown(entry)
            known = text is not None and ANY not in text.text
            self.open = self.open or not known
            for each in [text.text] if text and known else texts_of(entry):
                bases = [Path(os.path.normpath(base / each)) for base in (self.folder, module.path.parent)]
                own = (folder for folder in bases if folder.is_relative_to(self.project) and is_folder(folder))
                if (folder := next(own, None)) is not None:
                    self._place(folder, place)
                elif bases[0].suffix or os.path.exists(bases[0]):  # noqa: PTH110  never raises
                    self.open = True

    def _place(self, folder: Path, place: int | None) -> None:
        """Put a folder at a place in the order; with None before those where Python only looks once installed."""
        if folder in self.placed or len(self.absolute) >= MOST_PARTS:
            return
        guessed = {self.project, self.project / "src", self.folder / "src"} - {self.absolute[0], *self.placed}
        self.placed.append(folder)
        if place is None and folder in self.absolute and folder not in guessed:
            return
        others = [each for each in self.absolute if each != folder]
        last = next((at for at, each in enumerate(others) if each in guessed), len(others))
        others.insert(last if place is None else place, folder)
        if others != self.absolute:
            self.absolute[:] = others
            self.added.append(folder)
            self._located.clear()

    def names(self) -> Iterator[str]:
        """Yield the folders with modules that are not the script's own, relative to the project."""
        usual = {self.project, self.project / "src", self.folder / "src", *self.packaged} - {self.start.parent}
        yield from (str(root.relative_to(self.project)) for root in self.found_under if root in usual)

    def _extend_by_package(self, top: str) -> None:
        """Look for a package in ``lib/`` or ``python/`` too: it is imported once the project is installed."""
        if not self._is_packaged or top in EVERYWHERE or locate_module(top, self.absolute):
            return
        for folder in self._folders:
            if is_file(folder / top / "__init__.py"):
                self.packaged.append(folder)
                self.absolute.append(folder)
                self._located.clear()
                return

    @cached_property
    def _is_packaged(self) -> bool:
        return any(is_file(self.project / name) for name in PACKAGING)

    @cached_property
    def _folders(self) -> list[Path]:
        """List the project's top folders without packages, whose modules have longer names."""
        return [each for each in folders_of(self.project, deepest=1)[1:] if not is_package(each)]


def _path_entries(node: ast.AST) -> tuple[int | None, list[ast.expr]]:
    """Return what a statement puts on sys.path, and at which place; None for the end."""
    match node:
        case ast.Call(func=func, args=[place, entry]) if dotted(func) == "sys.path.insert":
            return place.value if isinstance(place, ast.Constant) and type(place.value) is int else None, [entry]
        case ast.Call(func=func, args=[entry]) if dotted(func) in ("sys.path.append", "site.addsitedir"):
            return None, [entry]
        case (
            ast.Call(func=ast.Attribute(target, "extend"), args=[ast.List(elts=entries) | ast.Tuple(elts=entries)])
            | ast.AugAssign(target=target, value=ast.List(elts=entries) | ast.Tuple(elts=entries))
        ) if dotted(target) == "sys.path":
            return None, entries
        case (
            ast.Assign(targets=[ast.Subscript(value=target)], value=ast.List(elts=entries) | ast.Tuple(elts=entries))
            | ast.Assign(targets=[target], value=ast.BinOp(left=ast.List(elts=entries)))
        ) if dotted(target) == "sys.path":
            return 0, entries[::-1]
    return None, []


def _imported_modules(
    node: Import, path: Path, roots: list[Path]
) -> Iterator[tuple[str, list[Path], dict[str, str | None]]]:
    """Yield (dotted name, roots to look under, name that it binds → name in that module) of what an import names."""
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
        if locate_module(submodule, roots) or _is_cython(submodule, roots):
            yield submodule, roots, {alias.asname or alias.name: None}
        else:
            inner[alias.asname or alias.name] = alias.name
    if prefix or locate_module("__init__", roots):  # from . import x
        yield prefix or "__init__", roots, inner
    if prefix and inner and locate_module(prefix.partition(".")[0], roots) is None:
        yield from ((f"{prefix}.{name}", roots, {}) for name in inner.values())


def _is_cython(name: str, roots: list[Path]) -> bool:
    """Return whether the project has a Cython source of this module."""
    return any(is_file(root / f"{name.replace('.', '/')}.pyx") for root in roots)
