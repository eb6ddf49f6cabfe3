"""``seatrial init``: a project that trains: a data loader with tests, and a seatrial.toml that explains itself."""

from __future__ import annotations

import errno
import math
import os
import random
import re
import tempfile
from collections.abc import Iterator
from pathlib import Path

from seatrial.errors import DiskError, UsageError
from seatrial.system.files import in_the_way
from seatrial.system.typed_path import as_typed

#: Files in it have ``.txt`` behind their names, so that no tool takes them for files of this project.
STARTER = "starter"

#: Enough for a network of a thousand weights, and read in a moment.
POINTS = 600

#: What a run, a project of Compose and an image can be called.
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]{0,62}")


def new_project(folder: Path) -> list[str]:
    """Make the project, whole or not at all; its files.

    Raises:
        UsageError: the folder is not empty, or its name is none for an image.
        DiskError: it cannot be written.
    """
    name = folder.name
    if not _NAME.fullmatch(name):
        raise UsageError(
            f"{'An empty name' if folder == Path() else repr(str(folder))} does not name a new project",
            cause="its folder and its image get the name: letters, digits, . _ -, at most 63",
            run="seatrial init my-project",
        )
    if not folder.parent.is_dir():
        raise UsageError(f"There is no folder {folder.parent}", run=f"mkdir -p {as_typed(folder.parent)}")
    contents = {path: text.replace("NAME", name) for path, text in _starter()}
    contents["data/points.csv"] = two_moons()
    _refuse_what_is_there(folder)
    try:
        with tempfile.TemporaryDirectory(dir=folder.parent, prefix=f".{name}.") as aside:
            made = Path(aside) / name
            for path, text in contents.items():
                (made / path).parent.mkdir(parents=True, exist_ok=True)
                (made / path).write_text(text, encoding="utf-8")
            made.rename(folder)  # over an empty folder, which POSIX allows, and over no other
    except OSError as error:
        if error.errno in (errno.ENOTEMPTY, errno.EEXIST, errno.ENOTDIR):  # it came meanwhile
            _refuse_what_is_there(folder)
        raise DiskError(f"Cannot create {folder}: {error.strerror}", run=in_the_way(folder.parent, error)) from error
    return sorted(contents)


def _refuse_what_is_there(folder: Path) -> None:
    if folder.is_dir() and not folder.is_symlink() and not any(folder.iterdir()):
        return
    if os.path.lexists(folder):
        what = "The folder {} is not empty" if folder.is_dir() else "There is a file {} already"
        raise UsageError(
            f"{what.format(folder)}: nothing was written",
            cause="seatrial init makes a new folder; for a project that is there, seatrial init writes seatrial.toml",
            run=f"cd {as_typed(folder)} && seatrial init" if folder.is_dir() else "seatrial init ANOTHER-NAME",
        )


def two_moons(points: int = POINTS, seed: int = 0) -> str:
    """A CSV of two half circles that reach into one another: no line divides them, and a small network does."""
    chance = random.Random(seed)
    rows = ["x,y,label"]
    for number in range(points):
        angle, label = math.pi * chance.random(), number % 2
        x, y = (math.cos(angle), math.sin(angle)) if label == 0 else (1 - math.cos(angle), 0.5 - math.sin(angle))
        rows.append(f"{x + chance.gauss(0, 0.1):.4f},{y + chance.gauss(0, 0.1):.4f},{label}")
    return "\n".join(rows) + "\n"


def _starter() -> Iterator[tuple[str, str]]:
    """(path in the project, text) of what is packaged."""

    root = Path(__file__).parent / STARTER
    for path in sorted(root.rglob("*.txt")):
        name = path.relative_to(root).as_posix().removesuffix(".txt")
        yield ".gitignore" if name == "gitignore" else name, path.read_text(encoding="utf-8")
