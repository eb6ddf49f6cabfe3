"""A copy of our source that a test adds to, counting the files it touches. Use: ``from own_tree import Tree``."""

from __future__ import annotations

import shutil
from pathlib import Path

import seatrial
from cli_project import Project, environment


class Tree:
    """A copy of the package in a folder of the test's own.

    Attributes:
        touched: files written or edited so far, relative to the package.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.package = folder / "source" / "seatrial"
        self.touched: set[str] = set()
        source = Path(seatrial.__file__).parent
        shutil.copytree(source, self.package, ignore=shutil.ignore_patterns("__pycache__"))

    def add(self, path: str, text: str) -> None:
        """A new file."""
        target = self.package / path
        assert not target.exists()
        target.write_text(text)
        self.touched.add(path)

    def put(self, path: str, text: str, *, after: str = "", before: str = "") -> None:
        """Text in a file that is there, behind or in front of the first line that starts so."""
        target = self.package / path
        lines = target.read_text().splitlines(keepends=True)
        at = next(number for number, line in enumerate(lines) if line.startswith(after or before))
        lines.insert(at + bool(after), text)
        target.write_text("".join(lines))
        self.touched.add(path)

    def project(self) -> Project:
        """A project whose command line is this copy's."""
        environ = {**environment(self.folder), "PYTHONPATH": str(self.package.parent)}
        return Project(self.folder / "project", "local", environ)
