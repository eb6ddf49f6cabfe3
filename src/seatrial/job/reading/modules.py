"""Where a module of the project lies, which modules are Python's, and which names packages removed."""

from __future__ import annotations

import glob
import json
import os
import re
import shlex
import sys
from collections.abc import Callable, Collection, Sequence
from functools import lru_cache
from itertools import accumulate, islice
from pathlib import Path
from typing import NamedTuple

from seatrial.errors import fallback
from seatrial.system.project_files import PACKAGING, read_sources
from seatrial.system.text import regex

#: Most folders of a project that are searched, and their depth.
_MOST_FOLDERS, _DEEPEST = 500, 3

#: With one of these a program builds a project's modules; with PACKAGING it can be installed with pip.
_BUILDS, _MAX_BYTES = ("CMakeLists.txt", "Makefile", "meson.build"), 100_000
#: Text of packaging that compiles or writes modules.
_GENERATES = regex(r"[eE]xtension|ext_modules|cmdclass|cmake|meson|maturin|rust|cython|cffi|pybind|write_to|hook")


def find_module(name: str, roots: Sequence[Path], *, main: bool = False) -> Path | None:
    """Return the file of a dotted module under one of the roots, or None; ``main``: a package's ``__main__.py``."""
    found = locate_module(name, roots, main=main)
    return found[0] if found else None


def locate_module(name: str, roots: Sequence[Path], *, main: bool = False) -> tuple[Path, Path] | None:
    """Return (file, the root that it was found under), or None."""
    inner = name.replace(".", os.sep)
    for root in roots:
        base = f"{root}{os.sep}{inner}"  # no Path yet: most of what is looked for is not there
        for file in (f"{base}{os.sep}{'__main__' if main else '__init__'}.py", f"{base}.py"):
            if is_file(file):
                return Path(file), root
    return None


@fallback(False, on=(OSError, ValueError))  # a name too long, a null byte: no file has it
def is_file(path: Path | str) -> bool:
    """Return whether a file has this name, wherever links lead."""
    return os.path.isfile(path)  # noqa: PTH113 - a third of the time, and a plan looks thousands of times


@fallback(False, on=(OSError, ValueError))
def is_folder(path: Path) -> bool:
    """Return whether a folder has this name, wherever links lead."""
    return path.is_dir()


def is_package(path: Path) -> bool:
    """Return whether Python takes a folder for a package before any other place: it has an ``__init__.py``."""
    return is_file(path / "__init__.py")


def folder_of(module: str, project: Path, names: Collection[str] = (), place: str = "") -> Path | None:
    """Return the folder of a module with these names in the project, nearest to ``place``, then to its top.

    None without one. A file that imports the module itself, such as models/music2latent.py, is another one.
    """
    itself = re.compile(rf"^[ \t]*(?:from|import)[ \t]+{re.escape(module)}\b", re.MULTILINE)
    for folder in sorted(folders_of(project), key=lambda each: -len(os.path.commonpath((each, project / place)))):
        file, inside = find_module(module, [folder]), folder / module.replace(".", os.sep)
        text = "".join(read_sources([file], project, _MAX_BYTES)) if file and names else ""
        listed = inside.glob("*") if (names or "." in module) and is_folder(inside) else ()
        within = {each.name.partition(".")[0] for each in listed}
        if (within or (file and not itself.search(text))) and {*names} <= {*re.findall(r"\w+", text), *within}:
            return folder.relative_to(project)
    return None


def renamed(package: str, modules: Collection[str], project: Path) -> str:
    """Return ``; the project has model/net.py: mv model models`` where one folder alone has a package's modules."""
    files = {each: [find_module(name, [each]) for name in sorted(modules)] for each in folders_of(project)[1:]}
    found = [(folder, inside[0]) for folder, inside in files.items() if inside and all(inside)]
    if len(found) != 1:
        return ""
    [(folder, file)] = found
    shown = [os.path.relpath(each, project) for each in (folder, folder.with_name(package))]
    return f"; the project has {os.path.relpath(str(file), project)}: {shlex.join(['mv', *shown])}"


