"""Read cases.toml: for every item of the documents, the command that a user types and what must happen.

A case has

    name             of the test
    items            "ID:DIGEST …", the items of the documents that it covers (see items.py)
    types            a command, or several; all but the last must succeed
    exit             of the last; 0
    ids              findings or remarks that its JSON has; other is true where there may be more
    shows, hides     parts of its output, white space aside, that must and must not be there
    files            "NAME < SHAPE [< ITEM]": what the project has; a SHAPE is a text under [shapes], a file or folder
                     in shapes/, or a folder of the repository. With an ITEM the case runs a second time, with the
                     item's own text in that file
    head             a line above an item's text
    replace          [OLD, NEW] in the first file
    leaves           files of the project that are there at the end
    serves           the commands serve until they are ended: the path to fetch from the last one
    cluster          the nodes of a constructed cluster: "gpu" or "cpu"
    environ          variables
    needs            marks: torch, slow
    waits            why it fails today

or, where there is only something to read, page (and shows: what the page has) and the reason why nothing is typed.
"""

from __future__ import annotations

import os
import shlex
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any

import pytest

from . import items

try:
    import tomllib
except ModuleNotFoundError:  # Python 3.10
    import tomli as tomllib

HERE = Path(__file__).parent
ROOT = HERE.parents[1]
DOCUMENTS = Path(os.environ.get("SEATRIAL_TEST_DOCUMENTS", ROOT.parent / "shared" / "documents"))

#: Words of commands that no container engine has a part in.
ELSEWHERE = {"local", "k8s", "--check"}

#: Items for which there may be no more than a page to read.
MOST_PAGES = 15


@dataclass(frozen=True)
class Case:
    name: str
    items: str
    types: str | list[str] = ""
    exit: int = 0
    ids: list[str] = field(default_factory=list)
    shows: list[str] = field(default_factory=list)
    hides: list[str] = field(default_factory=list)
    files: list[str] = field(default_factory=list)
    head: str = ""
    replace: list[str] = field(default_factory=list)
    leaves: list[str] = field(default_factory=list)
    serves: str = ""
    cluster: str = ""
    environ: dict[str, str] = field(default_factory=dict)
    needs: list[str] = field(default_factory=list)
    waits: str = ""
    page: str = ""
    prints: list[str] = field(default_factory=list)
    reason: str = ""

    @property
    def commands(self) -> list[list[str]]:
        """The words behind ``seatrial`` of each command."""
        typed = [self.types] if isinstance(self.types, str) else self.types
        split = [shlex.split(one) for one in typed if one]
        assert all(words[0] == "seatrial" for words in split), f"{self.name}: a command begins with seatrial"
        return [words[1:] for words in split]

    @property
    def marks(self) -> list[pytest.MarkDecorator]:
        """Those that it needs; what plans or runs a container needs Docker."""
        found = [getattr(pytest.mark, mark) for mark in self.needs]
        found += [pytest.mark.docker] if self.in_docker else []
        return [*found, pytest.mark.xfail(reason=self.waits)] if self.waits else found

    @property
    def in_docker(self) -> bool:
        return any(words[0] in ("run", "plan", "up", "build") and not ELSEWHERE & set(words) for words in self.commands)

    @property
    def kind(self) -> str:
        """``page``, ``build --check``, or the last command's verb."""
        if self.page:
            return "page"
        *_, words = self.commands
        return "build --check" if "--check" in words else words[0]

    def covers(self) -> Iterator[tuple[str, str]]:
        """ID and digest of each item."""
        for one in self.items.split():
            identifier, _, digest = one.partition(":")
            yield identifier, digest

    def has_original(self) -> bool:
        return any(file.count("<") == 2 for file in self.files)

    def lay_out(self, folder: Path, *, original: bool) -> None:
        """Write the project's files."""
        for file in self.files:
            name, shape, item = (part.strip() for part in f"{file}{'<' * (2 - file.count('<'))}".split("<"))
            path = folder / name
            path.parent.mkdir(parents=True, exist_ok=True)
            if item and original:
                path.write_text(self.head + items.contents(documents()[item]), encoding="utf-8")
            elif shape in shapes():
                path.write_text(shapes()[shape], encoding="utf-8")
            elif (place := next(place for place in (HERE / "shapes" / shape, ROOT / shape) if place.exists())).is_dir():
                copy(place, path)
            else:
                path.write_bytes(place.read_bytes())
        if self.replace:
            path = folder / self.files[0].partition("<")[0].strip()
            path.write_text(path.read_text(encoding="utf-8").replace(*self.replace), encoding="utf-8")


def copy(folder: Path, to: Path) -> None:
    """Copy the files of a folder that a clone has: no runs, no models."""
    for path in sorted(folder.rglob("*")):
        made = to / path.relative_to(folder)
        if path.is_file() and not {".seatrial", "models", "__pycache__"} & set(made.parts):
            made.parent.mkdir(parents=True, exist_ok=True)
            made.write_bytes(path.read_bytes())


@cache
def documents() -> dict[str, items.Item]:
    """ID → item, of all the documents; empty where they are not here."""
    found = (item for path in sorted(DOCUMENTS.glob("[0-9]-*.md")) for item in items.read(path))
    return {item.id: item for item in found}


@cache
def table() -> dict[str, Any]:
    return tomllib.loads((HERE / "cases.toml").read_text(encoding="utf-8"))


@cache
def cases() -> tuple[Case, ...]:
    return tuple(Case(**each) for each in table()["case"])


def shapes() -> dict[str, str]:
    """Short files of the projects, by name."""
    return {name: text.lstrip("\n") for name, text in table()["shapes"].items()}


def only_read() -> set[str]:
    """Items that have a page and nothing to type."""
    typed = {identifier for case in cases() if not case.page for identifier, _ in case.covers()}
    return {identifier for case in cases() if case.page for identifier, _ in case.covers()} - typed


def coverage() -> str:
    """The line with how many items have a case, and what those are."""
    kinds = Counter(case.kind for case in cases())
    covered = {identifier for case in cases() for identifier, _ in case.covers()}
    wanted = documents().keys() or covered
    share = f"{len(covered & wanted)} of {len(wanted)} items covered, {100 * len(covered & wanted) // len(wanted)} %"
    source = "" if documents() else " (the documents are not here: as the table has them)"
    verbs = ", ".join(f"{kind} {count}" for kind, count in kinds.most_common())
    return f"documents: {share}{source}; {len(only_read())} by a page alone; {len(cases())} cases: {verbs}"
