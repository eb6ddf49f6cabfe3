"""Where a module of the project lies, which modules are Python's, and which names packages removed."""

from __future__ import annotations

import json
import os
import re
import sys
from collections.abc import Iterator, Sequence
from functools import lru_cache
from itertools import islice
from pathlib import Path
from typing import NamedTuple

#: Most folders of a project that are searched, and their depth.
_MOST_FOLDERS, _DEEPEST = 500, 3


def find_module(name: str, roots: Sequence[Path], *, main: bool = False) -> Path | None:
    """Return the file of a dotted module under one of the roots, or None; ``main``: a package's ``__main__.py``."""
    found = locate_module(name, roots, main=main)
    return found[0] if found else None


def locate_module(name: str, roots: Sequence[Path], *, main: bool = False) -> tuple[Path, Path] | None:
    """Return (file, the root that it was found under), or None."""
    inner = name.replace(".", os.sep)
    for root in roots:
        base = f"{root}{os.sep}{inner}"  # no Path yet: most of what is looked for is not there
        for file in (f"{base}.py", f"{base}{os.sep}{'__main__' if main else '__init__'}.py"):
            if _is_file(file):
                return Path(file), root
    return None


def is_file(path: Path) -> bool:
    """Return whether a file has this name, wherever links lead."""
    return _is_file(str(path))


def _is_file(path: str) -> bool:
    try:
        return os.path.isfile(path)  # noqa: PTH113 - a third of the time, and a plan looks thousands of times
    except (OSError, ValueError):  # a name too long, a null byte: no file has it
        return False


def is_folder(path: Path) -> bool:
    """Return whether a folder has this name, wherever links lead."""
    try:
        return path.is_dir()
    except (OSError, ValueError):
        return False


def is_package(path: Path) -> bool:
    """Return whether Python takes a folder for a package before any other place: it has an ``__init__.py``."""
    return is_file(path / "__init__.py")


def folder_of(module: str, project: Path) -> Path | None:
    """Return the folder that a module lies in, relative to the project, the nearest to its top; None without one."""
    found = locate_module(module, folders_of(project))
    return found[1].relative_to(project) if found else None


def folders_of(project: Path, *, deepest: int = _DEEPEST) -> list[Path]:
    """Return the project's folders, outer ones first, hidden ones aside."""
    return list(islice(_folders(project, deepest), _MOST_FOLDERS))


def _folders(project: Path, deepest: int) -> Iterator[Path]:
    level = [project]
    for _ in range(deepest + 1):
        yield from level
        level = [inside for folder in level for inside in _inside(folder)]


def _inside(folder: Path) -> list[Path]:
    try:
        return sorted(
            path
            for path in islice(folder.iterdir(), _MOST_FOLDERS)
            if not path.name.startswith((".", "__", "site-packages")) and not path.is_symlink() and path.is_dir()
        )
    except OSError:
        return []


#: Came or went between Python 3.10 and 3.14: the host's list may lack what the image has, or the other way round.
#: Source: sys.stdlib_module_names of 3.10.13, 3.11.7, 3.12.1, 3.13.0 and 3.14.8, which differ in these.
_IN_SOME = frozenset(
    {
        *("aifc", "annotationlib", "asynchat", "asyncore", "audioop", "binhex", "cgi", "cgitb", "chunk", "compression"),
        *("crypt", "distutils", "imghdr", "imp", "lib2to3", "mailcap", "msilib", "nis", "nntplib", "ossaudiodev"),
        *("pipes", "smtpd", "sndhdr", "spwd", "sunau", "telnetlib", "tomllib", "uu", "xdrlib"),
    }
)

#: Top-level names. None of them names a package of the index.
STANDARD_MODULES = sys.stdlib_module_names | _IN_SOME | {"__main__"}

#: Modules that Python 3.10 removed. Source: docs.python.org/3/whatsnew/3.10.html, "Removed".
UNTIL_PYTHON_3_9 = {"formatter", "parser", "symbol"}

#: Modules of every Python. A project may have a package of its own by another's name: ``lib/compression``.
EVERYWHERE = sys.stdlib_module_names - _IN_SOME

#: The frameworks, the likeliest to train first: JAX's and torch's scripts often read their data through TensorFlow.
FRAMEWORKS = ("torch", "jax", "tensorflow")

#: Module → the package that decides about its names, where their names differ; torchaudio's releases are torch's, and
#: TensorFlow decides about Keras.
_PACKAGES = {"sklearn": "scikit-learn", "torchaudio": "torch", "keras": "tensorflow"}


class Lost(NamedTuple):
    """Hold a removed name's package, the release that a bound excludes, and a release without the name."""

    package: str
    before: str
    since: str


def lost(name: str) -> Lost | None:
    """Look up a removed dotted name or a parent of it; None if the package still has it or is unknown."""
    module, _, inside = name.partition(".")
    return next((row for names, row in _rows().get(module, ()) if re.match(names, inside)), None) if inside else None


@lru_cache(maxsize=1)
def _rows() -> dict[str, list[tuple[str, Lost]]]:
    """Return module → (expression of removed names, compiled at its first use; their Lost)."""
    table = json.loads(Path(__file__).with_name("lost_names.json").read_text())
    return {
        module: [
            (
                rf"(?:{'|'.join(names.split())})(?:\.|$)",
                Lost(_PACKAGES.get(module, module.replace("_", "-")), *key.split()),
            )
            for key, names in rows.items()
        ]
        for module, rows in table.items()
        if module != "source"
    }