def generates(project: Path, builds: Sequence[str] = _BUILDS) -> bool:
    """Return whether the project's packaging or build files may compile or write modules that are not there."""
    texts = read_sources([project / name for name in PACKAGING if is_file(project / name)], project, _MAX_BYTES)
    return any(map(_GENERATES.search, texts)) or any(is_file(project / name) for name in builds)


#: Endings of a Cython module's source, and of what is generated from it; none of them can be imported.
_OF_CYTHON = {".pyx", ".pxd", ".c", ".cpp", ".h", ".html"}


class Missing(NamedTuple):
    """Hold where the project imports a module, or a name in one, that it lacks, and what provides it."""

    where: str
    fix: str


def remedy(
    parts: Sequence[str], roots: Sequence[Path], project: Path, file: str, *, relative: bool, builds: bool
) -> str | None:
    """Return the command or edit that provides a module, or a name in ``file``; None where a build may make it.

    Args: roots: where Python looks. builds: the code compiles Cython's modules as it imports them.
    """
    name, last = ".".join(parts), parts[-1]
    for inside in (root.joinpath(*parts[:-1]) for root in roots):
        there = {path.suffix for path in inside.glob(f"{glob.escape(last)}.*")}
        if is_folder(inside / last) or (there - _OF_CYTHON if ".pyx" in there and not builds else there):
            return None
    paths = [root.joinpath(*parts) for root in roots]
    if fetch := fetch_of(paths, project):
        return fetch
    proto = Path(*parts[:-1], re.sub(r"_pb2(_grpc)?$", ".proto", last))
    if base := next((each for each in roots if last.startswith(f"{proto.stem}_pb2") and is_file(each / proto)), None):
        texts = "\n".join(read_sources((base / proto).parent.glob("*.proto"), project, _MAX_BYTES))  # of importers, too
        needs = re.findall(r'(?m)^\s*import\s+(?:public\s+)?"(?!google/)([^"]+)"', texts)
        tops = (each for each in (base, *base.parents) if needs and all(is_file(each / name) for name in needs))
        root = os.path.relpath(next(tops, base), project)
        file = os.path.relpath((base / proto).with_name("*.proto" if needs else proto.name), project)
        program = f"python -m grpc_tools.protoc --grpc_python_out={root}" if last.endswith("_grpc") else "protoc"
        return f"{program} -I{root} --python_out={root} {file}"
    if not relative and not find_module(parts[0], roots) and (folder := folder_of(name, project)):
        return f"seatrial run -e PYTHONPATH={folder} …"
    if file:
        return f"define {last} in {file}, or correct the import"
    if generates(project):
        how = "pip install -e ." if any(is_file(project / each) for each in PACKAGING) else "build it"
        return f"if the project's installation generates it, run {how} first"
    owner = next((root for root in roots if is_folder(root.joinpath(*parts[:-1]))), roots[0])
    if is_file(cython := owner.joinpath(*parts[:-1], f"{last}.pyx")):
        return f"cythonize -i {os.path.relpath(cython, project)}"
    return f"add {os.path.relpath(owner.joinpath(*parts), project)}.py"


_PATH, _MOST_SUBMODULES = regex(r"^\s*path\s*=\s*(\S.*?)\s*$", re.MULTILINE), 100


def empty_submodules(project: Path) -> list[str]:
    """Return the folders of submodules in which there is nothing, as .gitmodules names them."""
    text = "".join(read_sources([project / ".gitmodules"], project, _MAX_BYTES))
    return [path for path in _PATH.findall(text)[:_MOST_SUBMODULES] if is_empty(project / path)]


def fetch_of(paths: Collection[Path], project: Path) -> str | None:
    """Return the command that fetches the empty submodule in which one of these paths would lie."""
    for folder in empty_submodules(project):
        if any(path.is_relative_to(project / folder) for path in paths):
            return f"git submodule update --init --recursive {shlex.quote(folder)}   # {folder} is empty"
    return None


