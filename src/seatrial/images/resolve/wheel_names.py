"""Compare imported names with ranges of an index's wheels; uv.py starts this program and bounds it.

Standard input is ``[Pythons, index, [[package, release, [dotted name, …]], …]]``; ``pkg.Net(size=)`` asks for a keyword
of what a name stands for. Standard output is
``{package: [names that the wheel lacks, newest release before it that has all, the one after that, imported names]}``.
A name that a module may make at run time does not count as lacked.
"""

from __future__ import annotations

import ast
import io
import json
import re
import sys
import zipfile
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from functools import cache, cached_property
from http.client import HTTPException
from importlib.util import resolve_name
from itertools import accumulate
from typing import Any
from urllib.request import Request, urlopen
from zlib import error as ZlibError

from packaging.utils import InvalidWheelFilename, parse_wheel_filename
from packaging.version import Version

from seatrial.images.resolve.sdist import files_of

#: Most bytes of a wheel; of its end, read first; read at once behind what is requested; of a wheel read as a whole.
_MOST_BYTES, _END, _AHEAD, _SMALL = 16 << 20, 256 << 10, 64 << 10, 3 << 20
_MOST_MEMBERS, _MOST_TEXT, _MOST_MODULES, _AT_ONCE, _MOST_SPANS, _DEEPEST = 20_000, 1_000_000, 200, 8, 8, 12

#: Texts with one of these may make modules, or names, at run time, and so may a ``__getattr__`` with one of the last.
_MAKES_MODULES = r"__path__|meta_path|sys\.modules(?!\[__name__\])|initpkg"
_MAKES_NAMES = rf"{_MAKES_MODULES}|sys\.modules|__getattr__|attach_stub|globals\(|locals\(|vars\(|exec\(|setattr"
_MAKES_OF_TORCH = r"(?m)^def __getattr__|globals\(\)(?:\.|\[(?!f.\w))|setattr\((?:sys|this|mod)|sys\.modules\[.*\] *="
_GETATTR = re.compile(r"^def __getattr__\(.*\n(?:[ \t].*\n|\n)+", re.MULTILINE)
_OPEN = re.compile(r"\bgetattr\(|import|globals|__dict__|return [\w.]+\(")
#: A name that only reports its own removal: ``def x(): raise RuntimeError("x was removed")``.
_GONE = r"(?m)^(?:def {0}\b|class {0}\b(?:(?!^\S)[\s\S])*?^[ \t]+def __init__\b).*:\s+raise \w+\([^)]*\bremoved\b"
_STAR = re.compile(r"^[ \t]*from\s+(\.*)([\w.]*)\s+import\s*\(?\s*\*", re.MULTILINE)
_COMMENT = re.compile(r"^[ \t]*#.*", re.MULTILINE)
_INSTALLED = re.compile(r"^[^/]+\.data/(?:pure|plat)lib/")


def main() -> None:
    """Write the answer; a wheel that cannot be read lacks nothing, and one that no server gave is left out."""
    pythons, index, queries = json.load(sys.stdin)

    def judged(row: tuple[str, str, list[str]]) -> dict[str, tuple[list[str], str, str, list[str]]]:
        package, release, names = row
        with suppress(OSError, HTTPException, ValueError, StopIteration):
            wheels = _wheels(index, package, pythons)
            address = next(address for version, address in wheels if str(version) == Version(release).public)
            lacks = _of(address, lambda of: ([each for each in names if of.has(each) is False], of.imports(names)))
            found, imports = lacks or ([], [])
            # A search for a module's package needs no release, and torch's wheels are a gigabyte each.
            of_it = package != "torch" and all("." in name for name in names)
            return {package: (found, *(newest_with(release, found, wheels) if found and of_it else ("", "")), imports)}
        return {}

    with ThreadPoolExecutor(_AT_ONCE) as threads:
        json.dump({name: row for each in threads.map(judged, queries) for name, row in each.items()}, sys.stdout)


def _of(address: str, read: Callable[[Modules], Any]) -> Any:
    """Return the result of ``read`` on a wheel; None for an unreadable wheel. Raises OSError, HTTPException."""
    with suppress(ValueError, zipfile.BadZipFile, ZlibError, NotImplementedError, RuntimeError, EOFError):
        return read(Modules(_Ranges(address)))
    return None


