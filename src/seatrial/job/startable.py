"""Lists the scripts, packages, notebooks and commands of a project."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator
from pathlib import Path, PurePosixPath

from seatrial.job.reading.modules import is_file, locate_module

_MAX_LOOKED_AT = 2000


def scripts(folder: Path) -> Iterator[str]:
    """Yield Python files up to three folders deep, as paths relative to ``folder``; stop early in huge trees."""
    pending = [(folder, 0)]
    looked_at = 0
    while pending:
        current, depth = pending.pop(0)
        try:
            entries = sorted(current.iterdir())
        except OSError:  # a folder that may not be read has nothing to suggest
            continue
        for entry in entries:
            looked_at += 1
            if looked_at > _MAX_LOOKED_AT:
                return
            if entry.name.startswith((".", "__")):
                continue
            if entry.suffix == ".py" and entry.is_file():
                yield str(entry.relative_to(folder))
            elif depth < 2 and entry.is_dir() and not entry.is_symlink() and not is_foreign(entry):
                pending.append((entry, depth + 1))


def likely_scripts(project: Path) -> list[str]:
    """Return the scripts that people start, those for training first."""
    found = (path for path in scripts(project) if path not in ("setup.py", "conftest.py"))
    return sorted(found, key=lambda path: (path.count("/"), "train" not in path, path))


def runnable_package(project: Path) -> str | None:
    """Return the package that ``python -m`` can start, or None: net, for net/__main__.py or src/net/__main__.py."""
    mains = (path for folder in (project, project / "src") for path in sorted(folder.glob("*/__main__.py")))
    packages = (path.parent for path in mains)
    return next((folder.name for folder in packages if folder.name.isidentifier() and not is_foreign(folder)), None)


def first_notebook(project: Path) -> str | None:
    """Return the first notebook of the project's own folder, or of the folders in it; None if there is none."""
    found = [*sorted(project.glob("*.ipynb")), *sorted(project.glob("[!.]*/*.ipynb"))]
    return next((path.relative_to(project).as_posix() for path in found if not is_foreign(path.parent)), None)


def what_is_here(project: Path) -> tuple[str, str, str] | None:
    """Return (what can be started, a command to type before, words of the target), the likeliest first; or None."""
    likely = likely_scripts(project)[:5]
    if (package := runnable_package(project)) and all("/" in script for script in likely):
        return f"is the package {package}", "", f"-m {package}"
    if likely:
        return f"{'are' if likely[1:] else 'is'} {', '.join(likely)}", "", shlex.quote(likely[0])
    if notebook := first_notebook(project):
        convert, script = converted(notebook)
        return f"is the notebook {notebook}", f"{convert} && ", shlex.quote(script)
    return None


def converted(notebook: str) -> tuple[str, str]:
    """Return the command that makes a script of a notebook, and the script."""
    return f"jupyter nbconvert --to script {shlex.quote(notebook)}", str(Path(notebook).with_suffix(".py"))


_NAMES = {"node_modules", "site-packages", "venv", "env", "build", "dist"}

#: Files that mark an environment of any name: Python's own, and conda's.
_MARKS = ("pyvenv.cfg", "conda-meta/history")


def is_foreign(folder: Path) -> bool:
    """Return whether a folder is not the project's own, by its name, or by what is in it."""
    if folder.name.startswith((".", "__")) or folder.name in _NAMES:
        return True
    return any(is_file(folder / mark) for mark in _MARKS)


def module_name(script: str, project: Path) -> str:
    """Return ``pkg.train`` of ``src/pkg/train.py`` or ``pkg/train.py``: its name if Python starts in the project."""
    path = PurePosixPath(script)
    parts = path.with_suffix("").parts
    return ".".join(parts[1:] if parts[0] == "src" and not is_file(project / "src/__init__.py") else parts)


def console_script(word: str, project: Path) -> tuple[str, str, bool, str] | None:
    """Return (module, function, whether ``-m module`` calls it, its folder) of a command that the metadata names."""
    entry = re.compile(rf"""(?m)(?:^|["'])\s*{re.escape(word)}["']?\s*=\s*["']?([\w.]+):(\w+)""")
    for name in ("pyproject.toml", "setup.cfg", "setup.py"):
        for file in (project / name, *sorted(project.glob(f"*/{name}"))):
            if is_file(file) and (found := entry.search(file.read_text(errors="replace"))):
                module, function = found.groups()
                if place := locate_module(module, [file.parent, file.parent / "src"], main=True):
                    main = re.search(rf"(?s)__main__.*\b{function}\(", place[0].read_text(errors="replace"))
                    return module, function, main is not None, place[1].relative_to(project).as_posix()
    return None