@fallback(False, on=(OSError, ValueError))  # not there at all: left out on purpose, or the file names another place
def is_empty(folder: Path) -> bool:
    """Return whether a folder is there and has nothing in it."""
    return next(folder.iterdir(), None) is None


def folders_of(project: Path, *, deepest: int = _DEEPEST, skip: Callable[[Path], bool] = lambda _: False) -> list[Path]:
    """Return the project's folders, outer ones first, hidden ones aside. Args: skip: whether to leave a folder out."""
    found = level = [project]
    for _ in range(deepest):
        below = (each for folder in level for each in _inside(folder) if not skip(each))
        level = [*islice(below, _MOST_FOLDERS - len(found))]
        found = [*found, *level]
    return found


@fallback([], on=OSError)
def _inside(folder: Path) -> list[Path]:
    paths = islice(folder.iterdir(), _MOST_FOLDERS)
    shown = (path for path in paths if not path.name.startswith((".", "__", "site-packages")))
    return sorted(path for path in shown if not path.is_symlink() and path.is_dir())


#: Standard name → (first Python without it, what takes its place or ""). Source: docs.python.org/3/whatsnew/3.10.html
#: to 3.13.html, "Removed"; with a dot, the modules of 2.7.18 and 3.6.15 to 3.13.0, compared on 2026-11-30.
_TABLE: dict[str, dict[str, str]] = json.loads(Path(__file__).with_name("lost_names.json").read_text())
REMOVED_IN = {
    name: (since, since, instead)
    for since, names in _TABLE.pop("python").items()
    for name, _, instead in (each.partition("=") for each in names.split())
}

#: Came or went between Python 3.10 and 3.14: the host's list may lack what the image has, or the other way round.
#: Source: sys.stdlib_module_names of 3.10.13, 3.11.7, 3.12.1, 3.13.0 and 3.14.8, which differ in these.
_IN_SOME = {*REMOVED_IN, "annotationlib", "compression", "distutils", "tomllib"}

#: Top-level names. None of them names a package of the index.
STANDARD_MODULES = sys.stdlib_module_names | _IN_SOME | {"__main__"}

#: Modules of every Python. A project may have a package of its own by another's name: ``lib/compression``.
EVERYWHERE = sys.stdlib_module_names - _IN_SOME

#: The frameworks, the likeliest to train first: JAX's and torch's scripts often read their data through TensorFlow.
FRAMEWORKS = ("torch", "jax", "tensorflow")

#: Module → the package that decides about its names, where their names differ; torchaudio's releases are torch's, and
#: TensorFlow decides about Keras.
_PACKAGES = {"sklearn": "scikit-learn", "torchaudio": "torch", "keras": "tensorflow"}


class Lost(NamedTuple):
    """Hold a removed name's package, the release that a bound excludes, a release without it, and its replacement."""

    package: str
    before: str
    since: str
    instead: str = ""


def removed_part(name: str) -> str | None:
    """Return the part of a dotted name that a Python removed: ``imp`` of ``imp.reload``; None without one."""
    return next((part for part in accumulate(name.split("."), "{}.{}".format) if part in REMOVED_IN), None)


def lost(name: str) -> Lost | None:
    """Look up a removed dotted name or a parent of it; None if its package, or Python, still has it or is unknown."""
    if part := removed_part(name):
        return Lost("python", *REMOVED_IN[part])
    module, _, inside = name.partition(".")
    return next((row for names, row in _rows().get(module, ()) if re.match(names, inside)), None) if inside else None


@lru_cache(maxsize=1)
def _rows() -> dict[str, list[tuple[str, Lost]]]:
    """Return module → (expression of removed names, compiled at its first use; their Lost)."""
    found = dict[str, list[tuple[str, Lost]]]()
    for module, rows in ((each, rows) for each, rows in _TABLE.items() if each != "source"):
        package = _PACKAGES.get(module, module.replace("_", "-"))
        forms = ((key, "|".join(names.split())) for key, names in rows.items())
        found[module] = [(rf"(?:{form})(?:\.|$)", Lost(package, *key.split())) for key, form in forms]
    return found