def newest_with(release: str, names: Sequence[str], wheels: Sequence[tuple[Version, str]]) -> tuple[str, str]:
    """Return the newest release before another that has all names, of those that end a minor version, and the next
    minor version, ``("1.5.3", "2.0")``; twice "" if there is none.
    """
    own, last = Version(release), dict[tuple[int, ...], tuple[Version, str]]()
    for row in wheels:
        if row[0] < own and not row[0].is_prerelease:
            last[_minor(row[0])] = max(last.get(_minor(row[0]), row), row)
    earlier = [each for each in last.values() if _minor(each[0]) < _minor(own)]
    found = [(own, ""), *sorted(earlier, reverse=True)]
    majors = [next(at for at, row in enumerate(found) if row[0].major == each[0].major) for each in found]
    newer, older = 0, len(found)  # the first lacks a name; past the last there is nothing
    places = sorted({*majors[1:], *(1 << at for at in range(_MOST_SPANS))})
    with ThreadPoolExecutor(_AT_ONCE) as threads:
        while places := [each for each in places if newer < each < older]:
            has = [*threads.map(lambda at: _of(found[at][1], lambda wheel: all(map(wheel.has, names))), places)]
            if True not in has and older == len(found):
                return "", ""
            first = has.index(True) if True in has else len(has)
            newer, older = [newer, *places][first], [*places, older][first]
            places = sorted({newer + max(1, (older - newer) * part // _AT_ONCE) for part in range(1, _AT_ONCE)})
    return (str(found[older][0]), ".".join(map(str, _minor(found[newer][0])))) if older < len(found) else ("", "")


def _minor(release: Version) -> tuple[int, ...]:
    """Return the part of a release that changes when names go: before 1.0, a package removes names in patches, too."""
    return release.release[: 2 if release.major or not release.micro else 3]


def _wheels(index: str, package: str, pythons: list[str]) -> list[tuple[Version, str]]:
    """Return (release, address) of the wheels for Linux and one of the Pythons. Raises ValueError, OSError."""
    mine, found = {f"cp{each.replace('.', '')}" for each in pythons}, []
    for file, address, _ in files_of(index, package, ""):
        with suppress(InvalidWheelFilename):
            tags = parse_wheel_filename(file)[3] if re.search(r"-any\.whl$|manylinux\w+x86_64", file) else ()
            if any(tag.interpreter in mine or tag.interpreter.startswith("py3") or tag.abi == "abi3" for tag in tags):
                found.append((Version(file.split("-")[1]), address))
    return found


def _bound(body: Sequence[ast.AST]) -> dict[str, list[ast.AST]]:
    """Return name → the nodes that bind it in a block or below its conditions."""
    found, pending = dict[str, list[ast.AST]](), [*body]
    while pending:
        node = pending.pop()
        named = [node] if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef) else []
        aliases = [each for each in getattr(node, "names", ()) if isinstance(each, ast.alias)]
        stored = [node.id] if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store) else []
        for name in (*stored, *(each.name for each in named), *(each.asname or each.name for each in aliases)):
            found.setdefault(name, []).append(node)
        pending += () if named else ast.iter_child_nodes(node)
    return found


class _Ranges(io.RawIOBase):
    """A file on a server, whose ranges are read when they are requested. Raises OSError; ValueError if too large."""

    def __init__(self, address: str) -> None:
        self.address, self.at, self.size, self.left = address, 0, 0, _MOST_BYTES
        self.parts = list[tuple[int, bytes]]()
        self._load(f"-{_END}")

    def _load(self, span: str) -> None:
        if not self.address.startswith(("https://", "http://")):
            raise ValueError(self.address)
        with urlopen(Request(self.address, headers={"Range": f"bytes={span}"})) as answer:
            data = answer.read(self.left + 1)
            found = re.fullmatch(r"bytes (\d+)-\d+/(\d+)", answer.headers.get("Content-Range", ""))
        self.left -= len(data)
        if self.left < 0:
            raise ValueError("too large")
        start, self.size = (int(found[1]), int(found[2])) if found else (0, len(data))
        self.parts.append((start, data))

    def seekable(self) -> bool:
        return True

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        self.at = offset + (0, self.at, self.size)[whence]
        return self.at

    def tell(self) -> int:
        return self.at

    def read(self, size: int = -1) -> bytes:
        end = min(self.size, self.at + size) if size >= 0 else self.size
        for _ in range(2):
            for start, data in self.parts:
                if start <= self.at and end <= start + len(data):
                    self.at, at = end, self.at
                    return data[at - start : end - start]
            small = self.size <= _SMALL
            self._load(f"0-{self.size - 1}" if small else f"{self.at}-{min(self.size, max(end, self.at + _AHEAD)) - 1}")
        raise ValueError("no such range")


class Modules:
    """The modules of a wheel; their names are paths without an ending."""

    def __init__(self, wheel: io.RawIOBase) -> None:
        self.archive = zipfile.ZipFile(wheel)
        self.files = {_INSTALLED.sub("", each.filename): each for each in self.archive.infolist()[:_MOST_MEMBERS]}
        self.texts = dict[str, str | None]()
        self.bound = cache(lambda module: _bound(self._statements(module)))
        self.takes = cache(self._takes)

    @cached_property
    def names(self) -> set[str]:
        """Return all modules and folders."""
        found = set[str]()
        for path in self.files:
            *folders, file = path.split("/")
            found |= {*accumulate(folders, "{}/{}".format)}
            if file.endswith((".py", ".pyi", ".so", ".pyd", ".pyc")):
                found.add("/".join((*folders, file.partition(".")[0])))
        return found

    def has(self, name: str) -> bool | None:
        """Return whether a module, or the text of one, has a dotted name; None if it may be made at run time."""
        called, is_call, keyword = name.partition("(")
        module, *parts = called.split(".")
        if is_call:
            while parts[1:] and f"{module}/{parts[0]}" in self.names:
                module = f"{module}/{parts.pop(0)}"
            return self.takes(module, parts[0], keyword[:-2]) if len(parts) == 1 else None
        makes = _MAKES_OF_TORCH if module == "torch" else _MAKES_NAMES
        if not parts:
            return module in self.names
        for part in parts:
            if f"{module}/{part}" not in self.names:
                return self._has(module, part, {module}, makes=makes if part is parts[-1] else _MAKES_MODULES)
            module = f"{module}/{part}"
        return True

    def _takes(self, module: str, name: str, keyword: str, deep: int = 0) -> bool | None:
        """Return whether a function or a class's constructor takes a keyword; None if unknown."""
        node, *others = [*self.bound(module).get(name, []), ast.Pass()]
        if len(others) > 1 or deep > _DEEPEST:
            return None
        if isinstance(node, ast.ImportFrom):
            origin = next(each.name for each in node.names if name == (each.asname or each.name))
            return self.takes(self._origin(module, node).replace(".", "/"), origin, keyword, deep + 1)
        if isinstance(node, ast.ClassDef):
            how, own = [*map(ast.unparse, node.decorator_list)], _bound(node.body)
            is_data = len(how) == 1 and re.match(r"(dataclasses\.)?dataclass\b(?!.*init=)", how[0]) is not None
            makers = [*own.get("__init__", ()), *own.get("__new__", ())]
            if len(makers) > 1 or node.keywords or how[is_data:]:
                return None
            if not makers:
                above = [ast.unparse(each) for each in node.bases if ast.unparse(each) != "object"]
                taken = [is_data and keyword in own, *(self.takes(module, each, keyword, deep + 1) for each in above)]
                return True if True in taken else None if None in taken else False
            node = makers[0]
        if not isinstance(node, ast.FunctionDef):
            return None
        named: set[object] = {each.arg for each in (*node.args.args, *node.args.kwonlyargs)}
        named |= {getattr(each, "value", None) for one in node.decorator_list for each in ast.walk(one)}  # older names
        return keyword in named or (None if node.decorator_list or node.args.kwarg else False)

    def _statements(self, module: str) -> list[ast.stmt]:
        with suppress(SyntaxError, ValueError, RecursionError, MemoryError):
            return ast.parse(self.text(module) or "").body
        return []

    def _origin(self, module: str, node: ast.ImportFrom) -> str:
        package = ".".join(module.split("/")[: None if f"{module}/__init__.py" in self.files else -1])
        with suppress(ImportError):
            return resolve_name("." * node.level + (node.module or ""), package)
        return ""

    def _has(self, module: str, word: str, seen: set[str], makes: str) -> bool | None:
        text = self.text(module)
        if text is None or word == "*" or word.startswith("__"):
            return None
        if re.search(_GONE.format(word), text):
            return False
        if re.search(rf"(?<![.\w]){word}\b|\b{word.rstrip('0123456789')}\{{", text):  # f"List{i}" makes List2
            return None if makes == _MAKES_MODULES and word.islower() else True  # None: the text of that module
        listed = "_import_structure" in text and "define_import_structure" not in text  # transformers' lazy modules
        text = _GETATTR.sub(lambda found: found[0] if _OPEN.search(found[0], 16) else "", text)
        if not listed and (module, word[0]) != ("torch", "_") and re.search(makes, text):
            return None
        for dots, path in _STAR.findall(text) if makes != _MAKES_MODULES else ():
            other = self._origin(module, ast.ImportFrom(path, [], len(dots))).replace(".", "/")
            if other not in seen:
                seen.add(other)
                if (found := self._has(other, word, seen, makes)) is not False:
                    return found
        return False

    def imports(self, names: Sequence[str]) -> list[str]:
        """Return names of other packages that a small wheel imports for ``names``, outside of ``try`` and ``if``."""
        if sum(each.compress_size for each in self.files.values()) > _SMALL:
            return []
        pending, seen, found = [*names], set[str](), dict[str, None]()
        while pending:
            for module in accumulate(pending.pop().split("."), "{}/{}".format):
                body = [] if module in seen else self._statements(module)
                seen.add(module)
                for node in (each for each in body if isinstance(each, ast.Import | ast.ImportFrom)):
                    at = f"{self._origin(module, node)}." if isinstance(node, ast.ImportFrom) else ""
                    full = [at + each.name for each in node.names]
                    own = [each for each in full if each.partition(".")[0] in self.names]
                    pending += own
                    found |= dict.fromkeys(each for each in full if each not in own and "." in each[1:])
        return [*found][:_MOST_MODULES]

    def text(self, module: str) -> str | None:
        """Return a module's text; None if it has none that can be read."""
        if module not in self.texts:
            file = self.files.get(f"{module}/__init__.py") or self.files.get(f"{module}.py")
            known = file and file.file_size <= _MOST_TEXT and len(self.texts) < _MOST_MODULES
            text = self.archive.read(file).decode("utf-8", "replace") if file and known else None
            self.texts[module] = text and _COMMENT.sub("", text)
        return self.texts[module]
